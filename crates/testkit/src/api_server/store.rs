//! The content of etcd: every version of every object, with one counter.

use std::{
    borrow::Cow,
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Value, json};

use super::{Kind, Now, Release, access::Rule, definition::Definition, names, policy::Fencing};

/// Identity of an object. In the order of etcd's keys.
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

    /// Returns the path of the object in a URL.
    pub fn url(&self) -> String {
        let info = self.kind.info();
        let root = if info.group.is_empty() {
            "/api"
        } else {
            "/apis"
        };
        let (version, namespace, name) = (self.kind.api_version(), &self.namespace, &self.name);
        let namespace = if self.kind.is_namespaced() {
            format!("namespaces/{namespace}/")
        } else {
            String::new()
        };
        format!("{root}/{version}/{namespace}{}/{name}", info.plural)
    }

    /// Returns the key of the stored object.
    fn stored(&self) -> Cow<'_, Self> {
        if self.kind == self.kind.stored() {
            return Cow::Borrowed(self);
        }
        Cow::Owned(Self {
            kind: self.kind.stored(),
            ..self.clone()
        })
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

/// User of the changes by [`Store::restore`]. No API server made them, and each object keeps its version.
pub const RESTORED: &str = "a restored backup";

/// State that [`Store::restore`] restores.
#[derive(Clone, Copy, Debug)]
pub struct Backup(u64);

/// All objects and their history.
#[derive(Default)]
pub struct Store {
    /// Of the API servers, which are all of the same version.
    pub(crate) release: Release,
    version: u64,
    /// All changes ever made, in order of time. A restored backup removes nothing, and adds its own changes.
    history: Vec<Arc<Revision>>,
    /// Changes that led to the current state, in order of versions.
    line: Vec<Arc<Revision>>,
    /// The same changes by object.
    objects: BTreeMap<Key, Vec<Arc<Revision>>>,
    compacted: u64,
    uids: u64,
    /// Whether objects have no managers of fields.
    is_unmanaged: bool,
    /// User, verb and resource.
    pub(super) revoked: BTreeSet<(String, String, String)>,
    /// Rules of the users that do not have all rights.
    pub(super) rules: BTreeMap<String, Vec<Rule>>,
    /// Users by token.
    pub(super) tokens: BTreeMap<String, String>,
    /// The fencing component, which may be removed.
    pub(super) fencing: Option<Fencing>,
    /// Kinds that a CRD defines or defined.
    pub(super) custom: Vec<Kind>,
    /// The compiled CRDs by their versions, with the version of the last change of their `spec`.
    compiled: BTreeMap<u64, (Arc<Definition>, u64)>,
}

impl Store {
    pub fn new() -> Self {
        Self::of(Release::default())
    }

    /// Returns an empty store of API servers of this version of Kubernetes.
    pub fn of(release: Release) -> Self {
        Self {
            release,
            // As in a cluster, clients do not see the first versions.
            version: 100,
            ..Self::default()
        }
    }

    /// Keeps no managers of fields, except of the replicas: writes are faster, and an apply is not modelled.
    #[must_use]
    pub fn without_managers(self) -> Self {
        Self {
            is_unmanaged: true,
            ..self
        }
    }

    pub(super) fn keeps_managers(&self) -> bool {
        !self.is_unmanaged
    }

    /// Returns the newest version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns all changes ever made, in order of time.
    pub fn history(&self) -> &[Arc<Revision>] {
        &self.history
    }

    pub fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(&*key.stored())?.last()?.after.as_ref()
    }

    /// Returns whether the object has not changed since its creation.
    pub fn is_as_created(&self, key: &Key) -> bool {
        let last = self.objects.get(&*key.stored()).and_then(|all| all.last());
        last.is_some_and(|last| last.before.is_none())
    }

    /// Returns the object as it was when `version` was the newest.
    pub fn get_at(&self, key: &Key, version: u64) -> Option<&Arc<Value>> {
        at(self.objects.get(&*key.stored())?, version)
    }

    /// Returns all objects of a kind, in one namespace or in all.
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
        let kind = kind.stored();
        let first = Key::new(kind, namespace.unwrap_or_default(), "");
        let all = self.objects.range(first..);
        all.take_while(move |(key, _)| {
            key.kind == kind && namespace.is_none_or(|namespace| key.namespace == namespace)
        })
        .filter_map(move |(key, revisions)| Some((key, at(revisions, version)?)))
    }

    /// Returns the changes after `version`.
    pub fn since(&self, version: u64) -> &[Arc<Revision>] {
        let first = self.line.partition_point(|one| one.version <= version);
        &self.line[first..]
    }

    /// Returns a UID that no object has had.
    pub fn new_uid(&mut self) -> String {
        self.uids += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.uids)
    }

    /// Returns a name with this prefix that no object of the kind has.
    pub(super) fn new_name(&self, kind: Kind, namespace: &str, prefix: &str) -> String {
        let mut names = (self.uids..).map(|number| names::generated(prefix, number));
        let is_free = |name: &String| self.get(&Key::new(kind, namespace, name)).is_none();
        names.find(is_free).unwrap_or_default()
    }

    /// Stores an object with a new version and without validation; `None` deletes it. Returns the stored object.
    pub fn put(
        &mut self,
        now: Now,
        by: &str,
        key: &Key,
        object: Option<Value>,
    ) -> Option<Arc<Value>> {
        let key = &*key.stored();
        let before = self.get(key).cloned();
        self.version += 1;
        if let Some(definition) = object
            .as_ref()
            .filter(|_| key.kind == Kind::CustomResourceDefinition)
        {
            self.compile(before.as_deref(), definition);
        }
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

    /// Compiles a CRD.
    ///
    /// # Panics
    /// If a part of the CRD is not modelled.
    fn compile(&mut self, before: Option<&Value>, definition: &Value) {
        let compiled = Definition::compile(definition, self.release)
            .unwrap_or_else(|unknown| panic!("{unknown}"));
        let is_same = before.is_some_and(|before| before["spec"] == definition["spec"]);
        let since = before
            .and_then(|before| self.compiled(before))
            .map(|(_, since)| since);
        let since = since.filter(|_| is_same).unwrap_or(self.version);
        self.compiled.insert(self.version, (compiled, since));
    }

    /// Returns a stored CRD in its compiled form, and the version of the last change of its `spec`.
    pub(super) fn compiled(&self, definition: &Value) -> Option<(Arc<Definition>, u64)> {
        let version = definition["metadata"]["resourceVersion"]
            .as_str()?
            .parse()
            .ok()?;
        self.compiled.get(&version).cloned()
    }

    /// Creates an active namespace.
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

    /// Creates a `StorageClass`. Only its metadata is modelled.
    pub fn create_storage_class(&mut self, now: Now, name: &str) {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": name, "uid": self.new_uid(), "creationTimestamp": now.seconds(),
            },
        });
        let key = Key::new(Kind::StorageClass, "", name);
        self.put(now, "admin", &key, Some(class));
    }

    /// Removes the history up to this version, except for states that are still current. A list at an older version fails
    /// (410).
    pub fn compact(&mut self, to: u64) {
        self.compacted = self.compacted.max(to.min(self.version));
    }

    /// Returns the last compacted version.
    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Returns a backup of the current state.
    pub fn backup(&self) -> Backup {
        Backup(self.version)
    }

    /// Restores a backup, with the versions of its objects. The API servers keep their caches until the caller restarts them.
    ///
    /// The next version is greater than `bump`, and all versions before it are compacted: `etcdutl snapshot restore
    /// --bump-revision --mark-compacted`.
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
