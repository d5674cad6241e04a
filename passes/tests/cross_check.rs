//! What tract says of the types of the fixtures' values, and what to think of it.
#![cfg(feature = "cross-check")]
#![allow(clippy::unwrap_used, reason = "tests panic")]

use ipuc_formats::onnx::schema::{
    GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TypeProto, ValueInfoProto,
    tensor_shape_proto, type_proto,
};
use ipuc_formats::onnx::{TensorData, TensorSource, read_model};
use ipuc_formats::read_at::ReadAt;
use ipuc_passes::import::{CrossCheck, ExternalFiles, Model, cross_check, import};
use ipuc_passes::ir::Graph;
use ipuc_passes::options::Options;
use ipuc_passes::pipeline::{find, run_one};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the two differ, and why tract is wrong: fixture, value.
const DECIDED: &[(&str, &str)] = &[
    // The condition of the `If` before it is known (an extent that is 1), and its branch squeezes that axis away; tract
    // takes the rank of the branch that does not run.
    ("silero_vad_16k_op15", "/model/ReduceMean_output_0"),
];

struct Beside(PathBuf);

impl ExternalFiles for Beside {
    fn open(&self, tensor: &TensorSource) -> Result<Arc<dyn ReadAt>, String> {
        let TensorData::External(data) = tensor.data() else { return Err("no external data".to_string()) };
        let bytes = std::fs::read(self.0.join(&data.location)).map_err(|error| error.to_string())?;
        Ok(Arc::new(bytes))
    }
}

/// The graph after its types are known for the first time.
fn typed(proto: &ModelProto, bytes: Vec<u8>, folder: &Path) -> Graph {
    let files = Beside(folder.to_owned());
    let model = Model {
        entry: "main",
        file_name: "model.onnx",
        proto,
        bytes: Arc::new(bytes),
        files: &files,
        overridable: &[],
    };
    let mut graph = import(&[model]).unwrap();
    run_one(find("infer").unwrap(), &mut graph, &Options::default()).unwrap();
    graph
}

fn checked(fixture: &str) -> Result<CrossCheck, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(fixture);
    let bytes = std::fs::read(folder.join("model.onnx")).unwrap();
    let proto = read_model(&bytes).unwrap();
    let graph = typed(&proto, bytes, &folder);
    cross_check(&proto, &graph, "main")
}

#[test]
fn real_models_have_the_types_that_tract_derives() {
    let found = checked("ppocr_v2_cls").unwrap();
    assert_eq!(found.disagreements, []);
    assert!(found.agreeing > 100, "{found:?}");
}

#[test]
fn every_disagreement_about_a_fixture_is_decided() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let mut checks = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        if !Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(&name).join("model.onnx").is_file() {
            continue;
        }
        // No answer is an answer: tract enters no branches and knows no functions.
        if let Ok(found) = checked(&name) {
            let values: Vec<&str> = found.disagreements.iter().map(|one| one.value.as_str()).collect();
            let decided = DECIDED.iter().filter(|(fixture, _)| *fixture == name);
            let decided: Vec<&str> = decided.map(|&(_, value)| value).collect();
            assert_eq!(values, decided, "{name}: {found:?}");
            checks += usize::from(found.agreeing > 0);
        }
    }
    assert!(checks >= 2, "{checks} fixtures have an answer");
}

fn value(name: &str, dims: Option<&[&str]>) -> ValueInfoProto {
    use tensor_shape_proto::dimension::Value::{DimParam, DimValue};
    let dimension = |text: &&str| tensor_shape_proto::Dimension {
        value: Some(text.parse().map_or_else(|_| DimParam((*text).to_string()), DimValue)),
        denotation: None,
    };
    let shape = dims.map(|dims| TensorShapeProto { dim: dims.iter().map(dimension).collect() });
    let tensor = type_proto::Tensor { elem_type: Some(1), shape };
    let r#type = Some(TypeProto { denotation: None, value: Some(type_proto::Value::TensorType(tensor)) });
    ValueInfoProto { name: Some(name.to_string()), r#type, ..ValueInfoProto::default() }
}

/// `y = operator(x, x)` for a matrix of open extents.
fn small(operator: &str) -> ModelProto {
    let node = NodeProto {
        op_type: Some(operator.to_string()),
        input: vec!["x".to_string(), "x".to_string()],
        output: vec!["y".to_string()],
        ..NodeProto::default()
    };
    let graph = GraphProto {
        name: Some("small".to_string()),
        node: vec![node],
        input: vec![value("x", Some(&["batch", "8"]))],
        output: vec![value("y", None)],
        ..GraphProto::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: None, version: Some(17) }];
    ModelProto { ir_version: Some(8), opset_import, graph: Some(graph), ..ModelProto::default() }
}

#[test]
fn what_differs_is_found() {
    let proto = small("Add");
    let mut graph = typed(&proto, Vec::new(), Path::new("."));
    let sound = cross_check(&proto, &graph, "main").unwrap();
    assert_eq!((sound.agreeing, sound.disagreements.len(), sound.failure), (1, 0, None));
    // Another model's answer: its result has another element type.
    let other = small("Equal");
    let found = cross_check(&other, &graph, "main").unwrap();
    assert_eq!(found.disagreements.len(), 1, "{found:?}");
    assert_eq!(found.disagreements[0].value, "y");
    // An extent that is wrong at some sizes only.
    let result = graph.blocks[0].steps[0].results[0];
    let mut kind = graph.value(graph.blocks[0].parameters[0]).fact.clone();
    let dims = kind.dims().unwrap().to_vec();
    kind = ipuc_formats::fact::Fact::tensor(
        ipuc_formats::dtype::DType::F32,
        vec![ipuc_formats::dim::Dim::known(64), dims[1].clone()],
    );
    graph.value_mut(result).fact = kind;
    let found = cross_check(&proto, &graph, "main").unwrap();
    assert_eq!(found.disagreements.len(), 1, "{found:?}");
}

#[test]
fn operators_that_tract_does_not_know_are_no_error() {
    let mut proto = small("Add");
    let graph = typed(&proto, Vec::new(), Path::new("."));
    if let Some(graph) = &mut proto.graph {
        graph.node[0].op_type = Some("NoSuchOperator".to_string());
    }
    let found = cross_check(&proto, &graph, "main");
    assert_eq!(format!("{found:?}"), "PLACEHOLDER");
    if let Some(graph) = &mut proto.graph {
        graph.node.clear();
    }
    // An output that nothing defines makes tract panic.
    let failed = cross_check(&proto, &graph, "main");
    assert_eq!(failed.unwrap_err().to_string(), "PLACEHOLDER");
}
