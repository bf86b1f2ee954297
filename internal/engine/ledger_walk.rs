//! The walks of the janitor through the ledger in search of jobs whose retention has ended.
//!
//! Jobs whose own retention is longer than the shortest one stay behind, and there may be any number of them. So a walk
//! through a long ledger reads all of it once an hour only. The walks in between read the parts in which the retention
//! of jobs ends meanwhile: one part for each retention time.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use uuid::Uuid;

use tickr_job::{JobId, Timestamp, first_id_of};
use tickr_store::Retention;

/// Time between the end of a walk through the whole of a long ledger and the next one.
const REST: Duration = Duration::from_secs(3_600);
/// Most pages of a ledger that each walk reads as a whole.
const SHORT: usize = 10;
/// Jobs that end within this time after their ids were made are found by the next walk. A walk through the whole ledger
/// finds the others.
const LATE: TimeDelta = TimeDelta::minutes(10);

/// The present walk through the ledger, and what the next one has to know about it.
#[derive(Default)]
pub(super) struct LedgerWalk {
    /// The parts that the present walk reads, by first and last id, in their order. Absent if it reads all.
    parts: Option<Vec<(Uuid, Uuid)>>,
    /// The moment at which the present walk began, by the clock of the database, and its pages.
    began: Timestamp,
    pages: usize,
    /// The moment at which the last walk began that has reached the end.
    last: Option<Timestamp>,
    /// The end of the last walk through the whole ledger, if that is long.
    rests_since: Option<Instant>,
}

impl LedgerWalk {
    /// Return the position behind which the page after `place` begins. Without a place, a new walk begins.
    pub(super) fn next_page(&mut self, place: Option<JobId>, keep: &Retention, now: Timestamp) -> Option<JobId> {
        if place.is_none() {
            let rests = self.rests_since.is_some_and(|since| since.elapsed() < REST);
            self.parts = self.last.filter(|_| rests).map(|last| parts(keep, last, now));
            (self.began, self.pages) = (now, 0);
        }
        let Some(parts) = &self.parts else { return place };
        let at = place.map_or(Uuid::nil(), JobId::uuid);
        let part = parts.iter().find(|(_, end)| at < *end);
        part.map(|(begin, _)| JobId::from_uuid(at.max(*begin))).or(place)
    }

    /// Record that a page was read behind which the walk goes on at `next`; absent at the end of the ledger.
    pub(super) fn has_read(&mut self, next: Option<JobId>) {
        self.pages += 1;
        if next.is_some() {
            return;
        }
        self.last = Some(self.began);
        if self.parts.is_none() {
            self.rests_since = (self.pages > SHORT).then(Instant::now);
        }
    }
}

/// Return the ids of the jobs whose retention ends between two moments, for each retention time. The last part has no
/// end, because ids may be ahead.
fn parts(keep: &Retention, last: Timestamp, now: Timestamp) -> Vec<(Uuid, Uuid)> {
    let id_at = |moment: Timestamp, age: TimeDelta| moment.checked_sub_signed(age).map_or(Uuid::nil(), first_id_of);
    let ages = keep.times_of_ended().into_iter().rev().map(|age| TimeDelta::from_std(age).unwrap_or(TimeDelta::MAX));
    let mut parts: Vec<(Uuid, Uuid)> = ages.map(|age| (id_at(last - LATE, age), id_at(now, age))).collect();
    if let Some((_, end)) = parts.last_mut() {
        *end = Uuid::max();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: TimeDelta = TimeDelta::hours(1);

    fn keep() -> Retention {
        Retention { completed: Duration::from_secs(3_600), ..Retention::all(Duration::from_secs(100 * 3_600)) }
    }

    fn id(moment: Timestamp) -> JobId {
        JobId::from_uuid(first_id_of(moment))
    }

    /// A walk that has read this many pages of the whole ledger at this moment.
    fn whole_walk(pages: usize, now: Timestamp) -> LedgerWalk {
        let mut walk = LedgerWalk::default();
        let mut place = None;
        for page in 1..=pages {
            assert_eq!(walk.next_page(place, &keep(), now), place, "a whole walk leaves nothing out");
            place = (page < pages).then(JobId::new);
            walk.has_read(place);
        }
        walk
    }

    #[test]
    fn the_walk_after_a_long_one_reads_only_where_a_retention_ends() {
        let now = Timestamp::from_timestamp_millis(1_800_000_000_000).unwrap_or_default();
        let mut walk = whole_walk(SHORT + 1, now);
        let later = now + TimeDelta::minutes(1);
        // Failed jobs first, from those on whose retention may have ended since the last walk.
        let place = walk.next_page(None, &keep(), later);
        assert_eq!(place, Some(id(now - HOUR * 100 - LATE)));
        let inside = Some(id(now - HOUR * 100));
        assert_eq!(walk.next_page(inside, &keep(), later), inside);
        // Then the walk passes all that are kept for longer, to the completed ones and those whose ids are ahead.
        let completed = Some(id(now - HOUR - LATE));
        assert_eq!(walk.next_page(Some(id(later - HOUR * 100)), &keep(), later), completed);
        let ahead = Some(id(later + HOUR));
        assert_eq!(walk.next_page(ahead, &keep(), later), ahead);
        walk.has_read(ahead);
        walk.has_read(None);
        // The next one begins where this one ended.
        let place = walk.next_page(None, &keep(), later + TimeDelta::minutes(1));
        assert_eq!(place, Some(id(later - HOUR * 100 - LATE)));
    }

    #[test]
    fn a_short_ledger_is_read_as_a_whole_by_each_walk() {
        let now = Timestamp::from_timestamp_millis(1_800_000_000_000).unwrap_or_default();
        assert_eq!(whole_walk(SHORT, now).next_page(None, &keep(), now), None);
    }

    #[test]
    fn a_long_ledger_is_read_as_a_whole_again_after_an_hour() {
        let now = Timestamp::from_timestamp_millis(1_800_000_000_000).unwrap_or_default();
        let mut walk = whole_walk(SHORT + 1, now);
        walk.rests_since = Instant::now().checked_sub(REST);
        assert_eq!(walk.next_page(None, &keep(), now), None);
    }
}
