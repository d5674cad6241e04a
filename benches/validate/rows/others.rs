//! Groq, NorthPole and Cerebras.

use super::tenstorrent::LLAMA_3_1_8B;
use super::{BASE, Quantity, Row};
use crate::models::{Decoder, F16, Weights, decode, decode_embedded, resnet50};
use ipuc_formats::dtype::DType;

/// Granite-8B-Code-Base with 14 of its 36 layers.
const GRANITE_3B: Decoder =
    Decoder { layers: 14, width: 4096, heads: 32, key_heads: 8, head: 128, inner: 14336, vocabulary: 49_152 };

pub const ROWS: &[Row] = &[
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
        remark: "the energies of a core are assumptions, and so is the static power; neither is published.",
        name: "power with ResNet-50, i8, batch 1",
        source: "Modha et al., Science 382, table 1",
        quantity: Quantity::Watts,
        model: || resnet50(F16, 1),
        numerics: Some(DType::I8),
        measured: 74.0,
        ..BASE
    },
    Row {
        target: "northpole",
        remark: "shapes of the model and its context are not published (taken: 14 of the 36 layers of Granite-8B-Code-Base, 1,000 positions). A card takes 35 us for a token, in the model 22, of which the products of a layer are one: what it takes to hand a token on from card to card over PCIe is not published, and is taken to go on beside computing.",
        name: "3B decoder, 4-bit weights, on 16 cards",
        source: "Appuswamy et al., HPEC 2024",
        quantity: Quantity::PerSecondTogether(1.0),
        states: true,
        model: || decode_embedded(F16, 1, 1000, &GRANITE_3B, Weights::I4),
        numerics: Some(DType::I8),
        chips: Some(16),
        measured: 28_356.0,
        ..BASE
    },
    Row {
        target: "cerebras-wse3",
        remark: "how the vendor's program lays layers out on the wafer, and what it takes to start a step on a core (tasks, routes), is not published; the latter is taken to be nothing. A program of others on the wafer before makes half as many tokens again as the vendor's.",
        name: "Llama 3.1 8B decode, f16, one user",
        source: "Hot Chips 2024",
        states: true,
        model: || decode(F16, 1, 1000, &LLAMA_3_1_8B, Weights::Plain),
        quantity: Quantity::PerSecond(1.0),
        measured: 1800.0,
        ..BASE
    },
    Row {
        target: "cerebras-wse3",
        name: "Llama 3 8B decode, f16, one user, on a WSE-2",
        source: "WaferLLM, arXiv 2502.04563v2",
        states: true,
        // Its cores, of the same memory and clock.
        set: &[("tiles.count", "850000")],
        model: || decode(F16, 1, 1000, &LLAMA_3_1_8B, Weights::Plain),
        quantity: Quantity::PerSecond(1.0),
        measured: 2700.0,
        ..BASE
    },
];
