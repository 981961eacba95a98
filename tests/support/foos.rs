//! Creates many Foos, and counts the requests for them in the audit log.

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
use operator_testkit::cluster::{AuditEvent, Cluster, Options, eventually};
use tokio::{sync::OnceCell, time::sleep};

/// Time limit of waits that are not measured. The machine may be busy.
pub const DEADLINE: Duration = Duration::from_mins(1);

/// Concurrent creations of Foos.
const CREATING: usize = 16;

/// Returns the shared control plane with audit log and CRD and without controllers: Deployments have no pods.
pub async fn audited() -> &'static Cluster {
    static AUDITED: OnceCell<Cluster> = OnceCell::const_new();
    AUDITED.get_or_init(audited_alone).await
}

/// Starts such a control plane for a single test, which may break it.
pub async fn audited_alone() -> Cluster {
    with_crd(Options {
        audit: true,
        controllers: false,
    })
    .await
}

/// Returns the shared control plane with the CRD, whose Deployments have pods.
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

/// Returns a Foo whose Deployment has the Foo's name and one replica.
pub fn foo(name: &str) -> Foo {
    let spec = FooSpec {
        deployment_name: name.to_owned(),
        replicas: Some(1),
    };
    Foo::new(name, spec)
}

/// Returns the names `PREFIX-000`, `PREFIX-001`, …
pub fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n:03}")).collect()
}

/// Creates a Foo for each name. Retries while the API server is unavailable.
pub async fn create(client: &Client, namespace: &str, names: &[String]) {
    let foos: Api<Foo> = Api::namespaced(client.clone(), namespace);
    let create = async |name: &String| {
        while let Err(error) = foos.create(&PostParams::default(), &foo(name)).await {
            match error {
                // The response to the previous attempt was lost.
                kube::Error::Api(status) if status.code == 409 => break,
                kube::Error::Api(status) if status.code < 500 && status.code != 429 => {
                    // After a restart, the API server has not loaded its roles and CRDs yet.
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

/// Waits until each Foo's status reports its latest generation and a Deployment that is progressing or available.
pub async fn converged(client: &Client, namespace: &str, names: &[String]) {
    // Dynamic objects, because some stored Foos may be invalid.
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

/// Waits until the Deployment exists and is controlled by the Foo of this name.
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

/// Returns the namespace's events with this reason.
pub async fn events(client: &Client, namespace: &str, reason: &str) -> Vec<Event> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().fields(&format!("reason={reason}"));
    events.list(&params).await.unwrap().items
}

/// Returns the controller's requests in this namespace, except watches and lists.
pub fn requests(cluster: &Cluster, namespace: &str) -> Vec<AuditEvent> {
    let mut events = all_requests(cluster);
    events.retain(|event| event.namespace == namespace);
    events
}

/// Like [`requests`], for all namespaces.
pub fn all_requests(cluster: &Cluster) -> Vec<AuditEvent> {
    let mut events = cluster.audit();
    events.retain(|event| {
        let is_ours = event.user_agent.starts_with("foo-controller/");
        is_ours && !matches!(&*event.verb, "watch" | "list")
    });
    events
}

/// Returns the name of the object that a request is for. In a create it is in the body.
pub fn subject(event: &AuditEvent) -> &str {
    match event.request_object["metadata"]["name"].as_str() {
        Some(name) if event.name.is_empty() => name,
        _ => &event.name,
    }
}

/// Counts the requests by verb, resource and status code.
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

/// Returns the maximum number of attempts between the first and the last of these requests, for a backoff of 5 ms that doubles.
/// One more is allowed for a change that triggered a reconcile in between.
pub fn tries_allowed(requests: &[&AuditEvent]) -> usize {
    // The log is in the order of the responses.
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

/// Returns the time from the response to each Foo's creation until the creation of its Deployment, with the start time.
pub fn delays(log: &[AuditEvent]) -> Vec<(Timestamp, Duration)> {
    let created = |resource: &'static str| {
        log.iter().filter(move |event| {
            event.resource == resource && event.verb == "create" && event.code == 201
        })
    };
    // Keep the first Deployment of each name. After a Foo's deletion its Deployment may be created again, until the controller
    // has observed the deletion and the garbage collector has acted.
    let deployments: HashMap<&str, Timestamp> = created("deployments")
        .rev()
        .map(|event| (subject(event), event.reached.0))
        .collect();
    let delay = |event: &AuditEvent| {
        // Missing if the leader that created the Deployment died before the response.
        let deployed = deployments.get(subject(event))?;
        let answered = event.reached.0;
        let delay = deployed.duration_since(answered).try_into();
        Some((answered, delay.unwrap_or_default()))
    };
    created("foos").filter_map(delay).collect()
}

/// Returns the longest delay of a Foo that was created in this period.
pub fn longest(delays: &[(Timestamp, Duration)], (from, to): (Timestamp, Timestamp)) -> Duration {
    let within = delays.iter().filter(|(at, _)| (from..to).contains(at));
    within.map(|(_, delay)| *delay).max().unwrap()
}
