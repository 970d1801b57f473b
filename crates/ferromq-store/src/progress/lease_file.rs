//! `ferromq/leases`: a snapshot of all leases, so that they survive a restart.
//! ```text
//! 8  magic "FMQLEASE"      4  version, 4      8  log position: everything below is on disk
//! 8  physical offset  8 store timestamp  4 CRC of the body: the anchor, see `anchor`
//! per queue:  2+n group  2+n topic  4 queue id  8 committed  8 committed before  8 next  4 leases
//!             per lease:  8 queue offset  8 pop time  8 invisible ms  4 attempt
//!             1 if it was received in order, else 0; if 1, 8 pop time  8 floor  2+n attempt id, empty for none
//! 4  CRC32 of all bytes before
//! ```
//! Integers are little-endian, texts UTF-8 after their length. `committed before` is the offset in
//! `consumerOffset.json` when the snapshot was written. That file is replaced just after, and either value
//! proves that no other broker moved the offset meanwhile. Java does not read this file. Version 2 does not
//! record the order, version 3 does not record its floor.

use crate::files::anchor::Anchor;
use crate::progress::lease::{Lease, Order, QueueLeases};

const MAGIC: &[u8; 8] = b"FMQLEASE";
const HEAD_LEN: usize = 40;
const VERSION: u32 = 4;
/// The last version without ordered receives.
const WITHOUT_ORDER: u32 = 2;
/// The last version without the floor of ordered receives.
const WITHOUT_FLOOR: u32 = 3;

/// The leases of one queue for one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// Consumer group.
    pub group: String,
    /// Topic.
    pub topic: String,
    /// Queue id.
    pub queue_id: u32,
    /// Committed queue offset.
    pub committed: u64,
    /// Committed queue offset of the snapshot before.
    pub committed_before: u64,
    pub(crate) leases: QueueLeases,
}

pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new() -> Self {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; HEAD_LEN - 12]);
        Self(out)
    }

    /// Adds a queue. No name is longer than 65,535 bytes; such a queue would be skipped.
    pub(crate) fn queue(
        &mut self,
        group: &str,
        topic: &str,
        queue_id: u32,
        before: u64,
        leases: &QueueLeases,
    ) {
        let (Ok(group_len), Ok(topic_len)) = (u16::try_from(group.len()), u16::try_from(topic.len())) else {
            return;
        };
        let out = &mut self.0;
        out.extend_from_slice(&group_len.to_le_bytes());
        out.extend_from_slice(group.as_bytes());
        out.extend_from_slice(&topic_len.to_le_bytes());
        out.extend_from_slice(topic.as_bytes());
        out.extend_from_slice(&queue_id.to_le_bytes());
        for number in [leases.committed(), before, leases.next()] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let in_flight = leases.in_flight();
        out.extend_from_slice(&u32::try_from(in_flight.len()).unwrap_or(u32::MAX).to_le_bytes());
        for (offset, lease) in in_flight {
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(&lease.pop_time.to_le_bytes());
            out.extend_from_slice(&lease.invisible_ms.to_le_bytes());
            out.extend_from_slice(&lease.attempt.to_le_bytes());
        }
        out.push(u8::from(leases.order().is_some()));
        if let Some(order) = leases.order() {
            let attempt_id = order.attempt_id.as_deref().unwrap_or("");
            out.extend_from_slice(&order.pop_time.to_le_bytes());
            out.extend_from_slice(&order.floor.to_le_bytes());
            // A longer attempt id is not kept.
            let len = u16::try_from(attempt_id.len()).unwrap_or(0);
            out.extend_from_slice(&len.to_le_bytes());
            out.extend(attempt_id.bytes().take(len.into()));
        }
    }

    /// Ends the file. `log_position` is the durable end of the log, `anchor` a record before it.
    pub(crate) fn finish(self, log_position: u64, anchor: Anchor) -> Vec<u8> {
        let mut out = self.0;
        let mut head = log_position.to_le_bytes().to_vec();
        head.extend_from_slice(&anchor.physical_offset.to_le_bytes());
        head.extend_from_slice(&anchor.store_timestamp.to_le_bytes());
        head.extend_from_slice(&anchor.body_crc.to_le_bytes());
        if let Some(place) = out.get_mut(12..HEAD_LEN) {
            place.copy_from_slice(&head);
        }
        out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
        out
    }
}

/// Reads the whole file: the anchor and the queues. The error names the broken rule.
pub fn read(bytes: &[u8]) -> Result<(Anchor, Vec<QueueSnapshot>), &'static str> {
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or("too short")?;
    let mut rest = body.strip_prefix(MAGIC).ok_or("wrong magic")?;
    let version = u32::from_le_bytes(take(&mut rest)?);
    if !(WITHOUT_ORDER..=VERSION).contains(&version) {
        return Err("unknown version");
    }
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return Err("wrong CRC");
    }
    let _log_position = u64::from_le_bytes(take(&mut rest)?);
    let anchor = Anchor {
        physical_offset: u64::from_le_bytes(take(&mut rest)?),
        store_timestamp: i64::from_le_bytes(take(&mut rest)?),
        body_crc: u32::from_le_bytes(take(&mut rest)?),
    };
    let mut queues = Vec::new();
    while !rest.is_empty() {
        queues.push(read_queue(&mut rest, version)?);
    }
    Ok((anchor, queues))
}

fn read_queue(rest: &mut &[u8], version: u32) -> Result<QueueSnapshot, &'static str> {
    let (group, topic) = (text(rest)?, text(rest)?);
    let queue_id = u32::from_le_bytes(take(rest)?);
    let committed = u64::from_le_bytes(take(rest)?);
    let committed_before = u64::from_le_bytes(take(rest)?);
    let mut leases = QueueLeases::new(u64::from_le_bytes(take(rest)?));
    for _ in 0..u32::from_le_bytes(take(rest)?) {
        let offset = u64::from_le_bytes(take(rest)?);
        let pop_time = i64::from_le_bytes(take(rest)?);
        let invisible_ms = i64::from_le_bytes(take(rest)?);
        let attempt = u32::from_le_bytes(take(rest)?);
        if !leases.restore(offset, Lease::new(pop_time, invisible_ms, attempt)) {
            return Err("a lease of a message that was not handed out");
        }
    }
    if version > WITHOUT_ORDER {
        leases.set_order(read_order(rest, version)?);
    }
    Ok(QueueSnapshot { group, topic, queue_id, committed, committed_before, leases })
}

fn read_order(rest: &mut &[u8], version: u32) -> Result<Option<Order>, &'static str> {
    match take(rest)? {
        [0] => Ok(None),
        [1] => {
            let pop_time = i64::from_le_bytes(take(rest)?);
            let floor = if version > WITHOUT_FLOOR { u64::from_le_bytes(take(rest)?) } else { 0 };
            let attempt_id = Some(text(rest)?).filter(|id| !id.is_empty()).map(Into::into);
            Ok(Some(Order { attempt_id, pop_time, floor, delivered: Vec::new() }))
        }
        _ => Err("an invalid mark of order"),
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], &'static str> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or("it ends in the middle")?;
    *rest = tail;
    Ok(*head)
}

fn text(rest: &mut &[u8]) -> Result<String, &'static str> {
    let len = usize::from(u16::from_le_bytes(take(rest)?));
    let (head, tail) = rest.split_at_checked(len).ok_or("it ends in the middle")?;
    *rest = tail;
    std::str::from_utf8(head).map(str::to_owned).map_err(|_| "a name is not UTF-8")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> Vec<u8> {
        let mut leases = QueueLeases::new(3);
        leases.lease(3, 1_000, 500, 1);
        leases.lease(4, 1_200, 500, 1);
        let (attempt_id, delivered) = (Some("try".into()), Vec::new());
        leases.set_order(Some(Order { attempt_id, pop_time: 1_200, floor: 2, delivered }));
        let mut writer = Writer::new();
        writer.queue("group", "topic", 7, 2, &leases);
        writer.queue("other", "topic", 0, 0, &QueueLeases::new(9));
        writer.finish(4096, Anchor { physical_offset: 4000, store_timestamp: 7, body_crc: 9 })
    }

    #[test]
    fn a_snapshot_is_read_as_it_was_written() {
        let (anchor, queues) = read(&example()).unwrap();
        assert_eq!(anchor, Anchor { physical_offset: 4000, store_timestamp: 7, body_crc: 9 });
        assert_eq!(queues.len(), 2);
        assert_eq!((queues[0].queue_id, queues[0].committed, queues[0].committed_before), (7, 3, 2));
        assert_eq!(queues[0].leases.in_flight().len(), 2);
        assert_eq!(queues[0].leases.next_expiry(), Some(1_500));
        assert!(queues[0].leases.is_repeated(Some("try")));
        assert_eq!(queues[0].leases.order().unwrap().floor, 2);
        assert_eq!(queues[1].leases.next(), 9);
        assert_eq!(queues[1].leases.order(), None);
    }

    #[test]
    fn a_snapshot_of_the_version_without_order_is_read() {
        let mut leases = QueueLeases::new(3);
        leases.lease(3, 1_000, 500, 1);
        let mut writer = Writer::new();
        writer.queue("group", "topic", 7, 2, &leases);
        let mut old = writer.finish(4096, Anchor { physical_offset: 4000, store_timestamp: 7, body_crc: 9 });
        // The old version has no mark of order after the leases.
        old.truncate(old.len() - 5);
        old[8] = 2;
        let crc = crc32fast::hash(&old).to_le_bytes();
        old.extend_from_slice(&crc);
        assert_eq!(read(&old).unwrap().1[0].leases, leases);
    }

    #[test]
    fn a_snapshot_of_the_version_without_a_floor_is_read() {
        let mut leases = QueueLeases::new(3);
        leases.lease(3, 1_000, 500, 1);
        leases.set_order(Some(Order { attempt_id: Some("try".into()), pop_time: 1_000, ..Order::default() }));
        let mut writer = Writer::new();
        writer.queue("group", "topic", 7, 2, &leases);
        let mut old = writer.finish(4096, Anchor { physical_offset: 4000, store_timestamp: 7, body_crc: 9 });
        // The floor lies between the pop time and the attempt id.
        old.truncate(old.len() - 4);
        old.drain(old.len() - 13..old.len() - 5);
        old[8] = 3;
        let crc = crc32fast::hash(&old).to_le_bytes();
        old.extend_from_slice(&crc);
        assert_eq!(read(&old).unwrap().1[0].leases, leases);
    }

    #[test]
    fn one_changed_byte_is_noticed_wherever_it_is() {
        let good = example();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(read(&bad).is_err(), "byte {at}");
            assert!(read(&good[..at]).is_err(), "cut at {at}");
        }
    }

    proptest! {
        /// With a valid CRC, so that the body is parsed.
        #[test]
        fn arbitrary_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&body);
            let mut file = MAGIC.to_vec();
            file.extend_from_slice(&VERSION.to_le_bytes());
            file.extend_from_slice(&body);
            file.extend_from_slice(&crc32fast::hash(&file).to_le_bytes());
            let _ = read(&file);
        }

        #[test]
        fn a_damaged_body_with_a_right_crc_never_panics(at in 0..200usize, byte in any::<u8>()) {
            let mut file = example();
            file.truncate(file.len() - 4);
            let at = at % file.len();
            file[at] = byte;
            file.extend_from_slice(&crc32fast::hash(&file).to_le_bytes());
            let _ = read(&file);
        }
    }
}
