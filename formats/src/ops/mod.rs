//! The only list of operators, and what each of them means.
//!
//! [`for_each_operator!`](crate::for_each_operator) is the list: wire code, Rust type, text name. Each operator has a
//! file here with its attributes, its type rule (`infer`), its meaning (`reference`), its work and how it reads its
//! weights: the trait [`Operator`]. Codes and names are never reused.
//!
//! A code says what an operator is, a revision how far its attributes have grown; bytes and text follow from the list
//! of fields in [`attributes!`](crate::attributes).

mod arithmetic;
pub mod broadcast;
mod epilogue;
mod floats;
mod operator;
pub mod parts;
mod reference;
pub mod scalar;
pub mod single;
#[cfg(test)]
mod test_blocks;
#[cfg(test)]
pub(crate) mod testing;
mod windows;

mod attention;
mod classical;
pub mod control;
mod elementwise;
mod images;
mod movement;
mod normalization;
mod products;
mod quantization;
mod recurrence;
mod signal;
mod text;

pub use arithmetic::*;
pub use attention::*;
pub use classical::*;
pub use control::*;
pub use elementwise::*;
pub use epilogue::*;
pub use images::*;
pub use movement::*;
pub use normalization::*;
pub use operator::*;
pub use products::*;
pub use quantization::*;
pub use recurrence::*;
pub use reference::*;
pub use signal::*;
pub use text::*;
pub use windows::{AutoPad, WindowAxis};

use crate::attribute::{AttributeError, AttributeValue};

/// Calls `$table!` with the list of operators: `code Type "name",` a row.
///
/// A consumer defines a macro that takes rows `$($code:literal $Op:ident $name:literal,)*`.
#[macro_export]
macro_rules! for_each_operator {
    ($table:ident) => {
        $table! {
            // Elementwise: 0x01 to 0x1f.
            0x01 Unary "unary",
            0x02 Activation "activation",
            0x03 Binary "binary",
            0x04 Compare "compare",
            0x05 Select "select",
            0x06 Clamp "clamp",
            0x07 Cast "cast",
            0x08 BitCast "bit_cast",
            0x09 Quantize "quantize",
            0x0a Dequantize "dequantize",
            0x0b DynamicQuantize "dynamic_quantize",
            0x0c Random "random",
            0x0d Multinomial "multinomial",
            0x0e Dropout "dropout",
            // Data movement: 0x20 to 0x4f.
            0x20 Reshape "reshape",
            0x21 Flatten "flatten",
            0x22 Squeeze "squeeze",
            0x23 Unsqueeze "unsqueeze",
            0x24 Transpose "transpose",
            0x25 Expand "expand",
            0x26 Concat "concat",
            0x27 Split "split",
            0x28 Slice "slice",
            0x29 Pad "pad",
            0x2a Tile "tile",
            0x2b ShapeOf "shape",
            0x2c SizeOf "size",
            0x2d Range "range",
            0x2e DepthToSpace "depth_to_space",
            0x2f SpaceToDepth "space_to_depth",
            0x30 Gather "gather",
            0x31 GatherElements "gather_elements",
            0x32 GatherNd "gather_nd",
            0x33 ScatterElements "scatter_elements",
            0x34 ScatterNd "scatter_nd",
            0x35 TensorScatter "tensor_scatter",
            0x36 OneHot "one_hot",
            0x37 Trilu "trilu",
            0x38 EyeLike "eye_like",
            0x39 ReverseSequence "reverse_sequence",
            0x3a CenterCropPad "center_crop_pad",
            0x3b NonZero "non_zero",
            0x3c Unique "unique",
            0x3d Compress "compress",
            0x3e TopK "top_k",
            // Products and windows: 0x50 to 0x6f.
            0x50 Matmul "matmul",
            0x51 Convolution "convolution",
            0x52 ConvolutionTranspose "convolution_transpose",
            0x53 Pool "pool",
            0x54 Resize "resize",
            0x55 GridSample "grid_sample",
            0x56 AffineGrid "affine_grid",
            0x57 RoiAlign "roi_align",
            0x58 MaxRoiPool "max_roi_pool",
            0x59 MaxUnpool "max_unpool",
            0x5a Col2im "col2im",
            0x5b DeformableConvolution "deformable_convolution",
            0x5c Einsum "einsum",
            0x5d Determinant "determinant",
            0x5e IntegerMatmul "integer_matmul",
            0x5f IntegerConvolution "integer_convolution",
            // Normalization, reduction, recurrence, attention: 0x70 to 0x8f.
            0x70 Reduce "reduce",
            0x71 ArgReduce "arg_reduce",
            0x72 Cumulative "cumulative",
            0x73 Softmax "softmax",
            0x74 LayerNormalization "layer_normalization",
            0x75 BatchNormalization "batch_normalization",
            0x76 GroupNormalization "group_normalization",
            0x77 LocalResponseNormalization "local_response_normalization",
            0x78 Lstm "lstm",
            0x79 Gru "gru",
            0x7a Rnn "rnn",
            0x7b Attention "attention",
            0x7c RotaryEmbedding "rotary_embedding",
            0x7d LinearAttention "linear_attention",
            0x7e CausalConvolution "causal_convolution",
            0x7f NegativeLogLikelihood "negative_log_likelihood",
            // Selection, control flow, sequences, text, signals, images: 0x90 to 0xbf.
            0x90 If "if",
            0x91 Loop "loop",
            0x92 Scan "scan",
            0x93 SequenceMap "sequence_map",
            0x94 SequenceConstruct "sequence",
            0x95 SequenceAt "sequence_at",
            0x96 SequenceInsert "sequence_insert",
            0x97 SequenceErase "sequence_erase",
            0x98 SequenceLength "sequence_length",
            0x99 SequenceSplit "sequence_split",
            0x9a SequenceConcat "sequence_concat",
            0x9b OptionalConstruct "optional",
            0x9c OptionalGet "optional_get",
            0x9d OptionalHas "optional_has",
            0xa0 StringConcat "string_concat",
            0xa1 StringNormalize "string_normalize",
            0xa2 StringSplit "string_split",
            0xa3 RegexFullMatch "regex_full_match",
            0xa4 TfIdf "tf_idf",
            0xa8 NonMaxSuppression "non_max_suppression",
            0xa9 FourierTransform "fourier_transform",
            0xaa ShortTimeFourierTransform "short_time_fourier_transform",
            0xab Window "window",
            0xac MelWeights "mel_weights",
            0xb0 LabelEncode "label_encode",
            0xb1 TreeEnsemble "tree_ensemble",
            0xb2 ScoreTransform "score_transform",
            0xb3 ZipMap "zip_map",
        }
    };
}

/// Declares an operator's attributes once: `number since revision => name: type,` a field.
///
/// ```ignore
/// attributes! {
///     /// What the operator computes.
///     pub struct Softmax revision 1 {
///         /// Counted from the back where negative.
///         1 since 1 => axis: i64,
///     }
/// }
/// ```
/// expands to `pub struct Softmax { pub axis: i64 }` and its [`Attributes`], from which bytes and text follow.
#[macro_export]
macro_rules! attributes {
    ($(#[$meta:meta])* pub struct $Op:ident revision $revision:literal {
        $($(#[$field_meta:meta])* $number:literal since $since:literal => $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $Op {
            $($(#[$field_meta])* pub $field: $type,)*
        }
        impl $crate::ops::Attributes for $Op {
            const REVISION: u32 = $revision;
            const FIELDS: &'static [$crate::ops::Field] = &[
                $($crate::ops::Field { number: $number, name: stringify!($field), since: $since },)*
            ];
            fn values(&self) -> Vec<Option<$crate::attribute::AttributeValue>> {
                vec![$($crate::attribute::Attribute::to_value(&self.$field),)*]
            }
            #[allow(unused_mut, unused_variables, reason = "operators without attributes take nothing")]
            fn build(
                operator: &'static str,
                mut take: impl FnMut(&'static str) -> Option<$crate::attribute::AttributeValue>,
            ) -> Result<Self, $crate::attribute::AttributeError> {
                Ok($Op { $($field: $crate::ops::field(operator, stringify!($field), take(stringify!($field)))?,)* })
            }
        }
    };
}

/// One field of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Number on the wire; never reused.
    pub number: u32,
    /// Name in the text form.
    pub name: &'static str,
    /// First revision of the operator that has the field.
    pub since: u32,
}

/// What [`attributes!`](crate::attributes) writes for an operator.
pub trait Attributes: Sized {
    /// Highest revision that this version knows.
    const REVISION: u32;
    /// The fields in declaration order.
    const FIELDS: &'static [Field];
    /// The value of each field; `None` where its default is left out.
    fn values(&self) -> Vec<Option<AttributeValue>>;
    /// The operator from its fields by name.
    ///
    /// # Errors
    /// [`AttributeError`] where a field is missing or does not fit.
    fn build(
        operator: &'static str,
        take: impl FnMut(&'static str) -> Option<AttributeValue>,
    ) -> Result<Self, AttributeError>;
}

/// Convert one stored field; called by [`attributes!`](crate::attributes).
///
/// # Errors
/// [`AttributeError::Missing`] or [`AttributeError::Value`].
pub fn field<T: crate::attribute::Attribute>(
    operator: &'static str,
    name: &'static str,
    value: Option<AttributeValue>,
) -> Result<T, AttributeError> {
    match value {
        None => T::absent().ok_or(AttributeError::Missing { operator, name }),
        Some(value) => T::from_value(&value).ok_or_else(|| AttributeError::Value {
            operator,
            name,
            value: crate::attribute_text::print(&value),
        }),
    }
}

fn decode_fields<T: Attributes>(
    operator: &'static str,
    revision: u32,
    stored: &[(u32, AttributeValue)],
) -> Result<T, AttributeError> {
    if revision > T::REVISION {
        return Err(AttributeError::Revision { operator, found: revision, known: T::REVISION });
    }
    for (index, (number, _)) in stored.iter().enumerate() {
        let field = T::FIELDS
            .iter()
            .find(|field| field.number == *number && field.since <= revision)
            .ok_or(AttributeError::UnknownNumber { operator, number: *number })?;
        if stored[..index].iter().any(|(earlier, _)| earlier == number) {
            return Err(AttributeError::Duplicate { operator, name: field.name });
        }
    }
    T::build(operator, |name| {
        let number = T::FIELDS.iter().find(|field| field.name == name)?.number;
        stored.iter().find(|(stored_number, _)| *stored_number == number).map(|(_, value)| value.clone())
    })
}

fn build_fields<T: Attributes>(
    operator: &'static str,
    named: &[(String, AttributeValue)],
) -> Result<T, AttributeError> {
    for (index, (name, _)) in named.iter().enumerate() {
        let field = T::FIELDS
            .iter()
            .find(|field| field.name == name)
            .ok_or_else(|| AttributeError::UnknownAttribute { operator, name: name.clone() })?;
        if named[..index].iter().any(|(earlier, _)| earlier == name) {
            return Err(AttributeError::Duplicate { operator, name: field.name });
        }
    }
    T::build(operator, |name| named.iter().find(|(given, _)| given == name).map(|(_, value)| value.clone()))
}

fn numbered<T: Attributes>(operator: &T) -> Vec<(u32, &'static str, AttributeValue)> {
    T::FIELDS
        .iter()
        .zip(operator.values())
        .filter_map(|(field, value)| Some((field.number, field.name, value?)))
        .collect()
}

macro_rules! define {
    ($($code:literal $Op:ident $name:literal,)*) => {
        /// Any operator of the table.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Op {
            $(#[doc = concat!("`", $name, "`")] $Op($Op),)*
        }

        /// Code, name, revision and fields of every operator, in the order of the table.
        pub const TABLE: &[Row] = &[
            $(Row { code: $code, name: $name, revision: <$Op as Attributes>::REVISION, fields: <$Op as Attributes>::FIELDS },)*
        ];

        impl Op {
            /// The code on the wire.
            pub fn code(&self) -> u32 {
                match self { $(Op::$Op(_) => $code,)* }
            }
            /// The name in the text form.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$Op(_) => $name,)* }
            }
            /// The revision that is written.
            pub fn revision(&self) -> u32 {
                match self { $(Op::$Op(_) => <$Op as Attributes>::REVISION,)* }
            }
            /// The attributes that are not at their default: number, name, value.
            pub fn attributes(&self) -> Vec<(u32, &'static str, AttributeValue)> {
                match self { $(Op::$Op(operator) => numbered(operator),)* }
            }
            /// The operator of a stored code, revision and attributes.
            ///
            /// # Errors
            /// [`AttributeError`] for unknown codes, revisions, numbers and values.
            pub fn decode(code: u32, revision: u32, stored: &[(u32, AttributeValue)]) -> Result<Op, AttributeError> {
                match code {
                    $($code => decode_fields($name, revision, stored).map(Op::$Op),)*
                    unknown => Err(AttributeError::UnknownOperator(unknown)),
                }
            }
            /// The operator of a text name and named attributes.
            ///
            /// # Errors
            /// [`AttributeError`] for unknown names and values.
            pub fn build(name: &str, named: &[(String, AttributeValue)]) -> Result<Op, AttributeError> {
                match name {
                    $($name => build_fields($name, named).map(Op::$Op),)*
                    unknown => Err(AttributeError::UnknownName(unknown.to_string())),
                }
            }
            /// What the operator means.
            pub fn operator(&self) -> &dyn Operator {
                match self { $(Op::$Op(operator) => operator,)* }
            }
        }

        $(impl From<$Op> for Op { fn from(operator: $Op) -> Op { Op::$Op(operator) } })*
    };
}
for_each_operator!(define);

/// One row of the table, as `ipuc ops` publishes it.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Code on the wire.
    pub code: u32,
    /// Name in the text form.
    pub name: &'static str,
    /// Highest revision.
    pub revision: u32,
    /// The fields.
    pub fields: &'static [Field],
}

impl std::fmt::Display for Op {
    /// `name attribute=value flag`, the start of a step in the text form.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())?;
        for (_, name, value) in self.attributes() {
            write!(formatter, " {name}={}", crate::attribute_text::print(&value))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_and_names_are_unique() {
        let codes: HashSet<u32> = TABLE.iter().map(|row| row.code).collect();
        let names: HashSet<&str> = TABLE.iter().map(|row| row.name).collect();
        assert_eq!((codes.len(), names.len()), (TABLE.len(), TABLE.len()));
        for row in TABLE {
            assert_eq!(row.name, row.name.to_lowercase());
            let numbers: HashSet<u32> = row.fields.iter().map(|field| field.number).collect();
            assert_eq!(numbers.len(), row.fields.len(), "{}", row.name);
            assert!(row.fields.iter().all(|field| field.since <= row.revision), "{}", row.name);
        }
    }
}
