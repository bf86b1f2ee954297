//! The permissions of an API key.

use std::fmt;

/// The permissions of an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Read everything, change nothing.
    Read,
    /// Enqueue jobs, and read a job by its id. No listings: a producer need not see the jobs of other producers.
    Enqueue,
    /// All requests.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 3] = [Self::Read, Self::Enqueue, Self::Admin];

    /// Return the word used in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Enqueue => "enqueue",
            Self::Admin => "admin",
        }
    }

    /// Return the scope of this word, if there is one.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == word)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
