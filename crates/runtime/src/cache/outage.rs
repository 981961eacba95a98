//! Outage of a watch or of the reads that it causes: its log lines, its state in the readiness, and the delay before the next
//! attempt.

use std::{sync::Arc, time::Duration};

use kube::Error;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::{
    api::{failure::root_cause, kind::Kind},
    cache::readiness::{
        Status,
        namespace::{NamespaceName, Permission, Reason},
    },
    client::context::ClientContext,
    config::{app::App, backoff::Backoff, environment::Host},
    telemetry::{heartbeat::Heartbeat, log_once::OutageLog},
};

/// Longest delay between two attempts. It also limits how late the installation of a CRD is noticed.
pub(super) const MIN_PAUSE: Duration = Duration::from_millis(100);
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Jitter of a delay, as a ratio.
pub(super) const SPREAD: f64 = 0.2;

/// An outage ends after this time without an error. The next error is then logged again, and the delays restart. Received
/// events are no criterion: a healthy watch receives none while nothing changes.
const QUIET: Duration = Duration::from_secs(30);

/// Words of the log lines for one kind of request.
pub(super) struct Words {
    /// The required permissions.
    rights: &'static str,
    verb: &'static str,
    over: &'static str,
}

pub(super) const WATCH: Words = Words {
    rights: "list and watch",
    verb: "watch",
    over: "watch re-established",
};

pub(super) const GET: Words = Words {
    rights: "get",
    verb: "get",
    over: "referenced objects can be read again",
};

/// Current outage of a watch. Logs each cause once, and retries with exponential backoff.
pub(super) struct Outage {
    shared: Arc<ClientContext>,
    kind: Kind,
    namespace: Option<String>,
    words: &'static Words,
    pub status: Status,
    /// Whether the last report to the status was a failure.
    failing: bool,
    pauses: Backoff,
    /// Logged causes.
    causes: OutageLog,
}

impl Outage {
    pub(super) fn new(
        shared: Arc<ClientContext>,
        kind: Kind,
        namespace: Option<String>,
        status: Status,
        words: &'static Words,
    ) -> Self {
        Self {
            shared,
            kind,
            namespace,
            words,
            status,
            failing: false,
            pauses: Backoff::new(MIN_PAUSE, MAX_PAUSE),
            causes: OutageLog::new(QUIET),
        }
    }

    pub(super) fn say(&mut self, error: &Error) {
        let cause = explain(
            error,
            self.shared.app,
            &self.kind,
            self.namespace.as_deref(),
            self.words,
        );
        let code = match error {
            Error::Api(status) => Some(status.code),
            _ => None,
        };
        self.status.fails(Reason::of(code), cause.clone());
        self.failing = true;
        self.begin_anew_after_quiet();
        if let Some(lasting) = self.causes.is_due(&cause) {
            warn!(
                resource = self.kind.plural,
                namespace = self.namespace,
                "{cause}{lasting}"
            );
        }
    }

    /// Records that the API server does not serve an optional resource type, which is no failure.
    pub(super) fn is_absent(&mut self, text: String) {
        self.status.is_absent(text);
        self.causes.clear();
    }

    pub(super) fn host(&self) -> &Host {
        &self.shared.host
    }

    /// Returns `answer`. If it is an error, the time that the request took is counted as part of the outage.
    pub(super) fn opened<T>(&mut self, answer: kube::Result<T>) -> kube::Result<T> {
        if answer.is_err() {
            self.causes.touch();
        }
        answer
    }

    /// Logs that a streamed list did not end. Called once, because the watch requests no other streamed list.
    pub(super) fn has_no_end(&self) {
        let (place, plural) = (self.place(), self.kind.plural);
        warn!(
            "streamed list of {plural} in {place} did not end (does a proxy drop bookmarks?): listing in pages from now on"
        );
    }

    fn place(&self) -> NamespaceName<'_> {
        NamespaceName::of(&self.kind, self.namespace.as_deref())
    }

    pub(super) fn ends_at_once(&mut self) {
        let place = self.place();
        let text = format!(
            "the watch of {} in {place} ended too early",
            self.kind.plural
        );
        self.status.fails(Reason::Failing, text);
        self.failing = true;
    }

    /// Waits for the backoff, or for `asked` (`Retry-After`) if that is longer.
    pub(super) async fn pause(&mut self, heartbeat: &Heartbeat, asked: Duration) {
        let pause = self.next_pause(asked);
        heartbeat.beat("pausing", pause.max(MAX_PAUSE.mul_f64(1.0 + SPREAD)));
        sleep(pause).await;
        self.causes.touch();
    }

    /// Returns the backoff, or `asked` if that is longer.
    pub(super) fn next_pause(&mut self, asked: Duration) -> Duration {
        self.begin_anew_after_quiet();
        let pause = self
            .shared
            .host
            .jitter(self.pauses.advance(), SPREAD)
            .max(asked);
        // A cause that is not logged extends the outage as well: else the pauses would not grow.
        self.causes.touch();
        if !asked.is_zero() {
            self.status.waits(asked);
        }
        pause
    }

    /// Records that the API server sent something. Delay and causes stay for [`QUIET`]: a list that always succeeds before a
    /// watch that always fails is one outage.
    pub(super) fn is_over(&mut self) {
        if std::mem::take(&mut self.failing) {
            self.status.works();
        }
        if self.causes.is_over() {
            info!(
                resource = self.kind.plural,
                namespace = self.namespace,
                "{}",
                self.words.over
            );
        }
    }

    pub(super) fn begin_anew_after_quiet(&mut self) {
        if self.causes.is_quiet() {
            self.causes.clear();
            self.pauses.reset();
        }
    }
}

fn explain(
    error: &Error,
    app: &App,
    kind: &Kind,
    namespace: Option<&str>,
    &Words { rights, verb, .. }: &Words,
) -> String {
    let (place, plural) = (NamespaceName::of(kind, namespace), kind.plural);
    let status = match error {
        Error::Api(status) => Some(status.code),
        _ => None,
    };
    match status {
        Some(404) if kind.group == app.group => format!(
            "the CustomResourceDefinition {plural}.{} is not installed: run `{} crd | kubectl apply -f -`; waiting for it",
            kind.group, app.name
        ),
        Some(403) => format!(
            "not allowed to {rights} {plural} in {place}: {}; retrying",
            Permission::REMEDY
        ),
        Some(401) => "the API server does not accept the credentials: check the kubeconfig or the service account's token; \
                      retrying"
            .to_owned(),
        // kube's code for data that is neither an event nor an error.
        Some(0) => format!("cannot watch {plural} in {place}: invalid watch event; retrying"),
        Some(410) => format!("the watch of {plural} fell too far behind: listing again"),
        Some(code) => format!(
            "cannot {verb} {plural} in {place}: the API server returned {code} ({}); retrying",
            root_cause(error)
        ),
        _ => format!("cannot {verb} {plural} in {place}: {}; retrying", root_cause(error)),
    }
}
