//! What is refused of an operator, and where the specification and implementations differ: for the list of operators.

/// A remark on an operator, for its users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    /// ONNX domain; empty for the default one.
    pub domain: &'static str,
    /// Operator name.
    pub name: &'static str,
    /// What is refused or differs, in words.
    pub text: &'static str,
}

const fn note(name: &'static str, text: &'static str) -> Note {
    Note { domain: "", name, text }
}

const fn classical(name: &'static str, text: &'static str) -> Note {
    Note { domain: "ai.onnx.ml", name, text }
}

const fn microsoft(name: &'static str, text: &'static str) -> Note {
    Note { domain: "com.microsoft", name, text }
}

/// Of functions of two operands until opset 6.
const ALIGNED: &str = "until opset 6 shapes must agree without `broadcast`, and `axis` stands beside it alone";
/// Of convolutions.
const KERNEL: &str = "`kernel_shape`, where it is stated, must be that of the weights, and `strides` and `dilations` have one number an axis; `pads` beside `auto_pad` are refused unless they are 0";
/// Of layers that recur.
const SEQUENCE: &str = "until opset 6 the output `Y` is refused where `output_sequence` is 0";

/// Remarks, by domain and name.
pub const NOTES: &[Note] = &[
    note("Add", ALIGNED),
    note("And", ALIGNED),
    note("Attention", "`softmax_precision` of bf16, f16, f32 or f64; `qk_matmul_output_mode` 0 to 3"),
    note(
        "BatchNormalization",
        "until opset 13 more than one output (training: `mean`, `var`, `saved_mean`, `saved_var`) is refused, since 14 without `training_mode` too",
    ),
    note("BitCast", "`to` of as many bits"),
    note("Cast", "`to` of a type that is known"),
    note("CastLike", "`round_mode` up, down or nearest"),
    note("Conv", KERNEL),
    note("ConvInteger", KERNEL),
    note("ConvTranspose", KERNEL),
    note("DeformConv", KERNEL),
    note("Div", ALIGNED),
    note("Dropout", "until opset 6 it trains, at random, unless `is_test` is 1"),
    note("Equal", ALIGNED),
    note("GRU", SEQUENCE),
    note("Gemm", "until opset 6 shapes must agree without `broadcast`"),
    note("Greater", ALIGNED),
    note("GroupNormalization", "`stash_type` of a float"),
    note(
        "ImageDecoder",
        "needs the feature `images`: BMP, JPEG (the pixels of libjpeg-turbo), JPEG 2000, PNG, PNM, TIFF, WebP",
    ),
    note("LSTM", SEQUENCE),
    note(
        "LayerNormalization",
        "before opset 17, where ONNX has it not, as ONNX Runtime: the data may have another type than scale, bias and result",
    ),
    note("Less", ALIGNED),
    note("LinearAttention", "`update_rule` linear, gated, delta or gated_delta, with the operands that it has"),
    note(
        "Loop",
        "as the text says, the condition that the body gives is ignored where the operand is left out (ONNX Runtime honours it); without trip count and condition it would never end and is refused; where it does not run once, extents of scanned results that the body leaves open are 0 (ONNX Runtime takes those that the graph states)",
    ),
    note("LpNormalization", "`p` of 1 or 2"),
    note("LpPool", "`pads` beside `auto_pad` are refused unless they are 0"),
    note("MaxRoiPool", "`pooled_shape` of two numbers"),
    note("MeanVarianceNormalization", "until opset 8 of 2 to 4 axes"),
    note("Mul", ALIGNED),
    note("Or", ALIGNED),
    note("Pad", "`mode` = wrap is refused before opset 19, where ONNX does not have it"),
    note("Pow", ALIGNED),
    note("QLinearConv", KERNEL),
    note("RMSNormalization", "`stash_type` of a float"),
    note("RNN", SEQUENCE),
    note("Range", "`stash_type` of narrow floats is f32"),
    note(
        "Resize",
        "`coordinate_transformation_mode` = tf_half_pixel_for_nn is refused after opset 11; `mode` = cubic and other modes of coordinates are of opset 11 and later",
    ),
    note("ScatterElements", "`reduction` of max and min since opset 18"),
    note("ScatterND", "`reduction` of max and min since opset 18"),
    note("Shrink", "NaN gives 0, as the text says"),
    note("Split", "`num_outputs` must be the number of outputs, and not stand beside sizes"),
    note(
        "StringNormalizer",
        "a `locale` whose letters change their case in a way of its own is refused where case changes",
    ),
    note("Sub", ALIGNED),
    note("ThresholdedRelu", "NaN gives 0, as the text says"),
    note("Xor", ALIGNED),
    classical("CastMap", "`cast_to` of TO_STRING and TO_INT64 of floats, and SPARSE maps of texts are refused"),
    classical("DictVectorizer", "one of `int64_vocabulary` and `string_vocabulary`"),
    classical("FeatureVectorizer", "inputs of known width"),
    classical("LinearClassifier", "one score for two classes needs `post_transform` = LOGISTIC"),
    classical("OneHotEncoder", "`zeros` = 0 is refused: an unknown category is never an error"),
    classical(
        "SVMClassifier",
        "needs support vectors, and three `kernel_params` or none; `post_transform` of two classes needs probabilities; the label follows from votes",
    ),
    classical("SVMRegressor", "one target, no `post_transform`; three `kernel_params` or none"),
    classical("TreeEnsemble", "`aggregate_function` 0 to 3, `post_transform` 0 to 4"),
    classical(
        "TreeEnsembleClassifier",
        "two classes with votes for the first only have one score, and give scores as ONNX Runtime does; `post_transform` is NONE or LOGISTIC there; votes for the second only are refused; of more classes one without votes has a score of 0, which ONNX Runtime passes over where all others are less",
    ),
    classical(
        "TreeEnsembleRegressor",
        "a target without votes is its base value, where ONNX Runtime of several targets gives 0",
    ),
    Note { domain: "ai.onnx.preview.training", name: "Gradient", text: "refused: it differentiates a graph" },
    microsoft(
        "Attention",
        "`do_rotary` and `past_present_share_buffer`, which ONNX Runtime has on no processor, are refused; `past_sequence_length` says nothing without the latter",
    ),
    microsoft("AttnLSTM", "`hidden_size` must be that of the weights"),
    microsoft(
        "BeamSearch",
        "`model_type` 0 and 1; `decoder_input_ids` and `logits_processor` change nothing, as in ONNX Runtime; the graphs have the inputs that ONNX Runtime's converter writes, without buffers that past and present share",
    ),
    microsoft("CDist", "`metric` euclidean or sqeuclidean"),
    microsoft("CausalConvWithState", "`state_window` and more than one spatial axis are refused"),
    microsoft(
        "ConvTransposeWithDynamicPads",
        "with `auto_pad` of SAME pads do not count, as in ONNX Runtime; `kernel_shape` must be that of the weights",
    ),
    microsoft("CropAndResize", "`crop_size` must be a constant"),
    microsoft(
        "DecoderMaskedMultiHeadAttention",
        "beams need a buffer that past and present share (`past_present_share_buffer`); `bias` is refused beside packed keys and values",
    ),
    microsoft("DynamicQuantizeLSTM", "`hidden_size` must be that of the weights"),
    microsoft(
        "EmbedLayerNormalization",
        "`mask_index_type` is 1 where there is a mask; `segment_ids` need `segment_embedding`",
    ),
    microsoft("FusedConv", KERNEL),
    microsoft("FusedGemm", "functions of one or two parameters: `activation_gamma` other than 0 is refused"),
    microsoft(
        "FusedMatMulActivation",
        "functions of one or two parameters: `activation_gamma` other than 0 is refused",
    ),
    microsoft(
        "GatedDeltaNet",
        "`cu_seqlens`, captured updates (`state_update`, `capture_count`, `state_update_active`) and an `initial_state` of unknown shape are refused; ONNX Runtime 1.31 has it on no processor",
    ),
    microsoft("GatedRMSNorm", "`activation` silu, swish or sigmoid"),
    microsoft("GatherBlockQuantized", "`bits` 2, 4, 8; `block_size` a power of two from 16 on"),
    microsoft(
        "GreedySearch",
        "`model_type` 0; behind the end of all texts is padding, where ONNX Runtime leaves what is in memory",
    ),
    microsoft("GridSample", "`mode` bilinear, nearest or bicubic"),
    microsoft("GroupNorm", "`activation` 0 or 1"),
    microsoft(
        "GroupQueryAttention",
        "rows that ONNX Runtime leaves open (of padding, or behind a window's) are zero; `query_seqlens` is bounded by its range; `num_heads` and `kv_num_heads` must divide the hidden sizes; `qk_output` with `sliding_window_cache` is refused",
    ),
    microsoft("Irfft", "along one axis: `signal_ndim` 1, `onesided` 1, `normalized` 0"),
    microsoft("LinearAttention", "`update_rule` as in ONNX; `state_window` is refused"),
    microsoft(
        "MRotaryEmbedding",
        "`is_packed_batching` is refused; `mrope_section` has three parts that add up to the columns of the caches",
    ),
    microsoft(
        "MatMulBnb4",
        "`quant_type` 0 or 1; `transB` 1; `training_mode` 0; `K`, `N` and `block_size` must fit the weights",
    ),
    microsoft("MatMulFpQ4", "`blk_quant_type` 0 and 1; `B_shape` must be a constant"),
    microsoft(
        "MatMulNBits",
        "with `g_idx` packed zero points count, which ONNX Runtime passes over on a processor; `weight_prepacked` is refused; `bits` 2, 4, 8; `block_size` a power of two from 16 on; `K` and `N` are those of the weights",
    ),
    microsoft(
        "MaxpoolWithMask",
        "`storage_order` is 0 or 1 and changes nothing; one mask for all planes: of several ONNX Runtime takes elements from wrong places; `kernel_shape` of at most 256 along the last axis",
    ),
    microsoft(
        "MoE",
        "`use_sparse_mixer` takes two experts and changes nothing, as in ONNX Runtime on a processor; a third matrix of the experts (`fc3_experts_weights`, `fc3_experts_bias`) is refused",
    ),
    microsoft("MoEGroupRouter", "`projection_weight` is refused"),
    microsoft("MultiHeadAttention", "`cache_indirection` needs one query and a buffer that past and present share"),
    microsoft("NhwcConv", KERNEL),
    microsoft("NhwcFusedConv", KERNEL),
    microsoft(
        "NhwcMaxPool",
        "`pads` beside `auto_pad` are refused unless they are 0, and with `dilations` so are `ceil_mode` and open extents beside `strides`",
    ),
    microsoft("PackedAttention", "`qkv_hidden_sizes` of three numbers"),
    microsoft("QAttention", "`do_rotary` and `past_present_share_buffer` are refused"),
    microsoft("QGemm", "several scales or zero points of A are refused"),
    microsoft("QLinearConv", KERNEL),
    microsoft(
        "QMoE",
        "experts of 2, 4 and 8 bits; `use_sparse_mixer` as in `MoE`; prepacked weights, a third matrix (`fc3_experts_weights`, `fc3_scales`, `fc3_experts_bias`, `fc3_zero_points`) and scales of activations and of whole layers (`fc1_global_scale`, `fc2_global_scale`, `fc1_act_scale`, `fc2_act_scale`, `fc1_act_block_scale`, `fc2_act_block_scale`) are refused",
    ),
    microsoft("Rfft", "along one axis: `signal_ndim` 1, `onesided` 1, `normalized` 0"),
    microsoft("RotaryEmbedding", "`scale` changes nothing, as in ONNX Runtime on a processor"),
    microsoft(
        "Sampling",
        "as `GreedySearch`, `model_type` 0; the numbers are those of ONNX Runtime on Linux for the same `seed`, which must be given; `presence_penalty`, which ONNX Runtime computes wrongly on a processor, is refused, without which `presence_mask` changes nothing; so is the output `filtered_logits`, which ONNX Runtime does not fill",
    ),
    microsoft("SkipGroupNorm", "`activation` 0 or 1; `channels_last` 1"),
    microsoft(
        "SparseAttention",
        "`num_heads` and `kv_num_heads` must divide the hidden sizes; texts of several lengths in a batch are each computed as alone, where ONNX Runtime's results differ",
    ),
    microsoft("Tokenizer", "the result has an axis more also where there are no texts"),
    microsoft("UnfoldTensor", "the axis has a known extent"),
    microsoft(
        "WhisperBeamSearch",
        "`model_type` 2; `attention_mask`, `cross_qk` with `cross_qk_layer_head`, `extra_decoding_ids`, `non_speech_probs`, a `prefix_vocab_mask` of unknown rank, a `logits_processor` other than 0 and buffers that past and present share are refused",
    ),
    microsoft(
        "WordConvEmbedding",
        "words of two axes; windows of at most 64 characters; `embedding_size` and `char_embedding_size` are those of the weights",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::registry;

    #[test]
    fn every_note_is_of_an_operator() {
        for note in NOTES {
            let known = registry::all().iter().any(|row| (row.domain, row.name) == (note.domain, note.name));
            assert!(known, "{note:?}");
        }
    }
}
