//! The conversion webhook of a CRD: whether the API server calls it as this program expects, and can convert with it.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};
use tokio::time::timeout;

use super::{
    cluster::text,
    verdict::{APPLY, LIMIT},
    webhooks::{self, Down},
};
use crate::api::{
    conversion::INJECT,
    failure::{brief, root_cause},
};

const NONE: &str = "None";
const WEBHOOK: &str = "Webhook";

/// Time limit of a read. The API server waits for the webhook for 30 s.
const PATIENCE: Duration = Duration::from_secs(LIMIT.as_secs() / 2);

/// Returns why an object cannot be read in a version, with a fix.
pub(super) async fn problem(
    client: &Client,
    ours: &CustomResourceDefinition,
    theirs: &DynamicObject,
) -> Option<String> {
    let (our_strategy, their_strategy) = (strategy_of(ours), strategy(theirs));
    if let Some(mismatch) = mismatch(our_strategy, their_strategy) {
        return Some(mismatch);
    }
    if their_strategy != WEBHOOK {
        return None;
    }
    let config = &theirs.data["spec"]["conversion"]["webhook"]["clientConfig"];
    if let Some(why) = webhooks::down(client, config).await {
        return Some(unavailable(&why, theirs));
    }
    // An object that is stored in a former version is converted into the stored one as well.
    for version in ours.spec.versions.iter().filter(|it| it.served) {
        let failure = timeout(PATIENCE, read(client, ours, &version.name)).await;
        let failure = failure.unwrap_or_else(|_| Some(format!("no answer in {PATIENCE:?}")));
        if let Some(why) = failure {
            return Some(format!("objects cannot be read in {}: {why}", version.name));
        }
    }
    None
}

fn strategy_of(crd: &CustomResourceDefinition) -> &str {
    let conversion = crd.spec.conversion.as_ref();
    conversion.map_or(NONE, |conversion| &conversion.strategy)
}

fn strategy(crd: &DynamicObject) -> &str {
    match text(&crd.data["spec"]["conversion"]["strategy"]) {
        "" => NONE,
        strategy => strategy,
    }
}

/// Returns the effect of different strategies.
fn mismatch(ours: &str, theirs: &str) -> Option<String> {
    match (ours, theirs) {
        (WEBHOOK, NONE) => Some(format!(
            "its conversion strategy is None, and this program's is Webhook: objects in other versions lack fields, and an \
             update deletes them: {APPLY}"
        )),
        (NONE, WEBHOOK) => Some(format!(
            "its conversion strategy is Webhook, and this program's is None: without the webhook of another release, objects in \
             other versions cannot be read: {APPLY}"
        )),
        _ => None,
    }
}

fn unavailable(down: &Down, theirs: &DynamicObject) -> String {
    let mend = match (down, theirs.annotations().get(INJECT)) {
        (Down::NoCaBundle, Some(certificate)) => format!(
            "check that cert-manager has issued the Certificate {} (annotation {INJECT}), and that its cainjector runs",
            brief(certificate)
        ),
        (Down::NoCaBundle, None) => {
            format!("set it, or the annotation {INJECT}: {APPLY}")
        }
        (Down::Service(_), _) => format!("check that it runs, or {APPLY}"),
    };
    format!(
        "objects in other versions cannot be read: its conversion webhook is not available: {down}; {mend}"
    )
}

/// Reads one object in a version, into which the API server converts it. Returns why that fails. Nothing is known if the
/// permission is missing.
async fn read(client: &Client, crd: &CustomResourceDefinition, version: &str) -> Option<String> {
    let spec = &crd.spec;
    let kind = GroupVersionKind::gvk(&spec.group, version, &spec.names.kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, &spec.names.plural);
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let one = async {
        let listed = objects
            .list_metadata(&ListParams::default().limit(1))
            .await?;
        // The list may come from the API server's cache, whose objects were converted before. A get does not.
        if let Some(first) = listed.items.first() {
            let objects: Api<DynamicObject> = match first.namespace() {
                Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
                None => objects,
            };
            objects.get_metadata_opt(&first.name_any()).await?;
        }
        Ok(())
    };
    match one.await {
        Ok(()) => None,
        Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403) => None,
        Err(kube::Error::Api(status)) => Some(brief(&status.message)),
        Err(error) => Some(root_cause(&error)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::*;

    #[test]
    fn different_strategies_are_explained() {
        for same in [NONE, WEBHOOK] {
            assert_eq!(mismatch(same, same), None);
        }
        let lost = mismatch(WEBHOOK, NONE).unwrap();
        assert!(lost.contains("an update deletes them"), "{lost}");
        let down = mismatch(NONE, WEBHOOK).unwrap();
        assert!(down.contains("cannot be read"), "{down}");
        // The API server fills in the default.
        let crd = DynamicObject::new("a", &ApiResource::erase::<CustomResourceDefinition>(&()));
        assert_eq!(strategy(&crd.data(json!({ "spec": {} }))), NONE);
    }

    #[test]
    fn a_missing_ca_names_its_certificate() {
        let mut crd = DynamicObject::new("a", &ApiResource::erase::<CustomResourceDefinition>(&()));
        let set = unavailable(&Down::NoCaBundle, &crd);
        assert!(set.contains("set it, or the annotation"), "{set}");
        crd.annotations_mut()
            .insert(INJECT.to_owned(), "a/b".to_owned());
        let issued = unavailable(&Down::NoCaBundle, &crd);
        assert!(
            issued.contains("has issued the Certificate a/b"),
            "{issued}"
        );
        let service = unavailable(
            &Down::Service("its Service a/b does not exist".into()),
            &crd,
        );
        assert!(
            service.contains("does not exist; check that it runs"),
            "{service}"
        );
    }
}
