//! `infer` gives facts or an error for whatever it is asked: every operator of the table, with random attributes and
//! random operands of every kind, type and shape, down to extents that no memory can hold.
#![allow(clippy::unwrap_used, reason = "tests panic where something is wrong")]

use crate::candidates::{candidates, required};
use ipuc_formats::attribute::{AttributeValue, BlockIndex};
use ipuc_formats::dim::{Dim, Ranges, Refusal};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Contents, Fact, Shape, Type};
use ipuc_formats::ops::{BlockInference, InferContext, Op, TABLE, TypeError};
use ipuc_formats::tensor::Tensor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use strum::VariantArray;

/// Questions to each operator.
const QUESTIONS: usize = 400;
/// Most operands of a question.
const MOST_OPERANDS: usize = 8;

/// Numbers that look random and are the same in each run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % limit as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Numbers, symbols, expressions and refusals.
    fn dim(&mut self) -> Dim {
        match self.below(12) {
            0 => Dim::known(self.one_of(&[0, -1, 1 << 40, i64::MAX, i64::MIN])),
            1 => Dim::symbol("n"),
            2 => Dim::symbol("m"),
            3 => Dim::symbol("n") * Dim::known(2) + Dim::known(1),
            4 => Dim::from(self.one_of(&[Refusal::Overflow, Refusal::TooLarge])),
            _ => Dim::known(self.one_of(&[1, 1, 2, 3, 4, 8])),
        }
    }

    fn tensor(&mut self) -> Tensor {
        let shape: Vec<usize> = (0..self.below(3)).map(|_| self.one_of(&[0, 1, 2, 3, 4])).collect();
        let count = shape.iter().product::<usize>();
        let extreme = [0, 0, 1, 1, 2, 3, -1, -2, 1 << 50, i64::MAX, i64::MIN];
        let elements: Vec<i64> = (0..count).map(|_| self.one_of(&extreme)).collect();
        match self.below(8) {
            0 => {
                let floats = [0.0, 1.0, -1.0, 0.5, f32::NAN, f32::INFINITY, f32::MAX];
                let floats: Vec<f32> = (0..count).map(|_| self.one_of(&floats)).collect();
                Tensor::from_elements(&shape, &floats)
            }
            1 => Tensor::from_bools(&shape, &elements.iter().map(|&element| element > 0).collect::<Vec<_>>()),
            2 => Tensor::from_strings(&shape, elements.iter().map(i64::to_string).collect()),
            3 => Tensor::from_elements(&shape, &elements.iter().map(|&element| element as i32).collect::<Vec<_>>()),
            4 => Tensor::from_elements(&shape, &elements.iter().map(|&element| element as u64).collect::<Vec<_>>()),
            _ => Tensor::from_elements(&shape, &elements),
        }
        .unwrap()
    }

    fn kind(&mut self, depth: usize) -> Type {
        match self.below(if depth == 0 { 12 } else { 16 }) {
            12 | 13 => Type::Sequence(Box::new(self.kind(depth - 1))),
            14 => Type::Optional(Box::new(self.kind(depth - 1))),
            15 => Type::Map { key: self.dtype(), element: Box::new(self.kind(depth - 1)) },
            0 => Type::Tensor { dtype: self.dtype(), shape: Shape::Unranked },
            _ => {
                let dims: Vec<Dim> = (0..self.below(6)).map(|_| self.dim()).collect();
                Type::tensor(self.dtype(), dims)
            }
        }
    }

    fn dtype(&mut self) -> DType {
        let common = [DType::F32, DType::F32, DType::F16, DType::I64, DType::I64, DType::U8, DType::I8, DType::Bool];
        if self.below(4) == 0 { self.one_of(DType::VARIANTS) } else { self.one_of(&common) }
    }

    fn fact(&mut self) -> Fact {
        match self.below(6) {
            0 => Fact::constant(self.tensor()),
            1 => {
                let dims: Vec<Dim> = (0..self.below(4)).map(|_| self.dim()).collect();
                let mut fact =
                    Fact::tensor(self.one_of(&[DType::I64, DType::I32, DType::Bool]), vec![Dim::from(dims.len())]);
                fact.contents = Some(Contents::Dims(dims));
                fact
            }
            _ => Fact::of(self.kind(2)),
        }
    }

    fn operands(&mut self) -> Vec<Option<Fact>> {
        let alike = self.fact();
        let one = |random: &mut Random| match random.below(5) {
            0 => None,
            // Many operators want operands of one type.
            1 | 2 => Some(alike.clone()),
            _ => Some(random.fact()),
        };
        (0..self.below(MOST_OPERANDS + 1)).map(|_| one(self)).collect()
    }
}

/// Bodies of any signature.
struct AnyBlocks(Random);

impl BlockInference for AnyBlocks {
    fn infer_block(&mut self, block: BlockIndex, parameters: &[Fact]) -> Result<Vec<Fact>, TypeError> {
        match self.0.below(4) {
            0 => Err(TypeError::Block(format!("block {} does not fit", block.0))),
            1 => Ok(parameters.to_vec()),
            _ => Ok((0..self.0.below(5)).map(|_| self.0.fact()).collect()),
        }
    }
}

#[test]
fn no_question_makes_an_operator_panic() {
    let candidates = candidates();
    let mut panics = Vec::new();
    for row in TABLE {
        let base = required(row.name, &candidates);
        let mut random = Random(u64::from(row.code).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (mut answered, mut refused) = (0, 0);
        for _ in 0..QUESTIONS {
            let mut named = base.clone();
            for field in row.fields {
                let value: &AttributeValue = &candidates[random.below(candidates.len())];
                let mut tried: Vec<_> = named.iter().filter(|(name, _)| name != field.name).cloned().collect();
                tried.push((field.name.to_string(), value.clone()));
                if Op::build(row.name, &tried).is_ok() {
                    named = tried;
                }
            }
            let op = Op::build(row.name, &named).unwrap();
            let operands = random.operands();
            let mut blocks = AnyBlocks(Random(random.below(1 << 30) as u64 | 1));
            let ranges = Ranges::new();
            let mut context = InferContext::new("step", &ranges, &mut blocks);
            match catch_unwind(AssertUnwindSafe(|| op.operator().infer(&operands, &mut context))) {
                Ok(Ok(_)) => answered += 1,
                Ok(Err(_)) => refused += 1,
                Err(_) => panics.push(format!("{op} of {operands:?}")),
            }
        }
        assert!(answered + refused + panics.len() >= QUESTIONS, "{}: {answered} and {refused}", row.name);
    }
    assert!(panics.is_empty(), "{} questions panic:\n{}", panics.len(), panics.join("\n"));
}
