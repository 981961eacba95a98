//! What etcd has: every version of every object, under one count.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Value, json};

use super::{Kind, Now};

/// Which object. They are in the order of etcd's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    fn path(&self) -> impl Iterator<Item = u8> {
        let (namespace, name) = (self.namespace.bytes(), self.name.bytes());
        namespace.chain([b'/']).chain(name)
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        let kinds = self.kind.cmp(&other.kind);
        kinds.then_with(|| self.path().cmp(other.path()))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A change of one object.
#[derive(Clone, Debug)]
pub struct Revision {
    pub version: u64,
    pub at: Now,
    /// The user.
    pub by: Arc<str>,
    pub key: Key,
    pub before: Option<Arc<Value>>,
    pub after: Option<Arc<Value>>,
}

impl Revision {
    /// As a watch tells it; one that is gone as it was last, with the version at which it went.
    pub fn event(&self) -> (&'static str, Value) {
        match (&self.before, &self.after) {
            (None, Some(after)) => ("ADDED", Value::clone(after)),
            (Some(_), Some(after)) => ("MODIFIED", Value::clone(after)),
            (before, None) => {
                let mut last = before.as_deref().cloned().unwrap_or_default();
                last["metadata"]["resourceVersion"] = self.version.to_string().into();
                ("DELETED", last)
            }
        }
    }
}

/// Who has changed what [`Store::restore`] changes: no API server has, and each object keeps its version.
pub const RESTORED: &str = "a restored backup";

/// What [`Store::restore`] goes back to.
#[derive(Clone, Copy, Debug)]
pub struct Backup(u64);

/// All objects, and how they came to be so.
#[derive(Default)]
pub struct Store {
    version: u64,
    /// All that was ever written, in the order of time; a restored backup takes nothing out of it, and adds what it has changed.
    history: Vec<Arc<Revision>>,
    /// What is true of it: in the order of versions.
    line: Vec<Arc<Revision>>,
    /// The same by object.
    objects: BTreeMap<Key, Vec<Arc<Revision>>>,
    compacted: u64,
    uids: u64,
    /// User, verb and resource.
    pub(super) revoked: BTreeSet<(String, String, String)>,
    /// Whose token is whose.
    pub(super) tokens: BTreeMap<String, String>,
}

impl Store {
    pub fn new() -> Self {
        Self {
            // As in a cluster, nobody sees the first ones.
            version: 100,
            ..Self::default()
        }
    }

    /// The newest version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// All that was ever written, in the order of time.
    pub fn history(&self) -> &[Arc<Revision>] {
        &self.history
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)?.last()?.after.as_ref()
    }

    /// Whether it has not been changed since it was created.
    pub fn is_as_created(&self, key: &Key) -> bool {
        let last = self.objects.get(key).and_then(|all| all.last());
        last.is_some_and(|last| last.before.is_none())
    }

    /// The object as it was when `version` was the newest.
    pub fn get_at(&self, key: &Key, version: u64) -> Option<&Arc<Value>> {
        at(self.objects.get(key)?, version)
    }

    /// All objects of a kind, in one namespace or in all.
    pub fn list(
        &self,
        kind: Kind,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.list_at(kind, namespace, self.version)
    }

    pub fn list_at(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        version: u64,
    ) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        let first = Key::new(kind, namespace.unwrap_or_default(), "");
        let all = self.objects.range(first..);
        all.take_while(move |(key, _)| {
            key.kind == kind && namespace.is_none_or(|namespace| key.namespace == namespace)
        })
        .filter_map(move |(key, revisions)| Some((key, at(revisions, version)?)))
    }

    /// What was written after `version`.
    pub fn since(&self, version: u64) -> &[Arc<Revision>] {
        let first = self.line.partition_point(|one| one.version <= version);
        &self.line[first..]
    }

    /// A UID that no object has had.
    pub fn new_uid(&mut self) -> String {
        self.uids += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.uids)
    }

    /// Stores an object as it is given, under a version of its own, whatever any API server would say; `None` takes it
    /// out. Returns it as stored.
    pub fn put(
        &mut self,
        now: Now,
        by: &str,
        key: &Key,
        object: Option<Value>,
    ) -> Option<Arc<Value>> {
        let before = self.get(key).cloned();
        self.version += 1;
        let after = object.map(|mut object| {
            object["metadata"]["resourceVersion"] = self.version.to_string().into();
            Arc::new(object)
        });
        let revision = Arc::new(Revision {
            version: self.version,
            at: now,
            by: by.into(),
            key: key.clone(),
            before,
            after: after.clone(),
        });
        self.history.push(revision.clone());
        self.line.push(revision.clone());
        self.objects.entry(key.clone()).or_default().push(revision);
        after
    }

    /// Creates a namespace, as it is once it is there.
    pub fn create_namespace(&mut self, now: Now, name: &str) {
        let namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": name,
                "uid": self.new_uid(),
                "creationTimestamp": now.seconds(),
                "labels": { "kubernetes.io/metadata.name": name },
            },
            "spec": { "finalizers": ["kubernetes"] },
            "status": { "phase": "Active" },
        });
        let key = Key::new(Kind::Namespace, "", name);
        self.put(now, "admin", &key, Some(namespace));
    }

    /// Forgets what there was up to this version, save what is still so: who lists at an older one is told to begin anew.
    pub fn compact(&mut self, to: u64) {
        self.compacted = self.compacted.max(to.min(self.version));
    }

    /// The last version that is forgotten.
    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// What there is now, to come back to.
    pub fn backup(&self) -> Backup {
        Backup(self.version)
    }

    /// Goes back to a backup, in its versions, too: they will name other states than they did. The caches of API servers
    /// are what they were: who restores a backup starts them anew. With `bump`, the next version is one after this, and those
    /// before it are forgotten: `etcdutl snapshot restore --bump-revision --mark-compacted`.
    pub fn restore(&mut self, now: Now, backup: Backup, bump: u64) {
        let Backup(version) = backup;
        self.version = self.version.max(bump);
        self.compacted = self.version;
        self.line.retain(|one| one.version <= version);
        self.objects.retain(|key, revisions| {
            let last = |all: &[Arc<Revision>]| all.last().and_then(|last| last.after.clone());
            let before = last(revisions);
            revisions.retain(|one| one.version <= version);
            let after = last(revisions);
            if before != after {
                self.history.push(Arc::new(Revision {
                    version: self.version,
                    at: now,
                    by: RESTORED.into(),
                    key: key.clone(),
                    before,
                    after,
                }));
            }
            !revisions.is_empty()
        });
    }
}

fn at(revisions: &[Arc<Revision>], version: u64) -> Option<&Arc<Value>> {
    let after = revisions.partition_point(|one| one.version <= version);
    revisions[..after].last()?.after.as_ref()
}
