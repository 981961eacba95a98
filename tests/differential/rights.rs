//! A user who may do some things only, to both: about as much as the operator.

use serde_json::{Value, json};

use crate::simulation::api::{Kind, Store, User};

pub const LIMITED: User<'static> = User {
    name: "limited",
    pod: None,
};

/// What it may do, by part.
const RIGHTS: [(Kind, &str, &[&str]); 10] = [
    (Kind::Namespace, "", &["get"]),
    (Kind::Foo, "", &["list", "watch"]),
    (Kind::Foo, "/status", &["update"]),
    (Kind::Foo, "/scale", &["get", "patch"]),
    (
        Kind::Deployment,
        "",
        &["list", "watch", "create", "patch", "delete"],
    ),
    (Kind::Deployment, "/scale", &["update"]),
    (Kind::Service, "", &["list", "watch", "create", "patch"]),
    // Of one that is not there, an update is a creation, too.
    (Kind::Lease, "", &["get", "watch", "patch", "update"]),
    (Kind::Event, "", &["create", "patch"]),
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

/// What gives the rights: a `ClusterRole` and its binding.
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

/// The same of what everybody may do: all else is taken away.
pub fn revoke(store: &mut Store) {
    for kind in Kind::SERVED {
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
