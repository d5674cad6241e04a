//! Weights rounded to codes: how far they lie from what they were, and which bytes any part of them gives.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use ipuc_formats::dtype::DType;
use ipuc_formats::ops::WeightMatrix;
use ipuc_formats::tensor::{Tensor, unpack_codes};
use ipuc_passes::ir::{Constant, ConstantData, ConstantError, ConstantId, Graph, Rounded, RoundedTo};
use ipuc_passes::rounding::{Part, Region, RoundingError, Scheme};

const GROUPS: u64 = 2;
const INPUTS: u64 = 70;
const OUTPUTS: u64 = 37;

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
    [DType::I8, DType::I4, DType::U4, DType::I2, DType::U2].into_iter().flat_map(|code| {
        [(0, DType::F32), (16, DType::F16), (32, DType::F16), (64, DType::F32)].into_iter().flat_map(
            move |(block, scale)| {
                [0, 1].map(|output_axis| {
                    let matrix = WeightMatrix { groups: GROUPS, inputs: INPUTS, outputs: OUTPUTS, output_axis };
                    Scheme { code, scale, block, matrix }
                })
            },
        )
    })
}

/// The tensor of a part, as a constant of the graph gives it.
fn load(graph: &mut Graph, weight: ConstantId, scheme: Scheme, part: Part) -> Result<Tensor, ConstantError> {
    let columns = if part == Part::Codes { INPUTS } else { scheme.blocks() };
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
        let bits = scheme.code.bits();
        let codes = load(&mut graph, weight, scheme, Part::Codes).unwrap().codes();
        let scales = load(&mut graph, weight, scheme, Part::Scales).unwrap();
        let zeros = load(&mut graph, weight, scheme, Part::ZeroPoints).unwrap().codes();
        let scales: Vec<f32> = match scheme.scale {
            DType::F16 => scales.elements::<half::f16>().unwrap().iter().map(|scale| scale.to_f32()).collect(),
            _ => scales.elements::<f32>().unwrap().to_vec(),
        };
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
                let (code, zero, scale) = (whole(codes[element]), i32::from(zeros[at]), f64::from(scales[at]));
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

#[test]
fn any_part_has_the_bytes_of_the_whole() {
    let elements = elements();
    for scheme in schemes() {
        let (mut graph, weight) = graph(&elements);
        let whole = [Part::Codes, Part::Scales, Part::ZeroPoints]
            .map(|part| load(&mut graph, weight, scheme, part).unwrap().bytes().to_vec());
        for panels in [0..1, 1..4, 2..3, 0..6] {
            let outputs = Region::outputs_of_panels(&scheme, panels);
            let rounded = Rounded { weight, factor: None, to: RoundedTo::Codes(scheme, Part::Codes) };
            let region = graph.rounded_region(&rounded, scheme, outputs.clone(), None).unwrap();
            for (part, whole) in [Part::Codes, Part::Scales, Part::ZeroPoints].into_iter().zip(&whole) {
                let mut bytes = vec![0; whole.len()];
                // Any cut gives the same.
                let middle = (whole.len() / 3) & !3;
                region.read(part, 0, &mut bytes[..middle]);
                region.read(part, middle as u64, &mut bytes[middle..]);
                let bits = scheme.dtype(part).bits();
                let columns = if part == Part::Codes { INPUTS } else { scheme.blocks() };
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
