//! Slices chosen by index along one axis: ONNX `Gather` (opsets 1, 11, 13).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{flat, follow, index_operand, moved, position};
use crate::ops::{
    Gathers, InferContext, Operator, Read, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, integers,
    loops, normalize_axis, tensor, tensor_operand,
};
use crate::tensor::strides;
use crate::value::Value;

attributes! {
    /// `data: [outer.., n, inner..]`, `indices: [..]` (i32, i64; from the back where negative) to
    /// `[outer.., indices.., inner..]`.
    pub struct Gather revision 1 {
        /// The axis of n; counted from the back where negative.
        1 since 1 => axis: i64,
    }
}

fn replaced<T: Clone>(extents: &[T], axis: usize, by: &[T]) -> Vec<T> {
    [&extents[..axis], by, &extents[axis + 1..]].concat()
}

impl Operator for Gather {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let indices = index_operand(inputs, 1)?;
        let axis = shape.rank().map(|rank| normalize_axis(self.axis, rank)).transpose()?;
        let result = match (shape.dims(), axis, indices.dims()) {
            (Some(dims), Some(axis), Some(indices)) => Shape::Ranked(replaced(dims, axis, indices)),
            _ => Shape::Unranked,
        };
        self.check_constant(inputs, shape, axis, context)?;
        let mut results = vec![Fact::tensor(dtype, result)];
        follow(self, inputs, &[0], &mut results);
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let axis = normalize_axis(self.axis, data.rank())?;
        let indices = tensor(inputs, 1)?;
        let positions: Vec<usize> = integers(inputs, 1)?
            .into_iter()
            .map(|index| position(index, data.shape()[axis]))
            .collect::<Result<_, _>>()?;
        let extents = replaced(data.shape(), axis, indices.shape());
        let (data_strides, index_strides) = (strides(data.shape()), strides(indices.shape()));
        let after = axis + indices.rank();
        let source = |at: &[usize]| {
            let chosen = positions[flat(&at[axis..after], &index_strides)];
            let outer = flat(&at[..axis], &data_strides);
            Some(outer + chosen * data_strides[axis] + flat(&at[after..], &data_strides[axis + 1..]))
        };
        Ok(vec![moved(data, &extents, source)?.into()])
    }
}

impl Gathers for Gather {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let shapes = facts.dims(0).zip(facts.dims(1));
        let found =
            shapes.and_then(|(data, indices)| Some((normalize_axis(self.axis, data.len()).ok()?, indices.len())));
        let Some((axis, count)) = found else { return loops::serial(facts) };
        loops::mapped(facts, |at| match at {
            _ if at < axis => Some(loops::operand(0, at)),
            _ if at < axis + count => Some(loops::operand(1, at - axis)),
            _ => Some(loops::operand(0, at + 1 - count)),
        })
    }

    fn read(&self, operand: usize) -> Read {
        // Further axes in front would have to be known: only their absence is.
        if operand == 0 && self.axis == 0 { Read::Rows } else { Read::Once }
    }

    fn parts(&self, facts: &StepFacts<'_>) -> Dim {
        facts.elements(1)
    }
}

impl Gather {
    /// Refuse indices that are known to be outside the axis.
    fn check_constant(
        &self,
        inputs: &[Option<Fact>],
        shape: &Shape,
        axis: Option<usize>,
        context: &InferContext<'_>,
    ) -> Result<(), TypeError> {
        let (Some(dims), Some(axis)) = (shape.dims(), axis) else { return Ok(()) };
        let indices = inputs.get(1).and_then(Option::as_ref).and_then(Fact::elements_as_integers);
        let greatest = dims[axis].bounds(context.ranges).1;
        let outside = |&index: &i64| if index < 0 { -(index + 1) >= greatest } else { index >= greatest };
        match indices.unwrap_or_default().into_iter().find(outside) {
            None => Ok(()),
            Some(index) => Err(TypeError::Dimension {
                subject: "an index".to_string(),
                left: index.to_string(),
                right: Dim::to_string(&dims[axis]),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ops::movement::moving::testing::{contents, dims, first, floats, infer, inferred, iota, run, vector};
    use crate::tensor::Tensor;

    #[test]
    fn indices_take_the_place_of_the_axis() {
        let indices = Fact::tensor(DType::I64, dims("batch, seq"));
        assert_eq!(
            inferred(&Gather { axis: 0 }, &[floats("vocabulary, 256"), indices.clone()]),
            "f32[batch, seq, 256]"
        );
        assert_eq!(inferred(&Gather { axis: -1 }, &[floats("a, b"), indices]), "f32[a, batch, seq]");
        assert!(inferred(&Gather { axis: 0 }, &[floats("3, 4"), vector(&[3])]).contains("3 does not fit 3"));
        assert!(inferred(&Gather { axis: 0 }, &[floats("3"), vector(&[i64::MIN])]).contains("does not fit"));
        assert!(inferred(&Gather { axis: 0 }, &[floats("3"), floats("3")]).contains("i64 or i32"));
    }

    #[test]
    fn contents_are_chosen() {
        let index = Fact::constant(Tensor::from_elements(&[], &[-2i64]).unwrap());
        let (facts, _) = infer(&Gather { axis: 0 }, &[Some(contents("a, b, 3")), Some(index)]).unwrap();
        assert_eq!((facts[0].rank(), facts[0].elements_as_dims()), (Some(0), Some(dims("b"))));
    }

    #[test]
    fn slices_are_chosen() {
        let gather = Gather { axis: 1 };
        let result = first(&gather, &[&iota(&[2, 3]), &Tensor::from_elements(&[1, 2], &[-1i64, 0]).unwrap()]);
        assert_eq!((result.shape(), result.elements::<f32>().unwrap()), (&[2, 1, 2][..], &[2.0, 0.0, 5.0, 3.0][..]));
        let words = Tensor::from_strings(&[2], vec!["a".into(), "b".into()]).unwrap();
        assert_eq!(first(&Gather { axis: 0 }, &[&words, &Tensor::vector_i64(&[1])]).strings().unwrap(), ["b"]);
        assert_eq!(
            run(&gather, &[Some(iota(&[2, 3])), Some(Tensor::vector_i64(&[3]))]).unwrap_err().to_string(),
            "an index is 3, outside -3 to 3 - 1"
        );
        assert_eq!(
            run(&gather, &[Some(iota(&[2])), Some(Tensor::vector_i64(&[0]))]).unwrap_err().to_string(),
            "axis 1 is outside a tensor of rank 1"
        );
    }

    #[test]
    fn rows_are_read_alone() {
        assert_eq!(Gather { axis: 0 }.read(0), Read::Rows);
        assert_eq!(Gather { axis: 0 }.read(1), Read::Once);
        assert_eq!(Gather { axis: 1 }.read(0), Read::Once);
    }
}
