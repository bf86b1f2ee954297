//! The checks, each with a name.

use serde::Serialize;

/// One guarantee that the tables can prove or disprove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// Every job is unfinished, or its last attempt row ends it.
    Lost,
    /// No unfinished row and no attempt belongs to a job that was never requested; copied columns match the request.
    Strange,
    /// An executing job has exactly one open attempt, with its runner, token and lease; any other job has none.
    OpenAttempt,
    /// The attempt rows of a job are numbered from one without gaps, and the owed row has counted them all.
    Contiguous,
    /// No attempt of a job began before the previous one had ended.
    Overlap,
    /// The last attempt of a completed job succeeded, and only that one.
    Completed,
    /// No attempt began before it was due, or before its job was accepted.
    Early,
    /// The attempts used are counted correctly and within `max_attempts`; losses and snoozes are within their limits.
    Bounded,
    /// A job failed only if its attempts were used up or its failure was permanent.
    Failed,
    /// Each failed job has a dead letter, no other job has one, and a replay is linked in both directions.
    DeadLetter,
    /// A job was cancelled only after a request.
    Cancelled,
    /// Only an operator's retry follows an end state, and never after a success.
    Final,
    /// At most one unfinished job exists for each unique key of a kind, and each unique key held belongs to such a job.
    UniqueKey,
    /// Of the jobs with one order key the one at the head may run, every other one is held, and they ran in their order.
    Order,
    /// No limit by key is exceeded, and each parked job waits for a limit.
    Limit,
    /// No job started before one of its parents had ended, and each job that waits for parents has one to wait for.
    Parents,
    /// The counts of a batch fit its jobs, and the end of a batch started its callbacks.
    BatchEnd,
    /// All jobs that were accepted together exist.
    Batch,
    /// Every tick of a schedule that fired has its job.
    Tick,
    /// Every ended job was counted at its end.
    Counted,
    /// Every lease that expired long ago led to the end of its attempt.
    Abandoned,
    /// No remote worker that has left, and no runner without a row, holds an attempt whose lease expired long ago.
    Departed,
    /// Every overdue job will be started by a runner.
    Overdue,
    /// The index has every job that is due within its horizon.
    IndexMissing,
    /// The index schedules only waiting jobs.
    IndexExtra,
    /// The index and the store have the same due times.
    IndexScore,
}

impl Check {
    /// All checks, in the order of a report.
    pub const ALL: [Self; 26] = [
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
        Self::Order,
        Self::Limit,
        Self::Parents,
        Self::BatchEnd,
        Self::Batch,
        Self::Tick,
        Self::Counted,
        Self::Abandoned,
        Self::Departed,
        Self::Overdue,
        Self::IndexMissing,
        Self::IndexExtra,
        Self::IndexScore,
    ];

    /// Return the name used in reports.
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
            Self::Order => "order",
            Self::Limit => "limit",
            Self::Parents => "parents",
            Self::BatchEnd => "batch_end",
            Self::Batch => "batch",
            Self::Tick => "tick",
            Self::Counted => "counted",
            Self::Abandoned => "abandoned",
            Self::Departed => "departed",
            Self::Overdue => "overdue",
            Self::IndexMissing => "index_missing",
            Self::IndexExtra => "index_extra",
            Self::IndexScore => "index_score",
        }
    }

    /// Return the guarantee that the check belongs to.
    #[must_use]
    pub const fn guarantee(self) -> &'static str {
        match self {
            Self::Lost | Self::Strange | Self::Tick | Self::Counted | Self::BatchEnd => "G2",
            Self::Abandoned | Self::Departed | Self::Overdue => "G3",
            Self::IndexMissing | Self::IndexExtra | Self::IndexScore => "G3",
            Self::OpenAttempt | Self::Overlap | Self::Order | Self::Limit | Self::Parents => "G4",
            Self::Contiguous | Self::Bounded | Self::Failed | Self::DeadLetter => "G5",
            Self::Completed | Self::Final => "G6",
            Self::Early => "G7",
            Self::UniqueKey | Self::Batch => "G8",
            Self::Cancelled => "G9",
        }
    }

    /// Return the guarantee in one sentence for people. It holds if the check finds nothing.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Lost => "every job is unfinished or has ended",
            Self::Strange => "every unfinished job and every attempt belongs to a requested job",
            Self::OpenAttempt => "an executing job has exactly one open attempt, with its token",
            Self::Contiguous => "attempts are numbered without gaps",
            Self::Overlap => "no two attempts of a job at the same time",
            Self::Completed => "the last attempt of a completed job succeeded, and only that one",
            Self::Early => "no attempt began before it was due",
            Self::Bounded => "attempts, losses and snoozes are counted correctly and within their limits",
            Self::Failed => "a job failed only after its last attempt or a permanent failure",
            Self::DeadLetter => "each failed job has a dead letter, and replays are linked in both directions",
            Self::Cancelled => "a job was cancelled only after a request",
            Self::Final => "only an operator's retry follows an end state",
            Self::UniqueKey => "at most one unfinished job for each unique key",
            Self::Order => "jobs with one order key run one at a time, in the order of their acceptance",
            Self::Limit => "no more jobs of a limit key run than its limit allows",
            Self::Parents => "no job started before its parents had ended",
            Self::BatchEnd => "the counts of batches fit their jobs, and their ends started the callbacks",
            Self::Batch => "jobs that were accepted together are complete",
            Self::Tick => "a tick that fired has its job",
            Self::Counted => "ended jobs were counted",
            Self::Abandoned => "every lease that expired led to the end of its attempt",
            Self::Departed => "no worker that has left still holds an attempt after its lease",
            Self::Overdue => "every overdue job will be started",
            Self::IndexMissing => "the index has every job that is due within its horizon",
            Self::IndexExtra => "the index schedules only waiting jobs",
            Self::IndexScore => "the index has the store's due times",
        }
    }

    /// Return true if the check needs Redis, so that it is impossible while Redis does not answer.
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
