//! Environment of a replica: clocks, randomness, environment variables and limits.
//!
//! The program passes the real environment, and a simulation passes its own. Nothing else in this crate reads a clock, random
//! numbers or environment variables. (Pauses and deadlines use the clock of the tokio runtime.)

use std::{any::Any, env, ffi::OsString, fmt, io, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use uuid::Uuid;

use crate::config::{clock::Clock, descriptors};

/// Environment of one replica.
#[derive(Clone)]
pub struct Host {
    /// The clock of the election's deadlines.
    pub clock: Clock,
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    random: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Maximum number of open file descriptors.
    pub(crate) descriptors: usize,
    variables: Arc<[(OsString, OsString)]>,
    claim: fn(&str) -> io::Result<ProcessLock>,
}

/// Exclusive use of a name on this machine, until it is dropped.
pub(crate) type ProcessLock = Box<dyn Any + Send>;

impl Host {
    /// Returns the environment of this process: its clocks, the kernel's random numbers, its environment variables and its
    /// limit of file descriptors. Raises that limit as far as possible.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "here they come in")]
    pub fn of_this_process() -> Self {
        Self {
            claim: claim_on_this_machine,
            descriptors: descriptors::raise_limit(),
            ..Self::new(
                Clock::boottime(),
                Timestamp::now,
                || Uuid::new_v4().as_u64_pair().1,
                env::vars_os(),
            )
        }
    }

    /// Returns an environment with this clock for deadlines, time of day, random numbers and environment variables. It has no
    /// limit of file descriptors, and every claim succeeds.
    pub fn new(
        clock: Clock,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
        random: impl Fn() -> u64 + Send + Sync + 'static,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        Self {
            clock,
            now: Arc::new(now),
            random: Arc::new(random),
            descriptors: usize::MAX,
            variables: variables.into_iter().collect(),
            claim: |_| Ok(Box::new(())),
        }
    }

    /// Removes an environment variable.
    #[cfg(feature = "operator")]
    #[must_use]
    pub(crate) fn without(self, name: &str) -> Self {
        let kept = self.variables.iter().filter(|(it, _)| it != name);
        Self {
            variables: kept.cloned().collect(),
            ..self
        }
    }

    /// Returns the environment of this process, but with only these environment variables.
    #[cfg(test)]
    pub(crate) fn for_tests(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self {
            variables: variables.into_iter().collect(),
            ..Self::of_this_process()
        }
    }

    /// Returns the time of day.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Returns a random number, uniformly distributed between 0 and 1.
    #[must_use]
    pub(crate) fn random_ratio(&self) -> f64 {
        // The lower half: in the upper half, the variant of a UUID is fixed.
        let random = u32::try_from((self.random)() & u64::from(u32::MAX)).unwrap_or_default();
        f64::from(random) / f64::from(u32::MAX)
    }

    /// Returns `time` with a jitter of at most this ratio. So replicas that lost the same API server do not reconnect at the
    /// same instant.
    #[must_use]
    pub(crate) fn jitter(&self, time: Duration, ratio: f64) -> Duration {
        time.mul_f64(1.0 - ratio + 2.0 * ratio * self.random_ratio())
    }

    /// Returns a random UUID.
    #[must_use]
    pub(crate) fn uuid(&self) -> Uuid {
        let bytes = [(self.random)(), (self.random)()].map(u64::to_le_bytes);
        uuid::Builder::from_random_bytes(std::array::from_fn(|i| bytes[i / 8][i % 8])).into_uuid()
    }

    /// Claims a name, so that no other process on this machine can claim it.
    ///
    /// # Errors
    /// Another process has claimed it.
    pub(crate) fn claim(&self, name: &str) -> io::Result<ProcessLock> {
        (self.claim)(name)
    }

    /// Returns all environment variables.
    pub fn variables(&self) -> impl Iterator<Item = (OsString, OsString)> {
        self.variables.iter().cloned()
    }

    /// Returns the trimmed value of an environment variable. `None` if it is unset, blank or not UTF-8.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<String> {
        let mut variables = self.variables.iter();
        let (_, value) = variables.find(|(key, _)| key == name)?;
        let value = value.to_str()?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }
}

/// Claims a name by an abstract Unix socket. All containers of a pod see it, and so do other pods if they share the node's
/// network. It needs no folder. The kernel removes it when its process ends, for any reason.
#[cfg(target_os = "linux")]
fn claim_on_this_machine(name: &str) -> io::Result<ProcessLock> {
    use std::os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    };
    // The address is limited to 107 bytes.
    let name = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let address = SocketAddr::from_abstract_name(name)?;
    Ok(Box::new(UnixDatagram::bind_addr(&address)?))
}

/// Always succeeds, because pods exist only on Linux.
#[cfg(not(target_os = "linux"))]
fn claim_on_this_machine(_name: &str) -> io::Result<ProcessLock> {
    Ok(Box::new(()))
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Environment variables hold secrets.
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value from a manifest may have blanks around it. A blank value counts as unset.
    #[test]
    fn blanks_around_values_are_ignored() {
        let set = [("A", " pod\n"), ("B", " "), ("C", "")];
        let host = Host::for_tests(set.map(|(name, value)| (name.into(), value.into())));
        let read = ["A", "B", "C", "D"].map(|name| host.variable(name));
        assert_eq!(read, [Some("pod".to_owned()), None, None, None]);
    }
}
