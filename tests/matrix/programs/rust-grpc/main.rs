//! The checks of `make matrix` for the gRPC client for Rust, which has a producer and a simple consumer.

mod room;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};

use room::{all, bodies, expect, refused, sorted, Room, Seen, INVISIBLE, SOON};

type Verdict = Result<(), Seen>;
const SIX: [&str; 6] = ["m0", "m1", "m2", "m3", "m4", "m5"];

fn now_s() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())).unwrap_or(0)
}

async fn send(room: &Room) -> Verdict {
    let producer = room.producer().await?;
    let message = room
        .message("body")
        .set_tag("tag")
        .set_keys(vec!["k1", "k2"])
        .set_properties(HashMap::from([("color", "azure")]));
    let receipt = producer.send(message.build()?).await?;
    let got = room.receive(&room.simple().await?, &all(), 1, SOON).await?;
    let one = got.first().ok_or_else(|| Seen("nothing received".into()))?;
    let properties: BTreeMap<_, _> = one.properties().iter().collect();
    let seen =
        format!("{} {:?} {:?} {properties:?} {}", one.topic(), one.tag(), one.keys(), one.delivery_attempt());
    let wanted = format!("{} Some(\"tag\") [\"k1\", \"k2\"] {{\"color\": \"azure\"}} 1", room.topic);
    expect(seen == wanted && one.message_id() == receipt.message_id(), || seen)
}

async fn batch(room: &Room) -> Verdict {
    let messages = SIX.map(|body| room.message(body).build()).into_iter().collect::<Result<Vec<_>, _>>()?;
    let receipts = room.producer().await?.batch_send(messages).await?;
    let got = room.receive(&room.simple().await?, &all(), SIX.len(), SOON).await?;
    expect(sorted(&got) == SIX, || format!("received {:?}", bodies(&got)))?;
    expect(receipts.len() == 1, || format!("{} receipts", receipts.len()))
}

async fn wait(room: &Room) -> Verdict {
    let consumer = room.simple().await?;
    let asked = Instant::now();
    room.nothing_more(&consumer, &all()).await?;
    let after = asked.elapsed().as_secs();
    expect((19..30).contains(&after), || format!("answered after {after} s"))
}

async fn acknowledge(room: &Room) -> Verdict {
    let (consumer, producer) = (room.simple().await?, room.producer().await?);
    producer.send(room.message("done").build()?).await?;
    producer.send(room.message("open").build()?).await?;
    let got = room.peek(&consumer, &all(), 2, SOON).await?;
    let received = Instant::now();
    expect(sorted(&got) == ["done", "open"], || format!("received {:?}", bodies(&got)))?;
    for message in got.iter().filter(|message| message.body() == b"done") {
        consumer.ack(message).await?;
    }
    let again = room.receive(&consumer, &all(), 1, Duration::from_secs(40)).await?;
    let after = received.elapsed().as_secs();
    expect(bodies(&again) == ["open"], || format!("came again: {:?}", bodies(&again)))?;
    expect(again.iter().all(|one| one.delivery_attempt() == 2), || "another attempt".into())?;
    expect((8..30).contains(&after), || format!("came again after {after} s"))
}

async fn filtered(
    room: &Room,
    consumer: &SimpleConsumer,
    filter: &FilterExpression,
    wanted: &[&str],
) -> Verdict {
    let got = room.receive(consumer, filter, wanted.len(), SOON).await?;
    expect(sorted(&got) == wanted, || format!("received {:?}", bodies(&got)))?;
    room.nothing_more(consumer, filter).await
}

async fn tags(room: &Room) -> Verdict {
    let (consumer, producer) = (room.simple().await?, room.producer().await?);
    for tag in ["a", "b", "c"] {
        producer.send(room.message(tag).set_tag(tag).build()?).await?;
    }
    producer.send(room.message("none").build()?).await?;
    filtered(room, &consumer, &FilterExpression::new(FilterType::Tag, "a || b"), &["a", "b"]).await
}

async fn sql(room: &Room) -> Verdict {
    let (consumer, producer) = (room.simple().await?, room.producer().await?);
    for size in ["1", "2", "3"] {
        let properties = HashMap::from([("size", size), ("color", "blue")]);
        producer.send(room.message(&format!("s{size}")).set_properties(properties).build()?).await?;
    }
    producer.send(room.message("none").build()?).await?;
    let filter = FilterExpression::new(FilterType::Sql, "size > 1 AND color IS NOT NULL");
    filtered(room, &consumer, &filter, &["s2", "s3"]).await
}

async fn order(room: &Room) -> Verdict {
    let (consumer, producer) = (room.simple().await?, room.producer().await?);
    for body in SIX {
        producer.send(room.message(body).set_message_group("group").build()?).await?;
    }
    let mut got = Vec::new();
    for _ in 0..10 {
        if got.len() < SIX.len() {
            got.extend(bodies(&room.receive(&consumer, &all(), 2, Duration::from_millis(1)).await?));
        }
    }
    expect(got == SIX, || format!("received {got:?}"))
}

async fn delay(room: &Room) -> Verdict {
    let (consumer, producer) = (room.simple().await?, room.producer().await?);
    let (due, sent) = (now_s() + 6, Instant::now());
    producer.send(room.message("later").set_delivery_timestamp(due).build()?).await?;
    let got = room.receive(&consumer, &all(), 1, Duration::from_secs(40)).await?;
    let after = sent.elapsed().as_millis();
    expect(got.len() == 1, || "not received in 40 s".into())?;
    // The client sends whole seconds.
    expect((4_900..12_000).contains(&after), || format!("received {after} ms after it was sent"))
}

async fn transaction(room: &Room) -> Verdict {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let producer = room
        .transaction_producer(Box::new(move |_id, message: MessageView| {
            if let Ok(mut noted) = noted.lock() {
                noted.push(String::from_utf8_lossy(message.body()).into_owned());
            }
            TransactionResolution::COMMIT
        }))
        .await?;
    for end in ["commit", "rollback", "unknown"] {
        let message = MessageBuilder::transaction_message_builder(room.topic.clone(), end.into()).build()?;
        let transaction = producer.send_transaction_message(message).await?;
        match end {
            "commit" => transaction.commit().await?,
            "rollback" => transaction.rollback().await?,
            _ => {}
        }
    }
    let consumer = room.simple().await?;
    let got = room.receive(&consumer, &all(), 2, Duration::from_secs(90)).await?;
    expect(sorted(&got) == ["commit", "unknown"], || {
        format!("received {:?}, asked {asked:?}", bodies(&got))
    })?;
    room.nothing_more(&consumer, &all()).await
}

async fn received_one(room: &Room) -> Result<(SimpleConsumer, MessageView), Seen> {
    let (consumer, producer) = (room.simple().await?, room.producer().await?);
    producer.send(room.message("body").build()?).await?;
    let got = room.peek(&consumer, &all(), 1, SOON).await?;
    let message = got.into_iter().next().ok_or_else(|| Seen("nothing received".into()))?;
    Ok((consumer, message))
}

async fn late_ack(room: &Room) -> Verdict {
    let (consumer, message) = received_one(room).await?;
    tokio::time::sleep(INVISIBLE + Duration::from_secs(2)).await;
    refused(Some("INVALID_RECEIPT_HANDLE"), consumer.ack(&message).await)
}

async fn second_ack(room: &Room) -> Verdict {
    let (consumer, message) = received_one(room).await?;
    consumer.ack(&message).await?;
    Ok(consumer.ack(&message).await?)
}

async fn short_invisible(room: &Room) -> Verdict {
    let consumer = room.simple().await?;
    room.producer().await?.send(room.message("body").build()?).await?;
    let answer = consumer.receive_with(&room.topic, &all(), 1, Duration::from_secs(1)).await;
    refused(Some("ILLEGAL_INVISIBLE_TIME"), answer)
}

async fn long_delay(room: &Room) -> Verdict {
    let message = room.message("late").set_delivery_timestamp(now_s() + 2 * 86_400);
    refused(Some("ILLEGAL_DELIVERY_TIME"), room.producer().await?.send(message.build()?).await)
}

async fn unknown_topic(room: &Room) -> Verdict {
    let producer = room.producer_without_topics().await?;
    refused(Some("TOPIC_NOT_FOUND"), producer.send(room.message("body").build()?).await)
}

async fn big_body(room: &Room) -> Verdict {
    let producer: Producer = room.producer().await?;
    let body: Vec<u8> =
        (0_u32..3 << 20).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    producer.send(room.message("-").set_body(body.clone()).build()?).await?;
    let got = room.receive(&room.simple().await?, &all(), 1, SOON).await?;
    expect(got.iter().map(MessageView::body).eq([body.as_slice()]), || format!("received {}", got.len()))?;
    let answer = producer.send(room.message("-").set_body(vec![b'x'; (4 << 20) + 1]).build()?).await;
    refused(None, answer)
}

async fn wrong_type(room: &Room) -> Verdict {
    let message = room.message("body").set_message_group("group");
    refused(None, room.producer().await?.send(message.build()?).await)
}

async fn check(name: &str) -> Verdict {
    let room = Room::new(name);
    match name {
        "send" => send(&room).await,
        "batch" => batch(&room).await,
        "wait" => wait(&room).await,
        "acknowledge" => acknowledge(&room).await,
        "tags" => tags(&room).await,
        "sql" => sql(&room).await,
        "order" => order(&room).await,
        "delay" => delay(&room).await,
        "transaction" => transaction(&room).await,
        "late_ack" => late_ack(&room).await,
        "second_ack" => second_ack(&room).await,
        "short_invisible" => short_invisible(&room).await,
        "long_delay" => long_delay(&room).await,
        "unknown_topic" => unknown_topic(&room).await,
        "big_body" => big_body(&room).await,
        "wrong_type" => wrong_type(&room).await,
        _ => Err(Seen("the program has no such check".into())),
    }
}

#[tokio::main]
async fn main() {
    let names = std::env::var("MATRIX_CHECKS").unwrap_or_default();
    // The first client of a server waits longest.
    let _ = Room::new("send").producer().await;
    let mut running = tokio::task::JoinSet::new();
    for name in names.split(' ').map(str::to_owned) {
        running.spawn(async move {
            let verdict = match check(&name).await {
                Ok(()) => "ok".to_owned(),
                Err(Seen(seen)) => {
                    format!("FAILED {}", seen.split_whitespace().collect::<Vec<_>>().join(" "))
                }
            };
            // The client writes its log in pieces: a line of its own, in one write.
            let line = format!("\nCHECK {name} {verdict}\n");
            print!("{line}");
        });
    }
    while running.join_next().await.is_some() {}
}
