//! Memory that two processes share, in pieces that are lent out.

use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

/// Where files lie that are memory.
const MEMORY: &str = "/dev/shm";

/// A file in memory. It goes when this is dropped, and its last user with it.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) path: PathBuf,
    file: File,
    /// Pieces that are free, by their beginning, of either half.
    free: [Mutex<Vec<(u64, u64)>>; 2],
}

/// Which half of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// Peers write here.
    In = 0,
    /// What is on its way to them.
    Out = 1,
}

/// A piece of an arena, until it is dropped.
#[derive(Debug)]
pub(super) struct Lent {
    arena: Arc<Arena>,
    half: Half,
    pub(super) at: u64,
    pub(super) len: u64,
}

impl Arena {
    /// Two halves of so many bytes each. Nobody but this user can open it.
    pub(super) fn new(half: u64, name: u128) -> io::Result<Arc<Self>> {
        let path = PathBuf::from(MEMORY).join(format!("portolan-nixl-{name:032x}"));
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        file.set_len(half * 2)?;
        Ok(Arc::new(Self {
            path,
            file,
            free: [Mutex::new(vec![(0, half)]), Mutex::new(vec![(half, half * 2)])],
        }))
    }

    /// Lends so many bytes, the first that fit; none when there are none.
    pub(super) fn lend(self: &Arc<Self>, half: Half, len: u64) -> Option<Lent> {
        let mut free = self.free[half as usize].lock();
        let index = free.iter().position(|(from, to)| to - from >= len)?;
        let (from, to) = free[index];
        if from + len == to {
            free.remove(index);
        } else {
            free[index] = (from + len, to);
        }
        drop(free);
        Some(Lent {
            arena: Arc::clone(self),
            half,
            at: from,
            len,
        })
    }

    fn give_back(&self, lent: &Lent) {
        let mut free = self.free[lent.half as usize].lock();
        let index = free.partition_point(|(from, _)| *from < lent.at);
        free.insert(index, (lent.at, lent.at + lent.len));
        // Neighbours become one again.
        if index + 1 < free.len() && free[index].1 == free[index + 1].0 {
            free[index].1 = free.remove(index + 1).1;
        }
        if index > 0 && free[index - 1].1 == free[index].0 {
            free[index - 1].1 = free.remove(index).1;
        }
    }
}

impl Lent {
    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.check(at, into.len())?;
        self.arena.file.read_exact_at(into, self.at + at)
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(at, bytes.len())?;
        self.arena.file.write_all_at(bytes, self.at + at)
    }

    fn check(&self, at: u64, len: usize) -> io::Result<()> {
        let end = at.checked_add(len as u64).filter(|end| *end <= self.len);
        end.map(|_| ())
            .ok_or_else(|| io::Error::other("beyond what was lent"))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.arena.give_back(self);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // The process that shares it may have been the one to remove it.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_lent_again_whole() {
        let arena = Arena::new(1000, 0xfeed_0001).unwrap();
        let a = arena.lend(Half::In, 300).unwrap();
        let b = arena.lend(Half::In, 300).unwrap();
        let c = arena.lend(Half::In, 400).unwrap();
        assert!(arena.lend(Half::In, 1).is_none());
        let out = arena.lend(Half::Out, 1000).unwrap();
        assert_eq!((a.at, b.at, c.at, out.at), (0, 300, 600, 1000));
        b.write(0, b"here").unwrap();
        let mut read = [0; 4];
        b.read(0, &mut read).unwrap();
        assert_eq!(&read, b"here");
        assert!(b.write(298, b"abc").is_err(), "not into a neighbour");
        drop(a);
        drop(c);
        assert!(arena.lend(Half::In, 500).is_none(), "in two parts");
        drop(b);
        assert_eq!(arena.lend(Half::In, 1000).map(|lent| lent.at), Some(0));
        let path = arena.path.clone();
        drop(out);
        drop(arena);
        assert!(!path.exists());
    }
}
