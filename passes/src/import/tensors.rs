//! Tensors of a model become constants: small ones in memory, large ones where they are.

use crate::import::ImportError;
use crate::import::importer::Importer;
use crate::import::lower_error::LowerError;
use crate::ir::{Constant, ConstantData, Operand, Origin, Source, Stored};
use ipuc_formats::fact::integers;
use ipuc_formats::onnx::schema::{SparseTensorProto, TensorProto};
use ipuc_formats::onnx::{TensorData, TensorSource};
use ipuc_formats::tensor::filled;
use ipuc_formats::tensor::{Tensor, element_count};
use std::sync::Arc;

/// Stored tensors up to this size are read at import: shapes, axes, scalars.
const READ_AT_IMPORT_BYTES: u64 = 1 << 10;

fn unreadable(error: impl std::fmt::Display) -> LowerError {
    LowerError::Weight(error.to_string())
}

/// Where a tensor's elements lie in the file of this number.
fn origin(tensor: &TensorSource, source: u32) -> Option<Origin> {
    tensor.source_offset().map(|offset| Origin { source, offset, length: tensor.length_bytes() })
}

impl Importer<'_> {
    /// A tensor as a constant; a large one stays in its file.
    pub(crate) fn import_tensor(&mut self, proto: &TensorProto) -> Result<Operand, LowerError> {
        let constant = self.constant_of(proto)?;
        Ok(Operand::Constant(self.graph.add_constant(constant)))
    }

    fn constant_of(&mut self, proto: &TensorProto) -> Result<Constant, LowerError> {
        let tensor = TensorSource::of(proto).map_err(unreadable)?;
        let source = match tensor.data() {
            TensorData::Inline(inline) => {
                let origin = origin(&tensor, self.model_source);
                return Ok(Constant { origin, ..Constant::of(inline.clone(), proto.name.as_deref()) });
            }
            TensorData::InFile { .. } => self.model_source,
            TensorData::External(external) => self.external_source(&external.location, &tensor)?,
        };
        let name: Option<Arc<str>> = proto.name.as_deref().map(Arc::from);
        let bytes = self.graph.sources[source as usize].bytes.clone();
        if tensor.length_bytes() <= READ_AT_IMPORT_BYTES {
            let loaded = tensor.load(&*bytes).map_err(unreadable)?;
            let origin = origin(&tensor, source);
            return Ok(Constant { origin, ..Constant::of(loaded, proto.name.as_deref()) });
        }
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        let data = ConstantData::Stored(Stored { source, tensor: Arc::new(tensor) });
        Ok(Constant { name, dtype, shape, data, origin: None, encoding: None, zeros: None })
    }

    fn external_source(&mut self, location: &str, tensor: &TensorSource) -> Result<u32, LowerError> {
        // Opening checks each tensor, though the file is open already.
        let bytes = self.files.open(tensor).map_err(unreadable)?;
        if let Some(&source) = self.external_sources.get(location) {
            return Ok(source);
        }
        let source = self.graph.sources.len() as u32;
        self.graph.sources.push(Source { name: location.to_string(), bytes });
        self.external_sources.insert(location.to_string(), source);
        Ok(source)
    }

    /// A tensor, read now.
    pub(crate) fn load_tensor(&mut self, proto: &TensorProto) -> Result<Tensor, LowerError> {
        let constant = self.constant_of(proto)?;
        let id = self.graph.add_constant(constant);
        let loaded = self.graph.load_constant(id).map_err(unreadable);
        self.graph.constants.pop();
        loaded
    }

    /// A sparse tensor as a dense constant.
    pub(crate) fn import_sparse_tensor(&mut self, sparse: &SparseTensorProto) -> Result<Operand, LowerError> {
        let dense = self.densify(sparse)?;
        let name = sparse.values.as_ref().and_then(|values| values.name.as_deref());
        Ok(Operand::Constant(self.graph.add_constant(Constant::of(dense, name))))
    }

    /// `values: [nonzeros]`, `indices: [nonzeros]` (flat) or `[nonzeros, rank]`, both sorted by position.
    fn densify(&mut self, sparse: &SparseTensorProto) -> Result<Tensor, LowerError> {
        let malformed = || LowerError::Weight("a sparse tensor has malformed indices".to_string());
        let values = self.load_tensor(sparse.values.as_ref().ok_or_else(malformed)?)?;
        let indices = self.load_tensor(sparse.indices.as_ref().ok_or_else(malformed)?)?;
        let shape: Vec<usize> =
            sparse.dims.iter().map(|&dim| usize::try_from(dim).map_err(|_| malformed())).collect::<Result<_, _>>()?;
        let count = element_count(&shape).ok_or_else(malformed)?;
        let flat = integers(&indices).ok_or_else(malformed)?;
        let positions: Vec<usize> = match indices.shape() {
            [nonzeros] if *nonzeros == values.count() => {
                flat.iter().map(|&index| usize::try_from(index).map_err(|_| malformed())).collect::<Result<_, _>>()?
            }
            [nonzeros, rank] if *nonzeros == values.count() && *rank == shape.len() => flat
                .chunks(*rank)
                .map(|index| flat_position(index, &shape).ok_or_else(malformed))
                .collect::<Result<_, _>>()?,
            _ => return Err(malformed()),
        };
        let dense = Tensor::zeros(values.dtype(), &shape)?;
        let mut chosen: Vec<Option<usize>> = filled(None, count)?;
        for (nonzero, &position) in positions.iter().enumerate() {
            *chosen.get_mut(position).ok_or_else(malformed)? = Some(nonzero);
        }
        Ok(values.select(dense.shape(), chosen.into_iter())?)
    }

    pub(crate) fn import_initializer(&mut self, proto: &TensorProto) -> Result<Operand, ImportError> {
        let name = proto.name.clone().unwrap_or_default();
        self.import_tensor(proto).map_err(|error| ImportError::Weight { name, reason: error.to_string() })
    }

    pub(crate) fn import_sparse_initializer(
        &mut self,
        sparse: &SparseTensorProto,
    ) -> Result<(String, Operand), ImportError> {
        let name = sparse.values.as_ref().and_then(|values| values.name.clone()).unwrap_or_default();
        match self.import_sparse_tensor(sparse) {
            Ok(operand) => Ok((name, operand)),
            Err(error) => Err(ImportError::Weight { name, reason: error.to_string() }),
        }
    }
}

fn flat_position(index: &[i64], shape: &[usize]) -> Option<usize> {
    index.iter().zip(shape).try_fold(0usize, |flat, (&at, &extent)| {
        let at = usize::try_from(at).ok().filter(|&at| at < extent)?;
        flat.checked_mul(extent)?.checked_add(at)
    })
}
