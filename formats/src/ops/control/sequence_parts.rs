//! From tensors to sequences and back: ONNX `SplitToSequence` (opsets 11, 24) and `ConcatFromSequence` (opset 11).

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape, Type};
use crate::ops::control::join::{VARYING, item_type};
use crate::ops::control::sequence::{sequence_operand, sequence_value, tensors};
use crate::ops::parts::{concatenate, cut, stack};
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    integers, normalize_axis, optional, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::tensor::filled;
use crate::value::Value;

attributes! {
    /// Cuts a tensor into a sequence: `input`, `split` (i32 or i64) or absent. A `split` of shape `[]` is the length of
    /// every part but a shorter last one, of shape `[n]` the length of each part; absent means parts of length 1.
    pub struct SequenceSplit revision 1 {
        /// Axis that is cut; counted from the back where negative.
        1 since 1 => axis: i64,
        /// Parts lose the axis; only where `split` is absent.
        2 since 1 => drop_axis: bool,
    }
}

attributes! {
    /// Joins the tensors of a sequence.
    pub struct SequenceConcat revision 1 {
        /// Axis of the result; counted from the back where negative.
        1 since 1 => axis: i64,
        /// The axis is a new one: all tensors have one shape.
        2 since 1 => new_axis: bool,
    }
}

impl Operator for SequenceSplit {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let split = optional(inputs, 1);
        if let Some(found) = split.map(|_| tensor_operand(inputs, 1)).transpose()? {
            let (dtype, shape) = found;
            if !matches!(dtype, DType::I32 | DType::I64) {
                return Err(TypeError::ElementType { operand: 1, expected: "i32 or i64".to_string(), found: dtype });
            }
            if let Some(found) = shape.rank().filter(|&rank| rank > 1) {
                return Err(TypeError::Rank { operand: 1, expected: "0 or 1".to_string(), found });
            }
        }
        let Shape::Ranked(dims) = shape else {
            return Ok(vec![Fact::of(Type::Sequence(Box::new(Type::tensor(dtype, Shape::Unranked))))]);
        };
        let axis = normalize_axis(self.axis, dims.len())?;
        let mut dims = dims.clone();
        match split {
            None if self.drop_axis => {
                dims.remove(axis);
            }
            None => dims[axis] = Dim::ONE,
            Some(split) => dims[axis] = part_extent(&dims[axis], split),
        }
        Ok(vec![Fact::of(Type::Sequence(Box::new(Type::tensor(dtype, dims))))])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let input = tensor(inputs, 0)?;
        let axis = normalize_axis(self.axis, input.rank())?;
        let extent = input.shape()[axis];
        let has_split = inputs.get(1).and_then(Option::as_ref).is_some();
        let lengths = if has_split { lengths(inputs, extent)? } else { filled(1, extent)? };
        let mut items = Vec::with_capacity(lengths.len());
        let mut start = 0usize;
        for length in lengths {
            let part = cut(input, axis, start, length)?.ok_or_else(|| split_error(length as i64, extent))?;
            start += length;
            if self.drop_axis && !has_split {
                let mut shape = part.shape().to_vec();
                shape.remove(axis);
                items.push(part.reshaped(&shape)?);
            } else {
                items.push(part);
            }
        }
        if start != extent {
            return Err(split_error(start as i64, extent));
        }
        Ok(vec![tensors(input.dtype(), items)])
    }
}

impl Serial for SequenceSplit {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 1)])
    }
}

/// The extent that all parts have, or one that varies.
fn part_extent(extent: &Dim, split: &Fact) -> Dim {
    let varying = Dim::symbol(VARYING);
    let Some(lengths) = split.elements_as_integers() else { return varying };
    let Some(&first) = lengths.first() else { return varying };
    let even = match split.rank() {
        Some(0) => first > 0 && extent.modulo(&Dim::known(first)).as_known() == Some(0),
        _ => lengths.iter().all(|&length| length == first),
    };
    if even { Dim::known(first) } else { varying }
}

fn split_error(found: i64, extent: usize) -> ReferenceError {
    ReferenceError::OutOfRange {
        subject: "split".to_string(),
        found,
        range: format!("lengths that fill an axis of {extent}"),
    }
}

fn lengths(inputs: &[Option<Value>], extent: usize) -> Result<Vec<usize>, ReferenceError> {
    let rank = tensor(inputs, 1)?.rank();
    let found = integers(inputs, 1)?;
    let mut lengths = Vec::new();
    for &length in &found {
        lengths.push(usize::try_from(length).map_err(|_| split_error(length, extent))?);
    }
    match (rank, lengths.as_slice()) {
        (0, &[0]) => Err(split_error(0, extent)),
        (0, &[length]) => {
            let mut parts = filled(length, extent / length)?;
            if !extent.is_multiple_of(length) {
                parts.push(extent % length);
            }
            Ok(parts)
        }
        _ => Ok(lengths),
    }
}

impl Operator for SequenceConcat {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let element = sequence_operand(inputs, 0)?;
        let item = item_type(element, &mut |axis| context.fresh(&format!("item.{axis}")));
        let Some((dtype, shape)) = item.as_tensor() else {
            let expected = "a sequence of tensors";
            return Err(TypeError::Kind { operand: 0, expected, found: element.to_string() });
        };
        let Shape::Ranked(dims) = shape else { return Ok(vec![Fact::tensor(dtype, Shape::Unranked)]) };
        let mut dims = dims.clone();
        if self.new_axis {
            let axis = normalize_axis(self.axis, dims.len() + 1)?;
            dims.insert(axis, context.fresh("items"));
        } else {
            let axis = normalize_axis(self.axis, dims.len())?;
            dims[axis] = context.fresh("total");
        }
        Ok(vec![Fact::tensor(dtype, dims)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (_, items) = sequence_value(inputs, 0)?;
        let found = || items.iter().map(|item| item.kind().to_string()).collect::<Vec<_>>().join(", ");
        let not_joinable = || TypeError::Value {
            subject: "sequence".to_string(),
            found: format!("[{}]", found()),
            expected: "at least one tensor, and shapes that fit".to_string(),
        };
        let parts: Option<Vec<&Tensor>> = items.iter().map(Value::as_tensor).collect();
        let parts = parts.ok_or_else(not_joinable)?;
        let rank = parts.first().ok_or_else(not_joinable)?.rank();
        let axis = normalize_axis(self.axis, rank + usize::from(self.new_axis))?;
        let joined = if self.new_axis { stack(&parts, axis)? } else { concatenate(&parts, axis)? };
        Ok(vec![joined.ok_or_else(not_joinable)?.into()])
    }
}

impl Serial for SequenceConcat {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.result_elements(0), &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;

    fn infer(operator: &dyn Operator, inputs: &[Fact]) -> Result<Type, TypeError> {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let inputs: Vec<Option<Fact>> = inputs.iter().cloned().map(Some).collect();
        let facts = operator.infer(&inputs, &mut InferContext::new("step", &ranges, &mut blocks))?;
        Ok(facts[0].kind.clone())
    }

    fn run(operator: &dyn Operator, inputs: &[Value]) -> Result<Value, ReferenceError> {
        let mut blocks = NoBlocks;
        let inputs: Vec<Option<Value>> = inputs.iter().cloned().map(Some).collect();
        let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks))?;
        Ok(results.into_iter().next().unwrap())
    }

    fn matrix() -> Tensor {
        Tensor::from_elements(&[2, 3], &[0i64, 1, 2, 3, 4, 5]).unwrap()
    }

    fn extents(value: &Value) -> Vec<Vec<usize>> {
        let Value::Sequence { items, .. } = value else { return vec![] };
        items.iter().map(|item| item.as_tensor().unwrap().shape().to_vec()).collect()
    }

    #[test]
    fn parts_join_to_the_whole() {
        let whole: Value = matrix().into();
        for (split, expected) in [
            (None, vec![vec![2, 1]; 3]),
            (Some(Tensor::scalar(2i64)), vec![vec![2, 2], vec![2, 1]]),
            (Some(Tensor::vector_i64(&[1, 0, 2])), vec![vec![2, 1], vec![2, 0], vec![2, 2]]),
        ] {
            let operator = SequenceSplit { axis: -1, drop_axis: false };
            let inputs: Vec<Value> = std::iter::once(whole.clone()).chain(split.map(Value::from)).collect();
            let parts = run(&operator, &inputs).unwrap();
            assert_eq!(extents(&parts), expected);
            let joined = run(&SequenceConcat { axis: 1, new_axis: false }, &[parts]).unwrap();
            assert_eq!(joined, whole);
        }
        let rows = run(&SequenceSplit { axis: 0, drop_axis: true }, std::slice::from_ref(&whole)).unwrap();
        assert_eq!(extents(&rows), [vec![3], vec![3]]);
        assert_eq!(run(&SequenceConcat { axis: 0, new_axis: true }, std::slice::from_ref(&rows)).unwrap(), whole);
        assert_eq!(
            run(&SequenceConcat { axis: -1, new_axis: true }, &[rows]).unwrap(),
            Tensor::from_elements(&[3, 2], &[0i64, 3, 1, 4, 2, 5]).unwrap().into()
        );
    }

    #[test]
    fn lengths_must_fill_the_axis() {
        let operator = SequenceSplit { axis: 1, drop_axis: false };
        for wrong in [Tensor::vector_i64(&[1, 1]), Tensor::vector_i64(&[4]), Tensor::scalar(0i64)] {
            assert!(run(&operator, &[matrix().into(), wrong.into()]).is_err());
        }
        assert_eq!(
            run(&operator, &[matrix().into(), Tensor::vector_i64(&[-1, 4]).into()]).unwrap_err().to_string(),
            "split is -1, outside lengths that fill an axis of 3"
        );
        assert_eq!(
            run(&SequenceConcat { axis: 0, new_axis: false }, &[tensors(DType::F32, vec![])]).unwrap_err().to_string(),
            "sequence is [], expected at least one tensor, and shapes that fit"
        );
    }

    #[test]
    fn even_parts_keep_their_extent() {
        let input = Fact::tensor(DType::F32, vec![Dim::symbol("n") * 4, Dim::known(5)]);
        let element = |dims: Vec<Dim>| Type::Sequence(Box::new(Type::tensor(DType::F32, dims)));
        let operator = SequenceSplit { axis: 0, drop_axis: true };
        let even = infer(&operator, &[input.clone(), Fact::constant(Tensor::scalar(2i64))]).unwrap();
        assert_eq!(even, element(vec![Dim::known(2), Dim::known(5)]));
        let uneven = infer(&operator, &[input.clone(), Fact::constant(Tensor::scalar(3i64))]).unwrap();
        assert_eq!(uneven, element(vec![Dim::symbol(VARYING), Dim::known(5)]));
        assert_eq!(infer(&operator, std::slice::from_ref(&input)).unwrap(), element(vec![Dim::known(5)]));
        assert_eq!(
            infer(&SequenceSplit { axis: 2, drop_axis: false }, &[input]).unwrap_err().to_string(),
            "axis 2 is outside a tensor of rank 2"
        );
        let joined = infer(&SequenceConcat { axis: 0, new_axis: false }, &[Fact::of(uneven)]).unwrap();
        assert_eq!(joined, Type::tensor(DType::F32, vec![Dim::symbol("step.total"), Dim::known(5)]));
    }
}
