//! Sums of products of codes: exact integers.

use std::ops::Range;

use super::super::{DynamicRows, tile};
use super::{LINE, LONGEST_SUM, Places, Task, active::AT_ONCE};
use crate::{
    scratch::scratch,
    simd::{LANES, Routine, Simd},
};

/// Groups of inputs between those that are multiplied and those that memory is asked for.
const GROUPS_AHEAD: usize = 2;

/// Vectors of sums of the bytes of a line.
const VECTORS: usize = LINE / LANES;

/// What is flipped so that signed bytes become those from 0 to 255, 128 higher.
const SIGN_BITS: i32 = i32::from_ne_bytes([0x80; 4]);

/// The lower four bits of all bytes.
const LOWER_HALVES: i32 = i32::from_ne_bytes([0x0f; 4]);

/// A task of `ROWS` rows of codes.
pub(super) struct CodesTask<'a, const ROWS: usize> {
    pub task: Task<'a>,
    pub rows: &'a DynamicRows,
}

impl<const ROWS: usize> Routine for CodesTask<'_, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Some(codes) = self.task.product.layout.codes() else { return };
        match codes.code().bits() {
            8 => self.multiply::<S, 1>(simd),
            _ => self.multiply::<S, 2>(simd),
        }
    }
}

impl<const ROWS: usize> CodesTask<'_, ROWS> {
    /// All segments of the part, the sums of which become values where a segment ends.
    #[inline(always)]
    fn multiply<S: Simd, const PARTS: usize>(mut self, simd: S) {
        let inputs = self.task.part.inputs.clone();
        let layout = self.task.product.layout;
        let places = Places::new(layout, &inputs);
        let segment = self.task.product.segment(self.task.x);
        if inputs.start == 0 {
            self.task.out.iter_mut().for_each(|outputs| outputs.fill(0.0));
        }
        let vectors = self.task.part.lines.len() * ROWS * PARTS * VECTORS;
        let mut own = scratch(if self.task.sums.is_none() { vectors * LANES } else { 0 });
        let kept = self.task.sums.take();
        let sums = match kept {
            Some(kept) => kept,
            None => {
                let own: &mut [i32] = bytemuck::cast_slice_mut(&mut own);
                own.fill(0);
                own.as_chunks_mut().0
            }
        };
        let mut segments = self.task.active.segments();
        let mut first = inputs.start;
        while first < inputs.end {
            let begin = first / segment * segment;
            let end = inputs.end.min(begin + segment);
            let mut is_active = segment == LONGEST_SUM;
            if let Some(((found, groups), rest)) = segments.split_first()
                && *found == first
            {
                segments = rest;
                is_active = true;
                let adding = Adding::<PARTS, ROWS> { task: &self.task, places: &places, groups: groups.clone(), sums };
                simd.run(adding);
            }
            if is_active && (end == begin + segment || end == layout.inputs()) {
                self.finish::<S, PARTS>(simd, &places, begin..end, sums);
                sums.fill([0; LANES]);
            }
            first = end;
        }
        if inputs.end == layout.inputs() {
            let output = self.task.part.panels(layout).0;
            for (row, outputs) in self.task.out.iter_mut().enumerate() {
                let scale = self.rows.scale(self.task.first_row + row);
                outputs.iter_mut().for_each(|value| *value *= scale);
            }
            self.task.epilogue.apply_to_rows(simd, self.task.first_row, output, &mut self.task.out);
        }
    }

    /// Adds the scaled sums of a segment to the outputs.
    #[inline(always)]
    fn finish<S: Simd, const PARTS: usize>(
        &mut self,
        simd: S,
        places: &Places,
        segment: Range<usize>,
        sums: &[[i32; LANES]],
    ) {
        let Self { task, rows } = self;
        let layout = task.product.layout;
        let offset = simd.splat_integer(layout.codes().map_or(0, |codes| codes.code().offset()));
        let mut totals = [0; ROWS];
        for (row, total) in totals.iter_mut().enumerate() {
            *total = rows.sum(task.first_row + row, segment.start..segment.end.min(layout.inputs()));
        }
        let own_panels = PARTS * VECTORS;
        let before = task.part.lines.start * own_panels;
        let columns = task.out.first().map_or(0, |outputs| outputs.len());
        for panel in 0..columns.div_ceil(LANES) {
            let (line, part, vector) = (panel / own_panels, panel % own_panels / VECTORS, panel % VECTORS);
            let parameters = task.parameters(simd, places, before + panel, segment.start);
            let shift = simd.add_integers(simd.load_integers(&parameters.zero), offset);
            let scale = simd.load(&parameters.scale);
            for row in 0..ROWS {
                let own = &sums[(line * ROWS + row) * own_panels + part * VECTORS..][..VECTORS];
                // Output 16 q + 4 v + j of the bytes of a line is in lane 4 q + j of vector v.
                let mut lanes = [0; LANES];
                for (lanes, own) in lanes.as_chunks_mut::<4>().0.iter_mut().zip(own) {
                    *lanes = own.as_chunks().0[vector];
                }
                let shift = simd.multiply_integers(shift, simd.splat_integer(totals[row]));
                let sum = simd.convert(simd.subtract_integers(simd.load_integers(&lanes), shift));
                let outputs = tile::at_most_a_vector(&mut task.out[row][panel * LANES..]);
                let value = simd.fused_exactly(sum, scale, simd.load_partial(outputs));
                simd.store_partial(value, outputs);
            }
        }
    }
}

/// Adds the products of some groups of inputs: a routine of its own, so that its loop has the registers.
struct Adding<'a, const PARTS: usize, const ROWS: usize> {
    task: &'a Task<'a>,
    places: &'a Places,
    groups: Range<usize>,
    sums: &'a mut [[i32; LANES]],
}

impl<const PARTS: usize, const ROWS: usize> Routine for Adding<'_, PARTS, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { task, places, groups, sums } = self;
        let active = task.active;
        let all = active.groups();
        let is_signed = task.product.layout.codes().is_some_and(|codes| codes.code().offset() == 128);
        let flip = simd.splat_integer(if is_signed { SIGN_BITS } else { 0 });
        let half = simd.splat_integer(LOWER_HALVES);
        let sums = sums.as_chunks_mut::<VECTORS>().0;
        for group in groups {
            let lines = |index: usize| {
                let inputs = &all[index.min(all.len() - 1)];
                let mut rows = [&[][..]; AT_ONCE];
                for place in 0..AT_ONCE {
                    rows[place] = task.lines(places, inputs[place]);
                }
                rows
            };
            let (own, ahead) = (lines(group), lines(group + GROUPS_AHEAD));
            let count = own[0].len();
            let mut factors = [[simd.splat_integer(0); AT_ONCE / 4]; ROWS];
            for row in 0..ROWS {
                for word in 0..AT_ONCE / 4 {
                    let code = active.codes[row * all.len() + group][word];
                    factors[row][word] = simd.splat_integer(i32::from_le(bytemuck::cast(code)));
                }
            }
            for (line, sums) in sums.chunks_exact_mut(ROWS * PARTS).enumerate().take(count) {
                let mut bytes = [half; AT_ONCE];
                for place in 0..AT_ONCE {
                    simd.prefetch(ahead[place], line);
                    bytes[place] = simd.load_bytes(&own[place][line]);
                }
                for part in 0..PARTS {
                    let mut unsigned = bytes;
                    for place in 0..AT_ONCE {
                        unsigned[place] = if PARTS == 1 {
                            simd.exclusive_or(bytes[place], flip)
                        } else {
                            let moved = if part == 0 { bytes[place] } else { simd.shift_right(bytes[place], 4) };
                            simd.and(moved, half)
                        };
                    }
                    let [a, b, c, d, e, f, g, h] = unsigned;
                    let words = [simd.interleave_bytes([a, b, c, d]), simd.interleave_bytes([e, f, g, h])];
                    for row in 0..ROWS {
                        let sums = &mut sums[row * PARTS + part];
                        for vector in 0..VECTORS {
                            let mut sum = simd.load_integers(&sums[vector]);
                            for word in 0..AT_ONCE / 4 {
                                sum = match PARTS {
                                    1 => simd.dot(sum, words[word][vector], factors[row][word]),
                                    _ => simd.dot_narrow(sum, words[word][vector], factors[row][word]),
                                };
                            }
                            simd.store_integers(sum, &mut sums[vector]);
                        }
                    }
                }
            }
        }
    }
}
