//! Which other files a model names, without opening one.

use super::schema::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto};
use std::collections::BTreeSet;

/// Locations of external data as a model names them, wherever it has tensors.
pub fn external_locations(model: &ModelProto) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    model.graph.iter().for_each(|graph| of_graph(graph, &mut found));
    model.functions.iter().for_each(|function| of_function(function, &mut found));
    for training in &model.training_info {
        training.initialization.iter().chain(&training.algorithm).for_each(|graph| of_graph(graph, &mut found));
    }
    found
}

fn of_graph<'a>(graph: &'a GraphProto, found: &mut BTreeSet<&'a str>) {
    graph.initializer.iter().for_each(|tensor| of_tensor(tensor, found));
    graph.sparse_initializer.iter().for_each(|tensor| of_sparse(tensor, found));
    graph.node.iter().for_each(|node| of_node(node, found));
}

fn of_function<'a>(function: &'a FunctionProto, found: &mut BTreeSet<&'a str>) {
    function.attribute_proto.iter().for_each(|attribute| of_attribute(attribute, found));
    function.node.iter().for_each(|node| of_node(node, found));
}

fn of_node<'a>(node: &'a NodeProto, found: &mut BTreeSet<&'a str>) {
    node.attribute.iter().for_each(|attribute| of_attribute(attribute, found));
}

fn of_attribute<'a>(attribute: &'a AttributeProto, found: &mut BTreeSet<&'a str>) {
    attribute.t.iter().for_each(|tensor| of_tensor(tensor, found));
    attribute.tensors.iter().for_each(|tensor| of_tensor(tensor, found));
    attribute.sparse_tensor.iter().for_each(|tensor| of_sparse(tensor, found));
    attribute.sparse_tensors.iter().for_each(|tensor| of_sparse(tensor, found));
    attribute.g.iter().for_each(|graph| of_graph(graph, found));
    attribute.graphs.iter().for_each(|graph| of_graph(graph, found));
}

fn of_sparse<'a>(tensor: &'a SparseTensorProto, found: &mut BTreeSet<&'a str>) {
    tensor.values.iter().chain(&tensor.indices).for_each(|tensor| of_tensor(tensor, found));
}

fn of_tensor<'a>(tensor: &'a TensorProto, found: &mut BTreeSet<&'a str>) {
    let locations = tensor.external_data.iter().filter(|entry| entry.key.as_deref() == Some("location"));
    found.extend(locations.filter_map(|entry| entry.value.as_deref()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::schema::StringStringEntryProto;

    fn external(location: &str) -> TensorProto {
        let entry = |key: &str, value: &str| StringStringEntryProto {
            key: Some(key.to_string()),
            value: Some(value.to_string()),
        };
        TensorProto { external_data: vec![entry("location", location), entry("offset", "4")], ..TensorProto::default() }
    }

    #[test]
    fn locations_are_found_wherever_tensors_are() {
        let inner = GraphProto { initializer: vec![external("inner")], ..GraphProto::default() };
        let attributes = vec![
            AttributeProto { t: Some(Box::new(external("attribute"))), ..AttributeProto::default() },
            AttributeProto { g: Some(Box::new(inner)), ..AttributeProto::default() },
        ];
        let node = NodeProto { attribute: attributes, ..NodeProto::default() };
        let sparse = SparseTensorProto {
            values: Some(external("values")),
            indices: Some(external("indices")),
            ..SparseTensorProto::default()
        };
        let graph = GraphProto {
            initializer: vec![external("weights"), external("weights"), TensorProto::default()],
            sparse_initializer: vec![sparse],
            node: vec![node.clone()],
            ..GraphProto::default()
        };
        let function = FunctionProto { node: vec![node], ..FunctionProto::default() };
        let model = ModelProto { graph: Some(graph), functions: vec![function], ..ModelProto::default() };
        let found: Vec<&str> = external_locations(&model).into_iter().collect();
        assert_eq!(found, ["attribute", "indices", "inner", "values", "weights"]);
    }
}
