//! The only list of encodings.
//!
//! [`for_each_encoding!`](crate::for_each_encoding) is the list: wire code, Rust type, text name. Each encoding has a file
//! here with its attributes and its [`Encoding`]. Codes and names are never reused.

use super::encoding::{Encoding, Pick};
use super::error::EncodingError;
use super::input_major::InputMajor;
use super::logical::Logical;
use super::panels::{PANEL_OUTPUTS, Panels};
use super::part::PartRange;
use super::plain::Plain;
use super::rows::Rows;
use super::sparse_panels::SparsePanels;
use super::strings::Strings;
use super::transfer::WeightReader;
use super::units::Units;
use crate::attribute::{AttributeError, AttributeValue};
use crate::dtype::DType;
use crate::ops::{Attributes, build_fields, decode_fields, numbered};

/// Calls `$table!` with the list of encodings: `code Type "name",` a row.
#[macro_export]
macro_rules! for_each_encoding {
    ($table:ident) => {
        $table! {
            1 Plain "plain",
            2 Panels "panels",
            3 Strings "strings",
            4 Rows "rows",
            5 InputMajor "input_major",
            6 SparsePanels "sparse_panels",
        }
    };
}

macro_rules! define {
    ($($code:literal $Encoding:ident $name:literal,)*) => {
        /// Any encoding of the table.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Coded {
            $(#[doc = concat!("`", $name, "`")] $Encoding($Encoding),)*
        }

        /// Code and name of every encoding, in the order of the table.
        pub const ENCODINGS: &[(u32, &str)] = &[$(($code, $name),)*];

        impl Coded {
            /// The code on the wire.
            pub fn code(&self) -> u32 {
                match self { $(Coded::$Encoding(_) => $code,)* }
            }
            /// The name in the text form.
            pub fn name(&self) -> &'static str {
                match self { $(Coded::$Encoding(_) => $name,)* }
            }
            /// The revision that is written.
            pub fn revision(&self) -> u32 {
                match self { $(Coded::$Encoding(_) => <$Encoding as Attributes>::REVISION,)* }
            }
            /// The attributes that are not at their default: number, name, value.
            pub fn attributes(&self) -> Vec<(u32, &'static str, AttributeValue)> {
                match self { $(Coded::$Encoding(encoding) => numbered(encoding),)* }
            }
            /// The encoding of a stored code, revision and attributes.
            ///
            /// # Errors
            /// [`AttributeError`] for unknown codes, revisions, numbers and values.
            pub fn decode(code: u32, revision: u32, stored: &[(u32, AttributeValue)]) -> Result<Coded, AttributeError> {
                match code {
                    $($code => decode_fields($name, revision, stored).map(Coded::$Encoding),)*
                    unknown => Err(AttributeError::UnknownEncoding(unknown)),
                }
            }
            /// The encoding of a text name and named attributes.
            ///
            /// # Errors
            /// [`AttributeError`] for unknown names and values.
            pub fn build(name: &str, named: &[(String, AttributeValue)]) -> Result<Coded, AttributeError> {
                match name {
                    $($name => build_fields($name, named).map(Coded::$Encoding),)*
                    unknown => Err(AttributeError::UnknownEncodingName(unknown.to_string())),
                }
            }
            /// What the encoding means.
            pub fn encoding(&self) -> &dyn Encoding {
                match self { $(Coded::$Encoding(encoding) => encoding,)* }
            }
        }

        $(impl From<$Encoding> for Coded { fn from(encoding: $Encoding) -> Coded { Coded::$Encoding(encoding) } })*
    };
}
for_each_encoding!(define);

impl std::fmt::Display for Coded {
    /// `name attribute=value`.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())?;
        for (_, name, value) in self.attributes() {
            write!(formatter, " {name}={}", crate::attribute_text::print(&value))?;
        }
        Ok(())
    }
}

impl Coded {
    /// Canonical bytes of this type.
    pub fn plain(dtype: DType) -> Coded {
        Plain { dtype }.into()
    }

    /// Element type in the file.
    pub fn dtype(&self) -> DType {
        match self {
            Coded::Plain(plain) => plain.dtype,
            Coded::Panels(panels) => panels.dtype,
            Coded::Rows(rows) => rows.dtype,
            Coded::InputMajor(runs) => runs.dtype,
            Coded::SparsePanels(panels) => panels.dtype,
            Coded::Strings(_) => DType::String,
        }
    }

    /// The panels, where it is panels with their zeros: what product kernels take.
    pub fn as_panels(&self) -> Option<&Panels> {
        match self {
            Coded::Panels(panels) => Some(panels),
            Coded::Plain(_) | Coded::Strings(_) | Coded::Rows(_) | Coded::InputMajor(_) | Coded::SparsePanels(_) => {
                None
            }
        }
    }

    /// The panels without their zeros, where it is these.
    pub fn as_sparse_panels(&self) -> Option<&SparsePanels> {
        match self {
            Coded::SparsePanels(panels) => Some(panels),
            Coded::Plain(_) | Coded::Strings(_) | Coded::Rows(_) | Coded::InputMajor(_) | Coded::Panels(_) => None,
        }
    }

    /// The runs of outputs, where it is a weight of which products leave inputs out.
    pub fn as_input_major(&self) -> Option<&InputMajor> {
        match self {
            Coded::InputMajor(runs) => Some(runs),
            Coded::Plain(_) | Coded::Strings(_) | Coded::Rows(_) | Coded::Panels(_) | Coded::SparsePanels(_) => None,
        }
    }

    /// The panels, with their zeros where these are not stored: what a kernel sees part by part.
    pub fn dense_panels(&self) -> Option<Panels> {
        self.as_panels().cloned().or_else(|| self.as_sparse_panels().map(SparsePanels::dense))
    }

    /// Outputs of a unit, where units are outputs of a matrix with their inputs: the last unit of a matrix is filled up.
    pub fn unit_outputs(&self) -> Option<u64> {
        match self {
            Coded::Panels(_) | Coded::SparsePanels(_) => Some(PANEL_OUTPUTS as u64),
            Coded::InputMajor(runs) => Some(runs.run),
            Coded::Plain(_) | Coded::Strings(_) | Coded::Rows(_) => None,
        }
    }

    /// Check that it describes a weight of this type and shape.
    ///
    /// # Errors
    /// [`EncodingError`] where it does not fit or is not supported.
    pub fn check(&self, weight: Logical<'_>) -> Result<(), EncodingError> {
        self.encoding().check(weight)
    }

    /// The units of a weight.
    ///
    /// # Errors
    /// [`EncodingError`] where the encoding does not fit the weight.
    pub fn units(&self, weight: Logical<'_>) -> Result<Units, EncodingError> {
        self.check(weight)?;
        self.encoding().units(weight)
    }

    /// Stored bytes of a whole weight; `None` where they depend on the contents.
    ///
    /// # Errors
    /// [`EncodingError`] where the encoding does not fit the weight.
    pub fn stored_bytes(&self, weight: Logical<'_>) -> Result<Option<u64>, EncodingError> {
        let units = self.units(weight)?;
        if units.count == 0 { Ok(Some(0)) } else { self.encoding().bytes(weight, units.run(0, units.count)) }
    }

    /// Stored bytes of one part of a weight; `None` where they depend on the contents.
    ///
    /// # Errors
    /// [`EncodingError::Part`] where it does not begin and end where the weight may be cut.
    pub fn part_bytes(&self, weight: Logical<'_>, part: PartRange) -> Result<Option<u64>, EncodingError> {
        self.units(weight)?.check(part)?;
        self.encoding().bytes(weight, part)
    }

    /// The parts of a weight, none larger than `budget_bytes` where there are places to cut (see [`Units`]).
    ///
    /// # Errors
    /// [`EncodingError`] where the encoding does not fit the weight.
    pub fn split(&self, weight: Logical<'_>, budget_bytes: u64) -> Result<Vec<PartRange>, EncodingError> {
        self.units(weight)?.split(budget_bytes, |part| self.encoding().bytes(weight, part))
    }

    /// Pack one part of a weight into `packed`, which has exactly the part's stored bytes.
    ///
    /// Elements of f32 may be stored as f16 or bf16 where every one is exact. Consecutive parts lie one after another: a
    /// longer run of units packs several parts at once.
    ///
    /// # Errors
    /// [`EncodingError`] where encoding, part or buffer do not fit, a conversion is not exact, or reading fails.
    pub fn pack(
        &self,
        weight: Logical<'_>,
        part: PartRange,
        from: &mut dyn WeightReader,
        packed: &mut [u8],
    ) -> Result<(), EncodingError> {
        let unsized_part = || EncodingError::Unsupported("packing strings from canonical bytes".into());
        let expected = self.part_bytes(weight, part)?.ok_or_else(unsized_part)?;
        if expected != packed.len() as u64 {
            return Err(EncodingError::Size { expected, found: packed.len() as u64 });
        }
        self.encoding().pack(weight, part, from, packed)
    }

    /// The units that hold what is picked, with all their inputs.
    ///
    /// # Errors
    /// [`EncodingError::Row`] where it is outside the weight, [`EncodingError::Unsupported`] where it cannot be read alone.
    pub fn locate(&self, weight: Logical<'_>, pick: Pick) -> Result<PartRange, EncodingError> {
        let units = self.units(weight)?;
        if let Some(run) = self.encoding().locate(weight, pick) {
            return Ok(units.run(run.start, run.end));
        }
        let (rows, _) = weight.rows()?;
        match pick {
            Pick::Row(row) if row >= rows => Err(EncodingError::Row { row, rows }),
            Pick::Row(_) => Err(EncodingError::Unsupported(format!("reading single rows of a weight as `{self}`"))),
            Pick::Group(group) => Err(EncodingError::Unsupported(format!("matrix {group} of a weight as `{self}`"))),
        }
    }
}
