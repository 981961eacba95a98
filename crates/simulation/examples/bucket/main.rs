//! Simulates the operator of Buckets: `cargo run --profile bench --package operator-simulation --example bucket -- --seeds 1000`.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    sync::Arc,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::CustomResourceExt as _;
use operator_runtime::Key;
use operator_simulation::{Operator, Outside, Subject, Verdict, View, check};

mod operator;

use operator::{APP, Manifest, Provider, Request, State, address, build};

/// The provider: for each name, the request that made the bucket, and the UIDs whose buckets were deleted.
#[derive(Clone, Debug, Default)]
struct Cloud {
    buckets: BTreeMap<String, Request>,
    deleted: BTreeSet<String>,
}

impl Cloud {
    /// The rules of the provider.
    fn carry_out(&mut self, request: Request) {
        let newest = self.buckets.get(&request.name);
        let is_late =
            newest.is_some_and(|it| it.uid == request.uid && it.generation > request.generation);
        let is_taken = newest.is_some_and(|it| it.uid != request.uid);
        if self.deleted.contains(&request.uid) || is_late {
            return;
        }
        if request.region.is_none() {
            self.deleted.insert(request.uid);
            if !is_taken {
                self.buckets.remove(&request.name);
            }
        } else if !is_taken {
            self.buckets.insert(request.name.clone(), request);
        }
    }
}

impl Provider for Outside<Cloud> {
    fn state(&self, name: &str, uid: &str) -> State {
        self.look(|cloud| match cloud.buckets.get(name) {
            _ if cloud.deleted.contains(uid) => State::Deleted,
            Some(it) if it.uid == uid => State::In(it.region.clone().unwrap_or_default()),
            _ => State::Absent,
        })
    }

    fn send(&self, request: Request) {
        self.begin(|cloud: &mut Cloud| cloud.carry_out(request));
    }
}

struct Buckets;

impl Subject for Buckets {
    type Object = Manifest;

    fn settled(&self, bucket: &Manifest, view: &View<'_>) -> Verdict {
        let (name, region) = (view.key().name(), &bucket.spec.region);
        let cloud = view.outside::<Cloud>();
        let is = cloud.buckets.get(name).and_then(|it| it.region.as_ref());
        check(
            is == Some(region),
            &format!("the provider has it in {is:?}"),
        )?;
        let data = view.owned::<ConfigMap>()?.data.unwrap_or_default();
        let wanted = address(name, region);
        check(
            data.get("address") == Some(&wanted),
            "the address is outdated",
        )?;
        view.is_condition("Ready", "True", "Created")
    }

    fn gone(&self, key: &Key, view: &View<'_>) -> Verdict {
        let remains = view.outside::<Cloud>().buckets.contains_key(key.name());
        check(!remains, "its bucket still exists")
    }

    fn always(&self, before: &View<'_>, now: &View<'_>) -> Verdict {
        let (before, cloud) = (before.outside::<Cloud>(), now.outside::<Cloud>());
        let mut deleted = before.buckets.iter();
        deleted.try_for_each(|(name, it)| {
            let is_wanted = |bucket: &Manifest| {
                let metadata = &bucket.metadata;
                metadata.uid.as_ref() == Some(&it.uid) && metadata.deletion_timestamp.is_none()
            };
            let is_lost = !cloud.buckets.contains_key(name) && now.all().any(|it| is_wanted(&it));
            check(
                !is_lost,
                &format!("the bucket {name} of an existing object is deleted"),
            )
        })
    }
}

/// The operator under simulation.
#[must_use]
pub fn operator() -> Operator {
    Operator::new(&APP, |program, place| {
        build(program, Arc::new(place.outside::<Cloud>()));
    })
    .subject(Manifest::crd(), Buckets)
}

#[allow(dead_code, reason = "`simulate` runs it with the other operators")]
fn main() -> ExitCode {
    operator_simulation::main(operator())
}
