//! Regression cases about the Lease.

use std::time::Duration;

use operator_simulation::{
    plan::{Action, Calls, Fault, Happens, Machine, Plan, Settings, Step, Then, Way, What},
    trace::Role,
};

use super::{
    super::{Foo, calm, users::Deed},
    CREATE, LATE, SCALE, step, us, user,
};

/// The leader is stopped while a write is in flight. It must wait for the write before it releases the Lease.
pub fn stopped_amid_a_write() -> Plan {
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
        ..calm(1, 2, 1, us(160_000_000))
    }
}

/// A webhook holds a write for longer than the drain of its sender, which is stopped, may take. The write is still in flight when
/// the sender could release the Lease. The sender must not release it before the write can no longer land. The next leader has
/// nothing to write, so the Deployment keeps the version of the write.
pub fn given_up_and_on_its_way() -> Plan {
    let held = Fault::each(
        Calls::of("patch", "deployments"),
        Happens::Hangs(us(20_600_000)),
    );
    let back = Deed::ScaleFoo {
        foo: 0,
        replicas: Some(1),
    };
    let plan = calm(1, 2, 1, us(260_000_000));
    Plan {
        settings: Settings {
            lease_duration: Duration::from_secs(30),
            renew_deadline: Duration::from_secs(20),
            ..plan.settings
        },
        steps: vec![
            step(70_000, user(CREATE)),
            step(80_000, What::Fault(held, us(2_000_000))),
            step(80_050, user(SCALE)),
            step(80_200, What::Action(Action::Stop { replica: 1 })),
            step(95_000, user(back)),
            step(120_000, What::Heal),
        ],
        rest: us(200_000_000),
        ..plan
    }
}

/// The wall clocks stand still for longer than a term. Renewals must advance their timestamp regardless. Otherwise the API
/// server stores no change, and a leader that takes this for a renewal writes after its term.
pub fn clocks_that_stand_still() -> Plan {
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
        ..calm(1, 2, 1, us(180_000_000))
    }
}

/// A user shortens the Lease of a leader whose clock has stopped. If the leader's next write restores only the duration, it is
/// no renewal: the other replicas do not see one.
pub fn renewed_by_a_clock_that_stands_still() -> Plan {
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
            ..calm(0, 2, 1, Duration::ZERO).settings
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
        ..calm(0, 2, 1, us(293_634_000))
    }
}

/// A user sets `leaseTransitions` to its maximum and the timestamps out of range, and then the holder crashes. Another replica
/// must take the Lease.
pub fn spoilt_and_left() -> Plan {
    let of = Calls {
        verb: Some("write"),
        ..Calls::default()
    };
    let (nth, happens) = (Some(3), Happens::CrashBefore(Then::Nobody));
    let crash = Fault::Call { of, nth, happens };
    Plan {
        steps: vec![
            step(12_000, user(CREATE)),
            step(15_000, user(Deed::SpoilLease)),
            step(20_000, What::Fault(crash, Duration::ZERO)),
            step(28_000, user(SCALE)),
            step(80_000, What::Heal),
        ],
        ..calm(1, 2, 1, us(240_000_000))
    }
}

/// A replica sees the Lease without a holder and sleeps while another replica takes it. A user then clears the Lease. The first
/// replica must not take it for the Lease that it saw before, because the holder still leads.
pub fn vacant_again_after_a_sleep() -> Plan {
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
        ..calm(0, 3, 1, us(252_676_000))
    }
}

/// The leader's watches are cut and reopened, the Lease is short, and nothing changes. The leader must keep the Lease: it has
/// to trust a silent watch before it gives the namespace up, after 3 s.
pub fn short_lease_and_silent_watch() -> Plan {
    Plan {
        seed: 144,
        program: &Foo,
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

/// A leader creates its deleted Lease again, without a holder, and the response is lost. It works until its deadline. The
/// checker of I2 must not take the creation for a release.
pub fn answer_lost_of_a_lease_that_is_nobodys() -> Plan {
    Plan {
        seed: 415,
        program: &Foo,
        settings: Settings {
            workers: 1,
            resync: us(30_000_000),
            lease_duration: us(15_000_000),
            renew_deadline: us(10_000_000),
            retry_period: us(5_000_000),
            image: "nginx:latest",
            max_rollouts: 10,
            namespace: None,
        },
        replicas: vec![Machine::SOUND; 3],
        servers: 1,
        fencing: false,
        steps: vec![
            step(
                42_172,
                What::Action(Action::user(Deed::CreateFoo {
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
            step(87_581, What::Action(Action::user(Deed::DeleteLease))),
            step(
                89_465,
                What::Action(Action::user(Deed::Autoscale {
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

/// A user clears the holder of a Lease whose last renewals another replica has not seen. That replica must not take this for a
/// release, because the holder still leads.
pub fn cleared_and_not_seen_before() -> Plan {
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
        ..calm(440, 3, 1, us(235_918_000))
    }
}

/// A Foo with a long delay is rejected for a missing permission. The permission is restored before the leader releases the
/// Lease for that reason. The Foo must not wait for a long delay again.
pub fn rights_are_back_soon() -> Plan {
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
        ..calm(1, 1, 1, us(220_000_000))
    }
}

/// A replica is stopped while its attempts to renew the Lease hang, each for longer than the pause after it. The replica must
/// notice the stop.
pub fn stopped_while_all_hangs() -> Plan {
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
        ..calm(109, 1, 1, us(273_318_000))
    }
}

/// A leader is succeeded by another replica. It then leads again in a term that looks like its first, because a user has
/// emptied the Lease. It must not consider the fencing record its own.
pub fn leads_again_in_a_term_of_the_same_number() -> Plan {
    let renewals = Calls {
        replica: Some(1),
        role: Some(Role::Lease),
        ..Calls::default()
    };
    let cut_off = Fault::Partition {
        of: renewals,
        way: Way::Both,
    };
    let crash = Fault::Crash {
        replica: 0,
        then: Then::Pod(us(40_000_000)),
    };
    Plan {
        fencing: true,
        steps: vec![
            step(12_000, user(CREATE)),
            step(20_000, What::Fault(cut_off, us(15_000_000))),
            step(60_000, What::Fault(crash, us(0))),
            step(60_100, user(Deed::EmptyLease)),
            step(80_000, user(SCALE)),
            step(120_000, What::Heal),
        ],
        rest: us(240_000_000),
        ..calm(0, 2, 1, us(280_000_000))
    }
}

/// An attempt hangs, and the next begins immediately. The watch has reported the leader. Then a user puts back an old copy of
/// the released Lease. The replica must process the report first, and not take the copy for a new release.
pub fn put_back_while_attempts_hang() -> Plan {
    let cut_off = requests_lost(Calls {
        replica: Some(0),
        ..Calls::default()
    });
    two_until_healed(vec![
        step(14_000, What::Fault(cut_off, us(6_400_000))),
        step(19_600, user(Deed::RestoreLease)),
    ])
}

/// The watch reports the leader during a slow attempt. Before the response, a user puts back an old copy of the released Lease.
/// The replica must process the report first, and not take the copy for a new release.
pub fn put_back_while_an_attempt_is_slow() -> Plan {
    let slow = Fault::each(leases(0, Some("get")), Happens::RequestLate(us(1_800_000)));
    two_until_healed(vec![
        step(10_000, What::Fault(slow, us(6_400_000))),
        step(16_500, user(Deed::RestoreLease)),
    ])
}

/// As in [`put_back_while_an_attempt_is_slow`], but the watch is behind. It reports the leader only after the copy has been
/// read. The reported version is older than the copy and has a later timestamp, so the copy is no new release.
pub fn put_back_while_the_watch_is_behind() -> Plan {
    let behind = Fault::Behind {
        server: 0,
        by: us(3_000_000),
    };
    let slow = Fault::each(leases(0, Some("get")), Happens::RequestLate(us(1_800_000)));
    let lost = Fault::each(leases(0, Some("patch")), Happens::RequestLost);
    two_until_healed(vec![
        step(10_000, What::Fault(behind, us(20_000_000))),
        step(10_000, What::Fault(slow, us(6_400_000))),
        step(
            16_000,
            What::Fault(requests_lost(leases(1, None)), us(9_000_000)),
        ),
        step(16_500, user(Deed::RestoreLease)),
        step(16_600, What::Fault(lost, us(2_000_000))),
    ])
}

/// A late response is older than the watch's report of the leader, and must not replace it. The watch does not repeat the
/// report before a user puts back an old copy of the released Lease.
pub fn put_back_after_a_late_answer() -> Plan {
    let late = Fault::each(leases(1, Some("get")), Happens::AnswerLate(us(1_800_000)));
    two_until_healed(vec![
        step(10_000, What::Fault(late, us(6_400_000))),
        step(
            16_000,
            What::Fault(requests_lost(leases(0, None)), us(9_000_000)),
        ),
        step(17_200, user(Deed::RestoreLease)),
    ])
}

/// Returns the calls of a replica for its Lease.
fn leases(replica: usize, verb: Option<&'static str>) -> Calls {
    Calls {
        replica: Some(replica),
        role: Some(Role::Lease),
        verb,
        resource: Some("leases"),
        ..Calls::default()
    }
}

fn requests_lost(of: Calls) -> Fault {
    Fault::Partition {
        of,
        way: Way::Requests,
    }
}

/// Returns a plan with two replicas, no Foo, and these steps, which begin in the first 40 s.
fn two_until_healed(mut steps: Vec<Step>) -> Plan {
    steps.push(step(40_000, What::Heal));
    Plan {
        steps,
        rest: us(160_000_000),
        ..calm(0, 2, 1, us(200_000_000))
    }
}
