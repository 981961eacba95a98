//! Other installations, and namespaces that reject pods.

use super::*;

/// Returns the line of a check.
async fn line(check: &str, flags: &[&str]) -> String {
    let said = doctor(CLUSTER.kubeconfig(), flags).await;
    let check = format!(" {check}: ");
    let mut lines = said.lines().into_iter();
    lines.find(|line| line.contains(&check)).unwrap()
}

/// `doctor` finds a second installation by its Deployment, its Lease, or the binding that it has overwritten.
#[allow(clippy::too_many_lines, reason = "a table")]
#[tokio::test]
async fn another_installation_is_seen() {
    let _alone = installed().await;
    kubectl("create namespace second").await;
    let check = "other installations";
    let lease = |seconds: i32| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "foo-controller", "namespace": "second" },
            "spec": { "holderIdentity": "c_d", "renewTime": "2020-01-01T00:00:00.000000Z", "leaseDurationSeconds": seconds },
        })
    };
    apply(&lease(15)).await;
    assert_eq!(line(check, &[]).await, ANSWERS[11]);
    apply(&lease(i32::MAX)).await;
    let unknown = "warning other installations: there is an installation in second, led by c_d: both write the same objects unless \
                   their `namespaces` or their `installation` differ; compare its configuration, which is unknown here: no Deployment \
                   with the label app.kubernetes.io/name uses its Lease";
    assert_eq!(line(check, &[]).await, unknown);
    let deployment = |name: &str, namespace: &str, container: Value| {
        let mut container = container;
        (container["name"], container["image"]) = ("c".into(), "i".into());
        let volumes = json!([{ "name": "config", "configMap": { "name": "config" } }]);
        let labels = json!({ "app.kubernetes.io/name": "foo-controller" });
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": name, "namespace": namespace, "labels": labels },
            "spec": { "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels }, "spec": {
                "containers": [container], "volumes": volumes } } },
        })
    };
    let variable = |namespaces: &str| json!({ "env": [{ "name": "FOO_CONTROLLER__NAMESPACES", "value": namespaces }] });
    kubectl("create configmap config --from-literal=f.toml=namespaces=[\"default\"] -n second")
        .await;
    let file = json!({ "args": ["--config", "/etc/foo/f.toml"], "volumeMounts": [{ "name": "config", "mountPath": "/etc/foo" }] });
    for (theirs, ours, expected) in [
        (
            file,
            "",
            "error other installations: the installation in second also serves default",
        ),
        (
            json!({ "envFrom": [{ "secretRef": { "name": "s" } }] }),
            "",
            "warning other installations: there is an installation in second, led by c_d: both write the same objects unless their \
             `namespaces` or their `installation` differ; compare its configuration, which is unknown here: namespaces = [\"not readable \
             here\"] (environment variable FOO_CONTROLLER__NAMESPACES)",
        ),
        (
            json!({ "args": ["--namespace", "default"] }),
            "--namespace=other",
            "ok other installations: in second, for other namespaces",
        ),
        (
            variable("[]"),
            "",
            "error other installations: the installation in second also serves all namespaces",
        ),
        (
            variable("default"),
            "",
            "error other installations: the installation in second also serves default",
        ),
        (
            variable("default"),
            "--namespace=default",
            "error other installations: the installation in second also serves default",
        ),
        (
            variable("default"),
            "--namespace=other",
            "ok other installations: in second, for other namespaces",
        ),
    ] {
        kubectl("delete deployment foo-controller -n second --ignore-not-found").await;
        apply(&deployment("foo-controller", "second", theirs)).await;
        let flags: Vec<_> = Some(ours).into_iter().filter(|it| !it.is_empty()).collect();
        let found = line(check, &flags).await;
        assert!(found.starts_with(expected), "{found}");
    }
    kubectl("delete deployment/foo-controller lease/foo-controller -n second").await;
    let canary = json!({ "env": [{ "name": "FOO_CONTROLLER__INSTALLATION", "value": "canary" }] });
    apply(&deployment("canary", "second", canary)).await;
    for (flags, expected) in [
        (
            &[][..],
            "ok other installations: in second (Lease foo-controller-canary), for other objects",
        ),
        (
            &["--installation=canary"],
            "error other installations: the installation in second also serves all namespaces",
        ),
    ] {
        let found = line(check, flags).await;
        assert!(found.starts_with(expected), "{found}");
    }
    kubectl("delete deployment canary -n second").await;
    let beside = json!({ "args": ["--lease-name", "l", "--namespace", "default"] });
    apply(&deployment("beside", "foo-system", beside)).await;
    let found = line(check, &[]).await;
    kubectl("delete deployment beside -n foo-system").await;
    let expected = "error other installations: the installation in foo-system (Lease l) also serves default, and both write the \
                    same objects";
    assert!(found.starts_with(expected), "{found}");
    for (name, namespace) in [("a", "default"), ("b", "other")] {
        let of_one_lease = json!({ "args": ["--namespace", namespace] });
        apply(&deployment(name, "foo-system", of_one_lease)).await;
    }
    let found = line(check, &[]).await;
    kubectl("delete deployment a b -n foo-system").await;
    let expected = "error other installations: the Deployments foo-system/a and foo-system/b use the Lease \
                    foo-system/foo-controller, and have different `namespaces`: only one of them leads";
    assert!(found.starts_with(expected), "{found}");
    let take = |namespace: &str| {
        json!([{ "op": "replace", "path": "/subjects/0/namespace", "value": namespace }])
            .to_string()
    };
    for (namespace, expected) in [
        (
            "second",
            "error other installations: ClusterRoleBinding foo-controller is for the service account in second, not in foo-system: \
             another installation was applied over this one",
        ),
        ("foo-system", ANSWERS[11]),
    ] {
        let change = take(namespace);
        let args = [
            "patch",
            "clusterrolebinding",
            "foo-controller",
            "--type=json",
            "-p",
            &change,
        ];
        CLUSTER.kubectl(&args).await.success();
        let found = line(check, &[]).await;
        assert!(found.starts_with(expected), "{found}");
    }
    kubectl("delete namespace second --wait=false").await;
}

/// Namespaces that reject pods are listed if they contain Foos.
#[tokio::test]
async fn namespaces_that_refuse_pods_are_named() {
    let _alone = installed().await;
    let check = "namespaces with foos";
    kubectl("create namespace strict").await;
    kubectl("label namespace strict pod-security.kubernetes.io/enforce=restricted").await;
    assert_eq!(line(check, &[]).await, ANSWERS[12]);
    let foo = json!({
        "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "metadata": { "name": "f", "namespace": "strict" },
        "spec": { "deploymentName": "d" },
    });
    let foo = foo.to_string();
    eventually(DEADLINE, "Foos are served", async || {
        let applied = CLUSTER.kubectl_stdin(&["apply", "-f", "-"], &foo).await;
        applied.status.success().then_some(()).ok_or(applied.stderr)
    })
    .await;
    assert_eq!(
        line(check, &[]).await,
        "warning namespaces with foos: namespace strict enforces the Pod Security level restricted, and the pods of its 1 \
         foos need baseline: they are rejected; kubectl label namespace strict --overwrite \
         pod-security.kubernetes.io/enforce=baseline"
    );
    // The namespace is not served.
    assert_eq!(line(check, &["--namespace=default"]).await, ANSWERS[12]);
    kubectl("label namespace strict --overwrite pod-security.kubernetes.io/enforce=baseline").await;
    assert_eq!(line(check, &[]).await, "ok namespaces with foos: 1 in 1");

    kubectl("create quota q --hard=pods=2,secrets=1 -n strict").await;
    let status = json!({ "status": { "hard": { "pods": "2", "secrets": "1" }, "used": { "pods": "2", "secrets": "1" } } });
    let status = status.to_string();
    let args = [
        "patch",
        "quota",
        "q",
        "-n",
        "strict",
        "--subresource=status",
        "--type=merge",
        "-p",
        &status,
    ];
    CLUSTER.kubectl(&args).await.success();
    assert_eq!(
        line(check, &[]).await,
        "warning namespaces with foos: ResourceQuota strict/q is used up: pods 2 of 2: new pods or objects there are \
         rejected; raise it, or delete what is not needed"
    );
    kubectl("delete quota q -n strict").await;

    let range = "openshift.io/sa.scc.uid-range";
    kubectl(&format!(
        "annotate namespace foo-system {range}=1000680000/10000"
    ))
    .await;
    let user = json!({ "spec": { "template": { "spec": { "securityContext": { "runAsUser": 65532 } } } } });
    patch("deployment foo-controller", &user).await;
    assert_eq!(
        line(check, &[]).await,
        "warning namespaces with foos: the pods in foo-system have runAsUser: 65532, and the namespace's \
         openshift.io/sa.scc.uid-range is 1000680000/10000: OpenShift rejects them, unless their service account may use \
         another SCC; remove runAsUser"
    );
    kubectl(&format!("annotate namespace foo-system {range}-")).await;
    kubectl("delete foo f -n strict").await;
    kubectl("delete namespace strict --wait=false").await;
}

/// Without the CRD, Deployments of former Foos are listed: the garbage collector deletes them when the CRD is back.
#[tokio::test]
async fn deployments_that_are_left_are_named() {
    let _alone = installed().await;
    let owner = json!({ "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "name": "f", "controller": true,
                        "uid": "0b9b2f1c-7d6e-4c0a-9a3e-0d4c5b6a7f80" });
    let labels = json!({ "a": "b" });
    apply(&json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "left", "namespace": "default", "ownerReferences": [owner] },
        "spec": { "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels }, "spec": {
            "containers": [{ "name": "c", "image": "i" }] } } },
    }))
    .await;
    eventually(DEADLINE, "Foos are served", async || {
        let foos = CLUSTER.kubectl(&["get", "foos", "-A"]).await;
        foos.status.success().then_some(()).ok_or(foos.stderr)
    })
    .await;
    kubectl(&format!("delete crd {CRD}")).await;
    let found = line(&format!("CRD {CRD}"), &[]).await;
    kubectl("delete deployment left").await;
    assert_eq!(
        found,
        "error CRD foos.samplecontroller.k8s.io: missing: apply the CRD that the command crd prints; objects of deleted Foos still \
         exist (deployments/default/left): the garbage collector deletes them when the CRD is installed; to keep one, \
         remove its ownerReferences first"
    );
}

/// If the limit on file descriptors leaves namespaces without a watch, `doctor` reports the first of them and checks the
/// others.
#[tokio::test]
async fn too_few_file_descriptors_are_reported() {
    let _alone = installed().await;
    let names: Vec<_> = (0..20).map(|n| format!("--namespace=n{n:02}")).collect();
    let flags: Vec<_> = names.iter().map(|name| &**name).collect();
    let mut limited = bound_command("sh");
    limited.args(["-c", r#"ulimit -n 128 && exec "$0" "$@""#, PROGRAM]);
    let said = run(limited, CLUSTER.kubeconfig(), &flags).await;
    let lines = said.lines();
    let expected = "warning file descriptors: 20 namespaces need 40 connections, and this process may open 128 files: the last 4 of \
                    the namespaces, from n16 on, are not served; raise the hard limit (LimitNOFILE of the container runtime, \
                    ulimit -Hn), or watch all namespaces";
    assert!(lines.iter().any(|line| line == expected), "{said:?}");
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("ok permissions in namespace n19: ")),
        "{said:?}"
    );
    assert_eq!(said.code, Some(0), "{said:?}");
}
