//! End and resumption of watches.

use k8s_openapi::api::storage::v1::StorageClass;
use opentelemetry_sdk::Resource;

use super::*;
use crate::api::{exists::Exists, select::Select};

/// Returns a watch with an event every `every`, which ends with an error of this kind `after` its start.
fn cut(every: Option<Duration>, after: Duration, kind: io::ErrorKind) -> Response<Answer> {
    let begun = Instant::now();
    let events = stream::unfold(every, move |every| async move {
        sleep(every?).await;
        let version = 100 + Instant::now().duration_since(begun).as_secs();
        let event = json!({ "type": "MODIFIED", "object": {
            "metadata": { "name": "parent", "namespace": "n", "uid": "u", "resourceVersion": version.to_string() },
        }});
        Some((Ok(Frame::data(format!("{event}\n").into())), every))
    });
    let silence = async { stream::pending() };
    let end = async move {
        sleep_until(begun + after).await;
    };
    let events = events.chain(silence.flatten_stream()).take_until(end);
    streamed(events.chain(stream::once(async move { Err(kind.into()) })))
}

/// A load balancer cuts idle connections: the watch resumes from its version, and no restart is counted. A watch that is cut
/// early or between events, or that times out, is a restart.
#[tokio::test(start_paused = true)]
async fn an_idle_watch_that_is_cut_resumes() {
    use io::ErrorKind::{ConnectionReset, TimedOut, UnexpectedEof};
    let seconds = Duration::from_secs;
    for (every, after, kind, is_restart) in [
        (None, 35, ConnectionReset, false),
        (None, 35, UnexpectedEof, false),
        (Some(20), 35, ConnectionReset, false),
        (Some(3), 35, ConnectionReset, true),
        (None, 3, ConnectionReset, true),
        (None, 35, TimedOut, true),
    ] {
        let (server, asked) = (server(), Arc::new(Mutex::new(Vec::new())));
        server.let_children.add_permits(1);
        let noted = Arc::clone(&asked);
        let client = client(move |request| {
            let (server, noted) = (server.clone(), noted.clone());
            async move {
                let query = request.uri.query().unwrap_or_default();
                let is_watch = query.contains("watch") && !query.contains("sendInitialEvents");
                if !request.uri.path().ends_with("/parents") || !is_watch {
                    return server.answer(&request).await;
                }
                noted.lock().push(query.to_owned());
                cut(every.map(seconds), seconds(after), kind)
            }
        });
        let resource = Resource::builder_empty().build();
        let (metrics, _provider) = Metrics::new(&APP, resource, None);
        let _controller = Controllers::new(
            &Host::of_this_process(),
            &client,
            &Config::shipped(&APP),
            "test".into(),
            &metrics,
            &mut Health::new(&Host::of_this_process()),
            |program| program.controller("parent", Parents::build),
        );
        sleep(seconds(300)).await;
        let what = format!("every {every:?} s, {kind} after {after} s");
        assert!(asked.lock().len() >= 7, "{what}: {:?}", asked.lock());
        let versions = asked
            .lock()
            .iter()
            .all(|query| query.contains("resourceVersion="));
        assert!(versions, "{what}");
        let (_, text) = metrics.scrape(None);
        let restarts = text.lines().find(|line| {
            line.contains("watch_restarts_total{") && line.contains(r#"kind="Parent""#)
        });
        let restarts = restarts.and_then(|line| line.rsplit_once(' ')).unwrap().1;
        assert_eq!(restarts != "0", is_restart, "{what}: {restarts}");
    }
}

/// A proxy drops the end of a streamed list. After a timeout the list is read in pages, as are all later lists.
#[tokio::test(start_paused = true)]
async fn a_streamed_list_without_an_end_is_read_in_pages() {
    for changes in [None, Some(Duration::from_secs(1))] {
        let (server, asked) = (server(), Arc::new(Mutex::new(Vec::new())));
        server.let_children.add_permits(1);
        let noted = Arc::clone(&asked);
        let client = client(move |request| {
            let (server, noted) = (server.clone(), noted.clone());
            async move {
                let query = request.uri.query().unwrap_or_default();
                if !request.uri.path().ends_with("/parents") {
                    return server.answer(&request).await;
                }
                let is_stream = query.contains("sendInitialEvents");
                let is_watch = query.contains("watch");
                noted.lock().push(if is_stream {
                    "stream"
                } else if is_watch {
                    "watch"
                } else {
                    "list"
                });
                if is_stream {
                    return cut(
                        changes,
                        Duration::from_secs(290),
                        io::ErrorKind::ConnectionReset,
                    );
                }
                if is_watch {
                    // A new list is required after a minute.
                    sleep(Duration::from_mins(1)).await;
                    return respond(410, &json!({ "code": 410 }));
                }
                server.answer(&request).await
            }
        });
        let mut health = Health::new(&Host::of_this_process());
        let _controller = controllers_at(&client, &mut health, Parents::build);
        sleep(STREAM_SILENCE.mul_f64(0.9)).await;
        assert_eq!(*asked.lock(), ["stream"]);
        assert_ne!(health.failing(Probe::Ready), [""; 0]);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(health.failing(Probe::Ready), [""; 0]);
        sleep(Duration::from_secs(90)).await;
        assert_eq!(*asked.lock(), ["stream", "list", "watch", "list", "watch"]);
    }
}

/// Lists and watches request only the metadata of a type without content, and of a type whose referenced objects alone are kept.
/// The API server ends each watch after 290 s.
#[tokio::test(start_paused = true)]
async fn lists_and_watches_request_only_the_needed_part() {
    for can_stream in [false, true] {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let client = client(move |request| {
            let (server, noted) = (server(), noted.clone());
            async move {
                let query = request.uri.query().unwrap_or_default();
                let is_stream = query.contains("sendInitialEvents");
                let verb = match query.contains("watch") {
                    true if is_stream => "stream",
                    true => "watch",
                    false => "list",
                };
                assert_eq!(
                    query.contains("timeoutSeconds=290"),
                    verb != "list",
                    "{query}"
                );
                let accept = request.headers.get("accept");
                let accept = accept.map_or("", |accept| accept.to_str().unwrap());
                let form = accept.split(';').find_map(|it| it.strip_prefix("as="));
                let form = form.unwrap_or_default().to_owned();
                let plural = request.uri.path().rsplit('/').next().unwrap().to_owned();
                noted.lock().push((plural, verb, form));
                if verb == "list" && request.method == Method::GET {
                    let metadata = json!({ "resourceVersion": "9" });
                    return respond(200, &json!({ "metadata": metadata, "items": [] }));
                }
                if !(is_stream && can_stream) {
                    return server.answer(&request).await;
                }
                let metadata = json!({ "resourceVersion": "17", "annotations": { "k8s.io/initial-events-end": "true" } });
                let end = json!({ "kind": "Parent", "apiVersion": "example.com/v1", "metadata": metadata });
                let end = json!({ "type": "BOOKMARK", "object": end });
                let line = Bytes::from(format!("{end}\n"));
                let line = stream::once(async move { Ok(Frame::data(line)) });
                let ends = stream::once(sleep(Duration::from_mins(1))).filter_map(async |()| None);
                streamed(line.chain(ends))
            }
        });
        let _controllers = Controllers::new(
            &Host::of_this_process(),
            &client,
            &Config::shipped(&APP),
            "test".into(),
            &Metrics::disconnected(&APP),
            &mut Health::new(&Host::of_this_process()),
            |program| {
                program.select::<Child>(Select::default().referenced_only());
                program.controller("parent", |builder| {
                    builder.watches::<Child>();
                    builder.watches::<Exists<StorageClass>>();
                    Idle
                });
            },
        );
        sleep(Duration::from_secs(90)).await;
        let one = "PartialObjectMetadata";
        for (plural, all, each) in [
            ("parents", "", ""),
            ("children", "PartialObjectMetadataList", one),
            ("storageclasses", "PartialObjectMetadataList", one),
        ] {
            let asked = asked.lock();
            let asked = asked.iter().filter(|(of, ..)| of == plural);
            let asked: Vec<_> = asked.map(|(_, verb, form)| (*verb, &**form)).collect();
            let list = (!can_stream).then_some(("list", all));
            let expected = [Some(("stream", each)), list, Some(("watch", each))];
            let expected: Vec<_> = expected.into_iter().flatten().collect();
            assert_eq!(asked, expected, "{plural}");
        }
    }
}
