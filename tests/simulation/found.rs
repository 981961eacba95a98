//! What seeds have found, as `simulate --seed N --shrink INVARIANT` prints what is left of them, and what shows a protection that
//! seeds hardly ever need: run before anything else.

use std::time::Duration;

use super::{
    plan::{Action, Happens, Plan, Step, What},
    users::Deed,
};

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

const fn user(deed: Deed) -> What {
    What::Action(Action::User(deed))
}

/// What most of them begin with.
const CREATE: Deed = Deed::CreateFoo {
    foo: 0,
    deployment: 0,
    replicas: Some(1),
};

/// What goes on with it.
const SCALE: Deed = Deed::ScaleFoo {
    foo: 0,
    replicas: Some(3),
};

/// So late that what is sent before the end of a term lands after it, and so early that its connection is not given up.
const LATE: Happens = Happens::RequestLate(us(2_000_000));

/// All of them, by their names.
pub fn all() -> Vec<(String, Plan)> {
    [
        (
            "short_lease_and_silent_watch",
            election::short_lease_and_silent_watch(),
        ),
        (
            "status_refused_for_a_while",
            objects::status_refused_for_a_while(),
        ),
        (
            "answer_lost_of_a_lease_that_is_nobodys",
            election::answer_lost_of_a_lease_that_is_nobodys(),
        ),
        (
            "cleared_and_not_seen_before",
            election::cleared_and_not_seen_before(),
        ),
        (
            "fenced_out_for_a_moment",
            objects::fenced_out_for_a_moment(Deed::RenameDeployment {
                foo: 0,
                deployment: 0,
            }),
        ),
        (
            "status_fenced_out_for_a_moment",
            objects::fenced_out_for_a_moment(SCALE),
        ),
        ("rights_are_back_unseen", objects::rights_are_back_unseen()),
        (
            "look_ups_are_allowed_again",
            objects::look_ups_are_allowed_again(),
        ),
        (
            "gone_while_the_watch_is_stuck",
            objects::gone_while_the_watch_is_stuck(),
        ),
        ("rights_are_back_soon", election::rights_are_back_soon()),
        (
            "gone_while_the_watch_is_silent",
            objects::gone_unnoticed(false),
        ),
        (
            "gone_and_look_ups_are_refused",
            objects::gone_unnoticed(true),
        ),
        (
            "taken_away_during_the_deletion",
            objects::taken_away_during_the_deletion(),
        ),
        ("another_one_serves", objects::another_one_serves()),
        (
            "stopped_while_all_hangs",
            election::stopped_while_all_hangs(),
        ),
        (
            "leads_again_in_a_term_of_the_same_number",
            election::leads_again_in_a_term_of_the_same_number(),
        ),
        (
            "clocks_that_stand_still",
            election::clocks_that_stand_still(),
        ),
        ("stopped_amid_a_write", election::stopped_amid_a_write()),
        (
            "given_up_and_on_its_way",
            election::given_up_and_on_its_way(),
        ),
        (
            "renewed_by_a_clock_that_stands_still",
            election::renewed_by_a_clock_that_stands_still(),
        ),
        (
            "vacant_again_after_a_sleep",
            election::vacant_again_after_a_sleep(),
        ),
        (
            "two_ask_for_what_is_deleted",
            objects::two_ask_for_what_is_deleted(),
        ),
        (
            "undone_and_never_answered",
            objects::undone_and_never_answered(),
        ),
        ("brought_back_as_it_was", objects::brought_back_as_it_was()),
        (
            "another_of_the_same_generation",
            objects::another_of_the_same_generation(),
        ),
        (
            "deleted_and_brought_back",
            objects::deleted_and_brought_back(),
        ),
        (
            "overruled_at_the_same_generation",
            objects::overruled_at_the_same_generation(),
        ),
    ]
    .map(|(name, plan)| (name.to_owned(), plan))
    .into()
}
