//! TLS of the export: trusted certificate authorities, and the client certificate.
//!
//! The files are reloaded for each connection, because certificates are rotated at the same paths. If files cannot be used, the
//! error is logged once and the previous certificates stay in use: a rotation may be half done.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    sync::Mutex as Turn,
    task::spawn_blocking,
    time::{Duration, timeout},
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
        sign::SingleCertAndKey,
    },
};
use tower::BoxError;
use tracing::{info, warn};

use super::env::{Env, Signal};
use crate::{
    config::{
        protocol::Protocol,
        tls::{PairError, Roots, pair, provider, readable},
    },
    telemetry::error::Error,
};

/// ALPN name of HTTP/2, which gRPC needs.
const HTTP2: &[u8] = b"h2";

/// ALPN name of HTTP/1.1, which every server of OTLP/HTTP supports.
const HTTP1: &[u8] = b"http/1.1";

/// Time limit for reading the files. A mounted directory that hangs blocks one thread, and the previous certificates are used.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// TLS settings of one signal.
pub(crate) struct Trust {
    signal: Signal,
    files: Arc<Files>,
    /// Limits reads to one at a time.
    turn: Arc<Turn<()>>,
    current: Mutex<Current>,
}

struct Current {
    read: Certificates,
    config: Arc<ClientConfig>,
    /// The last error, as logged.
    trouble: String,
}

/// The files, each with the variable that names it.
struct Files {
    protocol: Protocol,
    authorities: Option<File>,
    identity: Option<(File, File)>,
}

struct File {
    variable: String,
    path: String,
}

/// The content of the files.
#[derive(PartialEq)]
struct Certificates {
    authorities: Vec<CertificateDer<'static>>,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

impl Trust {
    /// Reads the files.
    ///
    /// # Errors
    /// The files cannot be used.
    pub(super) fn new(env: &Env, signal: Signal, protocol: Protocol) -> Result<Self, Error> {
        let file = |what| -> Result<_, Error> {
            let named = env.strict_for(signal, what)?;
            Ok(named.map(|(variable, path)| File {
                variable,
                path: path.to_owned(),
            }))
        };
        let identity = match (file("CLIENT_CERTIFICATE")?, file("CLIENT_KEY")?) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => {
                return Err(Error::Variable(format!(
                    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY (environment variables): set \
                     both or neither for {signal}"
                )));
            }
        };
        let files = Files {
            protocol,
            authorities: file("CERTIFICATE")?,
            identity,
        };
        let read = files.read().map_err(Error::Variable)?;
        let config = files.config(&read).map_err(Error::Variable)?;
        Ok(Self {
            signal,
            files: Arc::new(files),
            turn: Arc::default(),
            current: Mutex::new(Current {
                read,
                config,
                trouble: String::new(),
            }),
        })
    }

    /// Performs the TLS handshake with `host`.
    ///
    /// # Errors
    /// The handshake fails, or the collector does not support HTTP/2 although gRPC needs it.
    pub(crate) async fn handshake(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, BoxError> {
        // In a URL, an IPv6 address has brackets.
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
        let stream = TlsConnector::from(self.config().await)
            .connect(name, stream)
            .await
            .map_err(|error| readable(error.into()))?;
        let chosen = stream.get_ref().1.alpn_protocol();
        if self.files.protocol == Protocol::Grpc && chosen != Some(HTTP2) {
            return Err("the collector does not speak HTTP/2".into());
        }
        Ok(stream)
    }

    /// Returns the settings for a new connection, reloaded from the files if they can be used.
    async fn config(&self) -> Arc<ClientConfig> {
        let read = self.read().await;
        let mut current = self.current.lock();
        let renewed = match read {
            Ok(read) if read == current.read => None,
            Ok(read) => match self.files.config(&read) {
                Ok(config) => Some(Ok((read, config))),
                Err(error) => Some(Err(error)),
            },
            Err(error) => Some(Err(error)),
        };
        let signal = self.signal;
        match renewed {
            None => current.trouble.clear(),
            Some(Ok((read, config))) => {
                info!(%signal, "reloaded the export certificates");
                *current = Current {
                    read,
                    config,
                    trouble: String::new(),
                };
            }
            Some(Err(error)) if error == current.trouble => {}
            Some(Err(error)) => {
                warn!(%signal, "cannot reload export certificates, keeping the previous ones: {error}");
                current.trouble = error;
            }
        }
        Arc::clone(&current.config)
    }

    async fn read(&self) -> Result<Certificates, String> {
        let hangs = || "reading the files timed out".to_owned();
        let turn = Arc::clone(&self.turn)
            .try_lock_owned()
            .map_err(|_| hangs())?;
        let files = Arc::clone(&self.files);
        let read = spawn_blocking(move || {
            let _turn = turn;
            files.read()
        });
        let read = timeout(READ_TIMEOUT, read).await.map_err(|_| hangs())?;
        read.unwrap_or_else(|error| Err(error.to_string()))
    }
}

impl Files {
    fn read(&self) -> Result<Certificates, String> {
        let authorities = match &self.authorities {
            Some(file) => file.certificates()?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let identity = match &self.identity {
            Some((certificate, key)) => Some((certificate.certificates()?, key.key()?)),
            None => None,
        };
        Ok(Certificates {
            authorities,
            identity,
        })
    }

    /// Creates the settings from the content of the files.
    fn config(&self, read: &Certificates) -> Result<Arc<ClientConfig>, String> {
        let roots = Roots::new(read.authorities.clone());
        let roots = roots.ok_or_else(|| match &self.authorities {
            Some(file) => file.wrong("holds no certificate of an authority"),
            None => "no certificate authorities are installed: set OTEL_EXPORTER_OTLP_CERTIFICATE"
                .to_owned(),
        })?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(roots));
        let mut config = match (&self.identity, &read.identity) {
            (Some((file, key_file)), Some((certificate, key))) => {
                let pair = pair(certificate.clone(), key.clone_key());
                let pair = pair.map_err(|error| match error {
                    PairError::KeyType => key_file.wrong(error),
                    PairError::Mismatch => {
                        file.wrong(format_args!("does not match {:?}", key_file.path))
                    }
                    PairError::Certificate => file.wrong(error),
                })?;
                config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
            }
            _ => config.with_no_client_auth(),
        };
        let version = match self.protocol {
            Protocol::Grpc => HTTP2,
            Protocol::Http => HTTP1,
        };
        config.alpn_protocols = vec![version.to_vec()];
        Ok(Arc::new(config))
    }
}

impl File {
    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let pem = self.pem()?;
        let all = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
        match all {
            Ok(all) if all.is_empty() => Err(self.wrong("holds no certificate")),
            Ok(all) => Ok(all),
            Err(error) => Err(self.wrong(error)),
        }
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, String> {
        let pem = self.pem()?;
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes());
        key.map_err(|error| self.wrong(format_args!("holds no private key: {error}")))
    }

    fn pem(&self) -> Result<String, String> {
        let text = std::fs::read_to_string(&self.path);
        let text = text.map_err(|error| self.wrong(format_args!("cannot be read: {error}")))?;
        if text.contains("-----BEGIN ") {
            Ok(text)
        } else {
            Err(self.wrong("holds nothing in PEM format"))
        }
    }

    fn wrong(&self, wrong: impl std::fmt::Display) -> String {
        let Self { variable, path } = self;
        format!("{variable} = {path:?} (environment variable): {wrong}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::{fs, path::Path};

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use tokio::net::TcpListener;
    use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

    use super::*;
    use crate::config::tls::tests::{SECP256K1, VERSION_1};

    /// Writes a certificate and its key, as `crt` and `key`.
    fn write(folder: &Path) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        for (name, label, der) in [
            ("crt", "CERTIFICATE", made.cert.der().to_vec()),
            ("key", "PRIVATE KEY", made.signing_key.serialize_der()),
        ] {
            let text = ::pem::encode(&::pem::Pem::new(label, der));
            fs::write(folder.join(name), text).unwrap();
        }
    }

    /// The kubelet replaces a directory behind a symlink; other tools write one file after the other. Files that match are
    /// used. For others the error is recorded, and the previous certificates stay in use.
    #[tokio::test]
    async fn certificates_are_used_only_with_their_keys() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for version in ["one", "two"] {
            fs::create_dir(path(version)).unwrap();
            write(&path(version));
        }
        let point_to = |version: &str| {
            std::os::unix::fs::symlink(path(version), path("new")).unwrap();
            fs::rename(path("new"), path("data")).unwrap();
        };
        point_to("one");
        let variables = [
            ("CERTIFICATE", "crt"),
            ("CLIENT_CERTIFICATE", "crt"),
            ("CLIENT_KEY", "key"),
        ];
        let variables = variables.map(|(what, name)| {
            let name = path("data").join(name).into_os_string();
            (format!("OTEL_EXPORTER_OTLP_{what}").into(), name)
        });
        let trust = Trust::new(&Env::new(variables), Signal::Logs, Protocol::Grpc).unwrap();
        let first = trust.config().await;
        assert!(
            Arc::ptr_eq(&first, &trust.config().await),
            "nothing has changed"
        );
        point_to("two");
        let second = trust.config().await;
        assert!(!Arc::ptr_eq(&first, &second));

        let (crt, key) = (path("two").join("crt"), path("two").join("key"));
        let kept = fs::read(&key).unwrap();
        let half = kept[..kept.len() / 2].to_vec();
        let other = fs::read(path("one").join("key")).unwrap();
        for (content, trouble) in [
            (Some(half), "holds no private key"),
            (Some(other), "does not match"),
            (Some(b"nothing".to_vec()), "holds nothing in PEM format"),
            (None, "cannot be read"),
        ] {
            match content {
                Some(content) => fs::write(&key, content).unwrap(),
                None => fs::remove_file(&key).unwrap(),
            }
            assert!(Arc::ptr_eq(&second, &trust.config().await), "{trouble}");
            let logged = trust.current.lock().trouble.clone();
            assert!(logged.contains(trouble), "{logged}");
        }
        fs::write(&key, &kept).unwrap();
        assert!(Arc::ptr_eq(&second, &trust.config().await));
        assert_eq!(trust.current.lock().trouble, "");
        fs::write(&crt, &kept).unwrap();
        assert!(
            Arc::ptr_eq(&second, &trust.config().await),
            "a key is no certificate"
        );
    }

    /// As with Go, the client certificate may be of X.509 version 1, and the collector's certificate may be a CA certificate of
    /// the CA bundle.
    #[tokio::test]
    async fn certificates_are_accepted_as_by_go() {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let made = params.self_signed(&key).unwrap().der().clone();
        let authority = ::pem::encode(&::pem::Pem::new("CERTIFICATE", made.to_vec()));
        let env = |key: &str| {
            let files = [
                ("CERTIFICATE", &*authority),
                ("CLIENT_CERTIFICATE", VERSION_1[0]),
                ("CLIENT_KEY", key),
            ];
            let variables = files.map(|(what, content)| {
                let path = folder.path().join(what);
                fs::write(&path, content).unwrap();
                let name = format!("OTEL_EXPORTER_OTLP_{what}");
                (name.into(), path.into_os_string())
            });
            Env::new(variables)
        };
        let error = Trust::new(&env(SECP256K1), Signal::Logs, Protocol::Grpc)
            .err()
            .unwrap();
        let error = error.to_string();
        let key_type = "(environment variable): the type of the key is not supported; ";
        assert!(
            error.starts_with("OTEL_EXPORTER_OTLP_CLIENT_KEY = "),
            "{error}"
        );
        assert!(error.contains(key_type), "{error}");

        let trust = Trust::new(&env(VERSION_1[1]), Signal::Logs, Protocol::Grpc).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made], key)
            .unwrap();
        config.alpn_protocols = vec![HTTP2.to_vec()];
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let accept = async {
            let (stream, _) = listener.accept().await.unwrap();
            TlsAcceptor::from(Arc::new(config)).accept(stream).await
        };
        let connect = async {
            let stream = TcpStream::connect(address).await.unwrap();
            trust.handshake("localhost", stream).await
        };
        let (accepted, connected) = tokio::join!(accept, connect);
        connected.unwrap();
        accepted.unwrap();
    }

    /// A mount that hangs delays a connection briefly, and blocks one thread. A pipe stands for the mount.
    #[tokio::test]
    async fn files_that_hang_stop_no_connection() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        let crt = folder.path().join("crt");
        let variable = (
            "OTEL_EXPORTER_OTLP_CERTIFICATE".into(),
            crt.clone().into_os_string(),
        );
        let trust = Trust::new(&Env::new([variable]), Signal::Logs, Protocol::Grpc).unwrap();
        let first = trust.config().await;
        fs::remove_file(&crt).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&crt).status();
        assert!(made.unwrap().success());
        let pipe = fs::OpenOptions::new().read(true).write(true).open(&crt);
        let _writer = pipe.unwrap();
        for _ in 0..3 {
            assert!(Arc::ptr_eq(&first, &trust.config().await));
        }
        assert!(trust.current.lock().trouble.contains("timed out"));
    }
}
