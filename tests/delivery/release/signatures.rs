//! Signatures and attestations of a release: `deploy/sign.sh` makes them with a key, and the documented commands verify them.

use std::{collections::BTreeMap, fs, process::Command};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use operator_testkit::cluster::{Cluster, Options};
use serde_json::{Value, json};

use super::{Registry, archive, documented, root, sigstore::Sigstore};
use crate::support::built;

/// Variables of a workflow of GitHub, for a tag.
const WORKFLOW: [(&str, &str); 11] = [
    ("GITHUB_ACTIONS", "true"),
    ("GITHUB_SERVER_URL", "https://github.com"),
    ("GITHUB_REPOSITORY", "OWNER/REPOSITORY"),
    ("GITHUB_REPOSITORY_ID", "1"),
    ("GITHUB_REPOSITORY_OWNER_ID", "2"),
    ("GITHUB_REF", "refs/tags/v1"),
    (
        "GITHUB_WORKFLOW_REF",
        "OWNER/REPOSITORY/.github/workflows/release.yml@refs/tags/v1",
    ),
    ("GITHUB_SHA", "8a23362cfe8b59feeea67d46266af01aca8fc640"),
    ("GITHUB_EVENT_NAME", "push"),
    ("GITHUB_RUN_ID", "3"),
    ("GITHUB_RUN_ATTEMPT", "4"),
];

/// Runs commands as a job of GitHub, with cosign on PATH, in the folder of a registry. They reach only loopback.
struct Shell<'a> {
    registry: &'a Registry,
    variables: BTreeMap<&'static str, String>,
}

impl<'a> Shell<'a> {
    fn new(registry: &'a Registry) -> Self {
        let folder = registry.folder.path();
        // skopeo takes plain HTTP only from registries that this file lists.
        let settings = folder.join(".config/containers");
        fs::create_dir_all(&settings).unwrap();
        let insecure = format!(
            "[[registry]]\nlocation = \"{}\"\ninsecure = true\n",
            registry.address
        );
        fs::write(settings.join("registries.conf"), insecure).unwrap();
        std::os::unix::fs::symlink(root().join("deploy"), folder.join("deploy")).unwrap();

        let path = std::env::var("PATH").unwrap();
        let mut variables = BTreeMap::from([
            ("PATH", format!("{}:{path}", built("cosign").display())),
            ("HOME", folder.display().to_string()),
            ("COSIGN_PASSWORD", String::new()),
            ("HTTPS_PROXY", "http://127.0.0.1:1".to_owned()),
            ("HTTP_PROXY", "http://127.0.0.1:1".to_owned()),
            ("RUNNER_ENVIRONMENT", "github-hosted".to_owned()),
        ]);
        variables.extend(WORKFLOW.map(|(name, value)| (name, value.to_owned())));
        Self {
            registry,
            variables,
        }
    }

    /// The same with cosign 2, which needs a trusted root even with a key. It would fetch that of Sigstore.
    fn with_cosign_2(&self, root: &str) -> Self {
        let mut variables = self.variables.clone();
        let [three, two] = ["cosign", "cosign2"].map(|tool| built(tool).display().to_string());
        let path = variables["PATH"].replace(&three, &two);
        variables.extend([("PATH", path), ("COSIGN_TRUSTED_ROOT", root.to_owned())]);
        Self {
            registry: self.registry,
            variables,
        }
    }

    /// Runs a command, and returns its output or error.
    fn run(&self, line: &str) -> Result<String, String> {
        let output = Command::new("timeout")
            .args(["60", "bash", "-o", "pipefail", "-c", line])
            .current_dir(self.registry.folder.path())
            .envs(&self.variables)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        if output.status.success() {
            Ok(String::from_utf8(output.stdout).unwrap())
        } else {
            Err(said)
        }
    }

    /// A documented command, for this registry and version.
    fn here(&self, line: &str) -> String {
        line.replace("registry.example", &self.registry.address)
            .replace("0.1.0", env!("CARGO_PKG_VERSION"))
    }

    /// The documented command that signs the pushed index.
    fn sign(&self, pushed: &str) -> String {
        let line =
            documented("COSIGN_KEY=cosign.key deploy/sign.sh registry.example/foo-controller@");
        self.here(&line).replace("DIGEST", pushed)
    }

    /// The documented command that verifies the signature of the image.
    fn verify(&self) -> String {
        self.here(&documented("cosign verify --key "))
    }

    /// The documented command that verifies an attestation of this type.
    fn attestation(&self, kind: &str) -> String {
        self.here(&attestation(kind))
    }

    /// Digests of the images by architecture, by the documented command.
    fn images(&self) -> BTreeMap<String, String> {
        let line = self.here(&documented("skopeo inspect --raw "));
        let said = self.run(&line).unwrap();
        let lines: Vec<_> = said.lines().collect();
        let pairs = lines.chunks(2).map(|pair| (pair[0].into(), pair[1].into()));
        pairs.collect()
    }

    /// Writes the bills of materials, which differ by architecture.
    fn write_bills(&self) -> BTreeMap<&'static str, Value> {
        let bills = [("amd64", "sbom.cdx.json"), ("arm64", "sbom-arm64.cdx.json")];
        let bills = bills.map(|(architecture, file)| {
            let component = json!({"type": "library", "name": architecture, "version": "1"});
            let bill = json!({
                "bomFormat": "CycloneDX",
                "specVersion": "1.6",
                "version": 1,
                "components": [component],
            });
            fs::write(self.registry.folder.path().join(file), bill.to_string()).unwrap();
            (architecture, bill)
        });
        bills.into()
    }
}

fn attestation(kind: &str) -> String {
    documented(&format!(
        "cosign verify-attestation --key cosign.pub --insecure-ignore-tlog --type {kind} "
    ))
}

/// Returns the statement of the attestation that cosign printed.
fn statement(printed: &str) -> Value {
    let envelope: Value = serde_json::from_str(printed).unwrap();
    let payload = STANDARD.decode(envelope["payload"].as_str().unwrap());
    serde_json::from_slice(&payload.unwrap()).unwrap()
}

#[track_caller]
fn assert_fails(ran: Result<String, String>, error: &str) {
    let said = ran.unwrap_err();
    assert!(said.contains(error), "{said}");
}

const UNSIGNED: &str = "no signatures found";
const UNATTESTED: &str = "no matching attestations: \n";
const OTHER_KEY: &str = "failed to verify signature";

/// The index and each image are signed, for one version. Another key, version or image fails.
#[tokio::test]
#[ignore = "takes Debian's skopeo, docker-registry and jq"]
async fn the_image_is_signed() {
    let registry = Registry::start().await;
    let shell = Shell::new(&registry);
    shell.write_bills();
    shell.run("cosign generate-key-pair").unwrap();
    shell
        .run("cosign generate-key-pair --output-key-prefix other")
        .unwrap();

    let pushed = registry.push();
    let verify = shell.verify();
    assert_fails(shell.run(&verify), UNSIGNED);
    shell.run(&shell.sign(&pushed)).unwrap();
    shell.run(&verify).unwrap();
    assert_fails(
        shell.run(&verify.replace("cosign.pub", "other.pub")),
        OTHER_KEY,
    );
    // The tag of another version.
    assert_fails(
        shell.run(&verify.replace("version=", "version=9")),
        "incorrect annotation",
    );
    let tag = concat!(":", env!("CARGO_PKG_VERSION"));
    for digest in shell.images().values() {
        shell
            .run(&verify.replace(tag, &format!("@{digest}")))
            .unwrap();
    }

    archive(registry.folder.path(), "arm64", "arm65");
    assert_ne!(registry.push(), pushed);
    assert_fails(shell.run(&verify), UNSIGNED);
}

/// The image of each architecture has its own bill of materials, and the index has the provenance. Another key, type or image
/// fails, and so does an attestation that was copied from another image.
#[tokio::test]
#[ignore = "takes Debian's skopeo, docker-registry and jq"]
async fn the_image_has_attestations() {
    let registry = Registry::start().await;
    let shell = Shell::new(&registry);
    let bills = shell.write_bills();
    shell.run("cosign generate-key-pair").unwrap();
    shell
        .run("cosign generate-key-pair --output-key-prefix other")
        .unwrap();
    let pushed = registry.push();
    let [cyclonedx, provenance] =
        ["cyclonedx", "slsaprovenance1"].map(|kind| shell.attestation(kind));
    assert_fails(shell.run(&provenance), UNATTESTED);
    shell.run(&shell.sign(&pushed)).unwrap();

    let images = shell.images();
    assert_eq!(images.len(), 2);
    for (architecture, digest) in &images {
        let verify = cyclonedx.replace("DIGEST", digest);
        let attested = statement(&shell.run(&verify).unwrap());
        assert_eq!(attested["predicate"], bills[&**architecture]);
        assert_eq!(
            attested["subject"][0]["digest"]["sha256"],
            digest["sha256:".len()..]
        );
        assert_fails(
            shell.run(&verify.replace("cosign.pub", "other.pub")),
            OTHER_KEY,
        );
        let absent = verify.replace("cyclonedx", "slsaprovenance1");
        assert_fails(shell.run(&absent), "none of the attestations matched");
    }
    assert_fails(
        shell.run(&cyclonedx.replace("DIGEST", &pushed)),
        "none of the attestations matched",
    );

    let attested = statement(&shell.run(&provenance).unwrap());
    assert_eq!(attested["predicateType"], "https://slsa.dev/provenance/v1");
    assert_eq!(
        attested["subject"][0]["digest"]["sha256"],
        pushed["sha256:".len()..]
    );
    let repository = "https://github.com/OWNER/REPOSITORY";
    let expected = json!({
        "buildDefinition": {
            "buildType": "https://actions.github.io/buildtypes/workflow/v1",
            "externalParameters": {
                "workflow": {
                    "ref": "refs/tags/v1",
                    "repository": repository,
                    "path": ".github/workflows/release.yml",
                },
                "runner_environment": "github-hosted",
            },
            "internalParameters": {
                "github": {"event_name": "push", "repository_id": "1", "repository_owner_id": "2"},
            },
            "resolvedDependencies": [{
                "uri": format!("git+{repository}@refs/tags/v1"),
                "digest": {"gitCommit": "8a23362cfe8b59feeea67d46266af01aca8fc640"},
            }],
        },
        "runDetails": {
            "builder": {"id": format!("{repository}/.github/workflows/release.yml@refs/tags/v1")},
            "metadata": {"invocationId": format!("{repository}/actions/runs/3/attempts/4")},
        },
    });
    assert_eq!(attested["predicate"], expected);
    assert_fails(
        shell.run(&provenance.replace("cosign.pub", "other.pub")),
        OTHER_KEY,
    );

    // A registry without the API for referrers lists them under a tag of the digest.
    let from = images["amd64"].replace(':', "-");
    archive(registry.folder.path(), "amd64", "amd65");
    registry.push();
    let other = &shell.images()["amd64"];
    let verify = cyclonedx.replace("DIGEST", other);
    assert_fails(shell.run(&verify), UNATTESTED);
    let copy = format!(
        "skopeo --insecure-policy copy --all docker://{0}/foo-controller:{from} docker://{0}/foo-controller:{to}",
        registry.address,
        to = other.replace(':', "-")
    );
    shell.run(&copy).unwrap();
    assert_fails(
        shell.run(&verify),
        "provided artifact digest does not match",
    );
}

/// sign.sh fails before the first signature if it cannot make an attestation.
#[tokio::test]
#[ignore = "takes Debian's skopeo, docker-registry and jq"]
async fn an_image_without_its_attestations_is_not_signed() {
    let registry = Registry::start().await;
    let mut shell = Shell::new(&registry);
    shell.run("cosign generate-key-pair").unwrap();
    let pushed = registry.push();
    let sign = shell.sign(&pushed);
    shell.write_bills();
    let bill = registry.folder.path().join("sbom-arm64.cdx.json");
    fs::remove_file(bill).unwrap();
    assert_fails(shell.run(&sign), "sbom-arm64.cdx.json: no such file");
    shell.write_bills();
    shell.variables.remove("RUNNER_ENVIRONMENT");
    assert_fails(shell.run(&sign), "RUNNER_ENVIRONMENT is not set");
    assert_fails(shell.run(&shell.verify()), UNSIGNED);
}

/// Files are signed. A changed byte or another key fails.
#[tokio::test]
#[ignore = "takes Debian's docker-registry"]
async fn files_are_signed() {
    let registry = Registry::start().await;
    let shell = Shell::new(&registry);
    shell.run("cosign generate-key-pair").unwrap();
    shell
        .run("cosign generate-key-pair --output-key-prefix other")
        .unwrap();
    let file = registry.folder.path().join("install.yaml");
    let sign = documented("COSIGN_KEY=cosign.key deploy/sign.sh install.yaml ");
    assert_fails(shell.run(&sign), "install.yaml: no such file");
    fs::write(&file, "kind: Namespace\n").unwrap();
    shell.write_bills();
    let verify = documented("cosign verify-blob ");
    shell.run(&verify).unwrap_err();
    shell.run(&sign).unwrap();
    shell.run(&verify).unwrap();
    shell
        .run(&verify.replace("install.yaml", "sbom-arm64.cdx.json"))
        .unwrap();
    assert_fails(
        shell.run(&verify.replace("cosign.pub", "other.pub")),
        OTHER_KEY,
    );
    fs::write(&file, "kind: Namespacd\n").unwrap();
    assert_fails(shell.run(&verify), OTHER_KEY);
}

/// cosign 2 verifies the signatures and attestations with the documented commands, but not the version. cosign 3 verifies those of
/// cosign 2.
#[tokio::test]
#[ignore = "takes Debian's skopeo, docker-registry and jq"]
async fn cosign_2_verifies_all_but_the_version() {
    let registry = Registry::start().await;
    let shell = Shell::new(&registry);
    shell.write_bills();
    shell.run("cosign generate-key-pair").unwrap();
    shell
        .run("cosign generate-key-pair --output-key-prefix other")
        .unwrap();
    let root = json!({"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"});
    let folder = registry.folder.path();
    fs::write(folder.join("root.json"), root.to_string()).unwrap();
    fs::write(folder.join("install.yaml"), "kind: Namespace\n").unwrap();
    let two = shell.with_cosign_2("root.json");
    assert!(
        two.run("cosign version")
            .unwrap()
            .contains("GitVersion:    v2.")
    );

    let pushed = registry.push();
    let verify = shell.verify();
    assert_fails(two.run(&verify), UNSIGNED);
    shell.run(&shell.sign(&pushed)).unwrap();
    shell
        .run(&documented(
            "COSIGN_KEY=cosign.key deploy/sign.sh install.yaml ",
        ))
        .unwrap();
    let digest = &shell.images()["arm64"];
    for line in [
        verify.clone(),
        shell.attestation("slsaprovenance1"),
        shell.attestation("cyclonedx").replace("DIGEST", digest),
        documented("cosign verify-blob "),
    ] {
        two.run(&line).unwrap();
        assert_fails(two.run(&line.replace("cosign.pub", "other.pub")), OTHER_KEY);
    }
    let absent = shell.attestation("cyclonedx").replace("DIGEST", &pushed);
    assert_fails(two.run(&absent), "none of the attestations matched");
    // As documented.
    two.run(&verify.replace("version=", "version=9")).unwrap();

    archive(folder, "arm64", "arm65");
    let pushed = registry.push();
    assert_fails(shell.run(&verify), UNSIGNED);
    let version = concat!("version=", env!("CARGO_PKG_VERSION"));
    let image = format!("{}/foo-controller@{pushed}", registry.address);
    let sign =
        format!("cosign sign --yes --key cosign.key --tlog-upload=false -a {version} {image}");
    two.run(&sign).unwrap();
    shell.run(&verify).unwrap();
    assert_fails(
        shell.run(&verify.replace("version=", "version=9")),
        "incorrect annotation",
    );
}

/// Without a key, the certificate names the workflow and its tag. The same script signs, and only variables with the addresses of
/// the stand-ins differ from a run on GitHub. Another repository or issuer fails.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes Debian's skopeo, docker-registry and jq"]
async fn a_keyless_signature_names_the_workflow() {
    let registry = Registry::start().await;
    let mut shell = Shell::new(&registry);
    shell.write_bills();
    let identity = format!(
        "https://github.com/{}",
        shell.variables["GITHUB_WORKFLOW_REF"]
    );
    let sigstore = Sigstore::start(identity).await;
    let fulcio = &sigstore.address;
    let authority = registry.folder.path().join("authority.pem");
    fs::write(authority, &sigstore.authority).unwrap();
    let from = "start-time=2020-01-01T00:00:00Z";
    for line in [
        format!(
            "signing-config create --out signing.json --fulcio=url={fulcio},api-version=1,operator=it,{from}"
        ),
        format!(
            "trusted-root create --out root.json --fulcio=url={fulcio},certificate-chain=authority.pem,{from}"
        ),
    ] {
        shell.run(&format!("cosign {line}")).unwrap();
    }
    shell.variables.extend([
        (
            "ACTIONS_ID_TOKEN_REQUEST_URL",
            format!("{fulcio}/token?api-version=2.0"),
        ),
        ("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "token".to_owned()),
        ("COSIGN_SIGNING_CONFIG", "signing.json".to_owned()),
        ("COSIGN_TRUSTED_ROOT", "root.json".to_owned()),
        ("COSIGN_INSECURE_IGNORE_SCT", "true".to_owned()),
        ("COSIGN_INSECURE_IGNORE_TLOG", "true".to_owned()),
    ]);

    let pushed = registry.push();
    let verify = shell.here(&documented("cosign verify --certificate-identity-regexp="));
    let signer = verify["cosign verify ".len()..]
        .split_once(" -a ")
        .unwrap()
        .0;
    assert_fails(shell.run(&verify), UNSIGNED);
    let keyless = |line: String| {
        line.strip_prefix("COSIGN_KEY=cosign.key ")
            .unwrap()
            .to_owned()
    };
    shell.run(&keyless(shell.sign(&pushed))).unwrap();
    shell.run(&verify).unwrap();
    assert_fails(
        shell.run(&verify.replace("OWNER", "OTHER")),
        "no matching CertificateIdentity",
    );
    assert_fails(
        shell.run(&verify.replace("token.actions", "other")),
        "no matching CertificateIdentity",
    );

    let of_signer = |line: String| line.replace("--key cosign.pub --insecure-ignore-tlog", signer);
    let provenance = of_signer(shell.attestation("slsaprovenance1"));
    let attested = statement(&shell.run(&provenance).unwrap());
    let workflow = &attested["predicate"]["runDetails"]["builder"]["id"];
    assert_eq!(
        *workflow,
        "https://github.com/OWNER/REPOSITORY/.github/workflows/release.yml@refs/tags/v1"
    );
    for digest in shell.images().values() {
        let cyclonedx = of_signer(shell.attestation("cyclonedx"));
        shell.run(&cyclonedx.replace("DIGEST", digest)).unwrap();
    }

    fs::write(
        registry.folder.path().join("install.yaml"),
        "kind: Namespace\n",
    )
    .unwrap();
    shell
        .run(&keyless(documented(
            "COSIGN_KEY=cosign.key deploy/sign.sh install.yaml ",
        )))
        .unwrap();
    shell
        .run(&of_signer(documented("cosign verify-blob ")))
        .unwrap();
}

/// The workflow signs and verifies as the documentation describes it, with the options of the signer in a variable.
#[test]
fn the_workflow_signs_and_verifies() {
    let workflow = fs::read_to_string(root().join(".github/workflows/release.yml")).unwrap();
    let key = "--key cosign.pub --insecure-ignore-tlog";
    let keyless = documented("cosign verify --certificate-identity-regexp=");
    let (_, issuer) = keyless.split_once(" --certificate-oidc-issuer=").unwrap();
    let (issuer, _) = issuer.split_once(' ').unwrap();
    let image = "registry.example/foo-controller";
    let tag = concat!(
        "registry.example/foo-controller:",
        env!("CARGO_PKG_VERSION")
    );
    let version = concat!("version=", env!("CARGO_PKG_VERSION"));
    let ours = |line: String, names: &[(&str, &str)]| {
        let line = line
            .replace(key, "$RELEASE_SIGNER")
            .replace(version, "version=$version");
        let line = line.replace("COSIGN_KEY=cosign.key ", "");
        names
            .iter()
            .fold(line, |line, (name, ours)| line.replace(name, ours))
    };
    let digest = format!("{image}@DIGEST");
    for line in [
        format!("signer='{key}'"),
        "signer=\"--certificate-identity=$GITHUB_SERVER_URL/$GITHUB_WORKFLOW_REF\"".to_owned(),
        format!("signer=\"$signer --certificate-oidc-issuer={issuer}\""),
        ours(
            documented("deploy/package.sh "),
            &[(&*format!("{digest} ."), "\"$pushed\" release")],
        ),
        format!(
            "../{}",
            ours(
                documented("COSIGN_KEY=cosign.key deploy/sign.sh registry.example/foo-controller@"),
                &[(&digest, "\"$pushed\"")]
            )
        ),
        ours(documented("cosign verify --key "), &[(tag, "\"$staged\"")]),
        ours(documented("cosign verify --key "), &[(tag, "\"$name\"")]),
        ours(
            attestation("slsaprovenance1"),
            &[(tag, "\"$name\" >/dev/null")],
        ),
        ours(
            attestation("cyclonedx"),
            &[(&digest, "\"${image%:*}@$digest\" >/dev/null")],
        ),
        ours(
            documented("cosign verify-blob "),
            &[("install.yaml", "$file")],
        ),
    ] {
        assert!(workflow.contains(&format!(" {line}\n")), "{line}");
    }
}

/// The chart is packaged with the digest of the image, pushed, signed like the image, and installed from the registry.
#[tokio::test]
#[ignore = "takes Debian's skopeo, docker-registry and jq, and builds Helm"]
async fn the_chart_is_signed_and_installed_from_the_registry() {
    let registry = Registry::start().await;
    let folder = registry.folder.path();
    let cluster = Cluster::start(Options::default());
    let shell = Shell::new(&registry);
    let helm = |tool: &str, line: &str| {
        let tools = built(tool);
        let config = cluster.kubeconfig().display();
        shell.run(&format!(
            "export PATH={}:$PATH KUBECONFIG={config}; {line} 2>&1",
            tools.display()
        ))
    };
    let pushed = registry.push();
    let line = shell.here(&documented("deploy/package.sh "));
    helm("helm", &line.replace("DIGEST", &pushed)).unwrap();
    let push = shell.here(&documented("helm push "));
    let said = helm("helm", &format!("{push} --plain-http")).unwrap();
    let digest = said
        .lines()
        .find_map(|line| line.strip_prefix("Digest: "))
        .unwrap();

    shell.run("cosign generate-key-pair").unwrap();
    let of_chart = |line: String| line.replace("/foo-controller:", "/charts/foo-controller:");
    let verify = of_chart(shell.verify());
    assert_fails(shell.run(&verify), UNSIGNED);
    let sign = documented("COSIGN_KEY=cosign.key deploy/sign.sh registry.example/charts/");
    shell
        .run(&shell.here(&sign).replace("DIGEST", digest))
        .unwrap();
    shell.run(&verify).unwrap();
    shell
        .run(&of_chart(shell.attestation("slsaprovenance1")))
        .unwrap();

    // No kubelet runs the pods.
    let install = shell
        .here(&documented("helm install foo-controller oci:"))
        .replace(" --wait", "");
    helm("helm", &format!("{install} --plain-http")).unwrap();
    let image = "get deployment/foo-controller -n foo-system -o=jsonpath={.spec.template.spec.containers[0].image}";
    let image = cluster.kubectl(&image.split(' ').collect::<Vec<_>>()).await;
    assert_eq!(
        image.success(),
        format!("{}/foo-controller@{pushed}", registry.address)
    );
    let pull = install
        .replace("install foo-controller", "pull")
        .replace(" --namespace foo-system --create-namespace", "");
    fs::create_dir(folder.join("pulled")).unwrap();
    helm(
        "helm3",
        &format!("{pull} --plain-http --destination pulled"),
    )
    .unwrap();
    let archive = format!("foo-controller-{}.tgz", env!("CARGO_PKG_VERSION"));
    let [packaged, pulled] =
        ["", "pulled"].map(|it| fs::read(folder.join(it).join(&archive)).unwrap());
    assert!(packaged == pulled);
}
