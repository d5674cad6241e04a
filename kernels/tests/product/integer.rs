//! Products of integers against sums in 64 bits.

use ipuc_kernels::{
    product::{
        ByteType, IntegerPiece, IntegerRows, IntegerSums, IntegerWeight, SumOrder, Zero, integer_product, pack_integers,
    },
    simd::Instructions,
    testing::with_threads,
    window::WindowAxis,
};
use proptest::prelude::*;

fn number(byte: u8, kind: ByteType) -> i64 {
    if kind.signed { i64::from(byte as i8) } else { i64::from(byte) }
}

/// Bytes among which the extreme ones are frequent.
fn bytes(count: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match state >> 29 {
            0 => 0,
            1 => 255,
            2 => 128,
            3 => 127,
            _ => (state >> 16) as u8,
        }
    };
    std::iter::repeat_with(next).take(count).collect()
}

#[derive(Debug)]
struct Case {
    rows: usize,
    inputs: usize,
    outputs: usize,
    x: (Vec<u8>, ByteType, u8),
    w: (Vec<u8>, ByteType, Vec<u8>),
}

impl Case {
    fn expected(&self) -> Vec<i32> {
        let (x, x_kind, zero) = &self.x;
        let (w, w_kind, zeros) = &self.w;
        let mut sums = Vec::new();
        for row in 0..self.rows {
            for output in 0..self.outputs {
                let terms = (0..self.inputs).map(|input| {
                    (number(x[row * self.inputs + input], *x_kind) - number(*zero, *x_kind))
                        * (number(w[input * self.outputs + output], *w_kind) - number(zeros[output], *w_kind))
                });
                sums.push(terms.sum::<i64>() as i32);
            }
        }
        sums
    }

    /// In calls with the inputs up to each of `cuts`.
    fn run(&self, instructions: Instructions, cuts: &[usize]) -> Vec<i32> {
        let found = self.run_in(instructions, cuts, SumOrder::Rows, self.rows * self.outputs);
        // The other order has the same sums, and leaves what lies beside them.
        let (stride, first) = (self.rows + 3, 2);
        let across = self.run_in(instructions, cuts, SumOrder::Outputs { stride, first }, self.outputs * stride);
        for (output, across) in across.chunks(stride).enumerate() {
            let column: Vec<i32> = found.iter().skip(output).step_by(self.outputs).copied().collect();
            assert_eq!(across[first..first + self.rows], column, "output {output}");
            assert_eq!([across[0], across[1], across[stride - 1]], [0; 3]);
        }
        found
    }

    fn run_in(&self, instructions: Instructions, cuts: &[usize], order: SumOrder, count: usize) -> Vec<i32> {
        let rows = IntegerRows::new(&self.x.0, self.rows, self.inputs, self.x.1);
        let zeros: Vec<i32> = self.w.2.iter().map(|&zero| number(zero, self.w.1) as i32).collect();
        let weight = IntegerWeight { kind: self.w.1, zeros: &zeros };
        let mut sums = vec![0; count];
        let mut start = 0;
        for end in cuts.iter().copied().chain([self.inputs]) {
            let part = &self.w.0[start * self.outputs..end * self.outputs];
            let lines = pack_integers(part, [end - start, self.outputs], [self.outputs, 1]);
            let panels = 0..self.outputs.div_ceil(16);
            let piece = IntegerPiece { panels, inputs: start..end, lines: &lines };
            let out = IntegerSums { sums: &mut sums, order };
            let zero = number(self.x.2, self.x.1) as i32;
            integer_product(instructions, &rows, zero, weight, &[piece], out);
            start = end;
        }
        sums
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let shape = (1usize..30, prop_oneof![0usize..40, 200usize..300], 1usize..50);
    (shape, any::<[bool; 3]>(), any::<u32>(), any::<[u8; 2]>()).prop_map(
        |((rows, inputs, outputs), [x_signed, w_signed, zero_row], seed, [zero, w_zero])| {
            let mut x = bytes(rows * inputs, seed);
            if zero_row {
                x[..inputs].fill(0);
            }
            let zeros = if w_zero < 100 { vec![w_zero; outputs] } else { bytes(outputs, seed ^ 1) };
            let w = (bytes(inputs * outputs, seed ^ 2), ByteType { signed: w_signed }, zeros);
            Case { rows, inputs, outputs, x: (x, ByteType { signed: x_signed }, zero), w }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn sums_are_exact_on_every_instruction_set(case in cases(), cut in 0usize..64) {
        let expected = case.expected();
        for instructions in Instructions::available() {
            prop_assert_eq!(&case.run(instructions, &[]), &expected, "{}", instructions.name());
            let cut = (cut * 4).min(case.inputs / 4 * 4);
            prop_assert_eq!(&case.run(instructions, &[cut]), &expected, "{} cut at {}", instructions.name(), cut);
        }
    }
}

#[test]
fn the_largest_products_do_not_saturate() {
    for (x, x_signed) in [(255, false), (128, true)] {
        for (w, w_signed) in [(128, true), (255, false)] {
            let (rows, inputs, outputs) = (9, 4099, 17);
            let (x_kind, w_kind) = (ByteType { signed: x_signed }, ByteType { signed: w_signed });
            let w = (vec![w; inputs * outputs], w_kind, vec![0; outputs]);
            let case = Case { rows, inputs, outputs, x: (vec![x; rows * inputs], x_kind, 0), w };
            let expected = case.expected();
            for instructions in Instructions::available() {
                assert_eq!(case.run(instructions, &[]), expected, "{}", instructions.name());
            }
        }
    }
}

#[test]
fn threads_do_not_change_sums() {
    let (rows, inputs, outputs) = (70, 333, 75);
    let kind = ByteType { signed: true };
    let w = (bytes(inputs * outputs, 5), kind, bytes(outputs, 6));
    let case = Case { rows, inputs, outputs, x: (bytes(rows * inputs, 7), ByteType { signed: false }, 131), w };
    let one = with_threads(1, || case.run(Instructions::best(), &[]));
    assert_eq!(one, case.expected());
    assert_eq!(with_threads(3, || case.run(Instructions::best(), &[])), one);
}

#[test]
fn windows_are_rows_with_zero_points_around() {
    let axis = |input, output, kernel, pad_begin| WindowAxis {
        input,
        output,
        kernel,
        stride: 1,
        dilation: 1,
        pad_begin,
        pad_end: 0,
    };
    // Two channels of 2 by 3, windows of 2 by 2 with a row of padding above.
    let image = [1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16];
    let zero = Zero { code: 200, kind: ByteType { signed: false } };
    let axes = [axis(2, 2, 2, 1), axis(3, 2, 2, 0)];
    let rows = IntegerRows::windows(&axes, &image, 2, 1..3, zero);
    let expected = [200, 200, 2, 3, 200, 200, 12, 13, 1, 2, 4, 5, 11, 12, 14, 15];
    let direct = IntegerRows::new(&expected, 2, 8, zero.kind);
    assert_eq!(format!("{rows:?}"), format!("{direct:?}"));
}
