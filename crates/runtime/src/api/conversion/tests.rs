#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::panic::catch_unwind;

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;

/// Annotation with the unit, which v1alpha1 has no field for.
const UNIT: &str = "example.com/v1-unit";

fn crd(version: &str) -> CustomResourceDefinition {
    let crd = json!({
        "metadata": { "name": "jobs.example.com" },
        "spec": {
            "group": "example.com",
            "names": { "kind": "Job", "plural": "jobs" },
            "scope": "Namespaced",
            "versions": [{ "name": version, "served": true, "storage": true }],
        },
    });
    serde_json::from_value(crd).unwrap()
}

fn service() -> Key {
    Key::new("job-system", "job-conversion")
}

/// v1 has `size: {number, unit}`. v1alpha1 has `size`, a number.
#[derive(Serialize, Deserialize)]
struct Spec {
    size: Size,
}

#[derive(Serialize, Deserialize)]
struct Size {
    number: i64,
    unit: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Former {
    size: i64,
}

fn to_stored(job: &mut Versioned) -> Result<(), String> {
    let Former { size: number } = job.get("spec")?;
    assert_ne!(number, 13, "unlucky");
    let unit = job.take(UNIT);
    job.set(
        "spec",
        &Spec {
            size: Size { number, unit },
        },
    )
}

fn from_stored(job: &mut Versioned) -> Result<(), String> {
    let Spec { size } = job.get("spec")?;
    job.keep(UNIT, &size.unit)?;
    job.set("spec", &Former { size: size.number })
}

/// v1beta1 has the size as text.
fn text_to_stored(job: &mut Versioned) -> Result<(), String> {
    let spec: BTreeMap<String, String> = job.get("spec")?;
    let number = spec["size"]
        .parse()
        .map_err(|error| format!("spec.size: {error}"))?;
    job.set(
        "spec",
        &Spec {
            size: Size { number, unit: None },
        },
    )
}

fn text_from_stored(job: &mut Versioned) -> Result<(), String> {
    let Spec { size } = job.get("spec")?;
    job.set("spec", &json!({ "size": size.number.to_string() }))
}

fn jobs() -> Definition {
    let alpha = Version {
        crd: crd("v1alpha1"),
        to_stored,
        from_stored,
    };
    let beta = Version {
        crd: crd("v1beta1"),
        to_stored: text_to_stored,
        from_stored: text_from_stored,
    };
    converted(crd("v1"), &service(), [alpha, beta])
}

fn job(version: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("example.com/{version}"),
        "kind": "Job",
        "metadata": { "name": "a", "namespace": "b", "uid": "c", "generation": 7 },
        "spec": spec,
        "status": { "ready": true },
    })
}

#[test]
fn the_crd_names_the_webhook_and_stores_one_version() {
    let crd = serde_json::to_value(jobs().crd()).unwrap();
    let versions = crd["spec"]["versions"].as_array().unwrap();
    let versions: Vec<_> = versions
        .iter()
        .map(|it| (&it["name"], &it["storage"]))
        .collect();
    let (yes, no) = (json!(true), json!(false));
    let names = ["v1", "v1beta1", "v1alpha1"].map(Value::from);
    assert_eq!(
        versions,
        [(&names[0], &yes), (&names[1], &no), (&names[2], &no)]
    );
    let service = json!({ "namespace": "job-system", "name": "job-conversion", "path": "/convert", "port": 443 });
    let webhook =
        json!({ "clientConfig": { "service": service }, "conversionReviewVersions": ["v1"] });
    let conversion = json!({ "strategy": "Webhook", "webhook": webhook });
    assert_eq!(crd["spec"]["conversion"], conversion);
    let annotations = json!({ "cert-manager.io/inject-ca-from": "job-system/job-conversion" });
    assert_eq!(crd["metadata"]["annotations"], annotations);
}

/// Everything else stays, to the byte.
#[test]
fn only_converted_members_change() {
    let text = r#"{"apiVersion":"example.com/v1alpha1","kind":"Job","metadata":{"name":"a","namespace":"b","managedFields":[{ "x" : 1.10 }]},
        "spec":{"size":3},"status":{ "big": 12345678901234567890, "float": 0.30000000000000004e1 }}"#;
    let text = RawValue::from_string(text.to_owned()).unwrap();
    let converted = jobs().convert_text(&text, "v1").unwrap();
    let converted = converted.get();
    for part in [
        r#""apiVersion":"example.com/v1""#,
        r#""managedFields":[{ "x" : 1.10 }]"#,
        r#""spec":{"size":{"number":3,"unit":null}}"#,
        r#"{ "big": 12345678901234567890, "float": 0.30000000000000004e1 }"#,
    ] {
        assert!(converted.contains(part), "{converted}");
    }
}

/// A function that reads a number as a float writes it as the API server does. Otherwise, the object would get a new generation.
#[test]
fn whole_numbers_have_no_fraction() {
    for (number, text) in [
        (1.0, "1"),
        (-3.0, "-3"),
        (-0.0, "0"),
        (0.5, "0.5"),
        (9e18, "9000000000000000000"),
        (1e19, "1e+19"),
        (f64::NAN, "null"),
    ] {
        assert_eq!(raw(&[number]).unwrap().get(), format!("[{text}]"));
    }
    assert_eq!(raw(&[2_f32, 0.1]).unwrap().get(), "[2,0.1]");
    let text = r#"{"apiVersion":"example.com/v1","kind":"Job","metadata":{"name":"a"},"spec":1}"#;
    let former = Version {
        crd: crd("v1alpha1"),
        to_stored: |job| job.set("spec", &job.get::<f64>("spec")?),
        from_stored: |job| job.set("spec", &job.get::<f64>("spec")?),
    };
    let jobs = converted(crd("v1"), &service(), [former]);
    let text = RawValue::from_string(text.to_owned()).unwrap();
    let former = jobs.convert_text(&text, "v1alpha1").unwrap();
    assert_eq!(jobs.convert_text(&former, "v1").unwrap().get(), text.get());
    for spec in [json!(1), json!(1.0), json!(0.5)] {
        crate::testing::assert_lossless(&jobs, &job("v1", &spec), "v1alpha1");
    }
}

#[test]
fn two_other_versions_are_converted_through_the_stored_one() {
    let text = jobs().convert(&job("v1alpha1", &json!({ "size": 3 })), "v1beta1");
    assert_eq!(text, Ok(job("v1beta1", &json!({ "size": "3" }))));
    let same = job("v1alpha1", &json!({ "no": "size" }));
    assert_eq!(jobs().convert(&same, "v1alpha1"), Ok(same));
}

#[test]
fn errors_name_the_object_and_the_reason() {
    for (version, spec, to, expected) in [
        (
            "v1alpha1",
            json!({}),
            "v1",
            "Job b/a cannot be converted from v1alpha1 to v1: spec: missing field `size`",
        ),
        (
            "v1beta1",
            json!({ "size": "x" }),
            "v1",
            "Job b/a cannot be converted from v1beta1 to v1: spec.size: invalid digit",
        ),
        (
            "v1alpha1",
            json!({ "size": 13 }),
            "v1",
            "from v1alpha1 to v1: to_stored of v1alpha1 panicked: see the log",
        ),
        (
            "v1",
            json!({}),
            "v2",
            "from v1 to v2: this program has no v2 of jobs.example.com",
        ),
        (
            "v3",
            json!({}),
            "v1",
            "from v3 to v1: this program has no v3 of jobs.example.com",
        ),
    ] {
        let failed = jobs().convert(&job(version, &spec), to).unwrap_err();
        assert!(failed.contains(expected), "{failed}");
    }
    let mut other = job("v1", &json!({}));
    other["kind"] = "Work".into();
    let failed = jobs().convert(&other, "v1alpha1").unwrap_err();
    assert!(
        failed.ends_with("it is not one of jobs.example.com"),
        "{failed}"
    );
}

/// An object with an annotation that a user has changed stays readable.
#[test]
fn a_kept_value_of_another_form_is_ignored() {
    let mut object = job("v1alpha1", &json!({ "size": 3 }));
    object["metadata"]["annotations"] = json!({ UNIT: "{", "other": "stays" });
    let converted = jobs().convert(&object, "v1").unwrap();
    assert_eq!(converted["spec"]["size"]["unit"], Value::Null);
    assert_eq!(
        converted["metadata"]["annotations"],
        json!({ "other": "stays" })
    );
}

#[test]
fn a_member_that_is_null_is_removed() {
    let mut object = Versioned {
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        members: BTreeMap::new(),
    };
    object.set("status", &Some(1)).unwrap();
    assert_eq!(object.get("status"), Ok(Some(1)));
    object.set("status", &None::<i64>).unwrap();
    assert_eq!(object.get("status"), Ok(None::<i64>));
    assert!(object.members.is_empty());
    object.keep(UNIT, &None::<i64>).unwrap();
    assert!(object.annotations.is_empty());
}

#[test]
fn invalid_definitions_are_refused() {
    let version = |name: &str| Version {
        crd: crd(name),
        to_stored,
        from_stored,
    };
    let mut foreign = version("v1alpha1");
    foreign.crd.metadata.name = Some("works.example.com".to_owned());
    let refused = [
        (service(), vec![], "needs another version than v1"),
        (service(), vec![version("v1")], "v1 is given twice"),
        (
            service(),
            vec![version("v2"), version("v2")],
            "v2 is given twice",
        ),
        (
            service(),
            vec![foreign],
            "versions of different resource types",
        ),
        (
            Key::cluster("a"),
            vec![version("v2")],
            "a is not the namespace and the name",
        ),
    ];
    for (service, others, expected) in refused {
        let refused = catch_unwind(AssertUnwindSafe(|| converted(crd("v1"), &service, others)));
        let Err(refused) = refused else {
            panic!("accepted: {expected}");
        };
        let message = refused.downcast::<String>().unwrap();
        assert!(message.contains(expected), "{message}");
    }
}

proptest! {
    /// The annotation keeps any unit, which v1alpha1 lacks.
    #[test]
    fn a_kept_value_survives_the_round_trip(number in 14_i64.., unit in any::<Option<String>>()) {
        let object = job("v1", &json!({ "size": { "number": number, "unit": unit } }));
        let former = jobs().convert(&object, "v1alpha1").unwrap();
        prop_assert_eq!(&former["spec"], &json!({ "size": number }));
        prop_assert_eq!(jobs().convert(&former, "v1").unwrap(), object);
    }
}
