//! What leaving inputs out saves: products of one row with a weight that lies input by input, beside the same in panels, and beside
//! merely reading the bytes that are not left out, in the same rounds.
//!
//! `cargo bench -p ipuc-kernels --bench input_major [-- FILTER]`; `THREADS=n` sets the number of threads (all by default), `ROUNDS=n`
//! how often each row is measured, `RUN_BYTES=n` the bytes of a run of outputs, `IPUC_INSTRUCTIONS=name` the instruction set. Each
//! line has the weight, the share of zeros at random, the speed beside the product with panels (above 1 leaving out is faster),
//! and beside reading. `block` is a block of two layers with ReLU between them, whose zeros come of the data.
//! Run as a test (`cargo test --benches`) it takes each row once on small operands.

use std::{hint::black_box, time::Instant};

use ipuc_kernels::{
    matrix::{Matrix, MatrixMut},
    product::{
        CodeType, CodedLayout, CodedPiece, CodedPlane, CodedRole, DynamicRows, Epilogue, InputMajorLayout,
        InputMajorProduct, OpenPanels, PanelElements, PanelPiece, PlaneType, Rounded, RunElements, RunPiece, RunRows,
        Start, coded_product, dynamic_product, panels_product,
    },
    simd::Instructions,
    team,
    testing::numbers,
    threads,
};
use ipuc_pages::Pages;

/// What the weight is made of.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Codes of 8 bits with a scale for each output.
    I8,
    /// Codes of 4 bits with a scale for each 128 inputs.
    I4,
    F32,
}

/// Inputs and outputs of a layer, and how many layers there are.
#[derive(Clone, Copy)]
struct Size {
    inputs: usize,
    outputs: usize,
    layers: usize,
}

/// A weight as panels and input by input.
struct Weight {
    dense: Pages,
    runs: Pages,
}

fn pages(bytes: &[u8]) -> Pages {
    let mut pages = Pages::zeroed(bytes.len()).expect("memory");
    pages.copy_from_slice(bytes);
    pages
}

/// Numbers that look random.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// How a weight lies.
struct Layout {
    kind: Kind,
    size: Size,
    codes: Option<CodedLayout>,
    runs: InputMajorLayout,
}

impl Layout {
    fn new(kind: Kind, size: Size, run_bytes: usize) -> Self {
        let scale = |element, block| CodedPlane { role: CodedRole::Scale, element, block };
        let codes = match kind {
            Kind::I8 => Some((CodeType::I8, scale(PlaneType::F32, 0))),
            Kind::I4 => Some((CodeType::I4, scale(PlaneType::F16, 128))),
            Kind::F32 => None,
        };
        let codes = codes.map(|(code, plane)| CodedLayout::new(code, size.inputs, 256, &[plane], Rounded::F32));
        let elements = codes.clone().map_or(RunElements::F32, RunElements::Codes);
        let bits = match kind {
            Kind::I8 => 8,
            Kind::I4 => 4,
            Kind::F32 => 32,
        };
        let run = (run_bytes * 8 / bits).min(size.outputs);
        Self { kind, size, codes, runs: InputMajorLayout::new(size.inputs, run, elements) }
    }

    /// Whole panels.
    fn panels(&self, state: &mut u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..self.size.outputs / 16 {
            for first in (0..self.size.inputs).step_by(256) {
                match self.kind {
                    Kind::I8 if first == 0 => (0..16).for_each(|_| bytes.extend(0.01f32.to_le_bytes())),
                    Kind::I8 => {}
                    Kind::I4 => (0..32).for_each(|_| bytes.extend(half::f16::from_f32(0.02).to_le_bytes())),
                    Kind::F32 => {
                        (0..256 * 16).for_each(|_| bytes.extend(((random(state) % 200) as f32 - 99.5).to_le_bytes()));
                        continue;
                    }
                }
                let words = if self.kind == Kind::I8 { 256 * 2 } else { 256 };
                (0..words).for_each(|_| bytes.extend(random(state).to_le_bytes()));
            }
        }
        bytes
    }

    /// The product with panels.
    fn dense(&self, x: Matrix<'_>, weight: &Weight, out: &mut [f32], epilogue: Epilogue<'_>) {
        let best = Instructions::best();
        let (panels, inputs) = (0..self.size.outputs / 16, 0..self.size.inputs);
        let out = MatrixMut::new(out, 1, self.size.outputs);
        match &self.codes {
            None => {
                let elements = PanelElements::F32(bytemuck::cast_slice(&weight.dense));
                let piece = PanelPiece { panels, inputs, elements };
                panels_product(best, x, &[piece], out, Start::Zero, epilogue);
            }
            Some(layout) => {
                let pieces = [CodedPiece { panels, inputs, bytes: &weight.dense }];
                let mut open = OpenPanels::default();
                if std::env::var_os("FLOATS").is_some() {
                    coded_product(best, x, layout, &pieces, &mut open, out, Start::Zero, epilogue);
                } else {
                    dynamic_product(best, &DynamicRows::new(best, x, 0), layout, &pieces, &mut open, out, epilogue);
                }
            }
        }
    }

    /// The product that leaves inputs out.
    fn left_out(&self, x: Matrix<'_>, weight: &Weight, out: &mut [f32], epilogue: Epilogue<'_>) {
        let best = Instructions::best();
        let runs = 0..self.size.outputs.div_ceil(self.runs.run());
        let pieces = [RunPiece { runs, inputs: 0..self.size.inputs, bytes: &weight.runs }];
        let out = MatrixMut::new(out, 1, self.size.outputs);
        let mut product = InputMajorProduct::new(best, &self.runs);
        if self.codes.is_some() && std::env::var_os("FLOATS").is_none() {
            product.add(RunRows::Codes(&DynamicRows::new(best, x, 0)), &pieces, out, epilogue);
        } else {
            product.add(RunRows::Floats(x), &pieces, out, epilogue);
        }
    }

    /// Reads what belongs to the inputs that are not zero.
    fn read(&self, x: &[f32], weight: &Weight) -> u64 {
        let row = self.runs.row_bytes();
        let active: Vec<usize> = (0..x.len()).filter(|&input| x[input] != 0.0).collect();
        let run_bytes = self.runs.run_bytes(&(0..self.size.inputs));
        let tasks: Vec<(&[u8], usize)> =
            weight.runs.chunks(run_bytes).map(|run| (run, run.len() - row * self.size.inputs)).collect();
        let sum = std::sync::atomic::AtomicU64::new(0);
        threads::each(tasks, |(run, planes)| {
            let words = |input: usize| run[planes + input * row..][..row].as_chunks::<64>().0;
            let mut sums = [0u64; 8];
            for &input in &active {
                for line in words(input) {
                    for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                        *sum ^= u64::from_le_bytes(*word);
                    }
                }
            }
            sum.fetch_add(sums.iter().fold(0, |all, sum| all.wrapping_add(*sum)), std::sync::atomic::Ordering::Relaxed);
        });
        sum.into_inner()
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = !arguments.iter().any(|argument| argument == "--bench");
    let filter = arguments.iter().find(|argument| !argument.starts_with("--")).cloned().unwrap_or_default();
    let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<usize>().ok());
    let team = team::Team::new(variable("THREADS").unwrap_or(0)).expect("threads");
    let rounds = if quick { 1 } else { variable("ROUNDS").unwrap_or(9) };
    let run_bytes = variable("RUN_BYTES").unwrap_or(2048);
    let size = |layers| {
        if quick {
            Size { inputs: 512, outputs: 1024, layers: 1 }
        } else {
            Size { inputs: 4096, outputs: 4096, layers }
        }
    };
    for (name, kind, layers) in [
        ("i8", Kind::I8, 48),
        ("i8 near", Kind::I8, 1),
        ("i4", Kind::I4, 96),
        ("f32", Kind::F32, 12),
        ("f32 near", Kind::F32, 1),
    ] {
        if name.contains(&filter) {
            team.run(|| random_zeros(name, &Layout::new(kind, size(layers), run_bytes), rounds));
        }
    }
    if "block".contains(&filter) {
        team.run(|| block(size(24), run_bytes, rounds));
    }
}

fn weights(layout: &Layout, state: &mut u64) -> Vec<Weight> {
    let panels = layout.panels(state);
    let runs = layout.runs.pack(&panels);
    (0..layout.size.layers).map(|_| Weight { dense: pages(&panels), runs: pages(&runs) }).collect()
}

#[allow(clippy::print_stdout, reason = "the report of a benchmark")]
fn random_zeros(name: &str, layout: &Layout, rounds: usize) {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let Size { inputs, outputs, .. } = layout.size;
    let weights = weights(layout, &mut state);
    let mebibytes = weights.iter().map(|weight| weight.dense.len()).sum::<usize>() >> 20;
    let mut out = vec![0.0; outputs];
    for percent in [0, 10, 20, 30, 50, 70, 90, 95] {
        let mut x = numbers(5, inputs);
        x.iter_mut().for_each(|x| *x = if random(&mut state) % 100 < percent { 0.0 } else { *x });
        let matrix = Matrix::new(&x, 1, inputs);
        let (mut dense, mut left_out, mut read) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let start = Instant::now();
            weights.iter().for_each(|weight| layout.dense(matrix, weight, black_box(&mut out), Epilogue::default()));
            dense.push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            weights.iter().for_each(|weight| layout.left_out(matrix, weight, black_box(&mut out), Epilogue::default()));
            left_out.push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            weights.iter().for_each(|weight| {
                black_box(layout.read(&x, weight));
            });
            read.push(start.elapsed().as_secs_f64());
        }
        let (dense, left_out, read) = (median(dense), median(left_out), median(read));
        println!(
            "{name:8} {mebibytes:4} MiB  {percent:2} % zeros  {:5.2} times the speed of panels ({:.1} GB/s), {:.2} that of reading",
            dense / left_out,
            mebibytes as f64 * 1.048_576e-3 / dense,
            read / left_out,
        );
    }
}

/// `relu(x · v) · w`, where the bias of the first layer decides how many of its results are zero.
#[allow(clippy::print_stdout, reason = "the report of a benchmark")]
fn block(size: Size, run_bytes: usize, rounds: usize) {
    let mut state = 0x1234_5678_9abc_def1;
    let layout = Layout::new(Kind::I8, size, run_bytes);
    let (first, second) = (weights(&layout, &mut state), weights(&layout, &mut state));
    let Size { inputs, outputs, .. } = size;
    let x = numbers(7, inputs);
    let x = Matrix::new(&x, 1, inputs);
    let (mut hidden, mut out) = (vec![0.0; outputs], vec![0.0; outputs]);
    layout.dense(x, &first[0], &mut hidden, Epilogue::default());
    hidden.sort_by(f32::total_cmp);
    for percent in [50, 70, 90] {
        let bias = vec![-hidden[(outputs * percent / 100).min(outputs - 1)]; outputs];
        let relu = Epilogue { clamp: Some((0.0, f32::INFINITY)), ..Epilogue::bias(&bias) };
        let mut found = vec![0.0; outputs];
        let (mut dense, mut left_out, mut half) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let start = Instant::now();
            for (first, second) in first.iter().zip(&second) {
                layout.dense(x, first, &mut found, relu);
                layout.dense(Matrix::new(&found, 1, outputs), second, black_box(&mut out), Epilogue::default());
            }
            dense.push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            for (first, second) in first.iter().zip(&second) {
                layout.dense(x, first, &mut found, relu);
                layout.left_out(Matrix::new(&found, 1, outputs), second, black_box(&mut out), Epilogue::default());
            }
            left_out.push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            first.iter().for_each(|first| layout.dense(x, first, black_box(&mut found), relu));
            half.push(start.elapsed().as_secs_f64());
        }
        let zeros = found.iter().filter(|value| **value == 0.0).count() as f64 / outputs as f64;
        let (dense, left_out, half) = (median(dense), median(left_out), median(half));
        let ideal = half + (dense - half) * (1.0 - zeros);
        println!(
            "block    {:.0} % zeros from data  {:.2} times the speed of panels; {:.2} were ideal",
            100.0 * zeros,
            dense / left_out,
            dense / ideal
        );
    }
}
