//! Products of dequantized codes.

use super::parameters::{
    Activations, Parameters, Scale, activations, clamp_bounds, constant, is_byte, is_usual, is_word, rounded, target,
};
use super::readers::Readers;
use crate::error::PassError;
use crate::ir::{Constant, ConstantData, ConstantId, Graph, Operand, Quantized, Step};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{Encoding, Logical, Panels};
use ipuc_formats::ops::{
    Activation, ActivationFunction, Argument, Arithmetic, BinaryFunction, Convolution, Dequantize, Function,
    IntegerConvolution, IntegerMatmul, Matmul, Op, Program, Transpose, normalize_axis,
};
use ipuc_formats::tensor::Tensor;

/// Filters of a group of several channels that integers are worth: those of fewer leave most of a panel empty.
const LEAST_FILTERS: usize = 8;

/// A product whose operands are codes.
struct Product {
    op: ProductOp,
    x: Activations,
    weight: Weight,
    outputs: usize,
    /// Axes of the result behind that of the outputs.
    inner_axes: usize,
    bias: Option<Vec<f32>>,
    name: std::sync::Arc<str>,
}

/// What a product of integers reads as its weight.
enum Weight {
    /// Codes of 8 or 16 bits, which the program scales: by a scale of each output, or by one.
    Codes { codes: ConstantId, zero_point: Operand, scales: Vec<f32> },
    /// Decoded codes of at most 8 bits, which are stored with their scales.
    Decoded(ConstantId),
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

/// The scales of a weight of 8 or 16 bits, of outputs or one; `None` where it has others, or unusual ones.
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
    let fits = (is_byte(codes.dtype) || is_word(codes.dtype))
        && weight.output_scale.is_none()
        && scale.dtype == DType::F32
        && weight.block_size == 0
        && zero_fits;
    if !fits || (count != 1 && !along_outputs) || (count == 1 && !scale.shape.is_empty() && scale.shape != [1]) {
        return Ok(None);
    }
    usual_scales(graph, weight)
}

fn usual_scales(graph: &Graph, weight: &Quantized) -> Result<Option<Vec<f32>>, PassError> {
    let scales = floats(graph, Operand::Constant(weight.scale))?;
    // Rounded weights may have steps below zero, and outputs of zeros none.
    Ok(scales.iter().all(|&scale| scale == 0.0 || is_usual(scale.abs())).then_some(scales))
}

/// Whether decoded codes of at most 8 bits are stored as they are, in panels that integer products take.
fn is_stored(graph: &Graph, readers: &Readers, step: &Step, product: &WithCodes) -> Result<bool, PassError> {
    let WithCodes { id, weight, .. } = product;
    let (constant, codes, scale) = (graph.constant(*id), graph.constant(weight.codes), graph.constant(weight.scale));
    let shape: Vec<u64> = constant.shape.iter().map(|&extent| extent as u64).collect();
    let zero_fits = weight.zero_point.is_none_or(|zero_point| graph.constant(zero_point).dtype.is_integer());
    let fits = readers.only_weighs(*id)
        && codes.dtype.is_integer()
        && constant.dtype == DType::F32
        && scale.dtype == DType::F32
        && weight.output_scale.is_none()
        && zero_fits;
    let (true, Some(matrix)) = (fits, step.op.weight_matrix(1, &shape)) else { return Ok(false) };
    let Some(planes) = graph.planes(weight, &constant.shape, matrix) else { return Ok(false) };
    let panels = Panels::codes(codes.dtype, matrix, planes);
    if panels.check(Logical { dtype: constant.dtype, shape: &shape }).is_err() {
        return Ok(false);
    }
    // Rounding gives usual ones.
    Ok(graph.rounded(weight.scale).is_some() || usual_scales(graph, weight)?.is_some())
}

/// A product with a weight of codes, whatever it reads beside it.
struct WithCodes {
    op: ProductOp,
    id: ConstantId,
    weight: Quantized,
    /// Axis of the weight along which its outputs lie, and how many there are.
    output_axis: usize,
    outputs: usize,
    inner_axes: usize,
}

fn with_codes(graph: &Graph, step: &Step) -> Option<WithCodes> {
    let (Some(&x), Some(&Operand::Constant(id))) = (step.operands.first(), step.operands.get(1)) else { return None };
    let weight = graph.quantized(id).or_else(|| graph.quantized_words(id))?;
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
    has_constant_bias.then_some(WithCodes { op, id, weight, output_axis, outputs, inner_axes })
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
    Ok(is_of_bytes && weight_scales(graph, &weight, output_axis, outputs)?.is_some())
}

fn without_bias(graph: &Graph, readers: &Readers, steps: &[Step], step: &Step) -> Result<Option<Product>, PassError> {
    let Some(product) = with_codes(graph, step) else { return Ok(None) };
    let Some(&x) = step.operands.first() else { return Ok(None) };
    let Some(x) = activations(graph, readers, steps, x)? else { return Ok(None) };
    let Some(weight) = weight(graph, readers, step, &product, x.dtype)? else { return Ok(None) };
    let bias = match step.operands.get(2) {
        Some(&bias @ Operand::Constant(_)) => Some(floats(graph, bias)?),
        None | Some(Operand::Absent | Operand::Value(_)) => None,
    };
    let WithCodes { op, outputs, inner_axes, .. } = product;
    Ok(Some(Product { op, x, weight, outputs, inner_axes, bias, name: step.name.clone() }))
}

/// What a product of integers with activations of this type reads as its weight; `None` where floats stay.
fn weight(
    graph: &Graph,
    readers: &Readers,
    step: &Step,
    product: &WithCodes,
    activations: DType,
) -> Result<Option<Weight>, PassError> {
    let WithCodes { op, id, weight, output_axis, outputs, .. } = product;
    let code = graph.constant(weight.codes).dtype;
    if is_word(code) || (is_byte(code) && is_byte(activations)) {
        let scales = match (op, is_word(code) || is_word(activations)) {
            (ProductOp::Convolution(_), true) if has_own_filters(graph, *id) => None,
            (ProductOp::Convolution(_) | ProductOp::Matmul { .. }, _) => {
                weight_scales(graph, weight, *output_axis, *outputs)?
            }
        };
        if let Some(scales) = scales {
            let zero_point = weight.zero_point.map_or(Operand::Absent, Operand::Constant);
            return Ok(Some(Weight::Codes { codes: weight.codes, zero_point, scales }));
        }
        if is_word(code) {
            return Ok(None);
        }
    }
    let takes = match op {
        ProductOp::Matmul { .. } => true,
        ProductOp::Convolution(_) => weight.block_size == 0 && !has_own_filters(graph, *id),
    };
    Ok((takes && is_stored(graph, readers, step, product)?).then_some(Weight::Decoded(*id)))
}

/// Whether channels have filters of their own.
fn has_own_filters(graph: &Graph, filters: ConstantId) -> bool {
    graph.constant(filters).shape.get(1) == Some(&1)
}

impl Weight {
    /// Whether sums of products with activations of this type are i32, else f32.
    fn sums_in_integers(&self, graph: &Graph, activations: DType) -> bool {
        match self {
            Weight::Codes { codes, .. } => is_byte(activations) && is_byte(graph.constant(*codes).dtype),
            Weight::Decoded(_) => false,
        }
    }

    /// Operands 1 and 3: the weight, whose axes are exchanged first where it is `transposed`, and its zero point.
    fn operands(&self, graph: &mut Graph, transposed: bool) -> Option<[Operand; 2]> {
        let (id, zero_point) = match (self, transposed) {
            (Weight::Codes { codes, zero_point, .. }, false) => (*codes, *zero_point),
            (Weight::Codes { codes, zero_point, .. }, true) => (self::transposed(graph, *codes), *zero_point),
            (Weight::Decoded(id), false) => (*id, Operand::Absent),
            (Weight::Decoded(id), true) => (transposed_codes(graph, *id)?, Operand::Absent),
        };
        Some([Operand::Constant(id), zero_point])
    }
}

impl Product {
    /// The step in place of `replaced`: codes in these parameters between these bounds, or f32.
    fn step(self, graph: &mut Graph, replaced: &Step, target: Option<(&Parameters, &Vec<Bounds>)>) -> Option<Step> {
        let own = if matches!(self.op, ProductOp::Matmul { .. }) { 4 } else { 5 };
        let unit = target.map_or(1.0, |(target, _)| f64::from(target.scale));
        let transposed = matches!(self.op, ProductOp::Matmul { transposed: true });
        let [weight, zero_point] = self.weight.operands(graph, transposed)?;
        let mut operands = vec![self.x.codes, weight, self.x.zero_point, zero_point];
        operands.resize(own, Operand::Absent);
        let mut program = Program::default();
        let mut value = self.scaled(graph, &mut program, &mut operands, unit)?;
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
            }) => IntegerConvolution {
                auto_pad,
                strides,
                dilations,
                pads,
                groups,
                program,
                channels_last: false,
                plain_inputs: false,
            }
            .into(),
        };
        Some(Step { op, operands, results: replaced.results.clone(), name: self.name })
    }

    /// The sums times the scales, in units: that of activations last, where only runs know it.
    fn scaled(
        &self,
        graph: &mut Graph,
        program: &mut Program,
        operands: &mut Vec<Operand>,
        unit: f64,
    ) -> Option<Argument> {
        let multiply = Function::Binary(BinaryFunction::Mul);
        let known = match self.x.scale {
            Scale::Known(scale) => f64::from(scale),
            Scale::Computed(_) => 1.0,
        } / unit;
        let mut value = Argument::Input;
        if self.weight.sums_in_integers(graph, self.x.dtype) {
            value = program.push(Function::Cast, vec![value], DType::F32);
        }
        let scales = match &self.weight {
            Weight::Codes { scales, .. } => scales.as_slice(),
            Weight::Decoded(_) => &[1.0],
        };
        let factors: Vec<f32> = scales.iter().map(|&scale| (f64::from(scale) * known) as f32).collect();
        let has_none = factors == [1.0] && matches!(self.x.scale, Scale::Computed(_));
        if !has_none {
            let factor = self.argument(graph, operands, &factors)?;
            value = program.push(multiply.clone(), vec![value, factor], DType::F32);
        }
        if let Scale::Computed(scale) = self.x.scale {
            operands.push(scale);
            let scale = Argument::Operand(u16::try_from(operands.len() - 1).ok()?);
            value = program.push(multiply, vec![value, scale], DType::F32);
        }
        Some(value)
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

/// Decoded codes of a matrix with its axes exchanged.
fn transposed_codes(graph: &mut Graph, id: ConstantId) -> Option<ConstantId> {
    let Constant {
        name, dtype, shape, data: ConstantData::Recipe { op: Op::Dequantize(dequantize), operands }, ..
    } = graph.constant(id).clone()
    else {
        return None;
    };
    // Scales of blocks lie as codes do; those of outputs have one axis.
    let mut turned = Vec::with_capacity(operands.len());
    for operand in operands {
        turned.push(match operand {
            Some(own) if graph.constant(own).shape.len() == 2 => Some(transposed(graph, own)),
            own => own,
        });
    }
    let axis = 1 - normalize_axis(dequantize.axis, shape.len()).unwrap_or(0) as i64;
    let op = Dequantize { axis, ..dequantize }.into();
    let shape = shape.into_iter().rev().collect();
    let data = ConstantData::Recipe { op, operands: turned };
    Some(graph.add_constant(Constant { name, dtype, shape, data, origin: None, encoding: None, zeros: None }))
}

/// Bounds in units of the target's scale; `None` where saturating to its codes is as tight.
fn needed((least, greatest): Bounds, target: &Parameters) -> Option<Bounds> {
    let unit = |bound: f32| (f64::from(bound) / f64::from(target.scale)) as f32;
    let (least, greatest) = (unit(least), unit(greatest));
    let codes = 2.0_f32.powi(target.dtype.bits() as i32);
    let first = if target.dtype.is_signed_integer() { -codes / 2.0 } else { 0.0 };
    let code = |bound: f32| bound.round_ties_even() + target.zero as f32;
    (code(least) > first || code(greatest) < first + codes - 1.0).then_some((least, greatest))
}
