//! A load generator for brokers and name servers over remoting or gRPC, of ferromq and of Java.
//!
//! Each connection keeps some requests in flight for a while. The result is one line of JSON: messages per second,
//! latencies in microseconds, and the number of failed responses.
//!
//!     load --address HOST:PORT --mode send|receive|batch|transactions|pull|route|topics|register [--connections 64]
//!          [--in-flight 1] [--seconds 10] [--warm-up 2] [--size 1024] [--batch 32] [--topic load] [--queues 8]
//!          [--topics 1000] [--header json|binary] [--protocol remoting|grpc] [--group load_group] [--acks each|all]
//!
//! gRPC has only `send` and `receive`. A transaction counts once, with its half message and commit. `receive` reads
//! messages sent before and acknowledges them, each by itself as official clients do, or `all` of a response at once.
//! Its latency is that of a response and its acknowledgements.

mod frames;
mod grpc;
mod histogram;
mod receive;
mod transactions;

use std::{
    collections::HashMap,
    error::Error,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use frames::{Header, Template, batch, field, records, response};
use histogram::Histogram;

type Failure = Box<dyn Error + Send + Sync>;

const READ: usize = 256 << 10;
const FOUND: i32 = 0;
/// `PULL_NOT_FOUND`: the end of the queue.
const AT_END: i32 = 19;

/// The options on the command line.
#[derive(Clone)]
struct Options(HashMap<String, String>);

impl Options {
    fn read() -> Result<Self, Failure> {
        let mut given = HashMap::new();
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let name = word
                .strip_prefix("--")
                .ok_or_else(|| format!("{word} is not an option; options are --name value"))?;
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            given.insert(name.to_owned(), value);
        }
        Ok(Self(given))
    }

    fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.0.get(name).map_or(default, String::as_str)
    }

    fn number(&self, name: &str, default: usize) -> Result<usize, Failure> {
        let Some(text) = self.0.get(name) else { return Ok(default) };
        text.parse().map_err(|_| format!("--{name} {text} is not a number").into())
    }

    fn seconds(&self, name: &str, default: usize) -> Result<Duration, Failure> {
        Ok(Duration::from_secs(self.number(name, default)? as u64))
    }

    fn header(&self) -> Result<Header, Failure> {
        match self.text("header", "json") {
            "json" => Ok(Header::Json),
            "binary" => Ok(Header::Binary),
            other => Err(format!("--header {other} is neither json nor binary").into()),
        }
    }
}

/// The results of one connection after the warm-up.
struct Totals {
    messages: u64,
    refused: u64,
    latencies: Histogram,
    elapsed: Duration,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let options = Options::read()?;
    match options.text("mode", "send") {
        "register" => register(&options).await,
        "topics" => make_topics(&options).await,
        "send" | "receive" | "batch" | "transactions" | "pull" | "route" => run(&options).await,
        other => Err(format!(
            "--mode {other} is not one of send, receive, batch, transactions, pull, route, topics, register"
        )
        .into()),
    }
}

async fn run(options: &Options) -> Result<(), Failure> {
    let connections = options.number("connections", 64)?;
    let tasks: Vec<_> = (0..connections)
        .map(|number| {
            let options = options.clone();
            tokio::spawn(async move {
                match (options.text("protocol", "remoting"), options.text("mode", "send")) {
                    ("remoting", "transactions") => transactions::drive(&options, number).await,
                    ("remoting", "pull") => pull(&options, number).await,
                    ("remoting", mode) if mode != "receive" => drive(&options, number).await,
                    ("grpc", "send") => grpc::drive(&options, number).await,
                    ("grpc", "receive") => receive::drive(&options).await,
                    (protocol, mode) => {
                        Err(format!("there is no --mode {mode} over --protocol {protocol}").into())
                    }
                }
            })
        })
        .collect();
    let (mut rate, mut messages, mut refused) = (0.0, 0, 0);
    let mut latencies = Histogram::new();
    for task in tasks {
        let totals = task.await??;
        rate += totals.messages as f64 / totals.elapsed.as_secs_f64().max(1e-9);
        messages += totals.messages;
        refused += totals.refused;
        latencies.merge(&totals.latencies);
    }
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| latencies.percentile(share));
    print_line(&format!(
        "{{\"messages\":{messages},\"rate\":{rate:.0},\"p50_us\":{p50},\"p99_us\":{p99},\"p999_us\":{p999},\"refused\":{refused}}}"
    ));
    Ok(())
}

#[allow(clippy::print_stdout)] // the only line of output
fn print_line(line: &str) {
    println!("{line}");
}

/// The requests that a connection sends in turn, and the number of messages in each.
fn templates(options: &Options, connection: usize) -> Result<(Vec<Template>, u64), Failure> {
    let header = options.header()?;
    let mode = options.text("mode", "send");
    if mode == "route" {
        let topics = options.number("topics", 1_000)?;
        let of = |topic: usize| {
            let name = format!("{}{topic}", options.text("topic", "load"));
            Template::new(header, 105, &[("topic", &name), ("acceptStandardJsonOnly", "true")], b"")
        };
        return Ok(((0..topics).map(of).collect(), 1));
    }
    let queues = options.number("queues", 8)?.max(1);
    let body = vec![b'x'; options.number("size", 1_024)?];
    let properties = "UNIQ_KEY\u{1}7F000001000018B4AAC2000000000000\u{2}WAIT\u{1}true\u{2}";
    let is_batch = mode == "batch";
    let count = if is_batch { options.number("batch", 32)? } else { 1 };
    let of = |queue: usize| {
        let queue = queue.to_string();
        let fields = [
            ("a", "load"),
            ("b", options.text("topic", "load")),
            ("c", "TBW102"),
            ("d", "8"),
            ("e", queue.as_str()),
            ("f", "0"),
            ("g", "1700000000000"),
            ("h", "0"),
            ("i", if is_batch { "WAIT\u{1}true\u{2}" } else { properties }),
            ("j", "0"),
            ("k", "false"),
            ("m", if is_batch { "true" } else { "false" }),
        ];
        if is_batch {
            Template::new(header, 320, &fields, &batch(count, &body, properties.as_bytes()))
        } else {
            Template::new(header, 310, &fields, &body)
        }
    };
    Ok(((0..queues).map(|turn| of((turn + connection) % queues)).collect(), count as u64))
}

/// Keeps requests in flight until the time is over.
async fn drive(options: &Options, number: usize) -> Result<Totals, Failure> {
    let (templates, each) = templates(options, number)?;
    let in_flight = options.number("in-flight", 1)?.max(1);
    let mut connection = Connection::open(options.text("address", "127.0.0.1:10911")).await?;
    let begin = Instant::now() + options.seconds("warm-up", 2)?;
    let end = begin + options.seconds("seconds", 10)?;
    let mut turns = templates.iter().cycle();
    let mut sent_at = vec![Instant::now(); in_flight];
    let mut totals = Totals { messages: 0, refused: 0, latencies: Histogram::new(), elapsed: end - begin };
    for slot in 0..in_flight {
        if let Some(template) = turns.next() {
            template.write(slot as u32, &mut connection.out);
        }
    }
    loop {
        connection.send().await?;
        connection.receive().await?;
        let now = Instant::now();
        let Connection { bytes, out, .. } = &mut connection;
        let mut used = 0;
        while let Some((answer, length)) = bytes.get(used..).and_then(response) {
            used += length;
            if let Some(at) = sent_at.get_mut(answer.number as usize) {
                if now >= begin && now < end {
                    totals.latencies.add(now - *at);
                    totals.messages += if answer.code == FOUND { each } else { 0 };
                    totals.refused += u64::from(answer.code != FOUND);
                }
                *at = now;
            }
            if let Some(template) = turns.next() {
                template.write(answer.number, out);
            }
        }
        bytes.drain(..used);
        if now >= end {
            return Ok(totals);
        }
    }
}

/// Reads a queue from its beginning to its end repeatedly, until the time is over.
async fn pull(options: &Options, number: usize) -> Result<Totals, Failure> {
    let queue = (number % options.number("queues", 8)?.max(1)).to_string();
    let mut connection = Connection::open(options.text("address", "127.0.0.1:10911")).await?;
    let begin = Instant::now() + options.seconds("warm-up", 2)?;
    let end = begin + options.seconds("seconds", 10)?;
    let mut totals = Totals { messages: 0, refused: 0, latencies: Histogram::new(), elapsed: end - begin };
    let mut offset = 0i64;
    while Instant::now() < end {
        let text = offset.to_string();
        let fields = [
            ("consumerGroup", "load"),
            ("topic", options.text("topic", "load")),
            ("queueId", queue.as_str()),
            ("queueOffset", text.as_str()),
            ("maxMsgNums", "32"),
            ("sysFlag", "4"),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", "0"),
            ("subscription", "*"),
            ("expressionType", "TAG"),
            ("subVersion", "1"),
        ];
        Template::new(Header::Json, 11, &fields, b"").write(0, &mut connection.out);
        let sent_at = Instant::now();
        let (code, next, count) = connection
            .answer(|answer| (answer.code, field(answer.header, "nextBeginOffset"), records(answer.body)))
            .await?;
        if sent_at >= begin {
            totals.latencies.add(sent_at.elapsed());
            totals.messages += if code == FOUND { count } else { 0 };
            totals.refused += u64::from(code != FOUND && code != AT_END);
        }
        offset = if code == AT_END { 0 } else { next.unwrap_or(0) };
    }
    Ok(totals)
}

/// Creates topics on a broker.
async fn make_topics(options: &Options) -> Result<(), Failure> {
    let mut connection = Connection::open(options.text("address", "127.0.0.1:10911")).await?;
    let queues = options.text("queues", "8").to_owned();
    for topic in 0..options.number("topics", 1)? {
        let name = format!("{}{topic}", options.text("topic", "load"));
        let fields = [
            ("topic", name.as_str()),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", queues.as_str()),
            ("writeQueueNums", queues.as_str()),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
        ];
        Template::new(Header::Json, 17, &fields, b"").write(0, &mut connection.out);
        let code = connection.answer(|answer| answer.code).await?;
        if code != FOUND {
            return Err(format!("topic {name} was not created: {code}").into());
        }
    }
    Ok(())
}

/// Registers a broker with topics at a name server.
async fn register(options: &Options) -> Result<(), Failure> {
    let mut connection = Connection::open(options.text("address", "127.0.0.1:9876")).await?;
    let topics: serde_json::Map<String, serde_json::Value> = (0..options.number("topics", 1_000)?)
        .map(|topic| {
            let name = format!("{}{topic}", options.text("topic", "load"));
            let entry = serde_json::json!({
                "topicName": name, "readQueueNums": 8, "writeQueueNums": 8, "perm": 6,
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": false,
            });
            (name, entry)
        })
        .collect();
    let body = serde_json::json!({
        "topicConfigSerializeWrapper": {
            "topicConfigTable": topics,
            "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000_i64},
        },
        "filterServerList": [],
    });
    let fields = [
        ("brokerName", "load"),
        ("brokerAddr", "127.0.0.1:10911"),
        ("clusterName", "load"),
        ("haServerAddr", "127.0.0.1:10912"),
        ("brokerId", "0"),
        ("heartbeatTimeoutMillis", "3600000"),
        ("compressed", "false"),
        ("bodyCrc32", "0"),
    ];
    Template::new(Header::Json, 103, &fields, body.to_string().as_bytes()).write(0, &mut connection.out);
    match connection.answer(|answer| answer.code).await? {
        // A registration ends with its connection, so this process waits until it is killed.
        FOUND => {
            print_line("registered");
            connection.receive().await
        }
        code => Err(format!("the broker was not registered: {code}").into()),
    }
}

/// A connection, with the bytes to send and the received bytes that are not yet read.
struct Connection {
    stream: TcpStream,
    out: Vec<u8>,
    bytes: Vec<u8>,
}

impl Connection {
    async fn open(address: &str) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await.map_err(|error| format!("{address}: {error}"))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, out: Vec::new(), bytes: Vec::with_capacity(READ) })
    }

    async fn send(&mut self) -> Result<(), Failure> {
        self.stream.write_all(&self.out).await?;
        self.out.clear();
        Ok(())
    }

    async fn receive(&mut self) -> Result<(), Failure> {
        self.bytes.reserve(READ);
        match self.stream.read_buf(&mut self.bytes).await? {
            0 => Err("the server closed the connection".into()),
            _ => Ok(()),
        }
    }

    /// Sends the pending bytes and passes the next response to `look`.
    async fn answer<T>(&mut self, look: impl Fn(&frames::Response<'_>) -> T) -> Result<T, Failure> {
        self.send().await?;
        loop {
            if let Some((answer, length)) = response(&self.bytes) {
                let looked = look(&answer);
                self.bytes.drain(..length);
                return Ok(looked);
            }
            self.receive().await?;
        }
    }
}
