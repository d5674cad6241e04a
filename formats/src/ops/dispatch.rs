//! What callers ask of any operator, answered by its class.

use crate::attribute::BlockIndex;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::classes::{Class, Picked, Product};
use crate::ops::facets::{Body, Runs};
use crate::ops::loops::{beside_result, broadcast, serial};
use crate::ops::program::Program;
use crate::ops::space::{AxisKind, Space};
use crate::ops::step_facts::StepFacts;
use crate::ops::work::{Gathered, Precision, Work, add_counts, each};
use crate::ops::{Activations, Effect, Op, Read, WeightMatrix};

impl Op {
    /// The blocks that it runs, in stream order.
    pub fn bodies(&self) -> Vec<Body> {
        match self.class() {
            Class::Control(control) => control.bodies(),
            Class::Elementwise(_)
            | Class::Moves(_)
            | Class::Gathers(_)
            | Class::Computes(_)
            | Class::Product(_)
            | Class::Serial(_) => Vec::new(),
        }
    }

    /// The blocks of [`Op::bodies`].
    pub fn blocks(&self) -> Vec<BlockIndex> {
        self.bodies().into_iter().map(|body| body.block).collect()
    }

    /// The same operator over other blocks, in the order of [`Op::bodies`]; `None` for another number of them.
    pub fn with_bodies(&self, blocks: &[BlockIndex]) -> Option<Op> {
        match self.class() {
            Class::Control(control) => control.with_bodies(blocks),
            Class::Elementwise(_)
            | Class::Moves(_)
            | Class::Gathers(_)
            | Class::Computes(_)
            | Class::Product(_)
            | Class::Serial(_) => blocks.is_empty().then(|| self.clone()),
        }
    }

    /// How the weight behind an operand is read.
    pub fn read(&self, operand: usize) -> Read {
        match self.class() {
            Class::Control(control) => control.read(operand),
            Class::Gathers(gathers) => gathers.read(operand),
            Class::Product(product) => match product.picked() {
                Some(picked) if picked.operand == operand => Read::Groups,
                Some(_) | None => Read::Once,
            },
            Class::Elementwise(_) | Class::Moves(_) | Class::Computes(_) | Class::Serial(_) => Read::Once,
        }
    }

    fn product(&self) -> Option<&dyn Product> {
        match self.class() {
            Class::Product(product) => Some(product),
            Class::Elementwise(_)
            | Class::Moves(_)
            | Class::Gathers(_)
            | Class::Computes(_)
            | Class::Serial(_)
            | Class::Control(_) => None,
        }
    }

    /// The operand of a product of which only matrices are read that another operand picks; `None` where there is none.
    pub fn picked(&self) -> Option<Picked> {
        self.product()?.picked()
    }

    /// What it does besides computing, without what the blocks do that it runs.
    pub fn effect(&self) -> Effect {
        match self.class() {
            Class::Serial(serial) => serial.effect(),
            Class::Elementwise(_)
            | Class::Moves(_)
            | Class::Gathers(_)
            | Class::Computes(_)
            | Class::Product(_)
            | Class::Control(_) => Effect::Pure,
        }
    }

    /// How the weight of this shape behind an operand is a matrix of inputs and outputs of a product; such weights are
    /// stored in panels. `None` for operands that are not.
    pub fn weight_matrix(&self, operand: usize, shape: &[u64]) -> Option<WeightMatrix> {
        self.product()?.weight(operand, shape)
    }

    /// Whether it is a layer that goes along sequences with a state (LSTM, GRU, RNN), whose weights are read at each step.
    pub fn is_recurrent(&self) -> bool {
        matches!(self, Op::Lstm(_) | Op::Gru(_) | Op::Rnn(_))
    }

    /// Operand whose bytes result 0 has unchanged (a reshape): no copy is needed.
    pub fn view_of(&self) -> Option<usize> {
        match self.class() {
            Class::Moves(moves) => moves.view_of(),
            Class::Elementwise(_)
            | Class::Gathers(_)
            | Class::Computes(_)
            | Class::Product(_)
            | Class::Serial(_)
            | Class::Control(_) => None,
        }
    }

    /// With these operands and this result, result 0 is operand 0 unchanged (a transpose that moves nothing). The
    /// caller checks that their types are equal.
    pub fn is_identity(&self, inputs: &[Option<Fact>], result: &Fact) -> bool {
        match self.class() {
            Class::Moves(moves) => moves.is_identity(inputs, result),
            Class::Elementwise(_)
            | Class::Gathers(_)
            | Class::Computes(_)
            | Class::Product(_)
            | Class::Serial(_)
            | Class::Control(_) => false,
        }
    }

    /// The loops over elements; none for control flow, whose bodies have their own.
    pub fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        match self.class() {
            Class::Elementwise(_) => broadcast(facts, facts.inputs.len(), |_| AxisKind::Parallel),
            Class::Moves(moves) => moves.spaces(facts),
            Class::Gathers(gathers) => gathers.spaces(facts),
            Class::Computes(computes) => computes.spaces(facts),
            Class::Product(product) => match product.program() {
                Some(program) => beside_result(product.spaces(facts), facts, program),
                None => product.spaces(facts),
            },
            Class::Serial(_) => serial(facts),
            Class::Control(_) => Vec::new(),
        }
    }

    /// The work of one run, without that of the blocks that it runs: those are in [`Work::runs`].
    pub fn work(&self, facts: &StepFacts<'_>) -> Work {
        let operands: Vec<Dim> = (0..facts.inputs.len()).map(|operand| facts.operand_bytes(operand)).collect();
        let mut work = Work {
            macs: Vec::new(),
            vector: Vec::new(),
            stored: stored_bytes(self, facts),
            moved: Dim::sum(&operands) + facts.result_bytes(),
            gathered: None,
            runs: Vec::new(),
        };
        match self.class() {
            Class::Elementwise(elementwise) => {
                add_counts(&mut work.vector, each(&facts.result_elements(0), &elementwise.per_element(facts)));
            }
            Class::Moves(moves) => work.moved = moves.moved(facts),
            Class::Gathers(gathers) => {
                let gathered = gathered(facts, gathers.parts(facts));
                let data = &gathered.parts * &gathered.part_bytes;
                // Operand 0 is read in parts only.
                work.moved = Dim::sum(operands.get(1..).unwrap_or(&[])) + facts.result_bytes();
                if !is_stored(facts, 0) {
                    work.moved = work.moved + data;
                } else if gathers.read(0) == Read::Rows {
                    work.gathered = Some(gathered);
                }
            }
            Class::Computes(computes) => add_counts(&mut work.vector, computes.vector(facts)),
            Class::Product(product) => {
                let precision = precision(product, facts);
                let of_space = |space: &Space| (precision, space.points() * space.macs);
                add_counts(&mut work.macs, product.spaces(facts).iter().filter(|space| space.macs != 0).map(of_space));
                add_counts(&mut work.vector, product.vector(facts));
                work.gathered = product.picked().and_then(|picked| picked_matrices(facts, picked));
                let elements = facts.result_elements(0);
                let cost = |program: &Program| program.per_element(product.sums(facts), facts);
                let costs = product.program().map(cost).unwrap_or_default();
                add_counts(&mut work.vector, each(&elements, &costs));
            }
            Class::Serial(serial) => add_counts(&mut work.vector, serial.vector(facts)),
            Class::Control(control) => {
                let bodies = control.bodies().into_iter().enumerate();
                work.runs =
                    bodies.map(|(index, body)| (body.block, runs(body, index, control.iterations(facts)))).collect();
            }
        }
        work
    }
}

/// How often a body runs.
fn runs(body: Body, index: usize, iterations: Dim) -> Dim {
    match body.runs {
        Runs::Repeated => iterations,
        // Both branches of a step together run once.
        Runs::AtMostOnce if index == 0 => iterations,
        Runs::AtMostOnce => 1 - iterations,
    }
}

fn is_stored(facts: &StepFacts<'_>, operand: usize) -> bool {
    facts.stored.get(operand).is_some_and(Option::is_some)
}

/// Bytes of weights that are read as a whole.
fn stored_bytes(op: &Op, facts: &StepFacts<'_>) -> Dim {
    let whole = facts.stored.iter().enumerate().filter(|(operand, _)| match op.read(*operand) {
        Read::Once | Read::Repeated | Read::Nonzero => true,
        Read::Rows | Read::Groups => false,
    });
    whole.filter_map(|(_, stored)| stored.as_ref()).fold(Dim::ZERO, |sum, stored| sum + &stored.bytes)
}

/// Parts of equal size along axis 0 of operand 0 as it is stored.
fn gathered(facts: &StepFacts<'_>, parts: Dim) -> Gathered {
    let bytes = match facts.stored.first() {
        Some(Some(stored)) => stored.bytes.clone(),
        Some(None) | None => facts.operand_bytes(0),
    };
    // All parts together have the elements of the result.
    let elements = facts.elements(0);
    let part = facts.result_elements(0).divide_exact(&parts);
    let count = part.and_then(|part| elements.divide_exact(&part)).unwrap_or_else(|| facts.fresh("operand0.parts"));
    Gathered { parts, part_bytes: bytes.divide_exact(&count).unwrap_or_else(|| bytes.ceil_div(&count)) }
}

/// Matrices of a stored operand of a product: each that is picked is read once, and there are no more than all.
fn picked_matrices(facts: &StepFacts<'_>, picked: Picked) -> Option<Gathered> {
    let stored = facts.stored.get(picked.operand)?.as_ref()?;
    let count = facts.dims(picked.operand)?.first()?;
    let part_bytes = stored.bytes.divide_exact(count).unwrap_or_else(|| stored.bytes.ceil_div(count));
    Some(Gathered { parts: Dim::min(&facts.elements(picked.index), count), part_bytes })
}

/// The element types of a product's multiply-accumulates.
fn precision(product: &dyn Product, facts: &StepFacts<'_>) -> Precision {
    let arithmetic = product.arithmetic();
    let of = |operand| facts.stored_type(operand).unwrap_or(DType::F32);
    let (own, weight) = (of(0), of(1));
    let computed = facts.operand(0).and_then(|fact| fact.kind.as_tensor()).map_or(own, |(dtype, _)| dtype);
    if computed.is_integer() {
        let result = facts.outputs.first().and_then(|fact| fact.kind.as_tensor());
        return Precision { activation: computed, weight, accumulator: result.map_or(computed, |(dtype, _)| dtype) };
    }
    // The default arithmetic takes floats as they are and sums them in f32, or wider where they are.
    let wide = computed == DType::F64 && arithmetic.is_default();
    let accumulator = if wide { DType::F64 } else { arithmetic.accumulator };
    match arithmetic.activation {
        Activations::Rounded(_) if arithmetic.is_default() => Precision { activation: computed, weight, accumulator },
        Activations::Rounded(activation) => Precision { activation, weight, accumulator },
        // Codes are summed as integers.
        Activations::Dynamic { dtype, .. } => Precision { activation: dtype, weight, accumulator: DType::I32 },
    }
}
