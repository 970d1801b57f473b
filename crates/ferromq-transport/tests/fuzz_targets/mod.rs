//! What the fuzzer calls: any bytes in, no panic, nothing lost.
//!
//! Shared by `crates/fuzz`, which makes the bytes, and `remoting_hardening.rs`, which replays those that are kept.
#![allow(missing_docs, clippy::expect_used)]

use bytes::BytesMut;
use ferromq_transport::remoting::{Decoder, Limits, RemotingCommand, codec};

/// Reads any bytes as a stream of the remoting protocol, in two pieces and at once, and its first frame by
/// itself; what decodes encodes, and to the same again. Returns how many commands there were.
pub fn remoting(data: &[u8]) -> usize {
    let (at_once, in_two) = (commands(data, data.len()), commands(data, data.len() / 2));
    assert_eq!(at_once, in_two);
    at_once.iter().for_each(again);
    let alone = codec::decode(data.to_vec().into(), &Limits::default());
    alone.iter().for_each(again);
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

/// Where the binary form has no room for a value the command is sent in JSON.
fn again(command: &RemotingCommand) {
    let frame = codec::encode(command).expect("what was decoded fits a frame");
    let limits = Limits { frame: usize::MAX, header: usize::MAX };
    let again = Decoder::new(limits).next(&mut BytesMut::from(&frame.to_bytes()[..]));
    let again = again.expect("an encoded frame decodes").expect("it is whole");
    assert_eq!(RemotingCommand { header_form: command.header_form, ..again }, *command);
}
