//! `OpenAPI` v3 documents, which kubectl reads for `explain`, and to learn whether a write can be validated by the server.

use std::sync::Arc;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        batch::v1::Job,
        coordination::v1::Lease,
        core::v1::{ConfigMap, Event as CoreEvent, Namespace, Secret, Service, ServiceAccount},
        events::v1::Event,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::discovery::Resource;
use crate::api_server::Release;

/// Returns a document, or `None` for another path. `definitions` are the established CRDs.
pub fn document(
    path: &str,
    resources: &[Resource],
    definitions: &[Arc<Value>],
    release: Release,
) -> Option<Value> {
    let of = path.strip_prefix("/openapi/v3")?.trim_matches('/');
    let folder = |resource: &Resource| match resource.group.as_str() {
        "" => format!("api/{}", resource.version),
        group => format!("apis/{group}/{}", resource.version),
    };
    if of.is_empty() {
        let paths = resources.iter().map(|resource| {
            let path = folder(resource);
            let url = format!("/openapi/v3/{path}");
            (path, json!({ "serverRelativeURL": url }))
        });
        return Some(json!({ "paths": paths.collect::<Map<_, _>>() }));
    }
    let here: Vec<_> = resources.iter().filter(|it| folder(it) == of).collect();
    if here.is_empty() {
        return None;
    }
    let mut generator = SchemaSettings::openapi3().into_generator();
    let (mut paths, mut custom) = (Map::new(), Map::new());
    for resource in &here {
        let kind =
            json!({ "group": resource.group, "version": resource.version, "kind": resource.kind });
        let scope = if resource.namespaced {
            "/namespaces/{namespace}"
        } else {
            ""
        };
        let path = format!("/{of}{scope}/{}/{{name}}", resource.plural);
        let parameter =
            json!({ "name": "fieldValidation", "in": "query", "schema": { "type": "string" } });
        let operation = |action: &str| {
            json!({
                "parameters": [parameter], "x-kubernetes-action": action, "x-kubernetes-group-version-kind": kind,
                "responses": { "200": { "description": "OK" } },
            })
        };
        paths.insert(
            path,
            json!({ "patch": operation("patch"), "put": operation("put") }),
        );
        if !add(resource, &mut generator) {
            let schema = definitions.iter().find_map(|it| schema(it, resource));
            let mut schema = schema.unwrap_or_else(|| json!({ "type": "object" }));
            schema["x-kubernetes-group-version-kind"] = json!([kind]);
            let reversed: Vec<_> = resource.group.split('.').rev().collect();
            let name = format!(
                "{}.{}.{}",
                reversed.join("."),
                resource.version,
                resource.kind
            );
            custom.insert(name, schema);
        }
    }
    let mut schemas = generator.take_definitions(true);
    for (name, schema) in &mut schemas {
        let kind = here
            .iter()
            .find(|it| name.ends_with(&format!(".{}", it.kind)));
        if let Some(it) = kind {
            schema["x-kubernetes-group-version-kind"] =
                json!([{ "group": it.group, "version": it.version, "kind": it.kind }]);
        }
    }
    schemas.extend(custom);
    Some(json!({
        "openapi": "3.0.0", "info": { "title": "Kubernetes", "version": release.to_string() }, "paths": paths,
        "components": { "schemas": schemas },
    }))
}

/// Adds the schema of a built-in kind.
fn add(resource: &Resource, generator: &mut SchemaGenerator) -> bool {
    fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) {
        generator.subschema_for::<T>();
    }
    let add = match (&*resource.group, &*resource.kind) {
        ("", "Namespace") => schema::<Namespace>,
        ("", "ServiceAccount") => schema::<ServiceAccount>,
        ("", "Service") => schema::<Service>,
        ("", "ConfigMap") => schema::<ConfigMap>,
        ("", "Secret") => schema::<Secret>,
        ("apps", "Deployment") => schema::<Deployment>,
        ("batch", "Job") => schema::<Job>,
        ("coordination.k8s.io", "Lease") => schema::<Lease>,
        ("", "Event") => schema::<CoreEvent>,
        ("events.k8s.io", "Event") => schema::<Event>,
        ("apiextensions.k8s.io", "CustomResourceDefinition") => schema::<CustomResourceDefinition>,
        _ => return false,
    };
    add(generator);
    true
}

/// Returns the schema of a custom kind, with the fields that each object has.
fn schema(definition: &Value, resource: &Resource) -> Option<Value> {
    let spec = &definition["spec"];
    if spec["group"] != resource.group || spec["names"]["kind"] != resource.kind {
        return None;
    }
    let versions = spec["versions"].as_array()?;
    let version = versions.iter().find(|it| it["name"] == resource.version)?;
    let mut schema = version["schema"]["openAPIV3Schema"].clone();
    for (field, description) in [
        (
            "apiVersion",
            "APIVersion defines the versioned schema of this representation of an object.",
        ),
        (
            "kind",
            "Kind is a string value representing the REST resource this object represents.",
        ),
    ] {
        schema["properties"][field] = json!({ "type": "string", "description": description });
    }
    schema["properties"]["metadata"] =
        json!({ "type": "object", "description": "Standard object's metadata." });
    Some(schema)
}
