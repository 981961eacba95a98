//! Draws a plan from a seed.

use std::{collections::BTreeSet, time::Duration};

use super::{
    draw::Draws,
    plan::{Action, Calls, Fault, Happens, Machine, Plan, Settings, Step, Then, Way, What},
    program::Program,
    trace::Role,
};

/// Milliseconds from the heal to the desired state, apart from retries. Covers the longest pause of a watch, a resync, a
/// rollout, and a Lease without a holder.
const SETTLE: u64 = 70_000;

pub const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Returns a few seeds that together draw every fault and action.
pub fn of_everything(program: &'static dyn Program) -> Vec<u64> {
    let plans = (1..300).map(|seed| (seed, names(&Plan::of(program, seed))));
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

/// Returns the names of everything that a plan contains: faults, directions, actions of users.
fn names(plan: &Plan) -> BTreeSet<String> {
    let all = format!("{:?}", plan.steps);
    let words = all.split(|c: char| !c.is_alphanumeric());
    let is_name = |word: &&str| word.starts_with(char::is_uppercase);
    words.filter(is_name).map(ToOwned::to_owned).collect()
}

impl Plan {
    /// Draws the plan of this seed for this operator.
    ///
    /// It begins with ten seconds or more of calm, followed by a storm. After the heal there is time to reach the desired
    /// state. During the final rest nothing should happen.
    pub fn of(program: &'static dyn Program, seed: u64) -> Self {
        let settings = settings(&mut Draws::new(seed, "settings"), program.namespace());
        let mut shape = Draws::new(seed, "shape");
        let calm = 10_000 + 5_000 * shape.below(3);
        let heal = calm + shape.log_uniform(20_000, 120_000);
        // An object that has always failed waits as long again for its next retry.
        let rest = heal + heal + SETTLE;
        let end = rest + if shape.once_in(16) { 360_000 } else { 40_000 };
        let replicas: usize = shape.of(&[1, 2, 2, 3, 3, 3, 4, 5]);
        let replicas = replicas.max(program.installations().len());
        let mut clocks = Draws::new(seed, "clocks");
        let are_wrong = clocks.once_in(2);
        let machine = |_| {
            let machine = Machine {
                rate: clocks.of(&[900, 950, 1000, 1050, 1100]),
                wall: clocks.of(&[-3_600_000, -900, 0, 0, 70_000, 3_600_000]),
            };
            if are_wrong { machine } else { Machine::SOUND }
        };
        let mut plan = Self {
            seed,
            program,
            settings,
            replicas: (0..replicas).map(machine).collect(),
            servers: shape.of(&[1, 1, 2, 3]),
            fencing: shape.once_in(3) && program.fencing().is_some(),
            steps: Vec::new(),
            rest: ms(rest),
            end: ms(end),
        };
        program.users(&mut plan, ms(heal));
        for kind in program.faults() {
            plan.faults(kind, calm, heal);
        }
        // A backup may lack a removed component, and no user would install it again.
        let has = |what: fn(&Fault) -> bool| move |step: &Step| matches!(&step.what, What::Fault(fault, _) if what(fault));
        if plan
            .steps
            .iter()
            .any(has(|fault| matches!(fault, Fault::Restore)))
        {
            let gone = has(|fault| {
                matches!(
                    fault,
                    Fault::NoDefinition | Fault::Fencing | Fault::FencingPart { .. }
                )
            });
            plan.steps.retain(|step| !gone(step));
        }
        if let Some(noticed) = plan.is_noticed_in() {
            let later = (ms(heal + SETTLE) + noticed).saturating_sub(plan.rest);
            plan.rest += later;
            plan.end += later;
        }
        plan.steps.push(Step {
            at: ms(heal),
            what: What::Heal,
        });
        plan.steps.sort_by_key(|step| step.at);
        plan
    }

    /// Adds the faults of one kind at a random rate. A half to a tenth of the seeds have faults of a kind.
    fn faults(&mut self, kind: &Kind, calm: u64, heal: u64) {
        let mut draw = Draws::new(self.seed, kind.name);
        if !draw.once_in(kind.rare) {
            return;
        }
        let pause = draw.log_uniform(kind.pause, heal.max(kind.pause * 2));
        let mut at = calm;
        loop {
            at += draw.between(1, pause * 2);
            if at >= heal {
                break;
            }
            let mut what = (kind.draw)(&mut draw, self);
            if let (What::Fault(_, time), Some((from, to))) = (&mut what, kind.lasts) {
                *time = ms(draw.log_uniform(from, to));
            }
            self.steps.push(Step { at: ms(at), what });
        }
    }
}

/// Kind of fault.
///
/// - `name`: purpose of the random numbers.
/// - `rare`: the kind is in 1 of `rare` seeds.
/// - `pause`: shortest average pause between two faults, in milliseconds.
/// - `lasts`: range of the duration in milliseconds, if any.
/// - `draw`: draws one fault.
pub struct Kind {
    pub name: &'static str,
    rare: u64,
    pause: u64,
    lasts: Option<(u64, u64)>,
    draw: fn(&mut Draws, &Plan) -> What,
}

/// Returns a kind of fault.
pub const fn kind(
    name: &'static str,
    (rare, pause): (u64, u64),
    lasts: Option<(u64, u64)>,
    draw: fn(&mut Draws, &Plan) -> What,
) -> Kind {
    Kind {
        name,
        rare,
        pause,
        lasts,
        draw,
    }
}

/// Returns a fault, without its duration.
pub const fn fault(fault: Fault) -> What {
    What::Fault(fault, Duration::ZERO)
}

/// Faults of any operator.
pub const FAULTS: &[Kind] = &[
    kind("crash", (3, 5_000), None, |draw, plan| {
        let (replica, then) = (replica(draw, plan), then(draw));
        fault(Fault::Crash { replica, then })
    }),
    kind("replace", (3, 8_000), None, |draw, plan| {
        let (replica, settings) = (replica(draw, plan), None);
        What::Action(Action::Replace { replica, settings })
    }),
    kind("freeze", (3, 3_000), Some((10, 60_000)), |draw, plan| {
        let replica = replica(draw, plan);
        fault(Fault::Freeze { replica })
    }),
    kind("suspend", (4, 10_000), Some((100, 60_000)), |draw, plan| {
        let replica = replica(draw, plan);
        fault(Fault::Suspend { replica })
    }),
    kind(
        "wall clock",
        (3, 5_000),
        Some((1_000, 60_000)),
        |draw, plan| {
            let by = draw.of(&[-3_600_000, -30_000, -1_000, 1_000, 30_000, 3_600_000]);
            let replica = replica(draw, plan);
            fault(if draw.once_in(4) {
                Fault::WallStill { replica }
            } else {
                Fault::WallJump { replica, by }
            })
        },
    ),
    kind(
        "partition",
        (3, 3_000),
        Some((100, 60_000)),
        |draw, plan| {
            let (of, way) = (wide(draw, plan), way(draw));
            fault(Fault::Partition { of, way })
        },
    ),
    // Long enough to notice dead connections, unlike the other partitions.
    kind(
        "cut off",
        (8, 20_000),
        Some((60_000, 120_000)),
        |draw, plan| {
            let of = Calls {
                replica: Some(replica(draw, plan)),
                role: Some(Role::Work),
                ..Calls::default()
            };
            let way = Way::Both;
            fault(Fault::Partition { of, way })
        },
    ),
    kind("slow", (3, 5_000), Some((1_000, 30_000)), |draw, plan| {
        let by = ms(draw.log_uniform(20, 15_000));
        let (of, way) = (wide(draw, plan), way(draw));
        fault(Fault::Slow { of, way, by })
    }),
    kind("call", (2, 500), None, |draw, plan| {
        let of = calls(draw, plan);
        let happens = happens(draw, of);
        let nth = Some(u32::try_from(draw.between(1, 5)).unwrap_or(1));
        fault(Fault::Call { of, nth, happens })
    }),
    kind("calls", (3, 5_000), Some((100, 20_000)), |draw, plan| {
        let of = calls(draw, plan);
        let (nth, happens) = (None, happens(draw, of));
        fault(Fault::Call { of, nth, happens })
    }),
    kind("reset", (3, 2_000), None, |draw, plan| {
        let of = wide(draw, plan);
        fault(Fault::Reset { of })
    }),
    kind(
        "kill a server",
        (3, 8_000),
        Some((500, 30_000)),
        |draw, plan| {
            let server = server(draw, plan);
            fault(Fault::Kill { server })
        },
    ),
    kind(
        "pause a server",
        (3, 8_000),
        Some((500, 30_000)),
        |draw, plan| {
            let server = server(draw, plan);
            fault(Fault::Pause { server })
        },
    ),
    kind("behind", (3, 5_000), Some((1_000, 40_000)), |draw, plan| {
        let by = ms(draw.log_uniform(50, 30_000));
        let server = server(draw, plan);
        fault(Fault::Behind { server, by })
    }),
    kind("stuck", (4, 8_000), Some((1_000, 30_000)), |draw, plan| {
        let server = server(draw, plan);
        fault(Fault::Stuck { server })
    }),
    kind("cold", (4, 8_000), Some((500, 20_000)), |draw, plan| {
        let server = server(draw, plan);
        fault(Fault::Cold { server })
    }),
    kind(
        "no streamed lists",
        (4, 20_000),
        Some((5_000, 60_000)),
        |draw, plan| {
            let server = server(draw, plan);
            fault(Fault::NoWatchList { server })
        },
    ),
    kind("compaction", (3, 5_000), None, |_, _| fault(Fault::Compact)),
    kind("revoke", (4, 10_000), Some((500, 30_000)), |draw, plan| {
        let (verb, resource) = draw.of(&plan.program.declared().rights);
        fault(Fault::Revoke { verb, resource })
    }),
    kind("policy", (3, 10_000), Some((500, 40_000)), |draw, plan| {
        fault(Fault::Policy(draw.of(plan.program.policies())))
    }),
    kind("collector", (4, 10_000), Some((1_000, 60_000)), |_, _| {
        fault(Fault::NoCollector)
    }),
];

/// Draws settings. `namespace` may be the only one that the replicas watch.
pub fn settings(draw: &mut Draws, namespace: &'static str) -> Settings {
    let (lease_duration, renew_deadline, retry_period) = draw.of(&[
        (15_000, 10_000, 2_000),
        (15_000, 10_000, 2_000),
        (15_000, 10_000, 5_000),
        (3_000, 2_000, 500),
    ]);
    Settings {
        workers: draw.of(&[1, 2, 4]),
        resync: draw.of(&[ms(30_000), ms(86_400_000)]),
        lease_duration: ms(lease_duration),
        renew_deadline: ms(renew_deadline),
        retry_period: ms(retry_period),
        max_rollouts: draw.of(&[0, 1, 1, 2, 10]),
        namespace: draw.of(&[None, None, Some(namespace)]),
        ..Settings::default()
    }
}

fn replica(draw: &mut Draws, plan: &Plan) -> usize {
    index(draw.below(plan.replicas.len() as u64))
}

fn server(draw: &mut Draws, plan: &Plan) -> usize {
    index(draw.below(plan.servers as u64))
}

fn then(draw: &mut Draws) -> Then {
    let after = ms(draw.log_uniform(500, 20_000));
    match draw.below(5) {
        0 => Then::Nobody,
        1 | 2 => Then::Pod(after),
        _ => Then::Container(after),
    }
}

fn way(draw: &mut Draws) -> Way {
    draw.of(&[Way::Both, Way::Requests, Way::Answers])
}

pub fn small(drawn: u64) -> u8 {
    u8::try_from(drawn).unwrap_or(u8::MAX)
}

fn index(drawn: u64) -> usize {
    usize::try_from(drawn).unwrap_or_default()
}

/// Draws a selection of calls: of one replica or all, by one client or both, perhaps to one API server.
fn wide(draw: &mut Draws, plan: &Plan) -> Calls {
    Calls {
        replica: (!draw.once_in(4)).then(|| replica(draw, plan)),
        role: draw.of(&[None, None, Some(Role::Work), Some(Role::Lease)]),
        server: draw.once_in(4).then(|| server(draw, plan)),
        ..Calls::default()
    }
}

fn calls(draw: &mut Draws, plan: &Plan) -> Calls {
    let replica = draw.once_in(2).then(|| replica(draw, plan));
    let (verb, resource) = draw.of(&plan.program.declared().calls);
    let (verb, resource) = match draw.below(8) {
        0 => (None, None),
        1 => (Some("write"), None),
        2 => (None, Some(resource)),
        _ => (Some(verb), Some(resource)),
    };
    Calls {
        replica,
        verb,
        resource,
        ..Calls::default()
    }
}

fn happens(draw: &mut Draws, of: Calls) -> Happens {
    let code = draw.of(&[400, 401, 403, 404, 409, 410, 422, 429, 500, 502, 503, 504]);
    // Nothing, usual values, and longer times than any client honors.
    let retry_after = draw
        .once_in(3)
        .then(|| draw.of(&[0, 1, 2, 4, 29, 45, 3600]));
    let late = ms(draw.log_uniform(20, 60_000));
    let then = then(draw);
    let is_watch = matches!(of.verb, Some("watch" | "stream"));
    let is_write = matches!(
        of.verb,
        Some("create" | "update" | "patch" | "delete" | "write")
    );
    match draw.below(if is_watch || is_write { 16 } else { 10 }) {
        0 => Happens::RequestLost,
        1 => Happens::RequestLate(late),
        2 => Happens::AnswerLost,
        3 => Happens::AnswerLate(late),
        4 => draw.of(&[Happens::Refused, Happens::ConnectHangs]),
        5 => draw.of(&[Happens::ResetBefore, Happens::ResetAfter]),
        6 => Happens::Cut,
        7 | 8 => Happens::Status {
            code,
            retry_after,
            applied: false,
        },
        9 => Happens::Html,
        10 if is_watch => Happens::WatchEnds(late),
        11 if is_watch => Happens::WatchSilent,
        12 if is_watch => Happens::WatchFallsSilent,
        _ if is_watch => Happens::WatchGarbage,
        // Possible responses of a server that failed after the write.
        10 | 11 => Happens::Status {
            code: draw.of(&[500, 502, 503, 504]),
            retry_after,
            applied: true,
        },
        12 => Happens::CrashBefore(then),
        13 => Happens::CrashAt(then),
        14 => Happens::CrashAfter(then),
        _ => Happens::Hangs(late),
    }
}
