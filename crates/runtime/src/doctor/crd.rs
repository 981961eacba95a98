//! A CRD: whether it is there, serves, and is the one that this program prints.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionCondition,
};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::{Verdict, error, failed, is_forbidden, ok, skipped, warning};
use crate::failure::brief;

const APPLY: &str = "kubectl apply -f deploy/crd.yaml";

pub async fn examine(client: &Client, ours: &CustomResourceDefinition) -> Verdict {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    match crds.get_opt(&ours.name_any()).await {
        Ok(Some(theirs)) => judge(ours, &theirs),
        Ok(None) => missing(),
        // Which is as it should be where this runs with the controller's own rights.
        Err(error) if is_forbidden(&error) => is_served(client, ours).await,
        Err(error) => failed("get it", &error),
    }
}

fn missing() -> Verdict {
    error(format!("missing: {APPLY}"))
}

/// What everybody may know of it.
async fn is_served(client: &Client, ours: &CustomResourceDefinition) -> Verdict {
    let (group, plural) = (&ours.spec.group, &ours.spec.names.plural);
    for version in &ours.spec.versions {
        let version = format!("{group}/{}", version.name);
        match client.list_api_group_resources(&version).await {
            Ok(list) if list.resources.iter().any(|it| it.name == *plural) => {}
            Ok(_) => return missing(),
            Err(kube::Error::Api(status)) if status.code == 404 => return missing(),
            Err(error) => return failed(&format!("list what {version} has"), &error),
        }
    }
    skipped(
        "served; whether it is this program's cannot be seen: not allowed to get customresourcedefinitions",
    )
}

fn judge(ours: &CustomResourceDefinition, theirs: &CustomResourceDefinition) -> Verdict {
    let kind = &ours.spec.names.kind;
    if theirs.metadata.deletion_timestamp.is_some() {
        return error(format!(
            "being deleted, and each {kind} with it: when it is gone, {APPLY}"
        ));
    }
    let conditions = theirs.status.iter().flat_map(|it| &it.conditions).flatten();
    let conditions: Vec<_> = conditions.collect();
    let is_true = |it: &&&CustomResourceDefinitionCondition| it.status == "True";
    let established = conditions.iter().filter(|it| it.type_ == "Established");
    if established.filter(is_true).count() == 0 {
        let refused = conditions.iter().find(|it| it.status == "False");
        let why = refused.and_then(|it| it.message.as_deref());
        let why = why.map_or_else(|| "the API server is at it".to_owned(), brief);
        return error(format!("not established: {why}"));
    }
    let differences = differences(ours, theirs);
    let Some((first, others)) = differences.split_first() else {
        return ok("established, and as this program has it");
    };
    let age = if differences.iter().all(|it| it.change == Change::Lacks) {
        "older than this program"
    } else if differences.iter().all(|it| it.change == Change::Adds) {
        "newer than this program"
    } else {
        "another one than this program's"
    };
    let more = match others.len() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let matters = differences.iter().any(Difference::matters);
    let judged = if matters { error } else { warning };
    judged(format!("{age}: {}{more}: {APPLY}", first.text()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The cluster's lacks it.
    Lacks,
    /// This program's does.
    Adds,
    Differs,
}

#[derive(Debug)]
struct Difference {
    change: Change,
    path: String,
    ours: Value,
    theirs: Value,
}

impl Difference {
    /// Whether the API server stores, admits or serves another thing for it, and not only describes or shows it otherwise. What
    /// a newer CRD has beside ours does no harm.
    fn matters(&self) -> bool {
        let words = |part: &str| part == "description" || part == "additionalPrinterColumns";
        let is_shown = self.path.split('.').any(words) || self.path.starts_with("names");
        self.change != Change::Adds && !is_shown
    }

    fn text(&self) -> String {
        let Self {
            path, ours, theirs, ..
        } = self;
        match self.change {
            Change::Lacks => format!("it lacks {path}"),
            Change::Adds => format!("it has {path}"),
            // What is long is not told.
            Change::Differs if ours.is_array() || theirs.is_array() => format!("{path} differs"),
            Change::Differs => {
                let [ours, theirs] = [ours, theirs].map(|it| brief(&it.to_string()));
                format!("{path} is {theirs}, and not {ours}")
            }
        }
    }
}

/// Of what the controller or its users can notice, what matters first.
fn differences(
    ours: &CustomResourceDefinition,
    theirs: &CustomResourceDefinition,
) -> Vec<Difference> {
    let mut found = Vec::new();
    let [ours, theirs] = [ours, theirs].map(|crd| {
        let versions = crd.spec.versions.iter().map(|version| {
            let of_version = json!({
                "served": version.served.to_string(),
                "schema": version.schema.as_ref().and_then(|it| it.open_api_v3_schema.as_ref()),
                "subresources": version.subresources,
                "additionalPrinterColumns": version.additional_printer_columns,
            });
            (version.name.clone(), of_version)
        });
        let names = &crd.spec.names;
        let mut all: serde_json::Map<String, Value> = versions.collect();
        all.insert("scope".into(), json!(crd.spec.scope));
        // What else a name can be has a default.
        let names = json!({ "kind": names.kind, "shortNames": names.short_names, "categories": names.categories });
        all.insert("names".into(), names);
        let mut all = Value::Object(all);
        normalise(&mut all);
        all
    });
    compare("", &ours, &theirs, &mut found);
    found.sort_by_key(|difference| !difference.matters());
    found
}

/// Takes out what the API server does not store, since it is its default.
fn normalise(value: &mut Value) {
    let is_default = |key: &str, value: &Value| match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Number(number) => key == "priority" && number.as_i64() == Some(0),
        Value::Object(_) => false,
    };
    match value {
        Value::Object(fields) => {
            // What is in these is the users', as it stands.
            let own = |key: &str| matches!(key, "default" | "enum" | "example");
            fields.retain(|key, value| !is_default(key, value) || (own(key) && !value.is_null()));
            let fields = fields.iter_mut().filter(|(key, _)| !own(key));
            fields.for_each(|(_, value)| normalise(value));
        }
        Value::Array(items) => items.iter_mut().for_each(normalise),
        _ => {}
    }
}

fn compare(path: &str, ours: &Value, theirs: &Value, found: &mut Vec<Difference>) {
    if let (Value::Object(our_fields), Value::Object(their_fields)) = (ours, theirs) {
        let keys: BTreeSet<_> = our_fields.keys().chain(their_fields.keys()).collect();
        for key in keys {
            let dot = if path.is_empty() { "" } else { "." };
            let [ours, theirs] = [&ours[key], &theirs[key]];
            compare(&format!("{path}{dot}{key}"), ours, theirs, found);
        }
    } else if ours != theirs {
        let change = match (ours, theirs) {
            (_, Value::Null) => Change::Lacks,
            (Value::Null, _) => Change::Adds,
            _ => Change::Differs,
        };
        found.push(Difference {
            change,
            path: path.to_owned(),
            ours: ours.clone(),
            theirs: theirs.clone(),
        });
    }
}
