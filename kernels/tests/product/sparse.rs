//! Products with panels without zeros have the bits of those with zeros.
#![allow(clippy::unwrap_used, reason = "what fails here is a failed test")]

use half::{bf16, f16};
use ipuc_kernels::{
    change::{Change, RowChange},
    matrix::{Matrix, MatrixMut},
    product::{
        CodeType, CodedLayout, CodedPiece, CodedPlane, CodedRole, DynamicRows, Epilogue, OpenPanels, PanelElements,
        PanelPiece, PlaneType, Rounded, SparseLayout, Start, coded_product, dynamic_product, pack_panels,
        panels_product, sparse_dynamic_product, sparse_product, spread_panels,
    },
    simd::Instructions,
    testing::{numbers, with_threads},
};

/// Elements of which about seven of ten are zero.
fn element(input: usize, output: usize) -> f32 {
    let mixed = (input * 7919 + output * 104_729 + 13).wrapping_mul(0x9e37_79b9) >> 7;
    if mixed % 10 < 7 { 0.0 } else { (mixed % 61) as f32 / 16.0 - 1.9 }
}

/// Each shape: rows, inputs, outputs.
const SHAPES: [(usize, usize, usize); 6] =
    [(1, 700, 40), (1, 27, 5), (3, 256, 16), (4, 513, 100), (17, 300, 33), (60, 1030, 70)];

const CAPACITY: usize = 2048;

/// As [`element`], with zeros in whole groups of inputs and outputs.
fn element_of_lines(input: usize, output: usize) -> f32 {
    if (input / 4 * 31 + output / 16 * 17) % 10 < 6 { 0.0 } else { element(input, output) + 2.0 }
}

fn values_agree<T: bytemuck::Pod>(
    pack: impl Fn(usize, usize) -> Vec<T>,
    elements: fn(&[T]) -> PanelElements<'_>,
    group: usize,
    in_lines: bool,
) {
    for (rows, inputs, outputs) in SHAPES {
        let (dense, panels) = (pack(inputs, outputs), outputs.div_ceil(16));
        let layout = SparseLayout::values(inputs, size_of::<T>(), group, CAPACITY);
        let layout = if in_lines { layout.in_lines() } else { layout };
        let stored = layout.pack(bytemuck::cast_slice(&dense));
        let (x, bias) = (numbers(1, rows * inputs), numbers(2, outputs));
        let x = Matrix::new(&x, rows, inputs);
        let noted = |place: usize, outputs: &mut [f32]| {
            outputs.iter_mut().zip(place..).for_each(|(output, place)| *output += place as f32);
        };
        let change = RowChange { change: Change(&noted), start: 0, columns: outputs };
        let epilogue = Epilogue { change: Some(change), ..Epilogue::bias(&bias) };
        for instructions in Instructions::available() {
            let mut expected = vec![f32::NAN; rows * outputs];
            let piece = PanelPiece::whole(outputs, inputs, elements(&dense));
            panels_product(
                instructions,
                x,
                &[piece],
                MatrixMut::new(&mut expected, rows, outputs),
                Start::Zero,
                epilogue,
            );
            let pieces = [CodedPiece { panels: 0..panels, inputs: 0..inputs, bytes: &stored }];
            for threads in [1, 3] {
                let mut found = vec![f32::NAN; rows * outputs];
                let out = MatrixMut::new(&mut found, rows, outputs);
                let multiply = |piece: &CodedPiece<'_>, out: MatrixMut<'_>, epilogue: Epilogue<'_>| {
                    let (panels, inputs) = (piece.panels.clone(), piece.inputs.clone());
                    let piece = PanelPiece { panels, inputs, elements: elements(bytemuck::cast_slice(piece.bytes)) };
                    panels_product(instructions, x, &[piece], out, Start::Zero, epilogue);
                    Ok::<(), ()>(())
                };
                with_threads(threads, || {
                    sparse_product(instructions, &layout, &pieces, out, epilogue, &multiply).unwrap();
                });
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&found), bits(&expected), "{rows} × {inputs} × {outputs} on {}", instructions.name());
            }
            let spread = spread_panels(instructions, &layout, &pieces);
            assert_eq!(
                &bytemuck::cast_slice::<f32, u8>(&spread[0].0)[..spread[0].1],
                bytemuck::cast_slice::<T, u8>(&dense)
            );
        }
    }
}

#[test]
fn products_of_values_have_the_bits_of_those_with_zeros() {
    values_agree(
        |inputs, outputs| pack_panels::<f32>(inputs, outputs, element),
        |elements| PanelElements::F32(elements),
        1,
        false,
    );
    values_agree(
        |inputs, outputs| pack_panels::<f16>(inputs, outputs, element),
        |elements| PanelElements::F16(elements),
        1,
        false,
    );
    values_agree(
        |inputs, outputs| pack_panels::<bf16>(inputs, outputs, element),
        |elements| PanelElements::Bf16(elements),
        2,
        false,
    );
}

#[test]
fn products_without_lines_of_zeros_have_the_bits_of_those_with_them() {
    values_agree(
        |inputs, outputs| pack_panels::<f32>(inputs, outputs, element_of_lines),
        |elements| PanelElements::F32(elements),
        1,
        true,
    );
    values_agree(
        |inputs, outputs| pack_panels::<bf16>(inputs, outputs, element_of_lines),
        |elements| PanelElements::Bf16(elements),
        2,
        true,
    );
}

/// Panels of codes of 8 bits with their planes.
fn codes(
    layout: &CodedLayout,
    inputs: usize,
    outputs: usize,
    blocks: bool,
    element: fn(usize, usize) -> f32,
) -> Vec<u8> {
    let mut panels = Vec::new();
    for panel in 0..outputs.div_ceil(16) {
        for first in (0..inputs).step_by(256) {
            let length = (inputs - first).min(256);
            let mut planes = Vec::new();
            let rows = if blocks { length.div_ceil(32) } else { usize::from(first == 0) };
            for row in 0..rows * 16 {
                planes.extend((0.5 + ((row + panel) % 7) as f32 / 8.0).to_le_bytes());
            }
            planes.resize(planes.len().next_multiple_of(64), 0);
            if layout.planes().iter().any(|plane| plane.role == CodedRole::ZeroPoint) {
                (0..rows * 16).for_each(|row| planes.extend((((row * 5 + panel) % 9) as i32 - 3).to_le_bytes()));
            }
            let begin = panels.len();
            panels.extend(planes);
            for group in (first..first + length).step_by(4) {
                for output in panel * 16..panel * 16 + 16 {
                    for input in group..group + 4 {
                        let exists = input < first + length && output < outputs;
                        panels.push(if exists { (element(input, output) * 32.0) as i8 as u8 } else { 0 });
                    }
                }
            }
            assert_eq!(panels.len() - begin, layout.panel_bytes(&(first..first + length)));
        }
    }
    panels
}

fn layout_of_codes(inputs: usize, blocks: bool) -> CodedLayout {
    let block = if blocks { 32 } else { 0 };
    let planes = [CodedPlane { role: CodedRole::Scale, element: PlaneType::F32, block }];
    CodedLayout::new(CodeType::I8, inputs, 256, &planes, Rounded::F32)
}

/// Codes without a sign, with a zero point of each output.
fn layout_with_zero_points(inputs: usize) -> CodedLayout {
    let scale = CodedPlane { role: CodedRole::Scale, element: PlaneType::F32, block: 0 };
    let zero_point = CodedPlane { role: CodedRole::ZeroPoint, element: PlaneType::I32, ..scale };
    CodedLayout::new(CodeType::U8, inputs, 256, &[scale, zero_point], Rounded::F32)
}

/// The same bits from codes with zeros and without, of rows that are rounded in blocks or not.
fn rounded_products_agree(layout: fn(usize) -> CodedLayout, of_rows: usize, in_lines: bool) {
    for (rows, inputs, outputs) in SHAPES.into_iter().chain([(2, 260, 17), (4, 256, 64), (1, 1024, 300)]) {
        let layout = layout(inputs);
        let blocks = layout.planes().iter().any(|plane| plane.block > 0);
        let (sparse, dense) = if in_lines {
            let dense = codes(&layout, inputs, outputs, blocks, element_of_lines);
            (SparseLayout::codes(layout.clone(), CAPACITY).in_lines(), dense)
        } else {
            let dense = codes(&layout, inputs, outputs, blocks, element);
            (SparseLayout::codes(layout.clone(), CAPACITY), dense)
        };
        let stored = sparse.pack(&dense);
        let mut words = vec![0f32; dense.len().div_ceil(4)];
        bytemuck::cast_slice_mut(&mut words)[..dense.len()].copy_from_slice(&dense);
        let (values, bias) = (numbers(3, rows * inputs), numbers(4, outputs));
        let noted = |place: usize, outputs: &mut [f32]| {
            outputs.iter_mut().zip(place..).for_each(|(output, place)| *output += place as f32);
        };
        let change = RowChange { change: Change(&noted), start: 0, columns: outputs };
        let epilogue = Epilogue { change: Some(change), ..Epilogue::bias(&bias) };
        let bytes = &bytemuck::cast_slice(&words)[..dense.len()];
        let piece = CodedPiece { panels: 0..outputs.div_ceil(16), inputs: 0..inputs, bytes };
        let pieces = [CodedPiece { bytes: &stored, ..piece.clone() }];
        for instructions in Instructions::available() {
            let x = DynamicRows::new(instructions, Matrix::new(&values, rows, inputs), of_rows);
            let mut expected = vec![f32::NAN; rows * outputs];
            let (out, mut open) = (MatrixMut::new(&mut expected, rows, outputs), OpenPanels::default());
            dynamic_product(instructions, &x, &layout, std::slice::from_ref(&piece), &mut open, out, epilogue);
            for threads in [1, 3] {
                let mut found = vec![f32::NAN; rows * outputs];
                let out = MatrixMut::new(&mut found, rows, outputs);
                with_threads(threads, || sparse_dynamic_product(instructions, &x, &sparse, &pieces, out, epilogue));
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&found), bits(&expected), "{rows} × {inputs} × {outputs} on {}", instructions.name());
            }
        }
    }
}

#[test]
fn rounded_products_of_codes_have_the_bits_of_those_with_zeros() {
    for in_lines in [false, true] {
        for of_rows in [0, 32] {
            rounded_products_agree(|inputs| layout_of_codes(inputs, false), of_rows, in_lines);
            rounded_products_agree(|inputs| layout_of_codes(inputs, true), of_rows, in_lines);
        }
        rounded_products_agree(layout_with_zero_points, 0, in_lines);
    }
}

#[test]
fn masks_with_more_bits_than_there_are_codes_give_zeros() {
    let layout = layout_of_codes(256, false);
    let (sparse, full) = (SparseLayout::codes(layout.clone(), 512), SparseLayout::codes(layout, 4096));
    let planes = [1f32; 16];
    let stored = |values: usize| {
        let mut bytes = bytemuck::cast_slice(&planes).to_vec();
        bytes.extend([0xff; 512]);
        bytes.extend([3; 512]);
        bytes.resize(64 + 512 + values, 0);
        bytes
    };
    let values = numbers(5, 256);
    for instructions in Instructions::available() {
        let x = DynamicRows::new(instructions, Matrix::new(&values, 1, 256), 0);
        let product = |layout: &SparseLayout, stored: &[u8]| {
            let mut out = [f32::NAN; 16];
            let pieces = [CodedPiece { panels: 0..1, inputs: 0..256, bytes: stored }];
            sparse_dynamic_product(
                instructions,
                &x,
                layout,
                &pieces,
                MatrixMut::new(&mut out, 1, 16),
                Epilogue::default(),
            );
            out
        };
        assert_eq!(product(&sparse, &stored(512)), product(&full, &stored(4096)), "{}", instructions.name());
    }
}

#[test]
fn products_of_codes_have_the_bits_of_those_with_zeros() {
    for blocks in [false, true] {
        for (rows, inputs, outputs) in SHAPES {
            let layout = layout_of_codes(inputs, blocks);
            let dense = codes(&layout, inputs, outputs, blocks, element);
            let panels = outputs.div_ceil(16);
            let sparse = SparseLayout::codes(layout.clone(), CAPACITY);
            let stored = sparse.pack(&dense);
            let aligned = |bytes: &[u8]| {
                let mut words = vec![0f32; bytes.len().div_ceil(4)];
                bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
                words
            };
            let (dense_words, values) = (aligned(&dense), numbers(3, rows * inputs));
            let x = Matrix::new(&values, rows, inputs);
            let piece = CodedPiece { panels: 0..panels, inputs: 0..inputs, bytes: bytemuck::cast_slice(&dense_words) };
            let pieces = [CodedPiece { bytes: &stored, ..piece.clone() }];
            for instructions in Instructions::available() {
                let dynamic = DynamicRows::new(instructions, x, 0);
                for rounded in [false, true] {
                    let multiply = |piece: &CodedPiece<'_>, out: MatrixMut<'_>, epilogue: Epilogue<'_>| {
                        let (pieces, mut open) = (std::slice::from_ref(piece), OpenPanels::default());
                        if rounded {
                            dynamic_product(instructions, &dynamic, &layout, pieces, &mut open, out, epilogue);
                        } else {
                            coded_product(instructions, x, &layout, pieces, &mut open, out, Start::Zero, epilogue);
                        }
                        Ok::<(), ()>(())
                    };
                    let (mut expected, mut found) = (vec![f32::NAN; rows * outputs], vec![f32::NAN; rows * outputs]);
                    multiply(&piece, MatrixMut::new(&mut expected, rows, outputs), Epilogue::default()).unwrap();
                    let out = MatrixMut::new(&mut found, rows, outputs);
                    sparse_product(instructions, &sparse, &pieces, out, Epilogue::default(), &multiply).unwrap();
                    assert_eq!(found, expected, "{rows} × {inputs} × {outputs} on {}", instructions.name());
                }
            }
        }
    }
}

#[test]
fn the_error_of_a_product_is_given_back() {
    let layout = SparseLayout::values(256, 4, 1, 512);
    let stored = vec![0; 512 + 512 * 4];
    let pieces = [CodedPiece { panels: 0..1, inputs: 0..256, bytes: &stored }];
    let mut out = [0.0; 16];
    let out = MatrixMut::new(&mut out, 1, 16);
    let refuse = |_: &CodedPiece<'_>, _: MatrixMut<'_>, _: Epilogue<'_>| Err("refused");
    assert_eq!(
        sparse_product(Instructions::best(), &layout, &pieces, out, Epilogue::default(), &refuse),
        Err("refused")
    );
}

#[test]
fn masks_with_more_bits_than_there_are_values_give_zeros() {
    let layout = SparseLayout::values(256, 4, 1, 512);
    let stored = vec![0xff; 512 + 512 * 4];
    let pieces = [CodedPiece { panels: 0..1, inputs: 0..256, bytes: &stored }];
    for instructions in Instructions::available() {
        let spread = spread_panels(instructions, &layout, &pieces);
        assert!(spread[0].0[512..].iter().all(|value| value.to_bits() == 0));
    }
}
