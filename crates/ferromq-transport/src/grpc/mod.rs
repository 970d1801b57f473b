//! The gRPC v2 service.

pub mod wire;
