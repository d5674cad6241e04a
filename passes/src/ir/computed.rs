//! Constants that are computed, read in parts: fills, elementwise operators, and what keeps the order of elements. The bytes
//! are those of the whole, since each element is computed alone.

use crate::ir::{Constant, ConstantData, ConstantError, ConstantId, Graph};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::{Class, Op, ReferenceError, TypeError};
use ipuc_formats::tensor::{Tensor, TensorError, element_count};
use ipuc_formats::value::Value;

/// Recipes behind one another that are read in parts, at most.
const DEPTH: usize = 32;
/// Elements that are computed at a time.
const ELEMENTS: usize = 64 << 10;

/// How elements of a recipe follow from those of its operands.
enum Computed<'a> {
    /// All are the one element of this constant.
    Filled(ConstantId),
    /// They are those of this constant in their order.
    Moved(ConstantId),
    /// Each from those at its place, and from operands of one element, or of one for each index of an axis.
    Elementwise(&'a Op, &'a [Option<ConstantId>]),
}

impl Graph {
    /// Whether a constant is computed and [`Graph::read_computed`] reads it.
    pub fn is_computed_in_parts(&self, id: ConstantId) -> bool {
        self.computed(id).is_some() && self.has_parts(id, DEPTH)
    }

    /// Whether a constant is computed and all its elements are the same.
    pub fn is_fill(&self, id: ConstantId) -> bool {
        match self.computed(id) {
            Some(Computed::Filled(_)) => true,
            Some(Computed::Moved(from)) => self.has_parts(id, DEPTH) && self.is_fill(from),
            Some(Computed::Elementwise(..)) | None => false,
        }
    }

    /// Compute canonical bytes of a constant from `offset` on, as many as the buffer holds.
    ///
    /// # Errors
    /// [`ConstantError`] where its operands cannot be read or computed.
    pub fn read_computed(&self, id: ConstantId, offset: u64, buffer: &mut [u8]) -> Result<(), ConstantError> {
        let width = (self.constant(id).dtype.bits() / 8).max(1);
        let (mut first, mut inside) = ((offset / width as u64) as usize, (offset % width as u64) as usize);
        let mut rest = buffer;
        while !rest.is_empty() {
            let count = (inside + rest.len()).div_ceil(width).min(ELEMENTS);
            let part = self.part(id, first, count)?;
            let bytes = &part.bytes()[inside..];
            let length = bytes.len().min(rest.len());
            let (now, later) = rest.split_at_mut(length);
            now.copy_from_slice(&bytes[..length]);
            (rest, first, inside) = (later, first + count, 0);
        }
        Ok(())
    }

    fn count_of(&self, id: ConstantId) -> Option<usize> {
        element_count(&self.constant(id).shape)
    }

    /// How a constant is computed, where that is in one of the ways that are known here.
    fn computed(&self, id: ConstantId) -> Option<Computed<'_>> {
        let Constant { data: ConstantData::Recipe { op, operands }, dtype, shape, .. } = self.constant(id) else {
            return None;
        };
        if *dtype == DType::String || dtype.bits() % 8 != 0 {
            return None;
        }
        let (first, count) = (operands.first().copied().flatten()?, element_count(shape)?);
        let same_type = self.constant(first).dtype == *dtype;
        let moves = matches!(op, Op::Reshape(_) | Op::Flatten(_) | Op::Squeeze(_) | Op::Unsqueeze(_) | Op::Expand(_));
        if moves {
            return match self.count_of(first)? {
                1 if same_type && count > 1 => Some(Computed::Filled(first)),
                found if same_type && found == count => Some(Computed::Moved(first)),
                _ => None,
            };
        }
        if !matches!(op.class(), Class::Elementwise(_)) {
            return None;
        }
        let fits = |&id: &ConstantId| {
            let operand = self.constant(id);
            operand.dtype != DType::String
                && operand.dtype.bits().is_multiple_of(8)
                && (operand.shape == *shape
                    || element_count(&operand.shape) == Some(1)
                    || axis_of(operand, shape).is_some())
        };
        operands.iter().flatten().all(fits).then_some(Computed::Elementwise(op, operands))
    }

    /// Whether parts of a constant can be had; at most one recipe is behind another.
    fn has_parts(&self, id: ConstantId, depth: usize) -> bool {
        match &self.constant(id).data {
            ConstantData::Tensor(_) => true,
            ConstantData::Stored(stored) => stored.tensor.is_direct(),
            ConstantData::Rounded(_) | ConstantData::Hashed(_) => false,
            ConstantData::Recipe { .. } if depth == 0 => false,
            ConstantData::Recipe { .. } => match self.computed(id) {
                Some(Computed::Filled(_)) => true,
                Some(Computed::Moved(from)) => self.has_parts(from, depth - 1),
                Some(Computed::Elementwise(_, operands)) => {
                    let whole: Vec<ConstantId> =
                        operands.iter().flatten().copied().filter(|&id| self.count_of(id) != Some(1)).collect();
                    let is_recipe = |id: &&ConstantId| matches!(self.constant(**id).data, ConstantData::Recipe { .. });
                    whole.iter().filter(is_recipe).count() <= 1 && whole.iter().all(|&id| self.has_parts(id, depth - 1))
                }
                None => false,
            },
        }
    }

    /// So many elements of a constant from one on, as a vector.
    fn part(&self, id: ConstantId, first: usize, count: usize) -> Result<Tensor, ConstantError> {
        let constant = self.constant(id);
        let failure = |operator: &'static str, error: ReferenceError| ConstantError::Recipe {
            tensor: constant.label().to_string(),
            operator,
            error,
        };
        let width = constant.dtype.bits() / 8;
        let of_bytes = |bytes: &[u8]| {
            Tensor::from_bytes(constant.dtype, &[count], bytes).map_err(|error| failure("part", error.into()))
        };
        match (&constant.data, self.computed(id)) {
            (ConstantData::Tensor(tensor), _) => of_bytes(&tensor.bytes()[first * width..][..count * width]),
            (ConstantData::Stored(stored), _) => {
                let mut part =
                    Tensor::zeros(constant.dtype, &[count]).map_err(|error| failure("part", error.into()))?;
                self.read_stored(stored, (first * width) as u64, part.bytes_mut())?;
                Ok(part)
            }
            (_, Some(Computed::Filled(from))) => {
                let element = self.load_constant(from)?;
                let mut part =
                    Tensor::zeros(constant.dtype, &[count]).map_err(|error| failure("expand", error.into()))?;
                part.bytes_mut().chunks_exact_mut(width).for_each(|place| place.copy_from_slice(element.bytes()));
                Ok(part)
            }
            (_, Some(Computed::Moved(from))) => self.part(from, first, count),
            (_, Some(Computed::Elementwise(op, operands))) => {
                let operand = |id: ConstantId| {
                    if self.count_of(id) == Some(1) {
                        let element = self.load_constant(id)?;
                        return element.reshaped(&[]).map_err(|error| failure(op.name(), error.into()));
                    }
                    match axis_of(self.constant(id), &constant.shape) {
                        Some(axis) => axis.part(first, count).map_err(|error| failure(op.name(), error.into())),
                        None => self.part(id, first, count),
                    }
                };
                let inputs: Vec<Option<Value>> = operands
                    .iter()
                    .map(|id| id.map(|id| operand(id).map(Value::Tensor)).transpose())
                    .collect::<Result<_, _>>()?;
                let results = self.evaluator.results(op, &inputs).map_err(|error| failure(op.name(), error))?;
                match results.into_iter().next() {
                    Some(Value::Tensor(part)) if part.dtype() == constant.dtype && part.count() == count => Ok(part),
                    _ => Err(failure(op.name(), TypeError::MissingOperand { operand: 0 }.into())),
                }
            }
            (ConstantData::Recipe { .. } | ConstantData::Rounded(_) | ConstantData::Hashed(_), None) => {
                let whole = self.load_constant(id)?;
                of_bytes(&whole.bytes()[first * width..][..count * width])
            }
        }
    }
}

/// A constant in memory that has one element for each index of an axis of another.
struct AlongAxis<'a> {
    tensor: &'a Tensor,
    /// Elements of the other between two indices.
    stride: usize,
}

/// How a constant broadcasts to this shape, where that is along one axis, and not all of it.
fn axis_of<'a>(constant: &'a Constant, shape: &[usize]) -> Option<AlongAxis<'a>> {
    let tensor = constant.tensor().filter(|tensor| tensor.count() > 1 && constant.shape != shape)?;
    let before = shape.len().checked_sub(constant.shape.len())?;
    let axis = constant.shape.iter().position(|&extent| extent > 1)?;
    let is_one_axis = constant.shape[axis] == tensor.count() && shape[before + axis] == tensor.count();
    is_one_axis.then(|| AlongAxis { tensor, stride: shape[before + axis + 1..].iter().product() })
}

impl AlongAxis<'_> {
    /// What so many elements of the other from one on meet.
    fn part(&self, first: usize, count: usize) -> Result<Tensor, TensorError> {
        let width = self.tensor.dtype().bits() / 8;
        let mut part = Tensor::zeros(self.tensor.dtype(), &[count])?;
        for (at, element) in part.bytes_mut().chunks_exact_mut(width).enumerate() {
            let index = (first + at) / self.stride.max(1) % self.tensor.count();
            element.copy_from_slice(&self.tensor.bytes()[index * width..][..width]);
        }
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_of_the_whole() {
        let mut graph = Graph::default();
        let numbers: Vec<f32> = (0..1000).map(|at| (at as f32 - 500.0) / 64.0).collect();
        let tensor =
            |shape: &[usize], numbers: &[f32]| Constant::of(Tensor::from_elements(shape, numbers).unwrap(), None);
        let given = graph.add_constant(tensor(&[10, 100], &numbers));
        let one = graph.add_constant(tensor(&[1, 1], &[0.75]));
        let row = graph.add_constant(tensor(&[100], &numbers[..100]));
        let column = graph.add_constant(tensor(&[10, 1], &numbers[..10]));
        let shape = graph.add_constant(Constant::of(Tensor::vector_i64(&[10, 100]), None));
        let mut recipe = |name: &str, operands: &[ConstantId], dtype| {
            let op = Op::build(name.split(' ').next().unwrap(), &attributes(name)).unwrap();
            let data = ConstantData::Recipe { op, operands: operands.iter().copied().map(Some).collect() };
            let like = Constant::of(Tensor::zeros(dtype, &[10, 100]).unwrap(), None);
            graph.add_constant(Constant { data, ..like })
        };
        let filled = recipe("expand", &[one, shape], DType::F32);
        let product = recipe("binary function=mul", &[given, one], DType::F32);
        let bent = recipe("unary function=exp", &[product], DType::F32);
        let half = recipe("cast to=f16", &[bent], DType::F16);
        let above = recipe("compare relation=less", &[half, half], DType::Bool);
        let spread = recipe("binary function=add", &[given, row], DType::F32);
        let by_row = recipe("binary function=mul", &[column, given], DType::F32);
        for id in [filled, product, bent, half, spread, by_row] {
            assert!(graph.is_computed_in_parts(id), "{id}");
            let whole = graph.load_constant(id).unwrap();
            for (offset, length) in [(0, 7), (3, 401), (1999, 1), (0, whole.bytes().len())] {
                let mut part = vec![0; length];
                graph.read_computed(id, offset as u64, &mut part).unwrap();
                assert_eq!(part, whole.bytes()[offset..offset + length], "{id} from {offset}");
            }
        }
        assert!(graph.is_fill(filled) && !graph.is_fill(product));
        // Two recipes behind one would be computed again and again.
        assert!(!graph.is_computed_in_parts(above));
    }

    fn attributes(text: &str) -> Vec<(String, ipuc_formats::attribute::AttributeValue)> {
        let pairs = text.split(' ').skip(1).map(|pair| pair.split_once('=').unwrap());
        pairs
            .map(|(name, value)| (name.to_string(), ipuc_formats::attribute::AttributeValue::Text(value.to_string())))
            .collect()
    }
}
