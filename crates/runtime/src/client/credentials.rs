//! Who this client is to the API server: credentials that may be replaced while the process runs.

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

/// Credentials of one user, shared by all clients. kube adds static ones.
#[derive(Clone)]
pub(super) struct Credentials {
    file: Option<Arc<TokenFile>>,
    exec: Option<Arc<Exec>>,
    pub identity: Arc<Identity>,
}

impl Credentials {
    /// Takes over the credentials that may change, except an exec plugin.
    pub fn take(kube: &mut KubeConfig) -> Result<Self, Error> {
        let identity = Arc::new(Identity::take(&mut kube.auth_info)?);
        let file = TokenFile::take(&mut kube.auth_info)?.map(Arc::new);
        Ok(Self {
            file,
            exec: None,
            identity,
        })
    }

    /// Runs an exec plugin, too, where there are no other credentials, as client-go does.
    pub async fn start(kube: &mut KubeConfig, host: &Host) -> Result<Self, Error> {
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

    /// Puts the token into a request, and returns the number of the credentials for [`observe`](Self::observe).
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

    /// Notices whether the API server accepts the credentials.
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

/// Connections of one client. A new client certificate needs new connections.
pub(super) struct Pool<C> {
    builder: Builder,
    connector: C,
    credentials: Credentials,
    current: Mutex<(u64, Client<C, Guarded>)>,
}

impl<C: Connect + Clone + Send + Sync + 'static> Pool<C> {
    pub fn new(builder: Builder, connector: C, credentials: Credentials) -> Self {
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

    /// Sends a request, with the credentials of now. `ready` gets it when it can be sent.
    pub async fn send<B>(
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
