//! Defaults and validation of Services that select pods, with a cluster IP or headless. Other Services are not supported.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    metadata,
    pods::{PROTOCOLS, default, known, legal, one_of, wrong_port_name},
    request::Unknown,
    status::{Cause, Result},
    strategy::keep,
};

/// Fields that the API server sets at the creation of a Service.
const ADDRESS: [&str; 4] = ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"];

/// Sets the defaults of the API server. Fails for fields with unknown defaults, instead of guessing.
pub fn fill(object: &mut Value) -> Result<()> {
    let spec = &mut object["spec"];
    // Go omits an empty text.
    if spec["clusterIP"] == "" {
        keep(spec, "clusterIP", None);
    }
    let own = [
        "selector",
        "ports",
        "type",
        "sessionAffinity",
        "internalTrafficPolicy",
    ];
    let mut fields = spec.as_object().into_iter().flatten();
    let is_known = |field: &str| own.contains(&field) || ADDRESS.contains(&field);
    if let Some((field, _)) = fields.find(|(field, _)| !is_known(field)) {
        return Err(Unknown(format!("{field} in a Service's spec")).into());
    }
    for (field, value) in [
        ("sessionAffinity", "None"),
        ("type", "ClusterIP"),
        ("internalTrafficPolicy", "Cluster"),
    ] {
        if spec[field].is_null() {
            spec[field] = value.into();
        }
        if spec[field] != value {
            return Err(Unknown(format!("{field} {} of a Service", spec[field])).into());
        }
    }
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    let mut seen = BTreeSet::new();
    for port in ports.into_iter().flatten() {
        let fields = ["name", "protocol", "port", "targetPort"];
        known(port, "a port of a Service", &fields)?;
        if port["name"] == "" {
            keep(port, "name", None);
        }
        default(port, "protocol", json!("TCP"));
        one_of(port, "protocol", &PROTOCOLS)?;
        let number = port["port"].clone();
        if port["targetPort"] == 0 {
            port["targetPort"] = number.clone();
        }
        default(port, "targetPort", number);
        let (name, target) = (&port["name"], &port["targetPort"]);
        let is_legal = name.as_str().is_none_or(metadata::is_label)
            && target
                .as_str()
                .is_none_or(|it| wrong_port_name(it).is_empty())
            && seen.insert(format!("{}/{}", port["port"], port["protocol"]))
            && (name.is_null() || seen.insert(name.to_string()));
        legal(is_legal, "the port", port)?;
    }
    Ok(())
}

/// Assigns the cluster IP. Fails if the client wants an address, which the API server may have in use.
pub fn prepare_new(object: &mut Value) -> Result<()> {
    let spec = &mut object["spec"];
    let (asked, selector) = (&spec["clusterIP"], spec["selector"].as_object());
    let selects = selector.is_some_and(|all| !all.is_empty());
    // A headless Service has no cluster IP. Without a selector, it may have two families.
    let ip = match asked.as_str() {
        Some("None") if selects => "None",
        None if spec["clusterIPs"].is_null() => "10.96.0.1",
        _ => return Err(Unknown(format!("the address of a new Service {spec}")).into()),
    };
    let address = [
        json!(ip),
        json!([ip]),
        json!(["IPv4"]),
        json!("SingleStack"),
    ];
    for (field, value) in ADDRESS.into_iter().zip(address) {
        if !spec[field].is_null() && spec[field] != value {
            return Err(Unknown(format!("{field} {} of a new Service", spec[field])).into());
        }
        spec[field] = value;
    }
    object["status"] = json!({ "loadBalancer": {} });
    Ok(())
}

/// Keeps the cluster IP, unless the client wants another one (`patchAllocatedValues` and `normalizeClusterIPs`).
pub fn prepare_change(new: &mut Value, old: &Value) {
    let (spec, was) = (&mut new["spec"], &old["spec"]);
    for field in ADDRESS {
        if spec[field].is_null() {
            keep(spec, field, was.get(field));
        }
    }
    // The list follows the address.
    if spec["clusterIP"] != was["clusterIP"] && spec["clusterIPs"] == was["clusterIPs"] {
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
    keep(new, "status", old.get("status"));
}

/// Validates the address of a Service that replaces `old`.
pub fn check_address(new: &Value, old: &Value) -> Result<Vec<Cause>> {
    let (spec, was) = (&new["spec"], &old["spec"]);
    if ADDRESS.iter().all(|field| spec[field] == was[field]) {
        return Ok(Vec::new());
    }
    let is_address = |ip: &str| ip == "None" || ip.parse::<std::net::Ipv4Addr>().is_ok();
    // Go also reads numbers with leading zeros.
    let is_no_address =
        |ip: &str| ip.contains(|c: char| !c.is_ascii_hexdigit() && !".:".contains(c));
    let ip = spec["clusterIP"].as_str().unwrap_or_default();
    let is_wrong = !is_address(ip) && is_no_address(ip);
    let families = &ADDRESS[2..];
    if !is_address(ip) && !is_wrong
        || spec["clusterIPs"] != json!([ip])
        || families.iter().any(|field| spec[field] != was[field])
    {
        let address = ADDRESS.map(|field| spec[field].to_string()).join(" ");
        return Err(Unknown(format!("the address {address} of a Service")).into());
    }
    let field = "spec.clusterIPs[0]";
    Ok(vec![if is_wrong {
        let why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        Cause::invalid(field, json!(ip), why)
    } else {
        Cause::invalid(field, &spec["clusterIPs"], "may not change once set")
    }])
}

/// Validates a Service.
pub fn check(object: &Value) -> Vec<Cause> {
    let (name, spec) = (&object["metadata"]["name"], &object["spec"]);
    let mut causes = metadata::check_labels("spec.selector", &spec["selector"]);
    if let Some(name) = name.as_str() {
        causes.extend(metadata::check_label("metadata.name", name));
    }
    let ports = spec["ports"].as_array().map_or(&[][..], Vec::as_slice);
    if ports.is_empty() && spec["clusterIP"] != "None" {
        causes.push(Cause::required("spec.ports", ""));
    }
    for (index, port) in ports.iter().enumerate() {
        for field in ["port", "targetPort"] {
            let number = port[field].as_i64();
            causes.extend(number.filter(|it| !(1..=65535).contains(it)).map(|it| {
                let field = format!("spec.ports[{index}].{field}");
                Cause::invalid(&field, it, "must be between 1 and 65535, inclusive")
            }));
        }
        if ports.len() > 1 && port["name"].is_null() {
            causes.push(Cause::required(&format!("spec.ports[{index}].name"), ""));
        }
    }
    causes
}
