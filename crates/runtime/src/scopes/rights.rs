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
    let reviews = Api::<SelfSubjectAccessReview>::all(client.clone());
    for Right {
        verb,
        kind,
        subresource,
    } in rights
    {
        let attributes = ResourceAttributes {
            namespace: namespace.map(str::to_owned),
            verb: Some((*verb).to_owned()),
            group: Some(kind.group.to_owned()),
            resource: Some(kind.plural.to_owned()),
            subresource: Some((*subresource).to_owned()).filter(|name| !name.is_empty()),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let params = PostParams::default();
        let answer = match timeout(CHECK_TIMEOUT, reviews.create(&params, &review)).await {
            Ok(Ok(answer)) => answer.status.unwrap_or_default(),
            Ok(Err(error)) => {
                debug!(namespace, "cannot ask for rights: {}", root_cause(&error));
                return None;
            }
            Err(_) => return None,
        };
        // An authorizer that could not make up its mind has not said no.
        if !answer.allowed && answer.evaluation_error.is_none() {
            let slash = if subresource.is_empty() { "" } else { "/" };
            let (place, resource) = (Place(namespace), kind.plural);
            let text = format!(
                "not allowed to {verb} {resource}{slash}{subresource} in {place}: apply the ClusterRole in deploy/base and \
                 its binding"
            );
            return Some(Rights::Missing(Problem {
                reason: Reason::Forbidden,
                text,
            }));
        }
    }
    Some(Rights::Sufficient)
}
