//! Resampling: weighted sums of floats in f32, choices of elements of any type; regions and integers by the reference.

use crate::steps::products::floats::{computes_in_f32, produce, widened};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use bytemuck::Pod;
use ipuc_formats::ops::{Resize, ResizeAxis, ResizeCoordinates, ResizeMode, ResizeOperands, ResizeTaps, TypeError};
use ipuc_formats::tensor::{Tensor, TensorError, element_count};
use ipuc_formats::value::Value;
use ipuc_kernels::resample::{AxisTaps, choose, resample};

impl Kernel for Resize {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let x = tensor_operand(&mut operands, 0)?;
        let chooses = self.mode == ResizeMode::Nearest && matches!(x.dtype().bits(), 8 | 16 | 32 | 64 | 128);
        let whole = self.coordinates != ResizeCoordinates::TfCropAndResize;
        if !whole || !(chooses || (self.mode != ResizeMode::Nearest && computes_in_f32(x.dtype()))) {
            operands[0] = Operand::Value(x.into());
            return run_reference(self, operands, context);
        }
        let scales = list(&mut operands, 2, |tensor| Ok(tensor.elements::<f32>()?.to_vec()))?;
        let sizes = list(&mut operands, 3, |tensor| Ok(tensor.elements::<i64>()?.to_vec()))?;
        let axes = self.resolve(x.shape(), ResizeOperands { roi: &[], scales: &scales, sizes: &sizes })?;
        let shape: Vec<usize> = axes.iter().map(|axis| axis.output).collect();
        if element_count(&shape).is_none() {
            return Err(TypeError::Unsupported(format!("a result of shape {shape:?}")).into());
        }
        let result = if shape.contains(&0) {
            // The other extents may be of any size, so that nothing is made for them.
            context.allocate(0, x.dtype(), &shape)?
        } else if chooses {
            chosen(self, &x, &axes, &shape, context)?
        } else {
            let values = widened(&x)?;
            let no_memory = || TensorError::Memory { dtype: x.dtype(), shape: shape.clone() };
            let bits: Vec<usize> = scales.iter().map(|scale| scale.to_bits() as usize).collect();
            // Extents have been checked.
            let extents: Vec<usize> = sizes.iter().map(|&size| size as usize).collect();
            let taps = context.prepared(&[x.shape(), &bits, &extents], || {
                axes.iter().map(|axis| taps(self, axis)).collect::<Option<Vec<_>>>().ok_or_else(no_memory)
            })?;
            produce(context, x.dtype(), &shape, |out| {
                Ok(resample(&values, x.shape(), &taps, out).ok_or_else(no_memory)?)
            })?
        };
        Ok(vec![result.into()])
    }
}

/// The elements of an optional operand.
fn list<T>(
    operands: &mut [Operand],
    index: usize,
    elements: impl Fn(&Tensor) -> Result<Vec<T>, KernelError>,
) -> Result<Vec<T>, KernelError> {
    match operands.get(index) {
        None | Some(Operand::Absent) => Ok(Vec::new()),
        Some(_) => elements(&tensor_operand(operands, index)?),
    }
}

/// The taps of an axis, or none where it does not change; `None` where there is no memory for them.
fn taps(operator: &Resize, axis: &ResizeAxis) -> Option<Option<AxisTaps>> {
    if operator.keeps(axis) {
        return Some(None);
    }
    let mut taps = AxisTaps { input: axis.input, starts: Vec::new(), positions: Vec::new(), weights: Vec::new() };
    taps.starts.try_reserve_exact(axis.output.checked_add(1)?).ok()?;
    taps.starts.push(0);
    for position in 0..axis.output {
        if let ResizeTaps::Weighted(weighted) = operator.taps(axis, position) {
            taps.positions.try_reserve(weighted.len()).ok()?;
            taps.weights.try_reserve(weighted.len()).ok()?;
            for (position, weight) in weighted.into_iter().filter(|(_, weight)| *weight != 0.0) {
                taps.positions.push(position);
                taps.weights.push(weight as f32);
            }
        }
        taps.starts.push(taps.positions.len());
    }
    Some(Some(taps))
}

/// The result of mode `nearest`.
fn chosen(
    operator: &Resize,
    x: &Tensor,
    axes: &[ResizeAxis],
    shape: &[usize],
    context: &mut Context<'_>,
) -> Result<Tensor, KernelError> {
    let positions = |axis: &ResizeAxis| {
        let mut positions = Vec::new();
        positions.try_reserve_exact(axis.output).ok()?;
        positions.extend((0..axis.output).map(|output| operator.chosen(axis, output)));
        Some(positions)
    };
    let no_memory = || TensorError::Memory { dtype: x.dtype(), shape: shape.to_vec() };
    let mut result = context.allocate(0, x.dtype(), shape)?;
    let chosen: Option<Vec<Vec<usize>>> = axes.iter().map(positions).collect();
    let chosen = chosen.ok_or_else(no_memory)?;
    let moved = match x.dtype().bits() {
        8 => move_elements::<u8>(x, &chosen, &mut result),
        16 => move_elements::<u16>(x, &chosen, &mut result),
        32 => move_elements::<u32>(x, &chosen, &mut result),
        64 => move_elements::<u64>(x, &chosen, &mut result),
        _ => move_elements::<u128>(x, &chosen, &mut result),
    };
    moved.ok_or_else(no_memory)?;
    Ok(result)
}

fn move_elements<T: Pod + Send + Sync>(x: &Tensor, chosen: &[Vec<usize>], result: &mut Tensor) -> Option<()> {
    choose::<T>(bytemuck::cast_slice(x.bytes()), x.shape(), chosen, bytemuck::cast_slice_mut(result.bytes_mut()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::testing::{Heap, agree};
    use ipuc_formats::ops::{NoBlocks, Operator, ReferenceContext, ResizeNearest, ResizePolicy};

    #[test]
    fn taps_of_another_scale_are_not_those_of_the_run_before() {
        let resize = Resize {
            mode: ResizeMode::Linear,
            coordinates: ResizeCoordinates::HalfPixel,
            nearest: ResizeNearest::Floor,
            cubic_coefficient: -0.75,
            exclude_outside: false,
            extrapolation: 0.0,
            antialias: false,
            axes: Vec::new(),
            policy: ResizePolicy::Stretch,
        };
        let x = Tensor::from_elements(&[3], &[1.0f32, 2.0, 4.0]).unwrap();
        let (mut blocks, mut memory) = (NoBlocks, Heap::default());
        // Each gives six elements.
        for scale in [2.0f32, 2.2, 2.0] {
            let scales = Tensor::from_elements(&[1], &[scale]).unwrap();
            let inputs = [Some(Value::from(x.clone())), None, Some(scales.into())];
            let expected = resize.reference(&inputs, &mut ReferenceContext::new(&mut NoBlocks)).unwrap();
            let operands = inputs.into_iter().map(|input| input.map_or(Operand::Absent, Operand::Value)).collect();
            let mut context =
                Context { blocks: &mut blocks, memory: &mut memory, random_state: 0, skipped: Default::default() };
            let results = resize.run(operands, &mut context).unwrap();
            let found: Vec<Tensor> = results.iter().map(|result| result.as_tensor().unwrap().clone()).collect();
            agree(&resize, &found, &expected, 1e-6);
        }
    }
}
