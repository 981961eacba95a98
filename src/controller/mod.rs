//! What is to be done: caches → queue → workers → reconcile, under a term of leadership.
//!
//! Every replica keeps its caches warm. Only under a term is there a queue, with workers on it; a new term
//! begins with a new queue, into which everything goes once. State flows one way: a watch changes a cache,
//! the change wakes a key, a worker takes the key and looks into the caches.

pub mod cache;
mod corrections;
pub mod desired;
mod error;
mod events;
#[cfg(test)]
mod fixtures;
mod instruments;
mod looks;
mod reconcile;
mod repeats;
mod scopes;
pub mod status;
#[cfg(test)]
mod tests;
pub mod view;
mod watch;

use std::{
    collections::BTreeSet, convert::Infallible, panic::AssertUnwindSafe, sync::Arc, time::Duration,
};

use futures::FutureExt as _;
use kube::Client;
use tokio::{
    sync::watch as channel,
    task::JoinSet,
    time::{Instant, timeout},
};
use tracing::{Instrument as _, Span, debug, field::Empty, info, info_span, warn};

use self::{
    cache::{Cache, Change},
    corrections::Corrections,
    events::Events,
    instruments::Instruments,
    looks::Triggers,
    reconcile::{Done, IneffectiveWrites, Reconciler},
    repeats::Repeats,
    scopes::{Informer, Scopes},
    view::{Deployment, Foo},
    watch::watch,
};
pub use self::{error::Error, instruments::FOOS, reconcile::MANAGER};
use operator_runtime::{
    Config, Key,
    election::{Ability, Term},
    queue::{Lane, Queue, Taken},
    telemetry::{
        Metrics,
        health::{Health, ago},
        trace,
    },
};

/// While pods come up, a Foo is looked at this long after its Deployment's counts changed rather than at
/// every pod; the end of a rollout is told at once.
const ROLLOUT_PACE: Duration = Duration::from_secs(1);

/// A reconcile that takes longer is stuck: it is a handful of requests, none of which takes more than 10 s.
const RECONCILE: Duration = Duration::from_mins(2);

/// How long the events of the last work may take on the way out.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// So many conflicts of one object in a row, within seconds, are part of everyday life: a watch is a little behind. More
/// than that is told.
const CONFLICTS: u32 = 10;

/// The controller, before it runs.
pub struct Controller {
    reconciler: Arc<Reconciler>,
    scopes: Arc<Scopes>,
    /// What the election is told of what this replica can do.
    ability: channel::Sender<Ability>,
    /// The queue of the current term: where changes wake their Foos.
    queue: channel::Sender<Option<Queue<Key>>>,
    tasks: Tasks,
    instruments: Instruments,
    config: Config,
}

/// Tasks that live as long as the controller, each with its name: one that ends, ends the controller.
type Tasks = JoinSet<&'static str>;

/// Why [`Controller::run`] came to an end that nobody asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0} came to an end, which it never should; see the log above")]
pub struct Died(pub &'static str);

/// How a term ended.
enum Ended {
    Lost,
    /// No scope can be served any more. The work is drained, and the term goes on.
    Unable,
    Stopped,
    Died(Died),
}

impl Controller {
    /// Starts the watches. Must be called within a Tokio runtime.
    ///
    /// `client` must refuse writes past the end of the term (see [`operator_runtime::election::fence`]); `instance`
    /// is this replica's name in events. What its `health` is judged by is added there.
    #[must_use]
    pub fn new(
        client: &Client,
        config: &Config,
        image: &str,
        instance: String,
        metrics: &Metrics,
        health: &mut Health,
    ) -> Self {
        let namespaces = scopes(&config.namespaces);
        let scopes = Scopes::new(&namespaces, config.leader_election.lease_duration);
        let queue = channel::Sender::<Option<Queue<Key>>>::new(None);
        let current = queue.subscribe();
        let busy = move || {
            let queue = current.borrow();
            queue
                .as_ref()
                .is_some_and(|queue| queue.is_busy(Lane::Background))
        };
        let (events, write_events) = Events::new(client.clone(), instance, metrics, busy);
        let reconciler = Arc::new(Reconciler {
            client: client.clone(),
            foos: Arc::new(Cache::new(&namespaces)),
            deployments: Arc::new(Cache::new(&namespaces)),
            image: image.to_owned(),
            events,
            scopes: Arc::clone(&scopes),
            repeats: Arc::default(),
            ineffective: IneffectiveWrites::default(),
            corrections: Corrections::default(),
        });
        instruments::observe_caches(metrics, &reconciler.foos, &reconciler.deployments);
        let mut tasks = Tasks::new();
        tasks.spawn(write_events.map(|()| "the writer of events"));
        scopes.observe(metrics);
        let supervise = Arc::clone(&scopes).supervise();
        tasks.spawn(supervise.map(|()| "the supervision of scopes"));
        for (scope, namespace) in namespaces.into_iter().enumerate() {
            let check = Arc::clone(&scopes).check_rights(scope, client.clone());
            tasks.spawn(check.map(|()| "the check of rights"));
            let waker = Waker {
                queue: queue.subscribe(),
                foos: Arc::clone(&reconciler.foos),
                scopes: Arc::clone(&scopes),
            };
            let place = namespace.as_ref().map(|name| format!("/{name}"));
            let place = place.unwrap_or_default();
            let foos = watch(
                client.clone(),
                scopes.informer(scope, Informer::Foos),
                Arc::clone(&reconciler.foos),
                instruments::restarts::<Foo>(metrics),
                health.pulse(format!("watch-foos{place}")),
                {
                    let waker = waker.clone();
                    move |change| waker.foo_changed(&change)
                },
            );
            let deployments = watch(
                client.clone(),
                scopes.informer(scope, Informer::Deployments),
                Arc::clone(&reconciler.deployments),
                instruments::restarts::<Deployment>(metrics),
                health.pulse(format!("watch-deployments{place}")),
                move |change| {
                    waker.deployment_changed(&change);
                },
            );
            tasks.spawn(foos.map(|()| "the watch of Foos"));
            tasks.spawn(deployments.map(|()| "the watch of Deployments"));
        }
        let current = queue.subscribe();
        health.live("workers", move || stuck(current.borrow().as_ref()?));
        let (ready, noted) = (Arc::clone(&scopes), Arc::clone(&scopes));
        health.ready_with_note(
            "informer-sync",
            move || ready.complaint(),
            move || noted.note(),
        );
        Self {
            reconciler,
            scopes,
            ability: channel::Sender::new(Ability::Nothing),
            queue,
            tasks,
            instruments: Instruments::new(metrics, config.workers),
            config: config.clone(),
        }
    }

    /// How much of the work this replica can do, for the election. That it can do none is said once what was running is
    /// drained: the term may end then.
    pub fn ability(&self) -> channel::Receiver<Ability> {
        self.ability.subscribe()
    }

    /// Works whenever there is a term, until `stop` resolves; then lets what is running finish, for at most
    /// the configured shutdown timeout (row P2).
    ///
    /// # Errors
    /// [`Died`] when a task ended that never should.
    pub async fn run(
        &mut self,
        mut term: channel::Receiver<Option<Term>>,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Died> {
        let mut stop = std::pin::pin!(stop.fuse());
        let mut able = self.scopes.ability();
        loop {
            let id = tokio::select! {
                () = &mut stop => return Ok(()),
                died = died(&mut self.tasks) => return Err(died),
                never = tell(&mut able, &self.ability) => match never {},
                id = gained(&mut term) => id,
            };
            match self.lead(id, &mut term, &mut stop).await {
                Ended::Lost => info!("the term is over: standing by with warm caches"),
                Ended::Unable => {
                    warn!("nothing can be served here: letting somebody else lead");
                    self.ability.send_replace(Ability::Nothing);
                    tokio::select! {
                        () = &mut stop => return Ok(()),
                        died = died(&mut self.tasks) => return Err(died),
                        () = lost(&mut term, id) => {}
                    }
                }
                Ended::Stopped => return Ok(()),
                Ended::Died(died) => return Err(died),
            }
        }
    }

    /// Lets the events of the last work be written, for a moment.
    pub async fn finish(mut self) {
        // With the last way in for events gone, their writer ends when it has written them; nothing else ends.
        drop(self.reconciler);
        let _ = timeout(LAST_EVENTS, self.tasks.join_next()).await;
    }

    /// One term: workers on a queue of their own, from the first look at everything to the drain. It begins with the
    /// first scope that is in sync; the others join it.
    async fn lead(
        &mut self,
        id: u64,
        term: &mut channel::Receiver<Option<Term>>,
        stop: &mut (impl Future<Output = ()> + Unpin),
    ) -> Ended {
        let mut in_sync = self.scopes.in_sync();
        tokio::select! {
            _ = in_sync.wait_for(|scopes| !scopes.is_empty()) => {} // Row Q5.
            () = &mut *stop => return Ended::Stopped,
            () = lost(term, id) => return Ended::Lost,
            died = died(&mut self.tasks) => return Ended::Died(died),
        }
        let queue = Queue::new(&self.config.backoff);
        self.instruments.term_begins(&queue);
        self.queue.send_replace(Some(queue.clone()));
        self.scopes.check_all();
        info!(
            foos = self.reconciler.foos.len(),
            deployments = self.reconciler.deployments.len(),
            workers = self.config.workers,
            resync = ?self.config.resync,
            "working"
        );
        let triggers = Triggers::default();
        let worker = Worker {
            queue: queue.clone(),
            triggers: Arc::clone(&triggers),
            instruments: self.instruments.clone(),
            repeats: Arc::clone(&self.reconciler.repeats),
        };
        let mut work = JoinSet::new();
        for _ in 0..self.config.workers {
            let (queue, reconciler) = (queue.clone(), Arc::clone(&self.reconciler));
            work.spawn(worker.clone().work(move |key| {
                let (queue, reconciler) = (queue.clone(), Arc::clone(&reconciler));
                let others_wait = move || queue.is_busy(Lane::Change);
                async move { reconciler.reconcile(&key, others_wait).await }
            }));
        }
        work.spawn({
            let (queue, reconciler) = (queue.clone(), Arc::clone(&self.reconciler));
            let scopes = Arc::clone(&self.scopes);
            let period = self.config.resync;
            async move {
                let Reconciler {
                    foos, deployments, ..
                } = &*reconciler;
                let is_settled = |key: &Key| reconciler.is_settled(key);
                let is_left_alone = |key: &Key| !scopes.is_in_sync(key) || is_settled(key);
                let changes = || {
                    (
                        foos.changes(),
                        deployments.changes(),
                        scopes.all_rights_regained(),
                    )
                };
                let first = async {
                    for begun in 0.. {
                        let scope = in_sync.wait_for(|scopes| scopes.len() > begun).await;
                        let Ok(scope) = scope.map(|scopes| scopes[begun]) else {
                            return;
                        };
                        if begun > 0 {
                            let namespace = scopes.namespace(scope);
                            info!(namespace, "working in another namespace");
                        }
                        let is_in_scope = |key: &Key| scopes.covers(scope, key);
                        looks::first(&queue, foos, is_in_scope, is_settled, &triggers).await;
                    }
                };
                tokio::join!(
                    first,
                    looks::resync(&queue, foos, is_left_alone, changes, period)
                );
            }
        });
        work.spawn(Arc::clone(&self.reconciler.repeats).sum_up());
        let mut able = self.scopes.ability();
        let elects = self.config.leader_election.enabled;
        let ended = tokio::select! {
            () = stop => Ended::Stopped,
            () = lost(term, id) => Ended::Lost,
            _ = able.wait_for(|able| *able == Ability::Nothing), if elects => Ended::Unable,
            died = died(&mut self.tasks) => Ended::Died(died),
            Some(_) = work.join_next() => Ended::Died(Died("a worker")),
        };
        self.queue.send_replace(None);
        queue.shut_down();
        if timeout(self.config.shutdown_timeout, queue.drained())
            .await
            .is_err()
        {
            warn!(
                running = queue.stats().processing,
                "work is still running: cut off"
            );
        }
        work.shutdown().await;
        ended
    }
}

/// Says which reconcile has been running since when, where that is too long.
fn stuck(queue: &Queue<Key>) -> Option<String> {
    let longest = queue.stats().longest_running;
    (longest > RECONCILE).then(|| format!("a reconcile has been running since {}", ago(longest)))
}

/// What is watched by itself: each of the namespaces, or all of them (`None`).
fn scopes(namespaces: &[String]) -> Vec<Option<String>> {
    let unique: BTreeSet<_> = namespaces.iter().cloned().map(Some).collect();
    if unique.is_empty() {
        vec![None]
    } else {
        unique.into_iter().collect()
    }
}

/// Which Foos a change wakes.
#[derive(Clone)]
struct Waker {
    queue: channel::Receiver<Option<Queue<Key>>>,
    foos: Arc<Cache<Foo>>,
    scopes: Arc<Scopes>,
}

impl Waker {
    /// Before the scope is in sync, that can wait for the first look at it (row Q5).
    fn foo_changed(&self, change: &Change<Foo>) {
        if let Some(queue) = &*self.queue.borrow()
            && self.scopes.is_in_sync(&change.key)
        {
            queue.add(change.key.clone(), Lane::Change);
        }
    }

    /// Row R10: the Foo that controls the Deployment, or did; and those that want its name, for which a
    /// foreign Deployment may have made way (row R4).
    fn deployment_changed(&self, change: &Change<Deployment>) {
        let queue = self.queue.borrow();
        let Some(queue) = queue
            .as_ref()
            .filter(|_| self.scopes.is_in_sync(&change.key))
        else {
            return;
        };
        let owners = [&change.old, &change.new]
            .into_iter()
            .flatten()
            .filter_map(|view| view.owner.as_ref());
        let owners = owners.map(|owner| change.key.sibling(&owner.name));
        for foo in owners.chain(self.foos.referring(&change.key)) {
            if is_under_way(change) {
                queue.add_after(foo, Lane::Change, ROLLOUT_PACE);
            } else {
                queue.add(foo, Lane::Change);
            }
        }
    }
}

/// Whether a rollout has merely come further: the counts differ and nothing else, and it is not done.
fn is_under_way(change: &Change<Deployment>) -> bool {
    let (Some(old), Some(new)) = (&change.old, &change.new) else {
        return false;
    };
    let counts_alone = Deployment {
        progress: new.progress,
        ..(**old).clone()
    } == **new;
    let further = counts_alone && old.progress != new.progress;
    further && !status::is_complete(new) && !status::is_complete(old) && !new.progress.stuck
}

/// What a worker works with.
#[derive(Clone)]
struct Worker {
    queue: Queue<Key>,
    triggers: Triggers,
    instruments: Instruments,
    repeats: Arc<Repeats>,
}

impl Worker {
    /// Takes a key, reconciles it, says how it went; and the next one.
    async fn work<F: Future<Output = Result<Done, Error>>>(self, reconcile: impl Fn(Key) -> F) {
        while let Some(taken) = self.queue.get().await {
            let trigger = self.triggers.lock().remove(taken.key());
            let span = span(&taken, trigger);
            let begun = Instant::now();
            let attempt = reconcile(taken.key().clone()).instrument(span.clone());
            // Row Q6: a panic is this object's failure.
            let result = AssertUnwindSafe(attempt).catch_unwind().await;
            let result = result.unwrap_or(Err(Error::Panicked));
            span.in_scope(|| {
                self.instruments
                    .ended(&result, taken.waited(), begun.elapsed());
                if let Ok(Done::Untold) = result {
                    self.triggers.lock().insert(taken.key().clone(), "status");
                    self.queue.add(taken.key().clone(), Lane::Background);
                }
                settle(taken, result, &self.repeats);
            });
        }
    }
}

/// The root of a reconcile's trace. Of kind internal, since what woke it is no message that somebody sent.
fn span(taken: &Taken<Key>, trigger: Option<&'static str>) -> Span {
    let trigger = match taken.lane() {
        Lane::Change => "change",
        Lane::Retry => "retry",
        Lane::Background => trigger.unwrap_or("resync"),
    };
    info_span!(
        parent: None,
        "reconcile",
        otel.status_description = Empty,
        error.type = Empty,
        // Not `k8s.namespace.name`, which is where this process runs.
        foo.namespace = taken.key().namespace(),
        foo.name = taken.key().name(),
        foo.uid = Empty,
        foo.generation = Empty,
        reconcile.trigger = trigger,
        reconcile.queue_seconds = taken.waited().as_secs_f64(),
        reconcile.attempt = i64::from(taken.failures()) + 1,
    )
}

/// Row P3: what failed, why, and when it is tried again.
fn settle(taken: Taken<Key>, result: Result<Done, Error>, repeats: &Repeats) {
    let foo = taken.key().clone();
    if let Err(error) = &result {
        trace::failed(&Span::current(), error.kind(), error);
    }
    match result {
        Ok(_) => taken.succeed(),
        // Said when it was told.
        Err(error) if error.is_final() => taken.succeed(),
        Err(error) => {
            let attempt = taken.failures() + 1;
            let delay = taken.retry_after(error.retry_after());
            // What passes by itself has passed by then.
            let stuck = matches!(error, Error::Conflict) && attempt > CONFLICTS;
            if (stuck || !error.is_quiet()) && repeats.is_news(&error) {
                warn!(%foo, reason = error.reason(), attempt, ?delay, "{error}; trying again");
            } else {
                debug!(%foo, attempt, ?delay, "{error}; trying again");
            }
        }
    }
}

/// Tells `to` what `from` says, for ever.
async fn tell(from: &mut channel::Receiver<Ability>, to: &channel::Sender<Ability>) -> Infallible {
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
        // The election is over, whatever it published last, and the process with it: whoever runs it says why.
        _ => std::future::pending().await,
    }
}

async fn lost(term: &mut channel::Receiver<Option<Term>>, id: u64) {
    let other = |term: &Option<Term>| term.as_ref().is_none_or(|term| term.id() != id);
    // A closed channel is the end of the election: nobody renews the term any more.
    term.wait_for(other).await.map(drop).unwrap_or_default();
}

async fn died(tasks: &mut Tasks) -> Died {
    match tasks.join_next().await {
        Some(Ok(name)) => Died(name),
        Some(Err(_)) => Died("a task"),
        None => std::future::pending().await,
    }
}
