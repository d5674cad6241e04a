//! Tenstorrent: the published products of one card, and models.

use super::{BASE, F8, Quantity, Row};
use crate::layers::resnet50_in_steps;
use crate::models::{BF16, Decoder, Encoder, F16, Weights, decode, encoder_in_steps, gemm};
use ipuc_formats::dtype::DType;

pub(super) const LLAMA_3_1_8B: Decoder =
    Decoder { layers: 32, width: 4096, heads: 32, key_heads: 8, head: 128, inner: 14336, vocabulary: 128_256 };
const LLAMA_3_2_1B: Decoder =
    Decoder { layers: 16, width: 2048, heads: 32, key_heads: 8, head: 64, inner: 8192, vocabulary: 128_256 };
const LLAMA_3_2_3B: Decoder =
    Decoder { layers: 28, width: 3072, heads: 24, key_heads: 8, head: 128, inner: 8192, vocabulary: 128_256 };
/// 197 tokens, which programs of Tenstorrent pad to whole tiles of 32.
const VIT_BASE: Encoder = Encoder { layers: 12, width: 768, heads: 12, inner: 3072, tokens: 224, biases: false };
const TT_GEMM: &str = "tenstorrent/tt-metal, GEMM_FLOPS";
const TT_MODELS: &str = "tenstorrent/tt-metal, models/README";
/// Values in DRAM as well as weights.
const DRAM: (&str, &str) = ("policy.activations", "tier2");
/// Held and computed in 4 bits.
const F4: Option<DType> = Some(DType::F4E2M1);
/// Two phases for activations and weights in bf16.
const HIFI2: (&str, &str) = ("matrix.0.fidelity", "2");
/// One phase for bfp8: the default of products with a program configuration (tt-metal, matmul_device_operation), which those
/// of ViT have; the tests of ResNet-50 name it.
const LOFI: (&str, &str) = ("matrix.2.fidelity", "1");
/// Tokens are chosen on the host, which is the default on one card and faster there (tt-metal, pulls 47342 and 47350).
const SAMPLED_ON_HOST: (&str, &str) = ("overhead.waits_for_results", "true");

/// What the host takes to start a product without a trace: that of 512 x 512 x 512 in bfp8, which takes the device less, without
/// the gap between two steps (GEMM_FLOPS).
const STARTED_BY_HOST: (&str, &str) = ("overhead.host", "41.959us");
const AHEAD: (&str, &str) = ("overhead.host_ahead", "true");

const N150: Row = Row { target: "tenstorrent-n150", source: TT_GEMM, ..BASE };

pub const ROWS: &[Row] = &[
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
        model: || gemm(F16, (1024, 1024, 1024), Weights::Plain),
        numerics: F4,
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
        remark: "a configuration that the program chooses by itself (out of box), in which the device alone takes 11.5 us; the model is that of tuned ones, as in the rows above.",
        name: "512 x 512 x 512, bf16 HiFi2, all in DRAM",
        measured: 19.965,
        model: || gemm(BF16, (512, 512, 512), Weights::Plain),
        set: &[HIFI2, DRAM],
        ..N150
    },
    Row {
        name: "32 x 8192 x 8192, weights in bfp8, as in decoding of Llama 3 70B",
        source: "tenstorrent/tt-metal, Saturating_DRAM_bandwidth",
        quantity: Quantity::WeightBandwidth,
        measured: 249.5,
        model: || gemm(F16, (32, 8192, 8192), Weights::I8),
        calibrates: true,
        ..N150
    },
    Row {
        name: "512 x 512 x 512, bfp8 LoFi, all in DRAM, started by the host one by one",
        measured: 48.459,
        model: || gemm(F16, (512, 512, 512), Weights::Plain),
        numerics: F8,
        set: &[LOFI, DRAM, STARTED_BY_HOST, AHEAD],
        calibrates: true,
        ..N150
    },
    Row {
        name: "512 x 512 x 512, bf16 HiFi2, all in DRAM, started by the host one by one",
        measured: 49.050,
        model: || gemm(BF16, (512, 512, 512), Weights::Plain),
        set: &[HIFI2, DRAM, STARTED_BY_HOST, AHEAD],
        ..N150
    },
    Row {
        remark: "the measured rate includes images that come from the host. Steps alone make 6,090 images a second (tt-metal, test_perf_device_resnet50).",
        name: "ResNet-50, batch 16, halos and sums as steps",
        source: TT_MODELS,
        quantity: Quantity::PerSecond(16.0),
        measured: 4700.0,
        model: || resnet50_in_steps(F16, 16),
        numerics: F8,
        set: &[LOFI],
        unfused: true,
        ..N150
    },
    Row {
        remark: "taking heads apart and joining them changes the order of elements within tiles of 32 x 32 on the machine; the model charges copies of whole rows.",
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
        states: true,
        model: || decode(F16, 32, 128, &LLAMA_3_1_8B, Weights::I8),
        set: &[SAMPLED_ON_HOST],
        ..N150
    },
    Row {
        name: "Llama 3.2 1B decode, batch 32, 128 past, bfp8",
        source: TT_MODELS,
        quantity: Quantity::PerSecond(1.0),
        measured: 80.5,
        states: true,
        model: || decode(F16, 32, 128, &LLAMA_3_2_1B, Weights::I8),
        set: &[SAMPLED_ON_HOST],
        ..N150
    },
    Row {
        name: "Llama 3.2 3B decode, batch 32, 128 past, bfp8",
        source: TT_MODELS,
        quantity: Quantity::PerSecond(1.0),
        measured: 46.6,
        states: true,
        model: || decode(F16, 32, 128, &LLAMA_3_2_3B, Weights::I8),
        set: &[SAMPLED_ON_HOST],
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
        set: &[HIFI2],
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        remark: "another edition of the same report; the one that the other rows are from has 37.66 us.",
        name: "640 x 1664 x 3328, bf16 HiFi2, in another edition",
        measured: 40.770,
        model: || gemm(BF16, (640, 1664, 3328), Weights::Plain),
        set: &[HIFI2],
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "1280 x 1664 x 1664, bf16 HiFi2",
        measured: 28.656,
        model: || gemm(BF16, (1280, 1664, 1664), Weights::Plain),
        set: &[HIFI2],
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "2560 x 3328 x 3328, bf16 HiFi2",
        measured: 183.117,
        model: || gemm(BF16, (2560, 3328, 3328), Weights::Plain),
        set: &[HIFI2],
        ..N150
    },
    Row {
        target: "tenstorrent-p150",
        name: "3840 x 4992 x 4992, bf16 HiFi2",
        measured: 604.396,
        model: || gemm(BF16, (3840, 4992, 4992), Weights::Plain),
        set: &[HIFI2],
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
        set: &[LOFI],
        unfused: true,
        ..N150
    },
];
