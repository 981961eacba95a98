//! The ways to the cluster: where it is, and the client that the work goes through.

use std::{fs, net::Ipv6Addr, path::Path, sync::Arc, time::Duration};

use http::{
    Request,
    header::{HeaderValue, USER_AGENT},
};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::connect::HttpConnector,
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use kube::{
    Client, Config as KubeConfig,
    client::{Body, ClientBuilder, ConfigExt as _},
};
use tokio::net::TcpStream;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, service_fn};
use tracing::warn;

use crate::{
    client::{
        credentials::{Credentials, Pool},
        error::Error,
        fence::{
            self, FenceLayer,
            connection::{self, Fenced},
            recheck_before_sending,
        },
        instrumented::{RequestLayer, without_credentials},
        kubeconfig, tls,
        transport::{READ_TIMEOUT, Transport, keep_retry_after},
        warnings::{self, Warnings},
    },
    config::{
        app::App,
        descriptors::Connections,
        environment::Host,
        settings::{Config, LeaderElection},
    },
    telemetry::metrics::Metrics,
};

/// How long a connection is kept for the next request, of those that a slow API server has had opened at once; and how often the pool
/// looks, so that each is closed after twice as long at the latest.
const IDLE: Duration = Duration::from_secs(45);

/// Where a pod has its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A peer that answers no keepalive is gone: a router that forgot the connection, a machine that lost its
/// power. Noticed after a minute at most, and without asking the API server anything. (In an election, after the first of
/// them: there the kernel goes by [`LeaderElection::send_timeout`] rather than by their number.)
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// Where the cluster is, and who we are there: `kubeconfig`, else the pod's own service account,
/// else `$KUBECONFIG`, else `~/.kube/config`; `master` over the address in any of them.
///
/// # Errors
/// Where none of them can be used.
async fn config(app: &App, host: &Host, config: &Config) -> Result<KubeConfig, Error> {
    let mut kube = match (&config.kubeconfig, &config.master) {
        (Some(path), _) => {
            let kube = kubeconfig::load(path).await;
            kube.map_err(|error| Error::Kubeconfig {
                from: path.display().to_string(),
                error,
            })?
        }
        (None, _) if is_pods_own(host, config) => in_cluster(host, Path::new(SERVICE_ACCOUNT))?,
        (None, master) => match (kubeconfig::load_default(host).await, master) {
            (Ok(kube), _) => kube,
            // As client-go: an address alone will do, for a server that asks for no credentials.
            (Err(kubeconfig::Error::Missing), Some(master)) => KubeConfig::new(master.clone()),
            (Err(error), _) => {
                return Err(match host.variable("KUBECONFIG") {
                    Some(path) => Error::Kubeconfig {
                        from: format!("{path} (from $KUBECONFIG)"),
                        error,
                    },
                    None => Error::NoCluster(error),
                });
            }
        },
    };
    if let Some(proxy) = kube
        .proxy_url
        .take()
        .filter(|url| url != kubeconfig::NO_PROXY)
    {
        return Err(Error::Proxy(without_credentials(proxy)));
    }
    if let Some(master) = &config.master {
        kube.cluster_url = master.clone();
    }
    // From here on it is in log lines, also in those of libraries.
    kube.cluster_url = without_credentials(kube.cluster_url);
    kube.connect_timeout = Some(CONNECT_TIMEOUT);
    kube.read_timeout = Some(READ_TIMEOUT);
    // How the API server's audit log names us.
    let agent = format!("{}/{}", app.name, app.version);
    if let Ok(agent) = HeaderValue::try_from(agent) {
        kube.headers.push((USER_AGENT, agent));
    }
    // Whoever calls decides about trying again: kube's own retries would repeat a write for minutes (H3).
    kube.default_retry = false;
    Ok(kube)
}

/// Whether the cluster is the one that this process is a pod of.
pub(crate) fn is_pods_own(host: &Host, config: &Config) -> bool {
    config.kubeconfig.is_none() && host.variable("KUBERNETES_SERVICE_HOST").is_some()
}

/// The cluster of this pod, by its service account in `folder`. As client-go, it takes neither a namespace nor a CA.
fn in_cluster(host: &Host, folder: &Path) -> Result<KubeConfig, Error> {
    let variable = |name: &str| {
        let missing = || Error::InCluster(format!("{name} is not set"));
        host.variable(name).ok_or_else(missing)
    };
    let mut name = variable("KUBERNETES_SERVICE_HOST")?;
    if name.parse::<Ipv6Addr>().is_ok() {
        name = format!("[{name}]");
    }
    let address = format!("https://{name}:{}", variable("KUBERNETES_SERVICE_PORT")?);
    let address = address.parse().map_err(|_| {
        Error::InCluster(format!(
            "KUBERNETES_SERVICE_HOST and _PORT make no address: {address}"
        ))
    })?;
    let mut kube = KubeConfig::new(address);
    let namespace = fs::read_to_string(folder.join("namespace")).unwrap_or_default();
    let namespace = Some(namespace.trim().to_owned()).filter(|namespace| !namespace.is_empty());
    if let Some(namespace) = namespace.or_else(|| host.variable("POD_NAMESPACE")) {
        kube.default_namespace = namespace;
    }
    let (token, ca) = (folder.join("token"), folder.join("ca.crt"));
    if !token.exists() {
        return Err(Error::InCluster(format!(
            "there is no {}: mount the service account's token into the container (automountServiceAccountToken)",
            token.display()
        )));
    }
    kube.auth_info.token_file = Some(token.display().to_string());
    if ca.exists() {
        kube.root_cert_file = Some(ca);
    } else {
        let ca = ca.display();
        warn!(
            "there is no {ca}: the API server's certificate is verified by the system's authorities"
        );
    }
    Ok(kube)
}

/// The namespace of the pod: what `POD_NAMESPACE` says, which the Deployment sets, or else, if its cluster is the one that
/// is worked in, its service account. `None` outside a pod. A guess would be another Lease than the other replicas', and a
/// second leader (H17).
fn pod_namespace(host: &Host, in_cluster: bool) -> Option<String> {
    let service_account = in_cluster.then(|| Path::new(SERVICE_ACCOUNT).join("namespace"));
    first_namespace(host.variable("POD_NAMESPACE"), service_account.as_deref())
}

fn first_namespace(variable: Option<String>, service_account: Option<&Path>) -> Option<String> {
    variable.or_else(|| non_empty(&fs::read_to_string(service_account?).ok()?))
}

fn non_empty(value: &str) -> Option<String> {
    let value = value.trim();
    (!value.is_empty()).then(|| value.to_owned())
}

/// The API server, and the ways to it. A simulation brings its own.
pub struct Cluster {
    /// Its address, for logs, metrics and traces.
    pub server: http::Uri,
    /// What a client goes by where it names no namespace.
    pub namespace: String,
    /// The way of the controller's requests.
    pub requests: Transport,
    /// The way of those about the Lease, which none of the others holds up.
    pub lease: Transport,
    /// The namespace of the pod that this replica is, where it is one of this cluster.
    pub pod_namespace: Option<String>,
}

impl Cluster {
    /// The one that is configured, or that this process is a pod of.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn find(app: &App, host: &Host, config: &Config) -> Result<Self, Error> {
        let mut kube = self::config(app, host, config).await?;
        let credentials = Credentials::start(&mut kube, host).await?;
        Ok(Self {
            server: kube.cluster_url.clone(),
            namespace: kube.default_namespace.clone(),
            requests: transport(
                &kube,
                credentials.clone(),
                &config.leader_election,
                &Connections::new(host.descriptors),
            )?,
            lease: transport_of_lease(kube, credentials, &config.leader_election)?,
            pod_namespace: pod_namespace(host, is_pods_own(host, config)),
        })
    }

    /// The client of the work, which reads at any time, and writes only under a live term; and, for the election, the
    /// address and the way of the Lease.
    pub(crate) fn fenced(
        self,
        fence: &FenceLayer,
        metrics: &Metrics,
    ) -> (Client, http::Uri, Transport) {
        let requests = RequestLayer::new(&self.server, metrics, fence::failed_by);
        let client = ClientBuilder::new(self.requests, self.namespace)
            .with_layer(fence)
            .with_layer(&requests)
            .build();
        (client, self.server, self.lease)
    }
}

/// The way to the API server of `kube` that the Lease of an election with these settings goes: one hung request costs no
/// term, and a watch that says nothing is not waited for.
///
/// # Errors
/// [`Error::Client`], where certificates or keys cannot be used.
pub fn lease_transport(
    mut kube: KubeConfig,
    settings: &LeaderElection,
) -> Result<Transport, Error> {
    let credentials = Credentials::take(&mut kube)?;
    transport_of_lease(kube, credentials, settings)
}

fn transport_of_lease(
    mut kube: KubeConfig,
    credentials: Credentials,
    settings: &LeaderElection,
) -> Result<Transport, Error> {
    let call = settings.call_timeout();
    kube.default_retry = false;
    kube.connect_timeout = Some(call);
    kube.write_timeout = Some(call);
    // A watch that is silent for longer than a lease has nothing to say, or says it to nobody. (A holder that died is
    // replaced after a whole lease, and its silence is no failure of the watch.)
    kube.read_timeout = Some(settings.lease_duration * 2);
    // Its requests are few, and none waits for a connection of the others.
    let limits = Connections::new(usize::MAX);
    transport(&kube, credentials, settings, &limits)
}

/// Opens a connection as soon as the limits allow it. A request that waits here gets a connection that becomes idle, too.
async fn connect<C>(
    tcp: C,
    limits: Connections,
    address: http::Uri,
) -> Result<Fenced<C::Response>, BoxError>
where
    C: Service<http::Uri, Error: Into<BoxError>>,
{
    let open = limits.open.acquire_owned().await?;
    let _opening = limits.opening.acquire().await?;
    let connection = tcp.oneshot(address).await.map_err(Into::into)?;
    Ok(connection::fenced(connection, open))
}

/// kube's own stack, with [credentials](Credentials) and [TLS](tls) as client-go has them, less kube's retries, less a
/// span and a log line for each request, and without Nagle's algorithm: with a service account's token a request takes
/// two segments, and the second would wait for the first to be acknowledged. And with a limit to how long the kernel
/// sends again what is not acknowledged, in an election: by itself it does so for a quarter of an hour, and for minutes
/// after the request was given up and its connection closed.
///
/// # Errors
/// Where certificates or keys cannot be used.
fn transport(
    kube: &KubeConfig,
    credentials: Credentials,
    election: &LeaderElection,
    limits: &Connections,
) -> Result<Transport, Error> {
    transport_by(HttpConnector::new(), kube, credentials, election, limits)
}

/// The same, with another way to resolve names.
fn transport_by<R>(
    mut tcp: HttpConnector<R>,
    kube: &KubeConfig,
    credentials: Credentials,
    election: &LeaderElection,
    limits: &Connections,
) -> Result<Transport, Error>
where
    R: Clone + Send + Sync + 'static,
    HttpConnector<R>:
        Service<http::Uri, Response = TokioIo<TcpStream>, Error: Into<BoxError>, Future: Send>,
{
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(election.send_timeout());
    // Divided among the addresses of a name. The rest is for DNS and TLS.
    tcp.set_connect_timeout(kube.connect_timeout.map(|all| all / 5 * 4));
    let limits = limits.clone();
    let tcp = service_fn(move |address| connect(tcp.clone(), limits.clone(), address));
    let mut connector = TimeoutConnector::new(tls::connector(kube, &credentials.identity, tcp)?);
    connector.set_connect_timeout(kube.connect_timeout);
    connector.set_read_timeout(kube.read_timeout);
    connector.set_write_timeout(kube.write_timeout);
    let mut pool = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
    pool.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE);
    let pool = Arc::new(Pool::new(pool, connector, credentials));
    let warnings = Arc::new(Warnings::default());
    let service = ServiceBuilder::new()
        .layer(kube.base_uri_layer())
        .option_layer(kube.auth_layer()?)
        .layer(kube.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(service_fn(move |request: Request<Body>| {
            let (pool, warnings) = (Arc::clone(&pool), Arc::clone(&warnings));
            async move {
                let object = warnings::object(&request);
                let response = pool.send(request, recheck_before_sending).await?;
                connection::answered(&response);
                warnings.log(&object, &response);
                keep_retry_after(response).await
            }
        }));
    Ok(service.boxed())
}

#[cfg(test)]
mod tests;
