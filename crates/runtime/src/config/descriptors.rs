//! File descriptors: the limit of this process, and its use.
//!
//! Over HTTP/1, each watch has its own connection, so a replica with many namespaces needs many. Container runtimes start a
//! process with a soft limit of 1,024, for programs that use `select`.

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Semaphore;

#[cfg(feature = "operator")]
use crate::api::kind::Kind;

/// Upper bound of the limit that this process sets. More descriptors would be useless. Some old programs that a credential
/// plugin may run close each possible descriptor.
const MAX: u64 = 1 << 20;

/// Descriptors for everything except the controller's connections to the API server: probes and scrapes, the election,
/// telemetry, files.
const OTHERS: usize = 256;

/// Connections for requests that are not watches.
#[cfg(feature = "operator")]
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
#[cfg(feature = "operator")]
fn watches(limit: usize) -> usize {
    let connections = connections(limit);
    connections - REQUESTS.min(connections / 2)
}

/// Returns the number of namespaces that can be watched for these resource types, at least one.
#[cfg(feature = "operator")]
pub(crate) fn fit(limit: usize, kinds: &[Kind]) -> usize {
    let (in_each, in_cluster) = count(kinds);
    let left = watches(limit).saturating_sub(in_cluster);
    (left / in_each.max(1)).max(1)
}

/// Returns the number of watches in each namespace, and in the cluster.
#[cfg(feature = "operator")]
fn count(kinds: &[Kind]) -> (usize, usize) {
    let in_cluster = kinds.iter().filter(|kind| kind.is_cluster_scoped()).count();
    (kinds.len() - in_cluster, in_cluster)
}

/// Returns the number of all watches.
#[cfg(feature = "operator")]
pub(crate) fn wanted(namespaces: usize, kinds: &[Kind]) -> usize {
    let (in_each, in_cluster) = count(kinds);
    namespaces * in_each + in_cluster
}

/// Describes the namespaces that do not fit, and the remedy. `None` if all fit.
#[cfg(feature = "operator")]
pub(crate) fn shortage(
    limit: usize,
    namespaces: &[Option<String>],
    kinds: &[Kind],
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
        wanted(all, kinds),
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
    pub(crate) fn new(limit: usize) -> Self {
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

    /// A cluster-scoped type needs one watch, whatever the number of namespaces.
    #[test]
    fn cluster_scoped_types_are_watched_once() {
        let kind = Kind::custom("example.com", "v1", "Widget", "widgets");
        let kinds = [kind, kind, kind.cluster_scoped()];
        let limit = 64; // 16 watches
        assert_eq!((fit(limit, &kinds), fit(limit, &kinds[..2])), (7, 8));
        assert_eq!(wanted(7, &kinds), 15);
        let namespaces: Vec<_> = (0..8).map(|number| Some(number.to_string())).collect();
        let text = shortage(limit, &namespaces, &kinds).unwrap_or_default();
        assert!(
            text.starts_with("8 namespaces need 17 connections"),
            "{text}"
        );
    }
}
