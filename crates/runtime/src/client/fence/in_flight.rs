//! The writes that may still land: what a leader waits for before it gives the Lease to somebody else.
//!
//! A write is over when its answer has come. One that nobody waits for any more, because it was cut off or its
//! connection broke, is over when the API server has dropped it at the latest: when the `timeout=` that it was sent with
//! has passed since it arrived, which it does within the kernel's time for it or never (H19). That rests on an API server that
//! reads what its kernel has received: one that stood still counts from when it goes on, and may carry out then what nobody
//! waits for here. docs/design.md, "What it does not cover", says what that can do.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// The writes of one replica that may still land; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// How long a write may be on its way.
    way: Duration,
    state: Mutex<State>,
    answered: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// When each is over, if no answer comes.
    open: HashMap<u64, Instant>,
}

/// One write, from its permission on.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    id: u64,
    writes: Writes,
    limit: Duration,
}

impl Writes {
    /// No writes yet, each of which may be on its way for so long.
    pub(crate) fn new(way: Duration) -> Self {
        let shared = Shared {
            way,
            ..Shared::default()
        };
        Self(Arc::new(shared))
    }

    /// A write begins that the API server drops after `limit`.
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

    /// Waits until none can land any more.
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
    /// It is handed to its connection only now: its time counts from here.
    pub(crate) fn sent(&self) {
        let over = self.over_at(Instant::now());
        if let Some(at) = self.writes.0.state.lock().open.get_mut(&self.id) {
            *at = over;
        }
    }

    /// Its answer has come, or it was never sent.
    pub(crate) fn over(&self) {
        self.writes.0.state.lock().open.remove(&self.id);
        self.writes.0.answered.notify_waiters();
    }

    /// The API server counts from when it gets the write.
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
    async fn a_write_is_over_when_it_is_answered_or_the_api_server_has_dropped_it() {
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
