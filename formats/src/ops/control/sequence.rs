//! Sequences of tensors: ONNX `SequenceConstruct`, `SequenceEmpty`, `SequenceAt`, `SequenceInsert`, `SequenceErase`,
//! `SequenceLength` (opset 11).
//!
//! Items may differ in shape; the element type then says `?` for an extent that differs (see [`join`](super::join)).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape, Type};
use crate::ops::control::join::{item_type, join_items, without_shapes};
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    integers, optional, required, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// A sequence of the operands, tensors of one element type: any number, none only where `dtype` says of what.
    pub struct SequenceConstruct revision 1 {
        /// Element type of the tensors; needed where there is no operand.
        1 since 1 => dtype: Option<DType>,
    }
}

attributes! {
    /// The item of a sequence at a position: `sequence`, `position: i32 or i64`, one element, counted from the back
    /// where negative.
    pub struct SequenceAt revision 1 {}
}

attributes! {
    /// A sequence with one item more: `sequence`, `item`, `position` (one element) or absent for the end.
    pub struct SequenceInsert revision 1 {}
}

attributes! {
    /// A sequence with one item less: `sequence`, `position` (one element) or absent for the last.
    pub struct SequenceErase revision 1 {}
}

attributes! {
    /// How many items a sequence has: `i64 []`.
    pub struct SequenceLength revision 1 {}
}

/// The element type of the sequence operand.
pub(super) fn sequence_operand(inputs: &[Option<Fact>], operand: usize) -> Result<&Type, TypeError> {
    match &required(inputs, operand)?.kind {
        Type::Sequence(element) => Ok(element),
        other @ (Type::Tensor { .. } | Type::Optional(_) | Type::Map { .. }) => {
            Err(TypeError::Kind { operand, expected: "a sequence", found: other.to_string() })
        }
    }
}

/// The element type and the items of the sequence operand.
pub(super) fn sequence_value(inputs: &[Option<Value>], operand: usize) -> Result<(&Type, &[Value]), ReferenceError> {
    match inputs.get(operand).and_then(Option::as_ref) {
        None => Err(TypeError::MissingOperand { operand }.into()),
        Some(Value::Sequence { element, items }) => Ok((element, items)),
        Some(other) => Err(TypeError::Kind { operand, expected: "a sequence", found: other.kind().to_string() }.into()),
    }
}

/// A sequence of tensors of one element type.
pub(super) fn tensors(dtype: DType, items: Vec<Tensor>) -> Value {
    let items = items.into_iter().map(Value::Tensor).collect();
    Value::Sequence { element: Type::tensor(dtype, Shape::Unranked), items }
}

fn check_count(found: usize, least: usize, most: usize) -> Result<(), TypeError> {
    if (least..=most).contains(&found) {
        return Ok(());
    }
    Err(TypeError::OperandCount { expected: format!("{least} to {most}"), found })
}

fn check_position(inputs: &[Option<Fact>], operand: usize) -> Result<(), TypeError> {
    if optional(inputs, operand).is_none() {
        return Ok(());
    }
    match tensor_operand(inputs, operand)?.0 {
        DType::I32 | DType::I64 => Ok(()),
        found => Err(TypeError::ElementType { operand, expected: "i32 or i64".to_string(), found }),
    }
}

/// A position in `0..limit`, from operand `operand` that may count from the back of `length` items.
fn position(
    inputs: &[Option<Value>],
    operand: usize,
    length: usize,
    limit: usize,
) -> Result<Option<usize>, ReferenceError> {
    if inputs.get(operand).and_then(Option::as_ref).is_none() {
        return Ok(None);
    }
    let elements = integers(inputs, operand)?;
    let &[found] = elements.as_slice() else {
        return Err(TypeError::Value {
            subject: "position".to_string(),
            found: format!("{} elements", elements.len()),
            expected: "one element".to_string(),
        }
        .into());
    };
    let from_front = if found < 0 { found.checked_add_unsigned(length as u64) } else { Some(found) };
    match from_front.map(usize::try_from) {
        Some(Ok(position)) if position < limit => Ok(Some(position)),
        _ => Err(ReferenceError::OutOfRange {
            subject: format!("position in a sequence of {length}"),
            found,
            range: format!("-{length} to {}", limit as i64 - 1),
        }),
    }
}

impl Operator for SequenceConstruct {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let mut element = None;
        for operand in 0..inputs.len() {
            let (dtype, _) = tensor_operand(inputs, operand)?;
            let expected = self.dtype.unwrap_or(dtype);
            let kind = &required(inputs, operand)?.kind;
            let joined = match &element {
                None => (dtype == expected).then(|| kind.clone()),
                Some(element) => join_items(element, kind),
            };
            let expected = || TypeError::ElementType {
                operand,
                expected: "the element type of the sequence".to_string(),
                found: dtype,
            };
            element = Some(joined.ok_or_else(expected)?);
        }
        let empty = || self.dtype.map(|dtype| Type::tensor(dtype, Shape::Unranked));
        let element = element.or_else(empty).ok_or_else(|| TypeError::Value {
            subject: "dtype".to_string(),
            found: "absent".to_string(),
            expected: "the element type of an empty sequence".to_string(),
        })?;
        Ok(vec![Fact::of(Type::Sequence(Box::new(element)))])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let items = (0..inputs.len()).map(|operand| tensor(inputs, operand).cloned());
        let items = items.collect::<Result<Vec<Tensor>, ReferenceError>>()?;
        let found = items.first().map(Tensor::dtype);
        let Some(dtype) = self.dtype.or(found) else {
            return Err(TypeError::MissingOperand { operand: 0 }.into());
        };
        if let Some(operand) = items.iter().position(|item| item.dtype() != dtype) {
            let found = items[operand].dtype();
            return Err(TypeError::ElementType { operand, expected: dtype.to_string(), found }.into());
        }
        Ok(vec![tensors(dtype, items)])
    }
}

impl Serial for SequenceConstruct {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, _facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&Dim::ONE, &[(VectorClass::Arithmetic, 1)])
    }
}

impl Operator for SequenceAt {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        check_count(inputs.len(), 2, 2)?;
        let element = sequence_operand(inputs, 0)?;
        required(inputs, 1)?;
        check_position(inputs, 1)?;
        Ok(vec![Fact::of(item_type(element, &mut |axis| context.fresh(&format!("item.{axis}"))))])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (_, items) = sequence_value(inputs, 0)?;
        let at = position(inputs, 1, items.len(), items.len())?;
        Ok(vec![items[at.ok_or(TypeError::MissingOperand { operand: 1 })?].clone()])
    }
}

impl Serial for SequenceAt {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, _facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&Dim::ONE, &[(VectorClass::Arithmetic, 1)])
    }
}

impl Operator for SequenceInsert {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        check_count(inputs.len(), 2, 3)?;
        let element = sequence_operand(inputs, 0)?;
        let item = &required(inputs, 1)?.kind;
        check_position(inputs, 2)?;
        let joined = join_items(element, item).ok_or_else(|| TypeError::Kind {
            operand: 1,
            expected: "of the element type of the sequence",
            found: item.to_string(),
        })?;
        Ok(vec![Fact::of(Type::Sequence(Box::new(joined)))])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (element, items) = sequence_value(inputs, 0)?;
        let item = inputs.get(1).and_then(Option::as_ref).ok_or(TypeError::MissingOperand { operand: 1 })?;
        if without_shapes(&item.kind()) != without_shapes(element) {
            let found = item.kind().to_string();
            let expected = "of the element type of the sequence";
            return Err(TypeError::Kind { operand: 1, expected, found }.into());
        }
        let at = position(inputs, 2, items.len(), items.len().saturating_add(1))?.unwrap_or(items.len());
        let mut inserted = Vec::with_capacity(items.len() + 1);
        inserted.extend_from_slice(&items[..at]);
        inserted.push(item.clone());
        inserted.extend_from_slice(&items[at..]);
        Ok(vec![Value::Sequence { element: without_shapes(element), items: inserted }])
    }
}

impl Serial for SequenceInsert {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, _facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&Dim::ONE, &[(VectorClass::Arithmetic, 1)])
    }
}

impl Operator for SequenceErase {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        check_count(inputs.len(), 1, 2)?;
        let element = sequence_operand(inputs, 0)?;
        check_position(inputs, 1)?;
        Ok(vec![Fact::of(Type::Sequence(Box::new(element.clone())))])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (element, items) = sequence_value(inputs, 0)?;
        let last = items.len().checked_sub(1).ok_or_else(|| ReferenceError::OutOfRange {
            subject: "length of the sequence".to_string(),
            found: 0,
            range: "1 and above".to_string(),
        })?;
        let at = position(inputs, 1, items.len(), items.len())?.unwrap_or(last);
        let mut items = items.to_vec();
        items.remove(at);
        Ok(vec![Value::Sequence { element: element.clone(), items }])
    }
}

impl Serial for SequenceErase {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, _facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&Dim::ONE, &[(VectorClass::Arithmetic, 1)])
    }
}

impl Operator for SequenceLength {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        check_count(inputs.len(), 1, 1)?;
        sequence_operand(inputs, 0)?;
        Ok(vec![Fact::tensor(DType::I64, Vec::new())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (_, items) = sequence_value(inputs, 0)?;
        Ok(vec![Tensor::scalar(items.len() as i64).into()])
    }
}

impl Serial for SequenceLength {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, _facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&Dim::ONE, &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::{Dim, Ranges};
    use crate::ops::NoBlocks;

    fn infer(operator: &dyn Operator, inputs: &[Fact]) -> Result<Vec<Fact>, TypeError> {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let inputs: Vec<Option<Fact>> = inputs.iter().cloned().map(Some).collect();
        operator.infer(&inputs, &mut InferContext::new("step", &ranges, &mut blocks))
    }

    fn run(operator: &dyn Operator, inputs: &[Value]) -> Result<Value, ReferenceError> {
        let mut blocks = NoBlocks;
        let inputs: Vec<Option<Value>> = inputs.iter().cloned().map(Some).collect();
        let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks))?;
        Ok(results.into_iter().next().unwrap())
    }

    fn scalar(number: i64) -> Value {
        Tensor::scalar(number).into()
    }

    fn numbers(items: &[i64]) -> Value {
        tensors(DType::I64, items.iter().map(|&item| Tensor::scalar(item)).collect())
    }

    #[test]
    fn items_are_reached_from_both_ends() {
        let sequence = numbers(&[10, 11, 12]);
        assert_eq!(run(&SequenceAt {}, &[sequence.clone(), scalar(-1)]).unwrap(), scalar(12));
        assert_eq!(run(&SequenceAt {}, &[sequence.clone(), scalar(0)]).unwrap(), scalar(10));
        for outside in [3, -4, i64::MIN] {
            assert!(run(&SequenceAt {}, &[sequence.clone(), scalar(outside)]).is_err());
        }
        let position = Tensor::scalar(1i32).into();
        assert_eq!(run(&SequenceErase {}, &[sequence.clone(), position]).unwrap(), numbers(&[10, 12]));
        assert_eq!(run(&SequenceErase {}, std::slice::from_ref(&sequence)).unwrap(), numbers(&[10, 11]));
        assert_eq!(
            run(&SequenceErase {}, &[numbers(&[])]).unwrap_err().to_string(),
            "length of the sequence is 0, outside 1 and above"
        );
        assert_eq!(run(&SequenceInsert {}, &[sequence.clone(), scalar(5)]).unwrap(), numbers(&[10, 11, 12, 5]));
        let front = run(&SequenceInsert {}, &[sequence.clone(), scalar(5), scalar(-3)]).unwrap();
        assert_eq!(front, numbers(&[5, 10, 11, 12]));
        let end = run(&SequenceInsert {}, &[sequence.clone(), scalar(5), scalar(3)]).unwrap();
        assert_eq!(end, numbers(&[10, 11, 12, 5]));
        let wrong = Tensor::scalar(1.0f32).into();
        assert_eq!(
            run(&SequenceInsert {}, &[sequence.clone(), wrong]).unwrap_err().to_string(),
            "operand 1 must be of the element type of the sequence, found f32[]"
        );
        assert_eq!(run(&SequenceLength {}, &[sequence]).unwrap(), scalar(3));
        let built = run(&SequenceConstruct { dtype: None }, &[scalar(10), scalar(11)]).unwrap();
        assert_eq!(built, numbers(&[10, 11]));
        assert_eq!(run(&SequenceConstruct { dtype: Some(DType::I64) }, &[]).unwrap(), numbers(&[]));
    }

    #[test]
    fn element_types_cover_all_items() {
        let float = |dims: &[Dim]| Fact::tensor(DType::F32, dims.to_vec());
        let (n, three) = (Dim::symbol("n"), Dim::known(3));
        let built = infer(
            &SequenceConstruct { dtype: None },
            &[float(&[n.clone(), three.clone()]), float(&[Dim::ONE, three.clone()])],
        )
        .unwrap();
        let taken = infer(&SequenceAt {}, &[built[0].clone(), Fact::tensor(DType::I64, vec![])]).unwrap();
        assert_eq!(taken, [float(&[Dim::symbol("step.item.0"), three])]);
        assert_eq!(
            infer(&SequenceConstruct { dtype: None }, &[]).unwrap_err().to_string(),
            "dtype is absent, expected the element type of an empty sequence"
        );
        assert_eq!(
            infer(&SequenceConstruct { dtype: None }, &[float(&[]), Fact::tensor(DType::F64, vec![])])
                .unwrap_err()
                .to_string(),
            "operand 1 must be the element type of the sequence, found f64"
        );
        assert_eq!(
            infer(&SequenceInsert {}, &[built[0].clone(), Fact::tensor(DType::F64, vec![])]).unwrap_err().to_string(),
            "operand 1 must be of the element type of the sequence, found f64[]"
        );
        assert_eq!(
            infer(&SequenceAt {}, &[built[0].clone(), float(&[])]).unwrap_err().to_string(),
            "operand 1 must be i32 or i64, found f32"
        );
    }
}
