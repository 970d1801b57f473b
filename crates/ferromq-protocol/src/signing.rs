//! Signatures of RocketMQ's access control: HMAC-SHA1 with the secret key of a user.
//!
//! Remoting signs the values of a request's extension fields, in the order of their names, and then its body. gRPC signs
//! the value of the metadata `x-mq-date-time` alone. The formats are those of RocketMQ's `AclUtils` and
//! `DefaultAuthenticationContextBuilder`.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, Mac};
use sha1::Sha1;

use crate::remoting::RemotingCommand;

/// Extension field of a remoting request: the name of the user.
pub const ACCESS_KEY: &str = "AccessKey";
/// Extension field of a remoting request: its signature, in base64.
pub const SIGNATURE: &str = "Signature";
/// Metadata of a gRPC call, and extension field of a framed call: the name of the user and a signature.
pub const AUTHORIZATION: &str = "authorization";
/// Metadata of a gRPC call, and extension field of a framed call: what its signature covers.
pub const DATE_TIME: &str = "x-mq-date-time";

/// Left out of the signature by clients up to [`LAST_WITHOUT_QUERY_FLAG`].
const UNIQUE_KEY_QUERY: &str = "_UNIQUE_KEY_QUERY";
/// `MQVersion` ordinal of 4.9.3.
const LAST_WITHOUT_QUERY_FLAG: i32 = 399;
const SIGNATURE_BYTES: usize = 20;

/// Makes and checks the signatures of one secret key. Its `Debug` does not show the key.
#[derive(Clone)]
pub struct Signer(Hmac<Sha1>);

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").finish_non_exhaustive()
    }
}

/// The credentials in the metadata `authorization`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Authorization<'a> {
    /// The name of the user.
    pub access_key: &'a str,
    signature: [u8; SIGNATURE_BYTES],
}

impl<'a> Authorization<'a> {
    /// Parses `ALGORITHM Credential=KEY/…, SignedHeaders=…, Signature=HEX`. RocketMQ ignores the algorithm and the signed
    /// headers.
    ///
    /// # Errors
    /// The reason, for people.
    pub fn parse(header: &'a str) -> Result<Self, &'static str> {
        let (_, parts) =
            header.split_once(' ').ok_or("it has no space between the algorithm and the credentials")?;
        let (mut access_key, mut signature) = (None, None);
        for part in parts.split(',') {
            let (name, value) = part.trim().split_once('=').ok_or("one of its parts has no equals sign")?;
            match name {
                "Credential" => access_key = value.split('/').next(),
                "Signature" => signature = Some(from_hex(value).ok_or("its Signature is not 40 hex digits")?),
                _ => {}
            }
        }
        match (access_key, signature) {
            (Some(access_key), Some(signature)) if !access_key.is_empty() => {
                Ok(Self { access_key, signature })
            }
            (Some(_), None) => Err("it has no Signature"),
            _ => Err("it has no Credential"),
        }
    }
}

impl Signer {
    /// Prepares the key, so that each signature hashes no more than what it covers.
    #[must_use]
    pub fn new(secret_key: &str) -> Self {
        // HMAC takes keys of any length.
        Self(Hmac::new_from_slice(secret_key.as_bytes()).unwrap_or_else(|_| Hmac::new(&Default::default())))
    }

    /// Adds `AccessKey` and `Signature` to a remoting request, in place of its own.
    pub fn sign(&self, access_key: &str, command: &mut RemotingCommand) {
        let is_kept = |(name, _): &(&str, &str)| ![ACCESS_KEY, SIGNATURE].contains(name);
        if !command.fields.iter().all(|field| is_kept(&field)) {
            command.fields = command.fields.iter().filter(is_kept).collect();
        }
        command.fields.push(ACCESS_KEY, access_key);
        let signature = self.of_command(command).finalize().into_bytes();
        command.fields.push(SIGNATURE, &STANDARD.encode(signature));
    }

    /// The `authorization` of a call with this `x-mq-date-time`.
    #[must_use]
    pub fn authorization(&self, access_key: &str, date_time: &str) -> String {
        let mut header =
            format!("MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders={DATE_TIME}, Signature=");
        for byte in self.0.clone().chain_update(date_time.as_bytes()).finalize().into_bytes() {
            for digit in [byte >> 4, byte & 15] {
                header.extend(char::from_digit(digit.into(), 16).map(|digit| digit.to_ascii_uppercase()));
            }
        }
        header
    }

    /// Returns whether a remoting request has the signature of this key. The comparison takes the same time wherever the
    /// signatures differ.
    #[must_use]
    pub fn verifies(&self, command: &RemotingCommand) -> bool {
        let signature = command.field(SIGNATURE).and_then(|text| STANDARD.decode(text).ok());
        signature.is_some_and(|signature| self.of_command(command).verify_slice(&signature).is_ok())
    }

    /// Returns whether a call has the signature of this key; as [`Self::verifies`].
    #[must_use]
    pub fn verifies_call(&self, authorization: &Authorization<'_>, date_time: &str) -> bool {
        let signed = self.0.clone().chain_update(date_time.as_bytes());
        signed.verify_slice(&authorization.signature).is_ok()
    }

    fn of_command(&self, command: &RemotingCommand) -> Hmac<Sha1> {
        let mut fields = Vec::with_capacity(command.fields.len());
        fields.extend(command.fields.iter().filter(|(name, _)| {
            *name != SIGNATURE && !(*name == UNIQUE_KEY_QUERY && command.version <= LAST_WITHOUT_QUERY_FLAG)
        }));
        // Stable: the last of equal names counts, as everywhere.
        fields.sort_by_key(|(name, _)| *name);
        let mut mac = self.0.clone();
        for (index, (name, value)) in fields.iter().enumerate() {
            if fields.get(index + 1).is_none_or(|(next, _)| next != name) {
                mac.update(value.as_bytes());
            }
        }
        mac.chain_update(&command.body)
    }
}

fn from_hex(text: &str) -> Option<[u8; SIGNATURE_BYTES]> {
    let mut bytes = [0; SIGNATURE_BYTES];
    if text.len() != 2 * SIGNATURE_BYTES {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        for digit in pair {
            let digit = u8::try_from(char::from(*digit).to_digit(16)?).ok()?;
            *byte = *byte << 4 | digit;
        }
    }
    Some(bytes)
}
