//! Foo; `deploy/crd.yaml` describes its fields.

use k8s_openapi::{
    api::apps::v1::Deployment,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::{CustomResource, ResourceExt};
use serde::{Deserialize, Serialize};

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize)]
#[kube(
    group = "samplecontroller.k8s.io",
    version = "v1alpha1",
    kind = "Foo",
    namespaced,
    status = "FooStatus",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase")]
pub struct FooSpec {
    pub deployment_name: String,
    pub replicas: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FooStatus {
    pub available_replicas: i32,
    pub observed_generation: i64,
    pub replicas: i32,
    pub selector: String,
    pub deployment_name: String,
    pub conditions: Vec<Condition>,
}

/// Returns the status that reports this Deployment.
pub fn status(foo: &Foo, deployment: &Deployment) -> FooStatus {
    let spec = deployment.spec.clone().unwrap_or_default();
    let status = deployment.status.clone().unwrap_or_default();
    let replicas = spec.replicas.unwrap_or(1);
    let available_replicas = status.available_replicas.unwrap_or(0);
    let updated = status.updated_replicas.unwrap_or(0);
    let is_complete = status.observed_generation >= deployment.metadata.generation
        && updated >= replicas
        && status.replicas.unwrap_or(0) <= updated
        && available_replicas >= replicas;
    let name = deployment.name_any();
    let message =
        format!("Deployment \"{name}\" has {available_replicas} of {replicas} replicas available");
    let before = foo.status.iter().flat_map(|status| &status.conditions);
    let condition = |type_: &str, is: bool, reason: &str| {
        let status = if is { "True" } else { "False" };
        let same = before
            .clone()
            .find(|it| it.type_ == type_ && it.status == status);
        Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.clone(),
            observed_generation: foo.metadata.generation,
            last_transition_time: same.map_or_else(
                || Time(Timestamp::now()),
                |it| it.last_transition_time.clone(),
            ),
        }
    };
    let (ready, progressing) = match is_complete {
        true => ("DeploymentAvailable", "DeploymentComplete"),
        false => ("DeploymentProgressing", "DeploymentProgressing"),
    };
    let labels = spec.selector.match_labels.unwrap_or_default();
    let selector: Vec<_> = labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let mut conditions = vec![
        condition("Ready", is_complete, ready),
        condition("Progressing", !is_complete, progressing),
    ];
    let others = before.filter(|it| it.type_ != "Ready" && it.type_ != "Progressing");
    conditions.extend(others.cloned());
    FooStatus {
        available_replicas,
        observed_generation: foo.metadata.generation.unwrap_or(0),
        replicas: status.replicas.unwrap_or(0),
        selector: selector.join(","),
        deployment_name: name,
        conditions,
    }
}
