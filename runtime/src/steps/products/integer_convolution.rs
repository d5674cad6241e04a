//! Convolutions of integers of 8 bits: exact sums, then the program over them.
//!
//! Where filters come whole, a task gathers the windows of some positions, multiplies them by filters and runs the program over
//! the sums, all of which stay in the second-level cache. Filters that come in pieces of their inputs add to
//! sums of the whole result first.

use super::channels_last::ChannelsLast;
use super::convolution::window;
use super::exact;
use super::fused;
use super::integer::{Weights, finished};
use super::integer_operands::{
    byte_types, each_zero, numbers, reads_own, reloaded, same_types, single_zero, zero_points,
};
use super::integer_tasks::{Cut, FEWEST_ROWS, OPERAND_BYTES, ROWS_UNIT, in_parts, outputs_of, panels_of, sums_of};
use super::requantized::{Along, Finish};
use crate::steps::{Context, Kernel, KernelError, Operand, run_reference, tensor_operand};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{ConvolutionPlan, IntegerConvolution};
use ipuc_formats::value::Value;
use ipuc_kernels::convolution::{
    ByteConvolution, ByteDepthwise, ChannelOrder, ConvolutionShape, FilterTiles, Filters, PositionTiles, Positions,
    TiledConvolution,
};
use ipuc_kernels::product::{
    ByteType, IntegerPiece, IntegerRows, IntegerSums, IntegerWeight, PANEL_OUTPUTS, SumOrder, Zero, integer_product,
};
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::threads::{each_mut, serially};
use ipuc_kernels::window::WindowAxis;
use std::ops::Range;

/// Operands of a convolution itself; further ones are the program's.
const CONVOLUTION_OPERANDS: usize = 5;

/// Bytes of tiles of filters that are made for all tasks at a time.
const TILES_BYTES: usize = 1 << 22;

/// Operand of a convolution that is added to its sums.
const BIAS: usize = 4;

impl Kernel for IntegerConvolution {
    fn run(&self, mut operands: Vec<Operand>, context: &mut Context<'_>) -> Result<Vec<Value>, KernelError> {
        let Some([x_kind, w_kind]) = byte_types(&operands) else {
            // No pass has channels side by side of other types.
            if self.channels_last {
                return run_reference(self, operands, context);
            }
            return exact::convolution(self, operands, context);
        };
        if reads_own(&self.program, CONVOLUTION_OPERANDS) {
            return run_reference(self, operands, context);
        }
        let further = fused::operands(&mut operands, CONVOLUTION_OPERANDS)?;
        let (x_zero, w_zero) = (zero_points(&mut operands, 2)?, zero_points(&mut operands, 3)?);
        let bias = zero_points(&mut operands, BIAS)?;
        let x = tensor_operand(&mut operands, 0)?;
        let weights = Weights::new(self, &mut operands)?;
        let w_shape = weights.shape()?;
        let plan = context.prepared(&[x.shape(), w_shape], || self.resolve(x.shape(), w_shape))?;
        let filters = plan.shape[1];
        let known = same_types([x_zero.as_ref(), w_zero.as_ref()], [x.dtype(), weights.dtype()])
            && bias.as_ref().is_none_or(|bias| bias.dtype() == DType::I32 && bias.shape() == [filters]);
        let zeros = (single_zero(x_zero.as_ref()), each_zero(w_zero.as_ref(), filters));
        let (true, (Some(zero), Some(zeros))) = (known, zeros) else {
            let operands =
                reloaded([Some(x), Some(weights.into_tensor()?), x_zero, w_zero, bias], further, CONVOLUTION_OPERANDS);
            return run_reference(self, operands, context);
        };
        let pad = Zero { code: zero as u8, kind: x_kind };
        let axes: Vec<WindowAxis> = plan.axes.iter().map(window).collect();
        let biases = bias.as_ref().map(|bias| bias.elements::<i32>()).transpose()?;
        if self.channels_last {
            let weight = IntegerWeight { kind: w_kind, zeros: &zeros };
            let order = if self.plain_inputs { ChannelOrder::Planes } else { ChannelOrder::SideBySide };
            let channels = plan.group_channels;
            let own = ByteConvolution { order, axes: &axes, channels, pad, weight, bias: biases };
            // Extents of operands without elements may be any: an empty result is left to the reference.
            let is_empty = plan.shape.contains(&0);
            let own = if is_empty { None } else { ChannelsLast::new(&plan, own, x.bytes()) };
            if let Some(result) = channels_last(self, (&plan, own), &weights, &further, context)? {
                return Ok(vec![result]);
            }
            let operands = [Some(x), Some(weights.into_tensor()?), x_zero, w_zero, bias];
            return run_reference(self, reloaded(operands, further, CONVOLUTION_OPERANDS), context);
        }
        let bias = biases;
        let convolution = Windows { plan: &plan, axes, x: x.bytes(), pad, zero, w_kind, zeros: &zeros, bias };
        if weights.come_whole(convolution.inputs())
            && let Some(finish) = Finish::new(&self.program, &plan.shape, Along::Channels, &further)?
        {
            let mut result = context.allocate(0, finish.dtype(), &plan.shape)?;
            if result.count() > 0 {
                match &weights {
                    Weights::Plain(weights) if ByteDepthwise::takes(&convolution.shape()) => {
                        convolution.finish_channels(weights.bytes(), &finish, result.bytes_mut());
                    }
                    weights => convolution.finish_all(weights, &finish, result.bytes_mut())?,
                }
            }
            finish.finish()?;
            return Ok(vec![result.into()]);
        }
        let mut sums: Vec<i32> = sums_of(&plan.shape)?;
        if !sums.is_empty() {
            if let Some(bias) = bias {
                let channels = sums.chunks_mut(convolution.positions()).zip(bias.iter().cycle());
                channels.for_each(|(sums, bias)| sums.fill(*bias));
            }
            convolution.add_all(&weights, &mut sums)?;
        }
        finished(&self.program, &sums, &plan.shape, &further, context)
    }
}

/// The result with its channels side by side; `None` where only the reference gives it.
fn channels_last(
    operator: &IntegerConvolution,
    (plan, convolution): (&ConvolutionPlan, Option<ChannelsLast<'_>>),
    weights: &Weights,
    further: &[Option<Value>],
    context: &mut Context<'_>,
) -> Result<Option<Value>, KernelError> {
    let shape = operator.result_shape(plan);
    let convolution = convolution.filter(|convolution| weights.come_whole(convolution.inputs()));
    let Some(convolution) = convolution else { return Ok(None) };
    let Some(finish) = Finish::new(&operator.program, &shape, Along::Outputs, further)? else { return Ok(None) };
    let mut result = context.allocate(0, finish.dtype(), &shape)?;
    convolution.finish_all(weights, &finish, result.bytes_mut())?;
    finish.finish()?;
    Ok(Some(result.into()))
}

/// A convolution of which the operands are known.
struct Windows<'a> {
    plan: &'a ConvolutionPlan,
    axes: Vec<WindowAxis>,
    x: &'a [u8],
    pad: Zero,
    zero: i32,
    w_kind: ByteType,
    zeros: &'a [i32],
    bias: Option<&'a [i32]>,
}

impl Windows<'_> {
    fn positions(&self) -> usize {
        self.axes.iter().map(|axis| axis.output).product()
    }

    fn inputs(&self) -> usize {
        self.plan.group_channels * self.axes.iter().map(|axis| axis.kernel).product::<usize>()
    }

    /// Groups of filters: how many, their inputs and filters.
    fn matrices(&self) -> [usize; 3] {
        [self.plan.groups, self.inputs(), self.filters()]
    }

    /// Filters of a group.
    fn filters(&self) -> usize {
        self.plan.shape[1] / self.plan.groups
    }

    /// Writes the results of groups of one input channel.
    fn finish_channels(&self, weights: &[u8], finish: &Finish<'_>, out: &mut [u8]) {
        let taps = self.inputs();
        let filters = numbers(weights, self.w_kind);
        let centred = |(filter, zero): (&[i32], &i32)| filter.iter().map(|number| (number - zero) as f32).collect();
        let weight: Vec<f32> = filters.chunks(taps.max(1)).zip(self.zeros).flat_map::<Vec<f32>, _>(centred).collect();
        let shape = self.shape();
        let convolution = ByteDepthwise { shape: &shape, x: self.x, zero: self.pad, weight: &weight, bias: self.bias };
        convolution.finish(Instructions::best(), finish.dtype().bits() / 8, out, |channel, place, sums, results| {
            finish.write(channel, place, sums, results);
        });
    }

    /// Writes the results of all filters, which come whole.
    fn finish_all(&self, weights: &Weights, finish: &Finish<'_>, out: &mut [u8]) -> Result<(), KernelError> {
        let tiled = TiledConvolution::new(Instructions::best(), &self.shape(), self.pad);
        let most = tiled.as_ref().map_or(usize::MAX, |tiled| (TILES_BYTES / tiled.panel_bytes()).max(1));
        weights.each_group(self.matrices(), |group, pieces| {
            for pieces in in_parts(pieces, most) {
                self.finish_group(tiled.as_ref(), group, &pieces, finish, out);
            }
        })
    }

    /// Writes the results of some filters of a group for all images.
    fn finish_group(
        &self,
        tiled: Option<&TiledConvolution>,
        group: usize,
        pieces: &[IntegerPiece<'_>],
        finish: &Finish<'_>,
        out: &mut [u8],
    ) {
        let (positions, filters, size) = (self.positions(), self.filters(), finish.dtype().bits() / 8);
        let (unit, inputs) = tiled.map_or((ROWS_UNIT, self.inputs()), |tiled| (tiled.unit(), tiled.position_bytes()));
        let cut = Cut::new(self.plan.shape[0], positions, unit, inputs, pieces);
        let per_image = positions.div_ceil(cut.rows) * cut.outputs.len();
        let mut tasks: Vec<Task<'_>> = Vec::new();
        for (image, out) in out.chunks_mut(self.plan.shape[1] * positions * size).enumerate() {
            for start in (0..positions).step_by(cut.rows) {
                let positions = start..positions.min(start + cut.rows);
                let task = |part| Task { image, positions: positions.clone(), part, results: Vec::new() };
                tasks.extend((0..cut.outputs.len()).map(task));
            }
            let own = &mut tasks[image * per_image..];
            let channels = out.chunks_mut(positions * size).skip(group * filters).take(filters);
            for (filter, results) in channels.enumerate() {
                let Some(part) = cut.part_of(filter / PANEL_OUTPUTS) else { continue };
                let tasks = own[part..].iter_mut().step_by(cut.outputs.len());
                tasks.zip(results.chunks_mut(cut.rows * size)).for_each(|(task, own)| task.results.push(own));
            }
        }
        match tiled {
            Some(tiled) => {
                let of_group = group * filters..(group + 1) * filters;
                let (weight, bias) = (self.weight(of_group.clone()), self.bias.map(|bias| &bias[of_group]));
                let tiles = tiled.tiles(Filters { weight, bias, pieces });
                // The panels of each part, counted over those that are there.
                let mut parts: Vec<Range<usize>> = Vec::with_capacity(cut.outputs.len());
                for pieces in &cut.outputs {
                    let first = parts.last().map_or(0, |before| before.end);
                    parts.push(first..first + panels_of(pieces));
                }
                let own = |task: &Task<'_>| FilterPart {
                    tiles: &tiles,
                    panels: parts[task.part].clone(),
                    pieces: &cut.outputs[task.part],
                };
                let positions = |task: &Task<'_>| {
                    let image = self.image(task.image, group);
                    tiled.positions(Positions { image, range: task.positions.clone() }, weight)
                };
                // Positions that several parts of the filters multiply are laid out once for all of them.
                let shared = if parts.len() > 1 { tasks.as_slice() } else { &[] };
                let shared: Vec<PositionTiles> = shared.iter().step_by(parts.len().max(1)).map(positions).collect();
                let tasks: Vec<_> = tasks.into_iter().enumerate().collect();
                each_mut(tasks, |(index, task)| match shared.get(*index / parts.len()) {
                    Some(positions) => self.finish_tiled(tiled, group, own(task), positions, task, finish),
                    None => self.finish_tiled(tiled, group, own(task), &positions(task), task, finish),
                });
            }
            None => each_mut(tasks, |task| {
                serially(|| self.finish_task(group, &cut.outputs[task.part], task, finish));
            }),
        }
    }

    fn shape(&self) -> ConvolutionShape {
        ConvolutionShape {
            batch: self.plan.shape[0],
            groups: self.plan.groups,
            group_inputs: self.plan.group_channels,
            group_outputs: self.filters(),
            axes: self.axes.clone(),
        }
    }

    /// The type and the zero points of some filters.
    fn weight(&self, filters: Range<usize>) -> IntegerWeight<'_> {
        IntegerWeight { kind: self.w_kind, zeros: &self.zeros[filters] }
    }

    fn finish_tiled(
        &self,
        tiled: &TiledConvolution,
        group: usize,
        FilterPart { tiles, panels: own, pieces }: FilterPart<'_, '_>,
        positions: &PositionTiles,
        task: &mut Task<'_>,
        finish: &Finish<'_>,
    ) {
        let panels = pieces.iter().flat_map(|piece| piece.panels.clone());
        let filter = |panel: usize| panel * PANEL_OUTPUTS..self.filters().min((panel + 1) * PANEL_OUTPUTS);
        let first = group * self.filters();
        let channels: Vec<usize> = panels.flat_map(filter).map(|filter| first + filter).collect();
        let Task { image, positions: own_positions, part: _, results } = task;
        let size = finish.dtype().bits() / 8;
        if let Finish::Codes(codes) = finish {
            return tiled.codes(
                positions,
                (tiles, own),
                |index| codes.of(channels[index], own_positions.len()),
                results,
            );
        }
        tiled.sums(positions, (tiles, own), |index, first, sums| {
            let channel = channels[index];
            let first_place = (*image * self.plan.shape[1] + channel) * self.positions() + own_positions.start;
            let results = &mut results[index][first * size..][..sums.len() * size];
            finish.write(channel, first_place + first, sums, results);
        });
    }

    fn finish_task(&self, group: usize, pieces: &[IntegerPiece<'_>], task: &mut Task<'_>, finish: &Finish<'_>) {
        let (filters, first_filter) = (self.filters(), group * self.filters());
        let x = self.windows(task.image, group, task.positions.clone());
        let length = task.positions.len();
        let mut results = task.results.iter_mut();
        let mut sums = Vec::new();
        for piece in pieces {
            let own = outputs_of(std::slice::from_ref(piece), filters);
            let channels = first_filter + own.start..first_filter + own.end;
            sums.clear();
            match self.bias {
                Some(bias) => {
                    bias[channels.clone()].iter().for_each(|&bias| sums.extend(std::iter::repeat_n(bias, length)));
                }
                None => sums.resize(own.len() * length, 0),
            }
            let weight = self.weight(channels.clone());
            let alone = IntegerPiece { panels: 0..piece.panels.len(), ..piece.clone() };
            let order = SumOrder::Outputs { stride: length, first: 0 };
            integer_product(
                Instructions::best(),
                &x,
                self.zero,
                weight,
                &[alone],
                IntegerSums { sums: &mut sums, order },
            );
            for ((channel, sums), results) in channels.zip(sums.chunks(length)).zip(results.by_ref()) {
                let place = (task.image * self.plan.shape[1] + channel) * self.positions() + task.positions.start;
                finish.write(channel, place, sums, results);
            }
        }
    }

    /// The windows of some positions of a group of channels of an image.
    fn windows(&self, image: usize, group: usize, positions: Range<usize>) -> IntegerRows<'_> {
        let image = self.image(image, group);
        IntegerRows::windows(&self.axes, image, self.plan.group_channels, positions, self.pad)
    }

    /// A group of channels of an image.
    fn image(&self, image: usize, group: usize) -> &[u8] {
        let length = self.plan.group_channels * self.axes.iter().map(|axis| axis.input).product::<usize>();
        &self.x[(image * self.plan.groups + group) * length..][..length]
    }

    /// Adds what pieces of filters give, which come part by part.
    fn add_all(&self, weights: &Weights, sums: &mut [i32]) -> Result<(), KernelError> {
        weights.each_group(self.matrices(), |group, pieces| self.add_group(group, pieces, sums))
    }

    /// Adds what pieces of the filters of a group give for all images.
    fn add_group(&self, group: usize, pieces: &[IntegerPiece<'_>], sums: &mut [i32]) {
        let (positions, filters) = (self.positions(), self.filters());
        let zeros = &self.zeros[group * filters..(group + 1) * filters];
        let weight = IntegerWeight { kind: self.w_kind, zeros };
        let most = (OPERAND_BYTES / self.inputs().max(1)).max(FEWEST_ROWS);
        for image in 0..self.plan.shape[0] {
            let place = (image * self.plan.shape[1] + group * filters) * positions;
            let sums = &mut sums[place..place + filters * positions];
            for start in (0..positions).step_by(most) {
                let x = self.windows(image, group, start..positions.min(start + most));
                let out =
                    IntegerSums { sums: &mut *sums, order: SumOrder::Outputs { stride: positions, first: start } };
                integer_product(Instructions::best(), &x, self.zero, weight, pieces, out);
            }
        }
    }
}

/// Some of the filters of a group, which a task multiplies.
struct FilterPart<'a, 'w> {
    /// Those of the group.
    tiles: &'a FilterTiles<'w>,
    /// Panels of the part, counted over those of `tiles`.
    panels: Range<usize>,
    pieces: &'a [IntegerPiece<'w>],
}

/// Some positions of an image by some filters.
struct Task<'a> {
    image: usize,
    positions: Range<usize>,
    /// Which part of the outputs it has.
    part: usize,
    /// The results of each filter.
    results: Vec<&'a mut [u8]>,
}
