//! What seeds have found, as `simulate --seed N --shrink INVARIANT` prints what is left of them: run before anything else.

use std::time::Duration;

use super::{
    plan::{Action, Calls, Fault, Machine, Plan, Settings, Step, What},
    users::Deed,
};

const fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

/// All of them, by their names.
pub fn all() -> Vec<(String, Plan)> {
    vec![(
        "short_lease_and_silent_watch".to_owned(),
        short_lease_and_silent_watch(),
    )]
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
