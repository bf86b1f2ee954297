//! Filters as callers word them: query parameters by name, and `q` in the words of a filter bar.

use super::problem::{Code, Problem};
use crate::handlers;
use crate::job::{Filter, Timestamp, query};

/// The parameters of a filter, by name. Each call that takes one has the same. Cursors are sealed with this, as it was
/// asked for, because a span means another moment in every request.
#[derive(Debug)]
pub(super) struct Words<'a> {
    /// Plain fields, by the names that [`query::put`] knows.
    pub(super) fields: Vec<(&'static str, Option<&'a str>)>,
    /// Moments, by name.
    pub(super) moments: [(&'static str, Option<&'a str>); 6],
    /// The filter bar.
    pub(super) q: Option<&'a str>,
}

impl Words<'_> {
    /// The filter they mean. `now` is what spans count from; `prefix` points at where they were given.
    pub(super) fn read(&self, now: Timestamp, prefix: &str) -> Result<Filter, Vec<handlers::Problem>> {
        let mut filter = Filter::default();
        let mut problems = Vec::new();
        let mut wrong =
            |name: &str, detail: String| problems.push(handlers::Problem::at(format!("{prefix}{name}"), detail));
        for (name, value) in &self.fields {
            let Some(value) = value else { continue };
            if let Err(why) = query::put(&mut filter, name, value) {
                wrong(name, format!("{:?} {why}", cut(value)));
            }
        }
        for (name, value) in &self.moments {
            let Some(value) = value else { continue };
            let Some(moment) = query::moment(value) else {
                wrong(name, "must be a moment such as 2026-11-01 or 2026-11-01T10:00:00Z, since 1970".to_owned());
                continue;
            };
            let place = match *name {
                "created_after" => &mut filter.created_after,
                "created_before" => &mut filter.created_before,
                "due_after" => &mut filter.due_after,
                "due_before" => &mut filter.due_before,
                "finished_after" => &mut filter.finished_after,
                _ => &mut filter.finished_before,
            };
            *place = Some(moment);
        }
        if let Some(q) = self.q
            && let Err(words) = query::add(&mut filter, q, now)
        {
            for word in words.iter().take(20) {
                wrong("q", word.to_string());
            }
        }
        if problems.is_empty() { Ok(filter) } else { Err(problems) }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}

/// What a call with a wrong filter is answered.
pub(super) fn refused(problems: Vec<handlers::Problem>) -> Problem {
    Problem::new(Code::InvalidRequest, "the filter asks for something it cannot have").at("", problems)
}

/// A struct with a filter in it, and what else its callers may say: one description for query strings (`param`) and bodies
/// (`schema`). Written out by a macro because a struct that is flattened into another loses the check for unknown names.
macro_rules! filter_struct {
    ($attribute:ident, $(#[$about:meta])* $name:ident { $($extra:tt)* }) => {
        $(#[$about])*
        pub(super) struct $name {
            /// Only jobs in this state.
            #[$attribute(value_type = Option<crate::api::view::StateWord>, inline)]
            state: Option<String>,
            /// Only jobs of this kind.
            #[$attribute(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
            kind: Option<String>,
            /// Only jobs of this queue.
            #[$attribute(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
            queue: Option<String>,
            /// Only jobs that this schedule made, for as long as its ticks are kept.
            #[$attribute(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
            schedule: Option<String>,
            /// Accepted at this moment or later.
            #[$attribute(example = "2026-11-01T10:00:00Z")]
            created_after: Option<String>,
            /// Accepted before this moment.
            created_before: Option<String>,
            /// Due at this moment or later; of an ended job, when its last attempt was due.
            due_after: Option<String>,
            /// Due before this moment.
            due_before: Option<String>,
            /// Ended at this moment or later.
            finished_after: Option<String>,
            /// Ended before this moment.
            finished_before: Option<String>,
            /// With this unique key.
            #[$attribute(max_length = 255)]
            unique_key: Option<String>,
            /// With this tag.
            #[$attribute(pattern = "^[A-Za-z0-9_.:/@=+-]{1,64}$")]
            tag: Option<String>,
            /// Whose last unsuccessful attempt said this, in any case of letters.
            #[$attribute(max_length = 200)]
            error: Option<String>,
            /// Only failed jobs of this group; see `/v1/dead/groups`.
            #[$attribute(pattern = "^[0-9a-f]{16}$")]
            fingerprint: Option<String>,
            /// All of it in the words of a filter bar: `state:failed kind:email queue:mail schedule:nightly key:order-7 tag:a
            /// error:"timed out" created:>2026-11-01 finished:<2h due:<2h id:… payload.user.id:42`. Spans of created and
            /// finished are ages, those of due lie ahead. Places in a payload: `items[0].sku`, `"odd key".x`.
            #[$attribute(max_length = 2000, example = "state:failed kind:email created:<2h payload.user.id:42")]
            q: Option<String>,
            $($extra)*
        }

        impl $name {
            fn words(&self) -> crate::api::filter::Words<'_> {
                crate::api::filter::Words {
                    fields: vec![
                        ("state", self.state.as_deref()),
                        ("kind", self.kind.as_deref()),
                        ("queue", self.queue.as_deref()),
                        ("schedule", self.schedule.as_deref()),
                        ("unique_key", self.unique_key.as_deref()),
                        ("tag", self.tag.as_deref()),
                        ("error", self.error.as_deref()),
                        ("fingerprint", self.fingerprint.as_deref()),
                    ],
                    moments: [
                        ("created_after", self.created_after.as_deref()),
                        ("created_before", self.created_before.as_deref()),
                        ("due_after", self.due_after.as_deref()),
                        ("due_before", self.due_before.as_deref()),
                        ("finished_after", self.finished_after.as_deref()),
                        ("finished_before", self.finished_before.as_deref()),
                    ],
                    q: self.q.as_deref(),
                }
            }
        }
    };
}
pub(super) use filter_struct;

/// A query string with a filter in it, and what else the call takes.
macro_rules! filter_query {
    ($(#[$about:meta])* $name:ident { $($extra:tt)* }) => {
        crate::api::filter::filter_struct! {
            param,
            $(#[$about])*
            #[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
            #[serde(deny_unknown_fields)]
            #[into_params(parameter_in = Query)]
            $name { $($extra)* }
        }
    };
}
pub(super) use filter_query;
