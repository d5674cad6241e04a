//! New keys or values behind those of a cache: the cache of `com.microsoft` `GroupQueryAttention`.
//!
//! Each of the batch has a length of its own. The cache grows by the new rows, or has room for them.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::attention::faults::rank;
use crate::ops::movement::moving::{index_operand, joined, only_integer, single_integer};
use crate::ops::scalar::is_number;
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, integers, loops,
    optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::tensor::room;
use crate::value::Value;

attributes! {
    /// Rows of `past: [b, h, p, d]` (absent: p = 0) before `first`, then the rows of `new: [b, h, s, d]`, then zeros:
    /// `[b, h, max(p, length), d]`.
    ///
    /// Operands: `past`, `new`, `first: [b]` (i64 or i32, rows of each of the batch that stay), `length` (i64 or i32, one
    /// element: at most p, where the cache has room, or p + s).
    pub struct CacheScatter revision 1 {}
}

/// The extents and places of one [`CacheScatter`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachePlan {
    /// `[b, h, max(p, length), d]`.
    pub shape: [usize; 4],
    /// p.
    pub past: usize,
    /// s.
    pub new: usize,
    /// Rows of each of the batch that stay: at most p, and with the new ones at most those of the result.
    pub first: Vec<usize>,
}

impl CacheScatter {
    fn check_types(inputs: &[Option<Fact>]) -> Result<DType, TypeError> {
        let (dtype, _) = tensor_operand(inputs, 1)?;
        if !is_number(dtype) || dtype.bits() < 8 {
            let expected = "a number type of at least 8 bits".to_string();
            return Err(TypeError::ElementType { operand: 1, expected, found: dtype });
        }
        if optional(inputs, 0).is_some() {
            let (found, _) = tensor_operand(inputs, 0)?;
            if found != dtype {
                return Err(TypeError::ElementType { operand: 0, expected: dtype.to_string(), found });
            }
        }
        Ok(dtype)
    }

    /// Where everything goes, checked.
    ///
    /// # Errors
    /// [`ReferenceError`] where operands do not fit, rows would lie outside of the cache, or it would have a gap.
    pub fn plan(&self, inputs: &[Option<Value>]) -> Result<CachePlan, ReferenceError> {
        let facts: Vec<Option<Fact>> = inputs.iter().map(|value| Some(Fact::of(value.as_ref()?.kind()))).collect();
        CacheScatter::check_types(&facts)?;
        let new = tensor(inputs, 1)?;
        let &[batch, heads, count, size] = new.shape() else { return Err(rank(1, 4, new.rank()).into()) };
        let past = match optional_tensor(inputs, 0)?.map(Tensor::shape) {
            None => 0,
            Some(&[own_batch, own_heads, past, own_size])
                if [own_batch, own_heads, own_size] == [batch, heads, size] =>
            {
                past
            }
            Some(found) => {
                let (left, right) = (format!("{found:?}"), format!("[{batch}, {heads}, _, {size}]"));
                return Err(TypeError::Dimension { subject: "rows of a cache".to_string(), left, right }.into());
            }
        };
        let outside = |subject: &str, found: i64, range: String| {
            Err(ReferenceError::OutOfRange { subject: subject.to_string(), found, range })
        };
        let (length, grown) = (only_integer(inputs, 3)?, past.saturating_add(count));
        let length = match usize::try_from(length) {
            Ok(length) if length <= past || length == grown => length.max(past),
            _ => return outside("length of a cache", length, format!("0 to {past}, or {grown}")),
        };
        let mut first = room(batch)?;
        let given = integers(inputs, 2)?;
        if given.len() != batch {
            let (left, right) = (given.len().to_string(), batch.to_string());
            return Err(TypeError::Dimension { subject: "batch of a cache".to_string(), left, right }.into());
        }
        for given in given {
            match usize::try_from(given) {
                Ok(rows) if rows <= past && rows <= length.saturating_sub(count) && count <= length => first.push(rows),
                _ => {
                    return outside(
                        "rows of a cache that stay",
                        given,
                        format!("0 to {past}, with {count} in {length}"),
                    );
                }
            }
        }
        Ok(CachePlan { shape: [batch, heads, length, size], past, new: count, first })
    }
}

impl Operator for CacheScatter {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let dtype = CacheScatter::check_types(inputs)?;
        let length = single_integer(inputs, 3)?;
        let (_, new) = tensor_operand(inputs, 1)?;
        let first = index_operand(inputs, 2)?.dims();
        let Some(dims) = new.dims() else { return Ok(vec![Fact::tensor(dtype, Shape::Unranked)]) };
        let [batch, heads, _, size] = dims else { return Err(rank(1, 4, dims.len())) };
        let past = match optional(inputs, 0).map(Fact::dims) {
            None => Some(Dim::ZERO),
            Some(None) => None,
            Some(Some([own_batch, own_heads, past, own_size])) => {
                for (own, wanted) in [(own_batch, batch), (own_heads, heads), (own_size, size)] {
                    context.require_equal(own, wanted, "rows of a cache")?;
                }
                Some(past.clone())
            }
            Some(Some(dims)) => return Err(rank(0, 4, dims.len())),
        };
        if let Some(first) = first {
            let [count] = first else { return Err(rank(2, 1, first.len())) };
            context.require_equal(count, batch, "batch of a cache")?;
        }
        let extent = match (past, length) {
            (Some(past), Some(length)) => Dim::max(&past, &length).simplify(context.ranges),
            (None, _) | (_, None) => context.fresh("length"),
        };
        let extent = if extent.is_refused() { context.fresh("length") } else { extent };
        Ok(vec![Fact::tensor(dtype, vec![batch.clone(), heads.clone(), extent, size.clone()])])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let plan = self.plan(inputs)?;
        let new = tensor(inputs, 1)?;
        let [batch, heads, length, size] = plan.shape;
        let empty = Tensor::zeros(new.dtype(), &[batch, heads, 0, size])?;
        let past = optional_tensor(inputs, 0)?.unwrap_or(&empty);
        let source = |index: usize| {
            let (rest, inside) = (index / size, index % size);
            let (head, row) = (rest / length, rest % length);
            let first = plan.first[head / heads];
            if row < first {
                Some((head * plan.past + row) * size + inside)
            } else if row < first + plan.new {
                Some(past.count() + (head * plan.new + row - first) * size + inside)
            } else {
                None
            }
        };
        let count = Tensor::zeros(new.dtype(), &plan.shape)?.count();
        Ok(vec![joined(past, new, 1)?.select(&plan.shape, (0..count).map(source))?.into()])
    }
}

impl Moves for CacheScatter {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        // Heads of each of the batch are independent; which rows are taken depends on data.
        let rest = facts.result(0).map_or(Dim::ZERO, |dims| Dim::product(dims.get(2..).unwrap_or(&[])));
        loops::leading(facts, 2, &rest)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::movement::moving::testing::{dims, floats, infer, run};

    fn cache(past: Option<usize>, new: usize, first: &[i64], length: i64) -> Result<Vec<f32>, ReferenceError> {
        let rows = |count: usize, from: f32| {
            let values: Vec<f32> = (0..2 * count).map(|value| from + value as f32).collect();
            Tensor::from_elements(&[2, 1, count, 1], &values).unwrap()
        };
        let past = past.map(|past| rows(past, 1.0));
        let inputs =
            [past, Some(rows(new, 10.0)), Some(Tensor::vector_i64(first)), Some(Tensor::vector_i64(&[length]))];
        Ok(run(&CacheScatter {}, &inputs)?[0].elements::<f32>().unwrap().to_vec())
    }

    #[test]
    fn new_rows_follow_those_that_stay() {
        assert_eq!(cache(None, 2, &[0, 0], 2).unwrap(), [10.0, 11.0, 12.0, 13.0]);
        assert_eq!(cache(Some(2), 1, &[2, 1], 3).unwrap(), [1.0, 2.0, 10.0, 3.0, 11.0, 0.0]);
        assert_eq!(cache(Some(3), 1, &[2, 0], 3).unwrap(), [1.0, 2.0, 10.0, 11.0, 0.0, 0.0]);
        assert_eq!(cache(Some(3), 1, &[0, 0], 1).unwrap(), [10.0, 0.0, 0.0, 11.0, 0.0, 0.0]);
    }

    #[test]
    fn rows_outside_and_gaps_are_refused() {
        let refused = |result: Result<Vec<f32>, ReferenceError>| match result {
            Err(ReferenceError::OutOfRange { subject, found, .. }) => (subject, found),
            other => panic!("{other:?}"),
        };
        for (result, found) in
            [(cache(Some(2), 1, &[2, 2], 4), 4), (cache(Some(2), 1, &[2, 2], -1), -1), (cache(None, 1, &[0, 0], 2), 2)]
        {
            assert_eq!(refused(result), ("length of a cache".to_string(), found));
        }
        for (result, found) in [
            (cache(Some(2), 1, &[2, 2], 2), 2),
            (cache(Some(2), 1, &[1, -1], 2), -1),
            (cache(Some(2), 3, &[0, 0], 2), 0),
            (cache(Some(2), 1, &[0, 3], 3), 3),
        ] {
            assert_eq!(refused(result), ("rows of a cache that stay".to_string(), found));
        }
        assert!(matches!(
            cache(Some(2), 1, &[0], 2),
            Err(ReferenceError::Type(TypeError::Dimension { left, right, .. })) if (left.as_str(), right.as_str()) == ("1", "2")
        ));
    }

    #[test]
    fn the_length_follows_its_operand() {
        let length = |length: Fact| {
            let inputs = [floats("b, 2, p, 8"), floats("b, 2, s, 8"), Fact::tensor(DType::I64, dims("b")), length];
            infer(&CacheScatter {}, &inputs.map(Some)).unwrap().0[0].kind.to_string()
        };
        let total = Fact::of_dims(DType::I64, vec![], vec![Dim::symbol("total")]);
        assert_eq!(length(total), "f32[b, 2, max(p, total), 8]");
        assert_eq!(length(Fact::tensor(DType::I32, dims("1"))), "f32[b, 2, step.length, 8]");
    }
}
