//! The status that a controller reports: the observed generation and the conditions.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Status of a custom resource, without fields of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The generation that the status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The conditions of the object. Each type occurs once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The value of the annotation `reconcile-requested-at` at the last reconcile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_handled_reconcile_at: Option<String>,
}

/// A status that contains a [`Status`]. For a status with more fields, add a field of that type with `#[serde(flatten)]`.
pub trait Reported: Clone {
    /// Returns the common part.
    fn common(&self) -> &Status;
    /// Returns the common part.
    fn common_mut(&mut self) -> &mut Status;

    /// Returns this status with another condition of this type, for an object of this generation. The transition time of the
    /// condition changes only with its status.
    #[must_use]
    fn with(
        &self,
        generation: i64,
        type_: &str,
        verdict: (bool, &str, String),
        now: Timestamp,
    ) -> Self {
        let mut new = self.clone();
        let common = new.common_mut();
        common.observed_generation = Some(generation);
        let condition = condition(&common.conditions, generation, type_, verdict, now);
        let mut all = common.conditions.iter_mut();
        match all.find(|old| old.type_ == type_) {
            Some(old) => *old = condition,
            None => common.conditions.push(condition),
        }
        new
    }
}

impl Reported for Status {
    fn common(&self) -> &Status {
        self
    }

    fn common_mut(&mut self) -> &mut Status {
        self
    }
}

/// Returns a condition of an object at `generation`. It keeps the time of the condition in `old` with the same type and status.
/// So two statuses differ only if their content does.
#[must_use]
pub fn condition(
    old: &[Condition],
    generation: i64,
    type_: &str,
    (status, reason, message): (bool, &str, String),
    now: Timestamp,
) -> Condition {
    let status = if status { "True" } else { "False" };
    let same = |old: &&Condition| old.type_ == type_ && old.status == status;
    let since = old.iter().find(same);
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: Some(generation),
        last_transition_time: since.map_or(Time(now), |old| old.last_transition_time.clone()),
    }
}
