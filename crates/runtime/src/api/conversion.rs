//! CRDs whose versions have different schemas, and the conversion of their objects.
//!
//! The API server keeps each object in one version. For a request in another version, it sends the object to a webhook, which the
//! command `convert` serves. Source: Kubernetes documentation, "Versions in `CustomResourceDefinitions`", section "Webhook
//! conversion", and `webhook_converter.go` of the API server.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    panic::{AssertUnwindSafe, catch_unwind},
};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, ServiceReference, WebhookClientConfig,
    WebhookConversion,
};
use kube::ResourceExt as _;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{
    Serializer,
    ser::{CompactFormatter, Formatter},
    value::RawValue,
};

use super::{crd::merged, key::Key, names::is_label};

/// Path of the webhook.
pub(crate) const PATH: &str = "/convert";

/// Annotation with the Certificate whose CA cert-manager's cainjector writes into `caBundle`.
pub(crate) const INJECT: &str = "cert-manager.io/inject-ca-from";

/// Converts an object, in place.
///
/// The error is part of the API server's response to the user. Return one only for an object that the schema does not admit:
/// an object that cannot be converted can neither be read, changed nor deleted in the other version, and every list in that
/// version fails.
///
/// The API server also converts incomplete objects, to find out who manages which fields (`managedFields`): a write of the status
/// without a `spec`, and objects of a server-side apply without some required fields. So read `spec` as an `Option`.
pub type Convert = fn(&mut Versioned) -> Result<(), String>;

/// A version that is not the stored one, and its conversion.
pub struct Version {
    /// The CRD with this version only.
    pub crd: CustomResourceDefinition,
    /// Converts an object of this version into the stored version.
    pub to_stored: Convert,
    /// Converts an object of the stored version into this version.
    pub from_stored: Convert,
}

/// A CRD for the commands `crd`, `doctor`, `migrate` and `convert`, with the conversion between its versions, if it has one.
pub struct Definition {
    pub(crate) crd: CustomResourceDefinition,
    conversion: Option<Conversion>,
}

struct Conversion {
    stored: String,
    others: BTreeMap<String, (Convert, Convert)>,
}

/// A CRD without a conversion webhook.
impl From<CustomResourceDefinition> for Definition {
    fn from(crd: CustomResourceDefinition) -> Self {
        Self {
            crd,
            conversion: None,
        }
    }
}

/// Merges the CRDs of versions whose schemas differ into one, which names a conversion webhook
/// (`spec.conversion.strategy: Webhook`). The API server stores the objects in the version `stored`, which the controller reads.
///
/// `service` is the Service of the webhook, with port 443. Deploy the command `convert` behind it, separate from the
/// controller. The CRD has no `caBundle`. The annotation `cert-manager.io/inject-ca-from` names a Certificate of cert-manager
/// with the Service's namespace and name. Its cainjector adds the `caBundle`, which `kubectl apply` keeps.
///
/// Each object passes through the stored version: from one other version to another, both functions are called.
///
/// While the webhook is down, requests fail that meet an object of another version than the requested one. Prefer
/// [`versions`](crate::crd::versions) if all versions can have the same fields.
///
/// # Example
///
/// ```
/// # use kube::{CustomResource, CustomResourceExt as _};
/// # use operator_runtime::{Key, crd::{self, Definition, Version, Versioned}};
/// # use schemars::JsonSchema;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
/// # #[kube(group = "example.com", version = "v1", kind = "Shop", namespaced)]
/// # struct ShopSpec { size: Size }
/// # #[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
/// # struct Size { gibibytes: u32 }
/// # mod former {
/// #     use super::*;
/// #     #[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
/// #     #[kube(group = "example.com", version = "v1alpha1", kind = "Shop", namespaced)]
/// #     pub struct ShopSpec { pub gibibytes: u32 }
/// # }
/// fn shops() -> Definition {
///     let former = Version { crd: former::Shop::crd(), to_stored, from_stored };
///     crd::converted(Shop::crd(), &Key::new("shop-system", "shop-conversion"), [former])
/// }
///
/// fn to_stored(shop: &mut Versioned) -> Result<(), String> {
///     let Some(former) = shop.get::<Option<former::ShopSpec>>("spec")? else {
///         return Ok(()); // A write of the status.
///     };
///     shop.set("spec", &ShopSpec { size: Size { gibibytes: former.gibibytes } })
/// }
///
/// fn from_stored(shop: &mut Versioned) -> Result<(), String> {
///     let Some(spec) = shop.get::<Option<ShopSpec>>("spec")? else {
///         return Ok(());
///     };
///     shop.set("spec", &former::ShopSpec { gibibytes: spec.size.gibibytes })
/// }
///
/// # fn main() {
/// let shop = serde_json::json!({
///     "apiVersion": "example.com/v1alpha1",
///     "kind": "Shop",
///     "metadata": { "name": "a", "namespace": "b" },
///     "spec": { "gibibytes": 3 },
/// });
/// let converted = shops().convert(&shop, "v1").unwrap();
/// assert_eq!(converted["spec"]["size"]["gibibytes"], 3);
/// # }
/// ```
///
/// # Panics
///
/// - If the CRDs are not of the same resource type, or have no version besides the stored one, or one version twice.
/// - If `service` is not `namespace/name` of a Service.
#[must_use]
pub fn converted(
    stored: CustomResourceDefinition,
    service: &Key,
    others: impl IntoIterator<Item = Version>,
) -> Definition {
    assert!(
        is_label(service.namespace()) && is_label(service.name()),
        "{service} is not the namespace and the name of a Service"
    );
    let version = version_of(&stored);
    let (mut crds, mut functions) = (vec![stored], BTreeMap::new());
    for other in others {
        let name = version_of(&other.crd);
        let known = functions.insert(name.clone(), (other.to_stored, other.from_stored));
        assert!(known.is_none() && name != version, "{name} is given twice");
        crds.push(other.crd);
    }
    let mut crd = merged(&version, crds);
    assert!(
        !functions.is_empty(),
        "{}: a conversion needs another version than {version}",
        crd.name_any()
    );
    crd.annotations_mut()
        .insert(INJECT.to_owned(), service.to_string());
    crd.spec.conversion = Some(CustomResourceConversion {
        strategy: "Webhook".to_owned(),
        webhook: Some(WebhookConversion {
            client_config: Some(WebhookClientConfig {
                service: Some(ServiceReference {
                    namespace: service.namespace().to_owned(),
                    name: service.name().to_owned(),
                    path: Some(PATH.to_owned()),
                    port: Some(443),
                }),
                ..WebhookClientConfig::default()
            }),
            conversion_review_versions: vec!["v1".to_owned()],
        }),
    });
    Definition {
        crd,
        conversion: Some(Conversion {
            stored: version,
            others: functions,
        }),
    }
}

/// Returns the storage version.
pub(crate) fn storage_version(crd: &CustomResourceDefinition) -> &str {
    let mut versions = crd.spec.versions.iter();
    let stored = versions.find(|version| version.storage);
    stored.map_or("", |version| &version.name)
}

fn version_of(crd: &CustomResourceDefinition) -> String {
    let first = crd.spec.versions.first();
    first.map_or_else(String::new, |version| version.name.clone())
}

impl Definition {
    /// Returns the CRD, as the command `crd` prints it.
    #[must_use]
    pub fn crd(&self) -> &CustomResourceDefinition {
        &self.crd
    }

    /// Returns whether the CRD names a conversion webhook.
    pub(crate) fn is_converted(&self) -> bool {
        self.conversion.is_some()
    }

    /// Returns the storage version.
    pub(crate) fn stored(&self) -> &str {
        storage_version(&self.crd)
    }

    /// Returns the schema of a version. Null if there is none.
    pub(crate) fn schema(&self, version: &str) -> serde_json::Value {
        let mut versions = self.crd.spec.versions.iter();
        let version = versions.find(|it| it.name == version);
        let schema = version.and_then(|it| it.schema.as_ref()?.open_api_v3_schema.as_ref());
        let schema = schema.and_then(|schema| serde_json::to_value(schema).ok());
        schema.unwrap_or_default()
    }

    /// Converts an object into another version of the CRD, as the command `convert` does. For unit tests.
    ///
    /// # Errors
    /// The message for the user: the object, and why it cannot be converted.
    pub fn convert(
        &self,
        object: &serde_json::Value,
        version: &str,
    ) -> Result<serde_json::Value, String> {
        let converted = self.convert_text(&raw(object)?, version)?;
        serde_json::from_str(converted.get()).map_err(|error| error.to_string())
    }

    /// Like [`Self::convert`], for the text of an object. Members that the conversion does not change stay as they are, to the
    /// byte.
    pub(crate) fn convert_text(
        &self,
        object: &RawValue,
        version: &str,
    ) -> Result<Box<RawValue>, String> {
        let mut members: Members = serde_json::from_str(object.get())
            .map_err(|error| format!("the object is not a JSON object: {error}"))?;
        let text = |members: &Members, name: &str| -> String {
            let value = members.get(name);
            value
                .and_then(|value| serde_json::from_str(value.get()).ok())
                .unwrap_or_default()
        };
        let (kind, from) = (text(&members, "kind"), text(&members, "apiVersion"));
        let mut metadata: Members = members
            .remove("metadata")
            .and_then(|value| serde_json::from_str(value.get()).ok())
            .unwrap_or_default();
        let key = Key::new(&text(&metadata, "namespace"), &text(&metadata, "name"));
        let failed = |why: String| {
            let from = from.split('/').next_back().unwrap_or_default();
            format!("{kind} {key} cannot be converted from {from} to {version}: {why}")
        };
        let steps = self.steps(&kind, &from, version).map_err(failed)?;
        let map = |name: &str| -> Result<BTreeMap<String, String>, String> {
            let value = metadata.get(name);
            let map = value.map_or(Ok(None), |value| serde_json::from_str(value.get()));
            let map = map.map_err(|error| failed(format!("metadata.{name}: {error}")))?;
            Ok(map.unwrap_or_default())
        };
        let mut object = Versioned {
            labels: map("labels")?,
            annotations: map("annotations")?,
            members,
        };
        for (method, version, step) in steps {
            let called = catch_unwind(AssertUnwindSafe(|| step(&mut object)));
            let panicked = |_| {
                Err(format!(
                    "{method} of {version} panicked: see the log of convert"
                ))
            };
            called.unwrap_or_else(panicked).map_err(failed)?;
        }
        for (name, map) in [
            ("labels", &object.labels),
            ("annotations", &object.annotations),
        ] {
            if map.is_empty() {
                metadata.remove(name);
            } else {
                metadata.insert(name.to_owned(), raw(map).map_err(failed)?);
            }
        }
        let api_version = format!("{}/{version}", self.crd.spec.group);
        let mut members = object.members;
        for (name, value) in [
            ("apiVersion", raw(&api_version)),
            ("kind", raw(&kind)),
            ("metadata", raw(&metadata)),
        ] {
            members.insert(name.to_owned(), value.map_err(failed)?);
        }
        raw(&members).map_err(failed)
    }

    /// Returns the conversions between two versions, in order: the name of the function, its version, and the function.
    fn steps(
        &self,
        kind: &str,
        from: &str,
        to: &str,
    ) -> Result<Vec<(&'static str, String, Convert)>, String> {
        let name = self.crd.name_any();
        let spec = &self.crd.spec;
        let from = from
            .split_once('/')
            .filter(|(group, _)| kind == spec.names.kind && *group == spec.group)
            .map(|(_, version)| version)
            .ok_or_else(|| format!("it is not one of {name}"))?;
        let conversion = self.conversion.as_ref();
        let conversion = conversion.ok_or_else(|| format!("{name} has no conversion"))?;
        let functions = |version: &str| -> Result<Option<(Convert, Convert)>, String> {
            match conversion.others.get(version) {
                _ if version == conversion.stored => Ok(None),
                Some(functions) => Ok(Some(*functions)),
                None => Err(format!("this program has no {version} of {name}")),
            }
        };
        let (up, down) = (functions(from)?, functions(to)?);
        if from == to {
            return Ok(Vec::new());
        }
        let up = up.map(|(up, _)| ("to_stored", from.to_owned(), up));
        let down = down.map(|(_, down)| ("from_stored", to.to_owned(), down));
        Ok(up.into_iter().chain(down).collect())
    }
}

/// Members of an object. The values stay text until a conversion reads them.
type Members = BTreeMap<String, Box<RawValue>>;

/// An object during its conversion: all members except `apiVersion`, `kind` and the rest of `metadata`, which cannot change.
pub struct Versioned {
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`.
    pub annotations: BTreeMap<String, String>,
    members: Members,
}

impl Versioned {
    /// Returns a member of the object, such as `spec` or `status`. A missing member is read as null: use an `Option` for one
    /// that may be missing.
    ///
    /// # Errors
    /// It does not have this type. The message names the member.
    pub fn get<T: DeserializeOwned>(&self, member: &str) -> Result<T, String> {
        let text = self.members.get(member).map_or("null", |value| value.get());
        serde_json::from_str(text).map_err(|error| format!("{member}: {error}"))
    }

    /// Sets a member of the object, such as `spec` or `status`. Null (`None`) removes it.
    ///
    /// # Errors
    /// The value cannot be written as JSON.
    pub fn set<T: Serialize>(&mut self, member: &str, value: &T) -> Result<(), String> {
        let value = raw(value).map_err(|error| format!("{member}: {error}"))?;
        if value.get() == "null" {
            self.members.remove(member);
        } else {
            self.members.insert(member.to_owned(), value);
        }
        Ok(())
    }

    /// Keeps a value that the other version has no field for in an annotation, as JSON. [`Self::take`] returns it on the way
    /// back, so that the conversion loses nothing. Null (`None`) removes the annotation.
    ///
    /// All annotations of an object together may have 256 KiB: the API server cannot convert an object with more.
    ///
    /// # Errors
    /// The value cannot be written as JSON.
    pub fn keep<T: Serialize>(&mut self, annotation: &str, value: &T) -> Result<(), String> {
        let value = raw(value).map_err(|error| format!("{annotation}: {error}"))?;
        if value.get() == "null" {
            self.annotations.remove(annotation);
        } else {
            self.annotations
                .insert(annotation.to_owned(), value.get().to_owned());
        }
        Ok(())
    }

    /// Removes an annotation, and returns the value that [`Self::keep`] wrote. `None` without such an annotation, and if a user
    /// has changed it to another form: an error would make the object unreadable.
    ///
    /// Fields of the object may have changed since. So keep only fields that the other version lacks, and check whether they
    /// still fit to the rest.
    pub fn take<T: DeserializeOwned>(&mut self, annotation: &str) -> Option<T> {
        let text = self.annotations.remove(annotation)?;
        serde_json::from_str(&text).ok()
    }
}

/// Returns a value as the API server writes it in JSON.
///
/// # Errors
/// It cannot be written as JSON.
pub(crate) fn raw<T: Serialize>(value: &T) -> Result<Box<RawValue>, String> {
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, Numbers);
    let written = value
        .serialize(&mut serializer)
        .map_err(|error| error.to_string());
    written?;
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    RawValue::from_string(text).map_err(|error| error.to_string())
}

/// Writes whole numbers without a fraction, as Go does (`encoding/json`). For the API server, 1.0 is another value than 1
/// (`json.go` of sigs.k8s.io/json): an object with the other form would get a new generation.
struct Numbers;

impl Formatter for Numbers {
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        match whole(value) {
            Some(whole) => self.write_i64(writer, whole),
            None => CompactFormatter.write_f64(writer, value),
        }
    }

    fn write_f32<W: ?Sized + Write>(&mut self, writer: &mut W, value: f32) -> io::Result<()> {
        match whole(value.into()) {
            Some(whole) => self.write_i64(writer, whole),
            None => CompactFormatter.write_f32(writer, value),
        }
    }
}

/// Returns a float as an integer, if it is one.
fn whole(value: f64) -> Option<i64> {
    // From 2^63 on, the API server reads a number without a fraction as a float as well.
    const END: f64 = 9_223_372_036_854_775_808.0;
    let is_whole = value.fract() == 0.0 && value.abs() < END;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "it is whole and in the range"
    )]
    is_whole.then_some(value as i64)
}

#[cfg(test)]
mod tests;
