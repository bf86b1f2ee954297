//! The door: a listening socket that can be closed without breaking a request.
//!
//! The kernel shakes hands before anybody accepts. Whoever came in between the last accept and the close has a
//! connection and may have sent a request, and gets a reset: then nobody knows whether its job was accepted. So the door
//! is first closed to new guests, who are told nothing yet and then are refused, or find the next runner on the same
//! port; those who stand in the hall are let in and served; then the socket goes.

use std::time::Duration;

use tokio::net::TcpListener;

/// How long guests may take from the handshake to the request: a round trip or two.
const HALL: Duration = Duration::from_millis(150);

/// A second hold on a listening socket.
pub(super) struct Door {
    #[cfg(target_os = "linux")]
    socket: Option<socket2::Socket>,
}

impl Door {
    #[cfg(target_os = "linux")]
    pub(super) fn of(listener: &TcpListener) -> Self {
        Self { socket: socket2::SockRef::from(listener).try_clone().ok() }
    }

    /// Elsewhere there is no way to refuse guests without closing; the gap is some microseconds.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn of(_: &TcpListener) -> Self {
        Self {}
    }

    /// Admit nobody who has not knocked yet, and wait until those who have are served. Somebody else accepts meanwhile.
    pub(super) async fn close(self) {
        #[cfg(target_os = "linux")]
        if let Some(Err(error)) = self.socket.as_ref().map(|socket| socket.attach_filter(&drops_first_packets())) {
            tracing::debug!(%error, "the system does not close the door softly");
        }
        tokio::time::sleep(HALL).await;
    }
}

/// A program for the kernel's packet filter: of what reaches the listening socket, drop packets that would open a
/// connection (SYN without ACK, in the 14th byte of the TCP header). Their senders repeat them after a second.
#[cfg(target_os = "linux")]
fn drops_first_packets() -> [socket2::SockFilter; 5] {
    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    [
        socket2::SockFilter::new(LOAD_BYTE, 0, 0, 13),
        socket2::SockFilter::new(AND, 0, 0, SYN | ACK),
        socket2::SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
        socket2::SockFilter::new(RETURN, 0, 0, 0),
        socket2::SockFilter::new(RETURN, 0, 0, u32::MAX),
    ]
}
