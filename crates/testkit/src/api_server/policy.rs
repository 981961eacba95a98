//! The policy of a fencing component, if one is installed.

use serde_json::{Value, json};

use super::{
    Key, Kind, Now, Server, Store,
    request::{Part, Request},
    status::{Refusal, Result},
};

/// Names of a fencing component: a policy that rejects the writes of replicas that do not lead.
#[derive(Clone, Copy, Debug)]
pub struct Fencing {
    /// Name of the policy and of its binding.
    pub policy: &'static str,
    /// User whose writes the policy checks.
    pub user: &'static str,
    /// Namespace and name of the fencing record, a `ServiceAccount`.
    pub record: (&'static str, &'static str),
    /// Annotation of the record with the holder of the Lease.
    pub holder: &'static str,
}

impl Fencing {
    fn key(&self) -> Key {
        Key::new(Kind::ValidatingAdmissionPolicy, "", self.policy)
    }

    /// Returns the key of the fencing record.
    #[must_use]
    pub fn record_key(&self) -> Key {
        Key::new(Kind::ServiceAccount, self.record.0, self.record.1)
    }
}

/// Operation of an admission request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

impl Store {
    /// Installs a fencing component. A store has one at most.
    pub fn install_fencing(&mut self, now: Now, fencing: Fencing) {
        self.fencing = Some(fencing);
        let (namespace, name) = fencing.record;
        if self.get(&fencing.record_key()).is_none() {
            let record = json!({
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {
                    "name": name, "namespace": namespace, "uid": self.new_uid(), "creationTimestamp": now.seconds(),
                },
                "automountServiceAccountToken": false,
            });
            self.put(now, "admin", &fencing.record_key(), Some(record));
        }
        self.put(now, "admin", &fencing.key(), Some(json!({})));
    }

    /// Removes the fencing component.
    pub fn remove_fencing(&mut self, now: Now) {
        self.remove_fencing_part(now, true);
        self.remove_fencing_part(now, false);
    }

    /// Removes the record, or the policy and its binding.
    pub fn remove_fencing_part(&mut self, now: Now, record: bool) {
        let Some(fencing) = self.fencing else { return };
        let key = if record {
            fencing.record_key()
        } else {
            fencing.key()
        };
        if self.get(&key).is_some() {
            self.put(now, "admin", &key, None);
        }
    }
}

impl Server {
    /// Fails if a policy that this API server has seen rejects the write.
    pub(super) fn admit(
        &self,
        store: &Store,
        request: &Request<'_>,
        about: &Key,
        (operation, part): (Operation, Part),
        (new, old): (Option<&Value>, Option<&Value>),
    ) -> Result<()> {
        self.others_admit(store, request, about, (operation, part))?;
        let matched = match about.kind {
            Kind::Custom(_) => part == Part::Status && operation == Operation::Update,
            Kind::Deployment => part == Part::Whole,
            _ => false,
        };
        let Some(fencing) = store.fencing.filter(|_| matched) else {
            return Ok(());
        };
        if request.call.user.name != fencing.user {
            return Ok(());
        }
        let seen = self.seen_last();
        if store.get_at(&fencing.key(), seen).is_none() {
            return Ok(());
        }
        let Some(record) = store.get_at(&fencing.record_key(), seen) else {
            return Ok(());
        };
        let is_owned = [new, old]
            .into_iter()
            .flatten()
            .any(|it| belongs(store, it));
        if !about.kind.is_custom() && !is_owned {
            return Ok(());
        }
        let holder = record["metadata"]["annotations"][fencing.holder]
            .as_str()
            .unwrap_or_default();
        let words = match request.call.user.pod {
            None | Some(("", _) | (_, "")) => {
                "the caller's token is not bound to a pod, so its leadership cannot be checked"
                    .to_owned()
            }
            Some((pod, uid)) => {
                let caller = identity(pod, uid);
                if caller == holder {
                    return Ok(());
                }
                let who = match holder {
                    "" => ": none".to_owned(),
                    holder => format!(": \"{holder}\""),
                };
                let (namespace, name) = fencing.record;
                format!(
                    "\"{caller}\" is not the leader named by serviceaccount/{name} in {namespace}{who}"
                )
            }
        };
        Err(denied(about, fencing.policy, &words, 403))
    }
}

/// Returns the error of a policy: invalid (422, the default) or forbidden.
pub(super) fn denied(about: &Key, policy: &str, words: &str, code: u16) -> Refusal {
    let why = format!(
        "ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {words}"
    );
    let mut refusal = Refusal::forbidden(about.kind, &about.name, &why);
    if let Refusal::Status(status) = &mut refusal {
        status["details"]["causes"] = json!([{ "message": why }]);
        status["code"] = code.into();
        if code == 422 {
            status["reason"] = "Invalid".into();
        }
    }
    refusal
}

/// Returns whether a custom resource controls the object.
fn belongs(store: &Store, object: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten();
    owners.into_iter().any(|owner| {
        let api_version = owner["apiVersion"].as_str().unwrap_or_default();
        owner["controller"] == true
            && store.custom_kinds().iter().any(|kind| {
                let info = kind.info();
                owner["kind"] == info.kind
                    && api_version
                        .strip_prefix(info.group)
                        .is_some_and(|version| version.starts_with('/'))
            })
    })
}

/// Returns the controller's identity, with the pod's name truncated to fit into 128 bytes.
fn identity(pod: &str, uid: &str) -> String {
    let room = 127_usize.saturating_sub(uid.len());
    let pod = if pod.len() + 1 + uid.len() > 128 {
        &pod[..room.min(pod.len())]
    } else {
        pod
    };
    format!("{pod}_{uid}")
}
