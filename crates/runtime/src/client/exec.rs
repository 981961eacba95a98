//! Exec plugins of a kubeconfig (`client.authentication.k8s.io`), as in client-go.
//!
//! A plugin runs at the start, before its credentials expire, and after the API server rejects them (401). There is one run at
//! a time. A request waits for a run only if its credentials have expired or were rejected.

use std::{
    io::{self, IsTerminal as _},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture, future::Shared};
use http::header::HeaderValue;
use k8s_openapi::jiff::Timestamp;
use kube::config::{ExecConfig, ExecInteractiveMode};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    io::AsyncReadExt as _,
    process::Command,
    time::{Instant, timeout},
};
use tracing::{info, warn};

use crate::{
    client::{
        tls::{Identity, certified_key},
        token_file::bearer,
    },
    config::{backoff::Backoff, environment::Host},
    telemetry::log_once::OutageLog,
};

/// Timeout of one run.
const RUN: Duration = Duration::from_mins(1);

/// Limit of a plugin's output, in bytes.
const MOST: u64 = 1 << 20;

/// Credentials are renewed this long before they expire, or after four fifths of their lifetime if that is later.
const EARLY: Duration = Duration::from_mins(1);

/// Interval between the starts of two runs. The first value doubles up to the second until the API server accepts the
/// credentials.
const PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_mins(1));

/// Error of an exec plugin.
#[derive(Clone, Debug, thiserror::Error)]
#[error("exec plugin {command}: {why}")]
pub struct Error {
    command: String,
    why: String,
}

/// Exec plugin with its latest credentials.
pub(crate) struct Exec {
    config: ExecConfig,
    host: Host,
    identity: Arc<Identity>,
    state: Mutex<State>,
}

struct State {
    token: Option<HeaderValue>,
    /// Number of successful runs.
    generation: u64,
    /// Times of renewal and expiry, `None` for credentials without an expiry.
    renewed: Option<Instant>,
    expires: Option<Instant>,
    refused: bool,
    running: Option<Shared<BoxFuture<'static, ()>>>,
    next: Instant,
    pauses: Backoff,
    trouble: OutageLog,
}

#[derive(Deserialize)]
struct Credential {
    #[serde(rename = "apiVersion", default)]
    api_version: String,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl Exec {
    /// Runs the plugin for the first time.
    ///
    /// # Errors
    /// Fails if the plugin cannot be run or prints no valid credentials.
    pub(crate) async fn start(
        config: ExecConfig,
        host: &Host,
        identity: Arc<Identity>,
    ) -> Result<Arc<Self>, Error> {
        let now = Instant::now();
        let exec = Arc::new(Self {
            config,
            host: host.clone(),
            identity,
            state: Mutex::new(State {
                token: None,
                generation: 0,
                renewed: None,
                expires: None,
                refused: false,
                running: None,
                next: now + PAUSES.0,
                pauses: Backoff::new(PAUSES.0, PAUSES.1),
                trouble: OutageLog::default(),
            }),
        });
        exec.refresh().await?;
        Ok(exec)
    }

    /// Returns the token, if any, and the generation of the credentials. Waits for a new run if the credentials are unusable.
    pub(crate) async fn token(self: &Arc<Self>) -> (Option<HeaderValue>, u64) {
        if let Some(run) = self.run_if_due() {
            run.await;
        }
        let state = self.state.lock();
        (state.token.clone(), state.generation)
    }

    /// Starts a run if one is due. Returns the active run if the caller must wait for it.
    fn run_if_due(self: &Arc<Self>) -> Option<Shared<BoxFuture<'static, ()>>> {
        let (mut state, now) = (self.state.lock(), Instant::now());
        let is_past = |time: Option<Instant>| time.is_some_and(|time| time <= now);
        let is_useless = state.refused || is_past(state.expires);
        let is_due = is_useless || is_past(state.renewed);
        if is_due && state.running.is_none() && state.next <= now {
            state.next = now + state.pauses.advance();
            let exec = Arc::clone(self);
            // A separate task: a cancelled request does not end the run.
            let run = tokio::spawn(async move { exec.refresh_and_log().await });
            state.running = Some(run.map(drop).boxed().shared());
        }
        state.running.clone().filter(|_| is_useless)
    }

    async fn refresh_and_log(&self) {
        let refreshed = self.refresh().await;
        let mut state = self.state.lock();
        state.running = None;
        match refreshed {
            Ok(()) if state.trouble.is_over() => {
                state.trouble.clear();
                info!("exec plugin {}: works again", self.name());
            }
            Err(error) if state.trouble.is_new(&error.why) => {
                warn!("{error}; using the previous credentials");
            }
            _ => {}
        }
    }

    /// Records whether the API server accepted the credentials of this generation.
    pub(crate) fn observe(&self, is_refused: bool, generation: u64) {
        let mut state = self.state.lock();
        if state.generation == generation {
            state.refused = is_refused;
            if !is_refused {
                state.pauses.reset();
            }
        }
    }

    fn name(&self) -> &str {
        self.config.command.as_deref().unwrap_or_default()
    }

    async fn refresh(&self) -> Result<(), Error> {
        let status = match timeout(RUN, self.run()).await {
            Ok(status) => status,
            Err(_) => Err(format!("not finished after {RUN:?}")),
        };
        status
            .and_then(|status| self.take(status))
            .map_err(|why| Error {
                command: self.name().to_owned(),
                why,
            })
    }

    fn take(&self, status: Status) -> Result<(), String> {
        let set = |text: Option<String>| text.filter(|text| !text.is_empty());
        let token = set(status.token).map(|token| bearer(&token));
        let token = token.transpose().map_err(|error| error.to_string())?;
        let pair = (
            set(status.client_certificate_data),
            set(status.client_key_data),
        );
        let key = match pair {
            (Some(certificate), Some(key)) => {
                let key = certified_key(certificate.as_bytes(), key.as_bytes());
                Some(key.map_err(|error| error.to_string())?)
            }
            (None, None) if token.is_some() => None,
            (None, None) => {
                return Err("it printed neither a token nor a client certificate".into());
            }
            _ => return Err("it printed a client certificate or a key, not both".into()),
        };
        let lifetime = match set(status.expiration_timestamp) {
            Some(text) => {
                let expires: Timestamp = text
                    .parse()
                    .map_err(|_| format!("expirationTimestamp {text:?} is not a timestamp"))?;
                let left = expires.duration_since(self.host.now());
                Some(Duration::try_from(left).unwrap_or_default())
            }
            None => None,
        };
        let now = Instant::now();
        self.identity.set(key);
        let mut state = self.state.lock();
        state.token = token;
        state.generation += 1;
        state.expires = lifetime.map(|lifetime| now + lifetime);
        state.renewed = lifetime.map(|lifetime| now + lifetime - EARLY.min(lifetime / 5));
        state.refused = false;
        Ok(())
    }

    async fn run(&self) -> Result<Status, String> {
        let config = &self.config;
        let version = config.api_version.as_deref().unwrap_or_default();
        if !matches!(
            version,
            "client.authentication.k8s.io/v1" | "client.authentication.k8s.io/v1beta1"
        ) {
            return Err(format!(
                "apiVersion {version:?} is not supported: set client.authentication.k8s.io/v1"
            ));
        }
        let program = config.command.as_deref().ok_or("it has no command")?;
        let is_terminal = io::stdin().is_terminal();
        let interactive = match config.interactive_mode {
            Some(ExecInteractiveMode::Never) => false,
            Some(ExecInteractiveMode::Always) if !is_terminal => {
                return Err(
                    "interactiveMode is Always, and standard input is not a terminal".into(),
                );
            }
            _ => is_terminal,
        };
        let mut info = json!({
            "apiVersion": version,
            "kind": "ExecCredential",
            "spec": { "interactive": interactive },
        });
        if let Some(cluster) = &config.cluster {
            info["spec"]["cluster"] = json!(cluster);
        }
        let stdin = if interactive {
            Stdio::inherit()
        } else {
            Stdio::null()
        };
        let pairs = config.env.iter().flatten();
        let pairs = pairs.filter_map(|pair| Some((pair.get("name")?, pair.get("value")?)));
        let mut command = Command::new(program);
        if !interactive {
            // A separate process group allows killing child processes too. Not with a terminal: only the foreground group may
            // read it.
            command.process_group(0);
        }
        let mut child = command
            .args(config.args.iter().flatten())
            .envs(pairs)
            .env("KUBERNETES_EXEC_INFO", info.to_string())
            .stdin(stdin)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                let hint = config.install_hint.as_deref().map(one_line);
                let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                format!("it cannot be started: {error}{hint}")
            })?;
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let mut group = Group(group.filter(|_| !interactive));
        let mut printed = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            let read = stdout.take(MOST).read_to_end(&mut printed).await;
            read.map_err(|error| error.to_string())?;
        }
        let status = child.wait().await.map_err(|error| error.to_string())?;
        group.0 = None;
        if !status.success() {
            return Err(format!("it failed ({status}); see its output"));
        }
        // The error omits the output, which may contain a secret.
        let credential: Credential = serde_saphyr::from_slice(&printed)
            .map_err(|_| "it printed no ExecCredential".to_owned())?;
        if credential.api_version != version {
            let other = credential.api_version;
            return Err(format!(
                "it printed credentials of apiVersion {other:?}, not {version}"
            ));
        }
        credential
            .status
            .ok_or_else(|| "it printed no status".to_owned())
    }
}

/// Process group of an unfinished run. Killed on drop.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Fails if all processes have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Joins the lines of a hint.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use futures::future::join_all;
    use kube::config::AuthInfo;
    use tempfile::TempDir;
    use tokio::time::{advance, pause, resume, sleep};

    use super::*;

    /// Starts a plugin that prints its number of runs as the token, which expires after `seconds`.
    async fn start(folder: &TempDir, script: &str, seconds: i64) -> Result<Arc<Exec>, Error> {
        let expires = Timestamp::now() + Duration::from_secs(seconds.unsigned_abs());
        let script = format!(
            r#"cd {} && echo >> runs && {script} &&
            echo '{{ "apiVersion": "client.authentication.k8s.io/v1", "status":' \
              '{{ "token": "'$(wc -l < runs)'", "expirationTimestamp": "{expires}" }} }}'"#,
            folder.path().display()
        );
        let config = json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", script],
            "interactiveMode": "Never",
        });
        let config = serde_json::from_value(config).unwrap();
        let identity = Identity::take(&mut AuthInfo::default()).unwrap();
        Exec::start(config, &Host::of_this_process(), Arc::new(identity)).await
    }

    async fn pass(time: Duration) {
        pause();
        advance(time).await;
        resume();
    }

    async fn number(exec: &Arc<Exec>) -> (String, u64) {
        let (token, number) = exec.token().await;
        (token.unwrap().to_str().unwrap().to_owned(), number)
    }

    #[tokio::test]
    async fn a_plugin_runs_once_for_many_rejected_requests() {
        let folder = tempfile::tempdir().unwrap();
        let exec = start(&folder, "sleep 0.1", 3600).await.unwrap();
        let first = number(&exec).await;
        assert_eq!(first, ("Bearer 1".to_owned(), 1));
        pass(PAUSES.0).await;
        for _ in 0..10 {
            exec.observe(true, first.1);
        }
        for token in join_all((0..10).map(|_| number(&exec))).await {
            assert_eq!(token, ("Bearer 2".to_owned(), 2));
        }
        // A late response to the previous token.
        exec.observe(true, first.1);
        assert_eq!(number(&exec).await.1, 2);
        // A refused token is replaced after a pause.
        exec.observe(true, 2);
        assert_eq!(number(&exec).await.1, 2);
        pass(PAUSES.0 * 2).await;
        assert_eq!(number(&exec).await.1, 3);
    }

    #[tokio::test]
    async fn credentials_are_replaced_before_they_expire() {
        let folder = tempfile::tempdir().unwrap();
        let exec = start(&folder, "true", 100).await.unwrap();
        pass(Duration::from_secs(70)).await;
        assert_eq!(number(&exec).await.1, 1);
        pass(Duration::from_secs(15)).await;
        assert_eq!(number(&exec).await.1, 1);
        let run = exec.state.lock().running.clone();
        run.unwrap().await;
        assert_eq!(number(&exec).await.1, 2);
    }

    /// The child processes are killed too.
    #[tokio::test]
    async fn a_plugin_that_hangs_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let child = folder.path().join("child");
        let script = "sh -c 'echo $$ > new && mv new child && exec sleep 1000' && true";
        let started = async {
            while !child.exists() {
                sleep(Duration::from_millis(10)).await;
            }
            pause();
        };
        let (error, ()) = tokio::join!(start(&folder, script, 100), started);
        resume();
        let error = error.err().unwrap().to_string();
        assert_eq!(error, "exec plugin sh: not finished after 60s");
        // A killed process remains a zombie until its new parent reaps it.
        let id = std::fs::read_to_string(child).unwrap();
        let stat = format!("/proc/{}/stat", id.trim());
        let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        let ended = async {
            while runs() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(10), ended).await.unwrap();
    }
}
