//! A listening socket that can be closed without breaking a request.
//!
//! The kernel completes TCP handshakes before the process calls `accept`. A client whose handshake was completed
//! between the last `accept` and the close may already have sent a request, and would get a reset. Then it does not
//! know whether its job was accepted. So the stop first drops SYN packets, which makes new clients try again, and then
//! finds them refused or reach the next runner on the same port. After that it serves the connections that wait in the
//! accept queue, and only then closes the socket.

use std::time::Duration;

use tokio::net::TcpListener;

/// Time that a client has from the handshake to its request: one or two round trips.
const ACCEPT_GRACE: Duration = Duration::from_millis(150);

/// A second handle of a listening socket.
pub(super) struct ClosingListener {
    #[cfg(target_os = "linux")]
    socket: Option<socket2::Socket>,
}

impl ClosingListener {
    #[cfg(target_os = "linux")]
    pub(super) fn new(listener: &TcpListener) -> Self {
        Self { socket: socket2::SockRef::from(listener).try_clone().ok() }
    }

    /// Other systems cannot drop SYN packets without closing the socket. There, the gap between the last `accept` and
    /// the close is some microseconds.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn new(_: &TcpListener) -> Self {
        Self {}
    }

    /// Drop the packets of new clients, and wait until the clients with a completed handshake are accepted by the
    /// server's loop.
    pub(super) async fn close(self) {
        #[cfg(target_os = "linux")]
        if let Some(Err(error)) = self.socket.as_ref().map(|socket| socket.attach_filter(&drops_first_packets())) {
            tracing::debug!(%error, "cannot drop new connections before the listener closes");
        }
        tokio::time::sleep(ACCEPT_GRACE).await;
    }
}

/// Return a program for the kernel's packet filter. Of the packets that reach the listening socket it drops those that
/// open a connection (SYN without ACK, in the 14th byte of the TCP header). Their senders repeat them after a second.
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
