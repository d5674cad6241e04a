//! How many zeros what a product multiplies its weight with has: measured by calibration, or zero by construction.

use crate::ir::{Block, ConstantId, Graph, Operand, Step, ValueId};
use crate::moments::Calibration;
use crate::options::Options;
use ipuc_formats::dim::Bindings;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{ActivationFunction, Argument, BinaryFunction, Class, Function, Op, Program, UnaryFunction};
use std::collections::{BTreeMap, HashMap};

/// Steps that are followed from a product backwards.
const MOST_STEPS: usize = 64;

/// What is known of the zeros of the activations of a weight.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Known {
    /// The share of zeros in the examples of a calibration.
    Measured(f64),
    /// Many are zero whatever the input: what makes them so.
    Constructed(&'static str),
    /// Nothing.
    Unknown,
}

/// What all products with a weight multiply it with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Activations {
    pub(super) known: Known,
    /// The most rows of a product, as far as sizes are known; open sizes count 1.
    pub(super) rows: u64,
    /// Whether some of them are codes with a scale for each block of inputs.
    pub(super) in_blocks: bool,
    /// Whether all of them are f32.
    are_floats: bool,
    /// With a threshold: which of those that are measured to be zero are only small.
    pub(super) small: Option<Small>,
}

/// Activations that are taken as zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Small {
    /// The greatest magnitude of them.
    pub(super) threshold: f32,
    /// The share of the squares of all activations that they have.
    pub(super) squares: f64,
}

/// The activations of each weight that only products read whose rows lie one behind the other.
pub(super) fn of_weights(graph: &Graph, options: &Options) -> BTreeMap<ConstantId, Activations> {
    let Options { calibration, dimensions, sparse_threshold, .. } = options;
    let mut found: BTreeMap<ConstantId, Activations> = BTreeMap::new();
    for index in graph.reachable_blocks() {
        let block = graph.block(index);
        let mut sources = None;
        for step in &block.steps {
            let (Op::Matmul(product), [Operand::Value(x), Operand::Constant(weight), ..]) =
                (&step.op, step.operands.as_slice())
            else {
                continue;
            };
            if product.transpose_a || graph.constant(*weight).shape.len() != 2 {
                continue;
            }
            let sources = sources.get_or_insert_with(|| Sources::new(graph, block));
            let known = match calibration.moments.get(&x.0) {
                Some(moments) if moments.rows() > 0 => Known::Measured(moments.zero_share()),
                Some(_) | None => sources.of_value(*x, MOST_STEPS).map_or(Known::Unknown, Known::Constructed),
            };
            let in_blocks = product.arithmetic.dynamic_block().is_some_and(|block| block > 0);
            let are_floats = graph.value(*x).fact.dtype() == Some(DType::F32);
            let own = Activations { known, rows: rows(graph, *x, dimensions), in_blocks, are_floats, small: None };
            let all = found.entry(*weight).or_insert(own);
            all.rows = all.rows.max(own.rows);
            all.in_blocks |= own.in_blocks;
            all.are_floats &= own.are_floats;
            all.known = fewer(all.known, own.known);
        }
    }
    for (weight, activations) in &mut found {
        if let Some(share) = calibration.zero_share(weight.0) {
            activations.known = Known::Measured(share);
        }
        if let Some(share) = *sparse_threshold
            && activations.are_floats
            && let Some((zeros, small)) = small(calibration, weight.0, share)
        {
            (activations.known, activations.small) = (Known::Measured(zeros), Some(small));
        }
    }
    found
}

/// The share of activations of a weight that are zero or small, of the product where there are fewest; `None` where nothing was
/// counted of one, or nothing is small.
fn small(calibration: &Calibration, weight: u32, share: f64) -> Option<(f64, Small)> {
    let spreads: Option<Vec<_>> =
        calibration.factors.get(&weight)?.iter().map(|value| calibration.spreads.get(value)).collect();
    let spreads = spreads?;
    let threshold = spreads.iter().map(|spread| spread.threshold(share)).reduce(f32::min)?;
    let below = || spreads.iter().map(|spread| spread.below(threshold));
    let zeros = below().map(|[zeros, _]| zeros).reduce(f64::min)?;
    let squares = below().map(|[_, squares]| squares).fold(0.0, f64::max);
    (threshold > 0.0).then_some((zeros, Small { threshold, squares }))
}

/// Of two products the one whose activations have fewer zeros.
fn fewer(one: Known, other: Known) -> Known {
    match (one, other) {
        (Known::Unknown, _) | (_, Known::Unknown) => Known::Unknown,
        (Known::Measured(one), Known::Measured(other)) => Known::Measured(one.min(other)),
        (measured @ Known::Measured(_), Known::Constructed(_)) | (Known::Constructed(_), measured) => measured,
    }
}

fn rows(graph: &Graph, x: ValueId, dimensions: &Bindings) -> u64 {
    let Some([rows @ .., _]) = graph.value(x).fact.kind.as_tensor().and_then(|(_, shape)| shape.dims()) else {
        return 1;
    };
    let extent =
        |dim: &ipuc_formats::dim::Dim| dim.evaluate(dimensions).ok().and_then(|extent| u64::try_from(extent).ok());
    rows.iter().map(|dim| extent(dim).unwrap_or(1)).fold(1, u64::saturating_mul)
}

/// The steps of a block by what they define.
struct Sources<'a> {
    graph: &'a Graph,
    steps: HashMap<ValueId, (&'a Step, usize)>,
}

/// Why elements are zero, where many are.
type Reason = Option<&'static str>;

impl<'a> Sources<'a> {
    fn new(graph: &'a Graph, block: &'a Block) -> Sources<'a> {
        let results =
            block.steps.iter().flat_map(|step| step.results.iter().zip(0..).map(move |(id, at)| (*id, (step, at))));
        Sources { graph, steps: results.collect() }
    }

    fn of_operand(&self, operand: Option<&Operand>, steps: usize) -> Reason {
        match operand {
            Some(Operand::Value(id)) => self.of_value(*id, steps),
            Some(Operand::Constant(_) | Operand::Absent) | None => None,
        }
    }

    /// Why many elements of a value are zero; `steps` are followed at most.
    fn of_value(&self, id: ValueId, steps: usize) -> Reason {
        let (&(step, at), Some(left)) = (self.steps.get(&id)?, steps.checked_sub(1)) else { return None };
        let operand = |index: usize| self.of_operand(step.operands.get(index), left);
        if let Some(program) = program(step) {
            return self.of_program(program, at, step, left);
        }
        if let Some(function) = function(&step.op) {
            let arguments: Vec<Reason> = (0..step.operands.len()).map(operand).collect();
            let constants: Vec<Option<f64>> = step.operands.iter().map(|operand| self.scalar(operand)).collect();
            return of_function(&function, &arguments, &constants);
        }
        // What only moves elements, along with zeros.
        let moves = matches!(
            step.op,
            Op::Reshape(_)
                | Op::Flatten(_)
                | Op::Squeeze(_)
                | Op::Unsqueeze(_)
                | Op::Transpose(_)
                | Op::Expand(_)
                | Op::Split(_)
                | Op::Slice(_)
                | Op::Tile(_)
                | Op::Gather(_)
                | Op::GatherElements(_)
                | Op::GatherNd(_)
                | Op::Dropout(_)
        );
        if moves {
            return operand(0);
        }
        if matches!(step.op, Op::OneHot(_)) {
            return Some("one-hot codes");
        }
        if matches!(step.op, Op::Trilu(_)) {
            return Some("a triangle");
        }
        // The chosen elements of a top-k, written into zeros.
        let scatters = matches!(step.op, Op::ScatterElements(_) | Op::ScatterNd(_));
        (scatters && self.is_zero(step.operands.first())).then_some("top-k")
    }

    fn of_program(&self, program: &Program, result: usize, step: &Step, left: usize) -> Reason {
        let mut known: Vec<Reason> = Vec::with_capacity(program.steps.len());
        for own in &program.steps {
            let of = |argument: &Argument| self.of_argument(argument, &known, step, left);
            let arguments: Vec<Reason> = own.arguments.iter().map(of).collect();
            let constants: Vec<Option<f64>> = own
                .arguments
                .iter()
                .map(|argument| match argument {
                    Argument::Constant(dtype, bits) => constant(*dtype, *bits),
                    Argument::Operand(operand) => {
                        step.operands.get(usize::from(*operand)).and_then(|one| self.scalar(one))
                    }
                    Argument::Input | Argument::Step(_) => None,
                })
                .collect();
            known.push(of_function(&own.function, &arguments, &constants));
        }
        self.of_argument(program.results.get(result)?, &known, step, left)
    }

    fn of_argument(&self, argument: &Argument, known: &[Reason], step: &Step, left: usize) -> Reason {
        match argument {
            Argument::Step(index) => known.get(usize::from(*index)).copied().flatten(),
            Argument::Operand(index) => self.of_operand(step.operands.get(usize::from(*index)), left),
            Argument::Input | Argument::Constant(..) => None,
        }
    }

    /// The value of a constant of one element.
    fn scalar(&self, operand: &Operand) -> Option<f64> {
        let Operand::Constant(id) = operand else { return None };
        let tensor = self.graph.constant(*id).tensor()?;
        let [value] = ipuc_formats::ops::scalar::scalars(tensor).ok()?[..] else { return None };
        Some(value.to_f64())
    }

    fn is_zero(&self, operand: Option<&Operand>) -> bool {
        let Some(Operand::Constant(id)) = operand else { return false };
        self.graph.constant(*id).tensor().is_some_and(|tensor| tensor.bytes().iter().all(|&byte| byte == 0))
    }
}

/// The program whose results are those of a step.
fn program(step: &Step) -> Option<&Program> {
    if let Op::Map(map) = &step.op {
        return Some(&map.program);
    }
    match step.op.class() {
        Class::Product(product) => product.program().filter(|program| !program.is_empty()),
        Class::Elementwise(_)
        | Class::Moves(_)
        | Class::Computes(_)
        | Class::Serial(_)
        | Class::Gathers(_)
        | Class::Control(_) => None,
    }
}

/// The function of an operator that has one.
fn function(op: &Op) -> Option<Function> {
    if let Op::Unary(unary) = op {
        return Some(Function::Unary(unary.function));
    }
    if let Op::Activation(activation) = op {
        return Some(Function::Activation(activation.clone()));
    }
    if let Op::Binary(binary) = op {
        return Some(Function::Binary(binary.function));
    }
    if let Op::Compare(compare) = op {
        return Some(Function::Compare(compare.relation));
    }
    if let Op::Select(_) = op {
        return Some(Function::Select);
    }
    if let Op::Clamp(_) = op {
        return Some(Function::Clamp);
    }
    if let Op::Cast(_) = op {
        return Some(Function::Cast);
    }
    None
}

fn constant(dtype: DType, bits: u64) -> Option<f64> {
    match dtype {
        DType::F32 => u32::try_from(bits).ok().map(|bits| f64::from(f32::from_bits(bits))),
        DType::F64 => Some(f64::from_bits(bits)),
        _ => (bits == 0).then_some(0.0),
    }
}

/// Why many results of a function are zero, given why arguments are, and which are constants.
fn of_function(function: &Function, arguments: &[Reason], constants: &[Option<f64>]) -> Reason {
    let argument = |index: usize| arguments.get(index).copied().flatten();
    let is_zero = |index: usize| constants.get(index).copied().flatten() == Some(0.0);
    match function {
        Function::Unary(unary) => match unary {
            UnaryFunction::Abs
            | UnaryFunction::Neg
            | UnaryFunction::Sign
            | UnaryFunction::Sqrt
            | UnaryFunction::Erf
            | UnaryFunction::Ceil
            | UnaryFunction::Floor
            | UnaryFunction::Round
            | UnaryFunction::Sin
            | UnaryFunction::Tan
            | UnaryFunction::Asin
            | UnaryFunction::Atan
            | UnaryFunction::Sinh
            | UnaryFunction::Tanh
            | UnaryFunction::Asinh
            | UnaryFunction::Atanh => argument(0),
            UnaryFunction::Reciprocal
            | UnaryFunction::Exp
            | UnaryFunction::Log
            | UnaryFunction::Cos
            | UnaryFunction::Acos
            | UnaryFunction::Cosh
            | UnaryFunction::Acosh
            | UnaryFunction::BitNot => None,
            UnaryFunction::Not => argument(0),
            UnaryFunction::IsNan
            | UnaryFunction::IsInfinite
            | UnaryFunction::IsPositiveInfinity
            | UnaryFunction::IsNegativeInfinity => None,
        },
        Function::Activation(activation) => match activation.function {
            ActivationFunction::Relu => Some("relu"),
            ActivationFunction::ThresholdedRelu => Some("thresholded relu"),
            ActivationFunction::Shrink => Some("shrink"),
            ActivationFunction::Softsign
            | ActivationFunction::Mish
            | ActivationFunction::HardSwish
            | ActivationFunction::Gelu
            | ActivationFunction::GeluTanh
            | ActivationFunction::LeakyRelu
            | ActivationFunction::Elu
            | ActivationFunction::Celu
            | ActivationFunction::Swish
            | ActivationFunction::Selu
            | ActivationFunction::ScaledTanh => argument(0),
            ActivationFunction::Sigmoid
            | ActivationFunction::Softplus
            | ActivationFunction::HardSigmoid
            | ActivationFunction::Affine => None,
        },
        Function::Binary(binary) => match binary {
            BinaryFunction::Mul | BinaryFunction::And | BinaryFunction::BitAnd => argument(0).or(argument(1)),
            BinaryFunction::Div
            | BinaryFunction::Pow
            | BinaryFunction::Prelu
            | BinaryFunction::ShiftLeft
            | BinaryFunction::ShiftRight => argument(0),
            BinaryFunction::Max | BinaryFunction::Min if is_zero(0) || is_zero(1) => Some("relu"),
            BinaryFunction::Max | BinaryFunction::Min => argument(0).and(argument(1)),
            BinaryFunction::Add
            | BinaryFunction::Sub
            | BinaryFunction::Modulo
            | BinaryFunction::Remainder
            | BinaryFunction::Or
            | BinaryFunction::Xor
            | BinaryFunction::BitOr
            | BinaryFunction::BitXor => None,
        },
        Function::Compare(_) => Some("a mask"),
        Function::Select if is_zero(1) || is_zero(2) => Some("a mask"),
        Function::Select => argument(1).and(argument(2)),
        Function::Clamp if is_zero(1) || is_zero(2) => Some("relu"),
        Function::Clamp | Function::Cast => argument(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::text::parse;

    /// What is known of the activations of `@w`, which `steps` make of `%x`, `%y` and `@zero` as `%a`.
    fn known(steps: &str) -> Known {
        let text = format!(
            "constant @w : f32[4, 8] = hash {}\n\
             constant @zero : f32[] = f32[]:[0]\n\
             constant @half : f32[] = f32[]:[0.5]\n\
             entry \"main\"(\"x\", \"y\") -> (\"z\") = block 0\n\
             block 0(%x : f32[3, 4], %y : f32[3, 4]) {{\n{steps}  %z : f32[3, 8] = matmul %a, @w\n  return %z\n}}\n",
            "0".repeat(64)
        );
        let graph = parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let found = of_weights(&graph, &Options::default());
        let [activations] = found.values().collect::<Vec<_>>()[..] else { panic!("{found:?}") };
        assert_eq!((activations.rows, activations.in_blocks), (3, false));
        activations.known
    }

    #[test]
    fn what_makes_zeros_is_followed() {
        let relu = Known::Constructed("relu");
        assert_eq!(known("  %a : f32[3, 4] = activation function=relu %x\n"), relu);
        assert_eq!(known("  %a : f32[3, 4] = activation function=gelu %x\n"), Known::Unknown);
        assert_eq!(known("  %a : f32[3, 4] = binary function=max %x, @zero\n"), relu);
        assert_eq!(known("  %a : f32[3, 4] = binary function=max %x, @half\n"), Known::Unknown);
        let squared = "  %r : f32[3, 4] = activation function=relu %x\n  %a : f32[3, 4] = binary function=mul %r, %r\n";
        assert_eq!(known(squared), relu);
        let gated = "  %r : f32[3, 4] = activation function=relu %x\n  %a : f32[3, 4] = binary function=mul %y, %r\n";
        assert_eq!(known(gated), relu);
        let shifted = "  %r : f32[3, 4] = activation function=relu %x\n  %a : f32[3, 4] = binary function=add %y, %r\n";
        assert_eq!(known(shifted), Known::Unknown);
        let fused = "  %a : f32[3, 4] = map program=[\"relu $0 : f32\", \"mul %0 $1 : f32\", \"return %1\"] %x, %y\n";
        assert_eq!(known(fused), relu);
        let masked = "  %m : bool[3, 4] = compare relation=less %x, @half\n  %a : f32[3, 4] = select %m, %x, @zero\n";
        assert_eq!(known(masked), Known::Constructed("a mask"));
    }
}
