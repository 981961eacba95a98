//! State of the watches and of the cells: whether a cell is in sync and served, and its current problem.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use k8s_openapi::{
    api::{authorization::v1::ResourceAttributes, events::v1::Event},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::{
    api::{key::Key, kind::Kind},
    telemetry::log_once::OutageLog,
};

/// Requirements of a program for serving a scope.
#[derive(Clone, Debug)]
pub(crate) struct RequiredAccess {
    /// The requirements of each controller.
    pub controllers: Vec<ControllerAccess>,
    /// All watched resource types, including the reconciled ones.
    pub watched: Vec<Kind>,
    /// The watched resource types that may be missing. They are not part of the readiness.
    pub optional: Vec<Kind>,
    /// Permissions that only `doctor` reviews: a replica without them may still serve many objects.
    pub unreviewed: Vec<Permission>,
}

/// Requirements of one controller.
#[derive(Clone, Debug)]
pub(crate) struct ControllerAccess {
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
    pub(crate) fn primary(&self) -> &'static Kind {
        self.controllers[0].primary
    }

    pub(crate) fn is_optional(&self, kind: &Kind) -> bool {
        self.optional.iter().any(|it| it.is_same(kind))
    }

    /// Returns the optional resource types that a CRD may define.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = &Kind> {
        self.optional.iter().filter(|kind| !kind.is_built_in())
    }

    /// Returns a resource type for each watch: the watched types, and the CRDs of optional ones.
    pub(crate) fn watches(&self) -> Vec<Kind> {
        let crd = Kind::of::<CustomResourceDefinition>();
        let crds = self.definitions().map(|_| crd);
        self.watched.iter().copied().chain(crds).collect()
    }

    /// Returns the permissions for writes of all controllers, each once.
    pub(crate) fn rights(&self) -> Vec<Permission> {
        let mut rights = Vec::new();
        for right in self.controllers.iter().flat_map(|it| &it.rights) {
            if !rights.contains(right) {
                rights.push(*right);
            }
        }
        rights
    }

    /// Returns all permissions for writes, reviewed or not, and those for reads of single objects.
    pub(crate) fn writes(&self) -> Vec<Permission> {
        let mut writes = self.rights();
        writes.extend(&self.unreviewed);
        writes
    }
}

/// Permission for one verb on a resource type, or on its subresource if that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permission {
    /// `create`, `patch`, …
    pub verb: &'static str,
    /// The resource type.
    pub kind: Kind,
    /// `status`, or empty.
    pub subresource: &'static str,
}

impl Permission {
    /// The remedy for a missing permission of the controllers.
    pub(crate) const REMEDY: &str =
        "apply the ClusterRole that the command rbac prints, and its binding";

    /// Returns the permission for each of the verbs.
    pub(crate) fn to(
        verbs: &'static [&'static str],
        kind: Kind,
    ) -> impl Iterator<Item = Self> + 'static {
        verbs.iter().map(move |verb| Self {
            verb,
            kind,
            subresource: "",
        })
    }

    /// Returns the permissions for events, which a replica does not review.
    pub(crate) fn to_events() -> impl Iterator<Item = Self> {
        Self::to(&["create", "patch"], Kind::of::<Event>())
    }

    /// Returns the attributes for a review in one namespace, or in all namespaces.
    pub(crate) fn attributes(&self, namespace: Option<&str>) -> ResourceAttributes {
        let subresource = Some(self.subresource.to_owned());
        // In a namespace, RBAC grants a cluster-scoped type by a RoleBinding, too, which does not cover the request.
        let namespace = namespace.filter(|_| !self.kind.is_cluster_scoped());
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
pub(crate) enum Reason {
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
    pub(crate) fn of(code: Option<u16>) -> Self {
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

/// State of all watches and cells.
pub(super) struct Table {
    /// By position in [`RequiredAccess::watched`], then by [scope](Kind::scopes) of the resource type.
    pub informers: Vec<Vec<InformerState>>,
    /// By position in [`RequiredAccess::controllers`], then by scope of the reconciled type.
    pub cells: Vec<Vec<Cell>>,
    /// Number of cells that are served.
    pub served: usize,
    /// Time when all cells are judged: not after the end of any grace period. `None`: no grace period is running.
    pub deadline: Option<Instant>,
}

/// State of one controller in one scope of its reconciled type.
pub(super) struct Cell {
    /// `None`: all namespaces, or the cluster-scoped objects.
    pub namespace: Option<String>,
    /// The watches that the cell needs, as positions in [`Table::informers`].
    pub uses: Vec<(usize, usize)>,
    /// The namespaces where the cell needs its permissions.
    pub places: Vec<Option<String>>,
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

/// Failed attempts to list an optional type until it counts as missing. An API server may fail for a moment, for example while it
/// starts.
const ATTEMPTS: u32 = 4;

/// Whether a cell needs a resource type.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Need {
    Required,
    /// The type may be missing. Its failures are no problem of a cell. But a cell waits until it is known whether the type is
    /// installed, for at most [`ATTEMPTS`] to list it. This is their number.
    Unknown(u32),
    /// It is known, or cannot be found out.
    Optional,
}

pub(super) struct InformerState {
    /// The namespace that is watched. `None`: the whole cluster.
    pub namespace: Option<String>,
    /// The cells that need this watch, as controller and position. A change of the watch concerns no other cell.
    pub used_by: Arc<[(usize, usize)]>,
    pub synced: bool,
    pub need: Need,
    pub failure: Option<Problem>,
    /// Time of the API server's last message, or of the watch's creation.
    pub heard: Instant,
    /// resourceVersion that the watch has reached. Empty until the end of the first list.
    pub version: String,
    /// Whether an object was left out, because the code of its type panics.
    pub is_partial: bool,
}

impl InformerState {
    fn new(namespace: Option<String>, is_optional: bool) -> Self {
        Self {
            namespace,
            used_by: Arc::default(),
            synced: false,
            need: if is_optional {
                Need::Unknown(0)
            } else {
                Need::Required
            },
            failure: None,
            heard: Instant::now(),
            version: String::new(),
            is_partial: false,
        }
    }

    /// Whether the type is optional and not installed. Another failure, such as a missing permission, does not show that.
    pub(super) fn is_missing(&self) -> bool {
        let reason = self.failure.as_ref().map(|it| it.reason);
        self.need != Need::Required && reason == Some(Reason::NotFound)
    }

    /// Records that an attempt to list the type has ended, and whether it shows if an optional type is installed. Returns whether
    /// the cells need not wait for the type any more.
    pub(super) fn attempted(&mut self, is_known: bool) -> bool {
        let Need::Unknown(attempts) = self.need else {
            return false;
        };
        let is_over = is_known || attempts + 1 == ATTEMPTS;
        self.need = if is_over {
            Need::Optional
        } else {
            Need::Unknown(attempts + 1)
        };
        is_over
    }

    /// Whether a cell need not wait for this watch any more.
    fn is_ready(&self) -> bool {
        self.synced || self.need == Need::Optional
    }
}

impl Cell {
    /// Returns the cell of a controller in the scope `number` of its reconciled type.
    ///
    /// A cluster-scoped object may have dependents in each namespace. In a namespace without a complete list they would look
    /// missing. So the cell of cluster-scoped objects needs all namespaces.
    fn new(
        needs: &RequiredAccess,
        access: &ControllerAccess,
        namespaces: &[Option<String>],
        number: usize,
    ) -> Self {
        let is_of_cluster = access.primary.is_cluster_scoped();
        let uses = access.watched.iter().flat_map(|&informer| {
            let scopes = needs.watched[informer].scopes(namespaces).len();
            let scopes = match scopes {
                1 => 0..1,
                all if is_of_cluster => 0..all,
                _ => number..number + 1,
            };
            scopes.map(move |scope| (informer, scope))
        });
        let namespace = access.primary.scopes(namespaces).swap_remove(number);
        Self {
            places: if is_of_cluster {
                namespaces.to_vec()
            } else {
                vec![namespace.clone()]
            },
            namespace,
            uses: uses.collect(),
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

    /// Whether the cell contains the reconciled object `key`.
    pub(super) fn covers(&self, key: &Key) -> bool {
        let namespace = self.namespace.as_deref();
        namespace.is_none_or(|namespace| namespace == key.namespace())
    }
}

/// Returns the label of a scope for metrics.
pub(super) fn label(namespace: Option<&String>) -> String {
    namespace.cloned().unwrap_or_else(|| "*".to_owned())
}

impl Table {
    /// Creates watches and cells in an unknown state.
    pub(super) fn new(needs: &RequiredAccess, namespaces: &[Option<String>]) -> Self {
        let informers = needs.watched.iter().map(|kind| {
            let (scopes, is_optional) = (kind.scopes(namespaces), needs.is_optional(kind));
            let scopes = scopes.into_iter();
            let states = scopes.map(|namespace| InformerState::new(namespace, is_optional));
            states.collect()
        });
        let cells = needs.controllers.iter().map(|access| {
            let scopes = 0..access.primary.scopes(namespaces).len();
            let cells = scopes.map(|scope| Cell::new(needs, access, namespaces, scope));
            cells.collect()
        });
        let mut table = Self {
            informers: informers.collect(),
            cells: cells.collect(),
            served: 0,
            deadline: None,
        };
        let rows = table.informers.iter();
        let mut used_by: Vec<Vec<Vec<_>>> = rows.map(|row| vec![Vec::new(); row.len()]).collect();
        for (controller, number) in table.cells() {
            for &(informer, scope) in &table.cells[controller][number].uses {
                used_by[informer][scope].push((controller, number));
            }
        }
        let states = table.informers.iter_mut().flatten();
        for (state, cells) in states.zip(used_by.into_iter().flatten()) {
            state.used_by = cells.into();
        }
        table
    }

    /// Returns the controller and the position of all cells, by scope.
    pub(super) fn cells(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        by_scope(&self.cells)
    }

    /// Returns the resource type and the position of all watches, by scope.
    pub(super) fn informers(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        by_scope(&self.informers)
    }

    /// Whether the initial lists of a cell are complete.
    pub(super) fn is_listed(&self, cell: &Cell) -> bool {
        let mut uses = cell.uses.iter();
        uses.all(|(informer, scope)| self.informers[*informer][*scope].is_ready())
    }

    /// Whether a cell is in sync.
    pub(super) fn is_in_sync(&self, cell: &Cell) -> bool {
        self.is_listed(cell) && cell.rights != Permissions::Unknown
    }

    /// Returns the failure of a watch that the cell requires, or its missing permission.
    fn failure<'a>(&'a self, cell: &'a Cell) -> Option<&'a Problem> {
        let uses = cell.uses.iter();
        let informers = uses.map(|&(informer, scope)| &self.informers[informer][scope]);
        let required = informers.filter(|it| it.need == Need::Required);
        let mut failures = required.filter_map(|it| it.failure.as_ref());
        failures.next().or(match &cell.rights {
            Permissions::Missing(problem) => Some(problem),
            _ => None,
        })
    }

    /// Whether a cell has a [problem](Self::problem). Makes no text, because it is called after each change.
    fn has_problem(&self, cell: &Cell) -> bool {
        self.failure(cell).is_some() || !self.is_in_sync(cell)
    }

    /// Returns the problem of a cell, if there is one.
    pub(super) fn problem(&self, needs: &RequiredAccess, cell: &Cell) -> Option<Problem> {
        if let Some(failure) = self.failure(cell) {
            return Some(failure.clone());
        }
        if self.is_in_sync(cell) {
            return None;
        }
        let informers = cell.uses.iter().map(|(informer, scope)| {
            let plural = needs.watched[*informer].plural;
            (plural, &self.informers[*informer][*scope])
        });
        let mut unsynced: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (plural, informer) in informers.filter(|(_, informer)| !informer.is_ready()) {
            let places = unsynced.entry(informer.namespace.as_ref());
            places.or_default().push(plural);
        }
        if unsynced.is_empty() {
            unsynced.insert(cell.namespace.as_ref(), vec!["permissions"]);
        }
        let places = unsynced.into_iter().map(|(namespace, what)| {
            let place = namespace.map(|namespace| format!(" in namespace {namespace}"));
            what.join(", ") + &place.unwrap_or_default()
        });
        let text = format!("not in sync yet: {}", places.collect::<Vec<_>>().join("; "));
        Some(Problem {
            reason: Reason::Syncing,
            text,
        })
    }

    /// Updates whether a cell is served at `now`. Returns the end of the grace period, if it is running.
    pub(super) fn judge(
        &mut self,
        needs: &RequiredAccess,
        (controller, number): (usize, usize),
        now: Instant,
        grace: Duration,
    ) -> Option<Instant> {
        let kind = needs.controllers[controller].primary.kind;
        let has_problem = self.has_problem(&self.cells[controller][number]);
        let cell = &mut self.cells[controller][number];
        if !has_problem {
            if !cell.served && cell.was_served {
                info!(namespace = cell.namespace, "{kind}s are served again");
            }
            self.served += usize::from(!cell.served);
            (cell.served, cell.was_served) = (true, true);
            (cell.since, cell.asked) = (None, Duration::ZERO);
            return None;
        }
        let end = *cell.since.get_or_insert(now) + cell.asked + grace;
        if !cell.served {
            return None;
        }
        if now < end {
            return Some(end);
        }
        cell.served = false;
        self.served -= 1;
        let cell = &self.cells[controller][number];
        let problem = self.problem(needs, cell).map(|it| it.text);
        warn!(
            namespace = cell.namespace,
            "no longer serving {kind}s: {}",
            problem.unwrap_or_default()
        );
        None
    }
}

/// Returns the positions in `rows`: first of all first elements, then of all second ones.
fn by_scope<T>(rows: &[Vec<T>]) -> impl Iterator<Item = (usize, usize)> + use<T> {
    let lengths: Vec<_> = rows.iter().map(Vec::len).collect();
    let longest = lengths.iter().copied().max().unwrap_or_default();
    (0..longest).flat_map(move |scope| {
        let rows = lengths.clone().into_iter().enumerate();
        let rows = rows.filter(move |(_, length)| scope < *length);
        rows.map(move |(row, _)| (row, scope))
    })
}

/// Display of a namespace in messages. `None`: all namespaces. Empty: the cluster, of a cluster-scoped type.
pub(crate) struct NamespaceName<'a>(pub Option<&'a str>);

impl<'a> NamespaceName<'a> {
    /// Returns the place of the objects of `kind` in a scope.
    pub(crate) fn of(kind: &Kind, namespace: Option<&'a str>) -> Self {
        Self(if kind.is_cluster_scoped() {
            Some("")
        } else {
            namespace
        })
    }
}

impl fmt::Display for NamespaceName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some("") => f.write_str("the cluster"),
            Some(namespace) => write!(f, "namespace {namespace}"),
            None => f.write_str("all namespaces"),
        }
    }
}
