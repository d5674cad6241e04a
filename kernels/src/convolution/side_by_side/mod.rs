//! Convolutions of integers of 8 bits whose channels lie side by side, `[positions.., channels]`: exact sums that wrap around in 32
//! bits.
//!
//! A word of four channels of a position is multiplied by vectors of 16 outputs, and the sums of a tile of positions by panels stay in
//! registers for all taps. Inputs are multiplied as unsigned codes and weights as signed ones, where they lie; those of the other kind
//! are copied, with their highest bit flipped, which moves codes and zero points by 128. Images whose channels come one after another are
//! copied into words (`planes`). Instructions that sum products of 16 bits take copies of images and filters, in words of two channels
//! (`halves`). Since `(x - a) * (w - b)` sums to `x * w - a * w - b * x + a * b`, zero points cost the sum of each output's weights and,
//! where weights have any, of each window.

mod completion;
mod halves;
mod planes;
mod products;

use std::{borrow::Cow, ops::Range};

pub use completion::OutputRows;

use super::{
    MOST_DEPTH,
    words::{FLIPPED, WORD_CHANNELS, Words},
};
use completion::{Codes, Handed};
use products::{Products, Windows};

use crate::{
    product::{IntegerLine, IntegerPiece, IntegerWeight, PANEL_OUTPUTS, Requantize, Zero},
    scratch::{Scratch, scratch},
    simd::{Instructions, LANES, OUTSIDE},
    threads,
    window::{self, WindowAxis},
};

/// The highest bit of a code.
const FLIP: u8 = 0x80;

/// Bytes of the largest image that is copied to words of halves: larger ones are multiplied where they lie.
const MOST_HALVES: usize = 1 << 25;

/// How the channels of images lie; those of results lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelOrder {
    /// `[positions.., channels]`, by filters whose inputs are `[taps, channels]`: channels are whole words.
    SideBySide,
    /// `[channels, positions..]`, by filters whose inputs are `[channels, taps]`.
    Planes,
}

/// A convolution of one group.
#[derive(Clone, Copy, Debug)]
pub struct ByteConvolution<'a> {
    /// How the channels of images lie.
    pub order: ChannelOrder,
    /// Spatial axes, outermost first.
    pub axes: &'a [WindowAxis],
    /// Channels of a position.
    pub channels: usize,
    /// What padding holds: the zero point of the input.
    pub pad: Zero,
    /// The type of the codes of filters, and the zero point of each.
    pub weight: IntegerWeight<'a>,
    /// What is added to the sums of each filter.
    pub bias: Option<&'a [i32]>,
}

/// The kernel of a convolution.
pub struct SideBySide<'a> {
    instructions: Instructions,
    words: Words,
    own: ByteConvolution<'a>,
    geometry: Geometry,
}

/// Where the windows of an image lie as it is multiplied.
struct Geometry {
    axes: Vec<WindowAxis>,
    /// Codes of a position.
    unit: usize,
    /// Groups of four codes that a tap of `axes` reads.
    groups: usize,
    /// The axes of the image, where it is copied with its padding.
    padded: Option<[WindowAxis; 2]>,
}

/// Some filters as they are multiplied.
pub struct SideBySideFilters<'a> {
    panels: Vec<Panel<'a>>,
    /// How many filters the convolution has.
    filters: usize,
}

/// Sixteen filters.
struct Panel<'a> {
    /// Which they are.
    index: usize,
    /// `[inputs / 4]`, as signed codes.
    lines: Cow<'a, [IntegerLine]>,
}

/// An image as it is multiplied: unsigned codes, channels side by side.
pub struct SideBySideImage<'i> {
    given: &'i [u8],
    /// The codes in the order and with the bits that are multiplied, and how many bytes, where those are not given.
    copied: Option<(Scratch, usize)>,
}

impl SideBySideImage<'_> {
    fn codes(&self) -> &[u8] {
        let copied = self.copied.as_ref().map(|(words, count)| &bytemuck::cast_slice(words)[..*count]);
        copied.unwrap_or(self.given)
    }
}

/// Where windows lie; `None` where there is no kernel.
fn geometry((order, words): (ChannelOrder, Words), axes: &[WindowAxis], channels: usize) -> Option<Geometry> {
    // Without inputs there is nothing to multiply.
    if channels == 0 || axes.iter().any(|axis| axis.input == 0 || axis.kernel == 0) {
        return None;
    }
    match order {
        ChannelOrder::Planes => planes::geometry(axes, channels),
        ChannelOrder::SideBySide if !channels.is_multiple_of(WORD_CHANNELS) => None,
        ChannelOrder::SideBySide => {
            let padded = if words == Words::Halves { halves::geometry(axes, channels) } else { None };
            let groups = channels / WORD_CHANNELS;
            Some(padded.unwrap_or_else(|| Geometry { axes: axes.to_vec(), unit: channels, groups, padded: None }))
        }
    }
}

/// Codes with their highest bit flipped.
fn flipped(given: &[u8]) -> Scratch {
    let mut words = scratch(given.len().div_ceil(size_of::<f32>()));
    let flipped: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut words)[..given.len()];
    let parts = threads::parts(given.len() / WORD_CHANNELS, usize::MAX);
    let each = given.len().div_ceil(parts).max(1);
    threads::chunks(flipped, each, |part, flipped| {
        let given = &given[part * each..][..flipped.len()];
        flipped.iter_mut().zip(given).for_each(|(to, code)| *to = code ^ FLIP);
    });
    words
}

impl<'a> SideBySide<'a> {
    /// `None` where there is no kernel for the axes and channels.
    #[must_use]
    pub fn new(instructions: Instructions, own: ByteConvolution<'a>) -> Option<Self> {
        Self::within(instructions, own, MOST_HALVES)
    }

    /// The same, with images of more bytes of halves than so many multiplied as bytes.
    fn within(instructions: Instructions, own: ByteConvolution<'a>, most_halves: usize) -> Option<Self> {
        let kernel = |words, most: usize| {
            let geometry = geometry((own.order, words), own.axes, own.channels)?;
            let codes = window::inputs(&geometry.axes).saturating_mul(geometry.unit);
            let fits = codes.saturating_mul(words.of_group()) <= most
                && window::taps(own.axes).saturating_mul(geometry.unit) <= MOST_DEPTH;
            fits.then_some(Self { instructions, words, own, geometry })
        };
        let halves = if instructions.sum_halves() { kernel(Words::Halves, most_halves) } else { None };
        halves.or_else(|| kernel(Words::Bytes, OUTSIDE as usize - 1))
    }

    /// Bytes of an image as it is multiplied.
    #[must_use]
    pub fn image_bytes(&self) -> usize {
        window::inputs(&self.geometry.axes) * self.geometry.unit * self.words.of_group()
    }

    /// The zero point of inputs as they are multiplied.
    fn zero(&self) -> i32 {
        if self.own.pad.kind.signed {
            i32::from(self.own.pad.code.cast_signed()) + FLIPPED
        } else {
            i32::from(self.own.pad.code)
        }
    }

    fn depth(&self) -> usize {
        self.own.channels * window::taps(self.own.axes)
    }

    /// Filters as they are multiplied.
    ///
    /// # Panics
    /// If a piece is not of whole panels.
    #[must_use]
    pub fn filters<'w>(&self, pieces: &[IntegerPiece<'w>]) -> SideBySideFilters<'w> {
        let depth = self.depth();
        assert!(pieces.iter().all(|piece| piece.inputs == (0..depth)), "pieces are of whole panels");
        let lines = depth.div_ceil(WORD_CHANNELS);
        let ByteConvolution { order, axes, channels, weight, .. } = self.own;
        let flip = if weight.kind.signed { 0 } else { FLIP };
        let mut panels = Vec::new();
        for piece in pieces {
            for (index, lines) in piece.panels.clone().zip(piece.lines.chunks(lines)) {
                panels.push(Panel { index, lines: Cow::Borrowed(lines) });
            }
        }
        // Others are multiplied where they lie.
        if order == ChannelOrder::Planes || flip != 0 {
            let parts = threads::parts(panels.len() * lines * LANES, panels.len());
            let each = panels.len().div_ceil(parts).max(1);
            threads::chunks(&mut panels, each, |_, panels: &mut [Panel<'_>]| {
                for panel in panels {
                    if order == ChannelOrder::Planes {
                        panel.lines = planes::relaid(&panel.lines, (channels, window::taps(axes)), flip).into();
                    } else {
                        panel.lines.to_mut().iter_mut().flatten().for_each(|code| *code ^= flip);
                    }
                }
            });
        }
        SideBySideFilters { panels, filters: weight.zeros.len() }
    }

    /// An image as it is multiplied.
    ///
    /// # Panics
    /// If it has another number of codes.
    #[must_use]
    pub fn image<'i>(&self, given: &'i [u8]) -> SideBySideImage<'i> {
        let ByteConvolution { order, axes, channels, pad, .. } = self.own;
        assert_eq!(given.len(), window::inputs(axes) * channels, "an image of {channels} channels");
        let flip = if pad.kind.signed { FLIP } else { 0 };
        let words = match (order, self.words) {
            (ChannelOrder::Planes, Words::Bytes) => self.padded(given),
            (ChannelOrder::Planes, Words::Halves) => {
                let padded = self.padded(given);
                self.halves(&bytemuck::cast_slice(&padded)[..self.image_bytes() / self.words.of_group()], 0)
            }
            (ChannelOrder::SideBySide, Words::Bytes) if flip == 0 => return SideBySideImage { given, copied: None },
            (ChannelOrder::SideBySide, Words::Bytes) => flipped(given),
            (ChannelOrder::SideBySide, Words::Halves) => match self.geometry.padded {
                Some(axes) => self.padded_halves(given, axes, flip),
                None => self.halves(given, flip),
            },
        };
        SideBySideImage { given, copied: Some((words, self.image_bytes())) }
    }

    /// Writes the codes of some positions, by some of the panels that are there. `by` has a scale and an offset for all filters or for
    /// each.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn codes(
        &self,
        (image, positions): (&SideBySideImage<'_>, Range<usize>),
        (filters, panels): (&SideBySideFilters<'_>, Range<usize>),
        by: Requantize<'_>,
        out: &mut OutputRows<'_, '_>,
    ) {
        let windows = Windows::new(self, image.codes(), positions);
        let panels = &filters.panels[panels];
        let first = panels.first().map_or(0, |panel| panel.index * PANEL_OUTPUTS);
        let width = filters.filters;
        if by.are_all_near() {
            let complete = Codes::<true> { by, out, width, first };
            self.instructions.run(Products { convolution: self, windows, panels, filters: width, complete });
        } else {
            let complete = Codes::<false> { by, out, width, first };
            self.instructions.run(Products { convolution: self, windows, panels, filters: width, complete });
        }
    }

    /// Calls `visit` with a position, counted from the first, a filter, and sums of that filter and those that follow it, until all of
    /// some panels have come.
    ///
    /// # Panics
    /// If lengths disagree.
    pub fn sums(
        &self,
        (image, positions): (&SideBySideImage<'_>, Range<usize>),
        (filters, panels): (&SideBySideFilters<'_>, Range<usize>),
        visit: impl FnMut(usize, usize, &[i32]),
    ) {
        let windows = Windows::new(self, image.codes(), positions);
        let (panels, filters) = (&filters.panels[panels], filters.filters);
        self.instructions.run(Products { convolution: self, windows, panels, filters, complete: Handed(visit) });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        product::{ByteType, Parameter, SumScale, pack_integers, requantize},
        team::Team,
        testing::numbers,
    };

    fn codes(seed: u32, count: usize) -> Vec<u8> {
        numbers(seed, count).into_iter().map(|value| (value * 128.0) as i32 as u8).collect()
    }

    fn value(kind: ByteType, code: u8) -> i32 {
        if kind.signed { i32::from(code.cast_signed()) } else { i32::from(code) }
    }

    /// By the definition: `[positions, filters]`, of filters `[filters, taps, channels]`.
    fn naive(own: &ByteConvolution<'_>, x: &[u8], w: &[u8]) -> Vec<i32> {
        let [rows, columns] = own.axes[..] else { panic!("two axes") };
        let (zero, filters) = (value(own.pad.kind, own.pad.code), own.weight.zeros.len());
        let taps = window::taps(own.axes);
        let mut sums = Vec::new();
        for position in 0..rows.output * columns.output {
            for filter in 0..filters {
                let mut sum = own.bias.map_or(0, |bias| bias[filter]);
                for tap in 0..rows.kernel * columns.kernel {
                    let row = rows.position(position / columns.output, tap / columns.kernel);
                    let column = columns.position(position % columns.output, tap % columns.kernel);
                    let (Some(row), Some(column)) = (row, column) else { continue };
                    for channel in 0..own.channels {
                        let (place, plane) = (row * columns.input + column, rows.input * columns.input);
                        let (from, input) = match own.order {
                            ChannelOrder::SideBySide => (place * own.channels + channel, tap * own.channels + channel),
                            ChannelOrder::Planes => (channel * plane + place, channel * taps + tap),
                        };
                        let x = value(own.pad.kind, x[from]) - zero;
                        let w = w[filter * taps * own.channels + input];
                        let w = value(own.weight.kind, w) - own.weight.zeros[filter];
                        sum = sum.wrapping_add(x * w);
                    }
                }
                sums.push(sum);
            }
        }
        sums
    }

    fn axis() -> impl Strategy<Value = WindowAxis> {
        (1_usize..12, 1_usize..4, 1_usize..4, 1_usize..3, 0_usize..3, 0_usize..3).prop_filter_map(
            "a window fits",
            |(input, kernel, stride, dilation, pad_begin, pad_end)| {
                let span = (kernel - 1) * dilation + 1;
                let output = (input + pad_begin + pad_end).checked_sub(span)? / stride + 1;
                Some(WindowAxis { input, output, kernel, stride, dilation, pad_begin, pad_end })
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(80))]

        /// Codes of all types and zero points, at the ends of their ranges too; parts of positions and of panels; both orders.
        #[test]
        fn sums_and_codes_are_exact(
            (channels, planes) in prop_oneof![(1_usize..20).prop_map(|words| (4 * words, false)), (1_usize..10, Just(true))],
            filters in prop_oneof![3 => 1_usize..40, 1 => 60_usize..150],
            axes in prop::array::uniform2(axis()),
            (x_signed, w_signed, zeros) in any::<(bool, bool, bool)>(),
            (pad, cut) in any::<(u8, usize)>(),
        ) {
            let zero = |filter: i32| if zeros { filter * 7 % 300 - 150 } else { 0 };
            let zeros: Vec<i32> = (0..filters as i32).map(zero).collect();
            let bias: Vec<i32> = (0..filters as i32).map(|filter| filter * 1_000_003).collect();
            let own = ByteConvolution {
                order: if planes { ChannelOrder::Planes } else { ChannelOrder::SideBySide },
                axes: &axes,
                channels,
                pad: Zero { code: pad, kind: ByteType { signed: x_signed } },
                weight: IntegerWeight { kind: ByteType { signed: w_signed }, zeros: &zeros },
                bias: Some(&bias),
            };
            check(own, cut);
        }
    }

    /// Sums and codes against the definition. The positions, the pieces and the panels that are multiplied at a time are `cut`.
    fn check(own: ByteConvolution<'_>, cut: usize) {
        let (positions, taps, filters) = (window::outputs(own.axes), window::taps(own.axes), own.weight.zeros.len());
        let depth = own.channels * taps;
        let (mut x, mut w) = (codes(1, window::inputs(own.axes) * own.channels), codes(2, depth * filters));
        x.iter_mut().step_by(7).for_each(|code| *code = 0x80);
        w.iter_mut().step_by(5).for_each(|code| *code = 0xff);
        let expected = naive(&own, &x, &w);
        let (lines, panels) = (pack_integers(&w, [depth, filters], [1, depth]), filters.div_ceil(PANEL_OUTPUTS));
        let (first, second) = lines.split_at(lines.len() / panels * (cut % panels));
        let piece = |panels, lines| IntegerPiece { panels, inputs: 0..depth, lines };
        let pieces = [piece(0..cut % panels, first), piece(cut % panels..panels, second)];
        let scales: Vec<f32> = (0..filters).map(|filter| 0.01 * (filter % 40) as f32).collect();
        let by = |scale| {
            let by = SumScale { scale, offset: None };
            Requantize { by, zero: 3, kind: ByteType { signed: false } }
        };
        // An axis of one position more, with which images are never copied with their padding.
        let axes = [WindowAxis::POINT, own.axes[0], own.axes[1]];
        let deep = (own.order == ChannelOrder::SideBySide).then_some(ByteConvolution { axes: &axes, ..own });
        // Images that are larger than what is copied to words of halves are multiplied as bytes.
        let all = [Some((own, MOST_HALVES)), Some((own, 0)), deep.map(|own| (own, MOST_HALVES))].into_iter().flatten();
        let all = all.flat_map(|own| Instructions::available().into_iter().map(move |each| (each, own)));
        for (instructions, (own, most_halves)) in all {
            let columns = own.axes[own.axes.len() - 1];
            let takes = own.order == ChannelOrder::SideBySide || columns.kernel == 1 || columns.dilation == 1;
            let kernel = SideBySide::within(instructions, own, most_halves);
            assert_eq!(kernel.is_some(), takes, "{own:?}");
            let Some(kernel) = kernel else { continue };
            let (made, image) = (kernel.filters(&pieces), kernel.image(&x));
            let mut sums = vec![0; expected.len()];
            let (mut whole, mut each) = (vec![0; expected.len()], vec![0; expected.len()]);
            let middle = cut % (positions + 1);
            for part in [0..middle, middle..positions].into_iter().filter(|part| !part.is_empty()) {
                for panels in [0..cut % panels, cut % panels..panels].into_iter().filter(|panels| !panels.is_empty()) {
                    let (x, w) = ((&image, part.clone()), (&made, panels.clone()));
                    kernel.sums(x.clone(), w.clone(), |position, filter, own| {
                        sums[(part.start + position) * filters + filter..][..own.len()].copy_from_slice(own);
                    });
                    let mut rows = OutputRows::Whole(&mut whole[part.start * filters..part.end * filters]);
                    kernel.codes(x.clone(), w.clone(), by(Parameter::Each(&scales)), &mut rows);
                    let own_filters = panels.start * PANEL_OUTPUTS..filters.min(panels.end * PANEL_OUTPUTS);
                    let rows = each[part.start * filters..part.end * filters].chunks_mut(filters);
                    let mut rows: Vec<_> = rows.map(|row| &mut row[own_filters.clone()]).collect();
                    let mut rows = OutputRows::Each(&mut rows);
                    kernel.codes(x, w, by(Parameter::All(0.02)), &mut rows);
                }
            }
            assert_eq!(sums, expected, "{}", instructions.name());
            let mut expected_codes = vec![0; expected.len()];
            for (sums, codes) in expected.chunks(filters).zip(expected_codes.chunks_mut(filters)) {
                requantize(instructions, sums, by(Parameter::Each(&scales)), codes);
            }
            assert_eq!(whole, expected_codes, "{}", instructions.name());
            requantize(instructions, &expected, by(Parameter::All(0.02)), &mut expected_codes);
            assert_eq!(each, expected_codes, "{}", instructions.name());
        }
    }

    /// Images that threads copy together; windows that see little of their image, and padding alone.
    #[test]
    fn copies_of_images() {
        let axis = WindowAxis { input: 160, output: 160, kernel: 3, stride: 1, dilation: 1, pad_begin: 1, pad_end: 1 };
        let narrow = WindowAxis { input: 30, output: 4, stride: 2, pad_end: 0, ..axis };
        let outside = WindowAxis { input: 3, output: 1, kernel: 2, pad_begin: 5, pad_end: 0, ..axis };
        let run = |axes: [WindowAxis; 2], channels, signed, cut| {
            let kind = ByteType { signed };
            let (pad, weight) = (Zero { code: 9, kind }, IntegerWeight { kind, zeros: &[7; 20] });
            check(
                ByteConvolution { order: ChannelOrder::SideBySide, axes: &axes, channels, pad, weight, bias: None },
                cut,
            );
        };
        Team::new(2).unwrap().run(|| {
            let rows = WindowAxis { input: 9, output: 9, ..axis };
            run([rows, axis], 48, true, 0);
            run([rows, WindowAxis { kernel: 1, pad_begin: 0, pad_end: 0, ..axis }], 48, false, 0);
        });
        for axes in [[narrow, narrow], [axis, narrow], [narrow, outside], [outside, outside]] {
            run(axes, 8, false, 1);
            run(axes, 4, true, 5);
        }
    }

    #[test]
    fn what_has_a_kernel() {
        let axis = WindowAxis { input: 5, output: 3, kernel: 3, stride: 1, dilation: 1, pad_begin: 0, pad_end: 0 };
        let kind = ByteType { signed: false };
        let takes = |order, axes: &[WindowAxis], channels| {
            let (pad, weight) = (Zero { code: 0, kind }, IntegerWeight { kind, zeros: &[] });
            let own = ByteConvolution { order, axes, channels, pad, weight, bias: None };
            SideBySide::new(Instructions::best(), own).is_some()
        };
        let (beside, planes) = (ChannelOrder::SideBySide, ChannelOrder::Planes);
        assert!(takes(beside, &[axis; 3], 4) && takes(beside, &[axis], MOST_DEPTH / 3 / 4 * 4));
        assert!(!takes(beside, &[axis; 2], 6) && !takes(beside, &[axis; 2], 0) && !takes(beside, &[axis], MOST_DEPTH));
        assert!(!takes(beside, &[WindowAxis { input: 1 << 30, output: (1 << 30) - 2, ..axis }], 4));
        assert!(takes(planes, &[axis; 2], 3) && takes(planes, &[axis], 5));
        assert!(!takes(planes, &[axis; 3], 3) && !takes(planes, &[axis; 2], 0));
        // Words of halves take what windows see of it alone.
        let seen = takes(beside, &[axis, WindowAxis { input: 1 << 30, ..axis }], 4);
        assert_eq!(seen, Instructions::best().sum_halves());
        // Nothing to multiply.
        let empty = [WindowAxis { input: 0, pad_begin: 3, ..axis }, WindowAxis { kernel: 0, ..axis }];
        assert!(empty.iter().all(|&empty| !takes(beside, &[empty, axis], 4) && !takes(planes, &[empty, axis], 3)));
        // A tap beside another, and images that are mostly padding.
        let (far, wide) = (WindowAxis { dilation: 2, input: 7, ..axis }, WindowAxis { output: 1 << 20, ..axis });
        assert!(!takes(planes, &[axis, far], 3) && takes(planes, &[far, axis], 3) && !takes(planes, &[axis, wide], 3));
    }
}
