//! Cluster-scoped objects, while only some namespaces are watched.

use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use super::*;
use crate::{
    api::{
        kind::Kind,
        plain::{Custom, Dependent, Fields, Spec},
        reference::{ObjectRef, References},
        reported::Status,
    },
    reconcile::{context::View, plan::Plan},
    telemetry::object_state::parse,
    testing::fixtures::logged,
};

/// Makes a `ConfigMap` of its name in this namespace.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Class {
    namespace: String,
}

impl Spec for Class {
    const KIND: Kind = Kind::custom("example.com", "v1", "Class", "classes").cluster_scoped();
    type Status = Status;
    fn references(&self, to: &mut References<'_>) {
        to.object::<Dependent<Map>>(&ObjectRef::new(&self.namespace, to.key().name()));
    }
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
struct Map {}

impl Fields for Map {
    const KIND: Kind = Kind::of::<k8s_openapi::api::core::v1::ConfigMap>();
}

struct Classes(Writer<Dependent<Map>>);

impl Reconciler for Classes {
    type Primary = Custom<Class>;
    type Error = ApiError;

    fn plan(
        &self,
        cx: &View<'_, Custom<Class>>,
        class: &Snapshot<Custom<Class>>,
    ) -> Result<Plan<Custom<Class>>, ApiError> {
        let (mut plan, spec) = (Plan::new(), class.view.spec()?);
        let key = Key::new(&spec.namespace, cx.key().name());
        plan.apply(&self.0, &key, &Map {});
        Ok(plan)
    }
}

/// Each Class and its namespace.
const CLASSES: [(&str, &str); 3] = [("a", "n1"), ("b", "n2"), ("c", "n3")];

/// API server with the Classes.
#[derive(Clone)]
struct ApiServer {
    /// Each write, and the first request of each watch.
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    version: Arc<Mutex<u64>>,
    /// Permits the list of the `ConfigMap`s in `n2`.
    listed: Arc<Semaphore>,
    /// Events of the watch of the `ConfigMap`s in `n2`.
    events: broadcast::Sender<String>,
}

impl ApiServer {
    fn new() -> Self {
        Self {
            requests: Arc::default(),
            version: Arc::default(),
            listed: Arc::new(Semaphore::new(0)),
            events: broadcast::channel(8).0,
        }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Answer> {
        const MAPS: &str = "namespaces/n2/configmaps";
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let mut object: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path = head.uri.path().rsplit_once("v1/").unwrap().1.to_owned();
        let query = head.uri.query().unwrap_or_default();
        if query.contains("sendInitialEvents") {
            return respond(422, &json!({ "code": 422 }));
        }
        if path.ends_with("reviews") {
            let allowed = json!({ "spec": {}, "status": { "allowed": true } });
            return respond(201, &allowed);
        }
        if query.contains("watch") {
            let events = self.events.subscribe();
            let lines = stream::unfold(events, async |mut events| {
                let line = events.recv().await.ok()?;
                Some((Ok(Frame::data(Bytes::from(line + "\n"))), events))
            });
            return match &*path {
                MAPS => streamed(lines),
                _ => streamed(stream::pending()),
            };
        }
        let what = format!("{} {path}", head.method);
        if head.method != Method::GET {
            let version = {
                let mut version = self.version.lock();
                *version += 10;
                *version
            };
            self.requests.lock().push((what, object.clone()));
            let metadata = &mut object["metadata"];
            if metadata["uid"].is_null() {
                metadata["uid"] = format!("uid-{version}").into();
            }
            metadata["generation"] = 1.into();
            metadata["resourceVersion"] = version.to_string().into();
            // An update of the status has no spec.
            let class = CLASSES
                .iter()
                .find(|(name, _)| object["metadata"]["name"] == *name);
            if let Some((_, namespace)) = class {
                object["spec"] = json!({ "namespace": namespace });
            }
            return respond(200, &object);
        }
        self.requests.lock().push((what, Value::Null));
        if path == MAPS {
            self.listed.acquire().await.unwrap().forget();
        }
        let class = |(name, namespace)| {
            json!({
                "metadata": { "name": name, "uid": name, "resourceVersion": "1", "generation": 1 },
                "spec": { "namespace": namespace },
            })
        };
        let classes = CLASSES.map(class);
        let items = if path == "classes" { &classes[..] } else { &[] };
        let metadata = json!({ "resourceVersion": "9" });
        respond(200, &json!({ "metadata": metadata, "items": items }))
    }

    /// Returns the requests since the last call, in alphabetical order.
    fn sent(&self) -> Vec<(String, Value)> {
        let mut sent = std::mem::take(&mut *self.requests.lock());
        sent.sort_by(|(a, _), (b, _)| a.cmp(b));
        sent
    }
}

/// Returns the paths of requests.
fn paths(sent: &[(String, Value)]) -> Vec<&str> {
    sent.iter().map(|(path, _)| &**path).collect()
}

/// Cluster-scoped objects own objects in any watched namespace, after the initial lists of all of them. An object elsewhere is
/// an error without a request.
#[tokio::test(start_paused = true)]
async fn a_cluster_scoped_object_owns_objects_in_the_watched_namespaces() {
    let server = ApiServer::new();
    let config = Config {
        namespaces: ["n1", "n2"].map(str::to_owned).into(),
        ..Config::shipped(&APP)
    };
    let mut controllers = Controllers::new(
        &Host::of_this_process(),
        &server.client(),
        &config,
        "test".into(),
        &Metrics::disconnected(&APP),
        &mut Health::new(&Host::of_this_process()),
        |program| program.controller("class", |builder| Classes(builder.owns())),
    );
    let (_publish, term) = channel::channel(Some(Term::unlimited()));
    let (state, object_state) = (controllers.state(), controllers.object_state());
    let running = tokio::spawn(async move { controllers.run(term, std::future::pending()).await });
    sleep(Duration::from_secs(5)).await;
    let lists = [
        "GET classes",
        "GET namespaces/n1/configmaps",
        "GET namespaces/n2/configmaps",
    ];
    assert_eq!(paths(&server.sent()), lists, "n2 is not in sync");

    server.listed.add_permits(1);
    sleep(Duration::from_secs(5)).await;
    let sent = server.sent();
    let expected = [
        "POST namespaces/default/events",
        "POST namespaces/default/events",
        "POST namespaces/default/events",
        "POST namespaces/n1/configmaps",
        "POST namespaces/n2/configmaps",
        "PUT classes/a/status",
        "PUT classes/b/status",
        "PUT classes/c/status",
    ];
    assert_eq!(paths(&sent), expected);
    for (_, event) in &sent[..3] {
        let about = &event["regarding"];
        assert_eq!(
            (&about["kind"], &about["namespace"]),
            (&"Class".into(), &Value::Null)
        );
    }
    let metadata = &sent[3].1["metadata"];
    assert_eq!(
        (&metadata["name"], &metadata["namespace"]),
        (&"a".into(), &"n1".into())
    );
    let owner = json!({ "apiVersion": "example.com/v1", "kind": "Class", "name": "a", "uid": "a",
        "controller": true, "blockOwnerDeletion": true });
    assert_eq!(metadata["ownerReferences"], json!([owner]));
    assert_eq!(sent[5].1["metadata"].get("namespace"), None);
    let ready = &sent[7].1["status"]["conditions"][0];
    let text = "namespace \"n3\" is not watched: it is not in the setting namespaces";
    let [reason, message] = ["reason", "message"].map(|field| ready[field].as_str());
    assert_eq!((reason, message), (Some("NotWatched"), Some(text)));

    // A dependent in any namespace enqueues its owner.
    let metadata = json!({ "name": "b", "namespace": "n2", "uid": "x", "resourceVersion": "85" });
    let gone = format!(r#"{{"type":"DELETED","object":{{"metadata":{metadata}}}}}"#);
    server.events.send(gone).unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(paths(&server.sent()), ["POST namespaces/n2/configmaps"]);

    let (caches, _) = state();
    let caches = caches.into_iter();
    let caches: Vec<_> = caches
        .map(|it| (it.kind, it.namespace, it.objects))
        .collect();
    let [class, map] = ["Class", "ConfigMap"].map(str::to_owned);
    let [n1, n2] = ["n1", "n2"].map(|name| Some(name.to_owned()));
    assert_eq!(
        caches,
        [
            (class, Some(String::new()), 3),
            (map.clone(), n1, 1),
            (map, n2, 1)
        ]
    );
    let state_of = |object| object_state(&parse(object).unwrap()).map(|work| work.key);
    assert_eq!(state_of("class/a"), Ok(Key::cluster("a")));
    let wanted = "must be KIND/NAME with one of the kinds Class";
    assert_eq!(state_of("n1/a"), Err(wanted.to_owned()));
    assert!(!running.is_finished());
    running.abort();
}

/// The span of a reconcile has the attribute for the namespace, which is empty.
#[tokio::test(start_paused = true)]
async fn the_namespace_in_the_span_of_a_cluster_scoped_object_is_empty() {
    let (lines, _guard) = logged(tracing::Level::INFO);
    let queue = queue();
    queue.add(Key::cluster("a"), Lane::Event);
    let fails = |_| async { Err::<Action, _>(ApiError::transient("on purpose")) };
    let working = tokio::spawn(worker(&queue).work(fails));
    sleep(Duration::from_millis(1)).await;
    working.abort();
    let lines = String::from_utf8(lines.lock().clone()).unwrap();
    let attributes = r#"object.namespace="" object.name="a""#;
    assert!(lines.contains(attributes), "{lines}");
}
