//! Sums of products of floats, in the order of all products: run of inputs by run of inputs.

use std::{marker::PhantomData, ops::Range};

use half::{bf16, f16};

use super::super::{Rounded, tile};
use super::{LINE, Places, RunElements, Task, active::AT_ONCE};
use crate::{
    scratch::scratch,
    simd::{LANES, Routine, Simd},
};

/// Groups of inputs between those that are multiplied and those that memory is asked for.
const GROUPS_AHEAD: usize = 2;

/// Elements of a line as vectors of f32.
trait Line {
    /// Vectors of a line.
    const VECTORS: usize;

    /// Whether elements are codes with scales. Lane l of vector v of each four is then output 4 l + v of these, and not in order.
    const ARE_CODES: bool;

    /// Vector `vector` of the elements; codes as they are stored.
    fn vector<S: Simd>(simd: S, line: &[u8; LINE], vector: usize) -> S::Vector;
}

struct F32;

impl Line for F32 {
    const VECTORS: usize = 1;
    const ARE_CODES: bool = false;

    #[inline(always)]
    fn vector<S: Simd>(simd: S, line: &[u8; LINE], _vector: usize) -> S::Vector {
        simd.load(&bytemuck::pod_read_unaligned(line))
    }
}

struct F16;

impl Line for F16 {
    const VECTORS: usize = 2;
    const ARE_CODES: bool = false;

    #[inline(always)]
    fn vector<S: Simd>(simd: S, line: &[u8; LINE], vector: usize) -> S::Vector {
        let halves: &[u8; LINE / 2] = &line.as_chunks().0[vector];
        simd.load_f16(&bytemuck::pod_read_unaligned::<[f16; LANES]>(halves))
    }
}

struct Bf16;

impl Line for Bf16 {
    const VECTORS: usize = 2;
    const ARE_CODES: bool = false;

    #[inline(always)]
    fn vector<S: Simd>(simd: S, line: &[u8; LINE], vector: usize) -> S::Vector {
        let halves: &[u8; LINE / 2] = &line.as_chunks().0[vector];
        simd.load_bf16(&bytemuck::pod_read_unaligned::<[bf16; LANES]>(halves))
    }
}

struct Signed;

impl Line for Signed {
    const VECTORS: usize = 4;
    const ARE_CODES: bool = true;

    #[inline(always)]
    fn vector<S: Simd>(simd: S, line: &[u8; LINE], vector: usize) -> S::Vector {
        simd.convert(simd.signed_byte(simd.load_bytes(line), vector as u32))
    }
}

struct Unsigned;

impl Line for Unsigned {
    const VECTORS: usize = 4;
    const ARE_CODES: bool = true;

    #[inline(always)]
    fn vector<S: Simd>(simd: S, line: &[u8; LINE], vector: usize) -> S::Vector {
        let moved = simd.shift_right(simd.load_bytes(line), 8 * vector as u32);
        simd.convert(simd.and(moved, simd.splat_integer(0xff)))
    }
}

struct Nibbles;

impl Line for Nibbles {
    const VECTORS: usize = 8;
    const ARE_CODES: bool = true;

    #[inline(always)]
    fn vector<S: Simd>(simd: S, line: &[u8; LINE], vector: usize) -> S::Vector {
        let shift = 8 * (vector % 4) + 4 * (vector / 4);
        let moved = simd.shift_right(simd.load_bytes(line), shift as u32);
        simd.convert(simd.and(moved, simd.splat_integer(0x0f)))
    }
}

/// A task of `ROWS` rows of floats.
pub(super) struct FloatsTask<'a, const ROWS: usize>(pub Task<'a>);

impl<const ROWS: usize> Routine for FloatsTask<'_, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let elements = match self.0.product.layout.elements() {
            RunElements::F32 => Elements::F32,
            RunElements::F16 => Elements::F16,
            RunElements::Bf16 => Elements::Bf16,
            RunElements::Codes(codes) => match (codes.code().bits(), codes.code().offset()) {
                (8, 128) => Elements::Signed,
                (8, _) => Elements::Unsigned,
                _ => Elements::Nibbles,
            },
        };
        self.multiply(simd, elements);
    }
}

/// Types of elements that have a [`Line`].
#[derive(Clone, Copy)]
enum Elements {
    F32,
    F16,
    Bf16,
    Signed,
    Unsigned,
    Nibbles,
}

impl Elements {
    /// [`Line::VECTORS`] and [`Line::ARE_CODES`]: the loops around products are compiled once for all types.
    fn line(self) -> (usize, bool) {
        fn of<L: Line>() -> (usize, bool) {
            (L::VECTORS, L::ARE_CODES)
        }
        match self {
            Elements::F32 => of::<F32>(),
            Elements::F16 => of::<F16>(),
            Elements::Bf16 => of::<Bf16>(),
            Elements::Signed => of::<Signed>(),
            Elements::Unsigned => of::<Unsigned>(),
            Elements::Nibbles => of::<Nibbles>(),
        }
    }
}

impl<const ROWS: usize> FloatsTask<'_, ROWS> {
    #[inline(always)]
    fn multiply<S: Simd>(mut self, simd: S, elements: Elements) {
        let (vectors, are_codes) = elements.line();
        let inputs = self.0.part.inputs.clone();
        let layout = self.0.product.layout;
        let places = Places::new(layout, &inputs);
        if inputs.start == 0 {
            self.0.out.iter_mut().for_each(|outputs| outputs.fill(0.0));
        }
        let lines = self.0.part.lines.len();
        let codes = layout.codes();
        let rounded = codes.map_or(Rounded::F32, |codes| codes.rounded());
        let block = codes.and_then(|codes| codes.finest()).unwrap_or(usize::MAX);
        let parameters_length = if codes.is_some() { lines * vectors * LANES } else { 0 };
        let mut buffer = scratch(lines * vectors * ROWS * LANES + 2 * parameters_length);
        let (sums, parameters) = buffer.split_at_mut(lines * vectors * ROWS * LANES);
        let (scales, zeros) = parameters.split_at_mut(parameters_length);
        let sums = sums.as_chunks_mut::<LANES>().0;
        let (scales, zeros) = (scales.as_chunks_mut::<LANES>().0, zeros.as_chunks_mut::<LANES>().0);
        let mut known = None;
        for (first, groups) in self.0.active.segments() {
            if codes.is_some() && known != Some(first / block) {
                known = Some(first / block);
                self.read_parameters(simd, (&places, vectors), *first, scales, zeros);
            }
            sums.fill([0.0; LANES]);
            let (task, places, groups) = (&self.0, &places, groups.clone());
            let adding = Groups::<ROWS> { task, places, groups, sums, scales, zeros, rounded };
            match elements {
                Elements::F32 => simd.run(Adding::<F32, ROWS>(adding, PhantomData)),
                Elements::F16 => simd.run(Adding::<F16, ROWS>(adding, PhantomData)),
                Elements::Bf16 => simd.run(Adding::<Bf16, ROWS>(adding, PhantomData)),
                Elements::Signed => simd.run(Adding::<Signed, ROWS>(adding, PhantomData)),
                Elements::Unsigned => simd.run(Adding::<Unsigned, ROWS>(adding, PhantomData)),
                Elements::Nibbles => simd.run(Adding::<Nibbles, ROWS>(adding, PhantomData)),
            }
            self.add_to_outputs(simd, sums, (vectors, are_codes));
        }
        if inputs.end == layout.inputs() && !self.0.epilogue.is_empty() {
            let output = self.0.part.panels(layout).0;
            self.0.epilogue.apply_to_rows(simd, self.0.first_row, output, &mut self.0.out);
        }
    }

    /// Scales and zero points of all lines of so many vectors at an input, in the order of lanes.
    #[inline(always)]
    fn read_parameters<S: Simd>(
        &self,
        simd: S,
        (places, vectors): (&Places, usize),
        input: usize,
        scales: &mut [[f32; LANES]],
        zeros: &mut [[f32; LANES]],
    ) {
        let task = &self.0;
        let offset = match task.product.layout.codes().map(|codes| codes.code().offset()) {
            // Signed bytes are read as they are.
            None | Some(128) => 0,
            Some(offset) => offset,
        };
        let before = task.part.lines.start * vectors;
        for panel in 0..scales.len() {
            let parameters = task.parameters(simd, places, before + panel, input);
            // Vectors of four lie side by side, but each has every fourth output.
            let (first, quarter) = (panel / 4 * 4, panel % 4);
            for lane in 0..LANES {
                let (vector, place) = (lane % 4, 4 * quarter + lane / 4);
                scales[first + vector][place] = parameters.scale[lane];
                zeros[first + vector][place] = (parameters.zero[lane] + offset) as f32;
            }
        }
    }

    /// Adds the sums of a run of inputs to the outputs. Lines have so many vectors, of codes or in order.
    #[inline(always)]
    fn add_to_outputs<S: Simd>(&mut self, simd: S, sums: &[[f32; LANES]], (vectors, are_codes): (usize, bool)) {
        let columns = self.0.out.first().map_or(0, |outputs| outputs.len());
        for panel in 0..columns.div_ceil(LANES) {
            let (line, vector) = (panel / vectors, panel % vectors);
            for row in 0..ROWS {
                let own = &sums[(line * ROWS + row) * vectors..][..vectors];
                let mut lanes = own[vector];
                if are_codes {
                    let (first, quarter) = (vector / 4 * 4, vector % 4);
                    for (lane, value) in lanes.iter_mut().enumerate() {
                        *value = own[first + lane % 4][4 * quarter + lane / 4];
                    }
                }
                let outputs = tile::at_most_a_vector(&mut self.0.out[row][panel * LANES..]);
                let value = simd.add(simd.load_partial(outputs), simd.load(&lanes));
                simd.store_partial(value, outputs);
            }
        }
    }
}

/// Some groups of inputs, and the sums that their products are added to in order.
struct Groups<'a, const ROWS: usize> {
    task: &'a Task<'a>,
    places: &'a Places,
    groups: Range<usize>,
    sums: &'a mut [[f32; LANES]],
    scales: &'a [[f32; LANES]],
    zeros: &'a [[f32; LANES]],
    rounded: Rounded,
}

/// Adds the products of groups: a routine of its own, so that its loop has the registers.
struct Adding<'a, L, const ROWS: usize>(Groups<'a, ROWS>, PhantomData<L>);

impl<L: Line, const ROWS: usize> Routine for Adding<'_, L, ROWS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if const { L::ARE_CODES } && self.0.rounded != Rounded::F32 {
            self.add::<S, true>(simd);
        } else {
            self.add::<S, false>(simd);
        }
    }
}

impl<L: Line, const ROWS: usize> Adding<'_, L, ROWS> {
    /// Values of codes are rounded to 16 bits where `ROUNDED`.
    #[inline(always)]
    fn add<S: Simd, const ROUNDED: bool>(self, simd: S) {
        let Groups { task, places, groups, sums, scales, zeros, rounded } = self.0;
        let active = task.active;
        let all = active.groups();
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
            let mut factors = [[simd.splat(0.0); AT_ONCE]; ROWS];
            for row in 0..ROWS {
                let values = &active.floats[row * all.len() + group];
                for place in 0..AT_ONCE {
                    factors[row][place] = simd.splat(values[place]);
                }
            }
            for (line, sums) in sums.chunks_exact_mut(ROWS * L::VECTORS).enumerate().take(own[0].len()) {
                for place in 0..AT_ONCE {
                    simd.prefetch(ahead[place], line);
                }
                for vector in 0..L::VECTORS {
                    let mut values = [simd.splat(0.0); ROWS];
                    for row in 0..ROWS {
                        values[row] = simd.load(&sums[row * L::VECTORS + vector]);
                    }
                    for place in 0..AT_ONCE {
                        let mut weight = L::vector(simd, &own[place][line], vector);
                        if const { L::ARE_CODES } {
                            let difference = simd.subtract(weight, simd.load(&zeros[line * L::VECTORS + vector]));
                            weight = simd.multiply(difference, simd.load(&scales[line * L::VECTORS + vector]));
                        }
                        if const { ROUNDED } {
                            weight = match rounded {
                                Rounded::F32 => weight,
                                Rounded::F16 => simd.round_to_f16(weight),
                                Rounded::Bf16 => simd.round_to_bf16(weight),
                            };
                        }
                        for row in 0..ROWS {
                            values[row] = simd.fused(factors[row][place], weight, values[row]);
                        }
                    }
                    for row in 0..ROWS {
                        simd.store(values[row], &mut sums[row * L::VECTORS + vector]);
                    }
                }
            }
        }
    }
}
