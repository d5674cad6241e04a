//! Text from a small language model: by the library (`text`), several side by side (`batch`), with guesses of a smaller model (`draft`), of models that read an input
//! (`encoder`), of
//! several models that read each other (`joined`), of a form that is asked for (`grammar`), over HTTP (`server`), and with state that is forgotten behind windows (`windows`).
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod batch;
mod draft;
mod encoder;
mod grammar;
mod joined;
mod server;
mod text;
mod windows;
