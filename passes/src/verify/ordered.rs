//! Stage *ordered*:
//!
//! 1. every block that entries reach has a known peak, which is at most that of the order it was given.

use crate::ir::Graph;
use crate::verify::Violation;

pub(super) fn check(graph: &Graph, violations: &mut Vec<Violation>) {
    for index in graph.reachable_blocks() {
        let place = format!("block {}", index.0);
        match graph.peaks.iter().find(|peak| peak.block == index) {
            None => violations.push(Violation { place, message: "has no known peak".to_string() }),
            Some(peak) if peak.kept_bytes > peak.given_bytes => {
                let message = format!("peak rose from {} to {} bytes", peak.given_bytes, peak.kept_bytes);
                violations.push(Violation { place, message });
            }
            Some(_) => {}
        }
    }
}
