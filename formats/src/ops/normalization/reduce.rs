//! Reductions over axes: ONNX `ReduceSum`, `ReduceMean`, `ReduceMax`, .. (opsets 1 to 28).
//!
//! Axes are an operand (opset 18; attributes before become constants). The reduction of an empty set is the
//! neutral element of the function, as the operator pages say.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::element::Number;
use crate::fact::{Fact, Shape};
use crate::ops::broadcast::strided_indices;
use crate::ops::{
    AxisKind, Computes, Cost, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError,
    VectorClass, each, integers, loops, normalize_axis, optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::{Tensor, TensorError, element_count, strides};
use crate::value::Value;
use crate::with_number;

attributes! {
    /// Combines the elements along some axes: `data: [..]`, optional `axes: [n]` (integers) to `[..]`.
    ///
    /// Without axes, or with none in them, all axes are reduced, or none where `keep_without_axes` is set.
    pub struct Reduce revision 1 {
        /// How elements are combined.
        1 since 1 => function: ReduceFunction,
        /// Reduced axes stay, with extent 1.
        2 since 1 => keep_axes: bool,
        /// No axes means that nothing is reduced (each element is a set of its own).
        3 since 1 => keep_without_axes: bool,
    }
}

/// Functions of [`Reduce`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ReduceFunction {
    /// Sum of absolute values.
    L1,
    /// Square root of the sum of squares.
    L2,
    /// Logarithm of the sum.
    LogSum,
    /// Logarithm of the sum of exponentials.
    LogSumExp,
    /// Largest; NaN wins; true wins over false.
    Max,
    /// Arithmetic mean; for integers truncated towards zero.
    Mean,
    /// Smallest; NaN wins; false wins over true.
    Min,
    /// Product.
    Product,
    /// Sum.
    Sum,
    /// Sum of squares.
    SumSquare,
}
impl Keyword for ReduceFunction {}

impl ReduceFunction {
    fn takes(self, dtype: DType) -> bool {
        let number = dtype.bits() >= 8 && (dtype.is_integer() || dtype.is_float() && !dtype.is_narrow_float());
        let ordered = matches!(self, ReduceFunction::Max | ReduceFunction::Min);
        number || (ordered && dtype == DType::Bool)
    }

    /// The function over f64; `values` may be empty.
    fn of_floats(self, values: &[f64]) -> f64 {
        let sum = |each: fn(f64) -> f64| values.iter().map(|&value| each(value)).sum::<f64>();
        match self {
            ReduceFunction::L1 => sum(f64::abs),
            ReduceFunction::L2 => sum(|value| value * value).sqrt(),
            // The sum of no f64 is -0.0.
            ReduceFunction::LogSum => (sum(|value| value) + 0.0).ln(),
            ReduceFunction::LogSumExp => log_sum_exp(values),
            ReduceFunction::Max => extreme(values, f64::NEG_INFINITY, |value, best| value > best),
            ReduceFunction::Min => extreme(values, f64::INFINITY, |value, best| value < best),
            ReduceFunction::Mean => sum(|value| value) / values.len() as f64,
            ReduceFunction::Product => values.iter().product(),
            ReduceFunction::Sum => sum(|value| value) + 0.0,
            ReduceFunction::SumSquare => sum(|value| value * value),
        }
    }

    /// The function over integers, exact or modulo 2^128; `None` is "no element" of a maximum, minimum or logarithm.
    fn of_integers(self, values: &[i128]) -> Option<i128> {
        let sum = |each: fn(i128) -> i128| values.iter().fold(0i128, |sum, &value| sum.wrapping_add(each(value)));
        let floats = || values.iter().map(|&value| value as f64).collect::<Vec<f64>>();
        Some(match self {
            ReduceFunction::L1 => sum(i128::abs),
            ReduceFunction::L2 => {
                let squares = values.iter().map(|value| value.unsigned_abs().saturating_pow(2));
                squares.fold(0u128, u128::saturating_add).isqrt() as i128
            }
            ReduceFunction::LogSum if values.is_empty() => return None,
            ReduceFunction::LogSum => (sum(|value| value) as f64).ln() as i128,
            ReduceFunction::LogSumExp if values.is_empty() => return None,
            ReduceFunction::LogSumExp => log_sum_exp(&floats()) as i128,
            ReduceFunction::Max => return values.iter().copied().max(),
            ReduceFunction::Min => return values.iter().copied().min(),
            ReduceFunction::Mean => sum(|value| value).checked_div(values.len() as i128).unwrap_or(0),
            ReduceFunction::Product => values.iter().fold(1i128, |product, &value| product.wrapping_mul(value)),
            ReduceFunction::Sum => sum(|value| value),
            ReduceFunction::SumSquare => sum(|value| value.wrapping_mul(value)),
        })
    }

    /// The function over dimensions, where expressions can say it.
    fn of_dims(self, values: &[Dim]) -> Option<Dim> {
        match self {
            ReduceFunction::Sum => Some(Dim::sum(values)),
            ReduceFunction::Product => Some(Dim::product(values)),
            ReduceFunction::Max => values.iter().cloned().reduce(|left, right| Dim::max(&left, &right)),
            ReduceFunction::Min => values.iter().cloned().reduce(|left, right| Dim::min(&left, &right)),
            ReduceFunction::SumSquare => Some(values.iter().fold(Dim::ZERO, |sum, value| sum + value * value)),
            ReduceFunction::L1
            | ReduceFunction::L2
            | ReduceFunction::LogSum
            | ReduceFunction::LogSumExp
            | ReduceFunction::Mean => None,
        }
    }
}

fn extreme(values: &[f64], none: f64, better: fn(f64, f64) -> bool) -> f64 {
    values.iter().fold(none, |best, &value| if value.is_nan() || better(value, best) { value } else { best })
}

fn log_sum_exp(values: &[f64]) -> f64 {
    let largest = extreme(values, f64::NEG_INFINITY, |value, best| value > best);
    if !largest.is_finite() {
        return largest;
    }
    values.iter().map(|value| (value - largest).exp()).sum::<f64>().ln() + largest
}

/// The axes that are reduced: sorted, each once.
pub(crate) fn reduced_axes(axes: Option<&[i64]>, keep_without: bool, rank: usize) -> Result<Vec<usize>, TypeError> {
    let axes = axes.unwrap_or(&[]);
    if axes.is_empty() {
        return Ok(if keep_without { Vec::new() } else { (0..rank).collect() });
    }
    let mut normalized = axes.iter().map(|&axis| normalize_axis(axis, rank)).collect::<Result<Vec<usize>, _>>()?;
    normalized.sort_unstable();
    if let Some(pair) = normalized.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(TypeError::Value {
            subject: "list of axes".to_string(),
            found: format!("one that names axis {} twice", pair[0]),
            expected: "each axis once".to_string(),
        });
    }
    Ok(normalized)
}

/// Positions of the elements of each set, sets in row-major order of the axes that stay.
pub(crate) struct Sets {
    /// Flat index of the first element of each set.
    pub(crate) starts: Vec<usize>,
    /// Distance of each element of a set from its first.
    pub(crate) offsets: Vec<usize>,
}

/// Most sets of a tensor without elements (its other extents may be anything).
const MAXIMUM_EMPTY_SETS: usize = 1 << 28;

/// The sets that a reduction over `axes` combines, of a tensor of this shape.
///
/// # Errors
/// [`TensorError::TooLarge`] where a tensor without elements has more sets than can be listed.
pub(crate) fn sets(shape: &[usize], axes: &[usize]) -> Result<Sets, TensorError> {
    let own = strides(shape);
    let pick = |reduced: bool| {
        let chosen = (0..shape.len()).filter(move |axis| axes.contains(axis) == reduced);
        let (extents, steps): (Vec<usize>, Vec<usize>) = chosen.map(|axis| (shape[axis], own[axis])).unzip();
        if element_count(shape) == Some(0) && volume(&extents) > MAXIMUM_EMPTY_SETS {
            return Err(TensorError::TooLarge { dtype: DType::I64, shape: extents });
        }
        Ok(strided_indices(&extents, &steps).collect::<Vec<usize>>())
    };
    Ok(Sets { starts: pick(false)?, offsets: pick(true)? })
}

/// The number of elements of these extents; saturates, as the extents of an empty tensor may be anything.
pub(crate) fn volume(extents: &[usize]) -> usize {
    element_count(extents).unwrap_or(usize::MAX)
}

/// The known extents that remain.
pub(crate) fn reduced_extents(shape: &[usize], axes: &[usize], keep_axes: bool) -> Vec<usize> {
    (0..shape.len())
        .filter(|axis| keep_axes || !axes.contains(axis))
        .map(|axis| if axes.contains(&axis) { 1 } else { shape[axis] })
        .collect()
}

impl Reduce {
    /// The axes that are reduced of a tensor of this rank: sorted, each once.
    ///
    /// # Errors
    /// [`TypeError`] where an axis is outside the rank or given twice.
    pub fn axes(&self, given: Option<&[i64]>, rank: usize) -> Result<Vec<usize>, TypeError> {
        reduced_axes(given, self.keep_without_axes, rank)
    }

    /// The extents of the result.
    pub fn extents(&self, shape: &[usize], axes: &[usize]) -> Vec<usize> {
        reduced_extents(shape, axes, self.keep_axes)
    }

    /// The dimensions that remain; `None` where even their number is unknown.
    fn shape(&self, dims: &[Dim], axes: Option<&Fact>, context: &InferContext<'_>) -> Result<Shape, TypeError> {
        let rank = dims.len();
        let length = match axes {
            None => Some(0),
            Some(fact) => fact.dims().and_then(|dims| Dim::product(dims).as_known()),
        };
        let known = match (axes, length) {
            (_, Some(0)) => Some(Vec::new()),
            (Some(fact), _) => fact.elements_as_integers(),
            (None, _) => None,
        };
        if let Some(known) = known {
            let axes = reduced_axes(Some(&known), self.keep_without_axes, rank)?;
            let remaining = (0..rank).filter(|axis| self.keep_axes || !axes.contains(axis));
            let dim_of = |axis: usize| if axes.contains(&axis) { Dim::ONE } else { dims[axis].clone() };
            return Ok(Shape::Ranked(remaining.map(dim_of).collect()));
        }
        let fresh = |count: usize| (0..count).map(|axis| context.fresh(&format!("axis{axis}"))).collect::<Vec<Dim>>();
        match length.and_then(|length| usize::try_from(length).ok()) {
            _ if self.keep_axes => Ok(Shape::Ranked(fresh(rank))),
            Some(length) if length <= rank => Ok(Shape::Ranked(fresh(rank - length))),
            _ => Ok(Shape::Unranked),
        }
    }

    /// The contents of the result, where those of the data are followed and the axes are known.
    fn contents(&self, data: &Fact, axes: Option<&Fact>) -> Option<Vec<Dim>> {
        let shape = data.kind.as_tensor()?.1.as_known()?;
        let elements = data.elements_as_dims()?;
        if element_count(&shape) != Some(elements.len()) {
            return None;
        }
        let axes = match axes {
            None => Vec::new(),
            Some(fact) => fact.elements_as_integers()?,
        };
        let axes = reduced_axes(Some(&axes), self.keep_without_axes, shape.len()).ok()?;
        let sets = sets(&shape, &axes).ok()?;
        let set =
            |start: &usize| sets.offsets.iter().map(|offset| elements[start + offset].clone()).collect::<Vec<_>>();
        sets.starts.iter().map(|start| self.function.of_dims(&set(start))).collect()
    }
}

/// An i32 result that leaves its range wraps at run time, which dimensions do not.
fn may_follow(dtype: DType, contents: &[Dim]) -> bool {
    match dtype {
        DType::I64 => true,
        DType::I32 => contents.iter().all(|dim| dim.as_known().is_none_or(|known| i32::try_from(known).is_ok())),
        _ => false,
    }
}

impl Operator for Reduce {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        if !self.function.takes(dtype) {
            let expected = "a number type of this reduction".to_string();
            return Err(TypeError::ElementType { operand: 0, expected, found: dtype });
        }
        let axes = optional(inputs, 1);
        if let Some((axes_type, _)) = axes.map(|_| tensor_operand(inputs, 1)).transpose()?
            && !axes_type.is_integer()
        {
            return Err(TypeError::ElementType { operand: 1, expected: "integers".to_string(), found: axes_type });
        }
        let Shape::Ranked(dims) = shape else {
            let scalar = axes.is_none() && !self.keep_axes && !self.keep_without_axes;
            let shape = if scalar { Shape::Ranked(Vec::new()) } else { Shape::Unranked };
            return Ok(vec![Fact::tensor(dtype, shape)]);
        };
        let shape = self.shape(dims, axes, context)?;
        let data = inputs.first().and_then(Option::as_ref);
        match data.and_then(|data| self.contents(data, axes)).filter(|contents| may_follow(dtype, contents)) {
            Some(contents) => Ok(vec![Fact::of_dims(dtype, shape, contents)]),
            None => Ok(vec![Fact::tensor(dtype, shape)]),
        }
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let axes = optional_tensor(inputs, 1)?.map(|_| integers(inputs, 1)).transpose()?;
        let axes = reduced_axes(axes.as_deref(), self.keep_without_axes, data.rank())?;
        let extents = reduced_extents(data.shape(), &axes, self.keep_axes);
        if !self.function.takes(data.dtype()) {
            return Err(TypeError::Unsupported(format!("{:?} of {}", self.function, data.dtype())).into());
        }
        if data.dtype() == DType::Bool {
            return Ok(vec![reduce_bools(data, &axes, &extents, self.function)?.into()]);
        }
        let result = with_number!(
            data.dtype(),
            T => reduce_numbers::<T>(data, &axes, &extents, self.function)?,
            otherwise return Err(TypeError::Unsupported(format!("{:?} of {}", self.function, data.dtype())).into())
        );
        Ok(vec![result.into()])
    }
}

impl Reduce {
    /// The axes that the shapes of operand and result tell; `None` where they leave a choice.
    fn gone(&self, dims: &[Dim], result: &[Dim]) -> Option<Vec<usize>> {
        /// All choices of axes are tried.
        const MOST_AXES: usize = 10;
        if self.keep_axes {
            let same = dims.len() == result.len();
            return same.then(|| (0..dims.len()).filter(|&axis| dims[axis] != result[axis]).collect());
        }
        if dims.len() > MOST_AXES {
            return None;
        }
        let fits = |gone: &u32| {
            let left = (0..dims.len()).filter(|axis| (gone >> axis) & 1 == 0).map(|axis| &dims[axis]);
            left.eq(result.iter())
        };
        let mut choices = (0..1u32 << dims.len()).filter(fits);
        match (choices.next(), choices.next()) {
            (Some(only), None) => Some((0..dims.len()).filter(|axis| (only >> axis) & 1 == 1).collect()),
            (_, _) => None,
        }
    }
}

impl Computes for Reduce {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let Some(dims) = facts.dims(0) else { return loops::serial(facts) };
        let given = facts.operand(1).map(|_| facts.integers(1));
        let axes = match given {
            // Axes of a weight are not in the records of a file: the shapes say which have gone.
            Some(None) => match facts.result(0).and_then(|result| self.gone(dims, result)) {
                Some(axes) => Ok(axes),
                None => return loops::serial(facts),
            },
            None => self.axes(None, dims.len()),
            Some(Some(axes)) => self.axes(Some(&axes), dims.len()),
        };
        axes.map_or_else(|_| loops::serial(facts), |axes| loops::along(facts, &axes, AxisKind::Reduced, self.keep_axes))
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        let (term, finish): (&[Cost], &[Cost]) = match self.function {
            ReduceFunction::Max | ReduceFunction::Min | ReduceFunction::Sum | ReduceFunction::Product => {
                (&[(VectorClass::Arithmetic, 1)], &[])
            }
            ReduceFunction::L1 | ReduceFunction::SumSquare => (&[(VectorClass::Arithmetic, 2)], &[]),
            ReduceFunction::L2 => (&[(VectorClass::Arithmetic, 2)], &[(VectorClass::Divide, 1)]),
            ReduceFunction::Mean => (&[(VectorClass::Arithmetic, 1)], &[(VectorClass::Divide, 1)]),
            ReduceFunction::LogSum => (&[(VectorClass::Arithmetic, 1)], &[(VectorClass::Transcendental, 1)]),
            ReduceFunction::LogSumExp => {
                (&[(VectorClass::Arithmetic, 3), (VectorClass::Transcendental, 1)], &[(VectorClass::Transcendental, 1)])
            }
        };
        [each(&facts.elements(0), term), each(&facts.result_elements(0), finish)].concat()
    }
}

fn reduce_bools(
    data: &Tensor,
    axes: &[usize],
    extents: &[usize],
    function: ReduceFunction,
) -> Result<Tensor, ReferenceError> {
    let elements = data.bools()?;
    let sets = sets(data.shape(), axes)?;
    let any = function == ReduceFunction::Max;
    let combine = |start: &usize| {
        let mut set = sets.offsets.iter().map(|offset| elements[start + offset]);
        if any { set.any(|element| element) } else { set.all(|element| element) }
    };
    let reduced: Vec<bool> = sets.starts.iter().map(combine).collect();
    Ok(Tensor::from_bools(extents, &reduced)?)
}

fn reduce_numbers<T: Number + Wrapping>(
    data: &Tensor,
    axes: &[usize],
    extents: &[usize],
    function: ReduceFunction,
) -> Result<Tensor, ReferenceError> {
    let elements = data.elements::<T>()?;
    let sets = sets(data.shape(), axes)?;
    let combine = |start: &usize| {
        let set = sets.offsets.iter().map(|offset| elements[start + offset]);
        if T::INTEGER {
            let none = || if function == ReduceFunction::Min { T::LARGEST } else { T::SMALLEST };
            let exact: Vec<i128> = set.map(Wrapping::widen).collect();
            function.of_integers(&exact).map_or_else(none, T::wrap)
        } else {
            let values: Vec<f64> = set.map(Number::to_f64_lossy).collect();
            T::from_f64_lossy(function.of_floats(&values))
        }
    };
    let reduced: Vec<T> = sets.starts.iter().map(combine).collect();
    Ok(Tensor::from_elements(extents, &reduced)?)
}

/// Integers to and from i128, modulo their width; floats are never asked.
pub(crate) trait Wrapping: Copy {
    /// The least value.
    const SMALLEST: Self;
    /// The greatest value.
    const LARGEST: Self;
    /// The value.
    fn widen(self) -> i128;
    /// The value modulo 2^width.
    fn wrap(value: i128) -> Self;
}

macro_rules! wrapping {
    ($($integer:ty,)*; $($float:ty,)*) => {
        $(impl Wrapping for $integer {
            const SMALLEST: Self = <$integer>::MIN;
            const LARGEST: Self = <$integer>::MAX;
            fn widen(self) -> i128 { i128::from(self) }
            fn wrap(value: i128) -> Self { value as $integer }
        })*
        $(impl Wrapping for $float {
            const SMALLEST: Self = <$float>::NEG_INFINITY;
            const LARGEST: Self = <$float>::INFINITY;
            fn widen(self) -> i128 { self.to_f64_lossy() as i128 }
            fn wrap(value: i128) -> Self { Number::from_f64_lossy(value as f64) }
        })*
    };
}
wrapping!(u8, i8, u16, i16, u32, i32, u64, i64,; half::f16, half::bf16, f32, f64,);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;

    fn reduce(function: ReduceFunction, data: Tensor, axes: Option<&[i64]>) -> Tensor {
        let operator = Reduce { function, keep_axes: false, keep_without_axes: false };
        let axes = axes.map(|axes| Tensor::vector_i64(axes).into());
        let mut blocks = NoBlocks;
        let results = operator.reference(&[Some(data.into()), axes], &mut ReferenceContext::new(&mut blocks)).unwrap();
        results[0].as_tensor().unwrap().clone()
    }

    #[test]
    fn shapes_tell_which_axes_have_gone_where_they_leave_no_choice() {
        let gone = |keep_axes: bool, dims: &[i64], result: &[i64]| {
            let operator = Reduce { function: ReduceFunction::Mean, keep_axes, keep_without_axes: false };
            let [dims, result] =
                [dims, result].map(|dims| dims.iter().map(|&dim| Dim::known(dim)).collect::<Vec<Dim>>());
            operator.gone(&dims, &result)
        };
        assert_eq!(gone(true, &[1, 512, 7, 7], &[1, 512, 1, 1]), Some(vec![2, 3]));
        assert_eq!(gone(false, &[2, 512, 7, 7], &[2, 512]), Some(vec![2, 3]));
        assert_eq!(gone(false, &[2, 7, 7], &[2, 7]), None);
        assert_eq!(gone(false, &[2, 7], &[3]), None);
        assert_eq!(gone(true, &[2, 7], &[2]), None);
    }

    #[test]
    fn functions_of_floats() {
        let data = || Tensor::from_elements(&[2, 2], &[3.0f32, -4.0, 1.0, 2.0]).unwrap();
        let over_last = |function| reduce(function, data(), Some(&[-1])).elements::<f32>().unwrap().to_vec();
        assert_eq!(over_last(ReduceFunction::L1), [7.0, 3.0]);
        assert_eq!(over_last(ReduceFunction::L2), [5.0, 5.0f32.sqrt()]);
        assert_eq!(over_last(ReduceFunction::Mean), [-0.5, 1.5]);
        assert_eq!(over_last(ReduceFunction::Product), [-12.0, 2.0]);
        assert_eq!(over_last(ReduceFunction::SumSquare), [25.0, 5.0]);
        assert_eq!(over_last(ReduceFunction::LogSum)[1], 3.0f32.ln());
        assert!((over_last(ReduceFunction::LogSumExp)[1] - 2.313_261_7).abs() < 1e-6);
        assert_eq!(reduce(ReduceFunction::Max, data(), Some(&[0])).elements::<f32>().unwrap(), [3.0, 2.0]);
        assert_eq!(reduce(ReduceFunction::Min, data(), None).elements::<f32>().unwrap(), [-4.0]);
    }

    #[test]
    fn nan_is_the_extreme() {
        let data = Tensor::from_elements(&[3], &[1.0f32, f32::NAN, 2.0]).unwrap();
        assert!(reduce(ReduceFunction::Max, data.clone(), None).elements::<f32>().unwrap()[0].is_nan());
        assert!(reduce(ReduceFunction::Min, data, None).elements::<f32>().unwrap()[0].is_nan());
    }

    #[test]
    fn integers_are_exact_and_wrap() {
        let large = (1i64 << 60) + 1;
        let sum = reduce(ReduceFunction::Sum, Tensor::vector_i64(&[large, 2]), None);
        assert_eq!(sum.elements::<i64>().unwrap(), [large + 2]);
        let mean = reduce(ReduceFunction::Mean, Tensor::vector_i64(&[i64::MAX, i64::MAX]), None);
        assert_eq!(mean.elements::<i64>().unwrap(), [i64::MAX]);
        let truncated = reduce(ReduceFunction::Mean, Tensor::vector_i64(&[-1, -2]), None);
        assert_eq!(truncated.elements::<i64>().unwrap(), [-1]);
        let wrapped = reduce(ReduceFunction::Sum, Tensor::from_elements(&[2], &[200u8, 100]).unwrap(), None);
        assert_eq!(wrapped.elements::<u8>().unwrap(), [44]);
    }

    #[test]
    fn empty_sets_give_neutral_elements() {
        let empty = |dtype| Tensor::zeros(dtype, &[2, 0]).unwrap();
        let over_last = |function, dtype| reduce(function, empty(dtype), Some(&[1]));
        assert_eq!(over_last(ReduceFunction::Sum, DType::F32).elements::<f32>().unwrap(), [0.0, 0.0]);
        assert_eq!(over_last(ReduceFunction::Product, DType::I64).elements::<i64>().unwrap(), [1, 1]);
        assert_eq!(over_last(ReduceFunction::Max, DType::I32).elements::<i32>().unwrap(), [i32::MIN; 2]);
        assert_eq!(over_last(ReduceFunction::Min, DType::U8).elements::<u8>().unwrap(), [255, 255]);
        assert_eq!(over_last(ReduceFunction::LogSum, DType::F32).elements::<f32>().unwrap(), [f32::NEG_INFINITY; 2]);
        assert_eq!(over_last(ReduceFunction::LogSumExp, DType::F64).elements::<f64>().unwrap(), [f64::NEG_INFINITY; 2]);
        assert_eq!(over_last(ReduceFunction::Min, DType::Bool).bools().unwrap(), [true, true]);
        assert_eq!(over_last(ReduceFunction::Max, DType::Bool).bools().unwrap(), [false, false]);
    }

    #[test]
    fn no_axes_may_mean_nothing() {
        let operator = Reduce { function: ReduceFunction::SumSquare, keep_axes: true, keep_without_axes: true };
        let data = Tensor::from_elements(&[2], &[3i32, -4]).unwrap();
        let mut blocks = NoBlocks;
        let results = operator.reference(&[Some(data.into())], &mut ReferenceContext::new(&mut blocks)).unwrap();
        assert_eq!(results[0].as_tensor().unwrap().elements::<i32>().unwrap(), [9, 16]);
    }

    fn infer(operator: &Reduce, inputs: &[Option<Fact>]) -> Result<Fact, TypeError> {
        let ranges = Ranges::default();
        let mut blocks = NoBlocks;
        operator.infer(inputs, &mut InferContext::new("r", &ranges, &mut blocks)).map(|mut facts| facts.remove(0))
    }

    #[test]
    fn shapes_follow_axes() {
        let operator = |keep_axes| Reduce { function: ReduceFunction::Sum, keep_axes, keep_without_axes: false };
        let data = || Some(Fact::tensor(DType::F32, vec![Dim::symbol("n"), Dim::known(3)]));
        let axes = || Some(Fact::constant(Tensor::vector_i64(&[-1])));
        assert_eq!(infer(&operator(true), &[data(), axes()]).unwrap().kind.to_string(), "f32[n, 1]");
        assert_eq!(infer(&operator(false), &[data(), axes()]).unwrap().kind.to_string(), "f32[n]");
        assert_eq!(infer(&operator(false), &[data()]).unwrap().kind.to_string(), "f32[]");
        let computed = || Some(Fact::tensor(DType::I64, vec![Dim::known(1)]));
        assert_eq!(infer(&operator(false), &[data(), computed()]).unwrap().rank(), Some(1));
        assert_eq!(infer(&operator(true), &[data(), computed()]).unwrap().rank(), Some(2));
        let outside = Some(Fact::constant(Tensor::vector_i64(&[2])));
        assert!(matches!(infer(&operator(true), &[data(), outside]), Err(TypeError::Axis { axis: 2, rank: 2 })));
        let twice = Some(Fact::constant(Tensor::vector_i64(&[1, -1])));
        assert_eq!(
            infer(&operator(true), &[data(), twice]).unwrap_err().to_string(),
            "list of axes is one that names axis 1 twice, expected each axis once"
        );
    }

    #[test]
    fn contents_of_shapes_are_followed() {
        let operator = Reduce { function: ReduceFunction::Product, keep_axes: false, keep_without_axes: false };
        let shape = Fact::of_dims(DType::I64, vec![Dim::known(2)], vec![Dim::symbol("n"), Dim::known(4)]);
        let fact = infer(&operator, &[Some(shape)]).unwrap();
        assert_eq!(fact.elements_as_dims().unwrap(), [Dim::symbol("n") * 4]);
    }
}
