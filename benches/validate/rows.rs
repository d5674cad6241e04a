//! What was measured on real machines, and the model that it was measured with.

use crate::models::{
    BF16, Decoder, Encoder, F16, Weights, decode, encoder, encoder_in_steps, gemm, products, resnet50,
};
use ipuc_formats::dtype::DType;

/// What a row compares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quantity {
    /// Time of a run, in microseconds.
    Microseconds,
    /// Cycles of the busiest tile in its matrix units.
    MatrixCycles,
    /// Cycles of a whole run.
    Cycles,
    /// So many a run, by the second.
    PerSecond(f64),
    /// Bytes of weights by the second, in GB/s.
    WeightBandwidth,
    /// Average power.
    Watts,
}

impl Quantity {
    pub fn text(self) -> &'static str {
        match self {
            Quantity::Microseconds => "us",
            Quantity::MatrixCycles => "cycles of products",
            Quantity::Cycles => "cycles",
            Quantity::PerSecond(_) => "a second",
            Quantity::WeightBandwidth => "GB/s of weights",
            Quantity::Watts => "W",
        }
    }
}

/// One measurement.
pub struct Row {
    pub target: &'static str,
    pub name: &'static str,
    pub source: &'static str,
    pub model: fn() -> Vec<u8>,
    pub numerics: Option<DType>,
    /// What the measured configuration has that the description does not.
    pub set: &'static [(&'static str, &'static str)],
    /// Every operator is a step, as in the measured program.
    pub unfused: bool,
    pub quantity: Quantity,
    pub measured: f64,
    /// A parameter of the machine comes from this row, so that it is not judged by it.
    pub calibrates: bool,
    /// Why it is missed, where it is.
    pub remark: &'static str,
}

const LLAMA_2_7B: Decoder =
    Decoder { layers: 32, width: 4096, heads: 32, key_heads: 32, head: 128, inner: 11008, vocabulary: 32000 };
const LLAMA_3_1_8B: Decoder =
    Decoder { layers: 32, width: 4096, heads: 32, key_heads: 8, head: 128, inner: 14336, vocabulary: 128_256 };
const LLAMA_3_2_1B: Decoder =
    Decoder { layers: 16, width: 2048, heads: 32, key_heads: 8, head: 64, inner: 8192, vocabulary: 128_256 };
const LLAMA_3_2_3B: Decoder =
    Decoder { layers: 28, width: 3072, heads: 24, key_heads: 8, head: 128, inner: 8192, vocabulary: 128_256 };
/// 197 tokens, which programs of Tenstorrent pad to whole tiles of 32.
const VIT_BASE: Encoder = Encoder { layers: 12, width: 768, heads: 12, inner: 3072, tokens: 224 };
const SIGLIP: Encoder = Encoder { layers: 27, width: 1152, heads: 16, inner: 4304, tokens: 729 };

const F8: Option<DType> = Some(DType::F8E4M3FN);
const SDK: &str = "osmarks/ipu-stack, SDK_ONNX_PROFILE_ANALYSIS";
const STACK: &str = "osmarks/ipu-stack, GEMM_UTILIZATION";
const TT_GEMM: &str = "tenstorrent/tt-metal, GEMM_FLOPS";
const TT_MODELS: &str = "tenstorrent/tt-metal, models/README";
const GPT_FAST: &str = "pytorch-labs/gpt-fast";
const COMPASS: &str = "PrincetonUniversity/LLMCompass, real_hardware";
/// Values in DRAM as well as weights.
const DRAM: (&str, &str) = ("policy.activations", "tier2");
const HIFI2: (&str, &str) = ("matrix.0.pass", "55.4 cycles");
/// Activations in bf16, weights in bfp8, two phases.
const HIFI2_BFP8: (&str, &str) = ("matrix.0.pass", "41.43 cycles");
const BLACKHOLE_HIFI2: (&str, &str) = ("matrix.0.pass", "35.83 cycles");
/// The default of products with a program configuration (tt-metal, matmul_device_operation), which those of ViT have; the
/// tests of ResNet-50 name it.
const LOFI: (&str, &str) = ("matrix.1.pass", "29.05 cycles");
const BLACKHOLE_LOFI: (&str, &str) = ("matrix.1.pass", "18.13 cycles");
/// Tokens are chosen on the host, which is the default on one card and faster there (tt-metal, pulls 47342 and 47350).
const SAMPLED_ON_HOST: (&str, &str) = ("overhead.waits_for_results", "true");
/// A framework starts each product: 21 us on an A100 (LLMCompass, `compute_module.py`, measured with empty inputs).
const STARTED_BY_FRAMEWORK: (&str, &str) = ("overhead.host", "21us");

const BASE: Row = Row {
    target: "",
    name: "",
    source: "",
    model: Vec::new,
    numerics: None,
    set: &[],
    unfused: false,
    quantity: Quantity::Microseconds,
    measured: 0.0,
    calibrates: false,
    remark: "",
};

pub const ROWS: &[Row] = &[
    Row {
        name: "kernel 244 x 128 x 64 on one tile, f8",
        source: STACK,
        model: || gemm(F16, (244, 128, 64), Weights::Plain),
        numerics: F8,
        set: &[("tiles.count", "1")],
        quantity: Quantity::MatrixCycles,
        measured: 18_576.0,
        calibrates: true,
        ..C600
    },
    Row {
        name: "kernel 82 x 192 x 160 on one tile, f8",
        source: STACK,
        model: || gemm(F16, (82, 192, 160), Weights::Plain),
        numerics: F8,
        set: &[("tiles.count", "1")],
        quantity: Quantity::MatrixCycles,
        measured: 29_508.0,
        ..C600
    },
    Row {
        name: "kernel 122 x 160 x 128 on one tile, f8",
        source: STACK,
        model: || gemm(F16, (122, 160, 128), Weights::Plain),
        numerics: F8,
        set: &[("tiles.count", "1")],
        measured: 26_232.0,
        ..C600
    },
    Row {
        name: "kernel 146 x 96 x 48 on one tile, f8",
        source: STACK,
        model: || gemm(F16, (146, 96, 48), Weights::Plain),
        numerics: F8,
        set: &[("tiles.count", "1")],
        measured: 7_122.0,
        ..C600
    },
    Row {
        name: "kernel 81 x 80 x 80 on one tile, f16",
        source: STACK,
        model: || gemm(F16, (81, 80, 80), Weights::Plain),
        set: &[("tiles.count", "1")],
        measured: 12_402.0,
        ..C600
    },
    Row {
        name: "kernel 57 x 128 x 80 on one tile, f8",
        source: STACK,
        model: || gemm(F16, (57, 128, 80), Weights::Plain),
        numerics: F8,
        set: &[("tiles.count", "1")],
        measured: 8_124.0,
        ..C600
    },
    Row {
        name: "QKV projection 729 x 1152 x 3456, f8",
        model: || gemm(F16, (729, 1152, 3456), Weights::Plain),
        numerics: F8,
        measured: 22_415.0,
        ..C600
    },
    Row {
        name: "QKV projection 729 x 1152 x 3456, f16",
        model: || gemm(F16, (729, 1152, 3456), Weights::Plain),
        measured: 37_277.0,
        ..C600
    },
    Row {
        name: "scores 16 x 729 x 72 x 729, f8",
        model: || products(F16, 16, (729, 72, 729)),
        numerics: F8,
        measured: 5_502.0,
        ..C600
    },
    Row {
        name: "scores 16 x 729 x 72 x 729, f16",
        model: || products(F16, 16, (729, 72, 729)),
        measured: 8_488.0,
        ..C600
    },
    Row {
        name: "values 16 x 729 x 729 x 72, f8",
        model: || products(F16, 16, (729, 729, 72)),
        numerics: F8,
        measured: 7_377.0,
        ..C600
    },
    Row {
        name: "values 16 x 729 x 729 x 72, f16",
        model: || products(F16, 16, (729, 729, 72)),
        measured: 12_900.0,
        ..C600
    },
    Row {
        name: "output projection 729 x 1152 x 1152, f8",
        model: || gemm(F16, (729, 1152, 1152), Weights::Plain),
        numerics: F8,
        measured: 8_178.0,
        ..C600
    },
    Row {
        name: "output projection 729 x 1152 x 1152, f16",
        model: || gemm(F16, (729, 1152, 1152), Weights::Plain),
        measured: 14_153.0,
        ..C600
    },
    Row {
        remark: "products and vectors agree (102,000 cycles a layer are measured in products, 105,000 predicted), exchange does not: queries, keys and values arrive in 40 pieces a tile, which takes 34,000 to 38,000 cycles each (PROFILE_LAYOUT_DIAGNOSIS); the model counts their bytes.",
        name: "SigLIP So400m encoder, f8, best known program",
        source: STACK,
        model: || encoder(F16, 1, &SIGLIP),
        numerics: F8,
        quantity: Quantity::Cycles,
        measured: 10_371_582.0,
        ..C600
    },
    Row {
        name: "512 x 512 x 512, bf16 HiFi4",
        measured: 12.753,
        model: || gemm(BF16, (512, 512, 512), Weights::Plain),
        calibrates: true,
        ..N150
    },
    Row {
        name: "1024 x 1024 x 1024, bf16 HiFi4",
        measured: 46.966,
        model: || gemm(BF16, (1024, 1024, 1024), Weights::Plain),
        ..N150
    },
    Row {
        name: "2048 x 2048 x 2048, bf16 HiFi4",
        measured: 332.494,
        model: || gemm(BF16, (2048, 2048, 2048), Weights::Plain),
        ..N150
    },
    Row {
        name: "3072 x 3072 x 3072, bf16 HiFi4",
        measured: 1117.740,
        model: || gemm(BF16, (3072, 3072, 3072), Weights::Plain),
        calibrates: true,
        ..N150
    },
    Row {
        name: "16384 x 16384 x 16384, bf16 HiFi4, all in DRAM",
        measured: 162_119.269,
        model: || gemm(BF16, (16384, 16384, 16384), Weights::Plain),
        set: &[DRAM],
        ..N150
    },
    Row {
        name: "1024 x 1024 x 1024, bfp4 LoFi",
        measured: 18.477,
        model: || gemm(F16, (1024, 1024, 1024), Weights::I4),
        set: &[("matrix.0.pass", "20.87 cycles")],
        ..N150
    },
    Row {
        name: "512 x 1024 x 1024, bf16 HiFi4",
        measured: 29.409,
        model: || gemm(BF16, (512, 1024, 1024), Weights::Plain),
        ..N150
    },
    Row {
        name: "1024 x 2048 x 2048, bf16 HiFi4",
        measured: 171.876,
        model: || gemm(BF16, (1024, 2048, 2048), Weights::Plain),
        ..N150
    },
    Row {
        name: "4096 x 4096 x 4096, bf16 HiFi4, all in DRAM",
        measured: 2711.439,
        model: || gemm(BF16, (4096, 4096, 4096), Weights::Plain),
        set: &[DRAM],
        ..N150
    },
    Row {
        name: "8192 x 8192 x 8192, bf16 HiFi4, all in DRAM",
        measured: 20_846.248,
        model: || gemm(BF16, (8192, 8192, 8192), Weights::Plain),
        set: &[DRAM],
        ..N150
    },
    Row {
        name: "1024 x 1024 x 1024, bf16 HiFi2",
        measured: 37.293,
        model: || gemm(BF16, (1024, 1024, 1024), Weights::Plain),
        set: &[HIFI2],
        ..N150
    },
    Row {
        name: "2048 x 2048 x 2048, bf16 HiFi2",
        measured: 224.154,
        model: || gemm(BF16, (2048, 2048, 2048), Weights::Plain),
        set: &[HIFI2],
        ..N150
    },
    Row {
        name: "3072 x 3072 x 3072, bf16 HiFi2",
        measured: 773.649,
        model: || gemm(BF16, (3072, 3072, 3072), Weights::Plain),
        set: &[HIFI2],
        calibrates: true,
        ..N150
    },
    Row {
        name: "512 x 512 x 512, bfp8 HiFi2",
        measured: 10.796,
        model: || gemm(F16, (512, 512, 512), Weights::Plain),
        numerics: F8,
        ..N150
    },
    Row {
        name: "1024 x 1024 x 1024, bfp8 HiFi2",
        measured: 27.542,
        model: || gemm(F16, (1024, 1024, 1024), Weights::Plain),
        numerics: F8,
        ..N150
    },
    Row {
        name: "2048 x 2048 x 2048, bfp8 HiFi2",
        measured: 178.199,
        model: || gemm(F16, (2048, 2048, 2048), Weights::Plain),
        numerics: F8,
        ..N150
    },
    Row {
        name: "3072 x 3072 x 3072, bfp8 HiFi2",
        measured: 580.282,
        model: || gemm(F16, (3072, 3072, 3072), Weights::Plain),
        numerics: F8,
        calibrates: true,
        ..N150
    },
    Row {
        name: "1024 x 1024 x 1024, bfp8 LoFi",
        measured: 23.141,
        model: || gemm(F16, (1024, 1024, 1024), Weights::Plain),
        numerics: F8,
        set: &[LOFI],
        ..N150
    },
    Row {
        name: "2048 x 2048 x 2048, bfp8 LoFi",
        measured: 124.400,
        model: || gemm(F16, (2048, 2048, 2048), Weights::Plain),
        numerics: F8,
        set: &[LOFI],
        ..N150
    },
    Row {
        name: "3072 x 3072 x 3072, bfp8 LoFi",
        measured: 409.138,
        model: || gemm(F16, (3072, 3072, 3072), Weights::Plain),
        numerics: F8,
        set: &[LOFI],
        calibrates: true,
        ..N150
    },
    Row {
        remark: "blocks of both operands are taken to stream from DRAM at its full rate; how long a reader waits for each block of a product this small is not published.",
        name: "512 x 512 x 512, bf16 HiFi2, all in DRAM",
        measured: 19.965,
        model: || gemm(BF16, (512, 512, 512), Weights::Plain),
        set: &[HIFI2, DRAM],
        ..N150
    },
    Row {
        remark: "the halo of each convolution is a step of its own on the machine, and so are sums and changes of layout; the measured rate includes images that come from the host. Steps alone make 6,090 images a second (tt-metal, test_perf_device_resnet50).",
        name: "ResNet-50, batch 16",
        source: TT_MODELS,
        quantity: Quantity::PerSecond(16.0),
        measured: 4700.0,
        model: || resnet50(F16, 16),
        numerics: F8,
        set: &[LOFI],
        ..N150
    },
    Row {
        name: "ViT-base, batch 8, padded to 224 tokens",
        source: TT_MODELS,
        quantity: Quantity::PerSecond(8.0),
        measured: 1370.0,
        model: || encoder_in_steps(F16, 8, &VIT_BASE),
        numerics: F8,
        set: &[LOFI],
        unfused: true,
        ..N150
    },
    Row {
        name: "Llama 3.1 8B decode, batch 32, 128 past, bfp8",
        source: TT_MODELS,
        quantity: Quantity::PerSecond(1.0),
        measured: 26.0,
        model: || decode(F16, 32, 128, &LLAMA_3_1_8B, Weights::I8),
        set: &[HIFI2_BFP8, SAMPLED_ON_HOST],
        ..N150
    },
    Row {
        name: "Llama 3.2 1B decode, batch 32, 128 past, bfp8",
        source: TT_MODELS,
        quantity: Quantity::PerSecond(1.0),
        measured: 80.5,
        model: || decode(F16, 32, 128, &LLAMA_3_2_1B, Weights::I8),
        set: &[HIFI2_BFP8, SAMPLED_ON_HOST],
        ..N150
    },
    Row {
        name: "Llama 3.2 3B decode, batch 32, 128 past, bfp8",
        source: TT_MODELS,
        quantity: Quantity::PerSecond(1.0),
        measured: 46.6,
        model: || decode(F16, 32, 128, &LLAMA_3_2_3B, Weights::I8),
        set: &[HIFI2_BFP8, SAMPLED_ON_HOST],
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "640 x 832 x 832, bf16 HiFi4",
        measured: 13.475,
        model: || gemm(BF16, (640, 832, 832), Weights::Plain),
        calibrates: true,
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "640 x 1664 x 1664, bf16 HiFi4",
        measured: 27.432,
        model: || gemm(BF16, (640, 1664, 1664), Weights::Plain),
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "1280 x 1664 x 1664, bf16 HiFi4",
        measured: 48.175,
        model: || gemm(BF16, (1280, 1664, 1664), Weights::Plain),
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "2560 x 3328 x 3328, bf16 HiFi4",
        measured: 340.667,
        model: || gemm(BF16, (2560, 3328, 3328), Weights::Plain),
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "3840 x 4992 x 4992, bf16 HiFi4",
        measured: 1137.722,
        model: || gemm(BF16, (3840, 4992, 4992), Weights::Plain),
        calibrates: true,
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "640 x 1664 x 3328, bf16 HiFi2",
        measured: 37.663,
        model: || gemm(BF16, (640, 1664, 3328), Weights::Plain),
        set: &[BLACKHOLE_HIFI2],
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "1280 x 1664 x 1664, bf16 HiFi2",
        measured: 28.656,
        model: || gemm(BF16, (1280, 1664, 1664), Weights::Plain),
        set: &[BLACKHOLE_HIFI2],
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "2560 x 3328 x 3328, bf16 HiFi2",
        measured: 183.117,
        model: || gemm(BF16, (2560, 3328, 3328), Weights::Plain),
        set: &[BLACKHOLE_HIFI2],
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "3840 x 4992 x 4992, bf16 HiFi2",
        measured: 604.396,
        model: || gemm(BF16, (3840, 4992, 4992), Weights::Plain),
        set: &[BLACKHOLE_HIFI2],
        calibrates: true,
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "1280 x 1664 x 1664, bfp8 HiFi2",
        measured: 28.253,
        model: || gemm(F16, (1280, 1664, 1664), Weights::Plain),
        numerics: F8,
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "2560 x 3328 x 3328, bfp8 HiFi2",
        measured: 180.659,
        model: || gemm(F16, (2560, 3328, 3328), Weights::Plain),
        numerics: F8,
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "3840 x 4992 x 4992, bfp8 HiFi2",
        measured: 592.327,
        model: || gemm(F16, (3840, 4992, 4992), Weights::Plain),
        numerics: F8,
        calibrates: true,
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "ViT-base, batch 10, padded to 224 tokens",
        source: TT_MODELS,
        quantity: Quantity::PerSecond(10.0),
        measured: 3700.0,
        model: || encoder_in_steps(F16, 10, &VIT_BASE),
        numerics: F8,
        set: &[BLACKHOLE_LOFI],
        unfused: true,
        ..N150
    },
    Row {
        target: "groq-tsp",
        name: "ResNet-50, i8, batch 1",
        source: "Abts et al., ISCA 2020",
        model: || resnet50(F16, 1),
        numerics: Some(DType::I8),
        measured: 49.0,
        ..BASE
    },
    Row {
        target: "northpole",
        name: "power with ResNet-50, i8, batch 1",
        source: "Modha et al., Science 382, table 1",
        quantity: Quantity::Watts,
        model: || resnet50(F16, 1),
        numerics: Some(DType::I8),
        measured: 74.0,
        ..BASE
    },
    Row {
        target: "cerebras-wse3",
        remark: "what it takes to start a step on a core (tasks, routes) is not published and taken to be nothing; a product in about 600 cycles is what the best published programs of others reach on such a wafer, the vendor's whole program took about 1,900 cycles a step.",
        name: "Llama 3.1 8B decode, f16, one user",
        source: "Hot Chips 2024",
        model: || decode(F16, 1, 1000, &LLAMA_3_1_8B, Weights::Plain),
        quantity: Quantity::PerSecond(1.0),
        measured: 1800.0,
        ..BASE
    },
    Row {
        name: "8192 x 8192 x 8192, f16",
        source: COMPASS,
        quantity: Quantity::Microseconds,
        measured: 3961.4,
        set: &[STARTED_BY_FRAMEWORK],
        model: || gemm(F16, (8192, 8192, 8192), Weights::Plain),
        ..A100
    },
    Row {
        name: "8192 x 1024 x 1024, f16",
        source: COMPASS,
        quantity: Quantity::Microseconds,
        measured: 92.7,
        set: &[STARTED_BY_FRAMEWORK],
        model: || gemm(F16, (8192, 1024, 1024), Weights::Plain),
        ..A100
    },
    Row {
        name: "Llama-2-7B decode, bf16, one user",
        measured: 104.9,
        model: || decode(BF16, 1, 100, &LLAMA_2_7B, Weights::Plain),
        ..A100
    },
    Row {
        name: "Llama-2-7B decode, i8, one user",
        measured: 155.6,
        model: || decode(F16, 1, 100, &LLAMA_2_7B, Weights::I8),
        ..A100
    },
    Row {
        name: "Llama-2-7B decode, i4 in blocks of 32, one user",
        measured: 196.8,
        model: || decode(F16, 1, 100, &LLAMA_2_7B, Weights::I4),
        ..A100
    },
    Row {
        target: "apple-m1-max",
        name: "4096 x 11008 by a vector, i4",
        source: "ggml-org/llama.cpp, pull 1642",
        quantity: Quantity::WeightBandwidth,
        measured: 315.7,
        model: || gemm(F16, (1, 4096, 11008), Weights::I4),
        ..BASE
    },
];

const C600: Row = Row { target: "graphcore-c600", source: SDK, quantity: Quantity::MatrixCycles, ..BASE };
const N150: Row = Row { target: "tenstorrent-n150", source: TT_GEMM, ..BASE };
const A100: Row = Row { target: "a100", source: GPT_FAST, quantity: Quantity::PerSecond(1.0), ..BASE };
