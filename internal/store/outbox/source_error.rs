//! Errors of the outbox of an application, in words for its operator.

use crate::sql::error::number;

/// The outbox of an application cannot be used now. The text says what is wrong and how to correct it. It contains
/// neither the URL nor the password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct SourceError {
    text: String,
    number: Option<u16>,
}

impl SourceError {
    /// Make the error for a URL that cannot be read.
    pub(super) fn url() -> Self {
        Self::form("the url is not mysql://user:password@host:port/database")
    }

    /// Make the error for a table of the wrong form.
    pub(super) fn form(problem: &str) -> Self {
        Self { text: format!("the table tickr_outbox cannot be used: {problem}"), number: None }
    }

    /// Make the error for an error of the driver.
    pub(super) fn of(attempted: &'static str, error: &sqlx::Error) -> Self {
        let number = number(error);
        let text = match number.and_then(advice) {
            Some(advice) => format!("cannot {attempted}: {advice} ({error})"),
            None => format!("cannot {attempted}: {error}"),
        };
        Self { text, number }
    }

    /// Return true if the statement waited for a lock in vain.
    pub(super) fn is_lock_wait(&self) -> bool {
        self.number == Some(1205)
    }
}

/// Return what the operator has to do about an error of the server.
const fn advice(number: u16) -> Option<&'static str> {
    Some(match number {
        1146 => "the table tickr_outbox is missing; `tickr outbox schema` prints the statement that makes it",
        1054 => "a column is missing; `tickr outbox schema` prints all that are needed",
        1176 => "the table has no primary key; it must be the column id",
        1044 | 1142 | 1143 => "the account lacks a right; GRANT SELECT, DELETE on the table tickr_outbox",
        1045 | 1130 | 1698 => "the server refuses the account or its password",
        1049 => "the database is missing",
        1290 | 1792 | 1836 => "the server only reads, as a replica does; name the primary",
        1665 => "the binlog_format of the server is STATEMENT; set it to ROW or MIXED",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_a_number_says_what_was_attempted() {
        let error = SourceError::of("connect", &sqlx::Error::Io(std::io::ErrorKind::ConnectionRefused.into()));
        assert!(error.to_string().starts_with("cannot connect: "), "{error}");
        assert!(!error.is_lock_wait());
    }
}
