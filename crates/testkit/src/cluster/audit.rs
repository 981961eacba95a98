//! Events of the API server's audit log.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// One completed request (stage `ResponseComplete`), or one opened watch (stage `ResponseStarted`).
#[derive(Clone, Debug)]
pub struct AuditEvent {
    /// `create`, `update`, `patch`, `delete`, `get`, `list`, `watch`, …
    pub verb: String,
    /// Authenticated user.
    pub user: String,
    /// User agent; may be empty.
    pub user_agent: String,
    /// Plural name, such as `deployments`. Empty for a non-resource path.
    pub resource: String,
    /// For example `status`. Empty for the object itself.
    pub subresource: String,
    /// Empty for cluster-scoped resources and for lists across namespaces.
    pub namespace: String,
    /// Empty for lists and for creates.
    pub name: String,
    /// Path and query of the request.
    pub uri: String,
    /// HTTP status of the response.
    pub code: u16,
    /// Request body of a write. Null for a read, and for the resources that `audit-policy.yaml` excludes.
    pub request_object: Value,
    /// Response to such a write: the object with its resourceVersion, or a Status with the error.
    pub response_object: Value,
    /// `ResponseComplete`, `ResponseStarted` or `Panic`.
    pub stage: String,
    pub received: MicroTime,
    /// Time of the stage.
    pub reached: MicroTime,
}

impl AuditEvent {
    /// Returns whether the API server reported success.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

/// Parses a log. Ignores a last line that is incomplete.
pub fn parse(log: &str) -> Vec<AuditEvent> {
    let complete = log.rfind('\n').map_or("", |end| &log[..end]);
    complete
        .lines()
        .map(|line| {
            serde_json::from_str::<Raw>(line)
                .expect("an audit event")
                .into()
        })
        .collect()
}

/// Times of the responses to the first writes of a new leader.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Takeover {
    /// The write that acquired the Lease.
    pub lease: Timestamp,
    /// The first creation of an object that the leader reconciles.
    pub work: Timestamp,
}

impl Takeover {
    /// Finds the first stored writes of `user` that arrived after `since`. `resource` is the plural name of the created objects.
    /// Returns `None` if either is missing.
    pub fn find(log: &[AuditEvent], user: &str, since: Timestamp, resource: &str) -> Option<Self> {
        let first = |verb: &str, resource: &str| {
            let its = log.iter().filter(|event| {
                event.user == user
                    && event.received.0 > since
                    && (&*event.verb, &*event.resource) == (verb, resource)
                    && event.is_success()
            });
            its.map(|event| event.reached.0).min()
        };
        Some(Self {
            lease: first("patch", "leases")?,
            work: first("create", resource)?,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    stage: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    response_status: Option<Status>,
    request_object: Option<Box<RawValue>>,
    response_object: Option<Box<RawValue>>,
    request_received_timestamp: MicroTime,
    stage_timestamp: MicroTime,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

/// Parses a body. Returns null if its nesting is too deep, which never applies to bodies of the controller.
fn body(text: Option<Box<RawValue>>) -> Value {
    let body = text.and_then(|text| serde_json::from_str(text.get()).ok());
    body.unwrap_or_default()
}

impl From<Raw> for AuditEvent {
    fn from(raw: Raw) -> Self {
        Self {
            verb: raw.verb,
            user: raw.user.username,
            user_agent: raw.user_agent,
            resource: raw.object_ref.resource,
            subresource: raw.object_ref.subresource,
            namespace: raw.object_ref.namespace,
            name: raw.object_ref.name,
            uri: raw.request_uri,
            code: raw.response_status.map_or(0, |status| status.code),
            request_object: body(raw.request_object),
            response_object: body(raw.response_object),
            stage: raw.stage,
            received: raw.request_received_timestamp,
            reached: raw.stage_timestamp,
        }
    }
}
