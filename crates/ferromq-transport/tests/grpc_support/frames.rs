//! A client of framed calls.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ferromq_transport::remoting::{Decoder, Fields, HeaderForm, Limits, RemotingCommand, codec};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

pub const SOON: Duration = Duration::from_secs(10);

pub struct Frames {
    pub socket: TcpStream,
    buffer: BytesMut,
}

impl Frames {
    pub async fn connect(broker: &super::Broker) -> Self {
        Self { socket: TcpStream::connect(broker.address).await.unwrap(), buffer: BytesMut::new() }
    }

    pub async fn write(&mut self, opaque: i32, code: i32, client: Option<&str>, body: Bytes) {
        let fields: Fields = client.map(|id| ("client", id)).into_iter().collect();
        let command = RemotingCommand::request(code, fields, body);
        let command = RemotingCommand { opaque, header_form: HeaderForm::Binary, ..command };
        self.socket.write_all(&codec::encode(&command).unwrap().to_bytes()).await.unwrap();
    }

    /// The next response; `None` if the server closed the connection.
    pub async fn read(&mut self) -> Option<RemotingCommand> {
        loop {
            if let Some(command) = Decoder::new(Limits::default()).next(&mut self.buffer).unwrap() {
                return Some(command);
            }
            let read = timeout(SOON, self.socket.read_buf(&mut self.buffer)).await.expect("in time");
            if read.is_err() || read.is_ok_and(|read| read == 0) {
                return None;
            }
        }
    }

    pub async fn call(&mut self, code: i32, body: impl Into<Bytes>) -> RemotingCommand {
        self.write(7, code, Some("client-1"), body.into()).await;
        let response = self.read().await.expect("a response");
        assert!(response.is_response() && response.opaque == 7);
        response
    }
}
