//! Preparation and validation of each kind before it is stored.

use serde_json::{Value, json};

use super::{
    Key, Kind, Release, Server, Store, contents, definition, deployment, event,
    fields::types,
    job, metadata, quantity,
    request::{Part, Request, Unknown},
    scale, service,
    status::{Cause, Refusal, Result},
    typed,
};

impl Server {
    /// Parses an object, and sets its defaults. Returns it with the paths of unknown fields, as far as they are known. Fails if
    /// the object cannot be read.
    pub(super) fn read(
        &self,
        store: &Store,
        request: &Request<'_>,
        kind: Kind,
        mut object: Value,
    ) -> std::result::Result<(Value, Vec<String>), Refusal> {
        if kind.is_custom() {
            let unknown = self.read_custom(store, request, kind, &mut object)?;
            return Ok((object, unknown));
        }
        if kind == Kind::CustomResourceDefinition {
            return Ok((definition::parse(object)?, Vec::new()));
        }
        let unknown = unknown_fields(kind, store.release, &object)?;
        quantity::read(kind, &mut object)?;
        let mut object = typed::read(kind, object).map_err(|words| unreadable(kind, &words))?;
        match kind {
            Kind::Deployment => deployment::fill(&mut object)?,
            Kind::Service => service::fill(&mut object)?,
            Kind::ConfigMap | Kind::Secret => contents::fill(kind, &mut object)?,
            Kind::Job => job::fill(&mut object)?,
            Kind::Namespace if object["metadata"]["name"].is_string() => {
                let name = object["metadata"]["name"].clone();
                object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
            }
            _ => {}
        }
        Ok((object, unknown))
    }

    /// Validates a new object.
    pub(super) fn check_new(
        &self,
        store: &Store,
        request: &Request<'_>,
        key: &Key,
        object: &Value,
    ) -> Result<Vec<Cause>> {
        let meta = &object["metadata"];
        if key.kind == Kind::CoreEvent {
            let causes = event::check(key.kind, object, None)?;
            let is_good = causes.is_empty();
            return Ok(if is_good {
                metadata::check(meta, false)
            } else {
                causes
            });
        }
        let mut causes = metadata::check(meta, metadata::is_strict(key.kind));
        causes.extend(match key.kind {
            Kind::Custom(_) => {
                return self.check_custom(
                    store,
                    request,
                    (key.kind, Part::Whole),
                    (object, None),
                    causes,
                );
            }
            Kind::Deployment => deployment::check(&object["spec"], store.release)?,
            Kind::Service => service::check(object),
            Kind::ConfigMap | Kind::Secret => contents::check(object),
            Kind::Job => job::check(object, store.release)?,
            Kind::Lease => check_lease(&object["spec"]),
            Kind::Event => event::check(key.kind, object, None)?,
            Kind::Namespace => metadata::check_label("metadata.name", &key.name),
            _ => Vec::new(),
        });
        Ok(causes)
    }

    /// Validates an object that replaces `old`.
    pub(super) fn check_change(
        &self,
        store: &Store,
        request: &Request<'_>,
        (key, part): (&Key, Part),
        new: &Value,
        old: &Value,
    ) -> Result<Vec<Cause>> {
        let (meta, was) = (&new["metadata"], &old["metadata"]);
        let mut causes = metadata::check(meta, false);
        causes.extend(metadata::check_update(meta, was));
        if key.kind.is_custom() {
            return self.check_custom(store, request, (key.kind, part), (new, Some(old)), causes);
        }
        if key.kind == Kind::CustomResourceDefinition {
            definition::check_change(new, old, store.release)?;
            return Ok(Vec::new());
        }
        if key.kind == Kind::CoreEvent {
            causes.extend(event::check(key.kind, new, Some(old))?);
            return Ok(causes);
        }
        // Every other kind repeats this check.
        causes.extend(metadata::check_update(meta, was));
        match (key.kind, part) {
            (Kind::Deployment, Part::Status) => {
                causes.extend(deployment::check_status(&new["status"]));
            }
            (Kind::Deployment, _) => {
                let (spec, was) = (&new["spec"], &old["spec"]);
                causes.extend(deployment::check(spec, store.release)?);
                if spec["selector"] != was["selector"] {
                    causes.push(Cause::invalid(
                        "spec.selector",
                        deployment::shown(&spec["selector"])?,
                        "field is immutable",
                    ));
                }
            }
            (Kind::Service, _) => {
                causes.extend(service::check_address(new, old)?);
                causes.extend(service::check(new));
            }
            (Kind::ConfigMap | Kind::Secret, _) => {
                causes.extend(metadata::check(meta, true));
                causes.extend(contents::check(new));
            }
            (Kind::Job, _) => {
                causes.extend(metadata::check(meta, true));
                job::known_change(new, old)?;
            }
            (Kind::Lease, _) => causes.extend(check_lease(&new["spec"])),
            (Kind::ServiceAccount, _) => causes.extend(metadata::check(meta, true)),
            (Kind::Event, _) => causes.extend(event::check(key.kind, new, Some(old))?),
            _ => {}
        }
        Ok(causes)
    }

    /// Validates a custom resource. `earlier` are the errors of its metadata.
    fn check_custom(
        &self,
        store: &Store,
        request: &Request<'_>,
        (kind, part): (Kind, Part),
        (new, old): (&Value, Option<&Value>),
        earlier: Vec<Cause>,
    ) -> Result<Vec<Cause>> {
        self.with_version(store, request, kind, |_, version| {
            let mut causes = check_type(request, kind, new);
            if causes.is_empty() {
                let again =
                    old.map(|old| metadata::check_update(&new["metadata"], &old["metadata"]));
                causes.extend(again.into_iter().flatten());
                causes.extend(version.schema.validate(new, old, part));
                causes.extend(
                    version
                        .scale
                        .iter()
                        .flat_map(|paths| scale::check(paths, new, part)),
                );
            }
            causes.extend(version.schema.check_structure(new, old, part));
            let mut all = earlier;
            all.extend(causes);
            let checked = version.schema.check_rules(new, old, &all)?;
            all.extend(checked.causes);
            self.warn(checked.warnings);
            Ok(all)
        })
    }
}

/// Returns the paths of unknown fields of a built-in kind. Fails for a field that this release knows, and drops because its gate is off.
pub fn unknown_fields(kind: Kind, release: Release, object: &Value) -> Result<Vec<String>> {
    let gated: &[&str] = match release {
        Release::V1_35 => &[".workloadRef"],
        Release::V1_37 => &[
            ".emptyDir.mode",
            ".httpGet.protocol",
            ".grpc.mode",
            ".bindMountOptions",
            ".defaultUser",
            ".user",
            ".evictionResponders",
            ".scheduling",
        ],
        _ => &[],
    };
    let mut unknown = Vec::new();
    if let Some(of) = types::built_in(&kind.api_version(), kind.info().kind) {
        types::unknown(of, object, "", &mut unknown);
    }
    let is_gated = |path: &&String| gated.iter().any(|end| path.ends_with(end));
    match unknown.iter().find(is_gated) {
        Some(path) => Err(Unknown(format!("the field {path}")).into()),
        None => Ok(unknown),
    }
}

pub fn unreadable(kind: Kind, words: &str) -> Refusal {
    let info = kind.info();
    Refusal::bad_request(format!(
        "{} in version \"{}\" cannot be handled as a {}: {words}",
        info.kind, info.version, info.kind
    ))
}

/// Sets the fields of a new object that users cannot set.
pub fn prepare_new(kind: Kind, has_status: bool, object: &mut Value) -> Result<()> {
    match kind {
        Kind::Custom(_) => {
            if let Some(fields) = object.as_object_mut().filter(|_| has_status) {
                fields.remove("status");
            }
        }
        Kind::Deployment => object["status"] = json!({}),
        Kind::Service => service::prepare_new(object)?,
        Kind::Job => job::prepare_new(object),
        _ => {}
    }
    if kind.info().generation {
        object["metadata"]["generation"] = json!(1);
    }
    Ok(())
}

/// Restores the fields that a change must not modify, and increases the generation.
pub fn prepare_change((kind, has_status): (Kind, bool), part: Part, new: &mut Value, old: &Value) {
    match (kind, part) {
        (Kind::Custom(_), Part::Whole | Part::Scale) if !has_status => {}
        (Kind::Custom(_), Part::Status) => {
            let status = new.get("status").cloned();
            let managers = new["metadata"].get("managedFields").cloned();
            *new = old.clone();
            keep(new, "status", status.as_ref());
            keep(&mut new["metadata"], "managedFields", managers.as_ref());
        }
        (Kind::Deployment, Part::Status) => {
            new["spec"] = old["spec"].clone();
            keep(
                &mut new["metadata"],
                "labels",
                old["metadata"].get("labels"),
            );
        }
        (Kind::Custom(_) | Kind::Deployment | Kind::Job | Kind::Namespace, _) => {
            keep(new, "status", old.get("status"));
        }
        (Kind::Service, _) => service::prepare_change(new, old),
        (Kind::CustomResourceDefinition, _) => return definition::prepare_change(new, old),
        _ => {}
    }
    keep(
        &mut new["metadata"],
        "generation",
        old["metadata"].get("generation"),
    );
    let rest = |object: &Value| -> Value {
        let fields = object.as_object().into_iter().flatten();
        let fields = fields.filter(|(field, _)| *field != "metadata");
        fields
            .map(|(field, value)| (field.clone(), value.clone()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let counts = match (kind, part) {
        (_, Part::Status) => false,
        (Kind::Custom(_), _) => rest(new) != rest(old),
        (Kind::Deployment, _) => {
            !quantity::is_same(kind, &new["spec"], &old["spec"])
                || new["metadata"]["annotations"] != old["metadata"]["annotations"]
        }
        _ => false,
    };
    if counts {
        count(new);
    }
}

/// Increases the generation.
pub fn count(object: &mut Value) {
    if let Some(generation) = object["metadata"]["generation"]
        .as_i64()
        .filter(|it| *it > 0)
    {
        object["metadata"]["generation"] = (generation + 1).into();
    }
}

/// Restores a field.
pub fn keep(object: &mut Value, field: &str, was: Option<&Value>) {
    match was {
        Some(was) => object[field] = was.clone(),
        None => {
            if let Some(fields) = object.as_object_mut() {
                fields.remove(field);
            }
        }
    }
}

/// Checks that a custom resource has the kind and version of its path.
fn check_type(request: &Request<'_>, kind: Kind, object: &Value) -> Vec<Cause> {
    let wanted = [
        ("kind", kind.info().kind.to_owned()),
        ("apiVersion", request.api_version(kind)),
    ];
    let wrong = |(field, wanted): (&str, String)| {
        let is = object[field].as_str().unwrap_or_default();
        let cause = || Cause::invalid(field, format!("{is:?}"), &format!("must be {wanted}"));
        (is != wanted).then(cause)
    };
    wanted.into_iter().filter_map(wrong).collect()
}

fn check_lease(spec: &Value) -> Vec<Cause> {
    let number = |field: &str| spec[field].as_i64();
    let duration = number("leaseDurationSeconds").filter(|it| *it <= 0);
    let transitions = number("leaseTransitions").filter(|it| *it < 0);
    let duration = duration
        .map(|it| Cause::invalid("spec.leaseDurationSeconds", it, "must be greater than 0"));
    let transitions = transitions.map(|it| {
        Cause::invalid(
            "spec.leaseTransitions",
            it,
            "must be greater than or equal to 0",
        )
    });
    duration.into_iter().chain(transitions).collect()
}
