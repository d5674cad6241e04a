//! Resampling of row-major arrays along some axes: weighted sums of f32, or plain choices of elements of any width.
//!
//! One axis after another, those that shrink first; each output is the sum of its taps in order.

use super::{
    convolution::CHANNEL_BLOCK,
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};

/// Multiply-accumulate operations in the time that an element takes which is read and written.
const CHOICE_OPERATIONS: usize = 4;

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
        along(values.as_deref().unwrap_or(x), &extents, axis, taps, &mut next);
        extents[axis] = taps.output();
        values = Some(next);
    }
    along(values.as_deref().unwrap_or(x), &extents, *last_axis, last, out);
    Some(())
}

/// So many zeros, where there is memory for them.
fn zeros(count: usize) -> Option<Vec<f32>> {
    let mut values = Vec::new();
    values.try_reserve_exact(count).ok()?;
    values.resize(count, 0.0);
    Some(values)
}

/// Resamples along one axis.
fn along(x: &[f32], extents: &[usize], axis: usize, taps: &AxisTaps, out: &mut [f32]) {
    assert_eq!(taps.input, extents[axis], "extent of axis {axis}");
    let inner: usize = extents[axis + 1..].iter().product();
    let outer: usize = extents[..axis].iter().product();
    let output = taps.output();
    assert_eq!(out.len(), outer * output * inner, "elements along axis {axis} of {extents:?}");
    if out.is_empty() {
        return;
    }
    let block = taps.input * inner;
    let operations = out.len() * (taps.positions.len() / output).max(1);
    let size = output * inner;
    let lines_each = outer.div_ceil(threads::parts(operations, outer)).max(1);
    let instructions = Instructions::best();
    threads::chunks(out, lines_each * size, |part, out| {
        for (line, out) in out.chunks_mut(size).enumerate() {
            let x = &x[(part * lines_each + line) * block..][..block];
            instructions.run(Line { x, inner, taps, out });
        }
    });
}

/// All outputs of an axis, each `inner` values.
struct Line<'a> {
    x: &'a [f32],
    inner: usize,
    taps: &'a AxisTaps,
    out: &'a mut [f32],
}

impl Routine for Line<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Line { x, inner, taps, out } = self;
        if inner == 1 {
            for (place, out) in out.iter_mut().enumerate() {
                let mut sum = 0.0;
                for (position, weight) in taps.taps(place) {
                    sum += x[position] * weight;
                }
                *out = sum;
            }
            return;
        }
        for (place, out) in out.chunks_mut(inner).enumerate() {
            let mut is_first = true;
            for (position, weight) in taps.taps(place) {
                let (row, weight) = (&x[position * inner..][..inner], simd.splat(weight));
                for (out, row) in out.chunks_mut(LANES).zip(row.chunks(LANES)) {
                    let sum = simd.splat(0.0);
                    let sum = if is_first { sum } else { simd.load_partial(out) };
                    simd.store_partial(simd.fused(simd.load_partial(row), weight, sum), out);
                }
                is_first = false;
            }
            if is_first {
                out.fill(0.0);
            }
        }
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
    let operations = out.len().saturating_mul(CHOICE_OPERATIONS);
    let rows_each = rows.len().div_ceil(threads::parts(operations, rows.len()));
    threads::chunks(out, rows_each * last.len(), |part, out| {
        out.chunks_mut(last.len()).zip(&rows[part * rows_each..]).for_each(task);
    });
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
