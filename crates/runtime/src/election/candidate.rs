//! A replica that runs for leader: the loop that executes the actions of [`ElectionState`].

use std::{future::pending, pin::pin, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::FusedFuture as _};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use kube_leader_election::{LeaseLock, LeaseLockParams};
use tokio::{sync::watch, time};
use tracing::{Instrument as _, Span, debug, field::Empty, info, info_span, warn};

use super::{
    cause,
    error::Error,
    events::LeaseRecorder,
    fencing_record::{FencingRecord, FencingRecordWriter},
    identity::{ElectionTarget, Identity},
    lease_guard::LeaseGuardLayer,
    metrics::Counts,
    state_machine::{Action, ElectionState, Event, Held, Timing},
    watch::{Failure, LeaseUpdate, LeaseWatch, Report},
};
use crate::{
    client::fence::{
        eligibility::Eligibility,
        in_flight::{Write, Writes},
        rejections::RejectionReports,
        term::Term,
    },
    config::{
        clock::Clock,
        environment::Host,
        settings::{LeaderElection, SAFE_MARGIN},
    },
    telemetry::{heartbeat::Heartbeat, log_once::OutageLog, metrics::Metrics},
};

/// Longest sleep before the clock is read again. While a machine is suspended, tokio's timers stop, but the clock of the Lease
/// advances. The value is the default interval of renewals: a shorter one has no benefit. (The fence reads the clock at each
/// write.)
const CLOCK_INTERVAL: Duration = Duration::from_secs(2);
/// Time without a failure before the next failure counts as a new outage, and is logged again.
const QUIET: Duration = Duration::from_mins(2);
/// Delay before a replica that can serve only some scopes (namespaces; see [`Eligibility`]) takes a free Lease. Replicas that can
/// serve all scopes go first.
pub const YIELD_DELAY: Duration = Duration::from_secs(3);

/// A replica that runs for leader.
pub(crate) struct Candidate {
    pub(super) elector: ElectionState,
    pub(super) clock: Clock,
    pub(super) host: Host,
    pub(super) lock: LeaseLock,
    pub(super) guard: LeaseGuardLayer,
    pub(super) leases: Api<Lease>,
    /// Writes and verifies the fencing record.
    pub(super) record: FencingRecordWriter,
    pub(super) recorder: LeaseRecorder,
    /// The term, for the fence and the controller.
    pub(super) term: watch::Sender<Option<Term>>,
    /// The leadership that `term` was published for.
    pub(super) published: Option<Held>,
    /// Reported by the fence when the fencing policy rejects a write.
    pub(super) rejections: Arc<RejectionReports>,
    /// The controller's writes in flight.
    pub(super) writes: Writes,
    /// How long after the end of the term the API server may carry out a write.
    overtime: Duration,
    /// Longest `timeout=` of a write.
    longest_write: Duration,
    /// Placeholder for writes that the previous process of this container may have in flight: a restarted container continues
    /// with the Lease of its pod. Set at each start. Dropped at the release if another replica held the Lease at the start.
    pub(super) before: Option<Write>,
    pub(super) identity: Identity,
    pub(super) name: String,
    /// `namespace/name`, for logs.
    pub(super) lease: String,
    pub(super) retry_period: Duration,
    pub(super) renew_deadline: Duration,
    /// Timeout of one request.
    pub(super) call: Duration,
    /// The holder that was logged last.
    pub(super) leader: String,
    /// Whether the last response contained a Lease without a holder. Such a Lease is logged once.
    pub(super) unheld: bool,
    /// The last failure, until an attempt succeeds. It is the reason of a lost term.
    pub(super) trouble: String,
    /// Start of the current series of failures, and time of its last warning, both by `clock`.
    pub(super) failing: Option<(Duration, Duration)>,
    /// Logged causes of failed attempts.
    pub(super) failures: OutageLog,
    /// Logged causes of failures of the watch.
    pub(super) watch_failures: OutageLog,
    pub(super) counts: Counts,
}

impl Candidate {
    /// Creates a candidate. The requests of `client` must pass `guard`.
    pub(super) fn new(
        host: Host,
        settings: &LeaderElection,
        target: ElectionTarget,
        client: Client,
        guard: LeaseGuardLayer,
        term: watch::Sender<Option<Term>>,
        metrics: &Metrics,
    ) -> Result<Self, Error> {
        let app = metrics.app();
        let counts = Counts::new(metrics, &settings.lease_name, &target.installation);
        let call = settings.call_timeout();
        let ElectionTarget {
            identity,
            namespace,
            ..
        } = target;
        let namespace = namespace.ok_or_else(|| Error::Namespace(app.env_prefix()))?;
        if settings.fencing_record.is_none()
            && let Some(why) = settings.fencing_reason()
        {
            warn!(
                "no fencing: leader_election.fencing_record is not set, and {why}; install the fencing component, or set \
                 lease_duration to at least {SAFE_MARGIN:?} more than renew_deadline"
            );
        }
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
            recorder: LeaseRecorder::new(
                &host,
                client.clone(),
                &namespace,
                &name,
                &identity,
                metrics,
            ),
            elector: ElectionState::new(identity.to_string(), timing),
            clock: host.clock.clone(),
            lock: LeaseLock::new(client.clone(), &namespace, params),
            guard,
            record: FencingRecordWriter::new(
                host.clone(),
                FencingRecord::new(app, &client, &namespace, settings, &identity),
                call,
                settings.retry_period,
            ),
            leases: Api::namespaced(client, &namespace),
            host,
            term,
            published: None,
            rejections: Arc::default(),
            writes: Writes::new(settings.way()),
            overtime: settings.overtime(),
            longest_write: settings.longest_write(),
            before: None,
            identity,
            lease: format!("{namespace}/{name}"),
            name,
            retry_period: settings.retry_period,
            renew_deadline: settings.renew_deadline,
            call,
            leader: String::new(),
            unheld: false,
            trouble: String::new(),
            failing: None,
            failures: OutageLog::new(QUIET),
            watch_failures: OutageLog::new(QUIET),
            counts,
        })
    }

    /// Executes the actions of the elector until it is done. `stop` resolves when the process stops and its work is drained.
    pub(super) async fn run(
        mut self,
        heartbeat: &Heartbeat,
        mut ability: watch::Receiver<Eligibility>,
        stop: impl Future<Output = ()>,
    ) {
        let mut stop = pin!(stop.fuse());
        let mut watch: Option<LeaseWatch> = None;
        self.before = Some(self.writes.begin(self.longest_write));
        let mut event = Event::Able(*ability.borrow_and_update());
        loop {
            // The longest turn is an attempt and the assertion of the fencing record.
            heartbeat.beat(
                "running the election loop",
                (self.call * 2).max(CLOCK_INTERVAL),
            );
            let (watched, tried) = (
                self.elector.watching(),
                matches!(event, Event::Tried { .. }),
            );
            let action = self
                .elector
                .step(self.clock.now(), event, &self.guard.observed());
            self.publish(stop.is_terminated());
            let observed = self.guard.observed();
            // A leader needs no watch. If an attempt found a change that the watch had not reported, the elector trusts the
            // watch no longer, and it is replaced.
            if self.published.is_some() || (tried && watched && !self.elector.watching()) {
                watch = None;
            }
            if watch.is_none() && self.published.is_none() && observed.is_known() {
                watch = Some(self.watch());
            }
            let asked = async {
                tokio::select! {
                    biased;
                    () = &mut stop => Event::Stop,
                    able = changed(&mut ability) => Event::Able(able),
                }
            };
            event = match action {
                Action::Wait(until) => {
                    let pause = until.saturating_sub(self.clock.now()).min(CLOCK_INTERVAL);
                    tokio::select! {
                        biased;
                        event = asked => event,
                        Some(report) = async { Some(watch.as_mut()?.next().await) }, if watch.is_some() => {
                            self.watched(report)
                        }
                        message = self.rejections.next(), if self.published.is_some() => {
                            self.record.rejected(&message);
                            Event::Rejected
                        }
                        deposed = self.record.ended(), if self.record.is_under_way() => {
                            // The term may have ended before this result. Then it changes nothing.
                            match deposed.filter(|_| self.published.is_some()) {
                                Some(holder) => {
                                    self.deposed(&holder);
                                    Event::Deposed
                                }
                                None => Event::Tick,
                            }
                        }
                        () = self.recorder.died() => Event::Tick,
                        () = time::sleep(pause) => Event::Tick,
                    }
                }
                // If each attempt takes longer than the pause after it, the loop never waits for a stop or a new ability. So
                // both are checked before each attempt. An attempt is not interrupted: its request may make this replica the
                // holder, and then the Lease must be released.
                Action::Try(within) => {
                    if let Some(event) = asked.now_or_never() {
                        event
                    } else {
                        let tried = self.attempt(within, watch.as_mut()).await;
                        self.assert_record(tried).await
                    }
                }
                Action::Release => {
                    heartbeat.beat("releasing the lease", self.call * 2);
                    self.record.stop();
                    let span = self.span("release");
                    self.release().instrument(span).await;
                    Event::Released
                }
                Action::Done => break,
            };
        }
        self.recorder.finish().await;
    }

    /// Publishes a gained, renewed or lost term. The fence and the controller receive it first. Metrics, log and events follow.
    pub(super) fn publish(&mut self, stopping: bool) {
        let leads = self.elector.held().is_some();
        self.guard.record_is(leads.then(|| self.record.is()));
        let is_missing = leads && self.record.is_missing();
        self.counts.record_missing.record(is_missing.into());
        if self.elector.held() == self.published.as_ref() {
            return;
        }
        let held = self.elector.held().cloned();
        let term = |held: &Held| {
            Term::new(held.id, held.transitions, held.deadline, self.clock.clone())
                .rejections_to(Arc::clone(&self.rejections))
                .with_overtime(self.overtime)
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
                    Some(_) => "deleted or taken by another replica, and acquired again",
                    None if self.elector.ability() == Eligibility::None => {
                        "no namespace can be served"
                    }
                    None if self.trouble.is_empty() => "not renewed in time",
                    None => &self.trouble,
                };
                warn!(lease = self.lease, holder = %self.identity, transitions, "lost the lease: {why}");
            }
            self.recorder.record("StopLeading", "stopped leading", &uid);
        }
        if let Some(Held {
            uid, transitions, ..
        }) = held
        {
            self.counts.began(&self.host);
            info!(lease = self.lease, holder = %self.identity, transitions, "gained the lease");
            self.recorder.record("BecomeLeader", "became leader", &uid);
        }
    }

    /// Root span of a new trace.
    pub(super) fn span(&self, name: &str) -> Span {
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

    fn watch(&self) -> LeaseWatch {
        LeaseWatch::new(
            self.host.clone(),
            self.leases.clone(),
            &self.name,
            self.guard.clone(),
            self.retry_period,
        )
    }

    fn watched(&mut self, report: Report) -> Event {
        match report {
            Ok(LeaseUpdate { holder, changed }) => {
                if self.watch_failures.is_over() {
                    info!(lease = self.lease, "watch re-established");
                }
                self.standing_by(&holder);
                Event::Watched { changed }
            }
            Err(failure) => {
                let cause = match failure {
                    Failure::Failed(error) => cause::of_request(&error),
                    Failure::Ended => "the watch ended too early".to_owned(),
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

    pub(super) fn standing_by(&mut self, leader: &str) {
        if !leader.is_empty() && leader != self.leader && leader != self.identity.as_str() {
            info!(lease = self.lease, holder = leader, "standing by");
            leader.clone_into(&mut self.leader);
        }
    }
}

/// Waits for the next change of the ability.
async fn changed(ability: &mut watch::Receiver<Eligibility>) -> Eligibility {
    if ability.changed().await.is_err() {
        // The sender is gone: the process is about to end.
        pending::<()>().await;
    }
    *ability.borrow_and_update()
}
