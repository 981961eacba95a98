//! The scale subresource, which autoscalers use to set the replicas.

use serde_json::{Value, json};

use super::{
    Key, Kind, Now, Server, Store,
    patch::Style,
    request::{Part, Request, Unknown},
    status::{Cause, Refusal, Result},
    typed,
    write::{check_name, wrong_uid},
};

/// Placeholder for missing replicas of a custom resource while it is scaled.
const UNSAID: i64 = i32::MIN as i64;

impl Server {
    pub(super) fn get_scale(kind: Kind, object: &Value) -> Result<Value> {
        if kind.is_custom() && object["spec"]["replicas"].is_null() {
            let why = "the spec replicas field \".spec.replicas\" does not exist";
            return Err(Refusal::internal(why));
        }
        Ok(scale(kind, object))
    }

    pub(super) fn update_scale(
        &self,
        store: &mut Store,
        now: Now,
        request: &Request<'_>,
        key: &Key,
    ) -> Result<(u16, Value)> {
        let patches = request.call.method == http::Method::PATCH;
        let parsed = (!patches).then(|| request.json()).transpose();
        let parsed = parsed.map_err(Refusal::bad_request)?;
        let old = store.get(key).cloned();
        let old = old.ok_or_else(|| Refusal::not_found(key.kind, &key.name))?;
        let mut is = scale(key.kind, &old);
        if key.kind.is_custom() && old["spec"]["replicas"].is_null() {
            is["spec"]["replicas"] = UNSAID.into();
        }
        let asked = match parsed {
            Some(put) => put,
            None => match Style::of(key.kind, request.call.content_type)? {
                Style::Merge => Style::Merge.apply(key.kind, &is, request.call.body)?,
                Style::Strategic => {
                    return Err(Unknown("a strategic merge patch of a scale".to_owned()).into());
                }
            },
        };
        let mut asked = typed::read_scale(asked).map_err(Refusal::bad_request)?;
        check_name(&mut asked, key)?;
        let (uid, was) = (&asked["metadata"]["uid"], &old["metadata"]["uid"]);
        if !patches && !uid.is_null() && uid != was {
            let was = was.as_str().unwrap_or_default();
            return Err(wrong_uid(key, request.is_dry_run()?, uid, was));
        }
        let replicas = asked["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas == UNSAID {
            return Err(Refusal::bad_request(
                "the spec replicas field \".spec.replicas\" cannot be empty",
            ));
        }
        if replicas < 0 && !key.kind.is_custom() {
            let why = "must be greater than or equal to 0";
            let cause = Cause::invalid("spec.replicas", replicas, why);
            let refusal = Refusal::invalid_of("Scale", "autoscaling", &key.name, &[cause]);
            return Err(refusal);
        }
        let (uid, was) = (&asked["metadata"]["uid"], &old["metadata"]["uid"]);
        if !key.kind.is_custom() && !uid.is_null() && uid != was {
            let text = |uid: &Value| uid.as_str().unwrap_or_default().to_owned();
            let why = format!(
                "Precondition failed: UID in precondition: {}, UID in object meta: {}",
                text(uid),
                text(was)
            );
            let what = format!("{}/scale", key.kind.info().plural);
            return Err(Refusal::conflict_of(
                &what,
                key.kind.info().group,
                &key.name,
                &why,
            ));
        }
        let mut new = Value::clone(&old);
        new["spec"]["replicas"] = replicas.into();
        match asked["metadata"]["resourceVersion"].as_str() {
            None if key.kind.is_custom() => {}
            version => new["metadata"]["resourceVersion"] = version.unwrap_or_default().into(),
        }
        let stored = self.replace(store, now, request, (key, Part::Scale), (new, &old))?;
        Ok((200, scale(key.kind, &stored)))
    }
}

/// Returns the scale subresource of an object.
fn scale(kind: Kind, object: &Value) -> Value {
    let mut metadata = json!({});
    for field in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        metadata[field] = object["metadata"][field].clone();
    }
    let (spec, status) = (&object["spec"], &object["status"]);
    let selector = if kind.is_custom() {
        status["selector"].as_str().unwrap_or_default().to_owned()
    } else {
        let labels = spec["selector"]["matchLabels"]
            .as_object()
            .into_iter()
            .flatten();
        let labels =
            labels.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
        labels.collect::<Vec<_>>().join(",")
    };
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": {},
        "status": { "replicas": status["replicas"].as_i64().unwrap_or(0) },
    });
    if let Some(replicas) = spec["replicas"].as_i64().filter(|it| *it != 0) {
        scale["spec"]["replicas"] = replicas.into();
    }
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    scale
}
