//! Speed of the numeric kernels as ratios to the limits of this machine, measured side by side in the same rounds:
//! bytes of weights per second to reading the same bytes, operations per second to fused multiply-adds from registers.
//! Of several rounds the best of either counts, as other work on the machine only ever slows one down; of products with codes
//! the median.
//!
//! `cargo bench -p ipuc-kernels --bench kernels [-- FILTER]`; `THREADS=n` sets the number of threads (all by default),
//! `ROUNDS=n` how often each row is measured, `IPUC_INSTRUCTIONS=name` the instruction set, `INPUTS=n` the inputs of weights of
//! codes (4096), `BLOCK=n` how many activations share a scale where they are rounded (all of a row).
//! Run as a test (`cargo test --benches`) it takes each row once on small operands.

use std::time::Instant;

use half::{bf16, f16};
use ipuc_kernels::{
    convolution::{
        BlockedPlan, ConvolutionEpilogue, ConvolutionShape, ConvolutionWeight, InputOrder, TransposedShape,
        blocked_convolution, convolution, depthwise, transposed,
    },
    elementwise::{self, VectorFunction, functions},
    limits,
    matrix::{Matrix, MatrixMut},
    product::{
        CodeType, CodedLayout, CodedPiece, CodedPlane, CodedRole, DynamicRows, Epilogue, OpenPanels, PanelElements,
        PanelPiece, PlaneType, Rounded, Start, coded_product, dynamic_product, panels_product,
    },
    simd::{Instructions, LANES},
    team::{self, Team},
    window::WindowAxis,
};
use ipuc_pages::Pages;

struct Bench {
    instructions: Instructions,
    filter: String,
    quick: bool,
}

impl Bench {
    /// Seconds to read `bytes`.
    fn read(&self, values: &[f32]) -> f64 {
        seconds(|| limits::read(self.instructions, values))
    }

    /// Fused multiply-adds a second.
    fn peak(&self) -> f64 {
        let mut operations = 0;
        let time =
            seconds(|| operations = limits::multiply_floats(self.instructions, if self.quick { 1 } else { 300_000 }));
        operations as f64 / time
    }

    fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    fn rounds(&self) -> usize {
        if self.quick { 1 } else { variable("ROUNDS").unwrap_or(9) }
    }

    /// A product whose time is that of reading the weight.
    fn memory_bound(&self, name: &str, m: usize, bytes: &[f32], element: &str) {
        let name = format!("{name} {element} m={m}");
        if !self.wants(&name) {
            return;
        }
        let k = if self.quick { 512 } else { 4096 };
        let elements = match element {
            "f32" => PanelElements::F32(bytes),
            "f16" => PanelElements::F16(bytemuck::cast_slice::<f32, f16>(bytes)),
            _ => PanelElements::Bf16(bytemuck::cast_slice::<f32, bf16>(bytes)),
        };
        let n = elements.len() / k;
        let x = vec![0.5; m * k];
        let mut out = vec![0.0; m * n];
        let pieces = [PanelPiece::whole(n, k, elements)];
        let (mut limit, mut best) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..self.rounds() {
            limit = limit.min(self.read(bytes));
            best = best.min(seconds(|| {
                let (x, out) = (Matrix::new(&x, m, k), MatrixMut::new(&mut out, m, n));
                panels_product(self.instructions, x, &pieces, out, Start::Zero, Epilogue::default());
            }));
        }
        report(&name, size_of_val(bytes) as f64 / best / 1e9, "GB/s", limit / best, "of reading");
    }

    /// Products with codes, whose time is that of reading them: the median of rounds, reading beside it in each.
    fn coded(&self, bytes: &[u8], code: CodeType, planes: &[CodedPlane], m: usize, dynamic: bool) {
        let activations = if dynamic { "dynamic" } else { "f32" };
        let plane = planes[planes.len() - 1];
        let name = format!("codes {code:?} {:?} block {} {activations} m={m}", plane.element, plane.block);
        if !self.wants(&name) {
            return;
        }
        let k = if self.quick { 512 } else { variable("INPUTS").unwrap_or(4096) };
        let cut = if plane.block == 0 { 256 } else { plane.block * (64 / plane.element.row_bytes()).max(1) };
        let layout = CodedLayout::new(code, k, cut, planes, Rounded::F32);
        let panel = layout.panel_bytes(&(0..k));
        let panels = bytes.len() / panel;
        let bytes = &bytes[..panels * panel];
        let n = panels * LANES;
        let (x, mut out) = (values(m * k), vec![0.0; m * n]);
        let pieces = [CodedPiece { panels: 0..panels, inputs: 0..k, bytes }];
        let (mut limits, mut times) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds() {
            limits.push(self.read(bytemuck::cast_slice(bytes)));
            times.push(seconds(|| {
                let (x, out) = (Matrix::new(&x, m, k), MatrixMut::new(&mut out, m, n));
                let mut open = OpenPanels::default();
                let epilogue = Epilogue::default();
                if dynamic {
                    let rows = DynamicRows::new(self.instructions, x, variable("BLOCK").unwrap_or(0));
                    dynamic_product(self.instructions, &rows, &layout, &pieces, &mut open, out, epilogue);
                } else {
                    let start = Start::Zero;
                    coded_product(self.instructions, x, &layout, &pieces, &mut open, out, start, epilogue);
                }
            }));
        }
        let (limit, time) = (median(limits), median(times));
        report(&name, bytes.len() as f64 / time / 1e9, "GB/s", limit / time, "of reading");
    }

    /// Products one after another, each of which is over within microseconds: the weights of 30 layers, which no near cache holds.
    fn short_steps(&self, bytes: &[u8]) {
        let planes = [
            CodedPlane { role: CodedRole::ZeroPoint, element: PlaneType::U4, block: 0 },
            CodedPlane { role: CodedRole::Scale, element: PlaneType::F32, block: 32 },
        ];
        for (k, n) in [(576, 1536), (576, 960), (576, 576), (1536, 576)] {
            let name = format!("steps {k} by {n}");
            if !self.wants(&name) {
                continue;
            }
            let layout = CodedLayout::new(CodeType::U4, k, 32, &planes, Rounded::F32);
            let (panels, x, mut out) = (n / LANES, values(k), vec![0.0; n]);
            let weight = layout.panel_bytes(&(0..k)) * panels;
            let count = (64 << 20) / weight;
            let bytes = &bytes[..count * weight];
            let (mut limits, mut times) = (Vec::new(), Vec::new());
            for _ in 0..self.rounds() {
                limits.push(self.read(bytemuck::cast_slice(bytes)));
                times.push(seconds(|| {
                    for bytes in bytes.chunks(weight) {
                        let (x, out) = (Matrix::new(&x, 1, k), MatrixMut::new(&mut out, 1, n));
                        let pieces = [CodedPiece { panels: 0..panels, inputs: 0..k, bytes }];
                        let mut open = OpenPanels::default();
                        let rows = DynamicRows::new(self.instructions, x, 32);
                        dynamic_product(
                            self.instructions,
                            &rows,
                            &layout,
                            &pieces,
                            &mut open,
                            out,
                            Epilogue::default(),
                        );
                    }
                }));
            }
            let (limit, time) = (median(limits), median(times));
            let microseconds = time / count as f64 * 1e6;
            report(
                &format!("{name} {microseconds:.1} us"),
                bytes.len() as f64 / time / 1e9,
                "GB/s",
                limit / time,
                "of reading",
            );
        }
    }

    /// A product whose time is that of its operations.
    fn operation_bound(&self, name: &str, operations: usize, mut run: impl FnMut()) {
        if !self.wants(name) {
            return;
        }
        let (mut limit, mut best) = (0.0_f64, 0.0_f64);
        for _ in 0..self.rounds() {
            limit = limit.max(self.peak());
            best = best.max(operations as f64 / seconds(&mut run));
        }
        report(name, 2.0 * best / 1e9, "GFLOP/s", best / limit, "of peak");
    }

    fn products(&self) {
        let (k, n): (usize, usize) = if self.quick { (300, 40) } else { (2048, 2048) };
        let weight = values(k * n.next_multiple_of(16));
        for m in [16, 64, 128, 512] {
            for element in ["f32", "f16", "bf16"] {
                let narrow: Vec<f16> = weight.iter().map(|&value| f16::from_f32(value)).collect();
                let brain: Vec<bf16> = weight.iter().map(|&value| bf16::from_f32(value)).collect();
                let elements = match element {
                    "f32" => PanelElements::F32(&weight),
                    "f16" => PanelElements::F16(&narrow),
                    _ => PanelElements::Bf16(&brain),
                };
                let x = values(m * k);
                let mut out = vec![0.0; m * n];
                let pieces = [PanelPiece::whole(n, k, elements)];
                self.operation_bound(&format!("product {element} m={m}"), m * n * k, || {
                    let out = MatrixMut::new(&mut out, m, n);
                    let x = Matrix::new(&x, m, k);
                    panels_product(self.instructions, x, &pieces, out, Start::Zero, Epilogue::default());
                });
            }
        }
    }

    /// Convolutions over channels in blocks with bias and ReLU, of ResNet-50 and MobileNet: channels in and out, extent, kernel, stride; as many groups as
    /// channels where there is one channel in.
    fn blocked_convolutions(&self) {
        let shapes = [
            (3, 64, 224, 7, 2),
            (3, 32, 224, 3, 2),
            (3, 32, 112, 3, 2),
            (3, 32, 56, 3, 2),
            (32, 32, 112, 3, 2),
            (32, 32, 56, 3, 2),
            (64, 64, 7, 1, 1),
            (64, 64, 56, 1, 1),
            (64, 64, 56, 3, 1),
            (64, 256, 56, 1, 1),
            (96, 192, 14, 1, 1),
            (96, 24, 56, 1, 1),
            (128, 128, 28, 3, 1),
            (144, 32, 28, 1, 1),
            (256, 128, 56, 1, 1),
            (256, 512, 56, 1, 2),
            (256, 256, 28, 3, 2),
            (256, 256, 14, 3, 1),
            (576, 96, 14, 1, 1),
            (1024, 256, 14, 1, 1),
            (512, 512, 14, 3, 2),
            (512, 512, 7, 3, 1),
            (672, 112, 14, 1, 1),
            (128, 512, 7, 1, 1),
            (512, 128, 7, 1, 1),
            (1152, 192, 7, 1, 1),
            (960, 320, 7, 1, 1),
            (2048, 512, 7, 1, 1),
            (1, 32, 112, 3, 1),
            (1, 144, 56, 3, 2),
            (1, 144, 56, 3, 1),
            (1, 144, 56, 5, 2),
            (1, 240, 28, 5, 1),
            (1, 240, 28, 3, 2),
            (1, 384, 14, 3, 1),
            (1, 672, 14, 5, 1),
            (1, 576, 14, 5, 2),
            (1, 576, 14, 3, 2),
            (1, 960, 7, 3, 1),
        ];
        for (inputs, outputs, extent, kernel, stride) in shapes {
            let groups = if inputs == 1 { outputs } else { 1 };
            let channels = inputs * groups;
            let name = format!("blocks {channels}x{extent}x{extent} to {outputs}, {kernel}x{kernel} by {stride}");
            let extent = if self.quick { extent / 7 } else { extent };
            let pad = kernel / 2;
            let output = (extent + 2 * pad - kernel) / stride + 1;
            let axis = WindowAxis { input: extent, output, kernel, stride, dilation: 1, pad_begin: pad, pad_end: pad };
            let group_outputs = outputs / groups;
            let shape = ConvolutionShape { batch: 1, groups, group_inputs: inputs, group_outputs, axes: vec![axis; 2] };
            let (x, weight) = (values(shape.inputs()), values(shape.depth() * outputs.next_multiple_of(LANES)));
            let pieces = [PanelPiece::whole(outputs, shape.depth(), PanelElements::F32(&weight))];
            let weight = match groups {
                1 => ConvolutionWeight::Panels(&pieces),
                _ => ConvolutionWeight::Plain(&weight[..shape.depth() * outputs]),
            };
            // The channels of images come one after another.
            let order = if channels == 3 { InputOrder::Planes } else { InputOrder::Blocks };
            let mut out = vec![0.0; shape.outputs()];
            let operations = shape.outputs() * shape.depth();
            let plan = BlockedPlan::new(shape, order);
            let bias = values(outputs);
            let epilogue = ConvolutionEpilogue {
                bias: Some(&bias),
                clamp: Some((0.0, f32::INFINITY)),
                ..ConvolutionEpilogue::default()
            };
            self.operation_bound(&name, operations, || {
                blocked_convolution(self.instructions, &plan, &x, weight, &mut out, epilogue);
            });
        }
    }

    /// Convolutions of ResNet-50 and MobileNet: channels in and out, extent, kernel, stride.
    fn convolutions(&self) {
        let shapes = [
            (3, 64, 224, 7, 2),
            (64, 64, 56, 1, 1),
            (64, 64, 56, 3, 1),
            (64, 256, 56, 1, 1),
            (128, 128, 28, 3, 1),
            (256, 128, 56, 1, 1),
            (256, 512, 56, 1, 2),
            (256, 256, 28, 3, 2),
            (256, 256, 14, 3, 1),
            (1024, 256, 14, 1, 1),
            (512, 512, 7, 3, 1),
            (2048, 512, 7, 1, 1),
        ];
        for (inputs, outputs, extent, kernel, stride) in shapes {
            let name = format!("convolution {inputs}x{extent}x{extent} to {outputs}, {kernel}x{kernel} by {stride}");
            let extent = if self.quick { extent / 7 } else { extent };
            let pad = kernel / 2;
            let output = (extent + 2 * pad - kernel) / stride + 1;
            let axis = WindowAxis { input: extent, output, kernel, stride, dilation: 1, pad_begin: pad, pad_end: pad };
            let shape = ConvolutionShape {
                batch: 1,
                groups: 1,
                group_inputs: inputs,
                group_outputs: outputs,
                axes: vec![axis; 2],
            };
            let (x, weight) = (values(shape.inputs()), values(shape.depth() * outputs));
            let pieces = [PanelPiece::whole(outputs, shape.depth(), PanelElements::F32(&weight))];
            let mut out = vec![0.0; shape.outputs()];
            self.operation_bound(&name, shape.outputs() * shape.depth(), || {
                let weight = ConvolutionWeight::Panels(&pieces);
                convolution(self.instructions, &shape, &x, weight, &mut out, ConvolutionEpilogue::default());
            });
        }
        self.blocked_convolutions();
        for (channels, extent, stride) in [(32, 112, 1), (144, 56, 2), (384, 14, 1), (960, 7, 1)] {
            let name = format!("depthwise {channels}x{extent}x{extent}, 3x3 by {stride}");
            let output = (extent - 1) / stride + 1;
            let axis = WindowAxis { input: extent, output, kernel: 3, stride, dilation: 1, pad_begin: 1, pad_end: 1 };
            let shape =
                ConvolutionShape { batch: 1, groups: channels, group_inputs: 1, group_outputs: 1, axes: vec![axis; 2] };
            let (x, weight) = (values(shape.inputs()), values(9 * channels));
            let mut out = vec![0.0; shape.outputs()];
            self.operation_bound(&name, shape.outputs() * 9, || {
                depthwise(self.instructions, &shape, &x, &weight, &mut out, ConvolutionEpilogue::default());
            });
        }
        for (inputs, outputs, extent, kernel, stride) in [(256, 128, 28, 2, 2), (128, 64, 32, 4, 2)] {
            let name = format!("transposed {inputs}x{extent}x{extent} to {outputs}, {kernel}x{kernel} by {stride}");
            let pad = (kernel - stride) / 2;
            let input = extent * stride;
            let axis = WindowAxis { input, output: extent, kernel, stride, dilation: 1, pad_begin: pad, pad_end: pad };
            let shape = TransposedShape {
                batch: 1,
                groups: 1,
                group_inputs: inputs,
                group_outputs: outputs,
                axes: vec![axis; 2],
            };
            let (x, weight) = (values(shape.inputs()), shape.pack(&values(inputs * outputs * kernel * kernel)));
            let mut out = vec![0.0; shape.outputs()];
            self.operation_bound(&name, shape.inputs() * outputs * kernel * kernel, || {
                let weight = PanelElements::F32(&weight);
                transposed(self.instructions, &shape, &x, weight, &mut out, ConvolutionEpilogue::default());
            });
        }
    }

    /// Functions of values that the first-level cache holds: elements a second, their operations to fused multiply-adds.
    fn functions(&self) {
        self.function("erf", functions::ErrorFunction {});
        self.function("exp", functions::Exponential {});
        self.function("gelu", functions::Gelu {});
        self.function("logistic", functions::Logistic {});
        self.function("swish", functions::Swish { alpha: 1.0 });
        self.function("tanh", functions::HyperbolicTangent {});
    }

    fn function(&self, name: &str, function: impl VectorFunction) {
        let name = format!("function {name}");
        if !self.wants(&name) {
            return;
        }
        let mut values = values(2048);
        let repeats = if self.quick { 1 } else { 500 };
        let (mut peak, mut best) = (0.0_f64, f64::INFINITY);
        for _ in 0..self.rounds() {
            peak = peak.max(self.peak());
            best = best.min(seconds(|| {
                (0..repeats).for_each(|_| elementwise::apply(self.instructions, function, &mut values));
            }));
        }
        let rate = (values.len() * repeats) as f64 / best;
        report(&name, rate / 1e9, "G/s", rate * function.cost() as f64 / peak, "of peak");
    }

    fn all(&self) {
        self.functions();
        self.convolutions();
        let bytes = values(if self.quick { 512 * 64 } else { 4096 * 11008 * 3 });
        for m in [1, 2, 3, 4, 8, 16] {
            for element in ["f32", "f16", "bf16"] {
                self.memory_bound("matvec", m, &bytes, element);
            }
        }
        drop(bytes);
        let bytes = codes(if self.quick { 512 * 256 } else { 4096 * 11008 * 12 });
        let scale = |element, block| CodedPlane { role: CodedRole::Scale, element, block };
        let zero_point = CodedPlane { role: CodedRole::ZeroPoint, element: PlaneType::U4, block: 0 };
        for (m, dynamic) in [(1, true), (1, false), (2, true), (3, true), (4, true), (4, false)] {
            self.coded(&bytes, CodeType::I8, &[scale(PlaneType::F32, 0)], m, dynamic);
            self.coded(&bytes, CodeType::I8, &[scale(PlaneType::F16, 32)], m, dynamic);
            self.coded(&bytes, CodeType::I4, &[scale(PlaneType::F16, 32)], m, dynamic);
            self.coded(&bytes, CodeType::U4, &[zero_point, scale(PlaneType::F32, 32)], m, dynamic);
            self.coded(&bytes, CodeType::I2, &[scale(PlaneType::F16, 64)], m, dynamic);
            self.coded(&bytes, CodeType::E2m1, &[scale(PlaneType::E8m0, 32)], m, dynamic);
            let of_output = scale(PlaneType::F32, 0);
            self.coded(&bytes, CodeType::E2m1, &[of_output, scale(PlaneType::E4m3, 16)], m, dynamic);
            if !dynamic {
                self.coded(&bytes, CodeType::E4m3, &[of_output], m, dynamic);
                self.coded(&bytes, CodeType::E5m2, &[of_output], m, dynamic);
            }
        }
        self.short_steps(&bytes);
        drop(bytes);
        self.products();
    }
}

/// Seconds that `run` takes; in a pool of one thread only those in which the thread had a processor.
fn seconds(run: impl FnOnce()) -> f64 {
    if team::count() > 1 {
        let begin = Instant::now();
        run();
        return begin.elapsed().as_secs_f64();
    }
    let running = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let begin = running();
    run();
    running() - begin
}

/// The middle of times.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A number from the environment.
fn variable(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index % 97) as f32 / 97.0 - 0.5).collect()
}

/// Memory as weights lie in it, on huge pages, which makes a difference of a tenth. Wherever a float begins, it is neither
/// subnormal nor infinite: arithmetic with such is slow on some processors.
fn codes(count: usize) -> Pages {
    let mut pages = Pages::zeroed(count).expect("memory");
    let mut state = 1_u64;
    for word in bytemuck::cast_slice_mut(&mut pages) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *word = (state ^ state >> 32) & 0x3b3b_3b3b_3b3b_3b3b | 0x1010_1010_1010_1010;
    }
    pages
}

#[allow(clippy::print_stdout, reason = "the report of a benchmark")]
fn report(name: &str, rate: f64, unit: &str, ratio: f64, limit: &str) {
    println!("{name:<40} {rate:>8.1} {unit:<8} {ratio:>5.2} {limit}");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let quick = !arguments.iter().any(|argument| argument == "--bench");
    let filter = arguments.into_iter().find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let threads = variable("THREADS").unwrap_or(0);
    let team = Team::new(threads).expect("threads");
    let named = Instructions::named().unwrap_or_else(|error| panic!("{error}"));
    let instructions = named.unwrap_or_else(Instructions::best);
    let threads = team.count();
    report(&format!("-- {}, threads", instructions.name()), threads as f64, "", 1.0, "");
    team.run(|| Bench { instructions, filter, quick }.all());
}
