//! Servers of the client's own process.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use ferromq_client::{
    CallError, Cancellation, Connections, LocalCallback, LocalError, LocalServer, Patience, Release, Request,
    Response,
};

const ADDRESS: &str = "127.0.0.1:1";
const LONG: Duration = Duration::from_secs(30);

/// Answers with the code of the request; polls wait for their release.
#[derive(Default)]
struct Server {
    polls: AtomicUsize,
    is_released: Mutex<bool>,
    released: Condvar,
    failure: Mutex<Option<LocalError>>,
}

impl LocalServer for Server {
    fn call(&self, request: Request, _patience: Patience<'_>) -> Result<Response, LocalError> {
        if let Some(failure) = *self.failure.lock().unwrap() {
            return Err(failure);
        }
        if request.is_poll {
            self.polls.fetch_add(1, Ordering::SeqCst);
            let is_released = self.is_released.lock().unwrap();
            drop(self.released.wait_while(is_released, |is_released| !*is_released).unwrap());
        }
        Ok(Response { code: request.code, remark: None, fields: request.fields, body: Default::default() })
    }

    fn start(&self, request: Request, until: Instant, done: LocalCallback) {
        done(self.call(request, Patience { until, is_interrupted: &|| false }));
    }
}

impl Release for Server {
    fn release(&self) {
        *self.is_released.lock().unwrap() = true;
        self.released.notify_all();
    }
}

fn attached() -> (Arc<Server>, Arc<Connections>) {
    let (server, connections) = (Arc::new(Server::default()), Arc::new(Connections::new()));
    connections.attach(ADDRESS, Arc::clone(&server) as Arc<dyn LocalServer>);
    (server, connections)
}

fn patience() -> Patience<'static> {
    Patience { until: Instant::now() + LONG, is_interrupted: &|| false }
}

fn request(code: i32, is_poll: bool) -> Request {
    Request { code, is_poll, ..Request::default() }
}

#[test]
fn an_attached_server_is_called_without_a_connection() {
    let (_, connections) = attached();
    assert!(connections.is_open(ADDRESS));
    assert_eq!(connections.call(ADDRESS, request(3, false), patience()).unwrap().code, 3);
    let (done, outcome) = mpsc::channel();
    let until = Instant::now() + LONG;
    connections.start(ADDRESS, request(4, false), until, move |answer| done.send(answer).unwrap());
    assert_eq!(outcome.try_recv().unwrap().unwrap().code, 4);
    connections.forget(ADDRESS);
    assert_eq!(connections.call(ADDRESS, request(5, false), patience()).unwrap().code, 5, "it stays");
}

#[test]
fn a_cancellation_releases_the_poll_under_way_and_refuses_later_ones() {
    let (server, connections) = attached();
    let cancellation = Arc::new(Cancellation::default());
    let (shared, cancelled) = (Arc::clone(&connections), Arc::clone(&cancellation));
    let polling = thread::spawn(move || shared.poll(ADDRESS, request(1, true), patience(), &cancelled));
    while server.polls.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    cancellation.set();
    assert!(polling.join().unwrap().is_ok());
    let later = connections.poll(ADDRESS, request(1, true), patience(), &cancellation);
    assert!(matches!(later, Err(CallError::Interrupted { .. })), "{later:?}");
    assert_eq!(server.polls.load(Ordering::SeqCst), 1);
}

#[test]
fn a_failure_names_the_address() {
    let (server, connections) = attached();
    let failed = |failure| {
        *server.failure.lock().unwrap() = Some(failure);
        connections.call(ADDRESS, request(1, false), patience()).unwrap_err()
    };
    assert!(matches!(failed(LocalError::Late), CallError::Timeout { .. }));
    assert!(matches!(failed(LocalError::Interrupted), CallError::Interrupted { .. }));
    let stopped = failed(LocalError::Stopped);
    assert!(matches!(stopped, CallError::NotSent { .. }));
    assert!(stopped.to_string().contains(ADDRESS), "{stopped}");
}

#[test]
fn a_closed_client_calls_no_attached_server() {
    let (server, connections) = attached();
    connections.close();
    assert!(*server.is_released.lock().unwrap(), "polls under way end");
    let refused = connections.call(ADDRESS, request(1, false), patience());
    assert!(matches!(refused, Err(CallError::NotSent { .. })), "{refused:?}");
}
