//! A CRD as the API server uses it: its versions with their schemas and subresources.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::Value;

use super::super::{Release, fields, request::Unknown, schema::Schema};

/// The compiled `spec` of a CRD.
#[derive(Debug)]
pub struct Definition {
    pub versions: Vec<Version>,
    /// Whether clients of all versions get the same fields (`conversion.strategy: None`).
    pub converts: bool,
}

/// A version of a CRD.
#[derive(Debug)]
pub struct Version {
    pub name: String,
    pub served: bool,
    pub storage: bool,
    /// Warning for each request, if the version is deprecated.
    pub warning: Option<String>,
    pub schema: Schema,
    /// How field management divides an object.
    pub fields: fields::types::Ref,
    /// Whether the version has the subresource `status`.
    pub status: bool,
    pub scale: Option<Scale>,
}

/// Paths of the subresource `scale`, such as `.spec.replicas`.
#[derive(Debug)]
pub struct Scale {
    pub replicas: String,
    pub status_replicas: String,
    pub selector: Option<String>,
}

/// Number of compiled CRDs that are kept.
const KEPT: usize = 128;

impl Definition {
    /// Compiles the `spec` of a CRD, or returns the result of an earlier compilation.
    ///
    /// # Errors
    /// A part of a schema is not modelled.
    pub fn compile(definition: &Value, release: Release) -> Result<Arc<Self>, Unknown> {
        static KNOWN: Mutex<BTreeMap<(Release, String), Arc<Definition>>> =
            Mutex::new(BTreeMap::new());
        let spec = (release, definition["spec"].to_string());
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = known().get(&spec) {
            return Ok(compiled.clone());
        }
        let compiled = Arc::new(Self::new(&definition["spec"], release)?);
        let mut known = known();
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(spec, compiled.clone());
        Ok(compiled)
    }

    fn new(spec: &Value, release: Release) -> Result<Self, Unknown> {
        let versions = spec["versions"].as_array().into_iter().flatten();
        let versions = versions.map(|version| Version::new(spec, version, release));
        Ok(Self {
            versions: versions.collect::<Result<_, _>>()?,
            converts: spec["conversion"]["strategy"] != "Webhook",
        })
    }

    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// Returns the version that is stored.
    pub fn storage(&self) -> Option<&Version> {
        self.versions.iter().find(|version| version.storage)
    }
}

impl Version {
    fn new(spec: &Value, version: &Value, release: Release) -> Result<Self, Unknown> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = text(&version["name"]);
        let scale = &version["subresources"]["scale"];
        let warning = || match version["deprecationWarning"].as_str() {
            Some(words) => words.to_owned(),
            None => deprecation(spec, &name),
        };
        Ok(Self {
            served: version["served"] == true,
            storage: version["storage"] == true,
            warning: (version["deprecated"] == true).then(warning),
            fields: fields::types::custom(&version["schema"]["openAPIV3Schema"], release),
            schema: Schema::compile(&version["schema"]["openAPIV3Schema"], release)?,
            status: version["subresources"]["status"].is_object(),
            scale: scale.is_object().then(|| Scale {
                replicas: text(&scale["specReplicasPath"]),
                status_replicas: text(&scale["statusReplicasPath"]),
                selector: scale["labelSelectorPath"].as_str().map(ToOwned::to_owned),
            }),
            name,
        })
    }
}

/// Returns the warning for a deprecated version without a warning of its own.
fn deprecation(spec: &Value, name: &str) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, kind) = (text(&spec["group"]), text(&spec["names"]["kind"]));
    let versions = spec["versions"].as_array().into_iter().flatten();
    let others = versions.filter(|other| other["served"] == true && other["deprecated"] != true);
    let others = others.map(|other| text(&other["name"]));
    let better = others
        .filter(|other| priority(other) > priority(name))
        .max_by_key(|other| priority(other));
    let words = format!("{group}/{name} {kind} is deprecated");
    match better {
        Some(better) => format!("{words}; use {group}/{better} {kind}"),
        None => words,
    }
}

/// Returns the rank of a version such as `v1`, `v2beta1` or another word (`CompareKubeAwareVersionStrings`).
fn priority(name: &str) -> (u8, u64, u64, Reverse<String>) {
    let parsed = || {
        let rest = name.strip_prefix('v')?;
        let (stage, major, minor) = match (rest.split_once("alpha"), rest.split_once("beta")) {
            (Some((major, minor)), _) => (1, major, minor),
            (None, Some((major, minor))) => (2, major, minor),
            (None, None) => (3, rest, "0"),
        };
        Some((stage, major.parse().ok()?, minor.parse().ok()?))
    };
    let (stage, major, minor) = parsed().unwrap_or_default();
    let other = if stage == 0 {
        name.to_owned()
    } else {
        String::new()
    };
    (stage, major, minor, Reverse(other))
}
