//! Counts zeros in the pieces of a weight.

use super::elements::{NOT_FINITE, VALUE};
use super::pieces::{Piece, RECORD_INPUTS};
use ipuc_formats::encodings::{PANEL_OUTPUTS, ZeroBlocks, Zeros};
use ipuc_formats::ops::WeightMatrix;

/// Inputs of the blocks that are counted.
const BLOCK_INPUTS: [usize; 3] = [1, 4, 64];

/// Inputs that lie side by side in a line of panels: elements of 32, 16 and 8 bits.
const LINE_INPUTS: [usize; 3] = [1, 2, 4];

/// What pieces have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counts {
    elements: u64,
    zeros: u64,
    not_finite: u64,
    is_matrix: bool,
    groups: [u64; Zeros::GROUP_CLASSES],
    blocks: [ZeroBlocks; BLOCK_INPUTS.len()],
    record_elements: u64,
    /// The most blocks of 16 outputs by some inputs with a value in a record, by the inputs: 1, 2 and 4.
    record_lines: [u64; LINE_INPUTS.len()],
}

impl Counts {
    /// Those of a piece of a matrix, or of elements without an order.
    pub(super) fn of(piece: &Piece, matrix: Option<WeightMatrix>, classes: &[u8]) -> Counts {
        let count = |of: &dyn Fn(u8) -> bool| classes.iter().filter(|&&class| of(class)).count() as u64;
        let mut counts = Counts {
            elements: classes.len() as u64,
            zeros: count(&|class| class & VALUE == 0),
            not_finite: count(&|class| class & NOT_FINITE != 0),
            is_matrix: matrix.is_some(),
            ..Counts::default()
        };
        let Some(matrix) = matrix else { return counts };
        let (rows, length) = (piece.rows as usize, piece.length as usize);
        let mut masks = Vec::new();
        if matrix.output_axis == 0 {
            masks.resize(length, 0u16);
            for (output, row) in classes.chunks_exact(length).enumerate() {
                masks.iter_mut().zip(row).for_each(|(mask, class)| *mask |= u16::from(class & VALUE) << output);
            }
            counts.add_panel(&masks, rows);
            return counts;
        }
        for first in (0..length).step_by(PANEL_OUTPUTS) {
            let outputs = PANEL_OUTPUTS.min(length - first);
            let mask = |row: &[u8]| {
                let of_output = row[first..first + outputs].iter().enumerate();
                of_output.fold(0, |mask, (output, class)| mask | u16::from(class & VALUE) << output)
            };
            masks.clear();
            masks.extend(classes.chunks_exact(length).map(mask));
            counts.add_panel(&masks, outputs);
        }
        counts
    }

    /// Count inputs of 16 outputs, of which `outputs` exist, that begin with a record: a bit of a mask is set where an
    /// element is not zero.
    fn add_panel(&mut self, masks: &[u16], outputs: usize) {
        let existing = ((1u32 << outputs) - 1) as u16;
        for record in masks.chunks(RECORD_INPUTS as usize) {
            let values = record.iter().map(|mask| u64::from(mask.count_ones())).sum();
            self.record_elements = self.record_elements.max(values);
            for (most, inputs) in self.record_lines.iter_mut().zip(LINE_INPUTS) {
                let lines = record.chunks(inputs).filter(|line| line.iter().any(|&mask| mask != 0)).count();
                *most = (*most).max(lines as u64);
            }
        }
        for group in masks.chunks(4) {
            let at = |index: usize| group.get(index).copied().unwrap_or(0);
            let classes = outputs_by_count([at(0), at(1), at(2), at(3)]);
            for (count, outputs) in self.groups.iter_mut().zip(classes) {
                *count += u64::from((outputs & existing).count_ones());
            }
        }
        for (blocks, inputs) in self.blocks.iter_mut().zip(BLOCK_INPUTS) {
            blocks.inputs = inputs as u64;
            blocks.count += masks.len().div_ceil(inputs) as u64;
            let is_zero = |block: &&[u16]| block.iter().all(|&mask| mask == 0);
            blocks.zeros += masks.chunks(inputs).filter(is_zero).count() as u64;
        }
    }

    /// Those of both.
    pub(super) fn and(mut self, other: &Counts) -> Counts {
        self.elements += other.elements;
        self.zeros += other.zeros;
        self.not_finite += other.not_finite;
        self.is_matrix |= other.is_matrix;
        self.groups.iter_mut().zip(other.groups).for_each(|(sum, count)| *sum += count);
        for (sum, blocks) in self.blocks.iter_mut().zip(other.blocks) {
            sum.inputs = sum.inputs.max(blocks.inputs);
            sum.count += blocks.count;
            sum.zeros += blocks.zeros;
        }
        self.record_elements = self.record_elements.max(other.record_elements);
        self.record_lines.iter_mut().zip(other.record_lines).for_each(|(most, lines)| *most = (*most).max(lines));
        self
    }

    /// The most blocks of 16 outputs by `inputs` inputs with a value in a record, where lines of panels have so many.
    pub(super) fn record_lines(&self, inputs: u64) -> Option<u64> {
        let at = LINE_INPUTS.iter().position(|&known| known as u64 == inputs)?;
        self.is_matrix.then_some(self.record_lines[at])
    }

    /// Of a matrix with so many lines of each width in a record, or of nothing.
    #[cfg(test)]
    pub(super) fn with_record_lines(lines: u64) -> Counts {
        Counts { is_matrix: lines > 0, record_lines: [lines; LINE_INPUTS.len()], ..Counts::default() }
    }

    /// As the file has them, without a reason.
    pub(super) fn zeros(&self) -> Zeros {
        Zeros {
            elements: self.elements,
            zeros: self.zeros,
            not_finite: self.not_finite,
            groups: if self.is_matrix { self.groups.to_vec() } else { Vec::new() },
            blocks: if self.is_matrix { self.blocks.to_vec() } else { Vec::new() },
            record_elements: self.record_elements,
            reason: String::new(),
        }
    }
}

/// The outputs that have 0, 1, 2, 3 and 4 bits set in four masks: the bits are added in columns.
fn outputs_by_count([a, b, c, d]: [u16; 4]) -> [u16; Zeros::GROUP_CLASSES] {
    let (first, first_carry, second, second_carry) = (a ^ b, a & b, c ^ d, c & d);
    let (ones, carry) = (first ^ second, first & second);
    let fours = first_carry & second_carry;
    let twos = (first_carry | second_carry | carry) & !fours;
    [!(ones | twos | fours), ones & !twos, twos & !ones, twos & ones, fours]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotate_sparsity::pieces::of_matrix;

    /// The same, element by element.
    fn plainly(matrix: WeightMatrix, classes: &[u8]) -> Counts {
        let WeightMatrix { inputs, outputs, output_axis, .. } = matrix;
        let (inputs, outputs) = (inputs as usize, outputs as usize);
        let value = |output: usize, input: usize| {
            let place = if output_axis == 0 { output * inputs + input } else { input * outputs + output };
            usize::from(output < outputs && input < inputs && classes[place] & VALUE != 0)
        };
        let count = |class: u8| classes.iter().filter(|&&found| found == class).count() as u64;
        let mut counts = Counts {
            elements: classes.len() as u64,
            zeros: count(0),
            not_finite: count(3),
            is_matrix: true,
            ..Counts::default()
        };
        for output in 0..outputs {
            for first in (0..inputs).step_by(4) {
                counts.groups[(first..first + 4).map(|input| value(output, input)).sum::<usize>()] += 1;
            }
        }
        for first_output in (0..outputs).step_by(16) {
            let sum = |first: usize, length: usize| -> usize {
                let inputs = first..first + length;
                inputs
                    .map(|input| (first_output..first_output + 16).map(|output| value(output, input)).sum::<usize>())
                    .sum()
            };
            for (blocks, length) in counts.blocks.iter_mut().zip(BLOCK_INPUTS) {
                blocks.inputs = length as u64;
                for first in (0..inputs).step_by(length) {
                    blocks.count += 1;
                    blocks.zeros += u64::from(sum(first, length) == 0);
                }
            }
            for first in (0..inputs).step_by(256) {
                counts.record_elements = counts.record_elements.max(sum(first, 256) as u64);
                for (most, length) in counts.record_lines.iter_mut().zip(LINE_INPUTS) {
                    let lines = (first..first + 256).step_by(length).filter(|&input| sum(input, length) > 0).count();
                    *most = (*most).max(lines as u64);
                }
            }
        }
        counts
    }

    #[test]
    fn pieces_count_what_elements_do() {
        let mut state = 1u32;
        for (inputs, outputs) in [(300, 40), (5, 3), (4, 16), (513, 17)] {
            for share in [0, 1, 4, 15, 16] {
                let classes: Vec<u8> = (0..inputs * outputs)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let is_value = state >> 28 < share;
                        u8::from(is_value) * if state >> 20 & 63 == 0 { 3 } else { 1 }
                    })
                    .collect();
                for output_axis in [0, 1] {
                    let matrix = WeightMatrix { groups: 1, inputs, outputs, output_axis };
                    let pieces = of_matrix(matrix, ipuc_formats::dtype::DType::F32);
                    let of_piece = |piece: &Piece| {
                        let rows = (0..piece.rows).map(|row| (piece.first + row * piece.stride) as usize);
                        let classes: Vec<u8> =
                            rows.flat_map(|first| &classes[first..first + piece.length as usize]).copied().collect();
                        Counts::of(piece, Some(matrix), &classes)
                    };
                    let counts = pieces.iter().map(of_piece).fold(Counts::default(), |sum, counts| sum.and(&counts));
                    assert_eq!(
                        counts,
                        plainly(matrix, &classes),
                        "{inputs} inputs, {outputs} outputs, axis {output_axis}"
                    );
                }
            }
        }
    }
}
