//! The replica's end of its connections: transports in place of hyper's. Between two steps of the replica, the world takes out
//! its requests, and puts in responses with their arrival time.
//!
//! As with the real transports, a request may wait for its connection, and the fence is checked again afterwards. Connecting
//! and silence have a time limit. Dropping a response ends its connection.

use std::{
    collections::{BTreeMap, VecDeque},
    io::ErrorKind,
    mem,
    sync::Arc,
    time::Duration,
};

use futures::stream::{self, BoxStream, StreamExt as _};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::{Body, DynBody};
use operator_runtime::{
    Config,
    internals::{READ_TIMEOUT, Transport, complete_status, recheck_before_sending},
};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};
use tower::{BoxError, ServiceExt as _, service_fn};

use super::trace::Role;

/// Shortest latency of one direction. In this time, no action of a replica can affect another component.
pub const SHORTEST: Duration = Duration::from_millis(10);

/// Time to connect to a running server: two round trips.
const CONNECTING: Duration = SHORTEST.saturating_mul(4);

/// Time limits of a client's connector.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connect: Duration,
    pub read: Duration,
    /// Unacknowledged data breaks the connection after this time (`TCP_USER_TIMEOUT`, plus the time to the first
    /// retransmission).
    pub send: Duration,
}

impl Limits {
    /// Returns the limits that `client/cluster.rs` of the runtime sets.
    pub fn of(config: &Config, role: Role) -> Self {
        let election = &config.leader_election;
        let call = (election.renew_deadline / 2).max(Duration::from_secs(1));
        let send = longest_way(election.lease_duration, election.renew_deadline);
        match role {
            Role::Work => Self {
                connect: Duration::from_secs(5),
                read: READ_TIMEOUT,
                send,
            },
            Role::Lease => Self {
                connect: call,
                read: election.lease_duration * 2,
                send,
            },
        }
    }
}

/// Returns two fifths of the time between the end of a term and the end of the Lease, at least 600 ms.
pub fn longest_way(lease_duration: Duration, renew_deadline: Duration) -> Duration {
    let between = lease_duration.saturating_sub(renew_deadline);
    (between * 2 / 5).max(Duration::from_millis(600))
}

/// Connections of both clients of one process.
#[derive(Clone, Default)]
pub struct Wire(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    last: u64,
    sent: Vec<Sent>,
    open: BTreeMap<u64, Open>,
    given_up: Vec<u64>,
    /// By role.
    doors: [Door; 2],
}

/// State of new connections of one client.
#[derive(Default)]
struct Door {
    state: DoorState,
    /// Whether the next request can use an existing connection.
    connected: bool,
    changed: Arc<Notify>,
}

/// Outcome of connecting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoorState {
    #[default]
    Open,
    Refuses,
    Hangs,
}

/// A request that was passed to its connection.
#[derive(Debug)]
pub struct Sent {
    pub id: u64,
    pub role: Role,
    pub limits: Limits,
    pub begun: Instant,
    pub at: Instant,
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A request without a complete response.
#[derive(Default)]
struct Open {
    pieces: VecDeque<(Instant, Piece)>,
    came: Arc<Notify>,
}

/// Part of a response.
#[derive(Clone, Debug)]
pub enum Piece {
    Head(u16, Vec<(&'static str, String)>),
    Data(Bytes),
    End,
    Broken(ErrorKind),
}

impl Wire {
    /// Takes the requests that were sent since the last call, and the dropped requests.
    pub fn take(&self) -> (Vec<Sent>, Vec<u64>) {
        let mut state = self.0.lock();
        (mem::take(&mut state.sent), mem::take(&mut state.given_up))
    }

    /// Schedules a piece for `at`, but not before the pieces in front of it.
    pub fn put(&self, id: u64, at: Instant, piece: Piece) {
        let mut state = self.0.lock();
        if let Piece::Broken(_) = piece {
            // The next request has to connect.
            state
                .doors
                .iter_mut()
                .for_each(|door| door.connected = false);
        }
        if let Some(open) = state.open.get_mut(&id) {
            let last = open.pieces.back().map(|(at, _)| *at);
            open.pieces
                .push_back((last.map_or(at, |last| last.max(at)), piece));
            open.came.notify_one();
        }
    }

    /// Removes the pieces that would arrive after this instant.
    pub fn cut(&self, id: u64, after: Instant) {
        if let Some(open) = self.0.lock().open.get_mut(&id) {
            open.pieces.retain(|(at, _)| *at <= after);
        }
    }

    /// Sets the outcome of connecting from now on.
    pub fn set_door(&self, role: Role, to: DoorState) {
        let mut state = self.0.lock();
        let door = &mut state.doors[role as usize];
        if mem::replace(&mut door.state, to) != to {
            door.changed.notify_waiters();
        }
    }

    /// Returns the transport of one client.
    pub fn transport(&self, role: Role, limits: Limits) -> Transport {
        let wire = self.clone();
        service_fn(move |request| wire.clone().exchange(role, limits, request)).boxed()
    }

    async fn exchange(
        self,
        role: Role,
        limits: Limits,
        request: Request<Body>,
    ) -> Result<Response<Box<DynBody>>, BoxError> {
        let begun = Instant::now();
        self.connect(role, limits).await?;
        let (parts, body) = recheck_before_sending(request).into_parts();
        // Reading the body checks the fence again.
        let body = body.collect().await?.to_bytes();
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut answer = {
            let mut state = self.0.lock();
            state.last += 1;
            let (id, at) = (state.last, Instant::now());
            state.sent.push(Sent {
                id,
                role,
                limits,
                begun,
                at,
                method: parts.method,
                path: path.to_owned(),
                headers: parts.headers,
                body,
            });
            let open = Open::default();
            let came = Arc::clone(&open.came);
            state.open.insert(id, open);
            Answer {
                wire: self.clone(),
                id,
                came,
                heard: at,
                limit: limits.read,
                is_over: false,
            }
        };
        let Piece::Head(code, headers) = answer.next().await? else {
            return Err(broken(ErrorKind::InvalidData));
        };
        let mut response = Response::builder().status(code);
        for (name, value) in headers {
            response = response.header(name, value);
        }
        complete_status(response.body(answer.body())?).await
    }

    /// Waits for a connection.
    async fn connect(&self, role: Role, limits: Limits) -> Result<(), BoxError> {
        let until = Instant::now() + limits.connect;
        loop {
            let (state, connected, changed) = {
                let state = self.0.lock();
                let door = &state.doors[role as usize];
                (door.state, door.connected, Arc::clone(&door.changed))
            };
            match state {
                DoorState::Open if connected => return Ok(()),
                DoorState::Open => {
                    sleep(CONNECTING).await;
                    self.0.lock().doors[role as usize].connected = true;
                }
                DoorState::Refuses => {
                    sleep(SHORTEST * 2).await;
                    return Err(broken(ErrorKind::ConnectionRefused));
                }
                DoorState::Hangs => {
                    let changed = timeout_at(until, changed.notified()).await;
                    changed.map_err(|_| broken(ErrorKind::TimedOut))?;
                }
            }
        }
    }
}

/// A response in flight. Dropping it ends its connection.
struct Answer {
    wire: Wire,
    id: u64,
    came: Arc<Notify>,
    heard: Instant,
    limit: Duration,
    is_over: bool,
}

impl Answer {
    async fn next(&mut self) -> Result<Piece, BoxError> {
        loop {
            let now = Instant::now();
            let due = {
                let mut state = self.wire.0.lock();
                let pieces = state.open.get_mut(&self.id).map(|open| &mut open.pieces);
                let first = pieces.as_ref().and_then(|pieces| pieces.front());
                let due = first.map(|(at, _)| *at);
                match pieces {
                    Some(pieces) if due.is_some_and(|due| due <= now) => {
                        let piece = pieces.pop_front().map(|(_, piece)| piece);
                        drop(state);
                        self.heard = now;
                        return self.came(piece);
                    }
                    _ => due,
                }
            };
            let silent = self.heard + self.limit;
            if silent <= now {
                return Err(broken(ErrorKind::TimedOut));
            }
            // Pieces in flight may be removed before they arrive.
            let until = due.map_or(silent, |due| due.min(silent));
            _ = timeout_at(until, self.came.notified()).await;
        }
    }

    fn came(&mut self, piece: Option<Piece>) -> Result<Piece, BoxError> {
        match piece {
            Some(Piece::Broken(kind)) => {
                self.is_over = true;
                Err(broken(kind))
            }
            Some(Piece::End) => {
                self.is_over = true;
                Ok(Piece::End)
            }
            Some(piece) => Ok(piece),
            None => Err(broken(ErrorKind::UnexpectedEof)),
        }
    }

    fn body(self) -> StreamBody<BoxStream<'static, Result<Frame<Bytes>, BoxError>>> {
        let pieces = stream::unfold(self, |mut answer| async {
            if answer.is_over {
                return None;
            }
            match answer.next().await {
                Ok(Piece::Data(data)) => Some((Ok(Frame::data(data)), answer)),
                Ok(_) => None,
                Err(error) => {
                    answer.is_over = true;
                    Some((Err(error), answer))
                }
            }
        });
        StreamBody::new(pieces.boxed())
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let mut state = self.wire.0.lock();
        state.open.remove(&self.id);
        state.given_up.push(self.id);
    }
}

fn broken(kind: ErrorKind) -> BoxError {
    std::io::Error::from(kind).into()
}
