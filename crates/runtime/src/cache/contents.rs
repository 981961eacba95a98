//! Content of the referenced objects of a resource type, whose watch delivers only metadata.
//!
//! The store contains only the objects that an object references and may read. A reference into another namespace needs a grant
//! in the metadata: no content is read without one. A GET reads an object after each list, when its version changes, when its
//! first reference appears, and when it is granted. A list ends in the store only after these reads, so the initial sync waits
//! for them, and no object is missing during a relist.
//!
//! A grant permits to read the version that contains it, and later ones that still do. So a new grant needs a new read.
//! If the metadata withdraws a grant, the content leaves the store, and is read again if another object may read it.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt::Debug,
    hash::Hasher,
    marker::PhantomData,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use kube::{
    Client, Error, Resource as _,
    api::{GetParams, Request},
};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};
use tracing::error;

use crate::{
    api::{
        control::{Control, keeps_grants, may_read},
        exists::ExistsWire,
        key::Key,
        kind::Kind,
        object::{Cached, Incoming, Meta, Object},
        panic::{Panicked, catch},
        status::retry_after,
    },
    cache::{
        outage::{GET, Outage},
        readiness::{Status, refusals::Refusals},
        store::{Change, Store},
        target::Target,
        watch::NAMED,
    },
    client::context::ClientContext,
};

/// Maximum number of concurrent reads for each scope.
const CONCURRENCY: usize = 4;

/// Timeout of a read.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The metadata of an object that is read as `V`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Head<V>(PhantomData<fn() -> V>);

impl<V: Cached> Cached for Head<V> {
    type Wire = ExistsWire;
    const KIND: Kind = V::KIND;
    const METADATA_ONLY: bool = true;

    fn decode(wire: ExistsWire) -> (Meta, Self) {
        (wire.into_meta(), Self(PhantomData))
    }

    fn uid(&self) -> &'static str {
        ""
    }

    fn content(&self, _: &mut impl Hasher) {}
}

/// A store of objects that reference others.
pub(crate) trait Referrers: Send + Sync {
    /// Returns whether an object references the object `key` with this control, and may read it.
    fn may_read(&self, kind: &Kind, key: &Key, control: Option<&Control>) -> bool;
}

impl<P: Cached> Referrers for Store<P> {
    fn may_read(&self, kind: &Kind, key: &Key, control: Option<&Control>) -> bool {
        self.has_referrer(kind, key, |from| may_read(from, key, control))
    }
}

/// The referenced objects of a resource type, in all scopes.
pub(crate) struct Contents<V> {
    store: Arc<Store<V>>,
    referrers: Mutex<Vec<Controller>>,
    scopes: Vec<Scope>,
}

/// The primaries of a controller, and its refusals.
type Controller = (Arc<dyn Referrers>, Arc<Refusals>);

struct Scope {
    namespace: Option<String>,
    state: Mutex<State>,
    /// Notified when there may be an object to read, or a list to end.
    wake: Notify,
}

#[derive(Default)]
struct State {
    /// All selected objects, as the watch delivered them.
    known: HashMap<Key, Known>,
    queue: VecDeque<Key>,
    /// Objects in the queue or being read.
    waiting: HashSet<Key>,
    /// Number of the list that is being read, or of the last one.
    list: u32,
    is_listing: bool,
    /// Version of a complete list that has not ended in the store.
    ended: Option<u64>,
    /// Objects whose content panics, to log each once. At most [`NAMED`].
    left_out: HashSet<Key>,
}

#[derive(Clone, PartialEq)]
struct Known {
    version: u64,
    list: u32,
    control: Option<Arc<Control>>,
}

impl State {
    fn read(&mut self, key: &Key) {
        if self.waiting.insert(key.clone()) {
            self.queue.push_back(key.clone());
        }
    }
}

/// Result of a read, and the metadata when it was sent.
type Read<V> = (Key, Known, Result<Incoming<V>, Error>);

impl<V: Cached> Contents<V> {
    pub(crate) fn new(namespaces: &[Option<String>], store: &Arc<Store<V>>) -> Self {
        let scope = |namespace| Scope {
            namespace,
            state: Mutex::default(),
            wake: Notify::new(),
        };
        Self {
            store: Arc::clone(store),
            referrers: Mutex::default(),
            scopes: V::KIND.scopes(namespaces).into_iter().map(scope).collect(),
        }
    }

    /// Adds a store whose objects reference these objects.
    pub(crate) fn add(&self, referrers: Arc<dyn Referrers>, refusals: Arc<Refusals>) {
        self.referrers.lock().push((referrers, refusals));
    }

    /// Whether an object references this object with this control, and may read it.
    fn is_readable(&self, key: &Key, control: Option<&Control>) -> bool {
        let referrers = self.referrers.lock();
        referrers
            .iter()
            .any(|(store, _)| store.may_read(&V::KIND, key, control))
    }

    fn scope(&self, key: &Key) -> Option<usize> {
        let covers = |scope: &Scope| {
            let namespace = scope.namespace.as_deref();
            namespace.is_none_or(|namespace| namespace == key.namespace())
        };
        self.scopes.iter().position(covers)
    }

    /// Whether the object exists, the object `from` may read it, and its content has not been read yet.
    pub(crate) fn is_awaited(&self, from: &Key, key: &Key) -> bool {
        self.scope(key).is_some_and(|scope| {
            let state = self.scopes[scope].state.lock();
            let known = state.known.get(key);
            known.is_some_and(|known| may_read(from, key, known.control.as_deref()))
                && self.store.version(key).is_none()
        })
    }

    /// Records that a reference to this object has appeared or disappeared.
    pub(crate) fn references_changed(&self, key: &Key) {
        let Some(scope) = self.scope(key) else {
            return;
        };
        let mut state = self.scopes[scope].state.lock();
        let known = state.known.get(key);
        if !known.is_some_and(|known| self.is_readable(key, known.control.as_deref())) {
            // No object waits for this change.
            let _ = self.store.remove(key);
        } else if let Some(&Known { version, .. }) = known
            && (self.store.version(key)).is_none_or(|stored| stored < version)
        {
            state.read(key);
            self.scopes[scope].wake.notify_one();
        }
    }

    /// Reads the contents of one scope, until cancelled.
    pub(crate) async fn read(
        &self,
        shared: &Arc<ClientContext>,
        status: Status,
        changed: impl Fn(Change<V>) + Send,
    ) {
        let number = status.scope();
        let (namespace, wake) = (status.namespace(), &self.scopes[number].wake);
        let mut outage = Outage::new(Arc::clone(shared), V::KIND, namespace, status, &GET);
        let (mut running, mut failed) = (FuturesUnordered::new(), HashSet::new());
        let mut resume = None;
        loop {
            if resume.is_some_and(|at| at <= Instant::now()) {
                resume = None;
            }
            while resume.is_none()
                && running.len() < CONCURRENCY
                && let Some((key, sent)) = self.next(number)
            {
                running.push(get(&shared.client, key, sent));
            }
            if !failed.is_empty() {
                let state = self.scopes[number].state.lock();
                failed.retain(|key| state.waiting.contains(key));
                drop(state);
                if failed.is_empty() {
                    outage.is_over();
                }
            }
            if let Some(gone) = self.end_list(number) {
                gone.into_iter().for_each(&changed);
                outage.status.synced();
            }
            tokio::select! {
                biased;
                Some((key, sent, answer)) = running.next() => match self.store(number, &key, &sent, answer) {
                    Ok(change) => change.into_iter().for_each(&changed),
                    Err(Again(error)) => {
                        let mut asked = None;
                        if let Some(error) = error {
                            asked = retry_after(&error);
                            outage.say(&error);
                            failed.insert(key);
                        }
                        // An earlier `Retry-After` stays.
                        resume = resume.max(Some(Instant::now() + outage.next_pause(asked.unwrap_or_default())));
                    }
                },
                () = wake.notified() => {}
                () = sleep_until(resume.unwrap_or_else(Instant::now)), if resume.is_some() => {}
            }
        }
    }

    /// Returns the next object to read.
    fn next(&self, scope: usize) -> Option<(Key, Known)> {
        let mut state = self.scopes[scope].state.lock();
        loop {
            let key = state.queue.pop_front()?;
            let known = state.known.get(&key).cloned();
            let readable = known.filter(|known| self.is_readable(&key, known.control.as_deref()));
            if let Some(known) = readable {
                return Some((key, known));
            }
            state.waiting.remove(&key);
        }
    }

    /// Ends a list in the store, once each referenced object has been read. Returns the removed objects.
    ///
    /// It does not wait for the lists of the referrers. A reconcile waits for the content of its own references, and the list of
    /// another controller may fail forever.
    fn end_list(&self, number: usize) -> Option<Vec<Change<V>>> {
        let mut state = self.scopes[number].state.lock();
        if !state.waiting.is_empty() {
            return None;
        }
        let version = state.ended.take()?;
        Some(self.store.list_ends(number, version))
    }

    /// Stores the result of a read, unless it may be older than the metadata, or its own grant permits no reader. An object that
    /// is gone is read again, until the watch or a list removes it.
    fn store(
        &self,
        scope: usize,
        key: &Key,
        sent: &Known,
        answer: Result<Incoming<V>, Error>,
    ) -> Result<Option<Change<V>>, Again> {
        let mut state = self.scopes[scope].state.lock();
        let known = state.known.get(key).cloned();
        let readable = known.filter(|known| self.is_readable(key, known.control.as_deref()));
        let Some(known) = readable else {
            state.waiting.remove(key);
            return Ok(None);
        };
        let read = match answer {
            Ok(read) => read,
            Err(error) => {
                state.queue.push_back(key.clone());
                if is_missing(&error) {
                    return again_if(known == *sent);
                }
                if matches!(&error, Error::Api(status) if status.code == 403) {
                    for (_, refusals) in &*self.referrers.lock() {
                        refusals.refused(key, true);
                    }
                }
                return Err(Again(Some(error)));
            }
        };
        if read.key_and_version().1 < known.version || known.list != sent.list {
            state.queue.push_back(key.clone());
            return again_if(known == *sent);
        }
        state.waiting.remove(key);
        let read = read.0.map_err(|(_, panicked)| panicked);
        if let Ok(object) = &read {
            let control = self.store.control(object.control.clone());
            if !self.is_readable(key, control.as_deref()) {
                // The grant was withdrawn after the metadata.
                let withdrawn = Known {
                    control,
                    ..known.clone()
                };
                state.known.insert(key.clone(), withdrawn);
                return Ok(self.removed(key, Some(&known)));
            }
        }
        // An object that waited for the content may not be granted it any more.
        let apply = |object| {
            let change = catch(&V::KIND, "PartialEq::eq", || {
                self.store.apply(scope, object)
            })?;
            Ok(change.map(|change| Change {
                awaited: known.control.clone(),
                ..change
            }))
        };
        read.and_then(apply).or_else(|panicked| {
            if state.left_out.len() < NAMED && state.left_out.insert(key.clone()) {
                error!(object = %key, "{panicked}; leaving the object out until it changes");
            }
            state.known.remove(key);
            Ok(self.removed(key, Some(&known)))
        })
    }

    /// Removes an object that was `known`. Returns a change also if its content is not in the store: objects that may read it may
    /// wait for it.
    fn removed(&self, key: &Key, known: Option<&Known>) -> Option<Change<V>> {
        let awaited = known.and_then(|known| known.control.clone());
        let Some(change) = self.store.remove(key) else {
            let is_awaited = self.is_readable(key, known?.control.as_deref());
            return is_awaited.then(|| Change {
                key: key.clone(),
                old: None,
                new: None,
                is_touch: false,
                awaited,
            });
        };
        Some(Change { awaited, ..change })
    }
}

/// The read has to be repeated after a pause. Without an error, the response did not match the metadata.
struct Again(Option<Error>);

/// Pauses before the next read, unless the metadata has changed.
fn again_if<T>(is_unchanged: bool) -> Result<Option<T>, Again> {
    if is_unchanged {
        Err(Again(None))
    } else {
        Ok(None)
    }
}

async fn get<V: Cached>(client: &Client, key: Key, sent: Known) -> Read<V> {
    let url = Object::<V>::url_path(&(), key.namespace_if_any());
    let request = Request::new(url).get(key.name(), &GetParams::default());
    let answer = match request {
        Ok(request) => timeout(READ_TIMEOUT, client.request(request)).await,
        Err(error) => Ok(Err(Error::BuildRequest(error))),
    };
    let late = |_| {
        Err(Error::Service(
            format!("no answer in {READ_TIMEOUT:?}").into(),
        ))
    };
    (key, sent, answer.unwrap_or_else(late))
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 404)
}

/// Records the metadata of one scope, and requests the reads.
pub(crate) struct Heads<V, F> {
    pub contents: Arc<Contents<V>>,
    pub scope: usize,
    /// Called for each removed object. Must not block.
    pub changed: F,
}

impl<V: Cached, F: Fn(Change<V>) + Send> Target<Head<V>> for Heads<V, F> {
    fn list_begins(&self) {
        let mut state = self.contents.scopes[self.scope].state.lock();
        state.list += 1;
        (state.is_listing, state.ended) = (true, None);
        self.contents.store.list_begins(self.scope);
    }

    fn apply(&self, head: Object<Head<V>>) -> Result<(), Panicked> {
        let Scope { state, wake, .. } = &self.contents.scopes[self.scope];
        let (key, version, store) = (head.key, head.version, &self.contents.store);
        let control = store.control(head.control);
        let mut state = state.lock();
        let list = state.list;
        let stored = store.get(&key);
        // After an etcd restore, a list may contain other content at the stored version.
        let is_news = state.is_listing || stored.as_ref().is_none_or(|it| it.version < version);
        let is_readable = is_news && self.contents.is_readable(&key, control.as_deref());
        if is_readable {
            state.read(&key);
            wake.notify_one();
        }
        let known = Known {
            version,
            list,
            control,
        };
        let before = state.known.insert(key.clone(), known.clone());
        let keeps = |before: Option<&Arc<Control>>| {
            keeps_grants(before.map(|it| &**it), known.control.as_deref())
        };
        let stored = stored.and_then(|it| it.control);
        let waited = before.as_ref().and_then(|it| it.control.as_ref());
        let is_withdrawn = is_news && !(keeps(stored.as_ref()) && keeps(waited));
        let change = is_withdrawn.then(|| self.contents.removed(&key, before.as_ref()));
        drop(state);
        change.flatten().into_iter().for_each(&self.changed);
        Ok(())
    }

    /// A GET may have read a version after this one: of an object that the selector excludes now, or that was created again. The
    /// watch delivers the latter, and it is read again.
    fn delete(&self, key: &Key, _: u64) {
        let mut state = self.contents.scopes[self.scope].state.lock();
        let known = state.known.remove(key);
        state.left_out.remove(key);
        let change = self.contents.removed(key, known.as_ref());
        drop(state);
        change.into_iter().for_each(&self.changed);
    }

    /// Removes the objects that the list did not contain, also those that were read during the list. The list ends in the store
    /// after the reads.
    fn list_ends(&self, version: u64) -> bool {
        let Scope { state, wake, .. } = &self.contents.scopes[self.scope];
        let mut state = state.lock();
        let list = state.list;
        (state.is_listing, state.ended) = (false, Some(version));
        let gone = state.known.extract_if(|_, known| known.list != list);
        let gone = gone.filter_map(|(key, known)| self.contents.removed(&key, Some(&known)));
        let gone: Vec<_> = gone.collect();
        drop(state);
        gone.into_iter().for_each(&self.changed);
        wake.notify_one();
        false
    }

    /// An optional type has no such contents.
    fn vanish(&self) {}
}

#[cfg(test)]
mod tests;
