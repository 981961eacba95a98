//! Refusals by scope, each of which calls for a check of the rights. Writers report them, and the [scopes](super::Scopes) check.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use tokio::sync::Notify;

use crate::api::key::Key;

/// What calls for a check of a scope's rights.
pub(super) struct Check {
    /// The scope's namespace; `None`: all of them.
    pub namespace: Option<String>,
    pub called: Notify,
    /// Since the last one began, something was refused for want of a right.
    pub lacked: AtomicBool,
}

/// Those of all scopes of a replica.
pub(crate) struct Refusals {
    pub(super) checks: Vec<Check>,
}

impl Refusals {
    /// None yet, of scopes with these namespaces.
    pub fn new(namespaces: &[Option<String>]) -> Arc<Self> {
        let check = |namespace: &Option<String>| Check {
            namespace: namespace.clone(),
            called: Notify::new(),
            lacked: AtomicBool::new(false),
        };
        Arc::new(Self {
            checks: namespaces.iter().map(check).collect(),
        })
    }

    /// What was asked for this object was refused: its scope's rights are checked. Where that was for want of them, they have been
    /// missing, whatever the check then finds.
    pub fn refused(&self, key: &Key, for_want_of_rights: bool) {
        for check in self.checks.iter().filter(|check| check.covers(key)) {
            check.lacked.fetch_or(for_want_of_rights, Relaxed);
            check.called.notify_one();
        }
    }
}

impl Check {
    fn covers(&self, key: &Key) -> bool {
        let namespace = self.namespace.as_deref();
        namespace.is_none_or(|namespace| namespace == key.namespace())
    }
}
