//! The tests of this crate as its users see it, one program. `cargo test -p ipuc-formats --test all ipu_file` runs those of
//! `ipu_file`.

mod candidates;
mod ipu_sample;

#[path = "infer_agrees/main.rs"]
mod infer_agrees;
mod infer_anything;
mod ipu_document;
mod ipu_file;
mod ipu_mutations;
mod ipu_round_trip;
mod ipu_schema_generated;
mod ipu_validation;
mod onnx_mutations;
mod operator_table;
mod schema_generated;
