//! What must be there for a change to be made, so that nobody overwrites unseen what somebody else changed.

/// What must be there for a change to be made. `V` tells one wording of a thing from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition<V> {
    /// Anything, or nothing.
    Any,
    /// Nothing.
    Absent,
    /// Something, whatever it says.
    Present,
    /// One of these wordings.
    OneOf(Vec<V>),
}

impl<V: PartialEq> Condition<V> {
    /// Does it hold for what was found?
    pub(super) fn holds(&self, found: Option<V>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => found.is_none(),
            Self::Present => found.is_some(),
            Self::OneOf(tags) => found.is_some_and(|found| tags.contains(&found)),
        }
    }
}
