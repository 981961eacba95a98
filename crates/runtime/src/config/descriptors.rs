//! File descriptors: the limit of this process, and its use.
//!
//! Over HTTP/1, each watch has its own connection, so a replica with many namespaces needs many. Container runtimes start a
//! process with a soft limit of 1,024, for programs that use `select`.

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Semaphore;

/// Upper bound of the limit that this process sets. More descriptors would be useless. Some old programs that a credential
/// plugin may run close each possible descriptor.
const MAX: u64 = 1 << 20;

/// Descriptors for everything except the controller's connections to the API server: probes and scrapes, the election,
/// telemetry, files.
const OTHERS: usize = 256;

/// Connections for requests that are not watches.
const REQUESTS: usize = 64;

/// Connections that are opened at the same time. Each may need a few more descriptors: to resolve the name, and to try an
/// address of either family.
const OPENING: usize = 32;

/// Raises the soft limit to the hard limit, as Go does at program start. Returns the resulting limit.
pub(crate) fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(MAX, |hard| hard.min(MAX));
    let raised = Rlimit {
        current: Some(wanted),
        maximum,
    };
    let current = current.unwrap_or(MAX);
    let limit = if current < wanted && setrlimit(Resource::Nofile, raised).is_ok() {
        wanted
    } else {
        current
    };
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Returns the maximum number of connections to the API server, if `limit` descriptors may be open.
fn connections(limit: usize) -> usize {
    (limit - OTHERS.min(limit / 2)).min(Semaphore::MAX_PERMITS)
}

/// Returns the maximum number of watches among these connections.
fn watches(limit: usize) -> usize {
    let connections = connections(limit);
    connections - REQUESTS.min(connections / 2)
}

/// Returns the number of namespaces that can be watched for `kinds` resource types, at least one.
pub(crate) fn fit(limit: usize, kinds: usize) -> usize {
    (watches(limit) / kinds.max(1)).max(1)
}

/// Describes the namespaces that do not fit, and the remedy. `None` if all fit.
pub(crate) fn shortage(
    limit: usize,
    namespaces: &[Option<String>],
    kinds: usize,
) -> Option<String> {
    let fit = fit(limit, kinds);
    let Some(Some(first)) = namespaces.get(fit) else {
        return None;
    };
    let all = namespaces.len();
    Some(format!(
        "{all} namespaces need {} connections, and this process may open {limit} files: the last {} of the namespaces, \
         from {first} on, are not served; raise the hard limit (LimitNOFILE of the container runtime, ulimit -Hn), or \
         watch all namespaces",
        all * kinds,
        all - fit,
    ))
}

/// Limits of one client's connections.
#[derive(Clone)]
pub(crate) struct Connections {
    pub open: Arc<Semaphore>,
    pub opening: Arc<Semaphore>,
}

impl Connections {
    /// Limits for a process that may open `limit` descriptors.
    pub fn new(limit: usize) -> Self {
        Self {
            open: Arc::new(Semaphore::new(connections(limit))),
            opening: Arc::new(Semaphore::new(OPENING)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_others_at_any_limit() {
        for (limit, expected) in [
            (0, (0, 0)),
            (64, (32, 16)),
            (1024, (768, 704)),
            (20_000, (19_744, 19_680)),
        ] {
            assert_eq!((connections(limit), watches(limit)), expected, "{limit}");
        }
        Connections::new(usize::MAX);
    }
}
