//! Admission webhooks on loopback that hang, are slow or deny. Each has a server and a `ValidatingWebhookConfiguration` for one
//! namespace.

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use http::{Request, Response};
use http_body_util::{BodyExt as _, Collected, Full};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use rcgen::generate_simple_self_signed;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::AbortHandle, time::sleep};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

/// Response of a webhook to each request.
#[derive(Clone, Copy, Debug)]
pub enum Does {
    /// Never responds.
    Hangs,
    /// Allows the request after this delay.
    AllowsAfter(Duration),
    /// Denies the request.
    Denies,
}

/// Configuration of a webhook.
#[derive(Clone, Copy, Debug)]
pub struct Webhook {
    /// Matched resources, such as `apps/v1/deployments`, or `/v1/events` in the core group.
    pub resources: &'static str,
    pub does: Does,
    /// `None` leaves the default of 10 s.
    pub timeout_seconds: Option<u32>,
    /// `failurePolicy: Ignore`, otherwise `Fail`.
    pub fails_open: bool,
}

/// Installed webhook and its server. [`Installed::remove`] deletes the configuration. Drop stops only the server: the
/// configuration stays and affects a namespace that no other test uses.
pub struct Installed {
    configurations: Api<ValidatingWebhookConfiguration>,
    name: String,
    server: AbortHandle,
}

impl Webhook {
    /// Installs the webhook in a namespace and waits until the API server calls it.
    pub async fn install(self, client: &Client, namespace: &str) -> Installed {
        let made = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(serve(listener, Arc::new(config).into(), self.does));

        let mut segments = self.resources.split('/');
        let mut next = || segments.next().unwrap_or_default();
        let (group, version, resources) = (next(), next(), [next(), next()]);
        let resources = resources.join("/");
        let name = format!("hangs-{namespace}");
        let ca = pem::encode(&pem::Pem::new("CERTIFICATE", made.cert.der().to_vec()));
        let configuration = json!({
            "metadata": { "name": name },
            "webhooks": [{
                "name": "somebody.example.com",
                "clientConfig": { "url": format!("https://localhost:{port}/"), "caBundle": k8s_openapi::ByteString(ca.into_bytes()) },
                "rules": [{
                    "apiGroups": [group], "apiVersions": [version], "resources": [resources.trim_end_matches('/')],
                    "operations": ["CREATE", "UPDATE", "DELETE"],
                }],
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
                "failurePolicy": if self.fails_open { "Ignore" } else { "Fail" },
                "timeoutSeconds": self.timeout_seconds,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }],
        });
        let configurations = Api::all(client.clone());
        let configuration = serde_json::from_value(configuration).unwrap();
        let params = PostParams::default();
        let created = configurations.create(&params, &configuration).await;
        created.unwrap();
        // The API server reloads webhook configurations once per second.
        sleep(Duration::from_millis(1500)).await;
        Installed {
            configurations,
            name,
            server: server.abort_handle(),
        }
    }
}

impl Installed {
    pub async fn remove(self) {
        let delete = DeleteParams::default();
        self.configurations
            .delete(&self.name, &delete)
            .await
            .unwrap();
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, does: Does) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let tls = tls.clone();
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else {
                return;
            };
            let service = service_fn(move |request| answer(request, does));
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            let _ = connection.await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    does: Does,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await;
    let body = body.map(Collected::to_bytes).unwrap_or_default();
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let allowed = match does {
        Does::Hangs => pending().await,
        Does::AllowsAfter(time) => {
            sleep(time).await;
            true
        }
        Does::Denies => false,
    };
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": { "uid": review["request"]["uid"], "allowed": allowed, "status": { "message": "not this week" } },
    });
    let mut response = Response::new(Full::from(review.to_string()));
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert("content-type", json);
    Ok(response)
}
