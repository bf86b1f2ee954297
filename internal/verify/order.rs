//! The conclusions from the places of jobs with order keys. Pure functions.

use super::life::SnapshotFacts;
use tickr_job::JobId;
use tickr_store::PlaceRow;

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
    // Attempts of a job with several lives belong to several places.
    let lived_once = |row: &&PlaceRow| row.lives <= u32::from(!row.owed) && row.first_start.is_some();
    let mut ran: Vec<&PlaceRow> = rows.iter().filter(lived_once).collect();
    // A replay has the place of its original, and the clock of another host may have made it an older id.
    ran.sort_by_key(|row| (&row.key, row.place, row.first_start));
    for pair in ran.windows(2).filter(|pair| pair[0].key == pair[1].key) {
        let Some(start) = pair[1].first_start else { continue };
        match pair[0].end {
            Some(end) if moment.in_order(end, start) => {}
            Some(_) => faults.push((pair[1].job, format!("it started before job {} had ended", pair[0].job))),
            None => faults.push((pair[1].job, format!("it started, and job {} in front has not ended", pair[0].job))),
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
        let (first_start, end) = (Some(at(place * 10)), Some(at(place * 10 + 5)));
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
            first_start,
            end,
            lives: 1,
        }
    }

    #[test]
    fn each_contradiction_is_found_and_a_sound_line_has_none() {
        let moment = SnapshotFacts { at: DateTime::UNIX_EPOCH, patience: None, steps: &[] };
        let waits = |place, held| PlaceRow {
            open: true,
            owed: true,
            held,
            first_start: None,
            end: None,
            lives: 0,
            ..row(place)
        };
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
        let early = PlaceRow { first_start: row(1).first_start, ..row(2) };
        assert_eq!(faults(&[row(1), early.clone()], &moment).len(), 1);
        assert_eq!(faults(&[row(1), PlaceRow { key: b"l".to_vec(), ..early.clone() }], &moment), []);
        assert_eq!(faults(&[row(1), PlaceRow { lives: 2, ..early }], &moment), []);
    }

    #[test]
    fn a_replay_with_an_older_id_than_its_original_is_no_fault() {
        let moment = SnapshotFacts { at: DateTime::UNIX_EPOCH, patience: None, steps: &[] };
        // The replay runs from second 20 to 25, its original from 10 to 15, and the next job from 30 to 35.
        let (replay, original, next) = (PlaceRow { place: 1, ..row(2) }, row(1), PlaceRow { place: 2, ..row(3) });
        assert_eq!(faults(&[replay.clone(), original.clone(), next], &moment), []);
        // A replay that began before its original had ended is a fault, whatever the ids.
        let early = PlaceRow { first_start: original.end.map(|end| end - chrono::TimeDelta::seconds(1)), ..replay };
        assert_eq!(faults(&[early.clone(), original.clone()], &moment).len(), 1);
        assert_eq!(faults(&[original, early], &moment).len(), 1);
    }
}
