//! The API server's audit log, as a checker reads it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// One answered request (stage `ResponseComplete`), or one opened watch (stage `ResponseStarted`).
#[derive(Clone, Debug)]
pub struct AuditEvent {
    /// `create`, `update`, `patch`, `delete`, `get`, `list`, `watch`, …
    pub verb: String,
    /// The user that the request came with.
    pub user: String,
    /// What the client calls itself; empty when it does not.
    pub user_agent: String,
    /// The plural, such as `deployments`; empty for a path that is no resource.
    pub resource: String,
    /// Such as `status`; empty for the object itself.
    pub subresource: String,
    /// Empty for what has none, and for lists across all of them.
    pub namespace: String,
    /// Empty for lists and for creates.
    pub name: String,
    /// The path and query of the request.
    pub uri: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// The body of a write to what `audit-policy.yaml` names: a Lease, a Deployment, a Foo or its status, …; null for
    /// everything else.
    pub request_object: Value,
    /// The answer to such a write: the object with its resourceVersion, or a Status that says what was wrong.
    pub response_object: Value,
    /// `ResponseComplete`, `ResponseStarted` or `Panic`.
    pub stage: String,
    /// When the request arrived.
    pub received: MicroTime,
    /// When it reached its stage.
    pub reached: MicroTime,
}

/// The events of a log; a last line that is still being written is left out.
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

/// Null, too, for a body that is too deep to be read: nothing that the controller writes is.
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
