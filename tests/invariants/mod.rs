//! The invariants of HAZARDS, I1 to I8, read off the API server's audit log: what replicas wrote, ordered by
//! resourceVersion, against who held the Lease. What it takes: a user of its own for each replica, and the bodies of
//! writes to Leases, Deployments and Foos in the log.
//!
//! - I1 a write to a Deployment or a Foo's status lands while its sender holds the Lease
//! - I2 no write is sent after its sender's deadline
//! - I3 a Foo that stays put has a Deployment that matches it, in the end
//! - I4 a Deployment that we control names its Foo's UID
//! - I5 objects that no Foo controls get no write
//! - I6 when nothing changes, nothing is written but the Lease (a question of its own: [`Rules::writes_between`])
//! - I7 the generation recorded on a Deployment never goes back
//! - I8 every Lease write is conditional, and `leaseTransitions` counts the acquisitions
#![allow(dead_code, reason = "each test file uses its part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it examined"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::cluster::AuditEvent;

const GENERATION: &str = "samplecontroller.k8s.io/foo-generation";

/// What the log is read by.
pub struct Rules<'a> {
    /// The Lease's namespace and name.
    pub lease: (&'a str, &'a str),
    /// The users that the replicas come as, one each.
    pub replicas: &'a [&'a str],
    /// The renew deadline that they run with.
    pub renew_deadline: Duration,
}

/// What a log shows.
#[derive(Debug, Default)]
pub struct Report {
    /// The replicas' writes to Deployments and Foos, refused ones included.
    pub writes: usize,
    /// The replicas' writes to the Lease.
    pub renewals: usize,
    /// How often the Lease was acquired.
    pub acquisitions: usize,
    /// What must not be, each with its invariant's name.
    pub violations: Vec<String>,
}

impl Report {
    /// Says what was examined, and panics if anything was wrong with it.
    pub fn assert_clean(&self, run: &str) {
        let Self {
            writes,
            renewals,
            acquisitions,
            violations,
        } = self;
        println!(
            "{run}: {writes} writes under {acquisitions} acquisitions, {renewals} Lease writes, {} violations",
            violations.len()
        );
        assert!(violations.is_empty(), "{run}:\n{}", violations.join("\n"));
    }
}

/// One version of an object, as the answer to the write that made it shows it.
struct Version<'a> {
    at: u64,
    event: &'a AuditEvent,
    object: &'a Value,
}

impl Rules<'_> {
    /// Checks everything but I6.
    pub fn check(&self, log: &[AuditEvent]) -> Report {
        let leases = versions(log.iter().filter(|event| self.is_lease(event)));
        let leases = leases.into_values().next().unwrap_or_default();
        let deployments = versions(log.iter().filter(|event| event.resource == "deployments"));
        let foos = versions(log.iter().filter(|event| event.resource == "foos"));
        let mut report = Report {
            writes: log.iter().filter(|event| self.is_work(event)).count(),
            renewals: log
                .iter()
                .filter(|event| self.is_lease(event) && self.is_replica(event) && is_write(event))
                .count(),
            ..Report::default()
        };
        self.i1(&leases, &deployments, &foos, &mut report);
        self.i2(log, &mut report);
        i3(log, &deployments, &foos, &mut report);
        self.i4_i5_i7(log, &deployments, &foos, &mut report);
        self.i8(log, &leases, &mut report);
        report
    }

    /// I6: the replicas' writes between two instants that are not to the Lease; there should be none while nothing
    /// changes.
    pub fn writes_between(
        &self,
        log: &[AuditEvent],
        from: Timestamp,
        to: Timestamp,
    ) -> Vec<String> {
        let within = |event: &&AuditEvent| (from..to).contains(&event.received.0);
        let writes = log
            .iter()
            .filter(|event| self.is_replica(event) && is_write(event) && !self.is_lease(event));
        writes.filter(within).map(describe).collect()
    }

    fn is_replica(&self, event: &AuditEvent) -> bool {
        self.replicas.contains(&event.user.as_str())
    }

    fn is_lease(&self, event: &AuditEvent) -> bool {
        event.resource == "leases" && (event.namespace.as_str(), name(event)) == self.lease
    }

    /// A write of a replica that takes the Lease.
    fn is_work(&self, event: &AuditEvent) -> bool {
        self.is_replica(event)
            && is_write(event)
            && matches!(event.resource.as_str(), "deployments" | "foos")
    }

    fn i1(&self, leases: &[Version], deployments: &Objects, foos: &Objects, report: &mut Report) {
        let mut users: BTreeMap<&str, &str> = BTreeMap::new();
        for lease in leases.iter().filter(|lease| self.is_replica(lease.event)) {
            let holder = holder(lease.object);
            let user = users.entry(holder).or_insert(&lease.event.user);
            if !holder.is_empty() && *user != lease.event.user {
                report.violations.push(format!(
                    "I1 {holder} is the identity of {user} and of {}",
                    lease.event.user
                ));
            }
        }
        for write in deployments
            .values()
            .chain(foos.values())
            .flatten()
            .filter(|write| self.is_work(write.event))
        {
            let lease = leases.iter().take_while(|lease| lease.at < write.at).last();
            let holder = lease.map_or("", |lease| holder(lease.object));
            if holder.is_empty() || users.get(holder) != Some(&write.event.user.as_str()) {
                report.violations.push(format!(
                    "I1 {} landed while {holder:?} held the Lease",
                    describe(write.event)
                ));
            }
        }
    }

    fn i2(&self, log: &[AuditEvent], report: &mut Report) {
        for write in log.iter().filter(|event| self.is_work(event)) {
            let renewals = log
                .iter()
                .filter(|event| self.is_lease(event) && event.user == write.user && is_done(event));
            let renewed = renewals
                .map(|event| event.received.0)
                .filter(|at| *at <= write.received.0)
                .max();
            if renewed.is_none_or(|at| write.received.0 > at + self.renew_deadline) {
                report.violations.push(format!(
                    "I2 {} came after its sender's deadline",
                    describe(write)
                ));
            }
        }
    }

    fn i4_i5_i7(
        &self,
        log: &[AuditEvent],
        deployments: &Objects,
        foos: &Objects,
        report: &mut Report,
    ) {
        for ((namespace, name), history) in deployments {
            let mut before: Option<&Version> = None;
            for version in history {
                let gone = |before: &&Version| deleted_between(log, before.event, version.event);
                let last = before.replace(version).filter(|before| !gone(before));
                if let Some(last) = last
                    && generation(version.object) < generation(last.object)
                {
                    report.violations.push(format!(
                        "I7 {} takes the generation back",
                        describe(version.event)
                    ));
                }
                if !self.is_replica(version.event) {
                    continue;
                }
                if last.is_some_and(|last| controller(last.object).is_none()) {
                    report.violations.push(format!(
                        "I5 {} is to what no Foo controls",
                        describe(version.event)
                    ));
                }
                let owner = controller(version.object);
                let named = |owner: &Value| {
                    let key = (
                        namespace.clone(),
                        owner["name"].as_str().unwrap_or_default().to_owned(),
                    );
                    foos.get(&key).is_some_and(|foo| {
                        foo.iter()
                            .any(|foo| foo.object["metadata"]["uid"] == owner["uid"])
                    })
                };
                if !owner.is_some_and(named) {
                    report.violations.push(format!(
                        "I4 {} names no Foo's UID on {name}",
                        describe(version.event)
                    ));
                }
            }
            for delete in deletions(log, "deployments", namespace, name)
                .filter(|event| self.is_replica(event))
            {
                let last = history
                    .iter()
                    .rfind(|version| version.event.received.0 < delete.received.0);
                if last.is_none_or(|last| controller(last.object).is_none()) {
                    report.violations.push(format!(
                        "I5 {} is of what no Foo controls",
                        describe(delete)
                    ));
                }
            }
        }
    }

    fn i8(&self, log: &[AuditEvent], leases: &[Version], report: &mut Report) {
        for write in log
            .iter()
            .filter(|event| self.is_replica(event) && self.is_lease(event))
        {
            let conditional = write.request_object["metadata"]["resourceVersion"].is_string();
            if matches!(write.verb.as_str(), "patch" | "update") && !conditional {
                report
                    .violations
                    .push(format!("I8 {} carries no resourceVersion", describe(write)));
            }
        }
        let mut before = None;
        for lease in leases {
            let last = before.replace(lease).map(|last: &Version| last.object);
            let last =
                last.filter(|last| last["metadata"]["uid"] == lease.object["metadata"]["uid"]);
            let acquired =
                !holder(lease.object).is_empty() && last.map(holder) != Some(holder(lease.object));
            report.acquisitions += usize::from(acquired);
            let (Some(last), true) = (last, self.is_replica(lease.event)) else {
                continue;
            };
            if transitions(lease.object) - transitions(last) != i64::from(acquired) {
                report.violations.push(format!(
                    "I8 {} counts its transitions wrong",
                    describe(lease.event)
                ));
            }
        }
    }
}

fn i3(log: &[AuditEvent], deployments: &Objects, foos: &Objects, report: &mut Report) {
    let last = |objects: &Objects, resource: &str, key: &(String, String)| {
        let last = objects.get(key)?.last()?;
        let gone = deletions(log, resource, &key.0, &key.1)
            .any(|delete| delete.received.0 > last.event.received.0);
        (!gone).then_some(last.object.clone())
    };
    for key in foos.keys() {
        let Some(foo) =
            last(foos, "foos", key).filter(|foo| foo["metadata"]["deletionTimestamp"].is_null())
        else {
            continue;
        };
        let wanted = foo["spec"]["deploymentName"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if wanted.is_empty() {
            continue;
        }
        let deployment = last(deployments, "deployments", &(key.0.clone(), wanted.clone()));
        let wrong = match &deployment {
            None => true,
            // Another's: left alone (R4).
            Some(deployment)
                if controller(deployment)
                    .is_none_or(|owner| owner["uid"] != foo["metadata"]["uid"]) =>
            {
                false
            }
            Some(deployment) => {
                let replicas = &foo["spec"]["replicas"];
                !replicas.is_null() && *replicas != deployment["spec"]["replicas"]
            }
        };
        if wrong {
            report.violations.push(format!(
                "I3 Foo {}/{} has no Deployment {wanted} that matches it",
                key.0, key.1
            ));
        }
    }
}

type Objects<'a> = BTreeMap<(String, String), Vec<Version<'a>>>;

/// The versions of each object in the order in which they were made; a write that changed nothing made none.
fn versions<'a>(log: impl Iterator<Item = &'a AuditEvent>) -> Objects<'a> {
    let mut objects = Objects::new();
    let mut writes: Vec<_> = log
        .filter(|event| is_done(event) && event.verb != "delete")
        .collect();
    writes.sort_by_key(|event| event.received.0);
    let mut seen = BTreeSet::new();
    for event in writes {
        let version = event.response_object["metadata"]["resourceVersion"]
            .as_str()
            .and_then(|version| version.parse().ok());
        if let Some(at) = version
            && seen.insert((event.resource.as_str(), at))
        {
            let key = (event.namespace.clone(), name(event).to_owned());
            objects.entry(key).or_default().push(Version {
                at,
                event,
                object: &event.response_object,
            });
        }
    }
    for history in objects.values_mut() {
        history.sort_by_key(|version| version.at);
    }
    objects
}

fn deletions<'a>(
    log: &'a [AuditEvent],
    resource: &str,
    namespace: &str,
    of: &str,
) -> impl Iterator<Item = &'a AuditEvent> {
    log.iter().filter(move |event| {
        event.verb == "delete"
            && is_done(event)
            && event.resource == resource
            && event.namespace == namespace
            && event.name == of
    })
}

fn deleted_between(log: &[AuditEvent], first: &AuditEvent, second: &AuditEvent) -> bool {
    let between = |event: &AuditEvent| {
        first.received.0 < event.received.0 && event.received.0 <= second.received.0
    };
    deletions(log, &first.resource, &first.namespace, name(first)).any(between)
}

fn is_write(event: &AuditEvent) -> bool {
    matches!(
        event.verb.as_str(),
        "create" | "update" | "patch" | "delete" | "deletecollection"
    )
}

fn is_done(event: &AuditEvent) -> bool {
    is_write(event) && (200..300).contains(&event.code)
}

/// The log leaves the name of what is created to the answer.
fn name(event: &AuditEvent) -> &str {
    let named = [&event.response_object, &event.request_object]
        .map(|object| object["metadata"]["name"].as_str());
    if event.name.is_empty() {
        named.into_iter().flatten().next().unwrap_or_default()
    } else {
        &event.name
    }
}

fn describe(event: &AuditEvent) -> String {
    let version = &event.response_object["metadata"]["resourceVersion"];
    let kind = [event.resource.as_str(), event.subresource.as_str()].join("/");
    format!(
        "the {} of {} {}/{} by {} at {} (answer {}, resourceVersion {version})",
        event.verb,
        kind.trim_end_matches('/'),
        event.namespace,
        name(event),
        event.user,
        event.received.0,
        event.code
    )
}

fn holder(lease: &Value) -> &str {
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default()
}

fn transitions(lease: &Value) -> i64 {
    lease["spec"]["leaseTransitions"]
        .as_i64()
        .unwrap_or_default()
}

fn generation(deployment: &Value) -> i64 {
    let annotation = deployment["metadata"]["annotations"][GENERATION].as_str();
    annotation
        .and_then(|generation| generation.parse().ok())
        .unwrap_or_default()
}

/// The ownerReference to the Foo that controls this.
fn controller(object: &Value) -> Option<&Value> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners
        .iter()
        .find(|owner| owner["controller"] == true && owner["kind"] == "Foo")
}
