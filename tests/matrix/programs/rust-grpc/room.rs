//! Topics, groups and clients of the checks.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::TransactionChecker;
use rocketmq::{Producer, SimpleConsumer};

pub const INVISIBLE: Duration = Duration::from_secs(10);
pub const SOON: Duration = Duration::from_secs(30);
/// The client's default wait. It is also the deadline of the call, and a server waits for 20 s at most.
const WAIT: Duration = Duration::from_secs(40);

/// The text of a failing check.
pub struct Seen(pub String);

impl From<ClientError> for Seen {
    fn from(error: ClientError) -> Self {
        Self(format!("{error:?}"))
    }
}

pub fn expect(holds: bool, seen: impl FnOnce() -> String) -> Result<(), Seen> {
    if holds {
        Ok(())
    } else {
        Err(Seen(seen()))
    }
}

/// Checks that a call is refused with a code, by its name; None: with any.
pub fn refused<T: Debug>(code: Option<&str>, answer: Result<T, ClientError>) -> Result<(), Seen> {
    match answer {
        Ok(taken) => Err(Seen(format!("accepted: {taken:?}"))),
        Err(error) => {
            let seen = format!("{error:?}");
            expect(code.is_none_or(|code| seen.contains(code)), || seen)
        }
    }
}

pub fn all() -> FilterExpression {
    FilterExpression::new(FilterType::Tag, "*")
}

pub fn bodies(messages: &[MessageView]) -> Vec<String> {
    messages.iter().map(|message| String::from_utf8_lossy(message.body()).into_owned()).collect()
}

pub fn sorted(messages: &[MessageView]) -> Vec<String> {
    let mut bodies = bodies(messages);
    bodies.sort();
    bodies
}

fn client_option() -> ClientOption {
    let mut option = ClientOption::default();
    option.set_access_url(std::env::var("MATRIX_ENDPOINT").unwrap_or_default());
    option.set_enable_tls(false);
    // The default of 3 s is short on a busy machine.
    option.set_timeout(Duration::from_secs(10));
    option.set_long_polling_timeout(WAIT);
    option
}

/// A check's topic and group, which have one name.
pub struct Room {
    pub topic: String,
}

impl Room {
    pub fn new(name: &str) -> Self {
        let run = std::env::var("MATRIX_RUN").unwrap_or_default();
        Self { topic: format!("{name}_{run}") }
    }

    pub fn message(&self, body: &str) -> MessageBuilder {
        MessageBuilder::builder().set_topic(self.topic.clone()).set_body(body.into())
    }

    pub async fn producer(&self) -> Result<Producer, Seen> {
        let mut option = ProducerOption::default();
        option.set_topics(vec![self.topic.clone()]);
        let mut producer = Producer::new(option, client_option())?;
        producer.start().await?;
        Ok(producer)
    }

    pub async fn producer_without_topics(&self) -> Result<Producer, Seen> {
        let mut producer = Producer::new(ProducerOption::default(), client_option())?;
        producer.start().await?;
        Ok(producer)
    }

    pub async fn transaction_producer(&self, checker: Box<TransactionChecker>) -> Result<Producer, Seen> {
        let mut option = ProducerOption::default();
        option.set_topics(vec![self.topic.clone()]);
        let mut producer = Producer::new_transaction_producer(option, client_option(), checker)?;
        producer.start().await?;
        Ok(producer)
    }

    pub async fn simple(&self) -> Result<SimpleConsumer, Seen> {
        let mut option = SimpleConsumerOption::default();
        option.set_topics(vec![self.topic.clone()]);
        option.set_consumer_group(self.topic.clone());
        let mut consumer = SimpleConsumer::new(option, client_option())?;
        consumer.start().await?;
        Ok(consumer)
    }

    async fn once(
        &self,
        consumer: &SimpleConsumer,
        filter: &FilterExpression,
        count: usize,
    ) -> Result<Vec<MessageView>, Seen> {
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        Ok(consumer.receive_with(&self.topic, filter, count, INVISIBLE).await?)
    }

    /// Receives until it has so many, for so long at most.
    pub async fn peek(
        &self,
        consumer: &SimpleConsumer,
        filter: &FilterExpression,
        count: usize,
        limit: Duration,
    ) -> Result<Vec<MessageView>, Seen> {
        let (mut got, start) = (Vec::new(), Instant::now());
        while got.len() < count && start.elapsed() < limit {
            got.extend(self.once(consumer, filter, count - got.len()).await?);
        }
        Ok(got)
    }

    /// Receives as `peek`, and acknowledges each at once.
    pub async fn receive(
        &self,
        consumer: &SimpleConsumer,
        filter: &FilterExpression,
        count: usize,
        limit: Duration,
    ) -> Result<Vec<MessageView>, Seen> {
        let (mut got, start) = (Vec::new(), Instant::now());
        while got.len() < count && start.elapsed() < limit {
            for message in self.once(consumer, filter, count - got.len()).await? {
                consumer.ack(&message).await?;
                got.push(message);
            }
        }
        Ok(got)
    }

    pub async fn nothing_more(
        &self,
        consumer: &SimpleConsumer,
        filter: &FilterExpression,
    ) -> Result<(), Seen> {
        let more = self.once(consumer, filter, 16).await?;
        expect(more.is_empty(), || format!("received also {:?}", bodies(&more)))
    }
}
