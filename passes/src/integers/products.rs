//! Products of dequantized codes.

use super::parameters::{Codes, Parameters, clamp_bounds, codes, constant, is_byte, is_usual, rounded, target};
use super::readers::Readers;
use crate::error::PassError;
use crate::ir::{Constant, ConstantData, ConstantId, Graph, Operand, Quantized, Step};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    Activation, ActivationFunction, Argument, Arithmetic, BinaryFunction, Convolution, Function, IntegerConvolution,
    IntegerMatmul, Matmul, Op, Program, Transpose,
};
use ipuc_formats::tensor::Tensor;

/// Filters of a group of several channels that integers are worth: those of fewer leave most of a panel empty.
const LEAST_FILTERS: usize = 8;

/// A product whose operands are codes.
struct Product {
    op: ProductOp,
    x: Codes,
    codes: ConstantId,
    zero_point: Operand,
    /// Of each output, or one.
    scales: Vec<f32>,
    outputs: usize,
    /// Axes of the result behind that of the outputs.
    inner_axes: usize,
    bias: Option<Vec<f32>>,
    name: std::sync::Arc<str>,
}

enum ProductOp {
    /// With a weight `[inputs, outputs]`, or the other way round.
    Matmul {
        transposed: bool,
    },
    Convolution(Convolution),
}

/// Bounds of a value in f32.
type Bounds = (f32, f32);

/// The integer product in place of the `quantize` at `place`.
pub(super) fn quantized(
    graph: &mut Graph,
    readers: &Readers,
    steps: &[Step],
    place: usize,
) -> Result<Option<Step>, PassError> {
    let step = &steps[place];
    let Some(target) = target(graph, step)? else { return Ok(None) };
    let mut bounds: Vec<Bounds> = Vec::new();
    let Some(mut inner) = step.operands.first().and_then(|&x| readers.only_read(steps, x)) else { return Ok(None) };
    while let Some(own) = own_bounds(graph, inner)? {
        bounds.push(own);
        match inner.operands.first().and_then(|&x| readers.only_read(steps, x)) {
            Some(next) => inner = next,
            None => return Ok(None),
        }
    }
    bounds.reverse();
    let Some(product) = product(graph, readers, steps, inner)? else { return Ok(None) };
    Ok(product.step(graph, step, Some((&target, &bounds))))
}

/// The integer product in place of the product in floats at `place`.
pub(super) fn float(
    graph: &mut Graph,
    readers: &Readers,
    steps: &[Step],
    place: usize,
) -> Result<Option<Step>, PassError> {
    let step = &steps[place];
    let Some(product) = product(graph, readers, steps, step)? else { return Ok(None) };
    Ok(product.step(graph, step, None))
}

/// The bounds that a step sets.
fn own_bounds(graph: &Graph, step: &Step) -> Result<Option<Bounds>, PassError> {
    if matches!(step.op, Op::Activation(Activation { function: ActivationFunction::Relu, .. })) {
        return Ok(Some((0.0, f32::INFINITY)));
    }
    if !matches!(step.op, Op::Clamp(_)) {
        return Ok(None);
    }
    let bounds = clamp_bounds(graph, step)?;
    Ok(bounds.filter(|[least, greatest]| least <= greatest).map(Bounds::from))
}

/// The product of codes that a step computes in floats, or with the bias that it adds.
fn product(graph: &Graph, readers: &Readers, steps: &[Step], step: &Step) -> Result<Option<Product>, PassError> {
    if matches!(step.op, Op::Matmul(_) | Op::Convolution(_)) {
        return without_bias(graph, readers, steps, step);
    }
    let &[left, right] = step.operands.as_slice() else { return Ok(None) };
    if !matches!(&step.op, Op::Binary(binary) if binary.function == BinaryFunction::Add) {
        return Ok(None);
    }
    for (value, addend) in [(left, right), (right, left)] {
        let Some(inner) = readers.only_read(steps, value) else { continue };
        let Operand::Constant(id) = addend else { continue };
        let result = step.results.first().map(|&result| graph.value(result).fact.kind.clone());
        if !matches!(inner.op, Op::Matmul(_)) || graph.fact(value).map(|fact| fact.kind) != result {
            continue;
        }
        let Some(mut product) = without_bias(graph, readers, steps, inner)? else { continue };
        let shape = &graph.constant(id).shape;
        let count: usize = shape.iter().product();
        if count != 1 && !(shape.last() == Some(&product.outputs) && count == product.outputs) {
            return Ok(None);
        }
        product.bias = Some(floats(graph, addend)?);
        return Ok(Some(product));
    }
    Ok(None)
}

fn floats(graph: &Graph, operand: Operand) -> Result<Vec<f32>, PassError> {
    let tensor = constant(graph, operand)?;
    // The product's types were inferred: what is added to f32 is f32.
    Ok(tensor.and_then(|tensor| tensor.elements::<f32>().ok().map(<[f32]>::to_vec)).unwrap_or_default())
}

/// What a weight's parameters are: scales of outputs or one, and its zero point.
fn weight_scales(
    graph: &Graph,
    weight: &Quantized,
    output_axis: usize,
    outputs: usize,
) -> Result<Option<Vec<f32>>, PassError> {
    let codes = graph.constant(weight.codes);
    let scale = graph.constant(weight.scale);
    let count: usize = scale.shape.iter().product();
    let along_outputs = count == outputs && weight.axis == output_axis;
    let zero_fits = weight.zero_point.is_none_or(|id| {
        let zero_point = graph.constant(id);
        zero_point.dtype == codes.dtype && zero_point.shape == scale.shape
    });
    let fits = is_byte(codes.dtype)
        && weight.output_scale.is_none()
        && scale.dtype == DType::F32
        && weight.block_size == 0
        && zero_fits;
    if !fits || (count != 1 && !along_outputs) || (count == 1 && !scale.shape.is_empty() && scale.shape != [1]) {
        return Ok(None);
    }
    let scales = floats(graph, Operand::Constant(weight.scale))?;
    // Rounded weights may have steps below zero, and outputs of zeros none.
    Ok(scales.iter().all(|&scale| scale == 0.0 || is_usual(scale.abs())).then_some(scales))
}

/// A product with a weight of codes, whatever it reads beside it.
struct WithCodes {
    op: ProductOp,
    weight: Quantized,
    /// Axis of the weight along which its outputs lie, and how many there are.
    output_axis: usize,
    outputs: usize,
    inner_axes: usize,
}

fn with_codes(graph: &Graph, step: &Step) -> Option<WithCodes> {
    let (Some(&x), Some(&Operand::Constant(id))) = (step.operands.first(), step.operands.get(1)) else { return None };
    let weight = graph.quantized(id)?;
    let shape = &graph.constant(id).shape;
    let rank = graph.fact(x).and_then(|fact| fact.rank());
    let (op, output_axis, inner_axes) = if let (Op::Matmul(product), &[_, _], Some(2..)) =
        (&step.op, shape.as_slice(), rank)
    {
        let Matmul { transpose_a, transpose_b, arithmetic, program } = product;
        if *transpose_a || *arithmetic != Arithmetic::default() || !program.is_empty() {
            return None;
        }
        (ProductOp::Matmul { transposed: *transpose_b }, usize::from(!transpose_b), 0)
    } else if let (Op::Convolution(product), &[filters, ..], Some(rank @ 3..)) = (&step.op, shape.as_slice(), rank) {
        let groups = usize::try_from(product.groups).unwrap_or(1).max(1);
        let plain = product.arithmetic == Arithmetic::default() && product.program.is_empty();
        let are_worth = shape.get(1) == Some(&1) || filters / groups >= LEAST_FILTERS;
        (plain && are_worth).then_some((ProductOp::Convolution(product.clone()), 0, rank - 2))?
    } else {
        return None;
    };
    let has_constant_bias = match step.operands.get(2) {
        None | Some(Operand::Absent) => true,
        Some(Operand::Constant(_)) => matches!(op, ProductOp::Convolution(_)),
        Some(Operand::Value(_)) => false,
    };
    let outputs = shape[output_axis];
    has_constant_bias.then_some(WithCodes { op, weight, output_axis, outputs, inner_axes })
}

/// Whether a product becomes one of integers once what it reads is codes of 8 bits with one scale. Scales that rounding gives
/// are in memory from then on, so that the weight is not rounded for each look at them.
pub(super) fn takes_codes(graph: &mut Graph, step: &Step) -> Result<bool, PassError> {
    let Some(WithCodes { weight, output_axis, outputs, .. }) = with_codes(graph, step) else { return Ok(false) };
    let is_of_bytes = is_byte(graph.constant(weight.codes).dtype) && weight.block_size == 0;
    if is_of_bytes && graph.rounded(weight.scale).is_some() {
        let scales = graph.load_constant(weight.scale)?;
        graph.constant_mut(weight.scale).data = ConstantData::Tensor(scales);
    }
    Ok(weight_scales(graph, &weight, output_axis, outputs)?.is_some())
}

fn without_bias(graph: &Graph, readers: &Readers, steps: &[Step], step: &Step) -> Result<Option<Product>, PassError> {
    let Some(WithCodes { op, weight, output_axis, outputs, inner_axes }) = with_codes(graph, step) else {
        return Ok(None);
    };
    let Some(&x) = step.operands.first() else { return Ok(None) };
    let Some(x) = codes(graph, readers, steps, x)? else { return Ok(None) };
    let Some(scales) = weight_scales(graph, &weight, output_axis, outputs)? else { return Ok(None) };
    let bias = match step.operands.get(2) {
        Some(&bias @ Operand::Constant(_)) => Some(floats(graph, bias)?),
        None | Some(Operand::Absent | Operand::Value(_)) => None,
    };
    let zero_point = weight.zero_point.map_or(Operand::Absent, Operand::Constant);
    let codes = weight.codes;
    let name = step.name.clone();
    Ok(Some(Product { op, x, codes, zero_point, scales, outputs, inner_axes, bias, name }))
}

impl Product {
    /// The step in place of `replaced`: codes in these parameters between these bounds, or f32.
    fn step(self, graph: &mut Graph, replaced: &Step, target: Option<(&Parameters, &Vec<Bounds>)>) -> Option<Step> {
        let own = if matches!(self.op, ProductOp::Matmul { .. }) { 4 } else { 5 };
        let unit = target.map_or(1.0, |(target, _)| f64::from(target.scale));
        let codes = match self.op {
            ProductOp::Matmul { transposed: true } => transposed(graph, self.codes),
            ProductOp::Matmul { transposed: false } | ProductOp::Convolution(_) => self.codes,
        };
        let mut operands = vec![self.x.codes, Operand::Constant(codes), self.x.parameters.zero_point, self.zero_point];
        operands.resize(own, Operand::Absent);
        let factor = f64::from(self.x.parameters.scale) / unit;
        let factors: Vec<f32> = self.scales.iter().map(|&scale| (f64::from(scale) * factor) as f32).collect();
        let mut program = Program::default();
        let sum = program.push(Function::Cast, vec![Argument::Input], DType::F32);
        let factor = self.argument(graph, &mut operands, &factors)?;
        let mut value = program.push(Function::Binary(BinaryFunction::Mul), vec![sum, factor], DType::F32);
        if let Some(bias) = &self.bias {
            let bias: Vec<f32> = bias.iter().map(|&bias| (f64::from(bias) / unit) as f32).collect();
            let bias = self.argument(graph, &mut operands, &bias)?;
            value = program.push(Function::Binary(BinaryFunction::Add), vec![value, bias], DType::F32);
        }
        let result = match target {
            None => value,
            Some((target, bounds)) => {
                for bounds in bounds.iter().filter_map(|&bounds| needed(bounds, target)) {
                    let arguments = vec![value, Argument::f32(bounds.0), Argument::f32(bounds.1)];
                    value = program.push(Function::Clamp, arguments, DType::F32);
                }
                rounded(&mut program, value, target)
            }
        };
        program.results.push(result);
        let op: Op = match self.op {
            ProductOp::Matmul { .. } => IntegerMatmul { program }.into(),
            ProductOp::Convolution(Convolution {
                auto_pad,
                strides,
                dilations,
                pads,
                groups,
                arithmetic: _,
                program: _,
            }) => IntegerConvolution { auto_pad, strides, dilations, pads, groups, program }.into(),
        };
        Some(Step { op, operands, results: replaced.results.clone(), name: self.name })
    }

    /// Values of each output, or one value, as an argument of the program.
    fn argument(&self, graph: &mut Graph, operands: &mut Vec<Operand>, values: &[f32]) -> Option<Argument> {
        if let &[value] = values {
            return Some(Argument::f32(value));
        }
        let mut shape = vec![self.outputs];
        shape.resize(1 + self.inner_axes, 1);
        let tensor = Tensor::from_elements(&shape, values).ok()?;
        operands.push(Operand::Constant(graph.add_constant(Constant::of(tensor, None))));
        u16::try_from(operands.len() - 1).ok().map(Argument::Operand)
    }
}

/// A matrix with its axes exchanged, computed while it is stored.
fn transposed(graph: &mut Graph, id: ConstantId) -> ConstantId {
    let matrix = graph.constant(id);
    let op = Transpose { permutation: vec![1, 0] }.into();
    let made = Constant {
        name: matrix.name.clone(),
        dtype: matrix.dtype,
        shape: matrix.shape.iter().rev().copied().collect(),
        data: ConstantData::Recipe { op, operands: vec![Some(id)] },
        origin: None,
        encoding: None,
        zeros: None,
    };
    graph.add_constant(made)
}

/// Bounds in units of the target's scale; `None` where saturating to its codes is as tight.
fn needed((least, greatest): Bounds, target: &Parameters) -> Option<Bounds> {
    let unit = |bound: f32| (f64::from(bound) / f64::from(target.scale)) as f32;
    let (least, greatest) = (unit(least), unit(greatest));
    let ends = if target.dtype == DType::I8 { (-128.0, 127.0) } else { (0.0, 255.0) };
    let code = |bound: f32| bound.round_ties_even() + target.zero as f32;
    (code(least) > ends.0 || code(greatest) < ends.1).then_some((least, greatest))
}
