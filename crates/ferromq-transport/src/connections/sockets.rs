//! What accepted connections of both protocols are set to.

#[cfg(any(target_os = "linux", target_os = "android"))]
use socket2::SockRef;
use tokio::net::TcpStream;

/// Bytes the system keeps for a peer beside those on their way. It takes more once half of it has left: with megabytes, as
/// it keeps otherwise, a slow peer would seem to take nothing for minutes.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT: u32 = 128 << 10;

/// Has small answers leave at once, and shows how fast a peer takes large ones.
///
/// A socket that refuses is about to fail anyway.
pub(crate) fn set_up(stream: &TcpStream) {
    // Without it a small answer would wait for the acknowledgement of the one before.
    let _ = stream.set_nodelay(true);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = SockRef::from(stream).set_tcp_notsent_lowat(UNSENT);
}
