//! Declaration of the resource types that a controller watches and writes.

pub(crate) mod if_installed;

use std::{
    any::{Any, TypeId, type_name},
    sync::{Arc, atomic::Ordering::Relaxed},
};

use futures::{FutureExt as _, future::BoxFuture};
use kube::{Client, Resource as _};
use tokio::sync::watch as channel;

use crate::{
    api::{
        key::Key,
        kind::Kind,
        object::{Cached, Finalizable, Object, Primary, kind_of},
        panic::catch,
        reference::References,
        select::Select,
    },
    cache::{
        contents::Contents,
        index::Index,
        live::LiveReads,
        readiness::{
            Scopes,
            namespace::{ControllerAccess, Permission, RequiredAccess},
            refusals::Refusals,
        },
        store::{Change, Owners, Store},
    },
    client::{context::ClientContext, fence},
    config::environment::Host,
    controller::{
        event_handler::EventHandler,
        informers::{Changes, Informer, Informers, Role, Use, Watched},
        single::{Common, Controlled, Controller, Parts},
        trigger::{Inbox, Trigger},
        work_queue::WorkQueue,
    },
    reconcile::{
        live::Live,
        reconciler::Reconciler,
        writer::{Writer, finalizer::Finalizer, labels::Owned},
    },
    telemetry::metrics::Metrics,
};

/// Declares the controllers of a program.
///
/// The first use of a resource type creates its informer, its store and the history of its writes. All controllers share them.
/// Every replica watches all types in the configured namespaces, so a new leader starts with warm stores.
///
/// Each resource type costs one watch per configured namespace, or a single watch of the cluster. A cluster-scoped type is always
/// watched in the whole cluster. Each type needs the permissions to list and watch, and a written type those to write it as
/// well. Permissions for a cluster-scoped type need a `ClusterRoleBinding`. A replica without a permission reports it in its log
/// and its readiness. A controller still serves the namespaces where it has all of its permissions. A missing permission, CRD
/// or watch stops only the controllers that use the resource type.
pub struct Builder {
    pub(crate) shared: Arc<ClientContext>,
    /// Of each controller. Its writers report to it.
    pub(crate) refusals: Vec<Arc<Refusals>>,
    pub(crate) namespaces: Vec<Option<String>>,
    metrics: Metrics,
    owners: Owners,
    pub(crate) informers: Vec<Arc<dyn Informer>>,
    access: Vec<ControllerAccess>,
    selects: Vec<(Kind, Select)>,
    /// The `LiveReads` of each cached form.
    live: Vec<Arc<dyn Any + Send + Sync>>,
    unreviewed: Vec<Permission>,
    pub(super) controllers: Vec<Declared>,
    inboxes: Vec<(Kind, Inbox)>,
    pub(super) tasks: Vec<Own>,
}

/// A task of the program, with its name.
pub(super) type Own = (&'static str, BoxFuture<'static, ()>);

/// A controller before the stores are watched.
pub(super) struct Declared {
    pub name: &'static str,
    pub work_queue: channel::Receiver<Option<WorkQueue>>,
    pub start: Start,
}

type Start = Box<dyn FnOnce(&Common) -> Arc<dyn Controlled>>;

impl Builder {
    pub(crate) fn new(
        host: &Host,
        client: &Client,
        namespaces: Vec<Option<String>>,
        metrics: &Metrics,
    ) -> Self {
        let shared = Arc::new(ClientContext {
            app: metrics.app(),
            host: host.clone(),
            client: client.clone(),
        });
        Self {
            owners: Owners::new(shared.app.group),
            shared,
            refusals: Vec::new(),
            namespaces,
            metrics: metrics.clone(),
            informers: Vec::new(),
            access: Vec::new(),
            selects: Vec::new(),
            live: Vec::new(),
            unreviewed: Vec::new(),
            controllers: Vec::new(),
            inboxes: Vec::new(),
            tasks: Vec::new(),
        }
    }

    /// Reconciles the objects of this installation. Empty: the default installation. Call it first.
    pub(crate) fn of_installation(mut self, name: &str) -> Self {
        self.owners = self.owners.of_installation(name);
        self
    }

    /// Limits the watches to the objects of the installation, where nothing else needs the others. Call it when all controllers
    /// are declared, before a watch starts.
    pub(crate) fn divide(&self) {
        self.informers.iter().for_each(|informer| informer.divide());
    }

    /// Watches only the selected objects of a resource type. All its controllers see the same objects. Call it before the
    /// controllers are added.
    ///
    /// If the objects are selected by labels, a [`Writer`] adds the labels that the selector requires with a single value to the
    /// objects that it creates. If such an object loses a label, its next creation puts the label back.
    ///
    /// # Panics
    ///
    /// - If a selector is invalid.
    /// - If the resource type has a selection already, or a controller uses it already.
    /// - When the program starts: if no controller uses the resource type.
    /// - If the cached form has no content to [read](Select::referenced_only), as [`Exists`](crate::Exists).
    pub fn select<V: Cached>(&mut self, select: Select) {
        let plural = V::KIND.plural;
        let error = select.error().unwrap_or_default();
        assert!(error.is_empty(), "invalid {error} of {plural}");
        let is_this = |kind: Kind| kind.is_same(&V::KIND);
        assert!(
            !self.selects.iter().any(|(kind, _)| is_this(*kind))
                && !self.informers.iter().any(|it| is_this(it.kind())),
            "select {plural} once, before the controllers that use them"
        );
        assert!(
            !(V::METADATA_ONLY && select.is_referenced_only()),
            "{plural} have no content that is read: select them without referenced_only()"
        );
        self.selects.push((V::KIND, select));
    }

    /// Adds a controller. `name` is its name in metrics: its resource type in lower case, as in controller-runtime.
    ///
    /// # Panics
    ///
    /// - If another controller reconciles the same resource type, or has the same name.
    /// - If another controller uses another cached form of the same type.
    /// - For Events: the [fence] lets them through, so a former leader could still write them.
    ///
    /// [fence]: crate::election::FenceLayer
    pub fn controller<R: Reconciler>(
        &mut self,
        name: &'static str,
        build: impl FnOnce(&mut ControllerBuilder<'_, R::Primary>) -> R,
    ) {
        let mut others = self.controllers.iter();
        assert!(
            others.all(|other| other.name != name),
            "two controllers are named {name:?}"
        );
        let inbox = self.inbox(R::Primary::KIND);
        let parts = self.declare(name, &inbox, build);
        self.controllers.push(Declared {
            name,
            work_queue: inbox.work_queue.subscribe(),
            start: Box::new(move |common| {
                let work = common.work(parts);
                Arc::new(Controller::new(work, inbox, common))
            }),
        });
    }

    /// Returns a trigger for the objects of a reconciled resource type, for a [task](Self::task) or another thread. Its controller
    /// may be added later.
    ///
    /// # Panics
    /// When the program starts: if no controller reconciles the type.
    pub fn trigger<P: Primary>(&mut self) -> Trigger<P> {
        Trigger::new(self.inbox(P::KIND))
    }

    fn inbox(&mut self, kind: Kind) -> Inbox {
        let mut inboxes = self.inboxes.iter();
        if let Some((_, inbox)) = inboxes.find(|(of, _)| of.is_same(&kind)) {
            return inbox.clone();
        }
        let inbox = Inbox::default();
        self.inboxes.push((kind, inbox.clone()));
        inbox
    }

    /// Runs a task of the program's own on each replica, from its start, whether it leads or not. An example is a client of an
    /// external system that calls a [`Trigger`].
    ///
    /// The task is supervised: if it returns or panics, the process ends with the error [`TaskExited`](crate::TaskExited), and the
    /// orderly shutdown. A task without further work awaits [`std::future::pending`]. A shutdown cancels the task at its next
    /// `await`, after the running reconciles have ended.
    ///
    /// The task shares the thread of all reconciles: it must not block.
    pub fn task(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push((name, task.boxed()));
    }

    /// Keeps an index of the objects of a resource type, under the names that `names` returns for each. If `names` panics, the
    /// object has no name. The names must follow from the object. The store is locked during the call: `names` must be quick, and
    /// must not use the same store.
    ///
    /// # Panics
    ///
    /// - If another controller or index uses another cached form of the same type.
    /// - When the program starts: if no controller uses the type.
    pub fn index<V: Cached>(
        &mut self,
        names: impl Fn(&V) -> Vec<String> + Send + Sync + 'static,
    ) -> Index {
        let informer = self.informer::<V>();
        informer.has_other_use();
        informer.store.index(names)
    }

    /// Declares the resource types of a reconciler.
    pub(crate) fn declare<R: Reconciler>(
        &mut self,
        name: &'static str,
        inbox: &Inbox,
        build: impl FnOnce(&mut ControllerBuilder<'_, R::Primary>) -> R,
    ) -> Parts<R> {
        let kind = kind_of::<R::Primary>();
        assert_fenced::<R::Primary>();
        assert!(
            !self.access.iter().any(|other| other.primary.is_same(kind)),
            "two controllers reconcile {}",
            kind.plural
        );
        let number = self.access.len();
        self.owners.add::<R::Primary>();
        let mut builder = ControllerBuilder::new(self, inbox.work_queue.subscribe());
        let reconciler = build(&mut builder);
        let (primary, roles, rights) = (builder.primary, builder.roles, builder.rights);
        let (mapped, optional, owned) = (builder.mapped, builder.optional, builder.owned);
        let mut written = rights.iter().chain(&optional);
        let creates = written.any(|right| right.verb == "create");
        self.unreviewed.extend(optional);
        if creates {
            self.unreviewed.push(Permission {
                verb: "update",
                kind: *kind,
                subresource: "finalizers",
            });
        }
        let kinds = roles.iter().map(|role| role.kind());
        let kinds: Vec<_> = kinds.chain(mapped.iter().map(|(kind, _)| *kind)).collect();
        let uses = |kind: Kind| kinds.iter().any(|it| it.is_same(&kind));
        let watched = self.informers.iter().enumerate();
        let watched = watched.filter(|(_, informer)| uses(informer.kind()));
        self.access.push(ControllerAccess {
            name,
            primary: kind,
            watched: watched.map(|(number, _)| number).collect(),
            rights,
        });
        let mut others: Vec<_> = mapped.into_iter().map(|(_, changes)| changes).collect();
        let requests = Arc::clone(&inbox.requests);
        others.push(Box::new(move || requests.load(Relaxed)));
        Parts {
            name,
            number,
            reconciler,
            primary,
            informers: Informers::new(roles, others),
            owned,
        }
    }

    /// Returns the registry for metrics of the program's own.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the informer of a resource type. The first call creates it.
    fn informer<V: Cached>(&mut self) -> Arc<Watched<V>> {
        let mut informers = self.informers.iter();
        let Some(known) = informers.find(|informer| informer.kind().is_same(&V::KIND)) else {
            let mut selects = self.selects.iter();
            let select = selects.find(|(kind, _)| kind.is_same(&V::KIND));
            let select = select.map(|(_, select)| select.clone()).unwrap_or_default();
            let new = Watched::new(&self.namespaces, self.owners.clone(), select);
            let new = Arc::new(new);
            self.informers.push(Arc::clone(&new) as _);
            return new;
        };
        let (form, other) = (type_name::<V>(), known.form());
        let known: Arc<dyn Any + Send + Sync> = Arc::clone(known) as _;
        assert!(
            (*known).type_id() == TypeId::of::<Watched<V>>(),
            "{} have two cached forms, {other} and {form}: all controllers must use the same Rust type",
            V::KIND.plural
        );
        known.downcast().expect("the type was checked")
    }

    /// Returns the live reads of a cached form. The first call creates them.
    fn live<V: Cached>(&mut self) -> Arc<LiveReads<V>> {
        let mut known = self.live.iter().map(Arc::clone);
        known.find_map(|it| it.downcast().ok()).unwrap_or_else(|| {
            let new = LiveReads::new(&self.shared, &self.owners, &self.metrics);
            let new = Arc::new(new);
            self.live.push(Arc::clone(&new) as _);
            new
        })
    }

    /// Returns a writer for the controller that is being declared.
    fn writer<V: Cached>(&self, informer: &Watched<V>) -> Writer<V> {
        let number = self.access.len();
        informer.writer(&self.shared, &self.refusals[number], number)
    }

    /// Returns the resource types that may not be installed.
    fn optional(&self) -> Vec<Kind> {
        let optional = self.informers.iter().filter(|it| it.presence().is_some());
        optional.map(|it| it.kind()).collect()
    }

    /// Returns the requirements of a whole program. See [`needs`](Self::needs).
    ///
    /// # Panics
    /// If a controller with its own settings does not exist.
    pub(crate) fn needs_of_program(&self) -> RequiredAccess {
        for keys in self.shared.app.controllers {
            let mut controllers = self.access.iter();
            assert!(
                controllers.any(|it| it.name == keys.name),
                "App::controllers names {:?}, but no controller has this name",
                keys.name
            );
        }
        self.needs()
    }

    /// Returns the requirements for serving a namespace.
    ///
    /// # Panics
    /// If no controller is declared, or if a declaration needs a controller that does not exist.
    pub(crate) fn needs(&self) -> RequiredAccess {
        assert!(!self.access.is_empty(), "a program needs a controller");
        for (selected, _) in &self.selects {
            let mut informers = self.informers.iter();
            assert!(
                informers.any(|informer| informer.kind().is_same(selected)),
                "no controller uses the selected {}",
                selected.plural
            );
        }
        for (kind, _) in &self.inboxes {
            assert!(
                self.access.iter().any(|it| it.primary.is_same(kind)),
                "no controller reconciles the {} of a trigger",
                kind.plural
            );
        }
        for (number, informer) in self.informers.iter().enumerate() {
            assert!(
                self.access.iter().any(|it| it.watched.contains(&number)),
                "no controller uses the indexed {}",
                informer.kind().plural
            );
        }
        RequiredAccess {
            controllers: self.access.clone(),
            watched: self.informers.iter().map(|it| it.kind()).collect(),
            optional: self.optional(),
            unreviewed: self.unreviewed.clone(),
        }
    }
}

/// Declares the resource types that a controller watches and writes.
pub struct ControllerBuilder<'a, P> {
    program: &'a mut Builder,
    handler: EventHandler<P>,
    primary: Arc<Writer<P>>,
    rights: Vec<Permission>,
    /// Permissions for writes of optional resource types.
    optional: Vec<Permission>,
    roles: Vec<Box<dyn Role<P>>>,
    mapped: Vec<(Kind, Changes)>,
    owned: Vec<Box<dyn Owned<P>>>,
}

impl<'a, P: Primary> ControllerBuilder<'a, P> {
    fn new(program: &'a mut Builder, work_queue: channel::Receiver<Option<WorkQueue>>) -> Self {
        let informer = program.informer::<P>();
        informer.declare(false);
        let primaries = Arc::clone(&informer.store);
        let handler = EventHandler {
            controller: program.access.len(),
            work_queue,
            primaries,
        };
        let refusals = Refusals::new(&P::KIND.scopes(&program.namespaces));
        program.refusals.push(refusals);
        let primary = Arc::new(program.writer(&informer));
        let mut builder = Self {
            program,
            handler: handler.clone(),
            primary,
            rights: vec![Permission {
                verb: "update",
                kind: P::KIND,
                subresource: "status",
            }],
            optional: Vec::new(),
            roles: Vec::new(),
            mapped: Vec::new(),
            owned: Vec::new(),
        };
        builder.add(&informer, false, move |scopes, change, author| {
            handler.primary_changed(scopes, change, author);
        });
        builder
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
        &self.program.metrics
    }

    /// Watches a resource type that this controller creates. A change enqueues the controlling owner and all objects that
    /// [reference](Cached::references) the changed one. Another controller may reconcile or own the same type.
    ///
    /// - Reviewed permissions: create and patch.
    /// - Reviewed by `doctor` only: update of the primary's subresource `finalizers`. The admission plugin
    ///   `OwnerReferencesPermissionEnforcement` requires it, because the created objects block the deletion of their owner.
    /// - For a reconciler that deletes such objects: see [`deletes`](Self::deletes).
    ///
    /// # Panics
    ///
    /// - If this controller uses the type already: see [`watches`](Self::watches).
    /// - If the type is [selected](Builder::select), unless each part of the selector requires a single value of a different
    ///   label: the program would not see all objects that it creates.
    /// - If the type is cluster-scoped and the reconciled one is not. The garbage collector cannot resolve such an owner: see
    ///   [Owners and dependents].
    /// - For Events: the [fence] lets them through, so a former leader could still write them.
    ///
    /// [fence]: crate::election::FenceLayer
    /// [Owners and dependents]: https://kubernetes.io/docs/concepts/overview/working-with-objects/owners-dependents/
    pub fn owns<V: Cached>(&mut self) -> Writer<V> {
        self.own(false)
    }

    fn own<V: Cached>(&mut self, is_optional: bool) -> Writer<V> {
        assert_fenced::<V>();
        assert!(
            P::KIND.is_cluster_scoped() || !V::KIND.is_cluster_scoped(),
            "{} are namespaced and cannot own the cluster-scoped {}: the garbage collector would never find the owner",
            P::KIND.plural,
            V::KIND.plural
        );
        let rights = Permission::to(&["create", "patch"], V::KIND);
        if is_optional {
            self.optional.extend(rights);
        } else {
            // Permissions of owned types are reviewed before the update of the primary's status.
            self.rights
                .splice(self.rights.len() - 1..self.rights.len() - 1, rights);
        }
        let informer = self.dependent::<V>(false, is_optional);
        let select = informer.select();
        assert!(
            select.is_met_by_labels() || select.is_referenced_only(),
            "a controller owns the selected {} ({select}): select them by labels with a single value each, such as \"app=web\", \
             so that each created object is selected",
            V::KIND.plural
        );
        let writer = self.program.writer(&informer);
        self.owned.push(Box::new(writer.clone()));
        writer
    }

    /// Declares that the reconciler deletes objects of a type that it owns. `doctor` reviews the permission.
    pub fn deletes<V: Cached>(&mut self) {
        (self.program.unreviewed).extend(Permission::to(&["delete"], V::KIND));
    }

    /// Watches a resource type that this controller only reads. A change enqueues the objects that reference the changed one.
    ///
    /// # Panics
    ///
    /// - If this controller uses the type already: as reconciled, owned or read. Read an owned type through [`Writer::store`].
    /// - If another controller uses another cached form of the type, such as [`Exists`](crate::Exists). There is one store
    ///   for each type.
    pub fn watches<V: Cached>(&mut self) -> Arc<Store<V>> {
        Arc::clone(&self.dependent::<V>(true, false).store)
    }

    /// Reads objects of a resource type live, without a watch: see [`View::live`](crate::View::live). Reviewed permission: get.
    pub fn reads<V: Cached>(&mut self) -> Live<V> {
        self.rights.extend(Permission::to(&["get"], V::KIND));
        let refusals = &self.program.refusals[self.program.access.len()];
        let refusals = Arc::clone(refusals);
        Live::new(self.program.live::<V>(), refusals)
    }

    /// Watches a resource type, and enqueues the objects that `map` returns. Each change of an object calls it twice: with the
    /// old content and with the new one. Use it for relations that no owner and no [reference](Cached::references) shows, such
    /// as a summary of many objects. The controller may also own, watch or reconcile the type. With namespaces configured, only
    /// the namespace of a reconciled object is certain to be complete.
    ///
    /// `map` must be quick. If it panics, that content enqueues no object. After a change of the type, the next resync checks
    /// all objects of this controller, without requests.
    ///
    /// # Panics
    ///
    /// - If only the [referenced](Select::referenced_only) objects of the type are watched.
    /// - If another controller or index uses another cached form of the same type.
    pub fn maps<V: Cached>(&mut self, map: impl Fn(&Key, &V) -> Vec<Key> + Send + Sync + 'static) {
        let (informer, handler) = (self.program.informer::<V>(), self.handler.clone());
        assert!(
            informer.contents.is_none(),
            "only the referenced {} are watched: their changes cannot be mapped",
            V::KIND.plural
        );
        let changed = move |scopes: &Scopes, change: &Change<V>, _: Option<&Key>| {
            handler.mapped_changed(scopes, change, &map);
        };
        informer.has_other_use();
        // No controller has this number: the handler need not know the author.
        (informer.handlers.lock()).push((usize::MAX, Arc::new(changed)));
        informer.appears_to(self.program.inbox(P::KIND));
        let store = Arc::clone(&informer.store);
        (self.mapped).push((V::KIND, Box::new(move || store.changes())));
    }

    #[cfg(test)]
    pub(crate) fn program(&mut self) -> &mut Builder {
        self.program
    }

    fn dependent<V: Cached>(&mut self, is_input: bool, is_optional: bool) -> Arc<Watched<V>> {
        let Kind { group, plural, .. } = V::KIND;
        assert!(
            !self.roles.iter().any(|role| role.kind().is_same(&V::KIND)),
            "{plural} of the group {group:?} are already watched: declare each resource type once, as reconciled, owned or \
             watched"
        );
        let (informer, handler) = (self.program.informer::<V>(), self.handler.clone());
        informer.declare(is_optional);
        informer.has_other_use();
        informer.appears_to(self.program.inbox(P::KIND));
        if let Some(contents) = &informer.contents {
            self.rights.extend(Permission::to(&["get"], V::KIND));
            self.keep_referenced(contents);
        }
        self.add(&informer, is_input, move |scopes, change, author| {
            handler.dependent_changed(scopes, change, author);
        });
        informer
    }

    /// Reads the content of the objects that the reconciled type references.
    fn keep_referenced<V: Cached>(&mut self, contents: &Arc<Contents<V>>) {
        let primary = self.program.informer::<P>();
        let refusals = &self.program.refusals[self.program.access.len()];
        contents.add(Arc::clone(&primary.store) as _, Arc::clone(refusals));
        let contents = Arc::clone(contents);
        let changed = move |_: &Scopes, change: &Change<P>, _: Option<&Key>| {
            let objects = [&change.old, &change.new].into_iter().flatten();
            let references = objects.flat_map(|object| {
                let references = || References::of(&change.key, &*object.view);
                catch(&P::KIND, "Cached::references", references).unwrap_or_default()
            });
            for (_, to) in references.filter(|(kind, _)| kind.is_same(&V::KIND)) {
                contents.references_changed(&to);
            }
        };
        // No controller has this number: the handler need not know the author.
        (primary.handlers.lock()).push((usize::MAX, Arc::new(changed)));
    }

    fn add<V: Cached>(
        &mut self,
        informer: &Arc<Watched<V>>,
        is_input: bool,
        handler: impl Fn(&Scopes, &Change<V>, Option<&Key>) + Send + Sync + 'static,
    ) {
        let number = self.program.access.len();
        informer.handlers.lock().push((number, Arc::new(handler)));
        self.roles.push(Box::new(Use {
            informer: Arc::clone(informer),
            is_input,
        }));
    }
}

impl<P: Finalizable> ControllerBuilder<'_, P> {
    /// Declares a finalizer on the reconciled type, named `domain/name`, for cleanup outside the cluster. It needs the
    /// permission to patch the objects.
    pub fn finalizer(&mut self, name: &'static str) -> Finalizer<P> {
        self.rights.extend(Permission::to(&["patch"], P::KIND));
        Finalizer::new(name, self.primary())
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

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::panic,
        reason = "a test fails by panicking"
    )]

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
        api::{
            exists::Exists,
            plain::{Dependent, Fields},
        },
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
    struct Map {}

    impl Fields for Map {
        const KIND: Kind = Kind::of::<core::v1::ConfigMap>();
    }

    #[derive(Clone, Debug, Default, PartialEq, Hash, Deserialize)]
    struct Space {}

    impl Fields for Space {
        const KIND: Kind = Kind::of::<core::v1::Namespace>();
    }

    #[derive(Clone, Debug, Default, PartialEq, Hash, Deserialize)]
    struct OldNote {}

    impl Fields for OldNote {
        const KIND: Kind = Kind::of::<core::v1::Event>();
    }

    /// Two forms of one resource type would be two stores that disagree.
    #[tokio::test]
    async fn a_resource_type_has_one_form() {
        let said = refusal(|builder| {
            _ = builder.watches::<Exists<core::v1::ConfigMap>>();
            _ = builder.program().informer::<Dependent<Map>>();
        });
        let says = "configmaps have two cached forms, operator_runtime::api::exists::Exists<";
        assert!(said.starts_with(says), "{said}");
    }

    /// A selection that has no effect, or cannot work, is an error of the program.
    #[tokio::test]
    async fn a_selection_is_checked() {
        type MapExists = Exists<core::v1::ConfigMap>;
        let wrong: [(Ask, &str); 6] = [
            (
                |builder| builder.program().select::<MapExists>(Select::labels("a b")),
                "invalid label selector \"a b\" of configmaps",
            ),
            (
                |builder| builder.program().select::<Parent>(Select::default()),
                "select parents once, before the controllers that use them",
            ),
            (
                |builder| {
                    builder.program().select::<MapExists>(Select::fields("a=b"));
                    builder.program().select::<MapExists>(Select::labels("a=b"));
                },
                "select configmaps once",
            ),
            (
                |builder| {
                    let select = Select::default().referenced_only();
                    builder.program().select::<MapExists>(select);
                },
                "configmaps have no content",
            ),
            (
                |builder| {
                    let select = Select::default().referenced_only();
                    builder.program().select::<Dependent<Map>>(select);
                    _ = builder.owns::<Dependent<Map>>();
                },
                "only the referenced configmaps are watched",
            ),
            (
                |builder| builder.program().select::<MapExists>(Select::labels("a=b")),
                "no controller uses the selected configmaps",
            ),
        ];
        for (ask, says) in wrong {
            let said = refusal(ask);
            assert!(said.starts_with(says), "{said}");
        }
    }

    /// The reads of a referenced object need a permission of their own, which is reviewed.
    #[tokio::test]
    async fn the_permission_to_get_is_required_for_referenced_objects_only() {
        for (select, gets) in [
            (Select::fields("type=a"), 0),
            (Select::fields("type=a").referenced_only(), 1),
        ] {
            let said = refusal(|builder| {
                builder.program().select::<Dependent<Map>>(select.clone());
                _ = builder.watches::<Dependent<Map>>();
                let get = |right: &&Permission| right.verb == "get" && right.kind == Map::KIND;
                panic!("{}", builder.rights.iter().filter(get).count())
            });
            assert_eq!(said, gets.to_string());
        }
    }

    type Ask = fn(&mut ControllerBuilder<'_, Parent>);

    /// Returns the panic message of a controller with this declaration.
    fn refusal(ask: impl FnOnce(&mut ControllerBuilder<'_, Parent>)) -> String {
        let nobody = service_fn(|_: Request<Body>| async {
            Ok::<_, Infallible>(Response::new(Body::empty()))
        });
        let client = Client::new(nobody, "default");
        let build = |builder: &mut ControllerBuilder<'_, Parent>| {
            let parents = Parents::build(builder);
            ask(builder);
            parents
        };
        let harness = catch_unwind(AssertUnwindSafe(|| Harness::new(&APP, &client, build)));
        *harness.err().unwrap().downcast::<String>().unwrap()
    }

    /// The watch would not deliver each created object.
    #[tokio::test]
    async fn an_owned_type_is_selected_by_labels_with_one_value() {
        for select in [Select::fields("type=a"), Select::labels("a in (b,c)")] {
            let said = refusal(|builder| {
                builder.program().select::<Dependent<Map>>(select);
                _ = builder.owns::<Dependent<Map>>();
            });
            assert!(
                said.starts_with("a controller owns the selected "),
                "{said}"
            );
        }
    }

    /// The garbage collector never deletes a cluster-scoped object of a namespaced owner.
    #[tokio::test]
    async fn a_namespaced_type_cannot_own_a_cluster_scoped_one() {
        let said = refusal(|builder| drop(builder.owns::<Dependent<Space>>()));
        let says = "parents are namespaced and cannot own the cluster-scoped namespaces";
        assert!(said.starts_with(says), "{said}");
        let said = refusal(|builder| {
            _ = builder.watches::<Dependent<Space>>();
            panic!("it reads {}", Space::KIND.plural)
        });
        assert_eq!(said, "it reads namespaces");
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

    /// The store of an optional type may be empty although the objects exist, which a controller that requires the type would
    /// take for deletions. The writes of an optional type are not part of the readiness.
    #[tokio::test]
    async fn a_type_is_required_or_optional() {
        let asks: [(Ask, &str); 3] = [
            (
                |builder| {
                    let program = builder.program();
                    program.informer::<Dependent<Map>>().declare(false);
                    drop(builder.if_installed().owns::<Dependent<Map>>());
                },
                "one controller requires the configmaps, and another uses them if they are installed",
            ),
            (
                |builder| drop(builder.if_installed().watches::<Parent>()),
                "parents of the group \"example.com\" are already watched",
            ),
            (
                |builder| {
                    let select = Select::default().referenced_only();
                    builder.program().select::<Dependent<Map>>(select);
                    drop(builder.if_installed().watches::<Dependent<Map>>());
                },
                "only the referenced configmaps are watched: they cannot be optional",
            ),
        ];
        for (ask, says) in asks {
            let said = refusal(ask);
            assert!(said.starts_with(says), "{said}");
        }
        let said = refusal(|builder| {
            drop(builder.if_installed().owns::<Dependent<Map>>());
            let verbs = |rights: &[Permission]| rights.iter().map(|it| it.verb).collect::<Vec<_>>();
            panic!(
                "{:?} {:?}",
                verbs(&builder.rights),
                verbs(&builder.optional)
            )
        });
        assert_eq!(said, r#"["create", "patch", "update"] ["create", "patch"]"#);
    }

    /// A type that is declared twice would have two stores, and only one store would contain the responses to writes.
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
