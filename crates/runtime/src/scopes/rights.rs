//! What may be written in a scope, which the API server is asked (`SelfSubjectAccessReview`).

use std::time::Duration;

use futures::FutureExt as _;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use super::scope::{Place, Problem, Reason, Right, Rights};
use crate::failure::{brief, root_cause};

/// How long the API server may take to say whether something is allowed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two times that it is said that a right is back which no review has found to be missing: growing from the first, as the
/// backoff of what is refused does.
const UNSEEN_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(1000));

/// What has not been refused again so long after it was said that the right is back: it was.
const SETTLED: Duration = Duration::from_secs(30);

/// A right that something was refused for and that no review has found to be missing: it came back in between, is none of those that
/// are reviewed, or two authorizers disagree. As nobody can tell which, what was refused is tried at once, and where it is refused
/// again, ever later.
pub(super) struct Unseen {
    lacks: bool,
    last_told: Option<Instant>,
    pause: Duration,
}

impl Default for Unseen {
    fn default() -> Self {
        Self {
            lacks: false,
            last_told: None,
            pause: UNSEEN_PAUSES.0,
        }
    }
}

impl Unseen {
    /// Something was refused for want of a right.
    pub fn refused(&mut self) {
        if !self.lacks && self.last_told.is_some_and(|told| told.elapsed() > SETTLED) {
            *self = Self::default();
        }
        self.lacks = true;
    }

    /// It has been said that the right is back.
    pub fn told(&mut self) {
        let pause = self.last_told.map_or(self.pause, |_| self.pause * 2);
        *self = Self {
            lacks: false,
            last_told: Some(Instant::now()),
            pause: pause.min(UNSEEN_PAUSES.1),
        };
    }

    /// When it is to be said that the right is back, if a review does not find that it is missing.
    pub async fn due(&self) {
        match self.last_told {
            _ if !self.lacks => std::future::pending().await,
            Some(told) => sleep_until(told + self.pause).await,
            None => {}
        }
    }

    pub fn is_due(&self) -> bool {
        self.due().now_or_never().is_some()
    }
}

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
