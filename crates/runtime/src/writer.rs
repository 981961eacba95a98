//! The only way to write objects.
//!
//! Every write names the UID and the resourceVersion that it is based on, passes the fence, has its time limit, and has its
//! answer in the store before anybody looks again. What an answer did not change is not asked again until somebody changes
//! the object, and what somebody else undoes again and again is made ever more slowly, whichever the write.

#[cfg(test)]
mod tests;

use std::{
    fmt::Display,
    hash::{DefaultHasher, Hash, Hasher as _},
    sync::{Arc, OnceLock},
    time::Duration,
};

use kube::{
    Api, Client, Resource as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, Request},
    core::{PartialObjectMeta, Status, response::StatusDetails},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::info;

use crate::{
    App, Cached, Context, Event, Finalizable, Host, Key, Object, Primary, Snapshot, Store,
    corrections::{Corrections, GONE, THERE, Wait, fields},
    error::ApiError,
    failure::brief,
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
/// when it returns. What somebody else undoes again and again is written ten times at once, then after 1 s, 2 s and so on up to
/// 5 min, and fails with [`ApiError::Contested`] meanwhile: until the object being reconciled asks for something else, or
/// nothing is undone for twice as long as the next one would wait, a minute at least. What the API server answers with
/// anything but success is an [`ApiError`], which is for the reconciler to return.
pub struct Writer<V> {
    shared: Arc<Shared>,
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

/// The resourceVersion of an object that is not there, among those that [`Corrections`] compares.
const ABSENT: u64 = 0;

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
            finalizers: Ineffective::default(),
            refused: Ineffective::default(),
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
        !self.patches.contains(key, asked, left)
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
        self.may_write(cx, key, patch, seen.version, || wanted(patch))
    }

    /// Whether it is time to ask this of an object that is `found` at this version, which is `wanted`, for people.
    fn may_write<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        asked: &Value,
        found: u64,
        wanted: impl FnOnce() -> String,
    ) -> Result<(), ApiError> {
        match self.corrections.wait(key, cx.wanted_by(), asked, found) {
            None => Ok(()),
            Some(Wait { time, .. }) => Err(put_off(cx, key, wanted(), time)),
        }
    }

    /// Creates an object: a plain create, so that one that the store has not seen yet is not taken over.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn create<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        body: &impl Serialize,
    ) -> Result<Arc<V>, ApiError> {
        cx.may_act()?;
        self.may_write(cx, key, &THERE, ABSENT, || "it to be there".to_owned())?;
        let expectation = self.store.expect_write(key);
        let url = Object::<V>::url_path(&(), Some(key.namespace()));
        let body =
            serde_json::to_vec(body).map_err(|error| ApiError::transient(error.to_string()))?;
        let request = Request::new(url)
            .create(&self.params(), body)
            .map_err(kube::Error::BuildRequest)?;
        let answer = self.shared.client.request(request).await;
        let answer: Object<V> = self.written(cx.key(), key, answer)?;
        self.corrections.record(
            key,
            cx.wanted_by(),
            &THERE,
            ABSENT,
            answer.version,
            self.exists(),
        );
        info!(object = %cx.key(), dependent = %key, "created the {}", V::KIND.kind);
        Ok(self.store.record_response(answer, expectation))
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
        let answer = self.written(cx.key(), key, answer)?;
        let version = answer.version;
        let view = self.store.record_response(answer, expectation);
        let changed = version != seen.version;
        if changed {
            self.corrections.record(
                key,
                cx.wanted_by(),
                &asked,
                seen.version,
                version,
                self.exists(),
            );
            let fields = wanted(&asked);
            info!(object = %cx.key(), dependent = %key, fields, "changed the {}", V::KIND.kind);
        }
        let stored = Snapshot {
            version,
            view: Arc::clone(&view),
        };
        let overruled = plan(&stored);
        if overruled.is_some() {
            self.patches
                .record(key, asked.to_string(), Content(&*view), self.exists());
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
    /// where there is none, under this name and controlled by that one, or [patches](Self::patch) it as `plan` says. One that
    /// is somebody else's stays as it is.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn ensure<P: Primary>(
        &self,
        cx: &Context<'_, P>,
        key: &Key,
        mut manifest: Value,
        plan: impl Fn(&V) -> Option<Value>,
    ) -> Result<Patched<V>, ApiError> {
        let Some(actual) = self.store.get(key) else {
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
            return Ok(Patched {
                view: self.create(cx, key, &manifest).await?,
                changed: true,
                overruled: None,
            });
        };
        Self::check_owner(cx, key, &actual)?;
        let plan = |actual: &Snapshot<V>| plan(&actual.view);
        self.patch(cx, key, &actual, plan).await
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
        if self.store.is_going(key, seen.view.uid()) {
            return Ok(());
        }
        cx.may_act()?;
        self.may_write(cx, key, &GONE, seen.version, || "it to be gone".to_owned())?;
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
        let answer = self.written(cx.key(), key, answer)?;
        self.corrections.record(
            key,
            cx.wanted_by(),
            &GONE,
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

    /// What a write of the object `key` for `primary` came to. A refused one calls for a check of the rights, whatever
    /// else becomes of it.
    fn written<T>(&self, primary: &Key, key: &Key, answer: kube::Result<T>) -> Result<T, ApiError> {
        let answer = answer.map_err(ApiError::from);
        match &answer {
            Err(ApiError::Rejected(_) | ApiError::NamespaceTerminating | ApiError::NotLeading) => {
                self.store.withdraw_write(key);
            }
            // It was done, or may have been, or the watch tells what it met.
            Ok(_)
            | Err(
                ApiError::Conflict
                | ApiError::Transient(..)
                | ApiError::Foreign(..)
                | ApiError::Contested(..),
            ) => {}
        }
        if let (Err(ApiError::Rejected(_)), Some(scopes)) = (&answer, self.shared.scopes.get()) {
            scopes.refused(primary);
        }
        answer
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

    /// Reports the status where it is [news](Self::is_news), with an event that says why it is another one.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn report(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
        status: &P::Status,
        event: Event,
    ) -> Result<(), ApiError> {
        if !self.is_news(cx.key(), seen, status) {
            return Ok(());
        }
        self.may_report(cx, seen, status)?;
        cx.event(event);
        self.update_status(cx, seen, status).await
    }

    /// Whether it is time to report the status. Where it is not, the user is told by an event, as it cannot be by the status.
    fn may_report(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
        status: &P::Status,
    ) -> Result<(), ApiError> {
        cx.may_act()?;
        let (found, asked) = (text_of::<P>(seen.view.status()), asked_of::<P>(status));
        let wait = (self.status_corrections).wait(cx.key(), cx.wanted_by(), &asked, found);
        wait_and_tell(cx, wait, || "another status".to_owned())
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
        self.may_report(cx, seen, status)?;
        let key = cx.key();
        // Somebody may have annotated the object while others were written: no conflict.
        let version = self.store.newest(key, seen);
        let update = json!({
            "apiVersion": P::KIND.api_version(),
            "kind": P::KIND.kind,
            "metadata": {
                "name": key.name(),
                "namespace": key.namespace(),
                "uid": seen.view.uid(),
                "resourceVersion": based_on(version)?,
            },
            "status": status,
        });
        let api = self.api(key);
        let expectation = self.store.expect_write(key);
        let answer = api
            .replace_subresource("status", key.name(), &self.params(), &update)
            .await;
        self.notice_end(key, version, &answer);
        let answer = self.written(key, key, answer)?;
        let stored = self.store.record_response(answer, expectation);
        let [found, left] = [seen.view.status(), stored.status()].map(text_of::<P>);
        let asked = asked_of::<P>(status);
        (self.status_corrections).record(key, cx.wanted_by(), &asked, found, left, self.exists());
        let (asked, got) = (Says::<P>(status), Says::<P>(stored.status()));
        // As `is_news` asks: times and all.
        if *status == *stored.status() {
            self.statuses.forget(key, asked);
        } else {
            self.statuses
                .record(key, asked, (stored.uid(), got), self.exists());
        }
        Ok(())
    }

    /// Replaces the finalizers, so that the one of this `name` is there or is not.
    async fn set_finalizers(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
        (name, is_set): (&str, bool),
        finalizers: &[&str],
    ) -> Result<Snapshot<P>, ApiError> {
        cx.may_act()?;
        let key = cx.key();
        let version = self.store.newest(key, seen);
        // Those of others are their own affair.
        let asked = json!({ "metadata": { "finalizers": { name: is_set } } });
        let wait = self.corrections.wait(key, cx.wanted_by(), &asked, version);
        wait_and_tell(cx, wait, || format!("the finalizers {finalizers:?}"))?;
        let expectation = self.store.expect_write(key);
        // A custom resource takes no strategic merge patch.
        let patch = Patch::Merge(json!({ "metadata": {
            "uid": seen.view.uid(),
            "resourceVersion": based_on(version)?,
            "finalizers": finalizers,
        }}));
        let params = PatchParams {
            field_manager: self.params().field_manager,
            ..PatchParams::default()
        };
        let answer = self.api(key).patch(key.name(), &params, &patch).await;
        self.notice_end(key, version, &answer);
        let answer = self.written(key, key, answer)?;
        self.corrections.record(
            key,
            cx.wanted_by(),
            &asked,
            version,
            answer.version,
            self.exists(),
        );
        Ok(Snapshot {
            version: answer.version,
            view: self.store.record_response(answer, expectation),
        })
    }

    /// Notes that the object is gone, if that is why a write failed.
    fn notice_end<T>(&self, key: &Key, version: u64, answer: &kube::Result<T>) {
        if let Err(kube::Error::Api(status)) = answer
            && is_gone(status, key)
        {
            self.store.outdate(key, version);
        }
    }

    /// Notes that this status is refused and not worth another try: until the object is another one, or rights that were
    /// missing are back, it is no news.
    pub fn give_up(&self, cx: &Context<'_, P>, seen: &Snapshot<P>, status: &P::Status) {
        if cx.rehearses {
            return;
        }
        let left = self.refuses(cx.key(), seen);
        self.refused
            .record(cx.key(), Says::<P>(status), left, self.exists());
    }

    /// Asks the API server whether the object is as the store has it, its metadata and status aside: before what a controller
    /// of an earlier generation must not do, and which no precondition of the write itself keeps it from. The answer is one of now, not of a watch that
    /// may be behind.
    ///
    /// # Errors
    /// [`ApiError::Conflict`] where it is not.
    pub async fn confirm(&self, cx: &Context<'_, P>, seen: &Snapshot<P>) -> Result<(), ApiError> {
        self.look_up(cx, seen).await.map(drop)
    }

    /// The object as the API server has it, where [`confirm`](Self::confirm) has nothing against it.
    async fn look_up(&self, cx: &Context<'_, P>, seen: &Snapshot<P>) -> Result<P, ApiError> {
        cx.may_act()?;
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
        let current = found.items.into_iter().find(|now| {
            let is = &now.view;
            now.key == *key
                && (is.uid(), is.generation()) == (was.uid(), was.generation())
                && is.is_deleting() == was.is_deleting()
        });
        current.map(|now| now.view).ok_or(ApiError::Conflict)
    }

    /// What a refusal of a status is about: another object, or other rights, may be another matter.
    fn refuses(&self, key: &Key, seen: &Snapshot<P>) -> impl Hash {
        let scopes = self.shared.scopes.get();
        let regained = scopes.map_or(0, |scopes| scopes.rights_regained(key));
        (seen.version, regained)
    }
}

/// A finalizer of this controller's: while an object has it, the object stays, and can be seen to be on its way out.
///
/// It is to be set before anything is done that has to be undone, and cleared when it is.
pub struct Finalizer<P> {
    name: &'static str,
    primary: Arc<Writer<P>>,
}

impl<P: Finalizable> Finalizer<P> {
    pub(crate) fn new(name: &'static str, primary: Arc<Writer<P>>) -> Self {
        Self { name, primary }
    }

    /// Whether an object has it.
    #[must_use]
    pub fn is_set(&self, seen: &Snapshot<P>) -> bool {
        self.is_in(&seen.view)
    }

    fn is_in(&self, view: &P) -> bool {
        view.finalizers().iter().any(|name| name == self.name)
    }

    /// Sets it where it is not set, and returns the object with it: what follows is based on that.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn set(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
    ) -> Result<Snapshot<P>, ApiError> {
        if self.is_set(seen) {
            return Ok(seen.clone());
        }
        let others = seen.view.finalizers().iter().map(String::as_str);
        let all: Vec<_> = others.chain([self.name]).collect();
        self.replace(cx, seen, true, &all).await
    }

    /// Does something outside the cluster, where no precondition and no fence is, or undoes it: if the object is still as it was
    /// seen, by the word of the API server, and this replica still leads. (What the stores of a new leader have may be
    /// older than what the one before has undone.)
    ///
    /// `act` holds up everything else in this process, the renewal of the Lease too: what takes longer than some milliseconds is to
    /// be handed over in it, to a thread or a queue of the kind's own. A process that is frozen within `act` goes on with it when it is thawed. It is to be short, it must not harm when it is
    /// done twice, and what must never be done late, the other side has to refuse.
    ///
    /// # Errors
    /// See [`ApiError`]; what goes wrong in `act` is one of those that pass.
    pub async fn outside<T, E: Display>(
        &self,
        cx: &Context<'_, P>,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, ApiError> {
        let now = self.primary.store().get(cx.key());
        if !now.is_some_and(|now| self.is_in(&now.view)) {
            let words = format!("the finalizer {} is not set yet", self.name);
            return Err(ApiError::transient(words));
        }
        let now = self.primary.look_up(cx, cx.seen).await?;
        // Somebody may have taken it away since, and then nothing holds the object until what is done is undone.
        if !self.is_in(&now) {
            return Err(ApiError::Conflict);
        }
        // The answer may have been long in coming.
        if !(cx.leads)() {
            return Err(ApiError::NotLeading);
        }
        act().map_err(|error| ApiError::transient(brief(&error.to_string())))
    }

    /// Clears it where it is set. An object that is being deleted is gone with its last one.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn clear(&self, cx: &Context<'_, P>, seen: &Snapshot<P>) -> Result<(), ApiError> {
        if !self.is_set(seen) {
            return Ok(());
        }
        let all = seen.view.finalizers().iter().map(String::as_str);
        let others: Vec<_> = all.filter(|name| *name != self.name).collect();
        self.replace(cx, seen, false, &others).await.map(drop)
    }

    /// Replaces the finalizers by `all`, so that this one is there, or is not.
    async fn replace(
        &self,
        cx: &Context<'_, P>,
        seen: &Snapshot<P>,
        to_set: bool,
        all: &[&str],
    ) -> Result<Snapshot<P>, ApiError> {
        let (key, ineffective) = (cx.key(), &self.primary.finalizers);
        let overruled = || {
            let done = if to_set { "set" } else { "cleared" };
            let words = format!(
                "the finalizer {} cannot be {done}: the API server takes the request and leaves it as it was",
                self.name
            );
            Err(ApiError::Rejected(words))
        };
        let asked = (self.name, to_set);
        let left = |view: &P| {
            (
                view.uid().to_owned(),
                view.generation(),
                view.finalizers().to_vec(),
            )
        };
        if ineffective.contains(key, asked, left(&seen.view)) {
            return overruled();
        }
        let now = self.primary.set_finalizers(cx, seen, asked, all).await?;
        if self.is_set(&now) == to_set {
            ineffective.forget(key, asked);
            return Ok(now);
        }
        ineffective.record(key, asked, left(&now.view), self.primary.exists());
        overruled()
    }
}

/// What a write fails with that has to wait.
fn put_off<P: Primary>(cx: &Context<'_, P>, key: &Key, wanted: String, time: Duration) -> ApiError {
    cx.would_act();
    crate::telemetry::trace::decided("put off");
    ApiError::Contested(key.name().to_owned(), wanted, time)
}

/// Fails where a write of the object itself has to wait, and tells the user: once, until it is left alone.
fn wait_and_tell<P: Primary>(
    cx: &Context<'_, P>,
    wait: Option<Wait>,
    wanted: impl FnOnce() -> String,
) -> Result<(), ApiError> {
    let Some(Wait { time, is_first }) = wait else {
        return Ok(());
    };
    let contested = put_off(cx, cx.key(), wanted(), time);
    if is_first {
        cx.event(Event::failed(&contested));
    }
    Err(contested)
}

/// A status, to be compared: times and all.
fn text_of<P: Primary>(status: &P::Status) -> String {
    serde_json::to_string(status).unwrap_or_default()
}

/// What a status asks for, as [`Corrections`] are told: without times.
fn asked_of<P: Primary>(status: &P::Status) -> Value {
    let mut hasher = DefaultHasher::new();
    Says::<P>(status).hash(&mut hasher);
    hasher.finish().into()
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
    let mut fields = fields(patch);
    fields.retain(|(_, value)| **value != json!({}));
    let is_note = |(path, _): &(String, _)| path.starts_with("metadata.annotations.");
    if !fields.iter().all(is_note) {
        fields.retain(|field| !is_note(field));
    }
    let names: Vec<_> = fields.into_iter().map(|(path, _)| path).collect();
    brief(&format!("other {}", names.join(", ")))
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
