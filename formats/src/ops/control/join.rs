//! Types that meet: what is known of a value that comes from one of several places.
//!
//! Two branches give one result, a loop gives its body a value from before or from itself, a sequence holds items of
//! several shapes. Dimensions that differ are replaced, ranks that differ leave the rank unknown. Which symbols mean
//! the same inside and outside a body is decided here too: a symbol that no operand brings in is local to the body.

use crate::dim::Dim;
use crate::fact::{Contents, Fact, Shape, Type};
use crate::ops::TypeError;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Name of the symbol that stands, inside the element type of a sequence only, for an extent that differs from item
/// to item. [`item_type`] replaces it by a dimension of the item that is taken out.
pub const VARYING: &str = "?";

/// The type that covers both; `None` where element types or kinds differ. A dimension that differs along an axis
/// becomes `fresh(axis)`.
pub fn join(left: &Type, right: &Type, fresh: &mut dyn FnMut(usize) -> Dim) -> Option<Type> {
    match (left, right) {
        (Type::Tensor { dtype, shape }, Type::Tensor { dtype: other, shape: other_shape }) => {
            (dtype == other).then(|| Type::tensor(*dtype, join_shapes(shape, other_shape, fresh)))
        }
        (Type::Sequence(element), Type::Sequence(other)) => Some(Type::Sequence(Box::new(join_items(element, other)?))),
        (Type::Optional(element), Type::Optional(other)) => {
            Some(Type::Optional(Box::new(join(element, other, fresh)?)))
        }
        (Type::Map { key, element }, Type::Map { key: other_key, element: other }) if key == other_key => {
            Some(Type::Map { key: *key, element: Box::new(join_items(element, other)?) })
        }
        _ => None,
    }
}

/// The element type of a sequence that holds items of both types; `None` where element types or kinds differ.
pub fn join_items(left: &Type, right: &Type) -> Option<Type> {
    join(left, right, &mut |_| Dim::symbol(VARYING))
}

fn join_shapes(left: &Shape, right: &Shape, fresh: &mut dyn FnMut(usize) -> Dim) -> Shape {
    match (left.dims(), right.dims()) {
        (Some(left), Some(right)) if left.len() == right.len() => {
            let joined = left.iter().zip(right).enumerate();
            Shape::Ranked(joined.map(|(axis, (a, b))| if same(a, b) { a.clone() } else { fresh(axis) }).collect())
        }
        (Some(_) | None, Some(_) | None) => Shape::Unranked,
    }
}

/// Equal as expressions; refused dimensions equal nothing.
fn same(left: &Dim, right: &Dim) -> bool {
    !left.is_refused() && left == right
}

/// The type of one item taken out of a sequence of this element type: extents that vary become `fresh(axis)`.
pub fn item_type(element: &Type, fresh: &mut dyn FnMut(usize) -> Dim) -> Type {
    replace_dims(element, &|dim| dim.symbols().contains(VARYING), fresh)
}

/// The type as seen outside a body: dimensions with symbols other than `outer` become `fresh(axis)`.
pub fn outside(kind: &Type, outer: &BTreeSet<Arc<str>>, fresh: &mut dyn FnMut(usize) -> Dim) -> Type {
    replace_dims(kind, &|dim| dim.is_refused() || !dim.symbols().is_subset(outer), fresh)
}

/// Facts of values that a body of step `step` carries from one iteration to the next, after an iteration that takes
/// `carried` gave `results`: what covers both, without contents. Equal to `carried` where an iteration changes nothing.
/// A value that starts as an optional may become what that holds; the next iteration takes it as an optional again.
///
/// # Errors
/// [`TypeError::Block`] where a value changes its element type or kind, or is not given at all.
pub fn widen(carried: &[Fact], results: &[Fact], step: &str) -> Result<Vec<Fact>, TypeError> {
    if results.len() < carried.len() {
        let counts = format!("{} results for {} carried values", results.len(), carried.len());
        return Err(TypeError::Block(counts));
    }
    let mut widened = Vec::with_capacity(carried.len());
    for (index, (old, new)) in carried.iter().zip(results).enumerate() {
        let mut fresh = |axis: usize| Dim::symbol(&format!("{step}.carried{index}.{axis}"));
        let joined = match (&old.kind, &new.kind) {
            (Type::Optional(_), Type::Optional(_)) => join(&old.kind, &new.kind, &mut fresh),
            (Type::Optional(held), new) => join(held, new, &mut fresh).map(|held| Type::Optional(Box::new(held))),
            (old, new) => join(old, new, &mut fresh),
        };
        let kind = joined.ok_or_else(|| {
            TypeError::Block(format!("carried value {index} is {} and becomes {}", old.kind, new.kind))
        })?;
        widened.push(Fact::of(kind));
    }
    Ok(widened)
}

/// The fact as seen outside a body; contents with local symbols are forgotten.
pub fn outside_fact(fact: &Fact, outer: &BTreeSet<Arc<str>>, fresh: &mut dyn FnMut(usize) -> Dim) -> Fact {
    let contents = match &fact.contents {
        Some(Contents::Dims(dims)) if !dims.iter().all(|dim| dim.symbols().is_subset(outer)) => None,
        contents @ (Some(Contents::Dims(_) | Contents::Constant(_)) | None) => contents.clone(),
    };
    Fact { kind: outside(&fact.kind, outer, fresh), contents }
}

fn replace_dims(kind: &Type, is_local: &dyn Fn(&Dim) -> bool, fresh: &mut dyn FnMut(usize) -> Dim) -> Type {
    match kind {
        Type::Tensor { shape: Shape::Unranked, .. } => kind.clone(),
        Type::Tensor { dtype, shape: Shape::Ranked(dims) } => {
            let replaced = dims.iter().enumerate();
            let replaced = replaced.map(|(axis, dim)| if is_local(dim) { fresh(axis) } else { dim.clone() });
            Type::Tensor { dtype: *dtype, shape: Shape::Ranked(replaced.collect()) }
        }
        Type::Sequence(element) => {
            let element = replace_dims(element, is_local, &mut |_| Dim::symbol(VARYING));
            Type::Sequence(Box::new(element))
        }
        Type::Optional(element) => Type::Optional(Box::new(replace_dims(element, is_local, fresh))),
        Type::Map { key, element } => {
            let element = replace_dims(element, is_local, &mut |_| Dim::symbol(VARYING));
            Type::Map { key: *key, element: Box::new(element) }
        }
    }
}

/// Every symbol in types and contents of these facts, and [`VARYING`], which means the same everywhere.
pub fn symbols_of<'a>(facts: impl IntoIterator<Item = &'a Fact>) -> BTreeSet<Arc<str>> {
    let mut symbols = BTreeSet::from([Arc::from(VARYING)]);
    for fact in facts {
        collect(&fact.kind, &mut symbols);
        if let Some(Contents::Dims(dims)) = &fact.contents {
            symbols.extend(dims.iter().flat_map(Dim::symbols));
        }
    }
    symbols
}

fn collect(kind: &Type, symbols: &mut BTreeSet<Arc<str>>) {
    match kind {
        Type::Tensor { shape, .. } => {
            symbols.extend(shape.dims().unwrap_or_default().iter().flat_map(Dim::symbols));
        }
        Type::Sequence(element) | Type::Optional(element) | Type::Map { element, .. } => collect(element, symbols),
    }
}

/// The type with nothing known of any shape.
pub fn without_shapes(kind: &Type) -> Type {
    match kind {
        Type::Tensor { dtype, .. } => Type::tensor(*dtype, Shape::Unranked),
        Type::Sequence(element) => Type::Sequence(Box::new(without_shapes(element))),
        Type::Optional(element) => Type::Optional(Box::new(without_shapes(element))),
        Type::Map { key, element } => Type::Map { key: *key, element: Box::new(without_shapes(element)) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    fn symbolic(dims: &[&str]) -> Type {
        Type::tensor(DType::F32, dims.iter().map(|name| Dim::symbol(name)).collect::<Vec<_>>())
    }

    #[test]
    fn differing_dimensions_become_fresh() {
        let joined = join(&symbolic(&["n", "a"]), &symbolic(&["n", "b"]), &mut |axis| Dim::symbol(&format!("f{axis}")));
        assert_eq!(joined, Some(symbolic(&["n", "f1"])));
        let joined = join(&symbolic(&["n"]), &symbolic(&["n", "b"]), &mut |_| Dim::ONE);
        assert_eq!(joined, Some(Type::tensor(DType::F32, Shape::Unranked)));
        assert_eq!(join(&symbolic(&[]), &Type::tensor(DType::F64, vec![]), &mut |_| Dim::ONE), None);
        assert_eq!(join(&symbolic(&[]), &Type::Sequence(Box::new(symbolic(&[]))), &mut |_| Dim::ONE), None);
    }

    #[test]
    fn items_of_a_sequence_vary() {
        let element = join_items(&symbolic(&["n", "a"]), &symbolic(&["n", "b"])).unwrap();
        assert_eq!(element, symbolic(&["n", "?"]));
        assert_eq!(item_type(&element, &mut |axis| Dim::symbol(&format!("at.{axis}"))), symbolic(&["n", "at.1"]));
    }

    #[test]
    fn local_symbols_do_not_leave_a_body() {
        let outer = symbols_of([&Fact::of(symbolic(&["n"]))]);
        let inside = Fact::of_dims(DType::I64, vec![Dim::symbol("count")], vec![Dim::symbol("count")]);
        let seen = outside_fact(&inside, &outer, &mut |_| Dim::symbol("result"));
        assert_eq!(seen, Fact::tensor(DType::I64, vec![Dim::symbol("result")]));
        let sequence = Type::Sequence(Box::new(symbolic(&["n", "count"])));
        let expected = Type::Sequence(Box::new(symbolic(&["n", "?"])));
        assert_eq!(outside(&sequence, &outer, &mut |_| Dim::ONE), expected);
    }
}
