//! Printing: everything that entries reach, in order.

use crate::ir::text::constants::print_data;
use crate::ir::text::label::Labels;
use crate::ir::{Block, ConstantData, ConstantId, Graph, Operand, Step, ValueId};
use ipuc_formats::attribute::{AttributeValue, BlockIndex};
use ipuc_formats::attribute_text::{print as print_attribute, quote};
use ipuc_formats::dim::Dim;
use ipuc_formats::fact::{Contents, Fact};
use ipuc_formats::model::Growth;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

/// Print a graph: what entries reach, in order. [`parse`](super::parse) gives an equal graph back.
pub fn print(graph: &Graph) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = print_graph(graph, &Names::new(graph), &mut text);
    text
}

/// [`print()`], with the numbers that blocks have in a file, and each step after its own: block, colon, index. Of a graph in its
/// final order these are the numbers that the steps have in the file.
pub fn print_numbered(graph: &Graph) -> String {
    let blocks = graph.reachable_blocks().into_iter().zip(0..).collect();
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = print_graph(graph, &Names { blocks: Some(blocks), ..Names::new(graph) }, &mut text);
    text
}

struct Names {
    values: Labels<ValueId>,
    constants: Labels<ConstantId>,
    constant_order: Vec<ConstantId>,
    /// Numbers of blocks, where they and the steps in them are counted.
    blocks: Option<HashMap<BlockIndex, u32>>,
}

impl Names {
    fn new(graph: &Graph) -> Self {
        let blocks: Vec<&Block> = graph.reachable_blocks().into_iter().map(|index| graph.block(index)).collect();
        let defined = blocks.iter().flat_map(|block| {
            block.parameters.iter().chain(block.steps.iter().flat_map(|step| &step.results)).copied()
        });
        let values = defined.map(|id| (id, id.0, graph.value(id).name.as_deref()));
        let mut order = ConstantOrder { graph, met: HashSet::new(), order: Vec::new() };
        for block in &blocks {
            for operand in block.steps.iter().flat_map(|step| &step.operands).chain(&block.results) {
                if let Operand::Constant(id) = operand {
                    order.meet(*id);
                }
            }
        }
        let constant_order = order.order;
        let constants = constant_order.iter().map(|&id| (id, id.0, graph.constant(id).name.as_deref()));
        let (values, constants) = (Labels::new('%', values), Labels::new('@', constants));
        Names { values, constants, constant_order, blocks: None }
    }

    fn block(&self, index: BlockIndex) -> u32 {
        self.blocks.as_ref().and_then(|blocks| blocks.get(&index).copied()).unwrap_or(index.0)
    }

    fn operand(&self, operand: &Operand) -> String {
        match operand {
            Operand::Absent => "_".to_string(),
            Operand::Value(value) => self.values.used(*value),
            Operand::Constant(id) => self.constants.used(*id),
        }
    }

    fn operands(&self, operands: &[Operand]) -> String {
        operands.iter().map(|operand| self.operand(operand)).collect::<Vec<_>>().join(", ")
    }
}

/// The constants that are read, each after those it is computed from.
struct ConstantOrder<'a> {
    graph: &'a Graph,
    met: HashSet<ConstantId>,
    order: Vec<ConstantId>,
}

impl ConstantOrder<'_> {
    fn meet(&mut self, id: ConstantId) {
        if !self.met.insert(id) {
            return;
        }
        match &self.graph.constant(id).data {
            ConstantData::Recipe { operands, .. } => operands.iter().flatten().for_each(|&operand| self.meet(operand)),
            ConstantData::Rounded(rounded) => {
                self.meet(rounded.weight);
                rounded.factor.into_iter().for_each(|factor| self.meet(factor));
            }
            ConstantData::Tensor(_) | ConstantData::Stored(_) | ConstantData::Hashed(_) => {}
        }
        self.order.push(id);
    }
}

fn print_graph(graph: &Graph, names: &Names, text: &mut String) -> std::fmt::Result {
    let Graph {
        entries,
        blocks: _,
        values: _,
        constants: _,
        ranges,
        obligations,
        sources,
        peaks,
        states,
        evaluator: _,
    } = graph;
    for (symbol, (minimum, maximum)) in ranges.iter() {
        writeln!(text, "symbol {} {minimum}..={maximum}", Dim::symbol(symbol))?;
    }
    for one in obligations {
        let relation: &'static str = one.relation.into();
        writeln!(text, "require {relation} {}, {} from {}", one.left, one.right, quote(&one.subject))?;
    }
    for source in sources {
        writeln!(text, "source {}", quote(&source.name))?;
    }
    for &id in &names.constant_order {
        let constant = graph.constant(id);
        let shape: Vec<String> = constant.shape.iter().map(usize::to_string).collect();
        write!(text, "constant {} : {}[{}] = ", names.constants.defined(id), constant.dtype, shape.join(", "))?;
        print_data(constant, &names.constants, text)?;
        text.push('\n');
    }
    for state in states {
        write!(text, "state {}", quote(&state.name))?;
        if let Some(Growth { axis, page, rows, overwritten }) = state.growth {
            let verb = if overwritten { "overwrites" } else { "grows" };
            write!(text, " {verb} {axis} page {page}")?;
            if let Some(rows) = rows {
                write!(text, " rows {}", <&str>::from(rows))?;
            }
        }
        text.push('\n');
    }
    for entry in entries {
        let list = |given: &[String]| given.iter().map(|name| quote(name)).collect::<Vec<_>>().join(", ");
        let (name, inputs, outputs) = (quote(&entry.name), list(&entry.inputs), list(&entry.outputs));
        write!(text, "entry {name}({inputs}) -> ({outputs}) = block {}", names.block(entry.block))?;
        for used in &entry.states {
            let port = |port: Option<usize>| port.map_or("_".to_string(), |port| port.to_string());
            write!(text, " state {} {}={}", used.state, port(used.input), port(used.output))?;
        }
        text.push('\n');
    }
    for index in graph.reachable_blocks() {
        print_block(graph, names.block(index), graph.block(index), names, text)?;
    }
    for peak in peaks {
        writeln!(text, "peak {} given {} kept {}", names.block(peak.block), peak.given_bytes, peak.kept_bytes)?;
    }
    Ok(())
}

fn print_block(graph: &Graph, number: u32, block: &Block, names: &Names, text: &mut String) -> std::fmt::Result {
    writeln!(text, "block {number}({}) {{", definitions(graph, &block.parameters, names))?;
    for (at, step) in block.steps.iter().enumerate() {
        text.push_str("  ");
        if names.blocks.is_some() {
            write!(text, "{number}:{at} ")?;
        }
        print_step(graph, step, names, text)?;
    }
    writeln!(text, "  return {}", names.operands(&block.results))?;
    writeln!(text, "}}")
}

fn print_step(graph: &Graph, step: &Step, names: &Names, text: &mut String) -> std::fmt::Result {
    let blocks: Vec<BlockIndex> = step.op.blocks().into_iter().map(|block| BlockIndex(names.block(block))).collect();
    let renumbered = step.op.with_bodies(&blocks);
    let op = renumbered.as_ref().unwrap_or(&step.op);
    write!(text, "{} = {op}", definitions(graph, &step.results, names))?;
    if !step.operands.is_empty() {
        write!(text, " {}", names.operands(&step.operands))?;
    }
    if !step.name.is_empty() {
        write!(text, " from {}", quote(&step.name))?;
    }
    text.push('\n');
    Ok(())
}

fn definitions(graph: &Graph, values: &[ValueId], names: &Names) -> String {
    let definition = |&value: &ValueId| format!("{} : {}", names.values.defined(value), fact(&graph.value(value).fact));
    values.iter().map(definition).collect::<Vec<_>>().join(", ")
}

fn fact(fact: &Fact) -> String {
    match &fact.contents {
        Some(Contents::Dims(dims)) => {
            let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
            format!("{}{{{}}}", fact.kind, dims.join(", "))
        }
        Some(Contents::Constant(tensor)) => {
            format!("{}{{= {}}}", fact.kind, print_attribute(&AttributeValue::Tensor(tensor.clone())))
        }
        None => fact.kind.to_string(),
    }
}
