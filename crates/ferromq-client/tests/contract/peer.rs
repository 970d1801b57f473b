//! The server's side of connections.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::Arc,
    thread,
};

use bytes::BytesMut;
use ferromq_client::{ClientTls, Connections, TlsOptions};
use ferromq_protocol::remoting::{Decoder, RemotingCommand, codec, codes::framed};
use rustls::{
    ServerConfig, ServerConnection,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::IS_TLS;

/// A server whose connections `serve` handles, each on a thread of its own.
pub fn server(serve: impl Fn(Peer) + Send + Sync + 'static) -> SocketAddr {
    server_with("first", serve)
}

/// As [`server`]; over TLS it shows the certificate of this name.
pub fn server_with(certificate: &str, serve: impl Fn(Peer) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (serve, config) = (Arc::new(serve), Arc::new(config(certificate)));
    thread::spawn(move || {
        for (number, socket) in listener.incoming().enumerate() {
            let Ok(socket) = socket else { return };
            let tls = IS_TLS.then(|| ServerConnection::new(Arc::clone(&config)).unwrap());
            let serve = Arc::clone(&serve);
            thread::spawn(move || {
                serve(Peer { stream: Stream { socket, tls }, number, buffer: BytesMut::new() })
            });
        }
    });
    address
}

/// Connections as the program makes them.
pub fn connections() -> Connections {
    if IS_TLS { Connections::over_tls(trusting("ca", None)) } else { Connections::new() }
}

/// What a client needs that trusts the certificate of this name, and expects `server_name`.
pub fn trusting(certificate: &str, server_name: Option<&str>) -> ClientTls {
    let trust = std::fs::read(fixture(&format!("{certificate}.pem"))).unwrap();
    ClientTls::new(&TlsOptions { trust: &trust, identity: None, server_name }).unwrap()
}

pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tls").join(name)
}

fn config(certificate: &str) -> ServerConfig {
    let chain = CertificateDer::pem_file_iter(fixture(&format!("{certificate}.pem"))).unwrap();
    let key = PrivateKeyDer::from_pem_file(fixture(&format!("{certificate}.key"))).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.map(Result::unwrap).collect(), key)
        .unwrap();
    config.alpn_protocols.push(framed::ALPN.to_vec());
    config
}

/// A connection at the server's side.
pub struct Peer {
    pub stream: Stream,
    /// Which connection it is, from 0.
    pub number: usize,
    buffer: BytesMut,
}

pub struct Stream {
    pub socket: TcpStream,
    pub tls: Option<ServerConnection>,
}

impl Peer {
    pub fn request(&mut self) -> Option<RemotingCommand> {
        loop {
            if let Some(command) = Decoder::default().next(&mut self.buffer).unwrap() {
                return Some(command);
            }
            let mut bytes = [0; 4_096];
            match self.stream.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.buffer.extend_from_slice(&bytes[..read]),
            }
        }
    }

    pub fn answer(&mut self, request: &RemotingCommand) {
        let response = RemotingCommand { body: request.body.clone(), ..request.respond(0, None) };
        _ = self.stream.write_all(&codec::encode(&response).unwrap().to_bytes());
    }

    pub fn echo(&mut self) {
        while let Some(request) = self.request() {
            self.answer(&request);
        }
    }

    pub fn close(&mut self) {
        self.stream.socket.shutdown(Shutdown::Both).unwrap();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            _ = tls.write_tls(&mut self.socket);
        }
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => rustls::Stream::new(tls, &mut self.socket).read(out),
            None => self.socket.read(out),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => rustls::Stream::new(tls, &mut self.socket).write(bytes),
            None => self.socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => rustls::Stream::new(tls, &mut self.socket).flush(),
            None => Ok(()),
        }
    }
}
