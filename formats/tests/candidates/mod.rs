//! Attributes with which every operator of the table can be built.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use ipuc_formats::attribute::{AttributeError, AttributeValue};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{
    ActivationFunction, Aggregate, AutoPad, BinaryFunction, CacheMode, ChannelOrder, CompareRelation,
    CumulativeFunction, Direction, Distribution, GridPadding, LossReduction, Op, PadMode, Pixels, PoolFunction,
    RecurrentFunction, ReduceFunction, ResizeCoordinates, ResizeMode, ResizeNearest, ResizePolicy, RoiFunction,
    ScatterReduction, ScoreFunction, ScoreStage, SoftmaxFunction, TextCase, UnaryFunction, UpdateRule, Weighting,
    WindowFunction,
};
use ipuc_formats::tensor::Tensor;
use strum::VariantArray;

/// Attributes by name.
pub type Named = Vec<(String, AttributeValue)>;

/// Every keyword of these types.
macro_rules! keywords {
    ($($Type:ty),* $(,)?) => {{
        let mut names: Vec<&'static str> = Vec::new();
        $(names.extend(<$Type as VariantArray>::VARIANTS.iter().map(|&keyword| <&'static str>::from(keyword)));)*
        names.sort_unstable();
        names.dedup();
        names
    }};
}

/// Values of every kind: what no attribute takes is never asked for.
pub fn candidates() -> Vec<AttributeValue> {
    let keywords: Vec<&'static str> = keywords!(
        ActivationFunction,
        Aggregate,
        AutoPad,
        BinaryFunction,
        CacheMode,
        ChannelOrder,
        CompareRelation,
        CumulativeFunction,
        Direction,
        Distribution,
        GridPadding,
        LossReduction,
        PadMode,
        Pixels,
        PoolFunction,
        RecurrentFunction,
        ReduceFunction,
        ResizeCoordinates,
        ResizeMode,
        ResizeNearest,
        ResizePolicy,
        RoiFunction,
        ScatterReduction,
        ScoreFunction,
        ScoreStage,
        SoftmaxFunction,
        TextCase,
        UnaryFunction,
        UpdateRule,
        Weighting,
        WindowFunction,
    );
    let mut values = vec![
        AttributeValue::Integer(0),
        AttributeValue::Integer(1),
        AttributeValue::Integer(7),
        AttributeValue::Integer(-3),
        AttributeValue::Integer(i64::MIN),
        AttributeValue::Integer(i64::MAX),
        AttributeValue::Float(0.1),
        AttributeValue::Float(-0.0),
        AttributeValue::Float(1e-42),
        AttributeValue::Float(f32::MAX),
        AttributeValue::Float(f32::NEG_INFINITY),
        AttributeValue::Integers(vec![1]),
        AttributeValue::Integers(vec![i64::MIN, -1, 0, i64::MAX]),
        AttributeValue::Floats(vec![0.1, -0.0, 1.0, f32::INFINITY]),
        AttributeValue::Texts(vec!["a".to_string(), String::new(), "b \"c\" \\ d\n, ]".to_string()]),
        AttributeValue::Texts(vec!["tanh 0.1 -0.0".to_string(), "sigmoid 0.0 0.0".to_string()]),
        AttributeValue::Texts(vec!["f16".to_string(), "f32".to_string(), "nearest_even".to_string()]),
        AttributeValue::Texts(vec!["clamp x f32(-0.5) f32(0x7fc00001) : f16".to_string(), "return %0 $3".to_string()]),
        AttributeValue::Text(String::new()),
        AttributeValue::Text("free text with `ticks`, \"quotes\" and ü".to_string()),
        AttributeValue::Tensor(Tensor::from_elements(&[2, 1], &[0.5f32, -1.5]).unwrap()),
        AttributeValue::Tensor(Tensor::from_elements(&[0], &[0i64; 0]).unwrap()),
        AttributeValue::Tensor(Tensor::scalar(-7i64)),
    ];
    values.extend(DType::VARIANTS.iter().map(|dtype| AttributeValue::Text(dtype.name().to_string())));
    values.extend(keywords.into_iter().map(|keyword| AttributeValue::Text(keyword.to_string())));
    values
}

/// The attributes that an operator cannot do without, each with the first value that fits.
pub fn required(name: &str, candidates: &[AttributeValue]) -> Named {
    let mut named = Named::new();
    loop {
        match Op::build(name, &named) {
            Ok(_) => return named,
            Err(AttributeError::Missing { name: missing, .. }) => {
                let fits = |value: &&AttributeValue| {
                    let mut tried = named.clone();
                    tried.push((missing.to_string(), (*value).clone()));
                    !matches!(Op::build(name, &tried), Err(AttributeError::Value { .. }))
                };
                let value = candidates.iter().find(fits);
                let value = value.unwrap_or_else(|| panic!("no candidate fits `{missing}` of `{name}`"));
                named.push((missing.to_string(), value.clone()));
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
}
