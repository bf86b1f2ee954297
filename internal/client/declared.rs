//! Kinds that a process only enqueues, known by their payload types alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use tickr_broker::Broker;
use tickr_config::KindConfig;
use tickr_handlers::{Kind, Registered};
use tickr_job::Name;

/// The kinds whose types this process has shown to a client, and that no handler of it executes.
#[derive(Debug, Default)]
pub(super) struct Declared {
    types: RwLock<HashMap<&'static str, Arc<Registered>>>,
    /// Overrides of the configuration, by kind.
    changes: BTreeMap<String, KindConfig>,
}

impl Declared {
    /// Begin without types, with the overrides of a configuration.
    pub(super) fn with(changes: BTreeMap<String, KindConfig>) -> Self {
        Self { types: RwLock::default(), changes }
    }

    /// Remember a payload type. Its schema is made at the first call. A kind with an illegal name is left out, so that
    /// its jobs are refused.
    pub(super) fn add<K: Kind>(&self) {
        let known = self.types.read().unwrap_or_else(PoisonError::into_inner).contains_key(K::NAME);
        if !known && K::NAME.parse::<Name>().is_ok() {
            let kind = Arc::new(Registered::without_handler::<K>(self.changes.get(K::NAME)));
            self.types.write().unwrap_or_else(PoisonError::into_inner).entry(K::NAME).or_insert(kind);
        }
    }

    /// Return the kind unless the broker has a handler of it, whose own check is stricter.
    pub(super) fn get(&self, broker: &Broker, kind: &str) -> Option<Arc<Registered>> {
        if broker.registry().find(kind).is_some() {
            return None;
        }
        self.types.read().unwrap_or_else(PoisonError::into_inner).get(kind).cloned()
    }
}
