//! The final check: the tables, the handlers' journal, the sink and the outer ledger must agree.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::{MySqlConnection, Row as _};
use uuid::Uuid;

use crate::driver;
use crate::journal::{Execution, History};
use crate::keys::{self, Attempt, Run, Start};
use crate::kinds;
use crate::ledger::{Batch, Book};
use crate::outbox;
use crate::rates::{self, Rule};
use crate::remote;
use crate::schedules;
use crate::sink::Call;
use crate::world::World;

/// Verdict of a job that waited at its expiry.
const EXPIRED: &str = "expired";

/// Result of the checks.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) wrong: Vec<String>,
    /// Number of accepted jobs that are missing or have not ended.
    pub(crate) lost: usize,
    /// Number of executions that happened twice, plus enqueues that made two jobs.
    pub(crate) doubled: usize,
    pub(crate) jobs: usize,
    pub(crate) attempts: usize,
    /// Number of attempts by verdict.
    pub(crate) verdicts: BTreeMap<String, usize>,
    /// Number of jobs by end state.
    pub(crate) ends: BTreeMap<String, usize>,
    /// Attempts in the checkpoints of jobs that completed.
    pub(crate) checkpoints: usize,
    /// Number of callbacks that completed.
    pub(crate) callbacks: usize,
    /// Number of those that another system finished after the call.
    pub(crate) finished_later: usize,
    /// Number of ticks of schedules that fired.
    pub(crate) ticks: usize,
    /// Number of batches that were cancelled under way.
    pub(crate) cancelled_batches: usize,
    /// Number of batches that are nested in another one.
    pub(crate) nested: usize,
    /// Number of executions of jobs with an order key. `without_places` of them belong to a life before an operator's
    /// retry, whose place no row has.
    pub(crate) ordered: usize,
    pub(crate) without_places: usize,
    /// Number of executions of jobs with a limit key.
    pub(crate) limited: usize,
    /// Number of starts under the rate.
    pub(crate) paced: usize,
    /// Number of jobs that expired.
    pub(crate) expired: usize,
    /// Number of follow-up jobs.
    pub(crate) follow_ups: usize,
}

/// One job, as the tables hold it.
#[derive(Debug, Default)]
struct Job {
    kind: String,
    queue: String,
    name: String,
    /// Number of follow-up jobs of its success.
    then: u64,
    owed: bool,
    lines: Vec<Line>,
}

/// One attempt in the ledger of tickr (table `attempts`), or the end of a job that expired.
#[derive(Debug)]
struct Line {
    runner: String,
    /// Number of attempts used up to this one.
    burned: u32,
    claimed_at: DateTime<Utc>,
    ended_at: DateTime<Utc>,
    verdict: String,
    end: Option<String>,
    result: Option<String>,
}

impl Line {
    /// Return whether a runner executed it. The line of a job that expired names the runner that found it.
    fn was_executed(&self) -> bool {
        !self.runner.is_empty() && self.verdict != EXPIRED
    }

    /// Return the attempts that were in the checkpoint of the job when it succeeded.
    fn lived(&self) -> Option<Vec<Uuid>> {
        let result: Value = serde_json::from_str(self.result.as_deref()?).ok()?;
        result["lived"].as_array()?.iter().map(|token| token.as_str()?.parse().ok()).collect()
    }

    /// Return the token that the handler returned with its success.
    fn token(&self) -> Option<Uuid> {
        let result: Value = serde_json::from_str(self.result.as_deref()?).ok()?;
        result["token"].as_str()?.parse().ok()
    }
}

impl Job {
    /// Return the end state, if the newest attempt has one and the job is not owed.
    fn end(&self) -> Option<&str> {
        self.lines.last()?.end.as_deref().filter(|_| !self.owed)
    }

    fn executed(&self) -> usize {
        self.lines.iter().filter(|line| line.was_executed()).count()
    }

    /// Return whether its executions are in the journal.
    fn is_recorded(&self) -> bool {
        ["record", remote::REMOTE].contains(&self.kind.as_str())
    }

    fn has(&self, verdict: &str) -> bool {
        self.lines.iter().any(|line| line.verdict == verdict)
    }
}

/// Compare all records. Runners may still run, but no job is owed any more.
pub(crate) async fn everything(world: &World) -> anyhow::Result<Findings> {
    let mut root = world.servers.root().await?;
    let mut jobs = read(&mut root).await?;
    let ticks = schedules::names(&mut root).await?;
    for (id, name) in &ticks {
        jobs.entry(*id).or_default().name.clone_from(name);
    }
    let history = History::read(&world.journal())?;
    let calls = world.sink.calls();
    let mut found = Findings { jobs: jobs.len(), ..Findings::default() };
    for job in jobs.values() {
        found.attempts += job.lines.len();
        for line in &job.lines {
            *found.verdicts.entry(line.verdict.clone()).or_default() += 1;
        }
        *found.ends.entry(job.end().unwrap_or("none").to_owned()).or_default() += 1;
    }
    let members = members(&mut root).await?;
    let nested = nested(&mut root).await?;
    found.nested = nested.values().map(BTreeSet::len).sum();
    world.ledger.write(|book| {
        found.wrong.append(&mut book.complaints);
        answers(&mut found, book, &jobs, &ticks);
        callbacks_of_batches(&mut found, book);
        cancels(&mut found, book, (&jobs, &members, &nested), &history);
        remote_successes(&mut found, book, &jobs);
    });
    executions(&mut found, &jobs, &history);
    checkpoints(&mut found, &jobs, &history);
    limit(&mut found, &jobs, &history, driver::NARROW, driver::MAX_AT_ONCE);
    limit(&mut found, &jobs, &history, remote::REMOTE, remote::MAX_REMOTE);
    order(&mut found, &jobs, &history, &mut root).await?;
    let rules = world.ledger.write(|book| book.rules.clone());
    tenants(&mut found, (&jobs, &history), &rules, &mut root).await?;
    let (of_callers, mut retried) = world.ledger.write(|book| (book.batches.clone(), book.retry_asked.clone()));
    for batch in of_callers.iter().filter(|batch| batch.retry_asked) {
        retried.extend(within(batch.id, &nested).iter().filter_map(|id| members.get(id)).flatten());
    }
    batches(&mut found, &of_callers, &retried, (&jobs, &members, &nested), &mut root).await?;
    let (exceeded, paced) = rates::exceeded(&rules, &mut root).await?;
    anyhow::ensure!(paced > 0, "no job started under a rate");
    found.wrong.extend(exceeded);
    found.paced = paced;
    expiries(&mut found, &jobs, &mut root).await?;
    let (rows, unfit) = world.ledger.write(|book| (book.rows.clone(), book.unfit_rows.clone()));
    found.wrong.extend(outbox::left(&unfit, &mut root).await?);
    if !rows.contains_key("committed") || !rows.contains_key("undone") {
        found.wrong.push(format!("not each sort of rows was in the outbox: {rows:?}"));
    }
    let (missing, fired) = schedules::missing(&mut root).await?;
    found.wrong.extend(missing);
    found.ticks = fired;
    let finishes = world.ledger.write(|book| book.finishes.clone());
    callbacks(&mut found, &jobs, &calls, &finishes);
    tables(&mut found, &mut root).await?;
    tallies(&mut found, &mut root).await?;
    Ok(found)
}

/// Return the names of the follow-up jobs that must be there: those of every job that succeeded, and of no other one.
fn follow_ups(jobs: &BTreeMap<Uuid, Job>) -> BTreeSet<String> {
    let succeeded = jobs.values().filter(|job| job.has("succeeded"));
    succeeded.flat_map(|job| (1..=job.then).map(move |number| kinds::follow_up(&job.name, number))).collect()
}

/// Check the answers to enqueues: a job that was answered with 2xx exists and has ended, a job that was refused with
/// 4xx does not exist, and no name exists twice. A job that was never requested is there exactly if it is a follow-up job
/// of a success, or that of a tick.
fn answers(found: &mut Findings, book: &mut Book, jobs: &BTreeMap<Uuid, Job>, ticks: &BTreeMap<Uuid, String>) {
    for (id, name) in &book.accepted {
        match jobs.get(id) {
            None => {
                found.lost += 1;
                found.wrong.push(format!("job {id} ({name}) was accepted and is not there"));
            }
            Some(job) if job.queue == driver::ELSEWHERE => {
                if !job.owed || !job.lines.is_empty() {
                    found.wrong.push(format!("job {id} waits for a runner that is not there, and is {job:?}"));
                }
            }
            Some(job) if job.end().is_none() => {
                found.lost += 1;
                found.wrong.push(format!("job {id} ({name}) was accepted and has not ended: {job:?}"));
            }
            Some(job) if job.name != *name => {
                found.wrong.push(format!("job {id} was accepted as {name} and is {}", job.name));
            }
            Some(job) if book.poison.contains(name) && job.end() != Some("failed") => {
                found.wrong.push(format!("job {id} kills its runners and is {:?}", job.end()));
            }
            Some(_) => {}
        }
    }
    let mut names: BTreeMap<&str, Uuid> = BTreeMap::new();
    let mut missing = follow_ups(jobs);
    found.follow_ups = missing.len();
    for (id, job) in jobs {
        if let Some(other) = names.insert(&job.name, *id) {
            found.doubled += 1;
            found.wrong.push(format!("{} was enqueued once and is there twice: {other} and {id}", job.name));
        }
        book.callbacks.remove(&job.name);
        let follows = missing.remove(&job.name);
        let ticks = ticks.contains_key(id);
        if (follows || ticks) && job.end().is_none() {
            found.lost += 1;
            found.wrong.push(format!("job {id} ({}) has not ended: {job:?}", job.name));
        }
        if book.refused.contains(&job.name) {
            found.wrong.push(format!("job {id} ({}) was refused and is there", job.name));
        } else if !book.accepted.contains_key(id) && !book.unknown.contains(&job.name) && !follows && !ticks {
            found.wrong.push(format!("job {id} ({}) is there and was never requested", job.name));
        }
    }
    for name in missing {
        found.lost += 1;
        found.wrong.push(format!("{name} is not there, and the job that it follows succeeded"));
    }
    if found.follow_ups == 0 {
        found.wrong.push("no job had a follow-up job".to_owned());
    }
}

/// Check that the end of each accepted batch has started its callback. Those that are there have been removed.
fn callbacks_of_batches(found: &mut Findings, book: &Book) {
    for name in &book.callbacks {
        found.lost += 1;
        found.wrong.push(format!("{name} is not there, and its batch was accepted"));
    }
}

/// Check that each cancel did what its answer says.
fn cancels(
    found: &mut Findings,
    book: &Book,
    (jobs, members, nested): (&BTreeMap<Uuid, Job>, &Tree, &Tree),
    history: &History,
) {
    for (id, lines) in &book.cancelled {
        let Some(job) = jobs.get(id) else { continue };
        if job.end() != Some("cancelled") {
            found.wrong.push(format!("cancel of {id} answered 200 and it is {:?}", job.end()));
        }
        let started = history.jobs.get(id).into_iter().flatten().any(|execution| execution.began >= *lines);
        // An attempt that was lost before the cancel may write its first journal line late, when its paused runner is
        // resumed.
        if started && !job.has("lost") {
            found.wrong.push(format!("cancel of {id} answered 200 and it started after that"));
        }
    }
    for id in &book.over {
        let ended = jobs.get(id).is_some_and(|job| job.lines.iter().any(|line| line.end.is_some()));
        if !ended {
            found.wrong.push(format!("cancel of {id} answered 409, and the job had not ended"));
        }
    }
    // The jobs of each and of those nested in it, with the follow-up jobs that joined them.
    let of_batches = book.batches.iter().filter(|batch| batch.cancel_asked);
    let of_batches = of_batches.flat_map(|batch| within(batch.id, nested));
    let of_batches: BTreeSet<&Uuid> = of_batches.filter_map(|id| members.get(&id)).flatten().collect();
    for (id, job) in jobs {
        let asked = book.cancel_asked.contains(id)
            || book.keyed.contains(id)
            || book.children.contains(id)
            || of_batches.contains(id)
            || book.unknown.contains(&job.name);
        if job.end() == Some("cancelled") && !asked {
            found.wrong.push(format!("job {id} is cancelled and its cancel was never requested"));
        }
    }
}

/// The jobs of each batch, or the batches that are nested in it.
type Tree = BTreeMap<Uuid, BTreeSet<Uuid>>;

/// Read the jobs of each batch.
async fn members(root: &mut MySqlConnection) -> anyhow::Result<Tree> {
    let mut members = Tree::new();
    for row in sqlx::query("SELECT batch_id, job_id FROM batch_jobs").fetch_all(root).await? {
        members.entry(row.try_get(0)?).or_default().insert(row.try_get(1)?);
    }
    Ok(members)
}

/// Read the batches that are nested in each, at the first level.
async fn nested(root: &mut MySqlConnection) -> anyhow::Result<Tree> {
    let mut nested = Tree::new();
    for row in sqlx::query("SELECT parent, id FROM batches WHERE parent IS NOT NULL").fetch_all(root).await? {
        nested.entry(row.try_get(0)?).or_default().insert(row.try_get(1)?);
    }
    Ok(nested)
}

/// Return a batch and all that are nested in it, at any level.
fn within(batch: Uuid, nested: &Tree) -> BTreeSet<Uuid> {
    let mut all = BTreeSet::from([batch]);
    for inner in nested.get(&batch).into_iter().flatten() {
        all.extend(within(*inner, nested));
    }
    all
}

/// Check the batches. Each has its jobs. Its callbacks are there exactly if their events came: the one of a success if all
/// jobs of it and of those nested in it completed and none of these was cancelled, the one of a failure if a job failed for
/// good, whatever came after. No job of a batch or of one nested in it started after its cancel was answered with 200,
/// except by the retry of an operator.
async fn batches(
    found: &mut Findings,
    batches: &[Batch],
    retried: &BTreeSet<Uuid>,
    (jobs, members, nested): (&BTreeMap<Uuid, Job>, &Tree, &Tree),
    root: &mut MySqlConnection,
) -> anyhow::Result<()> {
    let cancelled = "SELECT id FROM batches WHERE cancelled_at IS NOT NULL";
    let cancelled: BTreeSet<Uuid> =
        sqlx::query_scalar::<_, Uuid>(cancelled).fetch_all(&mut *root).await?.into_iter().collect();
    let asked = batches.iter().filter(|batch| batch.cancel_asked).flat_map(|batch| within(batch.id, nested));
    let asked: BTreeSet<Uuid> = asked.collect();
    let names: BTreeSet<&str> = jobs.values().map(|job| job.name.as_str()).collect();
    let mut stopped = 0;
    for batch in batches {
        let (id, none) = (batch.id, BTreeSet::new());
        let of = members.get(&id).unwrap_or(&none);
        let is_cancelled = cancelled.contains(&id);
        let inside = within(id, nested);
        let jobs_inside = || inside.iter().filter_map(|id| members.get(id)).flatten();
        let fails = |id: &Uuid| {
            jobs.get(id).is_some_and(|job| job.lines.iter().any(|line| line.end.as_deref() == Some("failed")))
        };
        if batch.jobs.iter().any(|job| !of.contains(job)) {
            found.wrong.push(format!("batch {id} was accepted with {:?} and has {of:?}", batch.jobs));
        }
        if batch.cancelled && !is_cancelled {
            found.wrong.push(format!("batch {id} was answered as cancelled and is not"));
        }
        if is_cancelled && !asked.contains(&id) {
            found.wrong.push(format!("batch {id} is cancelled and its cancel was never requested"));
        }
        let completed = |id: &Uuid| jobs.get(id).is_none_or(|job| job.end() == Some("completed"));
        let all_well = inside.is_disjoint(&cancelled) && jobs_inside().all(completed);
        // A nested batch counts as failed if a job of it failed, or was cancelled alone, and no retry had made up for that by
        // its end.
        let not_well = |id: &Uuid| !completed(id) || fails(id);
        let any_nested = jobs_inside().filter(|id| !of.contains(*id)).any(not_well);
        let any_failed = if of.iter().any(fails) { Some(true) } else { (!any_nested).then_some(false) };
        // The callback of the end is always due, and those that are missing have been found.
        for (name, due) in batch.callbacks.iter().skip(1).zip([Some(all_well), any_failed]) {
            let Some(due) = due else { continue };
            if names.contains(name.as_str()) != due {
                found.lost += usize::from(due);
                let (is, must) = if due { ("is not", "must be") } else { ("is", "must not be") };
                found.wrong.push(format!("{name} {is} there and {must}: batch {id}, cancelled: {is_cancelled}"));
            }
        }
        let Some(from) = batch.still_from else { continue };
        stopped += usize::from(is_cancelled);
        let late = "SELECT a.job_id FROM batch_jobs b JOIN attempts a ON a.job_id = b.job_id WHERE b.batch_id = ? \
                    AND a.runner <> '' AND a.expired IS NULL AND a.started_at > ?";
        let any_retried = jobs_inside().any(|job| retried.contains(job));
        for inner in &inside {
            for job in sqlx::query_scalar::<_, Uuid>(late).bind(inner).bind(from).fetch_all(&mut *root).await? {
                // The job of a retry may add others to the batch, and these run as well.
                let by_retry = retried.contains(&job) || (any_retried && !batch.jobs.contains(&job));
                if !by_retry {
                    let is = jobs.get(&job);
                    found
                        .wrong
                        .push(format!("batch {id} was cancelled at {from}, and job {job} started later: {is:?}"));
                }
            }
        }
    }
    if found.nested == 0 {
        found.wrong.push("no batch was nested in another one".to_owned());
    }
    if stopped == 0 {
        found.wrong.push("no batch was cancelled under way".to_owned());
    }
    found.cancelled_batches = stopped;
    Ok(())
}

/// Check that each success that a remote worker was told of is the end of its job.
fn remote_successes(found: &mut Findings, book: &Book, jobs: &BTreeMap<Uuid, Job>) {
    for (id, token) in &book.remote_successes {
        let Some(job) = jobs.get(id) else { continue };
        let told = job.lines.iter().any(|line| line.verdict == "succeeded" && line.token() == Some(*token));
        if !told {
            found.lost += 1;
            found.wrong.push(format!("job {id} was settled as succeeded under {token}, and is {job:?}"));
        }
    }
}

/// Check the handlers' own journal. Each token starts at most once, each execution has an attempt in the ledger, the
/// executions of one job do not overlap, and a job is completed exactly if one handler finished with the result that
/// the job has.
fn executions(found: &mut Findings, jobs: &BTreeMap<Uuid, Job>, history: &History) {
    for line in &history.unreadable {
        found.wrong.push(format!("the journal has the unreadable line {line:?}"));
    }
    for (job, token) in &history.doubled {
        found.doubled += 1;
        found.wrong.push(format!("job {job} was started twice with token {token}"));
    }
    for (id, executions) in &history.jobs {
        let Some(job) = jobs.get(id) else {
            found.wrong.push(format!("job {id} was executed and is not there"));
            continue;
        };
        if executions.len() > job.executed() {
            let lines = job.executed();
            found.wrong.push(format!("job {id} was started {} times, of which {lines} are counted", executions.len()));
        }
        if let Some((older, newer)) = overlap(executions)
            && !job.has("lost")
            && !job.has("timed_out")
        {
            found.doubled += 1;
            found.wrong.push(format!("job {id} ran under {newer} while it ran under {older}: {job:?}"));
        }
    }
    for (id, job) in jobs.iter().filter(|(_, job)| job.is_recorded()) {
        let successes: Vec<&Line> = job.lines.iter().filter(|line| line.verdict == "succeeded").collect();
        if successes.len() > 1 {
            found.doubled += 1;
            found.wrong.push(format!("job {id} succeeded {} times", successes.len()));
        }
        if (job.end() == Some("completed")) != (successes.len() == 1) {
            found.wrong.push(format!("job {id} is {:?} with {} successes", job.end(), successes.len()));
        }
        for line in successes {
            let (result, token) = (&line.result, line.token());
            let mut executions = history.jobs.get(id).into_iter().flatten();
            let done = executions.any(|execution| {
                Some(execution.token) == token && execution.ended.as_ref().is_some_and(|(_, word)| word == "done")
            });
            if !done {
                found.wrong.push(format!("job {id} is completed with {result:?}, which no handler returned"));
            }
        }
    }
}

/// Check that each attempt began with the checkpoint of those before it: no attempt is missing whose checkpoint MySQL had,
/// and they are in the order of their starts.
fn checkpoints(found: &mut Findings, jobs: &BTreeMap<Uuid, Job>, history: &History) {
    for (id, job) in jobs.iter().filter(|(id, job)| kinds::saves(**id) && job.kind == "record") {
        let Some(line) = job.lines.iter().find(|line| line.verdict == "succeeded") else { continue };
        let (lived, executions) = (line.lived().unwrap_or_default(), history.jobs.get(id));
        found.checkpoints += lived.len();
        let executions = executions.into_iter().flatten();
        let until: Vec<&Execution> =
            executions.take_while(|execution| Some(&execution.token) != lived.last()).collect();
        let missing = until.iter().filter(|execution| execution.saved && !lived.contains(&execution.token)).count();
        let place = |token: &Uuid| until.iter().position(|execution| execution.token == *token).unwrap_or(until.len());
        if missing > 0 || !lived.is_sorted_by_key(place) || line.token() != lived.last().copied() {
            found.wrong.push(format!("job {id} ended with the checkpoint {lived:?}, {missing} are missing: {until:?}"));
        }
    }
}

/// Check that the queue with a limit never had more executions at once than the limit allows. Only executions that
/// succeeded count, because tickr never took their runners for dead.
fn limit(found: &mut Findings, jobs: &BTreeMap<Uuid, Job>, history: &History, queue: &str, allowed: usize) {
    let mut events: Vec<(usize, bool)> = Vec::new();
    for (id, job) in jobs.iter().filter(|(_, job)| job.queue == queue && job.is_recorded()) {
        let tokens: BTreeSet<Uuid> = job.lines.iter().filter_map(Line::token).collect();
        for execution in history.jobs.get(id).into_iter().flatten() {
            if let Some((ended, _)) = execution.ended.as_ref().filter(|_| tokens.contains(&execution.token)) {
                events.extend([(execution.began, true), (*ended, false)]);
            }
        }
    }
    let most = most_at_once(events);
    if most > allowed {
        found.wrong.push(format!("{most} jobs of {queue} ran at once, and {allowed} may"));
    }
}

/// Return the executions of a job, with what the ledger says about them.
fn runs_of(id: Uuid, job: &Job, history: &History) -> Vec<Run> {
    let (mut attempts, mut life) = (Vec::new(), 0);
    for line in &job.lines {
        if line.was_executed() {
            attempts.push(Attempt {
                burned: line.burned,
                claimed_at: line.claimed_at,
                ended_at: line.ended_at,
                verdict: line.verdict.clone(),
                token: line.token(),
                life,
            });
        }
        life += usize::from(line.end.is_some());
    }
    let last_life = life.saturating_sub(usize::from(!job.owed));
    let starts = history.jobs.get(&id).into_iter().flatten().map(|execution| Start {
        token: execution.token,
        attempt: execution.attempt,
        began: execution.began,
        ended: execution.ended.as_ref().map(|(line, _)| *line),
    });
    keys::runs_of(id, &starts.collect::<Vec<_>>(), &attempts, last_life)
}

/// Check that no two jobs with one order key ran at the same time, and that they started in the order of their places.
/// Every execution counts, also those that failed or were lost.
async fn order(
    found: &mut Findings,
    jobs: &BTreeMap<Uuid, Job>,
    history: &History,
    root: &mut MySqlConnection,
) -> anyhow::Result<()> {
    let mut lines: BTreeMap<Vec<u8>, Vec<(u64, Run)>> = BTreeMap::new();
    for row in sqlx::query("SELECT job_id, order_key, place FROM order_places").fetch_all(&mut *root).await? {
        let (id, key, place): (Uuid, Vec<u8>, u64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let Some(job) = jobs.get(&id) else { continue };
        lines.entry(key).or_default().extend(runs_of(id, job, history).into_iter().map(|run| (place, run)));
    }
    let runs = || lines.values().flatten();
    (found.ordered, found.without_places) = (runs().count(), runs().filter(|(_, run)| !run.in_last_life).count());
    anyhow::ensure!(found.ordered > found.without_places, "no job with an order key was executed");
    for (key, runs) in &lines {
        for wrong in keys::out_of_line(runs) {
            found.doubled += 1;
            found.wrong.push(format!("{}: {wrong}", String::from_utf8_lossy(key)));
        }
    }
    Ok(())
}

/// Check that no more jobs with one limit key ran at once than their limit allowed at that moment. Every execution
/// counts, also those that failed or were lost.
async fn tenants(
    found: &mut Findings,
    (jobs, history): (&BTreeMap<Uuid, Job>, &History),
    rules: &[Rule],
    root: &mut MySqlConnection,
) -> anyhow::Result<()> {
    let mut tenants: BTreeMap<Vec<u8>, Vec<Run>> = BTreeMap::new();
    for row in sqlx::query("SELECT job_id, limit_key FROM job_limit_keys").fetch_all(&mut *root).await? {
        let (id, key): (Uuid, Vec<u8>) = (row.try_get(0)?, row.try_get(1)?);
        let Some(job) = jobs.get(&id) else { continue };
        tenants.entry(key).or_default().extend(runs_of(id, job, history));
    }
    found.limited = tenants.values().map(Vec::len).sum();
    anyhow::ensure!(found.limited > 0, "no job with a limit key was executed");
    for (key, runs) in tenants {
        for wrong in keys::too_many(&runs, |from, until| rates::allowed_at_once(rules, from, until)) {
            found.wrong.push(format!("{}: {wrong}", String::from_utf8_lossy(&key)));
        }
    }
    Ok(())
}

/// Check the jobs with an expiry: no attempt started at the expiry or later, no job expired before, and each has ended.
/// All times are of MySQL, whose clock is only set ahead in a run. Those of the runners' clocks do not count. The retry
/// of an operator takes the expiry away, so a start after the first end of a job may come later.
async fn expiries(found: &mut Findings, jobs: &BTreeMap<Uuid, Job>, root: &mut MySqlConnection) -> anyhow::Result<()> {
    const LATE: &str = "a.expired IS NULL AND a.runner <> '' AND a.started_at >= x.expires_at AND NOT retried";
    const EARLY: &str = "a.expired AND (x.expires_at IS NULL OR a.finished_at < x.expires_at OR retried)";
    for (wrong, what) in [(LATE, "started at its expiry or later"), (EARLY, "expired before its time")] {
        let sql = format!(
            "SELECT x.id FROM (SELECT id, CAST(REPLACE(REPLACE(JSON_VALUE(options, '$.expires_at'), 'T', ' '), 'Z', \
             '') AS DATETIME(6)) AS expires_at FROM jobs) x JOIN attempts a ON a.job_id = x.id WHERE {}",
            wrong.replace(
                "retried",
                "EXISTS (SELECT 1 FROM attempts e WHERE e.job_id = a.job_id AND e.number < a.number \
                 AND e.end_state IS NOT NULL)"
            )
        );
        for id in sqlx::query_scalar::<_, Uuid>(sqlx::AssertSqlSafe(sql)).fetch_all(&mut *root).await? {
            found.wrong.push(format!("job {id} {what}: {:?}", jobs.get(&id)));
        }
    }
    let expiring = "SELECT id FROM jobs WHERE JSON_VALUE(options, '$.expires_at') IS NOT NULL";
    let (mut completed, mut expired) = (0_usize, 0_usize);
    for id in sqlx::query_scalar::<_, Uuid>(expiring).fetch_all(&mut *root).await? {
        let Some(job) = jobs.get(&id) else { continue };
        completed += usize::from(job.end() == Some("completed"));
        expired += usize::from(job.has(EXPIRED));
        if job.end().is_none() {
            found.lost += 1;
            found.wrong.push(format!("job {id} has an expiry and has not ended: {job:?}"));
        }
    }
    if completed == 0 || expired == 0 {
        found.wrong.push(format!("of the jobs with an expiry {completed} completed and {expired} expired"));
    }
    found.expired = expired;
    Ok(())
}

/// Return the most executions that ran at the same time, from their beginnings and ends.
fn most_at_once(mut events: Vec<(usize, bool)>) -> usize {
    events.sort_unstable();
    let (mut running, mut most) = (0_usize, 0);
    for (_, begins) in events {
        running = if begins { running + 1 } else { running - 1 };
        most = most.max(running);
    }
    most
}

/// Find two executions of which the newer one began before the older one ended. Only an execution whose end is in the
/// journal can be the older one.
fn overlap(executions: &[Execution]) -> Option<(Uuid, Uuid)> {
    let mut pairs = executions.iter().zip(executions.iter().skip(1));
    pairs.find_map(|(older, newer)| {
        let (ended, _) = older.ended.as_ref()?;
        (newer.began < *ended).then_some((older.token, newer.token))
    })
}

/// Check the callbacks. Each completed job has called the sink, and was answered with 200 or finished later, and no token
/// was used for two calls. Each success that was sent with a finish key and answered with 200 is the end of its job.
fn callbacks(
    found: &mut Findings,
    jobs: &BTreeMap<Uuid, Job>,
    calls: &BTreeMap<Uuid, Vec<Call>>,
    finishes: &BTreeMap<(Uuid, Uuid), bool>,
) {
    for ((id, token), _) in finishes.iter().filter(|(_, told)| **told) {
        let lines = jobs.get(id).map_or(&[][..], |job| &job.lines);
        found.finished_later += 1;
        if !lines.iter().any(|line| line.verdict == "succeeded" && line.token() == Some(*token)) {
            found.lost += 1;
            found.wrong.push(format!("callback {id} was finished as succeeded under {token}, and is {lines:?}"));
        }
    }
    if found.finished_later == 0 {
        found.wrong.push("no callback was finished later".to_owned());
    }
    for (id, job) in jobs.iter().filter(|(_, job)| job.kind == "http") {
        let made = calls.get(id).map_or(&[][..], Vec::as_slice);
        if job.end() == Some("completed") {
            found.callbacks += 1;
            if !made.iter().any(|call| call.status == 200 || finishes.contains_key(&(*id, call.token))) {
                found.lost += 1;
                found.wrong.push(format!("callback {id} is completed and the sink has not seen it: {made:?}"));
            }
        }
        let tokens: BTreeSet<Uuid> = made.iter().map(|call| call.token).collect();
        if tokens.len() < made.len() {
            found.doubled += 1;
            found.wrong.push(format!("callback {id} came more than once with one token: {made:?}"));
        }
        if made.len() > job.executed() {
            found.wrong.push(format!("callback {id} came {} times in {} attempts", made.len(), job.executed()));
        }
    }
    for id in calls.keys().filter(|id| !jobs.contains_key(id)) {
        found.wrong.push(format!("callback {id} came and is not there"));
    }
    // Only calls of jobs that were executed once count, because tickr never took their runners for dead.
    let once = |id: &Uuid| jobs.get(id).is_some_and(|job| job.executed() == 1 && job.end() == Some("completed"));
    let events = calls.iter().filter(|(id, _)| once(id)).flat_map(|(_, calls)| calls);
    let events = events.filter_map(|call| Some([(call.began, true), (call.ended?, false)])).flatten().collect();
    let most = most_at_once(events);
    if most > driver::MAX_CALLS {
        found.wrong.push(format!("{most} callbacks ran at once, and {} may", driver::MAX_CALLS));
    }
}

/// Check the invariants that the tables alone can show.
async fn tables(found: &mut Findings, root: &mut MySqlConnection) -> anyhow::Result<()> {
    const FAULTS: [&str; 17] = [
        "SELECT COUNT(*) FROM owed o LEFT JOIN jobs j ON j.id = o.id WHERE j.id IS NULL",
        "SELECT COUNT(*) FROM (SELECT job_id FROM attempts GROUP BY job_id \
         HAVING COUNT(*) <> MAX(number) OR SUM(verdict = 'succeeded') > 1) a",
        "SELECT COUNT(*) FROM attempts WHERE runner <> '' AND expired IS NULL \
         AND (started_at < execute_at OR finished_at < started_at)",
        "SELECT COUNT(*) FROM attempts a JOIN attempts b ON b.job_id = a.job_id AND b.number = a.number + 1 \
         WHERE b.started_at < a.finished_at",
        "SELECT COUNT(*) FROM owed o LEFT JOIN (SELECT job_id, COUNT(*) AS n FROM attempts GROUP BY job_id) a \
         ON a.job_id = o.id WHERE o.attempt <> COALESCE(a.n, 0) + (o.state = 'executing')",
        "SELECT COUNT(*) FROM unique_keys k LEFT JOIN owed o ON o.id = k.job_id AND o.keyed WHERE o.id IS NULL",
        "SELECT COUNT(*) FROM order_places p JOIN order_keys k ON k.order_key = p.order_key \
         LEFT JOIN owed o ON o.id = p.job_id WHERE p.open AND p.place >= k.head AND o.id IS NULL",
        "SELECT COUNT(*) FROM order_keys WHERE head <= tail",
        "SELECT COUNT(*) FROM limit_waits",
        "SELECT COUNT(*) FROM blocked_jobs",
        "SELECT (SELECT COUNT(*) FROM parent_ends) + (SELECT COUNT(*) FROM batch_changes)",
        "SELECT COUNT(*) FROM batches WHERE completed_at IS NULL OR total <> completed + failed + cancelled \
         OR (succeeded_at IS NOT NULL AND completed < total AND failed_at IS NULL)",
        "SELECT COUNT(*) FROM batches b WHERE total <> (SELECT COUNT(*) FROM batch_jobs j WHERE j.batch_id = b.id) \
         + (SELECT COUNT(*) FROM batches n WHERE n.parent = b.id)",
        "SELECT COUNT(*) FROM batch_cancels",
        // A child that expired while it was blocked does not wait again when an operator retries it.
        "SELECT COUNT(*) FROM job_parents p WHERE (SELECT MIN(c.started_at) FROM attempts c WHERE c.job_id = p.child_id \
         AND c.runner <> '') < (SELECT MIN(a.finished_at) FROM attempts a WHERE a.job_id = p.parent_id \
         AND a.end_state IS NOT NULL) AND NOT EXISTS (SELECT 1 FROM attempts e WHERE e.job_id = p.child_id AND e.expired)",
        "SELECT COUNT(*) FROM attempts a JOIN jobs j ON j.id = a.job_id WHERE a.burned > j.max_attempts",
        "SELECT CAST(ABS((SELECT COUNT(*) FROM jobs) - (SELECT COUNT(*) FROM owed) \
         - (SELECT COALESCE(SUM(n), 0) FROM tallies)) AS SIGNED)",
    ];
    for fault in FAULTS {
        let count: i64 = sqlx::query_scalar(fault).fetch_one(&mut *root).await?;
        if count != 0 {
            found.wrong.push(format!("{count} rows: {fault}"));
        }
    }
    Ok(())
}

/// Check that the counts in `tallies` equal the counts from the ledger.
async fn tallies(found: &mut Findings, root: &mut MySqlConnection) -> anyhow::Result<()> {
    let rows = sqlx::query("SELECT CAST(state AS CHAR), CAST(SUM(n) AS SIGNED) FROM tallies GROUP BY state");
    for row in rows.fetch_all(&mut *root).await? {
        let (state, tallied): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
        let counted = found.ends.get(&state).copied().unwrap_or(0);
        if usize::try_from(tallied) != Ok(counted) {
            found.wrong.push(format!("{tallied} jobs are tallied as {state}, and {counted} are"));
        }
    }
    Ok(())
}

async fn read(root: &mut MySqlConnection) -> anyhow::Result<BTreeMap<Uuid, Job>> {
    let mut jobs: BTreeMap<Uuid, Job> = BTreeMap::new();
    for row in sqlx::query("SELECT id, kind, payload, queue FROM jobs").fetch_all(&mut *root).await? {
        let payload: Value = serde_json::from_str(row.try_get(2)?)?;
        let name = payload["name"].as_str().or_else(|| payload["body"]["name"].as_str()).unwrap_or_default();
        let (name, then) = (name.to_owned(), payload["then"].as_u64().unwrap_or(0));
        let job = Job { kind: row.try_get(1)?, queue: row.try_get(3)?, name, then, ..Job::default() };
        jobs.insert(row.try_get(0)?, job);
    }
    for id in sqlx::query_scalar::<_, Uuid>("SELECT id FROM owed").fetch_all(&mut *root).await? {
        jobs.entry(id).or_default().owed = true;
    }
    let lines = "SELECT job_id, runner, CAST(IF(expired, 'expired', verdict) AS CHAR), CAST(end_state AS CHAR), result, \
                 CAST(burned AS UNSIGNED), started_at, finished_at FROM attempts ORDER BY job_id, number";
    for row in sqlx::query(lines).fetch_all(&mut *root).await? {
        let line = Line {
            runner: row.try_get(1)?,
            verdict: row.try_get(2)?,
            end: row.try_get(3)?,
            result: row.try_get(4)?,
            burned: u32::try_from(row.try_get::<u64, _>(5)?)?,
            claimed_at: row.try_get(6)?,
            ended_at: row.try_get(7)?,
        };
        jobs.entry(row.try_get(0)?).or_default().lines.push(line);
    }
    Ok(jobs)
}
