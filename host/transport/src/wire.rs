//! Byte streams between sites, and frames on them.

use crate::config::LinkPath;
use crate::frame::{Frame, FrameError, HEAD_BYTES, Head, Stage};
use crate::tls;
use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use portolan_base::SiteName;
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::rustls::pki_types::CertificateDer;

/// A byte stream to a peer.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Makes wires out of TCP connections: the place where encryption goes. Each lane is one wire, so that encryption is
/// spread over as many cores as there are lanes.
#[async_trait]
pub trait Wiring: Send + Sync {
    /// Wraps a connection this site made to `peer`, and makes sure that it is that peer.
    async fn dialed(&self, stream: TcpStream, peer: &SiteName) -> io::Result<Box<dyn Wire>>;
    /// Wraps a connection a peer made.
    async fn accepted(&self, stream: TcpStream) -> io::Result<Accepted>;
}

/// A connection a peer made.
pub struct Accepted {
    /// Its bytes.
    pub wire: Box<dyn Wire>,
    /// What is known of who made it.
    pub proof: PeerProof,
}

/// What a listener knows of a peer before the hello.
pub enum PeerProof {
    /// Nothing: the hello's proof of the cluster secret has to do.
    None,
    /// The certificate it showed, verified against the authority.
    Certificate(CertificateDer<'static>),
}

impl PeerProof {
    /// Whether the peer may call itself `site`.
    pub(crate) fn allows(&self, site: &SiteName) -> bool {
        match self {
            Self::None => true,
            Self::Certificate(certificate) => tls::is_for(certificate, site),
        }
    }
}

/// Bare TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainTcp;

#[async_trait]
impl Wiring for PlainTcp {
    async fn dialed(&self, stream: TcpStream, _peer: &SiteName) -> io::Result<Box<dyn Wire>> {
        Ok(Box::new(stream))
    }

    async fn accepted(&self, stream: TcpStream) -> io::Result<Accepted> {
        Ok(Accepted {
            wire: Box::new(stream),
            proof: PeerProof::None,
        })
    }
}

/// Connects along a path.
///
/// Buffer sizes are left to the kernel: setting them would switch off the tuning that grows the window to the
/// bandwidth-delay product of a long path.
pub(crate) async fn connect(path: LinkPath, dscp: Option<u8>) -> io::Result<TcpStream> {
    let socket = match path.to {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    if let Some(from) = path.from {
        socket.bind(SocketAddr::new(from, 0))?;
    }
    // Before it connects, so that the first packet is marked too.
    mark(&socket2::SockRef::from(&socket), path.to, dscp)?;
    let stream = socket.connect(path.to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Marks what a socket sends with a code point. It is the upper six bits of a byte whose lower two are the network's.
pub(crate) fn mark(socket: &socket2::SockRef<'_>, peer: SocketAddr, dscp: Option<u8>) -> io::Result<()> {
    let Some(dscp) = dscp else { return Ok(()) };
    let class = u32::from(dscp) << 2;
    match peer {
        SocketAddr::V4(_) => socket.set_tos_v4(class),
        SocketAddr::V6(_) => socket.set_tclass_v6(class),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_carry_the_mark_they_are_to_carry() {
        for (dscp, byte) in [(None, 0), (Some(10), 40)] {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let path = LinkPath::from(listener.local_addr().unwrap());
            let dialed = connect(path, dscp).await.unwrap();
            assert_eq!(socket2::SockRef::from(&dialed).tos_v4().unwrap(), byte);
            let (accepted, from) = listener.accept().await.unwrap();
            let socket = socket2::SockRef::from(&accepted);
            mark(&socket, from, dscp).unwrap();
            assert_eq!(socket.tos_v4().unwrap(), byte);
        }
    }
}

/// Why a connection is of no further use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaneError {
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Protocol(&'static str),
}

/// Is told of every byte that comes.
pub(crate) trait Heard {
    fn heard(&self, bytes: usize);
}

impl Heard for () {
    fn heard(&self, _bytes: usize) {}
}

/// Small frames come out of this buffer; the body of a chunk goes past it into its place.
const READ_BUFFER: usize = 16 << 10;

/// The receiving half of a connection.
pub(crate) struct FrameReader<R, H> {
    inner: BufReader<R>,
    meta: Vec<u8>,
    heard: H,
}

impl<R: AsyncRead + Unpin, H: Heard> FrameReader<R, H> {
    pub(crate) fn new(inner: R, heard: H) -> Self {
        Self {
            inner: BufReader::with_capacity(READ_BUFFER, inner),
            meta: Vec::new(),
            heard,
        }
    }

    /// The same stream with another listener.
    pub(crate) fn listen<G: Heard>(self, heard: G) -> FrameReader<R, G> {
        FrameReader {
            inner: self.inner,
            meta: self.meta,
            heard,
        }
    }

    /// Fills `buffer`.
    pub(crate) async fn fill(&mut self, buffer: &mut [u8]) -> Result<(), LaneError> {
        let mut done = 0;
        while done < buffer.len() {
            let read = self.inner.read(&mut buffer[done..]).await?;
            if read == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.heard.heard(read);
            done += read;
        }
        Ok(())
    }

    /// Appends `len` bytes to `buffer`, which has room for them: no byte is written twice, as filling would.
    pub(crate) async fn append(&mut self, buffer: &mut BytesMut, len: usize) -> Result<(), LaneError> {
        let end = buffer.len() + len;
        while buffer.len() < end {
            let left = end - buffer.len();
            let read = self.inner.read_buf(&mut (&mut *buffer).limit(left)).await?;
            if read == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.heard.heard(read);
        }
        Ok(())
    }

    /// The next frame and the length of the payload that follows it.
    pub(crate) async fn frame(&mut self, stage: Stage) -> Result<(Frame, u32), LaneError> {
        let mut bytes = [0; HEAD_BYTES];
        self.fill(&mut bytes).await?;
        let head = Head::decode(&bytes, stage)?;
        let mut meta = std::mem::take(&mut self.meta);
        meta.resize(head.meta_len as usize, 0);
        let filled = self.fill(&mut meta).await;
        let frame = filled.and_then(|()| Ok(head.decode_meta(&meta)?));
        // An order may be large; its buffer is not kept for the pings that follow.
        if meta.capacity() <= READ_BUFFER {
            self.meta = meta;
        }
        Ok((frame?, head.payload_len))
    }
}

/// Both halves of a wire.
pub(crate) type Halves = (FrameReader<ReadHalf<Box<dyn Wire>>, ()>, WriteHalf<Box<dyn Wire>>);

/// Writes head and payload together, without copying the payload.
pub(crate) async fn write<W: AsyncWrite + Unpin>(out: &mut W, head: Bytes, payload: Bytes) -> io::Result<()> {
    out.write_all_buf(&mut head.chain(payload)).await?;
    out.flush().await
}
