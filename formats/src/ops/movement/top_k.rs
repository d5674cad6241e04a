//! The largest or smallest elements along an axis and where they are: ONNX `TopK` (opsets 1, 10, 11, 24; the attribute
//! of opset 1 as operand).
//!
//! Of equal elements the first comes first. NaN is larger than every number and equal to NaN, as in NumPy; ONNX does
//! not say, and ONNX Runtime gives an order that depends on where NaN happens to be.

use crate::attributes;
use crate::dim::{Dim, at_least};
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{extent, only_integer, single_integer, unknown_shape};
use crate::ops::movement::unique::order;
use crate::ops::scalar::{is_number, scalars};
use crate::ops::{
    AxisKind, Computes, InferContext, Operator, ReferenceContext, ReferenceError, Relation, Space, StepFacts,
    TypeError, VectorClass, each, loops, normalize_axis, tensor, tensor_operand,
};
use crate::tensor::filled;
use crate::tensor::{Tensor, element_count};
use crate::value::Value;

attributes! {
    /// `x: [.., n, ..]`, `k: [1]` (i64) to the k elements `[.., k, ..]` and their places along the axis (i64).
    pub struct TopK revision 1 {
        /// The axis of n; counted from the back where negative.
        1 since 1 => axis: i64,
        /// The largest, else the smallest.
        2 since 1 => largest: bool,
        /// In order, best first; else by place.
        3 since 1 => sorted: bool,
    }
}

fn too_many(k: &Dim, total: &Dim) -> TypeError {
    TypeError::Dimension { subject: "k".to_string(), left: k.to_string(), right: total.to_string() }
}

impl TopK {
    fn extent(&self, k: Option<Dim>, total: &Dim, context: &mut InferContext<'_>) -> Result<Dim, TypeError> {
        let Some(k) = k else { return Ok(context.fresh("k")) };
        if k.bounds(context.ranges).1 < 0 {
            let (subject, expected) = ("k".to_string(), "0 and more".to_string());
            return Err(TypeError::Value { subject, found: k.to_string(), expected });
        }
        match at_least(total, &k, context.ranges) {
            Some(true) => {}
            Some(false) => return Err(too_many(&k, total)),
            None => context.oblige(Relation::AtMost, &k, total, "k"),
        }
        Ok(k)
    }
}

impl Operator for TopK {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        if !is_number(dtype) {
            let expected = "a real number type".to_string();
            return Err(TypeError::ElementType { operand: 0, expected, found: dtype });
        }
        let k = single_integer(inputs, 1)?;
        let result = match shape.dims() {
            Some(dims) => {
                let axis = normalize_axis(self.axis, dims.len())?;
                let mut dims = dims.to_vec();
                dims[axis] = self.extent(k, &dims[axis], context)?;
                Shape::Ranked(dims)
            }
            None => unknown_shape(context, None),
        };
        Ok(vec![Fact::tensor(dtype, result.clone()), Fact::tensor(DType::I64, result)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let axis = normalize_axis(self.axis, data.rank())?;
        let total = data.shape()[axis];
        let k = extent(only_integer(inputs, 1)?, "k")?;
        if k > total {
            return Err(too_many(&Dim::from(k), &Dim::from(total)).into());
        }
        let elements = scalars(data)?;
        let mut extents = data.shape().to_vec();
        extents[axis] = k;
        let count = element_count(&extents).unwrap_or(0);
        let (mut sources, mut places) = (filled(None, count)?, filled(0i64, count)?);
        let inner = element_count(&data.shape()[axis + 1..]).unwrap_or(0);
        let lines = if count == 0 { 0 } else { count / k };
        for line in 0..lines {
            let (outer, within) = (line / inner, line % inner);
            let source = |place: usize| (outer * total + place) * inner + within;
            let mut best: Vec<usize> = (0..total).collect();
            // The sort is stable: equal elements stay in the order of their places.
            best.sort_by(|&left, &right| {
                let ascending = order(elements[source(left)], elements[source(right)]);
                if self.largest { ascending.reverse() } else { ascending }
            });
            best.truncate(k);
            if !self.sorted {
                best.sort_unstable();
            }
            for (at, place) in best.into_iter().enumerate() {
                let target = (outer * k + at) * inner + within;
                sources[target] = Some(source(place));
                places[target] = place as i64;
            }
        }
        let values = data.select(&extents, sources.into_iter())?;
        Ok(vec![values.into(), Tensor::from_elements(&extents, &places)?.into()])
    }
}

impl Computes for TopK {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        match facts.dims(0).map(|dims| normalize_axis(self.axis, dims.len())) {
            Some(Ok(axis)) => loops::along(facts, &[axis], AxisKind::Serial, true),
            Some(Err(_)) | None => loops::serial(facts),
        }
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&(facts.elements(0) + facts.result_elements(0)), &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{contents, floats, infer, inferred, run, vector};

    fn top(largest: bool, sorted: bool, data: &[f32], k: i64) -> (Vec<f32>, Vec<i64>) {
        let inputs = [Some(Tensor::from_elements(&[data.len()], data).unwrap()), Some(Tensor::vector_i64(&[k]))];
        let results = run(&TopK { axis: 0, largest, sorted }, &inputs).unwrap();
        (results[0].elements::<f32>().unwrap().to_vec(), results[1].elements::<i64>().unwrap().to_vec())
    }

    #[test]
    fn the_best_come_first() {
        let data = [1.0, 3.0, 2.0, 3.0];
        assert_eq!(top(true, true, &data, 3), (vec![3.0, 3.0, 2.0], vec![1, 3, 2]));
        assert_eq!(top(false, true, &data, 2), (vec![1.0, 2.0], vec![0, 2]));
        assert_eq!(top(true, false, &[3.0, 1.0, 2.0, 5.0], 2), (vec![3.0, 5.0], vec![0, 3]));
        assert_eq!(top(true, true, &data, 0), (vec![], vec![]));
        assert_eq!(top(true, true, &[1.0, f32::NAN, 5.0], 2).1, [1, 2]);
        assert_eq!(top(false, true, &[f32::NAN, 1.0, 5.0], 3).1, [1, 2, 0]);
    }

    #[test]
    fn lines_run_along_the_axis_and_integers_are_exact() {
        let data = Tensor::from_elements(&[2, 2], &[1i64 << 60, 5, (1 << 60) + 1, 4]).unwrap();
        let top = TopK { axis: -2, largest: true, sorted: true };
        let results = run(&top, &[Some(data.clone()), Some(Tensor::vector_i64(&[1]))]).unwrap();
        assert_eq!(results[0].elements::<i64>().unwrap(), [(1 << 60) + 1, 5]);
        assert_eq!(results[1].elements::<i64>().unwrap(), [1, 0]);
        assert_eq!(
            run(&top, &[Some(data), Some(Tensor::vector_i64(&[3]))]).unwrap_err().to_string(),
            "k: 3 does not fit 2"
        );
    }

    #[test]
    fn k_is_an_extent() {
        let top = TopK { axis: -1, largest: true, sorted: true };
        assert_eq!(inferred(&top, &[floats("b, 8"), vector(&[2])]), "f32[b, 2]");
        assert!(inferred(&top, &[floats("b, 8"), vector(&[9])]).contains("9 does not fit 8"));
        let (facts, obligations) = infer(&top, &[Some(floats("b, n")), Some(contents("k"))]).unwrap();
        assert_eq!(
            (facts[1].kind.to_string(), obligations),
            ("i64[b, k]".to_string(), vec!["k at_most n".to_string()])
        );
        let unknown = Fact::tensor(DType::I64, vec![Dim::ONE]);
        assert_eq!(inferred(&top, &[floats("b, n"), unknown]), "f32[b, step.k]");
    }
}
