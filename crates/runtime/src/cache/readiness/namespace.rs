//! State of one scope: whether it is in sync and served, and its current problem.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

use k8s_openapi::api::authorization::v1::ResourceAttributes;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    api::{key::Key, kind::Kind},
    telemetry::log::log_once::OutageLog,
};

/// Requirements of a program for serving a scope.
#[derive(Clone, Debug)]
pub struct RequiredAccess {
    /// The requirements of each controller.
    pub controllers: Vec<ControllerAccess>,
    /// All watched resource types, including the reconciled ones.
    pub watched: Vec<Kind>,
    /// Permissions that only `doctor` reviews: a replica without them may still serve many objects.
    pub unreviewed: Vec<Permission>,
}

/// Requirements of one controller.
#[derive(Clone, Debug)]
pub struct ControllerAccess {
    pub name: &'static str,
    /// The reconciled resource type.
    pub primary: &'static Kind,
    /// The resource types that it watches, as positions in [`RequiredAccess::watched`].
    pub watched: Vec<usize>,
    /// Permissions for writes, in addition to the permissions for the watches.
    pub rights: Vec<Permission>,
}

impl RequiredAccess {
    /// Returns the first reconciled resource type.
    pub fn primary(&self) -> &'static Kind {
        self.controllers[0].primary
    }

    /// Returns the permissions for writes of all controllers, each once.
    pub fn rights(&self) -> Vec<Permission> {
        let mut rights = Vec::new();
        for right in self.controllers.iter().flat_map(|it| &it.rights) {
            if !rights.contains(right) {
                rights.push(*right);
            }
        }
        rights
    }

    /// Returns all permissions for writes, reviewed or not, and those for reads of single objects.
    pub fn writes(&self) -> Vec<Permission> {
        let mut writes = self.rights();
        writes.extend(&self.unreviewed);
        writes
    }
}

/// Permission for one verb on a resource type, or on its subresource if that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// `create`, `patch`, …
    pub verb: &'static str,
    /// The resource type.
    pub kind: Kind,
    /// `status`, or empty.
    pub subresource: &'static str,
}

impl Permission {
    /// Returns the attributes for a review in one namespace, or in all namespaces.
    pub(crate) fn attributes(&self, namespace: Option<&str>) -> ResourceAttributes {
        let subresource = Some(self.subresource.to_owned());
        ResourceAttributes {
            namespace: namespace.map(str::to_owned),
            verb: Some(self.verb.to_owned()),
            group: Some(self.kind.group.to_owned()),
            resource: Some(self.kind.plural.to_owned()),
            subresource: subresource.filter(|name| !name.is_empty()),
            ..ResourceAttributes::default()
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        let (verb, plural) = (self.verb, self.kind.plural);
        write!(f, "{verb} {plural}{slash}{}", self.subresource)
    }
}

/// Result of the last permission check of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Permissions {
    Unknown,
    Sufficient,
    Missing(Problem),
}

/// Reason why a cell is not served, as a label of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The initial sync has not ended.
    Syncing,
    /// 403, or a missing permission.
    Forbidden,
    /// 401.
    Unauthorized,
    /// 404: the CRD is not installed.
    NotFound,
    /// No response, or another error.
    Failing,
}

impl Reason {
    /// Returns the reason for an error of the API server with this code.
    pub fn of(code: Option<u16>) -> Self {
        match code {
            Some(401) => Self::Unauthorized,
            Some(403) => Self::Forbidden,
            Some(404) => Self::NotFound,
            _ => Self::Failing,
        }
    }

    /// Returns the label of the metric.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Syncing => "syncing",
            Self::Forbidden => "forbidden",
            Self::Unauthorized => "unauthorized",
            Self::NotFound => "missing",
            Self::Failing => "failing",
        }
    }
}

/// Problem that keeps a cell from being served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub reason: Reason,
    pub text: String,
}

/// State of one namespace, or of all namespaces.
pub(super) struct Scope {
    pub namespace: Option<String>,
    /// In the order of [`RequiredAccess::watched`].
    pub informers: Vec<InformerState>,
    /// In the order of [`RequiredAccess::controllers`].
    pub cells: Vec<Cell>,
}

/// State of one controller in one scope.
pub(super) struct Cell {
    pub rights: Permissions,
    /// Logged missing permissions.
    pub lacking: OutageLog,
    pub checked: Option<Instant>,
    pub was_in_sync: bool,
    pub served: bool,
    pub was_served: bool,
    /// Start of the current problem.
    pub since: Option<Instant>,
    /// Longest `Retry-After` during the current problem. It extends the grace period.
    pub asked: Duration,
}

pub(super) struct InformerState {
    pub synced: bool,
    pub failure: Option<Problem>,
    /// Time of the API server's last message, or of the watch's creation.
    pub heard: Instant,
    /// resourceVersion that the watch has reached. Empty until the end of the first list.
    pub version: String,
}

impl InformerState {
    fn new() -> Self {
        Self {
            synced: false,
            failure: None,
            heard: Instant::now(),
            version: String::new(),
        }
    }
}

impl Cell {
    fn new() -> Self {
        Self {
            rights: Permissions::Unknown,
            lacking: OutageLog::default(),
            checked: None,
            was_in_sync: false,
            served: false,
            was_served: false,
            since: None,
            asked: Duration::ZERO,
        }
    }
}

impl Scope {
    /// Creates a scope in an unknown state.
    pub fn new(namespace: Option<String>, needs: &RequiredAccess) -> Self {
        Self {
            namespace,
            informers: needs.watched.iter().map(|_| InformerState::new()).collect(),
            cells: needs.controllers.iter().map(|_| Cell::new()).collect(),
        }
    }

    /// Returns the label for metrics.
    pub fn label(&self) -> String {
        self.namespace.clone().unwrap_or_else(|| "*".to_owned())
    }

    pub fn covers(&self, key: &Key) -> bool {
        let namespace = self.namespace.as_deref();
        namespace.is_none_or(|namespace| namespace == key.namespace())
    }

    /// Whether the initial lists of a controller are complete.
    pub fn is_listed(&self, access: &ControllerAccess) -> bool {
        access.watched.iter().all(|it| self.informers[*it].synced)
    }

    /// Whether a controller is in sync here.
    pub fn is_in_sync(&self, needs: &RequiredAccess, controller: usize) -> bool {
        self.is_listed(&needs.controllers[controller])
            && self.cells[controller].rights != Permissions::Unknown
    }

    /// Returns the problem of a controller here, if there is one.
    pub fn problem(&self, needs: &RequiredAccess, controller: usize) -> Option<Problem> {
        let watched = needs.controllers[controller].watched.iter();
        let informers = watched.map(|it| (needs.watched[*it].plural, &self.informers[*it]));
        let mut failures = informers.clone().filter_map(|(_, it)| it.failure.as_ref());
        if let Some(failure) = failures.next() {
            return Some(failure.clone());
        }
        if let Permissions::Missing(problem) = &self.cells[controller].rights {
            return Some(problem.clone());
        }
        if self.is_in_sync(needs, controller) {
            return None;
        }
        let unsynced = informers.filter(|(_, informer)| !informer.synced);
        let unsynced: Vec<_> = unsynced.map(|(plural, _)| plural).collect();
        let what = if unsynced.is_empty() {
            "permissions".to_owned()
        } else {
            unsynced.join(", ")
        };
        let mut text = format!("not in sync yet: {what}");
        if let Some(namespace) = &self.namespace {
            let _ = write!(text, " in namespace {namespace}");
        }
        Some(Problem {
            reason: Reason::Syncing,
            text,
        })
    }

    /// Updates whether a controller is served here at `now`. Returns the end of the grace period, if it is running.
    pub fn judge(
        &mut self,
        needs: &RequiredAccess,
        controller: usize,
        now: Instant,
        grace: Duration,
    ) -> Option<Instant> {
        let kind = needs.controllers[controller].primary.kind;
        let problem = self.problem(needs, controller);
        let cell = &mut self.cells[controller];
        let Some(problem) = problem else {
            if !cell.served && cell.was_served {
                info!(namespace = self.namespace, "{kind}s are served again");
            }
            (cell.served, cell.was_served) = (true, true);
            (cell.since, cell.asked) = (None, Duration::ZERO);
            return None;
        };
        let end = *cell.since.get_or_insert(now) + cell.asked + grace;
        if !cell.served {
            return None;
        }
        if now < end {
            return Some(end);
        }
        cell.served = false;
        warn!(
            namespace = self.namespace,
            "no longer serving {kind}s: {}", problem.text
        );
        None
    }
}

/// Display of a namespace in messages. `None`: all namespaces.
pub struct NamespaceName<'a>(pub Option<&'a str>);

impl fmt::Display for NamespaceName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(namespace) => write!(f, "namespace {namespace}"),
            None => f.write_str("all namespaces"),
        }
    }
}
