//! What may be written in a scope, which the API server is asked (`SelfSubjectAccessReview`).

use std::{sync::Arc, time::Duration};

use futures::FutureExt as _;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::{
    Place, Scopes,
    scope::{Problem, Reason},
};
use crate::{Kind, failure::root_cause};

/// Between two checks of a scope's rights: growing from the first to the second while there is cause for them.
const CHECK_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// How long the API server may take to say whether something is allowed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// To do this to objects of a kind, or to a subresource of them where that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// `create`, `patch`, …
    pub verb: &'static str,
    /// Of what.
    pub kind: Kind,
    /// `status`, or empty.
    pub subresource: &'static str,
}

/// What is known of all rights that are needed in a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    Unknown,
    Sufficient,
    Missing(Problem),
}

impl Scopes {
    /// Checks the rights of a scope whenever there is cause to; for ever.
    pub async fn check_rights(self: Arc<Self>, scope: usize, client: Client) {
        let namespace = self.namespace(scope);
        loop {
            self.checks[scope].notified().await;
            let mut pause = CHECK_PAUSES.0;
            loop {
                let rights = review(&client, &self.needs.rights, namespace.as_deref()).await;
                let missing = self.learn(scope, rights);
                // Refused writes within the pause are one cause for the next check, not many.
                sleep(pause).await;
                pause = (pause * 2).min(CHECK_PAUSES.1);
                if !missing && !self.is_called(scope) {
                    break;
                }
            }
        }
    }

    /// Takes in what a check said, `None` if there was no answer; true if a right is missing.
    pub(super) fn learn(&self, scope: usize, answer: Option<Rights>) -> bool {
        let mut missing = false;
        self.update(scope, |scope| {
            scope.checked = Some(Instant::now());
            let rights = match answer {
                // Nothing speaks against it: the first write will show.
                None if scope.rights == Rights::Unknown => Rights::Sufficient,
                None => scope.rights.clone(),
                Some(rights) => rights,
            };
            missing = matches!(rights, Rights::Missing(_));
            if rights == scope.rights {
                return;
            }
            match (&scope.rights, &rights) {
                (_, Rights::Missing(Problem { text, .. })) => {
                    warn!(namespace = scope.namespace, "{text}; trying again");
                }
                (Rights::Missing(_), _) => {
                    scope.regained += 1;
                    info!(
                        namespace = scope.namespace,
                        "has the rights that were missing"
                    );
                }
                _ => {}
            }
            scope.rights = rights;
        });
        missing
    }

    /// Whether a check has been called for; it is not, then.
    fn is_called(&self, scope: usize) -> bool {
        self.checks[scope].notified().now_or_never().is_some()
    }
}

/// What may be written in a namespace (`None`: in all), `None` if there is no answer.
async fn review(client: &Client, rights: &[Right], namespace: Option<&str>) -> Option<Rights> {
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
