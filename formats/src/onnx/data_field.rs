//! Where the elements of a `TensorProto` are: in one of its data fields, here or in the file, or in another file.

use super::external::ExternalData;
use crate::dtype::DType;
use crate::tensor::Tensor;

/// A data field of `TensorProto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
#[repr(u32)]
pub enum DataField {
    /// 4 bytes an element: f32, and the halves of c64.
    FloatData = 4,
    /// Varints: all integers up to 32 bits, booleans, and the bits of narrow floats.
    Int32Data = 5,
    /// Text.
    StringData = 6,
    /// Varints: i64.
    Int64Data = 7,
    /// The canonical bytes.
    RawData = 9,
    /// 8 bytes an element: f64, and the halves of c128.
    DoubleData = 10,
    /// Varints: u32 and u64.
    Uint64Data = 11,
}

impl DataField {
    /// Name in the schema.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether elements of this type may be stored in this field.
    pub(super) fn holds(self, dtype: DType) -> bool {
        match self {
            Self::FloatData => matches!(dtype, DType::F32 | DType::C64),
            Self::DoubleData => matches!(dtype, DType::F64 | DType::C128),
            Self::Int64Data => dtype == DType::I64,
            Self::Uint64Data => matches!(dtype, DType::U32 | DType::U64),
            Self::StringData => dtype == DType::String,
            Self::RawData => dtype != DType::String,
            Self::Int32Data => {
                let narrow = matches!(dtype.bits(), 1..=16);
                narrow || dtype == DType::I32
            }
        }
    }
}

/// Bytes of a data field in the ONNX file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where they begin.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
    /// Each element has its field key before it, instead of all being packed.
    pub tagged: bool,
}

/// Where the elements of a tensor are.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorData {
    /// Here.
    Inline(Tensor),
    /// In the ONNX file.
    InFile {
        /// The field, which says how they are stored.
        field: DataField,
        /// The occurrences of the field, in order.
        segments: Vec<Segment>,
    },
    /// In another file, as canonical bytes.
    External(ExternalData),
}
