//! The ways to the cluster: where it is, and the client that the work goes through.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

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
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tokio::net::TcpStream;
use tower::{BoxError, ServiceBuilder, ServiceExt as _, service_fn};

use crate::{
    App, Config, Host,
    config::LeaderElection,
    descriptors::Connections,
    election::{
        self,
        fence::{
            FenceLayer,
            connection::{self, Fenced},
            recheck_before_sending,
        },
    },
    telemetry::{
        Metrics,
        request::{RequestLayer, without_credentials},
    },
    token::TokenFile,
    transport::{READ_TIMEOUT, Transport, keep_retry_after},
};

/// How long a connection is kept for the next request, of those that a slow API server has had opened at once; and how often the pool
/// looks, so that each is closed after twice as long at the latest.
const IDLE: Duration = Duration::from_secs(45);

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A peer that answers no keepalive is gone: a router that forgot the connection, a machine that lost its
/// power. Noticed after a minute at most, and without asking the API server anything. (In an election, after the first of
/// them: there the kernel goes by [`LeaderElection::send_timeout`] rather than by their number.)
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// No way to the cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A kubeconfig cannot be read or makes no sense.
    #[error("kubeconfig {from}: {}", first_line(.error))]
    Kubeconfig {
        /// Which file, and who named it.
        from: String,
        /// What is wrong with it.
        error: KubeconfigError,
    },
    /// Nothing says where the cluster is.
    #[error(
        "no cluster: not in a pod, $KUBECONFIG is not set, and ~/.kube/config cannot be read ({}); \
         name one by --kubeconfig or --master",
        first_line(.0)
    )]
    NoCluster(KubeconfigError),
    /// What a proxy forwards after the end of a term, it forwards for a replica that leads no more.
    #[error(
        "the kubeconfig names the proxy {0} (proxy-url): the API server is to be reached without one"
    )]
    Proxy(http::Uri),
    /// The service account of this pod cannot be read.
    #[error("in-cluster configuration: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    /// Certificates or keys make no client.
    #[error("no client can be made from this configuration of the cluster: {0}")]
    Client(#[from] kube::Error),
}

/// The lines after the first quote the file, and with it, perhaps, its credentials.
fn first_line(error: &KubeconfigError) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Where the cluster is, and who we are there: `kubeconfig`, else the pod's own service account,
/// else `$KUBECONFIG`, else `~/.kube/config`; `master` over the address in any of them.
///
/// # Errors
/// Where none of them can be used.
async fn config(app: &App, host: &Host, config: &Config) -> Result<KubeConfig, Error> {
    let mut kube = match (&config.kubeconfig, &config.master) {
        (Some(path), _) => from_file(path).await?,
        (None, _) if is_pods_own(host, config) => KubeConfig::incluster()?,
        (None, master) => match (from_default_file().await, master) {
            (Ok(kube), _) => kube,
            // As client-go: an address alone will do, for a server that asks for no credentials.
            (Err(KubeconfigError::ReadConfig(..) | KubeconfigError::FindPath), Some(master)) => {
                KubeConfig::new(master.clone())
            }
            (Err(error), _) => match host.variable("KUBECONFIG") {
                Some(path) => {
                    return Err(Error::Kubeconfig {
                        from: format!("{path} (from $KUBECONFIG)"),
                        error,
                    });
                }
                None => return Err(Error::NoCluster(error)),
            },
        },
    };
    if let Some(proxy) = kube.proxy_url.take().filter(|url| url != NO_PROXY) {
        return Err(Error::Proxy(without_credentials(proxy)));
    }
    if let Some(master) = &config.master {
        kube.cluster_url = master.clone();
    }
    // From here on it is in log lines, also in those of libraries.
    kube.cluster_url = without_credentials(kube.cluster_url);
    if kube.cluster_url.scheme_str() == Some("http") {
        // Without TLS, the system's CA certificates are of no use, and an image may have none.
        kube.root_cert.get_or_insert_default();
    }
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

async fn from_file(path: &Path) -> Result<KubeConfig, Error> {
    let named = |error| Error::Kubeconfig {
        from: path.display().to_string(),
        error,
    };
    from_kubeconfig(Kubeconfig::read_from(path).map_err(named)?)
        .await
        .map_err(named)
}

/// `$KUBECONFIG`, else `~/.kube/config`.
async fn from_default_file() -> Result<KubeConfig, KubeconfigError> {
    from_kubeconfig(Kubeconfig::read()?).await
}

/// In place of a proxy where kube would otherwise find one.
const NO_PROXY: &str = "http://no-proxy.invalid/";

/// Where a cluster names no proxy, kube goes by `HTTPS_PROXY`, for every address, whatever `NO_PROXY` says. Here no
/// variable makes a proxy: the deadline of a write that one holds back is nobody's.
async fn from_kubeconfig(mut file: Kubeconfig) -> Result<KubeConfig, KubeconfigError> {
    for cluster in file
        .clusters
        .iter_mut()
        .flat_map(|named| &mut named.cluster)
    {
        let proxy = cluster.proxy_url.take().filter(|url| !url.is_empty());
        cluster.proxy_url = proxy.or_else(|| Some(NO_PROXY.to_owned()));
    }
    let ca_file = ca_file(&file);
    let mut kube = KubeConfig::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    kube.root_cert_file = ca_file;
    Ok(kube)
}

/// The CA bundle of the cluster that is used, where that is a file: kube reads one that it knows of again each minute,
/// and so takes a server whose certificate was reissued by another CA. By itself it knows of a pod's.
fn ca_file(file: &Kubeconfig) -> Option<PathBuf> {
    let name = file.current_context.as_ref()?;
    let mut contexts = file.contexts.iter();
    let context = contexts.find(|named| named.name == *name)?.context.as_ref();
    let name = &context?.cluster;
    let mut clusters = file.clusters.iter();
    let cluster = clusters
        .find(|named| named.name == *name)?
        .cluster
        .as_ref()?;
    let inline = cluster.certificate_authority_data.is_some();
    let path = cluster.certificate_authority.as_ref().filter(|_| !inline);
    path.map(PathBuf::from)
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
        let token = token(&mut kube)?;
        Ok(Self {
            server: kube.cluster_url.clone(),
            namespace: kube.default_namespace.clone(),
            requests: transport(
                &kube,
                token.clone(),
                &config.leader_election,
                &Connections::new(host.descriptors),
            )?,
            lease: transport_of_lease(kube, token, &config.leader_election)?,
            pod_namespace: election::pod_namespace(host, is_pods_own(host, config)),
        })
    }

    /// The client of the work, which reads at any time, and writes only under a live term; and, for the election, the
    /// address and the way of the Lease.
    pub(crate) fn fenced(
        self,
        fence: &FenceLayer,
        metrics: &Metrics,
    ) -> (Client, http::Uri, Transport) {
        let requests = RequestLayer::new(&self.server, metrics, election::failed_by);
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
    let token = token(&mut kube)?;
    transport_of_lease(kube, token, settings)
}

fn transport_of_lease(
    mut kube: KubeConfig,
    token: Option<Arc<TokenFile>>,
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
    Ok(transport(
        &kube,
        token,
        settings,
        &Connections::new(usize::MAX),
    )?)
}

fn token(kube: &mut KubeConfig) -> kube::Result<Option<Arc<TokenFile>>> {
    Ok(TokenFile::take(&mut kube.auth_info)?.map(Arc::new))
}

/// Opens a connection as soon as the limits allow it. A request that waits here gets a connection that becomes idle, too.
async fn connect(
    tcp: HttpConnector,
    limits: Connections,
    address: http::Uri,
) -> Result<Fenced<TokioIo<TcpStream>>, BoxError> {
    let open = limits.open.acquire_owned().await?;
    let _opening = limits.opening.acquire().await?;
    Ok(connection::fenced(tcp.oneshot(address).await?, open))
}

/// What kube's own stack is, with a token file that is read as client-go does ([`TokenFile`]), less its retries, less a
/// span and a log line for each request, and without Nagle's algorithm: with a service account's token a request takes
/// two segments, and the second would wait for the first to be acknowledged. And with a limit to how long the kernel
/// sends again what is not acknowledged, in an election: by itself it does so for a quarter of an hour, and for minutes
/// after the request was given up and its connection closed.
///
/// # Errors
/// Where certificates or keys cannot be used.
fn transport(
    kube: &KubeConfig,
    token: Option<Arc<TokenFile>>,
    election: &LeaderElection,
    limits: &Connections,
) -> kube::Result<Transport> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(election.send_timeout());
    // Divided among the addresses of a name. The rest is for what comes before and after: DNS and TLS.
    tcp.set_connect_timeout(kube.connect_timeout.map(|all| all / 5 * 4));
    let limits = limits.clone();
    let tcp = service_fn(move |address| connect(tcp.clone(), limits.clone(), address));
    let mut connector = TimeoutConnector::new(kube.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(kube.connect_timeout);
    connector.set_read_timeout(kube.read_timeout);
    connector.set_write_timeout(kube.write_timeout);
    let mut pool = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
    pool.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE);
    let refusals = token.clone();
    let service = ServiceBuilder::new()
        .layer(kube.base_uri_layer())
        .map_request(move |request: Request<Body>| match &token {
            Some(token) => token.authorize(request),
            None => request,
        })
        .option_layer(kube.auth_layer()?)
        .layer(kube.extra_headers_layer()?)
        .map_err(BoxError::from)
        .map_request(recheck_before_sending)
        .service(pool.build(connector))
        .map_err(BoxError::from)
        .map_response(move |response| {
            connection::answered(&response);
            if let Some(token) = &refusals {
                token.observe(&response);
            }
            response
        })
        .and_then(keep_retry_after);
    Ok(service.boxed())
}

#[cfg(test)]
mod tests;
