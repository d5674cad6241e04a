//! Iteration: ONNX `Loop` (all opsets).
//!
//! The body is a block; what it uses from outside are explicit operands. Where a carried value changes its shape from
//! one iteration to the next, the body is typed with dimensions that stand for any of them.

use crate::attribute::BlockIndex;
use crate::attributes;
use crate::dim::Dim;
use crate::dtype::DType;
use crate::fact::{Fact, Shape, Type};
use crate::ops::control::if_::{check_condition, present, present_values, single_bool};
use crate::ops::control::join::{outside, symbols_of, widen, without_shapes};
use crate::ops::parts;
use crate::ops::{
    Body, Control, InferContext, Op, Operator, Read, ReferenceContext, ReferenceError, Runs, StepFacts, TypeError,
    integers, tensor_operand,
};
use crate::tensor::{Tensor, TensorError};
use crate::value::Value;

attributes! {
    /// Runs `body` again and again. Operands: trip count (i64, one element) or absent, condition (bool, one element)
    /// or absent, the carried values, the captures. Parameters of the body: iteration (i64 `[]`), condition, carried
    /// values, captures. Its results: condition, carried values, scan outputs. Results: the carried values after the
    /// last iteration, each scan output stacked along a new axis 0.
    ///
    /// It ends after `trip count` iterations or when the condition is false; without the operand the condition that the
    /// body gives is ignored, as ONNX says. A carried value may start as an optional of what the body gives: the body
    /// takes it as an optional each time, the result is what it holds.
    pub struct Loop revision 1 {
        /// Block that is repeated.
        1 since 1 => body: BlockIndex,
        /// Number of carried values.
        2 since 1 => carried: i64,
    }
}

/// Operands before the carried values.
const FIRST_CARRIED: usize = 2;

/// ONNX ignores the condition that the body gives where the operand is left out.
fn endless() -> TypeError {
    TypeError::Unsupported("a loop without trip count and condition, which never ends,".to_string())
}

impl Loop {
    /// Operands of the carried values and of the captures.
    fn ranges(&self, count: usize) -> Result<(std::ops::Range<usize>, std::ops::Range<usize>), TypeError> {
        let end = usize::try_from(self.carried).ok().and_then(|carried| carried.checked_add(FIRST_CARRIED));
        match end {
            Some(end) if end <= count => Ok((FIRST_CARRIED..end, end..count)),
            Some(_) | None => {
                let expected = format!("a trip count, a condition and at least {} carried values", self.carried);
                Err(TypeError::OperandCount { expected, found: count })
            }
        }
    }

    /// Number of iterations as a dimension.
    fn trips(&self, inputs: &[Option<Fact>], next: &Fact, context: &InferContext<'_>) -> Dim {
        let known = |fact: &Fact| fact.elements_as_integers().and_then(|elements| elements.first().copied());
        let condition = inputs.get(1).and_then(Option::as_ref);
        if condition.is_some_and(|condition| known(condition) == Some(0)) {
            return Dim::ZERO;
        }
        let runs_through = condition.is_none_or(|condition| known(condition) == Some(1) && known(next) == Some(1));
        let trips = inputs.first().and_then(Option::as_ref).and_then(Fact::elements_as_dims);
        match trips.as_deref() {
            Some([trips]) if runs_through => Dim::max(trips, &Dim::ZERO).simplify(context.ranges),
            Some(_) | None => context.fresh("iterations"),
        }
    }
}

/// Type a body whose first results come back as its parameters, until the facts of those are stable: facts of the
/// results, and of the carried parameters. `before` and `after` surround the carried parameters.
pub(super) fn infer_carried(
    body: BlockIndex,
    mut carried: Vec<Fact>,
    surround: (&[Fact], &[Fact]),
    context: &mut InferContext<'_>,
) -> Result<(Vec<Fact>, Vec<Fact>), TypeError> {
    let (before, after) = surround;
    loop {
        let parameters: Vec<Fact> = before.iter().chain(&carried).chain(after).cloned().collect();
        let results = context.blocks.infer_block(body, &parameters)?;
        let next = widen(&carried, &results, context.step)?;
        if next == carried {
            return Ok((results, carried));
        }
        carried = next;
    }
}

/// The type of scan outputs: elements of this type stacked along `axis` of the result.
pub(super) fn stacked(kind: &Type, axis: i64, extent: &Dim) -> Result<Type, TypeError> {
    let Some((dtype, shape)) = kind.as_tensor() else {
        return Err(TypeError::Block(format!("a scan output is {kind}, not a tensor")));
    };
    let Shape::Ranked(dims) = shape else { return Ok(kind.clone()) };
    let mut dims = dims.clone();
    let axis = crate::ops::normalize_axis(axis, dims.len() + 1)?;
    dims.insert(axis, extent.clone());
    Ok(Type::tensor(dtype, dims))
}

/// Scan outputs of all iterations joined; `kind` is what an element is where there was no iteration.
pub(super) fn stack_elements(elements: &[Tensor], axis: i64, kind: &Type) -> Result<Tensor, ReferenceError> {
    let Some(first) = elements.first() else {
        let empty = match stacked(kind, axis, &Dim::ZERO)?.as_tensor() {
            Some((dtype, Shape::Ranked(dims))) => {
                let extent = |dim: &Dim| dim.as_known().and_then(|extent| usize::try_from(extent).ok()).unwrap_or(0);
                (dtype, dims.iter().map(extent).collect())
            }
            Some((dtype, Shape::Unranked)) => (dtype, vec![0]),
            None => (DType::F32, vec![0]),
        };
        return Ok(match empty {
            (DType::String, shape) => Tensor::from_strings(&shape, Vec::new())?,
            (dtype, shape) => Tensor::zeros(dtype, &shape)?,
        });
    };
    let axis = crate::ops::normalize_axis(axis, first.rank() + 1)?;
    let all: Vec<&Tensor> = elements.iter().collect();
    parts::stack(&all, axis)?.ok_or_else(|| {
        let other = elements.iter().find(|element| {
            element.shape() != first.shape() || element.dtype() != first.dtype() //
        });
        let left = Type::of_tensor(first).to_string();
        let right = other.map_or_else(|| left.clone(), |other| Type::of_tensor(other).to_string());
        TypeError::Dimension { subject: "scan output of two iterations".to_string(), left, right }.into()
    })
}

/// The tensors among results of a body that are collected.
pub(super) fn collect_scans(
    results: impl Iterator<Item = Value>,
    scans: &mut Vec<Vec<Tensor>>,
) -> Result<(), ReferenceError> {
    for (index, value) in results.enumerate() {
        let Value::Tensor(element) = value else {
            return Err(TypeError::Block(format!("scan output {index} is {}, not a tensor", value.kind())).into());
        };
        if scans.len() <= index {
            scans.push(Vec::new());
        }
        let list = &mut scans[index];
        let (dtype, count) = (element.dtype(), list.len().saturating_add(1));
        let shape = || [&[count], element.shape()].concat();
        list.try_reserve(1).map_err(|_| TensorError::Memory { dtype, shape: shape() })?;
        list.push(element);
    }
    Ok(())
}

impl Operator for Loop {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (carried_range, capture_range) = self.ranges(inputs.len())?;
        let scalar = Fact::tensor(DType::Bool, Vec::new());
        let condition = match (&inputs[0], &inputs[1]) {
            (None, None) => {
                return Err(endless());
            }
            (_, Some(condition)) => {
                check_condition(inputs, 1)?;
                Fact::of(condition.kind.clone())
            }
            (Some(_), None) => scalar,
        };
        if inputs[0].is_some() {
            check_trip_count(inputs)?;
        }
        let outer = symbols_of(inputs.iter().flatten());
        let mut initial = vec![condition];
        initial.extend(present(inputs, carried_range)?.into_iter().map(|fact| Fact::of(fact.kind)));
        let iteration = [Fact::tensor(DType::I64, Vec::new())];
        let captures = present(inputs, capture_range)?;
        let (results, carried) = infer_carried(self.body, initial, (&iteration, &captures), context)?;

        let iterations = self.trips(inputs, &results[0], context);
        let mut facts = Vec::with_capacity(results.len() - 1);
        for (index, (fact, given)) in carried.iter().zip(&results).skip(1).enumerate() {
            let mut fresh = |axis: usize| context.fresh(&format!("result{index}.{axis}"));
            let kind = match (&fact.kind, &given.kind) {
                (kind, Type::Optional(_)) => kind,
                (Type::Optional(held), _) => held,
                (kind, _) => kind,
            };
            facts.push(Fact::of(outside(kind, &outer, &mut fresh)));
        }
        for (index, fact) in results.iter().skip(carried.len()).enumerate() {
            let mut fresh = |axis: usize| context.fresh(&format!("scan{index}.{}", axis + 1));
            facts.push(Fact::of(stacked(&outside(&fact.kind, &outer, &mut fresh), 0, &iterations)?));
        }
        Ok(facts)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (carried_range, capture_range) = self.ranges(inputs.len())?;
        let trips = match inputs[0] {
            Some(_) => integers(inputs, 0)?.first().copied(),
            None => None,
        };
        let (mut condition, has_condition) = match &inputs[1] {
            Some(condition) => (condition.clone(), true),
            None => (Tensor::scalar_bool(true).into(), false),
        };
        if trips.is_none() && !has_condition {
            return Err(endless().into());
        }
        let mut carried = present_values(inputs, carried_range)?;
        let captures = present_values(inputs, capture_range)?;
        let count = carried.len();
        let optional: Vec<bool> = carried.iter().map(|value| matches!(value, Value::Optional { .. })).collect();
        let mut scans: Vec<Vec<Tensor>> = Vec::new();
        let mut iteration = 0i64;
        while trips.is_none_or(|trips| iteration < trips) {
            if has_condition && !single_bool(&[Some(condition.clone())], 0)? {
                break;
            }
            let mut arguments = Vec::with_capacity(FIRST_CARRIED + count + captures.len());
            arguments.extend([Tensor::scalar(iteration).into(), condition]);
            arguments.append(&mut carried);
            arguments.extend(captures.iter().cloned());
            let results = context.blocks.run_block(self.body, arguments)?;
            let found = results.len();
            let mut results = results.into_iter();
            condition = results.next().ok_or_else(|| too_few(found, count))?;
            carried.extend(results.by_ref().take(count).zip(&optional).map(|(value, &optional)| match value {
                Value::Tensor(_) | Value::Sequence { .. } | Value::Map { .. } if optional => {
                    Value::Optional { element: without_shapes(&value.kind()), value: Some(Box::new(value)) }
                }
                value => value,
            }));
            if carried.len() < count {
                return Err(too_few(found, count));
            }
            collect_scans(results, &mut scans)?;
            iteration += 1;
        }
        let types = context.blocks.result_types(self.body)?;
        let mut results = Vec::with_capacity(types.len());
        for (index, value) in carried.into_iter().enumerate() {
            results.push(match (value, types.get(1 + index)) {
                (value, Some(Type::Optional(_))) => value,
                (Value::Optional { value, .. }, Some(_)) => *value.ok_or_else(nothing_held)?,
                (value, _) => value,
            });
        }
        for (index, kind) in types.iter().skip(1 + count).enumerate() {
            let elements = scans.get(index).map_or(&[][..], Vec::as_slice);
            results.push(stack_elements(elements, 0, kind)?.into());
        }
        Ok(results)
    }
}

impl Control for Loop {
    fn bodies(&self) -> Vec<Body> {
        vec![Body { block: self.body, runs: Runs::Repeated }]
    }

    fn with_bodies(&self, blocks: &[BlockIndex]) -> Option<Op> {
        let &[body] = blocks else { return None };
        Some(Op::Loop(Loop { body, carried: self.carried }))
    }

    fn read(&self, operand: usize) -> Read {
        let first_capture = usize::try_from(self.carried).map_or(usize::MAX, |carried| carried + FIRST_CARRIED);
        if operand < first_capture { Read::Once } else { Read::Repeated }
    }

    fn iterations(&self, facts: &StepFacts<'_>) -> Dim {
        // Scan outputs say it; without them the trip count, where no condition ends the loop earlier.
        let stacked = usize::try_from(self.carried).ok().and_then(|carried| facts.result(carried)?.first().cloned());
        let trips = || match (facts.operand(0).and_then(Fact::elements_as_dims).as_deref(), facts.operand(1)) {
            (Some([trips]), None) => Some(Dim::max(trips, &Dim::ZERO)),
            (Some(_) | None, _) => None,
        };
        stacked.or_else(trips).unwrap_or_else(|| facts.fresh("iterations"))
    }
}

fn nothing_held() -> TypeError {
    TypeError::Value {
        subject: "carried value of a loop without iterations".to_string(),
        found: "an empty optional".to_string(),
        expected: "a value".to_string(),
    }
}

pub(super) fn too_few(found: usize, carried: usize) -> ReferenceError {
    TypeError::Block(format!("{found} results for {carried} carried values")).into()
}

fn check_trip_count(inputs: &[Option<Fact>]) -> Result<(), TypeError> {
    let (dtype, shape) = tensor_operand(inputs, 0)?;
    if dtype != DType::I64 {
        return Err(TypeError::ElementType { operand: 0, expected: "i64".to_string(), found: dtype });
    }
    match shape.dims().and_then(|dims| Dim::product(dims).as_known()) {
        Some(1) | None => Ok(()),
        Some(_) => Err(TypeError::Value {
            subject: "shape of the trip count".to_string(),
            found: shape.to_string(),
            expected: "one element".to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::test_blocks::{TestBlock, TestBlocks};

    const OPERATOR: Loop = Loop { body: BlockIndex(0), carried: 1 };

    fn float(dims: &[Dim]) -> Fact {
        Fact::tensor(DType::F32, dims.to_vec())
    }

    /// Appends one element to the carried vector while it is shorter than 4; the scan output is its length.
    fn growing() -> TestBlocks {
        let infer = |parameters: &[Fact]| {
            let extent = parameters[2].dims().map(|dims| dims[0].clone() + 1);
            let shape = extent.map_or(Shape::Unranked, |extent| Shape::Ranked(vec![extent]));
            vec![
                Fact::tensor(DType::Bool, vec![]),
                Fact::tensor(DType::F32, shape),
                Fact::tensor(DType::I64, vec![Dim::symbol("local")]),
            ]
        };
        let run = |arguments: Vec<Value>| {
            let mut elements = arguments[2].as_tensor().unwrap().elements::<f32>().unwrap().to_vec();
            let iteration = arguments[0].as_tensor().unwrap().elements::<i64>().unwrap()[0];
            elements.push(iteration as f32);
            let count = elements.len();
            vec![
                Tensor::scalar_bool(count < 4).into(),
                Tensor::from_elements(&[count], &elements).unwrap().into(),
                Tensor::vector_i64(&[count as i64]).into(),
            ]
        };
        let types = vec![
            Type::tensor(DType::Bool, vec![]),
            Type::tensor(DType::F32, Shape::Unranked),
            Type::tensor(DType::I64, vec![Dim::known(1)]),
        ];
        TestBlocks::new(vec![TestBlock::new(infer, run).with_types(types)])
    }

    fn infer(inputs: &[Option<Fact>], blocks: &mut TestBlocks) -> Result<Vec<Fact>, TypeError> {
        let ranges = Ranges::default();
        OPERATOR.infer(inputs, &mut InferContext::new("loop", &ranges, blocks))
    }

    #[test]
    fn growing_values_are_widened() {
        let trips = Fact::tensor(DType::I64, vec![]);
        let facts = infer(&[Some(trips), None, Some(float(&[Dim::ONE]))], &mut growing()).unwrap();
        assert_eq!(facts[0], float(&[Dim::symbol("loop.result0.0")]));
        let expected = vec![Dim::symbol("loop.iterations"), Dim::symbol("loop.scan0.1")];
        assert_eq!(facts[1], Fact::tensor(DType::I64, expected));
    }

    #[test]
    fn stable_values_keep_their_facts_and_trips_are_counted() {
        let body = || {
            let infer = |parameters: &[Fact]| {
                let next = Fact::constant(Tensor::scalar_bool(true));
                vec![next, parameters[2].clone(), parameters[2].clone()]
            };
            TestBlocks::new(vec![TestBlock::new(infer, |arguments| arguments)])
        };
        let n = Dim::symbol("n");
        let trips = Fact::of_dims(DType::I64, vec![], vec![n.clone()]);
        let carried = float(&[Dim::known(3)]);
        let always = Fact::constant(Tensor::scalar_bool(true));
        let facts = infer(&[Some(trips.clone()), Some(always), Some(carried.clone())], &mut body()).unwrap();
        assert_eq!(facts, [carried.clone(), float(&[n, Dim::known(3)])]);
        let unknown = Fact::tensor(DType::Bool, vec![]);
        let facts = infer(&[Some(trips), Some(unknown), Some(carried.clone())], &mut body()).unwrap();
        assert_eq!(facts[1], float(&[Dim::symbol("loop.iterations"), Dim::known(3)]));
        assert!(matches!(infer(&[None, None, Some(carried)], &mut body()), Err(TypeError::Unsupported(_))));
    }

    #[test]
    fn an_optional_may_become_what_it_holds() {
        let held = Type::tensor(DType::F32, vec![Dim::ONE]);
        let blocks = || {
            let element = held.clone();
            let infer = move |parameters: &[Fact]| vec![parameters[1].clone(), Fact::of(element.clone())];
            let run = |arguments: Vec<Value>| {
                let Value::Optional { value, .. } = &arguments[2] else { panic!("an optional") };
                let next =
                    value.as_ref().map_or(1f32, |value| value.as_tensor().unwrap().elements::<f32>().unwrap()[0] + 1.0);
                vec![arguments[1].clone(), Tensor::from_elements(&[1], &[next]).unwrap().into()]
            };
            let types = vec![Type::tensor(DType::Bool, vec![]), held.clone()];
            TestBlocks::new(vec![TestBlock::new(infer, run).with_types(types)])
        };
        let trips = Fact::tensor(DType::I64, vec![]);
        let optional = Fact::of(Type::Optional(Box::new(Type::tensor(DType::F32, Shape::Unranked))));
        let facts = infer(&[Some(trips), None, Some(optional)], &mut blocks()).unwrap();
        assert_eq!(facts, [Fact::tensor(DType::F32, Shape::Unranked)]);
        for (trips, expected) in [(3i64, Some(3f32)), (0, None)] {
            let empty = Value::Optional { element: held.clone(), value: None };
            let mut running = blocks();
            let mut context = ReferenceContext::new(&mut running);
            let results = OPERATOR.reference(&[Some(Tensor::scalar(trips).into()), None, Some(empty)], &mut context);
            let found = results.ok().map(|results| results[0].as_tensor().unwrap().elements::<f32>().unwrap()[0]);
            assert_eq!(found, expected);
        }
    }

    fn run(trips: Option<i64>, condition: Option<bool>) -> Vec<Value> {
        let mut blocks = growing();
        let mut context = ReferenceContext::new(&mut blocks);
        let inputs = [
            trips.map(|trips| Tensor::scalar(trips).into()),
            condition.map(|condition| Tensor::scalar_bool(condition).into()),
            Some(Tensor::from_elements(&[1], &[9.0f32]).unwrap().into()),
        ];
        OPERATOR.reference(&inputs, &mut context).unwrap()
    }

    #[test]
    fn it_ends_by_condition_or_by_count() {
        let expected = |elements: &[f32], counts: &[i64]| -> Vec<Value> {
            let carried = Tensor::from_elements(&[elements.len()], elements).unwrap();
            vec![carried.into(), Tensor::from_elements(&[counts.len(), 1], counts).unwrap().into()]
        };
        assert_eq!(run(None, Some(true)), expected(&[9.0, 0.0, 1.0, 2.0], &[2, 3, 4]));
        assert_eq!(run(Some(2), Some(true)), expected(&[9.0, 0.0, 1.0], &[2, 3]));
        assert_eq!(run(Some(5), None), expected(&[9.0, 0.0, 1.0, 2.0, 3.0, 4.0], &[2, 3, 4, 5, 6]));
        assert_eq!(run(Some(5), Some(false)), expected(&[9.0], &[]));
        assert_eq!(run(Some(-1), None), expected(&[9.0], &[]));
    }
}
