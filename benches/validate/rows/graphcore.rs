//! Graphcore: kernels on one tile, products on all of them, exchange, and whole encoders.

use super::{BASE, F8, Quantity, Row};
use crate::models::{Encoder, F16, Weights, encoder_in_steps, gemm, products};
use ipuc_formats::machine::Traffic;
use ipuc_formats::machine::units::Bytes;

const SIGLIP: Encoder = Encoder { layers: 27, width: 1152, heads: 16, inner: 4304, tokens: 729, biases: true };
const SDK: &str = "osmarks/ipu-stack, SDK_ONNX_PROFILE_ANALYSIS";
const STACK: &str = "osmarks/ipu-stack, GEMM_UTILIZATION";
const LAYOUT: &str = "osmarks/ipu-stack, PROFILE_LAYOUT_DIAGNOSIS";

const C600: Row = Row { target: "graphcore-c600", source: SDK, quantity: Quantity::MatrixCycles, ..BASE };

/// Queries, keys or values of 729 x 1152 in f16, from the 162 tiles that summed them to all 1,472, in so many transfers.
const fn preparation(transfers: f64) -> Option<Traffic> {
    const BYTES: f64 = 729.0 * 1152.0 * 2.0;
    Some(Traffic {
        received: Bytes(BYTES / 1472.0),
        shared: Bytes(0.0),
        transfers: transfers / 1472.0,
        sent: Bytes(BYTES / 162.0),
        transfers_sent: transfers / 162.0,
        crossing: Bytes(0.0),
        link: Bytes(0.0),
        phases: 1,
    })
}

/// Programs of the vendor's compiler bring values into order by strided copies of single elements: those of the scores of 16 heads,
/// 5,832 on each of 1,458 tiles, take 126,283 cycles (SDK_ONNX_PROFILE_ANALYSIS).
const COPIES_OF_ELEMENTS: (&str, &str) = ("exchange.arrange", "21.65 cycles");

/// The scheduler of that time kept the whole way between two pieces of a sender: 52 cycles and two for each of 46 rows of
/// tiles, at the middle one (EXCHANGE_INSTRUCTION_REFERENCE). What it reaches of its own order is all of it.
const WAY_BETWEEN_PIECES: &[(&str, &str)] = &[("exchange.transfer", "98 cycles"), ("exchange.efficiency", "1.0")];

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
        name: "SigLIP So400m encoder, f8, best known program, step by step",
        source: STACK,
        model: || encoder_in_steps(F16, 1, &SIGLIP),
        numerics: F8,
        unfused: true,
        quantity: Quantity::Cycles,
        measured: 10_371_582.0,
        ..C600
    },
    Row {
        remark: "what copies of single elements take is that of the scores; where few tiles hold the sums of a product, these bring all of them into order in the model, and the program has more tiles do it.",
        name: "SigLIP So400m encoder, f8, program of the vendor, step by step",
        model: || encoder_in_steps(F16, 1, &SIGLIP),
        numerics: F8,
        unfused: true,
        set: &[COPIES_OF_ELEMENTS],
        quantity: Quantity::Cycles,
        measured: 17_804_824.0,
        ..C600
    },
    Row {
        name: "queries from 162 tiles to all, 62,342 transfers",
        source: LAYOUT,
        traffic: preparation(62_342.0),
        set: WAY_BETWEEN_PIECES,
        quantity: Quantity::ExchangeCycles,
        measured: 33_780.0,
        ..C600
    },
    Row {
        name: "keys from 162 tiles to all, 60,816 transfers",
        source: LAYOUT,
        traffic: preparation(60_816.0),
        set: WAY_BETWEEN_PIECES,
        quantity: Quantity::ExchangeCycles,
        measured: 37_224.0,
        ..C600
    },
    Row {
        name: "values from 162 tiles to all, 58,508 transfers",
        source: LAYOUT,
        traffic: preparation(58_508.0),
        set: WAY_BETWEEN_PIECES,
        quantity: Quantity::ExchangeCycles,
        measured: 37_614.0,
        ..C600
    },
    Row {
        name: "scores into rows of the softmax, from 2 x 46 parts of a head to eight rows a tile",
        traffic: Some(SCORES_INTO_ROWS),
        quantity: Quantity::ExchangeCycles,
        measured: 4_477.0,
        ..C600
    },
];

/// Eight rows of 729 columns in f16 a tile, in 46 parts of 16 columns; 1,472 tiles send what 1,458 receive.
const SCORES_INTO_ROWS: Traffic = Traffic {
    received: Bytes(8.0 * 729.0 * 2.0),
    shared: Bytes(0.0),
    transfers: 8.0 * 46.0,
    sent: Bytes(16.0 * 729.0 * 729.0 * 2.0 / 1472.0),
    transfers_sent: 16.0 * 729.0 * 46.0 / 1472.0,
    crossing: Bytes(0.0),
    link: Bytes(0.0),
    phases: 1,
};
