//! What the host and its NIXL process say to each other: a length, then postcard.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Longest message: an agent's description of itself, and little more.
const MESSAGE_MAX: u32 = 1 << 20;

/// What the host asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Write part of the shared memory into a peer's.
    Write {
        number: u64,
        /// The peer's agent, as it describes itself.
        agent: Vec<u8>,
        /// In the shared memory.
        from: u64,
        /// Address in the peer's process.
        to: u64,
        len: u64,
    },
}

/// What the process says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Its agent is there.
    Ready {
        agent: Vec<u8>,
        /// Where the shared memory lies in the process.
        base: u64,
    },
    /// It cannot work, and ends.
    Unable(String),
    /// The bytes are with the peer.
    Written(u64),
    /// They are not.
    Failed(u64, String),
}

/// A window, as an order names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Invitation {
    pub(super) agent: Vec<u8>,
    pub(super) address: u64,
    pub(super) bytes: u64,
}

/// Says one thing.
pub(super) fn say(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let text = postcard::to_stdvec(what).map_err(io::Error::other)?;
    let length = u32::try_from(text.len())
        .ok()
        .filter(|length| *length <= MESSAGE_MAX);
    let length = length.ok_or_else(|| io::Error::other("a message to or from NIXL is too long"))?;
    to.write_all(&[&length.to_le_bytes()[..], &text].concat())?;
    to.flush()
}

/// Hears one thing; waits for it.
pub(super) fn hear<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MESSAGE_MAX {
        return Err(io::Error::other("a message to or from NIXL is too long"));
    }
    let mut text = vec![0; length as usize];
    from.read_exact(&mut text)?;
    postcard::from_bytes(&text).map_err(io::Error::other)
}
