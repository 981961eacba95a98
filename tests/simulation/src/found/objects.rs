//! Regression cases about Foos and their Deployments.

use std::time::Duration;

use operator_simulation::{
    plan::{Action, Calls, Fault, Happens, Machine, Plan, Settings, Step, Way, What},
    trace::Time,
};
use operator_testkit::api_server::Others;

use super::{
    super::{
        Foo, calm,
        users::{Deed, Policy, Spoilt},
    },
    CREATE, LATE, SCALE, step, us, user,
};

/// Two Foos specify one Deployment. The garbage collector deletes it after each creation until the leader notices that the
/// definition of Foos is missing. The corrections must be counted for each Foo, or each Foo resets the count of the other.
pub fn two_ask_for_what_is_deleted() -> Plan {
    let foo = |foo, deployment| {
        user(Deed::CreateFoo {
            foo,
            deployment,
            replicas: None,
        })
    };
    let rename = Deed::RenameDeployment {
        foo: 0,
        deployment: 4,
    };
    let steps = [
        step(9_000, foo(0, 0)),
        step(20_000, foo(3, 4)),
        step(25_000, user(rename)),
        step(35_000, What::Fault(Fault::NoDefinition, us(80_000_000))),
    ];
    untold(42_901, us(30_000_000), steps.into())
}

/// A user deletes a Deployment twice per second for 100 s. A failing server responds 504 to each creation although it carried
/// the creation out. The creations must back off as if the responses had arrived.
pub fn undone_and_never_answered() -> Plan {
    let delete = Deed::DeleteDeployment {
        deployment: 0,
        policy: Policy::Background,
    };
    let failing = Happens::Status {
        code: 504,
        retry_after: None,
        applied: true,
    };
    let failing = Fault::each(Calls::of("create", "deployments"), failing);
    let mut steps = vec![
        step(9_000, user(CREATE)),
        step(15_000, What::Fault(failing, us(110_000_000))),
        step(130_000, What::Heal),
    ];
    steps.extend((0..200).map(|number| step(20_000 + 500 * number, user(delete))));
    Plan {
        steps,
        rest: us(330_000_000),
        ..calm(1, 1, 1, us(370_000_000))
    }
}

/// A Foo is deleted while its watch is silent, and a write of its status finds no object. A restored backup brings the Foo
/// back, and the next list has it at the version that the watch had delivered. The Foo must get the Deployment that a user
/// deletes next.
pub fn brought_back_as_it_was() -> Plan {
    let (deployment, policy) = (0, Policy::Background);
    let of = Calls {
        resource: Some("foos"),
        ..Calls::default()
    };
    let reset = |at| step(at, What::Fault(Fault::Reset { of }, Time::ZERO));
    let silent = Fault::each(Calls::of("watch", "foos"), Happens::WatchSilent);
    Plan {
        steps: vec![
            step(9_000, user(CREATE)),
            step(20_000, What::Fault(Fault::Restore, us(25_000_000))),
            step(22_000, What::Fault(silent, us(24_000_000))),
            reset(22_000),
            step(44_000, user(Deed::DeleteFoo { foo: 0, policy })),
            reset(46_500),
            step(60_000, user(Deed::DeleteDeployment { deployment, policy })),
            step(60_000, What::Heal),
        ],
        rest: us(180_000_000),
        ..calm(1, 1, 1, us(220_000_000))
    }
}

/// A restored backup undoes the new name in a Foo, and a user scales the Foo instead, which leads to the same generation. The
/// watch reports neither. The Foo names its previous Deployment again, so that must not be deleted.
pub fn another_of_the_same_generation() -> Plan {
    let rename = Deed::RenameDeployment {
        foo: 0,
        deployment: 1,
    };
    let unavailable = Fault::NoPods {
        deployment: 1,
        refused: false,
    };
    let steps = vec![
        step(9_000, user(CREATE)),
        step(17_000, What::Fault(Fault::Restore, us(28_000_000))),
        step(18_000, What::Fault(unavailable, us(62_000_000))),
        step(20_000, user(rename)),
        step(50_000, user(SCALE)),
    ];
    let mut plan = untold(1, us(30_000_000), steps);
    let silent = Fault::each(Calls::of("stream", "foos"), Happens::WatchSilent);
    plan.fault(us(30_000_000), silent, us(90_000_000));
    plan
}

/// A previous Deployment of a Foo is deleted, which the watch does not report. A restored backup brings it back at the version
/// that was deleted. It must be deleted again.
pub fn deleted_and_brought_back() -> Plan {
    let rename = Deed::RenameDeployment {
        foo: 0,
        deployment: 1,
    };
    let of = Calls::of("stream", "deployments");
    let silent = Fault::each(Calls::of("watch", "deployments"), Happens::WatchSilent);
    let late = Fault::each(Calls::of("delete", "deployments"), LATE);
    let unavailable = Fault::NoPods {
        deployment: 1,
        refused: false,
    };
    Plan {
        steps: vec![
            step(9_000, user(CREATE)),
            step(19_000, What::Fault(unavailable, us(10_000_000))),
            step(20_000, user(rename)),
            step(28_000, What::Fault(late, us(12_000_000))),
            step(30_000, What::Fault(Fault::Restore, us(15_000_000))),
            step(30_500, What::Fault(silent, us(14_500_000))),
            step(30_500, What::Fault(Fault::Reset { of }, Time::ZERO)),
            step(60_000, What::Heal),
        ],
        rest: us(200_000_000),
        ..calm(1, 1, 1, us(260_000_000))
    }
}

/// A policy changes a write, and a restored backup undoes both. Edits by a user then lead to the same generation. The next
/// patch must not be taken for the patch that the policy changed.
pub fn overruled_at_the_same_generation() -> Plan {
    let scale = |replicas| {
        user(Deed::ScaleDeployment {
            deployment: 0,
            replicas,
        })
    };
    let create = Deed::CreateFoo {
        foo: 0,
        deployment: 0,
        replicas: Some(3),
    };
    let policy = Fault::Policy(Others::FewReplicas);
    Plan {
        steps: vec![
            step(9_000, user(create)),
            step(20_000, What::Fault(Fault::Restore, us(15_000_000))),
            step(22_000, What::Fault(policy, us(10_000_000))),
            step(25_000, scale(1)),
            step(45_000, scale(4)),
            step(45_000, scale(1)),
            step(60_000, What::Heal),
        ],
        rest: us(200_000_000),
        ..calm(1, 1, 1, us(260_000_000))
    }
}

/// Returns a plan with these steps and 90 s without deliveries by the watches of Foos. The changes are noticed after all faults
/// have ended, when a watch has been silent for too long.
fn untold(seed: u64, from: Time, mut steps: Vec<Step>) -> Plan {
    steps.push(step(120_000, What::Heal));
    let mut plan = Plan {
        steps,
        rest: us(500_000_000),
        ..calm(seed, 1, 1, us(540_000_000))
    };
    let silent = Fault::each(Calls::of("watch", "foos"), Happens::WatchSilent);
    plan.fault(from, silent, us(90_000_000));
    let of = Calls {
        resource: Some("foos"),
        ..Calls::default()
    };
    plan.fault(from, Fault::Reset { of }, Duration::ZERO);
    plan
}

/// A Foo changes after the write of its status and before the response.
pub fn changed_before_an_answer() -> Plan {
    let mut plan = calm(1, 1, 1, us(140_000_000));
    plan.settings.resync = us(86_400_000_000);
    let spoil = Deed::SpoilFoo {
        foo: 0,
        with: Spoilt::EmptyName,
    };
    let mend = Deed::RenameDeployment {
        foo: 0,
        deployment: 0,
    };
    plan.steps = vec![
        step(10_000, user(CREATE)),
        step(21_000, user(spoil)),
        step(21_500, user(mend)),
        step(60_000, What::Heal),
    ];
    plan.fault(us(20_000_000), late_statuses(us(1_500_000)), us(5_000_000));
    plan
}

/// Returns a fault that delays the responses to written statuses.
fn late_statuses(by: Duration) -> Fault {
    let (of, way) = (Calls::of("update", "foos/status"), Way::Answers);
    Fault::Slow { of, way, by }
}

/// A webhook rejects a Deployment, with a different message each time. The watch delivers the status with the message before
/// the response to the status arrives. The delivery must not bypass the backoff of the Foo.
pub fn rejected_otherwise_each_time() -> Plan {
    rejected_otherwise(late_statuses(us(200_000)))
}

/// As in [`rejected_otherwise_each_time`], but the response to each such status is cut off.
pub fn rejected_otherwise_and_never_answered() -> Plan {
    let statuses = Calls::of("update", "foos/status");
    rejected_otherwise(Fault::each(statuses, Happens::Cut))
}

fn rejected_otherwise(statuses: Fault) -> Plan {
    let mut plan = calm(1, 1, 1, us(500_000_000));
    plan.steps = vec![step(21_000, user(CREATE)), step(180_000, What::Heal)];
    for fault in [Fault::Policy(Others::Tickets), statuses] {
        plan.fault(us(20_000_000), fault, us(160_000_000));
    }
    plan
}

/// A webhook adds a different text to each status, and the watch delivers the status before its response. The Foo must not be
/// reconciled in a loop, although nothing fails.
pub fn reviewed_each_time() -> Plan {
    let mut plan = calm(1, 1, 1, us(140_000_000));
    plan.steps = vec![step(21_000, user(CREATE)), step(80_000, What::Heal)];
    for fault in [Fault::Policy(Others::Reviewed), late_statuses(us(50_000))] {
        plan.fault(us(20_000_000), fault, us(60_000_000));
    }
    plan
}

/// A policy rejects the status of a Foo whose Deployment has another owner, and is removed later. The status must be written
/// then: the Foo itself did not cause the rejection.
pub fn status_refused_for_a_while() -> Plan {
    let policy = Fault::Policy(Others::NoStatus);
    let mut plan = calm(1, 1, 1, us(100_000_000));
    plan.steps = vec![
        step(19_000, user(Deed::CreateDeployment { deployment: 0 })),
        step(20_000, What::Fault(policy, us(10_000_000))),
        step(
            21_000,
            user(Deed::CreateFoo {
                foo: 0,
                deployment: 0,
                replicas: Some(1),
            }),
        ),
        step(
            19_000,
            user(Deed::CreateFoo {
                foo: 1,
                deployment: 1,
                replicas: Some(1),
            }),
        ),
        step(
            22_000,
            user(Deed::SpoilFoo {
                foo: 1,
                with: Spoilt::EmptyName,
            }),
        ),
        step(30_000, What::Heal),
    ];
    plan.rest = us(75_000_000);
    plan
}

/// A Foo fails for minutes because its Deployment has another owner. Then the Foo changes, and the fencing policy rejects the
/// first write because its record is missing for a moment. The Foo must not wait for minutes more.
pub fn fenced_out_for_a_moment() -> Plan {
    fenced_out(Deed::RenameDeployment {
        foo: 0,
        deployment: 0,
    })
}

pub fn status_fenced_out_for_a_moment() -> Plan {
    fenced_out(SCALE)
}

fn fenced_out(change: Deed) -> Plan {
    let foo = 0;
    let create = Deed::CreateFoo {
        foo,
        deployment: 1,
        replicas: Some(1),
    };
    Plan {
        fencing: true,
        steps: vec![
            step(8_000, user(Deed::CreateDeployment { deployment: 1 })),
            step(9_000, user(create)),
            step(340_000, What::Fault(Fault::Fencing, us(500_000))),
            step(400_000, user(change)),
        ],
        rest: us(420_000_000),
        ..calm(1, 1, 1, us(460_000_000))
    }
}

/// A policy rejects a status several times. Then the permission to write it is missing for 3 s, between two reviews. The Foo
/// must be retried without its delay, although no review found the permission missing.
pub fn rights_are_back_unseen() -> Plan {
    let revoked = Fault::Revoke {
        verb: "update",
        resource: "foos/status",
    };
    let policy = Fault::Policy(Others::NoStatus);
    Plan {
        steps: vec![
            step(16_000, What::Fault(policy, us(18_887_000))),
            step(18_742, user(CREATE)),
            step(36_643, What::Fault(revoked, us(2_841_000))),
            step(60_000, What::Heal),
        ],
        rest: us(180_000_000),
        ..calm(1, 1, 1, us(220_000_000))
    }
}

/// The previous Deployment of a Foo cannot be deleted for a while. Then the live read of the Foo is rejected for a shorter
/// time, for a missing permission that is not reviewed. The deletion must be retried when the permission is restored.
pub fn look_ups_are_allowed_again() -> Plan {
    let failing = Fault::each(
        Calls::of("delete", "deployments"),
        Happens::refused(500, None),
    );
    let revoked = Fault::Revoke {
        verb: "list",
        resource: "foos",
    };
    let rename = Deed::RenameDeployment {
        foo: 0,
        deployment: 1,
    };
    Plan {
        steps: vec![
            step(9_000, user(CREATE)),
            step(19_000, What::Fault(failing, us(31_000_000))),
            step(20_000, user(rename)),
            step(55_000, What::Fault(revoked, us(12_000_000))),
            step(100_000, What::Heal),
        ],
        rest: us(180_000_000),
        ..calm(1, 1, 1, us(220_000_000))
    }
}

/// A Foo is deleted while its watch is stuck, and the garbage collector deletes each new Deployment. The creations must stop,
/// although each write of the status fails with a conflict.
pub fn gone_while_the_watch_is_stuck() -> Plan {
    Plan {
        seed: 450,
        program: &Foo,
        settings: Settings {
            workers: 1,
            resync: us(30_000_000),
            lease_duration: us(15_000_000),
            renew_deadline: us(10_000_000),
            retry_period: us(2_000_000),
            image: "nginx:latest",
            max_rollouts: 10,
            namespace: Some("foos"),
        },
        replicas: vec![Machine::SOUND; 5],
        servers: 3,
        fencing: false,
        steps: vec![
            step(
                8_797,
                What::Action(Action::user(Deed::CreateFoo {
                    foo: 0,
                    deployment: 0,
                    replicas: Some(1),
                })),
            ),
            step(
                41_452,
                What::Fault(Fault::Stuck { server: 1 }, us(15_987_000)),
            ),
            step(
                48_690,
                What::Action(Action::user(Deed::DeleteFoo {
                    foo: 0,
                    policy: Policy::Foreground,
                })),
            ),
            step(82_188, What::Heal),
        ],
        rest: us(234_376_000),
        end: us(274_376_000),
    }
}

/// A Foo is deleted while its watch is silent, and the garbage collector deletes each new Deployment. The creations must stop,
/// although a status that finds no object is no conflict, and the live read of the Foo may be rejected.
pub fn gone_while_the_watch_is_silent() -> Plan {
    gone_unnoticed(false)
}

pub fn gone_and_look_ups_are_refused() -> Plan {
    gone_unnoticed(true)
}

fn gone_unnoticed(look_ups_are_refused: bool) -> Plan {
    let delete = Deed::DeleteFoo {
        foo: 0,
        policy: Policy::Background,
    };
    let steps = vec![step(9_000, user(CREATE)), step(30_000, user(delete))];
    let mut plan = untold(543, us(20_000_000), steps);
    if look_ups_are_refused {
        let refused = Fault::each(Calls::of("list", "foos"), Happens::refused(500, None));
        plan.fault(us(25_000_000), refused, us(90_000_000));
    }
    plan
}

/// The new Deployment of a Foo is complete, and loses its owner while the old Deployment is being deleted. The checker of I16
/// must judge the state at the time of the live reads, not at the arrival of the deletion. The other Foo gets another name in
/// between.
pub fn taken_away_during_the_deletion() -> Plan {
    let create = |foo, deployment| {
        user(Deed::CreateFoo {
            foo,
            deployment,
            replicas: Some(1),
        })
    };
    let rename = |foo, deployment| user(Deed::RenameDeployment { foo, deployment });
    let of = Calls {
        verb: Some("delete"),
        ..Calls::default()
    };
    let deletions = Fault::each(of, Happens::RequestLate(us(1_800_000)));
    Plan {
        steps: vec![
            step(9_000, create(0, 0)),
            step(9_000, create(2, 2)),
            step(20_000, What::Fault(deletions, us(1_500_000))),
            step(20_000, rename(0, 1)),
            step(20_000, rename(2, 3)),
            step(21_500, user(Deed::OrphanDeployment { deployment: 1 })),
            step(21_500, rename(2, 4)),
            step(30_000, What::Heal),
        ],
        rest: us(75_000_000),
        ..calm(1617, 1, 1, us(100_000_000))
    }
}

/// A Foo specifies its first Deployment again, which has no owner by now. The status must not have the counts of the Deployment
/// in between and the name of the first.
pub fn another_one_serves() -> Plan {
    let rename = |deployment| user(Deed::RenameDeployment { foo: 0, deployment });
    Plan {
        steps: vec![
            step(
                9_000,
                user(Deed::CreateFoo {
                    foo: 0,
                    deployment: 0,
                    replicas: Some(1),
                }),
            ),
            step(18_000, user(Deed::OrphanDeployment { deployment: 0 })),
            step(
                20_000,
                user(Deed::ScaleFoo {
                    foo: 0,
                    replicas: Some(3),
                }),
            ),
            step(20_100, rename(1)),
            step(20_800, rename(0)),
            step(30_000, What::Heal),
        ],
        rest: us(75_000_000),
        ..calm(1764, 1, 1, us(100_000_000))
    }
}

/// A webhook with the default timeout of 10 s never answers, and fails open. Each write of a Deployment must allow that time.
pub fn held_by_a_webhook_that_fails_open() -> Plan {
    let held = |verb| {
        let webhook = Happens::Hangs(us(10_000_000));
        let fault = Fault::each(Calls::of(verb, "deployments"), webhook);
        step(20_000, What::Fault(fault, us(140_000_000)))
    };
    Plan {
        steps: vec![
            held("create"),
            held("patch"),
            step(21_000, user(CREATE)),
            step(60_000, user(SCALE)),
        ],
        rest: us(100_000_000),
        ..calm(1, 2, 1, us(160_000_000))
    }
}

/// A patch sets two fields, and a webhook replaces the first. The next patch would set only this field, again without effect.
pub fn forged_while_admission_overrules() -> Plan {
    let overruling = Fault::Policy(Others::Label);
    let forge = Deed::ForgeGeneration { deployment: 0 };
    Plan {
        steps: vec![
            step(12_000, user(CREATE)),
            step(20_000, What::Fault(overruling, us(20_000_000))),
            step(25_000, user(forge)),
            step(50_000, What::Heal),
        ],
        rest: us(100_000_000),
        ..calm(1, 1, 1, us(160_000_000))
    }
}
