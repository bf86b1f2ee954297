//! What is checked, each under a name of its own.

use serde::Serialize;

/// One promise that the tables can prove or disprove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// Every job is owed, or the last line of its ledger ends it.
    Lost,
    /// Nothing is owed and nothing was done for a job that was never asked for; copies say what was asked.
    Strange,
    /// Executing means exactly one open attempt, with its runner, token and lease; not executing means none.
    OpenAttempt,
    /// The lines of a ledger are numbered from one without gaps, and the owed row has counted them all.
    Contiguous,
    /// No attempt of a job began before the one before it had ended.
    Overlap,
    /// Completed means that the last attempt succeeded, and only that one.
    Completed,
    /// No attempt began before it was due, or before its job was accepted.
    Early,
    /// Burned attempts are counted right and within `max_attempts`, and losses and snoozes within their bounds.
    Bounded,
    /// A job failed only when its attempts were spent or its failure was permanent.
    Failed,
    /// Each failed job has a dead letter, no other has one, and a replay is linked both ways.
    DeadLetter,
    /// A job was cancelled only when somebody had asked for it.
    Cancelled,
    /// An end is followed only by an operator's retry, never after a success.
    Final,
    /// At most one unfinished job for each key of a kind, and no key held for nobody.
    UniqueKey,
    /// Jobs that were accepted together are all there.
    Batch,
    /// A tick of a schedule that fired has its job.
    Tick,
    /// Jobs that ended were counted when they ended.
    Counted,
    /// No lease ran out long ago without anybody ending its attempt.
    Abandoned,
    /// No job is overdue that nobody is going to start.
    Overdue,
    /// The index knows every job that is due within its horizon.
    IndexMissing,
    /// The index schedules nothing that does not wait.
    IndexExtra,
    /// The index has the due time that the store has.
    IndexScore,
}

impl Check {
    /// Every check, in the order of a report.
    pub const ALL: [Self; 21] = [
        Self::Lost,
        Self::Strange,
        Self::OpenAttempt,
        Self::Contiguous,
        Self::Overlap,
        Self::Completed,
        Self::Early,
        Self::Bounded,
        Self::Failed,
        Self::DeadLetter,
        Self::Cancelled,
        Self::Final,
        Self::UniqueKey,
        Self::Batch,
        Self::Tick,
        Self::Counted,
        Self::Abandoned,
        Self::Overdue,
        Self::IndexMissing,
        Self::IndexExtra,
        Self::IndexScore,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Strange => "strange",
            Self::OpenAttempt => "open_attempt",
            Self::Contiguous => "contiguous",
            Self::Overlap => "overlap",
            Self::Completed => "completed",
            Self::Early => "early",
            Self::Bounded => "bounded",
            Self::Failed => "failed",
            Self::DeadLetter => "dead_letter",
            Self::Cancelled => "cancelled",
            Self::Final => "final",
            Self::UniqueKey => "unique_key",
            Self::Batch => "batch",
            Self::Tick => "tick",
            Self::Counted => "counted",
            Self::Abandoned => "abandoned",
            Self::Overdue => "overdue",
            Self::IndexMissing => "index_missing",
            Self::IndexExtra => "index_extra",
            Self::IndexScore => "index_score",
        }
    }

    /// The guarantee that it belongs to.
    #[must_use]
    pub const fn guarantee(self) -> &'static str {
        match self {
            Self::Lost | Self::Strange | Self::Tick | Self::Counted => "G2",
            Self::Abandoned | Self::Overdue | Self::IndexMissing | Self::IndexExtra | Self::IndexScore => "G3",
            Self::OpenAttempt | Self::Overlap => "G4",
            Self::Contiguous | Self::Bounded | Self::Failed | Self::DeadLetter => "G5",
            Self::Completed | Self::Final => "G6",
            Self::Early => "G7",
            Self::UniqueKey | Self::Batch => "G8",
            Self::Cancelled => "G9",
        }
    }

    /// What holds when it finds nothing, in one sentence for people.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Lost => "every job is owed or has ended",
            Self::Strange => "nothing is owed or was done that was not asked for",
            Self::OpenAttempt => "executing means exactly one open attempt, with its token",
            Self::Contiguous => "attempts are numbered without gaps",
            Self::Overlap => "no two attempts of a job at the same time",
            Self::Completed => "completed means that the last attempt succeeded, and only that one",
            Self::Early => "no attempt began before it was due",
            Self::Bounded => "attempts, losses and snoozes are counted and within their bounds",
            Self::Failed => "a job failed only when spent or permanently",
            Self::DeadLetter => "each failed job has a dead letter, and replays are linked both ways",
            Self::Cancelled => "a job was cancelled only when asked to",
            Self::Final => "an end is followed only by an operator's retry",
            Self::UniqueKey => "one unfinished job for each unique key",
            Self::Batch => "batches are whole",
            Self::Tick => "a tick that fired has its job",
            Self::Counted => "jobs that ended were counted",
            Self::Abandoned => "no lease ran out without consequences",
            Self::Overdue => "nothing is overdue that nobody will start",
            Self::IndexMissing => "the index knows what is due within its horizon",
            Self::IndexExtra => "the index schedules nothing that does not wait",
            Self::IndexScore => "the index has the store's due times",
        }
    }

    /// Is it about Redis, and cannot be made while Redis is out?
    #[must_use]
    pub const fn needs_index(self) -> bool {
        matches!(self, Self::IndexMissing | Self::IndexExtra | Self::IndexScore)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_serde_writes_and_differ() {
        for check in Check::ALL {
            assert_eq!(serde_json::to_value(check).unwrap(), check.as_str());
        }
        let names: std::collections::BTreeSet<&str> = Check::ALL.iter().map(|check| check.as_str()).collect();
        assert_eq!(names.len(), Check::ALL.len());
    }
}
