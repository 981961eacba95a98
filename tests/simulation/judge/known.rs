//! What a process may have known of Deployments as it sent something.

use serde_json::Value;

use super::{
    super::{
        api::Kind,
        trace::{Call, Reconcile, Time},
        users::NAMESPACE,
    },
    Case, STEP, made,
    warnings::foo_of,
};

/// What there is to know for who sent this.
pub struct Known<'a> {
    case: &'a Case<'a>,
    call: &'a Call,
    /// The reconcile that it was sent in.
    pub reconcile: Option<&'a Reconcile>,
    /// Up to which version its sender had been told of everything when that began.
    told: u64,
    /// What its sender has asked for of Deployments since, and whether the Foo is still what they are for.
    pub asked: Vec<&'a Call>,
    /// What of that it was told that it has written for this Foo: the answer was there to go on with.
    own: Vec<&'a Call>,
}

impl<'a> Known<'a> {
    /// For who sent this about the Foo of this name.
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

    /// What the Deployment of this name may have been: as its sender was told of last, or as the answer to its own
    /// write for this Foo had it, and all that it has become since. `None`: there was none.
    pub fn states(&self, name: &str) -> Vec<Option<&'a Value>> {
        let all = self.case.deployments.get(name);
        let all = all.map_or(&[][..], Vec::as_slice);
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

/// What the sender of this call has sent from then on until it sent this, the newest first.
pub fn sent_since<'a>(
    case: &'a Case<'a>,
    call: &'a Call,
    begun: Time,
) -> impl Iterator<Item = &'a Call> {
    // They are in the order of time, to a step of the world's.
    let calls = case.trace.calls.iter().rev();
    let since = calls.take_while(move |other| other.sent + STEP * 2 >= begun);
    since.filter(move |other| other.who == call.who && (begun..=call.begun).contains(&other.begun))
}

fn is_of_deployments(call: &Call) -> bool {
    call.resource == "deployments" || call.verb == "list" && call.resource == "foos"
}
