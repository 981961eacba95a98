//! The places of the controller's writes, namespaces and the cluster, and the writes that webhooks and policies match there.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    cluster::{EVENTS_OF_CLUSTER, namespaces},
    matching::{Judges, Labels, Write},
    subject::{Doctor, Namespace},
    verdict::Verdict,
};
use crate::api::kind::Kind;

/// Name of the place of cluster-scoped objects. No namespace has this name.
pub(super) const CLUSTER: &str = "the cluster";

pub(super) const EVENTS: &str = "events";

static NO_LABELS: Labels = BTreeMap::new();

/// A place of writes.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub name: &'a str,
    pub labels: &'a Labels,
    writes: Writes,
}

#[derive(Clone, Copy, PartialEq)]
enum Writes {
    Namespaced,
    ClusterScoped,
    /// Only writes of events.
    Events,
}

impl<'a> Place<'a> {
    pub(super) fn of(namespace: &'a Namespace) -> Self {
        Self {
            name: &namespace.name,
            labels: &namespace.labels,
            writes: Writes::Namespaced,
        }
    }

    fn cluster() -> Self {
        Self {
            name: CLUSTER,
            labels: &NO_LABELS,
            writes: Writes::ClusterScoped,
        }
    }

    /// Whether such a write is sent there.
    pub(super) fn has(&self, write: &Write) -> bool {
        match self.writes {
            Writes::Namespaced => !write.is_cluster_scoped,
            Writes::ClusterScoped => write.is_cluster_scoped,
            Writes::Events => write.plural == EVENTS,
        }
    }

    /// The key of its objects in the list of the primary objects.
    pub(super) fn is_in<T>(name: &str, primaries: &BTreeMap<String, T>) -> bool {
        primaries.contains_key(if name == CLUSTER { "" } else { name })
    }
}

/// Returns the served namespaces, and the places of the writes for cluster-scoped objects, if there are any.
pub(super) async fn served(doctor: &Doctor) -> Result<Vec<Place<'_>>, Verdict> {
    let configured = &doctor.config.namespaces;
    let all = namespaces(doctor).await?;
    let is_served = |it: &&Namespace| configured.is_empty() || configured.contains(&it.name);
    let mut places: Vec<_> = all.iter().filter(is_served).map(Place::of).collect();
    let rights = doctor.needs.rights();
    if rights.iter().any(|right| right.kind.is_cluster_scoped()) {
        places.push(Place::cluster());
    }
    let mut primaries = doctor.needs.controllers.iter().map(|it| it.primary);
    if primaries.any(Kind::is_cluster_scoped) {
        let of_events = all.iter().find(|it| it.name == EVENTS_OF_CLUSTER);
        let of_events = of_events.filter(|it| !is_served(it));
        places.extend(of_events.map(|it| Place {
            writes: Writes::Events,
            ..Place::of(it)
        }));
    }
    Ok(places)
}

/// Returns whether these places are all served namespaces, or include the cluster.
pub(super) fn are_broad(places: &[&str], served: &[Place<'_>]) -> bool {
    let mut namespaces = served.iter().filter(|it| it.writes == Writes::Namespaced);
    places.contains(&CLUSTER) || namespaces.all(|it| places.contains(&it.name))
}

/// The writes that a webhook or a policy matches.
pub(super) struct Judged<'a> {
    pub judges: Judges,
    pub resources: BTreeSet<String>,
    /// The namespaces, and [`CLUSTER`].
    pub places: Vec<&'a str>,
    /// Whether the resources include more than events.
    pub is_work: bool,
}

impl Judged<'_> {
    pub(super) fn none() -> Self {
        Self {
            judges: Judges::No,
            resources: BTreeSet::new(),
            places: Vec::new(),
            is_work: false,
        }
    }

    pub(super) fn resources(&self) -> String {
        let all: Vec<_> = self.resources.iter().map(|it| &**it).collect();
        all.join(", ")
    }

    /// Whether the writes of an election include those to the Lease, and not only those to the fencing record.
    pub(super) fn has_lease(&self) -> bool {
        self.resources.contains("leases")
    }

    /// Returns the resources of an election, with the time limit of a renewal.
    pub(super) fn within(&self, renewal: Duration) -> String {
        let resources = self.resources();
        if self.has_lease() {
            format!("{resources}, and a renewal times out after {renewal:?}")
        } else {
            resources
        }
    }

    /// Returns the effect of a failed write of an election.
    pub(super) fn effect(&self) -> &'static str {
        if self.has_lease() {
            "no replica can lead"
        } else {
            "the fencing policy rejects the writes of a new leader until it has written the record"
        }
    }
}

/// Returns the writes that a webhook or a policy matches in these places.
pub(super) fn judged<'a>(
    writes: &[Write],
    places: &[Place<'a>],
    judges: impl Fn(&Write, &Labels) -> Judges,
) -> Option<Judged<'a>> {
    let mut all = Judged::none();
    for place in places {
        let mut is_judged = false;
        for write in writes.iter().filter(|write| place.has(write)) {
            let judges = judges(write, place.labels);
            if judges == Judges::No {
                continue;
            }
            is_judged = true;
            all.judges = all.judges.max(judges);
            all.resources.insert(write.resource());
            all.is_work |= write.plural != EVENTS;
        }
        if is_judged {
            all.places.push(place.name);
        }
    }
    (all.judges > Judges::No).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write is judged where it is sent: a cluster-scoped one once, and the events about it in their namespace.
    #[test]
    fn each_write_is_judged_in_its_place() {
        let write = |plural: &str, is_cluster_scoped| Write {
            operation: "CREATE",
            group: String::new(),
            version: "v1".to_owned(),
            plural: plural.to_owned(),
            subresource: String::new(),
            is_cluster_scoped,
            equivalents: Vec::new(),
            name: None,
            labels: None,
        };
        let of = |name, writes| Place {
            name,
            labels: &NO_LABELS,
            writes,
        };
        let places = [
            of("a", Writes::Namespaced),
            Place::cluster(),
            of(EVENTS_OF_CLUSTER, Writes::Events),
        ];
        for (write, expected) in [
            (write("pods", false), &["a"][..]),
            (write("classes", true), &[CLUSTER]),
            (write(EVENTS, false), &["a", EVENTS_OF_CLUSTER]),
        ] {
            let judged = judged(std::slice::from_ref(&write), &places, |_, _| Judges::Yes);
            assert_eq!(
                judged.map(|it| it.places).unwrap_or_default(),
                expected,
                "{write:?}"
            );
        }
        assert!(are_broad(&[CLUSTER], &places) && are_broad(&["a"], &places));
        assert!(!are_broad(
            &["a"],
            &[places[0], of("b", Writes::Namespaced)]
        ));
        let primaries = BTreeMap::from([(String::new(), 1)]);
        assert!(Place::is_in(CLUSTER, &primaries) && !Place::is_in("a", &primaries));
    }
}
