//! Who may read metrics, and state: who the API server takes the bearer of a token for (`TokenReview`), and whether that user
//! may `get` the path, such as `/metrics` (`SubjectAccessReview`), as controller-runtime's
//! `filters.WithAuthenticationAndAuthorization` asks.
//!
//! Answers are kept for a while, so that a scrape costs the API server nothing as a rule. Of a token only a digest is kept.
//!
//! Anybody may send tokens, as many as he likes, and each costs a review. So a token that was good before does not wait
//! behind those that never were, and no peer waits behind another one's crowd.

use crate::{
    config::app::App,
    telemetry::{log::log_once::Causes, state},
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

/// How long a yes is kept: as long as a token that was taken back is still good for.
const ALLOWED_TTL: Duration = Duration::from_mins(1);
/// How long a no is kept: as long as somebody waits who has just been given the right.
const DENIED_TTL: Duration = Duration::from_secs(10);
/// How many answers are kept.
const CACHE_CAPACITY: usize = 1024;
/// How many tokens that were never good are reviewed at once; more wait.
const AT_ONCE: usize = 4;
/// How many of them may come from one peer, so that it holds at most as many places among those who wait for these turns.
const OF_ONE_PEER: usize = 2;
/// How many tokens that were good before are reviewed at once, beside the others.
const KNOWN_AT_ONCE: usize = 2;
/// How long both reviews may take, the wait for one's turn included.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(5);

/// What not everybody may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The metrics.
    Metrics,
    /// What the replica is about.
    State,
}

impl Page {
    /// The path, which is what the right is to.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Metrics => "/metrics",
            Self::State => state::PATH,
        }
    }

    /// The end of the name of the `ClusterRole` that has the right.
    fn role(self) -> &'static str {
        match self {
            Self::Metrics => "metrics-reader",
            Self::State => "state-reader",
        }
    }
}

/// Why somebody does not get to see a page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody knows who it is.
    #[error("unauthorized: send `Authorization: Bearer TOKEN`")]
    NoToken,
    /// The API server does not take the token.
    #[error("unauthorized: the API server does not take this token")]
    InvalidToken,
    /// That user has no right to.
    #[error("forbidden: {0:?} may not get {path}; bind the ClusterRole {2}-{role} to it", path = .1.path(), role = .1.role())]
    NotAllowed(String, Page, &'static str),
    /// This controller may not ask.
    #[error(
        "this controller may not create tokenreviews and subjectaccessreviews: apply deploy/components/metrics-auth"
    )]
    MayNotAsk,
    /// The API server cannot be asked.
    #[error("the API server cannot be asked who may read this")]
    NoAnswer,
}

impl Refusal {
    /// The status code of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NoToken | Self::InvalidToken => StatusCode::UNAUTHORIZED,
            Self::NotAllowed(..) => StatusCode::FORBIDDEN,
            Self::MayNotAsk => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NoAnswer => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The header `WWW-Authenticate`, where there is to be one (RFC 6750).
    #[must_use]
    pub fn challenge(&self) -> Option<&'static str> {
        match self {
            Self::NoToken => Some("Bearer"),
            Self::InvalidToken => Some(r#"Bearer error="invalid_token""#),
            _ => None,
        }
    }
}

/// Asks the API server, and remembers what it said.
pub struct Auth {
    app: &'static App,
    client: Client,
    answers: Mutex<Answers>,
    turns: Semaphore,
    turns_of_the_known: Semaphore,
    turns_of_peers: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
    /// What went wrong last, as said in the log.
    trouble: Mutex<Causes>,
}

impl Auth {
    /// Asks through `client`.
    #[must_use]
    pub fn new(app: &'static App, client: Client) -> Self {
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

    /// Whether who sent these headers, from `peer`, may read `page`.
    ///
    /// # Errors
    /// Why not.
    pub async fn check(
        &self,
        page: Page,
        peer: IpAddr,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let token = bearer(headers).ok_or(Refusal::NoToken)?;
        let mut asked = digest::Context::new(&SHA256);
        asked.update(page.path().as_bytes());
        // No path ends in a blank, and no token begins with one.
        asked.update(b" ");
        asked.update(token.as_bytes());
        let mut id = [0; 32];
        id.copy_from_slice(asked.finish().as_ref());
        if let Some(answer) = self.answers.lock().get(&id) {
            return answer;
        }
        let was_good = self.answers.lock().was_good(&id);
        let reviewed = timeout(REVIEW_TIMEOUT, async {
            // Semaphores that are never closed.
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
                // Of a token that nobody knows, half is asked: that says nothing of the other half.
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
            // Where it differs from what it should be is another place each time.
            Ok(Err(kube::Error::SerdeError(_))) => "what came is no review".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer in {REVIEW_TIMEOUT:?}"),
        };
        self.say(&cause);
        Err(Refusal::NoAnswer)
    }

    /// The turns that `peer` may have. There are at most as many peers as connections.
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

    /// Not at every scrape.
    fn say(&self, cause: &str) {
        if let Some(lasting) = self.trouble.lock().is_due(cause) {
            warn!("cannot ask the API server who may read metrics: {cause}{lasting}");
        }
    }
}

/// The token, where there is one.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

type Id = [u8; 32];

/// Answers, and until when they hold. A yes is remembered beyond that.
#[derive(Default)]
struct Answers(HashMap<Id, (Instant, Result<(), Refusal>)>);

impl Answers {
    fn get(&self, id: &Id) -> Option<Result<(), Refusal>> {
        let (until, answer) = self.0.get(id)?;
        (Instant::now() < *until).then(|| answer.clone())
    }

    /// Whether the last answer was a yes, however long ago.
    fn was_good(&self, id: &Id) -> bool {
        matches!(self.0.get(id), Some((_, Ok(()))))
    }

    /// Where there is no room left, a no makes way for a yes: whoever sends made-up tokens does not make those of others be
    /// reviewed again. Then what held once makes way for what holds.
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
