//! Writes in flight. The leader releases the Lease only after all of them have ended.
//!
//! A write ends with its response. If no response arrives, it ends after the kernel's delivery timeout plus the `timeout=` of
//! the request: by then the API server has dropped it.
//!
//! Exception: an API server that was frozen counts from its thaw, and may then carry out a write that this module no longer
//! tracks. The consequences are in docs/design.md, "Limits".

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// Writes in flight of one replica. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Longest delivery time of a write.
    way: Duration,
    state: Mutex<State>,
    answered: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// End of each write if no response arrives.
    open: HashMap<u64, Instant>,
}

/// Write in flight, from its admission on.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    id: u64,
    writes: Writes,
    limit: Duration,
}

impl Writes {
    /// Creates an empty set. `way` is the longest delivery time of a write.
    pub(crate) fn new(way: Duration) -> Self {
        let shared = Shared {
            way,
            ..Shared::default()
        };
        Self(Arc::new(shared))
    }

    /// Records a new write, which the API server drops after `limit`.
    pub(crate) fn begin(&self, limit: Duration) -> Write {
        let mut state = self.0.state.lock();
        let now = Instant::now();
        state.open.retain(|_, over| *over > now);
        state.next += 1;
        let write = Write {
            id: state.next,
            writes: self.clone(),
            limit,
        };
        state.open.insert(write.id, write.over_at(now));
        write
    }

    /// Waits until no write is in flight.
    pub(crate) async fn over(&self) {
        loop {
            let answered = self.0.answered.notified();
            let now = Instant::now();
            let open = self.0.state.lock().open.values().copied().max();
            match open.filter(|over| *over > now) {
                None => return,
                Some(over) => tokio::select! {
                    biased;
                    () = answered => {}
                    () = sleep_until(over) => {}
                },
            }
        }
    }
}

impl Write {
    /// Restarts the time of the write when it is handed to its connection.
    pub(crate) fn sent(&self) {
        let over = self.over_at(Instant::now());
        if let Some(at) = self.writes.0.state.lock().open.get_mut(&self.id) {
            *at = over;
        }
    }

    /// Ends the write: its response has arrived, or it was never sent.
    pub(crate) fn over(&self) {
        self.writes.0.state.lock().open.remove(&self.id);
        self.writes.0.answered.notify_waiters();
    }

    /// Returns the end of a write sent at `sent`. The API server counts the limit from the arrival.
    fn over_at(&self, sent: Instant) -> Instant {
        sent + self.writes.0.way + self.limit
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(8);
    const WAY: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn a_write_ends_with_its_response_or_when_the_api_server_drops_it() {
        let writes = Writes::new(WAY);
        let begun = Instant::now();
        writes.over().await;
        assert_eq!(begun.elapsed(), Duration::ZERO, "there are none");

        let (answered, abandoned) = (writes.begin(LIMIT), writes.begin(LIMIT));
        sleep_until(begun + LIMIT).await;
        abandoned.sent();
        drop(abandoned);
        answered.over();
        assert!(timeout(LIMIT, writes.over()).await.is_err());
        writes.over().await;
        assert_eq!(
            begun.elapsed(),
            LIMIT * 2 + WAY,
            "counted from when it was sent"
        );

        let last = writes.begin(LIMIT);
        let wait = tokio::spawn({
            let writes = writes.clone();
            async move { writes.over().await }
        });
        tokio::task::yield_now().await;
        last.over();
        assert!(timeout(Duration::from_millis(1), wait).await.is_ok());
    }
}
