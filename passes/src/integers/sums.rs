//! What follows the sums of an integer product becomes its program.
//!
//! Dynamically quantized graphs have a `cast` to f32, a product with the scales, and a bias behind the sums. Every step of
//! the program rounds as the step that it replaces, so that the bits stay. A scale that is itself the product of two single values,
//! that of the activations and that of the weights, is computed by the program.

use super::parameters::clamp_bounds;
use super::readers::Readers;
use crate::error::PassError;
use crate::ir::{Graph, Operand, Step, ValueId, program_of_sums};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Shape;
use ipuc_formats::ops::{ActivationFunction, Argument, BinaryFunction, Cast, Function, Op, Program};
use std::collections::HashMap;

/// Let integer products of a block take what follows them; gives the number of steps that went.
pub(super) fn absorbed(graph: &mut Graph, index: BlockIndex) -> Result<usize, PassError> {
    let readers = Readers::new(graph, index);
    let block = graph.block(index);
    let scope = Scope { graph, readers: &readers, steps: &block.steps };
    let places = block.steps.iter().enumerate();
    let reader_of: HashMap<ValueId, usize> = places
        .flat_map(|(place, step)| step.operands.iter().map(move |&operand| (operand, place)))
        .filter_map(|(operand, place)| if let Operand::Value(value) = operand { Some((value, place)) } else { None })
        .collect();
    let mut kept: Vec<Option<Step>> = block.steps.iter().cloned().map(Some).collect();
    let mut changes = 0;
    // Of two products that a step joins, the first takes it.
    let mut taken = vec![false; block.steps.len()];
    for (place, step) in block.steps.iter().enumerate() {
        let Some(mut chain) = Chain::new(step) else { continue };
        let mut own = place;
        while let [result] = chain.step.results.as_slice()
            && readers.reads.get(result) == Some(&1)
            && let Some(&reader) = reader_of.get(result)
            && !taken[reader]
            && chain.take(&scope, &block.steps[reader])?
        {
            kept[own] = None;
            own = reader;
            taken[reader] = true;
            changes += 1;
        }
        if own != place {
            kept[own] = Some(chain.finished());
        }
    }
    graph.block_mut(index).steps = kept.into_iter().flatten().collect();
    Ok(changes)
}

/// The block of a product.
struct Scope<'a> {
    graph: &'a Graph,
    readers: &'a Readers,
    steps: &'a [Step],
}

impl Scope<'_> {
    /// The operands of a step that multiplies two single values in f32 to this one.
    fn single_product(&self, operand: Operand) -> Option<[Operand; 2]> {
        let step = self.readers.producer(self.steps, operand)?;
        let is_single = |&operand: &Operand| {
            let fact = self.graph.fact(operand);
            fact.as_ref().and_then(|fact| fact.kind.as_tensor()).is_some_and(|(dtype, shape)| {
                dtype == DType::F32 && shape.dims().is_some_and(|dims| dims.iter().all(|dim| dim.as_known() == Some(1)))
            })
        };
        let multiplies = matches!(&step.op, Op::Binary(binary) if binary.function == BinaryFunction::Mul);
        let operands = <[Operand; 2]>::try_from(step.operands.as_slice()).ok()?;
        (multiplies && operands.iter().all(is_single)).then_some(operands)
    }
}

/// An integer product with a growing program.
struct Chain {
    step: Step,
    program: Program,
    value: Argument,
    dtype: DType,
}

impl Chain {
    /// A product whose result are its sums.
    fn new(step: &Step) -> Option<Chain> {
        let mut step = step.clone();
        let (program, own) = program_of_sums(&mut step.op)?;
        program.is_empty().then_some(())?;
        step.operands.resize(own, Operand::Absent);
        Some(Chain { step, program: Program::default(), value: Argument::Input, dtype: DType::I32 })
    }

    /// Take a step that reads the result, where it computes each element by itself; whether it was taken.
    fn take(&mut self, scope: &Scope<'_>, step: &Step) -> Result<bool, PassError> {
        let (&[before], &[after]) = (self.step.results.as_slice(), step.results.as_slice()) else { return Ok(false) };
        let kind = |value: ValueId| scope.graph.value(value).fact.kind.as_tensor();
        let (Some((_, shape)), Some((to, result))) = (kind(before), kind(after)) else { return Ok(false) };
        if shape != result || shape.rank().is_none() {
            return Ok(false);
        }
        let Some((function, arguments)) = self.function(scope, step, before, result)? else { return Ok(false) };
        self.value = self.program.push(function, arguments, to);
        self.dtype = to;
        self.step.results = step.results.clone();
        self.step.name = if self.step.name.is_empty() { step.name.clone() } else { self.step.name.clone() };
        Ok(true)
    }

    /// The function that a step applies to the value, and its arguments; none that a program should not have.
    fn function(
        &mut self,
        scope: &Scope<'_>,
        step: &Step,
        value: ValueId,
        result: &Shape,
    ) -> Result<Option<(Function, Vec<Argument>)>, PassError> {
        if self.dtype == DType::I32 {
            let widens = matches!(step.op, Op::Cast(Cast { to: DType::F32, .. }));
            return Ok(widens.then(|| (Function::Cast, vec![self.value])));
        }
        if let Op::Binary(binary) = &step.op
            && is_arithmetic(binary.function)
        {
            let arguments = self.operands(scope, step, value, result, binary.function);
            return Ok(arguments.map(|arguments| (Function::Binary(binary.function), arguments)));
        }
        if let Op::Activation(activation) = &step.op
            && activation.function == ActivationFunction::Relu
        {
            return Ok(Some((Function::Activation(activation.clone()), vec![self.value])));
        }
        if matches!(step.op, Op::Clamp(_)) {
            let bounds = clamp_bounds(scope.graph, step)?;
            let arguments =
                |[least, greatest]: [f32; 2]| vec![self.value, Argument::f32(least), Argument::f32(greatest)];
            return Ok(bounds.map(|bounds| (Function::Clamp, arguments(bounds))));
        }
        Ok(None)
    }

    /// The arguments of a function of the value and one more f32 operand, which broadcasts to the result in every run.
    fn operands(
        &mut self,
        scope: &Scope<'_>,
        step: &Step,
        value: ValueId,
        result: &Shape,
        function: BinaryFunction,
    ) -> Option<Vec<Argument>> {
        let fits = |&operand: &Operand| {
            let fact = scope.graph.fact(operand);
            operand == Operand::Value(value)
                || fact
                    .as_ref()
                    .and_then(|fact| fact.kind.as_tensor())
                    .is_some_and(|(dtype, shape)| dtype == DType::F32 && broadcasts(shape, result))
        };
        if step.operands.len() != 2 || !step.operands.iter().all(fits) {
            return None;
        }
        let mut arguments = Vec::with_capacity(2);
        for &operand in &step.operands {
            if operand == Operand::Value(value) {
                arguments.push(self.value);
            } else if function == BinaryFunction::Mul
                && let Some([one, other]) = scope.single_product(operand)
            {
                let factors = vec![self.read(one)?, self.read(other)?];
                arguments.push(self.program.push(Function::Binary(function), factors, DType::F32));
            } else {
                arguments.push(self.read(operand)?);
            }
        }
        Some(arguments)
    }

    /// What reads one more operand.
    fn read(&mut self, operand: Operand) -> Option<Argument> {
        self.step.operands.push(operand);
        Some(Argument::Operand(u16::try_from(self.step.operands.len() - 1).ok()?))
    }

    fn finished(mut self) -> Step {
        self.program.results.push(self.value);
        if let Some((program, _)) = program_of_sums(&mut self.step.op) {
            *program = self.program;
        }
        self.step
    }
}

/// Whether each extent of a shape is 1 or that of the result.
fn broadcasts(shape: &Shape, result: &Shape) -> bool {
    let (Some(from), Some(into)) = (shape.dims(), result.dims()) else { return false };
    let pairs = from.iter().rev().zip(into.iter().rev());
    from.len() <= into.len() && { pairs }.all(|(from, into)| from.as_known() == Some(1) || from == into)
}

/// Functions of two elements that take one vector instruction.
fn is_arithmetic(function: BinaryFunction) -> bool {
    matches!(
        function,
        BinaryFunction::Add
            | BinaryFunction::Sub
            | BinaryFunction::Mul
            | BinaryFunction::Div
            | BinaryFunction::Min
            | BinaryFunction::Max
    )
}
