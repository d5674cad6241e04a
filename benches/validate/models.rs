//! Models by their shapes: ONNX files whose weights are in a file that does not exist.

use ipuc_formats::onnx::schema::tensor_shape_proto::{Dimension, dimension};
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
    TensorShapeProto, TypeProto, ValueInfoProto, type_proto,
};
use prost::Message;

/// ONNX element types.
pub const F16: i32 = 10;
pub const BF16: i32 = 16;
/// Bytes of codes.
pub const U8: i32 = 2;
const I8: i32 = 3;
const I64: i32 = 7;
const I4: i32 = 22;
/// The domain of operators beside ONNX.
const CONTRIBUTED: &str = "com.microsoft";
const FLOAT_ATTRIBUTE: i32 = 1;
const INTEGER_ATTRIBUTE: i32 = 2;
const TEXT_ATTRIBUTE: i32 = 3;
const INTEGERS_ATTRIBUTE: i32 = 7;

/// How weights of matrices are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// As the activations are.
    Plain,
    /// 8-bit codes with an f16 scale for each 32 inputs.
    I8,
    /// 4-bit codes with an f16 scale for each 32 inputs.
    I4,
}

/// A model that grows node by node.
pub struct Builder {
    graph: GraphProto,
    element: i32,
    offset: i64,
}

impl Builder {
    pub fn new(element: i32) -> Builder {
        let graph = GraphProto { name: Some("graph".to_string()), ..GraphProto::default() };
        Builder { graph, element, offset: 0 }
    }

    pub fn input(&mut self, name: &str, shape: &[i64]) -> String {
        self.input_of(name, self.element, shape)
    }

    fn input_of(&mut self, name: &str, element: i32, shape: &[i64]) -> String {
        self.graph.input.push(port(name, element, shape));
        name.to_string()
    }

    pub fn output(&mut self, name: &str, shape: &[i64]) {
        self.graph.output.push(port(name, self.element, shape));
    }

    pub fn fresh(&self) -> String {
        format!("v{}", self.graph.node.len())
    }

    /// A node with one result.
    pub fn node(&mut self, operator: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        let output = self.fresh();
        self.node_to(operator, inputs, &[&output], attributes);
        output
    }

    fn node_to(&mut self, operator: &str, inputs: &[&str], outputs: &[&str], attributes: Vec<AttributeProto>) {
        let strings = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        self.graph.node.push(NodeProto {
            name: Some(format!("{operator}_{}", outputs[0])),
            op_type: Some(operator.to_string()),
            input: strings(inputs),
            output: strings(outputs),
            attribute: attributes,
            ..NodeProto::default()
        });
    }

    /// A node with one result whose operator ONNX does not have.
    pub fn contributed(&mut self, operator: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        let output = self.node(operator, inputs, attributes);
        if let Some(node) = self.graph.node.last_mut() {
            node.domain = Some(CONTRIBUTED.to_string());
        }
        output
    }

    /// Codes of weights, or their scales, under a name of their own.
    pub fn codes(&mut self, element: i32, shape: &[i64]) -> String {
        let name = format!("w{}", self.graph.initializer.len());
        self.weight(&name, element, shape)
    }

    /// A weight in the missing file.
    fn weight(&mut self, name: &str, element: i32, shape: &[i64]) -> String {
        let count: i64 = shape.iter().product();
        let length = match element {
            I4 => (count + 1) / 2,
            I8 | U8 => count,
            _ => count * 2,
        };
        let entry =
            |key: &str, value: String| StringStringEntryProto { key: Some(key.to_string()), value: Some(value) };
        self.graph.initializer.push(TensorProto {
            name: Some(name.to_string()),
            data_type: Some(element),
            dims: shape.to_vec(),
            data_location: Some(1),
            external_data: vec![
                entry("location", "weights.bin".to_string()),
                entry("offset", self.offset.to_string()),
                entry("length", length.to_string()),
            ],
            ..TensorProto::default()
        });
        // Elements begin at multiples of 64.
        self.offset += (length + 63) / 64 * 64;
        name.to_string()
    }

    /// A shape.
    pub fn constant(&mut self, name: &str, shape: &[i64]) -> String {
        self.graph.initializer.push(TensorProto {
            name: Some(name.to_string()),
            data_type: Some(I64),
            dims: vec![shape.len() as i64],
            int64_data: shape.to_vec(),
            ..TensorProto::default()
        });
        name.to_string()
    }

    /// A weight of shape `[inputs, outputs]`, dequantized where it is stored as codes.
    fn matrix(&mut self, inputs: i64, outputs: i64, weights: Weights) -> String {
        let name = format!("w{}", self.graph.initializer.len());
        let codes = match weights {
            Weights::Plain => return self.weight(&name, self.element, &[inputs, outputs]),
            Weights::I8 => I8,
            Weights::I4 => I4,
        };
        let codes = self.weight(&name, codes, &[inputs, outputs]);
        let scale = self.weight(&format!("{name}.scale"), self.element, &[inputs / 32, outputs]);
        self.node("DequantizeLinear", &[&codes, &scale], vec![integer("axis", 0), integer("block_size", 32)])
    }

    pub fn product(&mut self, x: &str, inputs: i64, outputs: i64, weights: Weights) -> String {
        let matrix = self.matrix(inputs, outputs, weights);
        self.node("MatMul", &[x, &matrix], Vec::new())
    }

    fn biased(&mut self, x: &str, (inputs, outputs): (i64, i64), of: &Encoder) -> String {
        let y = self.product(x, inputs, outputs, Weights::Plain);
        if !of.biases {
            return y;
        }
        let bias = self.vector(outputs);
        self.node("Add", &[&y, &bias], Vec::new())
    }

    pub fn vector(&mut self, length: i64) -> String {
        let name = format!("w{}", self.graph.initializer.len());
        self.weight(&name, self.element, &[length])
    }

    /// A convolution with a bias; normalization is folded into it.
    pub fn convolution(&mut self, x: &str, channels: (i64, i64), kernel: i64, stride: i64, relu: bool) -> String {
        let y = self.padded_convolution(x, channels, (kernel, kernel / 2), stride);
        if relu { self.node("Relu", &[&y], Vec::new()) } else { y }
    }

    /// A convolution with a bias and so many zeros at each border.
    pub fn padded_convolution(
        &mut self,
        x: &str,
        (from, to): (i64, i64),
        (kernel, pad): (i64, i64),
        stride: i64,
    ) -> String {
        let name = format!("w{}", self.graph.initializer.len());
        let weight = self.weight(&name, self.element, &[to, from, kernel, kernel]);
        let bias = self.vector(to);
        let attributes = vec![
            integers("kernel_shape", &[kernel, kernel]),
            integers("strides", &[stride, stride]),
            integers("pads", &[pad, pad, pad, pad]),
        ];
        self.node("Conv", &[x, &weight, &bias], attributes)
    }

    pub fn finish(self, outputs: &[(&str, Vec<i64>)]) -> Vec<u8> {
        let mut builder = self;
        for (name, shape) in outputs {
            builder.output(name, shape);
        }
        let set = |domain: Option<String>, version| OperatorSetIdProto { domain, version: Some(version) };
        let sets = vec![set(None, 23), set(Some(CONTRIBUTED.to_string()), 1)];
        let graph = Some(builder.graph);
        let model = ModelProto { ir_version: Some(11), opset_import: sets, graph, ..ModelProto::default() };
        model.encode_to_vec()
    }
}

fn port(name: &str, element: i32, shape: &[i64]) -> ValueInfoProto {
    let dimension = |&extent: &i64| Dimension { denotation: None, value: Some(dimension::Value::DimValue(extent)) };
    let shape = TensorShapeProto { dim: shape.iter().map(dimension).collect() };
    let tensor = type_proto::Tensor { elem_type: Some(element), shape: Some(shape) };
    let kind = TypeProto { denotation: None, value: Some(type_proto::Value::TensorType(tensor)) };
    ValueInfoProto { name: Some(name.to_string()), r#type: Some(kind), ..ValueInfoProto::default() }
}

pub fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(INTEGER_ATTRIBUTE),
        i: Some(value),
        ..AttributeProto::default()
    }
}

pub fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(FLOAT_ATTRIBUTE),
        f: Some(value),
        ..AttributeProto::default()
    }
}

pub fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(TEXT_ATTRIBUTE),
        s: Some(value.as_bytes().to_vec()),
        ..AttributeProto::default()
    }
}

pub fn integers(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto {
        name: Some(name.to_string()),
        r#type: Some(INTEGERS_ATTRIBUTE),
        ints: values.to_vec(),
        ..AttributeProto::default()
    }
}

/// `[m, k] x [k, n]` with a weight on the right.
pub fn gemm(element: i32, (m, k, n): (i64, i64, i64), weights: Weights) -> Vec<u8> {
    let mut builder = Builder::new(element);
    let x = builder.input("x", &[m, k]);
    let y = builder.product(&x, k, n, weights);
    builder.finish(&[(&y, vec![m, n])])
}

/// `[batch, m, k] x [batch, k, n]`, both computed.
pub fn products(element: i32, batch: i64, (m, k, n): (i64, i64, i64)) -> Vec<u8> {
    let mut builder = Builder::new(element);
    let (a, b) = (builder.input("a", &[batch, m, k]), builder.input("b", &[batch, k, n]));
    let y = builder.node("MatMul", &[&a, &b], Vec::new());
    builder.finish(&[(&y, vec![batch, m, n])])
}

/// ResNet-50 v1.5 at 224 x 224.
pub fn resnet50(element: i32, batch: i64) -> Vec<u8> {
    let mut builder = Builder::new(element);
    let x = builder.input("image", &[batch, 3, 224, 224]);
    let x = builder.convolution(&x, (3, 64), 7, 2, true);
    let pool = vec![integers("kernel_shape", &[3, 3]), integers("strides", &[2, 2]), integers("pads", &[1, 1, 1, 1])];
    let mut x = builder.node("MaxPool", &[&x], pool);
    let mut channels = 64;
    for (stage, blocks) in [3, 4, 6, 3].into_iter().enumerate() {
        let inner = 64 << stage;
        for block in 0..blocks {
            let stride = if block == 0 && stage > 0 { 2 } else { 1 };
            let y = builder.convolution(&x, (channels, inner), 1, 1, true);
            let y = builder.convolution(&y, (inner, inner), 3, stride, true);
            let y = builder.convolution(&y, (inner, inner * 4), 1, 1, false);
            let shortcut = match block {
                0 => builder.convolution(&x, (channels, inner * 4), 1, stride, false),
                _ => x,
            };
            let sum = builder.node("Add", &[&y, &shortcut], Vec::new());
            x = builder.node("Relu", &[&sum], Vec::new());
            channels = inner * 4;
        }
    }
    let x = builder.node("GlobalAveragePool", &[&x], Vec::new());
    let x = builder.node("Flatten", &[&x], Vec::new());
    let y = builder.product(&x, 2048, 1000, Weights::Plain);
    builder.finish(&[(&y, vec![batch, 1000])])
}

/// A vision transformer without its embedding.
pub struct Encoder {
    pub layers: usize,
    pub width: i64,
    pub heads: i64,
    pub inner: i64,
    pub tokens: i64,
    /// Biases are added behind products.
    pub biases: bool,
}

pub fn encoder(element: i32, batch: i64, of: &Encoder) -> Vec<u8> {
    let mut builder = Builder::new(element);
    let shape = [batch, of.tokens, of.width];
    let mut x = builder.input("x", &shape);
    for _ in 0..of.layers {
        let y = normalized(&mut builder, &x, of.width);
        let q = builder.product(&y, of.width, of.width, Weights::Plain);
        let k = builder.product(&y, of.width, of.width, Weights::Plain);
        let v = builder.product(&y, of.width, of.width, Weights::Plain);
        let heads = vec![integer("q_num_heads", of.heads), integer("kv_num_heads", of.heads)];
        let y = builder.node("Attention", &[&q, &k, &v], heads);
        let y = builder.product(&y, of.width, of.width, Weights::Plain);
        x = builder.node("Add", &[&x, &y], Vec::new());
        let y = normalized(&mut builder, &x, of.width);
        let y = builder.product(&y, of.width, of.inner, Weights::Plain);
        let y = builder.node("Gelu", &[&y], Vec::new());
        let y = builder.product(&y, of.inner, of.width, Weights::Plain);
        x = builder.node("Add", &[&x, &y], Vec::new());
    }
    builder.finish(&[(&x, shape.to_vec())])
}

/// The same as a program that runs every operator as a step of its own: queries, keys and values in one product, their heads
/// taken apart and joined again, scores, scale, softmax and values one after another.
pub fn encoder_in_steps(element: i32, batch: i64, of: &Encoder) -> Vec<u8> {
    let mut builder = Builder::new(element);
    let shape = [batch, of.tokens, of.width];
    let size = of.width / of.heads;
    let apart = builder.constant("apart", &[batch, of.tokens, 3, of.heads, size]);
    let heads = builder.constant("heads", &[batch, of.heads, of.tokens, size]);
    let joined = builder.constant("joined", &shape);
    let scale = builder.weight("scale", element, &[1]);
    let mut x = builder.input("x", &shape);
    for _ in 0..of.layers {
        let y = normalized(&mut builder, &x, of.width);
        let y = builder.biased(&y, (of.width, of.width * 3), of);
        let y = builder.node("Reshape", &[&y, &apart], Vec::new());
        let y = builder.node("Transpose", &[&y], vec![integers("perm", &[2, 0, 3, 1, 4])]);
        let parts = ["q", "k", "v"].map(|part| format!("{part}{}", builder.fresh()));
        let [q, k, v] = &parts;
        builder.node_to("Split", &[&y], &[q, k, v], vec![integer("axis", 0), integer("num_outputs", 3)]);
        let [q, k, v] = parts.map(|part| builder.node("Reshape", &[&part, &heads], Vec::new()));
        let y = builder.node("Einsum", &[&q, &k], vec![text("equation", "bhqd,bhkd->bhqk")]);
        let y = builder.node("Mul", &[&y, &scale], Vec::new());
        let y = builder.node("Softmax", &[&y], Vec::new());
        let y = builder.node("MatMul", &[&y, &v], Vec::new());
        let y = builder.node("Transpose", &[&y], vec![integers("perm", &[0, 2, 1, 3])]);
        let y = builder.node("Reshape", &[&y, &joined], Vec::new());
        let y = builder.biased(&y, (of.width, of.width), of);
        x = builder.node("Add", &[&x, &y], Vec::new());
        let y = normalized(&mut builder, &x, of.width);
        let y = builder.biased(&y, (of.width, of.inner), of);
        let y = builder.node("Gelu", &[&y], Vec::new());
        let y = builder.biased(&y, (of.inner, of.width), of);
        x = builder.node("Add", &[&x, &y], Vec::new());
    }
    builder.finish(&[(&x, shape.to_vec())])
}

pub fn normalized(builder: &mut Builder, x: &str, width: i64) -> String {
    let (scale, bias) = (builder.vector(width), builder.vector(width));
    builder.node("LayerNormalization", &[x, &scale, &bias], vec![float("epsilon", 1e-6)])
}

/// A decoder of the Llama family.
pub struct Decoder {
    pub layers: usize,
    pub width: i64,
    pub heads: i64,
    pub key_heads: i64,
    pub head: i64,
    pub inner: i64,
    pub vocabulary: i64,
}

/// One token for each of `batch` users after `past` tokens: its row of the embedding, all layers with rotated queries and
/// keys, and the scores of all tokens. Choosing one of them is not in it.
pub fn decode(element: i32, batch: i64, past: i64, of: &Decoder, weights: Weights) -> Vec<u8> {
    let mut builder = Builder::new(element);
    let x = builder.embedded(batch, of);
    layers(builder, x, (batch, past), of, (weights, weights))
}

/// The same with weights of another kind for the scores.
pub fn decode_scored(batch: i64, past: i64, of: &Decoder, weights: Weights, scores: Weights) -> Vec<u8> {
    let mut builder = Builder::new(F16);
    let x = builder.embedded(batch, of);
    layers(builder, x, (batch, past), of, (weights, scores))
}

/// The same where the host looks up the rows of the embedding.
pub fn decode_embedded(element: i32, batch: i64, past: i64, of: &Decoder, weights: Weights) -> Vec<u8> {
    let mut builder = Builder::new(element);
    let x = builder.input("x", &[batch, 1, of.width]);
    builder.angles(batch, of);
    layers(builder, x, (batch, past), of, (weights, weights))
}

fn layers(
    mut builder: Builder,
    mut x: String,
    (batch, past): (i64, i64),
    of: &Decoder,
    (weights, scores): (Weights, Weights),
) -> Vec<u8> {
    let mut outputs = Vec::new();
    for layer in 0..of.layers {
        x = builder.attended(&x, (batch, past, layer), of, weights, &mut outputs);
        let y = root_normalized(&mut builder, &x, of.width);
        let gate = builder.product(&y, of.width, of.inner, weights);
        let up = builder.product(&y, of.width, of.inner, weights);
        let sigmoid = builder.node("Sigmoid", &[&gate], Vec::new());
        let silu = builder.node("Mul", &[&gate, &sigmoid], Vec::new());
        let y = builder.node("Mul", &[&silu, &up], Vec::new());
        let y = builder.product(&y, of.inner, of.width, weights);
        x = builder.node("Add", &[&x, &y], Vec::new());
    }
    builder.scored(&x, (batch, past), of, scores, &outputs)
}

impl Builder {
    /// Rows of the embedding for one token of each user, and the angles of positions as inputs.
    pub fn embedded(&mut self, batch: i64, of: &Decoder) -> String {
        let tokens = self.input_of("tokens", I64, &[batch, 1]);
        let embedding = self.weight("embedding", self.element, &[of.vocabulary, of.width]);
        let x = self.node("Gather", &[&embedding, &tokens], Vec::new());
        self.angles(batch, of);
        x
    }

    /// Angles of positions, by which queries and keys are rotated.
    fn angles(&mut self, batch: i64, of: &Decoder) {
        self.input("cos", &[batch, 1, of.head / 2]);
        self.input("sin", &[batch, 1, of.head / 2]);
    }

    /// Attention over the caches of a layer, added to its input; its new caches are among the outputs.
    pub fn attended(
        &mut self,
        x: &str,
        (batch, past, layer): (i64, i64, usize),
        of: &Decoder,
        weights: Weights,
        outputs: &mut Vec<String>,
    ) -> String {
        let cache = [batch, of.key_heads, past, of.head];
        let (keys, values) =
            (self.input(&format!("past.{layer}.key"), &cache), self.input(&format!("past.{layer}.value"), &cache));
        let y = root_normalized(self, x, of.width);
        let q = self.product(&y, of.width, of.heads * of.head, weights);
        let k = self.product(&y, of.width, of.key_heads * of.head, weights);
        let v = self.product(&y, of.width, of.key_heads * of.head, weights);
        let rotated = |heads: i64| vec![integer("num_heads", heads)];
        let q = self.node("RotaryEmbedding", &[&q, "cos", "sin"], rotated(of.heads));
        let k = self.node("RotaryEmbedding", &[&k, "cos", "sin"], rotated(of.key_heads));
        let heads = vec![integer("q_num_heads", of.heads), integer("kv_num_heads", of.key_heads)];
        let y = self.fresh();
        let present = [format!("present.{layer}.key"), format!("present.{layer}.value")];
        self.node_to("Attention", &[&q, &k, &v, "", &keys, &values], &[&y, &present[0], &present[1]], heads);
        outputs.extend(present);
        let y = self.product(&y, of.heads * of.head, of.width, weights);
        self.node("Add", &[x, &y], Vec::new())
    }

    /// The scores of all tokens, and the model.
    pub fn scored(
        mut self,
        x: &str,
        (batch, past): (i64, i64),
        of: &Decoder,
        weights: Weights,
        caches: &[String],
    ) -> Vec<u8> {
        let y = root_normalized(&mut self, x, of.width);
        let logits = self.product(&y, of.width, of.vocabulary, weights);
        let grown = vec![batch, of.key_heads, past + 1, of.head];
        let mut results = vec![(logits.as_str(), vec![batch, 1, of.vocabulary])];
        results.extend(caches.iter().map(|name| (name.as_str(), grown.clone())));
        self.finish(&results)
    }
}

pub fn root_normalized(builder: &mut Builder, x: &str, width: i64) -> String {
    let scale = builder.vector(width);
    builder.node("RMSNormalization", &[x, &scale], vec![float("epsilon", 1e-5)])
}
