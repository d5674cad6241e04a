//! New elements behind those of a growing state: what `Concat` (opset 13) or the cache of `com.microsoft`
//! `GroupQueryAttention` become where their first operand is state.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::attention::row_scheme::RowScheme;
use crate::ops::movement::concat::joined_whole;
use crate::ops::movement::moving::{index_operand, only_integer};
use crate::ops::parts::concatenate;
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, integers, loops,
    optional, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// The elements of `past` and behind them those of `new`, joined along `axis`: `[.., p + s, ..]`.
    ///
    /// Operands: `past: [.., p, ..]`, `new: [.., s, ..]`, optional `first: [b]` (i64 or i32, each of which must be p),
    /// optional `length` (i64 or i32, one element, which must be p + s). The runtime appends in place where `past` is state.
    /// Rows of `new`, which are what follows the axis, are rounded as `rows` says; those of `past` are as they are.
    pub struct Append revision 1 {
        /// The axis that grows, from 0.
        1 since 1 => axis: i64,
        /// How rows of f32 are rounded; absent where they are not.
        2 since 1 => rows: Option<RowScheme>,
    }
}

impl Append {
    /// The axis among `rank`.
    ///
    /// # Errors
    /// [`TypeError::Rank`] where there are too few axes.
    pub fn checked_axis(&self, rank: usize) -> Result<usize, TypeError> {
        usize::try_from(self.axis).ok().filter(|&axis| axis < rank).ok_or_else(|| TypeError::Rank {
            operand: 0,
            expected: format!("more than {}", self.axis),
            found: rank,
        })
    }

    /// Check what `first` and `length` say against the extents that are joined.
    ///
    /// # Errors
    /// [`ReferenceError::OutOfRange`] where they place the new elements elsewhere than behind all of the past.
    pub fn check_places(&self, inputs: &[Option<Value>], past: usize, new: usize) -> Result<(), ReferenceError> {
        let placed = |subject: &str, found: i64, expected: usize| {
            if usize::try_from(found).ok() == Some(expected) {
                return Ok(());
            }
            let range = format!("{expected}, since state grows at its end only");
            Err(ReferenceError::OutOfRange { subject: subject.to_string(), found, range })
        };
        if optional_tensor(inputs, 2)?.is_some() {
            for first in integers(inputs, 2)? {
                placed("position of new elements of a state", first, past)?;
            }
        }
        if optional_tensor(inputs, 3)?.is_some() {
            placed("length of a state", only_integer(inputs, 3)?, past.saturating_add(new))?;
        }
        Ok(())
    }

    /// New elements as they are stored.
    fn rounded(&self, new: &Tensor, axis: usize) -> Result<Tensor, ReferenceError> {
        let mut new = new.clone();
        if let Some(rows) = self.rows {
            let row = new.shape().iter().skip(axis + 1).product();
            rows.round(new.elements_mut()?, row);
        }
        Ok(new)
    }

    fn check_types(&self, inputs: &[Option<Fact>]) -> Result<DType, TypeError> {
        let (dtype, _) = tensor_operand(inputs, 0)?;
        let (found, _) = tensor_operand(inputs, 1)?;
        if found != dtype {
            return Err(TypeError::ElementType { operand: 1, expected: dtype.to_string(), found });
        }
        for operand in [2, 3] {
            if optional(inputs, operand).is_some() {
                index_operand(inputs, operand)?;
            }
        }
        if self.rows.is_some() && dtype != DType::F32 {
            return Err(TypeError::ElementType { operand: 0, expected: DType::F32.to_string(), found: dtype });
        }
        Ok(dtype)
    }
}

impl Operator for Append {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let dtype = self.check_types(inputs)?;
        let ((_, past), (_, new)) = (tensor_operand(inputs, 0)?, tensor_operand(inputs, 1)?);
        let (Some(past), Some(new)) = (past.dims(), new.dims()) else {
            return Ok(vec![Fact::tensor(dtype, Shape::Unranked)]);
        };
        let axis = self.checked_axis(past.len())?;
        if new.len() != past.len() {
            return Err(TypeError::Rank { operand: 1, expected: past.len().to_string(), found: new.len() });
        }
        let mut extents = Vec::with_capacity(past.len());
        for (at, (past, new)) in past.iter().zip(new).enumerate() {
            extents.push(match at == axis {
                true => past + new,
                false => context.require_equal(past, new, &format!("extent of axis {at}"))?,
            });
        }
        Ok(vec![Fact::tensor(dtype, Shape::Ranked(extents))])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (past, new) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        let axis = self.checked_axis(past.rank())?;
        let new = self.rounded(new, axis)?;
        let joined = concatenate(&[past, &new], axis)?.ok_or_else(|| TypeError::Dimension {
            subject: format!("state that grows along axis {axis}"),
            left: format!("{:?}", past.shape()),
            right: format!("{:?}", new.shape()),
        })?;
        self.check_places(inputs, past.shape()[axis], new.shape()[axis])?;
        Ok(vec![joined.into()])
    }
}

impl Moves for Append {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        match usize::try_from(self.axis) {
            // A row that is rounded is needed whole.
            Ok(axis) if self.rows.is_none() => joined_whole(facts, 2, axis),
            Ok(_) | Err(_) => loops::serial(facts),
        }
    }

    /// Only what is new moves.
    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.operand_bytes(1) * 2
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
    use crate::ops::movement::moving::testing::{dims, floats, infer, inferred, run};

    fn appended(first: Option<&[i64]>, length: Option<i64>) -> Result<Vec<f32>, ReferenceError> {
        let rows = |count: usize, from: f32| {
            let values: Vec<f32> = (0..2 * count).map(|value| from + value as f32).collect();
            Tensor::from_elements(&[2, count], &values).unwrap()
        };
        let length = length.map(|length| Tensor::vector_i64(&[length]));
        let inputs = [Some(rows(2, 1.0)), Some(rows(1, 10.0)), first.map(Tensor::vector_i64), length];
        Ok(run(&Append { axis: 1, rows: None }, &inputs)?[0].elements::<f32>().unwrap().to_vec())
    }

    #[test]
    fn new_elements_follow_those_of_the_past() {
        let expected = [1.0, 2.0, 10.0, 3.0, 4.0, 11.0];
        assert_eq!(appended(None, None).unwrap(), expected);
        assert_eq!(appended(Some(&[2, 2]), Some(3)).unwrap(), expected);
        for (result, expected) in [(appended(Some(&[2, 1]), Some(3)), 1), (appended(Some(&[2]), Some(4)), 4)] {
            assert!(matches!(result, Err(ReferenceError::OutOfRange { found, .. }) if found == expected), "{result:?}");
        }
    }

    #[test]
    fn what_is_new_is_rounded() {
        let past = Tensor::from_elements(&[1, 1, 2], &[0.3f32, 0.7]).unwrap();
        let new = Tensor::from_elements(&[1, 2, 2], &[127.0f32, 0.6, 0.0, -2.54]).unwrap();
        let append = Append { axis: 1, rows: Some(RowScheme::I8) };
        let joined = run(&append, &[Some(past), Some(new), None, None]).unwrap();
        assert_eq!(joined[0].elements::<f32>().unwrap(), [0.3, 0.7, 127.0, 1.0, 0.0, -2.54]);
        let integers = || Some(Fact::tensor(DType::I64, dims("1, 1, 2")));
        let refused = infer(&append, &[integers(), integers()]).unwrap_err();
        assert!(matches!(refused, TypeError::ElementType { operand: 0, found: DType::I64, .. }), "{refused}");
    }

    #[test]
    fn the_axis_grows_by_what_is_new() {
        let append = Append { axis: 1, rows: None };
        assert_eq!(inferred(&append, &[floats("b, past, 64"), floats("b, seq, 64")]), "f32[b, past + seq, 64]");
        let refused =
            |inputs: &[Fact]| infer(&append, &inputs.iter().cloned().map(Some).collect::<Vec<_>>()).unwrap_err();
        let floats_and_integers = [floats("2, p"), Fact::tensor(DType::I64, dims("2, 1"))];
        assert!(matches!(refused(&floats_and_integers), TypeError::ElementType { operand: 1, found: DType::I64, .. }));
        assert!(matches!(refused(&[floats("p"), floats("1")]), TypeError::Rank { operand: 0, found: 1, .. }));
        assert!(matches!(refused(&[floats("2, p"), floats("2, 1, 1")]), TypeError::Rank { operand: 1, found: 3, .. }));
        let wrong_place = [floats("2, p"), floats("2, 1"), floats("2")];
        assert!(matches!(refused(&wrong_place), TypeError::ElementType { operand: 2, .. }));
    }
}
