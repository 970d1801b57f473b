//! A broker of this process as a client's server: `ferromq_transport`'s local calls behind `ferromq_client`'s trait.

use std::time::Instant;

use bytes::{Bytes, BytesMut};
use ferromq_client::{LocalCallback, LocalError, LocalServer, Patience, Release, Request, Response};
use ferromq_protocol::remoting::RemotingCommand;
use ferromq_transport::grpc::{self, LocalCalls};

/// The local calls of one client.
pub struct LocalBroker(pub LocalCalls);

impl LocalServer for LocalBroker {
    fn call(&self, request: Request, patience: Patience<'_>) -> Result<Response, LocalError> {
        self.0.call(command(request), patience.until, patience.is_interrupted).map(response).map_err(error)
    }

    fn start(&self, request: Request, until: Instant, done: LocalCallback) {
        self.0.start(command(request), until, |answer| done(answer.map(response).map_err(error)));
    }
}

impl Release for LocalBroker {
    fn release(&self) {
        self.0.release();
    }
}

fn command(request: Request) -> RemotingCommand {
    let Request { code, fields, mut parts, .. } = request;
    let body = match parts.len() {
        0 => Bytes::new(),
        1 => parts.remove(0),
        _ => parts
            .into_iter()
            .fold(BytesMut::new(), |mut all, part| {
                all.extend_from_slice(&part);
                all
            })
            .freeze(),
    };
    RemotingCommand::request(code, fields, body)
}

fn response(command: RemotingCommand) -> Response {
    let RemotingCommand { code, remark, fields, body, .. } = command;
    Response { code, remark, fields, body }
}

fn error(error: grpc::LocalError) -> LocalError {
    match error {
        grpc::LocalError::Stopped => LocalError::Stopped,
        grpc::LocalError::Late => LocalError::Late,
        grpc::LocalError::Interrupted => LocalError::Interrupted,
    }
}
