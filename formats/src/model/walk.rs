//! A walk over the bytes of a manifest before they are decoded.
//!
//! The decoder forgets fields that it does not know, truncates integers, takes the last of several values of a field,
//! and allocates a hundred bytes for a message of two. The walk refuses the first three, and adds up what the decoded
//! messages and the records made of them may take, so that untrusted bytes cannot ask for more than a limit. It
//! allocates nothing. Its tables are generated from the schema.

use super::{FormatError, WireFault};
use crate::limits;

/// A message type of the schema.
pub(super) struct Message {
    /// Name in the schema.
    pub name: &'static str,
    /// Memory that one decoded message takes, without what its fields point to.
    pub memory_bytes: usize,
    /// Every field.
    pub fields: &'static [Field],
}

/// A field of a message.
pub(super) struct Field {
    /// Number on the wire.
    pub number: u32,
    /// Name in the schema.
    pub name: &'static str,
    /// It may occur more than once.
    pub repeated: bool,
    /// It is one of a union: at most one of them occurs.
    pub union: bool,
    /// How it is written.
    pub kind: Kind,
}

/// How a field is written.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// An integer of at most 10 bytes.
    Varint { maximum: u64 },
    /// Integers one after another.
    PackedVarints { maximum: u64 },
    /// Four bytes.
    Fixed32,
    /// Four bytes each.
    PackedFixed32,
    /// Eight bytes.
    Fixed64,
    /// Text or bytes.
    Bytes,
    /// A message.
    Message(&'static Message),
}

/// Decoded messages stand in vectors that grow by doubling, and become records of about the same size beside them.
const MEMORY_FACTOR: u64 = 4;
/// Most memory for one byte of packed integers: an element of 8 bytes, a record of 8, both in growing vectors.
const PACKED_FACTOR: u64 = 32;
/// Memory of a text or byte string without its content.
const BYTES_MEMORY: u64 = MEMORY_FACTOR * size_of::<String>() as u64;

/// Check that `bytes` are a message of this type, that decoding it loses nothing, and that it fits in memory.
pub(super) fn walk(bytes: &[u8], message: &'static Message) -> Result<(), FormatError> {
    Walker { bytes, at: 0, memory_bytes: 0 }.message(message, bytes.len(), 0)
}

struct Walker<'a> {
    bytes: &'a [u8],
    at: usize,
    memory_bytes: u64,
}

impl Walker<'_> {
    fn message(&mut self, message: &'static Message, end: usize, nesting: usize) -> Result<(), FormatError> {
        let fault = |offset, fault| FormatError::Wire { offset, message: message.name, fault };
        if nesting > limits::IPU_MESSAGE_NESTING {
            return Err(fault(self.at, WireFault::Nesting));
        }
        self.charge(message.memory_bytes as u64 * MEMORY_FACTOR)?;
        let mut seen = 0u64;
        while self.at < end {
            let start = self.at;
            let fault = |wire_fault| fault(start, wire_fault);
            let key = self.varint(end).map_err(fault)?;
            let (number, wire_type) = (key >> 3, key & 7);
            let known = message.fields.iter().find(|field| u64::from(field.number) == number);
            let field = known.ok_or_else(|| fault(WireFault::UnknownField(number)))?;
            if wire_type != field.kind.wire_type() {
                return Err(fault(WireFault::WireType(field.name)));
            }
            // Bit 0 is no field number, hence it stands for the union.
            let bit = if field.union { 1 } else { 1 << (number % 64) };
            if !field.repeated && seen & bit != 0 {
                return Err(fault(WireFault::Repeated(field.name)));
            }
            // Packed elements stand together.
            if matches!(field.kind, Kind::PackedVarints { .. } | Kind::PackedFixed32) && seen & bit != 0 {
                return Err(fault(WireFault::Repeated(field.name)));
            }
            seen |= bit;
            match field.kind {
                Kind::Message(inner) => {
                    let inner_end = self.length(end).map_err(fault)?;
                    self.message(inner, inner_end, nesting + 1)?;
                }
                kind => {
                    let memory_bytes = self.skip(kind, end).map_err(fault)?;
                    self.charge(memory_bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Go over the content of a field that is no message; gives the memory that it takes.
    fn skip(&mut self, kind: Kind, end: usize) -> Result<u64, WireFault> {
        match kind {
            Kind::Varint { maximum } => self.integer(end, maximum).map(|()| 0),
            Kind::Fixed32 => self.advance(4, end).map(|()| 0),
            Kind::Fixed64 => self.advance(8, end).map(|()| 0),
            Kind::Bytes | Kind::Message(_) => {
                let content_end = self.length(end)?;
                let length = (content_end - self.at) as u64;
                self.at = content_end;
                Ok(length + BYTES_MEMORY)
            }
            Kind::PackedFixed32 => {
                let content_end = self.length(end)?;
                let length = content_end - self.at;
                self.at = content_end;
                if length.is_multiple_of(4) { Ok(length as u64 * MEMORY_FACTOR) } else { Err(WireFault::Truncated) }
            }
            Kind::PackedVarints { maximum } => {
                let content_end = self.length(end)?;
                let length = (content_end - self.at) as u64;
                while self.at < content_end {
                    self.integer(content_end, maximum)?;
                }
                Ok(length * PACKED_FACTOR)
            }
        }
    }

    fn integer(&mut self, end: usize, maximum: u64) -> Result<(), WireFault> {
        if self.varint(end)? <= maximum { Ok(()) } else { Err(WireFault::Integer) }
    }

    fn varint(&mut self, end: usize) -> Result<u64, WireFault> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.bytes[..end].get(self.at).copied().ok_or(WireFault::Truncated)?;
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(WireFault::Integer);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(WireFault::Integer)
    }

    /// The end of the content whose length stands here.
    fn length(&mut self, end: usize) -> Result<usize, WireFault> {
        let length = self.varint(end)?;
        let content_end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        content_end.filter(|&content_end| content_end <= end).ok_or(WireFault::Truncated)
    }

    fn advance(&mut self, length: usize, end: usize) -> Result<(), WireFault> {
        if end - self.at < length {
            return Err(WireFault::Truncated);
        }
        self.at += length;
        Ok(())
    }

    fn charge(&mut self, bytes: u64) -> Result<(), FormatError> {
        self.memory_bytes = self.memory_bytes.saturating_add(bytes);
        let (found, limit) = (self.memory_bytes, limits::IPU_DECODED_BYTES);
        if found > limit {
            return Err(FormatError::Limit { what: "a manifest whose decoded size is", found, limit });
        }
        Ok(())
    }
}

impl Kind {
    fn wire_type(self) -> u64 {
        match self {
            Kind::Varint { .. } => 0,
            Kind::Fixed64 => 1,
            Kind::PackedVarints { .. } | Kind::PackedFixed32 | Kind::Bytes | Kind::Message(_) => 2,
            Kind::Fixed32 => 5,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{fields, schema};
    use super::*;
    use prost::Message as _;

    fn fault(bytes: &[u8]) -> (usize, &'static str, WireFault) {
        match walk(bytes, &fields::MANIFEST) {
            Err(FormatError::Wire { offset, message, fault }) => (offset, message, fault),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_the_decoder_would_forget_is_refused() {
        // Field 1 is the producer, field 4 symbols.
        walk(&[0x0a, 1, b'a'], &fields::MANIFEST).unwrap();
        assert_eq!(fault(&[0x0a, 0, 0x0a, 0]), (2, "Manifest", WireFault::Repeated("producer")));
        assert_eq!(fault(&[0x7a, 0]), (0, "Manifest", WireFault::UnknownField(15)));
        assert_eq!(fault(&[0x22, 2, 0x7a, 0]), (2, "Symbol", WireFault::UnknownField(15)));
        assert_eq!(fault(&[0x08, 0]), (0, "Manifest", WireFault::WireType("producer")));
        assert_eq!(fault(&[0x0b]), (0, "Manifest", WireFault::WireType("producer")));
        assert_eq!(fault(&[0x0a, 2, b'a']), (0, "Manifest", WireFault::Truncated));
        assert_eq!(fault(&[0x22, 3, 0x0a, 2, b'a']), (2, "Symbol", WireFault::Truncated));
        assert_eq!(fault(&[0xff; 11]), (0, "Manifest", WireFault::Integer));
        // An obligation whose `left` has 33 bits, and one whose relation has 32.
        assert_eq!(fault(&[0x2a, 6, 0x10, 0x80, 0x80, 0x80, 0x80, 0x10]), (2, "Obligation", WireFault::Integer));
        assert_eq!(fault(&[0x2a, 6, 0x08, 0x80, 0x80, 0x80, 0x80, 0x08]), (2, "Obligation", WireFault::Integer));
    }

    #[test]
    fn members_of_a_union_exclude_one_another() {
        let attribute = |bytes: &[u8]| walk(bytes, &fields::ATTRIBUTE).map_err(|error| error.to_string());
        assert_eq!(attribute(&[0x10, 2]), Ok(()));
        let error = attribute(&[0x10, 2, 0x22, 0]).unwrap_err();
        let expected =
            "the manifest is malformed at byte 2, in a message `Attribute`: field `text` occurs more than once";
        assert_eq!(error, expected);
    }

    #[test]
    fn packed_numbers_stand_together_and_fit() {
        let step = |bytes: &[u8]| walk(bytes, &fields::STEP).is_ok();
        assert!(step(&[0x22, 3, 1, 0x80, 1]));
        assert!(!step(&[0x22, 1, 1, 0x22, 1, 1]));
        assert!(!step(&[0x22, 2, 1, 0x80]));
        assert!(!step(&[0x22, 5, 0x80, 0x80, 0x80, 0x80, 0x10]));
        let extent = |bytes: &[u8]| walk(bytes, &fields::EXTENT).is_ok();
        assert!(extent(&[0x2a, 4, 1, 2, 3, 4]));
        assert!(!extent(&[0x2a, 3, 1, 2, 3]));
    }

    #[test]
    fn nesting_ends_before_the_decoder_would() {
        let nested = |depth: usize| {
            let mut kind = schema::Type { kind: None };
            for _ in 0..depth {
                kind = schema::Type { kind: Some(schema::r#type::Kind::Optional(Box::new(kind))) };
            }
            kind.encode_to_vec()
        };
        let deepest = nested(limits::IPU_MESSAGE_NESTING);
        walk(&deepest, &fields::TYPE).unwrap();
        schema::Type::decode(deepest.as_slice()).unwrap();
        assert_eq!(
            walk(&nested(limits::IPU_MESSAGE_NESTING + 1), &fields::TYPE).unwrap_err().to_string(),
            "the manifest is malformed at byte 131, in a message `Type`: messages are nested too deeply"
        );
    }

    #[test]
    fn a_manifest_of_empty_messages_meets_the_limit_of_memory() {
        // Two bytes a block on the wire, a hundred decoded.
        let bytes = [0x3a, 0].repeat(4 << 20);
        let error = walk(&bytes, &fields::MANIFEST).unwrap_err();
        assert!(matches!(error, FormatError::Limit { limit: limits::IPU_DECODED_BYTES, .. }), "{error}");
    }
}
