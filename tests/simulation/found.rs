//! What seeds have found, as `simulate --seed N --shrink INVARIANT` prints what is left of them: run before anything else.

use std::time::Duration;

use super::{
    api::Others,
    plan::{Action, Calls, Fault, Machine, Plan, Settings, Step, What},
    users::{Deed, Spoilt},
};

const fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

/// All of them, by their names.
pub fn all() -> Vec<(String, Plan)> {
    [
        (
            "short_lease_and_silent_watch",
            short_lease_and_silent_watch(),
        ),
        ("status_refused_for_a_while", status_refused_for_a_while()),
    ]
    .map(|(name, plan)| (name.to_owned(), plan))
    .into()
}

/// A policy refused the status of a Foo whose Deployment is another's, and was gone after a while: the status was never
/// written, since a refusal was taken for what the Foo itself brings on.
fn status_refused_for_a_while() -> Plan {
    let step = |at: u64, what| Step {
        at: us(at * 1_000_000),
        what,
    };
    let user = |deed| What::Action(Action::User(deed));
    let policy = Fault::Policy(Others::NoStatus);
    let mut plan = Plan::calm(1, 1, 1, us(100_000_000));
    plan.steps = vec![
        step(19, user(Deed::CreateDeployment { deployment: 0 })),
        step(20, What::Fault(policy, us(10_000_000))),
        step(
            21,
            user(Deed::CreateFoo {
                foo: 0,
                deployment: 0,
                replicas: Some(1),
            }),
        ),
        step(
            19,
            user(Deed::CreateFoo {
                foo: 1,
                deployment: 1,
                replicas: Some(1),
            }),
        ),
        step(
            22,
            user(Deed::SpoilFoo {
                foo: 1,
                with: Spoilt::EmptyName,
            }),
        ),
        step(30, What::Heal),
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
            Step {
                at: us(1_000_000),
                what: What::Action(Action::User(Deed::CreateFoo {
                    foo: 0,
                    deployment: 0,
                    replicas: Some(1),
                })),
            },
            Step {
                at: us(2_000_000),
                what: What::Heal,
            },
            Step {
                at: us(30_000_000),
                what: What::Fault(
                    Fault::Reset {
                        of: Calls::default(),
                    },
                    us(0),
                ),
            },
        ],
        rest: us(31_000_000),
        end: us(45_000_000),
    }
}
