//! The operator of Foos.

use foo_controller::{APP, FooConfig};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use operator_runtime::{App, Builder};
use operator_testkit::api_server::Others;

use super::{
    judge::{self, Case, Violation},
    outside::Place,
    plan::{Action, Plan},
    program::Program,
    scripts::{self, Script},
    trace::Time,
    users::Deed,
};

/// Its users are in [`seeds`](super::seeds), because regressions and scripts use them as well.
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
        plan.users_of_foos(heal);
    }

    fn judge(&self, case: &Case<'_>, found: &mut Vec<Violation>) {
        judge::judge_foos(case, found);
    }

    fn scripts(&'static self) -> Vec<Script> {
        scripts::of_foos()
    }

    fn change(&self) -> Option<Action> {
        let (foo, replicas) = (0, Some(1));
        Some(Action::User(Deed::ScaleFoo { foo, replicas }))
    }

    fn has_fencing(&self) -> bool {
        true
    }

    fn meets(&self, _: &str) -> bool {
        true
    }

    fn policies(&self) -> &'static [Others] {
        &Others::ALL
    }
}
