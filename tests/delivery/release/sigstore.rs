//! Stand-ins for the services of a keyless signature: GitHub's identity token of a job, and Sigstore's certificate
//! authority Fulcio. There is no transparency log, and no timestamp authority.

use std::sync::{Arc, Mutex};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SignatureAlgorithm,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// The issuer of GitHub's identity tokens.
const ISSUER: &str = "https://token.actions.githubusercontent.com";

/// Fulcio's extension for the issuer (<https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md>).
const ISSUER_EXTENSION: [u64; 9] = [1, 3, 6, 1, 4, 1, 57264, 1, 8];

/// Serves both stand-ins until it is dropped.
pub struct Sigstore {
    pub address: String,
    /// Certificate of the authority, in PEM.
    pub authority: String,
    identity: Arc<Mutex<String>>,
    server: JoinHandle<()>,
}

impl Drop for Sigstore {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Sigstore {
    /// Certifies every request for this identity, a URL.
    pub async fn start(identity: String) -> Self {
        let identity = Arc::new(Mutex::new(identity));
        let certified = Arc::clone(&identity);
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "stand-in");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = encode(&params.self_signed(&key).unwrap());
        let issuer = Issuer::new(params, key);

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let identity = certified.lock().unwrap().clone();
                serve(stream, &issuer, &identity).await;
            }
        });
        Self {
            address,
            authority,
            identity,
            server,
        }
    }

    /// Certifies later requests for another identity.
    pub fn certify(&self, identity: String) {
        *self.identity.lock().unwrap() = identity;
    }
}

/// Answers one request of the connection.
async fn serve(stream: TcpStream, issuer: &Issuer<'_, KeyPair>, identity: &str) {
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    stream.read_line(&mut request).await.unwrap();
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        let line = line.trim_end().to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    let answer = if request.starts_with("GET /token?api-version=2.0&audience=sigstore ") {
        json!({"value": token()})
    } else {
        assert!(
            request.starts_with("POST /api/v2/signingCert "),
            "{request}"
        );
        let body: Value = serde_json::from_slice(&body).unwrap();
        let key = &body["publicKeyRequest"]["publicKey"]["content"];
        let certificate = certify(key.as_str().unwrap(), issuer, identity);
        json!({"signedCertificateEmbeddedSct": {"chain": {"certificates": [certificate]}}})
    };
    let answer = answer.to_string();
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json";
    let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
    stream.write_all(answer.as_bytes()).await.unwrap();
}

/// An identity token. Only Fulcio would check its signature.
fn token() -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = part(json!({"alg": "ES256", "typ": "JWT"}));
    let claims =
        part(json!({"iss": ISSUER, "sub": "job", "aud": "sigstore", "exp": 4_000_000_000_u32}));
    format!("{header}.{claims}.{}", STANDARD.encode("unchecked"))
}

struct Key(Vec<u8>);

impl PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

/// Returns a certificate for a public key of P-256 in PEM, as Fulcio issues it for a workflow.
fn certify(key: &str, issuer: &Issuer<'_, KeyPair>, identity: &str) -> String {
    let key = pem::parse(key).unwrap().into_contents();
    // The point is the last 65 bytes.
    let key = Key(key[key.len() - 65..].to_vec());
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(identity.try_into().unwrap())];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning];
    // A string of UTF-8 in DER.
    let mut value = vec![0x0c, u8::try_from(ISSUER.len()).unwrap()];
    value.extend(ISSUER.bytes());
    let extension = CustomExtension::from_oid_content(&ISSUER_EXTENSION, value);
    params.custom_extensions = vec![extension];
    encode(&params.signed_by(&key, issuer).unwrap())
}

fn encode(certificate: &rcgen::Certificate) -> String {
    pem::encode(&pem::Pem::new("CERTIFICATE", certificate.der().to_vec()))
}
