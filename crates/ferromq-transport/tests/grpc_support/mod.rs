//! A broker on a free port with a control plane that the tests steer, and a client that sends gRPC messages as bytes.
#![allow(
    missing_docs,
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::large_enum_variant
)]

pub mod frames;
pub mod proto;

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use ferromq_store::{MessageStore, StoreConfig, time::Clock};
use ferromq_transport::{
    ColdHandler, ColdRequest, ColdResponse, Demoted, Missing, Reply, Sender, Server, ServerOptions,
    TransportError, Verb,
    grpc::codec::BytesCodec,
    hot::Waits,
    remoting::Fields,
    tables::{GroupEntry, MessageType, TopicEntry},
};
use parking_lot::Mutex;
use prost::Message as _;
use tempfile::TempDir;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};
use tonic::{
    Request, Status, Streaming,
    codegen::http::uri::PathAndQuery,
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};

use proto::{ReceiveMessageResponse, SendMessageRequest, SendMessageResponse};

pub const TOPIC: TopicEntry =
    TopicEntry { read_queues: 4, write_queues: 4, permission: 6, message_type: MessageType::Normal };
/// Bounds that allow any wait of a receive.
pub const ANY_WAIT: Waits = Waits { min: Duration::ZERO, max: Duration::from_secs(3_600) };
pub const GROUP: GroupEntry = GroupEntry {
    enabled: true,
    max_attempts: 17,
    from_beginning: true,
    broadcast: true,
    retry_queues: 1,
    ordered: false,
    priority_factor: 100,
};

pub type Telemetry = (u64, u64, Option<Bytes>);

/// The control plane of the tests.
pub struct Control {
    pub server: Mutex<Option<Server>>,
    pub demotions: AtomicUsize,
    pub telemetry: mpsc::UnboundedSender<Telemetry>,
    pub closed: mpsc::UnboundedSender<u64>,
    pub unanswered: Mutex<Vec<(Option<Instant>, Reply)>>,
    /// Pending requests for the type of topics that begin with `held`, until [`Self::release`].
    pub held: Mutex<Vec<(String, MessageType, oneshot::Sender<Demoted>)>>,
}

impl Control {
    /// Gives the held topics the requested types.
    pub fn release(&self) {
        for (topic, message_type, done) in self.held.lock().drain(..) {
            let server = self.server.lock().clone().expect("a server");
            server.tables().put_topic(&topic, TopicEntry { message_type, ..TOPIC });
            let _ = done.send(Demoted::Done);
        }
    }
}

impl ColdHandler for Control {
    fn serves(&self, verb: &Verb) -> bool {
        matches!(verb, Verb::Rpc(name) if ["Heartbeat", "NotifyClientTermination", "QueryRoute", "EndTransaction", "GetOffset", "QueryAssignment"].contains(&name.as_str()))
    }

    fn call(&self, request: ColdRequest, reply: Reply) {
        let body = match request.verb {
            Verb::Rpc(name) if name == "Heartbeat" || name == "NotifyClientTermination" => request.body,
            Verb::Rpc(name) if name == "QueryRoute" => {
                format!("{} {:?}", request.sender.connection, request.fields).into()
            }
            // Never answered.
            Verb::Rpc(name) if name == "QueryAssignment" => {
                self.unanswered.lock().push((request.expires, reply));
                return;
            }
            Verb::Rpc(name) if name == "GetOffset" => {
                let _ = reply.send(Err(TransportError::Busy("handlers")));
                return;
            }
            _ => {
                let _ = reply.send(Err(TransportError::Handler("broken".to_owned())));
                return;
            }
        };
        let _ = reply.send(Ok(Some(ColdResponse { body, ..ColdResponse::default() })));
    }

    fn demote(&self, missing: Missing, _peer: SocketAddr, done: oneshot::Sender<Demoted>) {
        self.demotions.fetch_add(1, Ordering::SeqCst);
        let server = self.server.lock().clone().expect("a server");
        match missing {
            Missing::Topic(name) | Missing::TopicToSend { name, .. } if name.starts_with("auto") => {
                server.tables().put_topic(&name, TOPIC)
            }
            Missing::Group(name) if name.starts_with("auto") => server.tables().put_group(&name, GROUP),
            Missing::TopicOfGroup { name, .. } => server.tables().put_topic(&name, TOPIC),
            Missing::TypeOfTopic { name, kind } if name.starts_with("held") => {
                self.held.lock().push((name, kind, done));
                return;
            }
            Missing::TypeOfTopic { name, kind } => {
                server.tables().put_topic(&name, TopicEntry { message_type: kind, ..TOPIC });
            }
            Missing::Topic(name) | Missing::TopicToSend { name, .. } | Missing::Group(name) => {
                let _ = done.send(if name == "busy" { Demoted::Busy } else { Demoted::Refused });
                return;
            }
        }
        let _ = done.send(Demoted::Done);
    }

    fn telemetry(&self, stream: u64, sender: Sender, _fields: &Fields, body: Option<Bytes>) -> bool {
        let too_many = body.as_ref().is_some_and(|body| body == "too many");
        let _ = self.telemetry.send((stream, sender.connection, body));
        !too_many
    }

    fn on_close(&self, connection: u64) {
        let _ = self.closed.send(connection);
    }
}

pub struct Broker {
    pub server: Server,
    pub store: Arc<MessageStore>,
    pub clock: Clock,
    pub control: Arc<Control>,
    pub address: SocketAddr,
    pub telemetry: mpsc::UnboundedReceiver<Telemetry>,
    pub closed: mpsc::UnboundedReceiver<u64>,
    directory: TempDir,
}

impl Broker {
    /// Starts with topic `flights` (4 queues), group `audit` and a manual clock.
    pub fn start() -> Self {
        Self::start_with(Clock::manual(1_700_000_000_000), true)
    }

    pub fn start_with(clock: Clock, with_store: bool) -> Self {
        Self::start_limited(clock, with_store, ServerOptions::default())
    }

    pub fn start_limited(clock: Clock, with_store: bool, options: ServerOptions) -> Self {
        Self::start_on(clock, with_store, options, store_config())
    }

    pub fn start_on(clock: Clock, with_store: bool, options: ServerOptions, config: StoreConfig) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(MessageStore::open(directory.path(), config, clock.clone()).unwrap());
        let (telemetry, telemetry_seen) = mpsc::unbounded_channel();
        let (closed, closed_seen) = mpsc::unbounded_channel();
        let control = Arc::new(Control {
            server: Mutex::new(None),
            demotions: AtomicUsize::new(0),
            telemetry,
            closed,
            unanswered: Mutex::default(),
            held: Mutex::default(),
        });
        let served = with_store.then(|| (Arc::clone(&store), "broker-a".to_owned()));
        let server = Server::new(Handle::current(), options, clock.clone(), served, control.clone());
        *control.server.lock() = Some(server.clone());
        if let Some(hot) = server.hot() {
            hot.waits.store(Arc::new(ANY_WAIT));
        }
        let address = server.listen_grpc(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        server.tables().put_topic("flights", TOPIC);
        server.tables().put_group("audit", GROUP);
        Self {
            server,
            store,
            clock,
            control,
            address,
            telemetry: telemetry_seen,
            closed: closed_seen,
            directory,
        }
    }

    /// Directory of the store.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub async fn client(&self) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        Client(endpoint.connect().await.unwrap())
    }

    /// A client with a flow-control window of 64 KiB.
    pub async fn client_with_a_small_window(&self) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
        Client(endpoint.connect().await.unwrap())
    }

    pub fn stat(&self, name: &str) -> u64 {
        self.server.stats().into_iter().find(|(n, _)| *n == name).map(|(_, value)| value).unwrap()
    }

    /// Waits until a counter has a value.
    pub async fn until(&self, name: &str, value: u64) {
        eventually(|| self.stat(name) == value).await;
    }

    /// Waits until consumers see `count` messages of `flights`.
    pub async fn readable(&self, count: u64) {
        eventually(|| {
            (0..4).map(|queue| self.store.queues().max_offset("flights", queue)).sum::<u64>() == count
        })
        .await;
    }
}

/// Store options of these tests.
pub fn store_config() -> StoreConfig {
    StoreConfig {
        commit_log_file_size: 16 << 20,
        consume_queue_file_entries: 10_000,
        index_slots: 500,
        index_entries: 2_000,
        disk_reserve: 0,
        ..StoreConfig::default()
    }
}

/// Waits for a condition that no event reports.
pub async fn eventually(condition: impl Fn() -> bool) {
    let reached = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reached).await.expect("in a minute");
}

#[derive(Clone)]
pub struct Client(pub Channel);

impl Client {
    pub async fn call(&self, method: &str, body: impl Into<Bytes>) -> Result<Bytes, Status> {
        self.call_as(method, Request::new(body.into())).await
    }

    /// As [`Self::call`], with the client id of the request.
    pub async fn call_as(&self, method: &str, request: Request<Bytes>) -> Result<Bytes, Status> {
        let mut grpc = tonic::client::Grpc::new(self.0.clone()).max_decoding_message_size(64 << 20);
        grpc.ready().await.unwrap();
        Ok(grpc.unary(with_client_id(request), path(method), BytesCodec).await?.into_inner())
    }

    pub async fn stream(
        &self,
        method: &str,
        request: Request<Bytes>,
    ) -> Result<(MetadataMap, Streaming<Bytes>), Status> {
        let mut grpc = tonic::client::Grpc::new(self.0.clone()).max_decoding_message_size(64 << 20);
        grpc.ready().await.unwrap();
        let response = grpc.server_streaming(with_client_id(request), path(method), BytesCodec).await?;
        Ok((response.metadata().clone(), response.into_inner()))
    }

    pub async fn send(&self, messages: Vec<proto::Message>) -> SendMessageResponse {
        let request = SendMessageRequest { messages }.encode_to_vec();
        SendMessageResponse::decode(self.call("SendMessage", request).await.unwrap()).unwrap()
    }

    /// Sends one message with a body and checks that it was stored.
    pub async fn send_one(&self, body: &str) {
        let response = self.send(vec![proto::message("flights", body)]).await;
        assert_eq!(response.status.unwrap().code, 20_000);
    }

    /// Status code and messages.
    pub async fn receive(&self, request: &proto::ReceiveMessageRequest) -> (i32, Vec<proto::Message>) {
        let request = Request::new(Bytes::from(request.encode_to_vec()));
        let (_, mut stream) = self.stream("ReceiveMessage", request).await.unwrap();
        let mut responses = Vec::new();
        while let Some(bytes) = stream.message().await.unwrap() {
            responses.push(ReceiveMessageResponse::decode(bytes).unwrap());
        }
        split(responses)
    }

    pub async fn receive_bodies(&self, request: &proto::ReceiveMessageRequest) -> Vec<String> {
        let (_, messages) = self.receive(request).await;
        messages.into_iter().map(|message| String::from_utf8(message.body.to_vec()).unwrap()).collect()
    }
}

/// Splits a stream into status code and messages. The status must come first, the delivery timestamp last.
pub fn split(responses: Vec<ReceiveMessageResponse>) -> (i32, Vec<proto::Message>) {
    use proto::ReceiveContent::{DeliveryTimestamp, Message, Status};
    let mut contents: Vec<_> = responses.into_iter().map(|response| response.content.unwrap()).collect();
    assert!(matches!(contents.pop(), Some(DeliveryTimestamp(_))));
    let Status(status) = contents.remove(0) else { panic!("no status first") };
    let messages = contents.into_iter().map(|content| match content {
        Message(message) => message,
        other => panic!("{other:?} among messages"),
    });
    (status.code, messages.collect())
}

/// Adds a client id, unless the request has one.
fn with_client_id<T>(mut request: Request<T>) -> Request<T> {
    if !request.metadata().contains_key("x-mq-client-id") {
        request.metadata_mut().insert("x-mq-client-id", "tests".parse().unwrap());
    }
    request
}

/// The path of a method of RocketMQ's service, or of another service if it has a slash.
fn path(method: &str) -> PathAndQuery {
    if method.contains('/') {
        return format!("/{method}").parse().unwrap();
    }
    format!("/apache.rocketmq.v2.MessagingService/{method}").parse().unwrap()
}
