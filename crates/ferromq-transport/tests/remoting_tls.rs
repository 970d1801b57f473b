//! Remoting over TLS: modes, trust, and certificates that change while the server runs.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use ferromq_transport::{
    ConnectionLimits, ServerOptions, TransportError,
    client::RemotingClient,
    remoting::{Fields, RemotingCommand, codec},
    tls::{ClientAuth, ClientTls, ServerTls, TlsMode},
};
use support::{ECHO, PATIENCE, Rig, request};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Handle,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, ClientConnection, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tls").join(name)
}

/// A server's certificate and key in files that a test may change.
struct Files(TempDir);

impl Files {
    fn of(name: &str) -> Self {
        let files = Self(TempDir::new().unwrap());
        files.copy(&format!("{name}.pem"), "server.pem");
        files.copy(&format!("{name}.key"), "server.key");
        files
    }

    fn copy(&self, from: &str, to: &str) {
        fs::copy(fixture(from), self.0.path().join(to)).unwrap();
    }

    fn options(&self, mode: TlsMode) -> ServerTls {
        ServerTls {
            mode,
            certificate: self.0.path().join("server.pem"),
            key: self.0.path().join("server.key"),
            client_auth: ClientAuth::None,
            trust: None,
        }
    }
}

fn trusting() -> ClientTls {
    ClientTls { trust: Some(fixture("ca.pem")), check_name: true, identity: None }
}

async fn echo(rig: &Rig, client: &RemotingClient, body: Vec<u8>) -> Result<Bytes, TransportError> {
    let address = format!("localhost:{}", rig.address.port());
    let request = RemotingCommand::request(ECHO, Fields::default(), body.into());
    client.call(&address, request, PATIENCE).await.map(|answer| answer.body)
}

async fn echo_over_tls(rig: &Rig, options: &ClientTls) -> Result<Bytes, TransportError> {
    let client = RemotingClient::with_tls(Handle::current(), options, None).unwrap();
    echo(rig, &client, b"secret".to_vec()).await
}

async fn echo_in_plaintext(rig: &Rig) -> Result<Bytes, TransportError> {
    echo(rig, &RemotingClient::new(Handle::current(), None), b"open".to_vec()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mode_accepts_the_same_connections_as_rocketmq() {
    for (mode, takes_plaintext, takes_tls) in [
        (TlsMode::Disabled, true, false),
        (TlsMode::Permissive, true, true),
        (TlsMode::Enforcing, false, true),
    ] {
        let rig = Rig::new();
        rig.server.set_tls(Files::of("first").options(mode)).unwrap();
        assert_eq!(echo_in_plaintext(&rig).await.is_ok(), takes_plaintext, "{mode:?}");
        assert_eq!(echo_over_tls(&rig, &trusting()).await.is_ok(), takes_tls, "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_and_empty_bodies_pass_through_tls_on_one_connection() {
    let rig = Rig::new();
    rig.server.set_tls(Files::of("first").options(TlsMode::Enforcing)).unwrap();
    let client = RemotingClient::with_tls(Handle::current(), &trusting(), None).unwrap();
    let body: Vec<u8> = (0..3_000_000_u32).map(|number| number as u8).collect();
    assert_eq!(echo(&rig, &client, body.clone()).await.unwrap(), body);
    assert_eq!(echo(&rig, &client, Vec::new()).await.unwrap(), "");
    assert_eq!(rig.stat("connections"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_checks_chain_and_name_as_configured() {
    let rig = Rig::new();
    rig.server.set_tls(Files::of("elsewhere").options(TlsMode::Enforcing)).unwrap();
    assert!(echo_over_tls(&rig, &trusting()).await.is_err());
    let chain_only = ClientTls { check_name: false, ..trusting() };
    assert_eq!(echo_over_tls(&rig, &chain_only).await.unwrap(), "secret");
    assert_eq!(echo_over_tls(&rig, &ClientTls::default()).await.unwrap(), "secret");
    // Signed by an authority that this client does not trust.
    let stranger = ClientTls { trust: Some(fixture("client.pem")), ..chain_only };
    assert!(echo_over_tls(&rig, &stranger).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_present_a_certificate_if_the_server_requires_it() {
    let files = Files::of("first");
    let signed = ClientTls { identity: Some((fixture("client.pem"), fixture("client.key"))), ..trusting() };
    for (client_auth, takes_anonymous) in
        [(ClientAuth::None, true), (ClientAuth::Optional, true), (ClientAuth::Require, false)]
    {
        let rig = Rig::new();
        let trust = Some(fixture("ca.pem"));
        let options = ServerTls { client_auth, trust, ..files.options(TlsMode::Enforcing) };
        rig.server.set_tls(options).unwrap();
        assert_eq!(echo_over_tls(&rig, &trusting()).await.is_ok(), takes_anonymous, "{client_auth:?}");
        assert_eq!(echo_over_tls(&rig, &signed).await.unwrap(), "secret", "{client_auth:?}");
    }
    let rig = Rig::new();
    let options = ServerTls { client_auth: ClientAuth::Require, ..files.options(TlsMode::Enforcing) };
    let error = rig.server.set_tls(options).unwrap_err().to_string();
    assert!(error.contains("tls.server.trustCertPath"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_reloaded_once_it_fits_its_key() {
    let rig = Rig::new();
    let files = Files::of("first");
    rig.server.set_tls(files.options(TlsMode::Enforcing)).unwrap();
    // The certificates are distinguished by the name in them.
    let shows_first = async || {
        echo_over_tls(&rig, &ClientTls { check_name: false, ..trusting() }).await.unwrap();
        echo_over_tls(&rig, &trusting()).await.is_ok()
    };
    assert!(shows_first().await);
    assert!(!rig.server.reload_tls());

    files.copy("elsewhere.pem", "server.pem");
    assert!(!rig.server.reload_tls());
    assert!(shows_first().await);
    files.copy("elsewhere.key", "server.key");
    assert!(rig.server.reload_tls());
    assert!(!shows_first().await);

    // A mismatched or incomplete pair does not replace the current one.
    files.copy("first.pem", "server.pem");
    files.copy("client.key", "server.key");
    assert!(!rig.server.reload_tls());
    assert!(!shows_first().await);
    fs::remove_file(files.0.path().join("server.key")).unwrap();
    assert!(!rig.server.reload_tls());
    files.copy("first.key", "server.key");
    assert!(rig.server.reload_tls());
    assert!(shows_first().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_may_be_renewed_with_the_same_key() {
    let rig = Rig::new();
    let files = Files::of("first");
    rig.server.set_tls(files.options(TlsMode::Enforcing)).unwrap();
    echo_over_tls(&rig, &trusting()).await.unwrap();
    files.copy("renewed.pem", "server.pem");
    assert!(rig.server.reload_tls());
    assert!(!rig.server.reload_tls());
    assert!(echo_over_tls(&rig, &trusting()).await.is_err(), "it signed itself");
    assert_eq!(echo_over_tls(&rig, &ClientTls::default()).await.unwrap(), "secret");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_the_wrong_file() {
    let rig = Rig::new();
    let files = Files::of("first");
    let good = files.options(TlsMode::Permissive);
    for (options, wanted) in [
        (ServerTls { certificate: "/nowhere.pem".into(), ..good.clone() }, "/nowhere.pem: "),
        (
            ServerTls { certificate: fixture("first.key"), ..good.clone() },
            "first.key: it contains no certificate",
        ),
        (ServerTls { key: fixture("first.pem"), ..good.clone() }, "first.pem: it contains no private key"),
        (ServerTls { key: fixture("encrypted.key"), ..good.clone() }, "write it without a password"),
        (ServerTls { key: fixture("client.key"), ..good.clone() }, "client.key: "),
    ] {
        let error = rig.server.set_tls(options).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    assert!(echo_over_tls(&rig, &trusting()).await.is_err());
    rig.server.set_tls(good).unwrap();
    assert!(echo_over_tls(&rig, &trusting()).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_handshake_does_not_delay_others_and_ends_with_the_server() {
    let mut rig = Rig::new();
    rig.server.set_tls(Files::of("first").options(TlsMode::Permissive)).unwrap();
    let (mut stuck, silent) = (rig.connect().await, rig.connect().await);
    stuck.send_bytes(&[0x16, 3, 1]).await;
    let mut broken = rig.connect().await;
    broken.send_bytes(&[0x16; 64]).await;
    rig.next_close().await;
    let mut neighbour = rig.connect().await;
    assert_eq!(neighbour.call(&request(ECHO, 1)).await.opaque, 1);
    assert_eq!(echo_over_tls(&rig, &trusting()).await.unwrap(), "secret");
    timeout(PATIENCE, rig.server.stop(Duration::from_secs(5))).await.unwrap();
    assert_eq!(rig.stat("connections"), 0);
    let _ = stuck.stream.shutdown().await;
    drop(silent);
}

/// A connection after its handshake: the socket, and the TLS state that encrypts records.
async fn opened(rig: &Rig) -> (TcpStream, ClientConnection) {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(fixture("ca.pem")).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(rig.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap().into_inner()
}

/// Reads until the server closes the connection.
async fn until_closed(stream: &mut TcpStream) {
    while timeout(PATIENCE, stream.read(&mut [0; 64])).await.unwrap().unwrap_or(0) > 0 {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_or_slow_handshake_times_out() {
    let options = ServerOptions { handshake: Duration::from_millis(200), ..ServerOptions::default() };
    let rig = Rig::with(options);
    rig.server.set_tls(Files::of("first").options(TlsMode::Permissive)).unwrap();
    let (mut stuck, mut slow) = (rig.connect().await, rig.connect().await);
    stuck.send_bytes(&[0x16, 3, 1]).await;
    // Announces a record of 16,000 bytes.
    slow.send_bytes(&[0x16, 3, 1, 0x3e, 0x80, 1]).await;
    let (mut reading, mut writing) = slow.stream.into_split();
    let dripping = tokio::spawn(async move {
        while writing.write_all(&[0]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    while timeout(PATIENCE, reading.read(&mut [0; 64])).await.unwrap().unwrap_or(0) > 0 {}
    dripping.abort();
    until_closed(&mut stuck.stream).await;
    let mut neighbour = rig.connect().await;
    assert_eq!(neighbour.call(&request(ECHO, 1)).await.opaque, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_record_does_not_delay_others_and_its_connection_is_idle() {
    let connection = ConnectionLimits { idle: Duration::from_millis(500), ..ConnectionLimits::default() };
    let rig = Rig::with(ServerOptions { connection, ..ServerOptions::default() });
    rig.server.set_tls(Files::of("first").options(TlsMode::Enforcing)).unwrap();
    let (mut half, mut records) = opened(&rig).await;
    let frame = codec::encode(&request(ECHO, 1)).unwrap().to_bytes();
    records.writer().write_all(&frame).unwrap();
    let mut record = Vec::new();
    records.write_tls(&mut record).unwrap();
    half.write_all(&record[..record.len() / 2]).await.unwrap();
    assert_eq!(echo_over_tls(&rig, &trusting()).await.unwrap(), "secret");
    until_closed(&mut half).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_with_an_incomplete_record_has_the_read_timeout_of_a_frame() {
    let connection = ConnectionLimits { read: Duration::from_millis(300), ..ConnectionLimits::default() };
    let rig = Rig::with(ServerOptions { connection, ..ServerOptions::default() });
    rig.server.set_tls(Files::of("first").options(TlsMode::Enforcing)).unwrap();
    let (mut half, mut records) = opened(&rig).await;
    let frame = codec::encode(&request(ECHO, 1)).unwrap().to_bytes();
    let (begin, rest) = frame.split_at(8);
    records.writer().write_all(begin).unwrap();
    let mut bytes = Vec::new();
    records.write_tls(&mut bytes).unwrap();
    let whole = bytes.len();
    records.writer().write_all(rest).unwrap();
    records.write_tls(&mut bytes).unwrap();
    half.write_all(&bytes[..whole + 3]).await.unwrap();
    until_closed(&mut half).await;
    assert_eq!(echo_over_tls(&rig, &trusting()).await.unwrap(), "secret");
}

#[tokio::test(flavor = "multi_thread")]
async fn plaintext_on_an_enforcing_port_is_closed_and_others_are_served() {
    let rig = Rig::new();
    rig.server.set_tls(Files::of("first").options(TlsMode::Enforcing)).unwrap();
    let mut plain = rig.connect().await;
    plain.send(&request(ECHO, 1)).await;
    assert_eq!(plain.receive().await, None);
    assert_eq!(echo_over_tls(&rig, &trusting()).await.unwrap(), "secret");
}
