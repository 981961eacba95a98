//! The input that the checks share.

use std::collections::BTreeMap;

use kube::Client;
use serde_json::Value;
use tokio::sync::OnceCell;

use super::{matching::Labels, verdict::Verdict};
use crate::{
    cache::readiness::namespace::Needs,
    config::{app::App, environment::Host, settings::Config},
};

/// What the checks have in common.
pub(super) struct Doctor {
    pub(super) app: &'static App,
    pub(super) host: Host,
    pub(super) config: Config,
    pub(super) client: Client,
    pub(super) needs: Needs,
    /// The namespace of the Lease, and of this installation.
    pub(super) namespace: Option<String>,
    pub(super) namespaces: OnceCell<Result<Vec<Namespace>, Verdict>>,
    pub(super) primaries: OnceCell<Result<BTreeMap<String, Primaries>, Verdict>>,
    pub(super) hooks: OnceCell<Result<Vec<Hook>, Verdict>>,
}

/// A namespace that is served, or the controller's own.
#[derive(Clone)]
pub struct Namespace {
    pub name: String,
    pub labels: Labels,
    pub annotations: BTreeMap<String, String>,
}

/// Objects of the primary kind in one namespace.
#[derive(Clone, Debug, Default)]
pub struct Primaries {
    pub count: usize,
    /// Finalizers that block a deletion of some time ago, with the number of objects for each.
    pub finalizers: BTreeMap<String, usize>,
    /// The name of an object with the reason `ReplicaFailure` in a condition, and the condition's message.
    pub replica_failure: Option<(String, String)>,
}

/// A webhook of a configuration.
pub struct Hook {
    /// Its name and its configuration's.
    pub(super) id: String,
    pub(super) spec: Value,
    /// Why it cannot be called, if that can be seen.
    pub(super) down: Option<String>,
}
