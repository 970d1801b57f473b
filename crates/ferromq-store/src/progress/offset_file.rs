//! RocketMQ's `config/consumerOffset.json`: committed offsets of all groups, as text.
//!
//! Java writes the queue ids as bare integers, `{"offsetTable":{"topic@group":{0:12}}}`, which is not JSON. Both forms
//! are read, Java's is written. Unknown fields are kept.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use crate::{
    error::{IoResult, Result, StoreError},
    files::disk::Disk,
};

const TABLE: &str = "offsetTable";

/// Committed offsets by `topic@group` and queue id, and the file's other fields.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OffsetFile {
    /// Queue offset by `topic@group`, then by queue id.
    pub offsets: BTreeMap<String, BTreeMap<u32, u64>>,
    other: Map<String, Value>,
}

impl OffsetFile {
    /// The path of the file in a store directory.
    pub fn path(directory: &Path) -> PathBuf {
        directory.join("config").join("consumerOffset.json")
    }

    /// Reads the file, or its backup if the file is missing, empty or damaged; empty if neither exists.
    ///
    /// `Corrupt` if the file is damaged and the backup cannot replace it.
    pub(crate) fn load<D: Disk>(disk: &D, directory: &Path) -> Result<Self> {
        Ok(load_with_backup(disk, &Self::path(directory), Self::parse)?.unwrap_or_default())
    }

    /// Replaces the file; the previous version becomes the backup.
    pub(crate) fn save<D: Disk>(&self, disk: &D, directory: &Path) -> Result<()> {
        save_with_backup(disk, &Self::path(directory), self.encode().as_bytes())
    }

    /// Parses the bytes of the file; the error names the fault.
    pub fn parse(bytes: &[u8]) -> std::result::Result<Self, &'static str> {
        let Value::Object(mut other) = parse_json(bytes)? else { return Err("not a JSON object") };
        let mut file = Self::default();
        match other.remove(TABLE) {
            Some(Value::Object(table)) => {
                for (name, queues) in table {
                    file.offsets.insert(name, parse_queues(queues)?);
                }
            }
            None | Some(Value::Null) => {}
            Some(_) => return Err("offsetTable is not an object"),
        }
        file.other = other;
        Ok(file)
    }

    pub(crate) fn encode(&self) -> String {
        let mut out = String::from("{");
        for (name, value) in &self.other {
            out += &format!("{}:{},\n", Value::from(name.as_str()), value);
        }
        out += &format!("\"{TABLE}\":{{");
        for (index, (name, queues)) in self.offsets.iter().enumerate() {
            out += if index == 0 { "\n" } else { ",\n" };
            out += &format!("\t{}:{{", Value::from(name.as_str()));
            let queues: Vec<String> = queues.iter().map(|(id, offset)| format!("{id}:{offset}")).collect();
            out += &queues.join(",");
            out.push('}');
        }
        out += "\n}}\n";
        out
    }
}

/// The path of a configuration file's backup.
fn backup_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".bak");
    name.into()
}

/// Reads one of RocketMQ's configuration files, or its backup if the file is missing, empty or damaged; `None` if
/// neither exists.
///
/// `Corrupt` if the file is damaged and the backup cannot replace it.
pub(crate) fn load_with_backup<D: Disk, T>(
    disk: &D,
    path: &Path,
    parse: impl Fn(&[u8]) -> std::result::Result<T, &'static str>,
) -> Result<Option<T>> {
    let reason = match read(disk, path)?.map(|bytes| parse(&bytes)) {
        Some(Ok(found)) => return Ok(Some(found)),
        Some(Err(reason)) => Some(reason),
        None => None,
    };
    let backup = backup_of(path);
    match (read(disk, &backup)?.map(|bytes| parse(&bytes)), reason) {
        (Some(Ok(found)), _) => {
            tracing::warn!(file = %path.display(), backup = %backup.display(), "offsets read from the backup");
            Ok(Some(found))
        }
        (_, Some(reason)) => Err(StoreError::Corrupt { file: path.to_owned(), offset: 0, reason }),
        (Some(Err(reason)), None) => Err(StoreError::Corrupt { file: backup, offset: 0, reason }),
        (None, None) => Ok(None),
    }
}

/// Replaces one of RocketMQ's configuration files; the previous version becomes the backup.
pub(crate) fn save_with_backup<D: Disk>(disk: &D, path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(config) = path.parent() {
        disk.create_dir(config).or_io("create directory", config)?;
    }
    disk.rename(path, &backup_of(path)).if_found().or_io("rename", path)?;
    disk.replace_file(path, bytes).or_io("write", path)
}

/// Reads a JSON object as Java writes it, with integers as keys.
pub fn parse_json(bytes: &[u8]) -> std::result::Result<Value, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
    match serde_json::from_str(&quote_bare_keys(text)) {
        Ok(Value::Object(object)) => Ok(Value::Object(object)),
        _ => Err("not a JSON object"),
    }
}

fn read<D: Disk>(disk: &D, path: &Path) -> Result<Option<Vec<u8>>> {
    // A Java broker killed between creating and writing the file leaves it empty.
    let bytes = disk.read_file(path).if_found().or_io("read", path)?;
    Ok(bytes.filter(|bytes| !bytes.is_empty()))
}

fn parse_queues(queues: Value) -> std::result::Result<BTreeMap<u32, u64>, &'static str> {
    let Value::Object(queues) = queues else { return Err("the offsets of a group are not an object") };
    queues
        .into_iter()
        .map(|(id, offset)| {
            let id = id.parse().map_err(|_| "a queue id is not a number")?;
            // Java writes -1 for "nothing read yet".
            let offset = offset.as_i64().ok_or("an offset is not a number")?;
            Ok((id, u64::try_from(offset).unwrap_or(0)))
        })
        .collect()
}

/// Quotes integers used as keys, outside of strings.
fn quote_bare_keys(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let (mut copied, mut key_may_begin) = (0, false);
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                key_may_begin = false;
                while let Some((_, c)) = chars.next()
                    && c != '"'
                {
                    if c == '\\' {
                        chars.next();
                    }
                }
            }
            '{' | ',' => key_may_begin = true,
            c if c.is_whitespace() => {}
            '0'..='9' if key_may_begin => {
                key_may_begin = false;
                let rest = text.get(at..).unwrap_or_default();
                let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                let (number, after) = rest.split_at(digits);
                if after.trim_start().starts_with(':') {
                    out += text.get(copied..at).unwrap_or_default();
                    out += &format!("\"{number}\"");
                    copied = at + digits;
                }
                while chars.next_if(|(_, c)| c.is_ascii_digit()).is_some() {}
            }
            _ => key_may_begin = false,
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out += text.get(copied..).unwrap_or_default();
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Printed by Java's fastjson2 with `prettyFormat`.
    const JAVA: &str = "{\n\t\"dataVersion\":{\n\t\t\"counter\":7,\n\t\t\"stateVersion\":0,\n\t\t\"timestamp\":1700000000000\n\t},\n\t\"offsetTable\":{\n\t\t\"flights@audit\":{0:12,1:3\n\t\t},\n\t\t\"%RETRY%audit@audit\":{0 : 1}\n\t}\n}";

    #[test]
    fn a_file_of_java_is_read_and_its_unknown_fields_are_kept() {
        let file = OffsetFile::parse(JAVA.as_bytes()).unwrap();
        assert_eq!(file.offsets["flights@audit"], BTreeMap::from([(0, 12), (1, 3)]));
        assert_eq!(file.offsets["%RETRY%audit@audit"], BTreeMap::from([(0, 1)]));
        let text = file.encode();
        assert!(text.contains("{0:12,1:3}"), "{text}");
        assert!(text.contains("\"counter\":7"), "{text}");
        assert_eq!(OffsetFile::parse(text.as_bytes()).unwrap(), file);
    }

    #[test]
    fn quoted_queue_ids_are_read_too() {
        let file = OffsetFile::parse(br#"{"offsetTable":{"a@b":{"0":5,"12":6}}}"#).unwrap();
        assert_eq!(file.offsets["a@b"], BTreeMap::from([(0, 5), (12, 6)]));
    }

    #[test]
    fn digits_inside_strings_and_arrays_are_not_keys() {
        let text = r#"{"note":"{0:1,\"2:3","list":[1,2],"offsetTable":{"a@b":{0:5}}}"#;
        let file = OffsetFile::parse(text.as_bytes()).unwrap();
        assert_eq!(file.other["note"], "{0:1,\"2:3");
        assert_eq!(file.other["list"], serde_json::json!([1, 2]));
    }

    #[test]
    fn a_file_that_is_cut_or_of_another_shape_is_refused() {
        for cut in 1..JAVA.len() {
            assert!(OffsetFile::parse(&JAVA.as_bytes()[..cut]).is_err());
        }
        for text in [
            "[]",
            "{\"offsetTable\":3}",
            "{\"offsetTable\":{\"a@b\":{0:\"x\"}}}",
            "{\"offsetTable\":{\"a@b\":{x:1}}}",
        ] {
            assert!(OffsetFile::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_written_file_is_read_back(
            offsets in prop::collection::btree_map("[a-zA-Z0-9_%-]{1,9}@[a-z\"\\\\]{1,5}",
                prop::collection::btree_map(any::<u32>(), 0..=i64::MAX as u64, 0..4), 0..4)
        ) {
            let file = OffsetFile { offsets, other: Map::new() };
            prop_assert_eq!(OffsetFile::parse(file.encode().as_bytes()).unwrap(), file);
        }

        #[test]
        fn arbitrary_text_never_panics(text in "[{}\\[\\]\",:0-9a\\\\ ]{0,60}", bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = OffsetFile::parse(text.as_bytes());
            let _ = OffsetFile::parse(&bytes);
        }
    }
}
