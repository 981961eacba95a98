//! Share of the work that a replica can do. The controller reports it to the election, which grants a `Term`. Neither module
//! imports the other.

/// Share of the scopes that a replica can serve. A replica that can serve no scope does not run for leader, and releases the
/// Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Eligibility {
    /// No scope can be served.
    None,
    /// Some scopes can be served. A replica that can serve all scopes has precedence as leader.
    Partial,
    /// Every scope can be served.
    Full,
}
