//! What may be written in a scope, which the API server is asked (`SelfSubjectAccessReview`).

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use tokio::time::timeout;
use tracing::debug;

use super::scope::{Place, Problem, Reason, Right, Rights};
use crate::failure::root_cause;

/// How long the API server may take to say whether something is allowed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// What may be written in a namespace (`None`: in all), `None` if there is no answer.
pub(super) async fn review(
    client: &Client,
    rights: &[Right],
    namespace: Option<&str>,
) -> Option<Rights> {
    for right in rights {
        match is_allowed(client, right.attributes(namespace)).await {
            Ok(true) => {}
            Ok(false) => {
                let place = Place(namespace);
                let text = format!(
                    "not allowed to {right} in {place}: apply the ClusterRole in deploy/base and its binding"
                );
                return Some(Rights::Missing(Problem {
                    reason: Reason::Forbidden,
                    text,
                }));
            }
            Err(why) => {
                debug!(namespace, "cannot ask for rights: {why}");
                return None;
            }
        }
    }
    Some(Rights::Sufficient)
}

/// Whether the API server would let this client do that.
///
/// # Errors
/// Why it does not say.
pub(crate) async fn is_allowed(
    client: &Client,
    attributes: ResourceAttributes,
) -> Result<bool, String> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews = Api::<SelfSubjectAccessReview>::all(client.clone());
    let params = PostParams::default();
    match timeout(CHECK_TIMEOUT, reviews.create(&params, &review)).await {
        Ok(Ok(answer)) => {
            let status = answer.status.unwrap_or_default();
            // An authorizer that could not make up its mind has not said no.
            Ok(status.allowed || status.evaluation_error.is_some())
        }
        Ok(Err(error)) => Err(root_cause(&error)),
        Err(_) => Err(format!(
            "no answer from the API server in {CHECK_TIMEOUT:?}"
        )),
    }
}
