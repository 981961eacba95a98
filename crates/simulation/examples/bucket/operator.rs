//! An operator with a finalizer over a slow API: each `Bucket` becomes a bucket at a provider, and gets a `ConfigMap` with its
//! address.
//!
//! The provider carries out a request seconds after the operator has sent it, perhaps after the end of the sender's term. No fence
//! stops such a request. So each request names the UID and the generation of its object, and the provider refuses a request that is
//! older than the last one. It never creates a bucket for a UID whose bucket it has deleted on request.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::CustomResource;
use operator_runtime::{
    ApiError, App, Builder, Custom, Dependent, Fields, Finalizer, Kind, Outcome, Plan, Reconciler,
    References, Reported as _, Snapshot, Spec, Status, View, Writer,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub static APP: App = App {
    about: "Each Bucket becomes a bucket at a provider",
    ..App::new("bucket-operator", "0.1.0", "example.com")
};

/// A request to the provider. It has no response.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Name of the bucket.
    pub name: String,
    /// UID and generation of the object.
    pub uid: String,
    pub generation: i64,
    /// The region of the bucket. `None`: delete it.
    pub region: Option<String>,
}

/// State of a bucket at the provider.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    Absent,
    /// It exists in this region.
    In(String),
    /// It was deleted, and is never created again for this UID.
    Deleted,
}

/// The API of the provider.
pub trait Provider: Send + Sync {
    fn state(&self, name: &str, uid: &str) -> State;
    fn send(&self, request: Request);
}

/// Interval of the requests while the bucket is not as wanted.
const AGAIN: Duration = Duration::from_secs(5);

type Bucket = Custom<BucketSpec>;

#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(group = "example.com", version = "v1", kind = "Bucket")]
#[kube(namespaced, root = "Manifest", status = "Status")]
pub struct BucketSpec {
    #[schemars(length(min = 1, max = 20))]
    pub region: String,
}

impl Spec for BucketSpec {
    const KIND: Kind = Kind::custom("example.com", "v1", "Bucket", "buckets");
    type Status = Status;

    fn references(&self, to: &mut References<'_>) {
        to.sibling::<Dependent<Address>>(to.key().name());
    }
}

#[derive(Clone, Debug, Default, PartialEq, Hash, Serialize, Deserialize)]
pub struct Address {
    data: BTreeMap<String, String>,
}

impl Fields for Address {
    const KIND: Kind = Kind::of::<ConfigMap>();
}

/// Returns the address of a bucket.
pub fn address(name: &str, region: &str) -> String {
    format!("https://{region}.buckets.example/{name}")
}

pub fn build(program: &mut Builder, provider: Arc<dyn Provider>) {
    program.controller("bucket", |builder| BucketReconciler {
        finalizer: builder.finalizer("example.com/bucket"),
        addresses: builder.owns(),
        provider,
    });
}

struct BucketReconciler {
    finalizer: Finalizer<Bucket>,
    addresses: Writer<Dependent<Address>>,
    provider: Arc<dyn Provider>,
}

impl BucketReconciler {
    fn state(&self, cx: &View<'_, Bucket>, bucket: &Snapshot<Bucket>) -> State {
        self.provider.state(cx.key().name(), &bucket.view.uid)
    }
}

impl Reconciler for BucketReconciler {
    type Primary = Bucket;
    type Error = ApiError;

    fn plan(
        &self,
        cx: &View<'_, Bucket>,
        bucket: &Snapshot<Bucket>,
    ) -> Result<Plan<Bucket>, ApiError> {
        let (mut plan, view) = (Plan::new(), &bucket.view);
        let state = self.state(cx, bucket);
        let region = if view.deleting {
            None
        } else {
            Some(view.spec()?.region.clone())
        };
        let is_as_wanted = match &region {
            // A request that is still in flight could create it.
            None => state == State::Deleted,
            Some(region) => state == State::In(region.clone()),
        };
        plan.finalizer(&self.finalizer, !view.deleting || !is_as_wanted);
        if let Some(region) = &region {
            let address = address(cx.key().name(), region);
            let data = BTreeMap::from([("address".to_owned(), address)]);
            plan.apply(&self.addresses, cx.key(), &Address { data })
                .exactly("data");
        }
        if !is_as_wanted {
            let request = Request {
                name: cx.key().name().to_owned(),
                uid: view.uid.to_string(),
                generation: view.generation,
                region,
            };
            let provider = Arc::clone(&self.provider);
            plan.outside(&self.finalizer, move || {
                provider.send(request.clone());
                Ok::<_, Infallible>(())
            });
            plan.again_after(AGAIN); // No watch reports the state of the provider.
        }
        Ok(plan)
    }

    fn status(
        &self,
        cx: &View<'_, Bucket>,
        bucket: &Snapshot<Bucket>,
        outcome: &Outcome<'_, ApiError>,
    ) -> Option<Status> {
        let view = &bucket.view;
        let wanted = view.spec().map(|spec| spec.region.clone());
        let ready = match self.state(cx, bucket) {
            State::In(region) if wanted.is_ok_and(|wanted| wanted == region) => {
                (true, "Created", String::new())
            }
            _ => (false, "Creating", String::new()),
        };
        let ready = outcome.verdict(ready);
        Some(view.status.with(view.generation, "Ready", ready, cx.now()))
    }
}
