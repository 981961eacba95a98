//! Checks that a schema is structural: each value has one type, and validations only restrict known fields.

use serde_json::{Value, json};

use super::{
    super::schema::Schema,
    check::{Causes, each, fields, schema_of, text},
};

/// Place of a schema in its parent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Root,
    Item,
    Field,
}

impl Causes {
    /// Checks that a schema is structural (`validateStructuralInvariants`).
    #[allow(
        clippy::too_many_lines,
        reason = "one condition after the other, in the order of the API server"
    )]
    pub(super) fn structure(&mut self, schema: &Value, level: Level, path: &str) {
        let kind = text(&schema["type"]);
        let (embedded, preserves, int_or_string) = (
            schema["x-kubernetes-embedded-resource"] == true,
            schema["x-kubernetes-preserve-unknown-fields"] == true,
            schema["x-kubernetes-int-or-string"] == true,
        );
        match schema_of(schema, "items") {
            Some(items) => self.structure(items, Level::Item, &format!("{path}.items")),
            None if kind == "array" => self.required(&format!("{path}.items"), "must be specified"),
            None => {}
        }
        for (name, property) in fields(&schema["properties"]) {
            self.structure(
                property,
                Level::Field,
                &format!("{path}.properties[{name}]"),
            );
        }
        let additional = &schema["additionalProperties"];
        if !additional.is_null() {
            if level == Level::Root {
                self.forbid(
                    format!("{path}.additionalProperties"),
                    "must not be used at the root",
                );
            }
            if additional.is_object() {
                self.structure(
                    additional,
                    Level::Field,
                    &format!("{path}.additionalProperties"),
                );
            }
            if embedded {
                let why = "must not be used if x-kubernetes-embedded-resource is set";
                self.forbid(format!("{path}.additionalProperties"), why);
            }
        }
        if int_or_string && preserves {
            let why = "must be false if x-kubernetes-int-or-string is true";
            self.invalid(
                &format!("{path}.x-kubernetes-preserve-unknown-fields"),
                &json!(true),
                why,
            );
        }
        if int_or_string && embedded {
            let why = "must be false if x-kubernetes-int-or-string is true";
            self.invalid(
                &format!("{path}.x-kubernetes-embedded-resource"),
                &json!(true),
                why,
            );
        }
        let both = json!([{ "type": "integer" }, { "type": "string" }]);
        let skips_any = schema["anyOf"] == both;
        let skips_first = schema["allOf"][0]["anyOf"] == both;
        self.validations(schema, (skips_any, skips_first), path);
        let kind_path = format!("{path}.type");
        if embedded && kind != "object" {
            let why = "must be object if x-kubernetes-embedded-resource is true";
            if kind.is_empty() {
                self.required(&kind_path, why);
            } else {
                self.invalid(&kind_path, &schema["type"], why);
            }
        } else if kind.is_empty() && !int_or_string && !preserves {
            self.required(
                &kind_path,
                match level {
                    Level::Root => "must not be empty at the root",
                    Level::Item => "must not be empty for specified array items",
                    Level::Field => "must not be empty for specified object fields",
                },
            );
        }
        if level == Level::Root && !kind.is_empty() && kind != "object" {
            self.invalid(&kind_path, &schema["type"], "must be object at the root");
        }
        if level == Level::Root || embedded {
            for name in ["kind", "apiVersion"] {
                let property = &schema["properties"][name];
                if property.is_object() && property["type"] != "string" {
                    let path = format!("{path}.properties[{name}].type");
                    self.invalid(&path, &json!(text(&property["type"])), "must be string");
                }
            }
        }
        let meta = &schema["properties"]["metadata"];
        if meta.is_object() {
            let path = format!("{path}.properties[metadata]");
            if (level == Level::Root || embedded) && meta["type"] != "object" {
                self.invalid(
                    &format!("{path}.type"),
                    &json!(text(&meta["type"])),
                    "must be object",
                );
            }
            let is_small = fields(meta).all(|(name, value)| match name.as_str() {
                "type" | "default" => true,
                "properties" => {
                    fields(value).all(|(name, _)| matches!(name.as_str(), "name" | "generateName"))
                }
                _ => false,
            });
            if level == Level::Root && !is_small {
                let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
                self.forbid(path, why);
            }
        }
        if embedded && !preserves && fields(&schema["properties"]).next().is_none() {
            let why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
            self.required(&format!("{path}.properties"), why);
        }
    }

    /// Checks the validations of a schema, and those below `allOf` and the like.
    fn validations(&mut self, schema: &Value, (skips_any, skips_first): (bool, bool), path: &str) {
        for (list, skipped) in [("anyOf", skips_any), ("allOf", false), ("oneOf", false)] {
            for (at, nested) in each(&schema[list]).iter().enumerate().filter(|_| !skipped) {
                let skips_any = list == "allOf" && at == 0 && skips_first;
                self.nested(nested, skips_any, &format!("{path}.{list}[{at}]"));
            }
        }
        if let Some(not) = schema_of(schema, "not") {
            self.nested(not, false, &format!("{path}.not"));
        }
        let pattern = &schema["pattern"];
        if let Err(why) = Schema::check_pattern(text(pattern)) {
            let why = format!("must be a valid regular expression, but isn't: {why}");
            self.invalid(&format!("{path}.pattern"), pattern, &why);
        }
    }

    fn nested(&mut self, schema: &Value, skips_any: bool, path: &str) {
        self.validations(schema, (skips_any, false), path);
        if let Some(items) = schema_of(schema, "items") {
            self.nested(items, false, &format!("{path}.items"));
        }
        for (name, property) in fields(&schema["properties"]) {
            self.nested(property, false, &format!("{path}.properties[{name}]"));
        }
        for (keyword, words) in [
            ("type", "must be empty to be structural"),
            ("additionalProperties", "must be undefined to be structural"),
            ("default", "must be undefined to be structural"),
            ("title", "must be empty to be structural"),
            ("description", "must be empty to be structural"),
            ("nullable", "must be false to be structural"),
            (
                "x-kubernetes-preserve-unknown-fields",
                "must be false to be structural",
            ),
            (
                "x-kubernetes-embedded-resource",
                "must be false to be structural",
            ),
            (
                "x-kubernetes-int-or-string",
                "must be false to be structural",
            ),
            (
                "x-kubernetes-list-map-keys",
                "must be empty to be structural",
            ),
            (
                "x-kubernetes-list-type",
                "must be undefined to be structural",
            ),
            (
                "x-kubernetes-map-type",
                "must be undefined to be structural",
            ),
            ("x-kubernetes-validations", "must be empty to be structural"),
        ] {
            let value = &schema[keyword];
            if !value.is_null() && *value != json!(false) {
                self.forbid(format!("{path}.{keyword}"), words);
            }
        }
        if schema["properties"]["metadata"].is_object() {
            let why = "must not be specified in a nested context";
            self.forbid(format!("{path}.properties[metadata]"), why);
        }
    }

    /// Checks that all fields of nested validations are in the structure.
    pub(super) fn completeness(
        &mut self,
        validations: &Value,
        schema: Option<&Value>,
        at: &str,
        path: &str,
    ) {
        if let Some(not) = schema_of(validations, "not") {
            self.nested_completeness(not, schema, at, &format!("{path}.not"));
        }
        for list in ["allOf", "anyOf", "oneOf"] {
            for (index, nested) in each(&validations[list]).iter().enumerate() {
                self.nested_completeness(nested, schema, at, &format!("{path}.{list}[{index}]"));
            }
        }
    }

    fn nested_completeness(
        &mut self,
        nested: &Value,
        schema: Option<&Value>,
        at: &str,
        path: &str,
    ) {
        let Some(schema) = schema else {
            return self.required(at, &format!("because it is defined in {path}"));
        };
        self.completeness(nested, Some(schema), at, path);
        if let Some(items) = schema_of(nested, "items") {
            let of = schema_of(schema, "items");
            self.nested_completeness(items, of, &format!("{at}.items"), &format!("{path}.items"));
        }
        for (name, property) in fields(&nested["properties"]) {
            let (at, path) = (
                format!("{at}.properties[{name}]"),
                format!("{path}.properties[{name}]"),
            );
            self.nested_completeness(property, schema["properties"].get(name), &at, &path);
        }
    }
}
