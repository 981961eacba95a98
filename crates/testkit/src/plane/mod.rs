//! A Kubernetes control plane in memory.

mod controllers;
mod deployments;
pub(crate) mod service;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use crate::api_server::{
    Answer, Call, Key, Kind, Method, Now, Release, Rule, Server, Store, Unknown, User,
};
use service::Service;

/// User with all rights.
pub const ADMIN: &str = "admin";

/// A Kubernetes control plane in memory: API server, garbage collector, and the controllers of namespaces and CRDs.
///
/// It serves custom resources of any CRD like a real API server: defaults, pruning, validation with CEL rules, ratcheting,
/// subresources, versions, preconditions, watches with bookmarks, pages, and finalizers. The differential tests of this crate
/// compare the answers with those of kube-apiserver. It has no scheduler and no kubelet: nothing makes a pod of a `Deployment`, but
/// [`run_pods`](Self::run_pods) makes its status report them.
///
/// A request that is not modelled gets the status 501 with the reason `NotModelled`, never a guess.
///
/// Clones share the control plane. It uses tokio's clock, so `#[tokio::test(start_paused = true)]` makes time fly.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// use kube::api::{Api, DynamicObject, PostParams};
/// use operator_testkit::ControlPlane;
/// use serde_json::json;
///
/// let plane = ControlPlane::new();
/// plane.install(&json!({
///     "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
///     "metadata": { "name": "shirts.example.com" },
///     "spec": {
///         "group": "example.com", "scope": "Namespaced", "names": { "kind": "Shirt", "plural": "shirts" },
///         "versions": [{
///             "name": "v1", "served": true, "storage": true,
///             "schema": { "openAPIV3Schema": {
///                 "type": "object",
///                 "properties": { "spec": {
///                     "type": "object",
///                     "properties": { "size": { "type": "string", "enum": ["S", "M", "L"], "default": "M" } },
///                 } },
///             } },
///         }],
///     },
/// })).unwrap();
///
/// let kind = kube::core::GroupVersionKind::gvk("example.com", "v1", "Shirt");
/// let shirts = kube::core::ApiResource::from_gvk_with_plural(&kind, "shirts");
/// let api: Api<DynamicObject> = Api::namespaced_with(plane.client("admin"), "default", &shirts);
/// let mut shirt = DynamicObject::new("blue", &shirts);
/// shirt.data = json!({ "spec": {} });
/// let created = api.create(&PostParams::default(), &shirt).await.unwrap();
/// assert_eq!(created.data["spec"]["size"], "M");
/// shirt.data = json!({ "spec": { "size": "XL" } });
/// assert!(api.create(&PostParams::default(), &shirt).await.is_err());
/// # });
/// ```
#[derive(Clone)]
pub struct ControlPlane {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Number of the last request, for waiting clients.
    requests: watch::Sender<u64>,
    started: Instant,
    wall: Timestamp,
}

pub(crate) struct State {
    pub store: Store,
    server: Server,
    /// Whether the pods of Deployments become available.
    pods: bool,
    scripted: VecDeque<(String, String, Scripted)>,
    /// Requests that are not modelled.
    unknown: Vec<String>,
}

/// An answer that a test gives in place of the control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scripted {
    /// A `Status` with this code, such as 409 or 503. The request has no effect.
    Code(u16),
    /// The connection breaks before the request arrives.
    Lost,
    /// The request is carried out, but the connection breaks before the answer arrives.
    AnswerLost,
}

/// A change of an object.
#[derive(Clone, Debug)]
pub struct Change {
    /// `metadata.resourceVersion` after the change.
    pub version: u64,
    /// Time since the control plane started.
    pub at: Duration,
    /// The user.
    pub by: String,
    pub namespace: String,
    pub name: String,
    pub kind: String,
    /// Nothing for a creation.
    pub before: Option<Arc<Value>>,
    /// Nothing for a deletion.
    pub after: Option<Arc<Value>>,
}

/// A CRD or object that the API server rejects: its `Status`.
#[derive(Debug)]
pub struct Rejected(pub Value);

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0["message"].as_str() {
            Some(message) => f.write_str(message),
            None => write!(f, "{}", self.0),
        }
    }
}

impl std::error::Error for Rejected {}

impl Default for ControlPlane {
    fn default() -> Self {
        Self::new()
    }
}

impl ControlPlane {
    /// Starts a control plane of the default [`Release`], with the namespace `default`.
    ///
    /// # Panics
    /// Outside of a tokio runtime whose time is enabled.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Release::default())
    }

    /// Starts a control plane that imitates this version of Kubernetes, with the namespace `default`.
    ///
    /// # Panics
    /// Outside of a tokio runtime whose time is enabled.
    #[must_use]
    pub fn of(release: Release) -> Self {
        let mut store = Store::of(release);
        let wall = Timestamp::now();
        store.create_namespace(
            Now {
                since_start: Duration::ZERO,
                wall,
            },
            "default",
        );
        let server = Server::new(&store);
        let state = State {
            store,
            server,
            pods: false,
            scripted: VecDeque::new(),
            unknown: Vec::new(),
        };
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                requests: watch::Sender::new(0),
                started: Instant::now(),
                wall,
            }),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Now {
        let since_start = self.shared.started.elapsed();
        Now {
            since_start,
            wall: self.shared.wall + since_start,
        }
    }

    /// Creates a CRD, which is established at once.
    ///
    /// # Errors
    /// The API server rejects it, for example because its schema is not structural, or a part of it is not modelled.
    pub fn install(&self, crd: &impl Serialize) -> Result<(), Rejected> {
        self.create(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            crd,
        )
    }

    /// From now on, the status of each `Deployment` reports that all its pods are available. There are no pods.
    pub fn run_pods(&self) {
        let now = self.now();
        let mut state = self.state();
        state.pods = true;
        let State { store, server, .. } = &mut *state;
        controllers::run(store, server, now, true);
        drop(state);
        self.shared.requests.send_modify(|count| *count += 1);
    }

    /// Creates a namespace.
    ///
    /// # Errors
    /// It exists, or its name is invalid.
    pub fn create_namespace(&self, name: &str) -> Result<(), Rejected> {
        self.create(
            "/api/v1/namespaces",
            &json!({ "metadata": { "name": name } }),
        )
    }

    fn create(&self, path: &str, object: &impl Serialize) -> Result<(), Rejected> {
        let object =
            serde_json::to_value(object).map_err(|error| Rejected(json!(error.to_string())))?;
        match self.send(ADMIN, &Method::POST, path, &object) {
            (200..300, _) => Ok(()),
            (_, status) => Err(Rejected(status)),
        }
    }

    /// Sends a request with a body of JSON, and returns the status code and the body of the response. A patch is a merge patch.
    #[must_use]
    pub fn send(&self, user: &str, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        let bytes = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let content_type = match *method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let call = Call {
            user: User {
                name: user,
                pod: None,
            },
            method,
            path_and_query: path,
            content_type: Some(content_type),
            accept: None,
            user_agent: Some(user),
            body: &bytes,
        };
        match self.answer(&call) {
            Answer::Whole { code, body, .. } => (code, body),
            Answer::Watch(_) => (400, json!("use a client for a watch")),
        }
    }

    /// Limits a user to the rules of these `Role`s and `ClusterRole`s, which are YAML. A `Role` without a namespace, and a
    /// `ClusterRole`, apply everywhere. Other documents, such as bindings, are ignored. Users without rules may do everything.
    ///
    /// # Errors
    /// The text is not YAML.
    pub fn grant(&self, user: &str, yaml: &str) -> Result<(), String> {
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(yaml).map_err(|error| error.to_string())?;
        let mut state = self.state();
        let rules = state.store.rules_of(user);
        for document in documents {
            let is_role = matches!(document["kind"].as_str(), Some("Role" | "ClusterRole"));
            let namespace = document["metadata"]["namespace"].as_str();
            let namespace = namespace.filter(|_| document["kind"] == "Role");
            for rule in document["rules"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|_| is_role)
            {
                rules.push(Rule {
                    namespace: namespace.map(ToOwned::to_owned),
                    rule: rule.clone(),
                });
            }
        }
        Ok(())
    }

    /// Returns a client of a user. `system:serviceaccount:NAMESPACE:NAME` is the user of a `ServiceAccount`.
    #[must_use]
    pub fn client(&self, user: &str) -> kube::Client {
        kube::Client::new(Service::new(self.clone(), user), "default")
    }

    /// Scripts the answer to the next request with this verb (such as `patch`) for this resource (such as `deployments` or
    /// `shirts/status`), both as in a role: without the group. Several answers for the same requests are given in order.
    pub fn next(&self, verb: &str, resource: &str, answer: Scripted) {
        self.state()
            .scripted
            .push_back((verb.to_owned(), resource.to_owned(), answer));
    }

    /// Waits until no client has sent a request for a second: operators have nothing left to do.
    pub async fn settle(&self) {
        self.settle_for(Duration::from_secs(1)).await;
    }

    /// Like [`settle`](Self::settle), with another time without requests.
    pub async fn settle_for(&self, quiet: Duration) {
        let mut requests = self.shared.requests.subscribe();
        while let Ok(Ok(())) = tokio::time::timeout(quiet, requests.changed()).await {}
    }

    /// Returns an object, or nothing. `resource` is plural and has the group, such as `deployments.apps` or `services`. Events have
    /// the form of `events.k8s.io/v1`.
    ///
    /// # Panics
    /// The resource is not served.
    #[must_use]
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let state = self.state();
        let kind = state.served(resource);
        state
            .store
            .get(&Key::new(kind, namespace, name))
            .map(|object| Value::clone(object))
    }

    /// Stores an object without validation; `None` deletes it. A test can so create an object that the API server would reject, such
    /// as an object of an older version of Kubernetes. An existing object keeps its UID and its generation. Each write gives a new
    /// resourceVersion, even without a change.
    ///
    /// # Panics
    /// The resource is not served or contains CRDs, the object is no JSON object, or the namespace does not fit to the scope.
    pub fn put(&self, resource: &str, namespace: &str, name: &str, object: Option<Value>) {
        let now = self.now();
        let mut state = self.state();
        let kind = state.served(resource);
        let State {
            store,
            server,
            pods,
            ..
        } = &mut *state;
        let is_namespaced = kind.is_namespaced() && !namespace.is_empty();
        let fits = is_namespaced || !kind.is_namespaced() && namespace.is_empty();
        assert!(fits, "{resource} in namespace {namespace:?}");
        assert_ne!(kind, Kind::CustomResourceDefinition, "install the CRD");
        let key = Key::new(kind, namespace, name);
        let before = store.get(&key).cloned();
        if before.is_none() && object.is_none() {
            return;
        }
        let object = object.map(|mut object| {
            object["apiVersion"] = kind.api_version().into();
            object["kind"] = kind.info().kind.into();
            let metadata = &mut object["metadata"];
            metadata["name"] = name.into();
            if kind.is_namespaced() {
                metadata["namespace"] = namespace.into();
            }
            let was = before.as_deref().map(|before| &before["metadata"]);
            metadata["uid"] = was.map_or_else(|| store.new_uid().into(), |was| was["uid"].clone());
            let created = was.map_or_else(
                || now.seconds().into(),
                |was| was["creationTimestamp"].clone(),
            );
            metadata["creationTimestamp"] = created;
            if kind.info().generation {
                let generation = was.and_then(|was| was["generation"].as_i64());
                metadata["generation"] = generation.unwrap_or(1).into();
            }
            object
        });
        store.put(now, ADMIN, &key, object);
        controllers::run(store, server, now, *pods);
        drop(state);
        self.shared.requests.send_modify(|count| *count += 1);
    }

    /// Returns all changes of the objects of a resource, the oldest first. The resource is named as in [`get`](Self::get).
    ///
    /// # Panics
    /// The resource is not served.
    #[must_use]
    pub fn history(&self, resource: &str) -> Vec<Change> {
        let state = self.state();
        let kind = state.served(resource);
        let revisions = state.store.history().iter();
        let revisions = revisions.filter(|one| one.key.kind == kind);
        revisions
            .map(|one| Change {
                version: one.version,
                at: one.at.since_start,
                by: one.by.to_string(),
                namespace: one.key.namespace.clone(),
                name: one.key.name.clone(),
                kind: one.key.kind.info().kind.to_owned(),
                before: one.before.clone(),
                after: one.after.clone(),
            })
            .collect()
    }

    /// Returns the requests that were not modelled. A test that must not depend on them asserts that there are none.
    #[must_use]
    pub fn not_modelled(&self) -> Vec<String> {
        self.state().unknown.clone()
    }

    /// Records a request that is not modelled, and returns its `Status`.
    pub(crate) fn refuse_unmodelled(&self, what: String) -> Value {
        let status = not_modelled(&what);
        self.state().unknown.push(what);
        status
    }

    /// Removes the history up to now, like a compaction of etcd: a watch from an old version fails with 410.
    pub fn compact(&self) {
        let mut state = self.state();
        let version = state.store.version();
        state.store.compact(version);
        state.server.forget(version);
    }

    /// Carries out a call, and lets the controllers react.
    fn answer(&self, call: &Call<'_>) -> Answer {
        let now = self.now();
        let mut state = self.state();
        let State {
            store,
            server,
            unknown,
            pods,
            ..
        } = &mut *state;
        let answer = server
            .serve(store, now, call)
            .unwrap_or_else(|Unknown(what)| {
                let body = not_modelled(&what);
                unknown.push(what);
                Answer::Whole {
                    code: 501,
                    headers: vec![("Content-Type", "application/json".to_owned())],
                    body,
                }
            });
        controllers::run(store, server, now, *pods);
        drop(state);
        self.shared.requests.send_modify(|count| *count += 1);
        answer
    }
}

impl State {
    /// Returns the kind of a resource. Panics if it is not served.
    fn served(&self, resource: &str) -> Kind {
        let mut kinds = Kind::BUILT_IN.iter().chain(self.store.custom_kinds());
        let kind = kinds.find(|kind| kind.resource() == resource);
        kind.map_or_else(
            || panic!("no resource {resource}, which needs its group, such as deployments.apps"),
            |kind| kind.stored(),
        )
    }
}

impl fmt::Debug for ControlPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlPlane")
            .field("version", &self.state().store.version())
            .finish_non_exhaustive()
    }
}

/// Returns the status of a request that is not modelled.
fn not_modelled(what: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotModelled", "code": 501,
        "message": format!("operator-testkit does not model {what}"),
    })
}
