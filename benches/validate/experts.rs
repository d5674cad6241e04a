//! Decoders whose blocks choose among experts.

use crate::models::{Builder, Decoder, F16, U8, Weights, integer, root_normalized, text};

/// A mixture of experts.
pub struct Experts {
    /// Everything but the experts; `inner` is that of one.
    pub of: Decoder,
    pub experts: i64,
    /// Experts of each token.
    pub chosen: i64,
    /// Of the codes of their weights.
    pub bits: i64,
    /// Inputs that share an f16 scale.
    pub block: i64,
    /// All weights but those of the experts.
    pub others: Weights,
}

/// One token for one user after `past` tokens.
pub fn decode_experts(past: i64, model: &Experts) -> Vec<u8> {
    let of = &model.of;
    let mut builder = Builder::new(F16);
    let mut x = builder.embedded(1, of);
    let (rows, scores, token) = (
        builder.constant("rows", &[1, of.width]),
        builder.constant("scores", &[1, model.experts]),
        builder.constant("token", &[1, 1, of.width]),
    );
    let mut outputs = Vec::new();
    for layer in 0..of.layers {
        x = builder.attended(&x, (1, past, layer), of, model.others, &mut outputs);
        let y = root_normalized(&mut builder, &x, of.width);
        let router = builder.product(&y, of.width, model.experts, Weights::Plain);
        let (y, router) = (
            builder.node("Reshape", &[&y, &rows], Vec::new()),
            builder.node("Reshape", &[&router, &scores], Vec::new()),
        );
        let codes = |builder: &mut Builder, outputs: i64, inputs: i64| {
            let codes = builder.codes(U8, &[model.experts, outputs, inputs * model.bits / 8]);
            (codes, builder.codes(F16, &[model.experts, outputs, inputs / model.block]))
        };
        let (up, up_scales) = codes(&mut builder, 2 * of.inner, of.width);
        let (down, down_scales) = codes(&mut builder, of.width, of.inner);
        let attributes = vec![
            text("activation_type", "swiglu"),
            integer("swiglu_fusion", 1),
            integer("expert_weight_bits", model.bits),
            integer("block_size", model.block),
            integer("k", model.chosen),
            integer("normalize_routing_weights", 1),
        ];
        let inputs = [y.as_str(), &router, &up, &up_scales, "", &down, &down_scales];
        let mixed = builder.contributed("QMoE", &inputs, attributes);
        let mixed = builder.node("Reshape", &[&mixed, &token], Vec::new());
        x = builder.node("Add", &[&x, &mixed], Vec::new());
    }
    builder.scored(&x, (1, past), of, model.others, &outputs)
}
