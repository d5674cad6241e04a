//! Activations that are integers of 8 or 16 bits, digit by digit.

use crate::product::integer_rows::IntegerRows;

/// Rows `[m, k]` of integers of 8 bits, or of 16 as two digits of 8, and what is subtracted from each.
#[derive(Debug)]
pub struct ExactRows<'a> {
    /// From the most significant on.
    digits: Vec<Digit<'a>>,
}

/// One digit of all integers.
#[derive(Debug)]
pub(super) struct Digit<'a> {
    pub rows: IntegerRows<'a>,
    /// What is subtracted, as codes are multiplied.
    pub zero: i32,
}

impl<'a> Digit<'a> {
    fn new(rows: IntegerRows<'a>, zero: i32) -> Self {
        let zero = zero + rows.kind().activation_offset();
        Self { rows, zero }
    }
}

impl<'a> ExactRows<'a> {
    /// Integers of 8 bits less their zero point.
    #[must_use]
    pub fn of_bytes(rows: IntegerRows<'a>, zero: i32) -> Self {
        Self { digits: vec![Digit::new(rows, zero)] }
    }

    /// Integers of 16 bits less their zero point: of each the upper byte, which has the sign, and the lower one, which has none.
    ///
    /// # Panics
    /// If there are not as many of both.
    #[must_use]
    pub fn of_words([upper, lower]: [IntegerRows<'a>; 2], zero: i32) -> Self {
        assert_eq!((upper.rows(), upper.inputs()), (lower.rows(), lower.inputs()), "bytes of integers");
        assert!(!lower.kind().signed, "lower bytes have no sign");
        Self { digits: vec![Digit::new(upper, zero >> 8), Digit::new(lower, zero & 0xff)] }
    }

    /// The number of rows: m.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.digits[0].rows.rows()
    }

    /// The number of inputs: k.
    #[must_use]
    pub fn inputs(&self) -> usize {
        self.digits[0].rows.inputs()
    }

    pub(super) fn digits(&self) -> &[Digit<'a>] {
        &self.digits
    }
}
