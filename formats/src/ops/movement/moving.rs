//! What operators that move elements without computing share: checks of operands, indices, and contents that follow
//! elements wherever they go.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Contents, Fact, MAXIMUM_FOLLOWED_ELEMENTS, Shape, tensor_of_integers};
use crate::limits::IPU_RANK;
use crate::ops::{
    InferContext, NoBlocks, Operator, ReferenceContext, ReferenceError, TypeError, normalize_axis, optional,
    tensor_operand,
};
use crate::tensor::{Tensor, TensorError, element_count};
use crate::value::Value;

/// Shape of an operand of indices, extents or axes: i32 or i64.
pub(crate) fn index_operand(inputs: &[Option<Fact>], operand: usize) -> Result<&Shape, TypeError> {
    let (dtype, shape) = tensor_operand(inputs, operand)?;
    if matches!(dtype, DType::I64 | DType::I32) {
        return Ok(shape);
    }
    Err(TypeError::ElementType { operand, expected: "i64 or i32".to_string(), found: dtype })
}

/// What is known of an operand that is a vector of integers.
#[derive(Debug, Clone)]
pub(crate) struct Integers {
    /// How many there are, where known.
    pub length: Option<usize>,
    /// They themselves, where known.
    pub elements: Option<Vec<Dim>>,
}

impl Integers {
    /// The elements as numbers.
    pub(crate) fn known(&self) -> Option<Vec<i64>> {
        self.elements.as_ref()?.iter().map(Dim::as_known).collect()
    }
}

/// The vector of integers behind a required operand. A scalar counts as a vector of one, as exporters write axes.
pub(crate) fn integer_vector(inputs: &[Option<Fact>], operand: usize) -> Result<Integers, TypeError> {
    let shape = index_operand(inputs, operand)?;
    if let Some(found) = shape.rank()
        && found > 1
    {
        return Err(TypeError::Rank { operand, expected: "0 or 1".to_string(), found });
    }
    let elements = optional(inputs, operand).and_then(Fact::elements_as_dims);
    let length = match (&elements, shape.dims()) {
        (Some(elements), _) => Some(elements.len()),
        (None, Some([])) => Some(1),
        (None, Some([length])) => length.as_known().and_then(|length| usize::try_from(length).ok()),
        (None, _) => None,
    };
    Ok(Integers { length, elements })
}

/// The vector of integers behind an operand that may be absent.
pub(crate) fn optional_integer_vector(inputs: &[Option<Fact>], operand: usize) -> Result<Option<Integers>, TypeError> {
    optional(inputs, operand).map(|_| integer_vector(inputs, operand)).transpose()
}

/// The only integer of an operand of shape `[]` or `[1]`, where known; other element counts are refused.
pub(crate) fn single_integer(inputs: &[Option<Fact>], operand: usize) -> Result<Option<Dim>, TypeError> {
    let shape = index_operand(inputs, operand)?;
    require_single(shape, operand)?;
    let elements = optional(inputs, operand).and_then(Fact::elements_as_dims);
    Ok(elements.and_then(|elements| elements.into_iter().next()))
}

/// Refuse a shape that is known to have another number of elements than one.
pub(crate) fn require_single(shape: &Shape, operand: usize) -> Result<(), TypeError> {
    match shape.dims().and_then(|dims| Dim::product(dims).as_known()) {
        None | Some(1) => Ok(()),
        Some(found) => Err(TypeError::Value {
            subject: format!("number of elements of operand {operand}"),
            found: found.to_string(),
            expected: "1".to_string(),
        }),
    }
}

/// The only element of an operand of integers.
pub(crate) fn only_integer(inputs: &[Option<Value>], operand: usize) -> Result<i64, ReferenceError> {
    let elements = crate::ops::integers(inputs, operand)?;
    match elements[..] {
        [only] => Ok(only),
        _ => Err(count_mismatch(operand, elements.len(), 1).into()),
    }
}

/// An operand has another number of elements than it must.
pub(crate) fn count_mismatch(operand: usize, found: usize, expected: usize) -> TypeError {
    TypeError::Value {
        subject: format!("number of elements of operand {operand}"),
        found: found.to_string(),
        expected: expected.to_string(),
    }
}

/// `count` dimensions of which nothing is known; no rank where there would be too many.
pub(crate) fn unknown_shape(context: &InferContext<'_>, count: Option<usize>) -> Shape {
    match count {
        Some(count) if count <= IPU_RANK => {
            Shape::Ranked((0..count).map(|axis| context.fresh(&format!("dim{axis}"))).collect())
        }
        Some(_) | None => Shape::Unranked,
    }
}

/// Axes counted from the front, each at most once.
pub(crate) fn distinct_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>, TypeError> {
    let mut given = vec![false; rank];
    let mut normalized: Vec<usize> = Vec::with_capacity(axes.len().min(rank));
    for &axis in axes {
        let at = normalize_axis(axis, rank)?;
        if std::mem::replace(&mut given[at], true) {
            let (subject, found) = ("axes".to_string(), format!("{axes:?}"));
            return Err(TypeError::Value { subject, found, expected: "each axis at most once".to_string() });
        }
        normalized.push(at);
    }
    Ok(normalized)
}

/// Which of `rank` axes are among `axes`.
pub(crate) fn axis_mask(axes: &[usize], rank: usize) -> Vec<bool> {
    let mut mask = vec![false; rank];
    axes.iter().for_each(|&axis| mask[axis] = true);
    mask
}

/// A value that is an extent or a count.
pub(crate) fn extent(value: i64, subject: &str) -> Result<usize, ReferenceError> {
    usize::try_from(value).map_err(|_| ReferenceError::OutOfRange {
        subject: subject.to_string(),
        found: value,
        range: "0 and more".to_string(),
    })
}

/// The position of an index that may count from the back.
pub(crate) fn position(index: i64, extent: usize) -> Result<usize, ReferenceError> {
    let from_front = if index < 0 { index.checked_add(extent as i64) } else { Some(index) };
    match from_front.map(usize::try_from) {
        Some(Ok(position)) if position < extent => Ok(position),
        _ => Err(ReferenceError::OutOfRange {
            subject: "an index".to_string(),
            found: index,
            range: format!("-{extent} to {extent} - 1"),
        }),
    }
}

/// The flat index of coordinates.
pub(crate) fn flat(coordinates: &[usize], strides: &[usize]) -> usize {
    coordinates.iter().zip(strides).map(|(coordinate, stride)| coordinate * stride).sum()
}

/// `source` of each coordinate of a tensor of these extents, in row-major order.
///
/// # Errors
/// [`TensorError::TooLarge`] where there are too many to list.
pub(crate) fn sources<T>(
    dtype: DType,
    extents: &[usize],
    mut source: impl FnMut(&[usize]) -> T,
) -> Result<Vec<T>, TensorError> {
    let too_large = || TensorError::TooLarge { dtype, shape: extents.to_vec() };
    let count = element_count(extents).ok_or_else(too_large)?;
    let mut listed = Vec::new();
    listed.try_reserve_exact(count).map_err(|_| too_large())?;
    let mut coordinates = vec![0usize; extents.len()];
    for _ in 0..count {
        listed.push(source(&coordinates));
        for axis in (0..extents.len()).rev() {
            coordinates[axis] += 1;
            if coordinates[axis] < extents[axis] {
                break;
            }
            coordinates[axis] = 0;
        }
    }
    Ok(listed)
}

/// The tensor of these extents whose element at each coordinate is the data's at `source`, zero where that is `None`.
///
/// # Errors
/// [`TensorError`] where the result is too large.
pub(crate) fn moved(
    data: &Tensor,
    extents: &[usize],
    source: impl FnMut(&[usize]) -> Option<usize>,
) -> Result<Tensor, TensorError> {
    data.select(extents, sources(data.dtype(), extents, source)?.into_iter())
}

/// [`moved`] with sources that may be out of range.
///
/// # Errors
/// The first error of a source; [`TensorError`] where the result is too large.
pub(crate) fn moved_checked(
    data: &Tensor,
    extents: &[usize],
    source: impl FnMut(&[usize]) -> Result<usize, ReferenceError>,
) -> Result<Tensor, ReferenceError> {
    let sources: Vec<usize> = sources(data.dtype(), extents, source)?.into_iter().collect::<Result<_, _>>()?;
    Ok(data.select(extents, sources.into_iter().map(Some))?)
}

/// The elements of two tensors of one type behind one another, as a vector.
///
/// # Errors
/// [`TypeError::ElementType`] where their types differ.
pub(crate) fn joined(first: &Tensor, second: &Tensor, operand: usize) -> Result<Tensor, ReferenceError> {
    let flat = |tensor: &Tensor| tensor.reshaped(&[tensor.count()]);
    let joined = crate::ops::parts::concatenate(&[&flat(first)?, &flat(second)?], 0)?;
    let (expected, found) = (first.dtype().to_string(), second.dtype());
    joined.ok_or_else(|| TypeError::ElementType { operand, expected, found }.into())
}

/// The same elements under another shape: what is known of them stays known.
pub(crate) fn viewed(data: &Fact, dtype: DType, shape: Shape) -> Fact {
    let contents = match &data.contents {
        Some(Contents::Dims(dims)) => Some(Contents::Dims(dims.clone())),
        Some(Contents::Constant(tensor)) => {
            shape.as_known().and_then(|shape| tensor.reshaped(&shape).ok()).map(Contents::Constant)
        }
        None => None,
    };
    Fact { contents, ..Fact::tensor(dtype, shape) }
}

/// Fill in contents of results of an operator that only moves elements of the operands `moved`: it is run on tags in
/// place of elements. Nothing happens where something that it needs is not known.
pub(crate) fn follow(operator: &dyn Operator, inputs: &[Option<Fact>], moved: &[usize], results: &mut [Fact]) {
    let Some(contents) = followed(operator, inputs, moved, results) else { return };
    for (result, dims) in results.iter_mut().zip(contents) {
        result.contents = Some(Contents::Dims(dims));
    }
}

fn followed(
    operator: &dyn Operator,
    inputs: &[Option<Fact>],
    moved: &[usize],
    results: &[Fact],
) -> Option<Vec<Vec<Dim>>> {
    let small = |fact: &Fact| {
        let shape = fact.kind.as_tensor().and_then(|(_, shape)| shape.as_known());
        shape.and_then(|shape| element_count(&shape)).is_some_and(|count| count <= MAXIMUM_FOLLOWED_ELEMENTS)
    };
    let has_contents = |&operand: &usize| optional(inputs, operand).is_none_or(|fact| fact.contents.is_some());
    if !moved.iter().all(has_contents) || !results.iter().all(small) {
        return None;
    }
    // Tag 0 stands for the zero of places that nothing is moved to.
    let mut elements = vec![Dim::ZERO];
    let mut operands: Vec<Option<Value>> = Vec::with_capacity(inputs.len());
    for (operand, fact) in inputs.iter().enumerate() {
        let Some(fact) = fact else {
            operands.push(None);
            continue;
        };
        let (dtype, shape) = fact.kind.as_tensor()?;
        let shape = shape.as_known()?;
        let tensor = if moved.contains(&operand) {
            let dims = fact.elements_as_dims()?;
            let tags: Vec<i64> = (elements.len()..elements.len() + dims.len()).map(|tag| tag as i64).collect();
            elements.extend(dims);
            Tensor::from_elements(&shape, &tags).ok()?
        } else if let Some(constant) = fact.as_constant() {
            constant.clone()
        } else {
            tensor_of_integers(dtype, &shape, &fact.elements_as_integers()?)?
        };
        operands.push(Some(tensor.into()));
    }
    let mut blocks = NoBlocks;
    let run = operator.reference(&operands, &mut ReferenceContext::new(&mut blocks)).ok()?;
    let dims_of = |(value, fact): (&Value, &Fact)| {
        let tags = value.as_tensor()?;
        let (_, shape) = fact.kind.as_tensor()?;
        if shape.as_known()? != tags.shape() {
            return None;
        }
        let tags = tags.elements::<i64>().ok()?.iter();
        tags.map(|&tag| elements.get(usize::try_from(tag).ok()?).cloned()).collect()
    };
    (run.len() == results.len()).then(|| run.iter().zip(results).map(dims_of).collect())?
}

/// What tests of data movement share.
#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use crate::dim::Ranges;

    /// Results of the reference for tensors.
    pub fn run(operator: &dyn Operator, inputs: &[Option<Tensor>]) -> Result<Vec<Tensor>, ReferenceError> {
        let inputs: Vec<Option<Value>> = inputs.iter().map(|tensor| tensor.clone().map(Value::from)).collect();
        let mut blocks = NoBlocks;
        let results = operator.reference(&inputs, &mut ReferenceContext::new(&mut blocks))?;
        Ok(results.into_iter().map(|value| value.as_tensor().expect("a tensor").clone()).collect())
    }

    /// The first result of the reference for tensors that are all there.
    pub fn first(operator: &dyn Operator, inputs: &[&Tensor]) -> Tensor {
        let inputs: Vec<Option<Tensor>> = inputs.iter().map(|&tensor| Some(tensor.clone())).collect();
        run(operator, &inputs).expect("a result").remove(0)
    }

    /// The inferred facts, and the obligations as text.
    pub fn infer(operator: &dyn Operator, inputs: &[Option<Fact>]) -> Result<(Vec<Fact>, Vec<String>), TypeError> {
        let ranges = Ranges::default();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("step", &ranges, &mut blocks);
        let facts = operator.infer(inputs, &mut context)?;
        let said = |obligation: &crate::ops::Obligation| {
            let relation: &'static str = obligation.relation.into();
            format!("{} {relation} {}", obligation.left, obligation.right)
        };
        let obligations = context.obligations.iter().map(said).collect();
        Ok((facts, obligations))
    }

    /// The printed type of the first result.
    pub fn inferred(operator: &dyn Operator, inputs: &[Fact]) -> String {
        let inputs: Vec<Option<Fact>> = inputs.iter().cloned().map(Some).collect();
        infer(operator, &inputs).map_or_else(|error| error.to_string(), |(facts, _)| facts[0].kind.to_string())
    }

    /// The dimensions of a text such as `batch, 4, min(n, 1)`.
    pub fn dims(text: &str) -> Vec<Dim> {
        let mut depth = 0;
        let outermost = |character: char| {
            depth += i32::from(character == '(') - i32::from(character == ')');
            character == ',' && depth == 0
        };
        let parts = text.split(outermost).filter(|part| !part.trim().is_empty());
        parts.map(|part| part.trim().parse().expect("a dimension")).collect()
    }

    /// An f32 tensor of these dimensions.
    pub fn floats(text: &str) -> Fact {
        Fact::tensor(DType::F32, dims(text))
    }

    /// An i64 vector of these elements.
    pub fn contents(text: &str) -> Fact {
        let elements = dims(text);
        Fact::of_dims(DType::I64, vec![Dim::from(elements.len())], elements)
    }

    /// An i64 vector that is constant.
    pub fn vector(elements: &[i64]) -> Fact {
        Fact::constant(Tensor::vector_i64(elements))
    }

    /// The f32 tensor 0, 1, 2, .. of this shape.
    pub fn iota(shape: &[usize]) -> Tensor {
        let count = shape.iter().product::<usize>();
        let elements: Vec<f32> = (0..count).map(|element| element as f32).collect();
        Tensor::from_elements(shape, &elements).expect("a tensor")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_from_both_ends() {
        assert_eq!(position(-1, 3).unwrap(), 2);
        assert_eq!(position(2, 3).unwrap(), 2);
        assert_eq!(position(3, 3).unwrap_err().to_string(), "an index is 3, outside -3 to 3 - 1");
        assert_eq!(position(-4, 3).unwrap_err().to_string(), "an index is -4, outside -3 to 3 - 1");
        assert_eq!(
            position(i64::MIN, usize::MAX).unwrap_err().to_string(),
            "an index is -9223372036854775808, outside -18446744073709551615 to 18446744073709551615 - 1"
        );
    }

    #[test]
    fn sources_are_row_major_and_bounded() {
        let listed = sources(DType::F32, &[2, 3], |at| (at[0], at[1])).unwrap();
        assert_eq!(listed, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
        assert_eq!(sources(DType::F32, &[], |at| at.len()).unwrap(), [0]);
        assert!(sources(DType::F32, &[1 << 60, 0], |_| ()).unwrap().is_empty());
        assert_eq!(
            sources(DType::F32, &[1 << 62, 2], |_| None::<usize>).unwrap_err().to_string(),
            "f32[4611686018427387904, 2] is too large to address"
        );
    }

    #[test]
    fn axes_repeat_never() {
        assert_eq!(distinct_axes(&[-1, 0], 3).unwrap(), [2, 0]);
        assert_eq!(
            distinct_axes(&[-1, 2], 3).unwrap_err().to_string(),
            "axes is [-1, 2], expected each axis at most once"
        );
        assert_eq!(distinct_axes(&[3], 3).unwrap_err().to_string(), "axis 3 is outside a tensor of rank 3");
    }
}
