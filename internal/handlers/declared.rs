//! Kinds that programs in other languages execute, as operators have declared them: their schemas, their defaults and
//! their receivers.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use super::Registered;
use super::http::HttpHandler;
use tickr_job::{DeclaredKind, Name, Timestamp};

/// The declared kinds by name, each with the version of its declaration.
type Known = BTreeMap<Name, (DeclarationVersion, Arc<Registered>)>;

/// Version and time of change of a declaration. A kind that was removed and declared again has an earlier version and a
/// later time.
pub type DeclarationVersion = (u32, Timestamp);

/// The declared kinds that this process knows.
#[derive(Debug, Default)]
pub(super) struct DeclaredKinds(RwLock<Arc<Known>>);

impl DeclaredKinds {
    fn now(&self) -> Arc<Known> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Follow these declarations. Only schemas that have changed are read again. A schema that this version cannot read
    /// makes its kind unknown here, so that no unchecked payload is accepted.
    pub(super) fn follow<'k>(
        &self,
        declared: impl Iterator<Item = (&'k DeclaredKind, DeclarationVersion)>,
        client: Option<&Arc<HttpHandler>>,
    ) {
        let before = self.now();
        let mut after = Known::new();
        for (kind, version) in declared {
            let known = before.get(&kind.name).filter(|(known, _)| *known == version).cloned();
            let known =
                known.map_or_else(|| Ok((version, Arc::new(Registered::declared(kind, client)?))), Ok::<_, String>);
            match known {
                Ok(known) => drop(after.insert(kind.name.clone(), known)),
                Err(error) => tracing::error!(kind = %kind.name, error, "cannot read the schema of a declared kind"),
            }
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(after);
    }

    pub(super) fn get(&self, kind: &str) -> Option<Arc<Registered>> {
        self.now().get(kind).map(|(_, kind)| Arc::clone(kind))
    }

    pub(super) fn all(&self) -> Vec<Arc<Registered>> {
        self.now().values().map(|(_, kind)| Arc::clone(kind)).collect()
    }
}

/// A kind that this process knows: one with a handler, or a declared one.
#[derive(Debug)]
pub enum KnownKind<'r> {
    /// This process has a handler of it.
    Compiled(&'r Registered),
    /// Programs in other languages execute it.
    Declared(Arc<Registered>),
}

impl Deref for KnownKind<'_> {
    type Target = Registered;

    fn deref(&self) -> &Registered {
        match self {
            Self::Compiled(kind) => kind,
            Self::Declared(kind) => kind,
        }
    }
}
