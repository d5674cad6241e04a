//! Fourier transforms of many lines: `rustfft` in f64 for all types of elements but complex signals of f32 (`single.rs`), lines
//! spread over threads.
//!
//! Each line is transformed by one thread in one way, so the number of threads does not change a bit. Against the sum in
//! f64 the error of a line is within `length * epsilon` of the norm of its spectrum.

mod single;

use crate::threads;
pub use rustfft::num_complex::Complex;
use rustfft::{Fft, FftPlanner};
use single::Single;
use std::sync::Arc;

/// A prepared transform of one length and direction.
pub struct Plan {
    transform: Transform,
}

enum Transform {
    Double(Arc<dyn Fft<f64>>),
    Single(Single),
}

impl Plan {
    /// Prepares transforms of `length` points; an inverse one is not scaled.
    ///
    /// # Panics
    /// Where the length is 0.
    #[must_use]
    pub fn new(length: usize, inverse: bool) -> Self {
        assert!(length > 0, "a transform of no points");
        let mut planner = FftPlanner::new();
        let transform = if inverse { planner.plan_fft_inverse(length) } else { planner.plan_fft_forward(length) };
        Plan { transform: Transform::Double(transform) }
    }

    /// As [`Plan::new`], for complex signals of f32: computed in f32, as their reference is, where the length has no prime factor
    /// above 5.
    ///
    /// # Panics
    /// Where the length is 0.
    #[must_use]
    pub fn of_complex_singles(length: usize, inverse: bool) -> Self {
        assert!(length > 0, "a transform of no points");
        match Single::new(length, inverse) {
            Some(single) => Plan { transform: Transform::Single(single) },
            None => Plan::new(length, inverse),
        }
    }

    fn length(&self) -> usize {
        match &self.transform {
            Transform::Double(transform) => transform.len(),
            Transform::Single(single) => single.length(),
        }
    }

    /// Transforms one line after the other, in memory of its own.
    fn processor(&self) -> impl FnMut(&mut [Complex<f64>]) + '_ {
        let (doubles, singles) = match &self.transform {
            Transform::Double(transform) => (transform.get_inplace_scratch_len(), 0),
            Transform::Single(single) => (0, single.length()),
        };
        let mut scratch = vec![Complex::default(); doubles];
        let (mut narrow, mut other) = (vec![Complex::default(); singles], vec![Complex::default(); singles]);
        move |points| match &self.transform {
            Transform::Double(transform) => transform.process_with_scratch(points, &mut scratch),
            Transform::Single(single) => {
                let pairs = narrow.iter_mut().zip(&*points);
                pairs.for_each(|(narrow, point)| *narrow = Complex::new(point.re as f32, point.im as f32));
                single.process(&mut narrow, &mut other);
                let pairs = points.iter_mut().zip(&narrow);
                pairs.for_each(|(point, narrow)| *point = Complex::new(narrow.re.into(), narrow.im.into()));
            }
        }
    }

    /// Transforms one line for each `line_values` elements of `target`: `load` fills the points of line `n`, `store`
    /// turns its spectrum into the elements.
    ///
    /// # Panics
    /// Where `line_values` is 0 or does not divide the target.
    pub fn lines<E: Send>(
        &self,
        target: &mut [E],
        line_values: usize,
        load: impl Fn(usize, &mut [Complex<f64>]) + Sync,
        store: impl Fn(&[Complex<f64>], &mut [E]) + Sync,
    ) {
        assert!(
            line_values > 0 && target.len().is_multiple_of(line_values),
            "{} elements in lines of {line_values}",
            target.len()
        );
        let length = self.length();
        let lines = target.len() / line_values;
        let operations = lines.saturating_mul(length).saturating_mul(length.ilog2() as usize + 1);
        let lines_per_part = lines.div_ceil(threads::parts(operations, lines)).max(1);
        threads::chunks(target, lines_per_part * line_values, |part, target| {
            let mut points = vec![Complex::default(); length];
            let mut process = self.processor();
            for (line, target) in target.chunks_exact_mut(line_values).enumerate() {
                load(part * lines_per_part + line, &mut points);
                process(&mut points);
                store(&points, target);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{numbers, with_threads};

    #[test]
    fn bits_do_not_depend_on_threads() {
        let signal = numbers(7, 300 * 40);
        let run = || {
            let mut target = vec![0f32; 600 * 40];
            let load = |line: usize, points: &mut [Complex<f64>]| {
                let line = &signal[line * 300..];
                points.iter_mut().zip(line).for_each(|(point, &x)| *point = Complex::new(x.into(), 0.0));
            };
            let store = |points: &[Complex<f64>], target: &mut [f32]| {
                let pairs = target.as_chunks_mut().0.iter_mut().zip(points);
                pairs.for_each(|(target, point)| *target = [point.re as f32, point.im as f32]);
            };
            Plan::new(300, false).lines(&mut target, 600, load, store);
            target
        };
        let one = with_threads(1, run);
        assert!(one == with_threads(3, run));
        let sum: f32 = signal[..300].iter().sum();
        assert!((one[0] - sum).abs() < 1e-3 && one[1].abs() < 1e-3);
    }
}
