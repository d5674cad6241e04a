//! Stage *imported*: names and indices are sound.

use crate::ir::{ConstantData, ConstantId, Entry, Graph, Operand, StateUse, ValueId};
use crate::verify::{Invariant, Violations, place};
use ipuc_formats::attribute::BlockIndex;
use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;
use std::collections::HashSet;

pub(super) fn check(graph: &Graph, violations: &mut Violations) {
    for entry in &graph.entries {
        check_entry(graph, entry, violations);
    }
    check_states(graph, violations);
    for peak in &graph.peaks {
        if peak.block.0 as usize >= graph.blocks.len() {
            violations.report(Invariant::BlockExists, "peaks", format!("block {} does not exist", peak.block.0));
        }
    }
    check_runners(graph, violations);
    let mut definitions = Definitions { graph, violations, defined: HashSet::new(), constants: HashSet::new() };
    for index in graph.reachable_blocks() {
        definitions.check_block(index);
    }
}

fn check_entry(graph: &Graph, entry: &Entry, violations: &mut Violations) {
    let place = format!("entry {}", entry.name);
    let (inputs, outputs) = (entry.inputs.len(), entry.outputs.len());
    match graph.blocks.get(entry.block.0 as usize) {
        None => {
            violations.report(Invariant::BlockExists, &place, format!("block {} does not exist", entry.block.0));
        }
        Some(block) if (block.parameters.len(), block.results.len()) != (inputs, outputs) => {
            violations.report(Invariant::PortsNamed, &place, "names and signature differ in length");
        }
        Some(_) => {}
    }
    for used in &entry.states {
        let beyond = |port: Option<usize>, count: usize| port.is_some_and(|port| port >= count);
        let nothing = used.input.is_none() && used.output.is_none();
        let states = graph.states.len();
        if nothing || used.state >= states || beyond(used.input, inputs) || beyond(used.output, outputs) {
            let StateUse { state, input, output } = used;
            let message = format!("state {state} by input {input:?} and output {output:?} of {inputs} and {outputs}");
            violations.report(Invariant::StatesExist, &place, message);
        }
    }
}

fn check_states(graph: &Graph, violations: &mut Violations) {
    for (index, state) in graph.states.iter().enumerate() {
        if !graph.entries.iter().flat_map(|entry| &entry.states).any(|used| used.state == index) {
            violations.report(Invariant::StatesUsed, format!("state {}", state.name), "no entry uses it");
        }
    }
}

/// From where each block is run.
fn check_runners(graph: &Graph, violations: &mut Violations) {
    let mut runners = vec![0usize; graph.blocks.len()];
    for entry in &graph.entries {
        if let Some(count) = runners.get_mut(entry.block.0 as usize) {
            *count += 1;
        }
    }
    let mut runs: DiGraph<(), ()> = DiGraph::new();
    let nodes: Vec<_> = graph.blocks.iter().map(|_| runs.add_node(())).collect();
    for index in graph.block_indices() {
        for (at, step) in graph.block(index).steps.iter().enumerate() {
            for body in step.op.blocks() {
                match runners.get_mut(body.0 as usize) {
                    Some(count) => {
                        *count += 1;
                        runs.add_edge(nodes[index.0 as usize], nodes[body.0 as usize], ());
                    }
                    None => {
                        let message = format!("block {} does not exist", body.0);
                        violations.report(Invariant::BlockExists, place(index, at, step), message);
                    }
                }
            }
        }
    }
    for (index, count) in runners.into_iter().enumerate().filter(|&(_, count)| count > 1) {
        violations.report(Invariant::OneRunner, format!("block {index}"), format!("is run from {count} places"));
    }
    for circle in tarjan_scc(&runs) {
        if circle.len() > 1 || runs.contains_edge(circle[0], circle[0]) {
            let mut blocks: Vec<usize> = circle.iter().map(|node| node.index()).collect();
            blocks.sort_unstable();
            violations.report(Invariant::NoRecursion, format!("blocks {blocks:?}"), "run themselves");
        }
    }
}

/// What is defined and read in the blocks so far.
struct Definitions<'a> {
    graph: &'a Graph,
    violations: &'a mut Violations,
    defined: HashSet<ValueId>,
    constants: HashSet<ConstantId>,
}

impl Definitions<'_> {
    fn check_block(&mut self, index: BlockIndex) {
        let block = self.graph.block(index);
        let mut visible = HashSet::new();
        self.define(&block.parameters, &mut visible, &format!("block {}", index.0));
        for (at, step) in block.steps.iter().enumerate() {
            let place = place(index, at, step);
            self.read(&step.operands, &visible, &place);
            self.define(&step.results, &mut visible, &place);
        }
        self.read(&block.results, &visible, &format!("results of block {}", index.0));
    }

    fn define(&mut self, values: &[ValueId], visible: &mut HashSet<ValueId>, place: &str) {
        for &value in values {
            if value.0 as usize >= self.graph.values.len() {
                self.violations.report(Invariant::ValueExists, place, format!("{value} does not exist"));
            }
            if !self.defined.insert(value) {
                self.violations.report(Invariant::DefinedOnce, place, format!("{value} is defined twice"));
            }
            visible.insert(value);
        }
    }

    fn read(&mut self, operands: &[Operand], visible: &HashSet<ValueId>, place: &str) {
        for operand in operands {
            match operand {
                Operand::Absent => {}
                Operand::Value(value) if visible.contains(value) => {}
                Operand::Value(value) if value.0 as usize >= self.graph.values.len() => {
                    self.violations.report(Invariant::ValueExists, place, format!("{value} does not exist"));
                }
                Operand::Value(value) => {
                    let message = format!("{value} is read before it is defined");
                    self.violations.report(Invariant::DefinedBeforeRead, place, message);
                }
                Operand::Constant(id) => self.read_constant(*id, place),
            }
        }
    }

    /// Each constant is looked at once, with what it is computed from.
    fn read_constant(&mut self, id: ConstantId, place: &str) {
        let Some(constant) = self.graph.constants.get(id.0 as usize) else {
            self.violations.report(Invariant::ConstantExists, place, format!("{id} does not exist"));
            return;
        };
        if !self.constants.insert(id) {
            return;
        }
        let stored = match &constant.data {
            ConstantData::Tensor(_) | ConstantData::Hashed(_) => None,
            ConstantData::Stored(stored) => Some(stored.source),
            ConstantData::Rounded(rounded) => {
                for read in [Some(rounded.weight), rounded.factor].into_iter().flatten() {
                    self.read_constant(read, &format!("rounding of {id}"));
                }
                None
            }
            ConstantData::Recipe { operands, .. } => {
                for operand in operands.iter().flatten() {
                    self.read_constant(*operand, &format!("recipe of {id}"));
                }
                None
            }
        };
        let named = stored.into_iter().chain(constant.origin.map(|origin| origin.source));
        for source in named.filter(|&source| source as usize >= self.graph.sources.len()) {
            let message = format!("source {source} does not exist");
            self.violations.report(Invariant::SourceExists, id.to_string(), message);
        }
    }
}
