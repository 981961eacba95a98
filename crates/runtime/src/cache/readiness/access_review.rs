//! Permission checks with `SelfSubjectAccessReview`.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use super::namespace::{NamespaceName, Permission, Permissions, Problem, Reason};
use crate::{
    api::failure::{brief, root_cause},
    config::backoff::Backoff,
};

/// Timeout of a review.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval between two notifications of a restored permission. It doubles from the first value to the second, like the retry
/// backoff.
const TELL_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(1000));

/// Time without a missing permission, after a notification, that resets the interval between notifications. Longer than the
/// longest `Retry-After` that is honored.
const SETTLED: Duration = Duration::from_mins(1);

/// Rate limit for the notification that a missing permission has been restored.
///
/// The first notification is immediate. If the permission is missing again soon after, the next one is delayed by 1 s, then
/// twice as long each time.
///
/// A positive review does not prove that writes succeed: API servers or authorizers may disagree, and some permissions are not
/// reviewed. So a notification only retries the rejected writes.
#[derive(Default)]
pub(super) struct RestoreNotifier {
    lacks: bool,
    /// Time of the last notification, and the minimum interval until the next.
    told: Option<(Instant, Backoff)>,
}

impl RestoreNotifier {
    /// Records that the permission is missing.
    pub(super) fn found(&mut self) {
        let was_back =
            |(at, pauses): &(Instant, Backoff)| at.elapsed() > SETTLED.max(pauses.delay());
        if !self.lacks && self.told.as_ref().is_some_and(was_back) {
            self.told = None;
        }
        self.lacks = true;
    }

    /// Records a notification.
    pub(super) fn told(&mut self) {
        if !self.lacks {
            return;
        }
        let pauses = match self.told.take() {
            Some((_, mut pauses)) => {
                pauses.advance();
                pauses
            }
            None => Backoff::new(TELL_PAUSES.0, TELL_PAUSES.1),
        };
        *self = Self {
            lacks: false,
            told: Some((Instant::now(), pauses)),
        };
    }

    /// Waits until a notification is due.
    pub(super) async fn due(&self) {
        match &self.told {
            _ if !self.lacks => std::future::pending().await,
            Some((told, pauses)) => sleep_until(*told + pauses.delay()).await,
            None => {}
        }
    }

    /// Whether a notification is due.
    pub(super) fn is_due(&self) -> bool {
        let is_over = |(told, pauses): &(Instant, Backoff)| told.elapsed() >= pauses.delay();
        self.lacks && self.told.as_ref().is_none_or(is_over)
    }
}

/// Reviews `rights` in each of the namespaces (`None`: in all namespaces). Returns `None` without a response.
pub(super) async fn review(
    client: &Client,
    rights: &[Permission],
    namespaces: &[Option<String>],
) -> Option<Permissions> {
    for (namespace, right) in wanted(rights, namespaces) {
        match is_allowed(client, right.attributes(namespace)).await {
            Ok(Answer::Allowed | Answer::Undecided(_)) => {}
            Ok(Answer::Refused) => {
                let place = NamespaceName::of(&right.kind, namespace);
                let remedy = Permission::REMEDY;
                let text = format!("not allowed to {right} in {place}: {remedy}");
                return Some(Permissions::Missing(Problem {
                    reason: Reason::Forbidden,
                    text,
                }));
            }
            Err(why) => {
                debug!(namespace, "cannot review permissions: {why}");
                return None;
            }
        }
    }
    Some(Permissions::Sufficient)
}

/// Returns each right in each of the namespaces, and those to a cluster-scoped type once.
fn wanted<'a>(
    rights: &'a [Permission],
    namespaces: &'a [Option<String>],
) -> impl Iterator<Item = (Option<&'a str>, &'a Permission)> {
    let all = namespaces
        .iter()
        .enumerate()
        .flat_map(move |(at, namespace)| {
            rights
                .iter()
                .map(move |right| (at, namespace.as_deref(), right))
        });
    all.filter(|(at, _, right)| *at == 0 || !right.kind.is_cluster_scoped())
        .map(|(_, namespace, right)| (namespace, right))
}

/// Result of a review.
pub(crate) enum Answer {
    Allowed,
    Refused,
    /// No authorizer denied the request, and one failed with this error.
    Undecided(String),
}

/// Returns whether the API server would allow a request of this client.
///
/// # Errors
/// Returns why there is no result.
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
