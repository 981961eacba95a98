//! Upper bound of the write rate: the writes of a controller, in its order and with its concurrency, but without watches,
//! caches, decisions or logs.

use std::{collections::VecDeque, sync::Mutex, time::Instant};

use futures::future::join_all;
use kube::Client;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, mpsc};

use super::{
    load::clients,
    process::WORKERS,
    watch::Object,
    writes::{DEPLOYMENTS, create_deployment, create_event, repeat_event, report, scale},
};
use operator_testkit::cluster::Cluster;

/// Concurrent event writes of this controller.
const EVENTS_AT_ONCE: usize = 8;

/// Write to a Foo's Deployment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Create,
    Scale,
}

/// Writers and their queues.
pub struct Bare {
    workers: Vec<Client>,
    recorders: Vec<Client>,
    waiting: Mutex<Waiting>,
    /// One permit for each queued Foo.
    there: Semaphore,
}

/// Queued Foos. Deployments are written before statuses, as in this controller.
#[derive(Default)]
struct Waiting {
    deployments: VecDeque<Object>,
    statuses: VecDeque<Object>,
}

/// Times of the last response for each resource.
#[derive(Clone, Copy)]
pub struct Written {
    pub deployment: Option<Instant>,
    pub status: Option<Instant>,
    pub event: Option<Instant>,
}

impl Bare {
    pub async fn new(cluster: &Cluster) -> Self {
        Self {
            workers: clients(cluster, WORKERS).await,
            recorders: clients(cluster, EVENTS_AT_ONCE).await,
            waiting: Mutex::default(),
            there: Semaphore::new(0),
        }
    }

    /// Queues a new or changed Foo.
    pub fn add(&self, foo: Object) {
        self.waiting.lock().unwrap().deployments.push_back(foo);
        self.there.add_permits(1);
    }

    /// Writes the Deployment, the status and the event of `count` queued Foos.
    pub async fn write(&self, count: usize, work: Work) -> Written {
        let (reported, events) = mpsc::unbounded_channel();
        let (left, events) = (Mutex::new(count), AsyncMutex::new(events));
        let worker = async |client: &Client, reported: mpsc::UnboundedSender<Object>| {
            let (mut deployment, mut status) = (None, None);
            while let Ok(one) = self.there.acquire().await {
                one.forget();
                let next = self.waiting.lock().unwrap().deployments.pop_front();
                if let Some(foo) = next {
                    if work == Work::Create {
                        create_deployment(client, &foo).await;
                    } else {
                        scale(client, DEPLOYMENTS, &foo.metadata.name, 2).await;
                    }
                    deployment = Some(Instant::now());
                    self.waiting.lock().unwrap().statuses.push_back(foo);
                    self.there.add_permits(1);
                    continue;
                }
                let next = self.waiting.lock().unwrap().statuses.pop_front();
                let foo = next.expect("one for each permit");
                report(client, &foo).await;
                status = Some(Instant::now());
                let _ = reported.send(foo);
                let mut left = left.lock().unwrap();
                *left -= 1;
                if *left == 0 {
                    self.there.close();
                }
            }
            (deployment, status)
        };
        let recorder = async |client: &Client| {
            let mut event = None;
            loop {
                let next = events.lock().await.recv().await;
                let Some(foo) = next else {
                    return event;
                };
                if work == Work::Create {
                    create_event(client, &foo).await;
                } else {
                    repeat_event(client, &foo).await;
                }
                event = Some(Instant::now());
            }
        };
        let workers = self
            .workers
            .iter()
            .map(|client| worker(client, reported.clone()));
        let workers = join_all(workers);
        drop(reported);
        let (by_workers, by_recorders) =
            futures::join!(workers, join_all(self.recorders.iter().map(recorder)));
        Written {
            deployment: by_workers.iter().filter_map(|(at, _)| *at).max(),
            status: by_workers.iter().filter_map(|(_, at)| *at).max(),
            event: by_recorders.into_iter().flatten().max(),
        }
    }
}
