//! The only way to write objects.
//!
//! Every write names the UID and the resourceVersion that it is based on, passes the fence, has its time limit, and has its
//! answer in the store before anybody looks again. What an answer did not change is not asked again until somebody changes
//! the object, and what is changed back by somebody else again and again is corrected ever more slowly.

use std::{
    hash::Hash,
    sync::{Arc, OnceLock},
    time::Duration,
};

use kube::{
    Api, Client, Resource as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, Request},
    core::{Status, response::StatusDetails},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::info;

use crate::{
    App, Cached, Context, Host, Key, Object, Primary, Snapshot, Store,
    corrections::Corrections,
    error::ApiError,
    ineffective::Ineffective,
    object::{Content, Says},
    scopes::Scopes,
};

/// How long the answer to a question about one object may take: as long as that to a write.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// What all writers of a controller share.
pub(crate) struct Shared {
    pub app: &'static App,
    pub host: Host,
    /// Refuses writes past the end of the term.
    pub client: Client,
    /// Set before anything is reconciled.
    pub scopes: OnceLock<Arc<Scopes>>,
}

/// Writes the objects of one kind, and reads them from its store.
///
/// Each write is one request. It is sent under a live term only, or fails with [`ApiError::NotLeading`]; it is based on the
/// [`Snapshot`] that it is given, or fails with [`ApiError::Conflict`]; it ends within 10 s; and its answer is in the store
/// when it returns. What the API server answers with anything but success is an [`ApiError`], which is for the reconciler to
/// return.
pub struct Writer<V> {
    shared: Arc<Shared>,
    store: Arc<Store<V>>,
    patches: Ineffective,
    statuses: Ineffective,
    /// Statuses that were not taken at all.
    refused: Ineffective,
    corrections: Corrections,
}

/// What a patch has come to.
#[derive(Clone, Debug)]
pub struct Patched<V> {
    /// The object as it is now.
    pub view: Arc<V>,
    /// Whether it is another one now.
    pub changed: bool,
    /// What is still to be changed though the API server took the patch: an admission policy or a webhook has the last word.
    /// It is not asked again until somebody changes the object.
    pub overruled: Option<Value>,
}

impl<V: Cached> Writer<V> {
    pub(crate) fn new(shared: &Arc<Shared>, store: Arc<Store<V>>) -> Self {
        Self {
            shared: Arc::clone(shared),
            store,
            patches: Ineffective::default(),
            statuses: Ineffective::default(),
            refused: Ineffective::default(),
            corrections: Corrections::default(),
        }
    }

    /// What there is of the kind.
    #[must_use]
    pub fn store(&self) -> &Arc<Store<V>> {
        &self.store
    }

    /// The patch that `plan` makes of what is seen, unless it is known to change nothing. Sends nothing.
    pub fn needed(
        &self,
        key: &Key,
        seen: &Snapshot<V>,
        plan: impl FnOnce(&Snapshot<V>) -> Option<Value>,
    ) -> Option<Value> {
        let is_new = |patch: &Value| {
            !self
                .patches
                .contains(key, patch.to_string(), Content(&*seen.view))
        };
        plan(seen).filter(is_new)
    }

    /// Whether it is time to change the object as `patch` says, or as it is to be (`None`).
    ///
    /// # Errors
    /// [`ApiError::Contested`] where it is not.
    pub fn may_correct<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        patch: Option<&Value>,
    ) -> Result<(), ApiError> {
        let wait = self.corrections.wait(key, cx.wanted_by());
        if wait.is_zero() {
            return Ok(());
        }
        crate::telemetry::trace::decided("put off");
        let what = patch.map_or_else(|| "it to be there".to_owned(), wanted);
        Err(ApiError::Contested(key.name().to_owned(), what, wait))
    }

    /// Creates an object: a plain create, so that one that the store has not seen yet is not taken over. `corrects` is
    /// whether it was there before, and somebody else has deleted it.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn create<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        body: &impl Serialize,
        corrects: bool,
    ) -> Result<Arc<V>, ApiError> {
        if corrects {
            self.may_correct(cx, key, None)?;
        }
        let mark = self.store.mark(key);
        let url = Object::<V>::url_path(&(), Some(key.namespace()));
        let body =
            serde_json::to_vec(body).map_err(|error| ApiError::transient(error.to_string()))?;
        let request = Request::new(url)
            .create(&self.params(), body)
            .map_err(kube::Error::BuildRequest)?;
        let answer = self.shared.client.request(request).await;
        let answer = self.written(cx.key(), answer)?;
        if corrects {
            self.corrections.record(key, cx.wanted_by());
        }
        info!(object = %cx.key(), dependent = %key, "created the {}", V::KIND.kind);
        Ok(self.store.observe(answer, mark))
    }

    /// Sends the strategic merge patch that `plan` makes of what is seen, if it makes one, and asks `plan` again about the
    /// answer.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn patch<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        seen: &Snapshot<V>,
        plan: impl Fn(&Snapshot<V>) -> Option<Value>,
    ) -> Result<Patched<V>, ApiError> {
        let Some(asked) = plan(seen) else {
            return Ok(Patched {
                view: Arc::clone(&seen.view),
                changed: false,
                overruled: None,
            });
        };
        self.may_correct(cx, key, Some(&asked))?;
        let mut patch = asked.clone();
        patch["metadata"]["uid"] = seen.view.uid().into();
        patch["metadata"]["resourceVersion"] = seen.version.to_string().into();
        let mark = self.store.mark(key);
        let params = PatchParams {
            field_manager: self.params().field_manager,
            ..PatchParams::default()
        };
        let answer = self.api(key);
        let answer = answer
            .patch(key.name(), &params, &Patch::Strategic(&patch))
            .await;
        let answer = self.written(cx.key(), answer)?;
        let version = answer.version;
        let view = self.store.observe(answer, mark);
        let changed = version != seen.version;
        if changed {
            self.corrections.record(key, cx.wanted_by());
            info!(object = %cx.key(), dependent = %key, spec = %patch["spec"], "changed the {}", V::KIND.kind);
        }
        let stored = Snapshot {
            version,
            view: Arc::clone(&view),
        };
        let overruled = plan(&stored);
        if overruled.is_some() {
            let exists = |key: &Key| self.store.version(key).is_some();
            self.patches
                .record(key, asked.to_string(), Content(&*view), exists);
        } else {
            self.patches.forget(key);
        }
        Ok(Patched {
            view,
            changed,
            overruled,
        })
    }

    /// Deletes an object, and in the background what it owns.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn delete<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        seen: &Snapshot<V>,
    ) -> Result<(), ApiError> {
        let preconditions = Preconditions {
            uid: Some(seen.view.uid().to_owned()),
            resource_version: Some(seen.version.to_string()),
        };
        let params = DeleteParams {
            preconditions: Some(preconditions),
            ..DeleteParams::background()
        };
        self.store.mark(key);
        let answer = self.api(key).delete(key.name(), &params).await;
        self.written(cx.key(), answer)?;
        info!(object = %cx.key(), dependent = %key, "deleted the {}", V::KIND.kind);
        Ok(())
    }

    /// What a write for this object came to. A refused one calls for a check of the rights, whatever else becomes of it.
    fn written<T>(&self, primary: &Key, answer: kube::Result<T>) -> Result<T, ApiError> {
        let answer = answer.map_err(ApiError::from);
        if let (Err(ApiError::Rejected(_)), Some(scopes)) = (&answer, self.shared.scopes.get()) {
            scopes.refused(primary);
        }
        answer
    }

    fn api(&self, key: &Key) -> Api<Object<V>> {
        Api::namespaced(self.shared.client.clone(), key.namespace())
    }

    fn params(&self) -> PostParams {
        PostParams {
            field_manager: Some(self.shared.app.name.to_owned()),
            ..PostParams::default()
        }
    }
}

impl<P: Primary> Writer<P> {
    /// Whether this status is to be written: it says something else than the object's, and not what was written in vain.
    #[must_use]
    pub fn is_news(&self, key: &Key, seen: &Snapshot<P>, status: &P::Status) -> bool {
        let stored = seen.view.status();
        let left = (seen.view.uid(), Says::<P>(stored));
        *status != *stored
            && !self.statuses.contains(key, Says::<P>(status), left)
            && !self
                .refused
                .contains(key, Says::<P>(status), self.refuses(key, seen))
    }

    /// Reports the status.
    ///
    /// An update rather than a patch: it costs the API server an eighth less. Of an update of the status
    /// it takes nothing but the status, so the spec need not be sent.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn update_status(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
        status: &P::Status,
    ) -> Result<(), ApiError> {
        let key = cx.key();
        let mark = self.store.mark(key);
        // Somebody may have annotated the object while others were written: no conflict.
        let version = self.store.newest(key, seen);
        let update = json!({
            "apiVersion": P::KIND.api_version(),
            "kind": P::KIND.kind,
            "metadata": {
                "name": key.name(),
                "namespace": key.namespace(),
                "uid": seen.view.uid(),
                "resourceVersion": version.to_string(),
            },
            "status": status,
        });
        let api = self.api(key);
        let answer = api
            .replace_subresource("status", key.name(), &self.params(), &update)
            .await;
        if let Err(kube::Error::Api(status)) = &answer
            && is_gone(status, key)
        {
            self.store.outdate(key, version);
        }
        let answer = self.written(key, answer)?;
        let stored = self.store.observe(answer, mark);
        let (asked, got) = (Says::<P>(status), Says::<P>(stored.status()));
        if self.statuses.is_same(&asked, &got) {
            self.statuses.forget(key);
        } else {
            let exists = |key: &Key| self.store.version(key).is_some();
            self.statuses
                .record(key, asked, (stored.uid(), got), exists);
        }
        Ok(())
    }

    /// Notes that this status is refused and not worth another try: until the object is another one, or rights that were
    /// missing are back, it is no news.
    pub fn give_up(&self, cx: &Context<'_, P>, seen: &Snapshot<P>, status: &P::Status) {
        let exists = |key: &Key| self.store.version(key).is_some();
        let left = self.refuses(cx.key(), seen);
        self.refused
            .record(cx.key(), Says::<P>(status), left, exists);
    }

    /// Asks the API server whether the object is as the store has it: before what a controller of an earlier generation must
    /// not do, and which no precondition of the write itself keeps it from. The answer is one of now, not of a watch that
    /// may be behind.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] where it is not.
    pub async fn confirm(&self, cx: &Context<'_, P>, seen: &Snapshot<P>) -> Result<(), ApiError> {
        let key = cx.key();
        let this_one = ListParams::default().fields(&format!("metadata.name={}", key.name()));
        let api = self.api(key);
        let answer = timeout(LOOK_UP_TIMEOUT, api.list(&this_one)).await;
        let answer = answer.map_err(|_| {
            ApiError::transient(format!(
                "the API server has not answered within {LOOK_UP_TIMEOUT:?}"
            ))
        })?;
        let found = answer.map_err(|error| match error.into() {
            ApiError::Rejected(words) => ApiError::transient(words),
            other => other,
        })?;
        let was = &seen.view;
        let is_current = found.items.iter().any(|now| {
            let is = &now.view;
            now.key == *key
                && (is.uid(), is.generation()) == (was.uid(), was.generation())
                && !is.is_deleting()
        });
        if is_current {
            Ok(())
        } else {
            Err(ApiError::Conflict)
        }
    }

    /// What a refusal of a status is about: another object, or other rights, may be another matter.
    fn refuses(&self, key: &Key, seen: &Snapshot<P>) -> impl Hash {
        let scopes = self.shared.scopes.get();
        let regained = scopes.map_or(0, |scopes| scopes.rights_regained(key));
        (seen.version, regained)
    }
}

/// What a patch is to change, for people.
#[must_use]
pub fn wanted(patch: &Value) -> String {
    let metadata = &patch["metadata"];
    let mut wanted = json!({ "labels": metadata["labels"], "spec": patch["spec"] });
    if metadata["labels"].is_null() && patch["spec"] == json!({}) {
        wanted["annotations"] = metadata["annotations"].clone();
    }
    wanted.to_string()
}

/// Whether there is no object of this name any more, or another one. (A 404 that names no object is about the resource.)
fn is_gone(status: &Status, key: &Key) -> bool {
    let is_named = |details: &StatusDetails| details.name == key.name();
    match status.code {
        404 => status.details.as_ref().is_some_and(is_named),
        409 => status.message.contains("UID in precondition"),
        _ => false,
    }
}
