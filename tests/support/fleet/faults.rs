//! Faults of the leader and of the Lease.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, api::DeleteParams};
use operator_testkit::{cluster::eventually, proxy::At};
use rustix::process::Signal;
use tokio::{task::JoinHandle, time::sleep};

use super::{DEADLINE, Fleet, LEASE, Replica};
use crate::support::{
    controller::Controller,
    foos::{create, names},
};

/// Number of Foos created together, so that the leader is busy when it is frozen.
const BURST: usize = 200;

impl Fleet {
    /// Stops the leader with SIGTERM, waits for the next leader, and restarts the old one as a standby.
    pub async fn stop_leader(&mut self) -> usize {
        let old = self.leader(None).await;
        assert_eq!(self.replicas[old].process.stop().await, 0);
        let new = self.leader(Some(old)).await;
        self.restart(old, false);
        self.warm(old, new).await;
        old
    }

    pub async fn kill_leader(&mut self) -> usize {
        let old = self.leader(None).await;
        self.kill(old).await;
        let new = self.leader(Some(old)).await;
        self.restart(old, false);
        self.warm(old, new).await;
        old
    }

    pub async fn kill(&mut self, replica: usize) {
        let process = &mut self.replicas[replica].process;
        process.signal(Signal::KILL);
        process.exit_code().await;
    }

    /// Freezes the busy leader until another replica leads, and for `longer`. Returns when the thawed replica is standing by.
    pub async fn freeze_leader(&mut self, longer: Duration) -> usize {
        let (old, arrival) = self.freeze_busy_leader().await;
        arrival.await.unwrap();
        self.leader(Some(old)).await;
        sleep(longer).await;
        let process = &self.replicas[old].process;
        let before = process.logged("standing by");
        process.signal(Signal::CONT);
        stands_by_again(process, before).await;
        old
    }

    /// Freezes the busy leader for this time. Then waits until all replicas know the leader, and returns whether it has changed.
    pub async fn freeze_leader_for(&mut self, time: Duration) -> bool {
        let (old, arrival) = self.freeze_busy_leader().await;
        sleep(time).await;
        self.replicas[old].process.signal(Signal::CONT);
        arrival.await.unwrap();
        // Time limit of a takeover by another replica, or the old leader renews it.
        sleep(self.options.pace.lease).await;
        self.leader(None).await != old
    }

    /// Freezes the leader while it processes a burst of Foos. Returns the task that creates the burst.
    async fn freeze_busy_leader(&mut self) -> (usize, JoinHandle<()>) {
        let old = self.leader(None).await;
        self.bursts += 1;
        let burst = names(&format!("burst-{}", self.bursts), BURST);
        let (client, namespace) = (self.client.clone(), self.namespace.clone());
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let early = burst[BURST / 10].clone();
        let arrival = tokio::spawn(async move { create(&client, &namespace, &burst).await });
        eventually(DEADLINE, "it is at work", async || {
            deployments.get(&early).await.map(drop)
        })
        .await;
        self.replicas[old].process.signal(Signal::STOP);
        (old, arrival)
    }

    /// Disconnects the leader until another replica leads, and for `longer`.
    pub async fn cut_leader(&self, longer: Duration) -> usize {
        let old = self.leader(None).await;
        let before = self.cut(old);
        self.leader(Some(old)).await;
        sleep(longer).await;
        self.reconnect(old, before).await;
        old
    }

    /// Disconnects a replica. Returns the argument of [`Self::reconnect`].
    pub fn cut(&self, replica: usize) -> usize {
        let Replica { proxy, process, .. } = &self.replicas[replica];
        let proxy = proxy.as_ref().unwrap();
        proxy.on("*", "*").cut(At::Server);
        proxy.disconnect();
        process.logged("standing by")
    }

    /// Ends [`Self::cut`] after a change of leader, and waits until the replica knows the new leader.
    pub async fn reconnect(&self, replica: usize, before: usize) {
        let Replica { proxy, process, .. } = &self.replicas[replica];
        proxy.as_ref().unwrap().clear();
        stands_by_again(process, before).await;
    }

    /// Deletes the Lease and waits until all replicas know the leader of the new one.
    pub async fn delete_lease(&self) {
        self.leases()
            .delete(LEASE, &DeleteParams::default())
            .await
            .unwrap();
        self.leader(None).await;
        sleep(self.options.pace.renew).await;
    }
}

pub async fn stands_by_again(process: &Controller, before: usize) {
    eventually(DEADLINE, "it stands by again", async || {
        let times = process.logged("standing by");
        if times > before { Ok(()) } else { Err(times) }
    })
    .await;
    sleep(Duration::from_millis(200)).await;
}
