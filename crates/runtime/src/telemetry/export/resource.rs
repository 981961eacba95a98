//! The resource of all signals, by OpenTelemetry's semantic conventions.

use opentelemetry::KeyValue;
use opentelemetry_sdk::{Resource, resource::TelemetryResourceDetector};
use opentelemetry_semantic_conventions::attribute;

use crate::config::{app::App, build_info, environment::Host};

/// Attributes from environment variables that the Deployment sets.
const POD: [(&str, &str); 4] = [
    (attribute::K8S_POD_NAME, "POD_NAME"),
    (attribute::K8S_POD_UID, "POD_UID"),
    (attribute::K8S_NAMESPACE_NAME, "POD_NAMESPACE"),
    (attribute::K8S_NODE_NAME, "NODE_NAME"),
];

/// Returns the resource of this process. `configured` attributes override detected ones.
pub(crate) fn resource(app: &App, host: &Host, configured: Vec<KeyValue>) -> Resource {
    let variable = |name| host.variable(name);
    let instance = variable("POD_UID").unwrap_or_else(|| host.uuid().to_string());
    let known = [
        (attribute::SERVICE_NAME, Some(app.name.to_owned())),
        (attribute::SERVICE_VERSION, Some(app.version.to_owned())),
        (attribute::SERVICE_INSTANCE_ID, Some(instance)),
        (
            "vcs.ref.head.revision",
            build_info::commit().map(str::to_owned),
        ),
    ];
    let pod = POD.map(|(name, from)| (name, variable(from)));
    let attributes = known
        .into_iter()
        .chain(pod)
        .filter_map(|(name, value)| Some(KeyValue::new(name, value?)));
    // The SDK's environment detector is not used: it accepts malformed values in part.
    Resource::builder_empty()
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_attributes(attributes.chain(configured))
        .build()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use opentelemetry::Key;

    use super::*;
    use crate::config::app::tests::APP;

    #[test]
    fn the_resource_names_the_pod() {
        let configured = vec![
            KeyValue::new("team", "a"),
            KeyValue::new("k8s.pod.uid", "configured"),
        ];
        let pod = ["POD_NAME", "POD_UID", "POD_NAMESPACE"];
        let pod = pod.map(|name| (name.into(), format!("the {name}").into()));
        let host = Host::for_tests(pod);
        let resource = resource(&APP, &host, configured);
        let get = |name| {
            resource
                .get(&Key::from_static_str(name))
                .map(|value| value.to_string())
        };
        assert_eq!(get("service.name").unwrap(), APP.name);
        assert_eq!(get("service.version").unwrap(), APP.version);
        assert_eq!(get("service.instance.id").unwrap(), "the POD_UID");
        assert_eq!(get("k8s.pod.name").unwrap(), "the POD_NAME");
        assert_eq!(get("k8s.pod.uid").unwrap(), "configured");
        assert_eq!(get("team").unwrap(), "a");
        assert_eq!(get("telemetry.sdk.language").unwrap(), "rust");
        assert_eq!(get("k8s.namespace.name").unwrap(), "the POD_NAMESPACE");
        assert_eq!(get("k8s.node.name"), None);
    }
}
