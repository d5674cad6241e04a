//! What a convolution multiplies with each filter: windows of its input, as rows.

use ipuc_formats::ops::Convolution;

/// Windows that are counted of a value in one example, at most.
const MOST_WINDOWS: usize = 2048;

/// Windows over the spatial axes of a value `[batch, channels, extents..]`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Windows {
    taps: Vec<usize>,
    /// Distance of taps.
    dilations: Vec<usize>,
}

impl Windows {
    /// Those of filters `[outputs, channels, taps..]`; `None` where channels are in groups.
    pub(super) fn of(convolution: &Convolution, filters: &[u64]) -> Option<Windows> {
        let [_, _, taps @ ..] = filters else { return None };
        let size = |extent: u64| usize::try_from(extent).ok().filter(|&extent| extent > 0);
        let taps: Vec<usize> = taps.iter().map(|&extent| size(extent)).collect::<Option<_>>()?;
        let dilations: Vec<usize> = match convolution.dilations.as_slice() {
            [] => vec![1; taps.len()],
            dilations => {
                let dilation = |&dilation: &i64| size(u64::try_from(dilation).ok()?);
                dilations.iter().map(dilation).collect::<Option<_>>()?
            }
        };
        (convolution.groups == 1 && dilations.len() == taps.len()).then_some(Windows { taps, dilations })
    }

    /// Rows `[windows][channels][taps..]` of windows that lie within the value, spread evenly; none where it has another
    /// rank or is too small.
    pub(super) fn rows(&self, shape: &[usize], elements: &[f32]) -> Vec<f32> {
        let [batch, channels, extents @ ..] = shape else { return Vec::new() };
        if extents.len() != self.taps.len() {
            return Vec::new();
        }
        let axes = 0..extents.len();
        let reach = |axis: usize| (self.taps[axis] - 1) * self.dilations[axis];
        let places: Vec<usize> = axes.clone().map(|axis| extents[axis].saturating_sub(reach(axis))).collect();
        let strides: Vec<usize> = axes.clone().map(|axis| extents[axis + 1..].iter().product()).collect();
        let (image, per_image): (usize, usize) = (extents.iter().product(), places.iter().product());
        let taps = (0..self.taps.iter().product::<usize>()).map(|tap| {
            let steps = split(tap, &self.taps);
            axes.clone().map(|axis| steps[axis] * self.dilations[axis] * strides[axis]).sum()
        });
        let taps: Vec<usize> = taps.collect();
        let all = batch * per_image;
        let count = all.min(MOST_WINDOWS);
        let mut rows = Vec::with_capacity(count * channels * taps.len());
        for index in 0..count {
            let window = index * all / count;
            let place = split(window % per_image, &places);
            let within: usize = axes.clone().map(|axis| place[axis] * strides[axis]).sum();
            for channel in 0..*channels {
                let first = (window / per_image * channels + channel) * image + within;
                rows.extend(taps.iter().map(|tap| elements[first + tap]));
            }
        }
        rows
    }
}

/// The indices of an element of a shape by its row-major number.
fn split(number: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = number;
    let mut indices = vec![0; shape.len()];
    for (index, extent) in indices.iter_mut().zip(shape).rev() {
        *index = rest % extent;
        rest /= extent;
    }
    indices
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipuc_formats::ops::{Arithmetic, Program};

    fn convolution(dilations: &[i64], groups: i64) -> Convolution {
        Convolution {
            auto_pad: None,
            strides: Vec::new(),
            dilations: dilations.to_vec(),
            pads: Vec::new(),
            groups,
            arithmetic: Arithmetic::default(),
            program: Program::default(),
        }
    }

    #[test]
    fn rows_are_windows_within_the_value() {
        // [1, 2, 3, 4], numbered.
        let elements: Vec<f32> = (0..24).map(|number| number as f32).collect();
        let windows = Windows::of(&convolution(&[1, 2], 1), &[5, 2, 2, 2]).unwrap();
        let rows = windows.rows(&[1, 2, 3, 4], &elements);
        let of = |first: f32| {
            let taps = [0.0, 2.0, 4.0, 6.0].map(|tap| first + tap);
            [taps, taps.map(|tap| tap + 12.0)].concat()
        };
        assert_eq!(rows, [0.0, 1.0, 4.0, 5.0].map(of).concat());
        // One tap: the channels of each place.
        let points = Windows::of(&convolution(&[], 1), &[5, 2, 1]).unwrap();
        assert_eq!(points.rows(&[2, 2, 2], &elements[..8]), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        assert!(points.rows(&[2, 2, 2, 1], &elements[..8]).is_empty());
        assert!(windows.rows(&[1, 2, 1, 4], &elements[..8]).is_empty());
        assert_eq!(Windows::of(&convolution(&[], 2), &[6, 2, 3]), None);
        let many = vec![1.0; 3 * 100 * 100];
        let points = Windows::of(&convolution(&[], 1), &[5, 3, 1, 1]).unwrap();
        assert_eq!(points.rows(&[1, 3, 100, 100], &many).len(), 3 * MOST_WINDOWS);
    }
}
