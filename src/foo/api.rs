//! The `Foo` API: the spec, the status, and the CRD.
//!
//! The CRD validates with CEL rules instead of a webhook, which would need certificates and could be unavailable.
#![allow(
    clippy::doc_markdown,
    reason = "these docs are what `kubectl explain` shows"
)]

use std::ops::RangeInclusive;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{CustomResource, CustomResourceExt, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use operator_runtime::dns::is_subdomain;

/// The API group of `Foo`.
pub const GROUP: &str = "samplecontroller.k8s.io";
/// The version of the API group.
pub const VERSION: &str = "v1alpha1";
/// The kind of the resource.
pub const KIND: &str = "Foo";
/// The resource name in URLs and in RBAC.
pub const PLURAL: &str = "foos";

/// Maximum length of the names of a Foo and its Deployment, because both become label values. The CRD has the same limit.
const LONGEST_NAME: usize = 63;
/// Allowed replicas of a Foo. The CRD has the same limits.
const REPLICAS: RangeInclusive<i32> = 1..=10;

/// The desired state of a Foo: the name and the replicas of its Deployment.
#[derive(
    CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, Hash,
)]
#[kube(
    group = "samplecontroller.k8s.io",
    version = "v1alpha1",
    kind = "Foo",
    plural = "foos",
    shortname = "fo",
    category = "all",
    namespaced,
    status = "FooStatus",
    derive = "PartialEq",
    doc = "A Foo has one Deployment in its namespace. The Foo controller creates it and reconciles it with the spec.",
    annotation("api-approved.kubernetes.io", "unapproved, experimental-only"),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("metadata.name: must be at most 63 characters, because it becomes a label value"),
    printcolumn(name = "Deployment", json_path = ".spec.deploymentName", type_ = "string"),
    printcolumn(name = "Desired", json_path = ".spec.replicas", type_ = "integer"),
    printcolumn(name = "Available", json_path = ".status.availableReplicas", type_ = "integer"),
    printcolumn(name = "Ready", json_path = ".status.conditions[?(@.type==\"Ready\")].status", type_ = "string"),
    printcolumn(
        name = "Reason",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason",
        type_ = "string",
        priority = 1
    ),
    printcolumn(name = "Age", json_path = ".metadata.creationTimestamp", type_ = "date")
)]
#[serde(rename_all = "camelCase")]
pub struct FooSpec {
    /// Name of the Deployment: lower case letters, digits, '-' and '.', at most 63 characters.
    ///
    /// An empty name specifies no Deployment: the Foo is not Ready, with the reason InvalidSpec.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new(
        r"self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')"
    ).message("must be empty or a DNS-1123 name: lower case letters, digits, '-' and '.', starting and ending with a letter or a digit"))]
    pub deployment_name: String,

    /// Number of pods of the Deployment, 1 to 10.
    ///
    /// If absent, the controller does not change the Deployment's replicas, so that for example a HorizontalPodAutoscaler can.
    /// Set it once before you scale the Foo itself.
    // Not nullable, so that the API server treats a null as absent. The scale subresource accepts no null.
    #[schemars(with = "i32", range(min = 1, max = 10))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
}

impl FooSpec {
    /// Validates the spec of the Foo `name` by the rules of the CRD.
    ///
    /// The Foo may be older than the rules. Also rejects an empty `deploymentName`, which the CRD allows.
    ///
    /// # Errors
    /// A message that names the field and the rule.
    pub fn check(&self, name: &str) -> Result<(), String> {
        if name.len() > LONGEST_NAME {
            return Err(format!(
                "metadata.name: must be at most {LONGEST_NAME} characters"
            ));
        }
        if self.deployment_name.is_empty() {
            return Err("spec.deploymentName: must not be empty".to_owned());
        }
        if !is_subdomain(&self.deployment_name, LONGEST_NAME) {
            return Err(format!(
                "spec.deploymentName: must be a DNS-1123 name of at most {LONGEST_NAME} characters"
            ));
        }
        match self.replicas {
            Some(replicas) if !REPLICAS.contains(&replicas) => Err(format!(
                "spec.replicas: must be {} to {}, not {replicas}",
                REPLICAS.start(),
                REPLICAS.end()
            )),
            _ => Ok(()),
        }
    }
}

/// The observed state of a Foo's Deployment. Only the controller writes it.
// Absent fields are omitted: the API server rejects a null for the selector of the scale subresource.
// The default gives a Foo without a status an observedGeneration. It shows kstatus (Flux, Helm) that no controller has seen the
// Foo.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[schemars(extend("default" = {}))]
#[serde(rename_all = "camelCase")]
pub struct FooStatus {
    /// Number of pods that have been Ready for at least the Deployment's minReadySeconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,

    /// The metadata.generation of the Foo that this status describes; -1 until a controller has seen the Foo.
    #[schemars(with = "i64", extend("default" = -1))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Number of pods of the Deployment, Ready or not. Used by the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// Label selector of the Deployment's pods, as text. Used by the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,

    /// Name of the Deployment that serves this Foo. The counts and the selector describe it.
    ///
    /// After a change of spec.deploymentName, it is the old name until the new Deployment is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment_name: Option<String>,

    /// Ready: all desired replicas of the Deployment are up to date and available.
    ///
    /// Progressing: the Deployment is being created, scaled, rolled out or deleted, or its rollout is queued.
    ///
    /// Stalled: present only while the Foo fails, with the reason of Ready. True: a user must act before the Foo can be Ready.
    /// False: the failure may end without a user, and has lasted for less than a minute.
    ///
    /// Paused: present, and True, only while the annotation samplecontroller.k8s.io/paused is true. The other fields are as of
    /// the beginning of the pause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The value of the annotation samplecontroller.k8s.io/reconcile-requested-at at the last reconcile. A new value of the
    /// annotation requests a reconcile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,
}

/// Returns the `apiVersion` of a manifest.
#[must_use]
pub fn api_version() -> String {
    format!("{GROUP}/{VERSION}")
}

/// Returns the CustomResourceDefinition that `foo-controller crd` prints.
#[must_use]
pub fn crd() -> CustomResourceDefinition {
    Foo::crd()
}
