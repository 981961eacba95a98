//! The election and the fence for another controller, such as kube's.

use kube::{Client, Config};
use tokio::{sync::watch, task::JoinHandle};

use super::{
    error::Error,
    identity::ElectionTarget,
    lease_guard::SeenLease,
    run::{Election, run},
};
use crate::{
    client::{
        cluster::Cluster,
        fence::{FenceLayer, eligibility::Eligibility, term::Term},
    },
    config::{environment::Host, settings::LeaderElection},
    telemetry::{heartbeat::Heartbeat, metrics::Metrics},
};

const NO_NAMESPACE: &str = "lease_namespace is not set, and neither is the variable POD_NAMESPACE: set one of them to the \
                            namespace of the Lease, the same for all replicas";

/// The election and the fenced client, for another controller than the runtime's.
///
/// The election is a task. It continues if this value is dropped.
#[must_use]
pub struct Candidate {
    /// A client that reads at any time, but [writes](FenceLayer) only while this replica leads.
    pub client: Client,
    /// The fence of `client`. [Wrap](FenceLayer::wrap) another client in it if `client` cannot be used.
    pub fence: FenceLayer,
    /// The term, while this replica leads. Run the controller during a term: without one, its writes fail.
    ///
    /// A published term may have ended, for example in a process that was frozen. Call [`Term::remaining`] right before an
    /// action that the fence does not check.
    pub term: watch::Receiver<Option<Term>>,
    /// The election task. It ends after the release of the Lease. If it ends earlier, exit the process.
    pub election: JoinHandle<Result<(), Error>>,
}

/// Starts the election and the fence of the runtime for another controller, such as kube's, on the API server of `kube`.
///
/// The replica is identified by the variables `POD_NAME` and `POD_UID`, which the Deployment must set (from `metadata.name` and
/// `metadata.uid`). The default of `lease_namespace` is the namespace of the pod: `POD_NAMESPACE`, or the namespace of the mounted
/// service account. The replica must be allowed to `get`, `create`, `patch` and `watch` the Lease, to `create` and `patch`
/// events of its namespace, and, for server-side fencing, to `get` and `patch` the fencing record.
///
/// Resolve `drained` when the controller has stopped: then the election releases the Lease.
///
/// # Ranges
///
/// As in client-go (`leaderelection.go`), `lease_duration` exceeds `renew_deadline`, and `renew_deadline` exceeds
/// 1.2 × `retry_period`. In addition:
///
/// - `lease_duration` is whole seconds, from 1 s to 1 h, because `leaseDurationSeconds` of the Lease is an integer;
/// - `lease_duration` − `renew_deadline` exceeds 700 ms and a 500th of `lease_duration`: a write at the end of a term must end
///   before the Lease does;
/// - `retry_period` is 10 ms or more;
/// - the names are DNS-1123 subdomains.
///
/// The kernel does not report a pause of a virtual machine. If `lease_duration` − `renew_deadline` is less than 5 s, a snapshot
/// or a live migration can outlast it. Then install the fencing policy, and set `fencing_record`.
///
/// Without a term, the fence passes these requests:
///
/// - `GET`, `HEAD` and `OPTIONS`. As a WebSocket, a `GET` also runs `exec`, `attach`, `portforward` and `proxy`, which act on
///   the processes of a pod;
/// - all requests for events, of both API groups;
/// - access reviews and token reviews, which store nothing.
///
/// A controller whose work consists of such requests must check the [term](Candidate::term) itself.
///
/// # Errors
/// - [`Error::Settings`] if the settings are out of range, or no namespace is known.
/// - [`Error::Identity`] if `POD_NAME` and `POD_UID` form no valid identity.
/// - [`Error::Claimed`] if another candidate on this machine has the same identity and Lease.
/// - [`Error::Cluster`] if `kube` cannot be used. A `kube` with a proxy is an error: a proxy may forward a write after the end of
///   the term.
///
/// An API server that is down is not an error: the election retries.
///
/// # Panics
/// Outside a Tokio runtime.
pub async fn candidate(
    host: &Host,
    kube: Config,
    settings: LeaderElection,
    metrics: Metrics,
    drained: impl Future<Output = ()> + Send + 'static,
) -> Result<Candidate, Error> {
    settings.check().map_err(Error::Settings)?;
    let mut cluster = Cluster::from_kube_config(metrics.app(), host, kube, &settings).await?;
    let pod_namespace = cluster.pod_namespace.take();
    let target = ElectionTarget::of(metrics.app(), host, &settings, "", pod_namespace);
    let target = target.map_err(|error| match error {
        Error::Namespace(_) => Error::Settings(NO_NAMESPACE.to_owned()),
        other => other,
    })?;
    let claim = target.claim(host, &settings)?;
    let (publish, term) = watch::channel(None);
    let fence = FenceLayer::new(term.clone(), &metrics);
    let (client, server, transport) = cluster.fenced(&fence, &metrics);
    let election = Election {
        server,
        transport,
        host: host.clone(),
        settings,
        target,
        metrics,
        seen: SeenLease::default(),
        ability: watch::channel(Eligibility::Full).1,
    };
    let election = async move {
        let ended = run(election, publish, Heartbeat::default(), drained).await;
        drop(claim);
        ended
    };
    Ok(Candidate {
        client,
        fence,
        term,
        election: tokio::spawn(election),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::{ffi::OsString, future::pending, time::Duration};

    use k8s_openapi::jiff::Timestamp;

    use http::Request;
    use kube::client::Body;
    use tokio::sync::oneshot;

    use super::*;
    use crate::{
        client::fence::is_refused,
        config::{app::tests::APP, clock::Clock},
    };

    const POD: [(&str, &str); 2] = [("POD_NAME", "p"), ("POD_UID", "u")];

    async fn started(
        settings: LeaderElection,
        variables: &[(&str, &str)],
        kube: Config,
    ) -> Result<Candidate, Error> {
        let variables = variables.iter();
        let variables = variables.map(|(name, value)| ((*name).into(), OsString::from(value)));
        let host = Host::new(Clock::boottime(), Timestamp::now, || 0, variables);
        candidate(
            &host,
            kube,
            settings,
            Metrics::disconnected(&APP),
            pending(),
        )
        .await
    }

    fn kube() -> Config {
        let mut kube = Config::new(http::Uri::from_static("http://127.0.0.1:1"));
        kube.root_cert = Some(Vec::new());
        kube
    }

    /// Each mistake is an error that names the remedy, and no election starts.
    #[tokio::test]
    async fn mistakes_are_errors() {
        let namespace = || LeaderElection {
            lease_namespace: Some("n".to_owned()),
            ..LeaderElection::new("a-candidate")
        };
        let short = LeaderElection {
            lease_duration: Duration::from_secs(9),
            ..namespace()
        };
        let empty = LeaderElection {
            lease_namespace: Some(String::new()),
            ..namespace()
        };
        let record = LeaderElection {
            fencing_record: Some("My Record".to_owned()),
            ..namespace()
        };
        let mut proxied = kube();
        proxied.proxy_url = Some(http::Uri::from_static("http://127.0.0.1:2"));
        for (settings, kube, words) in [
            (LeaderElection::new("a-candidate"), kube(), "POD_NAMESPACE"),
            (short, kube(), "must exceed renew_deadline 10s"),
            (empty, kube(), "lease_namespace \"\""),
            (record, kube(), "fencing_record \"My Record\""),
            (namespace(), proxied, "proxies are not supported"),
        ] {
            let error = started(settings, &POD, kube).await.err();
            let error = error.map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(words), "{words}: {error}");
        }
    }

    /// Before its term, a candidate reads and does not write, with its own client and with a client of the caller. The API server is
    /// down, so a read fails for another reason.
    #[tokio::test]
    async fn i2_a_candidate_without_a_term_does_not_write() {
        let pod = [POD[0], POD[1], ("POD_NAMESPACE", "n")];
        let settings = LeaderElection::new("a-candidate");
        let candidate = started(settings, &pod, kube()).await.ok().unwrap();
        assert!(candidate.term.borrow().is_none());
        let of_the_caller = Client::try_from(kube()).unwrap();
        for client in [
            candidate.client.clone(),
            candidate.fence.wrap(of_the_caller),
        ] {
            for (method, is_write) in [("GET", false), ("POST", true), ("DELETE", true)] {
                let request = Request::builder().method(method);
                let request = request.uri("/api/v1/namespaces/n/configmaps");
                let sent = client.send(request.body(Body::empty()).unwrap()).await;
                let error = sent.err().unwrap();
                assert_eq!(is_refused(&error), is_write, "{method}: {error}");
            }
        }
    }

    /// Two processes of a pod have one identity, and each would take the other's term for its own.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn h18_one_candidate_at_a_time_runs_under_an_identity() {
        let uid = uuid::Uuid::new_v4().to_string();
        let variables = [("POD_NAME", "p"), ("POD_UID", &uid), ("POD_NAMESPACE", "n")];
        let host = Host::for_tests(variables.map(|(name, value)| (name.into(), value.into())));
        let start = |drained: oneshot::Receiver<()>| {
            let settings = LeaderElection::new("a-candidate");
            let metrics = Metrics::disconnected(&APP);
            let host = &host;
            async move {
                candidate(host, kube(), settings, metrics, async {
                    drained.await.unwrap_or_default();
                })
                .await
            }
        };
        let (stop, drained) = oneshot::channel();
        let first = start(drained).await.ok().unwrap();
        let (_stop, drained) = oneshot::channel();
        assert!(matches!(start(drained).await, Err(Error::Claimed(..))));
        drop(stop);
        first.election.await.unwrap().unwrap();
        let (_stop, drained) = oneshot::channel();
        assert!(start(drained).await.is_ok());
    }
}
