//! The certificate of a server, for metrics or for conversions. It is read from a directory and reloaded after a rotation, or
//! created for this process.

use crate::{
    config::{
        app::App,
        tls::{PairError, pair, provider},
    },
    telemetry::log_once::OutageLog,
};
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
        pki_types::{
            CertificateDer, PrivateKeyDer,
            pem::{self, PemObject as _},
        },
        sign::{CertifiedKey, SingleCertAndKey},
    },
};
use tracing::{info, warn};

/// Reload interval, as in controller-runtime.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

/// Time limit for reading a mounted directory, after which it counts as hung.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// File names in a Secret of type `kubernetes.io/tls`, which cert-manager uses too.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// No certificate can be loaded or created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, io::Error),
    /// Reading the directory hangs.
    #[error("{0} cannot be read within {READ_TIMEOUT:?}")]
    Hangs(PathBuf),
    /// A file is not valid PEM.
    #[error("{0} in {1} is not PEM with a {2}: {3}")]
    Pem(&'static str, PathBuf, &'static str, pem::Error),
    /// Certificate and key do not match, or their type is not supported.
    #[error("{CERTIFICATE} and {KEY} in {0} cannot be used: {1}")]
    Pair(PathBuf, PairError),
    /// rustls rejects the configuration.
    #[error("TLS: {0}")]
    Settings(#[from] rustls::Error),
    /// No certificate can be created.
    #[error("cannot create a self-signed certificate: {0}")]
    Make(String),
}

/// TLS settings of the server.
pub(crate) struct Tls {
    certificate: Certificate,
    folder: Option<Folder>,
}

/// The current certificate, as an acceptor of TLS connections; clones share it.
#[derive(Clone)]
pub(crate) struct Certificate(Arc<Mutex<TlsAcceptor>>);

impl Certificate {
    /// Returns the acceptor for a new connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.0.lock().clone()
    }
}

struct Folder {
    path: PathBuf,
    period: Duration,
    /// The files of the current certificate.
    read: Pair,
    /// Causes of failed reloads, as logged.
    trouble: OutageLog,
}

/// Certificate and key, in PEM.
#[derive(PartialEq)]
struct Pair(Vec<u8>, Vec<u8>);

impl Tls {
    /// Loads the certificate in `folder` and reloads it every `period`, or creates a self-signed one.
    ///
    /// # Errors
    /// See [`Error`].
    pub(crate) async fn new(
        app: &App,
        folder: Option<PathBuf>,
        period: Duration,
    ) -> Result<Self, Error> {
        let (acceptor, folder) = if let Some(path) = folder {
            let reading = Pair::reading(path.clone());
            let read = timeout(READ_TIMEOUT, reading).await;
            let read = read.unwrap_or_else(|_| Err(Error::Hangs(path.clone())))?;
            let acceptor = read.acceptor(&path)?;
            let trouble = OutageLog::default();
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

    /// Returns the shared certificate.
    pub(crate) fn certificate(&self) -> Certificate {
        self.certificate.clone()
    }

    /// Reloads the certificate until cancelled. A read may hang in a mounted directory. It then blocks one thread and no
    /// connection, and the previous certificate stays in use.
    pub(crate) async fn renewals(self) {
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
    /// Handles the result of a reload. If the files cannot be used, because a rotation may be half done, it logs the error and
    /// keeps the previous certificate.
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
                info!(folder = %self.path.display(), "serving with a new certificate");
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
            warn!("cannot reload the certificate, keeping the previous one: {trouble}{lasting}");
        }
    }
}

impl Pair {
    /// Reads the files on a separate thread.
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
        let pair = pair(chain, key).map_err(|error| Error::Pair(folder.into(), error))?;
        Ok(acceptor(pair)?)
    }
}

/// Creates a self-signed certificate. Clients cannot verify it, but it encrypts the connection.
fn self_signed(app: &App) -> Result<TlsAcceptor, Box<dyn std::error::Error>> {
    let names = ["localhost".to_owned(), app.name.to_owned()];
    let made = rcgen::generate_simple_self_signed(names)?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    Ok(acceptor(pair(vec![made.cert.der().clone()], key)?)?)
}

fn acceptor(pair: Arc<CertifiedKey>) -> Result<TlsAcceptor, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
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
    use crate::config::{app::tests::APP, tls::tests::SECP256K1};

    /// Creates a directory with a certificate.
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

    #[tokio::test]
    async fn a_key_of_an_unsupported_type_is_explained() {
        let folder = folder();
        fs::write(folder.path().join(KEY), SECP256K1).unwrap();
        let tls = Tls::new(&APP, Some(folder.path().into()), PERIOD).await;
        let error = tls.err().unwrap().to_string();
        let says = "cannot be used: the type of the key is not supported; ";
        assert!(error.contains(says), "{error}");
    }

    /// A mount that hangs stops no connection. A pipe stands for the mount: its reader blocks until the end of the test.
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
            // Long enough for the reload to begin.
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
