//! Products of integer activations with codes: exact sums, scaled once.
//!
//! Integers of 16 bits are two digits of 8, on both sides, and each pair of digits has a sum of its own in 32 bits. Sums of
//! pairs add up in f64, which holds them all: `2^16 * 2^16 * k` is below 2^53 for k up to 2^21.

use std::ops::Range;

use super::{
    exact_chunk::{
        Buffers, CHUNK, Chunk, MakeChunk, Panels, SegmentSums, WordPanels, segment_sums, segments, words_bytes,
    },
    exact_few::FewRows,
    exact_rows::ExactRows,
    exact_tile::{BlockRows, ExactTile},
    layout::{CodeType, CodedLayout},
    pieces::{CodedPanels, CodedPart, CodedPiece, OpenPanels},
};
use crate::{
    product::{
        PANEL_OUTPUTS,
        integer::TILE_PANELS,
        integer_rows::BLOCK_ROWS,
        panels::BLOCK,
        shares::{Shares, outputs_of},
    },
    simd::{Instructions, Routine, Simd},
    threads,
};

/// The most inputs for which f64 holds all sums.
const MOST_INPUTS: usize = 1 << 21;

/// What lies in the pieces of a weight.
#[derive(Clone, Copy, Debug)]
pub enum ExactWeight<'a> {
    /// Codes of integers with planes.
    Codes(&'a CodedLayout),
    /// Integers of 16 bits, `[inputs / 2][16][2]`.
    Words(ExactWords<'a>),
}

/// Integers of 16 bits in panels.
#[derive(Clone, Copy, Debug)]
pub struct ExactWords<'a> {
    /// Whether they have a sign.
    pub signed: bool,
    /// What is subtracted from those of each output: `[n]`.
    pub zeros: &'a [i32],
    /// Inputs of the weight: k.
    pub inputs: usize,
}

impl ExactWeight<'_> {
    /// Whether codes and zero points are integers, and blocks end where pieces do.
    #[must_use]
    pub fn takes(layout: &CodedLayout) -> bool {
        layout.sums_exactly() && layout.code() != CodeType::E2m1 && layout.finest().is_none_or(|block| block <= BLOCK)
    }

    fn inputs(&self) -> usize {
        match self {
            Self::Codes(layout) => layout.inputs(),
            Self::Words(words) => words.inputs,
        }
    }
}

/// `out[m, n] = (x[m, k] - zero) · w[k, n]`, as far as `pieces` of `w` reach.
///
/// In each block of inputs that share all parameters of the weight `(x - zero) * (code - zero point)` is summed exactly.
/// `y = fma(f32(sum), scale, y)` follows block by block from y = 0, in f32; one scale for all inputs multiplies their whole sum in
/// f64. Integers of 16 bits have no scales: their results are sums. Every instruction set gives these bits, whatever the
/// pieces, the rows beside a row, and the threads.
///
/// Between the pieces of a panel `out` is kept. `pieces` are in order of panels, and none has a panel twice; pieces of the same panel
/// come in separate calls with the same `open`, in order of inputs.
///
/// # Panics
/// If shapes disagree, pieces are not in order, or codes or zero points are floats.
pub fn exact_product(
    instructions: Instructions,
    x: &ExactRows<'_>,
    weight: ExactWeight<'_>,
    pieces: &[CodedPiece<'_>],
    open: &mut OpenPanels,
    out: &mut [f64],
    outputs: usize,
) {
    let (rows, inputs) = (x.rows(), x.inputs());
    assert_eq!(inputs, weight.inputs(), "a product's inputs");
    assert_eq!(out.len(), rows * outputs, "results of {rows} rows of {outputs}");
    assert!(inputs <= MOST_INPUTS, "sums of {inputs} products are not exact");
    if let ExactWeight::Codes(layout) = weight {
        assert!(ExactWeight::takes(layout), "codes or zero points that are floats have no exact sums of integers");
        open.begin(instructions, layout, pieces, outputs, 0);
    }
    if rows > 0 && outputs > 0 {
        let panels: usize = pieces.iter().map(|piece| piece.panels.len()).sum();
        let depth = pieces.iter().map(|piece| piece.inputs.len()).max().unwrap_or(0);
        let cut = Cut::new(rows, depth, panels);
        let parts = match weight {
            ExactWeight::Codes(layout) => {
                let mut parts: Vec<Part<'_>> = Vec::new();
                for CodedPart { first_output, panels, weight, sums: _ } in open.parts(layout, pieces, cut.panels) {
                    parts.push((first_output, panels, Panels::Codes(weight)));
                }
                parts
            }
            ExactWeight::Words(words) => word_parts(words, pieces, outputs, cut.panels),
        };
        let few = match weight {
            ExactWeight::Codes(layout) => FewRows::new(instructions, x, layout, pieces),
            ExactWeight::Words(_) => None,
        };
        let mut sums: Vec<(Range<usize>, Vec<SegmentSums>)> = Vec::new();
        for inputs in parts.iter().map(|(_, _, panels)| panels.inputs()) {
            if few.is_none() && !sums.iter().any(|(known, _)| *known == inputs) {
                sums.push((inputs.clone(), segment_sums(x, &inputs, segment(&weight))));
            }
        }
        let places = parts.iter().map(|&(first_output, panels, _)| outputs_of(first_output, panels));
        let mut shares = Shares::new(cut.rows, places, out.chunks_mut(outputs));
        let task = |(index, out): (usize, _)| {
            let (_, panels, weight) = parts[index % parts.len()];
            let own = sums.iter().find(|(inputs, _)| *inputs == weight.inputs());
            let sums = own.map_or(&[][..], |(_, sums)| sums.as_slice());
            Task { x, few: few.as_ref(), first_row: index / parts.len() * cut.rows, weight, panels, sums, out }
        };
        let tasks = shares.iter_mut().enumerate().map(task).collect();
        threads::each_mut(tasks, |task| instructions.run(task));
    }
    if let ExactWeight::Codes(layout) = weight {
        open.end(layout, pieces);
    }
}

/// Inputs whose products have one scale, within a chunk.
fn segment(weight: &ExactWeight<'_>) -> usize {
    match weight {
        ExactWeight::Codes(layout) => layout.finest().unwrap_or(CHUNK),
        ExactWeight::Words(_) => CHUNK,
    }
}

/// How a product is cut into tasks.
struct Cut {
    panels: usize,
    rows: usize,
}

/// First output, number of panels, and where they lie.
type Part<'a> = (usize, usize, Panels<'a>);

impl Cut {
    fn new(rows: usize, depth: usize, panels: usize) -> Self {
        let parts = threads::parts(rows * depth * panels * PANEL_OUTPUTS, usize::MAX);
        let panels_each = panels.div_ceil(parts).next_multiple_of(TILE_PANELS);
        // Codes are widened again for each part of the rows: panels are shared out first.
        let row_parts = parts.div_ceil(panels.div_ceil(panels_each).max(1));
        Self { panels: panels_each.max(1), rows: rows.div_ceil(row_parts).next_multiple_of(BLOCK_ROWS) }
    }
}

fn word_parts<'a>(words: ExactWords<'a>, pieces: &[CodedPiece<'a>], outputs: usize, most: usize) -> Vec<Part<'a>> {
    assert_eq!(words.zeros.len(), outputs, "a zero point for each output");
    let mut parts = Vec::new();
    let mut next = 0;
    for piece in pieces {
        let (start, end) = (piece.inputs.start, piece.inputs.end);
        assert!(next <= piece.panels.start && piece.panels.end <= outputs.div_ceil(PANEL_OUTPUTS), "panels in order");
        assert!(end <= words.inputs && start.is_multiple_of(BLOCK), "inputs {start}..{end} of {}", words.inputs);
        let length = words_bytes(end - start);
        assert_eq!(piece.bytes.len(), piece.panels.len() * length, "bytes of a piece");
        next = piece.panels.end;
        for first in piece.panels.clone().step_by(most) {
            let last = piece.panels.end.min(first + most);
            let bytes = &piece.bytes[(first - piece.panels.start) * length..(last - piece.panels.start) * length];
            let zeros = &words.zeros[first * PANEL_OUTPUTS..outputs.min(last * PANEL_OUTPUTS)];
            let panels = WordPanels { signed: words.signed, zeros, start, end, bytes };
            parts.push((first * PANEL_OUTPUTS, last - first, Panels::Words(panels)));
        }
    }
    parts
}

/// Some rows by some panels.
struct Task<'a> {
    x: &'a ExactRows<'a>,
    /// All rows, where they are few.
    few: Option<&'a FewRows>,
    first_row: usize,
    weight: Panels<'a>,
    panels: usize,
    /// Of the segments of the inputs.
    sums: &'a [SegmentSums],
    /// The results of these panels, row by row.
    out: &'a mut [&'a mut [f64]],
}

impl Routine for &mut Task<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if let (Some(few), Panels::Codes(weight)) = (self.few, self.weight) {
            return if const { S::HAS_OWN_LOOPS } {
                few.multiply(simd, weight, self.panels, self.out);
            } else {
                unreachable!("few rows are for instructions with loops of their own");
            };
        }
        let mut buffers = Buffers::default();
        let mut panel = 0;
        while panel < self.panels {
            if const { S::TILE_VECTORS == 3 } && panel + TILE_PANELS <= self.panels {
                self.column_of_tiles::<S, TILE_PANELS>(simd, panel, &mut buffers);
                panel += TILE_PANELS;
            } else {
                self.column_of_tiles::<S, 1>(simd, panel, &mut buffers);
                panel += 1;
            }
        }
    }
}

impl Task<'_> {
    /// All rows by some panels.
    #[inline(always)]
    fn column_of_tiles<S: Simd, const PANELS: usize>(&mut self, simd: S, panel: usize, buffers: &mut Buffers) {
        let inputs = self.weight.inputs();
        for inputs in segments(&inputs, CHUNK) {
            let (digits, weight, sums) = (self.x.digits(), self.weight, self.sums);
            simd.run(MakeChunk::<PANELS> { digits, weight, sums, panel, inputs: inputs.clone(), buffers });
            let chunk = Chunk::<PANELS>::new(&self.weight, self.sums, inputs, buffers);
            let mut row = 0;
            while row < self.out.len() {
                let block = self.x.digits()[0].rows.block(self.first_row + row).rows;
                // A tile of 8 rows does not fit into the registers of every instruction set.
                let rows = if S::TILE_VECTORS == 3 { block } else { block.min(4) };
                for first in (0..block).step_by(rows) {
                    match rows {
                        BLOCK_ROWS if const { S::TILE_VECTORS == 3 } => {
                            self.tile::<S, BLOCK_ROWS, PANELS>(simd, (row, first), panel, &chunk)
                        }
                        4 => self.tile::<S, 4, PANELS>(simd, (row, first), panel, &chunk),
                        2 => self.tile::<S, 2, PANELS>(simd, (row, first), panel, &chunk),
                        _ => self.tile::<S, 1, PANELS>(simd, (row, first), panel, &chunk),
                    }
                }
                row += block;
            }
        }
        if let Panels::Codes(panels) = self.weight
            && panels.layout().finest().is_none()
            && inputs.end == self.x.inputs()
        {
            self.scale(simd, panels, panel..panel + PANELS);
        }
    }

    /// Multiplies whole sums by the scales over all inputs.
    #[inline(always)]
    fn scale<S: Simd>(&mut self, simd: S, weight: CodedPanels<'_>, panels: Range<usize>) {
        for panel in panels {
            let (_, whole) = weight.panel(simd, panel);
            for outputs in self.out.iter_mut() {
                let own = outputs[panel * PANEL_OUTPUTS..].iter_mut().zip(&whole.scale);
                own.for_each(|(output, scale)| *output *= f64::from(*scale));
            }
        }
    }

    /// A few rows of a block, from one of this task on, by some panels.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const PANELS: usize>(
        &mut self,
        simd: S,
        (block, skipped): (usize, usize),
        panel: usize,
        chunk: &Chunk<'_, PANELS>,
    ) {
        simd.run(ExactTile::<ROWS, PANELS> {
            x: self.x,
            rows: BlockRows { block: self.first_row + block, skipped },
            chunk,
            sums: self.sums,
            out: &mut self.out[block + skipped..][..ROWS],
            first_output: panel * PANEL_OUTPUTS,
        });
    }
}
