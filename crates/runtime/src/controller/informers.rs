//! The informers of a program, and how each controller uses them.

use std::{
    any::{Any, type_name},
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use futures::future::{BoxFuture, join};
use parking_lot::Mutex;

use crate::{
    api::{
        key::Key,
        kind::Kind,
        object::{Cached, Content, Primary},
        reference::References,
        select::Select,
    },
    cache::{
        contents::{Contents, Heads},
        presence::Presence,
        readiness::{Scopes, Status, refusals::Refusals},
        store::{Change, Owners, Store},
        target::Direct,
        watch::watch,
    },
    client::context::ClientContext,
    controller::{metrics, trigger::Inbox},
    reconcile::writer::{Writer, disputes::Requester, history::WriteHistory},
    telemetry::{
        heartbeat::Heartbeat,
        metrics::Metrics,
        object_state::{MOST, Record},
    },
};

/// The resource types of one controller.
pub(crate) struct Informers<P> {
    /// The reconciled type is the first.
    roles: Vec<Box<dyn Role<P>>>,
    /// Changes that concern any object: of the types that are mapped, and calls of triggers.
    others: Vec<Changes>,
}

/// Returns a number of changes.
pub(super) type Changes = Box<dyn Fn() -> u64 + Send + Sync>;

impl<P: Primary> Informers<P> {
    /// The first is of the reconciled type.
    pub(crate) fn new(roles: Vec<Box<dyn Role<P>>>, others: Vec<Changes>) -> Self {
        Self { roles, others }
    }

    fn iter(&self) -> impl Iterator<Item = &dyn Role<P>> {
        self.roles.iter().map(|role| &**role)
    }

    /// Returns the number of changes in all stores (see [`Store::changes`]), and of calls of triggers.
    pub(crate) fn changes(&self) -> u64 {
        self.iter().map(Role::changes).sum::<u64>() + self.other_changes()
    }

    fn other_changes(&self) -> u64 {
        self.others.iter().map(|changes| changes()).sum()
    }

    /// Returns the objects that `view` references, with the informers of their resource types.
    fn referenced(
        &self,
        key: &Key,
        view: &P,
    ) -> impl Iterator<Item = (&dyn Role<P>, Key)> + use<'_, P> {
        let references = References::of(key, view).into_iter();
        references.filter_map(|(kind, to)| {
            let mut informers = self.iter();
            Some((informers.find(|it| it.kind().is_same(kind))?, to))
        })
    }

    /// Whether only the referenced objects of a resource type are kept.
    pub(crate) fn has_contents(&self) -> bool {
        self.iter().any(Role::has_contents)
    }

    /// Whether an object that `view` references exists, and its content has not been read yet. The read enqueues `view`.
    pub(crate) fn awaits_content(&self, key: &Key, view: &P) -> bool {
        // Most controllers have no such type: their references need not be computed.
        self.has_contents()
            && self
                .referenced(key, view)
                .any(|(informer, to)| informer.awaits_content(key, &to))
    }

    /// Returns a fingerprint of the versions of all objects that `view` references or controls, of all other changes, and of the
    /// presence of optional types. It is never 0.
    pub(crate) fn basis(&self, key: &Key, view: &P) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (informer, to) in self.referenced(key, view) {
            informer.version(&to).hash(&mut hasher);
        }
        for informer in self.iter() {
            informer.controlled_versions(key).hash(&mut hasher);
            informer.installed_scopes().hash(&mut hasher);
        }
        self.other_changes().hash(&mut hasher);
        hasher.finish() | 1
    }

    /// Returns a fingerprint of the referenced objects of read-only types: they are part of the desired state. Objects that
    /// `view` controls, or may not read, are not.
    pub(crate) fn inputs(&self, key: &Key, view: &P) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (informer, to) in self.referenced(key, view) {
            if informer.is_input() {
                informer.content(key, &to, view).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// Forgets the disputes and the writes without effect of `view`, and of the objects that it controls or references.
    pub(crate) fn forget(&self, key: &Key, view: &P) {
        let by = Requester::of(view);
        for (number, informer) in self.iter().enumerate() {
            for key in informer.controlled_by(key) {
                informer.forget(&key, by);
            }
            if number == 0 {
                informer.forget(key, by);
            }
        }
        for (informer, to) in self.referenced(key, view) {
            informer.forget(&to, by);
        }
    }

    /// Returns the records that hold the writes of `view` and of related objects. These are, for each other type, at most
    /// [`MOST`] objects that `view` references and [`MOST`] objects that it controls.
    pub(crate) fn holds(&self, key: &Key, view: &P) -> Vec<Record> {
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

/// A watched resource type.
pub(crate) trait Informer: Any + Send + Sync {
    fn kind(&self) -> Kind;
    /// Returns the name of the cached form.
    fn form(&self) -> &'static str;
    fn select(&self) -> Select;
    /// Watches only the objects of a named installation, if a controller reconciles the type, and nothing else uses it.
    fn divide(&self);
    /// Returns the presence of an optional type.
    fn presence(&self) -> Option<&Arc<Presence>>;
    /// Returns a function that counts the objects.
    fn counter(&self) -> metrics::Count;
    /// Watches one scope until cancelled.
    fn watch(
        &self,
        shared: &Arc<ClientContext>,
        status: Status,
        scopes: &Arc<Scopes>,
        metrics: &Metrics,
        heartbeat: Heartbeat,
    ) -> BoxFuture<'static, ()>;
}

/// Enqueues the objects of one controller that a change affects.
/// Its last argument is the object of the handler's controller whose reconcile made the change. `None`: another client, or another
/// controller of the program, made it.
pub(super) type Handler<V> = Arc<dyn Fn(&Scopes, &Change<V>, Option<&Key>) + Send + Sync>;

/// The store of a resource type, the history of its writes, and the handlers of its changes. All controllers share it.
pub(super) struct Watched<V> {
    pub store: Arc<Store<V>>,
    history: Arc<WriteHistory<V>>,
    select: Select,
    /// If only the [referenced](Select::referenced_only) objects are kept.
    pub contents: Option<Arc<Contents<V>>>,
    /// Each handler and the number of its controller.
    pub handlers: Mutex<Vec<(usize, Handler<V>)>>,
    /// Set by the first declaration. `None` in it: the type is required.
    presence: OnceLock<Option<Arc<Presence>>>,
    /// Inboxes of the controllers that use the type.
    inboxes: Mutex<Vec<Inbox>>,
    /// Whether the type has another use than its own controller: another controller, a mapper, or an index.
    has_other_use: AtomicBool,
    /// The selection with the label of the installation: see [`Informer::divide`].
    divided: OnceLock<Select>,
}

impl<V: Cached> Watched<V> {
    pub(super) fn new(namespaces: &[Option<String>], owners: Owners, select: Select) -> Self {
        let store = Arc::new(Store::new(namespaces, owners));
        let contents = || Arc::new(Contents::new(namespaces, &store));
        Self {
            history: Arc::new(WriteHistory::new(Arc::clone(&store))),
            contents: select.is_referenced_only().then(contents),
            store,
            select,
            handlers: Mutex::default(),
            presence: OnceLock::new(),
            inboxes: Mutex::default(),
            has_other_use: AtomicBool::new(false),
            divided: OnceLock::new(),
        }
    }

    /// Records a use of the type that needs the objects of all installations.
    pub(super) fn has_other_use(&self) {
        self.has_other_use.store(true, Relaxed);
    }

    /// Records that a controller requires the type, or uses it if it is installed.
    ///
    /// # Panics
    /// If the controllers disagree, or if only the referenced objects of an optional type are watched.
    pub(super) fn declare(&self, is_optional: bool) {
        let new = || is_optional.then(|| Arc::new(Presence::new(V::KIND)));
        let plural = V::KIND.plural;
        assert!(
            self.presence.get_or_init(new).is_some() == is_optional,
            "one controller requires the {plural}, and another uses them if they are installed: declare them alike"
        );
        assert!(
            !is_optional || self.contents.is_none(),
            "only the referenced {plural} are watched: they cannot be optional"
        );
        if is_optional {
            self.store.make_optional();
        }
    }

    /// Reconciles all objects of a controller when the type appears.
    pub(super) fn appears_to(&self, controller: Inbox) {
        self.inboxes.lock().push(controller);
    }

    /// Returns the writer of the controller with this number.
    pub(super) fn writer(
        &self,
        shared: &Arc<ClientContext>,
        refusals: &Arc<Refusals>,
        number: usize,
    ) -> Writer<V> {
        assert!(
            self.contents.is_none(),
            "only the referenced {} are watched: a controller cannot reconcile or own them",
            V::KIND.plural
        );
        let labels = self.select.required_labels();
        let (store, history) = (Arc::clone(&self.store), Arc::clone(&self.history));
        Writer::new(shared, refusals, store, history, labels, number)
    }
}

impl<V: Cached> Informer for Watched<V> {
    fn kind(&self) -> Kind {
        V::KIND
    }

    fn form(&self) -> &'static str {
        type_name::<V>()
    }

    fn select(&self) -> Select {
        self.divided.get().unwrap_or(&self.select).clone()
    }

    fn divide(&self) {
        let Some((label, value)) = self.store.installation_label() else {
            return;
        };
        // No selector means "without the label, or with an empty value", so the default installation watches all objects.
        if value.is_empty() || self.has_other_use.load(Relaxed) {
            return;
        }
        self.store.divide();
        let divided = self.select.clone().and_label(&label, value);
        let _ = self.divided.set(divided);
    }

    fn presence(&self) -> Option<&Arc<Presence>> {
        self.presence.get()?.as_ref()
    }

    fn counter(&self) -> metrics::Count {
        let store = Arc::clone(&self.store);
        Arc::new(move || store.counts())
    }

    fn watch(
        &self,
        shared: &Arc<ClientContext>,
        status: Status,
        scopes: &Arc<Scopes>,
        metrics: &Metrics,
        heartbeat: Heartbeat,
    ) -> BoxFuture<'static, ()> {
        let (handlers, scopes) = (self.handlers.lock().clone(), Arc::clone(scopes));
        let of_responses = (handlers.clone(), Arc::clone(&scopes));
        let is_shared = handlers.len() > 1;
        self.store.on_response(is_shared, move |by, change| {
            let (handlers, scopes) = &of_responses;
            for (number, handle) in handlers {
                let author = (*number == by.controller).then_some(by.key);
                handle(scopes, change, author);
            }
        });
        let changed = move |change| {
            for (_, handle) in &handlers {
                handle(&scopes, &change, None);
            }
        };
        let (shared, select, scope) = (Arc::clone(shared), self.select(), status.scope());
        let restarts = metrics::restarts::<V>(metrics);
        let Some(contents) = self.contents.clone() else {
            let target = Direct {
                store: Arc::clone(&self.store),
                scope,
                changed,
            };
            let inboxes = self.inboxes.lock().clone();
            let appeared = move || inboxes.iter().for_each(Inbox::reconcile_all);
            let attempts = self.presence().map(|it| it.of_scope(appeared));
            return Box::pin(watch(
                shared, status, select, restarts, heartbeat, target, attempts,
            ));
        };
        let target = Heads {
            contents: Arc::clone(&contents),
            scope,
            changed: changed.clone(),
        };
        Box::pin(async move {
            let read = contents.read(&shared, status.clone(), changed);
            let watch = watch(
                Arc::clone(&shared),
                status,
                select,
                restarts,
                heartbeat,
                target,
                None,
            );
            join(read, watch).await;
        })
    }
}

/// A resource type as one controller uses it.
pub(crate) trait Role<P>: Send + Sync {
    fn kind(&self) -> Kind;
    /// Whether the controller only reads the type.
    fn is_input(&self) -> bool;
    fn changes(&self) -> u64;
    fn version(&self, key: &Key) -> Option<u64>;
    /// Whether only the [referenced](Select::referenced_only) objects are kept.
    fn has_contents(&self) -> bool;
    /// See [`Informers::awaits_content`].
    fn awaits_content(&self, from: &Key, key: &Key) -> bool;
    /// See [`Store::installed_scopes`].
    fn installed_scopes(&self) -> Vec<bool>;
    /// Returns the combined versions of all objects that the primary `key` controls.
    fn controlled_versions(&self, key: &Key) -> u64;
    /// Returns a fingerprint of an object's content, unless `by` of the key `from` controls it, or may not read it.
    fn content(&self, from: &Key, key: &Key, by: &P) -> Option<u64>;
    /// Returns the objects that the primary `key` controls.
    fn controlled_by(&self, key: &Key) -> Vec<Key>;
    /// See [`WriteHistory::forget`].
    fn forget(&self, key: &Key, by: Requester<'_>);
    /// Returns the records that hold the writes of an object for the owner `by`.
    fn holds(&self, key: &Key, by: Requester<'_>) -> Vec<Record>;
}

pub(super) struct Use<V> {
    pub informer: Arc<Watched<V>>,
    pub is_input: bool,
}

impl<P: Primary, V: Cached> Role<P> for Use<V> {
    fn kind(&self) -> Kind {
        V::KIND
    }

    fn is_input(&self) -> bool {
        self.is_input
    }

    fn changes(&self) -> u64 {
        self.informer.store.changes()
    }

    fn version(&self, key: &Key) -> Option<u64> {
        self.informer.store.version(key)
    }

    fn has_contents(&self) -> bool {
        self.informer.contents.is_some()
    }

    fn awaits_content(&self, from: &Key, key: &Key) -> bool {
        let contents = self.informer.contents.as_ref();
        contents.is_some_and(|contents| contents.is_awaited(from, key))
    }

    fn installed_scopes(&self) -> Vec<bool> {
        self.informer.store.installed_scopes()
    }

    fn controlled_versions(&self, key: &Key) -> u64 {
        self.informer.store.controlled_versions::<P>(key)
    }

    fn content(&self, from: &Key, key: &Key, by: &P) -> Option<u64> {
        let object = self.informer.store.get(key)?;
        if object.is_controlled_by(by) || !object.may_be_read_by(from, key) {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        Content(&*object).hash(&mut hasher);
        Some(hasher.finish())
    }

    fn controlled_by(&self, key: &Key) -> Vec<Key> {
        self.informer.store.controlled_by::<P>(key)
    }

    fn forget(&self, key: &Key, by: Requester<'_>) {
        self.informer.history.forget(key, by);
    }

    fn holds(&self, key: &Key, by: Requester<'_>) -> Vec<Record> {
        if self.is_input {
            return Vec::new();
        }
        self.informer.history.holds(key, by)
    }
}
