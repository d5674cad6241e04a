//! Walks a model's graphs and functions node by node.
//!
//! What depends on a node that failed is skipped, everything else is still looked at.

use crate::import::functions::FunctionKey;
use crate::import::importer::{Binding, Frame, Importer};
use crate::import::lower_error::LowerError;
use crate::import::lowering::{Body, Lowering, Row};
use crate::import::not_imported::NOT_IMPORTED;
use crate::import::opsets::{Opsets, canonical_domain};
use crate::import::order::{OrderError, run_order};
use crate::import::{ImportError, registry};
use crate::ir::Operand;
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::fact::{Fact, Type};
use ipuc_formats::limits;
use ipuc_formats::onnx::schema::{GraphProto, NodeProto, ValueInfoProto};
use std::sync::Arc;

/// Until this operator set nodes could name operands that a runtime may overwrite.
const OPSET_WITHOUT_CONSUMED_INPUTS: i64 = 6;

impl Importer<'_> {
    /// Lower an entry's graph into a new block; gives the block and the names of its inputs and outputs.
    pub(crate) fn lower_entry(
        &mut self,
        graph: &GraphProto,
        opsets: Arc<Opsets>,
    ) -> Result<(BlockIndex, Vec<String>, Vec<String>), ImportError> {
        let block = self.push_frame(opsets, false, String::new());
        let inputs = self.declare_entry_inputs(graph)?;
        self.lower_graph_into(graph)?;
        let mut outputs = Vec::new();
        for output in &graph.output {
            let name = output.name.clone().unwrap_or_default();
            // A run gives its outputs by name: one that is listed again is the same value.
            if outputs.contains(&name) {
                continue;
            }
            match self.resolve(&name) {
                Some(Binding::Operand(operand)) => self.graph.block_mut(block).results.push(operand),
                Some(Binding::Failed) => {}
                None => return Err(ImportError::UndefinedOutput { name }),
            }
            outputs.push(name);
        }
        self.frames.pop();
        Ok((block, inputs, outputs))
    }

    fn declare_entry_inputs(&mut self, graph: &GraphProto) -> Result<Vec<String>, ImportError> {
        let stored: std::collections::HashSet<&str> =
            graph.initializer.iter().filter_map(|tensor| tensor.name.as_deref()).collect();
        let mut names = Vec::new();
        for input in &graph.input {
            let name = input.name.clone().unwrap_or_default();
            // An input with an initializer has a default, which is what is compiled unless a caller may override it.
            let is_overridable = self.overridable.contains(&name);
            if stored.contains(name.as_str()) && !is_overridable {
                continue;
            }
            let kind = input.r#type.as_ref().ok_or_else(|| ImportError::UntypedInput { name: name.clone() })?;
            let kind = self
                .import_type(kind, &name)
                .map_err(|error| ImportError::Input { name: name.clone(), reason: error.to_string() })?;
            if names.contains(&name) {
                return Err(ImportError::DuplicateName { name });
            }
            if stored.contains(name.as_str()) {
                let given = self.add_parameter(Fact::of(Type::Optional(Box::new(kind))), &name);
                self.overriding.insert(name.clone(), given);
            } else {
                self.add_parameter(Fact::of(kind), &name);
            }
            names.push(name);
        }
        if let Some(name) = self.overridable.iter().find(|name| !self.overriding.contains_key(*name)) {
            return Err(ImportError::NotOverridable { name: name.clone() });
        }
        Ok(names)
    }

    /// Initializers, then nodes in an order in which they can run.
    fn lower_graph_into(&mut self, graph: &GraphProto) -> Result<(), ImportError> {
        for tensor in &graph.initializer {
            let name = tensor.name.clone().unwrap_or_default();
            let mut operand = self.import_initializer(tensor)?;
            if let Some(given) = self.overriding.remove(&name) {
                let chosen = self.given_or_default(given, operand, &name);
                operand =
                    chosen.map_err(|error| ImportError::Input { name: name.clone(), reason: error.to_string() })?;
            }
            self.frame().names.insert(name, Binding::Operand(operand));
        }
        for sparse in &graph.sparse_initializer {
            let (name, operand) = self.import_sparse_initializer(sparse)?;
            self.frame().names.insert(name, Binding::Operand(operand));
        }
        let order = run_order(graph).map_err(|error| match error {
            OrderError::Cycle(name) => ImportError::Cycle { name },
            OrderError::Duplicate(name) => ImportError::DuplicateName { name },
        })?;
        for index in order {
            self.lower_node(&graph.node[index])?;
        }
        Ok(())
    }

    fn node_label(&mut self, node: &NodeProto) -> Arc<str> {
        let own = match node.name.as_deref() {
            Some(name) if !name.is_empty() => name.to_string(),
            _ => match node.output.iter().find(|output| !output.is_empty()) {
                Some(output) => output.clone(),
                None => {
                    self.unnamed_nodes += 1;
                    format!("{}_{}", node.op_type.as_deref().unwrap_or("node"), self.unnamed_nodes)
                }
            },
        };
        let prefix = &self.frame().prefix;
        Arc::from(if prefix.is_empty() { own } else { format!("{prefix}/{own}") })
    }

    fn lower_node(&mut self, node: &NodeProto) -> Result<(), ImportError> {
        let label = self.node_label(node);
        let operands = match self.node_operands(node) {
            Ok(Some(operands)) => operands,
            Ok(None) => {
                // What it reads failed; whether the operator itself is known can be told all the same.
                match self.find_row(node) {
                    Err(error) if !self.functions.contains(&FunctionKey::of_node(node)) => {
                        self.refuse(node, label, &error);
                    }
                    Ok(_) | Err(_) => self.bind_failed(node),
                }
                return Ok(());
            }
            Err(error) => {
                self.refuse(node, label, &error);
                return Ok(());
            }
        };
        let key = FunctionKey::of_node(node);
        if self.functions.contains(&key) {
            return self.call_function(node, &key, operands, label);
        }
        match self.lower_builtin(node, operands, &label) {
            Ok(outputs) => self.bind_outputs(node, &outputs, label),
            // The body's own nodes are in the list already.
            Err(LowerError::Body) => self.bind_failed(node),
            Err(error) => self.refuse(node, label, &error),
        }
        Ok(())
    }

    /// The operands of a node, or `None` where one comes from a node that failed.
    fn node_operands(&mut self, node: &NodeProto) -> Result<Option<Vec<Operand>>, LowerError> {
        let mut operands = Vec::with_capacity(node.input.len());
        for name in &node.input {
            if name.is_empty() {
                operands.push(Operand::Absent);
                continue;
            }
            match self.resolve(name) {
                Some(Binding::Operand(operand)) => operands.push(operand),
                Some(Binding::Failed) => return Ok(None),
                None => return Err(LowerError::Undefined(name.clone())),
            }
        }
        Ok(Some(operands))
    }

    fn lower_builtin(
        &mut self,
        node: &NodeProto,
        operands: Vec<Operand>,
        label: &Arc<str>,
    ) -> Result<Vec<Operand>, LowerError> {
        let (row, opset) = self.find_row(node)?;
        let mut lowering = Lowering::new(self, node, operands, opset, row.since, label.clone());
        if row.since < OPSET_WITHOUT_CONSUMED_INPUTS {
            // Allows a runtime to overwrite operands.
            lowering.ignore("consumed_inputs");
        }
        let outputs = (row.lower)(&mut lowering)?;
        lowering.finish()?;
        Ok(outputs)
    }

    fn find_row(&mut self, node: &NodeProto) -> Result<(&'static Row, i64), LowerError> {
        let domain = canonical_domain(node.domain.as_deref());
        let name = node.op_type.as_deref().unwrap_or("");
        let Some(&opset) = self.frame().opsets.get(domain) else {
            return Err(LowerError::Unsupported(format!("an operator of domain `{domain}`, which is not imported,")));
        };
        registry::check_opset(domain, opset)?;
        let known = NOT_IMPORTED.iter().find(|note| (note.domain, note.name) == (domain, name));
        match (registry::find(domain, name, opset), known) {
            (Some(row), _) => Ok((row, opset)),
            (None, Some(note)) => Err(LowerError::NotImported(note.text)),
            (None, None) => Err(LowerError::Unsupported("this operator".to_string())),
        }
    }

    /// Open a block whose parameters have these facts and no names; steps go to it until it is closed.
    pub(crate) fn open_block(&mut self, parameters: Vec<Fact>) -> Result<Vec<Operand>, LowerError> {
        if self.depth >= limits::ONNX_GRAPH_NESTING {
            return Err(LowerError::Unsupported(format!("nesting deeper than {}", limits::ONNX_GRAPH_NESTING)));
        }
        let frame = self.frame();
        let (opsets, prefix) = (frame.opsets.clone(), frame.prefix.clone());
        let block = self.push_frame(opsets, true, prefix);
        self.depth += 1;
        let values: Vec<_> = parameters.into_iter().map(|fact| self.graph.add_value(fact, None)).collect();
        self.graph.block_mut(block).parameters.extend(&values);
        Ok(values.into_iter().map(Operand::Value).collect())
    }

    /// Close the block that was opened last, with these results.
    pub(crate) fn close_block(&mut self, results: Result<Vec<Operand>, LowerError>) -> Result<Body, LowerError> {
        self.depth -= 1;
        let block = self.frame().block;
        let captures = self.frames.pop().map(|frame| frame.captures).unwrap_or_default();
        let operands = results?;
        let facts = operands.iter().map(|&operand| self.graph.fact(operand));
        let results: Option<Vec<Fact>> = facts.collect();
        let results = results.ok_or_else(|| LowerError::Unsupported("a block with an absent result".to_string()))?;
        self.graph.block_mut(block).results = operands;
        Ok(Body { block, captures, results })
    }

    /// Lower the graph of a control-flow attribute to a block whose first parameters have these facts.
    pub(crate) fn lower_body(&mut self, graph: &GraphProto, parameters: Vec<Fact>) -> Result<Body, LowerError> {
        if self.depth >= limits::ONNX_GRAPH_NESTING {
            return Err(LowerError::Unsupported(format!("nesting deeper than {}", limits::ONNX_GRAPH_NESTING)));
        }
        if graph.input.len() != parameters.len() {
            let count = graph.input.len();
            return Err(LowerError::Unsupported(format!(
                "a body with {count} inputs where {} are given",
                parameters.len()
            )));
        }
        let frame = self.frame();
        let (opsets, prefix) = (frame.opsets.clone(), frame.prefix.clone());
        let refusals_before = self.refusals.len();
        let block = self.push_frame(opsets, true, prefix);
        self.depth += 1;
        for (input, fact) in graph.input.iter().zip(parameters) {
            self.add_parameter(fact, input.name.as_deref().unwrap_or(""));
        }
        let lowered = self.lower_graph_into(graph).map_err(|error| LowerError::Unsupported(error.to_string()));
        self.depth -= 1;
        let results = lowered.and_then(|()| self.body_results(graph, block));
        let captures = self.frames.pop().map(|frame| frame.captures).unwrap_or_default();
        if self.refusals.len() > refusals_before {
            return Err(LowerError::Body);
        }
        Ok(Body { block, captures, results: results? })
    }

    /// Lower the graph of an attribute, for these inputs, in place of its node.
    pub(crate) fn lower_in_place(
        &mut self,
        graph: &GraphProto,
        inputs: &[Operand],
    ) -> Result<Vec<Operand>, LowerError> {
        let frame = self.frame();
        let (opsets, prefix) = (frame.opsets.clone(), frame.prefix.clone());
        self.lower_graph_in_place(graph, inputs, (opsets, prefix), true)
    }

    /// Lower a graph of the default domain that defines what a node means, for these inputs, in its place; names of steps
    /// begin with `prefix`.
    pub(crate) fn lower_definition(
        &mut self,
        graph: &GraphProto,
        inputs: &[Operand],
        prefix: String,
    ) -> Result<Vec<Operand>, LowerError> {
        let opsets = Arc::new(Opsets::from([(String::new(), registry::NEWEST_OPSET)]));
        self.lower_graph_in_place(graph, inputs, (opsets, prefix), false)
    }

    fn lower_graph_in_place(
        &mut self,
        graph: &GraphProto,
        inputs: &[Operand],
        (opsets, prefix): (Arc<Opsets>, String),
        sees_outer: bool,
    ) -> Result<Vec<Operand>, LowerError> {
        if self.depth >= limits::ONNX_GRAPH_NESTING {
            return Err(LowerError::Unsupported(format!("nesting deeper than {}", limits::ONNX_GRAPH_NESTING)));
        }
        if graph.input.len() != inputs.len() {
            let (count, given) = (graph.input.len(), inputs.len());
            return Err(LowerError::Unsupported(format!("a graph with {count} inputs where {given} are given")));
        }
        let block = self.frame().block;
        let named = |input: &ValueInfoProto| input.name.clone().unwrap_or_default();
        let names = graph.input.iter().map(named).zip(inputs.iter().map(|&input| Binding::Operand(input))).collect();
        self.frames.push(Frame { names, block, sees_outer, captures: Vec::new(), opsets, prefix });
        self.depth += 1;
        let refusals_before = self.refusals.len();
        let lowered = self.lower_graph_into(graph).map_err(|error| LowerError::Unsupported(error.to_string()));
        self.depth -= 1;
        let outputs: Vec<Result<Operand, LowerError>> = graph
            .output
            .iter()
            .map(|output| match self.resolve(output.name.as_deref().unwrap_or("")) {
                Some(Binding::Operand(operand)) => Ok(operand),
                Some(Binding::Failed) => Err(LowerError::Body),
                None => Err(LowerError::Undefined(output.name.clone().unwrap_or_default())),
            })
            .collect();
        self.frames.pop();
        if self.refusals.len() > refusals_before {
            return Err(LowerError::Body);
        }
        lowered?;
        outputs.into_iter().collect()
    }

    fn body_results(&mut self, graph: &GraphProto, block: BlockIndex) -> Result<Vec<Fact>, LowerError> {
        let mut facts = Vec::new();
        for output in &graph.output {
            let name = output.name.as_deref().unwrap_or("");
            match self.resolve(name) {
                Some(Binding::Operand(operand)) => {
                    self.graph.block_mut(block).results.push(operand);
                    facts.extend(self.graph.fact(operand));
                }
                Some(Binding::Failed) => return Err(LowerError::Body),
                None => return Err(LowerError::Undefined(name.to_string())),
            }
        }
        Ok(facts)
    }

    /// Lower the body of a model-local function in place of a node that calls it.
    fn call_function(
        &mut self,
        node: &NodeProto,
        key: &FunctionKey,
        operands: Vec<Operand>,
        label: Arc<str>,
    ) -> Result<(), ImportError> {
        let call = match self.functions.instantiate(key, node) {
            Ok(call) if self.depth < limits::ONNX_GRAPH_NESTING => call,
            Ok(_) => {
                let error = LowerError::Unsupported(format!("nesting deeper than {}", limits::ONNX_GRAPH_NESTING));
                self.refuse(node, label, &error);
                return Ok(());
            }
            Err(error) => {
                self.refuse(node, label, &error);
                return Ok(());
            }
        };
        let block = self.frame().block;
        let names = call
            .inputs
            .iter()
            .enumerate()
            .map(|(index, name)| (name.clone(), operands.get(index).copied().unwrap_or(Operand::Absent)))
            .map(|(name, operand)| (name, Binding::Operand(operand)))
            .collect();
        let prefix = label.to_string();
        let opsets = Arc::new(call.opsets);
        self.frames.push(Frame { names, block, sees_outer: false, captures: Vec::new(), opsets, prefix });
        self.depth += 1;
        let body = GraphProto { node: call.nodes, ..GraphProto::default() };
        let lowered = self.lower_graph_into(&body);
        self.depth -= 1;
        let outputs: Vec<Option<Binding>> = call.outputs.iter().map(|name| self.resolve(name)).collect();
        self.frames.pop();
        lowered?;
        for (index, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            match outputs.get(index) {
                Some(Some(binding)) => {
                    if let Binding::Operand(operand) = *binding {
                        self.name_operand(operand, name);
                    }
                    self.frame().names.insert(name.clone(), *binding);
                }
                Some(None) | None => {
                    let error = LowerError::Undefined(name.clone());
                    self.refuse(node, label, &error);
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
