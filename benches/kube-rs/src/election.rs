//! The election: the Lease is polled every 2 s, renewed every 2 s, and released at the end. kube-leader-election requires kube 4.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, Client, Error, api::PostParams, core::ObjectMeta};
use tokio::time::{Instant, sleep, timeout_at};

const NAME: &str = "foo-controller";
const NAMESPACE: &str = "default";
const DURATION: Duration = Duration::from_secs(15);
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// The held Lease.
pub struct Held {
    leases: Api<Lease>,
    identity: String,
}

/// Waits until this process holds the Lease.
pub async fn acquire(client: Client) -> Held {
    let leases = Api::namespaced(client, NAMESPACE);
    let identity = format!("kube-rs-{}", std::process::id());
    let held = Held { leases, identity };
    while !held.try_acquire().await.unwrap_or(false) {
        sleep(RETRY_PERIOD).await;
    }
    held
}

impl Held {
    /// Renews the Lease. Returns if that fails for as long as the deadline.
    pub async fn renew(&self) -> String {
        loop {
            sleep(RETRY_PERIOD).await;
            let deadline = Instant::now() + RENEW_DEADLINE;
            let renewed = async {
                while !self.try_acquire().await.unwrap_or(false) {
                    sleep(RETRY_PERIOD).await;
                }
            };
            if timeout_at(deadline, renewed).await.is_err() {
                return "the Lease is lost".to_owned();
            }
        }
    }

    pub async fn release(&self) -> Result<(), Error> {
        // A renewal may be under way, whose write causes a conflict.
        while !self.write(self.leases.get_opt(NAME).await?, None).await? {}
        Ok(())
    }

    /// Writes the Lease if it is held by this process or by none.
    async fn try_acquire(&self) -> Result<bool, Error> {
        let stored = self.leases.get_opt(NAME).await?;
        let spec = stored
            .as_ref()
            .and_then(|lease| lease.spec.clone())
            .unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let is_expired = spec
            .renew_time
            .is_none_or(|at| at.0 + DURATION < Timestamp::now());
        if !holder.is_empty() && holder != self.identity && !is_expired {
            return Ok(false);
        }
        self.write(stored, Some(self.identity.clone())).await
    }

    /// Returns false if another process has written the Lease first.
    async fn write(&self, stored: Option<Lease>, holder: Option<String>) -> Result<bool, Error> {
        let is_new = stored.is_none();
        let mut lease = stored.unwrap_or_default();
        let now = Some(MicroTime(Timestamp::now()));
        let before = lease.spec.take().unwrap_or_default();
        let is_same = before.holder_identity == holder;
        lease.spec = Some(LeaseSpec {
            holder_identity: holder,
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: if is_same {
                before.acquire_time
            } else {
                now.clone()
            },
            renew_time: now,
            lease_transitions: Some(before.lease_transitions.unwrap_or(0) + i32::from(!is_same)),
            ..LeaseSpec::default()
        });
        lease.metadata = ObjectMeta {
            name: Some(NAME.to_owned()),
            ..lease.metadata
        };
        let written = match is_new {
            true => self.leases.create(&PostParams::default(), &lease).await,
            false => {
                self.leases
                    .replace(NAME, &PostParams::default(), &lease)
                    .await
            }
        };
        match written {
            Ok(_) => Ok(true),
            Err(Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }
}
