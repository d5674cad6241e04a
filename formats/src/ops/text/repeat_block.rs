//! Scores without repetition: `NGramRepeatBlock` of `com.microsoft`.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::windows::value_error;
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    integers, loops, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Scores of a next token, minus infinity where it would repeat a run of `length` tokens: `tokens: i64 [n, t]`,
    /// `scores: f32 [n, v]` to `[n, v]`.
    pub struct RepeatBlock revision 1 {
        /// Tokens of a run that may not occur twice.
        1 since 1 => length: i64,
    }
}

impl RepeatBlock {
    fn length(&self) -> Result<usize, TypeError> {
        let length = usize::try_from(self.length).ok().filter(|&length| length > 0);
        length.ok_or_else(|| value_error("`length`", self.length, "at least 1"))
    }
}

fn require(operand: usize, found: DType, expected: DType) -> Result<(), TypeError> {
    if found == expected {
        return Ok(());
    }
    Err(TypeError::ElementType { operand, expected: expected.to_string(), found })
}

/// Rows of both operands.
fn rows<T: Clone>(operand: usize, dims: &[T]) -> Result<[T; 2], TypeError> {
    let found = dims.len();
    let [rows, columns] = dims else {
        return Err(TypeError::Rank { operand, expected: "2".to_string(), found });
    };
    Ok([rows.clone(), columns.clone()])
}

impl Operator for RepeatBlock {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (token_type, tokens) = tensor_operand(inputs, 0)?;
        let (dtype, scores) = tensor_operand(inputs, 1)?;
        require(0, token_type, DType::I64)?;
        require(1, dtype, DType::F32)?;
        self.length()?;
        if let Some(dims) = tokens.dims() {
            let [batch, _] = rows(0, dims)?;
            if let Some(dims) = scores.dims() {
                let [scored, _] = rows(1, dims)?;
                context.require_equal(&batch, &scored, "rows of tokens and of scores")?;
            }
        }
        Ok(vec![Fact::tensor(dtype, scores.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (tokens, scores) = (integers(inputs, 0)?, tensor(inputs, 1)?);
        let length = self.length()?;
        let [batch, steps] = rows(0, tensor(inputs, 0)?.shape())?;
        let [scored, vocabulary] = rows(1, scores.shape())?;
        if batch != scored {
            let (left, right) = (batch.to_string(), scored.to_string());
            return Err(
                TypeError::Dimension { subject: "rows of tokens and of scores".to_string(), left, right }.into()
            );
        }
        let mut blocked = scores.elements::<f32>()?.to_vec();
        for row in 0..batch {
            let tokens = &tokens[row * steps..][..steps];
            let Some(last) = (steps + 1).checked_sub(length).map(|start| &tokens[start..]) else { continue };
            for run in tokens.windows(length).filter(|run| run[..length - 1] == *last) {
                let repeated = usize::try_from(run[length - 1]).ok().filter(|&token| token < vocabulary);
                // ONNX Runtime fails for tokens that have no score.
                let token = repeated.ok_or_else(|| value_error("a token", run[length - 1], "one that has a score"))?;
                blocked[row * vocabulary + token] = f32::NEG_INFINITY;
            }
        }
        Ok(vec![Tensor::from_elements(scores.shape(), &blocked)?.into()])
    }
}

impl Computes for RepeatBlock {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let Some([rows, vocabulary]) = facts.result(0) else { return loops::serial(facts) };
        let nest = loops::Loops::new(facts)
            .parallel(rows, [loops::operand(0, 0), loops::operand(1, 0), loops::result(0, 0)])
            .parallel(vocabulary, [loops::operand(1, 1), loops::result(0, 1)]);
        vec![nest.space()]
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, self.length.max(1))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;

    #[test]
    fn what_would_repeat_a_run_is_blocked() {
        let block = |length: i64, tokens: &[i64]| {
            let tokens = Tensor::from_elements(&[1, tokens.len()], tokens).unwrap();
            let scores = Tensor::from_elements(&[1, 4], &[0.5f32, 1.0, 2.0, 3.0]).unwrap();
            run(&RepeatBlock { length }, &[tokens, scores]).map(|scores| {
                scores.elements::<f32>().unwrap().iter().map(|score| score.is_infinite()).collect::<Vec<bool>>()
            })
        };
        assert_eq!(block(2, &[1, 2, 3, 1, 0, 1]).unwrap(), [true, false, true, false]);
        assert_eq!(block(3, &[1, 2, 3, 1, 2]).unwrap(), [false, false, false, true]);
        assert_eq!(block(1, &[2, 2]).unwrap(), [false, false, true, false]);
        assert_eq!(block(4, &[1, 2]).unwrap(), [false; 4]);
        assert_eq!(block(2, &[1, 9, 1]).unwrap_err().to_string(), "a token is 9, expected one that has a score");
    }
}
