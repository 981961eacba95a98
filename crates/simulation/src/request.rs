//! Requests of users.

use http::Method;
use serde_json::{Value, json};

use super::{plan::Action, world::World};

/// A request to the first running API server. The path begins with `/`. The body is sent as it is, for a PATCH as a merge patch.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    pub path: String,
    pub body: Value,
}

impl Request {
    pub fn new(method: Method, path: String, body: Value) -> Self {
        Self { method, path, body }
    }

    pub fn get(path: String) -> Self {
        Self::new(Method::GET, path, Value::Null)
    }

    /// `path` names the collection, such as `…/configmaps`.
    pub fn create(path: String, body: Value) -> Self {
        Self::new(Method::POST, path, body)
    }

    pub fn patch(path: String, body: Value) -> Self {
        Self::new(Method::PATCH, path, body)
    }

    /// The policy is `Background`, `Foreground` or `Orphan`.
    pub fn delete(path: String, policy: &str) -> Self {
        let body =
            json!({ "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy });
        Self::new(Method::DELETE, path, body)
    }

    /// Sends it as `user`. Returns the status code, and the object or the error.
    pub fn send(&self, world: &mut World, user: &str) -> (u16, Value) {
        world.request(user, &self.method, &self.path, &self.body)
    }
}

impl From<Request> for Action {
    fn from(request: Request) -> Self {
        Self::Request(request)
    }
}
