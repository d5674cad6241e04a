//! Consecutive positions written into a cache: ONNX `TensorScatter` (opset 24).

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::Dim;
use crate::fact::Fact;
use crate::ops::movement::moving::{count_mismatch, follow, integer_vector, joined};
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Relation, Space, StepFacts, TypeError, integers,
    loops, normalize_axis, optional, tensor, tensor_operand,
};
use crate::tensor::element_count;
use crate::value::Value;

attributes! {
    /// `cache: [batch, .., capacity, ..]` with `update: [batch, .., length, ..]` from position `starts: [batch]` (i64;
    /// absent: 0) of the axis on.
    pub struct TensorScatter revision 1 {
        /// The axis of capacity and length; not the first.
        1 since 1 => axis: i64,
        /// Where positions beyond the capacity go.
        2 since 1 => mode: CacheMode,
    }
}

/// Modes of [`TensorScatter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum CacheMode {
    /// There are none.
    Linear,
    /// To the front again.
    Circular,
}
impl Keyword for CacheMode {}

impl TensorScatter {
    /// The axis counted from the front.
    ///
    /// # Errors
    /// [`TypeError::Axis`] for one outside the rank, or the first.
    pub fn cache_axis(&self, rank: usize) -> Result<usize, TypeError> {
        match normalize_axis(self.axis, rank)? {
            0 => Err(TypeError::Axis { axis: self.axis, rank }),
            axis => Ok(axis),
        }
    }

    /// The position of one update in the cache.
    ///
    /// # Errors
    /// [`ReferenceError::OutOfRange`] where it is outside.
    pub fn position(&self, start: i64, at: usize, capacity: usize) -> Result<usize, ReferenceError> {
        let position = i128::from(start) + at as i128;
        let position = match self.mode {
            CacheMode::Linear => position,
            CacheMode::Circular => position.rem_euclid((capacity as i128).max(1)),
        };
        usize::try_from(position).ok().filter(|&position| position < capacity).ok_or_else(|| {
            let (subject, range) = ("a position of the cache".to_string(), format!("0 to {capacity} - 1"));
            ReferenceError::OutOfRange { subject, found: i64::try_from(position).unwrap_or(i64::MAX), range }
        })
    }

    /// The positions that the update among these operands goes to in a cache of this shape, `[.., length]` with the axes before
    /// that of the capacity.
    ///
    /// # Errors
    /// [`ReferenceError`] where one is outside of the cache, or the update or the number of starts does not fit.
    pub fn places(&self, cache: &[usize], inputs: &[Option<Value>]) -> Result<Vec<usize>, ReferenceError> {
        let update = tensor(inputs, 1)?.shape();
        let starts = match inputs.get(2) {
            Some(Some(_)) => Some(integers(inputs, 2)?),
            Some(None) | None => None,
        };
        if cache.len() != update.len() {
            return Err(TypeError::Rank { operand: 1, expected: cache.len().to_string(), found: update.len() }.into());
        }
        let axis = self.cache_axis(cache.len())?;
        if (0..cache.len()).any(|at| at != axis && cache[at] != update[at]) {
            let (left, right) = (format!("{cache:?}"), format!("{update:?}"));
            return Err(TypeError::Dimension { subject: "update of the cache".to_string(), left, right }.into());
        }
        let batch = cache[0];
        if let Some(starts) = starts.as_ref().filter(|starts| starts.len() != batch) {
            return Err(count_mismatch(2, starts.len(), batch).into());
        }
        let outer = element_count(&cache[..axis]).unwrap_or(0);
        let mut places = Vec::new();
        for prefix in 0..outer {
            // Every batch element has the same number of prefixes.
            let start = starts.as_ref().map_or(0, |starts| starts[prefix / (outer / batch)]);
            for at in 0..update[axis] {
                places.push(self.position(start, at, cache[axis])?);
            }
        }
        Ok(places)
    }
}

impl Operator for TensorScatter {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, cache) = tensor_operand(inputs, 0)?;
        let (found, update) = tensor_operand(inputs, 1)?;
        if found != dtype {
            return Err(TypeError::ElementType { operand: 1, expected: dtype.to_string(), found });
        }
        if let Some(rank) = cache.rank().or(update.rank()) {
            self.cache_axis(rank)?;
        }
        let mut result = cache.clone();
        if let (Some(cache), Some(update)) = (cache.dims(), update.dims()) {
            if cache.len() != update.len() {
                return Err(TypeError::Rank { operand: 1, expected: cache.len().to_string(), found: update.len() });
            }
            let axis = self.cache_axis(cache.len())?;
            let mut dims = cache.to_vec();
            for (at, (own, new)) in cache.iter().zip(update).enumerate() {
                if at != axis {
                    dims[at] = context.require_equal(own, new, &format!("extent of axis {at}"))?;
                } else {
                    at_most(new, own, context)?;
                }
            }
            result = dims.into();
        }
        if optional(inputs, 2).is_some() {
            let starts = integer_vector(inputs, 2)?;
            if let (Some(count), Some(batch)) = (starts.length, cache.dims().and_then(<[Dim]>::first)) {
                context.require_equal(&Dim::from(count), batch, "number of write indices")?;
            }
        }
        let mut results = vec![Fact::tensor(dtype, result)];
        follow(self, inputs, &[0, 1], &mut results);
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (cache, update) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let places = self.places(cache.shape(), inputs)?;
        let both = joined(cache, update, 1)?;
        let mut sources: Vec<Option<usize>> = (0..cache.count()).map(Some).collect();
        let axis = self.cache_axis(cache.rank())?;
        let (capacity, length) = (cache.shape()[axis], update.shape()[axis]);
        let inner = element_count(&cache.shape()[axis + 1..]).unwrap_or(0);
        for (row, position) in places.into_iter().enumerate() {
            for element in 0..inner {
                let target = (row / length * capacity + position) * inner + element;
                sources[target] = Some(cache.count() + row * inner + element);
            }
        }
        Ok(vec![both.select(cache.shape(), sources.into_iter())?.into()])
    }
}

impl Moves for TensorScatter {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let rest = facts.dims(0).map_or(Dim::ZERO, |dims| Dim::product(dims.get(1..).unwrap_or(&[])));
        loops::leading(facts, 1, &rest)
    }

    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.copied_bytes()
    }

    fn view_of(&self) -> Option<usize> {
        None
    }

    fn is_identity(&self, _inputs: &[Option<Fact>], _result: &Fact) -> bool {
        false
    }
}

fn at_most(length: &Dim, capacity: &Dim, context: &mut InferContext<'_>) -> Result<(), TypeError> {
    match crate::dim::at_least(capacity, length, context.ranges) {
        Some(true) => {}
        Some(false) => {
            let (left, right) = (length.to_string(), capacity.to_string());
            return Err(TypeError::Dimension { subject: "length of the update".to_string(), left, right });
        }
        None => context.oblige(Relation::AtMost, length, capacity, "length of the update"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ops::movement::moving::testing::{dims, floats, infer, iota, run};
    use crate::tensor::Tensor;

    fn written(mode: CacheMode, starts: Option<&[i64]>) -> Result<Vec<f32>, ReferenceError> {
        let cache = Tensor::from_elements(&[2, 3, 1], &[-1f32; 6]).unwrap();
        let inputs = [Some(cache), Some(iota(&[2, 2, 1])), starts.map(Tensor::vector_i64)];
        let results = run(&TensorScatter { axis: 1, mode }, &inputs)?;
        Ok(results[0].elements::<f32>().unwrap().to_vec())
    }

    #[test]
    fn updates_go_where_the_starts_say() {
        assert_eq!(written(CacheMode::Linear, None).unwrap(), [0.0, 1.0, -1.0, 2.0, 3.0, -1.0]);
        assert_eq!(written(CacheMode::Linear, Some(&[0, 1])).unwrap(), [0.0, 1.0, -1.0, -1.0, 2.0, 3.0]);
        assert_eq!(written(CacheMode::Circular, Some(&[2, 4])).unwrap(), [1.0, -1.0, 0.0, -1.0, 2.0, 3.0]);
        assert_eq!(
            written(CacheMode::Linear, Some(&[0, 2])).unwrap_err().to_string(),
            "a position of the cache is 3, outside 0 to 3 - 1"
        );
        assert_eq!(
            written(CacheMode::Linear, Some(&[0])).unwrap_err().to_string(),
            "number of elements of operand 2 is 1, expected 2"
        );
    }

    #[test]
    fn updates_are_at_most_as_long_as_the_cache() {
        let scatter = TensorScatter { axis: -2, mode: CacheMode::Linear };
        let starts = Fact::tensor(DType::I64, dims("b"));
        let inputs = [floats("b, 8, capacity, 64"), floats("b, 8, seq, 64"), starts].map(Some);
        let (facts, obligations) = infer(&scatter, &inputs).unwrap();
        assert_eq!(facts[0].kind.to_string(), "f32[b, 8, capacity, 64]");
        assert_eq!(obligations, ["seq at_most capacity"]);
        let first = TensorScatter { axis: 0, mode: CacheMode::Linear };
        assert_eq!(
            infer(&first, &[Some(floats("b, 4")), Some(floats("b, 4"))]).unwrap_err().to_string(),
            "axis 0 is outside a tensor of rank 2"
        );
    }
}
