//! Decides which object is reconciled when, and runs the workers for one term.
//!
//! Every replica keeps its stores warm. Only under a term is there a queue, with workers on it; a new term
//! begins with a new queue, into which everything goes once. State flows one way: a watch changes a store,
//! the change wakes a key, a worker takes the key and looks into the stores.

pub(crate) mod agenda;
pub(crate) mod builder;
pub(crate) mod metrics;
pub(crate) mod queue;
mod resync;
#[cfg(test)]
mod tests;

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
            namespace::{Place, Reason},
        },
        store::{Snapshot, Standing},
    },
    client::fence::term::Term,
    client::{context::ClientContext, fence::ability::Ability},
    config::{descriptors, environment::Host, settings::Config},
    controller::{
        agenda::{Agenda, Failures},
        builder::{Builder, Handler, Informer, Informers},
        metrics::{Count, Instruments},
        queue::{Queue, WorkItem, lane::Lane},
    },
    reconcile::{
        error::ApiError,
        reconciler::{Action, Attempt, Context, Detached, Failed, Reconciler},
        writer::Writer,
    },
    telemetry::{
        events::{Recorder, event::About},
        health::{Health, ago},
        log::log_once::LogDeduplication,
        metrics::Metrics,
        state, trace,
    },
};

/// A reconcile that has not got on for longer is stuck: what it waits for is requests, none of which takes more than 36 s.
/// How many of them there are is its own affair.
const STANDSTILL: Duration = Duration::from_mins(2);

/// How soon an object comes again at the soonest that asks for it again and again ([`Action::After`],
/// [`Action::StatusPending`]): ten times a second of nothing but itself is no load.
const LEAST_DELAY: Duration = Duration::from_millis(100);

/// How long the events that wait may take on the way out, where the work has left no time.
const LAST_EVENTS: Duration = Duration::from_secs(1);

/// The trigger of a reconcile that is to report a status.
const STATUS: &str = "status";

/// So many conflicts of one object in a row, within seconds, are part of everyday life: a watch is a little behind. More
/// than that is told.
const CONFLICTS: u32 = 10;

/// The controller, before it runs.
pub struct Controller<R: Reconciler> {
    work: Arc<Work<R>>,
    scopes: Arc<Scopes>,
    /// What the election is told of what this replica can do.
    ability: channel::Sender<Ability>,
    /// That of the current term: where changes enqueue what they concern.
    agenda: channel::Sender<Option<Agenda>>,
    counters: Vec<Count>,
    tasks: Tasks,
    instruments: Instruments,
    config: Config,
    /// How long the work of the last term took to come to its end.
    drained_in: Duration,
}

/// What workers work with.
pub(crate) struct Work<R: Reconciler> {
    pub reconciler: R,
    pub primary: Arc<Writer<R::Primary>>,
    pub informers: Informers<R::Primary>,
    pub recorder: Recorder,
    pub scopes: Arc<Scopes>,
    pub log: Arc<LogDeduplication>,
    pub host: Host,
}

impl<R: Reconciler> Work<R> {
    pub async fn reconcile(&self, key: &Key, attempt: &dyn Attempt) -> Result<Action, R::Error> {
        let objects = self.primary.store();
        let Some(seen) = objects.get(key) else {
            trace::decided(format!("nothing: the {} is gone", R::Primary::KIND.kind));
            return Ok(Action::Done); // Row R8.
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

    /// Nothing is made, changed or deleted for an object that is known to be gone, or to ask for something else by now.
    async fn check(
        &self,
        cx: &Context<'_, R::Primary>,
        seen: &Snapshot<R::Primary>,
    ) -> Result<(), ApiError> {
        let (key, objects) = (cx.key(), self.primary.store());
        match objects.standing(key) {
            Standing::Current => Ok(()),
            Standing::Conflicting | Standing::Doubtful => self.primary.confirm(cx, seen).await,
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
            rehearses: false,
            would_act: AtomicBool::new(false),
        }
    }

    /// Whether a reconcile would find nothing to do. That is noted, and holds until the object or one that it refers to has
    /// another version.
    pub fn is_up_to_date(&self, key: &Key) -> bool {
        let method = "Reconciler::is_up_to_date";
        catch(&R::Primary::KIND, method, || self.has_nothing_to_do(key)).unwrap_or_else(
            |panicked| {
                // Row Q6: the worker that gets it then tries it again.
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
        if let Some((view, noted)) = objects.up_to_date_basis(key)
            && noted == basis(&view)
        {
            return true;
        }
        let Some(seen) = objects.get(key) else {
            return true;
        };
        if objects.standing(key) != Standing::Current {
            // Its retry will tell, and is not overtaken; where it went with the queue of another term, this is it.
            return false;
        }
        let basis = basis(&seen.view);
        // What is not written since it would be refused is looked at anew, until it has been long enough.
        let is_given_up = self.primary.is_given_up(key, &seen);
        let is_up_to_date = {
            let cx = Context {
                rehearses: true,
                ..self.context(key, &seen, &Detached { leads: true })
            };
            self.reconciler.is_up_to_date(&cx, &seen)
        };
        if is_up_to_date && !is_given_up {
            objects.note_up_to_date(key, seen.version, basis);
        }
        is_up_to_date
    }
}

/// Tasks that live as long as the controller, each with its name: one that ends, ends the controller.
type Tasks = JoinSet<Cow<'static, str>>;

/// Why [`run`](crate::run) came to an end that nobody asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0} exited unexpectedly; see the log above")]
pub struct Died(pub Cow<'static, str>);

/// How a term ended.
enum Ended {
    Lost,
    /// No scope can be served any more. The work is drained, and the term goes on.
    Unable,
    Stopped,
    Died(Died),
}

impl<R: Reconciler> Controller<R> {
    /// Starts the watches. Must be called within a Tokio runtime.
    ///
    /// `client` must refuse writes past the end of the term (see [`fence`](crate::client::fence)); `instance`
    /// is this replica's name in events. What its `health` is judged by is added there. `build` declares what is watched.
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
        let agenda = channel::Sender::<Option<Agenda>>::new(None);
        let current = agenda.subscribe();
        let busy = move || {
            let agenda = current.borrow();
            agenda
                .as_ref()
                .is_some_and(|agenda| agenda.queue.is_busy(Lane::Background))
        };
        let about = About {
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
        tasks.spawn(write_events.map(|()| "the writer of events".into()));
        scopes.observe(metrics);
        let supervise = Arc::clone(&scopes).supervise();
        tasks.spawn(supervise.map(|()| "the supervision of scopes".into()));
        let kinds = informers.iter().count();
        let fit = descriptors::Fit::new(host.descriptors, namespaces.len(), kinds);
        if let Some(shortage) = fit.shortage(&namespaces) {
            warn!("{shortage}");
        }
        for (scope, namespace) in namespaces.into_iter().enumerate() {
            if scope >= fit.served {
                let status = scopes.informer(scope, 0);
                let place = Place(namespace.as_deref());
                let text = format!("no file descriptors are left to watch {place}");
                status.fails(Reason::Failing, text);
                continue;
            }
            let check = Arc::clone(&scopes).check_rights(scope, client.clone());
            tasks.spawn(check.map(|()| "the check of rights".into()));
            let place = namespace.as_ref().map(|name| format!("/{name}"));
            let place = place.unwrap_or_default();
            for (number, informer) in informers.iter().enumerate() {
                let handler = Handler {
                    agenda: agenda.subscribe(),
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
        let current = agenda.subscribe();
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
            ability: channel::Sender::new(Ability::Nothing),
            agenda,
            counters,
            tasks,
            instruments: Instruments::new(metrics, name, config.workers),
            config: config.clone(),
            drained_in: Duration::ZERO,
        }
    }

    /// How much of the work this replica can do, for the election. That it can do none is said once what was running is
    /// drained: the term may end then.
    pub fn ability(&self) -> channel::Receiver<Ability> {
        self.ability.subscribe()
    }

    /// How its caches are, and its queue, whenever it is called.
    pub(crate) fn state(
        &self,
    ) -> impl Fn() -> (Vec<state::Cache>, Option<state::Queue>) + Send + Sync + use<R> {
        let (scopes, counters) = (Arc::clone(&self.scopes), self.counters.clone());
        let agenda = self.agenda.subscribe();
        move || {
            let objects: Vec<_> = counters.iter().map(|count| count()).collect();
            let agenda = agenda.borrow().clone();
            (scopes.caches(&objects), agenda.map(|agenda| agenda.state()))
        }
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
            self.drained_in = Duration::ZERO;
            let id = tokio::select! {
                biased;
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
                        biased;
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

    /// Lets the events that wait be written: in half of the time that the work has left, for there are traces to be exported, too.
    pub async fn finish(mut self) {
        // With the last way in for events gone, their writer ends when it has written them; nothing else ends.
        drop(self.work);
        let left = self.config.shutdown_timeout.saturating_sub(self.drained_in);
        let _ = timeout(LAST_EVENTS.max(left / 2), self.tasks.join_next()).await;
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
            biased;
            () = &mut *stop => return Ended::Stopped,
            died = died(&mut self.tasks) => return Ended::Died(died),
            () = lost(term, id) => return Ended::Lost,
            _ = in_sync.wait_for(|scopes| !scopes.is_empty()) => {} // Row Q5.
        }
        let queue = Queue::new(&self.config.backoff, self.config.workers, Key::namespace);
        self.instruments.term_begins(&queue);
        let agenda = Agenda::new(queue.clone());
        self.agenda.send_replace(Some(agenda.clone()));
        self.scopes.check_all();
        info!(
            objects = self.work.primary.store().len(),
            workers = self.config.workers,
            resync = ?self.config.resync,
            "started workers"
        );
        let worker = Worker {
            kind: R::Primary::KIND,
            agenda: agenda.clone(),
            instruments: self.instruments.clone(),
            log: Arc::clone(&self.work.log),
        };
        let mut work = JoinSet::new();
        // Half of them are for slow namespaces.
        for _ in 0..self.config.workers * 2 {
            let work_on = Arc::clone(&self.work);
            let attempt = TermAttempt {
                kind: R::Primary::KIND.kind,
                agenda: agenda.clone(),
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
                            info!(namespace, "started workers for another namespace");
                        }
                        let is_in_scope = |key: &Key| scopes.covers(scope, key);
                        resync::first(&agenda, objects, is_in_scope, is_up_to_date).await;
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
            () = stop => Ended::Stopped,
            died = died(&mut self.tasks) => Ended::Died(died),
            Some(_) = work.join_next() => Ended::Died(Died("a worker".into())),
            () = lost(term, id) => Ended::Lost,
            _ = able.wait_for(|able| *able == Ability::Nothing), if elects => Ended::Unable,
        };
        self.agenda.send_replace(None);
        queue.shut_down();
        let draining = Instant::now();
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
        self.drained_in = draining.elapsed();
        ended
    }
}

/// Says since when a reconcile has not got on, where that is too long.
fn stuck(queue: &Queue<Key>, host: &Host) -> Option<String> {
    let longest = queue.stats().longest_standstill;
    (longest > STANDSTILL)
        .then(|| format!("a reconcile has stood still since {}", ago(host, longest)))
}

/// What is watched by itself: each of the namespaces, or all of them (`None`).
pub(crate) fn scopes(namespaces: &[String]) -> Vec<Option<String>> {
    let unique: BTreeSet<_> = namespaces.iter().cloned().map(Some).collect();
    if unique.is_empty() {
        vec![None]
    } else {
        unique.into_iter().collect()
    }
}

/// What a worker works with.
#[derive(Clone)]
struct Worker {
    kind: Kind,
    agenda: Agenda,
    instruments: Instruments,
    log: Arc<LogDeduplication>,
}

impl Worker {
    /// Takes a key, reconciles it, says how it went; and the next one.
    async fn work<E: Failure, F: Future<Output = Result<Action, E>>>(
        self,
        reconcile: impl Fn(Key) -> F,
    ) {
        let Agenda {
            queue,
            triggers,
            failures,
        } = self.agenda;
        while let Some(item) = queue.get().await {
            let noted = triggers.take(item.key(), item.lane());
            let span = span(&item, noted);
            let begun = Instant::now();
            let attempt = reconcile(item.key().clone());
            let attempt = attempt.map_err(|error| Failed::of(&self.kind, &error));
            let attempt = AssertUnwindSafe(attempt.instrument(span.clone()));
            // Row Q6: a panic is this object's failure. Past this, nothing of the kind's is called.
            let result = attempt.catch_unwind().await.unwrap_or_else(|_| {
                Err(Failed::from(Panicked {
                    kind: self.kind.kind,
                    method: "Reconciler::reconcile",
                }))
            });
            span.in_scope(|| {
                self.instruments
                    .ended(&result, item.waited(), begun.elapsed());
                match result {
                    Ok(Action::Done) | Err(_) => {}
                    Ok(Action::StatusPending) => {
                        let key = item.key().clone();
                        triggers.note(&key, Lane::Background, STATUS);
                        if noted == Some(STATUS) {
                            queue.add_after(key, Lane::Background, LEAST_DELAY);
                        } else {
                            queue.add(key, Lane::Background);
                        }
                    }
                    Ok(Action::After(time)) => {
                        let (key, time) = (item.key().clone(), time.max(LEAST_DELAY));
                        queue.add_after(key, Lane::Background, time);
                    }
                }
                finish_item(item, result, &failures, &self.log);
            });
        }
    }
}

/// The root of a reconcile's trace. Of kind internal, since what woke it is no message that somebody sent.
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
        // Not `k8s.namespace.name`, which is where this process runs.
        object.namespace = item.key().namespace(),
        object.name = item.key().name(),
        object.uid = Empty,
        object.generation = Empty,
        reconcile.trigger = trigger,
        // The kind of what changed last.
        reconcile.changed = changed,
        reconcile.queue_seconds = item.waited().as_secs_f64(),
        reconcile.attempt = i64::from(item.failures()) + 1,
    )
}

/// Row P3: what failed, why, and when it is tried again.
fn finish_item(
    item: WorkItem<Key>,
    result: Result<Action, Failed>,
    failures: &Failures,
    log: &LogDeduplication,
) {
    let object = item.key().clone();
    if let Err(error) = &result {
        trace::failed(&Span::current(), error.name(), error);
    }
    let was_held_back = match &result {
        Ok(Action::StatusPending) => false,
        Err(error) if error.retry() != Retry::OnChange => failures.note(&object, error),
        _ => failures.forget(&object),
    };
    if was_held_back {
        item.add();
    }
    match result {
        // What a status that cannot be written has failed so far is not forgotten for what is done between its tries.
        Ok(Action::StatusPending) => {}
        Ok(_) => item.forget(),
        Err(error) => match error.retry() {
            // Logged when it was reported.
            Retry::OnChange => item.forget(),
            retry => {
                let attempt = 1 + if retry.is_quiet() {
                    item.quiet_tries()
                } else {
                    item.failures()
                };
                let delay = match retry {
                    Retry::After(time) => item.add_after(time.max(LEAST_DELAY)),
                    Retry::Conflict | Retry::Quiet => item.add_rate_limited_quietly(),
                    _ => item.add_rate_limited_after(retry.after()),
                };
                // What passes by itself has passed by then.
                let stuck = retry == Retry::Conflict && attempt > CONFLICTS;
                if (stuck || !retry.is_quiet()) && log.should_log(&error) {
                    warn!(%object, reason = error.reason(), attempt, ?delay, "{error}; trying again");
                } else {
                    debug!(%object, attempt, ?delay, "{error}; trying again");
                }
            }
        },
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

/// An attempt of a worker of the term `id`.
#[derive(Clone)]
struct TermAttempt {
    kind: &'static str,
    agenda: Agenda,
    term: channel::Receiver<Option<Term>>,
    id: u64,
}

impl Attempt for TermAttempt {
    fn others_wait(&self) -> bool {
        self.agenda.queue.is_busy(Lane::Event)
    }

    fn leads(&self) -> bool {
        is_live(self.term.borrow().as_ref(), self.id)
    }

    fn gets_on(&self, key: &Key) {
        self.agenda.queue.gets_on(key);
    }

    fn enqueue(&self, key: Key) {
        self.agenda.changed(key, self.kind);
    }
}

/// Whether this is the term `id`, and not over.
fn is_live(term: Option<&Term>, id: u64) -> bool {
    term.is_some_and(|term| term.id() == id && term.remaining().is_some())
}

async fn died(tasks: &mut Tasks) -> Died {
    match tasks.join_next().await {
        Some(Ok(name)) => Died(name),
        Some(Err(_)) => Died("a task".into()),
        None => std::future::pending().await,
    }
}
