//! TLS of both listeners: files, modes, and reloading of changed files.
//!
//! One port takes plaintext and TLS as RocketMQ's `tls.server.mode` says: a first byte of 0x16 begins a handshake, and
//! no frame within the limits begins with it. Certificates are PEM files. `remoting::server` and `grpc` serve the
//! connection afterwards.

mod files;
pub(crate) mod opening;
mod own;
pub(crate) mod subject;
mod verify;

use std::{
    future::poll_fn,
    io,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::{
    net::TcpStream,
    task::spawn_blocking,
    time::{error::Elapsed, timeout},
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    client::TlsStream as ClientStream,
    rustls::{
        ClientConfig, ConfigBuilder, Error as RustlsError, RootCertStore, ServerConfig, WantsVerifier,
        pki_types::ServerName, server::WebPkiClientVerifier,
    },
    server::TlsStream as ServerStream,
};
use tracing::{debug, info, warn};

use crate::{TransportError, connections::log_limiter::LogLimiter};
use files::{FileContents, certificates, private_key, roots};
pub use subject::CertificateSubject;

/// A handshake takes some round trips; a client that needs longer is malicious.
pub(crate) const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(15);

/// Which connections a server accepts: RocketMQ's `tls.server.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// Plaintext only.
    #[default]
    Disabled,
    /// Plaintext and TLS.
    Permissive,
    /// TLS only.
    Enforcing,
}

/// Whether clients show a certificate: RocketMQ's `tls.server.need.client.auth`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientAuth {
    /// Clients are not asked.
    #[default]
    None,
    /// A client may show a certificate, which must be valid.
    Optional,
    /// A client must show a valid certificate.
    Require,
}

/// A text that names no choice of an option.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {given:?}; use {choices}")]
pub struct UnknownChoice {
    what: &'static str,
    given: String,
    choices: &'static str,
}

impl FromStr for TlsMode {
    type Err = UnknownChoice;

    fn from_str(text: &str) -> Result<Self, UnknownChoice> {
        match text {
            "disabled" => Ok(Self::Disabled),
            "permissive" => Ok(Self::Permissive),
            "enforcing" => Ok(Self::Enforcing),
            _ => Err(UnknownChoice {
                what: "TLS mode",
                given: text.to_owned(),
                choices: "disabled, permissive or enforcing",
            }),
        }
    }
}

impl FromStr for ClientAuth {
    type Err = UnknownChoice;

    fn from_str(text: &str) -> Result<Self, UnknownChoice> {
        match text {
            "none" => Ok(Self::None),
            "optional" => Ok(Self::Optional),
            "require" => Ok(Self::Require),
            _ => Err(UnknownChoice {
                what: "kind of client authentication",
                given: text.to_owned(),
                choices: "none, optional or require",
            }),
        }
    }
}

/// The certificate that a server shows, and what it asks of clients.
#[derive(Debug, Clone)]
pub struct ServerTls {
    /// Which connections it accepts.
    pub mode: TlsMode,
    /// PEM file of the certificate, followed by those that signed it.
    pub certificate: PathBuf,
    /// PEM file of its private key, not encrypted.
    pub key: PathBuf,
    /// Whether clients show a certificate.
    pub client_auth: ClientAuth,
    /// PEM file of the certificates that sign clients' certificates; required unless clients show none.
    pub trust: Option<PathBuf>,
}

/// The certificate that a gRPC listener shows.
#[derive(Debug, Clone)]
pub enum GrpcTls {
    /// The certificate in these files.
    Files(ServerTls),
    /// A self-signed certificate; none if TLS is disabled.
    Own(TlsMode),
}

/// How a client verifies servers, and the certificate it shows.
#[derive(Debug, Clone, Default)]
pub struct ClientTls {
    /// PEM file of the certificates that sign servers' certificates. `None` accepts any certificate, as RocketMQ's
    /// `tls.client.authServer=false` does, which protects against eavesdroppers only.
    pub trust: Option<PathBuf>,
    /// Whether the server's certificate must name the host that was called. RocketMQ does not check it.
    pub check_name: bool,
    /// PEM files of a certificate and its key, for servers that ask for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The certificate that a server shows; it can be replaced while the server runs.
#[derive(Default)]
pub(crate) struct Tls {
    current: ArcSwapOption<(TlsMode, TlsAcceptor)>,
    loaded: Mutex<Option<Loaded>>,
    /// The ALPN protocols of which the handshake negotiates one, if the client offers any.
    protocols: &'static [&'static [u8]],
}

struct Loaded {
    options: ServerTls,
    contents: FileContents,
    /// Why changed files were rejected, so that each reason is logged once.
    last_error: Option<String>,
}

/// An accepted connection, ready for frames.
pub(crate) enum AcceptedConnection {
    Plain(TcpStream),
    Tls(Box<ServerStream<TcpStream>>),
}

impl AcceptedConnection {
    /// The subject of the client's certificate.
    pub(crate) fn certificate(&self) -> CertificateSubject {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => subject::of_connection(stream.get_ref().1),
        }
    }
}

impl Tls {
    /// For connections that speak one of `protocols`, ALPN names; a client that offers only others is refused.
    pub(crate) fn speaking(protocols: &'static [&'static [u8]]) -> Self {
        Self { protocols, ..Self::default() }
    }

    /// Generates a certificate and shows it to connections from now on.
    ///
    /// # Errors
    /// `Tls` if none can be generated.
    pub(crate) fn set_own(&self, mode: TlsMode) -> Result<(), TransportError> {
        let mut loaded = self.loaded.lock();
        if mode == TlsMode::Disabled {
            self.current.store(None);
            *loaded = None;
            return Ok(());
        }
        let (certificate, key) = own::certificate()?;
        let tls_error =
            |reason: String| TransportError::Tls { path: PathBuf::from("self-signed certificate"), reason };
        let config = builder(Path::new("self-signed certificate"))?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .map_err(|error| tls_error(error.to_string()))?;
        *loaded = None;
        self.store(mode, config);
        Ok(())
    }

    /// The TLS of new connections; `None` for plaintext.
    pub(crate) fn current(&self) -> Option<Arc<(TlsMode, TlsAcceptor)>> {
        self.current.load_full()
    }

    /// Reads the files and uses them for connections from now on.
    ///
    /// # Errors
    /// `Tls` naming the file.
    pub(crate) fn set(&self, options: ServerTls) -> Result<(), TransportError> {
        let mut loaded = self.loaded.lock();
        if options.mode == TlsMode::Disabled {
            self.current.store(None);
            *loaded = None;
            return Ok(());
        }
        let contents = FileContents::read(&options)?;
        self.show(&options, &contents)?;
        *loaded = Some(Loaded { options, contents, last_error: None });
        Ok(())
    }

    /// Uses changed files once they fit together: a key may be replaced after its certificate, and a certificate may be
    /// renewed with the same key. Files that do not fit change nothing. Returns whether anything changed.
    pub(crate) fn reload(&self) -> bool {
        let mut loaded = self.loaded.lock();
        let Some(Loaded { options, contents, last_error }) = loaded.as_mut() else { return false };
        let outcome = FileContents::read(options).and_then(|found| {
            let has_changed = found != *contents;
            if has_changed {
                self.show(options, &found)?;
                *contents = found;
            }
            Ok(has_changed)
        });
        match outcome {
            Ok(has_changed) => {
                *last_error = None;
                if has_changed {
                    info!(certificate = %options.certificate.display(), "tls certificate changed");
                }
                has_changed
            }
            Err(error) => {
                let why = Some(error.to_string());
                if *last_error != why {
                    warn!(%error, "new tls certificate rejected, the old one stays in use");
                    *last_error = why;
                }
                false
            }
        }
    }

    fn show(&self, options: &ServerTls, contents: &FileContents) -> Result<(), TransportError> {
        self.store(options.mode, server_config(options, contents)?);
        Ok(())
    }

    fn store(&self, mode: TlsMode, mut config: ServerConfig) {
        config.alpn_protocols.extend(self.protocols.iter().map(|protocol| protocol.to_vec()));
        self.current.store(Some(Arc::new((mode, TlsAcceptor::from(Arc::new(config))))));
    }

    /// Does the handshake of a TLS connection, within `handshake` once it has begun. `None` if the connection is
    /// refused, or silent for `idle`.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        idle: Duration,
        handshake: Duration,
    ) -> Option<AcceptedConnection> {
        let Some(current) = self.current.load_full() else { return Some(AcceptedConnection::Plain(stream)) };
        let (mode, acceptor) = &*current;
        let peer = stream.peer_addr().ok();
        let first =
            timeout(idle, poll_fn(|context| opening::poll_first(&stream, context))).await.ok()?.ok()?;
        match first.is_tls(*mode) {
            Ok(true) => {}
            Ok(false) => return Some(AcceptedConnection::Plain(stream)),
            Err(refused) => {
                debug!(?peer, %refused, "connection refused");
                return None;
            }
        }
        match within(handshake, acceptor.accept(stream)).await {
            Ok(stream) => Some(AcceptedConnection::Tls(Box::new(stream))),
            Err(error) => {
                debug!(?peer, %error, "tls handshake failed");
                None
            }
        }
    }
}

fn builder(certificate: &Path) -> Result<ConfigBuilder<ServerConfig, WantsVerifier>, TransportError> {
    ServerConfig::builder_with_provider(verify::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| TransportError::Tls { path: certificate.to_owned(), reason: error.to_string() })
}

fn server_config(options: &ServerTls, contents: &FileContents) -> Result<ServerConfig, TransportError> {
    let tls_error = |path: &Path, reason: String| TransportError::Tls { path: path.to_owned(), reason };
    let chain = certificates(&options.certificate, &contents.certificate)?;
    let key = private_key(&options.key, &contents.key)?;
    let builder = builder(&options.certificate)?;
    let builder = match (options.client_auth, &options.trust, &contents.trust) {
        (ClientAuth::None, ..) => builder.with_no_client_auth(),
        (auth, Some(path), Some(pem)) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path, pem)?), verify::provider());
            let verifier =
                if auth == ClientAuth::Optional { verifier.allow_unauthenticated() } else { verifier };
            let verifier = verifier.build().map_err(|error| tls_error(path, error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => {
            let reason = "client certificates cannot be verified without the certificates that sign them; \
                          set tls.server.trustCertPath";
            return Err(tls_error(Path::new("tls.server.need.client.auth"), reason.to_owned()));
        }
    };
    builder.with_single_cert(chain, key).map_err(|error| {
        let reason = match error {
            RustlsError::InconsistentKeys(_) => {
                format!("it is not the key of the certificate {}", options.certificate.display())
            }
            error => error.to_string(),
        };
        tls_error(&options.key, reason)
    })
}

/// Opens TLS on outgoing connections.
pub(crate) struct Connector {
    options: ClientTls,
    current: Mutex<TlsConnector>,
    rejected: LogLimiter,
}

impl Connector {
    /// Reads the files.
    ///
    /// # Errors
    /// `Tls` naming the file.
    pub(crate) fn new(options: &ClientTls) -> Result<Self, TransportError> {
        let current = Mutex::new(connector(options)?);
        Ok(Self { options: options.clone(), current, rejected: LogLimiter::new() })
    }

    /// What to connect with: the files as they are now. Where they cannot be used, as while they are replaced, what there was
    /// before.
    async fn load(&self) -> TlsConnector {
        let options = self.options.clone();
        match spawn_blocking(move || connector(&options)).await {
            Ok(Ok(found)) => self.current.lock().clone_from(&found),
            Ok(Err(error)) => self.rejected.log(|suppressed| {
                warn!(%error, suppressed, "tls files of outgoing connections rejected, the old ones stay in use");
            }),
            // The runtime ends.
            Err(_) => {}
        }
        self.current.lock().clone()
    }

    /// Does the handshake with the server at `address` (`host:port`).
    ///
    /// # Errors
    /// The socket's, and `InvalidData` for a server without a valid certificate.
    pub(crate) async fn connect(
        &self,
        address: &str,
        stream: TcpStream,
    ) -> io::Result<ClientStream<TcpStream>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
        within(HANDSHAKE_PATIENCE, self.load().await.connect(name, stream)).await
    }
}

fn connector(options: &ClientTls) -> Result<TlsConnector, TransportError> {
    let tls_error = |path: &Path, reason: String| TransportError::Tls { path: path.to_owned(), reason };
    let builder = ClientConfig::builder_with_provider(verify::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error(Path::new("tls"), error.to_string()))?;
    let roots = match &options.trust {
        Some(path) => Some(roots(path, &files::read(path)?)?),
        None => None,
    };
    let verifier = verify::servers(roots.unwrap_or_else(RootCertStore::empty), options)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let config = match &options.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate, &files::read(certificate)?)?;
            let private = private_key(key, &files::read(key)?)?;
            builder
                .with_client_auth_cert(chain, private)
                .map_err(|error| tls_error(key, error.to_string()))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn within<T>(patience: Duration, handshake: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(patience, handshake).await.unwrap_or_else(|Elapsed { .. }| Err(io::ErrorKind::TimedOut.into()))
}
