//! Functions of quantized elements of `com.microsoft`: `QLinearAdd`, `QLinearMul`, as ONNX Runtime 1.31 defines them.
//!
//! Both become one `map`: codes less their zero points as f32 times their scales, the function, and the quotient by the scale of
//! the result, rounded to even and saturated behind its zero point. ONNX Runtime divides the scales first, so that its code
//! is the one beside where the value lies within a float rounding of the middle between two.

use crate::import::lowering::{LowerError, Lowering, Row};
use crate::import::products::is_single;
use crate::ir::Operand;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Argument, BinaryFunction, Function, Map, Program, TypeError, UnaryFunction};

/// Functions of quantized elements.
pub const ROWS: &[Row] = &[
    Row { domain: "com.microsoft", name: "QLinearAdd", since: 1, lower: |node| quantized(node, BinaryFunction::Add) },
    Row { domain: "com.microsoft", name: "QLinearMul", since: 1, lower: |node| quantized(node, BinaryFunction::Mul) },
];

/// The steps of one `map` and their operands.
#[derive(Default)]
struct Chain {
    program: Program,
    operands: Vec<Operand>,
}

impl Chain {
    fn operand(&mut self, operand: Operand) -> Argument {
        self.operands.push(operand);
        Argument::Operand((self.operands.len() - 1) as u16)
    }

    fn binary(&mut self, function: BinaryFunction, arguments: [Argument; 2], to: DType) -> Argument {
        self.program.push(Function::Binary(function), arguments.to_vec(), to)
    }

    /// An operand as i32.
    fn integer(&mut self, operand: Operand) -> Argument {
        let operand = self.operand(operand);
        self.program.push(Function::Cast, vec![operand], DType::I32)
    }

    /// `(codes - zero point) * scale`.
    fn value(&mut self, codes: Operand, scale: Operand, zero_point: Operand) -> Argument {
        let mut code = self.integer(codes);
        if zero_point != Operand::Absent {
            let zero_point = self.integer(zero_point);
            code = self.binary(BinaryFunction::Sub, [code, zero_point], DType::I32);
        }
        let code = self.program.push(Function::Cast, vec![code], DType::F32);
        let scale = self.operand(scale);
        self.binary(BinaryFunction::Mul, [code, scale], DType::F32)
    }
}

fn quantized(node: &mut Lowering<'_, '_>, function: BinaryFunction) -> Result<Vec<Operand>, LowerError> {
    let [a, a_scale, b, b_scale, scale] = [0, 1, 3, 4, 6].map(|input| node.required(input));
    let (a, a_scale, b, b_scale, scale) = (a?, a_scale?, b?, b_scale?, scale?);
    let to = node.dtype(&a)?;
    if !matches!(to, DType::I8 | DType::U8) {
        return Err(TypeError::ElementType { operand: 0, expected: "i8 or u8".to_string(), found: to }.into());
    }
    // A result of no axes would get those of a parameter.
    let ranks = [&a, &b].map(|operand| node.fact(operand).and_then(|fact| fact.rank()));
    let has_axes = ranks.iter().all(Option::is_some) && ranks.iter().any(|rank| rank.is_some_and(|rank| rank > 0));
    for input in [1, 2, 4, 5, 6, 7] {
        let parameter = node.input(input);
        if parameter != Operand::Absent && (!is_single(node, &parameter) || !has_axes) {
            return Err(node.refuse("several scales or zero points, or a result without axes"));
        }
    }
    for (input, codes) in [(2, a), (3, a), (5, b), (7, a)] {
        let (given, expected) = (node.input(input), node.dtype(&codes)?);
        let found = if given == Operand::Absent { expected } else { node.dtype(&given)? };
        if found != expected {
            return Err(TypeError::ElementType { operand: input, expected: expected.to_string(), found }.into());
        }
    }
    let mut chain = Chain::default();
    let left = chain.value(a, a_scale, node.input(2));
    let right = chain.value(b, b_scale, node.input(5));
    let value = chain.binary(function, [left, right], DType::F32);
    let scale = chain.operand(scale);
    let value = chain.binary(BinaryFunction::Div, [value, scale], DType::F32);
    let round = Function::Unary(UnaryFunction::Round);
    let code = match node.input(7) {
        Operand::Absent => chain.program.push(round, vec![value], to),
        zero_point => {
            let rounded = chain.program.push(round, vec![value], DType::I32);
            let zero_point = chain.integer(zero_point);
            chain.binary(BinaryFunction::Add, [rounded, zero_point], to)
        }
    };
    chain.program.results.push(code);
    node.emit(Map { program: chain.program }, chain.operands)
}
