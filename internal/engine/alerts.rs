//! Alerts about dead letters: metrics of their number and age, and a callback when a threshold is exceeded.
//!
//! Every runner measures; MySQL lets only one of them send an alert. The message is an ordinary `http` job: durable,
//! signed, retried, and visible like any other job.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;

use super::EngineState;
use tickr_broker::Draft;
use tickr_job::{AlertChange, AlertRule, Measured, Name, NewJob};
use tickr_store::{DeadLetterCount, StoreError};

/// Time between two measurements.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Most open dead letters that are counted from the oldest on, and from the newest on.
const MAX_COUNTED: u32 = 100_000;

/// Receiver of alerts, and the rules that cause them.
#[derive(Clone, Debug)]
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

pub(super) async fn run_until_stopped(shared: Arc<EngineState>) {
    // Kinds that have a metric. It goes back to zero when the kind has no more dead letters.
    let mut shown: BTreeSet<Name> = BTreeSet::new();
    loop {
        if let Err(error) = look(&shared, &mut shown).await {
            tracing::debug!(%error, "cannot count dead letters");
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
    for kind in shown.iter() {
        let measured = of_kind(&counts, Some(kind));
        metrics::gauge!("tickr_dead_letters", "kind" => kind.to_string()).set(measured.open as f64);
        metrics::gauge!("tickr_dead_letter_oldest_seconds", "kind" => kind.to_string())
            .set(measured.oldest.as_secs_f64());
    }
    let Some(alerts) = &shared.settings.alerts else { return Ok(()) };
    for rule in &alerts.rules {
        let measured = of_kind(&counts, rule.kind.as_ref());
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
        if let Some((told, accepted)) = shared.store.send_alert(rule.clone(), measured, alerts.cooldown, either).await?
        {
            tracing::warn!(alert = rule.name(), ?told, open = measured.open, job = %accepted.id, "alert");
            metrics::counter!("tickr_alerts_total", "alert" => rule.name()).increment(1);
            shared.broker.announce(&[accepted]);
        }
    }
    Ok(())
}

/// Sum up the open dead letters of a kind, or of all kinds if none is named.
fn of_kind(counts: &[DeadLetterCount], kind: Option<&Name>) -> Measured {
    let mut measured = Measured::default();
    for count in counts.iter().filter(|count| kind.is_none_or(|kind| *kind == count.kind)) {
        measured.open += count.open;
        measured.oldest = measured.oldest.max(Duration::from_millis(u64::try_from(count.oldest_ms).unwrap_or(0)));
    }
    measured
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
        "alert": rule.name(),
        "kind": rule.kind,
        "open": measured.open,
        "oldest_seconds": measured.oldest.as_secs(),
        "threshold": {"count": rule.count, "age_seconds": rule.age.map(|age| age.as_secs())},
    });
    let payload = json!({"method": "POST", "url": alerts.url, "body": body}).to_string();
    let payload = RawValue::from_string(payload).map_err(|e| e.to_string())?;
    let draft = Draft { queue: Some(alerts.queue.clone()), priority: Some(0), ..Draft::new("http", payload) };
    shared.broker.prepare(draft).map_err(|invalid| invalid.in_full())
}
