//! Laws of packing: what comes out is what went in, whatever the layout and wherever it is cut.

use super::*;
use crate::tensor::{Tensor, element_count};
use half::{bf16, f16};
use proptest::prelude::*;
use std::io;

/// A reader over canonical bytes.
fn reader(bytes: &[u8]) -> impl FnMut(u64, &mut [u8]) -> io::Result<()> + '_ {
    |offset, buffer| crate::read_at::ReadAt::read_exact_at(bytes, offset, buffer)
}

/// The record of a weight cut at `budget_bytes`; part `i` is in extent `i`.
fn record(layout: Layout, dtype: DType, shape: &[u64], budget_bytes: u64) -> WeightRecord {
    let parts = layout.split(shape, budget_bytes).unwrap();
    let parts = parts.into_iter().zip(0..).map(|(part, extent)| part.in_extent(extent)).collect();
    WeightRecord { name: None, dtype, shape: shape.to_vec(), layout, parts, source: None }
}

fn pack_all(weight: &WeightRecord, canonical: &[u8]) -> Vec<Vec<u8>> {
    let pack_one = |part: &PartRecord| {
        let bytes = weight.layout.part_bytes(&weight.shape, &part.range()).unwrap().unwrap();
        let mut packed = vec![0xee; bytes as usize];
        pack(&weight.layout, weight.dtype, &weight.shape, part.range(), &mut reader(canonical), &mut packed).unwrap();
        packed
    };
    weight.parts.iter().map(pack_one).collect()
}

fn round_trip(weight: &WeightRecord, canonical: &Tensor) -> Vec<Vec<u8>> {
    weight.check().unwrap();
    let packed = pack_all(weight, canonical.bytes());
    let parts: Vec<&[u8]> = packed.iter().map(Vec::as_slice).collect();
    assert_eq!(&unpack(weight, &parts).unwrap(), canonical);
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

#[test]
fn panels_have_the_specified_bytes() {
    // [inputs, outputs] = [3, 2] in pairs of inputs.
    let elements: Vec<bf16> = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(bf16::from_f32).to_vec();
    let tensor = Tensor::from_elements(&[3, 2], &elements).unwrap();
    let layout = Layout::Panels(PanelLayout::matrix(DType::BF16, 2, 3, 1));
    let packed = round_trip(&record(layout, DType::BF16, &[3, 2], 1 << 21), &tensor);
    assert_eq!(packed[0].len(), 2 * 16 * 2 * 2);
    let values: Vec<f32> =
        packed[0].as_chunks::<2>().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect();
    assert_eq!(values[..5], [1.0, 3.0, 2.0, 4.0, 0.0]);
    assert_eq!(values[32..37], [5.0, 0.0, 6.0, 0.0, 0.0]);
    assert_eq!(values.iter().filter(|&&value| value != 0.0).count(), 6);

    // The same elements as [outputs, inputs] of one input side by side.
    let tensor = Tensor::from_elements(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let layout = Layout::Panels(PanelLayout::matrix(DType::F32, 2, 3, 0));
    let packed = round_trip(&record(layout, DType::F32, &[2, 3], 1 << 21), &tensor);
    let values: Vec<f32> = packed[0].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(
        (values.len(), &values[..3], &values[16..18], &values[32..34]),
        (48, [1.0, 4.0, 0.0].as_slice(), [2.0, 5.0].as_slice(), [3.0, 6.0].as_slice())
    );
}

#[test]
fn large_panels_cross_blocks_and_cuts() {
    for output_axis in [0, 1] {
        for dtype in [DType::F32, DType::BF16] {
            let shape = if output_axis == 0 { [37, 9001] } else { [9001, 37] };
            let layout = Layout::Panels(PanelLayout::matrix(dtype, 37, 9001, output_axis));
            let weight = record(layout, dtype, &shape, 100_000);
            assert!(weight.parts.len() > 6);
            round_trip(&weight, &canonical(dtype, &shape));
        }
    }
}

#[test]
fn consecutive_parts_pack_as_one() {
    for output_axis in [0, 1] {
        let shape = if output_axis == 0 { [70, 20] } else { [20, 70] };
        let layout = Layout::Panels(PanelLayout::matrix(DType::F32, 70, 20, output_axis));
        let weight = record(layout.clone(), DType::F32, &shape, 3000);
        assert_eq!(weight.parts.len(), 3);
        let tensor = canonical(DType::F32, &shape);
        let whole = PartRange { start: 0, end: 5, inputs_start: 0, inputs_end: 20 };
        let mut packed = vec![0; layout.stored_bytes(&shape).unwrap() as usize];
        pack(&layout, DType::F32, &shape, whole, &mut reader(tensor.bytes()), &mut packed).unwrap();
        assert_eq!(packed, pack_all(&weight, tensor.bytes()).concat());
    }
}

#[test]
fn narrow_storage_is_exact_or_refused() {
    let exact: Vec<f32> = (0..40).map(|index| index as f32 * 0.5).collect();
    let tensor = Tensor::from_elements(&[4, 10], &exact).unwrap();
    for stored in [DType::F16, DType::BF16] {
        round_trip(&record(Layout::Plain { dtype: stored }, DType::F32, &[4, 10], 50), &tensor);
        for output_axis in [0, 1] {
            let (outputs, inputs) = if output_axis == 0 { (4, 10) } else { (10, 4) };
            let layout = Layout::Panels(PanelLayout::matrix(stored, outputs, inputs, output_axis));
            round_trip(&record(layout.clone(), DType::F32, &[4, 10], 1 << 21), &tensor);

            let mut elements = exact.clone();
            elements[23] = 0.1;
            let bytes = Tensor::from_elements(&[4, 10], &elements).unwrap();
            let part = layout.split(&[4, 10], 1 << 21).unwrap()[0];
            let mut packed = vec![0; layout.stored_bytes(&[4, 10]).unwrap() as usize];
            let error = pack(&layout, DType::F32, &[4, 10], part, &mut reader(bytes.bytes()), &mut packed).unwrap_err();
            assert!(matches!(error, EncodingError::Inexact { element: 23, .. }), "{error}");
        }
    }
    // A weight of f32 whose canonical bytes are at hand as f16 packs without a conversion.
    let halves: Vec<f16> = exact.iter().map(|&value| f16::from_f32(value)).collect();
    let halves = Tensor::from_elements(&[4, 10], &halves).unwrap();
    let layout = Layout::Plain { dtype: DType::F16 };
    let part = layout.split(&[4, 10], 1 << 21).unwrap()[0];
    let mut packed = vec![0; 80];
    pack(&layout, DType::F16, &[4, 10], part, &mut reader(halves.bytes()), &mut packed).unwrap();
    assert_eq!(packed, halves.bytes());
}

#[test]
fn what_does_not_fit_is_refused() {
    let panels = |change: fn(&mut PanelLayout)| {
        let mut layout = PanelLayout::matrix(DType::F32, 20, 3, 0);
        change(&mut layout);
        Layout::Panels(layout).check(DType::F32, &[20, 3])
    };
    panels(|_| {}).unwrap();
    assert!(panels(|layout| layout.outputs = 21).is_err());
    assert!(panels(|layout| layout.group = 3).is_err());
    assert!(panels(|layout| layout.output_axis = 2).is_err());
    assert!(panels(|layout| layout.outputs_per_panel = 8).is_err());
    assert!(panels(|layout| layout.dtype = DType::U4).is_err());
    assert!(
        panels(|layout| layout.planes.push(PlaneLayout { role: PlaneRole::Scale, dtype: DType::F32, block: 32 }))
            .is_err()
    );
    assert!(panels(|layout| (layout.groups, layout.outputs) = (u64::MAX, u64::MAX)).is_err());
    assert!(Layout::Plain { dtype: DType::F32 }.check(DType::F16, &[2]).is_err());
    assert!(Layout::Plain { dtype: DType::String }.check(DType::String, &[2]).is_err());
    assert!(Layout::Strings.check(DType::F32, &[2]).is_err());
    assert!(Layout::Plain { dtype: DType::F64 }.check(DType::F64, &[u64::MAX, 2]).is_err());

    let mut weight = record(Layout::Plain { dtype: DType::F32 }, DType::F32, &[10, 3], 50);
    let good = weight.clone();
    weight.parts[1].start = 5;
    assert!(matches!(weight.check(), Err(EncodingError::Coverage { part: 1 })));
    weight.parts = good.parts[..2].to_vec();
    assert!(matches!(weight.check(), Err(EncodingError::Coverage { part: 2 })));
    weight.parts[1].end = 11;
    assert!(matches!(weight.check(), Err(EncodingError::Part { .. })));
    assert!(matches!(unpack(&good, &[&[0; 48], &[0; 48]]), Err(EncodingError::PartCount { .. })));
    assert!(matches!(unpack(&good, &[&[0; 48], &[0; 48], &[0; 23]]), Err(EncodingError::Size { .. })));
}

#[test]
fn rows_are_found_in_their_parts() {
    let tensor = canonical(DType::F32, &[50, 6]);
    for layout in [Layout::Plain { dtype: DType::F32 }, Layout::Panels(PanelLayout::matrix(DType::F32, 50, 6, 0))] {
        let weight = record(layout.clone(), DType::F32, &[50, 6], 400);
        let packed = pack_all(&weight, tensor.bytes());
        for index in 0..50u64 {
            let mut found = [0; 24];
            let unit = if matches!(layout, Layout::Panels(_)) { index / 16 } else { index };
            let part = weight.parts.iter().position(|part| (part.start..part.end).contains(&unit)).unwrap();
            row(&weight, part, &packed[part], index, &mut found).unwrap();
            assert_eq!(found, tensor.bytes()[index as usize * 24..][..24]);
            if let Layout::Plain { .. } = layout {
                let place = locate_row(&weight, index).unwrap();
                assert_eq!((place.part, place.length), (part, 24));
                assert_eq!(packed[part][place.offset as usize..][..24], found);
            }
        }
        assert!(row(&weight, 0, &packed[0], 49, &mut [0; 24]).is_err());
        assert!(row(&weight, 0, &packed[0], 0, &mut [0; 23]).is_err());
        assert!(row(&weight, packed.len() - 1, &packed[packed.len() - 1], 50, &mut [0; 24]).is_err());
    }
}

#[test]
fn rows_of_any_length_are_packed_whole_or_in_blocks() {
    for (dtype, group) in [(DType::F32, 1), (DType::F16, 1), (DType::BF16, 2), (DType::I8, 4)] {
        let most = (512 << 10) / 16 / (dtype.bits() as u64 / 8);
        for (inputs, whole) in [(most - 3, true), (most, true), (most + 1, false), (2 * most + 7, false)] {
            let matrix = PanelLayout { group, ..PanelLayout::matrix(dtype, 21, inputs, 0) };
            assert_eq!(matrix.is_packed_by_whole_rows(), whole, "{dtype} {inputs}");
            let (layout, shape) = (Layout::Panels(matrix), [21, inputs]);
            let tensor = canonical(dtype, &shape);
            for budget_bytes in [100 << 10, 64 << 20] {
                round_trip(&record(layout.clone(), dtype, &shape, budget_bytes), &tensor);
            }
            // Whole rows are read in their order.
            let part = layout.split(&shape, 64 << 20).unwrap()[0];
            let mut packed = vec![0; layout.stored_bytes(&shape).unwrap() as usize];
            let (mut end, mut ordered) = (0, true);
            let mut read = |offset: u64, buffer: &mut [u8]| {
                ordered &= offset == end;
                end = offset + buffer.len() as u64;
                reader(tensor.bytes())(offset, buffer)
            };
            pack(&layout, dtype, &shape, part, &mut read, &mut packed).unwrap();
            assert_eq!(ordered, whole, "{dtype} {inputs}");
        }
    }
}

fn stored_types() -> impl Strategy<Value = DType> {
    prop::sample::select(vec![DType::F32, DType::F16, DType::BF16, DType::I8, DType::U8, DType::I16, DType::F64])
}

proptest! {
    #[test]
    fn panels_round_trip(
        dtype in stored_types(),
        groups in 1u64..4,
        outputs in 1u64..50,
        inputs in 1u64..600,
        group in prop::sample::select(vec![1u32, 2, 4, 8, 16]),
        output_axis in 0u32..2,
        budget_bytes in 1u64..40_000,
    ) {
        let matrix = PanelLayout::matrix(dtype, outputs, inputs, output_axis);
        let layout = Layout::Panels(PanelLayout { group, groups, ..matrix });
        let shape = if output_axis == 0 { [groups, outputs, inputs] } else { [groups, inputs, outputs] };
        let packed = round_trip(&record(layout.clone(), dtype, &shape, budget_bytes), &canonical(dtype, &shape));
        let total: usize = packed.iter().map(Vec::len).sum();
        prop_assert_eq!(total as u64, layout.stored_bytes(&shape).unwrap());
    }

    #[test]
    fn plain_weights_round_trip(
        dtype in prop::sample::select(vec![DType::F32, DType::U4, DType::I2, DType::F6E2M3, DType::Bool, DType::C128]),
        shape in prop::collection::vec(0u64..9, 0..4),
        budget_bytes in 1u64..64,
    ) {
        let layout = Layout::Plain { dtype };
        let packed = round_trip(&record(layout.clone(), dtype, &shape, budget_bytes), &canonical(dtype, &shape));
        let total: usize = packed.iter().map(Vec::len).sum();
        prop_assert_eq!(total as u64, layout.stored_bytes(&shape).unwrap());
    }
}
