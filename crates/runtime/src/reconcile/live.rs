//! Live reads of a plan.

use std::{any::TypeId, sync::Arc, time::Duration};

use futures::FutureExt as _;

use crate::{
    api::{
        key::Key,
        object::{Cached, Primary},
    },
    cache::{
        live::{LiveReads, ReadError},
        readiness::refusals::Refusals,
        store::Snapshot,
    },
    reconcile::{
        context::{Context, View},
        error::ApiError,
    },
};

/// Maximum number of reads in one attempt.
pub(crate) const MOST: usize = 64;

/// Objects of a resource type that are read live, without a watch: [`View::live`].
pub struct Live<V> {
    pub(crate) reads: Arc<LiveReads<V>>,
    refusals: Arc<Refusals>,
}

impl<V> Clone for Live<V> {
    fn clone(&self) -> Self {
        Self {
            reads: Arc::clone(&self.reads),
            refusals: Arc::clone(&self.refusals),
        }
    }
}

impl<V> Live<V> {
    pub(crate) fn new(reads: Arc<LiveReads<V>>, refusals: Arc<Refusals>) -> Self {
        Self { reads, refusals }
    }
}

impl<P: Primary> View<'_, P> {
    /// Returns an object that was read live less than `max_age` ago. `None`: it did not exist. For objects that change rarely,
    /// such as a `StorageClass`, of which a watch would be too much.
    ///
    /// Without such a result, the plan ends with [`ApiError::Unread`]. The runtime then sends a GET, with a timeout of 10 s, and
    /// makes the plan again. It keeps the results for all objects of the program, the last 10,000 of each resource type; watch a
    /// type if more objects are needed. An attempt sends at most 64 reads. A result of the attempt itself is never too
    /// old.
    ///
    /// No change of the object enqueues the reconciled one. A resync finds that a result is too old, and enqueues the reconciled
    /// object. Of the dry runs, only the command `plan` sends the GETs.
    ///
    /// # Errors
    ///
    /// - [`ApiError::Unread`], which the plan must return.
    /// - [`ApiError::Denied`] if the permission to get the object is missing.
    /// - [`ApiError::Transient`] if the read failed, or if the plan needs more reads than one attempt may send.
    /// - [`ApiError::InvalidSpec`] as in [`require`](Self::require).
    pub fn live<V: Cached>(
        &self,
        live: &Live<V>,
        key: &Key,
        max_age: Duration,
    ) -> Result<Option<Snapshot<V>>, ApiError> {
        self.check_namespace::<V>(key)?;
        let cx = self.0;
        let mut reads = cx.reads.lock();
        reads.is_used = true;
        let object = (TypeId::of::<V>(), key.clone());
        if let Some((_, result)) = reads.done.iter().find(|(of, _)| *of == object) {
            let object = result.clone()?.downcast::<Option<Snapshot<V>>>();
            return Ok(object.ok().and_then(|object| (*object).clone()));
        }
        if let Some(known) = live.reads.get(key, max_age) {
            return Ok(known);
        }
        if reads.done.len() >= MOST {
            let text = format!("cannot read more than {MOST} objects live in one reconcile");
            return Err(ApiError::transient(text));
        }
        let (live, by, of) = (live.clone(), cx.key.clone(), key.clone());
        let read = async move {
            let found = live.reads.read(&of).await;
            let found = found.map_err(|error| live.error(&by, &of, error))?;
            Ok(Arc::new(found) as _)
        };
        reads.wanted.push((object, read.boxed()));
        Err(ApiError::Unread(V::KIND.kind, key.to_string()))
    }
}

impl<V: Cached> Live<V> {
    /// Returns the error for the reconcile of `by`.
    fn error(&self, by: &Key, of: &Key, error: ReadError) -> ApiError {
        let kind = V::KIND.kind;
        match error {
            ReadError::Forbidden(text) => {
                self.refusals.refused(by, true);
                ApiError::Denied(format!("cannot read {kind} {of}: {text}"), Duration::ZERO)
            }
            ReadError::Failed(text, asked) => {
                ApiError::Transient(format!("cannot read {kind} {of}: {text}"), asked)
            }
        }
    }
}

impl<P: Primary> Context<'_, P> {
    /// Sends the reads that the last plan lacked. Returns whether there were any.
    pub(crate) async fn read_live(&self) -> bool {
        if self.is_dry_run {
            return false;
        }
        let wanted = std::mem::take(&mut self.reads.lock().wanted);
        let is_any = !wanted.is_empty();
        for (object, read) in wanted {
            let result = if self.attempt.leads() {
                read.await
            } else {
                Err(ApiError::NotLeading)
            };
            self.attempt.heartbeat(self.key);
            self.reads.lock().done.push((object, result));
        }
        is_any
    }
}
