//! How fast models compile, in how much memory, and how import grows with the number of nodes.
//!
//! ```text
//! cargo bench --bench compile [-- [--size 1GiB] [--external-only] [--runs 5] [--memory SIZE] [--threads N] [--folder DIR]
//!                                 [--nodes 15000,30000,60000] [--cold] [--keep]]
//! ```
//!
//! *Weights*: a seeded model of this size is generated into the folder, with weights inline (up to 2 GiB, which is as much
//! as a protobuf message holds) and in a file beside it. Compiling it alternates with copying the same bytes within the
//! same folder; medians are compared:
//!
//! - *cp*: the system's `cp`, then fsync of what it wrote;
//! - *dd*: one stream of blocks of 2 MiB, read and written just as the compiler reads models and writes its output
//!   (through the same types: read through the page cache, written past it into reserved room, fsync, rename); once out
//!   of a buffer as `dd` has it, and once out of one on a huge page, as the compiler has them.
//!
//! Each compilation runs in a process of its own, so that its peak resident memory (`VmHWM`) is that of the compilation;
//! its processor time, which depends less on what else the machine does, is printed too. The figure for other sizes:
//! `--size 8GiB`. With `--cold` the page cache forgets the model before each run, of all.
//!
//! *Nodes*: graphs of so many nodes without weights are imported and put in order; times must grow as the nodes do.
//!
//! What the figures should be stands beside them. Everything that is generated is removed at the end.
#![allow(clippy::print_stdout, reason = "a benchmark prints its result")]

use anyhow::{Context, Result, bail, ensure};
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::files::{OutputFile, SourceFile};
use ipuc_formats::onnx::ReadAt as _;
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, tensor_shape_proto, type_proto,
};
use ipuc_formats::pages::Pages;
use ipuc_passes::emit::Output as _;
use prost::Message;
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Width of the layers: a weight of one has 64 MiB.
const WIDTH: u64 = 4096;
const LAYER_BYTES: u64 = WIDTH * WIDTH * 4;
/// Outputs of the last layer: its weight has 384 MiB, more than a compilation holds at once.
const HEAD_OUTPUTS: u64 = 24_576;
const HEAD_BYTES: u64 = WIDTH * HEAD_OUTPUTS * 4;
/// Numbers of the ONNX element type f32, and of attributes that are integers.
const FLOAT: i32 = 1;
const INTEGER_ATTRIBUTE: i32 = 2;
/// Inline weights are limited by protobuf.
const INLINE_LIMIT: u64 = 2 * GIB - 64 * MIB;

struct Arguments {
    size: u64,
    external_only: bool,
    runs: usize,
    memory: Option<u64>,
    threads: usize,
    folder: PathBuf,
    nodes: Vec<usize>,
    cold: bool,
    keep: bool,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [mode, model, output, memory, threads] = arguments.as_slice()
        && mode == "--child"
    {
        return compile_here(Path::new(model), Path::new(output), memory.parse()?, threads.parse()?);
    }
    let arguments = parse(&arguments)?;
    let folder = tempfile::Builder::new().prefix("ipuc-bench-").tempdir_in(&arguments.folder)?;
    if arguments.size > 0 {
        let inline = arguments.size <= INLINE_LIMIT && !arguments.external_only;
        if inline {
            weights("inline", folder.path(), &arguments)?;
        }
        weights("external", folder.path(), &arguments)?;
    }
    nodes(folder.path(), &arguments.nodes)?;
    if arguments.keep {
        println!("kept {}", folder.keep().display());
    }
    Ok(())
}

fn parse(given: &[String]) -> Result<Arguments> {
    let folder = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let mut arguments = Arguments {
        size: GIB,
        external_only: false,
        runs: 5,
        memory: None,
        threads: 0,
        folder,
        nodes: vec![15_000, 30_000, 60_000],
        cold: false,
        keep: false,
    };
    let mut given = given.iter();
    while let Some(flag) = given.next() {
        let mut value = || given.next().with_context(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--size" => arguments.size = bytes_of(value()?)?,
            "--external-only" => arguments.external_only = true,
            "--runs" => arguments.runs = value()?.parse()?,
            "--memory" => arguments.memory = Some(bytes_of(value()?)?),
            "--threads" => arguments.threads = value()?.parse()?,
            "--folder" => arguments.folder = PathBuf::from(value()?),
            "--nodes" => arguments.nodes = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--cold" => arguments.cold = true,
            "--keep" => arguments.keep = true,
            _ => bail!("unknown argument {flag}"),
        }
    }
    ensure!(arguments.runs > 0, "--runs must be at least 1");
    Ok(arguments)
}

/// `8GiB`, `512MiB` or plain bytes.
fn bytes_of(text: &str) -> Result<u64> {
    let units = [("GiB", GIB), ("MiB", MIB), ("", 1)];
    let split = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (number, factor) = split.context("a size ends in GiB or MiB, or is plain bytes")?;
    Ok(number.parse::<u64>().with_context(|| format!("{text} is no size"))? * factor)
}

/// Compile in this process, and print seconds, those of the processor and peak memory for the parent.
fn compile_here(model: &Path, output: &Path, memory: u64, threads: usize) -> Result<()> {
    let memory = (memory > 0).then_some(memory);
    let options = CompileOptions { memory, ..CompileOptions::default() };
    let source = Source { entry: "main".to_string(), path: model.to_owned() };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let start = Instant::now();
    pool.install(|| compile(&[source], output, &options))?;
    let elapsed = start.elapsed().as_secs_f64();
    let processor = clock_gettime(ClockId::ProcessCPUTime);
    let processor = processor.tv_sec as f64 + processor.tv_nsec as f64 / 1e9;
    println!("{elapsed} {processor} {}", peak_resident_bytes().unwrap_or(0));
    Ok(())
}

/// The peak of resident memory of this process, file pages included, where the system tells it.
fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

/// One compilation.
struct Run {
    seconds: f64,
    processor_seconds: f64,
    peak_bytes: u64,
}

/// A compilation in a process of its own.
fn compile_apart(model: &Path, output: &Path, arguments: &Arguments) -> Result<Run> {
    let memory = arguments.memory.unwrap_or(0).to_string();
    let child = Command::new(std::env::current_exe()?)
        .arg("--child")
        .args([model, output])
        .args([memory, arguments.threads.to_string()])
        .output()?;
    ensure!(child.status.success(), "the compilation failed: {}", String::from_utf8_lossy(&child.stderr));
    let line = String::from_utf8(child.stdout)?;
    let mut fields = line.split_whitespace();
    let mut next = || fields.next().context("the compilation reports too little");
    Ok(Run { seconds: next()?.parse()?, processor_seconds: next()?.parse()?, peak_bytes: next()?.parse()? })
}

/// Seconds to copy files with `cp`, which ends before the bytes are on the disk, and to bring them there.
fn copy(files: &[PathBuf], target: &Path) -> Result<f64> {
    std::fs::create_dir_all(target)?;
    let start = Instant::now();
    let status = Command::new("cp").args(files).arg(target).status().context("there is no `cp`")?;
    ensure!(status.success(), "`cp` failed");
    for file in files {
        File::open(target.join(file.file_name().context("a file has a name")?))?.sync_all()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    std::fs::remove_dir_all(target)?;
    Ok(seconds)
}

/// Seconds to copy files into one as `dd` does, by the reads and writes of the compiler; what is left after the last
/// whole block of 4 KiB is written as zeros.
fn copy_alike(files: &[PathBuf], target: &Path, huge_pages: bool) -> Result<f64> {
    const ALIGNMENT: usize = 4096;
    const BLOCK_BYTES: usize = 2 << 20;
    let begun = Instant::now();
    let inputs = files.iter().map(|file| Ok(SourceFile::open(file)?)).collect::<Result<Vec<_>>>()?;
    let output = OutputFile::create(target)?;
    let whole = |input: &SourceFile| input.length().next_multiple_of(ALIGNMENT as u64);
    output.reserve(inputs.iter().map(whole).sum())?;
    let mut huge = Pages::zeroed(BLOCK_BYTES)?;
    let mut small = vec![0; BLOCK_BYTES + ALIGNMENT];
    let start = small.as_ptr().align_offset(ALIGNMENT);
    let block = if huge_pages { &mut huge[..] } else { &mut small[start..start + BLOCK_BYTES] };
    let mut written = 0;
    for input in &inputs {
        let mut offset = 0;
        while offset < input.length() {
            let length = (input.length() - offset).min(block.len() as u64) as usize;
            input.read_exact_at(offset, &mut block[..length])?;
            let padded = length.next_multiple_of(ALIGNMENT);
            block[length..padded].fill(0);
            output.write_at(written, &block[..padded])?;
            offset += length as u64;
            written += padded as u64;
        }
    }
    output.finish()?;
    let seconds = begun.elapsed().as_secs_f64();
    std::fs::remove_file(target)?;
    Ok(seconds)
}

/// Let the page cache forget these files, where that is asked for.
fn forget(files: &[PathBuf], arguments: &Arguments) -> Result<()> {
    for file in files.iter().filter(|_| arguments.cold) {
        let file = File::open(file)?;
        #[cfg(target_os = "linux")]
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn weights(place: &str, folder: &Path, arguments: &Arguments) -> Result<()> {
    let files = generate(folder, place, arguments.size)?;
    let (model, output, copied) = (&files[0], folder.join("model.ipu"), folder.join("copy"));
    // What was just written is on its way to the disk: that belongs to neither.
    for file in &files {
        File::open(file)?.sync_all()?;
    }
    let (mut compiled, mut copies, mut alike, mut alike_on_huge_pages) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.runs {
        forget(&files, arguments)?;
        copies.push(copy(&files, &copied)?);
        forget(&files, arguments)?;
        alike.push(copy_alike(&files, &copied, false)?);
        forget(&files, arguments)?;
        alike_on_huge_pages.push(copy_alike(&files, &copied, true)?);
        forget(&files, arguments)?;
        compiled.push(compile_apart(model, &output, arguments)?);
        std::fs::remove_file(&output)?;
    }
    let list = |values: &[f64]| values.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(" ");
    let seconds: Vec<f64> = compiled.iter().map(|run| run.seconds).collect();
    let processor: Vec<f64> = compiled.iter().map(|run| run.processor_seconds).collect();
    println!(
        "{place}: cp {} s, dd {} s, dd on huge pages {} s, compile {} s",
        list(&copies),
        list(&alike),
        list(&alike_on_huge_pages),
        list(&seconds)
    );
    println!("{place}: processor time of compiling {} s", list(&processor));
    let peak = compiled.iter().map(|run| run.peak_bytes).max().unwrap_or(0);
    let size: u64 = files.iter().map(|file| file.metadata().map_or(0, |data| data.len())).sum();
    let (copied, alike, compiled) = (median(copies), median(alike), median(seconds));
    let alike_on_huge_pages = median(alike_on_huge_pages);
    let rate = |seconds: f64| size as f64 / 1e6 / seconds;
    println!(
        "{place}: {:.2} GiB, largest weight {} MiB; cp {:.0} MB/s, dd {:.0} MB/s, compiling {:.0} MB/s: {:.0} % of cp \
         (should be 60 or more), {:.0} % of dd (should be 70 or more from 8 GiB on), {:.0} % of dd on huge pages",
        size as f64 / GIB as f64,
        HEAD_BYTES / MIB,
        rate(copied),
        rate(alike),
        rate(compiled),
        100.0 * copied / compiled,
        100.0 * alike / compiled,
        100.0 * alike_on_huge_pages / compiled,
    );
    let limit = (256 * MIB + HEAD_BYTES).min(512 * MIB);
    println!("{place}: peak resident memory {} MiB (should be under {})", peak / MIB, limit / MIB);
    if !arguments.keep {
        files.iter().try_for_each(std::fs::remove_file)?;
    }
    Ok(())
}

/// Import and order graphs of so many nodes.
fn nodes(folder: &Path, counts: &[usize]) -> Result<()> {
    for &count in counts {
        let path = folder.join("nodes.onnx");
        std::fs::write(&path, chain(count).encode_to_vec())?;
        let source = Source { entry: "main".to_string(), path };
        let start = Instant::now();
        let compiled = compile(&[source], &folder.join("nodes.ipu"), &CompileOptions::default())?;
        let whole = start.elapsed().as_secs_f64();
        let of = |name: &str| {
            let reports = compiled.reports.iter().filter(|report| report.pass == name);
            reports.map(|report| report.time.as_secs_f64()).sum::<f64>()
        };
        let steps = compiled.emitted.manifest.blocks.iter().map(|block| block.steps.len()).sum::<usize>();
        println!(
            "{count} nodes: import {:.3} s (60,000 should take less than 3), order {:.3} s for {steps} steps \
             (60,000 should take at most 1), infer {:.3} s, the whole compilation {whole:.3} s",
            of("import"),
            of("order"),
            of("infer"),
        );
    }
    Ok(())
}

/// A residual network without weights: each layer is four nodes of which one reads a small constant.
fn chain(count: usize) -> ModelProto {
    let mut graph = graph("x", &format!("v{}", count - 1));
    graph.initializer.push(TensorProto {
        name: Some("scale".to_string()),
        data_type: Some(FLOAT),
        dims: vec![1],
        float_data: vec![0.5],
        ..TensorProto::default()
    });
    for index in 0..count {
        let before = |distance: usize| match index.checked_sub(distance) {
            Some(earlier) => format!("v{earlier}"),
            None => "x".to_string(),
        };
        let (operator, inputs) = match index % 4 {
            0 => ("Mul", vec![before(1), "scale".to_string()]),
            1 => ("Tanh", vec![before(1)]),
            2 => ("Sigmoid", vec![before(2)]),
            _ => ("Add", vec![before(1), before(2)]),
        };
        graph.node.push(node(operator, inputs, format!("v{index}")));
    }
    model(graph)
}

/// A chain of matrix products with weights of both orientations, and a wide last one. Gives the files, the model first.
fn generate(folder: &Path, place: &str, size: u64) -> Result<Vec<PathBuf>> {
    let layers = size.saturating_sub(HEAD_BYTES).div_ceil(LAYER_BYTES);
    let mut graph = graph("x", "logits");
    let mut last = "x".to_string();
    let mut weights = Vec::new();
    for layer in 0..layers {
        let (weight, output) = (format!("layer{layer}.weight"), format!("h{layer}"));
        // Exporters write both: `MatMul` reads [inputs, outputs], `Gemm` with `transB` reads [outputs, inputs].
        let mut product =
            node(if layer % 2 == 0 { "MatMul" } else { "Gemm" }, vec![last, weight.clone()], output.clone());
        if layer % 2 == 1 {
            product.attribute.push(AttributeProto {
                name: Some("transB".to_string()),
                r#type: Some(INTEGER_ATTRIBUTE),
                i: Some(1),
                ..AttributeProto::default()
            });
        }
        graph.node.push(product);
        weights.push((weight, vec![WIDTH as i64, WIDTH as i64]));
        last = output;
    }
    graph.node.push(node("MatMul", vec![last, "head.weight".to_string()], "logits".to_string()));
    weights.push(("head.weight".to_string(), vec![WIDTH as i64, HEAD_OUTPUTS as i64]));
    let path = folder.join(format!("{place}.onnx"));
    if place == "inline" {
        write_inline(&path, graph, &weights)?;
        return Ok(vec![path]);
    }
    let data = folder.join("external.data");
    let mut file = BufWriter::with_capacity(MIB as usize, File::create(&data)?);
    let mut offset = 0;
    for (index, (name, dims)) in weights.iter().enumerate() {
        let length = dims.iter().product::<i64>() as u64 * 4;
        write_random(&mut file, index as u64 + 1, length)?;
        let entry =
            |key: &str, value: String| StringStringEntryProto { key: Some(key.to_string()), value: Some(value) };
        graph.initializer.push(TensorProto {
            data_location: Some(1),
            external_data: vec![
                entry("location", "external.data".to_string()),
                entry("offset", offset.to_string()),
                entry("length", length.to_string()),
            ],
            ..tensor(name, dims)
        });
        offset += length;
    }
    file.flush()?;
    std::fs::write(&path, model(graph).encode_to_vec())?;
    Ok(vec![path, data])
}

/// Write a model whose weights stand in `raw_data`, without holding them.
fn write_inline(path: &Path, graph: GraphProto, weights: &[(String, Vec<i64>)]) -> Result<()> {
    const RAW_DATA: u32 = 9;
    const INITIALIZER: u32 = 5;
    const GRAPH: u32 = 7;
    let key = |field: u32, length: u64| {
        let mut bytes = Vec::new();
        prost::encoding::encode_key(field, prost::encoding::WireType::LengthDelimited, &mut bytes);
        prost::encoding::encode_varint(length, &mut bytes);
        bytes
    };
    // What stands before the elements of each weight: key and length of the tensor, the tensor, key and length of them.
    let mut heads = Vec::new();
    for (name, dims) in weights {
        let length = dims.iter().product::<i64>() as u64 * 4;
        let mut head = tensor(name, dims).encode_to_vec();
        head.extend(key(RAW_DATA, length));
        let mut framed = key(INITIALIZER, head.len() as u64 + length);
        framed.extend(head);
        heads.push((framed, length));
    }
    let skeleton = graph.encode_to_vec();
    let graph_bytes =
        heads.iter().map(|(head, length)| head.len() as u64 + length).sum::<u64>() + skeleton.len() as u64;
    let mut file = BufWriter::with_capacity(MIB as usize, File::create(path)?);
    file.write_all(&ModelProto { graph: None, ..model(GraphProto::default()) }.encode_to_vec())?;
    file.write_all(&key(GRAPH, graph_bytes))?;
    file.write_all(&skeleton)?;
    for (index, (head, length)) in heads.iter().enumerate() {
        file.write_all(head)?;
        write_random(&mut file, index as u64 + 1, *length)?;
    }
    Ok(file.flush()?)
}

/// Seeded bytes that no layer of storage compresses.
fn write_random(file: &mut impl Write, seed: u64, length: u64) -> Result<()> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut block = vec![0u8; MIB as usize];
    let mut left = length as usize;
    while left > 0 {
        for word in block.as_chunks_mut::<8>().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        let count = left.min(block.len());
        file.write_all(&block[..count])?;
        left -= count;
    }
    Ok(())
}

fn tensor(name: &str, dims: &[i64]) -> TensorProto {
    let name = Some(name.to_string());
    TensorProto { name, data_type: Some(FLOAT), dims: dims.to_vec(), ..TensorProto::default() }
}

fn node(operator: &str, input: Vec<String>, output: String) -> NodeProto {
    let op_type = Some(operator.to_string());
    NodeProto { op_type, input, output: vec![output], ..NodeProto::default() }
}

fn model(graph: GraphProto) -> ModelProto {
    let opset = OperatorSetIdProto { domain: None, version: Some(17) };
    ModelProto { ir_version: Some(8), opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() }
}

/// A graph from `input: f32[batch, WIDTH]` to an output of unstated shape.
fn graph(input: &str, output: &str) -> GraphProto {
    use tensor_shape_proto::dimension::Value::{DimParam, DimValue};
    let dimension = |value| tensor_shape_proto::Dimension { value: Some(value), denotation: None };
    let dim = vec![dimension(DimParam("batch".to_string())), dimension(DimValue(WIDTH as i64))];
    let typed = |name: &str, shape: Option<TensorShapeProto>| {
        let tensor = type_proto::Tensor { elem_type: Some(FLOAT), shape };
        let value = Some(type_proto::Value::TensorType(tensor));
        let r#type = Some(TypeProto { denotation: None, value });
        ValueInfoProto { name: Some(name.to_string()), r#type, ..ValueInfoProto::default() }
    };
    GraphProto {
        name: Some("bench".to_string()),
        input: vec![typed(input, Some(TensorShapeProto { dim }))],
        output: vec![typed(output, None)],
        ..GraphProto::default()
    }
}
