//! The counterpart of a `Term`. The election grants the term, and the controller reports its ability.
//! Neither imports the other.

/// How much of its work a replica can do. Who can do none of it does not run for leader, and lets the Lease go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ability {
    /// No scope can be served.
    Nothing,
    /// Some scopes can be served. Runs for leader after those that can serve all.
    Part,
    /// Every scope can be served.
    All,
}
