//! The controllers of a program without an election, for the command `plan`: they watch, and reconcile in dry runs only.

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    api::kind::Kind,
    cache::readiness::{Scopes, Unready, namespace::Reason},
    config::{environment::Host, settings::Config},
    controller::{
        builder::Builder,
        scopes,
        single::{Common, Controlled},
    },
    telemetry::{
        events::{Recorder, event::EventSource},
        heartbeat::Heartbeat,
        metrics::Metrics,
    },
};

/// Longest interval between two checks of the time limits and of the referenced contents.
const CHECK: Duration = Duration::from_millis(200);

/// The controllers of a program. Nothing is written, and the program's own [tasks](Builder::task) do not run.
pub(crate) struct Preview {
    all: Vec<Arc<dyn Controlled>>,
    scopes: Arc<Scopes>,
    watches: JoinSet<()>,
}

impl Preview {
    /// Creates the controllers that `build` declares, and starts their watches. Call it within a Tokio runtime.
    pub(crate) fn start(
        host: &Host,
        client: &Client,
        config: &Config,
        metrics: &Metrics,
        build: impl FnOnce(&mut Builder),
    ) -> Self {
        let app = metrics.app();
        let namespaces = scopes(&config.namespaces);
        let builder = Builder::new(host, client, namespaces.clone(), metrics);
        let mut builder = builder.of_installation(&config.installation);
        build(&mut builder);
        builder.divide();
        let shared = Arc::clone(&builder.shared);
        let (needs, refusals) = (builder.needs_of_program(), builder.refusals);
        let about = EventSource {
            app,
            reporter: app.reporter,
            instance: app.name.to_owned(),
            kind: needs.primary(),
            host: host.clone(),
        };
        // Without its task, which would write them, events are dropped.
        let (recorder, _) = Recorder::new(client.clone(), about, metrics, || false);
        let scopes = Scopes::new(
            needs,
            &namespaces,
            refusals,
            config.leader_election.lease_duration,
        );
        let mut watches = JoinSet::new();
        for (number, scope) in scopes.informers() {
            let (informer, status) = (&builder.informers[number], scopes.informer(scope, number));
            watches.spawn(informer.watch(&shared, status, &scopes, metrics, Heartbeat::default()));
        }
        let common = Common {
            scopes: Arc::clone(&scopes),
            recorder,
            metrics: metrics.clone(),
            host: host.clone(),
            config: config.clone(),
        };
        let declared = builder.controllers.into_iter();
        Self {
            all: declared.map(|it| (it.start)(&common)).collect(),
            scopes,
            watches,
        }
    }

    /// Waits for the initial lists of all watches and for the referenced contents, and then ends the watches: from then on, the
    /// stores stay as they are. Contents that are not read within the time limits remain missing.
    ///
    /// # Errors
    /// The watches without a complete list, if each of them lacks a permission, credentials or its resource type, or if a
    /// watch has been `silent` for this time, or if the lists take longer than `limit`.
    pub(crate) async fn synced(
        &mut self,
        silent: Duration,
        limit: Duration,
    ) -> Result<(), Vec<Unready>> {
        let begun = Instant::now();
        // The least number of objects that await contents, and since when. Each content is progress.
        let (mut least, mut since) = (usize::MAX, begun);
        loop {
            let unready = self.scopes.unready();
            let awaited = self.all.iter().map(|it| it.awaited()).sum();
            if awaited < least {
                (least, since) = (awaited, Instant::now());
            }
            let is_stalled = since.elapsed() > silent || begun.elapsed() > limit;
            if unready.is_empty() && (awaited == 0 || is_stalled) {
                self.watches.shutdown().await;
                return Ok(());
            }
            let is_lasting = |it: &Unready| {
                let reason = it.failure.as_ref().map(|(reason, _)| *reason);
                reason.is_some_and(|it| !matches!(it, Reason::Failing | Reason::Syncing))
            };
            let is_silent = |it: &Unready| it.heard.elapsed() > silent && is_stalled;
            let is_hopeless = !unready.is_empty() && unready.iter().all(is_lasting);
            if is_hopeless || unready.iter().any(is_silent) || begun.elapsed() > limit {
                return Err(unready);
            }
            let _ = timeout(CHECK, self.scopes.changed()).await;
        }
    }

    /// Returns the resource types with an object that is not in the store, because the code of its type panics. The log has its
    /// name.
    pub(crate) fn partial(&self) -> Vec<Kind> {
        self.scopes.partial()
    }

    /// Returns the controllers in the order of their declaration.
    pub(crate) fn controllers(&self) -> &[Arc<dyn Controlled>] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::convert::Infallible;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;

    use super::*;
    use crate::{
        config::app::tests::APP,
        testing::fixtures::{Parent, Parents},
    };

    const SILENCE: Duration = Duration::from_secs(30);

    /// Starts a preview of Parents whose requests for these resource types have no response, and all others a 403.
    fn preview(silent: &'static [&'static str]) -> Preview {
        let server = service_fn(move |request: Request<Body>| async move {
            let path = request.uri().path().to_owned();
            if silent.iter().any(|plural| path.ends_with(plural)) {
                std::future::pending::<()>().await;
            }
            let status =
                json!({ "kind": "Status", "code": 403, "reason": "Forbidden", "message": "no" });
            let body = Body::from(status.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(403).body(body).unwrap())
        });
        let client = Client::new(server, "default");
        let (host, config) = (Host::of_this_process(), Config::shipped(&APP));
        let build = |program: &mut Builder| program.controller::<Parents>("parent", Parents::build);
        Preview::start(&host, &client, &config, &Metrics::disconnected(&APP), build)
    }

    /// Without permissions, the end comes at once. A watch that may still succeed gets its time.
    #[tokio::test(start_paused = true)]
    async fn the_wait_for_the_lists_has_a_bound() {
        for (silent, least) in [(&[][..], Duration::ZERO), (&["/children"], SILENCE)] {
            let begun = Instant::now();
            let unready = preview(silent)
                .synced(SILENCE, SILENCE * 9)
                .await
                .unwrap_err();
            let (took, most) = (begun.elapsed(), least + Duration::from_secs(5));
            assert!(took >= least && took < most, "{took:?}");
            let reasons = unready.iter().map(|it| {
                let reason = it.failure.as_ref().map(|(reason, _)| *reason);
                (it.kind.plural, reason)
            });
            let children = silent.is_empty().then_some(Reason::Forbidden);
            let expected = [("parents", Some(Reason::Forbidden)), ("children", children)];
            assert_eq!(reasons.collect::<Vec<_>>(), expected);
        }
    }

    /// The watches end with the preview, and the controllers are in the order of their declaration.
    #[tokio::test]
    async fn a_preview_has_the_declared_controllers() {
        let preview = preview(&["/parents", "/children"]);
        let kinds: Vec<_> = preview
            .controllers()
            .iter()
            .map(|it| it.kind().kind)
            .collect();
        assert_eq!(kinds, [<Parent as crate::api::object::Cached>::KIND.kind]);
    }
}
