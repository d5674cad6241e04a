//! Random operands for products, windows and resampling.

use super::random::Random;
use super::{Case, Generator};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::*;
use ipuc_formats::tensor::Tensor;
use strum::VariantArray;

/// One generator an operator.
pub const GENERATORS: &[Generator] = &[
    matmul,
    integer_matmul,
    einsum,
    determinant,
    convolution,
    blocked_convolution,
    integer_convolution,
    convolution_transpose,
    deformable_convolution,
    pool,
    resize,
    grid_sample,
    affine_grid,
    roi_align,
    max_roi_pool,
    max_unpool,
    col2im,
];

fn f32s(random: &mut Random, shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let elements: Vec<f32> = (0..count).map(|_| random.between(-6, 9) as f32 / 2.0).collect();
    Tensor::from_elements(shape, &elements).unwrap()
}

fn u8s(random: &mut Random, shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let elements: Vec<u8> = (0..count).map(|_| random.below(256) as u8).collect();
    Tensor::from_elements(shape, &elements).unwrap()
}

/// Extents that are never 0.
fn extents(random: &mut Random, rank: usize, most: i64) -> Vec<usize> {
    (0..rank).map(|_| random.between(1, most) as usize).collect()
}

/// Some values of an attribute, or none for its default.
fn list(random: &mut Random, count: usize, low: i64, high: i64) -> Vec<i64> {
    if random.once_in(3) { Vec::new() } else { (0..count).map(|_| random.between(low, high)).collect() }
}

fn joined(parts: &[&[usize]]) -> Vec<usize> {
    parts.concat()
}

/// Shapes of a product: batches that broadcast, vectors now and then.
fn product_shapes(random: &mut Random) -> (Vec<usize>, Vec<usize>) {
    let shared = random.extent();
    let batch = random.shape(0..=2);
    let sides = [random.extent(), random.extent()];
    let mut side = |left: bool| {
        if random.once_in(6) {
            return vec![shared];
        }
        let cut = random.below(batch.len() + 1);
        let mut shape: Vec<usize> =
            batch[cut..].iter().map(|&extent| if random.once_in(4) { 1 } else { extent }).collect();
        shape.extend(if left { [sides[0], shared] } else { [shared, sides[1]] });
        shape
    };
    (side(true), side(false))
}

fn matmul(random: &mut Random) -> Case {
    let (mut a, mut b) = product_shapes(random);
    let (transpose_a, transpose_b) = (random.flag(), random.flag());
    for (shape, transposed) in [(&mut a, transpose_a), (&mut b, transpose_b)] {
        if let (true, [.., first, second]) = (transposed, shape.as_mut_slice()) {
            std::mem::swap(first, second);
        }
    }
    let operands = [f32s(random, &a), f32s(random, &b)];
    Case::new(Matmul::new(transpose_a, transpose_b), operands)
}

fn integer_matmul(random: &mut Random) -> Case {
    let (a, b) = product_shapes(random);
    let program = requantized(random);
    let decoded = !program.is_empty() && random.flag();
    let left = u8s(random, &a);
    let right = if decoded { f32s(random, &b) } else { u8s(random, &b) };
    let mut zero_point = |shape: &[usize], left: bool| {
        let length = match shape {
            [.., rows, _] if left => *rows,
            [.., columns] => *columns,
            [] => 1,
        };
        let shape = if random.flag() || shape.len() < 2 { vec![] } else { vec![length] };
        (!random.once_in(3)).then(|| u8s(random, &shape))
    };
    let (a_zero, b_zero) = (zero_point(&a, true), zero_point(&b, false).filter(|_| !decoded));
    Case::new(IntegerMatmul { program }, [left, right]).then(a_zero).then(b_zero)
}

fn einsum(random: &mut Random) -> Case {
    let (i, j, k, b) = (random.extent(), random.extent(), random.extent(), random.extent());
    let forms: [(&str, Vec<Vec<usize>>); 7] = [
        ("ij,jk->ik", vec![vec![i, j], vec![j, k]]),
        ("bij,bjk", vec![vec![b, i, j], vec![b, j, k]]),
        ("...ii->...i", vec![vec![b, i, i]]),
        ("...ij,...jk->...ik", vec![vec![b, 1, i, j], vec![k, j, k]]),
        ("ij->", vec![vec![i, j]]),
        ("i,j,ij->ji", vec![vec![i], vec![j], vec![i, j]]),
        ("b...->...", vec![vec![b, i, j]]),
    ];
    let (equation, shapes) = &forms[random.below(forms.len())];
    let operands: Vec<Tensor> = shapes.iter().map(|shape| f32s(random, shape)).collect();
    Case::new(Einsum { equation: equation.to_string() }, operands)
}

fn determinant(random: &mut Random) -> Case {
    let size = random.extent();
    let shape = joined(&[&random.shape(0..=2), &[size, size]]);
    let x = f32s(random, &shape);
    Case::new(Determinant {}, [x])
}

/// Shapes of a convolution of some groups, and its attributes.
struct Windowed {
    groups: i64,
    x: Vec<usize>,
    w: Vec<usize>,
    auto_pad: Option<AutoPad>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    pads: Vec<i64>,
}

fn windowed(random: &mut Random) -> Windowed {
    let rank = random.between(1, 3) as usize;
    let groups = random.between(1, 2) as usize;
    let (channels, filters) = (random.between(1, 3) as usize, random.between(1, 3) as usize);
    let batch = random.extent();
    let image: Vec<usize> = (0..rank).map(|_| random.between(2, 7) as usize).collect();
    let kernel = extents(random, rank, 3);
    let auto_pad = if random.flag() { None } else { Some(random.one_of(AutoPad::VARIANTS)) };
    Windowed {
        groups: groups as i64,
        x: joined(&[&[batch, channels * groups], &image]),
        w: joined(&[&[filters * groups, channels], &kernel]),
        auto_pad,
        strides: list(random, rank, 1, 3),
        dilations: list(random, rank, 1, 2),
        pads: if auto_pad.is_some() { Vec::new() } else { list(random, 2 * rank, 0, 2) },
    }
}

fn convolution(random: &mut Random) -> Case {
    let Windowed { groups, x, w, auto_pad, strides, dilations, pads } = windowed(random);
    let (arithmetic, program) = (Arithmetic::default(), Program::default());
    let op = Convolution { auto_pad, strides, dilations, pads, groups, arithmetic, program };
    let operands = [f32s(random, &x), f32s(random, &w)];
    let bias = random.flag().then(|| f32s(random, &w[..1]));
    Case::new(op, operands).then(bias)
}

fn blocked_convolution(random: &mut Random) -> Case {
    let Windowed { mut x, mut w, strides, dilations, pads, .. } = windowed(random);
    let pads = if pads.is_empty() { list(random, 2 * (x.len() - 2), 0, 1) } else { pads };
    // There are many channels: few positions are enough.
    x[0] = x[0].min(2);
    x[2..].iter_mut().for_each(|extent| *extent = (*extent).min(4));
    w[2..].iter_mut().for_each(|extent| *extent = (*extent).min(2));
    // Groups, and blocks of channels and of filters of one; groups of one channel and one filter are all of one block.
    let (groups, channels, filters) =
        random.one_of(&[(1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1), (2, 1, 2), (0, 0, 0)]);
    let (depthwise, blocks) = (groups == 0, random.between(1, 2) as usize);
    let plain_inputs = !depthwise && random.flag();
    (x[1], w[0], w[1]) = match (depthwise, plain_inputs) {
        (true, _) => (blocks, CHANNEL_BLOCK * blocks, 1),
        (false, false) => (groups * channels, CHANNEL_BLOCK * groups * filters, CHANNEL_BLOCK * channels),
        (false, true) => (groups * channels, CHANNEL_BLOCK * groups * filters, channels),
    };
    if !plain_inputs {
        x.push(CHANNEL_BLOCK);
    }
    let groups = (if depthwise { w[0] } else { groups }) as i64;
    let (arithmetic, program) = (Arithmetic::default(), Program::default());
    let op = BlockedConvolution { strides, dilations, pads, groups, arithmetic, program, plain_inputs };
    let operands = [f32s(random, &x), f32s(random, &w)];
    let bias = random.flag().then(|| f32s(random, &w[..1]));
    Case::new(op, operands).then(bias)
}

/// A program over sums of integers, or none.
fn requantized(random: &mut Random) -> Program {
    let mut program = Program::default();
    if random.flag() {
        let value = program.push(Function::Cast, vec![Argument::Input], DType::F32);
        let scale = Function::Binary(BinaryFunction::Mul);
        let value = program.push(scale, vec![value, Argument::f32(0.37)], DType::F32);
        let value = program.push(Function::Unary(UnaryFunction::Round), vec![value], DType::U8);
        program.results.push(value);
    }
    program
}

fn integer_convolution(random: &mut Random) -> Case {
    let Windowed { groups, mut x, mut w, auto_pad, strides, dilations, pads } = windowed(random);
    let program = requantized(random);
    let channels_last = groups == 1 && auto_pad.is_none() && random.flag();
    let plain_inputs = channels_last && random.flag();
    if channels_last && !plain_inputs {
        for shape in [&mut x, &mut w] {
            let channels = std::mem::replace(&mut shape[1], 1);
            shape.push(channels);
        }
    }
    let op = IntegerConvolution { auto_pad, strides, dilations, pads, groups, program, channels_last, plain_inputs };
    let decoded = !op.program.is_empty() && random.flag();
    let filters = if decoded { f32s(random, &w) } else { u8s(random, &w) };
    let operands = [u8s(random, &x), filters];
    let x_zero = random.flag().then(|| u8s(random, &[]));
    let per_filter = random.flag();
    let w_zero = (!decoded && random.flag()).then(|| u8s(random, if per_filter { &w[..1] } else { &[] }));
    let bias = Tensor::from_elements(&w[..1], &vec![7i32; w[0]]).unwrap();
    let bias = (!decoded && random.flag()).then_some(bias);
    Case::new(op, operands).then(x_zero).then(w_zero).then(bias)
}

fn convolution_transpose(random: &mut Random) -> Case {
    let Windowed { groups, x, w, auto_pad, strides, dilations, pads } = windowed(random);
    let rank = x.len() - 2;
    let w = joined(&[&[x[1], w[0]], &w[2..]]);
    let asked = auto_pad != Some(AutoPad::Valid) && random.once_in(4);
    let op = ConvolutionTranspose {
        auto_pad,
        strides,
        dilations,
        pads: if asked { Vec::new() } else { pads },
        output_padding: list(random, rank, 0, 1),
        output_shape: if asked { (0..rank).map(|_| random.between(1, 9)).collect() } else { Vec::new() },
        groups,
        arithmetic: Arithmetic::default(),
        program: Program::default(),
    };
    let operands = [f32s(random, &x), f32s(random, &w)];
    let bias = random.flag().then(|| f32s(random, &[w[1] * groups as usize]));
    Case::new(op, operands).then(bias)
}

fn deformable_convolution(random: &mut Random) -> Case {
    let Windowed { groups, x, w, strides, dilations, .. } = windowed(random);
    let regular = Convolution {
        auto_pad: None,
        strides: strides.clone(),
        dilations: dilations.clone(),
        pads: Vec::new(),
        groups,
        arithmetic: Arithmetic::default(),
        program: Program::default(),
    };
    let outputs = regular.resolve(&x, &w).map_or_else(|_| vec![1; x.len()], |plan| plan.shape);
    let offset_groups = if random.flag() { 1 } else { x[1] };
    let taps: usize = w[2..].iter().product();
    let offsets = joined(&[&[x[0], offset_groups * taps * (x.len() - 2)], &outputs[2..]]);
    let masks = joined(&[&[x[0], offset_groups * taps], &outputs[2..]]);
    let op = DeformableConvolution { strides, dilations, pads: vec![], groups, offset_groups: offset_groups as i64 };
    let operands = [f32s(random, &x), f32s(random, &w)];
    let bias = random.flag().then(|| f32s(random, &w[..1]));
    let offset = f32s(random, &offsets);
    let mask = random.flag().then(|| f32s(random, &masks));
    Case::new(op, operands).then(bias).then(Some(offset)).then(mask)
}

fn pool(random: &mut Random) -> Case {
    let Windowed { x, w, auto_pad, strides, dilations, pads, .. } = windowed(random);
    let function = random.one_of(PoolFunction::VARIANTS);
    let whole = random.once_in(4);
    let op = Pool {
        kernel: w[2..].iter().map(|&extent| extent as i64).collect(),
        auto_pad,
        strides,
        dilations,
        // Padding is less than a window.
        pads: if w[2..].contains(&1) { Vec::new() } else { pads.iter().map(|&pad| pad.min(1)).collect() },
        ceil_mode: random.flag(),
        count_include_pad: random.flag(),
        exponent: random.flag().then_some(3),
        indices: function == PoolFunction::Max && random.flag(),
        column_major: random.flag(),
        function,
    };
    let op = if whole { Pool::global(function) } else { op };
    let x = f32s(random, &x);
    Case::new(op, [x])
}

fn resize(random: &mut Random) -> Case {
    let rank = random.between(1, 3) as usize;
    let shape = extents(random, rank, 6);
    let mode = random.one_of(ResizeMode::VARIANTS);
    let coordinates = random.one_of(ResizeCoordinates::VARIANTS);
    let axes = if random.flag() { Vec::new() } else { random.axes(rank) };
    let count = if axes.is_empty() { rank } else { axes.len() };
    let op = Resize {
        mode,
        coordinates,
        nearest: random.one_of(ResizeNearest::VARIANTS),
        cubic_coefficient: -0.5,
        exclude_outside: random.flag(),
        extrapolation: 3.0,
        antialias: mode != ResizeMode::Nearest && random.flag(),
        axes,
        policy: random.one_of(ResizePolicy::VARIANTS),
    };
    let crops = coordinates == ResizeCoordinates::TfCropAndResize;
    let roi = crops.then(|| f32s(random, &[2 * count]));
    let scale = |_| random.one_of(&[0.5f32, 1.0, 2.0, 0.25, 1.5, 0.3, 1.3, 3.0]);
    let scales: Vec<f32> = (0..count).map(scale).collect();
    let scales = Tensor::from_elements(&[count], &scales).unwrap();
    let sizes = Tensor::vector_i64(&(0..count).map(|_| random.between(0, 9)).collect::<Vec<_>>());
    let by_scales = random.flag();
    let empty = random.flag().then(|| Tensor::vector_i64(&[]));
    let x = random.numbers(&shape);
    let case = Case::new(op, [x]).then(roi);
    if by_scales { case.then(Some(scales)).then(empty) } else { case.then(None).then(Some(sizes)) }
}

fn grid_sample(random: &mut Random) -> Case {
    let rank = random.between(1, 3) as usize;
    let (batch, channels) = (random.extent(), random.extent());
    let image = extents(random, rank, 4);
    let outputs = random.shape(rank..=rank);
    let op = GridSample {
        mode: random.one_of(ResizeMode::VARIANTS),
        padding: random.one_of(GridPadding::VARIANTS),
        align_corners: random.flag(),
    };
    let x = random.numbers(&joined(&[&[batch, channels], &image]));
    let grid = f32s(random, &joined(&[&[batch], &outputs, &[rank]]));
    Case::new(op, [x, grid])
}

fn affine_grid(random: &mut Random) -> Case {
    let rank = random.between(2, 3) as usize;
    let batch = random.extent();
    let mut size = vec![batch as i64, 3];
    size.extend((0..rank).map(|_| random.extent() as i64));
    let theta = f32s(random, &[batch, rank, rank + 1]);
    Case::new(AffineGrid { align_corners: random.flag() }, [theta, Tensor::vector_i64(&size)])
}

fn roi_align(random: &mut Random) -> Case {
    let (batch, channels, regions) = (random.between(1, 3) as usize, random.extent(), random.extent());
    let op = RoiAlign {
        function: random.one_of(RoiFunction::VARIANTS),
        half_pixel: random.flag(),
        output_height: random.between(1, 3),
        output_width: random.between(1, 3),
        sampling_ratio: random.between(0, 2),
        spatial_scale: 0.5,
    };
    let x = f32s(random, &[batch, channels, 4, 5]);
    let rois = f32s(random, &[regions, 4]);
    let indices: Vec<i64> = (0..regions).map(|_| random.below(batch) as i64).collect();
    Case::new(op, [x, rois, Tensor::vector_i64(&indices)])
}

fn max_roi_pool(random: &mut Random) -> Case {
    let (channels, regions) = (random.extent(), random.extent());
    let op = MaxRoiPool {
        output_height: random.between(1, 3),
        output_width: random.between(1, 3),
        spatial_scale: random.one_of(&[0.5, 1.0]),
    };
    let x = f32s(random, &[1, channels, 4, 5]);
    let mut rois = f32s(random, &[regions, 5]);
    rois.elements_mut::<f32>().unwrap().chunks_mut(5).for_each(|region| region[0] = 0.0);
    Case::new(op, [x, rois])
}

fn max_unpool(random: &mut Random) -> Case {
    let rank = random.between(1, 2) as usize;
    let shape = joined(&[&[1, 2], &extents(random, rank, 3)]);
    let op = MaxUnpool { kernel: vec![2; rank], strides: vec![2; rank], pads: vec![] };
    let count: usize = shape.iter().product();
    let inferred: usize =
        shape[..2].iter().product::<usize>() * shape[2..].iter().map(|extent| 2 * extent).product::<usize>();
    let indices: Vec<i64> = (0..count).map(|_| random.below(inferred) as i64).collect();
    let asked = [shape[..2].to_vec(), shape[2..].iter().map(|extent| 2 * extent + 1).collect()].concat();
    let asked: Vec<i64> = asked.iter().map(|&extent| extent as i64).collect();
    let operands = [f32s(random, &shape), Tensor::from_elements(&shape, &indices).unwrap()];
    Case::new(op, operands).then(random.flag().then(|| Tensor::vector_i64(&asked)))
}

fn col2im(random: &mut Random) -> Case {
    let Windowed { x, w, strides, dilations, pads, .. } = windowed(random);
    let op = Col2im { strides, dilations, pads };
    let sizes =
        |extents: &[usize]| Tensor::vector_i64(&extents.iter().map(|&extent| extent as i64).collect::<Vec<_>>());
    let regular = Convolution {
        auto_pad: None,
        strides: op.strides.clone(),
        dilations: op.dilations.clone(),
        pads: op.pads.clone(),
        groups: 1,
        arithmetic: Arithmetic::default(),
        program: Program::default(),
    };
    let one_channel = |shape: &[usize]| joined(&[&[1, 1], &shape[2..]]);
    let plan = regular.resolve(&one_channel(&x), &one_channel(&w));
    let blocks = plan.map_or(1, |plan| plan.shape.iter().product());
    let taps: usize = w[2..].iter().product();
    let columns = random.numbers(&[x[0], x[1] * taps, blocks]);
    Case::new(op, [columns, sizes(&x[2..]), sizes(&w[2..])])
}
