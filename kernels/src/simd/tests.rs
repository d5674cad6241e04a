//! Every instruction set does what the scalar operations do.

use super::*;
use crate::testing::float_of_8_bits as float;

/// Lanes that meet zeros, infinities, NaN, subnormals and ordinary numbers.
const A: [f32; LANES] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    2.5,
    -3.5,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    1e-40,
    -1e-40,
    1e30,
    -1e30,
    0.5,
    1.5,
    8388609.0,
];
const B: [f32; LANES] =
    [1.0, 0.0, -2.0, 4.0, f32::NAN, 7.0, 1.0, f32::INFINITY, 2.0, 3.0, 1e-40, -1e9, 1e9, -0.0, 1.5, 3.0];

const POSITIVE: [f32; LANES] =
    [1.0, 1.5, 2.0, 3.0, 0.5, 0.75, 1e10, 1e-10, 1e30, 1e-30, 7.0, 8.0, 9.0, 100.0, 1024.0, 0.1];

struct AllOperations;

impl Routine for AllOperations {
    type Output = Vec<[f32; LANES]>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let (a, b) = (simd.load(&A), simd.load(&B));
        let mut results = Vec::new();
        for vector in [
            simd.add(a, b),
            simd.subtract(a, b),
            simd.multiply(a, b),
            simd.divide(a, b),
            simd.select_less(a, b, simd.splat(1.0), a),
            simd.maximum(a, b),
            simd.minimum(a, b),
            simd.at_least(a, b),
            simd.at_most(a, b),
            simd.square_root(a),
            simd.floor(a),
            simd.ceil(a),
            simd.mantissa_and_exponent(simd.load(&POSITIVE)).0,
            simd.mantissa_and_exponent(simd.load(&POSITIVE)).1,
            simd.absolute(a),
            simd.copy_sign(a, b),
            simd.round(a),
            simd.load_partial(&A[..5]),
            simd.load_partial(&A[..11]),
            simd.load_partial(&A),
            simd.load_every_second(&[A, B].concat()),
            simd.load_every_second(&A[..7]),
        ] {
            let mut lanes = [0.0; LANES];
            simd.store(vector, &mut lanes);
            results.push(lanes);
        }
        let many: [f32; 4 * LANES] = std::array::from_fn(|place| place as f32);
        let quarters = simd.load_quarters(&many);
        for (quarter, vector) in quarters.into_iter().enumerate() {
            let mut lanes = [0.0; LANES];
            simd.store(vector, &mut lanes);
            assert_eq!(lanes, std::array::from_fn(|lane| (4 * lane + quarter) as f32), "quarter {quarter}");
        }
        let mut joined = [0.0; 4 * LANES];
        simd.store_quarters(quarters, &mut joined);
        assert_eq!(joined, many);
        for (first, count) in [0, 1].into_iter().flat_map(|first| (0..=LANES + 1).map(move |count| (first, count))) {
            let given = &many[first..first + count];
            let loaded = simd.load_partial(given);
            let mut lanes = [0.0; LANES];
            simd.store(loaded, &mut lanes);
            let known = count.min(LANES);
            assert_eq!(lanes[..known], given[..known], "{count} values");
            assert!(lanes[known..].iter().all(|&value| value == 0.0), "{count} values");
            let mut few = [-9.0; LANES + 3];
            simd.store_partial(simd.load(&std::array::from_fn(|lane| many[lane])), &mut few[first..first + count]);
            assert_eq!(few[first..first + known], many[..known], "{count} values");
            assert!(few[..first].iter().chain(&few[first + known..]).all(|&value| value == -9.0), "{count} values");
        }
        results
    }
}

fn bits(lanes: &[f32; LANES]) -> [u32; LANES] {
    // One bit pattern for NaN: which one comes out is not defined.
    lanes.map(|lane| if lane.is_nan() { f32::NAN.to_bits() } else { lane.to_bits() })
}

#[test]
fn operations_equal_scalar_ones() {
    let pairs =
        |function: fn(f32, f32) -> f32| -> [f32; LANES] { std::array::from_fn(|lane| function(A[lane], B[lane])) };
    let expected = [
        pairs(|a, b| a + b),
        pairs(|a, b| a - b),
        pairs(|a, b| a * b),
        pairs(|a, b| a / b),
        pairs(|a, b| if a < b { 1.0 } else { a }),
        pairs(|a, b| {
            if a.is_nan() || b.is_nan() {
                f32::NAN
            } else if a > b {
                a
            } else {
                b
            }
        }),
        pairs(|a, b| {
            if a.is_nan() || b.is_nan() {
                f32::NAN
            } else if a < b {
                a
            } else {
                b
            }
        }),
        pairs(|a, b| if a < b { b } else { a }),
        pairs(|a, b| if b < a { b } else { a }),
        pairs(|a, _| a.sqrt()),
        pairs(|a, _| a.floor()),
        pairs(|a, _| a.ceil()),
        POSITIVE.map(|a| a / 2.0_f32.powf(a.log2().floor())),
        POSITIVE.map(|a| a.log2().floor()),
        pairs(|a, _| a.abs()),
        pairs(f32::copysign),
        pairs(|a, _| a.round_ties_even()),
        std::array::from_fn(|lane| if lane < 5 { A[lane] } else { 0.0 }),
        std::array::from_fn(|lane| if lane < 11 { A[lane] } else { 0.0 }),
        A,
        std::array::from_fn(|lane| if lane < 8 { A[2 * lane] } else { B[2 * lane - 16] }),
        std::array::from_fn(|lane| if lane < 4 { A[2 * lane] } else { 0.0 }),
        std::array::from_fn(|lane| 2.0_f32.powi(lane as i32 * 16 - 126)),
    ];
    for instructions in Instructions::available() {
        for (index, (result, expected)) in instructions.run(AllOperations).iter().zip(&expected).enumerate() {
            assert_eq!(bits(result), bits(expected), "operation {index} on {}", instructions.name());
        }
    }
}

/// From 1 to 2.
fn mantissas() -> [f32; LANES] {
    std::array::from_fn(|lane| 1.0 + lane as f32 / 17.0)
}

struct Scaled;

impl Routine for Scaled {
    type Output = Vec<[f32; LANES]>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let mut results = Vec::new();
        for exponent in -252..=254 {
            let mut lanes = [0.0; LANES];
            simd.store(simd.scale_by_power(simd.load(&mantissas()), simd.splat(exponent as f32)), &mut lanes);
            results.push(lanes);
        }
        results
    }
}

#[test]
fn numbers_are_scaled_by_powers_and_rounded_once() {
    for instructions in Instructions::available() {
        for (exponent, lanes) in (-252..=254).zip(instructions.run(Scaled)) {
            // An f64 holds the product exactly.
            let expected = mantissas().map(|value| (f64::from(value) * 2.0_f64.powi(exponent)) as f32);
            assert_eq!(bits(&lanes), bits(&expected), "2^{exponent} on {}", instructions.name());
        }
    }
}

struct Fused;

impl Routine for Fused {
    type Output = [f32; LANES];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let mut lanes = [0.0; LANES];
        simd.store(simd.fused(simd.splat(1.0 + f32::EPSILON), simd.splat(3.0), simd.splat(0.5)), &mut lanes);
        lanes
    }
}

#[test]
fn fused_is_the_sum_of_a_product() {
    for instructions in Instructions::available() {
        for lane in instructions.run(Fused) {
            assert!((lane - 3.5).abs() <= 1e-6, "{lane} on {}", instructions.name());
        }
    }
}

struct Halves;

impl Routine for Halves {
    type Output = [[f32; LANES]; 4];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let halves = A.map(f16::from_f32);
        let pairs: [bf16; 2 * LANES] =
            std::array::from_fn(|index| bf16::from_f32(if index % 2 == 0 { A[index / 2] } else { B[index / 2] }));
        let mut results = [[0.0; LANES]; 4];
        simd.store(simd.load_f16(&halves), &mut results[0]);
        simd.store(simd.load_bf16_even(&pairs), &mut results[1]);
        simd.store(simd.load_bf16_odd(&pairs), &mut results[2]);
        simd.store(simd.load_bf16(&A.map(bf16::from_f32)), &mut results[3]);
        results
    }
}

#[test]
fn half_floats_are_exact() {
    for instructions in Instructions::available() {
        let results = instructions.run(Halves);
        assert_eq!(bits(&results[0]), bits(&A.map(|a| f16::from_f32(a).to_f32())), "{}", instructions.name());
        assert_eq!(bits(&results[1]), bits(&A.map(|a| bf16::from_f32(a).to_f32())), "{}", instructions.name());
        assert_eq!(bits(&results[3]), bits(&results[1]), "{}", instructions.name());
        assert_eq!(bits(&results[2]), bits(&B.map(|b| bf16::from_f32(b).to_f32())), "{}", instructions.name());
    }
}

struct Transpose;

impl Routine for Transpose {
    type Output = [[f32; LANES]; LANES];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let mut result = [[0.0; LANES]; LANES];
        let rows = std::array::from_fn(|row| simd.load(&std::array::from_fn(|column| (row * LANES + column) as f32)));
        for (values, column) in result.iter_mut().zip(simd.transpose(rows)) {
            simd.store(column, values);
        }
        result
    }
}

#[test]
fn transpose_swaps_rows_and_columns() {
    let expected: [[f32; LANES]; LANES] =
        std::array::from_fn(|column| std::array::from_fn(|row| (row * LANES + column) as f32));
    for instructions in Instructions::available() {
        assert_eq!(instructions.run(Transpose), expected, "{}", instructions.name());
    }
}

const I: [i32; LANES] =
    [0, 1, -1, 7, -8, 255, i32::MAX, i32::MIN, 0x7f80_8001, -0x0102_0304, 65_536, 1 << 24, 16_777_217, 9, 10, -300];
const J: [i32; LANES] =
    [5, -1, -1, 0x7f81_7f81, 3, i32::MIN, 2, -1, 0x7f7f_7f7f, -0x7f01_80ff, 65_536, 99, 1, 0x0180_0180, 31, 12];

struct IntegerOperations;

impl Routine for IntegerOperations {
    type Output = Vec<[i32; LANES]>;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let (a, b) = (simd.load_integers(&I), simd.load_integers(&J));
        let narrow = simd.and(a, simd.splat_integer(0x7f7f_7f7f));
        let mut results = Vec::new();
        for integers in [
            simd.add_integers(a, b),
            simd.subtract_integers(a, b),
            simd.multiply_integers(a, b),
            simd.and(a, b),
            simd.exclusive_or(a, b),
            simd.shift_left(a, 5),
            simd.shift_right(a, 28),
            simd.shift_right_signed(a, 28),
            simd.dot(b, a, b),
            simd.dot(b, simd.splat_integer(-1), simd.splat_integer(0x7f7f_7f7f)),
            simd.dot(b, simd.splat_integer(-1), simd.splat_integer(0x7f81_7f81)),
            simd.dot_narrow(b, narrow, b),
            simd.dot_halves(b, a, b),
            simd.add_pairs(
                simd.and(b, simd.splat_integer(0x0fff_0fff)),
                simd.and(a, simd.splat_integer(0x0f0f_0f0f)),
                b,
            ),
        ] {
            let mut lanes = [0; LANES];
            simd.store_integers(integers, &mut lanes);
            results.push(lanes);
        }
        results
    }
}

struct Narrow(i32, bool);

impl Routine for Narrow {
    type Output = [[u8; 4 * LANES]; 2];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let (a, b) = (simd.load_integers(&I), simd.load_integers(&J));
        let vectors = [a, b, simd.shift_right_signed(a, 20), simd.shift_right_signed(b, 23)];
        [simd.narrow(vectors, self.0, self.1), simd.narrow_quarters(vectors, self.0, self.1)]
    }
}

#[test]
fn sums_are_limited_to_bytes() {
    let vectors = [I, J, I.map(|lane| lane >> 20), J.map(|lane| lane >> 23)];
    for (added, signed) in [(0, true), (0, false), (-128, true), (127, true), (255, false), (-255, false), (9, false)] {
        let limited = |lane: i32| {
            let sum = i64::from(lane) + i64::from(added);
            if signed { sum.clamp(-128, 127) as u8 } else { sum.clamp(0, 255) as u8 }
        };
        let one_by_one: Vec<u8> = vectors.as_flattened().iter().map(|&lane| limited(lane)).collect();
        let by_quarters: Vec<u8> =
            (0..4 * LANES).map(|place| limited(vectors[place % vectors.len()][place / vectors.len()])).collect();
        for instructions in Instructions::available() {
            let [narrow, quarters] = instructions.run(Narrow(added, signed));
            assert_eq!(narrow.to_vec(), one_by_one, "{} {added} {signed}", instructions.name());
            assert_eq!(quarters.to_vec(), by_quarters, "{} {added} {signed}", instructions.name());
        }
    }
}

fn dot(sum: i32, unsigned: i32, signed: i32) -> i32 {
    let products = unsigned.to_le_bytes().into_iter().zip(signed.to_le_bytes());
    products.fold(sum, |sum, (unsigned, signed)| sum.wrapping_add(i32::from(unsigned) * i32::from(signed as i8)))
}

#[test]
fn integer_operations_equal_scalar_ones() {
    let pairs =
        |function: fn(i32, i32) -> i32| -> [i32; LANES] { std::array::from_fn(|lane| function(I[lane], J[lane])) };
    let expected = [
        pairs(i32::wrapping_add),
        pairs(i32::wrapping_sub),
        pairs(i32::wrapping_mul),
        pairs(|a, b| a & b),
        pairs(|a, b| a ^ b),
        pairs(|a, _| a << 5),
        pairs(|a, _| (a as u32 >> 28) as i32),
        pairs(|a, _| a >> 28),
        pairs(|a, b| dot(b, a, b)),
        J.map(|b| b.wrapping_add(4 * 255 * 127)),
        J,
        pairs(|a, b| dot(b, a & 0x7f7f_7f7f, b)),
        pairs(|a, b| {
            let [low, high] = [0, 16].map(|bits| i32::from((a >> bits) as i16) * i32::from((b >> bits) as i16));
            b.wrapping_add(low).wrapping_add(high)
        }),
        pairs(|a, b| {
            let halves = [0, 16].map(|bits| {
                let (before, pair) = ((b >> bits & 0x0fff) as i16, dot(0, a >> bits & 0x0f0f, b >> bits & 0xffff));
                i32::from((before + pair as i16) as u16) << bits
            });
            halves[0] | halves[1]
        }),
    ];
    for instructions in Instructions::available() {
        let results = instructions.run(IntegerOperations);
        for (operation, (result, expected)) in results.iter().zip(&expected).enumerate() {
            assert_eq!(result, expected, "operation {operation} on {}", instructions.name());
        }
        assert_eq!(results.len(), expected.len());
    }
}

/// 2 to the power -12.
const LITTLE: f32 = 1.0 / 4096.0;

struct BetweenNumbers;

impl Routine for BetweenNumbers {
    type Output = [[f32; LANES]; 4];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let mut bytes = [0; 4 * LANES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = (index * 37 % 256) as u8;
        }
        let mut results = [[0.0; LANES]; 4];
        simd.store(simd.convert(simd.load_integers(&I)), &mut results[0]);
        simd.store(simd.convert(simd.load_bytes(&bytes)), &mut results[1]);
        simd.store(simd.lookup(simd.load(&B), simd.load_integers(&I)), &mut results[2]);
        // (1 + e)² - 1 is 2e + e²: e² is lost where the product is rounded.
        let value = simd.splat(1.0 + LITTLE);
        simd.store(simd.fused_exactly(value, value, simd.splat(-1.0)), &mut results[3]);
        results
    }
}

#[test]
fn integers_become_floats_and_name_places() {
    for instructions in Instructions::available() {
        let results = instructions.run(BetweenNumbers);
        let name = instructions.name();
        assert_eq!(results[0], I.map(|value| value as f32), "{name}");
        let words: [f32; LANES] = std::array::from_fn(|lane| {
            i32::from_le_bytes(std::array::from_fn(|byte| ((4 * lane + byte) * 37 % 256) as u8)) as f32
        });
        assert_eq!(results[1], words, "{name}");
        assert_eq!(bits(&results[2]), bits(&I.map(|place| B[(place & 15) as usize])), "{name}");
        assert_eq!(results[3], [2.0 * LITTLE + LITTLE * LITTLE; LANES], "{name}");
    }
}

struct Wide;

impl Routine for Wide {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f64 {
        simd.fused_wide(1.25, -3.5, 0.5)
    }
}

#[test]
fn wide_numbers_are_multiplied_and_added() {
    for instructions in Instructions::available() {
        assert_eq!(instructions.run(Wide), -3.875, "{}", instructions.name());
    }
}

struct NearestIntegers([f32; LANES]);

impl Routine for NearestIntegers {
    type Output = [i32; LANES];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let mut nearest = [0; LANES];
        simd.store_integers(simd.nearest_integers(simd.load(&self.0)), &mut nearest);
        nearest
    }
}

#[test]
fn integers_are_the_nearest_within_their_range() {
    let lanes = [
        0.5,
        1.5,
        -2.5,
        -0.0,
        2_147_483_520.0,
        2_147_483_648.0,
        -2_147_483_648.0,
        -2_147_483_904.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
        1e-40,
        8_388_609.0,
        -126.500_01,
        3e38,
    ];
    let nearest = [
        0,
        2,
        -2,
        0,
        2_147_483_520,
        i32::MAX,
        i32::MIN,
        i32::MIN,
        i32::MAX,
        i32::MIN,
        0,
        0,
        0,
        8_388_609,
        -127,
        i32::MAX,
    ];
    for instructions in Instructions::available() {
        assert_eq!(instructions.run(NearestIntegers(lanes)), nearest, "{}", instructions.name());
    }
}

struct RoundedHalves([f32; LANES]);

impl Routine for RoundedHalves {
    type Output = [[f32; LANES]; 4];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let mut results = [[0.0; LANES]; 4];
        let (mut halves, mut brains) = ([f16::ZERO; LANES], [bf16::ZERO; LANES]);
        simd.store_f16(simd.load(&self.0), &mut halves);
        simd.store_bf16(simd.load(&self.0), &mut brains);
        results[2] = halves.map(f16::to_f32);
        results[3] = brains.map(bf16::to_f32);
        simd.store(simd.round_to_f16(simd.load(&self.0)), &mut results[0]);
        simd.store(simd.round_to_bf16(simd.load(&self.0)), &mut results[1]);
        results
    }
}

#[test]
fn rounding_to_half_floats_is_to_even() {
    let ties = [1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 65_520.0, -65_519.0];
    let mut more = B.map(|b| b * 1.000_3);
    more[..ties.len()].copy_from_slice(&ties);
    more[15] = f32::MAX;
    for instructions in Instructions::available() {
        for lanes in [A, POSITIVE, more] {
            let results = instructions.run(RoundedHalves(lanes));
            assert_eq!(
                bits(&results[0]),
                bits(&lanes.map(|lane| f16::from_f32(lane).to_f32())),
                "{}",
                instructions.name()
            );
            assert_eq!(
                bits(&results[1]),
                bits(&lanes.map(|lane| bf16::from_f32(lane).to_f32())),
                "{}",
                instructions.name()
            );
            for (stored, rounded) in [(2, 0), (3, 1)] {
                assert_eq!(bits(&results[stored]), bits(&results[rounded]), "stored, {}", instructions.name());
            }
        }
    }
}

/// Bytes of each lane as floats of 8 bits: f8e4m3fn, then f8e5m2.
struct Floats8([u8; 4 * LANES]);

impl Routine for Floats8 {
    type Output = [[[f32; LANES]; 4]; 2];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let mut results = [[[0.0; LANES]; 4]; 2];
        let (e4m3, e5m2) = (simd.load_e4m3(&self.0), simd.load_e5m2(&self.0));
        for place in 0..4 {
            simd.store(e4m3[place], &mut results[0][place]);
            simd.store(e5m2[place], &mut results[1][place]);
        }
        results
    }
}

#[test]
fn every_float_of_8_bits_is_its_value() {
    for instructions in Instructions::available() {
        for first in 0..=u8::MAX {
            let bytes: [u8; 4 * LANES] = std::array::from_fn(|at| first.wrapping_add(at as u8));
            let found = instructions.run(Floats8(bytes));
            for (at, &byte) in bytes.iter().enumerate() {
                let (lane, place) = (at / 4, at % 4);
                let expected = [float(byte, 3, 7), float(byte, 2, 15)];
                for (found, expected) in found.iter().zip(expected) {
                    let found = found[place][lane];
                    let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                    assert!(same, "{}: {byte:#x} is {found}, not {expected}", instructions.name());
                }
            }
        }
    }
}

struct BytesLookedUp([u8; 4 * LANES], [u8; 4 * LANES]);

impl Routine for BytesLookedUp {
    type Output = [i32; LANES];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let mut lanes = [0; LANES];
        simd.store_integers(simd.lookup_bytes(simd.load_bytes(&self.0), simd.load_bytes(&self.1)), &mut lanes);
        lanes
    }
}

#[test]
fn bytes_are_those_of_places_of_their_16() {
    let table: [u8; 4 * LANES] = std::array::from_fn(|at| 3 * at as u8);
    let places: [u8; 4 * LANES] = std::array::from_fn(|at| (at * 7 % 16) as u8);
    let expected: [u8; 4 * LANES] = std::array::from_fn(|at| table[at / 16 * 16 + usize::from(places[at])]);
    for instructions in Instructions::available() {
        let found = instructions.run(BytesLookedUp(table, places));
        assert_eq!(bytemuck::cast::<_, [u8; 4 * LANES]>(found), expected, "{}", instructions.name());
    }
}

struct Interleaved([[u8; 4 * LANES]; 4]);

impl Routine for Interleaved {
    type Output = [[i32; LANES]; 4];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let [a, b, c, d] = &self.0;
        let rows = [simd.load_bytes(a), simd.load_bytes(b), simd.load_bytes(c), simd.load_bytes(d)];
        let words = simd.interleave_bytes(rows);
        let mut lanes = [[0; LANES]; 4];
        for vector in 0..4 {
            simd.store_integers(words[vector], &mut lanes[vector]);
        }
        lanes
    }
}

#[test]
fn bytes_of_four_rows_lie_side_by_side() {
    let rows: [[u8; 4 * LANES]; 4] = std::array::from_fn(|row| std::array::from_fn(|at| (64 * row + at) as u8));
    for instructions in Instructions::available() {
        let words = instructions.run(Interleaved(rows));
        for (vector, lanes) in words.iter().enumerate() {
            for (lane, word) in lanes.iter().enumerate() {
                let place = 16 * (lane / 4) + 4 * vector + lane % 4;
                assert_eq!(word.to_le_bytes(), rows.map(|row| row[place]), "{} {vector} {lane}", instructions.name());
            }
        }
    }
}

struct Bits;

impl Routine for Bits {
    type Output = ([i32; LANES], [f32; LANES]);

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let (mut integers, mut floats) = ([0; LANES], [0.0; LANES]);
        let bits = simd.bits(simd.load(&A));
        simd.store_integers(bits, &mut integers);
        simd.store(simd.of_bits(bits), &mut floats);
        (integers, floats)
    }
}

#[test]
fn bits_are_those_of_lanes() {
    for instructions in Instructions::available() {
        let (integers, floats) = instructions.run(Bits);
        assert_eq!(integers.map(i32::cast_unsigned), bits(&A), "{}", instructions.name());
        assert_eq!(bits(&floats), bits(&A), "{}", instructions.name());
    }
}
