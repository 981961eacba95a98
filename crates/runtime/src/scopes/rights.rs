//! What may be written in a scope, which the API server is asked (`SelfSubjectAccessReview`).

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use tokio::time::timeout;
use tracing::debug;

use super::scope::{Place, Problem, Reason, Right, Rights};
use crate::failure::{brief, root_cause};

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
            Ok(Answer::Allowed | Answer::Undecided(_)) => {}
            Ok(Answer::Refused) => {
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

/// What the API server says of a right.
pub(crate) enum Answer {
    Allowed,
    Refused,
    /// An authorizer could not make up its mind, and none has said no: why.
    Undecided(String),
}

/// Whether the API server would let this client do that.
///
/// # Errors
/// Why it does not say.
pub(crate) async fn is_allowed(
    client: &Client,
    attributes: ResourceAttributes,
) -> Result<Answer, String> {
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
            Ok(match status.evaluation_error {
                _ if status.allowed => Answer::Allowed,
                Some(why) if status.denied != Some(true) => Answer::Undecided(brief(&why)),
                _ => Answer::Refused,
            })
        }
        Ok(Err(error)) => Err(root_cause(&error)),
        Err(_) => Err(format!(
            "no answer from the API server in {CHECK_TIMEOUT:?}"
        )),
    }
}
