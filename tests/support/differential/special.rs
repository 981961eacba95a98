//! Comparisons with their own setup: a terminating namespace, the fencing policy, and tokens of other users.

use operator_testkit::{
    api_server::{Kind, Method, User},
    cluster::{Cluster, eventually},
};
use serde_json::{Value, json};

use super::{
    CLUSTER, DEADLINE, Run,
    side::{ADMIN, Sent, Side, Simulated, at, path},
    steps::FOO,
};
use foo_simulation::invariants::{CONTROLLER, FENCING};

pub const JSON: &str = "application/json";
pub const MERGE: &str = "application/merge-patch+json";

pub fn ask(
    method: Method,
    path: impl Into<String>,
    content_type: &'static str,
    body: &Value,
) -> Sent {
    let body = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    Sent {
        method,
        path: path.into(),
        content_type,
        accept: None,
        body,
    }
}

pub fn foo(name: &str) -> Value {
    json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "metadata": { "name": name },
        "spec": { "deploymentName": name, "replicas": 1 },
    })
}

/// Returns both sides, with a new namespace in each.
pub async fn both(cluster: &Cluster, namespace: &str) -> [Run; 2] {
    let simulated = Simulated::new(namespace);
    let create = json!({ "metadata": { "name": namespace } });
    let mut real = Side::Real(super::client(cluster).await);
    let create = ask(Method::POST, "/api/v1/namespaces", JSON, &create);
    let (code, created) = real.send(&create, ADMIN).await;
    assert_eq!(code, 201, "{created}");
    [
        Run::new(real),
        Run::new(Side::Simulated(Box::new(simulated))),
    ]
}

/// Returns both sides with the CRD of Foo and a namespace that begins with `prefix`, and the name of that namespace.
pub async fn sides(prefix: &str) -> ([Run; 2], String) {
    let cluster = &*CLUSTER;
    super::install(cluster).await;
    let namespace = format!("{prefix}-{}", uuid::Uuid::new_v4().simple());
    (both(cluster, &namespace).await, namespace)
}

/// Sends a request to both sides and asserts equal responses. Returns the response.
pub async fn same(sides: &mut [Run; 2], user: User<'_>, sent: [Sent; 2]) -> (u16, Value) {
    let mut answers = Vec::new();
    for (run, sent) in sides.iter_mut().zip(&sent) {
        let (code, body) = run.side.send(sent, user).await;
        answers.push((code, run.names.normal(body)));
    }
    let [real, simulated] = <[_; 2]>::try_from(answers).unwrap();
    assert_eq!(
        real, simulated,
        "{} {} by {user:?} (the real one's first)",
        sent[0].method, sent[0].path
    );
    real
}

pub async fn same_of(
    sides: &mut [Run; 2],
    method: Method,
    path: &str,
    content_type: &'static str,
    body: &Value,
) -> (u16, Value) {
    let sent = || ask(method.clone(), path, content_type, body);
    same(sides, ADMIN, [sent(), sent()]).await
}

/// A terminating namespace accepts no new objects.
#[tokio::test]
async fn the_simulated_namespace_terminates_like_the_real_one() {
    let (mut sides, namespace) = sides("t").await;
    let foos = path(FOO, &namespace);
    let this = format!("/api/v1/namespaces/{namespace}");
    same_of(&mut sides, Method::POST, &foos, JSON, &foo("a")).await;
    same_of(&mut sides, Method::GET, &this, "", &Value::Null).await;
    same_of(&mut sides, Method::DELETE, &this, JSON, &json!({})).await;
    same_of(&mut sides, Method::DELETE, &this, JSON, &json!({})).await;
    let (code, _) = same_of(&mut sides, Method::POST, &foos, JSON, &foo("b")).await;
    assert_eq!(code, 403);
    let more = json!({ "spec": { "replicas": 2 } });
    same_of(
        &mut sides,
        Method::PATCH,
        &format!("{foos}/a"),
        MERGE,
        &more,
    )
    .await;
    same_of(
        &mut sides,
        Method::DELETE,
        &format!("{foos}/a"),
        JSON,
        &json!({}),
    )
    .await;
    let nowhere = path(FOO, "nowhere");
    same_of(&mut sides, Method::POST, &nowhere, JSON, &foo("a")).await;
    same_of(&mut sides, Method::GET, &nowhere, "", &Value::Null).await;
}

/// Compares all writes that the policy may match, for each user and each holder, including the messages.
#[tokio::test]
#[allow(clippy::too_many_lines, reason = "a list of writes")]
async fn the_simulated_fencing_policy_decides_like_the_real_one() {
    let cluster = &*CLUSTER;
    let (mut sides, namespace) = sides("f").await;
    let system = json!({ "metadata": { "name": FENCING.record.0 } });
    sides[0]
        .side
        .send(
            &ask(Method::POST, "/api/v1/namespaces", JSON, &system),
            ADMIN,
        )
        .await;
    for file in ["policy", "record"] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/components/fencing");
        let file = format!("{folder}/{file}.yaml");
        cluster.kubectl(&["apply", "-f", &file]).await.success();
    }
    if let Side::Simulated(it) = &mut sides[1].side {
        it.store.create_namespace(at(it.now), FENCING.record.0);
        it.store.install_fencing(at(it.now), FENCING);
    }
    let (foos, deployments) = (path(FOO, &namespace), path(Kind::Deployment, &namespace));
    let owner = json!([{
        "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "f", "uid": "u", "controller": true,
    }]);
    let deployment = |name: &str, owners: &Value| {
        let mut deployment = super::steps::valid(Kind::Deployment);
        deployment["metadata"] = json!({ "name": name, "ownerReferences": owners });
        deployment
    };
    same_of(&mut sides, Method::POST, &foos, JSON, &foo("f")).await;
    for (name, owners) in [("owned", &owner), ("free", &json!([]))] {
        same_of(
            &mut sides,
            Method::POST,
            &deployments,
            JSON,
            &deployment(name, owners),
        )
        .await;
    }
    let replicas = json!({ "spec": { "replicas": 2 } });
    let status = json!({ "status": { "availableReplicas": 1 } });
    let stale = json!({ "metadata": { "resourceVersion": "1" } });
    let invalid = json!({ "spec": { "replicas": -1 } });
    let dry = |path: String| format!("{path}?dryRun=All");
    let delete = |name: &str, mut options: Value| {
        options["dryRun"] = json!(["All"]);
        (
            Method::DELETE,
            format!("{deployments}/{name}"),
            JSON,
            options,
        )
    };
    let writes = [
        (
            Method::POST,
            dry(deployments.clone()),
            JSON,
            deployment("new", &owner),
        ),
        (
            Method::POST,
            dry(deployments.clone()),
            JSON,
            deployment("new", &json!([])),
        ),
        (
            Method::POST,
            dry(deployments.clone()),
            JSON,
            deployment("owned", &owner),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned")),
            MERGE,
            replicas.clone(),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned")),
            MERGE,
            json!({}),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned")),
            MERGE,
            stale.clone(),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned")),
            MERGE,
            invalid,
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/free")),
            MERGE,
            replicas.clone(),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/free")),
            MERGE,
            json!({ "metadata": { "ownerReferences": owner } }),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned")),
            MERGE,
            json!({ "metadata": { "ownerReferences": null } }),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned/scale")),
            MERGE,
            replicas.clone(),
        ),
        (
            Method::PATCH,
            dry(format!("{deployments}/owned/status")),
            MERGE,
            json!({ "status": { "replicas": 1 } }),
        ),
        delete("owned", json!({ "propagationPolicy": "Background" })),
        delete(
            "owned",
            json!({ "preconditions": { "resourceVersion": "1" } }),
        ),
        delete("free", json!({})),
        delete("none", json!({})),
        (
            Method::PATCH,
            dry(format!("{foos}/f/status")),
            MERGE,
            status,
        ),
        (Method::PATCH, dry(format!("{foos}/f/status")), MERGE, stale),
        (Method::PATCH, dry(format!("{foos}/f")), MERGE, replicas),
    ];
    let long = "p".repeat(140);
    let users = [
        User {
            name: CONTROLLER,
            pod: Some(("pod-a", "uid-a")),
        },
        User {
            name: CONTROLLER,
            pod: Some((&long, "uid-a")),
        },
        User {
            name: CONTROLLER,
            pod: None,
        },
        User {
            name: "somebody",
            pod: Some(("pod-b", "uid-b")),
        },
    ];
    let long_holder = format!("{}_uid-a", &long[..122]);
    let record = format!(
        "{}/{}",
        path(Kind::ServiceAccount, FENCING.record.0),
        FENCING.record.1
    );
    for holder in [
        None,
        Some("pod-a_uid-a"),
        Some("pod-b_uid-b"),
        Some(&*long_holder),
    ] {
        let named = json!({ "metadata": { "annotations": { "samplecontroller.k8s.io/lease-holder": holder } } });
        for run in &mut sides {
            let (code, body) = run
                .side
                .send(&ask(Method::PATCH, record.as_str(), MERGE, &named), ADMIN)
                .await;
            assert_eq!(code, 200, "{body}");
        }
        // Wait until the API server has observed the record.
        let words = holder.map_or("in foo-system: no".to_owned(), |holder| {
            format!("\"{holder}\"")
        });
        let probe = User {
            name: CONTROLLER,
            pod: Some(("pod-z", "uid-z")),
        };
        let patch = ask(
            Method::PATCH,
            dry(format!("{deployments}/owned")),
            MERGE,
            &json!({}),
        );
        eventually(DEADLINE, "the policy goes by the record", async || {
            let (_, refused) = sides[0].side.send(&patch, probe).await;
            let message = refused["message"].as_str().unwrap_or_default();
            if message.contains(&words) {
                Ok(())
            } else {
                Err(refused)
            }
        })
        .await;
        for user in users {
            for (method, path, content_type, body) in &writes {
                let sent = || ask(method.clone(), path.as_str(), content_type, body);
                same(&mut sides, user, [sent(), sent()]).await;
            }
        }
    }
}

/// Compares reviews of a token and of its user's permission to read metrics. The operator sends both when it is scraped.
#[tokio::test]
async fn simulated_token_reviews_match_the_real_ones() {
    let cluster = &*CLUSTER;
    let (mut sides, namespace) = sides("r").await;
    let accounts = path(Kind::ServiceAccount, &namespace);
    let mut tokens = vec![["nonsense".to_owned(), "nonsense".to_owned()]];
    for name in ["scraper", "another"] {
        let account = json!({ "metadata": { "name": name } });
        same_of(&mut sides, Method::POST, &accounts, JSON, &account).await;
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "audiences": [] },
        });
        let request = ask(
            Method::POST,
            format!("{accounts}/{name}/token"),
            JSON,
            &request,
        );
        let (code, issued) = sides[0].side.send(&request, ADMIN).await;
        assert_eq!(code, 201, "{issued}");
        let token = issued["status"]["token"].as_str().unwrap().to_owned();
        tokens.push([token, name.to_owned()]);
        if let Side::Simulated(it) = &mut sides[1].side {
            let user = format!("system:serviceaccount:{namespace}:{name}");
            if name != "scraper" {
                it.store.revoke(&user, "get", "/metrics");
            }
            it.store.set_token(name, &user);
        }
    }
    let (role, account) = (
        format!("metrics-{namespace}"),
        format!("{namespace}:scraper"),
    );
    for command in [
        &[
            "create",
            "clusterrole",
            &role,
            "--verb=get",
            "--non-resource-url=/metrics",
        ][..],
        &[
            "create",
            "clusterrolebinding",
            &role,
            &format!("--clusterrole={role}"),
            &format!("--serviceaccount={account}"),
        ],
    ] {
        cluster.kubectl(command).await.success();
    }
    let subject = |user: &Value| {
        let mut spec = user.clone();
        spec["user"] = spec["username"].take();
        spec.as_object_mut().unwrap().remove("username");
        spec["nonResourceAttributes"] = json!({ "path": "/metrics", "verb": "get" });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": spec,
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        ask(Method::POST, path, JSON, &review)
    };
    let scraper = json!({ "username": format!("system:serviceaccount:{account}") });
    eventually(
        DEADLINE,
        "the API server knows the role",
        async || match sides[0].side.send(&subject(&scraper), ADMIN).await {
            (201, review) if review["status"]["allowed"] == true => Ok(()),
            other => Err(other),
        },
    )
    .await;
    let mut allowed = Vec::new();
    for token in tokens {
        let review = |token: &String| {
            let review = json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {},
                "spec": { "token": token },
            });
            let path = "/apis/authentication.k8s.io/v1/tokenreviews";
            ask(Method::POST, path, JSON, &review)
        };
        let (_, reviewed) = same(&mut sides, ADMIN, token.each_ref().map(review)).await;
        if reviewed["status"]["authenticated"] != true {
            allowed.push(json!("nobody"));
            continue;
        }
        let mut subjects = Vec::new();
        for (run, token) in sides.iter_mut().zip(&token) {
            let (_, reviewed) = run.side.send(&review(token), ADMIN).await;
            subjects.push(subject(&reviewed["status"]["user"]));
        }
        let (_, reviewed) = same(&mut sides, ADMIN, subjects.try_into().ok().unwrap()).await;
        allowed.push(reviewed["status"]["allowed"].clone());
    }
    assert_eq!(json!(allowed), json!(["nobody", true, false]));
}
