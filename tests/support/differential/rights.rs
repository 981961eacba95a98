//! User with limited permissions on both sides, similar to those of the operator.

use operator_testkit::api_server::{Kind, Store, User};
use serde_json::{Value, json};

use super::steps::FOO;

pub const LIMITED: User<'static> = User {
    name: "limited",
    pod: None,
};

/// Permissions by subresource.
const RIGHTS: [(Kind, &str, &[&str]); 14] = [
    (Kind::Namespace, "", &["get"]),
    (FOO, "", &["list", "watch"]),
    (FOO, "/status", &["update"]),
    (FOO, "/scale", &["get", "patch"]),
    (
        Kind::Deployment,
        "",
        &["list", "watch", "create", "patch", "delete"],
    ),
    (Kind::Deployment, "/scale", &["update"]),
    (Kind::Service, "", &["list", "watch", "create", "patch"]),
    (Kind::ConfigMap, "", &["list", "create", "patch"]),
    (Kind::Secret, "", &["get", "watch"]),
    (Kind::Job, "", &["list", "watch", "create"]),
    // An update of a missing Lease also needs `create`.
    (Kind::Lease, "", &["get", "watch", "patch", "update"]),
    (Kind::Event, "", &["create", "patch"]),
    (Kind::CoreEvent, "", &["create", "patch"]),
    (Kind::ServiceAccount, "", &["get", "patch"]),
];

const VERBS: [&str; 8] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];

/// Returns the `ClusterRole` and its binding.
pub fn roles() -> Value {
    let rules = RIGHTS.map(|(kind, part, verbs)| {
        let info = kind.info();
        let resource = format!("{}{part}", info.plural);
        json!({ "apiGroups": [info.group], "resources": [resource], "verbs": verbs })
    });
    let (metadata, group) = (json!({ "name": LIMITED.name }), "rbac.authorization.k8s.io");
    let role = json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": metadata, "rules": rules,
    });
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata,
        "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": LIMITED.name },
        "subjects": [{ "apiGroup": group, "kind": "User", "name": LIMITED.name }],
    });
    json!({ "apiVersion": "v1", "kind": "List", "items": [role, binding] })
}

/// Revokes all other permissions on the simulated side, where every user has all permissions by default.
pub fn revoke(store: &mut Store) {
    for kind in Kind::BUILT_IN.into_iter().chain([FOO]) {
        for part in ["", "/status", "/scale", "/finalize"] {
            for verb in VERBS {
                let has = |right: &(Kind, &str, &[&str])| {
                    (right.0, right.1) == (kind, part) && right.2.contains(&verb)
                };
                if !RIGHTS.iter().any(has) {
                    let resource = format!("{}{part}", kind.info().plural);
                    store.revoke(LIMITED.name, verb, &resource);
                }
            }
        }
    }
}
