//! Alerts about dead letters: metrics of their number and age, and a callback when a threshold is exceeded.
//!
//! Every runner measures; MySQL lets only one of them send an alert. The message is an ordinary `http` job: durable,
//! signed, retried, and visible like any other job. It has an order key, so the receiver hears the messages of a rule in
//! the order in which they were sent. The receiver may be out for long, so the job has many attempts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::EngineState;
use tickr_broker::Draft;
use tickr_job::{AlertChange, AlertRule, Measured, Name, NewJob, OnFailure, RetryRequest, limits};
use tickr_store::{DeadLetterCount, StoreError};

/// Time between two measurements.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Most open dead letters that are counted from the oldest on, and from the newest on.
const MAX_COUNTED: u32 = 100_000;
/// Longest time between two attempts to deliver a message, in milliseconds. With all its attempts, a delivery outlasts an
/// outage of the receiver of twenty minutes. After that, it has failed, and the message is sent anew.
const MAX_DELAY_MS: u64 = 15_000;
/// Time between two log lines about dead letters that cannot be counted.
const SAID_EVERY: Duration = Duration::from_secs(30);

/// Receiver of alerts, and the rules that cause them. `Debug` hides the URL, which may contain a secret.
#[derive(Clone)]
pub struct AlertSettings {
    /// URL of the callback.
    pub url: String,
    /// Queue of the callback's job.
    pub queue: String,
    /// Shortest time between two alerts of the same rule.
    pub cooldown: Duration,
    /// The thresholds.
    pub rules: Vec<AlertRule>,
}

impl fmt::Debug for AlertSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url: _, queue, cooldown, rules } = self;
        let mut shown = f.debug_struct("AlertSettings");
        shown.field("url", &"***").field("queue", queue).field("cooldown", cooldown).field("rules", rules).finish()
    }
}

pub(super) async fn run_until_stopped(shared: Arc<EngineState>) {
    // Kinds that have a metric. It goes back to zero when the kind has no more dead letters.
    let mut shown: BTreeSet<Name> = BTreeSet::new();
    let mut said: Option<Instant> = None;
    loop {
        match look(&shared, &mut shown).await {
            Ok(()) => said = None,
            Err(error) if said.is_none_or(|said| said.elapsed() > SAID_EVERY) => {
                tracing::warn!(%error, "cannot count dead letters or send alerts about them yet");
                said = Some(Instant::now());
            }
            Err(_) => {}
        }
        tokio::select! {
            () = shared.stop_loops.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

async fn look(shared: &EngineState, shown: &mut BTreeSet<Name>) -> Result<(), StoreError> {
    let counts = shared.store.dead_letter_counts(MAX_COUNTED).await?;
    // Operators declare kinds at any time. Their metric begins with 0, so that their first dead letters are a growth.
    shown.extend(shared.registry.known_names());
    shown.extend(counts.iter().map(|count| count.kind.clone()));
    let measured = by_kind(&counts);
    for kind in shown.iter() {
        let measured = measured.get(kind).copied().unwrap_or_default();
        metrics::gauge!("tickr_dead_letters", "kind" => kind.to_string()).set(measured.open as f64);
        metrics::gauge!("tickr_dead_letter_oldest_seconds", "kind" => kind.to_string())
            .set(measured.oldest.as_secs_f64());
    }
    let Some(alerts) = &shared.settings.alerts else { return Ok(()) };
    let mut failed = None;
    for rule in &alerts.rules {
        // A failed delivery of an alert is no reason for the alert to go on.
        let counts = counts.iter().filter(|count| !count.of_alerts);
        let measured = of_kind(counts, rule.kind.as_ref());
        // Build both messages before it is known which one is sent: building one may fail, and then nothing must be
        // recorded as sent.
        let messages = (
            message(shared, alerts, rule, measured, AlertChange::Fired),
            message(shared, alerts, rule, measured, AlertChange::Resolved),
        );
        let (fired, resolved) = match messages {
            (Ok(fired), Ok(resolved)) => (fired, resolved),
            (Err(problem), _) | (_, Err(problem)) => {
                // The start checked the URL. The same URL is refused now.
                tracing::warn!(problem, "the url of [alerts] cannot be called");
                continue;
            }
        };
        let either = Arc::new(move |told| match told {
            AlertChange::Fired => fired.clone(),
            AlertChange::Resolved => resolved.clone(),
        });
        match shared.store.send_alert(rule.clone(), measured, alerts.cooldown, either).await {
            Ok(None) => {}
            Ok(Some((told, accepted))) => {
                tracing::warn!(alert = rule.name(), ?told, open = measured.open, job = %accepted.id, "alert");
                metrics::counter!("tickr_alerts_total", "alert" => rule.name()).increment(1);
                shared.broker.announce(&[accepted]);
            }
            // The next rule may concern other rows.
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Sum up the open dead letters of a kind, or of all kinds if none is named.
fn of_kind<'c>(counts: impl Iterator<Item = &'c DeadLetterCount>, kind: Option<&Name>) -> Measured {
    let mut measured = Measured::default();
    for count in counts.filter(|count| kind.is_none_or(|kind| *kind == count.kind)) {
        add(&mut measured, count);
    }
    measured
}

/// Sum up the open dead letters of each kind. There may be thousands of kinds, so this goes through the counts once.
fn by_kind(counts: &[DeadLetterCount]) -> BTreeMap<&Name, Measured> {
    let mut measured = BTreeMap::new();
    for count in counts {
        add(measured.entry(&count.kind).or_default(), count);
    }
    measured
}

fn add(measured: &mut Measured, count: &DeadLetterCount) {
    measured.open += count.open;
    measured.oldest = measured.oldest.max(Duration::from_millis(u64::try_from(count.oldest_ms).unwrap_or(0)));
}

fn message(
    shared: &EngineState,
    alerts: &AlertSettings,
    rule: &AlertRule,
    measured: Measured,
    told: AlertChange,
) -> Result<NewJob, String> {
    let event = match told {
        AlertChange::Fired => "dead_letters.fired",
        AlertChange::Resolved => "dead_letters.resolved",
    };
    let body = json!({
        "type": event,
        "at": shared.store.clock().now(),
        "alert": rule.name(),
        "kind": rule.kind,
        "open": measured.open,
        "oldest_seconds": measured.oldest.as_secs(),
        "threshold": {"count": rule.count, "age_seconds": rule.age.map(|age| age.as_secs())},
    });
    let payload = json!({"method": "POST", "url": alerts.url, "body": body}).to_string();
    let payload = RawValue::from_string(payload).map_err(|e| e.to_string())?;
    // An operator may have set a longer first delay for the kind.
    let first_ms = shared.registry.find("http").map_or(0, |kind| kind.defaults().retry.base_ms);
    let draft = Draft {
        queue: Some(alerts.queue.clone()),
        priority: Some(0),
        max_attempts: Some(limits::MAX_ATTEMPTS),
        retry: Some(RetryRequest { cap_ms: Some(MAX_DELAY_MS.max(first_ms)), ..RetryRequest::default() }),
        order_key: Some(format!("alert:{}", rule.name())),
        on_failure: Some(OnFailure::Skip),
        ..Draft::new("http", payload)
    };
    shared.broker.prepare(draft).map_err(|invalid| invalid.in_full())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dead_letters_of_a_kind_are_added_up_with_those_of_alerts() {
        let count = |kind: &str, of_alerts, open, oldest_ms| {
            let kind: Name = kind.parse().unwrap();
            DeadLetterCount { kind, of_alerts, open, oldest_ms }
        };
        let counts = [count("http", false, 3, 9_000), count("http", true, 1, 12_000), count("noop", false, 7, 5)];
        let measured = by_kind(&counts);
        let told: Vec<(&str, u64, u128)> =
            measured.iter().map(|(kind, of)| (kind.as_str(), of.open, of.oldest.as_millis())).collect();
        assert_eq!(told, [("http", 4, 12_000), ("noop", 7, 5)]);
    }

    #[test]
    fn debug_hides_the_url_of_alerts() {
        let url = "https://a.example/hook?token=canary".to_owned();
        let settings = AlertSettings { url, queue: "default".to_owned(), cooldown: LOOK_EVERY, rules: Vec::new() };
        assert!(!format!("{settings:?}").contains("canary"));
    }
}
