//! The inputs that are not zero.

use std::ops::Range;

use super::super::DynamicRows;
use crate::matrix::Matrix;

/// Inputs that are multiplied at a time.
pub(super) const AT_ONCE: usize = 8;

/// The inputs whose activation is not zero in some of a few rows, segment by segment.
#[derive(Debug)]
pub(super) struct Active {
    rows: usize,
    /// How many there are.
    count: usize,
    /// Groups of inputs in order; a segment's last group is filled up with its last input.
    inputs: Vec<[u32; AT_ONCE]>,
    /// The activations of these, `[rows][groups]`: 0 for what is filled up.
    pub codes: Vec<[[i8; 4]; AT_ONCE / 4]>,
    /// As `codes`.
    pub floats: Vec<[f32; AT_ONCE]>,
    /// The groups of each segment that has any, and its first input.
    segments: Vec<(usize, Range<usize>)>,
}

impl Active {
    /// The inputs `inputs` of rows of floats, in segments that begin at multiples of `segment`.
    pub(super) fn of_floats(x: Matrix<'_>, rows: Range<usize>, inputs: Range<usize>, segment: usize) -> Self {
        let values: Vec<&[f32]> = rows.map(|row| x.row(row)).collect();
        let mut active = Self::find(values.len(), inputs, segment, |input| {
            // NaN is not zero.
            values.iter().any(|row| row[input] != 0.0)
        });
        let padded = active.padded();
        for row in &values {
            let groups = active.inputs.iter().zip(&padded);
            active.floats.extend(groups.map(|(inputs, &count)| {
                let mut group = [0.0; AT_ONCE];
                let values = inputs.iter().take(count).map(|&input| row[input as usize]);
                group.iter_mut().zip(values).for_each(|(place, value)| *place = value);
                group
            }));
        }
        active
    }

    /// As [`Active::of_floats`] for rows of codes.
    pub(super) fn of_codes(x: &DynamicRows, rows: Range<usize>, inputs: Range<usize>, segment: usize) -> Self {
        let values: Vec<&[i8]> = rows.map(|row| x.codes(row)).collect();
        let mut active = match values.as_slice() {
            [row] => Self::find(1, inputs, segment, |input| row[input] != 0),
            rows => Self::find(rows.len(), inputs, segment, |input| rows.iter().any(|row| row[input] != 0)),
        };
        let padded = active.padded();
        for row in &values {
            let groups = active.inputs.iter().zip(&padded);
            active.codes.extend(groups.map(|(inputs, &count)| {
                let mut group = [[0; 4]; AT_ONCE / 4];
                let values = inputs.iter().take(count).map(|&input| row[input as usize]);
                group.as_flattened_mut().iter_mut().zip(values).for_each(|(place, value)| *place = value);
                group
            }));
        }
        active
    }

    fn find(rows: usize, inputs: Range<usize>, segment: usize, is_active: impl Fn(usize) -> bool) -> Self {
        let mut active = Self {
            rows,
            count: 0,
            inputs: Vec::with_capacity(inputs.len().div_ceil(AT_ONCE)),
            codes: Vec::new(),
            floats: Vec::new(),
            segments: Vec::new(),
        };
        let mut found = vec![0u32; inputs.len().min(segment) + 1];
        let mut first = inputs.start;
        while first < inputs.end {
            let end = inputs.end.min((first / segment + 1) * segment);
            let mut count = 0;
            for input in first..end {
                // Without a branch: zeros at random are not foreseen.
                found[count] = input as u32;
                count += usize::from(is_active(input));
            }
            let begin = active.inputs.len();
            for group in found[..count].chunks(AT_ONCE) {
                let last = group.last().copied().unwrap_or_default();
                let mut filled = [last; AT_ONCE];
                filled[..group.len()].copy_from_slice(group);
                active.inputs.push(filled);
            }
            if count > 0 {
                active.segments.push((first, begin..active.inputs.len()));
                active.count += count;
            }
            first = end;
        }
        active
    }

    /// How many inputs of each group are not filled up.
    fn padded(&self) -> Vec<usize> {
        let count = |inputs: &[u32; AT_ONCE]| {
            let last = inputs[AT_ONCE - 1];
            1 + inputs.iter().take_while(|&&input| input != last).count()
        };
        self.inputs.iter().map(count).collect()
    }

    /// How many inputs are not zero.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// The segments that have any: the first input of each, and its groups.
    pub(super) fn segments(&self) -> &[(usize, Range<usize>)] {
        &self.segments
    }

    pub(super) fn groups(&self) -> &[[u32; AT_ONCE]] {
        &self.inputs
    }
}
