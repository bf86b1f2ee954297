//! Filters of requests: query parameters by name, and `q` in the language of the filter bar.

use crate::http::problem::{Code, Problem};
use tickr_job::{Filter, Timestamp, query};

/// The parameters of a filter, by name. Every route that accepts a filter has the same ones. Cursors are sealed with
/// these texts and not with the parsed filter, because a span such as `<2h` means another time in every request.
#[derive(Debug)]
pub(crate) struct Words<'a> {
    /// Plain fields, by the names that [`query::put`] accepts.
    pub(crate) fields: Vec<(&'static str, Option<&'a str>)>,
    /// Times, by name.
    pub(crate) moments: [(&'static str, Option<&'a str>); 6],
    /// The text of the filter bar.
    pub(crate) q: Option<&'a str>,
}

impl Words<'_> {
    /// Parse the filter. Spans count from `now`; `prefix` points at the filter in the request.
    pub(crate) fn read(&self, now: Timestamp, prefix: &str) -> Result<Filter, Vec<tickr_handlers::Problem>> {
        let mut filter = Filter::default();
        let mut problems = Vec::new();
        let mut wrong =
            |name: &str, detail: String| problems.push(tickr_handlers::Problem::at(format!("{prefix}{name}"), detail));
        for (name, value) in &self.fields {
            let Some(value) = value else { continue };
            if let Err(why) = query::put(&mut filter, name, value) {
                wrong(name, format!("{:?} {why}", cut(value)));
            }
        }
        for (name, value) in &self.moments {
            let Some(value) = value else { continue };
            let Some(moment) = query::moment(value) else {
                wrong(name, "must be a time such as 2026-11-01 or 2026-11-01T10:00:00Z, not before 1970".to_owned());
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

/// Make the problem for an invalid filter.
pub(crate) fn refused(problems: Vec<tickr_handlers::Problem>) -> Problem {
    Problem::new(Code::InvalidRequest, "invalid filter; `errors` says why").at("", problems)
}

/// Define a struct that has a filter and further fields: one description for query strings (`param`) and bodies
/// (`schema`). It is a macro because serde does not check for unknown names in a struct that is flattened into another.
macro_rules! filter_struct {
    ($attribute:ident, $(#[$about:meta])* $name:ident { $($extra:tt)* }) => {
        $(#[$about])*
        pub(crate) struct $name {
            /// Only jobs in this state.
            #[$attribute(value_type = Option<crate::view::StateWord>, inline)]
            state: Option<String>,
            /// Only jobs of this kind.
            #[$attribute(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
            kind: Option<String>,
            /// Only jobs of this queue.
            #[$attribute(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
            queue: Option<String>,
            /// Only jobs of this schedule, as long as its ticks are kept.
            #[$attribute(pattern = "^[a-z0-9][a-z0-9_.-]{0,63}$")]
            schedule: Option<String>,
            /// Only jobs that were accepted at this time or later.
            #[$attribute(example = "2026-11-01T10:00:00Z")]
            created_after: Option<String>,
            /// Only jobs that were accepted before this time.
            created_before: Option<String>,
            /// Only jobs that are due at this time or later. For an ended job, the due time of its last attempt counts.
            due_after: Option<String>,
            /// Only jobs that are due before this time.
            due_before: Option<String>,
            /// Only jobs that ended at this time or later.
            finished_after: Option<String>,
            /// Only jobs that ended before this time.
            finished_before: Option<String>,
            /// Only jobs with this unique key.
            #[$attribute(max_length = 255)]
            unique_key: Option<String>,
            /// Only jobs with this order key.
            #[$attribute(max_length = 255)]
            order_key: Option<String>,
            /// Only jobs with this limit key.
            #[$attribute(max_length = 255)]
            limit_key: Option<String>,
            /// Only jobs that this batch counts.
            #[$attribute(format = "uuid")]
            batch: Option<String>,
            /// Only jobs that call this host: `example.com` or `example.com:8443`.
            #[$attribute(max_length = 255)]
            host: Option<String>,
            /// Only jobs with this tag.
            #[$attribute(pattern = "^[A-Za-z0-9_.:/@=+-]{1,64}$")]
            tag: Option<String>,
            /// Only jobs whose last error contains this text. Upper and lower case do not matter.
            #[$attribute(max_length = 200)]
            error: Option<String>,
            /// Only failed jobs of this group of dead letters; see `/v1/dead-letters/groups`.
            #[$attribute(pattern = "^[0-9a-f]{16}$")]
            fingerprint: Option<String>,
            /// Only jobs that this bulk operation made of dead letters.
            #[$attribute(format = "uuid")]
            operation: Option<String>,
            /// A whole filter in the language of the filter bar: `state:failed kind:email queue:mail schedule:nightly
            /// unique_key:order-7 order:conv-7 limit:tenant-7 batch:… host:example.com tag:a error:"timed out" created:>2026-11-01 finished:<2h due:<2h id:…
            /// payload.user.id:42`. A word without a field (`deadlock`) is searched for in errors, keys, hosts and ids,
            /// and as a kind, a queue or a tag. `-kind:email` negates a word, and `kind:email|report` is a choice.
            /// `attempt:>2` and `took:>5s` are ranges, `runner:` takes the beginning of an id. A span after `created` or `finished` is an age (`created:<2h`: in the last two
            /// hours), a span after `due` lies ahead (`due:<2h`: in the next two hours). Paths into a payload: `items[0].sku`, `"odd key".x`.
            #[$attribute(max_length = 2000, example = "state:failed kind:email created:<2h payload.user.id:42")]
            q: Option<String>,
            $($extra)*
        }

        impl $name {
            fn words(&self) -> crate::http::filter::Words<'_> {
                crate::http::filter::Words {
                    fields: vec![
                        ("state", self.state.as_deref()),
                        ("kind", self.kind.as_deref()),
                        ("queue", self.queue.as_deref()),
                        ("schedule", self.schedule.as_deref()),
                        ("unique_key", self.unique_key.as_deref()),
                        ("order_key", self.order_key.as_deref()),
                        ("limit_key", self.limit_key.as_deref()),
                        ("batch", self.batch.as_deref()),
                        ("host", self.host.as_deref()),
                        ("tag", self.tag.as_deref()),
                        ("error", self.error.as_deref()),
                        ("fingerprint", self.fingerprint.as_deref()),
                        ("operation", self.operation.as_deref()),
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
pub(crate) use filter_struct;

/// Define a query string that has a filter and further parameters.
macro_rules! filter_query {
    ($(#[$about:meta])* $name:ident { $($extra:tt)* }) => {
        crate::http::filter::filter_struct! {
            param,
            $(#[$about])*
            #[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
            #[serde(deny_unknown_fields)]
            #[into_params(parameter_in = Query)]
            $name { $($extra)* }
        }
    };
}
pub(crate) use filter_query;
