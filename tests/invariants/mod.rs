//! The invariants I1 to I8, judged by the API server's audit log: `mod invariants;` beside `mod cluster;`, with
//! [`Options::audit`](crate::cluster::Options::audit) on from the beginning.
//!
//! All objects are in one etcd, so that resourceVersions order the writes to all of them: who held the Lease when a
//! Deployment was written is no matter of clocks. Every replica has a user of its own and stands as `USER_…`, so that the
//! writer and the Lease's holder can be compared.
//!
//! What the log does not show is counted, not judged: a write whose answer failed may have been made ([`Report::unknown`]),
//! and of a request there is the time at which it arrived, not the one at which it was sent. So I2 grants each request
//! [`ON_ITS_WAY`], and cannot be judged where something holds requests back for longer.
#![allow(dead_code, reason = "each test file uses its part of this")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    time::Duration,
};

use foo_controller::api::Foo;
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentSpec},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
    jiff::Timestamp,
};
use kube::ResourceExt as _;
use serde_json::Value;

use crate::cluster::AuditEvent;

/// What carries the generation that I7 is about.
pub const GENERATION: &str = "samplecontroller.k8s.io/foo-generation";
/// The annotation that says whose generation it is: not comparable with another Foo's.
pub const MADE_FOR: &str = "samplecontroller.k8s.io/made-for";

/// How long after the deadline a write may arrive that was sent before: the machine may be busy.
pub const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// What the leader writes its identity into, of the Lease's fencing record (`deploy/components/fencing`).
pub const FENCING_HOLDER: &str = "samplecontroller.k8s.io/lease-holder";

/// What the replicas work on, and may write.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The kind that is reconciled, and its resource.
    pub kind: &'static str,
    pub primary: &'static str,
    /// The resources of what it controls.
    pub owned: &'static [&'static str],
    /// Whether its status is written.
    pub status: bool,
    /// Whether its finalizers are written, and nothing else of the objects themselves.
    pub finalizers: bool,
    /// What the leader writes its identity into.
    pub fencing_holder: &'static str,
}

/// A Foo's.
pub const FOO: Work = Work {
    kind: "Foo",
    primary: "foos",
    owned: &["deployments"],
    status: true,
    finalizers: false,
    fencing_holder: FENCING_HOLDER,
};

/// The holder where nobody can know: somebody has written the Lease, and the answer was lost.
const UNKNOWN: &str = "?";

/// Whose log it is.
#[derive(Clone, Debug)]
pub struct Election {
    /// The replicas' users.
    pub users: BTreeSet<String>,
    /// The Lease's name.
    pub lease: String,
    /// How long a leader works on without renewing.
    pub renew_deadline: Duration,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// A line for each violation, which begins with its invariant.
    pub violations: Vec<String>,
    /// Writes of replicas to Deployments and to the status of Foos that were made.
    pub writes: usize,
    /// Such writes that the API server refused: conflicts, for the most part.
    pub refused: usize,
    /// Such writes that may have been made or not (a 5xx, or no answer), and so are not judged by I1; and those that were
    /// made while it is not known who held the Lease, as deletions beside a change of the holder.
    pub unknown: usize,
    /// Writes by the leader, by its deadline, after somebody deleted its Lease, and while the next one was nobody's (H12).
    pub lease_deleted: usize,
    /// Writes of the Lease that were made.
    pub lease_writes: usize,
    /// How many times the Lease got a holder.
    pub terms: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} writes ({} refused, {} unknown, {} after the Lease was deleted), {} Lease writes, {} terms: {} violations",
            self.writes,
            self.refused,
            self.unknown,
            self.lease_deleted,
            self.lease_writes,
            self.terms,
            self.violations.len()
        )?;
        self.violations
            .iter()
            .try_for_each(|line| write!(f, "\n  {line}"))
    }
}

/// One write of the Lease that was made.
struct LeaseWrite {
    version: u64,
    uid: String,
    /// An identity; empty where it was released.
    holder: String,
    /// `None` where it is not known.
    transitions: Option<i64>,
    by: String,
    /// When its request came, and when it was answered: it was made in between.
    received: Timestamp,
    reached: Timestamp,
    /// When the replica had last read the Lease before: its term's deadline counts from before that.
    read: Timestamp,
}

/// Judges a whole log by I1, I2, I4, I5, I7 and I8, and by I6 the times in which, as `quiet` says, nothing changed.
pub fn check(log: &[AuditEvent], election: &Election, quiet: &[(Timestamp, Timestamp)]) -> Report {
    check_of(&FOO, log, election, quiet)
}

/// The same, of other controllers than Foo's.
pub fn check_of(
    of: &Work,
    log: &[AuditEvent],
    election: &Election,
    quiet: &[(Timestamp, Timestamp)],
) -> Report {
    let mut report = Report::default();
    let ours: Vec<&AuditEvent> = log
        .iter()
        .filter(|event| is_write(event) && election.users.contains(&event.user))
        .collect();
    let leases = i8_lease(log, election, &mut report);
    let work: Vec<&AuditEvent> = ours
        .iter()
        .copied()
        .filter(|event| of.includes(event))
        .collect();
    for event in &work {
        match event.code {
            200..300 => report.writes += 1,
            400..500 => report.refused += 1,
            _ => report.unknown += 1,
        }
    }
    i1_holder(&work, &leases, election, &mut report);
    i2_deadline(&work, &leases, election, &mut report);
    i4_i5_owner(of, log, &ours, &election.lease, &mut report);
    for event in ours.iter().filter(|event| event.resource != "leases") {
        let at = event.received.0;
        if quiet.iter().any(|(from, to)| (*from..*to).contains(&at)) {
            report.violate("I6", event, "where nothing had changed");
        }
    }
    i7_generation(log, &mut report);
    report
}

/// I3: what is wrong with each Foo whose Deployment, or whose status, is not what its spec and the configured image say.
pub fn unsettled(foos: &[Foo], deployments: &[Deployment], image: &str) -> Vec<String> {
    let key = |namespace: Option<String>, name: &str| (namespace, name.to_owned());
    let by_name: BTreeMap<_, _> = deployments
        .iter()
        .map(|deployment| {
            (
                key(deployment.namespace(), &deployment.name_any()),
                deployment,
            )
        })
        .collect();
    let wrong = |foo: &Foo| {
        let Some(deployment) = by_name.get(&key(foo.namespace(), &foo.spec.deployment_name)) else {
            return Some("has no Deployment");
        };
        let spec = deployment.spec.as_ref().unwrap();
        let observed = foo
            .status
            .as_ref()
            .and_then(|status| status.observed_generation);
        if controller(deployment.owner_references())
            .is_none_or(|o| Some(&o.uid) != foo.uid().as_ref())
        {
            Some("does not control its Deployment")
        } else if foo.spec.replicas.is_some() && spec.replicas != foo.spec.replicas {
            Some("has another number of replicas")
        } else if images(spec) != [Some(image)] {
            Some("has another image")
        } else if !has_labels(deployment, &foo.name_any()) {
            Some("has other labels")
        } else if observed != foo.metadata.generation {
            Some("has a status of before")
        } else {
            None
        }
    };
    foos.iter()
        .filter_map(|foo| Some(format!("I3 {} {}", foo.name_any(), wrong(foo)?)))
        .collect()
}

/// The images of the pods' containers.
fn images(spec: &DeploymentSpec) -> Vec<Option<&str>> {
    let pod = spec.template.spec.iter();
    let containers = pod.flat_map(|pod| &pod.containers);
    containers
        .map(|container| container.image.as_deref())
        .collect()
}

/// Whether the Deployment, its selector and its pods have the labels of row R1.
fn has_labels(deployment: &Deployment, foo: &str) -> bool {
    let spec = deployment.spec.as_ref().unwrap();
    let pods = spec.template.metadata.as_ref();
    let all = [
        deployment.metadata.labels.as_ref(),
        spec.selector.match_labels.as_ref(),
        pods.and_then(|pods| pods.labels.as_ref()),
    ];
    all.into_iter().all(|labels| {
        labels.is_some_and(|labels| {
            let is = |name: &str, value: &str| labels.get(name).is_some_and(|v| v == value);
            is("app", "nginx") && is("controller", foo)
        })
    })
}

/// I1: whoever wrote held the Lease at that resourceVersion. The answer to a deletion names none of its own: of those who held
/// the Lease between its request and its answer, it was one.
fn i1_holder(
    work: &[&AuditEvent],
    leases: &[LeaseWrite],
    election: &Election,
    report: &mut Report,
) {
    for event in work.iter().filter(|event| is_made(event)) {
        let version = version(&event.response_object).filter(|_| !takes_last_finalizer(event));
        let (first, end, when) = if let Some(version) = version {
            let end = leases.partition_point(|lease| lease.version < version);
            (end.checked_sub(1), end, format!("at {version}"))
        } else {
            let before = |lease: &LeaseWrite| lease.reached < event.received.0;
            let begun = |lease: &LeaseWrite| lease.received <= event.reached.0;
            let end = leases.iter().rposition(begun).map_or(0, |last| last + 1);
            (leases.iter().rposition(before), end, "deleting".to_owned())
        };
        let holders = first.unwrap_or(0)..end;
        if holders.is_empty() {
            report.violate("I1", event, "before anybody held the Lease");
            continue;
        }
        let verdicts = holders.map(|now| (now, verdict(event, &leases[..=now], election)));
        let verdicts: Vec<_> = verdicts.collect();
        let all = |expected| verdicts.iter().all(|(_, verdict)| *verdict == expected);
        if all(Verdict::Wrong) {
            let (now, _) = verdicts[0];
            let holder = match &*leases[now].holder {
                "" => "nobody",
                holder => holder,
            };
            report.violate(
                "I1",
                event,
                &format!("{when}, when {holder} held the Lease"),
            );
        } else if all(Verdict::LeaseDeleted) {
            report.lease_deleted += 1;
        } else if first.is_none() || !all(Verdict::Right) {
            report.unknown += 1;
        }
    }
}

/// What I1 makes of a write at one time.
#[derive(Clone, Copy, PartialEq)]
enum Verdict {
    Right,
    Wrong,
    Unknown,
    /// [`Report::lease_deleted`].
    LeaseDeleted,
}

/// What I1 makes of a write when the last of these was the newest write of the Lease.
fn verdict(event: &AuditEvent, leases: &[LeaseWrite], election: &Election) -> Verdict {
    let now = leases.last().unwrap();
    if now.holder == UNKNOWN {
        return Verdict::Unknown;
    }
    if user(&now.holder) == event.user {
        return Verdict::Right;
    }
    let deleted = leases
        .iter()
        .rfind(|lease| lease.uid != now.uid && now.holder.is_empty())
        .filter(|lease| user(&lease.holder) == event.user);
    if deleted.is_some_and(|old| event.received.0 <= election.end(old)) {
        Verdict::LeaseDeleted
    } else {
        Verdict::Wrong
    }
}

/// I2: no write arrives, whatever becomes of it, later than it can when it was sent by the sender's deadline.
fn i2_deadline(
    work: &[&AuditEvent],
    leases: &[LeaseWrite],
    election: &Election,
    report: &mut Report,
) {
    for event in work {
        let sent = event.received.0;
        // Who leads may create a Lease that was deleted, with no holder: that gives nothing back (H12).
        let is_new = |lease: &LeaseWrite| {
            let mut same = leases.iter().filter(|other| other.uid == lease.uid);
            lease.holder.is_empty() && same.all(|other| other.version >= lease.version)
        };
        let own = leases
            .iter()
            .filter(|lease| lease.by == event.user && lease.received <= sent && !is_new(lease));
        match own.max_by_key(|lease| lease.received) {
            Some(last) if user(&last.holder) != event.user => {
                report.violate("I2", event, "after it had released the Lease");
            }
            Some(last) if sent <= election.end(last) => {}
            Some(last) => {
                let late = sent.duration_since(election.end(last));
                report.violate("I2", event, &format!("{late:#} too late"));
            }
            None => report.violate("I2", event, "without having had the Lease"),
        }
    }
}

/// I4: a Deployment that we create names its Foo's UID. I5: what no Foo controls is not written, nor anything that is not
/// ours to write.
fn i4_i5_owner(
    of: &Work,
    log: &[AuditEvent],
    ours: &[&AuditEvent],
    lease: &str,
    report: &mut Report,
) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let made = |resource: &'static str| {
        let its = log.iter().filter(move |event| event.resource == resource);
        its.filter(|event| is_made(event))
            .map(|event| (event.reached.0, &event.response_object["metadata"]))
    };
    let primaries: BTreeSet<_> = made(of.primary)
        .map(|(_, object)| {
            (
                text(&object["namespace"]),
                text(&object["name"]),
                text(&object["uid"]),
            )
        })
        .collect();
    let is_controlled = |namespace: &str, owners: &Value| {
        let owners = serde_json::from_value::<Vec<OwnerReference>>(owners.clone());
        let owners = owners.unwrap_or_default();
        controller(&owners).is_some_and(|owner| {
            let primary = (namespace.to_owned(), owner.name.clone(), owner.uid.clone());
            owner.kind == of.kind && primaries.contains(&primary)
        })
    };
    let owned = of.owned.iter().flat_map(|resource| made(resource));
    // As they were at each time: a restored backup brings back what is gone, and its owners may change then.
    let mut owners = HashMap::<_, Vec<_>>::new();
    for (at, object) in owned {
        let its = owners.entry(text(&object["uid"])).or_default();
        its.push((at, &object["ownerReferences"]));
    }
    for event in ours.iter().filter(|event| is_made(event)) {
        match (&*event.resource, &*event.subresource, &*event.verb) {
            (resource, "", "delete") if of.owned.contains(&resource) => {
                let uid = text(&event.request_object["preconditions"]["uid"]);
                let mut owned = owners.get(&uid).into_iter().flatten().rev();
                let then = owned.find(|(at, _)| *at <= event.reached.0);
                if !then.is_some_and(|(_, owners)| is_controlled(&event.namespace, owners)) {
                    report.violate("I5", event, "which nothing of ours controls");
                }
            }
            (resource, "", verb) if of.owned.contains(&resource) => {
                let owners = &event.response_object["metadata"]["ownerReferences"];
                if !is_controlled(&event.namespace, owners) {
                    let invariant = if verb == "create" { "I4" } else { "I5" };
                    report.violate(invariant, event, "which nothing of ours controls");
                }
            }
            ("events", "", _) => {}
            (resource, "status", _) if of.status && resource == of.primary => {}
            (resource, "", "patch") if of.finalizers && resource == of.primary => {
                if !is_of_finalizers(&event.request_object) {
                    report.violate("I5", event, "which is of more than its finalizers");
                }
            }
            ("leases", "", _) if subject(event) == lease => {}
            ("serviceaccounts", "", "patch") if subject(event) == format!("{lease}-fencing") => {
                let annotations = &event.response_object["metadata"]["annotations"];
                if user(annotations[of.fencing_holder].as_str().unwrap_or_default()) != event.user {
                    report.violate("I5", event, "which names another than its writer");
                }
            }
            _ => report.violate("I5", event, "which is not ours to write"),
        }
    }
}

/// I7: the generation of one Foo that a Deployment was made from never goes back, whoever writes it.
fn i7_generation(log: &[AuditEvent], report: &mut Report) {
    let mut writes: Vec<_> = log
        .iter()
        .filter(|event| event.resource == "deployments" && is_made(event))
        .filter_map(|event| Some((version(&event.response_object)?, event)))
        .collect();
    writes.sort_by_key(|(version, _)| *version);
    let mut newest: HashMap<(&str, Option<&str>), i64> = HashMap::new();
    for (_, event) in writes {
        let metadata = &event.response_object["metadata"];
        let generation = metadata["annotations"][GENERATION].as_str();
        let Some(generation) = generation.and_then(|text| text.parse::<i64>().ok()) else {
            continue;
        };
        let made_for = metadata["annotations"][MADE_FOR].as_str();
        let newest = newest
            .entry((metadata["uid"].as_str().unwrap(), made_for))
            .or_default();
        if generation < *newest {
            report.violate(
                "I7",
                event,
                &format!("back from generation {newest} to {generation}"),
            );
        }
        *newest = generation.max(*newest);
    }
}

/// I8: every change of the Lease is made on the condition that it is as it was read, by whom it makes the holder or who gives
/// it back; and `leaseTransitions` counts those who took it: the crate adds one when somebody takes a Lease that another held
/// or that was released (also by itself), none when it is renewed, kept on by the same pod after a restart, or released. A
/// Lease is created with no holder: a creation has no condition, and who led before may not know of a deletion (H12).
fn i8_lease(log: &[AuditEvent], election: &Election, report: &mut Report) -> Vec<LeaseWrite> {
    let of_lease =
        |event: &&AuditEvent| event.resource == "leases" && subject(event) == election.lease;
    for event in log.iter().filter(of_lease) {
        let conditional = version(&event.request_object).is_some();
        let ours = election.users.contains(&event.user);
        if ours && matches!(&*event.verb, "update" | "patch") && !conditional {
            report.violate("I8", event, "on no condition");
        }
    }
    let reads: Vec<_> = log
        .iter()
        .filter(of_lease)
        .filter(|event| event.verb == "get")
        .collect();
    let mut made: Vec<_> = log
        .iter()
        .filter(of_lease)
        .filter(|event| is_write(event) && is_made(event))
        .filter_map(|event| Some((version(&event.response_object)?, event)))
        .collect();
    made.sort_by_key(|(version, _)| *version);
    let mut leases: Vec<LeaseWrite> = Vec::new();
    for (version_now, event) in made {
        let (metadata, spec) = (
            &event.response_object["metadata"],
            &event.response_object["spec"],
        );
        let read = reads
            .iter()
            .filter(|read| read.user == event.user && read.received <= event.received);
        let mut write = LeaseWrite {
            version: version_now,
            uid: metadata["uid"].as_str().unwrap_or_default().to_owned(),
            holder: spec["holderIdentity"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            transitions: spec["leaseTransitions"].as_i64(),
            by: event.user.clone(),
            received: event.received.0,
            reached: event.reached.0,
            read: read
                .map(|read| read.received.0)
                .max()
                .unwrap_or(event.received.0),
        };
        report.lease_writes += 1;
        if !election.users.contains(&event.user) {
            // Whatever people write.
            write.transitions = None;
            leases.push(write);
            continue;
        }
        // What the write is based on is a write of which the answer was lost.
        let base = version(&event.request_object);
        let same = leases.last().filter(|last| last.uid == write.uid);
        if let (Some(base), Some(last)) = (base, same)
            && base != last.version
        {
            let renewal = event.request_object["spec"]["holderIdentity"].is_null();
            let holder = if renewal { &*write.holder } else { UNKNOWN };
            leases.push(LeaseWrite {
                version: base,
                uid: write.uid.clone(),
                holder: holder.to_owned(),
                transitions: None,
                by: UNKNOWN.to_owned(),
                received: last.received,
                reached: write.reached,
                read: write.read,
            });
        }
        if event.verb == "create" && !write.holder.is_empty() {
            report.violate("I8", event, &format!("held by {} at once", write.holder));
        }
        let last = leases.last().filter(|last| last.uid == write.uid);
        if let Some(wrong) = wrong_step(last, &write) {
            report.violate("I8", event, &wrong);
        }
        let new = last.is_none_or(|last| last.holder != write.holder);
        report.terms += usize::from(new && !write.holder.is_empty());
        leases.push(write);
    }
    leases
}

/// What is wrong with this write of the Lease, given the one before.
fn wrong_step(last: Option<&LeaseWrite>, write: &LeaseWrite) -> Option<String> {
    let before = last.map_or("", |last| &last.holder);
    let released = write.holder.is_empty();
    // One that is created is nobody's yet (H12).
    if released && last.is_some() && user(before) != write.by && before != UNKNOWN {
        return Some(format!("releasing it for {before}"));
    }
    if !released && user(&write.holder) != write.by {
        return Some(format!("for {}", write.holder));
    }
    let taken = !released && before != write.holder;
    let expected = match last {
        None => 0,
        Some(last) => last.transitions? + i64::from(taken),
    };
    (write.transitions != Some(expected)).then(|| {
        format!(
            "with {:?} transitions instead of {expected}",
            write.transitions
        )
    })
}

impl Election {
    /// The latest at which a write may arrive in the term that this write of the Lease got.
    fn end(&self, lease: &LeaseWrite) -> Timestamp {
        lease.read + self.renew_deadline + ON_ITS_WAY
    }
}

/// The user who stands under this identity.
fn user(holder: &str) -> &str {
    holder.split('_').next().unwrap_or_default()
}

impl Report {
    fn violate(&mut self, invariant: &str, event: &AuditEvent, what: &str) {
        let AuditEvent {
            user,
            verb,
            resource,
            subresource,
            received,
            code,
            ..
        } = event;
        let at = received.0;
        self.violations.push(format!(
            "{invariant} {user}: {verb} {resource} {subresource} {} ({code}, {at}) {what}",
            subject(event)
        ));
    }
}

/// A review asks who may do what, and stores nothing.
fn is_write(event: &AuditEvent) -> bool {
    let verbs = ["create", "update", "patch", "delete", "deletecollection"];
    let reviews = [
        "selfsubjectaccessreviews",
        "subjectaccessreviews",
        "tokenreviews",
    ];
    verbs.contains(&&*event.verb) && !reviews.contains(&&*event.resource)
}

impl Work {
    fn includes(&self, event: &AuditEvent) -> bool {
        let resource = &*event.resource;
        let is_primary = resource == self.primary;
        match &*event.subresource {
            "status" if is_primary => self.status,
            "" if is_primary && self.finalizers => true,
            _ => self.owned.contains(&resource),
        }
    }
}

/// Whether a merge patch changes the finalizers alone, of the object that was seen.
fn is_of_finalizers(patch: &Value) -> bool {
    let names = |value: &Value| -> Vec<String> {
        value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect()
    };
    let metadata = &patch["metadata"];
    names(patch) == ["metadata"] && names(metadata) == ["finalizers", "resourceVersion", "uid"]
}

/// Whether a write ends an object that is being deleted. Its answer has the resourceVersion of before.
fn takes_last_finalizer(event: &AuditEvent) -> bool {
    let metadata = &event.response_object["metadata"];
    event.verb == "patch"
        && metadata["deletionTimestamp"].is_string()
        && metadata["finalizers"].is_null()
}

fn is_made(event: &AuditEvent) -> bool {
    is_write(event) && (200..300).contains(&event.code)
}

/// The name of the object, which for a create is in the body.
fn subject(event: &AuditEvent) -> &str {
    match event.request_object["metadata"]["name"].as_str() {
        Some(name) if event.name.is_empty() => name,
        _ => &event.name,
    }
}

/// The resourceVersion of an object, or the one that a request is conditional on.
pub fn version(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

fn controller(owners: &[OwnerReference]) -> Option<&OwnerReference> {
    owners.iter().find(|owner| owner.controller == Some(true))
}
