//! Small models, each of which takes as long as one property of a machine lets it; run as any model is.

use crate::compile::{CompileOptions, Source, compile};
use crate::open;
use ipuc_formats::dtype::DType;
use ipuc_formats::onnx::schema::tensor_shape_proto::{Dimension, dimension};
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, type_proto,
};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;
use ipuc_runtime::{Session, SessionOptions};
use prost::Message;
use std::path::Path;
use std::time::{Duration, Instant};

/// A model is run for so long, and at least so often, after two runs that are not counted.
const DURATION: Duration = Duration::from_millis(200);
const LEAST_RUNS: usize = 7;

/// A model of one input `x` that grows node by node.
pub(super) struct Model {
    graph: GraphProto,
    microsoft: bool,
    input: (DType, Vec<usize>),
    last: String,
}

impl Model {
    pub(super) fn new(dtype: DType, shape: &[usize]) -> Model {
        let x = port("x", dtype, shape);
        let graph = GraphProto { name: Some("graph".to_string()), input: vec![x], ..GraphProto::default() };
        Model { graph, microsoft: false, input: (dtype, shape.to_vec()), last: "x".to_string() }
    }

    /// A weight of sixteenths, whose products and sums stay in range, or of ones where it has integers.
    fn weight(&mut self, dtype: DType, shape: &[usize]) -> String {
        let element: &[u8] = match dtype {
            DType::F32 => &[0, 0, 0x80, 0x3d],
            DType::F16 => &[0, 0x2c],
            DType::BF16 => &[0x80, 0x3d],
            _ => &[1],
        };
        let count: usize = shape.iter().product();
        self.constant(dtype, shape, element.repeat(count))
    }

    /// A constant of these bytes.
    fn constant(&mut self, dtype: DType, shape: &[usize], bytes: Vec<u8>) -> String {
        let name = format!("w{}", self.graph.initializer.len());
        self.graph.initializer.push(TensorProto {
            name: Some(name.clone()),
            data_type: Some(dtype.onnx_code()),
            dims: shape.iter().map(|&extent| extent as i64).collect(),
            raw_data: Some(bytes),
            ..TensorProto::default()
        });
        name
    }

    /// A node that reads what came last, and these constants.
    fn node(mut self, operator: &str, domain: Option<&str>, constants: Vec<String>, of: Vec<AttributeProto>) -> Model {
        let output = format!("v{}", self.graph.node.len());
        self.graph.node.push(NodeProto {
            name: Some(output.clone()),
            op_type: Some(operator.to_string()),
            domain: domain.map(str::to_string),
            input: std::iter::once(self.last).chain(constants).collect(),
            output: vec![output.clone()],
            attribute: of,
            ..NodeProto::default()
        });
        self.last = output;
        self
    }

    /// A step that reads what came last, and a weight of this type and shape where there is one.
    pub(super) fn step(mut self, operator: &str, weight: Option<(DType, &[usize])>, to: Option<DType>) -> Model {
        let weight = weight.map(|(dtype, shape)| self.weight(dtype, shape));
        let cast = to.map(|dtype| integer("to", i64::from(dtype.onnx_code())));
        self.node(operator, None, weight.into_iter().collect(), cast.into_iter().collect())
    }

    /// A product with codes in blocks of [`CODES_BLOCK`], whose activations are rounded to 8 bits where the level of accuracy
    /// is 4.
    pub(super) fn codes(mut self, bits: usize, accuracy_level: i64, (inputs, outputs): (usize, usize)) -> Model {
        let blocks = inputs / CODES_BLOCK;
        let bytes = CODES_BLOCK * bits / 8;
        let codes = self.weight(DType::U8, &[outputs, blocks, bytes]);
        let scales = self.weight(DType::F32, &[outputs * blocks]);
        let attributes = [
            ("K", inputs as i64),
            ("N", outputs as i64),
            ("bits", bits as i64),
            ("block_size", CODES_BLOCK as i64),
            ("accuracy_level", accuracy_level),
        ];
        let attributes = attributes.map(|(name, value)| integer(name, value)).to_vec();
        self.microsoft = true;
        self.node("MatMulNBits", Some(MICROSOFT), vec![codes, scales], attributes)
    }

    /// A convolution of 3 x 3 of each channel by itself, with as many positions.
    pub(super) fn depthwise(mut self, channels: usize) -> Model {
        let weight = self.weight(DType::F32, &[channels, 1, 3, 3]);
        self.node("Conv", None, vec![weight], vec![integer("group", channels as i64), integers("pads", &[1; 4])])
    }

    /// A reshape of what came last.
    pub(super) fn reshape(mut self, shape: &[usize]) -> Model {
        let bytes = shape.iter().flat_map(|&extent| (extent as i64).to_le_bytes()).collect();
        let shape = self.constant(DType::I64, &[shape.len()], bytes);
        self.node("Reshape", None, vec![shape], vec![])
    }

    /// The same step several times.
    pub(super) fn steps(self, count: usize, operator: &str, weight: Option<(DType, &[usize])>) -> Model {
        (0..count).fold(self, |model, _| model.step(operator, weight, None))
    }

    /// The median of its runs, in seconds.
    pub(super) fn seconds(self, folder: &Path, threads: usize, result: (DType, &[usize])) -> anyhow::Result<f64> {
        let Model { mut graph, microsoft, input: (dtype, shape), last } = self;
        graph.output.push(port(&last, result.0, result.1));
        let mut opset_import = vec![OperatorSetIdProto { domain: None, version: Some(21) }];
        let other = OperatorSetIdProto { domain: Some(MICROSOFT.to_string()), version: Some(1) };
        opset_import.extend(microsoft.then_some(other));
        let model = ModelProto { ir_version: Some(10), opset_import, graph: Some(graph), ..ModelProto::default() };
        let (path, compiled) = (folder.join("model.onnx"), folder.join("model.ipu"));
        std::fs::write(&path, model.encode_to_vec())?;
        compile(&[Source { entry: "main".to_string(), path }], &compiled, &CompileOptions::default())?;
        let model = open(&compiled)?;
        let mut session = Session::new(&model, &SessionOptions { threads, ..SessionOptions::default() })?;
        let x = match dtype {
            DType::F32 => Tensor::from_elements(&shape, &vec![1.0f32; shape.iter().product()])?,
            _ => Tensor::zeros(dtype, &shape)?,
        };
        let mut run = || -> anyhow::Result<f64> {
            let inputs: Vec<(String, Value)> = vec![("x".to_string(), x.clone().into())];
            let start = Instant::now();
            session.run(None, inputs)?;
            Ok(start.elapsed().as_secs_f64())
        };
        run()?;
        run()?;
        let start = Instant::now();
        let mut times = Vec::new();
        while times.len() < LEAST_RUNS || start.elapsed() < DURATION {
            times.push(run()?);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

const INTEGER_ATTRIBUTE: i32 = 2;
const INTEGERS_ATTRIBUTE: i32 = 7;
const MICROSOFT: &str = "com.microsoft";
/// Inputs that share a scale.
const CODES_BLOCK: usize = 32;

fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(INTEGER_ATTRIBUTE),
        i: Some(value),
        ..AttributeProto::default()
    }
}

fn integers(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(INTEGERS_ATTRIBUTE),
        ints: values.to_vec(),
        ..AttributeProto::default()
    }
}

fn port(name: &str, dtype: DType, shape: &[usize]) -> ValueInfoProto {
    let dimension =
        |&extent: &usize| Dimension { denotation: None, value: Some(dimension::Value::DimValue(extent as i64)) };
    let shape = TensorShapeProto { dim: shape.iter().map(dimension).collect() };
    let tensor = type_proto::Tensor { elem_type: Some(dtype.onnx_code()), shape: Some(shape) };
    let kind = TypeProto { denotation: None, value: Some(type_proto::Value::TensorType(tensor)) };
    ValueInfoProto { name: Some(name.to_string()), r#type: Some(kind), ..ValueInfoProto::default() }
}
