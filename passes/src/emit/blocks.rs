//! Numbers for blocks, values and constants, and the records of steps.

use crate::emit::EmitError;
use crate::ir::{ConstantId, Entry, Graph, Operand, State, StateUse, Step, ValueId};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dim::Dim;
use ipuc_formats::fact::{Contents, Fact, Type};
use ipuc_formats::model::{
    BlockRecord, EntryRecord, OperandRecord, ReadRecord, Role, StateRecord, StepRecord, ValueRecord,
};
use ipuc_formats::ops::{Op, Read, Runs};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Positions in the file for everything that the graph names.
pub(super) struct Numbering {
    /// Blocks in the order of the file: a body after the block that runs it.
    pub(super) blocks: Vec<BlockIndex>,
    block_numbers: HashMap<BlockIndex, u32>,
    /// Constants in the order of first use.
    pub(super) constants: Vec<ConstantId>,
    constant_numbers: HashMap<ConstantId, u32>,
    /// Blocks that a loop runs, directly or not.
    repeated: std::collections::HashSet<BlockIndex>,
}

/// Number blocks and constants in execution order: a body's constants follow the step that runs it.
pub(super) fn number(graph: &Graph) -> Numbering {
    let blocks = graph.reachable_blocks();
    let block_numbers = blocks.iter().enumerate().map(|(number, &block)| (block, number as u32)).collect();
    let mut numbering = Numbering {
        blocks,
        block_numbers,
        constants: Vec::new(),
        constant_numbers: HashMap::new(),
        repeated: std::collections::HashSet::new(),
    };
    for entry in &graph.entries {
        numbering.visit(graph, entry.block, false);
    }
    numbering
}

impl Numbering {
    fn visit(&mut self, graph: &Graph, block: BlockIndex, in_loop: bool) {
        if in_loop {
            self.repeated.insert(block);
        }
        for step in &graph.block(block).steps {
            self.meet(&step.operands);
            for body in step.op.bodies() {
                self.visit(graph, body.block, in_loop || body.runs == Runs::Repeated);
            }
        }
        self.meet(&graph.block(block).results);
    }

    fn meet(&mut self, operands: &[Operand]) {
        for operand in operands {
            if let Operand::Constant(id) = operand
                && !self.constant_numbers.contains_key(id)
            {
                self.constant_numbers.insert(*id, self.constants.len() as u32);
                self.constants.push(*id);
            }
        }
    }

    /// A constant's number.
    pub(super) fn constant(&self, id: ConstantId) -> u32 {
        self.constant_numbers[&id]
    }

    fn block(&self, index: BlockIndex) -> u32 {
        self.block_numbers[&index]
    }
}

/// Records of all entries.
pub(super) fn entries(graph: &Graph, numbering: &Numbering) -> Vec<EntryRecord> {
    let port = |port: Option<usize>| port.map(|port| port as u32);
    let used = |used: &StateUse| ipuc_formats::model::StateUse {
        state: used.state as u32,
        input: port(used.input),
        output: port(used.output),
    };
    let record = |entry: &Entry| EntryRecord {
        name: entry.name.clone(),
        block: numbering.block(entry.block),
        inputs: entry.inputs.clone(),
        outputs: entry.outputs.clone(),
        states: entry.states.iter().map(used).collect(),
    };
    graph.entries.iter().map(record).collect()
}

/// Records of all states, with the types of the inputs or outputs by which they are used first.
///
/// # Errors
/// [`EmitError::UnusedState`] for a state that no entry uses.
pub(super) fn states(graph: &Graph) -> Result<Vec<StateRecord>, EmitError> {
    let kind = |state: usize, entry: &Entry| {
        let block = graph.block(entry.block);
        let used = entry.states.iter().find(|used| used.state == state)?;
        let parameter = used.input.map(|input| Operand::Value(block.parameters[input]));
        let operand = parameter.or(used.output.map(|output| block.results[output]))?;
        graph.fact(operand).map(|fact| fact.kind)
    };
    let record = |(index, state): (usize, &State)| {
        let name = state.name.clone();
        match graph.entries.iter().find_map(|entry| kind(index, entry)) {
            Some(kind) => Ok(StateRecord { name, kind, growth: state.growth }),
            None => Err(EmitError::UnusedState { state: name }),
        }
    };
    graph.states.iter().enumerate().map(record).collect()
}

/// Records of all blocks, in the order of their numbers.
pub(super) fn records(graph: &Graph, numbering: &Numbering) -> Vec<BlockRecord> {
    numbering.blocks.iter().map(|&block| record(graph, block, numbering)).collect()
}

fn record(graph: &Graph, index: BlockIndex, numbering: &Numbering) -> BlockRecord {
    let block = graph.block(index);
    let mut slots: HashMap<ValueId, u32> = HashMap::new();
    let mut values = Vec::new();
    let public = graph.entries.iter().find(|entry| entry.block == index);
    let state_inputs: Vec<usize> =
        public.map(|entry| entry.states.iter().filter_map(|used| used.input).collect()).unwrap_or_default();
    let state_outputs: HashSet<&Operand> = public
        .map(|entry| entry.states.iter().filter_map(|used| block.results.get(used.output?)).collect())
        .unwrap_or_default();
    let results: HashSet<&Operand> = block.results.iter().collect();
    let role = |value: ValueId, parameter: Option<usize>| match (public, parameter) {
        (Some(_), Some(at)) if state_inputs.contains(&at) => Role::State,
        (Some(_), Some(_)) => Role::InputOutput,
        (Some(_), None) if state_outputs.contains(&Operand::Value(value)) => Role::State,
        (Some(_), None) if results.contains(&Operand::Value(value)) => Role::InputOutput,
        _ => Role::Activations,
    };
    let parameters = block.parameters.iter().enumerate().map(|(at, &value)| (value, Some(at)));
    let defined = block.steps.iter().flat_map(|step| &step.results).map(|&value| (value, None));
    for (value, parameter) in parameters.chain(defined) {
        slots.insert(value, values.len() as u32);
        values.push(value_record(graph, value, role(value, parameter)));
    }
    let repeated = numbering.repeated.contains(&index);
    let operand = |operand: &Operand| match *operand {
        Operand::Absent => OperandRecord::Absent,
        Operand::Value(value) => OperandRecord::Value(slots[&value]),
        Operand::Constant(id) => OperandRecord::Weight(numbering.constant(id)),
    };
    let steps = block.steps.iter().map(|step| StepRecord {
        op: renumbered(step, numbering),
        operands: step.operands.iter().map(operand).collect(),
        results: step.results.iter().map(|result| slots[result]).collect(),
        reads: reads(graph, step, repeated),
        name: step.name.to_string(),
    });
    BlockRecord {
        parameters: block.parameters.len() as u32,
        steps: steps.collect(),
        results: block.results.iter().map(operand).collect(),
        values,
    }
}

fn value_record(graph: &Graph, id: ValueId, role: Role) -> ValueRecord {
    let value = graph.value(id);
    let contents = match &value.fact.contents {
        Some(Contents::Dims(dims)) => Some(dims.clone()),
        Some(Contents::Constant(_)) | None => None,
    };
    let name = value.name.as_deref().map(str::to_string);
    ValueRecord { kind: value.fact.kind.clone(), contents, role, id: id.0, name }
}

/// The operator with the numbers that blocks have in the file.
fn renumbered(step: &Step, numbering: &Numbering) -> Op {
    let blocks: Vec<BlockIndex> =
        step.op.blocks().into_iter().map(|block| BlockIndex(numbering.block(block))).collect();
    step.op.with_bodies(&blocks).unwrap_or_else(|| step.op.clone())
}

fn reads(graph: &Graph, step: &Step, repeated: bool) -> Vec<ReadRecord> {
    let constants = step.operands.iter().zip(0..).filter_map(|(operand, at)| match operand {
        Operand::Constant(id) => Some((at, *id)),
        Operand::Value(_) | Operand::Absent => None,
    });
    let is_apart = |id: ConstantId| {
        let chosen = graph.constant(id).encoding.as_ref().and_then(|chosen| chosen.encoding.as_input_major());
        chosen.is_some_and(|runs| runs.is_read_apart())
    };
    let read = |operand: u32, id: ConstantId| match step.op.read(operand as usize) {
        Read::Once if is_apart(id) => Read::Nonzero,
        Read::Once if repeated => Read::Repeated,
        read => read,
    };
    constants.map(|(operand, id)| ReadRecord { operand, read: read(operand, id) }).collect()
}

/// Symbols of a fact's dimensions and contents.
pub(super) fn collect_symbols(fact: &Fact, names: &mut BTreeSet<Arc<str>>) {
    fn of_type(kind: &Type, names: &mut BTreeSet<Arc<str>>) {
        match kind {
            Type::Tensor { shape, .. } => names.extend(shape.dims().into_iter().flatten().flat_map(Dim::symbols)),
            Type::Sequence(element) | Type::Optional(element) => of_type(element, names),
            Type::Map { element, .. } => of_type(element, names),
        }
    }
    of_type(&fact.kind, names);
    if let Some(Contents::Dims(dims)) = &fact.contents {
        names.extend(dims.iter().flat_map(Dim::symbols));
    }
}
