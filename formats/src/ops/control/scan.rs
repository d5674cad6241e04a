//! Iteration over an axis of tensors: ONNX `Scan` (all opsets; of opset 8 without `sequence_lens`).

use crate::attribute::BlockIndex;
use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape, Type};
use crate::ops::control::if_::{present, present_values};
use crate::ops::control::join::{outside, symbols_of};
use crate::ops::control::loop_::{collect_scans, infer_carried, stack_elements, stacked, too_few};
use crate::ops::parts;
use crate::ops::{
    Body, Control, InferContext, Op, Operator, Read, ReferenceContext, ReferenceError, Runs, StepFacts, TypeError,
    normalize_axis, required, tensor,
};
use crate::tensor::Tensor;
use crate::value::Value;

attributes! {
    /// Runs `body` once for each position along an axis of the scan inputs. Operands: states, scan inputs, captures.
    /// Parameters of the body: states, one slice of each scan input (without the axis), captures. Its results: states,
    /// elements of scan outputs. Results: the last states, the elements stacked along an axis.
    pub struct Scan revision 1 {
        /// Block that is repeated.
        1 since 1 => body: BlockIndex,
        /// Number of states.
        2 since 1 => states: i64,
        /// Number of scan inputs, at least one.
        3 since 1 => scan_inputs: i64,
        /// Axis of each scan input, 0 where there is none.
        4 since 1 => input_axes: Vec<i64>,
        /// Axis of each scan output, 0 where there is none.
        5 since 1 => output_axes: Vec<i64>,
        /// 1 for each scan input that is read from its end, 0 where there is none.
        6 since 1 => input_directions: Vec<i64>,
        /// 1 for each scan output that is filled from its end, 0 where there is none.
        7 since 1 => output_directions: Vec<i64>,
        /// States, scan inputs and all results have a batch axis in front, which other axes do not count; each
        /// position of it is scanned by itself.
        8 since 1 => batched: bool,
    }
}

/// Operands by their part in a scan.
struct Operands {
    states: std::ops::Range<usize>,
    inputs: std::ops::Range<usize>,
    captures: std::ops::Range<usize>,
}

impl Scan {
    fn operands(&self, count: usize) -> Result<Operands, TypeError> {
        let states = usize::try_from(self.states).ok();
        let inputs = usize::try_from(self.scan_inputs).ok().filter(|&inputs| inputs > 0);
        let end = states.and_then(|states| states.checked_add(inputs?));
        match (states, end) {
            (Some(states), Some(end)) if end <= count => {
                Ok(Operands { states: 0..states, inputs: states..end, captures: end..count })
            }
            _ => {
                let expected = format!("at least {} states and {} scan inputs", self.states, self.scan_inputs);
                Err(TypeError::OperandCount { expected, found: count })
            }
        }
    }

    fn input_axis(&self, index: usize, rank: usize) -> Result<usize, TypeError> {
        normalize_axis(self.input_axes.get(index).copied().unwrap_or(0), rank)
    }

    fn output_axis(&self, index: usize) -> i64 {
        self.output_axes.get(index).copied().unwrap_or(0)
    }

    /// Lists that are there fit the number of inputs and outputs and hold what they may.
    fn check_lists(&self, inputs: usize, outputs: usize) -> Result<(), TypeError> {
        let lists = [
            ("input_axes", &self.input_axes, inputs, false),
            ("input_directions", &self.input_directions, inputs, true),
            ("output_axes", &self.output_axes, outputs, false),
            ("output_directions", &self.output_directions, outputs, true),
        ];
        for (name, list, expected, is_flags) in lists {
            let fits = list.is_empty() || list.len() == expected;
            if !fits || (is_flags && list.iter().any(|flag| !matches!(flag, 0 | 1))) {
                let kind = if is_flags { "flags" } else { "axes" };
                return Err(TypeError::Value {
                    subject: name.to_string(),
                    found: format!("{list:?}"),
                    expected: format!("{expected} {kind}"),
                });
            }
        }
        Ok(())
    }
}

impl Scan {
    /// The fact of a state or scan input without the batch axis, which must be the same in all.
    fn unbatched(
        &self,
        inputs: &[Option<Fact>],
        operand: usize,
        batch: &mut Option<Dim>,
        context: &mut InferContext<'_>,
    ) -> Result<Fact, TypeError> {
        let kind = required(inputs, operand)?.kind.clone();
        let Some((dtype, Shape::Ranked(dims))) = kind.as_tensor().filter(|_| self.batched) else {
            return Ok(Fact::of(kind));
        };
        let Some((first, rest)) = dims.split_first() else { return Err(TypeError::Axis { axis: 0, rank: 0 }) };
        *batch = Some(match batch.take() {
            Some(batch) => context.require_equal(&batch, first, "batches of a scan")?,
            None => first.clone(),
        });
        Ok(Fact::tensor(dtype, rest.to_vec()))
    }

    /// One scan without a batch axis.
    fn run(
        &self,
        mut states: Vec<Value>,
        inputs: &[Tensor],
        captures: &[Value],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let mut sources = Vec::with_capacity(inputs.len());
        for (index, source) in inputs.iter().enumerate() {
            sources.push((source, self.input_axis(index, source.rank())?));
        }
        let extent = common_extent(&sources)?;
        let count = states.len();
        let mut scans: Vec<Vec<Tensor>> = Vec::new();
        for position in 0..extent {
            let mut arguments = Vec::with_capacity(count + sources.len() + captures.len());
            arguments.append(&mut states);
            for (index, (source, axis)) in sources.iter().enumerate() {
                let at = if is_set(&self.input_directions, index) { extent - 1 - position } else { position };
                let slice = parts::pick(source, *axis, at)?;
                arguments.push(slice.ok_or_else(|| outside_axis(at, extent))?.into());
            }
            arguments.extend(captures.iter().cloned());
            let results = context.blocks.run_block(self.body, arguments)?;
            let found = results.len();
            let mut results = results.into_iter();
            states.extend(results.by_ref().take(count));
            if states.len() < count {
                return Err(too_few(found, count));
            }
            collect_scans(results, &mut scans)?;
        }
        let types = context.blocks.result_types(self.body)?;
        self.check_lists(inputs.len(), types.len().saturating_sub(count))?;
        let mut results = states;
        for (index, kind) in types.iter().skip(count).enumerate() {
            let mut elements = scans.get_mut(index).map(std::mem::take).unwrap_or_default();
            if is_set(&self.output_directions, index) {
                elements.reverse();
            }
            results.push(stack_elements(&elements, self.output_axis(index), kind)?.into());
        }
        Ok(results)
    }
}

fn is_set(list: &[i64], index: usize) -> bool {
    list.get(index) == Some(&1)
}

impl Operator for Scan {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let operands = self.operands(inputs.len())?;
        let outer = symbols_of(inputs.iter().flatten());
        let (mut after, mut batch): (Vec<Fact>, Option<Dim>) = (Vec::new(), None);
        let mut extent: Option<Dim> = None;
        for (index, operand) in operands.inputs.clone().enumerate() {
            let fact = self.unbatched(inputs, operand, &mut batch, context)?;
            let Some((dtype, Shape::Ranked(dims))) = fact.kind.as_tensor() else {
                after.push(fact);
                continue;
            };
            let mut slice = dims.clone();
            let found = slice.remove(self.input_axis(index, dims.len())?);
            extent = Some(match extent {
                Some(extent) => context.require_equal(&extent, &found, "lengths of two scan inputs")?,
                None => found,
            });
            after.push(Fact::tensor(dtype, slice));
        }
        let extent = extent.unwrap_or_else(|| context.fresh("iterations"));
        after.extend(present(inputs, operands.captures)?);
        let mut states = Vec::with_capacity(operands.states.len());
        for operand in operands.states {
            states.push(self.unbatched(inputs, operand, &mut batch, context)?);
        }
        let (results, states) = infer_carried(self.body, states, (&[], &after), context)?;
        self.check_lists(operands.inputs.len(), results.len() - states.len())?;

        let mut facts = Vec::with_capacity(results.len());
        for (index, fact) in states.iter().enumerate() {
            let mut fresh = |axis: usize| context.fresh(&format!("result{index}.{axis}"));
            facts.push(Fact::of(outside(&fact.kind, &outer, &mut fresh)));
        }
        for (index, fact) in results.iter().skip(states.len()).enumerate() {
            let mut fresh = |axis: usize| context.fresh(&format!("scan{index}.element{axis}"));
            let element = outside(&fact.kind, &outer, &mut fresh);
            facts.push(Fact::of(stacked(&element, self.output_axis(index), &extent)?));
        }
        if self.batched {
            let batch = batch.unwrap_or_else(|| context.fresh("batch"));
            for fact in &mut facts {
                fact.kind = stacked(&fact.kind, 0, &batch)?;
            }
        }
        Ok(facts)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let operands = self.operands(inputs.len())?;
        let captures = present_values(inputs, operands.captures.clone())?;
        let states = present_values(inputs, operands.states.clone())?;
        let sources = operands.inputs.clone().map(|operand| tensor(inputs, operand).cloned());
        let sources = sources.collect::<Result<Vec<Tensor>, ReferenceError>>()?;
        if !self.batched {
            return self.run(states, &sources, &captures, context);
        }
        let scanned: Vec<&Tensor> = (0..operands.inputs.end).map(|at| tensor(inputs, at)).collect::<Result<_, _>>()?;
        if scanned.iter().any(|tensor| tensor.rank() == 0) {
            return Err(TypeError::Axis { axis: 0, rank: 0 }.into());
        }
        let with_axis: Vec<(&Tensor, usize)> = scanned.iter().map(|&tensor| (tensor, 0)).collect();
        let mut results: Vec<Vec<Tensor>> = Vec::new();
        for position in 0..common_extent(&with_axis)? {
            let slice = |&tensor: &&Tensor| {
                parts::pick(tensor, 0, position)?.ok_or_else(|| outside_axis(position, tensor.shape()[0]))
            };
            let slices = scanned.iter().map(slice).collect::<Result<Vec<Tensor>, ReferenceError>>()?;
            let (states, sources) = slices.split_at(operands.states.len());
            let states = states.iter().cloned().map(Value::Tensor).collect();
            collect_scans(self.run(states, sources, &captures, context)?.into_iter(), &mut results)?;
        }
        if results.is_empty() {
            return Err(TypeError::Unsupported("a scan of an empty batch".to_string()).into());
        }
        let stacked = results.iter().map(|elements| {
            let kind = Type::tensor(elements[0].dtype(), Shape::Unranked);
            Ok(stack_elements(elements, 0, &kind)?.into())
        });
        stacked.collect()
    }
}

impl Control for Scan {
    fn bodies(&self) -> Vec<Body> {
        vec![Body { block: self.body, runs: Runs::Repeated }]
    }

    fn with_bodies(&self, blocks: &[BlockIndex]) -> Option<Op> {
        let &[body] = blocks else { return None };
        Some(Op::Scan(Scan { body, ..self.clone() }))
    }

    fn read(&self, operand: usize) -> Read {
        let first_capture = self.states.checked_add(self.scan_inputs).and_then(|end| usize::try_from(end).ok());
        if first_capture.is_some_and(|first| operand >= first) { Read::Repeated } else { Read::Once }
    }

    fn iterations(&self, facts: &StepFacts<'_>) -> Dim {
        let first = self.operands(facts.inputs.len()).ok().map(|operands| operands.inputs.start);
        let dims = first.and_then(|first| facts.dims(first));
        let (batch, own) = match dims {
            Some([batch, own @ ..]) if self.batched => (batch.clone(), Some(own)),
            own => (Dim::ONE, own),
        };
        let axis = own.and_then(|own| self.input_axis(0, own.len()).ok());
        let extent = own.zip(axis).map(|(own, axis)| own[axis].clone());
        batch * extent.unwrap_or_else(|| facts.fresh("iterations"))
    }
}

fn common_extent(sources: &[(&Tensor, usize)]) -> Result<usize, TypeError> {
    let mut extents = sources.iter().map(|(source, axis)| source.shape()[*axis]);
    let first = extents.next().unwrap_or(0);
    match extents.find(|&extent| extent != first) {
        None => Ok(first),
        Some(other) => Err(TypeError::Dimension {
            subject: "lengths of two scan inputs".to_string(),
            left: first.to_string(),
            right: other.to_string(),
        }),
    }
}

fn outside_axis(position: usize, extent: usize) -> ReferenceError {
    ReferenceError::OutOfRange {
        subject: "scan position".to_string(),
        found: i64::try_from(position).unwrap_or(i64::MAX),
        range: format!("0 to {extent}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::dtype::DType;
    use crate::ops::test_blocks::{TestBlock, TestBlocks};

    fn operator() -> Scan {
        Scan {
            body: BlockIndex(0),
            states: 1,
            scan_inputs: 1,
            input_axes: vec![],
            output_axes: vec![],
            input_directions: vec![],
            output_directions: vec![],
            batched: false,
        }
    }

    /// Running sum: the new state is the scan output too.
    fn running_sum() -> TestBlocks {
        let infer = |parameters: &[Fact]| vec![parameters[0].clone(), parameters[0].clone()];
        let run = |arguments: Vec<Value>| {
            let elements = |index: usize| arguments[index].as_tensor().unwrap().elements::<f32>().unwrap();
            let sum: Vec<f32> = elements(0).iter().zip(elements(1)).map(|(a, b)| a + b).collect();
            let sum: Value = Tensor::from_elements(&[sum.len()], &sum).unwrap().into();
            vec![sum.clone(), sum]
        };
        let types = vec![Type::tensor(DType::F32, vec![Dim::known(2)]); 2];
        TestBlocks::new(vec![TestBlock::new(infer, run).with_types(types)])
    }

    fn run(operator: &Scan, shape: &[usize], elements: &[f32]) -> Vec<Tensor> {
        let mut blocks = running_sum();
        let mut context = ReferenceContext::new(&mut blocks);
        let inputs = [
            Some(Tensor::from_elements(&[2], &[0.0f32, 0.0]).unwrap().into()),
            Some(Tensor::from_elements(shape, elements).unwrap().into()),
        ];
        let results = operator.reference(&inputs, &mut context).unwrap();
        results.iter().map(|value| value.as_tensor().unwrap().clone()).collect()
    }

    #[test]
    fn sums_forward_and_backward_on_any_axis() {
        let floats = |shape: &[usize], elements: &[f32]| Tensor::from_elements(shape, elements).unwrap();
        let elements = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        // The example of the ONNX page.
        let forward = run(&operator(), &[3, 2], &elements);
        assert_eq!(forward, [floats(&[2], &[9.0, 12.0]), floats(&[3, 2], &[1.0, 2.0, 4.0, 6.0, 9.0, 12.0])]);
        let backward = Scan { input_directions: vec![1], output_directions: vec![1], ..operator() };
        let backward = run(&backward, &[3, 2], &elements);
        assert_eq!(backward[1], floats(&[3, 2], &[9.0, 12.0, 8.0, 10.0, 5.0, 6.0]));
        let columns = Scan { input_axes: vec![-1], output_axes: vec![1], ..operator() };
        let columns = run(&columns, &[2, 3], &elements);
        assert_eq!(columns, [floats(&[2], &[6.0, 15.0]), floats(&[2, 3], &[1.0, 3.0, 6.0, 4.0, 9.0, 15.0])]);
        let batched = Scan { batched: true, ..operator() };
        let mut blocks = running_sum();
        let inputs = [floats(&[2, 2], &[0.0, 0.0, 10.0, 10.0]), floats(&[2, 1, 2], &[1.0, 2.0, 3.0, 4.0])];
        let inputs = inputs.map(|input| Some(input.into()));
        let results = batched.reference(&inputs, &mut ReferenceContext::new(&mut blocks)).unwrap();
        assert_eq!(results[0], floats(&[2, 2], &[1.0, 2.0, 13.0, 14.0]).into());
        assert_eq!(results[1], floats(&[2, 1, 2], &[1.0, 2.0, 13.0, 14.0]).into());
        let none = run(&operator(), &[0, 2], &[]);
        assert_eq!(none[1].shape(), [0, 2]);
    }

    #[test]
    fn scanned_axis_becomes_the_axis_of_the_output() {
        let (ranges, mut blocks) = (Ranges::default(), running_sum());
        let mut context = InferContext::new("scan", &ranges, &mut blocks);
        let (n, d) = (Dim::symbol("n"), Dim::symbol("d"));
        let state = Fact::tensor(DType::F32, vec![d.clone()]);
        let scanned = Fact::tensor(DType::F32, vec![n.clone(), d.clone()]);
        let axes = Scan { output_axes: vec![-1], ..operator() };
        let facts = axes.infer(&[Some(state.clone()), Some(scanned.clone())], &mut context).unwrap();
        assert_eq!(facts, [state.clone(), Fact::tensor(DType::F32, vec![d, n])]);
        let batched = Scan { batched: true, ..operator() };
        let with_batch = |fact: &Fact| {
            let dims = std::iter::once(Dim::symbol("batch")).chain(fact.dims().unwrap().iter().cloned());
            Fact::tensor(DType::F32, dims.collect::<Vec<_>>())
        };
        let inputs = [Some(with_batch(&state)), Some(with_batch(&scanned))];
        assert_eq!(batched.infer(&inputs, &mut context).unwrap(), [with_batch(&state), with_batch(&scanned)]);
        let wrong = Scan { output_directions: vec![2], ..operator() };
        assert_eq!(
            wrong.infer(&[Some(state.clone()), Some(scanned)], &mut context).unwrap_err().to_string(),
            "output_directions is [2], expected 1 flags"
        );
        assert_eq!(
            operator().infer(&[Some(state)], &mut context).unwrap_err().to_string(),
            "expected at least 1 states and 1 scan inputs operands, found 1"
        );
    }
}
