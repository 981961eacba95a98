//! What a replica takes from its surroundings, beside its configuration and the API server. The program hands in the real
//! ones; a simulation hands in its own, and nothing else in this crate asks for the time, for chance or for the
//! environment. (Pauses and deadlines go by tokio's clock, which its runtime brings.)

use std::{any::Any, env, ffi::OsString, fmt, io, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use uuid::Uuid;

use crate::config::{clock::Clock, descriptors};

/// The surroundings of one replica.
#[derive(Clone)]
pub struct Host {
    /// The clock of the election's deadlines.
    pub clock: Clock,
    now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    random: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// How many file descriptors may be open.
    pub(crate) descriptors: usize,
    variables: Arc<[(OsString, OsString)]>,
    claim: fn(&str) -> io::Result<Claim>,
}

/// A name that nobody else on this machine has, until it is dropped.
pub(crate) type Claim = Box<dyn Any + Send>;

impl Host {
    /// Those of this process: its clocks, its kernel's random numbers, its environment variables, its limit of file
    /// descriptors, which is raised as far as it may be.
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

    /// A clock for deadlines, the time of day, random numbers, and environment variables, on a machine of one's own.
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

    /// A test's: whatever the time is, and these environment variables alone.
    #[cfg(test)]
    pub(crate) fn for_tests(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self {
            variables: variables.into_iter().collect(),
            ..Self::of_this_process()
        }
    }

    /// The time of day.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.now)()
    }

    /// Evenly distributed between 0 and 1.
    #[must_use]
    pub fn chance(&self) -> f64 {
        // The lower half: in the upper, the variant of a UUID is fixed.
        let random = u32::try_from((self.random)() & u64::from(u32::MAX)).unwrap_or_default();
        f64::from(random) / f64::from(u32::MAX)
    }

    /// A time that lies at most this ratio from `time`: replicas that lost the same API server do not come back at the same
    /// instant.
    #[must_use]
    pub fn spread(&self, time: Duration, ratio: f64) -> Duration {
        time.mul_f64(1.0 - ratio + 2.0 * ratio * self.chance())
    }

    /// A UUID that nobody else has.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        let bytes = [(self.random)(), (self.random)()].map(u64::to_le_bytes);
        uuid::Builder::from_random_bytes(std::array::from_fn(|i| bytes[i / 8][i % 8])).into_uuid()
    }

    /// Has no other process of this machine take the same name.
    ///
    /// # Errors
    /// Another one has it.
    pub(crate) fn claim(&self, name: &str) -> io::Result<Claim> {
        (self.claim)(name)
    }

    /// All environment variables.
    pub fn variables(&self) -> impl Iterator<Item = (OsString, OsString)> {
        self.variables.iter().cloned()
    }

    /// The value of an environment variable, where it is text and not blank, without blanks around it.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<String> {
        let mut variables = self.variables.iter();
        let (_, value) = variables.find(|(key, _)| key == name)?;
        let value = value.to_str()?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }
}

/// An abstract Unix socket is seen by all containers of a pod, needs no folder, and is gone with its process, however
/// that ends. Other pods see it, too, if they share the node's network.
#[cfg(target_os = "linux")]
fn claim_on_this_machine(name: &str) -> io::Result<Claim> {
    use std::os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    };
    // An address has room for 107 bytes.
    let name = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let address = SocketAddr::from_abstract_name(name)?;
    Ok(Box::new(UnixDatagram::bind_addr(&address)?))
}

/// There are no pods elsewhere than on Linux.
#[cfg(not(target_os = "linux"))]
fn claim_on_this_machine(_name: &str) -> io::Result<Claim> {
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

    /// Hazards H9 and H17: a value from a manifest may have blanks around it, and one that is nothing else is none.
    #[test]
    fn blanks_mean_nothing() {
        let set = [("A", " pod\n"), ("B", " "), ("C", "")];
        let host = Host::for_tests(set.map(|(name, value)| (name.into(), value.into())));
        let read = ["A", "B", "C", "D"].map(|name| host.variable(name));
        assert_eq!(read, [Some("pod".to_owned()), None, None, None]);
    }
}
