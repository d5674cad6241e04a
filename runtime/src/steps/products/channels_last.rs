//! Convolutions of integers of 8 bits whose results have their channels side by side: exact sums, then the program over them, for some
//! positions in each task.

use super::integer::Weights;
use super::integer_tasks::{Cut, ROWS_UNIT};
use super::requantized::Finish;
use crate::steps::KernelError;
use ipuc_formats::ops::ConvolutionPlan;
use ipuc_kernels::convolution::{ByteConvolution, OutputRows, SideBySide, SideBySideFilters, SideBySideImage};
use ipuc_kernels::product::{IntegerPiece, PANEL_OUTPUTS};
use ipuc_kernels::simd::Instructions;
use ipuc_kernels::threads::each_mut;
use ipuc_kernels::window::{self, WindowAxis};
use std::ops::Range;

/// Bytes of images that are multiplied at a time, and may be copied for that, and how many images.
const IMAGES_BYTES: usize = 1 << 23;
const MOST_IMAGES: usize = 16;

/// A convolution of which the operands are known; its result is `[n, 1, o.., m]`.
pub(super) struct ChannelsLast<'a> {
    plan: &'a ConvolutionPlan,
    axes: &'a [WindowAxis],
    x: &'a [u8],
    kernel: SideBySide<'a>,
}

impl<'a> ChannelsLast<'a> {
    /// `None` where there is no kernel for it.
    pub(super) fn new(plan: &'a ConvolutionPlan, own: ByteConvolution<'a>, x: &'a [u8]) -> Option<ChannelsLast<'a>> {
        let kernel = SideBySide::new(Instructions::best(), own)?;
        Some(ChannelsLast { plan, axes: own.axes, x, kernel })
    }

    pub(super) fn inputs(&self) -> usize {
        self.plan.group_channels * window::taps(self.axes)
    }

    fn filters(&self) -> usize {
        self.plan.shape[1]
    }

    /// Writes the results of all filters, each of which comes with all its inputs.
    ///
    /// # Errors
    /// [`KernelError`] where weights cannot be read.
    pub(super) fn finish_all(&self, weights: &Weights, finish: &Finish<'_>, out: &mut [u8]) -> Result<(), KernelError> {
        weights.each_group([1, self.inputs(), self.filters()], |_, pieces| self.finish_pieces(pieces, finish, out))
    }

    /// Writes the results of some filters for all images.
    fn finish_pieces(&self, pieces: &[IntegerPiece<'_>], finish: &Finish<'_>, out: &mut [u8]) {
        let filters = self.kernel.filters(pieces);
        let positions = window::outputs(self.axes);
        let image = self.x.len() / self.plan.shape[0];
        let cut = Cut::new(self.plan.shape[0], positions, ROWS_UNIT, self.inputs(), pieces);
        let result = positions * self.filters() * (finish.dtype().bits() / 8);
        let together = (IMAGES_BYTES / self.kernel.image_bytes().max(1)).clamp(1, MOST_IMAGES);
        let groups = self.x.chunks(together * image).zip(out.chunks_mut(together * result));
        for (group, (x, out)) in groups.enumerate() {
            let images: Vec<SideBySideImage<'_>> = x.chunks(image).map(|x| self.kernel.image(x)).collect();
            let tasks = (group * together..).zip(images.iter().zip(out.chunks_mut(result)));
            let of_image = |(index, (image, out))| self.tasks(&cut, (image, index * positions), out, finish);
            each_mut(tasks.flat_map(of_image).collect(), |task: &mut Task<'_, '_>| {
                task.finish(&self.kernel, &filters, finish);
            });
        }
    }

    /// The tasks of an image, the first position of which is `first` of all; `out` are its results.
    fn tasks<'t, 'w>(
        &self,
        cut: &'t Cut<'w>,
        (image, first): (&'t SideBySideImage<'t>, usize),
        out: &'t mut [u8],
        finish: &Finish<'_>,
    ) -> Vec<Task<'t, 'w>> {
        let (filters, size) = (self.filters(), finish.dtype().bits() / 8);
        let row = filters * size;
        let mut tasks = Vec::new();
        for (index, out) in out.chunks_mut(cut.rows * row).enumerate() {
            let start = index * cut.rows;
            let positions = start..start + out.len() / row;
            let task = |pieces, panels, out| {
                let positions = positions.clone();
                Task { image, first, positions, pieces, panels, filters, out }
            };
            if let [pieces] = cut.outputs.as_slice() {
                tasks.push(task(pieces.as_slice(), 0..panels(pieces), OutputRows::Whole(out)));
                continue;
            }
            let mut begun = 0;
            let mut parts: Vec<(Range<usize>, Task<'t, 'w>)> = Vec::with_capacity(cut.outputs.len());
            for pieces in &cut.outputs {
                let own = begun..begun + panels(pieces);
                begun = own.end;
                let outputs = outputs(pieces, filters);
                parts.push((outputs, task(pieces.as_slice(), own, OutputRows::Each(Vec::new()))));
            }
            for mut rest in out.chunks_mut(row) {
                let mut begun = 0;
                for (outputs, task) in &mut parts {
                    let (_, behind) = rest.split_at_mut((outputs.start - begun) * size);
                    let (own, behind) = behind.split_at_mut(outputs.len() * size);
                    if let OutputRows::Each(rows) = &mut task.out {
                        rows.push(own);
                    }
                    (rest, begun) = (behind, outputs.end);
                }
            }
            tasks.extend(parts.into_iter().map(|(_, task)| task));
        }
        tasks
    }
}

/// Panels of some pieces.
fn panels(pieces: &[IntegerPiece<'_>]) -> usize {
    pieces.iter().map(|piece| piece.panels.len()).sum()
}

/// From the first filter of some pieces, which are in order, to the last.
fn outputs(pieces: &[IntegerPiece<'_>], filters: usize) -> Range<usize> {
    let first = pieces.first().map_or(0, |piece| piece.panels.start * PANEL_OUTPUTS);
    let end = pieces.last().map_or(0, |piece| piece.panels.end * PANEL_OUTPUTS);
    first..filters.min(end)
}

/// Some positions of an image by some filters.
struct Task<'t, 'w> {
    image: &'t SideBySideImage<'t>,
    /// The first position of the image, counted over all images.
    first: usize,
    positions: Range<usize>,
    pieces: &'t [IntegerPiece<'w>],
    /// Panels of the filters, counted over those that are there.
    panels: Range<usize>,
    /// All filters.
    filters: usize,
    out: OutputRows<'t>,
}

impl Task<'_, '_> {
    fn finish(&mut self, kernel: &SideBySide<'_>, filters: &SideBySideFilters<'_>, finish: &Finish<'_>) {
        let (x, own) = ((self.image, self.positions.clone()), (filters, self.panels.clone()));
        if let Finish::Codes(codes) = finish {
            return kernel.codes(x, own, codes.of(0, self.filters), &mut self.out);
        }
        kernel.sums(x, own, |position, filter, sums| self.write(position, filter, sums, finish));
    }

    /// Writes the results of a position, by filters from one on.
    fn write(&mut self, position: usize, filter: usize, sums: &[i32], finish: &Finish<'_>) {
        let size = finish.dtype().bits() / 8;
        let first = outputs(self.pieces, self.filters).start;
        let place = (self.first + self.positions.start + position) * self.filters + filter;
        let results = match &mut self.out {
            OutputRows::Whole(out) => &mut out[(position * self.filters + filter) * size..],
            OutputRows::Each(rows) => &mut rows[position][(filter - first) * size..],
        };
        finish.write(filter, place, sums, &mut results[..sums.len() * size]);
    }
}
