//! Ranges with a step along some axes: ONNX `Slice` (opsets 1, 10, 11, 13; the attributes of opset 1 as operands).

use crate::attributes;
use crate::dim::{Dim, Equality, at_least, equality};
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{
    Integers, count_mismatch, distinct_axes, flat, follow, integer_vector, moved, optional_integer_vector,
};
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Relation, Space, StepFacts, TypeError, integers,
    loops, optional, tensor, tensor_operand,
};
use crate::tensor::strides;
use crate::value::Value;

attributes! {
    /// `data: [..]` from `starts: [n]` up to `ends: [n]` along `axes: [n]` (absent: the first n) in steps of `steps: [n]`
    /// (absent: 1). Negative starts and ends count from the back, negative steps go backward; ends beyond the axis are cut.
    pub struct Slice revision 1 {}
}

/// What is taken from one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SliceRange {
    /// First position; any where `extent` is 0.
    pub start: usize,
    /// From one position to the next.
    pub step: i64,
    /// Number of positions.
    pub extent: usize,
}

impl SliceRange {
    /// All of an axis.
    pub fn whole(extent: usize) -> SliceRange {
        SliceRange { start: 0, step: 1, extent }
    }

    /// The range of an axis for one start, end and step.
    ///
    /// # Errors
    /// [`TypeError::Value`] for a step of 0.
    pub fn new(total: usize, start: i64, end: i64, step: i64) -> Result<SliceRange, TypeError> {
        if step == 0 {
            return Err(zero_step());
        }
        // Nothing overflows in 128 bits.
        let total = total as i128;
        let from_front = |index: i64| if index < 0 { i128::from(index) + total } else { i128::from(index) };
        let (start, span) = if step > 0 {
            let start = from_front(start).clamp(0, total);
            (start, from_front(end).clamp(0, total) - start)
        } else if total == 0 {
            (0, 0)
        } else {
            let start = from_front(start).clamp(0, total - 1);
            (start, start - from_front(end).clamp(-1, total - 1))
        };
        let magnitude = i128::from(step).abs();
        let extent = (span.max(0) + magnitude - 1) / magnitude;
        Ok(SliceRange { start: start as usize, step, extent: extent as usize })
    }

    /// The position behind one coordinate of the result.
    pub fn position(&self, coordinate: usize) -> usize {
        (self.start as i128 + coordinate as i128 * i128::from(self.step)) as usize
    }
}

fn zero_step() -> TypeError {
    TypeError::Value { subject: "step".to_string(), found: "0".to_string(), expected: "anything else".to_string() }
}

impl Slice {
    /// What is taken from each axis of a tensor of this shape, for these contents of the operands.
    ///
    /// # Errors
    /// [`TypeError`] for other counts of ends, axes or steps than of starts, axes outside the rank, steps of 0.
    pub fn ranges(
        shape: &[usize],
        starts: &[i64],
        ends: &[i64],
        axes: Option<&[i64]>,
        steps: Option<&[i64]>,
    ) -> Result<Vec<SliceRange>, TypeError> {
        let given = [(2, Some(ends)), (3, axes), (4, steps)];
        for (operand, elements) in given {
            if let Some(found) = elements.map(<[i64]>::len).filter(|&found| found != starts.len()) {
                return Err(count_mismatch(operand, found, starts.len()));
            }
        }
        let axes = sliced_axes(axes, starts.len(), shape.len())?;
        let mut ranges: Vec<SliceRange> = shape.iter().map(|&extent| SliceRange::whole(extent)).collect();
        for (at, axis) in axes.into_iter().enumerate() {
            let step = steps.map_or(1, |steps| steps[at]);
            ranges[axis] = SliceRange::new(shape[axis], starts[at], ends[at], step)?;
        }
        Ok(ranges)
    }

    /// [`Slice::ranges`] of operands that are there.
    ///
    /// # Errors
    /// As [`Slice::ranges`], and where an operand is missing.
    pub fn operand_ranges(inputs: &[Option<Value>]) -> Result<Vec<SliceRange>, ReferenceError> {
        let elements = |operand: usize| match inputs.get(operand) {
            Some(Some(_)) => integers(inputs, operand).map(Some),
            Some(None) | None => Ok(None),
        };
        let (axes, steps) = (elements(3)?, elements(4)?);
        let (starts, ends) = (integers(inputs, 1)?, integers(inputs, 2)?);
        let shape = tensor(inputs, 0)?.shape();
        Ok(Slice::ranges(shape, &starts, &ends, axes.as_deref(), steps.as_deref())?)
    }
}

fn sliced_axes(axes: Option<&[i64]>, count: usize, rank: usize) -> Result<Vec<usize>, TypeError> {
    match axes {
        Some(axes) => distinct_axes(axes, rank),
        None if count <= rank => Ok((0..count).collect()),
        None => Err(count_mismatch(1, count, rank)),
    }
}

/// Starts, ends and steps as far as they are known.
struct Bounds {
    starts: Integers,
    ends: Integers,
    axes: Option<Integers>,
    steps: Option<Integers>,
}

impl Bounds {
    fn of(inputs: &[Option<Fact>]) -> Result<Bounds, TypeError> {
        let bounds = Bounds {
            starts: integer_vector(inputs, 1)?,
            ends: integer_vector(inputs, 2)?,
            axes: optional_integer_vector(inputs, 3)?,
            steps: optional_integer_vector(inputs, 4)?,
        };
        let others = [(2, Some(&bounds.ends)), (3, bounds.axes.as_ref()), (4, bounds.steps.as_ref())];
        for (operand, other) in others {
            if let (Some(count), Some(found)) = (bounds.starts.length, other.and_then(|other| other.length))
                && count != found
            {
                return Err(count_mismatch(operand, found, count));
            }
        }
        Ok(bounds)
    }

    /// The sliced axes, where they are known.
    fn sliced(&self, rank: usize) -> Result<Option<Vec<usize>>, TypeError> {
        match &self.axes {
            Some(axes) => axes.known().map(|axes| distinct_axes(&axes, rank)).transpose(),
            None => {
                let count = self.starts.length.or(self.ends.length);
                count.map(|count| sliced_axes(None, count, rank)).transpose()
            }
        }
    }

    /// Start, end and step of one of the sliced axes, where they are known.
    fn at(&self, index: usize) -> Option<(Dim, Dim, Dim)> {
        let element = |integers: &Integers| integers.elements.as_ref()?.get(index).cloned();
        let step = match &self.steps {
            Some(steps) => element(steps)?,
            None => Dim::ONE,
        };
        Some((element(&self.starts)?, element(&self.ends)?, step))
    }
}

impl Operator for Slice {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let bounds = Bounds::of(inputs)?;
        let Some(dims) = shape.dims() else { return Ok(vec![Fact::tensor(dtype, Shape::Unranked)]) };
        let mut result = dims.to_vec();
        match bounds.sliced(dims.len())? {
            Some(axes) => {
                for (index, axis) in axes.into_iter().enumerate() {
                    let fresh = context.fresh(&format!("dim{axis}"));
                    result[axis] = match bounds.at(index) {
                        Some((start, end, step)) => extent(&dims[axis], &start, &end, &step, context)?.unwrap_or(fresh),
                        None => fresh,
                    };
                }
            }
            None => result = (0..dims.len()).map(|axis| context.fresh(&format!("dim{axis}"))).collect(),
        }
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
        let ranges = Slice::operand_ranges(inputs)?;
        let extents: Vec<usize> = ranges.iter().map(|range| range.extent).collect();
        let strides = strides(data.shape());
        let mut positions = vec![0usize; ranges.len()];
        let source = |at: &[usize]| {
            for (axis, range) in ranges.iter().enumerate() {
                positions[axis] = range.position(at[axis]);
            }
            Some(flat(&positions, &strides))
        };
        Ok(vec![moved(data, &extents, source)?.into()])
    }
}

impl Moves for Slice {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let Some(dims) = facts.dims(0) else { return loops::serial(facts) };
        let given = |operand| facts.operand(operand).map(|_| facts.integers(operand));
        let (starts, ends) = (facts.integers(1), facts.integers(2));
        let known = match (starts, ends, given(3), given(4)) {
            (Some(starts), Some(ends), axes @ (None | Some(Some(_))), steps @ (None | Some(Some(_)))) => {
                Some((starts, ends, axes.flatten(), steps.flatten()))
            }
            _ => None,
        };
        let shape: Vec<usize> = dims
            .iter()
            .map(|dim| dim.as_known().and_then(|dim| usize::try_from(dim).ok()).unwrap_or(usize::MAX))
            .collect();
        let ranges = known.and_then(|(starts, ends, axes, steps)| {
            Slice::ranges(&shape, &starts, &ends, axes.as_deref(), steps.as_deref()).ok()
        });
        // Of an axis of unknown extent it is only known that all of it stays, where it is not sliced.
        loops::mapped(facts, |axis| {
            let range = ranges.as_ref()?.get(axis)?;
            let whole = *range == SliceRange::whole(shape[axis]);
            let known = whole || shape[axis] != usize::MAX;
            known.then(|| loops::operand(0, axis).stride(range.step).offset(range.start as i64))
        })
    }

    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.copied_bytes()
    }

    fn view_of(&self) -> Option<usize> {
        None
    }

    /// Every axis is sliced forward, and all of it: it keeps its extent, or goes from 0 or from the front to the end.
    fn is_identity(&self, inputs: &[Option<Fact>], result: &Fact) -> bool {
        let elements = |operand| optional(inputs, operand).and_then(Fact::elements_as_integers);
        let forward = match optional(inputs, 4) {
            None => true,
            Some(_) => elements(4).is_some_and(|steps| steps.iter().all(|&step| step == 1)),
        };
        if forward && result.dims().is_some() && optional(inputs, 0).and_then(Fact::dims) == result.dims() {
            return true;
        }
        let (Some(starts), Some(ends)) = (elements(1), elements(2)) else { return false };
        let zero = [i64::MIN, 0];
        forward && starts.iter().all(|start| zero.contains(start)) && ends.iter().all(|&end| end == i64::MAX)
    }
}

/// Where one end of a range lies once it is counted from the front.
enum End {
    /// At 0 or before.
    Front,
    /// At the extent or after.
    Back,
    /// There, which may be outside the axis.
    At(Dim),
}

/// Values that exporters write for "to the end": an axis that long would be refused when it binds.
const BEYOND: i64 = i32::MAX as i64;

fn end_of(total: &Dim, index: &Dim, context: &mut InferContext<'_>) -> End {
    if let Some(known) = index.as_known() {
        let beyond = |context: &mut InferContext<'_>, limit: i64| {
            let limit = Dim::known(limit);
            match at_least(&limit, total, context.ranges) {
                Some(fits) => fits,
                None if limit.as_known() >= Some(BEYOND) => {
                    context.oblige(Relation::AtMost, total, &limit, "extent of a sliced axis");
                    true
                }
                None => false,
            }
        };
        match known {
            0 => return End::Front,
            1.. if beyond(context, known) => return End::Back,
            // One less than the magnitude, which always fits.
            ..0 if beyond(context, -(known + 1)) => return End::Front,
            _ => {}
        }
    }
    let (least, greatest) = index.bounds(context.ranges);
    if least >= 0 {
        return End::At(index.clone());
    }
    if greatest < 0 {
        return End::At((total + index).simplify(context.ranges));
    }
    // The total is added where the index is negative: min(1, max(0, -index)) is 1 just there.
    let negative = Dim::min(&Dim::ONE, &Dim::max(&Dim::ZERO, &-index));
    End::At((index + total * negative).simplify(context.ranges))
}

fn least(dims: &[&Dim], context: &InferContext<'_>) -> Dim {
    let smallest = dims[1..].iter().fold(dims[0].clone(), |smallest, dim| Dim::min(&smallest, dim));
    smallest.simplify(context.ranges)
}

/// The extent of a slice, or `None` where the sign of the step is unknown.
fn extent(
    total: &Dim,
    start: &Dim,
    end: &Dim,
    step: &Dim,
    context: &mut InferContext<'_>,
) -> Result<Option<Dim>, TypeError> {
    if let (Some(total), Some(start), Some(end), Some(step)) =
        (total.as_known(), start.as_known(), end.as_known(), step.as_known())
        && let Ok(total) = usize::try_from(total)
    {
        return Ok(Some(Dim::from(SliceRange::new(total, start, end, step)?.extent)));
    }
    if step.as_known() == Some(0) {
        return Err(zero_step());
    }
    let (slowest, fastest) = step.bounds(context.ranges);
    let (span, magnitude) = if slowest > 0 {
        (forward_span(total, start, end, context), step.clone())
    } else if fastest < 0 {
        (backward_span(total, start, end, context), -step)
    } else {
        return Ok(None);
    };
    let span = Dim::max(&span, &Dim::ZERO).simplify(context.ranges);
    // Of steps beyond any extent only the first position is taken, and sums with them would overflow.
    let extent = match magnitude.as_known() {
        Some(1) => span,
        Some(magnitude) if magnitude >= BEYOND => Dim::min(&Dim::ONE, &span),
        _ if magnitude.is_refused() => Dim::min(&Dim::ONE, &span),
        _ => span.ceil_div(&magnitude),
    };
    Ok(Some(extent.simplify(context.ranges)))
}

/// `min(end, total) - max(start, 0)`, which is negative where nothing is taken.
fn forward_span(total: &Dim, start: &Dim, end: &Dim, context: &mut InferContext<'_>) -> Dim {
    let start = match end_of(total, start, context) {
        End::Front => Dim::ZERO,
        End::Back => return Dim::ZERO,
        End::At(start) => start,
    };
    let end = match end_of(total, end, context) {
        End::Front => return Dim::ZERO,
        End::Back => total.clone(),
        End::At(end) => end,
    };
    least(&[&end, total, &(&end - &start), &(total - &start)], context)
}

/// `min(max(start, 0), total - 1) - max(end, -1)`, which is negative where nothing is taken.
fn backward_span(total: &Dim, start: &Dim, end: &Dim, context: &mut InferContext<'_>) -> Dim {
    let last = total - 1;
    let start = match end_of(total, start, context) {
        End::Front => Dim::ZERO,
        End::Back => last.clone(),
        // Before the front only for an axis without elements, of which nothing is taken either way.
        End::At(start) if equality(&start, &last, context.ranges) == Equality::Proven => start,
        End::At(start) => Dim::max(&start, &Dim::ZERO).simplify(context.ranges),
    };
    let counts_from_back = end.bounds(context.ranges).1 < 0;
    let end = match end_of(total, end, context) {
        End::Front if counts_from_back => Dim::known(-1),
        End::Front => Dim::ZERO,
        End::Back => return Dim::ZERO,
        End::At(end) => end,
    };
    least(&[&(&start - &end), &(&start + 1), &(&last - &end), total], context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ops::movement::moving::testing::{contents, dims, floats, infer, inferred, iota, run, vector};
    use crate::tensor::Tensor;

    /// The printed extent of axis 0 of `x[start:end:step]`.
    fn sliced(total: &str, start: &str, end: &str, step: i64) -> String {
        let inputs = [floats(total), contents(start), contents(end), vector(&[0]), vector(&[step])];
        inferred(&Slice {}, &inputs)
    }

    #[test]
    fn extents_are_clamped() {
        assert_eq!(sliced("total", "0", "seq", 1), "f32[min(seq, total)]");
        assert_eq!(sliced("past + seq", "0", "seq", 1), "f32[seq]");
        assert_eq!(sliced("past + seq", "past", "past + seq", 1), "f32[seq]");
        assert_eq!(sliced("n", "1", "9223372036854775807", 1), "f32[max(n, 1) - 1]");
        assert_eq!(sliced("n + 1", "1", "9223372036854775807", 1), "f32[n]");
        assert_eq!(sliced("n", "-1", "9223372036854775807", 1), "f32[min(n, 1)]");
        assert_eq!(sliced("n + 1", "-1", "9223372036854775807", 1), "f32[1]");
        assert_eq!(sliced("n", "0", "-1", 1), "f32[max(n, 1) - 1]");
        assert_eq!(sliced("n", "0", "512", 1), "f32[min(n, 512)]");
        assert_eq!(sliced("n", "-9223372036854775808", "9223372036854775807", 2), "f32[floordiv(n + 1, 2)]");
        assert_eq!(sliced("n", "-1", "-9223372036854775808", -1), "f32[n]");
        assert_eq!(sliced("n", "0", "9223372036854775807", 9223372036854775807), "f32[min(n, 1)]");
        assert_eq!(sliced("n", "0", "0", 1), "f32[0]");
        assert_eq!(sliced("5", "-3", "-1", 1), "f32[2]");
        assert!(sliced("n", "0", "1", 0).contains("step is 0"));
    }

    #[test]
    fn long_ends_are_obliged_to_be_beyond() {
        let inputs = [floats("n"), vector(&[0]), vector(&[i64::from(i32::MAX)])].map(Some);
        let (facts, obligations) = infer(&Slice {}, &inputs).unwrap();
        assert_eq!(facts[0].kind.to_string(), "f32[n]");
        assert_eq!(obligations, ["n at_most 2147483647"]);
    }

    #[test]
    fn unknown_ends_leave_the_other_axes() {
        let ends = Fact::tensor(DType::I64, dims("1"));
        assert_eq!(
            inferred(&Slice {}, &[floats("n, m"), ends.clone(), ends.clone(), vector(&[1])]),
            "f32[n, step.dim1]"
        );
        assert_eq!(inferred(&Slice {}, &[floats("n, m"), ends.clone(), ends]), "f32[step.dim0, m]");
    }

    #[test]
    fn every_range_is_what_a_list_would_give() {
        for total in 0..5i64 {
            for (start, end) in (-7..7).flat_map(|start| (-7..7).map(move |end| (start, end))) {
                for step in [-3, -2, -1, 1, 2, 3] {
                    let range = SliceRange::new(total as usize, start, end, step).unwrap();
                    let shift = |index: i64| if index < 0 { index + total } else { index };
                    let mut expected = Vec::new();
                    let mut at = if step > 0 { shift(start).max(0) } else { shift(start).max(0).min(total - 1) };
                    while (0..total).contains(&at) && if step > 0 { at < shift(end) } else { at > shift(end).max(-1) } {
                        expected.push(at as usize);
                        at += step;
                    }
                    let found: Vec<usize> = (0..range.extent).map(|at| range.position(at)).collect();
                    assert_eq!(found, expected, "{total}[{start}:{end}:{step}]");
                }
            }
        }
        let extreme = SliceRange::new(3, i64::MIN, i64::MAX, i64::MIN).unwrap();
        assert_eq!((extreme.start, extreme.extent), (0, 0));
        assert_eq!(SliceRange::new(3, i64::MAX, i64::MIN, i64::MIN).unwrap().extent, 1);
    }

    #[test]
    fn elements_are_taken() {
        let vector = |elements: &[i64]| Some(Tensor::vector_i64(elements));
        let inputs = [Some(iota(&[3, 4])), vector(&[-1, 0]), vector(&[-9, 4]), vector(&[0, -1]), vector(&[-2, 3])];
        let result = run(&Slice {}, &inputs).unwrap().remove(0);
        assert_eq!((result.shape(), result.elements::<f32>().unwrap()), (&[2, 2][..], &[8.0, 11.0, 0.0, 3.0][..]));
        assert_eq!(
            run(&Slice {}, &[Some(iota(&[3])), vector(&[0, 0]), vector(&[1, 1])]).unwrap_err().to_string(),
            "number of elements of operand 1 is 2, expected 1"
        );
        assert_eq!(
            run(&Slice {}, &[Some(iota(&[3])), vector(&[0]), vector(&[1]), vector(&[0]), vector(&[0])])
                .unwrap_err()
                .to_string(),
            "step is 0, expected anything else"
        );
    }

    #[test]
    fn contents_are_taken() {
        let inputs = [contents("batch, seq, 64"), vector(&[1]), vector(&[2])].map(Some);
        assert_eq!(infer(&Slice {}, &inputs).unwrap().0[0].elements_as_dims().unwrap(), [Dim::symbol("seq")]);
    }
}
