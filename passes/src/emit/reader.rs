//! What a weight is packed from: its tensor in memory or in a file, and its planes.

use crate::emit::sources::SourceHash;
use crate::emit::work::Work;
use crate::ir::{ConstantData, ConstantError, ConstantId, Graph, RoundedTo};
use crate::rounding::{Part, Region, narrow};
use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::{EncodingError, PlaneRole, WeightReader};
use ipuc_formats::read_at::ReadAt;
use ipuc_formats::tensor::{Tensor, element_count};
use std::io;

/// Reads the elements and planes of one weight.
pub(super) struct Reader<'a> {
    pub(super) graph: &'a Graph,
    /// The constant whose bytes are the elements.
    pub(super) constant: ConstantId,
    /// The type of these, which may be another than the constant has.
    pub(super) dtype: DType,
    /// Its tensor, where that is in memory.
    pub(super) in_memory: Option<&'a Tensor>,
    /// What its part is rounded to, where it is rounded to codes while it is packed.
    pub(super) rounded: Option<Region>,
    /// Roles of the planes.
    pub(super) roles: Vec<PlaneRole>,
    /// The planes in canonical order.
    pub(super) planes: &'a [Tensor],
    /// The hash of the tensor, where reading gives it.
    pub(super) hash: Option<&'a mut SourceHash>,
    /// Why the file could not be read.
    pub(super) failure: Option<ConstantError>,
}

impl WeightReader for Reader<'_> {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn elements(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        if let Some(region) = &self.rounded {
            region.read(Part::Codes, offset, to);
            return Ok(());
        }
        if let Some(rounded) = self.graph.rounded(self.constant)
            && rounded.to == RoundedTo::Narrow
        {
            let narrowed = self.narrowed(rounded.weight, offset / 2, to);
            return narrowed.map_err(|error| {
                self.failure = Some(error);
                io::Error::from(io::ErrorKind::Other)
            });
        }
        if let Some(tensor) = self.in_memory {
            return tensor.bytes().read_exact_at(offset, to);
        }
        match &self.graph.constant(self.constant).data {
            ConstantData::Stored(stored) => {
                self.graph.read_stored(stored, offset, to).map_err(|error| {
                    self.failure = Some(error);
                    io::Error::from(io::ErrorKind::Other)
                })?;
                if let Some(hash) = &mut self.hash {
                    hash.see(offset, to);
                }
                Ok(())
            }
            ConstantData::Recipe { .. } => self.graph.read_computed(self.constant, offset, to).map_err(|error| {
                self.failure = Some(error);
                io::Error::from(io::ErrorKind::Other)
            }),
            ConstantData::Tensor(_) | ConstantData::Rounded(_) | ConstantData::Hashed(_) => {
                Err(io::ErrorKind::NotFound.into())
            }
        }
    }

    fn plane(&mut self, plane: usize, offset: u64, to: &mut [u8]) -> io::Result<()> {
        if let (Some(region), Some(role)) = (&self.rounded, self.roles.get(plane)) {
            let part = match role {
                PlaneRole::Scale if region.has_output_scales() && !self.roles[..plane].contains(role) => {
                    Part::OutputScales
                }
                PlaneRole::Scale => Part::Scales,
                PlaneRole::ZeroPoint => Part::ZeroPoints,
                PlaneRole::Sum => return Err(io::ErrorKind::NotFound.into()),
            };
            region.read(part, offset, to);
            return Ok(());
        }
        self.planes.get(plane).ok_or(io::ErrorKind::NotFound)?.bytes().read_exact_at(offset, to)
    }
}

impl Reader<'_> {
    /// Elements of a weight from `first` on, rounded to narrower floats.
    fn narrowed(&self, weight: ConstantId, first: u64, to: &mut [u8]) -> Result<(), ConstantError> {
        let mut elements = vec![0.0; to.len() / 2];
        self.graph.read_weight(weight, self.in_memory, first, &mut elements)?;
        narrow(&elements, self.dtype, first, to).map_err(|error| self.graph.rounding_error(weight, error))
    }
}

/// Why planes cannot be made.
pub(super) enum PlaneError {
    Constant(ConstantError),
    Encoding(EncodingError),
}

/// The planes of a coded weight in canonical order: one factor for all elements is repeated for each output, factors of
/// outputs for each matrix.
pub(super) fn planes(work: &Work, weight: usize) -> Result<Vec<Tensor>, PlaneError> {
    let record = &work.manifest.weights[weight];
    let encoding = record.encoding.encoding();
    let Some(matrices) = encoding.matrices(record.logical()) else { return Ok(Vec::new()) };
    let mut planes = Vec::new();
    for (plane, &id) in encoding.planes().iter().zip(work.planes(weight)) {
        let given = work.graph.load_constant(id).map_err(PlaneError::Constant)?;
        let elements = matrices.groups.saturating_mul(matrices.outputs).saturating_mul(plane.blocks(matrices.inputs));
        let elements = usize::try_from(elements).unwrap_or(usize::MAX);
        let count = element_count(given.shape()).unwrap_or(0).max(1);
        let spread = if count == elements {
            given.reshaped(&[elements])
        } else {
            given.select(&[elements], (0..elements).map(|element| Some(element % count)))
        };
        planes.push(spread.map_err(|error| PlaneError::Encoding(error.into()))?);
    }
    Ok(planes)
}
