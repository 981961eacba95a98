use std::{convert::Infallible, time::Duration};

use http::{Request, Response};
use kube::{api::ApiResource, client::Body};
use serde_json::json;
use tower::service_fn;

use super::*;
use crate::config::{
    app::tests::{APP, HOLDER_KEY},
    settings::Config,
};

fn object(name: &str, spec: &Value) -> DynamicObject {
    let mut object = DynamicObject::new(name, &ApiResource::erase::<ServiceAccount>(&()));
    object.data = json!({ "spec": spec });
    object
}

/// The policy of another installation is not judged, and its deletion is not proposed.
#[test]
fn another_installations_policy_is_left_alone() {
    let election = Election {
        namespace: "n".to_owned(),
        record: "l-fencing".to_owned(),
        is_configured: false,
        exists: true,
        key: HOLDER_KEY.to_owned(),
        recorded: String::new(),
        missing: Vec::new(),
        account: (String::new(), String::new()),
        holder: String::new(),
        user: None,
    };
    let ours = format!("{}-fencing", APP.name);
    let [theirs, older] = ["green", "older"].map(|prefix| format!("{prefix}-{ours}"));
    let spec = json!({
        "paramKind": { "apiVersion": "v1", "kind": "ServiceAccount" },
        "validations": [{ "expression": HOLDER_KEY }],
    });
    let all = [&theirs, &ours, &older].map(|name| object(name, &spec));
    let bound = |name: &str, namespace: &str| {
        let record = json!({ "name": "l-fencing", "namespace": namespace });
        let actions = json!(["Deny"]);
        object(
            name,
            &json!({ "policyName": name, "paramRef": record, "validationActions": actions }),
        )
    };
    let judge =
        |policies, bindings: &[_]| judge(&APP, &election, policies, bindings).expect("a policy");
    let judged = judge(&all[..2], &[bound(&theirs, "m"), bound(&ours, "n")]);
    assert!(judged.1.starts_with(&format!("{ours} uses ")), "{judged:?}");
    let judged = judge(&all, &[bound(&ours, "n"), bound(&older, "n")]);
    let two = format!("{ours} is not the only policy that uses this record: there is {older}");
    assert!(judged.1.starts_with(&two), "{judged:?}");
    // Each policy may be ours if there is neither an election nor a namespace.
    let (grade, text) = nowhere(&all, &[bound(&ours, "n")]);
    assert_eq!(grade, Grade::Error, "{text}");
    assert!(text.contains(&format!("{ours} rejects")), "{text}");
    assert_eq!(nowhere(&all, &[]).0, Grade::Skipped);
    // Ours is not bound.
    let judged = judge(&all[..2], &[bound(&theirs, "m")]);
    assert!(
        judged.1.starts_with(&format!("{ours} has no binding")),
        "{judged:?}"
    );
}

/// With a small margin, fencing is part of the election's safety for each duration of the Lease.
#[test]
fn a_small_margin_requires_fencing() {
    let mut settings = Config::shipped(&APP).leader_election;
    settings.enabled = true;
    for (lease, renew, is_small) in [
        (15, 14, true),
        (14, 10, true),
        (15, 10, false),
        (9, 4, false),
    ] {
        settings.lease_duration = Duration::from_secs(lease);
        settings.renew_deadline = Duration::from_secs(renew);
        let (grade, text) = not_installed("not installed", &settings);
        assert_eq!(grade == Grade::Warning, is_small, "{text}");
    }
    settings.lease_duration = Duration::from_secs(3);
    settings.renew_deadline = Duration::from_secs(2);
    let (_, text) = not_installed("not installed", &settings);
    assert_eq!(
        text,
        "not installed, and leader_election.lease_duration is only 1s longer than renew_deadline: after a longer pause of its \
         machine, the old leader may write at the same time as the new one; install the fencing component, or set \
         lease_duration to at least 5s more than renew_deadline"
    );
    settings.enabled = false;
    let (grade, text) = not_installed("not installed", &settings);
    assert_eq!(grade, Grade::Skipped, "{text}");
}

/// Another policy applies to the writes of this account, and uses the record of another Lease.
#[tokio::test]
async fn a_policy_that_judges_this_account_by_another_record_is_an_error() {
    for (account, is_ours) in [(None, true), (Some(APP.name), true), (Some("green"), false)] {
        let mut doctor = Doctor::for_tests(Config::shipped(&APP), &[], |_| Vec::new());
        doctor.namespace = Some("n".to_owned());
        let settings = &doctor.config.leader_election;
        let (lease, record) = (settings.lease_name.clone(), settings.record_name());
        let client = service_fn(move |request: Request<Body>| {
            let ours = format!("{}-fencing", APP.name);
            let names = [ours.clone(), format!("green-{ours}")];
            let path = request.uri().path();
            let last = path.rsplit('/').next().unwrap_or_default();
            let items = |spec: [Value; 2]| {
                let items = names.iter().zip(spec);
                let items =
                    items.map(|(name, spec)| json!({ "metadata": { "name": name }, "spec": spec }));
                json!({ "metadata": {}, "items": items.collect::<Vec<_>>() })
            };
            let annotations = match account {
                Some(account) if last == "green-record" => {
                    json!({ account_key(&APP): account })
                }
                _ => json!({}),
            };
            let body = match last {
                "validatingadmissionpolicies" => items([(); 2].map(|()| {
                    json!({ "paramKind": { "apiVersion": "v1", "kind": "ServiceAccount" },
                            "validations": [{ "expression": HOLDER_KEY }] })
                })),
                "validatingadmissionpolicybindings" => {
                    let spec = |(name, record): (&String, &str)| {
                        json!({ "policyName": name, "paramRef": { "name": record, "namespace": "n" },
                                "validationActions": ["Deny"] })
                    };
                    items([(&names[0], &*record), (&names[1], "green-record")].map(spec))
                }
                "subjectaccessreviews" => {
                    json!({ "spec": {}, "status": { "allowed": true } })
                }
                name if name == lease => json!({ "metadata": { "name": name } }),
                name => json!({ "metadata": { "name": name, "annotations": annotations } }),
            };
            let body = Body::from(body.to_string().into_bytes());
            async move { Ok::<_, Infallible>(Response::new(body)) }
        });
        doctor.client = Client::new(client, "default");
        let (grade, text) = examine(&doctor).await;
        let judged = format!(
            "green-{name}-fencing judges system:serviceaccount:n:{name} by serviceaccount/green-record in n, the record of \
             another Lease, and rejects each leader",
            name = APP.name
        );
        assert_eq!(grade == Grade::Error, is_ours, "{account:?}: {text}");
        assert_eq!(text.starts_with(&judged), is_ours, "{account:?}: {text}");
    }
}

/// The policy of a Helm release uses a record with the name of the release. `doctor` without the settings of the replicas
/// recognizes it by the Lease of its last leader, or by the service account of the holder. Otherwise it proposes its own flag,
/// not a binding to a record that does not exist.
#[tokio::test]
async fn the_record_of_a_release_is_recognized() {
    let flag = "if the controller uses web-fencing, run doctor with --fencing-record=web-fencing; otherwise install \
                the fencing component";
    let configured = "the Lease's is other in n: install the fencing component";
    for (named, record, term, account, expected) in [
        (
            None,
            "web-fencing",
            Some("u/1/x"),
            "web",
            "uses the record serviceaccount/web-fencing in n",
        ),
        (
            None,
            "web-fencing",
            None,
            "web",
            "uses the record serviceaccount/web-fencing in n",
        ),
        (None, "web-fencing", Some("other/1/x"), "web", flag),
        (None, "web-fencing", None, "other", flag),
        (
            Some("other"),
            "web-fencing",
            Some("u/1/x"),
            "web",
            configured,
        ),
        (
            Some("web-fencing"),
            "web-fencing",
            None,
            "web",
            "uses the record serviceaccount/web-fencing in n",
        ),
    ] {
        let mut doctor = Doctor::for_tests(Config::shipped(&APP), &[], |_| Vec::new());
        doctor.namespace = Some("n".to_owned());
        doctor.config.leader_election.enabled = true;
        doctor.config.leader_election.fencing_record = named.map(str::to_owned);
        let lease = doctor.config.leader_election.lease_name.clone();
        let client = service_fn(move |request: Request<Body>| {
            let path = request.uri().path();
            let last = path.rsplit('/').next().unwrap_or_default();
            let items = |spec: Value| {
                let name = format!("web-{}-fencing", APP.name);
                json!({ "metadata": {}, "items": [{ "metadata": { "name": name }, "spec": spec }] })
            };
            let body = match last {
                "validatingadmissionpolicies" => items(json!({
                    "paramKind": { "apiVersion": "v1", "kind": "ServiceAccount" },
                    "validations": [{ "expression": HOLDER_KEY }],
                })),
                "validatingadmissionpolicybindings" => items(json!({
                    "policyName": format!("web-{}-fencing", APP.name),
                    "paramRef": { "name": record, "namespace": "n" }, "validationActions": ["Deny"],
                })),
                "subjectaccessreviews" => json!({ "spec": {}, "status": { "allowed": true } }),
                "web-0" => {
                    json!({ "metadata": { "uid": "p" }, "spec": { "containers": [], "serviceAccountName": "web" } })
                }
                "web" => json!({ "metadata": {} }),
                name if name == lease => {
                    json!({ "metadata": { "uid": "u" }, "spec": { "holderIdentity": "web-0_p" } })
                }
                name if name == record => {
                    let mut annotations =
                        json!({ account_key(&APP): account, HOLDER_KEY: "web-0_p" });
                    if let Some(term) = term {
                        annotations[term_key(&APP)] = term.into();
                    }
                    json!({ "metadata": { "annotations": annotations } })
                }
                _ => {
                    let status = json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound" });
                    let body = Body::from(status.to_string().into_bytes());
                    let mut answer = Response::new(body);
                    *answer.status_mut() = http::StatusCode::NOT_FOUND;
                    return std::future::ready(Ok::<_, Infallible>(answer));
                }
            };
            let body = Body::from(body.to_string().into_bytes());
            std::future::ready(Ok(Response::new(body)))
        });
        doctor.client = Client::new(client, "default");
        let (grade, text) = examine(&doctor).await;
        assert!(
            text.contains(expected),
            "{named:?} {term:?} {account}: {text}"
        );
        assert_eq!(grade == Grade::Ok, expected.starts_with("uses"), "{text}");
    }
}
