//! Labels that a selector requires for an object to be watched, and the label that keeps an object in this installation.

use kube::api::{ListParams, PatchParams};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::info;

use super::{LOOK_UP_TIMEOUT, Writer, based_on};
use crate::{
    api::{
        key::Key,
        object::{Cached, Object, Primary},
    },
    cache::store::{ListEpoch, Snapshot},
    reconcile::{
        context::{Context, Step},
        error::ApiError,
        writer::{disputes::Desired, history::ABSENT},
    },
};

impl<V: Cached> Writer<V> {
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
        info!(object = %cx.key(), dependent = %key, "restored the labels of the {}", V::KIND.kind);
        Ok((answer, expectation))
    }
}
