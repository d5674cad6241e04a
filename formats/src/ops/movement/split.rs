//! Parts of a tensor along an axis: ONNX `Split` (opsets 2, 11, 13, 18; the attribute of old ones as operand).

use crate::attributes;
use crate::dim::Dim;
use crate::fact::{Fact, Shape};
use crate::ops::movement::moving::{count_mismatch, extent, follow, optional_integer_vector};
use crate::ops::parts::cut;
use crate::ops::{
    InferContext, Moves, Operator, ReferenceContext, ReferenceError, Relation, Space, StepFacts, TypeError, integers,
    loops, normalize_axis, optional, tensor, tensor_operand,
};
use crate::value::Value;

attributes! {
    /// Consecutive parts of `x: [..]`, whose extents are `sizes: [parts]` (i64) or, where that is absent, equal but for
    /// a smaller last one.
    pub struct Split revision 1 {
        /// Counted from the back where negative.
        1 since 1 => axis: i64,
        /// Number of results.
        2 since 1 => parts: i64,
        /// Without sizes, also the last part must have the extent of the others.
        3 since 1 => even: bool,
    }
}

/// Most results of one step.
const MAXIMUM_PARTS: i64 = 1 << 16;

impl Split {
    /// Whether the elements of each part follow each other in an operand of these extents.
    pub fn keeps_order(&self, extents: &[usize]) -> bool {
        normalize_axis(self.axis, extents.len()).is_ok_and(|axis| extents[..axis].iter().all(|&extent| extent == 1))
    }

    fn count(&self) -> Result<usize, TypeError> {
        let invalid = || TypeError::Value {
            subject: "number of parts".to_string(),
            found: self.parts.to_string(),
            expected: format!("1 to {MAXIMUM_PARTS}"),
        };
        usize::try_from(self.parts).ok().filter(|_| (1..=MAXIMUM_PARTS).contains(&self.parts)).ok_or_else(invalid)
    }

    /// The parts of an axis of this extent where no sizes are given.
    fn shares(&self, extent: &Dim, count: usize, context: &mut InferContext<'_>) -> Result<Vec<Dim>, TypeError> {
        let parts = Dim::known(self.parts);
        let does_not_fit = || TypeError::Dimension {
            subject: "parts of an axis".to_string(),
            left: extent.to_string(),
            right: parts.to_string(),
        };
        if self.even {
            if let Some(share) = extent.divide_exact(&parts) {
                return Ok(vec![share; count]);
            }
            if extent.is_known() {
                return Err(does_not_fit());
            }
            context.oblige(Relation::Multiple, extent, &parts, "parts of an axis");
            return Ok(vec![extent.floor_div(&parts).simplify(context.ranges); count]);
        }
        let share = extent.ceil_div(&parts).simplify(context.ranges);
        let last = (extent - &share * (self.parts - 1)).simplify(context.ranges);
        if last.as_known().is_some_and(|last| last < 0) {
            return Err(does_not_fit());
        }
        if last.bounds(context.ranges).0 < 0 {
            context.oblige(Relation::AtMost, &Dim::ZERO, &last, "last part of an axis");
        }
        let mut shares = vec![share; count];
        shares[count - 1] = last;
        Ok(shares)
    }

    /// The extents of the parts; `sizes` are `None` where the operand is absent.
    ///
    /// # Errors
    /// [`ReferenceError`] where they do not make up the axis.
    pub fn extents(&self, sizes: Option<&[i64]>, total: usize) -> Result<Vec<usize>, ReferenceError> {
        let count = self.count()?;
        let given: Vec<usize> = match sizes {
            Some(sizes) if sizes.len() != count => return Err(count_mismatch(1, sizes.len(), count).into()),
            Some(sizes) => sizes.iter().map(|&size| extent(size, "size of a part")).collect::<Result<_, _>>()?,
            None => {
                let share = total.div_ceil(count);
                let last = (count - 1).checked_mul(share).and_then(|others| total.checked_sub(others));
                let mut shares = vec![share; count];
                // Where the others use up more than there is, the sum tells.
                shares[count - 1] = last.unwrap_or(0);
                shares
            }
        };
        let even = !self.even || sizes.is_some() || given.iter().all(|&share| share == given[0]);
        let sum = given.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
        if even && sum == Some(total) {
            return Ok(given);
        }
        Err(TypeError::Dimension {
            subject: "parts of an axis".to_string(),
            left: total.to_string(),
            right: format!("{given:?}"),
        }
        .into())
    }
}

impl Operator for Split {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, shape) = tensor_operand(inputs, 0)?;
        let count = self.count()?;
        let sizes = optional_integer_vector(inputs, 1)?;
        if let Some(length) = sizes.as_ref().and_then(|sizes| sizes.length)
            && length != count
        {
            return Err(count_mismatch(1, length, count));
        }
        let Some(dims) = shape.dims() else { return Ok(vec![Fact::tensor(dtype, Shape::Unranked); count]) };
        let axis = normalize_axis(self.axis, dims.len())?;
        let shares = match sizes {
            None => self.shares(&dims[axis], count, context)?,
            Some(sizes) => match sizes.elements {
                Some(elements) => {
                    if let Some(size) = elements.iter().filter_map(Dim::as_known).find(|&size| size < 0) {
                        let (subject, expected) = ("size of a part".to_string(), "0 and more".to_string());
                        return Err(TypeError::Value { subject, found: size.to_string(), expected });
                    }
                    context.require_equal(&Dim::sum(&elements), &dims[axis], "sum of the parts")?;
                    elements
                }
                None => (0..count).map(|part| context.fresh(&format!("part{part}"))).collect(),
            },
        };
        let part = |share| {
            let mut dims = dims.to_vec();
            dims[axis] = share;
            Fact::tensor(dtype, dims)
        };
        let mut results: Vec<Fact> = shares.into_iter().map(part).collect();
        follow(self, inputs, &[0], &mut results);
        Ok(results)
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let data = tensor(inputs, 0)?;
        let axis = normalize_axis(self.axis, data.rank())?;
        let sizes = match inputs.get(1) {
            Some(Some(_)) => Some(integers(inputs, 1)?),
            Some(None) | None => None,
        };
        let total = data.shape()[axis];
        let mut start = 0;
        let mut results = Vec::new();
        for size in self.extents(sizes.as_deref(), total)? {
            let part = cut(data, axis, start, size)?.ok_or(TypeError::Axis { axis: self.axis, rank: data.rank() })?;
            results.push(part.into());
            start += size;
        }
        Ok(results)
    }
}

impl Moves for Split {
    fn spaces(&self, facts: &StepFacts<'_>) -> Vec<Space> {
        let axis = facts.dims(0).and_then(|dims| normalize_axis(self.axis, dims.len()).ok());
        let Some(axis) = axis else { return loops::serial(facts) };
        let mut start = Some(0i64);
        let mut spaces = Vec::new();
        for part in 0..facts.outputs.len() {
            let Some(own) = facts.result(part) else { return loops::serial(facts) };
            // Behind a part of unknown extent the whole axis may be needed.
            let from = |at: usize| match (at == axis, start) {
                (false, _) => Some(loops::operand(0, at)),
                (true, start) => start.map(|start| loops::operand(0, at).offset(start)),
            };
            let nest = own.iter().enumerate().fold(loops::Loops::new(facts), |nest, (at, extent)| {
                nest.parallel(extent, from(at).into_iter().chain([loops::result(part, at)]))
            });
            spaces.push(nest.space());
            start = start.zip(own[axis].as_known()).and_then(|(start, length)| start.checked_add(length));
        }
        spaces
    }

    fn moved(&self, facts: &StepFacts<'_>) -> Dim {
        facts.copied_bytes()
    }

    fn view_of(&self) -> Option<usize> {
        None
    }

    fn is_identity(&self, inputs: &[Option<Fact>], _result: &Fact) -> bool {
        self.parts == 1 && optional(inputs, 0).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_consecutive_where_axes_before_theirs_have_one_position() {
        let split = Split { axis: -1, parts: 3, even: true };
        assert!(split.keeps_order(&[1, 1, 6]) && split.keeps_order(&[6]));
        assert!(!split.keeps_order(&[1, 2, 6]) && !split.keeps_order(&[]));
    }

    use crate::ops::movement::moving::testing::{contents, floats, infer, iota, run, vector};

    fn shapes(split: &Split, inputs: &[Option<Fact>]) -> Vec<String> {
        infer(split, inputs).unwrap().0.iter().map(|fact| fact.kind.to_string()).collect()
    }

    #[test]
    fn shares_are_equal_but_for_the_last() {
        let split = Split { axis: 0, parts: 3, even: false };
        assert_eq!(shapes(&split, &[Some(floats("7"))]), ["f32[3]", "f32[3]", "f32[1]"]);
        assert_eq!(shapes(&split, &[Some(floats("3*n"))]), ["f32[n]"; 3]);
        let uneven = shapes(&split, &[Some(floats("n"))]);
        assert_eq!(uneven[0], "f32[floordiv(n + 2, 3)]");
        assert_eq!(
            infer(&Split { axis: 0, parts: 4, even: false }, &[Some(floats("5"))]).unwrap_err().to_string(),
            "parts of an axis: 5 does not fit 4"
        );
        let even = Split { even: true, ..split };
        assert_eq!(infer(&even, &[Some(floats("7"))]).unwrap_err().to_string(), "parts of an axis: 7 does not fit 3");
        assert_eq!(infer(&even, &[Some(floats("n"))]).unwrap().1, ["n multiple 3"]);
    }

    #[test]
    fn sizes_make_up_the_axis() {
        let split = Split { axis: -1, parts: 2, even: true };
        assert_eq!(shapes(&split, &[Some(floats("a, n + 2")), Some(contents("n, 2"))]), ["f32[a, n]", "f32[a, 2]"]);
        assert_eq!(
            infer(&split, &[Some(floats("5")), Some(vector(&[2, 2]))]).unwrap_err().to_string(),
            "sum of the parts: 4 does not fit 5"
        );
        assert_eq!(
            infer(&split, &[Some(floats("5")), Some(vector(&[6, -1]))]).unwrap_err().to_string(),
            "size of a part is -1, expected 0 and more"
        );
        assert_eq!(
            infer(&split, &[Some(floats("5")), Some(vector(&[5]))]).unwrap_err().to_string(),
            "number of elements of operand 1 is 1, expected 2"
        );
        assert_eq!(split.extents(Some(&[0, 5]), 5).unwrap(), [0, 5]);
        assert_eq!(split.extents(None, 5).unwrap_err().to_string(), "parts of an axis: 5 does not fit [3, 2]");
        assert_eq!(
            split.extents(Some(&[i64::MAX, i64::MAX]), 5).unwrap_err().to_string(),
            "parts of an axis: 5 does not fit [9223372036854775807, 9223372036854775807]"
        );
        assert_eq!(
            Split { axis: 0, parts: i64::MAX, even: false }.extents(None, 5).unwrap_err().to_string(),
            "number of parts is 9223372036854775807, expected 1 to 65536"
        );
    }

    #[test]
    fn contents_and_elements_are_cut() {
        let split = Split { axis: 0, parts: 2, even: false };
        let facts = infer(&split, &[Some(contents("n, 4, m"))]).unwrap().0;
        assert_eq!(facts[1].elements_as_dims().unwrap(), [Dim::symbol("m")]);
        let split = Split { axis: 1, parts: 2, even: false };
        let parts = run(&split, &[Some(iota(&[2, 3]))]).unwrap();
        assert_eq!(parts[0].elements::<f32>().unwrap(), [0.0, 1.0, 3.0, 4.0]);
        assert_eq!(parts[1].elements::<f32>().unwrap(), [2.0, 5.0]);
    }
}
