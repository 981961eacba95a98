//! The option `--object`: why one object is not written. The API server returns the object and its namespace. A replica returns
//! the records that hold the object.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject},
};
use tokio::time::timeout;

use super::{
    cluster::{api_of, few, installation_of, items, text},
    replica::{EXEC, Line, find},
    subject::Doctor,
    verdict::{Grade, LIMIT, Verdict, error, failed, is_forbidden, ok, skipped, warning},
};
use crate::{
    api::{control::installation_label, failure::brief, key::Key},
    telemetry::{
        object_state::{ObjectName, ObjectState, path_of},
        state::span,
    },
};

/// Checks whether the object exists, is terminating, has a current status, and is ready.
pub(super) async fn examine(doctor: &Doctor, object: &Key) -> Verdict {
    let kind = doctor.needs.primary();
    let api = api_of(&doctor.client, kind, object.namespace_if_any());
    match api.get_opt(object.name()).await {
        Ok(Some(found)) => {
            let verdict = judge(&found, doctor.host.now());
            let other = installation_of(doctor, &found);
            other.map_or(verdict, |it| elsewhere(doctor, &it))
        }
        Ok(None) => error("it does not exist"),
        Err(error) => unreadable(&error),
    }
}

/// The verdict about an object that another installation reconciles.
fn elsewhere(doctor: &Doctor, other: &str) -> Verdict {
    let label = installation_label(doctor.app.group);
    let ours = &*doctor.config.installation;
    let name = |it: &str| match it {
        "" => "the default installation".to_owned(),
        name => format!("the installation {name}"),
    };
    warning(format!(
        "{} reconciles it, by its label {label}; this is {}",
        name(&brief(other)),
        name(ours)
    ))
}

fn unreadable(error: &kube::Error) -> Verdict {
    if is_forbidden(error) {
        skipped("not allowed to get it")
    } else {
        failed("get it", error)
    }
}

fn judge(object: &DynamicObject, now: Timestamp) -> Verdict {
    let generation = object.metadata.generation.unwrap_or_default();
    let mut found = format!("generation {generation}");
    let conditions: Vec<_> = items(&object.data["status"]["conditions"]).collect();
    let texts = conditions.iter().map(|it| {
        let [type_, status, reason, message] =
            ["type", "status", "reason", "message"].map(|field| brief(text(&it[field])));
        let colon = if message.is_empty() { "" } else { ": " };
        format!("{type_}={status} ({reason}{colon}{message})")
    });
    let texts = few(texts);
    if !texts.is_empty() {
        found = format!("{found}; {texts}");
    }
    if let Some(deleted) = &object.metadata.deletion_timestamp {
        let ago = SignedDuration::from_secs(now.duration_since(deleted.0).as_secs());
        return warning(format!(
            "deleted {ago:#} ago, and waits for its finalizers ({}); {found}",
            few(object.finalizers())
        ));
    }
    let observed = object.data["status"]["observedGeneration"].as_i64();
    if observed.is_some_and(|observed| observed != generation) {
        return warning(format!("{found}; its status is of an earlier generation"));
    }
    let is_ready = conditions
        .iter()
        .all(|it| it["type"] != "Ready" || it["status"] == "True");
    if is_ready { ok(found) } else { warning(found) }
}

/// Checks whether the namespace is watched, exists, and accepts new objects.
pub(super) async fn namespace(client: &Client, name: &str, is_watched: bool) -> Verdict {
    if !is_watched {
        return error(
            "not in the setting namespaces: no replica with these settings reconciles it",
        );
    }
    let resource = ApiResource::erase::<Namespace>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    match api.get_opt(name).await {
        Ok(None) => error("it does not exist"),
        Ok(Some(found)) if found.metadata.deletion_timestamp.is_some() => {
            warning("terminating: the API server rejects new objects in it")
        }
        Ok(Some(_)) => ok("watched"),
        Err(error) => unreadable(&error),
    }
}

/// Returns the lines about the object on one replica. The last line is the reason.
pub(super) async fn on_replica(doctor: &Doctor, object: &ObjectName) -> Vec<Line> {
    let found = timeout(LIMIT, find(doctor, &path_of(object))).await;
    let found = found.unwrap_or_else(|_| Err(warning(format!("no answer in {LIMIT:?}"))));
    match found {
        Ok(state) => report(&state, object),
        Err((grade, why)) => {
            let way = format!(
                "; the leader has it: set http.debug_state, then {EXEC} --object={object} in the pod that holds the Lease"
            );
            let way = if grade == Grade::Skipped { &*way } else { "" };
            vec![("reason".to_owned(), (grade, format!("unknown: {why}{way}")))]
        }
    }
}

fn report(state: &ObjectState, object: &ObjectName) -> Vec<Line> {
    let mut lines = vec![("replica".to_owned(), place(state))];
    let records = state.records.iter();
    let records = records.map(|it| ("its record".to_owned(), warning(brief(&it.to_string()))));
    lines.extend(records);
    let holder = state.holder.as_ref().filter(|_| !state.leads);
    let pod = holder.map(|holder| holder.rsplit_once('_').map_or(&**holder, |(pod, _)| pod));
    let hint = pod.map(|pod| {
        let command = EXEC.replace("POD", &brief(pod));
        format!("; {command} --object={object}")
    });
    let reason = format!("{}{}", brief(&state.reason), hint.unwrap_or_default());
    let is_free = state.leads && state.records.is_empty();
    let reason = if is_free { ok(reason) } else { warning(reason) };
    lines.push(("reason".to_owned(), reason));
    lines
}

fn place(state: &ObjectState) -> Verdict {
    let leads = if state.leads { "leads" } else { "stands by" };
    let mut text = format!("{}, {leads}", brief(&state.identity));
    match &state.cached {
        Some(cached) => {
            let (version, freshness) = (&cached.resource_version, &cached.freshness);
            text = format!(
                "{text}; cached at {} ({})",
                brief(version),
                brief(freshness)
            );
        }
        None => text.push_str("; not cached"),
    }
    let Some(queue) = &state.queue else {
        return ok(text);
    };
    if let Some(time) = queue.in_work_for_seconds {
        text = format!("{text}; in work for {}", span(time));
    }
    if let Some(lane) = &queue.lane {
        let delay = queue
            .delayed_for_seconds
            .map(|time| format!(" in {}", span(time)));
        text = format!(
            "{text}; queued{} in the lane {}",
            delay.unwrap_or_default(),
            brief(lane)
        );
    }
    ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::telemetry::object_state::parse;

    fn judged(differ: &Value) -> String {
        let mut object = json!({
            "apiVersion": "example.com/v1", "kind": "Widget", "metadata": { "name": "a", "namespace": "n", "generation": 2 },
            "status": { "observedGeneration": 2, "conditions": [
                { "type": "Ready", "status": "True", "reason": "Available", "message": "" },
            ] },
        });
        json_patch::merge(&mut object, differ);
        let object = serde_json::from_value(object).expect("an object");
        let now = "2020-01-01T00:01:00Z".parse().expect("a time");
        let (grade, text) = judge(&object, now);
        format!("{} {text}", grade.word())
    }

    #[test]
    fn an_object_is_reported_with_its_conditions() {
        let deleted =
            json!({ "deletionTimestamp": "2020-01-01T00:00:00Z", "finalizers": ["a/b", "c"] });
        let failed = json!([{ "type": "Ready", "status": "False", "reason": "Failed", "message": "no\nroom" }]);
        for (differ, expected) in [
            (json!({}), "ok generation 2; Ready=True (Available)"),
            (
                json!({ "status": { "conditions": failed } }),
                "warning generation 2; Ready=False (Failed: no room)",
            ),
            (json!({ "status": null }), "ok generation 2"),
            (
                json!({ "metadata": { "generation": 3 } }),
                "warning generation 3; Ready=True (Available); its status is of an earlier generation",
            ),
            (
                json!({ "metadata": deleted, "status": null }),
                "warning deleted 1m ago, and waits for its finalizers (a/b, c); generation 2",
            ),
        ] {
            assert_eq!(judged(&differ), expected);
        }
    }

    fn lines(differ: &Value) -> Vec<String> {
        let mut state = json!({
            "reason": "dispute: why", "kind": "Widget", "namespace": "n", "name": "a", "identity": "a_1", "leads": true,
            "holder": "a_1", "cached": { "resourceVersion": "17", "freshness": "fresh" },
            "queue": { "lane": "retry", "delayedForSeconds": 3.2, "inWorkForSeconds": null, "attempts": 1, "lastReason": null,
                       "lastError": null },
            "records": [{ "name": "dispute", "text": "why", "endsInSeconds": 3.2 }],
        });
        json_patch::merge(&mut state, differ);
        let object = parse("n/a").expect("a name");
        let lines = report(&serde_json::from_value(state).expect("a state"), &object);
        let lines = lines.into_iter();
        lines
            .map(|(about, (grade, text))| format!("{} {about}: {text}", grade.word()))
            .collect()
    }

    #[test]
    fn the_last_line_contains_the_reason() {
        assert_eq!(
            lines(&json!({})),
            [
                "ok replica: a_1, leads; cached at 17 (fresh); queued in 3s in the lane retry",
                "warning its record: dispute, for another 3s: why",
                "warning reason: dispute: why",
            ]
        );
        let free = json!({ "reason": "nothing holds it", "queue": { "lane": null, "inWorkForSeconds": 2.0 }, "records": [] });
        assert_eq!(
            lines(&free),
            [
                "ok replica: a_1, leads; cached at 17 (fresh); in work for 2s",
                "ok reason: nothing holds it",
            ]
        );
        let standby = json!({ "reason": "it stands by", "leads": false, "holder": "b_2", "cached": null, "queue": null,
                              "records": [] });
        assert_eq!(
            lines(&standby),
            [
                "ok replica: a_1, stands by; not cached",
                "warning reason: it stands by; kubectl exec -n NAMESPACE b -- /proc/1/exe doctor --object=n/a",
            ]
        );
    }
}
