//! Operators that other programs define and that are in no table, and why: for the list of operators.

use crate::import::notes::Note;

const NO_KERNEL: &str = "ONNX Runtime has no kernel for processors";
const NOWHERE: &str = "ONNX Runtime has no kernel";
const ONE_LAYOUT: &str = "of a layout of one accelerator: ONNX Runtime has no kernel for processors";
const EXPERIMENT: &str = "experimental before opset 10: ONNX Runtime has no kernel";
const COMPILED: &str = "holds what another compiler made for one accelerator";
const COPY: &str = "ONNX Runtime inserts it while it loads a model";
const PLUGIN: &str = "a plugin of TensorRT";
const TRAINING: &str = "of training: ONNX Runtime has no kernel for processors";

const fn absent(name: &'static str, text: &'static str) -> Note {
    Note { domain: "", name, text }
}

const fn microsoft(name: &'static str, text: &'static str) -> Note {
    Note { domain: "com.microsoft", name, text }
}

/// Weights of its convolutions lie in blocks of channels, and the model does not say of how many.
const BLOCKS: &str = "in the layout of the processor on which ONNX Runtime optimized the model, which does not say how wide the blocks are: \
                      store it with ORT_ENABLE_EXTENDED in place of ORT_ENABLE_ALL";

const fn blocked(name: &'static str) -> Note {
    Note { domain: "com.microsoft.nchwc", name, text: BLOCKS }
}

/// Operators that are not imported, by domain and name.
pub const NOT_IMPORTED: &[Note] = &[
    absent("DisentangledAttention_TRT", PLUGIN),
    absent("EfficientNMS_TRT", PLUGIN),
    absent("GRUUnit", EXPERIMENT),
    absent("GivenTensorFill", EXPERIMENT),
    absent("MemcpyFromHost", COPY),
    absent("MemcpyToHost", COPY),
    absent("MultilevelCropAndResize_TRT", PLUGIN),
    absent("PyramidROIAlign_TRT", PLUGIN),
    microsoft("BitmaskBiasDropout", TRAINING),
    microsoft("BitmaskDropout", TRAINING),
    microsoft("ComplexMul", NO_KERNEL),
    microsoft("ComplexMulConj", NO_KERNEL),
    microsoft("DecoderAttention", NO_KERNEL),
    microsoft("DecoderMaskedSelfAttention", NO_KERNEL),
    microsoft("DequantizeBFP", ONE_LAYOUT),
    microsoft("DequantizeWithOrder", ONE_LAYOUT),
    microsoft("DynamicSparseAttention", NO_KERNEL),
    microsoft("EPContext", COMPILED),
    microsoft("GatedRelativePositionBias", NO_KERNEL),
    microsoft("GemmFloat8", NO_KERNEL),
    microsoft("IsAllFinite", TRAINING),
    microsoft("LongformerAttention", NO_KERNEL),
    microsoft("MatMulBlockQuantizedFp4Weight", NO_KERNEL),
    microsoft("MatMulBlockQuantizedFp8Weight", NO_KERNEL),
    microsoft("MatMulNBitsMlp", NO_KERNEL),
    microsoft("MatMulNBitsQkv", NO_KERNEL),
    microsoft("MulInteger", NOWHERE),
    microsoft("PackedMultiHeadAttention", NO_KERNEL),
    microsoft("PackedSparseAttentionIndexer", NO_KERNEL),
    microsoft("PagedAttention", NO_KERNEL),
    microsoft("QOrderedAttention", ONE_LAYOUT),
    microsoft("QOrderedGelu", ONE_LAYOUT),
    microsoft("QOrderedLayerNormalization", ONE_LAYOUT),
    microsoft("QOrderedLongformerAttention", ONE_LAYOUT),
    microsoft("QOrderedMatMul", ONE_LAYOUT),
    microsoft("QuantizeBFP", ONE_LAYOUT),
    microsoft("QuantizeWithOrder", ONE_LAYOUT),
    microsoft("ReduceSumInteger", NOWHERE),
    microsoft("RelativePositionBias", NO_KERNEL),
    microsoft("Snpe", COMPILED),
    microsoft("SparseAttentionIndexer", NO_KERNEL),
    microsoft("SparsePagedAttention", NO_KERNEL),
    microsoft("TorchEmbedding", NOWHERE),
    microsoft("VarlenCausalConvWithState", NO_KERNEL),
    blocked("AveragePool"),
    blocked("Conv"),
    blocked("GlobalAveragePool"),
    blocked("GlobalMaxPool"),
    blocked("MaxPool"),
    blocked("ReorderInput"),
    blocked("ReorderOutput"),
    blocked("Upsample"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::registry;

    #[test]
    fn none_of_them_is_in_a_table() {
        for note in NOT_IMPORTED {
            let known = registry::all().iter().any(|row| (row.domain, row.name) == (note.domain, note.name));
            assert!(!known, "{note:?}");
        }
    }
}
