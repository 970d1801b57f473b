//! Bursts of connections, and accepting without free descriptors.
//!
//! A file of its own, because it changes the descriptor limit of its process. The tests run one at a time.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    iter,
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit},
    time::TimeValLike,
};
use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use support::{PATIENCE, Rig};
use tokio::runtime;

static ALONE: Mutex<()> = Mutex::new(());

/// Connections that a listener queues, if the system allows that many.
const BACKLOG: usize = 600;

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn a_burst_of_connections_is_queued_until_it_is_accepted() {
    let _alone = ALONE.lock();
    let most = fs::read_to_string("/proc/sys/net/core/somaxconn");
    let count = most.map_or(0, |most| most.trim().parse().unwrap()).min(BACKLOG);
    // No thread runs the runtime's tasks, so the server accepts nothing.
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let rig = Rig::new();
    let grpc = rig.server.listen_grpc(listener()).unwrap();
    for address in [rig.address, grpc] {
        let connected: Vec<_> =
            (0..count).map(|_| TcpStream::connect_timeout(&address, PATIENCE).unwrap()).collect();
        // Beyond the backlog, `connect` would retry until its timeout.
        assert_eq!(connected.len(), count);
    }
    drop(rig);
}

/// Open descriptors of this process.
fn open_descriptors() -> u64 {
    fs::read_dir("/proc/self/fd").unwrap().count() as u64
}

fn set_limit(soft: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.cast_unsigned())
}

/// Connects a socket whose descriptor already exists.
fn connect(socket: Socket, address: SocketAddr) -> TcpStream {
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Returns whether an HTTP/2 server responds.
fn speaks_http2(stream: &mut TcpStream) -> bool {
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    stream.read(&mut [0; 9]).is_ok_and(|count| count > 0)
}

#[test]
fn listeners_without_free_descriptors_wait_without_using_cpu_time() {
    let _alone = ALONE.lock();
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _inside = runtime.enter();
    // Without a store, so that nothing else opens or closes files.
    let rig = Rig::new();
    let grpc = rig.server.listen_grpc(listener()).unwrap();
    let [first, second] = [(), ()].map(|()| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap());
    set_limit(open_descriptors() + 8);
    let taken: Vec<_> = iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let (mut first, mut second) = (connect(first, grpc), connect(second, rig.address));
    first.set_read_timeout(Some(Duration::from_millis(600))).unwrap();
    let (begun, idle) = (Instant::now(), cpu_time());
    let refused = first.read(&mut [0; 1]).unwrap_err();
    let (took, used) = (begun.elapsed(), cpu_time() - idle);
    drop(taken);
    set_limit(soft);
    assert!(matches!(refused.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{refused}");
    assert_eq!(rig.stat("connections"), 0);
    assert!(used < took / 3, "{used:?} of CPU time in {took:?}");
    first.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(speaks_http2(&mut first));
    // No frame is that long, so the connection is accepted, read and closed.
    second.write_all(&[0x7f; 8]).unwrap();
    assert_eq!(second.read(&mut [0; 1]).unwrap_or(0), 0);
    drop(rig);
}
