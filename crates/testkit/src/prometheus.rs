//! A real Prometheus for tests, and its promtool. They come from Debian's package `prometheus`, which is not needed to build or
//! run the controller. Tests that use it are therefore `#[ignore]`d. CI installs the package and runs them.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::{self, File},
    path::PathBuf,
    process::{Child, Stdio},
    time::Duration,
};

use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;

use crate::cluster::{bound_command, eventually};

/// Time limit for a start, and for a query to find a result.
const DEADLINE: Duration = Duration::from_secs(30);

/// Running Prometheus. It is killed on drop and when its starting thread ends.
pub struct Prometheus {
    child: Child,
    folder: TempDir,
    url: String,
}

/// One series in the result of an instant query.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(from = "Series")]
pub struct Sample {
    /// Labels, including the metric's name as `__name__`.
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

#[derive(Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    value: (f64, String),
}

impl From<Series> for Sample {
    fn from(series: Series) -> Self {
        Self {
            labels: series.metric,
            value: series.value.1.parse().unwrap(),
        }
    }
}

impl Prometheus {
    /// Starts Prometheus on a free loopback port and waits until it is ready. It scrapes `scrape_configs` (a list as in
    /// Prometheus' configuration) and evaluates the given rule files, both once per second. Exemplars are stored.
    pub async fn start(scrape_configs: Value, rules: &[PathBuf]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // JSON is YAML.
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "scrape_configs": scrape_configs,
            "rule_files": rules,
        });
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, config.to_string()).unwrap();
        let mut command = bound_command(program("prometheus"));
        command
            .arg("--config.file")
            .arg(file)
            .arg("--storage.tsdb.path")
            .arg(folder.path().join("data"))
            .arg("--web.listen-address=127.0.0.1:0")
            .arg("--enable-feature=exemplar-storage")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.path().join("log")).unwrap());
        let mut prometheus = Self {
            child: command.spawn().unwrap(),
            folder,
            url: String::new(),
        };
        prometheus.url = eventually(DEADLINE, "Prometheus is ready", async || {
            let log = prometheus.log();
            let address = log.split_once("msg=\"Listening on\" address=");
            match address.and_then(|(_, rest)| rest.split_once('\n')) {
                Some((address, _)) if log.contains("Server is ready") => {
                    Ok(format!("http://{address}"))
                }
                _ => Err(log),
            }
        })
        .await;
        prometheus
    }

    /// Returns the current result of an instant query.
    pub async fn query(&self, expression: &str) -> Vec<Sample> {
        let query = percent_encode(expression);
        let data = self.get(&format!("/api/v1/query?query={query}")).await;
        serde_json::from_value(data["result"].clone()).unwrap()
    }

    /// Returns the first result of a query that is not empty.
    pub async fn wait_for(&self, expression: &str) -> Vec<Sample> {
        eventually(DEADLINE, expression, async || {
            let found = self.query(expression).await;
            if found.is_empty() {
                Err(self.get("/api/v1/targets").await)
            } else {
                Ok(found)
            }
        })
        .await
    }

    /// Returns the data at a path of the HTTP API, such as `/api/v1/rules`, `/api/v1/alerts` or `/api/v1/targets`.
    pub async fn get(&self, path: &str) -> Value {
        let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
        let url = format!("{}{path}", self.url).parse().unwrap();
        let body = client.get(url).await.unwrap().into_body();
        let body = body.collect().await.unwrap().to_bytes();
        let mut answer: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].take()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of Prometheus ---\n{}", self.log());
        }
    }
}

/// Runs promtool with `input` on stdin, for example `check metrics`, `check rules FILE` or `test rules FILE`. Returns its
/// output; findings, such as a metric without help, are errors.
pub async fn promtool(args: &[&str], input: &str) -> Result<String, String> {
    let mut command = bound_command(program("promtool"));
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = tokio::process::Command::from(command).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let (written, output) = tokio::join!(
        async move { stdin.write_all(input.as_bytes()).await },
        child.wait_with_output(),
    );
    // It may exit before it has read its input.
    let _ = written;
    let output = output.unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    if output.status.success() {
        Ok(said)
    } else {
        Err(said)
    }
}

fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let files = std::env::split_paths(&path).map(|folder| folder.join(name));
    files.into_iter().find(|file| file.is_file()).unwrap_or_else(|| {
        panic!("{name} is not on PATH: install Debian's package prometheus, or Prometheus 2.42 or later")
    })
}

/// Encodes `text` as the value of a query parameter (RFC 3986).
fn percent_encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        let _ = write!(encoded, "%{byte:02X}");
        encoded
    })
}
