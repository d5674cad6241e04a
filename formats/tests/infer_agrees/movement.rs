//! Random operands for operators that move elements.

use super::random::Random;
use super::{Case, Generator};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::*;
use ipuc_formats::tensor::Tensor;
use strum::VariantArray;

/// One generator an operator.
pub const GENERATORS: &[Generator] = &[
    reshape,
    flatten,
    squeeze,
    unsqueeze,
    transpose,
    expand,
    concat,
    append,
    split,
    slice,
    pad,
    tile,
    shape,
    size,
    range,
    depth_to_space,
    space_to_depth,
    gather,
    gather_elements,
    gather_nd,
    scatter_elements,
    scatter_nd,
    tensor_scatter,
    one_hot,
    trilu,
    eye_like,
    reverse_sequence,
    center_crop_pad,
    non_zero,
    unique,
    compress,
    top_k,
];

fn vector(elements: &[i64]) -> Tensor {
    Tensor::vector_i64(elements)
}

fn reshape(random: &mut Random) -> Case {
    let shape = random.shape(0..=4);
    let data = random.data(&shape);
    let allow_zero = random.once_in(4);
    // Neighbours merged, and ones in between; then one of them left open, or copied.
    let mut target: Vec<i64> = Vec::new();
    for &extent in &shape {
        match target.last_mut() {
            Some(last) if random.once_in(3) => *last *= extent as i64,
            _ => target.push(extent as i64),
        }
        if random.once_in(4) {
            target.push(1);
        }
    }
    if !target.is_empty() && random.flag() {
        let at = random.below(target.len());
        target[at] = -1;
    }
    for at in 0..target.len().min(shape.len()) {
        if target[at] == shape[at] as i64 && random.once_in(4) && !allow_zero {
            target[at] = 0;
        }
    }
    Case::new(Reshape { allow_zero }, [data, vector(&target)])
}

fn flatten(random: &mut Random) -> Case {
    let shape = random.shape(0..=4);
    let axis = random.between(-(shape.len() as i64), shape.len() as i64);
    Case::new(Flatten { axis }, [random.data(&shape)])
}

fn squeeze(random: &mut Random) -> Case {
    let mut shape = random.shape(0..=4);
    let axes = random.axes(shape.len());
    let rank = shape.len() as i64;
    axes.iter().for_each(|&axis| shape[axis.rem_euclid(rank.max(1)) as usize] = 1);
    let axes = (!random.once_in(4)).then(|| vector(&axes));
    Case::new(Squeeze {}, [random.data(&shape)]).then(axes)
}

fn unsqueeze(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    let count = random.below(3);
    let mut axes = random.axes(shape.len() + count);
    axes.resize(count.min(axes.len()), 0);
    let rank = (shape.len() + axes.len()) as i64;
    let axes: Vec<i64> = axes.iter().map(|&axis| if axis >= rank || axis < -rank { 0 } else { axis }).collect();
    Case::new(Unsqueeze {}, [random.data(&shape), vector(&axes)])
}

fn transpose(random: &mut Random) -> Case {
    let shape = random.shape(0..=4);
    let mut permutation: Vec<i64> = (0..shape.len() as i64).collect();
    for at in (1..shape.len()).rev() {
        permutation.swap(at, random.below(at + 1));
    }
    if random.once_in(4) {
        permutation.clear();
    }
    Case::new(Transpose { permutation }, [random.data(&shape)])
}

fn expand(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    let mut target = random.shape(0..=4);
    let offset = target.len().max(shape.len());
    for (at, &extent) in shape.iter().rev().enumerate() {
        let at = offset.wrapping_sub(at + 1 + (offset - target.len()));
        if let Some(element) = target.get_mut(at)
            && extent != 1
            && *element != 1
        {
            *element = extent;
        }
    }
    let target: Vec<i64> = target.iter().map(|&extent| extent as i64).collect();
    Case::new(Expand {}, [random.data(&shape), vector(&target)])
}

fn concat(random: &mut Random) -> Case {
    let shape = random.shape(1..=3);
    let axis = random.axis(shape.len());
    let first = random.data(&shape);
    let mut parts = vec![first.clone()];
    for _ in 0..random.below(4) {
        let mut shape = shape.clone();
        let at = axis.rem_euclid(shape.len() as i64) as usize;
        shape[at] = random.extent();
        parts.push(random.like(&first, &shape));
    }
    Case::new(Concat { axis }, parts)
}

fn append(random: &mut Random) -> Case {
    let shape = random.shape(1..=3);
    let at = random.below(shape.len());
    let past = random.data(&shape);
    let mut added = shape.clone();
    added[at] = random.extent();
    let new = random.like(&past, &added);
    let first = random.flag().then(|| vector(&[shape[at] as i64]));
    let length = random.flag().then(|| vector(&[(shape[at] + added[at]) as i64]));
    let rows = (past.dtype() == DType::F32 && random.flag()).then_some(RowScheme::I8);
    Case::new(Append { axis: at as i64, rows }, [past, new]).then(first).then(length)
}

fn split(random: &mut Random) -> Case {
    let mut shape = random.shape(1..=3);
    let axis = random.axis(shape.len());
    let at = axis.rem_euclid(shape.len() as i64) as usize;
    let parts = 1 + random.below(4);
    let sizes: Vec<i64> = (0..parts).map(|_| random.extent() as i64).collect();
    let given = random.flag();
    if given {
        shape[at] = sizes.iter().sum::<i64>() as usize;
    } else if random.flag() {
        shape[at] *= parts;
    }
    let even = random.flag();
    let op = Split { axis, parts: parts as i64, even };
    Case::new(op, [random.data(&shape)]).then(given.then(|| vector(&sizes)))
}

fn slice(random: &mut Random) -> Case {
    let shape = random.shape(1..=3);
    let axes = random.axes(shape.len());
    let count = axes.len();
    let ends = [i64::MIN, i64::MAX, i64::from(i32::MAX), i64::from(i32::MIN)];
    let mut bound = || if random.once_in(4) { random.one_of(&ends) } else { random.between(-6, 6) };
    let starts: Vec<i64> = (0..count).map(|_| bound()).collect();
    let stops: Vec<i64> = (0..count).map(|_| bound()).collect();
    let steps: Vec<i64> = (0..count).map(|_| random.one_of(&[1, 1, 1, 2, 3, -1, -2, i64::MAX, i64::MIN])).collect();
    let axes = (!random.once_in(4)).then(|| vector(&axes));
    let steps = random.flag().then(|| vector(&steps));
    Case::new(Slice {}, [random.data(&shape), vector(&starts), vector(&stops)]).then(axes).then(steps)
}

fn pad(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    let mode = random.one_of(PadMode::VARIANTS);
    let axes = random.flag().then(|| random.axes(shape.len()));
    let count = axes.as_ref().map_or(shape.len(), Vec::len);
    let pads: Vec<i64> = (0..2 * count).map(|_| random.between(-1, 3)).collect();
    let data = random.data(&shape);
    let value = random.flag().then(|| random.like(&data, &[]));
    Case::new(Pad { mode }, [data, vector(&pads)]).then(value).then(axes.map(|axes| vector(&axes)))
}

fn tile(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    let repeats: Vec<i64> = shape.iter().map(|_| random.between(0, 3)).collect();
    Case::new(Tile {}, [random.data(&shape), vector(&repeats)])
}

fn shape(random: &mut Random) -> Case {
    let shape = random.shape(0..=4);
    let end = random.flag().then(|| random.between(-6, 6));
    Case::new(ShapeOf { start: random.between(-6, 6), end }, [random.data(&shape)])
}

fn size(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    Case::new(SizeOf {}, [random.data(&shape)])
}

fn range(random: &mut Random) -> Case {
    let bounds = [random.between(-5, 9), random.between(-5, 9), random.between(-3, 3)];
    if random.flag() {
        return Case::new(Range {}, bounds.map(Tensor::scalar::<i64>));
    }
    Case::new(Range {}, bounds.map(|bound| Tensor::scalar::<f32>(bound as f32 / 2.0)))
}

fn depth_to_space(random: &mut Random) -> Case {
    let block = 1 + random.below(3);
    let mut shape = random.shape(4..=4);
    shape[1] *= block * block;
    let order = random.one_of(ChannelOrder::VARIANTS);
    Case::new(DepthToSpace { block: block as i64, order }, [random.data(&shape)])
}

fn space_to_depth(random: &mut Random) -> Case {
    let block = 1 + random.below(3);
    let mut shape = random.shape(4..=4);
    shape[2] *= block;
    shape[3] *= block;
    let order = random.one_of(ChannelOrder::VARIANTS);
    Case::new(SpaceToDepth { block: block as i64, order }, [random.data(&shape)])
}

fn gather(random: &mut Random) -> Case {
    let shape = random.shape(1..=3);
    let axis = random.axis(shape.len());
    let extent = shape[axis.rem_euclid(shape.len() as i64) as usize];
    let index_shape = random.shape(0..=2);
    Case::new(Gather { axis }, [random.data(&shape), random.indices(&index_shape, extent)])
}

/// Data, indices into it and an axis, as for `GatherElements`.
fn elements(random: &mut Random) -> (Tensor, Tensor, i64) {
    let shape = random.shape(1..=3);
    let axis = random.axis(shape.len());
    let at = axis.rem_euclid(shape.len() as i64) as usize;
    let mut index_shape: Vec<usize> = shape.iter().map(|&extent| random.below(extent + 1)).collect();
    index_shape[at] = random.extent();
    (random.data(&shape), random.indices(&index_shape, shape[at]), axis)
}

fn gather_elements(random: &mut Random) -> Case {
    let (data, indices, axis) = elements(random);
    Case::new(GatherElements { axis }, [data, indices])
}

/// Tuples of indices into axes from `batch` on.
fn tuples(random: &mut Random, outer: &[usize], axes: &[usize]) -> Tensor {
    let count = outer.iter().product::<usize>();
    let mut indices = Vec::new();
    for _ in 0..count {
        for &extent in axes {
            let extent = extent as i64;
            indices.push(if extent == 0 { 0 } else { random.between(-extent, extent - 1) });
        }
    }
    Tensor::from_elements(&[outer, &[axes.len()]].concat(), &indices).unwrap()
}

fn gather_nd(random: &mut Random) -> Case {
    let shape = random.shape(1..=4);
    let batch = random.below(shape.len());
    let length = 1 + random.below(shape.len() - batch);
    let outer = [&shape[..batch], &random.shape(0..=2)].concat();
    let indices = tuples(random, &outer, &shape[batch..batch + length]);
    Case::new(GatherNd { batch_dims: batch as i64 }, [random.data(&shape), indices])
}

fn scatter_elements(random: &mut Random) -> Case {
    let (data, indices, axis) = elements(random);
    let reduction = random.one_of(ScatterReduction::VARIANTS);
    let updates = random.like(&data, indices.shape());
    Case::new(ScatterElements { axis, reduction }, [data, indices, updates])
}

fn scatter_nd(random: &mut Random) -> Case {
    let shape = random.shape(1..=3);
    let length = 1 + random.below(shape.len());
    let outer = random.shape(0..=2);
    let indices = tuples(random, &outer, &shape[..length]);
    let data = random.data(&shape);
    let updates = random.like(&data, &[&outer[..], &shape[length..]].concat());
    let reduction = random.one_of(ScatterReduction::VARIANTS);
    Case::new(ScatterNd { reduction }, [data, indices, updates])
}

fn tensor_scatter(random: &mut Random) -> Case {
    let shape = random.shape(2..=4);
    let axis = 1 + random.below(shape.len() - 1);
    let mut update = shape.clone();
    update[axis] = random.below(shape[axis] + 1);
    let room = (shape[axis] - update[axis]) as i64;
    let mode = random.one_of(CacheMode::VARIANTS);
    let last = if mode == CacheMode::Linear { room } else { 9 };
    let starts: Vec<i64> = (0..shape[0]).map(|_| random.between(0, last)).collect();
    let cache = random.data(&shape);
    let update = random.like(&cache, &update);
    let starts = random.flag().then(|| vector(&starts));
    Case::new(TensorScatter { axis: axis as i64, mode }, [cache, update]).then(starts)
}

fn one_hot(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    let axis = random.axis(shape.len() + 1);
    let depth = random.extent() as i64;
    let depth = if random.flag() { Tensor::scalar::<i64>(depth) } else { Tensor::scalar::<f32>(depth as f32) };
    Case::new(OneHot { axis }, [random.numbers(&shape), depth, random.data(&[2])])
}

fn trilu(random: &mut Random) -> Case {
    let shape = random.shape(2..=4);
    let diagonal = random.flag().then(|| Tensor::scalar::<i64>(random.between(-4, 4)));
    Case::new(Trilu { upper: random.flag() }, [random.data(&shape)]).then(diagonal)
}

fn eye_like(random: &mut Random) -> Case {
    let shape = random.shape(2..=2);
    let dtype = random.one_of(&[DType::F32, DType::I64, DType::Bool, DType::U4]);
    Case::new(EyeLike { dtype, diagonal: random.between(-3, 3) }, [random.data(&shape)])
}

fn reverse_sequence(random: &mut Random) -> Case {
    let shape = random.shape(2..=4);
    let (batch_axis, time_axis) = random.one_of(&[(0, 1), (1, 0), (-1, 0)]);
    let extent = |axis: i64| shape[axis.rem_euclid(shape.len() as i64) as usize];
    let lengths: Vec<i64> = (0..extent(batch_axis)).map(|_| random.below(extent(time_axis) + 1) as i64).collect();
    Case::new(ReverseSequence { batch_axis, time_axis }, [random.data(&shape), vector(&lengths)])
}

fn center_crop_pad(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    let axes = random.flag().then(|| random.axes(shape.len()));
    let count = axes.as_ref().map_or(shape.len(), Vec::len);
    let target: Vec<i64> = (0..count).map(|_| random.extent() as i64).collect();
    Case::new(CenterCropPad { axes }, [random.data(&shape), vector(&target)])
}

fn non_zero(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    Case::new(NonZero {}, [random.data(&shape)])
}

fn unique(random: &mut Random) -> Case {
    let shape = random.shape(1..=3);
    let axis = random.flag().then(|| random.axis(shape.len()));
    Case::new(Unique { axis, sorted: random.flag() }, [random.data(&shape)])
}

fn compress(random: &mut Random) -> Case {
    let shape = random.shape(1..=3);
    let axis = random.flag().then(|| random.axis(shape.len()));
    let chosen: Vec<bool> = (0..random.extent()).map(|_| random.flag()).collect();
    Case::new(Compress { axis }, [random.data(&shape), Tensor::from_bools(&[chosen.len()], &chosen).unwrap()])
}

fn top_k(random: &mut Random) -> Case {
    let shape = random.shape(1..=3);
    let axis = random.axis(shape.len());
    let extent = shape[axis.rem_euclid(shape.len() as i64) as usize];
    let k = random.below(extent + 1) as i64;
    let op = TopK { axis, largest: random.flag(), sorted: random.flag() };
    Case::new(op, [random.numbers(&shape), vector(&[k])])
}
