//! Keeps a [`Cache`] current: list, watch, and list again when the watch cannot go on.
//!
//! A watch never gives up. What goes wrong is said once for each cause, in words that tell what to do about
//! it, and tried again after a delay that grows from 100 ms to 5 s.

use std::{pin::pin, sync::Arc, time::Duration};

use backoff::backoff::Backoff as _;
use futures::StreamExt as _;
use kube::{
    Api, Client,
    runtime::watcher::{self, Error, Event, watcher},
};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    cache::{Cache, Change},
    error::root_cause,
    view::{Object, View},
};
use crate::api;

/// The longest pause between two tries: also how soon a CRD that is installed at last is noticed.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// An error after this long without one is a new outage: it is said again, and the pauses start small.
/// (A watch that works has nothing to tell where nothing changes.)
const QUIET: Duration = Duration::from_secs(30);

/// Watches the objects of one namespace (`None`: all) into `cache`, for ever.
///
/// `scope` is the namespace's place in what the cache was made with. `changed` is told of every change, on
/// this task: it must not block.
pub async fn watch<V: View>(
    client: Client,
    namespace: Option<String>,
    cache: Arc<Cache<V>>,
    scope: usize,
    changed: impl Fn(Change<V>) + Send,
) {
    let namespace = namespace.as_deref();
    let api: Api<Object<V>> = match namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let (.., plural) = V::RESOURCE;
    let mut pause = pauses();
    let mut trouble: Option<String> = None;
    let mut last_error = Instant::now();
    loop {
        let mut events = pin!(watcher(api.clone(), watcher::Config::default()));
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    if std::mem::replace(&mut last_error, Instant::now()).elapsed() > QUIET {
                        trouble = None;
                        pause.reset();
                    }
                    let cause = explain(&error, plural, namespace);
                    if trouble.as_ref() != Some(&cause) {
                        warn!(resource = plural, namespace, "{cause}");
                        trouble = Some(cause);
                    }
                    tokio::time::sleep(pause.next_backoff().unwrap_or(MAX_PAUSE)).await;
                    if must_list(&error) {
                        break;
                    }
                    continue;
                }
            };
            match event {
                // Comes before the request: no news yet.
                Event::Init => {
                    cache.list_begins(scope);
                    continue;
                }
                Event::InitApply(object) | Event::Apply(object) => {
                    cache.apply(scope, object).into_iter().for_each(&changed);
                }
                Event::Delete(object) => {
                    cache.delete(scope, &object).into_iter().for_each(&changed);
                }
                Event::InitDone => cache.list_ends(scope).into_iter().for_each(&changed),
            }
            if trouble.take().is_some() {
                info!(resource = plural, namespace, "the watch goes on");
                pause.reset();
            }
        }
    }
}

fn pauses() -> backoff::ExponentialBackoff {
    backoff::ExponentialBackoffBuilder::new()
        .with_initial_interval(Duration::from_millis(100))
        .with_multiplier(2.0)
        // Replicas that lost the same API server do not come back at the same instant.
        .with_randomization_factor(0.2)
        .with_max_interval(MAX_PAUSE)
        .with_max_elapsed_time(None)
        .build()
}

/// Whether only a new list helps: the resourceVersion is too old (410), or the resource is gone (404), and
/// with it, when it comes back, the objects.
fn must_list(error: &Error) -> bool {
    matches!(status_of(error), Some(404 | 410))
}

fn status_of(error: &Error) -> Option<u16> {
    match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status))
        | Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

fn explain(error: &Error, plural: &str, namespace: Option<&str>) -> String {
    let place = namespace.map_or_else(
        || "all namespaces".to_owned(),
        |ns| format!("namespace {ns}"),
    );
    match status_of(error) {
        Some(404) if plural == api::PLURAL => format!(
            "the CustomResourceDefinition {}.{} is not installed: run `kubectl apply -k deploy` or \
             `foo-controller crd | kubectl apply -f -`; waiting for it",
            api::PLURAL,
            api::GROUP
        ),
        Some(403) => format!(
            "not allowed to list and watch {plural} in {place}: apply the ClusterRole in deploy/ and its binding; \
             trying again"
        ),
        Some(401) => "the API server does not accept the credentials: check the kubeconfig or the service account's \
                      token; trying again"
            .to_owned(),
        Some(410) => format!("the watch of {plural} fell too far behind: listing again"),
        _ => format!("cannot watch {plural} in {place}: {}; trying again", root_cause(error)),
    }
}
