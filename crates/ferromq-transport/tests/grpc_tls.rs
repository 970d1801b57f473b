//! gRPC over TLS and plaintext on one port: certificates, modes, and stalled handshakes.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod grpc_support;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ferromq_store::time::Clock;
use ferromq_transport::{
    ServerOptions, TransportError,
    tls::{ClientAuth, GrpcTls, ServerTls, TlsMode},
};
use grpc_support::Broker;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

const PATIENCE: Duration = Duration::from_secs(60);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tls").join(name)
}

fn files(mode: TlsMode, directory: &Path) -> GrpcTls {
    GrpcTls::Files(ServerTls {
        mode,
        certificate: directory.join("first.pem"),
        key: directory.join("first.key"),
        client_auth: ClientAuth::None,
        trust: None,
    })
}

/// A handshake by a client that trusts these certificates and offers one ALPN protocol.
async fn handshake(
    address: SocketAddr,
    trusted: &[CertificateDer<'static>],
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    timeout(PATIENCE, TlsConnector::from(Arc::new(config)).connect(name, stream)).await.unwrap()
}

fn authority() -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(fixture("ca.pem")).unwrap().map(Result::unwrap).collect()
}

/// The type of the server's first frame after the client's preface.
async fn first_frame(stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin)) -> u8 {
    stream.write_all(PREFACE).await.unwrap();
    let mut head = [0; 9];
    timeout(PATIENCE, stream.read_exact(&mut head)).await.unwrap().unwrap();
    head[3]
}

const SETTINGS: u8 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn one_port_serves_tls_with_the_given_certificate_and_plaintext() {
    let broker = Broker::start();
    broker.server.set_grpc_tls(files(TlsMode::Permissive, &fixture(""))).unwrap();
    let mut stream = handshake(broker.address, &authority(), b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(first_frame(&mut stream).await, SETTINGS);
    let client = broker.client().await;
    client.send_one("in plaintext").await;
    broker.until("connections", 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_files_each_server_generates_its_own_certificate() {
    let (one, other) = (Broker::start(), Broker::start());
    // A client must know the certificate to trust it.
    assert!(handshake(one.address, &authority(), b"h2").await.is_err());
    let shown = shown_certificate(one.address).await;
    let mut stream = handshake(one.address, std::slice::from_ref(&shown), b"h2").await.unwrap();
    assert_eq!(first_frame(&mut stream).await, SETTINGS);
    assert_ne!(shown, shown_certificate(other.address).await);
}

/// The certificate of a server, unverified.
async fn shown_certificate(address: SocketAddr) -> CertificateDer<'static> {
    use tokio_rustls::rustls::{
        DigitallySignedStruct, Error, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        pki_types::UnixTime,
    };
    #[derive(Debug)]
    struct AcceptAny;
    impl ServerCertVerifier for AcceptAny {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Ok(HandshakeSignatureValid::assertion())
        }
        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            ring::default_provider().signature_verification_algorithms.supported_schemes()
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAny))
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mode_accepts_its_connections_and_missing_files_change_nothing() {
    let broker = Broker::start();
    broker.server.set_grpc_tls(files(TlsMode::Enforcing, &fixture(""))).unwrap();
    handshake(broker.address, &authority(), b"h2").await.unwrap();
    let mut plain = TcpStream::connect(broker.address).await.unwrap();
    plain.write_all(PREFACE).await.unwrap();
    assert_eq!(plain.read(&mut [0; 16]).await.unwrap_or(0), 0);
    let missing = broker.server.set_grpc_tls(files(TlsMode::Permissive, Path::new("/nowhere")));
    assert!(
        matches!(&missing, Err(TransportError::Tls { path, .. }) if path.ends_with("first.pem")),
        "{missing:?}"
    );
    handshake(broker.address, &authority(), b"h2").await.unwrap();
    broker.server.set_grpc_tls(GrpcTls::Own(TlsMode::Disabled)).unwrap();
    assert!(handshake(broker.address, &authority(), b"h2").await.is_err());
    broker.client().await.send_one("plain again").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_another_alpn_protocol_is_refused() {
    let broker = Broker::start();
    broker.server.set_grpc_tls(files(TlsMode::Permissive, &fixture(""))).unwrap();
    assert!(handshake(broker.address, &authority(), b"http/1.1").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_certificate_files_are_loaded_once_both_match() {
    let directory = TempDir::new().unwrap();
    let copy = |from: &str, to: &str| _ = fs::copy(fixture(from), directory.path().join(to)).unwrap();
    copy("elsewhere.pem", "first.pem");
    copy("elsewhere.key", "first.key");
    let broker = Broker::start();
    broker.server.set_grpc_tls(files(TlsMode::Permissive, directory.path())).unwrap();
    assert!(handshake(broker.address, &authority(), b"h2").await.is_err());
    copy("first.pem", "first.pem");
    assert!(!broker.server.reload_tls());
    copy("first.key", "first.key");
    assert!(broker.server.reload_tls());
    handshake(broker.address, &authority(), b"h2").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_handshake_does_not_delay_others() {
    let broker = Broker::start();
    broker.server.set_grpc_tls(files(TlsMode::Permissive, &fixture(""))).unwrap();
    let silent = TcpStream::connect(broker.address).await.unwrap();
    let mut stuck = TcpStream::connect(broker.address).await.unwrap();
    stuck.write_all(&[0x16, 3, 1]).await.unwrap();
    broker.until("connections", 2).await;
    handshake(broker.address, &authority(), b"h2").await.unwrap();
    broker.client().await.send_one("past them").await;
    drop((silent, stuck));
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_handshakes_and_silent_connections_are_closed() {
    let options = ServerOptions { handshake: Duration::from_millis(20), ..ServerOptions::default() };
    let broker = Broker::start_limited(Clock::manual(0), true, options);
    for bytes in [&[0x16, 3, 1][..], &[]] {
        let mut stuck = TcpStream::connect(broker.address).await.unwrap();
        stuck.write_all(bytes).await.unwrap();
        assert_eq!(stuck.read(&mut [0; 16]).await.unwrap_or(0), 0);
    }
    broker.until("connections", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_an_incomplete_preface_is_closed_in_every_mode() {
    let options = ServerOptions { handshake: Duration::from_millis(20), ..ServerOptions::default() };
    let broker = Broker::start_limited(Clock::manual(0), true, options);
    for mode in [TlsMode::Permissive, TlsMode::Disabled] {
        broker.server.set_grpc_tls(files(mode, &fixture(""))).unwrap();
        for bytes in [&b""[..], b"P", &PREFACE[..23]] {
            let mut stuck = TcpStream::connect(broker.address).await.unwrap();
            stuck.write_all(bytes).await.unwrap();
            until_closed(&mut stuck).await;
        }
    }
    broker.until("connections", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_a_preface_after_its_handshake_is_closed_and_an_idle_one_is_not() {
    // Long enough for a handshake on a busy machine.
    let options = ServerOptions { handshake: Duration::from_secs(5), ..ServerOptions::default() };
    let broker = Broker::start_limited(Clock::manual(0), true, options);
    broker.server.set_grpc_tls(files(TlsMode::Enforcing, &fixture(""))).unwrap();
    let mut begun = handshake(broker.address, &authority(), b"h2").await.unwrap();
    assert_eq!(first_frame(&mut begun).await, SETTINGS);
    let mut silent = handshake(broker.address, &authority(), b"h2").await.unwrap();
    until_closed(&mut silent).await;
    broker.until("connections", 1).await;
    // The connection with a preface is older, and still open.
    begun.write_all(b"\0\0\x08\x06\0\0\0\0\0ferromq!").await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"ferromq!") {
        let mut bytes = [0; 64];
        let count = timeout(PATIENCE, begun.read(&mut bytes)).await.unwrap().unwrap();
        assert_ne!(count, 0, "closed after {seen:?}");
        seen.extend_from_slice(&bytes[..count]);
    }
}

/// Reads until the server closes the connection.
async fn until_closed(stream: &mut (impl AsyncReadExt + Unpin)) {
    while timeout(PATIENCE, stream.read(&mut [0; 64])).await.unwrap().unwrap_or(0) > 0 {}
}
