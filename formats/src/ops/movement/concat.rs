//! Tensors one after the other along an axis: ONNX `Concat` (opsets 4, 11, 13).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::follow;
use crate::ops::parts::concatenate;
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, loops,
    normalize_axis, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Any number of tensors of one type that differ in one extent only, joined along it.
    pub struct Concat revision 1 {
        /// Counted from the back where negative.
        1 since 1 => axis: i64,
    }
}

impl Concat {
    /// Whether the elements of each operand follow each other in a result of these extents.
    pub fn keeps_order(&self, extents: &[usize]) -> bool {
        normalize_axis(self.axis, extents.len()).is_ok_and(|axis| extents[..axis].iter().all(|&extent| extent == 1))
    }

    fn extents(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Shape, TypeError> {
        let mut joined: Option<(usize, Vec<Dim>)> = None;
        let mut total = Some(Dim::ZERO);
        for operand in 0..inputs.len() {
            let (_, shape) = tensor_operand(inputs, operand)?;
            let Some(dims) = shape.dims() else {
                total = None;
                continue;
            };
            let Some((axis, result)) = &mut joined else {
                let axis = normalize_axis(self.axis, dims.len())?;
                total = total.map(|total| total + &dims[axis]);
                joined = Some((axis, dims.to_vec()));
                continue;
            };
            if dims.len() != result.len() {
                return Err(TypeError::Rank { operand, expected: result.len().to_string(), found: dims.len() });
            }
            for (at, dim) in dims.iter().enumerate().filter(|(at, _)| at != axis) {
                result[at] = context.require_equal(&result[at], dim, &format!("extent of axis {at}"))?;
            }
            total = total.map(|total| total + &dims[*axis]);
        }
        let Some((axis, mut result)) = joined else { return Ok(Shape::Unranked) };
        result[axis] = total.unwrap_or_else(|| context.fresh("total"));
        Ok(Shape::Ranked(result))
    }
}

impl Operator for Concat {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, _) = tensor_operand(inputs, 0)?;
        for operand in 1..inputs.len() {
            let (found, _) = tensor_operand(inputs, operand)?;
            if found != dtype {
                return Err(TypeError::ElementType { operand, expected: dtype.to_string(), found });
            }
        }
        let mut results = vec![Fact::tensor(dtype, self.extents(inputs, context)?)];
        let moved: Vec<usize> = (0..inputs.len()).collect();
        follow(self, inputs, &moved, &mut results);
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let parts: Vec<&Tensor> = (0..inputs.len()).map(|at| tensor(inputs, at)).collect::<Result<_, _>>()?;
        let axis = normalize_axis(self.axis, tensor(inputs, 0)?.rank())?;
        match concatenate(&parts, axis)? {
            Some(joined) => Ok(vec![joined.into()]),
            None => {
                let types: Vec<String> = inputs.iter().flatten().map(|value| value.kind().to_string()).collect();
                Err(TypeError::Dimension {
                    subject: format!("operands joined along axis {axis}"),
                    left: types[0].clone(),
                    right: types[1..].join(", "),
                }
                .into())
            }
        }
    }
}

impl Moves for Concat {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let axis = facts.result(0).and_then(|dims| normalize_axis(self.axis, dims.len()).ok());
        let Some((axis, dims)) = axis.zip(facts.result(0)) else { return loops::serial(facts) };
        let mut start = Some(0i64);
        let mut spaces = Vec::new();
        for operand in 0..facts.inputs.len() {
            let Some(own) = facts.dims(operand).filter(|own| own.len() == dims.len()) else {
                return loops::serial(facts);
            };
            let Some(known) = start else { return joined_whole(facts, facts.inputs.len(), axis) };
            let place = |at: usize| if at == axis { known } else { 0 };
            let nest = own.iter().enumerate().fold(loops::Loops::new(facts), |nest, (at, extent)| {
                nest.parallel(extent, [loops::operand(operand, at), loops::result(0, at).offset(place(at))])
            });
            spaces.push(nest.space());
            start = own[axis].as_known().and_then(|length| known.checked_add(length));
        }
        spaces
    }

    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.copied_bytes()
    }

    fn view_of(&self) -> Option<usize> {
        None
    }

    fn is_identity(&self, inputs: &[Option<Fact>], _result: &Fact) -> bool {
        inputs.len() == 1
    }
}

/// A loop for each axis of the result; the first `parts` operands may be needed whole along the joined axis.
pub(crate) fn joined_whole(facts: &StepFacts<'_>, parts: usize, axis: usize) -> Vec<Space> {
    let Some(dims) = facts.result(0) else { return loops::serial(facts) };
    let nest = dims.iter().enumerate().fold(loops::Loops::new(facts), |nest, (at, extent)| {
        let operands = (0..parts).filter(|_| at != axis).map(|operand| loops::operand(operand, at));
        nest.parallel(extent, operands.chain([loops::result(0, at)]))
    });
    vec![nest.space()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{contents, first, floats, infer, inferred, iota, vector};

    #[test]
    fn extents_add_up() {
        let concat = Concat { axis: -2 };
        assert_eq!(inferred(&concat, &[floats("b, past, 64"), floats("b, seq, 64")]), "f32[b, past + seq, 64]");
        assert!(inferred(&concat, &[floats("2, 3"), floats("2, 4")]).contains("axis 1: 3 does not fit 4"));
        assert!(inferred(&concat, &[floats("2, 3"), floats("2")]).contains("rank 2, found 1"));
        let (facts, obligations) = infer(&concat, &[Some(floats("1, n")), Some(floats("1, 4"))]).unwrap();
        assert_eq!((facts[0].kind.to_string(), obligations), ("f32[2, 4]".to_string(), vec!["n equal 4".to_string()]));
        let unranked = Fact::tensor(crate::dtype::DType::F32, Shape::Unranked);
        assert_eq!(inferred(&Concat { axis: 0 }, &[unranked, floats("2, 4")]), "f32[step.total, 4]");
    }

    #[test]
    fn contents_are_joined() {
        let (facts, _) = infer(&Concat { axis: 0 }, &[Some(contents("n, 4")), Some(vector(&[-1]))]).unwrap();
        assert_eq!(facts[0].elements_as_dims().unwrap(), [Dim::symbol("n"), Dim::known(4), Dim::known(-1)]);
    }

    #[test]
    fn elements_are_joined() {
        let result = first(&Concat { axis: 1 }, &[&iota(&[2, 1]), &iota(&[2, 2])]);
        assert_eq!(result.elements::<f32>().unwrap(), [0.0, 0.0, 1.0, 1.0, 2.0, 3.0]);
    }
}
