//! The input of all checks.

use std::collections::BTreeMap;

use kube::Client;
use serde_json::Value;
use tokio::sync::OnceCell;

use super::{matching::Labels, verdict::Verdict};
use crate::{
    cache::readiness::namespace::RequiredAccess,
    config::{app::App, environment::Host, settings::Config},
};

/// The input of all checks, and lists that several checks share.
pub(super) struct Doctor {
    pub(super) app: &'static App,
    pub(super) host: Host,
    pub(super) config: Config,
    pub(super) client: Client,
    pub(super) needs: RequiredAccess,
    /// The namespace of the Lease, and of this installation.
    pub(super) namespace: Option<String>,
    pub(super) namespaces: OnceCell<Result<Vec<Namespace>, Verdict>>,
    pub(super) primaries: OnceCell<Result<BTreeMap<String, Primaries>, Verdict>>,
    pub(super) hooks: OnceCell<Result<Vec<Hook>, Verdict>>,
}

/// A served namespace, or the controller's own.
#[derive(Clone)]
pub(super) struct Namespace {
    pub name: String,
    pub labels: Labels,
    pub annotations: BTreeMap<String, String>,
}

/// Summary of the primary objects of this installation in one namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct Primaries {
    pub count: usize,
    /// Finalizers that have blocked a deletion for minutes, with the number of objects for each.
    pub finalizers: BTreeMap<String, usize>,
    /// The name of the first object with a condition `ReplicaFailure`, and the message of the condition.
    pub replica_failure: Option<(String, String)>,
}

/// A webhook of a webhook configuration.
pub(super) struct Hook {
    /// The names of the webhook and of its configuration.
    pub(super) id: String,
    pub(super) spec: Value,
    /// The API server calls the mutating webhooks of a write one after another, and then all validating webhooks concurrently.
    pub(super) is_mutating: bool,
    /// Why the webhook cannot be called, if known.
    pub(super) down: Option<String>,
}

#[cfg(test)]
impl Doctor {
    /// Returns the input for a program that reconciles these resource types. The API server has `objects`, each with a namespace, by
    /// plural. It ignores selectors.
    pub(super) fn for_tests(
        config: Config,
        kinds: &[&'static crate::api::kind::Kind],
        objects: fn(&str) -> Vec<Value>,
    ) -> Self {
        use crate::cache::readiness::namespace::ControllerAccess;
        use kube::client::Body;

        let service = tower::service_fn(move |request: http::Request<Body>| async move {
            let path = request.uri().path().to_owned();
            let plural = path.rsplit('/').next().unwrap_or_default();
            let within = path.split_once("/namespaces/").map(|(_, rest)| rest);
            let within = within.and_then(|rest| rest.split_once('/'));
            let mut items = objects(plural);
            items.retain(|it| {
                within.is_none_or(|(namespace, _)| it["metadata"]["namespace"] == namespace)
            });
            let list = serde_json::json!({ "apiVersion": "v1", "metadata": {}, "items": items });
            let body = Body::from(list.to_string().into_bytes());
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        });
        let controllers = kinds.iter().map(|primary| ControllerAccess {
            name: "test",
            primary,
            watched: Vec::new(),
            rights: Vec::new(),
        });
        Self {
            app: &crate::config::app::tests::APP,
            host: Host::of_this_process(),
            config,
            client: Client::new(service, "default"),
            needs: RequiredAccess {
                controllers: controllers.collect(),
                watched: kinds.iter().map(|kind| **kind).collect(),
                optional: Vec::new(),
                unreviewed: Vec::new(),
            },
            namespace: None,
            namespaces: OnceCell::new(),
            primaries: OnceCell::new(),
            hooks: OnceCell::new(),
        }
    }
}
