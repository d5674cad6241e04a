//! How fast weights stream within a budget, beside what the disk delivers and beside a run with all weights in memory.
//!
//! ```text
//! cargo bench --bench stream [-- [--size 4GiB] [--budgets 10,25,50,75] [--passes 5] [--threads 2] [--folder DIR]]
//! ```
//!
//! The model is a chain of products of one row with square f32 matrices: nothing is computed that could hide a read. Each
//! budget (percent of the weights) has a process of its own, so that its peak memory is that of the budget. Its passes
//! alternate with raw reads of the same file: direct, blocks of 2 MiB, huge pages that were touched before, the best
//! of 1 to 8 in flight. The first pass, which also loads what stays, is printed and not counted. Medians are compared:
//!
//! - *device*: bytes a second that the disk delivered to the pass, of the raw rate (goal: .90);
//! - *time*: of max(bytes / raw rate, resident pass) (goal: at most 1.1).
#![allow(clippy::print_stdout, reason = "a benchmark prints its result")]

use anyhow::{Context, Result, bail, ensure};
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::files::DirectFile;
use ipuc::{OpenOptions, open_with};
use ipuc_formats::dtype::DType;
use ipuc_formats::onnx::ReadAt;
use ipuc_formats::onnx::schema::tensor_shape_proto::{Dimension, dimension};
use ipuc_formats::onnx::schema::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto, type_proto,
};
use ipuc_formats::tensor::Tensor;
use ipuc_runtime::{Session, SessionOptions};
use prost::Message;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

const WIDTH: u64 = 4096;
const LAYER_BYTES: u64 = WIDTH * WIDTH * 4;
const BLOCK_BYTES: usize = 2 << 20;
/// Raw reads stop after this many bytes: enough for a rate.
const RAW_BYTES: u64 = 2 << 30;
/// Memory that a process has besides its budget: code, records, stacks.
const SLACK_BYTES: u64 = 64 << 20;
/// Room for the activations of the chain, and for what stays of its input.
const WORKING_BYTES: u64 = 1 << 20;

struct Arguments {
    size: u64,
    budgets: Vec<u64>,
    passes: usize,
    threads: usize,
    folder: PathBuf,
}

fn main() -> Result<()> {
    let given: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [mode, file, budget, threads] = given.as_slice()
        && mode == "--child"
    {
        return run_here(Path::new(file), budget.parse()?, threads.parse()?);
    }
    let arguments = parse(&given)?;
    let folder = tempfile::Builder::new().prefix("ipuc-stream-").tempdir_in(&arguments.folder)?;
    let file = chain(folder.path(), arguments.size / LAYER_BYTES)?;
    let weights = std::fs::metadata(&file)?.len();
    println!("weights {:.2} GiB, {} threads, {} passes", gib(weights), arguments.threads, arguments.passes);
    let mut buffers = Raw::new(&file)?;
    let mut resident = Runner::start(&file, weights * 2, arguments.threads)?;
    resident.pass()?;
    let mut resident_seconds: Vec<f64> = Vec::new();
    for _ in 0..arguments.passes {
        resident_seconds.push(resident.pass()?.seconds);
    }
    let resident_seconds = median(&resident_seconds);
    let peak = resident.finish()?;
    println!("resident pass {resident_seconds:.3} s, peak {:.2} GiB", gib(peak));
    println!("budget  kept GiB  first s  pass s  read GiB  raw GB/s  device  time  stalls s  peak over budget MiB");
    for &percent in &arguments.budgets {
        let budget = weights / 100 * percent;
        let mut runner = Runner::start(&file, budget, arguments.threads)?;
        let first = runner.pass()?;
        runner.pass()?;
        let (mut passes, mut raws) = (Vec::new(), Vec::new());
        for _ in 0..arguments.passes {
            raws.push(buffers.rate()?);
            passes.push(runner.pass()?);
        }
        let peak = runner.finish()?;
        let raw = median(&raws);
        let of = |value: fn(&Pass) -> f64| median(&passes.iter().map(value).collect::<Vec<_>>());
        let (seconds, read) = (of(|pass| pass.seconds), of(|pass| pass.bytes_read));
        let stalled = of(|pass| pass.stall_seconds);
        let bound = (read / raw).max(resident_seconds);
        println!(
            "{percent:>5} %  {:>8.2}  {:>7.3}  {seconds:>6.3}  {:>8.2}  {:>8.2}  {:>6.2}  {:>4.2}  {stalled:>8.3}  {:>10.1} {}",
            first.pinned_bytes / (1u64 << 30) as f64,
            first.seconds,
            read / (1u64 << 30) as f64,
            raw / 1e9,
            read / seconds / raw,
            seconds / bound,
            (peak as f64 - budget as f64) / (1 << 20) as f64,
            if peak <= budget + SLACK_BYTES { "ok" } else { "TOO MUCH" },
        );
    }
    Ok(())
}

fn parse(given: &[String]) -> Result<Arguments> {
    let folder = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let mut arguments = Arguments { size: 4 << 30, budgets: vec![10, 25, 50, 75], passes: 5, threads: 2, folder };
    let mut given = given.iter();
    while let Some(flag) = given.next() {
        let mut value = || given.next().with_context(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--size" => arguments.size = bytes_of(value()?)?,
            "--budgets" => arguments.budgets = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--passes" => arguments.passes = value()?.parse()?,
            "--threads" => arguments.threads = value()?.parse()?,
            "--folder" => arguments.folder = PathBuf::from(value()?),
            _ => bail!("unknown argument {flag}"),
        }
    }
    ensure!(arguments.passes > 0 && arguments.size >= LAYER_BYTES, "at least one pass over one layer of 64 MiB");
    Ok(arguments)
}

fn bytes_of(text: &str) -> Result<u64> {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("", 1)];
    let split = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (number, factor) = split.context("a size ends in GiB or MiB, or is plain bytes")?;
    Ok(number.parse::<u64>().with_context(|| format!("{text} is no size"))? * factor)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Compile a chain of this many layers. All weights lie in one seeded file of little more than a layer, each a row further.
fn chain(folder: &Path, layers: u64) -> Result<PathBuf> {
    let mut state = 1u64;
    let mut data = std::io::BufWriter::new(std::fs::File::create(folder.join("weights.bin"))?);
    for _ in 0..WIDTH * WIDTH + WIDTH * layers {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let value = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
        data.write_all(&(value / 32.0).to_le_bytes())?;
    }
    data.into_inner()?.sync_all()?;
    let entry = |key: &str, value: String| StringStringEntryProto { key: Some(key.to_string()), value: Some(value) };
    let weight = |layer: u64| TensorProto {
        name: Some(format!("w{layer}")),
        dims: vec![WIDTH as i64; 2],
        data_type: Some(1),
        data_location: Some(1),
        external_data: vec![
            entry("location", "weights.bin".to_string()),
            entry("offset", (layer * WIDTH * 4).to_string()),
            entry("length", LAYER_BYTES.to_string()),
        ],
        ..TensorProto::default()
    };
    let product = |layer: u64| NodeProto {
        op_type: Some("MatMul".to_string()),
        name: Some(format!("product {layer}")),
        input: vec![format!("h{layer}"), format!("w{layer}")],
        output: vec![format!("h{}", layer + 1)],
        ..NodeProto::default()
    };
    let port = |name: String| {
        let extent =
            |extent: u64| Dimension { value: Some(dimension::Value::DimValue(extent as i64)), ..Dimension::default() };
        let shape = TensorShapeProto { dim: vec![extent(1), extent(WIDTH)] };
        let tensor = type_proto::Tensor { elem_type: Some(1), shape: Some(shape) };
        let value = Some(type_proto::Value::TensorType(tensor));
        let r#type = Some(TypeProto { value, ..TypeProto::default() });
        ValueInfoProto { name: Some(name), r#type, ..ValueInfoProto::default() }
    };
    let graph = GraphProto {
        name: Some("chain".to_string()),
        node: (0..layers).map(product).collect(),
        initializer: (0..layers).map(weight).collect(),
        input: vec![port("h0".to_string())],
        output: vec![port(format!("h{layers}"))],
        ..GraphProto::default()
    };
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(17) }],
        graph: Some(graph),
        ..ModelProto::default()
    };
    let path = folder.join("chain.onnx");
    std::fs::write(&path, model.encode_to_vec())?;
    let compiled = folder.join("chain.ipu");
    compile(&[Source { entry: "main".to_string(), path }], &compiled, &CompileOptions::default())?;
    Ok(compiled)
}

/// Direct reads of a file from its begin on.
struct Raw {
    file: DirectFile,
    buffers: memmap2::MmapMut,
    first: usize,
}

impl Raw {
    fn new(path: &Path) -> Result<Self> {
        let mut buffers = memmap2::MmapMut::map_anon(9 * BLOCK_BYTES)?;
        #[cfg(target_os = "linux")]
        buffers.advise(memmap2::Advice::HugePage)?;
        buffers.fill(1);
        let first = buffers.as_ptr().align_offset(BLOCK_BYTES);
        Ok(Raw { file: DirectFile::open(path)?, buffers, first })
    }

    /// Bytes a second with the best number of reads in flight.
    fn rate(&mut self) -> Result<f64> {
        let mut best: f64 = 0.0;
        for in_flight in [1, 2, 4, 8] {
            best = best.max(self.rate_of(in_flight)?);
        }
        Ok(best)
    }

    fn rate_of(&mut self, in_flight: usize) -> Result<f64> {
        let length = (self.file.length() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64).min(RAW_BYTES);
        let (file, first) = (&self.file, self.first);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let lanes = self.buffers[first..].chunks_exact_mut(BLOCK_BYTES).take(in_flight).enumerate();
            let lanes: Vec<_> = lanes
                .map(|(lane, buffer)| {
                    scope.spawn(move || -> std::io::Result<()> {
                        let step = in_flight * BLOCK_BYTES;
                        for offset in ((lane * BLOCK_BYTES) as u64..length).step_by(step) {
                            file.read_exact_at(offset, buffer)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            lanes.into_iter().try_for_each(|lane| lane.join().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())))
        })?;
        Ok(length as f64 / begun.elapsed().as_secs_f64())
    }
}

/// What a child prints of a pass.
struct Pass {
    seconds: f64,
    bytes_read: f64,
    stall_seconds: f64,
    pinned_bytes: f64,
}

/// A process that runs a pass each time it is told to.
struct Runner {
    child: Child,
    told: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

impl Runner {
    fn start(file: &Path, budget: u64, threads: usize) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--child")
            .arg(file)
            .args([budget.to_string(), threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let told = child.stdin.take();
        let says = BufReader::new(child.stdout.take().context("the child has no stdout")?);
        Ok(Runner { child, told, says })
    }

    fn pass(&mut self) -> Result<Pass> {
        self.told.as_mut().context("the child is told nothing more")?.write_all(b"pass\n")?;
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        let fields: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [seconds, bytes_read, stall_seconds, pinned_bytes] = fields[..] else { bail!("the child says {line:?}") };
        Ok(Pass { seconds, bytes_read, stall_seconds, pinned_bytes })
    }

    /// Peak memory of the child.
    fn finish(mut self) -> Result<u64> {
        self.told = None;
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        ensure!(self.child.wait()?.success(), "the child failed");
        Ok(line.trim().parse()?)
    }
}

fn run_here(file: &Path, budget: u64, threads: usize) -> Result<()> {
    let model =
        open_with(file, OpenOptions { memory_bytes: Some(budget.max(WORKING_BYTES)), ..OpenOptions::default() })?;
    let mut session = Session::new(&model, &SessionOptions { threads, seed: 0 })?;
    let ones: Vec<u8> = (0..WIDTH).flat_map(|_| 1f32.to_le_bytes()).collect();
    let input = Tensor::from_bytes(DType::F32, &[1, WIDTH as usize], &ones)?;
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line)? > 0 {
        let begun = Instant::now();
        session.run(None, vec![("h0".to_string(), input.clone().into())])?;
        let seconds = begun.elapsed().as_secs_f64();
        let report = session.last_pass().context("the model is not streamed")?;
        let pinned = model.residency().context("the model is not streamed")?.pinned_bytes;
        println!("{seconds} {} {} {pinned}", report.bytes_read(), report.stalled().as_secs_f64());
        line.clear();
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    println!("{}", peak.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024);
    Ok(())
}
