//! Faults at every place, in short scripts with few objects.
//!
//! The variations of a script have a crash before, at and after each write (except most renewals of the Lease). They also have
//! faults of the first calls of each kind. Some faults look alike to a replica: the first call has all of them, every other
//! call has one in turn.

use std::{collections::BTreeMap, time::Duration};

use super::{
    cases::programs,
    foo::Foo,
    judge::holder,
    plan::{Action, Calls, Fault, Happens, Machine, Plan, Settings, Step, Then, Way, What},
    program::Program,
    trace::{Call, Role, Time, Trace},
    users::{Deed, Policy},
};

/// Number of calls of each kind that have faults.
const FIRST: usize = 20;

/// No script has this many calls of a kind.
const MOST: usize = 400;

/// As in [`Call::verb`].
const VERBS: [&str; 8] = [
    "get", "list", "stream", "watch", "create", "update", "patch", "delete",
];

/// Crashes of the writer before, at and after its write.
const CRASHES: [Happens; 6] = [
    Happens::CrashBefore(CONTAINER),
    Happens::CrashAt(CONTAINER),
    Happens::CrashAfter(CONTAINER),
    Happens::CrashBefore(POD),
    Happens::CrashAt(POD),
    Happens::CrashAfter(POD),
];

/// A container that is back before another replica may take its Lease, and continues with it.
const CONTAINER: Then = Then::Container(Duration::from_secs(2));

/// A pod with another identity: another replica takes over.
const POD: Then = Then::Pod(Duration::from_secs(2));

/// Delay of a late response. Added to the retry period (500 ms) it equals the renew deadline (2 s).
const LATE: Duration = Duration::from_millis(1500);

/// Delay of a late request. Short enough that the kernel does not give up.
const LATE_REQUEST: Duration = Duration::from_millis(450);

/// Time of the heal.
pub const HEAL: Time = Time::from_secs(20);

/// Time of a change while a watch is silent.
const MEANWHILE: Time = Time::from_secs(100);

/// Timeout of a list's or a watch's response, and the time for the next attempt.
const ANSWER: Duration = Duration::from_secs(70);

/// Time from the last action to the desired state. Longer than any rollout here, and shorter than the retry delay after six
/// seconds of failures.
const PROMPTLY: Duration = Duration::from_secs(4);

/// A script and its plan.
#[derive(Clone, Debug)]
pub struct Script {
    pub name: String,
    pub plan: Plan,
    /// Whether the desired state is reached within seconds, without a resync.
    pub is_prompt: bool,
}

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

/// Returns the scripts of all operators, without the faults of their variations.
pub fn all() -> Vec<Script> {
    programs().all().flat_map(Program::scripts).collect()
}

/// Returns the scripts with Foos.
pub fn of_foos() -> Vec<Script> {
    let deeds = DEEDS.iter();
    deeds
        .map(|(name, deeds)| Script {
            name: (*name).to_owned(),
            plan: plan(name, deeds),
            is_prompt: true,
        })
        .collect()
}

/// Returns the settings of the scripts. Without a resync, only watch events count.
pub fn settings() -> Settings {
    let ms = Duration::from_millis;
    Settings {
        resync: Duration::from_hours(24),
        lease_duration: ms(3_000),
        renew_deadline: ms(2_000),
        retry_period: ms(500),
        ..Settings::default()
    }
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
        plan.act(ms(*at), Action::User(*deed));
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
            plan.slow_foos(0);
            plan.replace_leader(ms(6_800));
        }
        // The new leader has work, but is rejected while the API server sees only the previous holder. It must not retry in a
        // busy loop.
        "hand-over that the policy is not told of" => {
            plan.fencing = true;
            plan.slow_foos(1);
            plan.fault(ms(6_500), Fault::Stuck { server: 0 }, ms(10_000));
            plan.replace_leader(ms(6_600));
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

impl Plan {
    /// Delays the users' changes at six seconds for one replica.
    fn slow_foos(&mut self, replica: usize) {
        let of = Calls {
            replica: Some(replica),
            resource: Some("foos"),
            ..Calls::default()
        };
        let (way, by) = (Way::Answers, Duration::from_secs(5));
        self.fault(
            Duration::from_millis(5_500),
            Fault::Slow { of, way, by },
            Duration::from_secs(3),
        );
    }

    /// Replaces replica 1, which leads.
    fn replace_leader(&mut self, at: Time) {
        let (replica, settings) = (1, None);
        self.act(at, Action::Replace { replica, settings });
    }
}

impl Script {
    /// Returns the resources that the replicas use.
    fn used(&self) -> Vec<&'static str> {
        let calls = self.plan.program.declared().calls.iter();
        let mut used = vec!["selfsubjectaccessreviews"];
        for (_, resource) in calls {
            if !used.contains(resource) {
                used.push(resource);
            }
        }
        used
    }

    /// Returns the resources that the replicas write.
    fn written(&self) -> Vec<&'static str> {
        let calls = self.plan.program.declared().calls.iter();
        let mut written = Vec::new();
        for (verb, resource) in calls {
            if is_write(verb) && !written.contains(resource) {
                written.push(resource);
            }
        }
        written
    }

    /// Returns the static name of a resource.
    fn known(&self, resource: &str) -> &'static str {
        let mut used = self.used().into_iter();
        used.find(|known| *known == resource)
            .unwrap_or_else(|| panic!("{resource} is called, and `build` does not declare it"))
    }

    /// Returns the plan without the faults of variations. If the script has no fault of its own, the desired state must not
    /// depend on a resync, or on a retry that is seconds away.
    pub fn itself(&self) -> Plan {
        let mut plan = self.plan.clone();
        let actions = plan.steps.iter();
        let is_fault = |step: &Step| matches!(step.what, What::Fault(..));
        if self.is_prompt && !actions.clone().any(is_fault) {
            let actions = actions.filter(|step| matches!(step.what, What::Action(_)));
            plan.rest = actions.map(|step| step.at).max().unwrap_or_default() + PROMPTLY;
        }
        plan
    }

    /// Returns all variations and their names. `trace` is the run without a variation.
    pub fn variations(&self, trace: &Trace) -> Vec<(String, Plan)> {
        let calls = || trace.calls.iter().filter(|call| call.sent < HEAL);
        let mut all = Vec::new();
        for resource in self.written() {
            let of = Calls::of("write", resource);
            let writes = calls().filter(|call| is_write(call.verb) && call.resource == resource);
            let mut held_by = None;
            for (nth, call) in (1..).zip(writes) {
                let holder = call.answer.as_ref().map(|lease| holder(lease));
                let renews = resource == "leases" && holder == held_by;
                held_by = holder;
                // The Lease is renewed until the end, each time in the same way.
                if renews && nth > FIRST / 4 {
                    continue;
                }
                let crashes = CRASHES.into_iter().filter(|happens| can_be(happens, call));
                all.extend(crashes.map(|happens| fault(of, nth, happens)));
            }
        }
        let mut counted = BTreeMap::<(&'static str, &str), usize>::new();
        for call in calls() {
            let nth = counted.entry((call.verb, &call.resource)).or_default();
            *nth += 1;
            if *nth > FIRST {
                continue;
            }
            let of = Calls::of(call.verb, self.known(&call.resource));
            let like = like_others();
            let one = like[*nth % like.len()].clone();
            let like = if *nth == 1 { like.to_vec() } else { vec![one] };
            let faults = faults(call.verb).into_iter().chain(like);
            let faults = faults.filter(|happens| can_be(happens, call));
            all.extend(faults.map(|happens| fault(of, *nth, happens)));
        }
        all.into_iter()
            .map(|fault| (self.name_with(&fault), self.with(fault)))
            .collect()
    }

    /// Returns the variation with this name, even if the run without a variation does not have its call.
    pub fn variation(&self, name: &str) -> Option<Plan> {
        let written = self.written().into_iter();
        let crashes = written
            .flat_map(|resource| CRASHES.map(|happens| (Calls::of("write", resource), happens)));
        let others = VERBS.into_iter().flat_map(|verb| {
            let all = || faults(verb).into_iter().chain(like_others());
            let used = self.used().into_iter();
            used.flat_map(move |resource| {
                all().map(move |happens| (Calls::of(verb, resource), happens))
            })
        });
        let numbered = crashes.chain(others).flat_map(|(of, happens)| {
            let nth = 1..=MOST;
            nth.map(move |nth| fault(of, nth, happens.clone()))
        });
        let mut named = numbered.filter(|fault| self.name_with(fault) == name);
        named.next().map(|fault| self.with(fault))
    }

    fn name_with(&self, fault: &Fault) -> String {
        let what = What::Fault(fault.clone(), Time::ZERO);
        format!("{}: {what}", self.name)
    }

    fn with(&self, fault: Fault) -> Plan {
        let mut plan = self.plan.clone();
        let Fault::Call { happens, .. } = &fault else {
            return plan;
        };
        let noticed = happens.is_noticed_in();
        if noticed.is_some() {
            // A change during the silence must take effect.
            let change = plan.program.change();
            if let Some(change) = change {
                plan.act(MEANWHILE, change);
            }
        }
        let answer = (*happens == Happens::AnswerLost).then_some(ANSWER);
        if let Some(time) = noticed.or(answer) {
            plan.rest = plan.rest.max(HEAL + time);
            plan.end = plan.rest + Duration::from_secs(20);
        }
        plan.fault(Time::ZERO, fault, Time::ZERO);
        plan
    }
}

/// Returns a fault of the n-th such call.
fn fault(of: Calls, nth: usize, happens: Happens) -> Fault {
    let nth = u32::try_from(nth).ok();
    Fault::Call { of, nth, happens }
}

/// Returns whether the fault of a variation met its call, and whether it had an effect.
pub fn is_met(variation: &Plan, trace: &Trace) -> (bool, bool) {
    let Some(What::Fault(fault @ Fault::Call { .. }, _)) =
        variation.steps.last().map(|step| &step.what)
    else {
        return (false, false);
    };
    // The script's own faults begin later, and may be equal.
    let mut faults = trace.faults.iter();
    let number = faults.position(|(time, its)| time.start == Time::ZERO && its == fault);
    let met = || {
        let calls = trace.calls.iter();
        calls.filter(|call| call.of_fault.is_some() && call.of_fault == number)
    };
    (met().next().is_some(), met().any(|call| call.felt))
}

/// Returns whether the fault can happen to a call that had this outcome without it.
fn can_be(happens: &Happens, call: &Call) -> bool {
    match happens {
        Happens::CrashBefore(_)
        | Happens::Refused
        | Happens::ResetBefore
        | Happens::ConnectHangs
        | Happens::RequestLost => true,
        Happens::RequestLate(_)
        | Happens::Hangs(_)
        | Happens::Status { .. }
        | Happens::CrashAt(_) => call.arrived.is_some(),
        _ => call.answered.is_some(),
    }
}

fn is_write(verb: &str) -> bool {
    matches!(verb, "create" | "update" | "patch" | "delete")
}

/// Faults of any call that look alike to a replica. The first call of a kind has all of them, every other call has one in turn.
fn like_others() -> [Happens; 7] {
    [
        Happens::Refused,
        Happens::ConnectHangs,
        Happens::refused(401, None),
        Happens::refused(502, None),
        Happens::refused(503, None),
        Happens::refused(503, Some(1)),
        Happens::refused(504, None),
    ]
}

/// Returns the faults of each call with this verb.
fn faults(verb: &str) -> Vec<Happens> {
    let mut all = vec![
        Happens::RequestLost,
        Happens::RequestLate(LATE_REQUEST),
        Happens::AnswerLost,
        Happens::AnswerLate(LATE),
        Happens::ResetBefore,
        Happens::ResetAfter,
        Happens::Cut,
        Happens::refused(403, None),
        Happens::refused(409, None),
        Happens::refused(429, Some(1)),
        Happens::refused(500, None),
        Happens::Html,
    ];
    if is_write(verb) {
        all.push(Happens::Status {
            code: 504,
            retry_after: None,
            applied: true,
        });
        all.push(Happens::Hangs(LATE));
        all.push(Happens::refused(404, None));
        all.push(Happens::refused(422, None));
    }
    if verb == "list" {
        all.extend([404, 410].map(|code| Happens::refused(code, None)));
    }
    if matches!(verb, "watch" | "stream") {
        let soon = Duration::from_millis(10);
        all.extend([
            Happens::WatchEnds(soon),
            Happens::WatchSilent,
            Happens::WatchFallsSilent,
            Happens::WatchGarbage,
            Happens::refused(410, None),
        ]);
    }
    all
}
