//! Admission policies and webhooks of other parties.

use serde_json::{Value, json};

use super::{
    Key, Kind, Now, Server, Store,
    policy::{Operation, denied},
    request::{Part, Request},
    status::{Refusal, Result},
};

/// A policy of another party. It does not reject requests of the cluster's own controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// Prefixes the images of Deployments with a mirror.
    Mirror,
    /// Limits Deployments to two replicas.
    FewReplicas,
    /// Replaces the label `app` of Deployments.
    Label,
    /// Adds an unrelated label to Deployments.
    OneMoreLabel,
    /// Replaces the messages of the conditions of custom resources.
    Message,
    /// Rejects the creation and change of Deployments.
    NoChange,
    /// Rejects the deletion of Deployments.
    NoDeletion,
    /// Rejects changes of the status of custom resources.
    NoStatus,
    /// A webhook that is too busy to admit a creation or change of Deployments, and sends `Retry-After`.
    Busy,
    /// A webhook that rejects the creation and change of Deployments, each time with another message.
    Tickets,
    /// A webhook that appends a condition to each written status of a custom resource, each time with another message.
    Reviewed,
}

impl Others {
    pub const MIRROR: &str = "mirror.example/";
    pub const FEW: i64 = 2;
    pub const APP: &str = "another-app";
    pub const TEAM: &str = "team";
    /// `Retry-After`, in seconds.
    const LATER: u64 = 2;

    pub const ALL: [Self; 11] = [
        Self::Mirror,
        Self::FewReplicas,
        Self::Label,
        Self::OneMoreLabel,
        Self::Message,
        Self::NoChange,
        Self::NoDeletion,
        Self::NoStatus,
        Self::Busy,
        Self::Tickets,
        Self::Reviewed,
    ];

    fn key(self) -> Key {
        let (kind, name) = match self {
            Self::Mirror => (Kind::MutatingAdmissionPolicy, "mirror"),
            Self::FewReplicas => (Kind::MutatingAdmissionPolicy, "few-replicas"),
            Self::Label => (Kind::MutatingAdmissionPolicy, "label"),
            Self::OneMoreLabel => (Kind::MutatingAdmissionPolicy, "one-more-label"),
            Self::Message => (Kind::MutatingAdmissionPolicy, "message"),
            Self::NoChange => (Kind::ValidatingAdmissionPolicy, "no-change"),
            Self::NoDeletion => (Kind::ValidatingAdmissionPolicy, "no-deletion"),
            Self::NoStatus => (Kind::ValidatingAdmissionPolicy, "no-status"),
            Self::Busy => (Kind::ValidatingAdmissionPolicy, "busy"),
            Self::Tickets => (Kind::ValidatingAdmissionPolicy, "tickets"),
            Self::Reviewed => (Kind::MutatingAdmissionPolicy, "reviewed"),
        };
        Key::new(kind, "", name)
    }

    /// Mutates an object like this policy. `look` is different each time.
    fn apply(self, object: &mut Value, look: u64) {
        let spec = &mut object["spec"];
        match self {
            Self::Mirror => {
                let containers = spec["template"]["spec"]["containers"].as_array_mut();
                for container in containers.into_iter().flatten() {
                    let image = container["image"].as_str().unwrap_or_default();
                    if !image.starts_with(Self::MIRROR) {
                        container["image"] = format!("{}{image}", Self::MIRROR).into();
                    }
                }
            }
            Self::FewReplicas => {
                if spec["replicas"].as_i64() > Some(Self::FEW) {
                    spec["replicas"] = Self::FEW.into();
                }
            }
            Self::Label => object["metadata"]["labels"]["app"] = Self::APP.into(),
            Self::OneMoreLabel => object["metadata"]["labels"][Self::TEAM] = "one".into(),
            Self::Message => {
                let conditions = object["status"]["conditions"].as_array_mut();
                for condition in conditions.into_iter().flatten() {
                    condition["message"] = "see the wiki".into();
                }
            }
            Self::Reviewed => {
                let conditions = object["status"]["conditions"].as_array_mut();
                if let Some(conditions) = conditions.filter(|others| !others.is_empty()) {
                    conditions.retain(|other| other["type"] != "Reviewed");
                    let mut reviewed = conditions[0].clone();
                    reviewed["type"] = "Reviewed".into();
                    reviewed["message"] = format!("look {look}").into();
                    conditions.push(reviewed);
                }
            }
            Self::NoChange | Self::NoDeletion | Self::NoStatus | Self::Busy | Self::Tickets => {}
        }
    }
}

impl Store {
    /// Installs or removes a policy of another party.
    pub fn set_policy(&mut self, now: Now, policy: Others, is_there: bool) {
        let key = policy.key();
        if self.get(&key).is_some() != is_there {
            self.put(now, "security", &key, is_there.then(|| json!({})));
        }
    }
}

impl Server {
    /// Mutates an object before it is stored, by the policies of others that this API server has seen.
    pub(super) fn mutate(&self, store: &Store, about: &Key, part: Part, object: &mut Value) {
        if !about.kind.has_status() {
            return;
        }
        for policy in Others::ALL {
            let is_about = match policy {
                Others::Message | Others::Reviewed => {
                    about.kind.is_custom() && part == Part::Status
                }
                _ => about.kind == Kind::Deployment && part == Part::Whole,
            };
            if is_about && store.get_at(&policy.key(), self.seen_last()).is_some() {
                policy.apply(object, store.version());
            }
        }
    }

    /// Fails if a policy of others rejects the write.
    pub(super) fn others_admit(
        &self,
        store: &Store,
        request: &Request<'_>,
        about: &Key,
        (operation, part): (Operation, Part),
    ) -> Result<()> {
        if request.call.user.name.contains(":kube-system:") {
            return Ok(());
        }
        let is_there = |policy: Others| store.get_at(&policy.key(), self.seen_last()).is_some();
        let (policy, code) = match (about.kind, part, operation) {
            (Kind::Deployment, Part::Whole, Operation::Delete) => (Others::NoDeletion, 422),
            (Kind::Deployment, Part::Whole, _) if is_there(Others::Busy) => {
                let words = "admission webhook \"busy.example\" denied the request: not now";
                return Err(Refusal::too_many_requests(words, Others::LATER));
            }
            (Kind::Deployment, Part::Whole, _) if is_there(Others::Tickets) => {
                let ticket = store.version();
                let words = format!(
                    "admission webhook \"tickets.example\" denied the request: see ticket {ticket}"
                );
                return Err(Refusal::forbidden(about.kind, &about.name, &words));
            }
            (Kind::Deployment, Part::Whole, _) => (Others::NoChange, 403),
            (Kind::Custom(_), Part::Status, _) => (Others::NoStatus, 422),
            _ => return Ok(()),
        };
        if !is_there(policy) {
            return Ok(());
        }
        Err(denied(about, &policy.key().name, "not this week", code))
    }
}
