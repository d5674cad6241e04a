//! Rules of symbols, entries, blocks and steps.
//!
//! - Names of symbols differ, ranges are not empty. Every symbol that a dimension of a value, of known contents or of an
//!   obligation names is declared. Where its value comes from is not said: an input of the entry, else a step.
//! - There is an entry. Names of entries differ, and names of inputs and of outputs within one. An entry has a name
//!   for each parameter and each result of its block.
//! - Names of states differ. A state that grows is a tensor of whole bytes, its axis exists and its page is not empty. An
//!   entry uses a state at most once, by an input, an output or both; an input or output is one state at most, is computed or
//!   given, and has the element type and the rank of the state.
//! - Parameters are the first values of a block. Each other value is defined by one step, before steps that use it.
//!   Results of blocks are not absent.
//! - A step runs only blocks that come after its own; every block is an entry's or is run; depth and number of ways
//!   are limited.
//! - A step says how it reads each weight operand, in order of operands, and nothing else.
//! - Contents are known of integer and bool tensors only. Axes, contents and nesting of types are limited.

use super::super::{
    BlockRecord, EntryRecord, Fault, FormatError, Manifest, OperandRecord, StateRecord, StepRecord, ValueRecord,
};
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
    check_states(manifest, &mut dims)?;
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
    check_state_uses(manifest, entry, block)
}

fn check_states<'a>(manifest: &'a Manifest, dims: &mut Dims<'a>) -> Result<(), FormatError> {
    unique("state", manifest.states.iter().map(|state| state.name.as_str())).map_err(|fault| fault.at("states"))?;
    for state in &manifest.states {
        check_state(state, dims).map_err(|fault| fault.at(format!("state `{}`", state.name)))?;
    }
    Ok(())
}

fn check_state<'a>(state: &'a StateRecord, dims: &mut Dims<'a>) -> Result<(), Fault> {
    dims.check_type(&state.kind, 0)?;
    let Some(growth) = state.growth else { return Ok(()) };
    let Some((dtype, Shape::Ranked(extents))) = state.kind.as_tensor() else {
        return Err(Fault::Rule("it grows and is no tensor with axes"));
    };
    in_range("axis", growth.axis, extents.len())?;
    if dtype == DType::String || dtype.bits() < 8 {
        return Err(Fault::Rule("it grows and its elements are no whole bytes"));
    }
    if growth.rows.is_some() && dtype != DType::F32 {
        return Err(Fault::Rule("its rows are rounded and not of f32"));
    }
    if growth.overwritten && growth.rows.is_some() {
        return Err(Fault::Rule("its rows are rounded and overwritten"));
    }
    if growth.page == 0 {
        return Err(Fault::Rule("its pages are empty"));
    }
    Ok(())
}

fn check_state_uses(manifest: &Manifest, entry: &EntryRecord, block: &BlockRecord) -> Result<(), Fault> {
    let (mut states, mut inputs, mut outputs) = (HashSet::new(), HashSet::new(), HashSet::new());
    for used in &entry.states {
        let state = &manifest.states[in_range("state", used.state, manifest.states.len())?];
        let twice = |what: &'static str, name: &String| Fault::Duplicate { what, name: name.clone() };
        if !states.insert(used.state) {
            return Err(twice("state", &state.name));
        }
        if used.input.is_none() && used.output.is_none() {
            return Err(Fault::Rule("a state is neither input nor output"));
        }
        if let Some(input) = used.input {
            let input = in_range("input", input, entry.inputs.len())?;
            if !inputs.insert(input) {
                return Err(twice("state of input", &entry.inputs[input]));
            }
            check_same_kind("a state's input", &block.values[input].kind, &state.kind)?;
        }
        if let Some(output) = used.output {
            let output = in_range("output", output, entry.outputs.len())?;
            if !outputs.insert(output) {
                return Err(twice("state of output", &entry.outputs[output]));
            }
            let OperandRecord::Value(value) = block.results[output] else {
                return Err(Fault::Rule("the next contents of a state are not computed"));
            };
            check_same_kind("a state's output", &block.values[value as usize].kind, &state.kind)?;
        }
    }
    Ok(())
}

/// Tensors of one element type and rank, or equal types.
fn check_same_kind(what: &'static str, kind: &Type, state: &Type) -> Result<(), Fault> {
    match (kind.as_tensor(), state.as_tensor()) {
        (Some((found, shape)), Some((expected, state_shape))) => {
            if found != expected {
                return Err(Fault::Mismatch { what, found: found as u64, expected: expected as u64 });
            }
            match (shape.rank(), state_shape.rank()) {
                (Some(found), Some(expected)) => equal(what, found as u64, expected as u64),
                (None, _) | (_, None) => Ok(()),
            }
        }
        (None, None) if kind == state => Ok(()),
        (Some(_), None) | (None, _) => Err(Fault::Rule("an input or output has another type than its state")),
    }
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
