//! The controller for Foos and their Deployments.

pub mod api;
pub mod cached;
pub mod error;
#[cfg(test)]
mod fixtures;
pub mod plan;
pub mod previous;
pub mod reconcile;
pub mod rollouts;
pub mod status;

use std::{num::NonZeroUsize, sync::Arc};

use opentelemetry::KeyValue;
use operator_runtime::{
    Builder, ControllerBuilder, Store,
    telemetry::metrics::{Kind, Metric, Metrics, number},
};
use serde::Deserialize;

use self::{
    cached::{Deployment, Foo},
    reconcile::FooReconciler,
    rollouts::Rollouts,
    status::ROLLOUT_QUEUED,
};

/// Number of Foos by readiness.
pub const FOOS: Metric = Metric {
    template: "{app}_foos",
    kind: Kind::Gauge,
    unit: "",
    labels: &["ready"],
    help: "Foos by the status of their condition Ready: true, false or unknown.",
};

/// Number of rollouts by state.
pub const ROLLOUTS: Metric = Metric {
    template: "{app}_rollouts",
    kind: Kind::Gauge,
    unit: "",
    labels: &["state"],
    help: "Rollouts of Foos' Deployments by state: under_way, or queued because max_rollouts are under way.",
};

/// The settings of the Foo controller.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct FooConfig {
    /// The image of every Deployment's container, not empty.
    pub image: String,
    /// The maximum number of concurrent rollouts; 0: no limit.
    pub max_rollouts: usize,
}

/// Declares the controller for Foos.
pub fn build(program: &mut Builder, config: FooConfig) {
    program.controller("foo", |builder| controller(builder, config));
}

/// Declares the watched resource types: Foos, and the Deployments that they own.
fn controller(builder: &mut ControllerBuilder<'_, Foo>, config: FooConfig) -> FooReconciler {
    let FooConfig {
        image,
        max_rollouts,
    } = config;
    let (foos, deployments) = (builder.primary(), builder.owns());
    builder.deletes::<Deployment>();
    let store = Arc::clone(deployments.store());
    let rollouts = Arc::new(Rollouts::new(
        Arc::clone(foos.store()),
        store,
        image.clone(),
        NonZeroUsize::new(max_rollouts),
    ));
    observe(builder.metrics(), Arc::clone(foos.store()));
    observe_rollouts(
        builder.metrics(),
        Arc::clone(foos.store()),
        Arc::clone(&rollouts),
    );
    FooReconciler {
        foos,
        deployments,
        image,
        rollouts,
    }
}

fn observe_rollouts(metrics: &Metrics, foos: Arc<Store<Foo>>, rollouts: Arc<Rollouts>) {
    metrics.observe(&ROLLOUTS, move |see| {
        let mut queued = 0;
        foos.for_each_served(|foo| {
            let mut conditions = foo.shared_status().conditions.iter();
            queued += u64::from(conditions.any(|c| c.reason == ROLLOUT_QUEUED));
        });
        let under_way = rollouts.under_way() as u64;
        for (state, count) in [("under_way", under_way), ("queued", queued)] {
            see(number(count), &[KeyValue::new("state", state)]);
        }
    });
}

/// Counts Foos at each collection of the metrics rather than at each change.
fn observe(metrics: &Metrics, foos: Arc<Store<Foo>>) {
    metrics.observe(&FOOS, move |see| {
        let (mut ready, mut not, mut unknown) = (0, 0, 0);
        foos.for_each_served(|foo| {
            let conditions = &foo.shared_status().conditions;
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
