//! Writes of an object that leaves the installation while it is reconciled.

use super::*;

/// The new installation carries out the rest. Without the check, both would write the `ConfigMap`.
#[tokio::test]
async fn nothing_is_written_after_the_watch_shows_another_installation() {
    let server = Server::default();
    let mut wish = wish(&["example.com/ours"], 2);
    let harness = harness(&server, &wish, Some(&map("wish", "a")));
    let Granter { wishes, maps, .. } = harness.reconciler();
    let (key, seen) = (key(), wishes.store().get(&key()).unwrap());
    let cx = harness.context(&key, &seen);
    let actual = maps.store().get(&key).unwrap();
    wish["metadata"]["resourceVersion"] = "5".into();
    wish["metadata"]["labels"] = json!({ "example.com/installation": "canary" });
    harness.apply(wishes.store(), object(&wish));

    let (other, status) = (key.sibling("other"), Status::default());
    let patch = json!({ "data": { "text": "b" } });
    let step = Step::of::<Dependent<Data>>("patch", &key, patch.clone());
    let patched = maps.patch(&cx, &actual, &patch, step, |_| None).await;
    for done in [
        maps.create_owned(&cx, &other, json!({})).await.map(drop),
        patched.map(drop),
        maps.delete(&cx, &key, &actual).await,
        wishes.update_status(&cx, &seen, &status).await,
        wishes.verify_current(&cx, &seen).await,
        harness.reconciler().grant(&cx).await,
    ] {
        assert_eq!(done, Err(ApiError::Conflict));
    }
    assert_eq!(harness.reconcile(&key).await, Ok(Action::Done));
    assert!(harness.is_up_to_date(&key));
    assert_eq!(server.sent(), []);
    assert_eq!(harness.plan(&key), Ok(Vec::new()));
}

/// The watch may be behind: then the live read shows the label.
#[tokio::test]
async fn a_live_read_shows_the_other_installation() {
    let server = Server::default();
    let mut wish = wish(&["example.com/ours"], 2);
    let harness = harness(&server, &wish, None);
    let wishes = &harness.reconciler().wishes;
    let (key, seen) = (key(), wishes.store().get(&key()).unwrap());
    let cx = harness.context(&key, &seen);
    for (label, is_current) in [("canary", false), ("", true)] {
        wish["metadata"]["labels"] = json!({ "example.com/installation": label });
        *server.listed.lock() = vec![wish.clone()];
        let verified = wishes.verify_current(&cx, &seen).await;
        assert_eq!(verified.is_ok(), is_current, "{label}: {verified:?}");
    }
}
