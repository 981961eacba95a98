//! Schedules reconciles, and runs the workers of each term.
//!
//! Every replica keeps its stores current. A queue and workers exist only during a term. Each term creates a new queue, and its
//! initial sync checks every object. State flows one way: a watch updates a store, the change enqueues a key, and a worker
//! reads the stores.

pub(crate) mod builder;
pub(crate) mod metrics;
pub(crate) mod queue;
mod resync;
#[cfg(test)]
mod tests;
pub(crate) mod work_queue;

use std::{
    borrow::Cow,
    collections::BTreeSet,
    convert::Infallible,
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures::{FutureExt as _, TryFutureExt as _};
use kube::Client;
use tokio::{
    sync::watch as channel,
    task::JoinSet,
    time::{Instant, timeout},
};
use tracing::{Instrument as _, Span, debug, field::Empty, info, info_span, warn};

use crate::{
    api::{
        failure::{Failure, Retry},
        key::Key,
        kind::Kind,
        object::{Cached as _, Primary as _},
        panic::{Panicked, catch},
    },
    cache::{
        readiness::{
            Scopes,
            namespace::{NamespaceName, Reason},
        },
        store::{Freshness, Snapshot},
    },
    client::fence::term::Term,
    client::{context::ClientContext, fence::eligibility::Eligibility},
    config::{descriptors, environment::Host, settings::Config},
    controller::{
        builder::{Builder, Handler, Informer, Informers},
        metrics::{Count, Instruments},
        queue::{Outcome, Queue, WorkItem, lane::Lane},
        work_queue::WorkQueue,
    },
    reconcile::{
        error::ApiError,
        reconciler::{Action, Attempt, Context, Detached, Failed, Reconciler},
        writer::Writer,
    },
    telemetry::{
        events::{Recorder, event::EventSource},
        health::{Health, ago},
        log::log_once::LogLimiter,
        metrics::Metrics,
        state, trace,
    },
};

/// Longest time without progress before a reconcile counts as stuck. Each request takes at most 36 s. The number of requests is
/// not limited.
const STALL_TIMEOUT: Duration = Duration::from_mins(2);

/// Shortest time for pending events to be written on shutdown, even if the drain used up the shutdown timeout.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// Trigger of a reconcile that follows [`Action::StatusPending`], for traces.
const STATUS: &str = "status";

/// Number of consecutive conflicts of one object that are not logged. They are common while a watch lags behind.
const QUIET_CONFLICTS: u32 = 10;

/// A controller before it runs.
pub struct Controller<R: Reconciler> {
    work: Arc<Work<R>>,
    scopes: Arc<Scopes>,
    /// Ability that the election sees. Between terms, it equals the ability of `scopes`. During a term, it only becomes
    /// `Nothing`, after the drain.
    ability: channel::Sender<Eligibility>,
    /// Agenda of the current term, where changes enqueue objects.
    work_queue: channel::Sender<Option<WorkQueue>>,
    counters: Vec<Count>,
    tasks: Tasks,
    instruments: Instruments,
    config: Config,
    /// Duration of the drain of the last term.
    drained_in: Duration,
}

/// Shared state of the workers.
pub(crate) struct Work<R: Reconciler> {
    pub reconciler: R,
    pub primary: Arc<Writer<R::Primary>>,
    pub informers: Informers<R::Primary>,
    pub recorder: Recorder,
    pub scopes: Arc<Scopes>,
    pub log: Arc<LogLimiter>,
    pub host: Host,
}

impl<R: Reconciler> Work<R> {
    pub async fn reconcile(&self, key: &Key, attempt: &dyn Attempt) -> Result<Action, R::Error> {
        let objects = self.primary.store();
        let Some(seen) = objects.get(key) else {
            trace::decided(format!("nothing: the {} is gone", R::Primary::KIND.kind));
            return Ok(Action::Done);
        };
        let span = Span::current();
        span.record("object.uid", seen.view.uid());
        span.record("object.generation", seen.view.generation());
        if let Some(by) = seen.view.trace().filter(|_| !seen.view.is_observed()) {
            trace::because_of(by);
        }
        let cx = self.context(key, &seen, attempt);
        self.check(&cx, &seen).await.inspect_err(|error| {
            let kind = R::Primary::KIND.kind;
            trace::decided(match error {
                ApiError::Conflict => format!("nothing: the watch of the {kind} is behind"),
                _ => format!("nothing: the {kind} cannot be looked up"),
            });
        })?;
        self.reconciler.reconcile(&cx, &seen).await
    }

    /// Verifies the object with a live read if a response cast doubt on the cached version. So no write is based on a deleted
    /// object or an outdated spec.
    async fn check(
        &self,
        cx: &Context<'_, R::Primary>,
        seen: &Snapshot<R::Primary>,
    ) -> Result<(), ApiError> {
        let (key, objects) = (cx.key(), self.primary.store());
        match objects.standing(key) {
            Freshness::Fresh => Ok(()),
            Freshness::Conflicted | Freshness::Stale => self.primary.verify_current(cx, seen).await,
        }
    }

    pub fn context<'a>(
        &'a self,
        key: &'a Key,
        seen: &'a Snapshot<R::Primary>,
        attempt: &'a dyn Attempt,
    ) -> Context<'a, R::Primary> {
        Context {
            key,
            seen,
            host: &self.host,
            recorder: &self.recorder,
            log: &self.log,
            attempt,
            inputs: self.informers.inputs(key, &seen.view),
            is_dry_run: false,
            has_changes: AtomicBool::new(false),
        }
    }

    /// Whether a reconcile would have nothing to do. A positive result is cached until the object or a related object changes,
    /// or missing permissions in its scope are restored.
    pub fn is_up_to_date(&self, key: &Key) -> bool {
        let method = "Reconciler::is_up_to_date";
        catch(&R::Primary::KIND, method, || self.has_nothing_to_do(key)).unwrap_or_else(
            |panicked| {
                // The worker that reconciles it handles the panic.
                let failed = Failed::from(panicked);
                if self.log.should_log(&failed) {
                    warn!(object = %key, "{failed}; reconciling it");
                }
                false
            },
        )
    }

    fn has_nothing_to_do(&self, key: &Key) -> bool {
        let objects = self.primary.store();
        let basis = |view: &R::Primary| {
            self.informers.basis(key, view) ^ self.scopes.rights_regained(key) << 1
        };
        if let Some((view, noted)) = objects.input_fingerprint(key)
            && noted == basis(&view)
        {
            return true;
        }
        let Some(seen) = objects.get(key) else {
            return true;
        };
        if objects.standing(key) != Freshness::Fresh {
            // The retry after the conflict verifies the object, and this result does not shorten its delay. If the term has
            // changed since, that retry is lost, and the add that follows replaces it.
            return false;
        }
        let basis = basis(&seen.view);
        // The result is not cached while a rejected status is suppressed: when the suppression expires, the status has to be
        // written.
        let is_status_suppressed = self.primary.is_status_suppressed(key, &seen);
        let is_up_to_date = {
            let cx = Context {
                is_dry_run: true,
                ..self.context(key, &seen, &Detached { leads: true })
            };
            self.reconciler.is_up_to_date(&cx, &seen)
        };
        if is_up_to_date && !is_status_suppressed {
            objects.note_up_to_date(key, seen.version, basis);
        }
        is_up_to_date
    }
}

/// Named tasks that live as long as the controller. If one ends, the controller ends.
type Tasks = JoinSet<Cow<'static, str>>;

/// Unexpected end of a task of [`run`](crate::run).
#[derive(Debug, thiserror::Error)]
#[error("{0} exited unexpectedly; see the log above")]
pub struct TaskExited(pub Cow<'static, str>);

/// Reason for the end of the work in a term.
enum TermEnd {
    Lost,
    /// No scope can be served. The work is drained, and the term continues.
    Unable,
    Stopped,
    TaskExited(TaskExited),
}

impl<R: Reconciler> Controller<R> {
    /// Creates a controller and starts its watches. Call it within a Tokio runtime.
    ///
    /// - `client` must reject writes after the end of the term (see [`fence`](crate::client::fence)).
    /// - `instance` is the replica's name in events.
    /// - `health` receives the checks of the controller.
    /// - `build` declares the watched resource types.
    #[must_use]
    pub fn new(
        host: &Host,
        client: &Client,
        config: &Config,
        instance: String,
        metrics: &Metrics,
        health: &mut Health,
        build: impl FnOnce(&mut Builder<R::Primary>) -> R,
    ) -> Self {
        let app = metrics.app();
        let namespaces = scopes(&config.namespaces);
        let shared = Arc::new(ClientContext {
            app,
            host: host.clone(),
            client: client.clone(),
        });
        let mut builder = Builder::new(Arc::clone(&shared), namespaces.clone(), metrics);
        let reconciler = build(&mut builder);
        let refusals = Arc::clone(&builder.refusals);
        let (primary, informers, needs) = builder.finish();
        let scopes = Scopes::new(needs, refusals, config.leader_election.lease_duration);
        let work_queue = channel::Sender::<Option<WorkQueue>>::new(None);
        let current = work_queue.subscribe();
        let busy = move || {
            let work_queue = current.borrow();
            work_queue
                .as_ref()
                .is_some_and(|work_queue| work_queue.queue.is_busy(Lane::Background))
        };
        let about = EventSource {
            app,
            reporter: app.reporter,
            instance,
            kind: R::Primary::KIND,
            host: host.clone(),
        };
        let (recorder, write_events) = Recorder::new(client.clone(), about, metrics, busy);
        let counters: Vec<_> = informers.iter().map(Informer::counter).collect();
        let kinds = informers.iter().map(|informer| informer.kind().kind);
        metrics::observe_stores(metrics, kinds.zip(counters.clone()).collect());
        let mut tasks = Tasks::new();
        tasks.spawn(write_events.map(|()| "the event writer".into()));
        scopes.observe(metrics);
        let supervise = Arc::clone(&scopes).supervise();
        tasks.spawn(supervise.map(|()| "the supervision of namespaces".into()));
        let kinds = informers.iter().count();
        let fit = descriptors::fit(host.descriptors, kinds);
        if let Some(shortage) = descriptors::shortage(host.descriptors, &namespaces, kinds) {
            warn!("{shortage}");
        }
        for (scope, namespace) in namespaces.into_iter().enumerate() {
            if scope >= fit {
                let status = scopes.informer(scope, 0);
                let place = NamespaceName(namespace.as_deref());
                let text = format!("too few file descriptors to watch {place}");
                status.fails(Reason::Failing, text);
                continue;
            }
            let check = Arc::clone(&scopes).check_rights(scope, client.clone());
            tasks.spawn(check.map(|()| "the permission check".into()));
            let place = namespace.as_ref().map(|name| format!("/{name}"));
            let place = place.unwrap_or_default();
            for (number, informer) in informers.iter().enumerate() {
                let handler = Handler {
                    work_queue: work_queue.subscribe(),
                    primaries: Arc::clone(primary.store()),
                    scopes: Arc::clone(&scopes),
                };
                let status = scopes.informer(scope, number);
                let heartbeat =
                    health.heartbeat(format!("watch-{}{place}", informer.kind().plural));
                let watch = informer.watch(&shared, status, metrics, heartbeat, handler);
                let name = format!("the watch of {}", informer.kind().plural);
                tasks.spawn(watch.map(|()| name.into()));
            }
        }
        let current = work_queue.subscribe();
        let clock = host.clone();
        health.live("workers", move || {
            stuck(&current.borrow().as_ref()?.queue, &clock)
        });
        let (ready, noted) = (Arc::clone(&scopes), Arc::clone(&scopes));
        health.ready_with_note(
            "informer-sync",
            move || ready.failure(),
            move || noted.note(),
        );
        let name = app.controller;
        Self {
            work: Arc::new(Work {
                reconciler,
                primary,
                informers,
                recorder,
                scopes: Arc::clone(&scopes),
                log: Arc::default(),
                host: host.clone(),
            }),
            scopes,
            ability: channel::Sender::new(Eligibility::None),
            work_queue,
            counters,
            tasks,
            instruments: Instruments::new(metrics, name, config.workers),
            config: config.clone(),
            drained_in: Duration::ZERO,
        }
    }

    /// Returns the ability of this replica to serve, for the election. During a term, it changes only to `Eligibility::None`.
    /// The drain is then over, and the term may end.
    pub fn ability(&self) -> channel::Receiver<Eligibility> {
        self.ability.subscribe()
    }

    /// Returns a function that reads the state of caches and queue.
    pub(crate) fn state(
        &self,
    ) -> impl Fn() -> (Vec<state::Cache>, Option<state::Queue>) + Send + Sync + use<R> {
        let (scopes, counters) = (Arc::clone(&self.scopes), self.counters.clone());
        let work_queue = self.work_queue.subscribe();
        move || {
            let objects: Vec<_> = counters.iter().map(|count| count()).collect();
            let work_queue = work_queue.borrow().clone();
            (
                scopes.caches(&objects),
                work_queue.map(|work_queue| work_queue.state()),
            )
        }
    }

    /// Works during each term until `stop` resolves. Then it lets running reconciles finish, for at most the shutdown timeout.
    ///
    /// # Errors
    ///
    /// [`TaskExited`] if a task ended unexpectedly.
    pub async fn run(
        &mut self,
        mut term: channel::Receiver<Option<Term>>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), TaskExited> {
        let mut stop = std::pin::pin!(stop.fuse());
        let mut able = self.scopes.ability();
        loop {
            self.drained_in = Duration::ZERO;
            let id = tokio::select! {
                biased;
                () = &mut stop => return Ok(()),
                died = died(&mut self.tasks) => return Err(died),
                never = tell(&mut able, &self.ability) => match never {},
                id = gained(&mut term) => id,
            };
            match self.lead(id, &mut term, &mut stop).await {
                TermEnd::Lost => info!("term ended: standing by with warm caches"),
                TermEnd::Unable => {
                    warn!("no namespace can be served: giving up leadership");
                    self.ability.send_replace(Eligibility::None);
                    tokio::select! {
                        biased;
                        () = &mut stop => return Ok(()),
                        died = died(&mut self.tasks) => return Err(died),
                        () = lost(&mut term, id) => {}
                    }
                }
                TermEnd::Stopped => return Ok(()),
                TermEnd::TaskExited(died) => return Err(died),
            }
        }
    }

    /// Waits until pending events are written, for half of the remaining shutdown timeout. The other half is for the export of
    /// traces.
    pub async fn finish(mut self) {
        // Drops the last sender of events. The writer of events then ends after the last one; no other task ends.
        drop(self.work);
        let left = self.config.shutdown_timeout.saturating_sub(self.drained_in);
        let _ = timeout(LAST_EVENTS.max(left / 2), self.tasks.join_next()).await;
    }

    /// Runs one term: workers with their own queue, from the initial sync to the drain. It starts with the first scope that is
    /// in sync. Other scopes join later.
    async fn lead(
        &mut self,
        id: u64,
        term: &mut channel::Receiver<Option<Term>>,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> TermEnd {
        let mut in_sync = self.scopes.in_sync();
        tokio::select! {
            biased;
            () = &mut *stop => return TermEnd::Stopped,
            died = died(&mut self.tasks) => return TermEnd::TaskExited(died),
            () = lost(term, id) => return TermEnd::Lost,
            _ = in_sync.wait_for(|scopes| !scopes.is_empty()) => {} // With partial caches, existing objects would look missing.
        }
        let queue = Queue::new(&self.config.backoff, self.config.workers, Key::namespace);
        self.instruments.term_begins(&queue);
        let work_queue = WorkQueue::new(queue.clone());
        self.work_queue.send_replace(Some(work_queue.clone()));
        self.scopes.check_all();
        info!(
            objects = self.work.primary.store().len(),
            workers = self.config.workers,
            resync = ?self.config.resync,
            "started workers"
        );
        let worker = Worker {
            kind: R::Primary::KIND,
            work_queue: work_queue.clone(),
            instruments: self.instruments.clone(),
            log: Arc::clone(&self.work.log),
        };
        let mut work = JoinSet::new();
        // Half of the workers are for slow namespaces.
        for _ in 0..self.config.workers * 2 {
            let work_on = Arc::clone(&self.work);
            let attempt = TermAttempt {
                kind: R::Primary::KIND.kind,
                work_queue: work_queue.clone(),
                term: term.clone(),
                id,
            };
            work.spawn(worker.clone().work(move |key| {
                let (work_on, attempt) = (Arc::clone(&work_on), attempt.clone());
                async move { work_on.reconcile(&key, &attempt).await }
            }));
        }
        work.spawn({
            let (queue, work) = (queue.clone(), Arc::clone(&self.work));
            let period = self.config.resync;
            async move {
                let (scopes, objects) = (&work.scopes, &**work.primary.store());
                let is_up_to_date = |key: &Key| work.is_up_to_date(key);
                let is_left_alone = |key: &Key| !scopes.is_in_sync(key) || is_up_to_date(key);
                let regained = scopes.all_rights_regained();
                let changes = || (work.informers.changes(), regained.borrow().clone());
                let covers = |scope, key: &Key| scopes.covers(scope, key);
                let first = async {
                    for begun in 0.. {
                        let scope = in_sync.wait_for(|scopes| scopes.len() > begun).await;
                        let Ok(scope) = scope.map(|scopes| scopes[begun]) else {
                            return;
                        };
                        if begun > 0 {
                            let namespace = scopes.namespace(scope);
                            info!(namespace, "namespace in sync: reconciling its objects");
                        }
                        let is_in_scope = |key: &Key| scopes.covers(scope, key);
                        resync::first(&work_queue, objects, is_in_scope, is_up_to_date).await;
                    }
                };
                tokio::join!(
                    first,
                    resync::resync(&queue, objects, is_left_alone, changes, period),
                    resync::regained(&queue, objects, covers, is_left_alone, regained.clone())
                );
            }
        });
        work.spawn(Arc::clone(&self.work.log).report_suppressed());
        let mut able = self.scopes.ability();
        let elects = self.config.leader_election.enabled;
        let ended = tokio::select! {
            biased;
            () = stop => TermEnd::Stopped,
            died = died(&mut self.tasks) => TermEnd::TaskExited(died),
            Some(_) = work.join_next() => TermEnd::TaskExited(TaskExited("a worker".into())),
            () = lost(term, id) => TermEnd::Lost,
            _ = able.wait_for(|able| *able == Eligibility::None), if elects => TermEnd::Unable,
        };
        self.work_queue.send_replace(None);
        queue.shut_down();
        let draining = Instant::now();
        if timeout(self.config.shutdown_timeout, queue.drained())
            .await
            .is_err()
        {
            warn!(
                running = queue.stats().processing,
                "shutdown timeout exceeded: aborting running reconciles"
            );
        }
        work.shutdown().await;
        self.drained_in = draining.elapsed();
        ended
    }
}

/// Returns a message if a reconcile has made no progress for longer than [`STALL_TIMEOUT`].
fn stuck(queue: &Queue<Key>, host: &Host) -> Option<String> {
    let longest = queue.stats().longest_standstill;
    (longest > STALL_TIMEOUT).then(|| {
        format!(
            "a reconcile has made no progress since {}",
            ago(host, longest)
        )
    })
}

/// Returns the scopes that are watched independently: each namespace, or `None` for the cluster.
pub(crate) fn scopes(namespaces: &[String]) -> Vec<Option<String>> {
    let unique: BTreeSet<_> = namespaces.iter().cloned().map(Some).collect();
    if unique.is_empty() {
        vec![None]
    } else {
        unique.into_iter().collect()
    }
}

/// A worker and its shared state.
#[derive(Clone)]
struct Worker {
    kind: Kind,
    work_queue: WorkQueue,
    instruments: Instruments,
    log: Arc<LogLimiter>,
}

impl Worker {
    /// Reconciles keys until the queue is shut down.
    async fn work<E: Failure, F: Future<Output = Result<Action, E>>>(
        self,
        reconcile: impl Fn(Key) -> F,
    ) {
        let WorkQueue {
            queue, triggers, ..
        } = &self.work_queue;
        while let Some(item) = queue.get().await {
            let noted = triggers.take(item.key(), item.lane());
            let span = span(&item, noted);
            let begun = Instant::now();
            let attempt = reconcile(item.key().clone());
            let attempt = attempt.map_err(|error| Failed::of(&self.kind, &error));
            let attempt = AssertUnwindSafe(attempt.instrument(span.clone()));
            // A panic counts as a failure of this object. The error is now a `Failed`, so no code of the reconciler runs
            // outside of `catch_unwind`.
            let result = attempt.catch_unwind().await.unwrap_or_else(|_| {
                Err(Failed::from(Panicked {
                    kind: self.kind.kind,
                    method: "Reconciler::reconcile",
                }))
            });
            span.in_scope(|| {
                self.instruments
                    .ended(&result, item.waited(), begun.elapsed());
                self.complete(item, result, noted == Some(STATUS));
            });
        }
    }

    /// Hands the result of an attempt to the queue. Logs each retry with its object, reason and delay.
    fn complete(
        &self,
        item: WorkItem<Key>,
        result: Result<Action, Failed>,
        was_status_pending: bool,
    ) {
        let object = item.key().clone();
        let failures = &self.work_queue.failures;
        match &result {
            Ok(Action::StatusPending) => {}
            Err(error) if error.retry() != Retry::OnChange => failures.note(&object, error),
            _ => failures.forget(&object),
        }
        let error = match result {
            Ok(action) => {
                item.complete(match action {
                    Action::Done => Outcome::Done,
                    Action::After(delay) => Outcome::After(delay),
                    Action::StatusPending => {
                        (self.work_queue.triggers).note(&object, Lane::Background, STATUS);
                        Outcome::StatusPending {
                            again: was_status_pending,
                        }
                    }
                });
                return;
            }
            Err(error) => error,
        };
        trace::failed(&Span::current(), error.name(), &error);
        let retry = error.retry();
        let attempt = 1 + if retry.is_quiet() {
            item.requeues()
        } else {
            item.failures()
        };
        let delay = item.complete(Outcome::Failed(retry));
        // A failure that is not retried is already logged with its report. A watch that merely lags would have caught up within
        // these attempts.
        let is_stuck = retry == Retry::Conflict && attempt > QUIET_CONFLICTS;
        if retry == Retry::OnChange {
        } else if (is_stuck || !retry.is_quiet()) && self.log.should_log(&error) {
            warn!(%object, reason = error.reason(), attempt, ?delay, "{error}; retrying");
        } else {
            debug!(%object, attempt, ?delay, "{error}; retrying");
        }
    }
}

/// Returns the root span of a reconcile's trace. Its kind is internal, because a change is not a message.
fn span(item: &WorkItem<Key>, noted: Option<&'static str>) -> Span {
    let (trigger, changed) = match item.lane() {
        Lane::Event => ("change", noted),
        Lane::Retry => ("retry", None),
        Lane::Background => (noted.unwrap_or("resync"), None),
    };
    info_span!(
        parent: None,
        "reconcile",
        otel.status_description = Empty,
        error.type = Empty,
        // Not `k8s.namespace.name`: that is the namespace of this process.
        object.namespace = item.key().namespace(),
        object.name = item.key().name(),
        object.uid = Empty,
        object.generation = Empty,
        reconcile.trigger = trigger,
        // Kind of the last changed object.
        reconcile.changed = changed,
        reconcile.queue_seconds = item.waited().as_secs_f64(),
        reconcile.attempt = i64::from(item.failures()) + 1,
    )
}

/// Forwards `from` to `to` until cancelled.
async fn tell(
    from: &mut channel::Receiver<Eligibility>,
    to: &channel::Sender<Eligibility>,
) -> Infallible {
    loop {
        let ability = *from.borrow_and_update();
        to.send_if_modified(|last| std::mem::replace(last, ability) != ability);
        if from.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

async fn gained(term: &mut channel::Receiver<Option<Term>>) -> u64 {
    let gained = term.wait_for(Option::is_some).await;
    let id = gained.ok().and_then(|term| term.as_ref().map(Term::id));
    match id {
        Some(id) if term.has_changed().is_ok() => id,
        // The election task has ended. Its caller reports the reason and ends the process.
        _ => std::future::pending().await,
    }
}

async fn lost(term: &mut channel::Receiver<Option<Term>>, id: u64) {
    let other = |term: &Option<Term>| term.as_ref().is_none_or(|term| term.id() != id);
    // A closed channel means that the election has ended, and no task renews the term.
    term.wait_for(other).await.map(drop).unwrap_or_default();
}

/// A worker's attempt in the term `id`.
#[derive(Clone)]
struct TermAttempt {
    kind: &'static str,
    work_queue: WorkQueue,
    term: channel::Receiver<Option<Term>>,
    id: u64,
}

impl Attempt for TermAttempt {
    fn has_urgent_work(&self) -> bool {
        self.work_queue.queue.is_busy(Lane::Event)
    }

    fn leads(&self) -> bool {
        is_live(self.term.borrow().as_ref(), self.id)
    }

    fn heartbeat(&self, key: &Key) {
        self.work_queue.queue.heartbeat(key);
    }

    fn enqueue(&self, key: Key) {
        self.work_queue.changed(key, self.kind);
    }
}

/// Whether `term` is the term `id` and has not ended.
fn is_live(term: Option<&Term>, id: u64) -> bool {
    term.is_some_and(|term| term.id() == id && term.remaining().is_some())
}

async fn died(tasks: &mut Tasks) -> TaskExited {
    match tasks.join_next().await {
        Some(Ok(name)) => TaskExited(name),
        Some(Err(_)) => TaskExited("a task".into()),
        None => std::future::pending().await,
    }
}
