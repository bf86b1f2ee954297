//! The words of enums: in the tables, the API, the command line and the logs.

/// Give each variant of an enum its word: `ALL`, `as_str`, `from_word` and `Display`.
#[macro_export]
#[doc(hidden)]
macro_rules! words {
    ($type:ident { $($variant:ident => $word:literal),+ $(,)? }) => {
        impl $type {
            /// All variants.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Return the word used in the tables, the API and the logs.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// Return the variant of this word, if there is one.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.as_str() == word)
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Display};

    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use crate::*;

    /// Check that a word reads back, and that serde has the same one.
    fn check<T: Copy + Debug + PartialEq + Display + Serialize + DeserializeOwned>(
        all: &[T],
        from_word: impl Fn(&str) -> Option<T>,
    ) {
        for one in all {
            let word = one.to_string();
            assert_eq!(from_word(&word), Some(*one));
            assert_eq!(serde_json::to_value(one).unwrap(), *word);
            assert_eq!(serde_json::from_value::<T>(word.into()).unwrap(), *one);
        }
        assert!(from_word("nothing").is_none());
    }

    #[test]
    fn words_read_back_and_are_those_of_serde() {
        check(&State::ALL, State::from_word);
        check(&Verdict::ALL, Verdict::from_word);
        check(&DeadLetterStatus::ALL, DeadLetterStatus::from_word);
        check(&OperationState::ALL, OperationState::from_word);
        check(&Action::ALL, Action::from_word);
        check(&Misfire::ALL, Misfire::from_word);
        check(&Overlap::ALL, Overlap::from_word);
        check(&Dst::ALL, Dst::from_word);
        check(&SharedBy::ALL, SharedBy::from_word);
        check(&OnParentFailure::ALL, OnParentFailure::from_word);
        check(&WaitCause::ALL, WaitCause::from_word);
    }
}
