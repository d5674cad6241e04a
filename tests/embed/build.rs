//! Compiles the model while the program is built.

use ipuc::build::{BuildError, compile, compile_with};
use ipuc::compile::{CompileOptions, Source};

const FIXTURES: &str = "../../fixtures";

fn main() -> Result<(), BuildError> {
    // The name of the file is that of the module: `model`.
    compile(format!("{FIXTURES}/external_data/model.onnx"))?;
    // State of a recurrent model stays in the session.
    let options = CompileOptions { states: vec!["state=stateN".to_string()], ..CompileOptions::default() };
    let source = Source { entry: "listen".to_string(), path: format!("{FIXTURES}/silero_vad_16k_op15/model.onnx").into() };
    compile_with("speech", &[source], &options)
}
