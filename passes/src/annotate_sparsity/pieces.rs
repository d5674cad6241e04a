//! Pieces in which a weight is read: each holds whole records of 16 outputs by 256 inputs, but for the last ones.

use ipuc_formats::dtype::DType;
use ipuc_formats::encodings::PANEL_OUTPUTS;
use ipuc_formats::ops::WeightMatrix;

/// Most bytes of a weight that are read at a time.
pub const PIECE_BYTES: u64 = 1 << 20;

/// Inputs of a record.
pub(super) const RECORD_INPUTS: u64 = 256;

/// Rows of elements that lie `stride` elements apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// First element.
    pub(super) first: u64,
    pub(super) rows: u64,
    /// Elements of a row.
    pub(super) length: u64,
    /// Elements from the begin of a row to that of the next.
    pub(super) stride: u64,
}

/// Elements of at most [`PIECE_BYTES`], at least `least` and a multiple of that.
fn fitting(dtype: DType, rows: u64, least: u64) -> u64 {
    let elements = PIECE_BYTES * 8 / (dtype.bits() as u64).max(1) / rows;
    (elements / least * least).max(least)
}

/// Elements without an order of inputs and outputs.
pub(super) fn flat(count: u64, dtype: DType) -> Vec<Piece> {
    // Elements of less than a byte: pieces begin between bytes.
    let most = fitting(dtype, 1, 8);
    let starts = (0..count).step_by(most as usize);
    starts
        .map(|first| {
            let length = most.min(count - first);
            Piece { first, rows: 1, length, stride: length }
        })
        .collect()
}

/// Elements of matrices; rows of a piece are outputs, or inputs where these are the first axis.
pub(super) fn of_matrix(matrix: WeightMatrix, dtype: DType) -> Vec<Piece> {
    let WeightMatrix { groups, inputs, outputs, output_axis } = matrix;
    let (rows, columns) = if output_axis == 0 { (outputs, inputs) } else { (inputs, outputs) };
    let (row_step, column_unit) =
        if output_axis == 0 { (PANEL_OUTPUTS as u64, RECORD_INPUTS) } else { (RECORD_INPUTS, PANEL_OUTPUTS as u64) };
    let column_step = fitting(dtype, row_step, column_unit);
    let mut pieces = Vec::new();
    for group in 0..groups {
        for row in (0..rows).step_by(row_step as usize) {
            for column in (0..columns).step_by(column_step as usize) {
                pieces.push(Piece {
                    first: (group * rows + row) * columns + column,
                    rows: row_step.min(rows - row),
                    length: column_step.min(columns - column),
                    stride: columns,
                });
            }
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn pieces_have_every_element_once_and_whole_records() {
        for (groups, inputs, outputs, output_axis) in
            [(1, 300, 40, 0), (2, 5, 3, 1), (1, 260, 1100, 1), (1, 17_000, 17, 0)]
        {
            let matrix = WeightMatrix { groups, inputs, outputs, output_axis };
            let pieces = of_matrix(matrix, DType::F32);
            let mut seen = BTreeSet::new();
            for piece in &pieces {
                assert!(piece.rows * piece.length * 4 <= PIECE_BYTES);
                for row in 0..piece.rows {
                    let first = piece.first + row * piece.stride;
                    assert!((first..first + piece.length).all(|element| seen.insert(element)));
                }
            }
            assert_eq!(seen.len() as u64, groups * inputs * outputs);
            assert_eq!(seen.last(), Some(&(groups * inputs * outputs - 1)));
        }
        let halves = flat(9_000_001, DType::I4);
        assert_eq!(halves.iter().map(|piece| piece.length).sum::<u64>(), 9_000_001);
        assert!(halves.iter().all(|piece| piece.first.is_multiple_of(2)));
    }
}
