//! Thousands of connections that do nothing. A file of its own: it measures the memory of its process.
#![cfg(target_os = "linux")]
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

mod support;

use std::fs;

use support::{ECHO, PATIENCE, Peer, Rig, request};
use tokio::time::timeout;

/// Resident memory of this process.
fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_hold_no_buffers_and_disturb_nobody() {
    // Both ends are in this process: two descriptors each. Where they are not to be had fewer must do.
    let allowed = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap().1;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, allowed, allowed).unwrap();
    let count = usize::try_from(allowed.saturating_sub(200) / 2).unwrap_or(usize::MAX).min(5000);
    let mut rig = Rig::new();
    let mut neighbour = rig.connect().await;
    neighbour.call(&request(ECHO, 1)).await;
    let before = resident_bytes();
    let mut idle: Vec<Peer> = Vec::new();
    for opaque in 0..count {
        let mut peer = rig.connect().await;
        // Each has been used: what a request needed must be given back.
        peer.call(&request(ECHO, i32::try_from(opaque).unwrap())).await;
        idle.push(peer.without_buffer());
    }
    assert_eq!(rig.stat("connections"), count as u64 + 1);
    let each = resident_bytes().saturating_sub(before) / count;
    println!("{count} idle connections, {each} bytes each, both ends counted");
    assert!(each < 12 << 10, "an idle connection costs {each} bytes, less than a read buffer is allowed");
    assert_eq!(neighbour.call(&request(ECHO, 2)).await.opaque, 2);
    drop(idle);
    let closing = async {
        for _ in 0..count {
            rig.next_close().await;
        }
    };
    timeout(PATIENCE * 6, closing).await.expect("all connections closed");
    assert_eq!(neighbour.call(&request(ECHO, 3)).await.opaque, 3);
}
