//! The Foo controller: reconciles a Deployment for each `Foo`, and reports its state in the status of the `Foo`.
//!
//! The crate `operator-runtime` contains all code that does not depend on `Foo`.

pub mod foo;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use operator_runtime::{
    App, Builder,
    config::{Key, PodSecurity, Rule, WORK},
    telemetry::metrics::{Metric, SECTIONS},
};

pub use foo::{FooConfig, api};

/// The description of this program for the runtime.
pub static APP: App = App {
    about: env!("CARGO_PKG_DESCRIPTION"),
    reporter: "sample-controller",
    defaults: "image = 'nginx:latest'\nmax_rollouts = 10",
    keys: &[
        Key {
            name: "image",
            flag: "image",
            heading: WORK,
            placeholder: "IMAGE",
            rule: Rule::Text(
                is_image,
                "an image name without blanks, at most 1024 characters",
            ),
            help: "Container image of every Deployment",
        },
        Key {
            name: "max_rollouts",
            flag: "max-rollouts",
            heading: WORK,
            placeholder: "N",
            rule: Rule::Whole(0, 100_000),
            help: "Maximum number of concurrent rollouts of new pod templates; 0 means no limit",
        },
    ],
    crates: &["foo_controller"],
    // The user chooses the image. The default, nginx, runs as root.
    pod_security: PodSecurity::Baseline,
    ..App::new(
        env!("CARGO_PKG_NAME"),
        env!("CARGO_PKG_VERSION"),
        api::GROUP,
    )
};

/// Returns the CRDs of the reconciled kinds.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![api::crd()]
}

/// Declares the controllers.
pub fn build(program: &mut Builder, config: FooConfig) {
    foo::build(program, config);
}

/// Returns all metrics, grouped by section.
pub fn metrics() -> impl Iterator<Item = (&'static str, &'static [Metric])> {
    let foos: (&str, &[Metric]) = ("Foos", &[foo::FOOS, foo::ROLLOUTS]);
    SECTIONS.iter().copied().chain([foos])
}

fn is_image(text: &str) -> bool {
    (1..=1024).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}
