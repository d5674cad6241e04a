//! More or fewer positions at both ends of axes: ONNX `Pad` (opsets 2, 11, 13, 18, 19, 21, 23, 24, 25; the attributes of
//! old ones as operands).
//!
//! Positions that negative pads remove are gone before the others are reflected, repeated or wrapped.

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{
    count_mismatch, distinct_axes, flat, follow, integer_vector, joined, moved, optional_integer_vector,
    require_single, sources,
};
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Relation, Space, StepFacts, TypeError, integers,
    loops, optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::strides;
use crate::value::Value;

attributes! {
    /// `data: [..]` with `pads: [2 * n]` (i64: all begins, then all ends) positions more at the `axes: [n]` (absent: all);
    /// `value: []` fills them where the mode is constant (absent: zero).
    pub struct Pad revision 1 {
        /// What the new positions hold.
        1 since 1 => mode: PadMode,
    }
}

/// Modes of [`Pad`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum PadMode {
    /// One value.
    Constant,
    /// The elements mirrored at the first and at the last one, which are not repeated.
    Reflect,
    /// The first and the last element.
    Edge,
    /// The elements from the other end.
    Wrap,
}
impl Keyword for PadMode {}

/// Positions more (or fewer, where negative) at both ends of one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AxisPads {
    /// Before the first.
    pub begin: i64,
    /// After the last.
    pub end: i64,
}

impl AxisPads {
    /// The extent of the padded axis.
    ///
    /// # Errors
    /// [`TypeError::Value`] where more is removed than there is, or the extent is too large.
    pub fn extent(&self, total: usize) -> Result<usize, ReferenceError> {
        let padded = total as i128 + i128::from(self.begin) + i128::from(self.end);
        usize::try_from(padded).ok().filter(|&extent| i64::try_from(extent).is_ok()).ok_or_else(|| {
            let (subject, found) = ("a padded extent".to_string(), padded.to_string());
            TypeError::Value { subject, found, expected: "0 to 2^63 - 1".to_string() }.into()
        })
    }

    /// The position of the operand behind one of the result, on an axis of this extent; `None` for the value.
    pub fn position(&self, mode: PadMode, total: usize, coordinate: usize) -> Option<usize> {
        let total = total as i128;
        let at = coordinate as i128 - i128::from(self.begin);
        // What negative pads leave.
        let low = i128::from(self.begin.min(0)).abs().min(total);
        let high = (total + i128::from(self.end.min(0))).max(low);
        // Most positions, whatever the mode.
        if (low..high).contains(&at) {
            return Some(at as usize);
        }
        let length = high - low;
        let position = match mode {
            PadMode::Constant => at,
            PadMode::Edge => at.clamp(low, (high - 1).max(low)),
            PadMode::Wrap => low + (at - low).rem_euclid(length.max(1)),
            PadMode::Reflect => {
                let period = (2 * (length - 1)).max(1);
                let within = (at - low).rem_euclid(period);
                low + within.min(period - within).min((length - 1).max(0))
            }
        };
        (low..high).contains(&position).then_some(position as usize)
    }
}

impl Pad {
    /// The pads of every axis, for these contents of the operands.
    ///
    /// # Errors
    /// [`TypeError`] for another number of pads than two an axis, and axes outside the rank.
    pub fn axis_pads(pads: &[i64], axes: Option<&[i64]>, rank: usize) -> Result<Vec<AxisPads>, TypeError> {
        let axes = match axes {
            Some(axes) => distinct_axes(axes, rank)?,
            None => (0..rank).collect(),
        };
        if pads.len() != 2 * axes.len() {
            return Err(count_mismatch(1, pads.len(), 2 * axes.len()));
        }
        let mut all = vec![AxisPads::default(); rank];
        for (at, &axis) in axes.iter().enumerate() {
            all[axis] = AxisPads { begin: pads[at], end: pads[axes.len() + at] };
        }
        Ok(all)
    }

    /// [`Pad::axis_pads`] of operands that are there.
    ///
    /// # Errors
    /// As [`Pad::axis_pads`], and where an operand is missing.
    pub fn operand_pads(inputs: &[Option<Value>]) -> Result<Vec<AxisPads>, ReferenceError> {
        let axes = match inputs.get(3) {
            Some(Some(_)) => Some(integers(inputs, 3)?),
            Some(None) | None => None,
        };
        Ok(Pad::axis_pads(&integers(inputs, 1)?, axes.as_deref(), tensor(inputs, 0)?.rank())?)
    }

    fn shape(
        &self,
        inputs: &[Option<Fact>],
        dims: &[Dim],
        context: &mut InferContext<'_>,
    ) -> Result<Vec<Dim>, TypeError> {
        let pads = integer_vector(inputs, 1)?;
        let given = optional_integer_vector(inputs, 3)?;
        let axes: Option<Vec<usize>> = match &given {
            Some(axes) => axes.known().map(|axes| distinct_axes(&axes, dims.len())).transpose()?,
            None => Some((0..dims.len()).collect()),
        };
        let count = axes.as_ref().map(Vec::len).or(given.and_then(|axes| axes.length));
        if let (Some(count), Some(length)) = (count, pads.length)
            && length != count.saturating_mul(2)
        {
            return Err(count_mismatch(1, length, count.saturating_mul(2)));
        }
        let mut result = dims.to_vec();
        let fresh = |axis: usize, context: &InferContext<'_>| context.fresh(&format!("dim{axis}"));
        match (axes, pads.elements) {
            (Some(axes), Some(pads)) => {
                for (at, &axis) in axes.iter().enumerate() {
                    let (begin, end) = (&pads[at], &pads[axes.len() + at]);
                    result[axis] = padded(&dims[axis], begin, end, context)?;
                }
            }
            (Some(axes), None) => axes.iter().for_each(|&axis| result[axis] = fresh(axis, context)),
            (None, _) => (0..dims.len()).for_each(|axis| result[axis] = fresh(axis, context)),
        }
        Ok(result)
    }
}

fn padded(total: &Dim, begin: &Dim, end: &Dim, context: &mut InferContext<'_>) -> Result<Dim, TypeError> {
    let padded = (total + begin + end).simplify(context.ranges);
    let (least, greatest) = padded.bounds(context.ranges);
    if greatest < 0 {
        let subject = "a padded extent".to_string();
        return Err(TypeError::Value { subject, found: padded.to_string(), expected: "0 and more".to_string() });
    }
    if least < 0 {
        context.oblige(Relation::AtMost, &Dim::ZERO, &padded, "padded extent");
    }
    Ok(padded)
}

impl Operator for Pad {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        if optional(inputs, 2).is_some() {
            let (found, value) = tensor_operand(inputs, 2)?;
            if found != dtype {
                return Err(TypeError::ElementType { operand: 2, expected: dtype.to_string(), found });
            }
            require_single(value, 2)?;
        }
        let Some(dims) = shape.dims() else { return Ok(vec![Fact::tensor(dtype, Shape::Unranked)]) };
        let mut results = vec![Fact::tensor(dtype, self.shape(inputs, dims, context)?)];
        follow(self, inputs, &[0, 2], &mut results);
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let pads = Pad::operand_pads(inputs)?;
        let extents: Vec<usize> =
            pads.iter().zip(data.shape()).map(|(pads, &total)| pads.extent(total)).collect::<Result<_, _>>()?;
        let strides = strides(data.shape());
        let mut positions = vec![0usize; data.rank()];
        let mut source = |at: &[usize]| {
            for (axis, pads) in pads.iter().enumerate() {
                positions[axis] = pads.position(self.mode, data.shape()[axis], at[axis])?;
            }
            Some(flat(&positions, &strides))
        };
        let value = optional_tensor(inputs, 2)?;
        let result = match (self.mode, value) {
            (PadMode::Constant, Some(value)) if value.count() != 1 => {
                return Err(count_mismatch(2, value.count(), 1).into());
            }
            (PadMode::Constant, Some(value)) => {
                let with_value = joined(data, value, 2)?;
                let fill = data.count();
                let sources = sources(data.dtype(), &extents, |at| source(at).unwrap_or(fill))?;
                with_value.select(&extents, sources.into_iter().map(Some))?
            }
            (PadMode::Constant, None) => moved(data, &extents, source)?,
            (PadMode::Reflect | PadMode::Edge | PadMode::Wrap, _) => {
                let sources = sources(data.dtype(), &extents, source)?;
                if sources.contains(&None) {
                    let (subject, found) = ("shape of operand 0".to_string(), format!("{:?}", data.shape()));
                    let expected = format!("elements that padding in mode {} can repeat", <&str>::from(self.mode));
                    return Err(TypeError::Value { subject, found, expected }.into());
                }
                data.select(&extents, sources.into_iter())?
            }
        };
        Ok(vec![result.into()])
    }
}

impl Moves for Pad {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let pads = facts.dims(0).zip(facts.integers(1)).and_then(|(dims, pads)| {
            let axes = facts.operand(3).map(|_| facts.integers(3));
            match axes {
                None => Pad::axis_pads(&pads, None, dims.len()).ok(),
                Some(axes) => Pad::axis_pads(&pads, Some(&axes?), dims.len()).ok(),
            }
        });
        // What is not filled with a value may come from anywhere.
        loops::mapped(facts, |axis| {
            let pads = pads.as_ref()?.get(axis)?;
            let placed = self.mode == PadMode::Constant || (pads.begin == 0 && pads.end == 0);
            placed.then(|| loops::operand(0, axis).offset(pads.begin.saturating_neg()))
        })
    }

    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.copied_bytes()
    }

    fn view_of(&self) -> Option<usize> {
        None
    }

    fn is_identity(&self, inputs: &[Option<Fact>], _result: &Fact) -> bool {
        let pads = optional(inputs, 1).and_then(Fact::elements_as_integers);
        pads.is_some_and(|pads| pads.iter().all(|&pad| pad == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{contents, first, floats, infer, inferred, iota, run, vector};
    use crate::tensor::Tensor;

    fn padded(mode: PadMode, count: usize, begin: i64, end: i64) -> Vec<f32> {
        let result = first(&Pad { mode }, &[&iota(&[count]), &Tensor::vector_i64(&[begin, end])]);
        result.elements::<f32>().unwrap().to_vec()
    }

    #[test]
    fn modes_fill_as_numpy_does() {
        assert_eq!(padded(PadMode::Constant, 3, 1, 2), [0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
        assert_eq!(padded(PadMode::Edge, 3, 1, 2), [0.0, 0.0, 1.0, 2.0, 2.0, 2.0]);
        assert_eq!(padded(PadMode::Reflect, 3, 2, 2), [2.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0]);
        assert_eq!(padded(PadMode::Reflect, 3, 5, 1), [1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 1.0, 2.0, 1.0]);
        assert_eq!(padded(PadMode::Reflect, 1, 1, 1), [0.0, 0.0, 0.0]);
        assert_eq!(padded(PadMode::Wrap, 3, 4, 1), [2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0]);
    }

    #[test]
    fn what_negative_pads_remove_does_not_come_back() {
        assert_eq!(padded(PadMode::Reflect, 6, -2, 3), [2.0, 3.0, 4.0, 5.0, 4.0, 3.0, 2.0]);
        assert_eq!(padded(PadMode::Wrap, 6, -2, 3), [2.0, 3.0, 4.0, 5.0, 2.0, 3.0, 4.0]);
        assert_eq!(padded(PadMode::Constant, 6, -8, 4), [0.0, 0.0]);
        assert_eq!(padded(PadMode::Constant, 4, 1, -2), [0.0, 0.0, 1.0]);
        let pads = |begin, end| Some(Tensor::vector_i64(&[begin, end]));
        assert_eq!(
            run(&Pad { mode: PadMode::Constant }, &[Some(iota(&[6])), pads(-4, -4)]).unwrap_err().to_string(),
            "a padded extent is -2, expected 0 to 2^63 - 1"
        );
        assert_eq!(
            run(&Pad { mode: PadMode::Edge }, &[Some(iota(&[0])), pads(1, 1)]).unwrap_err().to_string(),
            "shape of operand 0 is [0], expected elements that padding in mode edge can repeat"
        );
        assert_eq!(
            run(&Pad { mode: PadMode::Constant }, &[Some(iota(&[6])), pads(i64::MAX, i64::MAX)])
                .unwrap_err()
                .to_string(),
            "a padded extent is 18446744073709551620, expected 0 to 2^63 - 1"
        );
    }

    #[test]
    fn the_value_fills_chosen_axes() {
        let inputs = [
            Some(iota(&[1, 2])),
            Some(Tensor::vector_i64(&[1, 0])),
            Some(Tensor::from_elements(&[], &[7f32]).unwrap()),
            Some(Tensor::vector_i64(&[-1])),
        ];
        let result = run(&Pad { mode: PadMode::Constant }, &inputs).unwrap().remove(0);
        assert_eq!(result.elements::<f32>().unwrap(), [7.0, 0.0, 1.0]);
    }

    #[test]
    fn extents_grow() {
        let pad = Pad { mode: PadMode::Constant };
        assert_eq!(inferred(&pad, &[floats("n, 3"), vector(&[1, 0, 2, 0])]), "f32[n + 3, 3]");
        assert_eq!(
            inferred(&pad, &[floats("n"), contents("0, 31 - mod(n + 31, 32)")]),
            "f32[n - mod(n + 31, 32) + 31]"
        );
        assert_eq!(infer(&pad, &[Some(floats("n")), Some(vector(&[-1, 0]))]).unwrap().1, ["0 at_most n - 1"]);
        assert!(inferred(&pad, &[floats("3"), vector(&[-4, 0])]).contains("expected 0 and more"));
        assert!(inferred(&pad, &[floats("3"), vector(&[1])]).contains("expected 2"));
    }
}
