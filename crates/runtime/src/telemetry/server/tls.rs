//! The certificate that metrics are served with: from a folder, and read again when it is rotated there, or one made for
//! this process.

use crate::{config::app::App, telemetry::log::log_once::Causes};
use std::{io, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
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
pub const PERIOD: Duration = Duration::from_secs(10);

/// How long a mounted folder may take before it is said to hang.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A certificate and its key as a Secret of type `kubernetes.io/tls` has them, and so cert-manager.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// There is no certificate to serve with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, io::Error),
    /// The folder does not answer.
    #[error("{0} hangs: it cannot be read within {READ_TIMEOUT:?}")]
    Hangs(PathBuf),
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
    certificate: Certificate,
    folder: Option<Folder>,
}

/// What connections are made secure with, as it is by now; clones share it.
#[derive(Clone)]
pub struct Certificate(Arc<Mutex<TlsAcceptor>>);

impl Certificate {
    /// What makes a connection a secure one.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.lock().clone()
    }
}

struct Folder {
    path: PathBuf,
    period: Duration,
    /// What the certificate is made of.
    read: Pair,
    /// What is wrong with what is there now, as last said.
    trouble: Causes,
}

/// Certificate and key, in PEM.
#[derive(PartialEq)]
struct Pair(Vec<u8>, Vec<u8>);

impl Tls {
    /// With the certificate in `folder`, which is read again every `period`, or with a self-signed one.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn new(app: &App, folder: Option<PathBuf>, period: Duration) -> Result<Self, Error> {
        let (acceptor, folder) = if let Some(path) = folder {
            let reading = Pair::reading(path.clone());
            let read = timeout(READ_TIMEOUT, reading).await;
            let read = read.unwrap_or_else(|_| Err(Error::Hangs(path.clone())))?;
            let acceptor = read.acceptor(&path)?;
            let trouble = Causes::default();
            let folder = Folder {
                path,
                period,
                read,
                trouble,
            };
            (acceptor, Some(folder))
        } else {
            let made = self_signed(app).map_err(|error| Error::Make(error.to_string()))?;
            (made, None)
        };
        Ok(Self {
            certificate: Certificate(Arc::new(Mutex::new(acceptor))),
            folder,
        })
    }

    /// What to serve with.
    pub fn certificate(&self) -> Certificate {
        self.certificate.clone()
    }

    /// Follows the folder, for ever: beside what is served, since a mounted folder may hang. Then one thread hangs with
    /// it, and the certificate of before stays.
    pub async fn renewals(self) {
        let Some(mut folder) = self.folder else {
            return std::future::pending().await;
        };
        loop {
            sleep(folder.period).await;
            let mut reading = Box::pin(Pair::reading(folder.path.clone()));
            let read = if let Ok(read) = timeout(READ_TIMEOUT, &mut reading).await {
                read
            } else {
                folder.complain(&Error::Hangs(folder.path.clone()));
                reading.await
            };
            if let Some(acceptor) = folder.renewed(read) {
                *self.certificate.0.lock() = acceptor;
            }
        }
    }
}

impl Folder {
    /// Takes what the folder has now. What cannot be used is said once, and the certificate of before stays: a rotation may
    /// be half done.
    fn renewed(&mut self, read: Result<Pair, Error>) -> Option<TlsAcceptor> {
        let renewed = match read {
            Ok(read) if read == self.read => Ok(None),
            Ok(read) => read
                .acceptor(&self.path)
                .map(|acceptor| Some((read, acceptor))),
            Err(error) => Err(error),
        };
        match renewed {
            Ok(renewed) => {
                self.trouble.clear();
                let (read, acceptor) = renewed?;
                info!(folder = %self.path.display(), "metrics are served with a new certificate");
                self.read = read;
                Some(acceptor)
            }
            Err(error) => {
                self.complain(&error);
                None
            }
        }
    }

    fn complain(&mut self, error: &Error) {
        let trouble = error.to_string();
        if let Some(lasting) = self.trouble.is_due(&trouble) {
            warn!("metrics are served with the certificate of before: {trouble}{lasting}");
        }
    }
}

impl Pair {
    /// Reads on a thread of its own.
    async fn reading(folder: PathBuf) -> Result<Self, Error> {
        let path = folder.clone();
        let read = spawn_blocking(move || Self::read(&path)).await;
        read.unwrap_or_else(|error| Err(Error::Read(folder, io::Error::other(error))))
    }

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
fn self_signed(app: &App) -> Result<TlsAcceptor, Box<dyn std::error::Error>> {
    let names = ["localhost".to_owned(), app.name.to_owned()];
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::{fs, process::Command};

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::config::app::tests::APP;

    /// A folder with a certificate.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        for (name, label, der) in [
            (CERTIFICATE, "CERTIFICATE", made.cert.der().to_vec()),
            (KEY, "PRIVATE KEY", made.signing_key.serialize_der()),
        ] {
            let text = ::pem::encode(&::pem::Pem::new(label, der));
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    /// A mount that hangs stops nobody's connection. It is a pipe here: who reads it waits until the test is over, passed or
    /// failed.
    #[tokio::test]
    async fn a_folder_that_hangs_stops_no_connection() {
        const SOON: Duration = Duration::from_millis(1);
        let folder = folder();
        let tls = Tls::new(&APP, Some(folder.path().into()), SOON)
            .await
            .unwrap();
        let file = folder.path().join(CERTIFICATE);
        fs::remove_file(&file).unwrap();
        assert!(
            Command::new("mkfifo")
                .arg(&file)
                .status()
                .unwrap()
                .success()
        );
        let pipe = fs::OpenOptions::new().read(true).write(true).open(&file);
        let _writer = pipe.unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let server = crate::telemetry::server::serve_nothing(listener, tls);
        let client = async {
            // Long enough for the renewal to begin.
            sleep(100 * SOON).await;
            for _ in 0..10 {
                let mut stream = TcpStream::connect(addr).await.unwrap();
                stream.write_all(b"this is no TLS\n").await.unwrap();
                let mut answer = Vec::new();
                let alert = stream.read_to_end(&mut answer);
                let _ = timeout(Duration::from_secs(5), alert).await.unwrap();
            }
        };
        tokio::select! {
            () = server => {}
            () = client => {}
        }
    }
}
