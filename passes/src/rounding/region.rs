//! The codes, scales and zero points of some outputs of a weight.

use super::block::{Fit, Parameters};
use super::grid::{Codes, output_scale, write_scale};
use super::values::TURNED_ROWS;
use super::{Part, RoundingError, Scheme};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::PANEL_OUTPUTS;
use ipuc_formats::narrow;
use std::ops::Range;

/// Consecutive outputs of a weight as codes; outputs of all its matrices are counted on.
#[derive(Debug, Clone, PartialEq)]
pub struct Region {
    scheme: Scheme,
    first_output: u64,
    /// `[outputs][inputs]`, one a byte.
    codes: Vec<u8>,
    /// `[outputs][blocks]`.
    scales: Vec<f32>,
    /// As the scales, one a byte; zeros where codes have none.
    zero_points: Vec<u8>,
    /// `[outputs]`: what the scales are multiplied by; 1 where outputs have none.
    output_scales: Vec<f32>,
}

impl Region {
    /// Round `values: [outputs][inputs]`, of which the first is that of this output.
    ///
    /// # Errors
    /// [`RoundingError::Scale`] where a scale is too large.
    pub fn of(scheme: Scheme, first_output: u64, values: &[f32]) -> Result<Region, RoundingError> {
        let inputs = scheme.matrix.inputs as usize;
        let mut region = Region::empty(scheme, first_output);
        let (mut fit, codes) = (Fit::default(), Codes::of(scheme.code, scheme.scale));
        for row in values.chunks_exact(inputs.max(1)) {
            let output_scale = if scheme.has_output_scales() { output_scale(row, codes) } else { 1.0 };
            region.output_scales.push(output_scale);
            for block in row.chunks(scheme.block_inputs() as usize) {
                let parameters = fit.parameters(block, None, codes, output_scale)?;
                region.push(block, parameters, codes, output_scale);
            }
        }
        Ok(region)
    }

    /// No output yet.
    pub(super) fn empty(scheme: Scheme, first_output: u64) -> Region {
        let (codes, zero_points) = (Vec::new(), Vec::new());
        Region { scheme, first_output, codes, scales: Vec::new(), zero_points, output_scales: Vec::new() }
    }

    /// Whether scales are multiplied by one of their output.
    pub fn has_output_scales(&self) -> bool {
        self.scheme.has_output_scales()
    }

    /// Add outputs: codes `[outputs][inputs]`, parameters `[outputs][blocks]`, and what these outputs' scales are multiplied by.
    pub(super) fn extend(&mut self, codes: &[u8], parameters: &[Parameters], output_scales: &[f32]) {
        self.output_scales.extend(output_scales);
        self.codes.extend(codes);
        self.scales.extend(parameters.iter().map(|parameters| parameters.scale));
        self.zero_points.extend(parameters.iter().map(|parameters| parameters.zero_point as u8));
    }

    /// Bytes that rounding so many outputs takes.
    pub fn memory_bytes(scheme: &Scheme, outputs: u64) -> u64 {
        let elements = outputs.saturating_mul(scheme.matrix.inputs);
        let turned = outputs * TURNED_ROWS * 4;
        elements.saturating_mul(5).saturating_add(outputs * scheme.blocks() * 5).saturating_add(turned)
    }

    /// The outputs of panels, which begin anew with each matrix.
    pub fn outputs_of_panels(scheme: &Scheme, panels: Range<u64>) -> Range<u64> {
        let (outputs, width) = (scheme.matrix.outputs, PANEL_OUTPUTS as u64);
        let per_group = outputs.div_ceil(width).max(1);
        let first = |panel: u64| panel / per_group * outputs + (panel % per_group * width).min(outputs);
        first(panels.start)..first(panels.end)
    }

    /// What the codes stand for, `[outputs][inputs]`.
    pub fn decoded(&self) -> Vec<f32> {
        let inputs = self.scheme.matrix.inputs.max(1) as usize;
        let (block, blocks) = (self.scheme.block_inputs().max(1) as usize, self.scheme.blocks() as usize);
        let signed = self.scheme.code.is_signed_integer();
        let floats = narrow::values(self.scheme.code);
        // Integers are kept as bytes of two's complement.
        let number = |code: u8| match floats {
            Some(values) => values[usize::from(code)],
            None if signed => f32::from(code as i8),
            None => f32::from(code),
        };
        let value = |(index, &code): (usize, &u8)| {
            let at = index / inputs * blocks + index % inputs / block;
            let scale = self.output_scales[index / inputs] * self.scales[at];
            (number(code) - f32::from(self.zero_points[at])) * scale
        };
        self.codes.iter().enumerate().map(value).collect()
    }

    /// The sum of the squared errors of `values`, which it was made of.
    pub fn squared_error(&self, values: &[f32]) -> f64 {
        self.decoded().iter().zip(values).map(|(decoded, value)| f64::from(decoded - value).powi(2)).sum()
    }

    /// The scales of all blocks.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    fn push(&mut self, block: &[f32], parameters: Parameters, codes: Codes, output_scale: f32) {
        let Parameters { scale, zero_point } = parameters;
        self.scales.push(scale);
        self.zero_points.push(zero_point as u8);
        let scale = output_scale * scale;
        if scale == 0.0 {
            self.codes.resize(self.codes.len() + block.len(), zero_point as u8);
            return;
        }
        // Quotients, not products with a reciprocal: an element goes to the nearest code.
        let code = |value: &f32| codes.bits_of(codes.nearest(value / scale, zero_point), zero_point);
        self.codes.extend(block.iter().map(code));
    }

    /// Canonical bytes of a part from byte `offset` on. What belongs to other outputs is zero.
    pub fn read(&self, part: Part, offset: u64, to: &mut [u8]) {
        match part {
            Part::Codes => self.read_codes(&self.codes, self.scheme.matrix.inputs, offset, to),
            Part::ZeroPoints => self.read_codes(&self.zero_points, self.scheme.blocks(), offset, to),
            Part::Scales => self.read_scales(&self.scales, self.scheme.blocks(), self.scheme.scale, offset, to),
            Part::OutputScales => self.read_scales(&self.output_scales, 1, DType::F32, offset, to),
        }
    }

    fn read_codes(&self, codes: &[u8], columns: u64, offset: u64, to: &mut [u8]) {
        let bits = self.scheme.code.bits();
        let (each, mask) = (8 / bits, (255u16 >> (8 - bits)) as u8);
        let mut places = Places::new(self, columns, offset * each as u64);
        for byte in to {
            *byte = 0;
            for index in 0..each {
                let code = places.next().and_then(|place| codes.get(place)).copied().unwrap_or(0);
                *byte |= (code & mask) << (index * bits);
            }
        }
    }

    fn read_scales(&self, scales: &[f32], columns: u64, dtype: DType, offset: u64, to: &mut [u8]) {
        let width = dtype.bits() / 8;
        let mut places = Places::new(self, columns, offset / width as u64);
        for bytes in to.chunks_exact_mut(width) {
            let scale = places.next().and_then(|place| scales.get(place)).copied().unwrap_or(0.0);
            write_scale(scale, dtype, bytes);
        }
    }
}

/// Where consecutive canonical elements of a tensor with `columns` elements an output lie in a region.
struct Places<'a> {
    region: &'a Region,
    columns: u64,
    /// Index of the matrix, and of the output in it.
    group: u64,
    output: u64,
    column: u64,
}

impl<'a> Places<'a> {
    fn new(region: &'a Region, columns: u64, element: u64) -> Self {
        let matrix = &region.scheme.matrix;
        let (outputs, columns) = (matrix.outputs.max(1), columns.max(1));
        let (group, within) = (element / (outputs * columns), element % (outputs * columns));
        let (output, column) = match matrix.output_axis {
            0 => (within / columns, within % columns),
            _ => (within % outputs, within / outputs),
        };
        Places { region, columns, group, output, column }
    }

    /// The place of the next element; `None` where it is not in the region.
    fn next(&mut self) -> Option<usize> {
        let matrix = &self.region.scheme.matrix;
        let output = self.group * matrix.outputs + self.output;
        let place = output.checked_sub(self.region.first_output).map(|output| output * self.columns + self.column);
        let (inner, inner_end, outer, outer_end) = match matrix.output_axis {
            0 => (&mut self.column, self.columns, &mut self.output, matrix.outputs),
            _ => (&mut self.output, matrix.outputs, &mut self.column, self.columns),
        };
        *inner += 1;
        if *inner == inner_end {
            (*inner, *outer) = (0, *outer + 1);
            if *outer == outer_end {
                (*outer, self.group) = (0, self.group + 1);
            }
        }
        place.and_then(|place| usize::try_from(place).ok())
    }
}
