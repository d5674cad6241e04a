//! Products with codes against plain loops, on every instruction set, in every cut.

use ipuc_kernels::{
    matrix::{Matrix, MatrixMut},
    product::{
        CodeType, CodedLayout, CodedPiece, CodedPlane, CodedRole, Epilogue, OpenPanels, PANEL_OUTPUTS, PanelElements,
        PanelPiece, PlaneType, Rounded, Start, coded_product, pack_panels, panels_product,
    },
    simd::Instructions,
    testing::{float_of_8_bits as float, numbers, with_threads},
};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, LazyLock, Mutex},
};

use half::{bf16, f16};
use proptest::prelude::*;

/// Codes whose products are summed as integers.
pub(super) const CODES: [CodeType; 7] =
    [CodeType::I8, CodeType::U8, CodeType::I4, CodeType::U4, CodeType::I2, CodeType::U2, CodeType::E2m1];

const FLOATS: [CodeType; 2] = [CodeType::E4m3, CodeType::E5m2];

/// A weight as it is written, and what it means.
pub(super) struct Coded {
    pub layout: CodedLayout,
    pub n: usize,
    /// `[k][n]`; the bits of floats.
    pub codes: Vec<i32>,
    /// `[k / block rounded up][n]` of each plane.
    pub planes: Vec<Vec<f32>>,
    /// Planes of scales, in the order in which they are multiplied.
    scales: Vec<usize>,
    /// Pieces that were asked for.
    packed: Mutex<BTreeMap<[usize; 4], Arc<Aligned>>>,
}

fn least(code: CodeType) -> i32 {
    match code {
        CodeType::U8 | CodeType::U4 | CodeType::U2 | CodeType::E4m3 | CodeType::E5m2 | CodeType::E2m1 => 0,
        CodeType::I8 | CodeType::I4 | CodeType::I2 => -(1 << (code.bits() - 1)),
    }
}

/// The number that is a code, or that it stands for where it is a float.
pub(super) fn meaning(code: CodeType, value: i32) -> f32 {
    match code {
        CodeType::E4m3 => float(value as u8, 3, 7),
        CodeType::E5m2 => float(value as u8, 2, 15),
        CodeType::E2m1 => {
            let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][value as usize % 8];
            if value < 8 { magnitude } else { -magnitude }
        }
        CodeType::I8 | CodeType::U8 | CodeType::I4 | CodeType::U4 | CodeType::I2 | CodeType::U2 => value as f32,
    }
}

/// The bits of a float of 8 bits, no NaN, for a number from -1 to 1.
fn eight_bits(value: f32) -> u8 {
    ((value + 1.0) * 127.0) as u8 & 0xfe
}

/// A plane's value in the type that it is stored in.
fn stored(element: PlaneType, value: f32) -> f32 {
    let integer = |bits: i32, signed: bool| {
        let least = if signed { -(1 << (bits - 1)) } else { 0 };
        ((value + 1.0) / 2.0 * (1 << bits) as f32).floor().clamp(0.0, ((1 << bits) - 1) as f32) + least as f32
    };
    match element {
        PlaneType::F32 => value,
        PlaneType::F16 => f16::from_f32(value).to_f32(),
        PlaneType::Bf16 => bf16::from_f32(value).to_f32(),
        PlaneType::I32 => (value * 1e6).round(),
        PlaneType::I8 => integer(8, true),
        PlaneType::U8 => integer(8, false),
        PlaneType::I4 => integer(4, true),
        PlaneType::U4 => integer(4, false),
        PlaneType::I2 => integer(2, true),
        PlaneType::U2 => integer(2, false),
        PlaneType::E4m3 => float(eight_bits(value), 3, 7),
        PlaneType::E8m0 => match eight_bits(value) {
            0 => 2.0_f32.powi(-127),
            code => 2.0_f32.powi(i32::from(code % 64) - 32),
        },
    }
}

/// The code of each number that e4m3 has.
static CODES_OF_E4M3: LazyLock<BTreeMap<u32, u8>> =
    LazyLock::new(|| (0..=u8::MAX).map(|code| (float(code, 3, 7).to_bits(), code)).collect());

/// Elements one behind the other; bits below a byte from the lowest on.
fn write(element: PlaneType, values: impl Iterator<Item = f32>) -> Vec<u8> {
    let bits = element.row_bytes() * 8 / PANEL_OUTPUTS;
    let mut bytes = Vec::new();
    for (index, value) in values.enumerate() {
        match element {
            PlaneType::F32 => bytes.extend(value.to_le_bytes()),
            PlaneType::F16 => bytes.extend(f16::from_f32(value).to_le_bytes()),
            PlaneType::Bf16 => bytes.extend(bf16::from_f32(value).to_le_bytes()),
            PlaneType::I32 => bytes.extend((value as i32).to_le_bytes()),
            PlaneType::E4m3 => bytes.push(CODES_OF_E4M3.get(&value.to_bits()).copied().unwrap_or(0)),
            PlaneType::E8m0 if value == 2.0_f32.powi(-127) => bytes.push(0),
            PlaneType::E8m0 => bytes.push((value.to_bits() >> 23) as u8),
            PlaneType::I8 | PlaneType::U8 | PlaneType::I4 | PlaneType::U4 | PlaneType::I2 | PlaneType::U2 => {
                bytes.resize(((index + 1) * bits).div_ceil(8), 0);
                let place = index * bits;
                bytes[place / 8] |= ((value as i32 as u8) & ((1_u32 << bits) - 1) as u8) << (place % 8);
            }
        }
    }
    bytes
}

/// Bytes at a multiple of 4.
pub(super) struct Aligned(Vec<u32>);

impl Aligned {
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().expect("whole lines"))).collect())
    }

    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Coded {
    /// Random codes and parameters; the layout's `cut` as the encoding of weights has it.
    pub fn new(code: CodeType, k: usize, n: usize, planes: &[CodedPlane], rounded: Rounded) -> Self {
        let fills = |plane: &&CodedPlane| plane.block > 0;
        let lines = |plane: &CodedPlane| (plane.block * 64 / plane.element.row_bytes()).max(plane.block);
        let cut = planes.iter().filter(fills).map(lines).max().unwrap_or(256).min(1024);
        let layout = CodedLayout::new(code, k, cut, planes, rounded);
        let range = (1 << code.bits()) as f32;
        let codes = numbers(11, k * n);
        let code = |value: &f32| {
            let found = ((value + 1.0) / 2.0 * range).floor().min(range - 1.0) as i32 + least(code);
            // NaN has many forms, of which any may come out.
            if meaning(code, found).is_finite() { found } else { 1 }
        };
        let values = planes.iter().enumerate().map(|(index, plane)| {
            let rows = if plane.block == 0 { 1 } else { k.div_ceil(plane.block) };
            let values = numbers(20 + index as u32, rows * n);
            let factor = if plane.role == CodedRole::ZeroPoint && plane.element.is_float() { 3.0 } else { 1.0 };
            values.iter().map(|value| stored(plane.element, value * factor)).collect()
        });
        let of_role = |index: &usize| planes[*index].role == CodedRole::Scale;
        let mut scales: Vec<usize> = (0..planes.len()).filter(of_role).collect();
        scales.sort_by_key(|&plane| if planes[plane].block == 0 { 0 } else { 1024 - planes[plane].block });
        let (codes, planes) = (codes.iter().map(code).collect(), values.collect());
        Self { n, codes, planes, scales, layout, packed: Mutex::default() }
    }

    fn at(&self, plane: usize, input: usize, output: usize) -> f32 {
        let block = self.layout.planes()[plane].block;
        self.planes[plane][input.checked_div(block).unwrap_or(0) * self.n + output]
    }

    /// The product of the scales, and the zero point.
    pub fn parameters(&self, input: usize, output: usize) -> (f32, Option<f32>) {
        let planes = self.layout.planes();
        let scale = self.scales.iter().fold(1.0, |product, &plane| product * self.at(plane, input, output));
        let zero = (0..planes.len()).find(|&plane| planes[plane].role == CodedRole::ZeroPoint);
        (scale, zero.map(|plane| self.at(plane, input, output)))
    }

    fn value(&self, input: usize, output: usize) -> f32 {
        let (scale, zero) = self.parameters(input, output);
        let code = meaning(self.layout.code(), self.codes[input * self.n + output]);
        let value = (code - zero.unwrap_or(0.0)) * scale;
        match self.layout.rounded() {
            Rounded::F32 => value,
            Rounded::F16 => f16::from_f32(value).to_f32(),
            Rounded::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// The bytes of some inputs of some panels: the same for all instruction sets.
    pub fn pack(&self, panels: Range<usize>, inputs: Range<usize>) -> Arc<Aligned> {
        let mut packed = self.packed.lock().expect("no test panicked");
        let piece = packed.entry([panels.start, panels.end, inputs.start, inputs.end]);
        piece.or_insert_with(|| Arc::new(self.pack_piece(panels, inputs))).clone()
    }

    fn pack_piece(&self, panels: Range<usize>, inputs: Range<usize>) -> Aligned {
        let mut bytes = Vec::new();
        let code = self.layout.code();
        for panel in panels {
            for first in inputs.clone().step_by(self.layout.cut()) {
                let end = inputs.end.min(first + self.layout.cut());
                for (index, plane) in self.layout.planes().iter().enumerate() {
                    let rows = match plane.block {
                        0 if first > 0 => continue,
                        0 => 0..1,
                        block => first / block..end.div_ceil(block),
                    };
                    let places =
                        rows.flat_map(|row| (0..PANEL_OUTPUTS).map(move |lane| (row, panel * PANEL_OUTPUTS + lane)));
                    let value =
                        |(row, output)| if output < self.n { self.planes[index][row * self.n + output] } else { 0.0 };
                    bytes.extend(write(plane.element, places.map(value)));
                    bytes.resize(bytes.len().next_multiple_of(64), 0);
                }
                let group = code.inputs_of_line();
                for line in (first..end).step_by(group) {
                    for output in panel * PANEL_OUTPUTS..(panel + 1) * PANEL_OUTPUTS {
                        let mut word = [0_u8; 4];
                        for index in 0..group.min(end - line) {
                            if output < self.n {
                                let offset = if code == CodeType::I8 { 0 } else { least(code) };
                                let stored = (self.codes[(line + index) * self.n + output] - offset) as u8;
                                word[index % 4] |= stored << (index / 4 * code.bits());
                            }
                        }
                        bytes.extend(word);
                    }
                }
            }
        }
        assert!(bytes.len().is_multiple_of(64), "whole lines");
        Aligned::new(&bytes)
    }

    fn decoded(&self) -> Vec<f32> {
        pack_panels(self.layout.inputs(), self.n, |input, output| self.value(input, output))
    }
}

pub(super) const fn plane(role: CodedRole, element: PlaneType, block: usize) -> CodedPlane {
    CodedPlane { role, element, block }
}

fn integer(code: CodeType) -> PlaneType {
    match code {
        CodeType::I8 => PlaneType::I8,
        CodeType::U8 | CodeType::E4m3 | CodeType::E5m2 => PlaneType::U8,
        CodeType::I4 => PlaneType::I4,
        CodeType::U4 | CodeType::E2m1 => PlaneType::U4,
        CodeType::I2 => PlaneType::I2,
        CodeType::U2 => PlaneType::U2,
    }
}

/// Combinations of planes with integer zero points or none.
pub(super) fn exact_planes(code: CodeType) -> Vec<Vec<CodedPlane>> {
    use CodedRole::{Scale, Sum, ZeroPoint};
    use PlaneType::{Bf16, E4m3, E8m0, F16, F32, I32};
    let zero = integer(code);
    let planes = vec![
        vec![plane(Scale, F32, 0)],
        vec![plane(Scale, F16, 32)],
        vec![plane(Scale, F32, 16)],
        vec![plane(Scale, Bf16, 64), plane(ZeroPoint, zero, 64)],
        vec![plane(Scale, F16, 256), plane(ZeroPoint, zero, 256)],
        vec![plane(Sum, I32, 0), plane(Scale, F16, 0), plane(ZeroPoint, zero, 0)],
        vec![plane(Scale, F16, 16), plane(Scale, F32, 0), plane(ZeroPoint, zero, 0)],
        vec![plane(Scale, F16, 32), plane(Scale, Bf16, 128), plane(ZeroPoint, zero, 32)],
        vec![],
        vec![plane(Scale, E8m0, 32)],
        vec![plane(Scale, F32, 0), plane(Scale, E4m3, 16)],
        vec![plane(Scale, E4m3, 64), plane(ZeroPoint, zero, 64)],
    ];
    planes.into_iter().map(|planes| fitting(code, planes)).collect()
}

/// Floats have no zero points.
fn fitting(code: CodeType, mut planes: Vec<CodedPlane>) -> Vec<CodedPlane> {
    let floats = FLOATS.contains(&code) || code == CodeType::E2m1;
    planes.retain(|plane| !floats || plane.role != CodedRole::ZeroPoint);
    planes
}

fn all_planes(code: CodeType) -> Vec<Vec<CodedPlane>> {
    use CodedRole::{Scale, ZeroPoint};
    let mut all = exact_planes(code);
    let with_floats = [
        vec![plane(Scale, PlaneType::F32, 128), plane(ZeroPoint, PlaneType::F16, 128)],
        vec![plane(ZeroPoint, PlaneType::F32, 0), plane(Scale, PlaneType::F16, 64)],
    ];
    all.extend(with_floats.map(|planes| fitting(code, planes)));
    all
}

/// Panels and inputs of the pieces of a call.
pub(super) type Call = Vec<(Range<usize>, Range<usize>)>;

/// The pieces of a call, whose bytes are packed one by one.
pub(super) fn pieces<'a>(call: &Call, packed: &'a [Arc<Aligned>]) -> Vec<CodedPiece<'a>> {
    let piece = |((panels, inputs), bytes): (&(Range<usize>, Range<usize>), &'a Arc<Aligned>)| CodedPiece {
        panels: panels.clone(),
        inputs: inputs.clone(),
        bytes: bytes.bytes(),
    };
    call.iter().zip(packed).map(piece).collect()
}

/// Ways to give a weight of `panels` panels and `k` inputs: pieces of panels and inputs, call by call.
pub(super) fn calls(panels: usize, k: usize, unit: usize) -> Vec<Vec<Call>> {
    let mut all = vec![vec![vec![(0..panels, 0..k)]]];
    if panels == 0 {
        return all;
    }
    // The last panel in units; all panels before it in one piece with its first.
    let units = |first: usize| (first..k).step_by(unit).map(|begin| begin..k.min(begin + unit));
    let mut calls: Vec<Vec<_>> = units(0).map(|inputs| vec![(panels - 1..panels, inputs)]).collect();
    if let Some(call) = calls.first_mut() {
        call.insert(0, (0..panels - 1, 0..k));
        all.push(calls);
    }
    // Two panels open at once, of which the second ends first.
    if panels > 1 && k > unit {
        let mut calls = vec![vec![(0..1, 0..unit)], vec![(1..2, 0..unit)], vec![(1..2, unit..k), (2..panels, 0..k)]];
        calls.extend(units(unit).map(|inputs| vec![(0..1, inputs)]));
        all.push(calls);
    }
    all
}

/// The product of `m` rows, given in these pieces.
fn multiply(
    instructions: Instructions,
    weight: &Coded,
    x: &[f32],
    m: usize,
    calls: &[Call],
    epilogue: Epilogue<'_>,
) -> Vec<f32> {
    let mut out = vec![f32::NAN; m * weight.n];
    let mut open = OpenPanels::default();
    for call in calls {
        let packed: Vec<Arc<Aligned>> =
            call.iter().map(|(panels, inputs)| weight.pack(panels.clone(), inputs.clone())).collect();
        let pieces = pieces(call, &packed);
        let matrix = MatrixMut::new(&mut out, m, weight.n);
        let x = Matrix::new(x, m, weight.layout.inputs());
        coded_product(instructions, x, &weight.layout, &pieces, &mut open, matrix, Start::Zero, epilogue);
    }
    assert!(open.is_empty(), "panels that did not end");
    out
}

fn decoded_product(
    instructions: Instructions,
    weight: &Coded,
    x: &[f32],
    m: usize,
    epilogue: Epilogue<'_>,
) -> Vec<f32> {
    let mut out = vec![f32::NAN; m * weight.n];
    let (k, decoded) = (weight.layout.inputs(), weight.decoded());
    let piece = PanelPiece::whole(weight.n, k, PanelElements::F32(&decoded));
    let matrix = MatrixMut::new(&mut out, m, weight.n);
    panels_product(instructions, Matrix::new(x, m, k), &[piece], matrix, Start::Zero, epilogue);
    out
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Asserts that the product with codes is that with decoded values.
fn check(weight: &Coded, m: usize) {
    let x = numbers(5, m * weight.layout.inputs());
    let bias = numbers(6, weight.n);
    let epilogue = Epilogue { bias: Some(&bias), clamp: Some((-1e3, 1e3)), ..Epilogue::default() };
    for instructions in Instructions::available() {
        let expected = decoded_product(instructions, weight, &x, m, epilogue);
        let unit = weight.layout.cut().max(256);
        for (index, calls) in calls(weight.n.div_ceil(PANEL_OUTPUTS), weight.layout.inputs(), unit).iter().enumerate() {
            let found = multiply(instructions, weight, &x, m, calls, epilogue);
            let name = instructions.name();
            assert!(
                bits(&found) == bits(&expected),
                "{name}, m = {m}, n = {}, calls {index}, {:?}",
                weight.n,
                weight.layout
            );
        }
    }
}

/// Of all codes with all planes, as values of one type; a test each, so that they run side by side.
fn products_with_codes_are_those_with_their_values(rounded: Rounded) {
    for code in CODES.into_iter().chain(FLOATS) {
        for planes in all_planes(code) {
            check(&Coded::new(code, 1301, 37, &planes, rounded), 3);
        }
    }
}

#[test]
fn products_with_codes_are_those_with_their_values_in_f32() {
    products_with_codes_are_those_with_their_values(Rounded::F32);
}

#[test]
fn products_with_codes_are_those_with_their_values_in_f16() {
    products_with_codes_are_those_with_their_values(Rounded::F16);
}

#[test]
fn products_with_codes_are_those_with_their_values_in_bf16() {
    products_with_codes_are_those_with_their_values(Rounded::Bf16);
}

/// Inputs that are whole lines, but no whole blocks, are computed in lines too.
#[test]
fn a_last_block_of_whole_lines() {
    for code in CODES.into_iter().chain(FLOATS) {
        for planes in all_planes(code) {
            for (m, k) in [(1, 16), (1, 192), (2, 400), (1, 640), (3, 1104)] {
                check(&Coded::new(code, k, 20, &planes, Rounded::F32), m);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn any_shape(
        code in prop::sample::select([&CODES[..], &FLOATS[..]].concat()),
        planes in 0_usize..14,
        k in prop_oneof![0_usize..300, 500_usize..1100],
        n in 1_usize..70,
        m in prop_oneof![Just(1_usize), 0_usize..6, 6_usize..70],
    ) {
        let planes = &all_planes(code)[planes];
        check(&Coded::new(code, k, n, planes, Rounded::F32), m);
    }
}

#[test]
fn threads_do_not_change_bits_of_decoded_products() {
    for (m, k, n) in [(1, 1500, 500), (3, 700, 300), (50, 600, 200)] {
        let planes = [plane(CodedRole::Scale, PlaneType::F16, 32)];
        let weight = Coded::new(CodeType::I4, k, n, &planes, Rounded::F32);
        with_threads(1, || check(&weight, m));
        with_threads(2, || check(&weight, m));
    }
}

#[test]
#[should_panic(expected = "panel 0 goes on at input 256")]
fn a_piece_without_the_one_before_is_refused() {
    let weight = Coded::new(CodeType::I8, 300, 16, &[plane(CodedRole::Scale, PlaneType::F32, 0)], Rounded::F32);
    let calls = [vec![(0..1, 256..300)]];
    multiply(Instructions::best(), &weight, &[0.0; 300], 1, &calls, Epilogue::default());
}

#[test]
#[should_panic(expected = "several planes of zero points")]
fn one_plane_of_zero_points() {
    let zero = plane(CodedRole::ZeroPoint, PlaneType::U8, 0);
    let _ = CodedLayout::new(CodeType::U8, 16, 256, &[zero, zero], Rounded::F32);
}

#[test]
#[should_panic(expected = "a block of 48 inputs in records of 256")]
fn blocks_are_powers_of_two() {
    let _ = CodedLayout::new(CodeType::U8, 16, 256, &[plane(CodedRole::Scale, PlaneType::F32, 48)], Rounded::F32);
}

#[test]
#[should_panic(expected = "floats have no zero points")]
fn floats_have_no_zero_points() {
    let planes = [plane(CodedRole::Scale, PlaneType::F32, 0), plane(CodedRole::ZeroPoint, PlaneType::U4, 0)];
    let _ = CodedLayout::new(CodeType::E2m1, 16, 256, &planes, Rounded::F32);
}
