//! What holds for calls in plaintext and over TLS, as the program that includes it says: servers answer, answer late,
//! half, or not at all.

pub mod peer;

use std::{
    io::Write,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ferromq_client::{Begun, CallError, Cancellation, Connections, Patience, Request, Response};
use ferromq_protocol::remoting::{RemotingCommand, codec};
use peer::{connections, server};

pub const LONG: Duration = Duration::from_secs(30);

pub fn request(body: impl Into<Bytes>) -> Request {
    Request { code: 7, parts: vec![body.into()], ..Request::default() }
}

pub fn call_within(
    connections: &Connections,
    address: SocketAddr,
    body: impl Into<Bytes>,
    limit: Duration,
) -> Result<Response, CallError> {
    let patience = Patience { until: Instant::now() + limit, is_interrupted: &|| false };
    connections.call(&address.to_string(), request(body), patience)
}

pub fn echoed(connections: &Connections, address: SocketAddr, body: &str) {
    let answer = call_within(connections, address, body.to_owned(), LONG).unwrap();
    assert_eq!((answer.code, &answer.body[..]), (0, body.as_bytes()));
}

#[test]
fn each_of_many_threads_gets_its_own_answer() {
    let address = server(|mut peer| peer.echo());
    let connections = Arc::new(connections());
    let threads: Vec<_> = (0..16)
        .map(|thread| {
            let connections = Arc::clone(&connections);
            thread::spawn(move || {
                (0..300).for_each(|n| echoed(&connections, address, &format!("{thread}-{n}")))
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_call_that_meets_a_connection_being_released_is_sent_on_another() {
    let address = server(|mut peer| peer.echo());
    let connections = Arc::new(connections());
    let is_over = Arc::new(AtomicBool::new(false));
    let (shared, over) = (Arc::clone(&connections), Arc::clone(&is_over));
    let releasing = thread::spawn(move || {
        while !over.load(Ordering::SeqCst) {
            shared.release(&address.to_string());
        }
    });
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..200).for_each(|n| echoed(&connections, address, &n.to_string())));
        }
    });
    is_over.store(true, Ordering::SeqCst);
    releasing.join().unwrap();
}

#[test]
fn answers_out_of_order_reach_their_callers() {
    let address = server(|mut peer| {
        let requests: Vec<_> = (0..8).map(|_| peer.request().unwrap()).collect();
        requests.iter().rev().for_each(|request| peer.answer(request));
        peer.echo();
    });
    let connections = Arc::new(connections());
    let threads: Vec<_> = (0..8)
        .map(|n| {
            let connections = Arc::clone(&connections);
            thread::spawn(move || echoed(&connections, address, &format!("{n}")))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn calls_with_a_callback_and_calls_that_wait_share_a_connection() {
    let address = server(|mut peer| peer.echo());
    let connections = Arc::new(connections());
    echoed(&connections, address, "opens the connection");
    let (done, answers) = mpsc::channel();
    for n in 0..200_u32 {
        let done = done.clone();
        connections.start(
            &address.to_string(),
            request(n.to_string()),
            Instant::now() + LONG,
            move |answer| {
                done.send((n, answer)).unwrap();
            },
        );
        if n % 10 == 0 {
            echoed(&connections, address, "between");
        }
    }
    let mut seen: Vec<u32> = Vec::new();
    for (n, answer) in answers.iter().take(200) {
        assert_eq!(answer.unwrap().body, n.to_string());
        seen.push(n);
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..200));
}

#[test]
fn a_large_answer_comes_whole() {
    let address = server(|mut peer| peer.echo());
    let connections = connections();
    let body: Vec<u8> = (0..9_000_000_u32).map(|n| n as u8).collect();
    let answer = call_within(&connections, address, body.clone(), LONG).unwrap();
    assert!(answer.body == body);
}

#[test]
fn a_server_that_does_not_answer_costs_the_call_its_time_and_the_next_one_a_new_connection() {
    let address = server(|mut peer| {
        if peer.number == 0 {
            while peer.request().is_some() {}
        } else {
            peer.echo();
        }
    });
    let connections = connections();
    let begun = Instant::now();
    let silent = call_within(&connections, address, "x", Duration::from_millis(1_100));
    assert!(matches!(silent, Err(CallError::Timeout { .. })), "{silent:?}");
    assert!(begun.elapsed() >= Duration::from_millis(1_100));
    echoed(&connections, address, "again");
}

#[test]
fn a_slow_call_does_not_end_the_connection_of_others() {
    let address = server(|mut peer| {
        assert_eq!(peer.number, 0, "one connection serves all");
        while let Some(request) = peer.request() {
            if request.body != "slow" {
                peer.answer(&request);
            }
        }
    });
    let connections = Arc::new(connections());
    let slow = {
        let connections = Arc::clone(&connections);
        thread::spawn(move || call_within(&connections, address, "slow", Duration::from_millis(300)))
    };
    while !slow.is_finished() {
        echoed(&connections, address, "fast");
    }
    assert!(matches!(slow.join().unwrap(), Err(CallError::Timeout { .. })));
    echoed(&connections, address, "fast");
}

#[test]
fn a_connection_that_ends_ends_all_calls_on_it_at_once() {
    let barrier = Arc::new(Barrier::new(2));
    let end = Arc::clone(&barrier);
    let address = server(move |mut peer| {
        if peer.number > 0 {
            return peer.echo();
        }
        let first = peer.request().unwrap();
        peer.answer(&first);
        for _ in 0..4 {
            peer.request().unwrap();
        }
        end.wait();
        peer.close();
    });
    let connections = Arc::new(connections());
    echoed(&connections, address, "opens the connection");
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let connections = Arc::clone(&connections);
            thread::spawn(move || call_within(&connections, address, "x", LONG))
        })
        .collect();
    let (done, answers) = mpsc::channel();
    connections.start(&address.to_string(), request("x"), Instant::now() + LONG, move |answer| {
        done.send(answer).unwrap();
    });
    barrier.wait();
    let begun = Instant::now();
    let outcomes: Vec<_> =
        threads.into_iter().map(|thread| thread.join().unwrap()).chain([answers.recv().unwrap()]).collect();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(CallError::Lost { .. }))), "{outcomes:?}");
    assert!(begun.elapsed() < LONG / 2);
    echoed(&connections, address, "again");
}

#[test]
fn a_connection_that_the_server_closed_while_idle_is_opened_again() {
    let address = server(|mut peer| {
        let request = peer.request().unwrap();
        peer.answer(&request);
    });
    let connections = connections();
    for _ in 0..20 {
        echoed(&connections, address, "once");
        // The server closes the connection after its answer; the client must see that before it sends again.
        while connections.is_open(&address.to_string()) {
            thread::yield_now();
        }
    }
}

#[test]
fn a_server_that_answers_half_a_frame_and_closes_is_lost() {
    let address = server(|mut peer| {
        let request = peer.request().unwrap();
        let response = RemotingCommand { body: request.body.clone(), ..request.respond(0, None) };
        let frame = codec::encode(&response).unwrap().to_bytes();
        _ = peer.stream.write_all(&frame[..frame.len() / 2]);
    });
    let lost = call_within(&connections(), address, "x", LONG);
    assert!(matches!(&lost, Err(CallError::Lost { reason, .. }) if reason.contains("closed")), "{lost:?}");
}

#[test]
fn a_server_that_speaks_another_protocol_is_named() {
    let address = server(|mut peer| {
        peer.request().unwrap();
        _ = peer.stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        while peer.request().is_some() {}
    });
    let lost = call_within(&connections(), address, "x", LONG);
    assert!(matches!(&lost, Err(CallError::Lost { reason, .. }) if reason.contains("frame")), "{lost:?}");
}

#[test]
fn no_server_is_an_error_before_anything_is_sent() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = call_within(&connections(), free, "x", LONG);
    assert!(matches!(refused, Err(CallError::NotSent { .. })), "{refused:?}");
    let unknown = connections().call(
        "no.such.host.invalid:1",
        request("x"),
        Patience { until: Instant::now() + LONG, is_interrupted: &|| false },
    );
    assert!(matches!(unknown, Err(CallError::NotSent { .. })), "{unknown:?}");
}

#[test]
fn a_closed_client_ends_its_calls_and_takes_no_more() {
    let (arrived, arrivals) = mpsc::channel();
    let arrived = std::sync::Mutex::new(arrived);
    let address = server(move |mut peer| {
        while peer.request().is_some() {
            arrived.lock().unwrap().send(()).unwrap();
        }
    });
    let connections = Arc::new(connections());
    let waiting = {
        let connections = Arc::clone(&connections);
        thread::spawn(move || call_within(&connections, address, "x", LONG))
    };
    arrivals.recv().unwrap();
    connections.close();
    assert!(matches!(waiting.join().unwrap(), Err(CallError::Lost { .. })));
    let refused = call_within(&connections, address, "x", LONG);
    assert!(matches!(refused, Err(CallError::NotSent { .. })), "{refused:?}");
}

#[test]
fn an_interrupted_call_ends_and_another_caller_reads_on() {
    let (arrived, arrivals) = mpsc::channel();
    let arrived = std::sync::Mutex::new(arrived);
    let release = Arc::new(Barrier::new(2));
    let released = Arc::clone(&release);
    let address = server(move |mut peer| {
        let first = peer.request().unwrap();
        arrived.lock().unwrap().send(()).unwrap();
        let second = peer.request().unwrap();
        arrived.lock().unwrap().send(()).unwrap();
        released.wait();
        peer.answer(&first);
        peer.answer(&second);
        peer.echo();
    });
    let connections = Arc::new(connections());
    let interrupt = Arc::new(AtomicBool::new(false));
    let reader = {
        let (connections, interrupt) = (Arc::clone(&connections), Arc::clone(&interrupt));
        thread::spawn(move || {
            let is_interrupted = || interrupt.load(Ordering::Relaxed);
            let patience = Patience { until: Instant::now() + LONG, is_interrupted: &is_interrupted };
            connections.call(&address.to_string(), request("first"), patience)
        })
    };
    arrivals.recv().unwrap();
    let follower = {
        let connections = Arc::clone(&connections);
        thread::spawn(move || call_within(&connections, address, "second", LONG))
    };
    arrivals.recv().unwrap();
    interrupt.store(true, Ordering::Relaxed);
    assert!(matches!(reader.join().unwrap(), Err(CallError::Interrupted { .. })));
    release.wait();
    assert_eq!(follower.join().unwrap().unwrap().body, "second");
    echoed(&connections, address, "next");
}

#[test]
fn a_call_with_a_callback_is_not_sent_without_an_open_connection() {
    let address = server(|mut peer| peer.echo());
    let connections = connections();
    let (done, answers) = mpsc::channel();
    connections.start(&address.to_string(), request("x"), Instant::now() + LONG, move |answer| {
        done.send(answer).unwrap();
    });
    assert!(matches!(answers.recv().unwrap(), Err(CallError::NotSent { .. })));
    assert!(!connections.is_open(&address.to_string()));
}

fn poll(
    connections: &Connections,
    address: SocketAddr,
    cancellation: &Cancellation,
    limit: Duration,
) -> Result<Response, CallError> {
    let patience = Patience { until: Instant::now() + limit, is_interrupted: &|| false };
    let request = Request { is_poll: true, ..request("poll") };
    connections.poll(&address.to_string(), request, patience, cancellation)
}

/// A server that answers polls when their client sends no more, and other requests at once.
fn polled_server() -> (SocketAddr, mpsc::Receiver<usize>) {
    let (parked, polls) = mpsc::channel();
    let address = server(move |mut peer| {
        let mut waiting = Vec::new();
        while let Some(request) = peer.request() {
            if &request.body[..] == b"poll" {
                parked.send(peer.number).unwrap();
                waiting.push(request);
            } else {
                peer.answer(&request);
            }
        }
        waiting.iter().for_each(|request| peer.answer(request));
    });
    (address, polls)
}

#[test]
fn a_cancelled_poll_gets_its_answer_at_once_and_calls_beside_it_go_on() {
    let (address, polls) = polled_server();
    let (connections, cancellation) = (connections(), Cancellation::default());
    thread::scope(|scope| {
        let polling = scope.spawn(|| poll(&connections, address, &cancellation, LONG));
        assert_eq!(polls.recv().unwrap(), 0);
        echoed(&connections, address, "beside it");
        cancellation.set();
        assert_eq!(&polling.join().unwrap().unwrap().body[..], b"poll");
    });
    echoed(&connections, address, "on another connection");
    let later = poll(&connections, address, &cancellation, LONG);
    assert!(matches!(later, Err(CallError::Interrupted { .. })), "{later:?}");
    assert!(polls.try_recv().is_err(), "a later poll is not sent");
}

#[test]
fn a_poll_that_is_late_lets_the_server_stop_waiting() {
    let (address, polls) = polled_server();
    let connections = connections();
    let late = poll(&connections, address, &Cancellation::default(), Duration::from_secs(1));
    assert!(matches!(late, Err(CallError::Timeout { .. })), "{late:?}");
    assert_eq!(polls.recv().unwrap(), 0);
    // The next poll uses another connection: the server has seen the end of the first.
    let cancellation = Cancellation::default();
    thread::scope(|scope| {
        let polling = scope.spawn(|| poll(&connections, address, &cancellation, LONG));
        assert_eq!(polls.recv().unwrap(), 1);
        connections.release(&address.to_string());
        assert!(polling.join().unwrap().is_ok());
    });
}

#[test]
fn a_poll_with_a_callback_is_answered_after_the_frames_that_wait() {
    let (address, polls) = polled_server();
    let connections = connections();
    echoed(&connections, address, "opens the connection");
    let (done, answers) = mpsc::channel();
    for body in ["poll", "a", "b"] {
        let done = done.clone();
        let request = Request { is_poll: body == "poll", ..request(body) };
        connections.start(&address.to_string(), request, Instant::now() + LONG, move |answer| {
            done.send(answer.unwrap().body).unwrap();
        });
    }
    polls.recv().unwrap();
    connections.release(&address.to_string());
    let mut bodies: Vec<_> = (0..3).map(|_| answers.recv_timeout(LONG).unwrap()).collect();
    bodies.sort();
    assert_eq!(bodies, ["a", "b", "poll"]);
}

#[test]
fn a_look_at_an_open_connection_delays_no_call() {
    let address = server(|mut peer| peer.echo());
    let connections = connections();
    let is_over = AtomicBool::new(false);
    let slowest = || {
        let time = |n: usize| {
            let begun = Instant::now();
            echoed(&connections, address, &n.to_string());
            begun.elapsed()
        };
        (0..4_000).map(time).max().unwrap()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                _ = connections.is_open(&address.to_string());
                thread::yield_now();
            }
        });
        // A call whose turn to read was lost looks again after 500 ms. A busy machine may delay one of a round, too.
        let is_prompt = (0..3).any(|_| slowest() < Duration::from_millis(450));
        is_over.store(true, Ordering::Relaxed);
        assert!(is_prompt);
    });
}

fn begin(connections: &Connections, address: SocketAddr, body: impl Into<Bytes>) -> Option<Begun> {
    let patience = Patience { until: Instant::now() + LONG, is_interrupted: &|| false };
    connections.begin(&address.to_string(), request(body), patience).map(Result::unwrap)
}

#[test]
fn the_answer_of_a_call_that_was_begun_comes_to_who_waits_for_it_later() {
    let address = server(|mut peer| peer.echo());
    let connections = connections();
    assert!(begin(&connections, address, "x").is_none(), "no connection is open");
    echoed(&connections, address, "opens the connection");
    // Less than the sockets hold: the server answers in turn, and reads nothing meanwhile.
    let large = vec![7; 200_000];
    let given_up = begin(&connections, address, large.clone()).unwrap();
    let begun = begin(&connections, address, large.clone()).unwrap();
    drop(given_up);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|n| echoed(&connections, address, &n.to_string())));
        }
    });
    let patience = Patience { until: Instant::now() + LONG, is_interrupted: &|| false };
    let answer = begun.wait(patience, &Cancellation::default()).unwrap();
    assert!(answer.body == large);
    let cancelled = Cancellation::default();
    cancelled.set();
    // It was sent: what the server did for it is not lost.
    let answer = begin(&connections, address, "y").unwrap().wait(patience, &cancelled).unwrap();
    assert!(answer.body == "y");
    echoed(&connections, address, "next");
}

#[test]
fn a_call_that_was_begun_ends_with_its_connection() {
    let address = server(|mut peer| {
        let first = peer.request().unwrap();
        peer.answer(&first);
        peer.request().unwrap();
        peer.close();
    });
    let connections = connections();
    echoed(&connections, address, "opens the connection");
    let begun = begin(&connections, address, "x").unwrap();
    let patience = Patience { until: Instant::now() + LONG, is_interrupted: &|| false };
    let lost = begun.wait(patience, &Cancellation::default());
    assert!(matches!(lost, Err(CallError::Lost { .. })), "{lost:?}");
}
