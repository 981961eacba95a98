//! Who exports: the resource of all signals, by the semantic conventions.

use opentelemetry::{Key, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_semantic_conventions::attribute;
use uuid::Uuid;

/// What the Deployment tells its pod of itself.
const POD: [(&str, &str); 4] = [
    (attribute::K8S_POD_NAME, "POD_NAME"),
    (attribute::K8S_POD_UID, "POD_UID"),
    (attribute::K8S_NAMESPACE_NAME, "POD_NAMESPACE"),
    (attribute::K8S_NODE_NAME, "NODE_NAME"),
];

/// This process. What `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` say goes over what is known here: in
/// the SDK it would be the other way round.
pub(super) fn resource(variable: impl Fn(&str) -> Option<String>) -> Resource {
    let told = Resource::builder().build();
    let is_told = |name: &'static str| match told.get(&Key::from_static_str(name)) {
        // What the SDK makes up.
        Some(value) => !value.as_str().starts_with("unknown_service"),
        None => false,
    };
    let variable = |name| variable(name).filter(|value: &String| !value.is_empty());
    let instance = variable("POD_UID").unwrap_or_else(|| Uuid::new_v4().to_string());
    let known = [
        (
            attribute::SERVICE_NAME,
            Some(env!("CARGO_PKG_NAME").to_owned()),
        ),
        (
            attribute::SERVICE_VERSION,
            Some(env!("CARGO_PKG_VERSION").to_owned()),
        ),
        (attribute::SERVICE_INSTANCE_ID, Some(instance)),
    ];
    let pod = POD.map(|(name, from)| (name, variable(from)));
    let attributes = known
        .into_iter()
        .chain(pod)
        .filter(|(name, _)| !is_told(name))
        .filter_map(|(name, value)| Some(KeyValue::new(name, value?)));
    Resource::builder().with_attributes(attributes).build()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn says_which_pod_it_is() {
        let resource = resource(|name| (name != "NODE_NAME").then(|| format!("the {name}")));
        let get = |name| {
            resource
                .get(&Key::from_static_str(name))
                .map(|value| value.to_string())
        };
        assert_eq!(get("service.name").unwrap(), "foo-controller");
        assert_eq!(get("service.version").unwrap(), env!("CARGO_PKG_VERSION"));
        assert_eq!(get("service.instance.id").unwrap(), "the POD_UID");
        assert_eq!(get("k8s.pod.name").unwrap(), "the POD_NAME");
        assert_eq!(get("k8s.pod.uid").unwrap(), "the POD_UID");
        assert_eq!(get("k8s.namespace.name").unwrap(), "the POD_NAMESPACE");
        assert_eq!(get("k8s.node.name"), None);
    }
}
