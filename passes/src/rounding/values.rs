//! The elements of some outputs of a weight, output by output.

use super::{RoundingError, Scheme};
use std::ops::Range;

/// Input rows of an `[inputs, outputs]` weight that are read before they are turned: a line of each output.
pub(super) const TURNED_ROWS: u64 = 16;

impl Scheme {
    /// The elements of these outputs as `[outputs][inputs]`. `read` fills a buffer with elements from a row-major index on.
    ///
    /// # Errors
    /// What `read` reports.
    pub fn values<E>(
        &self,
        outputs: &Range<u64>,
        mut read: impl FnMut(u64, &mut [f32]) -> Result<(), E>,
    ) -> Result<Vec<f32>, E> {
        let inputs = self.matrix.inputs as usize;
        let mut values = vec![0.0; (outputs.end - outputs.start) as usize * inputs];
        if self.matrix.output_axis == 0 {
            read(outputs.start * self.matrix.inputs, &mut values)?;
            return Ok(values);
        }
        let matrix = self.matrix;
        let mut next = outputs.start;
        while next < outputs.end {
            let (group, column) = (next / matrix.outputs, next % matrix.outputs);
            let columns = (matrix.outputs - column).min(outputs.end - next) as usize;
            let own = &mut values[(next - outputs.start) as usize * inputs..][..columns * inputs];
            let mut rows = vec![0.0; TURNED_ROWS.min(matrix.inputs) as usize * columns];
            for first in (0..matrix.inputs).step_by(TURNED_ROWS as usize) {
                let count = TURNED_ROWS.min(matrix.inputs - first) as usize;
                for (input, row) in rows.chunks_exact_mut(columns).take(count).enumerate() {
                    read((group * matrix.inputs + first + input as u64) * matrix.outputs + column, row)?;
                }
                for (output, line) in own.chunks_exact_mut(inputs).enumerate() {
                    let line = &mut line[first as usize..][..count];
                    line.iter_mut().enumerate().for_each(|(input, value)| *value = rows[input * columns + output]);
                }
            }
            next += columns as u64;
        }
        Ok(values)
    }

    /// Check that all of [`Scheme::values`] are finite.
    ///
    /// # Errors
    /// [`RoundingError::NotFinite`] for the first that is not.
    pub fn check_finite(&self, outputs: &Range<u64>, values: &[f32]) -> Result<(), RoundingError> {
        let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
        let matrix = self.matrix;
        let (output, input) = (outputs.start + at as u64 / matrix.inputs, at as u64 % matrix.inputs);
        let element = match matrix.output_axis {
            0 => output * matrix.inputs + input,
            _ => (output / matrix.outputs * matrix.inputs + input) * matrix.outputs + output % matrix.outputs,
        };
        Err(RoundingError::NotFinite { element, value: values[at] })
    }
}
