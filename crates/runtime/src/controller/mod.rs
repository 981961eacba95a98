//! Schedules reconciles, and runs the workers of each term.
//!
//! Every replica keeps its stores current. A queue and workers exist only during a term. Each term creates a new queue, and its
//! initial sync checks every object. State flows one way: a watch updates a store, the change enqueues a key, and a worker
//! reads the stores.

pub(crate) mod builder;
mod event_handler;
pub(crate) mod metrics;
pub(crate) mod object_reconciler;
mod object_state;
pub(crate) mod queue;
mod resync;
mod term;
#[cfg(test)]
mod tests;
pub(crate) mod work_queue;
mod worker;

use std::{borrow::Cow, collections::BTreeSet, convert::Infallible, sync::Arc, time::Duration};

use futures::FutureExt as _;
use kube::Client;
use tokio::{
    sync::watch as channel,
    task::JoinSet,
    time::{Instant, timeout},
};
use tracing::{info, warn};

use crate::{
    api::{key::Key, object::Cached as _},
    cache::readiness::{
        Scopes,
        namespace::{NamespaceName, Reason},
    },
    client::{
        context::ClientContext,
        fence::{eligibility::Eligibility, term::Term},
    },
    config::{descriptors, environment::Host, settings::Config},
    controller::{
        builder::{Builder, Informer},
        event_handler::EventHandler,
        metrics::{Count, Instruments},
        object_reconciler::ObjectReconciler,
        queue::{Queue, lane::Lane},
        term::{TermAttempt, check_objects, gained, lost},
        work_queue::WorkQueue,
        worker::Worker,
    },
    reconcile::reconciler::Reconciler,
    telemetry::{
        events::{Recorder, event::EventSource},
        health::{Health, ago},
        metrics::Metrics,
        object_state::ObjectWork,
        state,
    },
};

/// Longest time without progress before a reconcile counts as stuck. Each request takes at most 36 s. The number of requests is
/// not limited.
const STALL_TIMEOUT: Duration = Duration::from_mins(2);

/// Minimum time limit for the pending events on shutdown. It applies even if the drain has used up the shutdown timeout.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// A controller before it runs.
pub struct Controller<R: Reconciler> {
    work: Arc<ObjectReconciler<R>>,
    scopes: Arc<Scopes>,
    /// Eligibility that the election sees. Between terms, it equals that of `scopes`. During a term, it changes only to
    /// [`Eligibility::None`], after the drain.
    ability: channel::Sender<Eligibility>,
    /// Work queue of the current term, where changes enqueue objects. `None` between terms.
    work_queue: channel::Sender<Option<WorkQueue>>,
    counters: Vec<Count>,
    tasks: Tasks,
    instruments: Instruments,
    config: Config,
    /// Duration of the drain of the last term.
    drained_in: Duration,
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
                let handler = EventHandler {
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
            work: Arc::new(ObjectReconciler {
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

    /// Returns the eligibility of this replica, for the election. During a term, it changes only to `Eligibility::None`. At that
    /// time the queue is drained, so the term may end.
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

    /// Returns a function that reads the state of one object. It does not keep the controller's event recorder alive, because
    /// [`finish`](Self::finish) waits for the last sender of events.
    pub(crate) fn object_state(
        &self,
    ) -> impl Fn(&Key) -> Result<ObjectWork, String> + Send + Sync + use<R> {
        let (work, work_queue) = (Arc::downgrade(&self.work), self.work_queue.subscribe());
        move |key| {
            let work = work.upgrade().ok_or("the controller has stopped")?;
            let work_queue = work_queue.borrow().clone();
            work.object_state(key, work_queue.as_ref())
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
        // Drops the last sender of events, so that the event writer ends after the last event. No other task ends.
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
        let attempt = TermAttempt {
            kind: R::Primary::KIND.kind,
            work_queue,
            term: term.clone(),
            id,
        };
        let mut work = JoinSet::new();
        // As many workers again for slow namespaces.
        for _ in 0..self.config.workers * 2 {
            let worker = Worker {
                kind: R::Primary::KIND,
                work_queue: attempt.work_queue.clone(),
                instruments: self.instruments.clone(),
                log: Arc::clone(&self.work.log),
            };
            let (objects, attempt) = (Arc::clone(&self.work), attempt.clone());
            work.spawn(worker.work(move |key| {
                let (objects, attempt) = (Arc::clone(&objects), attempt.clone());
                async move { objects.reconcile(&key, &attempt).await }
            }));
        }
        work.spawn(check_objects(
            Arc::clone(&self.work),
            attempt.work_queue,
            in_sync,
            self.config.resync,
        ));
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

async fn died(tasks: &mut Tasks) -> TaskExited {
    match tasks.join_next().await {
        Some(Ok(name)) => TaskExited(name),
        Some(Err(_)) => TaskExited("a task".into()),
        None => std::future::pending().await,
    }
}
