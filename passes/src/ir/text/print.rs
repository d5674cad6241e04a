//! Printing: canonical, so that equal graphs give equal text.

use crate::ir::{Block, ConstantData, ConstantId, Graph, Operand, Step, ValueId};
use ipuc_formats::attribute_text::quote;
use ipuc_formats::fact::{Contents, Fact};
use ipuc_formats::onnx::TensorData;
use std::collections::HashMap;
use std::fmt::Write as _;

/// Constants in memory up to this size are printed whole; of larger ones only the hash is.
const PRINTED_BYTES: usize = 256;

/// Print a graph: what entries reach, in order.
pub fn print(graph: &Graph) -> String {
    let names = Names::new(graph);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = print_graph(graph, &names, &mut text);
    text
}

struct Names {
    values: HashMap<ValueId, String>,
    constants: HashMap<ConstantId, String>,
    constant_order: Vec<ConstantId>,
}

impl Names {
    fn new(graph: &Graph) -> Self {
        let mut names = Names { values: HashMap::new(), constants: HashMap::new(), constant_order: Vec::new() };
        let mut given: HashMap<&str, usize> = HashMap::new();
        for name in graph.values.iter().filter_map(|value| value.name.as_deref()) {
            *given.entry(name).or_default() += 1;
        }
        for (index, value) in graph.values.iter().enumerate() {
            let unique = value.name.as_deref().filter(|name| given[name] == 1);
            names.values.insert(ValueId(index as u32), spell('%', unique, index));
        }
        for index in graph.reachable_blocks() {
            let block = graph.block(index);
            for operand in block.steps.iter().flat_map(|step| &step.operands).chain(&block.results) {
                if let Operand::Constant(id) = operand {
                    names.meet(graph, *id);
                }
            }
        }
        let mut taken: HashMap<&str, usize> = HashMap::new();
        for &id in &names.constant_order {
            if let Some(name) = graph.constant(id).name.as_deref() {
                *taken.entry(name).or_default() += 1;
            }
        }
        for &id in &names.constant_order {
            let unique = graph.constant(id).name.as_deref().filter(|name| taken[name] == 1);
            names.constants.insert(id, spell('@', unique, id.0 as usize));
        }
        names
    }

    /// What a recipe is made of comes before it.
    fn meet(&mut self, graph: &Graph, id: ConstantId) {
        if self.constants.insert(id, String::new()).is_some() {
            return;
        }
        if let ConstantData::Recipe { operands, .. } = &graph.constant(id).data {
            for operand in operands.iter().flatten() {
                self.meet(graph, *operand);
            }
        }
        self.constant_order.push(id);
    }

    fn operand(&self, operand: &Operand) -> &str {
        match operand {
            Operand::Absent => "_",
            Operand::Value(value) => &self.values[value],
            Operand::Constant(id) => &self.constants[id],
        }
    }

    fn operands(&self, operands: &[Operand]) -> String {
        operands.iter().map(|operand| self.operand(operand)).collect::<Vec<_>>().join(", ")
    }
}

/// A name that is all digits would read as a number, so it is quoted.
fn spell(sigil: char, name: Option<&str>, index: usize) -> String {
    let plain = |text: &str| {
        text.chars().all(|character| character.is_ascii_alphanumeric() || matches!(character, '_' | '.'))
            && !text.is_empty()
            && !text.chars().all(|character| character.is_ascii_digit())
    };
    match name {
        None => format!("{sigil}{index}"),
        Some(name) if plain(name) => format!("{sigil}{name}"),
        Some(name) => format!("{sigil}{}", quote(name)),
    }
}

fn print_graph(graph: &Graph, names: &Names, text: &mut String) -> std::fmt::Result {
    for (symbol, (minimum, maximum)) in graph.ranges.iter() {
        writeln!(text, "symbol {} {minimum}..={maximum}", ipuc_formats::dim::Dim::symbol(symbol))?;
    }
    for one in &graph.obligations {
        let relation: &'static str = one.relation.into();
        writeln!(text, "require {relation} {}, {} from {}", one.left, one.right, quote(&one.subject))?;
    }
    for source in &graph.sources {
        writeln!(text, "source {}", quote(&source.name))?;
    }
    for &id in &names.constant_order {
        print_constant(graph, id, names, text)?;
    }
    for entry in &graph.entries {
        let list = |given: &[String]| given.iter().map(|name| quote(name)).collect::<Vec<_>>().join(", ");
        write!(
            text,
            "entry {}({}) -> ({}) = block {}",
            quote(&entry.name),
            list(&entry.inputs),
            list(&entry.outputs),
            entry.block.0
        )?;
        for state in &entry.states {
            write!(text, " state {}={}", state.input, state.output)?;
        }
        text.push('\n');
    }
    for index in graph.reachable_blocks() {
        print_block(graph, index.0, graph.block(index), names, text)?;
    }
    Ok(())
}

fn print_constant(graph: &Graph, id: ConstantId, names: &Names, text: &mut String) -> std::fmt::Result {
    let constant = graph.constant(id);
    let shape: Vec<String> = constant.shape.iter().map(usize::to_string).collect();
    write!(text, "constant {} : {}[{}] = ", names.constants[&id], constant.dtype, shape.join(", "))?;
    match &constant.data {
        ConstantData::Tensor(tensor) if tensor.bytes().len() <= PRINTED_BYTES => {
            let value = ipuc_formats::attribute::AttributeValue::Tensor(tensor.clone());
            writeln!(text, "{}", ipuc_formats::attribute_text::print(&value))
        }
        ConstantData::Tensor(tensor) => writeln!(text, "hash {}", blake3::hash(tensor.bytes())),
        ConstantData::Stored(stored) => {
            let pieces = match stored.tensor.data() {
                TensorData::External(external) => format!("{} {}", external.offset, stored.tensor.length_bytes()),
                TensorData::InFile { segments, .. } => {
                    let piece =
                        |segment: &ipuc_formats::onnx::Segment| format!("{} {}", segment.offset, segment.length);
                    segments.iter().map(piece).collect::<Vec<_>>().join(" + ")
                }
                TensorData::Inline(_) => "inline".to_string(),
            };
            writeln!(text, "stored {} {pieces}", stored.source)
        }
        ConstantData::Recipe { op, operands } => {
            let operands: Vec<&str> =
                operands.iter().map(|operand| operand.map_or("_", |id| &names.constants[&id])).collect();
            writeln!(text, "{op} {}", operands.join(", "))
        }
    }
}

fn print_block(graph: &Graph, number: u32, block: &Block, names: &Names, text: &mut String) -> std::fmt::Result {
    let parameter = |&value: &ValueId| format!("{} : {}", names.values[&value], fact(&graph.value(value).fact));
    let parameters: Vec<String> = block.parameters.iter().map(parameter).collect();
    writeln!(text, "block {number}({}) {{", parameters.join(", "))?;
    for step in &block.steps {
        print_step(graph, step, names, text)?;
    }
    writeln!(text, "  return {}", names.operands(&block.results))?;
    writeln!(text, "}}")
}

fn print_step(graph: &Graph, step: &Step, names: &Names, text: &mut String) -> std::fmt::Result {
    let result = |&value: &ValueId| format!("{} : {}", names.values[&value], fact(&graph.value(value).fact));
    let results: Vec<String> = step.results.iter().map(result).collect();
    write!(text, "  {} = {}", results.join(", "), step.op)?;
    if !step.operands.is_empty() {
        write!(text, " {}", names.operands(&step.operands))?;
    }
    if !step.name.is_empty() {
        write!(text, " from {}", quote(&step.name))?;
    }
    text.push('\n');
    Ok(())
}

fn fact(fact: &Fact) -> String {
    match &fact.contents {
        Some(Contents::Dims(dims)) => {
            let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
            format!("{}{{{}}}", fact.kind, dims.join(", "))
        }
        Some(Contents::Constant(_)) | None => fact.kind.to_string(),
    }
}
