//! Resampling of row-major arrays along some axes: weighted sums of f32, or plain choices of elements of any width.
//!
//! One axis after another, those that shrink first; each output is the sum of its taps in order. Whether products are rounded before
//! they are added depends on extents and taps alone.

use super::{
    convolution::CHANNEL_BLOCK,
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};
use std::ops::Range;

/// Lines from which on elements of the last axis are made by vectors.
const FEWEST_LINES: usize = 4;

/// Which positions make each output position along an axis, and with which weights.
#[derive(Clone, Debug)]
pub struct AxisTaps {
    /// Extent before.
    pub input: usize,
    /// Where the taps of each output begin; one more for the end.
    pub starts: Vec<usize>,
    /// Input positions, below `input`.
    pub positions: Vec<usize>,
    /// As many weights.
    pub weights: Vec<f32>,
}

impl AxisTaps {
    /// Extent after.
    #[must_use]
    pub fn output(&self) -> usize {
        self.starts.len() - 1
    }

    #[inline(always)]
    fn taps(&self, output: usize) -> impl Iterator<Item = (usize, f32)> + '_ {
        let range = self.starts[output]..self.starts[output + 1];
        self.positions[range.clone()].iter().copied().zip(self.weights[range].iter().copied())
    }
}

/// `out = x`, of `extents`, resampled along the axes that have taps; `None` where there is no memory for what lies between.
///
/// # Panics
/// If lengths disagree.
#[must_use]
pub fn resample(x: &[f32], extents: &[usize], axes: &[Option<AxisTaps>], out: &mut [f32]) -> Option<()> {
    assert_eq!(x.len(), extents.iter().product::<usize>(), "elements of {extents:?}");
    assert_eq!(axes.len(), extents.len(), "axes of {extents:?}");
    let mut order: Vec<(usize, &AxisTaps)> =
        axes.iter().enumerate().filter_map(|(axis, taps)| Some((axis, taps.as_ref()?))).collect();
    // By growth; of equal ones the last axis first, as later ones are then wide.
    order.sort_by(|(left_axis, left), (right_axis, right)| {
        let growth = (left.output() * right.input).cmp(&(right.output() * left.input));
        growth.then(right_axis.cmp(left_axis))
    });
    let Some(((last_axis, last), before)) = order.split_last() else {
        out.copy_from_slice(x);
        return Some(());
    };
    let mut values: Option<Vec<f32>> = None;
    let mut extents = extents.to_vec();
    for &(axis, taps) in before {
        extents[axis] = taps.output();
        let mut next = zeros(extents.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent))?)?;
        extents[axis] = taps.input;
        along(values.as_deref().unwrap_or(x), &extents, axis, taps, &mut next)?;
        extents[axis] = taps.output();
        values = Some(next);
    }
    along(values.as_deref().unwrap_or(x), &extents, *last_axis, last, out)
}

/// So many zeros, where there is memory for them.
fn zeros(count: usize) -> Option<Vec<f32>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).ok()?;
    values.resize(count, 0.0);
    Some(values)
}

/// Resamples along one axis; `None` where there is no memory for what is known of its taps.
fn along(x: &[f32], extents: &[usize], axis: usize, taps: &AxisTaps, out: &mut [f32]) -> Option<()> {
    assert_eq!(taps.input, extents[axis], "extent of axis {axis}");
    let inner: usize = extents[axis + 1..].iter().product();
    let outer: usize = extents[..axis].iter().product();
    let output = taps.output();
    assert_eq!(out.len(), outer * output * inner, "elements along axis {axis} of {extents:?}");
    if out.is_empty() {
        return Some(());
    }
    let block = taps.input * inner;
    let operations = out.len() * (taps.positions.len() / output).max(1);
    let size = output * inner;
    let lines_each = outer.div_ceil(threads::parts(operations, outer)).max(1);
    let instructions = Instructions::best();
    // It takes about as long to find them as to make some lines.
    let near = if inner == 1 && outer >= FEWEST_LINES { NearTaps::new(taps)? } else { NearTaps::default() };
    threads::chunks(out, lines_each * size, |part, out| {
        for (line, out) in out.chunks_mut(size).enumerate() {
            let x = &x[(part * lines_each + line) * block..][..block];
            match inner {
                1 => instructions.run(Elements { x, taps, near: &near, out }),
                _ => instructions.run(Rows { x, inner, taps, out }),
            }
        }
    });
    Some(())
}

/// The taps of vectors of neighbouring outputs: those that all lie within a vector of inputs, which are lanes of that.
#[derive(Default)]
struct NearTaps {
    /// For each vector of outputs the first of these inputs, and which of the taps are its own; `None` where they lie farther apart.
    vectors: Vec<Option<(usize, Range<usize>)>>,
    taps: Vec<NearTap>,
}

/// A tap of each lane.
struct NearTap {
    /// Counted from the first input.
    places: [i32; LANES],
    /// All bits of lanes that have this tap.
    mask: [i32; LANES],
    weights: [f32; LANES],
}

impl NearTaps {
    /// `None` where there is no memory for them.
    fn new(taps: &AxisTaps) -> Option<Self> {
        let mut near = Self::default();
        near.vectors.try_reserve_exact(taps.output().div_ceil(LANES)).ok()?;
        for first in (0..taps.output()).step_by(LANES) {
            let vector = near.add(taps, first..(first + LANES).min(taps.output()))?;
            near.vectors.push(vector);
        }
        Some(near)
    }

    /// Adds the taps of a vector of outputs, if they lie near each other; `None` where there is no memory for them.
    fn add(&mut self, taps: &AxisTaps, outputs: Range<usize>) -> Option<Option<(usize, Range<usize>)>> {
        let positions = &taps.positions[taps.starts[outputs.start]..taps.starts[outputs.end]];
        // As many inputs follow as a vector has, where there are so many.
        let start = positions.iter().copied().min().unwrap_or(0).min(taps.input.saturating_sub(LANES));
        if positions.iter().any(|position| position - start >= LANES) {
            return Some(None);
        }
        let most = outputs.clone().map(|output| taps.starts[output + 1] - taps.starts[output]).max().unwrap_or(0);
        let first = self.taps.len();
        self.taps.try_reserve(most).ok()?;
        for number in 0..most {
            let mut tap = NearTap { places: [0; LANES], mask: [0; LANES], weights: [0.0; LANES] };
            for (lane, output) in outputs.clone().enumerate() {
                if let Some((position, weight)) = taps.taps(output).nth(number) {
                    tap.places[lane] = (position - start) as i32;
                    tap.mask[lane] = -1;
                    tap.weights[lane] = weight;
                }
            }
            self.taps.push(tap);
        }
        Some(Some((start, first..self.taps.len())))
    }
}

/// All outputs of the last axis.
struct Elements<'a> {
    x: &'a [f32],
    taps: &'a AxisTaps,
    near: &'a NearTaps,
    out: &'a mut [f32],
}

impl Routine for Elements<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Elements { x, taps, near, out } = self;
        for (number, out) in out.chunks_mut(LANES).enumerate() {
            let Some((start, range)) = near.vectors.get(number).cloned().flatten() else {
                for (lane, out) in out.iter_mut().enumerate() {
                    *out = 0.0;
                    for (position, weight) in taps.taps(number * LANES + lane) {
                        *out += x[position] * weight;
                    }
                }
                continue;
            };
            let x = &x[start..];
            let table = simd.load_partial(&x[..x.len().min(LANES)]);
            let mut sum = simd.splat(0.0);
            for tap in &near.taps[range] {
                let value = simd.lookup(table, simd.load_integers(&tap.places));
                // What a lane has no tap of may be infinite.
                let value = simd.of_bits(simd.and(simd.bits(value), simd.load_integers(&tap.mask)));
                sum = simd.fused(value, simd.load(&tap.weights), sum);
            }
            simd.store_partial(sum, out);
        }
    }
}

/// All outputs of an axis, each a row of `inner` values.
struct Rows<'a> {
    x: &'a [f32],
    inner: usize,
    taps: &'a AxisTaps,
    out: &'a mut [f32],
}

impl Routine for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Rows { x, inner, taps, out } = self;
        for (place, out) in out.chunks_mut(inner).enumerate() {
            let range = taps.starts[place]..taps.starts[place + 1];
            let taps = (&taps.positions[range.clone()], &taps.weights[range]);
            match taps.0.len() {
                0 => out.fill(0.0),
                1 => sum_of_rows::<S, 1>(simd, x, taps, out),
                2 => sum_of_rows::<S, 2>(simd, x, taps, out),
                4 => sum_of_rows::<S, 4>(simd, x, taps, out),
                _ => {
                    for (number, (position, weight)) in taps.0.iter().zip(taps.1).enumerate() {
                        add_row(simd, &x[position * inner..][..inner], *weight, number == 0, out);
                    }
                }
            }
        }
    }
}

/// The weighted sum of `COUNT` rows, which is written once.
#[inline(always)]
fn sum_of_rows<S: Simd, const COUNT: usize>(
    simd: S,
    x: &[f32],
    (positions, weights): (&[usize], &[f32]),
    out: &mut [f32],
) {
    let inner = out.len();
    let mut rows = [&x[..0]; COUNT];
    let mut factors = [simd.splat(0.0); COUNT];
    for tap in 0..COUNT {
        rows[tap] = &x[positions[tap] * inner..][..inner];
        factors[tap] = simd.splat(weights[tap]);
    }
    let (whole, rest) = out.as_chunks_mut();
    for (number, out) in whole.iter_mut().enumerate() {
        let mut sum = simd.splat(0.0);
        for tap in 0..COUNT {
            sum = simd.fused(simd.load(&rows[tap].as_chunks().0[number]), factors[tap], sum);
        }
        simd.store(sum, out);
    }
    if !rest.is_empty() {
        let mut sum = simd.splat(0.0);
        for tap in 0..COUNT {
            sum = simd.fused(simd.load_partial(&rows[tap][inner - rest.len()..]), factors[tap], sum);
        }
        simd.store_partial(sum, rest);
    }
}

/// Adds a weighted row to a sum, or begins it.
#[inline(always)]
fn add_row<S: Simd>(simd: S, row: &[f32], weight: f32, is_first: bool, out: &mut [f32]) {
    let weight = simd.splat(weight);
    for (out, row) in out.chunks_mut(LANES).zip(row.chunks(LANES)) {
        let sum = if is_first { simd.splat(0.0) } else { simd.load_partial(out) };
        simd.store_partial(simd.fused(simd.load_partial(row), weight, sum), out);
    }
}

/// `out[i, j, ..] = x[chosen[0][i], chosen[1][j], ..]`; `None` where there is no memory to list the rows.
///
/// # Panics
/// If lengths disagree.
pub fn choose<T: Copy + Send + Sync>(x: &[T], extents: &[usize], chosen: &[Vec<usize>], out: &mut [T]) -> Option<()> {
    assert_eq!(x.len(), extents.iter().product::<usize>(), "elements of {extents:?}");
    assert_eq!(out.len(), chosen.iter().map(Vec::len).product::<usize>(), "elements of the result");
    if out.is_empty() {
        return Some(());
    }
    let Some((last, outer)) = chosen.split_last() else {
        out.copy_from_slice(x);
        return Some(());
    };
    let row = extents[extents.len() - 1];
    let mut rows = vec![0usize];
    for (positions, &extent) in outer.iter().zip(extents) {
        let mut longer = Vec::new();
        longer.try_reserve_exact(rows.len().checked_mul(positions.len())?).ok()?;
        let places = |start: usize| positions.iter().map(move |&position| start * extent + position);
        longer.extend(rows.iter().flat_map(|&start| places(start)));
        rows = longer;
    }
    let identity = last.len() == row && last.iter().enumerate().all(|(place, &position)| place == position);
    let task = |(out, &start): (&mut [T], &usize)| {
        let x = &x[start * row..][..row];
        if !identity {
            out.iter_mut().zip(last).for_each(|(out, &position)| *out = x[position]);
        } else if let (([out], []), ([x], [])) = (out.as_chunks_mut::<CHANNEL_BLOCK>(), x.as_chunks::<CHANNEL_BLOCK>())
        {
            // Channels in blocks: a call for each would take longer than the copy.
            *out = *x;
        } else {
            out.copy_from_slice(x);
        }
    };
    let rows_each = rows.len().div_ceil(threads::parts_of_moves(out.len(), rows.len()));
    threads::chunks(out, rows_each * last.len(), |part, out| {
        out.chunks_mut(last.len()).zip(&rows[part * rows_each..]).for_each(task);
    });
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;
    use proptest::prelude::*;

    fn halves(input: usize) -> AxisTaps {
        // Each output is the mean of two neighbours.
        AxisTaps {
            input,
            starts: (0..input).map(|output| 2 * output).collect(),
            positions: (0..input - 1).flat_map(|output| [output, output + 1]).collect(),
            weights: vec![0.5; 2 * (input - 1)],
        }
    }

    #[test]
    fn sums_along_inner_and_outer_axes() {
        let x = [1.0, 2.0, 3.0, 10.0, 20.0, 30.0];
        let resampled = |axes: &[Option<AxisTaps>], count: usize| {
            let mut out = vec![9.0; count];
            resample(&x, &[2, 3], axes, &mut out).unwrap();
            out
        };
        assert_eq!(resampled(&[None, Some(halves(3))], 4), [1.5, 2.5, 15.0, 25.0]);
        assert_eq!(resampled(&[Some(halves(2)), None], 3), [5.5, 11.0, 16.5]);
        assert_eq!(resampled(&[Some(halves(2)), Some(halves(3))], 2), [8.25, 13.75]);
        assert_eq!(resampled(&[None, None], 6), x);
    }

    /// Sums in f64 along one axis.
    fn expected(x: &[f32], (outer, inner): (usize, usize), taps: &AxisTaps) -> Vec<f64> {
        let mut sums = Vec::new();
        for line in 0..outer {
            for output in 0..taps.output() {
                for place in 0..inner {
                    let value = |position: usize| f64::from(x[(line * taps.input + position) * inner + place]);
                    sums.push(taps.taps(output).map(|(position, weight)| value(position) * f64::from(weight)).sum());
                }
            }
        }
        sums
    }

    /// As many taps of each output as are given, at these positions of so many.
    fn axis_taps() -> impl Strategy<Value = AxisTaps> {
        (1_usize..50, 1_usize..60, 0_usize..6).prop_flat_map(|(input, output, most)| {
            let outputs = prop::collection::vec(prop::collection::vec((0..input, -1.0_f32..1.0), 0..=most), output);
            // Neighbouring outputs see neighbouring inputs, or any.
            (outputs, any::<bool>()).prop_map(move |(outputs, is_near)| {
                let mut taps = AxisTaps { input, starts: vec![0], positions: Vec::new(), weights: Vec::new() };
                for (place, output_taps) in outputs.into_iter().enumerate() {
                    for (position, weight) in output_taps {
                        let near = (place * input / output + position % 3).min(input - 1);
                        taps.positions.push(if is_near { near } else { position });
                        taps.weights.push(weight);
                    }
                    taps.starts.push(taps.positions.len());
                }
                taps
            })
        })
    }

    proptest! {
        #[test]
        fn each_output_is_the_sum_of_its_taps(taps in axis_taps(), outer in 0_usize..7, inner in 1_usize..40) {
            for inner in [1, inner] {
                let x = numbers(5, outer * taps.input * inner);
                let mut out = vec![f32::NAN; outer * taps.output() * inner];
                resample(&x, &[outer, taps.input, inner], &[None, Some(taps.clone()), None], &mut out).unwrap();
                for (out, expected) in out.iter().zip(expected(&x, (outer, inner), &taps)) {
                    prop_assert!((f64::from(*out) - expected).abs() <= 1e-6 * 6.0, "{} is not {}", out, expected);
                }
            }
        }
    }

    #[test]
    fn outputs_without_a_tap_do_not_see_what_others_see() {
        // The first output is one input, the others are two, of which one is infinite.
        let taps =
            AxisTaps { input: 3, starts: vec![0, 1, 3, 5], positions: vec![0, 0, 1, 1, 2], weights: vec![0.5; 5] };
        for inner in [1, 3] {
            let x: Vec<f32> = [4.0, 2.0, f32::INFINITY].into_iter().flat_map(|value| vec![value; inner]).collect();
            let mut out = vec![0.0; 3 * inner];
            resample(&x, &[3, inner], &[Some(taps.clone()), None], &mut out).unwrap();
            let expected: Vec<f32> =
                [2.0, 3.0, f32::INFINITY].into_iter().flat_map(|value| vec![value; inner]).collect();
            assert_eq!(out, expected);
        }
        // A lane without a second tap has the place of the first input.
        let later = AxisTaps { positions: vec![1, 1, 2, 2, 1], ..taps };
        let mut out = [0.0; 12];
        let x = [f32::INFINITY, 4.0, 2.0].repeat(FEWEST_LINES);
        resample(&x, &[FEWEST_LINES, 3], &[None, Some(later)], &mut out).unwrap();
        assert_eq!(out, [2.0, 3.0, 3.0].repeat(FEWEST_LINES)[..]);
    }

    #[test]
    fn choices_repeat_rows_and_elements() {
        let mut out = [0u8; 8];
        choose(&[1, 2, 3, 4], &[2, 2], &[vec![1, 1], vec![0, 0, 1, 1]], &mut out).unwrap();
        assert_eq!(out, [3, 3, 4, 4, 3, 3, 4, 4]);
        let x: Vec<u16> = (0..16).collect();
        let mut blocks = [0u16; 24];
        choose(&x, &[2, 8], &[vec![1, 0, 1], (0..8).collect()], &mut blocks).unwrap();
        assert_eq!((&blocks[..8], &blocks[8..16], &blocks[16..]), (&x[8..], &x[..8], &x[8..]));
        let mut point = [0u8];
        choose(&[7], &[], &[], &mut point).unwrap();
        assert_eq!(point, [7]);
    }
}
