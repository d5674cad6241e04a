//! Hashes of elements: `MurmurHash3` of `com.microsoft`, which is MurmurHash3_x86_32 of their bytes.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::{
    Computes, InferContext, Operator, ReferenceContext, ReferenceError, Space, StepFacts, TypeError, VectorClass, each,
    loops, tensor, tensor_operand,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Hash of each element of `x: [..]`, a text or a number of 32 or 64 bits: u32 or i32 `[..]`.
    pub struct MurmurHash revision 1 {
        /// What the hash begins with.
        1 since 1 => seed: i64,
        /// Hashes are u32, else i32 of the same bits.
        2 since 1 => positive: bool,
    }
}

fn check(found: DType) -> Result<(), TypeError> {
    match found {
        DType::String | DType::U32 | DType::I32 | DType::U64 | DType::I64 | DType::F32 | DType::F64 => Ok(()),
        found => {
            let expected = "a text or a number of 32 or 64 bits".to_string();
            Err(TypeError::ElementType { operand: 0, expected, found })
        }
    }
}

/// MurmurHash3_x86_32, by Austin Appleby (public domain).
fn hash(bytes: &[u8], seed: u32) -> u32 {
    let scrambled = |block: u32| block.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let (blocks, tail) = bytes.as_chunks::<4>();
    let mut hash = seed;
    for block in blocks {
        hash = (hash ^ scrambled(u32::from_le_bytes(*block))).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    if !tail.is_empty() {
        hash ^= scrambled(tail.iter().rev().fold(0, |block, &byte| block << 8 | u32::from(byte)));
    }
    // The length is counted in 32 bits.
    hash ^= bytes.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

impl Operator for MurmurHash {
    fn infer(&self, inputs: &[Option<Fact>], _context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        check(dtype)?;
        Ok(vec![Fact::tensor(if self.positive { DType::U32 } else { DType::I32 }, shape.clone())])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let x = tensor(inputs, 0)?;
        check(x.dtype())?;
        // A seed is 32 bits; ONNX Runtime takes the lower ones.
        let seed = self.seed as u32;
        let hashes: Vec<u32> = match x.strings() {
            Ok(texts) => texts.iter().map(|text| hash(text.as_bytes(), seed)).collect(),
            Err(_) => x.bytes().chunks(x.dtype().bits() / 8).map(|element| hash(element, seed)).collect(),
        };
        let hashes = if self.positive {
            Tensor::from_elements(x.shape(), &hashes)?
        } else {
            let signed: Vec<i32> = hashes.into_iter().map(u32::cast_signed).collect();
            Tensor::from_elements(x.shape(), &signed)?
        };
        Ok(vec![hashes.into()])
    }
}

impl Computes for MurmurHash {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        loops::mapped(facts, |axis| Some(loops::operand(0, axis)))
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&facts.elements(0), &[(VectorClass::Arithmetic, 16)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::run;

    /// Expectations are those of other implementations of the hash.
    #[test]
    fn texts_and_numbers() {
        assert_eq!(hash(b"", 0), 0);
        assert_eq!(hash(b"", 1), 0x514e_28b7);
        assert_eq!(hash(b"test", 0), 0xba6b_d213);
        assert_eq!(hash(b"Hello, world!", 0), 0xc036_3e43);
        assert_eq!(hash(b"aaa", 0x9747_b28c), 0x283e_0130);
        let texts = Tensor::from_strings(&[1], vec!["test".to_string()]).unwrap();
        let signed = run(&MurmurHash { seed: 0, positive: false }, &[texts]).unwrap();
        assert_eq!(signed.elements::<i32>().unwrap(), [0xba6b_d213u32.cast_signed()]);
        let halves = Tensor::zeros(DType::F16, &[2]).unwrap();
        let error = run(&MurmurHash { seed: 0, positive: true }, &[halves]).unwrap_err();
        assert_eq!(error.to_string(), "operand 0 must be a text or a number of 32 or 64 bits, found f16");
    }
}
