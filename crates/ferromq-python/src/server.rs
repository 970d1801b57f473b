//! The Python class `Server`: start, handlers, table entries, listeners, stop.

use std::{
    collections::HashMap,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, UNIX_EPOCH},
};

use bytes::Bytes;
use ferromq_store::read::TransferLimits;
use ferromq_transport::{
    LogLimiter, Server, ServerOptions, Verb,
    access::Actions,
    dispatcher,
    grpc::LocalCalls,
    hot::{
        ClientPolicy, SIZE_BOUNDS, SendPolicy,
        latencies::{BOUNDS_MS, METHODS, OTHER, Outcome, Protocol},
    },
    tables::{GroupEntry, MessageType, TopicEntry, subscriptions::Subscription},
    tls::{ClientAuth, GrpcTls, ServerTls, TlsMode},
};
use pyo3::{
    PyTraverseError, PyVisit,
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyDict, PyMapping},
};
use tokio::runtime::Handle;

use crate::{
    access::{self, PyLimitRule, PyUser},
    clock::PyClock,
    error::{self, raised},
    handler::Handlers,
    process::{Owned, runtime},
    remoting_client::{Answer, answer, request_of},
    server_options::server_options,
    store::PyStore,
};

/// Protocol, request, code of the response, whether it waited, result, requests by bucket, sum in milliseconds.
type LatencyOfRequests = (&'static str, String, i32, bool, &'static str, [u64; BOUNDS_MS.len() + 1], f64);

/// The ids of the trace, of the client's span and of the span; protocol, request, code of the response and result; begin
/// and end in nanoseconds since 1970.
type EndedSpan = ((u128, u64, u64), &'static str, String, i32, &'static str, u128, u128);

fn shown_request(protocol: Protocol, request: i32) -> String {
    match protocol {
        _ if request == OTHER => "other".to_owned(),
        Protocol::Remoting => request.to_string(),
        Protocol::Grpc => method_name(request),
    }
}

fn shown_outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Success => "success",
        Outcome::OneWay => "oneway",
        Outcome::WriteFailed => "write_channel_failed",
    }
}

fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Remoting => "remoting",
        Protocol::Grpc => "grpc",
    }
}

fn method_name(position: i32) -> String {
    let name = usize::try_from(position).ok().and_then(|position| METHODS.get(position));
    (*name.unwrap_or(&"other")).to_owned()
}

/// Limits the log, because clients repeat their subscriptions with each heartbeat.
static BAD_FILTER: LogLimiter = LogLimiter::new();

/// A started server, with what its shutdown needs.
struct RunningServer {
    runtime: Handle,
    server: Server,
    handlers: Arc<Handlers>,
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // The garbage collector may call this, so it must not wait. Connections are closed in the background.
        let server = self.server.clone();
        self.runtime.spawn(async move { server.stop(Duration::ZERO).await });
    }
}

/// A server: remoting and gRPC listeners, hot verbs in Rust, registered functions for cold requests.
#[pyclass(name = "Server", module = "ferromq._ferromq", frozen)]
pub struct PyServer(Owned<RunningServer>);

impl PyServer {
    /// Calls of clients in this process, or `ForkedProcess` in a child.
    pub fn local_calls(&self) -> PyResult<LocalCalls> {
        Ok(self.0.get()?.server.local_calls())
    }
}

#[pymethods]
impl PyServer {
    #[new]
    #[pyo3(signature = (clock, *, store=None, broker_name="", handler_threads=8, **limits))]
    fn new(
        clock: &PyClock,
        store: Option<&PyStore>,
        broker_name: &str,
        handler_threads: usize,
        limits: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let options = limits.map_or(Ok(ServerOptions::default()), server_options)?;
        let runtime = runtime()?;
        let handlers = Handlers::start(handler_threads)
            .map_err(|source| error::os_error("cannot start handler threads", &source))?;
        let handlers = Arc::new(handlers);
        let store = match store {
            Some(store) => Some((store.shared()?, broker_name.to_owned())),
            None => None,
        };
        let cold = Arc::clone(&handlers) as Arc<dyn ferromq_transport::ColdHandler>;
        let server = Server::new(runtime.clone(), options, clock.0.clone(), store, cold);
        Ok(Self(Owned::new("Server", RunningServer { runtime, server, handlers })))
    }

    /// Answer *route* with *handler* (None: no answer). Raises `ValueError` if *route* is a hot verb.
    fn register(&self, py: Python<'_>, route: &Bound<'_, PyAny>, handler: Py<PyAny>) -> PyResult<()> {
        let route = verb(route)?;
        dispatcher::ensure_cold(&route).map_err(|refused| error::transport_error(py, &refused))?;
        self.0.get()?.handlers.register(route, callable(py, handler)?);
        Ok(())
    }

    /// Call *handler*(kind, name, peer, wanted) for unknown topics and groups, see the stub.
    fn on_missing(&self, py: Python<'_>, handler: Py<PyAny>) -> PyResult<()> {
        self.0.get()?.handlers.set_missing(callable(py, handler)?);
        Ok(())
    }

    /// Call *handler*(stream, (connection, peer, user, certificate), metadata, message) for telemetry messages.
    fn on_telemetry(&self, py: Python<'_>, handler: Py<PyAny>) -> PyResult<()> {
        self.0.get()?.handlers.set_telemetry(callable(py, handler)?);
        Ok(())
    }

    /// Call *handler*(connection) after a connection was closed.
    fn on_close(&self, py: Python<'_>, handler: Py<PyAny>) -> PyResult<()> {
        self.0.get()?.handlers.set_close(callable(py, handler)?);
        Ok(())
    }

    /// Turn access control on with these users, or replace them; see the stub.
    #[pyo3(signature = (users, *, cluster, authorizes, unsigned, unrestricted))]
    #[allow(clippy::needless_pass_by_value)] // PyO3 passes them by value
    fn set_access(
        &self,
        users: Vec<PyUser>,
        cluster: &str,
        authorizes: bool,
        unsigned: Vec<String>,
        unrestricted: Vec<String>,
    ) -> PyResult<()> {
        let rules = access::rules(users, cluster, authorizes, &unsigned, &unrestricted)?;
        self.0.get()?.server.set_access(Some(rules));
        Ok(())
    }

    /// Replace the limits of messages and bytes a second; see the stub.
    fn set_limits(&self, rules: Vec<PyLimitRule>) -> PyResult<()> {
        if let Some(hot) = self.0.get()?.server.hot() {
            hot.limits.set(rules.into_iter().map(access::limit_rule));
        }
        Ok(())
    }

    /// Return whether *user* may take *action* on a topic from *peer*; true while policies are not checked.
    fn allows(&self, user: Option<&str>, peer: &str, topic: &str, action: &str) -> PyResult<bool> {
        let peer = peer.parse::<SocketAddr>().map_err(value_error)?;
        let action = Actions::named(action)
            .ok_or_else(|| PyValueError::new_err(format!("the action {action:?} is unknown")))?;
        Ok(self.0.get()?.server.access().allows(user, peer, topic, action))
    }

    /// Return whether access control lists what *route* needs; without that, it is for super users alone.
    #[staticmethod]
    fn lists_access(route: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(ferromq_transport::access::is_listed(&verb(route)?))
    }

    /// Serve gRPC on `host:port` (port 0: any) and return the port. Raises `OSError` with the address.
    fn listen_grpc(&self, py: Python<'_>, address: &str) -> PyResult<u16> {
        let server = &self.0.get()?.server;
        let listener = bind(py, address)?;
        py.detach(|| server.listen_grpc(listener))
            .map(|address| address.port())
            .map_err(|failure| error::transport_error(py, &failure))
    }

    /// Serve remoting on `host:port` (port 0: any) and return the port. Raises `OSError` with the address.
    fn listen_remoting(&self, py: Python<'_>, address: &str) -> PyResult<u16> {
        let server = &self.0.get()?.server;
        let listener = bind(py, address)?;
        py.detach(|| server.listen_remoting(listener))
            .map(|address| address.port())
            .map_err(|failure| error::transport_error(py, &failure))
    }

    /// Push the entry of a topic.
    #[pyo3(signature = (name, *, read_queues, write_queues, permission, message_type="NORMAL"))]
    fn put_topic(
        &self,
        name: &str,
        read_queues: u32,
        write_queues: u32,
        permission: u32,
        message_type: &str,
    ) -> PyResult<()> {
        let message_type: MessageType = message_type.parse().map_err(value_error)?;
        let entry = TopicEntry { read_queues, write_queues, permission, message_type };
        self.0.get()?.server.tables().put_topic(name, entry);
        Ok(())
    }

    /// Remove the entry of a topic.
    fn remove_topic(&self, name: &str) -> PyResult<()> {
        let server = &self.0.get()?.server;
        server.tables().remove_topic(name);
        if let Some(hot) = server.hot() {
            hot.forget_topic(name);
        }
        Ok(())
    }

    /// Push the entry of a consumer group.
    #[pyo3(signature = (name, *, enabled=true, max_attempts=17, from_beginning=true, broadcast=true,
        retry_queues=1, ordered=false, priority_factor=100))]
    #[allow(clippy::too_many_arguments)] // one per keyword argument in Python
    fn put_group(
        &self,
        name: &str,
        enabled: bool,
        max_attempts: u32,
        from_beginning: bool,
        broadcast: bool,
        retry_queues: u32,
        ordered: bool,
        priority_factor: u32,
    ) -> PyResult<()> {
        let entry = GroupEntry {
            enabled,
            max_attempts,
            from_beginning,
            broadcast,
            retry_queues,
            ordered,
            priority_factor,
        };
        self.0.get()?.server.tables().put_group(name, entry);
        Ok(())
    }

    /// Remove the entry of a consumer group.
    fn remove_group(&self, name: &str) -> PyResult<()> {
        let server = &self.0.get()?.server;
        server.tables().remove_group(name);
        if let Some(hot) = server.hot() {
            hot.forget_group(name);
        }
        Ok(())
    }

    /// Replace the topics that a group cannot read in spite of a subscription.
    #[allow(clippy::needless_pass_by_value)] // PyO3 passes it by value
    fn put_forbidden(&self, group: &str, topics: Vec<String>) -> PyResult<()> {
        let topics = topics.into_iter().map(String::into_boxed_str).collect();
        self.0.get()?.server.tables().put_forbidden(group, topics);
        Ok(())
    }

    /// Set whether pulls may filter by SQL92.
    fn put_sql_filters(&self, allowed: bool) -> PyResult<()> {
        self.0.get()?.server.tables().filters.allow_sql(allowed);
        Ok(())
    }

    /// Limit the answer of a pull, and of each queue of a receive.
    #[pyo3(signature = (*, near_count, near_bytes, far_count, far_bytes, near_span, scan_entries))]
    fn put_transfer_limits(
        &self,
        near_count: usize,
        near_bytes: usize,
        far_count: usize,
        far_bytes: usize,
        near_span: u64,
        scan_entries: u64,
    ) -> PyResult<()> {
        if let Some(hot) = self.0.get()?.server.hot() {
            let limits =
                TransferLimits { near_count, near_bytes, far_count, far_bytes, near_span, scan_entries };
            hot.set_transfer_limits(limits);
        }
        Ok(())
    }

    /// Set the time until which members of a group hold locks of queues; None: no locks.
    #[pyo3(signature = (group, until_ms))]
    fn put_locked(&self, group: &str, until_ms: Option<i64>) -> PyResult<()> {
        self.0.get()?.server.tables().put_locked(group, until_ms);
        Ok(())
    }

    /// Push the subscription of a live group, for remoting pulls that carry none.
    #[pyo3(signature = (group, topic, *, expression_type="TAG", expression="*", version=0, broadcasting=false))]
    fn put_subscription(
        &self,
        group: &str,
        topic: &str,
        expression_type: &str,
        expression: &str,
        version: i64,
        broadcasting: bool,
    ) -> PyResult<()> {
        let subscription = Subscription::new(expression_type, expression, version, broadcasting);
        if let Err(error) = &subscription.filter {
            BAD_FILTER.log(|suppressed| {
                tracing::warn!(group, topic, expression, %error, suppressed, "a subscription has an invalid filter");
            });
        }
        self.0.get()?.server.tables().subscriptions.put(group, topic, subscription);
        Ok(())
    }

    /// Remove a subscription; resets stay.
    fn remove_subscription(&self, group: &str, topic: &str) -> PyResult<()> {
        self.0.get()?.server.tables().subscriptions.remove(group, topic);
        Ok(())
    }

    /// Answer the next pull of a queue with the offset to continue at, and ignore its commits until then.
    fn put_reset(&self, group: &str, topic: &str, queue_id: u32, offset: u64) -> PyResult<()> {
        let server = &self.0.get()?.server;
        match server.hot() {
            Some(hot) => hot.put_reset(group, topic, queue_id, offset),
            None => server.tables().resets.put(group, topic, queue_id, offset),
        }
        Ok(())
    }

    /// Remove the pending resets of a topic, or of all topics of a group.
    #[pyo3(signature = (group, topic=None))]
    fn remove_resets(&self, group: &str, topic: Option<&str>) -> PyResult<()> {
        self.0.get()?.server.tables().resets.remove(group, topic);
        Ok(())
    }

    /// Send an encoded TelemetryCommand to a client; False if the stream is closed.
    fn send_telemetry(&self, stream: u64, message: &[u8]) -> PyResult<bool> {
        Ok(self.0.get()?.server.send_telemetry(stream, Bytes::copy_from_slice(message)))
    }

    /// End a telemetry stream with a gRPC status; False if the stream is closed.
    fn end_telemetry(&self, stream: u64, code: i32, message: &str) -> PyResult<bool> {
        Ok(self.0.get()?.server.end_telemetry(stream, code, message))
    }

    /// Wake waiting receives after the group's offsets in the topic changed.
    fn wake_receives(&self, group: &str, topic: &str) -> PyResult<()> {
        if let Some(hot) = self.0.get()?.server.hot() {
            hot.wake_receives(group, topic);
        }
        Ok(())
    }

    /// Set TLS of remoting connections: `disabled`, `permissive` (TLS and plaintext) or `enforcing`.
    #[pyo3(signature = (mode, *, certificate=None, key=None, client_auth="none", trust=None))]
    fn set_tls(
        &self,
        py: Python<'_>,
        mode: &str,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        client_auth: &str,
        trust: Option<PathBuf>,
    ) -> PyResult<()> {
        let mode: TlsMode = mode.parse().map_err(value_error)?;
        let (certificate, key) = match (certificate, key) {
            (Some(certificate), Some(key)) => (certificate, key),
            _ if mode == TlsMode::Disabled => Default::default(),
            _ => {
                return Err(raised::ConfigError::new_err(
                    "TLS needs a certificate and its key; give both, or set the mode disabled",
                ));
            }
        };
        let client_auth = client_auth.parse().map_err(value_error)?;
        let server = &self.0.get()?.server;
        py.detach(|| server.set_tls(ServerTls { mode, certificate, key, client_auth, trust }))
            .map_err(|failure| error::transport_error(py, &failure))
    }

    /// Set TLS of new gRPC connections, as `set_tls`. Without files a certificate is generated.
    #[pyo3(signature = (mode="permissive", *, certificate=None, key=None, client_auth="none", trust=None))]
    fn set_grpc_tls(
        &self,
        py: Python<'_>,
        mode: &str,
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
        client_auth: &str,
        trust: Option<PathBuf>,
    ) -> PyResult<()> {
        let mode: TlsMode = mode.parse().map_err(value_error)?;
        let client_auth = client_auth.parse().map_err(value_error)?;
        let options = match (certificate, key) {
            (Some(certificate), Some(key)) => {
                GrpcTls::Files(ServerTls { mode, certificate, key, client_auth, trust })
            }
            (None, None) if client_auth != ClientAuth::None => {
                return Err(raised::ConfigError::new_err(
                    "certificates of clients are checked with a certificate and key of the server; give both",
                ));
            }
            (None, None) => GrpcTls::Own(mode),
            _ => {
                return Err(raised::ConfigError::new_err(
                    "a certificate and its key belong together; give both or neither",
                ));
            }
        };
        let server = &self.0.get()?.server;
        py.detach(|| server.set_grpc_tls(options)).map_err(|failure| error::transport_error(py, &failure))
    }

    /// Reload changed certificate files; return whether any changed.
    fn reload_tls(&self, py: Python<'_>) -> PyResult<bool> {
        let server = &self.0.get()?.server;
        Ok(py.detach(|| server.reload_tls()))
    }

    /// Send a one-way request to a remoting client; False if its connection is closed or its queue is full.
    #[pyo3(
        signature = (connection, code, fields=None, body=b"".as_slice()),
        text_signature = "($self, connection, code, fields=None, body=b'')"
    )]
    fn push(
        &self,
        py: Python<'_>,
        connection: u64,
        code: i32,
        fields: Option<&Bound<'_, PyMapping>>,
        body: &[u8],
    ) -> PyResult<bool> {
        let request = request_of(code, fields, body)?;
        self.0.get()?.server.push(connection, request).map_err(|failure| error::transport_error(py, &failure))
    }

    /// Send a request to a remoting client and return its response: (code, remark, extFields, body).
    #[pyo3(
        signature = (connection, code, fields=None, body=b"".as_slice(), *, timeout=3.0),
        text_signature = "($self, connection, code, fields=None, body=b'', *, timeout=3.0)"
    )]
    fn call<'py>(
        &self,
        py: Python<'py>,
        connection: u64,
        code: i32,
        fields: Option<&Bound<'py, PyMapping>>,
        body: &[u8],
        timeout: f64,
    ) -> PyResult<Answer<'py>> {
        let RunningServer { runtime, server, .. } = self.0.get()?;
        let timeout = Duration::try_from_secs_f64(timeout).map_err(value_error)?;
        let request = request_of(code, fields, body)?;
        py.detach(|| runtime.block_on(server.call(connection, request, timeout)))
            .map_err(|failure| error::transport_error(py, &failure))
            .and_then(|response| answer(py, &response))
    }

    /// Return the number of `drop_routes` so far. Read it before looking up a route for `put_route`.
    fn routes_generation(&self) -> PyResult<u64> {
        Ok(self.0.get()?.server.routes().generation())
    }

    /// Let Rust answer lookups of *topic*; ignored after a drop since *generation* was read.
    fn put_route(&self, topic: &str, generation: u64, standard: &[u8], legacy: &[u8]) -> PyResult<()> {
        let (standard, legacy) = (Bytes::copy_from_slice(standard), Bytes::copy_from_slice(legacy));
        self.0.get()?.server.routes().put(topic, generation, standard, legacy);
        Ok(())
    }

    /// Remove the routes of *topics* (None: all), so that the handler is called again.
    fn drop_routes(&self, topics: Option<Vec<String>>) -> PyResult<()> {
        let routes = self.0.get()?.server.routes();
        match topics {
            Some(topics) => routes.drop_topics(topics.iter().map(String::as_str)),
            None => routes.drop_all(),
        }
        Ok(())
    }

    /// Close a connection; an unknown number is ignored.
    fn close_connection(&self, connection: u64) -> PyResult<()> {
        self.0.get()?.server.close_connection(connection);
        Ok(())
    }

    /// Return the counters by name.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = PyDict::new(py);
        for (name, value) in self.0.get()?.server.stats() {
            counters.set_item(name, value)?;
        }
        Ok(counters)
    }

    /// Set the marks of remoting clients' messages, and which messages are accepted, see the stub.
    #[pyo3(signature = (*, cluster="DefaultCluster", region="DefaultRegion", trace=true, reject_transactions=false,
        check_types="grpc"))]
    fn set_send_policy(
        &self,
        cluster: &str,
        region: &str,
        trace: bool,
        reject_transactions: bool,
        check_types: &str,
    ) -> PyResult<()> {
        let type_checks = check_types.parse().map_err(value_error)?;
        if let Some(hot) = self.0.get()?.server.hot() {
            let mut policy = SendPolicy::new(cluster, region, trace);
            policy.rejects_transactions = reject_transactions;
            policy.type_checks = type_checks;
            hot.policy.store(Arc::new(policy));
        }
        Ok(())
    }

    /// Set the limits of gRPC clients, and the redelivery of ordered groups.
    #[pyo3(signature = (*, min_invisible_ms, max_invisible_ms, max_delay_ms, max_send, creates_topics,
        redelivers_from_first))]
    fn set_client_policy(
        &self,
        min_invisible_ms: u64,
        max_invisible_ms: u64,
        max_delay_ms: Option<u64>,
        max_send: usize,
        creates_topics: bool,
        redelivers_from_first: bool,
    ) -> PyResult<()> {
        if let Some(hot) = self.0.get()?.server.hot() {
            hot.client_policy.store(Arc::new(ClientPolicy {
                min_invisible: Duration::from_millis(min_invisible_ms),
                max_invisible: Duration::from_millis(max_invisible_ms),
                max_delay: max_delay_ms.map_or(Duration::MAX, Duration::from_millis),
                max_send,
                creates_topics,
                redelivers_from_first,
            }));
        }
        Ok(())
    }

    /// Refuse consumers, as a slave does, or serve them again.
    fn refuse_reads(&self, refuses: bool) -> PyResult<()> {
        if let Some(hot) = self.0.get()?.server.hot() {
            hot.set_refuses_reads(refuses);
        }
        Ok(())
    }

    /// Count messages that were not stored by a send; *size*: bytes of their records.
    fn count_put(&self, topic: &str, messages: u64, size: u64) -> PyResult<()> {
        if let Some(hot) = self.0.get()?.server.hot() {
            hot.traffic.count_put(topic, messages, size);
        }
        Ok(())
    }

    /// Return how long requests took, see the stub.
    fn latencies(&self) -> PyResult<Vec<LatencyOfRequests>> {
        let rows = self.0.get()?.server.latencies();
        let rows = rows.into_iter().map(|row| {
            let request = shown_request(row.protocol, row.request);
            let protocol = protocol_name(row.protocol);
            let result = shown_outcome(row.outcome);
            (protocol, request, row.response, row.waited, result, row.buckets, row.sum.as_secs_f64() * 1e3)
        });
        Ok(rows.collect())
    }

    /// Begin or end the recording of spans.
    #[pyo3(signature = (*, on))]
    fn record_spans(&self, on: bool) -> PyResult<()> {
        self.0.get()?.server.spans().turn(on);
        Ok(())
    }

    /// Return the spans that have ended, see the stub.
    fn take_spans(&self) -> PyResult<Vec<EndedSpan>> {
        let spans = self.0.get()?.server.spans().take();
        let spans = spans.into_iter().map(|span| {
            let end = span.end.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
            let begin = end.saturating_sub(span.elapsed.as_nanos());
            let ids = (span.context.trace, span.context.parent, span.id);
            let protocol = protocol_name(span.exchange.protocol);
            let request = shown_request(span.exchange.protocol, span.exchange.request);
            (ids, protocol, request, span.exchange.response, shown_outcome(span.outcome), begin, end)
        });
        Ok(spans.collect())
    }

    /// The upper bounds of the buckets of `latencies`, in milliseconds; the last bucket has none.
    #[classattr]
    const LATENCY_BOUNDS: [u64; BOUNDS_MS.len()] = BOUNDS_MS;

    /// The upper bounds of the classes of `message_sizes`, in bytes; the last class has none.
    #[classattr]
    const SIZE_BOUNDS: [u64; SIZE_BOUNDS.len()] = SIZE_BOUNDS;

    /// Return, by topic, the number of messages of each class of sizes.
    fn message_sizes(&self) -> PyResult<HashMap<String, [u64; SIZE_BOUNDS.len() + 1]>> {
        Ok(self.0.get()?.server.hot().map(|hot| hot.traffic.snapshot().sizes).unwrap_or_default())
    }

    /// Return messages and bytes since the start: `put` and `sent` by topic, `get`, `send_back` and `dead` by
    /// `topic@group`, `refused` by `topic@reason`.
    fn traffic<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let server = &self.0.get()?.server;
        let snapshot = server.hot().map(|hot| hot.traffic.snapshot()).unwrap_or_default();
        let all = PyDict::new(py);
        for (name, tallies) in [
            ("put", snapshot.put),
            ("sent", snapshot.sent),
            ("get", snapshot.get),
            ("send_back", snapshot.send_back),
            ("dead", snapshot.dead),
            ("refused", snapshot.refused),
        ] {
            let sums = PyDict::new(py);
            for (of, tally) in tallies {
                sums.set_item(of, (tally.messages, tally.bytes))?;
            }
            all.set_item(name, sums)?;
        }
        Ok(all)
    }

    /// Stop listening, wait for requests in progress, close connections. Idempotent.
    #[pyo3(signature = (timeout=5.0))]
    fn stop(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let running = self.0.get()?;
        let timeout = Duration::try_from_secs_f64(timeout).map_err(value_error)?;
        py.detach(|| {
            let started = Instant::now();
            running.runtime.block_on(running.server.stop(timeout));
            // Handlers get only the rest of the timeout.
            if !running.handlers.stop(timeout.saturating_sub(started.elapsed())) {
                tracing::warn!("a handler is still running after the server stopped");
            }
        });
        running.handlers.clear();
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.here().map_or(Ok(()), |running| running.handlers.traverse(&visit))
    }

    fn __clear__(&self) {
        if let Some(running) = self.0.here() {
            running.handlers.clear();
        }
    }
}

fn bind(py: Python<'_>, address: &str) -> PyResult<TcpListener> {
    py.detach(|| TcpListener::bind(address))
        .map_err(|source| error::os_error(&format!("cannot listen on {address}"), &source))
}

fn callable(py: Python<'_>, handler: Py<PyAny>) -> PyResult<Py<PyAny>> {
    if handler.bind(py).is_callable() {
        Ok(handler)
    } else {
        Err(PyTypeError::new_err("a handler must be callable"))
    }
}

fn value_error(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn verb(route: &Bound<'_, PyAny>) -> PyResult<Verb> {
    Ok(match route.extract::<i32>() {
        Ok(code) => Verb::Code(code),
        Err(_) => Verb::Rpc(route.extract()?),
    })
}
