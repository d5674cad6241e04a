//! Rules of symbols, entries, blocks and steps.
//!
//! - Names of symbols differ, ranges are not empty. Every symbol that a dimension of a value, of known contents or of an
//!   obligation names is declared. Where its value comes from is not said: an input of the entry, else a step.
//! - There is an entry. Names of entries differ, and names of inputs and of outputs within one. An entry has a name
//!   for each parameter and each result of its block. An input is state at most once; a state's input and output are
//!   tensors of one element type, and it grows along an axis that both have.
//! - Parameters are the first values of a block. Each other value is defined by one step, before steps that use it.
//!   Results of blocks are not absent.
//! - A step runs only blocks that come after its own; every block is an entry's or is run; depth and number of ways
//!   are limited.
//! - A step says how it reads each weight operand, in order of operands, and nothing else.
//! - Contents are known of integer and bool tensors only. Axes, contents and nesting of types are limited.

use super::super::{BlockRecord, EntryRecord, Fault, FormatError, Manifest, OperandRecord, StepRecord, ValueRecord};
use super::{at_most, equal, in_range, unique};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{MAXIMUM_FOLLOWED_ELEMENTS, Shape, Type};
use crate::limits;
use std::collections::HashSet;

pub(super) fn check(manifest: &Manifest) -> Result<(), FormatError> {
    unique("symbol", manifest.symbols.iter().map(|symbol| symbol.name.as_str()))
        .map_err(|fault| fault.at("symbols"))?;
    for symbol in &manifest.symbols {
        let (minimum, maximum) = (symbol.minimum, symbol.maximum);
        if minimum > maximum {
            return Err(Fault::EmptyRange { minimum, maximum }.at(format!("symbol `{}`", symbol.name)));
        }
    }
    let declared = manifest.symbols.iter().map(|symbol| symbol.name.as_str()).collect();
    let mut dims = Dims { declared, checked: HashSet::new() };
    for (index, obligation) in manifest.obligations.iter().enumerate() {
        let checked = dims.check(&obligation.left).and_then(|()| dims.check(&obligation.right));
        checked.map_err(|fault| fault.at(format!("obligation {index}")))?;
    }
    for (index, block) in manifest.blocks.iter().enumerate() {
        check_block(manifest, index, block, &mut dims)?;
    }
    if manifest.entries.is_empty() {
        return Err(Fault::Missing("an entry").at("entries"));
    }
    unique("entry", manifest.entries.iter().map(|entry| entry.name.as_str())).map_err(|fault| fault.at("entries"))?;
    for entry in &manifest.entries {
        check_entry(manifest, entry).map_err(|fault| fault.at(format!("entry `{}`", entry.name)))?;
    }
    check_paths(manifest)
}

/// The symbols that dimensions may name, and the dimensions that have been looked at.
struct Dims<'a> {
    declared: HashSet<&'a str>,
    checked: HashSet<&'a Dim>,
}

impl<'a> Dims<'a> {
    fn check(&mut self, dim: &'a Dim) -> Result<(), Fault> {
        if dim.is_known() || !self.checked.insert(dim) {
            return Ok(());
        }
        match dim.symbols().into_iter().find(|symbol| !self.declared.contains(&**symbol)) {
            Some(symbol) => Err(Fault::UndeclaredSymbol(symbol.to_string())),
            None => Ok(()),
        }
    }

    fn check_type(&mut self, kind: &'a Type, nesting: usize) -> Result<(), Fault> {
        at_most("the nesting of types", nesting as u64, limits::IPU_TYPE_NESTING as u64)?;
        match kind {
            Type::Tensor { dtype: _, shape: Shape::Unranked } => Ok(()),
            Type::Tensor { dtype: _, shape: Shape::Ranked(dims) } => {
                at_most("the number of axes", dims.len() as u64, limits::IPU_RANK as u64)?;
                dims.iter().try_for_each(|dim| self.check(dim))
            }
            Type::Sequence(element) | Type::Optional(element) | Type::Map { key: _, element } => {
                self.check_type(element, nesting + 1)
            }
        }
    }

    fn check_value(&mut self, value: &'a ValueRecord) -> Result<(), Fault> {
        self.check_type(&value.kind, 0)?;
        let Some(contents) = &value.contents else { return Ok(()) };
        at_most("the number of known elements", contents.len() as u64, MAXIMUM_FOLLOWED_ELEMENTS as u64)?;
        let countable = |dtype: DType| dtype.is_integer() || dtype == DType::Bool;
        if !value.kind.as_tensor().is_some_and(|(dtype, _)| countable(dtype)) {
            return Err(Fault::Rule("contents are known of a value that is no integer tensor"));
        }
        contents.iter().try_for_each(|dim| self.check(dim))
    }
}

fn check_block<'a>(
    manifest: &Manifest,
    index: usize,
    block: &'a BlockRecord,
    dims: &mut Dims<'a>,
) -> Result<(), FormatError> {
    let place = || format!("block {index}");
    at_most("the number of parameters", u64::from(block.parameters), block.values.len() as u64)
        .map_err(|fault| fault.at(place()))?;
    for (at, value) in block.values.iter().enumerate() {
        let name = value.name.as_deref().unwrap_or_default();
        dims.check_value(value).map_err(|fault| fault.at(format!("block {index}, value {at} `{name}`")))?;
    }
    let mut defined = vec![false; block.values.len()];
    defined[..block.parameters as usize].fill(true);
    for (at, step) in block.steps.iter().enumerate() {
        let checked = check_step(manifest, index, step, &mut defined);
        checked.map_err(|fault| fault.at(format!("block {index}, step {at} `{}`", step.name)))?;
    }
    if let Some(value) = defined.iter().position(|defined| !defined) {
        return Err(Fault::Rule("no step defines it").at(format!("block {index}, value {value}")));
    }
    for (at, result) in block.results.iter().enumerate() {
        let checked = match result {
            OperandRecord::Absent => Err(Fault::Missing("the value")),
            operand => check_operand(manifest, operand, &defined),
        };
        checked.map_err(|fault| fault.at(format!("block {index}, result {at}")))?;
    }
    Ok(())
}

fn check_operand(manifest: &Manifest, operand: &OperandRecord, defined: &[bool]) -> Result<(), Fault> {
    match *operand {
        OperandRecord::Absent => Ok(()),
        OperandRecord::Weight(weight) => in_range("weight", weight, manifest.weights.len()).map(|_| ()),
        OperandRecord::Value(value) => {
            let position = in_range("value", value, defined.len())?;
            if defined[position] { Ok(()) } else { Err(Fault::Undefined(value)) }
        }
    }
}

fn check_step(manifest: &Manifest, block: usize, step: &StepRecord, defined: &mut [bool]) -> Result<(), Fault> {
    let mut reads = step.reads.iter();
    for (position, operand) in step.operands.iter().enumerate() {
        check_operand(manifest, operand, defined)?;
        if let OperandRecord::Weight(_) = operand {
            let read = reads.next().ok_or(Fault::Missing("how a weight operand is read"))?;
            equal("the operand of a read", u64::from(read.operand), position as u64)?;
        }
    }
    if reads.next().is_some() {
        return Err(Fault::Rule("it states how an operand is read that is no weight"));
    }
    for body in step.op.blocks() {
        if in_range("block", body.0, manifest.blocks.len())? <= block {
            return Err(Fault::Rule("it runs a block that does not come after its own"));
        }
    }
    for &result in &step.results {
        let position = in_range("value", result, defined.len())?;
        if std::mem::replace(&mut defined[position], true) {
            return Err(Fault::DefinedTwice(result));
        }
    }
    Ok(())
}

fn check_entry(manifest: &Manifest, entry: &EntryRecord) -> Result<(), Fault> {
    let block = &manifest.blocks[in_range("block", entry.block, manifest.blocks.len())?];
    equal("the number of inputs", entry.inputs.len() as u64, u64::from(block.parameters))?;
    equal("the number of outputs", entry.outputs.len() as u64, block.results.len() as u64)?;
    unique("input", entry.inputs.iter().map(String::as_str))?;
    unique("output", entry.outputs.iter().map(String::as_str))?;
    let mut states = HashSet::new();
    for state in &entry.states {
        let input = in_range("input", state.input, entry.inputs.len())?;
        let output = in_range("output", state.output, entry.outputs.len())?;
        if !states.insert(input) {
            return Err(Fault::Duplicate { what: "state", name: entry.inputs[input].clone() });
        }
        let next = match block.results[output] {
            OperandRecord::Value(value) => block.values.get(value as usize).and_then(|value| value.kind.as_tensor()),
            OperandRecord::Weight(_) | OperandRecord::Absent => None,
        };
        let (Some((before, shape)), Some((after, next_shape))) = (block.values[input].kind.as_tensor(), next) else {
            return Err(Fault::Rule("a state is no tensor that is computed"));
        };
        equal("the element type of a state's output", after as u64, before as u64)?;
        if let Some(axis) = state.append_axis {
            for rank in [shape.rank(), next_shape.rank()].into_iter().flatten() {
                in_range("axis", axis, rank)?;
            }
        }
    }
    Ok(())
}

/// Blocks come after those that run them, hence one pass in order counts the ways to each.
fn check_paths(manifest: &Manifest) -> Result<(), FormatError> {
    let mut paths = vec![0u64; manifest.blocks.len()];
    let mut depths = vec![0usize; manifest.blocks.len()];
    for entry in &manifest.entries {
        paths[entry.block as usize] += 1;
    }
    let mut total = 0u64;
    for (index, block) in manifest.blocks.iter().enumerate() {
        let place = || format!("block {index}");
        let (ways, depth) = (paths[index], depths[index]);
        if ways == 0 {
            return Err(Fault::Rule("no entry and no step runs it").at(place()));
        }
        total = total.saturating_add(ways);
        at_most("the number of ways to all blocks", total, limits::IPU_BLOCK_PATHS)
            .map_err(|fault| fault.at(place()))?;
        at_most("its depth", depth as u64, limits::IPU_BLOCK_NESTING as u64).map_err(|fault| fault.at(place()))?;
        for body in block.steps.iter().flat_map(|step| step.op.blocks()) {
            let body = body.0 as usize;
            paths[body] = paths[body].saturating_add(ways);
            depths[body] = depths[body].max(depth + 1);
        }
    }
    Ok(())
}
