//! A proxy on loopback between clients and one API server or several: the network, the load balancer and the server's
//! own faults. A rule says which requests ([`Proxy::on`], by verb and resource in the audit log's words) and what
//! becomes of them: they are held until asked for, lost, late or changed, answered in the server's place, or cut,
//! before or after the server has carried them out; or the server's answer is truncated or corrupted. What it holds it
//! forwards even when the client has long given up, as a network does. Clients talk plain HTTP to it, and each request
//! brings its own credentials.

use std::{
    io,
    net::SocketAddr,
    os::fd::AsFd as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, stream};
use http::{
    HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING},
};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Bytes, Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use kube::{Client, Config, client::Body};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    task::AbortHandle,
    time::{sleep, timeout},
};

const DEADLINE: Duration = Duration::from_secs(20);

/// A proxy; dropped, it takes no new connections. It lives on the runtime of the test that started it.
pub struct Proxy {
    address: SocketAddr,
    line: Arc<Line>,
    listener: AbortHandle,
}

struct Line {
    servers: Vec<Client>,
    /// Which of them new connections go to, in turn.
    route: Mutex<Vec<usize>>,
    /// The first one that matches a request decides what becomes of it.
    rules: Mutex<Vec<Arc<Entry>>>,
    stalled: watch::Sender<bool>,
    /// Changed, it ends the connections that are open; true: by a reset.
    disconnected: watch::Sender<bool>,
    requests: Mutex<Vec<String>>,
}

type Reply = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// Where on its way a request is stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum At {
    /// Before the API server gets it.
    Server,
    /// After the API server has carried it out, before the client knows.
    Client,
}

/// An answer that is not the API server's.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub code: u16,
    /// The headers.
    pub headers: &'static [(&'static str, &'static str)],
    /// The body.
    pub body: &'static str,
    /// Whether the connection breaks after the body, before the answer's end.
    pub breaks_off: bool,
}

impl Answer {
    /// What claims to be JSON.
    pub const fn json(code: u16, body: &'static str) -> Self {
        Self {
            code,
            headers: &[("content-type", "application/json")],
            body,
            breaks_off: false,
        }
    }
}

/// A change of a request.
pub type Change = fn(&mut Request<Vec<u8>>);

enum Action {
    Hold(At, Mutex<Option<Hold>>),
    Lose,
    Change(Duration, Change),
    Answer(Answer),
    Cut(At),
    Truncate(usize),
    Corrupt,
}

struct Entry {
    verb: &'static str,
    resource: &'static str,
    nth: Option<usize>,
    action: Action,
    seen: AtomicUsize,
    hits: AtomicUsize,
}

impl Entry {
    /// Whether it is for this request, which is counted.
    fn matches(&self, verb: &str, resource: &str) -> bool {
        let is = |rule: &str, word: &str| rule == "*" || rule == word;
        if !is(self.verb, verb) || !is(self.resource, resource) {
            return false;
        }
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let hit = self.nth.is_none_or(|nth| nth == seen);
        self.hits.fetch_add(usize::from(hit), Ordering::Relaxed);
        hit
    }
}

/// The requests that a rule will be for; see [`Proxy::on`].
pub struct On<'a> {
    proxy: &'a Proxy,
    verb: &'static str,
    resource: &'static str,
    nth: Option<usize>,
}

impl On<'_> {
    /// Only the n-th of them from now on; 1 is the next.
    pub fn nth(mut self, nth: usize) -> Self {
        self.nth = Some(nth);
        self
    }

    /// The next of them, or the n-th, is held until asked for.
    pub fn hold(mut self, at: At) -> Held {
        self.nth.get_or_insert(1);
        let (arrived, has_arrived) = oneshot::channel();
        let (go, may_go) = oneshot::channel();
        let (done, is_done) = oneshot::channel();
        let hold = Hold {
            arrived,
            go: may_go,
            done,
        };
        self.rule(Action::Hold(at, Mutex::new(Some(hold))));
        Held {
            arrived: Some(has_arrived),
            go: Some(go),
            done: is_done,
        }
    }

    /// They never reach the API server, and nobody answers.
    pub fn lose(self) -> Rule {
        self.rule(Action::Lose)
    }

    /// They get to the API server so late, and changed.
    pub fn change(self, late: Duration, change: Change) -> Rule {
        self.rule(Action::Change(late, change))
    }

    /// They get this answer in the API server's place.
    pub fn answer(self, answer: Answer) -> Rule {
        self.rule(Action::Answer(answer))
    }

    /// The connection is closed on them, before or after the API server has carried them out.
    pub fn cut(self, at: At) -> Rule {
        self.rule(Action::Cut(at))
    }

    /// The connection is closed after so many bytes of the answer's body.
    pub fn truncate(self, bytes: usize) -> Rule {
        self.rule(Action::Truncate(bytes))
    }

    /// The byte in the middle of each piece of the answer's body is 0.
    pub fn corrupt(self) -> Rule {
        self.rule(Action::Corrupt)
    }

    fn rule(self, action: Action) -> Rule {
        let entry = Arc::new(Entry {
            verb: self.verb,
            resource: self.resource,
            nth: self.nth,
            action,
            seen: AtomicUsize::new(0),
            hits: AtomicUsize::new(0),
        });
        let mut rules = self.proxy.line.rules.lock().unwrap();
        rules.push(Arc::clone(&entry));
        Rule(entry)
    }
}

/// A rule that is in force, until [`Proxy::clear`].
pub struct Rule(Arc<Entry>);

impl Rule {
    /// How many requests it has been applied to.
    pub fn hits(&self) -> usize {
        self.0.hits.load(Ordering::Relaxed)
    }
}

struct Hold {
    arrived: oneshot::Sender<()>,
    go: oneshot::Receiver<()>,
    done: oneshot::Sender<StatusCode>,
}

/// One request that is held, or will be; dropped, the request is lost.
pub struct Held {
    arrived: Option<oneshot::Receiver<()>>,
    go: Option<oneshot::Sender<()>>,
    done: oneshot::Receiver<StatusCode>,
}

impl Held {
    /// Waits until the request is there.
    pub async fn arrived(&mut self) {
        let arrived = self.arrived.take().unwrap();
        timeout(DEADLINE, arrived)
            .await
            .expect("no such request")
            .unwrap();
    }

    /// Lets it pass, and waits for the API server's answer.
    pub async fn pass(mut self) -> StatusCode {
        self.go().await
    }

    /// The same, once.
    pub async fn go(&mut self) -> StatusCode {
        self.go.take().unwrap().send(()).unwrap();
        timeout(DEADLINE, &mut self.done)
            .await
            .expect("no answer")
            .unwrap()
    }
}

impl Proxy {
    /// A proxy to the API server that `config` names.
    pub async fn start(config: Config) -> Self {
        Self::balance([config]).await
    }

    /// A load balancer: each new connection goes to the next of these API servers, and stays with it.
    pub async fn balance(servers: impl IntoIterator<Item = Config>) -> Self {
        let client = |mut config: Config| {
            config.auth_info = kube::config::AuthInfo::default();
            config.default_retry = false;
            Client::try_from(config).unwrap()
        };
        let servers: Vec<_> = servers.into_iter().map(client).collect();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let line = Arc::new(Line {
            route: Mutex::new((0..servers.len()).collect()),
            servers,
            rules: Mutex::default(),
            stalled: watch::Sender::new(false),
            disconnected: watch::Sender::new(false),
            requests: Mutex::default(),
        });
        let task = tokio::spawn(listen(listener, line.clone()));
        Self {
            address,
            line,
            listener: task.abort_handle(),
        }
    }

    /// The address for `--master`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `config`, by way of this proxy.
    pub fn config(&self, config: &Config) -> Config {
        let mut config = config.clone();
        config.cluster_url = self.url().parse().unwrap();
        config
    }

    /// The requests of this verb (`create`, `watch`, …; a list that is streamed is a `watch`) to this resource
    /// (`deployments`, `foos/status`, …); `*` is any. To be followed by what becomes of them, after the rules before.
    pub fn on(&self, verb: &'static str, resource: &'static str) -> On<'_> {
        On {
            proxy: self,
            verb,
            resource,
            nth: None,
        }
    }

    /// Takes all rules back. What is held or late remains so.
    pub fn clear(&self) {
        self.line.rules.lock().unwrap().clear();
    }

    /// Closes all connections.
    pub fn disconnect(&self) {
        self.line.disconnected.send_replace(false);
    }

    /// Resets all connections.
    pub fn reset(&self) {
        self.line.disconnected.send_replace(true);
    }

    /// New connections go to these of the servers from now on.
    pub fn route(&self, servers: &[usize]) {
        *self.line.route.lock().unwrap() = servers.to_vec();
    }

    /// Lets nothing through, in either direction, until [`Self::resume`]; what is sent meanwhile arrives then.
    pub fn stall(&self) {
        self.line.stalled.send_replace(true);
    }

    /// Ends [`Self::stall`].
    pub fn resume(&self) {
        self.line.stalled.send_replace(false);
    }

    /// The requests since the last call of this, as `METHOD path?query`.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.line.requests.lock().unwrap())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn listen(listener: TcpListener, line: Arc<Line>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(line.clone().serve(stream));
    }
}

impl Line {
    async fn serve(self: Arc<Self>, stream: TcpStream) {
        // Or a short answer waits for the acknowledgement of the one before.
        stream.set_nodelay(true).unwrap();
        let socket = stream.as_fd().try_clone_to_owned().unwrap();
        let mut disconnected = self.disconnected.subscribe();
        let server = {
            let mut route = self.route.lock().unwrap();
            route.rotate_left(1);
            self.servers[*route.last().unwrap()].clone()
        };
        let service = service_fn(move |request| {
            // Not dropped with the connection: what is on its way arrives.
            let reply = tokio::spawn(self.clone().forward(server.clone(), request));
            async move { reply.await.map_err(io::Error::other)? }
        });
        tokio::select! {
            // A client that goes away is none of our business.
            _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service) => {}
            _ = disconnected.changed() => {
                if *disconnected.borrow() {
                    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
                }
            }
        }
    }

    /// An error closes the connection.
    async fn forward(
        self: Arc<Self>,
        server: Client,
        request: Request<Incoming>,
    ) -> io::Result<Reply> {
        let (parts, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .map_err(io::Error::other)?
            .to_bytes()
            .to_vec();
        let line = format!("{} {}", parts.method, parts.uri.path_and_query().unwrap());
        self.requests.lock().unwrap().push(line);
        let rule = self.rule(&parts.method, &parts.uri);
        let mut request = Request::from_parts(parts, body);
        let mut stopped = None;
        match rule.as_ref().map(|rule| &rule.action) {
            Some(Action::Hold(at, once)) => {
                let mut hold = once.lock().unwrap().take().unwrap();
                if *at == At::Server {
                    hold.wait().await;
                }
                stopped = Some((at, hold));
            }
            Some(Action::Lose) => std::future::pending().await,
            Some(Action::Change(late, change)) => {
                sleep(*late).await;
                change(&mut request);
            }
            Some(Action::Answer(answer)) => return Ok(answer.reply()),
            Some(Action::Cut(At::Server)) => return Err(io::Error::other("cut")),
            Some(Action::Cut(At::Client) | Action::Truncate(_) | Action::Corrupt) | None => {}
        }
        self.resumed().await;
        let headers = request.headers_mut();
        headers.remove(HOST);
        headers.remove(CONTENT_LENGTH);
        let reply = server.send(request.map(Body::from)).await;
        let reply = reply.map_err(io::Error::other)?;
        if let Some((at, mut hold)) = stopped {
            if *at == At::Client {
                hold.wait().await;
            }
            let _ = hold.done.send(reply.status());
        }
        self.resumed().await;
        let (mut head, body) = reply.into_parts();
        head.headers.remove(CONNECTION);
        head.headers.remove(TRANSFER_ENCODING);
        let pieces = body.into_data_stream().then(move |data| {
            let line = self.clone();
            async move {
                line.resumed().await;
                data.map_err(io::Error::other)
            }
        });
        let body = match rule.as_ref().map(|rule| &rule.action) {
            Some(Action::Cut(At::Client)) => return Err(io::Error::other("cut")),
            Some(Action::Truncate(bytes)) => {
                let mut left = *bytes;
                let pieces = pieces.flat_map(move |piece| {
                    let piece = piece.map(|piece| piece.slice(..piece.len().min(left)));
                    left -= piece.as_ref().map_or(0, Bytes::len);
                    let end = (left == 0).then(broken_off);
                    stream::once(async { piece }).chain(stream::iter(end).flatten())
                });
                frames(pieces)
            }
            Some(Action::Corrupt) => {
                frames(pieces.map(|piece| piece.map(|piece| corrupted(&piece))))
            }
            _ => frames(pieces),
        };
        Ok(Response::from_parts(head, body))
    }

    fn rule(&self, method: &Method, uri: &Uri) -> Option<Arc<Entry>> {
        let (verb, resource) = words(method, uri);
        let rules = self.rules.lock().unwrap();
        let mut rules = rules.iter();
        let rule = rules.find(|rule| rule.matches(verb, &resource));
        rule.cloned()
    }

    async fn resumed(&self) {
        let mut stalled = self.stalled.subscribe();
        stalled.wait_for(|stalled| !stalled).await.unwrap();
    }
}

/// The verb and the resource of a request, as the audit log has them; of a path that is no resource, that path.
fn words(method: &Method, uri: &Uri) -> (&'static str, String) {
    let mut path: Vec<_> = uri.path().split('/').skip(1).collect();
    let prefix = match path[0] {
        "api" => 2,
        "apis" => 3,
        _ => path.len(),
    };
    if path.len() <= prefix {
        return ("get", uri.path().to_owned());
    }
    path.drain(..prefix);
    if path[0] == "namespaces" && path.len() > 2 {
        path.drain(..2);
    }
    let mut query = uri.query().unwrap_or_default().split('&');
    let verb = match (method.as_str(), path.len()) {
        ("GET", 1) if query.any(|pair| matches!(pair, "watch=true" | "watch=1")) => "watch",
        ("GET", 1) => "list",
        ("GET", _) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", 1) => "deletecollection",
        ("DELETE", _) => "delete",
        _ => "",
    };
    let subresource = path.get(2).map(|name| format!("/{name}"));
    (
        verb,
        format!("{}{}", path[0], subresource.unwrap_or_default()),
    )
}

impl Hold {
    async fn wait(&mut self) {
        let (arrived, _) = oneshot::channel();
        let _ = std::mem::replace(&mut self.arrived, arrived).send(());
        if (&mut self.go).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Answer {
    fn reply(&self) -> Reply {
        let body = stream::iter([Ok(Bytes::from_static(self.body.as_bytes()))]);
        let end = stream::iter(self.breaks_off.then(broken_off)).flatten();
        let mut reply = Response::new(frames(body.chain(end)));
        *reply.status_mut() = StatusCode::from_u16(self.code).unwrap();
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| {
            let name = http::HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        reply.headers_mut().extend(headers);
        reply
    }
}

/// The end of a connection amid an answer.
fn broken_off() -> impl stream::Stream<Item = io::Result<Bytes>> + Send {
    stream::once(async {
        // Else what comes before would be gone before it is sent.
        sleep(Duration::from_millis(10)).await;
        Err(io::Error::other("broken off"))
    })
}

fn corrupted(piece: &Bytes) -> Bytes {
    let mut piece = piece.to_vec();
    let middle = piece.len() / 2;
    piece
        .iter_mut()
        .skip(middle)
        .take(1)
        .for_each(|byte| *byte = 0);
    piece.into()
}

fn frames(
    pieces: impl stream::Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> UnsyncBoxBody<Bytes, io::Error> {
    StreamBody::new(pieces.map(|piece| piece.map(Frame::data))).boxed_unsync()
}
