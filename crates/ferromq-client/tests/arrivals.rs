//! Waits for messages at several servers: some answer, some hang, some are gone.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use ferromq_client::{Arrivals, Patience, Request, Watched};
use ferromq_protocol::remoting::{Decoder, RemotingCommand, codec};

const LONG: Duration = Duration::from_secs(30);

/// A server that answers each request when it is told to, or when its client sends no more.
struct Server {
    address: SocketAddr,
    asked: mpsc::Receiver<()>,
    answer: mpsc::Sender<()>,
}

fn server() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asking, asked) = mpsc::channel();
    let (answer, answers) = mpsc::channel();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            while let Some(request) = next(&mut socket) {
                asking.send(()).unwrap();
                if answers.recv().is_err() {
                    return;
                }
                let response = RemotingCommand { body: Bytes::new(), ..request.respond(0, None) };
                _ = socket.write_all(&codec::encode(&response).unwrap().to_bytes());
            }
        }
    });
    Server { address, asked, answer }
}

fn next(socket: &mut TcpStream) -> Option<RemotingCommand> {
    let mut buffer = BytesMut::new();
    loop {
        if let Some(command) = Decoder::default().next(&mut buffer).unwrap() {
            return Some(command);
        }
        let mut bytes = [0; 4_096];
        match socket.read(&mut bytes) {
            Ok(0) | Err(_) => return None,
            Ok(read) => buffer.extend_from_slice(&bytes[..read]),
        }
    }
}

fn watched(name: &str, address: SocketAddr) -> Watched {
    let request = Request { code: 7, is_poll: true, ..Request::default() };
    Watched { name: name.to_owned(), address: address.to_string(), request }
}

fn names(arrivals: &Arrivals, watched: &[Watched], limit: Duration) -> Vec<String> {
    let patience = Patience { until: Instant::now() + limit, is_interrupted: &|| false };
    arrivals.wait(watched, patience).into_iter().map(|(name, _)| name).collect()
}

#[test]
fn the_server_that_answers_is_named_and_the_others_are_not_asked_again() {
    let (one, two) = (server(), server());
    let both = [watched("one", one.address), watched("two", two.address)];
    let arrivals = Arrivals::new();
    two.answer.send(()).unwrap();
    assert_eq!(names(&arrivals, &both, LONG), ["two"]);
    two.answer.send(()).unwrap();
    assert_eq!(names(&arrivals, &both, LONG), ["two"]);
    assert_eq!((one.asked.iter().take(1).count(), one.asked.try_recv().is_err()), (1, true));
    one.answer.send(()).unwrap();
    assert_eq!(names(&arrivals, &both, LONG), ["one"]);
}

#[test]
fn a_server_that_is_gone_does_not_end_the_wait_for_another() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let here = server();
    let both = [watched("gone", gone), watched("here", here.address)];
    let arrivals = Arrivals::new();
    assert!(names(&arrivals, &both, Duration::from_millis(50)).is_empty());
    here.answer.send(()).unwrap();
    assert_eq!(names(&arrivals, &both, LONG), ["here"]);
}

#[test]
fn a_wait_is_interrupted_and_the_next_one_is_not() {
    let server = server();
    let (arrivals, one) = (Arc::new(Arrivals::new()), [watched("one", server.address)]);
    let interrupting = Arc::clone(&arrivals);
    let asked = server.asked;
    let interrupt = thread::spawn(move || {
        asked.recv().unwrap();
        interrupting.interrupt();
    });
    assert!(names(&arrivals, &one, LONG).is_empty());
    interrupt.join().unwrap();
    server.answer.send(()).unwrap();
    assert_eq!(names(&arrivals, &one, LONG), ["one"]);
    let is_signalled = AtomicBool::new(true);
    let patience =
        Patience { until: Instant::now() + LONG, is_interrupted: &|| is_signalled.load(Ordering::Relaxed) };
    assert!(arrivals.wait(&one, patience).is_empty());
}

#[test]
fn a_waker_is_called_once_and_closing_ends_all_waits() {
    let server = server();
    let one = [watched("one", server.address)];
    let arrivals = Arrivals::new();
    let (woken, wakes) = mpsc::channel();
    let first = woken.clone();
    arrivals.watch(&one, move || first.send("answered").unwrap());
    server.answer.send(()).unwrap();
    assert_eq!(wakes.recv_timeout(LONG).unwrap(), "answered");
    assert_eq!(arrivals.take().len(), 1);
    arrivals.watch(&one, move || woken.send("closed").unwrap());
    server.asked.iter().take(2).for_each(drop);
    arrivals.close();
    assert_eq!(wakes.recv_timeout(LONG).unwrap(), "closed");
    assert!(names(&arrivals, &one, LONG).is_empty(), "at once");
}
