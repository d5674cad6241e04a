//! Elementwise operators on operands of any kind: nothing panics, a reference that succeeds was typed, and what the type
//! rule says with symbols is true of the result once they are bound.

use crate::dim::{Bindings, Dim, Ranges};
use crate::dtype::DType;
use crate::fact::{Contents, Fact, Shape, Type, integers};
use crate::narrow::RoundMode;
use crate::ops::scalar::{Scalar, from_scalars};
use crate::ops::*;
use crate::tensor::Tensor;
use crate::value::Value;
use strum::VariantArray;

/// Choices that look random, the same for each run.
struct Choices {
    state: u64,
    bindings: Bindings,
}

impl Choices {
    fn below(&mut self, limit: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % limit as u64) as usize
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    fn dtype(&mut self) -> DType {
        match self.below(3) {
            0 => self.one(DType::VARIANTS),
            1 => DType::I64,
            _ => self.one(&[DType::F32, DType::I32, DType::Bool, DType::U8]),
        }
    }

    fn tensor(&mut self, dtype: DType) -> Tensor {
        let shape = self.one::<&[usize]>(&[&[], &[1], &[2], &[3], &[2], &[1, 2], &[3, 1], &[3, 2], &[0], &[2, 1, 3]]);
        let count = shape.iter().product::<usize>();
        if dtype == DType::String {
            let texts = (0..count).map(|_| self.one(&["", "1", "-2.5", "nan", "word"]).to_string()).collect();
            return Tensor::from_strings(shape, texts).unwrap();
        }
        if dtype.is_complex() {
            return Tensor::zeros(dtype, shape).unwrap();
        }
        let values: Vec<Scalar> = (0..count)
            .map(|_| match dtype.is_float() {
                true => Scalar::Float(self.one(&[0.0, 1.0, -2.5, 3.0, f64::NAN, f64::INFINITY, 1e300])),
                false => Scalar::Integer(self.one(&[0, 1, 2, 3, 4, 7, 12, 64, -1, -5, i64::MAX, i64::MIN]).into()),
            })
            .collect();
        from_scalars(dtype, shape, &values).unwrap()
    }

    /// A number that an extent may be, hidden behind a symbol at times. Expressions of extents do not wrap.
    fn dim(&mut self, value: i64) -> Dim {
        if !(0..1000).contains(&value) || self.flag() {
            return Dim::known(value);
        }
        let name = format!("n{value}");
        self.bindings.insert(name.as_str(), value);
        Dim::symbol(&name)
    }

    /// What might be known of a tensor.
    fn fact(&mut self, tensor: &Tensor) -> Fact {
        if self.below(4) == 0 {
            return Fact::constant(tensor.clone());
        }
        let dims: Vec<Dim> = tensor.shape().iter().map(|&extent| self.dim(extent as i64)).collect();
        let shape = if self.below(8) == 0 { Shape::Unranked } else { Shape::Ranked(dims) };
        match integers(tensor).filter(|_| self.flag()) {
            Some(elements) => {
                let dims = elements.into_iter().map(|element| self.dim(element)).collect();
                let known = if self.flag() { Shape::known(tensor.shape()) } else { shape };
                Fact::of_dims(tensor.dtype(), known, dims)
            }
            None => Fact::tensor(tensor.dtype(), shape),
        }
    }

    fn operator(&mut self) -> Op {
        let (axis, block_size) = (self.one(&[0, 1, -1, 5, i64::MIN]), self.one(&[0, 0, 1, 2, -1, i64::MAX]));
        let parameter = |choices: &mut Self| choices.one(&[None, Some(0.5), Some(f32::NAN)]);
        match self.below(16) {
            0 | 1 => Unary { function: self.one(UnaryFunction::VARIANTS) }.into(),
            2 => Activation {
                function: self.one(ActivationFunction::VARIANTS),
                alpha: parameter(self),
                beta: parameter(self),
            }
            .into(),
            3..=6 => Binary { function: self.one(BinaryFunction::VARIANTS) }.into(),
            7 | 8 => Compare { relation: self.one(CompareRelation::VARIANTS) }.into(),
            9 => Select {}.into(),
            10 => Clamp {}.into(),
            11 => Cast {
                to: self.dtype(),
                overflow: self.flag(),
                round: self.one(&[None, Some(RoundMode::Nearest), Some(RoundMode::Down)]),
            }
            .into(),
            12 => BitCast { to: self.dtype() }.into(),
            13 => {
                let precision = self.one(&[None, None, Some(DType::F16), Some(DType::I8)]);
                Quantize { to: self.dtype(), axis, block_size, overflow: self.flag(), precision }.into()
            }
            14 => Dequantize { to: self.one(&[None, Some(DType::F16), Some(DType::I8)]), axis, block_size }.into(),
            _ => match self.below(4) {
                0 => DynamicQuantize {}.into(),
                1 => Dropout { seed: Some(1) }.into(),
                2 => Multinomial { sample_size: self.one(&[0, 3, -1]), to: DType::I64, seed: Some(1.0) }.into(),
                _ => Random {
                    distribution: self.one(Distribution::VARIANTS),
                    to: self.dtype(),
                    low: 0.0,
                    high: 1.0,
                    shape: vec![self.one(&[0, 2, -1])],
                    seed: Some(1.0),
                }
                .into(),
            },
        }
    }

    /// Operands that often fit: most have the type of the first.
    fn operands(&mut self, operator: &Op) -> Vec<Option<Tensor>> {
        let common = self.dtype();
        let typical = match operator {
            Op::Select(_) => vec![DType::Bool, common, common],
            Op::Quantize(quantize) => vec![DType::F32, DType::F32, quantize.to],
            Op::Dequantize(_) => vec![common, DType::F32, common],
            Op::Dropout(_) => vec![common, DType::F32, DType::Bool],
            _ => vec![common; 3],
        };
        let count = if self.below(6) == 0 { self.below(5) } else { typical.len() };
        (0..count)
            .map(|index| {
                let usual = typical.get(index).copied().unwrap_or(common);
                let dtype = if self.below(12) == 0 { self.dtype() } else { usual };
                (self.below(12) != 0).then(|| self.tensor(dtype))
            })
            .collect()
    }
}

/// Whether the inferred fact is true of the tensor once symbols are bound.
fn is_true(said: &Fact, found: &Tensor, bindings: &Bindings) -> bool {
    let Type::Tensor { dtype, shape } = &said.kind else { return false };
    let shape_holds = match shape {
        Shape::Unranked => true,
        Shape::Ranked(dims) => {
            let extents: Option<Vec<i64>> = dims.iter().map(|dim| dim.evaluate(bindings).ok()).collect();
            // A dimension with a name of its own is decided while running.
            extents.is_none_or(|extents| {
                extents.iter().eq(found.shape().iter().map(|&extent| extent as i64).collect::<Vec<_>>().iter())
            })
        }
    };
    let contents_hold = match &said.contents {
        None => true,
        Some(Contents::Constant(tensor)) => tensor == found,
        Some(Contents::Dims(dims)) => {
            let elements: Vec<i64> = dims.iter().map(|dim| dim.evaluate(bindings).unwrap_or(i64::MIN)).collect();
            integers(found) == Some(elements)
        }
    };
    *dtype == found.dtype() && shape_holds && contents_hold
}

#[test]
fn type_rules_hold_for_any_operands() {
    let mut choices = Choices { state: 0x9e37_79b9_7f4a_7c15, bindings: Bindings::new() };
    let (mut ran, mut followed) = (0, 0);
    for _ in 0..40_000 {
        choices.bindings = Bindings::new();
        let operator = choices.operator();
        let operands = choices.operands(&operator);
        let facts: Vec<Option<Fact>> =
            operands.iter().map(|operand| operand.as_ref().map(|operand| choices.fact(operand))).collect();
        let ranges = Ranges::default();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("step", &ranges, &mut blocks);
        let said = operator.operator().infer(&facts, &mut context);
        let inputs: Vec<Option<Value>> = operands.iter().cloned().map(|operand| operand.map(Value::from)).collect();
        let mut runner = NoBlocks;
        let found = operator.operator().reference(&inputs, &mut ReferenceContext::new(&mut runner));
        let Ok(found) = found else { continue };
        let said = said.unwrap_or_else(|error| panic!("{operator} of {facts:?} ran, but: {error}"));
        assert_eq!(said.len(), found.len(), "{operator}");
        ran += 1;
        for (said, found) in said.iter().zip(&found) {
            followed += usize::from(said.contents.is_some());
            let found = found.as_tensor().unwrap();
            assert!(is_true(said, found, &choices.bindings), "{operator} of {facts:?}: said {said:?}, found {found:?}");
        }
    }
    assert!(ran > 5_000 && followed > 500, "{ran} ran, {followed} were followed");
}
