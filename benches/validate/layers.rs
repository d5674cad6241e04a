//! Single operators, and a layer of GPT-3 as one of four machines computes it.

use crate::models::{Builder, F16, Weights, normalized};

/// An operator on its own.
#[derive(Debug, Clone, Copy)]
pub enum Single {
    /// Over the last axis.
    Softmax,
    /// Over the last axis, with scales and biases.
    LayerNormalization,
    /// Of each element.
    Gelu,
}

pub fn single(element: i32, operator: Single, shape: &[i64]) -> Vec<u8> {
    let mut builder = Builder::new(element);
    let x = builder.input("x", shape);
    let y = match operator {
        Single::Softmax => builder.node("Softmax", &[&x], Vec::new()),
        Single::LayerNormalization => normalized(&mut builder, &x, shape[shape.len() - 1]),
        Single::Gelu => builder.node("Gelu", &[&x], Vec::new()),
    };
    builder.finish(&[(&y, shape.to_vec())])
}

/// A quarter of a layer of GPT-3: 24 of its 96 heads and a quarter of its inner elements, for so many new tokens of each user
/// after `past` ones. Its steps are those that were measured one by one: queries, keys and values in one product, scores,
/// softmax, values, the product behind them, two normalizations, and two products with GELU between them; what splits and
/// joins heads is not among them, so that these are inputs.
pub fn quarter_layer(batch: i64, tokens: i64, past: i64) -> Vec<u8> {
    const WIDTH: i64 = 12288;
    const HEADS: i64 = 24;
    const HEAD: i64 = 128;
    let (rows, keys) = (batch * tokens, past + tokens);
    let mut builder = Builder::new(F16);
    let x = builder.input("x", &[rows, WIDTH]);
    let queries = builder.input("queries", &[batch, HEADS, tokens, HEAD]);
    let cached_keys = builder.input("keys", &[batch, HEADS, HEAD, keys]);
    let values = builder.input("values", &[batch, HEADS, keys, HEAD]);
    let attended = builder.input("attended", &[rows, HEADS * HEAD]);
    let projected = builder.product(&x, WIDTH, 3 * HEADS * HEAD, Weights::Plain);
    let scores = builder.node("MatMul", &[&queries, &cached_keys], Vec::new());
    let shares = builder.node("Softmax", &[&scores], Vec::new());
    let heads = builder.node("MatMul", &[&shares, &values], Vec::new());
    let joined = builder.product(&attended, HEADS * HEAD, WIDTH, Weights::Plain);
    let normal = normalized(&mut builder, &joined, WIDTH);
    let inner = builder.product(&normal, WIDTH, WIDTH, Weights::Plain);
    let inner = builder.node("Gelu", &[&inner], Vec::new());
    let outer = builder.product(&inner, WIDTH, WIDTH, Weights::Plain);
    let last = normalized(&mut builder, &outer, WIDTH);
    builder.finish(&[
        (&projected, vec![rows, 3 * HEADS * HEAD]),
        (&heads, vec![batch, HEADS, tokens, HEAD]),
        (&last, vec![rows, WIDTH]),
    ])
}
