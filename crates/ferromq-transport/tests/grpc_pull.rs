//! PullMessage and UpdateOffset over a socket, for readers that keep their own offset.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::large_enum_variant
)]

mod grpc_support;

use std::time::Duration;

use bytes::Bytes;
use grpc_support::{
    Broker, Client,
    proto::{
        FilterExpression, PullContent, PullMessageRequest, PullMessageResponse, StatusOnly,
        UpdateOffsetRequest, message, queue, resource,
    },
};
use prost::Message as _;
use tonic::Request;

fn pull_from(offset: i64, wait: Duration) -> PullMessageRequest {
    PullMessageRequest {
        group: Some(resource("audit")),
        message_queue: Some(queue("flights", 1)),
        offset,
        batch_size: 32,
        filter_expression: None,
        long_polling_timeout: Some(wait.into()),
    }
}

/// Status code, bodies, next offset.
async fn pull(client: &Client, request: &PullMessageRequest) -> (i32, Vec<String>, Option<i64>) {
    let request = Request::new(Bytes::from(request.encode_to_vec()));
    let (_, mut stream) = client.stream("PullMessage", request).await.unwrap();
    let (mut code, mut bodies, mut next) = (0, Vec::new(), None);
    while let Some(bytes) = stream.message().await.unwrap() {
        match PullMessageResponse::decode(bytes).unwrap().content.unwrap() {
            PullContent::Status(status) => code = status.code,
            PullContent::Message(message) => {
                assert_eq!(message.system().receipt_handle, None);
                bodies.push(String::from_utf8(message.body.to_vec()).unwrap());
            }
            PullContent::NextOffset(offset) => next = Some(offset),
        }
    }
    (code, bodies, next)
}

async fn send(client: &Client, body: &str, tag: &str) {
    let message = message("flights", body).with(|system| {
        system.queue_id = Some(1);
        system.tag = Some(tag.to_owned());
    });
    client.send(vec![message]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_reads_from_its_offset_and_returns_the_next_one() {
    let broker = Broker::start();
    let client = broker.client().await;
    for i in 0..5 {
        send(&client, &i.to_string(), if i % 2 == 0 { "even" } else { "odd" }).await;
    }
    broker.readable(5).await;
    let all = pull(&client, &pull_from(2, Duration::ZERO)).await;
    assert_eq!(all, (20_000, vec!["2".to_owned(), "3".to_owned(), "4".to_owned()], Some(5)));
    let filter = Some(FilterExpression { kind: 1, expression: "odd".to_owned() });
    let odd =
        pull(&client, &PullMessageRequest { filter_expression: filter, ..pull_from(0, Duration::ZERO) })
            .await;
    assert_eq!(odd, (20_000, vec!["1".to_owned(), "3".to_owned()], Some(5)));
    assert_eq!(pull(&client, &pull_from(5, Duration::ZERO)).await, (40_401, vec![], Some(5)));
    assert_eq!(pull(&client, &pull_from(9, Duration::ZERO)).await.0, 40_019);
    assert_eq!(pull(&client, &pull_from(-1, Duration::ZERO)).await.0, 40_019);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_at_the_end_waits_for_a_matching_message() {
    let broker = Broker::start();
    let client = broker.client().await;
    let filter = Some(FilterExpression { kind: 1, expression: "wanted".to_owned() });
    let request = PullMessageRequest { filter_expression: filter, ..pull_from(0, Duration::from_secs(600)) };
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { pull(&client, &request).await }
    });
    broker.until("parked", 1).await;
    send(&client, "a", "other").await;
    broker.readable(1).await;
    assert_eq!(broker.stat("parked"), 1);
    send(&client, "b", "wanted").await;
    let woken = tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("woken by the message");
    assert_eq!(woken.unwrap(), (20_000, vec!["b".to_owned()], Some(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_updated_offset_becomes_the_committed_offset() {
    let broker = Broker::start();
    let client = broker.client().await;
    for i in 0..5 {
        send(&client, &i.to_string(), "tag").await;
    }
    broker.readable(5).await;
    let update = |offset| UpdateOffsetRequest {
        group: Some(resource("audit")),
        message_queue: Some(queue("flights", 1)),
        offset,
    };
    for (offset, code, committed) in [(3, 20_000, 3), (99, 20_000, 5), (-1, 40_019, 5), (1, 20_000, 1)] {
        let answer = client.call("UpdateOffset", update(offset).encode_to_vec()).await.unwrap();
        assert_eq!(StatusOnly::decode(answer).unwrap().status.unwrap().code, code);
        assert_eq!(broker.store.groups().committed_offset("audit", "flights", 1), Some(committed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_announces_its_form_as_an_answer_does() {
    let broker = Broker::start();
    let client = broker.client().await;
    for (method, asked, announced) in [
        ("PullMessage", "", None),
        ("PullMessage", "1", Some("1")),
        ("PullMessage", "2", Some("2")),
        ("ReceiveMessage", "1", Some("1")),
    ] {
        let mut request = Request::new(Bytes::from(pull_from(0, Duration::ZERO).encode_to_vec()));
        request.metadata_mut().insert("x-mq-client-id", "".parse().unwrap());
        request.metadata_mut().insert("x-ferromq-packed", asked.parse().unwrap());
        let (metadata, mut stream) = client.stream(method, request).await.unwrap();
        let form = metadata.get("x-ferromq-packed").map(|form| form.to_str().unwrap());
        assert_eq!(form, announced, "{method}");
        let mut answer = stream.message().await.unwrap().unwrap();
        if form.is_some() {
            let length = usize::from(answer.split_to(1)[0]);
            assert_eq!(length, answer.len(), "one response");
        }
        let content = PullMessageResponse::decode(answer).unwrap().content.unwrap();
        assert!(matches!(content, PullContent::Status(status) if status.code == 40_017), "{method}");
    }
}
