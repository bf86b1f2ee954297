//! The pairs of kind and queue that jobs have.
//!
//! The index `jobs_kind_queue` has the ids of each pair in order. A search that wants few pairs merges their ids instead
//! of looking through all jobs. The pairs themselves are found by jumps from one value of the index to the next, so their
//! number counts and not that of the jobs.

use std::collections::BTreeSet;

use crate::sql::session::Session;
use tickr_job::{Filter, Name};

/// Most pairs that one search merges. A kind or a queue with more of them has so many jobs that a walk finds some soon.
const MAX_PAIRS: usize = 32;
/// Most kinds that are looked for.
const MAX_KINDS: usize = 100;

/// A kind and a queue that have jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KindQueue {
    pub(crate) kind: String,
    pub(crate) queue: String,
}

/// The kinds and queues that a filter asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WantedPairs {
    kinds: WantedNames,
    queues: WantedNames,
}

/// The names that a filter asks for: some, or all but some.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct WantedNames {
    some: Option<BTreeSet<String>>,
    not: BTreeSet<String>,
}

impl WantedPairs {
    /// Return the kinds and queues of a filter. Nothing if it leaves both of them open.
    pub(crate) fn of(filter: &Filter) -> Option<Self> {
        let wanted = Self {
            kinds: WantedNames::of(filter, |part| part.kind.as_ref(), |kind| Filter { kind, ..Filter::default() }),
            queues: WantedNames::of(filter, |part| part.queue.as_ref(), |queue| Filter { queue, ..Filter::default() }),
        };
        (wanted != Self::default()).then_some(wanted)
    }

    /// Return the wanted pairs that have jobs, or may have. Nothing if they are too many.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    pub(crate) async fn existing(&self, conn: &mut Session<'_>) -> Result<Option<Vec<KindQueue>>, sqlx::Error> {
        let kinds = match &self.kinds.some {
            Some(kinds) => kinds.iter().cloned().collect(),
            None => {
                let sql = "SELECT kind FROM jobs FORCE INDEX (jobs_kind_queue) WHERE kind > ? ORDER BY kind LIMIT 1";
                match jump(conn, sql, None, MAX_KINDS).await? {
                    Some(kinds) => kinds,
                    None => return Ok(None),
                }
            }
        };
        let mut pairs = Vec::new();
        for kind in kinds.into_iter().filter(|kind| self.kinds.has(kind)) {
            let queues = match &self.queues.some {
                Some(queues) => queues.iter().cloned().collect(),
                None => {
                    let sql = "SELECT queue FROM jobs FORCE INDEX (jobs_kind_queue) WHERE kind = ? AND queue > ? \
                               ORDER BY queue LIMIT 1";
                    let most = MAX_PAIRS + self.queues.not.len();
                    match jump(conn, sql, Some(&kind), most).await? {
                        Some(queues) => queues,
                        None => return Ok(None),
                    }
                }
            };
            let of_kind = queues.into_iter().filter(|queue| self.queues.has(queue));
            pairs.extend(of_kind.map(|queue| KindQueue { kind: kind.clone(), queue }));
            if pairs.len() > MAX_PAIRS {
                return Ok(None);
            }
        }
        Ok(Some(pairs))
    }
}

impl WantedNames {
    /// Read the names of one sort. `name` takes it from a filter, `alone` makes the filter that has only this name.
    fn of<'f>(
        filter: &'f Filter,
        name: impl Fn(&'f Filter) -> Option<&'f Name>,
        alone: impl Fn(Option<Name>) -> Filter,
    ) -> Self {
        let mut wanted = Self { some: name(filter).map(|one| [one.as_str().to_owned()].into()), not: BTreeSet::new() };
        for choice in &filter.choices {
            let names: Option<BTreeSet<String>> = choice
                .of
                .iter()
                .map(|part| {
                    let one = name(part)?;
                    (*part == alone(Some(one.clone()))).then(|| one.as_str().to_owned())
                })
                .collect();
            match names {
                Some(names) if choice.not => wanted.not.extend(names),
                Some(names) => {
                    wanted.some = Some(match wanted.some.take() {
                        Some(some) => some.intersection(&names).cloned().collect(),
                        None => names,
                    });
                }
                // Another condition, which is checked row by row.
                None => {}
            }
        }
        wanted
    }

    fn has(&self, name: &str) -> bool {
        !self.not.contains(name) && self.some.as_ref().is_none_or(|some| some.contains(name))
    }
}

/// Read the distinct values of a column in their order, each by one lookup behind the one before. Return nothing if
/// there are more than `most`.
async fn jump(
    conn: &mut Session<'_>,
    sql: &'static str,
    within: Option<&str>,
    most: usize,
) -> Result<Option<Vec<String>>, sqlx::Error> {
    let mut values: Vec<String> = Vec::new();
    loop {
        let mut query = sqlx::query_scalar(sql);
        if let Some(within) = within {
            query = query.bind(within);
        }
        let behind = values.last().map_or("", String::as_str).to_owned();
        let Some(next) = query.bind(behind).fetch_optional(&mut *conn).await? else { return Ok(Some(values)) };
        if values.len() >= most {
            return Ok(None);
        }
        values.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Option<WantedPairs> {
        let mut filter = Filter::default();
        tickr_job::query::add(&mut filter, text, tickr_job::Timestamp::UNIX_EPOCH).unwrap();
        WantedPairs::of(&filter)
    }

    #[test]
    fn kinds_and_queues_of_a_filter_are_read_from_words_choices_and_negations() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let pairs = |text: &str| wanted(text).unwrap();
        assert_eq!(pairs("kind:a error:x").kinds.some, Some(set(&["a"])));
        assert_eq!(pairs("kind:a|b kind:a").kinds.some, Some(set(&["a"])));
        assert_eq!(pairs("kind:a|b -kind:b").kinds, WantedNames { some: Some(set(&["a", "b"])), not: set(&["b"]) });
        assert_eq!(pairs("-queue:a|b").queues.not, set(&["a", "b"]));
        assert!(pairs("kind:a|b -kind:b").kinds.has("a") && !pairs("kind:a|b -kind:b").kinds.has("b"));
        assert_eq!((wanted("error:x"), wanted("-tag:a"), wanted("")), (None, None, None));
    }
}
