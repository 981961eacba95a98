//! kube's own `Controller` with the election and the fence of the runtime. Needs none of the default features.
//!
//! Each `ConfigMap` with the label `mirror=yes` gets a copy of its data, the `ConfigMap` `<name>-mirror`.

use std::{
    error::Error,
    future::ready,
    io::{self, stderr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config, Resource as _, ResourceExt as _,
    api::{ObjectMeta, PostParams},
    runtime::{Controller, controller::Action, watcher},
};
use operator_runtime::{
    App, Candidate, Host, candidate, config::LeaderElection, election::Term,
    telemetry::metrics::Metrics,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
};

static APP: App = App::new("mirror-operator", "0.1.0", "example.com");

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(stderr).init();
    let host = Host::of_this_process();
    let kube = Config::infer().await?;
    // Outside a pod, set `lease_namespace` or the variable `POD_NAMESPACE`.
    let defaults = LeaderElection::new(APP.name);
    let settings = LeaderElection {
        lease_duration: setting(&host, "LEASE_DURATION", defaults.lease_duration)?,
        renew_deadline: setting(&host, "RENEW_DEADLINE", defaults.renew_deadline)?,
        retry_period: setting(&host, "RETRY_PERIOD", defaults.retry_period)?,
        ..defaults
    };
    let metrics = Metrics::disconnected(&APP);
    let mut stop = pin!(stop()?);
    let (working, drained) = oneshot::channel::<()>();
    let drained = async { drained.await.unwrap_or_default() };
    let Candidate {
        client,
        mut term,
        mut election,
        ..
    } = candidate(&host, kube, settings, metrics, drained).await?;
    loop {
        let id = tokio::select! {
            led = term.wait_for(Option::is_some) => led?.as_ref().map(Term::id),
            () = &mut stop => break,
            ended = &mut election => return Ok(ended??),
        };
        // The end of the term or of the program drops the controller: it sends no more requests. The Lease is released only
        // after its writes in flight have ended.
        tokio::select! {
            () = run(client.clone()) => {}
            lost = term.wait_for(|term| term.as_ref().map(Term::id) != id) => drop(lost?),
            () = &mut stop => break,
            ended = &mut election => return Ok(ended??),
        }
    }
    drop(working);
    Ok(election.await??)
}

/// Ends when the process receives a signal.
fn stop() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Returns the duration of a variable, in milliseconds such as `500ms`, or the default if it is not set.
fn setting(host: &Host, name: &str, default: Duration) -> Result<Duration, String> {
    let name = format!("MIRROR_OPERATOR__LEADER_ELECTION__{name}");
    let Some(text) = host.variable(&name) else {
        return Ok(default);
    };
    let milliseconds = text
        .strip_suffix("ms")
        .and_then(|number| number.parse().ok());
    let milliseconds = milliseconds.ok_or_else(|| format!("{name}={text}: write 500ms"))?;
    Ok(Duration::from_millis(milliseconds))
}

async fn run(client: Client) {
    let all = || Api::<ConfigMap>::all(client.clone());
    let sources = Controller::new(all(), watcher::Config::default().labels("mirror=yes"));
    let controller = sources.owns(all(), watcher::Config::default());
    let results = controller.run(reconcile, retry, Arc::new(client.clone()));
    results
        .for_each(|result| {
            if let Err(error) = result {
                tracing::warn!("{error}");
            }
            ready(())
        })
        .await;
}

async fn reconcile(source: Arc<ConfigMap>, client: Arc<Client>) -> kube::Result<Action> {
    let namespace = source.namespace().unwrap_or_default();
    let api = Api::<ConfigMap>::namespaced((*client).clone(), &namespace);
    let owner = source.controller_owner_ref(&());
    let name = format!("{}-mirror", source.name_any());
    match api.get_opt(&name).await? {
        _ if source.meta().deletion_timestamp.is_some() => {}
        None => {
            let owner_references = owner.map(|owner| vec![owner]);
            let metadata = ObjectMeta {
                name: Some(name),
                owner_references,
                ..ObjectMeta::default()
            };
            let mirror = ConfigMap {
                metadata,
                data: source.data.clone(),
                ..ConfigMap::default()
            };
            api.create(&PostParams::default(), &mirror).await?;
        }
        Some(old) if old.data == source.data => {}
        Some(old) if !owner.is_some_and(|owner| old.owner_references().contains(&owner)) => {}
        Some(old) => {
            let mirror = ConfigMap {
                data: source.data.clone(),
                ..old
            };
            api.replace(&name, &PostParams::default(), &mirror).await?;
        }
    }
    Ok(Action::await_change())
}

fn retry(_: Arc<ConfigMap>, _: &kube::Error, _: Arc<Client>) -> Action {
    Action::requeue(Duration::from_secs(1))
}
