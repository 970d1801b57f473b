//! Converts the state of a Java broker's pop consumers into leases.
//!
//! A Java broker commits messages when it hands them out. A message is unacknowledged if a check-point of its pop
//! exists without an acknowledgement of the message. Both are messages of the *revive log*, or until shortly before the
//! invisible duration ends, of the topic of timed messages. At the first open after another broker had the store, they
//! are read once. From then on our leases count, and the committed offset of the revive log is set to its end.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::Value;

use crate::{
    config::StoreConfig,
    delayed::timer::checkpoint_files::TimerCheck,
    error::{Result, StoreError},
    files::disk::Disk,
    filter::message_filter::MessageFilter,
    progress::{
        group_progress::Progress,
        java_leases::{JavaLeases, OfQueue, REVIVE_PREFIX},
        lease::Lease,
    },
    queues::{consume_queue::ConsumeQueue, time_search::TimeSearch},
    read::{
        reader::Reader,
        types::{GetRequest, GetStatus},
    },
    record::{message::MessageView, names::TIMER_TOPIC, properties},
    time::clock::Clock,
};

/// The group that reads the revive log.
const REVIVE_GROUP: &str = "CID_RMQ_SYS_REVIVE_GROUP";
/// Tags of check-points, acknowledgements, and batches of acknowledgements.
const CHECK_POINT: &str = "ck";
const ACK: &str = "ack";
const ACKS: &str = "bAck";
const BATCH: usize = 256;
const BATCH_BYTES: usize = 4 << 20;
/// Most messages and acknowledgements held in memory, about 100 bytes each. Queues with more are read again from the
/// first unacknowledged message.
const MOST: usize = 1 << 20;
/// Margin for clocks that differ, added to the longest wait that the timer allows.
const SLACK_MS: i64 = 3_600_000;

/// One pop of one queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pop {
    group: String,
    topic: String,
    queue_id: u32,
    start: u64,
    pop_time: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct HandedOut {
    invisible_ms: i64,
    /// Offsets unacknowledged when the check-point was written.
    offsets: Vec<u64>,
}

#[derive(Debug)]
struct Pops {
    handed_out: HashMap<Pop, HandedOut>,
    acknowledged: HashMap<Pop, HashSet<u64>>,
    unreadable: usize,
    /// Check-points, their messages and acknowledgements in memory, and the limit of their number.
    known: usize,
    most: usize,
    /// Queues with more messages than fit in memory, and the first unacknowledged message of each.
    rewound: BTreeMap<OfQueue, u64>,
}

/// Converts the state of Java's consumers into leases, and commits the revive log to its end. Call it once the queues
/// are recovered, and write the progress before the store counts as ours. Returns whether there is something to write.
pub(crate) fn take_over<D: Disk>(
    reader: &Reader<D>,
    config: &StoreConfig,
    clock: &Clock,
    progress: &Progress,
) -> Result<bool> {
    let mut pops = Pops::new(MOST);
    let logs: Vec<_> =
        reader.queues.all().into_iter().filter(|queue| queue.topic().starts_with(REVIVE_PREFIX)).collect();
    let waiting = reader.queues.find(TIMER_TOPIC, 0);
    for queue in logs.iter().chain(&waiting) {
        check_end(reader, queue)?;
    }
    for queue in &logs {
        // RocketMQ commits the offset of the last message processed.
        let committed = progress.committed_of(REVIVE_GROUP, queue.topic(), queue.queue_id());
        let from = committed.map_or(0, |offset| offset + 1);
        read_all(reader, queue.topic(), queue.queue_id(), from, |view| pops.add(view))?;
    }
    // Messages due before this were delivered, and the revive log holds them.
    let done_until =
        TimerCheck::load(&reader.home.disk, &reader.home.root)?.map_or(0, |check| check.read_time);
    let delay_ms = config.timer.max_delay.as_millis().max(72 * 3_600_000) as i64;
    let since = done_until.saturating_sub(delay_ms).saturating_sub(SLACK_MS);
    let from = waiting.map_or(0, |queue| TimeSearch::new(&reader.log, &queue).first_since(since));
    read_all(reader, TIMER_TOPIC, 0, from, |view| {
        let property = |name| properties::get(view.properties, name);
        let is_waiting =
            property("TIMER_OUT_MS").and_then(|text| text.parse::<i64>().ok()) >= Some(done_until);
        if is_waiting && property("REAL_TOPIC").is_some_and(|topic| topic.starts_with(REVIVE_PREFIX)) {
            pops.add(view);
        }
    })?;
    if pops.unreadable > 0 {
        tracing::warn!(
            messages = pops.unreadable,
            "messages of the revive log are not check-points: skipped"
        );
    }
    let (mut queues, mut leases) = (0, 0);
    for ((group, topic, queue_id), held) in pops.open(clock.now_ms()) {
        if held.is_rewound {
            tracing::warn!(
                group,
                topic,
                queue_id,
                from = held.first,
                "another broker has too many messages in flight to import: the queue is read again from the first"
            );
        }
        let bounds =
            (reader.queues.min_offset(&topic, queue_id), reader.queues.offset_limit(&topic, queue_id));
        queues += 1;
        leases += progress.take_over(&group, &topic, queue_id, held, bounds);
    }
    for queue in logs.iter().filter(|queue| queue.max_offset() > 0) {
        progress.set(REVIVE_GROUP, queue.topic(), queue.queue_id(), queue.max_offset() - 1);
    }
    if queues > 0 {
        tracing::info!(queues, leases, "leases of another broker's pop consumers taken over");
    }
    Ok(queues > 0 || !logs.is_empty())
}

/// Returns `Io` for a queue that cannot be read to its end now. Its messages are committed and the directory is
/// converted only once, so unread state would lose unacknowledged messages.
fn check_end<D: Disk>(reader: &Reader<D>, queue: &ConsumeQueue<D>) -> Result<()> {
    if !queue.marks.is_end_unknown() {
        return Ok(());
    }
    let directory = queue.directory_in(&reader.home.root);
    let reason = queue.marks.aside_reason().unwrap_or_default();
    let text = format!(
        "it tells which messages consumers of another broker hold, and cannot be read or written now ({reason}); \
         mend it, and open the store again"
    );
    Err(StoreError::io("read", &directory, std::io::Error::other(text)))
}

/// Visits the messages of the revive log in a queue, from an offset on.
fn read_all<D: Disk>(
    reader: &Reader<D>,
    topic: &str,
    queue_id: u32,
    from: u64,
    mut visit: impl FnMut(&MessageView<'_>),
) -> Result<()> {
    let wanted = MessageFilter::tags(&[CHECK_POINT, ACK, ACKS].join("||"));
    let mut at = from.max(reader.queues.min_offset(topic, queue_id));
    while at < reader.queues.max_offset(topic, queue_id) {
        let all = GetRequest::all(topic, queue_id, at, BATCH, BATCH_BYTES);
        let found = reader.read_internal(&GetRequest { filter: &wanted, ..all });
        for (_, record) in &found.messages {
            if let Ok(view) = MessageView::decode(record.bytes(), false) {
                visit(&view);
            }
        }
        if found.next_offset <= at {
            if found.status == GetStatus::QueueClosed {
                tracing::warn!(
                    topic,
                    queue_id,
                    "the queue is closed: messages in flight are unknown and are redelivered"
                );
                return Ok(());
            }
            let unread = std::io::Error::other("messages in flight cannot be read now");
            return Err(StoreError::io("read", reader.log.files().directory(), unread));
        }
        at = found.next_offset;
    }
    Ok(())
}

impl Pops {
    fn new(most: usize) -> Self {
        Self {
            handed_out: HashMap::new(),
            acknowledged: HashMap::new(),
            unreadable: 0,
            known: 0,
            most,
            rewound: BTreeMap::new(),
        }
    }

    fn add(&mut self, view: &MessageView<'_>) {
        let tag = properties::get(view.properties, "TAGS").unwrap_or_default();
        let known = serde_json::from_slice::<Value>(view.body).ok().and_then(|body| self.read(tag, &body));
        if known.is_none() {
            self.unreadable += 1;
        }
    }

    fn read(&mut self, tag: &str, body: &Value) -> Option<()> {
        let pop = Pop {
            group: text(body, &["c", "cid", "cId", "consumerGroup"])?,
            topic: text(body, &["t", "topic"])?,
            queue_id: u32::try_from(number(body, &["q", "queueId"])?).ok()?,
            start: u64::try_from(number(body, &["so", "startOffset"])?).ok()?,
            pop_time: number(body, &["pt", "popTime"])?,
        };
        match tag {
            CHECK_POINT => {
                let handed_out = HandedOut {
                    invisible_ms: number(body, &["it", "invisibleTime"])?.max(0),
                    offsets: not_marked(body, pop.start)?,
                };
                let queue = (pop.group.clone(), pop.topic.clone(), pop.queue_id);
                if let Some(first) = self.rewound.get_mut(&queue) {
                    *first = handed_out.offsets.iter().copied().min().unwrap_or(*first).min(*first);
                    return Some(());
                }
                self.known += 1 + handed_out.offsets.len();
                self.handed_out.insert(pop, handed_out);
            }
            ACK => {
                let offset = u64::try_from(number(body, &["ao", "ackOffset"])?).ok()?;
                self.known += 2;
                self.acknowledged.entry(pop).or_default().insert(offset);
            }
            _ => {
                let offsets = member(body, &["aol", "ackOffsetList"])?.as_array()?;
                self.known += 1 + offsets.len();
                let offsets = offsets.iter().filter_map(Value::as_u64);
                self.acknowledged.entry(pop).or_default().extend(offsets);
            }
        }
        self.bound();
        Some(())
    }

    /// At the limit, drops pops that are fully acknowledged. If that frees less than half, records for each queue where
    /// to read it again.
    fn bound(&mut self) {
        if self.known <= self.most {
            return;
        }
        let Self { handed_out, acknowledged, .. } = self;
        handed_out.retain(|pop, out| {
            let is_done = |done: &HashSet<u64>| out.offsets.iter().all(|offset| done.contains(offset));
            let is_open = !acknowledged.get(pop).is_some_and(is_done);
            if !is_open {
                acknowledged.remove(pop);
            }
            is_open
        });
        let offsets = |sum: usize, len: usize| sum + 1 + len;
        self.known = handed_out.values().map(|out| out.offsets.len()).fold(0, offsets)
            + acknowledged.values().map(HashSet::len).fold(0, offsets);
        if self.known <= self.most / 2 {
            return;
        }
        for (pop, out) in self.handed_out.drain() {
            let done = self.acknowledged.get(&pop);
            let open =
                out.offsets.into_iter().filter(|offset| !done.is_some_and(|done| done.contains(offset)));
            if let Some(first) = open.min() {
                let known = self.rewound.entry((pop.group, pop.topic, pop.queue_id)).or_insert(first);
                *known = first.min(*known);
            }
        }
        self.acknowledged.clear();
        self.known = 0;
    }

    /// Unacknowledged messages by queue. Of several leases of a message the last one counts.
    fn open(self, now: i64) -> BTreeMap<OfQueue, JavaLeases> {
        let again = |first| JavaLeases { first, leases: BTreeMap::new(), is_rewound: true };
        let mut open: BTreeMap<OfQueue, JavaLeases> =
            self.rewound.into_iter().map(|(queue, first)| (queue, again(first))).collect();
        for (pop, handed_out) in self.handed_out {
            let acknowledged = self.acknowledged.get(&pop);
            let ends_at = pop.pop_time.saturating_add(handed_out.invisible_ms);
            let lease = Lease::imported(pop.pop_time, ends_at, 1, now);
            let held = open.entry((pop.group, pop.topic, pop.queue_id)).or_insert_with(|| JavaLeases {
                first: pop.start,
                leases: BTreeMap::new(),
                is_rewound: false,
            });
            held.first = held.first.min(pop.start);
            for offset in handed_out.offsets {
                if acknowledged.is_some_and(|done| done.contains(&offset)) {
                    continue;
                }
                let known = held.leases.entry(offset).or_insert(lease);
                if lease.pop_time > known.pop_time {
                    *known = lease;
                }
            }
        }
        open
    }
}

/// The offsets of a check-point whose bits are not set: given as distances from the first, or consecutive in
/// check-points of older brokers.
fn not_marked(body: &Value, start: u64) -> Option<Vec<u64>> {
    let bits = number(body, &["bm", "bitMap"]).unwrap_or(0);
    let distances: BTreeSet<(usize, u64)> =
        match member(body, &["d", "queueOffsetDiff"]).and_then(Value::as_array) {
            Some(listed) if !listed.is_empty() => listed
                .iter()
                .enumerate()
                .map(|(index, each)| Some((index, each.as_u64()?)))
                .collect::<Option<_>>()?,
            _ => {
                let count = u8::try_from(number(body, &["n", "num"])?).ok()?;
                (0..count).map(|index| (usize::from(index), u64::from(index))).collect()
            }
        };
    let is_marked = |index: usize| index < 32 && bits >> index & 1 == 1;
    let open = distances.into_iter().filter(|(index, _)| !is_marked(*index));
    open.map(|(_, distance)| start.checked_add(distance)).collect()
}

/// A member by the first of its names that exists: newer brokers write short names.
fn member<'a>(body: &'a Value, names: &[&str]) -> Option<&'a Value> {
    names.iter().find_map(|name| body.get(name)).filter(|value| !value.is_null())
}

fn text(body: &Value, names: &[&str]) -> Option<String> {
    member(body, names)?.as_str().map(str::to_owned)
}

fn number(body: &Value, names: &[&str]) -> Option<i64> {
    member(body, names)?.as_i64()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(tag: &str, body: &str) -> Pops {
        let mut pops = Pops::new(MOST);
        serde_json::from_str(body).ok().and_then(|body| pops.read(tag, &body));
        pops
    }

    #[test]
    fn a_check_point_of_an_old_broker_counts_its_messages_one_after_the_other() {
        let body = r#"{"bitMap":5,"cid":"g","invisibleTime":60000,"num":4,"popTime":7,"queueId":2,"startOffset":10,"topic":"t"}"#;
        let open = one(CHECK_POINT, body).open(7);
        let held = &open[&("g".to_owned(), "t".to_owned(), 2)];
        let lease = Lease::new(7, 60_000, 1);
        assert_eq!(
            held,
            &JavaLeases { first: 10, leases: BTreeMap::from([(11, lease), (13, lease)]), is_rewound: false }
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bodies_never_panic(
            tag in prop::sample::select(vec![CHECK_POINT, ACK, ACKS]),
            numbers in prop::collection::vec(any::<i64>(), 8),
            listed in prop::collection::vec(any::<i64>(), 0..40),
            garbage in "\\PC{0,40}",
        ) {
            let [so, pt, it, bm, n, q, ao, _] = numbers[..] else { unreachable!() };
            let body = format!(
                r#"{{"c":"g","t":"t","so":{so},"pt":{pt},"it":{it},"bm":{bm},"n":{n},"q":{q},"ao":{ao},"d":{listed:?},"aol":{listed:?}}}"#
            );
            for held in one(tag, &body).open(1_700_000_000_000).values() {
                prop_assert!(held.leases.values().all(|lease| lease.expires_at() <= 1_700_000_000_000 + 3 * 86_400_000));
            }
            one(tag, &garbage).open(0);
        }

        #[test]
        fn no_unacknowledged_message_is_forgotten_with_little_memory(
            steps in prop::collection::vec((0u8..3, 0u64..6, 0u64..30, 1u64..5, 0u64..5), 0..120),
            most in 1usize..40,
        ) {
            let (mut whole, mut little) = (Pops::new(MOST), Pops::new(most));
            for (kind, queue, start, count, acked) in steps {
                let distances: Vec<u64> = (0..count).collect();
                let offset = start + acked % count;
                let (tag, rest) = match kind {
                    0 => (CHECK_POINT, format!(r#""it":60000,"n":{count},"d":{distances:?}"#)),
                    1 => (ACK, format!(r#""ao":{offset}"#)),
                    _ => (ACKS, format!(r#""aol":[{offset}]"#)),
                };
                let body = format!(r#"{{"c":"g","t":"t","q":{queue},"so":{start},"pt":5,{rest}}}"#);
                for pops in [&mut whole, &mut little] {
                    pops.read(tag, &serde_json::from_str(&body).unwrap()).unwrap();
                }
                prop_assert!(little.known <= most);
            }
            let little = little.open(5);
            for (queue, held) in whole.open(5) {
                for offset in held.leases.keys() {
                    let known = little.get(&queue).unwrap();
                    let comes = if known.is_rewound { known.first <= *offset } else { known.leases.contains_key(offset) };
                    prop_assert!(comes, "{offset} of {queue:?} is in {known:?}");
                }
            }
        }
    }
}
