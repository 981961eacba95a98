//! Validation of volumes (`ValidateVolumes`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    Release,
    at::{At, Errors},
    references::{check_field, check_resource},
    scheduling,
};
use crate::api_server::{metadata, quantity::Quantity};

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const MODES: std::ops::RangeInclusive<i64> = 0..=0o777;
/// Fields that a file may have.
const FILE_PATHS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
/// Sources in the order of their validation, with the required texts and lists.
const SOURCES: [(&str, &[&str]); 30] = [
    ("emptyDir", &[]),
    ("hostPath", &["path"]),
    ("gitRepo", &["repository"]),
    ("gcePersistentDisk", &[]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("secret", &["secretName"]),
    ("nfs", &["server", "path"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("glusterfs", &["endpoints", "path"]),
    ("flocker", &[]),
    ("persistentVolumeClaim", &["claimName"]),
    ("rbd", &["monitors", "image"]),
    ("cinder", &["volumeID"]),
    ("cephfs", &["monitors"]),
    ("quobyte", &[]),
    ("downwardAPI", &[]),
    ("fc", &[]),
    ("flexVolume", &["driver"]),
    ("configMap", &["name"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("storageos", &["volumeName"]),
    ("projected", &[]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("csi", &["driver"]),
    ("ephemeral", &["volumeClaimTemplate"]),
    ("image", &[]),
];

/// Validates the volumes of a pod. Returns the valid ones by name.
pub fn check<'a>(pod: &At<'a>, errors: &mut Errors) -> BTreeMap<&'a str, &'a Value> {
    let mut valid = BTreeMap::new();
    for volume in pod.list("volumes") {
        let before = errors.causes.len();
        check_source(&volume, errors);
        let name = volume.child("name");
        if name.is_empty() {
            errors.required(&name, "");
        } else {
            errors.label(&name);
        }
        if valid.contains_key(name.text()) {
            errors.duplicate(&name.path, name.text());
        }
        if errors.causes.len() == before {
            valid.insert(name.text(), volume.value);
        }
    }
    valid
}

fn check_source(volume: &At<'_>, errors: &mut Errors) {
    let mut is_first = true;
    for (name, required) in SOURCES {
        let Some(source) = volume.get(name) else {
            continue;
        };
        match name {
            "image" => {
                errors.since(Release::V1_36, &source);
                // An older template may keep an empty one.
                if errors.release >= Release::V1_37 {
                    errors.require(&source, &["reference"]);
                }
            }
            // Before 1.34, its metadata have an empty time, with a manager.
            "ephemeral" => errors.since(Release::V1_34, &source),
            _ => {}
        }
        if !std::mem::take(&mut is_first) {
            // As the API server has it.
            let path = match name {
                "cephfs" => "cephFS",
                "downwardAPI" => "downwarAPI",
                name => name,
            };
            let path = format!("{}.{path}", volume.path);
            errors.forbidden(&path, "may not specify more than 1 volume type");
            continue;
        }
        errors.require(&source, required);
        check_details(name, &source, errors);
    }
    if is_first {
        errors.required(volume, "must specify a volume type");
    }
}

/// Validates the values of a source beyond the required ones.
fn check_details(name: &str, source: &At<'_>, errors: &mut Errors) {
    match name {
        "emptyDir" => {
            let limit = source.child("sizeLimit");
            let is_negative = Quantity::of(limit.value).is_some_and(|it| it.is_negative());
            if is_negative {
                let why = "SizeLimit field must be a valid resource quantity";
                errors.forbidden(&limit.path, why);
            }
        }
        "hostPath" if !source.child("path").is_empty() => {
            no_backsteps(&source.child("path"), errors);
            let types = [
                "",
                "BlockDevice",
                "CharDevice",
                "Directory",
                "DirectoryOrCreate",
                "File",
                "FileOrCreate",
                "Socket",
            ];
            errors.supported(&source.child("type"), &types);
        }
        "gitRepo" => descending(&source.child("directory"), errors),
        "gcePersistentDisk" => {
            let disk = At::new(
                &source.path.replace("gcePersistentDisk", "persistentDisk"),
                source.value,
            );
            errors.require(&disk, &["pdName"]);
            check_partition(&disk, errors);
        }
        "awsElasticBlockStore" => check_partition(source, errors),
        "nfs" => {
            let path = source.child("path");
            if !path.text().starts_with('/') {
                let why = "must be an absolute path";
                errors.invalid_as(&path.path, path.text(), why);
            }
        }
        "secret" | "configMap" => {
            check_mode(&source.child("defaultMode"), errors);
            for item in source.list("items") {
                check_item(&item, errors);
            }
        }
        "cinder" => require_secret(source, errors),
        "downwardAPI" => {
            check_mode(&source.child("defaultMode"), errors);
            for file in source.list("items") {
                // As the API server has it, the path has no index.
                check_file(&At::new(&source.path, file.value), errors);
            }
        }
        "azureDisk" => check_azure_disk(source, errors),
        "storageos" => {
            for name in ["volumeName", "volumeNamespace"] {
                let name = source.child(name);
                if !name.is_empty() {
                    errors.label(&name);
                }
            }
            require_secret(source, errors);
        }
        "projected" => {
            check_mode(&source.child("defaultMode"), errors);
            check_projections(source, errors);
        }
        "csi" => {
            let driver = source.child("driver");
            let is_legal = driver.text().len() <= 63 && metadata::is_subdomain(driver.text());
            errors.legal(driver.is_empty() || is_legal, &driver);
            require_secret_named("nodePublishSecretRef", source, errors);
            if let Some(secret) = source.get("nodePublishSecretRef") {
                let name = secret.child("name");
                let is_legal = name.is_empty() || metadata::is_subdomain(name.text());
                errors.legal(is_legal, &name);
            }
        }
        "ephemeral" => {
            if let Some(template) = source.get("volumeClaimTemplate") {
                check_claim(&template, errors);
            }
        }
        "image" => {
            let policy = source.child("pullPolicy");
            errors.supported(&policy, &super::containers::PULL_POLICIES);
        }
        "quobyte" => check_quobyte(source, errors),
        "iscsi" | "flocker" | "fc" | "flexVolume" => {
            errors.legal(is_plain(name, source.value), source);
        }
        _ => {}
    }
}

/// Returns whether a source is valid for sure. Its errors are not imitated.
fn is_plain(name: &str, source: &Value) -> bool {
    let text = |field: &str| source[field].as_str().unwrap_or_default();
    let is_plain = |text: &str| {
        let is_known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        !text.is_empty() && text.chars().all(|c| is_known(c) || matches!(c, '-' | '.'))
    };
    match name {
        "iscsi" => {
            let lun = source["lun"].as_i64().unwrap_or_default();
            let chaps = ["chapAuthDiscovery", "chapAuthSession"];
            let is_name = text("iqn").strip_prefix("iqn.").is_some_and(|rest| {
                let (date, rest) = rest.split_at_checked(8).unwrap_or_default();
                let is_date = date.chars().enumerate().all(|(at, c)| match at {
                    4 => c == '-',
                    7 => c == '.',
                    _ => c.is_ascii_digit(),
                });
                is_date && rest.split(':').all(is_plain) && rest.contains(':')
            });
            // A missing name has its own error.
            (text("iqn").is_empty() || is_name)
                && (0..=255).contains(&lun)
                && source["initiatorName"].is_null()
                && chaps.iter().all(|chap| source[chap] != true)
        }
        "flocker" => {
            let (name, id) = (text("datasetName"), text("datasetUUID"));
            name.is_empty() != id.is_empty() && !name.contains('/')
        }
        "quobyte" => {
            let registry = text("registry").split(',');
            text("registry").is_empty()
                || text("tenant").len() < 65
                    && registry.into_iter().all(|pair| {
                        let pair = pair.split_once(':');
                        pair.is_some_and(|(host, port)| is_plain(host) && is_plain(port))
                    })
        }
        "fc" => {
            let lun = source["lun"].as_i64();
            let has = |list: &str| !source[list].is_null();
            match (has("targetWWNs"), has("wwids")) {
                (true, false) => lun.is_some_and(|lun| (0..=255).contains(&lun)),
                (false, true) => true,
                _ => false,
            }
        }
        _ => {
            let mut options = source["options"].as_object().into_iter().flatten();
            options.all(|(name, _)| {
                let (namespace, _) = name.split_once('/').unwrap_or((name, ""));
                let namespace = format!(".{}", namespace.to_lowercase());
                !namespace.ends_with(".kubernetes.io") && !namespace.ends_with(".k8s.io")
            })
        }
    }
}

fn check_quobyte(source: &At<'_>, errors: &mut Errors) {
    let registry = source.child("registry");
    if registry.is_empty() {
        let why = "must be a host:port pair or multiple pairs separated by commas";
        errors.required(&registry, why);
    }
    errors.require(source, &["volume"]);
    errors.legal(is_plain("quobyte", source.value), source);
}

fn check_partition(source: &At<'_>, errors: &mut Errors) {
    let partition = source.child("partition");
    if !(0..=255).contains(&partition.number()) {
        errors.invalid(&partition, "must be between 1 and 255, inclusive");
    }
}

fn check_azure_disk(disk: &At<'_>, errors: &mut Errors) {
    let caching = ["None", "ReadOnly", "ReadWrite"];
    errors.supported(&disk.child("cachingMode"), &caching);
    let kind = disk.child("kind");
    errors.supported(&kind, &["Dedicated", "Managed", "Shared"]);
    let (prefix, form) = match kind.text() {
        "Managed" => (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        ),
        _ => (
            "https://",
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
        ),
    };
    let uri = disk.child("diskURI");
    if !uri.text().starts_with(prefix) {
        errors.supported(&uri, &[form]);
    }
}

fn require_secret(source: &At<'_>, errors: &mut Errors) {
    require_secret_named("secretRef", source, errors);
}

fn require_secret_named(field: &str, source: &At<'_>, errors: &mut Errors) {
    if let Some(secret) = source.get(field) {
        errors.require(&secret, &["name"]);
    }
}

fn check_mode(mode: &At<'_>, errors: &mut Errors) {
    if mode.is_there() && !MODES.contains(&mode.number()) {
        errors.invalid(mode, MODE);
    }
}

/// Validates a key with its path.
fn check_item(item: &At<'_>, errors: &mut Errors) {
    errors.require(item, &["key", "path"]);
    not_reserved(&item.child("path"), errors);
    check_mode(&item.child("mode"), errors);
}

/// Validates a file from fields of the pod.
fn check_file(file: &At<'_>, errors: &mut Errors) {
    errors.require(file, &["path"]);
    not_reserved(&file.child("path"), errors);
    match (file.get("fieldRef"), file.get("resourceFieldRef")) {
        (Some(field), other) => {
            check_field(&field, &FILE_PATHS, errors);
            if other.is_some() {
                let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.invalid_as(&file.path, "resource", why);
            }
        }
        (None, Some(resource)) => check_resource(&resource, true, errors),
        (None, None) => errors.required(file, "one of fieldRef and resourceFieldRef is required"),
    }
    check_mode(&file.child("mode"), errors);
}

fn check_projections(volume: &At<'_>, errors: &mut Errors) {
    let mut paths = BTreeSet::new();
    for source in volume.list("sources") {
        let mut count = 0;
        for name in ["secret", "configMap"] {
            let Some(projection) = source.get(name) else {
                continue;
            };
            count += 1;
            errors.require(&projection, &["name"]);
            for item in projection.list("items") {
                check_item(&item, errors);
                let path = item.child("path");
                if !path.is_empty() && !paths.insert(path.text()) {
                    let name = projection.child("name");
                    errors.invalid_as(&volume.path, name.text(), "conflicting duplicate paths");
                }
            }
        }
        if let Some(projection) = source.get("downwardAPI") {
            count += 1;
            for file in projection.list("items") {
                check_file(&At::new(&projection.path, file.value), errors);
                let path = file.child("path");
                if !path.is_empty() && !paths.insert(path.text()) {
                    errors.invalid_as(&volume.path, path.text(), "conflicting duplicate paths");
                }
            }
        }
        if let Some(token) = source.get("serviceAccountToken") {
            count += 1;
            let seconds = token.child("expirationSeconds");
            if seconds.number() < 600 {
                errors.invalid(&seconds, "may not specify a duration less than 10 minutes");
            }
            if seconds.number() > 1 << 32 {
                errors.invalid(
                    &seconds,
                    "may not specify a duration larger than 2^32 seconds",
                );
            }
            // As the API server has it, the path has no source.
            let path = At::new(&format!("{}.path", volume.path), &token.value["path"]);
            if path.is_empty() {
                errors.required(&path, "");
            } else {
                not_reserved(&path, errors);
            }
        }
        for name in ["clusterTrustBundle", "podCertificate"] {
            if let Some(projection) = source.get(name) {
                errors.unknown(&projection);
            }
        }
        if count > 1 {
            let why = "may not specify more than 1 volume type per source";
            errors.forbidden(&source.path, why);
        }
    }
}

/// Validates the template of a claim.
fn check_claim(template: &At<'_>, errors: &mut Errors) {
    let meta = template.child("metadata");
    for (field, value) in meta.value.as_object().into_iter().flatten() {
        let is_legal = match field.as_str() {
            "annotations" => metadata::check_annotations("", value).is_empty(),
            "labels" => true,
            _ => false,
        };
        errors.legal(is_legal, &meta.child(field));
    }
    let labels = meta.child("labels");
    errors
        .causes
        .extend(metadata::check_labels(&labels.path, labels.value));
    let spec = template.child("spec");
    let modes = spec.child("accessModes");
    if modes.is_empty() {
        errors.required(&modes, "at least 1 access mode is required");
    }
    scheduling::check_selector(&spec.child("selector"), errors);
    let (mut has_pod, mut has_other) = (false, false);
    for mode in spec.list("accessModes") {
        let known = [
            "ReadOnlyMany",
            "ReadWriteMany",
            "ReadWriteOnce",
            "ReadWriteOncePod",
        ];
        errors.supported(&At::new(&modes.path, mode.value), &known);
        let is_pod = mode.text() == "ReadWriteOncePod";
        has_pod |= is_pod;
        has_other |= !is_pod && known.contains(&mode.text());
    }
    if has_pod && has_other {
        let why = "may not use ReadWriteOncePod with other access modes";
        errors.forbidden(&modes.path, why);
    }
    let asked = spec.child("resources").child("requests").child("storage");
    let storage = At::new(&format!("{}.resources[storage]", spec.path), asked.value);
    match Quantity::of(storage.value) {
        None => errors.required(&storage, ""),
        Some(quantity) if !quantity.is_positive() => {
            errors.invalid(&storage, "must be greater than zero");
        }
        Some(_) => {}
    }
    for class in ["storageClassName", "volumeAttributesClassName"] {
        let class = spec.child(class);
        if !class.is_empty() {
            errors.subdomain(&class);
        }
    }
    errors.supported(&spec.child("volumeMode"), &["Block", "Filesystem"]);
    for source in ["dataSource", "dataSourceRef"] {
        if let Some(source) = spec.get(source) {
            errors.unknown(&source);
        }
    }
}

/// Requires a relative path without `..` (`validateLocalDescendingPath`).
pub fn descending(path: &At<'_>, errors: &mut Errors) {
    if path.text().starts_with('/') {
        errors.invalid(path, "must be a relative path");
    }
    no_backsteps(path, errors);
}

pub fn no_backsteps(path: &At<'_>, errors: &mut Errors) {
    if has_backsteps(path.text()) {
        errors.invalid(path, "must not contain '..'");
    }
}

pub fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

/// Requires a relative path that does not begin with `..` (`ValidateLocalNonReservedPath`).
fn not_reserved(path: &At<'_>, errors: &mut Errors) {
    descending(path, errors);
    if path.text().starts_with("..") && !path.text().starts_with("../") {
        errors.invalid(path, "must not start with '..'");
    }
}
