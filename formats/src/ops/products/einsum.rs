//! Sums of products over named axes: ONNX `Einsum` (opsets 12, 28).
//!
//! Equations are parsed each time they are needed: the text is the operator. Axes under an ellipsis are aligned at
//! their ends and broadcast; so do equal letters of different operands. A letter twice in one term is a diagonal.

use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape};
use crate::ops::broadcast::broadcast_dims;
use crate::ops::loops::{self, At, Loops};
use crate::ops::products::accumulate::{Accumulator, accumulators, require_same_type};
use crate::ops::scalar::from_scalars;
use crate::ops::windows::{for_each_index, listed, value_error};
use crate::ops::{
    Arithmetic, Computes, InferContext, Operator, Picked, Product, Program, ReferenceContext, ReferenceError, Space,
    StepFacts, TypeError, VectorClass, WeightMatrix, each, tensor, tensor_operand,
};
use crate::tensor::{Tensor, TensorError, element_count, strides};
use crate::value::Value;

attributes! {
    /// `equation` over any number of operands `[..]` to `[..]`.
    pub struct Einsum revision 1 {
        /// Such as `bij,bjk->bik`.
        1 since 1 => equation: String,
    }
}

/// An axis of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    /// An axis under the ellipsis, counted from its end.
    Ellipsis(usize),
    /// A letter.
    Letter(char),
}

/// A term as written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Term {
    before: Vec<char>,
    /// Letters after an ellipsis, where there is one.
    after: Option<Vec<char>>,
}

impl Term {
    fn parse(text: &str) -> Option<Term> {
        let letters = |text: &str| -> Option<Vec<char>> {
            text.chars()
                .filter(|&letter| letter != ' ')
                .map(|letter| letter.is_ascii_alphabetic().then_some(letter))
                .collect()
        };
        match text.split_once("...") {
            None => Some(Term { before: letters(text)?, after: None }),
            Some((before, after)) => Some(Term { before: letters(before)?, after: Some(letters(after)?) }),
        }
    }

    fn letters(&self) -> impl Iterator<Item = char> + '_ {
        self.before.iter().chain(self.after.iter().flatten()).copied()
    }

    /// The label of each axis, with this many axes under the ellipsis.
    fn labels(&self, covered: usize) -> Vec<Label> {
        let mut labels: Vec<Label> = self.before.iter().copied().map(Label::Letter).collect();
        if let Some(after) = &self.after {
            labels.extend((0..covered).rev().map(Label::Ellipsis));
            labels.extend(after.iter().copied().map(Label::Letter));
        }
        labels
    }
}

/// A parsed equation.
struct Equation {
    operands: Vec<Term>,
    /// The right-hand side; `None` where it is implicit.
    result: Option<Term>,
}

impl Equation {
    fn parse(text: &str) -> Result<Equation, TypeError> {
        let malformed =
            || value_error("`equation`", format!("\"{text}\""), "terms of letters with at most one ellipsis");
        let (left, right) = match text.split_once("->") {
            None => (text, None),
            Some((left, right)) => (left, Some(right)),
        };
        let operands = left.split(',').map(Term::parse).collect::<Option<Vec<Term>>>().ok_or_else(malformed)?;
        let result = right.map(|right| Term::parse(right).ok_or_else(malformed)).transpose()?;
        if let Some(result) = &result {
            let letters: Vec<char> = result.letters().collect();
            let known = |letter: &char| operands.iter().any(|term| term.letters().any(|own| own == *letter));
            let unique = |(index, letter): (usize, &char)| !letters[..index].contains(letter);
            if !letters.iter().all(known) || !letters.iter().enumerate().all(unique) {
                return Err(malformed());
            }
        }
        Ok(Equation { operands, result })
    }

    /// Letters of the result where it is implicit: those that occur once, in ASCII order.
    fn implicit(&self) -> Term {
        let all: Vec<char> = self.operands.iter().flat_map(Term::letters).collect();
        let mut once: Vec<char> =
            all.iter().copied().filter(|letter| all.iter().filter(|other| *other == letter).count() == 1).collect();
        once.sort_unstable();
        match self.operands.iter().any(|term| term.after.is_some()) {
            true => Term { before: Vec::new(), after: Some(once) },
            false => Term { before: once, after: None },
        }
    }

    fn result(&self) -> Term {
        self.result.clone().unwrap_or_else(|| self.implicit())
    }

    /// Labels of the axes of operand `operand` of this rank.
    fn labels(&self, operand: usize, rank: usize) -> Result<Vec<Label>, TypeError> {
        let term = &self.operands[operand];
        let letters = term.letters().count();
        let covered = rank.checked_sub(letters).filter(|&covered| covered == 0 || term.after.is_some());
        let expected = if term.after.is_some() { format!("at least {letters}") } else { letters.to_string() };
        Ok(term.labels(covered.ok_or(TypeError::Rank { operand, expected, found: rank })?))
    }

    /// Whether an operand has an axis of this label, as far as its term says.
    fn may_have(&self, operand: usize, label: Label) -> bool {
        match label {
            Label::Letter(letter) => self.operands[operand].letters().any(|own| own == letter),
            Label::Ellipsis(_) => self.operands[operand].after.is_some(),
        }
    }

    fn check_count(&self, found: usize) -> Result<(), TypeError> {
        if found == self.operands.len() {
            return Ok(());
        }
        Err(TypeError::OperandCount { expected: self.operands.len().to_string(), found })
    }
}

/// Labels in order of first occurrence with their extents.
type Extents<T> = Vec<(Label, T)>;

fn find<T: Clone>(extents: &Extents<T>, label: Label) -> Option<T> {
    extents.iter().find(|(own, _)| *own == label).map(|(_, extent)| extent.clone())
}

impl Einsum {
    /// Labels with symbolic extents, and whether the rank of every operand is known.
    fn dims(
        equation: &Equation,
        inputs: &[Option<Fact>],
        context: &mut InferContext<'_>,
    ) -> Result<(Extents<Dim>, bool), TypeError> {
        let mut extents: Extents<Dim> = Vec::new();
        let mut complete = true;
        for operand in 0..inputs.len() {
            let (_, shape) = tensor_operand(inputs, operand)?;
            let Shape::Ranked(dims) = shape else {
                complete = false;
                continue;
            };
            let labels = equation.labels(operand, dims.len())?;
            for (axis, (label, dim)) in labels.iter().zip(dims).enumerate() {
                if let Some(earlier) = labels[..axis].iter().position(|other| other == label) {
                    context.require_equal(&dims[earlier], dim, "extents of a diagonal")?;
                    continue;
                }
                match extents.iter_mut().find(|(own, _)| own == label) {
                    Some((_, extent)) => *extent = broadcast_dims(extent, dim, context)?,
                    None => extents.push((*label, dim.clone())),
                }
            }
        }
        Ok((extents, complete))
    }
}

fn covered<T>(extents: &Extents<T>) -> usize {
    let covered = |label: &Label| match label {
        Label::Ellipsis(index) => index + 1,
        Label::Letter(_) => 0,
    };
    extents.iter().map(|(label, _)| covered(label)).max().unwrap_or(0)
}

impl Operator for Einsum {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let equation = Equation::parse(&self.equation)?;
        equation.check_count(inputs.len())?;
        let (dtype, _) = tensor_operand(inputs, 0)?;
        require_einsum_type(dtype)?;
        for operand in 1..inputs.len() {
            require_same_type(operand, tensor_operand(inputs, operand)?.0, dtype)?;
        }
        let (extents, complete) = Einsum::dims(&equation, inputs, context)?;
        let result = equation.result();
        let shape = if complete || result.after.is_none() {
            let labels = result.labels(covered(&extents));
            // An extent that is or may be 1 broadcasts to that of an operand which nothing is known of.
            let settled = |label: Label, dim: &Dim| {
                let unknown = |operand: usize| inputs[operand].as_ref().is_some_and(|fact| fact.rank().is_none());
                let may_differ = (0..inputs.len()).any(|operand| unknown(operand) && equation.may_have(operand, label));
                !may_differ || dim.as_known().is_some_and(|extent| extent != 1)
            };
            let dim = |label: &Label| {
                let dim = find(&extents, *label).filter(|dim| settled(*label, dim));
                dim.unwrap_or_else(|| context.fresh(&label_name(*label)))
            };
            Shape::Ranked(labels.iter().map(dim).collect())
        } else {
            Shape::Unranked
        };
        Ok(vec![Fact::tensor(dtype, shape)])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let equation = Equation::parse(&self.equation)?;
        equation.check_count(inputs.len())?;
        let operands = (0..inputs.len()).map(|operand| tensor(inputs, operand)).collect::<Result<Vec<_>, _>>()?;
        let dtype = operands.first().map(|tensor| tensor.dtype()).unwrap_or(DType::F32);
        require_einsum_type(dtype)?;
        for (operand, tensor) in operands.iter().enumerate() {
            require_same_type(operand, tensor.dtype(), dtype)?;
        }
        let shapes: Vec<&[usize]> = operands.iter().map(|tensor| tensor.shape()).collect();
        let plan = EinsumPlan::new(&equation, &shapes)?;
        let result = if dtype.is_float() {
            plan.sum::<f64>(&operands, &mut context.macs)?
        } else {
            plan.sum::<i128>(&operands, &mut context.macs)?
        };
        Ok(vec![result.into()])
    }
}

impl Computes for Einsum {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        self.labelled_spaces(facts)
    }

    fn vector(&self, facts: &StepFacts<'_>) -> Vec<(VectorClass, Dim)> {
        each(&if facts.inputs.len() == 1 { facts.elements(0) } else { Dim::ZERO }, &[(VectorClass::Arithmetic, 1)])
    }
}

impl Product for Einsum {
    fn weight(&self, _operand: usize, _shape: &[u64]) -> Option<WeightMatrix> {
        None
    }

    fn arithmetic(&self) -> Arithmetic {
        Arithmetic::default()
    }

    fn picked(&self) -> Option<Picked> {
        None
    }

    fn program(&self) -> Option<&Program> {
        None
    }

    fn sums(&self, _facts: &StepFacts<'_>) -> Option<DType> {
        None
    }
}

impl Einsum {
    /// How operands of these shapes are walked.
    ///
    /// # Errors
    /// [`TypeError`] where the equation is malformed, or does not fit the shapes.
    pub fn resolve(&self, shapes: &[&[usize]]) -> Result<EinsumPlan, TypeError> {
        let equation = Equation::parse(&self.equation)?;
        equation.check_count(shapes.len())?;
        EinsumPlan::new(&equation, shapes)
    }

    /// A loop for each label; those that the result does not have are summed over.
    fn labelled_spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let macs = facts.inputs.len().saturating_sub(1) as i64;
        let whole = || loops::unknown(facts, macs);
        let Ok(equation) = Equation::parse(&self.equation) else { return whole() };
        let (ranges, mut blocks) = (crate::dim::Ranges::default(), crate::ops::NoBlocks);
        let mut context = InferContext::new(facts.step, &ranges, &mut blocks);
        let Ok((extents, true)) = Einsum::dims(&equation, facts.inputs, &mut context) else { return whole() };
        let results = equation.result().labels(covered(&extents));
        let operands: Option<Vec<(Vec<Label>, &[Dim])>> = (0..facts.inputs.len())
            .map(|operand| {
                let dims = facts.dims(operand)?;
                Some((equation.labels(operand, dims.len()).ok()?, dims))
            })
            .collect();
        let Some(operands) = operands else { return whole() };
        let mut nest = Loops::new(facts);
        for (label, extent) in &extents {
            // A diagonal is on two axes of an operand: it is needed whole. So is an axis that is, or may be, repeated.
            let place = |operand: usize| {
                let (labels, dims) = &operands[operand];
                let mut axes = (0..labels.len()).filter(|&axis| labels[axis] == *label);
                let (axis, None) = (axes.next()?, axes.next()) else { return None };
                (dims[axis] == *extent).then(|| loops::operand(operand, axis))
            };
            let places: Vec<At> = (0..operands.len()).filter_map(place).collect();
            nest = match results.iter().position(|result| result == label) {
                Some(axis) => nest.parallel(extent, places.into_iter().chain([loops::result(0, axis)])),
                // A part of a sum over a diagonal alone would be no part of the operand.
                None if places.is_empty() => nest.serial(extent),
                None => nest.reduced(extent, places),
            };
        }
        vec![nest.products(macs)]
    }
}

fn label_name(label: Label) -> String {
    match label {
        Label::Letter(letter) => format!("extent.{letter}"),
        Label::Ellipsis(index) => format!("extent.ellipsis.{index}"),
    }
}

fn require_einsum_type(dtype: DType) -> Result<(), TypeError> {
    let integer = dtype.is_integer() && !dtype.is_sub_byte();
    if integer || matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
        return Ok(());
    }
    let expected = "an integer of at least 8 bits, f16, bf16, f32 or f64".to_string();
    Err(TypeError::ElementType { operand: 0, expected, found: dtype })
}

/// How an equation of known shapes walks its operands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EinsumPlan {
    /// Extents of all labels, those of the result first.
    pub extents: Vec<usize>,
    /// Shape of the result.
    pub shape: Vec<usize>,
    /// For each operand its step along each label; 0 where it has one element along it, or none at all.
    pub steps: Vec<Vec<usize>>,
}

impl EinsumPlan {
    fn new(equation: &Equation, operands: &[&[usize]]) -> Result<EinsumPlan, TypeError> {
        let mut extents: Extents<usize> = Vec::new();
        let mut labelled = Vec::new();
        for (operand, shape) in operands.iter().enumerate() {
            let labels = equation.labels(operand, shape.len())?;
            for (axis, (&label, &extent)) in labels.iter().zip(*shape).enumerate() {
                let diagonal = labels[..axis].contains(&label);
                match extents.iter_mut().find(|(own, _)| *own == label) {
                    None => extents.push((label, extent)),
                    Some((_, own)) if *own == extent => {}
                    Some((_, own)) if *own == 1 && !diagonal => *own = extent,
                    Some(_) if extent == 1 && !diagonal => {}
                    Some((_, own)) => {
                        return Err(TypeError::Dimension {
                            subject: format!("extents of `{}`", label_name(label)),
                            left: own.to_string(),
                            right: extent.to_string(),
                        });
                    }
                }
            }
            labelled.push((labels, strides(shape), *shape));
        }
        let mut order = equation.result().labels(covered(&extents));
        let shape: Vec<usize> = order.iter().map(|&label| find(&extents, label).unwrap_or(1)).collect();
        order
            .extend(extents.iter().map(|(label, _)| *label).filter(|label| !order.contains(label)).collect::<Vec<_>>());
        let step = |(labels, steps, shape): &(Vec<Label>, Vec<usize>, &[usize]), label: Label| -> usize {
            let own = labels.iter().zip(steps).zip(*shape).filter(|((own, _), extent)| **own == label && **extent != 1);
            own.map(|((_, step), _)| *step).sum()
        };
        Ok(EinsumPlan {
            extents: order.iter().map(|&label| find(&extents, label).unwrap_or(1)).collect(),
            shape,
            steps: labelled.iter().map(|operand| order.iter().map(|&label| step(operand, label)).collect()).collect(),
        })
    }

    fn sum<T: Accumulator>(&self, operands: &[&Tensor], macs: &mut u64) -> Result<Tensor, ReferenceError> {
        let arithmetic = Arithmetic::default();
        let dtype = operands.first().map_or(DType::F32, |tensor| tensor.dtype());
        let too_large = || TensorError::TooLarge { dtype, shape: self.shape.clone() };
        let count = element_count(&self.shape).ok_or_else(too_large)?;
        let elements =
            operands.iter().map(|tensor| accumulators::<T>(tensor, &arithmetic)).collect::<Result<Vec<_>, _>>()?;
        let mut sums = listed(dtype, &self.shape)?;
        sums.resize(count, T::ZERO);
        let own_steps = strides(&self.shape);
        for_each_index(&self.extents, |index| {
            let flat = |steps: &[usize]| index.iter().zip(steps).map(|(index, step)| index * step).sum::<usize>();
            let mut factors = elements.iter().zip(&self.steps).map(|(elements, steps)| elements[flat(steps)]);
            let Some(first) = factors.next() else { return };
            let product = factors.fold(first, |product, factor| {
                *macs += 1;
                product.times(factor)
            });
            let sum = &mut sums[flat(&own_steps)];
            *sum = sum.plus(product, &arithmetic);
        });
        from_scalars(dtype, &self.shape, &sums.into_iter().map(T::scalar).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;
    use crate::ops::testing::macs;

    fn run(equation: &str, operands: &[Tensor]) -> Result<Tensor, ReferenceError> {
        let operator = Einsum { equation: equation.to_string() };
        let inputs: Vec<Option<Value>> = operands.iter().map(|tensor| Some(tensor.clone().into())).collect();
        let mut blocks = NoBlocks;
        let mut context = ReferenceContext::new(&mut blocks);
        let result = operator.reference(&inputs, &mut context)?.remove(0);
        let facts: Vec<Option<Fact>> = inputs.iter().flatten().map(|value| Some(Fact::of(value.kind()))).collect();
        let ranges = Ranges::default();
        let mut no_blocks = NoBlocks;
        let outputs = operator.infer(&facts, &mut InferContext::new("einsum", &ranges, &mut no_blocks))?;
        assert_eq!(outputs[0].kind, result.kind(), "{equation}");
        assert_eq!(macs(&operator, &facts, &outputs), Dim::known(context.macs as i64), "{equation}");
        Ok(result.as_tensor().unwrap().clone())
    }

    fn sequence(shape: &[usize]) -> Tensor {
        let count: usize = shape.iter().product();
        Tensor::from_elements(shape, &(0..count as i64).collect::<Vec<_>>()).unwrap()
    }

    fn elements(equation: &str, operands: &[Tensor]) -> Vec<i64> {
        run(equation, operands).unwrap().elements::<i64>().unwrap().to_vec()
    }

    #[test]
    fn products_sums_and_transposes() {
        let (a, b) = (sequence(&[2, 3]), sequence(&[3, 2]));
        assert_eq!(elements("ij,jk->ik", &[a.clone(), b.clone()]), [10, 13, 28, 40]);
        assert_eq!(elements("ij, jk", &[a.clone(), b]), [10, 13, 28, 40]);
        assert_eq!(elements("ij->ji", std::slice::from_ref(&a)), [0, 3, 1, 4, 2, 5]);
        assert_eq!(elements("ba", std::slice::from_ref(&a)), [0, 3, 1, 4, 2, 5]);
        assert_eq!(elements("ij->i", std::slice::from_ref(&a)), [3, 12]);
        assert_eq!(elements("ij->", &[a]), [15]);
        assert_eq!(elements("i,i,i->", &[sequence(&[3]), sequence(&[3]), sequence(&[3])]), [9]);
        assert_eq!(elements("->", &[Tensor::scalar(5i64)]), [5]);
    }

    #[test]
    fn diagonals_and_ellipses() {
        assert_eq!(elements("...ii->...i", &[sequence(&[2, 2, 2])]), [0, 3, 4, 7]);
        assert_eq!(elements("ii", &[sequence(&[2, 2])]), [3]);
        let batched = run("...ij,...jk", &[sequence(&[4, 1, 2, 3]), sequence(&[5, 3, 2])]).unwrap();
        assert_eq!(batched.shape(), [4, 5, 2, 2]);
        assert_eq!(elements("i...,i...->...", &[sequence(&[2, 2]), sequence(&[2, 1])]), [2, 3]);
        let halves = run("b...,b->b...", &[sequence(&[2, 3]), sequence(&[1])]).unwrap();
        assert_eq!(halves.shape(), [2, 3]);
    }

    #[test]
    fn malformed_equations_are_refused() {
        let a = sequence(&[2, 3]);
        for equation in ["ij->ik", "ij->ii", "i1", "ijk", "i", "ij,jk", "....ij", "ij->->", "ii"] {
            assert!(run(equation, std::slice::from_ref(&a)).is_err(), "{equation}");
        }
        assert_eq!(
            run("ij,jk->ik", &[a.clone(), a]).unwrap_err().to_string(),
            "extents of `extent.j`: 3 does not fit 2"
        );
    }

    #[test]
    fn extents_stay_symbolic_and_ranks_may_be_unknown() {
        let ranges = Ranges::default();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("einsum", &ranges, &mut blocks);
        let known = Fact::tensor(DType::F32, vec![Dim::symbol("b"), Dim::symbol("h"), Dim::known(4)]);
        let unknown = Fact::tensor(DType::F32, Shape::Unranked);
        let operator = Einsum { equation: "bhd,bd->bh".to_string() };
        let facts = operator.infer(&[Some(known), Some(unknown)], &mut context).unwrap();
        // An extent of `b` that is 1 would broadcast; `h` is in the known operand only.
        assert_eq!(facts[0].dims().unwrap(), [Dim::symbol("einsum.extent.b"), Dim::symbol("h")]);
    }
}
