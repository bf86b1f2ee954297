//! The alarm clock of the scheduler and of the ticker, exact to a fraction of a millisecond.
//!
//! Tokio's timers count whole milliseconds and round up twice: once in the timer wheel and once in the wait for the
//! network during which the runtime sleeps. A job would start one or two milliseconds late only because of that. Here a
//! thread waits on a condition variable, which the kernel's own clock wakes. Each alarm has one such thread, which
//! sleeps nearly always, and one loop that sets it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::Notify;

/// An alarm clock for one waiting loop. Dropping it ends its thread.
pub(super) struct Alarm {
    state: Arc<AlarmState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct AlarmState {
    set: Mutex<AlarmSetting>,
    changed: Condvar,
    rings: Notify,
}

/// State of the clock.
#[derive(Clone, Copy, Default)]
enum AlarmSetting {
    #[default]
    Nothing,
    At(Instant),
    Ended,
}

impl Alarm {
    /// Start the thread.
    pub(super) fn start() -> std::io::Result<Self> {
        let state = Arc::new(AlarmState::default());
        let watched = Arc::clone(&state);
        let thread = std::thread::Builder::new().name("alarm".to_owned()).spawn(move || watched.watch())?;
        Ok(Self { state, thread: Some(thread) })
    }

    /// Wait for this moment. A caller that drops the wait may start another one.
    pub(super) async fn at(&self, moment: Instant) {
        self.state.set(AlarmSetting::At(moment));
        // Compare with the clock after each ring: it may be an old one from a wait that was dropped.
        while Instant::now() < moment {
            self.state.rings.notified().await;
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.state.set(AlarmSetting::Ended);
        // The thread cannot panic, so its result is of no interest.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl AlarmState {
    fn lock(&self) -> MutexGuard<'_, AlarmSetting> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, to: AlarmSetting) {
        *self.lock() = to;
        self.changed.notify_one();
    }

    fn watch(&self) {
        let mut set = self.lock();
        loop {
            set = match *set {
                AlarmSetting::Ended => return,
                AlarmSetting::Nothing => self.changed.wait(set).unwrap_or_else(PoisonError::into_inner),
                AlarmSetting::At(moment) => match moment.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => {
                        self.changed.wait_timeout(set, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                    _ => {
                        *set = AlarmSetting::Nothing;
                        self.rings.notify_one();
                        set
                    }
                },
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn it_rings_at_its_moment_however_often_it_is_set() {
        let alarm = Alarm::start().unwrap();
        let never =
            tokio::time::timeout(Duration::from_millis(5), alarm.at(Instant::now() + Duration::from_secs(3_600)));
        assert!(never.await.is_err());
        // This wait is dropped before it rings, unless the machine is busy for three milliseconds.
        let dropped = tokio::time::timeout(Duration::ZERO, alarm.at(Instant::now() + Duration::from_millis(3)));
        let _ = dropped.await;
        for ms in [20, 0, 5] {
            let moment = Instant::now() + Duration::from_millis(ms);
            tokio::time::timeout(Duration::from_secs(60), alarm.at(moment)).await.expect("it rings");
            assert!(Instant::now() >= moment);
        }
    }

    #[test]
    fn its_thread_ends_with_it() {
        let alarm = Alarm::start().unwrap();
        let state = Arc::downgrade(&alarm.state);
        drop(alarm);
        assert!(state.upgrade().is_none());
    }
}
