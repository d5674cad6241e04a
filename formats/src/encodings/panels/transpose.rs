//! Moving elements between canonical matrices and panels, a block of inputs at a time.
//!
//! The `g` inputs of one output that lie side by side move together. Where a canonical row runs along inputs
//! (`[outputs, inputs]`) a block is a transpose of such groups; where it runs along outputs (`[inputs, outputs]`) it is a copy of 16 outputs, or
//! an interleave of `g` rows. Both are loops over constant sizes that compilers unroll.

use super::PANEL_OUTPUTS;

/// Calls `$function::<unit bytes>` for a unit of 1 to 128 bytes, a power of two.
macro_rules! with_unit {
    ($bytes:expr, $function:ident($($argument:expr),*)) => {
        match $bytes {
            1 => $function::<1>($($argument),*),
            2 => $function::<2>($($argument),*),
            4 => $function::<4>($($argument),*),
            8 => $function::<8>($($argument),*),
            16 => $function::<16>($($argument),*),
            32 => $function::<32>($($argument),*),
            64 => $function::<64>($($argument),*),
            _ => $function::<128>($($argument),*),
        }
    };
}

/// `rows: [outputs][inputs]` elements of `width` bytes into `panel: [inputs/group][16][group]`.
pub(super) fn pack_output_rows(rows: &[u8], outputs: usize, width: usize, group: usize, panel: &mut [u8]) {
    let row_bytes = rows.len() / outputs.max(1);
    with_unit!(width * group, transpose_in(rows, row_bytes, outputs, panel));
}

fn transpose_in<const UNIT: usize>(rows: &[u8], row_bytes: usize, outputs: usize, panel: &mut [u8]) {
    let lines = panel.as_chunks_mut::<UNIT>().0.as_chunks_mut::<PANEL_OUTPUTS>().0;
    let row = |output: usize| rows[output * row_bytes..(output + 1) * row_bytes].as_chunks::<UNIT>();
    if outputs == PANEL_OUTPUTS {
        let units: [&[[u8; UNIT]]; PANEL_OUTPUTS] = std::array::from_fn(|output| row(output).0);
        for (input, line) in lines.iter_mut().enumerate().take(row_bytes / UNIT) {
            for (slot, units) in line.iter_mut().zip(units) {
                *slot = units[input];
            }
        }
    } else {
        for output in 0..outputs {
            for (line, unit) in lines.iter_mut().zip(row(output).0) {
                line[output] = *unit;
            }
        }
        lines.iter_mut().for_each(|line| line[outputs..].fill([0; UNIT]));
    }
    let rest = row_bytes % UNIT;
    if rest > 0
        && let Some(last) = lines.get_mut(row_bytes / UNIT)
    {
        *last = [[0; UNIT]; PANEL_OUTPUTS];
        for (output, slot) in last.iter_mut().enumerate().take(outputs) {
            slot[..rest].copy_from_slice(row(output).1);
        }
    }
}

/// The inverse of [`pack_output_rows`].
pub(super) fn unpack_output_rows(panel: &[u8], outputs: usize, width: usize, group: usize, rows: &mut [u8]) {
    let row_bytes = rows.len() / outputs.max(1);
    with_unit!(width * group, transpose_out(panel, row_bytes, outputs, rows));
}

fn transpose_out<const UNIT: usize>(panel: &[u8], row_bytes: usize, outputs: usize, rows: &mut [u8]) {
    let lines = panel.as_chunks::<UNIT>().0.as_chunks::<PANEL_OUTPUTS>().0;
    for output in 0..outputs {
        let (units, rest) = rows[output * row_bytes..(output + 1) * row_bytes].as_chunks_mut::<UNIT>();
        for (unit, line) in units.iter_mut().zip(lines) {
            *unit = line[output];
        }
        if let Some(last) = lines.get(units.len()) {
            rest.copy_from_slice(&last[output][..rest.len()]);
        }
    }
}

/// A block of `[inputs][outputs]` elements inside wider rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct InputRows {
    /// Bytes from one input to the next.
    pub stride: usize,
    /// Byte offset of the first output.
    pub offset: usize,
    /// Outputs, at most 16.
    pub outputs: usize,
    /// Inputs.
    pub inputs: usize,
}

/// `rows: [inputs][outputs]` elements of `width` bytes into `panel: [inputs/group][16][group]`.
pub(super) fn pack_input_rows(rows: &[u8], block: InputRows, width: usize, group: usize, panel: &mut [u8]) {
    match width {
        1 => interleave_in::<1>(rows, block, group, panel),
        2 => interleave_in::<2>(rows, block, group, panel),
        4 => interleave_in::<4>(rows, block, group, panel),
        _ => interleave_in::<8>(rows, block, group, panel),
    }
}

fn interleave_in<const WIDTH: usize>(rows: &[u8], block: InputRows, group: usize, panel: &mut [u8]) {
    let row = |input: usize| {
        let start = input * block.stride + block.offset;
        rows[start..start + block.outputs * WIDTH].as_chunks::<WIDTH>().0
    };
    if group == 1 && block.outputs == PANEL_OUTPUTS {
        // Moves of a constant length, not calls.
        let lines = panel.as_chunks_mut::<WIDTH>().0.as_chunks_mut::<PANEL_OUTPUTS>().0;
        for (input, line) in lines.iter_mut().enumerate().take(block.inputs) {
            *line = row(input).as_chunks().0[0];
        }
        return;
    }
    for (index, line) in panel.chunks_exact_mut(PANEL_OUTPUTS * group * WIDTH).enumerate() {
        let first = index * group;
        let inputs = block.inputs.saturating_sub(first).min(group);
        if inputs < group || block.outputs < PANEL_OUTPUTS {
            line.fill(0);
        }
        let slots = line.as_chunks_mut::<WIDTH>().0;
        if group == 1 && inputs == 1 {
            slots[..block.outputs].copy_from_slice(row(first));
        } else if group == 2 && inputs == 2 {
            let pairs = slots.as_chunks_mut::<2>().0.iter_mut().zip(row(first)).zip(row(first + 1));
            pairs.for_each(|((pair, even), odd)| *pair = [*even, *odd]);
        } else {
            for step in 0..inputs {
                for (output, element) in row(first + step).iter().enumerate() {
                    slots[output * group + step] = *element;
                }
            }
        }
    }
}

/// The inverse of [`pack_input_rows`].
pub(super) fn unpack_input_rows(panel: &[u8], block: InputRows, width: usize, group: usize, rows: &mut [u8]) {
    match width {
        1 => interleave_out::<1>(panel, block, group, rows),
        2 => interleave_out::<2>(panel, block, group, rows),
        4 => interleave_out::<4>(panel, block, group, rows),
        _ => interleave_out::<8>(panel, block, group, rows),
    }
}

fn interleave_out<const WIDTH: usize>(panel: &[u8], block: InputRows, group: usize, rows: &mut [u8]) {
    let lines = panel.chunks_exact(PANEL_OUTPUTS * group * WIDTH);
    for (index, line) in lines.enumerate() {
        let slots = line.as_chunks::<WIDTH>().0;
        for step in 0..block.inputs.saturating_sub(index * group).min(group) {
            let start = (index * group + step) * block.stride + block.offset;
            let row = rows[start..start + block.outputs * WIDTH].as_chunks_mut::<WIDTH>().0;
            if group == 1 {
                row.copy_from_slice(&slots[..block.outputs]);
                continue;
            }
            for (element, unit) in row.iter_mut().zip(slots.chunks_exact(group)) {
                *element = unit[step];
            }
        }
    }
}
