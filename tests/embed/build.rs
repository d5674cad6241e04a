//! Compiles the model while the program is built.

use ipuc::build::{BuildError, compile, compile_beside, compile_with};
use ipuc::compile::{CompileOptions, Source};

const FIXTURES: &str = "../../fixtures";

fn main() -> Result<(), BuildError> {
    // The name of the file is that of the module: `model`.
    compile(format!("{FIXTURES}/external_data/model.onnx"))?;
    // This one is left beside the program.
    let source = Source { entry: "main".to_string(), path: format!("{FIXTURES}/external_data/model.onnx").into() };
    compile_beside("beside", &[source], &CompileOptions::default())?;
    // State of a recurrent model stays in the session.
    let options = CompileOptions { states: vec!["state=stateN".to_string()], ..CompileOptions::default() };
    let source = Source { entry: "listen".to_string(), path: format!("{FIXTURES}/silero_vad_16k_op15/model.onnx").into() };
    compile_with("speech", &[source], &options)
}
