//! Store of one resource type. A watch keeps it current, and workers read it.
//!
//! Compared to kube's store, it has three more features:
//!
//! - A relist reports the objects that were deleted while the watch was down, so that the objects that refer to them are
//!   enqueued.
//! - The response to a write enters the store immediately. A reconcile never acts on a state older than its own last write.
//! - [`Store::controlled_by`] finds the objects that an object controls.

pub(crate) mod installation;
pub(crate) mod installed;

use std::{
    collections::HashMap,
    num::NonZeroU64,
    ops::Deref,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use parking_lot::RwLock;
use tokio::time::Instant;

use super::index::{Index, Keys, Named, Names, Relation};
use crate::api::{
    control::{Annotation, Control, GRANT_TO, installation_label, may_read, other_installation},
    key::Key,
    kind::Kind,
    object::{Cached, Object, Primary, kind_of},
    panic::catch,
    reference::{Owner, OwnerReference, Reference},
};

/// Objects of one resource type, in all watched namespaces.
pub struct Store<V> {
    state: RwLock<State<V>>,
    owners: Owners,
    /// See [`Store::on_response`].
    handler: OnceLock<OnResponse<V>>,
    /// Whether several controllers use the store.
    is_shared: AtomicBool,
    /// Whether the resource type may be missing: see [`Store::is_installed`].
    is_optional: AtomicBool,
}

type OnResponse<V> = Box<dyn Fn(Author<'_>, &Change<V>) + Send + Sync>;

/// The reconcile that made a write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Author<'a> {
    /// Position of the controller in the program.
    pub controller: usize,
    /// The reconciled object.
    pub key: &'a Key,
}

/// The reconciled resource types, the API group of the annotations for the runtime, and the installation. A store keeps no
/// controller reference to another type, which no controller reads, and no annotation of another group.
#[derive(Clone, Default)]
pub(crate) struct Owners {
    kinds: Arc<RwLock<Vec<&'static Kind>>>,
    group: &'static str,
    /// Empty: the default installation.
    installation: Arc<str>,
}

impl Owners {
    pub(crate) fn new(group: &'static str) -> Self {
        Self {
            group,
            ..Self::default()
        }
    }

    /// Serves the objects of this installation. Empty: the default installation.
    pub(crate) fn of_installation(self, name: &str) -> Self {
        Self {
            installation: name.into(),
            ..self
        }
    }

    /// Adds a reconciled resource type, before any watch starts.
    pub(crate) fn add<V: Cached>(&self) {
        self.kinds.write().push(kind_of::<V>());
    }

    fn has<V: Cached>(&self) -> bool {
        self.kinds.read().iter().any(|kind| kind.is_same(&V::KIND))
    }

    /// See [`Store::installation_label`].
    fn installation_label<V: Cached>(&self) -> Option<(String, &str)> {
        let label = || (installation_label(self.group), &*self.installation);
        self.has::<V>().then(label)
    }

    /// Returns the control of an object. If the object is not reconciled, only its grant.
    fn control<V: Cached>(
        &self,
        annotations: Vec<Annotation>,
        labels: &[Annotation],
    ) -> Option<Arc<Control>> {
        if annotations.is_empty() && labels.is_empty() && self.installation.is_empty() {
            return None;
        }
        let is_reconciled = self.has::<V>();
        let control = Control::of(self.group, annotations, is_reconciled);
        let own = &self.installation;
        let other = is_reconciled.then(|| other_installation(self.group, labels, own));
        let Some(other) = other.flatten() else {
            return control.map(Arc::new);
        };
        let mut control = control.unwrap_or_default();
        control.other_installation = Some(other);
        Some(Arc::new(control))
    }

    /// Returns an object as a store keeps it.
    pub(crate) fn snapshot<V: Cached>(&self, object: Object<V>) -> (Key, Snapshot<V>) {
        let owner = object.owner;
        let owner = owner.and_then(|reference| self.of(&object.key, reference));
        let snapshot = Snapshot {
            version: object.version,
            owner: owner.map(Arc::new),
            control: self.control::<V>(object.control, &object.labels),
            view: Arc::new(object.view),
        };
        (object.key, snapshot)
    }

    /// Returns the owner of an object, if its resource type is reconciled. It is cluster-scoped, or in the namespace of the
    /// object. The garbage collector treats a namespaced owner of a cluster-scoped object as unresolvable: see
    /// [Owners and dependents].
    ///
    /// [Owners and dependents]: https://kubernetes.io/docs/concepts/overview/working-with-objects/owners-dependents/
    fn of(&self, key: &Key, reference: OwnerReference) -> Option<Owner> {
        let kinds = self.kinds.read();
        let kind = kinds.iter().find(|kind| reference.is_of(kind))?;
        let key = match kind.is_cluster_scoped() {
            true => Key::cluster(&reference.name),
            false if key.is_cluster_scoped() => return None,
            false => key.sibling(&reference.name),
        };
        Some(Owner {
            kind,
            key,
            uid: reference.uid,
        })
    }
}

struct State<V> {
    objects: HashMap<Key, Entry<V>>,
    /// The objects by their references.
    referrers: Relation,
    /// The objects by their controlling owner.
    controlled: Relation,
    /// The objects by the names of each [`Index`].
    names: Vec<Names<V>>,
    /// A single scope for all objects, or one for each configured namespace. Each has its own watch.
    scopes: Vec<Scope>,
    /// See [`Store::changes`].
    changes: u64,
    /// See [`Store::note_rejected`].
    rejected_until: Option<Instant>,
    /// See [`Store::divide`].
    is_divided: bool,
}

/// Whether the cached object still matches the API server, as shown by responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// No response contradicts the watch.
    Fresh,
    /// A write failed with a conflict, so the watch is behind. The newer version may differ only in fields that the store does
    /// not keep.
    Conflicted,
    /// A response showed that the object was deleted, replaced or given another spec. The object is not reconciled before a
    /// live read. The next version from the watch is not enough, because it may be older than the response. The response may
    /// also be wrong.
    Stale,
}

struct Entry<V> {
    version: u64,
    /// [`Scope::epoch`] when the object was last delivered. The end of a list removes the objects that have another epoch.
    epoch: u32,
    /// See [`Store::begin_write`].
    writes_in_flight: u8,
    standing: Freshness,
    /// See [`Store::mark_deletion_pending`].
    going: bool,
    /// See [`Store::note_unheeded`].
    is_unheeded: bool,
    /// See [`Store::note_up_to_date`].
    input_fingerprint: Option<NonZeroU64>,
    /// See [`Store::take_request`].
    is_requested: bool,
    owner: Option<Arc<Owner>>,
    control: Option<Arc<Control>>,
    view: Arc<V>,
}

struct Scope {
    /// `None`: all objects.
    namespace: Option<String>,
    /// Odd while a list is being read. Incremented when a list begins and when it ends.
    epoch: u32,
    /// resourceVersion that the watch has reached.
    version: u64,
    /// Number of objects.
    objects: usize,
    /// Whether a list has ended, and the resource type has not vanished since.
    is_listed: bool,
}

impl Scope {
    fn covers(&self, key: &Key) -> bool {
        let namespace = self.namespace.as_deref();
        namespace.is_none_or(|namespace| namespace == key.namespace())
    }
}

/// Object as it was when reconcile read it. It dereferences to the cached form.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot<V> {
    /// `metadata.resourceVersion`: the precondition of every write that is based on this snapshot.
    pub version: u64,
    /// The controlling owner, if its resource type is reconciled. A [`Writer`](crate::Writer) changes or deletes an object only
    /// if the reconciled object is this owner.
    pub owner: Option<Arc<Owner>>,
    /// Annotations of a user for the runtime.
    pub(crate) control: Option<Arc<Control>>,
    /// The object.
    pub view: Arc<V>,
}

impl<V> Snapshot<V> {
    /// Returns whether this object controls the object of the snapshot. Not an earlier object of its name.
    #[must_use]
    pub fn is_controlled_by(&self, object: &impl Cached) -> bool {
        let owner = self.owner.as_ref();
        owner.is_some_and(|owner| *owner.uid == *object.uid())
    }

    /// Returns the annotation `<group>/reconcile-requested-at`.
    pub(crate) fn requested_at(&self) -> Option<&str> {
        self.control.as_ref()?.requested_at.as_deref()
    }
}

impl<P: Primary> Snapshot<P> {
    /// Returns whether a user has paused the object. Its deletion is not paused, or a namespace with it would never terminate.
    pub(crate) fn is_paused(&self) -> bool {
        self.control.as_ref().is_some_and(|it| it.is_paused) && !self.view.is_deleting()
    }
}

impl<V: PartialEq> Snapshot<V> {
    /// Returns whether both have the same owner, the same control and the same cached form.
    fn has_same(&self, other: &Self) -> bool {
        self.owner == other.owner && self.control == other.control && self.view == other.view
    }
}

impl<V> Snapshot<V> {
    /// Returns whether the object `from` may read this object, whose key is `key`.
    pub(crate) fn may_be_read_by(&self, from: &Key, key: &Key) -> bool {
        may_read(from, key, self.control.as_deref())
    }
}

impl<V> Deref for Snapshot<V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.view
    }
}

/// Effect of a change of one object on the store.
#[derive(Debug, PartialEq)]
pub(crate) struct Change<V> {
    /// The object.
    pub key: Key,
    /// Previous object. `None`: it was added.
    pub old: Option<Snapshot<V>>,
    /// New object. `None`: it was deleted.
    pub new: Option<Snapshot<V>>,
    /// Whether only parts differ that the store does not keep, such as labels and most annotations. False if a retry may wait for
    /// this change: see `Store::apply`.
    pub is_touch: bool,
    /// The control of the metadata, whose readers waited for the content until this change. For
    /// [`referenced_only`](crate::Select::referenced_only).
    pub(crate) awaited: Option<Arc<Control>>,
}

impl<V> Change<V> {
    /// Returns whether the object `from`, which refers to the changed object, may learn of the change. Otherwise, the changes of an
    /// object without a grant would be visible by the delays that they cause.
    pub(crate) fn may_be_seen_by(&self, from: &Key) -> bool {
        let mut objects = [&self.old, &self.new].into_iter().flatten();
        objects.any(|it| it.may_be_read_by(from, &self.key))
            || may_read(from, &self.key, self.awaited.as_deref())
    }
}

/// Epoch of a scope right before a request is sent; see [`Store::record_response`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListEpoch(u32);

impl ListEpoch {
    /// Returns which list of the scope this epoch belongs to, counted from 1: the list in progress, or the last one.
    pub(crate) fn list(self) -> u32 {
        list(self.0)
    }
}

impl<V: Cached> Store<V> {
    /// Creates an empty store with one scope per watch: a namespace, or all namespaces (`None`). A cluster-scoped type has a
    /// single scope.
    #[must_use]
    pub(crate) fn new(scopes: &[Option<String>], owners: Owners) -> Self {
        let scope = |namespace| Scope {
            namespace,
            epoch: 0,
            version: 0,
            objects: 0,
            is_listed: false,
        };
        let scopes = V::KIND.scopes(scopes).into_iter().map(scope).collect();
        let state = State {
            objects: HashMap::new(),
            referrers: Relation::default(),
            controlled: Relation::default(),
            names: Vec::new(),
            scopes,
            changes: 0,
            rejected_until: None,
            is_divided: false,
        };
        Self {
            state: RwLock::new(state),
            owners,
            handler: OnceLock::new(),
            is_shared: AtomicBool::new(false),
            is_optional: AtomicBool::new(false),
        }
    }

    /// Adds an index by the names that `of` returns. The store must be empty.
    pub(crate) fn index(
        self: &Arc<Self>,
        of: impl Fn(&V) -> Vec<String> + Send + Sync + 'static,
    ) -> Index {
        let mut state = self.state.write();
        state.names.push(Names::new(of));
        Index {
            store: Arc::clone(self) as _,
            number: state.names.len() - 1,
        }
    }

    /// Passes the change by a response to `handler`. The watch reports no such change, because the store already has it. The author
    /// continues with the response; `handler` enqueues the other affected objects.
    /// `is_shared`: whether several controllers use the store.
    pub(crate) fn on_response(
        &self,
        is_shared: bool,
        handler: impl Fn(Author<'_>, &Change<V>) + Send + Sync + 'static,
    ) {
        self.is_shared.store(is_shared, Relaxed);
        let _ = self.handler.set(Box::new(handler));
    }

    /// Returns an object as this store keeps it.
    pub(crate) fn snapshot(&self, object: Object<V>) -> (Key, Snapshot<V>) {
        self.owners.snapshot(object)
    }

    /// Returns the number of objects.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.read().objects.len()
    }

    /// Whether the store is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the control by these annotations of an object.
    pub(crate) fn control(&self, annotations: Vec<Annotation>) -> Option<Arc<Control>> {
        self.owners.control::<V>(annotations, &[])
    }

    /// Returns the name of the annotation that grants the access to an object.
    pub(crate) fn grant_annotation(&self) -> String {
        format!("{}{GRANT_TO}", self.owners.group)
    }

    /// Returns whether the objects of this namespace are watched, and have not been listed yet. Not for the namespace
    /// of the reconciled object: its reconcile begins after the list. An optional type may be missing: then no object exists.
    pub(crate) fn is_unlisted(&self, key: &Key) -> bool {
        let state = self.state.read();
        let scope = state.scope_of(key);
        let is_unlisted = |scope: &Scope| scope.namespace.is_some() && !scope.is_listed;
        !self.is_optional() && scope.is_some_and(is_unlisted)
    }

    /// Returns whether the objects of this namespace are watched; of a cluster-scoped type, all are.
    pub(crate) fn covers(&self, key: &Key) -> bool {
        self.state.read().scope_of(key).is_some()
    }

    /// Returns the number of objects per scope.
    pub(crate) fn counts(&self) -> Vec<usize> {
        let state = self.state.read();
        state.scopes.iter().map(|scope| scope.objects).collect()
    }

    /// Returns the keys of all objects that this installation reconciles, by ascending version: an order that is the same in every
    /// process.
    #[must_use]
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.served_keys_where(|_, _| true)
    }

    /// Returns the keys of the objects that `is_wanted`, by ascending version. The store is locked during the call, as in
    /// [`Store::for_each`].
    #[must_use]
    pub fn keys_where(&self, is_wanted: impl Fn(&Key, &V) -> bool) -> Vec<Key> {
        self.keys_of(|key, entry| is_wanted(key, &entry.view))
    }

    fn keys_of(&self, is_wanted: impl Fn(&Key, &Entry<V>) -> bool) -> Vec<Key> {
        let state = self.state.read();
        let wanted = state.objects.iter();
        let wanted = wanted.filter(|(key, entry)| is_wanted(key, entry));
        let mut keys: Vec<_> = wanted.map(|(key, entry)| (entry.version, key)).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, key)| key.clone()).collect()
    }

    /// Calls `see` with every object, in no order. The store is locked during the call: `see` must be quick, and must not use
    /// the same store, which could deadlock.
    pub fn for_each(&self, mut see: impl FnMut(&V)) {
        for entry in self.state.read().objects.values() {
            see(&entry.view);
        }
    }

    /// Returns the object of this key.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Snapshot<V>> {
        self.state.read().objects.get(key).map(Entry::snapshot)
    }

    /// Returns the version of the object of this key.
    #[must_use]
    pub fn version(&self, key: &Key) -> Option<u64> {
        let state = self.state.read();
        state.objects.get(key).map(|entry| entry.version)
    }

    /// Returns the resourceVersion for a write that is based on this snapshot. This is the version in the store if the cached
    /// form there is still the same. Otherwise it is the version of the snapshot.
    pub(crate) fn newest(&self, key: &Key, snapshot: &Snapshot<V>) -> u64 {
        let now = self.get(key);
        let same = now.filter(|now| Arc::ptr_eq(&now.view, &snapshot.view));
        same.map_or(snapshot.version, |now| now.version)
    }

    /// Records that this object at `version` is up to date while `basis` stays the same. `basis` is a fingerprint of the
    /// related objects and of restored permissions.
    pub(crate) fn note_up_to_date(&self, key: &Key, version: u64, basis: u64) {
        if let Some(entry) = self.state.write().objects.get_mut(key)
            && entry.version == version
        {
            entry.input_fingerprint = NonZeroU64::new(basis);
        }
    }

    /// Removes the record of [`note_up_to_date`](Self::note_up_to_date).
    pub(crate) fn forget_up_to_date(&self, key: &Key) {
        if let Some(entry) = self.state.write().objects.get_mut(key) {
            entry.input_fingerprint = None;
        }
    }

    /// Returns the object and the fingerprint of [`note_up_to_date`](Self::note_up_to_date), unless the object has changed
    /// since.
    pub(crate) fn input_fingerprint(&self, key: &Key) -> Option<(Arc<V>, u64)> {
        let state = self.state.read();
        let entry = state.objects.get(key)?;
        Some((Arc::clone(&entry.view), entry.input_fingerprint?.get()))
    }

    /// Records the standing of an object, as shown by a response about this UID and version.
    ///
    /// [`Freshness::Conflicted`] lasts until the next version of the object. [`Freshness::Stale`] lasts until a live read or
    /// a successful write, or until another object has this name.
    ///
    /// If a list began or ended since `sent`, the object becomes [`Freshness::Stale`]. The list may come from a restored
    /// etcd, so it is unknown whether the stored object or the response is newer.
    pub(crate) fn note(
        &self,
        key: &Key,
        (uid, version): (&str, u64),
        standing: Freshness,
        sent: ListEpoch,
    ) {
        let mut state = self.state.write();
        let met_list = state.epoch_of(key) != sent;
        let Some(entry) = state.objects.get_mut(key) else {
            return;
        };
        let says_of_any = standing == Freshness::Stale;
        if entry.version == version && !met_list {
            entry.standing = standing;
        } else if entry.version == version || says_of_any && entry.view.uid() == uid {
            entry.standing = Freshness::Stale;
        }
    }

    /// Returns the epoch before a request, for [`note`](Self::note).
    pub(crate) fn now(&self, key: &Key) -> ListEpoch {
        self.state.read().epoch_of(key)
    }

    /// Returns the standing that was recorded by [`note`](Self::note).
    pub(crate) fn standing(&self, key: &Key) -> Freshness {
        let state = self.state.read();
        let entry = state.objects.get(key);
        entry.map_or(Freshness::Fresh, |entry| entry.standing)
    }

    /// Records that the API server accepted the deletion of the object of this UID. Finalizers may delay the deletion. The
    /// record lasts until the watch delivers the deletion, or until a new list contains the object.
    pub(crate) fn mark_deletion_pending(&self, key: &Key, uid: &str) {
        if let Some(entry) = self.state.write().objects.get_mut(key) {
            entry.going = entry.view.uid() == uid;
        }
    }

    /// Whether [`mark_deletion_pending`](Self::mark_deletion_pending) was recorded for this object.
    #[must_use]
    pub(crate) fn is_deletion_pending(&self, key: &Key, uid: &str) -> bool {
        let state = self.state.read();
        let entry = state.objects.get(key);
        entry.is_some_and(|entry| entry.going && entry.view.uid() == uid)
    }

    /// Marks the object after a write that was rejected or had no effect. The next list reports the object as changed, because
    /// that list may be the first under another schema.
    pub(crate) fn note_unheeded(&self, key: &Key) {
        if let Some(entry) = self.state.write().objects.get_mut(key) {
            entry.is_unheeded = true;
        }
    }

    /// Returns whether a user has requested a reconcile with a new token since the last call, or the object has come to this
    /// installation. `seen` is the token of the reconcile: a later one needs another reconcile.
    pub(crate) fn take_request(&self, key: &Key, seen: Option<&str>) -> bool {
        let mut state = self.state.write();
        let entry = state.objects.get_mut(key);
        entry.is_some_and(|entry| {
            let control = entry.control.as_ref();
            let token = control.and_then(|control| control.requested_at.as_deref());
            token == seen && std::mem::take(&mut entry.is_requested)
        })
    }

    /// Returns whether the next [`take_request`](Self::take_request) returns `true`.
    pub(crate) fn is_requested(&self, key: &Key) -> bool {
        let state = self.state.read();
        state.objects.get(key).is_some_and(|it| it.is_requested)
    }

    /// Returns the number of paused objects that this installation reconciles.
    pub(crate) fn paused(&self) -> usize {
        let state = self.state.read();
        let served = state.objects.values().filter(|it| it.is_served());
        let controls = served.filter_map(|it| it.control.as_ref());
        controls.filter(|control| control.is_paused).count()
    }

    /// Returns the number of additions, updates and deletions so far. While it is unchanged, so is the content of the store.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.state.read().changes
    }

    /// Returns the objects whose controlling owner has this key, even if there is no object of this key.
    #[must_use]
    pub fn controlled_by<P: Cached>(&self, owner: &Key) -> Vec<Key> {
        let state = self.state.read();
        state.controlled.of(&P::KIND, owner).cloned().collect()
    }

    /// Returns the objects that refer to the object of this key, even if there is no object of this key.
    #[must_use]
    pub(crate) fn referrers(&self, kind: &Kind, to: &Key) -> Vec<Key> {
        let state = self.state.read();
        state.referrers.of(kind, to).cloned().collect()
    }

    /// Returns whether an object that `is_one` refers to the object of this key.
    pub(crate) fn has_referrer(
        &self,
        kind: &Kind,
        to: &Key,
        is_one: impl Fn(&Key) -> bool,
    ) -> bool {
        let state = self.state.read();
        state.referrers.of(kind, to).any(is_one)
    }

    /// Returns the sum of the versions of [`controlled_by`](Self::controlled_by). It changes with each of these versions.
    pub(crate) fn controlled_versions<P: Cached>(&self, owner: &Key) -> u64 {
        let state = self.state.read();
        let keys = state.controlled.of(&P::KIND, owner);
        let versions = keys.filter_map(|key| Some(state.objects.get(key)?.version));
        versions.fold(0, u64::wrapping_add)
    }

    /// Marks the object before a write is sent. Returns the epoch for [`Store::record_response`].
    ///
    /// If the watch delivers another version before the response, the write is likely to fail with a conflict. The mark makes
    /// that version a change even if its content is the same, so that it triggers the retry.
    ///
    /// Several controllers may write one object at the same time: its spec and its status. The end of one write leaves the marks
    /// of the others, and its response is such a version for them.
    pub(crate) fn begin_write(&self, key: &Key) -> ListEpoch {
        let is_shared = self.is_shared.load(Relaxed);
        let mut state = self.state.write();
        if let Some(entry) = state.objects.get_mut(key) {
            let others = if is_shared { entry.writes_in_flight } else { 0 };
            entry.writes_in_flight = others.saturating_add(1);
        }
        state.epoch_of(key)
    }

    /// Reverts [`begin_write`](Self::begin_write) after a rejection for another reason than the version of the object.
    pub(crate) fn abort_write(&self, key: &Key) {
        if let Some(entry) = self.state.write().objects.get_mut(key) {
            entry.end_write();
        }
    }

    /// Stores the response to a write, unless the watch has delivered the same or a newer version. Passes the change to the
    /// [handler](Self::on_response).
    ///
    /// Returns the object of the response, or `None` if the watch has delivered another object of this name.
    ///
    /// A response is not stored if the watch has passed its version, or if a list began or ended since `sent`. The object may
    /// have been deleted in the meantime. The watch would not report that deletion again, so the object would stay in the store
    /// forever.
    pub(crate) fn record_response(
        &self,
        answer: Object<V>,
        sent: ListEpoch,
        by: Author<'_>,
    ) -> Option<Snapshot<V>> {
        let (key, answer) = self.snapshot(answer);
        let mut state = self.state.write();
        let told = state.scope_of(&key).is_none_or(|scope| {
            scope.epoch != sent.0 || scope.epoch % 2 == 1 || answer.version <= scope.version
        });
        let known = state.objects.get_mut(&key);
        let known = known.filter(|entry| entry.version >= answer.version);
        if let Some(entry) = known {
            if entry.view.uid() != answer.uid() {
                return None;
            }
            if entry.version == answer.version {
                entry.end_write();
            }
            return Some(answer);
        }
        if told {
            return Some(answer);
        }
        let writes = state.objects.get(&key).map(|it| it.writes_in_flight);
        let (old, new) = state.put(key.clone(), answer, sent.0);
        let mut is_awaited = false;
        if let Some(entry) = state.objects.get_mut(&key) {
            // The write's precondition proves that the object was current.
            entry.standing = Freshness::Fresh;
            entry.writes_in_flight = writes.unwrap_or_default();
            entry.end_write();
            is_awaited = entry.writes_in_flight > 0;
        }
        drop(state);
        if let Some(handler) = self.handler.get() {
            let is_same = old.as_ref().is_some_and(|old| old.has_same(&new));
            let change = Change {
                key,
                old,
                new: Some(new.clone()),
                is_touch: is_same && !is_awaited,
                awaited: None,
            };
            handler(by, &change);
        }
        Some(new)
    }

    /// Begins a list.
    pub(crate) fn list_begins(&self, scope: usize) {
        if let Some(scope) = self.state.write().scopes.get_mut(scope) {
            scope.epoch += 1 + scope.epoch % 2;
        }
    }

    /// Stores an object from a watch or its list. Returns a change if the version or the content differs.
    ///
    /// A list also returns a change for an unchanged object if it is doubtful, its deletion was accepted, or
    /// [`note_unheeded`](Self::note_unheeded) marked it.
    pub(crate) fn apply(&self, scope: usize, object: Object<V>) -> Option<Change<V>> {
        let (key, object) = self.snapshot(object);
        let mut state = self.state.write();
        let epoch = state.advance(scope, object.version)?;
        if state.has_newer(&key, object.version, epoch) {
            return None;
        }
        let known = state.objects.get(&key);
        let is_changed = known.is_none_or(|entry| entry.version != object.version);
        let is_awaited = known.is_some_and(|entry| {
            let is_listed_anew = list(entry.epoch) != list(epoch);
            entry.writes_in_flight > 0 && is_changed
                || entry.is_in_doubt() && (is_changed || is_listed_anew)
                || (entry.going || entry.is_unheeded) && is_listed_anew
        });
        let (old, new) = state.put(key.clone(), object, epoch);
        let is_other = is_awaited || old.as_ref().is_none_or(|old| !old.has_same(&new));
        (is_other || is_changed).then_some(Change {
            key,
            old,
            new: Some(new),
            is_touch: !is_other,
            awaited: None,
        })
    }

    /// Removes an object that a watch reports as deleted.
    pub(crate) fn delete(&self, scope: usize, key: &Key, version: u64) -> Option<Change<V>> {
        let mut state = self.state.write();
        let epoch = state.advance(scope, version)?;
        if state.has_newer(key, version, epoch) {
            return None;
        }
        state.remove(key)
    }

    /// Removes an object of any version. For an object that a GET read: its version may be later than that of the deletion.
    pub(crate) fn remove(&self, key: &Key) -> Option<Change<V>> {
        self.state.write().remove(key)
    }

    /// Ends a list: removes the objects that it did not contain. `version` is the resourceVersion of the list.
    pub(crate) fn list_ends(&self, scope: usize, version: u64) -> Vec<Change<V>> {
        self.ends(scope, version, true)
    }

    fn ends(&self, scope: usize, version: u64, is_listed: bool) -> Vec<Change<V>> {
        let mut state = self.state.write();
        let Some(ended) = state.scopes.get_mut(scope) else {
            return Vec::new();
        };
        let list = ended.epoch;
        ended.epoch += 1;
        ended.version = version;
        let has_appeared_or_vanished = self.is_optional() && ended.is_listed != is_listed;
        ended.is_listed = is_listed;
        let namespace = ended.namespace.clone();
        state.changes += u64::from(has_appeared_or_vanished);
        state.rejected_until = None;
        let mut gone: Vec<Key> = state
            .objects
            .iter()
            .filter(|(key, entry)| {
                entry.epoch != list && namespace.as_deref().is_none_or(|ns| ns == key.namespace())
            })
            .map(|(key, _)| key.clone())
            .collect();
        gone.sort_unstable();
        gone.iter().filter_map(|key| state.remove(key)).collect()
    }
}

impl<V: Cached> Named for Store<V> {
    fn count(&self, index: usize, name: &str) -> usize {
        let state = self.state.read();
        state.names[index].get(name).map_or(0, Keys::len)
    }

    fn keys(&self, index: usize, name: &str) -> Vec<Key> {
        let state = self.state.read();
        let keys = state.names[index].get(name).into_iter();
        keys.flat_map(Keys::iter).cloned().collect()
    }
}

impl<V: Cached> State<V> {
    fn scope_of(&self, key: &Key) -> Option<&Scope> {
        self.scopes.iter().find(|scope| scope.covers(key))
    }

    /// Updates the number of objects in the scope of this key.
    fn count(&mut self, key: &Key, change: impl FnOnce(usize) -> usize) {
        if let Some(scope) = self.scopes.iter_mut().find(|scope| scope.covers(key)) {
            scope.objects = change(scope.objects);
        }
    }

    fn epoch_of(&self, key: &Key) -> ListEpoch {
        ListEpoch(self.scope_of(key).map_or(0, |scope| scope.epoch))
    }

    /// Records the version that the watch has reached, and returns the epoch of the scope. A lower version is recorded too,
    /// because an etcd restore resets versions.
    fn advance(&mut self, scope: usize, version: u64) -> Option<u32> {
        let scope = self.scopes.get_mut(scope)?;
        scope.version = version;
        Some(scope.epoch)
    }

    /// Whether the store has a newer version than the watch delivers, from the response to a write. The watch then delivers an
    /// earlier write, or the deletion of an earlier object of this name.
    ///
    /// Within one list and its watch, versions of an object do not decrease. A new list replaces all versions.
    fn has_newer(&self, key: &Key, version: u64, epoch: u32) -> bool {
        let known = self.objects.get(key);
        known.is_some_and(|entry| entry.version > version && list(entry.epoch) == list(epoch))
    }

    /// Stores an object. The methods of its type may panic, so they are called before the store changes.
    fn put(
        &mut self,
        key: Key,
        mut new: Snapshot<V>,
        epoch: u32,
    ) -> (Option<Snapshot<V>>, Snapshot<V>) {
        let Some(entry) = self.objects.get_mut(&key) else {
            let entry = Entry {
                version: new.version,
                epoch,
                writes_in_flight: 0,
                standing: Freshness::Fresh,
                going: false,
                is_unheeded: false,
                input_fingerprint: None,
                // The object may have been here before.
                is_requested: new.requested_at().is_some() || self.is_divided,
                owner: new.owner.clone(),
                control: new.control.clone(),
                view: Arc::clone(&new.view),
            };
            self.link(&key, Self::references(&key, &new), new.owner.as_deref());
            for names in &mut self.names {
                names.add(&key, &new.view);
            }
            self.count(&key, |objects| objects + 1);
            self.objects.insert(key, entry);
            self.changes += 1;
            return (None, new);
        };
        let old = entry.snapshot();
        let is_same = old.has_same(&new);
        let links = |object: &Snapshot<V>| (Self::references(&key, object), object.owner.clone());
        let links = (!is_same).then(|| (links(&old), links(&new)));
        let is_changed = old.version != new.version || !is_same;
        let is_this_one = is_same || old.uid() == new.uid();
        let is_listed_anew = list(entry.epoch) != list(epoch);
        // An etcd restore may undo the accepted deletion. The object then comes back with an earlier version, or in a new list
        // with the cached version.
        let is_restored = old.version > new.version || is_listed_anew;
        entry.going = entry.going && !is_restored && is_this_one;
        if entry.is_unheeded && is_listed_anew {
            entry.is_unheeded = false;
            entry.input_fingerprint = None;
            self.changes += 1;
        }
        if is_changed {
            // A doubtful object stays doubtful: this version may come from a watch that lags behind, or from a restored etcd.
            if !(entry.is_in_doubt() && is_this_one) {
                entry.standing = Freshness::Fresh;
            }
            entry.input_fingerprint = None;
            entry.writes_in_flight = 0;
            self.changes += 1;
        }
        entry.version = new.version;
        entry.epoch = epoch;
        if is_same {
            new.owner.clone_from(&old.owner);
            new.control.clone_from(&old.control);
            new.view = Arc::clone(&old.view);
        } else {
            let is_new = new.requested_at() != old.requested_at();
            let has_come = new.is_served() && !old.is_served();
            entry.is_requested |= is_new && new.requested_at().is_some() || has_come;
            entry.owner.clone_from(&new.owner);
            entry.control.clone_from(&new.control);
            entry.view = Arc::clone(&new.view);
        }
        if !is_same {
            for names in &mut self.names {
                names.remove(&key, &old.view);
                names.add(&key, &new.view);
            }
        }
        if let Some((before, (references, owner))) = links.filter(|(before, now)| before != now) {
            self.unlink(&key, Some(before.0), before.1.as_deref());
            self.link(&key, references, owner.as_deref());
        }
        (Some(old), new)
    }

    fn remove(&mut self, key: &Key) -> Option<Change<V>> {
        let (key, entry) = self.objects.remove_entry(key)?;
        self.count(&key, |objects| objects - 1);
        self.changes += 1;
        let old = entry.snapshot();
        let references = || Self::references(&key, &old);
        let references = catch(&V::KIND, "Cached::references", references).ok();
        self.unlink(&key, references, old.owner.as_deref());
        for names in &mut self.names {
            names.remove(&key, &old.view);
        }
        Some(Change {
            key,
            old: Some(old),
            new: None,
            is_touch: false,
            awaited: None,
        })
    }

    fn link(&mut self, key: &Key, references: Vec<Reference>, owner: Option<&Owner>) {
        for to in references {
            self.referrers.add(to, key);
        }
        if let Some(owner) = owner {
            self.controlled.add(owner.reference(), key);
        }
    }

    /// `references` is `None` if [`Cached::references`] panics now, although it did not when the object was stored.
    fn unlink(&mut self, key: &Key, references: Option<Vec<Reference>>, owner: Option<&Owner>) {
        match references {
            Some(references) => {
                for to in &references {
                    self.referrers.remove(to, key);
                }
            }
            None => self.referrers.remove_all(key),
        }
        if let Some(owner) = owner {
            self.controlled.remove(&owner.reference(), key);
        }
    }
}

/// Returns the number of the list that an epoch belongs to: the list in progress, or the last one.
fn list(epoch: u32) -> u32 {
    epoch.div_ceil(2)
}

impl<V> Entry<V> {
    /// See [`Store::begin_write`].
    fn end_write(&mut self) {
        self.writes_in_flight = self.writes_in_flight.saturating_sub(1);
    }

    /// Whether the object may be outdated, even after the watch delivers another version.
    fn is_in_doubt(&self) -> bool {
        self.standing == Freshness::Stale
    }

    fn is_served(&self) -> bool {
        let control = self.control.as_ref();
        control.is_none_or(|control| control.other_installation.is_none())
    }

    fn snapshot(&self) -> Snapshot<V> {
        Snapshot {
            version: self.version,
            owner: self.owner.clone(),
            control: self.control.clone(),
            view: Arc::clone(&self.view),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::LazyLock;

    use parking_lot::Mutex;

    use super::*;
    use crate::testing::fixtures::{Child, Parent, object};

    /// A Parent of generation 2.
    fn parent() -> Object<Parent> {
        let mut parent = at("default", "parent", 7, "web");
        parent.view.generation = 2;
        parent
    }

    /// Returns the Parent `namespace/name` at a version. It specifies a Child.
    fn at(namespace: &str, name: &str, version: u64, child: &str) -> Object<Parent> {
        object(&format!(
            "
            metadata: {{name: {name}, namespace: {namespace}, uid: u, resourceVersion: '{version}'}}
            spec: {{child: {child}}}"
        ))
    }

    fn listed(objects: impl IntoIterator<Item = Object<Parent>>) -> Store<Parent> {
        let cache = Store::new(&[None], Owners::default());
        cache.list_begins(0);
        for object in objects {
            cache.apply(0, object);
        }
        cache.list_ends(0, 0);
        cache
    }

    fn by(controller: usize) -> Author<'static> {
        static KEY: LazyLock<Key> = LazyLock::new(|| Key::new("n", "author"));
        Author {
            controller,
            key: &KEY,
        }
    }

    fn names(changes: &[Change<Parent>]) -> Vec<String> {
        changes
            .iter()
            .map(|change| change.key.to_string())
            .collect()
    }

    /// A redelivery is not a change.
    #[test]
    fn r10a_redelivery_is_not_a_change() {
        let cache = listed([parent()]);
        let mut again = parent();
        assert_eq!(cache.apply(0, again.clone()), None);
        again.version += 1;
        let touched = cache.apply(0, again).unwrap();
        assert!(touched.is_touch);
        assert!(touched.old.unwrap().has_same(&touched.new.unwrap()));
        assert_eq!(
            cache.get(&parent().key).unwrap().version,
            parent().version + 1,
            "but the version moves on"
        );
        let mut other = parent();
        other.version += 2;
        other.view.generation += 1;
        let change = cache.apply(0, other.clone()).unwrap();
        assert!(!change.is_touch);
        assert_eq!(
            (change.old.as_deref(), change.new.as_deref()),
            (Some(&parent().view), Some(&other.view))
        );
    }

    /// The order of keys is the same in every process, so that runs are reproducible.
    #[test]
    fn the_order_of_objects_is_that_of_their_versions() {
        let all = (0..100).map(|number| (number * 37) % 101);
        let all = all.map(|version| at("n", &format!("x{version:03}"), version, "d"));
        assert!(listed(all).keys().is_sorted());
    }

    /// Two controllers write one object at the same time. After each result of the first write, the next version triggers the
    /// retry of the second one. The response to the first write is such a version.
    #[test]
    fn each_write_in_flight_makes_the_next_version_a_change() {
        type End = fn(&Store<Parent>, ListEpoch);
        const RESPONDED: u64 = 4;
        let key = || Key::new("n", "a");
        let touches = |writes: u8, end: End| {
            let cache = listed([at("n", "a", 3, "d")]);
            let touches = Arc::new(Mutex::new(Vec::new()));
            let responded = Arc::clone(&touches);
            cache.on_response(true, move |_, change| {
                responded.lock().push(change.is_touch);
            });
            let sent = cache.begin_write(&key());
            for _ in 1..writes {
                cache.begin_write(&key());
            }
            end(&cache, sent);
            let next = cache.apply(0, at("n", "a", RESPONDED + 1, "d"));
            touches.lock().push(next.unwrap().is_touch);
            let touches = touches.lock();
            touches.clone()
        };
        let rejected: End = |cache, _| cache.abort_write(&Key::new("n", "a"));
        let unheeded: End =
            |cache, sent| drop(cache.record_response(at("n", "a", 3, "d"), sent, by(0)));
        let carried_out: End =
            |cache, sent| drop(cache.record_response(at("n", "a", RESPONDED, "d"), sent, by(0)));
        assert_eq!(touches(1, rejected), [true]);
        assert_eq!(touches(2, rejected), [false]);
        assert_eq!(touches(1, unheeded), [true]);
        assert_eq!(touches(2, unheeded), [false]);
        assert_eq!(touches(1, carried_out), [true, true]);
        assert_eq!(touches(2, carried_out), [false, false]);
    }

    /// A list detects objects that were deleted while the watch was down.
    #[test]
    fn r10b_relist_removes_missing_objects() {
        let cache = listed([at("n", "a", 1, "d"), at("n", "b", 2, "d")]);
        cache.list_begins(0);
        cache.apply(0, at("n", "b", 2, "d"));
        assert_eq!(
            cache.len(),
            2,
            "while the list is being read, what was there stays"
        );
        let gone = cache.list_ends(0, 0);
        assert_eq!(names(&gone), ["n/a"]);
        assert!(gone[0].old.is_some() && gone[0].new.is_none());
    }

    /// A list of one namespace does not affect another.
    #[test]
    fn a_list_of_one_namespace_does_not_affect_another() {
        let cache = Store::<Parent>::new(&[Some("a".into()), Some("b".into())], Owners::default());
        for (scope, namespace) in ["a", "b"].into_iter().enumerate() {
            cache.list_begins(scope);
            cache.apply(scope, at(namespace, "x", 1, "d"));
            cache.list_ends(scope, 0);
        }
        assert_eq!(cache.counts(), [1, 1]);
        cache.list_begins(0);
        assert_eq!(names(&cache.list_ends(0, 0)), ["a/x"]);
        assert_eq!(cache.counts(), [0, 1]);
    }

    /// The response to a write is visible immediately, and its echo from the watch is not a change.
    #[test]
    fn the_response_to_a_write_is_stored() {
        let cache = listed([at("n", "a", 1, "d")]);
        let key = Key::new("n", "a");
        cache.record_response(at("n", "a", 5, "e"), cache.begin_write(&key), by(0));
        assert_eq!(cache.get(&key).unwrap().version, 5);
        assert_eq!(cache.apply(0, at("n", "a", 5, "e")), None);
    }

    /// A stored response is reported to the handler at once, and its echo is not a change. The watch will deliver a response that
    /// is not stored.
    #[test]
    fn a_response_is_a_change_for_others() {
        let cache = listed([at("n", "a", 1, "d")]);
        let changes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&changes);
        cache.on_response(true, move |by, change| {
            let version = |object: &Option<Snapshot<Parent>>| object.as_ref().map(|it| it.version);
            let versions = (version(&change.old), version(&change.new));
            seen.lock().push((by.controller, versions, change.is_touch));
        });
        let key = Key::new("n", "a");
        cache.record_response(at("n", "a", 5, "e"), cache.begin_write(&key), by(1));
        assert_eq!(cache.apply(0, at("n", "a", 5, "e")), None);
        cache.record_response(at("n", "a", 6, "e"), cache.begin_write(&key), by(0));
        let sent = cache.begin_write(&key);
        cache.list_begins(0);
        cache.record_response(at("n", "a", 7, "f"), sent, by(0));
        let told = [
            (1, (Some(1), Some(5)), false),
            (0, (Some(5), Some(6)), true),
        ];
        assert_eq!(*changes.lock(), told);
    }

    /// A version that conflicts with a write triggers the retry, even if its content is the same. Without a write it is only a
    /// touch.
    #[test]
    fn r10c_conflicting_version_is_a_change() {
        let cache = listed([at("n", "a", 1, "d")]);
        let key = Key::new("n", "a");
        cache.begin_write(&key);
        assert_eq!(cache.apply(0, at("n", "a", 1, "d")), None);
        let is_touch = |version, child| {
            cache
                .apply(0, at("n", "a", version, child))
                .unwrap()
                .is_touch
        };
        assert!(!is_touch(2, "d"));
        assert!(is_touch(3, "d"), "that was all");

        let sent = cache.begin_write(&key);
        cache.record_response(at("n", "a", 4, "e"), sent, by(0));
        assert!(is_touch(5, "e"), "the write was done");
    }

    /// A late response does not restore an object that the watch has reported as deleted.
    #[test]
    fn a_late_response_does_not_restore_a_deleted_object() {
        let cache = listed([]);
        let key = Key::new("n", "a");
        let sent = cache.begin_write(&key);
        cache.apply(0, at("n", "a", 5, "d"));
        cache.delete(0, &key, 6);
        cache.record_response(at("n", "a", 5, "d"), sent, by(0));
        assert!(cache.get(&key).is_none());

        let sent = cache.begin_write(&key);
        cache.list_begins(0);
        cache.record_response(at("n", "a", 7, "d"), sent, by(0));
        assert!(
            cache.get(&key).is_none(),
            "a list is being read: it will tell"
        );
        cache.record_response(at("n", "a", 7, "d"), cache.begin_write(&key), by(0));
        assert!(cache.get(&key).is_none());
        cache.list_ends(0, 0);
        cache.record_response(at("n", "a", 7, "d"), sent, by(0));
        assert!(
            cache.get(&key).is_none(),
            "a list was read meanwhile: it has told"
        );
    }

    /// A late response does not replace a newer object of the same name.
    #[test]
    fn a_late_response_does_not_replace_a_newer_object() {
        let cache = listed([at("n", "a", 1, "d")]);
        let key = Key::new("n", "a");
        let sent = cache.begin_write(&key);
        let mut other = at("n", "a", 3, "d");
        other.view.uid = "v".into();
        cache.delete(0, &key, 2);
        cache.apply(0, other);
        assert_eq!(
            cache.record_response(at("n", "a", 2, "e"), sent, by(0)),
            None
        );
        assert_eq!(cache.get(&key).unwrap().view.uid, "v".into());
    }

    /// The responses to two writes arrive before the watch delivers the first. The delivery is not a change.
    #[test]
    fn an_echo_of_an_older_write_does_not_restore_the_older_version() {
        let cache = listed([at("n", "a", 1, "d")]);
        let key = Key::new("n", "a");
        cache.record_response(at("n", "a", 5, "e"), cache.begin_write(&key), by(0));
        cache.record_response(at("n", "a", 6, "f"), cache.begin_write(&key), by(0));
        assert_eq!(cache.apply(0, at("n", "a", 5, "e")), None);
        assert_eq!(cache.get(&key).unwrap().version, 6);
        assert_eq!(
            cache.referrers(&Child::KIND, &Key::new("n", "f")),
            std::slice::from_ref(&key)
        );
        assert_eq!(cache.apply(0, at("n", "a", 6, "f")), None);

        // Another client deletes the object, and it is created again before the watch delivers the deletion.
        cache.record_response(at("n", "a", 9, "f"), cache.begin_write(&key), by(0));
        assert_eq!(cache.delete(0, &key, 8), None);
        assert_eq!(cache.get(&key).unwrap().version, 9);
        assert!(cache.delete(0, &key, 10).is_some());
    }

    /// After an etcd restore, versions are lower. The list replaces the content of the store.
    #[test]
    fn a_list_with_lower_versions_replaces_the_store() {
        let cache = listed([at("n", "a", 100, "d")]);
        let key = Key::new("n", "a");
        cache.list_begins(0);
        assert!(cache.apply(0, at("n", "a", 50, "e")).is_some());
        assert_eq!(cache.list_ends(0, 50), []);
        assert_eq!(cache.get(&key).unwrap().version, 50);
        assert!(cache.apply(0, at("n", "a", 51, "f")).is_some());
        assert_eq!(cache.get(&key).unwrap().version, 51);
    }

    /// The standing from a write lasts until the watch delivers another object or a deletion.
    #[test]
    fn a_stale_object_stays_stale_until_the_watch_catches_up() {
        let key = Key::new("n", "a");
        for standing in [Freshness::Conflicted, Freshness::Stale] {
            let cache = listed([at("n", "a", 1, "d")]);
            let note = |of| cache.note(&key, of, standing, cache.now(&key));
            note(("v", 0));
            assert_eq!(cache.standing(&key), Freshness::Fresh, "another one");
            note(("u", 1));
            assert_eq!(cache.apply(0, at("n", "a", 1, "d")), None);
            assert_eq!(cache.standing(&key), standing, "told before");
            let mut again = at("n", "a", 3, "d");
            again.view.uid = "v".into();
            cache.apply(0, again);
            assert_eq!(cache.standing(&key), Freshness::Fresh, "created again");
            note(("v", 3));
            cache.delete(0, &key, 4);
            assert_eq!(cache.standing(&key), Freshness::Fresh, "gone");
        }
    }

    /// A list may contain a doubtful object at the same version, because of an etcd restore or because the list is stale. It is
    /// reported as a change, so that a live read follows.
    #[test]
    fn a_stale_object_is_verified_after_an_unchanged_relist() {
        let key = Key::new("n", "a");
        let cache = listed([at("n", "a", 1, "d")]);
        let note = || cache.note(&key, ("u", 1), Freshness::Stale, cache.now(&key));
        note();
        for _ in 0..2 {
            cache.list_begins(0);
            let woken = cache.apply(0, at("n", "a", 1, "d"));
            assert_eq!(names(woken.as_slice()), ["n/a"], "it waits no longer");
            assert_eq!(cache.standing(&key), Freshness::Stale);
            assert_eq!(cache.apply(0, at("n", "a", 1, "d")), None, "told again");
            cache.list_ends(0, 1);
            note();
            assert_eq!(cache.apply(0, at("n", "a", 1, "d")), None, "by no list");
            assert_eq!(cache.standing(&key), Freshness::Stale);
        }
    }

    /// A watch that lags behind may deliver versions from before the deletion of a doubtful object. The object remains
    /// doubtful, so that a live read follows.
    #[test]
    fn a_stale_object_is_verified_after_the_watch_delivers_another_version() {
        let key = Key::new("n", "a");
        let cache = listed([at("n", "a", 1, "d")]);
        let note = |version, standing| cache.note(&key, ("u", version), standing, cache.now(&key));
        note(1, Freshness::Stale);
        for version in 2..5 {
            let woken = cache.apply(0, at("n", "a", version, "d"));
            assert_eq!(names(woken.as_slice()), ["n/a"], "it waits no longer");
            assert_eq!(cache.standing(&key), Freshness::Stale, "{version}");
        }
        note(4, Freshness::Fresh);
        let woken = cache.apply(0, at("n", "a", 5, "d"));
        assert!(woken.unwrap().is_touch);
        assert_eq!(cache.standing(&key), Freshness::Fresh, "and was current");

        // The response is about an older version than the cached one.
        note(4, Freshness::Stale);
        assert_eq!(cache.standing(&key), Freshness::Stale);
        note(4, Freshness::Fresh);
        assert_eq!(cache.standing(&key), Freshness::Stale);
    }

    /// A successful write proves that the object was current, so no live read is needed.
    #[test]
    fn a_written_object_is_fresh() {
        let key = Key::new("n", "a");
        let cache = listed([at("n", "a", 1, "d")]);
        let sent = cache.begin_write(&key);
        cache.note(&key, ("u", 1), Freshness::Stale, sent);
        cache.record_response(at("n", "a", 2, "e"), sent, by(0));
        assert_eq!(cache.standing(&key), Freshness::Fresh);
    }

    /// A conflict does not affect the next version that the watch delivers.
    #[test]
    fn a_conflict_ends_with_the_next_version() {
        let key = Key::new("n", "a");
        let cache = listed([at("n", "a", 1, "d")]);
        cache.note(&key, ("u", 1), Freshness::Conflicted, cache.now(&key));
        cache.apply(0, at("n", "a", 2, "d"));
        assert_eq!(cache.standing(&key), Freshness::Fresh);
        cache.note(&key, ("u", 1), Freshness::Conflicted, cache.now(&key));
        assert_eq!(cache.standing(&key), Freshness::Fresh, "of the one before");
    }

    /// The response to a request from before a list makes the object doubtful: etcd may have been restored in between.
    #[test]
    fn a_response_from_before_a_list_makes_the_object_stale() {
        let key = Key::new("n", "a");
        for standing in [Freshness::Fresh, Freshness::Stale] {
            let cache = listed([at("n", "a", 1, "d")]);
            let sent = cache.now(&key);
            cache.list_begins(0);
            cache.apply(0, at("n", "a", 1, "d"));
            cache.list_ends(0, 1);
            cache.note(&key, ("u", 1), standing, sent);
            assert_eq!(cache.standing(&key), Freshness::Stale);
        }
    }

    /// An accepted deletion is known while the object exists.
    #[test]
    fn a_pending_deletion_is_known_until_the_object_is_gone() {
        let key = Key::new("n", "a");
        let cache = listed([at("n", "a", 10, "d")]);
        let uid = cache.get(&key).unwrap().view.uid().to_owned();
        cache.mark_deletion_pending(&key, "earlier");
        assert!(!cache.is_deletion_pending(&key, &uid));
        cache.mark_deletion_pending(&key, &uid);
        cache.apply(0, at("n", "a", 11, "e"));
        assert!(
            cache.is_deletion_pending(&key, &uid),
            "its finalizers change"
        );
        assert!(!cache.is_deletion_pending(&key, "another"));
        cache.list_begins(0);
        cache.apply(0, at("n", "a", 5, "e"));
        assert!(
            !cache.is_deletion_pending(&key, &uid),
            "restored from a backup"
        );
        cache.list_ends(0, 5);
        cache.mark_deletion_pending(&key, &uid);
        cache.list_begins(0);
        assert!(
            cache.apply(0, at("n", "a", 5, "e")).is_some(),
            "wakes who wanted it to go"
        );
        assert!(!cache.is_deletion_pending(&key, &uid), "restored as it was");
        cache.list_ends(0, 5);
        cache.mark_deletion_pending(&key, &uid);
        cache.delete(0, &key, 12);
        cache.apply(0, at("n", "a", 13, "e"));
        assert!(!cache.is_deletion_pending(&key, &uid), "made again");
    }

    /// The references to an object are known even if it does not exist.
    #[test]
    fn references_are_followed_through_every_change() {
        let cache = listed([
            at("n", "a", 1, "d"),
            at("n", "b", 2, "d"),
            at("other", "c", 3, "d"),
        ]);
        let d = Key::new("n", "d");
        let mut referrers = cache.referrers(&Child::KIND, &d);
        referrers.sort();
        assert_eq!(referrers, [Key::new("n", "a"), Key::new("n", "b")]);
        cache.apply(0, at("n", "a", 4, "e"));
        cache.delete(0, &Key::new("n", "b"), 5);
        assert!(cache.referrers(&Child::KIND, &d).is_empty());
        assert_eq!(
            cache.referrers(&Child::KIND, &Key::new("n", "e")),
            [Key::new("n", "a")]
        );
        assert_eq!(
            cache.state.read().referrers.len(),
            2,
            "nothing is kept of what nobody speaks of"
        );
    }

    /// Only a controller reference to a reconciled resource type is kept, in any version.
    #[test]
    fn the_owner_is_of_a_reconciled_kind() {
        let owners = Owners::default();
        owners.add::<Parent>();
        let store = Store::<Child>::new(&[None], owners);
        let controlled = |reference: &str, version| {
            store.apply(
                0,
                object(&format!(
                    "metadata: {{name: c, namespace: n, uid: c, resourceVersion: '{version}', ownerReferences: [{reference}]}}"
                )),
            )
        };
        let by = |group: &str, kind: &str, controller: bool| {
            format!(
                "{{apiVersion: {group}/v2, kind: {kind}, name: p, uid: u, controller: {controller}}}"
            )
        };
        let p = Key::new("n", "p");
        for (version, (reference, is_kept)) in [
            (by("example.com", "Parent", true), true),
            (by("example.com", "Parent", false), false),
            (by("example.com", "Other", true), false),
            (by("example.org", "Parent", true), false),
            (
                "{apiVersion: v1, kind: Parent, name: p, uid: u, controller: true}".into(),
                false,
            ),
            (String::new(), false),
        ]
        .into_iter()
        .enumerate()
        {
            controlled(&by("example.com", "Parent", true), 10 * version + 1);
            let change = controlled(&reference, 10 * version + 2).unwrap();
            assert_eq!(change.is_touch, is_kept, "{reference}");
            let owner = change.new.unwrap().owner;
            assert_eq!(owner.is_some_and(|owner| owner.key == p), is_kept);
            assert_eq!(
                store.controlled_by::<Parent>(&p).len(),
                usize::from(is_kept)
            );
        }
    }
}
