//! Checks the invariants I1, I2, I4 to I6 and I8 with the API server's audit log, with
//! [`Options::audit`](operator_testkit::cluster::Options::audit) enabled from the start.
//!
//! All objects are in one etcd, so resourceVersions order all writes, and the holder of the Lease during a write is known
//! without clocks. Every replica has its own user and the identity `USER_…`, so that writer and holder can be compared.
//!
//! Facts that the log does not contain are counted, not judged. A write with a failed response may have been stored
//! ([`Report::unknown`]). The log contains the arrival time of a request, not the time at which it was sent. The check of
//! deadlines therefore allows each request a [part of the margin](Election::tolerance), and is not possible if requests are delayed
//! for longer.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    time::Duration,
};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::OwnerReference, jiff::Timestamp};
use operator_testkit::cluster::AuditEvent;
use serde_json::Value;

/// Resources that the replicas reconcile and may write.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// The reconciled kind and its resource.
    pub kind: &'static str,
    pub primary: &'static str,
    /// Resources of the controlled objects.
    pub owned: &'static [&'static str],
    /// Whether the status is written.
    pub status: bool,
    /// Whether finalizers are written. Other fields of the reconciled objects are not.
    pub finalizers: bool,
    /// Annotation of the fencing record with the leader's identity.
    pub fencing_holder: &'static str,
}

/// Holder of the Lease after a write whose response was lost.
const UNKNOWN: &str = "?";

/// Election that the log belongs to.
#[derive(Clone, Debug)]
pub struct Election {
    /// Users of the replicas.
    pub users: BTreeSet<String>,
    /// Name of the Lease.
    pub lease: String,
    /// Another replica may take the Lease after this time without a renewal.
    pub lease_duration: Duration,
    /// Time without a renewal after which the leader stops.
    pub renew_deadline: Duration,
}

/// Result of a check.
#[derive(Debug, Default)]
pub struct Report {
    /// One line for each violation, starting with the invariant.
    pub violations: Vec<String>,
    /// Stored writes of the replicas to the resources of [`Work`].
    pub writes: usize,
    /// Such writes that the API server rejected, mostly conflicts.
    pub refused: usize,
    /// Such writes that may have been stored or not (5xx or no response), which are not judged by the holder of the Lease. Also
    /// stored writes without a known holder, such as deletions during a change of the holder.
    pub unknown: usize,
    /// Writes of a leader before its deadline, after its Lease was deleted and while the new Lease had no holder.
    pub lease_deleted: usize,
    /// Stored writes of the Lease.
    pub lease_writes: usize,
    /// Number of times the Lease got a holder.
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

/// Stored write of the Lease.
struct LeaseWrite {
    version: u64,
    uid: String,
    /// Identity of the holder; empty after a release.
    holder: String,
    /// `None` if unknown.
    transitions: Option<i64>,
    by: String,
    /// Times of the request and of its response. The write was stored in between.
    received: Timestamp,
    reached: Timestamp,
    /// The replica's last read of the Lease before this write. The deadline of the term counts from an earlier time.
    read: Timestamp,
}

/// Checks a whole log of the controllers of these resource types for I1, I2, I4, I5 and I8, and the `quiet` periods without changes
/// for I6.
pub fn check_of(
    works: &[Work],
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
        .filter(|event| works.iter().any(|of| of.includes(event)))
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
    i4_i5_owner(works, log, &ours, &election.lease, &mut report);
    for event in ours.iter().filter(|event| event.resource != "leases") {
        let at = event.received.0;
        if quiet.iter().any(|(from, to)| (*from..*to).contains(&at)) {
            report.violate("I6", event, "where nothing had changed");
        }
    }
    report
}

/// The writer held the Lease at the resourceVersion of its write. The response to a deletion contains no resourceVersion, so all
/// holders between its request and its response are considered.
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

/// Verdict on a write, for one holder of the Lease.
#[derive(Clone, Copy, PartialEq)]
enum Verdict {
    Right,
    Wrong,
    Unknown,
    /// Counted in [`Report::lease_deleted`].
    LeaseDeleted,
}

/// Returns the verdict on a write for the holder in the last of `leases`.
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

/// No write arrives later than the sender's deadline allows, even if it is rejected.
fn i2_deadline(
    work: &[&AuditEvent],
    leases: &[LeaseWrite],
    election: &Election,
    report: &mut Report,
) {
    for event in work {
        let sent = event.received.0;
        // A leader may recreate a deleted Lease without a holder. This is not a release.
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

/// An object that the controller creates contains the UID of its owner. The controller writes only objects that a reconciled object
/// controls, and the few others that it may write.
fn i4_i5_owner(
    works: &[Work],
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
    let primaries = works.iter().flat_map(|of| {
        made(of.primary).map(|(_, object)| {
            let [namespace, name, uid] = ["namespace", "name", "uid"].map(|it| text(&object[it]));
            (of.kind, namespace, name, uid)
        })
    });
    let primaries: BTreeSet<_> = primaries.collect();
    let is_controlled = |event: &AuditEvent, owners: &Value| {
        let owners = serde_json::from_value::<Vec<OwnerReference>>(owners.clone());
        let owners = owners.unwrap_or_default();
        controller(&owners).is_some_and(|owner| {
            let mut kinds = works.iter().filter(|of| of.owns(event)).map(|of| of.kind);
            kinds.any(|kind| {
                // In the namespace, or cluster-scoped.
                let is_there = |namespace: &str| {
                    let [name, uid] = [&owner.name, &owner.uid].map(String::clone);
                    primaries.contains(&(kind, namespace.to_owned(), name, uid))
                };
                owner.kind == kind && (is_there(&event.namespace) || is_there(""))
            })
        })
    };
    let owned: BTreeSet<_> = works.iter().flat_map(|of| of.owned).collect();
    // Owners at each time: an etcd restore brings back deleted objects, whose owners may then change.
    let mut owners = HashMap::<_, Vec<_>>::new();
    for (at, object) in owned.iter().flat_map(|resource| made(resource)) {
        let its = owners.entry(text(&object["uid"])).or_default();
        its.push((at, &object["ownerReferences"]));
    }
    for event in ours.iter().filter(|event| is_made(event)) {
        match (&*event.resource, &*event.subresource, &*event.verb) {
            (_, "", "delete") if works.iter().any(|of| of.owns(event)) => {
                let uid = text(&event.request_object["preconditions"]["uid"]);
                let mut owned = owners.get(&uid).into_iter().flatten().rev();
                let then = owned.find(|(at, _)| *at <= event.reached.0);
                if !then.is_some_and(|(_, owners)| is_controlled(event, owners)) {
                    report.violate("I5", event, "which nothing of ours controls");
                }
            }
            (_, "", verb) if works.iter().any(|of| of.owns(event)) => {
                let owners = &event.response_object["metadata"]["ownerReferences"];
                if !is_controlled(event, owners) {
                    let invariant = if verb == "create" { "I4" } else { "I5" };
                    report.violate(invariant, event, "which nothing of ours controls");
                }
            }
            ("events", "", _) => {}
            (resource, "status", _)
                if works.iter().any(|of| of.status && resource == of.primary) => {}
            (resource, "", "patch")
                if works
                    .iter()
                    .any(|of| of.finalizers && resource == of.primary) =>
            {
                if !is_of_finalizers(&event.request_object) {
                    report.violate("I5", event, "which is of more than its finalizers");
                }
            }
            ("leases", "", _) if subject(event) == lease => {}
            ("serviceaccounts", "", "patch") if subject(event) == format!("{lease}-fencing") => {
                let annotations = &event.response_object["metadata"]["annotations"];
                let holder = works.first().map_or("", |of| of.fencing_holder);
                if user(annotations[holder].as_str().unwrap_or_default()) != event.user {
                    report.violate("I5", event, "which names another than its writer");
                }
            }
            _ => report.violate("I5", event, "which is not ours to write"),
        }
    }
}

/// Every change of the Lease is conditional on the version that was read. A replica acquires the Lease only for itself and
/// releases only its own.
///
/// `leaseTransitions` counts acquisitions. `kube-leader-election` adds one for a Lease that another replica held or that was
/// released, even by the same replica. It adds none for a renewal, a restart of the same pod or a release.
///
/// A Lease is created without a holder: a creation has no precondition, and the previous leader may not have observed the
/// deletion.
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
            // Users may write any value.
            write.transitions = None;
            leases.push(write);
            continue;
        }
        // The base version was stored by a write whose response was lost.
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

/// Returns the error of this Lease write, given the previous one.
fn wrong_step(last: Option<&LeaseWrite>, write: &LeaseWrite) -> Option<String> {
    let before = last.map_or("", |last| &last.holder);
    let released = write.holder.is_empty();
    // A new Lease has no holder to release it.
    if released && last.is_some() && user(before) != write.by && before != UNKNOWN {
        return Some(format!("releasing it for {before}"));
    }
    if !released && user(&write.holder) != write.by {
        return Some(format!("for {}", write.holder));
    }
    let taken = !released && before != write.holder;
    let expected = match last {
        None => 0,
        // A Lease that another client filled with the largest number begins again.
        Some(last) if taken && last.transitions? == i64::from(i32::MAX) => 1,
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
    /// Returns the latest arrival time of a write in the term of this Lease write.
    fn end(&self, lease: &LeaseWrite) -> Timestamp {
        lease.read + self.renew_deadline + self.tolerance()
    }

    /// Returns the tolerance for a write that was sent before the deadline and arrives later, because the machine may be busy.
    ///
    /// It is a fifth of the margin from the deadline to the end of the Lease: 1 s of 5 s by default, 200 ms of 1 s with
    /// `deploy/components/fast-failover`. A tolerance of the whole margin would accept writes of a leader that ignores its
    /// deadline until another replica may lead.
    fn tolerance(&self) -> Duration {
        self.lease_duration.saturating_sub(self.renew_deadline) / 5
    }
}

/// Returns the user of an identity.
fn user(holder: &str) -> &str {
    holder.split('_').next().unwrap_or_default()
}

impl Report {
    pub fn violate(&mut self, invariant: &str, event: &AuditEvent, what: &str) {
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

/// Returns whether the request is a write. Reviews store nothing.
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

    fn owns(&self, event: &AuditEvent) -> bool {
        self.owned.contains(&&*event.resource)
    }
}

/// Returns whether a merge patch changes only finalizers, with the UID and the resourceVersion as preconditions.
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

/// Returns whether a write removes the last finalizer, which deletes the object. Its response has the previous resourceVersion.
fn takes_last_finalizer(event: &AuditEvent) -> bool {
    let metadata = &event.response_object["metadata"];
    event.verb == "patch"
        && metadata["deletionTimestamp"].is_string()
        && metadata["finalizers"].is_null()
}

pub fn is_made(event: &AuditEvent) -> bool {
    is_write(event) && event.is_success()
}

/// Returns the name of the object. In a create it is in the body.
fn subject(event: &AuditEvent) -> &str {
    match event.request_object["metadata"]["name"].as_str() {
        Some(name) if event.name.is_empty() => name,
        _ => &event.name,
    }
}

/// Returns the resourceVersion of an object, or the precondition of a request.
pub fn version(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

pub fn controller(owners: &[OwnerReference]) -> Option<&OwnerReference> {
    owners.iter().find(|owner| owner.controller == Some(true))
}
