//! The schedules of the configuration, written to MySQL at the start.
//!
//! A stored schedule that equals the declared one is not changed, so a restart moves no tick. While a new configuration
//! is rolled out, old and new runners start side by side; the last one to start wins. For the same reason a schedule
//! that a runner no longer declares is not deleted: another runner may still declare it and would only create it again.
//! It keeps firing, the start logs a warning, and an operator deletes it after the rollout.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{StartError, start_error};
use crate::broker::{Broker, Invalid};
use crate::config::{Config, ConfigError, ConfigErrors, ScheduleConfig};
use crate::handlers::Problem;
use crate::job::{Actor, Schedule};
use crate::store::{Condition, PutOutcome, ScheduleOrigin};

/// Check all declared schedules, then write those that are new or changed. Return the names of all declared schedules.
pub(super) async fn declare(config: &Config, broker: &Broker) -> Result<Arc<BTreeSet<String>>, StartError> {
    let mut errors = Vec::new();
    for (name, declared) in &config.schedules {
        let Err(invalid) = broker.check_schedule(&declared.schedule) else { continue };
        let mut says = |key: &str, wrong: String, right: &str| {
            errors.push(ConfigError {
                setting: format!("schedules.{name}.{key}"),
                origin: declared.origin.clone(),
                value: None,
                wrong,
                right: right.to_owned(),
            });
        };
        match invalid {
            Invalid::UnknownKind { known, .. } => {
                says("kind", "this runner does not have the kind".to_owned(), &format!("write one of {known}"));
            }
            Invalid::Payload { problems, kind } => {
                // The problem names fields but no values: it goes to the log, where no payload may appear.
                let problems = match broker.registry().find(kind.as_str()) {
                    Some(kind) => kind.check_discreetly(&declared.schedule.template.payload),
                    None => problems,
                };
                let wrong: BTreeSet<String> = problems
                    .into_iter()
                    .map(|Problem { pointer, detail }| {
                        let place = if pointer.is_empty() { "its top" } else { &pointer };
                        format!("at {place}: {detail}")
                    })
                    .collect();
                let wrong: Vec<String> = wrong.into_iter().collect();
                let right = format!("write what the kind {kind} takes, as GET /v1/kinds shows it");
                says("payload", format!("does not fit the kind {}", wrong.join(", and ")), &right);
            }
            // Leave out the message, which may quote the payload.
            Invalid::Panicked(panicked) => {
                says("payload", panicked.to_string(), "fix the kind, or write another payload");
            }
            Invalid::Job { problems } => {
                for problem in problems {
                    let key = problem.pointer.trim_start_matches('/');
                    says(key, problem.detail, "see docs/SCHEDULES.md");
                }
            }
        }
    }
    if !errors.is_empty() {
        return Err(ConfigErrors(errors).into());
    }
    let (failed, by) = (|error| start_error(error, config), Actor::config());
    for (name, declared) in &config.schedules {
        let schedule = schedule_of(declared, broker);
        let put = broker.put_schedule(name.clone(), schedule, ScheduleOrigin::Config, Condition::Any, &by);
        match put.await.map_err(failed)? {
            PutOutcome::Created(_) => tracing::info!(schedule = %name, "declared a schedule"),
            PutOutcome::Changed(_) => tracing::info!(schedule = %name, "changed a schedule to match the configuration"),
            PutOutcome::Unchanged(_) | PutOutcome::Unexpected | PutOutcome::OwnedByConfig => {}
        }
    }
    let names: BTreeSet<String> = config.schedules.keys().map(ToString::to_string).collect();
    for name in broker.store().declared_schedules().await.map_err(failed)? {
        if !names.contains(&name) {
            tracing::warn!(
                schedule = name,
                "a schedule that another configuration declared keeps firing; if no configuration declares it any more, \
                 `tickr schedules delete --undeclared` removes it"
            );
        }
    }
    Ok(Arc::new(names))
}

/// Return the declared schedule. If the declaration names no queue, its jobs go to that of their declared kind.
fn schedule_of(declared: &ScheduleConfig, broker: &Broker) -> Schedule {
    let mut schedule = declared.schedule.clone();
    if !declared.names_queue
        && let Some(queue) = broker.queue_of_kind(schedule.template.kind.as_str())
    {
        schedule.template.queue = queue;
    }
    schedule
}
