//! Who asks about jobs: which of them are its own, and which kinds it may enqueue.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde_json::value::RawValue;

use super::auth::{Holder, Who};
use super::problem::{Code, Problem};
use super::view::{ForeignJobView, JobView, SeenJob};
use crate::handlers::email::Email;
use crate::handlers::report::Report;
use crate::handlers::{self, Kind as _};
use crate::job::{Actor, Attempt, Job, JobId, Name, Producer, Scope};

/// Who asks about jobs.
#[derive(Clone)]
pub(super) struct Asker {
    producer: Producer,
    kinds: Option<Arc<BTreeSet<Name>>>,
    /// May it read every job?
    reads_all: bool,
}

impl<S: Send + Sync> FromRequestParts<S> for Asker {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let Who(actor) = Who::from_request_parts(parts, state).await?;
        Ok(match parts.extensions.get::<Holder>() {
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

impl Asker {
    const fn all(producer: Producer) -> Self {
        Self { producer, kinds: None, reads_all: true }
    }

    /// As the store knows it.
    pub(super) const fn producer(&self) -> &Producer {
        &self.producer
    }

    /// May it see this job in full? A job without a unique key is seen by each key that knows its id: an id has 74 random
    /// bits, and its producer alone is told it. The id of a job with a unique key is told to others who use the key.
    pub(super) fn sees(&self, job: &Job) -> bool {
        self.reads_all || job.unique_key.is_none() || self.producer.reaches(&job.options)
    }

    /// Refuse what is said of a job beyond its id and state, if the job is another's.
    pub(super) fn needs_to_see(&self, job: &Job) -> Result<(), Problem> {
        if self.sees(job) {
            return Ok(());
        }
        Err(foreign(job.id))
    }

    /// As much of a job as it may see.
    pub(super) fn show(&self, job: Job, attempts: Vec<Attempt>) -> SeenJob {
        if self.sees(&job) {
            SeenJob::Own(Box::new(JobView::read(job, Some(attempts))))
        } else {
            SeenJob::Foreign(ForeignJobView::of(job.id, job.state))
        }
    }

    /// The kinds that this job asks for and the key is not good for, as a problem at `prefix`.
    pub(super) fn may_enqueue(&self, kind: &str, payload: &RawValue, prefix: &str) -> Result<(), Problem> {
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
        let here = handlers::Problem::at(pointer, format!("this key enqueues {good} and no {missing:?}"));
        let detail = format!("{} may enqueue only these kinds: {good}", self.producer.actor());
        Err(Problem::new(Code::Forbidden, detail).at(prefix, vec![here]))
    }
}

/// Does a report send its file? Then it enqueues a mail.
fn mails(payload: &RawValue) -> bool {
    #[derive(serde::Deserialize)]
    struct Mails<'a> {
        #[serde(default, borrow)]
        email: Option<&'a RawValue>,
    }
    // What cannot be read so is refused as a payload.
    serde_json::from_str::<Mails<'_>>(payload.get()).is_ok_and(|report| report.email.is_some())
}

fn foreign(id: JobId) -> Problem {
    let detail =
        format!("job {id} is another producer's: GET /v1/jobs/{id} tells this key its state, and nothing more");
    Problem::new(Code::Forbidden, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_sends_its_file_needs_the_kind_of_the_mail() {
        let asker = |kinds: &[&str]| Asker {
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
