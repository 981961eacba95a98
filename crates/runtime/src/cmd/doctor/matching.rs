//! The match rules of webhooks and admission policies, as the API server applies them
//! (`pkg/admission/plugin/webhook/predicates` and `pkg/admission/plugin/policy/matching` of `k8s.io/apiserver`).
//!
//! CEL expressions are not evaluated, and the labels of a new object are unknown. Both result in [`Judges::Maybe`].

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use serde::Deserialize as _;
use serde_json::Value;

pub(super) type Labels = BTreeMap<String, String>;

/// A write, with the attributes that admission matches.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub operation: &'static str,
    pub group: String,
    pub version: String,
    pub plural: String,
    pub subresource: String,
    pub is_cluster_scoped: bool,
    /// Other groups and versions of the same objects, which `matchPolicy: Equivalent` also matches.
    pub equivalents: Vec<(String, String)>,
    /// The object's name, if known.
    pub name: Option<String>,
    /// The object's labels, if known.
    pub labels: Option<Labels>,
}

impl Write {
    /// Returns the resource as RBAC and kubectl name it, such as `deployments/status`.
    pub(super) fn resource(&self) -> String {
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        format!("{}{slash}{}", self.plural, self.subresource)
    }

    fn is_namespace(&self) -> bool {
        self.group.is_empty() && self.plural == "namespaces"
    }
}

/// Whether a webhook or policy applies to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Judges {
    No,
    /// Depends on the object or on a CEL expression.
    Maybe,
    Yes,
}

/// Returns whether the API server calls `webhook` for a write in a namespace with these labels, or for a cluster-scoped write.
pub(super) fn webhook(webhook: &Value, write: &Write, namespace: &Labels) -> Judges {
    let selected = selected(webhook, write, namespace);
    let conditions = depends(has_items(&webhook["matchConditions"]));
    let rules = rules(&webhook["rules"], &webhook["matchPolicy"], write);
    selected.min(rules).min(conditions)
}

/// Returns whether an admission policy applies to a write. `spec` and `binding` are the specs of the policy and its binding.
pub(super) fn policy(spec: &Value, binding: &Value, write: &Write, namespace: &Labels) -> Judges {
    let conditions = depends(has_items(&spec["matchConditions"]));
    let constraints = match_resources(&spec["matchConstraints"], write, namespace);
    let bound = match_resources(&binding["matchResources"], write, namespace);
    constraints.min(bound).min(conditions)
}

fn match_resources(criteria: &Value, write: &Write, namespace: &Labels) -> Judges {
    let excluded = &criteria["excludeResourceRules"];
    let excluded = match rules(excluded, &criteria["matchPolicy"], write) {
        Judges::Yes => return Judges::No,
        other => depends(other == Judges::Maybe),
    };
    let included = &criteria["resourceRules"];
    let included = if has_items(included) {
        rules(included, &criteria["matchPolicy"], write)
    } else {
        Judges::Yes
    };
    selected(criteria, write, namespace)
        .min(included)
        .min(excluded)
}

fn depends(it_does: bool) -> Judges {
    if it_does { Judges::Maybe } else { Judges::Yes }
}

fn has_items(list: &Value) -> bool {
    list.as_array().is_some_and(|list| !list.is_empty())
}

/// Applies the namespace selector and the object selector. The former selects all cluster-scoped objects, except a Namespace by
/// its own labels (`MatchNamespaceSelector` in `predicates/namespace`).
fn selected(criteria: &Value, write: &Write, namespace: &Labels) -> Judges {
    let namespaces = selector(&criteria["namespaceSelector"]);
    if write.is_namespace() && !namespaces.selects_all() {
        return Judges::Maybe;
    }
    if !write.is_cluster_scoped && !namespaces.matches(namespace) {
        return Judges::No;
    }
    let objects = selector(&criteria["objectSelector"]);
    match &write.labels {
        _ if objects.selects_all() => Judges::Yes,
        Some(labels) if objects.matches(labels) => Judges::Yes,
        Some(_) => Judges::No,
        None => Judges::Maybe,
    }
}

/// Parses a `LabelSelector`. A missing selector selects everything. The API server rejects invalid selectors.
fn selector(value: &Value) -> Selector {
    let selector = Option::<LabelSelector>::deserialize(value);
    let selector = selector.ok().flatten().unwrap_or_default();
    Selector::try_from(selector).unwrap_or_default()
}

fn rules(rules: &Value, match_policy: &Value, write: &Write) -> Judges {
    let exact = (&write.group, &write.version);
    let equivalents = write.equivalents.iter();
    let equivalents = equivalents.map(|(group, version)| (group, version));
    // The API server fills in the default, `Equivalent`.
    let is_exact = match_policy == "Exact";
    let resources = std::iter::once(exact).chain(equivalents.filter(|_| !is_exact));
    let matches = resources.flat_map(|resource| {
        let rules = rules.as_array().into_iter().flatten();
        rules.map(move |it| rule(it, write, resource))
    });
    matches.max().unwrap_or(Judges::No)
}

fn rule(rule: &Value, write: &Write, (group, version): (&String, &String)) -> Judges {
    let has = |field: &str, wanted: &str| {
        let mut items = rule[field].as_array().into_iter().flatten();
        items.any(|item| item == "*" || item == wanted)
    };
    let resources = rule["resources"].as_array().into_iter().flatten();
    let is_of_resource = resources.filter_map(Value::as_str).any(|item| {
        // `pods` matches no subresource. `pods/*` also matches the pods.
        let (plural, subresource) = item.split_once('/').unwrap_or((item, ""));
        (plural == "*" || plural == write.plural)
            && (subresource == "*" || subresource == write.subresource)
    });
    let other_scope = if write.is_cluster_scoped {
        "Namespaced"
    } else {
        "Cluster"
    };
    let matches = rule["scope"] != other_scope
        && has("operations", write.operation)
        && has("apiGroups", group)
        && has("apiVersions", version)
        && is_of_resource;
    // Only policies have resource names.
    let names = &rule["resourceNames"];
    match &write.name {
        _ if !matches => Judges::No,
        _ if !has_items(names) => Judges::Yes,
        Some(name) => {
            let mut names = names.as_array().into_iter().flatten();
            if names.any(|it| it == name) {
                Judges::Yes
            } else {
                Judges::No
            }
        }
        None => Judges::Maybe,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn write(operation: &'static str, api_version: &str, resource: &str) -> Write {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Write {
            operation,
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            subresource: subresource.to_owned(),
            is_cluster_scoped: false,
            equivalents: Vec::new(),
            name: None,
            labels: None,
        }
    }

    fn rule(groups: &str, versions: &str, resources: &str, operations: &str) -> Value {
        let list = |text: &str| text.split(',').collect::<Value>();
        json!({ "apiGroups": list(groups), "apiVersions": list(versions), "resources": list(resources),
                "operations": list(operations), "scope": "*" })
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    /// Rules match as in `rules.go` of the API server.
    #[test]
    fn rules_match_as_those_of_the_api_server() {
        let status = &write("UPDATE", "example.com/v1", "parents/status");
        let pods = &write("CREATE", "v1", "pods");
        for (write, [groups, versions, resources, operations], expected) in [
            (pods, ["", "v1", "pods", "CREATE"], true),
            (pods, ["*", "*", "*", "*"], true),
            (pods, ["*", "*", "*/*", "*"], true),
            (pods, ["", "v1", "pods/*", "CREATE"], true),
            (pods, ["", "v1", "*/status", "CREATE"], false),
            (pods, ["", "v1", "pods/status", "CREATE"], false),
            (pods, ["", "v1", "pods", "UPDATE,DELETE"], false),
            (pods, ["", "v1", "services,pods", "UPDATE,CREATE"], true),
            (pods, ["", "v2", "pods", "CREATE"], false),
            (pods, ["apps", "v1", "pods", "CREATE"], false),
            (status, ["*", "*", "*", "*"], false),
            (status, ["*", "*", "*/*", "*"], true),
            (status, ["example.com", "v1", "parents", "UPDATE"], false),
            (status, ["example.com", "v1", "parents/*", "UPDATE"], true),
            (
                status,
                ["example.com", "v1", "parents/status", "UPDATE"],
                true,
            ),
            (status, ["example.com", "v1", "*/status", "UPDATE"], true),
            (status, ["example.com", "v1", "*/scale", "UPDATE"], false),
        ] {
            let hook = json!({ "rules": [rule(groups, versions, resources, operations)] });
            let judges = webhook(&hook, write, &Labels::new());
            let matches = judges == Judges::Yes;
            assert_eq!(matches, expected, "{write:?} {hook}");
        }
        let mut hook = json!({ "rules": [rule("*", "*", "*", "*")] });
        for (scope, expected) in [("Namespaced", Judges::Yes), ("Cluster", Judges::No)] {
            hook["rules"][0]["scope"] = scope.into();
            assert_eq!(webhook(&hook, pods, &Labels::new()), expected);
        }
    }

    /// As `scope` in `rules.go` and `MatchNamespaceSelector`: no selector of namespaces exempts a cluster-scoped object, except a
    /// Namespace.
    #[test]
    fn a_cluster_scoped_write_is_in_no_namespace() {
        let mut class = write("UPDATE", "example.com/v1", "classes/status");
        class.is_cluster_scoped = true;
        let mut hook = json!({ "rules": [rule("*", "*", "*/*", "*")] });
        for (scope, expected) in [
            ("*", Judges::Yes),
            ("Cluster", Judges::Yes),
            ("Namespaced", Judges::No),
        ] {
            hook["rules"][0]["scope"] = scope.into();
            assert_eq!(webhook(&hook, &class, &Labels::new()), expected, "{scope}");
        }
        hook["rules"][0]["scope"] = "Cluster".into();
        hook["namespaceSelector"] = json!({ "matchLabels": { "team": "x" } });
        assert_eq!(webhook(&hook, &class, &Labels::new()), Judges::Yes);
        let mut namespace = write("CREATE", "v1", "namespaces");
        namespace.is_cluster_scoped = true;
        assert_eq!(webhook(&hook, &namespace, &Labels::new()), Judges::Maybe);
        hook["namespaceSelector"] = json!({});
        assert_eq!(webhook(&hook, &namespace, &Labels::new()), Judges::Yes);
    }

    #[test]
    fn equivalent_resources_count_unless_the_match_is_exact() {
        let mut event = write("CREATE", "events.k8s.io/v1", "events");
        event.equivalents = vec![(String::new(), "v1".to_owned())];
        let mut hook = json!({ "rules": [rule("", "v1", "events", "CREATE")] });
        assert_eq!(webhook(&hook, &event, &Labels::new()), Judges::Yes);
        hook["matchPolicy"] = "Exact".into();
        assert_eq!(webhook(&hook, &event, &Labels::new()), Judges::No);
    }

    #[test]
    fn selectors_match_labels_and_unknown_labels_may_match() {
        let all = rule("*", "*", "*", "*");
        let namespace = labels(&[("kubernetes.io/metadata.name", "a"), ("team", "x")]);
        let pods = write("CREATE", "v1", "pods");
        let key = "kubernetes.io/metadata.name";
        for (selector, expected) in [
            (json!({}), Judges::Yes),
            (json!({ "matchLabels": { "team": "x" } }), Judges::Yes),
            (json!({ "matchLabels": { "team": "y" } }), Judges::No),
            (
                json!({ "matchExpressions": [{ "key": key, "operator": "NotIn", "values": ["a"] }] }),
                Judges::No,
            ),
            (
                json!({ "matchExpressions": [{ "key": "none", "operator": "NotIn", "values": ["a"] }] }),
                Judges::Yes,
            ),
            (
                json!({ "matchExpressions": [{ "key": "none", "operator": "DoesNotExist" }] }),
                Judges::Yes,
            ),
            (
                json!({ "matchLabels": { "team": "x" }, "matchExpressions": [{ "key": "none", "operator": "Exists" }] }),
                Judges::No,
            ),
        ] {
            let hook = json!({ "rules": [all], "namespaceSelector": selector });
            assert_eq!(webhook(&hook, &pods, &namespace), expected, "{hook}");
        }
        let hook = json!({ "rules": [all], "objectSelector": { "matchLabels": { "app": "web" } } });
        for (labels, expected) in [
            (None, Judges::Maybe),
            (Some(Labels::new()), Judges::No),
            (Some(labels(&[("app", "web")])), Judges::Yes),
        ] {
            let pods = Write {
                labels,
                ..pods.clone()
            };
            assert_eq!(webhook(&hook, &pods, &namespace), expected);
        }
        let hook =
            json!({ "rules": [all], "matchConditions": [{ "name": "a", "expression": "true" }] });
        assert_eq!(webhook(&hook, &pods, &namespace), Judges::Maybe);
    }

    #[test]
    fn a_policy_applies_to_objects_that_it_and_its_binding_match() {
        let mut lease = write("UPDATE", "coordination.k8s.io/v1", "leases");
        lease.name = Some("ours".to_owned());
        let leases = rule("coordination.k8s.io", "v1", "leases", "UPDATE");
        let named = |name: &str| {
            let mut rule = leases.clone();
            rule["resourceNames"] = json!([name]);
            rule
        };
        let all = json!({});
        for (constraints, binding, expected) in [
            (json!({ "resourceRules": [leases] }), &all, Judges::Yes),
            (
                json!({ "resourceRules": [named("ours")] }),
                &all,
                Judges::Yes,
            ),
            (
                json!({ "resourceRules": [named("other")] }),
                &all,
                Judges::No,
            ),
            (
                json!({ "resourceRules": [leases], "excludeResourceRules": [leases] }),
                &all,
                Judges::No,
            ),
            (
                json!({ "resourceRules": [leases], "excludeResourceRules": [named("other")] }),
                &all,
                Judges::Yes,
            ),
            (
                json!({ "resourceRules": [leases] }),
                &json!({ "matchResources": { "namespaceSelector": { "matchLabels": { "a": "b" } } } }),
                Judges::No,
            ),
        ] {
            let spec = json!({ "matchConstraints": constraints });
            assert_eq!(
                policy(&spec, binding, &lease, &Labels::new()),
                expected,
                "{spec}"
            );
        }
        let spec = json!({ "matchConstraints": { "resourceRules": [named("ours")] } });
        lease.name = None;
        assert_eq!(policy(&spec, &all, &lease, &Labels::new()), Judges::Maybe);
    }
}
