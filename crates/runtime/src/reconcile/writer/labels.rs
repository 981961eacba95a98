//! Labels that a selector requires. An object without one is not watched.

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
    cache::store::ListEpoch,
    reconcile::{
        context::Context,
        error::ApiError,
        writer::{disputes::Desired, history::ABSENT},
    },
};

impl<V: Cached> Writer<V> {
    /// Adds the required labels to a manifest.
    pub(super) fn labelled(&self, mut manifest: Value) -> Value {
        for (label, value) in &self.labels {
            manifest["metadata"]["labels"][label] = value.as_str().into();
        }
        manifest
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
