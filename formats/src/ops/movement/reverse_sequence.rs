//! Sequences of a batch, each reversed up to its length: ONNX `ReverseSequence` (opsets 10, 28).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::Fact;
use crate::ops::movement::moving::{count_mismatch, flat, follow, integer_vector, moved};
use crate::ops::{
    AxisKind, InferContext, Moves, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, integers,
    loops, normalize_axis, tensor, tensor_operand,
};
use crate::tensor::strides;
use crate::value::Value;

attributes! {
    /// `x: [.., batch, .., time, ..]`, `lengths: [batch]` (i64): the first `lengths[i]` positions of time reversed, the
    /// others as they are.
    pub struct ReverseSequence revision 1 {
        /// Axis of the batch.
        1 since 1 => batch_axis: i64,
        /// Axis of time; another one.
        2 since 1 => time_axis: i64,
    }
}

impl ReverseSequence {
    /// Axis of the batch, and of time.
    ///
    /// # Errors
    /// [`TypeError`] for axes outside of the rank, or twice the same.
    pub fn axes(&self, rank: usize) -> Result<(usize, usize), TypeError> {
        let (batch, time) = (normalize_axis(self.batch_axis, rank)?, normalize_axis(self.time_axis, rank)?);
        if batch != time {
            return Ok((batch, time));
        }
        let (subject, expected) = ("axis of time".to_string(), "another than that of the batch".to_string());
        Err(TypeError::Value { subject, found: self.time_axis.to_string(), expected })
    }
}

impl Operator for ReverseSequence {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let lengths = integer_vector(inputs, 1)?;
        let mut result = shape.clone();
        if let Some(dims) = shape.dims() {
            let (batch, _) = self.axes(dims.len())?;
            if let Some(count) = lengths.length {
                let mut dims = dims.to_vec();
                dims[batch] = context.require_equal(&dims[batch], &Dim::from(count), "number of lengths")?;
                result = dims.into();
            }
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
        let (batch, time) = self.axes(data.rank())?;
        let lengths = integers(inputs, 1)?;
        if lengths.len() != data.shape()[batch] {
            return Err(count_mismatch(1, lengths.len(), data.shape()[batch]).into());
        }
        let steps = data.shape()[time];
        let in_range = |&length: &i64| usize::try_from(length).ok().filter(|&length| length <= steps);
        if let Some(&found) = lengths.iter().find(|length| in_range(length).is_none()) {
            let (subject, range) = ("a length".to_string(), format!("0 to {steps}"));
            return Err(ReferenceError::OutOfRange { subject, found, range });
        }
        let lengths: Vec<usize> = lengths.iter().filter_map(in_range).collect();
        let strides = strides(data.shape());
        let mut place = vec![0usize; data.rank()];
        let source = |at: &[usize]| {
            place.copy_from_slice(at);
            if at[time] < lengths[at[batch]] {
                place[time] = lengths[at[batch]] - 1 - at[time];
            }
            Some(flat(&place, &strides))
        };
        Ok(vec![moved(data, data.shape(), source)?.into()])
    }
}

impl Moves for ReverseSequence {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let rank = facts.dims(0).map_or(0, <[Dim]>::len);
        match (normalize_axis(self.batch_axis, rank), normalize_axis(self.time_axis, rank)) {
            (Ok(_), Ok(time)) => loops::along(facts, &[time], AxisKind::Serial, true),
            (Err(_), _) | (_, Err(_)) => loops::serial(facts),
        }
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
    use crate::ops::movement::moving::testing::{first, floats, inferred, iota, run, vector};
    use crate::tensor::Tensor;

    #[test]
    fn sequences_are_reversed_up_to_their_length() {
        let reverse = ReverseSequence { batch_axis: 1, time_axis: 0 };
        let result = first(&reverse, &[&iota(&[3, 2]), &Tensor::vector_i64(&[2, 3])]);
        assert_eq!(result.elements::<f32>().unwrap(), [2.0, 5.0, 0.0, 3.0, 4.0, 1.0]);
        assert_eq!(
            run(&reverse, &[Some(iota(&[3, 2])), Some(Tensor::vector_i64(&[4, 0]))]).unwrap_err().to_string(),
            "a length is 4, outside 0 to 3"
        );
        assert_eq!(
            run(&reverse, &[Some(iota(&[3, 2])), Some(Tensor::vector_i64(&[-1, 0]))]).unwrap_err().to_string(),
            "a length is -1, outside 0 to 3"
        );
        assert_eq!(
            run(&reverse, &[Some(iota(&[3, 2])), Some(Tensor::vector_i64(&[1]))]).unwrap_err().to_string(),
            "number of elements of operand 1 is 1, expected 2"
        );
        assert_eq!(inferred(&reverse, &[floats("t, b"), vector(&[1, 2])]), "f32[t, 2]");
        let same = ReverseSequence { batch_axis: 0, time_axis: -2 };
        assert!(inferred(&same, &[floats("t, b"), vector(&[1])]).contains("another"));
    }
}
