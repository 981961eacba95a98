//! Schedules reconciles, and runs the workers of each term.
//!
//! Every replica keeps its stores current. A queue and workers exist only during a term. Each term creates a new queue, and its
//! initial sync checks every object. State flows one way: a watch updates a store, the change enqueues a key, and a worker
//! reads the stores.

pub(crate) mod builder;
mod control;
pub(crate) mod dry_run;
mod event_handler;
pub(crate) mod informers;
pub(crate) mod metrics;
pub(crate) mod object_reconciler;
mod object_state;
pub(crate) mod preview;
pub(crate) mod queue;
mod resync;
pub(crate) mod single;
mod term;
#[cfg(test)]
mod tests;
pub(crate) mod trigger;
pub(crate) mod work_queue;
mod worker;

use std::{
    borrow::Cow, collections::BTreeSet, convert::Infallible, panic::AssertUnwindSafe, sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, future::join_all};
use kube::Client;
use tokio::{
    sync::watch as channel,
    task::{AbortHandle, JoinSet},
    time::{Instant, timeout},
};
use tracing::{error, info, warn};

use crate::{
    api::key::Key,
    cache::readiness::{
        Scopes,
        namespace::{NamespaceName, Reason},
    },
    client::fence::{eligibility::Eligibility, term::Term},
    config::{descriptors, environment::Host, settings::Config},
    controller::{
        builder::{Builder, Own},
        metrics::Count,
        queue::{Queue, lane::Lane},
        single::{Common, Controlled, NamedQueue},
        term::{gained, lost},
    },
    telemetry::{
        events::{Recorder, event::EventSource},
        health::{Health, ago},
        metrics::Metrics,
        object_state::{ObjectName, ObjectWork},
        state,
    },
};

/// Longest time without progress before a reconcile counts as stuck. Each request takes at most 36 s. The number of requests is
/// not limited.
const STALL_TIMEOUT: Duration = Duration::from_mins(2);

const EVENT_WRITER: &str = "the event writer";

/// Minimum time limit for the pending events on shutdown. It applies even if the drain has used up the shutdown timeout.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// The controllers of a program before they run.
pub struct Controllers {
    all: Vec<Arc<dyn Controlled>>,
    scopes: Arc<Scopes>,
    /// Eligibility that the election sees. Between terms, it equals that of `scopes`. During a term, it changes only to
    /// [`Eligibility::None`], after the drain.
    ability: channel::Sender<Eligibility>,
    counters: Vec<Count>,
    /// See [`state::Cache::selector`].
    selectors: Vec<String>,
    tasks: Tasks,
    /// The program's own [tasks](Builder::task).
    own: Vec<AbortHandle>,
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

impl Controllers {
    /// Creates the controllers of a program and starts their watches. Call it within a Tokio runtime.
    ///
    /// - `client` must reject writes after the end of the term (see [`FenceLayer`](crate::election::FenceLayer)).
    /// - `instance` is the replica's name in events.
    /// - `health` receives the checks of the controllers.
    /// - `build` declares the controllers.
    ///
    /// # Panics
    /// If `build` declares none.
    #[must_use]
    pub fn new(
        host: &Host,
        client: &Client,
        config: &Config,
        instance: String,
        metrics: &Metrics,
        health: &mut Health,
        build: impl FnOnce(&mut Builder),
    ) -> Self {
        let app = metrics.app();
        let namespaces = scopes(&config.namespaces);
        let builder = Builder::new(host, client, namespaces.clone(), metrics);
        let mut builder = builder.of_installation(&config.installation);
        build(&mut builder);
        builder.divide();
        let shared = Arc::clone(&builder.shared);
        let (needs, refusals) = (builder.needs_of_program(), builder.refusals);
        let (informers, declared) = (builder.informers, builder.controllers);
        let kind = needs.primary();
        let (kinds, watches) = (needs.watched.clone(), needs.watches());
        let grace = config.leader_election.lease_duration;
        let scopes = Scopes::new(needs, &namespaces, refusals, grace);
        let names = declared.iter().map(|it| (it.name, it.work_queue.clone()));
        let queues: Vec<_> = names.collect();
        let current = queues.clone();
        let busy = move || {
            current.iter().any(|(_, work_queue)| {
                let work_queue = work_queue.borrow();
                work_queue
                    .as_ref()
                    .is_some_and(|work_queue| work_queue.queue.is_busy(Lane::Background))
            })
        };
        let about = EventSource {
            app,
            reporter: app.reporter,
            instance,
            kind,
            host: host.clone(),
        };
        let (recorder, write_events) = Recorder::new(client.clone(), about, metrics, busy);
        let counters: Vec<_> = informers
            .iter()
            .map(|informer| informer.counter())
            .collect();
        let selectors = informers
            .iter()
            .map(|informer| informer.select().to_string());
        let selectors: Vec<String> = selectors.collect();
        let names = kinds.iter().map(|kind| kind.kind);
        metrics::observe_stores(metrics, names.zip(counters.clone()).collect());
        let mut tasks = Tasks::new();
        tasks.spawn(write_events.map(|()| EVENT_WRITER.into()));
        let own = spawn(&mut tasks, builder.tasks);
        scopes.observe(metrics);
        let supervise = Arc::clone(&scopes).supervise();
        tasks.spawn(supervise.map(|()| "the supervision of namespaces".into()));
        let fit = descriptors::fit(host.descriptors, &watches);
        if let Some(shortage) = descriptors::shortage(host.descriptors, &namespaces, &watches) {
            warn!("{shortage}");
        }
        for (controller, cell) in scopes.cells().into_iter().filter(|(_, cell)| *cell < fit) {
            let check = Arc::clone(&scopes).check_rights(controller, cell, client.clone());
            tasks.spawn(check.map(|()| "the permission check".into()));
        }
        for (number, scope) in scopes.informers() {
            let (informer, status) = (&informers[number], scopes.informer(scope, number));
            let namespace = status.namespace();
            if scope >= fit {
                let place = NamespaceName(namespace.as_deref());
                let text = format!("too few file descriptors to watch {place}");
                status.fails(Reason::Failing, text);
                continue;
            }
            let plural = informer.kind().plural;
            let place = namespace.map(|name| format!("/{name}")).unwrap_or_default();
            let heartbeat = health.heartbeat(format!("watch-{plural}{place}"));
            let watch = informer.watch(&shared, status, &scopes, metrics, heartbeat);
            tasks.spawn(watch.map(move |()| format!("the watch of {plural}").into()));
        }
        let optional = informers.iter().filter_map(|it| it.presence());
        for (presence, name) in optional.filter_map(|it| Some((it, it.definition()?))) {
            let heartbeat = health.heartbeat(format!("watch-crd/{name}"));
            let watch = Arc::clone(presence).watch_definition(Arc::clone(&shared), heartbeat);
            tasks.spawn(watch.map(move |()| format!("the watch of the CRD {name}").into()));
        }
        add_checks(health, queues, &scopes, host);
        let common = Common {
            scopes: Arc::clone(&scopes),
            recorder,
            metrics: metrics.clone(),
            host: host.clone(),
            config: config.clone(),
        };
        let declared = declared.into_iter();
        Self {
            all: declared.map(|it| (it.start)(&common)).collect(),
            scopes,
            ability: channel::Sender::new(Eligibility::None),
            counters,
            selectors,
            tasks,
            own,
            config: config.clone(),
            drained_in: Duration::ZERO,
        }
    }

    /// Returns the eligibility of this replica, for the election. During a term, it changes only to `Eligibility::None`. At that
    /// time the queue is drained, so the term may end.
    pub fn ability(&self) -> channel::Receiver<Eligibility> {
        self.ability.subscribe()
    }

    /// Returns a function that reads the state of caches and queues.
    pub(crate) fn state(
        &self,
    ) -> impl Fn() -> (Vec<state::Cache>, Vec<state::Controller>) + Send + Sync + use<> {
        let (scopes, counters) = (Arc::clone(&self.scopes), self.counters.clone());
        let selectors = self.selectors.clone();
        let all = self.all.iter();
        let queues: Vec<_> = all.map(|it| (it.work_queue(), it.kind().kind)).collect();
        move || {
            let objects: Vec<_> = counters.iter().map(|count| count()).collect();
            let controllers = queues.iter().map(|((name, work_queue), kind)| {
                let work_queue = work_queue.borrow().clone();
                state::Controller {
                    name: (*name).to_owned(),
                    kind: (*kind).to_owned(),
                    queue: work_queue.map(|work_queue| work_queue.state()),
                }
            });
            let mut caches = scopes.caches(&objects);
            for (cache, (number, _)) in caches.iter_mut().zip(scopes.informers()) {
                cache.selector.clone_from(&selectors[number]);
            }
            (caches, controllers.collect())
        }
    }

    /// Returns a function that reads the state of one object. It does not keep the event recorder alive, because
    /// [`finish`](Self::finish) waits for the last sender of events.
    pub(crate) fn object_state(
        &self,
    ) -> impl Fn(&ObjectName) -> Result<ObjectWork, String> + Send + Sync + use<> {
        let all: Vec<_> = self.all.iter().map(Arc::downgrade).collect();
        let kinds: Vec<_> = self.all.iter().map(|it| it.kind()).collect();
        move |object| {
            let (chosen, key) = object.choose(&kinds)?;
            let controller = all[chosen].upgrade();
            let controller = controller.ok_or("the controller has stopped")?;
            controller.object_state(&key)
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

    /// Cancels the program's own tasks, and waits until pending events are written, for half of the remaining shutdown timeout.
    /// The other half is for the export of traces.
    pub async fn finish(mut self) {
        for task in &self.own {
            task.abort();
        }
        // Drops the last sender of events, so that the event writer ends after the last event.
        drop(self.all);
        let written = async {
            while let Some(ended) = self.tasks.join_next().await {
                if ended.is_ok_and(|name| name == EVENT_WRITER) {
                    return;
                }
            }
        };
        let left = self.config.shutdown_timeout.saturating_sub(self.drained_in);
        let _ = timeout(LAST_EVENTS.max(left / 2), written).await;
    }

    /// Runs one term: workers with their own queue, from the initial sync to the drain. It starts with the first controller and
    /// scope that are in sync. Others join later.
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
            _ = in_sync.wait_for(|cells| !cells.is_empty()) => {} // With partial caches, existing objects would look missing.
        }
        self.scopes.check_all();
        let mut work = JoinSet::new();
        for controller in &self.all {
            controller.begin(id, term, &mut work);
        }
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
        let queues: Vec<_> = self.all.iter().filter_map(|it| it.end()).collect();
        let draining = Instant::now();
        let drained = join_all(queues.iter().map(Queue::drained));
        if timeout(self.config.shutdown_timeout, drained)
            .await
            .is_err()
        {
            let running = queues.iter().map(|queue| queue.stats().processing);
            warn!(
                running = running.sum::<usize>(),
                "shutdown timeout exceeded: aborting running reconciles"
            );
        }
        work.shutdown().await;
        self.drained_in = draining.elapsed();
        ended
    }
}

/// Starts the program's own tasks.
fn spawn(tasks: &mut Tasks, own: Vec<Own>) -> Vec<AbortHandle> {
    let own = own.into_iter().map(|(name, task)| {
        let task = AssertUnwindSafe(task).catch_unwind();
        tasks.spawn(task.map(move |ended| {
            if ended.is_ok() {
                error!("the task {name} has returned");
            }
            format!("the task {name}").into()
        }))
    });
    own.collect()
}

/// Adds the checks of the workers and of the informers.
fn add_checks(health: &mut Health, queues: Vec<NamedQueue>, scopes: &Arc<Scopes>, host: &Host) {
    let clock = host.clone();
    health.live("workers", move || {
        queues.iter().find_map(|(name, work_queue)| {
            let text = stuck(&work_queue.borrow().as_ref()?.queue, &clock)?;
            let is_only = queues.len() == 1;
            Some(if is_only {
                text
            } else {
                format!("{name}: {text}")
            })
        })
    });
    let (ready, noted) = (Arc::clone(scopes), Arc::clone(scopes));
    health.ready_with_note(
        "informer-sync",
        move || ready.failure(),
        move || noted.note(),
    );
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

/// Returns the scopes of a namespaced type, which are watched independently: each namespace, or `None` for all.
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
