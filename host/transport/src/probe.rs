//! A second source for loss: the kernel's own count of segments it had to send again.

use std::os::fd::{BorrowedFd, OwnedFd};

/// What the kernel counts on one connection, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// Segments sent, those sent again included.
    pub sent: u64,
    /// Of them, sent again.
    pub retransmitted: u64,
}

/// Reads what the network stack knows of a connection. A proxy in user space ends the connection and hides the path
/// behind it: such figures describe the way to the proxy.
pub trait LinkProbe: Send + Sync {
    /// The counts of one socket; none where they cannot be had.
    fn read(&self, socket: BorrowedFd<'_>) -> Option<Segments>;
}

/// `TCP_INFO`.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpInfo;

impl LinkProbe for TcpInfo {
    #[cfg(target_os = "linux")]
    fn read(&self, socket: BorrowedFd<'_>) -> Option<Segments> {
        let info = tcp_info(socket)?;
        Some(Segments {
            sent: u64::from(info.tcpi_segs_out),
            retransmitted: u64::from(info.tcpi_total_retrans),
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn read(&self, _socket: BorrowedFd<'_>) -> Option<Segments> {
        None
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "no safe wrapper of this socket option exists")]
fn tcp_info(socket: BorrowedFd<'_>) -> Option<libc::tcp_info> {
    use std::os::fd::AsRawFd;
    // SAFETY: `tcp_info` is plain integers, for which zero is a value. The kernel writes at most `len` bytes into it;
    // an older kernel writes fewer and leaves zeros.
    unsafe {
        let mut info: libc::tcp_info = std::mem::zeroed();
        let mut len = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
        let done = libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut len,
        );
        (done == 0).then_some(info)
    }
}

/// One connection under observation: yields what was added since it was last asked.
pub(crate) struct Watched {
    socket: Option<OwnedFd>,
    last: Segments,
}

impl Watched {
    /// Observes a connection for as long as this lives; the descriptor is a copy.
    pub(crate) fn new(socket: BorrowedFd<'_>) -> Self {
        Self {
            socket: socket.try_clone_to_owned().ok(),
            last: Segments::default(),
        }
    }

    /// Segments since the last call.
    pub(crate) fn delta(&mut self, probe: &dyn LinkProbe) -> Segments {
        use std::os::fd::AsFd;
        let read = self.socket.as_ref().and_then(|socket| probe.read(socket.as_fd()));
        let Some(read) = read else {
            return Segments::default();
        };
        let delta = Segments {
            sent: read.sent.saturating_sub(self.last.sent),
            retransmitted: read.retransmitted.saturating_sub(self.last.retransmitted),
        };
        self.last = read;
        delta
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn the_kernel_counts_the_segments_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut into, _) = listener.accept().unwrap();
        let mut watched = Watched::new(out.as_fd());
        let before = watched.delta(&TcpInfo);
        out.write_all(&[1; 100_000]).unwrap();
        into.read_exact(&mut [0; 100_000]).unwrap();
        let sent = watched.delta(&TcpInfo);
        assert!(before.sent >= 1 && sent.sent >= 1, "{before:?} {sent:?}");
        assert_eq!(sent.retransmitted, 0, "loopback loses nothing");
    }
}
