//! One order of steps, with the least live activation memory that is found.
//!
//! ```text
//! constant @shape : i64[1] = i64[1]:0004000000000000
//! constant @axes : i64[1] = i64[1]:0000000000000000
//! entry "main"("x", "y") -> ("c", "d") = block 0
//! block 0(%x : f32[1], %y : f32[1]) {
//!   %a : f32[1024] = expand %x, @shape
//!   %b : f32[1024] = expand %y, @shape
//!   %c : f32[] = reduce function=sum %a, @axes
//!   %d : f32[] = reduce function=sum %b, @axes
//!   return %c, %d
//! }
//! ```
//! becomes
//! ```text
//! constant @shape : i64[1] = i64[1]:0004000000000000
//! constant @axes : i64[1] = i64[1]:0000000000000000
//! entry "main"("x", "y") -> ("c", "d") = block 0
//! block 0(%x : f32[1], %y : f32[1]) {
//!   %a : f32[1024] = expand %x, @shape
//!   %c : f32[] = reduce function=sum %a, @axes
//!   %b : f32[1024] = expand %y, @shape
//!   %d : f32[] = reduce function=sum %b, @axes
//!   return %c, %d
//! }
//! peak 0 given 8196 kept 4104
//! ```
//!
//! Establishes: the steps of each block stand in the order in which they run; peak live memory, at the sizes that
//! [`Options::dimensions`] states (1 for dimensions without), is never above that of the order it was given.
//! Leaves alone: what steps compute; the order of effects. A greedy schedule (the ready step that frees most runs next,
//! then the one that came first) is kept where its peak is lower. Cost: steps × log(ready steps).

use crate::error::PassError;
use crate::ir::{Block, Changes, Dependencies, Graph, Operand, Peak, Step, ValueId};
use crate::options::Options;
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Bindings;
use ipuc_formats::fact::{Shape, Type};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Put the steps of every block in order; see the module.
///
/// # Errors
/// None today; the signature is that of every pass.
pub fn order(graph: &mut Graph, options: &Options) -> Result<Changes, PassError> {
    let mut changes = 0;
    graph.peaks.clear();
    for index in graph.reachable_blocks() {
        let sizes = sizes(graph, index, &options.dimensions);
        let dependencies = graph.dependencies(index);
        let block = graph.block_mut(index);
        let given_bytes = peak(&block.steps, &(0..block.steps.len()).collect::<Vec<_>>(), block, &sizes);
        let schedule = schedule(block, &dependencies, &sizes);
        let scheduled_bytes = peak(&block.steps, &schedule, block, &sizes);
        let better = scheduled_bytes < given_bytes;
        if better {
            let mut steps: Vec<Option<Step>> = std::mem::take(&mut block.steps).into_iter().map(Some).collect();
            block.steps = schedule.iter().filter_map(|&at| steps[at].take()).collect();
            changes += schedule.iter().enumerate().filter(|&(place, &at)| place != at).count();
        }
        let kept_bytes = if better { scheduled_bytes } else { given_bytes };
        graph.peaks.push(Peak { block: index, given_bytes, kept_bytes });
    }
    Ok(Changes::of_steps(changes))
}

/// Bytes of every value that a block defines; a view of another value has none of its own.
type Sizes = HashMap<ValueId, u64>;

fn sizes(graph: &Graph, index: BlockIndex, dimensions: &Bindings) -> Sizes {
    let block = graph.block(index);
    let views = block.steps.iter().filter(|step| step.op.view_of().is_some());
    let views: std::collections::HashSet<ValueId> = views.flat_map(|step| step.results.iter().copied()).collect();
    let defined = block.steps.iter().flat_map(|step| &step.results);
    defined
        .filter(|value| !views.contains(value))
        .map(|&value| (value, value_bytes(&graph.value(value).fact.kind, dimensions)))
        .collect()
}

/// Bytes of a value at stated dimensions; a dimension without a statement counts as 1, an unknown rank as nothing.
pub fn value_bytes(kind: &Type, dimensions: &Bindings) -> u64 {
    let Type::Tensor { dtype, shape: Shape::Ranked(dims) } = kind else { return 0 };
    let extents = dims.iter().map(|dim| {
        let stated = |symbol: &str| Some(ipuc_formats::dim::Dim::known(dimensions.get(symbol).unwrap_or(1)));
        dim.substitute(&stated).as_known().unwrap_or(1).max(0) as u64
    });
    let count = extents.fold(1u64, u64::saturating_mul);
    usize::try_from(count).ok().and_then(|count| dtype.packed_bytes(count)).map_or(0, |bytes| bytes as u64)
}

/// How often each value is still to be read, with one read more for results of the block. A read of a view is a read of
/// what it views.
fn remaining_reads(block: &Block, roots: &HashMap<ValueId, ValueId>) -> HashMap<ValueId, usize> {
    let mut reads: HashMap<ValueId, usize> = HashMap::new();
    let operands = block.steps.iter().flat_map(|step| &step.operands).chain(&block.results);
    for operand in operands {
        if let Operand::Value(value) = operand {
            *reads.entry(root(roots, *value)).or_default() += 1;
        }
    }
    reads
}

/// What each view is a view of, through chains of views.
fn view_roots(block: &Block) -> HashMap<ValueId, ValueId> {
    let mut roots = HashMap::new();
    for step in &block.steps {
        if let Some(index) = step.op.view_of()
            && let Some(Operand::Value(viewed)) = step.operands.get(index)
            && let Some(&result) = step.results.first()
        {
            let end = root(&roots, *viewed);
            roots.insert(result, end);
        }
    }
    roots
}

fn root(roots: &HashMap<ValueId, ValueId>, value: ValueId) -> ValueId {
    roots.get(&value).copied().unwrap_or(value)
}

/// Peak of live bytes when the steps run in this order: results are live from their step to their last reader.
fn peak(steps: &[Step], schedule: &[usize], block: &Block, sizes: &Sizes) -> u64 {
    let roots = view_roots(block);
    let mut reads = remaining_reads(block, &roots);
    let mut live = 0u64;
    let mut peak = 0u64;
    for &at in schedule {
        let step = &steps[at];
        live += step.results.iter().filter_map(|result| sizes.get(result)).sum::<u64>();
        peak = peak.max(live);
        live -= released(step, &mut reads, &roots, sizes);
    }
    peak
}

/// Bytes that nobody reads after this step; counts the step's reads as done.
fn released(step: &Step, reads: &mut HashMap<ValueId, usize>, roots: &HashMap<ValueId, ValueId>, sizes: &Sizes) -> u64 {
    let mut bytes = 0;
    for operand in &step.operands {
        let Operand::Value(value) = operand else { continue };
        let value = root(roots, *value);
        if let Some(left) = reads.get_mut(&value) {
            *left -= 1;
            if *left == 0 {
                bytes += sizes.get(&value).copied().unwrap_or(0);
            }
        }
    }
    // A result that nobody reads lives only while its step runs.
    let unread = step.results.iter().filter(|&&result| reads.get(&root(roots, result)).copied().unwrap_or(0) == 0);
    bytes + unread.filter_map(|result| sizes.get(result)).sum::<u64>()
}

/// A greedy schedule: of the ready steps the one that adds least live memory, then the one that came first.
fn schedule(block: &Block, dependencies: &Dependencies, sizes: &Sizes) -> Vec<usize> {
    let graph = &dependencies.graph;
    let roots = view_roots(block);
    let mut reads = remaining_reads(block, &roots);
    let mut readers: HashMap<ValueId, Vec<usize>> = HashMap::new();
    for (at, step) in block.steps.iter().enumerate() {
        for operand in &step.operands {
            if let Operand::Value(value) = operand {
                readers.entry(root(&roots, *value)).or_default().push(at);
            }
        }
    }
    let incoming = |node| graph.neighbors_directed(node, petgraph::Direction::Incoming).count();
    let mut waiting: Vec<usize> = graph.node_indices().map(incoming).collect();
    let mut done = vec![false; waiting.len()];
    let mut ready: BinaryHeap<Reverse<(i64, usize)>> = BinaryHeap::new();
    let growth = |at: usize, reads: &HashMap<ValueId, usize>| growth(&block.steps[at], reads, &roots, sizes);
    ready.extend((0..waiting.len()).filter(|&at| waiting[at] == 0).map(|at| Reverse((growth(at, &reads), at))));
    let mut order = Vec::with_capacity(waiting.len());
    while let Some(Reverse((_, next))) = ready.pop() {
        // A step is pushed again when its growth falls; the earlier entry is stale.
        if std::mem::replace(&mut done[next], true) {
            continue;
        }
        order.push(next);
        let step = &block.steps[next];
        released(step, &mut reads, &roots, sizes);
        for operand in &step.operands {
            let Operand::Value(value) = operand else { continue };
            let value = root(&roots, *value);
            if reads.get(&value) == Some(&1) {
                // One reader is left: it frees the value now. Each value gets here once.
                let last = readers[&value].iter().copied().find(|&at| !done[at] && waiting[at] == 0);
                ready.extend(last.map(|at| Reverse((growth(at, &reads), at))));
            }
        }
        for follower in graph.neighbors(petgraph::graph::NodeIndex::new(next)) {
            let follower = follower.index();
            waiting[follower] -= 1;
            if waiting[follower] == 0 {
                ready.push(Reverse((growth(follower, &reads), follower)));
            }
        }
    }
    order
}

/// Bytes that live memory grows by when a step runs now.
fn growth(step: &Step, reads: &HashMap<ValueId, usize>, roots: &HashMap<ValueId, ValueId>, sizes: &Sizes) -> i64 {
    let mut grown: i64 = step.results.iter().filter_map(|result| sizes.get(result)).map(|&bytes| bytes as i64).sum();
    let mut counted: Vec<(ValueId, usize)> = Vec::with_capacity(step.operands.len());
    for operand in &step.operands {
        let Operand::Value(value) = operand else { continue };
        let value = root(roots, *value);
        match counted.iter_mut().find(|(seen, _)| *seen == value) {
            Some((_, times)) => *times += 1,
            None => counted.push((value, 1)),
        }
    }
    for (value, times) in counted {
        if reads.get(&value) == Some(&times) {
            grown -= sizes.get(&value).copied().unwrap_or(0) as i64;
        }
    }
    grown
}
