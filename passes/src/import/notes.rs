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

/// Remarks, by domain and name.
pub const NOTES: &[Note] = &[
    note("BatchNormalization", "until opset 13 more than one output (training) is refused"),
    note("Dropout", "until opset 6 it trains, at random, unless `is_test` is 1"),
    note(
        "ImageDecoder",
        "needs the feature `images`: BMP, JPEG (the pixels of libjpeg-turbo), JPEG 2000, PNG, PNM, TIFF, WebP",
    ),
    note(
        "Loop",
        "as the text says, the condition that the body gives is ignored where the operand is left out (ONNX Runtime honours it); without trip count and condition it would never end and is refused",
    ),
    note(
        "LayerNormalization",
        "before opset 17, where ONNX has it not, as ONNX Runtime: the data may have another type than scale, bias and result",
    ),
    note("MeanVarianceNormalization", "until opset 8 of 2 to 4 axes"),
    note("Resize", "`tf_half_pixel_for_nn` is refused after opset 11"),
    note("Shrink", "NaN gives 0, as the text says"),
    note(
        "StringNormalizer",
        "a `locale` whose letters change their case in a way of its own is refused where case changes",
    ),
    note("ThresholdedRelu", "NaN gives 0, as the text says"),
    classical("CastMap", "`TO_STRING` and `TO_INT64` of floats, and SPARSE maps of texts are refused"),
    classical("LinearClassifier", "one score for two classes needs `post_transform` = LOGISTIC"),
    classical("OneHotEncoder", "`zeros` = 0 is refused: an unknown category is never an error"),
    classical(
        "SVMClassifier",
        "needs support vectors; `post_transform` of two classes needs probabilities; the label follows from votes",
    ),
    classical("SVMRegressor", "one target, no `post_transform`"),
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
    microsoft(
        "BeamSearch",
        "`model_type` 0 and 1; `decoder_input_ids` and `logits_processor` change nothing, as in ONNX Runtime; the graphs have the inputs that ONNX Runtime's converter writes, without buffers that past and present share",
    ),
    microsoft("CausalConvWithState", "`state_window` and more than one spatial axis are refused"),
    microsoft("ConvTransposeWithDynamicPads", "with `auto_pad` of SAME pads do not count, as in ONNX Runtime"),
    microsoft("CropAndResize", "`crop_size` must be a constant"),
    microsoft("DecoderMaskedMultiHeadAttention", "beams need a buffer that past and present share"),
    microsoft(
        "GatedDeltaNet",
        "`cu_seqlens`, captured updates (`state_update`) and an `initial_state` of unknown shape are refused; ONNX Runtime 1.31 has it on no processor",
    ),
    microsoft(
        "GreedySearch",
        "`model_type` 0; behind the end of all texts is padding, where ONNX Runtime leaves what is in memory",
    ),
    microsoft(
        "GroupQueryAttention",
        "rows that ONNX Runtime leaves open (of padding, or behind a window's) are zero; `query_seqlens` is bounded by its range; `qk_output` with `sliding_window_cache` is refused",
    ),
    microsoft("MRotaryEmbedding", "`is_packed_batching` is refused"),
    microsoft("MatMulFpQ4", "`blk_quant_type` 0 and 1; `B_shape` must be a constant"),
    microsoft(
        "MatMulNBits",
        "with `g_idx` packed zero points count, which ONNX Runtime passes over on a processor; `weight_prepacked` is refused",
    ),
    microsoft(
        "MaxpoolWithMask",
        "one mask for all planes: of several ONNX Runtime takes elements from wrong places; `kernel_shape` of at most 256 along the last axis",
    ),
    microsoft(
        "MoE",
        "`use_sparse_mixer` takes two experts and changes nothing, as in ONNX Runtime on a processor; a third matrix of the experts is refused",
    ),
    microsoft("MoEGroupRouter", "`projection_weight` is refused"),
    microsoft("MultiHeadAttention", "`cache_indirection` needs one query and a buffer that past and present share"),
    microsoft("QGemm", "several scales or zero points of A are refused"),
    microsoft(
        "QMoE",
        "experts of 2, 4 and 8 bits; `use_sparse_mixer` as in `MoE`; prepacked weights, a third matrix and global scales are refused",
    ),
    microsoft(
        "Sampling",
        "as `GreedySearch`; the numbers are those of ONNX Runtime on Linux for the same `seed`, which must be given; `presence_penalty`, which ONNX Runtime computes wrongly on a processor, is refused, without which `presence_mask` changes nothing; so is the output `filtered_logits`, which ONNX Runtime does not fill",
    ),
    microsoft("RotaryEmbedding", "`scale` changes nothing, as in ONNX Runtime on a processor"),
    microsoft(
        "SparseAttention",
        "texts of several lengths in a batch are each computed as alone, where ONNX Runtime's results differ",
    ),
    microsoft("Tokenizer", "the result has an axis more also where there are no texts"),
    microsoft("UnfoldTensor", "the axis has a known extent"),
    microsoft(
        "WhisperBeamSearch",
        "`attention_mask`, `cross_qk`, `non_speech_probs`, a `logits_processor` other than 0 and buffers that past and present share are refused",
    ),
    microsoft("WordConvEmbedding", "words of two axes; windows of at most 64 characters"),
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
