//! The Foo controller: each Foo gets a Deployment.

pub mod api;
pub mod cached;
pub mod error;
#[cfg(test)]
mod fixtures;
pub mod plan;
pub mod reconcile;
pub mod status;

use std::sync::Arc;

use opentelemetry::KeyValue;
use operator_runtime::{
    Builder, Store,
    telemetry::{
        Metrics,
        metrics::{
            number,
            table::{Kind, Metric},
        },
    },
};
use serde::Deserialize;

use self::{cached::Foo, reconcile::FooReconciler};

/// Foos by whether they are ready.
pub const FOOS: Metric = Metric {
    template: "{app}_foos",
    kind: Kind::Gauge,
    unit: "",
    labels: &["ready"],
    help: "Foos by the status of their condition Ready: true, false or unknown.",
};

/// What Foo adds to the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct FooConfig {
    /// The image of every Deployment's container, not empty.
    pub image: String,
}

/// What is watched: Foos, and the Deployments that they own.
pub fn build(builder: &mut Builder<Foo>, config: FooConfig) -> FooReconciler {
    let foos = builder.primary();
    observe(builder.metrics(), Arc::clone(foos.store()));
    FooReconciler {
        foos,
        deployments: builder.owns(),
        image: config.image,
    }
}

/// Counted when somebody asks, rather than at each change.
fn observe(metrics: &Metrics, foos: Arc<Store<Foo>>) {
    metrics.observe(&FOOS, move |see| {
        let (mut ready, mut not, mut unknown) = (0, 0, 0);
        foos.for_each(|foo| {
            let conditions = &foo.status.conditions;
            let condition = conditions.iter().find(|c| c.type_ == "Ready");
            match condition.map(|condition| condition.status.as_str()) {
                Some("True") => ready += 1,
                Some("False") => not += 1,
                _ => unknown += 1,
            }
        });
        for (status, count) in [("true", ready), ("false", not), ("unknown", unknown)] {
            see(number(count), &[KeyValue::new("ready", status)]);
        }
    });
}
