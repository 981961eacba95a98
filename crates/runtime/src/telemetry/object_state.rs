//! The response of `/debug/state?object=NAMESPACE/NAME`, which `doctor --object` prints: why one object is not written. In a
//! program with several controllers, `KIND/NAMESPACE/NAME` names the kind as well. A cluster-scoped object is `KIND/NAME`.
//!
//! The values are collected for each request. Nothing is stored in advance.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::state::{PATH, State, span};
use crate::api::{failure::brief, key::Key, kind::Kind, names::is_subdomain};

/// Maximum number of [`Record`]s in the response.
pub(crate) const MOST: usize = 32;

/// Name of the query parameter, and the form of its value.
const PARAMETER: &str = "object";
const FORM: &str =
    "must be NAMESPACE/NAME, KIND/NAMESPACE/NAME, or KIND/NAME of a cluster-scoped object";

pub(crate) const INSTALLATION: &str = "installation";
pub(crate) const READINESS: &str = "readiness";
pub(crate) const PAUSED: &str = "paused";
pub(crate) const UNREAD: &str = "unread";
pub(crate) const LEAST_DELAY: &str = "leastDelay";
pub(crate) const DISPUTE: &str = "dispute";
pub(crate) const CHANGE_LIMIT: &str = "changeLimit";
pub(crate) const BACKOFF: &str = "backoff";
pub(crate) const DEFERRED_CHANGES: &str = "deferredChanges";
pub(crate) const SLOW_NAMESPACE: &str = "slowNamespace";
pub(crate) const FRESHNESS: &str = "freshness";
pub(crate) const REJECTED_STATUS: &str = "rejectedStatus";
pub(crate) const NO_OP_WRITE: &str = "noOpWrite";
pub(crate) const PENDING_DELETION: &str = "pendingDeletion";
pub(crate) const UP_TO_DATE: &str = "upToDate";

/// All records of the runtime, the most decisive first. The reconciler's own records come before [`REJECTED_STATUS`].
const ORDER: [&str; 15] = [
    INSTALLATION,
    READINESS,
    PAUSED,
    UNREAD,
    LEAST_DELAY,
    DISPUTE,
    CHANGE_LIMIT,
    BACKOFF,
    DEFERRED_CHANGES,
    SLOW_NAMESPACE,
    FRESHNESS,
    REJECTED_STATUS,
    NO_OP_WRITE,
    PENDING_DELETION,
    UP_TO_DATE,
];

/// An object as a user names it: `NAMESPACE/NAME`, `KIND/NAMESPACE/NAME`, or `KIND/NAME` of a cluster-scoped type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectName(String);

impl ObjectName {
    /// Returns the position of the only kind that the name fits, and the key of the object. A program with a single kind needs
    /// no kind in the name of a namespaced object.
    ///
    /// # Errors
    /// It fits none, or several.
    pub(crate) fn choose(&self, kinds: &[&Kind]) -> Result<(usize, Key), String> {
        let (parts, all) = (self.0.split('/').collect::<Vec<_>>(), 0..kinds.len());
        let fitting = all.filter_map(|at| Some((at, key(&parts, kinds[at], kinds.len() == 1)?)));
        let mut fitting = fitting.fuse();
        match (fitting.next(), fitting.next()) {
            (Some(only), None) => Ok(only),
            _ => Err(format!("must be {}", forms(kinds))),
        }
    }
}

/// Describes the names of objects of these kinds.
fn forms(kinds: &[&Kind]) -> String {
    let forms =
        [("KIND/NAMESPACE/NAME", false), ("KIND/NAME", true)].map(|(form, is_of_cluster)| {
            let kinds = kinds
                .iter()
                .filter(|kind| kind.is_cluster_scoped() == is_of_cluster);
            let kinds: Vec<_> = kinds.map(|kind| kind.kind).collect();
            (!kinds.is_empty())
                .then(|| format!("{form} with one of the kinds {}", kinds.join(", ")))
        });
    let forms: Vec<_> = forms.into_iter().flatten().collect();
    forms.join(", or ")
}

/// Returns the key if the parts of a name fit this kind.
fn key(parts: &[&str], kind: &Kind, is_only: bool) -> Option<Key> {
    let (is_of_cluster, is_this) = (kind.is_cluster_scoped(), |named: &str| {
        named.eq_ignore_ascii_case(kind.kind)
    });
    match *parts {
        [named, namespace, name] if is_this(named) && !is_of_cluster => {
            Some(Key::new(namespace, name))
        }
        [named, name] if is_this(named) && is_of_cluster => Some(Key::cluster(name)),
        [namespace, name] if is_only && !is_of_cluster => Some(Key::new(namespace, name)),
        _ => None,
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// State of one object on one replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObjectState {
    /// Why the object is not written now, in one sentence: this replica does not lead, or its place in the queue, or the most
    /// decisive record, or `nothing holds it`.
    pub reason: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// Name of this replica in the Lease.
    pub identity: String,
    /// Whether this replica leads. Only the leader writes.
    pub leads: bool,
    /// Identity of the holder of the Lease, as last seen; `None` without a holder or an election.
    pub holder: Option<String>,
    /// `None` if the cache does not contain the object.
    pub cached: Option<CachedObject>,
    /// Place in the queue; `None` if this replica runs no workers.
    pub queue: Option<QueuedObject>,
    /// The records that hold the object or its dependents, the most decisive first. At most [`MOST`].
    pub records: Vec<Record>,
}

/// The cached object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CachedObject {
    pub resource_version: String,
    /// `fresh`, `conflicted` or `stale`.
    pub freshness: String,
}

/// Place of the object in the queue. With a lane, without a delay and not in work, it waits for a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct QueuedObject {
    /// The lane in which the object waits, or will wait after its delay: `event`, `retry` or `background`. `None` if it is not
    /// queued.
    pub lane: Option<String>,
    /// Time until the end of its delay, if it is delayed.
    pub delayed_for_seconds: Option<f64>,
    /// Duration of the attempt in progress.
    pub in_work_for_seconds: Option<f64>,
    /// Consecutive attempts without success.
    pub attempts: u32,
    /// Reason of the last failure, or the name of its error.
    pub last_reason: Option<String>,
    /// Message of the last failure.
    pub last_error: Option<String>,
}

/// A record that delays or skips a write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// Its name. The table in docs/design.md, "Why an object is not written", explains it.
    pub name: String,
    pub text: String,
    /// Time until it ends without a change, if that is known.
    pub ends_in_seconds: Option<f64>,
}

impl Record {
    pub(crate) fn new(name: &str, text: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            text: text.into(),
            ends_in_seconds: None,
        }
    }

    fn rank(&self) -> usize {
        let rank = |name: &str| ORDER.iter().position(|it| *it == name);
        let own = rank(REJECTED_STATUS).map(|rank| 2 * rank - 1);
        let rank = rank(&self.name).map(|rank| 2 * rank);
        rank.or(own).unwrap_or_default()
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, text, .. } = self;
        match self.ends_in_seconds {
            Some(left) => write!(f, "{name}, for another {}: {text}", span(left)),
            None => write!(f, "{name}: {text}"),
        }
    }
}

/// The controller's part of the state.
pub(crate) struct ObjectWork {
    pub kind: &'static str,
    pub key: Key,
    pub cached: Option<CachedObject>,
    pub queue: Option<QueuedObject>,
    pub records: Vec<Record>,
}

impl ObjectState {
    /// Combines the controller's part with the state of the replica.
    pub(crate) fn new(work: ObjectWork, replica: State) -> Self {
        let mut records = work.records;
        records.sort_by_key(Record::rank);
        records.truncate(MOST);
        let lease = replica.lease.filter(|lease| lease.exists);
        let holder = lease.map(|lease| lease.holder);
        let mut state = Self {
            reason: String::new(),
            kind: work.kind.to_owned(),
            namespace: work.key.namespace().to_owned(),
            name: work.key.name().to_owned(),
            identity: replica.identity,
            leads: replica.term.is_some(),
            holder: holder.filter(|holder| !holder.is_empty()),
            cached: work.cached,
            queue: work.queue,
            records,
        };
        state.reason = state.decides();
        state
    }

    fn decides(&self) -> String {
        // Whichever replica of this installation leads.
        let first = self.records.first();
        if let Some(elsewhere) = first.filter(|it| it.name == INSTALLATION) {
            return elsewhere.to_string();
        }
        if !self.leads {
            return match &self.holder {
                Some(holder) => format!("this replica does not lead: {holder} holds the Lease"),
                None => "this replica does not lead, and no replica holds the Lease".to_owned(),
            };
        }
        let place = self.queue.as_ref().and_then(QueuedObject::place);
        match (first, place) {
            (Some(first), _) if [READINESS, PAUSED, UNREAD].contains(&&*first.name) => {
                first.to_string()
            }
            (_, Some(place)) => {
                let mut records = self.records.iter();
                let slow = records.find(|it| it.name == SLOW_NAMESPACE);
                slow.map_or_else(
                    || format!("nothing holds it: {place}"),
                    |slow| format!("{slow}; {place}"),
                )
            }
            (Some(first), None) => first.to_string(),
            (None, None) => match &self.queue {
                Some(queue) => queue.delayed_for_seconds.map_or_else(
                    || "nothing holds it".to_owned(),
                    |left| {
                        let left = span(left);
                        format!("nothing holds it: its reconcile is due in {left}")
                    },
                ),
                None => "this replica leads, but has not started workers".to_owned(),
            },
        }
    }
}

impl QueuedObject {
    /// Describes the place of an object that a worker has, or that waits for a worker.
    fn place(&self) -> Option<String> {
        if let Some(time) = self.in_work_for_seconds {
            return Some(format!("a worker has had it for {}", span(time)));
        }
        let lane = self
            .lane
            .as_ref()
            .filter(|_| self.delayed_for_seconds.is_none())?;
        Some(format!("it waits for a worker in the lane {lane}"))
    }
}

/// Returns the object that the query of a request names, if any.
///
/// # Errors
/// The parameter is not the name of an object.
pub(crate) fn requested(query: &str) -> Result<Option<ObjectName>, String> {
    let mut pairs = query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let Some((_, object)) = pairs.find(|(name, _)| *name == PARAMETER) else {
        return Ok(None);
    };
    // All other characters of a key are letters, digits, `-` or `.`, which no client encodes.
    let object = object.replace("%2F", "/").replace("%2f", "/");
    let name = parse(&object).map_err(|wanted| format!("{PARAMETER}={}: {wanted}", brief(&object)));
    name.map(Some)
}

/// Parses `NAMESPACE/NAME`, `KIND/NAMESPACE/NAME` or `KIND/NAME`.
///
/// # Errors
/// The text has another form.
pub(crate) fn parse(object: &str) -> Result<ObjectName, &'static str> {
    let mut parts: Vec<_> = object.split('/').collect();
    let name = parts.pop().filter(|name| is_subdomain(name, 253));
    let mut others = parts.iter().enumerate();
    // The first part may be a kind, in any case, as for `kubectl`.
    let is_name = others.all(|(at, part)| {
        let part = if at == 0 {
            part.to_ascii_lowercase()
        } else {
            (*part).to_owned()
        };
        is_subdomain(&part, 63)
    });
    if name.is_some() && is_name && matches!(parts.len(), 1 | 2) {
        Ok(ObjectName(object.to_owned()))
    } else {
        Err(FORM)
    }
}

/// Returns the request target for the state of one object.
pub(crate) fn path_of(object: &ObjectName) -> String {
    format!("{PATH}?{PARAMETER}={object}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn replica(leads: bool, holder: &str) -> State {
        let term = leads.then(|| json!({ "transitions": 1, "endsInSeconds": 8.0 }));
        let state = json!({
            "identity": "a_1", "version": "1", "commit": null, "uptimeSeconds": 1.0, "caches": [], "term": term,
            "lease": { "name": "n/l", "exists": true, "holder": holder, "seenSecondsAgo": 1.0, "durationSeconds": 15.0,
                       "transitions": 1 },
            "fence": { "open": leads, "record": null, "policyRejectsForSeconds": null }, "queue": null,
        });
        serde_json::from_value(state).expect("a state")
    }

    fn reason(replica: State, queue: Option<QueuedObject>, records: &[&str]) -> String {
        let records = records.iter().map(|name| Record::new(name, "why"));
        let work = ObjectWork {
            kind: "Widget",
            key: Key::new("n", "a"),
            cached: None,
            queue,
            records: records.collect(),
        };
        ObjectState::new(work, replica).reason
    }

    /// The kind chooses the controller. A program with a single controller needs none.
    #[test]
    fn a_name_chooses_one_kind() {
        const KINDS: [Kind; 3] = [
            Kind::custom("example.com", "v1", "Widget", "widgets"),
            Kind::custom("example.com", "v1", "WidgetBackup", "widgetbackups"),
            Kind::custom("example.com", "v1", "WidgetClass", "widgetclasses").cluster_scoped(),
        ];
        let all = KINDS.each_ref();
        let (two, object, class) = (&all[..2], Key::new("n", "a"), Key::cluster("a"));
        let wanted = "must be KIND/NAMESPACE/NAME with one of the kinds Widget, WidgetBackup";
        let or_class = format!("{wanted}, or KIND/NAME with one of the kinds WidgetClass");
        let only_class = "must be KIND/NAME with one of the kinds WidgetClass";
        for (text, kinds, chosen) in [
            ("n/a", &all[..1], Ok((0, &object))),
            ("widget/n/a", &all[..1], Ok((0, &object))),
            ("Widget/n/a", two, Ok((0, &object))),
            ("widgetbackup/n/a", two, Ok((1, &object))),
            ("n/a", two, Err(wanted)),
            ("other/n/a", two, Err(wanted)),
            ("widgetclass/a", &all, Ok((2, &class))),
            ("WidgetClass/a", &all[2..], Ok((0, &class))),
            ("widgetclass/n/a", &all, Err(&*or_class)),
            ("widget/a", &all, Err(&*or_class)),
            ("n/a", &all[2..], Err(only_class)),
        ] {
            let name = parse(text).expect("a name");
            assert_eq!(name.to_string(), text);
            let expected = chosen
                .map(|(at, key)| (at, key.clone()))
                .map_err(str::to_owned);
            assert_eq!(name.choose(kinds), expected, "{text}");
        }
        for wrong in ["a", "n/A", "/n/a", "k/n/a/b", "k_/n/a", "k/N/a"] {
            assert_eq!(parse(wrong), Err(FORM));
        }
    }

    /// The first record of [`ORDER`] is the reason, in any order of collection. The reconciler's own records have a place in the
    /// order, too.
    #[test]
    fn the_most_decisive_record_is_the_reason() {
        let own = [&ORDER[..11], &["own"], &ORDER[11..]].concat();
        for (first, name) in own.iter().enumerate() {
            let mut later = own[first..].to_vec();
            later.reverse();
            let idle = Some(QueuedObject::default());
            assert_eq!(
                reason(replica(true, "a_1"), idle, &later),
                format!("{name}: why")
            );
        }
        // Whether this replica leads matters only for the objects of its own installation.
        for leads in [true, false] {
            let found = reason(replica(leads, "b_2"), None, &[READINESS, INSTALLATION]);
            assert_eq!(found, format!("{INSTALLATION}: why"));
        }
    }

    /// A replica that does not lead comes first, then missing readiness, then a worker or the wait for one. The other records
    /// follow.
    #[test]
    fn leadership_and_workers_come_before_records() {
        let placed = |change: &dyn Fn(&mut QueuedObject)| {
            let mut queue = QueuedObject::default();
            change(&mut queue);
            Some(queue)
        };
        let waits = placed(&|it| it.lane = Some("event".into()));
        let delayed = placed(&|it| {
            it.lane = Some("background".into());
            it.delayed_for_seconds = Some(3.0);
        });
        let in_work = placed(&|it| it.in_work_for_seconds = Some(2.0));
        let leader = || replica(true, "a_1");
        for (replica, queue, records, expected) in [
            (
                replica(false, "b_2"),
                None,
                &[UP_TO_DATE][..],
                "this replica does not lead: b_2 holds the Lease",
            ),
            (
                replica(false, ""),
                None,
                &[],
                "this replica does not lead, and no replica holds the Lease",
            ),
            (
                leader(),
                None,
                &[],
                "this replica leads, but has not started workers",
            ),
            (
                leader(),
                in_work.clone(),
                &[UP_TO_DATE],
                "nothing holds it: a worker has had it for 2s",
            ),
            (leader(), in_work, &[READINESS], "readiness: why"),
            (
                leader(),
                waits.clone(),
                &[DISPUTE],
                "nothing holds it: it waits for a worker in the lane event",
            ),
            (
                leader(),
                waits,
                &[SLOW_NAMESPACE],
                "slowNamespace: why; it waits for a worker in the lane event",
            ),
            (leader(), delayed.clone(), &[BACKOFF], "backoff: why"),
            (
                leader(),
                delayed,
                &[],
                "nothing holds it: its reconcile is due in 3s",
            ),
            (
                leader(),
                Some(QueuedObject::default()),
                &[],
                "nothing holds it",
            ),
        ] {
            assert_eq!(reason(replica, queue, records), expected);
        }
    }

    /// The response contains a limited number of records.
    #[test]
    fn few_records_are_shown() {
        let many = vec![Record::new(DISPUTE, "why"); 1000];
        let work = ObjectWork {
            kind: "Widget",
            key: Key::new("n", "a"),
            cached: None,
            queue: None,
            records: many,
        };
        let state = ObjectState::new(work, replica(true, "a_1"));
        assert_eq!(state.records.len(), MOST);
        let timed = Record {
            ends_in_seconds: Some(61.2),
            ..Record::new(DISPUTE, "why")
        };
        assert_eq!(timed.to_string(), "dispute, for another 1m 1s: why");
    }
}
