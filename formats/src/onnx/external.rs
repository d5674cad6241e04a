//! The description of tensor data that lies in another file. Finding and trusting that file is the business
//! of whoever opens files.
//!
//! Source: `TensorProto.external_data` of the schema, and `docs/ExternalData.md` of ONNX.

use super::schema::StringStringEntryProto;

/// Where the data of a tensor lies outside of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalData {
    /// Path relative to the folder of the model, as written in the model: not to be trusted.
    pub location: String,
    /// Where the data begins in that file, in bytes.
    pub offset: u64,
    /// Length in bytes, if stated.
    pub length: Option<u64>,
    /// SHA-1 of the whole file, if stated.
    pub sha1: Option<[u8; 20]>,
}

/// What is wrong with a description of external data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalDataError {
    /// No location.
    #[error("its external data has no location")]
    NoLocation,
    /// A key twice.
    #[error("its external data states `{key}` twice")]
    Duplicate {
        /// The key.
        key: String,
    },
    /// A key that may change what the data means.
    #[error("its external data has the unknown key `{key}`")]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// Not a number of bytes.
    #[error("the `{key}` of its external data is `{value}`, not a number of bytes")]
    NotANumber {
        /// `offset` or `length`.
        key: &'static str,
        /// What it is.
        value: String,
    },
    /// Not a SHA-1 digest.
    #[error("the checksum of its external data is `{value}`, not a SHA-1 digest of 40 hexadecimal digits")]
    NotADigest {
        /// What it is.
        value: String,
    },
}

impl ExternalData {
    /// Reads the entries of `TensorProto.external_data`.
    ///
    /// # Errors
    /// [`ExternalDataError`] when an entry is missing, unknown, repeated or malformed.
    pub fn from_entries(entries: &[StringStringEntryProto]) -> Result<Self, ExternalDataError> {
        let (mut location, mut offset, mut length, mut sha1) = (None, None, None, None);
        for entry in entries {
            let (key, value) = (entry.key(), entry.value());
            let repeated = match key {
                "location" => location.replace(value.to_owned()).is_some(),
                "offset" => offset.replace(number("offset", value)?).is_some(),
                "length" => length.replace(number("length", value)?).is_some(),
                "checksum" => sha1.replace(digest(value)?).is_some(),
                // What helps only its writer: a folder that was joined to the location before it was written,
                // and copies of the weights in the layout of one processor.
                "basepath" => false,
                _ if key.starts_with("prepacked") => false,
                _ => return Err(ExternalDataError::UnknownKey { key: key.to_owned() }),
            };
            if repeated {
                return Err(ExternalDataError::Duplicate { key: key.to_owned() });
            }
        }
        let location = location.filter(|location| !location.is_empty()).ok_or(ExternalDataError::NoLocation)?;
        Ok(Self { location, offset: offset.unwrap_or(0), length, sha1 })
    }
}

fn number(key: &'static str, value: &str) -> Result<u64, ExternalDataError> {
    // `u64::from_str` would take a plus sign.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { value.parse().ok() } else { None };
    number.ok_or_else(|| ExternalDataError::NotANumber { key, value: value.to_owned() })
}

fn digest(value: &str) -> Result<[u8; 20], ExternalDataError> {
    let malformed = || ExternalDataError::NotADigest { value: value.to_owned() };
    if value.len() != 40 || !value.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(malformed());
    }
    let mut digest = [0; 20];
    for (index, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&value[2 * index..2 * index + 2], 16).map_err(|_| malformed())?;
    }
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(entries: &[(&str, &str)]) -> Result<ExternalData, ExternalDataError> {
        let entry = |(key, value): &(&str, &str)| StringStringEntryProto {
            key: Some((*key).into()),
            value: Some((*value).into()),
        };
        ExternalData::from_entries(&entries.iter().map(entry).collect::<Vec<_>>())
    }

    #[test]
    fn all_keys_are_read() {
        let digest = "00ff".repeat(10);
        let entries = [("location", "a/b.bin"), ("offset", "4096"), ("length", "12"), ("checksum", &*digest)];
        let data = parse(&entries).unwrap();
        assert_eq!((data.location.as_str(), data.offset, data.length), ("a/b.bin", 4096, Some(12)));
        assert_eq!(data.sha1.unwrap()[..4], [0, 255, 0, 255]);
        let least = parse(&[("location", "w"), ("basepath", "/x"), ("prepacked_0", "k|0|1|c")]).unwrap();
        assert_eq!(least, ExternalData { location: "w".into(), offset: 0, length: None, sha1: None });
    }

    #[test]
    fn malformed_entries_are_refused() {
        let message = |entries: &[(&str, &str)]| parse(entries).unwrap_err().to_string();
        assert_eq!(message(&[("offset", "0")]), "its external data has no location");
        assert_eq!(message(&[("location", "")]), "its external data has no location");
        assert_eq!(message(&[("location", "a"), ("location", "b")]), "its external data states `location` twice");
        assert_eq!(
            message(&[("location", "a"), ("compression", "zstd")]),
            "its external data has the unknown key `compression`"
        );
        for value in ["-1", "+1", "", "1k", " 1", "99999999999999999999"] {
            let expected = format!("the `offset` of its external data is `{value}`, not a number of bytes");
            assert_eq!(message(&[("location", "a"), ("offset", value)]), expected);
        }
        for value in ["", "12", &"zz".repeat(20), &"é".repeat(20)] {
            assert!(message(&[("location", "a"), ("checksum", value)]).contains("40 hexadecimal digits"));
        }
    }
}
