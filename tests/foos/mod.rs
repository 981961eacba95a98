//! Foos by the hundred, and what the audit log says that they cost.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use foo_controller::api::{Foo, FooSpec};
use futures::StreamExt as _;
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Event},
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, PostParams},
};
use tokio::{sync::OnceCell, time::sleep};

use crate::cluster::{AuditEvent, Cluster, Options, eventually};

/// How long anything may take that is not itself what is measured: the machine may be busy.
pub const DEADLINE: Duration = Duration::from_mins(1);

/// How many Foos are being created at once.
const CREATING: usize = 16;

/// The control plane that tests share, with audit log and CRD, without controllers: Deployments get no pods.
pub async fn audited() -> &'static Cluster {
    static AUDITED: OnceCell<Cluster> = OnceCell::const_new();
    AUDITED.get_or_init(audited_alone).await
}

/// Such a control plane for one test alone, which may break it.
pub async fn audited_alone() -> Cluster {
    with_crd(Options {
        audit: true,
        controllers: false,
    })
    .await
}

/// The control plane that tests share whose Deployments have pods, with the CRD.
pub async fn with_pods() -> &'static Cluster {
    static WITH_PODS: OnceCell<Cluster> = OnceCell::const_new();
    let start = || {
        with_crd(Options {
            controllers: true,
            audit: false,
        })
    };
    WITH_PODS.get_or_init(start).await
}

async fn with_crd(options: Options) -> Cluster {
    let cluster = Cluster::start(options);
    cluster.install_crd().await;
    cluster
}

/// A Foo whose Deployment has the Foo's name and one replica.
pub fn foo(name: &str) -> Foo {
    let spec = FooSpec {
        deployment_name: name.to_owned(),
        replicas: Some(1),
    };
    Foo::new(name, spec)
}

/// The names `PREFIX-000`, `PREFIX-001`, …
pub fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n:03}")).collect()
}

/// Creates a Foo of each name, and goes on trying while the API server is away.
pub async fn create(client: &Client, namespace: &str, names: &[String]) {
    let foos: Api<Foo> = Api::namespaced(client.clone(), namespace);
    let create = async |name: &String| {
        while let Err(error) = foos.create(&PostParams::default(), &foo(name)).await {
            match error {
                // The answer to the try before was lost.
                kube::Error::Api(status) if status.code == 409 => break,
                kube::Error::Api(status) if status.code < 500 && status.code != 429 => {
                    // Until the API server knows its roles and CRDs again.
                    assert!(matches!(status.code, 403 | 404), "{name}: {status:?}");
                }
                _ => {}
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    futures::stream::iter(names)
        .for_each_concurrent(CREATING, create)
        .await;
}

/// Waits until the controller has reported on each of these Foos' newest generation, that its Deployment is on its way,
/// or there.
pub async fn converged(client: &Client, namespace: &str, names: &[String]) {
    // Also Foos that are no Foos may be there.
    let resource = ApiResource::erase::<Foo>(&());
    let foos: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    eventually(DEADLINE, "all Foos have converged", async || {
        let list = foos.list(&ListParams::default()).await;
        let list = list.map_err(|error| error.to_string())?;
        let done: BTreeSet<_> = list
            .iter()
            .filter(|foo| is_converged(foo))
            .map(ResourceExt::name_any)
            .collect();
        match names.iter().filter(|name| !done.contains(*name)).count() {
            0 => Ok(()),
            count => Err(format!("{count} of {} have not", names.len())),
        }
    })
    .await;
}

fn is_converged(foo: &DynamicObject) -> bool {
    let status = &foo.data["status"];
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    status["observedGeneration"].as_i64() == foo.metadata.generation
        && conditions
            .any(|c| c["reason"] == "DeploymentProgressing" || c["reason"] == "DeploymentAvailable")
}

/// Waits until the Foo is not Ready for this reason, and returns the message.
pub async fn not_ready(client: &Client, namespace: &str, name: &str, reason: &str) -> String {
    let foos: Api<Foo> = Api::namespaced(client.clone(), namespace);
    eventually(DEADLINE, &format!("{name} reports {reason}"), async || {
        let foo = foos.get(name).await.map_err(|error| error.to_string())?;
        let mut conditions = foo.status.iter().flat_map(|status| &status.conditions);
        match conditions.find(|condition| condition.type_ == "Ready") {
            Some(ready) if ready.status == "False" && ready.reason == reason => {
                Ok(ready.message.clone())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Waits until the Deployment is there and controlled by the Foo of this name.
pub async fn owned(client: &Client, namespace: &str, deployment: &str, foo: &str) {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let what = format!("{foo} has the Deployment {deployment}");
    eventually(DEADLINE, &what, async || {
        let found = deployments.get(deployment).await;
        let found = found.map_err(|error| error.to_string())?;
        let owners = found.owner_references();
        if owners
            .iter()
            .any(|o| o.name == foo && o.controller == Some(true))
        {
            Ok(())
        } else {
            Err(format!("{owners:?}"))
        }
    })
    .await;
}

/// The namespace's events of this reason.
pub async fn events(client: &Client, namespace: &str, reason: &str) -> Vec<Event> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().fields(&format!("reason={reason}"));
    events.list(&params).await.unwrap().items
}

/// What the controller asked the API server for in this namespace, its watches (and their lists) aside.
pub fn requests(cluster: &Cluster, namespace: &str) -> Vec<AuditEvent> {
    let mut events = all_requests(cluster);
    events.retain(|event| event.namespace == namespace);
    events
}

/// The same in all namespaces.
pub fn all_requests(cluster: &Cluster) -> Vec<AuditEvent> {
    let mut events = cluster.audit();
    events.retain(|event| {
        let is_ours = event.user_agent.starts_with("foo-controller/");
        is_ours && !matches!(&*event.verb, "watch" | "list")
    });
    events
}

/// The name of the object that a request is about: for a create, it is in the body.
pub fn subject(event: &AuditEvent) -> &str {
    match event.request_object["metadata"]["name"].as_str() {
        Some(name) if event.name.is_empty() => name,
        _ => &event.name,
    }
}

/// How many requests there are by verb, resource and answer.
pub fn counts(events: &[AuditEvent]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in events {
        let slash = if event.subresource.is_empty() {
            ""
        } else {
            "/"
        };
        let AuditEvent {
            verb,
            resource,
            subresource,
            code,
            ..
        } = event;
        *counts
            .entry(format!("{verb} {resource}{slash}{subresource} {code}"))
            .or_default() += 1;
    }
    counts
}

/// The most tries that delays of 5 ms, doubling (row Q3), leave room for between the first and the last of these requests;
/// one more for a change that woke the Foo meanwhile.
pub fn tries_allowed(requests: &[&AuditEvent]) -> usize {
    // The log has them in the order of their answers.
    let received = || requests.iter().map(|request| request.received.0);
    let between = received()
        .max()
        .unwrap()
        .duration_since(received().min().unwrap());
    let doubled = usize::try_from(between.as_millis() / 5 + 1)
        .unwrap()
        .ilog2();
    usize::try_from(doubled).unwrap() + 2
}

/// From the answer to each Foo's creation to the creation of its Deployment, with the time of the former.
pub fn delays(log: &[AuditEvent]) -> Vec<(Timestamp, Duration)> {
    let created = |resource: &'static str| {
        log.iter().filter(move |event| {
            event.resource == resource && event.verb == "create" && event.code == 201
        })
    };
    // The first one of a name stays: after its Foo's deletion a Deployment may come again, for as long as it takes the
    // controller to know and the garbage collector to act.
    let deployments: HashMap<&str, Timestamp> = created("deployments")
        .rev()
        .map(|event| (subject(event), event.reached.0))
        .collect();
    let delay = |event: &AuditEvent| {
        // It may have been created by a leader that died before the answer came.
        let deployed = deployments.get(subject(event))?;
        let answered = event.reached.0;
        let delay = deployed.duration_since(answered).try_into();
        Some((answered, delay.unwrap_or_default()))
    };
    created("foos").filter_map(delay).collect()
}

/// The longest delay of a Foo that came in this time.
pub fn longest(delays: &[(Timestamp, Duration)], (from, to): (Timestamp, Timestamp)) -> Duration {
    let within = delays.iter().filter(|(at, _)| (from..to).contains(at));
    within.map(|(_, delay)| *delay).max().unwrap()
}
