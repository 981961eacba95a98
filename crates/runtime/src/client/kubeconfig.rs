//! Loads a kubeconfig by the rules of kubectl (client-go, `tools/clientcmd`). Unused entries may be invalid.

use std::{
    collections::{HashMap, HashSet},
    env, fs, io,
    path::{Path, PathBuf},
};

use kube::{
    Config as KubeConfig,
    config::{AuthInfo, Cluster, ExecAuthCluster, KubeConfigOptions, Kubeconfig},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    client::{
        token_file::{bearer, secret},
        transport::NO_PROXY,
    },
    config::environment::Host,
};

/// Error of a kubeconfig. No message quotes the file, because it contains credentials.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// None of the files exists.
    #[error("there is no such file")]
    Missing,
    /// A file cannot be read.
    #[error("{}: {}", .0.display(), .1)]
    Read(PathBuf, io::Error),
    /// Any other error, with the fix.
    #[error("{0}")]
    Invalid(String),
}

fn invalid(text: impl Into<String>) -> Error {
    Error::Invalid(text.into())
}

#[derive(Default, Deserialize)]
struct File {
    #[serde(default)]
    clusters: Option<Vec<Entry>>,
    #[serde(default)]
    users: Option<Vec<Entry>>,
    #[serde(default)]
    contexts: Option<Vec<Entry>>,
    #[serde(rename = "current-context")]
    current_context: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    name: String,
    #[serde(alias = "cluster", alias = "user", alias = "context")]
    #[serde(default)]
    content: Option<Map<String, Value>>,
}

/// Entries of all files by name. The first entry of a name wins.
#[derive(Default)]
struct Merged {
    clusters: HashMap<String, Map<String, Value>>,
    users: HashMap<String, Map<String, Value>>,
    contexts: HashMap<String, Map<String, Value>>,
    current_context: String,
}

/// Loads one file, which must exist.
pub(super) async fn load(path: &Path) -> Result<KubeConfig, Error> {
    let mut merged = Merged::default();
    merged.add(path)?;
    merged.config().await
}

/// Loads the files of `$KUBECONFIG`, or else `~/.kube/config`. Files that do not exist are skipped.
pub(super) async fn load_default(host: &Host) -> Result<KubeConfig, Error> {
    let files = default_files(host);
    let (mut merged, mut seen) = (Merged::default(), HashSet::new());
    let mut found = false;
    for file in files.iter().filter(|file| !file.as_os_str().is_empty()) {
        if seen.insert(file) {
            match merged.add(file) {
                Err(Error::Missing) => {}
                added => {
                    added?;
                    found = true;
                }
            }
        }
    }
    if found {
        merged.config().await
    } else {
        Err(Error::Missing)
    }
}

/// Returns the files of `$KUBECONFIG` or, without this variable, `~/.kube/config`.
pub(super) fn default_files(host: &Host) -> Vec<PathBuf> {
    if let Some(list) = host.variable("KUBECONFIG") {
        env::split_paths(&list).collect()
    } else {
        let home = host.variable("HOME").map(PathBuf::from);
        Vec::from_iter(home.map(|home| home.join(".kube/config")))
    }
}

impl Merged {
    fn add(&mut self, path: &Path) -> Result<(), Error> {
        let bytes = fs::read(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::Missing,
            _ => Error::Read(path.to_owned(), error),
        })?;
        let file = parse(&bytes).map_err(|why| invalid(format!("{}: {why}", path.display())))?;
        // Relative paths are relative to the folder of their file.
        let folder = path.parent().unwrap_or(Path::new(""));
        merge(&mut self.clusters, file.clusters, folder);
        merge(&mut self.users, file.users, folder);
        merge(&mut self.contexts, file.contexts, folder);
        if self.current_context.is_empty() {
            self.current_context = file.current_context.unwrap_or_default();
        }
        Ok(())
    }

    /// Returns the configuration of the current context.
    async fn config(mut self) -> Result<KubeConfig, Error> {
        let name = self.current_context;
        if name.is_empty() {
            return Err(invalid(
                "current-context is not set: choose one by `kubectl config use-context`",
            ));
        }
        let missing = |what: &str, name: &str| invalid(format!("there is no {what} {name:?}"));
        let context = self.contexts.remove(&name);
        let context = context.ok_or_else(|| missing("context", &name))?;
        let named = |key: &str| context.get(key).and_then(Value::as_str);
        let cluster = named("cluster").unwrap_or_default();
        let cluster = self.clusters.remove(cluster);
        let cluster =
            cluster.ok_or_else(|| missing("cluster", named("cluster").unwrap_or_default()))?;
        let user = match named("user") {
            Some(user) => {
                let found = self.users.remove(user);
                found.ok_or_else(|| missing("user", user))?
            }
            None => Map::new(),
        };
        let mut cluster: Cluster = typed(cluster, "clusters")?;
        let mut user: AuthInfo = typed(user, "users")?;
        check_cluster(&mut cluster)?;
        check_user(&user)?;
        if let Some(exec) = &mut user.exec
            && exec.provide_cluster_info
        {
            let cluster = ExecAuthCluster::try_from(&cluster);
            exec.cluster = Some(cluster.map_err(|error| invalid(error.to_string()))?);
        }
        // Without a proxy here, kube uses the one in `HTTPS_PROXY`, for every address. A proxy may forward a write after its
        // deadline.
        let proxy = cluster.proxy_url.take();
        cluster.proxy_url = proxy.or_else(|| Some(NO_PROXY.to_owned()));
        let ca = cluster.certificate_authority_data.is_none();
        let ca_file = cluster.certificate_authority.clone().filter(|_| ca);
        let exec = user.exec.take();
        let headers = impersonation(&user)?;
        let one = json!({
            "clusters": [{ "name": "it", "cluster": cluster }],
            "users": [{ "name": "it", "user": user }],
            "contexts": [{ "name": "it", "context": {
                "cluster": "it", "user": "it", "namespace": named("namespace"),
            } }],
            "current-context": "it",
        });
        let one: Kubeconfig = serde_json::from_value(one).map_err(|_| invalid("not valid"))?;
        let kube = KubeConfig::from_custom_kubeconfig(one, &KubeConfigOptions::default()).await;
        let mut kube = kube.map_err(|error| invalid(first_line(&error)))?;
        kube.root_cert_file = ca_file.map(PathBuf::from);
        kube.auth_info.exec = exec;
        kube.headers.extend(headers);
        Ok(kube)
    }
}

fn first_line(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().to_owned()
}

/// Parses the first document of a file in UTF-8 or UTF-16 (Windows). An empty file is an empty kubeconfig.
fn parse(mut bytes: &[u8]) -> Result<File, String> {
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
    };
    let mut documents = serde_saphyr::read_with_options(&mut bytes, options);
    // The further lines of an error quote the file.
    let first = documents.next().transpose();
    first
        .map(Option::unwrap_or_default)
        .map_err(|error| first_line(&error))
}

fn merge(into: &mut HashMap<String, Map<String, Value>>, from: Option<Vec<Entry>>, folder: &Path) {
    for Entry { name, content } in from.unwrap_or_default() {
        into.entry(name)
            .or_insert_with(|| normal(content.unwrap_or_default(), folder));
    }
}

/// Removes empty fields and resolves relative paths. Removes line breaks from base64, which Go ignores.
fn normal(content: Map<String, Value>, folder: &Path) -> Map<String, Value> {
    let is_unset = |value: &Value| value.is_null() || value == "";
    let set = content.into_iter().filter(|(_, value)| !is_unset(value));
    let set = set.map(|(key, mut value)| {
        match (&*key, &mut value) {
            ("certificate-authority" | "client-certificate" | "client-key" | "tokenFile", path) => {
                resolve(path, folder);
            }
            ("exec", Value::Object(exec)) => {
                exec.retain(|_, value| !is_unset(value));
                if let Some(command) = exec.get_mut("command")
                    && command.as_str().is_some_and(|it| it.contains('/'))
                {
                    resolve(command, folder);
                }
            }
            (key, Value::String(text)) if key.ends_with("-data") => {
                text.retain(|letter| !matches!(letter, '\r' | '\n'));
            }
            _ => {}
        }
        (key, value)
    });
    set.collect()
}

fn resolve(path: &mut Value, folder: &Path) {
    if let Some(relative) = path.as_str() {
        *path = folder.join(relative).to_string_lossy().into();
    }
}

fn typed<T: for<'de> Deserialize<'de>>(
    content: Map<String, Value>,
    part: &str,
) -> Result<T, Error> {
    const TEXTS: [&str; 4] = ["token", "username", "password", "server"];
    // The deserializer's error would quote the value, which may be a secret.
    let number = TEXTS
        .iter()
        .find(|key| content.get(**key).is_some_and(|it| !it.is_string()));
    if let Some(key) = number {
        return Err(invalid(format!(
            "{part}: {key} is not a string: put it in quotes"
        )));
    }
    serde_json::from_value(content.into()).map_err(|error| invalid(format!("{part}: {error}")))
}

fn check_cluster(cluster: &mut Cluster) -> Result<(), Error> {
    let has_ca =
        cluster.certificate_authority.is_some() || cluster.certificate_authority_data.is_some();
    let insecure = cluster.insecure_skip_tls_verify.unwrap_or_default();
    if insecure && has_ca {
        return Err(invalid(
            "the cluster has both a certificate authority and insecure-skip-tls-verify: remove one of them",
        ));
    }
    // As in kubectl, an address without a scheme uses http.
    if let Some(server) = &mut cluster.server
        && !server.contains("://")
    {
        if has_ca || insecure {
            return Err(invalid(format!(
                "the server has no scheme: write https://{server}"
            )));
        }
        *server = format!("http://{server}");
    }
    Ok(())
}

fn check_user(user: &AuthInfo) -> Result<(), Error> {
    let token = secret(user, "token");
    let has_file = user
        .token_file
        .as_ref()
        .is_some_and(|path| !path.is_empty());
    if !has_file && token.is_some_and(|token| bearer(&token).is_err()) {
        return Err(invalid(
            "the user's token has a character that is not valid in an HTTP header, such as a line break: write it on one \
             line, without `|`",
        ));
    }
    if let Some(provider) = &user.auth_provider {
        return Err(invalid(format!(
            "auth-provider {:?} is not supported: use an exec plugin, such as kubelogin for OIDC",
            provider.name
        )));
    }
    let impersonates = user.impersonate_uid.is_some()
        || user
            .impersonate_groups
            .as_ref()
            .is_some_and(|groups| !groups.is_empty())
        || user
            .impersonate_user_extra
            .as_ref()
            .is_some_and(|extra| !extra.is_empty());
    if impersonates && user.impersonate.is_none() {
        return Err(invalid(
            "as-uid, as-groups and as-user-extra need a user to impersonate: set `as`",
        ));
    }
    Ok(())
}

/// Returns the impersonation headers that kube does not send.
fn impersonation(user: &AuthInfo) -> Result<Vec<(http::HeaderName, http::HeaderValue)>, Error> {
    use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
    // Characters that are valid in a header's name stay as they are.
    const KEY: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'!')
        .remove(b'#')
        .remove(b'$')
        .remove(b'&')
        .remove(b'\'')
        .remove(b'*')
        .remove(b'+')
        .remove(b'-')
        .remove(b'.')
        .remove(b'^')
        .remove(b'_')
        .remove(b'`')
        .remove(b'|')
        .remove(b'~');
    let uid = user
        .impersonate_uid
        .iter()
        .map(|uid| ("impersonate-uid".to_owned(), uid));
    let extra = user
        .impersonate_user_extra
        .iter()
        .flatten()
        .flat_map(|(key, values)| {
            let name = format!("impersonate-extra-{}", utf8_percent_encode(key, KEY));
            values.iter().map(move |value| (name.clone(), value))
        });
    let header = |(name, value): (String, &String)| {
        let name = http::HeaderName::try_from(name.to_lowercase()).ok()?;
        Some((name, http::HeaderValue::try_from(value).ok()?))
    };
    let headers: Option<Vec<_>> = uid.chain(extra).map(header).collect();
    headers.ok_or_else(|| {
        invalid("as-uid or as-user-extra has a value that is not valid in an HTTP header")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn all_of_an_impersonation_is_sent() {
        let user = json!({
            "as": "a", "as-uid": "u", "as-user-extra": { "Example.com/a b": ["c", "d"] },
        });
        let headers = impersonation(&serde_json::from_value(user).unwrap()).unwrap();
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        let extra = "impersonate-extra-example.com%2fa%20b";
        assert_eq!(
            headers,
            [("impersonate-uid", "u"), (extra, "c"), (extra, "d")]
        );
        let user = json!({ "as": "a", "as-uid": "u\n" });
        assert!(impersonation(&serde_json::from_value(user).unwrap()).is_err());
    }

    /// A block scalar in YAML (`token: |`) ends with a line break, which is not valid in an HTTP header.
    #[test]
    fn token_with_a_line_break_is_rejected() {
        for (token, is_valid) in [
            ("", true),
            ("abc", true),
            ("abc\n", false),
            ("a\nbc", false),
        ] {
            let user = serde_json::from_value(json!({ "token": token })).unwrap();
            assert_eq!(check_user(&user).is_ok(), is_valid, "{token:?}");
        }
    }

    /// The deserializer's error would quote the secret.
    #[test]
    fn a_secret_of_another_type_is_not_quoted() {
        let user = json!({ "token": 12_345 });
        let user = user.as_object().unwrap().clone();
        let error = typed::<AuthInfo>(user, "users").unwrap_err().to_string();
        assert_eq!(error, "users: token is not a string: put it in quotes");
    }
}
