//! The identity of a process in the election.

use crate::config::{
    app::App,
    environment::{Host, ProcessLock},
    settings::LeaderElection,
};

use super::error::Error;
use std::{env, fmt};

/// Maximum length in bytes. `kube-leader-election` also uses the identity as the field manager, which has this limit.
const MAX: usize = 128;

/// The identity of this replica in the election, the namespace of the Lease, and the installation.
#[derive(Clone, Debug)]
pub struct ElectionTarget {
    /// Identity of this replica.
    pub identity: Identity,
    /// Namespace of the Lease. `None` is possible only without an election.
    pub namespace: Option<String>,
    /// Empty: the default installation.
    pub installation: String,
}

impl ElectionTarget {
    /// Returns the identity of this process, and the namespace of the Lease: the configured namespace, or else the namespace of
    /// the pod.
    ///
    /// # Errors
    /// The errors of [`Identity::of`], and [`Error::Namespace`] if the election is enabled and has no namespace.
    pub(crate) fn of(
        app: &App,
        host: &Host,
        settings: &LeaderElection,
        installation: &str,
        pod_namespace: Option<String>,
    ) -> Result<Self, Error> {
        let identity = Identity::of(host)?;
        let namespace = settings.lease_namespace.clone().or(pod_namespace);
        if settings.enabled && namespace.is_none() {
            return Err(Error::Namespace(app.env_prefix()));
        }
        Ok(Self {
            identity,
            namespace,
            installation: installation.to_owned(),
        })
    }

    /// [Reserves](Identity::claim) the identity for this process, if leaders are elected.
    pub(crate) fn claim(
        &self,
        host: &Host,
        settings: &LeaderElection,
    ) -> Result<Option<ProcessLock>, Error> {
        let namespace = self.namespace.as_ref().filter(|_| settings.enabled);
        namespace
            .map(|namespace| self.identity.claim(host, namespace, &settings.lease_name))
            .transpose()
    }
}

/// The unique identity of one process in the election, 1 to 128 bytes.
///
/// In a cluster it is `<pod name>_<pod UID>`. The fencing policy compares it with the caller's token. A pod name cannot contain
/// `_`, so the separator is unambiguous.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity(String);

impl Identity {
    /// Builds the identity from `POD_NAME` and `POD_UID`, which the Deployment sets. Defaults are the host name and a random
    /// UUID.
    ///
    /// # Errors
    /// [`Error::Identity`] if the names are not printable ASCII, or the UID is too long to be one.
    pub fn of(host: &Host) -> Result<Self, Error> {
        let name = host.variable("POD_NAME").unwrap_or_else(|| {
            rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned()
        });
        let unique = host
            .variable("POD_UID")
            .unwrap_or_else(|| host.uuid().to_string());
        Self::new(&name, &unique)
    }

    /// Builds `<name>_<unique>`. A name that is too long is truncated, because `unique` makes the difference.
    ///
    /// # Errors
    /// [`Error::Identity`] if either is not printable ASCII, or `unique` is empty or too long.
    pub fn new(name: &str, unique: &str) -> Result<Self, Error> {
        let printable = name
            .bytes()
            .chain(unique.bytes())
            .all(|byte| byte.is_ascii_graphic());
        let room = MAX.checked_sub(unique.len() + 1);
        match room {
            Some(room) if printable && !unique.is_empty() => {
                Ok(Self(format!("{}_{unique}", &name[..name.len().min(room)])))
            }
            _ => Err(Error::Identity(format!("{name}_{unique}"))),
        }
    }

    /// Reserves this identity and Lease for this process. Two processes of one pod have the same identity, and each would take
    /// the other's term for its own. The identity has no part per process, because a restarted container continues with its
    /// Lease.
    ///
    /// A check on this machine is enough: all processes of a pod run on one machine, and other pods have other identities.
    ///
    /// # Errors
    /// [`Error::Claimed`] if another process has reserved it.
    pub(crate) fn claim(
        &self,
        host: &Host,
        namespace: &str,
        lease: &str,
    ) -> Result<ProcessLock, Error> {
        let name = format!("{}/{namespace}/{lease}/{self}", env!("CARGO_PKG_NAME"));
        host.claim(&name)
            .map_err(|error| Error::Claimed(self.to_string(), error))
    }

    /// Returns the identity, as in the Lease's `holderIdentity`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const UID: &str = "0b9b2f1c-7d6e-4c0a-9a3e-0d4c5b6a7f80";

    #[test]
    fn the_identity_is_pod_name_and_uid() {
        assert_eq!(
            Identity::new("operator-abc", UID).unwrap().as_str(),
            format!("operator-abc_{UID}")
        );
    }

    #[test]
    fn h9_a_long_name_is_shortened_and_stays_unique() {
        let (a, b) = (
            Identity::new(&"x".repeat(253), UID).unwrap(),
            Identity::new(&"x".repeat(253), "other").unwrap(),
        );
        assert_eq!(a.as_str().len(), MAX);
        assert!(a.as_str().ends_with(UID));
        assert_ne!(a, b);
    }

    #[test]
    fn h9_an_invalid_identity_is_rejected() {
        for (name, unique) in [
            ("a", ""),
            ("a b", UID),
            ("a\u{e9}", UID),
            ("a", &*"u".repeat(128)),
        ] {
            assert!(Identity::new(name, unique).is_err(), "{name} {unique}");
        }
    }

    /// Other pods, and processes with another Lease, are not affected.
    #[cfg(target_os = "linux")]
    #[test]
    fn h18_one_process_at_a_time_runs_under_an_identity() {
        let pod = |uid: &str| Identity::new(&"x".repeat(253), uid).unwrap();
        let [uid, other] = [(); 2].map(|()| uuid::Uuid::new_v4().to_string());
        let host = Host::of_this_process();
        let claim = pod(&uid).claim(&host, "n", "l").unwrap();
        let refused = pod(&uid).claim(&host, "n", "l").unwrap_err().to_string();
        assert!(refused.contains(&uid), "{refused}");
        for (uid, namespace, lease) in [(&other, "n", "l"), (&uid, "m", "l"), (&uid, "n", "m")] {
            pod(uid).claim(&host, namespace, lease).unwrap();
        }
        drop(claim);
        pod(&uid).claim(&host, "n", "l").unwrap();
    }

    #[test]
    fn h9_processes_outside_a_cluster_have_different_identities() {
        let host = Host::for_tests([]);
        assert_ne!(Identity::of(&host).unwrap(), Identity::of(&host).unwrap());
    }
}
