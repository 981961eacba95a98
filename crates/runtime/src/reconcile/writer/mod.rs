//! The only way to write objects.
//!
//! A write passes the fence and has a timeout. Its response is in the store before the call returns. Every write except a
//! create carries the UID and the resourceVersion of the version that it is based on.
//!
//! A write without effect is not repeated until the object changes. A write that is reverted repeatedly is delayed with
//! exponential backoff.

pub(crate) mod disputes;
pub(crate) mod finalizer;
pub(crate) mod history;
pub(crate) mod labels;
mod no_op;
mod status;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use kube::{
    Api, Resource as _,
    api::{DeleteParams, ListParams, PatchParams, PostParams, Preconditions, Request},
    core::PartialObjectMeta,
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{error::Elapsed, timeout};
use tracing::info;

use crate::{
    api::{
        failure::{brief, root_cause},
        key::Key,
        object::{Cached, Object, Primary, kind_of},
        status::{is_denied, is_not_installed, lacks_right},
    },
    cache::{
        readiness::refusals::Refusals,
        store::{Author, Snapshot, Store},
    },
    client::{context::ClientContext, fence},
    reconcile::{
        context::{Context, Step},
        error::ApiError,
        writer::{
            disputes::{Desired, Wait, fields},
            history::{ABSENT, WriteHistory},
        },
    },
};

/// Writes objects of one resource type, and reads them from its store.
///
/// Every write:
/// - is one request, sent only while this replica leads ([`ApiError::NotLeading`]);
/// - is based on the given [`Snapshot`], if there is one ([`ApiError::Conflict`]);
/// - ends within 36 s;
/// - has its response in the store before the call returns;
/// - is delayed if it is reverted repeatedly ([`ApiError::Contested`]).
///
/// The last rule covers reverts by other clients. It also covers a reconciler that creates and deletes an object within
/// seconds. The write that restores the desired state is a *correction*, and repeated corrections are a *dispute*. The first
/// ten corrections are sent without delay. After that, the delay doubles from 1 s to 5 min. The dispute ends when the
/// reconciled object has a new generation. It also ends when no correction was needed for twice the next delay, at least for a
/// minute.
///
/// An error response of the API server is an [`ApiError`], which the reconciler should return.
pub struct Writer<V> {
    shared: Arc<ClientContext>,
    refusals: Arc<Refusals>,
    store: Arc<Store<V>>,
    pub(crate) history: Arc<WriteHistory<V>>,
    /// Labels that the [selector](crate::Select::labels) of the resource type requires.
    labels: Vec<(String, String)>,
    /// Number of its controller.
    number: usize,
}

/// Timeout of a live read of one object.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// Result of a patch.
#[derive(Clone, Debug)]
#[must_use = "nobody else reports what is overruled"]
pub(crate) struct Patched<V> {
    /// The object after the patch.
    pub actual: Snapshot<V>,
    /// Whether the patch changed the object.
    pub changed: bool,
    /// The fields that differ from the desired ones, although the API server accepted the patch: an admission policy or a webhook
    /// overrides them. Fields that the patch contained are not sent again until the object changes or is relisted.
    pub overruled: Option<Value>,
}

impl<V: Cached> Patched<V> {
    /// Returns the object, or [`ApiError::Overruled`].
    pub(crate) fn heeded(self, key: &Key) -> Result<Snapshot<V>, ApiError> {
        match self.overruled {
            None => Ok(self.actual),
            Some(missing) => Err(ApiError::Overruled(
                V::KIND.kind,
                key.name().to_owned(),
                wanted(&missing),
            )),
        }
    }
}

impl<V> Clone for Writer<V> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            refusals: Arc::clone(&self.refusals),
            store: Arc::clone(&self.store),
            history: Arc::clone(&self.history),
            labels: self.labels.clone(),
            number: self.number,
        }
    }
}

impl<V: Cached> Writer<V> {
    pub(crate) fn new(
        shared: &Arc<ClientContext>,
        refusals: &Arc<Refusals>,
        store: Arc<Store<V>>,
        history: Arc<WriteHistory<V>>,
        labels: Vec<(String, String)>,
        number: usize,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            refusals: Arc::clone(refusals),
            history,
            store,
            labels,
            number,
        }
    }

    /// Returns the store of the resource type.
    #[must_use]
    pub fn store(&self) -> &Arc<Store<V>> {
        &self.store
    }

    /// Returns whether the resource type of this object is installed: see [`Store::is_installed`].
    #[must_use]
    pub fn is_installed(&self, key: &Key) -> bool {
        self.store.is_installed(key)
    }

    /// Returns the author of a write.
    fn author<'a, P: Primary>(&self, cx: &'a Context<'_, P>) -> Author<'a> {
        Author {
            controller: self.number,
            key: cx.key(),
        }
    }

    /// Fails with [`ApiError::NotInstalled`] if the optional type [cannot be written](Store::is_writable).
    pub(crate) fn check_installed(&self, key: &Key) -> Result<(), ApiError> {
        let missing = ApiError::NotInstalled(V::KIND.plural);
        self.store.is_writable(key).then_some(()).ok_or(missing)
    }

    /// Returns the error of a response.
    fn error(&self, error: kube::Error) -> ApiError {
        match &error {
            kube::Error::Api(status)
                if self.store.is_optional()
                    && is_not_installed(status)
                    && !is_denied(&status.message) =>
            {
                self.store.note_rejected();
                ApiError::NotInstalled(V::KIND.plural)
            }
            _ => error.into(),
        }
    }

    /// Returns `false` if this patch of `seen` is known to have no effect. Sends no request.
    pub(crate) fn is_needed<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        seen: &Snapshot<V>,
        patch: &Value,
    ) -> bool {
        !(self.history).is_no_op_patch(key, cx.wanted_by(), &seen.view, patch)
    }

    /// Checks whether a patch may be sent now. [`patch`](Self::patch) checks this itself. Call this function before another
    /// action that must not happen without the patch.
    ///
    /// # Errors
    /// [`ApiError::Contested`] or [`ApiError::Transient`] if the patch has to wait.
    pub(crate) fn may_patch<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        seen: &Snapshot<V>,
        patch: &Value,
    ) -> Result<(), ApiError> {
        self.may_write(cx, key, Desired::Fields(patch), seen.version, || {
            wanted(patch)
        })
    }

    /// Checks whether a write may be sent now. `found` is the version of the object, and `wanted` describes the write in the
    /// error.
    fn may_write<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        asked: Desired<'_>,
        found: u64,
        wanted: impl FnOnce() -> String,
    ) -> Result<(), ApiError> {
        match self.history.delay(key, cx.wanted_by(), asked, found) {
            None => Ok(()),
            Some(wait) => Err(put_off(cx, key, wanted(), wait)),
        }
    }

    /// Creates an object with the name and namespace of `key`. An object of a type that the program reconciles gets the label of
    /// the installation. It is a POST and not an apply: an existing object that is not yet in the store is left unchanged. Only
    /// if the reconciled object controls it, and it has lost a label of the [selector](crate::Select::labels), the label is put
    /// back.
    ///
    /// The namespace must be watched, and it must be the namespace of the reconciled object, unless the latter is cluster-scoped.
    /// An object elsewhere could not be owned, and its changes would trigger no reconcile.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn create<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        body: &impl Serialize,
    ) -> Result<Snapshot<V>, ApiError> {
        self.check_place(cx, key)?;
        self.check_installed(key)?;
        cx.check_dry_run(|| {
            let body = serde_json::to_value(body).unwrap_or_default();
            Step::of::<V>("create", key, self.labelled(body))
        })?;
        let asked = Desired::Present(cx.inputs);
        self.may_write(cx, key, asked, ABSENT, || "creation".to_owned())?;
        let expectation = self.store.begin_write(key);
        let url = Object::<V>::url_path(&(), key.namespace_if_any());
        let unreadable = |error: serde_json::Error| ApiError::transient(error.to_string());
        let body = if self.has_labels() {
            serde_json::to_value(body).and_then(|body| serde_json::to_vec(&self.labelled(body)))
        } else {
            serde_json::to_vec(body)
        };
        let body = body.map_err(unreadable)?;
        let mut request = Request::new(url)
            .create(&self.params(), body)
            .map_err(kube::Error::BuildRequest)?;
        // The path of a create does not contain the name.
        request.extensions_mut().insert(key.clone());
        let answer = self.shared.client.request(request).await;
        self.note_unknown(cx, key, &answer, asked, ABSENT);
        let exists = answer.as_ref().is_err_and(is_already_there);
        let (answer, expectation): (Object<V>, _) = match self.written(cx, key, answer) {
            Err(ApiError::Conflict) if exists => self.put_labels_back(cx, key).await?,
            answer => {
                let answer = answer?;
                info!(object = %cx.key(), controller = cx.log.controller, dependent = %key, "created the {}", V::KIND.kind);
                (answer, expectation)
            }
        };
        let by = cx.wanted_by();
        (self.history).record(key, by, asked, ABSENT, Some(answer.version));
        let stored = self
            .store
            .record_response(answer, expectation, self.author(cx));
        stored.ok_or(ApiError::Conflict)
    }

    /// Sends the patch of `step`, which is based on `seen`, if `fields` is [needed](Self::is_needed). Then calls `plan` with the
    /// response, to find changes without effect. The sent patch may have more fields, whose values vary: the records of earlier
    /// patches do not contain them.
    ///
    /// Built-in resource types get a strategic merge patch, custom resources a merge patch.
    pub(crate) async fn patch<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<V>,
        fields: &Value,
        step: Step,
        plan: impl Fn(&Snapshot<V>) -> Option<Value>,
    ) -> Result<Patched<V>, ApiError> {
        let key = &step.key;
        if !self.is_needed(cx, key, seen, fields) {
            return Ok(Patched {
                actual: seen.clone(),
                changed: false,
                overruled: Some(fields.clone()),
            });
        }
        self.check_place(cx, key)?;
        Self::check_owner(cx, key, seen)?;
        cx.note_patch(kind_of::<V>(), key);
        cx.check_dry_run(|| step.clone())?;
        self.may_patch(cx, key, seen, fields)?;
        let mut patch = step.body;
        patch["metadata"]["uid"] = seen.view.uid().into();
        patch["metadata"]["resourceVersion"] = based_on(seen.version)?.into();
        let expectation = self.store.begin_write(key);
        let params = PatchParams {
            field_manager: self.params().field_manager,
            ..PatchParams::default()
        };
        let answer = self.api(key);
        let answer = answer
            .patch(key.name(), &params, &V::KIND.patch(&patch))
            .await;
        self.note_unknown(cx, key, &answer, Desired::Fields(fields), seen.version);
        let answer = self.written(cx, key, answer)?;
        let version = answer.version;
        let actual = self
            .store
            .record_response(answer, expectation, self.author(cx));
        let actual = actual.ok_or(ApiError::Conflict)?;
        let changed = version != seen.version;
        if changed {
            let (by, write) = (cx.wanted_by(), Desired::Fields(fields));
            (self.history).record(key, by, write, seen.version, Some(version));
            let fields = brief(&names_of_fields(fields));
            info!(object = %cx.key(), controller = cx.log.controller, dependent = %key, fields, "changed the {}", V::KIND.kind);
        }
        let overruled = plan(&actual);
        (self.history).record_patch(
            key,
            cx.wanted_by(),
            fields,
            &actual,
            expectation,
            overruled.as_ref(),
        );
        if overruled.is_some() {
            self.store.note_unheeded(key);
        }
        Ok(Patched {
            actual,
            changed,
            overruled,
        })
    }

    /// [Creates](Self::create) an object that the reconciled object controls.
    pub(crate) async fn create_owned<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        mut manifest: Value,
    ) -> Result<Snapshot<V>, ApiError> {
        // The API server requires `apiVersion` and `kind` for custom resources.
        manifest["apiVersion"] = V::KIND.api_version().into();
        manifest["kind"] = V::KIND.kind.into();
        let metadata = &mut manifest["metadata"];
        metadata["name"] = key.name().into();
        if let Some(namespace) = key.namespace_if_any() {
            metadata["namespace"] = namespace.into();
        }
        metadata["ownerReferences"] = json!([owner_reference(cx.key(), &**cx.seen)]);
        self.create(cx, key, &manifest).await
    }

    /// Deletes an object, and its dependents in the background.
    ///
    /// The store keeps the object until the watch delivers the deletion, which finalizers may delay. Until then, another call
    /// sends no request.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn delete<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        seen: &Snapshot<V>,
    ) -> Result<(), ApiError> {
        self.check_place(cx, key)?;
        Self::check_owner(cx, key, seen)?;
        if self.is_deletion_pending(key, seen) {
            return Ok(());
        }
        cx.check_dry_run(|| Step::of::<V>("delete", key, Value::Null))?;
        let asked = Desired::Absent(cx.inputs);
        self.may_write(cx, key, asked, seen.version, || "deletion".to_owned())?;
        let preconditions = Preconditions {
            uid: Some(seen.view.uid().to_owned()),
            resource_version: Some(based_on(seen.version)?),
        };
        let params = DeleteParams {
            preconditions: Some(preconditions),
            ..DeleteParams::background()
        };
        self.store.begin_write(key);
        let api = self.shared.api::<PartialObjectMeta<Object<V>>>(key);
        let answer = api.delete(key.name(), &params).await;
        self.note_unknown(cx, key, &answer, asked, seen.version);
        let answer = self.written(cx, key, answer)?;
        let by = cx.wanted_by();
        (self.history).record(key, by, asked, seen.version, Some(ABSENT));
        // The response is the terminating object, or a status if the object is already deleted.
        let left = answer.left();
        if left.is_none_or(|left| left.metadata.deletion_timestamp.is_some()) {
            self.store.mark_deletion_pending(key, seen.view.uid());
        }
        info!(object = %cx.key(), controller = cx.log.controller, dependent = %key, "deleted the {}", V::KIND.kind);
        Ok(())
    }

    /// Returns whether the API server accepted the deletion, and the watch has not delivered it yet.
    #[must_use]
    pub fn is_deletion_pending(&self, key: &Key, seen: &Snapshot<V>) -> bool {
        self.store.is_deletion_pending(key, seen.view.uid())
    }

    /// Reads an object from the API server. Returns `None` if the object does not exist. Use it before an action that needs a
    /// newer state than the cache has.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn get_live<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
    ) -> Result<Option<Snapshot<V>>, ApiError> {
        cx.check_dry_run(|| Step::of::<V>("get", key, Value::Null))?;
        let this_one = ListParams::default().fields(&format!("metadata.name={}", key.name()));
        let api = self.api(key);
        let found = timeout(LOOK_UP_TIMEOUT, api.list(&this_one)).await;
        let mut found = self.looked_up(cx, found)?.items.into_iter();
        let found = found.find(|now| now.key == *key);
        Ok(found.map(|now| self.store.snapshot(now).1))
    }

    /// Returns the response to a live read.
    fn looked_up<P: Primary, T>(
        &self,
        cx: &Context<'_, P>,
        answer: Result<kube::Result<T>, Elapsed>,
    ) -> Result<T, ApiError> {
        cx.attempt.heartbeat(cx.key());
        let answer = answer.map_err(|_| {
            ApiError::transient(format!(
                "the API server has not answered within {LOOK_UP_TIMEOUT:?}"
            ))
        })?;
        if answer.as_ref().is_err_and(for_want_of_a_right) {
            self.refused(cx, true);
        }
        answer.map_err(|error| {
            let words = root_cause(&error);
            match self.error(error) {
                // The error concerns the read, not the object. So the retry must not wait for a change of the object.
                ApiError::Rejected(_) | ApiError::Denied(..) | ApiError::Conflict => {
                    ApiError::transient(brief(&words))
                }
                other => other,
            }
        })
    }

    /// Fails if the reconciled object cannot own an object here. The garbage collector deletes a dependent that is not in the
    /// namespace of its namespaced owner: see [Owners and dependents].
    ///
    /// [Owners and dependents]: https://kubernetes.io/docs/concepts/overview/working-with-objects/owners-dependents/
    pub(crate) fn check_place<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
    ) -> Result<(), ApiError> {
        let (kind, owner, namespace) = (V::KIND.kind, cx.key(), key.namespace());
        if V::KIND.is_cluster_scoped() != key.is_cluster_scoped() {
            let has = if key.is_cluster_scoped() { "no" } else { "a" };
            let words = format!("refusing to write {kind} {key}: the key has {has} namespace");
            return Err(ApiError::Rejected(words));
        }
        if !owner.is_cluster_scoped() && namespace != owner.namespace() {
            let words =
                format!("refusing to write {kind} {key} outside the namespace of its owner");
            return Err(ApiError::Rejected(words));
        }
        if self.store.covers(key) {
            Ok(())
        } else {
            Err(ApiError::NotWatched(namespace.to_owned()))
        }
    }

    /// Fails with [`ApiError::Foreign`] if the reconciled object does not control this object.
    pub(crate) fn check_owner<P: Primary>(
        cx: &Context<'_, P>,
        key: &Key,
        actual: &Snapshot<V>,
    ) -> Result<(), ApiError> {
        if actual.is_controlled_by(&**cx.seen) {
            Ok(())
        } else {
            Err(ApiError::Foreign(V::KIND.kind, key.name().to_owned()))
        }
    }

    /// Converts the response to a write of `key`. If nothing was written, withdraws the [expectation](Store::begin_write). A
    /// rejection also triggers a review of the permissions.
    fn written<P: Primary, T>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        answer: kube::Result<T>,
    ) -> Result<T, ApiError> {
        cx.attempt.heartbeat(cx.key());
        let lacked = answer.as_ref().is_err_and(for_want_of_a_right);
        let answer = answer.map_err(|error| self.error(error));
        match &answer {
            Err(
                ApiError::Rejected(_)
                | ApiError::Denied(..)
                | ApiError::NotInstalled(_)
                | ApiError::NamespaceTerminating
                | ApiError::NotLeading,
            ) => {
                self.store.abort_write(key);
            }
            // The expectation stays: the write was carried out, or may have been, or the watch will deliver the conflicting
            // version.
            Ok(_)
            | Err(
                ApiError::Conflict
                | ApiError::Transient(..)
                | ApiError::Foreign(..)
                | ApiError::Overruled(..)
                | ApiError::Contested(..)
                | ApiError::TimedOut(_)
                | ApiError::InvalidSpec(_)
                | ApiError::NotWatched(_)
                | ApiError::Waiting(_)
                | ApiError::NotGranted(_)
                | ApiError::NotListed(_)
                | ApiError::ActionFailed(_)
                | ApiError::Unprotected(_)
                | ApiError::Unread(..),
            ) => {}
        }
        if let Err(ApiError::Rejected(_) | ApiError::Denied(..)) = &answer {
            self.refused(cx, lacked);
        }
        answer
    }

    /// Triggers a review of the permissions.
    fn refused<P: Primary>(&self, cx: &Context<'_, P>, for_want_of_rights: bool) {
        self.refusals.refused(cx.key(), for_want_of_rights);
    }

    /// Records a write with an unknown outcome.
    fn note_unknown<P: Primary, T>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        answer: &kube::Result<T>,
        asked: Desired<'_>,
        found: u64,
    ) {
        if answer.as_ref().is_err_and(may_have_been_made) {
            (self.history).record(key, cx.wanted_by(), asked, found, None);
        }
    }

    fn api(&self, key: &Key) -> Api<Object<V>> {
        self.shared.api(key)
    }

    fn params(&self) -> PostParams {
        PostParams {
            field_manager: Some(self.shared.app.name.to_owned()),
            ..PostParams::default()
        }
    }
}

/// Returns the reference of an object to its owner, which controls it.
pub fn owner_reference<P: Primary>(owner: &Key, view: &P) -> Value {
    json!({
        "apiVersion": P::KIND.api_version(),
        "kind": P::KIND.kind,
        "name": owner.name(),
        "uid": view.uid(),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Returns whether a write with this error may have been carried out: its response is missing or unreadable, or the server
/// failed during the write.
fn may_have_been_made(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 500 | 502 | 504),
        error => !fence::is_refused(error),
    }
}

/// Returns whether a create failed because the object exists.
fn is_already_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

/// Returns whether the sender lacks a permission. Otherwise, a 403 concerns the content of the write.
fn for_want_of_a_right(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403 && lacks_right(&status.message))
}

/// Returns the error of a write that has to wait.
fn put_off<P: Primary>(cx: &Context<'_, P>, key: &Key, wanted: String, wait: Wait) -> ApiError {
    cx.has_changes();
    crate::telemetry::trace::decided("put off");
    if wait.is_undone {
        return ApiError::Contested(key.name().to_owned(), wanted, wait.time);
    }
    let words = format!(
        "postponed: outcome of the last writes to {} unknown (pending: {wanted})",
        key.name()
    );
    // Without a requested delay, so only the backoff of the object applies: the next write may be another one.
    ApiError::transient(words)
}

/// Returns the resourceVersion for the precondition of a write. Fails for 0, which the API server treats as no precondition.
fn based_on(version: u64) -> Result<String, ApiError> {
    if version == 0 {
        let words = "resourceVersion is not a number: refusing to write without a precondition";
        return Err(ApiError::transient(words));
    }
    Ok(version.to_string())
}

/// Describes a patch in a message by the names of its fields. Values are left out, because they may be long or secret.
fn wanted(patch: &Value) -> String {
    brief(&format!("changes of {}", names_of_fields(patch)))
}

fn names_of_fields(patch: &Value) -> String {
    let mut fields = fields(patch);
    fields.retain(|(_, value)| **value != json!({}));
    let is_note = |(path, _): &(String, _)| path.starts_with("metadata.annotations.");
    if !fields.iter().all(is_note) {
        fields.retain(|field| !is_note(field));
    }
    let names: Vec<_> = fields.into_iter().map(|(path, _)| path).collect();
    names.join(", ")
}
