//! Convolutions of integers of 8 bits whose results have their channels side by side: exact sums, then the program over them, for some
//! positions in each task.

use super::integer::Weights;
use super::integer_tasks::{Cut, ROWS_UNIT, outputs_of, panels_of};
use super::requantized::Finish;
use crate::steps::KernelError;
use ipuc_formats::ops::ConvolutionPlan;
use ipuc_kernels::convolution::{ByteConvolution, OutputRows, SideBySide, SideBySideFilters, SideBySideImage};
use ipuc_kernels::product::IntegerPiece;
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
        let size = finish.dtype().bits() / 8;
        let position = self.filters() * size;
        let result = positions * position;
        let together = (IMAGES_BYTES / self.kernel.image_bytes().max(1)).clamp(1, MOST_IMAGES);
        let groups = self.x.chunks(together * image).zip(out.chunks_mut(together * result));
        for (group, (x, out)) in groups.enumerate() {
            let images: Vec<SideBySideImage<'_>> = x.chunks(image).map(|x| self.kernel.image(x)).collect();
            let (mut shares, mut tasks) = (Vec::new(), Vec::new());
            let of_images = (group * together..).map(|index| index * positions).zip(&images);
            if let [_] = cut.outputs.as_slice() {
                for (of_image, out) in of_images.zip(out.chunks_mut(result)) {
                    let blocks = out.chunks_mut(cut.rows * position).enumerate();
                    tasks.extend(
                        blocks.map(|(block, out)| self.task(&cut, of_image, [block, 0], OutputRows::Whole(out))),
                    );
                }
            } else {
                shares.extend(out.chunks_mut(result).map(|out| cut.shares(out, self.filters(), size)));
                for (of_image, shares) in of_images.zip(&mut shares) {
                    let parts = cut.outputs.len();
                    let rows = shares.iter_mut().enumerate();
                    let places = rows.map(|(task, rows)| ([task / parts, task % parts], OutputRows::Each(rows)));
                    tasks.extend(places.map(|(place, out)| self.task(&cut, of_image, place, out)));
                }
            }
            each_mut(tasks, |task: &mut Task<'_, '_, '_>| task.finish(&self.kernel, &filters, finish));
        }
    }

    /// The task of a block of positions and a part of the filters, of an image whose first position is `first` of all.
    fn task<'s, 't, 'w>(
        &self,
        cut: &'t Cut<'w>,
        (first, image): (usize, &'t SideBySideImage<'t>),
        [block, part]: [usize; 2],
        out: OutputRows<'s, 't>,
    ) -> Task<'s, 't, 'w> {
        let (start, begun) = (block * cut.rows, cut.outputs[..part].iter().map(|pieces| panels_of(pieces)).sum());
        let pieces = cut.outputs[part].as_slice();
        Task {
            image,
            first,
            positions: start..window::outputs(self.axes).min(start + cut.rows),
            pieces,
            panels: begun..begun + panels_of(pieces),
            filters: self.filters(),
            out,
        }
    }
}

/// Some positions of an image by some filters.
struct Task<'s, 't, 'w> {
    image: &'t SideBySideImage<'t>,
    /// The first position of the image, counted over all images.
    first: usize,
    positions: Range<usize>,
    pieces: &'t [IntegerPiece<'w>],
    /// Panels of the filters, counted over those that are there.
    panels: Range<usize>,
    /// All filters.
    filters: usize,
    out: OutputRows<'s, 't>,
}

impl Task<'_, '_, '_> {
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
        let first = outputs_of(self.pieces, self.filters).start;
        let place = (self.first + self.positions.start + position) * self.filters + filter;
        let results = match &mut self.out {
            OutputRows::Whole(out) => &mut out[(position * self.filters + filter) * size..],
            OutputRows::Each(rows) => &mut rows[position][(filter - first) * size..],
        };
        finish.write(filter, place, sums, &mut results[..sums.len() * size]);
    }
}
