//! Calls in plaintext.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod contract;

const IS_TLS: bool = false;

#[test]
fn a_server_that_speaks_tls_alone_is_named() {
    use contract::{LONG, call_within, peer};
    use std::io::{Read, Write};

    let address = peer::server(|mut peer| {
        _ = peer.stream.read(&mut [0; 64]);
        // A fatal alert: unexpected message.
        _ = peer.stream.write_all(&[0x15, 3, 3, 0, 2, 2, 10]);
    });
    let lost = call_within(&ferromq_client::Connections::new(), address, "x", LONG).unwrap_err();
    assert_eq!(lost.to_string(), format!("{address}: the server speaks TLS, and this client does not"));
}
