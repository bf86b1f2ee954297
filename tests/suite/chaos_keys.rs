//! The conclusions of the chaos about jobs with keys, with made-up records: what is wrong must be found, and what a frozen
//! or killed process leaves behind must not.

use chrono::{DateTime, Utc};
use uuid::Uuid;

#[path = "../chaos/keys.rs"]
mod keys;

use keys::{Attempt, Run, Start, out_of_line, runs_of, too_many};

fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(second, 0).unwrap()
}

/// An execution between two lines of the journal, claimed at the second of its first line.
fn run(job: u128, began: usize, ended: Option<usize>) -> Run {
    let claimed = at(i64::try_from(began).unwrap());
    let (claimed, given_up) = ((claimed, claimed), None);
    Run { job: Uuid::from_u128(job), began, ended, claimed, given_up, in_last_life: true }
}

/// An execution that tickr gave up at this second.
fn lost(run: Run, second: i64) -> Run {
    Run { given_up: Some(at(second)), ..run }
}

#[test]
fn an_overlap_in_a_line_is_found_whatever_the_verdict() {
    let sound = [(1, run(1, 0, Some(3))), (1, run(1, 4, Some(5))), (2, run(2, 6, Some(9)))];
    assert_eq!(out_of_line(&sound), Vec::<String>::new());
    let overlap = [(1, run(1, 0, Some(7))), (2, run(2, 6, Some(9)))];
    assert_eq!(out_of_line(&overlap).len(), 1);
    // A killed process writes no end. Its attempt was given up at second 8, and the next job was claimed at second 6.
    let early = [(1, lost(run(1, 0, None), 8)), (2, run(2, 6, Some(9)))];
    assert_eq!(out_of_line(&early).len(), 1);
    // A life before an operator's retry has no place, and overlaps nothing either.
    let unplaced = Run { in_last_life: false, ..run(1, 0, Some(7)) };
    assert_eq!(out_of_line(&[(9, unplaced), (2, run(2, 6, Some(9)))]).len(), 1);
}

#[test]
fn an_inversion_in_a_line_is_found() {
    let inverted = [(2, run(2, 0, Some(3))), (1, run(1, 4, Some(5)))];
    assert_eq!(out_of_line(&inverted).len(), 1);
    // Only the last life has the place: the other one may have been in front.
    let earlier = Run { in_last_life: false, ..run(2, 0, Some(3)) };
    assert_eq!(out_of_line(&[(2, earlier), (1, run(1, 4, Some(5)))]), Vec::<String>::new());
    // A replay has the place of its original.
    assert_eq!(out_of_line(&[(1, run(2, 0, Some(3))), (1, run(1, 4, Some(5)))]), Vec::<String>::new());
}

#[test]
fn a_process_that_is_frozen_beyond_its_lease_breaks_no_line() {
    // It goes on after its attempt was given up at second 5, beside the next attempt and the next job.
    let frozen = lost(run(1, 0, Some(20)), 5);
    assert_eq!(out_of_line(&[(1, frozen), (1, run(1, 6, Some(8))), (2, run(2, 9, Some(30)))]), Vec::<String>::new());
    // It was frozen before its handler began, which it does long after the next job has ended.
    let late = Run { claimed: (at(0), at(0)), ..lost(run(1, 15, Some(20)), 5) };
    assert_eq!(out_of_line(&[(1, late), (1, run(1, 6, Some(8))), (2, run(2, 9, Some(30)))]), Vec::<String>::new());
}

#[test]
fn more_executions_of_a_limit_key_than_its_rule_are_found_whatever_their_verdicts() {
    let two = |_, _| 2;
    let sound = [run(1, 0, Some(5)), run(2, 1, Some(3)), run(3, 4, Some(6)), run(4, 7, None)];
    assert_eq!(too_many(&sound, two), Vec::<String>::new());
    assert_eq!(too_many(&[run(1, 0, Some(5)), run(2, 1, Some(4)), run(3, 2, Some(6))], two).len(), 1);
    // A killed process has its slot until its attempt is given up.
    let killed = lost(run(1, 0, None), 5);
    assert_eq!(too_many(&[killed, run(2, 1, Some(9)), run(3, 4, Some(6))], two).len(), 1);
    assert_eq!(too_many(&[killed, run(2, 1, Some(9)), run(3, 6, Some(7))], two), Vec::<String>::new());
    // So has a frozen one that begins its handler late.
    let late = Run { claimed: (at(0), at(0)), ..lost(run(1, 8, Some(9)), 5) };
    assert_eq!(too_many(&[late, run(2, 6, Some(12)), run(3, 7, Some(10))], two), Vec::<String>::new());
}

#[test]
fn the_rule_of_the_last_claim_counts() {
    // From second 5 on only one may run. The two that run then were claimed before, and no third one may come.
    let rule = |from: DateTime<Utc>, _| if from < at(5) { 2 } else { 1 };
    let old = [run(1, 0, Some(10)), run(2, 4, Some(20))];
    assert_eq!(too_many(&old, rule), Vec::<String>::new());
    assert_eq!(too_many(&[old[0], old[1], run(3, 12, Some(14))], rule).len(), 1);
    // One that was claimed before begins later, when another one had been claimed under the wider rule.
    let late = Run { claimed: (at(3), at(3)), ..run(2, 7, Some(9)) };
    assert_eq!(too_many(&[run(1, 4, Some(10)), late], rule), Vec::<String>::new());
}

#[test]
fn an_execution_is_joined_with_its_own_row_of_the_ledger_or_with_the_one_that_excuses_most() {
    let job = Uuid::from_u128(1);
    let (first, second, third) = (Uuid::from_u128(11), Uuid::from_u128(12), Uuid::from_u128(13));
    let row = |burned: u32, verdict: &str, token: Option<Uuid>, life: usize| Attempt {
        burned,
        claimed_at: at(i64::from(burned) * 10),
        ended_at: at(i64::from(burned) * 10 + 5),
        verdict: verdict.to_owned(),
        token,
        life,
    };
    let start = |token: Uuid, attempt: u32| Start { token, attempt, began: 0, ended: None };
    let rows = [row(1, "lost", None, 0), row(2, "failed", None, 0), row(3, "succeeded", Some(third), 0)];
    let runs = runs_of(job, &[start(first, 1), start(second, 2), start(third, 3)], &rows, 0);
    let facts: Vec<_> = runs.iter().map(|run| (run.claimed, run.given_up)).collect();
    let wanted = [((at(10), at(10)), Some(at(15))), ((at(20), at(20)), None), ((at(30), at(30)), None)];
    assert_eq!(facts, wanted);
    // Attempt 2 may also be the one that used up no attempt after the first: the interrupted row excuses it.
    let rows = [row(1, "interrupted", None, 0), row(2, "failed", None, 0)];
    let second = runs_of(job, &[start(second, 2)], &rows, 0).remove(0);
    assert_eq!((second.claimed, second.given_up), ((at(10), at(20)), Some(at(15))));
    // An attempt with a verdict of its handler was not given up.
    let runs = runs_of(job, &[start(first, 1)], &[row(1, "failed", None, 0)], 0);
    assert_eq!(runs[0].given_up, None);
    // The job was retried, and cancelled while it waited at its new place.
    let runs = runs_of(job, &[start(first, 1)], &[row(1, "failed", None, 0)], 1);
    assert!(!runs[0].in_last_life);
    assert_eq!(runs_of(job, &[start(first, 1)], &[], 0).len(), 0);
}
