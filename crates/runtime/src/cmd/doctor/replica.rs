//! The state of one replica, from `/debug/state`: the replica in this container, or behind a forwarded port.

use std::net::{Ipv4Addr, SocketAddr};

use http::Request;
use http_body_util::{BodyExt as _, Limited};
use kube::{Client, Config as KubeConfig, client::Body};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{
    subject::Doctor,
    verdict::{LIMIT, Verdict, ok, skipped, warning, why},
};
use crate::{
    api::{failure::brief, key::Key},
    cache::readiness::namespace::NamespaceName,
    client::cluster::is_pods_own,
    config::tls,
    telemetry::state::{self, Cache, Failing, Lease, PATH, Queue, State, span},
};

/// Age in seconds from which a cache is behind. Bookmarks arrive about once a minute.
const OLD: f64 = 300.;

/// Maximum size of a state, in bytes. A thousand namespaces need less than 1 MiB. Another server at the forwarded port may
/// send data without end.
const LARGEST: usize = 16 << 20;

/// Failing objects and caches that are listed. `/debug/state` has the others.
const MAX_LISTED: usize = 5;

/// Runs `doctor` in the container of a replica. Hints contain this command.
pub(super) const EXEC: &str = "kubectl exec -n NAMESPACE POD -- /proc/1/exe doctor";

pub(super) type Line = (String, Verdict);

/// Returns the lines about the replica.
pub(super) async fn examine(doctor: &Doctor) -> Vec<Line> {
    match timeout(LIMIT, find(doctor, PATH)).await {
        Ok(Ok(state)) => report(&state),
        Ok(Err(verdict)) => vec![("replica".to_owned(), verdict)],
        Err(_) => vec![(
            "replica".to_owned(),
            warning(format!("no answer in {LIMIT:?}")),
        )],
    }
}

/// Requests the state with this request target, at the configured address on this machine.
pub(super) async fn find<T: DeserializeOwned>(doctor: &Doctor, target: &str) -> Result<T, Verdict> {
    let http = &doctor.config.http;
    if !http.debug_state {
        return Err(skipped("http.debug_state is false"));
    }
    let is_pod = is_pods_own(&doctor.host, &doctor.config);
    let (address, kube) = if http.metrics_auth {
        // The certificate of the server is not verified, so a user's own token is never sent.
        if !is_pod {
            return Err(skipped(format!(
                "with http.metrics_auth, run doctor inside the container: {EXEC}"
            )));
        }
        let kube = KubeConfig::incluster();
        let kube = kube.map_err(|error| skipped(format!("no token for the request: {error}")))?;
        (format!("https://{}", here(http.metrics_addr)), kube)
    } else {
        let Some(addr) = http.addr else {
            return Err(skipped("http.addr is empty: the state is not served"));
        };
        let address = format!("http://{}", here(addr));
        (address, KubeConfig::new(http::Uri::default()))
    };
    ask(&address, target, kube).await.map_err(|trouble| {
        let elsewhere = if is_pod {
            String::new()
        } else {
            format!("; to check a replica, run doctor inside its container: {EXEC}")
        };
        warning(format!(
            "cannot get {address}{target}: {trouble}{elsewhere}"
        ))
    })
}

/// Replaces the unspecified address by the loopback address.
fn here(addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() {
        return (Ipv4Addr::LOCALHOST, addr.port()).into();
    }
    addr
}

/// Requests the state with this request target from `address`, with the credentials of `kube`.
pub(crate) async fn ask<T: DeserializeOwned>(
    address: &str,
    target: &str,
    mut kube: KubeConfig,
) -> Result<T, String> {
    kube.cluster_url = address.parse().map_err(|error| format!("{error}"))?;
    kube.proxy_url = None;
    // The server is on this machine, and its certificate is generated at its start.
    kube.accept_invalid_certs = true;
    kube.root_cert = Some(Vec::new());
    kube.root_cert_file = None;
    kube.default_retry = false;
    tls::install_provider();
    let client = Client::try_from(kube).map_err(|error| why(&error))?;
    let request = Request::get(target).body(Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let answer = client.send(request).await.map_err(|error| why(&error))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LARGEST).collect().await;
    let body = body.map_err(|error| brief(&error.to_string()))?.to_bytes();
    if !status.is_success() {
        return Err(format!(
            "{status}: {}",
            brief(String::from_utf8_lossy(&body).trim())
        ));
    }
    serde_json::from_slice(&body).map_err(|error| {
        let error = brief(&error.to_string());
        format!("not the format of this version: {error}")
    })
}

fn report(state: &State) -> Vec<Line> {
    let mut lines = vec![
        ("replica".to_owned(), about(state)),
        ("its caches".to_owned(), caches(&state.caches)),
        ("its Lease".to_owned(), leadership(state)),
        ("its queue".to_owned(), queue(state.queue.as_ref())),
    ];
    if let Some(queue) = &state.queue {
        let listed = queue.failing.objects.iter().take(MAX_LISTED);
        lines.extend(listed.map(|object| ("its failures".to_owned(), failure(object))));
        let more = queue.failing.total.saturating_sub(MAX_LISTED);
        if more > 0 {
            lines.push(("its failures".to_owned(), warning(format!("{more} more"))));
        }
    }
    lines
}

fn about(state: &State) -> Verdict {
    let commit = state
        .commit
        .as_deref()
        .map(|commit| format!(" ({})", brief(commit)));
    let installation = match &*state.installation {
        "" => String::new(),
        name => format!(", installation {}", brief(name)),
    };
    ok(format!(
        "{}{installation}, version {}{}, up for {}",
        brief(&state.identity),
        brief(&state.version),
        commit.unwrap_or_default(),
        span(state.uptime_seconds)
    ))
}

fn caches(caches: &[Cache]) -> Verdict {
    let troubles: Vec<_> = caches.iter().filter_map(trouble).collect();
    if !troubles.is_empty() {
        return warning(some(&troubles, "; "));
    }
    let (missing, caches): (Vec<_>, Vec<_>) = caches.iter().partition(|it| is_missing(it));
    let oldest = caches.iter().map(|cache| cache.age_seconds);
    let oldest = oldest.fold(0., f64::max);
    let missing = missing.into_iter();
    let missing = missing.map(|cache| format!("{} not installed", brief(&cache.kind)));
    let listed = caches.iter().map(|cache| {
        let (kind, objects, version) = (
            brief(&cache.kind),
            cache.objects,
            brief(&cache.resource_version),
        );
        format!("{objects} of {kind} in {} at {version}", place(cache))
    });
    ok(format!(
        "{}; the API server last sent data {} ago at most",
        some(&listed.chain(missing).collect::<Vec<_>>(), ", "),
        span(oldest)
    ))
}

/// Joins the first [`MAX_LISTED`] texts, and adds the number of the others.
fn some(all: &[String], between: &str) -> String {
    let listed = all.iter().take(MAX_LISTED).cloned();
    let more = all.len().saturating_sub(MAX_LISTED);
    let more = (more > 0).then(|| format!("and {more} more"));
    listed.chain(more).collect::<Vec<_>>().join(between)
}

fn trouble(cache: &Cache) -> Option<String> {
    let (kind, place) = (brief(&cache.kind), place(cache));
    if let Some(failure) = &cache.failure {
        return Some(brief(failure));
    }
    if is_missing(cache) {
        return None;
    }
    if !cache.in_sync {
        return Some(format!("{kind} in {place}: not in sync yet"));
    }
    (cache.age_seconds > OLD).then(|| {
        format!(
            "{kind} in {place}: no data from the API server for {}",
            span(cache.age_seconds)
        )
    })
}

/// Whether it is the cache of an optional kind that is not installed.
fn is_missing(cache: &Cache) -> bool {
    cache.is_optional && !cache.in_sync
}

fn place(cache: &Cache) -> String {
    brief(&NamespaceName(cache.namespace.as_deref()).to_string())
}

fn leadership(state: &State) -> Verdict {
    let seen = state
        .lease
        .as_ref()
        .map_or_else(|| "no Lease seen".to_owned(), lease);
    let text = match &state.term {
        Some(state::Term {
            ends_in_seconds: None,
            ..
        }) => return ok("leads, without an election"),
        Some(state::Term {
            ends_in_seconds: Some(left),
            ..
        }) => {
            format!("leads for {} unless it renews; {seen}", span(*left))
        }
        None => format!("stands by; {seen}"),
    };
    match state.fence.policy_rejects_for_seconds {
        Some(since) => warning(format!(
            "{text}; the fencing policy has rejected its writes for {}",
            span(since)
        )),
        None => ok(text),
    }
}

fn lease(lease: &Lease) -> String {
    let name = brief(&lease.name);
    if !lease.exists {
        return format!("{name} was deleted");
    }
    let ago = span(lease.seen_seconds_ago);
    if lease.holder.is_empty() {
        return format!("{name} has had no holder for {ago}");
    }
    format!(
        "{name} is held by {}, seen to renew it {ago} ago",
        brief(&lease.holder)
    )
}

fn queue(queue: Option<&Queue>) -> Verdict {
    let Some(queue) = queue else {
        return ok("none: it reconciles nothing");
    };
    let state::Waiting {
        event,
        retry,
        background,
    } = queue.waiting;
    let waiting = event.saturating_add(retry).saturating_add(background);
    let longest = queue.in_work.objects.first();
    let longest = longest.map(|object| {
        format!(
            " ({} for {})",
            Key::new(&brief(&object.namespace), &brief(&object.name)),
            span(object.seconds)
        )
    });
    let text = format!(
        "{waiting} wait for a worker, {} in work{}, {} delayed, {} failing",
        queue.in_work.total,
        longest.unwrap_or_default(),
        queue.delayed,
        queue.failing.total
    );
    if queue.failing.total > 0 {
        warning(text)
    } else {
        ok(text)
    }
}

fn failure(object: &Failing) -> Verdict {
    let next = object.retry_in_seconds.map_or_else(
        || "being retried".to_owned(),
        |time| format!("retried in {}", span(time)),
    );
    warning(format!(
        "{}: {}, {} in a row, {next}: {}",
        Key::new(&brief(&object.namespace), &brief(&object.name)),
        brief(&object.reason),
        object.attempts,
        brief(&object.error)
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The lines about a healthy replica whose state differs in these fields.
    fn lines(differ: &Value) -> Vec<String> {
        let mut state = json!({
            "identity": "a_1", "version": "0.1.0", "commit": null, "uptimeSeconds": 3723.4,
            "caches": [
                { "kind": "Widget", "namespace": null, "objects": 3, "resourceVersion": "17", "inSync": true, "ageSeconds": 12.3,
                  "failure": null },
            ],
            "lease": { "name": "n/l", "exists": true, "holder": "a_1", "seenSecondsAgo": 1.2, "durationSeconds": 15.0,
                       "transitions": 2 },
            "term": { "transitions": 2, "endsInSeconds": 8.8 },
            "fence": { "open": true, "record": "written", "policyRejectsForSeconds": null },
            "queue": {
                "waiting": { "event": 0, "retry": 0, "background": 0 }, "delayed": 0,
                "inWork": { "total": 0, "objects": [] }, "failing": { "total": 0, "objects": [] },
            },
        });
        json_patch::merge(&mut state, differ);
        let lines = report(&serde_json::from_value(state).expect("a state"));
        let lines = lines.into_iter();
        lines
            .map(|(about, (grade, text))| format!("{} {about}: {text}", grade.word()))
            .collect()
    }

    #[test]
    fn a_state_is_a_few_lines() {
        let well = [
            "ok replica: a_1, version 0.1.0, up for 1h 2m 3s",
            "ok its caches: 3 of Widget in all namespaces at 17; the API server last sent data 12s ago at most",
            "ok its Lease: leads for 9s unless it renews; n/l is held by a_1, seen to renew it 1s ago",
            "ok its queue: 0 wait for a worker, 0 in work, 0 delayed, 0 failing",
        ];
        assert_eq!(lines(&json!({})), well);
        let cache = |differ: Value| {
            let mut cache = json!({ "kind": "Widget", "namespace": "n", "objects": 3, "resourceVersion": "17", "inSync": true,
                                    "ageSeconds": 1.0, "failure": null });
            json_patch::merge(&mut cache, &differ);
            json!({ "caches": [cache] })
        };
        for (differ, number, line) in [
            (
                cache(json!({ "inSync": false })),
                1,
                "warning its caches: Widget in namespace n: not in sync yet",
            ),
            (
                cache(json!({ "ageSeconds": 301.0 })),
                1,
                "warning its caches: Widget in namespace n: no data from the API server for 5m 1s",
            ),
            (
                cache(json!({ "failure": "cannot watch\nwidgets" })),
                1,
                "warning its caches: cannot watch widgets",
            ),
            (
                json!({ "term": null, "queue": null, "lease": { "holder": "b_2" } }),
                2,
                "ok its Lease: stands by; n/l is held by b_2, seen to renew it 1s ago",
            ),
            (
                json!({ "term": null, "lease": { "holder": "" } }),
                2,
                "ok its Lease: stands by; n/l has had no holder for 1s",
            ),
            (
                json!({ "term": null, "lease": { "exists": false } }),
                2,
                "ok its Lease: stands by; n/l was deleted",
            ),
            (
                json!({ "term": { "endsInSeconds": null }, "lease": null }),
                2,
                "ok its Lease: leads, without an election",
            ),
            (
                json!({ "fence": { "policyRejectsForSeconds": 11.0 } }),
                2,
                "warning its Lease: leads for 9s unless it renews; n/l is held by a_1, seen to renew it 1s ago; the fencing \
                 policy has rejected its writes for 11s",
            ),
            (
                json!({ "queue": null }),
                3,
                "ok its queue: none: it reconciles nothing",
            ),
        ] {
            assert_eq!(lines(&differ)[number], line);
        }
    }

    /// Only a missing kind is no trouble. A permission may be missing as well.
    #[test]
    fn an_optional_kind_may_be_missing() {
        for (failure, is_synced, expected) in [
            (Value::Null, false, "ok its caches: Widget not installed; "),
            (json!("no"), false, "warning its caches: no"),
            (json!("no"), true, "warning its caches: no"),
        ] {
            let cache = json!({ "kind": "Widget", "namespace": "n", "objects": 0, "resourceVersion": "", "optional": true,
                                "inSync": is_synced, "ageSeconds": 1.0, "failure": failure });
            let line = lines(&json!({ "caches": [cache] })).swap_remove(1);
            assert!(line.starts_with(expected), "{line}");
        }
    }

    /// A line stays short with a thousand namespaces.
    #[test]
    fn a_report_of_many_caches_lists_a_few() {
        let cache = |number: usize, failure: Value| {
            json!({ "kind": "Widget", "namespace": format!("n{number}"), "objects": 3, "resourceVersion": "17", "inSync": true,
                    "ageSeconds": 1.0, "failure": failure })
        };
        for (failure, ends) in [
            (
                Value::Null,
                ", 3 of Widget in namespace n4 at 17, and 995 more; the API server last sent data 1s ago at most",
            ),
            (json!("gone"), "gone; gone; gone; gone; gone; and 995 more"),
        ] {
            let all: Vec<_> = (0..1000)
                .map(|number| cache(number, failure.clone()))
                .collect();
            let line = lines(&json!({ "caches": all })).swap_remove(1);
            assert!(line.ends_with(ends), "{line}");
        }
    }

    /// The first failures are listed.
    #[test]
    fn failures_are_reported_with_their_retries() {
        let object = |name: usize| {
            json!({ "namespace": "n", "name": format!("widget-{name}"), "attempts": 4, "reason": "Rejected", "error": "a\nb",
                    "retryInSeconds": 40.0 })
        };
        let objects: Vec<_> = (0..100).map(object).collect();
        let lines = lines(&json!({ "queue": {
            "waiting": { "event": 1, "retry": 2, "background": 3 }, "delayed": 110,
            "inWork": { "total": 2, "objects": [{ "namespace": "n", "name": "slow", "seconds": 70.0 }] },
            "failing": { "total": 112, "objects": objects },
        } }));
        assert_eq!(
            lines[3],
            "warning its queue: 6 wait for a worker, 2 in work (n/slow for 1m 10s), 110 delayed, 112 failing"
        );
        assert_eq!(lines.len(), 4 + MAX_LISTED + 1);
        assert_eq!(
            lines[4],
            "warning its failures: n/widget-0: Rejected, 4 in a row, retried in 40s: a b"
        );
        assert_eq!(
            lines.last().map_or("", |it| it),
            "warning its failures: 107 more"
        );
    }
}
