//! Constants that are made by rounding others.

use crate::ir::{Constant, ConstantData, ConstantError, ConstantId, Graph, Rounded, RoundedTo};
use crate::rounding::{Factor, Region, RoundingError, Scheme, narrow};
use half::{bf16, f16};
use ipuc_formats::dtype::DType;
use ipuc_formats::tensor::{Tensor, element_count};
use std::ops::Range;

/// Elements of f32, f16 or bf16 as f32.
pub fn widened(dtype: DType, bytes: &[u8], to: &mut [f32]) {
    let halves = || bytes.as_chunks::<2>().0.iter();
    match dtype {
        DType::F16 => to.iter_mut().zip(halves()).for_each(|(to, half)| *to = f16::from_le_bytes(*half).to_f32()),
        DType::BF16 => to.iter_mut().zip(halves()).for_each(|(to, half)| *to = bf16::from_le_bytes(*half).to_f32()),
        _ => to.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(to, word)| *to = f32::from_le_bytes(*word)),
    }
}

impl Graph {
    /// The constant as what it is rounded from and to, where it is.
    pub fn rounded(&self, id: ConstantId) -> Option<&Rounded> {
        match &self.constant(id).data {
            ConstantData::Rounded(rounded) => Some(rounded),
            ConstantData::Tensor(_)
            | ConstantData::Stored(_)
            | ConstantData::Recipe { .. }
            | ConstantData::Hashed(_) => None,
        }
    }

    /// Read elements of a weight that is rounded, from a row-major index on, as f32: out of its tensor where that is in
    /// memory, else out of its file.
    ///
    /// # Errors
    /// [`ConstantError`] where it cannot be read.
    pub fn read_weight(
        &self,
        id: ConstantId,
        in_memory: Option<&Tensor>,
        first: u64,
        to: &mut [f32],
    ) -> Result<(), ConstantError> {
        let constant = self.constant(id);
        let width = constant.dtype.bits() / 8;
        let start = first * width as u64;
        if let Some(tensor) = in_memory.or_else(|| constant.tensor()) {
            let bytes = &tensor.bytes()[start as usize..][..to.len() * width];
            widened(constant.dtype, bytes, to);
            return Ok(());
        }
        match &constant.data {
            ConstantData::Stored(stored) => {
                let mut bytes = vec![0; to.len() * width];
                self.read_stored(stored, start, &mut bytes)?;
                widened(constant.dtype, &bytes, to);
                Ok(())
            }
            ConstantData::Recipe { .. } if self.is_computed_in_parts(id) => {
                let mut bytes = vec![0; to.len() * width];
                self.read_computed(id, start, &mut bytes)?;
                widened(constant.dtype, &bytes, to);
                Ok(())
            }
            ConstantData::Tensor(_)
            | ConstantData::Recipe { .. }
            | ConstantData::Rounded(_)
            | ConstantData::Hashed(_) => {
                let tensor = self.load_constant(id)?;
                self.read_weight(id, Some(&tensor), first, to)
            }
        }
    }

    /// Whether [`Graph::read_weight`] reads only what is asked for, and not the whole weight.
    pub fn is_read_in_parts(&self, id: ConstantId) -> bool {
        match &self.constant(id).data {
            ConstantData::Tensor(_) => true,
            ConstantData::Stored(stored) => stored.tensor.is_direct(),
            ConstantData::Recipe { .. } => self.is_computed_in_parts(id),
            ConstantData::Rounded(_) | ConstantData::Hashed(_) => false,
        }
    }

    /// The error of a weight that cannot be rounded.
    pub fn rounding_error(&self, weight: ConstantId, error: RoundingError) -> ConstantError {
        ConstantError::Rounding { tensor: self.constant(weight).label().to_string(), error }
    }

    /// A rounded constant as a whole.
    pub(super) fn load_rounded(&self, rounded: &Rounded, constant: &Constant) -> Result<Tensor, ConstantError> {
        let weight = self.load_constant(rounded.weight)?;
        let refused = |error| self.rounding_error(rounded.weight, error);
        let count = element_count(&constant.shape).unwrap_or(0);
        let mut bytes = vec![0; constant.dtype.packed_bytes(count).unwrap_or(0)];
        match &rounded.to {
            RoundedTo::Narrow => {
                let mut elements = vec![0.0; count];
                self.read_weight(rounded.weight, Some(&weight), 0, &mut elements)?;
                narrow(&elements, constant.dtype, 0, &mut bytes).map_err(refused)?;
            }
            RoundedTo::Codes(scheme, part) => {
                let outputs = 0..scheme.matrix.groups * scheme.matrix.outputs;
                self.rounded_region(rounded, *scheme, outputs, Some(&weight))?.read(*part, 0, &mut bytes);
            }
        }
        let tensor = Tensor::from_bytes(constant.dtype, &constant.shape, &bytes);
        tensor.map_err(|error| ConstantError::Recipe {
            tensor: constant.label().to_string(),
            operator: "rounded",
            error: error.into(),
        })
    }

    /// Codes and parameters of some outputs of a rounded weight, which is in memory or read from its file.
    ///
    /// # Errors
    /// [`ConstantError`] where it cannot be read or rounded.
    pub fn rounded_region(
        &self,
        rounded: &Rounded,
        scheme: Scheme,
        outputs: Range<u64>,
        in_memory: Option<&Tensor>,
    ) -> Result<Region, ConstantError> {
        let weight = rounded.weight;
        let values = self.rounded_values(weight, scheme, &outputs, in_memory)?;
        let region = match rounded.factor {
            None => Region::of(scheme, outputs.start, &values),
            Some(id) => {
                let factor = self.load_constant(id)?;
                let elements = factor.elements::<f32>().map_err(|error| ConstantError::Recipe {
                    tensor: self.constant(id).label().to_string(),
                    operator: "rounded",
                    error: error.into(),
                })?;
                Region::compensated(scheme, outputs.start, values, Factor { elements })
            }
        };
        region.map_err(|error| self.rounding_error(weight, error))
    }

    /// The elements of some outputs of a weight as `[outputs][inputs]`.
    ///
    /// # Errors
    /// [`ConstantError`] where they cannot be read or are not finite.
    pub fn rounded_values(
        &self,
        weight: ConstantId,
        scheme: Scheme,
        outputs: &Range<u64>,
        in_memory: Option<&Tensor>,
    ) -> Result<Vec<f32>, ConstantError> {
        let read = |first: u64, to: &mut [f32]| self.read_weight(weight, in_memory, first, to);
        let values = scheme.values(outputs, read)?;
        scheme.check_finite(outputs, &values).map_err(|error| self.rounding_error(weight, error))?;
        Ok(values)
    }
}
