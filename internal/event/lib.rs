//! The typed bus: events of this process for listeners in the same process. The tests use it too: they wait for an
//! event with a deadline, not for a fixed time.

use tokio::sync::broadcast;

use tickr_job::{JobId, Name, SkipCause, State, Timestamp, Verdict};

/// Number of events that a slow listener may fall behind before it misses some. No listener depends on seeing every
/// event.
const CAPACITY: usize = 4_096;

/// An event in this process.
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
        /// Verdict of the attempt.
        verdict: Verdict,
        /// New state of the job.
        state: State,
    },
    /// An attempt was left to another system, which finishes it.
    Deferred {
        /// The job.
        id: JobId,
    },
    /// An attempt could not be settled, because its lease was lost.
    LeaseLost {
        /// The job.
        id: JobId,
    },
    /// A cancel of an executing job was requested. The job may run on any runner.
    CancelRequested {
        /// The job.
        id: JobId,
    },
    /// A waiting job was cancelled by this process.
    Cancelled {
        /// The job.
        id: JobId,
    },
    /// A waiting job has another due time or priority: by a retry, a run-now or a change through this process.
    Rescheduled {
        /// The job.
        id: JobId,
    },
    /// The reaper of this process ended attempts of a dead runner.
    Reaped {
        /// Number of attempts.
        attempts: usize,
    },
    /// The reconciler rebuilt the index from the store.
    Rebuilt {
        /// Number of jobs put into the index.
        jobs: usize,
    },
    /// The condition of the index changed, as this process sees it.
    IndexHealth(Health),
    /// The priority or the limit of a queue was changed through this process.
    QueueChanged(SettingChanged),
    /// A queue was paused, or got another pause reason, through this process.
    QueuePaused(SettingChanged),
    /// A queue was resumed through this process.
    QueueResumed(SettingChanged),
    /// A schedule was created or changed through this process.
    SchedulePut(SettingChanged),
    /// A schedule was paused through this process.
    SchedulePaused(SettingChanged),
    /// A schedule was resumed through this process.
    ScheduleResumed(SettingChanged),
    /// A schedule was deleted through this process.
    ScheduleDeleted {
        /// The schedule.
        name: Name,
    },
    /// This process recorded a tick of a schedule: it fired, by the clock or a trigger, or ticks were skipped.
    ScheduleTicked {
        /// The schedule.
        name: Name,
        /// Due time of the tick; of the first one if there are several.
        due_at: Timestamp,
        /// The job, if the tick fired.
        job: Option<JobId>,
        /// The reason why it did not fire; absent if it fired.
        cause: Option<SkipCause>,
        /// Number of ticks that share the record.
        ticks: u32,
    },
    /// The process is stopping: it fetches nothing new from here on.
    RunnerStopping,
}

/// The settings of a queue or a schedule, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingChanged {
    /// The queue or the schedule.
    pub name: Name,
    /// Version of the settings: the API's ETag without the quotes. It differs after each change.
    pub version: String,
    /// True if the queue or schedule is paused.
    pub paused: bool,
}

impl Event {
    /// Return the job of the event, if it has one.
    #[must_use]
    pub const fn job(&self) -> Option<JobId> {
        match self {
            Self::Accepted { id }
            | Self::Started { id, .. }
            | Self::Settled { id, .. }
            | Self::Deferred { id }
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
            | Self::RunnerStopping => None,
        }
    }
}

/// The condition of the index. Jobs run in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Redis answers and is complete.
    Fast,
    /// Redis answers, and is being filled from the store.
    Rebuilding,
    /// Redis does not answer: the fetcher reads due work from the store.
    Degraded,
}

impl Health {
    /// Return the word for readiness, metrics and logs.
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
    /// Cancel requests, for the runner. A separate channel, so that other events do not wake it.
    cancels: broadcast::Sender<JobId>,
}

impl Default for Events {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(CAPACITY), cancels: broadcast::Sender::new(CAPACITY) }
    }
}

impl Events {
    /// Send an event to all listeners.
    pub fn emit(&self, event: Event) {
        // An error means that there is no listener, which is permitted.
        if let Event::CancelRequested { id } = event {
            let _ = self.cancels.send(id);
        }
        if self.sender.receiver_count() > 0 {
            let _ = self.sender.send(event);
        }
    }

    /// Subscribe to cancel requests only.
    #[must_use]
    pub fn cancels(&self) -> broadcast::Receiver<JobId> {
        self.cancels.subscribe()
    }

    /// Subscribe to all events from now on.
    #[must_use]
    pub fn listen(&self) -> broadcast::Receiver<Event> {
        self.sender.subscribe()
    }
}
