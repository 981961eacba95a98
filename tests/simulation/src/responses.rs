//! For a minute, the API servers give the same response to all requests of one kind: each combination of response and kind is a
//! case. A replica must repeat the requests at a documented rate, log few lines, and recover when the fault ends.

use std::{collections::BTreeMap, time::Duration};

use operator_simulation::{
    cases::Cases,
    judge::{Violation, examine, rates::subject},
    plan::{Action, Calls, Fault, Happens, Plan, What},
    trace::{Call, Log, Time},
    world::World,
};

use super::{
    one_fault::{HEAL, busy},
    users::Deed,
};

/// Duration of the fault.
const FAULT: Duration = Duration::from_mins(1);

const SECOND: Duration = Duration::from_secs(1);

/// Maximum number of log lines of all replicas during the fault.
const LINES: usize = 120;

/// A kind of request, and its maximum number in a minute, for one replica and one object.
struct Requests {
    verb: &'static str,
    resource: &'static str,
    most: usize,
}

const fn requests(verb: &'static str, resource: &'static str, most: usize) -> Requests {
    Requests {
        verb,
        resource,
        most,
    }
}

/// Pauses of 100 ms, doubled up to 5 s, each up to 20 % shorter: 7 requests in 5 s, then one in 4 s. The rest is for the first
/// request, a cut connection, and a list.
const WATCH: usize = 26;
/// At most one attempt in 1.8 s.
const LEASE: usize = 35;
/// Pauses of 1 s, doubled up to 5 s. The rest is for the renewals.
const RECORD: usize = 16;
/// Pauses of 5 ms, doubled each time: 13 retries in 41 s, 14 in 82 s. The rest is for a resync, a takeover, and changes.
const RETRIES: usize = 20;
/// Pauses of 1 s, doubled up to 10 s. The rest is for events of other types.
const EVENTS: usize = 30;
/// Rounds of three reviews, with pauses of 1 s between the rounds, doubled up to 10 s.
const REVIEWS: usize = 30;

const REQUESTS: &[Requests] = &[
    requests("stream", "foos", WATCH),
    requests("list", "foos", WATCH),
    requests("watch", "foos", WATCH),
    requests("stream", "deployments", WATCH),
    requests("list", "deployments", WATCH),
    requests("watch", "deployments", WATCH),
    // Each attempt to acquire or renew reads the Lease. Each write of the fencing record follows another read.
    requests("get", "leases", LEASE + RECORD),
    requests("create", "leases", LEASE),
    requests("patch", "leases", LEASE),
    requests("watch", "leases", LEASE),
    // If the record seems to be missing, each renewal that follows a rejection by the fencing policy reads the record.
    requests("get", "serviceaccounts", LEASE),
    requests("patch", "serviceaccounts", RECORD),
    requests("create", "deployments", RETRIES),
    requests("patch", "deployments", RETRIES),
    requests("delete", "deployments", RETRIES),
    requests("update", "foos/status", RETRIES),
    requests("create", "events", EVENTS),
    requests("patch", "events", EVENTS),
    requests("create", "selfsubjectaccessreviews", REVIEWS),
];

/// A kind of request, and the response to all its requests.
pub struct Case {
    of: Calls,
    happens: Happens,
    /// Whether the fault begins at the start of the replicas. Otherwise, it begins when a replica leads, and all connections are
    /// cut.
    at_start: bool,
}

impl Case {
    fn name(&self) -> String {
        let Calls { verb, resource, .. } = self.of;
        let (verb, resource) = (verb.unwrap_or_default(), resource.unwrap_or_default());
        let when = if self.at_start {
            "from the start"
        } else {
            "later"
        };
        format!("{:?} to {verb} {resource}, {when}", self.happens)
    }

    /// Returns the plan with this fault.
    pub fn plan(&self) -> Plan {
        let mut plan = busy();
        plan.fencing = true;
        plan.end += FAULT;
        plan.rest += FAULT;
        let heal = HEAL + FAULT / 2;
        for step in &mut plan.steps {
            if matches!(step.what, What::Heal) {
                step.at = heal;
            }
        }
        // A change is reconciled without delay, even if the object has failed for a minute.
        plan.act(heal + SECOND, scale("scaled", 2));
        if self.happens == Happens::Ignored {
            // A write without effect is not repeated until its object changes.
            for foo in ["made", "renamed", "rolled", "late-20", "late-30", "late-40"] {
                plan.act(heal + SECOND, scale(foo, 4));
            }
        }
        let begin = Time::from_secs(if self.at_start { 0 } else { 20 });
        let soon = |millis| begin + Duration::from_millis(millis);
        plan.fault(begin, Fault::each(self.of, self.happens.clone()), FAULT);
        if self.of.verb == Some("list") {
            for server in 0..plan.servers {
                plan.fault(begin, Fault::NoWatchList { server }, FAULT);
            }
        }
        if matches!(self.of.verb, Some("stream" | "list")) {
            // Even after a compaction, an API server continues a watch that has missed no change. So an object changes before.
            if !self.at_start {
                plan.act(soon(4), scale("scaled", 3));
            }
            plan.fault(soon(6), Fault::Compact, Duration::ZERO);
        }
        if !self.at_start {
            let of = Calls::default();
            plan.fault(soon(8), Fault::Reset { of }, Duration::ZERO);
        }
        if (self.of.verb, self.of.resource) == (Some("create"), Some("leases")) {
            plan.act(soon(20), Action::user(Deed::DeleteLease));
        }
        plan
    }

    /// Whether the response is a false success: the write did not happen, or the objects are wrong. A replica then cannot know
    /// the desired state, so only its rates, its leadership and its recovery are judged.
    const fn is_false(&self) -> bool {
        matches!(
            self.happens,
            Happens::Empty
                | Happens::Endless
                | Happens::Circle
                | Happens::NoVersion
                | Happens::OtherKind
                | Happens::Html
                | Happens::Truncated
                | Happens::Ignored
        )
    }
}

fn scale(foo: &'static str, replicas: i32) -> Action {
    Action::user(Deed::Scale { foo, replicas })
}

pub const CASES: Cases = Cases {
    what: "responses",
    all: || {
        let cases = all().into_iter();
        let cases = cases.map(
            |(name, case)| -> (String, operator_simulation::cases::Case) {
                (name, Box::new(move || check(&case)))
            },
        );
        cases.collect()
    },
    plan_of: |name| {
        let mut all = all().into_iter();
        all.find(|(its, _)| its == name)
            .map(|(_, case)| case.plan())
    },
};

/// Returns all cases, with their names.
pub fn all() -> Vec<(String, Case)> {
    let mut all = Vec::new();
    for Requests { verb, resource, .. } in REQUESTS {
        let of = Calls::of(verb, resource);
        let mut responses = vec![
            Happens::Html,
            Happens::OtherKind,
            Happens::Truncated,
            Happens::ResetBefore,
            Happens::AnswerLost,
        ];
        responses.extend(
            [401, 403, 404, 405, 409, 410, 422, 500, 503, 504]
                .map(|code| Happens::refused(code, None)),
        );
        responses.extend(
            [(429, 10), (503, 10), (429, u32::MAX)]
                .map(|(code, after)| Happens::refused(code, Some(after))),
        );
        responses.extend(match *verb {
            "list" => vec![
                Happens::Empty,
                Happens::Endless,
                Happens::Circle,
                Happens::NoVersion,
            ],
            "stream" | "watch" => vec![
                Happens::Empty,
                Happens::WatchEnds(Duration::ZERO),
                Happens::WatchEnds(Duration::from_millis(1100)),
                Happens::WatchEnds(Duration::from_millis(5100)),
                Happens::ErrorEvent(410),
                Happens::ErrorEvent(500),
            ],
            "get" => vec![],
            _ => vec![Happens::ResetAfter, Happens::Ignored],
        });
        let starts: &[bool] = match (*verb, *resource) {
            // Sent only at the start: later, the record is not read again, and no permission is reviewed.
            (_, "serviceaccounts" | "selfsubjectaccessreviews") | ("create", "leases") => &[true],
            ("stream" | "list", _) | ("get" | "patch", "leases") => &[true, false],
            _ => &[false],
        };
        for happens in responses {
            for at_start in starts.iter().copied() {
                let case = Case {
                    of,
                    happens: happens.clone(),
                    at_start,
                };
                all.push((case.name(), case));
            }
        }
    }
    all
}

/// Runs a case, and returns its violations.
pub fn check(case: &Case) -> Vec<Violation> {
    let plan = case.plan();
    let (mut found, world) = examine(&plan);
    if case.is_false() {
        let judged = ["run", "I1", "I2", "I3", "I10", "I11", "I12"];
        found.retain(|violation| judged.contains(&violation.invariant));
    }
    let calls = &world.trace.calls;
    if !calls.iter().any(|call| call.felt) {
        found.push(Violation::of_the_run("was not requested".to_owned()));
    }
    paced(calls, &mut found);
    let begin = plan.steps.iter().find_map(|step| match step.what {
        What::Fault(Fault::Call { .. }, _) => Some(step.at),
        _ => None,
    });
    let logged = logged(&world, begin.unwrap_or_default());
    if logged > LINES {
        found.push(Violation::of_the_run(format!("{logged} lines are logged")));
    }
    found
}

/// Checks that no replica exceeds the rates in [`REQUESTS`].
fn paced(calls: &[Call], found: &mut Vec<Violation>) {
    let mut times = BTreeMap::<_, Vec<Time>>::new();
    for call in calls {
        let one = (call.who, call.verb, &call.resource, subject(call));
        times.entry(one).or_default().push(call.begun);
    }
    for ((who, verb, resource, subject), times) in times {
        let known = REQUESTS
            .iter()
            .find(|known| known.verb == verb && known.resource == *resource);
        let Some(Requests { most, .. }) = known else {
            found.push(Violation::of_the_run(format!(
                "no rate is documented for {verb} {resource}"
            )));
            continue;
        };
        let in_a_minute = |first: Time| {
            let minute = first..first + FAULT;
            times.iter().filter(|time| minute.contains(*time)).count()
        };
        let firsts = times.iter().map(|first| (in_a_minute(*first), *first));
        let (count, first) = firsts.max().unwrap_or_default();
        if count > *most {
            found.push(Violation {
                invariant: "I11",
                at: first,
                object: who.to_string(),
                what: format!("{verb} {subject} {count} times in a minute, at most {most}"),
            });
        }
    }
}

fn logged(world: &World, begin: Time) -> usize {
    let logs = world.trace.logs.iter();
    let is_shown =
        |log: &&Log| log.level <= tracing::Level::INFO && (begin..begin + FAULT).contains(&log.at);
    logs.filter(is_shown).count()
}
