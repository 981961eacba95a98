//! Connection to the cluster: its address and credentials, and the controller's client.

#[cfg(feature = "operator")]
use std::net::Ipv6Addr;
use std::{fs, path::Path, sync::Arc, time::Duration};

use futures::FutureExt as _;
use http::{
    Request,
    header::{HeaderValue, USER_AGENT},
};
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
#[cfg(feature = "operator")]
use tracing::warn;

#[cfg(feature = "operator")]
use crate::{client::kubeconfig, config::settings::Config};
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
        timeouts::Timeouts,
        tls,
        transport::{NO_PROXY, READ_TIMEOUT, Transport, complete_status},
        warnings::{self, Warnings},
    },
    config::{
        app::App,
        descriptors::Connections,
        environment::Host,
        settings::{LeaderElection, MUTATION_TIMEOUT},
    },
    telemetry::metrics::Metrics,
};

/// Idle time of a connection until it is closed. A slow API server causes many connections to be opened at once. The pool
/// checks at the same interval, so a connection stays open for at most twice this time.
const IDLE: Duration = Duration::from_secs(45);

/// Folder of the pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Idle time before the first TCP keepalive probe. Keepalive detects a machine without power and a router that forgot the
/// connection. That takes a minute at most, without a request to the API server.
///
/// With an election, one unanswered probe is enough: the kernel uses [`LeaderElection::send_timeout`] instead of the number of
/// probes.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// Returns the address and credentials of the cluster, from the first source that is set:
///
/// - `kubeconfig`
/// - the service account of the pod
/// - `$KUBECONFIG`
/// - `~/.kube/config`
///
/// `master` replaces the address of any source.
///
/// # Errors
/// Fails if the source cannot be used.
#[cfg(feature = "operator")]
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
            // As in client-go, an address is enough for a server that requires no credentials.
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
    if let Some(master) = &config.master {
        kube.cluster_url = master.clone();
    }
    hardened(app, kube)
}

/// Returns `kube` with the timeouts and the name of this client, and without retries. Fails if it specifies a proxy.
fn hardened(app: &App, mut kube: KubeConfig) -> Result<KubeConfig, Error> {
    if let Some(proxy) = kube.proxy_url.take().filter(|url| url != NO_PROXY) {
        return Err(Error::Proxy(without_credentials(proxy)));
    }
    // From here on, the address appears in log lines, also of libraries.
    kube.cluster_url = without_credentials(kube.cluster_url);
    kube.connect_timeout = Some(CONNECT_TIMEOUT);
    kube.read_timeout = Some(READ_TIMEOUT);
    // Client name in the API server's audit log.
    let agent = format!("{}/{}", app.name, app.version);
    if let Ok(agent) = HeaderValue::try_from(agent) {
        kube.headers.push((USER_AGENT, agent));
    }
    // The caller decides about retries. kube's own retries would repeat a write for minutes.
    kube.default_retry = false;
    Ok(kube)
}

/// Whether the configured cluster runs this pod.
#[cfg(feature = "operator")]
pub(crate) fn is_pods_own(host: &Host, config: &Config) -> bool {
    config.kubeconfig.is_none() && host.variable("KUBERNETES_SERVICE_HOST").is_some()
}

/// Returns the environment of a plugin of kubectl. As for kubectl, a kubeconfig precedes the cluster of the pod.
#[cfg(feature = "operator")]
pub(crate) fn as_for_kubectl(host: Host) -> Host {
    if kubeconfig::default_files(&host)
        .iter()
        .any(|file| file.exists())
    {
        host.without("KUBERNETES_SERVICE_HOST")
    } else {
        host
    }
}

/// Returns the configuration of the cluster that runs this pod, from the service account in `folder`. Namespace and CA are
/// optional, as in client-go.
#[cfg(feature = "operator")]
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
            "KUBERNETES_SERVICE_HOST and _PORT are not a valid address: {address}"
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

/// Returns the namespace of the pod: `POD_NAMESPACE`, which the Deployment sets, or the service account's namespace if
/// `in_cluster`. `None` outside a pod.
///
/// There is no default. A wrong namespace would mean a Lease that the other replicas do not use, and a second leader.
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

/// The API server and the transports to it. The simulation of the repository makes its own; the fields are not part of the
/// interface.
pub struct Cluster {
    /// Address for logs, metrics and traces.
    #[doc(hidden)]
    pub server: http::Uri,
    /// Default namespace of a client.
    #[doc(hidden)]
    pub namespace: String,
    /// Transport of the controller's requests.
    #[doc(hidden)]
    pub requests: Transport,
    /// Transport of the election's requests. Other requests cannot block it.
    #[doc(hidden)]
    pub lease: Transport,
    /// Namespace of this replica's pod, if it runs in this cluster or `POD_NAMESPACE` is set.
    #[doc(hidden)]
    pub pod_namespace: Option<String>,
}

impl Cluster {
    /// Returns the configured cluster, or else the cluster that runs this pod.
    ///
    /// # Errors
    /// See [`Error`].
    #[cfg(feature = "operator")]
    pub async fn find(app: &App, host: &Host, config: &Config) -> Result<Self, Error> {
        let kube = self::config(app, host, config).await?;
        let pod_namespace = pod_namespace(host, is_pods_own(host, config));
        Self::connect(host, kube, &config.leader_election, pod_namespace).await
    }

    /// Returns the cluster of a [`kube::Config`], for example from [`kube::Config::infer`]. Replaces its timeouts, retries and
    /// `User-Agent`. `settings` are the settings of the election.
    ///
    /// # Errors
    /// See [`Error`]. A configuration with a proxy is an error.
    pub(crate) async fn from_kube_config(
        app: &App,
        host: &Host,
        kube: KubeConfig,
        settings: &LeaderElection,
    ) -> Result<Self, Error> {
        let kube = hardened(app, kube)?;
        let token = kube.auth_info.token_file.as_deref();
        let is_pods_own = token.is_some_and(|token| Path::new(token).starts_with(SERVICE_ACCOUNT));
        Self::connect(host, kube, settings, pod_namespace(host, is_pods_own)).await
    }

    async fn connect(
        host: &Host,
        mut kube: KubeConfig,
        settings: &LeaderElection,
        pod_namespace: Option<String>,
    ) -> Result<Self, Error> {
        let credentials = Credentials::start(&mut kube, host).await?;
        let limits = Connections::new(host.descriptors);
        Ok(Self {
            server: kube.cluster_url.clone(),
            namespace: kube.default_namespace.clone(),
            requests: transport(&kube, credentials.clone(), settings, &limits)?,
            lease: transport_of_lease(kube, credentials, settings)?,
            pod_namespace,
        })
    }

    /// Returns the controller's client, which reads at any time and writes only during a live term. Also returns the address
    /// and the transport for the election.
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

/// Creates the transport for the election's requests to the API server of `kube`. A hung request does not cost the term, and a
/// stalled watch is ended.
///
/// # Errors
/// [`Error::Tls`] if certificates or keys cannot be used, and [`Error::Client`] if other credentials cannot be used.
#[cfg(feature = "operator")]
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
    // A watch of the Lease that is silent for two lease durations is stalled or useless. A single duration would be too short:
    // a dead leader is silent until another replica takes the Lease after a whole duration. The write of the fencing record may
    // be silent for longer: it waits for webhooks.
    kube.read_timeout = Some(MUTATION_TIMEOUT.max(settings.lease_duration * 2));
    // The election sends few requests. They need no connection from the shared limit.
    let limits = Connections::new(usize::MAX);
    transport(&kube, credentials, settings, &limits)
}

/// Opens a connection when the limits allow it. A request that waits here also gets a connection that becomes idle in the
/// meantime.
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

/// Creates kube's HTTP stack with these differences:
///
/// - [Credentials](Credentials) and [TLS](tls) work as in client-go.
/// - There are no retries, and no span and log line for each request.
/// - Nagle's algorithm is off. A request with a service account token takes two segments, and the second would wait until the
///   first is acknowledged.
/// - With an election, the time for retransmissions is limited. By default the kernel retransmits for a quarter of an hour, and
///   for minutes after the request was cancelled and its connection closed.
///
/// # Errors
/// Fails if certificates or keys cannot be used.
fn transport(
    kube: &KubeConfig,
    credentials: Credentials,
    election: &LeaderElection,
    limits: &Connections,
) -> Result<Transport, Error> {
    transport_by(HttpConnector::new(), kube, credentials, election, limits)
}

/// Like [`transport`], with another name resolver.
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
    // hyper divides this time among the addresses of a name. The rest is for DNS and TLS.
    tcp.set_connect_timeout(kube.connect_timeout.map(|all| all / 5 * 4));
    let limits = limits.clone();
    let tcp = service_fn(move |address| connect(tcp.clone(), limits.clone(), address));
    let tls = tls::connector(kube, &credentials.identity, tcp)?;
    let timeouts = Timeouts {
        connect: kube.connect_timeout,
        read: kube.read_timeout,
        write: kube.write_timeout,
    };
    let connector = service_fn(move |address| timeouts.connect(tls.clone(), address).boxed());
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
                complete_status(response).await
            }
        }));
    Ok(service.boxed())
}

#[cfg(test)]
mod tests;
