//! What holds for every operator of the table: bytes and text round-trip with every kind of value in every attribute; and
//! for every product: the multiply-accumulates that it states are those that its reference counts.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use crate::candidates::{Named, candidates, required};
use ipuc_formats::attribute::{AttributeError, AttributeValue};
use ipuc_formats::attribute_text;
use ipuc_formats::dim::{Dim, Ranges};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::Fact;
use ipuc_formats::ops::{InferContext, NoBlocks, Op, ReferenceContext, StepFacts, TABLE};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;

fn check_round_trips(op: &Op) {
    let attributes = op.attributes();
    let numbered: Vec<(u32, AttributeValue)> =
        attributes.iter().map(|(number, _, value)| (*number, value.clone())).collect();
    assert_eq!(&Op::decode(op.code(), op.revision(), &numbered).unwrap(), op);
    let reparsed = attributes.iter().map(|(_, name, value)| {
        let text = attribute_text::print(value);
        let (parsed, rest) = attribute_text::parse(&text).unwrap_or_else(|| panic!("{op}: {text}"));
        assert_eq!(rest, "", "{op}: {text}");
        ((*name).to_string(), parsed)
    });
    let named: Named = reparsed.collect();
    let again = Op::build(op.name(), &named).unwrap();
    assert_eq!(&again, op);
    // Bits too: -0.0 equals 0.0.
    assert_eq!(format!("{:?}", again.attributes()), format!("{attributes:?}"));
}

#[test]
fn every_operator_round_trips_as_bytes_and_as_text() {
    let candidates = candidates();
    for row in TABLE {
        let base = required(row.name, &candidates);
        check_round_trips(&Op::build(row.name, &base).unwrap());
        for field in row.fields {
            let mut accepted = 0;
            for value in &candidates {
                let mut named: Named = base.iter().filter(|(name, _)| name != field.name).cloned().collect();
                named.push((field.name.to_string(), value.clone()));
                if let Ok(op) = Op::build(row.name, &named) {
                    check_round_trips(&op);
                    accepted += 1;
                }
            }
            assert!(accepted > 0, "no candidate fits `{}` of `{}`", field.name, row.name);
        }
    }
}

#[test]
fn what_an_operator_does_not_know_is_refused() {
    let candidates = candidates();
    for row in TABLE {
        let base = required(row.name, &candidates);
        let op = Op::build(row.name, &base).unwrap();
        let mut numbered: Vec<(u32, AttributeValue)> =
            op.attributes().into_iter().map(|(number, _, value)| (number, value)).collect();
        let later = Op::decode(row.code, row.revision + 1, &numbered).unwrap_err();
        assert!(matches!(later, AttributeError::Revision { .. }), "{later}");
        numbered.push((999, AttributeValue::Integer(1)));
        let unknown = Op::decode(row.code, row.revision, &numbered).unwrap_err();
        assert!(matches!(unknown, AttributeError::UnknownNumber { number: 999, .. }), "{unknown}");
        let mut named = base;
        named.push(("no_such_name".to_string(), AttributeValue::Integer(1)));
        assert!(matches!(Op::build(row.name, &named), Err(AttributeError::UnknownAttribute { .. })), "{}", row.name);
    }
}

/// A product: name, attributes, operands by type and shape.
type Product = (&'static str, Vec<(&'static str, AttributeValue)>, Vec<Option<(DType, &'static [usize])>>);

fn products() -> Vec<Product> {
    let integer = AttributeValue::Integer;
    let text = |text: &str| AttributeValue::Text(text.to_string());
    let floats = |shapes: &[&'static [usize]]| shapes.iter().map(|&shape| Some((DType::F32, shape))).collect();
    let bytes = |shapes: &[&'static [usize]]| shapes.iter().map(|&shape| Some((DType::U8, shape))).collect();
    let groups = |count| vec![("groups", integer(count))];
    let direction = |direction: &str, activations: &[&str]| {
        let texts = activations.iter().map(|name| format!("{name} 0.0 0.0")).collect();
        vec![("direction", text(direction)), ("activations", AttributeValue::Texts(texts))]
    };
    let heads = |rule: &str| vec![("rule", text(rule)), ("query_heads", integer(4)), ("key_heads", integer(2))];
    vec![
        ("matmul", vec![], floats(&[&[2, 3, 4, 5], &[3, 5, 6]])),
        ("matmul", vec![("transpose_a", integer(1))], floats(&[&[5, 4], &[5, 6]])),
        ("integer_matmul", vec![], bytes(&[&[2, 4, 5], &[5, 6]])),
        ("convolution", groups(2), floats(&[&[2, 4, 7, 6], &[6, 2, 3, 2]])),
        ("blocked_convolution", groups(2), floats(&[&[2, 2, 7, 6, 8], &[16, 8, 3, 2]])),
        ("integer_convolution", groups(1), bytes(&[&[1, 3, 6, 6], &[2, 3, 3, 3]])),
        ("convolution_transpose", groups(2), floats(&[&[2, 4, 5], &[4, 3, 2]])),
        (
            "deformable_convolution",
            vec![("groups", integer(1)), ("offset_groups", integer(1))],
            // Taps outside of the image count too: offsets are 0.
            vec![
                Some((DType::F32, &[1, 2, 4, 4])),
                Some((DType::F32, &[3, 2, 2, 2])),
                None,
                Some((DType::F32, &[1, 8, 3, 3])),
            ],
        ),
        ("causal_convolution", vec![], floats(&[&[2, 3, 5], &[3, 1, 4]])),
        (
            "attention",
            vec![("softcap", AttributeValue::Float(0.0))],
            floats(&[&[2, 4, 3, 5], &[2, 2, 6, 5], &[2, 2, 6, 7]]),
        ),
        ("linear_attention", heads("linear"), floats(&[&[2, 3, 12], &[2, 3, 6], &[2, 3, 10]])),
        ("rnn", direction("bidirectional", &["tanh"; 2]), floats(&[&[3, 2, 4], &[2, 5, 4], &[2, 5, 5]])),
        ("gru", direction("forward", &["sigmoid", "tanh"]), floats(&[&[3, 2, 4], &[1, 15, 4], &[1, 15, 5]])),
        ("lstm", direction("reverse", &["sigmoid", "tanh", "tanh"]), floats(&[&[3, 2, 4], &[1, 20, 4], &[1, 20, 5]])),
        ("einsum", vec![("equation", text("bij,bjk->bik"))], floats(&[&[2, 3, 4], &[2, 4, 5]])),
    ]
}

#[test]
fn stated_multiplications_are_those_that_references_count() {
    for (name, attributes, operands) in products() {
        let named: Named = attributes.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        let op = Op::build(name, &named).unwrap_or_else(|error| panic!("{name}: {error}"));
        let tensors: Vec<Option<Tensor>> =
            operands.iter().map(|operand| operand.map(|(dtype, shape)| Tensor::zeros(dtype, shape).unwrap())).collect();
        let facts: Vec<Option<Fact>> = tensors
            .iter()
            .map(|tensor| {
                let dims = |tensor: &Tensor| {
                    tensor.shape().iter().map(|&extent| Dim::known(extent as i64)).collect::<Vec<_>>()
                };
                tensor.as_ref().map(|tensor| Fact::tensor(tensor.dtype(), dims(tensor)))
            })
            .collect();
        let (ranges, mut no_blocks) = (Ranges::new(), NoBlocks);
        let mut context = InferContext::new(name, &ranges, &mut no_blocks);
        let results = op.operator().infer(&facts, &mut context).unwrap_or_else(|error| panic!("{op}: {error}"));
        let stated = op.work(&StepFacts::new(name, &facts, &results)).total_macs();
        let mut no_blocks = NoBlocks;
        let mut context = ReferenceContext::new(&mut no_blocks);
        let values: Vec<Option<Value>> = tensors.into_iter().map(|tensor| tensor.map(Value::from)).collect();
        op.operator().reference(&values, &mut context).unwrap_or_else(|error| panic!("{op}: {error}"));
        assert!(context.macs > 0, "{op}");
        assert_eq!(stated, Dim::known(context.macs as i64), "{op}");
    }
}
