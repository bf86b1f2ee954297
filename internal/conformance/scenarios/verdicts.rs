//! Each handler of the program, results, errors and logs.

use std::time::Duration;

use super::Running;
use crate::bodies::{MAX_ERROR, MAX_LOG};
use crate::json::Json;
use crate::stage::{Outcome, Stage, broken, expect_result, expect_verdict};

pub(super) fn succeeded(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let payload = Json::from(serde_json::json!({ "path": "a.png", "size": 3 }));
        let verdict = stage.run("echo", payload.clone()).await?;
        expect_result(&verdict, &payload)
    })
}

/// Check that the error of a verdict has this text in it.
fn expect_error(verdict: &Json, text: &str) -> Outcome {
    let error = verdict.get("error").and_then(Json::as_text).unwrap_or_default();
    if error.contains(text) { Ok(()) } else { broken(verdict.brief(), format!("an error with {text:?}")) }
}

fn expect_delay(verdict: &Json, delay_ms: Option<u64>) -> Outcome {
    if verdict.get("delay_ms").and_then(Json::as_u64) == delay_ms {
        return Ok(());
    }
    let expected = delay_ms.map_or_else(|| "no delay_ms".to_owned(), |delay| format!("delay_ms {delay}"));
    broken(verdict.brief(), expected)
}

pub(super) fn failed(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let verdict = stage.run("fail", serde_json::json!({ "message": "the disk is full" })).await?;
        expect_verdict(&verdict, "failed")?;
        expect_error(&verdict, "the disk is full")?;
        expect_delay(&verdict, None)?;
        let payload = serde_json::json!({ "message": "not now", "delay_ms": 90_000 });
        let verdict = stage.run("fail", payload).await?;
        expect_verdict(&verdict, "failed")?;
        expect_delay(&verdict, Some(90_000))?;
        // No delay is not the same as the usual one.
        let verdict = stage.run("fail", serde_json::json!({ "message": "at once", "delay_ms": 0 })).await?;
        expect_verdict(&verdict, "failed")?;
        expect_delay(&verdict, Some(0))
    })
}

pub(super) fn rejected(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let verdict = stage.run("reject", serde_json::json!({ "message": "no such customer" })).await?;
        expect_verdict(&verdict, "rejected")?;
        expect_error(&verdict, "no such customer")
    })
}

pub(super) fn snoozed(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let payload = serde_json::json!({ "message": "the shop is closed", "delay_ms": 3_600_000 });
        let verdict = stage.run("snooze", payload).await?;
        expect_verdict(&verdict, "snoozed")?;
        expect_error(&verdict, "the shop is closed")?;
        expect_delay(&verdict, Some(3_600_000))
    })
}

pub(super) fn released(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let verdict = stage.run("release", serde_json::json!({})).await?;
        expect_verdict(&verdict, "released")
    })
}

pub(super) fn exception(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let verdict = stage.run("throw", serde_json::json!({ "message": "nothing at that address" })).await?;
        expect_verdict(&verdict, "failed")?;
        expect_error(&verdict, "nothing at that address")?;
        let payload = Json::from(serde_json::json!([1]));
        expect_result(&stage.run("echo", payload.clone()).await?, &payload)
    })
}

/// Echo each of these texts of JSON exactly.
async fn echo(stage: &mut Stage, texts: &[&str]) -> Outcome {
    let mut jobs = Vec::new();
    for text in texts {
        let payload = Json::parse(text.as_bytes()).unwrap_or(Json::Null);
        jobs.push((stage.job("echo", payload.clone()), payload));
    }
    for (job, payload) in jobs {
        expect_result(&stage.settled(job).await?, &payload)?;
    }
    Ok(())
}

pub(super) fn results(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let deep = format!("{}1{}", "[".repeat(40), "]".repeat(40));
        let texts = [
            "null",
            "true",
            "0",
            "\"\"",
            "[]",
            "{}",
            r#"{"list":[],"object":{},"text":"","none":null,"no":false,"zero":0}"#,
            r#"{"":"an empty name","a.b":{"0":"zero","1":"one"}}"#,
            "[9007199254740991,-9007199254740991,0.1,1.5e300,-2.5,1e-7,123456.789]",
            r#"{"text":"grüße 日本語 🦀 \u0000\u0001\u001f\u007f \"quoted\" \\ / \u2028 <b>&amp;"}"#,
            deep.as_str(),
        ];
        // A text with NUL cannot be stored by every database column, so the specification leaves it out here.
        let texts: Vec<String> = texts.iter().map(|text| text.replace("\\u0000", "")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        echo(stage, &texts).await
    })
}

pub(super) fn big_integers(stage: &mut Stage) -> Running<'_> {
    Box::pin(
        async move { echo(stage, &[r#"{"id":9223372036854775807}"#, "[-9223372036854775808,9007199254740993]"]).await },
    )
}

pub(super) fn big_decimals(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move { echo(stage, &["[12345678901234567890.12345678901,0.1000000000000000000001]"]).await })
}

pub(super) fn result_too_large(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let verdict = stage.run("big", serde_json::json!({ "bytes": 200_000 })).await?;
        expect_verdict(&verdict, "succeeded")?;
        let length = verdict.get("result").and_then(Json::as_text).map(str::len);
        if length != Some(200_000) {
            return broken(verdict.brief(), "a text of 200,000 characters");
        }
        let verdict = stage.run("big", serde_json::json!({ "bytes": 300_000 })).await?;
        expect_verdict(&verdict, "failed")?;
        let payload = Json::from(serde_json::json!("after it"));
        expect_result(&stage.run("echo", payload.clone()).await?, &payload)
    })
}

pub(super) fn error_length(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        for message in ["the beginning ".repeat(500), "é🦀".repeat(3_000), String::new(), " \n".to_owned()] {
            let verdict = stage.run("fail", serde_json::json!({ "message": message })).await?;
            expect_verdict(&verdict, "failed")?;
            let error = verdict.get("error").and_then(Json::as_text).unwrap_or_default();
            if error.trim().is_empty() || error.chars().count() > MAX_ERROR {
                return broken(format!("an error of {} characters", error.chars().count()), "1 to 2,000 characters");
            }
            let start: String = message.trim().chars().take(200).collect();
            expect_error(&verdict, &start)?;
        }
        Ok(())
    })
}

/// Return the log of a verdict.
fn log_of(verdict: &Json) -> String {
    verdict.get("log").and_then(Json::as_text).unwrap_or_default().to_owned()
}

pub(super) fn log(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let verdict = stage.run("log", serde_json::json!({ "lines": ["first line", "zweite Zeile ü 🦀"] })).await?;
        expect_verdict(&verdict, "succeeded")?;
        let text = log_of(&verdict);
        let (first, second) = (text.find("first line"), text.find("zweite Zeile ü 🦀"));
        if first.is_some() && first < second {
            Ok(())
        } else {
            broken(verdict.brief(), "both lines of the log, in order")
        }
    })
}

pub(super) fn log_length(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let lines: Vec<String> = (0..600).map(|n| format!("line {n} {}", "ü🦀".repeat(20))).collect();
        let verdict = stage.run("log", serde_json::json!({ "lines": lines })).await?;
        expect_verdict(&verdict, "succeeded")?;
        let text = log_of(&verdict);
        if !text.contains("line 599 ") {
            return broken(format!("a log of {} bytes without the newest line", text.len()), "the newest lines");
        }
        if text.len() < MAX_LOG / 2 || text.len() > MAX_LOG {
            return broken(format!("a log of {} bytes", text.len()), "as many of the newest lines as fit into 16 KiB");
        }
        Ok(())
    })
}

pub(super) fn unknown_kind(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        let verdict = stage.run("nobody_has_this_kind", serde_json::json!({ "a": 1 })).await?;
        if expect_verdict(&verdict, "released").is_err() && expect_verdict(&verdict, "failed").is_err() {
            return broken(verdict.brief(), "the verdict released or failed");
        }
        let payload = Json::from(serde_json::json!("after it"));
        expect_result(&stage.run("echo", payload.clone()).await?, &payload)
    })
}

/// The clock of the server is an hour behind, then an hour ahead, and jobs take their time all the same.
pub(super) fn clock(stage: &mut Stage) -> Running<'_> {
    Box::pin(async move {
        for clock_s in [-3_600, 3_600] {
            stage.world.change(|state| state.setup.clock_s = clock_s);
            let job = stage.job("sleep", serde_json::json!({ "ms": 1_000 }));
            let verdict = stage.settled(job).await?;
            expect_result(&verdict, &serde_json::json!({ "slept": true }).into())?;
            let took = stage.world.read(|state| {
                let (_, attempt) = state.delivered(job)?;
                Some(attempt.verdict_at?.duration_since(attempt.handed_at))
            });
            if took.is_some_and(|took| took < Duration::from_millis(950)) {
                return broken(format!("the verdict after {took:?}"), "the verdict after a second");
            }
        }
        Ok(())
    })
}
