//! Judges the audit log of two installations: each write is by the installation of its object.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;
use operator_testkit::cluster::AuditEvent;
use serde_json::Value;

/// Longest time after the response to a change of the label in which the former installation may still write a dependent: the
/// delay of its watch on a busy machine, and a request that it had begun.
const GRACE: Duration = Duration::from_secs(2);

/// The log of the installations, and the rules for it.
pub struct Judge<'a> {
    pub log: &'a [AuditEvent],
    /// The label that names the installation.
    pub label: &'a str,
    /// The installation of each user.
    pub users: BTreeMap<&'a str, &'a str>,
    pub namespace: &'a str,
}

/// Number of judged writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Judged {
    pub right: usize,
    /// By the former installation, within [`GRACE`].
    pub in_flight: usize,
}

/// A value of the label, since the request that set it. It holds at least until the request for the next value, and at most until
/// the response to that.
struct Held {
    value: String,
    since: Timestamp,
    until: Timestamp,
}

impl<'a> Judge<'a> {
    /// Returns the successful writes of this resource, such as `foos/status`.
    fn writes(&self, resource: &'a str) -> impl Iterator<Item = &'a AuditEvent> + use<'a> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let namespace = self.namespace.to_owned();
        self.log.iter().filter(move |event| {
            event.resource == resource
                && event.subresource == subresource
                && event.namespace == namespace
                && ["create", "update", "patch"].contains(&&*event.verb)
                && event.is_success()
        })
    }

    fn value_of(&self, object: &Value) -> String {
        let value = object["metadata"]["labels"][self.label].as_str();
        value.unwrap_or_default().to_owned()
    }

    /// Checks that no installation has written the status of an object with the label of another one: without exceptions, because
    /// the version of the object is the precondition of the write. Returns the number of writes by each user.
    pub fn statuses(&self, resource: &'a str) -> BTreeMap<&'a str, usize> {
        let mut written = BTreeMap::new();
        for event in self.writes(resource) {
            let Some((user, installation)) = self.users.get_key_value(&*event.user) else {
                continue;
            };
            let value = self.value_of(&event.response_object);
            let name = &event.name;
            assert_eq!(value, **installation, "{user} wrote the status of {name}");
            *written.entry(*user).or_default() += 1;
        }
        written
    }

    /// Returns the values that the label of each object of this resource has had.
    fn values(&self, resource: &'a str) -> BTreeMap<String, Vec<Held>> {
        let mut values: BTreeMap<String, Vec<Held>> = BTreeMap::new();
        let mut events: Vec<_> = self.writes(resource).collect();
        // The log is in the order of the responses.
        events.sort_by_key(|event| version(event));
        for event in events {
            let value = self.value_of(&event.response_object);
            let name = event.response_object["metadata"]["name"].as_str();
            let values = values.entry(name.unwrap().to_owned()).or_default();
            if values.last().is_some_and(|last| last.value == value) {
                continue;
            }
            if let Some(last) = values.last_mut() {
                last.until = event.reached.0;
            }
            values.push(Held {
                value,
                since: event.received.0,
                until: Timestamp::MAX,
            });
        }
        values
    }

    /// Checks that each object of this resource was written by the installation of its owner, or within [`GRACE`] by the former
    /// one. Returns the number of writes by each user.
    pub fn dependents(&self, resource: &'a str, owners: &'a str) -> BTreeMap<&'a str, Judged> {
        let values = self.values(owners);
        let mut written: BTreeMap<_, Judged> = BTreeMap::new();
        for event in self.writes(resource) {
            let Some((user, installation)) = self.users.get_key_value(&*event.user) else {
                continue;
            };
            let references = event.response_object["metadata"]["ownerReferences"].as_array();
            let mut references = references.unwrap().iter();
            let owner = references.find(|it| it["controller"] == true).unwrap();
            let owner = owner["name"].as_str().unwrap();
            let time = event.received.0;
            let own = values[owner].iter().filter(|it| it.value == **installation);
            let judged = written.entry(*user).or_default();
            if own.clone().any(|it| it.since <= time && time <= it.until) {
                judged.right += 1;
            } else if own.clone().any(|it| {
                it.since <= time && time.duration_since(it.until) <= GRACE.try_into().unwrap()
            }) {
                judged.in_flight += 1;
            } else {
                panic!("{user} wrote {resource} of {owner}, of another installation: {event:?}");
            }
        }
        written
    }

    /// Returns the requests of the installations between these times, except for their Leases and watches.
    pub fn requests(&self, (from, to): (Timestamp, Timestamp)) -> Vec<String> {
        let ours = self.log.iter().filter(|event| {
            self.users.contains_key(&*event.user)
                && (from..to).contains(&event.received.0)
                && event.resource != "leases"
                && event.verb != "watch"
        });
        ours.map(|event| format!("{} {} {}", event.user, event.verb, event.uri))
            .collect()
    }
}

fn version(event: &AuditEvent) -> u64 {
    let version = event.response_object["metadata"]["resourceVersion"].as_str();
    version.unwrap().parse().unwrap()
}
