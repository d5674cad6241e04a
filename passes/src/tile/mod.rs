//! Spread each step of a program over the tiles of a machine: a search over the cost model, step by step.
//!
//! Of a product, the axes are grouped by what they are to a matrix unit (batch, rows, inputs, outputs), and all numbers of
//! parts are tried that leave whole blocks of the matrix units; of other steps, the layout of their operands, and
//! spreading over all axes. The fastest way is kept ([`StepCost::duration`]), with the reason; ties go to the one that
//! needs less memory. Steps that are equal in everything that matters are searched once.
//!
//! Knows the numbers of a program ([`Program`]), no graph: placements carry the numbers that steps have in the file, so
//! that they are chosen for what the file says. Cost: distinct steps x parts of each group.

mod candidates;

use candidates::candidates;
use ipuc_formats::machine::{
    BoundStep, CostError, Layout, Program, Source, Split, StepCost, Target, counted_cost, layout_of, step_cost,
    units::{Bytes, Cycles, Seconds},
};
use ipuc_formats::ops::AxisKind;
use std::collections::HashMap;

/// How a step is spread.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// The split.
    pub split: Split,
    /// What it costs.
    pub cost: StepCost,
    /// Why this one: what it was compared with.
    pub reason: String,
    /// It needs more memory in a tile than there is, however it is cut.
    pub exceeds_memory: bool,
    /// All of its operands lie where it computes.
    pub local: bool,
    /// Ways that were looked at; none where an equal step had been spread before.
    pub tried: u32,
}

/// How the values of a program lie in tiles, as far as its steps are spread.
#[derive(Debug, Default)]
pub(crate) struct Layouts(HashMap<Source, Layout>);

impl Layouts {
    /// Of each operand of a step.
    pub(crate) fn of_operands(&self, step: &BoundStep) -> Vec<Layout> {
        let of = |source: Source| self.0.get(&source).cloned().flatten();
        step.operands.iter().map(|operand| operand.as_ref().and_then(|tensor| of(tensor.source))).collect()
    }

    /// Note the results of a step that is spread like this.
    pub(crate) fn insert(&mut self, step: &BoundStep, split: &Split) {
        for (index, result) in step.results.iter().enumerate() {
            // Contents that a step appends to lie where state lies.
            let rests = step.view || (step.appends && matches!(result.source, Source::State(_)));
            let last = step.spaces.len().checked_sub(1).filter(|_| !rests);
            let tensor = step.operands.len() + index;
            self.0.insert(result.source, last.map(|last| layout_of(step, last, split, tensor, result.extents.len())));
        }
    }
}

/// Spread the steps of a program, in order. Each may use so much of the memory of a tile at once.
///
/// # Errors
/// [`CostError`] where the machine cannot compute a step.
pub fn tile(program: &Program, target: &Target, memory: Bytes) -> Result<Vec<Placed>, CostError> {
    let mut layouts = Layouts::default();
    let mut known: HashMap<String, Placed> = HashMap::new();
    let mut placed = Vec::with_capacity(program.steps.len());
    for step in &program.steps {
        let of_operands = layouts.of_operands(step);
        let key = key(step, &of_operands);
        let mut chosen = match known.get(&key) {
            Some(chosen) => Placed { tried: 0, ..chosen.clone() },
            None => {
                let chosen = search(step, target, memory, &of_operands)?;
                known.insert(key, chosen.clone());
                chosen
            }
        };
        // The search takes tiles to have equally many zeros; the way that it finds is charged for the ones that each has.
        if step.zeros.is_some() {
            chosen.cost = counted_cost(target, step, &chosen.split, &of_operands)?;
        }
        layouts.insert(step, &chosen.split);
        placed.push(chosen);
    }
    Ok(placed)
}

/// Everything that the search depends on.
fn key(step: &BoundStep, layouts: &[Layout]) -> String {
    let kind = |source: Source| match source {
        Source::Value(_) => 'v',
        Source::State(_) => 's',
        Source::Weight(_) => 'w',
    };
    let operands: Vec<_> = step
        .operands
        .iter()
        .map(|tensor| tensor.as_ref().map(|tensor| (&tensor.extents, tensor.bytes, kind(tensor.source))))
        .collect();
    let results: Vec<_> = step.results.iter().map(|tensor| (&tensor.extents, tensor.bytes)).collect();
    let products: Vec<_> =
        step.products.iter().map(|product| (product.precision, product.converted, &product.roles)).collect();
    let kinds: Vec<Vec<AxisKind>> =
        step.spaces.iter().map(|space| space.axes.iter().map(|axis| axis.kind).collect()).collect();
    let strides: Vec<_> = step.spaces.iter().flat_map(|space| space.axes.iter().map(|axis| &axis.at)).collect();
    format!(
        "{} {:?} {operands:?} {results:?} {products:?} {kinds:?} {strides:?} {:?} {:?} {:?} {layouts:?}",
        step.operator,
        step.extents,
        step.vector,
        step.weight_bytes,
        step.zeros.as_ref().map(|zeros| (zeros.kept, zeros.read))
    )
}

fn search(step: &BoundStep, target: &Target, available: Bytes, layouts: &[Layout]) -> Result<Placed, CostError> {
    let mut best: Option<Placed> = None;
    // The fastest of the ways that were not taken.
    let mut next: Option<Seconds> = None;
    let mut tried = 0;
    for split in candidates(step, target, layouts) {
        let mut split = split;
        let mut cost = step_cost(target, step, &split, layouts)?;
        while cost.sram > available && cut(step, &mut split) {
            cost = step_cost(target, step, &split, layouts)?;
        }
        tried += 1;
        let exceeds_memory = cost.sram > available;
        let local = cost.received.0 == 0.0;
        let placed = Placed { split, cost, reason: String::new(), exceeds_memory, local, tried: 0 };
        let rank = |placed: &Placed| {
            (placed.exceeds_memory, placed.cost.duration(target).0, placed.cost.sram.0, placed.cost.tiles)
        };
        let better = best
            .as_ref()
            .is_none_or(|best| rank(&placed).partial_cmp(&rank(best)).is_some_and(std::cmp::Ordering::is_lt));
        let left = if better { best.replace(placed) } else { Some(placed) };
        let left = left.filter(|left| !left.exceeds_memory).map(|left| left.cost.duration(target));
        next = match (next, left) {
            (Some(one), Some(other)) => Some(if other < one { other } else { one }),
            (one, other) => one.or(other),
        };
    }
    let whole = Split::whole(step);
    let alone = step_cost(target, step, &whole, layouts)?;
    let mut best = best.unwrap_or_else(|| {
        let (split, cost) = (whole, alone.clone());
        Placed { split, local: true, cost, reason: String::new(), exceeds_memory: false, tried: 0 }
    });
    best.tried = tried;
    best.reason = reason(target, &best, tried, next, alone.duration(target));
    Ok(best)
}

/// What a way was compared with, and what its time goes to.
fn reason(target: &Target, best: &Placed, tried: u32, next: Option<Seconds>, alone: Seconds) -> String {
    let cost = &best.cost;
    let parts = [
        ("products", cost.matrix),
        ("vectors and copies", cost.vector + cost.copies),
        ("exchange", cost.exchange + cost.sync),
    ];
    let all: f64 = parts.iter().map(|(_, cycles)| cycles.0).sum();
    let own =
        |&(name, cycles): &(&str, Cycles)| (cycles.0 > 0.0).then(|| format!("{name} {:.0} %", 100.0 * cycles.0 / all));
    let spent: Vec<String> = parts.iter().filter_map(own).collect();
    let mut text = cost.duration(target).to_string();
    if best.exceeds_memory {
        text.push_str(&format!(", the least memory of {tried} ways: none fits"));
    } else if let Some(next) = next {
        text.push_str(&format!(", the fastest of {tried} ways (the next {next})"));
    }
    if !spent.is_empty() {
        text.push_str(&format!("; {}", spent.join(", ")));
    }
    if let (Some(stays), Some(turned)) = (cost.stationary, cost.turned) {
        text.push_str(&format!("; operand {stays} stays in matrix units (the other: {turned})"));
    }
    if cost.tiles > 1 {
        text.push_str(&format!("; {alone} on one tile"));
    }
    text
}

/// Cut the longest axis that may be cut in twice as many parts in time; whether there was one.
fn cut(step: &BoundStep, split: &mut Split) -> bool {
    let mut longest: Option<(i64, usize, usize)> = None;
    for (space, axes) in step.spaces.iter().enumerate() {
        for (axis, own) in axes.axes.iter().enumerate() {
            let parts = i64::from(split.tiles[space][axis]) * i64::from(split.time[space][axis]);
            let left = step.extents[space][axis] / parts;
            let splittable = matches!(own.kind, AxisKind::Parallel | AxisKind::Reduced) && left >= 2;
            if splittable && longest.is_none_or(|(most, ..)| left > most) {
                longest = Some((left, space, axis));
            }
        }
    }
    match longest {
        Some((_, space, axis)) => {
            split.time[space][axis] *= 2;
            true
        }
        None => false,
    }
}
