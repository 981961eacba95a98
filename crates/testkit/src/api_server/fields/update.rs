//! The managers after a write (`structured-merge-diff/merge/update.go`, and `util/managedfields/internal`).

use std::{borrow::Cow, collections::BTreeMap, sync::LazyLock};

use serde_json::{Value, json};

use super::{
    super::{
        schema::go,
        status::{Refusal, Result},
    },
    check,
    compare::{Comparison, is_same},
    managers::{self, Manager, Managers, Operation, Owned},
    merge,
    reconcile::reconciled,
    scope::{Scope, failed},
    set::Set,
    text,
};

/// Manager of the fields before the first apply.
const BEFORE: &str = "before-first-apply";
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Largest size of all annotations.
const MAX_ANNOTATIONS: usize = 256 << 10;

/// Fields of other managers that a manager applies with other values.
type Conflicts = BTreeMap<Manager, Set>;

/// Why an apply fails.
enum Failure {
    Conflicts(Conflicts),
    Refused(Refusal),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Conflicts(conflicts) => conflict(&conflicts),
            Failure::Refused(refusal) => refusal,
        }
    }
}

/// Fields that have no managers.
static UNMANAGED: LazyLock<Set> = LazyLock::new(|| {
    let of_metadata = |name| ["metadata", name];
    let metadata = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ]
    .map(of_metadata);
    let mut paths: Vec<&[&str]> = vec![&["apiVersion"], &["kind"], &["metadata"]];
    paths.extend(metadata.iter().map(<[&str; 2]>::as_slice));
    Set::of(&paths)
});

impl Scope<'_> {
    fn manager(&self, name: &str, operation: Operation) -> Manager {
        let version = match operation {
            Operation::Apply => "",
            Operation::Update => self.entry_version(),
        };
        Manager {
            name: if name.is_empty() { "unknown" } else { name }.to_owned(),
            operation,
            version: version.to_owned(),
            subresource: self.subresource().to_owned(),
        }
    }

    /// Returns the managers after a write that is no apply. `new` is the object as the client wants it.
    pub fn updated(
        &self,
        live: Option<&Value>,
        new: &Value,
        managers: Managers,
        name: &str,
    ) -> Result<Managers> {
        // The managers of an existing object without managers stay unknown until the first apply.
        if managers.is_empty() && live.is_some() {
            return Ok(managers);
        }
        let live = live.map_or_else(|| Cow::Owned(self.empty()), Cow::Borrowed);
        self.taken(&live, new, managers, name)
    }

    /// Returns the managers after a manager has changed fields.
    fn taken(&self, live: &Value, new: &Value, managers: Managers, name: &str) -> Result<Managers> {
        for (object, what) in [(new, "new"), (live, "live")] {
            check::validate(self.own()?, object, true).map_err(|words| {
                let object = self.shown(object);
                failed(&format!(
                    "failed to convert {what} object ({object}) to smd typed: {words}"
                ))
            })?;
        }
        let managers = self.reconciled(live, managers)?;
        let (mut managers, compared) = self.reassigned(live, new, managers, None)?;
        let Comparison {
            modified, added, ..
        } = compared;
        let fields = modified.union(added).without(&UNMANAGED);
        if !fields.is_empty() {
            let manager = self.manager(name, Operation::Update);
            let owned = managers.entry(manager).or_insert_with(|| Owned {
                version: String::new(),
                fields: Set::default(),
                time: None,
            });
            self.entry_version().clone_into(&mut owned.version);
            owned.fields = std::mem::take(&mut owned.fields).union(fields);
            owned.time = Some(self.now.clone());
        }
        managers::cap(&mut managers);
        Ok(managers)
    }

    /// Adapts the fields to types that have become atomic since.
    fn reconciled(&self, live: &Value, managers: Managers) -> Result<Managers> {
        let mut all = Managers::new();
        for (manager, mut owned) in managers {
            if self.convert(live, &owned.version)?.is_none() {
                continue;
            }
            if let Some(of) = self.of(&owned.version)
                && let Some(fields) = reconciled(&owned.fields, of)
            {
                owned.fields = fields;
            }
            all.insert(manager, owned);
        }
        Ok(all)
    }

    /// Takes changed and removed fields from all managers. With an applier, who is left out, the others keep their fields, and it
    /// fails. Returns the difference in the version of the request as well.
    fn reassigned(
        &self,
        live: &Value,
        new: &Value,
        mut managers: Managers,
        applier: Option<(&Manager, bool)>,
    ) -> std::result::Result<(Managers, Comparison), Failure> {
        let compared = |old: &Value, new: &Value, version: &str| -> Result<Comparison> {
            let of = self
                .of(version)
                .ok_or_else(|| failed("no corresponding type"))?;
            let mut compared = Comparison::of(of, old, new);
            if let Some(ignored) = self.ignored(version) {
                compared.ignore(ignored);
            }
            Ok(compared)
        };
        let own = self.entry_version();
        let mut versions = BTreeMap::from([(own.to_owned(), compared(live, new, own)?)]);
        let mut conflicts = Conflicts::new();
        let mut gone = Vec::new();
        for (manager, owned) in &managers {
            if applier.is_some_and(|(applier, _)| applier == manager) {
                continue;
            }
            let version = &owned.version;
            if !versions.contains_key(version) {
                let old = self.convert_for(live, version, "old object");
                let new = self.convert_for(new, version, "new object");
                let (Some(old), Some(new)) = (old?, new?) else {
                    gone.push(manager.clone());
                    continue;
                };
                versions.insert(version.clone(), compared(&old, &new, version)?);
            }
            let Some(compared) = versions.get(version) else {
                continue;
            };
            let mut taken = owned.fields.intersection(&compared.modified);
            taken = taken.union(owned.fields.intersection(&compared.added));
            if !taken.is_empty() {
                conflicts.insert(manager.clone(), taken);
            }
        }
        for manager in &gone {
            managers.remove(manager);
        }
        if !conflicts.is_empty() && applier.is_some_and(|(_, force)| !force) {
            return Err(Failure::Conflicts(conflicts));
        }
        for (manager, owned) in &mut managers {
            if let Some(taken) = conflicts.get(manager) {
                owned.fields.remove(taken);
            }
            let is_applier = applier.is_some_and(|(applier, _)| applier == manager);
            if let Some(compared) = versions.get(&owned.version).filter(|_| !is_applier) {
                owned.fields.remove(&compared.removed);
            }
        }
        managers.retain(|_, owned| !owned.fields.is_empty());
        let compared = versions.remove(own).unwrap_or_default();
        Ok((managers, compared))
    }

    /// Applies a patch. Returns the new object, unless it is the same, and the managers.
    pub fn applied(
        &self,
        live: Option<&Value>,
        patch: &Value,
        managers: Managers,
        (name, force): (&str, bool),
    ) -> Result<(Option<Value>, Managers)> {
        let empty = self.empty();
        let live = live.unwrap_or(&empty);
        let managers = if managers.is_empty() {
            let managers = self.taken(&empty, live, managers, BEFORE);
            managers.map_err(|refusal| {
                prefixed("failed to create manager for existing fields", refusal)
            })?
        } else {
            managers
        };
        if patch["metadata"]["managedFields"].is_array() {
            return Err(Refusal::bad_request("metadata.managedFields must be nil"));
        }
        check::validate(self.own()?, patch, false).map_err(|words| {
            let patch = self.shown(patch);
            failed(&format!(
                "failed to create typed patch object ({patch}): {words}"
            ))
        })?;
        check::validate(self.own()?, live, true).map_err(|words| {
            let live = self.shown(live);
            failed(&format!(
                "failed to create typed live object ({live}): {words}"
            ))
        })?;
        let apply = |force| self.apply(live, patch, managers.clone(), (name, force));
        let mut applied = match apply(force) {
            // An object of the client-side `kubectl apply` moves to the server-side `kubectl apply`.
            Err(Failure::Conflicts(mut conflicts)) if name == KUBECTL => {
                let Some(allowed) = self.last_applied(live) else {
                    return Err(conflict(&conflicts));
                };
                for fields in conflicts.values_mut() {
                    fields.remove(&allowed);
                }
                conflicts.retain(|_, fields| !fields.is_empty());
                if !conflicts.is_empty() {
                    return Err(conflict(&conflicts));
                }
                apply(true)?
            }
            applied => applied?,
        };
        let annotations = |object: &Value| {
            let last = &object["metadata"]["annotations"][LAST_APPLIED];
            last.as_str().is_some_and(|last| !last.is_empty())
        };
        if name == KUBECTL && annotations(applied.0.as_ref().unwrap_or(live)) {
            let mut last = patch.clone();
            let annotations = last.pointer_mut("/metadata/annotations");
            if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
                annotations.remove(LAST_APPLIED);
            }
            let last = go::json(&last) + "\n";
            let mut object = applied.0.unwrap_or_else(|| live.clone());
            if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
                annotations.insert(LAST_APPLIED.to_owned(), last.into());
                let size = annotations
                    .iter()
                    .map(|(name, value)| name.len() + value.as_str().unwrap_or_default().len());
                if size.sum::<usize>() > MAX_ANNOTATIONS {
                    annotations.remove(LAST_APPLIED);
                }
            }
            applied.0 = Some(object);
        }
        Ok(applied)
    }

    /// Formats the name and the kind of an object in an error.
    pub fn shown(&self, object: &Value) -> String {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let (version, kind) = (self.entry_version(), self.kind_name());
        let group = if version.contains('/') { "" } else { "/" };
        let (namespace, name) = (text("namespace"), text("name"));
        format!("{namespace}/{name}; {group}{version}, Kind={kind}")
    }

    fn apply(
        &self,
        live: &Value,
        patch: &Value,
        managers: Managers,
        (name, force): (&str, bool),
    ) -> std::result::Result<(Option<Value>, Managers), Failure> {
        let of = self.own()?;
        let mut managers = self.reconciled(live, managers)?;
        let merged = merge::merged(of, live, patch);
        let manager = self.manager(name, Operation::Apply);
        let last = managers.remove(&manager);
        let mut fields = check::fields_of(of, patch);
        if let Some(ignored) = self.ignored(self.entry_version()) {
            fields.remove_all(ignored);
        }
        let owned = Owned {
            version: self.entry_version().to_owned(),
            fields,
            time: last.as_ref().and_then(|last| last.time.clone()),
        };
        managers.insert(manager.clone(), owned);
        let new = match last.filter(|last| !last.fields.is_empty()) {
            Some(last) => self
                .pruned(merged, &managers, &last)
                .map_err(|refusal| prefixed("failed to prune fields", refusal))?,
            None => merged,
        };
        let (mut managers, _) = self.reassigned(live, &new, managers, Some((&manager, force)))?;
        let is_new = !is_same(live, &new);
        if let Some(owned) = managers.get_mut(&manager) {
            owned.fields.remove(&UNMANAGED);
            if is_new {
                owned.time = Some(self.now.clone());
            }
            if owned.fields.is_empty() {
                managers.remove(&manager);
            }
        }
        Ok((is_new.then_some(new), managers))
    }

    fn convert_for<'v>(
        &self,
        object: &'v Value,
        version: &str,
        what: &str,
    ) -> Result<Option<Cow<'v, Value>>> {
        let converted = self.convert(object, version);
        converted.map_err(|refusal| prefixed(&format!("failed to convert {what}"), refusal))
    }

    /// Removes the fields of the manager's last apply that no manager owns now.
    fn pruned(&self, merged: Value, managers: &Managers, last: &Owned) -> Result<Value> {
        let version = &last.version;
        let old = self.convert_for(&merged, version, "merged object to last applied version")?;
        let (Some(old), Some(of)) = (old, self.of(version)) else {
            return Ok(merged);
        };
        let last_named = last.fields.with_named(of);
        let mut pruned = merge::without(of, &old, &last_named);
        let mut owned: BTreeMap<&str, Set> = BTreeMap::new();
        for other in managers.values() {
            let fields = owned.entry(&other.version).or_default();
            *fields = std::mem::take(fields).union(other.fields.clone());
        }
        // The version of the last apply first: the conversion may need what it has.
        let first = owned.remove_entry(version.as_str());
        let mut all = Value::clone(&old);
        for (version, fields) in first.into_iter().chain(owned) {
            let Some(of) = self.of(version) else {
                continue;
            };
            let owned_items = |refusal| prefixed("failed add back owned items", refusal);
            let what = |what| format!("{what} object at version {version}");
            let whole = self.convert_for(&all, version, &what("merged"));
            let rest = self.convert_for(&pruned, version, &what("pruned"));
            let (Some(whole), Some(rest)) =
                (whole.map_err(owned_items)?, rest.map_err(owned_items)?)
            else {
                continue;
            };
            let whole = whole.into_owned();
            let kept = check::fields_of(of, &rest)
                .with_named(of)
                .union(fields.with_named(of));
            let gone = check::fields_of(of, &whole).with_named(of).without(&kept);
            pruned = merge::without(of, &whole, &gone);
            all = whole;
        }
        // Fields that others own indirectly stay as well.
        let rest = self.convert_for(&pruned, version, "pruned object to last applied version");
        let rest = rest.map_err(|refusal| prefixed("failed add back dangling items", refusal));
        let Some(rest) = rest? else {
            return Ok(merged);
        };
        let gone = check::fields_of(of, &old).with_named(of);
        let gone = gone.without(&check::fields_of(of, &rest).with_named(of));
        let pruned = merge::without(of, &old, &gone.intersection(&last_named));
        let pruned = self
            .convert(&pruned, self.entry_version())?
            .map(Cow::into_owned);
        Ok(pruned.unwrap_or(merged))
    }

    /// Returns the fields of the last client-side `kubectl apply` that still have its values.
    fn last_applied(&self, live: &Value) -> Option<Set> {
        let last = live["metadata"]["annotations"][LAST_APPLIED].as_str()?;
        let last: Value = serde_json::from_str(last).ok()?;
        let of = self.own().ok()?;
        let is_valid = |object: &Value| check::validate(of, object, false).is_ok();
        if last["apiVersion"] != self.entry_version() || !is_valid(&last) || !is_valid(live) {
            return None;
        }
        let compared = Comparison::of(of, &last, live);
        let mut fields = check::fields_of(of, &last);
        for other in [compared.modified, compared.added, compared.removed] {
            fields.remove(&other);
        }
        Some(fields)
    }
}

/// Prefixes the message of an error in the API server's own work.
fn prefixed(prefix: &str, refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Status(status) if status["code"] == 500 => {
            let words = status["message"].as_str().unwrap_or_default();
            failed(&format!("{prefix}: {words}"))
        }
        other => other,
    }
}

/// Returns the error for conflicts.
fn conflict(conflicts: &Conflicts) -> Refusal {
    let mut causes = Vec::new();
    let mut lines = Vec::new();
    let mut last = String::new();
    for (manager, fields) in conflicts {
        let manager = manager.shown();
        lines.push(format!("conflicts with {manager}:"));
        fields.paths(&mut Vec::new(), &mut |path| {
            let field = text::path(path);
            lines.push(format!("- {field}"));
            let words = format!("conflict with {manager}");
            causes.push(
                json!({ "reason": "FieldManagerConflict", "message": words, "field": field }),
            );
            last = format!("{words}: {field}");
        });
    }
    let words = match causes.len() {
        1 => format!("Apply failed with 1 conflict: {last}"),
        count => format!("Apply failed with {count} conflicts: {}", lines.join("\n")),
    };
    Refusal::new(409, "Conflict", &words, Some(json!({ "causes": causes })))
}
