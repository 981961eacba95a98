//! The status of Deployments, as if all their pods were available at once (`pkg/controller/deployment` of Kubernetes).

use serde_json::{Value, json};

use crate::api_server::{Key, Kind, Now, Store};

const CONTROLLER: &str = "system:serviceaccount:kube-system:deployment-controller";

/// Updates the status of each Deployment that has changed.
pub fn report(store: &mut Store, now: Now) {
    let all = store.list(Kind::Deployment, None);
    let all = all.filter(|(_, it)| !it["metadata"]["deletionTimestamp"].is_string());
    let changed: Vec<(Key, Value)> = all
        .filter_map(|(key, it)| Some((key.clone(), updated(it, now)?)))
        .collect();
    for (key, object) in changed {
        store.put(now, CONTROLLER, &key, Some(object));
    }
}

/// Returns a Deployment with its new status, or nothing if the status stays.
fn updated(deployment: &Value, now: Now) -> Option<Value> {
    // Go omits zeros.
    let replicas = deployment["spec"]["replicas"].as_i64().unwrap_or(1);
    let replicas = Some(replicas).filter(|it| *it != 0);
    let counts = json!({
        "observedGeneration": deployment["metadata"]["generation"], "replicas": replicas, "updatedReplicas": replicas,
        "readyReplicas": replicas, "availableReplicas": replicas,
    });
    let old = &deployment["status"];
    let mut counts: Vec<_> = counts.as_object()?.clone().into_iter().collect();
    if counts.iter().all(|(field, count)| old[field] == *count) {
        return None;
    }
    counts.retain(|(_, count)| !count.is_null());
    let mut new = deployment.clone();
    new["status"] = counts.into_iter().collect::<serde_json::Map<_, _>>().into();
    let time = now.seconds();
    let condition = |of: &str, reason: &str, message: &str| {
        json!({
            "type": of, "status": "True", "reason": reason, "message": message, "lastUpdateTime": time,
            "lastTransitionTime": time,
        })
    };
    new["status"]["conditions"] = match old["conditions"].as_array() {
        Some(conditions) => conditions.clone().into(),
        None => json!([
            condition(
                "Available",
                "MinimumReplicasAvailable",
                "Deployment has minimum availability."
            ),
            condition(
                "Progressing",
                "NewReplicaSetAvailable",
                "The ReplicaSet has successfully progressed."
            ),
        ]),
    };
    Some(new)
}
