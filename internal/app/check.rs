//! `tickr check --pending`: check before a rollout, with the new binary, whether it can run all unfinished jobs and the
//! jobs of all schedules, and whether the living runners can run what it accepts.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::kinds::register_all;
use super::{StartError, connect_store, sources_of, start_error};
use crate::broker::{Invalid, check_schedule};
use crate::config::Config;
use crate::handlers::report::FinishedReports;
use crate::handlers::{Panicked, Problem, Registry};
use crate::job::{Name, Timestamp};
use crate::store::{OutboxSource, Reader, Scheduled, SourceSettings, UnreadableSchedule};

/// Most job ids listed for each problem.
const SAMPLES: usize = 5;
/// Schedules in a page.
const PAGE: u32 = 200;
/// Most problems of schedules that are listed. The rest is only counted.
const MAX_SCHEDULES: usize = 1_000;
/// Most different problems that are listed for one kind. The rest is only counted.
const MAX_PROBLEMS: usize = 20;

/// Result of the check for the unfinished jobs of one kind.
#[derive(Debug, Default, Serialize)]
pub struct KindCheck {
    /// False when this binary has no handler for the kind. Then its jobs wait for another runner and use no attempt.
    pub known: bool,
    /// Number of jobs checked.
    pub jobs: u64,
    /// Number of jobs that this binary cannot read. They wait and use no attempt while a living runner may be able to
    /// read them; then they fail.
    pub failing: u64,
    /// Number of living runners that have, or may have, the kind in another version. Jobs that this binary accepts and
    /// they cannot read wait for a runner that can, and use no attempt.
    pub other_versions: u64,
    /// The problems, each with the number of jobs and some of their ids.
    pub problems: Vec<PendingProblem>,
}

/// A problem with the payloads of some jobs.
#[derive(Debug, Serialize)]
pub struct PendingProblem {
    /// JSON pointer into the payload.
    pub pointer: String,
    /// Description of the problem.
    pub detail: String,
    /// Number of jobs for which this is the first problem found.
    pub jobs: u64,
    /// Ids of some of these jobs.
    pub samples: Vec<String>,
}

/// Result of the check for schedules.
#[derive(Debug, Default, Serialize)]
pub struct ScheduleCheck {
    /// Number of schedules checked, paused ones included.
    pub checked: u64,
    /// Number of schedules whose ticks would make no job: the stored schedule cannot be read, or its kind does not
    /// accept the payload or the retry policy.
    pub failing: u64,
    /// Number of schedules whose kind this binary does not have. Their ticks need another runner.
    pub unknown: u64,
    /// The problems, in the order of schedule names; at most 1,000.
    pub problems: Vec<ScheduleProblem>,
}

/// A problem with a schedule.
#[derive(Debug, Serialize)]
pub struct ScheduleProblem {
    /// Name of the schedule.
    pub schedule: String,
    /// Kind of the schedule. Absent when the schedule cannot be read.
    pub kind: Option<Name>,
    /// JSON pointer into the payload, or into the job for another value, such as `/retry/cap_ms`. Absent when the
    /// schedule has neither.
    pub pointer: Option<String>,
    /// Description of the problem.
    pub detail: String,
}

/// Result of a check of unfinished jobs and schedules.
#[derive(Debug, Default, Serialize)]
pub struct PendingCheck {
    /// Results for unfinished jobs, by kind.
    pub kinds: BTreeMap<Name, KindCheck>,
    /// Result for schedules.
    pub schedules: ScheduleCheck,
    /// Results for the outboxes in databases of applications: why tickr cannot copy their rows, or nothing if it can.
    pub outboxes: BTreeMap<Name, Option<String>>,
}

impl PendingCheck {
    /// Return the number of jobs checked.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.kinds.values().map(|kind| kind.jobs).sum()
    }

    /// Return the number of jobs that this binary cannot read.
    #[must_use]
    pub fn failing(&self) -> u64 {
        self.kinds.values().map(|kind| kind.failing).sum()
    }

    /// Say what this binary would reject, jobs and schedules, and how many outboxes it cannot read, or `None` when it
    /// takes everything.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let unread = self.outboxes.values().flatten().count();
        let outboxes = (unread > 0).then(|| format!("{unread} of {} outboxes cannot be read", self.outboxes.len()));
        let parts: Vec<String> = self.rejects().into_iter().chain(outboxes).collect();
        (!parts.is_empty()).then(|| parts.join(", and "))
    }

    fn rejects(&self) -> Option<String> {
        let jobs = format!("{} of {} unfinished jobs", self.failing(), self.jobs());
        let schedules = format!("{} of {} schedules", self.schedules.failing, self.schedules.checked);
        match (self.failing(), self.schedules.failing) {
            (0, 0) => None,
            (_, 0) => Some(format!("{jobs} would be rejected")),
            (0, _) => Some(format!("{schedules} would make no job")),
            _ => Some(format!("{jobs} and {schedules} would be rejected")),
        }
    }

    /// Return the number of jobs whose kind this binary does not have.
    #[must_use]
    pub fn unknown(&self) -> u64 {
        self.kinds.values().filter(|kind| !kind.known).map(|kind| kind.jobs).sum()
    }
}

/// Decode the payload and the options of every unfinished job, and the template of every schedule, as this binary would
/// with the built-in kinds and those in `own`. Also compare its kinds with those of the living runners. Reads page by
/// page and without locks, so it may run beside live systems. `told` is called after each page with the number of jobs
/// checked so far.
///
/// # Errors
/// [`StartError`] when a kind cannot be set up or MySQL cannot be read.
pub async fn check_pending(
    config: &Config,
    own: Registry,
    mut told: impl FnMut(u64),
) -> Result<PendingCheck, StartError> {
    let registry = register_all(config, own, &FinishedReports::in_folder(&config.reports_dir))?;
    let store = connect_store(config).await?;
    // The tables may be those of an older binary, which has no declared kinds.
    if let Ok(kinds) = store.declared_kinds().await {
        registry.follow_declared(kinds.iter().map(|set| (&set.kind, (set.version, set.changed.0))));
    }
    let mut found = PendingCheck::default();
    let (mut after, mut more) = (None, true);
    while more {
        let page;
        (page, more) = store.pending(after).await.map_err(|e| start_error(e, config))?;
        after = page.last().map(|job| job.id);
        for job in page {
            let kind = found.kinds.entry(job.kind.clone()).or_default();
            kind.jobs += 1;
            let Some(registered) = registry.find(job.kind.as_str()) else { continue };
            kind.known = true;
            let mut problems = match &job.payload {
                Some(payload) => registered.check(payload).unwrap_or_else(|it| panicked(&it)),
                None => vec![Problem::at("", "the stored payload is not JSON")],
            };
            problems.extend(job.options_problem.map(|why| Problem::at("/options", why)));
            if let Some(first) = problems.into_iter().next() {
                kind.add(first, job.id.to_string());
            }
        }
        told(found.jobs());
    }
    let mut after = None;
    loop {
        let page = store.schedules(after, PAGE).await.map_err(|e| start_error(e, config))?;
        for row in &page {
            found.schedules.look_at(row, &registry, store.clock().now());
        }
        match page.last() {
            Some(Ok(last)) if page.len() == PAGE as usize => after = Some(last.name.to_string()),
            Some(Err(last)) if page.len() == PAGE as usize => after = Some(last.name.clone()),
            _ => break,
        }
    }
    let readers = store.readers().await.map_err(|e| start_error(e, config))?;
    for kind in registry.iter() {
        let another = |reader: &&Reader| {
            let edition = reader.editions.as_ref().and_then(|editions| editions.kinds.get(kind.name()));
            reader.kinds.contains(kind.name()) && edition != Some(&kind.edition())
        };
        let other_versions = readers.iter().filter(another).count() as u64;
        if other_versions > 0 || found.kinds.contains_key(kind.name()) {
            let check = found.kinds.entry(kind.name().clone()).or_default();
            (check.known, check.other_versions) = (true, other_versions);
        }
    }
    store.close().await;
    found.outboxes = check_outboxes(config).await;
    Ok(found)
}

/// Connect to each outbox of an application as a runner would, all at the same time.
async fn check_outboxes(config: &Config) -> BTreeMap<Name, Option<String>> {
    let checks = sources_of(config).into_iter().map(|SourceSettings { name, url }| async move {
        let problem = match OutboxSource::new(&url) {
            Ok(mut source) => source.check().await.err(),
            Err(error) => Some(error),
        };
        (name, problem.map(|problem| problem.to_string()))
    });
    futures_util::future::join_all(checks).await.into_iter().collect()
}

/// Turn a panic of a kind's check into a problem of the payload.
fn panicked(panicked: &Panicked) -> Vec<Problem> {
    vec![Problem::at("", format!("{panicked}: {}", panicked.message))]
}

impl ScheduleCheck {
    fn look_at(&mut self, row: &Result<Scheduled, UnreadableSchedule>, registry: &Registry, now: Timestamp) {
        self.checked += 1;
        let row = match row {
            Ok(row) => row,
            Err(UnreadableSchedule { name, why }) => {
                self.failing += 1;
                return self.add(name, None, None, why.clone());
            }
        };
        let template = &row.schedule.template;
        let problems = match check_schedule(&row.schedule, registry, now) {
            Ok(()) => return,
            Err(Invalid::UnknownKind { .. }) => {
                self.unknown += 1;
                let detail =
                    format!("its kind {} is not in this binary, so it waits for a runner that has it", template.kind);
                return self.add(row.name.as_str(), Some(&template.kind), None, detail);
            }
            Err(Invalid::Payload { problems, .. } | Invalid::Job { problems }) => problems,
            Err(Invalid::Panicked(it)) => panicked(&it),
        };
        if let Some(Problem { pointer, detail }) = problems.into_iter().next() {
            self.failing += 1;
            self.add(row.name.as_str(), Some(&template.kind), Some(pointer), detail);
        }
    }

    fn add(&mut self, name: &str, kind: Option<&Name>, pointer: Option<String>, detail: String) {
        if self.problems.len() < MAX_SCHEDULES {
            self.problems.push(ScheduleProblem { schedule: name.to_owned(), kind: kind.cloned(), pointer, detail });
        }
    }
}

impl KindCheck {
    fn add(&mut self, problem: Problem, job: String) {
        self.failing += 1;
        let same = |known: &&mut PendingProblem| known.pointer == problem.pointer && known.detail == problem.detail;
        if let Some(known) = self.problems.iter_mut().find(same) {
            known.jobs += 1;
            if known.samples.len() < SAMPLES {
                known.samples.push(job);
            }
        } else if self.problems.len() < MAX_PROBLEMS {
            let Problem { pointer, detail } = problem;
            self.problems.push(PendingProblem { pointer, detail, jobs: 1, samples: vec![job] });
        }
    }
}

impl fmt::Display for PendingCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.jobs() == 0 {
            writeln!(f, "no unfinished jobs")?;
        }
        for (name, kind) in &self.kinds {
            let verdict = match (kind.known, kind.failing) {
                (false, _) => "not in this binary, so they wait for a runner that has it".to_owned(),
                (true, 0) => "all can be read".to_owned(),
                (true, failing) => {
                    format!(
                        "{failing} would be rejected, once no living runner of another version may be able to read them"
                    )
                }
            };
            if kind.jobs > 0 {
                writeln!(f, "{name}: {} unfinished, {verdict}", kind.jobs)?;
            }
            if kind.other_versions > 0 {
                writeln!(
                    f,
                    "{name}: another version in {} living {}: what this binary accepts and they cannot read waits for a \
                     runner that can",
                    kind.other_versions,
                    if kind.other_versions == 1 { "runner" } else { "runners" }
                )?;
            }
            for problem in &kind.problems {
                let at = if problem.pointer.is_empty() { "the payload" } else { &problem.pointer };
                let told = printable(&format!("{at}: {} ({} jobs)", problem.detail, problem.jobs));
                writeln!(f, "  {told}\n    {}", problem.samples.join(" "))?;
            }
        }
        write!(f, "{}", self.schedules)?;
        for (name, problem) in &self.outboxes {
            match problem {
                Some(problem) => writeln!(f, "outbox {name}: {}", printable(problem))?,
                None => writeln!(f, "outbox {name}: can be read")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for ScheduleCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.checked == 0 {
            return Ok(());
        }
        let mut verdict = Vec::new();
        if self.failing > 0 {
            verdict.push(format!("{} would make no job", self.failing));
        }
        if self.unknown > 0 {
            verdict.push(format!("{} of kinds that are not in this binary", self.unknown));
        }
        let verdict = if verdict.is_empty() { "all can be read".to_owned() } else { verdict.join(", ") };
        writeln!(f, "schedules: {}, {verdict}", self.checked)?;
        for ScheduleProblem { schedule, pointer, detail, .. } in &self.problems {
            let at = match pointer.as_deref() {
                None => String::new(),
                Some("") => "the payload: ".to_owned(),
                Some(pointer) => format!("{pointer}: "),
            };
            writeln!(f, "  {}", printable(&format!("{schedule}: {at}{detail}")))?;
        }
        Ok(())
    }
}

/// Replace control characters, so that texts from payloads and rows cannot control a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if crate::job::is_terminal_control(c) { ' ' } else { c }).collect()
}
