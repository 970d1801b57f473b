//! Reads certificates and keys from PEM files.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tokio_rustls::rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use super::ServerTls;
use crate::TransportError;

/// Most bytes of a PEM file; every chain is smaller.
const MAX_FILE: u64 = 1 << 20;

/// The files of a server at one time.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct FileContents {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
    pub(super) trust: Option<Vec<u8>>,
}

impl FileContents {
    pub(super) fn read(options: &ServerTls) -> Result<Self, TransportError> {
        Ok(Self {
            certificate: read(&options.certificate)?,
            key: read(&options.key)?,
            trust: options.trust.as_deref().map(read).transpose()?,
        })
    }
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, TransportError> {
    let small = fs::metadata(path).map(|metadata| metadata.len() <= MAX_FILE);
    match small.and_then(|small| if small { fs::read(path).map(Some) } else { Ok(None) }) {
        Ok(Some(contents)) => Ok(contents),
        Ok(None) => Err(tls_error(path, format!("a PEM file may have up to {MAX_FILE} bytes"))),
        Err(error) => Err(tls_error(path, error.to_string())),
    }
}

pub(super) fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TransportError> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match chain {
        Ok(chain) if chain.is_empty() => Err(tls_error(path, "it contains no certificate".to_owned())),
        chain => chain.map_err(|error| tls_error(path, error.to_string())),
    }
}

pub(super) fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TransportError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| {
        let encrypted = pem.windows(9).any(|window| window == b"ENCRYPTED");
        let hint = if encrypted { "; the key is encrypted: write it without a password" } else { "" };
        tls_error(path, format!("it contains no private key ({error}){hint}"))
    })
}

pub(super) fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, TransportError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        roots.add(certificate).map_err(|error| tls_error(path, error.to_string()))?;
    }
    Ok(roots)
}

fn tls_error(path: &Path, reason: String) -> TransportError {
    TransportError::Tls { path: PathBuf::from(path), reason }
}
