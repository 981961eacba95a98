//! A peer of foo-controller on `Controller` of kube-rs. It has typed objects, reads caches without managed fields, and writes only
//! changes. `election.rs` has the election, which kube-rs lacks.

mod election;
mod foo;

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use clap::Parser;
use foo::Foo;
use futures::{Stream, StreamExt};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{Container, PodSpec, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ObjectMeta, PostParams},
    runtime::{
        Config, Controller, PredicateConfig, WatchStreamExt,
        controller::Action,
        events::{Event, EventType, Recorder},
        predicates,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;

const IMAGE: &str = "nginx:latest";

#[derive(Parser)]
struct Arguments {
    /// Number of Foos that are reconciled at once
    #[arg(long, default_value_t = 1)]
    workers: u16,
    /// Interval of the resync, such as 36000s
    #[arg(long, value_parser = interval, default_value = "36000s")]
    resync: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text
        .strip_suffix('s')
        .and_then(|number| number.parse().ok());
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| format!("no seconds: {text}"))
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error(transparent)]
    Cache(#[from] reflector::store::WriterDropped),
    #[error("the Foo has no namespace or UID")]
    Incomplete,
}

struct Context {
    client: Client,
    deployments: Store<Deployment>,
    /// Set when `deployments` is filled. Tasks wait for this cell, and one of them for the `Store`: it wakes only one waiting task
    /// (kube-runtime 5.0.0, `utils/delayed_init.rs`).
    is_filled: OnceCell<()>,
    events: Recorder,
    resync: Duration,
}

async fn reconcile(foo: Arc<Foo>, context: Arc<Context>) -> Result<Action, Error> {
    if foo.meta().deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let namespace = foo.namespace().ok_or(Error::Incomplete)?;
    let deployments = Api::<Deployment>::namespaced(context.client.clone(), &namespace);
    let name = &foo.spec.deployment_name;
    // The first reconciles begin before this cache is filled.
    context
        .is_filled
        .get_or_try_init(async || context.deployments.wait_until_ready().await)
        .await?;
    let cached = context
        .deployments
        .get(&ObjectRef::new(name).within(&namespace));
    let mut desired = cached.as_deref().cloned().unwrap_or_default();
    shape(&foo, &mut desired)?;
    let (deployment, change) = match &cached {
        None => (
            deployments.create(&PostParams::default(), &desired).await?,
            Some("created"),
        ),
        Some(cached) if desired != **cached => (
            deployments
                .replace(name, &PostParams::default(), &desired)
                .await?,
            Some("updated"),
        ),
        Some(_) => (desired, None),
    };
    let status = foo::status(&foo, &deployment);
    if foo.status.as_ref() != Some(&status) {
        let foos = Api::<Foo>::namespaced(context.client.clone(), &namespace);
        let reported = Foo {
            status: Some(status),
            ..Foo::clone(&foo)
        };
        foos.replace_status(&foo.name_any(), &PostParams::default(), &reported)
            .await?;
    }
    if let Some(change) = change {
        tracing::info!(deployment = name, change, "synced the Deployment");
        let event = Event {
            type_: EventType::Normal,
            reason: "Synced".to_owned(),
            note: Some("Foo synced successfully".to_owned()),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        let (events, object) = (context.events.clone(), foo.object_ref(&()));
        // The recorder has no queue, and a worker should not wait for an event.
        tokio::spawn(async move {
            if let Err(error) = events.publish(&event, &object).await {
                tracing::warn!(%error, "event not written");
            }
        });
    }
    Ok(Action::requeue(context.resync))
}

/// Sets the fields that a Foo determines, and leaves the others.
fn shape(foo: &Foo, deployment: &mut Deployment) -> Result<(), Error> {
    let labels = BTreeMap::from([
        ("app".to_owned(), "nginx".to_owned()),
        ("controller".to_owned(), foo.name_any()),
    ]);
    let owner = foo.controller_owner_ref(&()).ok_or(Error::Incomplete)?;
    let metadata = &mut deployment.metadata;
    metadata.name = Some(foo.spec.deployment_name.clone());
    metadata
        .labels
        .get_or_insert_default()
        .extend(labels.clone());
    if !foo
        .meta()
        .uid
        .as_ref()
        .is_some_and(|uid| deployment_is_of(metadata, uid))
    {
        metadata
            .owner_references
            .get_or_insert_default()
            .push(owner);
    }
    let spec = deployment.spec.get_or_insert_with(|| DeploymentSpec {
        selector: LabelSelector {
            match_labels: Some(labels.clone()),
            ..LabelSelector::default()
        },
        template: PodTemplateSpec {
            spec: Some(PodSpec {
                containers: vec![Container {
                    name: "nginx".to_owned(),
                    ..Container::default()
                }],
                ..PodSpec::default()
            }),
            ..PodTemplateSpec::default()
        },
        ..DeploymentSpec::default()
    });
    spec.template
        .metadata
        .get_or_insert_default()
        .labels
        .get_or_insert_default()
        .extend(labels);
    if let Some(container) = spec
        .template
        .spec
        .iter_mut()
        .flat_map(|pod| &mut pod.containers)
        .next()
    {
        container.image = Some(IMAGE.to_owned());
    }
    spec.replicas = foo.spec.replicas.or(spec.replicas);
    Ok(())
}

fn deployment_is_of(metadata: &ObjectMeta, uid: &str) -> bool {
    let owners = metadata.owner_references.iter().flatten();
    owners.into_iter().any(|owner| owner.uid == uid)
}

fn error_policy(_: Arc<Foo>, _: &Error, _: Arc<Context>) -> Action {
    Action::requeue(Duration::from_secs(1))
}

/// Returns a cache without managed fields, and the events that fill it.
fn watch<K>(
    client: &Client,
) -> (
    Store<K>,
    impl Stream<Item = watcher::Result<watcher::Event<K>>> + use<K>,
)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let listed = watcher::Config::default().streaming_lists();
    let events = watcher(Api::<K>::all(client.clone()), listed)
        .default_backoff()
        .modify(|object| object.managed_fields_mut().clear())
        .reflect(writer);
    (store, events)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().init();
    let Arguments { workers, resync } = Arguments::parse();
    let client = Client::try_default().await?;
    let lease = election::acquire(client.clone()).await;

    let (foos, changes) = watch::<Foo>(&client);
    // A written status requires no reconciliation.
    let changes = changes
        .applied_objects()
        .predicate_filter(predicates::generation, PredicateConfig::default());
    let (deployments, changes_of_owned) = watch::<Deployment>(&client);
    let owned = changes_of_owned
        .touched_objects()
        .predicate_filter(predicates::resource_version, PredicateConfig::default());
    let events = Recorder::new(client.clone(), "sample-controller".into());
    let context = Context {
        client,
        deployments,
        is_filled: OnceCell::new(),
        events,
        resync,
    };
    let controller = Controller::for_stream(changes, foos)
        .owns_stream(owned)
        .with_config(Config::default().concurrency(workers))
        .shutdown_on_signal()
        .run(reconcile, error_policy, Arc::new(context))
        .for_each(async |result| {
            if let Err(error) = result {
                tracing::warn!(%error, "not reconciled");
            }
        });
    tokio::select! {
        () = controller => lease.release().await?,
        error = lease.renew() => Err(error)?,
    }
    Ok(())
}
