//! Elementwise steps as scalar programs, and programs one after the other.

use crate::ir::{Graph, Operand, Step, ValueId};
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::scalar::{Scalar, bits_of_scalar, scalars};
use ipuc_formats::ops::{Argument, BinaryFunction, Cast, Clamp, Function, Op, Program};
use std::sync::Arc;

/// Steps of a joined program: what it computes with stays in the second-level cache.
const MOST_STEPS: usize = 48;

/// Operands of a joined program, so that few streams of memory are read at once.
const MOST_OPERANDS: usize = 16;

/// What is computed of each element, and of what.
#[derive(Debug, Clone)]
pub(super) struct Elements {
    /// With one result.
    pub(super) program: Program,
    /// Operands that the program reads, all of which broadcast to the result.
    pub(super) operands: Vec<Operand>,
    /// Extents of the result.
    pub(super) dims: Vec<Dim>,
    /// Names of the nodes, each once, in the order in which they compute.
    names: Vec<Arc<str>>,
}

/// Floats that programs compute in f32.
pub(super) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Types that programs have loops for and fusion takes; integers are mostly shapes, which other passes follow.
fn is_fused(dtype: DType) -> bool {
    is_float(dtype) || dtype == DType::Bool
}

/// How an operand is read.
enum Source {
    Operand(Operand),
    Constant(Argument),
}

/// The only element of a constant.
fn single(graph: &Graph, operand: Operand) -> Option<(DType, Scalar)> {
    let Operand::Constant(id) = operand else { return None };
    let tensor = graph.constant(id).tensor().filter(|tensor| tensor.count() == 1)?;
    Some((tensor.dtype(), *scalars(tensor).ok()?.first()?))
}

fn constant(dtype: DType, value: Scalar) -> Option<Argument> {
    Some(Argument::Constant(dtype, bits_of_scalar(dtype, value)?))
}

impl Elements {
    /// An elementwise step as a program; `None` where it is none, or of types that are not fused.
    pub(super) fn of(graph: &Graph, step: &Step) -> Option<Elements> {
        let &[result] = step.results.as_slice() else { return None };
        let fact = &graph.value(result).fact;
        let (to, dims) = (fact.dtype().filter(|&dtype| is_fused(dtype))?, fact.dims()?.to_vec());
        let types: Option<Vec<DType>> = step
            .operands
            .iter()
            .filter(|operand| **operand != Operand::Absent)
            .map(|&operand| graph.fact(operand)?.dtype().filter(|&dtype| is_fused(dtype)))
            .collect();
        let names = if step.name.is_empty() { Vec::new() } else { vec![step.name.clone()] };
        if let Op::Map(map) = &step.op {
            let fused = map.program.steps.iter().all(|step| is_fused(step.to)) && map.program.results.len() == 1;
            let (program, operands) = (map.program.clone(), step.operands.clone());
            return (fused && types.is_some()).then_some(Elements { program, operands, dims, names });
        }
        let function = function(step, &types?)?;
        let sources = sources(graph, step, &function, &dims)?;
        let (mut program, mut operands) = (Program::default(), Vec::new());
        let arguments = sources.into_iter().map(|source| match source {
            Source::Constant(argument) => argument,
            Source::Operand(operand) => read(&mut operands, 0, operand),
        });
        let arguments = arguments.collect();
        let computed = program.push(function, arguments, to);
        program.results.push(computed);
        Some(Elements { program, operands, dims, names })
    }

    /// A program that belongs to a step of another kind, over its operands.
    pub(super) fn of_product(program: Program, operands: Vec<Operand>, dims: Vec<Dim>, name: &Arc<str>) -> Elements {
        let names = if name.is_empty() { Vec::new() } else { vec![name.clone()] };
        Elements { program, operands, dims, names }
    }

    /// The names of its nodes, as one.
    pub(super) fn name(&self) -> Arc<str> {
        self.names.join(" + ").into()
    }

    /// The type of its result.
    pub(super) fn dtype(&self, graph: &Graph) -> Option<DType> {
        match *self.program.results.first()? {
            Argument::Step(step) => Some(self.program.steps.get(usize::from(step))?.to),
            Argument::Operand(operand) => graph.fact(*self.operands.get(usize::from(operand))?)?.dtype(),
            Argument::Constant(dtype, _) => Some(dtype),
            Argument::Input => None,
        }
    }

    /// Itself over `value`, which `first` computes, as one program. The operands of `first` keep their places, and the first
    /// `own` of them are not the program's; `None` where it would be too long.
    pub(super) fn after(&self, value: ValueId, first: &Elements, own: usize) -> Option<Elements> {
        let mut joined = first.clone();
        let computed = *first.program.results.first()?;
        let shift = u16::try_from(first.program.steps.len()).ok()?;
        let places: Vec<Argument> = self
            .operands
            .iter()
            .map(|&operand| match operand {
                Operand::Value(read) if read == value => computed,
                operand => read(&mut joined.operands, own, operand),
            })
            .collect();
        let moved = |argument: Argument| match argument {
            Argument::Operand(operand) => places[usize::from(operand)],
            Argument::Step(step) => Argument::Step(step + shift),
            other @ (Argument::Input | Argument::Constant(..)) => other,
        };
        for step in &self.program.steps {
            let arguments = step.arguments.iter().map(|&argument| moved(argument)).collect();
            joined.program.push(step.function.clone(), arguments, step.to);
        }
        joined.program.results = self.program.results.iter().map(|&result| moved(result)).collect();
        joined.names.extend(self.names.iter().filter(|name| !first.names.contains(name)).cloned());
        joined.dims.clone_from(&self.dims);
        let fits = joined.program.steps.len() <= MOST_STEPS && joined.operands.len() <= own + MOST_OPERANDS;
        fits.then_some(joined)
    }
}

/// What reads an operand: one that is there already from place `own` on, or a new one.
fn read(operands: &mut Vec<Operand>, own: usize, operand: Operand) -> Argument {
    let known = operands.iter().skip(own).position(|known| *known == operand).map(|at| at + own);
    let place = known.unwrap_or_else(|| {
        operands.push(operand);
        operands.len() - 1
    });
    // A program of too many operands is given up before its arguments could be wrong.
    Argument::Operand(u16::try_from(place).unwrap_or(u16::MAX))
}

/// The function of a step over operands of these types, where programs have a loop for it.
fn function(step: &Step, types: &[DType]) -> Option<Function> {
    let floats = types.iter().all(|&dtype| is_float(dtype));
    let same = types.iter().all(|dtype| Some(dtype) == types.first());
    if let Op::Unary(unary) = &step.op {
        return floats.then_some(Function::Unary(unary.function));
    }
    if let Op::Activation(activation) = &step.op {
        return floats.then(|| Function::Activation(activation.clone()));
    }
    if let Op::Binary(binary) = &step.op {
        let known = match binary.function {
            BinaryFunction::Add
            | BinaryFunction::Sub
            | BinaryFunction::Mul
            | BinaryFunction::Div
            | BinaryFunction::Min
            | BinaryFunction::Max
            | BinaryFunction::Prelu
            | BinaryFunction::Pow => floats,
            BinaryFunction::And | BinaryFunction::Or | BinaryFunction::Xor => types == [DType::Bool; 2],
            BinaryFunction::Modulo
            | BinaryFunction::Remainder
            | BinaryFunction::BitAnd
            | BinaryFunction::BitOr
            | BinaryFunction::BitXor
            | BinaryFunction::ShiftLeft
            | BinaryFunction::ShiftRight => false,
        };
        return (known && same).then_some(Function::Binary(binary.function));
    }
    if let Op::Compare(compare) = &step.op {
        return (floats && same).then_some(Function::Compare(compare.relation));
    }
    if let Op::Select(_) = &step.op {
        return (types.first() == Some(&DType::Bool) && types.len() == 3).then_some(Function::Select);
    }
    if let Op::Clamp(_) = &step.op {
        return floats.then_some(Function::Clamp);
    }
    if let Op::Cast(cast) = &step.op {
        return (*cast == Cast::to(cast.to) && is_float(cast.to)).then_some(Function::Cast);
    }
    None
}

/// What the function of a step is applied to.
fn sources(graph: &Graph, step: &Step, function: &Function, dims: &[Dim]) -> Option<Vec<Source>> {
    // Without a constant the others must still broadcast to the result.
    let carried = step.operands.iter().any(|&operand| {
        let fact = graph.fact(operand);
        single(graph, operand).is_none() && fact.is_some_and(|fact| fact.dims() == Some(dims))
    });
    let inlined = |operand: Operand| {
        let (dtype, value) = single(graph, operand).filter(|_| carried)?;
        constant(dtype, value).map(Source::Constant)
    };
    if *function == Function::Clamp {
        let x = *step.operands.first()?;
        let dtype = graph.fact(x)?.dtype()?;
        let bound = |at: usize, absent: Scalar| match step.operands.get(at) {
            None | Some(Operand::Absent) => constant(dtype, absent).map(Source::Constant),
            Some(&operand) => {
                let (_, value) = single(graph, operand)?;
                if value.to_f64().is_nan() { None } else { inlined(operand) }
            }
        };
        let [least, greatest] = Clamp::absent_bounds(dtype);
        return Some(vec![Source::Operand(x), bound(1, least)?, bound(2, greatest)?]);
    }
    if *function == Function::Binary(BinaryFunction::Pow) {
        let (base, exponent) = (*step.operands.first()?, *step.operands.get(1)?);
        return Some(vec![Source::Operand(base), inlined(exponent)?]);
    }
    let source = |&operand: &Operand| match operand {
        Operand::Absent => None,
        operand => Some(inlined(operand).unwrap_or(Source::Operand(operand))),
    };
    step.operands.iter().map(source).collect()
}
