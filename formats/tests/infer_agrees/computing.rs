//! Random operands for elementwise operators, quantization, normalization, recurrence and attention.

use super::random::Random;
use super::{Case, Generator};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::*;
use ipuc_formats::tensor::Tensor;
use strum::VariantArray;

/// One generator an operator.
pub const GENERATORS: &[Generator] = &[
    unary,
    binary,
    select,
    map,
    clamp,
    quantize,
    dequantize,
    reduce,
    arg_reduce,
    cumulative,
    softmax,
    layer_normalization,
    batch_normalization,
    group_normalization,
    local_response_normalization,
    rotary_embedding,
    attention,
    linear_attention,
    causal_convolution,
    recurrent,
];

fn f32s(random: &mut Random, shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let elements: Vec<f32> = (0..count).map(|_| random.between(-6, 9) as f32 / 2.0).collect();
    Tensor::from_elements(shape, &elements).unwrap()
}

/// Extents that are never 0.
fn extents(random: &mut Random, rank: usize) -> Vec<usize> {
    (0..rank).map(|_| random.between(1, 4) as usize).collect()
}

/// A shape that broadcasts to this one.
fn part_of(random: &mut Random, shape: &[usize]) -> Vec<usize> {
    let cut = random.below(shape.len() + 1);
    shape[cut..].iter().map(|&extent| if random.once_in(3) { 1 } else { extent }).collect()
}

fn unary(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    Case::new(Unary { function: random.one_of(&[UnaryFunction::Abs, UnaryFunction::Exp]) }, [f32s(random, &shape)])
}

fn binary(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    let (left, right) = (part_of(random, &shape), part_of(random, &shape));
    let function = random.one_of(&[BinaryFunction::Add, BinaryFunction::Mul, BinaryFunction::Max]);
    Case::new(Binary { function }, [f32s(random, &left), f32s(random, &right)])
}

fn select(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    let condition = part_of(random, &shape);
    let count = condition.iter().product::<usize>();
    let flags: Vec<bool> = (0..count).map(|_| random.flag()).collect();
    let (left, right) = (part_of(random, &shape), part_of(random, &shape));
    let condition = Tensor::from_bools(&condition, &flags).unwrap();
    Case::new(Select {}, [condition, f32s(random, &left), f32s(random, &right)])
}

fn map(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    let (left, right) = (part_of(random, &shape), part_of(random, &shape));
    let mut program = Program::default();
    let arguments = vec![Argument::Operand(0), Argument::Operand(1)];
    let sum = program.push(Function::Binary(BinaryFunction::Add), arguments, DType::F32);
    let code = program.push(Function::Unary(UnaryFunction::Round), vec![sum], DType::I8);
    program.results = if random.flag() { vec![code, sum] } else { vec![sum] };
    Case::new(Map { program }, [f32s(random, &left), f32s(random, &right)])
}

fn clamp(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    let minimum = (!random.once_in(3)).then(|| Tensor::scalar(random.between(-4, 4) as f32));
    Case::new(Clamp {}, [f32s(random, &shape)]).then(minimum)
}

/// Shape, axis, size of blocks and shape of the scales.
fn granularity(random: &mut Random) -> (Vec<usize>, i64, i64, Vec<usize>) {
    let rank = random.between(1, 3) as usize;
    let mut shape = extents(random, rank);
    let axis = random.axis(rank);
    let at = if axis < 0 { axis + rank as i64 } else { axis } as usize;
    match random.below(3) {
        0 => (shape, axis, 0, Vec::new()),
        1 => {
            let scales = vec![shape[at]];
            (shape, axis, 0, scales)
        }
        _ => {
            let block = random.between(1, 3);
            shape[at] = random.between(1, 7) as usize;
            let mut scales = shape.clone();
            scales[at] = shape[at].div_ceil(block as usize);
            (shape, axis, block, scales)
        }
    }
}

fn positive(random: &mut Random, shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let elements: Vec<f32> = (0..count).map(|_| random.between(1, 8) as f32 / 4.0).collect();
    Tensor::from_elements(shape, &elements).unwrap()
}

fn bytes(random: &mut Random, shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>();
    let elements: Vec<u8> = (0..count).map(|_| random.below(256) as u8).collect();
    Tensor::from_elements(shape, &elements).unwrap()
}

fn quantize(random: &mut Random) -> Case {
    let (shape, axis, block_size, scales) = granularity(random);
    let operator = Quantize { to: DType::U8, axis, block_size, overflow: false, precision: None };
    let operands = [f32s(random, &shape), positive(random, &scales), bytes(random, &scales)];
    Case::new(operator, operands)
}

fn dequantize(random: &mut Random) -> Case {
    let (shape, axis, block_size, scales) = granularity(random);
    let operands = [bytes(random, &shape), positive(random, &scales)];
    let zero_point = random.flag().then(|| bytes(random, &scales));
    Case::new(Dequantize { to: None, axis, block_size }, operands).then(zero_point)
}

fn reduce(random: &mut Random) -> Case {
    let shape = random.shape(0..=3);
    let function = random.one_of(ReduceFunction::VARIANTS);
    let axes = random.axes(shape.len());
    let axes = random.flag().then(|| Tensor::vector_i64(&axes));
    let operator = Reduce { function, keep_axes: random.flag(), keep_without_axes: random.flag() };
    Case::new(operator, [f32s(random, &shape)]).then(axes)
}

fn arg_reduce(random: &mut Random) -> Case {
    let rank = random.between(1, 3) as usize;
    let (shape, axis) = (extents(random, rank), random.axis(rank));
    let operator = ArgReduce { smallest: random.flag(), axis, keep_axis: random.flag(), last: random.flag() };
    Case::new(operator, [f32s(random, &shape)])
}

fn cumulative(random: &mut Random) -> Case {
    let rank = random.between(1, 3) as usize;
    let (shape, axis) = (extents(random, rank), random.axis(rank));
    let function = random.one_of(CumulativeFunction::VARIANTS);
    let operator = Cumulative { function, exclusive: random.flag(), reverse: random.flag() };
    Case::new(operator, [f32s(random, &shape), Tensor::scalar(axis)])
}

fn softmax(random: &mut Random) -> Case {
    let rank = random.between(1, 3) as usize;
    let (shape, axis) = (extents(random, rank), random.axis(rank));
    let function = random.one_of(SoftmaxFunction::VARIANTS);
    Case::new(Softmax { function, axis, trailing: random.flag() }, [f32s(random, &shape)])
}

fn layer_normalization(random: &mut Random) -> Case {
    let rank = random.between(1, 3) as usize;
    let (shape, axis) = (extents(random, rank), random.axis(rank));
    let at = if axis < 0 { axis + rank as i64 } else { axis } as usize;
    let operator = LayerNormalization { axis, epsilon: 0.5, center: random.flag(), stash: DType::F32 };
    let scale = f32s(random, &shape[at..]);
    Case::new(operator, [f32s(random, &shape), scale])
}

fn channels(random: &mut Random) -> (Vec<usize>, usize) {
    let rank = random.between(2, 4) as usize;
    let shape = extents(random, rank);
    let channels = shape[1];
    (shape, channels)
}

fn batch_normalization(random: &mut Random) -> Case {
    let (shape, channels) = channels(random);
    let operator = BatchNormalization { epsilon: 0.5, momentum: 0.5, training: random.flag(), per_element: false };
    let operands = [
        f32s(random, &shape),
        f32s(random, &[channels]),
        f32s(random, &[channels]),
        f32s(random, &[channels]),
        positive(random, &[channels]),
    ];
    Case::new(operator, operands)
}

fn group_normalization(random: &mut Random) -> Case {
    let (mut shape, mut channels) = channels(random);
    let in_blocks = random.flag();
    if in_blocks {
        channels *= 8;
        shape.push(8);
    }
    let divisors: Vec<usize> = (1..=channels).filter(|&groups| channels.is_multiple_of(groups)).collect();
    let groups =
        if random.flag() { None } else { Some(divisors[random.between(0, divisors.len() as i64 - 1) as usize]) };
    let scale_per_group = random.flag();
    let parameters = groups.filter(|_| scale_per_group).unwrap_or(channels);
    let groups = groups.map(|groups| groups as i64);
    let operator = GroupNormalization { groups, epsilon: 0.5, scale_per_group, stash: DType::F32, in_blocks };
    Case::new(operator, [f32s(random, &shape), f32s(random, &[parameters]), f32s(random, &[parameters])])
}

fn local_response_normalization(random: &mut Random) -> Case {
    let (shape, _) = channels(random);
    let operator = LocalResponseNormalization { size: random.between(1, 4), alpha: 0.5, beta: 0.75, bias: 1.0 };
    Case::new(operator, [f32s(random, &shape)])
}

fn rotary_embedding(random: &mut Random) -> Case {
    let [batch, heads, steps, half] = [(); 4].map(|()| random.between(1, 3) as usize);
    let flat = random.flag();
    let shape = if flat { vec![batch, steps, heads * half * 2] } else { vec![batch, heads, steps, half * 2] };
    let positions = random.flag().then(|| {
        let elements: Vec<i64> = (0..batch * steps).map(|_| random.between(0, 4)).collect();
        Tensor::from_elements(&[batch, steps], &elements).unwrap()
    });
    let cache = if positions.is_some() { vec![5, half] } else { vec![batch, steps, half] };
    let operator = RotaryEmbedding { interleaved: random.flag(), rotated: None, heads: flat.then_some(heads as i64) };
    Case::new(operator, [f32s(random, &shape), f32s(random, &cache), f32s(random, &cache)]).then(positions)
}

fn attention(random: &mut Random) -> Case {
    let [batch, heads, group, queries, keys, size] = [(); 6].map(|()| random.between(1, 3) as usize);
    let value = random.between(1, 3) as usize;
    let past = if random.flag() { random.below(3) } else { 0 };
    let flat = random.flag();
    let mut tensor = |heads: usize, length: usize, size: usize| {
        let shape = if flat { vec![batch, length, heads * size] } else { vec![batch, heads, length, size] };
        f32s(random, &shape)
    };
    let operands = [tensor(heads * group, queries, size), tensor(heads, keys, size), tensor(heads, keys, value)];
    let operator = Attention {
        causal: random.flag(),
        query_heads: flat.then_some((heads * group) as i64),
        key_heads: flat.then_some(heads as i64),
        present: random.flag(),
        ..Attention::plain()
    };
    let case = Case::new(operator, operands).then(None);
    if past == 0 {
        return case;
    }
    let cache = |random: &mut Random, size: usize| Some(f32s(random, &[batch, heads, past, size]));
    case.then(cache(random, size)).then(cache(random, value))
}

fn linear_attention(random: &mut Random) -> Case {
    let [batch, heads, steps, size] = [(); 4].map(|()| random.between(1, 3) as usize);
    let value = random.between(1, 3) as usize;
    let operator =
        LinearAttention { rule: UpdateRule::Linear, query_heads: heads as i64, key_heads: heads as i64, scale: None };
    let shapes = [size, size, value].map(|size| [batch, steps, heads * size]);
    Case::new(operator, shapes.map(|shape| f32s(random, &shape)))
}

fn causal_convolution(random: &mut Random) -> Case {
    let [batch, channels, length, kernel] = [(); 4].map(|()| random.between(1, 4) as usize);
    let operands = [f32s(random, &[batch, channels, length]), f32s(random, &[channels, 1, kernel])];
    let bias = random.flag().then(|| f32s(random, &[channels]));
    Case::new(CausalConvolution { silu: random.flag() }, operands).then(bias)
}

fn recurrent(random: &mut Random) -> Case {
    let [steps, batch, input, hidden] = [(); 4].map(|()| random.between(1, 3) as usize);
    let direction = random.one_of(Direction::VARIANTS);
    let directions = direction.count();
    let tanh = RecurrentActivation { function: RecurrentFunction::Tanh, alpha: 0.0, beta: 0.0 };
    let batch_first = random.flag();
    let operator = Rnn { direction, activations: vec![tanh; directions], clip: None, batch_first, hidden_size: None };
    let data = if batch_first { [batch, steps, input] } else { [steps, batch, input] };
    let operands =
        [f32s(random, &data), f32s(random, &[directions, hidden, input]), f32s(random, &[directions, hidden, hidden])];
    Case::new(operator, operands)
}
