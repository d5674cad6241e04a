//! From a connection to its reply.

use super::ServerOptions;
use super::http::{Connection, Refused, Request};
use super::metrics::Metrics;
use super::pool::Pool;
use super::reply::{self, Reply};
use super::request::{Refusal, Wanted, refusal, wanted};
use crate::generate::{Ended, TextModel, Token, Tokens};
use serde_json::{Value as Json, json};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What all connections share.
pub(super) struct Service {
    pub(super) model: TextModel,
    pub(super) options: ServerOptions,
    pub(super) pool: Pool,
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
    generate(service, connection, &wanted)
}

/// Compares in a time that tells nothing about where keys differ.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).fold(0, |difference, (one, other)| difference | (one ^ other)) == 0
}

fn generate(service: &Service, connection: &mut Connection, wanted: &Wanted) -> Answer {
    let until = Instant::now() + service.options.time;
    let generator = service.pool.take(&wanted.prompt, until);
    let mut generator = generator.ok_or((503, "all generators are busy; try again later".to_string()))?;
    if connection.is_gone() {
        return Ok(None);
    }
    let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
    let reply = Reply { wanted, model: &service.model, name: &service.options.name, number, created };
    let cancel = generator.cancel();
    let mut tokens = generator.generate(&wanted.prompt, &wanted.sampling, &wanted.limits).map_err(refusal)?;
    let mut chosen: Vec<Token> = Vec::new();
    if wanted.stream && connection.begin("text/event-stream").and_then(|()| send(connection, reply.first())).is_err() {
        return Ok(None);
    }
    while let Some(token) = tokens.next() {
        let token = token.map_err(refusal)?;
        let gone = if wanted.stream {
            let piece = reply.piece(&token, tokens.ended()).map_err(refusal)?;
            send(connection, Some(piece)).is_err()
        } else {
            chosen.push(token);
            connection.is_gone()
        };
        if gone {
            service.metrics.generated(&tokens.usage());
            return Ok(None);
        }
        if Instant::now() >= until {
            cancel.cancel();
        }
    }
    service.metrics.generated(&tokens.usage());
    if wanted.stream {
        finish(service, connection, &reply, &tokens);
        return Ok(None);
    }
    let whole = reply.whole(&chosen, tokens.ended(), &tokens.usage()).map_err(refusal)?;
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
fn finish(service: &Service, connection: &mut Connection, reply: &Reply<'_>, tokens: &Tokens<'_>) {
    service.metrics.replied(200);
    let cut = (tokens.ended() == Some(Ended::Cancelled)).then(|| Token {
        number: 0,
        text: String::new(),
        log_probability: None,
        likely: Vec::new(),
    });
    let cut = cut.and_then(|token| reply.piece(&token, tokens.ended()).ok());
    let usage = reply.wanted.include_usage.then(|| reply.usage(&tokens.usage()));
    // A client that is gone by now has what it wanted.
    let _ = send(connection, cut)
        .and_then(|()| send(connection, usage))
        .and_then(|()| connection.piece(b"data: [DONE]\n\n"))
        .and_then(|()| connection.end());
}
