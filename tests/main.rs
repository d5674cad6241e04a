//! The tests of the whole program. They are one program themselves: what each of many would link is linked once, and while a test
//! takes long others run beside it. `cargo test --test all states` runs those of `states`.
//!
//! A test that needs a process to itself has a file that `Cargo.toml` names beside this one.

mod support;

#[path = "../benches/validate/experts.rs"]
mod experts;
#[path = "../benches/validate/layers.rs"]
mod layers;
#[path = "../benches/validate/models.rs"]
mod models;
#[path = "../benches/validate/report.rs"]
mod report;
#[path = "../benches/validate/rows/mod.rs"]
mod rows;

mod block_channels;
mod calibrated;
mod channels_last;
mod cli;
mod code_widths;
mod compile_faults;
mod concats;
mod contract;
mod contrib;
mod damage;
mod embed;
mod end_to_end;
#[path = "fabric/main.rs"]
mod fabric;
mod face;
#[path = "fallible/main.rs"]
mod fallible;
mod filetests;
mod fuse;
#[path = "generate/main.rs"]
mod generate;
mod hostile;
mod integers;
mod json;
#[path = "layering/main.rs"]
mod layering;
mod lossless;
mod observe;
mod odd_forms;
#[path = "onnx_suite/main.rs"]
mod onnx_suite;
mod operators;
mod placements;
mod round_weights;
#[path = "schemas/main.rs"]
mod schemas;
mod sparse;
mod sparse_activations;
mod states;
#[path = "streaming/main.rs"]
mod streaming;
#[path = "surroundings/main.rs"]
mod surroundings;
#[path = "tiles/main.rs"]
mod tiles;
mod validation;
