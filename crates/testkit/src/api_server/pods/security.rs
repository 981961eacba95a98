//! Validation of the security contexts of pods and containers.

use std::collections::BTreeSet;

use super::{
    Release,
    at::{At, Errors},
    volumes::descending,
};

const IDS: std::ops::RangeInclusive<i64> = 0..=i32::MAX as i64;
const PROFILES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

/// Validates the security context of a pod.
pub fn check_pod(spec: &At<'_>, errors: &mut Errors) {
    let context = spec.child("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        errors.range(&context.child(field), IDS);
    }
    for group in context.list("supplementalGroups") {
        errors.range(&group, IDS);
    }
    let is = |field: &str| spec.value[field] == true;
    if is("shareProcessNamespace") && is("hostPID") {
        let shared = At::new(
            &format!("{}.shareProcessNamespace", context.path),
            &spec.value["shareProcessNamespace"],
        );
        errors.legal(errors.release <= Release::V1_36, &shared);
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid(&shared, why);
    }
    let mut names = BTreeSet::new();
    for sysctl in context.list("sysctls") {
        let name = sysctl.child("name");
        if name.is_empty() {
            errors.required(&name, "");
        } else if !is_sysctl(name.text()) {
            errors.invalid(
                &name,
                "must have at most 253 characters and match regex \
                 ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
            );
        } else if names.contains(name.text()) {
            errors.duplicate(&name.path, name.text());
        }
        names.insert(name.text());
        errors.legal(!is("hostNetwork") && !is("hostIPC"), &sysctl);
    }
    for (field, texts) in [
        ("fsGroupChangePolicy", ["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", ["Merge", "Strict"]),
    ] {
        if let Some(policy) = context.get(field) {
            errors.supported(&policy, &texts);
        }
    }
    if let Some(policy) = context.get("seLinuxChangePolicy") {
        // Before 1.37, it depends on the former policy of the template whether there is another one.
        let is_known = policy.text() == "Recursive" || errors.release >= Release::V1_37;
        errors.legal(is_known, &policy);
        errors.supported(&policy, &["MountOption", "Recursive"]);
    }
    check_profiles(&context, errors);
    if is("hostUsers") || !spec.child("hostUsers").is_there() {
        return;
    }
    for (field, name) in [
        ("hostNetwork", "hostNetwork"),
        ("hostPID", "HostPID"),
        ("hostIPC", "HostIPC"),
    ] {
        if is(field) {
            let path = format!("{}.{name}", spec.path);
            errors.forbidden(&path, "when `hostUsers` is false");
        }
    }
    for container in spec.list("initContainers").chain(spec.list("containers")) {
        let devices = container.child("volumeDevices");
        if !devices.is_empty() && errors.release >= Release::V1_34 {
            errors.forbidden(&devices.path, "when `hostUsers` is false");
        }
    }
}

/// Validates the security context of a container. A privileged one is allowed, as in most clusters.
pub fn check_container(container: &At<'_>, spec: &At<'_>, errors: &mut Errors) {
    let Some(context) = container.get("securityContext") else {
        return;
    };
    for field in ["runAsUser", "runAsGroup"] {
        errors.range(&context.child(field), IDS);
    }
    if let Some(mount) = context.get("procMount") {
        errors.supported(&mount, &["Default", "Unmasked"]);
        if mount.text() == "Unmasked" && spec.value["hostUsers"] != false {
            errors.invalid(&mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    if context.value["allowPrivilegeEscalation"] == false {
        // The error shows Go's fields of the context.
        let mut added = At::new("", &context.value["capabilities"]).list("add");
        let is_admin = added.any(|it| it.text() == "CAP_SYS_ADMIN");
        errors.legal(context.value["privileged"] != true && !is_admin, &context);
    }
    check_profiles(&context, errors);
}

/// Validates the profiles of seccomp and `AppArmor`.
fn check_profiles(context: &At<'_>, errors: &mut Errors) {
    for (field, what) in [
        ("seccompProfile", "seccomp"),
        ("appArmorProfile", "AppArmor"),
    ] {
        let Some(profile) = context.get(field) else {
            continue;
        };
        let (of, file) = (profile.child("type"), profile.child("localhostProfile"));
        if of.is_empty() {
            let why = format!("type is required when {field} is set");
            errors.required(&of, &why);
        } else {
            errors.supported(&of, &PROFILES);
        }
        if of.text() != "Localhost" {
            // The error for seccomp shows Go's fields of the profile.
            errors.legal(!file.is_there() || what != "seccomp", &profile);
            let is_known = matches!(of.text(), "RuntimeDefault" | "Unconfined");
            if file.is_there() && what == "AppArmor" && is_known {
                errors.invalid(&file, "can only be set when AppArmor type is Localhost");
            }
            continue;
        }
        let text = file.text();
        let is_required = !file.is_there() || what == "AppArmor" && text.is_empty();
        if is_required {
            let why = format!("must be set when {what} type is Localhost");
            errors.required(&file, &why);
        } else if what == "seccomp" {
            descending(&file, errors);
        } else if text.trim() != text {
            errors.invalid(&file, "must not be padded with whitespace");
        }
        errors.legal(text.len() <= 4095, &file);
    }
    if let Some(windows) = context.get("windowsOptions") {
        errors.unknown(&windows);
    }
}

fn is_sysctl(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        part.starts_with(is_edge)
            && part.ends_with(is_edge)
            && part.chars().all(|c| is_edge(c) || matches!(c, '-' | '_'))
    };
    name.len() <= 253 && name.split(['.', '/']).all(is_part)
}
