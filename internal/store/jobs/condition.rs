//! Preconditions of a change, so that a client does not overwrite a change that it has not seen.

/// The precondition of a change. `V` identifies one version of the thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition<V> {
    /// No precondition.
    Any,
    /// The thing must not exist.
    Absent,
    /// The thing must exist, in any version.
    Present,
    /// The thing must exist in one of these versions.
    OneOf(Vec<V>),
}

impl<V: PartialEq> Condition<V> {
    /// Return true if the precondition holds for the version that was found.
    pub(crate) fn is_met_by(&self, found: Option<V>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => found.is_none(),
            Self::Present => found.is_some(),
            Self::OneOf(tags) => found.is_some_and(|found| tags.contains(&found)),
        }
    }
}
