//! Types of values, as field management needs them (`structured-merge-diff/schema`), from the schemas of CRDs and of the built-in
//! kinds (`kube-openapi/pkg/schemaconv`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use serde_json::Value;

use super::super::Release;

/// A type. A value without a declared type may have several forms.
#[derive(Debug, Default)]
pub struct Type {
    /// Such as `Probe`, for a type of the built-in kinds.
    pub name: String,
    pub scalar: Option<Scalar>,
    pub list: Option<List>,
    pub map: Option<Map>,
}

impl Type {
    pub fn is_quantity(&self) -> bool {
        self.scalar == Some(Scalar::Quantity)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    Number,
    Text,
    Bool,
    /// A text or a number.
    Quantity,
    Any,
}

#[derive(Debug)]
pub struct List {
    pub elements: Elements,
    /// Whether an element needs all keys of a map, as before 1.34. Since then, one is enough.
    pub needs_all_keys: bool,
    pub of: Ref,
}

/// Division of a list among managers: not at all, or into elements by their values or keys.
#[derive(Debug)]
pub enum Elements {
    Atomic,
    Set,
    Map(Vec<String>),
}

impl List {
    pub fn is_atomic(&self) -> bool {
        matches!(self.elements, Elements::Atomic)
    }
}

#[derive(Debug)]
pub struct Map {
    pub fields: BTreeMap<String, Field>,
    /// Type of the other fields, if there may be any.
    pub others: Option<Ref>,
    pub is_atomic: bool,
}

#[derive(Debug)]
pub struct Field {
    pub of: Ref,
    pub default: Option<Value>,
    /// Whether Go has a pointer here: the zero value differs from an absent one.
    pub is_pointer: bool,
}

impl Map {
    pub fn field(&self, name: &str) -> Option<&Ref> {
        let field = self.fields.get(name).map(|field| &field.of);
        field.or(self.others.as_ref())
    }

    /// Returns whether the map has no declared fields, and any others.
    pub fn is_untyped(&self) -> bool {
        self.fields.is_empty() && matches!(self.others, Some(Ref::Deduced))
    }
}

/// Type of a value in another value.
#[derive(Debug)]
pub enum Ref {
    Inline(Box<Type>),
    /// A type of the built-in kinds.
    Named(usize),
    /// The type of the value. Maps are granular, and lists atomic.
    Deduced,
    /// Any value, as a whole.
    Untyped,
}

impl Ref {
    pub fn get(&self) -> &Type {
        static DEDUCED: LazyLock<Type> = LazyLock::new(|| any(|| Ref::Deduced, false));
        static UNTYPED: LazyLock<Type> = LazyLock::new(|| any(|| Ref::Untyped, true));
        match self {
            Self::Inline(of) => of,
            Self::Named(at) => &BUILT_IN.types[*at],
            Self::Deduced => &DEDUCED,
            Self::Untyped => &UNTYPED,
        }
    }
}

fn any(values: fn() -> Ref, is_atomic: bool) -> Type {
    Type {
        name: String::new(),
        scalar: Some(Scalar::Any),
        list: Some(List {
            elements: Elements::Atomic,
            needs_all_keys: false,
            of: Ref::Untyped,
        }),
        map: Some(Map {
            fields: BTreeMap::new(),
            others: Some(values()),
            is_atomic,
        }),
    }
}

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const RAW: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";

/// Types of the built-in kinds.
struct BuiltIn {
    names: BTreeMap<String, usize>,
    types: Vec<Type>,
    /// By `apiVersion` and kind.
    kinds: BTreeMap<String, Ref>,
}

static BUILT_IN: LazyLock<BuiltIn> = LazyLock::new(BuiltIn::read);

impl BuiltIn {
    /// Reads the schemas, which `make merge-keys` takes from a real API server.
    fn read() -> Self {
        let table: Value = serde_json::from_str(include_str!("types.json")).unwrap_or_default();
        let schemas = table["types"].as_object().into_iter().flatten();
        let names: BTreeMap<_, _> = (schemas.clone().map(|(name, _)| name.clone()))
            .zip(0..)
            .collect();
        let reader = Reader {
            names: &names,
            release: Release::default(),
        };
        let pointers = pointers();
        let types = schemas.map(|(name, schema)| {
            let mut of = match name.as_str() {
                QUANTITY => Type {
                    scalar: Some(Scalar::Quantity),
                    ..Type::default()
                },
                RAW => any(|| Ref::Untyped, true),
                _ => reader.read(schema, false),
            };
            let mut parts = name.rsplit('.');
            let [kind, version, group] = [(); 3].map(|()| parts.next().unwrap_or_default());
            kind.clone_into(&mut of.name);
            for (field, of) in of.map.iter_mut().flat_map(|map| &mut map.fields) {
                let name = format!("{group}/{version}.{kind} {field}");
                of.is_pointer = pointers.contains(&name);
            }
            of
        });
        let types = types.collect();
        let kinds = table["kinds"].as_object().into_iter().flatten();
        let kinds = kinds.filter_map(|(kind, name)| {
            let at = names.get(name.as_str()?)?;
            Some((kind.clone(), Ref::Named(*at)))
        });
        let kinds = kinds.collect();
        Self {
            names,
            types,
            kinds,
        }
    }
}

/// Returns the types and names of the fields that are pointers in Go, such as `core/v1.PodSpec hostUsers`.
fn pointers() -> BTreeSet<String> {
    let lines = include_str!("../../http/protobuf.txt").lines();
    let messages: BTreeMap<_, _> = lines.filter_map(|line| line.split_once(' ')).collect();
    let mut pointers = BTreeSet::new();
    for (name, fields) in &messages {
        let mut todo = vec![*fields];
        while let Some(fields) = todo.pop() {
            for field in fields.split(' ') {
                let Some((field, of)) = field.split_once('=') else {
                    continue;
                };
                let of = of.split_once(':').map_or("", |(_, of)| of);
                match of.split_at_checked(1) {
                    Some(("?", _)) => _ = pointers.insert(format!("{name} {field}")),
                    // The fields of this message belong to the outer one.
                    Some(("~", inline)) => todo.extend(messages.get(inline)),
                    _ => {}
                }
            }
        }
    }
    pointers
}

/// Returns the type of a built-in kind.
pub fn built_in(api_version: &str, kind: &str) -> Option<&'static Ref> {
    BUILT_IN.kinds.get(&format!("{api_version}/{kind}"))
}

/// Returns the type of a custom kind with this schema.
pub fn custom(schema: &Value, release: Release) -> Ref {
    let mut schema = schema.clone();
    schema["x-kubernetes-embedded-resource"] = true.into();
    let reader = Reader {
        names: &BUILT_IN.names,
        release,
    };
    Ref::Inline(Box::new(reader.read(&schema, false)))
}

/// Returns the paths of fields that a type does not have.
pub fn unknown(of: &Ref, value: &Value, path: &str, all: &mut Vec<String>) {
    let of = of.get();
    match value {
        Value::Object(fields) => {
            let Some(map) = &of.map else {
                return;
            };
            for (name, value) in fields {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                match map.field(name) {
                    Some(of) => unknown(of, value, &path, all),
                    None => all.push(path),
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                if let Some(list) = &of.list {
                    unknown(&list.of, item, &format!("{path}[{at}]"), all);
                }
            }
        }
        _ => {}
    }
}

struct Reader<'a> {
    names: &'a BTreeMap<String, usize>,
    release: Release,
}

impl Reader<'_> {
    fn named(&self, name: &str) -> Ref {
        self.names
            .get(name)
            .map_or(Ref::Untyped, |at| Ref::Named(*at))
    }

    fn refer(&self, schema: &Value, preserves: bool) -> Ref {
        let name = |schema: &Value| {
            let reference = schema["$ref"].as_str()?;
            Some(self.named(reference.rsplit('/').next()?))
        };
        name(schema).unwrap_or_else(|| Ref::Inline(Box::new(self.read(schema, preserves))))
    }

    fn read(&self, schema: &Value, preserves: bool) -> Type {
        let preserves = preserves || schema["x-kubernetes-preserve-unknown-fields"] == true;
        let of = |scalar| Type {
            scalar: Some(scalar),
            ..Type::default()
        };
        let list = || Some(self.list(schema, preserves));
        let map = || Some(self.map(schema, preserves));
        match schema["type"].as_str().unwrap_or_default() {
            "" => Type {
                scalar: Some(Scalar::Any),
                list: list(),
                map: map(),
                ..Type::default()
            },
            "object" => Type {
                map: map(),
                ..Type::default()
            },
            "array" => Type {
                list: list(),
                ..Type::default()
            },
            "integer" | "number" => of(Scalar::Number),
            "boolean" => of(Scalar::Bool),
            _ => match schema["format"].as_str().unwrap_or_default() {
                "" | "byte" => of(Scalar::Text),
                _ => of(Scalar::Any),
            },
        }
    }

    fn list(&self, schema: &Value, preserves: bool) -> List {
        let text = |name: &str| schema[format!("x-kubernetes-{name}")].as_str();
        let keys = || {
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            let keys = keys.into_iter().flatten().filter_map(Value::as_str);
            keys.map(ToOwned::to_owned).collect()
        };
        let elements = match (text("list-type"), text("patch-strategy")) {
            (Some("set"), _) => Elements::Set,
            (Some("map"), _) => Elements::Map(keys()),
            (None, Some("merge" | "merge,retainKeys")) => match text("patch-merge-key") {
                Some(key) => Elements::Map(vec![key.to_owned()]),
                None => Elements::Set,
            },
            _ => Elements::Atomic,
        };
        let of = match &schema["items"] {
            Value::Null => Ref::Untyped,
            items => self.refer(items, preserves),
        };
        List {
            elements,
            needs_all_keys: self.release < Release::V1_34,
            of,
        }
    }

    fn map(&self, schema: &Value, preserves: bool) -> Map {
        let properties = schema["properties"].as_object();
        let properties = properties.into_iter().flatten().map(|(name, schema)| {
            let default = schema.get("default").filter(|it| !it.is_null()).cloned();
            let of = self.refer(schema, preserves);
            let is_pointer = false;
            (
                name.clone(),
                Field {
                    of,
                    default,
                    is_pointer,
                },
            )
        });
        let mut fields: BTreeMap<_, _> = properties.collect();
        if schema["x-kubernetes-embedded-resource"] == true {
            for (name, of) in [
                ("apiVersion", text()),
                ("kind", text()),
                ("metadata", self.named(META)),
            ] {
                let (default, is_pointer) = (None, false);
                fields.insert(
                    name.to_owned(),
                    Field {
                        of,
                        default,
                        is_pointer,
                    },
                );
            }
        }
        let others = match &schema["additionalProperties"] {
            Value::Null if preserves || fields.is_empty() => Some(Ref::Deduced),
            Value::Bool(true) => Some(Ref::Deduced),
            values @ Value::Object(_) => Some(self.refer(values, preserves)),
            _ => None,
        };
        Map {
            fields,
            others,
            is_atomic: schema["x-kubernetes-map-type"] == "atomic",
        }
    }
}

fn text() -> Ref {
    Ref::Inline(Box::new(Type {
        scalar: Some(Scalar::Text),
        ..Type::default()
    }))
}
