//! `If` (1 to 25), `Loop` (1 to 25), `Scan` (8 to 25).
//!
//! Bodies are lowered for the facts of their parameters. What a loop carries may change its shape: its body is lowered
//! again for wider facts until an iteration changes nothing. Of an `If` whose condition is known only that branch is
//! lowered, in place of the node: exporters leave branches behind that do not fit the shapes at hand.

use crate::import::lowering::{Body, LowerError, Lowering, Row, row};
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Fact, Shape};
use ipuc_formats::ops::control::join::widen;
use ipuc_formats::ops::{
    BinaryFunction, Concat, If, Loop, Pad, PadMode, Scan, ShapeOf, Split, TypeError, normalize_axis,
};

/// Branches, loops, scans.
pub const ROWS: &[Row] =
    &[row("If", 1, branch), row("Loop", 1, repeat), row("Scan", 8, batched_scan), row("Scan", 9, scan)];

fn branch(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let condition = node.required(0)?;
    let known = node.fact(&condition).and_then(|fact| fact.elements_as_integers());
    if let Some(&[taken]) = known.as_deref() {
        let (taken, other) = if taken != 0 { ("then_branch", "else_branch") } else { ("else_branch", "then_branch") };
        // The condition is known.
        node.ignore(other);
        return node.in_place(taken, &[]);
    }
    let then = node.body("then_branch", Vec::new())?;
    let otherwise = node.body("else_branch", Vec::new())?;
    let operator = If { then: then.block, otherwise: otherwise.block, then_captures: then.captures.len() as i64 };
    let operands = std::iter::once(condition).chain(then.captures).chain(otherwise.captures);
    node.emit(operator, operands.collect())
}

/// Facts that operands must all have.
fn facts(node: &Lowering<'_, '_>, operands: &[Operand]) -> Result<Vec<Fact>, LowerError> {
    let fact = |(operand, given): (usize, &Operand)| {
        node.fact(given).ok_or_else(|| TypeError::MissingOperand { operand }.into())
    };
    operands.iter().enumerate().map(fact).collect()
}

/// Lower `body` for carried values of these facts, wider where an iteration changes them; the first parameters are
/// `before`, the last `after`.
fn carrying_body(
    node: &mut Lowering<'_, '_>,
    before: &[Fact],
    mut carried: Vec<Fact>,
    after: &[Fact],
) -> Result<Body, LowerError> {
    carried.iter_mut().for_each(|fact| fact.contents = None);
    loop {
        let parameters = before.iter().chain(&carried).chain(after).cloned().collect();
        let body = node.body("body", parameters)?;
        let next = widen(&carried, &body.results, node.step_name())?;
        if next == carried {
            return Ok(body);
        }
        carried = next;
    }
}

fn repeat(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let inputs = node.inputs();
    let initial = inputs.get(2..).unwrap_or_default();
    let mut carried = vec![match node.fact(&node.input(1)) {
        Some(condition) => condition,
        None => Fact::tensor(DType::Bool, Vec::new()),
    }];
    carried.extend(facts(node, initial)?);
    let iteration = [Fact::tensor(DType::I64, Vec::new())];
    let body = carrying_body(node, &iteration, carried, &[])?;
    let operator = Loop { body: body.block, carried: initial.len() as i64 };
    let operands = [node.input(0), node.input(1)].into_iter().chain(initial.iter().copied()).chain(body.captures);
    node.emit(operator, operands.collect())
}

/// States and scan inputs of a scan, and the facts of a slice of each input.
struct Scanned {
    states: Vec<Operand>,
    inputs: Vec<Operand>,
}

impl Scanned {
    fn new(node: &mut Lowering<'_, '_>, operands: Vec<Operand>) -> Result<Scanned, LowerError> {
        let count =
            node.int("num_scan_inputs")?.ok_or_else(|| LowerError::MissingAttribute("num_scan_inputs".to_string()))?;
        let states = usize::try_from(count).ok().and_then(|count| operands.len().checked_sub(count));
        let Some(states) = states else {
            return Err(node.refuse(format!("`num_scan_inputs` of {count} with {} inputs", operands.len())));
        };
        Ok(Scanned { states: operands[..states].to_vec(), inputs: operands[states..].to_vec() })
    }

    /// Lower the body and emit the scan; `batch` axes come before the scanned one, whose number counts without them.
    fn emit(
        self,
        node: &mut Lowering<'_, '_>,
        (batched, input_axes): (bool, Vec<i64>),
        lists: [Vec<i64>; 3],
    ) -> Result<Vec<Operand>, LowerError> {
        let batch = usize::from(batched);
        let mut states = facts(node, &self.states)?;
        for (operand, fact) in states.iter_mut().enumerate() {
            *fact = drop_axes(fact, operand, &[0][..batch])?;
        }
        let mut slices = Vec::new();
        for (index, fact) in facts(node, &self.inputs)?.iter().enumerate() {
            let operand = self.states.len() + index;
            let axis = input_axes.get(index).copied().unwrap_or(0);
            slices.push(drop_axes(&drop_axes(fact, operand, &[0][..batch])?, operand, &[axis])?);
        }
        let body = carrying_body(node, &[], states, &slices)?;
        let [output_axes, input_directions, output_directions] = lists;
        let operator = Scan {
            body: body.block,
            states: self.states.len() as i64,
            scan_inputs: self.inputs.len() as i64,
            input_axes,
            output_axes,
            input_directions,
            output_directions,
            batched,
        };
        node.emit(operator, [self.states, self.inputs, body.captures].concat())
    }
}

/// The fact of a slice: a tensor without these axes, one after the other.
fn drop_axes(fact: &Fact, operand: usize, axes: &[i64]) -> Result<Fact, LowerError> {
    let Some((dtype, shape)) = fact.kind.as_tensor() else {
        let found = fact.kind.to_string();
        return Err(TypeError::Kind { operand, expected: "a tensor", found }.into());
    };
    let Shape::Ranked(dims) = shape else { return Ok(Fact::tensor(dtype, Shape::Unranked)) };
    let mut dims = dims.clone();
    for &axis in axes {
        dims.remove(normalize_axis(axis, dims.len())?);
    }
    Ok(Fact::tensor(dtype, dims))
}

fn scan(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let operands = node.inputs();
    let scanned = Scanned::new(node, operands)?;
    let mut list = |name: &str| Ok::<_, LowerError>(node.ints(name)?.unwrap_or_default());
    let input_axes = list("scan_input_axes")?;
    let lists = [list("scan_output_axes")?, list("scan_input_directions")?, list("scan_output_directions")?];
    scanned.emit(node, (false, input_axes), lists)
}

/// Opset 8: every tensor has a batch axis in front, input 0 are lengths of the sequences.
fn batched_scan(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let lengths = node.input(0);
    let operands = node.inputs().get(1..).unwrap_or_default().to_vec();
    let scanned = Scanned::new(node, operands)?;
    let directions = node.ints("directions")?.unwrap_or_default();
    if lengths == Operand::Absent {
        return scanned.emit(node, (true, Vec::new()), [Vec::new(), directions, Vec::new()]);
    }
    scan_of_lengths(node, lengths, scanned, directions)
}

/// A scan over the batch, each of which scans the first `lengths` slices of its inputs; behind them its outputs are 0.
fn scan_of_lengths(
    node: &mut Lowering<'_, '_>,
    lengths: Operand,
    scanned: Scanned,
    directions: Vec<i64>,
) -> Result<Vec<Operand>, LowerError> {
    let states = scanned.states.len();
    let operands = [vec![lengths], scanned.states, scanned.inputs].concat();
    let mut slices = Vec::new();
    for (operand, fact) in facts(node, &operands)?.iter().enumerate() {
        slices.push(drop_axes(fact, operand, &[0])?);
    }
    let body = node.block(slices, |node, parameters| {
        let [length, parameters @ ..] = parameters else { return Err(node.refuse("a scan without lengths")) };
        let (own, inputs) = parameters.split_at(states.min(parameters.len()));
        let length = node.cast(*length, DType::I64)?;
        let length = node.reshaped(length, &[1])?;
        let (mut firsts, mut rest) = (Vec::new(), length);
        for &input in inputs {
            let whole = node.emit_one(ShapeOf { start: 0, end: Some(1) }, vec![input])?;
            rest = node.binary(BinaryFunction::Sub, whole, length)?;
            // A length that is negative or exceeds the input is an error of the split.
            let sizes = node.emit_one(Concat { axis: 0 }, vec![length, rest])?;
            firsts.push(node.emit_one(Split { axis: 0, parts: 2, even: false }, vec![input, sizes])?);
        }
        let scanned = Scanned { states: own.to_vec(), inputs: firsts };
        let mut results = scanned.emit(node, (false, Vec::new()), [Vec::new(), directions, Vec::new()])?;
        for result in results.iter_mut().skip(states) {
            let axes = node.rank(result)?;
            let [before, after] = [axes, axes - 1].map(|count| node.integers(&vec![0; count]));
            let pads = node.emit_one(Concat { axis: 0 }, vec![before, rest, after])?;
            *result = node.emit_one(Pad { mode: PadMode::Constant }, vec![*result, pads])?;
        }
        Ok(results)
    })?;
    let operator = Scan {
        body: body.block,
        states: 0,
        scan_inputs: operands.len() as i64,
        input_axes: Vec::new(),
        output_axes: Vec::new(),
        input_directions: Vec::new(),
        output_directions: Vec::new(),
        batched: false,
    };
    node.emit(operator, [operands, body.captures].concat())
}
