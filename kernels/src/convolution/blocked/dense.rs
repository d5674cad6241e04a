//! Convolutions over blocks of channels by panels of 16 output channels.

use std::{cmp::Reverse, ops::Range};

use super::{
    BlockedPlan, CHANNEL_BLOCK, InputOrder,
    copied::CopiedWindows,
    panel_tiles::{Finish, PanelTiles, Start, TILE_ROWS},
    plane,
    planes::Planes,
    tile::{Inputs, Operands, Values, WIDE_ROWS, panels_together},
    winograd,
};
use crate::{
    convolution::{ConvolutionEpilogue, ConvolutionShape, winograd::are_small},
    places::{KeptPlaces, places},
    product::{PANEL_OUTPUTS, PanelElements, PanelPiece, Panels},
    scratch::scratch,
    simd::{Instructions, LANES, Layout, LinePlaces, Lines, Routine, Simd, Within},
    team, threads, window,
};

/// Inputs that are multiplied for all windows of a task before the next ones: their weights stay in the first-level cache, those of
/// several panels too where these are multiplied together. Where windows have several taps, which read the same values again, runs are
/// longer, since sums wait in memory from one to the next, and weights come from the second-level cache.
const MOST_INPUTS: usize = 256;
const MOST_INPUTS_OF_TAPS: usize = 576;
const MOST_INPUTS_OF_TWO: usize = 224;
const MOST_INPUTS_OF_FOUR: usize = 128;
const MOST_INPUTS_OF_TAPS_TOGETHER: usize = 288;

/// Values of a task's inputs, which stay in the second-level cache for all panels.
const MOST_VALUES: usize = 1 << 16;

/// Values of a task's windows that are copied with their padding, about as many as the first-level cache holds; those that windows at
/// the ends of rows see come on top of them.
const MOST_COPIED: usize = 1 << 13;

/// Places of taps that take as much room as a value that is copied may.
const PLACES_OF_VALUE: usize = 8;

/// Fewest panels of a task for which copies of strided windows save more time than they take, where tiles multiply one panel.
const FEWEST_PANELS_OF_COPIES: usize = 4;

/// Panels that are multiplied together at most, and in tasks that are few.
const MOST_TOGETHER: usize = 4;
const FEWEST_TOGETHER: usize = 2;

/// Tasks of each thread from which on it matters little that one has one more.
const ENOUGH_TASKS: usize = 4;

/// Windows of a task.
const MOST_WINDOWS: usize = 768;

/// Windows of a task whose sums wait in memory for further inputs.
const MOST_WAITING: usize = 192;

/// Windows that both the least tiles and halves of wide ones fill: tasks of many windows have a multiple of so many, where rows do.
const WHOLE_TILES: usize = TILE_ROWS * WIDE_ROWS / 2;

/// Windows of a task that are so many: it has a tenth more at most.
const MANY_WINDOWS: usize = 10 * WHOLE_TILES;

/// Fewest windows of a task.
const FEWEST_WINDOWS: usize = 48;

/// Fewest windows of a task where there are few of them, and fewer panels than threads could take: several panels would not be
/// multiplied together else.
const FEWEST_OF_FEW: usize = FEWEST_WINDOWS / 2;

/// The convolution with pieces of a weight.
///
/// # Panics
/// If a piece is none of the weight.
pub(super) fn convolution(
    instructions: Instructions,
    plan: &BlockedPlan,
    x: &[f32],
    pieces: &[PanelPiece<'_>],
    out: &mut [f32],
    epilogue: ConvolutionEpilogue<'_>,
) {
    let shape = plan.shape();
    let group_panels = shape.group_outputs.div_ceil(PANEL_OUTPUTS);
    for piece in pieces {
        piece.check(shape.depth(), shape.groups * group_panels);
    }
    let common = Common { plan, x, epilogue };
    // Pieces of the same panels add to the same outputs.
    let mut rest = pieces;
    while let [first, ..] = rest {
        let mut end = first.panels.end;
        let mut count = 1;
        while let Some(next) = rest.get(count).filter(|next| next.panels.start >= end) {
            end = next.panels.end;
            count += 1;
        }
        let (now, later) = rest.split_at(count);
        multiply(instructions, &common, now, out);
        rest = later;
    }
}

/// Adds the products with pieces of which no two have a panel in common.
fn multiply(instructions: Instructions, common: &Common<'_>, pieces: &[PanelPiece<'_>], out: &mut [f32]) {
    let shape = common.plan.shape();
    let mut direct = pieces;
    let rest: Vec<PanelPiece<'_>>;
    if common.plan.order() == InputOrder::Blocks && winograd::fits(shape) {
        // Pieces of some inputs of their panels are sums of their own, which the transformed ones cannot take up.
        let is_whole = |piece: &PanelPiece<'_>| piece.inputs.len() == shape.depth();
        if pieces.iter().any(is_whole) && are_small(instructions, common.x) {
            let (whole, others): (Vec<_>, Vec<_>) = pieces.iter().cloned().partition(is_whole);
            winograd::convolution(instructions, shape, common.x, &whole, out, common.epilogue);
            rest = others;
            direct = &rest;
        }
    }
    if direct.is_empty() {
        return;
    }
    let cut = Cut::new(common, direct);
    let places = common.plan.places(cut.windows_each);
    let mut outputs = Vec::new();
    threads::each_mut(split(common, direct, &cut, &places, out, &mut outputs), |task| instructions.run(task));
}

/// Everything that tasks have in common.
struct Common<'a> {
    plan: &'a BlockedPlan,
    x: &'a [f32],
    epilogue: ConvolutionEpilogue<'a>,
}

/// Some windows of an image by some panels of a group.
struct Task<'a> {
    common: &'a Common<'a>,
    /// Where their taps lie, the same for all images, groups and panels.
    places: &'a KeptPlaces,
    image: usize,
    group: usize,
    windows: Range<usize>,
    /// Within the group.
    panels: Range<usize>,
    inputs: Range<usize>,
    elements: PanelElements<'a>,
}

/// A task with the outputs of each block of channels at its windows.
struct TaskOutputs<'a, 'o> {
    task: Task<'a>,
    out: &'a mut [&'o mut [f32]],
}

/// Windows of a task, where a group has so many panels.
fn windows_each(common: &Common<'_>, windows: usize, panels: usize, parts: usize) -> usize {
    let (depth, channels) = (common.plan.shape().depth(), common.plan.shape().group_inputs);
    let (most_values, values, most) = match common.plan.order() {
        InputOrder::Blocks if depth > MOST_INPUTS_OF_FOUR => (MOST_VALUES, channels.max(1), MOST_WAITING),
        InputOrder::Blocks => (MOST_VALUES, channels.max(1), MOST_WINDOWS),
        InputOrder::Planes => {
            let strides: usize = common.plan.axes().iter().map(|axis| axis.stride.min(axis.kernel)).product();
            let places = window::taps(common.plan.axes()) / PLACES_OF_VALUE;
            (MOST_COPIED, channels.saturating_mul(strides).max(places).max(1), MOST_WINDOWS)
        }
    };
    let fewest = if windows < 2 * FEWEST_WINDOWS && panels < parts { FEWEST_OF_FEW } else { FEWEST_WINDOWS };
    let most = (most_values / values).clamp(fewest.min(most), most);
    let each = windows.div_ceil(parts.max(windows.div_ceil(most))).max(fewest);
    // About as many in each task: a short last one would read all weights for few windows.
    let tasks = (windows / each).max(1);
    let each = windows.div_ceil(tasks);
    let columns = common.plan.axes().last().map_or(1, |columns| columns.output);
    let has_wide_rows = each >= MANY_WINDOWS && columns.is_multiple_of(WIDE_ROWS / 2);
    each.next_multiple_of(if has_wide_rows { WHOLE_TILES } else { TILE_ROWS })
}

/// How many windows and panels a task has.
struct Cut {
    windows_each: usize,
    panels_each: usize,
}

impl Cut {
    fn new(common: &Common<'_>, pieces: &[PanelPiece<'_>]) -> Cut {
        let ConvolutionShape { batch, groups, .. } = *common.plan.shape();
        let windows = window::outputs(common.plan.axes());
        let panels: usize = pieces.iter().map(|piece| piece.panels.len()).sum();
        let depth = pieces.iter().map(|piece| piece.inputs.len()).max().unwrap_or(0);
        let operations = batch * windows * panels * PANEL_OUTPUTS * depth;
        let all_parts = threads::parts(operations, usize::MAX);
        let parts = all_parts.div_ceil(batch * groups);
        let of_group = panels.div_ceil(groups);
        let windows_each = windows_each(common, windows, of_group, parts);
        let of_windows = windows.div_ceil(windows_each);
        let panels_each = of_group.div_ceil(parts.div_ceil(of_windows));
        // Several are multiplied together, where each thread has as many.
        let panels_each = if panels_each > 1 { panels_each.next_multiple_of(2) } else { 1 };
        let panels_each = panels_each.max(MOST_TOGETHER.min(of_group / team::count()));
        // Of few tasks that threads cannot share evenly, the last would be waited for.
        let tasks = batch * groups * of_windows * of_group.div_ceil(panels_each);
        let are_shared = all_parts > 1 && tasks < ENOUGH_TASKS * team::count();
        let is_uneven = are_shared && !tasks.is_multiple_of(team::count());
        Cut { windows_each, panels_each: if is_uneven { panels_each.min(FEWEST_TOGETHER) } else { panels_each } }
    }
}

/// Cuts pieces, of which no two have a panel in common, into tasks with outputs of their own, which are listed task by task.
fn split<'a, 'o>(
    common: &'a Common<'a>,
    pieces: &[PanelPiece<'a>],
    &Cut { windows_each, panels_each }: &Cut,
    places: &'a [KeptPlaces],
    out: &'o mut [f32],
    outputs: &'a mut Vec<&'o mut [f32]>,
) -> Vec<TaskOutputs<'a, 'o>> {
    let ConvolutionShape { groups, group_outputs, .. } = *common.plan.shape();
    let group_panels = group_outputs.div_ceil(PANEL_OUTPUTS);
    let windows = window::outputs(common.plan.axes());
    let mut tasks = Vec::new();
    for (image, out) in out.chunks_mut(groups * group_outputs * windows).enumerate() {
        let mut blocks: Vec<&mut [f32]> = out.chunks_mut(CHANNEL_BLOCK * windows).collect();
        for piece in pieces {
            let mut panel = piece.panels.start;
            while panel < piece.panels.end {
                let (group, first) = (panel / group_panels, panel % group_panels);
                let count = panels_each.min(group_panels - first).min(piece.panels.end - panel);
                let task = |(start, places): (usize, &'a KeptPlaces)| {
                    let (inputs, elements) = (piece.inputs.clone(), piece.elements_of(panel..panel + count));
                    let windows = start..windows.min(start + windows_each);
                    Task { common, places, image, group, windows, panels: first..first + count, inputs, elements }
                };
                tasks.extend((0..windows).step_by(windows_each).zip(places).map(task));
                let channel = group * group_outputs + first * PANEL_OUTPUTS;
                let end = group * group_outputs + group_outputs.min((first + count) * PANEL_OUTPUTS);
                let blocks = &mut blocks[channel / CHANNEL_BLOCK..end / CHANNEL_BLOCK];
                for _ in 0..windows.div_ceil(windows_each) {
                    for block in &mut *blocks {
                        let part = block.split_off_mut(..block.len().min(windows_each * CHANNEL_BLOCK));
                        outputs.push(part.unwrap_or_default());
                    }
                }
                panel += count;
            }
        }
    }
    let mut rest = &mut outputs[..];
    let with_outputs = tasks.into_iter().map(|task: Task<'a>| {
        let out;
        (out, rest) = std::mem::take(&mut rest).split_at_mut(task.blocks());
        TaskOutputs { task, out }
    });
    let mut tasks: Vec<_> = with_outputs.collect();
    if pieces.len() > 1 {
        // Threads begin with as many neighbours each: those of one size lie side by side, what is left of pieces behind them.
        tasks.sort_by_key(|of_task| Reverse(of_task.task.panels.len()));
    }
    tasks
}

impl Routine for &mut TaskOutputs<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let TaskOutputs { task, out } = self;
        task.multiply(simd, out);
    }
}

impl<'a> Task<'a> {
    /// The blocks of its outputs.
    fn blocks(&self) -> usize {
        let outputs = self.common.plan.shape().group_outputs;
        (outputs.min(self.panels.end * PANEL_OUTPUTS) - self.panels.start * PANEL_OUTPUTS) / CHANNEL_BLOCK
    }

    #[inline(always)]
    fn multiply<S: Simd>(&self, simd: S, out: &mut [&mut [f32]]) {
        let Common { plan, x, .. } = *self.common;
        let (shape, axes, order) = (plan.shape(), plan.axes(), plan.order());
        let ConvolutionShape { groups, group_inputs, .. } = *shape;
        let plane = plane(shape);
        let image = &x[(self.image * groups + self.group) * group_inputs * plane..][..group_inputs * plane];
        let (planes, copied);
        let copies = const { panels_together::<S>() == 1 } && self.panels.len() >= FEWEST_PANELS_OF_COPIES;
        let values = match order {
            InputOrder::Blocks if copies && CopiedWindows::fits(axes) => {
                let blocks = group_inputs / CHANNEL_BLOCK;
                copied = CopiedWindows::new(axes, blocks, image, self.windows.clone(), self.places);
                copied.values()
            }
            InputOrder::Blocks => {
                let places = self.places(axes);
                let blocks = group_inputs / CHANNEL_BLOCK;
                let layout = Layout { blocks, block_distance: CHANNEL_BLOCK * plane, length: CHANNEL_BLOCK };
                Values { lines: Lines::new(image, places, layout), taps: window::taps(axes), within: Within::Taps }
            }
            InputOrder::Planes => {
                planes = Planes::new(axes, group_inputs, image, self.windows.clone(), self.places);
                planes.values()
            }
        };
        let weights = Panels::new(self.elements, self.inputs.len());
        let (mut panel, mut rest) = (0, out);
        while !rest.is_empty() {
            let left = rest.len().div_ceil(PANEL_OUTPUTS / CHANNEL_BLOCK);
            let count = match left {
                4.. if const { panels_together::<S>() == 4 } => 4,
                2.. if const { panels_together::<S>() == 4 } => 2,
                _ => 1,
            };
            let blocks = rest.len().min(count * PANEL_OUTPUTS / CHANNEL_BLOCK);
            let own;
            (own, rest) = rest.split_at_mut(blocks);
            let most = match order {
                InputOrder::Blocks => most_inputs::<S>(values.taps, count),
                InputOrder::Planes => usize::MAX,
            };
            let segments = segments(&self.inputs, values.block(), most);
            let group = Group { task: self, weights, first: panel, values, segments: &segments };
            match count {
                4 if const { panels_together::<S>() == 4 } => group.multiply::<S, 4>(simd, own),
                2 if const { panels_together::<S>() == 4 } => group.multiply::<S, 2>(simd, own),
                _ => group.multiply::<S, 1>(simd, own),
            }
            panel += count;
        }
    }

    /// Where the taps of the windows lie, from whichever task was first.
    fn places(&self, axes: &[window::WindowAxis]) -> &'a LinePlaces {
        let step = axes.last().map_or(0, |columns| columns.stride * CHANNEL_BLOCK);
        let windows = &self.windows;
        self.places.get_or_make(|| LinePlaces::new(places(axes, windows.clone(), CHANNEL_BLOCK), windows.len(), step))
    }

    /// Whether wide tiles, and halves of them where there is padding, fill rows of its windows. In rows of one wide tile padding would
    /// leave halves alone.
    fn is_wide(&self) -> bool {
        let half = WIDE_ROWS / 2;
        match self.common.plan.axes() {
            [.., _, columns] => {
                columns.output >= 2 * WIDE_ROWS
                    && columns.output.is_multiple_of(half)
                    && self.windows.start.is_multiple_of(half)
            }
            [] | [_] => true,
        }
    }

    /// Whether outputs are complete afterwards.
    fn is_last(&self) -> bool {
        self.inputs.end == self.common.plan.shape().depth()
    }

    /// The first block of output channels of a panel of the task.
    fn block(&self, panel: usize) -> usize {
        self.group * self.common.plan.shape().group_outputs / CHANNEL_BLOCK
            + (self.panels.start + panel) * (PANEL_OUTPUTS / CHANNEL_BLOCK)
    }

    /// Where the outputs of a block of a panel begin in the whole output.
    fn place(&self, panel: usize, index: usize) -> usize {
        let (shape, axes) = (self.common.plan.shape(), self.common.plan.axes());
        let blocks = shape.groups * shape.group_outputs / CHANNEL_BLOCK;
        let block = self.image * blocks + self.block(panel) + index;
        (block * window::outputs(axes) + self.windows.start) * CHANNEL_BLOCK
    }

    /// What follows for the outputs of a panel of so many blocks.
    fn finish(&self, panel: usize, blocks: usize) -> Finish<'a> {
        if !self.is_last() {
            return Finish::default();
        }
        let places = [0, blocks - 1].map(|index| self.place(panel, index));
        Finish::of(self.common.epilogue, self.block(panel), places)
    }
}

/// Panels of a task that are multiplied together.
struct Group<'a> {
    task: &'a Task<'a>,
    /// Of all panels of the task.
    weights: Panels<'a>,
    /// The first of them in the task.
    first: usize,
    values: Values<'a>,
    segments: &'a [Inputs],
}

impl Group<'_> {
    /// `PANELS` panels with the outputs of their blocks.
    #[inline(always)]
    fn multiply<S: Simd, const PANELS: usize>(&self, simd: S, out: &mut [&mut [f32]]) {
        let Self { task, values, segments, .. } = *self;
        let (windows, length) = (task.windows.len(), task.inputs.len());
        let is_plain = self.weights.are_f32();
        let mut wide = scratch(if is_plain { 0 } else { PANELS * length * LANES });
        let mut waiting = scratch(if segments.len() > 1 { PANELS * windows * LANES } else { 0 });
        let mut wide = wide.chunks_mut((length * LANES).max(1));
        let mut panels: [&[[f32; LANES]]; PANELS] = [&[]; PANELS];
        let mut behind: [&[[f32; LANES]]; PANELS] = [&[]; PANELS];
        let mut finish = [Finish::default(); PANELS];
        for panel in 0..PANELS {
            panels[panel] = self.panel(simd, self.first + panel, wide.next().unwrap_or_default());
            if is_plain {
                behind[panel] = self.panel(simd, self.first + PANELS + panel, &mut []);
            }
            let blocks = out.len() - panel * (PANEL_OUTPUTS / CHANNEL_BLOCK);
            finish[panel] = task.finish(self.first + panel, blocks.min(PANEL_OUTPUTS / CHANNEL_BLOCK));
        }
        let mut begin = 0;
        for (index, inputs) in segments.iter().enumerate() {
            let end = begin + inputs.count(values.block());
            let mut next = behind;
            let mut own = panels;
            for panel in 0..PANELS {
                // The weights of the panels behind these are asked for while these are multiplied, where they are f32.
                let rest = if index + 1 < segments.len() { &panels[panel][end..] } else { behind[panel] };
                next[panel] = &rest[..rest.len().min(end - begin)];
                own[panel] = &panels[panel][begin..end];
            }
            let operands = Operands {
                values,
                windows,
                inputs,
                panels: own,
                next,
                asks: self.first == 0 && values.taps == 1 && values.within == Within::Taps,
                is_wide: task.is_wide(),
            };
            let start = match index {
                0 if task.inputs.start == 0 => Start::Zero,
                0 => Start::Outputs,
                _ => Start::Waiting,
            };
            let ends = index + 1 == segments.len();
            simd.run(PanelTiles { operands, start, ends, waiting: &mut waiting, finish, out: &mut *out });
            begin = end;
        }
        if let Some(change) = task.common.epilogue.change.filter(|_| task.is_last()) {
            for (index, out) in out.iter_mut().enumerate() {
                change.apply(task.place(self.first, index), out);
            }
        }
    }

    /// A panel of the task as f32, where they lie or in `wide`; empty behind the last one.
    #[inline(always)]
    fn panel<'w, S: Simd>(&'w self, simd: S, panel: usize, wide: &'w mut [f32]) -> &'w [[f32; LANES]] {
        if panel >= self.weights.count() {
            return &[];
        }
        self.weights.in_f32(simd, panel, 0..self.task.inputs.len(), wide)
    }
}

/// Inputs of a run of so many panels. Sums of several taps go over runs first, so that theirs depend on nothing that tasks differ in.
fn most_inputs<S: Simd>(taps: usize, panels: usize) -> usize {
    match (taps, panels) {
        (1, _) if const { panels_together::<S>() == 1 } => MOST_INPUTS,
        _ if const { panels_together::<S>() == 1 } => MOST_INPUTS_OF_TAPS,
        (1, 4) => MOST_INPUTS_OF_FOUR,
        (1, 2) => MOST_INPUTS_OF_TWO,
        (1, _) => MOST_INPUTS,
        _ => MOST_INPUTS_OF_TAPS_TOGETHER,
    }
}

/// The inputs of a piece, in runs of about as many whole blocks and those of blocks that it begins or ends within. A block has
/// `block` inputs.
fn segments(inputs: &Range<usize>, block: usize, most: usize) -> Vec<Inputs> {
    let whole = (block > 0).then(|| (inputs.start.div_ceil(block), inputs.end / block));
    let Some((first, end)) = whole.filter(|(first, end)| first <= end) else {
        return vec![Inputs::Single(inputs.clone())];
    };
    let runs = (end - first).div_ceil((most / block).max(1)).max(1);
    let blocks_each = (end - first).div_ceil(runs).max(1);
    let runs = (first..end).step_by(blocks_each).map(|start| Inputs::Blocks(start..end.min(start + blocks_each)));
    let (before, after) = (inputs.start..first * block, end * block..inputs.end);
    let single = |inputs: Range<usize>| (!inputs.is_empty()).then_some(Inputs::Single(inputs));
    let mut segments: Vec<Inputs> = single(before).into_iter().chain(runs).chain(single(after)).collect();
    if segments.is_empty() {
        segments.push(Inputs::Blocks(0..0));
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{team::Team, window::WindowAxis};

    /// A convolution of 1 x 1 taps over 7 x 7 positions.
    fn plan(group_inputs: usize, group_outputs: usize) -> BlockedPlan {
        let axis = WindowAxis { input: 7, output: 7, kernel: 1, stride: 1, dilation: 1, pad_begin: 0, pad_end: 0 };
        let shape = ConvolutionShape { batch: 1, groups: 1, group_inputs, group_outputs, axes: vec![axis; 2] };
        BlockedPlan::new(shape, InputOrder::Blocks)
    }

    /// The panels of the tasks of two threads, of a weight in pieces of so many panels.
    fn tasks(inputs: usize, panels: &[usize]) -> Vec<Range<usize>> {
        let outputs = panels.iter().sum::<usize>() * PANEL_OUTPUTS;
        let plan = plan(inputs, outputs);
        let (x, weight) = (vec![0.0; 49 * inputs], vec![0.0; inputs * outputs]);
        let mut out = vec![0.0; 49 * outputs];
        let mut start = 0;
        let pieces = panels.iter().map(|&count| {
            let own = start..start + count;
            start += count;
            let elements = PanelElements::F32(&weight[..count * inputs * PANEL_OUTPUTS]);
            PanelPiece { panels: own, inputs: 0..inputs, elements }
        });
        let pieces: Vec<PanelPiece<'_>> = pieces.collect();
        let common = Common { plan: &plan, x: &x, epilogue: ConvolutionEpilogue::default() };
        Team::new(2).unwrap().run(|| {
            let cut = Cut::new(&common, &pieces);
            let places = plan.places(cut.windows_each);
            let mut outputs = Vec::new();
            let tasks = split(&common, &pieces, &cut, &places, &mut out, &mut outputs);
            tasks.into_iter().map(|of_task| of_task.task.panels).collect()
        })
    }

    #[test]
    fn threads_have_as_many_panels() {
        assert_eq!(tasks(512, &[8]), [0..4, 4..8], "four together");
        assert_eq!(tasks(40, &[3]), [Range { start: 0, end: 3 }], "too few operations for two threads");
        assert_eq!(
            tasks(1152, &[12]),
            [0..2, 2..4, 4..6, 6..8, 8..10, 10..12],
            "three tasks of four would be two and one"
        );
    }

    #[test]
    fn what_is_left_of_pieces_comes_last() {
        assert_eq!(tasks(512, &[14, 18]), [0..4, 4..8, 8..12, 14..18, 18..22, 22..26, 26..30, 12..14, 30..32]);
    }
}
