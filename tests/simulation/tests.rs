//! The simulation is deterministic: what a seed shows, it shows again, in the same process and in another.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use super::{
    api::{Key, Kind, Others},
    found,
    judge::{Violation, examine, judge},
    mutants,
    plan::{Action, Calls, Fault, Happens, Machine, Plan, Settings, Step, Then, Way, What},
    trace::{End, Life, Role},
    users::{LEASE, LEASE_NAMESPACE},
    world::{FOOS, World},
};

/// Of the network's times, where the plan is written here.
const SEED: u64 = 17;

/// A plan in words, and its run.
fn told(plan: &Plan) -> (Vec<String>, Vec<Violation>) {
    let mut lines: Vec<String> = plan.to_string().lines().map(ToOwned::to_owned).collect();
    let (violations, world) = examine(plan);
    let told = world.map(|world| world.trace.lines(&world.store).join("\n"));
    lines.extend(
        told.iter()
            .flat_map(|told| told.lines())
            .map(ToOwned::to_owned),
    );
    (lines, violations)
}

/// The names of all that a plan draws from: faults, directions, what users do.
fn names(plan: &Plan) -> BTreeSet<String> {
    let all = format!("{:?}", plan.steps);
    let words = all.split(|c: char| !c.is_alphanumeric());
    let is_name = |word: &&str| word.starts_with(char::is_uppercase);
    words.filter(is_name).map(ToOwned::to_owned).collect()
}

/// A few seeds that have all that there is to draw between them.
fn seeds_of_everything() -> Vec<u64> {
    let plans = (1..300).map(|seed| (seed, names(&Plan::new(seed))));
    let plans: Vec<_> = plans.collect();
    let mut missing: BTreeSet<_> = plans.iter().flat_map(|(_, names)| names).collect();
    let mut seeds = Vec::new();
    while !missing.is_empty() {
        let new =
            |names: &BTreeSet<String>| names.iter().filter(|name| missing.contains(name)).count();
        let (seed, names) = plans.iter().max_by_key(|(_, names)| new(names)).unwrap();
        missing.retain(|name| !names.contains(*name));
        seeds.push(*seed);
    }
    seeds
}

/// Each mutant takes out something that is there, and once, so that it is known what it took out.
#[test]
fn what_mutants_take_out_is_there_once() {
    let mutants = mutants::all();
    assert!(mutants.len() >= 25, "{}", mutants.len());
    for mutant in mutants {
        for edit in mutant.edits() {
            let source = fs::read_to_string(&edit.file).unwrap();
            let (at, name) = (edit.at(), &mutant.name);
            assert_eq!(source.matches(at).count(), 1, "{name}: {at}");
            assert_eq!(at.matches(&*edit.old).count(), 1, "{name}: {at}");
            assert_ne!(edit.old, edit.new, "{name}");
        }
    }
}

/// What seeds have found stays mended.
#[test]
fn what_was_found_is_mended() {
    for (name, plan) in found::all() {
        assert_eq!(examine(&plan).0, [], "{name}");
    }
}

/// Each process has other hash keys, and each thread another time.
#[test]
fn a_seed_is_one_run() {
    let test = std::env::current_exe().unwrap();
    let builds = test.parent().and_then(Path::parent).unwrap();
    let program = builds.join("examples/simulate");
    assert!(
        program.exists(),
        "`cargo test --test integration` builds no examples: run `cargo build --example simulate` first"
    );
    let seeds = seeds_of_everything();
    assert!(seeds.len() > 2, "{seeds:?}");
    for seed in seeds {
        let plan = Plan::new(seed);
        let (first, violations) = told(&plan);
        assert_eq!(violations, [], "seed {seed}");
        assert!(first.len() > 100, "seed {seed}: {} lines", first.len());
        let again = thread::spawn(move || told(&plan)).join().unwrap();
        is_the_same(seed, &first, again.0.iter().map(String::as_str));
        let mut other = Command::new(&program);
        let other = other.args(["--seed", &seed.to_string()]).output().unwrap();
        let other = String::from_utf8(other.stdout).unwrap();
        is_the_same(seed, &first, other.lines());
    }
}

fn is_the_same<'a>(seed: u64, first: &[String], again: impl Iterator<Item = &'a str>) {
    let again: Vec<_> = again.collect();
    let differs = first.iter().zip(&again).find(|(one, other)| one != other);
    assert_eq!(differs, None, "seed {seed}");
    assert_eq!(first.len(), again.len(), "seed {seed}");
}

/// A leader that has Foos to see to, and users who want something else from the twentieth second on.
fn busy() -> Plan {
    let mut plan = Plan::calm(SEED, 2, 2, seconds(170));
    let foo = |name: &str| (name.to_owned(), format!("{name}-web"));
    for name in ["made", "scaled", "renamed", "deleted"] {
        let (foo, deployment) = foo(name);
        plan.act(
            seconds(1),
            Action::Create {
                foo,
                deployment,
                replicas: Some(1),
            },
        );
    }
    for at in [20, 30, 40] {
        let (foo, deployment) = foo(&format!("late-{at}"));
        plan.act(
            seconds(at),
            Action::Create {
                foo,
                deployment,
                replicas: Some(1),
            },
        );
    }
    for (at, replicas) in [(21, 2), (27, 3), (40, 1)] {
        plan.act(
            seconds(at),
            Action::Scale {
                foo: "scaled".into(),
                replicas,
            },
        );
    }
    plan.act(
        seconds(22),
        Action::Rename {
            foo: "renamed".into(),
            deployment: "other".into(),
        },
    );
    plan.act(
        seconds(23),
        Action::Delete {
            foo: "deleted".into(),
            policy: "Background",
        },
    );
    plan.steps.push(Step {
        at: seconds(60),
        what: What::Heal,
    });
    plan
}

/// That, where this goes wrong in the twentieth second; and the same without it.
fn with_and_without(faults: &[Fault], lasts: Duration) -> [Plan; 2] {
    let mut without = busy();
    let is = |what: fn(&Fault) -> bool| faults.iter().any(what);
    without.fencing = is(|fault| matches!(fault, Fault::FencingPart { .. }));
    let soon = |milliseconds| seconds(20) + Duration::from_millis(milliseconds);
    // What concerns who lists shows when something is listed, and what concerns who opens a watch when one is opened.
    let needs_list = is(|fault| matches!(fault, Fault::NoWatchList { .. }));
    if needs_list {
        without.fault(soon(5), Fault::Compact, Duration::ZERO);
    }
    let opens = |fault: &Fault| match fault {
        Fault::Cold { .. } | Fault::Compact => true,
        Fault::Call { of, .. } => of.verb == Some("watch"),
        _ => false,
    };
    if needs_list || faults.iter().any(opens) {
        let of = Calls::default();
        without.fault(soon(10), Fault::Reset { of }, Duration::ZERO);
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

/// What goes wrong of an API server, by its number.
type OfServer = fn(usize) -> Fault;

/// What goes wrong, together, and for how long; of a replica, with this one.
#[expect(clippy::too_many_lines, reason = "a table")]
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
    let each = |of: Calls, happens| {
        let nth = None;
        (Fault::Call { of, nth, happens }, seconds(8))
    };
    let soon = Then::SOON;
    let crash = |then| (Fault::Crash { replica, then }, Duration::ZERO);
    let revoked = Fault::Revoke {
        verb: "patch",
        resource: "deployments",
    };
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
        (Fault::Restore { bumped: true }, seconds(3)),
        (revoked, seconds(10)),
        (Fault::NoDefinition, seconds(10)),
        (Fault::NoNamespace, seconds(3)),
        (Fault::Fencing, seconds(30)),
        (Fault::FencingPart { record: true }, seconds(10)),
        (Fault::FencingPart { record: false }, seconds(10)),
    ];
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
        all.push((Fault::Partition { of: lease, way }, seconds(20)));
        let by = Duration::from_millis(300);
        all.push((
            Fault::Slow {
                of: Calls::default(),
                way,
                by,
            },
            seconds(20),
        ));
    }
    for happens in [
        Happens::RequestLost,
        Happens::RequestLate(seconds(2)),
        Happens::AnswerLost,
        Happens::AnswerLate(seconds(8)),
        Happens::Refused,
        Happens::ResetBefore,
        Happens::ConnectHangs,
        Happens::ResetAfter,
        Happens::Cut,
        Happens::Status {
            code: 409,
            retry_after: None,
            applied: false,
        },
        Happens::Status {
            code: 503,
            retry_after: Some(3),
            applied: false,
        },
        Happens::Status {
            code: 504,
            retry_after: None,
            applied: true,
        },
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

/// The replica that holds the Lease.
fn leader(world: &World) -> usize {
    let lease = Key::new(Kind::Lease, LEASE_NAMESPACE, LEASE);
    let holder = &world.store.get(&lease).unwrap()["spec"]["holderIdentity"];
    let mut lives = world.trace.lives.iter();
    let leader = lives.find(|life| *holder == life.identity()).unwrap();
    leader.who.replica
}

/// What the replicas did, and what came of it.
fn lines(world: &mut World) -> Vec<String> {
    world.trace.events.clear();
    world.trace.lines(&world.store)
}

/// Whatever goes wrong for a while makes a difference, and all is well in the end.
#[test]
fn every_fault_is_got_over() {
    let mut calm = World::new(busy());
    calm.run_until(seconds(20));
    let leader = leader(&calm);
    let wrong = Mutex::new(Vec::new());
    let faults = Mutex::new(faults(leader).into_iter());
    // By plan: few are different.
    let calm = Mutex::new(BTreeMap::new());
    let work = || {
        while let Some((faults, lasts)) = { faults.lock().unwrap().next() } {
            let [with, without] = with_and_without(&faults, lasts);
            let key = without.to_string();
            let known = calm.lock().unwrap().get(&key).cloned();
            let without = known.unwrap_or_else(|| {
                let mut without = World::new(without);
                without.run();
                let lines = Arc::new(lines(&mut without));
                calm.lock().unwrap().insert(key, Arc::clone(&lines));
                lines
            });
            let mut with = World::new(with);
            with.run();
            let violations = judge(&with.plan, &with.trace, &with.store);
            let mut what: Vec<_> = violations.iter().map(ToString::to_string).collect();
            if lines(&mut with) == *without {
                what.push("made no difference".to_owned());
            }
            if !what.is_empty() {
                let what = what.join("; ");
                wrong
                    .lock()
                    .unwrap()
                    .push(format!("{faults:?} for {lasts:?}: {what}"));
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    assert_eq!(wrong.into_inner().unwrap(), [""; 0]);
}

/// Row P2: the Deployment of the replicas is updated to other settings. There are never fewer processes than there should be.
#[test]
fn p2_an_upgrade_is_got_over() {
    let [mut plan, _] = with_and_without(&[Fault::Compact], Duration::ZERO);
    plan.replicas = vec![Machine::SOUND; 3];
    let settings = Settings {
        workers: 4,
        lease_duration: seconds(3),
        renew_deadline: seconds(2),
        retry_period: Duration::from_millis(500),
        image: "nginx:other",
        namespace: Some(FOOS),
        ..Settings::default()
    };
    let upgrade = settings.clone();
    plan.act(seconds(24), Action::Upgrade { settings: upgrade });
    let world = got_over(plan);
    let lives = &world.trace.lives;
    assert_eq!(lives.len(), 6);
    let there = |at| {
        let is_there = |life: &&Life| {
            life.begun <= at && life.ended.as_ref().is_none_or(|(ended, _)| *ended > at)
        };
        lives.iter().filter(is_there).count()
    };
    for life in lives {
        assert!((3..=5).contains(&there(life.begun)), "{life:?}");
        let Some((at, end)) = &life.ended else {
            assert_eq!(life.settings, settings);
            continue;
        };
        assert_eq!(end, &End::Returned, "{life:?}");
        assert!(there(*at) >= 3, "{life:?}");
    }
    has_image(&world, settings.image);
}

/// All is well in the end.
fn got_over(plan: Plan) -> World {
    let mut world = World::new(plan);
    world.run();
    let violations = judge(&world.plan, &world.trace, &world.store);
    assert_eq!(violations, []);
    world
}

fn has_image(world: &World, image: &str) {
    let deployments: Vec<_> = world.store.list(Kind::Deployment, None).collect();
    assert!(!deployments.is_empty());
    for (key, deployment) in deployments {
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], image, "{key:?}");
    }
}

/// Row P2, with clocks that go at different rates, the fencing component, and users who do not wait: pod after pod is replaced
/// by one that is configured otherwise.
#[test]
fn p2_a_rolling_update_is_got_over() {
    let [mut plan, _] = with_and_without(&[Fault::Compact], Duration::ZERO);
    plan.fencing = true;
    plan.replicas = [(900, 0), (1000, 3_600_000), (1100, -3_600_000)]
        .map(|(rate, wall)| Machine { rate, wall })
        .into();
    let settings = Settings {
        workers: 4,
        resync: seconds(24 * 3600),
        retry_period: seconds(5),
        image: "nginx:other",
        ..Settings::default()
    };
    for (replica, at) in [(0, 24), (1, 34), (2, 44)] {
        let settings = Some(settings.clone());
        plan.act(seconds(at), Action::Replace { replica, settings });
    }
    let world = got_over(plan);
    let lives = &world.trace.lives;
    assert_eq!(lives.len(), 6);
    for life in &lives[..3] {
        assert_eq!(
            life.ended.as_ref().map(|(_, end)| end),
            Some(&End::Returned),
            "{life:?}"
        );
    }
    has_image(&world, settings.image);
}
