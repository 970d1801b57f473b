//! The target of the remoting fuzzer: no input panics or loses data.
//!
//! Shared by `crates/fuzz`, which generates inputs, and `remoting_hardening.rs`, which replays the corpus.
#![allow(missing_docs, clippy::expect_used)]

use bytes::BytesMut;
use ferromq_transport::remoting::{Decoder, Limits, RemotingCommand, codec};

/// Decodes bytes as a remoting stream, at once and in two pieces, and as a single frame. Each decoded command must
/// survive encoding and decoding unchanged. Returns the number of decoded commands.
pub fn remoting(data: &[u8]) -> usize {
    let (at_once, in_two) = (commands(data, data.len()), commands(data, data.len() / 2));
    assert_eq!(at_once, in_two);
    at_once.iter().for_each(check_round_trip);
    let alone = codec::decode(data.to_vec().into(), &Limits::default());
    alone.iter().for_each(check_round_trip);
    at_once.len() + alone.iter().len()
}

fn commands(data: &[u8], cut: usize) -> Vec<RemotingCommand> {
    let (mut buffer, mut commands) = (BytesMut::new(), Vec::new());
    let (first, second) = data.split_at(cut);
    for piece in [first, second] {
        buffer.extend_from_slice(piece);
        loop {
            match Decoder::default().next(&mut buffer) {
                Ok(Some(command)) => commands.push(command),
                Ok(None) => break,
                Err(_) => return commands,
            }
        }
    }
    commands
}

/// Encodes and decodes a command. A value that does not fit the binary form makes the header JSON.
fn check_round_trip(command: &RemotingCommand) {
    let frame = codec::encode(command).expect("a decoded command fits a frame");
    let limits = Limits { frame: usize::MAX, header: usize::MAX };
    let again = Decoder::new(limits).next(&mut BytesMut::from(&frame.to_bytes()[..]));
    let again = again.expect("an encoded frame decodes").expect("it is whole");
    assert_eq!(RemotingCommand { header_form: command.header_form, ..again }, *command);
}
