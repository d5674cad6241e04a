//! What is known of a value before it exists: its type, its symbolic shape, and sometimes its contents.

use crate::dim::Dim;
use crate::dtype::DType;
use crate::tensor::Tensor;
use crate::with_number;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Integer tensors of up to this many elements have their contents followed as dimensions.
pub const MAXIMUM_FOLLOWED_ELEMENTS: usize = 1024;

/// The extents of a tensor's axes, or nothing where even their number depends on data.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Shape {
    /// One dimension an axis.
    Ranked(Vec<Dim>),
    /// The number of axes is unknown.
    Unranked,
}

impl Shape {
    /// The shape of these known extents.
    pub fn known(extents: &[usize]) -> Shape {
        Shape::Ranked(extents.iter().map(|&extent| Dim::from(extent)).collect())
    }

    /// The dimensions, or `None` where the rank is unknown.
    pub fn dims(&self) -> Option<&[Dim]> {
        match self {
            Shape::Ranked(dims) => Some(dims),
            Shape::Unranked => None,
        }
    }

    /// Number of axes, where known.
    pub fn rank(&self) -> Option<usize> {
        self.dims().map(<[Dim]>::len)
    }

    /// All extents, where every one is a known number.
    pub fn as_known(&self) -> Option<Vec<usize>> {
        self.dims()?.iter().map(|dim| usize::try_from(dim.as_known()?).ok()).collect()
    }
}

impl From<Vec<Dim>> for Shape {
    fn from(dims: Vec<Dim>) -> Shape {
        Shape::Ranked(dims)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Unranked => formatter.write_str("[..]"),
            Shape::Ranked(dims) => {
                formatter.write_str("[")?;
                for (axis, dim) in dims.iter().enumerate() {
                    write!(formatter, "{}{dim}", if axis == 0 { "" } else { ", " })?;
                }
                formatter.write_str("]")
            }
        }
    }
}

/// The type of a value. Printed `f32[batch, 64]`, `sequence(f32[..])`, `optional(..)`, `map(i64, ..)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Type {
    /// A dense tensor.
    Tensor {
        /// Element type.
        dtype: DType,
        /// Extents.
        shape: Shape,
    },
    /// Any number of values of one type.
    Sequence(Box<Type>),
    /// A value or nothing.
    Optional(Box<Type>),
    /// Keys to values.
    Map {
        /// Element type of the keys.
        key: DType,
        /// Type of the values.
        element: Box<Type>,
    },
}

impl Type {
    /// A tensor type.
    pub fn tensor(dtype: DType, shape: impl Into<Shape>) -> Type {
        Type::Tensor { dtype, shape: shape.into() }
    }

    /// The type of an existing tensor.
    pub fn of_tensor(tensor: &Tensor) -> Type {
        Type::Tensor { dtype: tensor.dtype(), shape: Shape::known(tensor.shape()) }
    }

    /// Names of all open dimensions.
    pub fn symbols(&self) -> BTreeSet<Arc<str>> {
        match self {
            Type::Tensor { shape, .. } => shape.dims().unwrap_or(&[]).iter().flat_map(Dim::symbols).collect(),
            Type::Sequence(element) | Type::Optional(element) | Type::Map { element, .. } => element.symbols(),
        }
    }

    /// Element type and shape, if this is a tensor.
    pub fn as_tensor(&self) -> Option<(DType, &Shape)> {
        match self {
            Type::Tensor { dtype, shape } => Some((*dtype, shape)),
            Type::Sequence(_) | Type::Optional(_) | Type::Map { .. } => None,
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Tensor { dtype, shape } => write!(formatter, "{dtype}{shape}"),
            Type::Sequence(element) => write!(formatter, "sequence({element})"),
            Type::Optional(element) => write!(formatter, "optional({element})"),
            Type::Map { key, element } => write!(formatter, "map({key}, {element})"),
        }
    }
}

/// Contents of a tensor that are known before it is computed.
#[derive(Debug, Clone, PartialEq)]
pub enum Contents {
    /// Every element.
    Constant(Tensor),
    /// Every element of an integer (or bool: 0, 1) tensor, row-major, as expressions.
    Dims(Vec<Dim>),
}

/// What is known of a value: its type, and its contents where they matter to shapes.
#[derive(Debug, Clone, PartialEq)]
pub struct Fact {
    /// The type.
    pub kind: Type,
    /// The contents, where known.
    pub contents: Option<Contents>,
}

impl Fact {
    /// A fact of a type with unknown contents.
    pub fn of(kind: Type) -> Fact {
        Fact { kind, contents: None }
    }

    /// A tensor with unknown contents.
    pub fn tensor(dtype: DType, shape: impl Into<Shape>) -> Fact {
        Fact::of(Type::tensor(dtype, shape))
    }

    /// A tensor whose every element is known.
    pub fn constant(tensor: Tensor) -> Fact {
        Fact { kind: Type::of_tensor(&tensor), contents: Some(Contents::Constant(tensor)) }
    }

    /// An integer or bool tensor whose elements are these expressions, row-major. The caller gives the matching shape.
    pub fn of_dims(dtype: DType, shape: impl Into<Shape>, dims: Vec<Dim>) -> Fact {
        let mut fact = Fact::tensor(dtype, shape);
        if dims.len() <= MAXIMUM_FOLLOWED_ELEMENTS {
            fact.contents = Some(Contents::Dims(dims));
        }
        fact
    }

    /// Element type, if this is a tensor.
    pub fn dtype(&self) -> Option<DType> {
        self.kind.as_tensor().map(|(dtype, _)| dtype)
    }

    /// Dimensions, if this is a tensor of known rank.
    pub fn dims(&self) -> Option<&[Dim]> {
        self.kind.as_tensor().and_then(|(_, shape)| shape.dims())
    }

    /// Rank, if this is a tensor of known rank.
    pub fn rank(&self) -> Option<usize> {
        self.dims().map(<[Dim]>::len)
    }

    /// The tensor, where every element is known as a number.
    pub fn as_constant(&self) -> Option<&Tensor> {
        match &self.contents {
            Some(Contents::Constant(tensor)) => Some(tensor),
            Some(Contents::Dims(_)) | None => None,
        }
    }

    /// The elements of an integer or bool tensor as expressions, row-major, where known.
    pub fn elements_as_dims(&self) -> Option<Vec<Dim>> {
        match &self.contents {
            Some(Contents::Dims(dims)) => Some(dims.clone()),
            Some(Contents::Constant(tensor)) if tensor.count() <= MAXIMUM_FOLLOWED_ELEMENTS => {
                Some(integers(tensor)?.into_iter().map(Dim::known).collect())
            }
            Some(Contents::Constant(_)) | None => None,
        }
    }

    /// The elements of an integer or bool tensor as numbers, row-major, where known.
    pub fn elements_as_integers(&self) -> Option<Vec<i64>> {
        match &self.contents {
            Some(Contents::Dims(dims)) => dims.iter().map(Dim::as_known).collect(),
            Some(Contents::Constant(tensor)) => integers(tensor),
            None => None,
        }
    }
}

/// All elements of an integer or bool tensor as i64; `None` for other types and for u64 beyond i64.
pub fn integers(tensor: &Tensor) -> Option<Vec<i64>> {
    let dtype = tensor.dtype();
    if dtype == DType::Bool {
        return Some(tensor.bytes().iter().map(|&byte| i64::from(byte)).collect());
    }
    if !dtype.is_integer() {
        return None;
    }
    if dtype.is_sub_byte() {
        let unused = 8 - dtype.bits() as u32;
        let signed = dtype.is_signed_integer();
        let widen = |code: u8| if signed { i64::from((code << unused) as i8 >> unused) } else { i64::from(code) };
        return Some(tensor.codes().into_iter().map(widen).collect());
    }
    with_number!(
        dtype,
        T => tensor.elements::<T>().ok()?.iter().map(|&element| num_traits::ToPrimitive::to_i64(&element)).collect(),
        otherwise None
    )
}

/// A tensor of an integer or bool type from i64 elements; `None` where one does not fit or counts differ.
pub fn tensor_of_integers(dtype: DType, shape: &[usize], elements: &[i64]) -> Option<Tensor> {
    if dtype == DType::Bool {
        let bools: Vec<bool> = elements.iter().map(|&element| element != 0).collect();
        return Tensor::from_bools(shape, &bools).ok();
    }
    if !dtype.is_integer() || dtype.is_sub_byte() {
        return None;
    }
    with_number!(
        dtype,
        T => {
            let cast: Vec<T> = elements.iter().map(|&element| num_traits::cast(element)).collect::<Option<_>>()?;
            Tensor::from_elements(shape, &cast).ok()
        },
        otherwise None
    )
}
