//! Versions: lists of pages that share what they have in common.

use super::page::{Page, PageBytes, PageShape};
use super::{PageMemory, SpillFolder, VersionError};
use bytemuck::AnyBitPattern;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::tensor::Tensor;
use std::ops::Range;
use std::sync::Arc;

/// Contents of a growing state: a tensor that is held in pages along one axis.
#[derive(Clone)]
pub struct Version {
    dtype: DType,
    /// Extents, of which that of the axis is the length.
    shape: Vec<usize>,
    axis: usize,
    page: PageShape,
    pages: Vec<Arc<Page>>,
}

/// A version all of whose pages are in memory while this lives.
pub struct HeldVersion {
    page: PageShape,
    length: usize,
    pages: Vec<Arc<PageBytes>>,
}

impl Version {
    /// A version without positions; `shape` tells the other extents, `positions` how many a page has.
    ///
    /// # Errors
    /// [`VersionError::Mismatch`] where there is no such axis, pages would be empty or elements are no whole bytes.
    pub fn empty(dtype: DType, shape: &[usize], axis: usize, positions: usize) -> Result<Version, VersionError> {
        let mismatch = |expected: &str| VersionError::Mismatch {
            expected: expected.to_string(),
            found: format!("{dtype}{shape:?} in pages of {positions} along axis {axis}"),
        };
        if axis >= shape.len() || positions == 0 || dtype == DType::String || dtype.bits() < 8 {
            return Err(mismatch("whole bytes with the axis that grows"));
        }
        let product =
            |extents: &[usize]| extents.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
        let too_large = || mismatch("pages that fit in memory addresses");
        let rows = product(&shape[..axis]).ok_or_else(too_large)?;
        let inner = product(&shape[axis + 1..]).and_then(|inner| inner.checked_mul(dtype.bits() / 8));
        let page = PageShape { rows, positions, position_bytes: inner.ok_or_else(too_large)? };
        product(&[page.rows, page.positions, page.position_bytes]).ok_or_else(too_large)?;
        let mut shape = shape.to_vec();
        shape[axis] = 0;
        Ok(Version { dtype, shape, axis, page, pages: Vec::new() })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Type, with known extents.
    pub fn kind(&self) -> Type {
        Type::tensor(self.dtype, Shape::known(&self.shape))
    }

    /// The axis along which it grows.
    pub fn axis(&self) -> usize {
        self.axis
    }

    /// Positions of a page.
    pub fn page_positions(&self) -> usize {
        self.page.positions
    }

    /// Positions that it holds.
    pub fn length(&self) -> usize {
        self.shape[self.axis]
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.page.bytes()
    }

    /// Bytes of pages that are in the spill file.
    pub fn spilled_bytes(&self) -> usize {
        self.pages.iter().filter(|page| !page.is_in_memory()).count() * self.page.bytes()
    }

    /// This version and behind it the positions of `new`.
    ///
    /// # Errors
    /// [`VersionError::Mismatch`] where `new` has another type or other extents, [`VersionError`] where there is no room; this
    /// version stays as it is.
    pub fn append(&self, new: &Tensor, memory: &dyn PageMemory) -> Result<Version, VersionError> {
        let same = |at: usize| at == self.axis || new.shape()[at] == self.shape[at];
        if new.dtype() != self.dtype || new.rank() != self.shape.len() || !(0..new.rank()).all(same) {
            let (expected, found) = (self.kind().to_string(), Type::tensor(new.dtype(), Shape::known(new.shape())));
            return Err(VersionError::Mismatch { expected, found: found.to_string() });
        }
        let count = new.shape()[self.axis];
        let mut next = self.clone();
        let mut done = 0;
        while done < count {
            let first = next.length() % self.page.positions;
            let taken = (self.page.positions - first).min(count - done);
            let page = next.writable_page(first, first + taken, memory)?;
            let bytes = new.bytes();
            page.write(self.page, first, |row| {
                let start = (row * count + done) * self.page.position_bytes;
                &bytes[start..start + taken * self.page.position_bytes]
            });
            done += taken;
            next.shape[self.axis] += taken;
        }
        Ok(next)
    }

    /// The first positions of this version, at most all; it shares the pages.
    pub fn truncated(&self, positions: usize) -> Version {
        let mut shorter = self.clone();
        let positions = positions.min(self.length());
        shorter.pages.truncate(positions.div_ceil(self.page.positions));
        shorter.shape[self.axis] = positions;
        shorter
    }

    /// The page behind the last position, with the positions from `first` to `end` claimed.
    fn writable_page(&mut self, first: usize, end: usize, memory: &dyn PageMemory) -> Result<Arc<Page>, VersionError> {
        if first == 0 {
            let page = Arc::new(Page::new(self.page, end, memory)?);
            self.pages.push(page.clone());
            return Ok(page);
        }
        let index = self.pages.len() - 1;
        if self.pages[index].claim(first, end) {
            return Ok(self.pages[index].clone());
        }
        // Another version has gone on from here.
        let old = self.pages[index].bytes(self.page, memory)?;
        let copy = Arc::new(Page::new(self.page, end, memory)?);
        copy.write(self.page, 0, |row| row_bytes(self.page, &old, row, 0..first));
        self.pages[index] = copy.clone();
        Ok(copy)
    }

    /// All pages in memory; those of the spill file are read into memory that is not kept.
    ///
    /// # Errors
    /// [`VersionError`] where there is no room, or the file cannot be read.
    pub fn held(&self, memory: &dyn PageMemory) -> Result<HeldVersion, VersionError> {
        let pages = self.pages.iter().map(|page| page.bytes(self.page, memory)).collect::<Result<_, _>>()?;
        Ok(HeldVersion { page: self.page, length: self.length(), pages })
    }

    /// Move full pages to the spill file, from the first on, until `wanted` bytes are moved or none is left; gives how many
    /// bytes were.
    ///
    /// # Errors
    /// [`VersionError::Spill`] where the file cannot be made or written.
    pub fn spill(&self, wanted: u64, folder: &SpillFolder) -> Result<u64, VersionError> {
        let full = self.length() / self.page.positions;
        let mut moved = 0;
        for page in self.pages[..full].iter().filter(|page| page.is_in_memory()) {
            if moved >= wanted {
                break;
            }
            page.spill(self.page, &folder.file()?)?;
            moved += self.page.bytes() as u64;
        }
        Ok(moved)
    }

    /// The contents page by page, each `[.., positions of the page, ..]` row-major; a page is copied when it is asked for, and
    /// is an error where it cannot be read.
    pub fn pieces(&self, memory: &dyn PageMemory) -> impl Iterator<Item = Result<Vec<u8>, VersionError>> {
        self.pages.iter().enumerate().map(move |(index, page)| {
            let bytes = page.bytes(self.page, memory)?;
            let held = held_positions(self.page, self.length(), index);
            let rows = (0..self.page.rows).map(|row| row_bytes(self.page, &bytes, row, 0..held));
            Ok(rows.collect::<Vec<_>>().concat())
        })
    }

    /// The contents, copied into a tensor of their type and extents.
    ///
    /// # Errors
    /// [`VersionError::Mismatch`] where the tensor has others, [`VersionError`] where pages cannot be read.
    pub fn copied_into(&self, mut tensor: Tensor, memory: &dyn PageMemory) -> Result<Tensor, VersionError> {
        if tensor.dtype() != self.dtype || tensor.shape() != self.shape {
            let (expected, found) =
                (self.kind().to_string(), Type::tensor(tensor.dtype(), Shape::known(tensor.shape())));
            return Err(VersionError::Mismatch { expected, found: found.to_string() });
        }
        if tensor.count() == 0 {
            return Ok(tensor);
        }
        let row_length = self.length() * self.page.position_bytes;
        let to = tensor.bytes_mut();
        for (index, page) in self.pages.iter().enumerate() {
            let bytes = page.bytes(self.page, memory)?;
            let held = held_positions(self.page, self.length(), index);
            for row in 0..self.page.rows {
                let source = row_bytes(self.page, &bytes, row, 0..held);
                to[row * row_length + index * self.page.positions * self.page.position_bytes..][..source.len()]
                    .copy_from_slice(source);
            }
        }
        Ok(tensor)
    }
}

/// Positions of page `index` that a version of this length holds.
fn held_positions(page: PageShape, length: usize, index: usize) -> usize {
    (length - index * page.positions).min(page.positions)
}

fn row_bytes(page: PageShape, bytes: &PageBytes, row: usize, positions: Range<usize>) -> &[u8] {
    let start = (row * page.positions + positions.start) * page.position_bytes;
    bytes.read(start, positions.len() * page.position_bytes)
}

impl HeldVersion {
    /// For each page, for each row before the axis that grows: the elements of the positions that the version holds.
    ///
    /// # Errors
    /// [`VersionError::Mismatch`] where its bytes are no whole elements of this type.
    pub fn rows<T: AnyBitPattern>(&self) -> Result<Vec<Vec<&[T]>>, VersionError> {
        let no_elements = |_| VersionError::Mismatch {
            expected: format!("positions of {} bytes", self.page.position_bytes),
            found: std::any::type_name::<T>().to_string(),
        };
        let pages = self.pages.iter().enumerate();
        let rows = pages.map(|(index, bytes)| {
            let held = held_positions(self.page, self.length, index);
            let row = |row| bytemuck::try_cast_slice(row_bytes(self.page, bytes, row, 0..held)).map_err(no_elements);
            (0..self.page.rows).map(row).collect()
        });
        rows.collect()
    }
}
