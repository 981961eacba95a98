//! Validation of probes, hooks and restarts.

use super::{
    Release,
    at::{At, Errors},
    containers::{Pod, wrong_port_name},
};

pub const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

/// Validates the hooks and probes of a container that runs with the pod.
pub fn check_running(container: &At<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    if let Some(lifecycle) = container.get("lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(hook) = lifecycle.get(hook) {
                check_handler(&hook, pod, errors);
            }
        }
        if let Some(signal) = lifecycle.get("stopSignal") {
            errors.unknown(&signal);
        }
    }
    for name in PROBES {
        let Some(probe) = container.get(name) else {
            continue;
        };
        check_handler(&probe, pod, errors);
        for field in [
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ] {
            errors.nonnegative(&probe.child(field));
        }
        let grace = probe.child("terminationGracePeriodSeconds");
        if grace.is_there() && grace.number() <= 0 {
            errors.invalid(&grace, "must be greater than 0");
        }
        let threshold = probe.child("successThreshold");
        if name == "readinessProbe" {
            if grace.is_there() {
                errors.invalid(&grace, "must not be set for readinessProbes");
            }
        } else if threshold.number() != 1 {
            errors.invalid(&threshold, "must be 1");
        }
    }
}

/// Validates the action of a probe or a hook.
fn check_handler(of: &At<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let mut is_first = true;
    for name in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let Some(action) = of.get(name) else {
            continue;
        };
        if !std::mem::take(&mut is_first) {
            errors.forbidden(&action.path, "may not specify more than 1 handler type");
            continue;
        }
        match name {
            "exec" => errors.require(&action, &["command"]),
            "sleep" => {
                let grace = pod.spec.child("terminationGracePeriodSeconds").number();
                let seconds = action.child("seconds").number();
                if seconds < 0 || seconds > grace {
                    let why = format!(
                        "must be non-negative and less than terminationGracePeriodSeconds ({grace})"
                    );
                    errors.invalid(&At::new(&action.path, &action.value["seconds"]), &why);
                }
            }
            _ => check_port(&action.child("port"), errors),
        }
        if name == "httpGet" {
            errors.supported(&action.child("scheme"), &["HTTP", "HTTPS"]);
            let headers = action.child("httpHeaders");
            for header in action.list("httpHeaders") {
                let name = At::new(&headers.path, &header.value["name"]);
                let is_known = |c: char| c.is_ascii_alphanumeric() || c == '-';
                if name.is_empty() || !name.text().chars().all(is_known) {
                    errors.invalid(
                        &name,
                        "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for \
                         validation is '[-A-Za-z0-9]+')",
                    );
                }
            }
        }
    }
    if is_first {
        errors.required(of, "must specify a handler type");
    }
}

/// Validates the number or the name of a port.
fn check_port(port: &At<'_>, errors: &mut Errors) {
    if port.value.is_string() {
        for why in wrong_port_name(port.text()) {
            errors.invalid(port, why);
        }
    } else {
        errors.range(port, 1..=65535);
    }
}

/// Validates the restart policy of a container.
pub fn check_restarts(container: &At<'_>, is_init: bool, errors: &mut Errors) {
    let (policy, rules) = (
        container.child("restartPolicy"),
        container.child("restartPolicyRules"),
    );
    if !policy.is_there() && rules.is_empty() {
        return;
    }
    if !rules.is_empty() || policy.text() != "Always" || !is_init {
        errors.since(Release::V1_36, &policy);
    }
    if policy.is_there() {
        errors.supported(&policy, &["Always", "Never", "OnFailure"]);
    } else {
        let why = "must specify restartPolicy when restart rules are used";
        errors.required(&policy, why);
        // The API server stops here for an init container.
        if is_init {
            return;
        }
    }
    for rule in container.list("restartPolicyRules") {
        let actions = ["Restart", "RestartAllContainers"];
        errors.supported(&rule.child("action"), &actions);
        match rule.get("exitCodes") {
            Some(codes) => {
                errors.supported(&codes.child("operator"), &["In", "NotIn"]);
                let values = codes.child("values");
                let count = values.value.as_array().map_or(0, Vec::len);
                errors.legal(count <= 255, &values);
            }
            None => errors.required(&rule.child("exitCodes"), "must be specified"),
        }
    }
    let count = rules.value.as_array().map_or(0, Vec::len);
    errors.legal(count <= 20, &rules);
}
