//! Quantized models of which each code is stored as the model has it, with few bytes beside codes and scales.
//!
//! The models are cases of the folder that `IPUC_CASES` names, or of the one beside this checkout; without it they are skipped.
#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "tests report and panic")]

use crate::support;
use ipuc::DType;
use ipuc::compile::{CompileOptions, Source, compile};
use ipuc_formats::encodings::{EncodingError, PlaneRole};
use ipuc_formats::model::{Manifest, WeightRecord};
use ipuc_formats::onnx::schema::{GraphProto, ModelProto, NodeProto, TensorProto};
use ipuc_formats::tensor::{Tensor, unpack_codes};
use prost::Message as _;
use std::collections::HashSet;

/// Case, how many weights of it are codes, and the most bytes of the file beside those of the model's tensors.
const CASES: &[(&str, usize, f64)] = &[
    ("resnet50_half_qdq_s8", 54, 1.02),
    ("resnet50_half_qoperator_u8", 54, 1.02),
    ("llama_decode_int4_qdq", 29, 1.02),
    ("llama_genai_int4", 21, 1.02),
    ("phi3_decode_matmulnbits", 17, 1.02),
    // Its panels have 192 inputs, so that the line of zero points of each is 3 % of it, and its manifest is 2 %.
    ("lfm2moe_genai_int4_qmoe", 18, 1.07),
];

/// Codes of a weight, or their scales, as a stack of matrices.
struct Matrices<T> {
    elements: Vec<T>,
    columns: usize,
    /// Elements of one matrix.
    matrix: usize,
}

impl<T: Copy> Matrices<T> {
    fn of(elements: Vec<T>, shape: &[usize]) -> Matrices<T> {
        let columns = shape.last().copied().unwrap_or(1);
        let rows = shape.len().checked_sub(2).map_or(1, |at| shape[at]);
        Matrices { elements, columns, matrix: rows * columns }
    }

    /// Filters `[m, c, k..]` with their channels last: `[m, k.., c]`.
    fn channels_last(&self, shape: &[usize]) -> Vec<T> {
        let &[_, channels, ref kernel @ ..] = shape else { return Vec::new() };
        let taps = kernel.iter().product::<usize>().max(1);
        let filters = self.elements.chunks((channels * taps).max(1));
        filters.flat_map(|filter| (0..taps).flat_map(|tap| filter.iter().skip(tap).step_by(taps).copied())).collect()
    }

    /// The elements with rows and columns of each matrix exchanged.
    fn turned(&self) -> Vec<T> {
        let turn = |matrix: &[T]| -> Vec<T> {
            (0..self.columns).flat_map(|column| matrix.iter().skip(column).step_by(self.columns).copied()).collect()
        };
        self.elements.chunks(self.matrix.max(1)).flat_map(turn).collect()
    }
}

/// A weight of the model: its codes, and the bits of its scales.
struct Weight {
    name: String,
    shape: Vec<usize>,
    codes: Matrices<i16>,
    scales: Option<Matrices<u32>>,
}

fn numbers(dtype: DType, bytes: &[u8], count: usize) -> Vec<i16> {
    let bits = dtype.bits();
    let codes = if bits == 8 { bytes.to_vec() } else { unpack_codes(bytes, bits, count) }.into_iter();
    let signed = |code: u8| i16::from(((code << (8 - bits)) as i8) >> (8 - bits));
    match dtype.is_signed_integer() {
        true => codes.map(signed).collect(),
        false => codes.map(i16::from).collect(),
    }
}

fn initializer<'a>(graph: &'a GraphProto, node: &NodeProto, input: usize) -> Option<&'a TensorProto> {
    let name = node.input.get(input)?;
    graph.initializer.iter().find(|tensor| tensor.name.as_ref() == Some(name))
}

fn attribute(node: &NodeProto, name: &str) -> Option<i64> {
    node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))?.i
}

fn extents(tensor: &TensorProto) -> Vec<usize> {
    tensor.dims.iter().map(|&extent| extent as usize).collect()
}

fn bits_of_scales(tensor: &TensorProto) -> Vec<u32> {
    match &tensor.raw_data {
        Some(bytes) if !bytes.is_empty() => {
            bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
        }
        _ => tensor.float_data.iter().map(|scale| scale.to_bits()).collect(),
    }
}

/// The weights of a node that are codes, as the specification of its operator has them.
fn weights(graph: &GraphProto, node: &NodeProto) -> Vec<Weight> {
    // Codes, scales, zero points, and whether two codes are in a byte.
    let places: &[(usize, usize, usize, bool)] = match node.op_type.as_deref().unwrap_or_default() {
        "DequantizeLinear" => &[(0, 1, 2, false)],
        "QLinearConv" | "QGemm" => &[(3, 4, 5, false)],
        "MatMulNBits" => &[(1, 2, 3, true)],
        "GatherBlockQuantized" => &[(0, 2, 3, true)],
        "QMoE" => &[(2, 3, 11, true), (5, 6, 12, true), (8, 9, 13, true)],
        _ => &[],
    };
    let weight = |&(codes, scales, _zero_points, are_packed): &(usize, usize, usize, bool)| {
        let (codes, scales) = (initializer(graph, node, codes)?, initializer(graph, node, scales)?);
        let bytes = codes.raw_data.as_deref()?;
        let mut shape = extents(codes);
        let dtype = match codes.data_type? {
            _ if are_packed => DType::U4,
            2 => DType::U8,
            3 => DType::I8,
            22 => DType::I4,
            _ => return None,
        };
        // Rows of whole blocks, of which the last may have more codes than the weight has inputs.
        let stored = shape.iter().product::<usize>() * if are_packed { 2 } else { 1 };
        let mut padded = None;
        if let (Some(rows), Some(columns)) = (attribute(node, "N"), attribute(node, "K")) {
            shape = vec![rows as usize, columns as usize];
            padded = Some(stored / rows as usize);
        } else if are_packed {
            *shape.last_mut()? *= 2;
        }
        if shape.len() < 2 {
            return None;
        }
        let all: Vec<i16> = numbers(dtype, bytes, stored);
        let numbers = match padded {
            Some(padded) => all.chunks(padded).flat_map(|row| row[..shape[1]].to_vec()).collect(),
            None => all,
        };
        let mut blocks = extents(scales);
        if let (1, Some(rows)) = (blocks.len(), attribute(node, "N")) {
            blocks = vec![rows as usize, blocks[0] / rows as usize];
        }
        // What is scaled as a sum has the factors of its program, which are more than scales of a weight.
        let scales = (dtype.bits() == 4).then(|| Matrices::of(bits_of_scales(scales), &blocks));
        let name = codes.name.clone().unwrap_or_default();
        Some(Weight { name, codes: Matrices::of(numbers, &shape), shape, scales })
    };
    places.iter().filter_map(weight).collect()
}

/// Bytes of all tensors of a model, each once and packed.
fn payload_bytes(graph: &GraphProto) -> u64 {
    let bytes = |tensor: &TensorProto| {
        let bits = match tensor.data_type.unwrap_or(0) {
            21 | 22 => 4,
            2 | 3 | 9 => 8,
            7 | 11 => 64,
            _ => 32,
        };
        (extents(tensor).iter().product::<usize>() * bits).div_ceil(8) as u64
    };
    graph.initializer.iter().map(bytes).sum()
}

/// The codes of a weight of the file, and its scales.
fn stored(file: &[u8], manifest: &Manifest, weight: &WeightRecord) -> (Vec<i16>, Vec<Vec<u32>>) {
    let part = |part: usize| {
        let extent = &manifest.extents[weight.parts[part].extent as usize];
        Ok::<_, EncodingError>(&file[extent.offset as usize..(extent.offset + extent.length) as usize])
    };
    let elements = weight.unpack(part).unwrap();
    let scales = |(plane, tensor): (&ipuc_formats::encodings::Plane, &Tensor)| {
        (plane.role == PlaneRole::Scale)
            .then(|| tensor.elements::<f32>().unwrap().iter().map(|x| x.to_bits()).collect())
    };
    let planes = weight.encoding.encoding().planes();
    let scales = planes.iter().zip(&elements.planes).filter_map(scales).collect();
    (numbers(elements.stored.dtype(), elements.stored.bytes(), elements.stored.count()), scales)
}

#[test]
fn codes_of_quantized_models_are_stored_as_they_are() {
    let mut report = String::new();
    for &(name, count, most) in CASES {
        let path = support::cases().join(name).join("model.onnx");
        if !path.is_file() {
            eprintln!("no case `{name}`: skipped");
            continue;
        }
        let graph = ModelProto::decode(std::fs::read(&path).unwrap().as_slice()).unwrap().graph.unwrap();
        let mut seen = HashSet::new();
        let given: Vec<Weight> = graph
            .node
            .iter()
            .flat_map(|node| weights(&graph, node))
            .filter(|weight| seen.insert(weight.name.clone()))
            .collect();
        assert_eq!(given.len(), count, "{name}: weights that are codes");
        let folder = tempfile::tempdir().unwrap();
        let ipu = folder.path().join("model.ipu");
        let source = Source { entry: "main".to_string(), path };
        let manifest = compile(&[source], &ipu, &CompileOptions::default()).unwrap().emitted.manifest;
        let file = std::fs::read(&ipu).unwrap();
        let integers = manifest.weights.iter().filter(|weight| {
            let dtype = weight.encoding.dtype();
            dtype.is_integer() && dtype.bits() <= 8
        });
        let found: Vec<_> = integers.map(|weight| stored(&file, &manifest, weight)).collect();
        for Weight { name: weight, shape, codes, scales } in &given {
            let same = [codes.turned(), codes.channels_last(shape)];
            let own = found.iter().filter(|(stored, _)| *stored == codes.elements || same.contains(stored));
            let own: Vec<_> = own.collect();
            assert!(!own.is_empty(), "{name}: codes of {weight}");
            if let Some(scales) = scales {
                let turned = scales.turned();
                let is_own = |(_, planes): &&(Vec<i16>, Vec<Vec<u32>>)| {
                    planes.iter().any(|plane| *plane == scales.elements || *plane == turned)
                };
                assert!(own.iter().any(is_own), "{name}: scales of {weight}");
            }
        }
        let share = file.len() as f64 / payload_bytes(&graph) as f64;
        report += &format!("{name}: {} bytes, {share:.4} of codes, scales and floats\n", file.len());
        assert!(share < most, "{report}");
    }
    eprint!("{report}");
}
