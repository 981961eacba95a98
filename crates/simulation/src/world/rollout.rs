//! Rolling update of the replicas' Deployment (`maxSurge: 1`, `maxUnavailable: 0`).

use std::time::Duration;

use super::{World, places::Place};

/// Minimum age of a ready pod.
const FIRST_PROBE: Duration = Duration::from_secs(1);

impl World {
    /// Takes one step, if any is possible.
    pub(super) fn roll_out(&mut self) {
        let Some(settings) = &self.rollout else {
            return;
        };
        let (new, old): (Vec<usize>, Vec<usize>) = (0..self.places.len())
            .filter(|&number| self.places[number].is_wanted)
            .partition(|&number| self.places[number].settings.as_ref() == Some(settings));
        let wanted = self.plan.replicas.len();
        if new.len() < wanted && new.len() + old.len() <= wanted {
            let settings = Some(settings.clone());
            let place = self.free_place();
            self.start(place, true, settings);
            return;
        }
        let ready = (new.iter().chain(&old)).filter(|&&number| self.is_ready(number));
        let can_be_spared = ready.count() > wanted;
        // Pods that are not ready go first.
        let broken = old.iter().copied().find(|&number| !self.is_ready(number));
        let next = broken.or_else(|| old.first().copied().filter(|_| can_be_spared));
        match next {
            Some(next) => self.ask_to_stop(next, None),
            None if old.is_empty() => self.rollout = None,
            None => {}
        }
    }

    fn free_place(&mut self) -> usize {
        let is_free = |place: &Place| !place.is_wanted && place.replica.is_none();
        self.places.iter().position(is_free).unwrap_or_else(|| {
            self.places.push(Place::new(self.plan.replicas[0]));
            self.places.len() - 1
        })
    }

    /// Returns whether `/readyz` succeeds: the caches are listed, and the Lease has been read.
    fn is_ready(&self, number: usize) -> bool {
        let place = &self.places[number];
        let Some(replica) = place.replica.as_ref().filter(|_| place.still == 0) else {
            return false;
        };
        let its = self.trace.calls[place.first_call..].iter();
        let mut its = its.filter(|call| {
            call.who == replica.who
                && call
                    .answered
                    .is_some_and(|(at, code)| at <= self.now && code == 200)
        });
        let has = |resource| its.clone().any(|call| call.resource == resource);
        let calls = self.plan.program.declared().calls.iter();
        let mut watched = calls.filter(|(verb, _)| *verb == "watch");
        let is_synced = watched.all(|(_, resource)| has(*resource));
        is_synced
            && its
                .next()
                .is_some_and(|first| self.now >= first.begun + FIRST_PROBE)
    }
}
