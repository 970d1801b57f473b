//! Connections that come faster than they are accepted, and none left to accept them with. A file of its own: it changes
//! the limit of descriptors of its process, one test at a time.
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

/// How many may wait at a listener, where the system allows it.
const WAITING: usize = 600;

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn a_fleet_that_connects_at_once_waits_to_be_accepted() {
    let _alone = ALONE.lock();
    let most = fs::read_to_string("/proc/sys/net/core/somaxconn");
    let count = most.map_or(0, |most| most.trim().parse().unwrap()).min(WAITING);
    // No thread runs its tasks, so the server accepts nothing.
    let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let rig = Rig::new();
    let grpc = rig.server.listen_grpc(listener()).unwrap();
    for address in [rig.address, grpc] {
        let connected: Vec<_> =
            (0..count).map(|_| TcpStream::connect_timeout(&address, PATIENCE).unwrap()).collect();
        // One more than fits is asked to come again, after a second at least.
        assert_eq!(connected.len(), count);
    }
    drop(rig);
}

/// Descriptors in use.
fn in_use() -> u64 {
    fs::read_dir("/proc/self/fd").unwrap().count() as u64
}

fn set_limit(soft: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
}

/// The processor time of this process.
fn worked() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.cast_unsigned())
}

/// A connection that is made, or not, by a descriptor that is there already.
fn connect(socket: Socket, address: SocketAddr) -> TcpStream {
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Says whether a server that speaks HTTP/2 answers.
fn speaks(stream: &mut TcpStream) -> bool {
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    stream.read(&mut [0; 9]).is_ok_and(|count| count > 0)
}

#[test]
fn listeners_without_descriptors_wait_for_some_and_use_no_time_meanwhile() {
    let _alone = ALONE.lock();
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _inside = runtime.enter();
    // Without a store: nothing else opens and closes files.
    let rig = Rig::new();
    let grpc = rig.server.listen_grpc(listener()).unwrap();
    let [first, second] = [(), ()].map(|()| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap());
    set_limit(in_use() + 8);
    let taken: Vec<_> = iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let (mut first, mut second) = (connect(first, grpc), connect(second, rig.address));
    first.set_read_timeout(Some(Duration::from_millis(600))).unwrap();
    let (begun, idle) = (Instant::now(), worked());
    let refused = first.read(&mut [0; 1]).unwrap_err();
    let (took, used) = (begun.elapsed(), worked() - idle);
    drop(taken);
    set_limit(soft);
    assert!(matches!(refused.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{refused}");
    assert_eq!(rig.stat("connections"), 0);
    assert!(used < took / 3, "{used:?} of processor time in {took:?}");
    first.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(speaks(&mut first));
    // No frame is that long: the connection is accepted, looked at and closed.
    second.write_all(&[0x7f; 8]).unwrap();
    assert_eq!(second.read(&mut [0; 1]).unwrap_or(0), 0);
    drop(rig);
}
