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

/// The desired state of a Foo: which Deployment it has, and how many pods that Deployment runs.
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
    doc = "A Foo has one Deployment in its own namespace, which the Foo controller creates and keeps as the Foo says.",
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
    /// The name of the Foo's Deployment: lower case letters, digits, '-' and '.', at most 63 characters.
    ///
    /// An empty name asks for no Deployment: the Foo is then not Ready, with the reason InvalidSpec.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new(
        r"self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')"
    ).message("must be empty or a DNS-1123 name: lower case letters, digits, '-' and '.', starting and ending with a letter or a digit"))]
    pub deployment_name: String,

    /// How many pods the Deployment runs, 1 to 10.
    ///
    /// Leave it out to leave the Deployment's replicas alone, for instance to a HorizontalPodAutoscaler. To scale the Foo itself,
    /// set it once.
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

/// What the controller last saw of a Foo's Deployment. Written by the controller alone.
// Absent fields are omitted: the API server rejects a null for the selector of the scale subresource.
// The default gives a Foo without a status an observedGeneration. It shows kstatus (Flux, Helm) that no controller has seen the
// Foo.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[schemars(extend("default" = {}))]
#[serde(rename_all = "camelCase")]
pub struct FooStatus {
    /// How many of the Deployment's pods have been Ready for at least its minReadySeconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,

    /// The Foo's metadata.generation that this status is about; -1 until a controller has seen the Foo.
    #[schemars(with = "i64", extend("default" = -1))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// How many pods the Deployment has, Ready or not; read by the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// The label selector of the Deployment's pods, as text; read by the scale subresource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,

    /// The name of the Deployment that serves this Foo, which the counts and the selector are of.
    ///
    /// After a change of spec.deploymentName this stays the old name until the new Deployment is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployment_name: Option<String>,

    /// Ready: the Deployment has all replicas that the Foo asks for, up to date and available.
    ///
    /// Progressing: the Deployment is on its way there.
    ///
    /// Stalled: present, and True, while a person has to act before the Foo can be Ready; its reason is Ready's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
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
