//! What a program means: each step over all elements.

use crate::dtype::DType;
use crate::ops::broadcast::{broadcast_strides, strided_indices};
use crate::ops::program::error::ProgramError;
use crate::ops::program::steps::{Argument, Program, constant};
use crate::ops::scalar::{Scalar, from_scalars, scalars};
use crate::ops::{ReferenceError, TypeError, tensor};
use crate::tensor::Tensor;
use crate::value::Value;
use std::borrow::Cow;

impl Program {
    /// The results, all of this shape. `input` has the type of the accumulators and their values in order.
    ///
    /// # Errors
    /// [`ReferenceError`] where the program is wrong for these operands, and for a division of integers by zero.
    pub fn evaluate(
        &self,
        input: Option<(DType, &[Scalar])>,
        shape: &[usize],
        inputs: &[Option<Value>],
    ) -> Result<Vec<Tensor>, ReferenceError> {
        let dtype_of = |operand: usize| inputs.get(operand)?.as_ref()?.as_tensor().map(Tensor::dtype);
        let types = self.check(input.map(|(dtype, _)| dtype), dtype_of).map_err(TypeError::from)?;
        let count = shape.iter().product();
        let mut computed: Vec<Vec<Scalar>> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let mut arguments = Vec::with_capacity(step.arguments.len());
            let mut first = step.to;
            for (index, argument) in step.arguments.iter().enumerate() {
                let (dtype, elements) = self.elements(*argument, input, shape, count, inputs, &computed)?;
                if index == 0 {
                    first = dtype;
                }
                arguments.push(elements);
            }
            let arguments: Vec<&[Scalar]> = arguments.iter().map(AsRef::as_ref).collect();
            let results = step.function.apply_all(first, &arguments, step.to)?;
            computed.push(results);
        }
        let result = |(argument, dtype): (&Argument, DType)| {
            let (_, elements) = self.elements(*argument, input, shape, count, inputs, &computed)?;
            from_scalars(dtype, shape, &elements)
        };
        self.results.iter().zip(types).map(result).collect()
    }

    /// The type and the elements of an argument of a program that was checked.
    fn elements<'a>(
        &self,
        argument: Argument,
        input: Option<(DType, &'a [Scalar])>,
        shape: &[usize],
        count: usize,
        inputs: &[Option<Value>],
        computed: &'a [Vec<Scalar>],
    ) -> Result<(DType, Cow<'a, [Scalar]>), ReferenceError> {
        let missing = || TypeError::from(ProgramError::NoAccumulator);
        Ok(match argument {
            Argument::Input => {
                let (dtype, elements) = input.ok_or_else(missing)?;
                (dtype, Cow::Borrowed(elements))
            }
            Argument::Step(step) => (self.steps[usize::from(step)].to, Cow::Borrowed(&computed[usize::from(step)])),
            Argument::Operand(operand) => {
                let tensor = tensor(inputs, operand.into())?;
                (tensor.dtype(), Cow::Owned(broadcast_operand(tensor, shape)?))
            }
            Argument::Constant(dtype, bits) => {
                let wrong = || TypeError::from(ProgramError::Constant { dtype, bits });
                (dtype, Cow::Owned(vec![constant(argument).ok_or_else(wrong)?; count]))
            }
        })
    }

    /// The result of a product: `sums` of the type `accumulator`, not rounded where they are floats. Without a program
    /// they are rounded to `own`.
    ///
    /// # Errors
    /// As [`Program::evaluate`].
    pub fn finish(
        &self,
        own: DType,
        accumulator: DType,
        sums: &[Scalar],
        shape: &[usize],
        inputs: &[Option<Value>],
    ) -> Result<Tensor, ReferenceError> {
        if self.is_empty() {
            return from_scalars(own, shape, sums);
        }
        // Sums of integers wrap in their type; those of floats are taken as they are.
        let sums = match accumulator.is_integer() {
            true => Cow::Owned(scalars(&from_scalars(accumulator, shape, sums)?)?),
            false => Cow::Borrowed(sums),
        };
        let mut results = self.evaluate(Some((accumulator, &sums)), shape, inputs)?;
        match (results.pop(), results.len()) {
            (Some(result), 0) => Ok(result),
            (_, rest) => Err(TypeError::from(ProgramError::Results { found: rest + 1, expected: "1" }).into()),
        }
    }

    /// The same over a result that is there as a tensor.
    ///
    /// # Errors
    /// As [`Program::evaluate`].
    pub fn apply_to(&self, result: Tensor, inputs: &[Option<Value>]) -> Result<Tensor, ReferenceError> {
        if self.is_empty() {
            return Ok(result);
        }
        self.finish(result.dtype(), result.dtype(), &scalars(&result)?, result.shape(), inputs)
    }
}

fn broadcast_operand(tensor: &Tensor, shape: &[usize]) -> Result<Vec<Scalar>, ReferenceError> {
    let offset = shape.len().checked_sub(tensor.rank());
    let fits = offset.is_some_and(|offset| {
        tensor.shape().iter().zip(&shape[offset..]).all(|(&from, &into)| from == 1 || from == into)
    });
    if !fits {
        return Err(TypeError::Dimension {
            subject: "operand of the program".to_string(),
            left: format!("{:?}", tensor.shape()),
            right: format!("{shape:?}"),
        }
        .into());
    }
    let elements = scalars(tensor)?;
    let indices = strided_indices(shape, &broadcast_strides(tensor.shape(), shape));
    Ok(indices.map(|index| elements[index]).collect())
}
