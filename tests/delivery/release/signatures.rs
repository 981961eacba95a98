//! Signatures and attestations of a release: `deploy/sign.sh` makes them with a key, and the documented commands verify them.

use std::{collections::BTreeMap, fs, process::Command};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use operator_testkit::cluster::{Cluster, Options};
use serde_json::{Value, json};

use super::{Copy, Registry, archive, documented, root, sigstore::Sigstore};
use crate::support::built;

/// Variables of a workflow of GitHub, for a tag.
const WORKFLOW: [(&str, &str); 11] = [
    ("GITHUB_ACTIONS", "true"),
    ("GITHUB_SERVER_URL", "https://github.com"),
    ("GITHUB_REPOSITORY", "OWNER/REPOSITORY"),
    ("GITHUB_REPOSITORY_ID", "1"),
    ("GITHUB_REPOSITORY_OWNER_ID", "2"),
    (
        "GITHUB_REF",
        concat!("refs/tags/v", env!("CARGO_PKG_VERSION")),
    ),
    (
        "GITHUB_WORKFLOW_REF",
        concat!(
            "OWNER/REPOSITORY/.github/workflows/release.yml@refs/tags/v",
            env!("CARGO_PKG_VERSION")
        ),
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
    /// Returns a shell with the crate lists, a key pair, and another key pair.
    fn with_keys(registry: &'a Registry) -> Self {
        let shell = Self::new(registry);
        shell.write_bills();
        shell.run("cosign generate-key-pair").unwrap();
        shell
            .run("cosign generate-key-pair --output-key-prefix other")
            .unwrap();
        shell
    }

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

    /// cosign 2 needs a trusted root even with a key. It would fetch that of Sigstore.
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

fn keyless_attestation(kind: &str) -> String {
    let begin = documented("cosign verify-blob --certificate-identity=");
    let signer = begin["cosign verify-blob ".len()..]
        .split_once(" --bundle ")
        .unwrap()
        .0;
    documented(&format!(
        "cosign verify-attestation {signer} --type {kind} "
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
    let shell = Shell::with_keys(&registry);

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
    let tag = concat!("refs/tags/v", env!("CARGO_PKG_VERSION"));
    // Verifiers reject unknown external parameters: https://actions.github.io/buildtypes/workflow/v1 has the workflow only.
    let expected = json!({
        "buildDefinition": {
            "buildType": "https://actions.github.io/buildtypes/workflow/v1",
            "externalParameters": {
                "workflow": {
                    "ref": tag,
                    "repository": repository,
                    "path": ".github/workflows/release.yml",
                },
            },
            "internalParameters": {
                "github": {
                    "event_name": "push",
                    "repository_id": "1",
                    "repository_owner_id": "2",
                    "runner_environment": "github-hosted",
                },
            },
            "resolvedDependencies": [{
                "uri": format!("git+{repository}@{tag}"),
                "digest": {"gitCommit": "8a23362cfe8b59feeea67d46266af01aca8fc640"},
            }],
        },
        "runDetails": {
            "builder": {"id": format!("{repository}/.github/workflows/release.yml@{tag}")},
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
    for (name, value) in [
        ("RUNNER_ENVIRONMENT", "github-hosted"),
        ("GITHUB_EVENT_NAME", "pull_request"),
    ] {
        shell.variables.insert(name, value.to_owned());
    }
    let unfit = "no provenance for the event \"pull_request\"";
    assert_fails(shell.run(&sign), unfit);
    shell
        .variables
        .insert("GITHUB_EVENT_NAME", "push".to_owned());
    assert_fails(shell.run(&shell.verify()), UNSIGNED);

    // A run that stops between the attestations and the signature. The attestations are not enough for `cosign verify`.
    let bin = registry.folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let cosign = built("cosign").join("cosign");
    let stops = format!(
        "#!/bin/sh\n[ \"$1\" != sign ] || exit 1\nexec {} \"$@\"\n",
        cosign.display()
    );
    fs::write(bin.join("cosign"), stops).unwrap();
    shell.run("chmod +x bin/cosign").unwrap();
    shell
        .run(&format!("export PATH={}:$PATH; {sign}", bin.display()))
        .unwrap_err();
    shell.run(&shell.attestation("slsaprovenance1")).unwrap();
    shell.run(&shell.verify()).unwrap_err();
    shell.run(&sign).unwrap();
    shell.run(&shell.verify()).unwrap();
}

/// The commands in the notes reject a file of another version: a signature with a key does not name the version of the file, but
/// the signature of the image in it does.
#[tokio::test]
#[ignore = "takes Debian's skopeo, docker-registry and jq, and builds Helm"]
async fn notes_reject_the_files_of_another_version() {
    let registry = Registry::start().await;
    let shell = Shell::new(&registry);
    shell.run("cosign generate-key-pair").unwrap();
    let image = format!("{}/foo-controller@{}", registry.address, registry.push());
    let mut copy = Copy::new();
    copy.image.clone_from(&image);
    copy.signer = "--key cosign.pub --insecure-ignore-tlog";
    copy.describe();
    let (done, said) = copy.release();
    assert!(done, "{said}");
    let folder = registry.folder.path();
    fs::write(folder.join("install.yaml"), copy.read("install.yaml")).unwrap();
    let helm = built("helm").display().to_string();
    let with_helm = |line: &str| shell.run(&format!("export PATH={helm}:$PATH; {line}"));
    with_helm(&format!("deploy/package.sh {image} .")).unwrap();
    let chart = concat!("foo-controller-", env!("CARGO_PKG_VERSION"), ".tgz");
    let packaged = fs::read(folder.join(chart)).unwrap();
    with_helm(&format!("deploy/package.sh {image} .")).unwrap();
    assert!(packaged == fs::read(folder.join(chart)).unwrap());
    shell
        .run(&format!(
            "COSIGN_KEY=cosign.key deploy/sign.sh install.yaml {chart}"
        ))
        .unwrap();

    let notes = copy.read("notes.md");
    let lines = |begin: &str| -> Vec<String> {
        let lines = notes.lines().filter_map(|line| line.strip_prefix("$ "));
        let lines = lines.filter(|line| line.starts_with(begin));
        lines.map(str::to_owned).collect()
    };
    let (files, images) = (lines("cosign verify-blob "), lines("cosign verify "));
    assert_eq!((files.len(), images.len()), (2, 2));
    let sign = |version: &str| {
        let line =
            "cosign sign --yes --key cosign.key --use-signing-config=false --tlog-upload=false -a";
        shell
            .run(&format!("{line} version={version} {image}"))
            .unwrap();
    };
    sign("0.0.1");
    for line in &files {
        shell.run(line).unwrap();
    }
    for line in &images {
        assert_fails(with_helm(line), "incorrect annotation");
    }
    sign(env!("CARGO_PKG_VERSION"));
    for line in &images {
        with_helm(line).unwrap();
    }
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
    let verify = documented("cosign verify-blob --key ");
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
    let shell = Shell::with_keys(&registry);
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
        documented("cosign verify-blob --key "),
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

/// Without a key, the certificate names the workflow and its tag. This script signs, and only variables with the addresses of
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
    let sigstore = Sigstore::start(identity.clone()).await;
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

    let image = format!("{}/foo-controller@{}", registry.address, registry.push());
    let install = format!("    image: {image}\n");
    fs::write(registry.folder.path().join("install.yaml"), install).unwrap();
    let verify = shell.here(&documented("cosign verify --certificate-identity="));
    let file = shell.here(&documented("cosign verify-blob --certificate-identity="));
    let provenance = shell.here(&keyless_attestation("slsaprovenance1"));
    let cyclonedx = shell.here(&keyless_attestation("cyclonedx"));
    let cyclonedx = cyclonedx.replace("DIGEST", &shell.images()["arm64"]);
    let commands = [&verify, &file, &provenance, &cyclonedx];
    for command in commands {
        assert!(!command.contains("insecure"), "{command}");
    }
    assert_fails(shell.run(&verify), UNSIGNED);
    let keyless = |line: String| {
        line.strip_prefix("COSIGN_KEY=cosign.key ")
            .unwrap()
            .to_owned()
    };
    let sign = || {
        let (_, digest) = image.split_once('@').unwrap();
        shell.run(&keyless(shell.sign(digest))).unwrap();
        let files = documented("COSIGN_KEY=cosign.key deploy/sign.sh install.yaml ");
        shell.run(&keyless(files)).unwrap();
    };
    // The signer of another version, and of a tag that a rule for `v*` does not match. These commands reject them.
    for tag in ["v0.0.1", concat!("v", env!("CARGO_PKG_VERSION"), "/x")] {
        sigstore.certify(identity.replace(concat!("v", env!("CARGO_PKG_VERSION")), tag));
        sign();
        for command in commands {
            assert_fails(shell.run(command), "no matching CertificateIdentity");
        }
    }
    sigstore.certify(identity.clone());
    sign();
    for command in commands {
        shell.run(command).unwrap();
    }
    for (from, to) in [("OWNER", "OTHER"), ("token.actions", "other")] {
        let other = verify.replace(from, to);
        assert_fails(shell.run(&other), "no matching CertificateIdentity");
    }
    let attested = statement(&shell.run(&provenance).unwrap());
    let builder = &attested["predicate"]["runDetails"]["builder"]["id"];
    assert_eq!(*builder, identity);
}

/// The policies accept the workflow at the tag of a version, and at no other tag: a rule of GitHub for `v*` matches no tag with a
/// slash. They demand the signature and the provenance.
#[test]
fn policies_accept_the_tags_of_versions() {
    let read = |name: &str| {
        let path = root().join("deploy/integrations").join(name);
        fs::read_to_string(path).unwrap()
    };
    let [kyverno, controller] = ["kyverno.yaml", "policy-controller.yaml"].map(read);
    let workflow = "https://github.com/OWNER/REPOSITORY/.github/workflows/";
    for policy in [&kyverno, &controller] {
        let pattern = policy.split_once("subjectRegExp: ").unwrap().1;
        let pattern = pattern.lines().next().unwrap();
        for (identity, accepted) in [
            ("release.yml@refs/tags/v0.1.0", true),
            ("release.yml@refs/tags/v10.0.0-rc.1", true),
            ("release.yml@refs/tags/v0.1.0/x", false),
            ("release.yml@refs/tags/v0.1.0-x/y", false),
            ("release.yml@refs/tags/v0/x", false),
            ("release.yml@refs/tags/vx", false),
            ("release.yml@refs/heads/v0.1.0", false),
            ("other.yml@refs/tags/v0.1.0", false),
        ] {
            let script = "grep --quiet --extended-regexp -- \"$0\" <<< \"$1\"";
            let identity = format!("{workflow}{identity}");
            let mut ran = Command::new("bash");
            let status = ran.args(["-c", script, pattern, &identity]).status();
            assert_eq!(
                status.unwrap().code(),
                Some(i32::from(!accepted)),
                "{identity}"
            );
        }
    }

    let signature = "https://sigstore.dev/cosign/sign/v1";
    let provenance = "https://slsa.dev/provenance/v1";
    let policy: Value = serde_saphyr::from_str(&kyverno).unwrap();
    let types = policy["spec"]["attestations"].as_array().unwrap().iter();
    let types: Vec<_> = types.map(|each| &each["intoto"]["type"]).collect();
    assert_eq!(types, [signature, provenance]);
    let policy: Value = serde_saphyr::from_str(&controller).unwrap();
    let authorities = policy["spec"]["authorities"].as_array().unwrap();
    let [authority] = &authorities[..] else {
        panic!("{authorities:?}");
    };
    let types = authority["attestations"].as_array().unwrap().iter();
    let types: Vec<_> = types.map(|each| &each["predicateType"]).collect();
    assert_eq!(types, [signature, provenance]);
    // Images without a policy are denied in a labelled namespace.
    assert!(controller.contains("no-match-policy"));
}

/// The workflow signs and verifies as the documentation describes it, with the options of the signer in a variable.
#[test]
fn the_workflow_signs_and_verifies() {
    let workflow = fs::read_to_string(root().join(".github/workflows/release.yml")).unwrap();
    let key = "--key cosign.pub --insecure-ignore-tlog";
    let keyless = documented("cosign verify --certificate-identity=");
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
            documented("cosign verify-blob --key "),
            &[("install.yaml", "$file")],
        ),
    ] {
        assert!(workflow.contains(&format!(" {line}\n")), "{line}");
    }

    // Everything is built before a step logs in to the registry. A tag of the version comes after all that is signed under the
    // commit's name, and that of the image after the chart's signature.
    let workflow: Value = serde_saphyr::from_str(&workflow).unwrap();
    let steps = workflow["jobs"]["release"]["steps"].as_array().unwrap();
    let scripts: Vec<_> = steps
        .iter()
        .map(|step| step["run"].as_str().unwrap_or_default())
        .collect();
    let order = [
        "nix build --no-link .#image .#image-arm64",
        "docker login ",
        "deploy/sign.sh \"$pushed\" .",
        "deploy/sign.sh *.yaml *.tgz *.cdx.json",
        "gh release create \"$GITHUB_REF_NAME\" --draft ",
        "skopeo inspect --no-creds --raw \"docker://$staged\" >/dev/null",
        "helm push release/*.tgz ",
        "deploy/sign.sh \"$charts/",
        " \"docker://$pushed\" \"docker://$image\"",
        "docker logout ",
        "chart=$charts/",
        "gh release edit ",
    ];
    let places = order.map(|part| {
        let found = scripts.iter().enumerate();
        let mut found = found.filter_map(|(step, script)| Some((step, script.find(part)?)));
        let (place, more) = (found.next(), found.next());
        assert!(
            place.is_some() && more.is_none(),
            "{part}: {place:?} {more:?}"
        );
        place
    });
    assert!(places.is_sorted(), "{places:?}");
    // With one group for all tags, a third tag would cancel the second.
    let group = workflow["concurrency"]["group"].as_str().unwrap();
    assert!(group.contains("github.ref"), "{group}");
    assert_eq!(workflow["defaults"]["run"]["shell"], "bash");
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
    // The notes install the file.
    let file = documented("helm install foo-controller foo-controller-");
    let file = file.replace("0.1.0", env!("CARGO_PKG_VERSION"));
    let template = file
        .replace(" install ", " template ")
        .replace(" --wait", "");
    let rendered = helm("helm", &template).unwrap();
    let pinned = format!("image: \"{}/foo-controller@{pushed}\"", registry.address);
    assert!(rendered.contains(&pinned), "{rendered}");
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
