//! Counts, in the text format of Prometheus.

use crate::generate::Usage;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What a server has done.
#[derive(Default)]
pub(super) struct Metrics {
    /// Connections that are open.
    pub(super) connections: AtomicU64,
    /// Replies by status.
    replies: Mutex<BTreeMap<u16, u64>>,
    prompt_tokens: AtomicU64,
    prompt_known: AtomicU64,
    tokens: AtomicU64,
    read_bytes: AtomicU64,
    milliseconds: AtomicU64,
}

impl Metrics {
    pub(super) fn replied(&self, status: u16) {
        *self.replies.lock().unwrap_or_else(PoisonError::into_inner).entry(status).or_default() += 1;
    }

    pub(super) fn generated(&self, usage: &Usage) {
        let add = |counter: &AtomicU64, count: u64| counter.fetch_add(count, Ordering::Relaxed);
        add(&self.prompt_tokens, usage.prompt_tokens as u64);
        add(&self.prompt_known, usage.prompt_known as u64);
        add(&self.tokens, usage.tokens as u64);
        add(&self.read_bytes, usage.read_bytes);
        add(&self.milliseconds, (usage.prompt_time + usage.time).as_millis() as u64);
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, kind: &str, value: &AtomicU64| {
            // Writing into a string does not fail.
            let _ = writeln!(text, "# TYPE ipuc_{name} {kind}\nipuc_{name} {}", value.load(Ordering::Relaxed));
        };
        line("connections", "gauge", &self.connections);
        line("prompt_tokens_total", "counter", &self.prompt_tokens);
        line("prompt_tokens_known_total", "counter", &self.prompt_known);
        line("tokens_total", "counter", &self.tokens);
        line("read_bytes_total", "counter", &self.read_bytes);
        line("generation_milliseconds_total", "counter", &self.milliseconds);
        let _ = writeln!(text, "# TYPE ipuc_replies_total counter");
        for (status, count) in &*self.replies.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(text, "ipuc_replies_total{{status=\"{status}\"}} {count}");
        }
        text
    }
}
