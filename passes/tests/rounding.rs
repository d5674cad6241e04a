//! Weights rounded to codes: how far they lie from what they were, and which bytes any part of them gives.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use ipuc_formats::dtype::DType;
use ipuc_formats::narrow::{self, RoundMode};
use ipuc_formats::ops::WeightMatrix;
use ipuc_formats::tensor::{Tensor, unpack_codes};
use ipuc_passes::ir::{Constant, ConstantData, ConstantError, ConstantId, Graph, Rounded, RoundedTo};
use ipuc_passes::rounding::{Part, Region, RoundingError, Scheme};

const GROUPS: u64 = 2;
const INPUTS: u64 = 70;
const OUTPUTS: u64 = 37;
const PARTS: [Part; 4] = [Part::Codes, Part::Scales, Part::ZeroPoints, Part::OutputScales];

/// A fixed sequence of values of different magnitudes, with blocks that are special.
fn elements() -> Vec<f32> {
    let mut state = 3u32;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let count = (GROUPS * INPUTS * OUTPUTS) as usize;
    (0..count)
        .map(|index| match index / 32 % 11 {
            0 => 0.0,
            1 => 0.37,
            2 => uniform() * 1e-39,
            3 => uniform() * 1e-6,
            4 => uniform() + 3.0,
            5 if index % 32 == 9 => 3000.0,
            _ => uniform() * 0.05,
        })
        .collect()
}

fn graph(elements: &[f32]) -> (Graph, ConstantId) {
    let shape = [GROUPS as usize, INPUTS as usize, OUTPUTS as usize];
    let mut graph = Graph::default();
    let weight = graph.add_constant(Constant::of(Tensor::from_elements(&shape, elements).unwrap(), Some("w")));
    (graph, weight)
}

fn schemes() -> impl Iterator<Item = Scheme> {
    let codes = [DType::I8, DType::I4, DType::U4, DType::I2, DType::U2, DType::F8E4M3FN, DType::F8E5M2];
    let usual = codes.into_iter().flat_map(|code| {
        [(0, DType::F32), (16, DType::F16), (32, DType::F16), (64, DType::F32)]
            .into_iter()
            .map(move |(block, scale)| (code, block, scale))
    });
    let narrow = [
        (DType::F4E2M1, 32, DType::F8E8M0),
        (DType::F4E2M1, 0, DType::F8E8M0),
        (DType::F4E2M1, 16, DType::F8E4M3FN),
        (DType::F4E2M1, 0, DType::F32),
        (DType::I4, 16, DType::F8E4M3FN),
    ];
    usual.chain(narrow).flat_map(|(code, block, scale)| {
        [0, 1].map(|output_axis| {
            let matrix = WeightMatrix { groups: GROUPS, inputs: INPUTS, outputs: OUTPUTS, output_axis };
            Scheme { code, scale, block, matrix }
        })
    })
}

/// Columns of a part: what it has for each output.
fn columns(scheme: &Scheme, part: Part) -> u64 {
    match part {
        Part::Codes => INPUTS,
        Part::Scales | Part::ZeroPoints => scheme.blocks(),
        Part::OutputScales => 1,
    }
}

/// The tensor of a part, as a constant of the graph gives it.
fn load(graph: &mut Graph, weight: ConstantId, scheme: Scheme, part: Part) -> Result<Tensor, ConstantError> {
    let columns = columns(&scheme, part);
    let shape = vec![(GROUPS * columns * OUTPUTS) as usize];
    let data = ConstantData::Rounded(Rounded { weight, factor: None, to: RoundedTo::Codes(scheme, part) });
    let constant =
        Constant { name: None, dtype: scheme.dtype(part), shape, data, origin: None, encoding: None, zeros: None };
    let id = graph.add_constant(constant);
    graph.load_constant(id)
}

/// Row-major index among elements, or among blocks, of each output.
fn index(scheme: &Scheme, columns: u64, output: u64, column: u64) -> usize {
    let (group, output) = (output / OUTPUTS, output % OUTPUTS);
    let within = if scheme.matrix.output_axis == 0 { output * columns + column } else { column * OUTPUTS + output };
    (group * columns * OUTPUTS + within) as usize
}

#[test]
fn no_element_is_off_by_more_than_half_a_step_unless_it_is_clipped() {
    let elements = elements();
    for scheme in schemes() {
        let (mut graph, weight) = graph(&elements);
        if scheme.code.is_float() {
            continue;
        }
        let bits = scheme.code.bits();
        let codes = load(&mut graph, weight, scheme, Part::Codes).unwrap().codes();
        let scales = load(&mut graph, weight, scheme, Part::Scales).unwrap();
        let zeros = load(&mut graph, weight, scheme, Part::ZeroPoints).unwrap().codes();
        let factors = load(&mut graph, weight, scheme, Part::OutputScales).unwrap();
        let factors = factors.elements::<f32>().unwrap();
        let scales = numbers(&scales);
        let half = 1i32 << (bits - 1);
        let (least, greatest) = match (scheme.has_zero_points(), bits) {
            (true, _) => (0, 2 * half - 1),
            (false, 8) => (1 - half, half - 1),
            (false, _) => (-half, half - 1),
        };
        let whole = |code: u8| {
            let code = i32::from(code);
            if !scheme.has_zero_points() && code >= half { code - 2 * half } else { code }
        };
        let block = if scheme.block == 0 { INPUTS } else { scheme.block };
        let (mut clipped, mut blocks) = (0, 0);
        for output in 0..GROUPS * OUTPUTS {
            for input in 0..INPUTS {
                let at = index(&scheme, scheme.blocks(), output, input / block);
                let element = index(&scheme, INPUTS, output, input);
                let scale = f64::from(factors[index(&scheme, 1, output, 0)] * scales[at]);
                let (code, zero) = (whole(codes[element]), i32::from(zeros[at]));
                let value = f64::from((code - zero) as f32) * scale;
                let off = (value - f64::from(elements[element])).abs();
                // Below this, values become zero.
                let step = scale.abs().max(2e-30);
                assert!((least..=greatest).contains(&code), "{scheme:?}: code {code}");
                let at_end = code == least || code == greatest;
                assert!(off <= step * 0.500_001 || at_end, "{scheme:?}: {value} for {}", elements[element]);
                clipped += usize::from(off > step * 0.500_001);
                blocks += 1;
            }
        }
        let most = match bits {
            2 => blocks / 2,
            4 => blocks / 8,
            _ => blocks / 50,
        };
        assert!(clipped <= most, "{scheme:?}: {clipped} of {blocks} clipped");
    }
}

/// The elements of a tensor of floats.
fn numbers(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype() {
        DType::F32 => tensor.elements::<f32>().unwrap().to_vec(),
        DType::F16 => tensor.elements::<half::f16>().unwrap().iter().map(|scale| scale.to_f32()).collect(),
        dtype => tensor.codes().into_iter().map(|code| narrow::decode(dtype, code)).collect(),
    }
}

#[test]
fn floats_are_those_nearest_under_their_scales() {
    let elements = elements();
    for scheme in schemes().filter(|scheme| scheme.code.is_float()) {
        let (mut graph, weight) = graph(&elements);
        let mut part = |part| load(&mut graph, weight, scheme, part).unwrap();
        let codes = part(Part::Codes);
        let (found, scales, factors) =
            (numbers(&codes), numbers(&part(Part::Scales)), numbers(&part(Part::OutputScales)));
        let greatest = narrow::values(scheme.code).unwrap().iter().filter(|value| value.is_finite());
        let greatest = greatest.fold(0.0f32, |greatest, &value| greatest.max(value));
        let block = if scheme.block == 0 { INPUTS } else { scheme.block };
        let mut clipped = 0;
        // The sums of squares of each block: of what is wrong, and of all.
        let mut errors = vec![(0.0, 0.0); (GROUPS * OUTPUTS * scheme.blocks()) as usize];
        for output in 0..GROUPS * OUTPUTS {
            let factor = factors[index(&scheme, 1, output, 0)];
            assert!(factor == 1.0 || scheme.scale == DType::F8E4M3FN, "{scheme:?}: {factor}");
            for input in 0..INPUTS {
                let element = index(&scheme, INPUTS, output, input);
                let scale = factor * scales[index(&scheme, scheme.blocks(), output, input / block)];
                let steps = elements[element] / scale;
                let nearest = narrow::decode(scheme.code, narrow::encode(scheme.code, steps, true, RoundMode::Up));
                // Below this, values become zero.
                let small = elements[element].abs() < 1e-30;
                assert!(found[element] == nearest || small && found[element] == 0.0, "{scheme:?}: {steps}");
                assert!(found[element] != 0.0 || codes.codes()[element] == 0, "{scheme:?}: minus zero");
                clipped += usize::from(!small && steps.abs() > greatest * 1.07);
                let off = f64::from(found[element] * scale - elements[element]);
                let block = (output * scheme.blocks() + input / block) as usize;
                errors[block].0 += off * off;
                errors[block].1 += f64::from(elements[element]).powi(2);
            }
        }
        assert!(clipped < elements.len() / 20, "{scheme:?}: {clipped} clipped");
        // A bit of precision less is four times the squared error.
        let most = match scheme.code {
            DType::F8E4M3FN => 0.001,
            DType::F8E5M2 => 0.004,
            // Scales of blocks far below others of their output end.
            _ if scheme.scale == DType::F8E4M3FN => 0.06,
            _ => 0.02,
        };
        let shares: Vec<f64> = errors.iter().filter(|(_, all)| *all > 1e-50).map(|(wrong, all)| wrong / all).collect();
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        assert!(mean < most, "{scheme:?}: {mean} wrong");
    }
}

#[test]
fn any_part_has_the_bytes_of_the_whole() {
    let elements = elements();
    for scheme in schemes() {
        let (mut graph, weight) = graph(&elements);
        let whole = PARTS.map(|part| load(&mut graph, weight, scheme, part).unwrap().bytes().to_vec());
        for panels in [0..1, 1..4, 2..3, 0..6] {
            let outputs = Region::outputs_of_units(&scheme, panels, 16);
            let rounded = Rounded { weight, factor: None, to: RoundedTo::Codes(scheme, Part::Codes) };
            let region = graph.rounded_region(&rounded, scheme, outputs.clone(), None).unwrap();
            for (part, whole) in PARTS.into_iter().zip(&whole) {
                let mut bytes = vec![0; whole.len()];
                // Any cut gives the same.
                let middle = (whole.len() / 3) & !3;
                region.read(part, 0, &mut bytes[..middle]);
                region.read(part, middle as u64, &mut bytes[middle..]);
                let bits = scheme.dtype(part).bits();
                let columns = columns(&scheme, part);
                let words = |bytes: &[u8]| -> Vec<Vec<u8>> {
                    if bits < 8 {
                        unpack_codes(bytes, bits, bytes.len() * 8 / bits).into_iter().map(|code| vec![code]).collect()
                    } else {
                        bytes.chunks(bits / 8).map(<[u8]>::to_vec).collect()
                    }
                };
                let (found, whole) = (words(&bytes), words(whole));
                for output in 0..GROUPS * OUTPUTS {
                    for column in 0..columns {
                        let at = index(&scheme, columns, output, column);
                        let expected = if outputs.contains(&output) { &whole[at] } else { &vec![0; bits.div_ceil(8)] };
                        assert_eq!(&found[at], expected, "{scheme:?} {part:?} {outputs:?} {output} {column}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_codes_cannot_stand_for_is_refused_by_place() {
    for (bad, output_axis) in [(f32::NAN, 0), (f32::INFINITY, 1), (f32::NEG_INFINITY, 1)] {
        let mut elements = elements();
        elements[3333] = bad;
        let (mut graph, weight) = graph(&elements);
        let matrix = WeightMatrix { groups: GROUPS, inputs: INPUTS, outputs: OUTPUTS, output_axis };
        let scheme = Scheme { code: DType::I4, scale: DType::F16, block: 32, matrix };
        let error = load(&mut graph, weight, scheme, Part::Codes).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot round weight `w`: element 3333 is {bad}, which no code stands for")
        );
    }
    let (mut graph, weight) = graph(&vec![1e7; elements().len()]);
    let matrix = WeightMatrix { groups: GROUPS, inputs: INPUTS, outputs: OUTPUTS, output_axis: 1 };
    let scheme = Scheme { code: DType::I4, scale: DType::F16, block: 32, matrix };
    let Err(ConstantError::Rounding { error, .. }) = load(&mut graph, weight, scheme, Part::Codes) else { panic!() };
    assert_eq!(error, RoundingError::Scale { magnitude: 1e7, scale: DType::F16 });
}
