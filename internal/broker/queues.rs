//! Changes of queues by operators. MySQL stores the settings of a queue, each process keeps a copy, and every change is
//! an event.

use async_recursion::async_recursion as boxed;

use super::Broker;
use tickr_event::{Event, SettingChanged};
use tickr_job::{Actor, Name};
use tickr_store::{Condition, PauseRequest, QueueChange, QueueChangeOutcome, StoreError};

impl Broker {
    /// Change the settings of a queue, if `condition` holds for its version. A queue without settings has version 0.
    ///
    /// # Errors
    /// When MySQL cannot be reached or refuses.
    #[boxed]
    pub async fn change_queue(
        &self,
        name: &Name,
        change: QueueChange,
        condition: Condition<u32>,
        by: &Actor,
    ) -> Result<QueueChangeOutcome, StoreError> {
        let event = match change.pause {
            Some(PauseRequest::Yes(_)) => Event::QueuePaused,
            Some(PauseRequest::No) => Event::QueueResumed,
            None => Event::QueueChanged,
        };
        let changed = self.store.change_queue(name, change, condition, by).await?;
        if let QueueChangeOutcome::Done(set) = &changed {
            let (name, version) = (set.name.clone(), set.version.to_string());
            self.events.emit(event(SettingChanged { name, version, paused: set.pause.is_some() }));
        }
        Ok(changed)
    }
}
