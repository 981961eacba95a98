//! Admission webhooks and policies: `doctor` selects the same writes as the API server, and grades the webhooks.

use super::*;

/// Returns a webhook for these resources, each as `group/version/resource`.
fn webhook(name: &str, policy: &str, seconds: u32, resources: &[&str], differs: &Value) -> Value {
    let rules = resources.iter().map(|it| {
        let mut parts = it.splitn(3, '/');
        let mut next = || parts.next().unwrap();
        json!({ "apiGroups": [next()], "apiVersions": [next()], "resources": [next()], "operations": ["*"] })
    });
    let mut webhook = json!({
        "name": format!("{name}.example.com"),
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": policy,
        "timeoutSeconds": seconds,
        "clientConfig": { "service": { "namespace": "default", "name": "nowhere" } },
        "rules": rules.collect::<Vec<_>>(),
    });
    for (key, value) in differs.as_object().into_iter().flatten() {
        webhook[key] = value.clone();
    }
    webhook
}

async fn configure(webhooks: &[Value]) {
    configure_as("ValidatingWebhookConfiguration", "checked", webhooks).await;
}

async fn configure_as(kind: &str, name: &str, webhooks: &[Value]) {
    apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": { "name": name },
        "webhooks": webhooks,
    }))
    .await;
}

/// Returns the line of a check.
fn line(said: &Said, check: &str) -> String {
    let check = format!(" {check}: ");
    let mut lines = said.lines().into_iter();
    lines.find(|line| line.contains(&check)).unwrap()
}

/// Returns the resources in a line.
fn named(line: &str) -> BTreeSet<String> {
    let Some((_, rest)) = line.split_once("writes to ") else {
        return BTreeSet::new();
    };
    let rest = rest.split(", and ").next().unwrap();
    let rest = rest.split(" in ").next().unwrap();
    rest.split(", ").map(str::to_owned).collect()
}

/// Returns the resources of the writes for which the API server called this webhook. The webhook's Service does not exist. The
/// audit log contains the ignored failure.
fn called(name: &str) -> BTreeSet<String> {
    let log = CLUSTER.ready().audit_log.as_ref().unwrap();
    let log = std::fs::read_to_string(log).unwrap();
    let events = log.lines().map(serde_json::from_str::<Value>);
    let name = format!("{name}.example.com");
    let called = events.filter_map(Result::ok).filter_map(|event| {
        let annotations = event["annotations"].as_object()?;
        annotations.values().find(|it| **it == *name)?;
        let of = &event["objectRef"];
        // Excludes writes of the API server to its own Lease.
        let namespace = of["namespace"].as_str()?;
        ["foo-system", "judged"]
            .contains(&namespace)
            .then_some(())?;
        let resource = of["resource"].as_str()?;
        let subresource = of["subresource"].as_str();
        Some(match subresource {
            Some(subresource) => format!("{resource}/{subresource}"),
            None => resource.to_owned(),
        })
    });
    called.collect()
}

/// Sends the writes of a controller: to the Lease, to the fencing record, and in the namespace `judged`.
async fn write() {
    let change = r#"--patch={"metadata":{"annotations":{"a":"b"}}}"#;
    for object in [
        "lease foo-controller -n foo-system",
        "serviceaccount foo-controller-fencing -n foo-system",
    ] {
        kubectl(&format!("patch {object} --type=merge {change}")).await;
    }
    kubectl("create deployment d --image=i -n judged").await;
    kubectl(&format!("patch deployment d -n judged {change}")).await;
    kubectl("delete deployment d -n judged").await;
    let status = r#"--patch={"status":{"availableReplicas":1}}"#;
    kubectl(&format!(
        "patch foo f -n judged --subresource=status --type=merge {status}"
    ))
    .await;
    let event = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": "e", "namespace": "judged" },
        "eventTime": "2020-01-01T00:00:00.000000Z",
        "reportingController": "a",
        "reportingInstance": "a",
        "action": "A",
        "reason": "A",
        "type": "Normal",
        "regarding": { "kind": "Foo", "name": "f", "namespace": "judged" },
    });
    let event = event.to_string();
    let created = CLUSTER.kubectl_stdin(&["create", "-f", "-"], &event);
    created.await.success();
}

/// Installs everything, with a Foo in the namespace `judged`.
async fn judged() -> MutexGuard<'static, ()> {
    let alone = installed().await;
    for manifest in [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "judged", "labels": { "team": "x" } } }),
        json!({ "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "metadata": { "name": "f", "namespace": "judged" },
                "spec": { "deploymentName": "d" } }),
    ] {
        // A new namespace or CRD takes effect with a delay.
        let manifest = manifest.to_string();
        eventually(DEADLINE, "it is applied", async || {
            let applied = CLUSTER
                .kubectl_stdin(&["apply", "-f", "-"], &manifest)
                .await;
            applied.status.success().then_some(()).ok_or(applied.stderr)
        })
        .await;
    }
    alone
}

/// Deletes the webhooks and the Foo.
async fn clean_up() {
    kubectl("delete validatingwebhookconfiguration/checked mutatingwebhookconfiguration/changing --ignore-not-found").await;
    kubectl("delete foo f -n judged --ignore-not-found").await;
}

/// Each rule and selector selects the same writes for `doctor` as for the API server.
#[tokio::test]
async fn writes_are_judged_as_the_api_server_has_them_judged() {
    let _alone = judged().await;
    let name = "kubernetes.io/metadata.name";
    let expressions = |operator: &str, values: &[&str]| {
        let expression = json!({ "key": name, "operator": operator, "values": values });
        json!({ "namespaceSelector": { "matchExpressions": [expression] } })
    };
    let none = Value::Null;
    let leases = "coordination.k8s.io/v1/leases";
    let cases = [
        ("all", &["*/*/*/*"][..], none.clone()),
        ("all-but-subresources", &["*/*/*"], none.clone()),
        ("one", &["apps/v1/deployments"], none.clone()),
        ("other-version", &["apps/v2/deployments"], none.clone()),
        ("one-and-below", &["apps/*/deployments/*"], none.clone()),
        (
            "status",
            &["samplecontroller.k8s.io/v1alpha1/*/status"],
            none.clone(),
        ),
        (
            "not-status",
            &["samplecontroller.k8s.io/v1alpha1/foos"],
            none.clone(),
        ),
        ("scale", &["*/*/*/scale"], none.clone()),
        ("equivalent", &["/v1/events"], none.clone()),
        ("exact", &["/v1/events"], json!({ "matchPolicy": "Exact" })),
        ("two", &[leases, "/v1/serviceaccounts"], none.clone()),
        (
            "labelled",
            &[leases],
            json!({ "objectSelector": { "matchLabels": { "a": "b" } } }),
        ),
        (
            "team",
            &["*/*/*/*"],
            json!({ "namespaceSelector": { "matchLabels": { "team": "x" } } }),
        ),
        (
            "not-here",
            &["*/*/*/*"],
            expressions("NotIn", &["foo-system", "judged"]),
        ),
        ("here", &["*/*/*"], expressions("In", &["foo-system"])),
    ];
    let all = cases
        .iter()
        .map(|(name, resources, differs)| webhook(name, "Ignore", 1, resources, differs));
    configure(&all.collect::<Vec<_>>()).await;
    eventually(DEADLINE, "the webhooks are called", async || {
        kubectl("annotate lease foo-controller -n foo-system a=b --overwrite").await;
        if called("all").is_empty() {
            Err("not yet")
        } else {
            Ok(())
        }
    })
    .await;
    write().await;
    for (name, resources, differs) in &cases {
        configure(&[webhook(name, "Fail", 1, resources, differs)]).await;
        let said = doctor(CLUSTER.kubeconfig(), &["--namespace=judged"]).await;
        let lines = ["webhooks on the Lease", "webhooks on writes"].map(|it| line(&said, it));
        let named: BTreeSet<_> = lines.iter().flat_map(|it| named(it)).collect();
        assert_eq!(named, called(name), "{name}: {lines:?}");
    }
    // The comparison is not between empty sets.
    assert_eq!(called("all").len(), 5, "{:?}", called("all"));
    assert_eq!(called("equivalent").len(), 1);
    clean_up().await;
}

/// Creates the Service `up` in the namespace `default`, with or without an endpoint.
async fn serve(ready: Option<bool>) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "up", "namespace": "default" },
        // Without a cluster IP, to which the API server would send a request.
        "spec": { "clusterIP": "None", "ports": [{ "port": 443 }] },
    });
    apply(&service).await;
    kubectl("delete endpointslice up-1 --ignore-not-found").await;
    let Some(ready) = ready else { return };
    apply(&json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "up-1", "namespace": "default", "labels": { "kubernetes.io/service-name": "up" } },
        "endpoints": [{ "addresses": ["192.0.2.1"], "conditions": { "ready": ready } }],
        "ports": [{ "name": "", "port": 443 }],
    }))
    .await;
}

/// A webhook that may block the controller's writes is listed with the cause. Other webhooks are not.
#[allow(clippy::too_many_lines, reason = "a table")]
#[tokio::test]
async fn blocking_webhooks_are_listed() {
    let _alone = judged().await;
    let leases = &["coordination.k8s.io/v1/leases"][..];
    let accounts = &["/v1/serviceaccounts"][..];
    let rejects =
        "the fencing policy rejects the writes of a new leader until it has written the record";
    let deployments = &["apps/v1/deployments"][..];
    // Never used for a connection: the test sends no write that matches.
    let ca = &Value::from("Y2VydGlmaWNhdGU=");
    let service = json!({ "namespace": "default", "name": "up" });
    let up = |ca: &Value| json!({ "clientConfig": { "service": service, "caBundle": ca } });
    let id = "webhook w.example.com of ValidatingWebhookConfiguration checked";
    let fails = "and its failurePolicy is Fail";
    let exclude = "exclude the namespace in its namespaceSelector, by matchExpressions: [{key: kubernetes.io/metadata.name, \
                   operator: NotIn, values: [foo-system]}]";
    let gone = "its Service default/nowhere does not exist";
    let mend =
        "check that it runs, or delete the configuration if the webhook is no longer installed";
    let refuses = |why: &str| {
        format!(
            "error webhooks on writes: {id} blocks writes to deployments in judged: {why}, {fails}: {mend}"
        )
    };
    let none = Value::Null;
    let conditions = json!({ "matchConditions": [{ "name": "a", "expression": "true" }] });
    let port = json!({ "clientConfig": { "service": { "namespace": "default", "name": "up", "port": 8443 }, "caBundle": ca } });
    for (endpoint, policy, seconds, resources, differs, code, expected) in [
        (
            None,
            "Fail",
            1,
            leases,
            &none,
            1,
            format!(
                "error webhooks on the Lease: {id} blocks writes to leases, and no replica can lead: {gone}, {fails}: {exclude}"
            ),
        ),
        (
            None,
            "Fail",
            1,
            leases,
            &conditions,
            0,
            format!(
                "warning webhooks on the Lease: {id} may block writes to leases, and then no replica can lead: {gone}, \
                 {fails}: {exclude}"
            ),
        ),
        (
            Some(true),
            "Fail",
            1,
            leases,
            &up(ca),
            0,
            format!(
                "warning webhooks on the Lease: while {id} does not respond, no replica can lead: it matches writes to \
                 leases, {fails}: {exclude}"
            ),
        ),
        (
            Some(true),
            "Ignore",
            10,
            leases,
            &up(ca),
            0,
            format!(
                "warning webhooks on the Lease: {id} may take 10s (timeoutSeconds) for a write to leases, and a renewal \
                 times out after 5s: while the webhook does not respond, no replica can lead: {exclude}"
            ),
        ),
        (
            Some(true),
            "Ignore",
            3,
            leases,
            &up(ca),
            0,
            format!("ok webhooks on the Lease: matched by {id} (Ignore, 3s)"),
        ),
        (
            Some(true),
            "Ignore",
            10,
            accounts,
            &up(ca),
            0,
            format!(
                "warning webhooks on the Lease: {id} may take 10s (timeoutSeconds) for a write to serviceaccounts: while the \
                 webhook does not respond, {rejects}: {exclude}"
            ),
        ),
        (
            None,
            "Fail",
            1,
            accounts,
            &none,
            1,
            format!(
                "error webhooks on the Lease: {id} blocks writes to serviceaccounts, and {rejects}: {gone}, {fails}: {exclude}"
            ),
        ),
        (None, "Fail", 1, deployments, &none, 1, refuses(gone)),
        (
            None,
            "Fail",
            1,
            deployments,
            &up(ca),
            1,
            refuses("its Service default/up has no ready endpoint"),
        ),
        (
            Some(false),
            "Fail",
            1,
            deployments,
            &up(ca),
            1,
            refuses("its Service default/up has no ready endpoint"),
        ),
        (
            Some(true),
            "Fail",
            1,
            deployments,
            &port,
            1,
            refuses("its Service default/up has no port 8443"),
        ),
        (
            Some(true),
            "Fail",
            1,
            deployments,
            &up(&none),
            1,
            refuses("its clientConfig has no caBundle"),
        ),
        (
            Some(true),
            "Fail",
            1,
            deployments,
            &up(ca),
            0,
            format!("ok webhooks on writes: matched by {id} (Fail, 1s)"),
        ),
        (
            None,
            "Ignore",
            1,
            deployments,
            &none,
            0,
            format!("ok webhooks on writes: matched by {id} (Ignore, 1s)"),
        ),
        (
            Some(true),
            "Ignore",
            30,
            deployments,
            &up(ca),
            0,
            format!(
                "warning webhooks on writes: {id} may take 30s for writes to deployments in judged, and each write times \
                 out after 10.5s: while the webhook does not respond, nothing is written there, whatever its failurePolicy: \
                 set a shorter timeoutSeconds, or a longer lease_duration and renew_deadline"
            ),
        ),
    ] {
        serve(endpoint).await;
        configure(&[webhook("w", policy, seconds, resources, differs)]).await;
        let said = doctor(CLUSTER.kubeconfig(), &["--namespace=judged"]).await;
        let check = expected.split_once(' ').unwrap().1;
        assert_eq!(
            line(&said, check.split(": ").next().unwrap()),
            expected,
            "{said:?}"
        );
        assert_eq!(said.code, Some(code), "{said:?}");
    }
    kubectl("delete service up").await;
    kubectl("delete endpointslice up-1 --ignore-not-found").await;
    // With all namespaces served, a webhook is an error only where there are Foos.
    let in_namespace = |name: &str| json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": name } } });
    for (place, begins) in [("judged", "error "), ("kube-public", "warning ")] {
        configure(&[webhook("w", "Fail", 1, deployments, &in_namespace(place))]).await;
        let found = line(&administrator().await, "webhooks on writes");
        assert!(
            found.starts_with(begins) && found.contains(&format!(" in {place}: ")),
            "{found}"
        );
    }
    clean_up().await;
}

/// A write waits for all mutating webhooks, one after another, and then for the slowest validating webhook.
#[tokio::test]
async fn webhooks_of_one_write_add_up() {
    let _alone = judged().await;
    let leases = &["coordination.k8s.io/v1/leases"][..];
    let deployments = &["apps/v1/deployments"][..];
    let webhook =
        |name: &str, seconds: u32, of: &[&str]| webhook(name, "Ignore", seconds, of, &Value::Null);
    configure(&[
        webhook("a", 3, leases),
        webhook("b", 2, leases),
        webhook("c", 8, deployments),
        webhook("d", 10, &["events.k8s.io/v1/events"]),
    ])
    .await;
    let found = async |seconds| {
        let all = [
            webhook("l", seconds, leases),
            webhook("w", seconds + 1, deployments),
            webhook("e", 9, &["events.k8s.io/v1/events"]),
        ];
        configure_as("MutatingWebhookConfiguration", "changing", &all).await;
        let said = doctor(CLUSTER.kubeconfig(), &["--namespace=judged"]).await;
        ["webhooks on the Lease", "webhooks on writes"].map(|check| line(&said, check))
    };
    for line in found(1).await {
        assert!(
            line.starts_with("ok ") && line.contains(": matched by "),
            "{line}"
        );
    }
    let validating = "of ValidatingWebhookConfiguration checked";
    let mutating = "of MutatingWebhookConfiguration changing";
    let expected = [
        format!(
            "warning webhooks on the Lease: webhook l.example.com {mutating} (Ignore, 2s), webhook a.example.com {validating} \
             (Ignore, 3s) may take 5s one after another for a write to leases, and a renewal times out after 5s: while they do \
             not respond, no replica can lead: exclude the namespace in each namespaceSelector, by matchExpressions: [{{key: \
             kubernetes.io/metadata.name, operator: NotIn, values: [foo-system]}}]"
        ),
        format!(
            "warning webhooks on writes: webhook w.example.com {mutating} (Ignore, 3s), webhook c.example.com {validating} \
             (Ignore, 8s) may take 11s one after another for writes to deployments in judged, and each write times out after \
             10.5s: while they do not respond, nothing is written there, whatever their failurePolicy: set shorter \
             timeoutSeconds, or a longer lease_duration and renew_deadline"
        ),
    ];
    assert_eq!(found(2).await, expected);
    clean_up().await;
}

/// Only policies that can reject or change a write are listed.
#[tokio::test]
async fn policies_that_judge_the_writes_are_named() {
    let _alone = judged().await;
    let rule = json!({ "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments"] });
    apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": "judging" },
        "spec": { "matchConstraints": { "resourceRules": [rule] }, "validations": [{ "expression": "true" }] },
    }))
    .await;
    let bind = async |actions: &[&str], namespaces: &Value| {
        apply(&json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": { "name": "judging" },
            "spec": { "policyName": "judging", "validationActions": actions, "matchResources": { "namespaceSelector": namespaces } },
        }))
        .await;
        let said = doctor(CLUSTER.kubeconfig(), &["--namespace=judged"]).await;
        line(&said, "admission policies")
    };
    let judges = "ok admission policies: judging can refuse writes to deployments";
    assert_eq!(bind(&["Deny"], &json!({})).await, judges);
    assert_eq!(bind(&["Audit"], &json!({})).await, ANSWERS[10]);
    let elsewhere = json!({ "matchLabels": { "team": "y" } });
    assert_eq!(bind(&["Deny"], &elsewhere).await, ANSWERS[10]);
    kubectl("delete validatingadmissionpolicybinding,validatingadmissionpolicy judging").await;
    clean_up().await;
}
