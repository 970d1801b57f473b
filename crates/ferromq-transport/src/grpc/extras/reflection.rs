//! gRPC's reflection service, in both of its versions: what is served here, and the files that describe it.
//!
//! The files were compiled by `proto/generate.py`; here they are only found, by name or by what they define. No I/O.

use std::{
    collections::{HashMap, HashSet},
    sync::LazyLock,
};

use bytes::Bytes;
use tonic::Status;

use crate::protobuf::{
    Fields, Malformed, bytes_field_len, put_bytes_field, put_len_prefix, put_varint_field,
};

/// The descriptors of all files, each file behind those it imports.
const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");
const NOT_FOUND: u64 = 5;
const UNIMPLEMENTED: u64 = 12;

static FILES: LazyLock<Files> = LazyLock::new(|| {
    let mut files = Files::default();
    // The bytes are part of the program, and a test reads them.
    let _ = files.add_set(DESCRIPTORS);
    files
});

/// Answers an encoded `ServerReflectionRequest`; whatever is asked is part of the answer.
///
/// # Errors
/// `INVALID_ARGUMENT` for bytes that are none.
pub(in crate::grpc) fn answer(request: &[u8]) -> Result<Bytes, Status> {
    let malformed =
        |Malformed(reason): Malformed| Status::invalid_argument(format!("malformed request: {reason}"));
    let (host, wanted) = Wanted::parse(request).map_err(malformed)?;
    let mut out = Vec::with_capacity(request.len() + 256);
    put_bytes_field(&mut out, 1, host.as_bytes());
    put_bytes_field(&mut out, 2, request);
    match wanted {
        Wanted::File(name) => put_file(&mut out, FILES.by_name.get(name).copied(), name),
        Wanted::Symbol(name) => put_file(&mut out, FILES.by_symbol.get(name).copied(), name),
        Wanted::Services => {
            let mut services = Vec::new();
            for name in &FILES.services {
                put_len_prefix(&mut services, 1, bytes_field_len(1, name.len()));
                put_bytes_field(&mut services, 1, name.as_bytes());
            }
            put_bytes_field(&mut out, 6, &services);
        }
        // These files are proto3, which has no extensions.
        Wanted::ExtensionsOf(name) if FILES.by_symbol.contains_key(name) => {
            let mut none = Vec::new();
            put_bytes_field(&mut none, 1, name.as_bytes());
            put_bytes_field(&mut out, 5, &none);
        }
        Wanted::ExtensionsOf(name) => {
            put_error(&mut out, NOT_FOUND, &format!("no type {name} is served here"))
        }
        Wanted::Extension => put_error(&mut out, NOT_FOUND, "no extension is served here"),
        Wanted::Nothing => {
            put_error(&mut out, UNIMPLEMENTED, "the request asks for nothing that is known here")
        }
    }
    Ok(out.into())
}

fn put_file(out: &mut Vec<u8>, file: Option<usize>, name: &str) {
    let Some(file) = file else {
        return put_error(out, NOT_FOUND, &format!("nothing is called {name} here"));
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

/// What a request asks for; of several the last one counts.
enum Wanted<'a> {
    File(&'a str),
    Symbol(&'a str),
    Extension,
    ExtensionsOf(&'a str),
    Services,
    Nothing,
}

impl<'a> Wanted<'a> {
    fn parse(request: &'a [u8]) -> Result<(&'a str, Self), Malformed> {
        let (mut host, mut wanted) = ("", Self::Nothing);
        for field in Fields::new(request) {
            match field? {
                (1, value) => host = value.text()?,
                (3, value) => wanted = Self::File(value.text()?),
                (4, value) => wanted = Self::Symbol(value.text()?),
                (5, _) => wanted = Self::Extension,
                (6, value) => wanted = Self::ExtensionsOf(value.text()?),
                (7, _) => wanted = Self::Services,
                _ => {}
            }
        }
        Ok((host, wanted))
    }
}

/// Files by what they are called and what they define.
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

    /// A message, with those and the enums in it.
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

    /// A file and all it imports, each once.
    fn with_imports(&self, file: usize) -> Vec<&'static [u8]> {
        let (mut wanted, mut seen, mut found) = (vec![file], HashSet::new(), Vec::new());
        while let Some(number) = wanted.pop() {
            let Some(file) = self.files.get(number).filter(|_| seen.insert(number)) else { continue };
            found.push(file.bytes);
            wanted.extend(file.imports.iter().filter_map(|name| self.by_name.get(name)));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_files_in_the_program_are_read_whole() {
        let mut files = Files::default();
        files.add_set(DESCRIPTORS).unwrap();
        let wanted = [
            "apache.rocketmq.v2.MessagingService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ];
        assert!(wanted.iter().all(|name| files.services.iter().any(|served| served == name)));
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
