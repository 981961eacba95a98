//! Context of a controller's requests.

use kube::{Api, Client, Resource, core::DynamicResourceScope};

use crate::{
    api::key::Key,
    config::{app::App, environment::Host},
};

/// Application, environment and client, shared by watches and writers.
pub(crate) struct ClientContext {
    pub app: &'static App,
    pub host: Host,
    /// Client behind the fence: rejects writes after the end of the term.
    pub client: Client,
}

impl ClientContext {
    /// Returns the API for the object of this key.
    pub(crate) fn api<K>(&self, key: &Key) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = DynamicResourceScope>,
    {
        let client = self.client.clone();
        match key.namespace_if_any() {
            Some(namespace) => Api::namespaced_with(client, namespace, &()),
            None => Api::all(client),
        }
    }
}
