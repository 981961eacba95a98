//! Calls: the request in flight to an API server, its handling there, and the response in flight to the replica.

use std::{collections::VecDeque, io::ErrorKind, sync::Arc, time::Duration};

use http::{
    Method,
    header::{ACCEPT, CONTENT_TYPE, HeaderName, USER_AGENT},
};
use hyper::body::Bytes;
use operator_testkit::api_server::{self, Answer, Line, Watch};
use serde_json::Value;

use super::{
    super::{
        network::{Limits, Piece, SHORTEST, Sent},
        plan::{Happens, Then, Way, draw},
        trace::{Call, Role, Time, Who, comes_at},
    },
    Due, World, at,
};

/// Largest random addition to the shortest latency, in microseconds.
const VARIES: u64 = 3_000;

/// Silence after which the kernel sends keepalive probes.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Poll interval of an API server's watches while it has no news.
const LEFT_ALONE: Duration = Duration::from_millis(100);

/// A request in flight to an API server.
pub struct Arriving {
    who: Who,
    pod: (String, String),
    sent: Sent,
    call: usize,
    server: usize,
    happens: Option<Happens>,
    /// Whether a webhook has held it.
    held: bool,
}

/// An open watch.
pub struct Stream {
    pub who: Who,
    pub id: u64,
    server: usize,
    call: usize,
    watch: Watch,
    happens: Option<Happens>,
    /// Whether it sends nothing more, although there are events.
    is_silent: bool,
    begun: Time,
    limits: Limits,
    /// Pieces that cannot be delivered, and since when.
    held: Vec<Piece>,
    cut_since: Option<Time>,
    /// Whether events arrive in order of versions. The initial events of a streamed list do not.
    is_in_order: bool,
    /// Version of the newest held event, and the arrival time of the last sent event.
    told: Option<u64>,
    due: Time,
}

/// Returns the verb and the resource of a request, as in [`Call::verb`] and [`Call::resource`].
fn about(method: &http::Method, path: &str) -> (&'static str, String) {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (["apis", rest @ ..] | rest) = parts.as_slice();
    let ([_, _, rest @ ..] | rest) = rest;
    let rest = match rest {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
        rest => rest,
    };
    let resource = match rest {
        [plural, _, part] => format!("{plural}/{part}"),
        [plural, ..] => (*plural).to_owned(),
        [] => String::new(),
    };
    let verb = match method.as_str() {
        "GET" if query.contains("sendInitialEvents=true") => "stream",
        "GET" if query.contains("watch=true") => "watch",
        "GET" if rest.len() == 1 => "list",
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        _ => "delete",
    };
    (verb, resource)
}

impl World {
    /// Returns the latency of one direction without a fault.
    fn way(&self, purpose: &str, who: Who, id: u64) -> Duration {
        let number = (who.replica as u64) << 48 | u64::from(who.life) << 32 | id;
        let more = draw(self.plan.seed, purpose, number) % VARIES;
        SHORTEST + Duration::from_micros(more)
    }

    /// Returns the API server for a request. A watch has its own connection. The other requests share a connection while it
    /// lasts.
    fn server_for(&mut self, place: usize, role: Role, is_watch: bool, who: Who, id: u64) -> usize {
        let kept = self.places[place].connected[role as usize];
        if let Some(kept) = kept.filter(|&kept| !is_watch && self.servers[kept].server.is_some()) {
            return kept;
        }
        let up = self
            .servers
            .iter()
            .enumerate()
            .filter(|(_, api)| api.server.is_some());
        let up: Vec<usize> = up.map(|(number, _)| number).collect();
        let number = (who.replica as u64) << 48 | u64::from(who.life) << 32 | id;
        let drawn = draw(self.plan.seed, "server", number);
        let server = usize::try_from(drawn % (up.len().max(1) as u64)).unwrap_or(0);
        let server = up.get(server).copied().unwrap_or(0);
        if !is_watch {
            self.places[place].connected[role as usize] = Some(server);
        }
        server
    }

    /// Sends a request of a replica at `to` or before. If a fault kills the replica instead, returns when, and its successor.
    pub(super) fn send(&mut self, place: usize, sent: Sent, to: Time) -> Option<(Time, Then)> {
        let replica = self.places[place].replica.as_ref()?;
        let (who, wire) = (replica.who, replica.wire.clone());
        let sent_at = replica.world(sent.at).clamp(self.now, to);
        let begun = replica.world(sent.begun).min(sent_at);
        let (verb, resource) = about(&sent.method, &sent.path);
        let is_watch = matches!(verb, "stream" | "watch");
        let server = self.server_for(place, sent.role, is_watch, who, sent.id);
        let call = Call {
            who,
            role: sent.role,
            method: sent.method.clone(),
            path: sent.path.clone(),
            verb,
            resource,
            body: serde_json::from_slice(&sent.body).unwrap_or_default(),
            begun,
            sent: sent_at,
            arrived: None,
            server,
            written: 0..0,
            code: None,
            answer: None,
            answered: None,
            over: None,
            retry_after: None,
            told: Vec::new(),
            fault: None,
            of_fault: None,
            felt: false,
        };
        let (of_fault, happens) = self.fault_of(&call).unzip();
        let (is_cut, slow) = self.on_the_way(&call, Way::Requests);
        let number = self.trace.calls.len();
        self.trace.calls.push(call);
        self.open.insert((who, sent.id), number);
        self.trace.calls[number].fault = happens.as_ref().map(|happens| format!("{happens:?}"));
        self.trace.calls[number].of_fault = of_fault;
        if let Some(Happens::CrashBefore(then)) = happens {
            self.trace.calls[number].felt = true;
            return Some((sent_at, then));
        }
        let late = match happens {
            Some(Happens::RequestLate(by)) => by,
            _ => Duration::ZERO,
        };
        let way = self.way("request", who, sent.id) + slow + late;
        let up = self.servers[server].server.is_some();
        let broken = match happens {
            Some(Happens::Refused) => Some((SHORTEST * 2, ErrorKind::ConnectionRefused)),
            Some(Happens::ResetBefore) => Some((SHORTEST * 2, ErrorKind::ConnectionReset)),
            Some(Happens::ConnectHangs) => Some((sent.limits.connect, ErrorKind::TimedOut)),
            Some(Happens::RequestLost) => Some((sent.limits.send, ErrorKind::TimedOut)),
            // The kernel has given up by then.
            _ if is_cut || way > sent.limits.send => Some((sent.limits.send, ErrorKind::TimedOut)),
            _ if !up => Some((SHORTEST * 2, ErrorKind::ConnectionRefused)),
            _ => None,
        };
        self.trace.calls[number].felt = match happens {
            Some(
                Happens::Refused
                | Happens::ResetBefore
                | Happens::ConnectHangs
                | Happens::RequestLost,
            ) => true,
            Some(Happens::RequestLate(_)) => up && !is_cut,
            _ => false,
        };
        if let Some((after, kind)) = broken {
            if is_cut && happens.is_none() {
                let call = &mut self.trace.calls[number];
                (call.fault, call.felt) = (Some("cut off".to_owned()), true);
            }
            self.places[place].connected[sent.role as usize] = None;
            let replica = self.places[place].replica.as_ref()?;
            wire.put(
                sent.id,
                replica.instant(sent_at + after),
                Piece::Broken(kind),
            );
            return None;
        }
        let pod = self.places[place].pod.clone();
        let arriving = Arriving {
            who,
            pod,
            sent,
            call: number,
            server,
            happens,
            held: false,
        };
        let count = self.number();
        self.arrivals.insert((sent_at + way, count), arriving);
        None
    }

    /// Serves the requests that arrive by `to`, then the events of watches.
    pub(super) fn serve(&mut self, to: Time) {
        while let Some(first) = self
            .arrivals
            .first_entry()
            .filter(|first| first.key().0 <= to)
        {
            let ((time, _), arriving) = first.remove_entry();
            self.arrives(time, arriving);
        }
        self.served = self.served.max(to);
        self.tell(self.served);
    }

    pub(super) fn arrives(&mut self, time: Time, mut arriving: Arriving) {
        let number = arriving.server;
        if self.servers[number].paused {
            self.servers[number].waiting.push(arriving);
            return;
        }
        let (who, call) = (arriving.who, arriving.call);
        self.trace.calls[call].arrived.get_or_insert(time);
        if self.servers[number].server.is_none() {
            let reset = vec![Piece::Broken(ErrorKind::ConnectionReset)];
            self.put(who, arriving.sent.id, time + SHORTEST, reset);
            return;
        }
        if let Some(Happens::Hangs(by)) = arriving.happens
            && !arriving.held
        {
            self.trace.calls[call].felt = true;
            arriving.held = true;
            let held = by.min(limit(&arriving.sent.path));
            let count = self.number();
            self.arrivals.insert((time + held, count), arriving);
            return;
        }
        let is_felt = matches!(
            arriving.happens,
            Some(Happens::Status { .. } | Happens::CrashAt(_))
        );
        self.trace.calls[call].felt |= is_felt;
        let answer = match arriving.happens {
            Some(Happens::Status {
                code,
                retry_after,
                applied,
            }) => {
                if applied {
                    self.carry_out(time, &arriving);
                }
                status(code, retry_after)
            }
            Some(Happens::Hangs(by)) if by >= limit(&arriving.sent.path) => timed_out(),
            Some(Happens::Ignored) => self.ignore(time, &mut arriving),
            Some(Happens::Endless | Happens::Circle) => {
                arriving.sent.path = first_page(&arriving.sent.path);
                self.carry_out(time, &arriving)
            }
            _ => self.carry_out(time, &arriving),
        };
        if let Some(Happens::CrashAt(then)) = arriving.happens {
            self.kill_if(who.replica, who.life, then);
        }
        match answer {
            Answer::Watch(watch) => self.open(arriving, time, watch),
            Answer::Whole {
                code,
                headers,
                body,
            } => {
                let whole = (code, headers, body);
                let whole = match &arriving.happens {
                    Some(happens) => altered(happens, call, whole),
                    None => whole,
                };
                self.whole(&arriving, time, whole);
            }
        }
    }

    /// Passes a call to its API server.
    fn carry_out(&mut self, time: Time, arriving: &Arriving) -> Answer {
        let Arriving { who, sent, .. } = arriving;
        let Some(server) = &mut self.servers[arriving.server].server else {
            panic!("{who} is answered by an API server that is not there");
        };
        let from = self.store.history().len();
        let header =
            |name: HeaderName| sent.headers.get(name).and_then(|value| value.to_str().ok());
        let call = api_server::Call {
            user: api_server::User {
                name: &self.user,
                pod: Some((&arriving.pod.0, &arriving.pod.1)),
            },
            method: &sent.method,
            path_and_query: &sent.path,
            content_type: header(CONTENT_TYPE),
            accept: header(ACCEPT),
            user_agent: header(USER_AGENT),
            body: &sent.body,
        };
        let answer = match server.serve(&mut self.store, at(time), &call) {
            Ok(answer) => answer,
            Err(unknown) => panic!("{unknown}: {who}: {} {}", sent.method, sent.path),
        };
        let call = &mut self.trace.calls[arriving.call];
        call.written = from..self.store.history().len();
        match &answer {
            Answer::Whole { code, body, .. } => {
                call.code = Some(*code);
                let is_list = matches!(call.verb, "list" | "stream" | "watch") && *code < 300;
                call.answer = (!is_list).then(|| Arc::new(body.clone()));
            }
            Answer::Watch(_) => call.code = Some(200),
        }
        answer
    }

    /// Returns the response of a successful write, without the write: the stored object, or the new object as it was sent.
    fn ignore(&mut self, time: Time, arriving: &mut Arriving) -> Answer {
        if arriving.sent.method == Method::POST {
            return Answer::Whole {
                code: 201,
                headers: json_headers(),
                body: serde_json::from_slice(&arriving.sent.body).unwrap_or_default(),
            };
        }
        arriving.sent.method = Method::GET;
        let path = arriving.sent.path.split('?').next().unwrap_or_default();
        arriving.sent.path = path.trim_end_matches("/status").to_owned();
        self.carry_out(time, arriving)
    }

    /// Sends a complete response.
    fn whole(
        &mut self,
        arriving: &Arriving,
        time: Time,
        (code, headers, body): (u16, Vec<(&'static str, String)>, Value),
    ) {
        let Arriving {
            who,
            sent,
            happens,
            call,
            ..
        } = arriving;
        let late = match happens {
            Some(Happens::AnswerLate(by)) => *by,
            _ => Duration::ZERO,
        };
        let (is_cut, slow) = self.on_the_way(&self.trace.calls[*call], Way::Answers);
        let is_waited_for = self.open.contains_key(&(*who, sent.id));
        if is_cut || !is_waited_for {
            return;
        }
        self.trace.calls[*call].felt |= happens.as_ref().is_some_and(is_of_the_answer)
            || matches!(happens, Some(Happens::Cut | Happens::Truncated));
        if *happens == Some(Happens::AnswerLost) {
            return;
        }
        let due = time + self.way("answer", *who, sent.id) + slow + late;
        let told = listed(&self.trace.calls[*call], &body);
        let mut text = match body {
            Value::String(text) => text.into_bytes(),
            body => serde_json::to_vec(&body).unwrap(),
        };
        let end = match happens {
            Some(Happens::ResetAfter) => {
                let reset = vec![Piece::Broken(ErrorKind::ConnectionReset)];
                self.put(*who, sent.id, due, reset);
                return;
            }
            Some(Happens::Cut) => {
                text.truncate(text.len() / 2);
                Piece::Broken(ErrorKind::UnexpectedEof)
            }
            Some(Happens::Truncated) => {
                text.truncate(text.len() / 2);
                Piece::End
            }
            _ => Piece::End,
        };
        let is_whole = matches!(end, Piece::End) && *happens != Some(Happens::Truncated);
        let asked = headers.iter().find(|(name, _)| *name == "Retry-After");
        let asked = asked.and_then(|(_, seconds)| seconds.parse().ok());
        let noted = &mut self.trace.calls[*call];
        noted.answered = Some((due, code));
        noted.retry_after = asked.filter(|_| is_whole).map(Duration::from_secs);
        noted
            .told
            .extend(told.filter(|_| is_whole).map(|version| (due, version)));
        self.put(
            *who,
            sent.id,
            due,
            vec![
                Piece::Head(code, headers),
                Piece::Data(Bytes::from(text)),
                end,
            ],
        );
        if let Some(Happens::CrashAfter(then)) = happens {
            let kill = Due::Kill {
                place: who.replica,
                life: who.life,
                then: *then,
            };
            self.due(due + Duration::from_millis(1), kill);
        }
    }

    /// Puts pieces into a connection of this process, if it still runs.
    fn put(&self, who: Who, id: u64, due: Time, pieces: Vec<Piece>) {
        let replica = self.places[who.replica].replica.as_ref();
        if let Some(replica) = replica.filter(|replica| replica.who == who) {
            for piece in pieces {
                replica.wire.put(id, replica.instant(due), piece);
            }
        }
    }

    fn open(&mut self, arriving: Arriving, time: Time, watch: Watch) {
        let Arriving {
            who,
            sent,
            call,
            server,
            happens,
            ..
        } = arriving;
        let is_waited_for = self.open.contains_key(&(who, sent.id));
        if !is_waited_for {
            return;
        }
        let (is_cut, slow) = self.on_the_way(&self.trace.calls[call], Way::Answers);
        self.trace.calls[call].felt |= !is_cut && happens.as_ref().is_some_and(is_of_the_answer);
        if happens == Some(Happens::AnswerLost) {
            return;
        }
        let head = |more| [vec![Piece::Head(200, json_headers())], more].concat();
        let first = match &happens {
            Some(Happens::Html) => {
                let (_, _, page) = html();
                let page = page.as_str().unwrap_or_default().to_owned();
                head(vec![Piece::Data(page.into()), Piece::End])
            }
            Some(Happens::OtherKind) => head(vec![
                Piece::Data(other_kind().to_string().into()),
                Piece::End,
            ]),
            Some(Happens::Empty) => head(vec![Piece::End]),
            Some(Happens::ErrorEvent(code)) => {
                let error = serde_json::json!({ "type": "ERROR", "object": failure(*code) });
                head(vec![Piece::Data(format!("{error}\n").into()), Piece::End])
            }
            Some(Happens::ResetAfter) => vec![Piece::Broken(ErrorKind::ConnectionReset)],
            _ => head(Vec::new()),
        };
        let is_over = matches!(first.last(), Some(Piece::End | Piece::Broken(_)));
        let late = match happens {
            Some(Happens::AnswerLate(by)) => by,
            _ => Duration::ZERO,
        };
        let due = time + self.way("answer", who, sent.id) + slow + late;
        if let Some(Happens::CrashAfter(then)) = happens
            && !is_cut
        {
            let kill = Due::Kill {
                place: who.replica,
                life: who.life,
                then,
            };
            self.due(due + Duration::from_millis(1), kill);
        }
        let mut stream = Stream {
            who,
            id: sent.id,
            server,
            call,
            watch,
            begun: time,
            limits: sent.limits,
            held: Vec::new(),
            cut_since: None,
            is_in_order: self.trace.calls[call].verb == "watch",
            told: None,
            due,
            is_silent: happens == Some(Happens::WatchSilent),
            happens,
        };
        if is_cut && !is_over {
            (stream.held, stream.cut_since) = (first, Some(time));
        } else if !is_cut {
            self.trace.calls[call].answered = Some((due, 200));
            self.put(who, stream.id, due, first);
        }
        if !is_over {
            self.streams.push(stream);
            // The first events may be due without delay.
            self.servers[server].looked.1 = Duration::ZERO;
        }
    }

    /// Sends the events that watches have at this time.
    fn tell(&mut self, time: Time) {
        let now = at(time);
        for api in &mut self.servers {
            let server = api.server.as_ref();
            let seen = server.map_or(0, |server| server.seen(&self.store, now));
            let is_due = seen != api.looked.0 || time >= api.looked.1 + LEFT_ALONE;
            if is_due {
                api.looked = (seen, time);
            }
            api.tells = is_due && !api.paused;
        }
        let is_quiet = !self.servers.iter().any(|api| api.tells);
        if is_quiet && self.streams.iter().all(|stream| stream.cut_since.is_none()) {
            return;
        }
        let mut streams = std::mem::take(&mut self.streams);
        streams.retain_mut(|stream| !self.follow(stream, time));
        streams.append(&mut self.streams);
        self.streams = streams;
    }

    /// Sends the events of a watch. Returns whether the watch has ended.
    fn follow(&mut self, stream: &mut Stream, time: Time) -> bool {
        let (mut pieces, mut told, mut to_bookmark) = (Vec::new(), None, None);
        let api = &self.servers[stream.server];
        if let (true, Some(server)) = (api.tells, &api.server) {
            for line in stream.watch.poll(&self.store, server, at(time)) {
                let metadata = &line.object["metadata"];
                stream.is_in_order |=
                    metadata["annotations"]["k8s.io/initial-events-end"] == "true";
                told = version(metadata).filter(|_| stream.is_in_order).or(told);
                let is_bookmark = line.event == "BOOKMARK" && metadata["annotations"].is_null();
                pieces.push(Piece::Data(self.printed.get(line)));
                // Not the bookmark that ends a streamed list.
                if is_bookmark {
                    to_bookmark.get_or_insert(pieces.len());
                }
            }
            if stream.watch.is_over() {
                pieces.push(Piece::End);
            }
        }
        let is_told = !matches!(
            stream.happens,
            Some(
                Happens::WatchSilent
                    | Happens::WatchFallsSilent
                    | Happens::WatchGarbage
                    | Happens::Truncated
                    | Happens::Cut
            )
        );
        stream.told = told.filter(|_| is_told).or(stream.told);
        let call = &mut self.trace.calls[stream.call];
        match &stream.happens {
            Some(Happens::WatchSilent | Happens::WatchFallsSilent) => {
                let told = to_bookmark.unwrap_or(pieces.len());
                let told = if stream.is_silent { 0 } else { told };
                call.felt |= told < pieces.len();
                pieces.truncate(told);
                stream.is_silent |= to_bookmark.is_some();
            }
            Some(Happens::WatchEnds(after)) if time >= stream.begun + *after => {
                call.felt = true;
                pieces.push(Piece::End);
            }
            Some(Happens::WatchGarbage) if !pieces.is_empty() => {
                call.felt = true;
                pieces = vec![
                    Piece::Data(Bytes::from_static(b"{\"kind\":\"Pizza\"}\n")),
                    Piece::End,
                ];
            }
            Some(Happens::Cut | Happens::Truncated)
                if let Some(Piece::Data(line)) = pieces.first() =>
            {
                call.felt = true;
                let half = line.slice(..line.len() / 2);
                let end = match &stream.happens {
                    Some(Happens::Cut) => Piece::Broken(ErrorKind::UnexpectedEof),
                    _ => Piece::End,
                };
                pieces = vec![Piece::Data(half), end];
            }
            _ => {}
        }
        let (is_cut, slow) = self.on_the_way(&self.trace.calls[stream.call], Way::Answers);
        let (is_gone, _) = self.on_the_way(&self.trace.calls[stream.call], Way::Requests);
        if is_cut || is_gone {
            let since = *stream.cut_since.get_or_insert(time);
            if time >= since + KEEPALIVE + stream.limits.send {
                self.put(
                    stream.who,
                    stream.id,
                    time + SHORTEST,
                    vec![Piece::Broken(ErrorKind::TimedOut)],
                );
                return true;
            }
        } else {
            stream.cut_since = None;
        }
        stream.held.append(&mut pieces);
        if is_cut || stream.held.is_empty() {
            return false;
        }
        let pieces = std::mem::take(&mut stream.held);
        let is_over = matches!(pieces.last(), Some(Piece::End | Piece::Broken(_)));
        let due = time + self.way("line", stream.who, stream.id) + slow;
        stream.due = stream.due.max(due);
        let call = &mut self.trace.calls[stream.call];
        let told = stream.told.take();
        call.told.extend(told.map(|version| (stream.due, version)));
        // The held pieces may begin with the head of the response.
        call.answered.get_or_insert((due, 200));
        self.put(stream.who, stream.id, due, pieces);
        is_over
    }

    /// Resets the connections of the open calls that `is_meant` selects, watches included. Half of the requests in flight still
    /// arrive.
    pub(super) fn reset(&mut self, is_meant: impl Fn(&Call) -> bool) {
        let calls = &self.trace.calls;
        let meant = self
            .open
            .iter()
            .filter(|(_, call)| is_meant(&calls[**call]));
        let meant: Vec<_> = meant.map(|(who, call)| (*who, *call)).collect();
        let due = self.now + SHORTEST;
        let asleep = self.trace.asleep();
        for ((who, id), number) in meant {
            self.open.remove(&(who, id));
            self.streams
                .retain(|stream| (stream.who, stream.id) != (who, id));
            if draw(self.plan.seed, "reset", number as u64).is_multiple_of(2) {
                self.arrivals.retain(|_, arriving| arriving.call != number);
            }
            let call = &mut self.trace.calls[number];
            call.answered = call.answered.filter(|(at, _)| *at <= due);
            call.over = Some(due);
            let asleep = asleep.get(&who.replica).map_or(&[][..], Vec::as_slice);
            call.told.retain(|(at, _)| comes_at(asleep, *at) <= due);
            self.places[who.replica].connected[call.role as usize] = None;
            let replica = self.places[who.replica].replica.as_ref();
            if let Some(replica) = replica.filter(|replica| replica.who == who) {
                replica.wire.cut(id, replica.instant(due));
            }
            self.put(
                who,
                id,
                due,
                vec![Piece::Broken(ErrorKind::ConnectionReset)],
            );
        }
    }
}

/// The last lines of watches, as they were sent. Most watches of a kind send the same.
#[derive(Default)]
pub struct Printed(VecDeque<(Line, Bytes)>);

impl Printed {
    /// Number of kept lines: more than the changes of one tick.
    const KEPT: usize = 32;

    /// Returns the line of an event, with the fields in the order of the API server.
    fn get(&mut self, line: Line) -> Bytes {
        let mut all = self.0.iter();
        let same =
            all.find(|(its, _)| its.event == line.event && Arc::ptr_eq(&its.object, &line.object));
        if let Some((_, text)) = same {
            return text.clone();
        }
        let mut text = format!("{{\"type\":\"{}\",\"object\":", line.event).into_bytes();
        serde_json::to_writer(&mut text, &*line.object).unwrap();
        text.extend(b"}\n");
        let text = Bytes::from(text);
        self.0.truncate(Self::KEPT - 1);
        self.0.push_front((line, text.clone()));
        text
    }
}

/// Returns the `resourceVersion` in this metadata.
fn version(metadata: &Value) -> Option<u64> {
    metadata["resourceVersion"].as_str()?.parse().ok()
}

/// Returns the version of a complete list, from its last page. A list that selects one object does not count.
fn listed(call: &Call, body: &Value) -> Option<u64> {
    let metadata = &body["metadata"];
    let is_last = metadata["continue"].as_str().unwrap_or_default().is_empty();
    let lists_all = call.verb == "list" && !call.path.contains("fieldSelector");
    version(metadata).filter(|_| lists_all && is_last)
}

/// Returns whether the fault happens to the response (for a watch, to its head).
fn is_of_the_answer(happens: &Happens) -> bool {
    matches!(
        happens,
        Happens::AnswerLost
            | Happens::AnswerLate(_)
            | Happens::ResetAfter
            | Happens::Html
            | Happens::OtherKind
            | Happens::Empty
            | Happens::Endless
            | Happens::Circle
            | Happens::NoVersion
            | Happens::ErrorEvent(_)
            | Happens::Ignored
            | Happens::CrashAfter(_)
    )
}

type Whole = (u16, Vec<(&'static str, String)>, Value);

fn html() -> Whole {
    let page = "<html>\n<p>Please log in</p>\n</html>\n".to_owned();
    (
        200,
        vec![("Content-Type", "text/html".to_owned())],
        Value::String(page),
    )
}

/// Returns the response with the changes of this fault. `call` makes each page token unique.
fn altered(happens: &Happens, call: usize, (code, headers, mut body): Whole) -> Whole {
    match happens {
        Happens::Html => return html(),
        Happens::OtherKind => return (200, json_headers(), other_kind()),
        Happens::Empty => {
            body = serde_json::json!({
                "kind": "List", "metadata": { "resourceVersion": "" }, "items": [],
            });
        }
        Happens::Endless => body["metadata"]["continue"] = "more".into(),
        Happens::Circle => {
            let items = body["items"].as_array().cloned().unwrap_or_default();
            body["items"] = items.iter().cycle().take(500).cloned().collect();
            body["metadata"]["continue"] = format!("page {call}").into();
        }
        Happens::NoVersion => body["metadata"]["resourceVersion"] = "none".into(),
        _ => {}
    }
    (code, headers, body)
}

fn other_kind() -> Value {
    serde_json::json!({ "kind": "Pizza", "apiVersion": "v1" })
}

fn json_headers() -> Vec<(&'static str, String)> {
    vec![("Content-Type", "application/json".to_owned())]
}

/// Returns the path without `continue=`.
fn first_page(path: &str) -> String {
    let Some((path, query)) = path.split_once('?') else {
        return path.to_owned();
    };
    let query: Vec<_> = query
        .split('&')
        .filter(|parameter| !parameter.starts_with("continue="))
        .collect();
    format!("{path}?{}", query.join("&"))
}

/// Returns the `timeout=` of a request. The API server's `--request-timeout` is one minute.
fn limit(path: &str) -> Duration {
    let query = path.split_once('?').map_or("", |(_, query)| query);
    let mut parameters = query.split('&');
    let given = parameters.find_map(|parameter| parameter.strip_prefix("timeout="));
    let milliseconds = given.and_then(|given| given.strip_suffix("ms")?.parse().ok());
    milliseconds.map_or(Duration::from_mins(1), Duration::from_millis)
}

/// Returns the response to a write whose admission outlasts its `timeout=`.
fn timed_out() -> Answer {
    let Answer::Whole {
        code,
        headers,
        mut body,
    } = status(504, None)
    else {
        unreachable!("a status is a whole response");
    };
    body["message"] =
        "Timeout: request did not complete within requested timeout - context deadline exceeded"
            .into();
    Answer::Whole {
        code,
        headers,
        body,
    }
}

/// Returns an error response of an API server, or of a proxy in front of it.
fn status(code: u16, retry_after: Option<u32>) -> Answer {
    let mut headers = json_headers();
    if let Some(seconds) = retry_after {
        headers.push(("Retry-After", seconds.to_string()));
    }
    Answer::Whole {
        code,
        headers,
        body: failure(code),
    }
}

fn failure(code: u16) -> Value {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    };
    serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "as the schedule has it", "reason": reason, "code": code,
    })
}
