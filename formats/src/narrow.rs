//! Floating-point types of 8 bits and less, as codes in a byte: f8 (four kinds), f8e8m0, f4 and f6 (two kinds).
//!
//! Conversions are those of the ONNX operator Cast (opsets 19 to 28, its tables for `saturate` and `round_mode`)
//! and of the pages "Float stored in 8 bits" and "Float stored in 4 bits". Where they leave something open:
//!
//! - f8: NaN keeps its sign where the type has one (f8e5m2: 0x7e of the six codes).
//! - f8e8m0: the range is compared before rounding, as the table's `x > E8M0_MAX` says; negative numbers lie below it.
//! - f4 and f6 have neither NaN nor infinity: out of range saturates in any case. NaN becomes -0 as in the ONNX
//!   conformance suite (the page on f4 says 6).
//!
//! Leaves alone: f16 and bf16 (crate `half`), packing of codes into bytes ([`crate::tensor::pack_codes`]).

use crate::attribute::Keyword;
use crate::dtype::DType;

/// Rounding towards f8e8m0, ONNX attribute `round_mode`; all other types round to nearest, ties to even.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, strum::IntoStaticStr, strum::EnumString, strum::VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum RoundMode {
    /// Away from zero.
    #[default]
    Up,
    /// Towards zero.
    Down,
    /// To the nearest power of two, ties away from zero.
    Nearest,
}
impl Keyword for RoundMode {}

/// What codes beyond the greatest finite one mean.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    /// There are none.
    None,
    /// All ones is NaN, of either sign.
    NanOfBothSigns,
    /// An infinity, then NaN, as in IEEE 754.
    Infinity,
    /// Minus zero is NaN.
    NegativeZeroIsNan,
}

/// A sign, exponent and mantissa in a byte, and its values.
struct Format {
    /// All bits.
    bits: u32,
    /// Bits of the mantissa without the implicit one.
    mantissa_bits: u32,
    /// The exponent of the least normal number.
    least_exponent: i32,
    /// The code of the greatest finite number.
    greatest: u8,
    special: Special,
    values: [f32; 256],
}

static F8E4M3FN: Format = Format::new(8, 3, -6, 0x7e, Special::NanOfBothSigns);
static F8E4M3FNUZ: Format = Format::new(8, 3, -7, 0x7f, Special::NegativeZeroIsNan);
static F8E5M2: Format = Format::new(8, 2, -14, 0x7b, Special::Infinity);
static F8E5M2FNUZ: Format = Format::new(8, 2, -15, 0x7f, Special::NegativeZeroIsNan);
static F4E2M1: Format = Format::new(4, 1, 0, 0x07, Special::None);
static F6E2M3: Format = Format::new(6, 3, 0, 0x1f, Special::None);
static F6E3M2: Format = Format::new(6, 2, -2, 0x1f, Special::None);
static F8E8M0: [f32; 256] = powers_of_two();

/// The NaN of f8e8m0.
const E8M0_NAN: u8 = 0xff;
/// The greatest f8e8m0, 2^127.
const E8M0_MAX: u8 = 0xfe;
/// The exponent of f8e8m0's code 0.
const E8M0_LEAST_EXPONENT: i32 = -127;
/// Explicit bits of an f64's mantissa.
const F64_MANTISSA_BITS: u32 = f64::MANTISSA_DIGITS - 1;

/// The values of all 256 codes of a narrow float; `None` for every other type.
///
/// Bits above the type's width are ignored. Kernels that decode many codes look them up here.
pub fn values(dtype: DType) -> Option<&'static [f32; 256]> {
    if dtype == DType::F8E8M0 { Some(&F8E8M0) } else { format(dtype).map(|format| &format.values) }
}

/// The value of a code, exactly.
///
/// # Panics
/// If [`DType::is_narrow_float`] does not hold, which is a caller's bug.
pub fn decode(dtype: DType, code: u8) -> f32 {
    match values(dtype) {
        Some(values) => values[usize::from(code)],
        None => panic!("{dtype} is no narrow float"),
    }
}

/// The code of the nearest value; `saturate` applies to the types of 8 bits, `round` to f8e8m0.
///
/// # Panics
/// If [`DType::is_narrow_float`] does not hold, which is a caller's bug.
pub fn encode(dtype: DType, value: f32, saturate: bool, round: RoundMode) -> u8 {
    encode_f64(dtype, value.into(), saturate, round)
}

/// [`encode`] for f64, rounded once: by way of f32 it would be rounded twice.
///
/// # Panics
/// If [`DType::is_narrow_float`] does not hold, which is a caller's bug.
pub fn encode_f64(dtype: DType, value: f64, saturate: bool, round: RoundMode) -> u8 {
    match format(dtype) {
        Some(format) => format.encode(value, saturate),
        None if dtype == DType::F8E8M0 => encode_power_of_two(value, saturate, round),
        None => panic!("{dtype} is no narrow float"),
    }
}

fn format(dtype: DType) -> Option<&'static Format> {
    match dtype {
        DType::F8E4M3FN => Some(&F8E4M3FN),
        DType::F8E4M3FNUZ => Some(&F8E4M3FNUZ),
        DType::F8E5M2 => Some(&F8E5M2),
        DType::F8E5M2FNUZ => Some(&F8E5M2FNUZ),
        DType::F4E2M1 => Some(&F4E2M1),
        DType::F6E2M3 => Some(&F6E2M3),
        DType::F6E3M2 => Some(&F6E3M2),
        _ => None,
    }
}

impl Format {
    const fn new(bits: u32, mantissa_bits: u32, least_exponent: i32, greatest: u8, special: Special) -> Format {
        let mut format = Format { bits, mantissa_bits, least_exponent, greatest, special, values: [0.0; 256] };
        let mut code = 0;
        while code < 256 {
            format.values[code] = format.value(code as u8);
            code += 1;
        }
        format
    }

    /// The bit of the sign.
    const fn sign(&self) -> u8 {
        1 << (self.bits - 1)
    }

    const fn value(&self, code: u8) -> f32 {
        let magnitude = code & (self.sign() - 1);
        let negative = code & self.sign() != 0;
        let value = match self.special {
            Special::NegativeZeroIsNan if negative && magnitude == 0 => f32::NAN,
            Special::Infinity if magnitude == self.greatest + 1 => f32::INFINITY,
            _ if magnitude > self.greatest => f32::NAN,
            _ => self.magnitude(magnitude),
        };
        if negative { -value } else { value }
    }

    const fn magnitude(&self, code: u8) -> f32 {
        let implicit = 1 << self.mantissa_bits;
        let (field, fraction) = (code >> self.mantissa_bits, code & (implicit - 1));
        // The subnormal numbers have the exponent of the least normal ones.
        let (mantissa, above_least) = if field == 0 { (fraction, 0) } else { (fraction + implicit, field - 1) };
        let exponent = self.least_exponent - self.mantissa_bits as i32 + above_least as i32;
        (mantissa as f64 * power_of_two(exponent)) as f32
    }

    fn encode(&self, value: f64, saturate: bool) -> u8 {
        let sign = if value.is_sign_negative() { self.sign() } else { 0 };
        if value.is_nan() {
            return match self.special {
                Special::None | Special::NegativeZeroIsNan => self.sign(),
                Special::NanOfBothSigns => sign | 0x7f,
                Special::Infinity => sign | 0x7e,
            };
        }
        let magnitude = self.round(value.abs());
        match (magnitude, self.special) {
            (Some(0), Special::NegativeZeroIsNan) => 0,
            (Some(code), _) => sign | code,
            (None, Special::None) => sign | self.greatest,
            (None, _) if saturate => sign | self.greatest,
            (None, Special::NanOfBothSigns) => sign | 0x7f,
            (None, Special::NegativeZeroIsNan) => self.sign(),
            (None, Special::Infinity) => sign | (self.greatest + 1),
        }
    }

    /// The code nearest to a magnitude, ties to even; `None` above the greatest finite one.
    fn round(&self, magnitude: f64) -> Option<u8> {
        let exponent = exponent_of(magnitude).max(self.least_exponent);
        // No narrow type reaches 2^17, hence neither a large power nor a large quotient below.
        if exponent > 16 {
            return None;
        }
        // Scaling by a power of two is exact.
        let steps = magnitude * power_of_two(self.mantissa_bits as i32 - exponent);
        let steps = steps.round_ties_even() as u32;
        // Codes count magnitudes; rounding up into the next exponent carries by itself.
        let code = (((exponent - self.least_exponent) as u32) << self.mantissa_bits) + steps;
        u8::try_from(code).ok().filter(|&code| code <= self.greatest)
    }
}

/// The exponent of the leading bit; -1023 for zero and subnormal numbers, 1024 for infinity.
fn exponent_of(magnitude: f64) -> i32 {
    let biased = (magnitude.to_bits() >> F64_MANTISSA_BITS) & 0x7ff;
    biased as i32 - 1023
}

/// 2^exponent for exponents of normal f64.
const fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << F64_MANTISSA_BITS)
}

const fn powers_of_two() -> [f32; 256] {
    let mut values = [f32::NAN; 256];
    let mut code = 0;
    while code < E8M0_NAN as usize {
        values[code] = power_of_two(E8M0_LEAST_EXPONENT + code as i32) as f32;
        code += 1;
    }
    values
}

fn encode_power_of_two(value: f64, saturate: bool, round: RoundMode) -> u8 {
    if value.is_nan() {
        return E8M0_NAN;
    }
    let (least, greatest) = (f64::from(F8E8M0[0]), f64::from(F8E8M0[usize::from(E8M0_MAX)]));
    if value < least {
        return if saturate { 0 } else { E8M0_NAN };
    }
    if value > greatest {
        return if saturate { E8M0_MAX } else { E8M0_NAN };
    }
    let exponent = exponent_of(value);
    let mantissa = value / power_of_two(exponent);
    let up = match round {
        RoundMode::Up => mantissa > 1.0,
        RoundMode::Down => false,
        RoundMode::Nearest => mantissa >= 1.5,
    };
    // In range by the comparisons above: only numbers below the greatest are rounded up.
    (exponent - E8M0_LEAST_EXPONENT + i32::from(up)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strum::VariantArray;

    /// The narrow types but f8e8m0, with their greatest value.
    const SIGNED: [(DType, f32); 7] = [
        (DType::F8E4M3FN, 448.0),
        (DType::F8E4M3FNUZ, 240.0),
        (DType::F8E5M2, 57344.0),
        (DType::F8E5M2FNUZ, 57344.0),
        (DType::F4E2M1, 6.0),
        (DType::F6E2M3, 7.5),
        (DType::F6E3M2, 28.0),
    ];

    fn nearest(dtype: DType, value: f32) -> u8 {
        encode(dtype, value, true, RoundMode::Nearest)
    }

    fn without_saturation(dtype: DType, value: f32) -> u8 {
        encode(dtype, value, false, RoundMode::Nearest)
    }

    /// The finite values that are not negative, ascending, each with its code.
    fn ladder(dtype: DType) -> Vec<(u8, f32)> {
        let half = 1_u8 << (dtype.bits() - 1);
        (0..half).map(|code| (code, decode(dtype, code))).filter(|(_, value)| value.is_finite()).collect()
    }

    #[test]
    fn every_code_round_trips() {
        for &dtype in DType::VARIANTS.iter().filter(|dtype| dtype.is_narrow_float()) {
            for code in 0..=((1_u16 << dtype.bits()) - 1) as u8 {
                let value = decode(dtype, code);
                for &round in RoundMode::VARIANTS {
                    let again = encode(dtype, value, false, round);
                    if value.is_nan() {
                        assert!(decode(dtype, again).is_nan(), "{dtype} {code:#x}");
                    } else {
                        assert_eq!(again, code, "{dtype} {value}");
                    }
                }
            }
        }
    }

    #[test]
    fn values_are_those_of_the_formats() {
        for (dtype, greatest) in SIGNED {
            let ladder = ladder(dtype);
            assert_eq!(ladder.last().map(|last| last.1), Some(greatest), "{dtype}");
            assert!(ladder.windows(2).all(|pair| pair[0].1 < pair[1].1), "{dtype}");
            assert_eq!(decode(dtype, nearest(dtype, -greatest)), -greatest, "{dtype}");
        }
        let f4: Vec<f32> = ladder(DType::F4E2M1).iter().map(|entry| entry.1).collect();
        assert_eq!(f4, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        let least = |dtype| decode(dtype, 1);
        assert_eq!(least(DType::F8E4M3FN), 2.0_f32.powi(-9));
        assert_eq!(least(DType::F8E4M3FNUZ), 2.0_f32.powi(-10));
        assert_eq!(least(DType::F8E5M2), 2.0_f32.powi(-16));
        assert_eq!(least(DType::F8E5M2FNUZ), 2.0_f32.powi(-17));
        assert_eq!(least(DType::F6E2M3), 0.125);
        assert_eq!(least(DType::F6E3M2), 0.0625);
        assert_eq!(decode(DType::F8E8M0, 0), 2.0_f32.powi(-127));
        assert_eq!(decode(DType::F8E8M0, 127), 1.0);
        assert_eq!(decode(DType::F8E8M0, 254), 2.0_f32.powi(127));
        assert_eq!(values(DType::F32), None);
    }

    #[test]
    fn midpoints_round_to_even() {
        for (dtype, _) in SIGNED {
            for pair in ladder(dtype).windows(2) {
                let ((low_code, low), (high_code, high)) = (pair[0], pair[1]);
                let middle = (low + high) / 2.0;
                let even = if low_code.is_multiple_of(2) { low_code } else { high_code };
                assert_eq!(nearest(dtype, middle), even, "{dtype} {middle}");
                assert_eq!(nearest(dtype, middle.next_down()), low_code, "{dtype} below {middle}");
                assert_eq!(nearest(dtype, middle.next_up()), high_code, "{dtype} above {middle}");
            }
        }
    }

    #[test]
    fn out_of_range_follows_the_tables_of_cast() {
        for (dtype, greatest) in SIGNED {
            let codes: Vec<f32> = ladder(dtype).iter().map(|entry| entry.1).collect();
            let half_step = (greatest - codes[codes.len() - 2]) / 2.0;
            // Whether the tie itself is in range depends on the greatest code being even: asserted below.
            let in_range = (greatest + half_step).next_down();
            assert_eq!(decode(dtype, without_saturation(dtype, in_range)), greatest, "{dtype}");
            for large in [(greatest + half_step).next_up(), f32::MAX, f32::INFINITY] {
                assert_eq!(decode(dtype, nearest(dtype, large)), greatest, "{dtype} {large}");
                assert_eq!(decode(dtype, nearest(dtype, -large)), -greatest, "{dtype} {large}");
            }
        }
        let plain = |dtype, value| without_saturation(dtype, value);
        for large in [1e6, f32::INFINITY] {
            assert_eq!((plain(DType::F8E4M3FN, large), plain(DType::F8E4M3FN, -large)), (0x7f, 0xff));
            assert_eq!((plain(DType::F8E5M2, large), plain(DType::F8E5M2, -large)), (0x7c, 0xfc));
            assert_eq!((plain(DType::F8E4M3FNUZ, large), plain(DType::F8E4M3FNUZ, -large)), (0x80, 0x80));
            assert_eq!((plain(DType::F8E5M2FNUZ, large), plain(DType::F8E5M2FNUZ, -large)), (0x80, 0x80));
            assert_eq!((plain(DType::F4E2M1, large), plain(DType::F4E2M1, -large)), (0x07, 0x0f));
        }
        assert_eq!(plain(DType::F8E4M3FN, 464.0), 0x7e);
        assert_eq!(plain(DType::F8E5M2, 61440.0), 0x7c);
    }

    #[test]
    fn nan_and_zeros_follow_the_tables_of_cast() {
        for saturate in [false, true] {
            let code = |dtype, value| encode(dtype, value, saturate, RoundMode::Up);
            assert_eq!(code(DType::F8E4M3FN, f32::NAN), 0x7f);
            assert_eq!(code(DType::F8E4M3FN, -f32::NAN), 0xff);
            assert_eq!(code(DType::F8E5M2, f32::NAN), 0x7e);
            assert_eq!(code(DType::F8E5M2, -f32::NAN), 0xfe);
            assert_eq!(code(DType::F8E4M3FNUZ, f32::NAN), 0x80);
            assert_eq!(code(DType::F8E5M2FNUZ, -f32::NAN), 0x80);
            assert_eq!(code(DType::F4E2M1, f32::NAN), 0x08);
            assert_eq!(code(DType::F6E2M3, f32::NAN), 0x20);
            for (dtype, _) in SIGNED {
                assert_eq!(code(dtype, 0.0), 0);
                let unsigned_zero = matches!(dtype, DType::F8E4M3FNUZ | DType::F8E5M2FNUZ);
                let minus_zero = if unsigned_zero { 0 } else { 1 << (dtype.bits() - 1) };
                assert_eq!(code(dtype, -0.0), minus_zero, "{dtype}");
                assert_eq!(code(dtype, -1e-30), minus_zero, "{dtype}");
                assert_eq!(code(dtype, f32::from_bits(1)), 0, "{dtype}");
            }
        }
    }

    #[test]
    fn powers_of_two_follow_the_table_of_cast() {
        let two = |exponent| 2.0_f32.powi(exponent);
        let code = |value, saturate, round| encode(DType::F8E8M0, value, saturate, round);
        for (value, up, down, nearest) in [
            (1.0, 127, 127, 127),
            (1.0_f32.next_up(), 128, 127, 127),
            (1.5, 128, 127, 128),
            (1.5_f32.next_down(), 128, 127, 127),
            (3.0, 129, 128, 129),
            (two(-127), 0, 0, 0),
            (two(-127) * 1.25, 1, 0, 0),
            (two(-127) * 1.5, 1, 0, 1),
            (two(127), 254, 254, 254),
            (two(127).next_down(), 254, 253, 254),
        ] {
            for saturate in [false, true] {
                assert_eq!(code(value, saturate, RoundMode::Up), up, "{value}");
                assert_eq!(code(value, saturate, RoundMode::Down), down, "{value}");
                assert_eq!(code(value, saturate, RoundMode::Nearest), nearest, "{value}");
            }
        }
        for &round in RoundMode::VARIANTS {
            for large in [f32::INFINITY, f32::MAX, two(127).next_up()] {
                assert_eq!((code(large, true, round), code(large, false, round)), (254, 255));
            }
            for small in [0.0, -0.0, two(-127).next_down(), f32::from_bits(1), -1.0, f32::NEG_INFINITY] {
                assert_eq!((code(small, true, round), code(small, false, round)), (0, 255));
            }
            assert_eq!((code(f32::NAN, true, round), code(f32::NAN, false, round)), (255, 255));
        }
    }

    #[test]
    fn f64_is_rounded_once() {
        // Just above a midpoint by less than f32 resolves.
        let value = 1.0625_f64 + 2.0_f64.powi(-40);
        assert_eq!(encode_f64(DType::F8E4M3FN, value, true, RoundMode::Up), 0x39);
        assert_eq!(encode(DType::F8E4M3FN, value as f32, true, RoundMode::Up), 0x38);
        assert_eq!(encode_f64(DType::F8E4M3FN, f64::MAX, true, RoundMode::Up), 0x7e);
        assert_eq!(encode_f64(DType::F8E4M3FN, f64::from_bits(1), true, RoundMode::Up), 0);
        assert_eq!(encode_f64(DType::F8E8M0, f64::MAX, true, RoundMode::Up), 254);
        assert_eq!(encode_f64(DType::F8E8M0, f64::from_bits(1), false, RoundMode::Up), 255);
    }

    #[test]
    fn bits_above_the_width_are_ignored() {
        assert_eq!(decode(DType::F4E2M1, 0xf3), 1.5);
        assert_eq!(decode(DType::F6E3M2, 0xc1), 0.0625);
    }

    proptest! {
        #[test]
        fn nothing_is_nearer(bits in any::<u32>(), index in 0..SIGNED.len()) {
            let value = f32::from_bits(bits);
            let (dtype, greatest) = SIGNED[index];
            prop_assume!(!value.is_nan());
            let clamped = value.clamp(-greatest, greatest);
            let chosen = (decode(dtype, nearest(dtype, value)) - clamped).abs();
            let best = values(dtype).into_iter().flatten().filter(|other| other.is_finite());
            let best = best.map(|other| (other - clamped).abs()).fold(f32::INFINITY, f32::min);
            prop_assert_eq!(chosen, best);
        }
    }
}
