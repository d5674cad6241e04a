//! Single elements written by index: ONNX `ScatterElements` (opsets 11, 13, 16, 18) and `Scatter` (opset 9); slices
//! written by tuples of indices: ONNX `ScatterND` (opsets 11, 13, 16, 18).
//!
//! Updates apply in row-major order of the indices: without a reduction the last of several for one place stays, with
//! one each result is rounded to the element type before the next.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::movement::gather_nd::{check_tuple, tuple_length};
use crate::ops::movement::moving::{flat, follow, index_operand, joined, position, sources};
use crate::ops::scalar::{Scalar, from_scalars, round_to, scalars};
use crate::ops::{
    BinaryFunction, Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError,
    VectorClass, each, integers, loops, normalize_axis, tensor, tensor_operand,
};
use crate::tensor::{Tensor, element_count, strides};
use crate::value::Value;
use num_complex::Complex;

attributes! {
    /// `data: [..]` with `updates: [..]` at its own place but for the axis, where `indices: [..]` (i32, i64; of the
    /// shape of the updates) says.
    pub struct ScatterElements revision 1 {
        /// Counted from the back where negative.
        1 since 1 => axis: i64,
        /// What an update does to the element.
        2 since 1 => reduction: ScatterReduction,
    }
}

attributes! {
    /// `data: [a.., inner..]` with the slices `updates: [outer.., inner..]` where `indices: [outer.., k]` (i32, i64; k
    /// indices into a..) say.
    pub struct ScatterNd revision 1 {
        /// What an update does to the element.
        1 since 1 => reduction: ScatterReduction,
    }
}

/// What an update does to the element that it meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ScatterReduction {
    /// It takes its place.
    None,
    /// It is added; logical or of bools.
    Add,
    /// It is multiplied; logical and of bools.
    Mul,
    /// The larger stays; NaN where either is.
    Max,
    /// The smaller stays; NaN where either is.
    Min,
}
impl Keyword for ScatterReduction {}

impl ScatterReduction {
    /// The function of two elements, if there is one.
    pub fn function(self) -> Option<BinaryFunction> {
        match self {
            ScatterReduction::None => None,
            ScatterReduction::Add => Some(BinaryFunction::Add),
            ScatterReduction::Mul => Some(BinaryFunction::Mul),
            ScatterReduction::Max => Some(BinaryFunction::Max),
            ScatterReduction::Min => Some(BinaryFunction::Min),
        }
    }

    fn check(self, dtype: DType) -> Result<(), TypeError> {
        let fits = match self {
            ScatterReduction::None => true,
            ScatterReduction::Add | ScatterReduction::Mul => dtype != DType::String,
            ScatterReduction::Max | ScatterReduction::Min => dtype != DType::String && !dtype.is_complex(),
        };
        let expected = "a type of this reduction".to_string();
        if fits { Ok(()) } else { Err(TypeError::ElementType { operand: 0, expected, found: dtype }) }
    }
}

/// `data` with `updates[i]` applied at `targets[i]`.
fn applied(
    data: &Tensor,
    updates: &Tensor,
    targets: &[usize],
    reduction: ScatterReduction,
) -> Result<Tensor, ReferenceError> {
    reduction.check(data.dtype())?;
    let both = joined(data, updates, 2)?;
    let count = data.count();
    let Some(function) = reduction.function() else {
        let mut sources: Vec<Option<usize>> = (0..count).map(Some).collect();
        targets.iter().enumerate().for_each(|(update, &target)| sources[target] = Some(count + update));
        return Ok(both.select(data.shape(), sources.into_iter())?);
    };
    match data.dtype() {
        DType::C64 => return complex::<f32>(data, updates, targets, function),
        DType::C128 => return complex::<f64>(data, updates, targets, function),
        _ => {}
    }
    let mut elements = scalars(data)?;
    for (&target, &update) in targets.iter().zip(&scalars(updates)?) {
        elements[target] = match (elements[target], update) {
            // Of these functions none divides, and wrapping once at the end is wrapping each time.
            (Scalar::Integer(x), Scalar::Integer(y)) => {
                Scalar::Integer(function.apply_integers(x, y, u64::BITS).unwrap_or(0))
            }
            (x, y) => Scalar::Float(round_to(data.dtype(), function.apply(x.to_f64(), y.to_f64()))),
        };
    }
    from_scalars(data.dtype(), data.shape(), &elements)
}

fn complex<T>(
    data: &Tensor,
    updates: &Tensor,
    targets: &[usize],
    function: BinaryFunction,
) -> Result<Tensor, ReferenceError>
where
    T: num_traits::Float,
    Complex<T>: crate::element::Element,
{
    let mut elements = data.elements::<Complex<T>>()?.to_vec();
    for (&target, &update) in targets.iter().zip(updates.elements::<Complex<T>>()?) {
        let element = elements[target];
        elements[target] = if function == BinaryFunction::Mul { element * update } else { element + update };
    }
    Ok(Tensor::from_elements(data.shape(), &elements)?)
}

fn same_type(inputs: &[Option<Fact>]) -> Result<(DType, &Shape, &Shape), TypeError> {
    let (dtype, shape) = tensor_operand(inputs, 0)?;
    let (found, updates) = tensor_operand(inputs, 2)?;
    if found != dtype {
        return Err(TypeError::ElementType { operand: 2, expected: dtype.to_string(), found });
    }
    Ok((dtype, shape, updates))
}

fn same_shape(expected: &[Dim], found: &[Dim], subject: &str, context: &mut InferContext<'_>) -> Result<(), TypeError> {
    if expected.len() != found.len() {
        return Err(TypeError::Rank { operand: 2, expected: expected.len().to_string(), found: found.len() });
    }
    for (left, right) in expected.iter().zip(found) {
        context.require_equal(left, right, subject)?;
    }
    Ok(())
}

fn shape_mismatch(left: &[usize], right: &[usize]) -> TypeError {
    let (left, right) = (format!("{left:?}"), format!("{right:?}"));
    TypeError::Dimension { subject: "shape of the updates".to_string(), left, right }
}

impl Operator for ScatterElements {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape, updates) = same_type(inputs)?;
        let indices = index_operand(inputs, 1)?;
        self.reduction.check(dtype)?;
        let rank = shape.rank().or(indices.rank()).or(updates.rank());
        if let Some(rank) = rank {
            normalize_axis(self.axis, rank)?;
            for (operand, found) in [(1, indices.rank()), (2, updates.rank())] {
                if let Some(found) = found.filter(|&found| found != rank) {
                    return Err(TypeError::Rank { operand, expected: rank.to_string(), found });
                }
            }
        }
        if let (Some(indices), Some(updates)) = (indices.dims(), updates.dims()) {
            same_shape(indices, updates, "shape of the updates", context)?;
        }
        let mut results = vec![Fact::tensor(dtype, shape.clone())];
        if self.reduction == ScatterReduction::None {
            follow(self, inputs, &[0, 2], &mut results);
        }
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (data, indices, updates) = (tensor(inputs, 0)?, tensor(inputs, 1)?, tensor(inputs, 2)?);
        let axis = normalize_axis(self.axis, data.rank())?;
        if indices.rank() != data.rank() {
            let expected = data.rank().to_string();
            return Err(TypeError::Rank { operand: 1, expected, found: indices.rank() }.into());
        }
        if indices.shape() != updates.shape() {
            return Err(shape_mismatch(indices.shape(), updates.shape()).into());
        }
        let chosen = integers(inputs, 1)?;
        let (data_strides, index_strides) = (strides(data.shape()), strides(indices.shape()));
        let mut place = vec![0usize; data.rank()];
        let target = |at: &[usize]| -> Result<usize, ReferenceError> {
            for (own, &coordinate) in at.iter().enumerate() {
                let index = if own == axis { chosen[flat(at, &index_strides)] } else { coordinate as i64 };
                place[own] = position(index, data.shape()[own])?;
            }
            Ok(flat(&place, &data_strides))
        };
        let targets: Vec<usize> =
            sources(data.dtype(), indices.shape(), target)?.into_iter().collect::<Result<_, _>>()?;
        Ok(vec![applied(data, updates, &targets, self.reduction)?.into()])
    }
}

impl Computes for ScatterElements {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::serial(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(2), &[(VectorClass::Arithmetic, 1)])
    }
}

impl Operator for ScatterNd {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape, updates) = same_type(inputs)?;
        let indices = index_operand(inputs, 1)?;
        self.reduction.check(dtype)?;
        if indices.rank() == Some(0) {
            return Err(TypeError::Rank { operand: 1, expected: "1 or more".to_string(), found: 0 });
        }
        if let (Some(dims), Some(indices), Some(updates)) = (shape.dims(), indices.dims(), updates.dims())
            && let Some(length) = tuple_length(indices)
        {
            check_tuple(length, dims.len())?;
            let expected = [&indices[..indices.len() - 1], &dims[length..]].concat();
            same_shape(&expected, updates, "shape of the updates", context)?;
        }
        let mut results = vec![Fact::tensor(dtype, shape.clone())];
        if self.reduction == ScatterReduction::None {
            follow(self, inputs, &[0, 2], &mut results);
        }
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (data, indices, updates) = (tensor(inputs, 0)?, tensor(inputs, 1)?, tensor(inputs, 2)?);
        let rank_zero = || TypeError::Rank { operand: 1, expected: "1 or more".to_string(), found: 0 };
        let (&length, outer) = indices.shape().split_last().ok_or_else(rank_zero)?;
        check_tuple(length, data.rank())?;
        let inner = &data.shape()[length..];
        let expected = [outer, inner].concat();
        if updates.shape() != expected {
            return Err(shape_mismatch(&expected, updates.shape()).into());
        }
        let strides = strides(data.shape());
        let slice = element_count(inner).unwrap_or(0);
        let mut targets = Vec::new();
        for tuple in integers(inputs, 1)?.chunks(length) {
            let mut start = 0;
            for (axis, &index) in tuple.iter().enumerate() {
                start += position(index, data.shape()[axis])? * strides[axis];
            }
            targets.extend(start..start + slice);
        }
        Ok(vec![applied(data, updates, &targets, self.reduction)?.into()])
    }
}

impl Computes for ScatterNd {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::serial(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(2), &[(VectorClass::Arithmetic, 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{contents, dims, floats, infer, inferred, iota, run, vector};

    fn scattered(reduction: ScatterReduction, data: &[f32], indices: &[i64], updates: &[f32]) -> Vec<f32> {
        let inputs = [
            Some(Tensor::from_elements(&[data.len()], data).unwrap()),
            Some(Tensor::vector_i64(indices)),
            Some(Tensor::from_elements(&[updates.len()], updates).unwrap()),
        ];
        let result = run(&ScatterElements { axis: 0, reduction }, &inputs).unwrap().remove(0);
        result.elements::<f32>().unwrap().to_vec()
    }

    #[test]
    fn updates_apply_in_order() {
        assert_eq!(scattered(ScatterReduction::None, &[0.0; 3], &[1, -1, 1], &[1.0, 2.0, 3.0]), [0.0, 3.0, 2.0]);
        assert_eq!(scattered(ScatterReduction::Add, &[1.0; 2], &[0, 0], &[2.0, 3.0]), [6.0, 1.0]);
        assert_eq!(scattered(ScatterReduction::Mul, &[2.0; 2], &[0, 0], &[2.0, 3.0]), [12.0, 2.0]);
        assert_eq!(scattered(ScatterReduction::Max, &[2.0; 2], &[0, 1], &[1.0, 3.0]), [2.0, 3.0]);
        assert!(scattered(ScatterReduction::Min, &[2.0], &[0], &[f32::NAN])[0].is_nan());
    }

    #[test]
    fn integers_are_exact_and_bools_logical() {
        let scatter = ScatterElements { axis: 0, reduction: ScatterReduction::Add };
        let long = |element: i64| Some(Tensor::vector_i64(&[element]));
        let sum = run(&scatter, &[long(1 << 60), long(0), long(1)]).unwrap().remove(0);
        assert_eq!(sum.elements::<i64>().unwrap(), [(1 << 60) + 1]);
        let sum = run(&scatter, &[long(i64::MAX), long(0), long(1)]).unwrap().remove(0);
        assert_eq!(sum.elements::<i64>().unwrap(), [i64::MIN]);
        let truth = Some(Tensor::from_bools(&[1], &[true]).unwrap());
        let both = run(&scatter, &[truth.clone(), long(0), truth]).unwrap().remove(0);
        assert_eq!(both.bools().unwrap(), [true]);
        let text = Some(Tensor::from_strings(&[1], vec!["a".into()]).unwrap());
        assert_eq!(
            run(&scatter, &[text.clone(), long(0), text]).unwrap_err().to_string(),
            "operand 0 must be a type of this reduction, found string"
        );
    }

    #[test]
    fn tuples_write_slices() {
        let scatter = ScatterNd { reduction: ScatterReduction::None };
        let inputs =
            [Some(iota(&[3, 2])), Some(Tensor::from_elements(&[1, 1], &[-1i64]).unwrap()), Some(iota(&[1, 2]))];
        let result = run(&scatter, &inputs).unwrap().remove(0);
        assert_eq!(result.elements::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 0.0, 1.0]);
        let wrong = [Some(iota(&[3, 2])), Some(Tensor::from_elements(&[1, 1], &[3i64]).unwrap()), Some(iota(&[1, 2]))];
        assert_eq!(run(&scatter, &wrong).unwrap_err().to_string(), "an index is 3, outside -3 to 3 - 1");
        let indices = Fact::tensor(DType::I64, dims("n, 1"));
        assert_eq!(inferred(&scatter, &[floats("a, b"), indices.clone(), floats("n, b")]), "f32[a, b]");
        assert!(inferred(&scatter, &[floats("a, b"), indices, floats("n, b, 1")]).contains("rank 2, found 3"));
    }

    #[test]
    fn contents_are_written() {
        let scatter = ScatterElements { axis: 0, reduction: ScatterReduction::None };
        let inputs = [contents("a, b, 3"), vector(&[1]), contents("n")].map(Some);
        assert_eq!(infer(&scatter, &inputs).unwrap().0[0].elements_as_dims().unwrap(), dims("a, n, 3"));
        let tuples = Fact::constant(Tensor::from_elements(&[1, 1], &[2i64]).unwrap());
        let inputs = [contents("a, b, 3"), tuples, contents("n")].map(Some);
        let facts = infer(&ScatterNd { reduction: ScatterReduction::None }, &inputs).unwrap().0;
        assert_eq!(facts[0].elements_as_dims().unwrap(), dims("a, b, n"));
    }
}
