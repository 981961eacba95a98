//! Who may act: the loop around `kube-leader-election` that publishes this replica's term, `Option<Term>`.
//!
//! [`decide`] says what to do next and knows no I/O; [`lease_guard`] makes what the crate sends and believes safe; this
//! module does what was decided. The Lease is held at most until a deadline that lies well before anybody else may take
//! it, and [`fence`] keeps the controller's writes within it.

pub mod decide;
mod error;
#[cfg(test)]
mod fake;
pub mod fence;
mod fencing_record;
mod identity;
pub mod lease_guard;
mod lease_watch;
mod term;
#[cfg(test)]
mod tests;
mod writes;

pub use crate::clock::Clock;
pub use decide::Ability;
pub use error::Error;
pub use identity::Identity;
pub(crate) use identity::pod_namespace;
pub use term::Term;

use crate::{
    Host, Key, Kind,
    config::LeaderElection,
    failure::with_causes,
    log_once::Causes,
    recorder::{self, About, Recorder},
    telemetry::{
        Metrics,
        health::Heartbeat,
        metrics::{Timer, table},
        request::{FailedBy, RequestLayer},
        trace,
    },
    transport::Transport,
};
use decide::{Action, Elector, Event, Held, Outcome, Timing};
use fencing_record::{Assertions, FencingRecord};
use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, client::ClientBuilder, core::Status};
use kube_leader_election::{Error as LockError, LeaseLock, LeaseLockParams, LeaseLockResult};
use lease_guard::LeaseGuardLayer;
use lease_watch::{Failure, Observed};
use opentelemetry::{
    KeyValue,
    metrics::{BoundCounter, BoundGauge},
};
use std::{future::pending, panic::resume_unwind, pin::pin, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time,
};

use tower::BoxError;
use tracing::{Instrument as _, Span, debug, field::Empty, info, info_span, warn};
use writes::Writes;

/// Machines that sleep stop tokio's timers but not the lease's clock, so the clock is looked at this often: no more often
/// than a leader renews by default, whom it would wake for nothing. (The fence looks at each write.)
const LOOK: Duration = Duration::from_secs(2);
/// How long an event about a change of leader may take; nobody waits for it but the end of the process.
const EVENT_TIMEOUT: Duration = Duration::from_secs(1);
/// A failure after this long without one is a new outage: it is logged again.
const QUIET: Duration = Duration::from_mins(2);
/// How many conflicts a release tries to get past: the Lease is watched by few and written by one.
const CONFLICTS: u32 = 2;
/// How long a replica that can serve only some scopes leaves a free Lease to those that can serve all.
pub const YIELD_DELAY: Duration = Duration::from_secs(3);

/// What an election needs.
pub struct Election {
    /// The API server's address, for metrics and traces.
    pub server: http::Uri,
    /// The way there, without retries ([`lease_transport`](crate::client::lease_transport)).
    pub transport: Transport,
    /// Where the time and chance come from: among them the clock of its deadlines.
    pub host: Host,
    /// The election's configuration.
    pub settings: LeaderElection,
    /// Who stands.
    pub identity: Identity,
    /// Where it is counted.
    pub metrics: Metrics,
    /// How much of its work this replica can do. A leader says that it can do none once its work is drained, and then
    /// lets the Lease go.
    pub ability: watch::Receiver<Ability>,
}

/// Stands in the election until `stop`, publishes each term in `term`, `None` between them, and has `pulse` tell that the
/// loop turns.
///
/// A lost term is not the end: this replica goes on standing. `stop` is to resolve once the work is drained: then the
/// term ends, and after that the Lease is released, so that the next leader never overlaps. That takes bounded time.
///
/// # Errors
/// [`Error::Namespace`] if the Lease's is not configured. An API server that is down or refuses is no error: the election
/// goes on asking.
pub async fn run(
    Election {
        server,
        transport,
        host,
        settings,
        identity,
        metrics,
        ability,
    }: Election,
    term: watch::Sender<Option<Term>>,
    pulse: Heartbeat,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), Error> {
    if !settings.enabled {
        Counts::new(&metrics, &settings.lease_name)
            .leading
            .record(1);
        term.send_replace(Some(Term::unlimited()));
        stop.await;
        term.send_replace(None);
        return Ok(());
    }
    let call = settings.call_timeout();
    let guard = LeaseGuardLayer::new(host.clone(), call, settings.lease_duration);
    let client = ClientBuilder::new(transport, "default")
        .with_layer(&guard)
        .with_layer(&RequestLayer::new(&server, &metrics, failed_by).within_spans())
        .build();
    Standing::new(host, &settings, identity, client, guard, term, &metrics)?
        .run(&pulse, ability, stop)
        .await;
    Ok(())
}

/// What kind of failure it is that no answer came of, for [`RequestLayer`].
#[must_use]
pub fn failed_by(error: &BoxError) -> FailedBy {
    if error.is::<fence::Refused>() {
        return FailedBy::Layer("fence");
    }
    if error.is::<fence::TimedOut>() {
        return FailedBy::Timeout;
    }
    match error.downcast_ref() {
        Some(lease_guard::Error::TimedOut(_)) => FailedBy::Timeout,
        Some(_) => FailedBy::Layer("lease_guard"),
        None => FailedBy::Connection,
    }
}

/// What the election counts.
struct Counts {
    leading: BoundGauge<u64>,
    transitions: BoundCounter<u64>,
    term_start: BoundGauge<u64>,
    renew: Timer,
}

impl Counts {
    fn new(metrics: &Metrics, lease: &str) -> Self {
        let name = KeyValue::new("name", lease.to_owned());
        Self {
            leading: metrics.gauge(&table::LEADING, &[name]),
            transitions: metrics.counter(&table::LEADER_TRANSITIONS, &[]),
            term_start: metrics.gauge(&table::TERM_START, &[]),
            renew: metrics.timer(&table::LEASE_RENEW, &[]),
        }
    }

    /// A term began.
    fn began(&self, host: &Host) {
        self.transitions.add(1);
        let since_1970 = host.now().as_second();
        self.term_start
            .record(u64::try_from(since_1970).unwrap_or_default());
    }
}

/// The loop's hands: what [`Elector`] decides is done here.
struct Standing {
    elector: Elector,
    clock: Clock,
    host: Host,
    lock: LeaseLock,
    guard: LeaseGuardLayer,
    leases: Api<Lease>,
    record: Assertions,
    announcer: Announcer,
    term: watch::Sender<Option<Term>>,
    published: Option<Held>,
    /// The fence tells here that the API server refused a write by its fencing policy.
    disputes: Arc<Notify>,
    /// The work's writes that may still land.
    writes: Writes,
    identity: Identity,
    name: String,
    /// `namespace/name`, for logs.
    lease: String,
    retry_period: Duration,
    renew_deadline: Duration,
    call: Duration,
    /// The leader as last logged.
    leader: String,
    /// It is logged that nobody has held the Lease yet.
    unheld: bool,
    /// What went wrong last, until an attempt succeeds: why a term is lost.
    trouble: String,
    /// What is logged already: of the attempts, and of the watch.
    failures: Causes,
    watch_failures: Causes,
    counts: Counts,
}

impl Standing {
    /// A replica that stands with a `client` that has `guard` in it.
    fn new(
        host: Host,
        settings: &LeaderElection,
        identity: Identity,
        client: Client,
        guard: LeaseGuardLayer,
        term: watch::Sender<Option<Term>>,
        metrics: &Metrics,
    ) -> Result<Self, Error> {
        let app = metrics.app();
        let counts = Counts::new(metrics, &settings.lease_name);
        let call = settings.call_timeout();
        let namespace = settings.lease_namespace.clone();
        let namespace = namespace.ok_or_else(|| Error::Namespace(app.env_prefix()))?;
        let name = settings.lease_name.clone();
        let params = LeaseLockParams {
            lease_name: name.clone(),
            holder_id: identity.to_string(),
            lease_ttl: settings.lease_duration,
        };
        let timing = Timing {
            renew_deadline: settings.renew_deadline,
            attempt: call,
            retry_period: settings.retry_period,
            yield_delay: YIELD_DELAY,
        };
        Ok(Self {
            announcer: Announcer::new(&host, client.clone(), &namespace, &name, &identity, metrics),
            elector: Elector::new(identity.to_string(), timing),
            clock: host.clock.clone(),
            host,
            lock: LeaseLock::new(client.clone(), &namespace, params),
            guard,
            record: Assertions::new(
                FencingRecord::new(app, &client, &namespace, &name, &identity),
                call,
                settings.retry_period,
            ),
            leases: Api::namespaced(client, &namespace),
            term,
            published: None,
            disputes: Arc::default(),
            writes: Writes::new(settings.send_timeout().unwrap_or_default()),
            identity,
            lease: format!("{namespace}/{name}"),
            name,
            retry_period: settings.retry_period,
            renew_deadline: settings.renew_deadline,
            call,
            leader: String::new(),
            unheld: false,
            trouble: String::new(),
            failures: Causes::new(QUIET),
            watch_failures: Causes::new(QUIET),
            counts,
        })
    }

    async fn run(
        mut self,
        pulse: &Heartbeat,
        mut ability: watch::Receiver<Ability>,
        stop: impl Future<Output = ()>,
    ) {
        let mut stop = pin!(stop);
        let mut stopping = false;
        let mut watch: Option<BoxStream<'static, Observed>> = None;
        let mut event = Event::Able(*ability.borrow_and_update());
        loop {
            // An attempt and the assertion of the fencing record, or less.
            pulse.beat("taking its turn", (self.call * 2).max(LOOK));
            let (watched, tried) = (
                self.elector.watching(),
                matches!(event, Event::Tried { .. }),
            );
            let action = self
                .elector
                .step(self.clock.now(), event, &self.guard.observed());
            self.publish(stopping);
            let observed = self.guard.observed();
            // A leader needs none; nor is one kept that did not tell what an attempt then found.
            if self.published.is_some() || (tried && watched && !self.elector.watching()) {
                watch = None;
            }
            if watch.is_none() && self.published.is_none() && observed.is_known() {
                watch = Some(self.watch());
            }
            event = match action {
                Action::Wait(until) => {
                    let pause = until.saturating_sub(self.clock.now()).min(LOOK);
                    tokio::select! {
                        biased;
                        () = &mut stop, if !stopping => {
                            stopping = true;
                            Event::Stop
                        }
                        able = changed(&mut ability) => Event::Able(able),
                        Some(seen) = async { watch.as_mut()?.next().await }, if watch.is_some() => {
                            self.watched(seen)
                        }
                        () = self.disputes.notified(), if self.published.is_some() => {
                            self.record.disputed();
                            Event::Disputed
                        }
                        deposed = self.record.ended(), if self.record.is_under_way() => {
                            // Of a term that is over already, it says nothing new.
                            match deposed.filter(|_| self.published.is_some()) {
                                Some(holder) => {
                                    self.deposed(&holder);
                                    Event::Deposed
                                }
                                None => Event::Tick,
                            }
                        }
                        () = self.announcer.died() => Event::Tick,
                        () = time::sleep(pause) => Event::Tick,
                    }
                }
                // Not interrupted by `stop`: what is on the wire may make us the holder, and is to be released then.
                Action::Try(within) => {
                    let tried = self.attempt(within).await;
                    self.assert_record(tried).await
                }
                Action::Release => {
                    pulse.beat("releasing the lease", self.call * 2);
                    self.record.stop();
                    let span = self.span("release");
                    self.release().instrument(span).await;
                    Event::Released
                }
                Action::Done => break,
            };
        }
        self.announcer.finish().await;
    }

    /// Lets the world know of a term gained, renewed or lost: first the fence, then people.
    fn publish(&mut self, stopping: bool) {
        if self.elector.held() == self.published.as_ref() {
            return;
        }
        let held = self.elector.held().cloned();
        let term = |held: &Held| {
            Term::new(held.id, held.transitions, held.deadline, self.clock.clone())
                .disputed_to(Arc::clone(&self.disputes))
                .counted_in(self.writes.clone())
        };
        self.term.send_replace(held.as_ref().map(term));
        self.counts.leading.record(held.is_some().into());
        let before = std::mem::replace(&mut self.published, held.clone());
        if before.as_ref().map(|held| held.id) == held.as_ref().map(|held| held.id) {
            return;
        }
        if let Some(Held {
            uid, transitions, ..
        }) = before
        {
            if !stopping {
                let why = match &held {
                    Some(_) => "deleted or taken meanwhile, and acquired again",
                    None if self.elector.ability() == Ability::Nothing => {
                        "this replica cannot work"
                    }
                    None if self.trouble.is_empty() => "not renewed in time",
                    None => &self.trouble,
                };
                warn!(lease = self.lease, holder = %self.identity, transitions, "lost the lease: {why}");
            }
            self.announcer
                .announce("StopLeading", "stopped leading", &uid);
        }
        if let Some(Held {
            uid, transitions, ..
        }) = held
        {
            self.counts.began(&self.host);
            info!(lease = self.lease, holder = %self.identity, transitions, "gained the lease");
            self.announcer
                .announce("BecomeLeader", "became leader", &uid);
        }
    }

    async fn attempt(&mut self, within: Duration) -> Event {
        let sent = self.clock.now();
        self.guard
            .leads_until(self.elector.held().map(|held| held.deadline));
        // A renewal is of interest when it fails, and from then on until one succeeds.
        let span = match &self.published {
            None => self.span("acquire"),
            Some(_) if self.trouble.is_empty() => Span::none(),
            Some(_) => self.span("renew"),
        };
        let attempt = self.lock.try_acquire_or_renew();
        let reply = time::timeout(within, attempt)
            .instrument(span.clone())
            .await;
        let _entered = span.entered();
        if self.published.is_some() {
            let took = self.clock.now().saturating_sub(sent);
            self.counts.renew.record(took);
        }
        let outcome = match reply {
            Ok(Ok(LeaseLockResult::Acquired(lease) | LeaseLockResult::NotAcquired(lease))) => {
                self.outcome(lease)
            }
            // Another was faster (H1, H10).
            Ok(Err(
                LockError::AcquireLease(kube::Error::Api(status))
                | LockError::CreateLease(kube::Error::Api(status)),
            )) if status.code == 409 => Outcome::Failed,
            Ok(Err(error)) => self.failed(&reason(&error)),
            Err(_) => self.failed(&format!("no answer from the API server in {within:?}")),
        };
        let pause = self.host.spread(self.retry_period, 0.1);
        Event::Tried {
            sent,
            outcome,
            pause,
        }
    }

    /// Has the fencing record name this replica, and again after the fencing policy rejected a write. Whatever comes of it, the
    /// term goes on, unless the Lease turns out to be somebody else's: where the policy is installed, it rejects the next write,
    /// and this is tried again. Only a new term waits for it, and no longer than leaves time to renew before its end.
    async fn assert_record(&mut self, tried: Event) -> Event {
        let Event::Tried {
            sent,
            outcome: Outcome::Held { uid, transitions },
            pause,
        } = &tried
        else {
            return tried;
        };
        self.record.renewed(uid, *transitions);
        let mut published = self.published.iter();
        let room = if published.any(|held| held.uid == *uid && held.transitions == *transitions) {
            Duration::ZERO
        } else {
            // The next attempt may take as long as this one did.
            let took = self.clock.now().saturating_sub(*sent);
            self.renew_deadline.saturating_sub(took * 2) / 2
        };
        let ended = time::timeout(room.min(self.call), self.record.ended());
        let Ok(Some(holder)) = ended.await else {
            return tried;
        };
        self.deposed(&holder);
        Event::Tried {
            sent: *sent,
            outcome: Outcome::HeldBy(holder),
            pause: *pause,
        }
    }

    fn deposed(&mut self, holder: &str) {
        self.trouble = "the lease changed hands meanwhile".into();
        self.standing_by(holder);
    }

    /// A trace of its own.
    fn span(&self, name: &str) -> Span {
        info_span!(
            parent: None,
            "election",
            otel.name = name,
            otel.status_description = Empty,
            error.type = Empty,
            lease = self.lease,
            holder = self.identity.as_str(),
        )
    }

    /// Believes what the API server's reply says, not what the crate made of it (H2).
    fn outcome(&mut self, lease: Lease) -> Outcome {
        let spec = lease.spec.unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        if holder == self.identity.as_str() {
            self.trouble.clear();
            self.failures.clear();
            self.leader.clear();
            self.unheld = false;
            let uid = lease.metadata.uid.unwrap_or_default();
            return Outcome::Held {
                uid,
                transitions: spec.lease_transitions.unwrap_or_default(),
            };
        }
        if holder.is_empty() {
            if !std::mem::replace(&mut self.unheld, true) && self.published.is_none() {
                let wait = self.guard.observed().free_at();
                let wait = wait.saturating_sub(self.clock.now());
                let lease = &self.lease;
                info!(
                    lease,
                    "nobody has held the lease yet, unless it was deleted or edited just now: waiting for {wait:.0?}"
                );
            }
            return Outcome::Unheld;
        }
        self.unheld = false;
        self.trouble = format!("{holder} holds it");
        self.standing_by(&holder);
        Outcome::HeldBy(holder)
    }

    /// The same trouble is told once, not at every attempt.
    fn failed(&mut self, trouble: &str) -> Outcome {
        let span = match Span::current() {
            span if span.is_none() => self.span("renew"),
            span => span,
        };
        trace::failed(&span, "lease", &trouble);
        let _entered = span.entered();
        if self.failures.is_new(trouble) {
            warn!(
                lease = self.lease,
                "cannot acquire or renew the lease: {trouble}"
            );
        } else {
            debug!(
                lease = self.lease,
                "cannot acquire or renew the lease: {trouble}"
            );
        }
        trouble.clone_into(&mut self.trouble);
        Outcome::Failed
    }

    fn watch(&self) -> BoxStream<'static, Observed> {
        lease_watch::watch(
            self.host.clone(),
            self.leases.clone(),
            &self.name,
            self.retry_period,
        )
    }

    fn watched(&mut self, seen: Observed) -> Event {
        match seen {
            Ok(lease) => {
                if self.watch_failures.is_over() {
                    info!(lease = self.lease, "watch re-established");
                }
                let news = self.guard.observe(lease.as_ref());
                let holder = lease
                    .and_then(|lease| lease.spec)
                    .and_then(|spec| spec.holder_identity);
                self.standing_by(&holder.unwrap_or_default());
                Event::Watched { news }
            }
            Err(failure) => {
                let cause = match failure {
                    Failure::Failed(error) => cause(&error),
                    Failure::Ended => "the watch ends at once".to_owned(),
                };
                let (lease, period) = (&self.lease, self.retry_period);
                if self.watch_failures.is_new(&cause) {
                    warn!(
                        lease,
                        "cannot watch the lease, reading it every {period:?}: {cause}"
                    );
                } else {
                    debug!(lease, "cannot watch the lease: {cause}");
                }
                Event::WatchLost
            }
        }
    }

    fn standing_by(&mut self, leader: &str) {
        if !leader.is_empty() && leader != self.leader && leader != self.identity.as_str() {
            info!(lease = self.lease, holder = leader, "standing by");
            leader.clone_into(&mut self.leader);
        }
    }

    /// Gives the Lease back if it is ours. A conflict means that somebody has written it (H4): a rival, and there is
    /// nothing to release, or an own renewal that came late, and there is.
    /// Before nothing of ours can land any more, nobody else may lead: then it is left to expire, which is later than that.
    async fn release(&mut self) {
        if time::timeout(self.call, self.writes.over()).await.is_err() {
            warn!(
                lease = self.lease,
                holder = %self.identity,
                "not releasing the lease, a write may still be on its way: it expires by itself"
            );
            return;
        }
        let release = async {
            let mut conflicts = 0;
            loop {
                match self.lock.step_down().await {
                    Err(LockError::ReleaseLease(kube::Error::Api(status)))
                        if status.code == 409 && conflicts < CONFLICTS =>
                    {
                        conflicts += 1;
                    }
                    done => return done,
                }
            }
        };
        let (lease, holder) = (&self.lease, &self.identity);
        match time::timeout(self.call, release).await {
            Ok(Ok(())) => info!(lease, %holder, "released the lease"),
            Ok(Err(LockError::ReleaseLockWhenNotLeading { leader })) => {
                debug!(lease, leader, "nothing to release");
            }
            Ok(Err(error)) => {
                let reason = reason(&error);
                trace::failed(&Span::current(), "lease", &reason);
                warn!(lease, %holder, "could not release the lease, it will expire: {reason}");
            }
            Err(_) => {
                trace::failed(
                    &Span::current(),
                    "timeout",
                    &"no answer from the API server",
                );
                warn!(lease, %holder, "could not release the lease in {:?}, it will expire", self.call);
            }
        }
    }
}

/// How much of its work this replica can do, when that changes.
async fn changed(ability: &mut watch::Receiver<Ability>) -> Ability {
    if ability.changed().await.is_err() {
        // Whoever says so is gone, and the process about to end.
        pending::<()>().await;
    }
    *ability.borrow_and_update()
}

/// What went wrong, without the debug output that kube adds to it.
fn reason(error: &LockError) -> String {
    let cause = match error {
        LockError::ApiError { response } => return refusal(response),
        LockError::GetLease(cause)
        | LockError::CreateLease(cause)
        | LockError::AcquireLease(cause)
        | LockError::RenewLease(cause)
        | LockError::ReleaseLease(cause)
        | LockError::Kube(cause) => cause,
        other => return other.to_string(),
    };
    self::cause(cause)
}

fn cause(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => refusal(status),
        kube::Error::Service(error) => with_causes(&**error),
        other => other.to_string(),
    }
}

/// The API server's words, and what to do where that is known.
fn refusal(status: &Status) -> String {
    let hint = match status.code {
        401 => ": check the kubeconfig or the service account's token",
        403 => ": allow get, watch, create and patch of leases, as the Role in deploy/base does",
        _ => "",
    };
    format!("{}: {}{hint}", status.reason, status.message)
}

/// Tells people of each change of leader by an event on the Lease, in nobody's way. The recorder is one of its own, on the
/// lease's client: its events neither pass the fence nor wait behind those of the work.
struct Announcer {
    recorder: Recorder,
    lease: Key,
    identity: Identity,
    writer: JoinSet<()>,
}

impl Announcer {
    fn new(
        host: &Host,
        client: Client,
        namespace: &str,
        name: &str,
        identity: &Identity,
        metrics: &Metrics,
    ) -> Self {
        let app = metrics.app();
        let about = About {
            app,
            reporter: app.name,
            instance: identity.to_string(),
            kind: Kind::of::<Lease>(),
            host: host.clone(),
        };
        let (recorder, write) = Recorder::new(client, about, metrics, || false);
        let mut writer = JoinSet::new();
        writer.spawn(write);
        Self {
            recorder,
            lease: Key::new(namespace, name),
            identity: identity.clone(),
            writer,
        }
    }

    fn announce(&self, action: &'static str, what: &str, uid: &str) {
        let note = format!("{} {what}", self.identity);
        let event = recorder::Event::normal("LeaderElection", note).of(action);
        self.recorder.send(&self.lease, uid, event);
    }

    /// Panics if the writer has. It does not end otherwise.
    async fn died(&mut self) {
        if let Some(Err(ended)) = self.writer.join_next().await
            && let Ok(panic) = ended.try_into_panic()
        {
            resume_unwind(panic);
        }
        pending::<()>().await;
    }

    async fn finish(mut self) {
        drop(self.recorder);
        let _ = time::timeout(EVENT_TIMEOUT, self.writer.join_next()).await;
    }
}
