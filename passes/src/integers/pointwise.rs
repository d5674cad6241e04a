//! Functions of dequantized codes whose result is quantized: one `map`.

use super::parameters::{Codes, codes, rounded, target};
use super::readers::Readers;
use crate::error::PassError;
use crate::ir::{Graph, Operand, Step};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{Argument, BinaryFunction, Function, Map, Op, Program};

/// Functions in one `map` at most.
const MOST_FUNCTIONS: usize = 16;

/// A program and what it reads.
struct Chain<'a> {
    graph: &'a Graph,
    readers: &'a Readers,
    steps: &'a [Step],
    program: Program,
    operands: Vec<Operand>,
    functions: usize,
    /// Operands of the program that are codes.
    codes: usize,
}

impl Chain<'_> {
    fn operand(&mut self, operand: Operand) -> Option<Argument> {
        let known = self.operands.iter().position(|&other| other == operand);
        let place = known.unwrap_or_else(|| {
            self.operands.push(operand);
            self.operands.len() - 1
        });
        u16::try_from(place).ok().map(Argument::Operand)
    }

    /// `(code - zero point) * scale`, as `dequantize` rounds it.
    fn value(&mut self, codes: &Codes) -> Option<Argument> {
        self.codes += 1;
        let code = self.operand(codes.codes)?;
        let mut value = self.program.push(Function::Cast, vec![code], DType::F32);
        // Differences of integers of 8 bits are exact in f32.
        if codes.parameters.zero != 0 {
            let zero = Argument::f32(codes.parameters.zero as f32);
            value = self.program.push(Function::Binary(BinaryFunction::Sub), vec![value, zero], DType::F32);
        }
        let scale = Argument::f32(codes.parameters.scale);
        Some(self.program.push(Function::Binary(BinaryFunction::Mul), vec![value, scale], DType::F32))
    }

    /// What an operand is made of codes and constants; `None` where it is something else.
    fn argument(&mut self, operand: Operand) -> Result<Option<Argument>, PassError> {
        let f32_shape = |fact: Option<Fact>| fact.is_some_and(|fact| is_f32(&fact));
        if !f32_shape(self.graph.fact(operand)) {
            return Ok(None);
        }
        if let Operand::Constant(_) = operand {
            return Ok(self.operand(operand));
        }
        if let Some(codes) = codes(self.graph, self.readers, self.steps, operand)? {
            return Ok(self.value(&codes));
        }
        let Some(step) = self.readers.only_read(self.steps, operand) else { return Ok(None) };
        let function = if let Op::Binary(binary) = &step.op {
            Function::Binary(binary.function)
        } else if let Op::Unary(unary) = &step.op {
            Function::Unary(unary.function)
        } else if let Op::Activation(activation) = &step.op {
            Function::Activation(activation.clone())
        } else {
            return Ok(None);
        };
        self.functions += 1;
        if self.functions > MOST_FUNCTIONS || step.operands.len() != function.arity() {
            return Ok(None);
        }
        let mut arguments = Vec::new();
        for &operand in &step.operands {
            match self.argument(operand)? {
                Some(argument) => arguments.push(argument),
                None => return Ok(None),
            }
        }
        Ok(Some(self.program.push(function, arguments, DType::F32)))
    }
}

fn is_f32(fact: &Fact) -> bool {
    fact.kind.as_tensor().is_some_and(|(dtype, _)| dtype == DType::F32)
}

/// The `map` in place of the `quantize` at `place`, where what is quantized is a function of codes.
pub(super) fn mapped(
    graph: &Graph,
    readers: &Readers,
    steps: &[Step],
    place: usize,
) -> Result<Option<Step>, PassError> {
    let step = &steps[place];
    let Some(target) = target(graph, step)? else { return Ok(None) };
    let Some(&x) = step.operands.first() else { return Ok(None) };
    let (program, operands) = (Program::default(), Vec::new());
    let mut chain = Chain { graph, readers, steps, program, operands, functions: 0, codes: 0 };
    let Some(value) = chain.argument(x)? else { return Ok(None) };
    if chain.codes == 0 {
        return Ok(None);
    }
    let scale = Argument::f32(target.scale);
    let value = chain.program.push(Function::Binary(BinaryFunction::Div), vec![value, scale], DType::F32);
    let code = rounded(&mut chain.program, value, &target);
    chain.program.results.push(code);
    let Chain { program, operands, .. } = chain;
    let name = readers.producer(steps, x).map_or(&step.name, |inner| &inner.name).clone();
    Ok(Some(Step { op: Map { program }.into(), operands, results: step.results.clone(), name }))
}
