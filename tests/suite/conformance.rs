//! `tickr conformance`: the kit passes a program that keeps docs/WORKERS.md, and finds each fault of one that does not.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use serde_json::Value;

use crate::support::documents::{document, root};
use crate::support::eventually;
use crate::support::program::{Program, command, nothing_runs_in, tickr};

/// The faults that the program can have, and the scenarios that must find them. No other scenario may fail, but for those
/// of the last list: they meet the fault only now and then.
const FAULTS: &[(&str, &[&str], &[&str])] = &[
    // These two take longest: a call without an answer has some time.
    ("polls-for-ever", &["fetch-no-answer"], &[]),
    ("drops-without-answer", &["finish-no-answer"], &["holding", "beats"]),
    ("token-in-url", &["token"], &[]),
    ("unknown-field", &["bodies"], &[]),
    ("long-errors", &["error-length"], &[]),
    ("long-logs", &["log-length"], &[]),
    ("large-results", &["result-too-large"], &[]),
    ("changed-body", &["fetch-lost"], &[]),
    ("old-fetch-id", &["fetch-id"], &[]),
    ("empty-holding", &["holding"], &[]),
    ("forgets-verdicts", &["holding"], &["beats", "two-attempts"]),
    ("large-bodies", &["finish-large"], &[]),
    ("drops-locked", &["finish-locked"], &["holding", "beats"]),
    ("drops-after-403", &["finish-403"], &["holding", "beats"]),
    ("drops-after-404", &["finish-404"], &["holding", "beats"]),
    ("gives-up-at-stop", &["stop-finish-lost"], &[]),
    ("registers-once", &["register-503", "dead-address"], &[]),
    ("registers-for-ever", &["register-401"], &[]),
    ("all-slots", &["slots"], &[]),
    ("twice", &["token-twice"], &[]),
    ("hurries-after-503", &["fetch-503"], &[]),
    ("hurries-after-500", &["fetch-500", "fetch-502"], &[]),
    ("ignores-404", &["fetch-404", "beat-404", "finish-404"], &[]),
    ("begins-late", &["fetch-late"], &[]),
    ("ignores-took", &["fetch-late"], &["holding", "beats"]),
    ("times-repetitions", &["fetch-late"], &["holding", "beats"]),
    ("ignores-drain", &["drain"], &[]),
    ("blocked-beats", &["beats", "cancel-blocked", "lost-blocked"], &["lease-ends"]),
    ("splits-holding", &["beats-large"], &["beats"]),
    ("obeys-503-in-beats", &["beat-503"], &[]),
    ("repeats-large-beats", &["beat-413"], &[]),
    ("forgets-unsaved", &["beat-unsaved"], &[]),
    ("stops-by-job", &["two-attempts"], &["holding", "beats"]),
    ("ignores-cancel", &["cancel", "deadline"], &["two-attempts", "lease-ends"]),
    ("success-after-cancel", &["cancel-blocked"], &[]),
    ("keeps-lost", &["lost", "lost-blocked"], &["beats", "holding"]),
    ("lists-lost", &["lost-blocked"], &["beats", "holding"]),
    ("outlives-lease", &["lease-ends"], &[]),
    ("new-key", &["enqueue-repeated"], &[]),
    ("one-address", &["dead-address", "failover"], &[]),
    ("keeps-at-stop", &["stop-releases"], &[]),
    ("waits-for-poll", &["stop-while-waiting"], &[]),
    ("stays-registered", &["stop", "stop-releases", "stop-while-waiting"], &[]),
];

/// Return the reference program with Python, or nothing where there is no Python.
fn worker() -> Option<[String; 2]> {
    let python =
        std::process::Command::new("python3").arg("--version").output().is_ok_and(|said| said.status.success());
    if !python {
        eprintln!("python3 is not installed: the conformance kit is not tested");
    }
    let path: PathBuf = root().join("tests/conformance/worker.py");
    python.then(|| ["python3".to_owned(), path.display().to_string()])
}

/// Run the kit. Returns its exit code and its report.
async fn kit(options: &[&str], program: &[String], fault: Option<&str>) -> (i32, Value) {
    let dir = tempfile::tempdir().unwrap();
    let mut kit = command(&tickr(), dir.path(), &[&["conformance", "--json"], options, &["--"]].concat());
    kit.args(program).args(fault);
    let output = tokio::time::timeout(Duration::from_secs(600), kit.output()).await.expect("it ends").unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let report = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{:?}", String::from_utf8(output.stderr)));
    (output.status.code().unwrap(), report)
}

/// Return the scenarios that failed, with what was seen.
fn failed(report: &Value) -> (BTreeSet<&str>, String) {
    let scenarios = report["scenarios"].as_array().unwrap().iter().filter(|scenario| scenario["ok"] == false);
    let failed: Vec<&Value> = scenarios.collect();
    let names = failed.iter().map(|scenario| scenario["name"].as_str().unwrap()).collect();
    let texts = failed
        .iter()
        .map(|scenario| format!("{}: {:#}\n{:#}", scenario["name"], scenario["broken"], scenario["traffic"]));
    (names, texts.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_keeps_the_specification_passes_every_scenario() {
    let Some(worker) = worker() else { return };
    let (code, report) = kit(&["--parallel", "5"], &worker, None).await;
    let (names, texts) = failed(&report);
    assert!(names.is_empty() && code == 0, "{names:?}\n{texts}");
    assert_eq!(report["passed"], tickr::conformance::scenarios().count());
    assert!(report["seconds"].as_f64().unwrap() < 120.0, "{}", report["seconds"]);
}

/// Run the kit on each fault, with options from the names of the scenarios. Return what was found instead.
async fn faults(options: impl Fn(&[&str]) -> Vec<String>, at_once: usize) -> Vec<String> {
    let Some(worker) = worker() else { return Vec::new() };
    let worker = &worker;
    let kits = FAULTS.iter().map(|(fault, must, may)| {
        let options = options(must);
        async move {
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let (code, report) = kit(&options, worker, Some(fault)).await;
            let (names, texts) = failed(&report);
            let missed: Vec<&&str> = must.iter().filter(|name| !names.contains(**name)).collect();
            let others: Vec<&&str> = names.iter().filter(|name| !must.contains(name) && !may.contains(name)).collect();
            let fine = missed.is_empty() && others.is_empty() && code == 1;
            (!fine).then(|| format!("{fault}: {missed:?} passed, {others:?} failed, exit code {code}\n{texts}"))
        }
    });
    stream::iter(kits).buffer_unordered(at_once).filter_map(async |wrong| wrong).collect().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_with_a_fault_fails_the_scenario_that_is_named_for_it() {
    let wrong = faults(|names| vec!["--only".to_owned(), names.join(",")], 5).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "each fault beside every scenario: ten minutes"]
async fn a_program_with_a_fault_fails_no_other_scenario() {
    let wrong = faults(|_| vec!["--parallel".to_owned(), "8".to_owned()], 1).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ends_at_once_fails_with_its_output() {
    let program = ["sh", "-c", "echo no module named tickr >&2; exit 3"].map(str::to_owned);
    let (code, report) = kit(&["--only", "succeeded"], &program, None).await;
    let (names, texts) = failed(&report);
    assert_eq!((code, names.into_iter().collect::<Vec<_>>()), (1, vec!["succeeded"]));
    assert!(texts.contains("exit code 3") && texts.contains("no module named tickr"), "{texts}");
    let program = ["/no/such/program".to_owned()];
    let (code, report) = kit(&["--only", "succeeded"], &program, None).await;
    assert!(code == 1 && failed(&report).1.contains("/no/such/program"), "{report}");
}

/// A program that ignores SIGTERM, and one that it started, are gone when the kit has ended.
#[tokio::test(flavor = "multi_thread")]
async fn the_kit_ends_the_whole_process_group_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let pids = dir.path().join("pids");
    let script = format!("trap '' TERM; sleep 1000 & echo $$ $! > {}; wait", pids.display());
    let program = ["sh".to_owned(), "-c".to_owned(), script];
    let kit = kit(&["--only", "succeeded"], &program, None);
    let (code, _) = kit.await;
    assert_eq!(code, 1);
    let written = std::fs::read_to_string(&pids).unwrap();
    let gone = |pid: &str| {
        // A process that has ended and that its parent has not fetched is a zombie.
        std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
    };
    crate::support::eventually("both processes are gone", || async {
        written.split_whitespace().all(gone).then_some(())
    })
    .await;
}

#[test]
fn each_scenario_quotes_a_sentence_of_the_specification() {
    let words = |text: &str| text.replace("**", "").split_whitespace().collect::<Vec<_>>().join(" ");
    let page = words(&document("docs/WORKERS.md").text);
    let missing: Vec<&str> = tickr::conformance::scenarios()
        .filter(|(_, sentence)| !page.contains(&words(sentence)))
        .map(|(name, _)| name)
        .collect();
    assert!(missing.is_empty(), "the sentences of {missing:?} are not in docs/WORKERS.md");
    for (_, must, may) in FAULTS {
        for name in must.iter().chain(*may) {
            assert!(tickr::conformance::scenarios().any(|(scenario, _)| scenario == *name), "no scenario {name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_to_the_kit_ends_the_programs_that_it_tests() {
    for (signal, code) in [("TERM", 143), ("INT", 130)] {
        let dir = tempfile::tempdir().unwrap();
        let started = dir.path().join("started");
        // The shell stays, so that the folder is in the command line of a process.
        let program = format!("echo up > '{}'; sleep 60; exit 1", started.display());
        let args = ["conformance", "--only", "token", "--", "sh", "-c", &program];
        let mut kit = Program::spawn(command(&tickr(), dir.path(), &args));
        eventually("the program runs", async || started.exists().then_some(())).await;
        kit.signal(signal).await;
        assert_eq!(kit.ends().await.code(), Some(code), "{}", kit.said());
        nothing_runs_in(dir.path()).await;
    }
}
