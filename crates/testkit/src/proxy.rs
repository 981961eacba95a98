//! Proxy on loopback between clients and one or more API servers. It imitates faults of the network, of a load balancer and of
//! the server.
//!
//! A rule selects requests by verb and resource, as in the audit log ([`Proxy::on`]). It can hold, lose, delay or change them.
//! It can answer in place of the server, or close the connection before or after the server has handled them. It can also
//! truncate or corrupt the response. Like a network, the proxy forwards a held request even if the client has cancelled it.
//!
//! Clients use plain HTTP and send their own credentials with each request.

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
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
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

/// Proxy. It runs on the runtime of its test. After drop it accepts no connections.
pub struct Proxy {
    address: SocketAddr,
    line: Arc<Line>,
    listener: AbortHandle,
}

struct Line {
    servers: Vec<Client>,
    /// Servers for new connections, in round-robin order.
    route: Mutex<Vec<usize>>,
    /// Rules in order; the first match applies.
    rules: Mutex<Vec<Arc<Entry>>>,
    stalled: watch::Sender<bool>,
    /// A change ends all open connections; `true` resets them.
    disconnected: watch::Sender<bool>,
    requests: Mutex<Vec<String>>,
    /// Headers of [`Proxy::impersonate`].
    impersonation: Mutex<HeaderMap>,
}

type Reply = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// Point at which a request is stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum At {
    /// Before the API server receives it.
    Server,
    /// After the API server has handled it, before the client receives the response.
    Client,
}

/// Response that replaces the API server's.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub code: u16,
    pub headers: &'static [(&'static str, &'static str)],
    pub body: &'static str,
    /// Whether the connection breaks after the body, before the end of the response.
    pub breaks_off: bool,
}

impl Answer {
    /// Returns a response with a JSON content type. The body need not be valid.
    pub const fn json(code: u16, body: &'static str) -> Self {
        Self {
            code,
            headers: &[("content-type", "application/json")],
            body,
            breaks_off: false,
        }
    }
}

/// Modification of a request.
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
    /// Returns whether the rule applies to this request, and counts the request.
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

/// Selected requests, for which a rule follows; see [`Proxy::on`].
pub struct On<'a> {
    proxy: &'a Proxy,
    verb: &'static str,
    resource: &'static str,
    nth: Option<usize>,
}

impl On<'_> {
    /// Selects only the n-th of the following requests; 1 is the next.
    pub fn nth(mut self, nth: usize) -> Self {
        self.nth = Some(nth);
        self
    }

    /// Holds the next selected request, or the n-th, until [`Held::go`] or [`Held::pass`].
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

    /// Loses the requests: neither the API server nor the client receives anything.
    pub fn lose(self) -> Rule {
        self.rule(Action::Lose)
    }

    /// Delays and modifies the requests.
    pub fn change(self, late: Duration, change: Change) -> Rule {
        self.rule(Action::Change(late, change))
    }

    /// Responds in place of the API server.
    pub fn answer(self, answer: Answer) -> Rule {
        self.rule(Action::Answer(answer))
    }

    /// Closes the connection before or after the API server has handled the requests.
    pub fn cut(self, at: At) -> Rule {
        self.rule(Action::Cut(at))
    }

    /// Closes the connection after this many bytes of the response body.
    pub fn truncate(self, bytes: usize) -> Rule {
        self.rule(Action::Truncate(bytes))
    }

    /// Sets the middle byte of each chunk of the response body to 0.
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

/// Active rule, until [`Proxy::clear`].
pub struct Rule(Arc<Entry>);

impl Rule {
    /// Returns how many requests the rule was applied to.
    pub fn hits(&self) -> usize {
        self.0.hits.load(Ordering::Relaxed)
    }
}

struct Hold {
    arrived: oneshot::Sender<()>,
    go: oneshot::Receiver<()>,
    done: oneshot::Sender<StatusCode>,
}

/// Request that is held, or will be. Drop loses the request.
pub struct Held {
    arrived: Option<oneshot::Receiver<()>>,
    go: Option<oneshot::Sender<()>>,
    done: oneshot::Receiver<StatusCode>,
}

impl Held {
    /// Waits until the request has arrived.
    pub async fn arrived(&mut self) {
        let arrived = self.arrived.take().unwrap();
        timeout(DEADLINE, arrived)
            .await
            .expect("no such request")
            .unwrap();
    }

    /// Forwards the request and returns the status of the API server's response.
    pub async fn pass(mut self) -> StatusCode {
        self.go().await
    }

    /// Like [`Self::pass`], by reference. Works once.
    pub async fn go(&mut self) -> StatusCode {
        self.go.take().unwrap().send(()).unwrap();
        timeout(DEADLINE, &mut self.done)
            .await
            .expect("no answer")
            .unwrap()
    }
}

impl Proxy {
    /// Starts a proxy for the API server of `config`.
    pub async fn start(config: Config) -> Self {
        Self::balance([config]).await
    }

    /// Starts a load balancer. Each new connection goes to the next of these API servers and stays with it.
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
            impersonation: Mutex::default(),
        });
        let task = tokio::spawn(listen(listener, line.clone()));
        Self {
            address,
            line,
            listener: task.abort_handle(),
        }
    }

    /// Returns the address for `--master`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns `config` with the address of this proxy.
    pub fn config(&self, config: &Config) -> Config {
        let mut config = config.clone();
        config.cluster_url = self.url().parse().unwrap();
        config
    }

    /// Selects the requests with this verb and resource, such as `create` and `deployments`, or `patch` and `deployments/status`. A
    /// streamed list is a `watch`; `*` matches any. Earlier rules take precedence.
    pub fn on(&self, verb: &'static str, resource: &'static str) -> On<'_> {
        On {
            proxy: self,
            verb,
            resource,
            nth: None,
        }
    }

    /// Removes all rules. Held and delayed requests are not affected.
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

    /// Sends new connections to these servers from now on.
    pub fn route(&self, servers: &[usize]) {
        *self.line.route.lock().unwrap() = servers.to_vec();
    }

    /// Stops the traffic in both directions until [`Self::resume`], which delivers it.
    pub fn stall(&self) {
        self.line.stalled.send_replace(true);
    }

    /// Ends [`Self::stall`].
    pub fn resume(&self) {
        self.line.stalled.send_replace(false);
    }

    /// Sends further requests with a user's headers, for example from [`as_pod`](crate::cluster::as_pod). The client's user needs
    /// the permission to impersonate that user. The audit log still names the user of the client.
    pub fn impersonate(&self, headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>) {
        *self.line.impersonation.lock().unwrap() = headers.into_iter().collect();
    }

    /// Returns the requests since the last call, as `METHOD path?query`.
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
        // Otherwise a short response waits for the acknowledgement of the previous one.
        stream.set_nodelay(true).unwrap();
        let socket = stream.as_fd().try_clone_to_owned().unwrap();
        let mut disconnected = self.disconnected.subscribe();
        let server = {
            let mut route = self.route.lock().unwrap();
            route.rotate_left(1);
            self.servers[*route.last().unwrap()].clone()
        };
        let service = service_fn(move |request| {
            // A separate task, so that a request in flight arrives even if the connection closes.
            let reply = tokio::spawn(self.clone().forward(server.clone(), request));
            async move { reply.await.map_err(io::Error::other)? }
        });
        tokio::select! {
            // The result is ignored: the client may close the connection at any time.
            _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service) => {}
            _ = disconnected.changed() => {
                if *disconnected.borrow() {
                    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
                }
            }
        }
    }

    /// Forwards a request. An error closes the connection.
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
        // A request that waits for a rule keeps the user of its start: the next process may have another one.
        let user = self.impersonation.lock().unwrap().clone();
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
        headers.extend(user);
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

/// Returns the verb and the resource of a request, as in the audit log. For a non-resource path, returns that path.
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

/// Ends the connection in the middle of a response.
fn broken_off() -> impl stream::Stream<Item = io::Result<Bytes>> + Send {
    stream::once(async {
        // Let the preceding bytes leave first; otherwise they would be lost.
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
