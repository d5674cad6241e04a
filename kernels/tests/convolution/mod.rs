//! Convolutions against naive loops, on every instruction set, with one and several threads.

mod blocked;

use half::{bf16, f16};
use ipuc_kernels::{
    change::Change,
    convolution::{
        ConvolutionEpilogue, ConvolutionShape, ConvolutionWeight, TransposedShape, convolution, depthwise, transposed,
    },
    product::{PANEL_OUTPUTS, PanelElements, PanelPiece, pack_panels},
    simd::Instructions,
    testing::{numbers, with_threads},
    window::{self, WindowAxis},
};
use proptest::prelude::*;

use crate::panel_element::PanelElement;

/// Relative to the sum of magnitudes of the terms.
const BOUND: f64 = 1e-5;

/// All index vectors below `extents`, in order.
fn indices(extents: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &extent in extents {
        all = all.into_iter().flat_map(|index| (0..extent).map(move |last| [&index[..], &[last]].concat())).collect();
    }
    all
}

fn flat(index: &[usize], extents: impl Iterator<Item = usize>) -> usize {
    index.iter().zip(extents).fold(0, |flat, (index, extent)| flat * extent + index)
}

/// For each output position and tap: the input position, if it is not padding.
fn positions(axes: &[WindowAxis]) -> Vec<Vec<Option<usize>>> {
    let all = |extents: Vec<usize>| indices(&extents);
    let taps = all(axes.iter().map(|axis| axis.kernel).collect());
    let of_tap = |output: &[usize], tap: &[usize]| {
        let index: Option<Vec<usize>> =
            (0..axes.len()).map(|axis| axes[axis].position(output[axis], tap[axis])).collect();
        index.map(|index| flat(&index, axes.iter().map(|axis| axis.input)))
    };
    let outputs = all(axes.iter().map(|axis| axis.output).collect());
    outputs.iter().map(|output| taps.iter().map(|tap| of_tap(output, tap)).collect()).collect()
}

pub(super) fn naive(shape: &ConvolutionShape, x: &[f32], weight: &[f32]) -> Vec<(f64, f64)> {
    let (plane, taps) = (window::inputs(&shape.axes), window::taps(&shape.axes));
    let positions = positions(&shape.axes);
    let mut out = Vec::new();
    for image in 0..shape.batch {
        for output in 0..shape.groups * shape.group_outputs {
            let group = output / shape.group_outputs;
            for position in &positions {
                let mut sum = (0.0, 0.0);
                for input in 0..shape.group_inputs {
                    let channel = (image * shape.groups + group) * shape.group_inputs + input;
                    for (tap, place) in position.iter().enumerate() {
                        let Some(place) = place else { continue };
                        let weight = weight[(output * shape.group_inputs + input) * taps + tap];
                        let term = f64::from(x[channel * plane + place]) * f64::from(weight);
                        sum = (sum.0 + term, sum.1 + term.abs());
                    }
                }
                out.push(sum);
            }
        }
    }
    out
}

fn naive_transposed(shape: &TransposedShape, x: &[f32], weight: &[f32]) -> Vec<(f64, f64)> {
    let (plane, taps) = (window::inputs(&shape.axes), window::taps(&shape.axes));
    let positions = positions(&shape.axes);
    let mut out = vec![(0.0, 0.0); shape.outputs()];
    for image in 0..shape.batch {
        for input in 0..shape.groups * shape.group_inputs {
            for (from, position) in positions.iter().enumerate() {
                let value = x[(image * shape.groups * shape.group_inputs + input) * positions.len() + from];
                for output in 0..shape.group_outputs {
                    let group = image * shape.groups + input / shape.group_inputs;
                    for (tap, place) in position.iter().enumerate() {
                        let Some(place) = place else { continue };
                        let weight = weight[(input * shape.group_outputs + output) * taps + tap];
                        let term = f64::from(value) * f64::from(weight);
                        let sum = &mut out[(group * shape.group_outputs + output) * plane + place];
                        *sum = (sum.0 + term, sum.1 + term.abs());
                    }
                }
            }
        }
    }
    out
}

pub(super) fn assert_close(name: &str, out: &[f32], expected: &[(f64, f64)]) {
    assert_eq!(out.len(), expected.len());
    for (index, (value, (expected, size))) in out.iter().zip(expected).enumerate() {
        let error = (f64::from(*value) - expected).abs();
        assert!(error <= BOUND * size, "{name} at {index} of {}: {value}, not {expected}", out.len());
    }
}

fn axis() -> impl Strategy<Value = WindowAxis> {
    (0_usize..20, 1_usize..5, 1_usize..4, 1_usize..4, 0_usize..5, 0_usize..5).prop_map(
        |(input, kernel, stride, dilation, pad_begin, pad_end)| {
            let span = (kernel - 1) * dilation + 1;
            let output = (input + pad_begin + pad_end).checked_sub(span).map_or(0, |room| room / stride + 1);
            WindowAxis { input, output, kernel, stride, dilation, pad_begin, pad_end }
        },
    )
}

fn small_axis() -> impl Strategy<Value = WindowAxis> {
    axis().prop_filter("small", |axis| axis.input < 8 && axis.kernel < 4)
}

pub(super) fn axes() -> impl Strategy<Value = Vec<WindowAxis>> {
    prop_oneof![
        1 => Just(vec![]),
        3 => prop::collection::vec(axis(), 1..3),
        1 => prop::collection::vec(small_axis(), 3..5),
        2 => (1_usize..30, 1_usize..30).prop_map(|(rows, columns)| vec![point(rows), point(columns)]),
    ]
}

fn point(extent: usize) -> WindowAxis {
    WindowAxis { input: extent, output: extent, kernel: 1, stride: 1, dilation: 1, pad_begin: 0, pad_end: 0 }
}

fn shapes() -> impl Strategy<Value = ConvolutionShape> {
    (0_usize..3, 1_usize..4, 0_usize..7, 1_usize..40, axes()).prop_map(
        |(batch, groups, group_inputs, group_outputs, axes)| ConvolutionShape {
            batch,
            groups,
            group_inputs,
            group_outputs,
            axes,
        },
    )
}

fn run(
    instructions: Instructions,
    shape: &ConvolutionShape,
    x: &[f32],
    weight: ConvolutionWeight<'_>,
    epilogue: ConvolutionEpilogue<'_>,
) -> Vec<f32> {
    let mut out = vec![f32::NAN; shape.outputs()];
    convolution(instructions, shape, x, weight, &mut out, epilogue);
    out
}

pub(super) fn pack_group<T: PanelElement>(shape: &ConvolutionShape, weight: &[f32]) -> Vec<T> {
    let depth = shape.depth();
    let group = |group: usize| {
        let weight = &weight[group * shape.group_outputs * depth..];
        T::pack(depth, shape.group_outputs, |input, output| weight[output * depth + input])
    };
    (0..shape.groups).flat_map(group).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn agrees_with_naive_loops(shape in shapes()) {
        let x = numbers(3, shape.inputs());
        let weight = numbers(7, shape.groups * shape.group_outputs * shape.depth());
        let expected = naive(&shape, &x, &weight);
        for instructions in Instructions::available() {
            let out = run(instructions, &shape, &x, ConvolutionWeight::Plain(&weight), ConvolutionEpilogue::default());
            assert_close(instructions.name(), &out, &expected);
        }
    }

    #[test]
    fn depthwise_agrees_with_naive_loops(mut shape in shapes()) {
        shape.group_inputs = 1;
        shape.group_outputs = shape.group_outputs.min(3);
        let x = numbers(3, shape.inputs());
        let weight = numbers(7, shape.groups * shape.group_outputs * shape.depth());
        let expected = naive(&shape, &x, &weight);
        for instructions in Instructions::available() {
            let mut out = vec![f32::NAN; shape.outputs()];
            depthwise(instructions, &shape, &x, &weight, &mut out, ConvolutionEpilogue::default());
            assert_close(instructions.name(), &out, &expected);
        }
    }

    #[test]
    fn depthwise_agrees_in_long_rows(columns in 29_usize..140, rows in 1_usize..4, kernel in 1_usize..6, stride in 1_usize..4) {
        let axis = |input: usize, stride: usize| {
            let pad = kernel / 2;
            let output = (input + 2 * pad - kernel) / stride + 1;
            WindowAxis { input, output, kernel, stride, dilation: 1, pad_begin: pad, pad_end: pad }
        };
        let axes = vec![axis(rows + kernel, 1), axis(columns * stride, stride)];
        let shape = ConvolutionShape { batch: 1, groups: 2, group_inputs: 1, group_outputs: 1, axes };
        let x = numbers(3, shape.inputs());
        let weight = numbers(7, 2 * shape.depth());
        let expected = naive(&shape, &x, &weight);
        for instructions in Instructions::available() {
            let mut out = vec![f32::NAN; shape.outputs()];
            depthwise(instructions, &shape, &x, &weight, &mut out, ConvolutionEpilogue::default());
            assert_close(instructions.name(), &out, &expected);
        }
    }

    #[test]
    fn transposed_agrees_with_naive_loops(shape in shapes()) {
        let ConvolutionShape { batch, groups, group_inputs, group_outputs, axes } = shape;
        let shape = TransposedShape { batch, groups, group_inputs, group_outputs, axes };
        let x = numbers(3, shape.inputs());
        let weight = numbers(7, groups * group_inputs * group_outputs * window::taps(&shape.axes));
        let panels = shape.pack(&weight);
        let expected = naive_transposed(&shape, &x, &weight);
        for instructions in Instructions::available() {
            let mut out = vec![f32::NAN; shape.outputs()];
            let weight = PanelElements::F32(&panels);
            transposed(instructions, &shape, &x, weight, &mut out, ConvolutionEpilogue::default());
            assert_close(instructions.name(), &out, &expected);
        }
    }

    #[test]
    fn epilogue_follows(shape in shapes()) {
        let x = numbers(3, shape.inputs());
        let weight = numbers(7, shape.groups * shape.group_outputs * shape.depth());
        let bias = numbers(8, shape.groups * shape.group_outputs);
        let addend = numbers(9, shape.outputs());
        let epilogue = ConvolutionEpilogue { bias: Some(&bias), addend: Some(&addend), clamp: Some((-0.5, 1.0)), change: None };
        let plane = window::outputs(&shape.axes).max(1);
        for instructions in Instructions::available() {
            let plain = run(instructions, &shape, &x, ConvolutionWeight::Plain(&weight), ConvolutionEpilogue::default());
            let out = run(instructions, &shape, &x, ConvolutionWeight::Plain(&weight), epilogue);
            for (index, (out, plain)) in out.iter().zip(&plain).enumerate() {
                let value = plain + bias[index / plane % bias.len()] + addend[index];
                prop_assert_eq!(*out, value.clamp(-0.5, 1.0));
            }
        }
    }
}

/// Two axes with many inputs, so that runs and cuts matter.
fn deep(group_outputs: usize) -> ConvolutionShape {
    let axis = WindowAxis { input: 9, output: 9, kernel: 3, stride: 1, dilation: 1, pad_begin: 1, pad_end: 1 };
    ConvolutionShape { batch: 2, groups: 2, group_inputs: 70, group_outputs, axes: vec![axis; 2] }
}

#[test]
fn cuts_and_threads_do_not_change_bits() {
    let shape = deep(40);
    let (x, weight) = (numbers(1, shape.inputs()), numbers(2, 80 * shape.depth()));
    let expected = naive(&shape, &x, &weight);
    let panels: Vec<f32> = pack_group(&shape, &weight);
    let length = shape.depth() * PANEL_OUTPUTS;
    for instructions in Instructions::available() {
        let whole = [PanelPiece { panels: 0..6, inputs: 0..shape.depth(), elements: PanelElements::F32(&panels) }];
        let weight = ConvolutionWeight::Panels(&whole);
        let one = with_threads(1, || run(instructions, &shape, &x, weight, ConvolutionEpilogue::default()));
        let three = with_threads(3, || run(instructions, &shape, &x, weight, ConvolutionEpilogue::default()));
        assert_close(instructions.name(), &one, &expected);
        assert_eq!(one, three, "threads on {}", instructions.name());

        let mut out = vec![f32::NAN; shape.outputs()];
        let piece = |panels_of: std::ops::Range<usize>, inputs: std::ops::Range<usize>| {
            let begin = panels_of.start * length + inputs.start * PANEL_OUTPUTS;
            let end = (panels_of.end - 1) * length + inputs.end * PANEL_OUTPUTS;
            PanelPiece { panels: panels_of, inputs, elements: PanelElements::F32(&panels[begin..end]) }
        };
        let depth = shape.depth();
        for pieces in
            [vec![piece(0..1, 0..depth), piece(1..2, 0..512)], vec![piece(1..2, 512..depth), piece(2..6, 0..depth)]]
        {
            let weight = ConvolutionWeight::Panels(&pieces);
            convolution(instructions, &shape, &x, weight, &mut out, ConvolutionEpilogue::default());
        }
        assert_eq!(one, out, "cuts on {}", instructions.name());
    }
}

#[test]
fn few_windows_have_the_bits_of_many() {
    let axis = |input, output, stride, pad| WindowAxis {
        input,
        output,
        kernel: 3,
        stride,
        dilation: 1,
        pad_begin: pad,
        pad_end: pad,
    };
    check_few(vec![axis(3, 2, 2, 1), axis(4, 4, 1, 1)]);
    // One window that sees the image, and one that sees some of it.
    check_few(vec![axis(3, 1, 1, 0), axis(3, 1, 1, 0)]);
    check_few(vec![axis(3, 1, 1, 0), axis(4, 1, 2, 0)]);
}

fn check_few(axes: Vec<WindowAxis>) {
    let few = ConvolutionShape { batch: 2, groups: 1, group_inputs: 90, group_outputs: 37, axes };
    let (x, weight) = (numbers(1, few.inputs()), numbers(2, few.group_outputs * few.depth()));
    let (bias, addend) = (numbers(3, few.group_outputs), numbers(4, few.outputs()));
    let halve = |_: usize, outputs: &mut [f32]| outputs.iter_mut().for_each(|output| *output *= 0.5);
    let epilogue = ConvolutionEpilogue {
        bias: Some(&bias),
        addend: Some(&addend),
        clamp: Some((-1.0, 2.0)),
        change: Some(Change(&halve)),
    };
    let panels: Vec<f32> = pack_group(&few, &weight);
    let (depth, length) = (few.depth(), few.depth() * PANEL_OUTPUTS);
    for instructions in Instructions::available() {
        let whole = [PanelPiece { panels: 0..3, inputs: 0..depth, elements: PanelElements::F32(&panels) }];
        let products = run(instructions, &few, &x, ConvolutionWeight::Panels(&whole), epilogue);
        // Cut along the inputs, the same convolution is gathered; panel by panel, as a piece holds the same inputs of its panels.
        let mut gathered = vec![f32::NAN; few.outputs()];
        for panel in 0..3 {
            for inputs in [0..512, 512..depth] {
                let elements = &panels[panel * length..][inputs.start * PANEL_OUTPUTS..inputs.end * PANEL_OUTPUTS];
                let piece = [PanelPiece { panels: panel..panel + 1, inputs, elements: PanelElements::F32(elements) }];
                convolution(instructions, &few, &x, ConvolutionWeight::Panels(&piece), &mut gathered, epilogue);
            }
        }
        assert_eq!(products, gathered, "{}", instructions.name());
    }
}

/// Windows of one position read images where they lie, but for vectors that would reach behind the last channel, or copies by
/// vectors, by instruction set.
#[test]
fn single_positions_at_the_end_of_an_image_are_read() {
    for extents in [[1, 9], [5, 5], [7, 7], [6, 8], [9, 11], [16, 16]] {
        let axis =
            |input| WindowAxis { input, output: input, kernel: 1, stride: 1, dilation: 1, pad_begin: 0, pad_end: 0 };
        let axes = extents.map(axis).to_vec();
        let shape = ConvolutionShape { batch: 2, groups: 1, group_inputs: 150, group_outputs: 37, axes };
        let (x, weight) = (numbers(1, shape.inputs()), numbers(2, shape.group_outputs * shape.depth()));
        let expected = naive(&shape, &x, &weight);
        let panels: Vec<f32> = pack_group(&shape, &weight);
        let whole = [PanelPiece { panels: 0..3, inputs: 0..150, elements: PanelElements::F32(&panels) }];
        for instructions in Instructions::available() {
            let weight = ConvolutionWeight::Panels(&whole);
            let found = run(instructions, &shape, &x, weight, ConvolutionEpilogue::default());
            assert_close(&format!("{extents:?} on {}", instructions.name()), &found, &expected);
        }
    }
}

/// Several blocks, windows some positions apart, padding, groups, and rows so long that few channels are held at a time.
#[test]
fn windows_of_one_tap_do_not_depend_on_cuts_and_threads() {
    let axis = |input: usize, stride: usize, pad: usize| WindowAxis {
        input,
        output: (input + 2 * pad - 1) / stride + 1,
        kernel: 1,
        stride,
        dilation: 1,
        pad_begin: pad,
        pad_end: pad,
    };
    for (groups, group_inputs, group_outputs, axes) in [
        (1, 300, 17, vec![axis(25, 1, 0), axis(27, 1, 0)]),
        (1, 300, 17, vec![axis(19, 2, 0), axis(33, 2, 0)]),
        (1, 260, 5, vec![axis(9, 1, 1), axis(9, 1, 1)]),
        (2, 20, 18, vec![axis(30, 1, 0), axis(31, 1, 0)]),
        (1, 260, 3, vec![axis(2, 1, 0), axis(2059, 2, 0)]),
    ] {
        let shape = ConvolutionShape { batch: 1, groups, group_inputs, group_outputs, axes };
        let (x, weight) = (numbers(1, shape.inputs()), numbers(2, groups * group_outputs * group_inputs));
        let expected = naive(&shape, &x, &weight);
        for instructions in Instructions::available() {
            let name = format!("{shape:?} on {}", instructions.name());
            let plain = || run(instructions, &shape, &x, ConvolutionWeight::Plain(&weight), Default::default());
            let (one, three) = (with_threads(1, plain), with_threads(3, plain));
            assert_close(&name, &one, &expected);
            assert_eq!(bits(&one), bits(&three), "threads of {name}");
            if groups > 1 {
                continue;
            }
            let panels: Vec<f32> = pack_group(&shape, &weight);
            let mut cut = vec![f32::NAN; shape.outputs()];
            for panel in 0..group_outputs.div_ceil(PANEL_OUTPUTS) {
                for inputs in [0..256, 256..group_inputs] {
                    let elements = &panels[panel * group_inputs * PANEL_OUTPUTS..];
                    let elements = &elements[inputs.start * PANEL_OUTPUTS..inputs.end * PANEL_OUTPUTS];
                    let elements = PanelElements::F32(elements);
                    let piece = [PanelPiece { panels: panel..panel + 1, inputs, elements }];
                    let weight = ConvolutionWeight::Panels(&piece);
                    convolution(instructions, &shape, &x, weight, &mut cut, Default::default());
                }
            }
            assert_eq!(bits(&one), bits(&cut), "cuts of {name}");
        }
    }
}

/// Windows of 3 × 3 taps, one position apart.
fn nine_taps(batch: usize, group_inputs: usize, group_outputs: usize, sizes: [(usize, usize); 2]) -> ConvolutionShape {
    let axes = sizes.map(|(input, pad)| WindowAxis {
        input,
        output: input + 2 * pad - 2,
        kernel: 3,
        stride: 1,
        dilation: 1,
        pad_begin: pad,
        pad_end: pad,
    });
    ConvolutionShape { batch, groups: 1, group_inputs, group_outputs, axes: axes.to_vec() }
}

#[test]
fn fewer_multiplications_give_the_same_sums() {
    for shape in [
        nine_taps(1, 48, 33, [(14, 1), (14, 1)]),
        nine_taps(2, 20, 40, [(30, 0), (71, 1)]),
        nine_taps(1, 130, 64, [(23, 2), (30, 1)]),
        nine_taps(1, 32, 70, [(57, 1), (18, 1)]),
    ] {
        let (x, weight) = (numbers(1, shape.inputs()), numbers(2, shape.group_outputs * shape.depth()));
        let (bias, addend) = (numbers(3, shape.group_outputs), numbers(4, shape.outputs()));
        let halve = |_: usize, outputs: &mut [f32]| outputs.iter_mut().for_each(|output| *output *= 0.5);
        let epilogue =
            ConvolutionEpilogue { bias: Some(&bias), addend: Some(&addend), clamp: None, change: Some(Change(&halve)) };
        let plane = window::outputs(&shape.axes);
        let mut expected = naive(&shape, &x, &weight);
        for (index, (sum, size)) in expected.iter_mut().enumerate() {
            *sum = (*sum + f64::from(bias[index / plane % bias.len()]) + f64::from(addend[index])) / 2.0;
            *size /= 2.0;
        }
        let panels: Vec<f32> = pack_group(&shape, &weight);
        let count = shape.group_outputs.div_ceil(PANEL_OUTPUTS);
        for instructions in Instructions::available() {
            let plain = || run(instructions, &shape, &x, ConvolutionWeight::Plain(&weight), epilogue);
            let (one, three) = (with_threads(1, plain), with_threads(3, plain));
            assert_close(instructions.name(), &one, &expected);
            assert_eq!(one, three, "threads on {}", instructions.name());
            let mut cut = vec![f32::NAN; shape.outputs()];
            for panel in 0..count {
                let elements = &panels[panel * shape.depth() * PANEL_OUTPUTS..][..shape.depth() * PANEL_OUTPUTS];
                let elements = PanelElements::F32(elements);
                let piece = [PanelPiece { panels: panel..panel + 1, inputs: 0..shape.depth(), elements }];
                convolution(instructions, &shape, &x, ConvolutionWeight::Panels(&piece), &mut cut, epilogue);
            }
            assert_eq!(one, cut, "panels alone on {}", instructions.name());
        }
    }
}

#[test]
fn values_that_are_not_finite_stay_in_their_windows() {
    let shape = nine_taps(1, 32, 32, [(16, 1), (16, 1)]);
    let weight = numbers(2, shape.group_outputs * shape.depth());
    for (value, sign) in [(f32::NAN, None), (f32::INFINITY, Some(1.0)), (1e30, None)] {
        let mut x = numbers(1, shape.inputs());
        x[5 * 16 + 5] = value;
        for instructions in Instructions::available() {
            let out = run(instructions, &shape, &x, ConvolutionWeight::Plain(&weight), ConvolutionEpilogue::default());
            let reached = |index: usize| (4..=6).contains(&(index / 16 % 16)) && (4..=6).contains(&(index % 16));
            for (index, output) in out.iter().enumerate() {
                assert_eq!(
                    output.abs() < 1e3,
                    !reached(index),
                    "{value} at {index} on {}: {output}",
                    instructions.name()
                );
                assert_eq!(sign.is_some() && reached(index), output.is_infinite(), "{value} at {index}: {output}");
            }
        }
    }
}

/// Windows so far apart on an axis so short that their positions are gathered; as many inputs as no group of bf16 has.
fn gathered() -> ConvolutionShape {
    let axis = WindowAxis { input: 9, output: 3, kernel: 7, stride: 1, dilation: 1, pad_begin: 0, pad_end: 0 };
    ConvolutionShape { batch: 2, groups: 2, group_inputs: 5, group_outputs: 17, axes: vec![axis; 2] }
}

#[test]
fn half_weights_are_widened() {
    let tiles = nine_taps(1, 47, 33, [(14, 1), (14, 1)]);
    assert!(tiles.depth() % 2 == 1);
    let gathered = gathered();
    assert!(gathered.depth() % 2 == 1);
    for shape in [deep(17), tiles, gathered] {
        let (x, weight) = (numbers(1, shape.inputs()), numbers(2, shape.groups * shape.group_outputs * shape.depth()));
        let halves: Vec<f32> = weight.iter().map(|&value| f16::from_f32(value).to_f32()).collect();
        let brains: Vec<f32> = weight.iter().map(|&value| bf16::from_f32(value).to_f32()).collect();
        let (half_panels, brain_panels) = (pack_group::<f16>(&shape, &weight), pack_group::<bf16>(&shape, &weight));
        let panels = 0..shape.groups * shape.group_outputs.div_ceil(PANEL_OUTPUTS);
        for instructions in Instructions::available() {
            for (rounded, elements) in
                [(&halves, PanelElements::F16(&half_panels)), (&brains, PanelElements::Bf16(&brain_panels))]
            {
                let pieces = [PanelPiece { panels: panels.clone(), inputs: 0..shape.depth(), elements }];
                let weight = ConvolutionWeight::Panels(&pieces);
                let out = run(instructions, &shape, &x, weight, ConvolutionEpilogue::default());
                let expected =
                    run(instructions, &shape, &x, ConvolutionWeight::Plain(rounded), ConvolutionEpilogue::default());
                assert_eq!(out, expected, "{shape:?} {elements:?} {}", instructions.name());
            }
        }
    }
}

#[test]
fn half_weights_of_transposed_convolutions_are_widened() {
    let axis = WindowAxis { input: 13, output: 7, kernel: 3, stride: 2, dilation: 1, pad_begin: 1, pad_end: 1 };
    let shape = TransposedShape { batch: 1, groups: 1, group_inputs: 141, group_outputs: 5, axes: vec![axis; 2] };
    let (x, outputs) = (numbers(1, shape.inputs()), 5 * 9);
    let weight = numbers(2, 141 * outputs);
    let halves: Vec<f16> = pack_panels(141, outputs, |input, output| weight[input * outputs + output]);
    let brains: Vec<bf16> = pack_panels(141, outputs, |input, output| weight[input * outputs + output]);
    let rounded = |round: fn(f32) -> f32| shape.pack(&weight.iter().map(|&value| round(value)).collect::<Vec<f32>>());
    for (elements, rounded) in [
        (PanelElements::F16(&halves), rounded(|value| f16::from_f32(value).to_f32())),
        (PanelElements::Bf16(&brains), rounded(|value| bf16::from_f32(value).to_f32())),
    ] {
        for instructions in Instructions::available() {
            let run = |weight| {
                let mut out = vec![f32::NAN; shape.outputs()];
                transposed(instructions, &shape, &x, weight, &mut out, ConvolutionEpilogue::default());
                out
            };
            assert_eq!(run(elements), run(PanelElements::F32(&rounded)), "{}", instructions.name());
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Planes that are cut into several blocks of rows, rows shorter and longer than a vector, steps of one to three.
#[test]
fn depthwise_blocks_agree_with_naive_loops() {
    let axis = |input: usize, kernel: usize, stride: usize, dilation: usize| {
        let pad = kernel * dilation / 2;
        let output = (input + 2 * pad - (kernel - 1) * dilation - 1) / stride + 1;
        WindowAxis { input, output, kernel, stride, dilation, pad_begin: pad, pad_end: pad }
    };
    let cases = [
        vec![axis(90, 3, 1, 1), axis(112, 3, 1, 1)],
        vec![axis(113, 5, 2, 1), axis(75, 5, 2, 1)],
        vec![axis(400, 3, 1, 2), axis(13, 3, 1, 1)],
        vec![axis(200, 3, 2, 1), axis(28, 3, 2, 1)],
        vec![axis(60, 3, 3, 1), axis(95, 4, 3, 1)],
        vec![axis(9, 3, 1, 1), axis(20, 3, 2, 1), axis(31, 3, 1, 1)],
        vec![axis(9000, 7, 1, 3)],
    ];
    for axes in cases {
        let shape = ConvolutionShape { batch: 2, groups: 3, group_inputs: 1, group_outputs: 2, axes };
        let (x, weight) = (numbers(3, shape.inputs()), numbers(7, 6 * shape.depth()));
        let (bias, addend) = (numbers(5, 6), numbers(9, shape.outputs()));
        let expected = naive(&shape, &x, &weight);
        let plane = window::outputs(&shape.axes);
        for instructions in Instructions::available() {
            let run = |epilogue: ConvolutionEpilogue<'_>| {
                let mut out = vec![f32::NAN; shape.outputs()];
                depthwise(instructions, &shape, &x, &weight, &mut out, epilogue);
                out
            };
            let plain = with_threads(1, || run(ConvolutionEpilogue::default()));
            assert_close(instructions.name(), &plain, &expected);
            for addend in [None, Some(&addend[..])] {
                let epilogue =
                    ConvolutionEpilogue { bias: Some(&bias), addend, clamp: Some((-0.5, 1.0)), change: None };
                let completed: Vec<f32> = plain
                    .iter()
                    .enumerate()
                    .map(|(index, sum)| {
                        let value = sum + bias[index / plane % 6];
                        addend.map_or(value, |addend| value + addend[index]).clamp(-0.5, 1.0)
                    })
                    .collect();
                for threads in [1, 3] {
                    assert_eq!(bits(&with_threads(threads, || run(epilogue))), bits(&completed), "{shape:?}");
                }
            }
        }
    }
}

/// Two outputs of each channel are made on grids, one output by vectors of channels.
#[test]
fn short_rows_have_the_bits_of_rows() {
    let axis = |input: usize, kernel: usize, stride: usize, dilation: usize, pad: usize| {
        let output = (input + 2 * pad - (kernel - 1) * dilation - 1) / stride + 1;
        WindowAxis { input, output, kernel, stride, dilation, pad_begin: pad, pad_end: pad }
    };
    let cases = [
        vec![axis(7, 3, 1, 1, 1), axis(7, 3, 1, 1, 1)],
        vec![axis(14, 3, 2, 1, 1), axis(16, 3, 2, 1, 1)],
        vec![axis(9, 5, 1, 1, 2), axis(8, 5, 1, 1, 2)],
        vec![axis(14, 5, 2, 1, 2), axis(15, 5, 2, 1, 2)],
        vec![axis(9, 3, 1, 2, 0), axis(10, 3, 2, 1, 3)],
        vec![axis(9, 4, 1, 1, 1)],
    ];
    for axes in cases {
        for channels in [1, 16, 37] {
            let rows =
                ConvolutionShape { batch: 2, groups: channels, group_inputs: 1, group_outputs: 2, axes: axes.clone() };
            let lanes = ConvolutionShape { group_outputs: 1, ..rows.clone() };
            let (taps, positions) = (window::taps(&axes), window::outputs(&axes));
            let (x, weight, bias) = (numbers(3, lanes.inputs()), numbers(7, channels * taps), numbers(5, channels));
            let addend = numbers(9, lanes.outputs());
            let twice = |values: &[f32], length: usize| -> Vec<f32> {
                values.chunks(length).flat_map(|part| [part, part].concat()).collect()
            };
            let (weights, biases, addends) = (twice(&weight, taps), twice(&bias, 1), twice(&addend, positions));
            for instructions in Instructions::available() {
                let epilogue = |bias, addend| ConvolutionEpilogue {
                    bias: Some(bias),
                    addend: Some(addend),
                    clamp: Some((-2.0, 6.0)),
                    ..ConvolutionEpilogue::default()
                };
                let (mut by_rows, mut by_lanes) = (vec![f32::NAN; rows.outputs()], vec![f32::NAN; lanes.outputs()]);
                depthwise(instructions, &rows, &x, &weights, &mut by_rows, epilogue(&biases, &addends));
                depthwise(instructions, &lanes, &x, &weight, &mut by_lanes, epilogue(&bias, &addend));
                assert_eq!(bits(&by_rows), bits(&twice(&by_lanes, positions)), "{}, {lanes:?}", instructions.name());
            }
        }
    }
}

#[test]
fn transposed_bits_do_not_depend_on_threads() {
    let axis = WindowAxis { input: 61, output: 30, kernel: 4, stride: 2, dilation: 1, pad_begin: 1, pad_end: 1 };
    let shape = TransposedShape { batch: 1, groups: 1, group_inputs: 140, group_outputs: 50, axes: vec![axis; 2] };
    let (x, weight) = (numbers(1, shape.inputs()), shape.pack(&numbers(2, 140 * 50 * 16)));
    for instructions in Instructions::available() {
        let run = || {
            let mut out = vec![f32::NAN; shape.outputs()];
            let weight = PanelElements::F32(&weight);
            transposed(instructions, &shape, &x, weight, &mut out, ConvolutionEpilogue::default());
            out
        };
        assert_eq!(with_threads(1, run), with_threads(3, run), "{}", instructions.name());
    }
}
