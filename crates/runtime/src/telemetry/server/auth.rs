//! Authentication and authorization for metrics and state.
//!
//! The API server authenticates the token (`TokenReview`). It then authorizes the user to `get` the path, such as `/metrics`
//! (`SubjectAccessReview`). This follows controller-runtime's `filters.WithAuthenticationAndAuthorization`.
//!
//! Results are cached, so that most scrapes cost no request. The cache contains only digests of tokens.
//!
//! Any client can send any number of tokens, and each new token costs a review. So tokens that were valid before do not wait
//! for unknown tokens, and no peer waits for the tokens of another.

use crate::{
    config::app::App,
    telemetry::{log_once::OutageLog, state},
};
use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use ring::digest::{self, SHA256};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tracing::warn;

/// How long an approval is cached. A revoked token remains valid for this time.
const ALLOWED_TTL: Duration = Duration::from_mins(1);
/// How long a denial is cached. A new permission takes effect after this time.
const DENIED_TTL: Duration = Duration::from_secs(10);
/// Maximum number of cached results.
const CACHE_CAPACITY: usize = 1024;
/// Maximum number of concurrent reviews of tokens that were never valid.
const AT_ONCE: usize = 4;
/// Maximum number of these tokens per peer that are in review or wait for a review slot. Further tokens of the peer wait for
/// these.
const OF_ONE_PEER: usize = 2;
/// Maximum number of concurrent reviews of tokens that were valid before. They do not count towards [`AT_ONCE`].
const KNOWN_AT_ONCE: usize = 2;
/// Time limit of both reviews, including the wait for a review slot.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// A page that requires authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The metrics.
    Metrics,
    /// The internal state of the replica.
    State,
}

impl Page {
    /// Returns the path, which is also the non-resource URL of the permission.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Metrics => "/metrics",
            Self::State => state::PATH,
        }
    }

    /// Returns the suffix of the `ClusterRole` that grants the permission.
    fn role(self) -> &'static str {
        match self {
            Self::Metrics => "metrics-reader",
            Self::State => "state-reader",
        }
    }
}

/// The reason for refusing a page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request has no token.
    #[error("unauthorized: send `Authorization: Bearer TOKEN`")]
    NoToken,
    /// The API server rejects the token.
    #[error("unauthorized: the API server rejected this token")]
    InvalidToken,
    /// The user lacks the permission.
    #[error("forbidden: {0:?} may not get {path}; bind the ClusterRole {2}-{role} to it", path = .1.path(), role = .1.role())]
    NotAllowed(String, Page, &'static str),
    /// This controller may not create reviews.
    #[error(
        "this controller may not create tokenreviews and subjectaccessreviews: install the component metrics-auth"
    )]
    MayNotAsk,
    /// A review failed for another reason, such as a timeout.
    #[error("access review failed: try again later")]
    NoAnswer,
}

impl Refusal {
    /// Returns the status code of the response.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NoToken | Self::InvalidToken => StatusCode::UNAUTHORIZED,
            Self::NotAllowed(..) => StatusCode::FORBIDDEN,
            Self::MayNotAsk => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NoAnswer => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the header `WWW-Authenticate` (RFC 6750), if the refusal has one.
    #[must_use]
    pub fn challenge(&self) -> Option<&'static str> {
        match self {
            Self::NoToken => Some("Bearer"),
            Self::InvalidToken => Some(r#"Bearer error="invalid_token""#),
            _ => None,
        }
    }
}

/// Sends reviews to the API server and caches the results.
pub(crate) struct Auth {
    app: &'static App,
    client: Client,
    answers: Mutex<Answers>,
    turns: Semaphore,
    turns_of_the_known: Semaphore,
    turns_of_peers: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
    /// Causes of failed reviews, as logged.
    trouble: Mutex<OutageLog>,
}

impl Auth {
    /// Creates the authorizer, which sends reviews with `client`.
    #[must_use]
    pub(crate) fn new(app: &'static App, client: Client) -> Self {
        Self {
            app,
            client,
            answers: Mutex::default(),
            turns: Semaphore::new(AT_ONCE),
            turns_of_the_known: Semaphore::new(KNOWN_AT_ONCE),
            turns_of_peers: Mutex::default(),
            trouble: Mutex::default(),
        }
    }

    /// Checks whether the sender of these headers, at `peer`, may read `page`.
    ///
    /// # Errors
    /// The reason for the refusal.
    pub(crate) async fn check(
        &self,
        page: Page,
        peer: IpAddr,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let token = bearer(headers).ok_or(Refusal::NoToken)?;
        let mut asked = digest::Context::new(&SHA256);
        asked.update(page.path().as_bytes());
        // An unambiguous separator: no path ends with a space, and no token begins with one.
        asked.update(b" ");
        asked.update(token.as_bytes());
        let mut id = [0; 32];
        id.copy_from_slice(asked.finish().as_ref());
        if let Some(answer) = self.answers.lock().get(&id) {
            return answer;
        }
        let was_good = self.answers.lock().was_good(&id);
        let reviewed = timeout(REVIEW_TIMEOUT, async {
            // The semaphores are never closed.
            if was_good {
                let _turn = self.turns_of_the_known.acquire().await;
                self.review(page, token).await
            } else {
                let own = self.turns_of(peer);
                let (_own, _turn) = (own.acquire().await, self.turns.acquire().await);
                self.review(page, token).await
            }
        });
        let cause = match reviewed.await {
            Ok(Ok(answer)) => {
                // For an invalid token only the first of the two reviews was sent. The second one may still fail.
                if answer != Err(Refusal::InvalidToken) {
                    self.trouble.lock().clear();
                }
                self.answers.lock().keep(id, answer.clone());
                return answer;
            }
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403) => {
                self.say(&status.message);
                return Err(Refusal::MayNotAsk);
            }
            // The error's text contains a position that differs each time.
            Ok(Err(kube::Error::SerdeError(_))) => "invalid review in the response".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer in {REVIEW_TIMEOUT:?}"),
        };
        self.say(&cause);
        Err(Refusal::NoAnswer)
    }

    /// Returns the semaphore of `peer`. Unused semaphores are removed, so there are at most as many as connections.
    fn turns_of(&self, peer: IpAddr) -> Arc<Semaphore> {
        let mut peers = self.turns_of_peers.lock();
        peers.retain(|_, turns| Arc::strong_count(turns) > 1);
        let turns = peers.entry(peer);
        Arc::clone(turns.or_insert_with(|| Arc::new(Semaphore::new(OF_ONE_PEER))))
    }

    async fn review(&self, page: Page, token: &str) -> kube::Result<Result<(), Refusal>> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let reviews = Api::<TokenReview>::all(self.client.clone());
        let reviewed = reviews.create(&PostParams::default(), &review).await?;
        let status = reviewed.status.unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(Err(Refusal::InvalidToken));
        };
        let name = user.username.clone().unwrap_or_default();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(page.path().to_owned()),
                    verb: Some("get".to_owned()),
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews = Api::<SubjectAccessReview>::all(self.client.clone());
        let reviewed = reviews.create(&PostParams::default(), &review).await?;
        Ok(match reviewed.status {
            Some(status) if status.allowed => Ok(()),
            _ => Err(Refusal::NotAllowed(name, page, self.app.name)),
        })
    }

    /// Logs a failed review, but not at every scrape.
    fn say(&self, cause: &str) {
        if let Some(lasting) = self.trouble.lock().is_due(cause) {
            warn!("access review failed: {cause}{lasting}");
        }
    }
}

/// Returns the bearer token, if the headers contain one.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

type Id = [u8; 32];

/// Results, each with its time of expiry. An expired approval is kept to recognize a token that was valid.
#[derive(Default)]
struct Answers(HashMap<Id, (Instant, Result<(), Refusal>)>);

impl Answers {
    fn get(&self, id: &Id) -> Option<Result<(), Refusal>> {
        let (until, answer) = self.0.get(id)?;
        (Instant::now() < *until).then(|| answer.clone())
    }

    /// Whether the last result was an approval, even if it has expired.
    fn was_good(&self, id: &Id) -> bool {
        matches!(self.0.get(id), Some((_, Ok(()))))
    }

    /// Stores a result. A full cache evicts expired denials first, then all denials, then expired approvals. A denial never
    /// evicts an approval, so invalid tokens cannot cause new reviews of valid ones.
    fn keep(&mut self, id: Id, answer: Result<(), Refusal>) {
        let now = Instant::now();
        if self.0.len() >= CACHE_CAPACITY {
            self.0
                .retain(|_, (until, answer)| answer.is_ok() || now < *until);
        }
        if self.0.len() >= CACHE_CAPACITY {
            self.0.retain(|_, (_, answer)| answer.is_ok());
        }
        if self.0.len() >= CACHE_CAPACITY && answer.is_ok() {
            self.0.retain(|_, (until, _)| now < *until);
        }
        if self.0.len() < CACHE_CAPACITY || self.0.contains_key(&id) {
            let until = now
                + if answer.is_ok() {
                    ALLOWED_TTL
                } else {
                    DENIED_TTL
                };
            self.0.insert(id, (until, answer));
        }
    }
}

#[cfg(test)]
mod tests;
