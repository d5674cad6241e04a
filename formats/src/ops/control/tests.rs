//! Control flow, sequences, text, selection and signals on operands of any kind: nothing panics, and what the type
//! rule says is true of the result.

use crate::attribute::BlockIndex;
use crate::dim::Ranges;
use crate::dtype::DType;
use crate::fact::{Fact, Shape, Type};
use crate::ops::control::join::{VARYING, without_shapes};
use crate::ops::test_blocks::{TestBlock, TestBlocks};
use crate::ops::*;
use crate::tensor::Tensor;
use crate::value::Value;

/// Numbers that look random, the same for each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    fn axis(&mut self) -> i64 {
        [0, 1, 2, -1, -2, -3, i64::MIN, i64::MAX][self.below(8)]
    }

    fn count(&mut self) -> i64 {
        [0, 1, 2, 3, -1, i64::MAX][self.below(6)]
    }

    fn tensor(&mut self) -> Tensor {
        let shapes: [&[usize]; 10] =
            [&[], &[1], &[2], &[0], &[1, 2], &[2, 3], &[1, 4, 1], &[2, 3, 2], &[1, 3, 4], &[1, 1, 3]];
        let shape = shapes[self.below(10)];
        let count: usize = shape.iter().product();
        let integers: Vec<i64> =
            (0..count).map(|_| [0, 1, 2, 3, 4, -1, 16, i64::MAX, i64::MIN][self.below(9)]).collect();
        let floats: Vec<f32> = integers.iter().map(|&integer| integer as f32 / 2.0).collect();
        match self.below(8) {
            0 => Tensor::from_bools(shape, &integers.iter().map(|&integer| integer > 0).collect::<Vec<_>>()),
            1 => Tensor::from_strings(shape, integers.iter().map(|integer| format!("{integer} a")).collect()),
            2 => Tensor::from_elements(shape, &integers.iter().map(|&integer| integer as i32).collect::<Vec<_>>()),
            3 => Tensor::from_codes(
                DType::U4,
                shape,
                &integers.iter().map(|&integer| integer as u8 & 15).collect::<Vec<_>>(),
            ),
            4 | 5 => Tensor::from_elements(shape, &floats),
            _ => Tensor::from_elements(shape, &integers),
        }
        .unwrap()
    }

    fn value(&mut self) -> Option<Value> {
        let tensor = self.tensor();
        let element = Type::tensor(tensor.dtype(), Shape::Unranked);
        Some(match self.below(10) {
            0 => return None,
            1 | 2 => Value::Sequence { element, items: vec![tensor.into(); self.below(3)] },
            3 => Value::Optional { element, value: self.flag().then(|| Box::new(tensor.into())) },
            _ => tensor.into(),
        })
    }

    fn operator(&mut self) -> Op {
        let body = BlockIndex(0);
        let (inverse, onesided) = (self.flag(), self.flag());
        match self.below(25) {
            0 => If { then: body, otherwise: body, then_captures: self.count() }.into(),
            1 => Loop { body: BlockIndex(1), carried: self.count() }.into(),
            2 => Scan {
                body,
                states: self.count(),
                scan_inputs: self.count(),
                input_axes: vec![self.axis()],
                output_axes: vec![],
                input_directions: vec![self.count()],
                output_directions: vec![],
                batched: self.flag(),
            }
            .into(),
            3 => SequenceMap { body, mapped: self.count() }.into(),
            4 => SequenceConstruct { dtype: self.flag().then_some(DType::I64) }.into(),
            5 => SequenceAt {}.into(),
            6 => SequenceInsert {}.into(),
            7 => SequenceErase {}.into(),
            8 => SequenceLength {}.into(),
            9 => SequenceSplit { axis: self.axis(), drop_axis: self.flag() }.into(),
            10 => SequenceConcat { axis: self.axis(), new_axis: self.flag() }.into(),
            11 => OptionalConstruct { dtype: self.flag().then_some(DType::F32), sequence: self.flag() }.into(),
            12 => OptionalGet {}.into(),
            13 => OptionalHas {}.into(),
            14 => StringConcat {}.into(),
            15 => {
                StringNormalize { case: TextCase::Upper, case_sensitive: inverse, stopwords: vec!["1 a".to_string()] }
                    .into()
            }
            16 => StringSplit { delimiter: inverse.then(String::new), maximum_splits: Some(self.count()) }.into(),
            23 => Tokenize {
                separators: if inverse { vec![" ".to_string(), "[".to_string()] } else { Vec::new() },
                expression: [r"\w*", "", "("][self.below(3)].to_string(),
                least: self.count(),
                mark: onesided,
                padding: String::new(),
            }
            .into(),
            17 => RegexFullMatch { pattern: ["1.*", "(", r"\w+"][self.below(3)].to_string() }.into(),
            18 => TfIdf {
                weighting: Weighting::Idf,
                minimum_length: self.count(),
                maximum_length: self.count(),
                maximum_skips: self.count(),
                starts: vec![0, self.axis()],
                columns: vec![0, 1, 1],
                weights: vec![],
                integer_pool: vec![1, 2, 3],
                text_pool: vec![],
            }
            .into(),
            19 => NonMaxSuppression { centers: self.flag() }.into(),
            20 => FourierTransform { inverse, onesided }.into(),
            21 => ShortTimeFourierTransform { onesided }.into(),
            22 => Window { function: WindowFunction::Hann, periodic: onesided, dtype: DType::F32 }.into(),
            _ => MelWeights { dtype: DType::F32 }.into(),
        }
    }
}

/// Block 0 gives its arguments back, block 1 all but the first: a loop that changes nothing.
fn blocks(types: Vec<Type>) -> TestBlocks {
    let rest = TestBlock::new(|facts| facts.get(1..).unwrap_or_default().to_vec(), |mut values| values.split_off(1));
    let without_first = types.get(1..).unwrap_or_default().to_vec();
    TestBlocks::new(vec![TestBlock::identity().with_types(types), rest.with_types(without_first)])
}

/// Whether a value of type `found` may be where `said` was inferred.
fn agrees(said: &Type, found: &Type) -> bool {
    match (said, found) {
        (Type::Tensor { dtype, shape }, Type::Tensor { dtype: found_dtype, shape: found_shape }) => {
            let (Some(dims), Some(found_dims)) = (shape.dims(), found_shape.dims()) else {
                return dtype == found_dtype;
            };
            let fits = dims.iter().zip(found_dims).all(|(dim, extent)| dim.as_known().is_none() || dim == extent);
            dtype == found_dtype && dims.len() == found_dims.len() && fits
        }
        _ => without_shapes(said) == without_shapes(found),
    }
}

fn mentions_varying(kind: &Type) -> bool {
    kind.as_tensor()
        .is_some_and(|(_, shape)| shape.dims().unwrap_or_default().iter().any(|dim| dim.symbols().contains(VARYING)))
}

/// Bounded: a trip count or a size of 2^63 is a program that runs long, not one that fails.
fn is_endless(operator: &Op, inputs: &[Option<Value>]) -> bool {
    let huge = |value: &Value| {
        value.as_tensor().and_then(crate::fact::integers).is_some_and(|integers| integers.contains(&i64::MAX))
    };
    let sized = matches!(
        operator,
        Op::Loop(_) | Op::Window(_) | Op::MelWeights(_) | Op::FourierTransform(_) | Op::ShortTimeFourierTransform(_)
    );
    let forever = matches!(operator, Op::Loop(_)) && !matches!(inputs.first(), Some(Some(_)));
    forever || (sized && inputs.iter().flatten().any(huge))
}

#[test]
fn type_rules_hold_for_any_operands() {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let (mut typed, mut ran) = (0, 0);
    for _ in 0..60_000 {
        let operator = numbers.operator();
        let inputs: Vec<Option<Value>> = (0..numbers.below(6)).map(|_| numbers.value()).collect();
        let mapped = if let Op::SequenceMap(map) = &operator { map.mapped } else { 0 };
        let item = |(index, value): (usize, &Value)| match value.kind() {
            Type::Sequence(element) if (index as i64) < mapped => *element,
            kind => kind,
        };
        let types = inputs.iter().flatten().enumerate().map(item).collect();
        let facts: Vec<Option<Fact>> = inputs.iter().map(|input| input.as_ref().map(Value::fact)).collect();
        let (ranges, mut inferring) = (Ranges::default(), blocks(Vec::new()));
        let mut context = InferContext::new("step", &ranges, &mut inferring);
        let said = operator.operator().infer(&facts, &mut context);
        typed += usize::from(said.is_ok());
        if is_endless(&operator, &inputs) {
            continue;
        }
        let mut running = blocks(types);
        let found = operator.operator().reference(&inputs, &mut ReferenceContext::new(&mut running));
        let (Ok(said), Ok(found)) = (said, found) else { continue };
        ran += 1;
        for (said, found) in said.iter().zip(&found) {
            assert!(agrees(&said.kind, &found.kind()), "{operator}: {} for {} of {facts:?}", said.kind, found.kind());
            assert!(!mentions_varying(&said.kind), "{operator}: {}", said.kind);
        }
    }
    assert!(typed > 1000 && ran > 1000, "{typed} typed, {ran} ran");
}
