//! The types of a kind in its versions, and the fields that a part of it ignores.

use std::{borrow::Cow, sync::LazyLock};

use serde_json::{Value, json};

use super::{
    super::{
        Kind, Release,
        definition::Definition,
        release::since,
        request::{Part, Unknown},
        status::{Refusal, Result},
    },
    check,
    set::Set,
    types::{self, Ref},
};

/// Kind and version of a written object.
pub struct Scope<'a> {
    pub kind: Kind,
    pub part: Part,
    /// The CRD of a custom kind.
    pub definition: Option<&'a Definition>,
    /// `apiVersion` of the request.
    pub version: String,
    /// Time of the request.
    pub now: String,
    pub release: Release,
}

const SCALE: &str = "autoscaling/v1";

impl Scope<'_> {
    /// Returns the `apiVersion` of the entries that this request makes.
    pub fn entry_version(&self) -> &str {
        match self.part {
            Part::Scale => SCALE,
            _ => &self.version,
        }
    }

    pub fn kind_name(&self) -> &'static str {
        match self.part {
            Part::Scale => "Scale",
            _ => self.kind.info().kind,
        }
    }

    pub fn subresource(&self) -> &'static str {
        match self.part {
            Part::Whole => "",
            Part::Status => "status",
            Part::Scale => "scale",
            Part::Finalize => "finalize",
        }
    }

    /// Returns the type of the object in a version.
    pub fn of(&self, version: &str) -> Option<&Ref> {
        if self.part == Part::Scale {
            return types::built_in(version, "Scale");
        }
        match self.definition {
            Some(definition) => {
                let (group, version) = version.split_once('/')?;
                let version = definition.version(version)?;
                (group == self.kind.info().group).then_some(&version.fields)
            }
            None => types::built_in(version, self.kind.info().kind),
        }
    }

    /// Returns the type in the version of the request.
    pub fn own(&self) -> Result<&Ref> {
        let of = self.of(self.entry_version());
        of.ok_or_else(|| Unknown(format!("fields of a {}", self.kind_name())).into())
    }

    /// Returns an object in another version, or nothing if no such version exists.
    pub fn convert<'v>(&self, object: &'v Value, version: &str) -> Result<Option<Cow<'v, Value>>> {
        if object["apiVersion"] == version {
            return Ok(Some(Cow::Borrowed(object)));
        }
        // Not even the other API of Events.
        let Some(definition) = self.definition else {
            return Ok(None);
        };
        let Some(of) = self.of(version) else {
            let words = format!("request to convert CR to an invalid group/version: {version}");
            return Err(failed(&words));
        };
        if !definition.converts {
            return Err(
                Unknown("managed fields of several versions with a webhook".to_owned()).into(),
            );
        }
        let mut object = object.clone();
        object["apiVersion"] = version.into();
        check::validate(of, &object, false).map_err(|words| failed(&words))?;
        Ok(Some(Cow::Owned(object)))
    }

    /// Returns the fields that this part of the object never changes.
    pub fn ignored(&self, version: &str) -> Option<&'static Set> {
        static STATUS: LazyLock<Set> = LazyLock::new(|| Set::of(&[&["status"]]));
        static SPEC: LazyLock<Set> = LazyLock::new(|| Set::of(&[&["spec"]]));
        static CUSTOM: LazyLock<Set> = LazyLock::new(|| Set::of(&[&["metadata"], &["spec"]]));
        static DEPLOYMENT: LazyLock<Set> =
            LazyLock::new(|| Set::of(&[&["spec"], &["metadata", "labels"]]));
        if let Some(definition) = self.definition {
            let version = version.split_once('/')?.1;
            let has_status = definition.version(version)?.status;
            return match self.part {
                Part::Whole if self.version.ends_with(&format!("/{version}")) && has_status => {
                    Some(&STATUS)
                }
                Part::Status if has_status => {
                    Some(since(self.release, Release::V1_36, &*SPEC, &*CUSTOM))
                }
                _ => None,
            };
        }
        match (self.kind, self.part) {
            (Kind::Deployment, Part::Status) => Some(&DEPLOYMENT),
            (_, Part::Status) => Some(&SPEC),
            (
                Kind::Deployment
                | Kind::Job
                | Kind::Namespace
                | Kind::Service
                | Kind::CustomResourceDefinition,
                Part::Whole | Part::Finalize,
            ) => Some(&STATUS),
            _ => None,
        }
    }

    /// Returns the object that does not exist yet: with the fields that Go writes although they are empty.
    pub fn empty(&self) -> Value {
        let mut empty = match self.kind {
            Kind::Namespace => json!({ "spec": {}, "status": {} }),
            Kind::Lease => json!({ "spec": {} }),
            Kind::Deployment => json!({
                "spec": { "selector": null, "strategy": {}, "template": { "metadata": {}, "spec": { "containers": null } } },
                "status": {},
            }),
            Kind::Service => json!({ "spec": {}, "status": { "loadBalancer": {} } }),
            Kind::Job => json!({
                "spec": { "template": { "metadata": {}, "spec": { "containers": null } } }, "status": {},
            }),
            Kind::Event => json!({
                "eventTime": null, "regarding": {}, "deprecatedSource": {}, "deprecatedFirstTimestamp": null,
                "deprecatedLastTimestamp": null,
            }),
            Kind::CoreEvent => json!({
                "eventTime": null, "involvedObject": {}, "source": {}, "firstTimestamp": null, "lastTimestamp": null,
                "reportingComponent": "", "reportingInstance": "",
            }),
            Kind::CustomResourceDefinition => json!({
                "spec": { "group": "", "names": { "plural": "", "kind": "" }, "scope": "", "versions": null },
                "status": { "conditions": null, "acceptedNames": { "plural": "", "kind": "" }, "storedVersions": null },
            }),
            _ => json!({}),
        };
        empty["apiVersion"] = self.entry_version().into();
        empty["kind"] = self.kind_name().into();
        if !self.kind.is_custom() {
            empty["metadata"] = json!({});
        }
        empty
    }
}

/// Returns an error without a reason, as the API server has for errors in its own work.
pub fn failed(words: &str) -> Refusal {
    Refusal::new(500, "", words, None)
}
