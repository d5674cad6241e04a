//! Laws of packing: what comes out is what went in, whatever the encoding and wherever it is cut.

use super::*;
use crate::dtype::DType;
use crate::ops::WeightMatrix;
use crate::tensor::{Tensor, element_count};
use half::{bf16, f16};
use proptest::prelude::*;
use std::io;
use std::ops::Range;

/// The record of a weight cut at `budget_bytes`; part `i` is in extent `i`.
fn record(encoding: impl Into<Coded>, dtype: DType, shape: &[u64], budget_bytes: u64) -> WeightRecord {
    let encoding = encoding.into();
    let parts = encoding.split(Logical { dtype, shape }, budget_bytes).unwrap();
    let parts = parts.into_iter().zip(0..).map(|(part, extent)| part.in_extent(extent)).collect();
    let shape = shape.to_vec();
    WeightRecord {
        name: None,
        dtype,
        shape,
        encoding,
        reason: String::new(),
        parts,
        sources: Vec::new(),
        zeros: None,
        id: 0,
    }
}

fn values_of(tensor: &Tensor) -> Elements {
    Elements { stored: tensor.clone(), planes: Vec::new() }
}

fn pack_run(weight: &WeightRecord, run: PartRange, elements: &Elements) -> Result<Vec<u8>, EncodingError> {
    let bytes = weight.encoding.part_bytes(weight.logical(), run)?.unwrap();
    let mut packed = vec![0xee; bytes as usize];
    weight.encoding.pack(weight.logical(), run, &mut &*elements, &mut packed)?;
    Ok(packed)
}

fn pack_all(weight: &WeightRecord, elements: &Elements) -> Vec<Vec<u8>> {
    weight.parts.iter().map(|part| pack_run(weight, part.range(), elements).unwrap()).collect()
}

fn unpack(weight: &WeightRecord, parts: &[Vec<u8>]) -> Result<Elements, EncodingError> {
    weight.unpack(|index| Ok::<_, EncodingError>(parts[index].as_slice()))
}

fn decode(weight: &WeightRecord, parts: &[Vec<u8>]) -> Tensor {
    weight.decode(|index| Ok::<_, EncodingError>(parts[index].as_slice())).unwrap()
}

/// The parts of values that come out as they went in.
fn round_trip(weight: &WeightRecord, canonical: &Tensor) -> Vec<Vec<u8>> {
    weight.check().unwrap();
    let packed = pack_all(weight, &values_of(canonical));
    assert_eq!(&decode(weight, &packed), canonical);
    packed
}

/// Distinct bytes that are also distinct elements of every width.
fn canonical(dtype: DType, shape: &[u64]) -> Tensor {
    let shape: Vec<usize> = shape.iter().map(|&extent| extent as usize).collect();
    let bytes = dtype.packed_bytes(element_count(&shape).unwrap()).unwrap();
    let width = (dtype.bits() / 8).max(1);
    let byte = |at: usize| (at / width).wrapping_mul(2_654_435_761).rotate_right(8 * (at % width) as u32 + 7) as u8;
    let mut content: Vec<u8> = (0..bytes).map(byte).collect();
    let used = shape.iter().product::<usize>() * dtype.bits() % 8;
    if let (1.., Some(last)) = (used, content.last_mut()) {
        *last &= (1 << used) - 1;
    }
    Tensor::from_bytes(dtype, &shape, &content).unwrap()
}

fn matrix(outputs: u64, inputs: u64, output_axis: u32) -> WeightMatrix {
    WeightMatrix { groups: 1, inputs, outputs, output_axis }
}

fn values(dtype: DType, outputs: u64, inputs: u64, output_axis: u32) -> Panels {
    Panels::values(dtype, matrix(outputs, inputs, output_axis))
}

fn stored_bytes(weight: &WeightRecord) -> u64 {
    weight.encoding.stored_bytes(weight.logical()).unwrap().unwrap()
}

#[test]
fn panels_have_the_specified_bytes() {
    // [inputs, outputs] = [3, 2] in pairs of inputs.
    let elements: Vec<bf16> = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(bf16::from_f32).to_vec();
    let tensor = Tensor::from_elements(&[3, 2], &elements).unwrap();
    let packed = round_trip(&record(values(DType::BF16, 2, 3, 1), DType::BF16, &[3, 2], 1 << 21), &tensor);
    assert_eq!(packed[0].len(), 2 * 16 * 2 * 2);
    let found: Vec<f32> =
        packed[0].as_chunks::<2>().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect();
    assert_eq!(found[..5], [1.0, 3.0, 2.0, 4.0, 0.0]);
    assert_eq!(found[32..37], [5.0, 0.0, 6.0, 0.0, 0.0]);
    assert_eq!(found.iter().filter(|&&value| value != 0.0).count(), 6);

    // The same elements as [outputs, inputs] of one input side by side.
    let tensor = Tensor::from_elements(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let packed = round_trip(&record(values(DType::F32, 2, 3, 0), DType::F32, &[2, 3], 1 << 21), &tensor);
    let found: Vec<f32> = packed[0].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(
        (found.len(), &found[..3], &found[16..18], &found[32..34]),
        (48, [1.0, 4.0, 0.0].as_slice(), [2.0, 5.0].as_slice(), [3.0, 6.0].as_slice())
    );
}

#[test]
fn records_of_codes_have_the_specified_bytes() {
    // Outputs 0 and 1 of 80 inputs: code of input i is i mod 16 - 8, and one less; f16 scales of blocks of 32, packed zero
    // points of the same blocks, one f32 scale over all inputs.
    let code = |output: usize, input: usize| ((input + 15 * output) % 16) as u8 ^ 8;
    let codes: Vec<u8> = (0..160).map(|index| code(index / 80, index % 80)).collect();
    let scales: Vec<f16> = (1..7).map(|index| f16::from_f32(index as f32)).collect();
    let elements = Elements {
        stored: Tensor::from_codes(DType::I4, &[2, 80], &codes).unwrap(),
        planes: vec![
            Tensor::from_elements(&[2, 3], &scales).unwrap(),
            Tensor::from_codes(DType::I4, &[2, 3], &[1, 2, 3, 4, 5, 6]).unwrap(),
            Tensor::from_elements(&[2], &[0.5f32, 0.25]).unwrap(),
        ],
    };
    let planes =
        [(PlaneRole::Scale, DType::F16, 32), (PlaneRole::ZeroPoint, DType::I4, 32), (PlaneRole::Scale, DType::F32, 0)];
    let planes = planes.map(|(role, dtype, block)| Plane { role, dtype, block }).to_vec();
    let panels = Panels::codes(DType::I4, matrix(2, 80, 0), planes);
    assert_eq!((panels.cut, panels.interleave), (256, 8));
    let weight = record(Panels { cut: 64, ..panels }, DType::F32, &[2, 80], 1 << 21);
    let packed = pack_all(&weight, &elements).remove(0);
    // Record 0: 64 bytes of scales, 64 of zero points, 64 of the scale over all, 64 inputs of 64 / 8 lines.
    let (first, second) = packed.split_at(3 * 64 + 8 * 64);
    assert_eq!(second.len(), 2 * 64 + 2 * 64);
    let half = |bytes: &[u8], at: usize| f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32();
    assert_eq!([half(first, 0), half(first, 1), half(first, 16), half(first, 17)], [1.0, 4.0, 2.0, 5.0]);
    assert_eq!((first[64], first[64 + 8]), (0x41, 0x52));
    assert_eq!(f32::from_le_bytes(first[132..136].try_into().unwrap()), 0.25);
    // Line 0, output 1: input i in byte i mod 4, the sign bit flipped.
    assert_eq!(first[192 + 4..192 + 8], [0x3f, 0x40, 0x51, 0x62]);
    assert_eq!([half(second, 0), half(second, 1)], [3.0, 6.0]);
    assert_eq!(second[64], 0x63);
    assert_eq!(unpack(&weight, std::slice::from_ref(&packed)).unwrap(), reshaped(&elements, [1, 2, 80]));
    let decoded = decode(&weight, &[packed]);
    // Output 1, input 70: code (70 + 15) mod 16 - 8 = -3, zero point 6, scales .25 and 6.
    assert_eq!(decoded.elements::<f32>().unwrap()[80 + 70], (-3.0 - 6.0) * (0.25 * 6.0));
}

/// Elements with the planes' canonical shapes for `[groups, outputs, inputs]`.
fn reshaped(elements: &Elements, [groups, outputs, _]: [usize; 3]) -> Elements {
    let plane = |tensor: &Tensor| {
        let rest = tensor.count() / (groups * outputs);
        let shape = if tensor.rank() == 1 { vec![groups, outputs] } else { vec![groups, outputs, rest] };
        tensor.reshaped(&shape).unwrap()
    };
    Elements { stored: elements.stored.clone(), planes: elements.planes.iter().map(plane).collect() }
}

#[test]
fn floats_of_4_bits_with_two_scales_have_the_specified_bytes() {
    // Outputs 0 and 1 of 18 inputs: codes i mod 16 and 15 - i mod 16; f8e4m3fn scales of blocks of 16, f32 over all inputs.
    let code = |output: usize, input: usize| if output == 0 { input % 16 } else { 15 - input % 16 } as u8;
    let codes: Vec<u8> = (0..36).map(|index| code(index / 18, index % 18)).collect();
    let elements = Elements {
        stored: Tensor::from_codes(DType::F4E2M1, &[2, 18], &codes).unwrap(),
        planes: vec![
            // 1, 1.5, -448, 2^-9.
            Tensor::from_codes(DType::F8E4M3FN, &[2, 2], &[0x38, 0x3c, 0xfe, 0x01]).unwrap(),
            Tensor::from_elements(&[2], &[0.5f32, 3.0]).unwrap(),
        ],
    };
    let scale = |dtype, block| Plane { role: PlaneRole::Scale, dtype, block };
    let panels = Panels::codes(DType::F4E2M1, matrix(2, 18, 0), vec![scale(DType::F8E4M3FN, 16), scale(DType::F32, 0)]);
    assert_eq!((panels.cut, panels.interleave), (64, 8));
    let weight = record(panels, DType::F32, &[2, 18], 1 << 21);
    let packed = pack_all(&weight, &elements).remove(0);
    assert_eq!(packed.len(), 64 + 64 + 3 * 64);
    assert_eq!([packed[0], packed[1], packed[16], packed[17]], [0x38, 0xfe, 0x3c, 0x01]);
    assert_eq!(f32::from_le_bytes(packed[68..72].try_into().unwrap()), 3.0);
    // No sign bit is flipped: input i in byte i mod 4, the first four in its lower half.
    assert_eq!(packed[128..136], [0x40, 0x51, 0x62, 0x73, 0xbf, 0xae, 0x9d, 0x8c]);
    assert_eq!(unpack(&weight, std::slice::from_ref(&packed)).unwrap(), reshaped(&elements, [1, 2, 18]));
    let decoded = decode(&weight, &[packed]);
    let decoded = decoded.elements::<f32>().unwrap();
    assert_eq!(decoded[..9], [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 0.0]);
    assert!(decoded[8].is_sign_negative());
    // Output 1, inputs 0 and 16: code 15 is -6.
    assert_eq!([decoded[18], decoded[34]], [-6.0 * (3.0 * -448.0), -6.0 * (3.0 / 512.0)]);
}

#[test]
fn records_have_the_fewest_inputs_that_fill_lines() {
    let cut = |planes: &[(DType, u64)]| {
        let scale = |&(dtype, block): &(DType, u64)| Plane { role: PlaneRole::Scale, dtype, block };
        Panels::codes(DType::I4, matrix(16, 4096, 0), planes.iter().map(scale).collect()).cut
    };
    assert_eq!(cut(&[(DType::F16, 32)]), 64);
    assert_eq!(cut(&[(DType::F8E8M0, 32)]), 128);
    assert_eq!(cut(&[(DType::F8E4M3FN, 16), (DType::F32, 0)]), 64);
    assert_eq!(cut(&[(DType::F32, 32)]), 32);
    assert_eq!(cut(&[(DType::F16, 16), (DType::F32, 0)]), 32);
    assert_eq!(cut(&[(DType::F16, 32), (DType::U4, 32)]), 256);
    assert_eq!(cut(&[(DType::F32, 0)]), 256);
    assert_eq!(cut(&[(DType::U2, 256)]), 1024);
}

#[test]
fn large_panels_cross_blocks_and_cuts() {
    for output_axis in [0, 1] {
        for dtype in [DType::F32, DType::BF16] {
            let shape = if output_axis == 0 { [37, 9001] } else { [9001, 37] };
            let weight = record(values(dtype, 37, 9001, output_axis), dtype, &shape, 100_000);
            assert!(weight.parts.len() > 6);
            round_trip(&weight, &canonical(dtype, &shape));
        }
    }
}

#[test]
fn narrow_storage_is_exact_or_refused() {
    let exact: Vec<f32> = (0..40).map(|index| index as f32 * 0.5).collect();
    let tensor = Tensor::from_elements(&[4, 10], &exact).unwrap();
    for stored in [DType::F16, DType::BF16] {
        round_trip(&record(Plain { dtype: stored }, DType::F32, &[4, 10], 50), &tensor);
        for output_axis in [0, 1] {
            let (outputs, inputs) = if output_axis == 0 { (4, 10) } else { (10, 4) };
            let weight = record(values(stored, outputs, inputs, output_axis), DType::F32, &[4, 10], 1 << 21);
            round_trip(&weight, &tensor);

            let mut elements = exact.clone();
            elements[23] = 0.1;
            let tensor = Tensor::from_elements(&[4, 10], &elements).unwrap();
            let error = pack_run(&weight, weight.parts[0].range(), &values_of(&tensor)).unwrap_err();
            assert!(matches!(error, EncodingError::Inexact { element: 23, .. }), "{error}");
        }
    }
    // A weight of f32 whose elements are at hand as f16 packs without a conversion.
    let halves: Vec<f16> = exact.iter().map(|&value| f16::from_f32(value)).collect();
    let halves = Tensor::from_elements(&[4, 10], &halves).unwrap();
    let weight = record(Plain { dtype: DType::F16 }, DType::F32, &[4, 10], 1 << 21);
    assert_eq!(pack_all(&weight, &values_of(&halves)), [halves.bytes()]);
}

/// The words of the error of a weight that is not stored so.
fn refusal(encoding: impl Into<Coded>, dtype: DType, shape: &[u64]) -> String {
    encoding.into().check(Logical { dtype, shape }).unwrap_err().to_string()
}

#[test]
fn what_does_not_fit_is_refused() {
    let panels = |change: fn(&mut Panels)| {
        let mut panels = values(DType::F32, 20, 3, 0);
        change(&mut panels);
        refusal(panels, DType::F32, &[20, 3])
    };
    assert_eq!(panels(|panels| panels.outputs = 21), "the encoding has 63 elements, a weight of shape [20, 3] has 60");
    assert_eq!(panels(|panels| panels.interleave = 3), "panels with 3 inputs side by side is not supported");
    assert_eq!(panels(|panels| panels.output_axis = 2), "panels with outputs on axis 2 is not supported");
    assert_eq!(panels(|panels| panels.cut = 64), "records of 64 inputs without planes is not supported");
    assert_eq!(panels(|panels| panels.dtype = DType::U4), "a weight of type f32 cannot be stored as u4");
    let scale = |dtype, block| Plane { role: PlaneRole::Scale, dtype, block };
    let coded = |change: fn(&mut Panels)| {
        let mut panels = Panels::codes(DType::I4, matrix(20, 3, 0), vec![scale(DType::F16, 32)]);
        change(&mut panels);
        refusal(panels, DType::F32, &[20, 3])
    };
    assert_eq!(coded(|panels| panels.cut = 48), "records of 48 inputs is not supported");
    assert_eq!(coded(|panels| panels.cut = 16), "records of 16 inputs is not supported");
    assert_eq!(coded(|panels| panels.planes.0[0].block = 24), "a plane `scale f16 24` is not supported");
    assert_eq!(coded(|panels| panels.planes.0[0].dtype = DType::I8), "a plane `scale i8 32` is not supported");
    for dtype in [DType::F8E5M2, DType::F8E4M3FNUZ, DType::F4E2M1, DType::F64] {
        let panels = Panels::codes(DType::I4, matrix(20, 3, 0), vec![scale(dtype, 32)]);
        let found = refusal(panels, DType::F32, &[20, 3]);
        assert_eq!(found, format!("a plane `scale {dtype} 32` is not supported"));
    }
    for role in [PlaneRole::ZeroPoint, PlaneRole::Sum] {
        let dtype = if role == PlaneRole::Sum { DType::I32 } else { DType::U4 };
        let planes = vec![scale(DType::F16, 32), Plane { role, dtype, block: 0 }];
        let panels = Panels::codes(DType::F4E2M1, matrix(20, 3, 0), planes);
        let found = refusal(panels, DType::F32, &[20, 3]);
        assert_eq!(found, "codes of f4e2m1 with zero points or sums is not supported");
    }
    assert_eq!(coded(|panels| panels.dtype = DType::F8E5M2FNUZ), "a weight of type f32 cannot be stored as f8e5m2fnuz");
    assert_eq!(coded(|panels| panels.interleave = 4), "panels of i4 codes with 4 inputs side by side is not supported");
    assert_eq!(coded(|panels| panels.dtype = DType::I16), "a weight of type f32 cannot be stored as i16");
    let twice = |panels: &mut Panels| panels.planes.0.push(panels.planes.0[0]);
    assert_eq!(coded(twice), "two planes of scales with the same block is not supported");
    let zero_points = |panels: &mut Panels| panels.planes.0[0].role = PlaneRole::ZeroPoint;
    let words = "codes without scales, or with several zero points or sums is not supported";
    assert_eq!(coded(zero_points), words);
    let huge = |panels: &mut Panels| (panels.groups, panels.outputs) = (u64::MAX, u64::MAX);
    assert_eq!(panels(huge), "a weight of shape [20, 3] is too large to address");
    assert_eq!(refusal(Coded::plain(DType::F32), DType::F16, &[2]), "a weight of type f16 cannot be stored as f32");
    let strings = refusal(Coded::plain(DType::String), DType::String, &[2]);
    assert_eq!(strings, "a weight of type string cannot be stored as string");
    assert_eq!(refusal(Strings {}, DType::F32, &[2]), "a weight of type f32 cannot be stored as string");
    let large = refusal(Coded::plain(DType::F64), DType::F64, &[u64::MAX, 2]);
    assert_eq!(large, format!("a weight of shape [{}, 2] is too large to address", u64::MAX));

    let mut weight = record(Plain { dtype: DType::F32 }, DType::F32, &[10, 3], 50);
    let good = weight.clone();
    weight.parts[1].start = 5;
    assert!(matches!(weight.check(), Err(EncodingError::Coverage { part: 1 })));
    weight.parts = good.parts[..2].to_vec();
    assert!(matches!(weight.check(), Err(EncodingError::Coverage { part: 2 })));
    weight.parts[1].end = 11;
    assert!(matches!(weight.check(), Err(EncodingError::Part { .. })));
    let short = [vec![0; 48], vec![0; 48], vec![0; 23]];
    assert!(matches!(unpack(&good, &short), Err(EncodingError::Size { expected: 24, found: 23 })));
}

#[test]
fn encodings_are_found_by_code_and_by_name() {
    let scale = Plane { role: PlaneRole::Scale, dtype: DType::F32, block: 0 };
    let all: [Coded; 5] = [
        Plain { dtype: DType::U4 }.into(),
        Panels::codes(DType::I8, matrix(20, 3, 1), vec![scale]).into(),
        Strings {}.into(),
        Rows { dtype: DType::I8, planes: Planes(vec![scale]) }.into(),
        InputMajor::of(&Panels::codes(DType::I8, matrix(20, 3, 1), vec![scale]), 1024).unwrap().into(),
    ];
    for (encoding, row) in all.iter().zip(ENCODINGS) {
        assert_eq!(&(encoding.code(), encoding.name()), row);
        let attributes = encoding.attributes();
        let stored: Vec<_> = attributes.iter().map(|(number, _, value)| (*number, value.clone())).collect();
        let named: Vec<_> = attributes.iter().map(|(_, name, value)| (name.to_string(), value.clone())).collect();
        assert_eq!(Coded::decode(encoding.code(), encoding.revision(), &stored).as_ref(), Ok(encoding));
        assert_eq!(Coded::build(encoding.name(), &named).as_ref(), Ok(encoding));
    }
    let unknown = Coded::decode(99, 1, &[]).unwrap_err();
    assert_eq!(unknown.to_string(), "encoding code 0x63 is unknown to this version");
    assert_eq!(
        all[1].to_string(),
        "panels dtype=i8 groups=1 outputs=20 inputs=3 output_axis=1 interleave=4 cut=256 planes=[\"scale f32 0\"]"
    );
}

#[test]
fn inputs_have_the_specified_bytes() {
    // [inputs, outputs] = [3, 130]: runs of 64 outputs, the last one of 2; the scale of output o is o / 2.
    let codes: Vec<u8> = (0..390).map(|index| (index % 251) as u8).collect();
    let scales: Vec<f32> = (0..130).map(|output| output as f32 / 2.0).collect();
    let elements = Elements {
        stored: Tensor::from_codes(DType::I8, &[3, 130], &codes).unwrap(),
        planes: vec![Tensor::from_elements(&[1, 130], &scales).unwrap()],
    };
    let scale = Plane { role: PlaneRole::Scale, dtype: DType::F32, block: 0 };
    let panels = Panels::codes(DType::I8, matrix(130, 3, 1), vec![scale]);
    let runs = InputMajor::of(&panels, 64).unwrap();
    assert_eq!((runs.run, runs.units_per_group(), runs.row_bytes()), (64, 3, 64));
    let weight = record(runs, DType::F32, &[3, 130], 1 << 21);
    weight.check().unwrap();
    let packed = pack_all(&weight, &elements).remove(0);
    let unit = 64 * 4 + 3 * 64;
    assert_eq!(packed.len(), 3 * unit);
    let float = |at: usize| f32::from_le_bytes(packed[at..at + 4].try_into().unwrap());
    assert_eq!([float(4), float(unit), float(2 * unit + 4), float(2 * unit + 8)], [0.5, 32.0, 64.5, 0.0]);
    for (output, input) in [(0, 0), (63, 2), (64, 1), (129, 2)] {
        let at = output / 64 * unit + 256 + input * 64 + output % 64;
        assert_eq!(packed[at], codes[input * 130 + output], "{output}, {input}");
    }
    assert_eq!(unpack(&weight, &[packed]).unwrap(), elements);

    // Codes of 4 bits: outputs 1 and 65 share a byte; the sign bit is flipped. One unit, two blocks.
    let codes: Vec<u8> = (0..130 * 130).map(|index| (index * 7 % 16) as u8).collect();
    let scales: Vec<f16> = (0..260).map(|index| f16::from_f32(index as f32)).collect();
    let elements = Elements {
        stored: Tensor::from_codes(DType::I4, &[1, 130, 130], &codes).unwrap(),
        planes: vec![Tensor::from_elements(&[1, 2, 130], &scales).unwrap()],
    };
    let scale = Plane { role: PlaneRole::Scale, dtype: DType::F16, block: 128 };
    let runs = InputMajor::of(&Panels::codes(DType::I4, matrix(130, 130, 1), vec![scale]), 1024).unwrap();
    assert_eq!((runs.run, runs.cut, runs.row_bytes()), (256, 256, 128));
    let weight = record(runs, DType::F32, &[1, 130, 130], 1 << 21);
    let packed = pack_all(&weight, &elements).remove(0);
    assert_eq!(packed.len(), 2 * 256 * 2 + 130 * 128);
    let code = |input: usize, output: usize| codes[input * 130 + output] ^ 8;
    assert_eq!(packed[1024 + 5 * 128 + 1], code(5, 1) | code(5, 65) << 4);
    // Outputs that there are none of are stored as 0.
    assert_eq!(packed[1024 + 5 * 128 + 64..][1..3], [code(5, 129), 0]);
    assert_eq!(f16::from_le_bytes([packed[512 + 2], packed[512 + 3]]).to_f32(), 131.0);
    assert_eq!(unpack(&weight, &[packed]).unwrap(), elements);
}

#[test]
fn inputs_that_do_not_lie_so_are_refused() {
    let scale = |block| vec![Plane { role: PlaneRole::Scale, dtype: DType::F16, block }];
    let of = |dtype, planes| {
        let panels = Panels::codes(dtype, matrix(300, 20, 0), planes);
        InputMajor::of(&panels, 1024).map(|runs| runs.run).map_err(|error| error.to_string())
    };
    assert_eq!(of(DType::I8, scale(0)), Ok(320));
    assert_eq!(of(DType::I4, scale(128)), Ok(384));
    assert_eq!(of(DType::I4, scale(64)), Err("a plane `scale f16 64` input by input is not supported".to_string()));
    assert_eq!(of(DType::I2, scale(0)), Err("elements of i2 input by input is not supported".to_string()));
    let changed = |change: fn(&mut InputMajor)| {
        let mut runs = InputMajor::of(&values(DType::F32, 300, 20, 0), 1024).unwrap();
        assert_eq!((runs.run, runs.units_per_group()), (160, 2));
        change(&mut runs);
        refusal(runs, DType::F32, &[300, 20])
    };
    assert_eq!(changed(|runs| runs.run = 0), "runs of 0 outputs of f32 is not supported");
    assert_eq!(changed(|runs| runs.run = 24), "runs of 24 outputs of f32 is not supported");
    assert_eq!(changed(|runs| runs.run = 320), "runs of 320 outputs of f32 is not supported");
    assert_eq!(changed(|runs| runs.run = u64::MAX), format!("runs of {} outputs of f32 is not supported", u64::MAX));
    assert_eq!(changed(|runs| runs.cut = 128), "records of 128 inputs without planes is not supported");
    assert_eq!(changed(|runs| runs.output_axis = 2), "panels with outputs on axis 2 is not supported");
    assert_eq!(
        changed(|runs| (runs.groups, runs.outputs) = (u64::MAX, u64::MAX)),
        "a weight of shape [300, 20] is too large to address"
    );
    assert_eq!(
        changed(|runs| runs.inputs = 21),
        "the encoding has 6300 elements, a weight of shape [300, 20] has 6000"
    );
    assert_eq!(changed(|runs| runs.dtype = DType::F64), "elements of f64 input by input is not supported");
    let experts = WeightMatrix { groups: 3, inputs: 20, outputs: 300, output_axis: 0 };
    let weight =
        record(InputMajor::of(&Panels::values(DType::F32, experts), 1024).unwrap(), DType::F32, &[3, 300, 20], 1 << 20);
    let unit = 160 * 4 * 20;
    let place = weight.locate(Pick::Group(2)).unwrap();
    let units = PartRange { start: 4, end: 6, inputs_start: 0, inputs_end: 20 };
    assert_eq!(place, Place { units, bytes: vec![PartBytesRange { part: 0, bytes: 4 * unit..6 * unit }] });
    for pick in [Pick::Group(3), Pick::Row(0)] {
        assert!(matches!(weight.locate(pick), Err(EncodingError::Unsupported(_))), "{pick:?}");
    }
}

/// Row `index` of a weight, from the bytes that [`WeightRecord::locate`] names.
fn row(weight: &WeightRecord, packed: &[Vec<u8>], index: u64) -> Vec<u8> {
    let place = weight.locate(Pick::Row(index)).unwrap();
    let bytes_of = |range: &Range<u64>| range.start as usize..range.end as usize;
    let bytes: Vec<u8> =
        place.bytes.iter().flat_map(|piece| packed[piece.part][bytes_of(&piece.bytes)].to_vec()).collect();
    let length = weight.shape[1..].iter().product::<u64>() as usize * weight.dtype.bits() / 8;
    let mut found = vec![0; length];
    weight.decode_row(index, &bytes, &mut found).unwrap();
    found
}

#[test]
fn rows_are_found_in_their_parts() {
    let tensor = canonical(DType::F32, &[50, 600]);
    for encoding in [Coded::plain(DType::F32), values(DType::F32, 50, 600, 0).into()] {
        for budget_bytes in [3000, 100_000] {
            let weight = record(encoding.clone(), DType::F32, &[50, 600], budget_bytes);
            let packed = pack_all(&weight, &values_of(&tensor));
            for index in 0..50u64 {
                assert_eq!(row(&weight, &packed, index), tensor.bytes()[index as usize * 2400..][..2400]);
            }
            let outside = weight.locate(Pick::Row(50));
            assert!(matches!(outside, Err(EncodingError::Row { row: 50, rows: 50 })), "{outside:?}");
        }
    }
    let across = record(values(DType::F32, 600, 50, 1), DType::F32, &[50, 600], 100_000);
    assert!(matches!(across.locate(Pick::Row(0)), Err(EncodingError::Unsupported(_))));
    let nibbles = record(Plain { dtype: DType::U4 }, DType::U4, &[4, 3], 100);
    assert!(matches!(nibbles.locate(Pick::Row(0)), Err(EncodingError::Unsupported(_))));
}

#[test]
fn a_group_is_one_run_of_bytes() {
    let scale = Plane { role: PlaneRole::Scale, dtype: DType::F16, block: 32 };
    let experts = WeightMatrix { groups: 5, inputs: 96, outputs: 40, output_axis: 0 };
    let weight = record(Panels::codes(DType::I4, experts, vec![scale]), DType::F32, &[5, 40, 96], 1 << 20);
    let panel = 64 * 3 / 2 + 32 + 96 * 8;
    assert_eq!(stored_bytes(&weight), 15 * panel);
    let place = weight.locate(Pick::Group(2)).unwrap();
    let units = PartRange { start: 6, end: 9, inputs_start: 0, inputs_end: 96 };
    assert_eq!(place, Place { units, bytes: vec![PartBytesRange { part: 0, bytes: 6 * panel..9 * panel }] });
    assert!(matches!(weight.locate(Pick::Group(5)), Err(EncodingError::Unsupported(_))));
}

#[test]
fn rows_of_any_length_are_packed_whole_or_in_blocks() {
    for (dtype, interleave) in [(DType::F32, 1), (DType::F16, 1), (DType::BF16, 2), (DType::I8, 4)] {
        let most = (512 << 10) / 16 / (dtype.bits() as u64 / 8);
        for (inputs, whole) in [(most - 3, true), (most, true), (most + 1, false), (2 * most + 7, false)] {
            let panels = Panels { interleave, ..values(dtype, 21, inputs, 0) };
            assert_eq!(panels.order() == ReadOrder::Sequential, whole, "{dtype} {inputs}");
            let shape = [21, inputs];
            let tensor = canonical(dtype, &shape);
            for budget_bytes in [100 << 10, 64 << 20] {
                round_trip(&record(panels.clone(), dtype, &shape, budget_bytes), &tensor);
            }
            // Whole rows are read in their order.
            let weight = record(panels, dtype, &shape, 64 << 20);
            let mut packed = vec![0; stored_bytes(&weight) as usize];
            let (mut end, mut ordered) = (0, true);
            let read = |offset: u64, buffer: &mut [u8]| {
                ordered &= offset == end;
                end = offset + buffer.len() as u64;
                crate::read_at::ReadAt::read_exact_at(tensor.bytes(), offset, buffer)
            };
            let mut from = Canonical { dtype, read };
            weight.encoding.pack(weight.logical(), weight.parts[0].range(), &mut from, &mut packed).unwrap();
            assert_eq!(ordered, whole, "{dtype} {inputs}");
        }
    }
}

/// Elements without planes, from a function that reads canonical bytes at an offset.
struct Canonical<R> {
    dtype: DType,
    /// Fills a buffer with the bytes from an offset on.
    read: R,
}

impl<R: FnMut(u64, &mut [u8]) -> io::Result<()>> WeightReader for Canonical<R> {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn elements(&mut self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        (self.read)(offset, to)
    }

    fn plane(&mut self, _plane: usize, _offset: u64, _to: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn stored_types() -> impl Strategy<Value = DType> {
    prop::sample::select(vec![DType::F32, DType::F16, DType::BF16, DType::I8, DType::U8, DType::I16, DType::F64])
}

/// Planes that coded weights may have: scales of one or two granularities, zero points of codes or floats, sums.
fn planes(code: DType) -> impl Strategy<Value = Vec<Plane>> {
    let block = || prop::sample::select(vec![0u64, 16, 32, 64, 128, 256]);
    let float = || prop::sample::select(vec![DType::F32, DType::F16, DType::BF16, DType::F8E8M0, DType::F8E4M3FN]);
    let zero = prop::option::of((prop::sample::select(vec![code, DType::F32, DType::F16]), block()));
    (float(), block(), zero, any::<bool>(), any::<bool>()).prop_map(move |(dtype, block, zero, tensor, sum)| {
        let (zero, sum) = (zero.filter(|_| code.is_integer()), sum && code.is_integer());
        let mut planes = vec![Plane { role: PlaneRole::Scale, dtype, block }];
        planes.extend(zero.map(|(dtype, block)| Plane { role: PlaneRole::ZeroPoint, dtype, block }));
        planes.extend((tensor && block > 0).then_some(Plane { role: PlaneRole::Scale, dtype: DType::F32, block: 0 }));
        planes.extend(sum.then_some(Plane { role: PlaneRole::Sum, dtype: DType::I32, block: 0 }));
        planes
    })
}

fn coded() -> impl Strategy<Value = (DType, Vec<Plane>)> {
    let integers = [DType::I8, DType::U8, DType::I4, DType::U4, DType::I2, DType::U2];
    let codes = [integers.as_slice(), &[DType::F8E4M3FN, DType::F8E5M2, DType::F4E2M1]].concat();
    prop::sample::select(codes).prop_flat_map(|code| planes(code).prop_map(move |planes| (code, planes)))
}

/// Codes and planes of a weight `[groups, outputs, inputs]`, or `[groups, inputs, outputs]` where `output_axis` is 1.
fn elements(code: DType, planes: &[Plane], matrix: WeightMatrix) -> Elements {
    let WeightMatrix { groups, inputs, outputs, output_axis } = matrix;
    let of = |dtype: DType, shape: Vec<u64>| match dtype {
        // Finite numbers.
        DType::F32 | DType::F16 | DType::BF16 => {
            let shape: Vec<usize> = shape.iter().map(|&extent| extent as usize).collect();
            let values: Vec<f32> = (0..shape.iter().product()).map(|index| (index % 97) as f32 * 0.25 - 8.0).collect();
            match dtype {
                DType::F16 => Tensor::from_elements(&shape, &values.into_iter().map(f16::from_f32).collect::<Vec<_>>()),
                DType::BF16 => {
                    Tensor::from_elements(&shape, &values.into_iter().map(bf16::from_f32).collect::<Vec<_>>())
                }
                _ => Tensor::from_elements(&shape, &values),
            }
            .unwrap()
        }
        _ => canonical(dtype, &shape),
    };
    let ordered = |outputs: u64, others: u64| match output_axis {
        0 => vec![groups, outputs, others],
        _ => vec![groups, others, outputs],
    };
    let plane = |plane: &Plane| match plane.block {
        0 => of(plane.dtype, vec![groups, outputs]),
        block => of(plane.dtype, ordered(outputs, inputs.div_ceil(block))),
    };
    Elements { stored: of(code, ordered(outputs, inputs)), planes: planes.iter().map(plane).collect() }
}

proptest! {
    #[test]
    fn panels_of_values_round_trip(
        dtype in stored_types(),
        groups in 1u64..4,
        outputs in 1u64..50,
        inputs in 1u64..600,
        interleave in prop::sample::select(vec![1u64, 2, 4, 8, 16]),
        output_axis in 0u32..2,
        budget_bytes in 1u64..40_000,
    ) {
        let matrix = WeightMatrix { groups, inputs, outputs, output_axis };
        let panels = Panels { interleave, ..Panels::values(dtype, matrix) };
        let shape = if output_axis == 0 { [groups, outputs, inputs] } else { [groups, inputs, outputs] };
        let weight = record(panels, dtype, &shape, budget_bytes);
        let packed = round_trip(&weight, &canonical(dtype, &shape));
        prop_assert_eq!(packed.concat().len() as u64, stored_bytes(&weight));
    }

    #[test]
    fn panels_of_codes_round_trip(
        (code, planes) in coded(),
        groups in 1u64..4,
        outputs in 1u64..40,
        inputs in 1u64..1300,
        output_axis in 0u32..2,
        budget_bytes in 1u64..40_000,
    ) {
        let matrix = WeightMatrix { groups, inputs, outputs, output_axis };
        let shape = if output_axis == 0 { [groups, outputs, inputs] } else { [groups, inputs, outputs] };
        let given = elements(code, &planes, matrix);
        let weight = record(Panels::codes(code, matrix, planes), DType::F32, &shape, budget_bytes);
        weight.check().unwrap();
        let packed = pack_all(&weight, &given);
        prop_assert_eq!(packed.concat().len() as u64, stored_bytes(&weight));
        // Packing concatenates.
        let whole = record(weight.encoding.clone(), DType::F32, &shape, 1 << 30);
        prop_assert_eq!(pack_all(&whole, &given).concat(), packed.concat());
        prop_assert_eq!(unpack(&weight, &packed).unwrap(), given);
    }

    #[test]
    fn inputs_of_codes_round_trip(
        (code, planes) in coded(),
        groups in 1u64..3,
        outputs in 1u64..400,
        inputs in 1u64..1300,
        output_axis in 0u32..2,
        run_bytes in 1u64..5000,
        budget_bytes in 1u64..400_000,
    ) {
        let matrix = WeightMatrix { groups, inputs, outputs, output_axis };
        let shape = if output_axis == 0 { [groups, outputs, inputs] } else { [groups, inputs, outputs] };
        let given = elements(code, &planes, matrix);
        let panels = Panels::codes(code, matrix, planes.clone());
        let runs = InputMajor::of(&panels, run_bytes);
        let small = planes.iter().any(|plane| plane.block > 0 && plane.block < InputMajor::LEAST_BLOCK);
        prop_assert_eq!(runs.is_err(), small || code.bits() < 4);
        let Ok(runs) = runs else { return Ok(()) };
        prop_assert_eq!(runs.dense(), panels);
        let weight = record(runs, DType::F32, &shape, budget_bytes);
        weight.check().unwrap();
        let packed = pack_all(&weight, &given);
        prop_assert_eq!(packed.concat().len() as u64, stored_bytes(&weight));
        // Packing concatenates.
        let whole = record(weight.encoding.clone(), DType::F32, &shape, 1 << 30);
        prop_assert_eq!(pack_all(&whole, &given).concat(), packed.concat());
        prop_assert_eq!(unpack(&weight, &packed).unwrap(), given);
    }

    #[test]
    fn inputs_of_values_round_trip(
        dtype in prop::sample::select(vec![DType::F32, DType::F16, DType::BF16, DType::I8]),
        groups in 1u64..3,
        outputs in 1u64..200,
        inputs in 1u64..600,
        output_axis in 0u32..2,
        run_bytes in 1u64..5000,
        budget_bytes in 1u64..200_000,
    ) {
        let matrix = WeightMatrix { groups, inputs, outputs, output_axis };
        let shape = if output_axis == 0 { [groups, outputs, inputs] } else { [groups, inputs, outputs] };
        let runs = InputMajor::of(&Panels::values(dtype, matrix), run_bytes).unwrap();
        let weight = record(runs, dtype, &shape, budget_bytes);
        let packed = round_trip(&weight, &canonical(dtype, &shape));
        prop_assert_eq!(packed.concat().len() as u64, stored_bytes(&weight));
    }

    #[test]
    fn rows_of_codes_round_trip((code, planes) in coded(), rows in 1u64..40, inputs in 1u64..300, budget_bytes in 1u64..4000) {
        let matrix = WeightMatrix { groups: 1, inputs, outputs: rows, output_axis: 0 };
        let given = elements(code, &planes, matrix);
        let stored = given.stored.reshaped(&[rows as usize, inputs as usize]).unwrap();
        let given = Elements { stored, ..given };
        let panels = Panels::codes(code, matrix, planes.clone());
        for encoding in [Coded::from(Rows { dtype: code, planes: Planes(planes) }), panels.into()] {
            let weight = record(encoding, DType::F32, &[rows, inputs], budget_bytes);
            weight.check().unwrap();
            let packed = pack_all(&weight, &given);
            prop_assert_eq!(&unpack(&weight, &packed).unwrap(), &given);
            let decoded = decode(&weight, &packed);
            for index in 0..rows {
                let expected = &decoded.bytes()[(index * inputs * 4) as usize..][..inputs as usize * 4];
                prop_assert_eq!(row(&weight, &packed, index), expected);
            }
        }
    }

    #[test]
    fn plain_weights_round_trip(
        dtype in prop::sample::select(vec![DType::F32, DType::U4, DType::I2, DType::F6E2M3, DType::Bool, DType::C128]),
        shape in prop::collection::vec(0u64..9, 0..4),
        budget_bytes in 1u64..64,
    ) {
        let weight = record(Plain { dtype }, dtype, &shape, budget_bytes);
        let packed = round_trip(&weight, &canonical(dtype, &shape));
        prop_assert_eq!(packed.concat().len() as u64, stored_bytes(&weight));
    }
}
