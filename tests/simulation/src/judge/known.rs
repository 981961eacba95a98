//! State of Deployments that a process may have known when it sent a call.

use operator_simulation::{
    judge::{Case, STEP, made},
    trace::{Call, Reconcile, Time},
};
use operator_testkit::api_server::Kind;
use serde_json::Value;

use super::{super::users::NAMESPACE, warnings::foo_of};

/// Knowledge of the sender of a call.
pub struct Known<'a> {
    case: &'a Case<'a>,
    call: &'a Call,
    pub reconcile: Option<&'a Reconcile>,
    /// Version up to which the watch had delivered all changes when the reconcile began.
    told: u64,
    /// Calls about Deployments since then, and live reads of Foos.
    pub asked: Vec<&'a Call>,
    /// Successful writes for this Foo whose response had arrived.
    own: Vec<&'a Call>,
}

impl<'a> Known<'a> {
    /// Collects the knowledge of the sender of a call about the Foo of this name.
    pub fn new(case: &'a Case<'a>, call: &'a Call, foo: &str) -> Self {
        let reconcile = case.reconcile_of(call, &format!("{NAMESPACE}/{foo}"));
        let begun = reconcile.map_or(call.begun, |one| one.begun);
        let asked = sent_since(case, call, begun).filter(|other| is_of_deployments(other));
        let asked: Vec<_> = asked.collect();
        let is_own = |other: &&&Call| {
            let is_done =
                |(at, code): (Time, u16)| at <= call.begun && code < 300 && !other.is_spoilt();
            matches!(other.verb, "create" | "patch")
                && other.answered.is_some_and(is_done)
                && foo_of(case, other) == Some(foo)
        };
        Self {
            case,
            call,
            reconcile,
            told: case.told(call.who, "deployments", begun),
            own: asked.iter().filter(is_own).copied().collect(),
            asked,
        }
    }

    /// Returns the states that the Deployment of this name may have had: the last state known from the watch or from an own
    /// write for this Foo, and all later states. `None` means that the Deployment did not exist.
    pub fn states(&self, name: &str) -> Vec<Option<&'a Value>> {
        let all = self.case.history_of(Kind::Deployment, name);
        let own = self.own.iter();
        let own = own.filter_map(|call| self.case.store.history()[call.written.clone()].last());
        let own = own.filter(|one| one.key.kind == Kind::Deployment && one.key.name == name);
        let known = own.map(|one| one.version).fold(self.told, u64::max);
        let first = all.partition_point(|one| one.version <= known);
        let known = first
            .checked_sub(1)
            .and_then(|last| all[last].after.as_deref());
        let since = all[first..].iter();
        let since = since.take_while(|one| made(one) <= self.call.begun);
        let since = since.map(|one| one.after.as_deref());
        [known].into_iter().chain(since).collect()
    }
}

/// Returns the calls that the sender of this call has sent since `begun`, newest first.
pub fn sent_since<'a>(
    case: &'a Case<'a>,
    call: &'a Call,
    begun: Time,
) -> impl Iterator<Item = &'a Call> {
    // The calls are in order of time, with a tolerance of a step.
    let calls = case.trace.calls.iter().rev();
    let since = calls.take_while(move |other| other.sent + STEP * 2 >= begun);
    since.filter(move |other| other.who == call.who && (begun..=call.begun).contains(&other.begun))
}

fn is_of_deployments(call: &Call) -> bool {
    call.resource == "deployments" || call.verb == "list" && call.resource == "foos"
}
