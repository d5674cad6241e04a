//! When leaving zeros out pays: products of one row with panels without zeros, beside the same with them, in the same rounds.
//!
//! `cargo bench -p ipuc-kernels --bench sparse [-- FILTER]`; `THREADS=n` sets the number of threads (all by default), `ROUNDS=n`
//! how often each row is measured, `IPUC_INSTRUCTIONS=name` the instruction set. Each line has the type of the weights, how
//! many bytes they take with zeros (weights that follow one another as the layers of a model do), the share of values, the
//! bytes without zeros as a share of those with them, and the time as a share: below 1 leaving zeros out is faster.
//! Run as a test (`cargo test --benches`) it takes each row once on small operands.

use std::{hint::black_box, time::Instant};

use ipuc_kernels::{
    matrix::{Matrix, MatrixMut},
    product::{
        CodeType, CodedLayout, CodedPiece, CodedPlane, CodedRole, DynamicRows, Epilogue, OpenPanels, PanelElements,
        PanelPiece, PlaneType, Rounded, SparseLayout, Start, dynamic_product, panels_product, sparse_dynamic_product,
        sparse_product,
    },
    simd::Instructions,
    testing::numbers,
};
use ipuc_pages::Pages;

const INPUTS: usize = 2048;
const OUTPUTS: usize = 2048;

/// A weight with zeros and without.
struct Weight {
    dense: Pages,
    sparse: Pages,
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

/// How zeros lie.
#[derive(Clone, Copy)]
enum Pattern {
    /// Of each four inputs two are not zero.
    TwoOfFour,
    /// At random, with this share of values in 100.
    Share(u64),
    /// Whole lines at random, with this share of lines that have values in 100.
    Lines(u64),
}

impl Pattern {
    fn name(self) -> String {
        match self {
            Pattern::TwoOfFour => "2:4".to_string(),
            Pattern::Share(share) => format!("{share} %"),
            Pattern::Lines(share) => format!("{share} % of lines"),
        }
    }
}

/// Bytes of panels of codes: a plane of scales, then codes, where an output has four inputs in a word.
fn codes(pattern: Pattern, state: &mut u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(INPUTS * OUTPUTS + OUTPUTS * 4);
    for _ in 0..OUTPUTS / 16 {
        (0..16).for_each(|_| bytes.extend(0.01f32.to_le_bytes()));
        let mut line = true;
        for place in 0..INPUTS / 4 * 16 {
            let chosen = random(state);
            if let Pattern::Lines(share) = pattern
                && place % 16 == 0
            {
                line = random(state) % 100 < share;
            }
            let kept = match pattern {
                Pattern::TwoOfFour => [0b0011, 0b0101, 0b1001, 0b0110, 0b1010, 0b1100][(chosen % 6) as usize],
                Pattern::Share(share) => {
                    (0..4).fold(0, |kept, bit| kept | usize::from(random(state) % 100 < share) << bit)
                }
                Pattern::Lines(_) => {
                    if line {
                        0b1111
                    } else {
                        0
                    }
                }
            };
            bytes
                .extend((0..4).map(|bit| if kept >> bit & 1 == 1 { 1 + (chosen >> (8 + bit)) as u8 % 100 } else { 0 }));
        }
    }
    bytes
}

/// Bytes of panels of f32.
fn floats(pattern: Pattern, state: &mut u64) -> Vec<u8> {
    let coded = codes(pattern, state);
    let mut bytes = Vec::with_capacity(INPUTS * OUTPUTS * 4);
    for panel in coded.chunks(INPUTS * 16 + 64) {
        for words in panel[64..].chunks(64) {
            for input in 0..4 {
                (0..16).for_each(|output| bytes.extend(f32::from(words[output * 4 + input]).to_le_bytes()));
            }
        }
    }
    bytes
}

/// The most values in a record of `bytes` bytes, rounded up to whole lines.
fn capacity(panels: &[u8], panel: usize, planes: usize, width: usize) -> usize {
    let record = 256 * 16 * width;
    let records = panels.chunks(panel).flat_map(|panel| panel[planes..].chunks(record));
    let values = records.map(|record| record.chunks(width).filter(|value| value.iter().any(|&byte| byte != 0)).count());
    values.max().unwrap_or(0).next_multiple_of(64 / width)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = !arguments.iter().any(|argument| argument == "--bench");
    let filter = arguments.iter().find(|argument| !argument.starts_with("--")).cloned().unwrap_or_default();
    let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<usize>().ok());
    let threads = variable("THREADS").unwrap_or(0);
    let team = ipuc_kernels::team::Team::new(threads).expect("threads");
    let rounds = if quick { 1 } else { variable("ROUNDS").unwrap_or(15) };
    let patterns = [2, 3, 4, 5, 6, 7, 8].map(|tenths| Pattern::Share(tenths * 10));
    for name in ["i8", "f32"] {
        let layers: &[usize] = if quick {
            &[1]
        } else if name == "i8" {
            &[1, 8, 96]
        } else {
            &[1, 4, 32]
        };
        let lines = [3, 5, 6, 7, 8, 9].map(|tenths| Pattern::Lines(tenths * 10));
        for pattern in [Pattern::TwoOfFour].into_iter().chain(patterns).chain(lines) {
            for &layers in layers {
                let label = format!("{name} {} {} layers", pattern.name(), layers);
                if label.contains(&filter) {
                    team.run(|| measure(name, pattern, layers, rounds));
                }
            }
        }
    }
}

#[allow(clippy::print_stdout, reason = "the report of a benchmark")]
fn measure(name: &str, pattern: Pattern, layers: usize, rounds: usize) {
    let instructions = Instructions::best();
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let planes = [CodedPlane { role: CodedRole::Scale, element: PlaneType::F32, block: 0 }];
    let layout = CodedLayout::new(CodeType::I8, INPUTS, 256, &planes, Rounded::F32);
    let is_coded = name == "i8";
    let dense = if is_coded { codes(pattern, &mut state) } else { floats(pattern, &mut state) };
    let sparse = if is_coded {
        SparseLayout::codes(layout.clone(), capacity(&dense, INPUTS * 16 + 64, 64, 1))
    } else {
        SparseLayout::values(INPUTS, 4, 1, capacity(&dense, INPUTS * 64, 0, 4))
    };
    let sparse = if let Pattern::Lines(_) = pattern { sparse.in_lines() } else { sparse };
    let packed = sparse.pack(&dense);
    let weights: Vec<Weight> = (0..layers).map(|_| Weight { dense: pages(&dense), sparse: pages(&packed) }).collect();
    let values = numbers(5, INPUTS);
    let x = Matrix::new(&values, 1, INPUTS);
    let rows = DynamicRows::new(instructions, x, 0);
    let panels = OUTPUTS / 16;
    let multiply = |piece: &CodedPiece<'_>, out: MatrixMut<'_>, epilogue: Epilogue<'_>| {
        if is_coded {
            let (pieces, mut open) = (std::slice::from_ref(piece), OpenPanels::default());
            dynamic_product(instructions, &rows, &layout, pieces, &mut open, out, epilogue);
        } else {
            let elements = PanelElements::F32(bytemuck::cast_slice(piece.bytes));
            let piece = PanelPiece { panels: piece.panels.clone(), inputs: piece.inputs.clone(), elements };
            panels_product(instructions, x, &[piece], out, Start::Zero, epilogue);
        }
        Ok::<(), ()>(())
    };
    let mut out = vec![0.0; OUTPUTS];
    let (mut with_zeros, mut without) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..rounds {
        let start = Instant::now();
        for weight in &weights {
            let piece = CodedPiece { panels: 0..panels, inputs: 0..INPUTS, bytes: &weight.dense };
            let done = multiply(&piece, MatrixMut::new(&mut out, 1, OUTPUTS), Epilogue::default());
            black_box((&mut out, done.is_ok()));
        }
        with_zeros = with_zeros.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        for weight in &weights {
            let pieces = [CodedPiece { panels: 0..panels, inputs: 0..INPUTS, bytes: &weight.sparse }];
            let target = MatrixMut::new(&mut out, 1, OUTPUTS);
            if is_coded {
                sparse_dynamic_product(instructions, &rows, &sparse, &pieces, target, Epilogue::default());
            } else {
                let done = sparse_product(instructions, &sparse, &pieces, target, Epilogue::default(), &multiply);
                black_box(done.is_ok());
            }
            black_box(&mut out);
        }
        without = without.min(start.elapsed().as_secs_f64());
    }
    let bytes = (layers * dense.len()) as f64;
    println!(
        "{name:4} {:6.0} MiB  {:5}  bytes {:.3}  time {:.3}  ({:.1} GB/s with zeros)",
        bytes / f64::from(1 << 20),
        pattern.name(),
        packed.len() as f64 / dense.len() as f64,
        without / with_zeros,
        bytes / with_zeros / 1e9,
    );
}
