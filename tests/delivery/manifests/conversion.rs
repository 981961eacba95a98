//! `deploy/conversion`, the conversion webhook of an operator whose versions have different schemas.

use super::*;

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
