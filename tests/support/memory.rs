//! Models that are compiled into memory: small ones, of which there are many, would wait for the disk most of the time.

use ipuc::compile::{CompileOptions, Optimized, Source};
use ipuc::open_bytes;
use ipuc::passes::emit::{EmitOptions, NoProgress, Output, emit};
use ipuc::passes::ir::Graph;
use ipuc::passes::ir::text::parse;
use ipuc::passes::options::Options;
use ipuc::passes::pipeline;
use std::io;
use std::sync::Mutex;

/// A compiled file in memory.
#[derive(Default)]
struct Memory(Mutex<Vec<u8>>);

impl Output for Memory {
    fn write_at(&self, offset: u64, written: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock().unwrap();
        let (start, end) = (offset as usize, offset as usize + written.len());
        let length = bytes.len().max(end);
        bytes.resize(length, 0);
        bytes[start..end].copy_from_slice(written);
        Ok(())
    }
}

/// A graph of this text after passes of these names, each of which is verified.
pub fn after(text: &str, passes: &[&str]) -> Graph {
    let mut graph = parse(text).unwrap_or_else(|error| panic!("{error} in\n{text}"));
    for name in passes {
        let options = Options { verify: true, ..Options::default() };
        let result = pipeline::run_one(pipeline::find(name).unwrap(), &mut graph, &options);
        result.unwrap_or_else(|error| panic!("{error} in\n{text}"));
    }
    graph
}

/// A graph as a file that is opened.
pub fn emitted(graph: &Graph) -> Result<ipuc::Model, String> {
    let file = Memory::default();
    emit(graph, &EmitOptions::default(), &file, &NoProgress).map_err(|error| error.to_string())?;
    open_bytes(&file.0.into_inner().unwrap()).map_err(|error| error.to_string())
}

/// A model of ONNX, compiled and opened.
pub fn compiled(model: &[u8]) -> Result<ipuc::Model, String> {
    let mut last = None;
    optimized(model, &CompileOptions::default(), &mut |_, graph| last = Some(graph.clone()))?;
    emitted(&last.unwrap())
}

/// Run all passes over a model of ONNX, with the name of each and the graph behind it; the first is the import.
pub fn optimized(model: &[u8], options: &CompileOptions, observe: &mut dyn FnMut(&str, &Graph)) -> Result<(), String> {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("model.onnx");
    std::fs::write(&path, model).unwrap();
    let source = Source { entry: "main".to_string(), path };
    Optimized::new(&[source], options, &mut |report, graph| observe(report.pass, graph))
        .map_err(|error| error.to_string())?;
    Ok(())
}
