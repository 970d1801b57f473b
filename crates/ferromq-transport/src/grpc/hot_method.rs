//! The table of hot methods: those whose rate grows with the message rate.

/// A hot method of `apache.rocketmq.v2.MessagingService`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HotMethod {
    /// A method that answers with one message.
    Unary(UnaryMethod),
    /// A method that answers with a stream.
    Streaming(StreamingMethod),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnaryMethod {
    Send,
    Ack,
    ChangeInvisible,
    Forward,
    UpdateOffset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamingMethod {
    Receive,
    Pull,
}

impl UnaryMethod {
    /// RocketMQ's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Send => "SendMessage",
            Self::Ack => "AckMessage",
            Self::ChangeInvisible => "ChangeInvisibleDuration",
            Self::Forward => "ForwardMessageToDeadLetterQueue",
            Self::UpdateOffset => "UpdateOffset",
        }
    }
}

impl StreamingMethod {
    /// RocketMQ's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Receive => "ReceiveMessage",
            Self::Pull => "PullMessage",
        }
    }
}

impl HotMethod {
    /// Returns the hot method with this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "SendMessage" => Self::Unary(UnaryMethod::Send),
            "AckMessage" => Self::Unary(UnaryMethod::Ack),
            "ChangeInvisibleDuration" => Self::Unary(UnaryMethod::ChangeInvisible),
            "ForwardMessageToDeadLetterQueue" => Self::Unary(UnaryMethod::Forward),
            "UpdateOffset" => Self::Unary(UnaryMethod::UpdateOffset),
            "ReceiveMessage" => Self::Streaming(StreamingMethod::Receive),
            "PullMessage" => Self::Streaming(StreamingMethod::Pull),
            _ => return None,
        })
    }
}
