//! Credentials for the API server. They may be replaced while the process runs.

use std::sync::Arc;

use http::{
    Request, Response, StatusCode,
    header::{AUTHORIZATION, HeaderValue},
};
use hyper_util::client::legacy::{Builder, Client, connect::Connect};
use kube::Config as KubeConfig;
use parking_lot::Mutex;

use super::{error::Error, tls::Identity};
use crate::{
    client::{exec::Exec, fence::Guarded, token_file::TokenFile},
    config::environment::Host,
};

/// Dynamic credentials of one user, shared by all clients. kube adds static ones.
#[derive(Clone)]
pub(super) struct Credentials {
    file: Option<Arc<TokenFile>>,
    exec: Option<Arc<Exec>>,
    pub identity: Arc<Identity>,
}

impl Credentials {
    /// Moves the dynamic credentials out of `kube`, except an exec plugin.
    pub(super) fn take(kube: &mut KubeConfig) -> Result<Self, Error> {
        let identity = Arc::new(Identity::take(&mut kube.auth_info)?);
        let file = TokenFile::take(&mut kube.auth_info)?.map(Arc::new);
        Ok(Self {
            file,
            exec: None,
            identity,
        })
    }

    /// Like [`take`](Self::take). Also runs the exec plugin, but only if there are no other credentials, as client-go does.
    pub(super) async fn start(kube: &mut KubeConfig, host: &Host) -> Result<Self, Error> {
        let exec = kube.auth_info.exec.take();
        let mut this = Self::take(kube)?;
        let auth = &kube.auth_info;
        let has_others = this.file.is_some()
            || this.identity.is_set()
            || auth.token.is_some()
            || auth.username.is_some();
        if let Some(config) = exec.filter(|_| !has_others) {
            let identity = Arc::clone(&this.identity);
            this.exec = Some(Exec::start(config, host, identity).await?);
        }
        Ok(this)
    }

    /// Adds the token to a request. Returns the generation of the credentials for [`observe`](Self::observe).
    async fn authorize<B>(&self, mut request: Request<B>) -> (Request<B>, u64) {
        if let Some(file) = &self.file {
            return (file.authorize(request), 0);
        }
        let mut number = 0;
        if let Some(exec) = &self.exec {
            let token: Option<HeaderValue>;
            (token, number) = exec.token().await;
            if let Some(token) = token {
                request.headers_mut().insert(AUTHORIZATION, token);
            }
        }
        (request, number)
    }

    /// Records whether the API server accepted the credentials.
    fn observe<B>(&self, response: &Response<B>, number: u64) {
        let is_refused = response.status() == StatusCode::UNAUTHORIZED;
        if let Some(file) = &self.file {
            file.observe(response);
        }
        if let Some(exec) = &self.exec {
            exec.observe(is_refused, number);
        }
        if is_refused {
            self.identity.refused();
        }
    }
}

/// Connection pool of one client. A new client certificate replaces the pool, because TLS sends it only on new connections.
pub(super) struct Pool<C> {
    builder: Builder,
    connector: C,
    credentials: Credentials,
    current: Mutex<(u64, Client<C, Guarded>)>,
}

impl<C: Connect + Clone + Send + Sync + 'static> Pool<C> {
    pub(super) fn new(builder: Builder, connector: C, credentials: Credentials) -> Self {
        let current = builder.build(connector.clone());
        let current = Mutex::new((credentials.identity.generation(), current));
        Self {
            builder,
            connector,
            credentials,
            current,
        }
    }

    fn client(&self) -> Client<C, Guarded> {
        let generation = self.credentials.identity.generation();
        let mut current = self.current.lock();
        if current.0 != generation {
            *current = (generation, self.builder.build(self.connector.clone()));
        }
        current.1.clone()
    }

    /// Sends a request with the current credentials. `ready` gets the request right before it is sent.
    pub(super) async fn send<B>(
        &self,
        request: Request<B>,
        ready: impl FnOnce(Request<B>) -> Request<Guarded>,
    ) -> Result<Response<hyper::body::Incoming>, hyper_util::client::legacy::Error> {
        let (request, number) = self.credentials.authorize(request).await;
        let response = self.client().request(ready(request)).await?;
        self.credentials.observe(&response, number);
        Ok(response)
    }
}
