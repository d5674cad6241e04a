//! What a lowering sees of one ONNX node, and how it emits steps.
//!
//! Every attribute and input that a lowering asks for is marked; those that nobody asked for are refused by name
//! afterwards, so that they are honoured or refused, never passed over.

use crate::import::attributes::AttributeReader;
use crate::import::importer::Importer;
pub use crate::import::lower_error::LowerError;
use crate::ir::{Constant, Operand, Step};
use ipuc_formats::attribute::{BlockIndex, Keyword};
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Fact, Type};
use ipuc_formats::onnx::schema::{GraphProto, NodeProto};
use ipuc_formats::ops::{InferContext, Op, TypeError};
use ipuc_formats::tensor::Tensor;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A lowered body of a control-flow node.
#[derive(Debug, Clone)]
pub struct Body {
    /// The block.
    pub block: BlockIndex,
    /// What it uses from outside: one operand for each parameter after the given ones.
    pub captures: Vec<Operand>,
    /// Facts of its results.
    pub results: Vec<Fact>,
}

/// What a graph attribute takes and gives.
#[derive(Debug, Clone)]
pub(crate) struct GraphPorts {
    /// Names and types of its inputs.
    pub inputs: Vec<(String, Type)>,
    /// Number of its outputs.
    pub outputs: usize,
}

/// One row of an import table: how an ONNX operator, from a version on, becomes steps.
#[derive(Clone, Copy)]
pub struct Row {
    /// ONNX domain; empty for the default one.
    pub domain: &'static str,
    /// Operator name.
    pub name: &'static str,
    /// First operator-set version that this row is for.
    pub since: i64,
    /// Emits the steps and gives one operand an ONNX output.
    pub lower: fn(&mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError>,
}

/// A row of the default domain.
pub const fn row(
    name: &'static str,
    since: i64,
    lower: fn(&mut Lowering<'_, '_>) -> Result<Vec<Operand>, LowerError>,
) -> Row {
    Row { domain: "", name, since, lower }
}

/// One ONNX node while it is lowered.
pub struct Lowering<'a, 'm> {
    importer: &'a mut Importer<'m>,
    node: &'a NodeProto,
    operands: Vec<Operand>,
    /// Operands that the lowering has asked for, by index.
    read: RefCell<BTreeSet<usize>>,
    attributes: AttributeReader<'a>,
    opset: i64,
    since: i64,
    step_name: Arc<str>,
    emitted: usize,
}

impl<'a, 'm> Lowering<'a, 'm> {
    pub(crate) fn new(
        importer: &'a mut Importer<'m>,
        node: &'a NodeProto,
        operands: Vec<Operand>,
        opset: i64,
        since: i64,
        step_name: Arc<str>,
    ) -> Self {
        let attributes = AttributeReader::new(node);
        let read = RefCell::default();
        Lowering { importer, node, operands, read, attributes, opset, since, step_name, emitted: 0 }
    }

    /// Version of the node's operator set in its model or function.
    pub fn opset(&self) -> i64 {
        self.opset
    }

    /// First version of the row that matched.
    pub fn since(&self) -> i64 {
        self.since
    }

    /// Input `index`; absent where it is left out.
    pub fn input(&self, index: usize) -> Operand {
        self.read.borrow_mut().insert(index);
        self.operands.get(index).copied().unwrap_or(Operand::Absent)
    }

    /// Input `index`, which must be there.
    ///
    /// # Errors
    /// [`TypeError::MissingOperand`] where it is left out.
    pub fn required(&self, index: usize) -> Result<Operand, LowerError> {
        match self.input(index) {
            Operand::Absent => Err(TypeError::MissingOperand { operand: index }.into()),
            operand => Ok(operand),
        }
    }

    /// All inputs, absent ones included.
    pub fn inputs(&self) -> Vec<Operand> {
        self.read.borrow_mut().extend(0..self.operands.len());
        self.operands.clone()
    }

    /// Number of inputs, absent ones included.
    pub fn input_count(&self) -> usize {
        self.operands.len()
    }

    /// Number of outputs, unnamed ones included.
    pub fn output_count(&self) -> usize {
        self.node.output.len()
    }

    /// The model gives output `index` a name.
    pub fn output_used(&self, index: usize) -> bool {
        self.node.output.get(index).is_some_and(|name| !name.is_empty())
    }

    /// An integer attribute.
    ///
    /// # Errors
    /// [`LowerError::AttributeType`] where it has another type.
    pub fn int(&mut self, name: &str) -> Result<Option<i64>, LowerError> {
        self.attributes.int(name)
    }

    /// An attribute that is 0 or 1.
    ///
    /// # Errors
    /// [`LowerError`] where it has another type or value.
    pub fn flag(&mut self, name: &str, default: bool) -> Result<bool, LowerError> {
        match self.attributes.int(name)? {
            None => Ok(default),
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            Some(other) => Err(TypeError::Value {
                subject: format!("attribute `{name}`"),
                found: other.to_string(),
                expected: "0 or 1".to_string(),
            }
            .into()),
        }
    }

    /// A float attribute.
    ///
    /// # Errors
    /// [`LowerError::AttributeType`] where it has another type.
    pub fn float(&mut self, name: &str) -> Result<Option<f32>, LowerError> {
        self.attributes.float(name)
    }

    /// A text attribute.
    ///
    /// # Errors
    /// [`LowerError::AttributeType`] where it has another type or is not UTF-8.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, LowerError> {
        self.attributes.text(name)
    }

    /// A text attribute that is one of a few keywords, compared in the spelling of `K` (case is ignored).
    ///
    /// # Errors
    /// [`LowerError`] where it has another type or value.
    pub fn keyword<K: Keyword>(&mut self, name: &str) -> Result<Option<K>, LowerError> {
        let Some(text) = self.attributes.text(name)? else { return Ok(None) };
        match text.parse().or_else(|_| text.to_lowercase().parse()) {
            Ok(keyword) => Ok(Some(keyword)),
            Err(_) => Err(LowerError::Unsupported(format!("attribute `{name}` = \"{text}\""))),
        }
    }

    /// An attribute of integers.
    ///
    /// # Errors
    /// [`LowerError::AttributeType`] where it has another type.
    pub fn ints(&mut self, name: &str) -> Result<Option<Vec<i64>>, LowerError> {
        self.attributes.ints(name)
    }

    /// An attribute of floats.
    ///
    /// # Errors
    /// [`LowerError::AttributeType`] where it has another type.
    pub fn floats(&mut self, name: &str) -> Result<Option<Vec<f32>>, LowerError> {
        self.attributes.floats(name)
    }

    /// An attribute of texts.
    ///
    /// # Errors
    /// [`LowerError::AttributeType`] where it has another type or is not UTF-8.
    pub fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, LowerError> {
        self.attributes.texts(name)
    }

    /// A tensor attribute.
    ///
    /// # Errors
    /// [`LowerError`] where it has another type or the tensor is malformed.
    pub fn tensor(&mut self, name: &str) -> Result<Option<Tensor>, LowerError> {
        match self.attributes.tensor(name)? {
            None => Ok(None),
            Some(proto) => self.importer.load_tensor(proto).map(Some),
        }
    }

    /// A tensor attribute as a constant; a large one stays in its file.
    ///
    /// # Errors
    /// [`LowerError`] where it has another type or the tensor is malformed.
    pub fn weight(&mut self, name: &str) -> Result<Option<Operand>, LowerError> {
        match self.attributes.tensor(name)? {
            None => Ok(None),
            Some(proto) => self.importer.import_tensor(proto).map(Some),
        }
    }

    /// A sparse tensor attribute as a dense constant.
    ///
    /// # Errors
    /// [`LowerError`] where it has another type or the tensor is malformed.
    pub fn sparse_weight(&mut self, name: &str) -> Result<Option<Operand>, LowerError> {
        match self.attributes.sparse_tensor(name)? {
            None => Ok(None),
            Some(proto) => self.importer.import_sparse_tensor(proto).map(Some),
        }
    }

    /// A type attribute (`TypeProto`).
    ///
    /// # Errors
    /// [`LowerError`] where it has another type or the type is malformed.
    pub fn type_of(&mut self, name: &str) -> Result<Option<Type>, LowerError> {
        match self.attributes.type_proto(name)? {
            None => Ok(None),
            Some(proto) => self.importer.import_type(proto, name).map(Some),
        }
    }

    /// Accept an attribute that cannot change the result.
    pub fn ignore(&mut self, name: &str) {
        self.attributes.ignore(name);
    }

    /// Accept an input that cannot change the result.
    pub fn ignore_input(&self, index: usize) {
        self.read.borrow_mut().insert(index);
    }

    /// What is known of an operand so far.
    pub fn fact(&self, operand: &Operand) -> Option<Fact> {
        self.importer.graph.fact(*operand)
    }

    /// Element type of a tensor operand.
    ///
    /// # Errors
    /// [`LowerError`] where it is absent or no tensor.
    pub fn dtype(&self, operand: &Operand) -> Result<DType, LowerError> {
        let fact = self.fact(operand).ok_or(TypeError::MissingOperand { operand: 0 })?;
        let found = fact.kind.to_string();
        fact.dtype().ok_or_else(|| TypeError::Kind { operand: 0, expected: "a tensor", found }.into())
    }

    /// Add a constant.
    pub fn constant(&mut self, tensor: Tensor) -> Operand {
        Operand::Constant(self.importer.graph.add_constant(Constant::of(tensor, None)))
    }

    /// Emit one step; gives one operand a result.
    ///
    /// # Errors
    /// [`TypeError`] where the operands do not fit.
    pub fn emit(&mut self, op: impl Into<Op>, operands: Vec<Operand>) -> Result<Vec<Operand>, LowerError> {
        self.emit_op(op.into(), operands)
    }

    /// As [`Lowering::emit`], compiled once for all types that become an operator.
    fn emit_op(&mut self, op: Op, operands: Vec<Operand>) -> Result<Vec<Operand>, LowerError> {
        // Steps after the first of a node get a number, so that fresh dimensions have names of their own.
        let name: Arc<str> = match self.emitted {
            0 => self.step_name.clone(),
            nth => Arc::from(format!("{}#{nth}", self.step_name)),
        };
        self.emitted += 1;
        let facts = self.importer.infer(&op, &operands, &name)?;
        let results: Vec<_> = facts.into_iter().map(|fact| self.importer.graph.add_value(fact, None)).collect();
        let given = results.iter().map(|&result| Operand::Value(result)).collect();
        self.importer.push_step(Step { op, operands, results, name });
        Ok(given)
    }

    /// Emit one step; gives its first result.
    ///
    /// # Errors
    /// [`TypeError`] where the operands do not fit or there is no result.
    pub fn emit_one(&mut self, op: impl Into<Op>, operands: Vec<Operand>) -> Result<Operand, LowerError> {
        let results = self.emit_op(op.into(), operands)?;
        results.first().copied().ok_or_else(|| LowerError::Unsupported("an operator without results".to_string()))
    }

    /// An error that names what is not supported.
    pub fn refuse(&self, what: impl Into<String>) -> LowerError {
        LowerError::Unsupported(what.into())
    }

    /// Lower a graph attribute to a block whose first parameters have these facts.
    ///
    /// # Errors
    /// [`LowerError`] where the attribute is missing or a node of the body cannot be lowered.
    pub fn body(&mut self, attribute: &str, parameters: Vec<Fact>) -> Result<Body, LowerError> {
        let graph =
            self.attributes.graph(attribute)?.ok_or_else(|| LowerError::MissingAttribute(attribute.to_string()))?;
        self.importer.lower_body(graph, parameters)
    }

    /// A block whose first parameters have these facts, with the results of what `build` emits for them. Values of outside
    /// are to be among the parameters; names of outside that a graph attribute in it uses become captures.
    ///
    /// # Errors
    /// [`LowerError`] of `build`, or where an absent operand is a result.
    pub(crate) fn block(
        &mut self,
        parameters: Vec<Fact>,
        build: impl FnOnce(&mut Self, &[Operand]) -> Result<Vec<Operand>, LowerError>,
    ) -> Result<Body, LowerError> {
        let operands = self.importer.open_block(parameters)?;
        let results = build(self, &operands);
        self.importer.close_block(results)
    }

    /// The inputs of a graph attribute, by name, with their types; and the number of its outputs. `None` where the node has no
    /// such attribute.
    ///
    /// # Errors
    /// [`LowerError`] where the attribute is no graph, or an input has no type.
    pub(crate) fn graph_ports(&mut self, attribute: &str) -> Result<Option<GraphPorts>, LowerError> {
        let Some(graph) = self.attributes.graph(attribute)? else { return Ok(None) };
        let mut inputs = Vec::with_capacity(graph.input.len());
        for input in &graph.input {
            let name = input.name.clone().unwrap_or_default();
            let Some(kind) = &input.r#type else {
                return Err(self.refuse(format!("attribute `{attribute}` whose input `{name}` has no type")));
            };
            let kind = self.importer.import_type(kind, &name)?;
            inputs.push((name, kind));
        }
        Ok(Some(GraphPorts { inputs, outputs: graph.output.len() }))
    }

    /// Lower a graph attribute, for these inputs, in place of the node; gives one operand an output.
    ///
    /// # Errors
    /// [`LowerError`] where the attribute is missing or a node of the graph cannot be lowered.
    pub fn in_place(&mut self, attribute: &str, inputs: &[Operand]) -> Result<Vec<Operand>, LowerError> {
        let graph =
            self.attributes.graph(attribute)?.ok_or_else(|| LowerError::MissingAttribute(attribute.to_string()))?;
        self.importer.lower_in_place(graph, inputs)
    }

    /// Lower a graph of the newest operator set, which defines what the node means, for these inputs; gives one operand
    /// an output. Names of its steps begin with that of the node and `part`, which no other graph of the node has.
    ///
    /// # Errors
    /// [`LowerError`] where an input does not fit.
    pub fn definition(
        &mut self,
        graph: &GraphProto,
        inputs: &[Operand],
        part: &str,
    ) -> Result<Vec<Operand>, LowerError> {
        let prefix = format!("{}/{part}", self.step_name);
        self.importer.lower_definition(graph, inputs, prefix)
    }

    /// The node has an attribute of this name.
    pub fn has(&self, attribute: &str) -> bool {
        self.node.attribute.iter().any(|given| given.name.as_deref() == Some(attribute))
    }

    /// Name of the first step that is emitted, after which its fresh dimensions are named.
    pub fn step_name(&self) -> &str {
        &self.step_name
    }

    /// Facts of a block's results for facts of its parameters, without lowering it again.
    ///
    /// # Errors
    /// [`LowerError`] where a step of the block does not fit.
    pub fn infer_block(&mut self, block: BlockIndex, parameters: &[Fact]) -> Result<Vec<Fact>, LowerError> {
        use ipuc_formats::ops::BlockInference;
        let mut typing = crate::ir::BlockTyping::new(&self.importer.graph);
        Ok(typing.infer_block(block, parameters)?)
    }

    /// Refuse attributes and inputs that the lowering has not asked for.
    pub(crate) fn finish(self) -> Result<(), LowerError> {
        let read = self.read.into_inner();
        let given = self.operands.iter().enumerate().filter(|(_, operand)| **operand != Operand::Absent);
        if let Some((unread, _)) = { given }.find(|(index, _)| !read.contains(index)) {
            let name = self.node.input.get(unread).map_or("", String::as_str);
            return Err(LowerError::UnknownInput { index: unread, name: name.to_string() });
        }
        self.attributes.finish()
    }
}

impl Importer<'_> {
    fn infer(&mut self, op: &Op, operands: &[Operand], name: &str) -> Result<Vec<Fact>, LowerError> {
        let inputs = self.graph.facts(operands);
        let mut blocks = crate::ir::BlockTyping::new(&self.graph);
        let mut context = InferContext::new(name, &self.graph.ranges, &mut blocks);
        Ok(op.operator().infer(&inputs, &mut context)?)
    }
}
