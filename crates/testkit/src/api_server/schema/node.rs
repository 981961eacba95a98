//! The schema of a CRD as a tree. It is parsed once for each version of a CRD.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{super::Release, formats, regexp::Pattern, rules::Rule};

/// A schema of one value: `JSONSchemaProps`. Maps are ordered, so that errors always have the same order.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a keyword")]
pub struct Node {
    pub release: Release,
    /// The permitted types: `type`, or both types of `x-kubernetes-int-or-string`.
    pub types: Vec<String>,
    /// The declared type, which is empty for `x-kubernetes-int-or-string`.
    pub kind: String,
    /// A format that is checked. Unknown formats are ignored.
    pub format: String,
    /// The format as it is declared.
    pub declared_format: String,
    pub nullable: bool,
    pub default: Option<Value>,
    pub numbers: Numbers,
    pub max_length: Option<i64>,
    pub min_length: Option<i64>,
    pub pattern: Option<Pattern>,
    pub max_items: Option<i64>,
    pub min_items: Option<i64>,
    pub max_properties: Option<i64>,
    pub min_properties: Option<i64>,
    pub values: Vec<Value>,
    pub required: Vec<String>,
    pub properties: BTreeMap<String, Node>,
    pub additional: Additional,
    pub items: Option<Box<Node>>,
    pub all_of: Vec<Node>,
    pub any_of: Vec<Node>,
    pub one_of: Vec<Node>,
    pub not: Option<Box<Node>>,
    pub int_or_string: bool,
    pub preserves: bool,
    pub embedded: bool,
    pub list: List,
    pub rules: Vec<Rule>,
    /// Whether this node or a node below has rules.
    pub has_rules: bool,
}

/// Bounds of numbers.
#[derive(Debug, Default)]
pub struct Numbers {
    pub maximum: Option<f64>,
    pub exclusive_maximum: bool,
    pub minimum: Option<f64>,
    pub exclusive_minimum: bool,
    pub multiple_of: Option<f64>,
}

/// `additionalProperties`.
#[derive(Debug, Default)]
pub enum Additional {
    #[default]
    Absent,
    /// A boolean.
    Any(bool),
    Schema(Box<Node>),
}

/// `x-kubernetes-list-type`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum List {
    #[default]
    Atomic,
    Set,
    /// With the keys of its elements.
    Map(Vec<String>),
}

/// Schema of a field, as pruning finds it.
pub enum Field<'a> {
    /// The schema does not mention the field.
    Unknown,
    /// The field may be there, but nothing is known of its content.
    Untyped,
    Known(&'a Node),
}

impl Node {
    /// Parses a schema.
    ///
    /// # Errors
    /// A keyword is not modelled, or a rule cannot be evaluated.
    pub fn parse(schema: &Value, release: Release) -> Result<Self, String> {
        let parse = |schema: &Value| Self::parse(schema, release);
        let flag = |name: &str| schema[name] == true;
        let count = |name: &str| schema[name].as_i64();
        let text = |name: &str| schema[name].as_str().unwrap_or_default().to_owned();
        let texts = |name: &str| -> Vec<String> {
            let all = schema[name].as_array().into_iter().flatten();
            all.filter_map(Value::as_str)
                .map(ToOwned::to_owned)
                .collect()
        };
        let each = |name: &str| -> Result<Vec<Self>, String> {
            let all = schema[name].as_array().into_iter().flatten();
            all.map(parse).collect()
        };
        let one = |name: &str| -> Result<Option<Box<Self>>, String> {
            let one = schema.get(name).filter(|schema| schema.is_object());
            Ok(one.map(parse).transpose()?.map(Box::new))
        };
        let int_or_string = flag("x-kubernetes-int-or-string");
        let kind = text("type");
        let types = match (int_or_string, kind.as_str()) {
            (true, _) => vec!["integer".to_owned(), "string".to_owned()],
            (false, "") => Vec::new(),
            (false, kind) => vec![kind.to_owned()],
        };
        let declared_format = text("format");
        let properties = schema["properties"].as_object().into_iter().flatten();
        let properties = properties
            .map(|(name, schema)| Ok((name.clone(), parse(schema)?)))
            .collect::<Result<BTreeMap<_, _>, String>>()?;
        let additional = match &schema["additionalProperties"] {
            Value::Bool(allowed) => Additional::Any(*allowed),
            Value::Object(_) => {
                one("additionalProperties")?.map_or(Additional::Absent, Additional::Schema)
            }
            _ => Additional::Absent,
        };
        let list = match text("x-kubernetes-list-type").as_str() {
            "set" => List::Set,
            "map" => List::Map(texts("x-kubernetes-list-map-keys")),
            _ => List::Atomic,
        };
        let pattern = text("pattern");
        let mut node = Self {
            release,
            format: formats::checked(&types, &declared_format, release)?,
            kind: if int_or_string { String::new() } else { kind },
            types,
            declared_format,
            nullable: flag("nullable"),
            default: schema.get("default").filter(|it| !it.is_null()).cloned(),
            numbers: Numbers {
                maximum: schema["maximum"].as_f64(),
                exclusive_maximum: flag("exclusiveMaximum"),
                minimum: schema["minimum"].as_f64(),
                exclusive_minimum: flag("exclusiveMinimum"),
                multiple_of: schema["multipleOf"].as_f64(),
            },
            max_length: count("maxLength"),
            min_length: count("minLength"),
            pattern: (!pattern.is_empty())
                .then(|| Pattern::new(&pattern))
                .transpose()?,
            max_items: count("maxItems"),
            min_items: count("minItems"),
            max_properties: count("maxProperties"),
            min_properties: count("minProperties"),
            values: schema["enum"].as_array().cloned().unwrap_or_default(),
            required: texts("required"),
            properties,
            additional,
            items: one("items")?,
            all_of: each("allOf")?,
            any_of: each("anyOf")?,
            one_of: each("oneOf")?,
            not: one("not")?,
            int_or_string,
            preserves: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            list,
            rules: Vec::new(),
            has_rules: false,
        };
        let rules = schema["x-kubernetes-validations"].as_array();
        for rule in rules.into_iter().flatten() {
            let rule = Rule::parse(rule, &node)?;
            node.rules.push(rule);
        }
        node.has_rules = !node.rules.is_empty() || node.children().any(|child| child.has_rules);
        Ok(node)
    }

    /// Returns the nodes of the structure, without the nodes of `allOf` and the like.
    fn children(&self) -> impl Iterator<Item = &Self> {
        let additional = match &self.additional {
            Additional::Schema(schema) => Some(&**schema),
            _ => None,
        };
        let properties = self.properties.values();
        properties.chain(additional).chain(self.items.as_deref())
    }

    /// Returns the schema of a field.
    pub fn field(&self, name: &str) -> Field<'_> {
        match (self.properties.get(name), &self.additional) {
            (Some(node), _) => Field::Known(node),
            (None, Additional::Schema(node)) => Field::Known(node),
            (None, Additional::Any(_)) => Field::Untyped,
            (None, Additional::Absent) => Field::Unknown,
        }
    }

    /// Returns the schema of a field, if it has one.
    pub fn child(&self, name: &str) -> Option<&Self> {
        match self.field(name) {
            Field::Known(node) => Some(node),
            Field::Untyped | Field::Unknown => None,
        }
    }

    /// Returns whether rules can use the value (`SchemaDeclType`).
    pub fn is_exposed(&self) -> bool {
        match self.kind.as_str() {
            _ if self.int_or_string => true,
            "array" => self.items.as_ref().is_some_and(|items| items.is_exposed()),
            "object" => match &self.additional {
                Additional::Schema(node) => node.is_exposed(),
                _ => true,
            },
            kind => !kind.is_empty(),
        }
    }
}
