//! Labels that a selector requires.

use super::*;
use crate::api::select::Select;

/// Returns a harness that watches the `ConfigMaps` with the label `app=wishes`, and has none in its store.
fn selecting(server: &Server) -> Harness<Granter> {
    let harness = Harness::new(&APP, &server.client(), |builder| {
        let select = Select::labels("app=wishes");
        builder.program().select::<Dependent<Data>>(select);
        build(builder)
    });
    let wishes = &harness.reconciler().wishes;
    let wish = wish(&["example.com/ours"], 2);
    harness.apply(wishes.store(), object(&wish));
    harness
}

fn methods(sent: &[(Method, String, Value)]) -> Vec<&Method> {
    sent.iter().map(|(method, ..)| method).collect()
}

/// Otherwise the program would not see the objects that it creates.
#[tokio::test]
async fn a_manifest_gets_the_required_labels() {
    let server = Server::default();
    selecting(&server).reconcile(&key()).await.unwrap();
    let sent = server.sent();
    assert_eq!(methods(&sent), [&Method::POST]);
    assert_eq!(sent[0].2["metadata"]["labels"], json!({ "app": "wishes" }));
}

/// An object that has lost its label is not in the store, but exists. Its label is put back, if it is this object's.
#[tokio::test]
async fn a_lost_label_is_put_back() {
    let server = Server::default();
    *server.listed.lock() = vec![map("wish", "a")];
    *server.overruling.lock() = Some(map("wish", "a"));
    let harness = selecting(&server);
    harness.reconcile(&key()).await.unwrap();
    let sent = server.sent();
    assert_eq!(
        methods(&sent),
        [&Method::POST, &Method::GET, &Method::PATCH]
    );
    let patch = json!({ "metadata": { "uid": "map", "resourceVersion": "4", "labels": { "app": "wishes" } } });
    assert_eq!(sent[2].2, patch);
    let maps = &harness.reconciler().maps;
    assert!(maps.store().get(&key()).is_some(), "the response is stored");
}

/// The object may leave the installation while the lookup is awaited.
#[tokio::test]
async fn the_label_is_not_put_back_for_another_installation() {
    let server = Server::default();
    *server.listed.lock() = vec![map("wish", "a")];
    let harness = selecting(&server);
    let Granter { wishes, maps, .. } = harness.reconciler();
    let (key, seen) = (key(), wishes.store().get(&key()).unwrap());
    let cx = harness.context(&key, &seen);
    let mut moved = wish(&["example.com/ours"], 2);
    moved["metadata"]["resourceVersion"] = "5".into();
    moved["metadata"]["labels"] = json!({ "example.com/installation": "canary" });
    harness.apply(wishes.store(), object(&moved));
    let failed = maps.put_labels_back(&cx, &key).await.map(drop);
    assert_eq!(failed, Err(ApiError::Conflict));
    assert_eq!(methods(&server.sent()), [&Method::GET]);
}

#[tokio::test]
async fn an_unlabelled_object_of_another_controller_is_foreign() {
    let server = Server::default();
    *server.listed.lock() = vec![map("other", "a")];
    let failed = selecting(&server).reconcile(&key()).await.unwrap_err();
    assert_eq!(failed, ApiError::Foreign("ConfigMap", "w".to_owned()));
    assert_eq!(methods(&server.sent()), [&Method::POST, &Method::GET]);
}

/// The watch delivers an object that has its label, or is gone.
#[tokio::test]
async fn an_object_with_its_label_is_a_conflict() {
    let server = Server::default();
    let mut labelled = map("wish", "a");
    labelled["metadata"]["labels"] = json!({ "app": "wishes" });
    *server.listed.lock() = vec![labelled];
    let failed = selecting(&server).reconcile(&key()).await.unwrap_err();
    assert_eq!(failed, ApiError::Conflict);
}

/// A client that removes the label each time is delayed, as one that deletes the object.
#[tokio::test]
async fn repeated_removals_of_a_label_are_a_dispute() {
    let server = Server::default();
    *server.listed.lock() = vec![map("wish", "a")];
    *server.overruling.lock() = Some(map("wish", "a"));
    let harness = selecting(&server);
    let store = harness.reconciler().maps.store();
    for _ in 0..=AT_ONCE {
        harness.reconcile(&key()).await.unwrap();
        assert!(store.get(&key()).is_some());
        let mut object: Object<Dependent<Data>> = object(&map("wish", "a"));
        object.version = server.next_version();
        harness.delete(store, &object);
    }
    let failed = harness.reconcile(&key()).await.unwrap_err();
    assert!(matches!(failed, ApiError::Contested(..)), "{failed:?}");
}
