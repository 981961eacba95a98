//! Validation of the mounts and devices of a container.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    at::{At, Errors},
    containers::Pod,
    volumes::{descending, has_backsteps},
};

pub fn check_mounts(container: &At<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let mounts = container.child("volumeMounts");
    let mut paths = BTreeSet::new();
    for mount in container.list("volumeMounts") {
        let (name, path) = (mount.child("name"), mount.child("mountPath"));
        errors.require(&mount, &["name"]);
        if !pod.volumes.contains_key(name.text()) {
            errors.not_found(&name, "");
        }
        errors.require(&mount, &["mountPath"]);
        if !paths.insert(path.text()) {
            errors.invalid(&path, "must be unique");
        }
        let mut devices = container.list("volumeDevices");
        if devices.any(|device| device.child("name").text() == name.text()) {
            errors.invalid(&name, "must not already exist in volumeDevices");
        }
        if has_path(container, ("volumeDevices", "devicePath"), path.text()) {
            errors.invalid(&path, "must not already exist as a path in volumeDevices");
        }
        // As the API server has it, these paths have no index.
        let part = |field: &str| At::new(&format!("{}.{field}", mounts.path), &mount.value[field]);
        descending(&part("subPath"), errors);
        let pattern = mount.child("subPathExpr");
        if !pattern.is_empty() && !mount.child("subPath").is_empty() {
            errors.invalid(&pattern, "subPathExpr and subPath are mutually exclusive");
        }
        descending(&part("subPathExpr"), errors);
        let propagation = part("mountPropagation");
        if propagation.is_there() {
            let known = ["Bidirectional", "HostToContainer", "None"];
            errors.supported(&propagation, &known);
            let is_privileged = container.value["securityContext"]["privileged"] == true;
            if propagation.text() == "Bidirectional" && !is_privileged {
                errors.forbidden(
                    &propagation.path,
                    "Bidirectional mount propagation is available only to privileged containers",
                );
            }
        }
        let recursive = part("recursiveReadOnly");
        if recursive.is_there() {
            errors.supported(&recursive, &["Disabled", "Enabled", "IfPossible"]);
        }
        if matches!(recursive.text(), "Enabled" | "IfPossible") {
            if mount.value["readOnly"] != true {
                let why = "may only be specified when readOnly is true";
                errors.forbidden(&recursive.path, why);
            }
            if propagation.is_there() && propagation.text() != "None" {
                let why = "may only be specified when mountPropagation is None or not specified";
                errors.forbidden(&recursive.path, why);
            }
        }
    }
}

/// Returns whether the last element of each name in a list has this path.
fn has_path(container: &At<'_>, (list, field): (&str, &str), path: &str) -> bool {
    let all = container.list(list);
    let by_name: BTreeMap<_, _> = all
        .map(|it| (it.child("name").text(), it.child(field).text()))
        .collect();
    by_name.values().any(|it| *it == path)
}

pub fn check_devices(container: &At<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for device in container.list("volumeDevices") {
        let (name, path) = (device.child("name"), device.child("devicePath"));
        errors.require(&device, &["name"]);
        if names.contains(name.text()) {
            errors.invalid(&name, "must be unique");
        }
        match pod.volumes.get(name.text()) {
            Some(volume)
                if volume["persistentVolumeClaim"].is_null() && volume["ephemeral"].is_null() =>
            {
                errors.invalid(
                    &name,
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
                );
            }
            Some(_) => {}
            None => errors.not_found(&name, ""),
        }
        errors.require(&device, &["devicePath"]);
        if paths.contains(path.text()) {
            errors.invalid(&path, "must be unique");
        }
        if has_backsteps(path.text()) {
            errors.invalid(&path, "can not contain backsteps ('..')");
        } else {
            paths.insert(path.text());
        }
        let mut mounts = container.list("volumeMounts");
        if mounts.any(|mount| mount.child("name").text() == name.text()) {
            errors.invalid(&name, "must not already exist in volumeMounts");
        }
        if has_path(container, ("volumeMounts", "mountPath"), path.text()) {
            errors.invalid(&path, "must not already exist as a path in volumeMounts");
        }
        if !name.is_empty() {
            names.insert(name.text());
        }
    }
}
