//! Memory of connections.
//!
//! A file of its own, because it measures the memory of its process. The tests run one at a time.
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

use bytes::Bytes;
use ferromq_transport::remoting::{RemotingCommand, codec};
use support::{ECHO, HELD, PATIENCE, Peer, Rig, request};
use tokio::{sync::Mutex, time::timeout};

static ALONE: Mutex<()> = Mutex::const_new(());

/// Resident memory of this process.
fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    resident.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Opens connections and makes a call on each, whose memory must then be freed.
async fn used_connections(rig: &Rig, count: usize) -> Vec<Peer> {
    let body = Bytes::from(vec![7; 12 << 10]);
    let mut peers = Vec::new();
    for opaque in 0..count {
        let mut peer = rig.connect().await;
        let opaque = i32::try_from(opaque).unwrap();
        peer.call(&RemotingCommand { body: body.clone(), ..request(ECHO, opaque) }).await;
        peers.push(peer.without_buffer());
    }
    peers
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_hold_no_buffers_and_do_not_disturb_others() {
    let _alone = ALONE.lock().await;
    // Both ends are in this process and need a descriptor each. The limit may allow fewer connections.
    let allowed = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap().1;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, allowed, allowed).unwrap();
    let count = usize::try_from(allowed.saturating_sub(200) / 2).unwrap_or(usize::MAX).min(5000);
    let mut rig = Rig::new();
    let mut neighbour = rig.connect().await;
    neighbour.call(&request(ECHO, 1)).await;
    // The first connections bear one-time costs, which are not counted.
    let first = used_connections(&rig, 100).await;
    let before = resident_bytes();
    let idle = used_connections(&rig, count - first.len()).await;
    assert_eq!(rig.stat("connections"), count as u64 + 1);
    let each = resident_bytes().saturating_sub(before) / idle.len();
    println!("{count} idle connections, {each} bytes each, both ends included");
    assert!(each < 16 << 10, "an idle connection costs {each} bytes: a buffer is kept");
    assert_eq!(neighbour.call(&request(ECHO, 2)).await.opaque, 2);
    drop((first, idle));
    let closing = async {
        for _ in 0..count {
            rig.next_close().await;
        }
    };
    timeout(PATIENCE * 6, closing).await.expect("all connections closed");
    assert_eq!(neighbour.call(&request(ECHO, 3)).await.opaque, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_small_request_does_not_keep_a_large_one_in_memory() {
    const ROUNDS: i32 = 40;
    const LARGE: usize = 4 << 20;
    let _alone = ALONE.lock().await;
    let mut rig = Rig::new();
    let mut peer = rig.connect().await;
    let mut large = RemotingCommand { body: vec![7; LARGE].into(), ..request(ECHO, 0) };
    large.set_one_way();
    let small = RemotingCommand { body: vec![7].into(), ..request(HELD, 1) };
    // In one write, so that the small frame is read along with the end of the large one.
    let both = [large, small].map(|command| codec::encode(&command).unwrap().to_bytes()).concat();
    let before = resident_bytes();
    for _ in 0..ROUNDS {
        peer.send_bytes(&both).await;
        assert_eq!([rig.next_call().await, rig.next_call().await], [ECHO, HELD]);
    }
    let kept = resident_bytes().saturating_sub(before) >> 20;
    println!("{ROUNDS} pending small requests keep {kept} MiB");
    assert!(kept < ROUNDS as usize * (LARGE >> 20) / 2, "{ROUNDS} requests of one byte keep {kept} MiB");
    rig.fake.release();
}
