//! The caller of a job route: the jobs that it may see, and the kinds and queues that it may use.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde_json::value::RawValue;

use crate::http::auth::{Identity, RequestActor};
use crate::http::problem::{Code, Problem};
use crate::view::{ForeignJobView, JobView, SeenJob};
use tickr_handlers::Kind as _;
use tickr_handlers::email::Email;
use tickr_handlers::report::Report;
use tickr_job::{Actor, Attempt, Job, JobId, Name, Producer, Scope};

/// The caller of a job route.
#[derive(Clone)]
pub(crate) struct Requester {
    producer: Producer,
    kinds: Option<Arc<BTreeSet<Name>>>,
    queues: Option<Arc<BTreeSet<Name>>>,
    /// True when the caller may read every job.
    reads_all: bool,
    /// True when the caller may only work as a remote worker.
    works_only: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for Requester {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let RequestActor(actor) = RequestActor::from_request_parts(parts, state).await?;
        Ok(Self::of(actor, parts.extensions.get::<Identity>()))
    }
}

impl Requester {
    /// Return the holder of an API key as a caller. Without a holder, the API is open.
    pub(crate) fn of(actor: Actor, holder: Option<&Identity>) -> Self {
        match holder {
            None => Self::all(Producer::new(actor, Actor::anyone()).reaching_all()),
            Some(holder) => {
                let producer = Producer::new(actor, holder.creator().clone());
                match holder.scope() {
                    Scope::Admin => Self::all(producer.reaching_all()),
                    scope => Self {
                        producer,
                        kinds: holder.kinds(),
                        queues: holder.queues(),
                        reads_all: scope == Scope::Read,
                        works_only: scope == Scope::Work,
                    },
                }
            }
        }
    }

    const fn all(producer: Producer) -> Self {
        Self { producer, kinds: None, queues: None, reads_all: true, works_only: false }
    }

    /// Return the caller in the form that the store uses.
    pub(crate) const fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Return whether the caller may see this job in full.
    ///
    /// Every caller that knows the id of a job without a unique key may see it: an id has 74 random bits, and tickr
    /// tells it only to the producer, and to remote workers with the job. The id of a job with a unique key is also
    /// told to other producers that use the same unique key, so they see only its id and state.
    pub(crate) fn can_see(&self, job: &Job) -> bool {
        self.reads_all || job.unique_key.is_none() || self.producer.reaches(&job.options)
    }

    /// Return whether the caller may see every job in full.
    pub(crate) const fn sees_every_job(&self) -> bool {
        self.reads_all
    }

    /// Refuse access to the details of a job that belongs to another producer.
    pub(crate) fn require_access(&self, job: &Job) -> Result<(), Problem> {
        if self.can_see(job) {
            return Ok(());
        }
        Err(foreign(job.id))
    }

    /// Return the part of a job that the caller may see. An id is enough to read a job, so a remote worker is not told
    /// the parents and batches of its own, whose kinds may be those of others.
    pub(crate) fn show(&self, job: Job, attempts: Vec<Attempt>) -> SeenJob {
        if self.can_see(&job) {
            let view = JobView::read(job, Some(attempts));
            SeenJob::Own(Box::new(if self.works_only { view.without_links() } else { view }))
        } else {
            SeenJob::Foreign(ForeignJobView::new(job.id, job.state))
        }
    }

    /// Refuse a queue to which the caller's API key may not add jobs, with a problem at `prefix`.
    pub(crate) fn may_use_queue(&self, queue: &str, prefix: &str) -> Result<(), Problem> {
        let (Some(here), Some(queues)) = (self.problem_of_queue(queue), &self.queues) else { return Ok(()) };
        let detail = format!("{} may enqueue only in these queues: {}", self.producer.actor(), listed(queues));
        Err(Problem::new(Code::Forbidden, detail).at(prefix, vec![here]))
    }

    /// Return why the caller's API key may not add jobs to this queue. Pointers are relative to the job.
    pub(crate) fn problem_of_queue(&self, queue: &str) -> Option<tickr_handlers::Problem> {
        let queues = self.queues.as_ref()?;
        if queues.iter().any(|known| known.as_str() == queue) {
            return None;
        }
        let (good, queue) = (listed(queues), queue.chars().take(64).collect::<String>());
        let detail = format!("this API key may use the queues {good}, but not {queue:?}");
        Some(tickr_handlers::Problem::at("/queue", detail))
    }

    /// Return whether the caller's API key may use only some queues.
    pub(crate) const fn has_queues(&self) -> bool {
        self.queues.is_some()
    }

    /// Refuse a kind that the caller's API key may not enqueue, with a problem at `prefix`.
    pub(crate) fn may_enqueue(&self, kind: &str, payload: &RawValue, prefix: &str) -> Result<(), Problem> {
        let (Some(here), Some(kinds)) = (self.problem_of_kind(kind, payload), &self.kinds) else { return Ok(()) };
        let detail = format!("{} may enqueue only these kinds: {}", self.producer.actor(), listed(kinds));
        Err(Problem::new(Code::Forbidden, detail).at(prefix, vec![here]))
    }

    /// Return why the caller's API key may not enqueue this kind. Pointers are relative to the job.
    pub(crate) fn problem_of_kind(&self, kind: &str, payload: &RawValue) -> Option<tickr_handlers::Problem> {
        let kinds = self.kinds.as_ref()?;
        let may = |kind: &str| kinds.iter().any(|known| known.as_str() == kind);
        let (pointer, missing) = if !may(kind) {
            ("/kind", kind)
        } else if kind == Report::NAME && !may(Email::NAME) && mails(payload) {
            ("/payload/email", Email::NAME)
        } else {
            return None;
        };
        let (good, missing) = (listed(kinds), missing.chars().take(64).collect::<String>());
        Some(tickr_handlers::Problem::at(pointer, format!("this API key may enqueue {good}, but not {missing:?}")))
    }
}

/// The kinds and queues that an API key of remote workers may use; all of them for other callers.
pub(crate) struct WorkerRights {
    actor: Actor,
    kinds: Option<Arc<BTreeSet<Name>>>,
    queues: Option<Arc<BTreeSet<Name>>>,
}

impl<S: Send + Sync> FromRequestParts<S> for WorkerRights {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let RequestActor(actor) = RequestActor::from_request_parts(parts, state).await?;
        let (kinds, queues) =
            parts.extensions.get::<Identity>().map_or((None, None), |holder| (holder.kinds(), holder.queues()));
        Ok(Self { actor, kinds, queues })
    }
}

impl WorkerRights {
    /// Return whether the caller may use every kind and queue.
    pub(crate) const fn are_unlimited(&self) -> bool {
        self.kinds.is_none() && self.queues.is_none()
    }

    /// Return whether the caller may use all of these kinds and queues.
    pub(crate) fn cover(&self, kinds: &[Name], queues: &[Name]) -> bool {
        let within = |limit: &Option<Arc<BTreeSet<Name>>>, names: &[Name]| {
            limit.as_ref().is_none_or(|limit| names.iter().all(|name| limit.contains(name)))
        };
        within(&self.kinds, kinds) && within(&self.queues, queues)
    }

    /// Keep those of these queues that the caller may use. If there is none, take the caller's own.
    pub(crate) fn choose_queues(&self, queues: &mut Vec<Name>) {
        let Some(own) = &self.queues else { return };
        queues.retain(|queue| own.contains(queue));
        if queues.is_empty() {
            queues.extend(own.iter().cloned());
        }
    }

    /// Refuse a worker of kinds or queues that the caller's API key may not use.
    pub(crate) fn check(&self, kinds: &[Name], queues: &[Name]) -> Result<(), Problem> {
        let mut wrong = Vec::new();
        for (field, limit, names) in [("kinds", &self.kinds, kinds), ("queues", &self.queues, queues)] {
            let Some(limit) = limit else { continue };
            let may = listed(limit);
            for name in names.iter().filter(|name| !limit.contains(*name)) {
                let what = format!("this API key may work on the {field} {may}, but not on {name}");
                wrong.push(tickr_handlers::Problem::at(format!("/{field}"), what));
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let detail = format!("{} may not work on all of these kinds and queues; `errors` says which", self.actor);
        Err(Problem::new(Code::Forbidden, detail).at("", wrong))
    }
}

fn listed(names: &BTreeSet<Name>) -> String {
    names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
}

/// Return whether a report sends its file, because then it also enqueues an email.
fn mails(payload: &RawValue) -> bool {
    #[derive(serde::Deserialize)]
    struct Mails<'a> {
        #[serde(default, borrow)]
        email: Option<&'a RawValue>,
    }
    // A payload that cannot be parsed here is refused later as an invalid payload.
    serde_json::from_str::<Mails<'_>>(payload.get()).is_ok_and(|report| report.email.is_some())
}

fn foreign(id: JobId) -> Problem {
    let detail =
        format!("job {id} belongs to another producer: this API key may only read its state, with GET /v1/jobs/{id}");
    Problem::new(Code::Forbidden, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_sends_its_file_needs_the_kind_of_the_mail() {
        let asker = |kinds: &[&str]| Requester {
            producer: Producer::new(Actor::key("shop"), Actor::key("shop")),
            kinds: Some(Arc::new(kinds.iter().map(|kind| kind.parse().unwrap()).collect())),
            queues: None,
            reads_all: false,
            works_only: false,
        };
        let payload = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let (plain, mailed) =
            (payload(r#"{"query":"x"}"#), payload(r#"{"query":"x","\u0065mail":{"to":"a@b.example"}}"#));
        let may = |kinds: &[&str], kind: &str, payload: &RawValue| asker(kinds).may_enqueue(kind, payload, "").is_ok();
        assert!(may(&["report"], "report", &plain) && may(&["report", "email"], "report", &mailed));
        assert!(!may(&["report"], "report", &mailed) && !may(&["report"], "email", &plain));
        assert!(may(&["report"], "report", &payload(r#"{"email":null}"#)) && !may(&["http"], "", &plain));
    }
}
