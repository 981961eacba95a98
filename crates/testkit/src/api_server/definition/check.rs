//! Validation of CRDs, with the messages of `k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation`.
//!
//! Not modelled: types and costs of rules, selectable fields, conversion webhooks.

use serde_json::{Value, json};

use super::super::{
    Release, metadata, names,
    release::since,
    schema::{Schema, go, node::Node, rules::field_path},
    status::Cause,
};
use super::{names_of, structure::Level};

/// Validates a CRD, which may replace `old`.
pub fn check(new: &Value, old: Option<&Value>, release: Release) -> Vec<Cause> {
    let mut causes = Causes(Vec::new(), release);
    causes.spec(&new["spec"]);
    if let Some(old) = old {
        causes.immutable(&new["spec"], &old["spec"], super::is_established(old));
    }
    causes.0
}

pub(super) struct Causes(pub(super) Vec<Cause>, Release);

fn forbidden(field: String, why: &str) -> Cause {
    Cause {
        field,
        reason: "FieldValueForbidden",
        message: format!("Forbidden: {why}"),
    }
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the elements of a list.
pub(super) fn each(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// Returns the schema of a keyword, if it is one.
pub(super) fn schema_of<'a>(schema: &'a Value, keyword: &str) -> Option<&'a Value> {
    schema.get(keyword).filter(|schema| schema.is_object())
}

impl Causes {
    fn since_1_34(&self, old: &'static str, new: &'static str) -> &'static str {
        since(self.1, Release::V1_34, old, new)
    }

    pub(super) fn required(&mut self, field: &str, why: &str) {
        self.0.push(Cause::required(field, why));
    }

    pub(super) fn invalid(&mut self, field: &str, value: &Value, why: &str) {
        self.0
            .push(Cause::invalid(field, go::shown(value, self.1), why));
    }

    pub(super) fn forbid(&mut self, field: String, why: &str) {
        self.0.push(forbidden(field, why));
    }

    fn not_supported(&mut self, field: &str, value: &Value, supported: &[&str]) {
        let supported = supported
            .iter()
            .map(|one| go::quoted(one))
            .collect::<Vec<_>>()
            .join(", ");
        self.0.push(Cause {
            field: field.to_owned(),
            reason: "FieldValueNotSupported",
            message: format!(
                "Unsupported value: {}: supported values: {supported}",
                go::shown(value, self.1)
            ),
        });
    }

    fn immutable(&mut self, new: &Value, old: &Value, is_established: bool) {
        let mut paths = vec![
            ("/group", "spec.group"),
            ("/names/plural", "spec.names.plural"),
        ];
        if is_established {
            paths.extend([("/scope", "spec.scope"), ("/names/kind", "spec.names.kind")]);
        }
        for (path, field) in paths {
            let (new, old) = (new.pointer(path), old.pointer(path));
            if new != old {
                self.invalid(field, new.unwrap_or(&Value::Null), "field is immutable");
            }
        }
    }

    #[allow(
        clippy::too_many_lines,
        reason = "one condition after the other, in the order of the API server"
    )]
    fn spec(&mut self, spec: &Value) {
        let group = text(&spec["group"]);
        if group.is_empty() {
            self.required("spec.group", "");
        } else if !metadata::is_subdomain(group) {
            let why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start \
                       and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
                       '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
            self.invalid("spec.group", &spec["group"], why);
        } else if !group.contains('.') {
            self.invalid(
                "spec.group",
                &spec["group"],
                "should be a domain with at least one dot",
            );
        }
        match text(&spec["scope"]) {
            "" => self.required("spec.scope", ""),
            "Cluster" | "Namespaced" => {}
            _ => self.not_supported("spec.scope", &spec["scope"], &["Cluster", "Namespaced"]),
        }
        let versions = each(&spec["versions"]);
        // The common part of all versions is checked once, because the internal form of a CRD has it once.
        let same = |name: &str| {
            let first = versions
                .first()
                .and_then(|version| version.get(name))
                .filter(|it| !it.is_null());
            first.filter(|first| {
                versions
                    .iter()
                    .all(|version| version.get(name) == Some(first))
            })
        };
        let (schema, parts, columns) = (
            same("schema"),
            same("subresources"),
            same("additionalPrinterColumns"),
        );
        let name = versions
            .first()
            .map_or(&Value::Null, |version| &version["name"]);
        let wrong = names::dns1035_label(text(name));
        if !text(name).is_empty() && !wrong.is_empty() {
            self.invalid("spec.version", name, &wrong.join(","));
        }
        for (at, version) in versions.iter().enumerate() {
            let path = format!("spec.versions[{at}]");
            if schema.is_none() && schema_of(&version["schema"], "openAPIV3Schema").is_none() {
                let why = self.since_1_34("schemas are required", "");
                self.required(&format!("{path}.schema.openAPIV3Schema"), why);
            }
            let wrong = names::dns1035_label(text(&version["name"]));
            if !wrong.is_empty() {
                self.invalid(&format!("{path}.name"), &version["name"], &wrong.join(","));
            }
            let warning = &version["deprecationWarning"];
            if version["deprecated"] != true && warning.is_string() {
                let why = "can only be set for deprecated versions";
                self.invalid(&format!("{path}.deprecationWarning"), warning, why);
            }
            let has_status = version["subresources"]["status"].is_object();
            if schema.is_none() {
                self.root(&version["schema"], has_status, &format!("{path}.schema"));
            }
            if parts.is_none() {
                self.scale(
                    &version["subresources"]["scale"],
                    &format!("{path}.subresources"),
                );
            }
            if columns.is_none() {
                self.columns(&version["additionalPrinterColumns"], &path);
            }
        }
        let has_status = versions
            .iter()
            .any(|version| version["subresources"]["status"].is_object());
        self.root(
            schema.unwrap_or(&Value::Null),
            has_status,
            "spec.validation",
        );
        self.scale(
            parts.map_or(&Value::Null, |parts| &parts["scale"]),
            "spec.subresources",
        );
        self.columns(columns.unwrap_or(&Value::Null), "spec");
        let shown = versions.iter().map(|version| {
            let text = |name: &str| go::shown(&version[name], self.1);
            format!(
                "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":null,\"Schema\":null,\
                 \"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}}",
                text("name"), text("served"), text("storage"), version["deprecated"] == true,
            )
        });
        let shown = if self.1 < Release::V1_34 {
            // With memory addresses, which `differential` removes.
            "[]apiextensions.CustomResourceDefinitionVersion{}".to_owned()
        } else {
            format!("[{}]", shown.collect::<Vec<_>>().join(","))
        };
        let name = |version: &Value| version["name"].clone();
        let is_repeated = |at: usize| {
            versions[..at]
                .iter()
                .any(|it| name(it) == name(&versions[at]))
        };
        if (0..versions.len()).any(is_repeated) {
            self.0.push(Cause::invalid(
                "spec.versions",
                &shown,
                "must contain unique version names",
            ));
        }
        if versions
            .iter()
            .filter(|version| version["storage"] == true)
            .count()
            != 1
        {
            let why = "must have exactly one version marked as storage version";
            self.0.push(Cause::invalid("spec.versions", &shown, why));
        }
        self.names(&spec["names"]);
        match text(&spec["conversion"]["strategy"]) {
            "None" | "Webhook" => {}
            "" => self.required("spec.conversion.strategy", ""),
            _ => {
                let value = &spec["conversion"]["strategy"];
                self.not_supported("spec.conversion.strategy", value, &["None", "Webhook"]);
            }
        }
    }

    fn names(&mut self, names: &Value) {
        for name in ["plural", "singular", "kind", "listKind"] {
            if text(&names[name]).is_empty() {
                self.required(&format!("spec.names.{name}"), "");
            }
        }
        let label = |name: &Value| names::dns1035_label(text(name)).join(",");
        for name in ["plural", "singular"] {
            let why = label(&names[name]);
            if !text(&names[name]).is_empty() && !why.is_empty() {
                self.invalid(&format!("spec.names.{name}"), &names[name], &why);
            }
        }
        for name in ["kind", "listKind"] {
            let why = label(&text(&names[name]).to_lowercase().into());
            if !text(&names[name]).is_empty() && !why.is_empty() {
                let why = format!("may have mixed case, but should otherwise match: {why}");
                self.invalid(&format!("spec.names.{name}"), &names[name], &why);
            }
        }
        if !text(&names["kind"]).is_empty() && names["kind"] == names["listKind"] {
            self.invalid(
                "spec.names.listKind",
                &names["listKind"],
                "kind and listKind may not be the same",
            );
        }
        for list in ["shortNames", "categories"] {
            for (at, name) in each(&names[list]).iter().enumerate() {
                let why = label(name);
                if !why.is_empty() {
                    self.invalid(&format!("spec.names.{list}[{at}]"), name, &why);
                }
            }
        }
    }

    fn columns(&mut self, columns: &Value, path: &str) {
        for (at, column) in each(columns).iter().enumerate() {
            let path = format!("{path}.additionalPrinterColumns[{at}]");
            let types = ["boolean", "date", "integer", "number", "string"];
            if text(&column["name"]).is_empty() {
                self.required(&format!("{path}.name"), "");
            }
            let words = format!("must be one of {}", types.join(","));
            match text(&column["type"]) {
                "" => self.required(&format!("{path}.type"), &words),
                kind if !types.contains(&kind) => {
                    self.invalid(&format!("{path}.type"), &column["type"], &words);
                }
                _ => {}
            }
            match text(&column["jsonPath"]) {
                "" => self.required(&format!("{path}.JSONPath"), ""),
                it if !it.starts_with('.') => {
                    let why = "must be a simple json path starting with .";
                    self.invalid(&format!("{path}.JSONPath"), &column["jsonPath"], why);
                }
                _ => {}
            }
        }
    }

    fn scale(&mut self, scale: &Value, path: &str) {
        if !scale.is_object() {
            return;
        }
        for (name, prefixes, where_) in [
            ("specReplicasPath", &[".spec."][..], ".spec"),
            ("statusReplicasPath", &[".status."], ".status"),
            (
                "labelSelectorPath",
                &[".spec.", ".status."],
                "either .spec or .status",
            ),
        ] {
            let (value, path) = (&scale[name], format!("{path}.scale.{name}"));
            match text(value) {
                "" if name == "labelSelectorPath" => {}
                "" => self.required(&path, ""),
                it if !it.starts_with('.') => {
                    self.invalid(&path, value, "must be a simple json path starting with .");
                }
                it if !prefixes.iter().any(|prefix| it.starts_with(prefix)) => {
                    self.invalid(
                        &path,
                        value,
                        &format!("should be a json path under {where_}"),
                    );
                }
                _ => {}
            }
        }
    }

    /// Checks the schema in a `schema` of a version.
    fn root(&mut self, parent: &Value, has_status: bool, path: &str) {
        let Some(schema) = schema_of(parent, "openAPIV3Schema") else {
            return;
        };
        let path = &format!("{path}.openAPIV3Schema");
        if has_status && schema["type"] != "object" {
            let why = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            self.invalid(&format!("{path}.type"), &json!(text(&schema["type"])), why);
        }
        if schema["nullable"] == true {
            self.forbid(
                format!("{path}.nullable"),
                "nullable cannot be true at the root",
            );
        }
        let before = self.0.len();
        self.structure(schema, Level::Root, path);
        self.completeness(schema, Some(schema), path, path);
        if self.0.len() == before {
            self.defaults(schema, path, true);
        }
        self.schema(
            schema,
            path,
            &Place {
                is_root: true,
                ..Place::default()
            },
        );
    }

    /// Checks that the defaults are valid and have no unknown fields.
    fn defaults(&mut self, schema: &Value, path: &str, is_root: bool) {
        if let Some(default) = schema.get("default").filter(|it| !it.is_null())
            && let Ok(compiled) = Schema::compile(schema, self.1)
        {
            let path = format!("{path}.default");
            let mut pruned = default.clone();
            if compiled.prune_default(&mut pruned) {
                self.invalid(&path, default, "must not have unknown fields");
            }
            let causes = compiled.validate_default(default, &path);
            self.0.extend(causes);
        }
        if let Some(items) = schema_of(schema, "items") {
            self.defaults(items, &format!("{path}.items"), false);
        }
        for (name, property) in fields(&schema["properties"]) {
            if !(is_root && matches!(name.as_str(), "metadata" | "kind" | "apiVersion")) {
                self.defaults(property, &format!("{path}.properties[{name}]"), false);
            }
        }
    }

    /// Checks a schema alone (`ValidateCustomResourceDefinitionOpenAPISchema`).
    #[allow(
        clippy::too_many_lines,
        reason = "one condition for each keyword, in the order of the API server"
    )]
    fn schema(&mut self, schema: &Value, path: &str, place: &Place<'_>) {
        let kind = text(&schema["type"]);
        let types = ["array", "boolean", "integer", "number", "object", "string"];
        if !kind.is_empty() && !types.contains(&kind) {
            self.not_supported(&format!("{path}.type"), &schema["type"], &types);
        }
        if schema.get("default").is_some_and(|it| !it.is_null())
            && let Some(why) = place.no_defaults
        {
            self.forbid(format!("{path}.default"), &format!("must not be set {why}"));
        }
        for keyword in [
            "id",
            "additionalItems",
            "patternProperties",
            "definitions",
            "dependencies",
            "$ref",
        ] {
            if schema.get(keyword).is_some_and(|value| !value.is_null()) {
                self.forbid(
                    format!("{path}.{keyword}"),
                    &format!("{keyword} is not supported"),
                );
            }
        }
        if schema["uniqueItems"] == true {
            let why =
                "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.forbid(format!("{path}.uniqueItems"), why);
        }
        let additional = &schema["additionalProperties"];
        if !additional.is_null() {
            if fields(&schema["properties"]).next().is_some() && *additional != json!(true) {
                let why = "additionalProperties and properties are mutual exclusive";
                self.forbid(format!("{path}.additionalProperties"), why);
            }
            if additional.is_object() {
                let why = "inside additionalProperties applying to object metadata";
                let no_defaults = if place.is_meta {
                    Some(why)
                } else {
                    place.no_defaults
                };
                let place = Place {
                    no_defaults,
                    is_root: false,
                    ..*place
                };
                self.schema(additional, &format!("{path}.additionalProperties"), &place);
            }
        }
        for (name, property) in fields(&schema["properties"]) {
            let is_resource = place.is_root || schema["x-kubernetes-embedded-resource"] == true;
            let is_meta =
                is_resource && matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
            let why = format!("in top-level {name}");
            let no_defaults = if is_meta && place.is_root {
                Some(why.as_str())
            } else {
                place.no_defaults
            };
            let place = Place {
                is_root: false,
                is_meta: place.is_meta || is_meta,
                no_defaults,
            };
            self.schema(property, &format!("{path}.properties[{name}]"), &place);
        }
        let below = Place {
            is_root: false,
            ..*place
        };
        if let Some(not) = schema_of(schema, "not") {
            self.schema(not, &format!("{path}.not"), &below);
        }
        for list in ["allOf", "oneOf", "anyOf"] {
            for (at, nested) in each(&schema[list]).iter().enumerate() {
                self.schema(nested, &format!("{path}.{list}[{at}]"), &below);
            }
        }
        if let Some(items) = schema_of(schema, "items") {
            self.schema(items, &format!("{path}.items"), &below);
        }
        if schema["x-kubernetes-preserve-unknown-fields"] == json!(false) {
            let path = format!("{path}.x-kubernetes-preserve-unknown-fields");
            self.invalid(&path, &json!(false), "must be true or undefined");
        }
        self.list_and_map(schema, path);
        for (at, rule) in each(&schema["x-kubernetes-validations"]).iter().enumerate() {
            self.rule(
                schema,
                rule,
                &format!("{path}.x-kubernetes-validations[{at}]"),
            );
        }
    }

    /// Checks `x-kubernetes-list-type` and `x-kubernetes-map-type`.
    #[allow(
        clippy::too_many_lines,
        reason = "one condition after the other, in the order of the API server"
    )]
    fn list_and_map(&mut self, schema: &Value, path: &str) {
        for (keyword, wanted, supported) in [
            (
                "x-kubernetes-map-type",
                "object",
                &["atomic", "granular"][..],
            ),
            ("x-kubernetes-list-type", "array", &["atomic", "map", "set"]),
        ] {
            let value = &schema[keyword];
            if value.is_null() {
                continue;
            }
            if schema["type"] != wanted {
                let why = format!("must be {wanted} if {keyword} is specified");
                match text(&schema["type"]) {
                    "" => self.required(&format!("{path}.type"), &why),
                    _ => self.invalid(&format!("{path}.type"), &schema["type"], &why),
                }
            }
            if !supported.contains(&text(value)) {
                let supported = if wanted == "array" {
                    &["atomic", "set", "map"][..]
                } else {
                    supported
                };
                self.not_supported(&format!("{path}.{keyword}"), value, supported);
            }
        }
        let (list, items) = (&schema["x-kubernetes-list-type"], &schema["items"]);
        let keys = each(&schema["x-kubernetes-list-map-keys"]);
        if !keys.is_empty() && *list != "map" {
            let (path, why) = (
                format!("{path}.x-kubernetes-list-type"),
                "must be map if x-kubernetes-list-map-keys is non-empty",
            );
            match text(list) {
                "" => self.required(&path, why),
                _ => self.invalid(&path, list, why),
            }
        }
        if *list == "set" && schema["type"] == "array" {
            let wrong = match text(&items["type"]) {
                "array" if !matches!(text(&items["x-kubernetes-list-type"]), "" | "atomic") => {
                    "x-kubernetes-list-type"
                }
                "object" if items["x-kubernetes-map-type"] != "atomic" => "x-kubernetes-map-type",
                _ => "",
            };
            if !wrong.is_empty() {
                let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
                self.invalid(
                    &format!("{path}.items.{wrong}"),
                    &items["x-kubernetes-list-type"],
                    why,
                );
            }
        }
        if *list == "map" {
            let keys_path = format!("{path}.x-kubernetes-list-map-keys");
            if keys.is_empty() {
                self.required(
                    &keys_path,
                    "must not be empty if x-kubernetes-list-type is map",
                );
            }
            if !items.is_object() {
                self.required(
                    &format!("{path}.items"),
                    "must have a schema if x-kubernetes-list-type is map",
                );
            } else if items["type"] != "object" {
                let why = "must be object if parent array's x-kubernetes-list-type is map";
                self.invalid(
                    &format!("{path}.items.type"),
                    &json!(text(&items["type"])),
                    why,
                );
            } else {
                for (at, key) in keys.iter().enumerate() {
                    let property = &items["properties"][text(key)];
                    if !property.is_object() {
                        let why = "entries must all be names of item properties";
                        self.0
                            .push(Cause::invalid(&keys_path, names_of(keys, self.1), why));
                    } else if matches!(text(&property["type"]), "array" | "object") {
                        let path = format!("{path}.items.properties[{}].type", text(key));
                        let why =
                            "must be a scalar type if parent array's x-kubernetes-list-type is map";
                        self.invalid(&path, &items["type"], why);
                    }
                    if keys[..at].contains(key) {
                        let why = "must not contain duplicate entries";
                        self.0
                            .push(Cause::invalid(&keys_path, names_of(keys, self.1), why));
                    }
                }
            }
        }
        if !matches!(text(list), "set" | "map") || !items.is_object() {
            return;
        }
        if items["nullable"] == true {
            let why = format!(
                "cannot be nullable when x-kubernetes-list-type is {}",
                text(list)
            );
            self.forbid(format!("{path}.items.nullable"), &why);
        }
        for key in keys.iter().map(text).filter(|_| *list == "map") {
            let property = &items["properties"][key];
            let path = format!("{path}.items.properties[{key}]");
            let is_required = each(&items["required"]).iter().any(|it| text(it) == key);
            if property.is_object() && !is_required && property["default"].is_null() {
                let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
                self.required(&format!("{path}.default"), why);
            }
            if property["nullable"] == true {
                let why =
                    "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
                self.forbid(format!("{path}.nullable"), why);
            }
        }
    }

    fn rule(&mut self, schema: &Value, rule: &Value, path: &str) {
        let (condition, message) = (text(&rule["rule"]).trim(), text(&rule["message"]));
        let has_lines = |text: &str| text.contains(['\n', '\r']);
        if condition.is_empty() {
            self.required(&format!("{path}.rule"), "rule is not specified");
        } else if !message.is_empty() && message.trim().is_empty() {
            let why = self.since_1_34(
                "message must be non-empty if specified",
                "must be non-empty if specified",
            );
            self.invalid(&format!("{path}.message"), &rule["message"], why);
        } else if has_lines(message.trim()) {
            let why = self.since_1_34(
                "message must not contain line breaks",
                "must not contain line breaks",
            );
            self.invalid(&format!("{path}.message"), &rule["message"], why);
        } else if has_lines(condition) && message.trim().is_empty() {
            let why = "message must be specified if rule contains line breaks";
            self.required(&format!("{path}.message"), why);
        }
        let expression = text(&rule["messageExpression"]);
        if !expression.is_empty() && expression.trim().is_empty() {
            let why = "messageExpression must be non-empty if specified";
            self.required(&format!("{path}.messageExpression"), why);
        }
        let reasons = [
            "FieldValueDuplicate",
            "FieldValueForbidden",
            "FieldValueInvalid",
            "FieldValueRequired",
        ];
        if rule["reason"].is_string() && !reasons.contains(&text(&rule["reason"])) {
            self.not_supported(&format!("{path}.reason"), &rule["reason"], &reasons);
        }
        let field = text(&rule["fieldPath"]);
        let mut shape = schema.clone();
        if let Some(fields) = shape.as_object_mut() {
            fields.remove("x-kubernetes-validations");
        }
        let is_valid = |node: Node| field_path(field.trim(), &node).is_some();
        if !field.is_empty() && Node::parse(&shape, self.1).is_ok_and(|node| !is_valid(node)) {
            let why = self.since_1_34("fieldPath must be a valid path", "must be a valid path");
            self.invalid(&format!("{path}.fieldPath"), &rule["fieldPath"], why);
        }
    }
}

/// Place of a schema in its CRD.
#[derive(Clone, Copy, Default)]
struct Place<'a> {
    is_root: bool,
    /// Within the type or the metadata of a resource.
    is_meta: bool,
    /// Why defaults are forbidden.
    no_defaults: Option<&'a str>,
}
