//! An API server for unit tests that knows one Lease, perhaps its fencing record, and nothing else: merge patches, conditional on
//! a resourceVersion where there is one, conflicts, no-op writes, and bad days.

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::sync::Arc;
use tower::{BoxError, service_fn, util::BoxService};

pub type Service = BoxService<Request<Body>, Response<Body>, BoxError>;

#[derive(Clone, Copy, PartialEq)]
pub enum Mood {
    Serves,
    Fails(u16),
    Hangs,
}

pub struct Seen {
    pub method: Method,
    pub uri: String,
    pub body: Value,
}

#[derive(Clone)]
pub struct FakeApi(Arc<Mutex<State>>);

struct State {
    mood: Mood,
    lease: Option<Value>,
    record: Option<Value>,
    /// The answer to every request for the record, unless it is 0.
    refuse_records: u16,
    version: u64,
    seen: Vec<Seen>,
}

impl FakeApi {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            mood: Mood::Serves,
            lease: None,
            record: None,
            refuse_records: 0,
            version: 1,
            seen: Vec::new(),
        })))
    }

    pub fn mood(&self, mood: Mood) {
        self.0.lock().mood = mood;
    }

    /// Writes the Lease's spec as somebody else would.
    pub fn put(&self, spec: &Value) {
        let mut state = self.0.lock();
        let uid = state
            .lease
            .as_ref()
            .map_or_else(|| json!("u1"), |lease| lease["metadata"]["uid"].clone());
        let lease = json!({"metadata": {"name": "l", "uid": uid}, "spec": spec});
        state.store(lease);
    }

    pub fn delete(&self) {
        self.0.lock().lease = None;
    }

    /// Installs the fencing record as somebody else would have written it, or takes it away.
    pub fn put_record(&self, annotations: Option<Value>) {
        let mut state = self.0.lock();
        state.version += 1;
        let version = state.version.to_string();
        state.record = annotations.map(|annotations| {
            json!({"metadata": {"name": "l-fencing", "resourceVersion": version, "annotations": annotations}})
        });
    }

    /// Answers every request for the fencing record with this failure; 0: serves it.
    pub fn refuse_records(&self, code: u16) {
        self.0.lock().refuse_records = code;
    }

    /// Whom the fencing record names.
    pub fn recorded(&self) -> String {
        let state = self.0.lock();
        let metadata = state.record.as_ref().map(|record| &record["metadata"]);
        let holder =
            metadata.and_then(|m| m["annotations"][super::fencing_record::HOLDER].as_str());
        holder.unwrap_or_default().to_owned()
    }

    pub fn spec(&self) -> Value {
        self.0
            .lock()
            .lease
            .as_ref()
            .map_or(Value::Null, |lease| lease["spec"].clone())
    }

    pub fn holder(&self) -> String {
        self.spec()["holderIdentity"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// The requests since the last call of this.
    pub fn requests(&self) -> Vec<Seen> {
        std::mem::take(&mut self.0.lock().seen)
    }

    /// The server as a service, to put layers on.
    pub fn service(&self) -> Service {
        let api = self.clone();
        BoxService::new(service_fn(move |request| {
            let api = api.clone();
            async move { api.serve(request).await }
        }))
    }

    async fn serve(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let mood = self.0.lock().mood;
        let (status, reply) = match mood {
            Mood::Serves => self.0.lock().answer(&parts.method, parts.uri.path(), &body),
            Mood::Fails(code) => failure(code),
            Mood::Hangs => std::future::pending().await,
        };
        self.0.lock().seen.push(Seen {
            method: parts.method,
            uri: parts.uri.to_string(),
            body,
        });
        Ok(Response::builder()
            .status(status)
            .body(Body::from(serde_json::to_vec(&reply)?))?)
    }
}

impl State {
    fn store(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.lease = Some(lease.clone());
        lease
    }

    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (StatusCode, Value) {
        if path.ends_with("/serviceaccounts/l-fencing") {
            return self.answer_record(method, body);
        }
        let named = path.ends_with("/leases/l");
        match (method, self.lease.clone()) {
            (&Method::GET, Some(lease)) if named => (StatusCode::OK, lease),
            (&Method::GET, None) if named => failure(404),
            (&Method::POST, None) if path.ends_with("/leases") => {
                let mut lease = body.clone();
                lease["metadata"]["uid"] = format!("u{}", self.version).into();
                (StatusCode::CREATED, self.store(lease))
            }
            (&Method::POST, Some(_)) if path.ends_with("/leases") => failure(409),
            (&Method::PATCH, Some(old)) if named => {
                let condition = &body["metadata"]["resourceVersion"];
                if !condition.is_null() && *condition != old["metadata"]["resourceVersion"] {
                    return failure(409);
                }
                let mut new = old.clone();
                merge(&mut new, body);
                if new["spec"] == old["spec"] {
                    (StatusCode::OK, old)
                } else {
                    (StatusCode::OK, self.store(new))
                }
            }
            // Neither lists nor watches: a standby polls here.
            _ => failure(405),
        }
    }

    fn answer_record(&mut self, method: &Method, body: &Value) -> (StatusCode, Value) {
        if self.refuse_records != 0 {
            return failure(self.refuse_records);
        }
        let Some(record) = &mut self.record else {
            return failure(404);
        };
        if method == Method::PATCH {
            if body["metadata"]["resourceVersion"] != record["metadata"]["resourceVersion"] {
                return failure(409);
            }
            merge(record, body);
            self.version += 1;
            record["metadata"]["resourceVersion"] = self.version.to_string().into();
        }
        (StatusCode::OK, record.clone())
    }
}

fn failure(code: u16) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "message": "a bad day", "reason": "Test"});
    (StatusCode::from_u16(code).unwrap_or_default(), status)
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            if let Some(target) = target.as_object_mut() {
                target.remove(key);
            }
        } else {
            merge(&mut target[key], value);
        }
    }
}
