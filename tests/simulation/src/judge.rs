//! Judges of Foos, besides the judges of any operator.

mod asked;
mod audit;
mod converge;
mod deployments;
mod events;
mod hindered;
mod known;
mod owners;
mod rates;
mod record;
mod reports;
mod retries;
mod rollouts;
mod sizes;
mod statuses;
mod warnings;
mod works;
mod writes;

use operator_simulation::judge::{Case, Violation, events::said_once, workers::are_left_to_others};

/// Judges everything except leadership and the end of processes.
pub fn judge(case: &Case<'_>, found: &mut Vec<Violation>) {
    works::holder_works(case, found);
    retries::rights_are_used_again(case, found);
    retries::tries_again(case, found);
    retries::waits(case, found);
    retries::backs_off(case, found);
    audit::check(case, found);
    record::was_read(case, found);
    record::is_waited_for(case, found);
    converge::settled(case, found);
    converge::at_rest(case, found);
    deployments::check(case, found);
    deployments::was_read(case, found);
    asked::check(case, found);
    owners::are_waited_for(case, found);
    statuses::check(case, found);
    rollouts::check(case, found);
    reports::in_time(case, found);
    said_once(case, found);
    events::are_true(case, found);
    warnings::check(case, found);
    warnings::refused(case, found);
    writes::asked_once(case, found);
    writes::replicas(case, found);
    operator_simulation::judge::rates::bounded(case, found);
    rates::heeds(case, found);
    rates::forgets(case, found);
    sizes::bounded(case, found);
    are_left_to_others(case, found);
}
