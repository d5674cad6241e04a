//! Convolutions over blocks against naive loops over channels, on every instruction set.

use ipuc_kernels::{
    change::Change,
    convolution::{
        BlockedPlan, CHANNEL_BLOCK, ConvolutionEpilogue, ConvolutionShape, ConvolutionWeight, InputOrder,
        blocked_convolution,
    },
    product::{PANEL_OUTPUTS, PanelElements, PanelPiece},
    simd::Instructions,
    testing::{numbers, with_threads},
    window::{self, WindowAxis},
};
use proptest::prelude::*;

use super::{assert_close, axes, naive, pack_group};
use half::{bf16, f16};

/// `[batch, channels, positions]` to `[batch, channels / 8, positions, 8]`.
fn to_blocks<T: Copy>(values: &[T], (batch, channels): (usize, usize), positions: usize) -> Vec<T> {
    let mut blocks = Vec::new();
    for image in 0..batch {
        for block in 0..channels / CHANNEL_BLOCK {
            for position in 0..positions {
                let value = |lane| values[(image * channels + block * CHANNEL_BLOCK + lane) * positions + position];
                blocks.extend((0..CHANNEL_BLOCK).map(value));
            }
        }
    }
    blocks
}

/// A convolution of which `numbers` are the operands.
struct Case {
    shape: ConvolutionShape,
    x: Vec<f32>,
    weight: Vec<f32>,
    /// One for all runs, with any instructions and threads.
    plan: BlockedPlan,
    /// Sums and the sums of their magnitudes.
    expected: Vec<(f64, f64)>,
}

impl Case {
    fn new(shape: ConvolutionShape) -> Case {
        let ConvolutionShape { batch, groups, group_inputs, .. } = shape;
        let x = numbers(3, shape.inputs());
        let x = to_blocks(&x, (batch, groups * group_inputs), window::inputs(&shape.axes));
        let plan = BlockedPlan::new(shape.clone(), InputOrder::Blocks);
        Case { x, plan, ..Case::of_planes(shape) }
    }

    /// With inputs in the order of ONNX.
    fn of_planes(shape: ConvolutionShape) -> Case {
        let ConvolutionShape { batch, groups, group_outputs, .. } = shape;
        let x = numbers(3, shape.inputs());
        let weight = numbers(7, groups * group_outputs * shape.depth());
        let expected = naive(&shape, &x, &weight);
        let expected = to_blocks(&expected, (batch, groups * group_outputs), window::outputs(&shape.axes));
        let plan = BlockedPlan::new(shape.clone(), InputOrder::Planes);
        Case { shape, x, weight, plan, expected }
    }

    fn run(
        &self,
        instructions: Instructions,
        weight: ConvolutionWeight<'_>,
        epilogue: ConvolutionEpilogue<'_>,
    ) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.expected.len()];
        blocked_convolution(instructions, &self.plan, &self.x, weight, &mut out, epilogue);
        out
    }

    fn plain(&self, instructions: Instructions, epilogue: ConvolutionEpilogue<'_>) -> Vec<f32> {
        self.run(instructions, ConvolutionWeight::Plain(&self.weight), epilogue)
    }

    fn agrees(&self) {
        for instructions in Instructions::available() {
            let out = self.plain(instructions, ConvolutionEpilogue::default());
            assert_close(instructions.name(), &out, &self.expected);
        }
    }

    /// Bias, addend, limits and a change follow sums.
    fn has_epilogue(&self) {
        let convolution = &self.shape;
        let bias = numbers(8, convolution.groups * convolution.group_outputs);
        let addend = numbers(9, self.expected.len());
        let positions = window::outputs(&convolution.axes).max(1);
        let double = |place: usize, values: &mut [f32]| {
            for (index, value) in values.iter_mut().enumerate() {
                *value = *value * 2.0 + ((place + index) % 5) as f32;
            }
        };
        for instructions in Instructions::available() {
            let plain = self.plain(instructions, ConvolutionEpilogue::default());
            for (least, greatest) in [(-0.5, 1.0), (0.0, f32::INFINITY), (f32::NEG_INFINITY, 0.25)] {
                let epilogue = ConvolutionEpilogue {
                    bias: Some(&bias),
                    addend: Some(&addend),
                    clamp: Some((least, greatest)),
                    change: Some(Change(&double)),
                };
                let out = self.plain(instructions, epilogue);
                for (index, (out, plain)) in out.iter().zip(&plain).enumerate() {
                    let channel = index / (positions * CHANNEL_BLOCK) * CHANNEL_BLOCK + index % CHANNEL_BLOCK;
                    let value = (plain + bias[channel % bias.len()] + addend[index]).clamp(least, greatest);
                    assert_eq!(*out, value * 2.0 + (index % 5) as f32, "{} at {index}", instructions.name());
                }
            }
        }
    }
}

/// A convolution of blocks, or of channels of their own.
fn shapes() -> impl Strategy<Value = ConvolutionShape> {
    (0_usize..3, 1_usize..4, 1_usize..4, 1_usize..5, axes(), any::<bool>()).prop_map(
        |(batch, groups, inputs, outputs, axes, is_depthwise)| {
            let shape = |groups, group_inputs, group_outputs| ConvolutionShape {
                batch,
                groups,
                group_inputs,
                group_outputs,
                axes,
            };
            match is_depthwise {
                true => shape(groups * CHANNEL_BLOCK, 1, 1),
                false => shape(groups, inputs * CHANNEL_BLOCK, outputs * CHANNEL_BLOCK),
            }
        },
    )
}

/// A convolution of planes, as few as an image has.
fn shapes_of_planes() -> impl Strategy<Value = ConvolutionShape> {
    (0_usize..3, 1_usize..3, 1_usize..5, 1_usize..5, axes()).prop_map(|(batch, groups, group_inputs, outputs, axes)| {
        ConvolutionShape { batch, groups, group_inputs, group_outputs: outputs * CHANNEL_BLOCK, axes }
    })
}

/// Windows of 3 × 3 or 5 × 5 taps of channels of their own, of images that the first-level cache holds and of larger ones.
fn shapes_that_go_down() -> impl Strategy<Value = ConvolutionShape> {
    let axis = |kernel: usize, stride: usize| {
        (0_usize..48, 0..=kernel, 0..=kernel).prop_map(move |(input, pad_begin, pad_end)| {
            let reach = input + pad_begin + pad_end;
            let output = reach.checked_sub(kernel).map_or(0, |last| last / stride + 1);
            WindowAxis { input, output, kernel, stride, dilation: 1, pad_begin, pad_end }
        })
    };
    (prop_oneof![Just(3_usize), Just(5)], 1_usize..3, 1_usize..3)
        .prop_flat_map(move |(kernel, stride, batch)| (Just(batch), axis(kernel, stride), axis(kernel, stride)))
        .prop_map(|(batch, rows, columns)| ConvolutionShape {
            batch,
            groups: 2 * CHANNEL_BLOCK,
            group_inputs: 1,
            group_outputs: 1,
            axes: vec![rows, columns],
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn planes_agree_with_naive_loops(shape in shapes_of_planes()) {
        Case::of_planes(shape).agrees();
    }

    #[test]
    fn agrees_with_naive_loops(shape in shapes()) {
        Case::new(shape).agrees();
    }

    #[test]
    fn epilogue_follows(shape in shapes()) {
        Case::new(shape).has_epilogue();
    }

    #[test]
    fn windows_of_own_channels_go_down_the_rows(shape in shapes_that_go_down()) {
        let case = Case::new(shape);
        case.agrees();
        case.has_epilogue();
    }
}

/// Two axes with many inputs, so that runs and cuts matter.
fn deep(groups: usize) -> Case {
    let axis = WindowAxis { input: 9, output: 9, kernel: 3, stride: 1, dilation: 1, pad_begin: 1, pad_end: 1 };
    Case::new(ConvolutionShape { batch: 2, groups, group_inputs: 72, group_outputs: 40, axes: vec![axis; 2] })
}

#[test]
fn threads_do_not_change_bits() {
    for groups in [1, 2] {
        let case = deep(groups);
        case.agrees();
        for instructions in Instructions::available() {
            let run = |threads| with_threads(threads, || case.plain(instructions, ConvolutionEpilogue::default()));
            assert_eq!(run(1), run(3), "{}", instructions.name());
        }
    }
}

/// Bands of rows of channels of their own: of images that are copied with their padding, as far as a band sees them, and of others.
#[test]
fn threads_do_not_change_bits_of_own_channels() {
    for (kernel, stride) in [(3, 1), (3, 2), (5, 1), (5, 2)] {
        for (extents, pad) in [([30, 30], kernel), ([30, 31], 0), ([48, 47], kernel / 2), ([90, 91], 1)] {
            let axes = extents.map(|input| {
                let output = (input + 2 * pad - kernel) / stride + 1;
                WindowAxis { input, output, kernel, stride, dilation: 1, pad_begin: pad, pad_end: pad }
            });
            let shape =
                ConvolutionShape { batch: 1, groups: 64, group_inputs: 1, group_outputs: 1, axes: axes.to_vec() };
            let case = Case::new(shape);
            case.agrees();
            for instructions in Instructions::available() {
                let run = |threads| with_threads(threads, || case.plain(instructions, ConvolutionEpilogue::default()));
                assert_eq!(run(1), run(3), "{} by {stride} of {extents:?}, {}", kernel, instructions.name());
            }
        }
    }
}

/// Two axes of an image, in several tasks.
#[test]
fn threads_do_not_change_bits_of_planes() {
    for (kernel, stride, dilation) in [(3, 2, 1), (7, 2, 1), (4, 4, 1), (3, 1, 2), (9, 3, 1)] {
        let (input, pad) = (61, kernel / 2);
        let output = (input + 2 * pad - (kernel - 1) * dilation - 1) / stride + 1;
        let axis = WindowAxis { input, output, kernel, stride, dilation, pad_begin: pad, pad_end: pad };
        let shape = ConvolutionShape { batch: 2, groups: 1, group_inputs: 3, group_outputs: 40, axes: vec![axis; 2] };
        let case = Case::of_planes(shape);
        case.agrees();
        for instructions in Instructions::available() {
            let run = |threads| with_threads(threads, || case.plain(instructions, ConvolutionEpilogue::default()));
            assert_eq!(run(1), run(3), "{}", instructions.name());
        }
    }
}

/// Rows of windows that tiles of 14 fill, or half of one at an end; and others, which end within them.
#[test]
fn rows_are_tiles_of_many_windows() {
    for (outputs, kernel, stride) in
        [(14_usize, 3_usize, 2_usize), (28, 3, 2), (35, 2, 1), (56, 3, 2), (28, 1, 1), (33, 1, 1), (42, 1, 2)]
    {
        let (pad, input) = (kernel / 2, outputs * stride);
        let pad_end = ((outputs - 1) * stride + kernel).saturating_sub(input + pad);
        let columns = WindowAxis { input, output: outputs, kernel, stride, dilation: 1, pad_begin: pad, pad_end };
        let rows = WindowAxis { input: 8 * stride - 1, output: 8, ..columns };
        let rows = WindowAxis { pad_end: (7 * stride + kernel).saturating_sub(rows.input + pad), ..rows };
        let shape = |group_inputs| ConvolutionShape {
            batch: 1,
            groups: 1,
            group_inputs,
            group_outputs: 32,
            axes: vec![rows, columns],
        };
        // More inputs than are multiplied before sums wait for the next ones.
        for case in [Case::new(shape(72)), Case::of_planes(shape(3))] {
            case.agrees();
            case.has_epilogue();
            for instructions in Instructions::available() {
                let run = |threads| with_threads(threads, || case.plain(instructions, ConvolutionEpilogue::default()));
                assert_eq!(run(1), run(3), "{} of {outputs}", instructions.name());
            }
        }
    }
}

#[test]
fn pieces_add_up() {
    let axis = WindowAxis { input: 9, output: 9, kernel: 3, stride: 1, dilation: 1, pad_begin: 1, pad_end: 1 };
    let planes = ConvolutionShape { batch: 1, groups: 1, group_inputs: 71, group_outputs: 40, axes: vec![axis; 2] };
    let row = WindowAxis { input: 55, output: 28, stride: 2, ..axis };
    let wide = ConvolutionShape { batch: 1, groups: 1, group_inputs: 72, group_outputs: 40, axes: vec![axis, row] };
    for case in [deep(1), deep(2), Case::new(wide), Case::of_planes(planes)] {
        let shape = &case.shape;
        let (depth, panels) = (shape.depth(), 3 * shape.groups);
        let packed: Vec<f32> = pack_group(shape, &case.weight);
        let bias = numbers(8, shape.groups * shape.group_outputs);
        let epilogue = ConvolutionEpilogue { bias: Some(&bias), ..ConvolutionEpilogue::default() };
        let cut: Vec<Vec<f32>> = (0..panels)
            .flat_map(|panel| [(panel, 0..256), (panel, 256..512), (panel, 512..depth)])
            .map(|(panel, inputs)| packed[panel * depth * 16..][inputs.start * 16..inputs.end * 16].to_vec())
            .collect();
        let pieces: Vec<PanelPiece<'_>> = cut
            .iter()
            .enumerate()
            .map(|(index, elements)| PanelPiece {
                panels: index / 3..index / 3 + 1,
                inputs: [0..256, 256..512, 512..depth][index % 3].clone(),
                elements: PanelElements::F32(elements),
            })
            .collect();
        for instructions in Instructions::available() {
            let whole = case.plain(instructions, epilogue);
            let together = case.run(instructions, ConvolutionWeight::Panels(&pieces), epilogue);
            let mut alone = vec![f32::NAN; whole.len()];
            for piece in pieces.chunks(1) {
                let weight = ConvolutionWeight::Panels(piece);
                blocked_convolution(instructions, &case.plan, &case.x, weight, &mut alone, epilogue);
            }
            assert_eq!(together, alone, "{}", instructions.name());
            let near = whole.iter().zip(&together).all(|(whole, cut)| (whole - cut).abs() <= 1e-4);
            assert!(near, "{}: {whole:?}, not {together:?}", instructions.name());
        }
    }
}

#[test]
fn weights_of_16_bits_are_widened() {
    let axis = WindowAxis { input: 24, output: 24, kernel: 3, stride: 1, dilation: 1, pad_begin: 1, pad_end: 1 };
    let tiles = ConvolutionShape { batch: 1, groups: 1, group_inputs: 16, group_outputs: 40, axes: vec![axis; 2] };
    for case in [deep(2), Case::new(tiles)] {
        let shape = &case.shape;
        let halves: Vec<f16> = pack_group(shape, &case.weight);
        let brains: Vec<bf16> = pack_group(shape, &case.weight);
        let rounded = |round: fn(f32) -> f32| -> Vec<f32> { case.weight.iter().map(|weight| round(*weight)).collect() };
        for (elements, weight) in [
            (PanelElements::F16(&halves), rounded(|weight| f16::from_f32(weight).to_f32())),
            (PanelElements::Bf16(&brains), rounded(|weight| bf16::from_f32(weight).to_f32())),
        ] {
            let panels = 0..shape.groups * shape.group_outputs.div_ceil(PANEL_OUTPUTS);
            let pieces = [PanelPiece { panels, inputs: 0..shape.depth(), elements }];
            for instructions in Instructions::available() {
                let plain = ConvolutionEpilogue::default();
                let expected = case.run(instructions, ConvolutionWeight::Plain(&weight), plain);
                let found = case.run(instructions, ConvolutionWeight::Panels(&pieces), plain);
                assert_eq!(found, expected, "{shape:?} {}", instructions.name());
            }
        }
    }
}

#[test]
fn windows_of_single_channels_may_reach_far() {
    let far = i32::MAX as usize;
    let axis = WindowAxis { input: 3, output: 1, kernel: 3, stride: far, dilation: 1, pad_begin: 0, pad_end: 0 };
    let apart = WindowAxis { kernel: 2, stride: 1, dilation: far, pad_begin: far, ..axis };
    for axis in [axis, apart] {
        let outer = WindowAxis { stride: 1, dilation: 1, kernel: 1, pad_begin: 0, output: 3, ..axis };
        Case::new(ConvolutionShape { batch: 1, groups: 8, group_inputs: 1, group_outputs: 1, axes: vec![outer, axis] })
            .agrees();
    }
}

#[test]
#[should_panic(expected = "blocks of channels")]
fn channels_that_are_no_whole_blocks_are_refused() {
    let axis = WindowAxis { input: 1, output: 1, kernel: 1, stride: 1, dilation: 1, pad_begin: 0, pad_end: 0 };
    let shape = ConvolutionShape { batch: 1, groups: 1, group_inputs: 12, group_outputs: 8, axes: vec![axis; 2] };
    Case::new(shape).agrees();
}

/// Every second window of one tap: copied side by side for a task of all panels, where registers are few, and read where they lie for
/// those of one panel.
#[test]
fn windows_that_are_apart_have_the_same_sums_wherever_they_lie() {
    let axis =
        |input, output| WindowAxis { input, output, kernel: 1, stride: 2, dilation: 1, pad_begin: 0, pad_end: 0 };
    let axes = vec![axis(13, 7), axis(14, 7)];
    let case = Case::new(ConvolutionShape { batch: 2, groups: 1, group_inputs: 24, group_outputs: 80, axes });
    case.agrees();
    let (packed, depth) = (pack_group(&case.shape, &case.weight), case.shape.depth());
    for instructions in Instructions::available() {
        let whole = case.plain(instructions, ConvolutionEpilogue::default());
        let pieces = packed.chunks(depth * PANEL_OUTPUTS).enumerate().map(|(panel, elements)| PanelPiece {
            panels: panel..panel + 1,
            inputs: 0..depth,
            elements: PanelElements::F32(elements),
        });
        let pieces: Vec<PanelPiece<'_>> = pieces.collect();
        let alone = case.run(instructions, ConvolutionWeight::Panels(&pieces), ConvolutionEpilogue::default());
        assert_eq!(whole, alone, "{}", instructions.name());
    }
}

/// Many windows of 3 × 3 taps, at the borders of which tiles are cut off, with a last panel of one block: tiles of one block, and of
/// several, of which threads may share the panels.
#[test]
fn transformed_tiles_agree_with_naive_loops() {
    transformed_tiles_agree(30, 26, 24);
    transformed_tiles_agree(58, 50, 8);
}

fn transformed_tiles_agree(rows: usize, columns: usize, inputs: usize) {
    let axis = |extent, pad_begin| WindowAxis {
        input: extent,
        output: extent + pad_begin - 1,
        kernel: 3,
        stride: 1,
        dilation: 1,
        pad_begin,
        pad_end: 1,
    };
    let axes = vec![axis(rows, 1), axis(columns, 0)];
    let case = Case::new(ConvolutionShape { batch: 2, groups: 1, group_inputs: inputs, group_outputs: 40, axes });
    let bias = numbers(8, 40);
    let addend = numbers(9, case.expected.len());
    let double = |place: usize, values: &mut [f32]| {
        values.iter_mut().enumerate().for_each(|(index, value)| *value = *value * 2.0 + ((place + index) % 5) as f32);
    };
    let epilogue = ConvolutionEpilogue {
        bias: Some(&bias),
        addend: Some(&addend),
        clamp: Some((-0.5, 1.0)),
        change: Some(Change(&double)),
    };
    let positions = window::outputs(&case.shape.axes);
    let (packed, depth) = (pack_group(&case.shape, &case.weight), case.shape.depth());
    for instructions in Instructions::available() {
        let run = |threads| with_threads(threads, || case.plain(instructions, epilogue));
        let out = run(1);
        assert_eq!(out, run(3), "threads on {}", instructions.name());
        let pieces = [0..1, 1..3].map(|panels: std::ops::Range<usize>| PanelPiece {
            elements: PanelElements::F32(&packed[panels.start * depth * 16..panels.end * depth * 16]),
            inputs: 0..depth,
            panels,
        });
        let weight = ConvolutionWeight::Panels(&pieces);
        let of_pieces = with_threads(2, || case.run(instructions, weight, epilogue));
        assert_eq!(out, of_pieces, "pieces on {}", instructions.name());
        for (index, (out, (sum, size))) in out.iter().zip(&case.expected).enumerate() {
            let channel = index / (positions * CHANNEL_BLOCK) * CHANNEL_BLOCK + index % CHANNEL_BLOCK;
            let value = (sum + f64::from(bias[channel % 40]) + f64::from(addend[index])).clamp(-0.5, 1.0);
            let expected = value * 2.0 + (index % 5) as f64;
            let error = (f64::from(*out) - expected).abs();
            assert!(error <= 1e-4 * size + 1e-5, "{} at {index}: {out}, not {expected}", instructions.name());
        }
    }
}

#[test]
fn windows_of_padding_alone_are_exactly_zero() {
    let rows = WindowAxis { input: 14, output: 16, kernel: 3, stride: 1, dilation: 1, pad_begin: 2, pad_end: 2 };
    let columns = WindowAxis { input: 1, output: 4, pad_begin: 4, pad_end: 1, ..rows };
    let axes = vec![rows, columns];
    Case::new(ConvolutionShape { batch: 1, groups: 1, group_inputs: 24, group_outputs: 24, axes }).agrees();
}

#[test]
fn large_inputs_are_not_transformed() {
    let axis = WindowAxis { input: 24, output: 24, kernel: 3, stride: 1, dilation: 1, pad_begin: 1, pad_end: 1 };
    let shape = ConvolutionShape { batch: 1, groups: 1, group_inputs: 16, group_outputs: 16, axes: vec![axis; 2] };
    let mut case = Case::new(shape);
    case.x[7] = f32::INFINITY;
    for instructions in Instructions::available() {
        let out = case.plain(instructions, ConvolutionEpilogue::default());
        let strange = out.iter().filter(|value| !value.is_finite()).count();
        // The first position of a plane is seen by 4 windows of each of 16 channels.
        assert_eq!(strange, 64, "{}", instructions.name());
    }
}

#[test]
fn windows_over_nothing_are_padding() {
    let axis = WindowAxis { input: 0, output: 1, kernel: 2, stride: 1, dilation: 1, pad_begin: 0, pad_end: 2 };
    for (groups, channels) in [(8, 1), (1, 8)] {
        let shape =
            ConvolutionShape { batch: 1, groups, group_inputs: channels, group_outputs: channels, axes: vec![axis] };
        Case::new(shape).agrees();
    }
    let of_planes = |axis| {
        let shape = ConvolutionShape { batch: 1, groups: 1, group_inputs: 3, group_outputs: 8, axes: vec![axis, axis] };
        Case::of_planes(shape).agrees();
    };
    of_planes(axis);
    of_planes(WindowAxis { input: 3, kernel: 0, pad_end: 0, ..axis });
}

/// Copies with the padding would be far larger than the image.
#[test]
fn images_that_are_mostly_padding_are_not_copied() {
    let axis = WindowAxis { input: 1, output: 2, kernel: 250, stride: 100, dilation: 1, pad_begin: 200, pad_end: 200 };
    let shape = ConvolutionShape { batch: 1, groups: 1, group_inputs: 1, group_outputs: 8, axes: vec![axis, axis] };
    Case::of_planes(shape).agrees();
}
