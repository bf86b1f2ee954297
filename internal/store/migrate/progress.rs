//! Where a migration tells what it is doing.

use tokio::sync::watch;

/// Where a migration tells what it is doing.
pub(super) struct Progress<'a>(pub(super) &'a watch::Sender<String>);

impl Progress<'_> {
    pub(super) fn tell(&self, words: impl Into<String>) {
        self.0.send_replace(words.into());
    }
}
