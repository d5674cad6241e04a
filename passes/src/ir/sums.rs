//! Products of integers, and what they make of their sums.

use ipuc_formats::ops::{Op, Program};

/// The program of a product of integers, and how many operands are its own: those behind them are the program's.
pub fn program_of_sums(op: &mut Op) -> Option<(&mut Program, usize)> {
    if let Op::IntegerMatmul(product) = op {
        return Some((&mut product.program, 4));
    }
    if let Op::IntegerConvolution(product) = op {
        return Some((&mut product.program, 5));
    }
    None
}
