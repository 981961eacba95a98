//! Content of objects in other namespaces: none without a grant.

use proptest::prelude::*;

use super::*;

impl World {
    /// Sets an object of the API server and its metadata in the watch.
    fn put(&self, name: &str, version: u64, grant: Option<&'static str>) {
        self.serve(name, version, grant);
        self.granted_head(name, version, grant);
    }

    fn serve(&self, name: &str, version: u64, grant: Option<&'static str>) {
        self.server.set(name, Ok(version));
        let grants = &mut self.server.0.lock().grants;
        match grant {
            Some(grant) => _ = grants.insert(name.to_owned(), grant),
            None => _ = grants.remove(name),
        }
    }
}

/// A reference alone reads nothing, and a Parent does not wait for the content. A grant reads it at once.
#[tokio::test(start_paused = true)]
async fn only_granted_content_is_read() {
    let world = World::synced().await;
    world.put("other", 7, None);
    world.parent("p", "other", 8);
    for (version, grant) in [(9, None), (10, Some("m")), (11, Some("other"))] {
        world.put("other", version, grant);
        world.list(&[("b", 6)]);
        world.granted_head("other", version, grant);
        world.settle().await;
        assert!(!world.is_awaited("other"));
        assert_eq!((world.server.read(), world.stored("other")), (vec![], None));
    }
    world.changed();
    world.put("other", 12, Some("m,n"));
    assert!(world.is_awaited("other"));
    world.settle().await;
    assert_eq!(world.server.read(), ["other"]);
    assert_eq!(
        (world.stored("other"), world.changed()),
        (Some(12), vec!["other".to_owned()])
    );
}

/// The Parents of the other namespace need no grant, and theirs does not serve others.
#[tokio::test(start_paused = true)]
async fn a_reader_with_a_grant_does_not_make_others_wait() {
    let world = World::synced().await;
    world.put("other", 7, Some("m"));
    let reader = "{metadata: {name: r, namespace: m, uid: u, resourceVersion: '2'}, spec: {child: other/other}}";
    world.parents.apply(0, object(reader)).unwrap();
    world.parent("p", "other", 8);
    let is_awaited = |from: &str| (world.contents).is_awaited(&Key::new(from, "p"), &key("other"));
    assert_eq!(["m", "n", "other"].map(is_awaited), [true, false, true]);
    world.settle().await;
    assert_eq!(world.stored("other"), Some(7), "for the reader");
}

/// The content leaves the memory, and the Parents learn of it. Another reader gets it again.
#[tokio::test(start_paused = true)]
async fn a_withdrawn_grant_removes_the_content() {
    let world = World::synced().await;
    world.put("other", 7, Some("n, m"));
    world.parent("p", "other", 8);
    world.settle().await;
    assert_eq!(world.stored("other"), Some(7));
    let _ = (world.changed(), world.server.read());
    world.put("other", 9, Some("m"));
    assert_eq!(
        (world.stored("other"), world.changed()),
        (None, vec!["other".to_owned()])
    );
    world.settle().await;
    assert!(world.server.read().is_empty());

    let reader = "{metadata: {name: r, namespace: m, uid: u, resourceVersion: '10'}, spec: {child: other/other}}";
    world.parents.apply(0, object(reader)).unwrap();
    world.put("other", 11, Some("m,n"));
    world.settle().await;
    assert_eq!(world.stored("other"), Some(11));
    world.put("other", 12, Some("m"));
    assert_eq!(world.stored("other"), None);
    world.settle().await;
    assert_eq!(world.stored("other"), Some(12));
}

/// Two Parents wait for the content, and the response of the read grants it only to the Parent in m. The change enqueues both, but
/// no Parent without a grant.
#[tokio::test(start_paused = true)]
async fn a_grant_that_the_response_lacks_ends_the_wait() {
    let world = World::synced().await;
    let reader = "{metadata: {name: r, namespace: m, uid: u, resourceVersion: '2'}, spec: {child: other/other}}";
    world.parents.apply(0, object(reader)).unwrap();
    for (version, before, expected) in [(7, "n,m", vec!["n", "m"]), (17, "m", vec!["m"])] {
        world.heads.delete(&key("other"), version - 1);
        world.seen_from.lock().clear();
        world.put("other", version, Some(before));
        world.parent("p", "other", version + 1);
        world.serve("other", version + 2, Some("m"));
        world.settle().await;
        assert_eq!(world.stored("other"), Some(version + 2));
        assert_eq!(*world.seen_from.lock(), expected);
    }
}

/// A Parent that waits for the content learns that it has lost the grant.
#[tokio::test(start_paused = true)]
async fn a_grant_that_is_withdrawn_during_the_read_ends_the_wait() {
    let world = World::synced().await;
    world.put("other", 7, Some("n"));
    world.parent("p", "other", 8);
    sleep(LATENCY / 2).await;
    assert!(world.is_awaited("other"));
    world.changed();
    world.put("other", 9, None);
    assert!(!world.is_awaited("other"));
    assert_eq!(world.changed(), ["other"]);
    world.settle().await;
    assert_eq!(world.stored("other"), None);
}

/// The read is later than the metadata: the content that it returns was never granted.
#[tokio::test(start_paused = true)]
async fn content_that_is_no_longer_granted_is_not_kept() {
    let world = World::synced().await;
    world.put("other", 7, Some("n"));
    world.parent("p", "other", 8);
    world.settle().await;
    assert_eq!(world.stored("other"), Some(7));
    world.serve("other", 10, None);
    world.granted_head("other", 9, Some("n"));
    world.changed();
    world.settle().await;
    assert_eq!(
        (world.stored("other"), world.changed()),
        (None, vec!["other".to_owned()])
    );
    assert!(!world.is_awaited("other"));
    assert_eq!(world.server.read().len(), 2);
    world.head("other", 10);
    world.settle().await;
    assert_eq!((world.stored("other"), world.server.read()), (None, vec![]));
}

/// A new reader gets no content from before its grant: a user may replace it and grant it in one request.
#[tokio::test(start_paused = true)]
async fn a_new_grant_is_for_the_content_that_has_it() {
    let world = World::synced().await;
    world.put("other", 7, Some("m"));
    let reader = "{metadata: {name: r, namespace: m, uid: u, resourceVersion: '2'}, spec: {child: other/other}}";
    world.parents.apply(0, object(reader)).unwrap();
    world.contents.references_changed(&key("other"));
    world.parent("p", "other", 8);
    world.settle().await;
    let readable = |from: &str| {
        let stored = world.contents.store.get(&key("other"));
        stored
            .filter(|it| it.may_be_read_by(&Key::new(from, "p"), &key("other")))
            .map(|it| it.version)
    };
    assert_eq!(["m", "n"].map(readable), [Some(7), None]);
    world.put("other", 9, Some("m,n"));
    assert_eq!(["m", "n"].map(readable), [Some(7), None], "until the read");
    world.settle().await;
    assert_eq!(["m", "n"].map(readable), [Some(9), Some(9)]);
}

/// A head that is older than the content does not withdraw its grant.
#[tokio::test(start_paused = true)]
async fn a_late_head_withdraws_nothing() {
    let world = World::synced().await;
    world.serve("other", 9, Some("n"));
    world.granted_head("other", 7, Some("n"));
    world.parent("p", "other", 8);
    world.settle().await;
    assert_eq!(world.stored("other"), Some(9));
    world.head("other", 8);
    assert_eq!(world.stored("other"), Some(9));
}

/// Four reads run, so this one waits. The grant ends before its turn.
#[tokio::test(start_paused = true)]
async fn a_read_that_waits_needs_its_grant_until_it_is_sent() {
    let world = World::synced().await;
    let names: Vec<_> = (0..=CONCURRENCY).map(|it| format!("other{it}")).collect();
    for (number, name) in names.iter().enumerate() {
        world.put(name, 7, Some("n"));
        world.parent(&format!("p{number}"), name, 8);
    }
    sleep(LATENCY / 2).await;
    world.put(&names[CONCURRENCY], 9, None);
    world.settle().await;
    assert_eq!(world.server.read(), names[..CONCURRENCY]);
}

/// The content was read with a later grant than the metadata has.
#[tokio::test(start_paused = true)]
async fn a_withdrawal_is_compared_with_the_content_too() {
    let world = World::synced().await;
    world.serve("other", 9, Some("n,m"));
    world.granted_head("other", 7, Some("n"));
    world.parent("p", "other", 8);
    world.settle().await;
    assert_eq!(world.stored("other"), Some(9));
    world.granted_head("other", 10, Some("n"));
    assert_eq!(
        world.stored("other"),
        None,
        "not readable from m until it is read again"
    );
}

/// A change of the property below.
#[derive(Clone, Debug)]
enum Move {
    /// Changes the object, with this grant.
    Write(Option<&'static str>),
    /// The watch delivers the object.
    Deliver,
    Delete,
    List,
    /// The Parent in this namespace refers to the object, or to another one.
    Refer(&'static str, bool),
    /// Time passes. Meanwhile reads are sent and answered.
    Wait(u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let grants = [None, Some(""), Some("n"), Some("m"), Some("n,m"), Some("*")];
    let one = prop_oneof![
        3 => prop::sample::select(grants.to_vec()).prop_map(Move::Write),
        4 => Just(Move::Deliver),
        1 => Just(Move::Delete),
        1 => Just(Move::List),
        3 => (prop::sample::select(vec!["n", "m"]), any::<bool>()).prop_map(|(from, to)| Move::Refer(from, to)),
        4 => (1..30_u64).prop_map(Move::Wait),
    ];
    prop::collection::vec(one, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// No content without a grant: no read is sent while no grant since the newest metadata lets a Parent read the object, and the
    /// store lets no Parent read it against the newest metadata.
    #[test]
    fn no_content_is_read_or_kept_without_a_grant(moves in moves()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(no_content_without_a_grant(moves))?;
    }
}

async fn no_content_without_a_grant(moves: Vec<Move>) -> Result<(), TestCaseError> {
    let world = World::synced().await;
    let may_read = |from: &str, grant: Option<&str>| {
        grant.is_some_and(|grant| grant == "*" || grant.split(',').any(|it| it == from))
    };
    // The object of the API server, the object as the watch has delivered it, and the referring Parents.
    let (mut stored, mut delivered) = (None, None);
    // The grant that the watch has delivered, and the later ones: a read shows them earlier than the watch.
    let mut grants = Vec::new();
    let mut from = BTreeMap::from([("n", false), ("m", false)]);
    for (step, one) in moves.into_iter().enumerate() {
        let version = 20 + step as u64;
        match one {
            Move::Write(grant) => {
                world.serve("other", version, grant);
                stored = Some((version, grant));
                grants.push(grant);
            }
            Move::Deliver => {
                delivered = stored;
                grants = vec![stored.and_then(|(_, grant)| grant)];
                match stored {
                    Some((version, grant)) => world.granted_head("other", version, grant),
                    None => world.heads.delete(&key("other"), version),
                }
            }
            Move::Delete => {
                world.server.set("other", Err(404));
                stored = None;
            }
            Move::List => {
                delivered = stored;
                grants = vec![stored.and_then(|(_, grant)| grant)];
                world.heads.list_begins();
                if let Some((version, grant)) = stored {
                    world.granted_head("other", version, grant);
                }
                world.heads.list_ends(version);
            }
            Move::Refer(namespace, refers) => {
                let child = if refers { "other/other" } else { "none" };
                let change = world.parents.apply(0, object(&format!(
                    "{{metadata: {{name: r, namespace: {namespace}, uid: u, resourceVersion: '{version}'}}, spec: {{child: {child}}}}}"
                )));
                for to in change.iter().flat_map(|it| it.old.iter().chain(&it.new)) {
                    for (_, to) in References::of(&Key::new(namespace, "r"), &**to) {
                        world.contents.references_changed(&to);
                    }
                }
                from.insert(namespace, refers);
            }
            Move::Wait(milliseconds) => {
                let mut readers = from.iter().filter(|(_, refers)| **refers);
                let was_readable =
                    readers.any(|(from, _)| grants.iter().any(|grant| may_read(from, *grant)));
                world.server.read();
                sleep(Duration::from_millis(milliseconds)).await;
                let read = world.server.read().iter().any(|name| name == "other");
                prop_assert!(was_readable || !read, "step {}", step);
            }
        }
        let Some(content) = world.contents.store.get(&key("other")) else {
            continue;
        };
        // Content that is later than the metadata has its own grant.
        let (newest, grant) = delivered.unwrap_or((version, None));
        let is_later = content.version > newest;
        for from in from.keys() {
            let reads = content.may_be_read_by(&Key::new(from, "r"), &key("other"));
            prop_assert!(
                is_later || !reads || may_read(from, grant),
                "step {}: {}",
                step,
                from
            );
        }
    }
    // At rest, exactly the Parents with a grant can read the newest content.
    delivered = stored;
    match stored {
        Some((version, grant)) => world.granted_head("other", version, grant),
        None => world.heads.delete(&key("other"), 99),
    }
    sleep(Duration::from_mins(1)).await;
    let content = world.contents.store.get(&key("other"));
    for (from, refers) in &from {
        let (key, parent) = (key("other"), Key::new(from, "r"));
        let found = content
            .as_ref()
            .filter(|it| it.may_be_read_by(&parent, &key));
        let expected = delivered.filter(|(_, grant)| may_read(from, *grant));
        if *refers {
            prop_assert_eq!(found.map(|it| it.version), expected.map(|it| it.0));
        }
    }
    Ok(())
}
