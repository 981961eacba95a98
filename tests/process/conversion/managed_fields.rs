//! `migrate` and `metadata.managedFields`.

use std::io::{Read as _, Write as _};

use super::*;

const APPLY: &str = "apply --server-side --field-manager=user -f -";

impl World {
    /// Applies the texts of `applied` as `user` in this version.
    async fn apply_as_user(&self, version: &str, spec: &Value) {
        let object = greeting("applied", version, spec).to_string();
        self.kubectl_stdin(APPLY, &object).await;
    }

    /// Returns the managers of an object with their operations and fields. All have the current version.
    async fn managers(&self, name: &str) -> BTreeMap<String, Value> {
        let object = self.api(CURRENT).get(name).await.unwrap();
        let entries = object.metadata.managed_fields.unwrap().into_iter();
        let entries = entries.map(|entry| {
            assert_eq!(
                entry.api_version.as_deref(),
                Some("example.com/v1"),
                "{entry:?}"
            );
            let (manager, operation) = (entry.manager.unwrap(), entry.operation.unwrap());
            (format!("{manager} {operation}"), entry.fields_v1.unwrap().0)
        });
        entries.collect()
    }

    /// Returns the number of reviews that the first webhook has answered.
    async fn reviews(&self) -> u64 {
        let addr = self.webhooks[0].http_addr().await;
        let text = tokio::task::spawn_blocking(move || {
            let mut stream = std::net::TcpStream::connect(addr).unwrap();
            let request = b"GET /metrics HTTP/1.1\r\nHost: it\r\nConnection: close\r\n\r\n";
            stream.write_all(request).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let text = text.await.unwrap();
        let mut lines = text.lines();
        let count = lines.find_map(|line| line.strip_prefix("greeter_conversion_seconds_count "));
        count.unwrap().parse().unwrap()
    }

    /// Writes the status in the current version. Returns the number of reviews of that.
    async fn reviews_of_a_status(&self, n: u32) -> u64 {
        let before = self.reviews().await;
        let patch = Patch::Merge(json!({ "status": { "observedGeneration": n } }));
        let api = self.api(CURRENT);
        let params = PatchParams::default();
        api.patch_status("applied", &params, &patch).await.unwrap();
        self.reviews().await - before
    }
}

/// After `migrate`, no entry of `managedFields` has the former version, and each manager has kept its fields. A write in
/// the stored version then causes no review. The former version can be removed, and its manager can apply the new version.
#[tokio::test(flavor = "multi_thread")]
async fn migrate_rewrites_the_managers() {
    let mut world = World::start().await;
    world.install_former_only().await;
    world.apply_as_user(FORMER, &json!({ "text": "Hi" })).await;
    world
        .create(&greeting("created", FORMER, &json!({ "text": "Hi" })))
        .await;
    world.start_webhook().await;
    world.install_both().await;
    let twin = greeting("twin", CURRENT, &json!({ "texts": { "en": "Hi" } }));
    world.kubectl_stdin(APPLY, &twin.to_string()).await;
    let add = Patch::Merge(json!({ "spec": { "texts": { "de": "Hallo" } } }));
    let other = PatchParams {
        field_manager: Some("other".into()),
        ..PatchParams::default()
    };
    let api = world.api(CURRENT);
    api.patch("applied", &other, &add).await.unwrap();

    world.migrate().await;
    assert_eq!(world.stored_versions().await, [CURRENT]);
    let text = json!({ "f:spec": { "f:texts": { "f:en": {} } } });
    let added = json!({ "f:spec": { "f:texts": { "f:de": {} } } });
    let managers = world.managers("applied").await;
    assert_eq!(managers["user Apply"], text);
    assert_eq!(
        managers["user Apply"],
        world.managers("twin").await["user Apply"]
    );
    assert_eq!(managers["other Update"], added);
    let created = world.managers("created").await;
    assert_eq!(created["kubectl-create Update"], text);
    assert!(world.doctor().await.starts_with("ok CRD"));

    // An object that is stored in the new version, with an entry of the former one.
    world.apply_as_user(FORMER, &json!({ "text": "Hey" })).await;
    assert_eq!(world.stored_versions().await, [CURRENT]);
    // The API server keeps no copies of objects in a version that it does not serve, so only managedFields need conversions.
    world.install_without(FORMER, false).await;
    assert!(world.reviews_of_a_status(1).await > 0);
    world.migrate().await;
    // The API server may still end its work for that version.
    let mut generation = 1;
    eventually(DEADLINE, "a write without a review", async || {
        generation += 1;
        match world.reviews_of_a_status(generation).await {
            0 => Ok(()),
            reviews => Err(reviews),
        }
    })
    .await;
    let managers = world.managers("applied").await;
    assert_eq!(managers["user Apply"], text);
    assert_eq!(managers["other Update"], added);

    // Nothing is written without need.
    let version = || async { api.get("applied").await.unwrap().metadata.resource_version };
    let before = version().await;
    world.migrate().await;
    assert_eq!(version().await, before);

    world.kill_webhook();
    let none =
        Patch::Merge(json!({ "spec": { "conversion": { "strategy": "None", "webhook": null } } }));
    world.patch_crd(&none).await;
    world.install_without(FORMER, true).await;
    let texts = |texts| json!({ "texts": texts });
    world
        .apply_as_user(CURRENT, &texts(json!({ "en": "Ho", "fr": "Salut" })))
        .await;
    // It removes the field that it owned, and no other one.
    world
        .apply_as_user(CURRENT, &texts(json!({ "fr": "Salut" })))
        .await;
    let spec = world.get("applied", CURRENT).await["spec"].clone();
    assert_eq!(spec, texts(json!({ "de": "Hallo", "fr": "Salut" })));
}
