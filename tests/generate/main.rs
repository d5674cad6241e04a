//! Text from a small language model: by the library (`text`), and over HTTP (`server`).
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod server;
#[path = "../support/mod.rs"]
mod support;
mod text;
