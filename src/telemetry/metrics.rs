//! The instruments, by the names that dashboards know.

/// All instruments; clones share them. By default they count for nobody.
#[derive(Clone, Debug, Default)]
pub struct Metrics {}
