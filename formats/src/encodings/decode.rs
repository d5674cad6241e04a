//! Stored bytes in, the tensor that steps see out.

use super::convert::widen;
use super::encoding::{Encoding, Pick};
use super::error::EncodingError;
use super::logical::{Logical, packed_bytes};
use super::part::PartRange;
use super::plane::{Plane, PlaneRole};
use super::record::WeightRecord;
use super::transfer::Elements;
use crate::dtype::DType;
use crate::ops::scalar::scalars;
use crate::ops::{WeightMatrix, code_difference, dequantized, scale_product};
use crate::tensor::{Tensor, unpack_codes};
use half::{bf16, f16};
use std::ops::Deref;

impl WeightRecord {
    /// Elements and planes from the stored bytes of the parts: `part` is called for each index in order.
    ///
    /// # Errors
    /// [`EncodingError`] where record, parts and bytes do not agree, and what `part` gives.
    pub fn unpack<B: Deref<Target = [u8]>, E: From<EncodingError>>(
        &self,
        mut part: impl FnMut(usize) -> Result<B, E>,
    ) -> Result<Elements, E> {
        self.check()?;
        let encoding = self.encoding.encoding();
        let mut elements = empty(encoding, self.logical())?;
        for (index, record) in self.parts.iter().enumerate() {
            let bytes = part(index)?;
            unpack_part(encoding, self.logical(), record.range(), &bytes, &mut elements)?;
        }
        Ok(elements)
    }

    /// The tensor that steps see, from the stored bytes of the parts: `part` is called for each index in order.
    ///
    /// # Errors
    /// [`EncodingError`] where record, parts and bytes do not agree, and what `part` gives.
    pub fn decode<B: Deref<Target = [u8]>, E: From<EncodingError>>(
        &self,
        part: impl FnMut(usize) -> Result<B, E>,
    ) -> Result<Tensor, E> {
        let elements = self.unpack(part)?;
        Ok(value(self.encoding.encoding(), self.logical(), elements)?)
    }

    /// Rows (along axis 0) as steps see them, one behind the other: `units` gives the stored bytes of the units that hold the
    /// row at a place of `rows`.
    ///
    /// # Errors
    /// [`EncodingError`] where sizes do not agree or do not fit in memory, and what `units` gives.
    pub fn decode_rows<B: Deref<Target = [u8]>, E: From<EncodingError>>(
        &self,
        rows: &[u64],
        mut units: impl FnMut(usize) -> Result<B, E>,
    ) -> Result<Vec<u8>, E> {
        let weight = self.logical();
        let (_, row_elements) = weight.rows()?;
        let width = packed_bytes(self.dtype, row_elements).and_then(|bytes| usize::try_from(bytes).ok());
        let width = width.ok_or_else(|| weight.too_large())?;
        let length = width.checked_mul(rows.len()).ok_or_else(|| weight.too_large())?;
        let mut canonical = Vec::new();
        canonical.try_reserve_exact(length).map_err(|_| weight.too_large())?;
        canonical.resize(length, 0);
        for (at, target) in canonical.chunks_exact_mut(width.max(1)).enumerate() {
            self.decode_row(rows[at], &units(at)?, target)?;
        }
        Ok(canonical)
    }

    /// Row `row` (along axis 0) as steps see it, into `canonical`, from the stored bytes of the units that hold it (see
    /// [`WeightRecord::locate`]).
    ///
    /// # Errors
    /// [`EncodingError`] where sizes do not agree.
    pub fn decode_row(&self, row: u64, units: &[u8], canonical: &mut [u8]) -> Result<(), EncodingError> {
        let weight = self.logical();
        let (_, row_elements) = weight.rows()?;
        let expected = packed_bytes(self.dtype, row_elements).ok_or_else(|| weight.too_large())?;
        if expected != canonical.len() as u64 {
            return Err(EncodingError::Size { expected, found: canonical.len() as u64 });
        }
        self.encoding.locate(weight, Pick::Row(row))?;
        // The units are a small weight of their own; of a panel only the row is read.
        let own = self.encoding.as_panels().map(|panels| panels.of_one_output(row % panels.outputs));
        let coded = own.as_ref().map_or_else(|| self.encoding.clone(), |(panels, _)| panels.clone().into());
        let shape = [1, row_elements];
        let (encoding, small) = (coded.encoding(), Logical { dtype: self.dtype, shape: &shape });
        let mut elements = empty(encoding, small)?;
        let units_of_row = encoding.units(small)?;
        let all = units_of_row.run(0, units_of_row.count);
        match &own {
            Some((panels, lane)) => {
                check_size(encoding, small, all, units)?;
                panels.unpack_lane(all, *lane, units, &mut elements);
            }
            None => unpack_part(encoding, small, all, units, &mut elements)?,
        }
        canonical.copy_from_slice(value(encoding, small, elements)?.bytes());
        Ok(())
    }
}

fn empty(encoding: &dyn Encoding, weight: Logical<'_>) -> Result<Elements, EncodingError> {
    if encoding.dtype() == DType::String {
        // Without a part there are no strings; with one it brings them all.
        return Ok(Elements { stored: Tensor::from_strings(&[0], Vec::new())?, planes: Vec::new() });
    }
    let stored = Tensor::zeros(encoding.dtype(), &weight.extents()?)?;
    let mut planes = Vec::new();
    for plane in encoding.planes() {
        let matrices = encoding.matrices(weight).ok_or_else(|| weight.too_large())?;
        planes.push(Tensor::zeros(plane.dtype, &plane_shape(plane, matrices).ok_or_else(|| weight.too_large())?)?);
    }
    Ok(Elements { stored, planes })
}

/// The canonical shape of a plane (see [`Plane`]); `None` where it does not fit in memory addresses.
fn plane_shape(plane: &Plane, matrices: WeightMatrix) -> Option<Vec<usize>> {
    let WeightMatrix { groups, inputs, outputs, output_axis } = matrices;
    let extents = match (plane.block, output_axis) {
        (0, _) => vec![groups, outputs],
        (_, 0) => vec![groups, outputs, plane.blocks(inputs)],
        (_, _) => vec![groups, plane.blocks(inputs), outputs],
    };
    extents.into_iter().map(|extent| usize::try_from(extent).ok()).collect()
}

fn unpack_part(
    encoding: &dyn Encoding,
    weight: Logical<'_>,
    part: PartRange,
    bytes: &[u8],
    to: &mut Elements,
) -> Result<(), EncodingError> {
    check_size(encoding, weight, part, bytes)?;
    encoding.unpack(weight, part, bytes, to)
}

fn check_size(
    encoding: &dyn Encoding,
    weight: Logical<'_>,
    part: PartRange,
    bytes: &[u8],
) -> Result<(), EncodingError> {
    match encoding.bytes(weight, part)? {
        Some(expected) if expected != bytes.len() as u64 => {
            Err(EncodingError::Size { expected, found: bytes.len() as u64 })
        }
        Some(_) | None => Ok(()),
    }
}

/// The elements as steps see them.
fn value(encoding: &dyn Encoding, weight: Logical<'_>, elements: Elements) -> Result<Tensor, EncodingError> {
    if let Some(matrices) = encoding.matrices(weight) {
        return decode_codes(encoding.planes(), matrices, weight, &elements);
    }
    let stored = elements.stored;
    if stored.dtype() == weight.dtype {
        // Strings that no part brought.
        let shape = weight.extents()?;
        return if stored.shape() == shape { Ok(stored) } else { Ok(stored.reshaped(&shape)?) };
    }
    let mut wide = Tensor::zeros(weight.dtype, stored.shape())?;
    widen(stored.bytes(), stored.dtype(), wide.bytes_mut());
    Ok(wide)
}

/// The values of one plane.
struct Parameters {
    values: Vec<f32>,
    /// Inputs that share one; all of them where 0.
    block: usize,
    blocks: usize,
}

impl Parameters {
    fn new(plane: &Plane, tensor: &Tensor, inputs: u64) -> Result<Parameters, EncodingError> {
        let values = reals(tensor)?.into_iter().map(|value| value as f32).collect();
        Ok(Parameters { values, block: plane.block as usize, blocks: plane.blocks(inputs) as usize })
    }

    /// Of an element.
    #[inline]
    fn at(&self, matrices: &WeightMatrix, group: usize, output: usize, input: usize) -> f32 {
        let (outputs, block) = (matrices.outputs as usize, input.checked_div(self.block).unwrap_or(0));
        self.values[match matrices.output_axis {
            0 => (group * outputs + output) * self.blocks + block,
            _ => (group * self.blocks + block) * outputs + output,
        }]
    }
}

fn reals(tensor: &Tensor) -> Result<Vec<f64>, EncodingError> {
    let failure = |error| EncodingError::Unsupported(format!("{error}"));
    Ok(scalars(tensor).map_err(failure)?.into_iter().map(|value| value.to_f64()).collect())
}

/// Codes as the numbers that they are.
fn numbers(codes: &Tensor) -> Result<Vec<f64>, EncodingError> {
    let bits = codes.dtype().bits();
    match codes.dtype() {
        DType::I8 => Ok(codes.bytes().iter().map(|&code| f64::from(code as i8)).collect()),
        DType::U8 => Ok(codes.bytes().iter().map(|&code| f64::from(code)).collect()),
        DType::I4 | DType::I2 => {
            let unused = 8 - bits;
            let number = |code: u8| f64::from((code << unused) as i8 >> unused);
            Ok(unpack_codes(codes.bytes(), bits, codes.count()).into_iter().map(number).collect())
        }
        DType::U4 | DType::U2 => {
            Ok(unpack_codes(codes.bytes(), bits, codes.count()).into_iter().map(f64::from).collect())
        }
        _ => reals(codes),
    }
}

/// `(code - zero) * scale` for every code, rounded to the type of the weight.
fn decode_codes(
    planes: &[Plane],
    matrices: WeightMatrix,
    weight: Logical<'_>,
    elements: &Elements,
) -> Result<Tensor, EncodingError> {
    let of_role = |role| planes.iter().zip(&elements.planes).filter(move |(plane, _)| plane.role == role);
    let parameters = |(plane, tensor): (&Plane, &Tensor)| Parameters::new(plane, tensor, matrices.inputs);
    let mut scales = of_role(PlaneRole::Scale).map(parameters).collect::<Result<Vec<_>, _>>()?;
    scales.sort_by_key(|scale| std::cmp::Reverse(if scale.block == 0 { usize::MAX } else { scale.block }));
    let zero = of_role(PlaneRole::ZeroPoint).map(parameters).next().transpose()?;
    let [groups, outputs, inputs] = [matrices.groups, matrices.outputs, matrices.inputs].map(|extent| extent as usize);
    let codes = numbers(&elements.stored)?;
    let mut values = Vec::with_capacity(codes.len());
    let parameters = |group, output, input| {
        let zero = zero.as_ref().map_or(0.0, |zero| f64::from(zero.at(&matrices, group, output, input)));
        (zero, scale_product(scales.iter().map(|scale| scale.at(&matrices, group, output, input))))
    };
    let mut rest = codes.as_slice();
    // The next codes, which share parameters.
    let mut next = |count: usize, (zero, scale): (f64, f32)| {
        let (own, behind) = rest.split_at(count.min(rest.len()));
        rest = behind;
        values.extend(own.iter().map(|&code| dequantized(code_difference(code, zero), scale)));
    };
    let end_of_block = |input: usize| {
        let blocks = scales.iter().chain(&zero).map(|plane| plane.block).filter(|block| *block > 0);
        blocks.map(|block| (input / block + 1) * block).fold(inputs, usize::min)
    };
    for group in 0..groups {
        match matrices.output_axis {
            0 => (0..outputs).for_each(|output| {
                let mut input = 0;
                while input < inputs {
                    let end = end_of_block(input);
                    next(end - input, parameters(group, output, input));
                    input = end;
                }
            }),
            _ => {
                (0..inputs).for_each(|input| (0..outputs).for_each(|output| next(1, parameters(group, output, input))))
            }
        }
    }
    let shape = weight.extents()?;
    Ok(match weight.dtype {
        DType::F16 => Tensor::from_elements(&shape, &values.into_iter().map(f16::from_f32).collect::<Vec<_>>())?,
        DType::BF16 => Tensor::from_elements(&shape, &values.into_iter().map(bf16::from_f32).collect::<Vec<_>>())?,
        _ => Tensor::from_elements(&shape, &values)?,
    })
}
