//! The only list of operators, and what each of them means.
//!
//! [`for_each_operator!`](crate::for_each_operator) is the list: wire code, Rust type, class, text name. Each operator has a
//! file here with its attributes, its type rule and its meaning (the trait [`Operator`]), and with what its class requires:
//! loops, work, how it reads weights (`classes.rs`, `facets.rs`). Codes and names are never reused.
//!
//! A code says what an operator is, a revision how far its attributes have grown; bytes and text follow from the list
//! of fields in [`attributes!`](crate::attributes).

mod arithmetic;
pub mod broadcast;
mod classes;
mod dispatch;
mod facets;
mod floats;
pub(crate) mod loops;
mod operator;
pub mod parts;
mod program;
mod reference;
pub mod scalar;
pub mod single;
mod space;
mod step_facts;
#[cfg(test)]
mod test_blocks;
#[cfg(test)]
pub(crate) mod testing;
mod windows;
mod work;

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
pub use classes::*;
pub use classical::*;
pub use control::*;
pub use elementwise::*;
pub use facets::*;
pub use images::*;
pub use movement::*;
pub use normalization::*;
pub use operator::*;
pub use products::*;
pub use program::*;
pub use quantization::*;
pub use recurrence::*;
pub use reference::*;
pub use signal::*;
pub use space::*;
pub use step_facts::*;
pub use text::*;
pub use windows::{AutoPad, WindowAxis};
pub use work::*;

use crate::attribute::{AttributeError, AttributeValue};

/// Calls `$table!` with the list of operators: `code Type Class "name",` a row.
///
/// A consumer defines a macro that takes rows `$($code:literal $Op:ident $class:ident $name:literal,)*`.
#[macro_export]
macro_rules! for_each_operator {
    ($table:ident) => {
        $table! {
            // Elementwise: 0x01 to 0x1f.
            0x01 Unary Elementwise "unary",
            0x02 Activation Elementwise "activation",
            0x03 Binary Elementwise "binary",
            0x04 Compare Elementwise "compare",
            0x05 Select Elementwise "select",
            0x06 Clamp Elementwise "clamp",
            0x07 Cast Elementwise "cast",
            0x08 BitCast Moves "bit_cast",
            0x09 Quantize Computes "quantize",
            0x0a Dequantize Computes "dequantize",
            0x0b DynamicQuantize Serial "dynamic_quantize",
            0x0c Random Serial "random",
            0x0d Multinomial Serial "multinomial",
            0x0e Dropout Serial "dropout",
            0x0f Map Elementwise "map",
            // Data movement: 0x20 to 0x4f.
            0x20 Reshape Moves "reshape",
            0x21 Flatten Moves "flatten",
            0x22 Squeeze Moves "squeeze",
            0x23 Unsqueeze Moves "unsqueeze",
            0x24 Transpose Moves "transpose",
            0x25 Expand Moves "expand",
            0x26 Concat Moves "concat",
            0x27 Split Moves "split",
            0x28 Slice Moves "slice",
            0x29 Pad Moves "pad",
            0x2a Tile Moves "tile",
            0x2b ShapeOf Moves "shape",
            0x2c SizeOf Moves "size",
            0x2d Range Computes "range",
            0x2e DepthToSpace Moves "depth_to_space",
            0x2f SpaceToDepth Moves "space_to_depth",
            0x30 Gather Gathers "gather",
            0x31 GatherElements Gathers "gather_elements",
            0x32 GatherNd Gathers "gather_nd",
            0x33 ScatterElements Computes "scatter_elements",
            0x34 ScatterNd Computes "scatter_nd",
            0x35 TensorScatter Moves "tensor_scatter",
            0x36 OneHot Computes "one_hot",
            0x37 Trilu Moves "trilu",
            0x38 EyeLike Moves "eye_like",
            0x39 ReverseSequence Moves "reverse_sequence",
            0x3a CenterCropPad Moves "center_crop_pad",
            0x3b NonZero Serial "non_zero",
            0x3c Unique Serial "unique",
            0x3d Compress Serial "compress",
            0x3e TopK Computes "top_k",
            // Products and windows: 0x50 to 0x6f.
            0x50 Matmul Product "matmul",
            0x51 Convolution Product "convolution",
            0x52 ConvolutionTranspose Product "convolution_transpose",
            0x53 Pool Computes "pool",
            0x54 Resize Computes "resize",
            0x55 GridSample Computes "grid_sample",
            0x56 AffineGrid Computes "affine_grid",
            0x57 RoiAlign Computes "roi_align",
            0x58 MaxRoiPool Computes "max_roi_pool",
            0x59 MaxUnpool Computes "max_unpool",
            0x5a Col2im Computes "col2im",
            0x5b DeformableConvolution Product "deformable_convolution",
            0x5c Einsum Product "einsum",
            0x5d Determinant Computes "determinant",
            0x5e IntegerMatmul Product "integer_matmul",
            0x5f IntegerConvolution Product "integer_convolution",
            0x60 Inverse Computes "inverse",
            0x61 CropAndResize Computes "crop_and_resize",
            0x62 ExpertMatmul Product "expert_matmul",
            0x63 BlockedConvolution Product "blocked_convolution",
            // Normalization, reduction, recurrence, attention: 0x70 to 0x8f.
            0x70 Reduce Computes "reduce",
            0x71 ArgReduce Computes "arg_reduce",
            0x72 Cumulative Computes "cumulative",
            0x73 Softmax Computes "softmax",
            0x74 LayerNormalization Computes "layer_normalization",
            0x75 BatchNormalization Computes "batch_normalization",
            0x76 GroupNormalization Computes "group_normalization",
            0x77 LocalResponseNormalization Computes "local_response_normalization",
            0x78 Lstm Product "lstm",
            0x79 Gru Product "gru",
            0x7a Rnn Product "rnn",
            0x7b Attention Product "attention",
            0x7c RotaryEmbedding Computes "rotary_embedding",
            0x7d LinearAttention Product "linear_attention",
            0x7e CausalConvolution Product "causal_convolution",
            0x7f NegativeLogLikelihood Computes "negative_log_likelihood",
            0x80 CacheScatter Moves "cache_scatter",
            0x81 Append Moves "append",
            // Selection, control flow, sequences, text, signals, images: 0x90 to 0xbf.
            0x90 If Control "if",
            0x91 Loop Control "loop",
            0x92 Scan Control "scan",
            0x93 SequenceMap Control "sequence_map",
            0x94 SequenceConstruct Serial "sequence",
            0x95 SequenceAt Serial "sequence_at",
            0x96 SequenceInsert Serial "sequence_insert",
            0x97 SequenceErase Serial "sequence_erase",
            0x98 SequenceLength Serial "sequence_length",
            0x99 SequenceSplit Serial "sequence_split",
            0x9a SequenceConcat Serial "sequence_concat",
            0x9b OptionalConstruct Serial "optional",
            0x9c OptionalGet Serial "optional_get",
            0x9d OptionalHas Serial "optional_has",
            0xa0 StringConcat Elementwise "string_concat",
            0xa1 StringNormalize Serial "string_normalize",
            0xa2 StringSplit Serial "string_split",
            0xa3 RegexFullMatch Elementwise "regex_full_match",
            0xa4 TfIdf Serial "tf_idf",
            0xa5 MurmurHash Computes "murmur_hash",
            0xa6 RepeatBlock Computes "repeat_block",
            0xa7 DecodeImage Serial "decode_image",
            0xa8 NonMaxSuppression Serial "non_max_suppression",
            0xa9 FourierTransform Computes "fourier_transform",
            0xaa ShortTimeFourierTransform Computes "short_time_fourier_transform",
            0xab Window Computes "window",
            0xac MelWeights Computes "mel_weights",
            0xad Tokenize Serial "tokenize",
            0xae TimeWarping Serial "time_warping",
            0xb0 LabelEncode Computes "label_encode",
            0xb1 TreeEnsemble Computes "tree_ensemble",
            0xb2 ScoreTransform Computes "score_transform",
            0xb3 ZipMap Serial "zip_map",
            0xb4 PairwiseProbability Computes "pairwise_probability",
            0xb5 MapValues Serial "map_values",
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
            #[allow(unused_variables, reason = "operators without attributes take nothing")]
            fn build(
                operator: &'static str,
                take: &dyn Fn(&'static str) -> Option<$crate::attribute::AttributeValue>,
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
        take: &dyn Fn(&'static str) -> Option<AttributeValue>,
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

pub(crate) fn decode_fields<T: Attributes>(
    operator: &'static str,
    revision: u32,
    stored: &[(u32, AttributeValue)],
) -> Result<T, AttributeError> {
    if revision > T::REVISION {
        return Err(AttributeError::Revision { operator, found: revision, known: T::REVISION });
    }
    check_numbers(operator, T::FIELDS, revision, stored)?;
    T::build(operator, &|name| stored_value(T::FIELDS, stored, name))
}

/// Whether numbers are those of fields that this revision has, each once.
fn check_numbers(
    operator: &'static str,
    fields: &[Field],
    revision: u32,
    stored: &[(u32, AttributeValue)],
) -> Result<(), AttributeError> {
    for (index, (number, _)) in stored.iter().enumerate() {
        let field = fields
            .iter()
            .find(|field| field.number == *number && field.since <= revision)
            .ok_or(AttributeError::UnknownNumber { operator, number: *number })?;
        if stored[..index].iter().any(|(earlier, _)| earlier == number) {
            return Err(AttributeError::Duplicate { operator, name: field.name });
        }
    }
    Ok(())
}

/// The value of the field of this name.
fn stored_value(fields: &[Field], stored: &[(u32, AttributeValue)], name: &str) -> Option<AttributeValue> {
    let number = fields.iter().find(|field| field.name == name)?.number;
    stored.iter().find(|(stored_number, _)| *stored_number == number).map(|(_, value)| value.clone())
}

pub(crate) fn build_fields<T: Attributes>(
    operator: &'static str,
    named: &[(String, AttributeValue)],
) -> Result<T, AttributeError> {
    check_names(operator, T::FIELDS, named)?;
    T::build(operator, &|name| named_value(named, name))
}

/// Whether names are those of fields, each once.
fn check_names(
    operator: &'static str,
    fields: &[Field],
    named: &[(String, AttributeValue)],
) -> Result<(), AttributeError> {
    for (index, (name, _)) in named.iter().enumerate() {
        let field = fields
            .iter()
            .find(|field| field.name == name)
            .ok_or_else(|| AttributeError::UnknownAttribute { operator, name: name.clone() })?;
        if named[..index].iter().any(|(earlier, _)| earlier == name) {
            return Err(AttributeError::Duplicate { operator, name: field.name });
        }
    }
    Ok(())
}

/// The value that is given by this name.
fn named_value(named: &[(String, AttributeValue)], name: &str) -> Option<AttributeValue> {
    named.iter().find(|(given, _)| given == name).map(|(_, value)| value.clone())
}

pub(crate) fn numbered<T: Attributes>(operator: &T) -> Vec<(u32, &'static str, AttributeValue)> {
    numbered_values(T::FIELDS, operator.values())
}

/// The values that are not left out, with number and name of their fields.
fn numbered_values(
    fields: &'static [Field],
    values: Vec<Option<AttributeValue>>,
) -> Vec<(u32, &'static str, AttributeValue)> {
    fields.iter().zip(values).filter_map(|(field, value)| Some((field.number, field.name, value?))).collect()
}

macro_rules! define {
    ($($code:literal $Op:ident $class:ident $name:literal,)*) => {
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
            /// What operators of its class say besides.
            pub fn class(&self) -> Class<'_> {
                match self { $(Op::$Op(operator) => Class::$class(operator),)* }
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
