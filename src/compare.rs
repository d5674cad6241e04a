//! Whether a result is the expected one.
//!
//! The default criterion: element type and shape are equal; integers, booleans and strings are equal; NaN stands where
//! NaN is expected, infinities have the expected sign; any other float is within a share of the expected one, or within a
//! share of the largest finite magnitude in that output, or within a floor for outputs that are tiny everywhere. The shares
//! follow from the precision of the element type:
//!
//! | type | of the element | of the largest | floor |
//! | --- | --- | --- | --- |
//! | f32, f64, complex, floats of 8 bits and fewer | 1e-3 | 1e-4 | 1e-6 |
//! | f16 | 2^-8 | 2^-10 | 1e-6 |
//! | bf16 | 2^-5 | 2^-7 | 1e-6 |
//!
//! Two correct runtimes differ by about as much, since they add in different orders. An output whose values were f16 or bf16
//! on the way is held to that type ([`Precision::Rounded`]). Where activations are rounded to codes on the way
//! ([`Precision::Codes`]), one that lies within a float rounding of the middle between two codes may take either, and what
//! is computed from it follows: such an output agrees too if no element is more than [`MOST_STEPS`] steps off and the mean
//! is at most half a step. A step is the scale of the output where it is codes times a scale, else that of codes over its
//! largest magnitude (1/127 of it for 8 bits). With explicit tolerances the plain rule holds: `|a - e| <= atol + rtol * |e|`.

use ipuc_formats::dtype::DType;
use ipuc_formats::element::Number;
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_formats::{narrow, with_number};
use std::fmt;

/// How close is close enough.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Tolerance {
    /// Relative tolerance of the plain rule.
    pub relative: Option<f64>,
    /// Absolute tolerance of the plain rule.
    pub absolute: Option<f64>,
    /// What the default rule holds the output to.
    pub precision: Precision,
}

/// How precise an output can be.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Precision {
    /// As its element type.
    #[default]
    Own,
    /// As this float type, to which values are rounded on the way.
    Rounded(DType),
    /// Activations are rounded to codes on the way.
    Codes {
        /// Type of the coarsest codes: an integer.
        dtype: DType,
        /// Distance of two neighbouring results, where the output is codes times a scale.
        scale: Option<f64>,
    },
}

/// Steps that an element may be off where activations are rounded to codes. Changes of embeddings by single roundings of f32
/// change results of ONNX Runtime by up to 2.3 steps in decoders of four layers that round activations to 8 bits, its
/// optimizations by 2 in a quantized ResNet-50.
pub const MOST_STEPS: f64 = 3.0;

/// Differences up to this are none: sigmoids near 0 have no relative precision.
const FLOOR: f64 = 1e-6;

/// Shares of the element and of the largest magnitude that a float of this type may be off by default.
fn shares(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F16 => (1.0 / 256.0, 1.0 / 1024.0),
        DType::BF16 => (1.0 / 32.0, 1.0 / 128.0),
        _ => (1e-3, 1e-4),
    }
}

impl Tolerance {
    fn accepts(&self, dtype: DType, found: f64, expected: f64, largest: f64) -> bool {
        if found.is_nan() || expected.is_nan() {
            return found.is_nan() && expected.is_nan();
        }
        if found == expected {
            return true;
        }
        if found.is_infinite() || expected.is_infinite() {
            return false;
        }
        let difference = (found - expected).abs();
        match (self.relative, self.absolute) {
            (None, None) => {
                let (own, whole) = match self.precision {
                    Precision::Rounded(coarse) => shares(coarse),
                    Precision::Own | Precision::Codes { .. } => shares(dtype),
                };
                difference <= (own * expected.abs()).max(whole * largest).max(FLOOR)
            }
            (relative, absolute) => difference <= absolute.unwrap_or(0.0) + relative.unwrap_or(0.0) * expected.abs(),
        }
    }

    /// The step of an output of this largest magnitude, where steps are what it is held to.
    fn step(&self, largest: f64) -> Option<f64> {
        match (self.relative, self.absolute, self.precision) {
            (None, None, Precision::Codes { dtype, scale }) => {
                Some(scale.unwrap_or(largest / (((1u32 << (dtype.bits() - 1)) - 1) as f64)))
            }
            _ => None,
        }
    }
}

/// How a result differs from what was expected.
#[derive(Debug, Clone, PartialEq)]
pub struct Mismatch {
    /// Name of the output, with the item of a sequence.
    pub output: String,
    /// What differs, in words.
    pub difference: String,
    /// How close it came, where elements were compared.
    pub closeness: Option<Closeness>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "output `{}`: {}", self.output, self.difference)
    }
}

/// How close a result came.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Closeness {
    /// Elements compared.
    pub elements: u64,
    /// Largest difference of two finite elements.
    pub largest_difference: f64,
    /// Largest finite magnitude that was expected.
    pub largest_magnitude: f64,
}

/// Compare a result with what is expected.
///
/// # Errors
/// [`Mismatch`] for the first difference that is not within tolerance.
pub fn compare(name: &str, found: &Value, expected: &Value, tolerance: Tolerance) -> Result<Closeness, Mismatch> {
    let mismatch = |difference: String| Mismatch { output: name.to_string(), difference, closeness: None };
    match (found, expected) {
        (Value::Tensor(found), Value::Tensor(expected)) => compare_tensors(name, found, expected, tolerance),
        (Value::Sequence { items: found, .. }, Value::Sequence { items: expected, .. }) => {
            if found.len() != expected.len() {
                return Err(mismatch(format!("has {} items, expected {}", found.len(), expected.len())));
            }
            let pairs = found.iter().zip(expected).enumerate();
            let mut close = pairs.map(|(index, (one, two))| compare(&format!("{name}[{index}]"), one, two, tolerance));
            close.try_fold(Closeness::default(), |sum, one| Ok(sum.with(one?)))
        }
        (Value::Optional { value: found, .. }, Value::Optional { value: expected, .. }) => match (found, expected) {
            (None, None) => Ok(Closeness::default()),
            (Some(found), Some(expected)) => compare(name, found, expected, tolerance),
            (Some(_), None) => Err(mismatch("holds a value, expected none".to_string())),
            (None, Some(_)) => Err(mismatch("holds nothing, expected a value".to_string())),
        },
        (Value::Map { entries: found, .. }, Value::Map { entries: expected, .. }) => {
            if found.len() != expected.len() {
                return Err(mismatch(format!("has {} entries, expected {}", found.len(), expected.len())));
            }
            expected.iter().try_fold(Closeness::default(), |sum, (key, wanted)| {
                let entry = found.iter().find(|(found_key, _)| found_key == key);
                let (_, value) = entry.ok_or_else(|| mismatch(format!("lacks key {key:?}")))?;
                Ok(sum.with(compare(name, value, wanted, tolerance)?))
            })
        }
        (
            Value::Tensor(_) | Value::Sequence { .. } | Value::Optional { .. } | Value::Map { .. },
            Value::Tensor(_) | Value::Sequence { .. } | Value::Optional { .. } | Value::Map { .. },
        ) => Err(mismatch(format!("is {}, expected {}", found.kind(), expected.kind()))),
    }
}

impl Closeness {
    fn with(self, other: Closeness) -> Closeness {
        Closeness {
            elements: self.elements + other.elements,
            largest_difference: self.largest_difference.max(other.largest_difference),
            largest_magnitude: self.largest_magnitude.max(other.largest_magnitude),
        }
    }
}

fn compare_tensors(name: &str, found: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Result<Closeness, Mismatch> {
    let mismatch = |difference: String| Mismatch { output: name.to_string(), difference, closeness: None };
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
        let describe = |tensor: &Tensor| format!("{}{:?}", tensor.dtype(), tensor.shape());
        return Err(mismatch(format!("is {}, expected {}", describe(found), describe(expected))));
    }
    let elements = expected.count() as u64;
    let (Some(found_floats), Some(expected_floats)) = (floats(found), floats(expected)) else {
        return if found == expected {
            Ok(Closeness { elements, ..Closeness::default() })
        } else {
            Err(mismatch(format!("differs in {}", first_difference(found, expected))))
        };
    };
    let finite = expected_floats.iter().filter(|element| element.is_finite());
    let largest_magnitude = finite.fold(0f64, |largest, element| largest.max(element.abs()));
    let mut largest_difference = 0f64;
    let mut first = None;
    let mut off = 0;
    for (index, (&one, &two)) in found_floats.iter().zip(&expected_floats).enumerate() {
        if !tolerance.accepts(expected.dtype(), one, two, largest_magnitude) {
            first.get_or_insert((index, one, two));
            off += 1;
        }
        let difference = (one - two).abs();
        if difference.is_finite() {
            largest_difference = largest_difference.max(difference);
        }
    }
    let closeness = Closeness { elements, largest_difference, largest_magnitude };
    let Some((index, one, two)) = first else { return Ok(closeness) };
    let step = tolerance.step(largest_magnitude);
    if step.is_some_and(|step| within_steps(step, &found_floats, &expected_floats)) {
        return Ok(closeness);
    }
    let (place, count) = (position(index, expected), expected_floats.len());
    let difference = format!(
        "element {place} is {one}, expected {two} (elements off: {off} of {count}, largest difference \
         {largest_difference}, largest magnitude {largest_magnitude})"
    );
    Err(Mismatch { output: name.to_string(), difference, closeness: Some(closeness) })
}

/// Whether no element is more than [`MOST_STEPS`] off, and the mean at most half a step.
fn within_steps(step: f64, found: &[f64], expected: &[f64]) -> bool {
    let mut sum = 0f64;
    for (&one, &two) in found.iter().zip(expected) {
        let same = one == two || (one.is_nan() && two.is_nan());
        let difference = if same { 0.0 } else { (one - two).abs() };
        // The results of a scale in f32 lie apart by it within a rounding.
        if difference.is_nan() || difference > MOST_STEPS * step * (1.0 + 1e-5) {
            return false;
        }
        sum += difference;
    }
    sum <= 0.5 * step * expected.len() as f64
}

/// Elements of a floating-point or complex tensor (real and imaginary parts in turn); `None` for other types.
pub(crate) fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    let dtype = tensor.dtype();
    if dtype.is_narrow_float() {
        return Some(tensor.codes().iter().map(|&code| f64::from(narrow::decode(dtype, code))).collect());
    }
    match dtype {
        DType::C64 => {
            let parts = bytemuck::try_cast_slice::<u8, f32>(tensor.bytes()).ok()?;
            Some(parts.iter().map(|&part| f64::from(part)).collect())
        }
        DType::C128 => Some(bytemuck::try_cast_slice::<u8, f64>(tensor.bytes()).ok()?.to_vec()),
        _ if dtype.is_float() => with_number!(
            dtype,
            T => Some(tensor.elements::<T>().ok()?.iter().map(|&element| element.to_f64_lossy()).collect()),
            otherwise None
        ),
        _ => None,
    }
}

fn position(index: usize, tensor: &Tensor) -> String {
    let parts = if tensor.dtype().is_complex() { 2 } else { 1 };
    let mut rest = index / parts;
    let mut place: Vec<usize> = Vec::with_capacity(tensor.rank());
    for &extent in tensor.shape().iter().rev() {
        place.push(rest % extent.max(1));
        rest /= extent.max(1);
    }
    place.reverse();
    format!("{place:?}")
}

fn first_difference(found: &Tensor, expected: &Tensor) -> String {
    if let (Ok(one), Ok(two)) = (found.strings(), expected.strings()) {
        let differs = one.iter().zip(two).position(|(one, two)| one != two).unwrap_or(0);
        return format!("element {}: {:?}, expected {:?}", position(differs, expected), one[differs], two[differs]);
    }
    let integers = (ipuc_formats::fact::integers(found), ipuc_formats::fact::integers(expected));
    let (Some(one), Some(two)) = integers else { return "its elements".to_string() };
    let differs = one.iter().zip(&two).position(|(one, two)| one != two).unwrap_or(0);
    format!("element {}: {}, expected {}", position(differs, expected), one[differs], two[differs])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(elements: &[f32]) -> Value {
        Tensor::from_elements(&[elements.len()], elements).unwrap().into()
    }

    fn agree(found: &[f32], expected: &[f32], tolerance: Tolerance) -> bool {
        compare("y", &tensor(found), &tensor(expected), tolerance).is_ok()
    }

    #[test]
    fn default_rule_is_relative_or_of_the_largest() {
        let default = Tolerance::default();
        assert!(agree(&[1.0009, 0.0], &[1.0, 0.0], default));
        assert!(!agree(&[1.002, 0.0], &[1.0, 0.0], default));
        assert!(agree(&[100.0, 0.009], &[100.0, 0.0], default));
        assert!(!agree(&[100.0, 0.011], &[100.0, 0.0], default));
        assert!(agree(&[f32::NAN, f32::INFINITY], &[f32::NAN, f32::INFINITY], default));
        assert!(!agree(&[f32::NEG_INFINITY], &[f32::INFINITY], default));
        assert!(!agree(&[f32::NAN], &[0.0], default));
        assert!(!agree(&[1e30], &[f32::INFINITY], default));
    }

    #[test]
    fn the_default_follows_the_type_and_has_a_floor() {
        let default = Tolerance::default();
        assert!(agree(&[9e-7], &[1e-9], default));
        assert!(!agree(&[3e-6], &[1e-9], default));
        let close = |found: Value, expected: Value| compare("y", &found, &expected, default).is_ok();
        let half =
            |element: f32| Tensor::from_elements(&[1], &[ipuc_formats::element::f16::from_f32(element)]).unwrap();
        assert!(close(half(1.003).into(), half(1.0).into()));
        assert!(!close(half(1.006).into(), half(1.0).into()));
        let brain =
            |element: f32| Tensor::from_elements(&[1], &[ipuc_formats::element::bf16::from_f32(element)]).unwrap();
        assert!(close(brain(1.03).into(), brain(1.0).into()));
        assert!(!close(brain(1.04).into(), brain(1.0).into()));
    }

    #[test]
    fn outputs_are_held_to_what_was_rounded_on_the_way() {
        let held = |precision| Tolerance { precision, ..Tolerance::default() };
        let half = held(Precision::Rounded(DType::F16));
        assert!(agree(&[1.003], &[1.0], half));
        assert!(!agree(&[1.006], &[1.0], half));
        let scaled = held(Precision::Codes { dtype: DType::I8, scale: Some(0.25) });
        assert!(agree(&[1.75, 0.0, 0.0, 0.0, 0.0, 0.0], &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0], scaled));
        assert!(!agree(&[2.0, 0.0, 0.0, 0.0, 0.0, 0.0], &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0], scaled));
        // Each a step off is wrong.
        assert!(!agree(&[1.25, 0.25], &[1.0, 0.0], scaled));
        assert!(!agree(&[f32::NAN, 0.0], &[1.0, 0.0], scaled));
        let whole = held(Precision::Codes { dtype: DType::I8, scale: None });
        assert!(agree(&[127.0, 3.0, 0.0, 0.0, 0.0, 0.0], &[127.0, 0.0, 0.0, 0.0, 0.0, 0.0], whole));
        assert!(!agree(&[127.0, 3.1, 0.0, 0.0, 0.0, 0.0], &[127.0, 0.0, 0.0, 0.0, 0.0, 0.0], whole));
        let explicit = Tolerance { relative: Some(0.0), absolute: Some(0.5), precision: scaled.precision };
        assert!(!agree(&[1.75, 0.0, 0.0, 0.0, 0.0, 0.0], &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0], explicit));
    }

    #[test]
    fn explicit_tolerances_are_the_plain_rule() {
        let plain = Tolerance { relative: Some(0.0), absolute: Some(0.5), ..Tolerance::default() };
        assert!(agree(&[1.5], &[1.0], plain));
        assert!(!agree(&[1.6], &[1.0], plain));
    }

    #[test]
    fn types_shapes_and_integers_are_exact() {
        let default = Tolerance::default();
        let one = Value::Tensor(Tensor::vector_i64(&[1, 2]));
        let two = Value::Tensor(Tensor::vector_i64(&[1, 3]));
        let error = compare("n", &one, &two, default).unwrap_err();
        assert_eq!(error.to_string(), "output `n`: differs in element [1]: 2, expected 3");
        let error = compare("n", &one, &tensor(&[1.0, 2.0]), default).unwrap_err();
        assert_eq!(error.to_string(), "output `n`: is i64[2], expected f32[2]");
    }
}
