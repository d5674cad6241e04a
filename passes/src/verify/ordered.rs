//! Stage *ordered*: blocks are in the order in which they run, and their peaks are known.

use crate::ir::Graph;
use crate::verify::{Invariant, Violations};

pub(super) fn check(graph: &Graph, violations: &mut Violations) {
    for index in graph.reachable_blocks() {
        let place = format!("block {}", index.0);
        match graph.peaks.iter().find(|peak| peak.block == index) {
            None => violations.report(Invariant::PeakKnown, place, "has no known peak"),
            Some(peak) if peak.kept_bytes > peak.given_bytes => {
                let message = format!("peak rose from {} to {} bytes", peak.given_bytes, peak.kept_bytes);
                violations.report(Invariant::PeakNotRaised, place, message);
            }
            Some(_) => {}
        }
    }
}
