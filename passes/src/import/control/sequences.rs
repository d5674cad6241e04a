//! `SequenceConstruct`, `SequenceEmpty`, `SequenceAt`, `SequenceInsert`, `SequenceErase`, `SequenceLength`,
//! `ConcatFromSequence` (11), `SplitToSequence` (11, 24), `SequenceMap` (17), `Optional` (15, 28),
//! `OptionalGetElement`, `OptionalHasElement` (15, 18, 28).

use crate::import::lowering::{LowerError, Lowering, Row, row};
use crate::import::types::element_type;
use crate::ir::Operand;
use ipuc_formats::dim::Dim;
use ipuc_formats::fact::{Fact, Type};
use ipuc_formats::ops::control::join::item_type;
use ipuc_formats::ops::{
    OptionalConstruct, OptionalGet, OptionalHas, SequenceAt, SequenceConcat, SequenceConstruct, SequenceErase,
    SequenceInsert, SequenceLength, SequenceMap, SequenceSplit, TypeError,
};
use ipuc_formats::tensor::Tensor;

/// Sequences and optionals.
pub const ROWS: &[Row] = &[
    row("SequenceConstruct", 11, construct),
    row("SequenceEmpty", 11, empty),
    row("SequenceAt", 11, |node| node.emit(SequenceAt {}, node.inputs())),
    row("SequenceInsert", 11, |node| node.emit(SequenceInsert {}, node.inputs())),
    row("SequenceErase", 11, |node| node.emit(SequenceErase {}, node.inputs())),
    row("SequenceLength", 11, |node| node.emit(SequenceLength {}, node.inputs())),
    row("SplitToSequence", 11, split),
    row("ConcatFromSequence", 11, concat),
    row("SequenceMap", 17, map),
    row("Optional", 15, optional),
    row("OptionalGetElement", 15, get_element),
    row("OptionalHasElement", 15, has_element),
];

fn construct(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    node.required(0)?;
    node.emit(SequenceConstruct { dtype: None }, node.inputs())
}

fn empty(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let number = node.int("dtype")?.unwrap_or(1);
    let dtype = element_type(Some(i32::try_from(number).unwrap_or(0)))?;
    node.emit(SequenceConstruct { dtype: Some(dtype) }, Vec::new())
}

fn split(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let axis = node.int("axis")?.unwrap_or(0);
    let drop_axis = !node.flag("keepdims", true)? && node.input(1) == Operand::Absent;
    node.emit(SequenceSplit { axis, drop_axis }, node.inputs())
}

fn concat(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let axis = node.int("axis")?.ok_or_else(|| LowerError::MissingAttribute("axis".to_string()))?;
    let new_axis = node.flag("new_axis", false)?;
    node.emit(SequenceConcat { axis, new_axis }, node.inputs())
}

fn map(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let inputs = node.inputs();
    let mut parameters = Vec::with_capacity(inputs.len());
    for (index, input) in inputs.iter().enumerate() {
        let fact = node.fact(input).ok_or(TypeError::MissingOperand { operand: index })?;
        parameters.push(match &fact.kind {
            Type::Sequence(element) => {
                let mut fresh = |axis: usize| Dim::symbol(&format!("{}.item{index}.{axis}", node.step_name()));
                Fact::of(item_type(element, &mut fresh))
            }
            Type::Tensor { .. } | Type::Optional(_) | Type::Map { .. } => fact,
        });
    }
    let body = node.body("body", parameters)?;
    let operator = SequenceMap { body: body.block, mapped: inputs.len() as i64 };
    node.emit(operator, [inputs, body.captures].concat())
}

fn optional(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let stated = node.type_of("type")?;
    let input = node.input(0);
    let found = node.fact(&input).map(|fact| fact.kind);
    let of_tensor = |kind: &Type| kind.as_tensor().map(|(dtype, _)| dtype);
    let (dtype, sequence) = match found.as_ref().or(stated.as_ref()) {
        Some(kind @ Type::Tensor { .. }) => (of_tensor(kind), false),
        Some(Type::Sequence(element)) => (of_tensor(element), true),
        Some(other @ (Type::Optional(_) | Type::Map { .. })) => {
            return Err(node.refuse(format!("an optional of {other}")));
        }
        None => return Err(LowerError::MissingAttribute("type".to_string())),
    };
    let agrees = |stated: &Type| match stated {
        Type::Tensor { dtype: stated, .. } => !sequence && Some(*stated) == dtype,
        Type::Sequence(element) => sequence && of_tensor(element) == dtype,
        Type::Optional(_) | Type::Map { .. } => false,
    };
    if let (Some(stated), Some(found)) = (&stated, &found)
        && !agrees(stated)
    {
        return Err(node.refuse(format!("attribute `type` of {stated} with an input of {found}")));
    }
    node.emit(OptionalConstruct { dtype, sequence }, vec![input])
}

/// What is known of the input of `OptionalGetElement` and `OptionalHasElement`.
fn is_optional(node: &Lowering<'_, '_>) -> bool {
    node.fact(&node.input(0)).is_some_and(|fact| matches!(fact.kind, Type::Optional(_)))
}

fn get_element(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let input = node.required(0)?;
    if is_optional(node) { node.emit(OptionalGet {}, vec![input]) } else { Ok(vec![input]) }
}

fn has_element(node: &mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError> {
    let input = node.input(0);
    if is_optional(node) {
        return node.emit(OptionalHas {}, vec![input]);
    }
    Ok(vec![node.constant(Tensor::scalar_bool(input != Operand::Absent))])
}
