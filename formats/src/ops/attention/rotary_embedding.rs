//! Rotation of pairs of elements by their position: ONNX `RotaryEmbedding` (opset 23).
//!
//! f16 and bf16 are rounded after each operator of the function body.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::attention::faults::{heads_needed, uneven};
use crate::ops::floats::{narrowed, require_computing_float, rounded_step, widened};
use crate::ops::{
    AxisKind, Computes, InferContext, Operator, ReferenceContext, ReferenceError, Relation, Space, StepFacts,
    TypeError, VectorClass, each, integers, loops, optional, optional_tensor, tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// Rotates the first `r` elements of each head: `x: [b, h, s, d]` or `[b, s, h*d]`, `cos`, `sin: [b, s, r/2]`, or
    /// `[positions, r/2]` with `position: [b, s]` (i64), to the shape of `x`.
    pub struct RotaryEmbedding revision 1 {
        /// Pairs are neighbours; else element `i` is paired with `i + r/2`.
        1 since 1 => interleaved: bool,
        /// `r`; absent: the whole head.
        2 since 1 => rotated: Option<i64>,
        /// `h`; needed for three axes.
        3 since 1 => heads: Option<i64>,
    }
}

impl RotaryEmbedding {
    fn check_types(&self, inputs: &[Option<Fact>]) -> Result<DType, TypeError> {
        let (dtype, _) = tensor_operand(inputs, 0)?;
        require_computing_float(dtype, 0)?;
        for operand in [1, 2] {
            let (found, _) = tensor_operand(inputs, operand)?;
            if found != dtype {
                return Err(TypeError::ElementType { operand, expected: dtype.to_string(), found });
            }
        }
        if optional(inputs, 3).is_some() {
            let (found, _) = tensor_operand(inputs, 3)?;
            if !matches!(found, DType::I64 | DType::I32) {
                return Err(TypeError::ElementType { operand: 3, expected: "i64".to_string(), found });
            }
        }
        match self.rotated {
            Some(rotated) if rotated < 0 || rotated % 2 != 0 => {
                Err(uneven("number of rotated elements", &rotated.to_string(), "2"))
            }
            Some(_) | None => Ok(dtype),
        }
    }

    /// Batch, steps and head size.
    fn parts(&self, dims: &[Dim], context: &mut InferContext<'_>) -> Result<[Dim; 3], TypeError> {
        match (dims, self.heads) {
            ([batch, heads, steps, size], stated) => {
                if let Some(stated) = stated {
                    context.require_equal(heads, &Dim::known(stated), "number of heads")?;
                }
                Ok([batch.clone(), steps.clone(), size.clone()])
            }
            ([batch, steps, hidden], Some(heads)) if heads > 0 => {
                let heads = Dim::known(heads);
                match hidden.modulo(&heads).as_known() {
                    Some(0) => {}
                    Some(_) => return Err(uneven("hidden size", &hidden.to_string(), &heads.to_string())),
                    None => context.oblige(Relation::Multiple, hidden, &heads, "hidden size in heads"),
                }
                Ok([batch.clone(), steps.clone(), hidden.floor_div(&heads)])
            }
            ([_, _, _], _) => Err(heads_needed(0)),
            _ => Err(TypeError::Rank { operand: 0, expected: "3 or 4".to_string(), found: dims.len() }),
        }
    }
}

impl Operator for RotaryEmbedding {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let dtype = self.check_types(inputs)?;
        let (_, shape) = tensor_operand(inputs, 0)?;
        if let Shape::Ranked(dims) = shape {
            let [batch, steps, size] = self.parts(dims, context)?;
            let rotated = self.rotated.map_or(size, Dim::known);
            let half = rotated.floor_div(&Dim::known(2));
            let position = optional(inputs, 3);
            for operand in [1, 2] {
                let Some(found) = optional(inputs, operand).and_then(Fact::dims) else { continue };
                let wanted = match position {
                    None => vec![batch.clone(), steps.clone(), half.clone()],
                    Some(_) => vec![found.first().cloned().unwrap_or(Dim::ZERO), half.clone()],
                };
                require_dims(operand, found, &wanted, context)?;
            }
            if let Some(found) = position.and_then(Fact::dims) {
                require_dims(3, found, &[batch, steps], context)?;
            }
        }
        Ok(vec![Fact::tensor(dtype, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let plan = self.resolve(inputs)?;
        let (cos, sin) = (widened(tensor(inputs, 1)?)?, widened(tensor(inputs, 2)?)?);
        let values = widened(data)?;
        let mut results = values.clone();
        let round = |value| rounded_step(data.dtype(), value);
        for (head, start) in (0..values.len()).step_by(plan.size.max(1)).enumerate() {
            let angles = plan.angles(head);
            for pair in 0..plan.half {
                let (first, second) = plan.pair(pair);
                let (x, y) = (values[start + first], values[start + second]);
                let (cos, sin) = (cos[angles + pair], sin[angles + pair]);
                results[start + first] = round(cos * x) - round(sin * y);
                results[start + second] = round(sin * x) + round(cos * y);
            }
        }
        Ok(vec![narrowed(data.dtype(), data.shape(), &results)?.into()])
    }
}

/// The extents and places of one [`RotaryEmbedding`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RotaryPlan {
    heads: usize,
    steps: usize,
    /// Heads of a step lie side by side: `[b, s, h*d]`.
    flat: bool,
    interleaved: bool,
    /// For each of the batch and each step, the row of the caches.
    rows: Vec<usize>,
    /// Elements of a head.
    pub size: usize,
    /// Pairs of a head that are rotated.
    pub half: usize,
}

impl RotaryPlan {
    /// Where the angles of a head begin in the caches; heads are counted in the order in which they lie.
    ///
    /// # Panics
    /// If there are fewer heads.
    pub fn angles(&self, head: usize) -> usize {
        let row = match self.flat {
            true => head / self.heads,
            false => head / (self.heads * self.steps) * self.steps + head % self.steps,
        };
        self.rows[row] * self.half
    }

    /// The two elements of a pair of a head.
    #[inline(always)]
    pub fn pair(&self, pair: usize) -> (usize, usize) {
        match self.interleaved {
            true => (2 * pair, 2 * pair + 1),
            false => (pair, pair + self.half),
        }
    }
}

impl RotaryEmbedding {
    /// The extents and places for these operands, checked.
    ///
    /// # Errors
    /// [`ReferenceError`] where operands do not fit, or a position is outside of the caches.
    pub fn resolve(&self, inputs: &[Option<Value>]) -> Result<RotaryPlan, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let facts: Vec<Option<Fact>> = inputs.iter().map(|value| Some(Fact::of(value.as_ref()?.kind()))).collect();
        self.check_types(&facts)?;
        let stated = self.heads.map(|heads| usize::try_from(heads).unwrap_or(usize::MAX)).filter(|heads| *heads > 0);
        let (batch, heads, steps, size) = match (data.shape(), stated) {
            (&[batch, heads, steps, size], None) => (batch, heads, steps, size),
            (&[batch, heads, steps, size], Some(stated)) if stated == heads => (batch, heads, steps, size),
            (&[batch, steps, hidden], Some(heads)) if hidden % heads == 0 => (batch, heads, steps, hidden / heads),
            (found, _) => return Err(TypeError::Unsupported(format!("rotation of {found:?} in these heads")).into()),
        };
        let rotated = self.rotated.map_or(size, |rotated| usize::try_from(rotated).unwrap_or(usize::MAX));
        if rotated > size || !rotated.is_multiple_of(2) {
            return Err(uneven("number of rotated elements", &rotated.to_string(), "2 within the head").into());
        }
        let half = rotated / 2;
        let rows = self.rows(inputs, [batch, steps, half])?;
        let (flat, interleaved) = (data.rank() == 3, self.interleaved);
        Ok(RotaryPlan { heads, steps, flat, interleaved, rows, size, half })
    }
}

impl Computes for RotaryEmbedding {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        // A head is rotated in pairs, with a row of the caches for each batch and step, or for each position.
        let direct = facts.operand(3).is_none();
        let rows = |own: usize, axis: usize| {
            let caches = [1, 2].into_iter().filter(|_| direct).map(move |cache| loops::operand(cache, axis));
            let positions = (!direct).then(|| loops::operand(3, axis));
            caches.chain(positions).chain([loops::operand(0, own), loops::result(0, own)]).collect::<Vec<_>>()
        };
        let nest = loops::Loops::new(facts);
        let nest = match facts.dims(0) {
            Some([batch, heads, steps, size]) => nest
                .parallel(batch, rows(0, 0))
                .parallel(heads, [loops::operand(0, 1), loops::result(0, 1)])
                .parallel(steps, rows(2, 1))
                .serial(size),
            Some([batch, steps, hidden]) => {
                let nest = nest.parallel(batch, rows(0, 0)).parallel(steps, rows(1, 1));
                let heads = self.heads.filter(|heads| *heads > 0);
                let size = hidden.as_known().zip(heads).map(|(hidden, heads)| hidden / heads);
                match heads.zip(size) {
                    Some((heads, size)) => {
                        let at =
                            |stride: i64| [loops::operand(0, 2).stride(stride), loops::result(0, 2).stride(stride)];
                        nest.parallel(&Dim::known(heads), at(size)).axis(AxisKind::Serial, &Dim::known(size), at(1))
                    }
                    None => nest.serial(hidden),
                }
            }
            Some(_) | None => return loops::serial(facts),
        };
        vec![nest.space()]
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 3)])
    }
}

impl RotaryEmbedding {
    /// The row of the caches for each of batch and step, checked.
    fn rows(&self, inputs: &[Option<Value>], [batch, steps, half]: [usize; 3]) -> Result<Vec<usize>, ReferenceError> {
        let (cos, sin) = (tensor(inputs, 1)?, tensor(inputs, 2)?);
        let Some(position) = optional_tensor(inputs, 3)? else {
            if cos.shape() != [batch, steps, half] || sin.shape() != cos.shape() {
                return Err(misfit("caches", cos.shape(), &[batch, steps, half]));
            }
            return Ok((0..batch.saturating_mul(steps)).collect());
        };
        let &[positions, found] = cos.shape() else { return Err(misfit("caches", cos.shape(), &[steps, half])) };
        if found != half || sin.shape() != cos.shape() {
            return Err(misfit("caches", sin.shape(), &[positions, half]));
        }
        if position.shape() != [batch, steps] {
            return Err(misfit("positions", position.shape(), &[batch, steps]));
        }
        let in_range = |found: i64| {
            let row = usize::try_from(found).ok().filter(|row| *row < positions);
            row.ok_or_else(|| ReferenceError::OutOfRange {
                subject: "position".to_string(),
                found,
                range: format!("0 to {positions}"),
            })
        };
        integers(inputs, 3)?.into_iter().map(in_range).collect()
    }
}

fn misfit(subject: &str, found: &[usize], wanted: &[usize]) -> ReferenceError {
    let (left, right) = (format!("{found:?}"), format!("{wanted:?}"));
    TypeError::Dimension { subject: format!("{subject} of a rotary embedding"), left, right }.into()
}

/// Require an operand to have these dimensions.
pub(crate) fn require_dims(
    operand: usize,
    found: &[Dim],
    wanted: &[Dim],
    context: &mut InferContext<'_>,
) -> Result<(), TypeError> {
    if found.len() != wanted.len() {
        return Err(TypeError::Rank { operand, expected: wanted.len().to_string(), found: found.len() });
    }
    for (left, right) in found.iter().zip(wanted) {
        context.require_equal(left, right, &format!("extent of operand {operand}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;
    use crate::ops::testing::run_optional;
    use crate::tensor::Tensor;

    fn floats(shape: &[usize], values: &[f32]) -> Option<Tensor> {
        Some(Tensor::from_elements(shape, values).unwrap())
    }

    fn run(operator: &RotaryEmbedding, inputs: &[Option<Tensor>]) -> Vec<f32> {
        run_optional(operator, inputs).unwrap().elements::<f32>().unwrap().to_vec()
    }

    #[test]
    fn a_quarter_turn_by_position() {
        let operator = |interleaved| RotaryEmbedding { interleaved, rotated: Some(2), heads: None };
        let inputs = [
            floats(&[1, 1, 2, 3], &[1.0, 2.0, 9.0, 1.0, 2.0, 9.0]),
            floats(&[2, 1], &[1.0, 0.0]),
            floats(&[2, 1], &[0.0, 1.0]),
            Some(Tensor::from_elements(&[1, 2], &[1i64, 0]).unwrap()),
        ];
        assert_eq!(run(&operator(true), &inputs), [-2.0, 1.0, 9.0, 1.0, 2.0, 9.0]);
        assert_eq!(run(&operator(false), &inputs), [-2.0, 1.0, 9.0, 1.0, 2.0, 9.0]);
        let outside = [
            inputs[0].clone(),
            inputs[1].clone(),
            inputs[2].clone(),
            Some(Tensor::from_elements(&[1, 2], &[2i64, 0]).unwrap()),
        ];
        assert!(matches!(run_optional(&operator(true), &outside), Err(ReferenceError::OutOfRange { found: 2, .. })));
    }

    #[test]
    fn halves_or_neighbours_of_flat_heads() {
        let inputs = [
            floats(&[1, 1, 4], &[1.0, 2.0, 3.0, 4.0]),
            floats(&[1, 1, 2], &[0.0, 0.0]),
            floats(&[1, 1, 2], &[1.0, 10.0]),
        ];
        let operator = |interleaved| RotaryEmbedding { interleaved, rotated: None, heads: Some(1) };
        assert_eq!(run(&operator(false), &inputs), [-3.0, -40.0, 1.0, 20.0]);
        assert_eq!(run(&operator(true), &inputs), [-2.0, 1.0, -40.0, 30.0]);
    }

    #[test]
    fn caches_must_fit() {
        let (ranges, mut blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("r", &ranges, &mut blocks);
        let fact = |dims: &[usize]| Some(Fact::tensor(DType::F32, Shape::known(dims)));
        let operator = RotaryEmbedding { interleaved: false, rotated: None, heads: Some(2) };
        let good = [fact(&[1, 3, 8]), fact(&[1, 3, 2]), fact(&[1, 3, 2])];
        assert_eq!(operator.infer(&good, &mut context).unwrap()[0].kind.to_string(), "f32[1, 3, 8]");
        assert_eq!(
            operator
                .infer(&[fact(&[1, 3, 8]), fact(&[1, 3, 4]), fact(&[1, 3, 4])], &mut context)
                .unwrap_err()
                .to_string(),
            "extent of operand 1: 4 does not fit 2"
        );
        let odd = RotaryEmbedding { rotated: Some(3), ..operator };
        assert_eq!(
            odd.infer(&good, &mut context).unwrap_err().to_string(),
            "number of rotated elements is 3, expected a multiple of 2"
        );
    }
}
