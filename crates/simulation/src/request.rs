//! Requests of users.

use http::Method;
use serde_json::{Value, json};

use super::{plan::Action, world::World};

/// A request of a user. The path begins with `/`. The body is sent as it is, for a PATCH as a merge patch.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    pub path: String,
    pub body: Value,
}

impl Request {
    /// The path is that of the list.
    pub fn create(path: String, body: Value) -> Self {
        Self {
            method: Method::POST,
            path,
            body,
        }
    }

    pub fn patch(path: String, body: Value) -> Self {
        Self {
            method: Method::PATCH,
            path,
            body,
        }
    }

    /// The policy is `Background`, `Foreground` or `Orphan`.
    pub fn delete(path: String, policy: &str) -> Self {
        let body =
            json!({ "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy });
        Self {
            method: Method::DELETE,
            path,
            body,
        }
    }

    /// Returns the status code, and the object or the error.
    pub fn send(&self, world: &mut World) -> (u16, Value) {
        world.request("alice", &self.method, &self.path, &self.body)
    }
}

impl From<Request> for Action {
    fn from(request: Request) -> Self {
        Self::Request(request)
    }
}
