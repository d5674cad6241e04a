//! Reads bytes as ONNX and looks at everything that comes out. Shared with `tests/onnx_mutations.rs`.

use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::onnx::schema::{AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto};
use ipuc_formats::onnx::{
    AttributeValue, OnnxError, TensorData, TensorSource, attribute_value, dense_tensor, read_model, read_tensor,
    read_value,
};

/// Sparse tensors beyond this many elements are not spread out: that takes time and shows nothing new.
const SPARSE_ELEMENTS: i64 = 1 << 16;

/// Reads a model and every tensor in it.
pub fn model(bytes: &[u8]) -> Result<ModelProto, OnnxError> {
    let file = bytes.to_vec();
    let model = read_model(&file)?;
    let exercise = Exercise { file: &file };
    let training = model.training_info.iter().flat_map(|training| [&training.initialization, &training.algorithm]);
    for graph in training.chain([&model.graph]).flatten() {
        exercise.graph(graph);
    }
    for function in &model.functions {
        function.attribute_proto.iter().for_each(|attribute| exercise.attribute(attribute));
        function.node.iter().for_each(|node| exercise.node(node));
    }
    Ok(model)
}

/// Reads one value, as each kind of value.
pub fn value(bytes: &[u8]) {
    let file = bytes.to_vec();
    if let Ok(tensor) = read_tensor(&file) {
        Exercise { file: &file }.tensor(&tensor);
    }
    let tensor = Type::tensor(DType::F32, Shape::Unranked);
    let sequence = Type::Sequence(Box::new(tensor.clone()));
    let map = Type::Map { key: DType::I64, element: Box::new(sequence.clone()) };
    let kinds = [
        Type::Optional(Box::new(sequence.clone())),
        Type::Sequence(Box::new(Type::Optional(Box::new(tensor.clone())))),
        Type::Sequence(Box::new(map.clone())),
        tensor,
        sequence,
        map,
    ];
    for kind in kinds {
        // Whether it is one is not the question.
        let _ = read_value(&file, &kind);
    }
}

struct Exercise<'a> {
    file: &'a Vec<u8>,
}

impl Exercise<'_> {
    fn graph(&self, graph: &GraphProto) {
        graph.initializer.iter().for_each(|tensor| self.tensor(tensor));
        graph.sparse_initializer.iter().for_each(|sparse| self.sparse(sparse));
        graph.node.iter().for_each(|node| self.node(node));
    }

    fn node(&self, node: &NodeProto) {
        node.attribute.iter().for_each(|attribute| self.attribute(attribute));
    }

    fn attribute(&self, attribute: &AttributeProto) {
        match attribute_value(attribute) {
            Ok(AttributeValue::Tensor(tensor)) => self.tensor(tensor),
            Ok(AttributeValue::Graph(graph)) => self.graph(graph),
            Ok(AttributeValue::SparseTensor(sparse)) => self.sparse(sparse),
            Ok(AttributeValue::Tensors(tensors)) => tensors.iter().for_each(|tensor| self.tensor(tensor)),
            Ok(AttributeValue::Graphs(graphs)) => graphs.iter().for_each(|graph| self.graph(graph)),
            Ok(AttributeValue::SparseTensors(sparse)) => sparse.iter().for_each(|sparse| self.sparse(sparse)),
            Ok(_) => {}
            Err(error) => drop(error.to_string()),
        }
    }

    fn tensor(&self, tensor: &TensorProto) {
        for stored in &tensor.stored_segments {
            let end = stored.offset().checked_add(stored.length());
            assert!(end.is_some_and(|end| end <= self.file.len() as u64), "a segment lies outside of the file");
        }
        let source = match TensorSource::of(tensor) {
            Ok(source) => source,
            Err(error) => return drop(error.to_string()),
        };
        if let TensorData::External(_) = source.data() {
            return;
        }
        match source.load(self.file) {
            Ok(loaded) => {
                assert_eq!(loaded.bytes().len() as u64, source.length_bytes());
                let half = loaded.bytes().len() / 2;
                let mut rest = vec![0; loaded.bytes().len() - half];
                let read = source.read_at(self.file, half as u64, &mut rest);
                assert!(read.is_ok() && rest == loaded.bytes()[half..], "a part differs from the whole");
            }
            Err(error) => drop(error.to_string()),
        }
    }

    fn sparse(&self, sparse: &SparseTensorProto) {
        let elements = sparse.dims.iter().try_fold(1i64, |product, extent| product.checked_mul(*extent));
        if elements.is_none_or(|elements| elements <= SPARSE_ELEMENTS) {
            // Whether it can be spread out is not the question.
            let _ = dense_tensor(sparse, self.file);
        }
        [&sparse.values, &sparse.indices].into_iter().flatten().for_each(|tensor| self.tensor(tensor));
    }
}
