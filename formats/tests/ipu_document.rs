//! FORMAT.md is true: its tables, its constants, and every byte of its example, which is also a golden file.
#![allow(clippy::unwrap_used, reason = "what fails here is a failed test")]

use crate::ipu_sample::{LARGE_CHUNKS, example};
use ipuc_formats::limits;
use ipuc_formats::model::superblock::{CHECKSUM_CRC32C, HASH_BLAKE3, SIGNATURE, VERSION};
use ipuc_formats::model::{SUPERBLOCK_BYTES, read_manifest};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FieldDescriptorProto};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn in_crate(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn document() -> String {
    std::fs::read_to_string(in_crate("FORMAT.md")).unwrap()
}

fn bless() -> bool {
    std::env::var_os("BLESS").is_some()
}

/// The rows of the table under a heading, cell by cell.
fn table(document: &str, heading: &str) -> Vec<Vec<String>> {
    let section = document.split(&format!("\n## {heading}\n")).nth(1).expect("the section exists");
    let rows = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect();
    rows.skip(2).map(cells).collect()
}

#[test]
fn superblock_table_is_true() {
    let (bytes, _) = example().write(LARGE_CHUNKS);
    let superblock = read_manifest(&bytes).unwrap().0;
    let mut next = 0;
    for row in table(&document(), "Superblock") {
        let (offset, length) = (row[0].parse::<usize>().unwrap(), row[1].parse::<usize>().unwrap());
        assert_eq!(offset, next, "{row:?} continues the table");
        next = offset + length;
        let found = &bytes[offset..next];
        let name = row[2].split([':', ',']).next().unwrap();
        let expected: Vec<u8> = match name {
            "signature" => SIGNATURE.to_vec(),
            "major version" => VERSION.0.to_le_bytes().to_vec(),
            "minor version" => VERSION.1.to_le_bytes().to_vec(),
            "checksum algorithm" => CHECKSUM_CRC32C.to_le_bytes().to_vec(),
            "hash algorithm" => HASH_BLAKE3.to_le_bytes().to_vec(),
            "required features" | "optional features" => vec![0; 8],
            "manifest offset" => (SUPERBLOCK_BYTES as u64).to_le_bytes().to_vec(),
            "manifest length" => superblock.manifest_length.to_le_bytes().to_vec(),
            "stream offset" => superblock.stream_offset.to_le_bytes().to_vec(),
            "stream length" => superblock.stream_length.to_le_bytes().to_vec(),
            "total length of the file" => (bytes.len() as u64).to_le_bytes().to_vec(),
            "root hash" => superblock.root_hash.to_vec(),
            "zeros" => vec![0; 3980],
            "checksum of the bytes before it" => crc_fast::crc32_iscsi(&bytes[..offset]).to_le_bytes().to_vec(),
            other => panic!("unknown field {other}"),
        };
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(next, SUPERBLOCK_BYTES);
    let version = format!("version {}.{}", VERSION.0, VERSION.1);
    assert!(document().lines().next().unwrap().ends_with(&version));
}

#[test]
fn limits_table_is_complete_and_true() {
    let constants: BTreeMap<&str, u64> = BTreeMap::from([
        ("IPU_MANIFEST_BYTES", limits::IPU_MANIFEST_BYTES),
        ("IPU_DECODED_BYTES", limits::IPU_DECODED_BYTES),
        ("IPU_MESSAGE_NESTING", limits::IPU_MESSAGE_NESTING as u64),
        ("IPU_TYPE_NESTING", limits::IPU_TYPE_NESTING as u64),
        ("IPU_BLOCK_NESTING", limits::IPU_BLOCK_NESTING as u64),
        ("IPU_BLOCK_PATHS", limits::IPU_BLOCK_PATHS),
        ("IPU_RANK", limits::IPU_RANK as u64),
        ("IPU_DIMENSIONS", limits::IPU_DIMENSIONS as u64),
        ("IPU_DIMENSION_TEXT_BYTES", limits::IPU_DIMENSION_TEXT_BYTES as u64),
        ("IPU_PLACED_REGIONS", limits::IPU_PLACED_REGIONS),
        ("IPU_ATTACHMENTS", limits::IPU_ATTACHMENTS),
        ("IPU_ATTACHMENT_BYTES", limits::IPU_ATTACHMENT_BYTES),
        ("IPU_CHUNK_ALIGNMENT", limits::IPU_CHUNK_ALIGNMENT),
        ("IPU_EXTENT_ALIGNMENT", limits::IPU_EXTENT_ALIGNMENT),
        ("IPU_CHUNK_BYTES", limits::IPU_CHUNK_BYTES),
        ("IPU_POOLED_BYTES", limits::IPU_POOLED_BYTES),
        ("IPU_CHECKSUM_BLOCK", u64::from(limits::IPU_CHECKSUM_BLOCK)),
        ("IPU_ROW_CHECKSUM_BLOCK", u64::from(limits::IPU_ROW_CHECKSUM_BLOCK)),
        ("IPU_SHARED_FACTOR", limits::IPU_SHARED_FACTOR),
        ("IPU_SHARED_BYTES", limits::IPU_SHARED_BYTES),
    ]);
    let source = std::fs::read_to_string(in_crate("src/limits.rs")).unwrap();
    let declared = source.lines().filter_map(|line| line.strip_prefix("pub const IPU_")?.split(':').next());
    let declared: Vec<String> = declared.map(|name| format!("IPU_{name}")).collect();
    let rows = table(&document(), "Limits");
    for row in &rows {
        assert_eq!(row[1], constants[row[0].trim_matches('`')].to_string(), "{row:?}");
    }
    for name in &declared {
        assert!(rows.iter().any(|row| row[0].trim_matches('`') == name), "{name} is not in the table");
    }
    assert_eq!(rows.len(), declared.len());
}

#[test]
fn example_is_true() {
    let (bytes, _) = example().write(LARGE_CHUNKS);
    let shown = Annotator::new().file(&bytes);
    let document = document();
    let (before, rest) = document.split_once("rewrites it -->\n```text\n").unwrap();
    let (found, after) = rest.split_once("```\n<!-- end of example -->").unwrap();
    if bless() {
        let rewritten = format!("{before}rewrites it -->\n```text\n{shown}```\n<!-- end of example -->{after}");
        std::fs::write(in_crate("FORMAT.md"), rewritten).unwrap();
    } else {
        assert!(found == shown, "the example is stale: run this test with BLESS=1");
    }
    // What the document shows is the file, and all of it that is not zero.
    let mut rebuilt = vec![0; bytes.len()];
    for line in shown.lines() {
        let (offset, rest) = line.split_at(6);
        let start = usize::from_str_radix(offset, 16).unwrap();
        let hexadecimal = rest.split('#').next().unwrap().split_whitespace();
        for (at, byte) in (start..).zip(hexadecimal) {
            rebuilt[at] = u8::from_str_radix(byte, 16).unwrap();
        }
    }
    assert_eq!(rebuilt, bytes);
}

/// A file of a released version loads for ever; a change of what is written is a change of the version.
#[test]
fn golden_file_is_what_is_written() {
    let path = in_crate("tests/golden/example-0.2.ipu");
    let (bytes, manifest) = example().write(LARGE_CHUNKS);
    if bless() {
        std::fs::write(&path, &bytes).unwrap();
    }
    let golden = std::fs::read(&path).unwrap();
    assert_eq!(read_manifest(&golden).unwrap().1, manifest);
    assert!(golden == bytes, "the golden file differs from what is written: run this test with BLESS=1");
}

/// Hexadecimal lines with the fields that they hold, from the schema.
struct Annotator {
    messages: HashMap<String, DescriptorProto>,
    text: String,
}

/// Bytes in a line.
const LINE: usize = 12;

impl Annotator {
    fn new() -> Annotator {
        let descriptors = protox::compile(["ipu.proto"], [in_crate("proto")]).unwrap();
        let messages = descriptors.file.into_iter().flat_map(|file| file.message_type);
        let messages = messages.map(|message| (format!(".ipu.{}", message.name()), message)).collect();
        Annotator { messages, text: String::new() }
    }

    fn file(mut self, bytes: &[u8]) -> String {
        for row in table(&document(), "Superblock") {
            let (offset, length) = (row[0].parse::<usize>().unwrap(), row[1].parse::<usize>().unwrap());
            if row[2] != "zeros" {
                self.lines(offset, &bytes[offset..offset + length], row[2].split([':', ',']).next().unwrap());
            }
        }
        let superblock = read_manifest(&bytes.to_vec()).unwrap().0;
        let end = SUPERBLOCK_BYTES + superblock.manifest_length as usize;
        self.message(&bytes[..end], SUPERBLOCK_BYTES, ".ipu.Manifest", "");
        let stream = superblock.stream_offset as usize;
        let used = bytes.iter().rposition(|&byte| byte != 0).unwrap() + 1;
        for at in (stream..used).step_by(64) {
            let input = (at - stream) / 64;
            self.lines(at, &bytes[at..at + 8], &format!("input {input} of outputs 0 and 1"));
        }
        self.text
    }

    fn lines(&mut self, offset: usize, bytes: &[u8], what: &str) {
        for (index, line) in bytes.chunks(LINE).enumerate() {
            let hexadecimal: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            let at = offset + index * LINE;
            let note = if index == 0 { format!("  # {what}") } else { String::new() };
            let row = format!("{at:06x}  {:width$}{note}", hexadecimal.join(" "), width = 3 * LINE - 1);
            writeln!(self.text, "{}", row.trim_end()).unwrap();
        }
    }

    /// The fields of a message that begins at `at` and ends with the bytes.
    fn message(&mut self, bytes: &[u8], mut at: usize, kind: &str, path: &str) {
        let mut counts: HashMap<i32, usize> = HashMap::new();
        while at < bytes.len() {
            let start = at;
            let key = varint(bytes, &mut at);
            let message = &self.messages[kind];
            let field = message.field.iter().find(|field| field.number() as u64 == key >> 3).unwrap().clone();
            let count = counts.entry(field.number()).or_default();
            let index = if repeated(&field) { format!("[{count}]") } else { String::new() };
            *count += 1;
            let dot = if path.is_empty() { "" } else { "." };
            let name = format!("{path}{dot}{}", field.name());
            match (key & 7, field.r#type()) {
                (0, _) => {
                    let value = varint(bytes, &mut at);
                    let signed = (value >> 1) as i64 ^ -((value & 1) as i64);
                    let value = if field.r#type() == Type::Sint64 { signed } else { value as i64 };
                    self.lines(start, &bytes[start..at], &format!("{name}{index} = {value}"));
                }
                (1, _) => {
                    at += 8;
                    let value = u64::from_le_bytes(bytes[at - 8..at].try_into().unwrap());
                    self.lines(start, &bytes[start..at], &format!("{name}{index} = {value}"));
                }
                (5, _) => {
                    at += 4;
                    self.lines(start, &bytes[start..at], &name);
                }
                (_, Type::Message) => {
                    let end = varint(bytes, &mut at) as usize + at;
                    self.lines(start, &bytes[start..at], &format!("{name}{index}: {} bytes", end - at));
                    self.message(&bytes[..end], at, field.type_name(), &format!("{name}{index}"));
                    at = end;
                }
                (_, Type::String) => {
                    let end = varint(bytes, &mut at) as usize + at;
                    let text = std::str::from_utf8(&bytes[at..end]).unwrap();
                    self.lines(start, &bytes[start..end], &format!("{name}{index} = \"{text}\""));
                    at = end;
                }
                _ => {
                    let end = varint(bytes, &mut at) as usize + at;
                    self.lines(start, &bytes[start..end], &name);
                    at = end;
                }
            }
        }
    }
}

fn repeated(field: &FieldDescriptorProto) -> bool {
    field.label() == prost_types::field_descriptor_proto::Label::Repeated
}

fn varint(bytes: &[u8], at: &mut usize) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}
