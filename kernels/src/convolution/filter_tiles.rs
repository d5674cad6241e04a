//! Left tiles of filters: 16 outputs by 16 words of channels at a tap, made of panels once for all positions that they multiply.

use super::{
    byte_tiles::{TILE_WORDS, TileWords},
    terms::Terms,
    words::{WORD_CHANNELS, Words, signed_halves},
};
use crate::{
    product::{IntegerLine, IntegerPiece, IntegerWeight, PANEL_OUTPUTS},
    scratch::{Scratch, scratch},
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};
use std::ops::Range;

/// The highest bit of four codes.
pub(super) const FLIP: i32 = 0x8080_8080_u32 as i32;

/// The byte at each place of four.
const BYTES: [i32; WORD_CHANNELS] = [0xff, 0xff00, 0x00ff_0000, 0xff00_0000_u32 as i32];

/// How filters are laid out.
#[derive(Clone, Copy)]
pub(super) struct Layout<'a> {
    pub terms: &'a Terms,
    pub words: Words,
    /// `[outputs][words]`, else the other way around.
    pub outputs_outer: bool,
    /// The highest bit of each code is flipped.
    pub flips: bool,
}

/// The filters of a group, or some of them, as tiles.
pub struct FilterTiles<'a> {
    /// The type of their codes, and the zero point of each filter of the group.
    pub(super) weight: IntegerWeight<'a>,
    /// What is added to the sums of each filter of the group.
    pub(super) bias: Option<&'a [i32]>,
    /// Panels of the group.
    panels: Vec<usize>,
    /// Tiles of a panel: `[taps][words / 16]`.
    steps: usize,
    words: Scratch,
    /// The sums of the codes of each filter, as they come in panels.
    sums: Vec<[i32; LANES]>,
}

impl<'a> FilterTiles<'a> {
    /// Of whole panels.
    pub(super) fn new(
        instructions: Instructions,
        layout: Layout<'_>,
        (weight, bias): (IntegerWeight<'a>, Option<&'a [i32]>),
        pieces: &[IntegerPiece<'_>],
    ) -> Self {
        let depth = layout.terms.depth();
        assert!(pieces.iter().all(|piece| piece.inputs == (0..depth)), "pieces are of whole panels");
        let lines = depth.div_ceil(WORD_CHANNELS);
        let sources: Vec<(usize, &[IntegerLine])> = pieces
            .iter()
            .flat_map(|piece| {
                let own = |panel: usize| &piece.lines[(panel - piece.panels.start) * lines..][..lines];
                piece.panels.clone().map(move |panel| (panel, own(panel)))
            })
            .collect();
        let steps = layout.terms.taps() * layout.terms.channels().div_ceil(layout.words.channels(LANES));
        let mut words = scratch(sources.len() * steps * TILE_WORDS);
        let mut sums = vec![[0; LANES]; sources.len()];
        let tiles = bytemuck::cast_slice_mut::<f32, i32>(&mut words).as_chunks_mut::<TILE_WORDS>().0;
        let signed = weight.kind.signed;
        let panels = sources.iter().zip(tiles.chunks_mut(steps.max(1))).zip(&mut sums);
        let mut panels = panels.map(|((&(_, lines), tiles), sums)| Panel { layout, lines, signed, tiles, sums });
        let parts = threads::parts(sources.len() * steps * TILE_WORDS, sources.len());
        let each = sources.len().div_ceil(parts);
        let parts: Vec<Vec<Panel<'_>>> = (0..parts).map(|_| panels.by_ref().take(each).collect()).collect();
        threads::each_mut(parts, |panels| panels.drain(..).for_each(|panel| instructions.run(panel)));
        let panels = sources.iter().map(|(panel, _)| *panel).collect();
        Self { weight, bias, panels, steps, words, sums }
    }

    /// The filters of a panel, counted over those of the group.
    pub(super) fn filters(&self, panel: usize) -> Range<usize> {
        let first = self.panels[panel] * PANEL_OUTPUTS;
        first..self.weight.zeros.len().min(first + PANEL_OUTPUTS)
    }

    /// The tiles of a panel, and the sums of its codes.
    pub(super) fn panel(&self, panel: usize) -> (&[TileWords], &[i32; LANES]) {
        let words: &[i32] = bytemuck::cast_slice(&self.words);
        (&words.as_chunks::<TILE_WORDS>().0[panel * self.steps..][..self.steps], &self.sums[panel])
    }
}

/// The tiles of a panel that is to be.
struct Panel<'a> {
    layout: Layout<'a>,
    lines: &'a [IntegerLine],
    signed: bool,
    tiles: &'a mut [TileWords],
    sums: &'a mut [i32; LANES],
}

impl Routine for Panel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        self.add_lines(simd);
        self.fill(simd);
    }
}

impl Panel<'_> {
    #[inline(always)]
    fn fill<S: Simd>(self, simd: S) {
        let Layout { terms, words, outputs_outer, flips } = self.layout;
        let flip = simd.splat_integer(if flips { FLIP } else { 0 });
        let channels = terms.channels();
        let (of_tile, of_group) = (words.channels(LANES), words.of_group());
        let (mut tap, mut first) = (0, 0);
        for tile in self.tiles {
            let mut columns = [simd.splat(0.0); LANES];
            for group in 0..(channels - first).min(of_tile).div_ceil(WORD_CHANNELS) {
                let channel = first + group * WORD_CHANNELS;
                let count = WORD_CHANNELS.min(channels - channel);
                let word = match terms.distance_of_channels() {
                    // Inputs that follow each other are a line.
                    Some(1) if count == WORD_CHANNELS => simd.load_bytes(&self.lines[channel / WORD_CHANNELS]),
                    Some(distance) if count == WORD_CHANNELS && distance % WORD_CHANNELS == 1 => {
                        rotated(simd, self.lines, channel * distance + tap, distance)
                    }
                    _ => {
                        let inputs = (channel..channel + count).map(|channel| terms.input(channel, tap));
                        gathered(simd, self.lines, inputs)
                    }
                };
                // Channels that are not there have zeros.
                let flip = if count == WORD_CHANNELS {
                    flip
                } else {
                    simd.and(flip, simd.splat_integer((1 << (8 * count)) - 1))
                };
                let word = simd.exclusive_or(word, flip);
                let columns = &mut columns[group * of_group..][..of_group];
                match words {
                    Words::Bytes => columns[0] = simd.of_bits(word),
                    Words::Halves => {
                        let [one, other] = signed_halves(simd, word);
                        (columns[0], columns[1]) = (simd.of_bits(one), simd.of_bits(other));
                    }
                }
            }
            if outputs_outer {
                columns = simd.transpose(columns);
            }
            for (row, values) in tile.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                simd.store_integers(simd.bits(columns[row]), values);
            }
            first += of_tile;
            if first >= channels {
                (tap, first) = (tap + 1, 0);
            }
        }
    }

    /// Adds the codes of each output.
    #[inline(always)]
    fn add_lines<S: Simd>(&mut self, simd: S) {
        let (lines, depth, signed) = (self.lines, self.layout.terms.depth(), self.signed);
        let ones = simd.splat_integer(0x0101_0101);
        let (mut sum, mut lanes) = (simd.splat_integer(0), [0; LANES]);
        let whole = depth / WORD_CHANNELS;
        for line in &lines[..whole] {
            let line = simd.load_bytes(line);
            sum = if signed { simd.dot(sum, ones, line) } else { simd.dot(sum, line, ones) };
        }
        simd.store_integers(sum, &mut lanes);
        // Codes behind the last input may be anything.
        for line in &lines[whole..] {
            for (lane, codes) in lanes.iter_mut().zip(line.as_chunks::<WORD_CHANNELS>().0) {
                let codes = codes[..depth % WORD_CHANNELS].iter();
                *lane += codes
                    .map(|&code| if signed { i32::from(code.cast_signed()) } else { i32::from(code) })
                    .sum::<i32>();
            }
        }
        *self.sums = lanes;
    }
}

/// Four inputs, each `distance` behind the one before, where that is one more than a multiple of 4: they lie in lines at places
/// that follow each other, so that one rotation brings all to theirs.
#[inline(always)]
fn rotated<S: Simd>(simd: S, lines: &[IntegerLine], first: usize, distance: usize) -> S::Integers {
    let mut word = simd.splat_integer(0);
    for index in 0..WORD_CHANNELS {
        let input = first + index * distance;
        let own = simd.splat_integer(BYTES[input % WORD_CHANNELS]);
        word = simd.exclusive_or(word, simd.and(simd.load_bytes(&lines[input / WORD_CHANNELS]), own));
    }
    let bits = 8 * (first % WORD_CHANNELS) as u32;
    if bits == 0 {
        return word;
    }
    simd.exclusive_or(simd.shift_right(word, bits), simd.shift_left(word, 32 - bits))
}

/// Some inputs, up to four, wherever they lie.
#[inline(always)]
fn gathered<S: Simd>(simd: S, lines: &[IntegerLine], inputs: impl Iterator<Item = usize>) -> S::Integers {
    let mut word = simd.splat_integer(0);
    for (index, input) in inputs.enumerate() {
        let codes = simd.load_bytes(&lines[input / WORD_CHANNELS]);
        let upper = simd.shift_left(codes, 24 - 8 * (input % WORD_CHANNELS) as u32);
        word = simd.exclusive_or(word, simd.shift_left(simd.shift_right(upper, 24), 8 * index as u32));
    }
    word
}
