//! The hello: who is there, does it know the cluster's secret, and what limits hold.
//!
//! Each side proves the secret by a keyed BLAKE3 over both hellos, which hold a fresh nonce of either side, and over
//! its own role, so that neither proof can be replayed or reflected.

use crate::config::ClusterSecret;
use crate::frame::{DialerHello, Frame, ListenerHello, PREFACE, Stage, Welcome};
use crate::link::Link;
use crate::wire::{FrameReader, Halves, LaneError, Wire, write};
use bytes::Bytes;
use portolan_base::{Random, SiteName};
use std::io;

/// Why a hello did not end in an open lane.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HelloError {
    #[error(transparent)]
    Lane(#[from] LaneError),
    #[error("the other side speaks another protocol or version")]
    Preface,
    #[error("the other side does not know the cluster secret")]
    Proof,
    #[error(
        "the other site hung up when it saw this one's proof: most likely it has another secret (`fleet.secret_file`)"
    )]
    HungUp,
    #[error("site {0} answered")]
    WrongSite(SiteName),
    #[error("refused: {0}")]
    Refused(String),
}

impl From<io::Error> for HelloError {
    fn from(error: io::Error) -> Self {
        Self::Lane(error.into())
    }
}

/// What a site says of itself.
pub(crate) struct Identity<'a> {
    pub(crate) site: &'a SiteName,
    pub(crate) secret: &'a ClusterSecret,
    pub(crate) chunk: u32,
    pub(crate) random: &'a dyn Random,
}

impl Identity<'_> {
    fn nonce(&self) -> [u8; 32] {
        let mut nonce = [0; 32];
        for part in nonce.chunks_exact_mut(8) {
            part.copy_from_slice(&self.random.next_u64().to_le_bytes());
        }
        nonce
    }
}

fn transcript(dialer: &DialerHello, listener: &ListenerHello) -> Vec<u8> {
    let no_proof = Frame::ListenerHello(listener.clone(), [0; 32]);
    [Frame::DialerHello(dialer.clone()).encode(), no_proof.encode()].concat()
}

fn same(proof: [u8; 32], expected: [u8; 32]) -> bool {
    // `blake3::Hash` compares in constant time.
    blake3::Hash::from(proof) == blake3::Hash::from(expected)
}

async fn preface(halves: &mut Halves) -> Result<(), HelloError> {
    let mut theirs = [0; PREFACE.len()];
    halves.0.fill(&mut theirs).await?;
    if theirs == PREFACE {
        Ok(())
    } else {
        Err(HelloError::Preface)
    }
}

fn split(wire: Box<dyn Wire>) -> Halves {
    let (read, out) = tokio::io::split(wire);
    (FrameReader::new(read, ()), out)
}

async fn send(halves: &mut Halves, frame: Frame) -> Result<(), HelloError> {
    Ok(write(&mut halves.1, frame.encode(), Bytes::new()).await?)
}

/// The dialer's side. Yields the lane, the chunk size in force and the listener's session number.
pub(crate) async fn dial(
    wire: Box<dyn Wire>,
    me: &Identity<'_>,
    link: &Link,
) -> Result<(Halves, u32, u128), HelloError> {
    let peer = &link.peer;
    let chunk = link.chunk.min(me.chunk);
    let mut halves = split(wire);
    let mine = DialerHello {
        from: me.site.clone(),
        to: peer.clone(),
        session: link.session,
        nonce: me.nonce(),
        chunk,
    };
    write(
        &mut halves.1,
        Bytes::from_static(&PREFACE),
        Frame::DialerHello(mine.clone()).encode(),
    )
    .await?;
    preface(&mut halves).await?;
    let (theirs, proof) = match halves.0.frame(Stage::Hello).await?.0 {
        Frame::ListenerHello(hello, proof) => (hello, proof),
        Frame::Welcome(Welcome::Refused(text)) => return Err(HelloError::Refused(text)),
        _ => return Err(LaneError::Protocol("no listener hello").into()),
    };
    let transcript = transcript(&mine, &theirs);
    if !same(proof, me.secret.prove(b"listener", &transcript)) {
        return Err(HelloError::Proof);
    }
    if theirs.site != *peer {
        return Err(HelloError::WrongSite(theirs.site));
    }
    send(
        &mut halves,
        Frame::DialerProof(me.secret.prove(b"dialer", &transcript)),
    )
    .await?;
    match halves.0.frame(Stage::Hello).await?.0 {
        Frame::Welcome(Welcome::Open(number)) => Ok((halves, chunk.min(theirs.chunk).max(1), number)),
        Frame::Welcome(Welcome::Refused(text)) => Err(HelloError::Refused(text)),
        _ => Err(LaneError::Protocol("no welcome").into()),
    }
}

/// The listener's side, up to the dialer's proof. The caller ends it with [`welcome`].
pub(crate) async fn accept(
    wire: Box<dyn Wire>,
    me: &Identity<'_>,
) -> Result<(Halves, DialerHello), HelloError> {
    let mut halves = split(wire);
    preface(&mut halves).await?;
    let Frame::DialerHello(theirs) = halves.0.frame(Stage::Hello).await?.0 else {
        return Err(LaneError::Protocol("no dialer hello").into());
    };
    let mine = ListenerHello {
        site: me.site.clone(),
        nonce: me.nonce(),
        chunk: me.chunk,
    };
    let transcript = transcript(&theirs, &mine);
    let proof = me.secret.prove(b"listener", &transcript);
    write(
        &mut halves.1,
        Bytes::from_static(&PREFACE),
        Frame::ListenerHello(mine, proof).encode(),
    )
    .await?;
    let answer = halves.0.frame(Stage::Hello).await.map_err(hung_up)?;
    let Frame::DialerProof(proof) = answer.0 else {
        return Err(LaneError::Protocol("no dialer proof").into());
    };
    if !same(proof, me.secret.prove(b"dialer", &transcript)) {
        welcome(
            &mut halves,
            Welcome::Refused("the proof of the cluster secret is wrong".into()),
        )
        .await?;
        return Err(HelloError::Proof);
    }
    Ok((halves, theirs))
}

/// A dialer that does not find its secret in the listener's proof says nothing more.
fn hung_up(error: LaneError) -> HelloError {
    match error {
        LaneError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => HelloError::HungUp,
        other => other.into(),
    }
}

/// Opens or refuses a proven lane.
pub(crate) async fn welcome(halves: &mut Halves, welcome: Welcome) -> Result<(), HelloError> {
    send(halves, Frame::Welcome(welcome)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    struct Noughts;

    impl Random for Noughts {
        fn next_u64(&self) -> u64 {
            0
        }
    }

    #[tokio::test]
    async fn a_dialer_that_hangs_up_on_the_proof_is_told_from_a_broken_line() {
        let site = SiteName::new("paris").unwrap();
        let me = Identity {
            site: &site,
            secret: &ClusterSecret::derive("open sesame"),
            chunk: 1,
            random: &Noughts,
        };
        let (ours, mut theirs) = duplex(1 << 12);
        let hello = Frame::DialerHello(DialerHello {
            from: SiteName::new("tokyo").unwrap(),
            to: site.clone(),
            session: 1,
            nonce: [0; 32],
            chunk: 1,
        });
        let dialer = async move {
            theirs
                .write_all(&[&PREFACE[..], &hello.encode()].concat())
                .await
                .unwrap();
            // More than half of the answer, which has a nonce and a proof of 32 bytes each.
            theirs.read_exact(&mut [0; PREFACE.len() + 40]).await.unwrap();
        };
        let (accepted, ()) = tokio::join!(accept(Box::new(ours), &me), dialer);
        assert!(matches!(accepted, Err(HelloError::HungUp)));
    }
}
