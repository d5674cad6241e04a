//! Windows by panels of filters: tiles whose sums stay in registers, and what bias and zero points add to them.

use super::{
    ByteConvolution, Geometry, Panel, SideBySide,
    completion::Complete,
    halves::{OF_GROUP, WidenLines},
};
use crate::{
    convolution::words::{FLIPPED, WORD_CHANNELS, Words},
    places::places,
    product::{IntegerLine, PANEL_OUTPUTS},
    scratch::scratch,
    simd::{LANES, OUTSIDE, Routine, Simd},
    window,
};
use std::ops::Range;

/// What the sums of some panels become.
struct Corrections<const PANELS: usize> {
    /// What the bias and the zero points add to each.
    constants: [[i32; LANES]; PANELS],
    /// The zero point of each filter, as codes are multiplied.
    zeros: [[i32; LANES]; PANELS],
    /// Whether any of these is another than 0.
    has_zeros: bool,
}

impl SideBySide<'_> {
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
}

/// What some windows read.
pub(super) struct Windows<'a> {
    image: &'a [u8],
    /// What is read in the padding.
    padding: Vec<u8>,
    /// `[taps, windows]`.
    places: Vec<u32>,
    count: usize,
    /// Words of a tap: four bytes each.
    words: usize,
    /// The sum of the codes of each window, once filters with zero points have come.
    sums: Vec<i32>,
}

impl<'a> Windows<'a> {
    pub fn new(convolution: &SideBySide<'_>, image: &'a [u8], positions: Range<usize>) -> Self {
        let Geometry { axes, unit, groups, padded: _ } = &convolution.geometry;
        let of_group = convolution.words.of_group();
        assert_eq!(image.len(), convolution.image_bytes(), "codes of an image");
        assert!(positions.end <= window::outputs(axes), "windows {positions:?}");
        Self {
            image,
            padding: convolution.words.repeated(convolution.zero() as u8).repeat(*groups),
            count: positions.len(),
            places: places(axes, positions, unit * of_group),
            words: groups * of_group,
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
pub(super) struct Products<'a, C> {
    pub convolution: &'a SideBySide<'a>,
    pub windows: Windows<'a>,
    pub panels: &'a [Panel<'a>],
    /// Filters of all panels that there are.
    pub filters: usize,
    pub complete: C,
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
        let panels = &panels[..PANELS];
        // Widened here and not once for all tasks: so they come from a cache.
        let takes_halves = const { S::SUMS_HALVES } && self.convolution.words == Words::Halves;
        let mut halves = scratch(if takes_halves { PANELS * panels[0].lines.len() * OF_GROUP * LANES } else { 0 });
        let mut halves = bytemuck::cast_slice_mut::<f32, IntegerLine>(&mut halves);
        for (lines, panel) in lines.iter_mut().zip(panels) {
            *lines = &panel.lines;
            if takes_halves {
                let (own, rest) = halves.split_at_mut(OF_GROUP * panel.lines.len());
                simd.run(WidenLines { lines: &panel.lines, halves: own });
                (*lines, halves) = (own, rest);
            }
        }
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
        let windows = &self.windows;
        if const { S::SUMS_HALVES } && self.convolution.words == Words::Halves {
            simd.run(Tile::<ROWS, PANELS, true> { windows, window, lines, sums: &mut sums });
        } else {
            simd.run(Tile::<ROWS, PANELS, false> { windows, window, lines, sums: &mut sums });
        }
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

/// The products of some windows with all inputs of some panels; `HALVES` where both are in words of halves.
struct Tile<'a, const ROWS: usize, const PANELS: usize, const HALVES: bool> {
    windows: &'a Windows<'a>,
    window: usize,
    lines: [&'a [IntegerLine]; PANELS],
    sums: &'a mut [[[i32; LANES]; PANELS]; ROWS],
}

impl<const ROWS: usize, const PANELS: usize, const HALVES: bool> Routine for Tile<'_, ROWS, PANELS, HALVES> {
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
                        sums[row][panel] = if const { HALVES } {
                            simd.dot_halves(sums[row][panel], codes, weights[panel])
                        } else {
                            simd.dot(sums[row][panel], codes, weights[panel])
                        };
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
