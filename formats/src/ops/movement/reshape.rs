//! Other extents for the same elements: ONNX `Reshape` (opsets 5, 13, 14, 19, 21, 23, 24, 25; opset 1 with its
//! attribute as an operand).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{integer_vector, unknown_shape, viewed};
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Relation, Space, StepFacts, TypeError, integers,
    loops, required, tensor, tensor_operand,
};
use crate::tensor::element_count;
use crate::value::Value;

attributes! {
    /// The elements of `data: [..]` under the extents `shape: [rank]` (i64): -1 is what is left, 0 the extent of the
    /// same axis of the data.
    pub struct Reshape revision 1 {
        /// 0 is an extent like any other.
        1 since 1 => allow_zero: bool,
    }
}

fn invalid(found: impl std::fmt::Display, expected: &str) -> TypeError {
    TypeError::Value { subject: "shape".to_string(), found: found.to_string(), expected: expected.to_string() }
}

impl Reshape {
    /// The shape for known elements of the shape operand.
    fn resolve(&self, target: &[Dim], data: &Shape, context: &mut InferContext<'_>) -> Result<Shape, TypeError> {
        let mut inferred = None;
        let mut opaque = false;
        let mut resolved = Vec::with_capacity(target.len());
        for (axis, dim) in target.iter().enumerate() {
            resolved.push(match dim.as_known() {
                Some(-1) if inferred.replace(axis).is_some() => {
                    return Err(invalid("-1 twice", "-1 at most once"));
                }
                // Holds the place of what is left.
                Some(-1) => Dim::ONE,
                Some(0) if !self.allow_zero => match data.dims() {
                    Some(dims) => dims
                        .get(axis)
                        .cloned()
                        .ok_or_else(|| invalid(format!("0 at axis {axis}"), "0 only at axes that the data has"))?,
                    None => self.unknown(axis, &mut opaque, context),
                },
                Some(extent) if extent < 0 => return Err(invalid(extent, "extents, 0 or -1")),
                Some(_) => dim.clone(),
                // A negative element may turn out to be the -1.
                None if dim.bounds(context.ranges).0 < 0 => self.unknown(axis, &mut opaque, context),
                None => dim.clone(),
            });
        }
        if self.allow_zero && inferred.is_some() && target.iter().any(|dim| dim.as_known() == Some(0)) {
            return Err(invalid("0 beside -1", "one of them where zero is an extent"));
        }
        match (data.dims(), inferred) {
            (None, Some(axis)) => resolved[axis] = context.fresh(&format!("dim{axis}")),
            (Some(_), Some(axis)) if opaque => resolved[axis] = context.fresh(&format!("dim{axis}")),
            (Some(dims), Some(axis)) => resolved[axis] = left_over(dims, &resolved, context)?,
            (Some(dims), None) if !opaque => {
                context.require_equal(&Dim::product(dims), &Dim::product(&resolved), "number of elements")?;
            }
            (Some(_) | None, None) => {}
        }
        Ok(Shape::Ranked(resolved))
    }

    fn unknown(&self, axis: usize, opaque: &mut bool, context: &InferContext<'_>) -> Dim {
        *opaque = true;
        context.fresh(&format!("dim{axis}"))
    }

    /// The extents for these elements of the shape operand.
    ///
    /// # Errors
    /// [`TypeError::Value`] where they do not hold the data's elements.
    pub fn extents(&self, target: &[i64], data: &[usize]) -> Result<Vec<usize>, TypeError> {
        let mut inferred = None;
        let mut extents = Vec::with_capacity(target.len());
        for (axis, &element) in target.iter().enumerate() {
            extents.push(match element {
                -1 if inferred.replace(axis).is_some() => return Err(invalid("-1 twice", "-1 at most once")),
                -1 => 1,
                0 if !self.allow_zero => *data
                    .get(axis)
                    .ok_or_else(|| invalid(format!("0 at axis {axis}"), "0 only at axes that the data has"))?,
                element => usize::try_from(element).map_err(|_| invalid(element, "extents, 0 or -1"))?,
            });
        }
        if self.allow_zero && inferred.is_some() && target.contains(&0) {
            return Err(invalid("0 beside -1", "one of them where zero is an extent"));
        }
        let count = element_count(data).unwrap_or(usize::MAX);
        let others = element_count(&extents);
        match (inferred, others) {
            (Some(axis), Some(others)) if others > 0 && count.is_multiple_of(others) => extents[axis] = count / others,
            (None, Some(others)) if others == count => {}
            _ => return Err(invalid(format!("{target:?}"), &format!("one for the {count} elements of {data:?}"))),
        }
        Ok(extents)
    }
}

/// What -1 stands for, where `resolved` has 1 in its place.
fn left_over(data: &[Dim], resolved: &[Dim], context: &mut InferContext<'_>) -> Result<Dim, TypeError> {
    let (total, others) = (Dim::product(data), Dim::product(resolved));
    if let Some(quotient) = total.divide_exact(&others) {
        return Ok(quotient);
    }
    let refused = || TypeError::Dimension {
        subject: "elements left for -1".to_string(),
        left: total.to_string(),
        right: others.to_string(),
    };
    match (total.as_known(), others.as_known()) {
        (_, Some(0)) | (Some(_), Some(_)) => return Err(refused()),
        _ => context.oblige(Relation::Multiple, &total, &others, "number of elements"),
    }
    Ok(total.floor_div(&others).simplify(context.ranges))
}

impl Operator for Reshape {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let target = integer_vector(inputs, 1)?;
        let result = match &target.elements {
            Some(elements) => self.resolve(elements, shape, context)?,
            None => unknown_shape(context, target.length),
        };
        Ok(vec![viewed(required(inputs, 0)?, dtype, result)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let extents = self.extents(&integers(inputs, 1)?, data.shape())?;
        Ok(vec![data.reshaped(&extents)?.into()])
    }
}

impl Moves for Reshape {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::view(facts)
    }

    fn moved(&self, _facts: &StepFacts<'_>) -> Dim {
        Dim::ZERO
    }

    fn view_of(&self) -> Option<usize> {
        Some(0)
    }

    fn is_identity(&self, inputs: &[Option<Fact>], result: &Fact) -> bool {
        inputs.first().and_then(Option::as_ref).is_some_and(|data| data.kind == result.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{contents, first, floats, infer, inferred, iota, vector};
    use crate::tensor::Tensor;

    const RESHAPE: Reshape = Reshape { allow_zero: false };

    #[test]
    fn what_is_left_is_divided_exactly() {
        assert_eq!(
            inferred(&RESHAPE, &[floats("batch, seq, 256"), contents("batch, -1, 4, 64")]),
            "f32[batch, seq, 4, 64]"
        );
        assert_eq!(inferred(&RESHAPE, &[floats("batch, seq, 256"), vector(&[0, 0, 4, -1])]), "f32[batch, seq, 4, 64]");
        assert_eq!(inferred(&RESHAPE, &[floats("b, s, 4, 64"), contents("b*s, -1")]), "f32[b*s, 256]");
        assert_eq!(inferred(&RESHAPE, &[floats("2, 3, 4"), vector(&[-1, 6])]), "f32[4, 6]");
    }

    #[test]
    fn what_symbols_do_not_decide_is_obliged() {
        let data = || Some(floats("n"));
        let (facts, obligations) = infer(&RESHAPE, &[data(), Some(vector(&[-1, 2]))]).unwrap();
        assert_eq!(facts[0].kind.to_string(), "f32[floordiv(n, 2), 2]");
        assert_eq!(obligations, ["n multiple 2"]);
        let (facts, obligations) = infer(&RESHAPE, &[data(), Some(vector(&[4, 2]))]).unwrap();
        assert_eq!(facts[0].kind.to_string(), "f32[4, 2]");
        assert_eq!(obligations, ["n equal 8"]);
    }

    #[test]
    fn unknown_shapes_keep_their_rank() {
        let shape = Fact::tensor(crate::dtype::DType::I64, vec![Dim::known(3)]);
        assert_eq!(inferred(&RESHAPE, &[floats("n"), shape]), "f32[step.dim0, step.dim1, step.dim2]");
        let shape = Fact::tensor(crate::dtype::DType::I64, vec![Dim::symbol("r")]);
        assert_eq!(inferred(&RESHAPE, &[floats("n"), shape]), "f32[..]");
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        for target in [&[-1, -1][..], &[5], &[-1, 5], &[-2], &[6, 0, 1, 0]] {
            let data = Some(floats("2, 3"));
            assert!(infer(&RESHAPE, &[data, Some(vector(target))]).is_err(), "{target:?}");
            assert!(RESHAPE.extents(target, &[2, 3]).is_err(), "{target:?}");
        }
        let zero = Reshape { allow_zero: true };
        assert_eq!(zero.extents(&[3, 0], &[0, 5]).unwrap(), [3, 0]);
        assert_eq!(
            zero.extents(&[-1, 0], &[0, 5]).unwrap_err().to_string(),
            "shape is 0 beside -1, expected one of them where zero is an extent"
        );
        assert_eq!(
            RESHAPE.extents(&[0, -1], &[0, 3]).unwrap_err().to_string(),
            "shape is [0, -1], expected one for the 0 elements of [0, 3]"
        );
        assert_eq!(RESHAPE.extents(&[3, -1], &[0, 3]).unwrap(), [3, 0]);
    }

    #[test]
    fn elements_keep_their_order() {
        let result = first(&RESHAPE, &[&iota(&[2, 3]), &Tensor::vector_i64(&[3, -1])]);
        assert_eq!(
            (result.shape(), result.elements::<f32>().unwrap()),
            (&[3, 2][..], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0][..])
        );
    }
}
