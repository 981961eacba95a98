//! Comparison of the control plane in memory with a real one: both get the same requests for a CRD, and the responses must be
//! equal.
//!
//! The requests follow from the schema of the CRD: bounds and their neighbours, values of other types, null, unknown and missing
//! fields, repeated elements, preconditions, subresources, all versions, `dryRun` and `fieldValidation`. They are drawn from a
//! seed, so a run can be repeated.
//!
//! Not compared: UIDs, resourceVersions and times (only their equality), the messages of parsers, the messages of errors within
//! rules, the order of the causes of an error and of the managers of an object, and which of several errors in the types of a patch
//! is reported.
//!
//! In about one of 50,000 requests, a difference comes from timing. The real API server may check a change against an old state of its
//! watch cache first, and then returns a warning together with a conflict. And managers may be in another order if the second changes
//! between the requests to both sides.

mod draw;
pub mod invalid;
mod normal;
pub mod torture;
mod values;

use std::{collections::BTreeMap, fmt, time::Duration};

use http::Request;
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};

use crate::{
    api_server::Release,
    plane::{ADMIN, ControlPlane},
};
use draw::Draw;
use normal::Names;
pub use normal::differ;
use values::{Spot, mutated, spots};

/// A request.
#[derive(Clone, Debug)]
struct Sent {
    method: &'static str,
    path: String,
    content_type: &'static str,
    body: Value,
}

/// A response, as it is compared.
#[derive(Clone, Debug, PartialEq)]
struct Response {
    code: u16,
    warnings: Vec<String>,
    body: Value,
}

/// Requests of a [`compare`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of requests to each side.
    pub requests: usize,
    /// Chooses the requests.
    pub seed: u64,
    /// Valid objects of the storage version, without metadata. Requests are derived from them. If there is none, the schema
    /// determines one.
    pub good: Vec<Value>,
    /// Maximum number of differences.
    pub most_differences: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            requests: 1000,
            seed: 1,
            good: Vec::new(),
            most_differences: 20,
        }
    }
}

/// Result of a [`compare`].
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of requests to each side.
    pub requests: usize,
    /// Number of requests that were accepted.
    pub accepted: usize,
    pub differences: Vec<Difference>,
    /// Requests that the control plane in memory does not model, with their number.
    pub not_modelled: BTreeMap<String, usize>,
}

/// A request with different responses.
#[derive(Clone, Debug)]
pub struct Difference {
    pub request: String,
    /// Paths in the response, and both values.
    pub details: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} requests, {} accepted, {} differences",
            self.requests,
            self.accepted,
            self.differences.len()
        )?;
        for one in &self.differences {
            writeln!(f, "\n{}", one.request)?;
            for detail in &one.details {
                writeln!(f, "  {detail}")?;
            }
        }
        for (what, count) in &self.not_modelled {
            writeln!(f, "\nnot modelled, {count} times: {what}")?;
        }
        Ok(())
    }
}

/// Compares a real API server with the control plane in memory, by requests for the objects of a CRD.
///
/// The CRD is created in both, and deleted from the real one at the end. Its objects `a` and `b` are written and deleted, in the
/// namespace `default` if it is namespaced. `real` needs all rights. The control plane in memory imitates its version.
///
/// # Errors
/// The real API server cannot be reached, has a version that is not in [`Release`], or has a CRD of this name already.
pub async fn compare(
    real: &kube::Client,
    crd: &Value,
    options: &Options,
) -> Result<Report, String> {
    let plane = like(real).await?;
    let mut run = Run {
        sides: [Side::new(real.clone()), Side::new(plane.client(ADMIN))],
        report: Report::default(),
        plane,
        most: options.most_differences,
    };
    let name = crd["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!("{CRDS}/{name}");
    if run.sides[0].send(&Sent::get(&path)).await?.0 != 404 {
        return Err(format!(
            "the API server has the CRD {name} already, and a comparison would delete it with its objects"
        ));
    }
    run.same(&Sent::create(CRDS, crd)).await?;
    let has = |code: u16| code == 200;
    let is_real = has(run.sides[0].send(&Sent::get(&path)).await?.0);
    let is_simulated = has(run.sides[1].send(&Sent::get(&path)).await?.0);
    let result = if is_real && is_simulated {
        run.objects(crd, options).await
    } else {
        Ok(())
    };
    if is_real {
        run.sides[0].send(&Sent::delete(&path)).await?;
    }
    result?;
    run.report.not_modelled =
        run.plane
            .not_modelled()
            .into_iter()
            .fold(BTreeMap::new(), |mut all, what| {
                *all.entry(what).or_default() += 1;
                all
            });
    Ok(run.report)
}

/// Compares the responses to the creation of CRDs, most of them invalid.
///
/// # Errors
/// The real API server cannot be reached, or has a version that is not in [`Release`].
pub async fn compare_definitions(real: &kube::Client, crds: &[Value]) -> Result<Report, String> {
    let plane = like(real).await?;
    let mut run = Run {
        sides: [Side::new(real.clone()), Side::new(plane.client(ADMIN))],
        report: Report::default(),
        plane,
        most: usize::MAX,
    };
    for crd in crds {
        run.same(&Sent::create(&format!("{CRDS}?dryRun=All"), crd))
            .await?;
    }
    Ok(run.report)
}

/// Starts a control plane in memory that imitates the version of the real one.
async fn like(real: &kube::Client) -> Result<ControlPlane, String> {
    let version = real.apiserver_version().await;
    let version = version.map_err(|error| error.to_string())?.git_version;
    let release = Release::of(&version);
    let release = release.ok_or_else(|| format!("Kubernetes {version} is not imitated"))?;
    Ok(ControlPlane::of(release))
}

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Longest time until the real API server serves a new CRD.
const DEADLINE: Duration = Duration::from_secs(30);

impl Sent {
    fn get(path: &str) -> Self {
        Self {
            method: "GET",
            path: path.to_owned(),
            content_type: "",
            body: Value::Null,
        }
    }

    fn create(path: &str, body: &Value) -> Self {
        Self {
            method: "POST",
            path: path.to_owned(),
            content_type: "application/json",
            body: body.clone(),
        }
    }

    fn delete(path: &str) -> Self {
        Self {
            method: "DELETE",
            path: path.to_owned(),
            content_type: "application/json",
            body: json!({}),
        }
    }
}

/// A control plane: real, or in memory.
struct Side {
    client: kube::Client,
    names: Names,
    /// Newest versions of the objects, by path.
    versions: BTreeMap<String, String>,
}

impl Side {
    fn new(client: kube::Client) -> Self {
        Self {
            client,
            names: Names::default(),
            versions: BTreeMap::new(),
        }
    }

    /// Sends a request, and returns the code, the warnings and the body.
    async fn send(&mut self, sent: &Sent) -> Result<(u16, Vec<String>, Value), String> {
        let mut request = Request::builder().method(sent.method).uri(&sent.path);
        request = request.header("Accept", "application/json");
        request = request.header("User-Agent", "differential/1.0 (test)");
        if !sent.content_type.is_empty() {
            request = request.header("Content-Type", sent.content_type);
        }
        let body = if sent.body.is_null() {
            Vec::new()
        } else {
            sent.body.to_string().into_bytes()
        };
        let request = request
            .body(Body::from(body))
            .map_err(|error| error.to_string())?;
        let response = self
            .client
            .send(request)
            .await
            .map_err(|error| error.to_string())?;
        let code = response.status().as_u16();
        let warnings = response.headers().get_all("warning").iter();
        let mut warnings: Vec<_> = warnings
            .map(|it| String::from_utf8_lossy(it.as_bytes()).into_owned())
            .collect();
        warnings.sort();
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|error| error.to_string())?
            .to_bytes();
        let body = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
        Ok((code, warnings, body))
    }
}

struct Run {
    sides: [Side; 2],
    plane: ControlPlane,
    report: Report,
    most: usize,
}

impl Run {
    /// Sends the same request to both sides. Returns whether the responses are equal.
    async fn same(&mut self, sent: &Sent) -> Result<bool, String> {
        self.same_each([sent.clone(), sent.clone()]).await
    }

    async fn same_each(&mut self, sent: [Sent; 2]) -> Result<bool, String> {
        let mut responses = Vec::new();
        for (side, sent) in self.sides.iter_mut().zip(&sent) {
            let (code, warnings, body) = side.send(sent).await?;
            let is_kept = !sent.path.contains("dryRun") && code < 300;
            if let Some(version) = body["metadata"]["resourceVersion"]
                .as_str()
                .filter(|_| is_kept)
            {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                side.versions.insert(name.to_owned(), version.to_owned());
            }
            let body = side.names.normal(body);
            responses.push(Response {
                code,
                warnings,
                body,
            });
        }
        self.report.requests += 1;
        self.report.accepted += usize::from(responses[0].code < 300);
        if responses[0] == responses[1] || responses[1].code == 501 {
            return Ok(responses[0].code == responses[1].code);
        }
        let mut details = Vec::new();
        let shown =
            |it: &Response| json!({ "code": it.code, "warnings": it.warnings, "body": it.body });
        differ(
            "",
            &shown(&responses[0]),
            &shown(&responses[1]),
            &mut details,
        );
        details.truncate(8);
        let Sent {
            method, path, body, ..
        } = &sent[0];
        self.report.differences.push(Difference {
            request: format!("{method} {path} {body}"),
            details,
        });
        Ok(false)
    }

    /// Compares the requests for objects of a CRD.
    async fn objects(&mut self, crd: &Value, options: &Options) -> Result<(), String> {
        let resource = Resource::new(crd, options);
        let probe = Sent::get(&resource.all(0));
        let end = tokio::time::Instant::now() + DEADLINE;
        // The API server delays the first creations after a CRD is established, and fills the cache.
        while self.sides[0].send(&probe).await?.0 != 200 {
            if tokio::time::Instant::now() > end {
                return Err("the CRD is not established".to_owned());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut draw = Draw::new(options.seed);
        let first = self.report.requests;
        while self.report.requests < first + options.requests
            && self.report.differences.len() < self.most
        {
            let sent = resource.request(&mut draw, &self.sides);
            if !self.same_each(sent).await? {
                self.reset(&resource).await?;
            }
        }
        self.reset(&resource).await
    }

    /// Removes all objects, so that both sides are equal again.
    async fn reset(&mut self, resource: &Resource) -> Result<(), String> {
        for side in &mut self.sides {
            for name in NAMES {
                let path = format!("{}/{name}", resource.all(0));
                let free = Sent {
                    method: "PATCH",
                    path: path.clone(),
                    content_type: "application/merge-patch+json",
                    body: json!({ "metadata": { "finalizers": null } }),
                };
                side.send(&Sent::delete(&path)).await?;
                side.send(&free).await?;
            }
            side.versions.clear();
            side.names = Names::default();
        }
        Ok(())
    }
}

const NAMES: [&str; 2] = ["a", "b"];
const MANAGERS: [&str; 3] = ["one", "two", "kubectl"];

/// The objects of a CRD.
struct Resource {
    group: String,
    plural: String,
    kind: String,
    is_namespaced: bool,
    versions: Vec<Version>,
    good: Vec<Value>,
    /// Texts and numbers in the rules.
    literals: Vec<Value>,
}

struct Version {
    name: String,
    spots: Vec<Spot>,
    status: bool,
    scale: bool,
}

impl Resource {
    fn new(crd: &Value, options: &Options) -> Self {
        let spec = &crd["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let versions = spec["versions"].as_array().into_iter().flatten();
        let served: Vec<&Value> = versions
            .filter(|version| version["served"] == true)
            .collect();
        let versions = served.iter().map(|version| Version {
            name: text(&version["name"]),
            spots: spots(&version["schema"]["openAPIV3Schema"]),
            status: version["subresources"]["status"].is_object(),
            scale: version["subresources"]["scale"].is_object(),
        });
        let mut good = options.good.clone();
        if good.is_empty() {
            let schema = served
                .first()
                .map(|version| &version["schema"]["openAPIV3Schema"]);
            good.extend(schema.map(values::good));
        }
        Self {
            group: text(&spec["group"]),
            plural: text(&spec["names"]["plural"]),
            kind: text(&spec["names"]["kind"]),
            is_namespaced: spec["scope"] == "Namespaced",
            versions: versions.collect(),
            good,
            literals: values::literals(crd),
        }
    }

    fn all(&self, version: usize) -> String {
        let place = if self.is_namespaced {
            "namespaces/default/"
        } else {
            ""
        };
        format!(
            "/apis/{}/{}/{place}{}",
            self.group, self.versions[version].name, self.plural
        )
    }

    /// Draws an object.
    fn object(&self, version: &Version, name: &str, draw: &mut Draw) -> Value {
        let mut object = draw.of(&self.good).clone();
        let changes = draw
            .below(10)
            .min(4)
            .saturating_sub(1)
            .max(usize::from(draw.below(8) > 0));
        for _ in 0..changes {
            mutated(&mut object, &version.spots, &self.literals, draw);
        }
        object["apiVersion"] = format!("{}/{}", self.group, version.name).into();
        object["kind"] = self.kind.as_str().into();
        object["metadata"]["name"] = name.into();
        if draw.below(40) == 0 {
            object["metadata"]["unheardOf"] = 1.into();
        }
        if draw.below(8) == 0 {
            object["metadata"]["annotations"] =
                json!({ (*draw.of(&["k", "l"])): draw.of(&["1", "2"]) });
        }
        if draw.below(20) == 0 {
            object["metadata"]["finalizers"] =
                json!([draw.of(&["short", "example.com/long", "a.b"])]);
        }
        object
    }

    /// Draws a request, for each side with its own versions.
    fn request(&self, draw: &mut Draw, sides: &[Side; 2]) -> [Sent; 2] {
        let at = draw.below(self.versions.len());
        let version = &self.versions[at];
        let name = *draw.of(&NAMES);
        let (all, one) = (self.all(at), format!("{}/{name}", self.all(at)));
        let mut object = self.object(version, name, draw);
        let mut query = Vec::new();
        let manager = *draw.of(&MANAGERS);
        if draw.below(3) > 0 {
            query.push(format!("fieldManager={manager}"));
        }
        if draw.below(10) == 0 {
            query.push("dryRun=All".to_owned());
        }
        if draw.below(2) == 0 {
            query.push(format!(
                "fieldValidation={}",
                draw.of(&["Strict", "Warn", "Ignore"])
            ));
        }
        let query = if query.is_empty() {
            String::new()
        } else {
            format!("?{}", query.join("&"))
        };
        let part = match draw.below(6) {
            0 if version.status => "/status",
            1 if version.scale => "/scale",
            _ => "",
        };
        let json = "application/json";
        let which = draw.below(8);
        let sent = |method, path: String, content_type, body| Sent {
            method,
            path,
            content_type,
            body,
        };
        let sent = match draw.below(32) {
            0..6 => sent("POST", format!("{all}{query}"), json, object),
            6..12 => {
                if part == "/scale" {
                    let replicas = *draw.of(&[0, 1, 3, -1, 1000]);
                    object = json!({
                        "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": { "name": name },
                        "spec": { "replicas": replicas },
                    });
                }
                sent("PUT", format!("{one}{part}{query}"), json, object)
            }
            12..16 => {
                let mut patch = if part == "/scale" {
                    json!({ "spec": { "replicas": draw.below(4) } })
                } else {
                    values::patch(&version.spots, &self.literals, draw)
                };
                if draw.below(8) == 0 {
                    patch["metadata"]["labels"] = json!({ "x": draw.of(&["a", "b", "-"]) });
                }
                if draw.below(20) == 0 {
                    let none = [json!([{}]), json!([]), Value::Null];
                    patch["metadata"]["managedFields"] = draw.of(&none).clone();
                }
                sent(
                    "PATCH",
                    format!("{one}{part}{query}"),
                    "application/merge-patch+json",
                    patch,
                )
            }
            16 => {
                // Managers that a scale has changed show in the object.
                let part = if draw.below(2) == 0 { part } else { "" };
                sent("GET", format!("{one}{part}"), "", Value::Null)
            }
            17 => sent("GET", all, "", Value::Null),
            18 => sent("DELETE", one, json, json!({})),
            _ => {
                let (more, body) = applied(object, (part, version), draw);
                // Without a manager in some cases.
                let manager = match (query.contains("fieldManager="), which) {
                    (true, _) | (false, 0) => String::new(),
                    _ => format!("fieldManager={manager}"),
                };
                let parts = [query.trim_start_matches('?'), &manager, more];
                let parts = parts.into_iter().filter(|part| !part.is_empty());
                let query = parts.collect::<Vec<_>>().join("&");
                let path = format!("{one}{part}?{query}");
                sent("PATCH", path, "application/apply-patch+yaml", body)
            }
        };
        let mut both = [sent.clone(), sent];
        if both[0].method == "PUT" {
            for (sent, side) in both.iter_mut().zip(sides) {
                let version = side.versions.get(name).filter(|_| which > 1);
                let version = version.map_or("1", String::as_str);
                if which > 0 {
                    sent.body["metadata"]["resourceVersion"] = version.into();
                }
            }
        }
        both
    }
}

/// Returns what an applier sends, and another parameter.
fn applied(
    mut object: Value,
    (part, version): (&str, &Version),
    draw: &mut Draw,
) -> (&'static str, Value) {
    let force = match draw.below(4) {
        0 => "force=true",
        1 => "force=false",
        _ => "",
    };
    if part != "/scale" {
        values::left_out(&mut object, &version.spots, draw);
        return (force, object);
    }
    let body = json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": { "name": object["metadata"]["name"] },
        "spec": { "replicas": draw.below(3) },
    });
    (force, body)
}
