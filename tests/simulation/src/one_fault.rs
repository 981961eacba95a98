//! Single faults: each affects a busy leader for a while, makes a difference, and is overcome.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use operator_simulation::{
    cases::{Case, Cases},
    judge::{Violation, examine},
    plan::{Action, Calls, Fault, Happens, Plan, Step, Then, Way, What},
    program::Program,
    trace::{Role, Time},
    world::World,
};
use operator_testkit::api_server::{Key, Kind, Others};
use parking_lot::Mutex;

use super::{
    FOO, Foo, calm,
    users::{Deed, LEASE, Policy, SYSTEM},
};

/// Seed of the latencies.
const SEED: u64 = 17;

pub const REPLICAS: usize = 2;

/// Number and name of the Deployment whose pods fail.
const ROLLED: u8 = 0;
const ROLLED_NAME: &str = "app-0";

/// Time of the heal.
pub const HEAL: Time = seconds(60);

/// Returns a plan with a leader that has Foos to reconcile, and users who change them from the twentieth second on.
pub fn busy() -> Plan {
    let mut plan = calm(SEED, REPLICAS, 2, seconds(170));
    plan.rest = seconds(130);
    for (foo, deployment) in [
        ("made", "made-web"),
        ("scaled", "scaled-web"),
        ("renamed", "renamed-web"),
        ("deleted", "deleted-web"),
    ] {
        plan.act(
            seconds(1),
            Action::user(Deed::Create {
                foo,
                deployment,
                replicas: Some(1),
            }),
        );
    }
    for (at, foo, deployment) in [
        (20, "late-20", "late-20-web"),
        (30, "late-30", "late-30-web"),
        (40, "late-40", "late-40-web"),
    ] {
        plan.act(
            seconds(at),
            Action::user(Deed::Create {
                foo,
                deployment,
                replicas: Some(1),
            }),
        );
    }
    for (at, replicas) in [(21, 2), (27, 3), (40, 1)] {
        plan.act(
            seconds(at),
            Action::user(Deed::Scale {
                foo: "scaled",
                replicas,
            }),
        );
    }
    plan.act(
        seconds(22),
        Action::user(Deed::Rename {
            foo: "renamed",
            deployment: "other",
        }),
    );
    plan.act(
        seconds(1),
        Action::user(Deed::Create {
            foo: "rolled",
            deployment: ROLLED_NAME,
            replicas: Some(1),
        }),
    );
    plan.act(
        seconds(24),
        Action::user(Deed::Scale {
            foo: "rolled",
            replicas: 2,
        }),
    );
    plan.act(
        seconds(23),
        Action::user(Deed::Delete {
            foo: "deleted",
            policy: Policy::Background,
        }),
    );
    plan.steps.push(Step {
        at: HEAL,
        what: What::Heal,
    });
    plan
}

/// Returns this plan with the faults, which begin in the twentieth second, and without them.
pub fn with_and_without(faults: &[Fault], lasts: Duration) -> [Plan; 2] {
    let mut without = busy();
    let is = |what: fn(&Fault) -> bool| faults.iter().any(what);
    without.fencing = is(|fault| matches!(fault, Fault::FencingPart { .. }));
    let soon = |milliseconds| seconds(20) + Duration::from_millis(milliseconds);
    // Some faults affect only lists or only new watches, so force these.
    let needs_list = is(|fault| {
        matches!(
            fault,
            Fault::NoWatchList { .. } | Fault::Revoke { verb: "list", .. }
        )
    });
    if needs_list {
        without.fault(soon(5), Fault::Compact, Duration::ZERO);
    }
    let opens = |fault: &Fault| match fault {
        Fault::Cold { .. } | Fault::Compact | Fault::Revoke { verb: "watch", .. } => true,
        Fault::Call { of, .. } => of.verb == Some("watch"),
        _ => false,
    };
    if needs_list || faults.iter().any(opens) {
        let of = Calls::default();
        without.fault(soon(10), Fault::Reset { of }, Duration::ZERO);
    }
    // Changes during a silent watch take effect when the silence is noticed.
    if let Some(noticed) = faults.iter().filter_map(Fault::is_noticed_in).max() {
        without.rest = HEAL + noticed;
        without.end = without.rest + seconds(50);
        without.act(
            seconds(100),
            Action::user(Deed::Scale {
                foo: "made",
                replicas: 2,
            }),
        );
    }
    let mut with = without.clone();
    for fault in faults {
        with.fault(seconds(20), fault.clone(), lasts);
    }
    [with, without]
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A fault of the API server with this number.
type OfServer = fn(usize) -> Fault;

/// Returns sets of simultaneous faults, and their durations. Faults of a single replica affect `replica`.
#[allow(clippy::too_many_lines, reason = "a table")]
fn faults(replica: usize) -> Vec<(Vec<Fault>, Duration)> {
    let work = Calls {
        role: Some(Role::Work),
        ..Calls::default()
    };
    let lease = Calls {
        role: Some(Role::Lease),
        ..Calls::default()
    };
    let writes = Calls {
        verb: Some("write"),
        ..work
    };
    let watches = Calls {
        verb: Some("watch"),
        ..work
    };
    let first = |of: Calls, happens| {
        let nth = Some(1);
        (Fault::Call { of, nth, happens }, Duration::ZERO)
    };
    let each = |of: Calls, happens| (Fault::each(of, happens), seconds(8));
    let soon = Then::SOON;
    let crash = |then| (Fault::Crash { replica, then }, Duration::ZERO);
    let jump = Fault::WallJump {
        replica,
        by: -3_600_000,
    };
    let mut all = vec![
        crash(Then::Pod(seconds(3))),
        crash(Then::Nobody),
        (Fault::Freeze { replica }, seconds(25)),
        (Fault::Suspend { replica }, seconds(25)),
        (jump, seconds(20)),
        (Fault::WallStill { replica }, seconds(20)),
        (Fault::Reset { of: work }, Duration::ZERO),
        (Fault::Compact, Duration::ZERO),
        (Fault::Restore, seconds(3)),
        (Fault::NoDefinition, seconds(10)),
        (Fault::NoCollector, seconds(20)),
        (Fault::NoNamespace, seconds(3)),
        (Fault::Fencing, seconds(30)),
        (Fault::FencingPart { record: true }, seconds(10)),
        (Fault::FencingPart { record: false }, seconds(10)),
    ];
    // Unused in this plan: the Lease exists, no event repeats, and only a new leader uses the fencing record.
    let unused = [
        ("create", "leases"),
        ("patch", "events"),
        ("get", "serviceaccounts"),
        ("patch", "serviceaccounts"),
    ];
    let is_used = |right: &&(&str, &str)| !unused.contains(*right);
    let foo: &dyn Program = &Foo;
    for (verb, resource) in foo.declared().rights.iter().filter(is_used) {
        all.push((Fault::Revoke { verb, resource }, seconds(10)));
    }
    for refused in [false, true] {
        let deployment = ROLLED;
        let fault = Fault::NoPods {
            deployment,
            refused,
        };
        all.push((fault, seconds(20)));
    }
    for policy in Others::ALL {
        all.push((Fault::Policy(policy), seconds(15)));
    }
    for way in [Way::Both, Way::Requests, Way::Answers] {
        all.push((
            Fault::Partition {
                of: Calls::default(),
                way,
            },
            seconds(20),
        ));
        all.extend([work, lease].map(|of| (Fault::Partition { of, way }, seconds(20))));
        let by = Duration::from_millis(300);
        let all_of_them = [Calls::default(), work, lease];
        all.extend(all_of_them.map(|of| (Fault::Slow { of, way, by }, seconds(20))));
    }
    for happens in [
        Happens::RequestLost,
        Happens::RequestLate(Duration::from_millis(1800)),
        Happens::AnswerLost,
        Happens::AnswerLate(seconds(8)),
        Happens::Refused,
        Happens::ResetBefore,
        Happens::ConnectHangs,
        Happens::ResetAfter,
        Happens::Cut,
        Happens::refused(409, None),
        Happens::refused(503, Some(3)),
        Happens::Status {
            code: 504,
            retry_after: None,
            applied: true,
        },
        Happens::Hangs(seconds(10)),
        Happens::Html,
        Happens::CrashBefore(soon),
        Happens::CrashAt(soon),
        Happens::CrashAfter(soon),
    ] {
        all.extend([writes, lease].map(|of| first(of, happens.clone())));
    }
    for happens in [
        Happens::WatchEnds(Duration::ZERO),
        Happens::WatchSilent,
        Happens::WatchFallsSilent,
        Happens::WatchGarbage,
        Happens::Cut,
    ] {
        all.push(each(watches, happens));
    }
    let of_a_server: [(OfServer, Duration); 6] = [
        (|server| Fault::Kill { server }, seconds(10)),
        (|server| Fault::Pause { server }, seconds(3)),
        (
            |server| Fault::Behind {
                server,
                by: seconds(5),
            },
            seconds(20),
        ),
        (|server| Fault::Stuck { server }, seconds(20)),
        (|server| Fault::Cold { server }, seconds(20)),
        (|server| Fault::NoWatchList { server }, seconds(40)),
    ];
    let mut all: Vec<_> = all
        .into_iter()
        .map(|(fault, lasts)| (vec![fault], lasts))
        .collect();
    all.extend(of_a_server.map(|(fault, lasts)| (vec![fault(0), fault(1)], lasts)));
    for one in [0, 1] {
        all.extend(
            of_a_server[..2]
                .iter()
                .map(|(fault, lasts)| (vec![fault(one)], *lasts)),
        );
    }
    all
}

/// Returns the replica that holds the Lease.
fn leader(world: &World) -> usize {
    let lease = Key::new(Kind::Lease, SYSTEM, LEASE);
    let holder = &world.store.get(&lease).unwrap()["spec"]["holderIdentity"];
    let mut lives = world.trace.lives.iter();
    let leader = lives.find(|life| *holder == life.identity()).unwrap();
    leader.who.replica
}

/// Returns the replicas' calls with their times and responses, and the resulting objects. Without versions, because every write
/// increases them, even the installation of a policy.
fn lines(world: &World) -> Vec<String> {
    let calls = world.trace.calls.iter().map(|call| {
        let path = call.path.split_inclusive(['?', '&']);
        let path: String = path
            .filter(|part| !part.starts_with("resourceVersion="))
            .collect();
        let (who, verb, at) = (call.who, call.verb, call.begun);
        format!("{at:?} {who}: {verb} {path}: {:?}", call.answered)
    });
    let objects = [FOO, Kind::Deployment]
        .into_iter()
        .flat_map(|kind| world.store.list(kind, None));
    let objects = objects.map(|(key, object)| {
        let metadata = &object["metadata"];
        let (labels, annotations) = (&metadata["labels"], &metadata["annotations"]);
        let (spec, status) = (&object["spec"], &object["status"]);
        format!("{key:?}: {labels} {annotations} {spec} {status}")
    });
    calls.chain(objects).collect()
}

/// Returns the faults for the actual leader, with their names.
fn all() -> Vec<(String, (Vec<Fault>, Duration))> {
    let mut calm = World::new(busy());
    calm.run_until(seconds(20));
    of_leader(leader(&calm))
}

/// Returns the faults for this leader, with their names.
pub fn of_leader(replica: usize) -> Vec<(String, (Vec<Fault>, Duration))> {
    let named = |(faults, lasts)| (format!("{faults:?} for {lasts:?}"), (faults, lasts));
    faults(replica).into_iter().map(named).collect()
}

/// Runs them for the actual leader.
pub const CASES: Cases = Cases {
    what: "faults",
    all: || {
        let calm = Arc::new(Calm::default());
        let case = |(name, fault): (String, (Vec<Fault>, Duration))| -> (String, Case) {
            let calm = Arc::clone(&calm);
            (name, Box::new(move || got_over(&fault, &calm)))
        };
        all().into_iter().map(case).collect()
    },
    plan_of: |name| {
        let mut all = (0..REPLICAS).flat_map(of_leader);
        let (_, (faults, lasts)) = all.find(|(its, _)| its == name)?;
        let [with, _] = with_and_without(&faults, lasts);
        Some(with)
    },
};

/// Results without a fault, by plan. Many faults share a plan.
type Calm = Mutex<BTreeMap<String, Arc<Vec<String>>>>;

/// Checks that the faults make a difference, and that the run violates no invariant.
fn got_over((faults, lasts): &(Vec<Fault>, Duration), calm: &Calm) -> Vec<Violation> {
    let [with, without] = with_and_without(faults, *lasts);
    let key = without.to_string();
    let known = calm.lock().get(&key).cloned();
    let without = known.unwrap_or_else(|| {
        let mut without = World::new(without);
        without.run();
        let lines = Arc::new(lines(&without));
        calm.lock().insert(key, Arc::clone(&lines));
        lines
    });
    let (mut found, with) = examine(&with);
    // A missing policy rejects no write, so the leader cannot notice it.
    let can_be_seen = !matches!(faults[..], [Fault::FencingPart { record: false }]);
    if can_be_seen && lines(&with) == *without {
        found.push(Violation::of_the_run("it makes no difference".to_owned()));
    }
    found
}
