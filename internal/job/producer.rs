//! The client that enqueues jobs, and the jobs of others that its requests can affect.

use super::{Actor, JobOptions};

/// A client that enqueues jobs. Producers affect each other only through unique keys: a request with the unique key of
/// an unfinished job returns that job, or replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producer {
    actor: Actor,
    creator: Actor,
    reaches_all: bool,
}

impl Producer {
    /// Make a producer that sees and replaces only the jobs that `creator` made. The audit records it as `actor`.
    #[must_use]
    pub fn new(actor: Actor, creator: Actor) -> Self {
        Self { actor, creator, reaches_all: false }
    }

    /// Return the producer for tickr itself and for the program that embeds it. It can see and replace every job.
    #[must_use]
    pub fn tickr() -> Self {
        Self::new(Actor::tickr(), Actor::tickr()).reaching_all()
    }

    /// Let this producer see and replace the jobs of all others.
    #[must_use]
    pub fn reaching_all(mut self) -> Self {
        self.reaches_all = true;
        self
    }

    /// Return the name that the audit records.
    #[must_use]
    pub const fn actor(&self) -> &Actor {
        &self.actor
    }

    /// Return the actor that is stored with the jobs with unique keys that this producer creates.
    #[must_use]
    pub const fn creator(&self) -> &Actor {
        &self.creator
    }

    /// Return true if this producer may see and replace the job with these options. The owner of a job without a
    /// creator is unknown: an older binary accepted it.
    #[must_use]
    pub fn reaches(&self, options: &JobOptions) -> bool {
        self.reaches_all || options.creator.as_ref() == Some(&self.creator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_producer_reaches_its_own_jobs_and_an_admin_all_of_them() {
        let shop = Producer::new(Actor::key("shop-2").acting_for("ada"), Actor::key("shop"));
        let by = |creator: Option<Actor>| JobOptions { creator, ..JobOptions::default() };
        assert!(shop.reaches(&by(Some(Actor::key("shop")))));
        for other in [None, Some(Actor::key("shop-2")), Some(Actor::key("mallory")), Some(Actor::tickr())] {
            assert!(!shop.reaches(&by(other.clone())), "{other:?}");
            assert!(shop.clone().reaching_all().reaches(&by(other)));
        }
    }
}
