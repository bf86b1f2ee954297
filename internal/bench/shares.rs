//! Rows of the scenario `limits` about the parts that keys of a fair limit get of the workers, while all of them have
//! jobs that wait: equal parts for many equal keys, and parts by weight for two keys.

use std::collections::{BTreeMap, HashMap};

use chrono::TimeDelta;

use super::environment::{RunChecks, RunEnvironment, stop, until_whole};
use super::figure::Target;
use super::limits::limit;
use super::load::call_in_batches;
use super::result_row::{ResultRow, Samples};
use super::{Bench, BenchError, Scenario, tenants};
use crate::job::{Bounds, JobId, Limit, Timestamp};

/// Most jobs of the equal keys, and of the keys with weights. They last by the workers of the runner.
const MAX_EQUAL: u64 = 50_000;
const MAX_WEIGHED: u64 = 40_000;
/// Jobs of each equal key that come before the rest of any key.
const IN_TURN: u64 = 5;
/// The heavier of the two weights. The other one is 1.
const WEIGHT: u32 = 3;
/// The runner reads the parts of the keys once a second. This long after all keys have parked jobs, it follows them.
const SETTLING: TimeDelta = TimeDelta::seconds(3);

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<ResultRow>, BenchError> {
    let equal = Equal::of(bench.jobs(MAX_EQUAL, 500).min(MAX_EQUAL), bench.pick(1_000, 20));
    let weighed = bench.jobs(MAX_WEIGHED, 500).clamp(10, MAX_WEIGHED);
    let weight = Bounds { weight: Some(WEIGHT), ..Bounds::default() };
    let heavy = BTreeMap::from([(name_of(0), weight)]);
    let (mut of_equal, mut of_weights) = (Samples::default(), Samples::default());
    for round in bench.rounds() {
        let these = Equal::of(round.share_of(equal.jobs()), equal.keys);
        bench.progress.step("many equal keys, fair", round);
        let fair = limit(Bounds::default(), true)?;
        let of_equal_keys = parts(bench, fair.clone(), these.jobs(), |number| these.key_of(number));
        let (of_many, of_many_checked) = Box::pin(of_equal_keys).await?;
        bench.progress.step("two keys with weights, fair", round);
        let by_weight = Limit { overrides: heavy.clone(), ..fair };
        let count = round.share_of(weighed);
        // As many jobs of either key in turn: without the weights, as many of both would start.
        let (of_two, of_two_checked) = Box::pin(parts(bench, by_weight, count, |number| number % 2)).await?;
        if round.counts() {
            of_equal.product(jain(&of_many), equal.jobs(), of_many_checked);
            let ratio = of_two.first().copied().unwrap_or(0.0) / of_two.get(1).copied().unwrap_or(0.0).max(1.0);
            of_weights.product(ratio, weighed, of_two_checked);
        }
    }
    let (least, most) = (Target::at_least(2.7), Target::at_most(3.3));
    Ok(vec![
        of_equal.line(
            Scenario::Limits,
            format!("Jain's index of {} equal keys, fair", equal.keys),
            "",
            &[Target::at_least(0.95)],
        ),
        of_weights.line(Scenario::Limits, format!("parts of two keys, weights {WEIGHT}:1, fair"), "", &[least, most]),
    ])
}

/// Keys with the same number of jobs. First come some of each key in turn, so that all have work, and then the rest of
/// each key in one piece: in the order of the queue, the first key would end before the last one begins.
struct Equal {
    keys: u64,
    of_each: u64,
}

impl Equal {
    /// Divide about this many jobs among at most `most` keys.
    fn of(jobs: u64, most: u64) -> Self {
        let keys = (jobs / (2 * IN_TURN)).clamp(2, most.max(2));
        Self { keys, of_each: (jobs / keys).max(2 * IN_TURN) }
    }

    fn jobs(&self) -> u64 {
        self.keys * self.of_each
    }

    /// Return the key of the job with this number.
    fn key_of(&self, number: u64) -> u64 {
        match number.checked_sub(self.keys * IN_TURN) {
            None => number % self.keys,
            Some(later) => later / (self.of_each - IN_TURN),
        }
    }
}

fn name_of(key: u64) -> String {
    format!("key-{key}")
}

/// Let a runner work off jobs under a fair limit. Return how many jobs of each key started while all keys had jobs that
/// wait.
async fn parts(
    bench: &Bench<'_>,
    limit: Limit,
    count: u64,
    key_of: impl Fn(u64) -> u64,
) -> Result<(Vec<f64>, RunChecks), BenchError> {
    let mut stage = RunEnvironment::open(bench).await?;
    stage.set_limit(limit).await?;
    let app = tenants::runner(&stage).await?;
    until_whole(&app).await?;
    stage.until_limits_count().await?;
    let jobs = tenants::jobs(bench, count, |number| name_of(key_of(number)))?;
    let keys_of_jobs: HashMap<JobId, u64> = (0..).zip(&jobs).map(|(number, job)| (job.id, key_of(number))).collect();
    let keys = 1 + keys_of_jobs.values().max().copied().unwrap_or(0);
    call_in_batches(app.broker(), jobs).await?;
    let from = stage.until_parked(|ended, parked| parked.keys >= keys || ended >= count).await? + SETTLING;
    stage.until_ended(count).await?;
    stop(app).await;
    let started = stage.counter_connection.started_jobs(stage.first).await?;
    let starts = started.into_iter().filter_map(|job| Some((*keys_of_jobs.get(&job.id)?, job.started)));
    let parts = while_all_wait(&starts.collect::<Vec<_>>(), from);
    let checked = stage.check(count, 0).await?;
    stage.close().await?;
    Ok((parts, checked))
}

/// Count the starts of each key until the first of the keys has started its last job: those from a moment on, or all if
/// a key was through before that. `starts` has keys and times in the order of time.
fn while_all_wait(starts: &[(u64, Timestamp)], from: Timestamp) -> Vec<f64> {
    let mut left: BTreeMap<u64, u64> = BTreeMap::new();
    for (key, _) in starts {
        *left.entry(*key).or_default() += 1;
    }
    let mut until = starts.len();
    for (number, (key, _)) in (1..).zip(starts) {
        let of_key = left.entry(*key).or_default();
        *of_key = of_key.saturating_sub(1);
        if *of_key == 0 {
            until = number;
            break;
        }
    }
    let starts = &starts[..until];
    let settled = starts.iter().any(|(_, at)| *at >= from);
    let mut parts: BTreeMap<u64, f64> = left.into_keys().map(|key| (key, 0.0)).collect();
    for (key, _) in starts.iter().filter(|(_, at)| !settled || *at >= from) {
        *parts.entry(*key).or_default() += 1.0;
    }
    parts.into_values().collect()
}

/// Jain's index of fairness: 1 if all parts are equal, 1/n if one of n has everything.
fn jain(parts: &[f64]) -> f64 {
    let all: f64 = parts.iter().sum();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    if squares > 0.0 { all * all / (parts.len() as f64 * squares) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        chrono::DateTime::from_timestamp(second, 0).unwrap()
    }

    #[test]
    fn parts_count_until_a_key_has_no_more_jobs() {
        let starts = [(0, at(1)), (1, at(2)), (0, at(3)), (1, at(4)), (0, at(5)), (1, at(6)), (1, at(7))];
        assert_eq!(while_all_wait(&starts, at(3)), [2.0, 1.0], "until the last start of key 0");
        assert_eq!(while_all_wait(&starts, at(6)), [3.0, 2.0], "key 0 was through before, so all of its starts count");
        assert_eq!(while_all_wait(&[], at(0)), Vec::<f64>::new());
    }

    #[test]
    fn the_index_is_one_for_equal_parts_and_falls_with_their_number_for_one() {
        assert_eq!(jain(&[4.0, 4.0, 4.0, 4.0]), 1.0);
        assert_eq!(jain(&[8.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[]), 0.0);
    }

    #[test]
    fn equal_keys_have_equal_numbers_of_jobs_at_any_size() {
        for (jobs, most, keys) in [(50_000, 1_000, 1_000), (5_000, 1_000, 500), (200, 20, 20), (1, 20, 2)] {
            let equal = Equal::of(jobs, most);
            assert_eq!(equal.keys, keys);
            let mut counts = BTreeMap::new();
            for number in 0..equal.jobs() {
                *counts.entry(equal.key_of(number)).or_insert(0_u64) += 1;
            }
            let wanted: BTreeMap<u64, u64> = (0..keys).map(|key| (key, equal.of_each)).collect();
            assert_eq!(counts, wanted);
        }
    }
}
