//! A control plane that the tests steer, and a client at the level of bytes.
#![allow(missing_docs, dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use ferromq_store::time::Clock;
use ferromq_transport::{
    ColdHandler, ColdRequest, ColdResponse, Demoted, Missing, Reply, Sender, Server, ServerOptions,
    TransportError, Verb,
    remoting::{Decoder, Fields, RemotingCommand, codec},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Handle,
    sync::{mpsc, oneshot},
    time::timeout,
};

/// A test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Code of a request that is answered with its body and fields.
pub const ECHO: i32 = 34;
/// Code of a request that waits until the test calls `release`.
pub const HELD: i32 = 35;
/// Code of a request whose handler fails.
pub const BROKEN: i32 = 37;
/// Code of a request whose handler does not answer.
pub const SILENT: i32 = 38;
/// Code of a request whose handler drops the reply.
pub const DROPPED: i32 = 41;
/// Code of a request that is refused as busy.
pub const BUSY: i32 = 42;
/// Code of a request that is answered with `LARGE_BYTES` zero bytes.
pub const LARGE: i32 = 43;
pub const LARGE_BYTES: usize = 1 << 20;

pub struct Fake {
    held: Mutex<HashMap<u64, Vec<(ColdRequest, Reply)>>>,
    pub seen: Mutex<Vec<i32>>,
    calls: mpsc::UnboundedSender<i32>,
    closed: mpsc::UnboundedSender<u64>,
}

impl Fake {
    /// The connection of a held request.
    pub fn held_connection(&self) -> u64 {
        *self.held.lock().keys().next().expect("a held request")
    }

    /// Answers all held requests.
    pub fn release(&self) {
        for (request, reply) in self.held.lock().drain().flat_map(|(_, held)| held) {
            let _ = reply.send(Ok(Some(echo(&request))));
        }
    }
}

fn echo(request: &ColdRequest) -> ColdResponse {
    ColdResponse { code: 0, remark: None, fields: request.fields.clone(), body: request.body.clone() }
}

impl ColdHandler for Fake {
    fn serves(&self, verb: &Verb) -> bool {
        matches!(verb, Verb::Code(ECHO | HELD | BROKEN | SILENT | DROPPED | BUSY | LARGE))
    }

    fn call(&self, request: ColdRequest, reply: Reply) {
        let Verb::Code(code) = request.verb else { panic!("no remoting request") };
        self.seen.lock().push(code);
        let _ = match code {
            HELD => {
                self.held.lock().entry(request.sender.connection).or_default().push((request, reply));
                let _ = self.calls.send(code);
                return;
            }
            ECHO => reply.send(Ok(Some(echo(&request)))),
            LARGE => reply.send(Ok(Some(ColdResponse {
                body: vec![0; LARGE_BYTES].into(),
                ..ColdResponse::default()
            }))),
            BROKEN => reply.send(Err(TransportError::Handler("it broke".to_owned()))),
            BUSY => reply.send(Err(TransportError::Busy("tests"))),
            SILENT => reply.send(Ok(None)),
            _ => return drop(reply),
        };
        let _ = self.calls.send(code);
    }

    fn demote(&self, _missing: Missing, _peer: SocketAddr, _done: oneshot::Sender<Demoted>) {
        panic!("nothing hot here");
    }

    fn telemetry(&self, _: u64, _: Sender, _: &Fields, _: Option<Bytes>) -> bool {
        panic!("no gRPC here");
    }

    fn on_close(&self, connection: u64) {
        let _ = self.closed.send(connection);
    }
}

/// A server on a free port, and the events of its control plane.
pub struct Rig {
    pub server: Server,
    pub fake: Arc<Fake>,
    pub address: SocketAddr,
    pub calls: mpsc::UnboundedReceiver<i32>,
    pub closed: mpsc::UnboundedReceiver<u64>,
}

impl Rig {
    pub fn new() -> Self {
        Self::with(ServerOptions::default())
    }

    pub fn with(options: ServerOptions) -> Self {
        let (calls, calls_seen) = mpsc::unbounded_channel();
        let (closed, closed_seen) = mpsc::unbounded_channel();
        let fake = Arc::new(Fake { held: Mutex::default(), seen: Mutex::default(), calls, closed });
        let server = Server::new(Handle::current(), options, Clock::system(), None, fake.clone());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = server.listen_remoting(listener).unwrap();
        Self { server, fake, address, calls: calls_seen, closed: closed_seen }
    }

    pub async fn connect(&self) -> Peer {
        Peer { stream: TcpStream::connect(self.address).await.unwrap(), buffer: BytesMut::new() }
    }

    pub fn stat(&self, name: &str) -> u64 {
        self.server.stats().iter().find(|(known, _)| *known == name).expect("a counter").1
    }

    pub async fn next_close(&mut self) -> u64 {
        timeout(PATIENCE, self.closed.recv()).await.expect("a closed connection").unwrap()
    }

    pub async fn next_call(&mut self) -> i32 {
        timeout(PATIENCE, self.calls.recv()).await.expect("a call").unwrap()
    }
}

/// The client's end of a connection, at the level of bytes.
pub struct Peer {
    pub stream: TcpStream,
    buffer: BytesMut,
}

impl Peer {
    pub fn of(stream: TcpStream) -> Self {
        Self { stream, buffer: BytesMut::new() }
    }

    /// Drops the read buffer.
    pub fn without_buffer(self) -> Self {
        Self { buffer: BytesMut::new(), ..self }
    }

    /// Two handles to one connection, so that one task sends and another receives.
    pub fn cloned(self) -> (Self, Self) {
        let stream = self.stream.into_std().unwrap();
        let other = stream.try_clone().unwrap();
        (Self::of(TcpStream::from_std(stream).unwrap()), Self::of(TcpStream::from_std(other).unwrap()))
    }

    pub async fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub async fn send(&mut self, command: &RemotingCommand) {
        self.send_bytes(&codec::encode(command).unwrap().to_bytes()).await;
    }

    /// The next command, or `None` at the end of the stream.
    pub async fn receive(&mut self) -> Option<RemotingCommand> {
        timeout(PATIENCE, async {
            loop {
                if let Some(command) = Decoder::default().next(&mut self.buffer).unwrap() {
                    return Some(command);
                }
                match self.stream.read_buf(&mut self.buffer).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                }
            }
        })
        .await
        .expect("an answer or the end of the stream")
    }

    pub async fn call(&mut self, command: &RemotingCommand) -> RemotingCommand {
        self.send(command).await;
        self.receive().await.expect("an answer")
    }
}

pub fn request(code: i32, opaque: i32) -> RemotingCommand {
    RemotingCommand { opaque, ..RemotingCommand::request(code, Vec::new(), Bytes::new()) }
}
