//! Weights that are wholly in memory.

use crate::error::OpenError;
use crate::steps::{KernelError, PartBytes, PartSource};
use aligned_vec::{AVec, ConstAlign};
use ipuc_formats::encodings::{Layout, unpack};
use ipuc_formats::model::{Manifest, WeightRecord};
use ipuc_formats::onnx::ReadAt;
use ipuc_formats::tensor::Tensor;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

type ChunkBytes = AVec<u8, ConstAlign<4096>>;

/// Every chunk of a file, read once and checked.
pub(crate) struct Resident {
    chunks: Vec<Arc<ChunkBytes>>,
    manifest: Arc<Manifest>,
    weights: Vec<Arc<WeightRecord>>,
    /// Canonical tensors of weights that were asked for whole; filled on first use.
    tensors: Vec<OnceLock<Tensor>>,
}

impl Resident {
    /// Read all chunks.
    ///
    /// # Errors
    /// [`OpenError`] where the file cannot be read or a checksum does not match.
    pub(crate) fn load(
        manifest: Arc<Manifest>,
        weights: Vec<Arc<WeightRecord>>,
        file: &dyn ReadAt,
    ) -> Result<Self, OpenError> {
        let mut chunks = Vec::with_capacity(manifest.chunks.len());
        for chunk in &manifest.chunks {
            let needed_bytes = chunk.length;
            let length =
                usize::try_from(chunk.length).map_err(|_| OpenError::Memory { needed_bytes, available_bytes: 0 })?;
            let mut bytes = ChunkBytes::new(4096);
            bytes.resize(length, 0);
            let offset = chunk.offset;
            file.read_exact_at(offset, &mut bytes).map_err(|error| OpenError::Read { offset, error })?;
            chunks.push(Arc::new(bytes));
        }
        let tensors = weights.iter().map(|_| OnceLock::new()).collect();
        let loaded = Resident { chunks, manifest: manifest.clone(), weights, tensors };
        for (index, extent) in manifest.extents.iter().enumerate() {
            extent.check(index as u32, &loaded.extent(index as u32))?;
        }
        Ok(loaded)
    }

    fn extent(&self, index: u32) -> ExtentBytes {
        let extent = &self.manifest.extents[index as usize];
        let chunk = self.chunks[extent.chunk as usize].clone();
        // Validation has checked that an extent lies inside its chunk.
        let start = (extent.offset - self.manifest.chunks[extent.chunk as usize].offset) as usize;
        ExtentBytes { chunk, start, end: start + extent.length as usize }
    }

    fn failure(&self, weight: u32, reason: &str) -> KernelError {
        let name = self.weights[weight as usize].name.clone().unwrap_or_else(|| format!("#{weight}"));
        KernelError::Weight { weight: name, reason: reason.to_string() }
    }
}

struct ExtentBytes {
    chunk: Arc<ChunkBytes>,
    start: usize,
    end: usize,
}

impl Deref for ExtentBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.chunk[self.start..self.end]
    }
}

impl ipuc_formats::tensor::Storage for ExtentBytes {
    fn bytes(&self) -> &[u8] {
        self
    }
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl PartSource for Resident {
    fn part(&self, weight: u32, part: usize) -> Result<PartBytes, KernelError> {
        let record = self.weights[weight as usize].parts.get(part);
        let record = record.ok_or_else(|| self.failure(weight, "a part is missing"))?;
        Ok(PartBytes::new(Arc::new(self.extent(record.extent))))
    }

    fn tensor(&self, weight: u32) -> Result<Option<Tensor>, KernelError> {
        let slot = &self.tensors[weight as usize];
        if let Some(tensor) = slot.get() {
            return Ok(Some(tensor.clone()));
        }
        let record = &self.weights[weight as usize];
        let failure = |error: &dyn std::fmt::Display| self.failure(weight, &error.to_string());
        let tensor = match (&record.layout, record.parts.as_slice()) {
            (Layout::Plain { dtype }, [part]) if *dtype == record.dtype => {
                let shape: Vec<usize> = record.shape.iter().map(|&extent| extent as usize).collect();
                let bytes = Arc::new(self.extent(part.extent));
                Tensor::over(record.dtype, &shape, bytes).map_err(|error| failure(&error))?
            }
            _ => {
                let parts: Vec<ExtentBytes> = record.parts.iter().map(|part| self.extent(part.extent)).collect();
                let bytes: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
                unpack(record, &bytes).map_err(|error| failure(&error))?
            }
        };
        Ok(Some(slot.get_or_init(|| tensor).clone()))
    }

    fn rows(&self, weight: u32, rows: &[u64]) -> Result<Vec<u8>, KernelError> {
        let tensor = self.tensor(weight)?.ok_or_else(|| self.failure(weight, "cannot be unpacked"))?;
        let count = tensor.shape().first().copied().unwrap_or(0);
        if tensor.dtype().bits() < 8 || count == 0 {
            return Err(self.failure(weight, "has no rows of whole bytes"));
        }
        let width = tensor.bytes().len() / count;
        let mut gathered = Vec::with_capacity(rows.len() * width);
        for &row in rows {
            let start = usize::try_from(row).ok().filter(|&row| row < count);
            let start = start.ok_or_else(|| self.failure(weight, "a row is out of range"))? * width;
            gathered.extend_from_slice(&tensor.bytes()[start..start + width]);
        }
        Ok(gathered)
    }
}
