//! The conclusions from the places of jobs with order keys. Pure functions.

use super::life::SnapshotFacts;
use tickr_job::{JobId, Timestamp};
use tickr_store::{LifeSpan, PlaceRow};

/// Return the jobs of these places that contradict their order.
pub(super) fn faults(rows: &[PlaceRow], moment: &SnapshotFacts<'_>) -> Vec<(JobId, String)> {
    let mut faults = Vec::new();
    for row in rows {
        let PlaceRow { place, open, owed, held, blocked, .. } = row;
        let Some(head) = row.head else {
            if *open {
                faults.push((row.job, format!("its place {place} is open, and its order key has no row")));
            }
            continue;
        };
        if *open && *place < head {
            faults.push((row.job, format!("its place {place} is open, and the head of its order key is {head}")));
        } else if *open && *place > head && !(*owed && (*held || *blocked)) {
            let what = format!("its place is {place} and the head of its order key is {head}, but it is not held");
            faults.push((row.job, what));
        } else if *open && *place == head && (*held || !(*owed || row.blocks)) {
            let state = if *held { "it is held" } else { "it has ended and does not block" };
            faults.push((row.job, format!("it is at the head of its order key, but {state}")));
        } else if !*open && *owed {
            faults.push((row.job, format!("it is unfinished, but its place {place} is closed")));
        }
    }
    let mut last: Vec<(&PlaceRow, Timestamp, Option<Timestamp>)> = rows.iter().filter_map(last_life).collect();
    // A replay has the place of its original, and the clock of another host may have made it an older id.
    last.sort_by_key(|(row, start, _)| (&row.key, row.place, *start));
    for pair in last.windows(2).filter(|pair| pair[0].0.key == pair[1].0.key) {
        let ((before, _, end), (row, start, _)) = (pair[0], pair[1]);
        match end {
            Some(end) if moment.in_order(end, start) => {}
            Some(_) => faults.push((row.job, format!("it started before job {} had ended", before.job))),
            None => faults.push((row.job, format!("it started, and job {} in front has not ended", before.job))),
        }
    }
    faults.extend(overlaps(rows, moment));
    faults
}

/// Return the start and the end of the last life of a job, if an attempt began in it. The place is that of this life.
fn last_life(row: &PlaceRow) -> Option<(&PlaceRow, Timestamp, Option<Timestamp>)> {
    let LifeSpan { start, end } = row.lives.last()?;
    Some((row, (*start)?, *end))
}

/// Return the jobs of which a life overlaps one of another job with the same key. No row has the place of a life before
/// an operator's retry, so the order of these lives is not known. But whatever their places were, no other job of the
/// key ran between the first start and the end of a life.
fn overlaps(rows: &[PlaceRow], moment: &SnapshotFacts<'_>) -> Vec<(JobId, String)> {
    let mut lives: Vec<(&PlaceRow, Timestamp, Option<Timestamp>, bool)> = Vec::new();
    for row in rows {
        for (number, life) in (1..).zip(&row.lives) {
            lives.extend(life.start.map(|start| (row, start, life.end, number == row.lives.len())));
        }
    }
    lives.sort_by_key(|(row, start, ..)| (&row.key, *start));
    let mut faults = Vec::new();
    for pair in lives.windows(2).filter(|pair| pair[0].0.key == pair[1].0.key) {
        let ((before, _, end, last), (row, start, _, other_last)) = (pair[0], pair[1]);
        // Two last lives are compared by their places, and the lives of one job by another check.
        let compared = (last && other_last) || before.job == row.job;
        if !compared && !end.is_some_and(|end| moment.in_order(end, start)) {
            faults.push((row.job, format!("it started before an earlier life of job {} had ended", before.job)));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    fn row(place: u64) -> PlaceRow {
        let at = |s: u64| DateTime::from_timestamp(i64::try_from(s).unwrap(), 0).unwrap();
        let lives = vec![LifeSpan { start: Some(at(place * 10)), end: Some(at(place * 10 + 5)) }];
        let (open, blocks, owed, held, blocked) = (false, true, false, false, false);
        PlaceRow {
            key: b"k".to_vec(),
            place,
            job: JobId::new(),
            open,
            blocks,
            head: Some(9),
            owed,
            held,
            blocked,
            lives,
        }
    }

    /// The life of the job at this place.
    fn life(place: u64) -> LifeSpan {
        row(place).lives[0]
    }

    #[test]
    fn each_contradiction_is_found_and_a_sound_line_has_none() {
        let moment =
            SnapshotFacts { at: DateTime::UNIX_EPOCH, patience: None, patience_with_departed: None, steps: &[] };
        let waits =
            |place, held| PlaceRow { open: true, owed: true, held, lives: vec![LifeSpan::default()], ..row(place) };
        let sound = [row(1), row(2), waits(9, false), waits(10, true), waits(11, true)];
        assert_eq!(faults(&sound, &moment), []);
        // A follow-up job of a cancelled batch, behind the head and at it.
        let blocked = |place| PlaceRow { blocked: true, ..waits(place, false) };
        assert_eq!(faults(&[waits(9, false), blocked(10)], &moment), []);
        assert_eq!(faults(&[blocked(9), waits(10, true)], &moment), []);
        // A failed job that blocks.
        assert_eq!(faults(&[PlaceRow { open: true, ..row(9) }, waits(10, true)], &moment), []);
        for (what, broken) in [
            ("open behind the head", waits(3, true)),
            ("not held", waits(12, false)),
            ("held at the head", waits(9, true)),
            ("closed", PlaceRow { open: false, ..waits(9, false) }),
            ("no row", PlaceRow { head: None, ..waits(1, false) }),
            ("ended without a block", PlaceRow { open: true, blocks: false, ..row(9) }),
        ] {
            assert_eq!(faults(&[broken], &moment).len(), 1, "{what}");
        }
        let early = PlaceRow { lives: vec![LifeSpan { start: life(1).start, ..life(2) }], ..row(2) };
        assert_eq!(faults(&[row(1), early.clone()], &moment).len(), 1);
        assert_eq!(faults(&[row(1), PlaceRow { key: b"l".to_vec(), ..early }], &moment), []);
    }

    #[test]
    fn each_life_of_a_retried_job_is_compared() {
        let moment =
            SnapshotFacts { at: DateTime::UNIX_EPOCH, patience: None, patience_with_departed: None, steps: &[] };
        let lived = |place: u64, lives: &[u64]| PlaceRow {
            lives: lives.iter().map(|number| life(*number)).collect(),
            ..row(place)
        };
        // It was cancelled at place 1, and an operator's retry gave it place 3.
        assert_eq!(faults(&[row(2), lived(3, &[1, 3]), row(4)], &moment), []);
        // It blocked its key, so the retry let it run again in front of the next one.
        assert_eq!(faults(&[lived(1, &[1, 2]), lived(2, &[3])], &moment), []);
        // It waits at its new place, behind one that runs.
        let unfinished = |place, lives| PlaceRow { lives, open: true, owed: true, ..row(place) };
        let runs = unfinished(9, vec![LifeSpan { end: None, ..life(9) }]);
        let waits = PlaceRow { held: true, ..unfinished(10, vec![life(1), LifeSpan::default()]) };
        assert_eq!(faults(&[runs, waits], &moment), []);
        // Its last life began before the job in front of its new place.
        assert_eq!(faults(&[lived(4, &[4]), lived(5, &[1, 3])], &moment).len(), 1);
        // Another job ran during its first life, whatever its place was then.
        let long = LifeSpan { end: life(2).end, ..life(1) };
        assert_eq!(faults(&[row(2), PlaceRow { lives: vec![long, life(3)], ..row(3) }], &moment).len(), 1);
        // Another one ran between its lives, though it kept its place.
        assert_eq!(faults(&[lived(1, &[1, 3]), row(2)], &moment).len(), 1);
    }

    #[test]
    fn a_replay_with_an_older_id_than_its_original_is_no_fault() {
        let moment =
            SnapshotFacts { at: DateTime::UNIX_EPOCH, patience: None, patience_with_departed: None, steps: &[] };
        // The replay runs from second 20 to 25, its original from 10 to 15, and the next job from 30 to 35.
        let (replay, original, next) = (PlaceRow { place: 1, ..row(2) }, row(1), PlaceRow { place: 2, ..row(3) });
        assert_eq!(faults(&[replay.clone(), original.clone(), next], &moment), []);
        // A replay that began before its original had ended is a fault, whatever the ids.
        let start = life(1).end.map(|end| end - chrono::TimeDelta::seconds(1));
        let early = PlaceRow { lives: vec![LifeSpan { start, ..life(2) }], ..replay };
        assert_eq!(faults(&[early.clone(), original.clone()], &moment).len(), 1);
        assert_eq!(faults(&[original, early], &moment).len(), 1);
    }
}
