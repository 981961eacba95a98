//! Responses as tables, which kubectl requests for its columns.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::columns::Column;

/// Media type of a table in the header `Accept`.
pub const TABLE: &str = "as=Table";

/// Part of the objects that a table contains: the parameter `includeObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    Metadata,
    Object,
    None,
}

/// Returns a table of objects. `metadata` belongs to the list.
pub fn table(
    columns: &[Column],
    objects: &[Value],
    metadata: &Value,
    include: Include,
    now: Timestamp,
) -> Value {
    let definitions = columns.iter().map(|column| {
        json!({
            "name": column.name, "type": column.r#type, "format": column.format, "description": "",
            "priority": column.priority,
        })
    });
    let rows = objects.iter().map(|object| {
        let cells: Vec<_> = columns.iter().map(|it| it.cell(object, now)).collect();
        let shown = match include {
            Include::None => Value::Null,
            Include::Object => object.clone(),
            Include::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
            }),
        };
        json!({ "cells": cells, "object": shown })
    });
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": definitions.collect::<Vec<_>>(), "rows": rows.collect::<Vec<_>>(),
    })
}
