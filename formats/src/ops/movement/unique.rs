//! What occurs in a tensor, each once: ONNX `Unique` (opsets 11, 28).
//!
//! NaN equals NaN and sorts last, as in NumPy; complex numbers sort by their real, then their imaginary part.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{flat, moved};
use crate::ops::scalar::{Scalar, scalars};
use crate::ops::{
    Effect, InferContext, Operator, ReferenceContext, ReferenceError, Serial, StepFacts, TypeError, VectorClass, each,
    normalize_axis, tensor, tensor_operand,
};
use crate::tensor::{Tensor, element_count, strides};
use crate::value::Value;
use num_complex::Complex;
use std::cmp::Ordering;

attributes! {
    /// The different slices of `x: [..]` along an axis, and as i64 for each of them where it is first `[count]`, for each
    /// slice of x its place among them `[extent]`, and for each of them how often it occurs `[count]`.
    pub struct Unique revision 1 {
        /// Counted from the back where negative; absent for the elements of all axes as a vector.
        1 since 1 => axis: Option<i64>,
        /// In ascending order, else in the order of first occurrence.
        2 since 1 => sorted: bool,
    }
}

/// The order of two elements: NaN equals NaN and is after every other number.
pub(crate) fn order(left: Scalar, right: Scalar) -> Ordering {
    match (left, right) {
        (Scalar::Integer(left), Scalar::Integer(right)) => left.cmp(&right),
        (left, right) => order_floats(left.to_f64(), right.to_f64()),
    }
}

fn order_floats(left: f64, right: f64) -> Ordering {
    left.partial_cmp(&right).unwrap_or_else(|| left.is_nan().cmp(&right.is_nan()))
}

/// A number for each element: equal for equal elements, in the order of elements.
fn ranks(tensor: &Tensor) -> Result<Vec<usize>, ReferenceError> {
    fn of<T>(elements: &[T], order: impl Fn(&T, &T) -> Ordering) -> Vec<usize> {
        let mut sorted: Vec<usize> = (0..elements.len()).collect();
        sorted.sort_by(|&left, &right| order(&elements[left], &elements[right]));
        let mut ranks = vec![0usize; elements.len()];
        for pair in sorted.windows(2) {
            let differs = order(&elements[pair[0]], &elements[pair[1]]) != Ordering::Equal;
            ranks[pair[1]] = ranks[pair[0]] + usize::from(differs);
        }
        ranks
    }
    fn complex<T: Into<f64> + Copy>(left: &Complex<T>, right: &Complex<T>) -> Ordering {
        let part = |left: T, right: T| order_floats(left.into(), right.into());
        part(left.re, right.re).then(part(left.im, right.im))
    }
    Ok(match tensor.dtype() {
        DType::String => of(tensor.strings()?, Ord::cmp),
        DType::C64 => of(tensor.elements::<Complex<f32>>()?, complex),
        DType::C128 => of(tensor.elements::<Complex<f64>>()?, complex),
        _ => of(&scalars(tensor)?, |&left, &right| order(left, right)),
    })
}

impl Operator for Unique {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let count = context.fresh("count");
        let (result, total) = match (shape.dims(), self.axis) {
            (Some(dims), Some(axis)) => {
                let axis = normalize_axis(axis, dims.len())?;
                let mut result = dims.to_vec();
                result[axis] = count.clone();
                (Shape::Ranked(result), dims[axis].clone())
            }
            (Some(dims), None) => (Shape::Ranked(vec![count.clone()]), Dim::product(dims)),
            (None, Some(_)) => (Shape::Unranked, context.fresh("total")),
            (None, None) => (Shape::Ranked(vec![count.clone()]), context.fresh("total")),
        };
        let places = |extent: &Dim| Fact::tensor(DType::I64, vec![extent.clone()]);
        Ok(vec![Fact::tensor(dtype, result), places(&count), places(&total), places(&count)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let (data, axis) = match self.axis {
            Some(axis) => (data.clone(), normalize_axis(axis, data.rank())?),
            None => (data.reshaped(&[data.count()])?, 0),
        };
        let total = data.shape()[axis];
        let slices = slices(&data, axis)?;
        // A stable sort keeps the first of equal slices in front.
        let mut sorted: Vec<usize> = (0..total).collect();
        sorted.sort_by(|&left, &right| slices[left].cmp(&slices[right]));
        let mut first_of = vec![0usize; total];
        for (at, &slice) in sorted.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| sorted[before]);
            first_of[slice] = match before {
                Some(before) if slices[before] == slices[slice] => first_of[before],
                Some(_) | None => slice,
            };
        }
        let firsts: Vec<usize> = if self.sorted { sorted } else { (0..total).collect() };
        let firsts: Vec<usize> = firsts.into_iter().filter(|&slice| first_of[slice] == slice).collect();
        let mut place = vec![0usize; total];
        firsts.iter().enumerate().for_each(|(at, &first)| place[first] = at);
        let inverse: Vec<i64> = first_of.iter().map(|&first| place[first] as i64).collect();
        let mut counts = vec![0i64; firsts.len()];
        first_of.iter().for_each(|&first| counts[place[first]] += 1);
        let mut extents = data.shape().to_vec();
        extents[axis] = firsts.len();
        let strides = strides(data.shape());
        let mut from = vec![0usize; data.rank()];
        let source = |at: &[usize]| {
            from.copy_from_slice(at);
            from[axis] = firsts[at[axis]];
            Some(flat(&from, &strides))
        };
        let result = moved(&data, &extents, source)?;
        let firsts: Vec<i64> = firsts.iter().map(|&first| first as i64).collect();
        let vectors = [firsts, inverse, counts].map(|elements| Tensor::vector_i64(&elements).into());
        Ok([vec![result.into()], vectors.to_vec()].concat())
    }
}

impl Serial for Unique {
    fn effect(&self) -> Effect {
        Effect::Pure
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 2)])
    }
}

/// The ranks of the elements of each slice along an axis.
fn slices(data: &Tensor, axis: usize) -> Result<Vec<Vec<usize>>, ReferenceError> {
    let ranks = ranks(data)?;
    let inner = element_count(&data.shape()[axis + 1..]).unwrap_or(0);
    let total = data.shape()[axis];
    let too_large = || crate::tensor::TensorError::TooLarge { dtype: data.dtype(), shape: data.shape().to_vec() };
    let mut slices: Vec<Vec<usize>> = Vec::new();
    slices.try_reserve_exact(total).map_err(|_| too_large())?;
    slices.resize(total, Vec::new());
    for (at, rank) in ranks.into_iter().enumerate() {
        slices[at / inner % total].push(rank);
    }
    Ok(slices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{floats, infer, run};

    fn vectors(unique: &Unique, data: Tensor) -> (Tensor, [Vec<i64>; 3]) {
        let results = run(unique, &[Some(data)]).unwrap();
        let vector = |at: usize| results[at].elements::<i64>().unwrap().to_vec();
        (results[0].clone(), [vector(1), vector(2), vector(3)])
    }

    #[test]
    fn examples_of_the_operator_page() {
        let data = Tensor::from_elements(&[6], &[2f32, 1.0, 1.0, 3.0, 4.0, 3.0]).unwrap();
        let (unique, places) = vectors(&Unique { axis: None, sorted: false }, data.clone());
        assert_eq!(unique.elements::<f32>().unwrap(), [2.0, 1.0, 3.0, 4.0]);
        assert_eq!(places, [vec![0, 1, 3, 4], vec![0, 1, 1, 2, 3, 2], vec![1, 2, 2, 1]]);
        let (unique, places) = vectors(&Unique { axis: None, sorted: true }, data);
        assert_eq!(unique.elements::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(places, [vec![1, 0, 3, 4], vec![1, 0, 0, 2, 3, 2], vec![2, 1, 2, 1]]);
        let rows = Tensor::from_elements(&[3, 3], &[1f32, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0, 3.0, 4.0]).unwrap();
        let (unique, places) = vectors(&Unique { axis: Some(0), sorted: true }, rows);
        assert_eq!(unique.elements::<f32>().unwrap(), [1.0, 0.0, 0.0, 2.0, 3.0, 4.0]);
        assert_eq!(places, [vec![0, 2], vec![0, 0, 1], vec![2, 1]]);
    }

    #[test]
    fn equal_is_what_numpy_says() {
        let data = Tensor::from_elements(&[5], &[f32::NAN, 0.0, -0.0, 1.0, f32::NAN]).unwrap();
        let (unique, places) = vectors(&Unique { axis: None, sorted: true }, data);
        assert_eq!(unique.elements::<f32>().unwrap()[..2], [0.0, 1.0]);
        assert_eq!(places, [vec![1, 3, 0], vec![2, 0, 0, 1, 2], vec![2, 1, 2]]);
        let words = Tensor::from_strings(&[3], ["b", "a", "b"].map(String::from).to_vec()).unwrap();
        let (unique, places) = vectors(&Unique { axis: None, sorted: true }, words);
        assert_eq!(unique.strings().unwrap(), ["a", "b"]);
        assert_eq!(places[1], [1, 0, 1]);
    }

    #[test]
    fn slices_without_elements_are_equal() {
        let hollow = Tensor::from_elements::<f32>(&[3, 0], &[]).unwrap();
        let (unique, places) = vectors(&Unique { axis: Some(0), sorted: true }, hollow);
        assert_eq!((unique.shape(), places), (&[1, 0][..], [vec![0], vec![0; 3], vec![3]]));
        let none = Tensor::from_elements::<f32>(&[0], &[]).unwrap();
        assert_eq!(vectors(&Unique { axis: None, sorted: true }, none).0.shape(), [0]);
    }

    #[test]
    fn counts_are_unknown() {
        let (facts, _) = infer(&Unique { axis: Some(1), sorted: true }, &[Some(floats("a, b"))]).unwrap();
        let kinds: Vec<String> = facts.iter().map(|fact| fact.kind.to_string()).collect();
        assert_eq!(kinds, ["f32[a, step.count]", "i64[step.count]", "i64[b]", "i64[step.count]"]);
    }
}
