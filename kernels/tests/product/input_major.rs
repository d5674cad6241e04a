//! Products that leave inputs out have the bits of those with panels.

use half::{bf16, f16};
use ipuc_kernels::{
    change::{Change, RowChange},
    matrix::{Matrix, MatrixMut},
    product::{
        CodeType, CodedLayout, CodedPiece, CodedPlane, CodedRole, DynamicRows, Epilogue, InputMajorLayout,
        InputMajorProduct, OpenPanels, PanelElements, PanelPiece, PlaneType, Rounded, RunElements, RunInputs, RunPiece,
        RunRows, Skipped, Start, coded_product, dynamic_product, pack_panels, panels_of_runs, panels_product,
    },
    simd::Instructions,
    team::Team,
    testing::numbers,
};

/// Each shape: rows, inputs, outputs, outputs of a run.
const SHAPES: [(usize, usize, usize, usize); 6] = [
    (1, 700, 300, 128),
    (1, 27, 5, 128),
    (3, 256, 128, 128),
    (4, 513, 100, 256),
    (2, 1030, 1000, 512),
    (6, 600, 130, 128),
];

/// Activations of which so many in ten are zero; the last row has none but zeros.
fn activations(rows: usize, inputs: usize, zeros: usize) -> Vec<f32> {
    let mut values = numbers(1, rows * inputs);
    for (index, value) in values.iter_mut().enumerate() {
        if (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) & 0xff < zeros * 26 {
            *value = if index % 2 == 0 { 0.0 } else { -0.0 };
        }
    }
    if rows > 1 {
        values[(rows - 1) * inputs..].fill(0.0);
    }
    values
}

/// Bytes that begin with a line.
fn aligned(bytes: &[u8]) -> Vec<[[f32; 16]; 1]> {
    let mut lines = vec![[[0.0; 16]; 1]; bytes.len().div_ceil(64)];
    bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
    lines
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The product in parts of inputs that end at `cuts`, of all runs at once or one by one.
fn left_out(
    instructions: Instructions,
    rows: RunRows<'_>,
    layout: &InputMajorLayout,
    stored: &[u8],
    cuts: &[usize],
    shape: (usize, usize),
    epilogue: Epilogue<'_>,
) -> (Vec<f32>, Skipped) {
    let (count, outputs) = shape;
    let whole = layout.run_bytes(&(0..layout.inputs()));
    let mut out = vec![f32::NAN; count * outputs];
    let mut product = InputMajorProduct::new(instructions, layout);
    let mut first = 0;
    for &cut in cuts {
        let inputs = first..cut;
        let length = layout.run_bytes(&inputs);
        let before = layout.run_bytes(&(0..first));
        let bytes: Vec<&[u8]> = stored.chunks(whole).map(|run| &run[before..][..length]).collect();
        let bytes = aligned(&bytes.concat());
        let bytes = &bytemuck::cast_slice(&bytes)[..length * stored.len() / whole];
        let runs = stored.len() / whole;
        let pieces: Vec<RunPiece<'_>> = if runs > 2 {
            (0..runs)
                .map(|run| RunPiece {
                    runs: run..run + 1,
                    inputs: inputs.clone(),
                    bytes: &bytes[run * length..][..length],
                })
                .collect()
        } else {
            vec![RunPiece { runs: 0..runs, inputs: inputs.clone(), bytes }]
        };
        product.add(rows, &pieces, MatrixMut::new(&mut out, count, outputs), epilogue);
        first = cut;
    }
    (out, product.skipped())
}

/// Ways to cut inputs.
fn cuts(inputs: usize) -> Vec<Vec<usize>> {
    let every: Vec<usize> = (1..inputs.div_ceil(256)).map(|cut| cut * 256).chain([inputs]).collect();
    if inputs > 256 { vec![vec![inputs], every] } else { vec![vec![inputs]] }
}

fn element(input: usize, output: usize) -> f32 {
    let mixed = (input * 7919 + output * 104_729 + 13).wrapping_mul(0x9e37_79b9) >> 7;
    (mixed % 61) as f32 / 16.0 - 1.9
}

fn values_agree<T: bytemuck::Pod>(
    pack: impl Fn(usize, usize) -> Vec<T>,
    elements: fn(&[T]) -> PanelElements<'_>,
    kind: RunElements,
) {
    let teams = [1, 3].map(|threads| Team::new(threads).expect("a team"));
    for (rows, inputs, outputs, run) in SHAPES {
        let dense = pack(inputs, outputs);
        let layout = InputMajorLayout::new(inputs, run, kind.clone());
        let stored = layout.pack(bytemuck::cast_slice(&dense));
        let bias = numbers(2, outputs);
        let noted = |place: usize, outputs: &mut [f32]| {
            outputs.iter_mut().zip(place..).for_each(|(output, place)| *output += place as f32);
        };
        let change = RowChange { change: Change(&noted), start: 0, columns: outputs };
        let epilogue = Epilogue { change: Some(change), ..Epilogue::bias(&bias) };
        for zeros in [0, 5, 9, 10] {
            let x = activations(rows, inputs, zeros);
            let x = Matrix::new(&x, rows, inputs);
            for instructions in Instructions::available() {
                let mut expected = vec![f32::NAN; rows * outputs];
                let piece = PanelPiece::whole(outputs, inputs, elements(&dense));
                let out = MatrixMut::new(&mut expected, rows, outputs);
                panels_product(instructions, x, &[piece], out, Start::Zero, epilogue);
                for (team, cuts) in teams.iter().flat_map(|team| cuts(inputs).into_iter().map(move |cuts| (team, cuts)))
                {
                    let (found, _) = team.run(|| {
                        left_out(instructions, RunRows::Floats(x), &layout, &stored, &cuts, (rows, outputs), epilogue)
                    });
                    assert_eq!(
                        bits(&found),
                        bits(&expected),
                        "{rows} × {inputs} × {outputs}, {zeros} zeros on {}",
                        instructions.name()
                    );
                }
            }
        }
        spreads(&layout, &stored, bytemuck::cast_slice(&dense), outputs);
    }
}

/// The panels that are copied out are those that were packed.
fn spreads(layout: &InputMajorLayout, stored: &[u8], dense: &[u8], outputs: usize) {
    let inputs = 0..layout.inputs();
    let length = layout.run_bytes(&inputs);
    let lines = aligned(stored);
    let stored = &bytemuck::cast_slice(&lines)[..stored.len()];
    let panel = dense.len() / outputs.div_ceil(16);
    for (run, bytes) in stored.chunks(length).enumerate() {
        let piece = RunPiece { runs: run..run + 1, inputs: inputs.clone(), bytes };
        let first = run * layout.run() / 16;
        let last = (first + layout.run() / 16).min(outputs.div_ceil(16));
        let (values, bytes) = panels_of_runs(layout, &piece, 0..last - first);
        assert_eq!(&bytemuck::cast_slice::<f32, u8>(&values)[..bytes], &dense[first * panel..last * panel]);
    }
}

#[test]
fn products_of_values_have_the_bits_of_those_with_panels() {
    values_agree(
        |inputs, outputs| pack_panels::<f32>(inputs, outputs, element),
        |elements| PanelElements::F32(elements),
        RunElements::F32,
    );
    values_agree(
        |inputs, outputs| pack_panels::<f16>(inputs, outputs, element),
        |elements| PanelElements::F16(elements),
        RunElements::F16,
    );
    values_agree(
        |inputs, outputs| pack_panels::<bf16>(inputs, outputs, element),
        |elements| PanelElements::Bf16(elements),
        RunElements::Bf16,
    );
}

/// Panels of codes with their planes, whose bytes are made up: finite floats, and any integers.
fn codes(layout: &CodedLayout, inputs: usize, outputs: usize) -> Vec<u8> {
    let mut panels = Vec::new();
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    for _ in 0..outputs.div_ceil(16) {
        for first in (0..inputs).step_by(layout.cut()) {
            let length = (inputs - first).min(layout.cut());
            for plane in layout.planes() {
                let rows = if plane.block == 0 { usize::from(first == 0) } else { length.div_ceil(plane.block) };
                let begin = panels.len();
                for _ in 0..rows * 16 {
                    let scale = 0.25 + (random() % 64) as f32 / 64.0;
                    match plane.element {
                        PlaneType::F32 => panels.extend(scale.to_le_bytes()),
                        PlaneType::F16 => panels.extend(f16::from_f32(scale).to_le_bytes()),
                        _ => panels.push(random() as u8),
                    }
                }
                if plane.element == PlaneType::U4 {
                    panels.truncate(begin + rows * 8);
                }
                let bytes = panels.len() - begin;
                panels.resize(begin + bytes.next_multiple_of(64), 0);
            }
            let group = layout.code().inputs_of_line();
            let mut lines: Vec<u8> = (0..length.div_ceil(group) * 64).map(|_| random() as u8).collect();
            // Inputs that there are none of are 0.
            for input in length..length.next_multiple_of(group) {
                for output in 0..16 {
                    let byte = &mut lines[input / group * 64 + output * 4 + input % group % 4];
                    let shift = input % group / 4 * layout.code().bits();
                    *byte &= !(((1u16 << layout.code().bits()) - 1) << shift) as u8;
                }
            }
            panels.extend(lines);
        }
    }
    panels
}

fn plane(role: CodedRole, element: PlaneType, block: usize) -> CodedPlane {
    CodedPlane { role, element, block }
}

#[test]
fn products_of_codes_have_the_bits_of_those_with_panels() {
    let scale = |element, block| plane(CodedRole::Scale, element, block);
    let zero = |element, block| plane(CodedRole::ZeroPoint, element, block);
    let layouts: [(CodeType, usize, &[CodedPlane], Rounded); 7] = [
        (CodeType::I8, 256, &[scale(PlaneType::F32, 0)], Rounded::F32),
        (CodeType::U8, 256, &[scale(PlaneType::F16, 0), zero(PlaneType::U8, 0)], Rounded::F16),
        (CodeType::I8, 256, &[scale(PlaneType::F16, 128)], Rounded::Bf16),
        (CodeType::I4, 256, &[scale(PlaneType::F16, 128)], Rounded::F32),
        (CodeType::U4, 1024, &[scale(PlaneType::F32, 256), zero(PlaneType::U4, 128)], Rounded::F32),
        (CodeType::I4, 256, &[scale(PlaneType::F32, 0)], Rounded::F32),
        (
            CodeType::U4,
            256,
            &[scale(PlaneType::F32, 0), scale(PlaneType::F16, 128), zero(PlaneType::U8, 0)],
            Rounded::F32,
        ),
    ];
    let team = Team::new(3).expect("a team");
    for (code, cut, planes, rounded) in layouts {
        for (rows, inputs, outputs, run) in SHAPES {
            let layout = CodedLayout::new(code, inputs, cut, planes, rounded);
            let dense = codes(&layout, inputs, outputs);
            let runs = InputMajorLayout::new(inputs, run, RunElements::Codes(layout.clone()));
            assert!(runs.skips(false) && runs.skips(true));
            let stored = runs.pack(&dense);
            let lines = aligned(&dense);
            let bytes = &bytemuck::cast_slice(&lines)[..dense.len()];
            let pieces = [CodedPiece { panels: 0..outputs.div_ceil(16), inputs: 0..inputs, bytes }];
            for zeros in [0, 5, 9, 10] {
                let x = activations(rows, inputs, zeros);
                let x = Matrix::new(&x, rows, inputs);
                for instructions in Instructions::available() {
                    let dynamic = DynamicRows::new(instructions, x, 0);
                    for rounds in [false, true] {
                        let mut expected = vec![f32::NAN; rows * outputs];
                        let (out, mut open) = (MatrixMut::new(&mut expected, rows, outputs), OpenPanels::default());
                        let none = Epilogue::default();
                        let given = if rounds {
                            dynamic_product(instructions, &dynamic, &layout, &pieces, &mut open, out, none);
                            RunRows::Codes(&dynamic)
                        } else {
                            coded_product(instructions, x, &layout, &pieces, &mut open, out, Start::Zero, none);
                            RunRows::Floats(x)
                        };
                        for cuts in cuts(inputs).into_iter().filter(|cuts| cut == 256 || cuts.len() == 1) {
                            let (found, _) = team
                                .run(|| left_out(instructions, given, &runs, &stored, &cuts, (rows, outputs), none));
                            let name = instructions.name();
                            assert_eq!(
                                bits(&found),
                                bits(&expected),
                                "{code:?} {planes:?}, {rows} × {inputs} × {outputs}, {zeros} zeros, rounded {rounds}, {cuts:?} on {name}"
                            );
                        }
                    }
                }
            }
            spreads(&runs, &stored, &dense, outputs);
        }
    }
}

#[test]
fn inputs_that_were_read_one_by_one_give_the_same() {
    let (rows, inputs, outputs, run) = (2, 600, 200, 128);
    let scale = plane(CodedRole::Scale, PlaneType::F32, 0);
    let layout = CodedLayout::new(CodeType::I8, inputs, 256, &[scale], Rounded::F32);
    let runs = InputMajorLayout::new(inputs, run, RunElements::Codes(layout.clone()));
    let stored = aligned(&runs.pack(&codes(&layout, inputs, outputs)));
    let length = runs.run_bytes(&(0..inputs));
    let stored = &bytemuck::cast_slice::<_, u8>(&stored)[..2 * length];
    let x = activations(rows, inputs, 8);
    let x = Matrix::new(&x, rows, inputs);
    for instructions in Instructions::available() {
        let dynamic = DynamicRows::new(instructions, x, 0);
        for given in [RunRows::Floats(x), RunRows::Codes(&dynamic)] {
            let none = Epilogue::default();
            let (expected, skipped) = left_out(instructions, given, &runs, stored, &[inputs], (rows, outputs), none);
            let mut product = InputMajorProduct::new(instructions, &runs);
            let active = product.inputs(given);
            let mut found = vec![f32::NAN; rows * outputs];
            for range in [0..512, 512..inputs] {
                let bytes = stored.chunks(length).enumerate().map(|(run, bytes)| {
                    let (planes, elements) = bytes.split_at(length - inputs * runs.row_bytes());
                    let mut rows = vec![&[][..]; range.len()];
                    for &input in active.iter().filter(|input| range.contains(input)) {
                        rows[input - range.start] = &elements[input * runs.row_bytes()..][..runs.row_bytes()];
                    }
                    RunInputs {
                        run,
                        first: range.start,
                        planes: if range.start == 0 { planes } else { &[] },
                        inputs: rows,
                    }
                });
                let out = MatrixMut::new(&mut found, rows, outputs);
                product.add_inputs(given, &bytes.collect::<Vec<_>>(), out, none);
            }
            assert_eq!(bits(&found), bits(&expected), "{}", instructions.name());
            assert_eq!(product.skipped(), skipped);
            assert!(skipped.bytes > 0 && active.len() as u64 * 256 + skipped.bytes == 2 * 128 * 600);
        }
    }
}

#[test]
fn what_is_left_out_is_counted() {
    let (inputs, outputs) = (300, 70);
    let dense = pack_panels::<f32>(inputs, outputs, element);
    let layout = InputMajorLayout::new(inputs, 32, RunElements::F32);
    let stored = layout.pack(bytemuck::cast_slice(&dense));
    let mut x = vec![0.0; 2 * inputs];
    (x[3], x[299], x[inputs + 3], x[inputs + 4]) = (1.0, -1.0, 2.0, f32::NAN);
    let rows = RunRows::Floats(Matrix::new(&x, 2, inputs));
    for cuts in cuts(inputs) {
        let best = Instructions::best();
        let (found, skipped) = left_out(best, rows, &layout, &stored, &cuts, (2, outputs), Epilogue::default());
        // Three inputs are not zero in some row.
        let expected = Skipped { multiplications: 297 * 2 * 70, bytes: 297 * 96 * 4 };
        assert_eq!(skipped, expected);
        assert_eq!(found[1], element(3, 1) - element(299, 1));
        assert!(found[outputs..].iter().all(|value| value.is_nan()));
    }
}

#[test]
fn sums_of_more_inputs_than_integers_hold_are_apart() {
    let (inputs, outputs) = ((1 << 16) + 300, 16);
    let layout =
        CodedLayout::new(CodeType::U8, inputs, 256, &[plane(CodedRole::Scale, PlaneType::F32, 0)], Rounded::F32);
    let mut dense = vec![0xff; layout.panel_bytes(&(0..inputs))];
    dense[..64].copy_from_slice(bytemuck::cast_slice(&[0.5f32; 16]));
    let runs = InputMajorLayout::new(inputs, 64, RunElements::Codes(layout.clone()));
    let stored = runs.pack(&dense);
    let x = vec![1.0; inputs];
    let lines = aligned(&dense);
    let bytes = &bytemuck::cast_slice(&lines)[..dense.len()];
    for instructions in Instructions::available() {
        let dynamic = DynamicRows::new(instructions, Matrix::new(&x, 1, inputs), 0);
        let mut expected = vec![f32::NAN; outputs];
        let pieces = [CodedPiece { panels: 0..1, inputs: 0..inputs, bytes }];
        let out = MatrixMut::new(&mut expected, 1, outputs);
        dynamic_product(instructions, &dynamic, &layout, &pieces, &mut OpenPanels::default(), out, Epilogue::default());
        for cuts in [vec![inputs], vec![512, 65_024, inputs]] {
            let (found, _) = left_out(
                instructions,
                RunRows::Codes(&dynamic),
                &runs,
                &stored,
                &cuts,
                (1, outputs),
                Epilogue::default(),
            );
            assert_eq!(bits(&found), bits(&expected), "{cuts:?} on {}", instructions.name());
        }
    }
}
