//! Authorization. Every user has every permission that was not revoked.

use serde_json::{Value, json};

use super::{
    Key, Kind, Store,
    request::{Part, Request, Unknown},
    status::{Refusal, Result},
};

/// Verb of RBAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// A rule of a `Role` or `ClusterRole`.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Namespace of the rule; `None`: everywhere.
    pub namespace: Option<String>,
    /// The rule: `apiGroups`, `resources`, `resourceNames` and `verbs`.
    pub rule: Value,
}

/// A request that a rule must allow.
#[derive(Clone, Copy, Debug)]
struct Right<'a> {
    verb: &'a str,
    group: &'a str,
    resource: &'a str,
    namespace: Option<&'a str>,
    name: Option<&'a str>,
}

impl Rule {
    /// Returns whether the rule allows an access (`rbac.RuleAllows`).
    fn allows(&self, right: &Right<'_>) -> bool {
        let has = |field: &str, wanted: &str| {
            let mut all = self.rule[field].as_array().into_iter().flatten();
            all.any(|it| it == wanted || it == "*")
        };
        let all = self.rule["resources"].as_array().into_iter().flatten();
        let mut all = all.filter_map(Value::as_str);
        let subresource = right
            .resource
            .split_once('/')
            .map(|(_, part)| format!("*/{part}"));
        let is_resource =
            all.any(|it| it == "*" || it == right.resource || Some(it) == subresource.as_deref());
        let names = self.rule["resourceNames"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        let is_named = names.is_empty()
            || right
                .name
                .is_some_and(|name| names.iter().any(|it| it == name));
        let is_here = self.namespace.is_none() || self.namespace.as_deref() == right.namespace;
        has("verbs", right.verb)
            && has("apiGroups", right.group)
            && is_resource
            && is_named
            && is_here
    }
}

/// Returns the name in RBAC, such as `shirts/status`.
pub(super) fn resource(kind: Kind, part: Part) -> String {
    let plural = kind.info().plural;
    match part {
        Part::Whole => plural.to_owned(),
        Part::Status => format!("{plural}/status"),
        Part::Scale => format!("{plural}/scale"),
        Part::Finalize => format!("{plural}/finalize"),
    }
}

impl Store {
    /// Revokes a permission everywhere: `("system:serviceaccount:a:b", "patch", "deployments")`.
    pub fn revoke(&mut self, user: &str, verb: &str, resource: &str) {
        let right = (user.to_owned(), verb.to_owned(), resource.to_owned());
        self.revoked.insert(right);
    }

    /// Grants a [revoked](Self::revoke) permission again.
    pub fn grant(&mut self, user: &str, verb: &str, resource: &str) {
        let right = (user.to_owned(), verb.to_owned(), resource.to_owned());
        self.revoked.remove(&right);
    }

    fn allows(&self, user: &str, right: &Right<'_>) -> bool {
        let rules = self.rules.get(user);
        let is_granted = rules.is_none_or(|rules| rules.iter().any(|rule| rule.allows(right)));
        let revoked = (
            user.to_owned(),
            right.verb.to_owned(),
            right.resource.to_owned(),
        );
        is_granted && (self.revoked.is_empty() || !self.revoked.contains(&revoked))
    }

    /// Returns the rules of a user. From now on, the user has no other rights.
    pub fn rules_of(&mut self, user: &str) -> &mut Vec<Rule> {
        self.rules.entry(user.to_owned()).or_default()
    }

    /// Assigns a token to a user, for token reviews.
    pub fn set_token(&mut self, token: &str, user: &str) {
        self.tokens.insert(token.to_owned(), user.to_owned());
    }

    /// Returns a `ServiceAccount` as the API server identifies it by its token.
    fn account(&self, user: &str) -> Result<Value> {
        let account = user.strip_prefix("system:serviceaccount:");
        let account = account.and_then(|account| account.split_once(':'));
        let (namespace, name) = account.ok_or_else(|| Unknown(format!("a token of {user}")))?;
        let object = self.get(&Key::new(Kind::ServiceAccount, namespace, name));
        let object =
            object.ok_or_else(|| Unknown(format!("a token of {user}, who is not there")))?;
        Ok(json!({
            "username": user,
            "uid": object["metadata"]["uid"],
            "groups": [
                "system:serviceaccounts",
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated",
            ],
        }))
    }

    pub(super) fn authorize(
        &self,
        request: &Request<'_>,
        verb: Verb,
        (kind, part): (Kind, Part),
        (namespace, name): (Option<&str>, Option<&str>),
    ) -> Result<()> {
        // A name in the field selector counts like a name in the path.
        let selected = match verb {
            Verb::List | Verb::Watch => request.field_name()?,
            _ => None,
        };
        let name = name.or(selected);
        let (user, verb) = (request.call.user.name, verb.name());
        let resource = resource(kind, part);
        let group = kind.info().group;
        let right = Right {
            verb,
            group,
            resource: &resource,
            namespace,
            name,
        };
        if self.allows(user, &right) {
            return Ok(());
        }
        let place = match namespace {
            Some(namespace) => format!("in the namespace \"{namespace}\""),
            None => "at the cluster scope".to_owned(),
        };
        let why = format!(
            "User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"{group}\" {place}"
        );
        Err(Refusal::forbidden(kind, name.unwrap_or_default(), &why))
    }

    /// Returns the response to a review, which is not stored.
    pub(super) fn review(&self, request: &Request<'_>, review: &str) -> Result<Value> {
        let mut body = request.json().map_err(Refusal::bad_request)?;
        let attributes = body.pointer_mut("/spec/resourceAttributes");
        if let Some(attributes) = attributes.and_then(Value::as_object_mut) {
            attributes.retain(|_, value| *value != "");
        }
        let asked = &body["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let status = match review {
            "tokenreviews" => match asked["token"]
                .as_str()
                .and_then(|token| self.tokens.get(token))
            {
                Some(user) => json!({
                    "authenticated": true, "user": self.account(user)?, "audiences": ["https://kubernetes.default.svc"],
                }),
                None => json!({ "user": {} }),
            },
            "subjectaccessreviews" | "selfsubjectaccessreviews" => {
                let user = match review {
                    "subjectaccessreviews" => text(&asked["user"]),
                    _ => request.call.user.name.to_owned(),
                };
                let attributes = &asked["resourceAttributes"];
                let group = text(&attributes["group"]);
                let (namespace, name) = (
                    attributes["namespace"].as_str(),
                    attributes["name"].as_str(),
                );
                let (verb, what) = if asked["resourceAttributes"].is_object() {
                    let attributes = &asked["resourceAttributes"];
                    let part = text(&attributes["subresource"]);
                    let what = match part.as_str() {
                        "" => text(&attributes["resource"]),
                        part => format!("{}/{part}", text(&attributes["resource"])),
                    };
                    (text(&attributes["verb"]), what)
                } else {
                    let attributes = &asked["nonResourceAttributes"];
                    (text(&attributes["verb"]), text(&attributes["path"]))
                };
                let right = Right {
                    verb: &verb,
                    group: &group,
                    resource: &what,
                    namespace,
                    name,
                };
                json!({ "allowed": self.allows(&user, &right) })
            }
            other => return Err(Unknown(other.to_owned()).into()),
        };
        body["status"] = status;
        Ok(body)
    }
}
