//! Other orders, ranges and repetitions of the same elements: one strided walk over the operand.

use super::{count, integers, load, refer, tensor, with_words, words, words_mut};
use crate::steps::{Context, Kernel, KernelError, Operand};
use ipuc_formats::ops::broadcast::{broadcast_extents, broadcast_strides};
use ipuc_formats::ops::{
    ChannelOrder, Concat, DepthToSpace, Expand, Slice, SpaceToDepth, Split, Tile, Transpose, normalize_axis,
};
use ipuc_formats::tensor::{Tensor, element_count, strides};
use ipuc_formats::value::Value;
use ipuc_kernels::strided::{Strided, interleave};

/// How a result lies in an operand.
struct Arrangement {
    /// Shape of the result.
    shape: Vec<usize>,
    /// The walk over the operand.
    walk: Strided,
}

impl Arrangement {
    /// A walk along the axes of the result itself.
    fn new(shape: Vec<usize>, strides: &[isize], base: usize) -> Arrangement {
        let walk = Strided::new(&shape, strides, base);
        Arrangement { shape, walk }
    }

    /// The result, or `None` for elements that are no words.
    fn apply(&self, data: &Tensor, result: usize, context: &mut Context<'_>) -> Result<Option<Tensor>, KernelError> {
        with_words!(
            data.dtype(),
            T => {
                let mut target = context.allocate(result, data.dtype(), &self.shape)?;
                self.walk.copy(words::<T>(data), words_mut::<T>(&mut target));
                Ok(Some(target))
            },
            otherwise Ok(None)
        )
    }
}

fn signed(strides: &[usize]) -> Vec<isize> {
    strides.iter().map(|&stride| stride as isize).collect()
}

/// One result by its arrangement; the reference where there is none.
fn arranged<K: Kernel>(
    operator: &K,
    inputs: Vec<Option<Value>>,
    context: &mut Context<'_>,
    arrangement: impl Fn(&Tensor, &[Option<Value>]) -> Option<Arrangement>,
) -> Result<Vec<Value>, KernelError> {
    // Without elements strides say nothing, and may not even fit.
    if let Some(data) = tensor(&inputs, 0).filter(|data| data.count() > 0)
        && let Some(arrangement) = arrangement(data, &inputs)
        && let Some(result) = arrangement.apply(data, 0, context)?
    {
        return Ok(vec![result.into()]);
    }
    refer(operator, inputs, context)
}

impl Kernel for Transpose {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        if let Some(data) = tensor(&inputs, 0).filter(|data| self.keeps_order(data.shape())) {
            let shape: Vec<usize> = self.axes(data.rank())?.into_iter().map(|axis| data.shape()[axis]).collect();
            return Ok(vec![data.reshaped(&shape)?.into()]);
        }
        arranged(self, inputs, context, |data, _| {
            let axes = self.axes(data.rank()).ok()?;
            let own = strides(data.shape());
            let shape = axes.iter().map(|&axis| data.shape()[axis]).collect();
            let strides: Vec<isize> = axes.iter().map(|&axis| own[axis] as isize).collect();
            Some(Arrangement::new(shape, &strides, 0))
        })
    }
}

impl Kernel for Expand {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        arranged(self, load(operands)?, context, |data, inputs| {
            let target = integers(inputs, 1)?.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>().ok()?;
            let shape = broadcast_extents(&[data.shape(), &target]).ok()?;
            element_count(&shape)?;
            let strides = signed(&broadcast_strides(data.shape(), &shape));
            Some(Arrangement::new(shape, &strides, 0))
        })
    }
}

impl Kernel for Slice {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        arranged(self, load(operands)?, context, |data, inputs| {
            let ranges = Slice::operand_ranges(inputs).ok()?;
            let own = strides(data.shape());
            let shape: Vec<usize> = ranges.iter().map(|range| range.extent).collect();
            // Of an axis with one position the step does not matter, and may not even fit.
            let step = |(range, &own): (&ipuc_formats::ops::SliceRange, &usize)| match range.extent {
                0 | 1 => 0,
                _ => range.step as isize * own as isize,
            };
            let steps: Vec<isize> = ranges.iter().zip(&own).map(step).collect();
            let starts = ranges.iter().zip(&own).map(|(range, own)| range.start * own);
            let base = if shape.contains(&0) { 0 } else { starts.sum() };
            Some(Arrangement::new(shape, &steps, base))
        })
    }
}

impl Kernel for Tile {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        arranged(self, load(operands)?, context, |data, inputs| {
            let repeats = integers(inputs, 1)?.into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>().ok()?;
            if repeats.len() != data.rank() {
                return None;
            }
            let own = strides(data.shape());
            let (mut shape, mut extents, mut steps) = (Vec::new(), Vec::new(), Vec::new());
            for (axis, &repeat) in repeats.iter().enumerate() {
                shape.push(data.shape()[axis].checked_mul(repeat)?);
                extents.extend([repeat, data.shape()[axis]]);
                steps.extend([0, own[axis] as isize]);
            }
            element_count(&shape)?;
            Some(Arrangement { shape, walk: Strided::new(&extents, &steps, 0) })
        })
    }
}

/// The extents of an image, a block and the blocks' area, where they fit.
fn blocks(data: &Tensor, block: i64) -> Option<([usize; 4], usize, usize)> {
    let image = <[usize; 4]>::try_from(data.shape()).ok()?;
    let block = usize::try_from(block).ok().filter(|&block| block > 0)?;
    Some((image, block, block.checked_mul(block)?))
}

impl Kernel for DepthToSpace {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        arranged(self, load(operands)?, context, |data, _| {
            let ([batch, depth, height, width], block, area) = blocks(data, self.block)?;
            if !depth.is_multiple_of(area) {
                return None;
            }
            let (channels, plane) = (depth / area, height.checked_mul(width)?);
            let shape = vec![batch, channels, height.checked_mul(block)?, width.checked_mul(block)?];
            let stride = |row, column, channel| self.order.channel(block, channels, channel, row, column) * plane;
            let (row, column, channel) = (stride(1, 0, 0), stride(0, 1, 0), stride(0, 0, 1));
            let extents = [batch, channels, height, block, width, block];
            let steps = signed(&[depth * plane, channel, width, row, 1, column]);
            Some(Arrangement { shape, walk: Strided::new(&extents, &steps, 0) })
        })
    }
}

impl Kernel for SpaceToDepth {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        arranged(self, load(operands)?, context, |data, _| {
            let ([batch, channels, height, width], block, area) = blocks(data, self.block)?;
            if !height.is_multiple_of(block) || !width.is_multiple_of(block) {
                return None;
            }
            let plane = height.checked_mul(width)?;
            let (rows, columns) = (height / block, width / block);
            let shape = vec![batch, channels.checked_mul(area)?, rows, columns];
            let own = (channels, plane as isize);
            let (row, column) = ((block, width as isize), (block, 1));
            let depth = match self.order {
                ChannelOrder::Dcr => [row, column, own],
                ChannelOrder::Crd => [own, row, column],
            };
            let outer = (batch, (channels * plane) as isize);
            let inner = [(rows, (block * width) as isize), (columns, block as isize)];
            let (extents, steps): (Vec<usize>, Vec<isize>) =
                [&[outer], &depth[..], &inner].concat().into_iter().unzip();
            Some(Arrangement { shape, walk: Strided::new(&extents, &steps, 0) })
        })
    }
}

impl Kernel for Split {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        match parts(self, &inputs, context)? {
            Some(parts) => Ok(parts),
            None => refer(self, inputs, context),
        }
    }
}

/// The parts of a tensor whose elements are words.
fn parts(
    split: &Split,
    inputs: &[Option<Value>],
    context: &mut Context<'_>,
) -> Result<Option<Vec<Value>>, KernelError> {
    let Some(data) = tensor(inputs, 0) else { return Ok(None) };
    let axis = normalize_axis(split.axis, data.rank())?;
    let sizes = integers(inputs, 1);
    if sizes.is_none() && matches!(inputs.get(1), Some(Some(_))) {
        return Ok(None);
    }
    let extents = split.extents(sizes.as_deref(), data.shape()[axis])?;
    let own = strides(data.shape());
    let is_view = split.keeps_order(data.shape());
    let mut start = 0;
    let mut parts = Vec::with_capacity(extents.len());
    for (result, extent) in extents.into_iter().enumerate() {
        let mut shape = data.shape().to_vec();
        shape[axis] = extent;
        if let Some(part) = is_view.then(|| data.part(start * own[axis], &shape)).flatten() {
            parts.push(part.into());
            start += extent;
            continue;
        }
        let base = if shape.contains(&0) { 0 } else { start * own[axis] };
        let arrangement = Arrangement::new(shape, &signed(&own), base);
        let Some(part) = arrangement.apply(data, result, context)? else { return Ok(None) };
        parts.push(part.into());
        start += extent;
    }
    Ok(Some(parts))
}

impl Kernel for Concat {
    fn run(&self, operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let inputs = load(operands)?;
        let tensors: Option<Vec<&Tensor>> = (0..inputs.len()).map(|operand| tensor(&inputs, operand)).collect();
        if let Some(tensors) = tensors
            && let Some((axis, shape)) = joined_shape(self.axis, &tensors)
            && let Some(result) = join(axis, &shape, &tensors, context)?
        {
            return Ok(vec![result.into()]);
        }
        refer(self, inputs, context)
    }
}

/// The axis and the shape of the result, where the operands fit.
fn joined_shape(axis: i64, tensors: &[&Tensor]) -> Option<(usize, Vec<usize>)> {
    let first = tensors.first()?;
    let axis = normalize_axis(axis, first.rank()).ok()?;
    let mut shape = first.shape().to_vec();
    shape[axis] = 0;
    for tensor in tensors {
        let fits = |at: usize| at == axis || tensor.shape()[at] == shape[at];
        if tensor.dtype() != first.dtype() || tensor.rank() != shape.len() || !(0..shape.len()).all(fits) {
            return None;
        }
        shape[axis] = shape[axis].checked_add(tensor.shape()[axis])?;
    }
    Some((axis, shape))
}

fn join(
    axis: usize,
    shape: &[usize],
    tensors: &[&Tensor],
    context: &mut Context<'_>,
) -> Result<Option<Tensor>, KernelError> {
    let Some(dtype) = tensors.first().map(|tensor| tensor.dtype()) else { return Ok(None) };
    with_words!(
        dtype,
        T => {
            let mut target = context.allocate(0, dtype, shape)?;
            let run = |tensor: &Tensor| count(&tensor.shape()[axis..]);
            let sources: Vec<(&[T], usize)> = tensors.iter().map(|tensor| (words::<T>(tensor), run(tensor))).collect();
            if target.count() > 0 {
                interleave(&sources, count(&shape[..axis]), words_mut::<T>(&mut target));
            }
            Ok(Some(target))
        },
        otherwise Ok(None)
    )
}
