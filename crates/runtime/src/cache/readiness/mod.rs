//! Readiness of each controller in each scope of its reconciled type: a configured namespace, or all namespaces. A
//! cluster-scoped type has a single scope, the cluster.
//!
//! Together they are a table of *cells*. A cell depends on the resource types and permissions of its controller only. A missing
//! CRD therefore stops no controller that does not use it. The cell of a cluster-scoped type depends on its controller's
//! resource types in all configured namespaces, where the dependents of its objects may be.
//!
//! A cell is *in sync* once its stores have completed their initial lists and its permissions have been checked. From then on
//! its objects are reconciled. An in-sync cell is *served* while its watches work and no permission is missing. When a
//! condition has not held for a grace period, the cell is no longer served. A shorter failure of a watch has no effect.
//!
//! Permissions are checked with `SelfSubjectAccessReview`: after each initial list, when a term begins and after a rejected
//! write. The check repeats while a permission is missing. Watches do not replace it, because a revoked permission does not end
//! a watch.

pub(crate) mod access_review;
pub(crate) mod namespace;
pub(crate) mod refusals;
#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures::FutureExt as _;
use kube::Client;
use opentelemetry::KeyValue;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until},
};
use tracing::{info, warn};

use self::{
    access_review::{RestoreNotifier, review},
    namespace::{
        InformerState, NamespaceName, Need, Permissions, Problem, Reason, RequiredAccess, Table,
        label,
    },
    refusals::Refusals,
};
use crate::{
    api::{key::Key, kind::Kind},
    client::fence::eligibility::Eligibility,
    config::backoff::Backoff,
    telemetry::{
        metrics::{Metrics, table},
        state,
    },
};

/// Delay between two permission checks of a cell. It grows from the first value to the second while checks are needed.
const CHECK_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Readiness of all controllers of a replica.
pub(crate) struct Scopes {
    needs: RequiredAccess,
    grace: Duration,
    all: Mutex<Table>,
    /// Notified when a watch or a permission check reports its state.
    changed: Notify,
    /// Notified when an update sets an earlier [`Table::deadline`].
    deadline_set: Notify,
    /// Cells in sync, as controller and position, in the order of their initial sync. Cells are never removed.
    in_sync: watch::Sender<Vec<(usize, usize)>>,
    ability: watch::Sender<Eligibility>,
    /// Of each controller.
    refusals: Vec<Arc<Refusals>>,
    /// Number of times that missing permissions of a controller were restored, per cell.
    regained: Vec<watch::Sender<Vec<u64>>>,
}

impl Scopes {
    /// Creates watches and cells in an unknown state, for these namespaces (`None`: all). Each controller has an element of
    /// `refusals`. `grace` is how long a served cell may have a problem.
    pub(crate) fn new(
        needs: RequiredAccess,
        namespaces: &[Option<String>],
        refusals: Vec<Arc<Refusals>>,
        grace: Duration,
    ) -> Arc<Self> {
        let all = Table::new(&needs, namespaces);
        let regained = all.cells.iter();
        Arc::new(Self {
            grace,
            changed: Notify::new(),
            deadline_set: Notify::new(),
            in_sync: watch::Sender::new(Vec::new()),
            ability: watch::Sender::new(Eligibility::None),
            regained: regained
                .map(|cells| watch::Sender::new(vec![0; cells.len()]))
                .collect(),
            refusals,
            needs,
            all: Mutex::new(all),
        })
    }

    /// Returns the handle of the watch of one resource type in one scope.
    pub(crate) fn informer(self: &Arc<Self>, scope: usize, informer: usize) -> Status {
        Status {
            scopes: Arc::clone(self),
            scope,
            informer,
        }
    }

    /// Returns the controller and the position of all cells.
    pub(crate) fn cells(&self) -> Vec<(usize, usize)> {
        self.all.lock().cells().collect()
    }

    /// Returns the resource type and the scope of all watches.
    pub(crate) fn informers(&self) -> Vec<(usize, usize)> {
        self.all.lock().informers().collect()
    }

    /// Returns the namespace of a cell. `None`: all namespaces, or the cluster-scoped objects.
    pub(crate) fn namespace(&self, controller: usize, cell: usize) -> Option<String> {
        self.all.lock().cells[controller][cell].namespace.clone()
    }

    /// Subscribes to the ability: whether no, some or all cells are served.
    pub(crate) fn ability(&self) -> watch::Receiver<Eligibility> {
        self.ability.subscribe()
    }

    /// Subscribes to the cells in sync, as controller and position, in the order of their initial sync.
    pub(crate) fn in_sync(&self) -> watch::Receiver<Vec<(usize, usize)>> {
        self.in_sync.subscribe()
    }

    /// Whether a controller is in sync in the cell of its object `key`.
    pub(crate) fn is_in_sync(&self, controller: usize, key: &Key) -> bool {
        let all = self.all.lock();
        let mut cells = all.cells[controller].iter();
        cells.any(|cell| cell.was_in_sync && cell.covers(key))
    }

    /// Whether `key` is an object of a cell.
    pub(crate) fn covers(&self, controller: usize, cell: usize, key: &Key) -> bool {
        self.all.lock().cells[controller][cell].covers(key)
    }

    /// Returns whether a controller is in sync in the cell of its object `key`, and its current problem there, if any. `None` if
    /// no cell covers `key`.
    pub(crate) fn state_of(&self, controller: usize, key: &Key) -> Option<(bool, Option<String>)> {
        let all = self.all.lock();
        let cell = all.cells[controller].iter().find(|cell| cell.covers(key))?;
        let problem = all.problem(&self.needs, cell).map(|it| it.text);
        Some((cell.was_in_sync, problem))
    }

    /// Returns how often missing permissions of a controller were restored in the cell of its object `key`. A write that was
    /// rejected before may now succeed.
    pub(crate) fn rights_regained(&self, controller: usize, key: &Key) -> u64 {
        let all = self.all.lock();
        let regained = self.regained[controller].borrow();
        let cells = all.cells[controller].iter().zip(&*regained);
        let cells = cells.filter(|(cell, _)| cell.covers(key));
        cells.map(|(_, regained)| regained).sum()
    }

    /// Subscribes to the number of restorations of a controller per cell.
    pub(crate) fn all_rights_regained(&self, controller: usize) -> watch::Receiver<Vec<u64>> {
        self.regained[controller].subscribe()
    }

    /// Requests a permission check of each cell in sync, unless its last check is within the grace period.
    pub(crate) fn check_all(&self) {
        for (cells, refusals) in self.all.lock().cells.iter().zip(&self.refusals) {
            for (cell, check) in cells.iter().zip(&refusals.checks) {
                let old = cell.checked.is_some_and(|at| at.elapsed() > self.grace);
                if cell.was_in_sync && old {
                    check.called.notify_one();
                }
            }
        }
    }

    /// Stops serving cells whose grace period has ended. Runs until cancelled.
    pub(crate) async fn supervise(self: Arc<Self>) {
        loop {
            let deadline = self.all.lock().deadline;
            let grace_ends = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.deadline_set.notified() => continue,
                () = grace_ends => {}
            }
            let mut all = self.all.lock();
            let cells: Vec<_> = all.cells().collect();
            all.deadline = self.judge(&mut all, &cells);
        }
    }

    /// Checks the permissions of a cell when there is a reason. Runs until cancelled.
    pub(crate) async fn check_rights(
        self: Arc<Self>,
        controller: usize,
        cell: usize,
        client: Client,
    ) {
        let places = self.all.lock().cells[controller][cell].places.clone();
        let rights = &self.needs.controllers[controller].rights;
        let check = &self.refusals[controller].checks[cell];
        let mut pauses = Backoff::new(CHECK_PAUSES.0, CHECK_PAUSES.1);
        let mut again = false;
        // Permissions found missing by a review, and by a rejected write. The states are separate, because a review never
        // covers some permissions.
        let (mut seen, mut unseen) = (RestoreNotifier::default(), RestoreNotifier::default());
        loop {
            if !again {
                let idle = Instant::now();
                tokio::select! {
                    biased;
                    () = check.called.notified() => {}
                    () = seen.due() => {}
                    () = unseen.due() => {}
                }
                if idle.elapsed() > CHECK_PAUSES.1 {
                    pauses.reset();
                }
            }
            if check.lacked.swap(false, Relaxed) {
                unseen.found();
            }
            let found = review(&client, rights, &places).await;
            if matches!(found, Some(Permissions::Missing(_))) {
                seen.found();
            }
            let news = match (&found, seen.is_due(), unseen.is_due()) {
                (Some(Permissions::Sufficient), true, _) => Some("permissions restored"),
                // The review may not cover the permission that the write lacked.
                (Some(Permissions::Sufficient), _, true) => Some("no missing permission found"),
                _ => None,
            };
            let missing = self.learn(controller, cell, found, news);
            if news.is_some() {
                seen.told();
                unseen.told();
            }
            // All writes that are rejected during the pause cause a single check.
            sleep(pauses.advance()).await;
            let is_called = check.called.notified().now_or_never().is_some();
            again = missing || seen.is_due() || unseen.is_due() || is_called;
        }
    }

    /// Returns why this replica is not ready: it serves no cell, or an initial sync has not ended.
    pub(crate) fn failure(&self) -> Option<String> {
        let all = self.all.lock();
        let mut cells = all.cells.iter().flatten();
        let served = cells.clone().any(|cell| cell.served);
        let syncing = cells.any(|cell| {
            let problem = all.problem(&self.needs, cell);
            !cell.was_served && problem.is_some_and(|it| it.reason == Reason::Syncing)
        });
        (!served || syncing).then(|| self.not_served(&all))
    }

    /// Returns the cells that are not served, even if this replica is ready, and the optional resource types that are not
    /// installed, or whose watches fail.
    pub(crate) fn note(&self) -> Option<String> {
        let all = self.all.lock();
        let not_served = Some(self.not_served(&all)).filter(|it| !it.is_empty());
        let not_served = not_served.map(|it| format!("not served: {it}"));
        let is_watched = |it: &InformerState| it.synced && it.failure.is_none();
        let optional = self.optional(&all);
        let optional = optional.filter(|(_, scopes)| !scopes.iter().all(is_watched));
        let optional = optional.map(|(kind, scopes)| {
            let mut failures = scopes.iter().filter_map(|it| it.failure.as_ref());
            let failure = failures.next().map(|it| it.text.clone());
            failure.unwrap_or_else(|| format!("optional {} are not listed yet", kind.plural))
        });
        let notes: Vec<_> = not_served.into_iter().chain(optional).collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// Returns the optional resource types with the states of their watches.
    fn optional<'a>(
        &'a self,
        all: &'a Table,
    ) -> impl Iterator<Item = (&'a Kind, &'a [InformerState])> {
        let watched = self.needs.watched.iter().zip(&all.informers);
        let watched = watched.map(|(kind, scopes)| (kind, &**scopes));
        watched.filter(|(kind, _)| self.needs.is_optional(kind))
    }

    /// Returns the watches that fail, or whose initial list is not complete. An optional type may be missing.
    pub(crate) fn unready(&self) -> Vec<Unready> {
        let all = self.all.lock();
        let unready = all.informers().filter_map(|(number, scope)| {
            let state = &all.informers[number][scope];
            let is_ready = state.is_missing() || state.synced && state.failure.is_none();
            (!is_ready).then(|| Unready {
                kind: self.needs.watched[number],
                namespace: state.namespace.clone(),
                failure: state.failure.clone().map(|it| (it.reason, it.text)),
                heard: state.heard,
            })
        });
        unready.collect()
    }

    /// Returns the resource types with an object that was left out, because the code of its type panics.
    pub(crate) fn partial(&self) -> Vec<Kind> {
        let all = self.all.lock();
        let informers = self.needs.watched.iter().zip(&all.informers);
        let partial = informers.filter(|(_, scopes)| scopes.iter().any(|it| it.is_partial));
        partial.map(|(kind, _)| *kind).collect()
    }

    /// Waits until a watch or a permission check reports its state. Only one caller at a time may wait.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns the state of each watch, in the order of [`informers`](Self::informers). `objects` contains the number of objects
    /// per resource type and scope.
    pub(crate) fn caches(&self, objects: &[Vec<usize>]) -> Vec<state::Cache> {
        let all = self.all.lock();
        let caches = all.informers().map(|(number, scope)| {
            let informer = &all.informers[number][scope];
            let failure = informer.failure.as_ref();
            let failure = failure.filter(|_| !informer.is_missing());
            state::Cache {
                kind: self.needs.watched[number].kind.to_owned(),
                namespace: NamespaceName::of(
                    &self.needs.watched[number],
                    informer.namespace.as_deref(),
                )
                .0
                .map(ToOwned::to_owned),
                selector: String::new(),
                objects: objects[number].get(scope).copied().unwrap_or_default(),
                resource_version: informer.version.clone(),
                in_sync: informer.synced,
                is_optional: informer.need != Need::Required,
                age_seconds: state::seconds(informer.heard.elapsed()),
                failure: failure.map(|it| it.text.clone()),
            }
        });
        caches.collect()
    }

    /// Registers the metrics for served cells, with the reason if a cell is not served, and for the age of the caches. Only a
    /// program with several controllers has the label `controller`: the series of the others keep their labels.
    pub(crate) fn observe(self: &Arc<Self>, metrics: &Metrics) {
        self.observe_optional(metrics);
        let this = Arc::clone(self);
        metrics.observe(&table::SCOPE_SERVED, move |see| {
            let all = this.all.lock();
            for (controller, number) in all.cells() {
                let cell = &all.cells[controller][number];
                let problem = all.problem(&this.needs, cell).filter(|_| !cell.served);
                let reason = problem.map_or("", |problem| problem.reason.label());
                let mut labels = vec![
                    KeyValue::new("reason", reason),
                    KeyValue::new("scope", label(cell.namespace.as_ref())),
                ];
                let name = this.name_of(controller);
                labels.extend(name.map(|name| KeyValue::new("controller", name)));
                see(f64::from(u8::from(cell.served)), &labels);
            }
        });
        let this = Arc::clone(self);
        metrics.observe(&table::CACHE_AGE, move |see| {
            let all = this.all.lock();
            for (number, scope) in all.informers() {
                let informer = &all.informers[number][scope];
                let labels = [
                    KeyValue::new("kind", this.needs.watched[number].kind),
                    KeyValue::new("scope", label(informer.namespace.as_ref())),
                ];
                see(informer.heard.elapsed().as_secs_f64(), &labels);
            }
        });
    }

    /// Registers the metric for the presence of the optional resource types.
    fn observe_optional(self: &Arc<Self>, metrics: &Metrics) {
        let this = Arc::clone(self);
        metrics.observe(&table::KIND_INSTALLED, move |see| {
            let all = this.all.lock();
            for (kind, scopes) in this.optional(&all) {
                let labels = [KeyValue::new("kind", kind.kind)];
                see(f64::from(u8::from(is_installed(scopes))), &labels);
            }
        });
    }

    /// Returns the name of a controller, if there are several.
    fn name_of(&self, controller: usize) -> Option<&'static str> {
        let controllers = &self.needs.controllers;
        (controllers.len() > 1).then(|| controllers[controller].name)
    }

    fn not_served(&self, all: &Table) -> String {
        // A failure of the watch of a cluster-scoped type is the problem of the cells of all namespaces, with the same text.
        let (mut texts, mut seen) = (Vec::new(), HashSet::new());
        for (controller, number) in all.cells() {
            let cell = &all.cells[controller][number];
            let problem = all.problem(&self.needs, cell).filter(|_| !cell.served);
            let text = problem.map(|problem| match self.name_of(controller) {
                Some(name) => format!("{name}: {}", problem.text),
                None => problem.text,
            });
            texts.extend(text.filter(|text| seen.insert(text.clone())));
        }
        texts.join("; ")
    }

    /// Applies `change` and updates the derived state of the cells that it returns. They must include each cell that uses the
    /// changed state.
    fn update(&self, change: impl FnOnce(&mut Table) -> Arc<[(usize, usize)]>) {
        let mut all = self.all.lock();
        let cells = change(&mut all);
        let end = self.judge(&mut all, &cells);
        if let Some(end) = end
            && all.deadline.is_none_or(|deadline| end < deadline)
        {
            all.deadline = Some(end);
            self.deadline_set.notify_one();
        }
        self.changed.notify_one();
    }

    /// Updates the derived state of these cells, and the eligibility. Returns the end of the first of their grace periods.
    fn judge(&self, all: &mut Table, cells: &[(usize, usize)]) -> Option<Instant> {
        let now = Instant::now();
        let mut first = None;
        let served_before = all.served;
        for &(controller, number) in cells {
            let is_in_sync = all.is_in_sync(&all.cells[controller][number]);
            let was_in_sync = &mut all.cells[controller][number].was_in_sync;
            if !*was_in_sync && is_in_sync {
                *was_in_sync = true;
                (self.in_sync).send_modify(|all| all.push((controller, number)));
            }
            let end = all.judge(&self.needs, (controller, number), now, self.grace);
            first = first.into_iter().chain(end).min();
        }
        if all.served != served_before {
            let count = all.cells.iter().map(Vec::len).sum();
            let ability = match all.served {
                0 => Eligibility::None,
                some if some < count => Eligibility::Partial,
                _ => Eligibility::Full,
            };
            self.ability
                .send_if_modified(|last| std::mem::replace(last, ability) != ability);
        }
        first
    }

    /// Completes the permission check of a cell.
    #[cfg(test)]
    pub(crate) fn assume_rights(&self, controller: usize, number: usize) {
        self.learn(controller, number, Some(Permissions::Sufficient), None);
    }

    /// Records the result of a permission check, `None` without a response. If there are `news`, rejected writes are retried.
    /// Returns whether a permission is missing.
    fn learn(
        &self,
        controller: usize,
        number: usize,
        answer: Option<Permissions>,
        news: Option<&str>,
    ) -> bool {
        let mut missing = false;
        self.update(|all| {
            let cell = &mut all.cells[controller][number];
            let namespace = &cell.namespace;
            cell.checked = Some(Instant::now());
            let rights = match answer {
                // Assumes that the permissions are sufficient. The first write shows whether they are.
                None if cell.rights == Permissions::Unknown => Permissions::Sufficient,
                None => cell.rights.clone(),
                Some(rights) => rights,
            };
            missing = matches!(rights, Permissions::Missing(_));
            match &rights {
                Permissions::Missing(Problem { text, .. }) => {
                    if let Some(lasting) = cell.lacking.is_due(text) {
                        warn!(namespace, "{text}; retrying{lasting}");
                    }
                }
                _ => cell.lacking.clear(),
            }
            if let Some(news) = news {
                self.regained[controller].send_modify(|all| all[number] += 1);
                info!(namespace, "{news}: retrying rejected writes");
            }
            cell.rights = rights;
            Arc::new([(controller, number)])
        });
        missing
    }
}

/// A watch that fails, or whose initial list is not complete.
pub(crate) struct Unready {
    pub kind: Kind,
    /// `None`: the whole cluster.
    pub namespace: Option<String>,
    pub failure: Option<(Reason, String)>,
    /// Time of the API server's last message, or of the watch's creation.
    pub heard: Instant,
}

/// Whether an optional resource type is installed: see [`Store::is_installed`](crate::Store::is_installed).
fn is_installed(scopes: &[InformerState]) -> bool {
    scopes.iter().any(|it| it.synced)
}

/// Handle of the watch of one resource type in one scope. The watch reports its state through it.
#[derive(Clone)]
pub(crate) struct Status {
    scopes: Arc<Scopes>,
    scope: usize,
    informer: usize,
}

impl Status {
    /// Returns the position of the scope within the scopes of the resource type.
    pub(crate) fn scope(&self) -> usize {
        self.scope
    }

    /// Returns the scope's namespace. `None`: the whole cluster.
    pub(crate) fn namespace(&self) -> Option<String> {
        let all = self.scopes.all.lock();
        all.informers[self.informer][self.scope].namespace.clone()
    }

    /// Returns how long a served cell may have a problem.
    pub(crate) fn grace(&self) -> Duration {
        self.scopes.grace
    }

    /// Records a message of the API server, and the resourceVersion that the watch has reached, if known. Does not update the
    /// derived state, because it is called for each event.
    pub(crate) fn hears(&self, version: Option<&str>) {
        let mut all = self.scopes.all.lock();
        let state = &mut all.informers[self.informer][self.scope];
        state.heard = Instant::now();
        if let Some(version) = version {
            version.clone_into(&mut state.version);
        }
    }

    /// Records that the cache contains a complete list.
    pub(crate) fn synced(&self) {
        self.set(|state| {
            (state.synced, state.failure) = (true, None);
            state.attempted(true);
        });
        self.request_checks();
    }

    /// Records that an optional resource type is not installed.
    pub(crate) fn is_absent(&self, text: String) {
        let reason = Reason::NotFound;
        self.set(|state| {
            state.synced = false;
            state.failure = Some(Problem { reason, text });
        });
        self.settle(true);
    }

    /// Records that an attempt to list the resource type has ended: see [`InformerState::attempted`].
    fn settle(&self, is_known: bool) {
        let mut is_over = false;
        self.set(|state| is_over = state.attempted(is_known));
        if is_over {
            self.request_checks();
        }
    }

    /// Requests permission checks of the cells that use this watch and have all their lists.
    fn request_checks(&self) {
        let all = self.scopes.all.lock();
        for &(controller, number) in &*all.informers[self.informer][self.scope].used_by {
            if all.is_listed(&all.cells[controller][number]) {
                self.scopes.refusals[controller].checks[number]
                    .called
                    .notify_one();
            }
        }
    }

    /// Records that an object was left out.
    pub(crate) fn leaves_out(&self) {
        self.set(|state| state.is_partial = true);
    }

    /// Records that the watch works.
    pub(crate) fn works(&self) {
        self.set(|state| state.failure = None);
    }

    /// Records why the watch fails.
    pub(crate) fn fails(&self, reason: Reason, text: String) {
        self.set(|state| state.failure = Some(Problem { reason, text }));
        self.settle(!matches!(reason, Reason::Failing | Reason::Syncing));
    }

    /// Extends the grace period by the API server's `Retry-After`. Only the longest value of an outage counts. A server that
    /// always sends `Retry-After` therefore does not extend the period forever.
    pub(crate) fn waits(&self, asked: Duration) {
        self.scopes.update(|all| {
            let used_by = Arc::clone(&all.informers[self.informer][self.scope].used_by);
            for &(controller, number) in &*used_by {
                let cell = &mut all.cells[controller][number];
                cell.asked = cell.asked.max(asked);
            }
            used_by
        });
    }

    fn set(&self, change: impl FnOnce(&mut InformerState)) {
        self.scopes.update(|all| {
            let state = &mut all.informers[self.informer][self.scope];
            change(state);
            Arc::clone(&state.used_by)
        });
    }
}
