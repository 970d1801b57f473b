//! Socket options of accepted connections of both protocols.

#[cfg(any(target_os = "linux", target_os = "android"))]
use socket2::SockRef;
use tokio::net::TcpStream;

/// Bytes that the system buffers for a peer beside those in flight. It accepts more once half of them has left. With
/// its default of megabytes, a slow peer would seem to take nothing for minutes.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT_BYTES: u32 = 128 << 10;

/// Sends small answers at once, and makes visible how fast a peer takes large ones.
///
/// A socket that refuses an option is about to fail anyway.
pub(crate) fn set_up(stream: &TcpStream) {
    // Else a small answer waits for the acknowledgement of the one before.
    let _ = stream.set_nodelay(true);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES);
}
