//! Earlier writes, and the reasons for which another write of the same object waits or is skipped.
//!
//! Each method either answers one question about an object or records the outcome of one write. The records are kept per process.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use serde::Serialize;
use serde_json::Value;

use crate::{
    api::{
        key::Key,
        object::{Cached, Content, Finalizable, Primary, Says},
    },
    cache::store::{ListEpoch, Snapshot, Store},
    reconcile::writer::{
        disputes::{Desired, DisputeTracker, Requester, Wait},
        no_op::NoOpWrites,
    },
    telemetry::{
        object_state::{DISPUTE, NO_OP_WRITE, PENDING_DELETION, REJECTED_STATUS, Record},
        state::seconds,
    },
};

/// Version of a missing object. The API server never uses it.
pub(super) const ABSENT: u64 = 0;

/// Time for which a rejected status is not sent again while its object is unchanged. It equals the default of `backoff.max`.
/// After this time, the CRD may have changed.
const REJECTED: Duration = Duration::from_secs(1000);

/// Earlier writes of the objects of one resource type.
pub(crate) struct WriteHistory<V> {
    store: Arc<Store<V>>,
    disputes: DisputeTracker,
    /// Separate, because the status changes independently of the other fields.
    status_disputes: DisputeTracker,
    no_op_patches: NoOpWrites,
    no_op_statuses: NoOpWrites,
    no_op_finalizers: NoOpWrites,
    rejected_statuses: NoOpWrites,
}

impl<V: Cached> WriteHistory<V> {
    pub(crate) fn new(store: Arc<Store<V>>) -> Self {
        Self {
            store,
            disputes: DisputeTracker::default(),
            status_disputes: DisputeTracker::default(),
            no_op_patches: NoOpWrites::default(),
            no_op_statuses: NoOpWrites::default(),
            no_op_finalizers: NoOpWrites::default(),
            rejected_statuses: NoOpWrites::forgotten_after(REJECTED),
        }
    }

    /// Returns the delay of this write, if other clients revert it or the outcomes of earlier writes are unknown. `found` is the
    /// version of the object.
    pub(crate) fn delay(
        &self,
        key: &Key,
        by: Requester<'_>,
        write: Desired<'_>,
        found: u64,
    ) -> Option<Wait> {
        self.disputes.wait(key, by, write, found)
    }

    /// Records a write, with the versions of the object before and after. `left` is `None` if the outcome is unknown.
    pub(crate) fn record(
        &self,
        key: &Key,
        by: Requester<'_>,
        write: Desired<'_>,
        found: u64,
        left: Option<u64>,
    ) {
        let exists = self.exists();
        self.disputes.record(key, by, write, found, left, exists);
    }

    /// Whether this patch for the owner `by` is known to have no effect on the object in this state.
    pub(crate) fn is_no_op_patch(
        &self,
        key: &Key,
        by: Requester<'_>,
        seen: &V,
        patch: &Value,
    ) -> bool {
        let (patch, list) = (requested(by, patch), self.list(key));
        (self.no_op_patches).contains(key, patch, Content(seen), list)
    }

    /// Records the outcome of a patch that was sent after `list`: the resulting object `left`, and the fields that differ from the
    /// desired ones after it, if any. The next patch would contain only these fields. It is recorded if this one contained them
    /// too: admission may also change a field that was as desired.
    pub(crate) fn record_patch(
        &self,
        key: &Key,
        by: Requester<'_>,
        patch: &Value,
        left: &V,
        list: ListEpoch,
        overruled: Option<&Value>,
    ) {
        let patches = &self.no_op_patches;
        let Some(overruled) = overruled else {
            patches.forget_all(key);
            return;
        };
        let is_sent = is_part(overruled, patch);
        let asked = requested(by, if is_sent { overruled } else { patch });
        patches.record(key, asked, Content(left), list.list(), self.exists());
    }

    /// Returns the records that hold the writes of this object for the owner `by`.
    pub(crate) fn holds(&self, key: &Key, by: Requester<'_>) -> Vec<Record> {
        let object = format!("{} {key}", V::KIND.kind);
        let seen = self.store.get(key);
        let version = seen.as_ref().map_or(ABSENT, |seen| seen.version);
        let dispute = disputed(self.disputes.of(key, by, version), &object);
        let mut records: Vec<_> = dispute.into_iter().collect();
        let Some(seen) = seen else {
            return records;
        };
        let no_op = (self.no_op_patches).age(key, Content(&*seen.view), self.list(key));
        records.extend(no_op.map(|_| without_effect(&object)));
        if self.store.is_deletion_pending(key, seen.view.uid()) {
            let text = format!(
                "the deletion of {object} was accepted, but the watch has not delivered it"
            );
            records.push(Record::new(PENDING_DELETION, text));
        }
        records
    }

    /// Forgets the disputes of this object for the owner `by`, and its writes without effect.
    pub(crate) fn forget(&self, key: &Key, by: Requester<'_>) {
        for disputes in [&self.disputes, &self.status_disputes] {
            disputes.forget(key, by);
        }
        for writes in [
            &self.no_op_patches,
            &self.no_op_statuses,
            &self.no_op_finalizers,
            &self.rejected_statuses,
        ] {
            writes.forget_all(key);
        }
    }

    /// Returns a function that checks whether the store contains an object. It is used to remove the records of deleted objects.
    fn exists(&self) -> impl Fn(&Key) -> bool {
        |key| self.store.version(key).is_some()
    }

    fn list(&self, key: &Key) -> u32 {
        self.store.now(key).list()
    }
}

impl<P: Primary> WriteHistory<P> {
    /// Returns the delay of this status, if other clients revert it or the outcomes of earlier writes are unknown.
    pub(crate) fn status_delay(
        &self,
        key: &Key,
        by: Requester<'_>,
        status: &P::Status,
        found: &P::Status,
    ) -> Option<Wait> {
        let status = fingerprint_of::<P>(status);
        (self.status_disputes).wait(key, by, Desired::Fields(&status), Whole(found))
    }

    /// Records a write of the status, with the statuses before and after. `left` is `None` if the outcome is unknown.
    pub(crate) fn record_status_write(
        &self,
        key: &Key,
        by: Requester<'_>,
        status: &P::Status,
        found: &P::Status,
        left: Option<&P::Status>,
    ) {
        let (status, exists) = (fingerprint_of::<P>(status), self.exists());
        let (write, found, left) = (Desired::Fields(&status), Whole(found), left.map(Whole));
        (self.status_disputes).record(key, by, write, found, left, exists);
    }

    /// Whether this status is known to have no effect or to be rejected.
    pub(crate) fn is_futile_status(
        &self,
        key: &Key,
        seen: &Snapshot<P>,
        status: &P::Status,
    ) -> bool {
        let list = self.list(key);
        let status = || Says::<P>(status);
        (self.no_op_statuses).contains(key, status(), stored(&*seen.view), list)
            || (self.rejected_statuses).contains(key, status(), seen.version, list)
    }

    /// Whether a status of this version had no effect or was rejected, is suppressed for now, and will be sent again even if
    /// nothing changes.
    pub(crate) fn is_status_suppressed(&self, key: &Key, seen: &Snapshot<P>) -> bool {
        let list = self.list(key);
        (self.rejected_statuses).has_passing(key, seen.version, list)
            || (self.no_op_statuses).has_passing(key, stored(&*seen.view), list)
    }

    /// Returns the records that hold the status.
    pub(crate) fn status_holds(&self, key: &Key, seen: &Snapshot<P>) -> Vec<Record> {
        let (view, list) = (&*seen.view, self.list(key));
        let status = format!("the status of {} {key}", P::KIND.kind);
        let dispute = (self.status_disputes).of(key, Requester::of(view), Whole(&*view.status()));
        let no_op = self.no_op_statuses.age(key, stored(view), list);
        let rejected = self.rejected_statuses.age(key, seen.version, list);
        let rejected = rejected.map(|age| Record {
            ends_in_seconds: Some(seconds(REJECTED.saturating_sub(age))),
            ..Record::new(
                REJECTED_STATUS,
                format!(
                    "the API server rejected {status}: not sent again before a new version or list"
                ),
            )
        });
        let records = [
            disputed(dispute, &status),
            rejected,
            no_op.map(|_| without_effect(&status)),
        ];
        records.into_iter().flatten().collect()
    }

    /// Records the outcome of a status that was sent after `list`: the resulting object `left`, and whether the status had an
    /// effect.
    pub(crate) fn record_status(
        &self,
        key: &Key,
        status: &P::Status,
        left: &P,
        list: ListEpoch,
        had_effect: bool,
    ) {
        let (status, statuses) = (Says::<P>(status), &self.no_op_statuses);
        if had_effect {
            statuses.forget(key, status);
        } else {
            statuses.record(key, status, stored(left), list.list(), self.exists());
        }
    }

    /// Records a status that the API server rejected for this version of the object.
    pub(crate) fn record_rejected_status(&self, key: &Key, version: u64, status: &P::Status) {
        let (list, exists) = (self.list(key), self.exists());
        (self.rejected_statuses).record(key, Says::<P>(status), version, list, exists);
    }
}

/// All lists count as the same list 0: schemas do not apply to finalizers, so a relist is no reason to send the request again.
impl<P: Finalizable> WriteHistory<P> {
    /// Whether this change of a finalizer is known to have no effect on the object in this state.
    pub(crate) fn is_no_op_finalizer(&self, key: &Key, change: (&str, bool), seen: &P) -> bool {
        (self.no_op_finalizers).contains(key, change, finalized(seen), 0)
    }

    /// Records the outcome of a change of a finalizer: the resulting object `left`, and whether the change had an effect.
    pub(crate) fn record_finalizer(
        &self,
        key: &Key,
        change: (&str, bool),
        left: &P,
        had_effect: bool,
    ) {
        let finalizers = &self.no_op_finalizers;
        if had_effect {
            finalizers.forget(key, change);
        } else {
            finalizers.record(key, change, finalized(left), 0, self.exists());
        }
    }
}

fn disputed(wait: Option<Wait>, object: &str) -> Option<Record> {
    let wait = wait?;
    let text = if wait.is_undone {
        format!("other clients revert the changes of {object}")
    } else {
        format!("the outcome of the last writes of {object} is unknown")
    };
    Some(Record {
        ends_in_seconds: Some(seconds(wait.time)),
        ..Record::new(DISPUTE, text)
    })
}

fn without_effect(object: &str) -> Record {
    let text = format!(
        "the API server accepted a change of {object} without effect: not sent again until it changes"
    );
    Record::new(NO_OP_WRITE, text)
}

/// Whether the patch `of` contains all these fields with the same values. Each element of a list is in some element.
fn is_part(fields: &Value, of: &Value) -> bool {
    match (fields, of) {
        (Value::Object(fields), Value::Object(all)) => {
            let mut fields = fields.iter();
            fields.all(|(name, value)| all.get(name).is_some_and(|of| is_part(value, of)))
        }
        (Value::Array(elements), Value::Array(all)) => {
            let mut elements = elements.iter();
            elements.all(|element| all.iter().any(|of| is_part(element, of)))
        }
        (value, of) => value == of,
    }
}

/// A patch is sent again for a new generation of its owner.
fn requested(by: Requester<'_>, patch: &Value) -> impl Hash {
    (by.uid.to_owned(), by.generation, patch.to_string())
}

fn stored<P: Primary>(view: &P) -> impl Hash {
    let mut said = DefaultHasher::new();
    P::says(&view.status(), &mut said);
    (view.uid(), said.finish())
}

fn finalized<P: Finalizable>(view: &P) -> impl Hash {
    (view.uid(), view.generation(), view.finalizers())
}

/// Hashes a status with its times, unlike [`Says`].
struct Whole<'a, S>(&'a S);

impl<S: Serialize> Hash for Whole<'_, S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        serde_json::to_string(self.0)
            .unwrap_or_default()
            .hash(state);
    }
}

/// Returns the hash of the status without its times.
fn fingerprint_of<P: Primary>(status: &P::Status) -> Value {
    let mut hasher = DefaultHasher::new();
    Says::<P>(status).hash(&mut hasher);
    hasher.finish().into()
}
