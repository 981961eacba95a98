//! The load, and what a watch sees of its consequences. Sixteen connections, bodies made beforehand as far as they can be,
//! answers not decoded: the loader should not be what limits.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, future::join_all};
use http::Method;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioExecutor};
use kube::{
    Client, Config,
    client::ConfigExt as _,
    config::{KubeConfigOptions, Kubeconfig},
    core::WatchEvent,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
    time::{interval, timeout},
};
use tower::{BoxError, ServiceBuilder};

use crate::cluster::Cluster;

/// The `apiVersion` of a Foo.
const VERSION: &str = "samplecontroller.k8s.io/v1alpha1";

pub const FOOS: &str = "/apis/samplecontroller.k8s.io/v1alpha1/namespaces/default/foos";
pub const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
pub const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
pub const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/foo-controller";

/// How many requests are under way at once, each on a connection of its own.
pub const CONNECTIONS: usize = 16;

/// How long one thing that is waited for may take.
const GATHER_TIMEOUT: Duration = Duration::from_mins(1);

/// Connections of the user `bench-load`.
pub struct Load(Vec<Client>);

impl Load {
    pub async fn new(cluster: &Cluster) -> Self {
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig_of("bench-load")).unwrap();
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .unwrap();
        let client = |_| connect(&config).unwrap();
        Self((0..CONNECTIONS).map(client).collect())
    }

    /// For what is asked once.
    pub fn client(&self) -> &Client {
        &self.0[0]
    }

    /// Does this for each name, as fast as the connections allow; returns when each was done.
    pub async fn each(
        &self,
        names: &[String],
        act: impl AsyncFn(&Client, &str),
    ) -> HashMap<String, Instant> {
        let left = Mutex::new(names.iter());
        self.drain(async || left.lock().await.next(), act).await
    }

    /// The same, begun at a steady rate.
    pub async fn at_rate(
        &self,
        a_second: u32,
        names: &[String],
        act: impl AsyncFn(&Client, &str),
    ) -> HashMap<String, Instant> {
        let left = Mutex::new((interval(Duration::from_secs(1) / a_second), names.iter()));
        let next = async || {
            let (tick, names) = &mut *left.lock().await;
            tick.tick().await;
            names.next()
        };
        self.drain(next, act).await
    }

    /// Serves each Foo that is new or changed as soon as it is seen; ends with the watch.
    pub async fn serve(&self, mut foos: Watch) {
        let mut clients = self.0.iter().cycle();
        // What is still under way ends with this.
        let mut serving = JoinSet::new();
        while let Some((_, foo)) = foos.0.recv().await {
            if let Some(client) = clients.next()
                && !foo.is_told(foo.metadata.generation)
            {
                let client = client.clone();
                serving.spawn(async move {
                    serve_foo(&client, &foo).await;
                });
            }
        }
    }

    async fn drain<'a>(
        &self,
        next: impl AsyncFn() -> Option<&'a String>,
        act: impl AsyncFn(&Client, &str),
    ) -> HashMap<String, Instant> {
        let connection = async |client| {
            let mut done = Vec::new();
            while let Some(name) = next().await {
                act(client, name).await;
                done.push((name.clone(), Instant::now()));
            }
            done
        };
        let done = join_all(self.0.iter().map(connection)).await;
        done.into_iter().flatten().collect()
    }
}

/// A client without Nagle's algorithm, by which kube's own waits 40 ms for many an answer.
fn connect(config: &Config) -> kube::Result<Client> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let connector = config.rustls_https_connector_with_connector(tcp)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .map_err(BoxError::from)
        .service(
            hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector),
        );
    Ok(Client::new(service, "default"))
}

/// `PREFIX-000000`, `PREFIX-000001`, …
pub fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n:06}")).collect()
}

pub async fn create_foo(client: &Client, name: &str) -> Object {
    let foo = json!({
        "apiVersion": VERSION,
        "kind": "Foo",
        "metadata": {"name": name},
        "spec": {"deploymentName": name, "replicas": 1},
    });
    write(client, Method::POST, FOOS, &foo).await
}

pub async fn scale(client: &Client, resource: &str, name: &str, replicas: i32) -> Object {
    let patch = json!({"spec": {"replicas": replicas}});
    write(client, Method::PATCH, &format!("{resource}/{name}"), &patch).await
}

pub async fn delete(client: &Client, path: &str) {
    write::<Value>(client, Method::DELETE, path, &json!({})).await;
}

/// What a controller writes for a new Foo: its Deployment, its status, an event.
pub async fn serve_foo(client: &Client, foo: &Object) {
    let name = &foo.metadata.name;
    let labels = json!({"app": "nginx", "controller": name});
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels, "ownerReferences": [{
            "apiVersion": VERSION,
            "kind": "Foo",
            "name": name,
            "uid": foo.metadata.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }]},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "nginx", "image": "nginx:latest"}]},
        }},
    });
    write::<Object>(client, Method::POST, DEPLOYMENTS, &deployment).await;
    tell_foo(client, foo).await;
}

/// What a controller writes about a Foo whose Deployment it has changed: its status, an event.
pub async fn tell_foo(client: &Client, foo: &Object) {
    let Metadata {
        name,
        uid,
        resource_version,
        generation,
    } = &foo.metadata;
    let now = k8s_openapi::jiff::Timestamp::now();
    let condition = |type_: &str, status: &str| {
        json!({
            "type": type_,
            "status": status,
            "reason": "DeploymentProgressing",
            "message": format!("Deployment {name:?} has 0 of {} replicas available", foo.spec.replicas.unwrap_or(1)),
            "observedGeneration": generation,
            "lastTransitionTime": format!("{now:.0}"),
        })
    };
    let status = json!({
        "apiVersion": VERSION,
        "kind": "Foo",
        "metadata": {"name": name, "resourceVersion": resource_version},
        "status": {
            "availableReplicas": 0,
            "observedGeneration": generation,
            "replicas": 0,
            "selector": format!("app=nginx,controller={name}"),
            "deploymentName": name,
            "conditions": [condition("Ready", "False"), condition("Progressing", "True")],
        },
    });
    let path = format!("{FOOS}/{name}/status");
    write::<Object>(client, Method::PUT, &path, &status).await;
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": format!("{name}-")},
        "eventTime": format!("{now:.6}"),
        "type": "Normal",
        "reason": "Synced",
        "action": "Reconcile",
        "note": "Foo synced successfully",
        "reportingController": "sample-controller",
        "reportingInstance": "bench",
        "regarding": {
            "apiVersion": VERSION,
            "kind": "Foo",
            "namespace": "default",
            "name": name,
            "uid": uid,
        },
    });
    write::<Object>(client, Method::POST, EVENTS, &event).await;
}

/// One request; returns what it was answered.
async fn write<T: DeserializeOwned>(
    client: &Client,
    method: Method,
    path: &str,
    body: &Value,
) -> T {
    let content = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content)
        .body(serde_json::to_vec(body).unwrap())
        .unwrap();
    let answer = client.request_text(request).await;
    let answer = answer.unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_str(&answer).unwrap()
}

/// What is read of a Foo or a Deployment.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Object {
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    uid: String,
    resource_version: String,
    #[serde(default)]
    pub generation: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Spec {
    pub replicas: Option<i32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    observed_generation: i64,
}

impl Object {
    /// Whether the status is about this generation.
    pub fn is_told(&self, generation: i64) -> bool {
        self.metadata.generation == generation && self.status.observed_generation == generation
    }
}

/// A watch on what there is of a resource, and what comes.
pub struct Watch(mpsc::UnboundedReceiver<(Instant, Object)>);

impl Watch {
    pub async fn new(client: &Client, resource: &'static str) -> Self {
        let client = client.clone();
        let open = async move |version: &str| {
            let uri = format!("{resource}?watch=true&resourceVersion={version}");
            let request = http::Request::get(uri).body(Vec::new()).unwrap();
            client.request_events::<Object>(request).await
        };
        let mut events = open("0").await.unwrap().boxed();
        let (seen, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut version = "0".to_owned();
            loop {
                while let Some(event) = events.next().await {
                    match event {
                        Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                            version.clone_from(&object.metadata.resource_version);
                            if seen.send((Instant::now(), object)).is_err() {
                                return;
                            }
                        }
                        Ok(WatchEvent::Deleted(_) | WatchEvent::Bookmark(_)) => {}
                        // That version is too long ago: all there is, again.
                        Ok(WatchEvent::Error(_)) | Err(_) => "0".clone_into(&mut version),
                    }
                }
                // The API server ends a watch after a while, or when it is behind. It goes on where it was, until the
                // control plane is gone.
                events = match open(&version).await {
                    Ok(events) => events.boxed(),
                    Err(_) => return,
                };
            }
        });
        Self(receiver)
    }

    /// Waits until so many objects have been as asked for, and returns when each was so first.
    pub async fn until(
        &mut self,
        count: usize,
        is_so: impl Fn(&Object) -> bool,
    ) -> HashMap<String, Instant> {
        let mut done = HashMap::new();
        while done.len() < count {
            let before = done.len();
            self.gather(&mut done, before + 1, &is_so).await;
            assert!(done.len() > before, "{before} of {count}, and no more");
        }
        done
    }

    /// Adds the objects that are as asked for, and when each was so first, until there are so many or for as long as
    /// [`GATHER_TIMEOUT`].
    pub async fn gather(
        &mut self,
        done: &mut HashMap<String, Instant>,
        count: usize,
        is_so: impl Fn(&Object) -> bool,
    ) {
        let gathered = timeout(GATHER_TIMEOUT, async {
            while done.len() < count {
                let (at, object) = self.0.recv().await.expect("a control plane");
                if is_so(&object) {
                    done.entry(object.metadata.name).or_insert(at);
                }
            }
        });
        // Whoever asks counts them.
        let _ = gathered.await;
    }
}
