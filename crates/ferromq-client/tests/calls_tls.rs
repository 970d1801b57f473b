//! Calls over TLS: servers that are not trusted, that stall, and connections that are cut or corrupted.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod contract;

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use contract::{
    LONG, call_within, echoed,
    peer::{Peer, connections, fixture, server, server_with, trusting},
    request,
};
use ferromq_client::{CallError, ClientTls, Connections, Patience, TlsError, TlsOptions};
use ferromq_protocol::remoting::{RemotingCommand, codec};

const IS_TLS: bool = true;

/// Why no connection could be opened; the error names the server.
fn refused(outcome: Result<ferromq_client::Response, CallError>, address: SocketAddr) -> String {
    match outcome {
        Err(CallError::NotSent { address: named, reason }) if *named == address.to_string() => {
            reason.to_string()
        }
        outcome => panic!("{outcome:?}"),
    }
}

/// Why a connection was lost; the error names the server.
fn lost(outcome: Result<ferromq_client::Response, CallError>, address: SocketAddr) -> String {
    match outcome {
        Err(CallError::Lost { address: named, reason }) if *named == address.to_string() => {
            reason.to_string()
        }
        outcome => panic!("{outcome:?}"),
    }
}

/// Accepts connections, and handles each with `serve`, without TLS.
fn plain(serve: impl Fn(std::net::TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().for_each(|socket| serve(socket.unwrap())));
    address
}

#[test]
fn a_certificate_of_another_authority_is_refused() {
    let address = server(|mut peer| peer.echo());
    let stranger = Connections::over_tls(trusting("expired", None));
    let reason = refused(call_within(&stranger, address, "x", LONG), address);
    assert!(reason.contains("signed by none of the trusted certificates"), "{reason}");
}

#[test]
fn an_expired_certificate_is_refused() {
    let address = server_with("expired", |mut peer| peer.echo());
    let connections = Connections::over_tls(trusting("expired", None));
    let reason = refused(call_within(&connections, address, "x", LONG), address);
    assert!(reason.contains("expired"), "{reason}");
}

#[test]
fn a_certificate_of_another_host_is_refused_unless_its_name_is_expected() {
    let address = server_with("elsewhere", |mut peer| peer.echo());
    let reason = refused(call_within(&connections(), address, "x", LONG), address);
    assert!(reason.contains("127.0.0.1") && reason.contains("elsewhere"), "{reason}");
    echoed(&Connections::over_tls(trusting("ca", Some("elsewhere.example"))), address, "x");
    let name = Connections::over_tls(trusting("ca", Some("localhost")));
    let reason = refused(call_within(&name, address, "x", LONG), address);
    assert!(reason.contains("localhost"), "{reason}");
}

#[test]
fn a_host_name_of_the_address_is_checked() {
    let address = server(|mut peer| peer.echo());
    let by_name = format!("localhost:{}", address.port());
    let patience = Patience { until: Instant::now() + LONG, is_interrupted: &|| false };
    assert!(connections().call(&by_name, request("x"), patience).is_ok());
}

#[test]
fn a_server_without_tls_is_refused_with_its_reason() {
    let goaway = plain(|mut socket| {
        _ = socket.read(&mut [0; 4_096]);
        _ = socket.write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    });
    let reason = refused(call_within(&connections(), goaway, "x", LONG), goaway);
    assert!(reason.ends_with("the server does not speak TLS"), "{reason}");
    let closes = plain(|mut socket| _ = socket.read(&mut [0; 4_096]));
    let reason = refused(call_within(&connections(), closes, "x", LONG), closes);
    assert!(reason.ends_with("the server ended the TLS handshake"), "{reason}");
}

#[test]
fn a_handshake_that_stalls_or_trickles_costs_the_call_its_time() {
    let (keep, kept) = mpsc::channel();
    let stalls = plain(move |socket| keep.send(socket).unwrap());
    let trickles = plain(|mut socket| {
        // The head of a record of 16 KiB, and its bytes one by one: each comes within a limit of its own.
        _ = socket.write_all(&[0x16, 3, 3, 0x40, 0]);
        while socket.write_all(&[2]).is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
    });
    for address in [stalls, trickles] {
        let begun = Instant::now();
        let outcome = call_within(&connections(), address, "x", Duration::from_millis(300));
        let reason = refused(outcome, address);
        assert!(reason.ends_with("the server did not end the TLS handshake in time"), "{reason}");
        assert!(begun.elapsed() >= Duration::from_millis(300) && begun.elapsed() < LONG / 3);
    }
    drop(kept);
}

#[test]
fn a_call_that_is_interrupted_in_the_handshake_ends() {
    let (keep, _kept) = mpsc::channel();
    let address = plain(move |socket| keep.send(socket).unwrap());
    let patience = Patience { until: Instant::now() + LONG, is_interrupted: &|| true };
    let outcome = connections().call(&address.to_string(), request("x"), patience);
    assert!(matches!(outcome, Err(CallError::Interrupted { .. })), "{outcome:?}");
}

/// Sends a part of the records of an answer, or all of them, changed.
fn answer_changed(peer: &mut Peer, change: impl Fn(&mut Vec<u8>)) {
    let request = peer.request().unwrap();
    let response = RemotingCommand { body: request.body.clone(), ..request.respond(0, None) };
    let tls = peer.stream.tls.as_mut().unwrap();
    tls.writer().write_all(&codec::encode(&response).unwrap().to_bytes()).unwrap();
    let mut records = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut records).unwrap();
    }
    change(&mut records);
    peer.stream.socket.write_all(&records).unwrap();
}

#[test]
fn a_connection_that_is_cut_inside_a_record_is_lost_and_opened_again() {
    let address = server(|mut peer| {
        if peer.number > 0 {
            return peer.echo();
        }
        answer_changed(&mut peer, |records| records.truncate(records.len() / 2));
        peer.stream.socket.shutdown(Shutdown::Both).unwrap();
    });
    let connections = connections();
    let reason = lost(call_within(&connections, address, "a body of some length", LONG), address);
    assert_eq!(reason, "the connection was cut: the server did not end its TLS session");
    echoed(&connections, address, "again");
}

#[test]
fn a_changed_record_is_never_an_answer() {
    let address = server(|mut peer| {
        if peer.number > 0 {
            return peer.echo();
        }
        answer_changed(&mut peer, |records| *records.last_mut().unwrap() ^= 1);
        while peer.request().is_some() {}
    });
    let connections = connections();
    let reason = lost(call_within(&connections, address, "x", LONG), address);
    assert!(reason.contains("TLS failed"), "{reason}");
    echoed(&connections, address, "again");
}

#[test]
fn answers_are_read_while_another_caller_cannot_write() {
    const LARGE: usize = 24 << 20;
    let (comes, came) = mpsc::channel();
    let address = server(move |mut peer| {
        let first = peer.request().unwrap();
        comes.send(()).unwrap();
        // The second request begins. The server reads nothing meanwhile: it fills the buffers of the system.
        _ = peer.stream.socket.peek(&mut [0]);
        let body = Bytes::from(vec![1; LARGE]);
        let response = RemotingCommand { body, ..first.respond(0, None) };
        peer.stream.write_all(&codec::encode(&response).unwrap().to_bytes()).unwrap();
        peer.echo();
    });
    let connections = connections();
    thread::scope(|scope| {
        let first = scope.spawn(|| call_within(&connections, address, "first", LONG));
        came.recv().unwrap();
        let second = call_within(&connections, address, vec![2; 8 << 20], LONG).unwrap();
        assert_eq!(first.join().unwrap().unwrap().body.len(), LARGE);
        assert_eq!(second.body.len(), 8 << 20);
    });
}

#[test]
fn a_caller_that_waits_for_its_answer_holds_up_no_other() {
    let (waits, waiting) = mpsc::channel();
    let address = server(move |mut peer| {
        while let Some(request) = peer.request() {
            match &request.body[..] {
                b"slow" => waits.send(()).unwrap(),
                _ => peer.answer(&request),
            }
        }
    });
    let connections = connections();
    thread::scope(|scope| {
        let slow = scope.spawn(|| call_within(&connections, address, "slow", LONG));
        waiting.recv().unwrap();
        let begun = Instant::now();
        (0..60).for_each(|n| echoed(&connections, address, &n.to_string()));
        // A reader that held the session while it waits would let one write pass in each of its looks.
        assert!(begun.elapsed() < LONG / 3, "{:?}", begun.elapsed());
        connections.close();
        assert!(matches!(slow.join().unwrap(), Err(CallError::Lost { .. })));
    });
}

#[test]
fn keys_that_the_server_renews_are_renewed_here_too() {
    let address = server(|mut peer| {
        while let Some(request) = peer.request() {
            if let Some(tls) = &mut peer.stream.tls {
                tls.refresh_traffic_keys().unwrap();
            }
            peer.answer(&request);
        }
    });
    let connections = Arc::new(connections());
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let connections = Arc::clone(&connections);
            thread::spawn(move || {
                (0..50).for_each(|n| echoed(&connections, address, &format!("{thread}-{n}")))
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_client_resumes_no_session_of_another_trust() {
    let address = server(|mut peer| peer.echo());
    echoed(&connections(), address, "trusted");
    let stranger = Connections::over_tls(trusting("expired", None));
    refused(call_within(&stranger, address, "x", LONG), address);
}

#[test]
fn files_that_are_not_what_they_are_for_are_named() {
    let read = |name: &str| std::fs::read(fixture(name)).unwrap();
    let (ca, client, key, encrypted) =
        (read("ca.pem"), read("client.pem"), read("client.key"), read("encrypted.key"));
    let error = |trust: &[u8], identity: Option<(&[u8], &[u8])>, server_name: Option<&str>| {
        ClientTls::new(&TlsOptions { trust, identity, server_name }).unwrap_err()
    };
    for (found, wanted) in [
        (error(b"nothing", None, None), "the file of the trusted certificates has none"),
        (error(&key, None, None), "the file of the trusted certificates has none"),
        (error(&ca, Some((&key, &key)), None), "the file of the client's certificate has none"),
        (error(&ca, Some((&client, &client)), None), "the file of the client's key has no private key"),
        (error(&ca, Some((&client, &encrypted)), None), "write it without a password"),
    ] {
        assert!(matches!(&found, TlsError::Invalid(reason) if reason.contains(wanted)), "{found:?}");
    }
    let name = error(&ca, None, Some("two words"));
    assert!(matches!(&name, TlsError::Unsupported(reason) if reason.contains("\"two words\"")), "{name:?}");
    let stranger = error(&ca, Some((&client, &read("first.key"))), None);
    assert!(matches!(stranger, TlsError::Unsupported(_)), "{stranger:?}");
}
