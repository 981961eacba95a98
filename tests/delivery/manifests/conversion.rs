//! `deploy/conversion`, the conversion webhook of an operator whose versions have different schemas.

use operator_runtime::{
    Key,
    crd::{Version, converted},
};

use super::{
    names::{OTHER_NAMES, read, write},
    *,
};

const NAME: &str = "foo-controller-conversion";

/// The API server accepts the folder in the namespace, which enforces the restricted Pod Security level, without a warning. Its
/// parts fit together and to the program.
#[tokio::test]
async fn the_conversion_webhook_fits_together() {
    let cluster = installed().await;
    for kind in ["Certificate", "Issuer"] {
        define(cluster, "cert-manager.io", kind).await;
    }
    let objects = objects("deploy/conversion").await;
    let deployment = objects.one("Deployment");
    let pod = &deployment["spec"]["template"];
    let labels = &pod["metadata"]["labels"];
    let selectors = [
        &deployment["spec"]["selector"]["matchLabels"],
        &objects.one("Service")["spec"]["selector"],
        &objects.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        &objects.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ];
    for selector in selectors {
        assert_eq!(selector, labels);
    }
    assert_eq!(deployment["spec"]["replicas"], 2);

    // Neither a token nor permissions.
    for kind in ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"] {
        assert_eq!(objects.all(kind).next(), None);
    }
    let spec = &pod["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(objects.one("ServiceAccount")["metadata"]["name"], NAME);
    assert_eq!(spec["serviceAccountName"], NAME);

    // The program accepts the arguments, and its defaults are the ports.
    let container = &spec["containers"][0];
    assert_eq!(container["image"], objects_image().await);
    let args = container["args"].as_array().unwrap();
    let args = args.iter().map(|arg| arg.as_str().unwrap());
    let args: Vec<_> = args.collect();
    let mount = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
    assert_eq!(args, ["convert", &format!("--cert-dir={mount}")]);
    let line = [NAME].into_iter().chain(args);
    let parsed = operator_runtime::command(&APP).try_get_matches_from(line);
    let parsed = parsed.unwrap();
    let (_, flags) = parsed.subcommand().unwrap();
    let webhook = flags.get_one::<SocketAddr>("listen").unwrap().port();
    let config = Config::shipped(&APP);
    let http = config.http.addr.unwrap().port();
    for (name, port) in [("webhook", webhook), ("http", http)] {
        let mut ports = container["ports"].as_array().unwrap().iter();
        let declared = ports.find(|it| it["name"] == name).unwrap();
        assert_eq!(declared["containerPort"], port);
        let allowed = &objects.one("NetworkPolicy")["spec"]["ingress"][0]["ports"];
        let mut allowed = allowed.as_array().unwrap().iter();
        assert!(allowed.any(|it| it["port"] == port), "{name}");
    }
    let grace = spec["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(Duration::from_secs(grace) >= config.shutdown_timeout + Duration::from_secs(5));

    // The Service and the Certificate have one name, as the CRD requires.
    let service = objects.named("Service", NAME);
    let port = &service["spec"]["ports"][0];
    assert_eq!(
        (&port["port"], &port["targetPort"]),
        (&443.into(), &"webhook".into())
    );
    let certificate = &objects.named("Certificate", NAME)["spec"];
    assert_eq!(
        certificate["dnsNames"],
        json!([format!("{NAME}.{NAMESPACE}.svc")])
    );
    assert_eq!(
        spec["volumes"][0]["secret"]["secretName"],
        certificate["secretName"]
    );
    let issuer = objects.named("Issuer", certificate["issuerRef"]["name"].as_str().unwrap());
    let authority = objects.named("Certificate", &format!("{NAME}-ca"));
    let secret = &issuer["spec"]["ca"]["secretName"];
    assert_eq!(secret, &authority["spec"]["secretName"]);
}

/// Returns a CRD that names the webhook, as an operator with two versions prints it.
fn converted_crd() -> Value {
    let stored = foo_controller::api::crd();
    let mut former = stored.clone();
    former.spec.versions[0].name = "v1alpha0".into();
    let former = Version {
        crd: former,
        to_stored: |_| Ok(()),
        from_stored: |_| Ok(()),
    };
    let service = Key::new(NAMESPACE, NAME);
    serde_json::to_value(converted(stored, &service, [former]).crd()).unwrap()
}

/// The webhook beside each overlay, with the names of `deploy` and with others: the names reach the certificates and the CRD, and
/// neither changes the objects of the other.
#[tokio::test]
async fn the_conversion_webhook_fits_every_overlay() {
    let components = folders(&root().join("deploy/components"));
    // These have namespaces that the `namespace` of an overlay must not change.
    let stay = ["collector", "namespaced"];
    let components = components.iter().filter(|name| !stay.contains(&&***name));
    let components: Vec<&str> = components.map(String::as_str).collect();
    for (base, components) in [
        ("base", &components[..]),
        ("base", &[]),
        ("overlays/dev", &["fencing"]),
        ("overlays/production", &["prometheus", "metrics-auth"]),
    ] {
        for names in [&[][..], &OTHER_NAMES[..1], &OTHER_NAMES] {
            let what = format!("{base} {components:?} {names:?}");
            let alone = overlay(base, components);
            let mut kustomization = read(&alone);
            for (field, value) in names {
                kustomization[field] = (*value).into();
            }
            write(&alone, &kustomization);
            let controller = rendered(alone.path()).await;

            let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            fs::write(folder.path().join("crd.yaml"), converted_crd().to_string()).unwrap();
            let others = format!("{}\n---\n{}", others_crd(None), others_crd(Some("bar")));
            fs::write(folder.path().join("others.yaml"), others).unwrap();
            let resource = kustomization["resources"][0].as_str().unwrap().to_owned();
            let webhook = resource.replace(base, "conversion");
            kustomization["resources"] = json!([webhook, "crd.yaml"]);
            kustomization["transformers"] = json!([format!("{webhook}/names")]);
            kustomization["components"] = json!([]);
            write(&folder, &kustomization);
            let conversion = rendered(folder.path()).await;
            fit(&conversion, names, &what);

            kustomization["components"] = read(&alone)["components"].clone();
            kustomization["resources"] = json!([webhook, resource, "crd.yaml", "others.yaml"]);
            write(&folder, &kustomization);
            let both = rendered(folder.path()).await;
            let mut parts = controller.0;
            parts.extend(conversion.0);
            // The names are not applied to other CRDs. kustomize itself sets the namespace of each webhook's Service.
            let namespace = names.iter().find(|(name, _)| *name == "namespace");
            let namespace = namespace.map_or("bar", |(_, value)| value);
            parts.extend([None, Some(namespace)].map(others_crd));
            assert_eq!(both.0.len(), parts.len(), "{what}");
            for part in parts {
                let found = both.0.iter().find(|it| id(it) == id(&part));
                assert_eq!(found, Some(&part), "{what}");
            }
        }
    }
}

/// Returns the CRD of another kind, with the namespace of its own conversion webhook if it has one.
fn others_crd(webhook: Option<&str>) -> Value {
    let name = if webhook.is_some() { "bars" } else { "quxes" };
    let mut crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{name}.example.com") },
    });
    if let Some(namespace) = webhook {
        crd["metadata"]["annotations"] = json!({ "cert-manager.io/inject-ca-from": "bar/bar" });
        let service = json!({ "name": "bar", "namespace": namespace });
        crd["spec"]["conversion"]["webhook"]["clientConfig"] = json!({ "service": service });
    }
    crd
}

/// Checks that the certificates, the Service and the CRD fit together, with these settings of an overlay.
fn fit(objects: &Objects, names: &[(&str, &str)], what: &str) {
    let set = |field: &str| {
        let set = names.iter().find(|(name, _)| *name == field);
        set.map_or("", |(_, value)| *value)
    };
    let renamed = |name: &str| format!("{}{name}{}", set("namePrefix"), set("nameSuffix"));
    let namespace = match set("namespace") {
        "" => NAMESPACE,
        other => other,
    };
    let (name, authority) = (renamed(NAME), renamed(&format!("{NAME}-ca")));
    let crd = objects.one("CustomResourceDefinition");
    let service = &crd["spec"]["conversion"]["webhook"]["clientConfig"]["service"];
    assert_eq!(service["name"], *name, "{what}");
    assert_eq!(service["namespace"], namespace, "{what}");
    let injected = &crd["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
    assert_eq!(*injected, format!("{namespace}/{name}"), "{what}");
    let service = objects.one("Service");
    assert_eq!(service["metadata"]["name"], *name, "{what}");
    assert_eq!(service["metadata"]["namespace"], namespace, "{what}");

    let certificate = &objects.named("Certificate", &name)["spec"];
    let host = format!("{name}.{namespace}.svc");
    assert_eq!(certificate["dnsNames"], json!([host]), "{what}");
    let volume = &objects.one("Deployment")["spec"]["template"]["spec"]["volumes"][0];
    let secret = &certificate["secretName"];
    assert_eq!(
        (secret, secret),
        (&name.into(), &volume["secret"]["secretName"]),
        "{what}"
    );
    let issuer = certificate["issuerRef"]["name"].as_str().unwrap();
    let secret = &objects.named("Issuer", issuer)["spec"]["ca"]["secretName"];
    let certificate = &objects.named("Certificate", &authority)["spec"];
    assert_eq!(
        (secret, secret),
        (&authority.into(), &certificate["secretName"]),
        "{what}"
    );
    let issuer = certificate["issuerRef"]["name"].as_str().unwrap();
    objects.named("Issuer", issuer);
}

/// Returns the image of the controller.
async fn objects_image() -> Value {
    objects("deploy/base").await.container()["image"].clone()
}

/// Foo has one version, so the program refuses to convert.
#[test]
fn a_program_without_a_conversion_refuses_to_convert() {
    let output = Command::new(env!("CARGO_BIN_EXE_foo-controller"))
        .args(["convert", "--cert-dir=/nonexistent"])
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    let refusal = "error: no CustomResourceDefinition of this program has a conversion webhook: ";
    assert!(
        text.lines().count() == 1 && text.starts_with(refusal),
        "{text}"
    );
}
