//! How precise the outputs of a model can be: what its steps round to on the way.
//!
//! An output of f32 that was f16 or codes of 8 bits before is no more precise than those. An activation that lies within a
//! float rounding of the middle between two codes takes either code in right programs, and what is computed from it follows.

use crate::compare::{Precision, floats};
use ipuc_formats::dtype::DType;
use ipuc_formats::model::{BlockRecord, EntryRecord, Manifest, OperandRecord, StepRecord};
use ipuc_formats::ops::{Activations, Argument, BinaryFunction, Class, Function, Op, Program};
use ipuc_runtime::Model;
use std::collections::BTreeSet;

/// The precision of each output of the entry, states included, in their order.
pub fn of_outputs(model: &Model, entry: &EntryRecord) -> Vec<Precision> {
    let manifest = model.manifest();
    let block = &manifest.blocks[entry.block as usize];
    block.results.iter().map(|&result| of_result(model, manifest, block, result)).collect()
}

fn of_result(model: &Model, manifest: &Manifest, block: &BlockRecord, result: OperandRecord) -> Precision {
    let mut roundings = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut rest: Vec<u32> = value_of(result).into_iter().collect();
    while let Some(value) = rest.pop() {
        if !seen.insert(value) {
            continue;
        }
        let Some(step) = producer(block, value) else { continue };
        gather_roundings(manifest, block, step, &mut roundings);
        rest.extend(step.operands.iter().filter_map(|&operand| value_of(operand)));
    }
    let codes = roundings.iter().copied().filter(|dtype| dtype.is_integer()).min_by_key(|dtype| dtype.bits());
    if let Some(codes) = codes {
        return Precision::Codes { dtype: codes, scale: last_scale(model, block, result) };
    }
    // bf16 has fewer bits of precision than f16, and neither has others.
    let float = [DType::BF16, DType::F16].into_iter().find(|float| roundings.contains(float));
    float.map_or(Precision::Own, Precision::Rounded)
}

fn value_of(operand: OperandRecord) -> Option<u32> {
    match operand {
        OperandRecord::Value(value) => Some(value),
        OperandRecord::Absent | OperandRecord::Weight(_) => None,
    }
}

fn producer(block: &BlockRecord, value: u32) -> Option<&StepRecord> {
    block.steps.iter().find(|step| step.results.contains(&value))
}

fn dtype_of(block: &BlockRecord, value: u32) -> Option<DType> {
    block.values.get(value as usize)?.kind.as_tensor().map(|(dtype, _)| dtype)
}

/// Add the types that a step rounds floats to: f16, bf16 and integers of at most 16 bits.
fn gather_roundings(manifest: &Manifest, block: &BlockRecord, step: &StepRecord, roundings: &mut BTreeSet<DType>) {
    let operands = || step.operands.iter().filter_map(|&operand| value_of(operand));
    let takes_floats = operands().any(|value| dtype_of(block, value).is_some_and(DType::is_float));
    for dtype in step.results.iter().filter_map(|&result| dtype_of(block, result)) {
        if is_coarse_float(dtype) || (takes_floats && is_code(dtype)) {
            roundings.insert(dtype);
        }
    }
    if let Class::Product(product) = step.op.class() {
        match product.arithmetic().activation {
            Activations::Dynamic { dtype, .. } => roundings.extend([dtype]),
            Activations::Rounded(dtype) if is_coarse_float(dtype) => roundings.extend([dtype]),
            Activations::Rounded(_) => {}
        }
    }
    if let Some(program) = program_of(&step.op) {
        roundings.extend(program.steps.iter().map(|step| step.to).filter(|&to| is_coarse_float(to) || is_code(to)));
    }
    for inner in step.op.blocks() {
        let Some(inner) = manifest.blocks.get(inner.0 as usize) else { continue };
        for step in &inner.steps {
            gather_roundings(manifest, inner, step, roundings);
        }
    }
}

fn program_of(op: &Op) -> Option<&Program> {
    if let Op::Map(map) = op {
        return Some(&map.program);
    }
    let Class::Product(product) = op.class() else { return None };
    product.program()
}

fn is_coarse_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn is_code(dtype: DType) -> bool {
    dtype.is_integer() && dtype.bits() <= 16
}

/// The scale of an output that is codes times one scale, moved at most: the distance of two neighbouring results.
fn last_scale(model: &Model, block: &BlockRecord, result: OperandRecord) -> Option<f64> {
    let mut value = value_of(result)?;
    loop {
        let step = producer(block, value)?;
        if let Op::Dequantize(_) = &step.op {
            let OperandRecord::Weight(scale) = *step.operands.get(1)? else { return None };
            let [scale] = floats(&model.weight(scale)?)?[..] else { return None };
            return Some(scale.abs());
        }
        if let Some(program) = program_of(&step.op) {
            return scale_of(program);
        }
        let Class::Moves(_) = step.op.class() else { return None };
        value = value_of(*step.operands.first()?)?;
    }
}

/// The factor of a program that ends in a code, less a zero point, times a constant.
fn scale_of(program: &Program) -> Option<f64> {
    let step = |argument: Argument| match argument {
        Argument::Step(step) => program.steps.get(usize::from(step)),
        Argument::Input | Argument::Operand(_) | Argument::Constant(..) => None,
    };
    let [result] = program.results[..] else { return None };
    let last = step(result)?;
    let (Function::Binary(BinaryFunction::Mul), [code, Argument::Constant(DType::F32, bits)]) =
        (&last.function, &last.arguments[..])
    else {
        return None;
    };
    let mut code = step(*code)?;
    if let (Function::Binary(BinaryFunction::Sub), [left, Argument::Constant(..)]) =
        (&code.function, &code.arguments[..])
    {
        code = step(*left)?;
    }
    let (Function::Cast, [rounded]) = (&code.function, &code.arguments[..]) else { return None };
    let scale = f32::from_bits(u32::try_from(*bits).ok()?);
    is_code(step(*rounded)?.to).then_some(f64::from(scale).abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_of_a_program_is_its_last_factor() {
        let half = Argument::f32(-0.5);
        let multiply = Function::Binary(BinaryFunction::Mul);
        let mut codes = Program::default();
        let code = codes.push(Function::Cast, vec![Argument::Operand(0)], DType::I8);
        let float = codes.push(Function::Cast, vec![code], DType::F32);
        let subtract = Function::Binary(BinaryFunction::Sub);
        let centered = codes.push(subtract, vec![float, Argument::f32(3.0)], DType::F32);
        codes.results = vec![codes.push(multiply.clone(), vec![centered, half], DType::F32)];
        assert_eq!(scale_of(&codes), Some(0.5));
        let mut floats = Program::default();
        let float = floats.push(Function::Cast, vec![Argument::Operand(0)], DType::F32);
        floats.results = vec![floats.push(multiply, vec![float, half], DType::F32)];
        assert_eq!(scale_of(&floats), None);
    }
}
