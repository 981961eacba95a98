//! Values for requests, derived from a schema.

use serde_json::{Value, json};

use super::draw::Draw;

/// A place in an object, and its schema.
pub struct Spot {
    path: Vec<Step>,
    schema: Value,
}

#[derive(Clone)]
enum Step {
    Field(String),
    Index(usize),
}

/// Maximum depth of places.
const DEPTH: usize = 8;

/// Returns all places of a schema, except the metadata.
pub fn spots(schema: &Value) -> Vec<Spot> {
    let mut spots = Vec::new();
    add(schema, &[], &mut spots);
    spots
}

fn add(schema: &Value, path: &[Step], spots: &mut Vec<Spot>) {
    if path.len() > DEPTH {
        return;
    }
    if !path.is_empty() {
        spots.push(Spot {
            path: path.to_vec(),
            schema: schema.clone(),
        });
    }
    let mut below = |step: Step, schema: &Value| {
        let path: Vec<_> = path.iter().cloned().chain([step]).collect();
        add(schema, &path, spots);
    };
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let is_meta =
            path.is_empty() && matches!(name.as_str(), "metadata" | "apiVersion" | "kind");
        if !is_meta {
            below(Step::Field(name.clone()), property);
        }
    }
    if schema["additionalProperties"].is_object() {
        for name in ["k", "l.m"] {
            below(
                Step::Field(name.to_owned()),
                &schema["additionalProperties"],
            );
        }
    }
    if schema["items"].is_object() {
        for at in 0..2 {
            below(Step::Index(at), &schema["items"]);
        }
    }
}

/// Returns the texts and numbers in the rules and patterns of a CRD.
pub fn literals(crd: &Value) -> Vec<Value> {
    let mut literals = Vec::new();
    collect(crd, &mut literals);
    literals.dedup();
    literals
}

fn collect(value: &Value, literals: &mut Vec<Value>) {
    match value {
        Value::Object(fields) => {
            if let Some(rule) = fields.get("rule").and_then(Value::as_str) {
                literals.extend(rule.split('\'').skip(1).step_by(2).map(Value::from));
                let numbers = rule
                    .split(|c: char| !c.is_ascii_digit())
                    .filter_map(|it| it.parse::<i64>().ok());
                literals.extend(numbers.flat_map(|it| [it - 1, it, it + 1]).map(Value::from));
            }
            fields.values().for_each(|value| collect(value, literals));
        }
        Value::Array(all) => all.iter().for_each(|value| collect(value, literals)),
        _ => {}
    }
}

/// Returns a value that is probably valid.
pub fn good(schema: &Value) -> Value {
    if !schema["default"].is_null() {
        return schema["default"].clone();
    }
    if let Some(one) = schema["enum"].as_array().and_then(|all| all.first()) {
        return one.clone();
    }
    let count =
        |name: &str| usize::try_from(schema[name].as_u64().unwrap_or(0)).unwrap_or_default();
    match schema["type"].as_str().unwrap_or_default() {
        "object" => {
            let mut object = json!({});
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if !matches!(name.as_str(), "metadata" | "apiVersion" | "kind") {
                    object[name] = good(property);
                }
            }
            object
        }
        "array" => json!(vec![good(&schema["items"]); count("minItems")]),
        "integer" | "number" => {
            let least = schema["minimum"].as_f64().unwrap_or(0.0).max(0.0);
            let step = schema["multipleOf"].as_f64().unwrap_or(1.0);
            let value = (least / step).ceil() * step;
            serde_json::from_str(&format!("{value}")).unwrap_or_default()
        }
        "boolean" => json!(true),
        "string" => match schema["format"].as_str().unwrap_or_default() {
            "date-time" => json!("2024-01-01T00:00:00Z"),
            "date" => json!("2024-01-01"),
            "duration" => json!("1h"),
            "ipv4" => json!("10.0.0.1"),
            "byte" => json!("YQ=="),
            _ => json!("a".repeat(count("minLength"))),
        },
        _ => json!({}),
    }
}

/// Texts with and without formats.
const TEXTS: [&str; 34] = [
    "",
    "a",
    "ä",
    "aB-3",
    "5",
    "-1",
    "50%",
    "1Gi",
    "true",
    "a\"b\\c",
    "a\nb",
    "x<y&z",
    "2024-02-29",
    "2023-02-29",
    "2024-01-01T00:00:00Z",
    "2024-01-01T25:00:00Z",
    "1h30m",
    "2 days",
    "1x",
    "10.0.0.1",
    "010.0.0.1",
    "256.0.0.1",
    "::1",
    "10.0.0.0/8",
    "10.0.0.0/40",
    "01:23:45:67:89:ab",
    "01234567-89ab-4def-8123-456789abcdef",
    "YQ==",
    "YQ",
    "example.com",
    "-bad.com",
    "#fff",
    "rgb(1,2,3)",
    "1.2.3",
];

#[allow(clippy::too_many_lines, reason = "one arm for each type")]
/// Returns a value for a schema: often at a bound, sometimes of another type.
pub fn value(schema: &Value, literals: &[Value], draw: &mut Draw) -> Value {
    let other = [
        json!(null),
        json!(true),
        json!(5),
        json!(5.0),
        json!(1.5),
        json!("x"),
        json!([]),
        json!({}),
        json!(["x"]),
        json!({ "x": 1 }),
        json!([{ "x": 1 }]),
    ];
    match draw.below(12) {
        0 => return draw.of(&other).clone(),
        1 if !literals.is_empty() => return draw.of(literals).clone(),
        2 => return good(schema),
        _ => {}
    }
    let mut all = Vec::new();
    all.extend(schema["enum"].as_array().into_iter().flatten().cloned());
    let kind = match schema["type"].as_str() {
        Some(kind) => kind,
        None if draw.below(2) == 0 => "integer",
        None => "string",
    };
    match kind {
        "integer" | "number" => {
            for name in ["minimum", "maximum", "multipleOf"] {
                if let Some(bound) = schema[name].as_f64() {
                    for value in [bound, bound - 1.0, bound + 1.0, bound * 2.0, bound + 0.5] {
                        all.extend(serde_json::from_str::<Value>(&format!("{value}")));
                    }
                }
            }
            all.extend([
                json!(0),
                json!(-1),
                json!(1),
                json!(7),
                json!(2_147_483_648_i64),
                json!(1e20),
                json!(0.5),
                json!(3.0),
            ]);
        }
        "string" => {
            for name in ["minLength", "maxLength"] {
                if let Some(bound) = schema[name].as_u64() {
                    let lengths = [bound.saturating_sub(1), bound, bound + 1];
                    let lengths = lengths
                        .into_iter()
                        .filter_map(|it| usize::try_from(it).ok());
                    all.extend(lengths.map(|it| json!("a".repeat(it.min(2000)))));
                }
            }
            all.extend(literals.iter().filter(|it| it.is_string()).cloned());
            all.push(json!(draw.of(&TEXTS)));
            all.push(json!(draw.of(&TEXTS)));
        }
        "boolean" => all.extend([json!(true), json!(false)]),
        "array" => {
            let least = schema["minItems"].as_u64().unwrap_or(0);
            let most = schema["maxItems"].as_u64().unwrap_or(2);
            let lengths = [0, 1, 2, 3, least.saturating_sub(1), least, most, most + 1];
            let length = *draw.of(&lengths);
            let mut values: Vec<Value> = (0..length.min(20))
                .map(|_| value(&schema["items"], literals, draw))
                .collect();
            if draw.below(3) == 0 && !values.is_empty() {
                let one = values[0].clone();
                values.push(one);
            }
            return json!(values);
        }
        _ => {
            let mut object = json!({});
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                if draw.below(3) > 0 {
                    object[name] = if draw.below(3) > 0 {
                        good(property)
                    } else {
                        value(property, literals, draw)
                    };
                }
            }
            if schema["additionalProperties"].is_object() {
                for name in ["k", "l.m", "z"].into_iter().take(draw.below(4)) {
                    object[name] = value(&schema["additionalProperties"], literals, draw);
                }
            }
            if draw.below(6) == 0 {
                object["unheardOf"] = json!({ "x": [1] });
            }
            return object;
        }
    }
    if all.is_empty() {
        good(schema)
    } else {
        draw.of(&all).clone()
    }
}

/// Changes an object at one place.
pub fn mutated(object: &mut Value, spots: &[Spot], literals: &[Value], draw: &mut Draw) {
    if spots.is_empty() {
        return;
    }
    let spot = draw.of(spots);
    let new = value(&spot.schema, literals, draw);
    let removes = draw.below(6) == 0;
    let Some((last, before)) = spot.path.split_last() else {
        return;
    };
    let mut place = object;
    for step in before {
        place = match (step, place) {
            (Step::Field(name), Value::Object(fields)) => {
                fields.entry(name.clone()).or_insert_with(|| json!({}))
            }
            (Step::Index(at), Value::Array(all)) if *at < all.len() => &mut all[*at],
            _ => return,
        };
    }
    match (last, place) {
        (Step::Field(name), Value::Object(fields)) if removes => drop(fields.remove(name)),
        (Step::Field(name), Value::Object(fields)) => drop(fields.insert(name.clone(), new)),
        (Step::Index(at), Value::Array(all)) if removes && *at < all.len() => drop(all.remove(*at)),
        (Step::Index(at), Value::Array(all)) if *at < all.len() => all[*at] = new,
        (Step::Index(_), Value::Array(all)) => all.push(new),
        _ => {}
    }
}

/// Returns a merge patch for one place.
pub fn patch(spots: &[Spot], literals: &[Value], draw: &mut Draw) -> Value {
    let mut fields: Vec<&Spot> = Vec::new();
    let is_field = |spot: &&Spot| spot.path.iter().all(|step| matches!(step, Step::Field(_)));
    fields.extend(spots.iter().filter(is_field));
    if fields.is_empty() {
        return json!({});
    }
    let spot = draw.of(&fields);
    let mut patch = if draw.below(8) == 0 {
        Value::Null
    } else {
        value(&spot.schema, literals, draw)
    };
    for step in spot.path.iter().rev() {
        if let Step::Field(name) = step {
            patch = json!({ name.as_str(): patch });
        }
    }
    patch
}

/// Leaves out some fields of an object, as appliers do.
pub fn left_out(object: &mut Value, spots: &[Spot], draw: &mut Draw) {
    let is_known = |outer: &str, name: &String| {
        let mut spots = spots.iter().map(|spot| spot.path.as_slice());
        spots.any(|path| {
            matches!(path, [Step::Field(first), Step::Field(second)] if first == outer && second == name)
        })
    };
    let keeps_unknown = draw.below(8) == 0;
    for name in ["spec", "status"] {
        if let Some(fields) = object.get_mut(name).and_then(Value::as_object_mut) {
            let share = draw.below(4);
            fields.retain(|field, _| {
                draw.below(4) >= share && (keeps_unknown || is_known(name, field))
            });
        }
    }
}
