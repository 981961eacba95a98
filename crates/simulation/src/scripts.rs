//! Faults at every place, in short scripts with few objects.
//!
//! The variations of a script have a crash before, at and after each write (except most renewals of the Lease). They also have
//! faults of the first calls of each kind. Some faults look alike to a replica: the first call has all of them, every other
//! call has one in turn.

use std::{collections::BTreeMap, time::Duration};

use super::{
    cases::programs,
    judge::holder,
    plan::{Calls, Fault, Happens, Plan, Settings, Step, Then, What},
    program::Program,
    trace::{Call, Time, Trace},
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
pub const POD: Then = Then::Pod(Duration::from_secs(2));

/// Delay of a late response. Added to the retry period (500 ms) it equals the renew deadline (2 s).
pub const LATE: Duration = Duration::from_millis(1500);

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

/// Returns the scripts of all operators, without the faults of their variations.
pub fn all() -> Vec<Script> {
    programs().all().flat_map(Program::scripts).collect()
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
