//! One controller: a reconciler with its queue and its workers.

use std::{any::Any, sync::Arc};

use tokio::{sync::watch as channel, task::JoinSet};
use tracing::info;

use crate::{
    api::{
        key::Key,
        kind::Kind,
        object::{Cached as _, kind_of},
    },
    cache::readiness::Scopes,
    client::fence::term::Term,
    config::{environment::Host, settings::Config},
    controller::{
        dry_run::DryRun,
        informers::Informers,
        metrics::{Instruments, observe_paused},
        object_reconciler::ObjectReconciler,
        queue::Queue,
        term::{TermAttempt, check_objects},
        trigger::Inbox,
        work_queue::WorkQueue,
        worker::Worker,
    },
    reconcile::{
        context::{DoneReads, Reads},
        reconciler::{Action, Reconciler},
        writer::{Writer, labels::Owned},
    },
    telemetry::{
        events::Recorder, log_limiter::LogLimiter, metrics::Metrics, object_state::ObjectWork,
    },
};

/// A reconciler and its resource types.
pub(crate) struct Parts<R: Reconciler> {
    /// Name of the controller.
    pub name: &'static str,
    /// Position of the controller in the program.
    pub number: usize,
    pub reconciler: R,
    pub primary: Arc<Writer<R::Primary>>,
    pub informers: Informers<R::Primary>,
    /// Writers of the owned types.
    pub owned: Vec<Box<dyn Owned<R::Primary>>>,
}

/// A controller: a reconciler with its queue, for any resource type.
pub(crate) trait Controlled: Any + Send + Sync {
    /// Starts the workers of a term, with their own queue.
    fn begin(&self, id: u64, term: &channel::Receiver<Option<Term>>, work: &mut JoinSet<()>);

    /// Ends the queue of the term: no new work.
    fn end(&self) -> Option<Queue<Key>>;

    /// Returns the reconciled resource type.
    fn kind(&self) -> &'static Kind;

    fn work_queue(&self) -> NamedQueue;

    /// Returns the keys of the reconciled objects, sorted by namespace and name.
    fn keys(&self) -> Vec<Key>;

    /// Returns the number of objects whose reconcile waits for the content of a referenced object.
    fn awaited(&self) -> usize;

    /// Returns the requests that a reconcile of one object would send, and the live reads that it lacks. `None` if the object does not exist.
    fn dry_run(&self, key: &Key, done: DoneReads) -> Option<(DryRun, Reads)>;

    /// Returns the state of one object, or the reason if this replica does not have the object.
    fn object_state(&self, key: &Key) -> Result<ObjectWork, String>;
}

/// Name of a controller, and its work queue.
pub(crate) type NamedQueue = (&'static str, channel::Receiver<Option<WorkQueue>>);

/// What all controllers of a program share.
pub(crate) struct Common {
    pub scopes: Arc<Scopes>,
    pub recorder: Recorder,
    pub metrics: Metrics,
    pub host: Host,
    pub config: Config,
}

impl Common {
    pub(crate) fn work<R: Reconciler>(&self, parts: Parts<R>) -> ObjectReconciler<R> {
        // All controllers have been declared.
        let owned = parts.owned.into_iter().filter(|it| it.is_reconciled());
        let owned = owned.collect();
        ObjectReconciler {
            controller: parts.number,
            reconciler: parts.reconciler,
            primary: parts.primary,
            informers: parts.informers,
            owned,
            recorder: self.recorder.about(kind_of::<R::Primary>()),
            scopes: Arc::clone(&self.scopes),
            log: Arc::new(LogLimiter::of(parts.name)),
            host: self.host.clone(),
            group: self.metrics.app().group,
        }
    }
}

/// A controller of one resource type.
pub(crate) struct Controller<R: Reconciler> {
    pub work: Arc<ObjectReconciler<R>>,
    inbox: Inbox,
    instruments: Instruments,
    config: Config,
}

impl<R: Reconciler> Controller<R> {
    pub(crate) fn new(work: ObjectReconciler<R>, inbox: Inbox, common: &Common) -> Self {
        observe_paused(&common.metrics, Arc::clone(work.primary.store()));
        let name = work.log.controller;
        let config = common.config.of_controller(name);
        Self {
            work: Arc::new(work),
            inbox,
            instruments: Instruments::new(&common.metrics, name, config.workers),
            config,
        }
    }
}

impl<R: Reconciler> Controlled for Controller<R> {
    fn begin(&self, id: u64, term: &channel::Receiver<Option<Term>>, work: &mut JoinSet<()>) {
        let queue = Queue::new(&self.config.backoff, self.config.workers, Key::fault_domain);
        self.instruments.term_begins(&queue);
        let work_queue = WorkQueue::new(queue);
        let all = self.inbox.all.subscribe();
        self.inbox.work_queue.send_replace(Some(work_queue.clone()));
        info!(
            controller = self.work.log.controller,
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
                async move {
                    // A trigger may name an object of a scope that is not in sync. The initial sync checks it.
                    if !objects.scopes.is_in_sync(objects.controller, &key) {
                        return Ok(Action::Done);
                    }
                    objects.reconcile(&key, &attempt).await
                }
            }));
        }
        work.spawn(check_objects(
            Arc::clone(&self.work),
            attempt.work_queue,
            self.work.scopes.in_sync(),
            all,
            self.config.resync,
        ));
        work.spawn(Arc::clone(&self.work.log).report_suppressed());
    }

    fn end(&self) -> Option<Queue<Key>> {
        let queue = self.inbox.work_queue.send_replace(None)?.queue;
        queue.shut_down();
        Some(queue)
    }

    fn kind(&self) -> &'static Kind {
        kind_of::<R::Primary>()
    }

    fn work_queue(&self) -> NamedQueue {
        (self.work.log.controller, self.inbox.work_queue.subscribe())
    }

    fn keys(&self) -> Vec<Key> {
        let mut keys = self.work.primary.store().keys();
        // Not by their texts: `-` precedes the slash, so `a-b/x` would precede `a/x`.
        keys.sort_unstable_by(|one, other| {
            let one = (one.namespace(), one.name());
            one.cmp(&(other.namespace(), other.name()))
        });
        keys
    }

    fn awaited(&self) -> usize {
        let (objects, informers) = (self.work.primary.store(), &self.work.informers);
        if !informers.has_contents() {
            return 0;
        }
        let keys = objects.keys().into_iter();
        let awaited = keys.filter(|key| {
            let seen = objects.get(key).filter(|seen| !seen.is_paused());
            seen.is_some_and(|seen| informers.awaits_content(key, &seen.view))
        });
        awaited.count()
    }

    fn dry_run(&self, key: &Key, done: DoneReads) -> Option<(DryRun, Reads)> {
        self.work.dry_run(key, done)
    }

    fn object_state(&self, key: &Key) -> Result<ObjectWork, String> {
        let work_queue = self.inbox.work_queue.borrow().clone();
        self.work.object_state(key, work_queue.as_ref())
    }
}
