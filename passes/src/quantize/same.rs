//! Weights that are the same codes under the same parameters become one, as those of an embedding and of a last product that
//! nodes of two kinds decode.

use crate::error::PassError;
use crate::ir::{Constant, ConstantData, ConstantError, ConstantId, Graph, Operand, Quantized};
use ipuc_formats::dtype::DType;
use ipuc_formats::ops::Op;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Constants that only change the shape of others, one behind another, at most.
const DEPTH: usize = 8;

/// Bytes that are compared first: those of most tensors differ in them.
const FIRST_BYTES: usize = 4 << 10;

/// Bytes that are compared at a time from then on.
const NEXT_BYTES: usize = 256 << 10;

/// What the elements of a constant are in their order, whatever its shape.
enum Elements {
    /// Those of this constant, which is looked at no further.
    Own(ConstantId),
    /// Those of this constant, which is in memory or in a file.
    Leaf(ConstantId),
    /// The bits of others as another type.
    Cast(DType, Box<Elements>),
}

fn elements(graph: &Graph, id: ConstantId, depth: usize) -> Elements {
    let Constant { dtype, data, .. } = graph.constant(id);
    match data {
        ConstantData::Stored(_) | ConstantData::Hashed(_) | ConstantData::Tensor(_) => Elements::Leaf(id),
        ConstantData::Recipe { op, operands } if depth > 0 => {
            let Some(&Some(from)) = operands.first() else { return Elements::Own(id) };
            let keeps = matches!(op, Op::Reshape(_) | Op::Flatten(_) | Op::Squeeze(_) | Op::Unsqueeze(_));
            if keeps && graph.constant(from).dtype == *dtype {
                return elements(graph, from, depth - 1);
            }
            if matches!(op, Op::BitCast(_)) {
                return Elements::Cast(*dtype, Box::new(elements(graph, from, depth - 1)));
            }
            Elements::Own(id)
        }
        ConstantData::Recipe { .. } | ConstantData::Rounded(_) => Elements::Own(id),
    }
}

/// What constants are compared by.
#[derive(Clone, Copy)]
struct Comparison<'a> {
    graph: &'a Graph,
    /// Only by where they lie: files of weights may be missing where a program is only looked at, and all would be zeros.
    by_place: bool,
}

impl Elements {
    fn are(&self, other: &Elements, by: Comparison<'_>) -> Result<bool, ConstantError> {
        match (self, other) {
            (Elements::Own(one), Elements::Own(other)) => Ok(one == other),
            (Elements::Leaf(one), Elements::Leaf(other)) => by.same_bytes(*one, *other),
            (Elements::Cast(to, one), Elements::Cast(other_to, other)) => Ok(to == other_to && one.are(other, by)?),
            (Elements::Own(_) | Elements::Leaf(_) | Elements::Cast(..), _) => Ok(false),
        }
    }
}

impl Comparison<'_> {
    /// Whether two constants that no recipe makes have the same elements, wherever they lie.
    fn same_bytes(self, one: ConstantId, other: ConstantId) -> Result<bool, ConstantError> {
        let (left, right) = (self.graph.constant(one), self.graph.constant(other));
        if left.dtype != right.dtype || left.byte_count() != right.byte_count() || left.dtype == DType::String {
            return Ok(false);
        }
        if one == other || left.data == right.data {
            return Ok(true);
        }
        if self.by_place {
            return Ok(false);
        }
        let (count, mut offset) = (left.byte_count(), 0);
        let mut buffers = [const { Vec::new() }; 2];
        while offset < count {
            let most = if offset == 0 { FIRST_BYTES } else { NEXT_BYTES };
            let length = (count - offset).min(most as u64) as usize;
            for (constant, buffer) in [left, right].into_iter().zip(&mut buffers) {
                buffer.resize(length, 0);
                if !self.read(constant, offset, buffer)? {
                    return Ok(false);
                }
            }
            if buffers[0] != buffers[1] {
                return Ok(false);
            }
            offset += length as u64;
        }
        Ok(true)
    }

    /// Reads bytes of a constant from an offset on; whether it has any that can be read.
    fn read(self, constant: &Constant, offset: u64, bytes: &mut [u8]) -> Result<bool, ConstantError> {
        match &constant.data {
            ConstantData::Tensor(tensor) => bytes.copy_from_slice(&tensor.bytes()[offset as usize..][..bytes.len()]),
            ConstantData::Stored(stored) => self.graph.read_stored(stored, offset, bytes)?,
            ConstantData::Recipe { .. } | ConstantData::Rounded(_) | ConstantData::Hashed(_) => return Ok(false),
        }
        Ok(true)
    }

    /// A hash of the first bytes of elements, which those that are the same share; 0 where they are not compared by bytes.
    fn first_bytes(self, elements: &Elements) -> Result<u64, ConstantError> {
        match elements {
            Elements::Cast(_, inner) => self.first_bytes(inner),
            Elements::Leaf(id) if !self.by_place && self.graph.constant(*id).dtype != DType::String => {
                let constant = self.graph.constant(*id);
                let mut first = [0; FIRST_BYTES];
                let bytes = &mut first[..constant.byte_count().min(FIRST_BYTES as u64) as usize];
                let is_read = self.read(constant, 0, bytes)?;
                let mut hasher = DefaultHasher::new();
                bytes.hash(&mut hasher);
                Ok(if is_read { hasher.finish() } else { 0 })
            }
            Elements::Own(_) | Elements::Leaf(_) => Ok(0),
        }
    }

    /// Whether two constants of the same type and shape dequantize the same codes in the same way.
    fn are_same(self, one: &Quantized, other: &Quantized) -> Result<bool, ConstantError> {
        let (left, right): (Vec<_>, Vec<_>) = (one.parameters().collect(), other.parameters().collect());
        let alike = (one.axis, one.block_size) == (other.axis, other.block_size)
            && one.output_scale.is_none()
            && other.output_scale.is_none()
            && left.len() == right.len();
        if !alike {
            return Ok(false);
        }
        let same = |one: ConstantId, other: ConstantId| {
            elements(self.graph, one, DEPTH).are(&elements(self.graph, other, DEPTH), self)
        };
        for ((role, one), (other_role, other)) in left.into_iter().zip(right) {
            if role != other_role || !same(one, other)? {
                return Ok(false);
            }
        }
        same(one.codes, other.codes)
    }
}

/// The shape of a constant, and a hash of the first bytes of its codes.
type Key = (Vec<usize>, u64);

/// Have steps read the first of constants that are the same, or lie at the same place; gives how many operands are others now.
///
/// # Errors
/// [`PassError::Constant`] where a tensor that may be another cannot be read.
pub(super) fn merge(graph: &mut Graph, by_place: bool) -> Result<usize, PassError> {
    // By shape and by the first bytes of codes, so that bytes of each are read once where they differ from those of all others.
    let mut known: BTreeMap<Key, Vec<(ConstantId, Quantized)>> = BTreeMap::new();
    let mut found: HashMap<ConstantId, ConstantId> = HashMap::new();
    for id in graph.uses().into_keys() {
        let constant = graph.constant(id);
        let Some(quantized) = graph.quantized(id).filter(|_| constant.encoding.is_none()) else { continue };
        let by = Comparison { graph, by_place };
        let first_bytes = by.first_bytes(&elements(graph, quantized.codes, DEPTH))?;
        let others = known.entry((constant.shape.clone(), first_bytes)).or_default();
        let mut first = None;
        for (other, own) in others.iter() {
            if graph.constant(*other).dtype == constant.dtype && by.are_same(own, &quantized)? {
                first = Some(*other);
                break;
            }
        }
        match first {
            Some(other) => drop(found.insert(id, other)),
            None => others.push((id, quantized)),
        }
    }
    let mut changes = 0;
    if found.is_empty() {
        return Ok(changes);
    }
    for index in graph.reachable_blocks() {
        for operand in graph.block_mut(index).steps.iter_mut().flat_map(|step| &mut step.operands) {
            if let Operand::Constant(id) = operand
                && let Some(first) = found.get(id)
            {
                *id = *first;
                changes += 1;
            }
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ipuc_formats::ops::{BitCast, Dequantize};
    use ipuc_formats::tensor::Tensor;

    /// Codes of 4 bits in bytes, the last of which is `last`, behind a cast, and what decodes them.
    fn decoded(graph: &mut Graph, last: u8) -> ConstantId {
        let mut bytes = vec![0x35u8; 3 * NEXT_BYTES / 2];
        bytes[3 * NEXT_BYTES / 2 - 1] = last;
        let shape = vec![64, bytes.len() / 32];
        let tensor = Tensor::from_elements(&[64, bytes.len() / 64], &bytes).unwrap();
        let bytes = graph.add_constant(Constant::of(tensor, None));
        let recipe = |dtype, op, operands| {
            let data = ConstantData::Recipe { op, operands };
            Constant { name: None, dtype, shape: shape.clone(), data, origin: None, encoding: None, zeros: None }
        };
        let codes = graph.add_constant(recipe(DType::U4, BitCast { to: DType::U4 }.into(), vec![Some(bytes)]));
        let scale = graph.add_constant(Constant::of(Tensor::scalar(0.5f32), None));
        let op = Dequantize { to: None, axis: 0, block_size: 0 }.into();
        graph.add_constant(recipe(DType::F32, op, vec![Some(codes), Some(scale)]))
    }

    #[test]
    fn tensors_are_the_same_to_their_last_byte() {
        let mut graph = Graph::default();
        let [one, same, other] = [7, 7, 8].map(|last| decoded(&mut graph, last));
        let quantized = |id| graph.quantized(id).unwrap();
        let same_by = |by_place: bool, one, other| {
            Comparison { graph: &graph, by_place }.are_same(&quantized(one), &quantized(other)).unwrap()
        };
        assert!(same_by(false, one, same) && !same_by(false, one, other));
        assert!(same_by(true, one, one) && !same_by(true, one, other));
    }
}
