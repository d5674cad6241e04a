//! What the time of a row is made of: its steps, those that are equal together.

use crate::report::run;
use crate::rows::rows;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Steps of one kind: how many there are, and their times in microseconds.
#[derive(Default)]
struct Sum {
    count: usize,
    busy: f64,
    stall: f64,
}

/// The steps of all rows of a machine, with what each takes by its parts in cycles, longest kinds first.
pub fn page(target: &str) -> anyhow::Result<String> {
    let folder = tempfile::tempdir()?;
    let mut page = String::new();
    for row in rows().filter(|row| row.target == target && row.traffic.is_none()) {
        let (target, simulated) = run(folder.path(), row)?;
        let total = simulated.report.makespan.0 * 1e6;
        let _ = writeln!(page, "{}: {total:.1} us", row.name);
        let mut kinds: BTreeMap<String, Sum> = BTreeMap::new();
        for ((step, placed), report) in
            simulated.program.steps.iter().zip(&simulated.placed).zip(&simulated.report.steps)
        {
            let cost = &placed.cost;
            let kind = format!(
                "{} {:?} split {:?}: matrix {:.0} vector {:.0} copies {:.0} exchange {:.0} (other layout {:.0}, {:.0} pieces) latency {:.0} cycles, {} phases",
                step.operator,
                step.extents,
                placed.split.tiles,
                cost.matrix.0,
                cost.vector.0,
                cost.copies.0,
                (cost.exchange + cost.sync).0,
                cost.relayout.0,
                cost.transfers.max(cost.transfers_sent),
                cost.latency(&target).0,
                cost.phases
            );
            let sum = kinds.entry(kind).or_default();
            sum.count += 1;
            sum.busy += report.busy.0 * 1e6;
            sum.stall += report.stall.0 * 1e6;
        }
        let mut kinds: Vec<(String, Sum)> = kinds.into_iter().collect();
        kinds.sort_by(|(_, left), (_, right)| (right.busy + right.stall).total_cmp(&(left.busy + left.stall)));
        for (kind, Sum { count, busy, stall }) in kinds {
            let _ = writeln!(page, "  {busy:9.2} us and {stall:9.2} us of waiting in {count} x {kind}");
        }
    }
    Ok(page)
}
