//! What this replica can serve, and why not the rest: each scope, a namespace or all of them, for itself.
//!
//! A scope is in sync when all of its stores are, and it is known what may be written there: from then on its objects are
//! reconciled. It is served while its watches work, too, and no right is missing. One that was served is given up
//! when that has not been so for a grace period, so that a watch which comes back in time costs nothing.
//!
//! What may be written is asked (`SelfSubjectAccessReview`) after each initial sync, at the beginning of a term and after
//! something was refused, and again and again while a right is missing: that a right was revoked ends no watch.

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
    access_review::{Lacking, review},
    namespace::{InformerState, Needs, Problem, Reason, Rights, Scope},
    refusals::{Check, Refusals},
};
use crate::{
    api::key::Key,
    client::fence::ability::Ability,
    telemetry::{
        metrics::{Metrics, table},
        state,
    },
};

/// Between two checks of a scope's rights: growing from the first to the second while there is cause for them.
const CHECK_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// All scopes of a replica.
pub struct Scopes {
    needs: Needs,
    grace: Duration,
    all: Mutex<Vec<Scope>>,
    /// A deadline may have changed.
    changed: Notify,
    /// In the order in which they came to be in sync; none ever leaves.
    in_sync: watch::Sender<Vec<usize>>,
    ability: watch::Sender<Ability>,
    refusals: Arc<Refusals>,
    /// How often missing rights have come back, in each scope.
    regained: watch::Sender<Vec<u64>>,
}

impl Scopes {
    /// Scopes of which nothing is known yet. What was served is given up after `grace`.
    pub fn new(needs: Needs, refusals: Arc<Refusals>, grace: Duration) -> Arc<Self> {
        let informers = needs.watched.len();
        let scope = |check: &Check| Scope::new(check.namespace.clone(), informers);
        let all: Vec<_> = refusals.checks.iter().map(scope).collect();
        Arc::new(Self {
            needs,
            grace,
            changed: Notify::new(),
            in_sync: watch::Sender::new(Vec::new()),
            ability: watch::Sender::new(Ability::Nothing),
            refusals,
            regained: watch::Sender::new(vec![0; all.len()]),
            all: Mutex::new(all),
        })
    }

    /// What the watch of one kind in one scope reports through.
    pub fn informer(self: &Arc<Self>, scope: usize, informer: usize) -> Status {
        Status {
            scopes: Arc::clone(self),
            scope,
            informer,
        }
    }

    /// The namespace of a scope; `None`: all of them.
    pub fn namespace(&self, scope: usize) -> Option<String> {
        let scopes = self.all.lock();
        scopes.get(scope).and_then(|scope| scope.namespace.clone())
    }

    /// How much can be served.
    pub fn ability(&self) -> watch::Receiver<Ability> {
        self.ability.subscribe()
    }

    /// The scopes in sync, in the order in which they came to be.
    pub fn in_sync(&self) -> watch::Receiver<Vec<usize>> {
        self.in_sync.subscribe()
    }

    /// Whether the scope of this key is in sync.
    pub fn is_in_sync(&self, key: &Key) -> bool {
        let scopes = self.all.lock();
        scopes
            .iter()
            .any(|scope| scope.was_in_sync && scope.covers(key))
    }

    /// Whether a key is of a scope.
    pub fn covers(&self, scope: usize, key: &Key) -> bool {
        let scopes = self.all.lock();
        scopes.get(scope).is_some_and(|scope| scope.covers(key))
    }

    /// How often the rights that were missing in the scope of this key have been found to be there again: what was refused
    /// before may not be any more.
    pub fn rights_regained(&self, key: &Key) -> u64 {
        let scopes = self.all.lock();
        let regained = self.regained.borrow();
        let scopes = scopes.iter().zip(&*regained);
        let scopes = scopes.filter(|(scope, _)| scope.covers(key));
        scopes.map(|(_, regained)| regained).sum()
    }

    /// The same, of each scope.
    pub fn all_rights_regained(&self) -> watch::Receiver<Vec<u64>> {
        self.regained.subscribe()
    }

    /// The rights of all scopes in sync are checked, unless they have just been.
    pub fn check_all(&self) {
        let scopes = self.all.lock();
        for (scope, check) in scopes.iter().zip(&self.refusals.checks) {
            let old = scope.checked.is_some_and(|at| at.elapsed() > self.grace);
            if scope.was_in_sync && old {
                check.called.notify_one();
            }
        }
    }

    /// Gives scopes up when their time is over; for ever.
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

    /// Checks the rights of a scope whenever there is cause to; for ever.
    pub async fn check_rights(self: Arc<Self>, scope: usize, client: Client) {
        let namespace = self.namespace(scope);
        let check = &self.refusals.checks[scope];
        let (mut pause, mut again) = (CHECK_PAUSES.0, false);
        // By a review, and by a refusal. Each has its own: a right that is never reviewed may be missing for good.
        let (mut seen, mut unseen) = (Lacking::default(), Lacking::default());
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
                    pause = CHECK_PAUSES.0;
                }
            }
            if check.lacked.swap(false, Relaxed) {
                unseen.found();
            }
            let rights = review(&client, &self.needs.rights, namespace.as_deref()).await;
            if matches!(rights, Some(Rights::Missing(_))) {
                seen.found();
            }
            let is_due = seen.is_due() || unseen.is_due();
            let is_back = rights == Some(Rights::Sufficient) && is_due;
            let missing = self.learn(scope, rights, is_back);
            if is_back {
                seen.told();
                unseen.told();
            }
            // Refused writes within the pause are one cause for the next check, not many.
            sleep(pause).await;
            pause = (pause * 2).min(CHECK_PAUSES.1);
            again = missing || seen.is_due() || unseen.is_due() || self.is_called(scope);
        }
    }

    /// Why this replica cannot be counted on, if it cannot: it serves nothing, or an initial sync is still going on.
    pub fn failure(&self) -> Option<String> {
        let scopes = self.all.lock();
        let served = scopes.iter().any(|scope| scope.served);
        let syncing = scopes.iter().any(|scope| {
            !scope.was_served
                && scope
                    .problem(&self.needs)
                    .is_some_and(|p| p.reason == Reason::Syncing)
        });
        (!served || syncing).then(|| self.not_served(&scopes))
    }

    /// What is not served though this replica can be counted on.
    pub fn note(&self) -> Option<String> {
        let not_served = self.not_served(&self.all.lock());
        (!not_served.is_empty()).then(|| format!("not served: {not_served}"))
    }

    /// How the watches are of which these are the stores: `objects` are in each, by kind and scope.
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
                    objects: objects.get(number).copied().unwrap_or_default(),
                    resource_version: informer.version.clone(),
                    in_sync: informer.synced,
                    age_seconds: state::seconds(informer.heard.elapsed()),
                    failure: informer.failure.as_ref().map(|it| it.text.clone()),
                })
        });
        caches.collect()
    }

    /// For each scope whether it is served, and why not; and how old its caches are.
    pub fn observe(self: &Arc<Self>, metrics: &Metrics) {
        let this = Arc::clone(self);
        metrics.observe(&table::SCOPE_SERVED, move |see| {
            for scope in this.all.lock().iter() {
                let problem = scope.problem(&this.needs).filter(|_| !scope.served);
                let reason = problem.map_or("", |problem| problem.reason.label());
                let labels = [
                    KeyValue::new("reason", reason),
                    KeyValue::new("scope", scope.label()),
                ];
                see(f64::from(u8::from(scope.served)), &labels);
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

    fn not_served(&self, scopes: &[Scope]) -> String {
        let problems = scopes.iter().filter(|scope| !scope.served);
        let texts = problems.filter_map(|scope| Some(scope.problem(&self.needs)?.text));
        texts.collect::<Vec<_>>().join("; ")
    }

    fn update(&self, scope: usize, change: impl FnOnce(&mut Scope)) {
        let mut scopes = self.all.lock();
        if let Some(scope) = scopes.get_mut(scope) {
            change(scope);
        }
        self.judge(&mut scopes);
        self.changed.notify_one();
    }

    /// Draws the consequences; says when they are to be drawn again if nothing changes.
    fn judge(&self, scopes: &mut [Scope]) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None;
        for (index, scope) in scopes.iter_mut().enumerate() {
            if !scope.was_in_sync && scope.is_in_sync() {
                scope.was_in_sync = true;
                self.in_sync.send_modify(|all| all.push(index));
            }
            next = next
                .into_iter()
                .chain(scope.judge(&self.needs, now, self.grace))
                .min();
        }
        let served = scopes.iter().filter(|scope| scope.served).count();
        let ability = match served {
            0 => Ability::Nothing,
            some if some < scopes.len() => Ability::Part,
            _ => Ability::All,
        };
        self.ability
            .send_if_modified(|last| std::mem::replace(last, ability) != ability);
        next
    }

    /// Takes in what a check said, `None` if there was no answer, and whether what was refused is to be tried again; true if a right
    /// is missing.
    fn learn(&self, number: usize, answer: Option<Rights>, is_back: bool) -> bool {
        let mut missing = false;
        self.update(number, |scope| {
            scope.checked = Some(Instant::now());
            let rights = match answer {
                // Nothing speaks against it: the first write will show.
                None if scope.rights == Rights::Unknown => Rights::Sufficient,
                None => scope.rights.clone(),
                Some(rights) => rights,
            };
            missing = matches!(rights, Rights::Missing(_));
            match &rights {
                Rights::Missing(Problem { text, .. }) => {
                    if let Some(lasting) = scope.lacking.is_due(text) {
                        warn!(namespace = scope.namespace, "{text}; trying again{lasting}");
                    }
                }
                _ if is_back => {
                    scope.lacking.clear();
                    self.regained.send_modify(|all| all[number] += 1);
                    info!(
                        namespace = scope.namespace,
                        "has the rights that were missing, or may have: trying again what was refused"
                    );
                }
                _ => scope.lacking.clear(),
            }
            scope.rights = rights;
        });
        missing
    }

    /// Whether a check has been called for; it is not, then.
    fn is_called(&self, scope: usize) -> bool {
        let called = self.refusals.checks[scope].called.notified();
        called.now_or_never().is_some()
    }
}

/// What the watch of one kind in one scope reports through.
pub struct Status {
    scopes: Arc<Scopes>,
    scope: usize,
    informer: usize,
}

impl Status {
    /// The scope's place in what the cache was made with.
    pub fn scope(&self) -> usize {
        self.scope
    }

    /// The scope's namespace; `None`: all of them.
    pub fn namespace(&self) -> Option<String> {
        self.scopes.namespace(self.scope)
    }

    /// For how long the scope is not given up, whatever the watch reports.
    pub fn grace(&self) -> Duration {
        self.scopes.grace
    }

    /// The API server has told something, and the watch has come to this resourceVersion, if it is known. Draws no consequences:
    /// this is said of each event.
    pub fn hears(&self, version: Option<&str>) {
        let mut scopes = self.scopes.all.lock();
        let state = &mut scopes[self.scope].informers[self.informer];
        state.heard = Instant::now();
        if let Some(version) = version {
            version.clone_into(&mut state.version);
        }
    }

    /// A list has been read to its end, and the cache has it.
    pub fn synced(&self) {
        self.set(|state| (state.synced, state.failure) = (true, None));
        let scopes = self.scopes.all.lock();
        if scopes[self.scope].informers.iter().all(|i| i.synced) {
            self.scopes.refusals.checks[self.scope].called.notify_one();
        }
    }

    /// The watch works.
    pub fn works(&self) {
        self.set(|state| state.failure = None);
    }

    /// The watch does not, for this.
    pub fn fails(&self, reason: Reason, text: String) {
        self.set(|state| state.failure = Some(Problem { reason, text }));
    }

    /// The API server asks that nothing be asked for so long: what it asks for is not held against the scope, once, however often
    /// and however many watches it asks. Who is put off for ever serves nothing.
    pub fn waits(&self, asked: Duration) {
        self.scopes.update(self.scope, |scope| {
            scope.asked = scope.asked.max(asked);
        });
    }

    fn set(&self, change: impl FnOnce(&mut InformerState)) {
        self.scopes.update(self.scope, |scope| {
            change(&mut scope.informers[self.informer]);
        });
    }
}
