//! The simulation is deterministic: what a seed shows, it shows again, in the same process and in another.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "cluster/audit.rs"]
#[allow(dead_code, reason = "no log is read here")]
mod cluster;
mod invariants;
#[path = "simulation/mod.rs"]
mod simulation;

use std::{fs, path::Path, process::Command, sync::Mutex, thread, time::Duration};

use simulation::{
    api::{Kind, Others},
    found,
    judge::{Violation, examine, judge},
    mutants,
    plan::{Action, Calls, Fault, Happens, Machine, Plan, Settings, Then, Way},
    trace::{End, Life, Role},
    world::{FOOS, World},
};

const SEED: u64 = 17;

fn run() -> (Vec<String>, Vec<Violation>) {
    let plan = Plan::new(SEED);
    let mut lines: Vec<String> = plan.to_string().lines().map(ToOwned::to_owned).collect();
    let (violations, world) = examine(&plan);
    lines.extend(
        world
            .iter()
            .flat_map(|world| world.trace.lines(&world.store)),
    );
    (lines, violations)
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
    let (first, violations) = run();
    assert_eq!(violations, []);
    assert!(first.len() > 100, "{} lines", first.len());
    let (again, _) = thread::spawn(run).join().unwrap();
    let differs = first.iter().zip(&again).find(|(one, other)| one != other);
    assert_eq!(differs, None);
    assert_eq!(first.len(), again.len());

    let test = std::env::current_exe().unwrap();
    let program = test
        .parent()
        .and_then(Path::parent)
        .unwrap()
        .join("examples/simulate");
    assert!(
        program.exists(),
        "`cargo test --test NAME` builds no examples: run `cargo build --example simulate` first"
    );
    let other = Command::new(program)
        .args(["--seed", &SEED.to_string()])
        .output()
        .unwrap();
    let other = String::from_utf8(other.stdout).unwrap();
    let differs = first
        .iter()
        .map(String::as_str)
        .zip(other.lines())
        .find(|(one, other)| one != other);
    assert_eq!(differs, None);
    assert_eq!(first.len(), other.lines().count());
}

/// A leader that has Foos to see to, and what happens to it, to its calls, or to the API servers.
fn plan_of(fault: &Fault, lasts: Duration) -> Plan {
    let mut plan = Plan::calm(SEED, 2, 2, seconds(110));
    plan.fencing = matches!(fault, Fault::FencingPart { .. });
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
    plan.fault(seconds(20), fault.clone(), lasts);
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
    plan
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn faults() -> Vec<(Fault, Duration)> {
    let (replica, server) = (0, 0);
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
        let fault = Fault::Call {
            of,
            nth: Some(1),
            happens,
        };
        (fault, Duration::ZERO)
    };
    let each = |of: Calls, happens| {
        let fault = Fault::Call {
            of,
            nth: None,
            happens,
        };
        (fault, seconds(8))
    };
    let then = Then::SOON;
    let mut all = vec![
        (
            Fault::Crash {
                replica,
                then: Then::Pod(seconds(3)),
            },
            Duration::ZERO,
        ),
        (
            Fault::Crash {
                replica,
                then: Then::Nobody,
            },
            Duration::ZERO,
        ),
        (Fault::Freeze { replica }, seconds(25)),
        (Fault::Suspend { replica }, seconds(25)),
        (
            Fault::WallJump {
                replica,
                by: -3_600_000,
            },
            seconds(20),
        ),
        (Fault::WallStill { replica }, seconds(20)),
        (
            Fault::Reset {
                of: Calls::default(),
            },
            Duration::ZERO,
        ),
        (Fault::Kill { server }, seconds(10)),
        (Fault::Pause { server }, seconds(3)),
        (
            Fault::Behind {
                server,
                by: seconds(5),
            },
            seconds(20),
        ),
        (Fault::Stuck { server }, seconds(20)),
        (Fault::Cold { server }, seconds(20)),
        (Fault::NoWatchList { server }, seconds(60)),
        (Fault::Compact, Duration::ZERO),
        (Fault::Restore { bumped: true }, seconds(3)),
        (
            Fault::Revoke {
                verb: "patch",
                resource: "deployments",
            },
            seconds(10),
        ),
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
        Happens::CrashBefore(then),
        Happens::CrashAt(then),
        Happens::CrashAfter(then),
    ] {
        all.extend([writes, lease].map(|of| first(of, happens.clone())));
    }
    for happens in [
        Happens::WatchEnds(Duration::ZERO),
        Happens::WatchSilent,
        Happens::WatchGarbage,
        Happens::Cut,
    ] {
        all.push((Fault::Reset { of: watches }, Duration::ZERO));
        all.push(each(watches, happens));
    }
    all
}

/// Whatever goes wrong for a while, all is well in the end.
#[test]
fn every_fault_is_got_over() {
    let violated = Mutex::new(Vec::new());
    let faults = Mutex::new(faults().into_iter());
    let work = || {
        while let Some((fault, lasts)) = { faults.lock().unwrap().next() } {
            let mut world = World::new(plan_of(&fault, lasts));
            world.run();
            let violations = judge(&world.plan, &world.trace, &world.store);
            if !violations.is_empty() {
                violated
                    .lock()
                    .unwrap()
                    .push(format!("{fault:?} for {lasts:?}: {violations:?}"));
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    assert_eq!(violated.into_inner().unwrap(), [""; 0]);
}

/// Row P2: the Deployment of the replicas is updated to other settings. There are never fewer processes than there should be.
#[test]
fn p2_an_upgrade_is_got_over() {
    let mut plan = plan_of(&Fault::Compact, Duration::ZERO);
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
    let mut plan = plan_of(&Fault::Compact, Duration::ZERO);
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
