//! Requests.

use std::{borrow::Cow, collections::BTreeMap, fmt};

pub use http::Method;
use serde_json::Value;

use super::{
    Kind, Store, Verb,
    access::resource,
    duration,
    status::{Refusal, Result},
};

/// A request without a known response. Extend the model, or correct the caller.
#[derive(Debug)]
pub struct Unknown(pub String);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the simulated API server does not know {}", self.0)
    }
}

impl std::error::Error for Unknown {}

/// User of a request.
#[derive(Clone, Copy, Debug)]
pub struct User<'a> {
    pub name: &'a str,
    /// Name and UID of the pod that the token is bound to.
    pub pod: Option<(&'a str, &'a str)>,
}

/// A request from the network.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub user: User<'a>,
    pub method: &'a Method,
    pub path_and_query: &'a str,
    pub content_type: Option<&'a str>,
    pub accept: Option<&'a str>,
    /// `User-Agent`: the manager of a request without `fieldManager`.
    pub user_agent: Option<&'a str>,
    pub body: &'a [u8],
}

/// Part of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    Status,
    Scale,
    /// For a namespace, which is deleted with its last finalizer.
    Finalize,
}

/// Target of a request.
#[derive(Debug)]
pub enum Target {
    Stored {
        kind: Kind,
        namespace: Option<String>,
        name: Option<String>,
        part: Part,
    },
    /// A review, which is not stored.
    Review(&'static str),
}

/// A parsed call.
pub struct Request<'a> {
    pub call: Call<'a>,
    pub target: Target,
    /// Version of the API in the path.
    pub version: String,
    pub query: BTreeMap<String, String>,
    /// Media type of the body, without parameters.
    pub media_type: Option<Cow<'a, str>>,
    /// Whether only metadata is requested.
    pub metadata_only: bool,
}

/// Media type of the metadata of an object, and of the events of a watch.
pub const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// Media type of the metadata of a list.
pub const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

const REVIEWS: [(&str, &str); 3] = [
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
];

impl<'a> Request<'a> {
    /// Parses a call. `custom` are the kinds of CRDs.
    pub fn of(call: &Call<'a>, custom: &[Kind]) -> Result<Self> {
        let (path, query) =
            (call.path_and_query.split_once('?')).unwrap_or((call.path_and_query, ""));
        let (version, target) = target(path, custom)?;
        let mut request = Self {
            call: *call,
            target,
            version,
            query: parameters(query)?,
            media_type: media_type(call)?,
            metadata_only: false,
        };
        request.check_query()?;
        request.metadata_only = request.is_of_metadata()?;
        Ok(request)
    }

    /// Returns whether the header `Accept` requests only metadata. A list has another media type than an object or a watch.
    fn is_of_metadata(&self) -> Result<bool> {
        let is_list = matches!(self.verb(), Ok(Verb::List | Verb::DeleteCollection));
        match (self.call.accept, is_list) {
            (None | Some("application/json" | "*/*"), _) => Ok(false),
            (Some(METADATA), false) | (Some(METADATA_LIST), true) => Ok(true),
            (Some(other), _) => Err(Unknown(format!("Accept: {other}")).into()),
        }
    }

    pub fn verb(&self) -> Result<Verb> {
        let named = matches!(self.target, Target::Stored { name: Some(_), .. });
        Ok(match (self.call.method, named) {
            (&Method::GET, _) if self.flag("watch")? => Verb::Watch,
            (&Method::GET, true) => Verb::Get,
            (&Method::GET, false) => Verb::List,
            (&Method::POST, false) => Verb::Create,
            (&Method::PUT, true) => Verb::Update,
            (&Method::PATCH, true) => Verb::Patch,
            (&Method::DELETE, true) => Verb::Delete,
            (&Method::DELETE, false) => Verb::DeleteCollection,
            _ => return Err(Refusal::method_not_allowed()),
        })
    }

    /// Returns the `apiVersion` of a kind in this request.
    pub fn api_version(&self, kind: Kind) -> String {
        match kind {
            Kind::Custom(it) => format!("{}/{}", it.group, self.version),
            kind => kind.api_version(),
        }
    }

    pub fn text(&self, parameter: &str) -> &str {
        self.query.get(parameter).map_or("", String::as_str)
    }

    pub fn flag(&self, parameter: &str) -> Result<bool> {
        match self.query.get(parameter).map(String::as_str) {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1") => Ok(true),
            Some(other) => Err(Unknown(format!("{parameter}={other}")).into()),
        }
    }

    /// Returns whether the request is a dry run. The body of a deletion, if any, has precedence.
    pub fn is_dry_run(&self) -> Result<bool> {
        if self.call.method == Method::DELETE && !self.call.body.is_empty() {
            let options = self.json().map_err(Refusal::bad_request)?;
            return Ok(options["dryRun"][0] == "All");
        }
        match self.query.get("dryRun").map(String::as_str) {
            None => Ok(false),
            Some("All") => Ok(true),
            Some(other) => Err(Unknown(format!("dryRun={other}")).into()),
        }
    }

    /// Returns the single name that a list or a watch selects.
    pub fn field_name(&self) -> Result<Option<&str>> {
        let mut parts = self.text("fieldSelector").split(',');
        let name = parts.find_map(|part| part.strip_prefix("metadata.name="));
        match name {
            Some(name) if name.contains('=') => {
                Err(Unknown(format!("metadata.name={name}")).into())
            }
            name => Ok(name),
        }
    }

    fn check_query(&self) -> Result<()> {
        const WRITE: [&str; 4] = ["fieldManager", "timeout", "dryRun", "fieldValidation"];
        const FORCE: &str = "force";
        const READ: [&str; 11] = [
            "watch",
            "timeoutSeconds",
            "allowWatchBookmarks",
            "sendInitialEvents",
            "resourceVersion",
            "resourceVersionMatch",
            "fieldSelector",
            "labelSelector",
            "limit",
            "continue",
            "timeout",
        ];
        const SELECT: [&str; 3] = ["fieldSelector", "labelSelector", "limit"];
        let is_known = |name: &str| match self.verb() {
            Ok(Verb::DeleteCollection) => WRITE.contains(&name) || SELECT.contains(&name),
            _ if *self.call.method == Method::GET => READ.contains(&name),
            _ => WRITE.contains(&name) || (name == FORCE && *self.call.method == Method::PATCH),
        };
        for (name, value) in &self.query {
            if !is_known(name) {
                return Err(Unknown(format!("the parameter {name}={value}")).into());
            }
            if name == "fieldValidation"
                && !matches!(value.as_str(), "" | "Strict" | "Warn" | "Ignore")
            {
                return Err(Unknown(format!("fieldValidation={value}")).into());
            }
            // The timeout of a watch is not used.
            if name == "timeout"
                && !value.is_empty()
                && !self.flag("watch")?
                && duration::may_overflow(value)
            {
                return Err(Unknown(format!("timeout={value}")).into());
            }
            if name == "timeout"
                && !value.is_empty()
                && !self.flag("watch")?
                && let Some(error) = duration::error(value)
            {
                let words = format!("invalid timeout specified in the request URL - {error}");
                return Err(Refusal::bad_request(words));
            }
        }
        Ok(())
    }

    /// Returns the body as JSON, or the parser's error.
    pub fn json(&self) -> std::result::Result<Value, String> {
        serde_json::from_slice(self.call.body).map_err(|error| error.to_string())
    }
}

/// Returns the verb and the resource of a call, such as `patch` and `deployments` or `shirts/status`.
#[must_use]
pub fn describe(call: &Call<'_>, store: &Store) -> Option<(String, String)> {
    let request = Request::of(call, store.custom_kinds()).ok()?;
    let verb = request.verb().ok()?.name().to_owned();
    match &request.target {
        Target::Stored { kind, part, .. } => Some((verb, resource(*kind, *part))),
        Target::Review(review) => Some((verb, (*review).to_owned())),
    }
}

/// Groups of Kubernetes' own kinds, except for the groups that end with `.k8s.io`.
const GROUPS: [&str; 6] = ["", "apps", "autoscaling", "batch", "policy", "extensions"];

/// Returns the version and the target of a path.
fn target(path: &str, custom: &[Kind]) -> Result<(String, Target)> {
    let unknown = || Unknown(path.to_owned());
    let parts: Vec<&str> = path
        .strip_prefix('/')
        .ok_or_else(unknown)?
        .split('/')
        .collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return Err(unknown().into()),
    };
    let is_foreign = !GROUPS.contains(&group)
        && !group.ends_with(".k8s.io")
        && custom.iter().all(|kind| kind.info().group != group);
    if is_foreign {
        return Err(Refusal::not_served());
    }
    let target = target_in(group, version, rest, custom).ok_or_else(unknown)?;
    Ok((version.to_owned(), target))
}

fn target_in(group: &str, version: &str, rest: &[&str], custom: &[Kind]) -> Option<Target> {
    if let [plural] = rest
        && let Some((_, review)) = (REVIEWS.into_iter())
            .find(|(its_group, review)| (group, "v1") == (its_group, version) && plural == review)
    {
        return Some(Target::Review(review));
    }
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..]
            if !matches!(rest, [] | ["status" | "finalize", ..]) =>
        {
            (Some((*namespace).to_owned()), rest)
        }
        rest => (None, rest),
    };
    let (plural, rest) = rest.split_first()?;
    let mut kinds = Kind::BUILT_IN.iter().chain(custom).copied();
    let kind = kinds.find(|kind| {
        let info = kind.info();
        let is_version = kind.is_custom() || info.version == version;
        (info.group, info.plural) == (group, *plural) && is_version
    })?;
    if namespace.is_some() && !kind.is_namespaced() && !kind.is_custom() {
        return None;
    }
    let (name, part) = match rest {
        [] => (None, Part::Whole),
        [name] => (Some(*name), Part::Whole),
        [name, "status"] if kind.has_status() => (Some(*name), Part::Status),
        [name, "scale"] if kind.has_scale() || kind.is_custom() => (Some(*name), Part::Scale),
        [name, "status"] if kind == Kind::CustomResourceDefinition => (Some(*name), Part::Status),
        [name, "finalize"] if kind == Kind::Namespace => (Some(*name), Part::Finalize),
        _ => return None,
    };
    if name.is_some() && kind.is_namespaced() && namespace.is_none() && !kind.is_custom() {
        return None;
    }
    let name = name.map(ToOwned::to_owned);
    Some(Target::Stored {
        kind,
        namespace,
        name,
        part,
    })
}

/// Returns the media type of the body. That of a patch is everything before the parameters (`handlers/patch.go`); that of another
/// body is parsed like by Go's `mime.ParseMediaType`.
fn media_type<'a>(call: &Call<'a>) -> Result<Option<Cow<'a, str>>> {
    let whole = call.content_type.filter(|whole| !whole.is_empty());
    let Some(whole) = whole.filter(|_| *call.method != Method::GET) else {
        return Ok(None);
    };
    let (media_type, parameters) = whole.split_at(whole.find(';').unwrap_or(whole.len()));
    if *call.method == Method::PATCH {
        return Ok(Some(media_type.into()));
    }
    let is_token = |text: &str| {
        let is_known = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        !text.is_empty() && text.chars().all(is_known)
    };
    let mut names = Vec::new();
    let parameters = parameters.trim();
    let parameters = parameters.strip_suffix(';').unwrap_or(parameters);
    for parameter in parameters.split(';').skip(1).map(str::trim) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let name = name.to_ascii_lowercase();
        // Go reads quoted values, and rejects some lists of parameters.
        if !is_token(&name) || !is_token(value) || names.contains(&name) {
            return Err(Unknown(format!("Content-Type: {whole}")).into());
        }
        names.push(name);
    }
    let trimmed = media_type.trim();
    Ok(Some(if trimmed.chars().any(|c| c.is_ascii_uppercase()) {
        trimmed.to_ascii_lowercase().into()
    } else {
        trimmed.into()
    }))
}

fn parameters(query: &str) -> Result<BTreeMap<String, String>> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let unknown = || Unknown(format!("the parameter {pair}"));
            Ok((
                decoded(name).ok_or_else(unknown)?,
                decoded(value).ok_or_else(unknown)?,
            ))
        })
        .collect()
}

/// Decodes the percent-encoding of a query.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}
