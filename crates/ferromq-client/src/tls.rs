//! TLS of connections: what a client trusts and shows, and the session of a connection.
//!
//! One state serves both directions of a session, behind a lock. No thread holds the lock while it uses the socket: a
//! writer encrypts and then sends, a reader receives and then decrypts. So a server that reads nothing stops no reader,
//! and one that sends nothing stops no writer. A reader never sends: what TLS itself answers goes out with the next frame.
//!
//! Only TLS 1.3 is spoken: in 1.2 a client that closes its half of a connection gets no answers any more.

use std::{
    io::{self, ErrorKind, IoSlice, Read, Write},
    net::{IpAddr, TcpStream},
    sync::{Arc, Mutex},
    time::Instant,
};

use ferromq_protocol::remoting::codes::framed;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, InvalidMessage, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    version::TLS13,
};

use crate::{Patience, TICK, sync};

/// Bytes of ciphertext of one read.
const CIPHERTEXT: usize = 64 << 10;

/// What a client trusts, and what it shows to servers that ask. Clones share remembered sessions.
#[derive(Debug, Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
}

/// Contents of PEM files, and a name.
#[derive(Debug, Clone, Copy)]
pub struct TlsOptions<'a> {
    /// The certificates that sign servers' certificates.
    pub trust: &'a [u8],
    /// The client's certificate, with those that signed it, and its key without a password.
    pub identity: Option<(&'a [u8], &'a [u8])>,
    /// The name that servers' certificates must have, if it is not that of the address.
    pub server_name: Option<&'a str>,
}

/// Why a client cannot speak TLS.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file has not what it is for.
    #[error("{0}")]
    Invalid(String),
    /// Other implementations of TLS may accept it.
    #[error("{0}")]
    Unsupported(String),
}

impl ClientTls {
    /// Checks the options.
    ///
    /// # Errors
    /// `Invalid` for a file without the certificate or the key that it is for; `Unsupported` for a certificate, a key or a
    /// name that rustls does not take.
    pub fn new(options: &TlsOptions<'_>) -> Result<Self, TlsError> {
        let unsupported = |error: rustls::Error| TlsError::Unsupported(error.to_string());
        let mut roots = RootCertStore::empty();
        let (added, _) =
            roots.add_parsable_certificates(certificates("trusted certificates", options.trust)?);
        if added == 0 {
            return Err(TlsError::Unsupported("none of the trusted certificates can be read".to_owned()));
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(unsupported)?
            .with_root_certificates(roots);
        let mut config = match options.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates("client's certificate", certificate)?, private_key(key)?)
                .map_err(unsupported)?,
        };
        config.alpn_protocols.push(framed::ALPN.to_vec());
        let server_name = options.server_name.map(name).transpose().map_err(TlsError::Unsupported)?;
        Ok(Self { config: Arc::new(config), server_name })
    }

    /// Does the handshake with the server at `address`, `host:port`.
    ///
    /// # Errors
    /// `TimedOut` and `Interrupted` as `patience` says; `UnexpectedEof`; `InvalidData` for what the server sent or showed.
    pub(crate) fn open(
        &self,
        address: &str,
        socket: &TcpStream,
        patience: Patience<'_>,
    ) -> io::Result<Session> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => name(host(address)).map_err(|reason| io::Error::new(ErrorKind::InvalidInput, reason))?,
        };
        let mut session = ClientConnection::new(Arc::clone(&self.config), name).map_err(invalid)?;
        let mut socket = Patient { socket, patience };
        while session.is_handshaking() || session.wants_write() {
            if session.wants_write() {
                session.write_tls(&mut socket)?;
            } else if session.read_tls(&mut socket)? == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the server ended the TLS handshake"));
            } else if let Err(error) = session.process_new_packets() {
                // The server logs why. Without its log it gets a closed connection.
                let _ = session.write_tls(&mut socket);
                return Err(invalid(error));
            }
        }
        Ok(Session(Mutex::new(session)))
    }
}

/// A TLS session after its handshake.
pub(crate) struct Session(Mutex<ClientConnection>);

/// Bytes of a session that were received and are not decrypted yet.
#[derive(Default)]
pub(crate) struct Ciphertext {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
    is_ended: bool,
}

impl Session {
    /// Encrypts a part of `parts`, or all, and appends the records to `records`. Returns how many bytes it took. The records
    /// must be sent before those of the next call.
    pub(crate) fn encrypt(&self, parts: &[IoSlice<'_>], records: &mut Vec<u8>) -> io::Result<usize> {
        let mut session = sync::lock(&self.0);
        let taken = session.writer().write_vectored(parts)?;
        take_records(&mut session, records)?;
        if taken == 0 { Err(ErrorKind::WriteZero.into()) } else { Ok(taken) }
    }

    /// Appends the record that ends this side of the session to `records`.
    pub(crate) fn end(&self, records: &mut Vec<u8>) -> io::Result<()> {
        let mut session = sync::lock(&self.0);
        session.send_close_notify();
        take_records(&mut session, records)
    }

    /// Decrypts into `out`, and returns how many bytes it wrote; 0 if the server ended its side.
    ///
    /// # Errors
    /// `WouldBlock` if more ciphertext must be received first; `ConnectionAborted` if the connection was cut.
    pub(crate) fn decrypt(&self, ciphertext: &mut Ciphertext, out: &mut [u8]) -> io::Result<usize> {
        let mut session = sync::lock(&self.0);
        let mut filled = 0;
        loop {
            let room = out.get_mut(filled..).unwrap_or_default();
            match session.reader().read(room) {
                Ok(0) => return Ok(filled),
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => match ciphertext.give(&mut session) {
                    Ok(true) => {}
                    Ok(false) if filled > 0 => return Ok(filled),
                    Ok(false) => return Err(error),
                    // What came before it counts; the error comes again.
                    Err(_) if filled > 0 => return Ok(filled),
                    Err(error) => return Err(error),
                },
                Err(_) if filled > 0 => return Ok(filled),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    let reason = "the connection was cut: the server did not end its TLS session";
                    return Err(io::Error::new(ErrorKind::ConnectionAborted, reason));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the server has not ended its side. Takes what has come to `socket`, if anything has, and leaves an answer
    /// to be decrypted: what comes to a connection without calls is most often a session ticket, or the end.
    pub(crate) fn is_open(&self, ciphertext: &mut Ciphertext, socket: Option<&TcpStream>) -> bool {
        let mut session = sync::lock(&self.0);
        if let Some(mut socket) = socket.filter(|_| ciphertext.is_empty())
            && ciphertext.fill(|room| socket.read(room)).is_err()
        {
            return false;
        }
        loop {
            match session.process_new_packets() {
                Ok(state) if state.plaintext_bytes_to_read() > 0 => return true,
                Ok(state) if state.peer_has_closed() => return false,
                Ok(_) if ciphertext.is_empty() => return !ciphertext.is_ended,
                Ok(_) => {}
                Err(_) => return false,
            }
            if ciphertext.give(&mut session).is_err() {
                return false;
            }
        }
    }
}

fn take_records(session: &mut ClientConnection, records: &mut Vec<u8>) -> io::Result<()> {
    while session.wants_write() {
        session.write_tls(records)?;
    }
    Ok(())
}

impl Ciphertext {
    fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Receives bytes, of which none are left. `receive` returns 0 at the end of the connection.
    pub(crate) fn fill(&mut self, receive: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<()> {
        if self.bytes.is_empty() {
            self.bytes = vec![0; CIPHERTEXT];
        }
        (self.begin, self.end) = (0, receive(&mut self.bytes)?);
        self.is_ended = self.end == 0;
        Ok(())
    }

    /// Gives bytes, or the end of the connection, to the session. Returns false if there are none.
    fn give(&mut self, session: &mut ClientConnection) -> io::Result<bool> {
        let mut rest = self.bytes.get(self.begin..self.end).unwrap_or_default();
        let is_given = !rest.is_empty() || self.is_ended;
        if is_given {
            self.begin += session.read_tls(&mut rest)?;
        }
        // It also fails if an earlier call failed.
        session.process_new_packets().map_err(invalid)?;
        Ok(is_given)
    }
}

/// A socket whose reads and writes end with the caller's patience.
struct Patient<'a> {
    socket: &'a TcpStream,
    patience: Patience<'a>,
}

impl Patient<'_> {
    fn retry(&self, mut attempt: impl FnMut(&TcpStream) -> io::Result<usize>) -> io::Result<usize> {
        loop {
            let left = self.patience.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(
                    ErrorKind::TimedOut,
                    "the server did not end the TLS handshake in time",
                ));
            }
            self.socket.set_read_timeout(Some(left.min(TICK)))?;
            self.socket.set_write_timeout(Some(left.min(TICK)))?;
            match attempt(self.socket) {
                Err(error) if sync::is_pause(&error) => {
                    if (self.patience.is_interrupted)() {
                        return Err(ErrorKind::Interrupted.into());
                    }
                }
                outcome => return outcome,
            }
        }
    }
}

impl Read for Patient<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.retry(|mut socket| socket.read(out))
    }
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.retry(|mut socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The host of `host:port`; an IPv6 address without its brackets.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn name(host: &str) -> Result<ServerName<'static>, String> {
    match host.parse::<IpAddr>() {
        Ok(address) => Ok(ServerName::IpAddress(address.into())),
        Err(_) => ServerName::try_from(host.to_owned())
            .map_err(|_| format!("{host:?} is no name that a server's certificate can have")),
    }
}

fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(TlsError::Invalid(format!("the file of the {what} has none"))),
        found => found.map_err(|error| TlsError::Unsupported(format!("the {what}: {error}"))),
    }
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| {
        let is_encrypted = pem.windows(9).any(|window| window == b"ENCRYPTED");
        let hint = if is_encrypted { "; it is encrypted: write it without a password" } else { "" };
        TlsError::Invalid(format!("the file of the client's key has no private key ({error}){hint}"))
    })
}

fn invalid(error: rustls::Error) -> io::Error {
    use rustls::Error::{InvalidCertificate, InvalidMessage as Message};
    let reason = match &error {
        Message(InvalidMessage::InvalidContentType) => "the server does not speak TLS".to_owned(),
        InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the server's certificate is signed by none of the trusted certificates".to_owned()
        }
        error => format!("TLS failed: {error}"),
    };
    io::Error::new(ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use proptest::prelude::*;
    use rustls::{ServerConfig, ServerConnection};

    use super::*;

    fn fixture(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tls").join(name)
    }

    /// Both sides of a session after its handshake.
    fn pair() -> (Session, ServerConnection) {
        let trust = fs::read(fixture("ca.pem")).unwrap();
        let tls = ClientTls::new(&TlsOptions { trust: &trust, identity: None, server_name: None }).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                CertificateDer::pem_file_iter(fixture("first.pem")).unwrap().map(Result::unwrap).collect(),
                PrivateKeyDer::from_pem_file(fixture("first.key")).unwrap(),
            )
            .unwrap();
        let mut server = ServerConnection::new(Arc::new(config)).unwrap();
        let mut client = ClientConnection::new(tls.config, name("localhost").unwrap()).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut &bytes[..]).unwrap();
            server.process_new_packets().unwrap();
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut &bytes[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        (Session(Mutex::new(client)), server)
    }

    /// Decrypts what comes in pieces of these sizes into buffers of this size, to the end or the first error.
    fn decrypted(
        session: &Session,
        records: &[u8],
        pieces: &[usize],
        room: usize,
    ) -> (Vec<u8>, io::Result<()>) {
        let (mut plain, mut out, mut rest) = (Vec::new(), vec![0; room], records);
        let mut ciphertext = Ciphertext::default();
        let mut sizes = pieces.iter().cycle();
        loop {
            match session.decrypt(&mut ciphertext, &mut out) {
                Ok(0) => return (plain, Ok(())),
                Ok(read) => plain.extend_from_slice(&out[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let size = *sizes.next().unwrap();
                    ciphertext.fill(|bytes| rest.read(&mut bytes[..size])).unwrap();
                }
                Err(error) => return (plain, Err(error)),
            }
        }
    }

    fn records_of(server: &mut ServerConnection, bodies: &[Vec<u8>], ends: bool) -> Vec<u8> {
        let mut records = Vec::new();
        server.set_buffer_limit(None);
        for body in bodies {
            server.writer().write_all(body).unwrap();
        }
        if ends {
            server.send_close_notify();
        }
        while server.wants_write() {
            server.write_tls(&mut records).unwrap();
        }
        records
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

        #[test]
        fn what_was_sent_comes_whole_however_it_is_cut(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20_000), 0..4),
            pieces in prop::collection::vec(prop_oneof![1_usize..40, 1_000_usize..CIPHERTEXT], 1..5),
            room in prop_oneof![1_usize..300, 60_000_usize..140_000],
            ends: bool,
        ) {
            let (session, mut server) = pair();
            let records = records_of(&mut server, &bodies, ends);
            let (plain, end) = decrypted(&session, &records, &pieces, room);
            prop_assert_eq!(plain, bodies.concat());
            prop_assert_eq!(end.map_err(|error| error.kind()), if ends { Ok(()) } else { Err(ErrorKind::ConnectionAborted) });
        }

        #[test]
        fn a_changed_byte_ends_the_session_and_brings_nothing_else(
            body in prop::collection::vec(any::<u8>(), 1..40_000),
            at: prop::sample::Index,
            piece in 1_usize..CIPHERTEXT,
        ) {
            let (session, mut server) = pair();
            let mut records = records_of(&mut server, std::slice::from_ref(&body), true);
            *at.get_mut(&mut records) ^= 0x40;
            let (plain, end) = decrypted(&session, &records, &[piece], 1_000);
            prop_assert!(end.is_err());
            prop_assert!(body.starts_with(&plain));
        }
    }

    #[test]
    fn the_host_of_an_address_is_its_name() {
        for (address, wanted) in
            [("a.example:1", "a.example"), ("[::1]:8081", "::1"), ("127.0.0.1:1", "127.0.0.1")]
        {
            assert_eq!(host(address), wanted);
            assert!(name(host(address)).is_ok());
        }
        assert!(name("two words").unwrap_err().contains("two words"));
    }
}
