//! RocketMQ's `config/consumerOrderInfo.json`: the last ordered receive of each queue, as text.
//!
//! `{"table":{"topic@group":{0:{"popTime":…,"i":invisible ms,"o":[first offset, distance, …],"ot":{offset: next visible
//! time},"oc":{offset: deliveries before},"l":last time,"cm":bits of acknowledged messages,"a":attempt id}}}}`.
//! Integers are keys, which is not JSON; both forms are read, Java's is written. Our own leases are in `lease_file`.
//! This file is read if `lease_file` does not match the log, and written for a Java broker that may open the directory
//! next.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use crate::{
    error::Result,
    files::disk::Disk,
    progress::{
        lease::{Lease, Order, QueueLeases},
        offset_file::{load_with_backup, parse_json, save_with_backup},
    },
};

const TABLE: &str = "table";
/// Most messages of a receive whose acknowledgements Java can record: one bit each.
const MAX_MESSAGES: usize = 64;

/// The last ordered receives by `topic@group` and queue id, and the file's other fields.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct OrderFile {
    receives: BTreeMap<String, BTreeMap<u32, Receive>>,
    other: Map<String, Value>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Receive {
    pop_time: i64,
    invisible_ms: i64,
    attempt_id: Option<String>,
    messages: Vec<Message>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Message {
    offset: u64,
    is_acknowledged: bool,
    /// When it becomes visible, if not with the others.
    visible_at: Option<i64>,
    deliveries_before: u32,
}

impl OrderFile {
    /// The path of the file in a store directory.
    pub(crate) fn path(directory: &Path) -> PathBuf {
        directory.join("config").join("consumerOrderInfo.json")
    }

    /// Reads the file, or its backup if the file is missing, empty or damaged. Empty if neither can be read: messages
    /// are then redelivered early, in order.
    pub(crate) fn load<D: Disk>(disk: &D, directory: &Path) -> Self {
        let path = Self::path(directory);
        match load_with_backup(disk, &path, Self::parse) {
            Ok(file) => file.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "ordered receives are unknown: their messages are redelivered early");
                Self::default()
            }
        }
    }

    /// Replaces the file; the previous version becomes the backup.
    pub(crate) fn save<D: Disk>(&self, disk: &D, directory: &Path) -> Result<()> {
        save_with_backup(disk, &Self::path(directory), self.encode().as_bytes())
    }

    /// The leases of a queue that a group has read up to `committed`. `None` if the file has no entry or one that does
    /// not match `committed`: the offset was moved since, so the leases are obsolete.
    ///
    /// Impossible times are bounded relative to `now`.
    pub(crate) fn leases(&self, name: &str, queue_id: u32, committed: u64, now: i64) -> Option<QueueLeases> {
        let receive = self.receives.get(name)?.get(&queue_id)?;
        let (first, last) = (receive.messages.first()?.offset, receive.messages.last()?.offset);
        let next = last.saturating_add(1);
        if !(first..=next).contains(&committed) {
            return None;
        }
        let mut leases = QueueLeases::new(next);
        for message in receive.messages.iter().filter(|message| message.offset >= committed) {
            if message.is_acknowledged {
                continue;
            }
            let ends = receive.pop_time.saturating_add(receive.invisible_ms);
            let attempt = message.deliveries_before.saturating_add(1);
            let ends = message.visible_at.unwrap_or(ends);
            leases.restore(message.offset, Lease::imported(receive.pop_time, ends, attempt, now));
        }
        let attempt_id = receive.attempt_id.as_deref().filter(|id| !id.is_empty()).map(Into::into);
        let Lease { pop_time, .. } = Lease::imported(receive.pop_time, 0, 1, now);
        leases.set_order(Some(Order { attempt_id, pop_time, ..Order::default() }));
        leases.set_delivered(receive.delivered(committed).collect());
        Some(leases)
    }

    /// Adds acknowledged messages of the last ordered receive to `leases`, which come from the lease file.
    pub(crate) fn add_delivered(&self, name: &str, queue_id: u32, leases: &mut QueueLeases) {
        let receive = self.receives.get(name).and_then(|queues| queues.get(&queue_id));
        let is_it = |receive: &&Receive| {
            leases.order().is_some_and(|order| {
                order.pop_time == receive.pop_time
                    && order.attempt_id.as_deref() == receive.attempt_id.as_deref()
            })
        };
        if let Some(receive) = receive.filter(is_it) {
            let (first, next) = (leases.committed(), leases.next());
            let has_lease =
                |offset| leases.in_flight_from(offset).is_some_and(|(leased, _)| leased == offset);
            let delivered =
                receive.delivered(first).filter(|(offset, _)| *offset < next && !has_lease(*offset));
            let delivered = delivered.collect();
            leases.set_delivered(delivered);
        }
    }

    /// Records the last ordered receive of a queue, or removes it if none of its messages is in flight.
    pub(crate) fn put(&mut self, name: &str, queue_id: u32, leases: &QueueLeases) {
        let receive =
            leases.order().map(|order| Receive::of(order, leases)).filter(|r| !r.messages.is_empty());
        match receive {
            Some(receive) => {
                self.receives.entry(name.to_owned()).or_default().insert(queue_id, receive);
            }
            None => {
                let Some(queues) = self.receives.get_mut(name) else { return };
                queues.remove(&queue_id);
                if queues.is_empty() {
                    self.receives.remove(name);
                }
            }
        }
    }

    /// Removes the other names. Returns whether there were any.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) -> bool {
        let before = self.receives.len();
        self.receives.retain(|name, _| is_kept(name));
        self.receives.len() < before
    }

    pub(crate) fn parse(bytes: &[u8]) -> std::result::Result<Self, &'static str> {
        let Value::Object(mut other) = parse_json(bytes)? else { return Err("not a JSON object") };
        let mut receives = BTreeMap::new();
        match other.remove(TABLE) {
            Some(Value::Object(table)) => {
                for (name, queues) in table {
                    let Value::Object(queues) = queues else {
                        return Err("the queues of a group are not an object");
                    };
                    let queues = queues.into_iter().filter_map(|(id, receive)| {
                        let read = id.parse().map_err(|_| "a queue id is not a number");
                        let read = read.and_then(|id| Ok((id, Receive::parse(&receive)?)));
                        read.inspect_err(|reason| {
                            tracing::warn!(
                                name,
                                queue_id = id,
                                reason,
                                "an ordered receive is invalid: its messages are redelivered early"
                            );
                        })
                        .ok()
                    });
                    let queues = queues.collect();
                    receives.insert(name, queues);
                }
            }
            None | Some(Value::Null) => {}
            Some(_) => return Err("table is not an object"),
        }
        Ok(Self { receives, other })
    }

    pub(crate) fn encode(&self) -> String {
        let mut out = String::from("{");
        // Writing to a String cannot fail.
        for (name, value) in &self.other {
            let _ = writeln!(out, "{}:{value},", Value::from(name.as_str()));
        }
        let _ = write!(out, "\"{TABLE}\":{{");
        for (index, (name, queues)) in self.receives.iter().enumerate() {
            out += if index == 0 { "\n" } else { ",\n" };
            let _ = write!(out, "\t{}:{{", Value::from(name.as_str()));
            let queues: Vec<String> =
                queues.iter().map(|(id, receive)| format!("{id}:{}", receive.encode())).collect();
            out += &queues.join(",");
            out.push('}');
        }
        out += "\n}}\n";
        out
    }
}

impl Receive {
    fn of(order: &Order, leases: &QueueLeases) -> Self {
        let batch = || leases.in_flight().filter(|(_, lease)| lease.pop_time == order.pop_time);
        let invisible_ms = batch().map(|(_, lease)| lease.invisible_ms).next().unwrap_or(0).max(1);
        let leased = |(offset, lease): (u64, Lease)| Message {
            offset,
            is_acknowledged: false,
            visible_at: (lease.invisible_ms != invisible_ms).then(|| lease.expires_at()),
            deliveries_before: lease.attempt.saturating_sub(1),
        };
        let done = |(offset, times): &(u64, u32)| Message {
            offset: *offset,
            is_acknowledged: true,
            visible_at: None,
            deliveries_before: times.saturating_sub(1),
        };
        let mut messages: Vec<Message> = batch().map(leased).collect();
        if let Some(first) = messages.first().map(|message| message.offset) {
            let range = first..leases.next();
            messages.extend(order.delivered.iter().filter(|(offset, _)| range.contains(offset)).map(done));
        }
        messages.sort_unstable_by_key(|message| message.offset);
        messages.truncate(MAX_MESSAGES);
        let attempt_id = order.attempt_id.as_deref().map(str::to_owned);
        Self { pop_time: order.pop_time, invisible_ms, attempt_id, messages }
    }

    /// Messages acknowledged above the first unacknowledged one, and how often each was delivered.
    fn delivered(&self, committed: u64) -> impl Iterator<Item = (u64, u32)> + '_ {
        let is_meant = move |message: &&Message| message.is_acknowledged && message.offset > committed;
        let times = |message: &Message| (message.offset, message.deliveries_before.saturating_add(1));
        self.messages.iter().filter(is_meant).map(times)
    }

    fn parse(value: &Value) -> std::result::Result<Self, &'static str> {
        let number = |name| match value.get(name) {
            None | Some(Value::Null) => Ok(0),
            Some(number) => number.as_i64().ok_or("a field of a receive is not a number"),
        };
        let by_offset = |name, offset: u64| value.get(name)?.get(offset.to_string())?.as_i64();
        let acknowledged = number("cm")?;
        let distances = match value.get("o") {
            None | Some(Value::Null) => &[],
            Some(Value::Array(distances)) => distances.as_slice(),
            Some(_) => return Err("the offsets of a receive are not a list"),
        };
        let mut messages: Vec<Message> = Vec::with_capacity(distances.len());
        for (index, distance) in distances.iter().enumerate() {
            let distance = distance.as_u64().ok_or("an offset of a receive is not a number")?;
            let first = messages.first().map_or(0, |first| first.offset);
            let offset = first.checked_add(distance).ok_or("an offset of a receive is too large")?;
            if messages.last().is_some_and(|last| last.offset >= offset) {
                return Err("the offsets of a receive are not ascending");
            }
            messages.push(Message {
                offset,
                is_acknowledged: index < MAX_MESSAGES && acknowledged >> index & 1 == 1,
                visible_at: by_offset("ot", offset),
                deliveries_before: by_offset("oc", offset).and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
            });
        }
        Ok(Self {
            pop_time: number("popTime")?,
            invisible_ms: number("i")?.max(0),
            attempt_id: value.get("a").and_then(Value::as_str).map(str::to_owned),
            messages,
        })
    }

    fn encode(&self) -> String {
        let first = self.messages.first().map_or(0, |message| message.offset);
        let offsets = self.messages.iter().enumerate().map(|(index, message)| {
            let from = if index == 0 { 0 } else { first };
            (message.offset - from).to_string()
        });
        let offsets = offsets.collect::<Vec<_>>().join(",");
        let bits = self.messages.iter().take(MAX_MESSAGES).enumerate();
        let acknowledged = bits.fold(0u64, |bits, (index, m)| bits | u64::from(m.is_acknowledged) << index);
        let pairs = |value: &dyn Fn(&Message) -> Option<i64>| -> String {
            let pairs = self.messages.iter().filter_map(|m| Some(format!("{}:{}", m.offset, value(m)?)));
            pairs.collect::<Vec<_>>().join(",")
        };
        let visible = pairs(&|message| message.visible_at);
        let before = pairs(&|m| Some(i64::from(m.deliveries_before)).filter(|times| *times > 0));
        let attempt_id = self.attempt_id.as_ref().map(|id| format!("\"a\":{},", Value::from(id.as_str())));
        let Self { pop_time, invisible_ms, .. } = self;
        let acknowledged = acknowledged.cast_signed();
        format!(
            "{{{}\"cm\":{acknowledged},\"i\":{invisible_ms},\"l\":{pop_time},\"o\":[{offsets}],\"oc\":{{{before}}},\
             \"ot\":{{{visible}}},\"popTime\":{pop_time}}}",
            attempt_id.unwrap_or_default(),
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Written by RocketMQ 5.5.0: messages 3, 4, 5, 7 of a first receive and 8; 4 acknowledged, 5 changed.
    const JAVA: &str = r#"{"orderInfoCount":1,"orderedConsumptionLevel":"QUEUE","table":{"t@g":{0:{"a":"two","cm":2,"i":60000,"l":1795295357412,"o":[3,1,2,4,5],"oc":{3:1,4:1,5:1,7:1},"ot":{5:1700000090000},"popTime":1700000060000},1:{"cm":0,"i":60000,"l":1795295357412,"o":[9],"popTime":1700000000000}}}}"#;
    const POPPED: i64 = 1_700_000_060_000;

    fn offsets(leases: &QueueLeases) -> Vec<(u64, u32)> {
        leases.in_flight().map(|(offset, lease)| (offset, lease.attempt)).collect()
    }

    #[test]
    fn remaining_leases_are_read_from_javas_file() {
        let file = OrderFile::parse(JAVA.as_bytes()).unwrap();
        let leases = file.leases("t@g", 0, 3, POPPED).unwrap();
        assert_eq!(offsets(&leases), [(3, 2), (5, 2), (7, 2), (8, 1)]);
        assert_eq!((leases.next(), leases.committed()), (9, 3));
        assert_eq!(
            (leases.next_expiry(), leases.last_expiry()),
            (Some(POPPED + 30_000), Some(POPPED + 60_000))
        );
        assert!(leases.is_repeated(Some("two")) && leases.holds(8, POPPED));
        assert_eq!(offsets(&file.leases("t@g", 1, 9, POPPED).unwrap()), [(9, 1)]);
        assert_eq!(file.leases("t@g", 2, 9, POPPED), None);
    }

    #[test]
    fn an_offset_moved_within_the_receive_ends_passed_leases_and_one_outside_ends_all() {
        let file = OrderFile::parse(JAVA.as_bytes()).unwrap();
        assert_eq!(offsets(&file.leases("t@g", 0, 7, POPPED).unwrap()), [(7, 2), (8, 1)]);
        assert_eq!(file.leases("t@g", 0, 9, POPPED).unwrap().committed(), 9);
        assert_eq!(file.leases("t@g", 0, 10, POPPED), None);
        assert_eq!(file.leases("t@g", 0, 2, POPPED), None);
    }

    #[test]
    fn a_leased_message_is_not_recorded_as_acknowledged() {
        let file = OrderFile::parse(JAVA.as_bytes()).unwrap();
        let mut leases = QueueLeases::new(3);
        leases.lease(3, POPPED, 1_000, 1);
        leases.lease(4, POPPED, 1_000, 1);
        leases.set_order(Some(Order {
            attempt_id: Some("two".into()),
            pop_time: POPPED,
            ..Order::default()
        }));
        file.add_delivered("t@g", 0, &mut leases);
        assert_eq!(leases.deliveries_before(4), 0);
        leases.ack(4, POPPED).unwrap();
        leases.set_delivered(Vec::new());
        file.add_delivered("t@g", 0, &mut leases);
        assert_eq!(leases.deliveries_before(4), 2);
    }

    #[test]
    fn leases_and_unknown_fields_of_java_are_read_back() {
        let mut file = OrderFile::parse(JAVA.as_bytes()).unwrap();
        let mut leases = file.leases("t@g", 0, 3, POPPED).unwrap();
        leases.ack(3, POPPED).unwrap();
        file.put("t@g", 0, &leases);
        file.put("t@g", 1, &QueueLeases::new(9));
        let text = file.encode();
        assert!(text.contains("\"orderedConsumptionLevel\":\"QUEUE\""), "{text}");
        let again = OrderFile::parse(text.as_bytes()).unwrap();
        assert_eq!(again, file);
        let read = again.leases("t@g", 0, 5, POPPED).unwrap();
        assert_eq!(offsets(&read), offsets(&leases));
        assert_eq!((read.next(), read.order()), (leases.next(), leases.order()));
        assert_eq!(again.leases("t@g", 1, 9, POPPED), None);
    }

    #[test]
    fn an_invalid_file_is_refused_by_the_name_of_its_fault() {
        for (bad, why) in
            [("[]", "object"), (r#"{"table":[]}"#, "table"), (r#"{"table":{"t@g":1}}"#, "queues")]
        {
            assert!(OrderFile::parse(bad.as_bytes()).unwrap_err().contains(why), "{bad}");
        }
    }

    #[test]
    fn an_invalid_receive_does_not_affect_the_others() {
        for bad in [
            r#""x":{}"#,
            r#"0:{"o":1}"#,
            r#"0:{"o":[3,0]}"#,
            r#"0:{"o":[3,18446744073709551615]}"#,
            r#"0:{"popTime":"x"}"#,
        ] {
            let text = format!(r#"{{"table":{{"t@g":{{{bad},1:{{"i":5,"o":[9],"popTime":7}}}}}}}}"#);
            let file = OrderFile::parse(text.as_bytes()).unwrap();
            assert_eq!(file.leases("t@g", 0, 3, POPPED), None, "{bad}");
            assert_eq!(offsets(&file.leases("t@g", 1, 9, POPPED).unwrap()), [(9, 1)], "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_leases_in_order_come_back(
            batch in prop::collection::btree_map(0..500u64, (0..90_000i64, 1..9u32, any::<bool>()), 1..MAX_MESSAGES),
            attempt_id in prop::option::of("[a-z\"\\\\]{1,9}"),
        ) {
            let last = *batch.last_key_value().unwrap().0;
            let mut leases = QueueLeases::new(last + 1);
            for (&offset, &(invisible_ms, attempt, _)) in &batch {
                leases.restore(offset, Lease::new(POPPED, invisible_ms + 1, attempt));
            }
            leases.set_order(Some(Order { attempt_id: attempt_id.map(Into::into), pop_time: POPPED, ..Order::default() }));
            for (&offset, _) in batch.iter().filter(|(offset, (.., is_done))| *is_done && **offset < last) {
                leases.ack(offset, POPPED).unwrap();
            }
            let mut file = OrderFile::default();
            file.put("t@g", 7, &leases);
            let read = OrderFile::parse(file.encode().as_bytes()).unwrap();
            let read = read.leases("t@g", 7, leases.committed(), POPPED).unwrap();
            let summary = |leases: &QueueLeases| {
                (leases.committed(), leases.next_expiry(), leases.last_expiry(), leases.earliest_pop_time(last + 1))
            };
            prop_assert_eq!(summary(&read), summary(&leases));
            // Everything else is equal, too, except runs of expiries: those of `leases` still span acknowledged
            // messages, which a file does not restore.
            let mut whole = QueueLeases::new(leases.next());
            leases.in_flight().for_each(|(offset, lease)| _ = whole.restore(offset, lease));
            whole.set_order(leases.order().cloned());
            prop_assert_eq!(read, whole);
        }

        #[test]
        fn impossible_times_hide_no_message_forever(
            pop_time in any::<i64>(), invisible in any::<i64>(), visible in any::<i64>(), before in any::<i64>(),
        ) {
            let text = format!(
                r#"{{"table":{{"t@g":{{0:{{"i":{invisible},"o":[3,1],"oc":{{3:{before}}},"ot":{{4:{visible}}},"popTime":{pop_time}}}}}}}}}"#
            );
            let leases = OrderFile::parse(text.as_bytes()).unwrap().leases("t@g", 0, 3, POPPED).unwrap();
            let ends = leases.last_expiry().unwrap();
            prop_assert!((0..=POPPED + 3 * 86_400_000).contains(&ends), "{ends}");
            prop_assert_eq!(leases.in_flight().len(), 2);
            let order = leases.order().unwrap();
            prop_assert!(leases.in_flight().all(|(_, lease)| lease.pop_time == order.pop_time));
        }

        #[test]
        fn arbitrary_text_is_read_or_refused(text in "\\PC{0,60}", info in "[\\[\\]{}a-z0-9:\",]{0,80}") {
            let _ = OrderFile::parse(text.as_bytes());
            let _ = OrderFile::parse(format!("{{\"table\":{{\"t@g\":{{0:{{{info}}}}}}}}}").as_bytes());
        }
    }
}
