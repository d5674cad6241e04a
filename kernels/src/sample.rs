//! Weighted sums of elements of planes at computed places: what grid sampling and the pooling of regions come down to.
//!
//! Planes are laid out in blocks of 16, so that a vector holds one place of all planes of a block. Each sum runs over its
//! taps in order. Sums with weights of f64 are f64 without fused steps, rounded once: their bits depend on no instructions.

use super::{
    simd::{Instructions, LANES, Routine, Simd},
    threads,
};

/// Samples of a task at least, so that its transposed results fill lines.
const LEAST_SAMPLES: usize = 4 * LANES;

/// One place of the planes of a block.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub struct Place([f32; LANES]);

/// Planes of equal size in blocks of 16. Behind the places of each block is one that is zero.
pub struct Planes {
    count: usize,
    volume: usize,
    places: Vec<Place>,
}

impl Planes {
    /// The planes of `x: [planes, volume]`; `None` where there is no memory for them.
    ///
    /// # Panics
    /// If `x` is no whole number of planes.
    #[must_use]
    pub fn new(x: &[f32], volume: usize) -> Option<Planes> {
        let count = x.len().checked_div(volume).unwrap_or(0);
        assert_eq!(x.len(), count * volume, "elements of {count} planes");
        let block = volume.checked_add(1)?;
        let total = block.checked_mul(count.div_ceil(LANES))?;
        let mut places = Vec::new();
        places.try_reserve_exact(total).ok()?;
        places.resize(total, Place([0.0; LANES]));
        let blocks: Vec<(&mut [Place], &[f32])> =
            places.chunks_mut(block).zip(x.chunks((LANES * volume).max(1))).collect();
        let fill = |(places, x): (&mut [Place], &[f32])| Instructions::best().run(Interleave { x, volume, places });
        if threads::parts(x.len(), count) == 1 {
            blocks.into_iter().for_each(fill);
        } else {
            threads::each(blocks, fill);
        }
        Some(Planes { count, volume, places })
    }

    /// The number of planes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The place that is zero.
    #[must_use]
    pub fn zero(&self) -> usize {
        self.volume
    }

    /// The places of 16 planes.
    fn block(&self, block: usize) -> &[Place] {
        &self.places[block * (self.volume + 1)..][..self.volume + 1]
    }
}

/// Lays out up to 16 planes side by side.
struct Interleave<'a> {
    x: &'a [f32],
    volume: usize,
    places: &'a mut [Place],
}

impl Routine for Interleave<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Interleave { x, volume, places } = self;
        let planes = x.len() / volume;
        for first in (0..volume).step_by(LANES) {
            let end = volume.min(first + LANES);
            let mut rows = [simd.splat(0.0); LANES];
            for plane in 0..planes {
                rows[plane] = simd.load_partial(&x[plane * volume..][first..end]);
            }
            let columns = simd.transpose(rows);
            for (place, column) in places[first..end].iter_mut().zip(columns) {
                simd.store(column, &mut place.0);
            }
        }
    }
}

/// The type of weights, in which sums are computed.
pub trait Weight: Copy + Send + Sync {
    /// The weighted sum of some of the places. Implementations are `#[inline(always)]`.
    fn sum<S: Simd>(simd: S, places: &[Place], taps: &[u32], weights: &[Self]) -> S::Vector;
}

impl Weight for f32 {
    #[inline(always)]
    fn sum<S: Simd>(simd: S, places: &[Place], taps: &[u32], weights: &[f32]) -> S::Vector {
        let mut sum = simd.splat(0.0);
        for (place, weight) in taps.iter().zip(weights) {
            sum = simd.fused(simd.load(&places[*place as usize].0), simd.splat(*weight), sum);
        }
        sum
    }
}

impl Weight for f64 {
    #[inline(always)]
    fn sum<S: Simd>(simd: S, places: &[Place], taps: &[u32], weights: &[f64]) -> S::Vector {
        // As the sums of iterators begin, so that -0 stays.
        let mut sums = [-0.0; LANES];
        for (place, weight) in taps.iter().zip(weights) {
            add(&mut sums, &places[*place as usize], *weight);
        }
        rounded(simd, &sums)
    }
}

/// Adds the weighted elements of a place.
#[inline(always)]
fn add(sums: &mut [f64; LANES], place: &Place, weight: f64) {
    for lane in 0..LANES {
        sums[lane] += f64::from(place.0[lane]) * weight;
    }
}

#[inline(always)]
fn rounded<S: Simd>(simd: S, values: &[f64; LANES]) -> S::Vector {
    let mut narrow = [0.0; LANES];
    for lane in 0..LANES {
        narrow[lane] = values[lane] as f32;
    }
    simd.load(&narrow)
}

/// Of each sample the places whose weighted elements are added.
#[derive(Clone, Debug, Default)]
pub struct Taps<W> {
    /// Places of a sample.
    pub per_sample: usize,
    /// Those of each sample, one sample after another.
    pub places: Vec<u32>,
    /// As many weights.
    pub weights: Vec<W>,
}

/// `out: [planes, samples]`, the samples of each plane.
///
/// # Panics
/// If lengths disagree, or a place is outside.
pub fn sample<W: Weight>(planes: &Planes, taps: &Taps<W>, out: &mut [f32]) {
    let samples = taps.places.len().checked_div(taps.per_sample).unwrap_or(0);
    assert_eq!(taps.places.len(), taps.weights.len(), "weights of places");
    assert_eq!(out.len(), planes.count * samples, "samples of {} planes", planes.count);
    if out.is_empty() {
        return;
    }
    let parts = threads::parts(out.len() * taps.per_sample, usize::MAX).div_ceil(planes.count.div_ceil(LANES));
    let step = samples.div_ceil(parts).next_multiple_of(LANES).max(LEAST_SAMPLES);
    let mut tasks = Vec::new();
    for (block, out) in out.chunks_mut(LANES * samples).enumerate() {
        let mut lines: Vec<_> = out.chunks_mut(samples).map(|line| line.chunks_mut(step)).collect();
        for first in (0..samples).step_by(step) {
            let lines: Vec<&mut [f32]> = lines.iter_mut().filter_map(Iterator::next).collect();
            tasks.push(Sampled { places: planes.block(block), taps, first, lines });
        }
    }
    threads::each(tasks, |task| Instructions::best().run(task));
}

/// Samples from `first` on of the planes of a block.
struct Sampled<'a, W> {
    places: &'a [Place],
    taps: &'a Taps<W>,
    first: usize,
    /// Of each plane where they go.
    lines: Vec<&'a mut [f32]>,
}

impl<W: Weight> Routine for Sampled<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Sampled { places, taps, first, mut lines } = self;
        let (length, per_sample) = (lines.first().map_or(0, |line| line.len()), taps.per_sample);
        for begin in (0..length).step_by(LANES) {
            let end = length.min(begin + LANES);
            let mut rows = [simd.splat(0.0); LANES];
            for sample in begin..end {
                let own = (first + sample) * per_sample..(first + sample + 1) * per_sample;
                rows[sample - begin] = W::sum(simd, places, &taps.places[own.clone()], &taps.weights[own]);
            }
            let columns = simd.transpose(rows);
            for (line, column) in lines.iter_mut().zip(columns) {
                simd.store_partial(column, &mut line[begin..end]);
            }
        }
    }
}

/// Where the samples of the bins of a region lie along one axis.
#[derive(Clone, Debug)]
pub struct RegionAxis {
    /// Samples of a bin.
    pub samples: usize,
    /// Of each sample of each bin the positions below and above and the weight of the one above; none lies outside.
    pub neighbours: Vec<Option<(usize, usize, f64)>>,
}

impl RegionAxis {
    fn bins(&self) -> usize {
        self.neighbours.len().checked_div(self.samples).unwrap_or(0)
    }

    fn bin(&self, bin: usize) -> &[Option<(usize, usize, f64)>] {
        &self.neighbours[bin * self.samples..][..self.samples]
    }
}

/// `out: [planes, rows, columns]`: bins of a region of planes of `width` columns. A bin is the mean of its samples, each
/// interpolated between four elements; or the `largest` of those elements times their weights (not of NaN).
///
/// # Panics
/// If lengths disagree, a position is outside or there are no samples.
pub fn pool_region(planes: &Planes, width: usize, axes: &[RegionAxis; 2], largest: bool, out: &mut [f32]) {
    let [rows, columns] = axes;
    let bins = rows.bins() * columns.bins();
    assert_eq!(out.len(), planes.count * bins, "bins of {} planes", planes.count);
    if out.is_empty() {
        return;
    }
    let mut taps = Vec::new();
    for bin in 0..bins {
        for row in rows.bin(bin / columns.bins()) {
            for column in columns.bin(bin % columns.bins()) {
                taps.extend(neighbours(*row, *column, width).unwrap_or([(planes.zero(), 0.0); NEIGHBOURS]));
            }
        }
    }
    let samples = rows.samples * columns.samples;
    for (block, out) in out.chunks_mut(LANES * bins).enumerate() {
        Instructions::best().run(Pooled { places: planes.block(block), taps: &taps, samples, largest, out });
    }
}

/// Elements that a sample of a region is interpolated between.
const NEIGHBOURS: usize = 4;

/// The places around a sample and their weights; none of a sample outside.
fn neighbours(
    row: Option<(usize, usize, f64)>,
    column: Option<(usize, usize, f64)>,
    width: usize,
) -> Option<[(usize, f64); NEIGHBOURS]> {
    let ((top, bottom, down), (left, right, across)) = row.zip(column)?;
    Some([
        (top * width + left, (1.0 - down) * (1.0 - across)),
        (top * width + right, (1.0 - down) * across),
        (bottom * width + left, down * (1.0 - across)),
        (bottom * width + right, down * across),
    ])
}

struct Pooled<'a> {
    places: &'a [Place],
    /// Of all samples of all bins.
    taps: &'a [(usize, f64)],
    /// Those of a bin.
    samples: usize,
    largest: bool,
    out: &'a mut [f32],
}

impl Pooled<'_> {
    #[inline(always)]
    fn mean<S: Simd>(&self, simd: S, taps: &[(usize, f64)]) -> S::Vector {
        let mut sums = [0.0; LANES];
        for (place, weight) in taps {
            add(&mut sums, &self.places[*place], *weight);
        }
        for lane in 0..LANES {
            sums[lane] /= self.samples as f64;
        }
        rounded(simd, &sums)
    }

    #[inline(always)]
    fn largest<S: Simd>(&self, simd: S, taps: &[(usize, f64)]) -> S::Vector {
        let mut largest = [f64::NEG_INFINITY; LANES];
        for (place, weight) in taps {
            let place = &self.places[*place];
            for lane in 0..LANES {
                let term = f64::from(place.0[lane]) * weight;
                largest[lane] = if largest[lane] < term { term } else { largest[lane] };
            }
        }
        rounded(simd, &largest)
    }
}

impl Routine for Pooled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let per_bin = self.samples * NEIGHBOURS;
        let bins = self.taps.len() / per_bin;
        for begin in (0..bins).step_by(LANES) {
            let end = bins.min(begin + LANES);
            let mut rows = [simd.splat(0.0); LANES];
            for bin in begin..end {
                let taps = &self.taps[bin * per_bin..][..per_bin];
                rows[bin - begin] = if self.largest { self.largest(simd, taps) } else { self.mean(simd, taps) };
            }
            let columns = simd.transpose(rows);
            for (line, column) in self.out.chunks_exact_mut(bins).zip(columns) {
                simd.store_partial(column, &mut line[begin..end]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{numbers, with_threads};

    #[test]
    fn samples_are_sums_of_their_taps() {
        for (count, volume, samples, per_sample) in [(1, 1, 1, 1), (3, 7, 5, 4), (16, 100, 200, 4), (35, 33, 129, 2)] {
            let x = numbers(1, count * volume);
            let planes = Planes::new(&x, volume).unwrap();
            assert_eq!((planes.count(), planes.zero()), (count, volume));
            let taps = Taps {
                per_sample,
                places: (0..samples * per_sample).map(|tap| (tap * 7919 % (volume + 1)) as u32).collect(),
                weights: numbers(2, samples * per_sample),
            };
            fn run<W: Weight>(planes: &Planes, taps: &Taps<W>, threads: usize) -> Vec<f32> {
                let mut out = vec![9.0; planes.count() * taps.places.len() / taps.per_sample];
                with_threads(threads, || sample(planes, taps, &mut out));
                out
            }
            let wide = Taps {
                per_sample,
                places: taps.places.clone(),
                weights: taps.weights.iter().map(|&weight| f64::from(weight)).collect(),
            };
            let (out, once) = (run(&planes, &taps, 1), run(&planes, &wide, 1));
            assert_eq!(out, run(&planes, &taps, 3));
            assert_eq!(once, run(&planes, &wide, 3));
            for (at, (found, once)) in out.iter().zip(once).enumerate() {
                let (plane, sample) = (at / samples, at % samples);
                let terms = (sample * per_sample..(sample + 1) * per_sample).map(|tap| {
                    let place = taps.places[tap] as usize;
                    if place == volume { 0.0 } else { f64::from(x[plane * volume + place]) * wide.weights[tap] }
                });
                let expected = terms.sum::<f64>() as f32;
                assert!((found - expected).abs() < 1e-6, "{count} {volume} at {at}: {found}, expected {expected}");
                assert_eq!(once.to_bits(), expected.to_bits(), "{count} {volume} at {at}");
            }
        }
    }

    #[test]
    fn bins_are_means_or_largest_terms() {
        let (count, height, width) = (18, 3, 5);
        let x = numbers(3, count * height * width);
        let planes = Planes::new(&x, height * width).unwrap();
        let rows =
            RegionAxis { samples: 2, neighbours: vec![Some((0, 1, 0.25)), None, Some((1, 2, 0.5)), Some((2, 2, 0.0))] };
        let columns = RegionAxis { samples: 1, neighbours: vec![Some((3, 4, 0.75)), Some((0, 1, 0.5)), None] };
        for largest in [false, true] {
            let mut out = vec![9.0; count * 6];
            pool_region(&planes, width, &[rows.clone(), columns.clone()], largest, &mut out);
            for (at, found) in out.iter().enumerate() {
                let (plane, row, column) = (&x[at / 6 * height * width..], at % 6 / 3, at % 3);
                let mut terms = Vec::new();
                for row in &rows.neighbours[row * 2..][..2] {
                    let (Some((top, bottom, down)), Some((left, right, across))) = (*row, columns.neighbours[column])
                    else {
                        terms.push(0.0);
                        continue;
                    };
                    let mut push = |place: usize, weight: f64| terms.push(f64::from(plane[place]) * weight);
                    push(top * width + left, (1.0 - down) * (1.0 - across));
                    push(top * width + right, (1.0 - down) * across);
                    push(bottom * width + left, down * (1.0 - across));
                    push(bottom * width + right, down * across);
                }
                let expected = match largest {
                    true => terms.into_iter().fold(f64::NEG_INFINITY, f64::max),
                    false => terms.into_iter().fold(0.0, |sum, term| sum + term) / 2.0,
                };
                assert_eq!(*found, expected as f32, "{largest} at {at}");
            }
        }
    }
}
