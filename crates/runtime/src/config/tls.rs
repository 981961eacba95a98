//! TLS certificates and keys, for the clients of the API server and of the collector, and for the metrics server.
//!
//! Like Go, and unlike rustls alone, this module accepts:
//!
//! - a CA certificate as the server's certificate, if the CA bundle contains it;
//! - a CA bundle that contains an invalid certificate;
//! - an own certificate of X.509 version 1.

use std::{error::Error as StdError, io, sync::Arc};

#[cfg(feature = "aws-lc-rs")]
use tokio_rustls::rustls::crypto::aws_lc_rs as library;
#[cfg(not(feature = "aws-lc-rs"))]
use tokio_rustls::rustls::crypto::ring as library;
use tokio_rustls::rustls::{
    self, AlertDescription, CertificateError, DigitallySignedStruct, InconsistentKeys, OtherError,
    RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime},
    server::ParsedCertificate,
    sign::CertifiedKey,
};
use tower::BoxError;

/// Fix for an unsupported key or signature, for error messages.
pub(crate) const SUPPORTED: &str = if cfg!(feature = "aws-lc-rs") {
    "supported are RSA of 2048 bits and more, ECDSA with P-256, P-384 or P-521, and Ed25519: reissue it as one of these"
} else {
    "supported are RSA of 2048 bits and more, ECDSA with P-256 or P-384 and SHA-256 or SHA-384, and Ed25519: reissue it as one of \
     these, or build with the feature aws-lc-rs"
};

/// Error of a certificate or key.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Returns the TLS library of this build.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(library::default_provider())
}

/// Makes [`provider`] the default of the process, unless there is one. kube's TLS configurations use the default, and rustls has
/// none if it contains both libraries.
pub(crate) fn install_provider() {
    let _ = library::default_provider().install_default();
}

/// The certificate authorities of a CA bundle. Verifies the certificates of servers.
#[derive(Debug)]
pub(crate) struct Roots {
    all: Vec<CertificateDer<'static>>,
    /// Number of certificates that cannot be read.
    pub unreadable: usize,
    verifier: Arc<WebPkiServerVerifier>,
}

impl Roots {
    /// Skips certificates that cannot be read, as Go does. Returns `None` if none can be read.
    pub(crate) fn new(all: Vec<CertificateDer<'static>>) -> Option<Self> {
        let mut store = RootCertStore::empty();
        let (_, unreadable) = store.add_parsable_certificates(all.iter().cloned());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider());
        let verifier = verifier.build().ok()?;
        Some(Self {
            all,
            unreadable,
            verifier,
        })
    }
}

impl ServerCertVerifier for Roots {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.verifier.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        verified.or_else(|error| {
            // Go accepts a trusted certificate without a chain, so a CA may serve with its own certificate. Before this error,
            // rustls has checked the validity period, but not the name.
            if is_ca_as_end_entity(&error) && self.all.contains(end_entity) {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                return Ok(ServerCertVerified::assertion());
            }
            Err(explained(error))
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let verified = self.verifier.verify_tls12_signature(message, cert, dss);
        verified.map_err(explained_in_handshake)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let verified = self.verifier.verify_tls13_signature(message, cert, dss);
        verified.map_err(explained_in_handshake)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

fn is_ca_as_end_entity(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(error))) = error
    else {
        return false;
    };
    matches!(error.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// Replaces errors that rustls would print as bytes by a readable message.
fn explained(error: rustls::Error) -> rustls::Error {
    use CertificateError as E;
    let rustls::Error::InvalidCertificate(cause) = &error else {
        return error;
    };
    let text = match cause {
        E::UnsupportedSignatureAlgorithmContext { .. }
        | E::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => {
            format!("it or one of its issuers has an unsupported signature algorithm; {SUPPORTED}")
        }
        // A key that is too short is reported as an invalid signature.
        E::BadSignature => format!(
            "its signature or that of one of its issuers is invalid, or made with an RSA key of fewer than 2048 bits; {SUPPORTED}"
        ),
        E::UnknownIssuer => "it was not issued by a configured certificate authority".to_owned(),
        _ if is_ca_as_end_entity(&error) => {
            "it is a CA certificate that is not in the CA bundle".to_owned()
        }
        _ => return error,
    };
    E::Other(OtherError(Arc::new(Error(text)))).into()
}

/// Replaces errors about the handshake's signature. A certificate's signature is a different one.
fn explained_in_handshake(error: rustls::Error) -> rustls::Error {
    use CertificateError as E;
    match error {
        rustls::Error::InvalidCertificate(
            E::BadSignature
            | E::UnsupportedSignatureAlgorithmContext { .. }
            | E::UnsupportedSignatureAlgorithmForPublicKeyContext { .. },
        ) => {
            let text = format!(
                "the server's signature of the handshake is invalid, or made with an RSA key of fewer than 2048 bits; {SUPPORTED}"
            );
            rustls::Error::Other(OtherError(Arc::new(Error(text))))
        }
        other => other,
    }
}

/// Makes an error of a handshake readable. A server whose key has an unsupported type sends the alert `handshake_failure` and no
/// certificate, so the text for this alert names that cause.
pub(crate) fn readable(error: BoxError) -> BoxError {
    let text = match innermost(&*error).downcast_ref() {
        Some(rustls::Error::AlertReceived(AlertDescription::HandshakeFailure)) => {
            format!("{error}: the type of the server's key may not be supported; {SUPPORTED}")
        }
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(cause)))) => {
            format!("invalid peer certificate: {cause}")
        }
        Some(rustls::Error::Other(OtherError(cause))) => cause.to_string(),
        _ => return error,
    };
    Error::new(text).into()
}

/// Whether the cause is TLS. The server is reachable in that case.
#[cfg(feature = "operator")]
pub(crate) fn is_failure(error: &(dyn StdError + 'static)) -> bool {
    let cause = innermost(error);
    cause.is::<Error>() || cause.is::<rustls::Error>()
}

/// Returns the innermost cause, including the error that an [`io::Error`] wraps. Its `source` would skip that error.
fn innermost<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    let mut cause = error;
    loop {
        let wrapped = cause.downcast_ref().and_then(io::Error::get_ref);
        let inner = wrapped.map(|inner| inner as &(dyn StdError + 'static));
        match inner.or_else(|| cause.source()) {
            Some(inner) => cause = inner,
            None => return cause,
        }
    }
}

/// A certificate and a key that cannot be used together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// The key has an unsupported type or length.
    #[error("the type of the key is not supported; {SUPPORTED}")]
    KeyType,
    /// The key belongs to another certificate.
    #[error("the key does not match the certificate")]
    Mismatch,
    /// The certificate is not valid DER.
    #[error("the certificate cannot be read")]
    Certificate,
}

/// Combines a certificate chain and its key. Unlike rustls, accepts X.509 version 1: only the peer verifies the certificate.
pub(crate) fn pair(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, PairError> {
    let key = provider().key_provider.load_private_key(key);
    let certified = CertifiedKey::new(chain, key.map_err(|_| PairError::KeyType)?);
    match certified.keys_match() {
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            Err(PairError::Mismatch)
        }
        Err(rustls::Error::InvalidCertificate(CertificateError::BadEncoding)) => {
            Err(PairError::Certificate)
        }
        _ => Ok(Arc::new(certified)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tokio_rustls::rustls::pki_types::pem::PemObject as _;

    use super::*;

    /// A certificate of X.509 version 1 and its key. rcgen cannot create version 1.
    pub(crate) const VERSION_1: [&str; 2] = [
        "-----BEGIN CERTIFICATE-----\n\
         MIIBHTCBxQIUOWEhHNSj9ba6uCLaelJSvG+qYwkwCgYIKoZIzj0EAwIwETEPMA0G\n\
         A1UEAwwGY2xpZW50MCAXDTI2MTEyNzIzMjExNVoYDzIxMjYxMTAzMjMyMTE1WjAR\n\
         MQ8wDQYDVQQDDAZjbGllbnQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAATPhyO3\n\
         uB1un0Q+u5gF4x4zha8ncid8d/i9H1QzJW9Hku5K9o8WAnnXXc8WHG5XPFL1zwMb\n\
         1xu4pyHJ+BmsKBHRMAoGCCqGSM49BAMCA0cAMEQCIDWNnTBxG9jGLJEeotMIsyu5\n\
         ffliIFa36euOAxcOhCE2AiAw5ooaF41Gu1JSiH76LvYYQ54yEjnWSo2GwsBThtN0\n\
         9g==\n\
         -----END CERTIFICATE-----\n",
        "-----BEGIN PRIVATE KEY-----\n\
         MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgZyQoQSB7FUvnzF9i\n\
         pyNFfj+pnRfCTE/K7957E8tvQzmhRANCAATPhyO3uB1un0Q+u5gF4x4zha8ncid8\n\
         d/i9H1QzJW9Hku5K9o8WAnnXXc8WHG5XPFL1zwMb1xu4pyHJ+BmsKBHR\n\
         -----END PRIVATE KEY-----\n",
    ];

    /// A key of a type that rustls does not support: secp256k1.
    pub(crate) const SECP256K1: &str = "-----BEGIN PRIVATE KEY-----\n\
         MIGEAgEAMBAGByqGSM49AgEGBSuBBAAKBG0wawIBAQQgOB8lCLNzjW677dm7IA85\n\
         OWJrSVfmE8rvqtgAhwiyyT2hRANCAAT3ZssEvwu9pCRQartGgYqEqxkzKqYG69Db\n\
         GwT4X312KfCEJxR54HMBxd1iyOY3jTKbHXXJje09573f277y0ra2\n\
         -----END PRIVATE KEY-----\n";

    #[test]
    fn errors_of_a_handshake_are_readable() {
        let read = |error: rustls::Error| {
            let error = io::Error::other(io::Error::new(io::ErrorKind::InvalidData, error));
            assert!(is_failure(&error));
            readable(error.into()).to_string()
        };
        let alert = read(rustls::Error::AlertReceived(
            AlertDescription::HandshakeFailure,
        ));
        assert!(alert.ends_with(SUPPORTED), "{alert}");
        let short = read(explained(CertificateError::BadSignature.into()));
        assert!(
            short.starts_with("invalid peer certificate: its signature ")
                && short.ends_with(SUPPORTED),
            "{short}"
        );
        let handshake = read(explained_in_handshake(
            CertificateError::BadSignature.into(),
        ));
        assert!(
            handshake.starts_with("the server's signature of the handshake ")
                && handshake.ends_with(SUPPORTED),
            "{handshake}"
        );
        let other = read(rustls::Error::AlertReceived(
            AlertDescription::InternalError,
        ));
        assert_eq!(other, "received fatal alert: InternalError");
        assert!(!is_failure(&io::Error::other("no answer")));
    }

    #[test]
    fn a_pair_that_cannot_be_used_is_explained() {
        let version_1 = CertificateDer::from_pem_slice(VERSION_1[0].as_bytes()).unwrap();
        let key = |pem: &str| PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap();
        let of = |certificate: CertificateDer<'static>, key| pair(vec![certificate], key).err();
        assert_eq!(of(version_1.clone(), key(VERSION_1[1])), None);
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let other = made.cert.der().clone();
        let mismatch = of(other, key(VERSION_1[1]));
        assert_eq!(mismatch, Some(PairError::Mismatch));
        let nonsense = of(vec![0].into(), key(VERSION_1[1]));
        assert_eq!(nonsense, Some(PairError::Certificate));
        let unsupported = of(version_1, key(SECP256K1)).unwrap();
        assert!(unsupported.to_string().contains("P-256"), "{unsupported}");
    }
}
