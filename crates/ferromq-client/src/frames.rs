//! Reads frames from a socket, with as few copies and system calls as their sizes allow.
//!
//! Small frames share reads of up to [`SCRATCH`] bytes. A larger frame is read straight into its own memory.

use std::{
    io::{self, ErrorKind},
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use ferromq_protocol::{
    ProtocolError,
    remoting::{Limits, RemotingCommand, codec},
};

use crate::sync::{self, is_pause};

/// Bytes of one read, at most, and of the largest frame that shares one.
const SCRATCH: usize = 64 << 10;
/// Memory that a frame gets before its bytes are here: room for an answer with 4 MiB of records. An announced length
/// alone costs no more.
const AHEAD: usize = 5 << 20;
/// Memory that is kept for frames: the parts of an answer, or one that is read while the one before is in use.
const KEPT: usize = 2 * AHEAD;
const LENGTH_BYTES: usize = 4;
/// First bytes of TLS records. No frame within the limits begins with them.
const TLS_ALERT: u8 = 0x15;
const TLS_HANDSHAKE: u8 = 0x16;

/// A socket whose reads end after a time.
pub(crate) trait TimedRead {
    /// Reads what is there, or waits up to `limit` for the first byte.
    fn read_within(&mut self, out: &mut [u8], limit: Duration) -> io::Result<usize>;
}

/// What of the stream was read and not taken yet.
pub(crate) struct FrameReader {
    scratch: Vec<u8>,
    /// The unread part of `scratch`.
    begin: usize,
    end: usize,
    /// A frame larger than `scratch`, without its length word, and how much of it is here.
    large: Option<LargeFrame>,
    /// The memory of large frames that were dropped, which serves again: new pages cost more than the copy into them.
    spare: Spare,
    limits: Limits,
}

type Spare = Arc<Mutex<Vec<Vec<u8>>>>;

struct LargeFrame {
    /// Longer than the frame, if it served a longer one.
    bytes: Vec<u8>,
    filled: usize,
    len: usize,
}

/// The bytes of a large frame in use.
struct Lent {
    bytes: Vec<u8>,
    len: usize,
    home: Spare,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut spare = sync::lock(&self.home);
        let kept: usize = spare.iter().map(Vec::len).sum();
        if kept + self.bytes.len() <= KEPT {
            spare.push(mem::take(&mut self.bytes));
        }
    }
}

/// What one step of reading brought.
pub(crate) enum Step {
    /// A whole frame.
    Frame(RemotingCommand),
    /// Some bytes, but no whole frame.
    Part,
    /// Nothing within the limit, or a signal came.
    Nothing,
}

impl FrameReader {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { scratch: vec![0; SCRATCH], begin: 0, end: 0, large: None, spare: Spare::default(), limits }
    }

    /// Takes the next frame, and reads once if it is not here yet.
    ///
    /// # Errors
    /// `UnexpectedEof` if the server closed the connection; `InvalidData` for bytes that are no frame; errors of the socket.
    pub(crate) fn step(&mut self, socket: &mut impl TimedRead, limit: Duration) -> io::Result<Step> {
        if let Some(frame) = self.take()? {
            return Ok(Step::Frame(frame));
        }
        let read = match &mut self.large {
            Some(large) => large.read(socket, limit),
            None => {
                self.scratch.copy_within(self.begin..self.end, 0);
                (self.begin, self.end) = (0, self.end - self.begin);
                let room = self.scratch.get_mut(self.end..).unwrap_or_default();
                socket.read_within(room, limit).inspect(|read| self.end += read)
            }
        };
        match read {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(self.take()?.map_or(Step::Part, Step::Frame)),
            Err(error) if is_pause(&error) => Ok(Step::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Takes a frame that is here.
    fn take(&mut self) -> io::Result<Option<RemotingCommand>> {
        if let Some(LargeFrame { bytes, len, .. }) = self.large.take_if(|large| large.filled == large.len) {
            let frame = Lent { bytes, len, home: Arc::clone(&self.spare) };
            return self.decode(Bytes::from_owner(frame)).map(Some);
        }
        if self.large.is_some() {
            return Ok(None);
        }
        let unread = self.scratch.get(self.begin..self.end).unwrap_or_default();
        let Some((word, rest)) = unread.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        if matches!(word, [TLS_ALERT | TLS_HANDSHAKE, 3, ..]) {
            return Err(invalid("the server speaks TLS, and this client does not"));
        }
        let len = usize::try_from(i32::from_be_bytes(*word))
            .map_err(|_| invalid("the frame's length is negative"))?;
        if LENGTH_BYTES + len > self.limits.frame {
            return Err(invalid(&format!(
                "a frame of {len} bytes is over the limit of {}",
                self.limits.frame
            )));
        }
        if let Some(frame) = rest.get(..len) {
            let frame = Bytes::copy_from_slice(frame);
            self.begin += LENGTH_BYTES + len;
            return self.decode(frame).map(Some);
        }
        if LENGTH_BYTES + len > SCRATCH {
            let mut bytes = sync::lock(&self.spare).pop().unwrap_or_default();
            if bytes.len() < len.min(AHEAD) {
                bytes = vec![0; len.next_power_of_two().min(AHEAD)];
            }
            let filled = rest.len();
            bytes.get_mut(..filled).unwrap_or_default().copy_from_slice(rest);
            self.large = Some(LargeFrame { bytes, filled, len });
            (self.begin, self.end) = (0, 0);
        }
        Ok(None)
    }

    fn decode(&self, frame: Bytes) -> io::Result<RemotingCommand> {
        codec::decode(frame, &self.limits).map_err(|error: ProtocolError| invalid(&error.to_string()))
    }
}

impl LargeFrame {
    fn read(&mut self, socket: &mut impl TimedRead, limit: Duration) -> io::Result<usize> {
        // The memory grows with what comes: 5 MiB, then twice as much each time.
        let room = self.len.min(self.filled.max(AHEAD / 2) * 2);
        if self.bytes.len() < room {
            self.bytes.resize(room, 0);
        }
        let read = socket.read_within(self.bytes.get_mut(self.filled..room).unwrap_or_default(), limit)?;
        self.filled += read;
        Ok(read)
    }
}

fn invalid(reason: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use ferromq_protocol::remoting::{Fields, HeaderForm};
    use proptest::prelude::*;

    use super::*;

    /// Gives the bytes in pieces of these sizes, with a pause before each.
    struct Pieces(Vec<Vec<u8>>, bool);

    impl TimedRead for Pieces {
        fn read_within(&mut self, out: &mut [u8], _limit: Duration) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(ErrorKind::WouldBlock.into());
            }
            let Some(piece) = self.0.first_mut() else { return Ok(0) };
            let read = (&piece[..]).read(out)?;
            piece.drain(..read);
            if piece.is_empty() {
                self.0.remove(0);
            }
            Ok(read)
        }
    }

    fn command(body: &[u8], opaque: i32) -> RemotingCommand {
        let fields = Fields::from([("queueId", "3")]);
        let command = RemotingCommand::request(310, fields, Bytes::copy_from_slice(body));
        RemotingCommand { opaque, header_form: HeaderForm::Binary, ..command }
    }

    fn cut(bytes: &[u8], sizes: &[usize]) -> Vec<Vec<u8>> {
        let (mut pieces, mut rest) = (Vec::new(), bytes);
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, left) = rest.split_at((*size).min(rest.len()));
            pieces.push(piece.to_vec());
            rest = left;
        }
        pieces
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn frames_come_whole_however_they_are_cut(
            sizes in prop::collection::vec(prop_oneof![0_usize..300, 60_000_usize..140_000], 1..6),
            pieces in prop::collection::vec(prop_oneof![1_usize..40, 1_000_usize..200_000], 1..5),
        ) {
            let wanted: Vec<_> = (0..).zip(&sizes).map(|(n, len)| command(&vec![n as u8; *len], n)).collect();
            let bytes: Vec<u8> =
                wanted.iter().flat_map(|command| codec::encode(command).unwrap().to_bytes()).collect();
            let mut socket = Pieces(cut(&bytes, &pieces), false);
            let mut reader = FrameReader::new(Limits::default());
            let mut seen = Vec::new();
            let end = loop {
                match reader.step(&mut socket, Duration::ZERO) {
                    Ok(Step::Frame(frame)) => seen.push(frame),
                    Ok(Step::Nothing | Step::Part) => {}
                    Err(error) => break error,
                }
            };
            prop_assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
            prop_assert_eq!(seen, wanted);
        }

        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut socket = Pieces(cut(&bytes, &[7]), false);
            let mut reader = FrameReader::new(Limits::default());
            while reader.step(&mut socket, Duration::ZERO).is_ok() {}
        }
    }

    #[test]
    fn a_large_frame_has_the_memory_of_the_one_before_once_that_is_dropped() {
        let frames = [1, 2, 3, 4].map(|n| command(&[n; 200_000], i32::from(n)));
        let bytes = frames.iter().flat_map(|frame| codec::encode(frame).unwrap().to_bytes()).collect();
        let mut socket = Pieces(vec![bytes], false);
        let mut reader = FrameReader::new(Limits::default());
        let mut next = || loop {
            if let Step::Frame(frame) = reader.step(&mut socket, Duration::ZERO).unwrap() {
                break frame;
            }
        };
        let first = next();
        let second = next();
        assert_ne!(first.body.as_ptr(), second.body.as_ptr());
        let place = second.body.as_ptr();
        assert_eq!(second, frames[1]);
        drop(second);
        let third = next();
        assert_eq!(third.body.as_ptr(), place);
        assert_eq!([first, third, next()], [frames[0].clone(), frames[2].clone(), frames[3].clone()]);
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_its_bytes_come() {
        let mut socket = Pieces(vec![(17_i32 << 20).to_be_bytes().to_vec()], false);
        let mut reader = FrameReader::new(Limits::default());
        let error = loop {
            match reader.step(&mut socket, Duration::ZERO) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("over the limit"), "{error}");
    }
}
