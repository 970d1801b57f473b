//! The files of administrative decisions on queues: `ferromq/deleted`, the offset at which a deleted queue continues,
//! and `ferromq/access`, the closed queues.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    error::{IoResult, Result},
    files::{
        anchor::{self, Anchor},
        disk::Disk,
    },
    queues::queue_marks::{DeletedFloor, QueueAccess},
    record::reader::Reader,
};

const DELETED_MAGIC: &[u8; 8] = b"FMQDELE1";
const ACCESS_MAGIC: &[u8; 8] = b"FMQACCS1";

/// Topic and queue id.
pub type QueueName = (Box<str>, u32);

/// Reads the deleted queues if `is_held` confirms that the log still is the anchor's.
pub(crate) fn load_deleted<D: Disk>(
    disk: &D,
    root: &Path,
    is_held: impl FnOnce(Anchor) -> bool,
) -> Result<BTreeMap<QueueName, DeletedFloor>> {
    let Some((anchor, queues)) = load(disk, &path(root, "deleted"), DELETED_MAGIC, floor)? else {
        return Ok(BTreeMap::new());
    };
    if !is_held(anchor) {
        tracing::warn!("ferromq/deleted ignored: it belongs to another log");
        return Ok(BTreeMap::new());
    }
    Ok(queues)
}

fn floor(reader: &mut Reader<'_>) -> Option<DeletedFloor> {
    Some(DeletedFloor { offset: reader.u64()?, physical_end: reader.u64()? })
}

/// Decodes `ferromq/deleted` and the record at which it was noted. Errors: the broken rule.
pub fn read_deleted(
    bytes: &[u8],
) -> std::result::Result<(Anchor, BTreeMap<QueueName, DeletedFloor>), &'static str> {
    let (anchor, content) = anchor::unseal(DELETED_MAGIC, bytes)?;
    Ok((anchor, decode(content, floor).ok_or("its list of queues is malformed")?))
}

/// Each queue: topic length 2, topic, queue ID 4, first offset 8, physical end 8.
pub(crate) fn save_deleted<D: Disk>(
    disk: &D,
    root: &Path,
    anchor: Anchor,
    queues: &BTreeMap<QueueName, DeletedFloor>,
) -> Result<()> {
    let bytes = encode(queues, |floor, out| {
        out.extend(floor.offset.to_be_bytes());
        out.extend(floor.physical_end.to_be_bytes());
    });
    save(disk, &path(root, "deleted"), &anchor::seal(DELETED_MAGIC, anchor, &bytes))
}

/// Reads the closed queues. An administrator closed them, so the file holds for any log and has no anchor.
pub(crate) fn load_access<D: Disk>(disk: &D, root: &Path) -> Result<BTreeMap<QueueName, QueueAccess>> {
    let found = load(disk, &path(root, "access"), ACCESS_MAGIC, |rest| {
        let access = rest.u8()?;
        QueueAccess::from_byte(access)
    })?;
    Ok(found.map_or_else(BTreeMap::new, |(_, queues)| queues))
}

/// Each queue that is not open: topic length 2, topic, queue ID 4, access 1.
pub(crate) fn save_access<D: Disk>(
    disk: &D,
    root: &Path,
    queues: &BTreeMap<QueueName, QueueAccess>,
) -> Result<()> {
    let bytes = encode(queues, |access, out| out.push(access.to_byte()));
    save(disk, &path(root, "access"), &anchor::seal(ACCESS_MAGIC, Anchor::NONE, &bytes))
}

fn path(root: &Path, name: &str) -> PathBuf {
    root.join("ferromq").join(name)
}

fn save<D: Disk>(disk: &D, path: &Path, bytes: &[u8]) -> Result<()> {
    disk.replace_file(path, bytes).or_io("write", path)
}

type Queues<T> = BTreeMap<QueueName, T>;

fn load<D: Disk, T>(
    disk: &D,
    path: &Path,
    magic: &[u8; 8],
    value: impl Fn(&mut Reader<'_>) -> Option<T>,
) -> Result<Option<(Anchor, Queues<T>)>> {
    let Some(bytes) = disk.read_file(path).if_found().or_io("read", path)? else { return Ok(None) };
    let reason = match anchor::unseal(magic, &bytes) {
        Ok((anchor, content)) => match decode(content, value) {
            Some(queues) => return Ok(Some((anchor, queues))),
            None => "its list of queues is malformed",
        },
        Err(reason) => reason,
    };
    tracing::error!(file = %path.display(), reason, "file ignored: deleted or closed queues may be visible again");
    Ok(None)
}

fn encode<T>(queues: &Queues<T>, value: impl Fn(&T, &mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    for ((topic, queue_id), of_queue) in queues {
        out.extend((topic.len() as u16).to_be_bytes());
        out.extend(topic.as_bytes());
        out.extend(queue_id.to_be_bytes());
        value(of_queue, &mut out);
    }
    out
}

fn decode<T>(bytes: &[u8], value: impl Fn(&mut Reader<'_>) -> Option<T>) -> Option<Queues<T>> {
    let (mut reader, mut queues) = (Reader::new(bytes), BTreeMap::new());
    while !reader.is_empty() {
        let topic = std::str::from_utf8(reader.short_bytes()?).ok()?;
        let queue_id = reader.u32()?;
        queues.insert((topic.into(), queue_id), value(&mut reader)?);
    }
    Some(queues)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::files::real_disk::RealDisk;

    proptest! {
        #[test]
        fn marks_come_back_as_written_and_no_part_of_a_file_is_taken_for_it(
            queues in proptest::collection::btree_map(("[a-z%]{1,9}", any::<u32>()), any::<(u64, u64, bool)>(), 0..5),
            cut in any::<prop::sample::Index>(),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let root = directory.path();
            std::fs::create_dir(root.join("ferromq")).unwrap();
            let name = |(topic, id): &(String, u32)| (topic.as_str().into(), *id);
            let deleted: BTreeMap<_, _> = queues
                .iter()
                .map(|(key, at)| (name(key), DeletedFloor { offset: at.0, physical_end: at.1 }))
                .collect();
            let access = |is_closed| if is_closed { QueueAccess::Closed } else { QueueAccess::ReadOnly };
            let closed: BTreeMap<_, _> = queues.iter().map(|(key, at)| (name(key), access(at.2))).collect();
            let anchor = Anchor { physical_offset: 1, store_timestamp: 2, body_crc: 3 };
            prop_assert!(load_deleted(&RealDisk, root, |_| true).unwrap().is_empty());
            prop_assert!(load_access(&RealDisk, root).unwrap().is_empty());
            save_deleted(&RealDisk, root, anchor, &deleted).unwrap();
            save_access(&RealDisk, root, &closed).unwrap();
            prop_assert_eq!(&load_deleted(&RealDisk, root, |found| found == anchor).unwrap(), &deleted);
            prop_assert!(load_deleted(&RealDisk, root, |_| false).unwrap().is_empty());
            prop_assert_eq!(load_access(&RealDisk, root).unwrap(), closed);
            let file = root.join("ferromq/deleted");
            let bytes = std::fs::read(&file).unwrap();
            std::fs::write(&file, &bytes[..cut.index(bytes.len())]).unwrap();
            prop_assert!(load_deleted(&RealDisk, root, |_| true).unwrap().is_empty());
        }

        #[test]
        fn decoding_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = decode(&bytes, |reader| reader.u64());
        }
    }
}
