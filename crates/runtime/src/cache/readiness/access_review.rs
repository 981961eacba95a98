//! What may be written in a scope, which the API server is asked (`SelfSubjectAccessReview`).

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use super::namespace::{Place, Problem, Reason, Right, Rights};
use crate::api::failure::{brief, root_cause};

/// How long the API server may take to say whether something is allowed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Between two times that it is told that a right is back: growing from the first, as the backoff of what is refused does.
const TELL_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(1000));

/// A right that has not been missing again so long after it was told to be back was so. Longer than the API server may ask for.
const SETTLED: Duration = Duration::from_mins(1);

/// A right that is missing, and when it is told that it is back: at once, and where it is missing again soon after that, ever later.
///
/// A review that finds it may be wrong: another API server that is behind has the last word, two authorizers disagree, or the right
/// is none of those that are reviewed. As nobody can tell, what was refused is tried again.
#[derive(Default)]
pub(super) struct Lacking {
    lacks: bool,
    /// When it was told last, and for how long after that it is not told.
    told: Option<(Instant, Duration)>,
}

impl Lacking {
    /// It is missing.
    pub fn found(&mut self) {
        let was_back = |(at, pause): &(Instant, Duration)| at.elapsed() > SETTLED.max(*pause);
        if !self.lacks && self.told.as_ref().is_some_and(was_back) {
            self.told = None;
        }
        self.lacks = true;
    }

    /// It has been told that it is back.
    pub fn told(&mut self) {
        if !self.lacks {
            return;
        }
        let pause = self
            .told
            .map_or(TELL_PAUSES.0, |(_, pause)| (pause * 2).min(TELL_PAUSES.1));
        *self = Self {
            lacks: false,
            told: Some((Instant::now(), pause)),
        };
    }

    /// When it may be told that it is back.
    pub async fn due(&self) {
        match self.told {
            _ if !self.lacks => std::future::pending().await,
            Some((told, pause)) => sleep_until(told + pause).await,
            None => {}
        }
    }

    /// Whether it may be by now.
    pub fn is_due(&self) -> bool {
        let is_over = |(told, pause): (Instant, Duration)| told.elapsed() >= pause;
        self.lacks && self.told.is_none_or(is_over)
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
