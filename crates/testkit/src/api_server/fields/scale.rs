//! Managers of the replicas in the subresource `scale` (`util/managedfields/scalehandler.go`).

use serde_json::Value;

use super::{
    super::{
        Kind, Now, Server, Store,
        request::{Part, Request, Unknown},
        scale::parts,
        status::{Refusal, Result},
    },
    is_apply,
    managers::{self, Managers, Owned},
    of_object,
    scope::{Scope, failed},
    set::Set,
    yaml,
};

const REPLICAS: &[&str] = &["spec", "replicas"];

impl Server {
    /// Returns the scale that an apply wants in place of `live`.
    pub(in super::super) fn apply_scale(
        &self,
        store: &Store,
        now: Now,
        request: &Request<'_>,
        kind: Kind,
        (live, object): (&Value, &Value),
    ) -> Result<Value> {
        if !store.keeps_managers() {
            return Err(Unknown("an apply to a store without managers".to_owned()).into());
        }
        let body = yaml::read(request.call.body)?;
        let managers = of_object(object);
        let applied = self.with_scope(store, now, request, (kind, Part::Scale), |scope| {
            scope.check_kind(&body.object)?;
            let managers = scope.to_scale(&managers);
            let by = (request.text("fieldManager"), request.flag("force")?);
            // The API server cannot convert the scale of a custom resource, only leave it as it is.
            let unconverted = |prefix: &str, what: &str| {
                Err(failed(&format!(
                    "{prefix} object ({what}) to proper version: request to convert CR to an invalid group/version: autoscaling/v1"
                )))
            };
            if scope.definition.is_some() && managers.is_empty() {
                let prefix = "failed to create manager for existing fields: failed to convert live";
                return unconverted(prefix, &scope.shown(&Value::Null));
            }
            let applied = scope.applied(Some(live), &body.object, managers, by)?;
            if scope.definition.is_some() && applied.0.is_some() {
                return unconverted("failed to convert new", &scope.shown(&body.object));
            }
            Ok(applied)
        });
        let (applied, managers) = applied?;
        self.check_duplicates(request, &body)?;
        let mut applied = applied.unwrap_or_else(|| live.clone());
        super::keep(
            &mut applied["metadata"],
            "managedFields",
            managers::write(&managers).as_ref(),
        );
        Ok(applied)
    }

    /// Returns the entries of an object after a write of its scale. `asked` is the new scale, in place of `live`.
    pub(in super::super) fn manage_scale(
        &self,
        store: &Store,
        now: Now,
        request: &Request<'_>,
        kind: Kind,
        (live, asked, object): (&Value, &Value, &Value),
    ) -> Result<Option<Value>> {
        if !store.keeps_managers() {
            return Ok(object["metadata"].get("managedFields").cloned());
        }
        let managers = of_object(object);
        self.with_scope(store, now, request, (kind, Part::Scale), |scope| {
            let of_scale = if is_apply(request) {
                of_object(asked)
            } else {
                let of_scale = scope.to_scale(&managers);
                let mut asked = asked.clone();
                // Go omits the number 0, so the replicas are removed.
                if let Some(spec) = asked["spec"].as_object_mut() {
                    spec.retain(|_, value| *value != 0);
                }
                match scope.updated(Some(live), &asked, of_scale, &request.manager()) {
                    Ok(of_scale) => of_scale,
                    Err(Refusal::Unknown(unknown)) => return Err(unknown.into()),
                    Err(_) => Managers::new(),
                }
            };
            Ok(managers::write(
                &scope.with_scale(managers, &written(&of_scale)),
            ))
        })
    }
}

/// Returns managers as they are read again: the names of the entries may change.
fn written(managers: &Managers) -> Managers {
    let entries = managers::write(managers).unwrap_or_default();
    managers::read(&entries).unwrap_or_default()
}

impl Scope<'_> {
    /// Returns the names of the path of the replicas in a version, if there is such a version: none, if it has no scale.
    fn replicas(&self, version: &str) -> Option<Vec<String>> {
        let path = |path: &str| parts(path).map(ToOwned::to_owned).collect();
        let Some(definition) = self.definition else {
            return Some(path(".spec.replicas"));
        };
        let (group, version) = version.split_once('/')?;
        let version = definition.version(version)?;
        let scale = version.scale.as_ref();
        let path = || scale.map(|scale| path(&scale.replicas)).unwrap_or_default();
        (group == self.kind.info().group).then(path)
    }

    fn owns_replicas(&self, owned: &Owned) -> Option<Set> {
        let path = self.replicas(&owned.version)?;
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        owned.fields.has_path(&path).then(|| Set::of(&[&path]))
    }

    /// Returns the managers of the replicas.
    fn to_scale(&self, managers: &Managers) -> Managers {
        let owners = managers.iter().filter_map(|(manager, owned)| {
            self.owns_replicas(owned)?;
            let owned = Owned {
                version: self.entry_version().to_owned(),
                fields: Set::of(&[REPLICAS]),
                time: owned.time.clone(),
            };
            Some((manager.clone(), owned))
        });
        written(&owners.collect())
    }

    /// Returns the managers of the object and of its scale. The entry of an update of the object has another version than
    /// that of the scale, so the replicas leave it.
    fn with_scale(&self, managers: Managers, of_scale: &Managers) -> Managers {
        let mut of_scale = of_scale.clone();
        let mut all = Managers::new();
        let times: Vec<_> = managers
            .iter()
            .map(|(manager, owned)| (manager.clone(), owned.time.clone()))
            .collect();
        for (manager, mut owned) in managers {
            if self.replicas(&owned.version).is_none() {
                continue;
            }
            if let Some(replicas) = self.owns_replicas(&owned)
                && of_scale.remove(&manager).is_none()
            {
                owned.fields.remove(&replicas);
            }
            if !owned.fields.is_empty() {
                all.insert(manager, owned);
            }
        }
        let Some(path) = self.replicas(&self.version) else {
            return all;
        };
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        for (manager, owned) in of_scale {
            if owned.fields.has_path(REPLICAS) {
                let time = times.iter().find(|(it, _)| *it == manager);
                let owned = Owned {
                    version: self.version.clone(),
                    fields: Set::of(&[&path]),
                    time: time.and_then(|(_, time)| time.clone()),
                };
                all.insert(manager, owned);
            }
        }
        all
    }
}
