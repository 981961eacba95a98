//! Rejected requests of one controller per cell. Writers report them, and the [scopes](super::Scopes) then check the
//! permissions.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use tokio::sync::Notify;

use crate::api::key::Key;

/// Requests for a permission check of one cell.
pub(super) struct Check {
    /// The cell's namespace. `None`: all namespaces, or the cluster-scoped objects.
    namespace: Option<String>,
    pub called: Notify,
    /// Whether a request was rejected for a missing permission since the last check began.
    pub lacked: AtomicBool,
}

/// Requests for permission checks of all cells of one controller.
pub(crate) struct Refusals {
    pub(super) checks: Vec<Check>,
}

impl Refusals {
    /// Creates the state for the cells of these scopes.
    pub(crate) fn new(namespaces: &[Option<String>]) -> Arc<Self> {
        let check = |namespace: &Option<String>| Check {
            namespace: namespace.clone(),
            called: Notify::new(),
            lacked: AtomicBool::new(false),
        };
        Arc::new(Self {
            checks: namespaces.iter().map(check).collect(),
        })
    }

    /// Requests a permission check after a rejected request for this object. A cluster-scoped object may concern each cell, and
    /// each object the cell of a cluster-scoped type.
    ///
    /// With `for_want_of_rights`, a missing permission was the cause. It counts as missing even if the check finds no missing
    /// permission.
    pub(crate) fn refused(&self, key: &Key, for_want_of_rights: bool) {
        for check in self.checks.iter().filter(|check| check.covers(key)) {
            check.lacked.fetch_or(for_want_of_rights, Relaxed);
            check.called.notify_one();
        }
    }
}

impl Check {
    fn covers(&self, key: &Key) -> bool {
        let namespace = self.namespace.as_deref();
        namespace.is_none_or(|namespace| key.is_cluster_scoped() || namespace == key.namespace())
    }
}
