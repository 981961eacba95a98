//! Error responses, with the messages of `k8s.io/apimachinery/pkg/api/errors`.

use serde_json::{Value, json};

use super::{Kind, kind::qualified, request::Unknown};

/// Reason why a call fails.
#[derive(Debug)]
pub enum Refusal {
    /// The response is a `Status`.
    Status(Box<Value>),
    /// The response is a text with this code: the path is not served.
    Text(u16, String),
    /// The correct response is not known.
    Unknown(Unknown),
}

impl From<Unknown> for Refusal {
    fn from(unknown: Unknown) -> Self {
        Self::Unknown(unknown)
    }
}

pub type Result<T> = std::result::Result<T, Refusal>;

/// Error of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    pub field: String,
    pub reason: &'static str,
    pub message: String,
}

impl Cause {
    /// Returns an invalid value; `value` is JSON, as in messages.
    pub fn invalid(field: &str, value: impl std::fmt::Display, why: &str) -> Self {
        Self {
            field: field.to_owned(),
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {value}: {why}"),
        }
    }

    pub fn required(field: &str, why: &str) -> Self {
        let colon = if why.is_empty() { "" } else { ": " };
        Self {
            field: field.to_owned(),
            reason: "FieldValueRequired",
            message: format!("Required value{colon}{why}"),
        }
    }

    pub fn forbidden(field: &str, why: &str) -> Self {
        Self {
            field: field.to_owned(),
            reason: "FieldValueForbidden",
            message: format!("Forbidden: {why}"),
        }
    }

    pub fn duplicate(field: &str, value: &str) -> Self {
        Self {
            field: field.to_owned(),
            reason: "FieldValueDuplicate",
            message: format!("Duplicate value: {value:?}"),
        }
    }

    /// Returns the error of a value that is not in `texts`; `value` is JSON.
    pub fn unsupported(field: &str, value: impl std::fmt::Display, texts: &[&str]) -> Self {
        let texts = texts.iter().map(|text| format!("{text:?}"));
        let texts = texts.collect::<Vec<_>>().join(", ");
        Self {
            field: field.to_owned(),
            reason: "FieldValueNotSupported",
            message: format!("Unsupported value: {value}: supported values: {texts}"),
        }
    }
}

impl Refusal {
    pub fn new(code: u16, reason: &str, message: &str, details: Option<Value>) -> Self {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        });
        if reason.is_empty()
            && let Some(status) = status.as_object_mut()
        {
            status.remove("reason");
        }
        if let Some(mut details) = details {
            // Go omits empty fields.
            if let Some(fields) = details.as_object_mut() {
                fields.retain(|_, value| *value != json!("") && !value.is_null());
            }
            status["details"] = details;
        }
        Self::Status(Box::new(status))
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", &message.into(), None)
    }

    pub fn not_found(kind: Kind, name: &str) -> Self {
        let info = kind.info();
        let message = format!("{} \"{name}\" not found", kind.resource());
        let details = json!({ "name": name, "group": info.group, "kind": info.plural });
        Self::new(404, "NotFound", &message, Some(details))
    }

    pub fn not_served() -> Self {
        Self::Text(404, "404 page not found\n".to_owned())
    }

    pub fn already_exists(kind: Kind, name: &str, deleting: bool) -> Self {
        let info = kind.info();
        let deleting = if deleting {
            "object is being deleted: "
        } else {
            ""
        };
        let message = format!("{deleting}{} \"{name}\" already exists", kind.resource());
        let details = json!({ "name": name, "group": info.group, "kind": info.plural });
        Self::new(409, "AlreadyExists", &message, Some(details))
    }

    pub fn conflict(kind: Kind, name: &str, why: &str) -> Self {
        Self::conflict_of(kind.info().plural, kind.info().group, name, why)
    }

    /// Returns a conflict with the kind in place of the resource.
    pub fn conflict_of(what: &str, group: &str, name: &str, why: &str) -> Self {
        let resource = qualified(what, group);
        let message = format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}");
        let details = json!({ "name": name, "group": group, "kind": what });
        Self::new(409, "Conflict", &message, Some(details))
    }

    pub fn outdated(kind: Kind, name: &str) -> Self {
        Self::conflict(
            kind,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub fn invalid(kind: Kind, name: &str, causes: &[Cause]) -> Self {
        Self::invalid_of(kind.info().kind, kind.stored_group(), name, causes)
    }

    pub fn invalid_of(what: &str, group: &str, name: &str, causes: &[Cause]) -> Self {
        let told = |cause: &Cause| format!("{}: {}", cause.field, cause.message);
        let mut words: Vec<String> = Vec::new();
        for cause in causes {
            let told = told(cause);
            if !words.contains(&told) {
                words.push(told);
            }
        }
        let words = match words.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let message = format!("{} \"{name}\" is invalid: {words}", qualified(what, group));
        let causes: Vec<_> = causes
            .iter()
            .map(|cause| {
                json!({ "reason": cause.reason, "message": cause.message, "field": cause.field })
            })
            .collect();
        let details = json!({ "name": name, "group": group, "kind": what, "causes": causes });
        Self::new(422, "Invalid", &message, Some(details))
    }

    pub fn forbidden(kind: Kind, name: &str, why: &str) -> Self {
        let info = kind.info();
        let resource = kind.resource();
        let message = match name {
            "" => format!("{resource} is forbidden: {why}"),
            name => format!("{resource} \"{name}\" is forbidden: {why}"),
        };
        let details = json!({ "name": name, "group": info.group, "kind": info.plural });
        Self::new(403, "Forbidden", &message, Some(details))
    }

    pub fn method_not_allowed() -> Self {
        let words = "the server does not allow this method on the requested resource";
        let details = Some(json!({}));
        Self::new(405, "MethodNotAllowed", words, details)
    }

    pub fn unsupported_media_type(accepted: &str) -> Self {
        let words = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self::new(415, "UnsupportedMediaType", &words, Some(json!({})))
    }

    /// Returns the error for a JSON patch that does not apply.
    pub fn unprocessable() -> Self {
        let words = "the server rejected our request due to an error in our request";
        Self::new(422, "Invalid", words, Some(json!({})))
    }

    pub fn internal(why: &str) -> Self {
        let details = json!({ "causes": [{ "message": why }] });
        let words = format!("Internal error occurred: {why}");
        Self::new(500, "InternalError", &words, Some(details))
    }

    /// Returns the error for a media type that no route accepts.
    pub fn no_media_type() -> Self {
        let words = "415: Unsupported Media Type";
        Self::new(415, "UnsupportedMediaType", words, Some(json!({})))
    }

    pub fn expired(message: &str) -> Self {
        Self::new(410, "Expired", message, None)
    }

    pub fn too_many_requests(message: &str, seconds: u64) -> Self {
        let details = json!({ "retryAfterSeconds": seconds });
        Self::new(429, "TooManyRequests", message, Some(details))
    }

    /// Returns the error for a version that the cache has not reached in time.
    pub fn too_large(version: u64, current: u64) -> Self {
        let cause = "Too large resource version";
        let message = format!("{cause}: {version}, current: {current}");
        let details = json!({
            "causes": [{ "reason": "ResourceVersionTooLarge", "message": cause }],
            "retryAfterSeconds": 1,
        });
        Self::new(
            504,
            "Timeout",
            &format!("Timeout: {message}"),
            Some(details),
        )
    }
}
