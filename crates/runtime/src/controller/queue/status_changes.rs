//! Changes of failing objects that keep the spec, such as a status update.
//!
//! The reconcile itself may have caused such a change. If each failed attempt wrote a status with another error message, and each
//! change bypassed the backoff, the object would be retried without delay. So only [`BYPASSES`] attempts in a row bypass the
//! backoff. The limit applies to changes by any client, so the queue need not know their cause.

use std::{collections::HashMap, hash::Hash};

/// Maximum number of consecutive bypasses of the backoff.
pub(crate) const BYPASSES: u32 = 10;

/// Keys whose last attempt was a failure.
pub(super) struct StatusChanges<K>(HashMap<K, Changes>);

#[derive(Default)]
struct Changes {
    /// Consecutive failed attempts for which a change arrived: during the attempt, or since the previous one.
    attempts: u32,
    /// Whether a change arrived since the last attempt ended.
    has_changed: bool,
}

impl Changes {
    fn are_deferred(&self) -> bool {
        self.has_changed && self.attempts >= BYPASSES
    }
}

impl<K> Default for StatusChanges<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Clone + Eq + Hash> StatusChanges<K> {
    /// Whether the last attempt was a failure. Conflicts and postponed writes are not failures.
    pub(super) fn has_failed(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    /// Records a change. Returns whether it is deferred to the retry.
    pub(super) fn defer_to_retry(&mut self, key: &K) -> bool {
        self.0.get_mut(key).is_some_and(|changes| {
            changes.has_changed = true;
            changes.are_deferred()
        })
    }

    /// Whether a change waits for the retry.
    pub(super) fn are_deferred(&self, key: &K) -> bool {
        self.0.get(key).is_some_and(Changes::are_deferred)
    }

    /// Records an attempt that failed.
    pub(super) fn failed(&mut self, key: &K) {
        let changes = self.0.entry(key.clone()).or_default();
        let has_changed = std::mem::take(&mut changes.has_changed);
        changes.attempts = if has_changed {
            changes.attempts.saturating_add(1)
        } else {
            0
        };
    }

    /// Records an attempt that did not fail. Returns whether a change was deferred. The caller must then enqueue the key, because
    /// no failure causes the retry.
    pub(super) fn take_deferred(&mut self, key: &K) -> bool {
        self.0.remove(key).is_some_and(|it| it.are_deferred())
    }

    pub(super) fn forget(&mut self, key: &K) {
        self.0.remove(key);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
