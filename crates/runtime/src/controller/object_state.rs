//! The state of one object for `/debug/state`: the records that delay or skip its writes.

use super::{
    object_reconciler::{ObjectReconciler, elsewhere},
    queue::lane::{KeyState, Lane},
    work_queue::WorkQueue,
};
use crate::{
    api::{key::Key, object::Cached as _, panic::catch},
    cache::store::{Freshness, Snapshot},
    reconcile::reconciler::Reconciler,
    telemetry::{
        object_state::{
            BACKOFF, CHANGE_LIMIT, CachedObject, DEFERRED_CHANGES, FRESHNESS, INSTALLATION,
            LEAST_DELAY, ObjectWork, PAUSED, QueuedObject, READINESS, Record, SLOW_NAMESPACE,
            UNREAD, UP_TO_DATE,
        },
        state::seconds,
    },
};

impl<R: Reconciler> ObjectReconciler<R> {
    /// Returns the state of one object, or the reason if this replica does not have the object.
    pub(super) fn object_state(
        &self,
        key: &Key,
        work_queue: Option<&WorkQueue>,
    ) -> Result<ObjectWork, String> {
        let (kind, objects) = (R::Primary::KIND, self.primary.store());
        let Some((is_in_sync, problem)) = self.scopes.state_of(self.controller, key) else {
            let namespace = key.namespace();
            return Err(format!(
                "namespace {namespace} is not in the setting namespaces"
            ));
        };
        let seen = objects.get(key);
        if seen.is_none() && is_in_sync {
            let problem = problem.map(|problem| format!(": {problem}"));
            let problem = problem.unwrap_or_default();
            let label = objects
                .installation_label()
                .filter(|_| !objects.is_served(key));
            let label = label.map(|(label, value)| {
                format!(", which contains only objects with the label {label}={value}")
            });
            let only = label.unwrap_or_default();
            return Err(format!(
                "no {} {key} in the cache{only}{problem}",
                kind.kind
            ));
        }
        let mut records: Vec<_> = problem
            .map(|it| Record::new(READINESS, it))
            .into_iter()
            .collect();
        let queue = work_queue.map(|work_queue| work_queue.object_state(key, &mut records));
        let cached = seen.map(|seen| {
            let freshness = objects.standing(key);
            let other = seen.other_installation();
            records.extend(other.map(|it| Record::new(INSTALLATION, elsewhere(it))));
            records.extend(doubt(freshness));
            records.extend(seen.is_paused().then(|| Record::new(PAUSED, self.words())));
            let own = catch(&kind, "Reconciler::why", || self.reconciler.why(key));
            let own = own.unwrap_or_default().into_iter();
            records.extend(own.map(|(name, text)| Record::new(name, text)));
            let holds = catch(&kind, "Cached::references", || self.holds(key, &seen));
            records.extend(holds.unwrap_or_default());
            CachedObject {
                resource_version: seen.version.to_string(),
                freshness: word(freshness).to_owned(),
            }
        });
        Ok(ObjectWork {
            kind: kind.kind,
            key: key.clone(),
            cached,
            queue,
            records,
        })
    }

    /// Returns the records of earlier writes and of the last resync.
    fn holds(&self, key: &Key, seen: &Snapshot<R::Primary>) -> Vec<Record> {
        let mut records = self.informers.holds(key, &seen.view);
        if seen.is_served() && self.informers.awaits_content(key, &seen.view) {
            let text = "waiting for the content of a referenced object; failed reads are logged";
            records.push(Record::new(UNREAD, text));
        }
        records.extend(self.primary.history.status_holds(key, seen));
        if self.is_noted_up_to_date(key) {
            let text = "nothing to write: a resync skips it until it or a related object changes";
            records.push(Record::new(UP_TO_DATE, text));
        }
        records
    }
}

impl WorkQueue {
    /// Returns the place of an object in the queue, and adds the queue's records to `records`.
    fn object_state(&self, key: &Key, records: &mut Vec<Record>) -> QueuedObject {
        let state = self.queue.key_state(key);
        let failed = self.failures.last(key);
        let KeyState {
            lane,
            delay,
            in_work,
            attempts,
            ..
        } = state;
        let mut add = |name, text: String, left: Option<_>| {
            let ends_in_seconds = left.map(seconds);
            records.push(Record {
                ends_in_seconds,
                ..Record::new(name, text)
            });
        };
        if state.least.is_some() {
            let text = "the Retry-After of the API server: no change shortens it";
            add(LEAST_DELAY, text.into(), state.least);
        }
        if state.change_limit.is_some() {
            let text = "changes have enqueued it 20 times in a burst, so now once per second";
            add(CHANGE_LIMIT, text.into(), state.change_limit);
        }
        if state.is_retry {
            let text = match &failed {
                Some((reason, error)) => {
                    format!(
                        "{} in a row failed, last {reason}: {error}",
                        attempts.max(1)
                    )
                }
                None => format!("retry {}", attempts.max(1)),
            };
            add(BACKOFF, text, delay);
        }
        if state.has_deferred {
            let text = "changes that keep the spec wait for the retry: ten bypassed it in a row";
            add(DEFERRED_CHANGES, text.into(), None);
        }
        if state.is_slow {
            let place = key.namespace_if_any();
            let place = place.map_or(String::new(), |place| format!(" in namespace {place}"));
            let text = format!("requests{place} hang: separate workers");
            add(SLOW_NAMESPACE, text, None);
        }
        let (last_reason, last_error) = failed.unzip();
        QueuedObject {
            lane: lane.map(|lane| Lane::name(lane).to_owned()),
            delayed_for_seconds: delay.map(seconds),
            in_work_for_seconds: in_work.map(seconds),
            attempts,
            last_reason: last_reason.map(str::to_owned),
            last_error,
        }
    }
}

fn word(freshness: Freshness) -> &'static str {
    match freshness {
        Freshness::Fresh => "fresh",
        Freshness::Conflicted => "conflicted",
        Freshness::Stale => "stale",
    }
}

fn doubt(freshness: Freshness) -> Option<Record> {
    let text = match freshness {
        Freshness::Fresh => return None,
        Freshness::Conflicted => "a write had a conflict: the watch is behind",
        Freshness::Stale => "a response shows another object or spec than the cache",
    };
    Some(Record::new(
        FRESHNESS,
        format!("{text}; it is read live before its next reconcile"),
    ))
}
