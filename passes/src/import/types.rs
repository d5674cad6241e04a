//! ONNX types become types.

use crate::import::importer::Importer;
use crate::import::lower_error::LowerError;
use ipuc_formats::dim::Dim;
use ipuc_formats::dtype::DType;
use ipuc_formats::fact::{Shape, Type};
use ipuc_formats::onnx::schema::tensor_shape_proto::dimension;
use ipuc_formats::onnx::schema::{TensorShapeProto, TypeProto, type_proto};
use ipuc_formats::ops::control::join::{VARYING, outside};
use std::collections::BTreeSet;

impl Importer<'_> {
    /// The type of a value named `name`; a dimension without a name or number becomes the symbol `name.axis`.
    pub(crate) fn import_type(&self, proto: &TypeProto, name: &str) -> Result<Type, LowerError> {
        import_type(proto, name)
    }
}

/// The type of a value named `name`; a dimension without a name or number becomes the symbol `name.axis`.
pub(crate) fn import_type(proto: &TypeProto, name: &str) -> Result<Type, LowerError> {
    let missing = || LowerError::Unsupported("a type without an element type".to_string());
    match proto.value.as_ref().ok_or_else(missing)? {
        type_proto::Value::TensorType(tensor) => {
            let shape = match &tensor.shape {
                None => Shape::Unranked,
                Some(shape) => import_shape(shape, name)?,
            };
            Ok(Type::Tensor { dtype: element_type(tensor.elem_type)?, shape })
        }
        type_proto::Value::SequenceType(sequence) => {
            let element = sequence.elem_type.as_deref().ok_or_else(missing)?;
            Ok(Type::Sequence(Box::new(import_item_type(element, name)?)))
        }
        type_proto::Value::OptionalType(optional) => {
            let element = optional.elem_type.as_deref().ok_or_else(missing)?;
            Ok(Type::Optional(Box::new(import_type(element, name)?)))
        }
        type_proto::Value::MapType(map) => {
            let element = map.value_type.as_deref().ok_or_else(missing)?;
            Ok(Type::Map { key: element_type(map.key_type)?, element: Box::new(import_item_type(element, name)?) })
        }
        type_proto::Value::SparseTensorType(_) => Err(LowerError::Unsupported("a sparse tensor type".to_string())),
        type_proto::Value::OpaqueType(_) => Err(LowerError::Unsupported("an opaque type".to_string())),
    }
}

/// The type of the items of a sequence named `name`: a dimension that is no number may differ from item to item.
fn import_item_type(proto: &TypeProto, name: &str) -> Result<Type, LowerError> {
    Ok(outside(&import_type(proto, name)?, &BTreeSet::new(), &mut |_| Dim::symbol(VARYING)))
}

/// An element type by its ONNX number.
pub(crate) fn element_type(number: Option<i32>) -> Result<DType, LowerError> {
    let number = number.unwrap_or(0);
    DType::from_onnx(number).ok_or_else(|| LowerError::Unsupported(format!("element type number {number}")))
}

fn import_shape(proto: &TensorShapeProto, name: &str) -> Result<Shape, LowerError> {
    let dims = proto.dim.iter().enumerate().map(|(axis, dimension)| {
        let unnamed = || Dim::symbol(&format!("{name}.{axis}"));
        match &dimension.value {
            // Exporters write -1 for "unknown", and some 0.
            Some(dimension::Value::DimValue(extent)) if *extent > 0 => Ok(Dim::known(*extent)),
            Some(dimension::Value::DimValue(0)) => Ok(Dim::known(0)),
            Some(dimension::Value::DimValue(-1)) | None => Ok(unnamed()),
            Some(dimension::Value::DimValue(extent)) => {
                Err(LowerError::Unsupported(format!("a dimension of {extent} in `{name}`")))
            }
            Some(dimension::Value::DimParam(param)) if param.is_empty() || param == "?" => Ok(unnamed()),
            Some(dimension::Value::DimParam(param)) => Ok(Dim::from_onnx_param(param)),
        }
    });
    Ok(Shape::Ranked(dims.collect::<Result<_, _>>()?))
}
