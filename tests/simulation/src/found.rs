//! Regression cases, which are run before anything else.
//!
//! They are plans of seeds that failed, as `simulate --seed N --shrink INVARIANT` prints them, and plans for protections that
//! seeds rarely need.

use std::time::Duration;

use operator_simulation::plan::{Action, Happens, Plan, Step, What};

use super::users::Deed;

mod election;
mod objects;

const fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

fn step(milliseconds: u64, what: What) -> Step {
    Step {
        at: Duration::from_millis(milliseconds),
        what,
    }
}

fn user(deed: Deed) -> What {
    What::Action(Action::user(deed))
}

/// First step of most cases.
const CREATE: Deed = Deed::CreateFoo {
    foo: 0,
    deployment: 0,
    replicas: Some(1),
};

/// Later step of many cases.
const SCALE: Deed = Deed::ScaleFoo {
    foo: 0,
    replicas: Some(3),
};

/// Delays a request until after the end of its term, but not until the kernel closes its connection.
const LATE: Happens = Happens::RequestLate(us(1_800_000));

/// Plans, with the names of the functions that return them.
macro_rules! by_name {
    ($($about:ident::$plan:ident,)*) => {
        vec![$((stringify!($plan).to_owned(), $about::$plan()),)*]
    };
}

/// Returns all cases, by name.
pub fn all() -> Vec<(String, Plan)> {
    by_name![
        election::short_lease_and_silent_watch,
        objects::status_refused_for_a_while,
        election::answer_lost_of_a_lease_that_is_nobodys,
        election::cleared_and_not_seen_before,
        objects::fenced_out_for_a_moment,
        objects::status_fenced_out_for_a_moment,
        objects::rights_are_back_unseen,
        objects::look_ups_are_allowed_again,
        objects::gone_while_the_watch_is_stuck,
        election::rights_are_back_soon,
        objects::gone_while_the_watch_is_silent,
        objects::gone_and_look_ups_are_refused,
        objects::taken_away_during_the_deletion,
        objects::another_one_serves,
        election::stopped_while_all_hangs,
        election::leads_again_in_a_term_of_the_same_number,
        election::put_back_while_attempts_hang,
        election::put_back_while_an_attempt_is_slow,
        election::put_back_while_the_watch_is_behind,
        election::put_back_after_a_late_answer,
        election::clocks_that_stand_still,
        election::stopped_amid_a_write,
        election::given_up_and_on_its_way,
        election::renewed_by_a_clock_that_stands_still,
        election::spoilt_and_left,
        election::vacant_again_after_a_sleep,
        objects::two_ask_for_what_is_deleted,
        objects::undone_and_never_answered,
        objects::brought_back_as_it_was,
        objects::another_of_the_same_generation,
        objects::deleted_and_brought_back,
        objects::overruled_at_the_same_generation,
        objects::rejected_otherwise_each_time,
        objects::rejected_otherwise_and_never_answered,
        objects::reviewed_each_time,
        objects::changed_before_an_answer,
        objects::held_by_a_webhook_that_fails_open,
        objects::forged_while_admission_overrules,
    ]
}
