//! Discovery: the groups, versions and resources, as clients list them before anything else. Both forms are served: one document for
//! each version, and the aggregated documents (KEP-3352).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api_server::{Kind, Release};

/// Media type of the aggregated form.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A resource of a version.
pub struct Resource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub singular: String,
    pub short: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    /// Subresources, with the kind of their body and its `apiVersion`.
    pub parts: Vec<(&'static str, String, String, String)>,
}

const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
const PART_VERBS: [&str; 3] = ["get", "patch", "update"];

/// Returns the served resources of the built-in kinds.
pub fn built_in() -> Vec<Resource> {
    let served = Kind::BUILT_IN
        .into_iter()
        .filter(|kind| *kind != Kind::StorageClass);
    let resources = served.map(|kind| {
        let info = kind.info();
        let (short, categories): (&[&str], &[&str]) = match kind {
            Kind::Namespace => (&["ns"], &[]),
            Kind::ServiceAccount => (&["sa"], &[]),
            Kind::Deployment => (&["deploy"], &["all"]),
            Kind::Service => (&["svc"], &["all"]),
            Kind::ConfigMap => (&["cm"], &[]),
            Kind::Job => (&[], &["all"]),
            Kind::Event | Kind::CoreEvent => (&["ev"], &[]),
            Kind::CustomResourceDefinition => (&["crd", "crds"], &["api-extensions"]),
            _ => (&[], &[]),
        };
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let mut resource = Resource {
            group: info.group.to_owned(),
            version: info.version.to_owned(),
            kind: info.kind.to_owned(),
            plural: info.plural.to_owned(),
            singular: info.kind.to_lowercase(),
            short: owned(short),
            categories: owned(categories),
            namespaced: kind.is_namespaced(),
            parts: Vec::new(),
        };
        resource.add_parts(
            kind.has_status() || kind == Kind::CustomResourceDefinition,
            kind.has_scale(),
        );
        resource
    });
    resources.collect()
}

/// Returns the served resources of an established CRD.
pub fn custom(definition: &Value) -> Vec<Resource> {
    let spec = &definition["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let texts = |value: &Value| value.as_array().into_iter().flatten().map(text).collect();
    let names = &spec["names"];
    let kind = text(&names["kind"]);
    let singular = match text(&names["singular"]) {
        empty if empty.is_empty() => kind.to_lowercase(),
        singular => singular,
    };
    let versions = spec["versions"].as_array().into_iter().flatten();
    let served = versions.filter(|version| version["served"] == true);
    let resources = served.map(|version| {
        let mut resource = Resource {
            group: text(&spec["group"]),
            version: text(&version["name"]),
            kind: kind.clone(),
            plural: text(&names["plural"]),
            singular: singular.clone(),
            short: texts(&names["shortNames"]),
            categories: texts(&names["categories"]),
            namespaced: spec["scope"] == "Namespaced",
            parts: Vec::new(),
        };
        let parts = &version["subresources"];
        resource.add_parts(parts["status"].is_object(), parts["scale"].is_object());
        resource
    });
    resources.collect()
}

impl Resource {
    fn add_parts(&mut self, status: bool, scale: bool) {
        if status {
            let Self {
                group,
                version,
                kind,
                ..
            } = &*self;
            let part = ("status", group.clone(), version.clone(), kind.clone());
            self.parts.push(part);
        }
        if scale {
            let [group, version, kind] = ["autoscaling", "v1", "Scale"].map(ToOwned::to_owned);
            self.parts.push(("scale", group, version, kind));
        }
    }

    /// Returns `group/version`.
    pub fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// Returns the content type and the body of a discovery document, or `None` for another path.
pub fn document(
    path: &str,
    accept: &str,
    resources: &[Resource],
    release: Release,
) -> Option<(&'static str, Value)> {
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let aggregated = accept.contains("as=APIGroupDiscoveryList");
    let of = |is_core: bool| {
        resources
            .iter()
            .filter(move |it| it.group.is_empty() == is_core)
    };
    let body = match parts.as_slice() {
        ["version"] => json!({
            "major": "1", "minor": release.minor(), "gitVersion": release.to_string(), "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "simulated",
        }),
        ["api" | "apis"] if aggregated => {
            return Some((AGGREGATED, all(of(parts[0] == "api"))));
        }
        ["api"] => {
            json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] })
        }
        ["apis"] => {
            let groups = by_group(of(false));
            let groups = groups.iter().map(|(name, versions)| group(name, versions));
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups.collect::<Vec<_>>() })
        }
        ["api", version] => list("", version, resources)?,
        ["apis", name] => {
            let groups = by_group(of(false));
            let mut body = group(name, groups.get(name)?);
            body["kind"] = "APIGroup".into();
            body["apiVersion"] = "v1".into();
            body
        }
        ["apis", group, version] => list(group, version, resources)?,
        _ => return None,
    };
    Some(("application/json", body))
}

/// The versions of each group, with their resources.
fn by_group<'a>(
    resources: impl Iterator<Item = &'a Resource>,
) -> BTreeMap<&'a str, BTreeMap<&'a str, Vec<&'a Resource>>> {
    let mut groups = BTreeMap::<_, BTreeMap<_, Vec<_>>>::new();
    for resource in resources {
        let versions = groups.entry(&*resource.group).or_default();
        versions
            .entry(&*resource.version)
            .or_default()
            .push(resource);
    }
    groups
}

fn group(name: &str, versions: &BTreeMap<&str, Vec<&Resource>>) -> Value {
    let versions = versions.keys().rev();
    let versions = versions
        .map(|version| json!({ "groupVersion": format!("{name}/{version}"), "version": version }));
    let versions: Vec<_> = versions.collect();
    json!({ "name": name, "versions": versions, "preferredVersion": versions[0] })
}

fn list(group: &str, version: &str, resources: &[Resource]) -> Option<Value> {
    let all = resources.iter();
    let all: Vec<_> = all
        .filter(|it| it.group == group && it.version == version)
        .collect();
    let api_version = all.first()?.api_version();
    let mut listed = Vec::new();
    for it in all {
        listed.push(json!({
            "name": it.plural, "singularName": it.singular, "namespaced": it.namespaced, "kind": it.kind,
            "verbs": VERBS, "shortNames": it.short, "categories": it.categories,
        }));
        for (part, group, version, kind) in &it.parts {
            listed.push(json!({
                "name": format!("{}/{part}", it.plural), "singularName": "", "namespaced": it.namespaced,
                "group": group, "version": version, "kind": kind, "verbs": PART_VERBS,
            }));
        }
    }
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": listed,
    }))
}

fn all<'a>(resources: impl Iterator<Item = &'a Resource>) -> Value {
    let resource = |it: &&Resource| {
        let parts = it.parts.iter().map(|(part, group, version, kind)| {
            json!({
                "subresource": part, "responseKind": { "group": group, "version": version, "kind": kind },
                "verbs": PART_VERBS,
            })
        });
        json!({
            "resource": it.plural, "singularResource": it.singular, "verbs": VERBS, "shortNames": it.short,
            "categories": it.categories, "scope": if it.namespaced { "Namespaced" } else { "Cluster" },
            "responseKind": { "group": it.group, "version": it.version, "kind": it.kind },
            "subresources": parts.collect::<Vec<_>>(),
        })
    };
    let groups = by_group(resources);
    let groups = groups.iter().map(|(name, versions)| {
        let versions = versions.iter().rev().map(|(version, resources)| {
            let resources: Vec<_> = resources.iter().map(resource).collect();
            json!({ "version": version, "resources": resources, "freshness": "Current" })
        });
        json!({ "metadata": { "name": name }, "versions": versions.collect::<Vec<_>>() })
    });
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": groups.collect::<Vec<_>>(),
    })
}
