//! What seeds have found, as `simulate --seed N --shrink INVARIANT` prints what is left of them: run before anything else.

use std::time::Duration;

use super::{
    api::Others,
    plan::{Action, Calls, Fault, Happens, Machine, Plan, Settings, Step, Then, Way, What},
    trace::{Role, Time},
    users::{Deed, Policy, Spoilt},
};

const fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

fn step(milliseconds: u64, what: What) -> Step {
    Step {
        at: Duration::from_millis(milliseconds),
        what,
    }
}

const fn user(deed: Deed) -> What {
    What::Action(Action::User(deed))
}

/// What most of them begin with.
const CREATE: Deed = Deed::CreateFoo {
    foo: 0,
    deployment: 0,
    replicas: Some(1),
};

/// What goes on with it.
const SCALE: Deed = Deed::ScaleFoo {
    foo: 0,
    replicas: Some(3),
};

/// So late that what is sent before the end of a term lands after it, and so early that its connection is not given up.
const LATE: Happens = Happens::RequestLate(us(2_000_000));

/// All of them, by their names.
pub fn all() -> Vec<(String, Plan)> {
    [
        (
            "short_lease_and_silent_watch",
            short_lease_and_silent_watch(),
        ),
        ("status_refused_for_a_while", status_refused_for_a_while()),
        (
            "answer_lost_of_a_lease_that_is_nobodys",
            answer_lost_of_a_lease_that_is_nobodys(),
        ),
        ("cleared_and_not_seen_before", cleared_and_not_seen_before()),
        (
            "gone_while_the_watch_is_stuck",
            gone_while_the_watch_is_stuck(),
        ),
        ("rights_are_back_soon", rights_are_back_soon()),
        ("gone_while_the_watch_is_silent", gone_unnoticed(false)),
        ("gone_and_look_ups_are_refused", gone_unnoticed(true)),
        (
            "taken_away_during_the_deletion",
            taken_away_during_the_deletion(),
        ),
        ("another_one_serves", another_one_serves()),
        ("stopped_while_all_hangs", stopped_while_all_hangs()),
        ("clocks_that_stand_still", clocks_that_stand_still()),
        ("stopped_amid_a_write", stopped_amid_a_write()),
        ("given_up_and_on_its_way", given_up_and_on_its_way()),
        (
            "renewed_by_a_clock_that_stands_still",
            renewed_by_a_clock_that_stands_still(),
        ),
        ("vacant_again_after_a_sleep", vacant_again_after_a_sleep()),
        ("two_ask_for_what_is_deleted", two_ask_for_what_is_deleted()),
        ("undone_and_never_answered", undone_and_never_answered()),
        ("brought_back_as_it_was", brought_back_as_it_was()),
        (
            "another_of_the_same_generation",
            another_of_the_same_generation(),
        ),
    ]
    .map(|(name, plan)| (name.to_owned(), plan))
    .into()
}

/// Who leads is stopped while a write of its is on its way: that is waited for before the Lease is given back (P2).
fn stopped_amid_a_write() -> Plan {
    let late = Fault::each(Calls::of("patch", "deployments"), LATE);
    Plan {
        steps: vec![
            step(12_000, user(CREATE)),
            step(20_000, What::Fault(late, us(2_000_000))),
            step(20_050, user(SCALE)),
            step(21_000, What::Action(Action::Stop { replica: 1 })),
            step(40_000, What::Heal),
        ],
        rest: us(100_000_000),
        ..Plan::calm(1, 2, 1, us(160_000_000))
    }
}

/// A write is given up when its term ends, and is on its way still when its sender, which is stopped then, could give the Lease
/// back: it waits until that cannot land any more (H19).
fn given_up_and_on_its_way() -> Plan {
    let mut leases = Calls::of("write", "leases");
    leases.replica = Some(1);
    let no_renewal = Fault::each(leases, Happens::ResetBefore);
    let late = Fault::each(Calls::of("patch", "deployments"), LATE);
    Plan {
        steps: vec![
            step(12_000, user(CREATE)),
            step(20_000, What::Fault(no_renewal, us(8_700_000))),
            step(28_400, What::Fault(late, us(2_000_000))),
            step(28_450, user(SCALE)),
            step(29_250, What::Action(Action::Stop { replica: 1 })),
            step(40_000, What::Heal),
        ],
        rest: us(100_000_000),
        ..Plan::calm(1, 2, 1, us(160_000_000))
    }
}

/// The clocks stand still for longer than a term, and the renewals move their date on without them. Had it stayed, the API server
/// would have changed nothing, and whoever takes that for a renewal works on after its term (H11).
fn clocks_that_stand_still() -> Plan {
    let still = |replica| {
        let fault = Fault::WallStill { replica };
        step(20_000, What::Fault(fault, us(40_000_000)))
    };
    Plan {
        steps: vec![
            step(12_000, user(CREATE)),
            still(0),
            still(1),
            step(33_000, user(SCALE)),
        ],
        ..Plan::calm(1, 2, 1, us(180_000_000))
    }
}

/// Somebody shortened the Lease of a leader whose clock stood still. Its next write changed that back, and nothing else: it took
/// that for a renewal, which nobody else did (H11).
fn renewed_by_a_clock_that_stands_still() -> Plan {
    let of = Calls {
        verb: Some("write"),
        ..Calls::default()
    };
    let (nth, happens) = (Some(3), Happens::CrashBefore(Then::Pod(us(816_000))));
    let crash = Fault::Call { of, nth, happens };
    Plan {
        seed: 20_845,
        settings: Settings {
            workers: 1,
            lease_duration: us(3_000_000),
            renew_deadline: us(2_000_000),
            retry_period: us(500_000),
            ..Plan::calm(0, 2, 1, Duration::ZERO).settings
        },
        steps: vec![
            step(25_724, What::Fault(crash, Duration::ZERO)),
            step(
                27_422,
                What::Fault(Fault::WallStill { replica: 0 }, us(10_691_000)),
            ),
            step(32_339, user(Deed::ShortenLease)),
            step(111_817, What::Heal),
        ],
        ..Plan::calm(0, 2, 1, us(293_634_000))
    }
}

/// Who had seen that nobody held the Lease slept while somebody did, and found it emptied by hand: it took that for what it had
/// seen, and the Lease with it, while its holder went on (H12, H21).
fn vacant_again_after_a_sleep() -> Plan {
    let sleep = Fault::Suspend { replica: 0 };
    Plan {
        seed: 40_775,
        settings: Settings {
            workers: 1,
            retry_period: us(5_000_000),
            ..Settings::default()
        },
        steps: vec![
            step(11_029, What::Fault(sleep, us(15_928_000))),
            step(27_649, user(Deed::EmptyLease)),
            step(71_338, What::Heal),
        ],
        ..Plan::calm(0, 3, 1, us(252_676_000))
    }
}

/// Two Foos asked for one Deployment, which the garbage collector deleted whenever one of them had made it, until the leader
/// noticed that there was no definition of theirs any more: each forgot of the other how often it had been undone (Q3).
fn two_ask_for_what_is_deleted() -> Plan {
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
        step(35_000, What::Fault(Fault::NoDefinition, us(30_000_000))),
    ];
    untold(42_901, us(30_000_000), steps.into())
}

/// Somebody deletes a Deployment five times a second, and each time that it is made again the answer is that of a server which
/// failed meanwhile: it is made ever more slowly, as if the answers had come (I11).
fn undone_and_never_answered() -> Plan {
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
        step(15_000, What::Fault(failing, us(40_000_000))),
        step(60_000, What::Heal),
    ];
    steps.extend((0..75).map(|number| step(20_000 + 200 * number, user(delete))));
    Plan {
        steps,
        rest: us(180_000_000),
        ..Plan::calm(1, 1, 1, us(220_000_000))
    }
}

/// A Foo is deleted while its watch says nothing, and a write of its status finds nobody. Then a backup brings it back, and the
/// next list has it at the very version that the watch had told of: it gets the Deployment that somebody deletes next (I3).
fn brought_back_as_it_was() -> Plan {
    let (deployment, policy) = (0, Policy::Background);
    let of = Calls {
        resource: Some("foos"),
        ..Calls::default()
    };
    let reset = |at| step(at, What::Fault(Fault::Reset { of: of.clone() }, Time::ZERO));
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
        ..Plan::calm(1, 1, 1, us(220_000_000))
    }
}

/// A backup forgets that a Foo was renamed, and somebody scales it instead, which is of the same generation; its watch says nothing
/// of either. The Deployment that it asks for, and had before the name that is forgotten, is not deleted (I16).
fn another_of_the_same_generation() -> Plan {
    let rename = Deed::RenameDeployment {
        foo: 0,
        deployment: 1,
    };
    let unavailable = Fault::NoPods { deployment: 1 };
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

/// These steps, and no watch of Foos says anything for 90 s from then on: what has happened meanwhile is noticed after all has
/// healed, by whoever waits for a word for too long.
fn untold(seed: u64, from: Time, mut steps: Vec<Step>) -> Plan {
    steps.push(step(120_000, What::Heal));
    let mut plan = Plan {
        steps,
        rest: us(500_000_000),
        ..Plan::calm(seed, 1, 1, us(540_000_000))
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

/// A policy refused the status of a Foo whose Deployment is another's, and was gone after a while: the status was never
/// written, since a refusal was taken for what the Foo itself brings on.
fn status_refused_for_a_while() -> Plan {
    let policy = Fault::Policy(Others::NoStatus);
    let mut plan = Plan::calm(1, 1, 1, us(100_000_000));
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

/// Seed 144. Where the Lease is short and nothing changes, a leader whose watches were cut off and work again let the Lease
/// go: that they work was believed after five silent seconds, and it had been given up after three.
fn short_lease_and_silent_watch() -> Plan {
    Plan {
        seed: 144,
        settings: Settings {
            resync: us(86_400_000_000),
            lease_duration: us(3_000_000),
            renew_deadline: us(2_000_000),
            retry_period: us(500_000),
            ..Settings::default()
        },
        replicas: vec![Machine::SOUND; 2],
        servers: 1,
        fencing: false,
        steps: vec![
            step(
                1_000,
                user(Deed::CreateFoo {
                    foo: 0,
                    deployment: 0,
                    replicas: Some(1),
                }),
            ),
            step(2_000, What::Heal),
            step(
                30_000,
                What::Fault(
                    Fault::Reset {
                        of: Calls::default(),
                    },
                    us(0),
                ),
            ),
        ],
        rest: us(31_000_000),
        end: us(60_000_000),
    }
}

/// Seed 415. A leader whose Lease was deleted created it, held by nobody, and never had the answer (H12). It works on to its
/// deadline; the checker of I2 took that creation for a release.
fn answer_lost_of_a_lease_that_is_nobodys() -> Plan {
    Plan {
        seed: 415,
        settings: Settings {
            workers: 1,
            resync: us(30_000_000),
            lease_duration: us(15_000_000),
            renew_deadline: us(10_000_000),
            retry_period: us(5_000_000),
            image: "nginx:latest",
            namespace: None,
        },
        replicas: vec![Machine::SOUND; 3],
        servers: 1,
        fencing: false,
        steps: vec![
            step(
                42_172,
                What::Action(Action::User(Deed::CreateFoo {
                    foo: 1,
                    deployment: 0,
                    replicas: Some(3),
                })),
            ),
            step(
                57_872,
                What::Fault(
                    Fault::Partition {
                        of: Calls {
                            replica: Some(2),
                            role: Some(Role::Lease),
                            server: None,
                            verb: None,
                            resource: None,
                        },
                        way: Way::Requests,
                    },
                    us(52_405_000),
                ),
            ),
            step(
                67_507,
                What::Fault(
                    Fault::Call {
                        of: Calls {
                            replica: None,
                            role: None,
                            server: None,
                            verb: Some("create"),
                            resource: Some("leases"),
                        },
                        nth: Some(1),
                        happens: Happens::AnswerLost,
                    },
                    us(0),
                ),
            ),
            step(
                76_159,
                What::Fault(
                    Fault::Call {
                        of: Calls {
                            replica: Some(1),
                            role: None,
                            server: None,
                            verb: None,
                            resource: None,
                        },
                        nth: Some(1),
                        happens: Happens::Html,
                    },
                    us(0),
                ),
            ),
            step(87_581, What::Action(Action::User(Deed::DeleteLease))),
            step(
                89_465,
                What::Action(Action::User(Deed::Autoscale {
                    foo: 1,
                    replicas: 4,
                })),
            ),
            step(89_977, What::Heal),
        ],
        rest: us(249_954_000),
        end: us(289_954_000),
    }
}

/// Seed 440. Somebody cleared the holder of a Lease whose last renewals another replica had not seen: it took that for a
/// release, and led beside the holder.
fn cleared_and_not_seen_before() -> Plan {
    let reset = |replica, role| {
        let of = Calls {
            replica,
            role,
            ..Calls::default()
        };
        What::Fault(Fault::Reset { of }, us(0))
    };
    Plan {
        settings: Settings {
            workers: 1,
            ..Settings::default()
        },
        steps: vec![
            step(24_895, reset(None, None)),
            step(28_177, reset(Some(1), None)),
            step(30_569, reset(Some(2), Some(Role::Lease))),
            step(31_475, user(Deed::ClearHolder)),
            step(62_959, What::Heal),
        ],
        rest: us(195_918_000),
        ..Plan::calm(440, 3, 1, us(235_918_000))
    }
}

/// Seed 450. A Foo is deleted while its watch says nothing: each time that the garbage collector had deleted its Deployment,
/// another one was created, though the status met a conflict each time.
fn gone_while_the_watch_is_stuck() -> Plan {
    Plan {
        seed: 450,
        settings: Settings {
            workers: 1,
            resync: us(30_000_000),
            lease_duration: us(15_000_000),
            renew_deadline: us(10_000_000),
            retry_period: us(2_000_000),
            image: "nginx:latest",
            namespace: Some("foos"),
        },
        replicas: vec![Machine::SOUND; 5],
        servers: 3,
        fencing: false,
        steps: vec![
            step(
                8_797,
                What::Action(Action::User(Deed::CreateFoo {
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
                What::Action(Action::User(Deed::DeleteFoo {
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

/// Seed 543. A Foo is gone, of which its watch says nothing: whenever the garbage collector had deleted its Deployment, another one
/// was created, since a status that finds nobody is no conflict, and, where look-ups are refused, whether there still is a Foo
/// could not be asked.
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

/// A Foo that has waited for long is refused for want of rights, which are back before whoever leads gives the Lease back for that:
/// it does not wait as long again (I10).
fn rights_are_back_soon() -> Plan {
    let of = Calls::of("create", "deployments");
    let failing = Fault::each(of, Happens::refused(500, None));
    let revoked = Fault::Revoke {
        verb: "create",
        resource: "deployments",
    };
    Plan {
        steps: vec![
            step(19_000, What::Fault(failing, us(21_000_000))),
            step(20_000, user(CREATE)),
            step(40_000, What::Fault(revoked, us(1_600_000))),
            step(60_000, What::Heal),
        ],
        rest: us(180_000_000),
        ..Plan::calm(1, 1, 1, us(220_000_000))
    }
}

/// Seed 1617. A renamed Foo's new Deployment was complete, and given to nobody while the old one was being deleted: the
/// checker of I16 asked for what was so when the deletion arrived. The other Foo is renamed once more meanwhile.
fn taken_away_during_the_deletion() -> Plan {
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
    let deletions = Fault::each(of, Happens::RequestLate(us(2_000_000)));
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
        ..Plan::calm(1617, 1, 1, us(100_000_000))
    }
}

/// Seed 1764. A Foo that was renamed asks again for what it had before, which is nobody's by now: the status counted the pods
/// of the Deployment that it had in between, and named the other.
fn another_one_serves() -> Plan {
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
        ..Plan::calm(1764, 1, 1, us(100_000_000))
    }
}

/// Seed 109. A replica whose attempts to renew the Lease hung, each for longer than the pause after it, did not notice that it
/// was asked to stop.
fn stopped_while_all_hangs() -> Plan {
    let of = Calls {
        replica: Some(0),
        ..Calls::default()
    };
    let way = Way::Both;
    let replace = Action::Replace {
        replica: 0,
        settings: None,
    };
    Plan {
        steps: vec![
            step(
                35_610,
                What::Fault(Fault::Partition { of, way }, us(54_230_000)),
            ),
            step(41_791, What::Action(replace)),
            step(81_659, What::Heal),
        ],
        rest: us(233_318_000),
        ..Plan::calm(109, 1, 1, us(273_318_000))
    }
}
