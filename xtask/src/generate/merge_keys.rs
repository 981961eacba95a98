//! The table of merge keys, and the types of the kinds that the API server in memory has, from the `OpenAPI` documents of a real
//! API server. `make generate` leaves them out, because they need a control plane.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use operator_testkit::cluster::{Cluster, Options};
use serde_json::{Map, Value, json};

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
/// Fields that only the API server and other controllers write.
const NOT_DESIRED: [&str; 2] = ["status", "managedFields"];
/// Maximum length of a list on one line.
const WIDTH: usize = 60;

/// Kinds with field management in the API server in memory.
const MANAGED: [[&str; 3]; 13] = [
    ["", "v1", "Namespace"],
    ["", "v1", "ServiceAccount"],
    ["", "v1", "Service"],
    ["", "v1", "ConfigMap"],
    ["", "v1", "Secret"],
    ["", "v1", "Event"],
    ["apps", "v1", "Deployment"],
    ["batch", "v1", "Job"],
    ["coordination.k8s.io", "v1", "Lease"],
    ["events.k8s.io", "v1", "Event"],
    ["storage.k8s.io", "v1", "StorageClass"],
    ["autoscaling", "v1", "Scale"],
    ["apiextensions.k8s.io", "v1", "CustomResourceDefinition"],
];
/// Keywords of schemas that divide a value into fields.
const DIVIDING: [&str; 8] = [
    "type",
    "format",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-patch-strategy",
    "x-kubernetes-patch-merge-key",
    "x-kubernetes-preserve-unknown-fields",
];

/// Writes the tables.
pub fn run() -> ExitCode {
    for (path, table) in files() {
        fs::write(path, table).unwrap();
    }
    ExitCode::SUCCESS
}

/// Returns the paths and the contents of the tables.
fn files() -> [(PathBuf, String); 2] {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let api = runtime.block_on(Api::read());
    let [keys, types] = [
        "crates/runtime/src/api/merge_keys.rs",
        "crates/testkit/src/api_server/fields/types.json",
    ];
    [
        (root.join(keys), api.table()),
        (root.join(types), api.types()),
    ]
}

/// Kinds and schemas of the API.
#[derive(Default)]
struct Api {
    /// Schema of each kind by group, version and kind.
    kinds: BTreeMap<[String; 3], String>,
    schemas: BTreeMap<String, Value>,
}

/// The rule of a field as the code of a `Field`, without the type in it.
struct Rule {
    code: String,
    of: Option<String>,
    /// Whether `of` is a union.
    is_union: bool,
}

impl Api {
    async fn read() -> Self {
        let cluster = Cluster::start(Options::default());
        let client = cluster.client().await;
        let get = async |path: &str| {
            let request = http::Request::get(path).body(Vec::new()).unwrap();
            client.request::<Value>(request).await.unwrap()
        };
        let mut api = Self::default();
        let index = get("/openapi/v3").await;
        for (path, document) in index["paths"].as_object().unwrap() {
            if path.starts_with("api") && path.contains("/v") {
                api.add(&get(document["serverRelativeURL"].as_str().unwrap()).await);
            }
        }
        api
    }

    fn add(&mut self, document: &Value) {
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for (name, schema) in schemas {
            self.schemas.insert(name.clone(), schema.clone());
        }
        for (path, item) in document["paths"].as_object().unwrap() {
            // The kinds that `Kind` can name.
            if !path.ends_with("/{name}") {
                continue;
            }
            let patch = &item["patch"];
            let kind = &patch["x-kubernetes-group-version-kind"];
            let schema = &patch["responses"]["200"]["content"]["application/json"]["schema"];
            if let Some(of) = type_of(schema) {
                let name = ["group", "version", "kind"].map(|it| kind[it].as_str().unwrap().into());
                self.kinds.insert(name, of);
            }
        }
    }

    fn fields(&self, of: &str) -> impl Iterator<Item = (&String, &Value)> {
        let fields = self.schemas[of]["properties"].as_object();
        let fields = fields.into_iter().flatten();
        fields.filter(|(name, _)| !NOT_DESIRED.contains(&name.as_str()))
    }

    /// Returns the rule of a field. If a type without rules is in it, there is none.
    fn rule(&self, field: &Value, ruled: &BTreeSet<String>) -> Option<Rule> {
        let [items, values] = ["items", "additionalProperties"].map(|it| &field[it]);
        let of = [field, items, values].into_iter().find_map(type_of);
        let is_quantity = of.as_deref() == Some(QUANTITY);
        let text = |name: &str| field[format!("x-kubernetes-{name}")].as_str();
        let mut strategies = text("patch-strategy").unwrap_or_default().split(',');
        let is_union = strategies.clone().any(|it| it == "retainKeys");
        let of = of.filter(|of| is_union || ruled.contains(of));
        let code = if strategies.any(|it| it == "merge") {
            match text("patch-merge-key") {
                None => "Set".to_owned(),
                Some(key) => format!("Keyed(&[{}], ", self.keys(field, key)),
            }
        } else if values.is_object() {
            match &of {
                Some(_) => "Objects(",
                None if is_quantity => "Quantities",
                None => "Map",
            }
            .to_owned()
        } else if is_quantity {
            "Quantity".to_owned()
        } else if of.is_none() {
            return None;
        } else if text("patch-strategy") == Some("replace") {
            "Replaced(".to_owned()
        } else if items.is_object() {
            "List(".to_owned()
        } else {
            "Object(".to_owned()
        };
        Some(Rule { code, of, is_union })
    }

    /// Returns the code of a list's keys, `first` first.
    fn keys(&self, field: &Value, first: &str) -> String {
        let others = field["x-kubernetes-list-map-keys"].as_array();
        let others = others.into_iter().flatten().map(|it| it.as_str().unwrap());
        let keys = [first].into_iter().chain(others.filter(|it| *it != first));
        let of = &self.schemas[&type_of(&field["items"]).unwrap()]["properties"];
        let code = keys.map(|key| {
            let default = of[key]["default"].as_str().unwrap_or_default();
            format!("({key:?}, {default:?})")
        });
        code.collect::<Vec<_>>().join(", ")
    }

    /// Returns the types that have rules for their fields, directly or indirectly.
    fn ruled(&self) -> BTreeSet<String> {
        let mut ruled = BTreeSet::new();
        loop {
            let has_rule =
                |of: &&String| self.fields(of).any(|it| self.rule(it.1, &ruled).is_some());
            let more: BTreeSet<_> = self.schemas.keys().filter(has_rule).cloned().collect();
            if more == ruled {
                return ruled;
            }
            ruled = more;
        }
    }

    /// Returns the types of the managed kinds as JSON, one on a line.
    fn types(&self) -> String {
        let mut types: BTreeMap<String, Value> = BTreeMap::new();
        let mut todo = vec![META.to_owned()];
        let mut kinds = Map::new();
        for name in MANAGED {
            let is_it = |schema: &Value| {
                let of = schema["x-kubernetes-group-version-kind"].as_array();
                let mut of = of.into_iter().flatten();
                of.any(|of| ["group", "version", "kind"].map(|it| &of[it]) == name)
            };
            let (of, _) = self.schemas.iter().find(|(_, it)| is_it(it)).unwrap();
            let [group, version, kind] = name;
            let group = group.to_owned() + if group.is_empty() { "" } else { "/" };
            kinds.insert(format!("{group}{version}/{kind}"), of.as_str().into());
            todo.push(of.clone());
        }
        while let Some(of) = todo.pop() {
            let schema = &self.schemas[&of];
            types
                .entry(of)
                .or_insert_with(|| divided(schema, &mut todo));
        }
        let kinds = Value::Object(kinds);
        let types = types.iter().map(|(of, schema)| format!("{of:?}: {schema}"));
        let types = types.collect::<Vec<_>>().join(",\n");
        format!("{{\"kinds\": {kinds},\n\"types\": {{\n{types}\n}}}}\n")
    }

    fn table(&self) -> String {
        let ruled = self.ruled();
        let mut table = "//! Merge keys and quantities of the built-in resource types: all fields that `Comparison` compares in another way than\n\
                         //! by default. The rules of `metadata` hold for all resource types, listed or not.\n\
                         //!\n\
                         //! Generated by `make merge-keys` from the `OpenAPI` documents of a Kubernetes API server.\n\n\
                         use crate::api::difference::schema::{\n    Field::{Keyed, List, Map, Object, Objects, Quantities, Quantity, Replaced, Set},\n    PLAIN, Type,\n};\n\n"
            .to_owned();
        let mut types = BTreeMap::new();
        let mut unions = BTreeSet::new();
        let mut todo = vec![META.to_owned()];
        table.push_str("/// Types by group, version and kind.\npub(super) static KINDS: &[((&str, &str, &str), Type)] = &[\n");
        for ([group, version, kind], of) in &self.kinds {
            let fields = self.code(of, &["metadata"], &ruled, &mut todo, &mut unions);
            if !fields.is_empty() {
                let fields = list("    ", &fields);
                let _ = writeln!(
                    table,
                    "    (({group:?}, {version:?}, {kind:?}), Type::of({fields})),"
                );
            }
        }
        table.push_str("];\n");
        while let Some(of) = todo.pop() {
            if let Entry::Vacant(entry) = types.entry(of) {
                let fields = self.code(entry.key(), &[], &ruled, &mut todo, &mut unions);
                entry.insert(fields);
            }
        }
        let names: BTreeMap<_, _> = types
            .iter()
            .map(|(of, fields)| (constant(of), (of, fields)))
            .collect();
        assert_eq!(names.len(), types.len(), "two types have the same name");
        for (name, (of, fields)) in names {
            let make = if unions.contains(of) { "union" } else { "of" };
            let visible = if of == META { "pub(super) " } else { "" };
            let _ = write!(
                table,
                "\n{visible}static {name}: Type = Type::{make}({});",
                list("", fields)
            );
        }
        table.push('\n');
        table
    }

    /// Returns the code of the fields of a type. Adds the types in it to `todo`, and each union also to `unions`.
    fn code(
        &self,
        of: &str,
        except: &[&str],
        ruled: &BTreeSet<String>,
        todo: &mut Vec<String>,
        unions: &mut BTreeSet<String>,
    ) -> Vec<String> {
        let mut fields = Vec::new();
        for (name, field) in self
            .fields(of)
            .filter(|(name, _)| !except.contains(&name.as_str()))
        {
            let Some(rule) = self.rule(field, ruled) else {
                continue;
            };
            let has_type = rule.code.ends_with(['(', ' ']);
            let of = rule.of.as_deref().map_or("PLAIN".to_owned(), constant);
            let end = if has_type {
                format!("&{of})")
            } else {
                String::new()
            };
            fields.push(format!("({name:?}, {}{end})", rule.code));
            if rule.is_union {
                unions.extend(rule.of.clone());
            }
            todo.extend(rule.of);
        }
        fields
    }
}

/// Returns a schema with the keywords that divide a value into fields. Adds the types in it to `todo`.
fn divided(schema: &Value, todo: &mut Vec<String>) -> Value {
    if let Some(of) = type_of(schema) {
        assert!(
            schema["x-kubernetes-map-type"].is_null(),
            "a reference with another map type"
        );
        let mut reference = json!({ "$ref": of });
        todo.push(of);
        if !schema["default"].is_null() && schema["default"] != json!({}) {
            reference["default"] = schema["default"].clone();
        }
        return reference;
    }
    let mut divided = json!({});
    for keyword in DIVIDING.iter().chain(&["default"]) {
        let value = &schema[*keyword];
        // An empty object divides nothing, but an empty string is the key of an element without one.
        if !value.is_null() && *value != json!({}) {
            divided[*keyword] = value.clone();
        }
    }
    for keyword in ["items", "additionalProperties"] {
        if schema[keyword].is_object() {
            divided[keyword] = self::divided(&schema[keyword], todo);
        }
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        divided["properties"][name] = self::divided(schema, todo);
    }
    divided
}

/// Returns the name of the referenced schema.
fn type_of(schema: &Value) -> Option<String> {
    let reference = schema["$ref"]
        .as_str()
        .or(schema["allOf"][0]["$ref"].as_str())?;
    Some(reference.rsplit('/').next()?.to_owned())
}

/// Returns the name of the constant for a type, without its group.
fn constant(of: &str) -> String {
    let name = of.rsplit('.').next().unwrap_or_default();
    let mut constant = String::new();
    let mut was_small = false;
    let mut letters = name.chars().peekable();
    while let Some(letter) = letters.next() {
        let begins_word = was_small || letters.peek().is_some_and(char::is_ascii_lowercase);
        if begins_word && letter.is_uppercase() && !constant.is_empty() {
            constant.push('_');
        }
        constant.push(letter.to_ascii_uppercase());
        was_small = letter.is_lowercase();
    }
    constant
}

/// Returns the code of a list, on one line if it is short.
fn list(indent: &str, elements: &[String]) -> String {
    let line = format!("&[{}]", elements.join(", "));
    if line.len() <= WIDTH || elements.is_empty() {
        return line;
    }
    let lines = elements.iter().map(|it| format!("\n{indent}    {it},"));
    format!("&[{}\n{indent}]", lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_those_of_the_api_server() {
        for (path, table) in files() {
            let committed = fs::read_to_string(path).unwrap();
            assert!(committed == table, "run `make merge-keys`");
        }
    }
}
