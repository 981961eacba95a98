//! Readiness of each controller in each scope: a configured namespace, or all namespaces.
//!
//! Together they are a table of *cells*. A cell depends on the resource types and permissions of its controller only. A missing
//! CRD therefore stops no controller that does not use it.
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
    namespace::{InformerState, Permissions, Problem, Reason, RequiredAccess, Scope},
    refusals::Refusals,
};
use crate::{
    api::key::Key,
    client::fence::eligibility::Eligibility,
    config::backoff::Backoff,
    telemetry::{
        metrics::{Metrics, table},
        state,
    },
};

/// Delay between two permission checks of a cell. It grows from the first value to the second while checks are needed.
const CHECK_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Readiness of all controllers of a replica in all scopes.
pub struct Scopes {
    needs: RequiredAccess,
    grace: Duration,
    all: Mutex<Vec<Scope>>,
    /// Notified when a deadline may have changed.
    changed: Notify,
    /// Cells in sync, as controller and scope, in the order of their initial sync. Cells are never removed.
    in_sync: watch::Sender<Vec<(usize, usize)>>,
    ability: watch::Sender<Eligibility>,
    /// Of each controller.
    refusals: Vec<Arc<Refusals>>,
    /// Number of times that missing permissions of a controller were restored, per scope.
    regained: Vec<watch::Sender<Vec<u64>>>,
}

impl Scopes {
    /// Creates cells in an unknown state. `refusals` are those of each controller. `grace` is how long a served cell may have a
    /// problem.
    pub fn new(needs: RequiredAccess, refusals: Vec<Arc<Refusals>>, grace: Duration) -> Arc<Self> {
        let namespaces = refusals.first().into_iter().flat_map(|it| &it.checks);
        let scopes = namespaces.map(|check| Scope::new(check.namespace.clone(), &needs));
        let all: Vec<_> = scopes.collect();
        Arc::new(Self {
            grace,
            changed: Notify::new(),
            in_sync: watch::Sender::new(Vec::new()),
            ability: watch::Sender::new(Eligibility::None),
            regained: refusals
                .iter()
                .map(|_| watch::Sender::new(vec![0; all.len()]))
                .collect(),
            refusals,
            needs,
            all: Mutex::new(all),
        })
    }

    /// Returns the handle of the watch of one resource type in one scope.
    pub fn informer(self: &Arc<Self>, scope: usize, informer: usize) -> Status {
        Status {
            scopes: Arc::clone(self),
            scope,
            informer,
        }
    }

    /// Returns the namespace of a scope. `None`: all namespaces.
    pub fn namespace(&self, scope: usize) -> Option<String> {
        let scopes = self.all.lock();
        scopes.get(scope).and_then(|scope| scope.namespace.clone())
    }

    /// Subscribes to the ability: whether no, some or all cells are served.
    pub fn ability(&self) -> watch::Receiver<Eligibility> {
        self.ability.subscribe()
    }

    /// Subscribes to the cells in sync, as controller and scope, in the order of their initial sync.
    pub fn in_sync(&self) -> watch::Receiver<Vec<(usize, usize)>> {
        self.in_sync.subscribe()
    }

    /// Whether a controller is in sync in the scope of `key`.
    pub fn is_in_sync(&self, controller: usize, key: &Key) -> bool {
        let scopes = self.all.lock();
        scopes
            .iter()
            .any(|scope| scope.cells[controller].was_in_sync && scope.covers(key))
    }

    /// Whether `key` belongs to a scope.
    pub fn covers(&self, scope: usize, key: &Key) -> bool {
        let scopes = self.all.lock();
        scopes.get(scope).is_some_and(|scope| scope.covers(key))
    }

    /// Returns whether a controller is in sync in the scope of `key`, and its current problem there, if any. `None` if no scope
    /// covers `key`.
    pub fn state_of(&self, controller: usize, key: &Key) -> Option<(bool, Option<String>)> {
        let scopes = self.all.lock();
        let scope = scopes.iter().find(|scope| scope.covers(key))?;
        let problem = scope.problem(&self.needs, controller).map(|it| it.text);
        Some((scope.cells[controller].was_in_sync, problem))
    }

    /// Returns how often missing permissions of a controller were restored in the scope of `key`. A write that was rejected
    /// before may now succeed.
    pub fn rights_regained(&self, controller: usize, key: &Key) -> u64 {
        let scopes = self.all.lock();
        let regained = self.regained[controller].borrow();
        let scopes = scopes.iter().zip(&*regained);
        let scopes = scopes.filter(|(scope, _)| scope.covers(key));
        scopes.map(|(_, regained)| regained).sum()
    }

    /// Subscribes to the number of restorations of a controller per scope.
    pub fn all_rights_regained(&self, controller: usize) -> watch::Receiver<Vec<u64>> {
        self.regained[controller].subscribe()
    }

    /// Requests a permission check of each cell in sync, unless its last check is within the grace period.
    pub fn check_all(&self) {
        for (number, scope) in self.all.lock().iter().enumerate() {
            for (cell, refusals) in scope.cells.iter().zip(&self.refusals) {
                let old = cell.checked.is_some_and(|at| at.elapsed() > self.grace);
                if cell.was_in_sync && old {
                    refusals.checks[number].called.notify_one();
                }
            }
        }
    }

    /// Stops serving cells whose grace period has ended. Runs until cancelled.
    pub async fn supervise(self: Arc<Self>) {
        loop {
            let changed = self.changed.notified();
            let next = self.judge(&mut self.all.lock());
            tokio::select! {
                biased;
                () = changed => {}
                () = async {
                    match next {
                        Some(next) => sleep_until(next).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
        }
    }

    /// Checks the permissions of a controller in a scope when there is a reason. Runs until cancelled.
    pub async fn check_rights(self: Arc<Self>, controller: usize, scope: usize, client: Client) {
        let namespace = self.namespace(scope);
        let rights = &self.needs.controllers[controller].rights;
        let check = &self.refusals[controller].checks[scope];
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
            let found = review(&client, rights, namespace.as_deref()).await;
            if matches!(found, Some(Permissions::Missing(_))) {
                seen.found();
            }
            let news = match (&found, seen.is_due(), unseen.is_due()) {
                (Some(Permissions::Sufficient), true, _) => Some("permissions restored"),
                // The review may not cover the permission that the write lacked.
                (Some(Permissions::Sufficient), _, true) => Some("no missing permission found"),
                _ => None,
            };
            let missing = self.learn(controller, scope, found, news);
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
    pub fn failure(&self) -> Option<String> {
        let scopes = self.all.lock();
        let served = scopes.iter().any(|it| it.cells.iter().any(|it| it.served));
        let syncing = scopes.iter().any(|scope| {
            let mut cells = scope.cells.iter().enumerate();
            cells.any(|(controller, cell)| {
                let problem = scope.problem(&self.needs, controller);
                !cell.was_served && problem.is_some_and(|it| it.reason == Reason::Syncing)
            })
        });
        (!served || syncing).then(|| self.not_served(&scopes))
    }

    /// Returns the cells that are not served, even if this replica is ready.
    pub fn note(&self) -> Option<String> {
        let not_served = self.not_served(&self.all.lock());
        (!not_served.is_empty()).then(|| format!("not served: {not_served}"))
    }

    /// Returns the state of each watch. `objects` contains the number of objects per resource type and scope.
    pub fn caches(&self, objects: &[Vec<usize>]) -> Vec<state::Cache> {
        let scopes = self.all.lock();
        let scopes = scopes.iter().enumerate();
        let caches = scopes.flat_map(|(number, scope)| {
            let informers = self.needs.watched.iter().zip(&scope.informers);
            informers
                .zip(objects)
                .map(move |((kind, informer), objects)| state::Cache {
                    kind: kind.kind.to_owned(),
                    namespace: scope.namespace.clone(),
                    selector: String::new(),
                    objects: objects.get(number).copied().unwrap_or_default(),
                    resource_version: informer.version.clone(),
                    in_sync: informer.synced,
                    age_seconds: state::seconds(informer.heard.elapsed()),
                    failure: informer.failure.as_ref().map(|it| it.text.clone()),
                })
        });
        caches.collect()
    }

    /// Registers the metrics for served cells, with the reason if a cell is not served, and for the age of the caches. Only a
    /// program with several controllers has the label `controller`: the series of the others keep their labels.
    pub fn observe(self: &Arc<Self>, metrics: &Metrics) {
        let this = Arc::clone(self);
        metrics.observe(&table::SCOPE_SERVED, move |see| {
            for scope in this.all.lock().iter() {
                for (controller, cell) in scope.cells.iter().enumerate() {
                    let problem = scope.problem(&this.needs, controller);
                    let problem = problem.filter(|_| !cell.served);
                    let reason = problem.map_or("", |problem| problem.reason.label());
                    let mut labels = vec![
                        KeyValue::new("reason", reason),
                        KeyValue::new("scope", scope.label()),
                    ];
                    let name = this.name_of(controller);
                    labels.extend(name.map(|name| KeyValue::new("controller", name)));
                    see(f64::from(u8::from(cell.served)), &labels);
                }
            }
        });
        let this = Arc::clone(self);
        metrics.observe(&table::CACHE_AGE, move |see| {
            for scope in this.all.lock().iter() {
                for (kind, informer) in this.needs.watched.iter().zip(&scope.informers) {
                    let labels = [
                        KeyValue::new("kind", kind.kind),
                        KeyValue::new("scope", scope.label()),
                    ];
                    see(informer.heard.elapsed().as_secs_f64(), &labels);
                }
            }
        });
    }

    /// Returns the name of a controller, if there are several.
    fn name_of(&self, controller: usize) -> Option<&'static str> {
        let controllers = &self.needs.controllers;
        (controllers.len() > 1).then(|| controllers[controller].name)
    }

    fn not_served(&self, scopes: &[Scope]) -> String {
        let mut texts = Vec::new();
        for scope in scopes {
            for (controller, _) in scope.cells.iter().enumerate().filter(|(_, it)| !it.served) {
                let problem = scope.problem(&self.needs, controller);
                texts.extend(problem.map(|problem| match self.name_of(controller) {
                    Some(name) => format!("{name}: {}", problem.text),
                    None => problem.text,
                }));
            }
        }
        texts.join("; ")
    }

    fn update(&self, scope: usize, change: impl FnOnce(&mut Scope)) {
        let mut scopes = self.all.lock();
        if let Some(scope) = scopes.get_mut(scope) {
            change(scope);
        }
        self.judge(&mut scopes);
        self.changed.notify_one();
    }

    /// Updates the derived state. Returns when to update it again if nothing changes.
    fn judge(&self, scopes: &mut [Scope]) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None;
        for (index, scope) in scopes.iter_mut().enumerate() {
            for controller in 0..scope.cells.len() {
                let is_in_sync = scope.is_in_sync(&self.needs, controller);
                let was_in_sync = &mut scope.cells[controller].was_in_sync;
                if !*was_in_sync && is_in_sync {
                    *was_in_sync = true;
                    self.in_sync
                        .send_modify(|all| all.push((controller, index)));
                }
                let end = scope.judge(&self.needs, controller, now, self.grace);
                next = next.into_iter().chain(end).min();
            }
        }
        let cells = scopes.iter().flat_map(|scope| &scope.cells);
        let served = cells.clone().filter(|cell| cell.served).count();
        let ability = match served {
            0 => Eligibility::None,
            some if some < cells.count() => Eligibility::Partial,
            _ => Eligibility::Full,
        };
        self.ability
            .send_if_modified(|last| std::mem::replace(last, ability) != ability);
        next
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
        self.update(number, |scope| {
            let (namespace, cell) = (&scope.namespace, &mut scope.cells[controller]);
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
        });
        missing
    }
}

/// Handle of the watch of one resource type in one scope. The watch reports its state through it.
#[derive(Clone)]
pub struct Status {
    scopes: Arc<Scopes>,
    scope: usize,
    informer: usize,
}

impl Status {
    /// Returns the index of the scope.
    pub fn scope(&self) -> usize {
        self.scope
    }

    /// Returns the scope's namespace. `None`: all namespaces.
    pub fn namespace(&self) -> Option<String> {
        self.scopes.namespace(self.scope)
    }

    /// Returns how long a served cell may have a problem.
    pub fn grace(&self) -> Duration {
        self.scopes.grace
    }

    /// Records a message of the API server, and the resourceVersion that the watch has reached, if known. Does not update the
    /// derived state, because it is called for each event.
    pub fn hears(&self, version: Option<&str>) {
        let mut scopes = self.scopes.all.lock();
        let state = &mut scopes[self.scope].informers[self.informer];
        state.heard = Instant::now();
        if let Some(version) = version {
            version.clone_into(&mut state.version);
        }
    }

    /// Records that the cache contains a complete list.
    pub fn synced(&self) {
        self.set(|state| (state.synced, state.failure) = (true, None));
        let scopes = self.scopes.all.lock();
        for (access, refusals) in self
            .scopes
            .needs
            .controllers
            .iter()
            .zip(&self.scopes.refusals)
        {
            if access.watched.contains(&self.informer) && scopes[self.scope].is_listed(access) {
                refusals.checks[self.scope].called.notify_one();
            }
        }
    }

    /// Records that the watch works.
    pub fn works(&self) {
        self.set(|state| state.failure = None);
    }

    /// Records why the watch fails.
    pub fn fails(&self, reason: Reason, text: String) {
        self.set(|state| state.failure = Some(Problem { reason, text }));
    }

    /// Extends the grace period by the API server's `Retry-After`. Only the longest value of an outage counts. A server that
    /// always sends `Retry-After` therefore does not extend the period forever.
    pub fn waits(&self, asked: Duration) {
        self.scopes.update(self.scope, |scope| {
            for (access, cell) in self.scopes.needs.controllers.iter().zip(&mut scope.cells) {
                if access.watched.contains(&self.informer) {
                    cell.asked = cell.asked.max(asked);
                }
            }
        });
    }

    fn set(&self, change: impl FnOnce(&mut InformerState)) {
        self.scopes.update(self.scope, |scope| {
            change(&mut scope.informers[self.informer]);
        });
    }
}
