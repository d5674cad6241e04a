//! Convolutions of integers of 8 bits whose channels lie side by side, `[positions.., channels]`: exact sums that wrap around in 32
//! bits.
//!
//! A word of four channels of a position is multiplied by vectors of 16 outputs, and the sums of a tile of positions by panels stay in
//! registers for all taps. Inputs are multiplied as unsigned codes and weights as signed ones, where they lie; those of the other kind
//! are copied, with their highest bit flipped, which moves codes and zero points by 128. Images whose channels come one after another are
//! copied into words (`planes`). Since `(x - a) * (w - b)` sums to `x * w - a * w - b * x + a * b`, zero points cost the sum of each
//! output's weights and, where weights have any, of each window.

mod completion;
mod planes;

use std::{borrow::Cow, ops::Range};

pub use completion::OutputRows;

use super::{
    MOST_DEPTH,
    words::{FLIPPED, WORD_CHANNELS},
};
use completion::{Codes, Complete, Handed};

use crate::{
    places::places,
    product::{IntegerLine, IntegerPiece, IntegerWeight, PANEL_OUTPUTS, Requantize, Zero},
    scratch::{Scratch, scratch},
    simd::{Instructions, LANES, OUTSIDE, Routine, Simd},
    threads,
    window::{self, WindowAxis},
};

/// The highest bit of a code.
const FLIP: u8 = 0x80;

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
    own: ByteConvolution<'a>,
    geometry: Geometry,
}

/// Where the windows of an image lie as it is multiplied.
struct Geometry {
    axes: Vec<WindowAxis>,
    /// Codes of a position.
    unit: usize,
    /// Words that a tap of `axes` reads.
    words: usize,
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

/// What the sums of some panels become.
struct Corrections<const PANELS: usize> {
    /// What the bias and the zero points add to each.
    constants: [[i32; LANES]; PANELS],
    /// The zero point of each filter, as codes are multiplied.
    zeros: [[i32; LANES]; PANELS],
    /// Whether any of these is another than 0.
    has_zeros: bool,
}

/// An image as it is multiplied: unsigned codes, channels side by side.
pub struct SideBySideImage<'i> {
    given: &'i [u8],
    /// The codes in the order and with the bits that are multiplied, and how many, where those are not given.
    copied: Option<(Scratch, usize)>,
}

impl SideBySideImage<'_> {
    fn codes(&self) -> &[u8] {
        let copied = self.copied.as_ref().map(|(words, count)| &bytemuck::cast_slice(words)[..*count]);
        copied.unwrap_or(self.given)
    }
}

/// Where windows lie; `None` where there is no kernel.
fn geometry(order: ChannelOrder, axes: &[WindowAxis], channels: usize) -> Option<Geometry> {
    // Without inputs there is nothing to multiply.
    if channels == 0 || axes.iter().any(|axis| axis.input == 0 || axis.kernel == 0) {
        return None;
    }
    match order {
        ChannelOrder::Planes => planes::geometry(axes, channels),
        ChannelOrder::SideBySide if !channels.is_multiple_of(WORD_CHANNELS) => None,
        ChannelOrder::SideBySide => {
            Some(Geometry { axes: axes.to_vec(), unit: channels, words: channels / WORD_CHANNELS })
        }
    }
}

impl<'a> SideBySide<'a> {
    /// `None` where there is no kernel for the axes and channels.
    #[must_use]
    pub fn new(instructions: Instructions, own: ByteConvolution<'a>) -> Option<Self> {
        let geometry = geometry(own.order, own.axes, own.channels)?;
        let fits = window::inputs(&geometry.axes).saturating_mul(geometry.unit) < OUTSIDE as usize
            && window::taps(own.axes).saturating_mul(geometry.unit) <= MOST_DEPTH;
        fits.then_some(Self { instructions, own, geometry })
    }

    /// Bytes of an image as it is multiplied.
    #[must_use]
    pub fn image_bytes(&self) -> usize {
        window::inputs(&self.geometry.axes) * self.geometry.unit
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

    /// What zero points and the bias add to the sums of some panels.
    #[inline(always)]
    fn corrections<S: Simd, const PANELS: usize>(&self, simd: S, panels: &[Panel<'_>]) -> Corrections<PANELS> {
        let (zero, depth) = (self.zero(), self.depth() as i32);
        let ByteConvolution { weight, bias, .. } = self.own;
        let mut made = Corrections { constants: [[0; LANES]; PANELS], zeros: [[0; LANES]; PANELS], has_zeros: false };
        for (index, panel) in panels.iter().enumerate() {
            let mut sums = [0; LANES];
            if zero != 0 {
                simd.run(LineSums { lines: &panel.lines, sums: &mut sums });
            }
            for lane in 0..LANES {
                let filter = panel.index * PANEL_OUTPUTS + lane;
                let Some(&own) = weight.zeros.get(filter) else { continue };
                let own = if weight.kind.signed { own } else { own.wrapping_sub(FLIPPED) };
                let bias = bias.map_or(0, |bias| bias[filter]);
                let of_zeros = zero.wrapping_mul(depth.wrapping_mul(own).wrapping_sub(sums[lane]));
                (made.zeros[index][lane], made.constants[index][lane]) = (own, bias.wrapping_add(of_zeros));
                made.has_zeros |= own != 0;
            }
        }
        made
    }

    /// An image as it is multiplied.
    ///
    /// # Panics
    /// If it has another number of codes.
    #[must_use]
    pub fn image<'i>(&self, given: &'i [u8]) -> SideBySideImage<'i> {
        let ByteConvolution { order, axes, channels, pad, .. } = self.own;
        assert_eq!(given.len(), window::inputs(axes) * channels, "an image of {channels} channels");
        if order == ChannelOrder::Planes {
            return SideBySideImage { given, copied: Some((self.padded(given), self.image_bytes())) };
        }
        if !pad.kind.signed {
            return SideBySideImage { given, copied: None };
        }
        let mut words = scratch(given.len().div_ceil(size_of::<f32>()));
        let flipped: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut words)[..given.len()];
        let parts = threads::parts(given.len() / WORD_CHANNELS, usize::MAX);
        let each = given.len().div_ceil(parts).max(1);
        threads::chunks(flipped, each, |part, flipped| {
            let given = &given[part * each..][..flipped.len()];
            flipped.iter_mut().zip(given).for_each(|(to, code)| *to = code ^ FLIP);
        });
        SideBySideImage { given, copied: Some((words, given.len())) }
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

/// What some windows read.
struct Windows<'a> {
    image: &'a [u8],
    /// What is read in the padding.
    padding: Vec<u8>,
    /// `[taps, windows]`.
    places: Vec<u32>,
    count: usize,
    /// Words of a tap.
    words: usize,
    /// The sum of the codes of each window, once filters with zero points have come.
    sums: Vec<i32>,
}

impl<'a> Windows<'a> {
    fn new(convolution: &SideBySide<'_>, image: &'a [u8], positions: Range<usize>) -> Self {
        let Geometry { axes, unit, words } = &convolution.geometry;
        assert_eq!(image.len(), window::inputs(axes) * unit, "codes of an image");
        assert!(positions.end <= window::outputs(axes), "windows {positions:?}");
        Self {
            image,
            padding: vec![convolution.zero() as u8; words * WORD_CHANNELS],
            count: positions.len(),
            places: places(axes, positions, *unit),
            words: *words,
            sums: Vec::new(),
        }
    }

    /// The words that the tap at `places` of a window is.
    #[inline(always)]
    fn tap(&self, place: u32) -> &[[u8; WORD_CHANNELS]] {
        let codes = if place == OUTSIDE { &self.padding[..] } else { &self.image[place as usize..] };
        &codes.as_chunks().0[..self.words]
    }

    /// Adds the codes of each window, where that is not done.
    #[inline(always)]
    fn add_codes(&mut self) {
        if !self.sums.is_empty() {
            return;
        }
        self.sums = (0..self.count)
            .map(|window| {
                let taps = self.places.iter().skip(window).step_by(self.count);
                let of_tap =
                    |&place: &u32| -> i32 { self.tap(place).as_flattened().iter().map(|&code| i32::from(code)).sum() };
                taps.map(of_tap).sum()
            })
            .collect();
    }
}

/// Some windows by some filters.
struct Products<'a, C> {
    convolution: &'a SideBySide<'a>,
    windows: Windows<'a>,
    panels: &'a [Panel<'a>],
    /// Filters of all panels that there are.
    filters: usize,
    complete: C,
}

impl<C: Complete> Routine for Products<'_, C> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let mut panels = self.panels;
        while !panels.is_empty() {
            // Filters that follow each other are written together.
            let follow = |count: usize| panels.len() >= count && panels[count - 1].index + 1 == panels[0].index + count;
            let count = if const { S::TILE_VECTORS == 3 } && follow(4) {
                self.column::<S, 6, 4>(simd, panels)
            } else if const { S::TILE_VECTORS == 3 } && follow(2) {
                self.column::<S, 8, 2>(simd, panels)
            } else {
                self.column::<S, 8, 1>(simd, panels)
            };
            panels = &panels[count..];
        }
    }
}

impl<C: Complete> Products<'_, C> {
    /// All windows by the first panels; gives how many.
    #[inline(always)]
    fn column<S: Simd, const ROWS: usize, const PANELS: usize>(&mut self, simd: S, panels: &[Panel<'_>]) -> usize {
        let mut lines: [&[IntegerLine]; PANELS] = [&[]; PANELS];
        for (lines, panel) in lines.iter_mut().zip(panels) {
            *lines = &panel.lines;
        }
        let panels = &panels[..PANELS];
        let corrections = self.convolution.corrections(simd, panels);
        if corrections.has_zeros {
            self.windows.add_codes();
        }
        let filter = panels[0].index * PANEL_OUTPUTS;
        let own = (filter, &self.complete.column::<PANELS>(filter));
        let mut window = 0;
        while window < self.windows.count {
            window += match self.windows.count - window {
                left if left >= ROWS && const { S::TILE_VECTORS == 3 } => {
                    self.tile::<S, ROWS, PANELS>(simd, (window, own), lines, &corrections)
                }
                4.. => self.tile::<S, 4, PANELS>(simd, (window, own), lines, &corrections),
                2.. => self.tile::<S, 2, PANELS>(simd, (window, own), lines, &corrections),
                _ => self.tile::<S, 1, PANELS>(simd, (window, own), lines, &corrections),
            };
        }
        PANELS
    }

    /// Some windows by some panels; gives how many windows.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const PANELS: usize>(
        &mut self,
        simd: S,
        (window, (filter, column)): (usize, (usize, &C::Column<PANELS>)),
        lines: [&[IntegerLine]; PANELS],
        corrections: &Corrections<PANELS>,
    ) -> usize {
        let mut sums = [[[0; LANES]; PANELS]; ROWS];
        // A function of its own keeps the sums in registers.
        simd.run(Tile { windows: &self.windows, window, lines, sums: &mut sums });
        let Corrections { constants, zeros, has_zeros } = corrections;
        let count = (self.filters - filter).min(PANELS * PANEL_OUTPUTS);
        for row in 0..ROWS {
            let of_window = if *has_zeros { self.windows.sums[window + row] } else { 0 };
            let mut own = [simd.splat_integer(0); PANELS];
            for panel in 0..PANELS {
                let constant = simd.load_integers(&constants[panel]);
                own[panel] = simd.add_integers(simd.load_integers(&sums[row][panel]), constant);
                if *has_zeros {
                    let zeros = simd.load_integers(&zeros[panel]);
                    let of_zeros = simd.multiply_integers(zeros, simd.splat_integer(of_window));
                    own[panel] = simd.subtract_integers(own[panel], of_zeros);
                }
            }
            self.complete.complete(simd, window + row, (filter, count), column, own);
        }
        ROWS
    }
}

/// The products of some windows with all inputs of some panels.
struct Tile<'a, const ROWS: usize, const PANELS: usize> {
    windows: &'a Windows<'a>,
    window: usize,
    lines: [&'a [IntegerLine]; PANELS],
    sums: &'a mut [[[i32; LANES]; PANELS]; ROWS],
}

impl<const ROWS: usize, const PANELS: usize> Routine for Tile<'_, ROWS, PANELS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { windows, window, lines, sums: out } = self;
        let words = windows.words;
        let mut sums = [[simd.splat_integer(0); PANELS]; ROWS];
        for (tap, places) in windows.places.chunks_exact(windows.count).enumerate() {
            let mut rows: [&[[u8; WORD_CHANNELS]]; ROWS] = [&[]; ROWS];
            for row in 0..ROWS {
                rows[row] = &windows.tap(places[window + row])[..words];
            }
            let mut own: [&[IntegerLine]; PANELS] = [&[]; PANELS];
            for panel in 0..PANELS {
                own[panel] = &lines[panel][tap * words..][..words];
            }
            for word in 0..words {
                let mut weights = [simd.splat_integer(0); PANELS];
                for panel in 0..PANELS {
                    weights[panel] = simd.load_bytes(&own[panel][word]);
                }
                for row in 0..ROWS {
                    let codes = simd.splat_integer(i32::from_le_bytes(rows[row][word]));
                    for panel in 0..PANELS {
                        sums[row][panel] = simd.dot(sums[row][panel], codes, weights[panel]);
                    }
                }
            }
        }
        for row in 0..ROWS {
            for panel in 0..PANELS {
                simd.store_integers(sums[row][panel], &mut out[row][panel]);
            }
        }
    }
}

/// The sum of the codes of each filter of a panel.
struct LineSums<'a> {
    lines: &'a [IntegerLine],
    sums: &'a mut [i32; LANES],
}

impl Routine for LineSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let ones = simd.splat_integer(0x0101_0101);
        let mut sum = simd.splat_integer(0);
        for line in self.lines {
            sum = simd.dot(sum, ones, simd.load_bytes(line));
        }
        simd.store_integers(sum, self.sums);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        product::{ByteType, Parameter, SumScale, pack_integers, requantize},
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
        for instructions in Instructions::available() {
            let takes = own.order == ChannelOrder::SideBySide || own.axes[1].kernel == 1 || own.axes[1].dilation == 1;
            let kernel = SideBySide::new(instructions, own);
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
        assert!(!takes(beside, &[WindowAxis { input: 1 << 30, ..axis }], 4));
        assert!(takes(planes, &[axis; 2], 3) && takes(planes, &[axis], 5));
        assert!(!takes(planes, &[axis; 3], 3) && !takes(planes, &[axis; 2], 0));
        // Nothing to multiply.
        let empty = [WindowAxis { input: 0, pad_begin: 3, ..axis }, WindowAxis { kernel: 0, ..axis }];
        assert!(empty.iter().all(|&empty| !takes(beside, &[empty, axis], 4) && !takes(planes, &[empty, axis], 3)));
        // A tap beside another, and images that are mostly padding.
        let (far, wide) = (WindowAxis { dilation: 2, input: 7, ..axis }, WindowAxis { output: 1 << 20, ..axis });
        assert!(!takes(planes, &[axis, far], 3) && takes(planes, &[far, axis], 3) && !takes(planes, &[axis, wide], 3));
    }
}
