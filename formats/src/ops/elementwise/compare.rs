//! Relations between two elements, with broadcasting: ONNX `Equal`, `Less`, `LessOrEqual`, `Greater`, `GreaterOrEqual`
//! (opset 7 and later).

use crate::attribute::Keyword;
use crate::attributes;
use crate::dim::{Dim, Equality, at_least, equality};
use crate::dtype::DType;
use crate::fact::Fact;
use crate::ops::broadcast::{broadcast_extents, broadcast_shapes};
use crate::ops::elementwise::binary::{followed_pairs, paired_indices};
use crate::ops::scalar::{Scalar, is_number, scalars};
use crate::ops::{
    Elementwise, InferContext, Operator, ReferenceContext, ReferenceError, StepFacts, TypeError, VectorClass, tensor,
    tensor_operand,
};
use crate::tensor::Tensor;
use crate::tensor::room;
use crate::value::Value;
use std::cmp::Ordering;

attributes! {
    /// Compares pairs: `x: [..], y: [..]` of one element type to bool of their broadcast shape.
    pub struct Compare revision 1 {
        /// The relation.
        1 since 1 => relation: CompareRelation,
    }
}

/// Relations of [`Compare`]; none holds where an element is NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::EnumString, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum CompareRelation {
    /// x = y.
    Equal,
    /// x < y.
    Less,
    /// x <= y.
    LessOrEqual,
    /// x > y.
    Greater,
    /// x >= y.
    GreaterOrEqual,
}
impl Keyword for CompareRelation {}

impl CompareRelation {
    /// Whether it holds for operands in this order; `None` is for NaN.
    pub fn holds(self, ordering: Option<Ordering>) -> bool {
        ordering.is_some_and(|ordering| match self {
            CompareRelation::Equal => ordering.is_eq(),
            CompareRelation::Less => ordering.is_lt(),
            CompareRelation::LessOrEqual => ordering.is_le(),
            CompareRelation::Greater => ordering.is_gt(),
            CompareRelation::GreaterOrEqual => ordering.is_ge(),
        })
    }

    pub(crate) fn check(self, left: DType, right: DType) -> Result<(), TypeError> {
        let (fits, expected) = match self {
            CompareRelation::Equal => (!left.is_complex(), "a type other than complex"),
            CompareRelation::Less
            | CompareRelation::LessOrEqual
            | CompareRelation::Greater
            | CompareRelation::GreaterOrEqual => (is_number(left), "a real number type"),
        };
        if !fits {
            return Err(TypeError::ElementType { operand: 0, expected: expected.to_string(), found: left });
        }
        if left != right {
            return Err(TypeError::ElementType { operand: 1, expected: left.to_string(), found: right });
        }
        Ok(())
    }

    /// Whether it holds between two numbers.
    pub(crate) fn holds_between(self, x: Scalar, y: Scalar) -> bool {
        self.holds(order(x, y))
    }

    /// 1 or 0 where the relation is decided whatever the symbols are.
    fn apply_dims(self, x: &Dim, y: &Dim, context: &InferContext<'_>) -> Option<Dim> {
        let at_least = |x, y| at_least(x, y, context.ranges);
        let holds = match self {
            CompareRelation::Equal => match equality(x, y, context.ranges) {
                Equality::Proven => Some(true),
                Equality::Refuted => Some(false),
                Equality::Unknown => None,
            },
            CompareRelation::GreaterOrEqual => at_least(x, y),
            CompareRelation::LessOrEqual => at_least(y, x),
            CompareRelation::Less => at_least(x, y).map(|holds| !holds),
            CompareRelation::Greater => at_least(y, x).map(|holds| !holds),
        };
        holds.map(|holds| Dim::known(i64::from(holds)))
    }
}

/// The order of two numbers; `None` where one is NaN.
fn order(x: Scalar, y: Scalar) -> Option<Ordering> {
    match (x, y) {
        (Scalar::Integer(x), Scalar::Integer(y)) => Some(x.cmp(&y)),
        (x, y) => x.to_f64().partial_cmp(&y.to_f64()),
    }
}

impl Operator for Compare {
    fn infer(&self, inputs: &[Option<Fact>], context: &mut InferContext<'_>) -> Result<Vec<Fact>, TypeError> {
        let (dtype, left) = tensor_operand(inputs, 0)?;
        let (right_dtype, right) = tensor_operand(inputs, 1)?;
        self.relation.check(dtype, right_dtype)?;
        let shape = broadcast_shapes(&[left, right], context)?;
        let followed = followed_pairs(inputs, |x, y| self.relation.apply_dims(x, y, context));
        Ok(vec![match followed {
            Some(dims) => Fact::of_dims(DType::Bool, shape, dims),
            None => Fact::tensor(DType::Bool, shape),
        }])
    }

    fn reference(
        &self,
        inputs: &[Option<Value>],
        _context: &mut ReferenceContext<'_>,
    ) -> Result<Vec<Value>, ReferenceError> {
        let (left, right) = (tensor(inputs, 0)?, tensor(inputs, 1)?);
        self.relation.check(left.dtype(), right.dtype())?;
        let extents = broadcast_extents(&[left.shape(), right.shape()])?;
        // The size is checked before anything of that size is made.
        let mut results = room(Tensor::zeros(DType::Bool, &extents)?.count())?;
        let pairs = paired_indices(left, right, &extents);
        if left.dtype() == DType::String {
            let (x, y) = (left.strings()?, right.strings()?);
            results.extend(pairs.map(|(left, right)| self.relation.holds(Some(x[left].cmp(&y[right])))));
        } else {
            let (x, y) = (scalars(left)?, scalars(right)?);
            results.extend(pairs.map(|(left, right)| self.relation.holds(order(x[left], y[right]))));
        }
        Ok(vec![Tensor::from_bools(&extents, &results)?.into()])
    }
}

impl Elementwise for Compare {
    fn per_element(&self, _: &StepFacts<'_>) -> Vec<(VectorClass, i64)> {
        vec![(VectorClass::Arithmetic, 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dim::Ranges;
    use crate::ops::NoBlocks;
    use crate::ops::testing::{bools, run};

    fn compare(relation: CompareRelation, left: Tensor, right: Tensor) -> Vec<bool> {
        bools(&run(&Compare { relation }, &[left, right]).unwrap())
    }

    #[test]
    fn relations_hold_as_written() {
        let left = || Tensor::from_elements(&[4], &[1.0f32, 2.0, 3.0, f32::NAN]).unwrap();
        let right = || Tensor::from_elements(&[1], &[2.0f32]).unwrap();
        assert_eq!(compare(CompareRelation::Equal, left(), right()), [false, true, false, false]);
        assert_eq!(compare(CompareRelation::Less, left(), right()), [true, false, false, false]);
        assert_eq!(compare(CompareRelation::LessOrEqual, left(), right()), [true, true, false, false]);
        assert_eq!(compare(CompareRelation::Greater, left(), right()), [false, false, true, false]);
        assert_eq!(compare(CompareRelation::GreaterOrEqual, left(), right()), [false, true, true, false]);
    }

    #[test]
    fn large_integers_and_strings_are_exact() {
        let near = |last: u64| Tensor::from_elements(&[1], &[u64::MAX - last]).unwrap();
        assert_eq!(compare(CompareRelation::Equal, near(0), near(1)), [false]);
        assert_eq!(compare(CompareRelation::Greater, near(0), near(1)), [true]);
        let text = |text: &str| Tensor::from_strings(&[1], vec![text.to_string()]).unwrap();
        assert_eq!(compare(CompareRelation::Equal, text("a"), text("a")), [true]);
        assert_eq!(
            run(&Compare { relation: CompareRelation::Less }, &[text("a"), text("b")]).unwrap_err().to_string(),
            "operand 0 must be a real number type, found string"
        );
        assert_eq!(
            run(&Compare { relation: CompareRelation::Equal }, &[near(0), text("b")]).unwrap_err().to_string(),
            "operand 1 must be u64, found string"
        );
    }

    #[test]
    fn decided_relations_are_known_before_the_run() {
        let mut ranges = Ranges::new();
        ranges.set("n", 1, 100).unwrap();
        let mut blocks = NoBlocks;
        let mut context = InferContext::new("compare", &ranges, &mut blocks);
        let fact = |dims: Vec<Dim>| Some(Fact::of_dims(DType::I64, vec![Dim::from(dims.len())], dims));
        let n = Dim::symbol("n");
        let inputs = [fact(vec![n.clone(), n + 1]), fact(vec![Dim::known(-1)])];
        let equal = Compare { relation: CompareRelation::Equal }.infer(&inputs, &mut context).unwrap();
        assert_eq!(equal[0].elements_as_integers(), Some(vec![0, 0]));
        let less = Compare { relation: CompareRelation::Greater }.infer(&inputs, &mut context).unwrap();
        assert_eq!(less[0].elements_as_integers(), Some(vec![1, 1]));
        let unknown = [inputs[0].clone(), fact(vec![Dim::known(5)])];
        let open = Compare { relation: CompareRelation::Equal }.infer(&unknown, &mut context).unwrap();
        assert_eq!(open[0].contents, None);
    }
}
