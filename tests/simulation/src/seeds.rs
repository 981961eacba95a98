//! The users of Foos, and the faults that only they meet.

use std::time::Duration;

use operator_simulation::{
    draw::Draws,
    plan::{Action, Fault, Plan, Settings, What},
    seeds::{self, Kind, fault, kind, ms, settings, small},
    trace::Time,
};

use super::users::{Deed, Policy, Spoilt};

/// Range of the numbers of Foos and Deployments.
const FOOS: u64 = 4;
const DEPLOYMENTS: u64 = 5;

/// Time for a new Foo to reach its desired state.
const NEW: Duration = Duration::from_secs(25);

/// Longer than any plan.
const FOR_GOOD: Duration = Duration::from_hours(1);

/// Adds the actions of users: from the beginning to the end of the storm, and a few after it.
pub fn users(plan: &mut Plan, heal: Time) {
    let heal = u64::try_from(heal.as_millis()).unwrap_or_default();
    let mut draw = Draws::new(plan.seed, "users");
    for foo in 0..draw.between(1, FOOS + 1) {
        let replicas = replicas(&mut draw);
        let deed = Deed::CreateFoo {
            foo: small(foo),
            deployment: small(foo),
            replicas,
        };
        act(plan, draw.between(100, 9_000), deed);
    }
    let pause = draw.log_uniform(500, 20_000);
    let mut at = 9_000;
    loop {
        at += draw.between(pause / 4 + 1, pause * 2);
        if at >= heal {
            break;
        }
        let deed = deed(&mut draw);
        act(plan, at, deed);
    }
    // After the storm, the leader must still react to changes.
    let mut draw = Draws::new(plan.seed, "afterwards");
    for foo in 0..FOOS {
        let foo = small(foo);
        let deed = match draw.below(5) {
            0 => Deed::ScaleFoo {
                foo,
                replicas: replicas(&mut draw),
            },
            1 => Deed::RenameDeployment {
                foo,
                deployment: small(draw.below(DEPLOYMENTS)),
            },
            2 => Deed::ChangeImage { deployment: foo },
            3 => Deed::LosePod { deployment: foo },
            _ => Deed::DeleteDeployment {
                deployment: foo,
                policy: Policy::Background,
            },
        };
        act(plan, heal + draw.between(15_000, 40_000), deed);
    }
    // The last leader must reconcile a new Foo that no fault has affected.
    let deed = Deed::CreateFoo {
        foo: small(FOOS),
        deployment: small(DEPLOYMENTS),
        replicas: Some(1),
    };
    plan.act(plan.rest.saturating_sub(NEW), Action::user(deed));
    let mut draw = Draws::new(plan.seed, "edits of the Lease");
    if draw.once_in(4) {
        let deed = draw.of(&[
            Deed::DeleteLease,
            Deed::EmptyLease,
            Deed::ClearHolder,
            Deed::GiveLeaseAway,
            Deed::ShortenLease,
            Deed::RestoreLease,
            Deed::SpoilLease,
        ]);
        act(plan, draw.between(9_000, heal), deed);
    }
    let mut draw = Draws::new(plan.seed, "spoilt Foos");
    if draw.once_in(4) {
        let with = draw.of(&[
            Spoilt::NoSpec,
            Spoilt::NameIsNumber,
            Spoilt::EmptyName,
            Spoilt::LongName,
            Spoilt::NoReplicas,
            Spoilt::ManyReplicas,
        ]);
        let foo = small(draw.below(FOOS));
        act(
            plan,
            draw.between(9_000, heal),
            Deed::SpoilFoo { foo, with },
        );
    }
}

fn act(plan: &mut Plan, at: u64, deed: Deed) {
    plan.act(ms(at), Action::user(deed));
}

/// Returns the faults of any operator, with the faults of Foos in between. The order decides between steps at the same time.
pub fn faults() -> Vec<&'static Kind> {
    let with_those_after = |one: &'static Kind| {
        let ours = FAULTS.iter().filter(|(before, _)| *before == one.name);
        [one].into_iter().chain(ours.map(|(_, kind)| kind))
    };
    seeds::FAULTS.iter().flat_map(with_those_after).collect()
}

/// Faults of Foos, each with the fault of any operator that it follows.
const FAULTS: &[(&str, Kind)] = &[
    (
        "compaction",
        kind("restore", (10, 40_000), Some((500, 20_000)), |_, _| {
            fault(Fault::Restore)
        }),
    ),
    (
        "revoke",
        kind("definition", (10, 40_000), Some((200, 20_000)), |_, _| {
            fault(Fault::NoDefinition)
        }),
    ),
    (
        "revoke",
        kind("fencing", (4, 20_000), Some((200, 20_000)), |draw, plan| {
            let record = draw.once_in(2);
            fault(if plan.fencing && draw.once_in(2) {
                Fault::FencingPart { record }
            } else {
                Fault::Fencing
            })
        }),
    ),
    (
        "revoke",
        kind("upgrade", (4, 20_000), None, |draw, plan| {
            let image = draw.of(&["nginx:latest", "nginx:another"]);
            let settings = Settings {
                image,
                ..settings(draw, plan.program.namespace())
            };
            What::Action(Action::Upgrade { settings })
        }),
    ),
    (
        "revoke",
        kind("autoscaler", (3, 2_000), None, |draw, _| {
            let (foo, replicas) = (small(draw.below(FOOS)), small(draw.between(1, 6)));
            What::Action(Action::user(Deed::Autoscale { foo, replicas }))
        }),
    ),
    (
        "policy",
        kind("pods", (4, 10_000), None, |draw, _| {
            let deployment = small(draw.below(DEPLOYMENTS));
            let lasts = ms(draw.log_uniform(1_000, 60_000));
            let lasts = if draw.once_in(4) { FOR_GOOD } else { lasts };
            let refused = draw.once_in(2);
            let fault = Fault::NoPods {
                deployment,
                refused,
            };
            What::Fault(fault, lasts)
        }),
    ),
    (
        "policy",
        kind("lost pods", (3, 3_000), None, |draw, _| {
            let deployment = small(draw.below(DEPLOYMENTS));
            What::Action(Action::user(Deed::LosePod { deployment }))
        }),
    ),
    (
        "policy",
        kind("pauses", (4, 5_000), None, |draw, _| {
            let (deployment, paused) = (small(draw.below(DEPLOYMENTS)), !draw.once_in(3));
            What::Action(Action::user(Deed::PauseDeployment { deployment, paused }))
        }),
    ),
    (
        "collector",
        kind("namespace", (6, 20_000), Some((200, 20_000)), |_, _| {
            fault(Fault::NoNamespace)
        }),
    ),
];

fn replicas(draw: &mut Draws) -> Option<u8> {
    (!draw.once_in(4)).then(|| small(draw.between(1, 5)))
}

/// Draws an action of a user.
fn deed(draw: &mut Draws) -> Deed {
    let foo = small(draw.below(FOOS));
    let other = small(draw.below(DEPLOYMENTS));
    let deployment = if draw.once_in(2) { foo } else { other };
    let count = small(draw.between(1, 6));
    let policy = draw.of(&[
        Policy::Background,
        Policy::Background,
        Policy::Foreground,
        Policy::Orphan,
    ]);
    let replicas = replicas(draw);
    match draw.below(25) {
        0..4 => Deed::CreateFoo {
            foo,
            deployment,
            replicas,
        },
        4..8 => Deed::ScaleFoo { foo, replicas },
        8..11 => Deed::RenameDeployment { foo, deployment },
        11 => Deed::AnnotateFoo { foo },
        12 | 13 => Deed::DeleteFoo { foo, policy },
        14 => Deed::ReplaceFoo {
            foo,
            deployment,
            replicas,
        },
        15 => Deed::AddFinalizer { foo },
        16 => Deed::RemoveFinalizer { foo },
        17 => Deed::ScaleDeployment {
            deployment,
            replicas: count,
        },
        18 => Deed::ChangeImage { deployment },
        19 => Deed::ChangeLabels { deployment },
        20 => Deed::ForgeGeneration { deployment },
        21 => Deed::DeleteDeployment { deployment, policy },
        22 => Deed::CreateDeployment { deployment },
        23 => Deed::CopyDeployment { foo, deployment },
        _ => Deed::OrphanDeployment { deployment },
    }
}
