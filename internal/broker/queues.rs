//! Queues: set by operators, told to those who listen. What is set stands in the store; each process keeps a copy of it.

use super::Broker;
use crate::event::{Event, Setting};
use crate::job::{Actor, Name};
use crate::store::{Condition, Paused, QueueChange, QueueChanged, StoreError};

impl Broker {
    /// Change what is set about a queue, if the `condition` holds for its version: 0 for a queue without settings.
    ///
    /// # Errors
    /// When the store cannot be reached or refuses.
    pub async fn change_queue(
        &self,
        name: &Name,
        change: QueueChange,
        condition: Condition<u32>,
        by: &Actor,
    ) -> Result<QueueChanged, StoreError> {
        let event = match change.pause {
            Some(Paused::Yes(_)) => Event::QueuePaused,
            Some(Paused::No) => Event::QueueResumed,
            None => Event::QueueChanged,
        };
        let changed = self.store.change_queue(name, change, condition, by).await?;
        if let QueueChanged::Done(set) = &changed {
            let (name, version) = (set.name.clone(), set.version.to_string());
            self.events.emit(event(Setting { name, version, paused: set.pause.is_some() }));
        }
        Ok(changed)
    }
}
