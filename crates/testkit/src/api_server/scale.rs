//! The scale subresource, which autoscalers use to set the replicas.

use serde_json::{Value, json};

use super::{
    Key, Kind, Now, Server, Store,
    definition::Scale,
    fields::is_apply,
    patch::Style,
    request::{Part, Request, Unknown},
    status::{Cause, Refusal, Result},
    strategy::keep,
    typed,
    write::{check_name, wrong_uid},
};

/// Placeholder for missing replicas of a custom resource while it is scaled.
const UNSAID: i64 = i32::MIN as i64;
/// Largest number of replicas.
const MAX: i64 = i32::MAX as i64;

impl Server {
    pub(super) fn get_scale(
        &self,
        store: &Store,
        request: &Request<'_>,
        kind: Kind,
        object: &Value,
    ) -> Result<Value> {
        if !kind.is_custom() {
            return Ok(scale(None, object));
        }
        let object = self.present(store, request, kind, object)?;
        self.with_paths(store, request, kind, |paths| {
            if get(&object, &paths.replicas).is_null() {
                let path = &paths.replicas;
                let why = format!("the spec replicas field \"{path}\" does not exist");
                return Err(Refusal::internal(&why));
            }
            Ok(scale(Some(paths), &object))
        })
    }

    /// Calls `then` with the paths of a custom resource.
    fn with_paths<T>(
        &self,
        store: &Store,
        request: &Request<'_>,
        kind: Kind,
        then: impl FnOnce(&Scale) -> Result<T>,
    ) -> Result<T> {
        self.with_version(store, request, kind, |_, version| {
            then(version.scale.as_ref().ok_or_else(Refusal::not_served)?)
        })
    }

    /// Returns the scale of an object in the version of the request.
    fn scale(
        &self,
        store: &Store,
        request: &Request<'_>,
        kind: Kind,
        object: &Value,
    ) -> Result<Value> {
        if kind.is_custom() {
            return self.with_paths(store, request, kind, |paths| Ok(scale(Some(paths), object)));
        }
        Ok(scale(None, object))
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
        let old = self.current(store, request, key)?;
        let old = old.ok_or_else(|| Refusal::not_found(key.kind, &key.name))?;
        let mut is = self.scale(store, request, key.kind, &old)?;
        let path = if key.kind.is_custom() {
            self.with_paths(store, request, key.kind, |paths| Ok(paths.replicas.clone()))?
        } else {
            ".spec.replicas".to_owned()
        };
        if key.kind.is_custom() && get(&old, &path).is_null() {
            is["spec"]["replicas"] = UNSAID.into();
        }
        let asked = match parsed {
            Some(put) => put,
            None if is_apply(request) => {
                self.apply_scale(store, now, request, key.kind, (&is, &*old))?
            }
            None => match Style::of(key.kind, request.media_type.as_deref())? {
                Style::Strategic => {
                    return Err(Unknown("a strategic merge patch of a scale".to_owned()).into());
                }
                style => style.apply(key.kind, &is, request.call.body)?,
            },
        };
        let mut asked = typed::read_scale(asked).map_err(Refusal::bad_request)?;
        let scales = (&is, &asked, &*old);
        let managers = self.manage_scale(store, now, request, key.kind, scales)?;
        check_name(&mut asked, key)?;
        let (uid, was) = (&asked["metadata"]["uid"], &old["metadata"]["uid"]);
        if !patches && !uid.is_null() && uid != was {
            let was = was.as_str().unwrap_or_default();
            return Err(wrong_uid(key, request.is_dry_run()?, uid, was));
        }
        let replicas = asked["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas == UNSAID {
            let words = format!("the spec replicas field \"{path}\" cannot be empty");
            return Err(Refusal::bad_request(words));
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
        set(&mut new, &path, replicas.into());
        keep(&mut new["metadata"], "managedFields", managers.as_ref());
        match asked["metadata"]["resourceVersion"].as_str() {
            None if key.kind.is_custom() => {}
            version => new["metadata"]["resourceVersion"] = version.unwrap_or_default().into(),
        }
        let stored = self.replace(store, now, request, (key, Part::Scale), (new, &*old))?;
        let stored = if key.kind.is_custom() {
            self.present(store, request, key.kind, &stored)?
                .into_owned()
        } else {
            stored
        };
        Ok((200, self.scale(store, request, key.kind, &stored)?))
    }
}

/// Returns the names of a path such as `.spec.replicas`.
pub fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.strip_prefix('.').unwrap_or(path).split('.')
}

/// Returns the value at a path, or null.
fn get<'a>(object: &'a Value, path: &str) -> &'a Value {
    parts(path).fold(object, |value, name| &value[name])
}

/// Sets the value at a path, unless a value on the way is no object.
fn set(object: &mut Value, path: &str, new: Value) {
    let mut value = object;
    for name in parts(path) {
        if !value.is_object() && !value.is_null() {
            return;
        }
        value = &mut value[name];
    }
    *value = new;
}

/// Returns the scale subresource of an object. Built-in kinds have no paths.
fn scale(paths: Option<&Scale>, object: &Value) -> Value {
    let mut metadata = json!({});
    for field in [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ] {
        let value = &object["metadata"][field];
        if !value.is_null() {
            metadata[field] = value.clone();
        }
    }
    let (replicas, status, selector) = if let Some(paths) = paths {
        let selector = paths.selector.as_ref().map(|path| get(object, path));
        let selector = selector
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        (
            get(object, &paths.replicas),
            get(object, &paths.status_replicas),
            selector,
        )
    } else {
        let labels = object["spec"]["selector"]["matchLabels"].as_object();
        let labels = labels.into_iter().flatten();
        let labels =
            labels.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
        let selector = labels.collect::<Vec<_>>().join(",");
        (
            &object["spec"]["replicas"],
            &object["status"]["replicas"],
            selector,
        )
    };
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": {},
        "status": { "replicas": status.as_i64().unwrap_or(0) },
    });
    if let Some(replicas) = replicas.as_i64().filter(|it| *it != 0) {
        scale["spec"]["replicas"] = replicas.into();
    }
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    scale
}

/// Validates the fields of the scale subresource of a custom resource.
pub fn check(paths: &Scale, new: &Value, part: Part) -> Vec<Cause> {
    let spec = (part != Part::Status)
        .then(|| number(&paths.replicas, new))
        .flatten();
    let status = number(&paths.status_replicas, new);
    let selector = paths.selector.iter().filter_map(|path| {
        let wrong = accessor(path, new, "string", Value::is_string)?;
        Some(Cause::invalid(path, "\"\"", &wrong))
    });
    spec.into_iter().chain(status).chain(selector).collect()
}

fn number(path: &str, new: &Value) -> Option<Cause> {
    if let Some(wrong) = accessor(path, new, "int64", Value::is_i64) {
        return Some(Cause::invalid(path, 0, &wrong));
    }
    let number = get(new, path).as_i64()?;
    let words = match number {
        ..0 => "should be a non-negative integer",
        0..=MAX => return None,
        _ => "should be less than or equal to 2147483647",
    };
    Some(Cause::invalid(path, number, words))
}

/// Returns why the value at a path cannot be read, if it is there.
fn accessor(
    path: &str,
    new: &Value,
    wanted: &str,
    fits: impl Fn(&Value) -> bool,
) -> Option<String> {
    let mut value = new;
    let mut at = String::new();
    for name in parts(path) {
        at = format!("{at}.{name}");
        match value {
            Value::Null => return None,
            Value::Object(fields) => value = fields.get(name)?,
            other => {
                let is = typed_in_go(other);
                return Some(format!(
                    "{at} accessor error: {is}, expected map[string]interface{{}}"
                ));
            }
        }
    }
    (!fits(value)).then(|| {
        format!(
            "{at} accessor error: {}, expected {wanted}",
            typed_in_go(value)
        )
    })
}

/// Formats a value and its type like Go.
fn typed_in_go(value: &Value) -> String {
    let (shown, is) = match value {
        Value::Null => ("<nil>".to_owned(), "<nil>"),
        Value::Bool(is) => (is.to_string(), "bool"),
        Value::Number(number) if number.is_f64() => (
            super::schema::go::float(number.as_f64().unwrap_or_default()),
            "float64",
        ),
        Value::Number(number) => (number.to_string(), "int64"),
        Value::String(text) => (text.clone(), "string"),
        Value::Array(_) => (super::patch::in_go(value), "[]interface {}"),
        Value::Object(_) => (super::patch::in_go(value), "map[string]interface {}"),
    };
    format!("{shown} is of the type {is}")
}
