//! Regression cases, rolling updates of the replicas, and tests of the simulation itself. All other runs need an optimised
//! build: `make simulate`.

use std::{collections::BTreeSet, fs, time::Duration};

use operator_simulation::{
    cases::{self, Programs},
    judge::{Violation, examine, holder, judge},
    plan::{Action, Calls, Fault, Happens, Machine, Plan, Settings, Step, What},
    program::Program as _,
    request::Request,
    scripts, seeds,
    shrink::{as_arguments, shrink, source},
    subject::{Operator, Subject, Verdict, View},
    trace::{Call, End, Life},
    world::World,
};
use operator_testkit::api_server::Kind;
use serde_json::json;

use super::{
    Foo, REPOSITORY, calm, found, mutants,
    one_fault::{self, with_and_without},
    responses,
    users::{Deed, LEASE, NAMESPACE, SYSTEM},
};

/// Registers the operators of the repository in this process.
fn register() {
    Programs::of_repository(&Foo, REPOSITORY, []).register();
}

/// The text that a mutant replaces occurs once in its file.
#[test]
fn the_replaced_text_of_each_mutant_occurs_once() {
    let mutants = mutants::all();
    assert!(mutants.len() >= 25, "{}", mutants.len());
    for mutant in mutants {
        for edit in mutant.edits() {
            let source = fs::read_to_string(mutants::root().join(&edit.file)).unwrap();
            let (at, name) = (edit.at(), &mutant.name);
            assert_eq!(source.matches(at).count(), 1, "{name}: {at}");
            assert_eq!(at.matches(&*edit.old).count(), 1, "{name}: {at}");
            assert_ne!(edit.old, edit.new, "{name}");
        }
    }
}

/// Each invariant finds a mutant. Otherwise it might hold for every operator.
#[test]
fn each_invariant_finds_a_mutant() {
    let mutants = mutants::all();
    let finders = mutants.iter().flat_map(|mutant| mutant.finder.split(' '));
    let finders: BTreeSet<_> = finders.collect();
    let all = (1..=21).map(|number| format!("I{number}"));
    let idle: Vec<_> = all.filter(|it| !finders.contains(&**it)).collect();
    assert_eq!(idle, [""; 0]);
}

/// The documentation has a table of the mutants that several operators must find, with their finders.
#[test]
fn the_table_of_mutants_has_their_finders() {
    let readme = fs::read_to_string(mutants::root().join("tests/README.md")).unwrap();
    let mut mutants = mutants::all();
    mutants.retain(|mutant| mutant.programs.len() > 1);
    for mutants::Mutant {
        name,
        finder,
        programs,
        ..
    } in mutants
    {
        let operators = ["foo-controller", "relay-operator", "bucket-operator"];
        let by = operators.map(|it| programs.get(it).map_or("(has none)", |by| by));
        let row = format!("| {name} | {finder} | {} |\n", by.join(" | "));
        assert!(readme.contains(&row), "{row}");
    }
}

/// Finds mutants that no longer compile, without running them.
#[test]
fn mutants_compile() {
    let workspace = tempfile::tempdir().unwrap();
    mutants::write(&mutants::all(), workspace.path());
    let what = ["check", "--lib"];
    mutants::cargo(workspace.path(), &what, &mutants::builds());
}

/// `make simulate` runs all of them.
#[test]
fn q3f_requests_are_paced_for_some_responses() {
    for (name, case) in responses::all().into_iter().step_by(70) {
        let found = responses::check(&case);
        assert!(found.is_empty(), "{name}: {}", found[0]);
    }
}

/// Every fault is tested on its own as well.
#[test]
fn each_fault_is_tested_alone() {
    let number = |fault: &Fault| match fault {
        Fault::Crash { .. } => 0,
        Fault::Freeze { .. } => 1,
        Fault::Suspend { .. } => 2,
        Fault::WallJump { .. } => 3,
        Fault::WallStill { .. } => 4,
        Fault::Partition { .. } => 5,
        Fault::Slow { .. } => 6,
        Fault::Call { .. } => 7,
        Fault::Reset { .. } => 8,
        Fault::Kill { .. } => 9,
        Fault::Pause { .. } => 10,
        Fault::Behind { .. } => 11,
        Fault::Stuck { .. } => 12,
        Fault::Cold { .. } => 13,
        Fault::NoWatchList { .. } => 14,
        Fault::Compact => 15,
        Fault::Restore => 16,
        Fault::Revoke { .. } => 17,
        Fault::NoDefinition => 18,
        Fault::Fencing => 19,
        Fault::FencingPart { .. } => 20,
        Fault::Policy(_) => 21,
        Fault::NoPods { .. } => 22,
        Fault::NoNamespace => 23,
        Fault::NoCollector => 24,
    };
    let all = one_fault::of_leader(0).into_iter();
    let tried: BTreeSet<_> = all
        .flat_map(|(_, (faults, _))| faults)
        .map(|fault| number(&fault))
        .collect();
    assert!(tried.into_iter().eq(0..25));
}

const FOUND: [&str; 2] = [
    include_str!("found/election.rs"),
    include_str!("found/objects.rs"),
];

/// Every regression case passes.
#[test]
fn regression_cases_pass() {
    let all = found::all();
    let held = FOUND.map(|file| file.matches("\npub fn ").count());
    assert_eq!(all.len(), held.iter().sum::<usize>());
    for (name, plan) in all {
        assert_eq!(examine(&plan).0, [], "{name}");
    }
}

/// The name of a case leads to its plan, for any operator that is tested and for any leader.
#[test]
fn every_case_name_leads_to_its_plan() {
    let text = |plan: Option<Plan>| plan.map(|plan| plan.to_string());
    register();
    let script = scripts::all().into_iter().find(|one| one.name == "create");
    let script = script.unwrap();
    let world = run(&script.plan);
    let variations = script.variations(&world.trace);
    assert!(variations.len() > 100);
    // Each lookup takes some time.
    let few = variations.into_iter().step_by(50);
    for (name, plan) in few.chain(cases::whole()) {
        assert_eq!(text(cases::plan_of(&name)), text(Some(plan)), "{name}");
    }
    for replica in 0..one_fault::REPLICAS {
        for (name, (faults, lasts)) in one_fault::of_leader(replica) {
            let [plan, _] = with_and_without(&faults, lasts);
            assert_eq!(text(cases::plan_of(&name)), text(Some(plan)), "{name}");
        }
    }
    for (name, case) in responses::all().into_iter().step_by(50) {
        assert_eq!(
            text(cases::plan_of(&name)),
            text(Some(case.plan())),
            "{name}"
        );
    }
    assert_eq!(
        text(cases::plan_of("seed 3")),
        text(Some(Plan::of(&Foo, 3)))
    );
    assert_eq!(text(cases::plan_of("create: typo")), None);
}

/// A printed plan is Rust: [`found`] contains two printed plans, and every name in other printed plans has its type.
#[test]
fn printed_plans_compile() {
    const PRINTED: [&str; 2] = [
        "gone_while_the_watch_is_stuck",
        "answer_lost_of_a_lease_that_is_nobodys",
    ];
    const BY_THEMSELVES: [&str; 7] = [
        "Plan", "Foo", "Settings", "Machine", "Calls", "Some", "None",
    ];
    let without_format = |text: &str| text.replace([' ', '\n', ','], "");
    let held = FOUND.map(without_format).concat();
    let printed = |(name, _): &(String, Plan)| PRINTED.contains(&&**name);
    let found: Vec<_> = found::all().into_iter().filter(printed).collect();
    assert_eq!(found.len(), PRINTED.len());
    for (name, plan) in found {
        let source = without_format(source(&plan, &name, "").trim_start_matches("/// \n"));
        assert!(held.contains(&source), "{name}: {source}");
    }
    let [by_name, _] = with_and_without(&[Fault::Compact], Duration::ZERO);
    let deed = r#"Action::user(Deed::Create { foo: "made", deployment: "made-web""#;
    assert!(source(&by_name, "seed", "").contains(deed));
    for seed in seeds::of_everything(&Foo) {
        let source = source(&Plan::of(&Foo, seed), "seed", "");
        let words = source.split(|c: char| !c.is_alphanumeric() && c != ':' && c != '_');
        let is_name = |word: &&str| word.starts_with(char::is_uppercase) && !word.contains("::");
        for word in words.filter(is_name) {
            let word = word.trim_end_matches(':');
            assert!(BY_THEMSELVES.contains(&word), "seed {seed}: {word}");
        }
    }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Another replica leads after the crash. Otherwise the script would not test a takeover.
#[test]
fn the_takeover_script_changes_the_leader() {
    register();
    let all = scripts::all().into_iter();
    let takeovers: Vec<_> = all.filter(|it| it.name.starts_with("takeover")).collect();
    assert_eq!(takeovers.len(), 2);
    for script in takeovers {
        let world = got_over(script.plan);
        let leases = world.store.history().iter();
        let leases = leases.filter(|one| one.key.kind == Kind::Lease);
        let holders = leases.filter_map(|one| Some(holder(one.after.as_deref()?).to_owned()));
        let holders: BTreeSet<_> = holders.filter(|holder| !holder.is_empty()).collect();
        assert!(holders.len() >= 2, "{}: {holders:?}", script.name);
    }
}

/// The Deployment of the replicas is updated to other settings. The number of processes never falls below the desired number.
#[test]
fn p2_an_upgrade_keeps_the_number_of_processes() {
    let [mut plan, _] = with_and_without(&[Fault::Compact], Duration::ZERO);
    plan.replicas = vec![Machine::SOUND; 3];
    let settings = Settings {
        workers: 4,
        lease_duration: seconds(3),
        renew_deadline: seconds(2),
        retry_period: Duration::from_millis(500),
        image: "nginx:other",
        namespace: Some(NAMESPACE),
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

/// Runs the plan, and requires that no invariant is violated.
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

/// The pods are replaced one after the other by pods with other settings. The clocks have different rates, the fencing
/// component is installed, and users do not wait.
#[test]
fn p2_the_operator_survives_a_rolling_update() {
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

/// Returns a plan, and the place of its leader. A user creates a Foo, the standby and then the leader are replaced, and the Foo
/// is scaled.
fn handed_over() -> (Plan, usize) {
    let mut plan = calm(1, 2, 2, seconds(80));
    let (foo, deployment, replicas) = (0, 0, Some(1));
    let foo_made = Deed::CreateFoo {
        foo,
        deployment,
        replicas,
    };
    plan.act(seconds(2), Action::user(foo_made));
    let leader = leader(&run(&plan)).who.replica;
    for (at, replica) in [(40, 1 - leader), (50, leader)] {
        let settings = None;
        plan.act(seconds(at), Action::Replace { replica, settings });
    }
    let replicas = Some(3);
    plan.act(seconds(60), Action::user(Deed::ScaleFoo { foo, replicas }));
    (plan, leader)
}

fn run(plan: &Plan) -> World {
    let mut world = World::new(plan.clone());
    world.run();
    world
}

/// Returns the process that holds the Lease at the end.
fn leader(world: &World) -> &Life {
    let (_, lease) = world.store.list(Kind::Lease, None).next().unwrap();
    let mut lives = world.trace.lives.iter();
    lives.find(|life| holder(lease) == life.identity()).unwrap()
}

/// Returns the violations of this invariant.
fn found_by(invariant: &str, world: &World) -> Vec<Violation> {
    let mut found = judge(&world.plan, &world.trace, &world.store);
    found.retain(|violation| violation.invariant == invariant);
    found
}

/// A write may land after the release only if its machine or its API server stood still in between. A pause of another machine
/// or API server, or at another time, is no excuse.
#[test]
fn i1_only_a_pause_during_a_write_excuses_a_late_write() {
    let (mut plan, leader) = handed_over();
    let (of_it, elsewhere) = (leader, 1 - leader);
    plan.fault(seconds(70), Fault::Suspend { replica: of_it }, seconds(1));
    plan.fault(seconds(75), Fault::Pause { server: 0 }, seconds(1));
    let mut world = run(&plan);
    assert_eq!(found_by("I1", &world), []);
    // The write of the second leader, as if the first had sent it before the release.
    let calls = &mut world.trace.calls;
    let gives_back = |call: &&Call| {
        call.verb == "patch" && call.body.pointer("/spec/holderIdentity") == Some(&json!(""))
    };
    let back = calls.iter().find(gives_back).unwrap();
    let (who, begun) = (back.who, back.begun);
    assert_eq!(who.replica, leader);
    let scaled = |call: &&mut Call| {
        call.begun > seconds(60) && call.resource == "deployments" && call.verb == "patch"
    };
    let late = calls.iter_mut().find(scaled).unwrap();
    (late.who, late.sent) = (who, begun.saturating_sub(Duration::from_millis(1)));
    let server = late.server;
    assert_eq!(found_by("I1", &world).len(), 1);

    let then = seconds(52)..seconds(53);
    for (fault, is_excused) in [
        (Fault::Suspend { replica: of_it }, true),
        (Fault::Suspend { replica: elsewhere }, false),
        (Fault::Pause { server }, true),
        (Fault::Pause { server: 1 - server }, false),
    ] {
        world.trace.faults.insert(0, (then.clone(), fault.clone()));
        assert_eq!(found_by("I1", &world).is_empty(), is_excused, "{fault:?}");
        world.trace.faults.remove(0);
    }
}

/// A Lease that a user cleared and its holder has taken back is an ordinary Lease to a replica that sees it later.
#[test]
fn i9_a_lease_that_was_cleared_once_excuses_nothing_later() {
    let (mut plan, _) = handed_over();
    plan.steps.retain(|step| step.at < seconds(50));
    plan.act(seconds(30), Action::user(Deed::ClearHolder));
    let world = run(&plan);
    assert_eq!(found_by("I9", &world), []);
    let leader = leader(&world).who;
    let mut lives = world.trace.lives.iter().rev();
    let other = lives
        .find(|life| life.who.replica != leader.replica)
        .unwrap();
    assert!(other.begun > seconds(40));
    // The other replica believes this edit, and its rival has not seen the edit yet.
    let holder = json!({ "spec": { "holderIdentity": other.identity() } });
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{LEASE}");
    plan.act(seconds(60), Request::patch(lease, holder));
    assert_eq!(found_by("I9", &run(&plan)).len(), 1);
}

/// An operator of an author, whose desired state is never reached.
struct Unreached;

impl Subject for Unreached {
    type Object = foo_controller::api::Foo;

    fn settled(&self, _: &Self::Object, _: &View<'_>) -> Verdict {
        Err("it is not as it should be".to_owned())
    }
}

fn of_an_author() -> &'static Operator {
    let operator = Operator::new(&foo_controller::APP, |program, place| {
        Foo.build(program, place);
    });
    Box::leak(Box::new(
        operator.subject(foo_controller::api::crd(), Unreached),
    ))
}

/// The arguments that are printed for a shrunk plan of a seed run the same plan. The plan of a script has none.
#[test]
fn the_arguments_of_a_shrunk_plan_lead_to_it() {
    let program = of_an_author();
    let mut plan = Plan::of(program, 3);
    let steps = plan.steps.into_iter().enumerate();
    let kept = steps.filter(|(number, _)| number % 3 > 0);
    plan.steps = kept.map(|(_, step)| step).collect();
    let arguments = as_arguments(&plan).unwrap();
    let (seed, left_out) = arguments.split_once(" --without ").unwrap();
    let name = program.app().name;
    assert_eq!(seed, format!("--program {name} --seed 3"));
    let left_out: Vec<usize> = left_out.split(',').map(|it| it.parse().unwrap()).collect();
    let mut again = Plan::of(program, 3);
    let mut number = 0..;
    again
        .steps
        .retain(|_| number.next().is_none_or(|it| !left_out.contains(&it)));
    assert_eq!(again.to_string(), plan.to_string());
    assert_eq!(as_arguments(&Plan::of(program, 3)).as_deref(), Some(seed));
    for script in program.scripts() {
        assert_eq!(as_arguments(&script.plan), None, "{}", script.name);
    }
}

/// A replica repeats a list that a fault spoilt. The judge does not count this as a second watch.
#[test]
fn i11_a_spoilt_list_is_sent_again() {
    let mut plan = of_an_author().scripts().remove(0).plan;
    let fault = Fault::Call {
        of: Calls::of("stream", "foos"),
        nth: Some(1),
        happens: Happens::refused(500, None),
    };
    plan.fault(Duration::ZERO, fault, Duration::ZERO);
    let world = run(&plan);
    let lists = world.trace.calls.iter().filter(|call| {
        call.resource == "foos" && call.verb == "stream" && call.begun < Duration::from_secs(9)
    });
    let spoilt: Vec<_> = lists.map(Call::is_spoilt).collect();
    assert!(spoilt.contains(&true) && spoilt.len() > 1, "{spoilt:?}");
    assert_eq!(found_by("I11", &world), []);
}

/// No example needs more than 150 lines.
#[test]
fn foos_are_simulated_in_150_lines() {
    let foo = include_str!("../examples/foo.rs");
    assert!(foo.lines().count() <= 150);
}

/// Shrinking keeps an API server that a fault names.
#[test]
fn shrinking_keeps_the_named_api_server() {
    let killed = |step: &Step| matches!(step.what, What::Fault(Fault::Kill { server: 1 }, _));
    let mut plan = calm(1, 2, 3, seconds(10));
    plan.settings.workers = 4;
    plan.fault(seconds(2), Fault::Compact, Duration::ZERO);
    plan.fault(seconds(3), Fault::Kill { server: 1 }, seconds(1));
    let shows = |plan: &Plan| {
        let is_shown = plan.steps.iter().any(killed);
        is_shown
            .then(|| Violation::of_the_run(String::new()))
            .into_iter()
            .collect()
    };
    let least = shrink(&plan, &Violation::of_the_run(String::new()), &shows);
    assert_eq!((least.steps.len(), least.servers), (1, 3));
    assert_eq!(least.settings.workers, 1);
}

/// Without a valid object, all runs would pass.
#[test]
fn values_that_no_object_may_have_are_reported() {
    let valid = of_an_author();
    assert_eq!(valid.check(), Ok(()));
    let mut crd = serde_json::to_value(valid.crds().remove(0)).unwrap();
    let name = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/deploymentName";
    crd.pointer_mut(name).unwrap()["pattern"] = "^[0-9]+$".into();
    let operator = Operator::new(&foo_controller::APP, |program, place| {
        Foo.build(program, place);
    });
    let operator = operator.subject(serde_json::from_value(crd).unwrap(), Unreached);
    let operator: &'static Operator = Box::leak(Box::new(operator));
    let why = operator.check().unwrap_err();
    assert!(
        why.contains("foos") && why.contains("spec.deploymentName"),
        "{why}"
    );
}
