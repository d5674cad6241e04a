//! Rows and experts that are chosen by index: only they are read, and those that were used last are kept.

use super::models::{
    CHUNK_BYTES, WIDTH, WORKING_BYTES, all_inputs, bits, everything, manifest, node, open, port, session, stream_bytes,
    weight, write,
};
use super::watched::Watched;
use ipuc::files::DirectFile;
use ipuc_formats::onnx::schema::{AttributeProto, GraphProto, NodeProto};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_runtime::{Model, ModelOptions, OpenError};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[test]
fn only_chosen_rows_and_branches_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = everything(folder.path());
    let file = Arc::new(Watched::new(&path));
    let options = ModelOptions {
        memory_bytes: Some(stream_bytes(&path) / 10 + WORKING_BYTES),
        readers: 2,
        ..ModelOptions::default()
    };
    let model = Model::open_with(file.clone(), options).unwrap();
    let mut session = session(&model, 1);
    let manifest = manifest(&path);
    let place = |name: &str| {
        let weight = manifest.weights.iter().find(|weight| weight.name.as_deref() == Some(name)).unwrap();
        let extents = weight.parts.iter().map(|part| &manifest.extents[part.extent as usize]);
        extents.map(|extent| extent.offset..extent.offset + extent.length).collect::<Vec<_>>()
    };
    for pass in 0..3 {
        session.run(None, all_inputs(true, [7, 3000])).unwrap();
        // A row of 1 KiB lies in one block of 4 KiB of the weight, which lies in at most two of the file.
        assert!(session.last_pass().unwrap().row_bytes <= 2 * 2 * 4096, "pass {pass}");
    }
    let touched = |places: &[Range<u64>]| {
        let reads = file.reads.lock().unwrap();
        let overlaps = |read: &&Range<u64>| places.iter().any(|place| place.start < read.end && read.start < place.end);
        reads.iter().filter(overlaps).map(|read| read.end - read.start).sum::<u64>()
    };
    assert!(touched(&place("then_w")) > 0);
    // Chunks at its borders hold ends of its neighbours.
    assert!(touched(&place("else_w")[1..3]) == 0, "a branch that is not taken is read");
    assert!(touched(&place("table")) <= 3 * 4 * 4096 + 2 * 3 * CHUNK_BYTES, "the table is read");
}

#[test]
fn rows_that_were_used_last_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = everything(folder.path());
    let model = open(&path, Some(stream_bytes(&path) / 4 + WORKING_BYTES));
    let mut session = session(&model, 1);
    let mut row_bytes = |ids| {
        session.run(None, all_inputs(true, ids)).unwrap();
        session.last_pass().unwrap().row_bytes
    };
    assert!(row_bytes([7, 3000]) > 0);
    assert_eq!(row_bytes([3000, 7]), 0);
    let one = row_bytes([7, 2000]);
    assert!(one > 0 && one <= 2 * 4096);
    // More rows than there is room for: the oldest has gone.
    let rows_of_room = model.residency().unwrap().kept_rows_bytes / 1024;
    assert!((8..3000).contains(&rows_of_room), "{rows_of_room}");
    for id in 100..(100 + rows_of_room as i64 + 8) {
        row_bytes([id, id]);
    }
    assert!(row_bytes([7, 7]) > 0);
}

#[test]
fn rows_of_weights_that_fit_are_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = everything(folder.path());
    let file = Arc::new(Watched::new(&path));
    let options = ModelOptions {
        memory_bytes: Some(stream_bytes(&path) + 2 * WORKING_BYTES),
        readers: 1,
        ..ModelOptions::default()
    };
    let model = Model::open_with(file.clone(), options).unwrap();
    let mut session = session(&model, 1);
    let table_is_there = (0..2000).any(|id| {
        let before = file.reads.lock().unwrap().len();
        session.run(None, all_inputs(id % 2 == 0, [id, id + 2000])).unwrap();
        file.reads.lock().unwrap().len() == before
    });
    assert!(table_is_there, "every pass reads");
    let before = file.reads.lock().unwrap().len();
    for id in 0..100 {
        session.run(None, all_inputs(true, [2 * id + 1, 3999 - id])).unwrap();
        assert_eq!(session.last_pass().unwrap().bytes_read(), 0, "rows {id}");
    }
    assert_eq!(file.reads.lock().unwrap().len(), before);
}

/// Rows of a table, by the table: what a decoder with tied embeddings begins and ends with.
fn tied(folder: &Path, rows: usize) -> PathBuf {
    let (width, of_table) = (WIDTH as i64, rows as i64);
    let transposed = AttributeProto {
        name: Some("perm".to_string()),
        r#type: Some(7),
        ints: vec![1, 0],
        ..AttributeProto::default()
    };
    let graph = GraphProto {
        input: vec![port("ids", 7, &[2])],
        output: vec![port("rows", 1, &[2, width]), port("y", 1, &[2, of_table])],
        initializer: vec![weight("table", &[rows, WIDTH], 100)],
        node: vec![
            node("Gather", &["table", "ids"], &["rows"]),
            NodeProto { attribute: vec![transposed], ..node("Transpose", &["table"], &["columns"]) },
            node("MatMul", &["rows", "columns"], &["y"]),
        ],
        ..GraphProto::default()
    };
    write(folder, graph)
}

#[test]
fn an_embedding_that_is_the_last_product_too_is_read_in_panels_part_by_part() {
    let folder = tempfile::tempdir().unwrap();
    // A number of rows that is no multiple of a panel.
    let rows = 4003;
    let path = tied(folder.path(), rows);
    let manifest = manifest(&path);
    assert_eq!(manifest.weights.len(), 1);
    let record = &manifest.weights[0];
    assert!(record.encoding.as_panels().is_some(), "{}", record.encoding);
    assert_eq!(record.reason, "products read it, as the same matrix, and single rows");
    let table = weight("table", &[rows, WIDTH], 100).raw_data.unwrap();
    let table: Vec<f32> = table.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let line = |row: usize| &table[row * WIDTH..][..WIDTH];
    // A tenth of the table, which is read as a whole in each pass.
    let model = open(&path, Some(stream_bytes(&path) / 10 + WORKING_BYTES));
    let (mut streamed, mut resident) = (session(&model, 2), session(&open(&path, None), 1));
    for ids in [[7, rows as i64 - 1], [3000, 0]] {
        let inputs = || vec![("ids".to_string(), Value::from(Tensor::vector_i64(&ids)))];
        let outputs = streamed.run(None, inputs()).unwrap();
        assert!(bits(&outputs) == bits(&resident.run(None, inputs()).unwrap()), "{ids:?}");
        let report = streamed.last_pass().unwrap();
        assert!(report.row_bytes > 0 && report.stream_bytes > stream_bytes(&path) / 2, "{report:?}");
        let elements = |output: usize| outputs[output].1.as_tensor().unwrap().elements::<f32>().unwrap();
        for (at, &id) in ids.iter().enumerate() {
            assert_eq!(elements(0)[at * WIDTH..][..WIDTH], *line(id as usize), "row {id}");
            for row in [0, 15, 16, 1001, rows - 1] {
                let products = line(id as usize).iter().zip(line(row));
                let expected: f64 = products.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                let found = f64::from(elements(1)[at * rows + row]);
                assert!((found - expected).abs() < 1e-4, "{id} by {row}: {found} for {expected}");
            }
        }
    }
}

/// One of several matrices is chosen by index, and is multiplied with.
fn experts(folder: &Path, count: usize, size: usize) -> PathBuf {
    let width = size as i64;
    let graph = GraphProto {
        input: vec![port("h", 1, &[1, width]), port("chosen", 7, &[2])],
        output: vec![port("y", 1, &[2, 1, width])],
        initializer: vec![weight("matrices", &[count, size, size], 7)],
        node: vec![node("Gather", &["matrices", "chosen"], &["matrix"]), node("MatMul", &["h", "matrix"], &["y"])],
        ..GraphProto::default()
    };
    write(folder, graph)
}

#[test]
fn only_chosen_experts_are_read_and_recent_ones_are_kept() {
    use ipuc_formats::dtype::DType;
    let (count, size) = (16, 512);
    let expert_bytes = (size * size * 4) as u64;
    let folder = tempfile::tempdir().unwrap();
    let path = experts(folder.path(), count, size);
    let inputs = |chosen: [i64; 2]| {
        let h: Vec<u8> = (0..size).flat_map(|index| ((index % 7) as f32 - 3.0).to_le_bytes()).collect();
        let chosen: Vec<u8> = chosen.iter().flat_map(|id| id.to_le_bytes()).collect();
        vec![
            ("h".to_string(), Value::from(Tensor::from_bytes(DType::F32, &[1, size], &h).unwrap())),
            ("chosen".to_string(), Tensor::from_bytes(DType::I64, &[2], &chosen).unwrap().into()),
        ]
    };
    let mut resident = session(&open(&path, None), 1);
    // What a run works with, and room for four of the matrices.
    let working_bytes = 3 * expert_bytes;
    let model = open(&path, Some(working_bytes + 4 * expert_bytes));
    let mut streamed = session(&model, 2);
    let most = |experts: u64| experts * (expert_bytes + 2 * 4096);
    for (chosen, experts) in [([3, 9], 2), ([9, 3], 0), ([3, 12], 1), ([5, 5], 1), ([0, 15], 2), ([15, 0], 0)] {
        let found = bits(&streamed.run(None, inputs(chosen)).unwrap());
        assert!(found == bits(&resident.run(None, inputs(chosen)).unwrap()), "{chosen:?}");
        let report = streamed.last_pass().unwrap();
        assert!(
            report.row_bytes >= experts * expert_bytes && report.row_bytes <= most(experts),
            "{chosen:?} {report:?}"
        );
        // One that is chosen twice is found neither time where it must be read.
        let found = if chosen == [5, 5] { 0 } else { 2 - experts };
        assert_eq!((report.chosen_bytes, report.found_bytes), (2 * expert_bytes, found * expert_bytes), "{chosen:?}");
        assert_eq!((report.stream_bytes, report.unplanned_bytes), (0, 0));
    }
}

/// A mixture of `count` experts of `com.microsoft`, of which a token has two.
fn mixture(folder: &Path, count: usize, size: usize) -> PathBuf {
    let integer = |name: &str, value: i64| AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(2),
        i: Some(value),
        ..AttributeProto::default()
    };
    let inputs = ["h", "scores", "first", "", "second"];
    let experts = NodeProto {
        domain: Some("com.microsoft".to_string()),
        attribute: vec![integer("k", 2)],
        ..node("MoE", &inputs, &["y"])
    };
    let graph = GraphProto {
        input: vec![port("h", 1, &[-1, size as i64]), port("scores", 1, &[-1, count as i64])],
        output: vec![port("y", 1, &[-1, size as i64])],
        initializer: vec![weight("first", &[count, size, size], 7), weight("second", &[count, size, size], 9)],
        node: vec![experts],
        ..GraphProto::default()
    };
    write(folder, graph)
}

/// Both layers of a mixture read the experts of the tokens at hand, and keep those that were used last.
#[test]
fn mixtures_read_the_experts_of_their_tokens() {
    let (count, size) = (16, 512);
    let expert_bytes = 2 * (size * size * 4) as u64;
    let folder = tempfile::tempdir().unwrap();
    let path = mixture(folder.path(), count, size);
    let inputs = |chosen: &[[usize; 2]]| {
        let h: Vec<f32> = (0..chosen.len() * size).map(|index| (index % 7) as f32 - 3.0).collect();
        let mut scores = vec![0.0f32; chosen.len() * count];
        for (token, experts) in chosen.iter().enumerate() {
            experts.iter().zip([3.0, 2.0]).for_each(|(expert, score)| scores[token * count + expert] = score);
        }
        let scores = Tensor::from_vec(&[chosen.len(), count], scores).unwrap();
        let h = Tensor::from_vec(&[chosen.len(), size], h).unwrap();
        vec![("h".to_string(), Value::from(h)), ("scores".to_string(), scores.into())]
    };
    let mut resident = session(&open(&path, None), 1);
    // What a run works with, and room for four experts.
    let model = open(&path, Some(5 * expert_bytes));
    let mut streamed = session(&model, 2);
    // The experts of each run, and whether all of them were used by the one before.
    let runs: [(&[[usize; 2]], u64, bool); 5] = [
        (&[[3, 9]], 2, false),
        (&[[9, 3]], 2, true),
        (&[[3, 12], [9, 12], [3, 9]], 3, false),
        (&[[0, 15]], 2, false),
        (&[[15, 0]], 2, true),
    ];
    for (chosen, experts, known) in runs {
        let found = bits(&streamed.run(None, inputs(chosen)).unwrap());
        assert!(found == bits(&resident.run(None, inputs(chosen)).unwrap()), "{chosen:?}");
        let report = streamed.last_pass().unwrap();
        assert_eq!(report.chosen_bytes, experts * expert_bytes, "{chosen:?}");
        // Some matrices stay in memory by the plan, and are found whenever they are chosen.
        let missing = report.chosen_bytes - report.found_bytes;
        assert_eq!(missing == 0, known, "{chosen:?} {report:?}");
        assert!((missing..=missing + experts * 4 * 4096).contains(&report.row_bytes), "{chosen:?} {report:?}");
        // The constants of the routing are two blocks of the stream.
        assert!(report.stream_bytes <= 2 * 4096, "{report:?}");
        assert_eq!(report.unplanned_bytes, 0);
    }
}

/// Matrices that a step picks are held in the budget.
#[test]
fn a_budget_has_room_for_the_experts_of_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let (count, size) = (16, 512);
    let path = mixture(folder.path(), count, size);
    let open = |memory_bytes| {
        let options = ModelOptions { memory_bytes: Some(memory_bytes), ..ModelOptions::default() };
        Model::open_with(Arc::new(DirectFile::open(&path).unwrap()), options)
    };
    // Several small ones are read together.
    let held_bytes = 4 << 20;
    let Err(OpenError::Budget { needed_bytes, .. }) = open(held_bytes) else { panic!("experts take no memory") };
    assert!((held_bytes..held_bytes + (1 << 20)).contains(&needed_bytes), "{needed_bytes}");
    assert!(open(needed_bytes).unwrap().residency().unwrap().working_bytes >= held_bytes);
}
