//! The typed bus: what happened, told to whoever listens inside this process. Also the tests' signal: they wait for an
//! event with a deadline, never for time to pass.

use tokio::sync::broadcast;

use crate::job::{JobId, Name, SkipCause, State, Timestamp, Verdict};

/// Events that a slow listener may fall behind before it misses some. Nothing depends on every event being seen.
const CAPACITY: usize = 4_096;

/// Something that happened in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A job was accepted and is durable.
    Accepted {
        /// The job.
        id: JobId,
    },
    /// An attempt was committed; its handler starts.
    Started {
        /// The job.
        id: JobId,
        /// Number of the execution.
        number: u32,
    },
    /// An attempt was settled by this process.
    Settled {
        /// The job.
        id: JobId,
        /// What the attempt came to.
        verdict: Verdict,
        /// The job's state now.
        state: State,
    },
    /// An attempt could not be settled, because its lease had been taken away.
    LeaseLost {
        /// The job.
        id: JobId,
    },
    /// A cancel was asked for while the job executes, here or elsewhere.
    CancelRequested {
        /// The job.
        id: JobId,
    },
    /// A waiting job was cancelled by this process.
    Cancelled {
        /// The job.
        id: JobId,
    },
    /// A job that waits has another due time or priority: by a retry, a run-now or a change through this process.
    Rescheduled {
        /// The job.
        id: JobId,
    },
    /// The reaper of this process ended attempts of a dead runner.
    Reaped {
        /// How many.
        attempts: usize,
    },
    /// The reconciler fed the index from the store.
    Rebuilt {
        /// Jobs it told the index about.
        jobs: usize,
    },
    /// The index changed its condition, as this process sees it.
    IndexHealth(Health),
    /// A queue has another priority or limit, by a change through this process.
    QueueChanged(Setting),
    /// A queue was paused through this process, or has another reason to be.
    QueuePaused(Setting),
    /// A queue goes on, as it was told through this process.
    QueueResumed(Setting),
    /// A schedule is new or asks for something else, as it was put through this process.
    SchedulePut(Setting),
    /// A schedule was paused through this process.
    SchedulePaused(Setting),
    /// A schedule goes on, as it was told through this process.
    ScheduleResumed(Setting),
    /// A schedule was deleted through this process.
    ScheduleDeleted {
        /// The schedule.
        name: Name,
    },
    /// This process wrote a line in the ledger of a schedule: it fired, by the clock or by hand, or passed ticks over.
    ScheduleTicked {
        /// The schedule.
        name: Name,
        /// When it was due; the first of several.
        due_at: Timestamp,
        /// The job, if it fired.
        job: Option<JobId>,
        /// Why it did not fire; none when it did.
        cause: Option<SkipCause>,
        /// How many ticks share the line.
        ticks: u32,
    },
    /// The process stops: nothing new is fetched from here on.
    Draining,
}

/// What operators set about a queue or a schedule, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The queue or the schedule.
    pub name: Name,
    /// Another one after each change of what is set, as the API has it in its ETag, without the quotes.
    pub version: String,
    /// Does it stand still?
    pub paused: bool,
}

impl Event {
    /// The job that it is about, if it is about one.
    #[must_use]
    pub const fn job(&self) -> Option<JobId> {
        match self {
            Self::Accepted { id }
            | Self::Started { id, .. }
            | Self::Settled { id, .. }
            | Self::LeaseLost { id }
            | Self::CancelRequested { id }
            | Self::Cancelled { id }
            | Self::Rescheduled { id } => Some(*id),
            Self::ScheduleTicked { job, .. } => *job,
            Self::Reaped { .. }
            | Self::Rebuilt { .. }
            | Self::IndexHealth(_)
            | Self::QueueChanged(_)
            | Self::QueuePaused(_)
            | Self::QueueResumed(_)
            | Self::SchedulePut(_)
            | Self::SchedulePaused(_)
            | Self::ScheduleResumed(_)
            | Self::ScheduleDeleted { .. }
            | Self::Draining => None,
        }
    }
}

/// The index's condition. Jobs run in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Redis answers and holds what it should.
    Fast,
    /// Redis answers; what it should hold is being fed from the store.
    Rebuilding,
    /// Redis does not answer: the fetcher reads due work from the store.
    Degraded,
}

impl Health {
    /// The word for readiness, metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Rebuilding => "rebuilding",
            Self::Degraded => "degraded",
        }
    }
}

/// The bus. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Events {
    sender: broadcast::Sender<Event>,
    /// Jobs that were asked to stop, for the runner, which need not be woken by everything that happens.
    cancels: broadcast::Sender<JobId>,
}

impl Default for Events {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(CAPACITY), cancels: broadcast::Sender::new(CAPACITY) }
    }
}

impl Events {
    /// Tell everybody who listens.
    pub fn emit(&self, event: Event) {
        // Nobody listening is fine.
        if let Event::CancelRequested { id } = event {
            let _ = self.cancels.send(id);
        }
        if self.sender.receiver_count() > 0 {
            let _ = self.sender.send(event);
        }
    }

    /// Listen for cancels alone.
    #[must_use]
    pub fn cancels(&self) -> broadcast::Receiver<JobId> {
        self.cancels.subscribe()
    }

    /// Listen from now on.
    #[must_use]
    pub fn listen(&self) -> broadcast::Receiver<Event> {
        self.sender.subscribe()
    }
}
