//! The command `plan`: the requests that this version of the program would send first, object by object, without sending them.
//!
//! It writes nothing: its client contains the fence, and never has a term. It needs neither a Lease nor the permissions for
//! writes.

mod json;
mod planned;
mod text;

use std::{
    io::{self, Write},
    time::Duration,
};

use tokio::{sync::watch, task::yield_now, time::Instant};

use self::planned::{Object, Summary};
use crate::{
    api::{failure::brief, key::Key},
    cache::readiness::{
        Unready,
        namespace::{NamespaceName, Reason},
    },
    client::{cluster::Cluster, fence::FenceLayer},
    cmd::run,
    config::{app::App, environment::Host, settings::Config, sources::Settings},
    controller::{
        builder::Builder,
        dry_run::{DryRun, Problem},
        preview::Preview,
        single::Controlled,
    },
    telemetry::metrics::Metrics,
};

/// Longest silence of a list. A list is streamed, or comes in pages.
const SILENCE: Duration = Duration::from_secs(30);
/// Longest time for all lists, and for all live reads.
const LIMIT: Duration = Duration::from_mins(10);

/// An error that prevents a complete plan.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Run(#[from] run::Error),
    /// A line for each watch that has no complete list.
    #[error("{}", .0.join("\n"))]
    NotSynced(Vec<String>),
    /// The log has the names of the objects.
    #[error("the plan lacks objects: {0} cannot be decoded, see the lines above")]
    Partial(String),
    #[error("cannot write the plan: {0}")]
    Output(#[from] io::Error),
    #[error("stopped before the plan was complete: run plan again")]
    Stopped,
}

/// Format of the plan on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// For people.
    Text,
    /// A JSON object in each line: for each object of the plan, and last the summary.
    Json,
}

/// Writes the plan to `out`, object by object, and returns the number of its steps.
///
/// # Errors
/// See [`Error`].
pub(super) async fn plan(
    app: &'static App,
    host: &Host,
    config: &Config,
    settings: &Settings,
    format: Format,
    out: &mut impl Write,
    build: impl FnOnce(&mut Builder),
) -> Result<Summary, Error> {
    let cluster = Cluster::find(app, host, config).await;
    let cluster = cluster.map_err(run::Error::from)?;
    let metrics = Metrics::disconnected(app);
    let fence = FenceLayer::new(watch::channel(None).1, &metrics);
    let (client, ..) = cluster.fenced(&fence, &metrics);
    let mut preview = Preview::start(host, &client, config, &metrics, build);
    let synced = preview.synced(SILENCE, LIMIT).await;
    synced.map_err(|unready| Error::NotSynced(unready.iter().map(|it| line(app, it)).collect()))?;
    let summary = write(&preview, settings, format, out).await?;
    let partial = preview.partial();
    if partial.is_empty() {
        return Ok(summary);
    }
    let partial: Vec<_> = partial.iter().map(|kind| kind.plural).collect();
    Err(Error::Partial(partial.join(", ")))
}

async fn write(
    preview: &Preview,
    settings: &Settings,
    format: Format,
    out: &mut impl Write,
) -> io::Result<Summary> {
    let (mut summary, begun) = (Summary::default(), Instant::now());
    for controller in preview.controllers() {
        let (name, _) = controller.work_queue();
        for key in controller.keys() {
            let Some(plan) = dry_run(&**controller, &key, begun).await else {
                continue;
            };
            // A signal ends the command between two objects.
            yield_now().await;
            summary.add(&plan, settings);
            let object = Object {
                controller: name,
                kind: controller.kind().kind,
                key: &key,
                plan,
            };
            match format {
                Format::Text => text::object(out, &object)?,
                Format::Json => json::object(out, &object)?,
            }
        }
    }
    match format {
        Format::Text => text::summary(out, &summary)?,
        Format::Json => json::summary(out, &summary)?,
    }
    out.flush()?;
    Ok(summary)
}

/// Plans an object, with the live reads of the plan.
async fn dry_run(controller: &dyn Controlled, key: &Key, begun: Instant) -> Option<DryRun> {
    let mut done = Vec::new();
    loop {
        let (mut plan, reads) = controller.dry_run(key, done)?;
        if reads.wanted.is_empty() {
            return Some(plan);
        }
        done = reads.done;
        for (object, read) in reads.wanted {
            if begun.elapsed() > LIMIT {
                plan.problems = vec![Problem::lasting(&"all live reads took longer than 10 min")];
                return Some(plan);
            }
            done.push((object, read.await));
        }
    }
}

/// Returns the reason why a watch has no complete list, and how to mend it.
fn line(app: &App, unready: &Unready) -> String {
    let Unready {
        kind, namespace, ..
    } = unready;
    let (plural, place) = (kind.plural, NamespaceName::of(kind, namespace.as_deref()));
    let Some((reason, text)) = &unready.failure else {
        return format!(
            "the list of {plural} in {place} is not complete after {}s without a message of the API server: run plan again",
            unready.heard.elapsed().as_secs()
        );
    };
    // The watch of a replica retries.
    let (text, _) = text.rsplit_once("; ").unwrap_or((text, ""));
    let text = brief(text);
    match reason {
        Reason::Forbidden => {
            let (cause, _) = text.split_once(": ").unwrap_or((&text, ""));
            format!(
                "{cause}: bind this user to a ClusterRole with these permissions; `{} rbac` prints one that has them",
                app.name
            )
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests;
