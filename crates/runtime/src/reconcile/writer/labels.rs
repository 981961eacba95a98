//! Labels that a selector requires for an object to be watched, and the label that keeps an object in this installation.

use futures::{FutureExt as _, future::BoxFuture};
use kube::api::{ListParams, PatchParams};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::info;

use super::{LOOK_UP_TIMEOUT, Writer, based_on};
use crate::{
    api::{
        key::Key,
        object::{Cached, Object, Primary, kind_of},
    },
    cache::store::{ListEpoch, Snapshot},
    reconcile::{
        context::{Context, Step},
        error::ApiError,
        writer::{disputes::Desired, history::ABSENT},
    },
};

/// A writer of a resource type that the controller of `P` owns.
pub(crate) trait Owned<P: Primary>: Send + Sync {
    /// Returns whether a controller of the program reconciles the type.
    fn is_reconciled(&self) -> bool;

    /// Returns whether the object controls objects of the type that another installation reconciles.
    fn has_strays(&self, key: &Key, seen: &Snapshot<P>) -> bool;

    /// Gives these objects the label of this installation, except objects for which the reconcile has already reached a patch.
    /// Returns the first error.
    fn inherit<'a>(&'a self, cx: &'a Context<'_, P>) -> BoxFuture<'a, Result<(), ApiError>>;
}

impl<P: Primary, V: Cached> Owned<P> for Writer<V> {
    fn is_reconciled(&self) -> bool {
        self.store.installation_label().is_some()
    }

    fn has_strays(&self, key: &Key, seen: &Snapshot<P>) -> bool {
        !self.strays(key, seen).is_empty()
    }

    fn inherit<'a>(&'a self, cx: &'a Context<'_, P>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let mut all = Ok(());
            for (key, found) in self.strays(cx.key(), cx.seen) {
                if !cx.has_patched(kind_of::<V>(), &key) {
                    all = all.and(self.put_installation(cx, &key, &found).await);
                }
            }
            all
        }
        .boxed()
    }
}

impl<V: Cached> Writer<V> {
    /// Returns the objects that this one controls, and that another installation reconciles. Without objects that cannot be
    /// patched now: their deletion is pending, or their type is not installed.
    fn strays<P: Primary>(&self, key: &Key, seen: &Snapshot<P>) -> Vec<(Key, Snapshot<V>)> {
        let controlled = self.store.controlled_by::<P>(key).into_iter();
        let found = controlled.filter_map(|key| Some((self.store.get(&key)?, key)));
        found
            .filter(|(it, _)| !it.is_served() && it.is_controlled_by(&**seen))
            .filter(|(it, key)| !self.is_deletion_pending(key, it))
            .filter(|(_, key)| self.check_installed(key).is_ok())
            .map(|(it, key)| (key, it))
            .collect()
    }

    /// Moves an object to this installation. A live read of the owner decides, because its watch may be behind: the owner may have
    /// left, and its next installation may have moved the object.
    async fn put_installation<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        found: &Snapshot<V>,
    ) -> Result<(), ApiError> {
        let Some(patch) = self.with_installation(None, found) else {
            return Ok(());
        };
        if !cx.is_dry_run && self.is_needed(cx, key, found, &patch) {
            self.may_patch(cx, key, found, &patch)?;
            cx.primary.verify_current(cx).await?;
        }
        let step = Step {
            actual: json!({}),
            compared: patch.clone(),
            ..Step::of::<V>("patch", key, patch.clone())
        };
        let plan = |now: &Snapshot<V>| self.with_installation(None, now);
        let patched = self.patch(cx, found, &patch, step, plan).await?;
        patched.heeded(key).map(drop)
    }

    /// Adds the required labels to a manifest. An object of a reconciled type gets the installation of its owner.
    pub(super) fn labelled(&self, mut manifest: Value) -> Value {
        for (label, value) in &self.labels {
            manifest["metadata"]["labels"][label] = value.as_str().into();
        }
        if let Some((label, value)) = self.store.installation_label() {
            if !value.is_empty() {
                manifest["metadata"]["labels"][label] = value.into();
            } else if let Some(labels) = manifest
                .pointer_mut("/metadata/labels")
                .and_then(Value::as_object_mut)
            {
                labels.remove(&label);
            }
        }
        manifest
    }

    /// Returns whether [`labelled`](Self::labelled) may change a manifest.
    pub(super) fn has_labels(&self) -> bool {
        !self.labels.is_empty() || self.store.installation_label().is_some()
    }

    /// Adds the label of this installation to a change of an object that has the label of another one.
    pub(in crate::reconcile) fn with_installation(
        &self,
        patch: Option<Value>,
        actual: &Snapshot<V>,
    ) -> Option<Value> {
        if actual.is_served() {
            return patch;
        }
        let Some((label, value)) = self.store.installation_label() else {
            return patch;
        };
        let mut patch = patch.unwrap_or_else(|| json!({}));
        let value = (!value.is_empty()).then_some(value);
        patch["metadata"]["labels"][label] = value.into();
        Some(patch)
    }

    /// Patches the required labels back, after a create found that the object exists. A live read decides.
    ///
    /// Returns the response, and the epoch before the patch. [`ApiError::Foreign`] if the reconciled object does not control the
    /// object. [`ApiError::Conflict`] if the object has all labels, or was deleted: the watch delivers it.
    pub(super) async fn put_labels_back<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
    ) -> Result<(Object<V>, ListEpoch), ApiError> {
        if self.labels.is_empty() {
            return Err(ApiError::Conflict);
        }
        let this_one = ListParams::default().fields(&format!("metadata.name={}", key.name()));
        let api = self.api(key);
        let found = timeout(LOOK_UP_TIMEOUT, api.list_metadata(&this_one)).await;
        let found = self.looked_up(cx, found)?.items.into_iter().next();
        let found = found.ok_or(ApiError::Conflict)?.metadata;
        let owners = found.owner_references.unwrap_or_default();
        let by = cx.seen.view.uid();
        if !(owners.iter()).any(|owner| owner.controller == Some(true) && owner.uid == by) {
            return Err(ApiError::Foreign(V::KIND.kind, key.name().to_owned()));
        }
        let labels = found.labels.unwrap_or_default();
        let lost = self.labels.iter();
        let lost = lost.filter(|(label, value)| labels.get(label) != Some(value));
        let lost: serde_json::Map<_, Value> = lost
            .map(|(label, value)| (label.clone(), value.as_str().into()))
            .collect();
        if lost.is_empty() {
            return Err(ApiError::Conflict);
        }
        let version = found
            .resource_version
            .and_then(|version| version.parse().ok());
        let patch = json!({ "metadata": {
            "uid": found.uid, "resourceVersion": based_on(version.unwrap_or_default())?, "labels": lost,
        }});
        // The object may have left this installation during the requests above.
        cx.check_dry_run(|| Step::of::<V>("patch", key, patch.clone()))?;
        let expectation = self.store.begin_write(key);
        let params = PatchParams {
            field_manager: self.params().field_manager,
            ..PatchParams::default()
        };
        let answer = api.patch(key.name(), &params, &V::KIND.patch(&patch)).await;
        self.note_unknown(cx, key, &answer, Desired::Present(cx.inputs), ABSENT);
        let answer = self.written(cx, key, answer)?;
        info!(object = %cx.key(), controller = cx.log.controller, dependent = %key, "restored the labels of the {}", V::KIND.kind);
        Ok((answer, expectation))
    }
}
