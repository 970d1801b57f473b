//! gRPC's reflection service, v1 and v1alpha: lists the services and returns the files that describe them.
//!
//! `proto/generate.py` compiled the files; this module finds them by name or by symbol. No I/O.

use std::{
    collections::{HashMap, HashSet},
    sync::LazyLock,
};

use bytes::Bytes;
use tonic::Status;

use crate::protobuf::{
    Fields, Malformed, bytes_field_len, put_bytes_field, put_len_prefix, put_varint_field,
};

/// The descriptors of all files, each file after its imports.
const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");
const NOT_FOUND: u64 = 5;
const UNIMPLEMENTED: u64 = 12;

static FILES: LazyLock<Files> = LazyLock::new(|| {
    let mut files = Files::default();
    // The bytes are part of the program, and a test parses them.
    let _ = files.add_set(DESCRIPTORS);
    files
});

/// Answers an encoded `ServerReflectionRequest`. The answer repeats the request; an unknown name is an error
/// inside the answer.
///
/// # Errors
/// `INVALID_ARGUMENT` for a malformed request.
pub(in crate::grpc) fn answer(request: &[u8]) -> Result<Bytes, Status> {
    let malformed =
        |Malformed(reason): Malformed| Status::invalid_argument(format!("malformed request: {reason}"));
    let (host, query) = Query::parse(request).map_err(malformed)?;
    let mut out = Vec::with_capacity(request.len() + 256);
    put_bytes_field(&mut out, 1, host.as_bytes());
    put_bytes_field(&mut out, 2, request);
    match query {
        Query::File(name) => put_file(&mut out, FILES.by_name.get(name).copied(), name),
        Query::Symbol(name) => put_file(&mut out, FILES.by_symbol.get(name).copied(), name),
        Query::Services => {
            let mut services = Vec::new();
            for name in &FILES.services {
                put_len_prefix(&mut services, 1, bytes_field_len(1, name.len()));
                put_bytes_field(&mut services, 1, name.as_bytes());
            }
            put_bytes_field(&mut out, 6, &services);
        }
        // These files are proto3, which has no extensions.
        Query::ExtensionsOf(name) if FILES.by_symbol.contains_key(name) => {
            let mut extensions = Vec::new();
            put_bytes_field(&mut extensions, 1, name.as_bytes());
            put_bytes_field(&mut out, 5, &extensions);
        }
        Query::ExtensionsOf(name) => {
            put_error(&mut out, NOT_FOUND, &format!("no type {name} is served here"))
        }
        Query::Extension => put_error(&mut out, NOT_FOUND, "no extension is served here"),
        Query::Nothing => put_error(&mut out, UNIMPLEMENTED, "the request has no query that is known here"),
    }
    Ok(out.into())
}

fn put_file(out: &mut Vec<u8>, file: Option<usize>, name: &str) {
    let Some(file) = file else {
        return put_error(out, NOT_FOUND, &format!("no file or symbol {name} is known here"));
    };
    let mut files = Vec::new();
    for bytes in FILES.with_imports(file) {
        put_bytes_field(&mut files, 1, bytes);
    }
    put_bytes_field(out, 4, &files);
}

fn put_error(out: &mut Vec<u8>, code: u64, message: &str) {
    let mut error = Vec::new();
    put_varint_field(&mut error, 1, code);
    put_bytes_field(&mut error, 2, message.as_bytes());
    put_bytes_field(out, 7, &error);
}

/// The query of a request; the last one, if it has several.
enum Query<'a> {
    File(&'a str),
    Symbol(&'a str),
    Extension,
    ExtensionsOf(&'a str),
    Services,
    Nothing,
}

impl<'a> Query<'a> {
    fn parse(request: &'a [u8]) -> Result<(&'a str, Self), Malformed> {
        let (mut host, mut query) = ("", Self::Nothing);
        for field in Fields::new(request) {
            match field? {
                (1, value) => host = value.text()?,
                (3, value) => query = Self::File(value.text()?),
                (4, value) => query = Self::Symbol(value.text()?),
                (5, _) => query = Self::Extension,
                (6, value) => query = Self::ExtensionsOf(value.text()?),
                (7, _) => query = Self::Services,
                _ => {}
            }
        }
        Ok((host, query))
    }
}

/// Files by name and by symbol.
#[derive(Default)]
struct Files {
    files: Vec<File>,
    by_name: HashMap<&'static str, usize>,
    by_symbol: HashMap<String, usize>,
    services: Vec<String>,
}

struct File {
    bytes: &'static [u8],
    imports: Vec<&'static str>,
}

impl Files {
    fn add_set(&mut self, set: &'static [u8]) -> Result<(), Malformed> {
        for field in Fields::new(set) {
            if let (1, value) = field? {
                self.add(value.bytes()?)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, bytes: &'static [u8]) -> Result<(), Malformed> {
        let (mut package, mut imports) = ("", Vec::new());
        let number = self.files.len();
        for field in Fields::new(bytes) {
            match field? {
                (1, value) => _ = self.by_name.insert(value.text()?, number),
                (2, value) => package = value.text()?,
                (3, value) => imports.push(value.text()?),
                _ => {}
            }
        }
        for field in Fields::new(bytes) {
            match field? {
                (4, value) => self.add_type(number, package, value.bytes()?)?,
                (5, value) => _ = self.add_named(number, package, value.bytes()?)?,
                (6, value) => {
                    let name = self.add_named(number, package, value.bytes()?)?;
                    for field in Fields::new(value.bytes()?) {
                        if let (2, method) = field? {
                            self.add_named(number, &name, method.bytes()?)?;
                        }
                    }
                    self.services.push(name);
                }
                _ => {}
            }
        }
        self.files.push(File { bytes, imports });
        Ok(())
    }

    /// Adds a message with its nested messages and enums.
    fn add_type(&mut self, number: usize, scope: &str, bytes: &[u8]) -> Result<(), Malformed> {
        let name = self.add_named(number, scope, bytes)?;
        for field in Fields::new(bytes) {
            match field? {
                (3, value) => self.add_type(number, &name, value.bytes()?)?,
                (4, value) => _ = self.add_named(number, &name, value.bytes()?)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn add_named(&mut self, number: usize, scope: &str, bytes: &[u8]) -> Result<String, Malformed> {
        let mut name = "";
        for field in Fields::new(bytes) {
            if let (1, value) = field? {
                name = value.text()?;
            }
        }
        let name = format!("{scope}.{name}");
        self.by_symbol.insert(name.clone(), number);
        Ok(name)
    }

    /// Returns a file and all its imports, each once.
    fn with_imports(&self, file: usize) -> Vec<&'static [u8]> {
        let (mut pending, mut seen, mut found) = (vec![file], HashSet::new(), Vec::new());
        while let Some(number) = pending.pop() {
            let Some(file) = self.files.get(number).filter(|_| seen.insert(number)) else { continue };
            found.push(file.bytes);
            pending.extend(file.imports.iter().filter_map(|name| self.by_name.get(name)));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_embedded_descriptors_are_parsed_completely() {
        let mut files = Files::default();
        files.add_set(DESCRIPTORS).unwrap();
        let expected = [
            "apache.rocketmq.v2.MessagingService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ];
        assert!(expected.iter().all(|name| files.services.iter().any(|served| served == name)));
        for symbol in [
            "google.protobuf.Timestamp",
            "apache.rocketmq.v2.Code",
            "apache.rocketmq.v2.MessagingService.SendMessage",
            "grpc.health.v1.HealthCheckResponse.ServingStatus",
        ] {
            assert!(files.by_symbol.contains_key(symbol), "{symbol}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = answer(&bytes);
        }
    }
}
