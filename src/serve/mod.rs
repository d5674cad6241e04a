//! A language model behind HTTP, with the requests and replies of OpenAI's API.
//!
//! `GET /v1/models`, `POST /v1/completions` and `POST /v1/chat/completions` (with `stream` as server-sent events) want the
//! key, where there is one; `GET /health` and `GET /metrics` (Prometheus) do not. What a request asks for is honoured or
//! refused by name.
//!
//! A thread a connection, one request each; the sizes of requests, the time that they may take to arrive and to be answered,
//! and the number of connections are limited. One thread generates for all of them, with a
//! [`Batch`](crate::generate::Batch) that has room for as many texts as are generated at a time; each keeps its context, so
//! that a chat that goes on is not read anew.
//!
//! `http` is the protocol, `request` what clients ask for, `reply` what they get, `engine` the thread that generates, `metrics` the
//! counts, and `answer` brings them together.

mod answer;
mod engine;
mod http;
mod metrics;
mod reply;
mod request;

use crate::generate::{GenerateError, GeneratorOptions, TextModel};
use answer::{Service, answer};
use engine::Engine;
use http::Connection;
use metrics::Metrics;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use thiserror::Error;

/// How a server is run.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Host and port to listen on.
    pub address: String,
    /// What clients must present; needed where others than this machine can connect.
    pub key: Option<String>,
    /// What the model is called.
    pub name: String,
    /// Texts that are generated at a time; they share each reading of the weights.
    pub parallel: usize,
    /// Connections at a time; further ones are refused.
    pub connections: usize,
    /// Most bytes of a request's body.
    pub body_bytes: usize,
    /// Most tokens of a text.
    pub tokens: usize,
    /// Longest time from a request to the end of its reply.
    pub time: Duration,
    /// How generators run.
    pub generator: GeneratorOptions,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            address: "127.0.0.1:8080".to_string(),
            key: None,
            name: "model".to_string(),
            parallel: 1,
            connections: 64,
            body_bytes: 4 << 20,
            tokens: 4096,
            time: Duration::from_secs(600),
            generator: GeneratorOptions::default(),
        }
    }
}

/// Why there is no server.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: String,
        /// Why not.
        error: io::Error,
    },
    /// Everybody could use it.
    #[error("a server on {address} can be reached by other machines and needs a key")]
    Key {
        /// The address.
        address: SocketAddr,
    },
    /// A generator cannot be made.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The thread that generates cannot be started.
    #[error("cannot start a thread: {error}")]
    Thread {
        /// Why not.
        error: io::Error,
    },
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    service: Arc<Service>,
}

impl Server {
    /// Listen; requests wait until [`Server::run`].
    ///
    /// # Errors
    /// [`ServeError`] where the address is taken, open to others without a key, or a generator cannot be made.
    pub fn bind(model: &TextModel, options: ServerOptions) -> Result<Server, ServeError> {
        let failure = |error| ServeError::Listen { address: options.address.clone(), error };
        let addresses: Vec<SocketAddr> = options.address.to_socket_addrs().map_err(failure)?.collect();
        let open = addresses.iter().find(|address| !address.ip().is_loopback());
        if let Some(&address) = open.filter(|_| options.key.is_none()) {
            return Err(ServeError::Key { address });
        }
        let listener = TcpListener::bind(addresses.as_slice()).map_err(failure)?;
        let address = listener.local_addr().map_err(failure)?;
        let engine = Engine::start(model, &options.generator, options.parallel)?;
        let service = Service { model: model.clone(), options, engine, metrics: Metrics::default() };
        Ok(Server { listener, address, service: Arc::new(service) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answer requests, for ever.
    ///
    /// # Errors
    /// [`ServeError::Listen`] where the system takes the socket away.
    pub fn run(&self) -> Result<(), ServeError> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let service = self.service.clone();
                    let open = service.metrics.connections.fetch_add(1, Ordering::Relaxed);
                    let refused = open >= service.options.connections as u64;
                    // Without a thread the connection is closed, and the client may try again.
                    let spawned = std::thread::Builder::new().name("request".to_string()).spawn(move || {
                        let _closed = Closed(&service.metrics);
                        answer(&service, Connection::new(stream), refused);
                    });
                    if spawned.is_err() {
                        self.service.metrics.connections.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => return Err(ServeError::Listen { address: self.address.to_string(), error }),
            }
        }
    }
}

/// Errors of `accept` that end one connection, or that pass: there are too many open files for now.
fn is_of_one_connection(error: &io::Error) -> bool {
    const TOO_MANY_FILES: [i32; 2] = [23, 24];
    if error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code)) {
        std::thread::sleep(Duration::from_millis(10));
        return true;
    }
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::TimedOut
    )
}

/// Counts a connection down, however its thread ends.
struct Closed<'a>(&'a Metrics);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
