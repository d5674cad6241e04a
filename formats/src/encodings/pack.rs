//! Canonical bytes in, the stored bytes of one part out.

use super::convert::{can_store, narrow};
use super::layout::{byte_border, rows_of};
use super::panels::{InputRows, pack_input_rows, pack_output_rows};
use super::{EncodingError, Layout, PANEL_OUTPUTS, PanelLayout, PartRange};
use crate::dtype::DType;
use std::io;

/// Canonical bytes held at once; a block of these stays in the second-level cache.
const BLOCK_BYTES: usize = 256 << 10;

/// Rows of a panel up to this length are read in one run, though they are more than a block.
const WHOLE_ROWS_BYTES: u64 = 512 << 10;

impl PanelLayout {
    /// Whether the rows of a panel of an `[outputs, inputs]` weight are read as a whole, one after another, so that
    /// packing all of it reads its bytes in their order.
    pub fn is_packed_by_whole_rows(&self) -> bool {
        let row_bytes = self.inputs.saturating_mul(self.dtype.bits() as u64 / 8);
        row_bytes.saturating_mul(PANEL_OUTPUTS as u64) <= WHOLE_ROWS_BYTES
    }
}

/// Fills a buffer with the canonical bytes that begin at an offset.
type Read<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> io::Result<()>;

/// Pack one part of a weight into `packed`, which has exactly the part's stored bytes.
///
/// `read(offset, buffer)` gives canonical bytes of a weight of type `dtype` and this shape. Bytes of f32 may be stored as
/// f16 or bf16 where every element is exact. Consecutive parts lie one after another: a longer range of rows or of
/// whole panels packs several parts at once, and reads `[inputs, outputs]` weights in longer runs.
///
/// # Errors
/// [`EncodingError`] where layout, part or buffer do not fit, a conversion is not exact, or reading fails.
pub fn pack(
    layout: &Layout,
    dtype: DType,
    shape: &[u64],
    part: PartRange,
    read: Read<'_>,
    packed: &mut [u8],
) -> Result<(), EncodingError> {
    if !can_store(dtype, layout.dtype()) {
        return Err(EncodingError::Conversion { logical: dtype, stored: layout.dtype() });
    }
    layout.check(dtype, shape)?;
    let unsized_layout = || EncodingError::Unsupported("packing strings from canonical bytes".into());
    let expected = layout.part_bytes(shape, &part)?.ok_or_else(unsized_layout)?;
    if expected != packed.len() as u64 {
        return Err(EncodingError::Size { expected, found: packed.len() as u64 });
    }
    let mut source = Source { dtype, stored: layout.dtype(), read, wide: Vec::new(), block: Vec::new() };
    match layout {
        Layout::Panels(panels) if panels.output_axis == 0 => pack_from_output_rows(panels, part, &mut source, packed),
        Layout::Panels(panels) => pack_from_input_rows(panels, part, &mut source, packed),
        Layout::Plain { .. } | Layout::Strings => pack_plain(shape, part, &mut source, packed),
    }
}

/// Blocks of canonical elements, converted to the stored type.
struct Source<'a> {
    dtype: DType,
    stored: DType,
    read: Read<'a>,
    wide: Vec<u8>,
    block: Vec<u8>,
}

/// Elements of a block: `rows` runs of `length` elements, `stride` elements apart.
#[derive(Clone, Copy)]
struct Runs {
    first: u64,
    rows: usize,
    length: usize,
    stride: u64,
}

impl Source<'_> {
    fn read(read: Read<'_>, offset: u64, buffer: &mut [u8]) -> Result<(), EncodingError> {
        read(offset, buffer).map_err(|source| EncodingError::Read { offset, source })
    }

    /// The runs one after another, as stored elements.
    fn fetch(&mut self, runs: Runs) -> Result<&[u8], EncodingError> {
        let converts = self.dtype != self.stored;
        let width = self.dtype.bits() / 8;
        let stored_width = self.stored.bits() / 8;
        let Source { dtype: _, stored, read, wide, block } = self;
        let target = if converts { &mut *wide } else { &mut *block };
        target.resize(runs.rows * runs.length * width, 0);
        if runs.stride == runs.length as u64 {
            Self::read(read, runs.first * width as u64, target)?;
        } else {
            for (row, buffer) in target.chunks_exact_mut(runs.length * width).enumerate() {
                Self::read(read, (runs.first + row as u64 * runs.stride) * width as u64, buffer)?;
            }
        }
        if converts {
            block.resize(runs.rows * runs.length * stored_width, 0);
            let rows = wide.chunks_exact(runs.length * width).zip(block.chunks_exact_mut(runs.length * stored_width));
            for (row, (wide, narrowed)) in rows.enumerate() {
                narrow(wide, *stored, narrowed, runs.first + row as u64 * runs.stride)?;
            }
        }
        Ok(block)
    }
}

fn pack_plain(shape: &[u64], part: PartRange, source: &mut Source<'_>, packed: &mut [u8]) -> Result<(), EncodingError> {
    let too_large = || EncodingError::TooLarge { shape: shape.to_vec() };
    let (_, row_elements) = rows_of(shape).ok_or_else(too_large)?;
    if source.dtype == source.stored {
        let offset = byte_border(source.dtype, part.start, row_elements).ok_or_else(too_large)?;
        return Source::read(source.read, offset, packed);
    }
    let width = source.stored.bits() / 8;
    let mut first = part.start * row_elements;
    for block in packed.chunks_mut(BLOCK_BYTES) {
        let length = block.len() / width;
        block.copy_from_slice(source.fetch(Runs { first, rows: 1, length, stride: length as u64 })?);
        first += length as u64;
    }
    Ok(())
}

/// Canonical matrices are `[outputs, inputs]`.
fn pack_from_output_rows(
    layout: &PanelLayout,
    part: PartRange,
    source: &mut Source<'_>,
    packed: &mut [u8],
) -> Result<(), EncodingError> {
    let (width, group) = (layout.dtype.bits() / 8, layout.group as usize);
    let panel_bytes = packed.len() / (part.end - part.start) as usize;
    let block_inputs = if layout.is_packed_by_whole_rows() {
        layout.inputs.next_multiple_of(u64::from(layout.group))
    } else {
        (BLOCK_BYTES / (PANEL_OUTPUTS * width)) as u64
    };
    for (panel, packed) in (part.start..part.end).zip(packed.chunks_exact_mut(panel_bytes)) {
        let place = layout.place(panel);
        let first_row = (place.matrix * layout.outputs + place.output) * layout.inputs;
        let mut start = part.inputs_start;
        for packed in packed.chunks_mut(block_inputs as usize * PANEL_OUTPUTS * width) {
            let end = part.inputs_end.min(start + block_inputs);
            let length = (end - start) as usize;
            let runs = Runs { first: first_row + start, rows: place.outputs, length, stride: layout.inputs };
            pack_output_rows(source.fetch(runs)?, place.outputs, width, group, packed);
            start = end;
        }
    }
    Ok(())
}

/// Canonical matrices are `[inputs, outputs]`.
fn pack_from_input_rows(
    layout: &PanelLayout,
    part: PartRange,
    source: &mut Source<'_>,
    packed: &mut [u8],
) -> Result<(), EncodingError> {
    let (width, group) = (layout.dtype.bits() / 8, layout.group as usize);
    let panel_bytes = packed.len() / (part.end - part.start) as usize;
    let mut first = part.start;
    while first < part.end {
        let place = layout.place(first);
        let last = part.end.min((place.matrix + 1) * layout.panels_per_group());
        let columns = ((last - first) * PANEL_OUTPUTS as u64).min(layout.outputs - place.output) as usize;
        // Blocks of a multiple of 16 inputs begin between groups.
        let block_inputs = (BLOCK_BYTES / (columns * width) / 16 * 16).max(16) as u64;
        let matrix = place.matrix * layout.inputs;
        let mut start = part.inputs_start;
        while start < part.inputs_end {
            let end = part.inputs_end.min(start + block_inputs);
            let inputs = (end - start) as usize;
            let first_element = (matrix + start) * layout.outputs + place.output;
            let runs = Runs { first: first_element, rows: inputs, length: columns, stride: layout.outputs };
            let rows = source.fetch(runs)?;
            let from = (start - part.inputs_start) as usize * PANEL_OUTPUTS * width;
            let length = inputs.next_multiple_of(group) * PANEL_OUTPUTS * width;
            for panel in first..last {
                let column = (panel - first) as usize * PANEL_OUTPUTS;
                let outputs = (columns - column).min(PANEL_OUTPUTS);
                let block = InputRows { stride: columns * width, offset: column * width, outputs, inputs };
                let packed = &mut packed[(panel - part.start) as usize * panel_bytes + from..][..length];
                pack_input_rows(rows, block, width, group, packed);
            }
            start = end;
        }
        first = last;
    }
    Ok(())
}
