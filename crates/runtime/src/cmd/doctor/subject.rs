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
pub struct Namespace {
    pub name: String,
    pub labels: Labels,
    pub annotations: BTreeMap<String, String>,
}

/// Summary of the primary objects in one namespace.
#[derive(Clone, Debug, Default)]
pub struct Primaries {
    pub count: usize,
    /// Finalizers that have blocked a deletion for minutes, with the number of objects for each.
    pub finalizers: BTreeMap<String, usize>,
    /// The name of the first object with a condition `ReplicaFailure`, and the message of the condition.
    pub replica_failure: Option<(String, String)>,
    /// The number of objects of each other installation. They are not part of the other fields.
    pub others: BTreeMap<String, usize>,
}

/// A webhook of a webhook configuration.
pub struct Hook {
    /// The names of the webhook and of its configuration.
    pub(super) id: String,
    pub(super) spec: Value,
    /// The API server calls the mutating webhooks of a write one after another, and then all validating webhooks concurrently.
    pub(super) is_mutating: bool,
    /// Why the webhook cannot be called, if known.
    pub(super) down: Option<String>,
}
