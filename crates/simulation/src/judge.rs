//! Judges of a run: each invariant is a property of the store's history and of the calls.
//!
//! The checker of the tests on real processes, [`invariants`](crate::invariants), judges the calls as events of an audit log. The
//! other judges check properties that such a log does not show.

pub mod audit;
pub mod events;
pub mod fields;
pub mod hindered;
pub mod leader;
pub mod pauses;
pub mod rates;
pub mod rest;
pub mod sizes;
pub mod subject;
pub mod workers;
pub mod works;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use operator_testkit::api_server::{Key, Kind, Revision, Store};
use serde_json::Value;

use fields::text;
pub use leader::holder;

use super::{
    plan::{Fault, Plan, Settings},
    trace::{Call, End, Life, Reconcile, Time, Trace, Who, comes_at, seconds},
    world::{GRACE, World},
};

/// Step of the simulated time.
pub const STEP: Duration = Duration::from_millis(20);

/// Longest `Retry-After` that a replica honors.
pub const ASKED: Duration = Duration::from_secs(30);

/// Longest time that an API server that is behind enforces a removed policy.
pub const KNOWN: Duration = Duration::from_secs(45);

/// Violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Number of the invariant, such as `I1`.
    pub invariant: &'static str,
    pub at: Time,
    /// Name of the object or of the replica.
    pub object: String,
    /// Observed and expected state.
    pub what: String,
}

impl Violation {
    /// Returns a violation by the simulation itself.
    pub fn of_the_run(what: String) -> Self {
        Self {
            invariant: "run",
            at: Time::ZERO,
            object: "the simulation".to_owned(),
            what,
        }
    }

    /// Returns whether both are violations of the same invariant with the same message, apart from names and numbers.
    pub fn is_like(&self, other: &Self) -> bool {
        let words = |what: &str| {
            let words = what.split_whitespace().map(ToOwned::to_owned);
            let plain = words.filter(|word| word.chars().all(|c| c.is_lowercase() || c == ','));
            plain.take(4).collect::<Vec<_>>()
        };
        self.invariant == other.invariant && words(&self.what) == words(&other.what)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            invariant,
            at,
            object,
            what,
        } = self;
        write!(f, "{invariant} at {}, {object}: {what}", seconds(*at))
    }
}

/// Returns all violations of a run.
pub fn judge(plan: &Plan, trace: &Trace, store: &Store) -> Vec<Violation> {
    let case = Case::of(plan, trace, store, "");
    let mut found = Vec::new();
    match plan.program.installations() {
        [_] => judge_leaders(&case, &mut found),
        all => {
            for name in all {
                let trace = trace.of_places(|place| plan.program.installation(place) == *name);
                judge_leaders(&Case::of(plan, &trace, store, name), &mut found);
            }
        }
    }
    stays_up(&case, &mut found);
    plan.program.judge(&case, &mut found);
    found
}

/// Judges the replicas that share one Lease.
fn judge_leaders(case: &Case<'_>, found: &mut Vec<Violation>) {
    leader::holds_the_lease(case, found);
    leader::one_leads(case, found);
    leader::keeps_to_its_term(case, found);
    leader::somebody_leads(case, found);
    works::hands_over(case, found);
    works::takes_over(case, found);
    works::lets_go(case, found);
}

/// Runs a plan and judges it. A panic is a violation as well, in the simulation (as for an unknown request) or in a judge. The
/// world then has the state at the panic.
pub fn examine(plan: &Plan) -> (Vec<Violation>, World) {
    let mut world = World::new(plan.clone());
    let found = caught(|| world.run()).and_then(|()| {
        let judge = || judge(plan, &world.trace, &world.store);
        caught(judge)
    });
    (found.unwrap_or_else(|violation| vec![violation]), world)
}

fn caught<T>(run: impl FnOnce() -> T) -> Result<T, Violation> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Violation::of_the_run(text.unwrap_or_default())
    })
}

/// Run, with data that several judges use.
pub struct Case<'a> {
    pub plan: &'a Plan,
    pub trace: &'a Trace,
    pub store: &'a Store,
    /// Of the judged installation.
    pub lease: Key,
    /// Pods of the replicas: their users in the checker's audit log.
    pub pods: BTreeSet<String>,
    /// Call that wrote each revision, by its index in the store's history.
    writers: BTreeMap<usize, &'a Call>,
    /// Rates of the fastest and of the slowest clock, in thousandths.
    pub rates: (u32, u32),
    /// When backups were restored.
    pub restored: Vec<Time>,
    /// When the machine slept, by place.
    pub asleep: BTreeMap<usize, Vec<Range<Time>>>,
    /// Versions up to which a process had received all changes, with the time, by process and resource.
    pub told: BTreeMap<(Who, &'a str), Vec<(Time, u64)>>,
    /// Reconciles of each object, by `namespace/name`, in order of time.
    pub reconciles: BTreeMap<&'a str, Vec<&'a Reconcile>>,
    /// History of the objects, by kind and name.
    objects: BTreeMap<Kind, BTreeMap<&'a str, Vec<&'a Revision>>>,
}

impl<'a> Case<'a> {
    fn of(plan: &'a Plan, trace: &'a Trace, store: &'a Store, installation: &str) -> Self {
        let rates = plan
            .replicas
            .iter()
            .map(|machine| machine.rate)
            .chain([1000]);
        let writers = trace.calls.iter();
        let restored = trace.faults.iter().filter_map(|(time, fault)| {
            let is_restored = matches!(fault, Fault::Restore) && time.end < Time::MAX;
            is_restored.then_some(time.end)
        });
        let mut told = BTreeMap::<_, Vec<_>>::new();
        for call in &trace.calls {
            let its = told.entry((call.who, &*call.resource)).or_default();
            its.extend(&call.told);
        }
        let mut reconciles = BTreeMap::<_, Vec<_>>::new();
        for one in &trace.reconciles {
            reconciles.entry(&*one.key).or_default().push(one);
        }
        let mut objects = BTreeMap::<_, BTreeMap<_, Vec<_>>>::new();
        for revision in store.history() {
            let of_kind = objects.entry(revision.key.kind).or_default();
            let one = of_kind.entry(&*revision.key.name).or_default();
            one.push(&**revision);
        }
        let (program, lease) = (plan.program, plan.program.lease(installation));
        Self {
            plan,
            trace,
            store,
            lease: Key::new(Kind::Lease, program.system(), &lease),
            pods: trace.lives.iter().map(|life| life.pod.0.clone()).collect(),
            writers: writers
                .flat_map(|call| call.written.clone().map(move |index| (index, call)))
                .collect(),
            rates: rates.fold((1000, 1000), |(fast, slow), rate| {
                (fast.max(rate), slow.min(rate))
            }),
            restored: restored.collect::<BTreeSet<_>>().into_iter().collect(),
            asleep: trace.asleep(),
            told,
            reconciles,
            objects,
        }
    }

    /// Returns the history of the objects of this kind and name.
    pub fn history_of(&self, kind: Kind, name: &str) -> &[&'a Revision] {
        let its = self.objects.get(&kind).and_then(|all| all.get(name));
        its.map_or(&[], Vec::as_slice)
    }

    /// Returns the names of the objects of this kind.
    pub fn names_of(&self, kind: Kind) -> impl Iterator<Item = &'a str> {
        let its = self.objects.get(&kind).into_iter();
        its.flat_map(BTreeMap::keys).copied()
    }

    /// Converts a time on a replica's clock to simulated time, for the slowest clock.
    pub fn longest(&self, time: Duration) -> Duration {
        time * 1000 / self.rates.1
    }

    /// Converts a time on a replica's clock to simulated time, for the fastest clock.
    pub fn shortest(&self, time: Duration) -> Duration {
        time * 1000 / self.rates.0
    }

    /// Converts a time on the clock of this process to simulated time. Replicas that an update adds have the clock of the first
    /// replica.
    pub fn takes(&self, who: Who, time: Duration) -> Duration {
        let machines = &self.plan.replicas;
        let machine = machines.get(who.replica).unwrap_or(&machines[0]);
        time * 1000 / machine.rate
    }

    /// Returns the version up to which a process had received and read all changes by this time. A process that stands still
    /// reads nothing. Changes that arrive while its machine sleeps arrive by the clock of the machine, which stands still.
    pub fn told(&self, who: Who, resource: &str, at: Time) -> u64 {
        /// A change is read in the step of its arrival, or in the next.
        const READ: Duration = STEP.saturating_mul(2);
        let still = self.life(who).into_iter().flat_map(|life| &life.still);
        let read = (still.cloned().chain(self.asleep(who)))
            .filter(|still| still.start <= at && at <= still.end.saturating_add(READ))
            .fold(at, |read, still| read.min(still.start))
            .saturating_sub(READ);
        let asleep = self.asleep.get(&who.replica);
        let asleep = asleep.map_or(&[][..], Vec::as_slice);
        let told = self.told.get(&(who, resource)).into_iter().flatten();
        let told = told.filter(|(at, _)| comes_at(asleep, *at) <= read);
        told.map(|(_, version)| *version).max().unwrap_or_default()
    }

    /// Returns when this time has passed for a process. Its clock stands still while its machine sleeps.
    pub fn by_its_clock(&self, who: Who, begun: Time, time: Duration) -> Time {
        let slept = self.asleep.get(&who.replica).into_iter().flatten();
        let slept = slept.filter(|slept| slept.end > begun);
        slept.fold(begun + self.longest(time), |due, slept| {
            if slept.start > due {
                return due;
            }
            due.saturating_add(slept.end.saturating_sub(slept.start.max(begun)))
        })
    }

    /// Returns when the machine slept, each time until the clock has caught up with the messages that arrived.
    pub fn asleep(&self, who: Who) -> impl Iterator<Item = Range<Time>> {
        let all = self.asleep.get(&who.replica).map_or(&[][..], Vec::as_slice);
        all.iter().map(|time| time.start..comes_at(all, time.end))
    }

    /// Returns the reconcile of this object that sent the call.
    pub fn reconcile_of(&self, call: &Call, key: &str) -> Option<&'a Reconcile> {
        let its = self.reconciles.get(key)?;
        let mut its = its.iter().rev().filter(|one| one.who == call.who);
        its.find(|one| one.begun <= call.begun).copied()
    }

    /// Returns the begin of the reconcile that sent a call about a dependent. Objects of several kinds have its name, so this is
    /// the first reconcile that had not ended.
    pub fn reconcile_begun(&self, call: &Call, namespace: &str) -> Time {
        let name = match call.verb {
            "create" => text(&call.body["metadata"]["name"]),
            _ => call.name(),
        };
        let its = self.reconciles.get(&*format!("{namespace}/{name}"));
        let mut its = its
            .into_iter()
            .flatten()
            .filter(|one| one.who == call.who && one.ended.is_none_or(|ended| ended >= call.begun));
        let first = its.next();
        first.map_or(call.begun, |one| one.begun.min(call.begun))
    }

    /// Returns the replica's call that wrote this revision.
    pub fn writer(&self, index: usize) -> Option<&'a Call> {
        self.writers.get(&index).copied()
    }

    pub fn life(&self, who: Who) -> Option<&'a Life> {
        self.trace.lives.iter().find(|life| life.who == who)
    }

    /// Returns the pod of the sender. The API server sees all replicas as the same user.
    pub fn pod(&self, call: &Call) -> &'a str {
        self.life(call.who).map_or("", |life| &life.pod.0)
    }

    /// Returns the installation that the label of an object names.
    pub fn installation_of<'v>(&self, object: &'v Value) -> &'v str {
        let label = format!("{}/installation", self.plan.program.app().group);
        text(&object["metadata"]["labels"][label])
    }

    /// Returns the longest value of this setting in any process, by the slowest clock.
    pub fn longest_of(&self, time: fn(&Settings) -> Duration) -> Duration {
        let times = self.trace.lives.iter().map(|life| time(&life.settings));
        self.longest(times.max().unwrap_or_else(|| time(&self.plan.settings)))
    }

    /// Returns the holder of the Lease at the end.
    pub fn last_leader(&self) -> Option<Who> {
        let lease = self.store.get(&self.lease)?;
        let mut lives = self.trace.lives.iter().rev();
        let leader = lives.find(|life| leader::holder(lease) == life.identity())?;
        Some(leader.who)
    }

    /// Returns whether an API server that is behind may have enforced a policy of another client.
    pub fn has_policy(&self, at: Time) -> bool {
        self.trace.faults.iter().any(|(time, fault)| {
            let known = time.start..time.end.saturating_add(KNOWN);
            matches!(fault, Fault::Policy(_)) && known.contains(&at)
        })
    }

    /// Returns whether the definition that faults remove is missing, or was until the watches have been reopened.
    pub fn is_undefined(&self, at: Time) -> bool {
        const ANEW: Duration = Duration::from_secs(8);
        self.trace.faults.iter().any(|(time, fault)| {
            let is_it = matches!(fault, Fault::NoDefinition);
            is_it && (time.start..time.end.saturating_add(ANEW)).contains(&at)
        })
    }
}

/// Returns the pod of the holder of a Lease.
fn pod_of(identity: &str) -> &str {
    identity.split('_').next().unwrap_or_default()
}

/// Returns the name of an object for messages.
pub fn named(key: &Key) -> String {
    format!("{} {}/{}", key.kind.info().kind, key.namespace, key.name)
}

/// Returns the name in `namespace/name`.
pub fn name_of(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or_default()
}

pub fn made(revision: &Revision) -> Time {
    revision.at.since_start
}

/// Checks that a process ends only after a stop request, and within its time limit. It must not end on its own, and its liveness
/// probe must not fail. Time in which the process is suspended does not count. Time of hanging requests counts.
fn stays_up(case: &Case, found: &mut Vec<Violation>) {
    /// Time without liveness before the kubelet restarts a process. A process that stood still for long is excused.
    const PROBED: Duration = Duration::from_secs(30);
    for life in &case.trace.lives {
        let ended = life
            .ended
            .as_ref()
            .map_or(case.plan.end, |(ended, _)| *ended);
        let took = life.asked.map_or(Duration::ZERO, |asked| {
            let stood_still = life.stood_still(&(asked..ended));
            ended.saturating_sub(asked).saturating_sub(stood_still)
        });
        let what = match &life.ended {
            Some((_, End::Panicked(why))) => format!("panicked: {why}"),
            Some((_, End::Failed(why))) => format!("ended by itself: {why}"),
            _ if let Some(at) = life.unwell
                && life.stood_still(&(at.saturating_sub(PROBED)..at)) < PROBED / 2 =>
            {
                format!("was not live at {}", seconds(at))
            }
            Some((_, End::Returned)) if life.asked.is_none() => "ended by itself".to_owned(),
            _ if took > case.takes(life.who, to_stop(&life.settings)) => {
                format!("took {took:?} to stop, or longer")
            }
            // The process must not need SIGKILL by the kubelet, even with a slow clock.
            Some((_, End::Killed)) if took >= GRACE => "did not stop".to_owned(),
            _ => continue,
        };
        found.push(Violation {
            invariant: "I12",
            at: ended,
            object: life.pod.0.clone(),
            what,
        });
    }
}

/// Returns the longest time that a process takes to stop, as docs/operations.md specifies it for SIGTERM.
fn to_stop(settings: &Settings) -> Duration {
    const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(20);
    let calls = (settings.renew_deadline * 3 / 2).max(Duration::from_secs(3));
    SHUTDOWN_TIMEOUT + calls + Duration::from_millis(1500) + STEP
}
