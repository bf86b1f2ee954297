//! The caller of a job route: the jobs that it may see and the kinds that it may enqueue.

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
    /// True when the caller may read every job.
    reads_all: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for Requester {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let RequestActor(actor) = RequestActor::from_request_parts(parts, state).await?;
        Ok(match parts.extensions.get::<Identity>() {
            None => Self::all(Producer::new(actor, Actor::anyone()).reaching_all()),
            Some(holder) => {
                let producer = Producer::new(actor, holder.creator().clone());
                match holder.scope() {
                    Scope::Admin => Self::all(producer.reaching_all()),
                    scope => Self { producer, kinds: holder.kinds(), reads_all: scope == Scope::Read },
                }
            }
        })
    }
}

impl Requester {
    const fn all(producer: Producer) -> Self {
        Self { producer, kinds: None, reads_all: true }
    }

    /// Return the caller in the form that the store uses.
    pub(crate) const fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Return whether the caller may see this job in full.
    ///
    /// Every caller that knows the id of a job without a unique key may see it: an id has 74 random bits, and tickr
    /// tells it only to the producer. The id of a job with a unique key is also told to other producers that use the
    /// same unique key, so they see only its id and state.
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

    /// Return the part of a job that the caller may see.
    pub(crate) fn show(&self, job: Job, attempts: Vec<Attempt>) -> SeenJob {
        if self.can_see(&job) {
            SeenJob::Own(Box::new(JobView::read(job, Some(attempts))))
        } else {
            SeenJob::Foreign(ForeignJobView::new(job.id, job.state))
        }
    }

    /// Refuse a kind that the caller's API key may not enqueue, with a problem at `prefix`.
    pub(crate) fn may_enqueue(&self, kind: &str, payload: &RawValue, prefix: &str) -> Result<(), Problem> {
        let Some(kinds) = &self.kinds else { return Ok(()) };
        let may = |kind: &str| kinds.iter().any(|known| known.as_str() == kind);
        let (pointer, missing) = if !may(kind) {
            ("/kind", kind)
        } else if kind == Report::NAME && !may(Email::NAME) && mails(payload) {
            ("/payload/email", Email::NAME)
        } else {
            return Ok(());
        };
        let good: Vec<&str> = kinds.iter().map(Name::as_str).collect();
        let good = good.join(", ");
        let missing: String = missing.chars().take(64).collect();
        let here =
            tickr_handlers::Problem::at(pointer, format!("this API key may enqueue {good}, but not {missing:?}"));
        let detail = format!("{} may enqueue only these kinds: {good}", self.producer.actor());
        Err(Problem::new(Code::Forbidden, detail).at(prefix, vec![here]))
    }
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
            reads_all: false,
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
