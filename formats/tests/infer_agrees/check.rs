//! One case: the reference against `infer` with several degrees of knowledge.

use super::Case;
use super::random::Random;
use ipuc_formats::dim::{Bindings, Dim, DimError, Ranges};
use ipuc_formats::fact::{Contents, Fact, MAXIMUM_FOLLOWED_ELEMENTS, Shape, integers};
use ipuc_formats::ops::{InferContext, NoBlocks, Obligation, ReferenceContext, Relation, StepFacts, TypeError};
use ipuc_formats::tensor::Tensor;
use ipuc_formats::value::Value;

/// Times that each case is asked with other knowledge.
const ASKED: usize = 8;

/// Whether the reference takes the operands; panics where what is inferred is not true. With `refusable` operands the
/// type rule may refuse what the reference would take.
pub fn agrees(case: &Case, refusable: bool, random: &mut Random) -> bool {
    let values: Vec<Option<Value>> = case.operands.iter().map(|operand| operand.clone().map(Value::from)).collect();
    let mut blocks = NoBlocks;
    let reference = case.op.operator().reference(&values, &mut ReferenceContext::new(&mut blocks));
    let constants: Vec<Option<Fact>> =
        case.operands.iter().map(|operand| operand.clone().map(Fact::constant)).collect();
    let results = reference.as_ref().ok().filter(|_| !(refusable && infer(case, &constants).0.is_err()));
    for asked in 0..ASKED {
        let mut known = Knowledge::default();
        let facts: Vec<Option<Fact>> = case
            .operands
            .iter()
            .map(|operand| {
                let tensor = operand.as_ref()?;
                Some(if asked == 0 { Fact::constant(tensor.clone()) } else { known.fact(tensor, random) })
            })
            .collect();
        // Invalid operands may be found out or not, but must not panic.
        known.check(case, &facts, results);
    }
    results.is_some()
}

fn infer(case: &Case, facts: &[Option<Fact>]) -> (Result<Vec<Fact>, TypeError>, Vec<Obligation>) {
    let ranges = Ranges::default();
    let mut blocks = NoBlocks;
    let mut context = InferContext::new("step", &ranges, &mut blocks);
    let inferred = case.op.operator().infer(facts, &mut context);
    (inferred, context.obligations)
}

/// Symbols and what they stand for.
#[derive(Default)]
struct Knowledge {
    bindings: Bindings,
    named: Vec<(i64, Dim)>,
}

impl Knowledge {
    /// A number as a number, or as a symbol; equal numbers often share one.
    fn dim(&mut self, value: i64, random: &mut Random) -> Dim {
        if value < 0 || random.once_in(3) {
            return Dim::known(value);
        }
        let shared = self.named.iter().find(|(known, _)| *known == value).map(|(_, dim)| dim.clone());
        if let Some(shared) = shared.filter(|_| !random.once_in(3)) {
            return shared;
        }
        let name = format!("s{}", self.named.len());
        self.bindings.insert(name.as_str(), value);
        let dim = Dim::symbol(&name);
        self.named.push((value, dim.clone()));
        dim
    }

    /// Something that is true of a tensor.
    fn fact(&mut self, tensor: &Tensor, random: &mut Random) -> Fact {
        let dtype = tensor.dtype();
        if random.once_in(8) {
            return Fact::tensor(dtype, Shape::Unranked);
        }
        let contents = integers(tensor).filter(|elements| elements.len() <= MAXIMUM_FOLLOWED_ELEMENTS);
        match (random.below(4), contents) {
            (0, _) => Fact::constant(tensor.clone()),
            (1 | 2, Some(elements)) => {
                // A symbol that is 0 would mean "as it is" to Reshape.
                let dims = elements.iter().map(|&element| match element {
                    ..=0 => Dim::known(element),
                    _ => self.dim(element, random),
                });
                let dims = dims.collect();
                Fact::of_dims(dtype, Shape::known(tensor.shape()), dims)
            }
            _ => {
                let dims = tensor.shape().iter().map(|&extent| self.dim(extent as i64, random));
                Fact::tensor(dtype, dims.collect::<Vec<_>>())
            }
        }
    }

    fn check(&mut self, case: &Case, facts: &[Option<Fact>], results: Option<&Vec<Value>>) {
        let (inferred, obligations) = infer(case, facts);
        if let Ok(outputs) = &inferred {
            // Work and loops are stated of whatever is typed.
            let facts = StepFacts::new("step", facts, outputs);
            assert!(!case.op.spaces(&facts).is_empty(), "`{}`", case.op);
            case.op.work(&facts);
        }
        let Some(results) = results else { return };
        let about = || {
            let kinds: Vec<String> = facts.iter().map(|fact| format!("{fact:?}")).collect();
            format!("`{}` of {:?}\nknown: {}\ninferred: {inferred:?}", case.op, case.operands, kinds.join("\n       "))
        };
        let inferred = inferred.as_ref().unwrap_or_else(|error| panic!("refused: {error}\n{}", about()));
        for obligation in &obligations {
            assert!(self.holds(obligation), "obligation {obligation:?}\n{}", about());
        }
        assert_eq!(inferred.len(), results.len(), "number of results\n{}", about());
        for (fact, result) in inferred.iter().zip(results) {
            let tensor = result.as_tensor().unwrap();
            if let Err(difference) = self.describes(fact, tensor) {
                panic!("{difference}; the result is {tensor:?}\n{}", about());
            }
        }
    }

    /// The value of an expression; a symbol that the operator named itself takes the value that it must have.
    fn evaluate(&mut self, dim: &Dim, actual: i64) -> Result<Option<i64>, String> {
        if let Some(name) = dim.as_symbol()
            && self.bindings.get(name).is_none()
        {
            self.bindings.insert(name, actual);
        }
        match dim.evaluate(&self.bindings) {
            Ok(value) => Ok(Some(value)),
            Err(DimError::Unbound { .. }) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    fn describes(&mut self, fact: &Fact, tensor: &Tensor) -> Result<(), String> {
        let (dtype, shape) = fact.kind.as_tensor().ok_or("not a tensor")?;
        if dtype != tensor.dtype() {
            return Err(format!("type {dtype}"));
        }
        if let Some(dims) = shape.dims() {
            if dims.len() != tensor.rank() {
                return Err(format!("rank {}", dims.len()));
            }
            for (dim, &extent) in dims.iter().zip(tensor.shape()) {
                let value = self.evaluate(dim, extent as i64)?;
                if value.is_some_and(|value| value != extent as i64) {
                    return Err(format!("extent {dim} is {value:?}, not {extent}"));
                }
            }
        }
        match &fact.contents {
            None => Ok(()),
            Some(Contents::Constant(constant)) if constant == tensor => Ok(()),
            Some(Contents::Constant(constant)) => Err(format!("contents {constant:?}")),
            Some(Contents::Dims(dims)) => {
                let elements = integers(tensor).ok_or("contents of a tensor without integers")?;
                if dims.len() != elements.len() {
                    return Err(format!("{} elements", dims.len()));
                }
                for (dim, &element) in dims.iter().zip(&elements) {
                    let value = self.evaluate(dim, element)?;
                    if value.is_some_and(|value| value != element) {
                        return Err(format!("element {dim} is {value:?}, not {element}"));
                    }
                }
                Ok(())
            }
        }
    }

    fn holds(&self, obligation: &Obligation) -> bool {
        let sides = (obligation.left.evaluate(&self.bindings), obligation.right.evaluate(&self.bindings));
        match sides {
            (Ok(left), Ok(right)) => match obligation.relation {
                Relation::Equal => left == right,
                Relation::Broadcastable => left == right || left == 1 || right == 1,
                Relation::AtMost => left <= right,
                Relation::Multiple => left == 0 || (right != 0 && left % right == 0),
            },
            (Err(DimError::Unbound { .. }), _) | (_, Err(DimError::Unbound { .. })) => true,
            _ => false,
        }
    }
}
