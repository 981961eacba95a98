//! The operator of Foos under simulation: its users, its scripts, its judges and its regression cases. Also the mutants of the
//! repository, and the checker of audit logs for its tests.
#![allow(missing_docs, reason = "for the tests of the workspace")]
#![allow(
    clippy::must_use_candidate,
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "for the tests of the workspace"
)]
#![allow(
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program whose user reads what it prints, and which fails by panicking"
)]

pub mod databases;
pub mod found;
pub mod invariants;
pub mod judge;
pub mod mutants;
pub mod one_fault;
pub mod responses;
pub mod scripts;
pub mod seeds;
pub mod shops;
#[cfg(test)]
mod tests;
pub mod users;

use foo_controller::{APP, FooConfig};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use operator_runtime::{App, Builder};
use operator_simulation::{
    cases::Repository,
    judge::{Case, Violation},
    outside::Place,
    plan::{Action, Plan},
    program::Program,
    scripts::Script,
    trace::Time,
};
use operator_testkit::api_server::{CustomKind, Fencing, Kind, Others};

use databases::{Databases, Installations};
use invariants::FENCING;
use shops::Shops;
use users::{Deed, NAMESPACE, SYSTEM};

/// The kind that the replicas reconcile.
pub const FOO: Kind = Kind::Custom(&CustomKind {
    group: "samplecontroller.k8s.io",
    version: "v1alpha1",
    kind: "Foo",
    plural: "foos",
    namespaced: true,
    scale: true,
    selectable: false,
});

/// Cases besides the scripts and the seeds, and the mutants.
pub const REPOSITORY: Repository = Repository {
    others: &[
        ("databases", &Databases),
        ("shops", &Shops),
        ("installations", &Installations),
    ],
    found: found::all,
    more: &[one_fault::CASES, responses::CASES],
    mutants: mutants::run,
};

/// The operator of Foos.
#[derive(Debug)]
pub struct Foo;

impl Program for Foo {
    fn app(&self) -> &'static App {
        &APP
    }

    fn crds(&self) -> Vec<CustomResourceDefinition> {
        foo_controller::crds()
    }

    fn build(&self, builder: &mut Builder, place: &Place<'_>) {
        let config = FooConfig {
            image: place.settings.image.to_owned(),
            max_rollouts: place.settings.max_rollouts,
        };
        foo_controller::build(builder, config);
    }

    fn users(&self, plan: &mut Plan, heal: Time) {
        seeds::users(plan, heal);
    }

    fn judge(&self, case: &Case<'_>, found: &mut Vec<Violation>) {
        judge::judge(case, found);
    }

    fn scripts(&'static self) -> Vec<Script> {
        scripts::all()
    }

    fn change(&self) -> Option<Action> {
        let (foo, replicas) = (0, Some(1));
        Some(Action::user(Deed::ScaleFoo { foo, replicas }))
    }

    fn namespace(&self) -> &'static str {
        NAMESPACE
    }

    fn system(&self) -> &'static str {
        SYSTEM
    }

    fn types(&self) -> Option<&'static [(&'static str, &'static str)]> {
        Some(users::TYPES)
    }

    fn fencing(&self) -> Option<Fencing> {
        Some(FENCING)
    }

    fn faults(&self) -> Vec<&'static operator_simulation::seeds::Kind> {
        seeds::faults()
    }

    fn policies(&self) -> &'static [Others] {
        &Others::ALL
    }
}

/// Returns a plan without steps.
pub fn calm(seed: u64, replicas: usize, servers: usize, end: Time) -> Plan {
    Plan::calm(&Foo, seed, replicas, servers, end)
}
