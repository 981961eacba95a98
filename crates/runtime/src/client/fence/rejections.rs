//! Reports of the fencing policy's rejections, from the fence to the election.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The last rejection that the election has not handled yet.
#[derive(Debug, Default)]
pub(crate) struct RejectionReports {
    /// The policy's message.
    message: Mutex<String>,
    reported: Notify,
}

impl RejectionReports {
    /// Reports a rejection with the policy's message. It replaces an earlier rejection that was not handled.
    pub(super) fn report(&self, message: &str) {
        message.clone_into(&mut self.message.lock());
        self.reported.notify_one();
    }

    /// Waits for a rejection, and returns the policy's message. May be cancelled and called again.
    pub(crate) async fn next(&self) -> String {
        self.reported.notified().await;
        std::mem::take(&mut self.message.lock())
    }
}
