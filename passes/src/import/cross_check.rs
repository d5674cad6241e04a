//! A second opinion on types and shapes: those that tract derives from the same ONNX model.
//!
//! tract is given the model's *skeleton*: each large tensor becomes an input of its type and shape, and the dimensions of
//! inputs get the names that they have here. It stops after its analysis of shapes. Values are compared by their ONNX names:
//! element types, ranks, and dimensions at several sizes that meet the model's obligations.
//!
//! Disagreement is information for whoever looks into a model; nothing is changed by it, and tract's own failures (it
//! panics on some models and knows no operator outside of the default domain) are an answer too. Nothing is asked of tract
//! but facts: it reads no file, since no tensor that is left names one.
//!
//! Source: <https://github.com/sonos/tract>, `tract-onnx`.

use crate::ir::{Graph, Value};
use ipuc_formats::dim::{Bindings, Dim};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Fact, Shape, Type};
use ipuc_formats::onnx::schema::{
    AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto,
    tensor_shape_proto, type_proto,
};
use ipuc_formats::onnx::{TensorData, TensorSource};
use ipuc_formats::ops::{Obligation, Relation};
use prost::Message;
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};
use tract_onnx::Onnx;
use tract_onnx::tract_hir::infer::{Factoid, InferenceFact, InferenceModelExt};
use tract_onnx::tract_hir::prelude::{DatumType, Framework, SymbolValues, TDim, TractError};
use tract_onnx::tract_hir::tract_core::model::OutletId;

/// Analysis of deep graphs recurses.
const STACK_BYTES: usize = 64 << 20;

/// What the comparison found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CrossCheck {
    /// Values whose type, rank and dimensions agree wherever both sides know them.
    pub agreeing: usize,
    /// Values of which tract knows no element type and no rank.
    pub unknown: usize,
    /// Values that differ.
    pub disagreements: Vec<Disagreement>,
    /// Why tract did not get to the end; what it knew until then is compared all the same.
    pub failure: Option<String>,
}

/// A value of which the two analyses say different things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    /// ONNX name of the value.
    pub value: String,
    /// Its type here.
    pub ours: String,
    /// Its type by tract.
    pub theirs: String,
}

/// Compare the types of an entry's values with those that tract derives from the model.
///
/// # Errors
/// One sentence that says why tract has no answer.
pub fn cross_check(model: &ModelProto, graph: &Graph, entry: &str) -> Result<CrossCheck, String> {
    let ours = Ours::of(graph, entry).ok_or("the program has no such entry")?;
    let skeleton = skeleton(model, &ours)?;
    let analysed = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("cross-check".to_string()).stack_size(STACK_BYTES);
        let analysis = || quietly(|| compare(&skeleton, &ours));
        let thread = thread.spawn_scoped(scope, analysis).map_err(|error| format!("no thread for tract: {error}"))?;
        thread.join().map_err(|_| "tract panicked".to_string())
    })?;
    analysed?
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Run what may panic; its panic is an error without a message on stderr.
fn quietly<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                report(panic);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(false);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        format!("tract panicked: {}", first_line(&text))
    })
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("")
}

/// What is known here: values of the entry by name, sizes to compare at.
struct Ours<'a> {
    graph: &'a Graph,
    parameters: Vec<(&'a str, &'a Fact)>,
    values: HashMap<&'a str, &'a Fact>,
    /// Symbols of the inputs; the one at `i` is `s{i}` in the skeleton.
    symbols: Vec<Arc<str>>,
}

impl<'a> Ours<'a> {
    fn of(graph: &'a Graph, entry: &str) -> Option<Self> {
        let entry = graph.entries.iter().find(|candidate| candidate.name == entry)?;
        let block = graph.block(entry.block);
        let fact = |value: &crate::ir::ValueId| &graph.value(*value).fact;
        let parameters: Vec<(&str, &Fact)> =
            entry.inputs.iter().map(String::as_str).zip(block.parameters.iter().map(fact)).collect();
        let mut values: HashMap<&str, &Fact> = HashMap::new();
        let mut ambiguous = HashSet::new();
        for &id in block.steps.iter().flat_map(|step| &step.results) {
            let Value { fact, name } = graph.value(id);
            // Names of what stands in functions may be those of other values too.
            if let Some(name) = name
                && values.insert(name, fact).is_some()
            {
                ambiguous.insert(&**name);
            }
        }
        values.retain(|name, _| !ambiguous.contains(name));
        let dims = parameters.iter().filter_map(|(_, fact)| fact.dims()).flatten();
        let symbols: BTreeSet<Arc<str>> = dims.flat_map(Dim::symbols).collect();
        Some(Ours { graph, parameters, values, symbols: symbols.into_iter().collect() })
    }

    /// Sizes of all symbols within their ranges and obligations, of different arithmetic.
    fn trials(&self) -> Vec<Bindings> {
        const PRIMES: [i64; 12] = [7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47];
        let rules: [fn(usize) -> i64; 5] = [
            |index| PRIMES[index % PRIMES.len()] + (index / PRIMES.len()) as i64,
            |index| 32 * (index as i64 + 1),
            |_| 64,
            |_| 8,
            |_| 1,
        ];
        let bindings = |rule: fn(usize) -> i64| {
            let mut bindings = Bindings::new();
            for (index, symbol) in self.symbols.iter().enumerate() {
                let (minimum, maximum) = self.graph.ranges.get(symbol);
                bindings.insert(symbol.clone(), rule(index).clamp(minimum, maximum));
            }
            bindings
        };
        let trials = rules.into_iter().map(bindings);
        trials.filter(|trial| self.graph.obligations.iter().all(|one| holds(one, trial))).collect()
    }
}

/// Whether an obligation holds at these sizes, or is not about them.
fn holds(obligation: &Obligation, sizes: &Bindings) -> bool {
    let (Ok(left), Ok(right)) = (obligation.left.evaluate(sizes), obligation.right.evaluate(sizes)) else {
        return true;
    };
    match obligation.relation {
        Relation::Equal => left == right,
        Relation::Broadcastable => left == right || left == 1 || right == 1,
        Relation::AtMost => left <= right,
        Relation::Multiple => right != 0 && left % right == 0,
    }
}

/// The model without large tensors, functions and dimensions of other names than ours.
fn skeleton(model: &ModelProto, ours: &Ours<'_>) -> Result<Vec<u8>, String> {
    let graph = model.graph.as_ref().ok_or("the model has no graph")?;
    let mut inputs = Vec::new();
    for (name, fact) in &ours.parameters {
        inputs.push(input(name, &fact.kind, ours)?);
    }
    let mut initializers = Vec::new();
    for tensor in &graph.initializer {
        match large(tensor)? {
            Some(kind) => inputs.push(input(tensor.name(), &kind, ours)?),
            None => initializers.push(tensor.clone()),
        }
    }
    if !graph.sparse_initializer.is_empty() {
        return Err("the model has sparse weights".to_string());
    }
    let mut nodes = Vec::new();
    for node in &graph.node {
        match (constant(node)?, node.output.first()) {
            (Some(kind), Some(name)) => inputs.push(input(name, &kind, ours)?),
            _ if node.attribute.iter().any(holds_large) => {
                return Err(format!("a branch or body of node `{}` holds weights", node.name()));
            }
            _ => nodes.push(node.clone()),
        }
    }
    let graph = GraphProto {
        name: graph.name.clone(),
        node: nodes,
        initializer: initializers,
        input: inputs,
        output: graph.output.clone(),
        ..GraphProto::default()
    };
    let skeleton = ModelProto {
        ir_version: model.ir_version,
        opset_import: model.opset_import.clone(),
        graph: Some(graph),
        ..ModelProto::default()
    };
    Ok(skeleton.encode_to_vec())
}

/// The type of a tensor whose elements are not here.
fn large(tensor: &TensorProto) -> Result<Option<Type>, String> {
    let source = TensorSource::of(tensor).map_err(|error| error.to_string())?;
    let kind = Type::Tensor { dtype: source.dtype(), shape: Shape::known(source.shape()) };
    Ok((!matches!(source.data(), TensorData::Inline(_))).then_some(kind))
}

/// The type of what a `Constant` node with a large tensor gives.
fn constant(node: &NodeProto) -> Result<Option<Type>, String> {
    if node.op_type() != "Constant" {
        return Ok(None);
    }
    node.attribute.iter().find_map(|attribute| attribute.t.as_deref()).map_or(Ok(None), large)
}

fn holds_large(attribute: &AttributeProto) -> bool {
    let is_large = |tensor: &TensorProto| !matches!(large(tensor), Ok(None));
    let graph_holds = |graph: &GraphProto| {
        graph.initializer.iter().any(is_large)
            || !graph.sparse_initializer.is_empty()
            || graph.node.iter().flat_map(|node| &node.attribute).any(holds_large)
    };
    attribute.t.as_deref().into_iter().chain(&attribute.tensors).any(is_large)
        || attribute.sparse_tensor.is_some()
        || !attribute.sparse_tensors.is_empty()
        || attribute.g.as_deref().into_iter().chain(&attribute.graphs).any(graph_holds)
}

fn input(name: &str, kind: &Type, ours: &Ours<'_>) -> Result<ValueInfoProto, String> {
    use tensor_shape_proto::dimension::Value::{DimParam, DimValue};
    let Type::Tensor { dtype, shape } = kind else { return Err(format!("input `{name}` is no tensor")) };
    let dimension = |dim: &Dim| {
        let number = dim.as_symbol().and_then(|symbol| ours.symbols.iter().position(|one| **one == *symbol));
        let value = dim.as_known().map(DimValue).or_else(|| number.map(|number| DimParam(format!("s{number}"))));
        tensor_shape_proto::Dimension { value, denotation: None }
    };
    let shape = shape.dims().map(|dims| TensorShapeProto { dim: dims.iter().map(dimension).collect() });
    let tensor = type_proto::Tensor { elem_type: Some(dtype.onnx_code()), shape };
    let r#type = Some(TypeProto { denotation: None, value: Some(type_proto::Value::TensorType(tensor)) });
    Ok(ValueInfoProto { name: Some(name.to_string()), r#type, ..ValueInfoProto::default() })
}

fn compare(skeleton: &[u8], ours: &Ours<'_>) -> Result<CrossCheck, String> {
    // The innermost cause says what; those around it repeat the model.
    let failure = |error: TractError| first_line(&error.root_cause().to_string()).to_string();
    // What the model says of its values is not asked, only what follows from the operators.
    let onnx = Onnx { ignore_value_info: true, ..tract_onnx::onnx() };
    let proto = onnx.proto_model_for_read(&mut &*skeleton).map_err(failure)?;
    let mut parsed = onnx.parse(&proto, None).map_err(failure)?;
    let failed = parsed.model.analyse(true).err().map(failure);
    let trials: Vec<(Bindings, SymbolValues)> = ours
        .trials()
        .into_iter()
        .map(|bindings| {
            let mut values = SymbolValues::default();
            for (number, symbol) in ours.symbols.iter().enumerate() {
                let value = bindings.get(symbol).unwrap_or(1);
                values.set(&parsed.model.symbols.sym(&format!("s{number}")), value);
            }
            (bindings, values)
        })
        .collect();
    let mut found = CrossCheck { failure: failed, ..CrossCheck::default() };
    let mut names: Vec<(&str, &Fact)> = ours.values.iter().map(|(&name, &fact)| (name, fact)).collect();
    names.sort_by_key(|(name, _)| *name);
    for (name, fact) in names {
        let Some(&outlet) = parsed.outlets_by_name.get(name) else { continue };
        let outlet: OutletId = outlet;
        let theirs = parsed.model.outlet_fact(outlet).map_err(failure)?;
        if theirs.datum_type.concretize().is_none() && theirs.shape.is_open() {
            found.unknown += 1;
        } else if agrees(&fact.kind, theirs, &trials) {
            found.agreeing += 1;
        } else {
            let (value, ours, theirs) = (name.to_string(), fact.kind.to_string(), format!("{theirs:?}"));
            found.disagreements.push(Disagreement { value, ours, theirs });
        }
    }
    Ok(found)
}

fn agrees(ours: &Type, theirs: &InferenceFact, trials: &[(Bindings, SymbolValues)]) -> bool {
    let Type::Tensor { dtype, shape } = ours else { return true };
    if theirs.datum_type.concretize().and_then(dtype_of).is_some_and(|theirs| theirs != *dtype) {
        return false;
    }
    let Some(dims) = shape.dims() else { return true };
    if theirs.shape.is_open() {
        return true;
    }
    let their_dims: Vec<Option<TDim>> = theirs.shape.dims().map(|dim| dim.concretize()).collect();
    their_dims.len() == dims.len()
        && dims.iter().zip(&their_dims).all(|(one, other)| other.as_ref().is_none_or(|other| same(one, other, trials)))
}

/// Whether two dimensions have the same value at all sizes at which both have one. Where either is negative no tensor has
/// that extent: the model does not run at such sizes.
fn same(ours: &Dim, theirs: &TDim, trials: &[(Bindings, SymbolValues)]) -> bool {
    let known = (Bindings::new(), SymbolValues::default());
    trials.iter().chain(std::iter::once(&known)).all(|(bindings, values)| {
        match (ours.evaluate(bindings), theirs.eval_to_i64(values)) {
            (Ok(one), Ok(other)) => one == other || one < 0 || other < 0,
            (Err(_), _) | (_, Err(_)) => true,
        }
    })
}

/// The element type that one of tract is; `None` where it has its own (it counts in symbolic integers, say).
fn dtype_of(theirs: DatumType) -> Option<DType> {
    Some(match theirs {
        DatumType::Bool => DType::Bool,
        DatumType::U8 => DType::U8,
        DatumType::U16 => DType::U16,
        DatumType::U32 => DType::U32,
        DatumType::U64 => DType::U64,
        DatumType::I8 => DType::I8,
        DatumType::I16 => DType::I16,
        DatumType::I32 => DType::I32,
        DatumType::I64 => DType::I64,
        DatumType::F16 => DType::F16,
        DatumType::F32 => DType::F32,
        DatumType::F64 => DType::F64,
        DatumType::String => DType::String,
        _ => return None,
    })
}
