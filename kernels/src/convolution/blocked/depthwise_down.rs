//! Windows of few taps of a channel of their own, side by side, down the rows: each value is read once for all rows of outputs that
//! see it, whose sums wait in registers. Sums are added up in the order of [`super::depthwise`].

use super::CHANNEL_BLOCK;
use crate::{
    product::clamped,
    simd::{LANES, Routine, Simd},
    window::{self, WindowAxis},
};
use std::ops::Range;

/// Windows of a vector.
pub(super) const PAIR: usize = LANES / CHANNEL_BLOCK;

/// Values of a block of inputs, about, that the first-level cache holds.
pub(super) const MOST_CACHED: usize = 1 << 13;

/// Rows of outputs that columns go down one after another where the first-level cache does not hold all inputs: what they see stays
/// there for the next columns. Of fewer rows, much of what they see would be read twice.
const ROWS_TOGETHER: usize = 8;

/// Some rows of outputs of a block of channels.
pub(super) struct DownRows<'a> {
    /// Of rows, and of columns.
    pub axes: [WindowAxis; 2],
    pub x: &'a [[f32; CHANNEL_BLOCK]],
    /// Of each tap.
    pub weights: &'a [[f32; CHANNEL_BLOCK]],
    /// Of the channels.
    pub bias: &'a [f32; CHANNEL_BLOCK],
    /// Of these rows.
    pub addend: Option<&'a [[f32; CHANNEL_BLOCK]]>,
    pub clamp: Option<(f32, f32)>,
    pub rows: Range<usize>,
}

/// Whether windows of such rows and columns are faster this way.
pub(super) fn goes_down<S: Simd>([rows, columns]: [WindowAxis; 2]) -> bool {
    let kind = |axis: WindowAxis| (axis.kernel, axis.stride, axis.dilation);
    kind(rows) == kind(columns)
        && match kind(columns) {
            // Larger blocks by 2 come from memory, which is fastest line by line.
            (3, 2, 1) => is_cached([rows, columns]),
            (3, 1, 1) => has_many_registers::<S>() || is_cached([rows, columns]),
            (5, 1 | 2, 1) => has_many_registers::<S>(),
            _ => false,
        }
}

/// Whether sums of four pairs of windows of several rows stay in registers.
const fn has_many_registers<S: Simd>() -> bool {
    S::TILE_VECTORS == 3
}

/// Whether the first-level cache holds a block of inputs.
fn is_cached(axes: [WindowAxis; 2]) -> bool {
    window::inputs(&axes) * CHANNEL_BLOCK <= MOST_CACHED
}

/// Pairs of windows side by side, at most, whose sums stay in registers where three rows of outputs see a line.
const fn most_pairs<S: Simd>() -> usize {
    if has_many_registers::<S>() { 4 } else { 2 }
}

impl DownRows<'_> {
    /// Fills the columns of all rows of outputs of which no tap is padding, without the last where pairs leave it; gives which. There
    /// may be one more than outputs.
    #[inline(always)]
    pub(super) fn run<S: Simd>(&self, simd: S, out: &mut [[f32; CHANNEL_BLOCK]]) -> Range<usize> {
        let [_, columns] = self.axes;
        let inside = columns.inside(columns.output.next_multiple_of(PAIR));
        let inside = inside.start..inside.end - inside.len() % PAIR;
        let task = (self, inside.clone(), out);
        match (columns.kernel, columns.stride) {
            (3, 1) => simd.run(Columns::<3, 3, 1, 3>::of(task)),
            (3, _) => simd.run(Columns::<3, 3, 2, 2>::of(task)),
            (_, 1) if const { has_many_registers::<S>() } => simd.run(Columns::<5, 0, 1, 5>::of(task)),
            (_, _) if const { has_many_registers::<S>() } => simd.run(Columns::<5, 0, 2, 3>::of(task)),
            _ => return 0..0,
        }
        inside
    }

    /// `WAITING` rows of outputs see a line, at most; of so many rows of taps the weights are kept in registers.
    #[inline(always)]
    fn columns<S: Simd, const KERNEL: usize, const KEPT: usize, const STRIDE: usize, const WAITING: usize>(
        &self,
        simd: S,
        columns: Range<usize>,
        out: &mut [[f32; CHANNEL_BLOCK]],
    ) {
        let together = if is_cached(self.axes) { self.rows.len() } else { ROWS_TOGETHER };
        let mut rows = 0..0;
        while rows.end < self.rows.len() {
            rows = rows.end..(rows.end + together).min(self.rows.len());
            let mut column = columns.start;
            while column < columns.end {
                let most = const { most_pairs::<S>() };
                column += match (columns.end - column) / PAIR {
                    4.. if most >= 4 => {
                        self.pairs::<S, KERNEL, KEPT, STRIDE, WAITING, 4>(simd, rows.clone(), column, out)
                    }
                    3 if most >= 3 => {
                        self.pairs::<S, KERNEL, KEPT, STRIDE, WAITING, 3>(simd, rows.clone(), column, out)
                    }
                    2.. => self.pairs::<S, KERNEL, KEPT, STRIDE, WAITING, 2>(simd, rows.clone(), column, out),
                    _ => self.pairs::<S, KERNEL, KEPT, STRIDE, WAITING, 1>(simd, rows.clone(), column, out),
                };
            }
        }
    }

    /// Some pairs of windows of each row, counted from the first, of which the last may be one window; gives how many windows.
    #[inline(always)]
    fn pairs<
        S: Simd,
        const KERNEL: usize,
        const KEPT: usize,
        const STRIDE: usize,
        const WAITING: usize,
        const COUNT: usize,
    >(
        &self,
        simd: S,
        outputs: Range<usize>,
        column: usize,
        out: &mut [[f32; CHANNEL_BLOCK]],
    ) -> usize {
        let [rows, columns] = self.axes;
        let bias = simd.load_halves(self.bias, self.bias);
        let mut kept = [[simd.splat(0.0); KERNEL]; KEPT];
        for row in 0..KEPT {
            for tap in 0..KERNEL {
                kept[row][tap] = self.weight(simd, row * KERNEL + tap);
            }
        }
        // Counted with the padding in front. What no row of outputs sees may not be there.
        let seen = (self.rows.start + outputs.end - 1) * STRIDE + KERNEL;
        let lines = rows.pad_begin..seen.min(rows.pad_begin + rows.input);
        // Of the newest row of outputs first.
        let mut waiting = [[simd.splat(0.0); COUNT]; WAITING];
        for newest in outputs.start..outputs.end + WAITING - 1 {
            for phase in 0..STRIDE {
                let line = (self.rows.start + newest) * STRIDE + phase;
                if lines.contains(&line) {
                    let line = line - rows.pad_begin;
                    let values = &self.x[line * columns.input + column * STRIDE - columns.pad_begin..];
                    let values = &values[..(COUNT * PAIR - 1) * STRIDE + KERNEL];
                    self.line::<S, KERNEL, KEPT, STRIDE, WAITING, COUNT>(simd, phase, values, &kept, &mut waiting);
                }
            }
            if let Some(row) = newest.checked_sub(outputs.start + WAITING - 1) {
                let row = (outputs.start + row) * columns.output;
                let addend = self.addend.map(|addend| &addend[row..][..columns.output][column..]);
                let out = &mut out[row..][..columns.output][column..];
                finish(simd, waiting[WAITING - 1], bias, addend, self.clamp, out);
            }
            for older in (1..WAITING).rev() {
                waiting[older] = waiting[older - 1];
            }
            waiting[0] = [simd.splat(0.0); COUNT];
        }
        COUNT * PAIR
    }

    /// Adds what a line of inputs contributes to each row of outputs that sees it; the newest of them sees it with its row `phase` of
    /// taps.
    #[inline(always)]
    fn line<
        S: Simd,
        const KERNEL: usize,
        const KEPT: usize,
        const STRIDE: usize,
        const WAITING: usize,
        const COUNT: usize,
    >(
        &self,
        simd: S,
        phase: usize,
        values: &[[f32; CHANNEL_BLOCK]],
        kept: &[[S::Vector; KERNEL]; KEPT],
        waiting: &mut [[S::Vector; COUNT]; WAITING],
    ) {
        for tap in 0..KERNEL {
            let mut pairs = [simd.splat(0.0); COUNT];
            for pair in 0..COUNT {
                let place = tap + pair * PAIR * STRIDE;
                pairs[pair] = simd.load_halves(&values[place], &values[place + STRIDE]);
            }
            for older in 0..WAITING {
                let row = phase + older * STRIDE;
                if row < KERNEL {
                    let weight = if row < KEPT { kept[row][tap] } else { self.weight(simd, row * KERNEL + tap) };
                    for pair in 0..COUNT {
                        waiting[older][pair] = simd.fused(weight, pairs[pair], waiting[older][pair]);
                    }
                }
            }
        }
    }

    /// The weights of a tap, twice.
    #[inline(always)]
    fn weight<S: Simd>(&self, simd: S, tap: usize) -> S::Vector {
        let weight = &self.weights[tap];
        simd.load_halves(weight, weight)
    }
}

/// Columns of all rows of outputs, as a function of its own: `DownRows::columns`.
struct Columns<'d, 'a, 'o, const KERNEL: usize, const KEPT: usize, const STRIDE: usize, const WAITING: usize> {
    rows: &'d DownRows<'a>,
    columns: Range<usize>,
    out: &'o mut [[f32; CHANNEL_BLOCK]],
}

impl<'d, 'a, 'o, const KERNEL: usize, const KEPT: usize, const STRIDE: usize, const WAITING: usize>
    Columns<'d, 'a, 'o, KERNEL, KEPT, STRIDE, WAITING>
{
    fn of((rows, columns, out): (&'d DownRows<'a>, Range<usize>, &'o mut [[f32; CHANNEL_BLOCK]])) -> Self {
        Self { rows, columns, out }
    }
}

impl<const KERNEL: usize, const KEPT: usize, const STRIDE: usize, const WAITING: usize> Routine
    for Columns<'_, '_, '_, KERNEL, KEPT, STRIDE, WAITING>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        self.rows.columns::<S, KERNEL, KEPT, STRIDE, WAITING>(simd, self.columns, self.out);
    }
}

/// Sums of pairs of windows, with bias, addend and limits, become their outputs, as far as these are there.
#[inline(always)]
pub(super) fn finish<S: Simd, const COUNT: usize>(
    simd: S,
    mut values: [S::Vector; COUNT],
    bias: S::Vector,
    addend: Option<&[[f32; CHANNEL_BLOCK]]>,
    clamp: Option<(f32, f32)>,
    out: &mut [[f32; CHANNEL_BLOCK]],
) {
    for pair in 0..COUNT {
        values[pair] = simd.add(values[pair], bias);
    }
    if let Some(addend) = addend {
        for pair in 0..COUNT {
            let high = addend.get(pair * PAIR + 1).unwrap_or(&[0.0; CHANNEL_BLOCK]);
            values[pair] = simd.add(values[pair], simd.load_halves(&addend[pair * PAIR], high));
        }
    }
    if let Some(clamp) = clamp {
        for pair in 0..COUNT {
            values[pair] = clamped(simd, Some(clamp), values[pair]);
        }
    }
    if let Some(out) = out.get_mut(..COUNT * PAIR) {
        for pair in 0..COUNT {
            let [low, high] = &mut out[pair * PAIR..][..PAIR] else { continue };
            simd.store_halves(values[pair], low, high);
        }
    } else {
        let mut out = out.iter_mut();
        for pair in 0..COUNT {
            let Some(low) = out.next() else { break };
            simd.store_halves(values[pair], low, out.next().unwrap_or(&mut [0.0; CHANNEL_BLOCK]));
        }
    }
}
