//! Single operators, a layer of GPT-3 as one of four machines computes it, and ResNet-50 step by step.

use crate::models::{Builder, F16, Weights, integers, normalized};

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

/// ResNet-50 as a program whose convolutions find their windows padded: before each that reads more than single positions, and
/// before the pool, a step brings rows of neighbours and zeros to each part. Rectifiers are at the end of the step before them.
pub fn resnet50_in_steps(element: i32, batch: i64) -> Vec<u8> {
    let mut builder = Builder::new(element);
    let x = builder.input("image", &[batch, 3, 224, 224]);
    let x = convolution(&mut builder, &x, (3, 64), (7, 2));
    let x = padded(&mut builder, &x, 1);
    let pool = vec![integers("kernel_shape", &[3, 3]), integers("strides", &[2, 2])];
    let mut x = builder.node("MaxPool", &[&x], pool);
    let mut channels = 64;
    for (stage, blocks) in [3, 4, 6, 3].into_iter().enumerate() {
        let inner = 64 << stage;
        for block in 0..blocks {
            let stride = if block == 0 && stage > 0 { 2 } else { 1 };
            let y = convolution(&mut builder, &x, (channels, inner), (1, 1));
            let y = convolution(&mut builder, &y, (inner, inner), (3, stride));
            let y = convolution(&mut builder, &y, (inner, inner * 4), (1, 1));
            let shortcut = match block {
                0 => convolution(&mut builder, &x, (channels, inner * 4), (1, stride)),
                _ => x,
            };
            x = builder.node("Add", &[&y, &shortcut], Vec::new());
            channels = inner * 4;
        }
    }
    let x = builder.node("GlobalAveragePool", &[&x], Vec::new());
    let x = builder.node("Flatten", &[&x], Vec::new());
    let y = builder.product(&x, 2048, 1000, Weights::Plain);
    builder.finish(&[(&y, vec![batch, 1000])])
}

fn convolution(builder: &mut Builder, x: &str, channels: (i64, i64), (kernel, stride): (i64, i64)) -> String {
    let x = if kernel > 1 { padded(builder, x, kernel / 2) } else { x.to_string() };
    builder.padded_convolution(&x, channels, (kernel, 0), stride)
}

/// So many zeros at each border of an image.
fn padded(builder: &mut Builder, x: &str, pad: i64) -> String {
    let name = format!("border{}", builder.fresh());
    let border = builder.constant(&name, &[0, 0, pad, pad, 0, 0, pad, pad]);
    builder.node("Pad", &[x, &border], Vec::new())
}
