//! Versions: lists of pages that share what they have in common.

use super::page::{Page, PageBytes, PageShape};
use super::{PageMemory, SpillFolder, VersionError};
use bytemuck::AnyBitPattern;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::model::Growth;
use ipuc_formats::ops::RowScheme;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::tensor::filled;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Contents of a growing state: a tensor that is held in pages along one axis.
#[derive(Clone)]
pub struct Version {
    dtype: DType,
    /// Extents, of which that of the axis is the length.
    shape: Vec<usize>,
    axis: usize,
    /// How rows of f32 are stored.
    rows: Option<RowScheme>,
    page: PageShape,
    /// Pages before the first of `pages`, whose positions can be read no more.
    forgotten: usize,
    pages: Vec<Arc<Page>>,
}

/// A version all of whose pages that are there are in memory while this lives.
pub struct HeldVersion {
    page: PageShape,
    length: usize,
    forgotten: usize,
    pages: Vec<Arc<PageBytes>>,
}

/// Zeros.
fn bytes_of(bytes: usize) -> Result<Vec<u8>, VersionError> {
    filled(0, bytes).map_err(|_| VersionError::Memory { bytes })
}

impl Version {
    /// A version without positions; `shape` tells the extents of the other axes.
    ///
    /// # Errors
    /// [`VersionError::Mismatch`] where there is no such axis, pages would be empty, elements are no whole bytes, or rows are to
    /// be rounded and are not of f32.
    pub fn empty(dtype: DType, shape: &[usize], growth: Growth) -> Result<Version, VersionError> {
        let (axis, positions) = (growth.axis as usize, growth.page as usize);
        let mismatch = |expected: &str| VersionError::Mismatch {
            expected: expected.to_string(),
            found: format!("{dtype}{shape:?} in pages of {positions} along axis {axis}"),
        };
        if axis >= shape.len() || positions == 0 || dtype == DType::String || dtype.bits() < 8 {
            return Err(mismatch("whole bytes with the axis that grows"));
        }
        if growth.rows.is_some() && dtype != DType::F32 {
            return Err(mismatch("rows of f32, which can be rounded"));
        }
        let product =
            |extents: &[usize]| extents.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
        let too_large = || mismatch("pages that fit in memory addresses");
        let rows = product(&shape[..axis]).ok_or_else(too_large)?;
        let inner = product(&shape[axis + 1..]).and_then(|inner| match growth.rows {
            Some(rows) => rows.row_bytes(inner),
            None => inner.checked_mul(dtype.bits() / 8),
        });
        let page = PageShape { rows, positions, position_bytes: inner.ok_or_else(too_large)? };
        product(&[page.rows, page.positions, page.position_bytes]).ok_or_else(too_large)?;
        let mut shape = shape.to_vec();
        shape[axis] = 0;
        Ok(Version { dtype, shape, axis, rows: growth.rows, page, forgotten: 0, pages: Vec::new() })
    }

    /// A version of zeros with all these extents; its full pages are one, until they are overwritten.
    ///
    /// # Errors
    /// As [`Version::empty`], and [`VersionError::Memory`] where there is no room for a page.
    pub fn zeros(
        dtype: DType,
        shape: &[usize],
        growth: Growth,
        memory: &dyn PageMemory,
    ) -> Result<Version, VersionError> {
        let mut version = Version::empty(dtype, shape, growth)?;
        let length = shape[version.axis];
        let page = Arc::new(Page::new(version.page, version.page.positions, memory)?);
        let zeros = bytes_of(version.page.positions * version.page.position_bytes)?;
        page.write(version.page, 0, |_| &zeros);
        let count = length.div_ceil(version.page.positions);
        // The extent may come from a file: it is no reason to end the program.
        let too_long = |_| VersionError::Memory { bytes: count.saturating_mul(size_of::<Arc<Page>>()) };
        version.pages.try_reserve_exact(count).map_err(too_long)?;
        version.pages.resize(count, page);
        version.shape[version.axis] = length;
        Ok(version)
    }

    /// This version with positions of `new: [.., count, ..]` in place of its own: `places` has where each goes, `[rows, count]`
    /// with the axes before the one of positions as rows. Pages that none goes to are shared.
    ///
    /// # Errors
    /// [`VersionError::Mismatch`] where `new` does not fit or a place is outside, [`VersionError`] where there is no room; this
    /// version stays as it is.
    pub fn overwrite(&self, new: &Tensor, places: &[usize], memory: &dyn PageMemory) -> Result<Version, VersionError> {
        self.check_new(new)?;
        let count = new.shape()[self.axis];
        if places.len() != self.page.rows * count || places.iter().any(|&place| place >= self.length()) {
            let expected = format!("places of {} positions below {}", self.page.rows * count, self.length());
            return Err(VersionError::Mismatch { expected, found: format!("{} places", places.len()) });
        }
        self.require(places.iter().copied().min().unwrap_or(self.length()))?;
        let stored = self.stored(new)?;
        let mut next = self.clone();
        let touched: BTreeSet<usize> = places.iter().map(|&place| place / self.page.positions).collect();
        for index in touched {
            let old = self.pages[index - self.forgotten].bytes(self.page, memory)?;
            let held = held_positions(self.page, self.length(), index);
            let copy = Page::new(self.page, held, memory)?;
            copy.write(self.page, 0, |row| row_bytes(self.page, &old, row, 0..held));
            for (at, &place) in places.iter().enumerate().filter(|(_, place)| **place / self.page.positions == index) {
                let from = &stored[at * self.page.position_bytes..][..self.page.position_bytes];
                copy.write_position(self.page, at / count, place % self.page.positions, from);
            }
            next.pages[index - self.forgotten] = Arc::new(copy);
        }
        Ok(next)
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

    /// How rows of f32 are stored.
    pub fn rows(&self) -> Option<RowScheme> {
        self.rows
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

    /// Bytes of so many positions as pages hold them; `None` where memory cannot address them.
    pub fn stored_bytes(&self, positions: usize) -> Option<usize> {
        self.page.rows.checked_mul(positions)?.checked_mul(self.page.position_bytes)
    }

    /// Bytes of pages that are in the spill file.
    pub fn spilled_bytes(&self) -> usize {
        // A page of zeros may occur many times.
        let different = self.pages.chunk_by(Arc::ptr_eq).map(|same| &same[0]);
        different.filter(|page| !page.is_in_memory()).count() * self.page.bytes()
    }

    /// This version and behind it the positions of `new`.
    ///
    /// # Errors
    /// [`VersionError::Mismatch`] where `new` has another type or other extents, [`VersionError`] where there is no room; this
    /// version stays as it is.
    pub fn append(&self, new: &Tensor, memory: &dyn PageMemory) -> Result<Version, VersionError> {
        self.check_new(new)?;
        let stored = self.stored(new)?;
        self.append_stored(&stored, new.shape()[self.axis], memory)
    }

    /// That new positions have the type and the other extents of the state.
    fn check_new(&self, new: &Tensor) -> Result<(), VersionError> {
        let same = |at: usize| at == self.axis || new.shape()[at] == self.shape[at];
        if new.dtype() == self.dtype && new.rank() == self.shape.len() && (0..new.rank()).all(same) {
            return Ok(());
        }
        let (expected, found) = (self.kind().to_string(), Type::tensor(new.dtype(), Shape::known(new.shape())));
        Err(VersionError::Mismatch { expected, found: found.to_string() })
    }

    /// The bytes of new positions as pages hold them.
    fn stored<'a>(&self, new: &'a Tensor) -> Result<Cow<'a, [u8]>, VersionError> {
        let Some(rows) = self.rows else { return Ok(Cow::Borrowed(new.bytes())) };
        let elements = new
            .elements::<f32>()
            .map_err(|error| VersionError::Mismatch { expected: self.kind().to_string(), found: error.to_string() })?;
        let row: usize = self.shape[self.axis + 1..].iter().product();
        let count = elements.len().checked_div(row).unwrap_or(0);
        let mut stored = bytes_of(count * self.page.position_bytes)?;
        if row > 0 {
            let rows_of_bytes = stored.chunks_exact_mut(self.page.position_bytes);
            elements.chunks_exact(row).zip(rows_of_bytes).for_each(|(row, to)| rows.store(row, to));
        }
        Ok(Cow::Owned(stored))
    }

    /// This version and behind it `count` positions, `[rows, count, position bytes]` as pages hold them.
    ///
    /// # Errors
    /// [`VersionError::Mismatch`] where there are other bytes, [`VersionError`] where there is no room; this version stays as it is.
    pub fn append_stored(&self, bytes: &[u8], count: usize, memory: &dyn PageMemory) -> Result<Version, VersionError> {
        if self.stored_bytes(count) != Some(bytes.len()) {
            let expected = format!("{count} positions of {} bytes", self.page.rows * self.page.position_bytes);
            return Err(VersionError::Mismatch { expected, found: format!("{} bytes", bytes.len()) });
        }
        let mut next = self.clone();
        let mut done = 0;
        while done < count {
            let first = next.length() % self.page.positions;
            let taken = (self.page.positions - first).min(count - done);
            let page = next.writable_page(first, first + taken, memory)?;
            page.write(self.page, first, |row| {
                let start = (row * count + done) * self.page.position_bytes;
                &bytes[start..start + taken * self.page.position_bytes]
            });
            done += taken;
            next.shape[self.axis] += taken;
        }
        Ok(next)
    }

    /// A version without positions behind `pages` pages that are forgotten.
    ///
    /// # Errors
    /// [`VersionError::Mismatch`] where there are positions already, or more than memory can address.
    pub fn behind_forgotten(mut self, pages: usize) -> Result<Version, VersionError> {
        let positions = pages.checked_mul(self.page.positions).filter(|_| self.length() == 0);
        let mismatch = || VersionError::Mismatch {
            expected: "positions that memory can address, behind none".to_string(),
            found: format!("{pages} pages behind {} positions", self.length()),
        };
        self.shape[self.axis] = positions.ok_or_else(mismatch)?;
        self.forgotten = pages;
        Ok(self)
    }

    /// The first positions of this version, at most all; it shares the pages. `None` where the last of them is forgotten.
    pub fn truncated(&self, positions: usize) -> Option<Version> {
        let mut shorter = self.clone();
        let positions = positions.min(self.length());
        if positions == 0 {
            shorter.forgotten = 0;
        } else if positions < self.first() {
            return None;
        }
        shorter.pages.truncate(positions.div_ceil(self.page.positions) - shorter.forgotten);
        shorter.shape[self.axis] = positions;
        Some(shorter)
    }

    /// Bytes of the pages that are there, in memory or in the spill file.
    pub fn held_bytes(&self) -> usize {
        self.pages.chunk_by(Arc::ptr_eq).count() * self.page.bytes()
    }

    /// Pages at the front that are forgotten.
    pub fn forgotten_pages(&self) -> usize {
        self.forgotten
    }

    /// The first position that can be read: those before are forgotten.
    pub fn first(&self) -> usize {
        self.forgotten * self.page.positions
    }

    /// Forget the pages all of whose positions come before this one; the positions behind keep their places.
    pub fn forget_before(&mut self, position: usize) {
        let pages = (position.min(self.length()) / self.page.positions).saturating_sub(self.forgotten);
        self.pages.drain(..pages);
        self.forgotten += pages;
    }

    /// That the positions from this one on can be read.
    ///
    /// # Errors
    /// [`VersionError::Forgotten`] where some of them are forgotten.
    pub fn require(&self, first: usize) -> Result<(), VersionError> {
        match first < self.first() {
            true => Err(VersionError::Forgotten { wanted: first, first: self.first() }),
            false => Ok(()),
        }
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

    /// All pages that are there in memory; those of the spill file are read into memory that is not kept.
    ///
    /// # Errors
    /// [`VersionError`] where there is no room, or the file cannot be read.
    pub fn held(&self, memory: &dyn PageMemory) -> Result<HeldVersion, VersionError> {
        let pages = self.pages.iter().map(|page| page.bytes(self.page, memory)).collect::<Result<_, _>>()?;
        Ok(HeldVersion { page: self.page, length: self.length(), forgotten: self.forgotten, pages })
    }

    /// Begin to read the pages that are in the spill file.
    pub fn read_ahead(&self) {
        self.pages.iter().for_each(|page| page.read_ahead());
    }

    /// Move full pages to the spill file, from the first on, until `wanted` bytes are moved or none is left; gives how many
    /// bytes were.
    ///
    /// # Errors
    /// [`VersionError::Spill`] where the file cannot be made or written.
    pub fn spill(&self, wanted: u64, folder: &SpillFolder) -> Result<u64, VersionError> {
        let full = self.length() / self.page.positions - self.forgotten;
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

    /// The contents of pages that are there as they hold them, each `[.., positions of the page, ..]` row-major; a page is copied when it is
    /// asked for, and is an error where it cannot be read.
    pub fn pieces(&self, memory: &dyn PageMemory) -> impl Iterator<Item = Result<Vec<u8>, VersionError>> {
        self.numbered().map(move |(index, page)| {
            let bytes = page.bytes(self.page, memory)?;
            let held = held_positions(self.page, self.length(), index);
            let rows = (0..self.page.rows).map(|row| row_bytes(self.page, &bytes, row, 0..held));
            Ok(rows.collect::<Vec<_>>().concat())
        })
    }

    /// The contents, copied into a tensor of their type and extents.
    ///
    /// # Errors
    /// [`VersionError::Mismatch`] where the tensor has others, [`VersionError`] where pages cannot be read or are forgotten.
    pub fn copied_into(&self, mut tensor: Tensor, memory: &dyn PageMemory) -> Result<Tensor, VersionError> {
        if tensor.dtype() != self.dtype || tensor.shape() != self.shape {
            let (expected, found) =
                (self.kind().to_string(), Type::tensor(tensor.dtype(), Shape::known(tensor.shape())));
            return Err(VersionError::Mismatch { expected, found: found.to_string() });
        }
        self.require(0)?;
        if tensor.count() == 0 {
            return Ok(tensor);
        }
        let row_length = tensor.bytes().len() / self.page.rows;
        let position_length = row_length / self.length();
        let to = tensor.bytes_mut();
        for (index, page) in self.numbered() {
            let bytes = page.bytes(self.page, memory)?;
            let held = held_positions(self.page, self.length(), index);
            for row in 0..self.page.rows {
                let source = row_bytes(self.page, &bytes, row, 0..held);
                let to = &mut to[row * row_length + index * self.page.positions * position_length..];
                self.load(source, &mut to[..held * position_length])?;
            }
        }
        Ok(tensor)
    }

    /// The pages that are there, with their numbers among all.
    fn numbered(&self) -> impl Iterator<Item = (usize, &Arc<Page>)> {
        self.pages.iter().enumerate().map(|(index, page)| (index + self.forgotten, page))
    }

    /// Positions of one row as elements of the type of the state.
    fn load(&self, stored: &[u8], to: &mut [u8]) -> Result<(), VersionError> {
        let Some(rows) = self.rows else {
            to.copy_from_slice(stored);
            return Ok(());
        };
        let length = to.len();
        let floats: &mut [f32] = bytemuck::try_cast_slice_mut(to).map_err(|error| VersionError::Mismatch {
            expected: "elements of f32".to_string(),
            found: format!("{length} bytes: {error}"),
        })?;
        let row = floats.len() * self.page.position_bytes / stored.len();
        for (stored, to) in stored.chunks_exact(self.page.position_bytes).zip(floats.chunks_exact_mut(row)) {
            rows.load(stored, to);
        }
        Ok(())
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
    /// For each page, for each row before the axis that grows: the positions that the version holds, as elements of a type in
    /// which they are stored. A page that is forgotten has no rows.
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
            let held = held_positions(self.page, self.length, index + self.forgotten);
            let row = |row| bytemuck::try_cast_slice(row_bytes(self.page, bytes, row, 0..held)).map_err(no_elements);
            (0..self.page.rows).map(row).collect()
        });
        (0..self.forgotten).map(|_| Ok(Vec::new())).chain(rows).collect()
    }
}
