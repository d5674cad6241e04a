//! Programs, and their only check.

use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::broadcast::broadcast_shapes;
use crate::ops::program::error::ProgramError;
use crate::ops::program::function::{Function, is_element};
use crate::ops::scalar::{Scalar, scalar_of_bits};
use crate::ops::work::Cost;
use crate::ops::{InferContext, StepFacts, TypeError, tensor_operand};

/// Steps that a program may have.
pub const MOST_STEPS: usize = 1024;

/// Functions of elements in order, and which of their results are the program's.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Program {
    /// Each is assigned once.
    pub steps: Vec<ScalarStep>,
    /// The results.
    pub results: Vec<Argument>,
}

/// One function.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalarStep {
    /// The function.
    pub function: Function,
    /// What it is applied to.
    pub arguments: Vec<Argument>,
    /// The type that its result is rounded to.
    pub to: DType,
}

/// What a step reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Argument {
    /// The accumulator of a product.
    Input,
    /// The result of an earlier step.
    Step(u16),
    /// An operand of the step that the program belongs to, which broadcasts to the result.
    Operand(u16),
    /// A value of this type, given by its bits.
    Constant(DType, u64),
}

impl Argument {
    /// A constant of type f32.
    pub fn f32(value: f32) -> Argument {
        Argument::Constant(DType::F32, value.to_bits().into())
    }

    /// A constant of type i32.
    pub fn i32(value: i32) -> Argument {
        Argument::Constant(DType::I32, (value as u32).into())
    }
}

impl Program {
    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.results.is_empty()
    }

    /// The program of these steps whose result is that of the last one; `None` where there are no steps or too many.
    pub fn of_steps(steps: Vec<ScalarStep>) -> Option<Program> {
        let last = u16::try_from(steps.len()).ok()?.checked_sub(1)?;
        Some(Program { steps, results: vec![Argument::Step(last)] })
    }

    /// Add a step; gives what reads it.
    ///
    /// Beyond [`MOST_STEPS`] the argument is wrong; the check refuses such programs.
    pub fn push(&mut self, function: Function, arguments: Vec<Argument>, to: DType) -> Argument {
        self.steps.push(ScalarStep { function, arguments, to });
        Argument::Step(u16::try_from(self.steps.len() - 1).unwrap_or(u16::MAX))
    }

    /// All arguments of steps and results.
    pub fn arguments(&self) -> impl Iterator<Item = Argument> {
        self.steps.iter().flat_map(|step| step.arguments.iter().copied()).chain(self.results.iter().copied())
    }

    /// Indices of the operands that it reads, in order, repeated where read repeatedly.
    pub fn operands(&self) -> impl Iterator<Item = usize> {
        self.arguments().filter_map(|argument| match argument {
            Argument::Operand(operand) => Some(usize::from(operand)),
            Argument::Input | Argument::Step(_) | Argument::Constant(..) => None,
        })
    }

    /// Operations on each element in a step of these facts, where `accumulator` is the type that the program begins with.
    ///
    /// Where elements differ, what is the same for all of them is computed once, which is not counted. A cast to the type that
    /// an element has is no work.
    pub fn per_element(&self, accumulator: Option<DType>, facts: &StepFacts<'_>) -> Vec<Cost> {
        let differs = |argument: Argument| match argument {
            Argument::Input => true,
            Argument::Operand(operand) => facts.elements(operand.into()).as_known() != Some(1),
            Argument::Step(_) | Argument::Constant(..) => false,
        };
        let elements_differ = self.arguments().any(differs);
        let mut costs = Vec::new();
        // Of each step before, whether it is the same for all elements.
        let mut is_single: Vec<bool> = Vec::new();
        for step in &self.steps {
            let single = |argument: &Argument| match *argument {
                Argument::Step(step) => is_single.get(usize::from(step)).copied().unwrap_or(false),
                Argument::Input | Argument::Operand(_) | Argument::Constant(..) => !differs(*argument),
            };
            let own = elements_differ && step.arguments.iter().all(single);
            let dtype = step.arguments.first().and_then(|argument| match *argument {
                Argument::Input => accumulator,
                Argument::Step(step) => Some(self.steps.get(usize::from(step))?.to),
                Argument::Operand(operand) => facts.operand(operand.into())?.dtype(),
                Argument::Constant(dtype, _) => Some(dtype),
            });
            let is_identity = step.function == Function::Cast && dtype == Some(step.to);
            is_single.push(own);
            if !own && !is_identity {
                costs.extend(step.function.per_element());
            }
        }
        costs
    }

    /// Check it, and give the types of its results. `accumulator` is the type that it begins with, where it belongs to a
    /// product; `operand` gives the types of operands that are there.
    ///
    /// # Errors
    /// [`ProgramError`] of the first thing that is wrong.
    pub fn check(
        &self,
        accumulator: Option<DType>,
        operand: impl Fn(usize) -> Option<DType>,
    ) -> Result<Vec<DType>, ProgramError> {
        if self.steps.len() > MOST_STEPS {
            return Err(ProgramError::TooManySteps { found: self.steps.len(), most: MOST_STEPS });
        }
        let known = |argument: &Argument, steps: usize, reader: &dyn Fn() -> String| match *argument {
            Argument::Input => accumulator.ok_or(ProgramError::NoAccumulator),
            Argument::Step(found) if usize::from(found) < steps => Ok(self.steps[usize::from(found)].to),
            Argument::Step(found) => Err(ProgramError::ForwardReference { reader: reader(), found, known: steps }),
            Argument::Operand(index) => {
                let found = operand(index.into()).ok_or(ProgramError::Operand { operand: index })?;
                if is_element(found) { Ok(found) } else { Err(ProgramError::ElementType(found)) }
            }
            Argument::Constant(dtype, bits) => match scalar_of_bits(dtype, bits) {
                Some(_) => Ok(dtype),
                None => Err(ProgramError::Constant { dtype, bits }),
            },
        };
        for (index, step) in self.steps.iter().enumerate() {
            let (expected, found) = (step.function.arity(), step.arguments.len());
            if expected != found {
                return Err(ProgramError::Arity { step: index, function: step.function.name(), expected, found });
            }
            if !is_element(step.to) {
                return Err(ProgramError::ElementType(step.to));
            }
            let reader = || format!("step {index}");
            let types = step.arguments.iter().map(|argument| known(argument, index, &reader));
            let types = types.collect::<Result<Vec<DType>, _>>()?;
            let checked = step.function.check(&types, step.to);
            checked.map_err(|error| ProgramError::Types { step: index, reason: error.to_string() })?;
        }
        self.results.iter().map(|result| known(result, self.steps.len(), &|| "a result".to_string())).collect()
    }

    /// The type of a product's result, whose accumulators have the type `accumulator` and which is rounded to `own` where
    /// there is no program.
    ///
    /// # Errors
    /// [`TypeError`] where the program is wrong, or an operand does not broadcast to the result.
    pub fn infer(
        &self,
        own: DType,
        accumulator: DType,
        shape: &Shape,
        inputs: &[Option<Fact>],
        context: &mut InferContext<'_>,
    ) -> Result<DType, TypeError> {
        if self.is_empty() {
            return Ok(own);
        }
        let types = self.check(Some(accumulator), |operand| operand_type(inputs, operand))?;
        let &[result] = types.as_slice() else {
            return Err(ProgramError::Results { found: types.len(), expected: "1" }.into());
        };
        for operand in self.operands() {
            let (_, operand_shape) = tensor_operand(inputs, operand)?;
            if let (Some(expected), Some(found)) = (shape.rank(), operand_shape.rank())
                && found > expected
            {
                return Err(TypeError::Rank { operand, expected: format!("at most {expected}"), found });
            }
            broadcasts_into(operand_shape, shape, context)?;
        }
        Ok(result)
    }
}

/// The element type of an operand that is a tensor.
pub(crate) fn operand_type(inputs: &[Option<Fact>], operand: usize) -> Option<DType> {
    inputs.get(operand)?.as_ref()?.kind.as_tensor().map(|(dtype, _)| dtype)
}

/// Broadcasting that leaves `shape` as it is.
fn broadcasts_into(operand: &Shape, shape: &Shape, context: &mut InferContext<'_>) -> Result<(), TypeError> {
    if let (Shape::Ranked(from), Shape::Ranked(into)) = (operand, shape) {
        let offset = into.len().saturating_sub(from.len());
        for (from, into) in from.iter().zip(&into[offset..]) {
            if from.as_known().is_some_and(|extent| extent != 1) {
                context.require_equal(into, from, "operand of the program")?;
            }
        }
    }
    broadcast_shapes(&[shape, operand], context).map(|_| ())
}

/// The value of a constant; `None` where its bits are no value of its type, or the argument is no constant.
pub(super) fn constant(argument: Argument) -> Option<Scalar> {
    match argument {
        Argument::Constant(dtype, bits) => scalar_of_bits(dtype, bits),
        Argument::Input | Argument::Step(_) | Argument::Operand(_) => None,
    }
}
