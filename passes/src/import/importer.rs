//! A model while it is imported: the graph so far, and what names stand for.
//!
//! Names live in frames: one a graph body (names of outer graphs are visible; using one makes it a parameter of the
//! body and an operand of the step that runs it) and one a function call (nothing outside is visible). Errors of nodes
//! are collected.

use crate::import::functions::Functions;
use crate::import::lower_error::LowerError;
use crate::import::opsets::{Opsets, canonical_domain};
use crate::import::{ExternalFiles, ImportError, Refusal};
use crate::ir::{Graph, Operand, Step};
use ipuc_formats::attribute::BlockIndex;
use ipuc_formats::fact::Fact;
use ipuc_formats::onnx::schema::NodeProto;
use std::collections::HashMap;
use std::sync::Arc;

/// What a name stands for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Binding {
    /// An operand.
    Operand(Operand),
    /// The output of a node that could not be lowered.
    Failed,
}

/// Names of one graph body or function call.
pub(crate) struct Frame {
    pub(super) names: HashMap<String, Binding>,
    /// The block that steps go to.
    pub(super) block: BlockIndex,
    /// Names of enclosing frames are visible.
    pub(super) sees_outer: bool,
    /// What the block takes from outside, in the order of its parameters.
    pub(super) captures: Vec<Operand>,
    pub(super) opsets: Arc<Opsets>,
    /// Put before the names of steps: the call path of functions.
    pub(super) prefix: String,
}

/// A model while it is imported.
pub(crate) struct Importer<'m> {
    pub(crate) graph: Graph,
    pub(crate) functions: Functions<'m>,
    pub(crate) files: &'m dyn ExternalFiles,
    /// Index of the model's own file.
    pub(crate) model_source: u32,
    pub(crate) external_sources: HashMap<String, u32>,
    pub(super) frames: Vec<Frame>,
    pub(super) refusals: Vec<Refusal>,
    pub(super) depth: usize,
    pub(super) unnamed_nodes: usize,
    /// Inputs whose defaults a caller may override.
    pub(super) overridable: &'m [String],
    /// Such inputs, by name, until their defaults are met.
    pub(super) overriding: HashMap<String, Operand>,
}

impl<'m> Importer<'m> {
    pub(crate) fn new(graph: Graph, functions: Functions<'m>, files: &'m dyn ExternalFiles, model_source: u32) -> Self {
        Importer {
            graph,
            functions,
            files,
            model_source,
            external_sources: HashMap::new(),
            frames: Vec::new(),
            refusals: Vec::new(),
            depth: 0,
            unnamed_nodes: 0,
            overridable: &[],
            overriding: HashMap::new(),
        }
    }

    /// The graph, or every node that could not be lowered.
    pub(crate) fn finish(self) -> Result<Graph, ImportError> {
        if self.refusals.is_empty() { Ok(self.graph) } else { Err(ImportError::Refused(self.refusals)) }
    }

    pub(super) fn push_frame(&mut self, opsets: Arc<Opsets>, sees_outer: bool, prefix: String) -> BlockIndex {
        let block = self.graph.add_block();
        self.frames.push(Frame { names: HashMap::new(), block, sees_outer, captures: Vec::new(), opsets, prefix });
        block
    }

    pub(super) fn add_parameter(&mut self, fact: Fact, name: &str) -> Operand {
        let value = self.graph.add_value(fact, Some(name));
        let frame = self.frame();
        let block = frame.block;
        frame.names.insert(name.to_string(), Binding::Operand(Operand::Value(value)));
        self.graph.block_mut(block).parameters.push(value);
        Operand::Value(value)
    }

    pub(super) fn frame(&mut self) -> &mut Frame {
        // Frames are pushed before anything is lowered and popped after.
        self.frames.last_mut().expect("a frame is open while nodes are lowered")
    }

    pub(super) fn refuse(&mut self, node: &NodeProto, label: Arc<str>, error: &LowerError) {
        let domain = canonical_domain(node.domain.as_deref()).to_string();
        let opset = self.frame().opsets.get(&domain).copied();
        let operator = node.op_type.clone().unwrap_or_default();
        self.refusals.push(Refusal { domain, operator, opset, node: label.to_string(), reason: error.to_string() });
        self.bind_failed(node);
    }

    pub(super) fn bind_failed(&mut self, node: &NodeProto) {
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            self.frame().names.insert(name.clone(), Binding::Failed);
        }
    }

    pub(super) fn bind_outputs(&mut self, node: &NodeProto, outputs: &[Operand], label: Arc<str>) {
        for (index, name) in node.output.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            match outputs.get(index).copied().unwrap_or(Operand::Absent) {
                Operand::Absent => {
                    let error = LowerError::Unsupported(format!("output {index} (`{name}`)"));
                    return self.refuse(node, label, &error);
                }
                operand => {
                    self.name_operand(operand, name);
                    self.frame().names.insert(name.clone(), Binding::Operand(operand));
                }
            }
        }
    }

    /// Remember the first ONNX name of a value or constant.
    pub(super) fn name_operand(&mut self, operand: Operand, name: &str) {
        let slot = match operand {
            Operand::Value(value) => &mut self.graph.value_mut(value).name,
            Operand::Constant(constant) => &mut self.graph.constants[constant.0 as usize].name,
            Operand::Absent => return,
        };
        slot.get_or_insert_with(|| Arc::from(name));
    }

    pub(crate) fn push_step(&mut self, step: Step) {
        let block = self.frame().block;
        self.graph.block_mut(block).steps.push(step);
    }

    /// What a name stands for in the innermost frame; a value of an outer block becomes a parameter of every block
    /// between.
    pub(super) fn resolve(&mut self, name: &str) -> Option<Binding> {
        let innermost = self.frames.len() - 1;
        let mut found = innermost;
        let mut binding = loop {
            if let Some(&binding) = self.frames[found].names.get(name) {
                break binding;
            }
            if !self.frames[found].sees_outer || found == 0 {
                return None;
            }
            found -= 1;
        };
        for index in found + 1..=innermost {
            let Binding::Operand(operand @ Operand::Value(value)) = binding else { return Some(binding) };
            // A graph that is lowered in place of its node shares the block of the node.
            if self.frames[index].block == self.frames[index - 1].block {
                continue;
            }
            let fact = self.graph.value(value).fact.clone();
            let inner = self.graph.add_value(fact, Some(name));
            let frame = &mut self.frames[index];
            frame.captures.push(operand);
            binding = Binding::Operand(Operand::Value(inner));
            frame.names.insert(name.to_string(), binding);
            let block = frame.block;
            self.graph.block_mut(block).parameters.push(inner);
        }
        Some(binding)
    }
}
