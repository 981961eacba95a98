//! Other installations in the cluster: whether they serve the same objects, or have taken over the `ClusterRoleBinding`. And the
//! objects that no installation serves.

mod other;
mod unserved;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
};

use clap::Command;
use k8s_openapi::api::{
    apps::v1::Deployment, coordination::v1::Lease, core::v1::ConfigMap,
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::{Value, json};

pub(super) use self::other::LABEL;
use self::{
    other::{Election, Other, held},
    unserved::unserved,
};
use super::{
    cluster::{all, few, items, text, unreadable},
    subject::Doctor,
    verdict::{Verdict, error, ok, skipped, warning, worst},
};
use crate::{
    api::failure::brief,
    config::{self, app::App, settings::Config},
};

pub(super) async fn examine(doctor: &Doctor) -> Verdict {
    match found(doctor).await {
        Ok(verdict) => verdict,
        Err((what, error)) => unreadable(what, &error),
    }
}

type Failed = (&'static str, kube::Error);

async fn found(doctor: &Doctor) -> Result<Verdict, Failed> {
    let Some(namespace) = doctor.namespace.as_deref() else {
        return Ok(skipped(
            "leader_election.lease_namespace is not set: cannot tell which installation is this one",
        ));
    };
    let client = &doctor.client;
    let app = doctor.app;
    let labeled = ListParams::default().labels(&format!("{LABEL}={}", app.name));
    let deployments = all::<Deployment>(client, &labeled).await;
    let deployments = deployments.map_err(|error| ("deployments", error))?;
    let named = format!("metadata.name={}", doctor.config.leader_election.lease_name);
    let leases: Api<Lease> = Api::all(client.clone());
    let leases = leases.list(&ListParams::default().fields(&named)).await;
    let leases = leases.map_err(|error| ("leases", error))?;
    let bindings = all::<ClusterRoleBinding>(client, &ListParams::default()).await;
    let bindings = bindings.map_err(|error| ("clusterrolebindings", error))?;

    let ours = election_of(&doctor.config, namespace);
    let mut others: BTreeMap<Election, Other> = BTreeMap::new();
    let (mut is_installed, mut sharing) = (false, Vec::new());
    let running = deployments
        .iter()
        .filter(|it| it.data["spec"]["replicas"] != 0);
    for deployment in running {
        let place = deployment.namespace().unwrap_or_default();
        let maps = config_maps(client, &place, deployment).await;
        let (election, served) = match configured(app, deployment, &maps) {
            Ok(config) if is_same(&election_of(&config, &place), &ours) => {
                sharing.push((format!("{place}/{}", deployment.name_any()), config));
                is_installed = true;
                continue;
            }
            Ok(config) => (
                election_of(&config, &place),
                Ok((config.installation, config.namespaces)),
            ),
            // It probably uses the Lease of the same name.
            Err(why) => ((place, ours.1.clone()), Err(why)),
        };
        if is_same(&election, &ours) {
            is_installed = true;
        } else {
            others.entry(election).or_default().served = served;
        }
    }
    for lease in leases {
        let spec = lease.spec.clone().unwrap_or_default();
        let election = (lease.namespace().unwrap_or_default(), lease.name_any());
        match held(&spec, doctor.host.now()) {
            Some(_) if is_same(&election, &ours) => is_installed = true,
            Some(holder) => others.entry(election).or_default().holder = Some(holder),
            None => {}
        }
    }
    // The Lease distinguishes installations in one namespace.
    let unserved = unserved(doctor, &others).await;
    let named = others
        .into_iter()
        .map(|((place, lease), other)| match &*lease {
            "" => (format!("{place} (without an election)"), other),
            _ if lease == ours.1 => (place, other),
            _ => (format!("{place} (Lease {lease})"), other),
        });
    let others: BTreeMap<_, _> = named.collect();
    let mut primaries = doctor.needs.controllers.iter().map(|it| it.primary);
    let shared = primaries.find(|kind| kind.is_cluster_scoped());
    let shared = shared.map(|kind| kind.plural);
    let mut verdicts: Vec<Verdict> = others
        .iter()
        .filter_map(|(place, other)| overlaps(place, other, &doctor.config, shared))
        .collect();
    verdicts.extend(unserved);
    verdicts.extend(share(&ours, &sharing));
    // An installation for certain namespaces may have RoleBindings instead.
    let needs_it = is_installed && doctor.config.namespaces.is_empty();
    verdicts.extend(is_bound(app.name, namespace, needs_it, &bindings));
    let has_label = |other: &Other| !is_ours(other, &doctor.config);
    let objects = if others.values().any(has_label) {
        "objects"
    } else {
        "namespaces"
    };
    Ok(worst(verdicts, || match others.len() {
        0 => ok("none"),
        _ => ok(format!("in {}, for other {objects}", few(others.keys()))),
    }))
}

/// Returns whether the objects of another installation may have the label of this one.
fn is_ours(other: &Other, ours: &Config) -> bool {
    let served = other.served.as_ref();
    served.map_or(true, |(installation, _)| *installation == ours.installation)
}

/// Returns the election of an installation in the namespace `place`.
fn election_of(config: &Config, place: &str) -> Election {
    let election = &config.leader_election;
    let namespace = election.lease_namespace.as_deref().unwrap_or(place);
    let name = election.enabled.then(|| election.lease_name.clone());
    (namespace.to_owned(), name.unwrap_or_default())
}

/// Returns whether an election is that of this installation. A configuration without an election may be the next one of the
/// installation in its namespace.
fn is_same(election: &Election, ours: &Election) -> bool {
    election.0 == ours.0 && (election.1 == ours.1 || ours.1.is_empty())
}

/// Returns an error if the Deployments of one Lease serve different objects. Only one of them leads at a time.
fn share((namespace, lease): &Election, deployments: &[(String, Config)]) -> Option<Verdict> {
    let served = |config: &Config| {
        let namespaces: BTreeSet<_> = config.namespaces.iter().cloned().collect();
        (config.installation.clone(), namespaces)
    };
    let ((first, ours), others) = deployments.split_first()?;
    let (second, theirs) = others.iter().find(|(_, it)| served(it) != served(ours))?;
    let setting = if ours.installation == theirs.installation {
        "namespaces"
    } else {
        "installation"
    };
    // Without an election, the Lease has no name.
    (!lease.is_empty()).then(|| {
        error(format!(
            "the Deployments {first} and {second} use the Lease {namespace}/{lease}, and have different `{setting}`: only one of \
             them leads at a time, and objects that only the other serves are not reconciled; give each its own `leader_election.lease_name`"
        ))
    })
}

/// Returns the data of the `ConfigMaps` that the pods of a Deployment use, if they can be read.
async fn config_maps(
    client: &Client,
    namespace: &str,
    deployment: &DynamicObject,
) -> BTreeMap<String, Value> {
    let pod = &deployment.data["spec"]["template"]["spec"];
    let of_volumes = items(&pod["volumes"]).map(|it| &it["configMap"]);
    let of_variables = items(&pod["containers"]).flat_map(|it| {
        let all = items(&it["envFrom"]).map(|it| &it["configMapRef"]);
        all.chain(items(&it["env"]).map(|it| &it["valueFrom"]["configMapKeyRef"]))
    });
    let resource = ApiResource::erase::<ConfigMap>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let all = of_volumes.chain(of_variables);
    let names: BTreeSet<_> = all.filter_map(|it| it["name"].as_str()).collect();
    let mut maps = BTreeMap::new();
    for name in names {
        if let Ok(found) = api.get_opt(name).await {
            let data = found.map(|mut it| it.data["data"].take());
            // A missing map counts as empty: it is optional, or no pod starts.
            let data = data.filter(Value::is_object);
            maps.insert(name.to_owned(), data.unwrap_or_else(|| json!({})));
        }
    }
    maps
}

/// Value of `namespaces` and `installation` in a layer of the configuration that cannot be read. It is invalid, unless a higher
/// layer overrides it.
const UNREADABLE: &str = "not readable here";

/// Returns the configuration of a Deployment's replicas, from the arguments, the variables and the file of its pods.
///
/// # Errors
/// The reason why it is unknown.
fn configured(
    app: &'static App,
    deployment: &DynamicObject,
    maps: &BTreeMap<String, Value>,
) -> Result<Config, String> {
    let pod = &deployment.data["spec"]["template"]["spec"];
    let named = items(&pod["containers"]).find(|it| it["name"] == app.name);
    let container = named.or(items(&pod["containers"]).next());
    let container = container.ok_or("it has no container")?;
    let place = deployment.namespace().unwrap_or_default();
    let variables = variables(app, &place, container, maps);
    let expand = |it: &Value| expanded(text(it), &variables);
    let mut words: Vec<_> = items(&container["command"]).map(expand).collect();
    if words.is_empty() {
        words.push(app.name.to_owned());
    }
    words.extend(items(&container["args"]).map(expand));
    let command = Command::new(app.name).args(config::args(app));
    let command = command.subcommand(Command::new("run"));
    let flags = command.try_get_matches_from(words);
    let flags = flags.map_err(|error| first_line(&error.to_string()))?;
    let flags = flags.subcommand().map_or(&flags, |(_, flags)| flags);
    let read = |path: &Path| -> io::Result<String> {
        let text = file(pod, container, path, maps);
        Ok(text.unwrap_or_else(|| {
            format!("namespaces = [{UNREADABLE:?}]\ninstallation = {UNREADABLE:?}")
        }))
    };
    let variables = variables
        .iter()
        .map(|(name, value)| (name.into(), value.into()));
    let loaded = config::load::load_from(app, flags, variables, read);
    let (config, _) = loaded.map_err(|errors| first_line(&errors.to_string()))?;
    Ok(config)
}

/// Returns the first line of an error, without the demand on a value.
fn first_line(error: &str) -> String {
    let line = error.lines().next().unwrap_or_default();
    brief(line.split(": must be ").next().unwrap_or_default())
}

/// Replaces `$(NAME)` by the value of a variable, and `$$` by `$`, as the kubelet does.
/// Source: <https://github.com/kubernetes/kubernetes/blob/v1.36.0/third_party/forked/golang/expansion/expand.go>.
fn expanded(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut all = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        all.push_str(before);
        let name = after
            .strip_prefix('(')
            .and_then(|after| after.split_once(')'));
        (rest, all) = match name.map(|(name, after)| (variables.get(name), after)) {
            Some((Some(value), after)) => (after, all + value),
            _ => (after.strip_prefix('$').unwrap_or(after), all + "$"),
        };
    }
    all + rest
}

/// Returns the variables of a container in the namespace `place`, the last of each name.
fn variables(
    app: &App,
    place: &str,
    container: &Value,
    maps: &BTreeMap<String, Value>,
) -> BTreeMap<String, String> {
    let [namespaces, installation] =
        ["NAMESPACES", "INSTALLATION"].map(|name| app.env_prefix() + name);
    let mut all = BTreeMap::new();
    for source in items(&container["envFrom"]) {
        let Some(Value::Object(map)) = maps.get(text(&source["configMapRef"]["name"])) else {
            for name in [&namespaces, &installation] {
                all.insert(name.clone(), UNREADABLE.to_owned());
            }
            continue;
        };
        let prefix = text(&source["prefix"]);
        let pairs = map
            .iter()
            .map(|(key, value)| (format!("{prefix}{key}"), text(value).to_owned()));
        all.extend(pairs);
    }
    for variable in items(&container["env"]) {
        let (name, from) = (text(&variable["name"]), &variable["valueFrom"]);
        let key = &from["configMapKeyRef"];
        let value = if from.is_null() {
            // The API server does not store an empty value.
            Some(expanded(text(&variable["value"]), &all))
        } else if from["fieldRef"]["fieldPath"] == "metadata.namespace" {
            Some(place.to_owned())
        } else {
            let map = maps.get(text(&key["name"]));
            map.and_then(|map| Some(map[text(&key["key"])].as_str()?.to_owned()))
        };
        match value {
            Some(value) => drop(all.insert(name.to_owned(), value)),
            None if name == namespaces || name == installation => {
                all.insert(name.to_owned(), UNREADABLE.to_owned());
            }
            None => {}
        }
    }
    all
}

/// Returns a file of a container, if it is from a `ConfigMap` that can be read.
fn file(
    pod: &Value,
    container: &Value,
    path: &Path,
    maps: &BTreeMap<String, Value>,
) -> Option<String> {
    items(&container["volumeMounts"]).find_map(|mount| {
        let inside = path.strip_prefix(text(&mount["mountPath"])).ok()?;
        let part = text(&mount["subPath"]);
        let inside = if part.is_empty() {
            inside
        } else {
            Path::new(part)
        };
        let mut volumes = items(&pod["volumes"]);
        let source = &volumes.find(|it| it["name"] == mount["name"])?["configMap"];
        let mut renamed = items(&source["items"]);
        let renamed = renamed.find(|it| Path::new(text(&it["path"])) == inside);
        let key = renamed.map_or(inside.to_str()?, |it| text(&it["key"]));
        let map = maps.get(text(&source["name"]))?;
        map[key].as_str().map(str::to_owned)
    })
}

/// Returns an error if the installation in the namespace `place` reconciles objects of this one, and a warning if it may. Each
/// installation reconciles the objects of the cluster-scoped type `shared`.
fn overlaps(place: &str, other: &Other, ours: &Config, shared: Option<&str>) -> Option<Verdict> {
    if !is_ours(other, ours) {
        return None;
    }
    if let Some(plural) = shared {
        return Some(error(format!(
            "the installation in {place} also serves the cluster-scoped {plural}, and both write the same objects: give them \
             different `installation`s, or remove one"
        )));
    }
    let theirs = match &other.served {
        Ok((_, theirs)) => theirs,
        Err(why) => {
            let leads = other.holder.as_ref();
            let leads = leads.map_or(String::new(), |holder| format!(", led by {holder}"));
            return Some(warning(format!(
                "there is an installation in {place}{leads}: both write the same objects unless their `namespaces` or their \
                 `installation` differ; compare its configuration, which is unknown here: {why}"
            )));
        }
    };
    let shared = match (&*ours.namespaces, &**theirs) {
        ([], []) => "all namespaces".to_owned(),
        ([], some) | (some, []) => few(some),
        (ours, theirs) => few(ours.iter().filter(|it| theirs.contains(it))),
    };
    (!shared.is_empty()).then(|| {
        error(format!(
            "the installation in {place} also serves {shared}, and both write the same objects: give them different \
             `namespaces` or another `installation`, or remove one"
        ))
    })
}

/// Returns a finding if the `ClusterRoleBinding` with the application's name belongs to another installation.
fn is_bound(
    name: &str,
    namespace: &str,
    needs_it: bool,
    bindings: &[DynamicObject],
) -> Option<Verdict> {
    let subjects = |binding: &DynamicObject| {
        let subjects = items(&binding.data["subjects"]);
        let accounts = subjects.filter(|it| it["kind"] == "ServiceAccount");
        let at = |it: &Value| text(&it["namespace"]).to_owned();
        accounts.map(at).collect::<Vec<_>>()
    };
    // The name of a binding may have a kustomize `namePrefix`.
    let ours = bindings.iter().filter(|it| it.name_any().contains(name));
    if ours
        .clone()
        .any(|it| subjects(it).iter().any(|at| at == namespace))
    {
        return None;
    }
    let taken = ours.filter(|it| it.name_any() == name);
    let taken: Vec<_> = taken.flat_map(subjects).collect();
    let other = taken.first()?;
    let text = format!(
        "ClusterRoleBinding {name} is for the service account in {other}, not in {namespace}"
    );
    Some(if needs_it {
        error(format!(
            "{text}: another installation was applied over this one, which has no permissions: give one of the two a namePrefix"
        ))
    } else {
        warning(format!(
            "{text}: applying this installation with the same names removes the permissions of that one: give it a namePrefix"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::app::tests::APP;

    fn object(name: &str, data: Value) -> DynamicObject {
        let mut object = DynamicObject::new(name, &ApiResource::erase::<Deployment>(&()));
        object.data = data;
        object
    }

    fn read(container: &Value, maps: Value) -> Result<Config, String> {
        let volumes = json!([{ "name": "config", "configMap": { "name": "m" } }]);
        let template = json!({ "spec": { "containers": [container], "volumes": volumes } });
        let deployment = object("d", json!({ "spec": { "template": template } })).within("p");
        let maps = serde_json::from_value(maps).expect("ConfigMaps");
        configured(&APP, &deployment, &maps)
    }

    /// Each form that a replica accepts is read, with the same precedence.
    #[test]
    fn the_namespaces_of_another_installation_are_read_from_its_pods() {
        let name = "SOME_OPERATOR__NAMESPACES";
        let variable = |value: &str| json!({ "name": name, "value": value });
        let team = json!({ "name": "TEAM", "value": "t" });
        let mount = json!([{ "name": "config", "mountPath": "/etc/op" }]);
        let from_map = json!({ "name": name, "valueFrom": { "configMapKeyRef": { "name": "m", "key": "k" } } });
        let from_field = json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } });
        let secret = json!([{ "secretRef": { "name": "s" } }]);
        let by_map = json!([{ "prefix": "SOME_OPERATOR__", "configMapRef": { "name": "m" } }]);
        let own_label = json!({ "name": "SOME_OPERATOR__INSTALLATION", "value": "canary" });
        let file = json!({ "name": "SOME_OPERATOR__CONFIG", "value": "/etc/op/f.toml" });
        for (container, expected) in [
            (json!({}), &[][..]),
            (json!({ "env": [variable("[]")] }), &[]),
            (json!({ "env": [variable("a, b")] }), &["a", "b"]),
            (json!({ "env": [variable("[a]")] }), &["a"]),
            (json!({ "env": [variable("[\"a\", \"b\"]")] }), &["a", "b"]),
            (json!({ "env": [variable("a"), variable("b")] }), &["b"]),
            (json!({ "env": [from_map] }), &["k1"]),
            (json!({ "env": [team, variable("$(TEAM)")] }), &["t"]),
            (json!({ "env": [from_field] }), &["p"]),
            (json!({ "envFrom": by_map }), &["m1"]),
            (
                json!({ "envFrom": secret, "env": [variable("a"), own_label] }),
                &["a"],
            ),
            (
                json!({ "args": ["--namespace=c", "--resync=1m"], "env": [variable("a")] }),
                &["c"],
            ),
            (
                json!({ "args": ["--namespace", "c", "--namespace", "d"] }),
                &["c", "d"],
            ),
            (
                json!({ "args": ["run", "--namespace", "c,d"] }),
                &["c", "d"],
            ),
            (
                json!({ "command": ["/operator", "run"], "args": ["--namespace=c"] }),
                &["c"],
            ),
            (
                json!({ "args": ["--namespace=$(TEAM)"], "env": [team] }),
                &["t"],
            ),
            (json!({ "env": [file], "volumeMounts": mount }), &["f1"]),
            (
                json!({ "args": ["--config", "/etc/op/f.toml"], "volumeMounts": mount }),
                &["f1"],
            ),
            (json!({ "env": [file, variable("a"), own_label] }), &["a"]),
        ] {
            let maps = json!({ "m": { "k": "k1", "NAMESPACES": "m1", "f.toml": "namespaces = [\"f1\"]" } });
            // A variable without a known key would be an error.
            let maps = if container["envFrom"].is_null() {
                maps
            } else {
                json!({ "m": { "NAMESPACES": "m1" } })
            };
            let found = read(&container, maps).map(|it| it.namespaces);
            let expected = expected.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(found, Ok(expected), "{container}");
        }
        let file = |path: &str| json!({ "args": ["--config", path], "volumeMounts": mount });
        for (container, expected) in [
            (
                file("/elsewhere"),
                "namespaces = [\"not readable here\"] (file /elsewhere, line 1)",
            ),
            (
                json!({ "envFrom": secret }),
                "namespaces = [\"not readable here\"] (environment variable SOME_OPERATOR__NAMESPACES)",
            ),
            // The unreadable layer may set `installation`.
            (
                json!({ "args": ["--config", "/elsewhere"], "env": [variable("a")] }),
                "installation = \"not readable here\" (file /elsewhere, line 2)",
            ),
            (
                json!({ "envFrom": secret, "env": [variable("a")] }),
                "installation = \"not readable here\" (environment variable SOME_OPERATOR__INSTALLATION)",
            ),
            (
                json!({ "env": [{ "name": "SOME_OPERATOR__INSTALLATION",
                    "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }] }),
                "installation = \"not readable here\" (environment variable SOME_OPERATOR__INSTALLATION)",
            ),
            // A replica rejects an empty value.
            (
                json!({ "env": [variable("a"), { "name": name }] }),
                "namespaces = [\"\"] (environment variable SOME_OPERATOR__NAMESPACES)",
            ),
            (
                json!({ "args": ["--unknown"] }),
                "error: unexpected argument '--unknown' found",
            ),
        ] {
            let why = read(&container, json!({})).expect_err("nothing to read");
            assert_eq!(why, expected);
        }
    }

    #[test]
    fn variables_are_expanded_as_by_the_kubelet() {
        let variables =
            [("A", "$(B)"), ("B", "b")].map(|(name, value)| (name.into(), value.into()));
        let expanded = |text| expanded(text, &variables.clone().into());
        assert_eq!(expanded("$(B)-$$(B)-$(C)-$(A)-$B$"), "b-$(B)-$(C)-$(B)-$B$");
    }

    /// A Deployment with another Lease is another installation, also in the same namespace.
    #[test]
    fn an_installation_is_its_lease() {
        let of = |args: &[&str]| {
            election_of(
                &read(&json!({ "args": args }), json!({})).expect("a configuration"),
                "n",
            )
        };
        let election = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        assert_eq!(of(&[]), election("n", "some-operator"));
        assert_eq!(of(&["--lease-name", "l"]), election("n", "l"));
        assert_eq!(of(&["--lease-namespace=m"]), election("m", "some-operator"));
        let canary = of(&["--installation", "canary"]);
        assert_eq!(canary, election("n", "some-operator-canary"));
        let none = of(&["--leader-election=false"]);
        assert_eq!(none, election("n", ""));
        assert!(is_same(&of(&[]), &none));
        assert!(!is_same(&none, &of(&[])));
        assert!(!is_same(&election("m", ""), &none));
        assert!(!is_same(&election("n", "l"), &of(&[])));
    }

    #[test]
    fn installations_with_the_same_namespaces_are_an_error() {
        let list = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        for (ours, theirs, expected) in [
            (
                &[][..],
                Ok(&[][..]),
                "error the installation in p also serves all namespaces",
            ),
            (&[], Ok(&["a"]), "error the installation in p also serves a"),
            (&["a"], Ok(&[]), "error the installation in p also serves a"),
            (
                &["a", "b"],
                Ok(&["b"]),
                "error the installation in p also serves b",
            ),
            (&["a"], Ok(&["b"]), ""),
            (
                &["a"],
                Err("why"),
                "warning there is an installation in p, led by h: both",
            ),
        ] {
            for (installation, is_same) in [("", true), ("canary", false)] {
                let served = theirs.map(|it| (installation.to_owned(), list(it)));
                let other = Other {
                    holder: Some("h".to_owned()),
                    served: served.map_err(str::to_owned),
                };
                let ours = Config {
                    namespaces: list(ours),
                    ..Config::shipped(&APP)
                };
                let expected = if is_same || theirs.is_err() {
                    expected
                } else {
                    ""
                };
                for shared in [None, Some("clusters")] {
                    let verdict = overlaps("p", &other, &ours, shared);
                    let found = verdict.map(|(grade, text)| format!("{} {text}", grade.word()));
                    let found = found.unwrap_or_default();
                    if shared.is_some() {
                        assert_eq!(found.is_empty(), !is_same && theirs.is_ok(), "{found}");
                        continue;
                    }
                    assert!(found.starts_with(expected), "{found}");
                    assert_eq!(found.is_empty(), expected.is_empty(), "{found}");
                }
            }
        }
    }

    /// The Deployments that use one Lease must serve the same objects.
    #[test]
    fn a_shared_lease_is_an_error() {
        let deployment = |name: &str, installation: &str, namespaces: &[&str]| {
            let config = Config {
                installation: installation.to_owned(),
                namespaces: namespaces.iter().map(|it| (*it).to_owned()).collect(),
                ..Config::shipped(&APP)
            };
            (name.to_owned(), config)
        };
        let first = || deployment("p/a", "", &["x", "y"]);
        let lease = ("p".to_owned(), "l".to_owned());
        let is = |deployments: &[_]| share(&lease, deployments).map(|(_, text)| text);
        assert_eq!(is(&[]), None);
        assert_eq!(is(&[first()]), None);
        assert_eq!(is(&[first(), deployment("p/b", "", &["y", "x"])]), None);
        for (other, setting) in [
            (deployment("p/c", "", &["x"]), "namespaces"),
            (deployment("p/c", "canary", &["x", "y"]), "installation"),
        ] {
            let all = [first(), first(), other];
            let found = is(&all).expect("an error");
            let expected = format!(
                "the Deployments p/a and p/c use the Lease p/l, and have different `{setting}`: "
            );
            assert!(found.starts_with(&expected), "{found}");
            assert_eq!(share(&("p".to_owned(), String::new()), &all), None);
        }
    }

    #[test]
    fn a_binding_of_another_installation_is_found() {
        let binding = |name: &str, namespace: &str| {
            let subject = json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace });
            object(name, json!({ "subjects": [subject] }))
        };
        let [ours, theirs, prefixed] = [("op", "a"), ("op", "b"), ("x-op", "a")]
            .map(|(name, namespace)| binding(name, namespace));
        for (bindings, expected) in [
            (vec![], false),
            (vec![ours.clone()], false),
            (vec![theirs.clone()], true),
            (vec![theirs, prefixed], false),
        ] {
            assert_eq!(
                is_bound("op", "a", true, &bindings).is_some(),
                expected,
                "{bindings:?}"
            );
        }
    }
}
