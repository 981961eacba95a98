//! The certificate that metrics are served with: from a folder, and read again when it is rotated there, or one made for
//! this process.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use tokio::{
    task::spawn_blocking,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, ServerConfig,
        crypto::ring,
        pki_types::{
            CertificateDer, PrivateKeyDer,
            pem::{self, PemObject as _},
        },
    },
};
use tracing::{info, warn};

/// How soon a rotated certificate is noticed; as in controller-runtime.
const PERIOD: Duration = Duration::from_secs(10);

/// A certificate and its key as a Secret of type `kubernetes.io/tls` has them, and so cert-manager.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// There is no certificate to serve with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, io::Error),
    /// A file is not what it should be.
    #[error("{0} in {1} is not PEM with a {2}: {3}")]
    Pem(&'static str, PathBuf, &'static str, pem::Error),
    /// Certificate and key do not go together, or are of a kind that nobody can use.
    #[error("{CERTIFICATE} and {KEY} in {0} cannot be used: {1}")]
    Pair(PathBuf, rustls::Error),
    /// None could be made.
    #[error("no folder is given, and no certificate can be made: {0}")]
    Make(String),
}

/// The server's side of TLS.
pub struct Tls {
    acceptor: TlsAcceptor,
    folder: Option<Folder>,
}

struct Folder {
    path: PathBuf,
    /// What the acceptor is made of.
    read: Pair,
    next_look: Interval,
    /// What is wrong with what is there now, as last said.
    trouble: String,
}

/// Certificate and key, in PEM.
#[derive(PartialEq)]
struct Pair(Vec<u8>, Vec<u8>);

impl Tls {
    /// With the certificate in `folder`, or with a self-signed one.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn new(folder: Option<PathBuf>) -> Result<Self, Error> {
        let Some(path) = folder else {
            let acceptor = self_signed().map_err(|error| Error::Make(error.to_string()))?;
            return Ok(Self {
                acceptor,
                folder: None,
            });
        };
        let read = Pair::read(&path)?;
        let acceptor = read.acceptor(&path)?;
        let mut next_look = interval_at(Instant::now() + PERIOD, PERIOD);
        next_look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let folder = Folder {
            path,
            read,
            next_look,
            trouble: String::new(),
        };
        Ok(Self {
            acceptor,
            folder: Some(folder),
        })
    }

    /// What makes a connection a secure one.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }

    /// Waits until the folder is to be looked at. Safe to cancel.
    pub async fn due(&mut self) {
        match &mut self.folder {
            Some(folder) => _ = folder.next_look.tick().await,
            None => std::future::pending().await,
        }
    }

    /// Takes what the folder has now. What cannot be used is said once, and the certificate of before stays: a rotation may
    /// be half done.
    pub async fn renew(&mut self) {
        let Some(folder) = &mut self.folder else {
            return;
        };
        let path = folder.path.clone();
        // A mounted folder may be slow; nobody else waits for it.
        let Ok(read) = spawn_blocking(move || Pair::read(&path)).await else {
            return;
        };
        let renewed = match read {
            Ok(read) if read == folder.read => Ok(None),
            Ok(read) => read
                .acceptor(&folder.path)
                .map(|acceptor| Some((read, acceptor))),
            Err(error) => Err(error),
        };
        match renewed {
            Ok(renewed) => {
                folder.trouble.clear();
                if let Some((read, acceptor)) = renewed {
                    info!(folder = %folder.path.display(), "metrics are served with a new certificate");
                    (folder.read, self.acceptor) = (read, acceptor);
                }
            }
            Err(error) => {
                let trouble = error.to_string();
                if trouble != folder.trouble {
                    warn!("metrics are served with the certificate of before: {trouble}");
                    folder.trouble = trouble;
                }
            }
        }
    }
}

impl Pair {
    fn read(folder: &std::path::Path) -> Result<Self, Error> {
        let read = |name| {
            let path = folder.join(name);
            std::fs::read(&path).map_err(|error| Error::Read(path, error))
        };
        Ok(Self(read(CERTIFICATE)?, read(KEY)?))
    }

    fn acceptor(&self, folder: &std::path::Path) -> Result<TlsAcceptor, Error> {
        let chain = CertificateDer::pem_slice_iter(&self.0).collect::<Result<Vec<_>, _>>();
        let chain = chain.and_then(|chain| {
            if chain.is_empty() {
                Err(pem::Error::NoItemsFound)
            } else {
                Ok(chain)
            }
        });
        let chain =
            chain.map_err(|error| Error::Pem(CERTIFICATE, folder.into(), "certificate", error))?;
        let key = PrivateKeyDer::from_pem_slice(&self.1)
            .map_err(|error| Error::Pem(KEY, folder.into(), "private key", error))?;
        acceptor(chain, key).map_err(|error| Error::Pair(folder.into(), error))
    }
}

/// Nobody can verify it, but nobody can listen in, either.
fn self_signed() -> Result<TlsAcceptor, Box<dyn std::error::Error>> {
    let names = ["localhost".to_owned(), env!("CARGO_PKG_NAME").to_owned()];
    let made = rcgen::generate_simple_self_signed(names)?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    Ok(acceptor(vec![made.cert.der().clone()], key)?)
}

fn acceptor(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<TlsAcceptor, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config).into())
}
