//! Declaration of the resource types that a controller watches and writes.

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use futures::future::BoxFuture;
use kube::Resource as _;

use crate::{
    api::{
        key::Key,
        kind::Kind,
        object::{Cached, Content, Finalizable, Object, Primary},
        reference::References,
    },
    cache::{
        readiness::{
            Status,
            namespace::{Permission, RequiredAccess},
            refusals::Refusals,
        },
        store::{Change, Owners, Store},
        watch::watch,
    },
    client::{context::ClientContext, fence},
    controller::{event_handler::EventHandler, metrics},
    reconcile::writer::{Writer, disputes::Requester, finalizer::Finalizer, history::WriteHistory},
    telemetry::{
        health::Heartbeat,
        metrics::Metrics,
        object_state::{MOST, Record},
    },
};

/// Declares the resource types that a controller watches and writes.
///
/// Every replica watches all of them in the configured namespaces, so a new leader starts with warm stores.
///
/// Each resource type costs one watch per configured namespace, or a single watch of the cluster. It needs the permissions to
/// list and watch, and a written type those to write it as well. A replica without a permission reports it in its log and its
/// readiness. It still serves the namespaces where it has all permissions.
pub struct Builder<P> {
    pub(crate) shared: Arc<ClientContext>,
    /// Created before the writers, which report to it.
    pub(crate) refusals: Arc<Refusals>,
    pub(crate) namespaces: Vec<Option<String>>,
    pub(crate) metrics: Metrics,
    owners: Owners,
    primary: Arc<Writer<P>>,
    rights: Vec<Permission>,
    unreviewed: Vec<Permission>,
    dependents: Vec<Box<dyn Informer<P>>>,
}

impl<P: Primary> Builder<P> {
    pub(crate) fn new(
        shared: Arc<ClientContext>,
        namespaces: Vec<Option<String>>,
        metrics: &Metrics,
    ) -> Self {
        assert_fenced::<P>();
        let owners = Owners::default();
        owners.add::<P>();
        let store = Arc::new(Store::new(&namespaces, owners.clone()));
        let refusals = Refusals::new(&namespaces);
        let right = Permission {
            verb: "update",
            kind: P::KIND,
            subresource: "status",
        };
        Self {
            primary: Arc::new(Writer::new(&shared, &refusals, store)),
            shared,
            refusals,
            namespaces,
            owners,
            metrics: metrics.clone(),
            rights: vec![right],
            unreviewed: Vec::new(),
            dependents: Vec::new(),
        }
    }

    /// Returns the writer and store of the reconciled type. A status update needs the permission to update the subresource
    /// `status`.
    #[must_use]
    pub fn primary(&self) -> Arc<Writer<P>> {
        Arc::clone(&self.primary)
    }

    /// Returns the registry for the reconciler's own metrics.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Watches a resource type that this controller creates. A change enqueues the controlling owner and all objects that
    /// [reference](Cached::references) the changed one.
    ///
    /// - Reviewed permissions: create and patch.
    /// - Reviewed by `doctor` only: update of the primary's subresource `finalizers`. The admission plugin
    ///   `OwnerReferencesPermissionEnforcement` requires it, because the created objects block the deletion of their owner.
    /// - For a reconciler that deletes such objects: see [`deletes`](Self::deletes).
    ///
    /// # Panics
    ///
    /// - If the type is watched already: see [`watches`](Self::watches).
    /// - For Events: the [fence] lets them through, so a former leader could still write them.
    ///
    /// [fence]: crate::client::fence
    pub fn owns<V: Cached>(&mut self) -> Writer<V> {
        assert_fenced::<V>();
        let rights = ["create", "patch"].map(|verb| Permission {
            verb,
            kind: V::KIND,
            subresource: "",
        });
        // Permissions of owned types are reviewed before the update of the primary's status.
        self.rights
            .splice(self.rights.len() - 1..self.rights.len() - 1, rights);
        let store = self.store();
        let writer = Writer::new(&self.shared, &self.refusals, Arc::clone(&store));
        self.add(store, Some(Arc::clone(&writer.history)));
        writer
    }

    /// Declares that the reconciler deletes objects of a type that it owns. `doctor` reviews the permission.
    pub fn deletes<V: Cached>(&mut self) {
        self.unreviewed.push(Permission {
            verb: "delete",
            kind: V::KIND,
            subresource: "",
        });
    }

    /// Watches a resource type that this controller only reads. A change enqueues the objects that reference the changed one.
    ///
    /// # Panics
    ///
    /// If the type is watched already: reconciled, owned or read. Only one of two stores would contain the responses to writes.
    /// Read an owned type through [`Writer::store`].
    pub fn watches<V: Cached>(&mut self) -> Arc<Store<V>> {
        let store = self.store();
        self.add(Arc::clone(&store), None);
        store
    }

    fn store<V: Cached>(&self) -> Arc<Store<V>> {
        Arc::new(Store::new(&self.namespaces, self.owners.clone()))
    }

    fn add<V: Cached>(&mut self, store: Arc<Store<V>>, history: Option<Arc<WriteHistory<V>>>) {
        let Kind { group, plural, .. } = V::KIND;
        let watched = self.dependents.iter().map(|informer| informer.kind());
        assert!(
            [P::KIND]
                .into_iter()
                .chain(watched)
                .all(|kind| (kind.group, kind.plural) != (group, plural)),
            "{plural} of the group {group:?} are already watched: declare each resource type once, as reconciled, owned or \
             watched"
        );
        self.dependents.push(Box::new(Watched {
            store,
            enqueue: EventHandler::dependent_changed::<V>,
            history,
        }));
    }

    pub(crate) fn finish(mut self) -> (Arc<Writer<P>>, Informers<P>, RequiredAccess) {
        if self.rights.iter().any(|right| right.verb == "create") {
            self.unreviewed.push(Permission {
                verb: "update",
                kind: P::KIND,
                subresource: "finalizers",
            });
        }
        let mut watched = vec![P::KIND];
        watched.extend(self.dependents.iter().map(|informer| informer.kind()));
        let needs = RequiredAccess {
            primary: P::KIND,
            watched,
            rights: self.rights,
            unreviewed: self.unreviewed,
        };
        let mut all: Vec<Box<dyn Informer<P>>> = vec![Box::new(Watched {
            store: Arc::clone(self.primary.store()),
            enqueue: EventHandler::primary_changed,
            history: Some(Arc::clone(&self.primary.history)),
        })];
        all.extend(self.dependents);
        (self.primary, Informers(all), needs)
    }
}

impl<P: Finalizable> Builder<P> {
    /// Declares a finalizer on the reconciled type, named `domain/name`, for cleanup outside the cluster. It needs the
    /// permission to patch the objects.
    pub fn finalizer(&mut self, name: &'static str) -> Finalizer<P> {
        self.rights.push(Permission {
            verb: "patch",
            kind: P::KIND,
            subresource: "",
        });
        Finalizer::new(name, self.primary())
    }
}

/// All watched resource types, the reconciled type first.
pub(crate) struct Informers<P>(Vec<Box<dyn Informer<P>>>);

impl<P: Primary> Informers<P> {
    pub fn iter(&self) -> impl Iterator<Item = &dyn Informer<P>> {
        self.0.iter().map(|informer| &**informer)
    }

    /// Returns the number of changes in all stores: see [`Store::changes`].
    pub fn changes(&self) -> u64 {
        self.iter().map(Informer::changes).sum()
    }

    /// Returns the objects that `view` references, with the informers of their resource types.
    fn referenced(
        &self,
        key: &Key,
        view: &P,
    ) -> impl Iterator<Item = (&dyn Informer<P>, Key)> + use<'_, P> {
        let references = References::of(key, view).into_iter();
        references.filter_map(|(kind, to)| {
            let mut informers = self.iter();
            Some((informers.find(|it| it.kind().is_same(kind))?, to))
        })
    }

    /// Returns a fingerprint of the versions of all objects that `view` references or controls. It is never 0.
    pub fn basis(&self, key: &Key, view: &P) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (informer, to) in self.referenced(key, view) {
            informer.version(&to).hash(&mut hasher);
        }
        for informer in self.iter() {
            informer.controlled_versions(key).hash(&mut hasher);
        }
        hasher.finish() | 1
    }

    /// Returns a fingerprint of the referenced objects of read-only types: they are part of the desired state. Objects that
    /// `view` controls are not.
    pub fn inputs(&self, key: &Key, view: &P) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (informer, to) in self.referenced(key, view) {
            if informer.is_input() {
                informer.content(&to, view).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

impl<P: Primary> Informers<P> {
    /// Returns the records that hold the writes of `view` and of related objects. These are, for each other type, at most
    /// [`MOST`] objects that `view` references and [`MOST`] objects that it controls.
    pub fn holds(&self, key: &Key, view: &P) -> Vec<Record> {
        let (by, references) = (Requester::of(view), References::of(key, view));
        let holds = self.iter().enumerate().flat_map(|(number, informer)| {
            let controlled = informer.controlled_by(key).into_iter().take(MOST);
            let of_kind = references
                .iter()
                .filter(|(kind, _)| informer.kind().is_same(kind));
            let others = of_kind.map(|(_, to)| to.clone()).take(MOST);
            let mut keys: BTreeSet<_> = controlled.chain(others).collect();
            keys.extend((number == 0).then(|| key.clone()));
            keys.into_iter()
                .flat_map(move |key| informer.holds(&key, by))
        });
        holds.collect()
    }
}

/// Panics if the fence would let a former leader write this type.
fn assert_fenced<V: Cached>() {
    let path = Object::<V>::url_path(&(), Some("n"));
    assert!(
        !fence::is_exempt(&path),
        "{} cannot be reconciled or owned: the fence does not reject writes to them",
        V::KIND.plural
    );
}

/// A watched resource type.
pub(crate) trait Informer<P>: Send + Sync {
    fn kind(&self) -> Kind;
    /// Whether the type is only read.
    fn is_input(&self) -> bool;
    fn changes(&self) -> u64;
    fn version(&self, key: &Key) -> Option<u64>;
    /// Returns the combined versions of all objects that the primary `key` controls.
    fn controlled_versions(&self, key: &Key) -> u64;
    /// Returns a fingerprint of an object's content, unless `by` controls it.
    fn content(&self, key: &Key, by: &P) -> Option<u64>;
    /// Returns the objects that the primary `key` controls.
    fn controlled_by(&self, key: &Key) -> Vec<Key>;
    /// Returns the records that hold the writes of an object for the owner `by`.
    fn holds(&self, key: &Key, by: Requester<'_>) -> Vec<Record>;
    /// Returns a function that counts the objects.
    fn counter(&self) -> metrics::Count;
    /// Watches one scope until cancelled.
    fn watch(
        &self,
        shared: &Arc<ClientContext>,
        status: Status,
        metrics: &Metrics,
        heartbeat: Heartbeat,
        handler: EventHandler<P>,
    ) -> BoxFuture<'static, ()>;
}

struct Watched<V, P> {
    store: Arc<Store<V>>,
    enqueue: fn(&EventHandler<P>, &Change<V>),
    /// `None`: the type is only read.
    history: Option<Arc<WriteHistory<V>>>,
}

impl<P: Primary, V: Cached> Informer<P> for Watched<V, P> {
    fn kind(&self) -> Kind {
        V::KIND
    }

    fn is_input(&self) -> bool {
        self.history.is_none()
    }

    fn changes(&self) -> u64 {
        self.store.changes()
    }

    fn version(&self, key: &Key) -> Option<u64> {
        self.store.version(key)
    }

    fn controlled_versions(&self, key: &Key) -> u64 {
        self.store.controlled_versions::<P>(key)
    }

    fn content(&self, key: &Key, by: &P) -> Option<u64> {
        let object = self.store.get(key)?;
        if object.is_controlled_by(by) {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        Content(&*object).hash(&mut hasher);
        Some(hasher.finish())
    }

    fn controlled_by(&self, key: &Key) -> Vec<Key> {
        self.store.controlled_by::<P>(key)
    }

    fn holds(&self, key: &Key, by: Requester<'_>) -> Vec<Record> {
        let history = self.history.as_ref();
        history.map_or_else(Vec::new, |history| history.holds(key, by))
    }

    fn counter(&self) -> metrics::Count {
        let store = Arc::clone(&self.store);
        Arc::new(move || store.counts())
    }

    fn watch(
        &self,
        shared: &Arc<ClientContext>,
        status: Status,
        metrics: &Metrics,
        heartbeat: Heartbeat,
        handler: EventHandler<P>,
    ) -> BoxFuture<'static, ()> {
        let enqueue = self.enqueue;
        Box::pin(watch(
            Arc::clone(shared),
            status,
            Arc::clone(&self.store),
            metrics::restarts::<V>(metrics),
            heartbeat,
            move |change| enqueue(&handler, &change),
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::{
        convert::Infallible,
        panic::{AssertUnwindSafe, catch_unwind},
    };

    use http::{Request, Response};
    use k8s_openapi::api::{core, events};
    use kube::{Client, client::Body};
    use serde::Deserialize;
    use tower::service_fn;

    use super::*;
    use crate::{
        api::plain::{Dependent, Fields},
        config::app::tests::APP,
        testing::{
            Harness,
            fixtures::{Child, Parent, Parents},
        },
    };

    #[derive(Clone, Debug, Default, PartialEq, Hash, Deserialize)]
    struct Note {}

    impl Fields for Note {
        const KIND: Kind = Kind::of::<events::v1::Event>();
    }

    #[derive(Clone, Debug, Default, PartialEq, Hash, Deserialize)]
    struct OldNote {}

    impl Fields for OldNote {
        const KIND: Kind = Kind::of::<core::v1::Event>();
    }

    type Ask = fn(&mut Builder<Parent>);

    /// Returns the panic message of a controller with this declaration.
    fn refusal(ask: Ask) -> String {
        let nobody = service_fn(|_: Request<Body>| async {
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        let client = Client::new(nobody, "default");
        let build = |builder: &mut Builder<Parent>| {
            let parents = Parents::build(builder);
            ask(builder);
            parents
        };
        let harness = catch_unwind(AssertUnwindSafe(|| Harness::new(&APP, &client, build)));
        *harness.err().unwrap().downcast::<String>().unwrap()
    }

    /// A resource type that the fence lets through cannot be owned.
    #[tokio::test]
    async fn i2_an_unfenced_resource_type_cannot_be_owned() {
        let asks: [Ask; 2] = [
            |builder| drop(builder.owns::<Dependent<Note>>()),
            |builder| drop(builder.owns::<Dependent<OldNote>>()),
        ];
        for ask in asks {
            let said = refusal(ask);
            assert!(
                said.starts_with("events cannot be reconciled or owned"),
                "{said}"
            );
        }
    }

    /// A type that is declared twice would have two stores, and only one of them would contain the responses to writes.
    #[tokio::test]
    async fn a_resource_type_is_watched_once() {
        let twice: [(Ask, &str); 4] = [
            (|builder| drop(builder.owns::<Child>()), "children"),
            (|builder| drop(builder.watches::<Child>()), "children"),
            (|builder| drop(builder.owns::<Parent>()), "parents"),
            (|builder| drop(builder.watches::<Parent>()), "parents"),
        ];
        for (again, plural) in twice {
            let said = refusal(again);
            let says = format!("{plural} of the group \"example.com\" are already watched");
            assert!(said.starts_with(&says), "{said}");
        }
    }
}
