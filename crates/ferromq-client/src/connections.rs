//! The connections of a client: one for each server.

use std::{
    collections::HashMap,
    io,
    net::ToSocketAddrs,
    sync::{Arc, Condvar, Mutex, Weak},
    time::{Duration, Instant},
};

use ferromq_protocol::remoting::Fields;

use crate::{
    CallError, Cancellation, ClientTls, LocalError, LocalServer, Patience, Release as _, Request, Response,
    TICK,
    connection::{Callback, Connection, SentCall},
    sync,
};

/// Connections that one call uses at most, if others close them meanwhile.
const TRIES: u32 = 16;
/// An attempt to connect takes at most this long.
const CONNECT: Duration = Duration::from_secs(5);

/// Connections to servers, opened with the first call of each; thread-safe.
#[derive(Default)]
pub struct Connections {
    table: Mutex<Table>,
    tls: Option<ClientTls>,
    fields: Arc<Fields>,
}

#[derive(Default)]
struct Table {
    servers: HashMap<Arc<str>, Target>,
    is_closed: bool,
}

#[derive(Clone)]
enum Target {
    Remote(Arc<Server>),
    Local(Arc<dyn LocalServer>),
}

/// A server, and the connection to it.
struct Server {
    address: Arc<str>,
    tls: Option<ClientTls>,
    /// Fields that each request has besides its own.
    fields: Arc<Fields>,
    link: Mutex<Link>,
    /// Connections that new calls do not use.
    retired: Mutex<Vec<Weak<Connection>>>,
    /// An attempt to connect has ended.
    opened: Condvar,
}

#[derive(Default)]
enum Link {
    #[default]
    None,
    Opening,
    Open(Arc<Connection>),
    /// The client has left the server. An attempt to connect that ends now is undone.
    Left(Arc<str>),
}

impl Connections {
    /// Opens none yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens none yet, and each with TLS.
    #[must_use]
    pub fn over_tls(tls: ClientTls) -> Self {
        Self { tls: Some(tls), ..Self::default() }
    }

    /// Adds fields to each request to another process: what tells a server who sends it.
    #[must_use]
    pub fn with_fields(self, fields: Fields) -> Self {
        Self { fields: Arc::new(fields), ..self }
    }

    /// Sends a request to the server at `address`, `host:port`, and waits for its answer in this thread.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call(
        &self,
        address: &str,
        request: Request,
        patience: Patience<'_>,
    ) -> Result<Response, CallError> {
        match self.target(address)? {
            Target::Remote(server) => server.call(&request, patience, |_| true),
            Target::Local(server) => server.call(request, patience).map_err(|error| error.at(address)),
        }
    }

    /// As [`Self::call`], for a poll that `cancellation` can end.
    ///
    /// # Errors
    /// [`CallError`]; `Interrupted` if it was cancelled before it was sent.
    pub fn poll(
        &self,
        address: &str,
        request: Request,
        patience: Patience<'_>,
        cancellation: &Cancellation,
    ) -> Result<Response, CallError> {
        let interrupted = || Err(CallError::Interrupted { address: address.into() });
        match self.target(address)? {
            Target::Remote(server) => {
                let begin = |connection: &Arc<Connection>| {
                    let place: Weak<Connection> = Arc::downgrade(connection);
                    cancellation.begin(place)
                };
                server.call(&request, patience, begin)
            }
            Target::Local(server) => {
                if !cancellation.begin(Arc::<dyn LocalServer>::downgrade(&server)) {
                    return interrupted();
                }
                server.call(request, patience).map_err(|error| error.at(address))
            }
        }
    }

    /// Sends a request, and leaves the wait for the answer to the caller. `None` if no connection is open, or the server is
    /// in this process.
    ///
    /// # Errors
    /// [`CallError`] if the request cannot be sent.
    pub fn begin(
        &self,
        address: &str,
        request: Request,
        patience: Patience<'_>,
    ) -> Option<Result<Begun, CallError>> {
        match self.known(address)? {
            Target::Remote(server) => {
                let sent = server.usable()?.send(request, patience);
                Some(sent.map(|call| Begun(Place::Remote(call))))
            }
            Target::Local(_) => None,
        }
    }

    /// Sends a poll behind another request, both with one write. Waits for the answer of `first` alone.
    ///
    /// # Errors
    /// [`CallError`] if the requests may not have been sent whole, or `first` gets no answer.
    pub fn begin_behind(
        &self,
        address: &str,
        first: Request,
        poll: Request,
        patience: Patience<'_>,
    ) -> Result<(Response, Begun), CallError> {
        match self.target(address)? {
            Target::Remote(server) => {
                let (first, poll) = server.send_both(&(first, poll), patience)?;
                Ok((first.wait(patience)?, Begun(Place::Remote(poll))))
            }
            Target::Local(server) => {
                let answer = server.call(first, patience).map_err(|error| error.at(address))?;
                Ok((answer, Begun(Place::Local(server, address.into(), poll))))
            }
        }
    }

    /// Calls the server at `address` as one in this process, without a connection.
    pub fn attach(&self, address: &str, server: Arc<dyn LocalServer>) {
        sync::lock(&self.table).servers.insert(address.into(), Target::Local(server));
    }

    /// Has the server answer the polls under way at once. Later calls use another connection.
    pub fn release(&self, address: &str) {
        match self.known(address) {
            Some(Target::Local(server)) => server.release(),
            Some(Target::Remote(server)) => {
                if let Some(connection) = server.usable() {
                    connection.release();
                }
            }
            None => {}
        }
    }

    /// Sends a request without waiting, if a connection is open.
    ///
    /// `done` is called once: with the answer on a thread of the connection, or in this thread if the request was not
    /// sent. It must not wait.
    pub fn start(
        &self,
        address: &str,
        request: Request,
        until: Instant,
        done: impl FnOnce(Result<Response, CallError>) + Send + 'static,
    ) {
        let done: Callback = Box::new(done);
        let connection = match self.known(address) {
            Some(Target::Local(server)) => {
                let address = Arc::<str>::from(address);
                let end =
                    move |outcome: Result<_, LocalError>| done(outcome.map_err(|error| error.at(&address)));
                return server.start(request, until, Box::new(end));
            }
            Some(Target::Remote(server)) => server.usable(),
            None => None,
        };
        match connection {
            Some(connection) => connection.start(request, until, done),
            None => {
                let reason = "no connection is open".into();
                done(Err(CallError::NotSent { address: address.into(), reason }));
            }
        }
    }

    /// Whether a connection to the server is open.
    #[must_use]
    pub fn is_open(&self, address: &str) -> bool {
        match self.known(address) {
            Some(Target::Local(_)) => true,
            Some(Target::Remote(server)) => server.usable().is_some(),
            None => false,
        }
    }

    fn known(&self, address: &str) -> Option<Target> {
        sync::lock(&self.table).servers.get(address).cloned()
    }

    /// Ends the connection to a server that is not needed any more, and the calls on it.
    pub fn forget(&self, address: &str) {
        let server = {
            let mut table = sync::lock(&self.table);
            match table.servers.get(address) {
                Some(Target::Remote(_)) => table.servers.remove(address),
                Some(Target::Local(_)) | None => None,
            }
        };
        if let Some(server) = server {
            server.end("the client has left the server");
        }
    }

    /// Ends all connections and the calls on them; later calls fail.
    pub fn close(&self) {
        let servers = {
            let mut table = sync::lock(&self.table);
            table.is_closed = true;
            std::mem::take(&mut table.servers)
        };
        servers.into_values().for_each(|server| server.end(CLOSED));
    }

    fn target(&self, address: &str) -> Result<Target, CallError> {
        let mut table = sync::lock(&self.table);
        if table.is_closed {
            return Err(CallError::NotSent { address: address.into(), reason: CLOSED.into() });
        }
        if let Some(target) = table.servers.get(address) {
            return Ok(target.clone());
        }
        let server = Arc::new(Server::new(address, self.tls.clone(), Arc::clone(&self.fields)));
        table.servers.insert(Arc::clone(&server.address), Target::Remote(Arc::clone(&server)));
        Ok(Target::Remote(server))
    }
}

/// A call whose answer its thread waits for later. If it is dropped before the answer came, the server's poll ends.
pub struct Begun(Place);

enum Place {
    Remote(SentCall),
    /// It is called in the thread that waits.
    Local(Arc<dyn LocalServer>, Arc<str>, Request),
}

impl Begun {
    /// Waits for the answer. If `cancellation` was set, the server answers at once: what it leased meanwhile is not lost.
    ///
    /// # Errors
    /// [`CallError`] if no answer comes, and `Interrupted` if `cancellation` was set before the server was called at all.
    pub fn wait(self, patience: Patience<'_>, cancellation: &Cancellation) -> Result<Response, CallError> {
        match self.0 {
            Place::Remote(call) => {
                let place: Weak<Connection> = Arc::downgrade(call.connection());
                if !cancellation.begin(place) {
                    call.connection().release();
                }
                call.wait(patience)
            }
            Place::Local(server, address, request) => {
                if !cancellation.begin(Arc::<dyn LocalServer>::downgrade(&server)) {
                    return Err(CallError::Interrupted { address });
                }
                server.call(request, patience).map_err(|error| error.at(&address))
            }
        }
    }
}

impl std::fmt::Debug for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Begun").finish_non_exhaustive()
    }
}

impl Target {
    fn end(&self, reason: &str) {
        match self {
            Self::Remote(server) => server.end(reason),
            Self::Local(server) => server.release(),
        }
    }
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let table = sync::lock(&self.table);
        f.debug_struct("Connections").field("servers", &table.servers.keys()).finish_non_exhaustive()
    }
}

const CLOSED: &str = "the client is closed";

impl Server {
    fn new(address: &str, tls: Option<ClientTls>, fields: Arc<Fields>) -> Self {
        Self {
            address: address.into(),
            tls,
            fields,
            link: Mutex::default(),
            retired: Mutex::default(),
            opened: Condvar::new(),
        }
    }

    /// Calls the server, unless `begin` returns false for the connection.
    ///
    /// A connection that is being closed since it was chosen sends nothing: the call goes on another one.
    fn call(
        &self,
        request: &Request,
        patience: Patience<'_>,
        begin: impl Fn(&Arc<Connection>) -> bool,
    ) -> Result<Response, CallError> {
        let mut tries = 0;
        loop {
            let connection = self.connection(patience)?;
            if !begin(&connection) {
                return Err(CallError::Interrupted { address: Arc::clone(&self.address) });
            }
            tries += 1;
            match connection.call(request.clone(), patience) {
                Err(CallError::NotSent { .. }) if tries < TRIES && !connection.is_usable() => {}
                outcome => return outcome,
            }
        }
    }

    /// Sends two requests with one write, on another connection if one is being closed since it was chosen.
    fn send_both(
        &self,
        requests: &(Request, Request),
        patience: Patience<'_>,
    ) -> Result<(SentCall, SentCall), CallError> {
        let mut tries = 0;
        loop {
            let connection = self.connection(patience)?;
            tries += 1;
            match connection.send_both(requests.clone(), patience) {
                Err(CallError::NotSent { .. }) if tries < TRIES && !connection.is_usable() => {}
                outcome => return outcome,
            }
        }
    }

    /// The connection, if it is open.
    fn usable(&self) -> Option<Arc<Connection>> {
        match &*sync::lock(&self.link) {
            Link::Open(connection) if connection.is_usable() => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    /// Returns the open connection, or opens one. If several callers need it, one connects and the others wait.
    fn connection(&self, patience: Patience<'_>) -> Result<Arc<Connection>, CallError> {
        let mut link = sync::lock(&self.link);
        loop {
            match &*link {
                Link::Open(connection) if connection.is_usable() => return Ok(Arc::clone(connection)),
                Link::Open(_) | Link::None => break,
                Link::Left(reason) => return Err(self.not_sent(reason)),
                Link::Opening => {
                    let now = Instant::now();
                    if now >= patience.until {
                        return Err(self.not_sent("no connection was opened in time"));
                    }
                    drop(sync::wait_until(&self.opened, link, patience.until.min(now + TICK)));
                    // Without the lock: the caller's check may wait for a lock of its own.
                    if (patience.is_interrupted)() {
                        return Err(CallError::Interrupted { address: Arc::clone(&self.address) });
                    }
                    link = sync::lock(&self.link);
                }
            }
        }
        // A connection whose server was silent may still bring answers of its other calls: they keep it.
        if let Link::Open(before) = std::mem::replace(&mut *link, Link::Opening) {
            let mut retired = sync::lock(&self.retired);
            retired.retain(|connection| connection.strong_count() > 0);
            retired.push(Arc::downgrade(&before));
        }
        drop(link);
        let opened = self.open(patience);
        let mut link = sync::lock(&self.link);
        let outcome = match (opened, &*link) {
            (Ok(connection), Link::Left(reason)) => {
                connection.end(reason);
                Err(self.not_sent(reason))
            }
            (Err(error), Link::Left(_)) => Err(error),
            (Ok(connection), _) => {
                *link = Link::Open(Arc::clone(&connection));
                Ok(connection)
            }
            (Err(error), _) => {
                *link = Link::None;
                Err(error)
            }
        };
        self.opened.notify_all();
        outcome
    }

    fn open(&self, patience: Patience<'_>) -> Result<Arc<Connection>, CallError> {
        let patience = Patience { until: patience.until.min(Instant::now() + CONNECT), ..patience };
        let opened = (*self.address).to_socket_addrs().and_then(|targets| {
            Connection::open(&self.address, &targets.collect::<Vec<_>>(), self.tls.as_ref(), patience)
        });
        let with_fields = |connection: Connection| connection.with_fields(Arc::clone(&self.fields));
        opened.map(with_fields).map(Arc::new).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => CallError::Interrupted { address: Arc::clone(&self.address) },
            _ => self.not_sent(&format!("no connection: {error}")),
        })
    }

    fn not_sent(&self, reason: &str) -> CallError {
        CallError::NotSent { address: Arc::clone(&self.address), reason: reason.into() }
    }

    fn end(&self, reason: &str) {
        let link = std::mem::replace(&mut *sync::lock(&self.link), Link::Left(reason.into()));
        self.opened.notify_all();
        let retired = std::mem::take(&mut *sync::lock(&self.retired));
        if let Link::Open(connection) = link {
            connection.end(reason);
        }
        for connection in retired.iter().filter_map(Weak::upgrade) {
            connection.end(reason);
        }
    }
}
