//! Quantization between f32 and integers of at most 8 bits.

use crate::steps::elementwise::{load, runs};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference};
use ipuc_formats::dtype::DType;
use ipuc_formats::element::Element;
use ipuc_formats::ops::{Dequantize, DynamicQuantize, Quantize, dynamic_parameters, normalize_axis};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::elements::{Runs, in_parts, map, zip, zip_block};
use ipuc_kernels::product::ByteType;
use ipuc_kernels::quantize::{QuantizeParameters, quantize};
use ipuc_kernels::simd::{Instructions, LANES, Routine, Simd};
use ipuc_kernels::threads::each;
use std::borrow::Cow;

/// A scale and a zero point.
type Parameter = (f32, i32);

fn operand(inputs: &[Option<Value>], index: usize) -> Option<&Tensor> {
    inputs.get(index).and_then(Option::as_ref).and_then(Value::as_tensor)
}

fn reload_values(inputs: Vec<Option<Value>>) -> Vec<Operand> {
    inputs.into_iter().map(|input| input.map_or(Operand::Absent, Operand::Value)).collect()
}

/// An integer of 8 bits.
trait Byte: Element {
    const KIND: ByteType;
    fn value(self) -> i32;
    /// The elements of a tensor whose values all have this type; `None` for other tensors.
    fn elements_of(tensor: &Tensor) -> Option<Cow<'_, [Self]>>;
}

impl Byte for u8 {
    const KIND: ByteType = ByteType { signed: false };
    #[inline(always)]
    fn value(self) -> i32 {
        self.into()
    }
    fn elements_of(tensor: &Tensor) -> Option<Cow<'_, [u8]>> {
        tensor.elements().ok().map(Cow::Borrowed)
    }
}

impl Byte for i8 {
    const KIND: ByteType = ByteType { signed: true };
    #[inline(always)]
    fn value(self) -> i32 {
        self.into()
    }
    fn elements_of(tensor: &Tensor) -> Option<Cow<'_, [i8]>> {
        let shift = 8 - tensor.dtype().bits().min(8);
        let signed = |code: u8| (code << shift) as i8 >> shift;
        match tensor.dtype() {
            DType::I4 | DType::I2 => Some(tensor.codes().into_iter().map(signed).collect()),
            DType::U4 | DType::U2 => Some(tensor.codes().into_iter().map(|code| code as i8).collect()),
            _ => tensor.elements().ok().map(Cow::Borrowed),
        }
    }
}

/// Scales and zero points, one, one an index of an axis or one a whole block, and how elements read them; `None` for other forms.
fn parameters<T: Byte>(inputs: &[Option<Value>], axis: i64, block_size: i64) -> Option<(Vec<Parameter>, Runs<2>)> {
    let (x, scale) = (operand(inputs, 0)?, operand(inputs, 1)?);
    let scales = scale.elements::<f32>().ok()?;
    let zeros = match inputs.get(2) {
        None | Some(None) => vec![0; scales.len()],
        Some(Some(_)) => {
            let zero = operand(inputs, 2)?;
            let zeros = T::elements_of(zero)?.iter().map(|zero| zero.value()).collect::<Vec<i32>>();
            match zeros.as_slice() {
                // A zero point without axes is that of all elements.
                &[single] if zero.rank() == 0 => vec![single; scales.len()],
                _ if zero.shape() == scale.shape() => zeros,
                _ => return None,
            }
        }
    };
    let parameters = || scales.iter().copied().zip(zeros).collect();
    let axis = normalize_axis(axis, x.rank()).ok();
    if block_size != 0 {
        // Blocks are an axis of their own, along which the parameters have one element.
        let (axis, block) = (axis?, usize::try_from(block_size).ok()?);
        let blocks = *scale.shape().get(axis)?;
        let (mut extents, mut shape) = (x.shape().to_vec(), scale.shape().to_vec());
        if shape.len() != extents.len() || blocks.checked_mul(block)? != extents[axis] {
            return None;
        }
        extents[axis] = blocks;
        extents.insert(axis + 1, block);
        shape.insert(axis + 1, 1);
        return Some((parameters(), runs(&extents, [&extents, &shape])));
    }
    if scale.rank() > 1 || scales.is_empty() {
        return None;
    }
    let mut shape = vec![1; x.rank()];
    if scales.len() > 1 {
        if x.shape()[axis?] != scales.len() {
            return None;
        }
        shape[axis?] = scales.len();
    }
    Some((parameters(), runs(x.shape(), [x.shape(), &shape])))
}

/// About how many operations a code costs.
const QUANTIZE_COST: usize = 4;

fn quantized<T: Byte>(
    operator: &Quantize,
    inputs: &[Option<Value>],
    context: &mut Context<'_>,
) -> Result<Option<Tensor>, KernelError> {
    let Some((parameters, runs)) = parameters::<T>(inputs, operator.axis, operator.block_size) else {
        return Ok(None);
    };
    let Some(x) = operand(inputs, 0) else { return Ok(None) };
    let mut result = context.allocate(0, T::DTYPE, x.shape())?;
    let (scales, zeros): (Vec<f32>, Vec<i32>) = parameters.into_iter().unzip();
    let (x, instructions) = (x.elements::<f32>()?, Instructions::best());
    in_parts(result.bytes_mut(), QUANTIZE_COST, &|first, out| {
        let mut rest = out;
        runs.visit_runs(first..first + rest.len(), |count, [x_start, start], [_, moves]| {
            let (run, behind) = std::mem::take(&mut rest).split_at_mut(count);
            rest = behind;
            let parameters = match moves {
                true => QuantizeParameters::Each(&scales[start..start + count], &zeros[start..start + count]),
                false => QuantizeParameters::One(scales[start], zeros[start]),
            };
            quantize(instructions, &x[x_start..x_start + count], parameters, T::KIND, run);
        });
    });
    Ok(Some(result))
}

impl Kernel for Quantize {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        let usual = operand(&inputs, 0).is_some_and(|x| x.dtype() == DType::F32)
            && matches!(self.precision, None | Some(DType::F32));
        let result = match self.to {
            DType::U8 if usual => quantized::<u8>(self, &inputs, context)?,
            DType::I8 if usual => quantized::<i8>(self, &inputs, context)?,
            _ => None,
        };
        match result {
            Some(result) => Ok(vec![result.into()]),
            None => run_reference(self, reload_values(inputs), context),
        }
    }
}

fn dequantized<T: Byte>(
    operator: &Dequantize,
    inputs: &[Option<Value>],
    context: &mut Context<'_>,
) -> Result<Option<Tensor>, KernelError> {
    let Some((parameters, runs)) = parameters::<T>(inputs, operator.axis, operator.block_size) else {
        return Ok(None);
    };
    let Some((x, elements)) = operand(inputs, 0).and_then(|x| Some((x, T::elements_of(x)?))) else { return Ok(None) };
    let mut result = context.allocate(0, DType::F32, x.shape())?;
    let value = |x: T, (scale, zero): Parameter| (x.value() - zero) as f32 * scale;
    zip(result.elements_mut::<f32>()?, &elements, &parameters, &runs, 2, &zip_block(value));
    Ok(Some(result))
}

impl Kernel for Dequantize {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        let usual = matches!(self.to, None | Some(DType::F32));
        let result = match operand(&inputs, 0).map(Tensor::dtype) {
            Some(DType::U8) if usual => dequantized::<u8>(self, &inputs, context)?,
            Some(DType::I8 | DType::I4 | DType::U4 | DType::I2 | DType::U2) if usual => {
                dequantized::<i8>(self, &inputs, context)?
            }
            _ => None,
        };
        match result {
            Some(result) => Ok(vec![result.into()]),
            None => run_reference(self, reload_values(inputs), context),
        }
    }
}

/// Elements of a block whose extremes are sought at once, at most.
const EXTREMES_BLOCK: usize = 1 << 14;

/// Vectors of extremes that are found side by side.
const TOGETHER: usize = 4;

/// The least and the greatest element and 0; those that are NaN do not count.
struct Extremes<'a>(&'a [f32]);

impl Routine for Extremes<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> (f32, f32) {
        let (blocks, rest) = self.0.as_chunks::<{ TOGETHER * LANES }>();
        // Several, so that none waits for the one before it.
        let (mut low, mut high) = ([simd.splat(0.0); TOGETHER], [simd.splat(0.0); TOGETHER]);
        for block in blocks {
            let vectors = block.as_chunks::<LANES>().0;
            for index in 0..TOGETHER {
                let x = simd.load(&vectors[index]);
                low[index] = simd.select_less(x, low[index], x, low[index]);
                high[index] = simd.select_less(high[index], x, x, high[index]);
            }
        }
        let (mut lows, mut highs) = ([[0.0; LANES]; TOGETHER], [[0.0; LANES]; TOGETHER]);
        for index in 0..TOGETHER {
            simd.store(low[index], &mut lows[index]);
            simd.store(high[index], &mut highs[index]);
        }
        let low = lows.as_flattened().iter().chain(rest).fold(0f32, |low, &x| low.min(x));
        (low, highs.as_flattened().iter().chain(rest).fold(0f32, |high, &x| high.max(x)))
    }
}

impl Kernel for DynamicQuantize {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        let Some(x) = operand(&inputs, 0).filter(|x| x.dtype() == DType::F32) else {
            return run_reference(self, reload_values(inputs), context);
        };
        let elements = x.elements::<f32>()?;
        // The least and the greatest are the same in any order.
        let mut extremes = vec![(0f32, 0f32); elements.len().div_ceil(EXTREMES_BLOCK)];
        let each_length = elements.len().div_ceil(extremes.len().max(1)).max(1);
        let tasks = extremes.iter_mut().zip(elements.chunks(each_length)).collect();
        each(tasks, |(extremes, elements): (&mut (f32, f32), &[f32])| {
            *extremes = Instructions::best().run(Extremes(elements))
        });
        let (minimum, maximum) =
            extremes.iter().fold((0f32, 0f32), |low_high, &(low, high)| (low_high.0.min(low), low_high.1.max(high)));
        let (scale, zero_point) = dynamic_parameters(minimum, maximum);
        let mut result = context.allocate(0, DType::U8, x.shape())?;
        let parameters = QuantizeParameters::Dynamic(scale, zero_point.into());
        map(result.elements_mut::<u8>()?, elements, QUANTIZE_COST, &|out: &mut [u8], x: &[f32]| {
            quantize(Instructions::best(), x, parameters, u8::KIND, out);
        });
        Ok(vec![result.into(), Tensor::scalar(scale).into(), Tensor::scalar(zero_point).into()])
    }
}
