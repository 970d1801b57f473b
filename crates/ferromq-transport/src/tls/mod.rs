//! TLS of both listeners: which files, which mode, and when changed files are taken.
//!
//! One port takes plaintext and TLS as RocketMQ's `tls.server.mode` says: a first byte of 0x16 begins a
//! handshake, and no frame within the limits begins with it. Certificates are PEM files. What happens on a
//! connection afterwards belongs to `remoting::server` and `grpc`.

mod files;
pub(crate) mod opening;
mod own;
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
    time::{error::Elapsed, timeout},
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    client::TlsStream as ClientStream,
    rustls::{
        ClientConfig, ConfigBuilder, RootCertStore, ServerConfig, WantsVerifier, pki_types::ServerName,
        server::WebPkiClientVerifier,
    },
    server::TlsStream as ServerStream,
};
use tracing::{debug, info, warn};

use crate::TransportError;
use files::{Contents, certificates, private_key, roots};

/// A handshake takes some round trips; a client that needs longer is malicious.
pub(crate) const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(15);

/// Which connections a server takes, RocketMQ's `tls.server.mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// Plaintext only.
    #[default]
    Disabled,
    /// Both.
    Permissive,
    /// TLS only.
    Enforcing,
}

/// Whether clients show a certificate, RocketMQ's `tls.server.need.client.auth`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientAuth {
    /// They are not asked.
    #[default]
    None,
    /// Who shows one must show a good one.
    Optional,
    /// Without a good one there is no connection.
    Require,
}

/// A word that names no mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no {what}; use {choices}")]
pub struct UnknownWord {
    what: &'static str,
    given: String,
    choices: &'static str,
}

impl FromStr for TlsMode {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        match text {
            "disabled" => Ok(Self::Disabled),
            "permissive" => Ok(Self::Permissive),
            "enforcing" => Ok(Self::Enforcing),
            _ => Err(UnknownWord {
                what: "TLS mode",
                given: text.to_owned(),
                choices: "disabled, permissive or enforcing",
            }),
        }
    }
}

impl FromStr for ClientAuth {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        match text {
            "none" => Ok(Self::None),
            "optional" => Ok(Self::Optional),
            "require" => Ok(Self::Require),
            _ => Err(UnknownWord {
                what: "kind of client authentication",
                given: text.to_owned(),
                choices: "none, optional or require",
            }),
        }
    }
}

/// What a server shows, and asks of clients.
#[derive(Debug, Clone)]
pub struct ServerTls {
    /// Which connections it takes.
    pub mode: TlsMode,
    /// PEM file of the certificate, followed by those that signed it.
    pub certificate: PathBuf,
    /// PEM file of its private key, not encrypted.
    pub key: PathBuf,
    /// Whether clients show a certificate.
    pub client_auth: ClientAuth,
    /// PEM file of the certificates that sign clients'; needed unless clients show none.
    pub trust: Option<PathBuf>,
}

/// What a gRPC listener shows.
#[derive(Debug, Clone)]
pub enum GrpcTls {
    /// The certificate in these files.
    Files(ServerTls),
    /// A self-made certificate; none if TLS is disabled.
    Own(TlsMode),
}

/// What a client asks of servers, and shows.
#[derive(Debug, Clone, Default)]
pub struct ClientTls {
    /// PEM file of the certificates that sign servers'. None: any certificate is taken, RocketMQ's
    /// `tls.client.authServer=false`, which protects against listeners only.
    pub trust: Option<PathBuf>,
    /// Whether the server's certificate must name the host that was called. RocketMQ does not look.
    pub check_name: bool,
    /// PEM files of a certificate and its key, for servers that ask.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// The certificate a server shows, replaced while it runs.
#[derive(Default)]
pub(crate) struct Tls {
    current: ArcSwapOption<(TlsMode, TlsAcceptor)>,
    loaded: Mutex<Option<Loaded>>,
    /// The protocol behind the handshake; `None`: it is not negotiated.
    protocol: Option<&'static [u8]>,
}

struct Loaded {
    options: ServerTls,
    contents: Contents,
    /// Why changed files were not taken, so that it is said once.
    complaint: Option<String>,
}

/// An accepted connection, ready for frames.
pub(crate) enum Accepted {
    Plain(TcpStream),
    Tls(Box<ServerStream<TcpStream>>),
}

impl Tls {
    /// For connections that speak `protocol`, named as ALPN does; a client that asks for others only is refused.
    pub(crate) fn speaking(protocol: &'static [u8]) -> Self {
        Self { protocol: Some(protocol), ..Self::default() }
    }

    /// Makes a certificate and shows it to connections from now on.
    ///
    /// # Errors
    /// `Tls` where none can be made.
    pub(crate) fn set_own(&self, mode: TlsMode) -> Result<(), TransportError> {
        let mut loaded = self.loaded.lock();
        if mode == TlsMode::Disabled {
            self.current.store(None);
            *loaded = None;
            return Ok(());
        }
        let (certificate, key) = own::certificate()?;
        let wrong = |reason: String| TransportError::Tls { path: PathBuf::from("own certificate"), reason };
        let config = builder(Path::new("own certificate"))?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .map_err(|error| wrong(error.to_string()))?;
        *loaded = None;
        self.store(mode, config);
        Ok(())
    }

    /// How connections that come now begin; `None`: as plaintext.
    pub(crate) fn current(&self) -> Option<Arc<(TlsMode, TlsAcceptor)>> {
        self.current.load_full()
    }

    /// Reads the files and shows them to connections from now on.
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
        let contents = Contents::read(&options)?;
        self.show(&options, &contents)?;
        *loaded = Some(Loaded { options, contents, complaint: None });
        Ok(())
    }

    /// Shows changed files: a key and its certificate once both have changed, trusted certificates at once.
    /// Files that are not good leave everything as it was. Returns whether anything changed.
    pub(crate) fn reload(&self) -> bool {
        let mut loaded = self.loaded.lock();
        let Some(Loaded { options, contents, complaint }) = loaded.as_mut() else { return false };
        let outcome = Contents::read(options).and_then(|found| {
            let has_changed = found.is_complete_change_of(contents);
            if has_changed {
                self.show(options, &found)?;
                *contents = found;
            }
            Ok(has_changed)
        });
        match outcome {
            Ok(has_changed) => {
                *complaint = None;
                if has_changed {
                    info!(certificate = %options.certificate.display(), "tls certificate changed");
                }
                has_changed
            }
            Err(error) => {
                let why = Some(error.to_string());
                if *complaint != why {
                    warn!(%error, "tls certificate not changed, the old one stays");
                    *complaint = why;
                }
                false
            }
        }
    }

    fn show(&self, options: &ServerTls, contents: &Contents) -> Result<(), TransportError> {
        self.store(options.mode, server_config(options, contents)?);
        Ok(())
    }

    fn store(&self, mode: TlsMode, mut config: ServerConfig) {
        config.alpn_protocols.extend(self.protocol.map(<[u8]>::to_vec));
        self.current.store(Some(Arc::new((mode, TlsAcceptor::from(Arc::new(config))))));
    }

    /// Does the handshake where there is one, in the time it may take once it has begun; `None` where the connection is not
    /// taken, or is silent for as long as one may be idle.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        idle: Duration,
        handshake: Duration,
    ) -> Option<Accepted> {
        let Some(current) = self.current.load_full() else { return Some(Accepted::Plain(stream)) };
        let (mode, acceptor) = &*current;
        let peer = stream.peer_addr().ok();
        let first =
            timeout(idle, poll_fn(|context| opening::poll_first(&stream, context))).await.ok()?.ok()?;
        match first.is_tls(*mode) {
            Ok(true) => {}
            Ok(false) => return Some(Accepted::Plain(stream)),
            Err(refused) => {
                debug!(?peer, %refused, "connection refused");
                return None;
            }
        }
        match within(handshake, acceptor.accept(stream)).await {
            Ok(stream) => Some(Accepted::Tls(Box::new(stream))),
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

fn server_config(options: &ServerTls, contents: &Contents) -> Result<ServerConfig, TransportError> {
    let wrong = |path: &Path, reason: String| TransportError::Tls { path: path.to_owned(), reason };
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
            let verifier = verifier.build().map_err(|error| wrong(path, error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => {
            let reason = "clients show certificates, but there is no file of those that sign them; \
                          set tls.server.trustCertPath";
            return Err(wrong(Path::new("tls.server.need.client.auth"), reason.to_owned()));
        }
    };
    // It fails where the key does not belong to the certificate.
    builder.with_single_cert(chain, key).map_err(|error| wrong(&options.key, error.to_string()))
}

/// Makes the outgoing half of a client's connections.
#[derive(Clone)]
pub(crate) struct Connector(TlsConnector);

impl Connector {
    /// Reads the files.
    ///
    /// # Errors
    /// `Tls` naming the file.
    pub(crate) fn new(options: &ClientTls) -> Result<Self, TransportError> {
        let wrong = |path: &Path, reason: String| TransportError::Tls { path: path.to_owned(), reason };
        let builder = ClientConfig::builder_with_provider(verify::provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(Path::new("tls"), error.to_string()))?;
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
                    .map_err(|error| wrong(key, error.to_string()))?
            }
        };
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Does the handshake with the server at `address` (`host:port`).
    ///
    /// # Errors
    /// The socket's, and `InvalidData` for a server that shows no good certificate.
    pub(crate) async fn connect(
        &self,
        address: &str,
        stream: TcpStream,
    ) -> io::Result<ClientStream<TcpStream>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
        within(HANDSHAKE_PATIENCE, self.0.connect(name, stream)).await
    }
}

async fn within<T>(patience: Duration, handshake: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(patience, handshake).await.unwrap_or_else(|Elapsed { .. }| Err(io::ErrorKind::TimedOut.into()))
}
