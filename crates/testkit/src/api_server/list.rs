//! Get and list, with pages.

use serde_json::{Value, json};

use super::{
    Key, Kind, Server, Store,
    request::{Part, Request, Unknown},
    selector::Selector,
    status::{Cause, Refusal, Result},
};

const PARTIAL: &str = "PartialObjectMetadata";
const META: &str = "meta.k8s.io/v1";

/// Returns the form of an object for clients that request only metadata.
pub fn partial(object: &Value) -> Value {
    json!({ "kind": PARTIAL, "apiVersion": META, "metadata": object["metadata"] })
}

/// Start of the next page, and the version of the list; `None` is the newest.
struct Continue {
    version: Option<u64>,
    after: (String, String),
}

impl Continue {
    fn parse(token: &str) -> Option<Self> {
        let mut parts = token.splitn(3, '/');
        let version = match parts.next()? {
            "newest" => None,
            version => Some(version.parse().ok()?),
        };
        let after = (parts.next()?.to_owned(), parts.next()?.to_owned());
        Some(Self { version, after })
    }

    fn token(version: Option<u64>, last: &Key) -> String {
        let version = version.map_or_else(|| "newest".to_owned(), |version| version.to_string());
        format!("{version}/{}/{}", last.namespace, last.name)
    }
}

impl Server {
    pub(super) fn get(
        &self,
        store: &Store,
        request: &Request<'_>,
        key: &Key,
        part: Part,
    ) -> Result<Value> {
        let object = match request.text("resourceVersion") {
            "" => store.get(key),
            "0" => store.get_at(key, self.seen_last()),
            other => return Err(Unknown(format!("a get at {other}")).into()),
        };
        let object = object.ok_or_else(|| Refusal::not_found(key.kind, &key.name))?;
        match part {
            Part::Scale => self.get_scale(store, request, key.kind, object),
            _ => Ok(Value::clone(object)),
        }
    }

    pub(super) fn list(
        &self,
        store: &Store,
        request: &Request<'_>,
        (kind, namespace): (Kind, Option<&str>),
    ) -> Result<Value> {
        let limit = match request.text("limit") {
            // A list from the cache has no pages.
            "" => 0,
            _ if request.text("resourceVersion") == "0" => 0,
            limit => limit
                .parse::<usize>()
                .map_err(|_| Unknown(format!("limit={limit}")))?
                .min(self.page),
        };
        let (selector, name) = (Selector::of(request, kind)?, request.field_name()?);
        let next = next_page(store, request, kind)?;
        let version = match &next {
            Some(next) => next.version.unwrap_or(store.version()),
            None => self.version_to_list(store, request)?,
        };
        let after = next.map(|next| Key::new(kind.stored(), &next.after.0, &next.after.1));
        let mut rest = store
            .list_at(kind, namespace, version)
            .filter(|(key, _)| name.is_none_or(|name| key.name == name))
            .filter(|(key, _)| after.as_ref().is_none_or(|after| *key > after))
            .peekable();
        let mut items = Vec::new();
        let mut last = None;
        while limit == 0 || items.len() < limit {
            let Some((key, object)) = rest.next() else {
                break;
            };
            // Counts among the rest: there is a next page, even if it is empty.
            if !selector.selects(key, object) {
                continue;
            }
            let mut item = if request.metadata_only {
                partial(object)
            } else if kind.is_converted() {
                self.present(store, request, kind, object)?.into_owned()
            } else {
                Value::clone(object)
            };
            if !kind.is_custom()
                && !request.metadata_only
                && let Some(item) = item.as_object_mut()
            {
                // The list contains them.
                item.remove("kind");
                item.remove("apiVersion");
            }
            items.push(item);
            last = Some(key);
        }
        let mut metadata = json!({ "resourceVersion": version.to_string() });
        if let Some(last) = last
            && rest.peek().is_some()
        {
            metadata["continue"] = Continue::token(Some(version), last).into();
            if selector.is_empty() {
                metadata["remainingItemCount"] = rest.count().into();
            }
        }
        let (of, api_version) = if request.metadata_only {
            (PARTIAL, META.to_owned())
        } else {
            (kind.info().kind, request.api_version(kind))
        };
        // An empty list of metadata is the only one without items.
        let items = (!items.is_empty() || !request.metadata_only).then_some(items);
        Ok(json!({
            "kind": format!("{of}List"), "apiVersion": api_version, "metadata": metadata, "items": items,
        }))
    }

    /// Returns the version of a list without `continue`.
    fn version_to_list(&self, store: &Store, request: &Request<'_>) -> Result<u64> {
        let text = request.text("resourceVersion");
        let how = request.text("resourceVersionMatch");
        let asked: u64 = match text {
            "" => 0,
            text => text
                .parse()
                .map_err(|_| Refusal::bad_request(bad_version(text)))?,
        };
        match (text, how) {
            ("", "") => Ok(store.version()),
            ("", _) => Err(forbidden_match(
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            )),
            ("0", "Exact") => Err(forbidden_match(
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            )),
            (_, "" | "NotOlderThan") if asked > self.seen_last() => {
                Err(Refusal::too_large(asked, self.seen_last()))
            }
            (_, "NotOlderThan") => Ok(self.seen_last()),
            (_, "") if asked == 0 || request.text("limit").is_empty() => Ok(self.seen_last()),
            (_, "" | "Exact") if asked < store.compacted() => Err(Refusal::expired(
                "The resourceVersion for the provided list is too old.",
            )),
            (_, "Exact" | "") if asked <= store.version() => Ok(asked),
            _ => Err(Unknown(format!("a list at {text} {how}")).into()),
        }
    }
}

fn bad_version(text: &str) -> String {
    format!(
        "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid \
         syntax"
    )
}

fn forbidden_match(why: &str) -> Refusal {
    let cause = Cause {
        field: "resourceVersionMatch".to_owned(),
        reason: "FieldValueForbidden",
        message: format!("Forbidden: {why}"),
    };
    Refusal::invalid_of("ListOptions", "meta.k8s.io", "", &[cause])
}

/// Parses the parameter `continue`.
fn next_page(store: &Store, request: &Request<'_>, kind: Kind) -> Result<Option<Continue>> {
    let token = request.text("continue");
    if token.is_empty() {
        return Ok(None);
    }
    if !matches!(request.text("resourceVersion"), "" | "0") {
        return Err(Refusal::bad_request(
            "specifying resource version is not allowed when using continue",
        ));
    }
    let next = Continue::parse(token)
        .ok_or_else(|| Refusal::bad_request(format!("continue key is not valid: {token}")))?;
    if next
        .version
        .is_some_and(|version| version < store.compacted())
    {
        let last = Key::new(kind, &next.after.0, &next.after.1);
        let mut refusal = Refusal::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a \
             new list without the continue parameter, or use the continue token in this response to retrieve \
             the remainder of the results. Continuing with the provided token results in an inconsistent list - \
             objects that were created, modified, or deleted between the time the first chunk was returned and \
             now may show up in the list.",
        );
        if let Refusal::Status(status) = &mut refusal {
            status["metadata"]["continue"] = Continue::token(None, &last).into();
        }
        return Err(refusal);
    }
    Ok(Some(next))
}
