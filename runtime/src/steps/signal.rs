//! Spectra.

use crate::steps::{Context, Kernel, KernelError, Operand, run_reference};
use ipuc_formats::dtype::DType;
use ipuc_formats::element::Number;
use ipuc_formats::ops::{
    FourierLines, FourierTransform, Frames, MelWeights, ReferenceError, ShortTimeFourierTransform, TimeWarping, Window,
    tensor,
};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_kernels::fourier::{Complex, Plan};

/// Element types that are transformed here; others by the reference.
trait Real: Number + Into<f64> + Default {}
impl Real for f32 {}
impl Real for f64 {}

fn load(operands: Vec<Operand>) -> Result<Vec<Option<Value>>, KernelError> {
    operands.into_iter().map(Operand::into_value).collect()
}

fn reload(inputs: Vec<Option<Value>>) -> Vec<Operand> {
    inputs.into_iter().map(|input| input.map_or(Operand::Absent, Operand::Value)).collect()
}

fn store_complex<T: Real>(points: &[Complex<f64>], scale: f64, target: &mut [T]) {
    for (target, point) in target.as_chunks_mut::<2>().0.iter_mut().zip(points) {
        *target = [T::from_f64_lossy(point.re * scale), T::from_f64_lossy(point.im * scale)];
    }
}

impl Kernel for MelWeights {}
impl Kernel for TimeWarping {}
impl Kernel for Window {}

impl Kernel for FourierTransform {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        let dtype = tensor(&inputs, 0)?.dtype();
        let lines = self.lines(&inputs)?;
        if !matches!(dtype, DType::F32 | DType::F64) || lines.shape.contains(&0) || lines.extent == 0 {
            return run_reference(self, reload(inputs), context);
        }
        let mut result = context.allocate(0, dtype, &lines.shape)?;
        let signal = tensor(&inputs, 0)?;
        match dtype {
            DType::F32 => transform::<f32>(self, &lines, signal, &mut result)?,
            _ => transform::<f64>(self, &lines, signal, &mut result)?,
        }
        Ok(vec![result.into()])
    }
}

fn transform<T: Real>(
    operator: &FourierTransform,
    lines: &FourierLines,
    signal: &Tensor,
    result: &mut Tensor,
) -> Result<(), ReferenceError> {
    let FourierLines { extent, inner, parts, length, bins, result_parts, .. } = *lines;
    let source = signal.elements::<T>()?;
    let taken = extent.min(length);
    let load = |line: usize, points: &mut [Complex<f64>]| {
        let start = (line / inner * extent * inner + line % inner) * parts;
        let point = |position: usize| {
            let at = start + position * inner * parts;
            Complex::new(source[at].into(), if parts == 2 { source[at + 1].into() } else { 0.0 })
        };
        points.fill(Complex::default());
        if result_parts == 1 {
            // The spectrum of a real signal: its second half mirrors the first.
            for position in 0..taken.min(length / 2 + 1) {
                points[position] = point(position);
                if position > 0 && position < length - position {
                    points[length - position] = point(position).conj();
                }
            }
        } else {
            (0..taken).for_each(|position| points[position] = point(position));
        }
    };
    let scale = if operator.inverse { 1.0 / length as f64 } else { 1.0 };
    let store = |points: &[Complex<f64>], target: &mut [T]| {
        if result_parts == 1 {
            let pairs = target.iter_mut().zip(points);
            pairs.for_each(|(target, point)| *target = T::from_f64_lossy(point.re * scale));
        } else {
            store_complex(points, scale, target);
        }
    };
    let singles = T::DTYPE == DType::F32 && parts == 2 && result_parts == 2;
    let plan = if singles { Plan::of_complex_singles } else { Plan::new }(length, operator.inverse);
    let target = result.elements_mut::<T>()?;
    if inner == 1 {
        plan.lines(target, bins * result_parts, load, store);
        return Ok(());
    }
    // Lines are strided in the result: transform them side by side, then spread them out.
    let mut spectra = vec![T::default(); target.len()];
    plan.lines(&mut spectra, bins * result_parts, load, store);
    let blocks = target.chunks_exact_mut(bins * inner * result_parts);
    for (block, spectra) in blocks.zip(spectra.chunks_exact(bins * inner * result_parts)) {
        for (bin, row) in block.chunks_exact_mut(inner * result_parts).enumerate() {
            for (offset, target) in row.chunks_exact_mut(result_parts).enumerate() {
                let start = (offset * bins + bin) * result_parts;
                target.copy_from_slice(&spectra[start..start + result_parts]);
            }
        }
    }
    Ok(())
}

impl Kernel for ShortTimeFourierTransform {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        let dtype = tensor(&inputs, 0)?.dtype();
        let frames = self.frames(&inputs)?;
        if !matches!(dtype, DType::F32 | DType::F64) || frames.batch == 0 {
            return run_reference(self, reload(inputs), context);
        }
        let mut result = context.allocate(0, dtype, &[frames.batch, frames.frames, frames.bins, 2])?;
        let signal = tensor(&inputs, 0)?;
        match dtype {
            DType::F32 => transform_frames::<f32>(&frames, signal, &mut result)?,
            _ => transform_frames::<f64>(&frames, signal, &mut result)?,
        }
        Ok(vec![result.into()])
    }
}

fn transform_frames<T: Real>(frames: &Frames, signal: &Tensor, result: &mut Tensor) -> Result<(), ReferenceError> {
    let source = signal.elements::<T>()?;
    let load = |line: usize, points: &mut [Complex<f64>]| {
        let start = line / frames.frames * frames.extent + line % frames.frames * frames.step;
        let frame = &source[start * frames.parts..(start + frames.length) * frames.parts];
        for (offset, (point, parts)) in points.iter_mut().zip(frame.chunks_exact(frames.parts)).enumerate() {
            let weight = frames.window.as_ref().map_or(1.0, |window| window[offset]);
            let part = |index: usize| parts.get(index).map_or(0.0, |&part| part.into() * weight);
            *point = Complex::new(part(0), part(1));
        }
    };
    let store = |points: &[Complex<f64>], target: &mut [T]| store_complex(points, 1.0, target);
    Plan::new(frames.length, false).lines(result.elements_mut::<T>()?, frames.bins * 2, load, store);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::Heap;
    use ipuc_formats::ops::{NoBlocks, Operator, ReferenceContext};

    fn numbers(shape: &[usize]) -> Tensor {
        let count: usize = shape.iter().product();
        let elements: Vec<f32> = (0..count).map(|index| ((index * 37 + 11) % 101) as f32 / 50.0 - 1.0).collect();
        Tensor::from_elements(shape, &elements).expect("elements that fill the shape")
    }

    /// The kernel and the reference give the same, but for rounding.
    fn compare<K: Kernel>(operator: &K, inputs: &[Option<Value>]) {
        let operands = inputs.iter().map(|input| input.clone().map_or(Operand::Absent, Operand::Value)).collect();
        let (mut blocks, mut memory) = (NoBlocks, Heap::default());
        let mut context =
            Context { blocks: &mut blocks, memory: &mut memory, random_state: 0, skipped: Default::default() };
        let found = operator.run(operands, &mut context).expect("a result");
        let mut blocks = NoBlocks;
        let expected =
            Operator::reference(operator, inputs, &mut ReferenceContext::new(&mut blocks)).expect("a result");
        let (found, expected) = (tensor_of(&found), tensor_of(&expected));
        assert_eq!(found.shape(), expected.shape());
        let pairs = found.elements::<f32>().expect("f32").iter().zip(expected.elements::<f32>().expect("f32"));
        pairs
            .for_each(|(found, expected)| assert!((found - expected).abs() < 1e-4, "{operator:?}: {found} {expected}"));
    }

    fn tensor_of(values: &[Value]) -> &Tensor {
        values.first().and_then(Value::as_tensor).expect("a tensor")
    }

    #[test]
    fn transforms_agree_with_the_reference() {
        for (inverse, onesided) in [(false, false), (false, true), (true, false), (true, true)] {
            let parts = match (inverse, onesided) {
                (false, true) => &[1][..],
                (true, true) => &[2],
                (_, false) => &[1, 2],
            };
            let operator = FourierTransform { inverse, onesided };
            for &parts in parts {
                for (axis, length) in [(0, None), (1, None), (2, Some(5)), (1, Some(12)), (-2, Some(3)), (0, Some(1))] {
                    let signal = Some(numbers(&[3, 7, 4, parts]).into());
                    let length = length.map(|length: i64| Tensor::scalar(length).into());
                    compare(&operator, &[signal, length, Some(Tensor::scalar(axis as i64).into())]);
                }
            }
        }
    }

    #[test]
    fn frames_agree_with_the_reference() {
        let step = Some(Value::from(Tensor::scalar(3i64)));
        let length = Some(Value::from(Tensor::scalar(8i64)));
        for (onesided, parts) in [(true, 1), (false, 1), (false, 2)] {
            let operator = ShortTimeFourierTransform { onesided };
            let signal = Some(numbers(&[2, 50, parts]).into());
            compare(&operator, &[signal.clone(), step.clone(), Some(numbers(&[9]).into())]);
            compare(&operator, &[signal, step.clone(), None, length.clone()]);
        }
    }
}
