//! Framed calls over TLS: modes, clients' certificates, changed certificates, and clients that send no more.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod grpc_support;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ferromq_client::{
    CallError, ClientTls, Connections, Patience, Request, Response, TlsOptions, codec::decode_records,
};
use ferromq_transport::{
    remoting::{Fields, codes::framed},
    tls::{ClientAuth, GrpcTls, ServerTls, TlsMode},
};
use grpc_support::{Broker, proto::receive};
use prost::Message as _;
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(60);

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tls").join(name)
}

fn serving(mode: TlsMode, directory: &Path, client_auth: ClientAuth) -> GrpcTls {
    GrpcTls::Files(ServerTls {
        mode,
        certificate: directory.join("first.pem"),
        key: directory.join("first.key"),
        client_auth,
        trust: Some(fixture("ca.pem")),
    })
}

/// Connections that trust the CA, and show the certificate of the name `shown`.
fn over_tls(shown: Option<&str>, server_name: Option<&str>) -> Connections {
    let read = |name: String| fs::read(fixture(&name)).unwrap();
    let trust = read("ca.pem".to_owned());
    let identity = shown.map(|name| (read(format!("{name}.pem")), read(format!("{name}.key"))));
    let identity = identity.as_ref().map(|(certificate, key)| (&certificate[..], &key[..]));
    Connections::over_tls(ClientTls::new(&TlsOptions { trust: &trust, identity, server_name }).unwrap())
}

async fn call(
    connections: &Arc<Connections>,
    broker: &Broker,
    code: i32,
    body: Vec<u8>,
) -> Result<Response, CallError> {
    let (connections, address) = (Arc::clone(connections), broker.address.to_string());
    let request = Request {
        code,
        fields: Fields::from([("client", "client-1")]),
        parts: vec![Bytes::from(body)],
        is_poll: code == framed::RECEIVE_MESSAGE,
    };
    tokio::task::spawn_blocking(move || {
        let patience = Patience { until: Instant::now() + LONG, is_interrupted: &|| false };
        connections.call(&address, request, patience)
    })
    .await
    .unwrap()
}

/// Why a server takes no frames from a new client with these connections; `None` if it does.
async fn refused(connections: Connections, broker: &Broker) -> Option<String> {
    let outcome = call(&Arc::new(connections), broker, framed::PROBE, Vec::new()).await;
    outcome.map(|response| assert_eq!(response.code, 0)).err().map(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mode_takes_frames_as_it_takes_http2() {
    let broker = Broker::start();
    for (mode, takes_tls, takes_plaintext) in [
        (TlsMode::Permissive, true, true),
        (TlsMode::Enforcing, true, false),
        (TlsMode::Disabled, false, true),
    ] {
        broker.server.set_grpc_tls(serving(mode, &fixture(""), ClientAuth::None)).unwrap();
        let tls = refused(over_tls(None, None), &broker).await;
        assert_eq!(tls.is_none(), takes_tls, "{mode:?}: {tls:?}");
        let plain = refused(Connections::new(), &broker).await;
        assert_eq!(plain.is_none(), takes_plaintext, "{mode:?}: {plain:?}");
        if mode == TlsMode::Disabled {
            let address = broker.address;
            assert_eq!(tls.unwrap(), format!("{address}: no connection: the server does not speak TLS"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_the_certificate_that_is_required_is_refused() {
    let broker = Broker::start();
    broker.server.set_grpc_tls(serving(TlsMode::Permissive, &fixture(""), ClientAuth::Require)).unwrap();
    assert_eq!(refused(over_tls(Some("client"), None), &broker).await, None);
    for shown in [None, Some("expired")] {
        assert!(refused(over_tls(shown, None), &broker).await.is_some(), "{shown:?}");
    }
    assert_eq!(broker.stat("remoting_requests"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_certificate_is_shown_to_new_connections_and_ends_no_other() {
    let directory = TempDir::new().unwrap();
    let copy = |from: &str, to: &str| _ = fs::copy(fixture(from), directory.path().join(to)).unwrap();
    copy("elsewhere.pem", "first.pem");
    copy("elsewhere.key", "first.key");
    let broker = Broker::start();
    broker.server.set_grpc_tls(serving(TlsMode::Enforcing, directory.path(), ClientAuth::None)).unwrap();
    let before = Arc::new(over_tls(None, Some("elsewhere.example")));
    assert_eq!(call(&before, &broker, framed::PROBE, Vec::new()).await.unwrap().code, 0);
    copy("first.pem", "first.pem");
    copy("first.key", "first.key");
    assert!(broker.server.reload_tls());
    assert_eq!(call(&before, &broker, framed::PROBE, Vec::new()).await.unwrap().code, 0);
    broker.until("connections", 1).await;
    assert_eq!(refused(over_tls(None, None), &broker).await, None);
    // A session that is remembered from before does not bring back the old certificate.
    before.release(&broker.address.to_string());
    let after = call(&before, &broker, framed::PROBE, Vec::new()).await;
    let reason = after.unwrap_err().to_string();
    assert!(reason.contains("elsewhere.example"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receive_is_answered_at_once_when_its_client_sends_no_more() {
    let broker = Broker::start();
    broker.client().await.send_one("taken").await;
    broker.readable(1).await;
    broker.server.set_grpc_tls(serving(TlsMode::Enforcing, &fixture(""), ClientAuth::None)).unwrap();
    let connections = Arc::new(over_tls(None, None));
    let first = call(&connections, &broker, framed::RECEIVE_MESSAGE, receive(LONG).encode_to_vec()).await;
    assert_eq!(decode_records(&first.unwrap().body).unwrap().messages.len(), 1);
    let parked = call(&connections, &broker, framed::RECEIVE_MESSAGE, receive(LONG).encode_to_vec());
    let release = async {
        broker.until("parked", 1).await;
        connections.release(&broker.address.to_string());
    };
    let (answer, ()) = tokio::join!(parked, release);
    let answer = decode_records(&answer.unwrap().body).unwrap();
    assert_eq!((answer.status.code, answer.messages.len()), (40_401, 0));
}
