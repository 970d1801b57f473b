//! Parses the header of a send, in both its forms. No I/O.

use super::headers::{number_or_none, parse_number};
use crate::{TransportError, remoting::RemotingCommand};

/// Header of request 10, with names, and of 310 and 320, with single letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SendHeader<'a> {
    pub topic: &'a str,
    /// Topic whose settings a topic created by this send takes over.
    pub default_topic: &'a str,
    /// Most queues of a topic created by this send.
    pub default_queues: u32,
    /// Negative if the server chooses.
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub flag: i32,
    pub properties: &'a str,
    pub reconsume_times: i32,
    pub max_reconsume_times: Option<i32>,
    pub is_unit: bool,
    pub is_batch: bool,
}

impl<'a> SendHeader<'a> {
    /// Reads the fields in one pass.
    ///
    /// # Errors
    /// `BadField` if one is missing or is not a number in range.
    pub(super) fn parse(command: &'a RemotingCommand) -> Result<Self, TransportError> {
        let mut header = Self::default();
        let (mut has_queue, mut has_time) = (false, false);
        for (name, value) in &command.fields {
            match name {
                "b" | "topic" => header.topic = value,
                "c" | "defaultTopic" => header.default_topic = value,
                "d" | "defaultTopicQueueNums" => {
                    header.default_queues =
                        parse_number::<i32>(value, "defaultTopicQueueNums")?.max(0).unsigned_abs();
                }
                "e" | "queueId" => {
                    header.queue_id = parse_number(value, "queueId")?;
                    has_queue = true;
                }
                "f" | "sysFlag" => header.sys_flag = parse_number(value, "sysFlag")?,
                "g" | "bornTimestamp" => {
                    header.born_timestamp = parse_number(value, "bornTimestamp")?;
                    has_time = true;
                }
                "h" | "flag" => header.flag = parse_number(value, "flag")?,
                "i" | "properties" => header.properties = value,
                "j" | "reconsumeTimes" => {
                    header.reconsume_times = number_or_none(value, "reconsumeTimes")?.unwrap_or(0)
                }
                "k" | "unitMode" => header.is_unit = value.eq_ignore_ascii_case("true"),
                "l" | "maxReconsumeTimes" => {
                    header.max_reconsume_times = number_or_none(value, "maxReconsumeTimes")?;
                }
                "m" | "batch" => header.is_batch = value.eq_ignore_ascii_case("true"),
                _ => {}
            }
        }
        for (name, is_there) in
            [("topic", !header.topic.is_empty()), ("queueId", has_queue), ("bornTimestamp", has_time)]
        {
            if !is_there {
                return Err(TransportError::BadField { name, reason: "it is missing" });
            }
        }
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::remoting::Fields;

    fn command(fields: &[(&str, &str)]) -> RemotingCommand {
        RemotingCommand::request(310, fields.iter().copied().collect::<Fields>(), Bytes::new())
    }

    #[test]
    fn both_forms_give_the_same_header() {
        let short = command(&[
            ("a", "PG"),
            ("b", "flights"),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", "3"),
            ("f", "1"),
            ("g", "77"),
            ("h", "9"),
            ("i", "TAGS\u{1}t\u{2}"),
            ("j", "2"),
            ("k", "true"),
            ("l", "16"),
            ("m", "true"),
        ]);
        let names = [
            "producerGroup",
            "topic",
            "defaultTopic",
            "defaultTopicQueueNums",
            "queueId",
            "sysFlag",
            "bornTimestamp",
            "flag",
            "properties",
            "reconsumeTimes",
            "unitMode",
            "maxReconsumeTimes",
            "batch",
        ];
        let fields: Vec<_> =
            names.iter().zip(&short.fields).map(|(name, (_, value))| (*name, value)).collect();
        let wanted = SendHeader {
            topic: "flights",
            default_topic: "TBW102",
            default_queues: 4,
            queue_id: 3,
            sys_flag: 1,
            born_timestamp: 77,
            flag: 9,
            properties: "TAGS\u{1}t\u{2}",
            reconsume_times: 2,
            max_reconsume_times: Some(16),
            is_unit: true,
            is_batch: true,
        };
        assert_eq!(SendHeader::parse(&short).unwrap(), wanted);
        assert_eq!(SendHeader::parse(&command(&fields)).unwrap(), wanted);
    }

    #[test]
    fn the_error_names_a_field_that_is_missing_or_not_a_number() {
        for (fields, name) in [
            (&[("e", "0"), ("g", "1")][..], "topic"),
            (&[("b", "t"), ("g", "1")], "queueId"),
            (&[("b", "t"), ("e", "0")], "bornTimestamp"),
            (&[("b", "t"), ("e", "0"), ("g", "soon")], "bornTimestamp"),
            (&[("b", "t"), ("e", "2147483648"), ("g", "1")], "queueId"),
            (&[("b", "t"), ("e", "0"), ("g", "1"), ("l", "x")], "maxReconsumeTimes"),
        ] {
            let error = SendHeader::parse(&command(fields)).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
