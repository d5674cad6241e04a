//! Batch normalization by constants becomes a `map`, which joins what stands beside it.
//!
//! ```text
//! constant @scale : f32[1] = f32[1]:00000040
//! constant @bias : f32[1] = f32[1]:0000003f
//! constant @mean : f32[1] = f32[1]:0000803f
//! constant @variance : f32[1] = f32[1]:00008040
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 1, 8]) {
//!   %y : f32[n, 1, 8] = batch_normalization epsilon=0 momentum=0.9 %x, @scale, @bias, @mean, @variance from "normalize"
//!   return %y
//! }
//! ```
//! becomes
//! ```text
//! constant @4 : f32[1, 1] = f32[1, 1]:0000803f
//! constant @5 : f32[1, 1] = f32[1, 1]:0000803f
//! constant @6 : f32[1, 1] = f32[1, 1]:0000003f
//! entry "main"("x") -> ("y") = block 0
//! block 0(%x : f32[n, 1, 8]) {
//!   %y : f32[n, 1, 8] = map program=["sub $0 $1 : f32", "mul %0 $2 : f32", "add %1 $3 : f32", "return %2"] %x, @4, @5, @6 from "normalize"
//!   return %y
//! }
//! ```
//!
//! `(x - mean) * factor + bias` with `factor = scale / sqrt(variance + epsilon)`, computed in f64 and rounded once: the bits of
//! the operator's kernel, which rounds after each operation too (its reference rounds once at the end). Leaves alone: training,
//! parameters that are computed or of another type than f32.

use crate::ir::{Constant, Graph, Operand, Step};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Argument, BatchNormalization, BinaryFunction, Function, Map, Op, Program};
use ipuc_formats::tensor::Tensor;

/// Replace batch normalizations of a block; gives how many.
pub(super) fn apply(graph: &mut Graph, index: BlockIndex) -> usize {
    let mut steps = std::mem::take(&mut graph.block_mut(index).steps);
    let mut replaced = 0;
    for step in &mut steps {
        let Op::BatchNormalization(normalization) = &step.op else { continue };
        let Some(constants) = parameters(graph, normalization, step) else { continue };
        let operands = constants.into_iter().map(|constant| Operand::Constant(graph.add_constant(constant)));
        step.operands = step.operands.first().copied().into_iter().chain(operands).collect();
        step.op = Map { program: program() }.into();
        replaced += 1;
    }
    graph.block_mut(index).steps = steps;
    replaced
}

/// `(x - mean) * factor + bias`.
fn program() -> Program {
    let mut program = Program::default();
    let mut value = Argument::Operand(0);
    for (operand, function) in [BinaryFunction::Sub, BinaryFunction::Mul, BinaryFunction::Add].into_iter().enumerate() {
        let arguments = vec![value, Argument::Operand(operand as u16 + 1)];
        value = program.push(Function::Binary(function), arguments, DType::F32);
    }
    program.results.push(value);
    program
}

/// Mean, factor and bias, which lie along the second axis of the data.
fn parameters(graph: &Graph, normalization: &BatchNormalization, step: &Step) -> Option<[Constant; 3]> {
    let Channels { means, factors, biases, rank } = Channels::of(graph, normalization, step)?;
    let shape: Vec<usize> = std::iter::once(factors.len()).chain(std::iter::repeat_n(1, rank - 2)).collect();
    let constant = |values: &[f32]| Some(Constant::of(Tensor::from_elements(&shape, values).ok()?, None));
    Some([constant(&means)?, constant(&factors)?, constant(&biases)?])
}

/// What a batch normalization by constants does to each channel of data in f32.
pub(super) struct Channels {
    pub(super) means: Vec<f32>,
    pub(super) factors: Vec<f32>,
    pub(super) biases: Vec<f32>,
    /// Axes of the data.
    pub(super) rank: usize,
}

impl Channels {
    pub(super) fn of(graph: &Graph, normalization: &BatchNormalization, step: &Step) -> Option<Channels> {
        let [data, parameters @ ..] = step.operands.as_slice() else { return None };
        let data = graph.fact(*data)?;
        let rank = data.rank().filter(|&rank| rank >= 2)?;
        let usual = !normalization.training && !normalization.per_element && data.dtype() == Some(DType::F32);
        usual.then_some(())?;
        let load = |operand: &Operand| match operand {
            Operand::Constant(id) if graph.constant(*id).dtype == DType::F32 => graph.load_constant(*id).ok(),
            Operand::Constant(_) | Operand::Value(_) | Operand::Absent => None,
        };
        let tensors: Vec<Tensor> = parameters.iter().map(load).collect::<Option<_>>()?;
        let [scale, bias, mean, variance] = tensors.as_slice() else { return None };
        let (scales, variances) = (scale.elements::<f32>().ok()?, variance.elements::<f32>().ok()?);
        let factors = scales.iter().zip(variances).map(|(&scale, &variance)| {
            let deviation = (f64::from(variance) + f64::from(normalization.epsilon)).sqrt();
            (f64::from(scale) / deviation) as f32
        });
        let own = |tensor: &Tensor| Some(tensor.elements::<f32>().ok()?.to_vec());
        Some(Channels { means: own(mean)?, factors: factors.collect(), biases: own(bias)?, rank })
    }
}
