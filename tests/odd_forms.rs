//! Forms of ONNX models that are seldom written: each compiles, and computes what the specification says.
#![allow(clippy::unwrap_used, reason = "tests panic")]

use crate::support::{self, node, port, tensor};
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc::{Session, SessionOptions, Tensor, Value};
use ipuc_formats::onnx::schema::*;
use prost::Message as _;

const STRING: i32 = 8;
const U8: i32 = 2;
const I64: i32 = 7;

fn model(opset: i64, graph: GraphProto) -> ModelProto {
    let opset = OperatorSetIdProto { domain: None, version: Some(opset) };
    ModelProto { ir_version: Some(8), opset_import: vec![opset], graph: Some(graph), ..ModelProto::default() }
}

/// Compile a model and run it once.
fn run(model: &ModelProto, inputs: Vec<(&str, Value)>) -> Result<Vec<(String, Value)>, String> {
    let folder = tempfile::tempdir().unwrap();
    let (path, output) = (folder.path().join("model.onnx"), folder.path().join("model.ipu"));
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    let source = Source { entry: "main".to_string(), path };
    compile(&[source], &output, &CompileOptions::default()).map_err(|error| error.to_string())?;
    let model = ipuc::open(&output).unwrap();
    let mut session = Session::new(&model, &SessionOptions { threads: 1, seed: 0 }).unwrap();
    let inputs = inputs.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    session.run(None, inputs).map_err(|error| error.to_string())
}

/// An f32 output of a model of one node.
fn computed(opset: i64, node: NodeProto, inputs: &[(&str, &[usize], &[f32])]) -> Result<Tensor, String> {
    let ports = inputs.iter().map(|(name, shape, _)| {
        let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
        port(name, &shape.iter().map(String::as_str).collect::<Vec<_>>())
    });
    let output = ValueInfoProto { name: Some("y".to_string()), ..ValueInfoProto::default() };
    let model = model(opset, support::graph(ports.collect(), Vec::new(), vec![node], vec![output]));
    let values = inputs.iter().map(|(name, shape, elements)| {
        (*name, Tensor::from_elements(shape, elements).unwrap().into()) //
    });
    let outputs = run(&model, values.collect())?;
    Ok(outputs[0].1.as_tensor().unwrap().clone())
}

fn elements(tensor: &Tensor) -> Vec<f32> {
    tensor.elements::<f32>().unwrap().to_vec()
}

fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    let kind = attribute_proto::AttributeType::Ints as i32;
    let ints = ints.to_vec();
    AttributeProto { name: Some(name.to_string()), r#type: Some(kind), ints, ..AttributeProto::default() }
}

fn int(name: &str, value: i64) -> AttributeProto {
    let kind = attribute_proto::AttributeType::Int as i32;
    AttributeProto { name: Some(name.to_string()), r#type: Some(kind), i: Some(value), ..AttributeProto::default() }
}

fn float(name: &str, value: f32) -> AttributeProto {
    let kind = attribute_proto::AttributeType::Float as i32;
    AttributeProto { name: Some(name.to_string()), r#type: Some(kind), f: Some(value), ..AttributeProto::default() }
}

fn text(name: &str, value: &str) -> AttributeProto {
    let kind = attribute_proto::AttributeType::String as i32;
    let s = Some(value.as_bytes().to_vec());
    AttributeProto { name: Some(name.to_string()), r#type: Some(kind), s, ..AttributeProto::default() }
}

fn with(attributes: &[AttributeProto], node: NodeProto) -> NodeProto {
    NodeProto { attribute: attributes.to_vec(), ..node }
}

fn integers(name: &str, elements: &[i64]) -> TensorProto {
    let raw_data = Some(elements.iter().flat_map(|element| element.to_le_bytes()).collect());
    TensorProto { data_type: Some(I64), raw_data, ..tensor(name, &[elements.len() as i64], &[]) }
}

#[test]
fn a_dilated_window_with_as_many_taps_as_elements_is_not_the_whole_input() {
    let pool = |operator| {
        let attributes = [ints("kernel_shape", &[2]), ints("dilations", &[2]), ints("pads", &[0, 1])];
        let y = computed(22, with(&attributes, node(operator, &["x"], &["y"])), &[("x", &[1, 1, 2], &[3.0, 5.0])]);
        elements(&y.unwrap())
    };
    for operator in ["MaxPool", "AveragePool", "LpPool"] {
        assert_eq!(pool(operator), [3.0], "{operator}");
    }
}

#[test]
fn much_stored_text_is_moved_when_it_is_run() {
    let texts: Vec<String> = (0..600).map(|index| format!("text {index}")).collect();
    let stored = TensorProto {
        data_type: Some(STRING),
        raw_data: None,
        string_data: texts.iter().map(|text| text.clone().into_bytes()).collect(),
        ..tensor("t", &[20, 30], &[])
    };
    let nodes = vec![
        node("Transpose", &["t"], &["transposed"]),
        node("Expand", &["transposed", "shape"], &["y"]),
        node("Concat", &["y", "y"], &["z"]),
    ];
    let nodes = nodes.into_iter().map(|node| match node.op_type() {
        "Concat" => with(&[int("axis", 0)], node),
        _ => node,
    });
    let output = |name: &str| ValueInfoProto { name: Some(name.to_string()), ..ValueInfoProto::default() };
    let outputs = vec![output("transposed"), output("z")];
    let weights = vec![stored, integers("shape", &[50, 30, 20])];
    let outputs = run(&model(17, support::graph(Vec::new(), weights, nodes.collect(), outputs)), Vec::new()).unwrap();
    let [(_, transposed), (_, repeated)] = &outputs[..] else { panic!("{} outputs", outputs.len()) };
    let expected: Vec<String> = (0..600).map(|index| texts[index % 20 * 30 + index / 20].clone()).collect();
    assert_eq!(transposed.as_tensor().unwrap().strings().unwrap(), expected);
    let repeated = repeated.as_tensor().unwrap();
    assert_eq!(repeated.shape(), [100, 30, 20]);
    assert!(repeated.strings().unwrap().chunks(600).all(|part| part == expected));
}

#[test]
fn the_addend_of_a_product_may_have_an_open_extent() {
    let ports = vec![port("a", &["2", "3"]), port("b", &["3", "1"]), port("c", &["2", "n"])];
    let graph =
        support::graph(ports, Vec::new(), vec![node("Gemm", &["a", "b", "c"], &["y"])], vec![port("y", &["2", "1"])]);
    let model = model(17, graph);
    let ones = |shape: &[usize]| Tensor::from_elements(shape, &vec![1.0f32; shape.iter().product()]).unwrap().into();
    let outputs = run(&model, vec![("a", ones(&[2, 3])), ("b", ones(&[3, 1])), ("c", ones(&[2, 1]))]).unwrap();
    assert_eq!(elements(outputs[0].1.as_tensor().unwrap()), [4.0, 4.0]);
    let error = run(&model, vec![("a", ones(&[2, 3])), ("b", ones(&[3, 1])), ("c", ones(&[2, 2]))]).unwrap_err();
    assert!(error.contains("squeezed axis 1"), "{error}");
}

#[test]
fn a_quantized_product_needs_no_ranks_where_its_parameters_are_single() {
    let unranked = |name: &str, elem_type| {
        let kind = type_proto::Value::TensorType(type_proto::Tensor { elem_type: Some(elem_type), shape: None });
        let kind = Some(TypeProto { denotation: None, value: Some(kind) });
        ValueInfoProto { name: Some(name.to_string()), r#type: kind, ..ValueInfoProto::default() }
    };
    let code = |name: &str| TensorProto { data_type: Some(U8), raw_data: Some(vec![1]), ..tensor(name, &[1], &[]) };
    let scale = |name: &str, scale: f32| tensor(name, &[1], &[scale]);
    let weights = vec![scale("as", 0.5), code("az"), scale("bs", 2.0), code("bz"), scale("ys", 0.5), code("yz")];
    let product = node("QLinearMatMul", &["a", "as", "az", "b", "bs", "bz", "ys", "yz"], &["y"]);
    let ports = vec![unranked("a", U8), unranked("b", U8)];
    let model = model(21, support::graph(ports, weights, vec![product], vec![unranked("y", U8)]));
    let codes = |shape: &[usize], codes: &[u8]| Tensor::from_elements(shape, codes).unwrap().into();
    let outputs = run(&model, vec![("a", codes(&[1, 2], &[3, 5])), ("b", codes(&[2, 2], &[2, 1, 4, 2]))]).unwrap();
    let y = outputs[0].1.as_tensor().unwrap();
    // (2, 4) * (1, 0; 3, 1) = (14, 4), of which each is 2 codes, behind 1.
    assert_eq!((y.shape(), y.elements::<u8>().unwrap()), (&[1, 2][..], &[29, 9][..]));
}

#[test]
fn an_output_that_is_listed_twice_is_given_once() {
    let graph = support::graph(
        vec![port("x", &["2"])],
        Vec::new(),
        vec![node("Neg", &["x"], &["y"])],
        vec![port("y", &["2"]), port("x", &["2"]), port("y", &["2"])],
    );
    let x = Tensor::from_elements(&[2], &[1.0f32, 2.0]).unwrap();
    let outputs = run(&model(17, graph), vec![("x", x.into())]).unwrap();
    let names: Vec<&str> = outputs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["y", "x"]);
    assert_eq!(elements(outputs[0].1.as_tensor().unwrap()), [-1.0, -2.0]);
}

#[test]
fn operands_align_by_attributes_until_opset_6() {
    let x: Vec<f32> = (0..12).map(|index| index as f32).collect();
    let sum = |attributes: &[AttributeProto], shape: &[usize], b: &[f32]| {
        let add = with(attributes, node("Add", &["a", "b"], &["y"]));
        computed(6, add, &[("a", &[2, 3, 2], &x), ("b", shape, b)]).map(|y| elements(&y))
    };
    let broadcast = int("broadcast", 1);
    let expected = |place: fn(usize) -> usize, b: &[f32]| (0..12).map(|i| x[i] + b[place(i)]).collect::<Vec<f32>>();
    let ten = [10.0, 20.0, 30.0];
    let middle = sum(&[broadcast.clone(), int("axis", 1)], &[3], &ten).unwrap();
    assert_eq!(middle, expected(|index| index / 2 % 3, &ten));
    assert_eq!(sum(&[broadcast.clone(), int("axis", -2)], &[3], &ten).unwrap(), middle);
    assert_eq!(sum(std::slice::from_ref(&broadcast), &[2], &ten[..2]).unwrap(), expected(|index| index % 2, &ten));
    assert_eq!(sum(&[broadcast.clone(), int("axis", 0)], &[2], &ten[..2]).unwrap(), expected(|index| index / 6, &ten));
    let error = sum(&[], &[2], &ten[..2]).unwrap_err();
    assert!(error.contains("the operands without `broadcast`: 2, 3, 2 does not fit 2"), "{error}");
    let error = sum(&[broadcast, int("axis", 2)], &[3, 2], &[0.0; 6]).unwrap_err();
    assert!(error.contains("axis 2 is outside"), "{error}");
    let error = sum(&[int("axis", 1)], &[2, 3, 2], &x).unwrap_err();
    assert!(error.contains("`axis` without `broadcast`"), "{error}");
}

#[test]
fn first_versions_have_their_attributes() {
    let four = [1.0, -2.0, 3.0, -4.0];
    let of = |node, inputs: &[(&str, &[usize], &[f32])]| {
        computed(1, node, inputs).map(|y| (y.shape().to_vec(), elements(&y)))
    };
    let relu = with(&[ints("consumed_inputs", &[0])], node("Relu", &["x"], &["y"]));
    assert_eq!(of(relu, &[("x", &[4], &four)]).unwrap().1, [1.0, 0.0, 3.0, 0.0]);
    let selu = of(node("Selu", &["x"], &["y"]), &[("x", &[1], &[2.0])]).unwrap().1;
    assert_eq!(selu, [2.0 * 1.0507f32]);
    let prelu = of(node("PRelu", &["x", "s"], &["y"]), &[("x", &[1, 2, 2], &four), ("s", &[2], &[10.0, 100.0])]);
    assert_eq!(prelu.unwrap().1, [1.0, -20.0, 3.0, -400.0]);
    let cast = with(&[text("to", "INT32")], node("Cast", &["x"], &["y"]));
    let y = computed(1, cast, &[("x", &[2], &[1.5, -2.5])]).unwrap();
    assert_eq!(y.elements::<i32>().unwrap(), [1, -2]);
    let tile = node("Tile", &["x", "n", "a"], &["y"]);
    let tiled = of(tile, &[("x", &[2, 2], &four), ("n", &[1], &[2.0]), ("a", &[1], &[1.0])]).unwrap();
    assert_eq!(tiled, (vec![2, 4], vec![1.0, -2.0, 1.0, -2.0, 3.0, -4.0, 3.0, -4.0]));
    let scales = [float("height_scale", 1.0), float("width_scale", 2.0)];
    let upsampled = of(with(&scales, node("Upsample", &["x"], &["y"])), &[("x", &[1, 1, 2, 2], &four)]).unwrap();
    assert_eq!(upsampled, (vec![1, 1, 2, 4], vec![1.0, 1.0, -2.0, -2.0, 3.0, 3.0, -4.0, -4.0]));
    let pool = with(&[ints("kernel_shape", &[2]), float("p", 1.0)], node("LpPool", &["x"], &["y"]));
    assert_eq!(of(pool, &[("x", &[1, 1, 4], &four)]).unwrap().1, [3.0, 5.0, 7.0]);
    let pool = with(&[float("p", 1.5)], node("GlobalLpPool", &["x"], &["y"]));
    let error = of(pool, &[("x", &[1, 1, 4], &four)]).unwrap_err();
    assert!(error.contains("attribute `p` = 1.5"), "{error}");
    let affine = with(&[float("alpha", 2.0), float("beta", 1.0)], node("Affine", &["x"], &["y"]));
    assert_eq!(of(affine, &[("x", &[4], &four)]).unwrap().1, [3.0, -3.0, 7.0, -7.0]);
    let floats = attribute_proto::AttributeType::Floats as i32;
    let bias = AttributeProto { floats: vec![1.0, 10.0], r#type: Some(floats), i: None, ..int("bias", 0) };
    let scaler = with(&[float("scale", 2.0), bias], node("ImageScaler", &["x"], &["y"]));
    assert_eq!(of(scaler, &[("x", &[1, 2, 2, 1], &four)]).unwrap().1, [3.0, -3.0, 16.0, 2.0]);
    let dropout = with(&[int("is_test", 1)], node("Dropout", &["x"], &["y"]));
    assert_eq!(of(dropout, &[("x", &[4], &four)]).unwrap().1, four);
    let kept =
        of(with(&[float("ratio", 0.5)], node("Dropout", &["x"], &["y"])), &[("x", &[64], &[1.0; 64])]).unwrap().1;
    assert!(kept.iter().all(|&element| element == 0.0 || element == 2.0), "{kept:?}");
    assert!(kept.contains(&0.0) && kept.contains(&2.0), "{kept:?}");
    let split = with(&[int("axis", 0), ints("split", &[1, 3])], node("Split", &["x"], &["a", "y"]));
    assert_eq!(of(split, &[("x", &[4], &four)]).unwrap().1, four[1..]);
    let product = [("a", &[1, 2][..], &four[..2]), ("b", &[2, 1], &four[2..]), ("c", &[1], &[1.0])];
    let gemm = |attributes: &[AttributeProto]| of(with(attributes, node("Gemm", &["a", "b", "c"], &["y"])), &product);
    assert_eq!(gemm(&[int("broadcast", 1)]).unwrap().1, [12.0]);
    let error = gemm(&[]).unwrap_err();
    assert!(error.contains("2 without `broadcast`"), "{error}");
}

#[test]
fn an_input_with_a_default_is_the_default_unless_it_is_overridable() {
    let x = || ("x", Value::from(Tensor::from_elements(&[2], &[1.0f32, 2.0]).unwrap()));
    let ports = vec![port("x", &["2"]), port("scale", &["2"])];
    let default = vec![tensor("scale", &[2], &[10.0, 100.0])];
    let graph = support::graph(ports, default, vec![node("Mul", &["x", "scale"], &["y"])], vec![port("y", &["2"])]);
    for version in [3, 8] {
        let model = ModelProto { ir_version: Some(version), ..model(21, graph.clone()) };
        let fixed = run(&model, vec![x()]).unwrap();
        assert_eq!(elements(fixed[0].1.as_tensor().unwrap()), [10.0, 200.0]);
        let folder = tempfile::tempdir().unwrap();
        let (path, output) = (folder.path().join("model.onnx"), folder.path().join("model.ipu"));
        std::fs::write(&path, model.encode_to_vec()).unwrap();
        let compiled = |name: &str| {
            let source = Source { entry: "main".to_string(), path: path.clone() };
            let options = CompileOptions { overridable: vec![name.to_string()], ..CompileOptions::default() };
            compile(&[source], &output, &options).map_err(|error| error.to_string())
        };
        assert_eq!(compiled("x").unwrap_err(), "`x` is no input with a default");
        compiled("scale").unwrap();
        let opened = ipuc::open(&output).unwrap();
        let element = opened.inputs(opened.entry(None).unwrap())[1].kind.clone();
        let ipuc::Type::Optional(element) = element else { panic!("{element} is no optional") };
        let mut session = Session::new(&opened, &SessionOptions { threads: 1, seed: 0 }).unwrap();
        for (given, expected) in [(None, [10.0, 200.0]), (Some([3.0f32, 4.0]), [3.0, 8.0])] {
            let value = given.map(|given| Box::new(Tensor::from_elements(&[2], &given).unwrap().into()));
            let scale = Value::Optional { element: (*element).clone(), value };
            let inputs = [x(), ("scale", scale)].map(|(name, value)| (name.to_string(), value)).to_vec();
            let outputs = session.run(None, inputs).unwrap();
            assert_eq!(elements(outputs[0].1.as_tensor().unwrap()), expected);
        }
    }
}

/// ONNX Runtime gives the same for these maps.
#[test]
fn values_of_maps_are_looked_up() {
    let map_type = |key: i32| {
        let element = TypeProto {
            denotation: None,
            value: Some(type_proto::Value::TensorType(type_proto::Tensor { elem_type: Some(1), shape: None })),
        };
        let map = type_proto::Map { key_type: Some(key), value_type: Some(Box::new(element)) };
        TypeProto { denotation: None, value: Some(type_proto::Value::MapType(Box::new(map))) }
    };
    let computed = |key: i32, node: NodeProto, entries: Vec<(Tensor, f32)>| {
        let kind = Some(map_type(key));
        let input = ValueInfoProto { name: Some("x".to_string()), r#type: kind, ..ValueInfoProto::default() };
        let output = ValueInfoProto { name: Some("y".to_string()), ..ValueInfoProto::default() };
        let node = NodeProto { domain: Some("ai.onnx.ml".to_string()), ..node };
        let mut model = model(21, support::graph(vec![input], Vec::new(), vec![node], vec![output]));
        model.opset_import.push(OperatorSetIdProto { domain: Some("ai.onnx.ml".to_string()), version: Some(1) });
        let entries = entries.into_iter().map(|(key, value)| (key, Tensor::scalar(value).into())).collect();
        let element = ipuc::Type::tensor(ipuc::DType::F32, ipuc::Shape::Unranked);
        let key = if key == STRING { ipuc::DType::String } else { ipuc::DType::I64 };
        let y = run(&model, vec![("x", Value::Map { key, element, entries })]).unwrap().remove(0).1;
        let y = y.as_tensor().unwrap();
        (y.shape().to_vec(), elements(y))
    };
    let name = |key: &str| Tensor::from_strings(&[], vec![key.to_string()]).unwrap();
    let vocabulary = AttributeProto {
        name: Some("string_vocabulary".to_string()),
        r#type: Some(attribute_proto::AttributeType::Strings as i32),
        strings: ["a", "c", "b", "z"].map(|word| word.as_bytes().to_vec()).to_vec(),
        ..AttributeProto::default()
    };
    let vectorizer = with(&[vocabulary], node("DictVectorizer", &["x"], &["y"]));
    let found = computed(STRING, vectorizer, vec![(name("a"), 4.0), (name("c"), 8.0)]);
    assert_eq!(found, (vec![1, 4], vec![4.0, 8.0, 0.0, 0.0]));
    let entries = || vec![(Tensor::scalar(3i64), 0.5), (Tensor::scalar(1i64), 0.25)];
    let dense = node("CastMap", &["x"], &["y"]);
    assert_eq!(computed(I64, dense, entries()), (vec![1, 2], vec![0.25, 0.5]));
    let sparse = with(&[text("map_form", "SPARSE"), int("max_map", 5)], node("CastMap", &["x"], &["y"]));
    assert_eq!(computed(I64, sparse, entries()), (vec![1, 5], vec![0.0, 0.25, 0.0, 0.5, 0.0]));
}

/// Branches of one graph may use the same names for their values and nodes; exporters also write a name of outside again.
#[test]
fn names_of_subgraphs_are_their_own() {
    let output = |name: &str| ValueInfoProto { name: Some(name.to_string()), ..ValueInfoProto::default() };
    let branch = |operator: &str| {
        let nodes = vec![node(operator, &["x"], &["inner"]), node("Add", &["inner", "x"], &["result"])];
        support::graph(Vec::new(), Vec::new(), nodes, vec![output("result")])
    };
    let condition = with(
        &[graph_of("then_branch", branch("Neg")), graph_of("else_branch", branch("Abs"))],
        node("If", &["c"], &["y"]),
    );
    // `inner` is a value of the main graph, too.
    let nodes = vec![node("Relu", &["x"], &["inner"]), condition, node("Sub", &["y", "inner"], &["z"])];
    let ports = vec![support::truth("c"), port("x", &["2"])];
    let model = model(17, support::graph(ports, Vec::new(), nodes, vec![port("z", &["2"])]));
    for (taken, expected) in [(true, [0.0, -3.0]), (false, [0.0, 3.0])] {
        let x = Tensor::from_elements(&[2], &[-2.0f32, 3.0]).unwrap();
        let outputs = run(&model, vec![("c", Tensor::scalar_bool(taken).into()), ("x", x.into())]).unwrap();
        assert_eq!(elements(outputs[0].1.as_tensor().unwrap()), expected, "{taken}");
    }
}

fn graph_of(name: &str, graph: GraphProto) -> AttributeProto {
    let (kind, g) = (attribute_proto::AttributeType::Graph as i32, Some(Box::new(graph)));
    AttributeProto { name: Some(name.to_string()), r#type: Some(kind), g, ..AttributeProto::default() }
}

/// Operator sets that no node uses may be of any version; the default domain is empty, left out, or `ai.onnx`.
#[test]
fn imports_that_nothing_uses_and_spellings_of_the_default_domain_do_not_matter() {
    let import = |domain: Option<&str>, version: i64| OperatorSetIdProto {
        domain: domain.map(str::to_string),
        version: Some(version),
    };
    let unused = [("ai.onnx.training", 7), ("com.example", 3), ("ai.onnx.ml", 99), ("", 17)];
    let unused: Vec<OperatorSetIdProto> =
        unused.iter().map(|(domain, version)| import(Some(domain), *version)).collect();
    for imports in [unused, vec![import(None, 17)], vec![import(Some("ai.onnx"), 17)], vec![import(Some(""), 17)]] {
        for domain in [None, Some(""), Some("ai.onnx")] {
            let negated = NodeProto { domain: domain.map(str::to_string), ..node("Neg", &["x"], &["y"]) };
            let graph = support::graph(vec![port("x", &["2"])], Vec::new(), vec![negated], vec![port("y", &["2"])]);
            let model = ModelProto { opset_import: imports.clone(), ..model(17, graph) };
            let x = Tensor::from_elements(&[2], &[1.0f32, -2.0]).unwrap();
            let outputs =
                run(&model, vec![("x", x.into())]).unwrap_or_else(|error| panic!("{imports:?}, {domain:?}: {error}"));
            assert_eq!(elements(outputs[0].1.as_tensor().unwrap()), [-1.0, 2.0]);
        }
    }
}
