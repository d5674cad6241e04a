//! Convolutions over channels in blocks of [`CHANNEL_BLOCK`]. No ONNX operator is imported to it: a pass makes it of a
//! convolution of f32.
//!
//! Channel `c` of `[n, channels, d..]` is at `[n, c / 8, d.., c % 8]`: the channels of a block lie side by side. Inputs with few
//! channels, such as images, may come in plain order: only results are in blocks then.

use crate::attributes;
use crate::dim::{Dim, Ranges};
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::loops::{self, Loops};
use crate::ops::products::accumulate::{Accumulator, accumulators, require_same_type};
use crate::ops::products::convolution::{
    ConvolutionPlan, Grouped, add_bias, bias_additions, filter_matrix, require_multiple, require_vector,
};
use crate::ops::windows::{Windows, listed, volume};
use crate::ops::{
    Arithmetic, Computes, InferContext, NoBlocks, Operator, Picked, Product, Program, ReferenceContext, ReferenceError,
    Space, StepFacts, TypeError, VectorClass, WeightMatrix, optional_tensor, tensor, tensor_operand,
};
use crate::tensor::{Tensor, TensorError};
use crate::value::Value;

/// Channels of a block.
pub const CHANNEL_BLOCK: usize = 8;

/// [`CHANNEL_BLOCK`] in strides and extents.
const BLOCK: i64 = CHANNEL_BLOCK as i64;

attributes! {
    /// Convolution over blocks of channels: `x: [n, c / 8, d.., 8]`, `w: [m, c / groups, k..]`, optional bias `[m]` to
    /// `[n, m / 8, o.., 8]`; further operands are the program's, which sees the blocks. Groups are of whole blocks of
    /// channels and filters, or of one channel and one filter. With plain inputs `x` is `[n, c, d..]`, and groups are of whole
    /// blocks of filters.
    pub struct BlockedConvolution revision 1 {
        /// Distance of windows along each spatial axis; 1 where empty.
        1 since 1 => strides: Vec<i64>,
        /// Distance of taps along each spatial axis; 1 where empty.
        2 since 1 => dilations: Vec<i64>,
        /// Zeros before each spatial axis, then after each; 0 where empty.
        3 since 1 => pads: Vec<i64>,
        /// Channels and filters are in this many groups, which do not mix.
        4 since 1 => groups: i64,
        /// How it computes.
        5 since 1 => arithmetic: Arithmetic,
        /// What follows on each element of the result.
        6 since 1 => program: Program,
        /// Whether channels of `x` lie one after another.
        7 since 1 => plain_inputs: bool,
    }
}

impl BlockedConvolution {
    /// The walk over operands of these shapes with channels in plain order, and the shape of the result.
    ///
    /// # Errors
    /// [`ReferenceError`] where they do not fit.
    pub fn resolve(&self, x: &[usize], w: &[usize]) -> Result<(ConvolutionPlan, Vec<usize>), ReferenceError> {
        let (ranges, mut no_blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("convolution", &ranges, &mut no_blocks);
        self.infer_shapes(&Shape::known(x), &Shape::known(w), &mut context)?;
        let plan = match x {
            _ if self.plain_inputs => self.grouped().resolve(x, w)?,
            [batch, blocks, image @ .., _] => {
                let plain = [&[*batch, blocks.saturating_mul(CHANNEL_BLOCK)], image].concat();
                self.grouped().resolve(&plain, w)?
            }
            _ => return Err(self.rank_error(x.len()).into()),
        };
        let outputs = plan.axes.iter().map(|axis| axis.output);
        let shape = [plan.shape[0], plan.shape[1] / CHANNEL_BLOCK].into_iter().chain(outputs).chain([CHANNEL_BLOCK]);
        let shape = shape.collect();
        Ok((plan, shape))
    }

    fn grouped(&self) -> Grouped<'_> {
        let windows = Windows {
            auto_pad: None,
            strides: &self.strides,
            dilations: &self.dilations,
            pads: &self.pads,
            ceil_mode: false,
        };
        Grouped { windows, groups: self.groups }
    }

    /// The shapes of the result: with channels in plain order, and in blocks.
    fn infer_shapes(&self, x: &Shape, w: &Shape, context: &mut InferContext<'_>) -> Result<(Shape, Shape), TypeError> {
        let x = self.infer_inputs(x, context)?;
        let plain = self.grouped().infer(&x, w, context)?;
        let Some([batch, filters, extents @ ..]) = plain.dims() else { return Ok((plain, Shape::Unranked)) };
        let block = Dim::known(BLOCK);
        require_multiple(filters, &block, "filters of the convolution", context)?;
        if let Some([_, channels, ..]) = w.dims() {
            self.require_blocks(channels, filters, context)?;
        }
        let blocks = filters.divide_exact(&block).unwrap_or_else(|| filters.floor_div(&block));
        let dims = [&[batch.clone(), blocks], extents, &[block]].concat();
        Ok((plain, Shape::Ranked(dims)))
    }

    /// The shape of operand 0 with channels in plain order.
    fn infer_inputs(&self, x: &Shape, context: &mut InferContext<'_>) -> Result<Shape, TypeError> {
        let Some(dims) = x.dims() else { return Ok(x.clone()) };
        if dims.len() < self.least_rank() {
            return Err(self.rank_error(dims.len()));
        }
        if self.plain_inputs {
            return Ok(x.clone());
        }
        let [batch, blocks, image @ .., last] = dims else { return Err(self.rank_error(dims.len())) };
        context.require_equal(last, &Dim::known(BLOCK), "channels of a block")?;
        Ok(Shape::Ranked([&[batch.clone(), blocks * BLOCK], image].concat()))
    }

    /// Require groups to be of whole blocks, or of one channel and one filter. Which of them is left to the reference where
    /// neither channels nor filters of a group are known.
    fn require_blocks(&self, channels: &Dim, filters: &Dim, context: &mut InferContext<'_>) -> Result<(), TypeError> {
        if self.groups == 1 {
            return Ok(());
        }
        let groups = Dim::known(self.groups);
        if self.plain_inputs {
            return require_multiple(filters, &(groups * BLOCK), "filters of the convolution", context);
        }
        let own = filters.divide_exact(&groups).and_then(|own| own.as_known());
        match (own, channels.as_known()) {
            (Some(1), _) => context.require_equal(channels, &Dim::ONE, "channels of a group").map(|_| ()),
            (_, Some(1)) => context.require_equal(filters, &groups, "filters of the convolution").map(|_| ()),
            (None, None) => Ok(()),
            (Some(_), _) | (None, Some(_)) => {
                require_multiple(channels, &Dim::known(BLOCK), "channels of a group", context)?;
                require_multiple(filters, &(groups * BLOCK), "filters of the convolution", context)
            }
        }
    }

    fn layout(&self, filters: &Dim, channels: &Dim) -> Layout {
        if self.groups == 1 {
            return Layout::One;
        }
        let own = filters.divide_exact(&Dim::known(self.groups)).and_then(|own| own.as_known());
        match (own, channels.as_known()) {
            (Some(filters), Some(channels)) if self.plain_inputs && filters % BLOCK == 0 => {
                Layout::Blocks { filters: filters / BLOCK, channels }
            }
            (Some(1), Some(1)) => Layout::Depthwise,
            (Some(filters), Some(channels)) if filters % BLOCK == 0 && channels % BLOCK == 0 => {
                Layout::Blocks { filters: filters / BLOCK, channels: channels / BLOCK }
            }
            (Some(_) | None, _) => Layout::Unknown,
        }
    }

    /// Axes of operand 0 where there is one of windows.
    fn least_rank(&self) -> usize {
        if self.plain_inputs { 3 } else { 4 }
    }

    /// Operand 0 has too few axes.
    fn rank_error(&self, found: usize) -> TypeError {
        TypeError::Rank { operand: 0, expected: format!("at least {}", self.least_rank()), found }
    }
}

/// How groups lie in blocks of channels.
#[derive(Debug, Clone, Copy)]
enum Layout {
    /// There is one group.
    One,
    /// A group has this many blocks of filters, and of channels or, where these are in plain order, so many channels.
    Blocks { filters: i64, channels: i64 },
    /// A group has one filter and one channel: 8 groups lie side by side.
    Depthwise,
    /// Extents of groups are not known: a filter may need any channels.
    Unknown,
}

/// Each matrix of a list of matrices `[rows, columns]`, transposed; channels go to blocks and back with it.
pub(super) fn transposed<T: Copy>(
    elements: &[T],
    rows: usize,
    columns: usize,
    shape: &[usize],
) -> Result<Vec<T>, TensorError> {
    let mut list = listed(DType::F64, shape)?;
    for matrix in elements.chunks(rows.saturating_mul(columns).max(1)) {
        list.extend((0..columns).flat_map(|column| matrix[column..].iter().step_by(columns)));
    }
    Ok(list)
}

impl Operator for BlockedConvolution {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, x) = tensor_operand(inputs, 0)?;
        let (found, w) = tensor_operand(inputs, 1)?;
        require_same_type(0, dtype, DType::F32)?;
        require_same_type(1, found, DType::F32)?;
        let (plain, shape) = self.infer_shapes(x, w, context)?;
        require_vector(inputs, 2, dtype, plain.dims().map(|dims| &dims[1]), context)?;
        let accumulator = self.arithmetic.accumulator_of(dtype);
        let dtype = self.program.infer(dtype, accumulator, &shape, inputs, context)?;
        Ok(vec![Fact::tensor(dtype, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (x, w, bias) = (tensor(inputs, 0)?, tensor(inputs, 1)?, optional_tensor(inputs, 2)?);
        require_same_type(0, x.dtype(), DType::F32)?;
        require_same_type(1, w.dtype(), DType::F32)?;
        let (plan, shape) = self.resolve(x.shape(), w.shape())?;
        let elements = |tensor: &Tensor| accumulators::<f64>(tensor, &self.arithmetic);
        let image = volume(plan.axes.iter().map(|axis| axis.input));
        let channels = match self.plain_inputs {
            true => elements(x)?,
            false => transposed(&elements(x)?, image, CHANNEL_BLOCK, x.shape())?,
        };
        let mut sums = plan.convolve(&channels, &elements(w)?, &self.arithmetic, &mut context.macs)?;
        add_bias(&mut sums, bias, x.dtype(), &plan.shape, &self.arithmetic)?;
        let sums = transposed(&sums, CHANNEL_BLOCK, volume(plan.shape[2..].iter().copied()), &shape)?;
        let scalars: Vec<_> = sums.into_iter().map(Accumulator::scalar).collect();
        let accumulator = self.arithmetic.accumulator_of(x.dtype());
        Ok(vec![self.program.finish(x.dtype(), accumulator, &scalars, &shape, inputs)?.into()])
    }
}

impl Computes for BlockedConvolution {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let (
            Some([_, own_blocks, image @ ..]),
            Some([filters, channels, kernel @ ..]),
            Some([batch, blocks, output @ .., _]),
        ) = (facts.dims(0), facts.dims(1), facts.result(0))
        else {
            return loops::unknown(facts, 1);
        };
        let image = if self.plain_inputs { image } else { image.split_last().map_or(image, |(_, image)| image) };
        if image.len() != kernel.len() || output.len() != kernel.len() {
            return loops::unknown(facts, 1);
        }
        let layout = self.layout(filters, channels);
        let mut nest = Loops::new(facts).parallel(batch, [loops::operand(0, 0), loops::result(0, 0)]);
        nest = self.filter_loops(nest, layout, blocks, output.len() + 2);
        nest = self.grouped().window_loops(nest, image, kernel, output);
        nest = match layout {
            Layout::One | Layout::Blocks { .. } if self.plain_inputs => {
                nest.reduced(channels, [loops::operand(0, 1), loops::operand(1, 1)])
            }
            Layout::One | Layout::Blocks { .. } => {
                let block = Dim::known(BLOCK);
                let own = channels.divide_exact(&block).unwrap_or_else(|| own_blocks.clone());
                nest.reduced(&own, [loops::operand(0, 1), loops::operand(1, 1).stride(BLOCK)])
                    .reduced(&block, [loops::operand(0, image.len() + 2), loops::operand(1, 1)])
            }
            Layout::Depthwise | Layout::Unknown => nest.reduced(channels, [loops::operand(1, 1)]),
        };
        vec![self.grouped().tap_loops(nest, image, kernel, output).products(1)]
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        bias_additions(facts, 2)
    }
}

impl BlockedConvolution {
    /// Loops over groups, the blocks of filters of one, and the filters of a block, which are along axis `last` of the
    /// result and of operand 0.
    fn filter_loops(&self, nest: Loops, layout: Layout, blocks: &Dim, last: usize) -> Loops {
        let of_blocks = |count: i64| {
            let filters = [loops::operand(1, 0), loops::operand(2, 0)].map(|place| place.stride(BLOCK * count));
            filters.into_iter().chain([loops::result(0, 1).stride(count)])
        };
        let within = [loops::operand(1, 0), loops::operand(2, 0), loops::result(0, last)];
        let block = Dim::known(BLOCK);
        match layout {
            Layout::One | Layout::Unknown => nest.parallel(blocks, of_blocks(1)).parallel(&block, within),
            Layout::Blocks { filters, channels } => {
                let own = loops::operand(0, 1).stride(channels);
                nest.parallel(&Dim::known(self.groups), of_blocks(filters).chain([own]))
                    .parallel(&Dim::known(filters), of_blocks(1))
                    .parallel(&block, within)
            }
            Layout::Depthwise => nest
                .parallel(blocks, of_blocks(1).chain([loops::operand(0, 1)]))
                .parallel(&block, within.into_iter().chain([loops::operand(0, last)])),
        }
    }
}

impl Product for BlockedConvolution {
    fn weight(&self, operand: usize, shape: &[u64]) -> Option<WeightMatrix> {
        if operand == 1 { filter_matrix(shape, self.groups) } else { None }
    }

    fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    fn picked(&self) -> Option<Picked> {
        None
    }

    fn program(&self) -> Option<&Program> {
        Some(&self.program)
    }

    fn sums(&self, facts: &StepFacts<'_>) -> Option<DType> {
        Some(self.arithmetic.accumulator_of(facts.operand(0)?.dtype()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{macs, run_optional};
    use crate::ops::{Argument, BinaryFunction, Convolution, Function, Op};

    fn blocked(groups: i64) -> BlockedConvolution {
        BlockedConvolution {
            strides: vec![],
            dilations: vec![],
            pads: vec![],
            groups,
            arithmetic: Arithmetic::default(),
            program: Program::default(),
            plain_inputs: false,
        }
    }

    fn plain(operator: &BlockedConvolution) -> Convolution {
        Convolution {
            auto_pad: None,
            strides: operator.strides.clone(),
            dilations: operator.dilations.clone(),
            pads: operator.pads.clone(),
            groups: operator.groups,
            arithmetic: operator.arithmetic,
            program: operator.program.clone(),
        }
    }

    fn numbers(shape: &[usize], step: usize) -> Tensor {
        let count: usize = shape.iter().product();
        let elements: Vec<f32> = (0..count).map(|index| (index * step % 31) as f32 - 15.0).collect();
        Tensor::from_elements(shape, &elements).unwrap()
    }

    /// `[n, c, d..]` as `[n, c / 8, d.., 8]`.
    fn in_blocks(tensor: &Tensor) -> Tensor {
        let &[batch, channels, ref image @ ..] = tensor.shape() else { panic!("{:?}", tensor.shape()) };
        let volume: usize = image.iter().product();
        let shape = [&[batch, channels / CHANNEL_BLOCK], image, &[CHANNEL_BLOCK]].concat();
        let from = tensor.elements::<f32>().unwrap();
        let mut to = vec![0.0; from.len()];
        for (index, &element) in from.iter().enumerate() {
            let (image, channel, position) = (index / volume / channels, index / volume % channels, index % volume);
            let block = image * (channels / CHANNEL_BLOCK) + channel / CHANNEL_BLOCK;
            to[(block * volume + position) * CHANNEL_BLOCK + channel % CHANNEL_BLOCK] = element;
        }
        Tensor::from_elements(&shape, &to).unwrap()
    }

    /// Check that the result is that of [`Convolution`] for operands in plain order, in blocks.
    fn check(operator: &BlockedConvolution, operands: &[&Tensor]) {
        let mut inputs: Vec<Option<Tensor>> = operands.iter().map(|&tensor| Some(tensor.clone())).collect();
        let expected = in_blocks(&run_optional(&plain(operator), &inputs).unwrap());
        for (index, input) in inputs.iter_mut().enumerate() {
            if index == 0 && !operator.plain_inputs || index > 2 {
                *input = input.as_ref().map(in_blocks);
            }
        }
        let inputs: Vec<Option<Value>> = inputs.into_iter().map(|input| input.map(Value::from)).collect();
        let (ranges, mut no_blocks) = (Ranges::default(), NoBlocks);
        let mut context = ReferenceContext::new(&mut no_blocks);
        let result = operator.reference(&inputs, &mut context).unwrap().remove(0);
        assert_eq!(result.as_tensor(), Some(&expected), "{operator:?}");
        let facts: Vec<Option<Fact>> = inputs.iter().flatten().map(|value| Some(Fact::of(value.kind()))).collect();
        let mut no_blocks = NoBlocks;
        let outputs = operator.infer(&facts, &mut InferContext::new("conv", &ranges, &mut no_blocks)).unwrap();
        assert_eq!(outputs[0].kind, result.kind());
        assert_eq!(macs(operator, &facts, &outputs), Dim::known(context.macs as i64));
    }

    #[test]
    fn sums_are_those_of_a_convolution() {
        let case = |operator: BlockedConvolution, x: &[usize], w: &[usize]| {
            check(&operator, &[&numbers(x, 7), &numbers(w, 5)]);
            check(&operator, &[&numbers(x, 7), &numbers(w, 5), &numbers(&w[..1], 3)]);
        };
        case(blocked(1), &[2, 16, 5], &[24, 16, 2]);
        case(BlockedConvolution { pads: vec![1; 4], ..blocked(1) }, &[1, 8, 4, 5], &[16, 8, 3, 3]);
        case(blocked(1), &[1, 8, 2, 3, 2], &[8, 8, 2, 2, 1]);
        let uneven =
            BlockedConvolution { strides: vec![2, 1], dilations: vec![1, 2], pads: vec![1, 0, 0, 2], ..blocked(1) };
        case(uneven.clone(), &[2, 8, 6, 5], &[8, 8, 3, 2]);
        case(BlockedConvolution { groups: 2, ..uneven.clone() }, &[1, 16, 6, 5], &[32, 8, 3, 2]);
        case(BlockedConvolution { groups: 16, ..uneven.clone() }, &[2, 16, 6, 5], &[16, 1, 3, 2]);
        case(BlockedConvolution { strides: vec![2], ..blocked(8) }, &[1, 8, 7], &[8, 1, 3]);
        let images = BlockedConvolution { plain_inputs: true, ..uneven.clone() };
        case(images.clone(), &[2, 3, 6, 5], &[16, 3, 3, 2]);
        case(BlockedConvolution { groups: 2, ..images }, &[1, 6, 6, 5], &[32, 3, 3, 2]);
        // Nothing to compute.
        case(blocked(1), &[0, 8, 4], &[8, 8, 2]);
    }

    #[test]
    fn the_program_sees_blocks() {
        let mut program = Program::default();
        let sum = Function::Binary(BinaryFunction::Add);
        let sum = program.push(sum, vec![Argument::Input, Argument::Operand(3)], DType::F32);
        program.results.push(sum);
        let operator = BlockedConvolution { program, ..blocked(1) };
        let (x, w) = (numbers(&[1, 8, 5], 7), numbers(&[16, 8, 2], 5));
        check(&operator, &[&x, &w, &numbers(&[16], 3), &numbers(&[1, 16, 4], 11)]);
    }

    #[test]
    fn misfits_are_refused() {
        let refused = |operator: BlockedConvolution, x: &[usize], w: &[usize]| {
            let (ranges, mut no_blocks) = (Ranges::default(), NoBlocks);
            let mut context = InferContext::new("conv", &ranges, &mut no_blocks);
            let fact = |extents: &[usize]| Some(Fact::tensor(DType::F32, Shape::known(extents)));
            let inferred = operator.infer(&[fact(x), fact(w)], &mut context).unwrap_err().to_string();
            assert_eq!(operator.resolve(x, w).unwrap_err().to_string(), inferred);
            inferred
        };
        let last = refused(blocked(1), &[1, 2, 5, 4], &[8, 8, 1]);
        assert_eq!(last, "channels of a block: 4 does not fit 8");
        let channels = refused(blocked(1), &[1, 2, 5, 8], &[8, 8, 1]);
        assert_eq!(channels, "channels of the convolution: 16 does not fit 8");
        let filters = refused(blocked(1), &[1, 1, 5, 8], &[12, 8, 1]);
        assert_eq!(filters, "filters of the convolution: 12 does not fit a multiple of 8");
        let rank = refused(blocked(1), &[1, 2, 8], &[8, 16, 1]);
        assert_eq!(rank, "operand 0 must have rank at least 4, found 3");
        let rank = refused(blocked(1), &[1, 1, 5, 8], &[8, 8, 1, 1]);
        assert_eq!(rank, "operand 1 must have rank 3, found 4");
        let window = refused(blocked(1), &[1, 1, 5, 8], &[8, 8, 7]);
        assert_eq!(window, "window along spatial axis 0: kernel extent 7 does not fit input extent 5");
        let groups = refused(blocked(4), &[1, 2, 5, 8], &[32, 4, 1]);
        assert_eq!(groups, "channels of a group: 4 does not fit a multiple of 8");
        let groups = refused(blocked(2), &[1, 2, 5, 8], &[24, 8, 1]);
        assert_eq!(groups, "filters of the convolution: 24 does not fit a multiple of 16");
        let depthwise = refused(blocked(8), &[1, 1, 5, 8], &[16, 1, 1]);
        assert_eq!(depthwise, "filters of the convolution: 16 does not fit 8");
        let depthwise = refused(blocked(8), &[1, 2, 5, 8], &[8, 2, 1]);
        assert_eq!(depthwise, "channels of a group: 2 does not fit 1");
        let images = |groups| BlockedConvolution { plain_inputs: true, ..blocked(groups) };
        assert_eq!(refused(images(1), &[1, 3], &[8, 3]), "operand 0 must have rank at least 3, found 2");
        let filters = refused(images(1), &[1, 3, 5], &[12, 3, 1]);
        assert_eq!(filters, "filters of the convolution: 12 does not fit a multiple of 8");
        let groups = refused(images(2), &[1, 2, 5], &[24, 1, 1]);
        assert_eq!(groups, "filters of the convolution: 24 does not fit a multiple of 16");
        assert_eq!(refused(blocked(0), &[1, 1, 5, 8], &[8, 8, 1]), "`groups` is 0, expected at least 1");
        let narrow = Tensor::zeros(DType::F16, &[1, 1, 5, 8]).unwrap();
        let refused = run_optional(&blocked(1), &[Some(narrow), Some(numbers(&[8, 8, 1], 1))]).unwrap_err();
        assert_eq!(refused.to_string(), "operand 0 must be f32, found f16");
    }

    #[test]
    fn extents_stay_symbolic_and_attributes_are_stored() {
        let (ranges, mut no_blocks) = (Ranges::default(), NoBlocks);
        let mut context = InferContext::new("conv", &ranges, &mut no_blocks);
        let x = Fact::tensor(DType::F32, vec![Dim::symbol("n"), Dim::known(2), Dim::symbol("t"), Dim::known(BLOCK)]);
        let w = Fact::tensor(DType::F32, Shape::known(&[24, 16, 3]));
        let operator = BlockedConvolution { pads: vec![1, 1], ..blocked(1) };
        let facts = operator.infer(&[Some(x), Some(w)], &mut context).unwrap();
        let expected = [Dim::symbol("n"), Dim::known(3), Dim::symbol("t"), Dim::known(BLOCK)];
        assert_eq!(facts[0].dims(), Some(&expected[..]));
        assert!(context.obligations.is_empty());
        for op in [operator, BlockedConvolution { strides: vec![2], ..blocked(8) }] {
            let op = Op::from(op);
            let stored: Vec<_> = op.attributes().into_iter().map(|(number, _, value)| (number, value)).collect();
            assert_eq!(Op::decode(op.code(), op.revision(), &stored).unwrap(), op);
        }
    }
}
