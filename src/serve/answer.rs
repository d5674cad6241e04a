//! From a connection to its reply.

use super::ServerOptions;
use super::engine::{Engine, Event};
use super::http::{Connection, Refused, Request};
use super::metrics::Metrics;
use super::reply::{self, Reply};
use super::request::{Refusal, Wanted, refusal, wanted};
use crate::generate::{Ended, TextModel, Token, Usage};
use ipuc_runtime::CancelToken;
use serde_json::{Value as Json, json};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What all connections share.
pub(super) struct Service {
    pub(super) model: TextModel,
    pub(super) options: ServerOptions,
    pub(super) engine: Engine,
    pub(super) metrics: Metrics,
}

const JSON: &str = "application/json";

/// Numbers of requests.
static REQUESTS: AtomicU64 = AtomicU64::new(1);

/// Answer the request of a connection; `refused` where there are too many.
pub(super) fn answer(service: &Service, mut connection: Connection, refused: bool) {
    let request = match connection.request(service.options.body_bytes) {
        Ok(_) if refused => Err((503, "there are too many connections; try again later".to_string())),
        Ok(request) => Ok(request),
        Err(Refused::Gone) => return,
        Err(Refused::Status(status, reason)) => Err((status, reason.to_string())),
    };
    let answered = request.and_then(|request| route(service, &mut connection, &request));
    let (status, kind, body) = match answered {
        // A client that is gone has no use for a reply.
        Ok(None) => return,
        Ok(Some((kind, body))) => (200, kind, body),
        Err((status, reason)) => (status, JSON, reply::error(status, &reason).to_string()),
    };
    service.metrics.replied(status);
    if connection.has_begun() {
        // The status is sent already: the error is the last event.
        let _ = connection.piece(format!("data: {body}\n\n").as_bytes()).and_then(|()| connection.end());
    } else if connection.reply(status, kind, body.as_bytes()).is_ok() && status != 200 {
        connection.linger();
    }
}

/// Kind and text of a reply; `None` where it is sent already.
type Answer = Result<Option<(&'static str, String)>, Refusal>;

fn route(service: &Service, connection: &mut Connection, request: &Request) -> Answer {
    let method = match request.path.as_str() {
        "/health" | "/metrics" | "/v1/models" => "GET",
        "/v1/completions" | "/v1/chat/completions" => "POST",
        path => return Err((404, format!("there is no `{path}`"))),
    };
    if request.method != method {
        return Err((405, format!("`{}` takes {method} only", request.path)));
    }
    match request.path.as_str() {
        "/health" => return Ok(Some((JSON, json!({"status": "ok"}).to_string()))),
        "/metrics" => return Ok(Some(("text/plain; version=0.0.4", service.metrics.text()))),
        _ => {}
    }
    if let Some(key) = &service.options.key
        && !request.key.as_ref().is_some_and(|given| is_equal(given.as_bytes(), key.as_bytes()))
    {
        return Err((401, "the key is missing or wrong".to_string()));
    }
    if request.path == "/v1/models" {
        return Ok(Some((JSON, reply::models(&service.options.name).to_string())));
    }
    let chat = request.path == "/v1/chat/completions";
    let wanted = wanted(&request.body, chat, &service.model, &service.options)?;
    generate(service, connection, &Arc::new(wanted))
}

/// Compares in a time that tells nothing about where keys differ.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).fold(0, |difference, (one, other)| difference | (one ^ other)) == 0
}

/// How often a waiting request looks whether its client is still there.
const LOOK: Duration = Duration::from_millis(100);

/// A text that is generated; dropping this ends it.
struct Running {
    events: Receiver<Event>,
    cancel: CancelToken,
    until: Instant,
    ended: Option<Ended>,
    usage: Usage,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Why there are no more events.
enum Over {
    /// The client is.
    Gone,
    /// The request has taken as long as it may.
    Late,
    Refused(Refusal),
}

impl Running {
    /// Ask for a text, and wait until its turn comes.
    fn begin(service: &Service, connection: &Connection, wanted: &Arc<Wanted>) -> Result<Running, Over> {
        let (until, cancel) = (Instant::now() + service.options.time, CancelToken::default());
        let events = service.engine.begin(wanted.clone(), cancel.clone());
        let running = Running { events, cancel, until, ended: None, usage: Usage::default() };
        running.event(connection).map(|_| running)
    }

    fn event(&self, connection: &Connection) -> Result<Event, Over> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left.min(LOOK)) {
                Ok(Event::Refused(refusal)) => return Err(Over::Refused(refusal)),
                Ok(event @ (Event::Begun | Event::Further(..))) => return Ok(event),
                Err(RecvTimeoutError::Timeout) if connection.is_gone() => return Err(Over::Gone),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(Over::Late),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Over::Refused((500, "the thread that generates has ended".to_string())));
                }
            }
        }
    }

    /// The next token; none where the text ends without one.
    fn next(&mut self, connection: &Connection) -> Result<Option<Token>, Over> {
        match self.event(connection) {
            Ok(Event::Further(token, ended, usage)) => {
                (self.ended, self.usage) = (ended, usage);
                Ok(token)
            }
            Ok(Event::Begun | Event::Refused(_)) => Ok(None),
            Err(Over::Late) => {
                self.ended = Some(Ended::Cancelled);
                Ok(None)
            }
            Err(over @ (Over::Gone | Over::Refused(_))) => Err(over),
        }
    }
}

fn generate(service: &Service, connection: &mut Connection, wanted: &Arc<Wanted>) -> Answer {
    let mut running = match Running::begin(service, connection, wanted) {
        Ok(running) => running,
        Err(Over::Gone) => return Ok(None),
        Err(Over::Late) => return Err((503, "all generators are busy; try again later".to_string())),
        Err(Over::Refused(refusal)) => return Err(refusal),
    };
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
    let reply = Reply { wanted, model: &service.model, name: &service.options.name, number, created };
    let sent = answer_with(&mut running, connection, &reply);
    service.metrics.generated(&running.usage);
    match sent {
        Ok(answer) => {
            if wanted.stream {
                finish(service, connection, &reply, running.ended, &running.usage);
            }
            Ok(answer)
        }
        Err(Over::Gone | Over::Late) => Ok(None),
        Err(Over::Refused(refusal)) => Err(refusal),
    }
}

/// Take tokens until the text ends: send each where it is wanted in pieces, else give the whole.
fn answer_with(
    running: &mut Running,
    connection: &mut Connection,
    reply: &Reply<'_>,
) -> Result<Option<(&'static str, String)>, Over> {
    let refused = |error| Over::Refused(refusal(error));
    let gone = |_| Over::Gone;
    let mut chosen: Vec<Token> = Vec::new();
    while running.ended.is_none() {
        let token = running.next(connection)?;
        if reply.wanted.stream && !connection.has_begun() {
            connection.begin("text/event-stream").and_then(|()| send(connection, reply.first())).map_err(gone)?;
        }
        match token {
            Some(token) if reply.wanted.stream => {
                let piece = reply.piece(&token, running.ended).map_err(refused)?;
                send(connection, Some(piece)).map_err(gone)?;
            }
            Some(token) => chosen.push(token),
            None => {}
        }
    }
    if reply.wanted.stream {
        return Ok(None);
    }
    let whole = reply.whole(&chosen, running.ended, &running.usage).map_err(refused)?;
    Ok(Some((JSON, whole.to_string())))
}

/// One event, where there is one.
fn send(connection: &mut Connection, event: Option<Json>) -> io::Result<()> {
    match event {
        Some(event) => connection.piece(format!("data: {event}\n\n").as_bytes()),
        None => Ok(()),
    }
}

/// What comes behind the last piece of a stream.
fn finish(service: &Service, connection: &mut Connection, reply: &Reply<'_>, ended: Option<Ended>, usage: &Usage) {
    service.metrics.replied(200);
    let cut = (ended == Some(Ended::Cancelled)).then(|| Token {
        number: 0,
        text: String::new(),
        log_probability: None,
        likely: Vec::new(),
    });
    let cut = cut.and_then(|token| reply.piece(&token, ended).ok());
    let usage = reply.wanted.include_usage.then(|| reply.usage(usage));
    // A client that is gone by now has what it wanted.
    let _ = send(connection, cut)
        .and_then(|()| send(connection, usage))
        .and_then(|()| connection.piece(b"data: [DONE]\n\n"))
        .and_then(|()| connection.end());
}
