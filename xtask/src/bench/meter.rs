//! Resource use of a controller: time and memory from `/proc`, bytes from its sockets, requests from the API server's audit
//! log.

use std::{collections::BTreeMap, time::Instant};

use k8s_openapi::jiff::Timestamp;

use super::{
    process::Subject,
    report::{CPU, PEAK},
};
use operator_testkit::cluster::{AuditEvent, Cluster};

/// Resource use of a controller since a point in time.
pub struct Meter<'a> {
    cluster: &'a Cluster,
    subject: &'a Subject,
    cpu: f64,
    received: u64,
    requests: usize,
    /// The start, as an `Instant` and, in `date`, as a timestamp.
    pub begun: Instant,
    date: Timestamp,
}

impl<'a> Meter<'a> {
    pub fn start(cluster: &'a Cluster, subject: &'a Subject) -> Self {
        subject.forget_peak();
        let received = subject.sockets.received();
        let requests = cluster.audit().len();
        Self {
            cluster,
            subject,
            cpu: subject.cpu(),
            received,
            requests,
            begun: Instant::now(),
            date: Timestamp::now(),
        }
    }

    /// Starts a meter for a controller that was just started.
    pub fn of_all(cluster: &'a Cluster, subject: &'a Subject, requests: usize) -> Self {
        Self {
            cluster,
            subject,
            cpu: 0.0,
            received: 0,
            requests,
            begun: Instant::now(),
            date: Timestamp::now(),
        }
    }

    /// Returns the resources used, by name.
    pub fn used(&self) -> Vec<(String, f64)> {
        let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
        let mut used = vec![
            (CPU.to_owned(), self.subject.cpu() - self.cpu),
            (PEAK.to_owned(), self.subject.memory("VmHWM")),
            (
                "memory at the end, MiB".to_owned(),
                self.subject.memory("VmRSS"),
            ),
            (
                "received, MiB".to_owned(),
                mib(self.subject.sockets.received() - self.received),
            ),
        ];
        let mut requests = BTreeMap::from([("requests".to_owned(), 0.0)]);
        for AuditEvent {
            verb,
            resource,
            subresource,
            ..
        } in self.requests()
        {
            let slash = if subresource.is_empty() { "" } else { "/" };
            let kind = format!("requests: {verb} {resource}{slash}{subresource}");
            for count in [kind, "requests".to_owned()] {
                *requests.entry(count).or_default() += 1.0;
            }
        }
        used.extend(requests);
        used
    }

    /// Returns the requests, except those for the Lease: each controller renews it at its own interval. The audit log has two
    /// entries for a watch, at its start and at its end; only the first is counted.
    fn requests(&self) -> impl Iterator<Item = AuditEvent> {
        let asked = self.cluster.audit().into_iter().skip(self.requests);
        let user = self.subject.user;
        asked.filter(move |event| {
            let is_watch = event.verb == "watch";
            event.user == user
                && event.resource != "leases"
                && (event.stage == "ResponseStarted") == is_watch
        })
    }

    /// Returns the number of events written, and the seconds from the start to the last one.
    pub fn events(&self) -> (usize, f64) {
        let written = self.requests().filter(|event| {
            let is_write = matches!(&*event.verb, "create" | "update" | "patch");
            event.resource == "events" && is_write && event.code < 300
        });
        written.fold((0, 0.0), |(count, last), event| {
            let at = event.reached.0.duration_since(self.date).as_secs_f64();
            (count + 1, at.max(last))
        })
    }

    /// Returns the seconds from acquiring the Lease to the first write after it.
    pub fn lease_to_write(&self) -> f64 {
        let user = self.subject.user;
        let asked: Vec<_> = self.cluster.audit();
        let writes = |resource: &str| {
            let mut writes = asked.iter().filter(|event| {
                event.user == user
                    && event.resource == resource
                    && event.code < 300
                    && matches!(&*event.verb, "create" | "update" | "patch")
            });
            writes.next().expect("a write").clone()
        };
        let (lease, first) = (writes("leases").reached.0, writes("deployments").received.0);
        first.duration_since(lease).as_secs_f64()
    }
}
