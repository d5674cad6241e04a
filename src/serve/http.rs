//! HTTP/1.1, one request a connection: its head and body within limits of size and time, and replies at once or in chunks.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Most bytes of the request line and all headers.
const HEAD_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
/// How long a request may take to arrive, and a piece of a reply to be taken.
const PATIENCE: Duration = Duration::from_secs(10);
/// What of a refused request is read at most.
const DRAINED_BYTES: usize = 64 << 10;

/// A connection of a client.
pub(super) struct Connection {
    stream: TcpStream,
    until: Instant,
    chunked: bool,
}

/// What a client asks for.
pub(super) struct Request {
    pub(super) method: String,
    /// Without the query.
    pub(super) path: String,
    /// What follows `Authorization: Bearer`.
    pub(super) key: Option<String>,
    pub(super) body: Vec<u8>,
}

/// Why there is no request.
pub(super) enum Refused {
    /// The client is gone or too slow: there is nobody to answer.
    Gone,
    /// The request cannot be taken: status and reason.
    Status(u16, &'static str),
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Connection {
        Connection { stream, until: Instant::now() + PATIENCE, chunked: false }
    }

    /// The request, with a body of at most so many bytes.
    pub(super) fn request(&mut self, body_bytes: usize) -> Result<Request, Refused> {
        let gone = |_| Refused::Gone;
        self.stream.set_write_timeout(Some(PATIENCE)).map_err(gone)?;
        self.stream.set_nodelay(true).map_err(gone)?;
        let mut bytes = Vec::new();
        let (mut request, head, length, waits) = loop {
            if let Some(parsed) = parse(&bytes)? {
                break parsed;
            }
            if bytes.len() >= HEAD_BYTES {
                return Err(Refused::Status(431, "the headers are too long"));
            }
            self.receive(&mut bytes, HEAD_BYTES)?;
        };
        if length > body_bytes {
            return Err(Refused::Status(413, "the body is too long"));
        }
        if waits {
            self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").map_err(gone)?;
        }
        while bytes.len() < head + length {
            let missing = head + length - bytes.len();
            self.receive(&mut bytes, missing)?;
        }
        request.body = bytes[head..head + length].to_vec();
        Ok(request)
    }

    /// Append what has arrived, at most so many bytes.
    fn receive(&mut self, bytes: &mut Vec<u8>, most: usize) -> Result<(), Refused> {
        let mut buffer = [0; 8 << 10];
        let most = buffer.len().min(most);
        let left = self.until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        let left = left.ok_or(Refused::Status(408, "the request takes too long to arrive"))?;
        self.stream.set_read_timeout(Some(left)).map_err(|_| Refused::Gone)?;
        match self.stream.read(&mut buffer[..most]) {
            Ok(0) => Err(Refused::Gone),
            Ok(count) => {
                bytes.extend_from_slice(&buffer[..count]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(Refused::Status(408, "the request takes too long to arrive"))
            }
            Err(_) => Err(Refused::Gone),
        }
    }

    /// Take what the client still sends, so that it sees the reply before the connection ends.
    pub(super) fn linger(&mut self) {
        let mut bytes = Vec::new();
        while bytes.len() < DRAINED_BYTES && self.receive(&mut bytes, DRAINED_BYTES).is_ok() {}
    }

    /// Whether the client has closed the connection.
    pub(super) fn is_gone(&self) -> bool {
        if self.stream.set_nonblocking(true).is_err() {
            return true;
        }
        let gone = match self.stream.peek(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
        gone || self.stream.set_nonblocking(false).is_err()
    }

    /// Reply with a whole body.
    pub(super) fn reply(&mut self, status: u16, kind: &str, body: &[u8]) -> io::Result<()> {
        let head = head(status, kind, &format!("Content-Length: {}", body.len()));
        self.stream.write_all(&[head.as_bytes(), body].concat())?;
        self.stream.shutdown(Shutdown::Write)
    }

    /// Begin a reply that comes in pieces.
    pub(super) fn begin(&mut self, kind: &str) -> io::Result<()> {
        self.chunked = true;
        self.stream.write_all(head(200, kind, "Transfer-Encoding: chunked\r\nCache-Control: no-store").as_bytes())
    }

    /// A piece of a reply.
    pub(super) fn piece(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(&[format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat())
    }

    /// The end of a reply in pieces.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.stream.write_all(b"0\r\n\r\n")?;
        self.stream.shutdown(Shutdown::Write)
    }

    /// A reply in pieces has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.chunked
    }
}

fn head(status: u16, kind: &str, length: &str) -> String {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    };
    format!("HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\n{length}\r\nConnection: close\r\n\r\n")
}

/// Head of a request, its length, that of the body, and whether the client waits to be asked for it; `None` where the head has
/// not arrived wholly.
fn parse(bytes: &[u8]) -> Result<Option<(Request, usize, usize, bool)>, Refused> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    let head = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(Refused::Status(431, "there are too many headers")),
        Err(_) => return Err(Refused::Status(400, "this is no HTTP request")),
    };
    let value = |name: &str| {
        let mut found = parsed.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        let value = found.next().map(|header| String::from_utf8_lossy(header.value).trim().to_string());
        (value, found.next().is_some())
    };
    let method = parsed.method.unwrap_or_default().to_string();
    let path = parsed.path.unwrap_or_default().split('?').next().unwrap_or_default().to_string();
    if value("transfer-encoding").0.is_some() {
        return Err(Refused::Status(411, "the request must state the length of its body"));
    }
    let length = match value("content-length") {
        (None, _) => 0,
        (Some(length), false) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            length.parse().map_err(|_| Refused::Status(413, "the body is too long"))?
        }
        (Some(_), _) => return Err(Refused::Status(400, "the length of the body is no number")),
    };
    let waits = value("expect").0.is_some_and(|expected| expected.eq_ignore_ascii_case("100-continue"));
    let key = value("authorization").0.and_then(|text| Some(text.strip_prefix("Bearer ")?.trim().to_string()));
    Ok(Some((Request { method, path, key, body: Vec::new() }, head, length, waits)))
}
