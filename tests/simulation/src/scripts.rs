//! Scripts with few Foos.

use std::time::Duration;

use operator_simulation::{
    plan::{Action, Calls, Fault, Happens, Machine, Plan, Step, Then, Way, What},
    scripts::{HEAL, LATE, POD, Script, settings},
    trace::{Role, Time},
};

use super::{
    Foo,
    users::{Deed, Policy},
};

/// Actions of each script, with their time in milliseconds. A replica leads from the fourth second on. An object that has
/// failed for six seconds is retried about every five seconds, unless an event triggers it.
const DEEDS: &[(&str, &[(u64, Deed)])] = &[
    ("create", &[(6_000, CREATE)]),
    (
        "scale",
        &[
            (1_000, CREATE),
            (
                6_000,
                Deed::ScaleFoo {
                    foo: 0,
                    replicas: Some(3),
                },
            ),
        ],
    ),
    (
        "scale to no number",
        &[
            (1_000, CREATE),
            (
                6_000,
                Deed::ScaleFoo {
                    foo: 0,
                    replicas: None,
                },
            ),
        ],
    ),
    (
        "drift",
        &[
            (1_000, CREATE),
            (
                6_000,
                Deed::ScaleDeployment {
                    deployment: 0,
                    replicas: 5,
                },
            ),
            (7_000, Deed::ChangeImage { deployment: 0 }),
            (8_000, Deed::ChangeLabels { deployment: 0 }),
            (9_000, Deed::ForgeGeneration { deployment: 0 }),
        ],
    ),
    (
        "Deployment deleted",
        &[
            (1_000, CREATE),
            (6_000, delete(Policy::Background)),
            (7_000, delete(Policy::Foreground)),
        ],
    ),
    (
        "deleted before the answer has come",
        &[
            (1_000, CREATE),
            (6_000, delete(Policy::Background)),
            (7_000, delete(Policy::Background)),
        ],
    ),
    ("rename", &[(1_000, CREATE), (6_000, rename(1))]),
    (
        "rename chain",
        &[
            (1_000, CREATE),
            (6_000, rename(1)),
            (6_300, rename(2)),
            (6_600, rename(0)),
            (7_500, rename(3)),
        ],
    ),
    (
        "renamed back, and not told",
        &[(1_000, CREATE), (6_000, rename(1)), (6_400, rename(0))],
    ),
    (
        "renamed, and the new one gone untold",
        &[
            (1_000, CREATE),
            (6_000, rename(1)),
            (
                9_000,
                Deed::DeleteDeployment {
                    deployment: 1,
                    policy: Policy::Background,
                },
            ),
        ],
    ),
    (
        "scaled, and the next leader not told",
        &[
            (1_000, CREATE),
            (
                6_000,
                Deed::ScaleFoo {
                    foo: 0,
                    replicas: Some(3),
                },
            ),
        ],
    ),
    (
        "delete",
        &[
            (1_000, CREATE),
            (
                6_000,
                Deed::DeleteFoo {
                    foo: 0,
                    policy: Policy::Background,
                },
            ),
        ],
    ),
    (
        "delete in the foreground",
        &[
            (1_000, CREATE),
            (
                6_000,
                Deed::DeleteFoo {
                    foo: 0,
                    policy: Policy::Foreground,
                },
            ),
        ],
    ),
    (
        "delete and create again",
        &[
            (1_000, CREATE),
            (
                6_000,
                Deed::ReplaceFoo {
                    foo: 0,
                    deployment: 0,
                    replicas: Some(3),
                },
            ),
            (
                7_000,
                Deed::ReplaceFoo {
                    foo: 0,
                    deployment: 0,
                    replicas: None,
                },
            ),
        ],
    ),
    (
        "foreign Deployment",
        &[
            (1_000, Deed::CreateDeployment { deployment: 0 }),
            (6_000, CREATE),
            (12_000, delete(Policy::Background)),
        ],
    ),
    (
        "orphan",
        &[
            (1_000, CREATE),
            (6_000, Deed::OrphanDeployment { deployment: 0 }),
            (12_000, delete(Policy::Background)),
        ],
    ),
    (
        "two Foos, one name",
        &[
            (1_000, CREATE),
            (
                6_000,
                Deed::CreateFoo {
                    foo: 1,
                    deployment: 0,
                    replicas: Some(1),
                },
            ),
            (
                12_000,
                Deed::DeleteFoo {
                    foo: 0,
                    policy: Policy::Background,
                },
            ),
        ],
    ),
    (
        "copy",
        &[
            (1_000, CREATE),
            (
                6_000,
                Deed::CopyDeployment {
                    foo: 0,
                    deployment: 4,
                },
            ),
            (8_000, rename(1)),
        ],
    ),
    (
        "rename without a number",
        &[
            (
                1_000,
                Deed::CreateFoo {
                    foo: 0,
                    deployment: 0,
                    replicas: None,
                },
            ),
            (
                6_000,
                Deed::ScaleDeployment {
                    deployment: 0,
                    replicas: 4,
                },
            ),
            (9_000, rename(1)),
        ],
    ),
    (
        "Lease deleted",
        &[
            (1_000, CREATE),
            (6_000, Deed::DeleteLease),
            (
                6_500,
                Deed::ScaleFoo {
                    foo: 0,
                    replicas: Some(3),
                },
            ),
        ],
    ),
    (
        "Lease shortened",
        &[(1_000, CREATE), (6_200, Deed::ShortenLease)],
    ),
    (
        "Lease spoilt",
        &[(1_000, CREATE), (6_200, Deed::SpoilLease)],
    ),
    (
        "Lease restored",
        &[(1_000, CREATE), (6_200, Deed::RestoreLease)],
    ),
    (
        "refused for nine seconds",
        &[
            (6_000, CREATE),
            (
                6_000,
                Deed::CreateFoo {
                    foo: 1,
                    deployment: 1,
                    replicas: Some(1),
                },
            ),
        ],
    ),
    ("first cut off", CUT_OFF),
    ("second cut off", CUT_OFF),
    ("watches end at once", CUT_OFF),
    (
        "time stands still",
        &[
            (1_000, CREATE),
            (
                8_500,
                Deed::ScaleFoo {
                    foo: 0,
                    replicas: Some(3),
                },
            ),
        ],
    ),
    (
        "hand-over",
        &[
            (1_000, CREATE),
            (
                6_500,
                Deed::ScaleFoo {
                    foo: 0,
                    replicas: Some(3),
                },
            ),
        ],
    ),
    (
        "hand-over of what is on its way",
        &[
            (1_000, CREATE),
            (
                6_000,
                Deed::ScaleFoo {
                    foo: 0,
                    replicas: Some(3),
                },
            ),
        ],
    ),
    (
        "hand-over that the policy is not told of",
        &[
            (1_000, CREATE),
            (
                1_500,
                Deed::CreateFoo {
                    foo: 1,
                    deployment: 1,
                    replicas: Some(1),
                },
            ),
            (
                6_000,
                Deed::ScaleFoo {
                    foo: 0,
                    replicas: Some(3),
                },
            ),
            (
                6_100,
                Deed::ScaleFoo {
                    foo: 1,
                    replicas: Some(3),
                },
            ),
        ],
    ),
    (
        "hand-over, fenced",
        &[
            (1_000, CREATE),
            (
                6_500,
                Deed::ScaleFoo {
                    foo: 0,
                    replicas: Some(3),
                },
            ),
        ],
    ),
    (
        "takeover",
        &[
            (1_000, CREATE),
            (
                6_500,
                Deed::ScaleFoo {
                    foo: 0,
                    replicas: Some(3),
                },
            ),
        ],
    ),
    (
        "takeover, fenced",
        &[
            (1_000, CREATE),
            (6_300, rename(1)),
            (
                6_500,
                Deed::ScaleFoo {
                    foo: 0,
                    replicas: Some(3),
                },
            ),
        ],
    ),
    (
        "drift while nobody leads",
        &[
            (1_000, CREATE),
            (
                8_000,
                Deed::ScaleDeployment {
                    deployment: 0,
                    replicas: 5,
                },
            ),
        ],
    ),
    (
        "relist",
        &[(1_000, CREATE), (6_500, delete(Policy::Background))],
    ),
];

const CREATE: Deed = Deed::CreateFoo {
    foo: 0,
    deployment: 0,
    replicas: Some(2),
};

const CUT_OFF: &[(u64, Deed)] = &[
    (1_000, CREATE),
    (
        15_000,
        Deed::CreateFoo {
            foo: 1,
            deployment: 1,
            replicas: Some(1),
        },
    ),
];

const fn delete(policy: Policy) -> Deed {
    Deed::DeleteDeployment {
        deployment: 0,
        policy,
    }
}

const fn rename(deployment: u8) -> Deed {
    Deed::RenameDeployment { foo: 0, deployment }
}

/// Returns the scripts, without the faults of their variations.
pub fn all() -> Vec<Script> {
    let deeds = DEEDS.iter();
    deeds
        .map(|(name, deeds)| Script {
            name: (*name).to_owned(),
            plan: plan(name, deeds),
            is_prompt: true,
        })
        .collect()
}

#[allow(clippy::too_many_lines, reason = "a table")]
fn plan(name: &str, deeds: &[(u64, Deed)]) -> Plan {
    let ms = Duration::from_millis;
    let mut plan = Plan {
        seed: 1,
        program: &Foo,
        settings: settings(),
        replicas: vec![Machine::SOUND; 2],
        servers: 1,
        fencing: name.ends_with(", fenced"),
        steps: Vec::new(),
        rest: ms(50_000),
        end: ms(60_000),
    };
    for (at, deed) in deeds {
        plan.act(ms(*at), Action::user(*deed));
    }
    match name {
        "hand-over" | "hand-over, fenced" => (0..2).for_each(|replica| {
            plan.act(
                ms(6_000 + 4_000 * replica),
                Action::Replace {
                    replica: usize::try_from(replica).unwrap_or_default(),
                    settings: None,
                },
            );
        }),
        // The connections break during the shutdown, so no call waits for a response. The Lease must not be released before the
        // write in flight has ended.
        "hand-over of what is on its way" => {
            let of = Calls {
                role: Some(Role::Work),
                verb: Some("write"),
                ..Calls::default()
            };
            let (way, by) = (Way::Requests, ms(400));
            plan.fault(ms(5_500), Fault::Slow { of, way, by }, ms(2_000));
            (0..2).for_each(|replica| {
                let settings = None;
                plan.act(ms(6_150), Action::Replace { replica, settings });
            });
            plan.fault(ms(6_200), Fault::Reset { of }, Time::ZERO);
        }
        "takeover" | "takeover, fenced" => (0..2).for_each(|replica| {
            let crash = Fault::Crash {
                replica: usize::try_from(replica).unwrap_or_default(),
                then: POD,
            };
            plan.fault(ms(6_400 + 8_000 * replica), crash, Time::ZERO);
        }),
        // Replica 1 leads.
        "drift while nobody leads" => {
            let (replica, then) = (1, Then::Nobody);
            plan.fault(ms(6_400), Fault::Crash { replica, then }, Time::ZERO);
        }
        // If it leads, the other replica must take over.
        "first cut off" | "second cut off" => {
            let of = Calls {
                replica: Some(usize::from(name == "second cut off")),
                role: Some(Role::Work),
                ..Calls::default()
            };
            // If a watch hangs too, the other replica can only work after a minute.
            (plan.rest, plan.end) = (ms(80_000), ms(90_000));
            plan.fault(ms(6_000), Fault::Partition { of, way: Way::Both }, plan.end);
        }
        "renamed back, and not told" => {
            let of = Calls {
                resource: Some("foos"),
                ..Calls::default()
            };
            let (way, by) = (Way::Answers, ms(2_000));
            plan.fault(ms(6_300), Fault::Slow { of, way, by }, ms(3_000));
        }
        // The previous Deployment cannot be deleted before the new one disappears.
        "renamed, and the new one gone untold" => {
            let of = |verb| Calls::of(verb, "deployments");
            let refused = Fault::each(of("delete"), Happens::refused(500, None));
            plan.fault(ms(5_900), refused, ms(3_200));
            let (of, way, by) = (of("watch"), Way::Answers, ms(8_000));
            plan.fault(ms(8_900), Fault::Slow { of, way, by }, ms(9_000));
        }
        // Replica 1 leads, then replica 0.
        "scaled, and the next leader not told" => {
            slow_foos(&mut plan, 0);
            replace_leader(&mut plan, ms(6_800));
        }
        // The new leader has work, but is rejected while the API server sees only the previous holder. It must not retry in a
        // busy loop.
        "hand-over that the policy is not told of" => {
            plan.fencing = true;
            slow_foos(&mut plan, 1);
            plan.fault(ms(6_500), Fault::Stuck { server: 0 }, ms(10_000));
            replace_leader(&mut plan, ms(6_600));
        }
        // The leader, replica 1, cannot renew the Lease. The interruption is shorter than the original duration, which must
        // still apply.
        "Lease shortened" => {
            let of = Calls {
                replica: Some(1),
                role: Some(Role::Lease),
                ..Calls::default()
            };
            plan.fault(
                ms(6_100),
                Fault::Partition { of, way: Way::Both },
                ms(1_700),
            );
        }
        "refused for nine seconds" => {
            let of = Calls::of("create", "deployments");
            let refused = Fault::each(of, Happens::refused(500, None));
            plan.fault(ms(5_900), refused, ms(9_000));
        }
        "deleted before the answer has come" => {
            let of = Calls::of("create", "deployments");
            let (nth, happens) = (Some(1), Happens::AnswerLate(LATE));
            plan.fault(ms(5_900), Fault::Call { of, nth, happens }, Time::ZERO);
        }
        // A renewal that writes only the current time would then change nothing.
        "time stands still" => (0..2).for_each(|replica| {
            plan.fault(ms(6_000), Fault::WallStill { replica }, ms(13_000));
        }),
        "watches end at once" => {
            let of = Calls {
                verb: Some("watch"),
                ..Calls::default()
            };
            let happens = Happens::WatchEnds(ms(10));
            plan.fault(ms(6_000), Fault::each(of, happens), ms(11_000));
            let of = Calls::default();
            plan.fault(ms(6_010), Fault::Reset { of }, Time::ZERO);
        }
        "relist" => {
            plan.fault(ms(6_000), Fault::Compact, Time::ZERO);
            plan.fault(ms(6_400), Fault::Kill { server: 0 }, ms(1_000));
        }
        _ => {}
    }
    plan.steps.push(Step {
        at: HEAL,
        what: What::Heal,
    });
    plan
}

/// Delays the users' changes at six seconds for one replica.
fn slow_foos(plan: &mut Plan, replica: usize) {
    let of = Calls {
        replica: Some(replica),
        resource: Some("foos"),
        ..Calls::default()
    };
    let (way, by) = (Way::Answers, Duration::from_secs(5));
    plan.fault(
        Duration::from_millis(5_500),
        Fault::Slow { of, way, by },
        Duration::from_secs(3),
    );
}

/// Replaces replica 1, which leads.
fn replace_leader(plan: &mut Plan, at: Time) {
    let (replica, settings) = (1, None);
    plan.act(at, Action::Replace { replica, settings });
}
