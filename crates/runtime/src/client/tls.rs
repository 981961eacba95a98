//! TLS to the API server: verification of its certificate, and the client certificate.
//!
//! Unlike the rustls configuration of kube, this one uses the verifier and the keys of [`crate::config::tls`], and reloads
//! certificate files.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use kube::{Config as KubeConfig, client::ConfigExt as _, config::AuthInfo};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        ResolvesClientCert,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    sign::CertifiedKey,
};
use tower::{BoxError, util::MapErr};
use tracing::warn;

use crate::{
    config::tls::{Error, Roots, install_provider, pair, provider, readable},
    telemetry::log_once::OutageLog,
};

/// Reload interval of certificate files.
const PERIOD: Duration = Duration::from_mins(1);

/// Connector whose errors name the usual cause.
type Connector<C> = MapErr<HttpsConnector<C>, fn(BoxError) -> BoxError>;

/// Wraps a connector in TLS.
pub(super) fn connector<C>(
    kube: &KubeConfig,
    identity: &Arc<Identity>,
    tcp: C,
) -> Result<Connector<C>, Error> {
    let mut tls = if kube.accept_invalid_certs {
        let mut kube = kube.clone();
        kube.auth_info = AuthInfo::default();
        kube.root_cert = Some(Vec::new());
        kube.root_cert_file = None;
        install_provider();
        let tls = kube.rustls_client_config();
        tls.map_err(|error| Error::new(error.to_string()))?
    } else {
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| Error::new(error.to_string()))?;
        if kube.cluster_url.scheme_str() == Some("http") {
            // Nothing is verified over HTTP, and an image may lack the system's certificates.
            let builder = builder.with_root_certificates(RootCertStore::empty());
            builder.with_no_client_auth()
        } else {
            let verifier = Arc::new(Verifier::new(kube)?);
            let builder = builder
                .dangerous()
                .with_custom_certificate_verifier(verifier);
            builder.with_no_client_auth()
        }
    };
    tls.client_auth_cert_resolver = Arc::clone(identity) as _;
    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http();
    if let Some(name) = &kube.tls_server_name {
        let invalid = || Error::new(format!("tls-server-name {name:?} is not a host name"));
        let name = ServerName::try_from(name.clone()).map_err(|_| invalid())?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let connector = builder.enable_http1().wrap_connector(tcp);
    Ok(MapErr::new(connector, readable))
}

/// Returns the certificates of a PEM file. Ignores its other sections.
fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem)
        .filter_map(Result::ok)
        .collect()
}

/// Returns the authorities of a CA bundle.
fn roots(all: Vec<CertificateDer<'static>>) -> Result<Roots, Error> {
    let roots = Roots::new(all);
    let roots =
        roots.ok_or_else(|| Error::new("the CA bundle contains no readable certificate"))?;
    if roots.unreadable > 0 {
        let unused = roots.unreadable;
        warn!("{unused} certificates of the CA bundle cannot be read, and are left out");
    }
    Ok(roots)
}

fn read_roots(path: &Path) -> Result<Roots, Error> {
    let pem = fs::read(path).map_err(|error| Error::new(error.to_string()))?;
    roots(certificates(&pem))
}

/// Verifies the API server's certificate.
#[derive(Debug)]
struct Verifier {
    /// Path of the CA bundle for reloading. `None` if it is not a file.
    file: Option<PathBuf>,
    last: Mutex<(Arc<Roots>, Instant, OutageLog)>,
}

impl Verifier {
    fn new(kube: &KubeConfig) -> Result<Self, Error> {
        let roots = match (&kube.root_cert_file, &kube.root_cert) {
            (Some(file), _) => read_roots(file)
                .map_err(|error| Error::new(format!("{}: {error}", file.display())))?,
            (None, Some(certificates)) => roots(
                certificates
                    .iter()
                    .cloned()
                    .map(CertificateDer::from)
                    .collect(),
            )?,
            (None, None) => {
                let system = rustls_native_certs::load_native_certs();
                roots(system.certs).map_err(|_| {
                    Error::new("no certificate authority is configured, and the system has none: set certificate-authority")
                })?
            }
        };
        let last = Mutex::new((Arc::new(roots), Instant::now(), OutageLog::default()));
        let file = kube.root_cert_file.clone();
        Ok(Self { file, last })
    }

    fn roots(&self) -> Arc<Roots> {
        let mut last = self.last.lock();
        let (roots, read, trouble) = &mut *last;
        if let Some(file) = &self.file
            && read.elapsed() >= PERIOD
        {
            *read = Instant::now();
            match read_roots(file) {
                Ok(new) => {
                    *roots = Arc::new(new);
                    trouble.clear();
                }
                Err(error) if trouble.is_new(&error.to_string()) => {
                    warn!(
                        "cannot read the CA bundle {}: {error}; using the previous one",
                        file.display()
                    );
                }
                Err(_) => {}
            }
        }
        Arc::clone(roots)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.roots()
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.roots().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.roots().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.roots().supported_verify_schemes()
    }
}

/// Client certificate and key. Both may be replaced.
pub(crate) struct Identity {
    /// Paths of the certificate and the key, for reloading.
    files: Option<(PathBuf, PathBuf)>,
    state: Mutex<State>,
}

struct State {
    key: Option<Arc<CertifiedKey>>,
    /// Number of changes.
    generation: u64,
    read: Instant,
    trouble: OutageLog,
}

impl Identity {
    /// Moves the client certificate out of the kubeconfig's user, if there is one.
    pub(crate) fn take(auth: &mut AuthInfo) -> Result<Self, Error> {
        // kube exposes its secrets only through serialization.
        let secrets = serde_json::to_value(&*auth).unwrap_or_default();
        let data = |name: &str| {
            use base64::{Engine as _, engine::general_purpose::STANDARD};
            let text = secrets.get(name)?.as_str()?;
            Some(
                STANDARD
                    .decode(text)
                    .map_err(|error| Error::new(format!("{name}: {error}"))),
            )
        };
        let (certificate, key) = (data("client-certificate-data"), data("client-key-data"));
        let (certificate_file, key_file) = (auth.client_certificate.take(), auth.client_key.take());
        (auth.client_certificate_data, auth.client_key_data) = (None, None);
        let read = |data: &Option<Result<Vec<u8>, Error>>, file: &Option<String>| match (data, file)
        {
            (Some(data), _) => data.clone().map(Some),
            (None, Some(file)) => {
                let read = fs::read(file).map(Some);
                read.map_err(|error| Error::new(format!("{file}: {error}")))
            }
            (None, None) => Ok(None),
        };
        let key = match (
            read(&certificate, &certificate_file)?,
            read(&key, &key_file)?,
        ) {
            (Some(certificate), Some(key)) => Some(certified_key(&certificate, &key)?),
            (Some(_), None) => {
                return Err(Error::new(
                    "there is a client certificate, but no client-key",
                ));
            }
            (None, _) => None,
        };
        let files = match (certificate_file, key_file) {
            (Some(cert), Some(key))
                if secrets.get("client-certificate-data").is_none()
                    && secrets.get("client-key-data").is_none() =>
            {
                Some((cert.into(), key.into()))
            }
            _ => None,
        };
        Ok(Self {
            files,
            state: Mutex::new(State {
                key,
                generation: 0,
                read: Instant::now(),
                trouble: OutageLog::default(),
            }),
        })
    }

    pub(crate) fn is_set(&self) -> bool {
        self.state.lock().key.is_some()
    }

    /// Uses `key` on new connections from now on.
    pub(crate) fn set(&self, key: Option<Arc<CertifiedKey>>) {
        let mut state = self.state.lock();
        let certificates =
            |key: &Option<Arc<CertifiedKey>>| key.as_ref().map(|key| key.cert.clone());
        if certificates(&state.key) != certificates(&key) {
            state.generation += 1;
            state.key = key;
        }
    }

    /// Returns the number of changes. Reloads the files if the last read is more than a minute old.
    pub(crate) fn generation(&self) -> u64 {
        let due = self.state.lock().read.elapsed() >= PERIOD;
        if let Some((certificate, key)) = self.files.as_ref().filter(|_| due) {
            self.state.lock().read = Instant::now();
            let read =
                |file: &PathBuf| fs::read(file).map_err(|error| Error::new(error.to_string()));
            let pair = read(certificate).and_then(|cert| Ok((cert, read(key)?)));
            match pair.and_then(|(cert, key)| certified_key(&cert, &key)) {
                Ok(key) => {
                    self.set(Some(key));
                    self.state.lock().trouble.clear();
                }
                Err(error) if self.state.lock().trouble.is_new(&error.to_string()) => {
                    warn!(
                        "cannot read the client certificate {}: {error}; using the previous one",
                        certificate.display()
                    );
                }
                Err(_) => {}
            }
        }
        self.state.lock().generation
    }

    /// Records that the API server rejected the certificate. The next request reloads the files.
    pub(crate) fn refused(&self) {
        let mut state = self.state.lock();
        state.read = state.read.checked_sub(PERIOD).unwrap_or(state.read);
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.state.lock().key.clone()
    }

    fn has_certs(&self) -> bool {
        self.is_set()
    }
}

/// Parses a client certificate and its key in PEM.
pub(crate) fn certified_key(certificate: &[u8], key: &[u8]) -> Result<Arc<CertifiedKey>, Error> {
    let chain = certificates(certificate);
    if chain.is_empty() {
        return Err(Error::new(
            "there is no certificate in the client certificate's PEM",
        ));
    }
    if String::from_utf8_lossy(key).contains("ENCRYPTED") {
        return Err(Error::new(
            "the client key is encrypted: write it without a passphrase, for example with `openssl pkey -in KEY -out NEW`",
        ));
    }
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|_| Error::new("there is no private key in the client key's PEM"))?;
    pair(chain, key).map_err(|error| Error::new(format!("client certificate: {error}")))
}
