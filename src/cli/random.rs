//! Inputs that are made up: the same seed gives the same values on every machine.
//!
//! Floats lie between -1 and 1. Integers are 0 or 1, which is valid wherever they are indices, lengths or flags.

use super::failure::Failure;
use crate::generation::GenerationSettings;
use ipuc_formats::dim::Bindings;
use ipuc_formats::dtype::DType;
use ipuc_formats::element::Number;
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::tensor::{Tensor, element_count};
use ipuc_formats::value::Value;
use ipuc_formats::{narrow, with_number};

/// Make masks of a language model of ones and positions of consecutive numbers, up to the last one: what a text has.
pub(super) fn see_all_tokens(settings: &GenerationSettings, made: &mut [(String, Value)]) {
    let named = |name: &str, found: &Option<String>| found.as_deref() == Some(name);
    let width = |value: &Value| value.as_tensor().and_then(|tensor| tensor.shape().last().copied()).unwrap_or(0);
    let mask = made.iter().find(|(name, _)| named(name, &settings.attention_mask));
    let end = mask.map(|(_, mask)| width(mask));
    for (name, value) in made {
        let (is_mask, columns) = (named(name, &settings.attention_mask), width(value).max(1));
        if !is_mask && !named(name, &settings.position_ids) {
            continue;
        }
        let first = end.unwrap_or(columns).saturating_sub(columns);
        let number = |at: usize| if is_mask { 1 } else { (first + at % columns) as i64 };
        let Some(tensor) = value.as_tensor() else { continue };
        let numbers = (0..tensor.count()).map(number);
        let tensor = match tensor.dtype() {
            DType::I64 => Tensor::from_vec(tensor.shape(), numbers.collect::<Vec<i64>>()),
            DType::I32 => Tensor::from_vec(tensor.shape(), numbers.map(|number| number as i32).collect::<Vec<i32>>()),
            _ => continue,
        };
        if let Ok(tensor) = tensor {
            *value = tensor.into();
        }
    }
}

/// Strings take memory each.
const MOST_STRINGS: usize = 1 << 26;

/// A generator of 64-bit numbers: SplitMix64 (Steele, Lea, Flood 2014).
pub(super) struct Generator {
    state: u64,
}

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Generator { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Between -1 and 1, with 24 random bits, which f32 holds exactly.
    fn float(&mut self) -> f64 {
        (self.next() >> 40) as f64 / f64::from(1 << 23) - 1.0
    }

    fn bit(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    /// A value of the type, at these sizes of dimensions.
    ///
    /// # Errors
    /// [`Failure`] where the type leaves open what to make.
    pub(super) fn value(&mut self, name: &str, kind: &Type, bindings: &Bindings) -> Result<Value, Failure> {
        match kind {
            Type::Tensor { dtype, shape } => {
                let extents = extents(name, shape, bindings)?;
                self.tensor(name, *dtype, &extents).map(Value::Tensor)
            }
            Type::Sequence(element) => {
                let items = vec![self.value(name, element, bindings)?];
                Ok(Value::Sequence { element: (**element).clone(), items })
            }
            Type::Optional(element) => {
                let value = Some(Box::new(self.value(name, element, bindings)?));
                Ok(Value::Optional { element: (**element).clone(), value })
            }
            Type::Map { .. } => Err(Failure::usage(format!("input `{name}` is {kind}, which cannot be made up"))),
        }
    }

    fn tensor(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<Tensor, Failure> {
        let too_large = |error| Failure::memory(format!("input `{name}`: {error}"));
        if dtype == DType::String {
            let count = element_count(shape).filter(|&count| count <= MOST_STRINGS);
            let many = || Failure::memory(format!("input `{name}` would be more than {MOST_STRINGS} strings"));
            let count = count.ok_or_else(many)?;
            let strings = (0..count).map(|_| if self.bit() { "a" } else { "b" }.to_string()).collect();
            return Tensor::from_strings(shape, strings).map_err(too_large);
        }
        let mut tensor = Tensor::zeros(dtype, shape).map_err(too_large)?;
        let count = tensor.count();
        if dtype == DType::Bool {
            tensor.bytes_mut().iter_mut().for_each(|byte| *byte = u8::from(self.bit()));
        } else if dtype.is_complex() {
            // Parts are written as the real numbers that they are.
            let real = if dtype == DType::C64 { DType::F32 } else { DType::F64 };
            let parts = self.tensor(name, real, &[count, 2])?;
            tensor.bytes_mut().copy_from_slice(parts.bytes());
        } else if dtype.is_narrow_float() {
            let codes: Vec<u8> = (0..count)
                .map(|_| narrow::encode(dtype, self.float() as f32, true, narrow::RoundMode::default()))
                .collect();
            tensor = Tensor::from_codes(dtype, shape, &codes).map_err(too_large)?;
        } else if dtype.is_sub_byte() {
            let codes: Vec<u8> = (0..count).map(|_| u8::from(self.bit())).collect();
            tensor = Tensor::from_codes(dtype, shape, &codes).map_err(too_large)?;
        } else {
            with_number!(
                dtype,
                T => for element in tensor.elements_mut::<T>().map_err(too_large)? {
                    let float = if T::INTEGER { f64::from(u8::from(self.bit())) } else { self.float() };
                    *element = T::from_f64_lossy(float);
                },
                otherwise return Err(Failure::usage(format!("input `{name}` is {dtype}, which cannot be made up")))
            );
        }
        Ok(tensor)
    }
}

fn extents(name: &str, shape: &Shape, bindings: &Bindings) -> Result<Vec<usize>, Failure> {
    let dims = shape.dims().ok_or_else(|| {
        Failure::usage(format!("input `{name}` has any number of axes, so that it cannot be made up"))
            .with_hint(format!("give it with --input {name}=FILE.npy"))
    })?;
    let extent = |(axis, dim): (usize, &ipuc_formats::dim::Dim)| {
        let value = dim.evaluate(bindings).map_err(|error| Failure::usage(format!("input `{name}`: {error}")))?;
        usize::try_from(value)
            .map_err(|_| Failure::usage(format!("input `{name}` axis {axis} would be {dim} = {value}")))
    };
    dims.iter().enumerate().map(extent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(kind: &Type) -> Value {
        Generator::new(7).value("x", kind, &Bindings::new()).unwrap()
    }

    fn kind(dtype: DType) -> Type {
        Type::tensor(dtype, Shape::known(&[40]))
    }

    #[test]
    fn a_text_is_seen_as_a_whole() {
        let settings = r#"{"tokens": "t", "attention_mask": "m", "position_ids": "p", "logits": "l", "prefill": null,
            "decode": "decode", "context": null, "end_tokens": [], "bos_token": null, "eos_token": null,
            "temperature": null, "top_k": null, "top_p": null, "repetition_penalty": null}"#;
        let zeros = |shape: &[usize]| Value::from(Tensor::zeros(DType::I64, shape).unwrap());
        let mut made =
            [("t", &[2, 3]), ("m", &[2, 5]), ("p", &[2, 3])].map(|(name, shape)| (name.to_string(), zeros(shape)));
        see_all_tokens(&serde_json::from_str(settings).unwrap(), &mut made);
        let numbers = |at: usize| made[at].1.as_tensor().unwrap().elements::<i64>().unwrap().to_vec();
        assert_eq!((numbers(0), numbers(1)), (vec![0; 6], vec![1; 10]));
        assert_eq!(numbers(2), [2, 3, 4, 2, 3, 4], "behind the tokens that only the mask has");
    }

    #[test]
    fn floats_fill_their_range() {
        let Value::Tensor(tensor) = made(&kind(DType::F32)) else { panic!("a tensor") };
        let floats = tensor.elements::<f32>().unwrap();
        assert!(floats.iter().all(|float| (-1.0..=1.0).contains(float)));
        assert!(floats.iter().any(|&float| float > 0.7) && floats.iter().any(|&float| float < -0.7));
    }

    #[test]
    fn every_type_is_made() {
        for dtype in <DType as strum::VariantArray>::VARIANTS {
            let kind = Type::Optional(Box::new(Type::Sequence(Box::new(kind(*dtype)))));
            let value = made(&kind);
            assert_eq!(value, made(&kind), "the same seed gives the same values");
            let Value::Optional { value: Some(sequence), .. } = value else { panic!("a value") };
            let Value::Sequence { items, .. } = *sequence else { panic!("a sequence") };
            let tensor = items[0].as_tensor().unwrap();
            if let Some(integers) = ipuc_formats::fact::integers(tensor) {
                assert!(integers.contains(&0) && integers.contains(&1), "{dtype}");
            } else if tensor.dtype() != DType::String {
                assert!(tensor.bytes().iter().any(|&byte| byte != 0), "{dtype}");
            }
        }
    }

    #[test]
    fn open_shapes_are_refused() {
        let unranked = Type::Tensor { dtype: DType::F32, shape: Shape::Unranked };
        let error = Generator::new(0).value("x", &unranked, &Bindings::new()).unwrap_err();
        assert_eq!(error.to_string(), "input `x` has any number of axes, so that it cannot be made up");
    }
}
