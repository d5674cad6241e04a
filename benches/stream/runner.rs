//! Processes that run passes when they are told to, so that the memory of each can be seen.

use crate::chain::WIDTH;
use anyhow::{Context, Result, bail, ensure};
use ipuc::{OpenOptions, Resident, open, open_with};
use ipuc_formats::dtype::DType;
use ipuc_formats::tensor::Tensor;
use ipuc_runtime::{Model, Session, SessionOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

/// Room for the activations of the chain, and for what stays of its input.
const WORKING_BYTES: u64 = 1 << 20;

/// What a child prints of a pass.
pub struct Pass {
    pub seconds: f64,
    pub bytes_read: f64,
    pub stall_seconds: f64,
    pub pinned_bytes: f64,
}

/// How a child holds weights.
#[derive(Clone, Copy)]
pub enum Held {
    /// Within a budget of bytes.
    Budget(u64),
    /// In the page cache.
    Map,
}

/// A process that runs a pass each time it is told to.
pub struct Runner {
    child: Child,
    told: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

impl Runner {
    pub fn start(file: &Path, held: Held, threads: usize) -> Result<Self> {
        let held = match held {
            Held::Budget(bytes) => bytes.to_string(),
            Held::Map => "map".to_string(),
        };
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--child")
            .arg(file)
            .args([held, threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let told = child.stdin.take();
        let says = BufReader::new(child.stdout.take().context("the child has no stdout")?);
        Ok(Runner { child, told, says })
    }

    pub fn pass(&mut self) -> Result<Pass> {
        self.told.as_mut().context("the child is told nothing more")?.write_all(b"pass\n")?;
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        let fields: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [seconds, bytes_read, stall_seconds, pinned_bytes] = fields[..] else { bail!("the child says {line:?}") };
        Ok(Pass { seconds, bytes_read, stall_seconds, pinned_bytes })
    }

    /// Memory of the child, each page divided by how many processes share it.
    pub fn proportional_bytes(&self) -> Result<u64> {
        status_bytes(&format!("/proc/{}/smaps_rollup", self.child.id()), "Pss:")
    }

    /// Peak memory of the child.
    pub fn finish(mut self) -> Result<u64> {
        self.told = None;
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        ensure!(self.child.wait()?.success(), "the child failed");
        Ok(line.trim().parse()?)
    }
}

/// A session with its input.
struct Run {
    model: Model,
    session: Session,
    input: Tensor,
}

impl Run {
    fn new(model: Model, threads: usize) -> Result<Self> {
        let session = Session::new(&model, &SessionOptions { threads, seed: 0 })?;
        let ones: Vec<u8> = (0..WIDTH).flat_map(|_| 1f32.to_le_bytes()).collect();
        Ok(Run { model, session, input: Tensor::from_bytes(DType::F32, &[1, WIDTH as usize], &ones)? })
    }

    /// Seconds of a pass.
    fn pass(&mut self) -> Result<f64> {
        let begun = Instant::now();
        self.session.run(None, vec![("h0".to_string(), self.input.clone().into())])?;
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// Within a budget.
fn within(file: &Path, budget: u64) -> Result<Model> {
    Ok(open_with(file, OpenOptions { memory_bytes: Some(budget.max(WORKING_BYTES)), ..OpenOptions::default() })?)
}

/// The child: a pass for each line that it is told.
pub fn run_here(file: &Path, held: &str, threads: usize) -> Result<()> {
    let model = match held {
        "map" => open_with(file, OpenOptions { resident: Resident::Map, ..OpenOptions::default() })?,
        bytes => within(file, bytes.parse()?)?,
    };
    let mut run = Run::new(model, threads)?;
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line)? > 0 {
        let seconds = run.pass()?;
        let report = run.session.last_pass().unwrap_or_default();
        let pinned = run.model.residency().map_or(0, |residency| residency.pinned_bytes);
        println!("{seconds} {} {} {pinned}", report.bytes_read(), report.stalled().as_secs_f64());
        line.clear();
    }
    println!("{}", status_bytes("/proc/self/status", "VmHWM:")?);
    Ok(())
}

/// Seconds of passes in turn: weights in one contiguous copy, and within a budget in which all fit.
pub fn side_by_side(file: &Path, budget: u64, threads: usize, passes: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut copy, mut fits) = (Run::new(open(file)?, threads)?, Run::new(within(file, budget)?, threads)?);
    copy.pass()?;
    fits.pass()?;
    let mut seconds = (Vec::new(), Vec::new());
    for pass in 0..passes {
        // Whoever is second finds a warmer machine: take turns.
        if pass % 2 == 0 {
            seconds.0.push(copy.pass()?);
            seconds.1.push(fits.pass()?);
        } else {
            seconds.1.push(fits.pass()?);
            seconds.0.push(copy.pass()?);
        }
        let report = fits.session.last_pass().context("the model is not streamed")?;
        ensure!((report.bytes_read(), report.checked_bytes) == (0, 0), "a pass over weights that fit reads");
    }
    Ok(seconds)
}

fn status_bytes(path: &str, field: &str) -> Result<u64> {
    let status = std::fs::read_to_string(path)?;
    let value = status.lines().find_map(|line| line.strip_prefix(field)).with_context(|| format!("no {field}"))?;
    Ok(value.trim().trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}
