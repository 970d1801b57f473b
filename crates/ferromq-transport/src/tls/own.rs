//! Generates a certificate for listeners without one: some clients insist on TLS and check no name.

use std::path::PathBuf;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::TransportError;

/// Generates a certificate for this host and its key, which is stored nowhere.
///
/// # Errors
/// `Tls` if the system provides no random numbers.
pub(super) fn certificate() -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), TransportError> {
    let failed = |error: rcgen::Error| TransportError::Tls {
        path: PathBuf::from("self-signed certificate"),
        reason: error.to_string(),
    };
    let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "ferromq, self-signed");
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    Ok((certificate.der().clone(), PrivateKeyDer::from(key)))
}
