//! The turns of lanes in the passes of the reconciler: which rows a pass compares when it cannot compare all.
//!
//! Lanes whose ready lists are short, and lanes whose lists are long, have half of the rows of each pass. What one half
//! leaves over goes to the other. So neither sort of lane keeps the other waiting, however many lanes there are.
//!
//! Within a sort the lanes take turns: first those whose turn was cut off by the end of a pass, then those whose last
//! turn began longest ago. Lanes start side by side, because most have few rows, and the longer ones go on one by one.
//! So between two comparisons of a row, each other row of its sort is compared once, and at most two pages of rows
//! twice. `docs/GUARANTEES.md` makes a bound of that.

use std::collections::{HashMap, HashSet, VecDeque};

use tickr_job::Timestamp;
use tickr_store::{DueCursor, DueLane, DueRange};

/// Rows in one page.
pub(super) const PAGE: usize = 2_000;
/// A ready list with fewer entries is short: the jobs that it lost would start soon.
const SHORT_LIST: usize = 2_000;
/// Lanes that start side by side, in one statement.
pub(super) const SIDE_BY_SIDE: usize = 16;

/// What the passes remember of the turns before.
#[derive(Default)]
pub(super) struct Turns {
    /// Number of the last turn.
    last: u64,
    /// Number of the last turn of each lane. A lane without a turn has the number of the moment when it was first seen,
    /// so that lanes that come and go do not pass those that wait.
    of_lanes: HashMap<DueLane, u64>,
    /// Lanes whose last turn was cut off by the end of a pass.
    cut: HashSet<DueLane>,
    /// Position from which to continue in lanes that their last turn did not read to the end.
    places: HashMap<DueLane, DueCursor>,
}

/// Part of a lane that is left to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// All of its rows.
    Rows,
    /// The rows up to the first job of the ready list.
    UpToTheList,
    /// Nothing.
    Nothing,
}

/// The turns of one pass. The first of each pair is about lanes with short lists, the second about the others.
pub(super) struct PassTurns {
    /// Lanes that have not started, in the order of their turns.
    waiting: [VecDeque<DueRange>; 2],
    /// Lanes that have started.
    begun: [VecDeque<DueRange>; 2],
    /// Rows that may still be compared. None when all lanes of the sort were compared.
    left: [Option<usize>; 2],
    /// The sort that is read now.
    sort: usize,
    /// Rows read of each lane.
    read: HashMap<DueLane, usize>,
    /// Lanes that have started, in this order.
    started: Vec<DueLane>,
    /// Position from which to continue in lanes whose turn was over before their end.
    stopped: HashMap<DueLane, DueCursor>,
}

impl Turns {
    /// Iterate over the lanes that their last turn did not read to the end.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = &DueLane> {
        self.places.keys()
    }

    /// Forget all but these lanes, and the position in those that are to be read from their front.
    pub(super) fn forget(&mut self, but: &HashSet<&DueLane>, from_front: impl Fn(&DueLane) -> bool) {
        self.of_lanes.retain(|line, _| but.contains(line));
        self.places.retain(|line, _| but.contains(line) && !from_front(line));
        let places = &self.places;
        self.cut.retain(|line| places.contains_key(line));
    }

    /// Begin a pass that compares this many rows of these lanes, each with the length of its ready list.
    pub(super) fn begin(
        &mut self,
        lanes: impl IntoIterator<Item = (DueLane, usize)>,
        until: Timestamp,
        rows: usize,
    ) -> PassTurns {
        self.last += 1;
        let mut sorts = [Vec::new(), Vec::new()];
        for (line, listed) in lanes {
            let turn = *self.of_lanes.entry(line.clone()).or_insert(self.last);
            sorts[usize::from(listed >= SHORT_LIST)].push((!self.cut.contains(&line), turn, line));
        }
        let waiting = sorts.map(|mut sort| {
            sort.sort_by_key(|(begins, turn, _)| (*begins, *turn));
            let after = |line: &DueLane| self.places.get(line).copied().unwrap_or(DueCursor::FRONT);
            sort.into_iter().map(|(_, _, line)| DueRange { after: after(&line), line, until }).collect()
        });
        let of_long_lists = rows / 2;
        PassTurns {
            waiting,
            begun: [VecDeque::new(), VecDeque::new()],
            left: [Some(rows - of_long_lists), Some(of_long_lists)],
            sort: 0,
            read: HashMap::new(),
            started: Vec::new(),
            stopped: HashMap::new(),
        }
    }

    /// End a pass. Lanes that it cut off go on first in the next one, from their position if `keeps_place` says so.
    pub(super) fn end(&mut self, pass: PassTurns, keeps_place: impl Fn(&DueRange) -> bool) {
        let cut = pass.begun.into_iter().flatten().filter(|range| keeps_place(range));
        let cut: HashMap<DueLane, DueCursor> = cut.map(|range| (range.line, range.after)).collect();
        for line in pass.started {
            self.places.remove(&line);
            if !self.cut.remove(&line) {
                self.last += 1;
                self.of_lanes.insert(line.clone(), self.last);
            }
            if let Some(after) = cut.get(&line) {
                self.places.insert(line.clone(), *after);
                self.cut.insert(line);
            } else if let Some(after) = pass.stopped.get(&line) {
                self.places.insert(line, *after);
            }
        }
    }
}

impl PassTurns {
    /// Iterate over the lanes that have not been read to the end of their turn.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = &DueLane> {
        self.waiting.iter().chain(&self.begun).flatten().map(|range| &range.line)
    }

    /// Return the lanes that this pass reads from their front, before it has started.
    pub(super) fn read_from_front(&self) -> HashSet<DueLane> {
        let from_front = self.waiting.iter().flatten().filter(|range| range.after == DueCursor::FRONT);
        from_front.map(|range| range.line.clone()).collect()
    }

    /// Return what to read next: ranges, and the number of rows of each. None when the pass is over.
    pub(super) fn next_ranges(&mut self) -> Option<(Vec<DueRange>, usize)> {
        loop {
            let sort = self.left.iter().position(|left| left.is_some_and(|rows| rows > 0))?;
            self.sort = sort;
            if let Some(range) = self.begun[sort].pop_front() {
                return Some((vec![range], PAGE));
            }
            let waiting = &mut self.waiting[sort];
            let ranges: Vec<DueRange> = waiting.drain(..waiting.len().min(SIDE_BY_SIDE)).collect();
            if !ranges.is_empty() {
                let most = PAGE / ranges.len();
                return Some((ranges, most));
            }
            if let Some(rest) = self.left[sort].take()
                && let Some(other) = &mut self.left[1 - sort]
            {
                *other += rest;
            }
        }
    }

    /// Record how many rows were read of these lanes, and the ranges that have more. A turn is over after `most` rows
    /// of a lane.
    pub(super) fn has_read(
        &mut self,
        lanes: impl IntoIterator<Item = (DueLane, usize)>,
        go_on: Vec<DueRange>,
        most: usize,
        rest: impl Fn(&DueRange) -> Rest,
    ) {
        let mut total = 0;
        for (line, rows) in lanes {
            total += rows;
            if let Some(read) = self.read.get_mut(&line) {
                *read += rows;
            } else {
                self.started.push(line.clone());
                self.read.insert(line, rows);
            }
        }
        if let Some(left) = &mut self.left[self.sort] {
            *left = left.saturating_sub(total);
        }
        for range in go_on.into_iter().rev() {
            let is_over = self.read.get(&range.line).is_some_and(|rows| *rows >= most);
            match rest(&range) {
                Rest::Rows if is_over => drop(self.stopped.insert(range.line, range.after)),
                Rest::Rows | Rest::UpToTheList if !is_over => self.begun[self.sort].push_front(range),
                Rest::Rows | Rest::UpToTheList | Rest::Nothing => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickr_job::Priority;

    const ROWS: usize = 100_000;
    const MOST: usize = 20_000;

    fn lane(number: usize) -> DueLane {
        DueLane { queue: format!("q{number}").parse().unwrap(), priority: Priority::NORMAL }
    }

    /// Return the position before a row of a lane.
    fn before(row: usize) -> DueCursor {
        DueCursor::at(Timestamp::from_timestamp(i64::try_from(row).unwrap(), 0).unwrap())
    }

    fn row(after: &DueCursor) -> usize {
        usize::try_from(after.moment().timestamp()).unwrap()
    }

    /// Make a pass over lanes with these numbers of rows, each with the length of its list. Tell `read` of every range
    /// of rows that it reads: the number of the lane, the first row and the row behind the last.
    fn pass(turns: &mut Turns, lanes: &[(usize, usize, usize)], mut read: impl FnMut(usize, usize, usize)) {
        let numbers: HashMap<DueLane, (usize, usize)> =
            lanes.iter().map(|(number, rows, _)| (lane(*number), (*number, *rows))).collect();
        turns.forget(&numbers.keys().collect(), |_| false);
        let listed = lanes.iter().map(|(number, _, listed)| (lane(*number), *listed));
        let mut pass = turns.begin(listed, Timestamp::MAX_UTC, ROWS);
        while let Some((ranges, most)) = pass.next_ranges() {
            let (mut counts, mut go_on) = (Vec::new(), Vec::new());
            for range in ranges {
                let (number, rows) = numbers[&range.line];
                let from = row(&range.after).min(rows);
                let to = rows.min(from + most);
                read(number, from, to);
                counts.push((range.line.clone(), to - from));
                if to - from == most {
                    go_on.push(DueRange { after: before(to), ..range });
                }
            }
            pass.has_read(counts, go_on, MOST, |_| Rest::Rows);
        }
        turns.end(pass, |_| true);
    }

    /// Make passes over lanes with these numbers of rows and lengths of lists. Return for each lane the most passes
    /// until its first row, or its last, was compared again.
    fn longest_waits(lanes: &[(usize, usize)], passes: usize) -> Vec<usize> {
        let lanes: Vec<(usize, usize, usize)> =
            lanes.iter().enumerate().map(|(number, (rows, listed))| (number, *rows, *listed)).collect();
        let mut turns = Turns::default();
        let mut seen = vec![[0; 2]; lanes.len()];
        let mut longest = vec![0; lanes.len()];
        for now in 1..=passes {
            pass(&mut turns, &lanes, |number, from, to| {
                for (end, row) in [0, lanes[number].1.saturating_sub(1)].into_iter().enumerate() {
                    if (from..to).contains(&row) {
                        longest[number] = longest[number].max(now - seen[number][end]);
                        seen[number][end] = now;
                    }
                }
            });
        }
        for (number, rows, _) in lanes {
            if rows > 0 {
                longest[number] = longest[number].max(passes - seen[number][0]).max(passes - seen[number][1]);
            }
        }
        longest
    }

    #[test]
    fn a_long_list_has_its_turn_in_every_pass_beside_any_number_of_short_lists() {
        for short in [54, 300] {
            let mut lanes = vec![(1_900, 1_900); short];
            lanes.push((2_200, 2_200));
            assert_eq!(longest_waits(&lanes, 40)[short], 1, "{short}");
        }
    }

    #[test]
    fn a_short_list_has_its_turn_in_every_pass_beside_any_number_of_long_lists() {
        for long in [5, 200] {
            let mut lanes = vec![(10_000, 10_000); long];
            lanes.push((50, 50));
            assert_eq!(longest_waits(&lanes, 40)[long], 1, "{long}");
        }
    }

    #[test]
    fn every_pass_compares_all_lanes_that_have_no_more_rows_than_a_pass() {
        let all = [
            vec![(10_000, 10_000); 10],
            vec![(50, 50); 2_000],
            vec![(19_999, 10); 5],
            [vec![(1_000, 1_000); 60], vec![(4_000, 4_000); 10]].concat(),
            [vec![(1_000, 1_000); 10], vec![(9_000, 9_000); 10]].concat(),
        ];
        for lanes in all {
            assert!(longest_waits(&lanes, 10).into_iter().all(|wait| wait == 1), "{:?}", lanes[0]);
        }
    }

    #[test]
    fn every_row_is_compared_within_the_bound_of_its_sort() {
        // A generator of numbers, so that each run has the same lanes.
        let mut state = 7_u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        };
        for count in [3, 12, 40, 90, 150, 250] {
            let few = [0, 50, 1_900, 2_500, 10_000, 19_999];
            let lanes: Vec<(usize, usize)> = (0..count)
                .map(|_| {
                    let rows = if draw(2) == 0 { few[draw(few.len())] } else { draw(MOST) };
                    (rows, [10, 5_000][draw(2)])
                })
                .collect();
            let of_sort = |long: bool| {
                lanes.iter().filter(move |(_, listed)| (*listed >= SHORT_LIST) == long).map(|(rows, _)| rows)
            };
            let totals = [of_sort(false).sum::<usize>(), of_sort(true).sum::<usize>()];
            let waits = longest_waits(&lanes, 200);
            for ((rows, listed), wait) in lanes.iter().zip(waits) {
                let sort = usize::from(*listed >= SHORT_LIST);
                let share = ROWS.saturating_sub(totals[1 - sort]).max(ROWS / 2);
                let bound = totals[sort].div_ceil(share) + 1;
                assert!(wait <= bound, "{count} lanes of {totals:?}: {rows} rows, {listed} listed: {wait} > {bound}");
            }
        }
    }

    #[test]
    fn lanes_that_come_and_go_do_not_keep_others_from_their_turns() {
        let (mut turns, mut compared) = (Turns::default(), 0);
        for now in 0..60 {
            // The lanes from 100 on are new in each pass, and have more rows than one.
            let fresh = (0..20).map(|number| (100 + now * 20 + number, 6_000, 6_000));
            let stay = (0..20).map(|number| (number, 6_000, 6_000));
            let lanes: Vec<(usize, usize, usize)> = fresh.chain(stay).collect();
            pass(&mut turns, &lanes, |number, from, _| compared += usize::from(number == 19 && from == 0));
        }
        // The lanes that stay have more rows than a pass compares, and take turns of two passes.
        assert!(compared >= 20, "compared {compared} times in 60 passes");
    }

    #[test]
    fn a_lane_that_is_longer_than_a_turn_goes_on_where_it_stopped() {
        let (mut turns, mut starts) = (Turns::default(), Vec::new());
        for _ in 0..3 {
            let mut first = None;
            pass(&mut turns, &[(0, 45_000, 10)], |_, from, _| {
                first.get_or_insert(from);
            });
            starts.extend(first);
        }
        assert_eq!(starts, [0, 20_000, 40_000]);
    }
}
