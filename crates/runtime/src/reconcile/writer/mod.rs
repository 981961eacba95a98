//! The only way to write objects.
//!
//! Every write names the UID and the resourceVersion that it is based on, passes the fence, has its time limit, and has its
//! answer in the store before anybody looks again. What an answer did not change is not asked again until somebody changes
//! the object, and what somebody else undoes again and again is made ever more slowly, whichever the write.

pub(crate) mod corrections;
pub mod finalizer;
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
use tokio::time::timeout;
use tracing::info;

use crate::{
    api::{
        failure::{brief, root_cause},
        key::Key,
        object::{Cached, Content, Object, Primary},
        status::lacks_right,
    },
    cache::{
        readiness::refusals::Refusals,
        store::{Snapshot, Store},
    },
    client::{context::ClientContext, fence},
    reconcile::{
        error::ApiError,
        reconciler::Context,
        writer::{
            corrections::{Asked, Corrections, Wait, fields},
            no_op::Ineffective,
        },
    },
};

/// Writes the objects of one kind, and reads them from its store.
///
/// Each write is one request. It is sent under a live term only, or fails with [`ApiError::NotLeading`]; it is based on the
/// [`Snapshot`] that it is given, or fails with [`ApiError::Conflict`]; it ends within 36 s; and its answer is in the store
/// when it returns. What somebody else undoes again and again, or the reconciler itself, by making and deleting an object within
/// seconds for the same, is written ten times at once, then after 1 s, 2 s and so on up to 5 min, and fails with [`ApiError::Contested`] meanwhile: until the object being reconciled asks for something else, or
/// nothing is undone for twice as long as the next one would wait, a minute at least. What the API server answers with
/// anything but success is an [`ApiError`], which is for the reconciler to return.
pub struct Writer<V> {
    shared: Arc<ClientContext>,
    refusals: Arc<Refusals>,
    store: Arc<Store<V>>,
    patches: Ineffective,
    statuses: Ineffective,
    /// Finalizers that were to be set, or cleared.
    finalizers: Ineffective,
    /// Statuses that were not taken at all.
    refused: Ineffective,
    corrections: Corrections,
    /// Those of statuses, which change by themselves beside the rest.
    status_corrections: Corrections,
}

/// How long the answer to a question about one object may take: as long as that to a write.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// For how long a refused status is taken for one that would be refused again, while its object is as it was: as long as the
/// longest pause between retries. The CRD may be another one by then.
const REFUSED: Duration = Duration::from_secs(1000);

/// The resourceVersion of an object that is not there, among those that [`Corrections`] compares.
const ABSENT: u64 = 0;

/// What a patch has come to.
#[derive(Clone, Debug)]
#[must_use = "nobody else reports what is overruled"]
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
    pub(crate) fn new(
        shared: &Arc<ClientContext>,
        refusals: &Arc<Refusals>,
        store: Arc<Store<V>>,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            refusals: Arc::clone(refusals),
            store,
            patches: Ineffective::default(),
            statuses: Ineffective::default(),
            finalizers: Ineffective::default(),
            refused: Ineffective::forgotten_after(REFUSED),
            corrections: Corrections::default(),
            status_corrections: Corrections::default(),
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
        plan(seen).filter(|patch| self.is_needed(key, seen, patch))
    }

    /// Whether this patch is not known to change nothing.
    fn is_needed(&self, key: &Key, seen: &Snapshot<V>, patch: &Value) -> bool {
        let (asked, left) = (patch.to_string(), Content(&*seen.view));
        let list = self.store.now(key).list();
        !self.patches.contains(key, asked, left, list)
    }

    /// Whether it is time to change the object from what is seen as `patch` says: what [`patch`](Self::patch) itself asks, for
    /// who has something to do before it.
    ///
    /// # Errors
    /// [`ApiError::Contested`] where it is not.
    pub fn may_patch<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        seen: &Snapshot<V>,
        patch: &Value,
    ) -> Result<(), ApiError> {
        self.may_write(cx, key, Asked::Fields(patch), seen.version, || {
            wanted(patch)
        })
    }

    /// Whether it is time to ask this of an object that is `found` at this version, which is `wanted`, for people.
    fn may_write<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        asked: Asked<'_>,
        found: u64,
        wanted: impl FnOnce() -> String,
    ) -> Result<(), ApiError> {
        match self.corrections.wait(key, cx.wanted_by(), asked, found) {
            None => Ok(()),
            Some(wait) => Err(put_off(cx, key, wanted(), wait)),
        }
    }

    /// Creates an object, whose name and namespace are those of `key`: a plain create, so that one that the store has not seen
    /// yet is not taken over. It is of the namespace of the object being reconciled: what is elsewhere can be owned by none that
    /// is here, and no change of it would be told.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn create<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        body: &impl Serialize,
    ) -> Result<Arc<V>, ApiError> {
        if key.namespace() != cx.key().namespace() {
            let words = format!("nothing is created in another namespace than its own: {key}");
            return Err(ApiError::Rejected(words));
        }
        cx.may_act()?;
        let asked = Asked::There(cx.inputs);
        self.may_write(cx, key, asked, ABSENT, || "it to be there".to_owned())?;
        let expectation = self.store.expect_write(key);
        let url = Object::<V>::url_path(&(), Some(key.namespace()));
        let body =
            serde_json::to_vec(body).map_err(|error| ApiError::transient(error.to_string()))?;
        let mut request = Request::new(url)
            .create(&self.params(), body)
            .map_err(kube::Error::BuildRequest)?;
        // The path does not name it.
        request.extensions_mut().insert(key.clone());
        let answer = self.shared.client.request(request).await;
        self.note_unknown(cx, key, &answer, asked, ABSENT);
        let answer: Object<V> = self.written(cx, key, answer)?;
        self.corrections.record(
            key,
            cx.wanted_by(),
            asked,
            ABSENT,
            answer.version,
            self.exists(),
        );
        info!(object = %cx.key(), dependent = %key, "created the {}", V::KIND.kind);
        let stored = self.store.record_response(answer, expectation);
        stored.ok_or(ApiError::Conflict)
    }

    /// Sends the patch that `plan` makes of what is seen, if it makes one that is [needed](Self::needed), and asks `plan` again
    /// about the answer. It is a strategic merge patch where the kind is Kubernetes' own, and a merge patch of a custom
    /// resource.
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
        let asked = match plan(seen) {
            Some(asked) if self.is_needed(key, seen, &asked) => asked,
            overruled => {
                return Ok(Patched {
                    view: Arc::clone(&seen.view),
                    changed: false,
                    overruled,
                });
            }
        };
        Self::check_owner(cx, key, seen)?;
        cx.may_act()?;
        self.may_patch(cx, key, seen, &asked)?;
        let mut patch = asked.clone();
        patch["metadata"]["uid"] = seen.view.uid().into();
        patch["metadata"]["resourceVersion"] = based_on(seen.version)?.into();
        let expectation = self.store.expect_write(key);
        let params = PatchParams {
            field_manager: self.params().field_manager,
            ..PatchParams::default()
        };
        let answer = self.api(key);
        let answer = answer
            .patch(key.name(), &params, &V::KIND.patch(&patch))
            .await;
        self.note_unknown(cx, key, &answer, Asked::Fields(&asked), seen.version);
        let answer = self.written(cx, key, answer)?;
        let version = answer.version;
        let view = self.store.record_response(answer, expectation);
        let view = view.ok_or(ApiError::Conflict)?;
        let changed = version != seen.version;
        if changed {
            self.corrections.record(
                key,
                cx.wanted_by(),
                Asked::Fields(&asked),
                seen.version,
                version,
                self.exists(),
            );
            let fields = brief(&names_of_fields(&asked));
            info!(object = %cx.key(), dependent = %key, fields, "changed the {}", V::KIND.kind);
        }
        let stored = Snapshot {
            version,
            view: Arc::clone(&view),
        };
        let overruled = plan(&stored);
        if overruled.is_some() {
            let (left, list) = (Content(&*view), expectation.list());
            self.patches
                .record(key, asked.to_string(), left, list, self.exists());
            self.store.note_unheeded(key);
        } else {
            self.patches.forget(key, asked.to_string());
        }
        Ok(Patched {
            view,
            changed,
            overruled,
        })
    }

    /// Sees to it that an object is as it should be that is made for the one being reconciled: creates it as `manifest` says
    /// where there is none, under this name, in the namespace of that one and controlled by it, and [patches](Self::patch) it as
    /// `plan` says. One that is somebody else's stays as it is.
    ///
    /// # Errors
    /// See [`ApiError`]; [`ApiError::Overruled`] where it is not as `plan` would have it though the API server took the patch.
    pub async fn ensure<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        mut manifest: Value,
        plan: impl Fn(&V) -> Option<Value>,
    ) -> Result<Arc<V>, ApiError> {
        if self.store.get(key).is_none() {
            // Without which the API server takes no custom resource.
            manifest["apiVersion"] = V::KIND.api_version().into();
            manifest["kind"] = V::KIND.kind.into();
            let metadata = &mut manifest["metadata"];
            metadata["name"] = key.name().into();
            metadata["namespace"] = key.namespace().into();
            metadata["ownerReferences"] = json!([{
                "apiVersion": P::KIND.api_version(),
                "kind": P::KIND.kind,
                "name": cx.key().name(),
                "uid": cx.seen.view.uid(),
                "controller": true,
                "blockOwnerDeletion": true,
            }]);
            let created = self.create(cx, key, &manifest).await?;
            if plan(&created).is_none() {
                return Ok(created);
            }
        }
        // Or it was deleted as soon as it was there.
        let actual = self.store.get(key).ok_or(ApiError::Conflict)?;
        Self::check_owner(cx, key, &actual)?;
        let plan = |actual: &Snapshot<V>| plan(&actual.view);
        let patched = self.patch(cx, key, &actual, plan).await?;
        match patched.overruled {
            None => Ok(patched.view),
            Some(missing) => Err(ApiError::Overruled(
                V::KIND.kind,
                key.name().to_owned(),
                wanted(&missing),
            )),
        }
    }

    /// Deletes an object, and in the background what it owns. The store has it until the watch tells that it is gone,
    /// which takes as long as somebody's finalizer does: it is not asked again meanwhile.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn delete<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        seen: &Snapshot<V>,
    ) -> Result<(), ApiError> {
        Self::check_owner(cx, key, seen)?;
        if self.is_going(key, seen) {
            return Ok(());
        }
        cx.may_act()?;
        let asked = Asked::Gone(cx.inputs);
        self.may_write(cx, key, asked, seen.version, || "it to be gone".to_owned())?;
        let preconditions = Preconditions {
            uid: Some(seen.view.uid().to_owned()),
            resource_version: Some(based_on(seen.version)?),
        };
        let params = DeleteParams {
            preconditions: Some(preconditions),
            ..DeleteParams::background()
        };
        self.store.expect_write(key);
        let client = self.shared.client.clone();
        let api = Api::<PartialObjectMeta<Object<V>>>::namespaced(client, key.namespace());
        let answer = api.delete(key.name(), &params).await;
        self.note_unknown(cx, key, &answer, asked, seen.version);
        let answer = self.written(cx, key, answer)?;
        self.corrections.record(
            key,
            cx.wanted_by(),
            asked,
            seen.version,
            ABSENT,
            self.exists(),
        );
        // The answer is the object that waits for its finalizers, or no object, where it is gone.
        let left = answer.left();
        if left.is_none_or(|left| left.metadata.deletion_timestamp.is_some()) {
            self.store.note_deletion(key, seen.view.uid());
        }
        info!(object = %cx.key(), dependent = %key, "deleted the {}", V::KIND.kind);
        Ok(())
    }

    /// Whether its deletion was accepted, and the watch has not told yet.
    #[must_use]
    pub fn is_going(&self, key: &Key, seen: &Snapshot<V>) -> bool {
        self.store.is_going(key, seen.view.uid())
    }

    /// Asks the API server for an object, before what a watch that is behind must not bring about: none where there is none.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn look_up<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
    ) -> Result<Option<V>, ApiError> {
        cx.may_act()?;
        let this_one = ListParams::default().fields(&format!("metadata.name={}", key.name()));
        let api = self.api(key);
        let answer = timeout(LOOK_UP_TIMEOUT, api.list(&this_one)).await;
        cx.attempt.gets_on(cx.key());
        let answer = answer.map_err(|_| {
            ApiError::transient(format!(
                "the API server has not answered within {LOOK_UP_TIMEOUT:?}"
            ))
        })?;
        if answer.as_ref().is_err_and(for_want_of_a_right) {
            self.refused(cx, true);
        }
        let found = answer.map_err(|error| {
            let words = root_cause(&error);
            match error.into() {
                // Whatever it would say of a write, it says nothing of the object, and no change of that is to be waited for.
                ApiError::Rejected(_) | ApiError::Denied(..) | ApiError::Conflict => {
                    ApiError::transient(brief(&words))
                }
                other => other,
            }
        })?;
        let mut found = found.items.into_iter();
        Ok(found.find(|now| now.key == *key).map(|now| now.view))
    }

    /// Nothing is changed that the object being reconciled does not control (invariant I5).
    fn check_owner<P: Primary>(
        cx: &Context<'_, P>,
        key: &Key,
        actual: &Snapshot<V>,
    ) -> Result<(), ApiError> {
        if is_controlled(&*actual.view, &*cx.seen.view) {
            Ok(())
        } else {
            Err(ApiError::Foreign(V::KIND.kind, key.name().to_owned()))
        }
    }

    /// What a write of the object `key` came to. A refused one calls for a check of the rights, whatever else becomes of it.
    fn written<P: Primary, T>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        answer: kube::Result<T>,
    ) -> Result<T, ApiError> {
        cx.attempt.gets_on(cx.key());
        let lacked = answer.as_ref().is_err_and(for_want_of_a_right);
        let answer = answer.map_err(ApiError::from);
        match &answer {
            Err(
                ApiError::Rejected(_)
                | ApiError::Denied(..)
                | ApiError::NamespaceTerminating
                | ApiError::NotLeading,
            ) => {
                self.store.withdraw_write(key);
            }
            // It was done, or may have been, or the watch tells what it met.
            Ok(_)
            | Err(
                ApiError::Conflict
                | ApiError::Transient(..)
                | ApiError::Foreign(..)
                | ApiError::Overruled(..)
                | ApiError::Contested(..)
                | ApiError::TimedOut(_),
            ) => {}
        }
        if let Err(ApiError::Rejected(_) | ApiError::Denied(..)) = &answer {
            self.refused(cx, lacked);
        }
        answer
    }

    /// Calls for a check of the rights.
    fn refused<P: Primary>(&self, cx: &Context<'_, P>, for_want_of_rights: bool) {
        self.refusals.refused(cx.key(), for_want_of_rights);
    }

    /// Notes a write of which it is not known whether it was made.
    fn note_unknown<P: Primary, T>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        answer: &kube::Result<T>,
        asked: Asked<'_>,
        found: u64,
    ) {
        if answer.as_ref().is_err_and(may_have_been_made) {
            let by = cx.wanted_by();
            (self.corrections).record_unknown(key, by, asked, found, self.exists());
        }
    }

    /// Which objects there are, for what is remembered of them.
    fn exists(&self) -> impl Fn(&Key) -> bool {
        |key| self.store.version(key).is_some()
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

/// Whether a write may have been made that failed so: its answer never came, or could not be read, or is of a server that failed
/// meanwhile.
fn may_have_been_made(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => matches!(status.code, 500 | 502 | 504),
        error => !fence::is_refused(error),
    }
}

/// Whether the API server refuses this to whoever sent it, and not for what is written.
fn for_want_of_a_right(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403 && lacks_right(&status.message))
}

/// What a write fails with that has to wait.
fn put_off<P: Primary>(cx: &Context<'_, P>, key: &Key, wanted: String, wait: Wait) -> ApiError {
    cx.would_act();
    crate::telemetry::trace::decided("put off");
    if wait.is_undone {
        return ApiError::Contested(key.name().to_owned(), wanted, wait.time);
    }
    let words = format!(
        "put off: of the last writes of {} it is not known what came of them: wanted {wanted}",
        key.name()
    );
    // The queue waits no longer for it: nobody has asked for that, and what is asked for next is another matter.
    ApiError::transient(words)
}

/// The resourceVersion that a write is based on. To the API server, 0 would be none at all.
fn based_on(version: u64) -> Result<String, ApiError> {
    if version == 0 {
        let words =
            "the object has no resourceVersion that is a number: nothing is written without one";
        return Err(ApiError::transient(words));
    }
    Ok(version.to_string())
}

fn is_controlled<V: Cached, P: Primary>(object: &V, by: &P) -> bool {
    object.owner().is_some_and(|owner| *owner.uid == *by.uid())
}

/// What a patch is to change, for people: the names of its fields. Their values may be long, and secret.
#[must_use]
pub fn wanted(patch: &Value) -> String {
    brief(&format!("other {}", names_of_fields(patch)))
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
