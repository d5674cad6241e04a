//! Exact products against plain loops: the same bits on every instruction set, in every cut, for every number of rows.

use ipuc_kernels::{
    product::{
        ByteType, CodeType, CodedRole, ExactRows, ExactWeight, ExactWords, IntegerRows, OpenPanels, PANEL_OUTPUTS,
        PlaneType, Rounded, exact_product,
    },
    simd::Instructions,
    testing::{numbers, with_threads},
};
use std::sync::Arc;

use super::coded::{Aligned, CODES, Call, Coded, calls, exact_planes, meaning, pieces, plane};

/// Integers of 8 or 16 bits.
#[derive(Clone, Copy, Debug)]
struct Kind {
    bits: u32,
    signed: bool,
}

const KINDS: [Kind; 4] = [
    Kind { bits: 8, signed: true },
    Kind { bits: 8, signed: false },
    Kind { bits: 16, signed: true },
    Kind { bits: 16, signed: false },
];

impl Kind {
    /// Integers of the whole range, the ends of which are frequent.
    fn integers(self, seed: u32, count: usize) -> Vec<i64> {
        let least = if self.signed { -(1_i64 << (self.bits - 1)) } else { 0 };
        let last = (1_i64 << self.bits) - 1;
        let number =
            |value: f32| least + (f64::from(value * 1.2 + 1.0) / 2.0 * last as f64).clamp(0.0, last as f64) as i64;
        numbers(seed, count).into_iter().map(number).collect()
    }
}

struct Activations {
    kind: Kind,
    m: usize,
    k: usize,
    codes: Vec<i64>,
    zero: i64,
}

impl Activations {
    fn new(kind: Kind, m: usize, k: usize, zero: i64) -> Self {
        Self { kind, m, k, codes: kind.integers(5, m * k), zero }
    }

    /// Byte `byte` of each code.
    fn bytes(&self, byte: u32, signed: bool) -> IntegerRows<'static> {
        let bytes: Vec<u8> = self.codes.iter().map(|code| (code >> (8 * byte)) as u8).collect();
        IntegerRows::new(&bytes, self.m, self.k, ByteType { signed })
    }

    fn rows(&self) -> ExactRows<'static> {
        let (signed, zero) = (self.kind.signed, self.zero as i32);
        if self.kind.bits == 8 {
            return ExactRows::of_bytes(self.bytes(0, signed), zero);
        }
        ExactRows::of_words([self.bytes(1, signed), self.bytes(0, false)], zero)
    }

    fn centred(&self, row: usize, input: usize) -> i64 {
        self.codes[row * self.k + input] - self.zero
    }
}

/// What the product of codes is, in plain loops.
fn reference(weight: &Coded, x: &Activations) -> Vec<f64> {
    let blocks = weight.layout.planes().iter().filter(|plane| plane.role != CodedRole::Sum).map(|plane| plane.block);
    let block = blocks.filter(|&block| block > 0).min();
    let value = |row: usize, output: usize| {
        let (mut y, mut whole) = (0.0_f32, 0.0);
        let length = block.unwrap_or(x.k);
        for first in (0..x.k).step_by(length) {
            let (scale, zero_point) = weight.parameters(first, output);
            let zero_point = zero_point.unwrap_or(0.0) as i64;
            let number = |input: usize| meaning(weight.layout.code(), weight.codes[input * weight.n + output]) as i64;
            let products = (first..x.k.min(first + length)).map(|i| (number(i) - zero_point) * x.centred(row, i));
            let sum = products.sum::<i64>();
            y = (sum as f32).mul_add(scale, y);
            whole = sum as f64 * f64::from(scale);
        }
        if block.is_some() { f64::from(y) } else { whole }
    };
    (0..x.m).flat_map(|row| (0..weight.n).map(move |output| value(row, output))).collect()
}

/// The product, given in these pieces, which `pack` makes.
fn multiply(
    instructions: Instructions,
    (weight, n): (ExactWeight<'_>, usize),
    x: &Activations,
    calls: &[Call],
    pack: impl Fn(&Call) -> Vec<Arc<Aligned>>,
) -> Vec<f64> {
    let mut out = vec![f64::NAN; x.m * n];
    let mut open = OpenPanels::default();
    let rows = x.rows();
    for call in calls {
        let packed = pack(call);
        let pieces = pieces(call, &packed);
        exact_product(instructions, &rows, weight, &pieces, &mut open, &mut out, n);
    }
    assert!(open.is_empty(), "panels that did not end");
    out
}

fn check(weight: &Coded, x: &Activations) {
    let expected = reference(weight, x);
    let unit = weight.layout.cut().max(256);
    for instructions in Instructions::available() {
        for (index, calls) in calls(weight.n.div_ceil(PANEL_OUTPUTS), x.k, unit).iter().enumerate() {
            let pack =
                |call: &Call| call.iter().map(|(panels, inputs)| weight.pack(panels.clone(), inputs.clone())).collect();
            let codes = (ExactWeight::Codes(&weight.layout), weight.n);
            let found = multiply(instructions, codes, x, calls, pack);
            let (name, kind) = (instructions.name(), x.kind);
            assert!(found == expected, "{name}, m = {}, calls {index}, {kind:?}, {:?}", x.m, weight.layout);
        }
    }
}

#[test]
fn sums_are_those_of_plain_loops() {
    for code in CODES.into_iter().filter(|&code| code != CodeType::E2m1) {
        for (index, planes) in exact_planes(code).into_iter().enumerate() {
            let weight = Coded::new(code, 1301, 37, &planes, Rounded::F32);
            let kind = KINDS[index % KINDS.len()];
            for zero in [0, 101] {
                check(&weight, &Activations::new(kind, 3, 1301, zero));
            }
            // In whole blocks, which few rows of 8 bits widen in registers.
            let weight = Coded::new(code, 768, 37, &planes, Rounded::F32);
            for zero in [0, 101] {
                check(&weight, &Activations::new(KINDS[index % 2], 1 + index % 4, 768, zero));
            }
        }
    }
}

#[test]
fn every_number_of_rows_and_few_inputs() {
    let planes = [plane(CodedRole::Scale, PlaneType::F32, 32), plane(CodedRole::ZeroPoint, PlaneType::U4, 32)];
    for kind in KINDS {
        for m in [1, 2, 5, 8, 17] {
            check(&Coded::new(CodeType::U4, 96, 50, &planes, Rounded::F32), &Activations::new(kind, m, 96, 7));
        }
        for k in [1, 15, 17, 255] {
            check(&Coded::new(CodeType::I4, k, 3, &planes[..1], Rounded::F32), &Activations::new(kind, 2, k, 7));
        }
    }
}

/// Sums of 5,000 of the largest products, which take more than 32 bits.
#[test]
fn the_largest_products_are_exact() {
    let planes = [plane(CodedRole::Scale, PlaneType::F32, 0)];
    for (kind, end) in KINDS.into_iter().zip([-128, 255, -32768, 65535]) {
        let mut weight = Coded::new(CodeType::I8, 5000, 17, &planes, Rounded::F32);
        weight.codes.fill(-128);
        let x = Activations { kind, m: 2, k: 5000, codes: vec![end; 10_000], zero: 0 };
        check(&weight, &x);
    }
}

/// Codes of few bits by the least integer of 8 bits, of few rows with blocks and without.
#[test]
fn the_largest_products_of_few_bits_are_exact() {
    for (code, most) in [(CodeType::U4, 15), (CodeType::I4, 7), (CodeType::U2, 3), (CodeType::I2, 1)] {
        for block in [0, 32] {
            let planes = [plane(CodedRole::Scale, PlaneType::F32, block)];
            let mut weight = Coded::new(code, 1024, 17, &planes, Rounded::F32);
            weight.codes.fill(most);
            for m in [1, 2, 3, 9] {
                check(&weight, &Activations { kind: KINDS[0], m, k: 1024, codes: vec![-128; m * 1024], zero: 0 });
            }
        }
    }
}

/// Few rows whose sums fill 31 bits, with a zero point beyond the codes, and more inputs than such sums hold.
#[test]
fn the_largest_sums_of_few_rows_are_exact() {
    let planes = [plane(CodedRole::Scale, PlaneType::F32, 0), plane(CodedRole::ZeroPoint, PlaneType::I8, 0)];
    for k in [1 << 14, (1 << 14) + 256] {
        let mut weight = Coded::new(CodeType::U8, k, 16, &planes, Rounded::F32);
        weight.codes.fill(255);
        weight.planes[1].fill(-128.0);
        check(&weight, &Activations { kind: KINDS[1], m: 1, k, codes: vec![255; k], zero: 0 });
    }
}

/// Integers of 16 bits as weights.
struct Words {
    kind: Kind,
    n: usize,
    codes: Vec<i64>,
    zeros: Vec<i32>,
}

fn check_words(weight: &Words, x: &Activations) {
    let n = weight.n;
    let sum = |row: usize, output: usize| {
        let number = |input: usize| weight.codes[input * n + output] - i64::from(weight.zeros[output]);
        (0..x.k).map(|input| number(input) * x.centred(row, input)).sum::<i64>() as f64
    };
    let expected: Vec<f64> = (0..x.m).flat_map(|row| (0..n).map(move |output| sum(row, output))).collect();
    let pack = |call: &Call| {
        let code = |input: usize, output: usize| {
            if input < x.k && output < n { weight.codes[input * n + output] as u16 } else { 0 }
        };
        let bytes = |(panels, inputs): &(std::ops::Range<usize>, std::ops::Range<usize>)| {
            let mut bytes = Vec::new();
            for panel in panels.clone() {
                for input in inputs.clone().step_by(2) {
                    for output in panel * PANEL_OUTPUTS..(panel + 1) * PANEL_OUTPUTS {
                        bytes.extend(code(input, output).to_le_bytes());
                        bytes.extend(code(input + 1, output).to_le_bytes());
                    }
                }
            }
            Arc::new(Aligned::new(&bytes))
        };
        call.iter().map(bytes).collect()
    };
    let words = ExactWords { signed: weight.kind.signed, zeros: &weight.zeros, inputs: x.k };
    for instructions in Instructions::available() {
        for calls in calls(n.div_ceil(PANEL_OUTPUTS), x.k, 256) {
            let found = multiply(instructions, (ExactWeight::Words(words), n), x, &calls, pack);
            assert!(found == expected, "{}, {:?}, {:?}", instructions.name(), x.kind, weight.kind);
        }
    }
}

#[test]
fn weights_of_16_bits() {
    for kind in KINDS {
        for signed in [true, false] {
            let words = Kind { bits: 16, signed };
            for (m, k, n) in [(1, 3, 5), (5, 300, 20), (9, 2600, 37)] {
                let zeros = words.integers(3, n).into_iter().map(|zero| zero as i32).collect();
                let weight = Words { kind: words, n, codes: words.integers(9, k * n), zeros };
                check_words(&weight, &Activations::new(kind, m, k, 11));
            }
        }
    }
}

#[test]
fn threads_change_nothing() {
    let planes = [plane(CodedRole::Scale, PlaneType::F16, 32)];
    let weight = Coded::new(CodeType::I4, 512, 210, &planes, Rounded::F32);
    let x = Activations::new(KINDS[1], 40, 512, 100);
    with_threads(3, || check(&weight, &x));
    with_threads(1, || check(&weight, &x));
    // Codes of few rows are widened in registers.
    let few = Activations::new(KINDS[1], 2, 512, 100);
    with_threads(3, || check(&weight, &few));
}
