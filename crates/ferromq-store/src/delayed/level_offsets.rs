//! RocketMQ's `config/delayOffset.json`: how far each delay level is delivered, as text.
//!
//! Java writes the levels as bare integers, `{"offsetTable":{1:12}}`, which is not JSON. Both forms are read, Java's is
//! written. Unknown fields are kept.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use crate::{
    error::Result,
    files::disk::Disk,
    progress::offset_file::{load_with_backup, parse_json, save_with_backup},
};

const TABLE: &str = "offsetTable";
const VERSION: &str = "dataVersion";

/// Next queue offset to deliver by level, the version of this data, and the file's other fields.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct DelayFile {
    pub(crate) offsets: BTreeMap<u32, u64>,
    /// How often the offsets were written.
    counter: u64,
    state_version: i64,
    timestamp: i64,
    other: Map<String, Value>,
}

impl DelayFile {
    /// The path of the file in a store directory. The previous version lies beside it with the suffix `.bak`.
    pub(crate) fn path(directory: &Path) -> PathBuf {
        directory.join("config").join("delayOffset.json")
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

    /// Replaces the offsets and raises the version.
    pub(crate) fn advance(&mut self, offsets: BTreeMap<u32, u64>, now_ms: i64) {
        self.offsets = offsets;
        self.counter += 1;
        self.timestamp = now_ms;
    }

    pub(crate) fn parse(bytes: &[u8]) -> std::result::Result<Self, &'static str> {
        let Value::Object(mut other) = parse_json(bytes)? else { return Err("not a JSON object") };
        let mut file = Self::default();
        match other.remove(TABLE) {
            Some(Value::Object(table)) => {
                for (level, offset) in table {
                    let level = level.parse().map_err(|_| "a delay level is not a number")?;
                    let offset = offset.as_i64().ok_or("an offset is not a number")?;
                    file.offsets.insert(level, u64::try_from(offset).unwrap_or(0));
                }
            }
            None | Some(Value::Null) => {}
            Some(_) => return Err("offsetTable is not an object"),
        }
        if let Some(version) = other.remove(VERSION) {
            let number = |name| version.get(name).and_then(Value::as_i64).unwrap_or(0);
            file.counter = u64::try_from(number("counter")).unwrap_or(0);
            file.state_version = number("stateVersion");
            file.timestamp = number("timestamp");
        }
        file.other = other;
        Ok(file)
    }

    pub(crate) fn encode(&self) -> String {
        let Self { counter, state_version, timestamp, .. } = self;
        let mut out = String::from("{\n");
        for (name, value) in &self.other {
            out += &format!("\t{}:{},\n", Value::from(name.as_str()), value);
        }
        out += &format!(
            "\t\"{VERSION}\":{{\n\t\t\"counter\":{counter},\n\t\t\"stateVersion\":{state_version},\n\t\t\"timestamp\":{timestamp}\n\t}},\n"
        );
        // In Java's order, which is the order of the text.
        let offsets: BTreeMap<String, u64> =
            self.offsets.iter().map(|(level, offset)| (level.to_string(), *offset)).collect();
        let lines: Vec<String> =
            offsets.iter().map(|(level, offset)| format!("\n\t\t{level}:{offset}")).collect();
        let end = if lines.is_empty() { "" } else { "\n\t" };
        out += &format!("\t\"{TABLE}\":{{{}{end}}}\n}}", lines.join(","));
        out
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Written by RocketMQ 5.5.0 (`DelayOffsetSerializeWrapper`, pretty).
    const JAVA: &str = include_str!("../../tests/data/delayOffset.json");

    #[test]
    fn a_file_of_java_is_read_and_written_again_as_it_was() {
        let file = DelayFile::parse(JAVA.as_bytes()).unwrap();
        assert_eq!(file.offsets, BTreeMap::from([(1, 200), (3, 7), (18, 0)]));
        assert_eq!(file.encode(), JAVA);
    }

    #[test]
    fn quoted_levels_files_of_old_brokers_and_unknown_fields_are_read() {
        let file = DelayFile::parse(br#"{"offsetTable":{"1":5,"12":-1},"more":[1]}"#).unwrap();
        assert_eq!(file.offsets, BTreeMap::from([(1, 5), (12, 0)]));
        assert!(file.encode().contains("\"more\":[1]"));
    }

    #[test]
    fn a_file_that_is_cut_or_of_another_shape_is_refused() {
        for cut in 1..JAVA.len() {
            assert!(DelayFile::parse(&JAVA.as_bytes()[..cut]).is_err());
        }
        for text in ["[]", "{\"offsetTable\":3}", "{\"offsetTable\":{1:\"x\"}}", "{\"offsetTable\":{x:1}}"] {
            assert!(DelayFile::parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_written_file_is_read_back(
            offsets in prop::collection::btree_map(any::<u32>(), 0..=i64::MAX as u64, 0..5), now_ms in 0..i64::MAX
        ) {
            let mut file = DelayFile::default();
            file.advance(offsets, now_ms);
            prop_assert_eq!(DelayFile::parse(file.encode().as_bytes()).unwrap(), file);
        }

        #[test]
        fn arbitrary_text_never_panics(text in "[{}\\[\\]\",:0-9a\\\\ ]{0,60}", bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = DelayFile::parse(text.as_bytes());
            let _ = DelayFile::parse(&bytes);
        }
    }
}
