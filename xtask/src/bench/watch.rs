//! Watch on the results of a controller.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use kube::{Client, core::WatchEvent};
use serde::Deserialize;
use tokio::{sync::mpsc, time::timeout};

/// Time limit of one wait.
const GATHER_TIMEOUT: Duration = Duration::from_mins(1);

/// The fields of a Foo or a Deployment that are read.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Object {
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    #[serde(default)]
    pub generation: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Spec {
    pub replicas: Option<i32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    observed_generation: i64,
}

impl Object {
    /// Returns whether the status reports this generation.
    pub fn is_reported(&self, generation: i64) -> bool {
        self.metadata.generation == generation && self.status.observed_generation == generation
    }

    /// Returns whether the status does not report the current generation.
    pub fn is_new(&self) -> bool {
        !self.is_reported(self.metadata.generation)
    }
}

/// Watch that delivers the existing objects of a resource and then the changes.
pub struct Watch(mpsc::UnboundedReceiver<(Instant, Object)>);

impl Watch {
    pub async fn new(client: &Client, resource: &'static str) -> Self {
        let client = client.clone();
        let open = async move |version: &str| {
            let uri = format!("{resource}?watch=true&resourceVersion={version}");
            let request = http::Request::get(uri).body(Vec::new()).unwrap();
            client.request_events::<Object>(request).await
        };
        let mut events = open("0").await.unwrap().boxed();
        let (seen, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut version = "0".to_owned();
            loop {
                while let Some(event) = events.next().await {
                    match event {
                        Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                            version.clone_from(&object.metadata.resource_version);
                            if seen.send((Instant::now(), object)).is_err() {
                                return;
                            }
                        }
                        Ok(WatchEvent::Deleted(_) | WatchEvent::Bookmark(_)) => {}
                        // That version has expired: list everything again.
                        Ok(WatchEvent::Error(_)) | Err(_) => "0".clone_into(&mut version),
                    }
                }
                // The API server ends a watch after a while, or when the client is too slow. Continue from the last version
                // until the control plane has stopped.
                events = match open(&version).await {
                    Ok(events) => events.boxed(),
                    Err(_) => return,
                };
            }
        });
        Self(receiver)
    }

    /// Returns the next change.
    pub async fn next(&mut self) -> Option<(Instant, Object)> {
        self.0.recv().await
    }

    /// Waits until `count` objects have matched, and returns when each matched first.
    pub async fn until(
        &mut self,
        count: usize,
        is_so: impl Fn(&Object) -> bool,
    ) -> HashMap<String, Instant> {
        let mut done = HashMap::new();
        while done.len() < count {
            let before = done.len();
            self.gather(&mut done, before + 1, &is_so).await;
            assert!(done.len() > before, "{before} of {count}, and no more");
        }
        done
    }

    /// Adds matching objects, with the time of the first match, until there are `count` of them or [`GATHER_TIMEOUT`] has
    /// passed.
    pub async fn gather(
        &mut self,
        done: &mut HashMap<String, Instant>,
        count: usize,
        is_so: impl Fn(&Object) -> bool,
    ) {
        let gathered = timeout(GATHER_TIMEOUT, async {
            while done.len() < count {
                let (at, object) = self.next().await.expect("a control plane");
                if is_so(&object) {
                    done.entry(object.metadata.name).or_insert(at);
                }
            }
        });
        // The caller checks the count.
        let _ = gathered.await;
    }
}
