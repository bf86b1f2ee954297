//! Who asks for jobs, and how far it reaches into those of others.

use super::{Actor, JobOptions};

/// Who asks for jobs. Unique keys are the only place where producers meet: a request with the key of an unfinished job is
/// answered with that job, or takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Producer {
    actor: Actor,
    creator: Actor,
    reaches_all: bool,
}

impl Producer {
    /// A producer that sees and replaces only the jobs that `creator` made. `actor` is how the audit names it.
    #[must_use]
    pub fn new(actor: Actor, creator: Actor) -> Self {
        Self { actor, creator, reaches_all: false }
    }

    /// tickr itself, and the program that embeds it: every job is within its reach.
    #[must_use]
    pub fn tickr() -> Self {
        Self::new(Actor::tickr(), Actor::tickr()).reaching_all()
    }

    /// With the jobs of all others within its reach.
    #[must_use]
    pub fn reaching_all(mut self) -> Self {
        self.reaches_all = true;
        self
    }

    /// How the audit names it.
    #[must_use]
    pub const fn actor(&self) -> &Actor {
        &self.actor
    }

    /// What is written beside the jobs with unique keys that it makes.
    #[must_use]
    pub const fn creator(&self) -> &Actor {
        &self.creator
    }

    /// May it see and replace the job with these options? Of a job without a creator it is not known whose it is: an older
    /// binary accepted it.
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
