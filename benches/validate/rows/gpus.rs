//! GPUs and machines whose memory is one: products, single operators, a layer of GPT-3, decoders.

use super::tenstorrent::LLAMA_3_1_8B;
use super::{BASE, Quantity, Row};
use crate::experts::{Experts, decode_experts};
use crate::layers::{Single, quarter_layer, single};
use crate::models::{BF16, Decoder, F16, Weights, decode, decode_scored, gemm};

const LLAMA_2_7B: Decoder =
    Decoder { layers: 32, width: 4096, heads: 32, key_heads: 32, head: 128, inner: 11008, vocabulary: 32000 };
const LLAMA_3_3_70B: Decoder =
    Decoder { layers: 80, width: 8192, heads: 64, key_heads: 8, head: 128, inner: 28672, vocabulary: 128_256 };
const LLAMA_33B: Decoder =
    Decoder { layers: 60, width: 6656, heads: 52, key_heads: 52, head: 128, inner: 17920, vocabulary: 32000 };
const MIXTRAL_8X7B: Experts = Experts {
    of: Decoder { layers: 32, width: 4096, heads: 32, key_heads: 8, head: 128, inner: 14336, vocabulary: 32000 },
    experts: 8,
    chosen: 2,
    bits: 8,
    block: 32,
    others: Weights::I8,
};
/// All layers have 4 bits, as the program was told (`--mxfp4-layers moe,qkv,o,lm_head`). Scales of 16 bits for 64 inputs take as
/// many bytes as those of the experts, of 8 bits for 32.
const GPT_OSS_120B: Experts = Experts {
    of: Decoder { layers: 36, width: 2880, heads: 64, key_heads: 8, head: 64, inner: 2880, vocabulary: 201_088 },
    experts: 128,
    chosen: 4,
    bits: 4,
    block: 64,
    others: Weights::I4,
};

const GPT_FAST: &str = "pytorch-labs/gpt-fast";
const COMPASS: &str = "PrincetonUniversity/LLMCompass, real_hardware";
/// A framework starts each product: 21 us on an A100 (LLMCompass, `compute_module.py`, measured with empty inputs).
const STARTED_BY_FRAMEWORK: (&str, &str) = ("overhead.host", "21us");
/// Softmax of one element, 12 us, normalization and GELU of one, 45 us (the same file): their kernel is in these. That of a product is
/// another one than that of one element, with blocks to fill and to drain.
const SOFTMAX_STARTED: (&str, &str) = ("overhead.host", "12us");
const ELEMENTS_STARTED: (&str, &str) = ("overhead.host", "45us");

const KERNEL_IN_IT: (&str, &str) = ("overhead.gap", "0ns");

const A100: Row = Row { target: "a100", source: GPT_FAST, quantity: Quantity::PerSecond(1.0), ..BASE };
const COMPASS_A100: Row = Row { target: "a100", source: COMPASS, set: &[STARTED_BY_FRAMEWORK], ..BASE };
const COMPASS_SOFTMAX: Row = Row { set: &[SOFTMAX_STARTED, KERNEL_IN_IT], ..COMPASS_A100 };
const COMPASS_ELEMENTS: Row = Row { set: &[ELEMENTS_STARTED, KERNEL_IN_IT], ..COMPASS_A100 };

pub const ROWS: &[Row] = &[
    Row {
        name: "8192 x 8192 x 8192, f16",
        measured: 3961.4,
        model: || gemm(F16, (8192, 8192, 8192), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "8192 x 1024 x 1024, f16",
        measured: 92.7,
        model: || gemm(F16, (8192, 1024, 1024), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "64 x 12288 x 12288, f16",
        measured: 190.0,
        model: || gemm(F16, (64, 12288, 12288), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "128 x 12288 x 12288, f16",
        measured: 200.3,
        model: || gemm(F16, (128, 12288, 12288), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "256 x 12288 x 12288, f16",
        measured: 318.5,
        model: || gemm(F16, (256, 12288, 12288), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "512 x 12288 x 12288, f16",
        measured: 611.8,
        model: || gemm(F16, (512, 12288, 12288), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "1024 x 12288 x 12288, f16",
        measured: 1199.0,
        model: || gemm(F16, (1024, 12288, 12288), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "2048 x 12288 x 12288, f16",
        measured: 2358.6,
        model: || gemm(F16, (2048, 12288, 12288), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "4096 x 12288 x 12288, f16",
        measured: 4457.6,
        model: || gemm(F16, (4096, 12288, 12288), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "8192 x 12288 x 12288, f16",
        measured: 8621.6,
        model: || gemm(F16, (8192, 12288, 12288), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "16384 x 12288 x 12288, f16",
        measured: 17030.7,
        model: || gemm(F16, (16384, 12288, 12288), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "32768 x 12288 x 12288, f16",
        measured: 35440.7,
        model: || gemm(F16, (32768, 12288, 12288), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "8192 x 64 x 64, f16",
        measured: 29.6,
        model: || gemm(F16, (8192, 64, 64), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "8192 x 128 x 128, f16",
        measured: 31.0,
        model: || gemm(F16, (8192, 128, 128), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "8192 x 256 x 256, f16",
        measured: 35.6,
        model: || gemm(F16, (8192, 256, 256), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "8192 x 512 x 512, f16",
        measured: 47.1,
        model: || gemm(F16, (8192, 512, 512), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "8192 x 2048 x 2048, f16",
        measured: 281.8,
        model: || gemm(F16, (8192, 2048, 2048), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "8192 x 4096 x 4096, f16",
        measured: 1021.0,
        model: || gemm(F16, (8192, 4096, 4096), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "8192 x 16384 x 16384, f16",
        measured: 15008.7,
        model: || gemm(F16, (8192, 16384, 16384), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "8192 x 32768 x 32768, f16",
        measured: 61134.6,
        model: || gemm(F16, (8192, 32768, 32768), Weights::Plain),
        ..COMPASS_A100
    },
    Row {
        name: "softmax over 256 in 4096 rows, f16",
        measured: 15.26,
        model: || single(F16, Single::Softmax, &[4096, 256]),
        ..COMPASS_SOFTMAX
    },
    Row {
        name: "softmax over 1024 in 4096 rows, f16",
        measured: 27.42,
        model: || single(F16, Single::Softmax, &[4096, 1024]),
        ..COMPASS_SOFTMAX
    },
    Row {
        name: "softmax over 4096 in 4096 rows, f16",
        measured: 82.02,
        model: || single(F16, Single::Softmax, &[4096, 4096]),
        ..COMPASS_SOFTMAX
    },
    Row {
        remark: "a softmax has 1,024 threads for a row and a normalization 128, so that fewer of its rows are under way than the description says.",
        name: "softmax over 16384 in 4096 rows, f16",
        measured: 277.28,
        model: || single(F16, Single::Softmax, &[4096, 16384]),
        ..COMPASS_SOFTMAX
    },
    Row {
        name: "softmax over 4096 in 1024 rows, f16",
        measured: 30.52,
        model: || single(F16, Single::Softmax, &[1024, 4096]),
        ..COMPASS_SOFTMAX
    },
    Row {
        name: "softmax over 4096 in 16384 rows, f16",
        measured: 271.56,
        model: || single(F16, Single::Softmax, &[16384, 4096]),
        ..COMPASS_SOFTMAX
    },
    Row {
        name: "layer normalization over 256 in 4096 rows, f16",
        measured: 53.52,
        model: || single(F16, Single::LayerNormalization, &[4096, 256]),
        ..COMPASS_ELEMENTS
    },
    Row {
        name: "layer normalization over 1024 in 4096 rows, f16",
        measured: 53.17,
        model: || single(F16, Single::LayerNormalization, &[4096, 1024]),
        ..COMPASS_ELEMENTS
    },
    Row {
        name: "layer normalization over 4096 in 4096 rows, f16",
        measured: 79.39,
        model: || single(F16, Single::LayerNormalization, &[4096, 4096]),
        ..COMPASS_ELEMENTS
    },
    Row {
        name: "layer normalization over 16384 in 4096 rows, f16",
        measured: 318.88,
        model: || single(F16, Single::LayerNormalization, &[4096, 16384]),
        ..COMPASS_ELEMENTS
    },
    Row {
        name: "layer normalization over 4096 in 1024 rows, f16",
        measured: 52.69,
        model: || single(F16, Single::LayerNormalization, &[1024, 4096]),
        ..COMPASS_ELEMENTS
    },
    Row {
        name: "layer normalization over 4096 in 16384 rows, f16",
        measured: 194.07,
        model: || single(F16, Single::LayerNormalization, &[16384, 4096]),
        ..COMPASS_ELEMENTS
    },
    Row {
        name: "GELU of 1048576 elements, f16",
        measured: 47.8,
        model: || single(F16, Single::Gelu, &[1048576]),
        ..COMPASS_ELEMENTS
    },
    Row {
        name: "GELU of 16777216 elements, f16",
        measured: 79.75,
        model: || single(F16, Single::Gelu, &[16777216]),
        ..COMPASS_ELEMENTS
    },
    Row {
        name: "GELU of 67108864 elements, f16",
        measured: 204.44,
        model: || single(F16, Single::Gelu, &[67108864]),
        ..COMPASS_ELEMENTS
    },
    Row {
        name: "GELU of 536870912 elements, f16",
        measured: 1375.44,
        model: || single(F16, Single::Gelu, &[536870912]),
        calibrates: true,
        ..COMPASS_ELEMENTS
    },
    Row {
        name: "layer of GPT-3, prefill of 8 x 2048, a quarter of it, without sums over machines",
        measured: 60_970.0,
        model: || quarter_layer(8, 2048, 0),
        unfused: true,
        ..COMPASS_A100
    },
    Row {
        name: "layer of GPT-3, a token of 8 users after 3072, a quarter of it, without sums over machines",
        measured: 1_059.0,
        model: || quarter_layer(8, 1, 3072),
        unfused: true,
        ..COMPASS_A100
    },
    Row {
        name: "Llama-2-7B decode, bf16, one user",
        measured: 104.9,
        states: true,
        model: || decode(BF16, 1, 100, &LLAMA_2_7B, Weights::Plain),
        ..A100
    },
    Row {
        name: "Llama-2-7B decode, i8, one user",
        measured: 155.6,
        states: true,
        model: || decode(F16, 1, 100, &LLAMA_2_7B, Weights::I8),
        ..A100
    },
    Row {
        name: "Llama-2-7B decode, i4 in blocks of 32, one user",
        measured: 196.8,
        states: true,
        model: || decode(F16, 1, 100, &LLAMA_2_7B, Weights::I4),
        ..A100
    },
    Row {
        name: "Mixtral 8x7B decode, i8, one user",
        measured: 97.9,
        states: true,
        model: || decode_experts(100, &MIXTRAL_8X7B),
        ..A100
    },
    Row {
        target: "apple-m1-max",
        name: "Llama 33B decode, i4 in blocks of 32, one user",
        source: "ggml-org/llama.cpp, pull 2358",
        quantity: Quantity::PerSecond(1.0),
        measured: 1000.0 / 70.1,
        states: true,
        model: || decode(F16, 1, 100, &LLAMA_33B, Weights::I4),
        calibrates: true,
        ..BASE
    },
    Row {
        target: "apple-m1-max",
        name: "Llama 7B decode, i4 in blocks of 32, one user",
        source: "ggml-org/llama.cpp, pull 2358",
        quantity: Quantity::PerSecond(1.0),
        measured: 1000.0 / 18.26,
        states: true,
        model: || decode(F16, 1, 100, &LLAMA_2_7B, Weights::I4),
        calibrates: true,
        ..BASE
    },
    Row {
        target: "apple-m1-max",
        // The kernel alone.
        set: &[("overhead.gap", "0ns")],
        name: "4096 x 11008 by a vector, i4",
        source: "ggml-org/llama.cpp, pull 1642",
        quantity: Quantity::WeightBandwidth,
        measured: 315.7,
        model: || gemm(F16, (1, 4096, 11008), Weights::I4),
        ..BASE
    },
    Row {
        target: "apple-m1-max",
        name: "Llama 3.1 8B decode, i4 in blocks of 32 and i8 for scores, one user",
        source: "brand-o/normiebench, issue 40",
        quantity: Quantity::PerSecond(1.0),
        states: true,
        measured: 46.2,
        // Q4_K_M has 6.6 bits for scores and some other weights: 4.6 GB a token, those of the model here 4.5. Tokens 1 to 128.
        model: || decode_scored(1, 64, &LLAMA_3_1_8B, Weights::I4, Weights::I8),
        ..BASE
    },
    Row {
        target: "dgx-spark",
        name: "gpt-oss-120b decode, 4-bit experts, one user",
        source: "spark-arena/recipe-registry, issue 17",
        quantity: Quantity::PerSecond(1.0),
        states: true,
        measured: 58.82,
        model: || decode_experts(128, &GPT_OSS_120B),
        ..BASE
    },
    Row {
        target: "dgx-spark",
        remark: "the program reaches 166 of the 232 GB/s that reading alone does. It multiplies in 4 bits with blocks of 128 rows for one row (CUTLASS) and rounds activations before; what that takes with one row on this machine is not published, and is not in the model.",
        name: "Llama-3.3-70B decode, 4-bit weights, one user",
        source: "NVIDIA/dgx-spark-playbooks, issue 79",
        quantity: Quantity::PerSecond(1.0),
        states: true,
        measured: 4.1,
        // The scores have bf16 weights (pull 91 there).
        model: || decode_scored(1, 128, &LLAMA_3_3_70B, Weights::I4, Weights::Plain),
        ..BASE
    },
];
