//! Harness for unit tests of a [`Reconciler`]. It reconciles one object at a time, with a client and store contents from the
//! test. [`assert_lossless`] checks a conversion between versions.

#[cfg(test)]
pub(crate) mod fixtures;

use std::{sync::Arc, time::Duration};

use futures::FutureExt as _;
use kube::Client;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    api::{
        conversion::{Definition, raw},
        key::Key,
        object::{Cached, Object, Primary, kind_of},
    },
    cache::{
        readiness::Scopes,
        store::{Owners, Snapshot, Store},
    },
    config::{app::App, environment::Host, settings::Config},
    controller::{
        builder::{Builder, ControllerBuilder},
        object_reconciler::ObjectReconciler,
        single::Common,
        trigger::Inbox,
    },
    reconcile::{
        context::{Attempt, Context, Step},
        live::Live,
        reconciler::{Action, Reconciler},
    },
    telemetry::{
        events::{Recorder, event::EventSource},
        metrics::Metrics,
    },
};

/// Returns an object as the stores of a controller for `P` have it.
#[must_use]
pub fn snapshot<P: Primary, V: Cached>(object: Object<V>) -> Snapshot<V> {
    let owners = Owners::default();
    owners.add::<P>();
    Store::new(&[], owners).snapshot(object).1
}

/// Converts an object into another version of its CRD and back. It must not change: a read and a write back must lose nothing.
/// Call this for objects of each version, best with random ones.
///
/// # Panics
///
/// If the result differs from the object, or if a conversion fails.
pub fn assert_lossless(definition: &Definition, object: &Value, version: &str) {
    let convert = |object: &Value, version: &str| {
        let converted = definition.convert(object, version);
        converted.expect("a conversion does not fail")
    };
    let from = object["apiVersion"].as_str().unwrap_or_default();
    let from = from.rsplit('/').next().unwrap_or_default();
    let between = convert(object, version);
    let back = convert(&between, from);
    // The API server sends 1.0 as 1.
    let sent = raw(object).and_then(|sent| {
        let sent: Result<Value, _> = serde_json::from_str(sent.get());
        sent.map_err(|error| error.to_string())
    });
    assert!(
        sent.as_ref() == Ok(&back),
        "a conversion from {from} to {version} and back changes the object.\n before: {object}\n{version}: {between}\n  after: \
         {back}"
    );
}

/// A reconciler whose stores have no watches. There is no election, and events are discarded.
pub struct Harness<R: Reconciler> {
    pub(crate) work: ObjectReconciler<R>,
    enqueued: Enqueued,
    client: Client,
}

impl<R: Reconciler> Harness<R> {
    /// Returns a harness for the reconciler that `build` creates, with `client`.
    #[must_use]
    pub fn new(
        app: &'static App,
        client: &Client,
        build: impl FnOnce(&mut ControllerBuilder<'_, R::Primary>) -> R,
    ) -> Self {
        let metrics = Metrics::disconnected(app);
        let host = Host::of_this_process();
        let mut builder = Builder::new(&host, client, vec![None], &metrics);
        let parts = builder.declare(app.name, &Inbox::default(), build);
        let refusals = builder.refusals.clone();
        let about = EventSource {
            app,
            reporter: app.reporter,
            instance: "test".into(),
            kind: kind_of::<R::Primary>(),
            host: host.clone(),
        };
        let (recorder, _) = Recorder::new(client.clone(), about, &metrics, || false);
        let common = Common {
            scopes: Scopes::new(
                builder.needs(),
                &builder.namespaces,
                refusals,
                Duration::from_secs(15),
            ),
            recorder,
            metrics,
            host,
            config: Config::shipped(app),
        };
        Self {
            work: common.work(parts),
            enqueued: Enqueued::default(),
            client: client.clone(),
        }
    }

    /// Returns the reconciler.
    #[must_use]
    pub fn reconciler(&self) -> &R {
        &self.work.reconciler
    }

    /// Adds or updates an object in a store, as a watch would.
    pub fn apply<V: Cached>(&self, store: &Store<V>, object: Object<V>) {
        store.apply(0, object);
    }

    /// Removes an object from a store, as a watch would.
    pub fn delete<V: Cached>(&self, store: &Store<V>, object: &Object<V>) {
        store.delete(0, &object.key, object.version);
    }

    /// Makes an [optional](ControllerBuilder::if_installed) resource type appear, with the objects that are in the store. At first,
    /// it is missing.
    pub fn install<V: Cached>(&self, store: &Store<V>) {
        store.appear();
    }

    /// Makes an optional resource type vanish, with its objects.
    pub fn uninstall<V: Cached>(&self, store: &Store<V>) {
        store.vanish(0);
    }

    /// Sets the result of a [live read](crate::View::live), as if it had just been sent. `None`: the object is missing.
    pub fn read<V: Cached>(&self, live: &Live<V>, key: &Key, object: Option<Object<V>>) {
        let object = object.map(|object| Owners::default().snapshot(object).1);
        live.reads.keep(key, Instant::now(), object);
    }

    /// Reconciles an object once, with an otherwise empty queue.
    ///
    /// # Errors
    /// The errors of the reconciler.
    pub async fn reconcile(&self, key: &Key) -> Result<Action, R::Error> {
        self.work.reconcile(key, &self.enqueued).await
    }

    /// Returns the requests that [`reconcile`](Self::reconcile) would send for the steps of its plan, without an answer to any of
    /// them. Live reads are not sent, either: [`read`](Self::read) sets their results. If there are no steps, returns the request for
    /// the status. An error after the first step is not returned.
    ///
    /// # Errors
    /// The errors of the reconciler.
    pub fn plan(&self, key: &Key) -> Result<Vec<Step>, R::Error> {
        let Some(seen) = self.work.primary.store().get(key) else {
            return Ok(Vec::new());
        };
        let cx = Context {
            is_dry_run: true,
            ..self.context(key, &seen)
        };
        let done = self.work.attempt(&cx, &seen).now_or_never();
        let steps = std::mem::take(&mut *cx.steps.lock());
        match done {
            Some(Err(error)) if steps.is_empty() => Err(error),
            _ => Ok(steps),
        }
    }

    /// Returns the keys that were [enqueued](Context::enqueue) since the last call.
    #[must_use]
    pub fn enqueued(&self) -> Vec<Key> {
        std::mem::take(&mut *self.enqueued.0.lock())
    }

    /// Returns the context of a reconcile, for tests of writers.
    #[must_use]
    pub fn context<'a>(
        &'a self,
        key: &'a Key,
        seen: &'a Snapshot<R::Primary>,
    ) -> Context<'a, R::Primary> {
        self.work.context(key, seen, &self.enqueued)
    }

    /// Whether a resync would skip the object.
    #[must_use]
    pub fn is_up_to_date(&self, key: &Key) -> bool {
        self.work.is_up_to_date(key)
    }

    /// Reviews the permissions after rejected writes. Runs until cancelled.
    pub fn check_rights(&self) -> impl Future<Output = ()> + use<R> {
        Arc::clone(&self.work.scopes).check_rights(0, 0, self.client.clone())
    }
}

/// An attempt without a queue or an election. It records enqueued keys.
#[derive(Default)]
struct Enqueued(Mutex<Vec<Key>>);

impl Attempt for Enqueued {
    fn has_urgent_work(&self) -> bool {
        false
    }

    fn leads(&self) -> bool {
        true
    }

    fn heartbeat(&self, _: &Key) {}

    fn enqueue(&self, key: Key) {
        self.0.lock().push(key);
    }
}
