//! The files of a realm.

use crate::file::{self, BadFile, Head, SumKey};
use portolan_base::{BlockId, Bytes, Moment};
use portolan_kv::PoolBlock;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A whole block.
const BLOCK: &str = "kv";
/// Not yet whole.
const PART: &str = "part";
/// To be overwritten and removed.
const DEAD: &str = "dead";

/// Written at once when a file is overwritten.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// What is done with bytes that are not wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// The file is unlinked.
    Unlink,
    /// Its bytes are overwritten before.
    Overwrite,
}

/// Which file of a block: names are not used twice, so that removing an old copy cannot hit a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileName {
    pub(crate) id: BlockId,
    pub(crate) number: u64,
}

/// A folder with the files of one realm.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    removal: Removal,
}

impl Folder {
    pub(crate) fn open(path: PathBuf, removal: Removal) -> io::Result<Self> {
        fs::create_dir_all(&path)?;
        Ok(Self { path, removal })
    }

    /// Finds the blocks, by their heads; removes what is torn, foreign or dead.
    pub(crate) fn scan(&self, key: SumKey, mut found: impl FnMut(FileName, Head)) -> io::Result<u64> {
        let mut dropped = 0;
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            match self.head(&path, key) {
                Ok((name, head)) => found(name, head),
                Err(BadFile::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(reason) => {
                    dropped += u64::from(has_extension(&path, BLOCK));
                    tracing::warn!(file = %path.display(), %reason, "dropped from the disk tier");
                    self.destroy(&path)?;
                }
            }
        }
        Ok(dropped)
    }

    /// Finds files that grow, by what `read` makes of them; removes what it cannot read.
    pub(crate) fn scan_open<T>(
        &self,
        mut read: impl FnMut(&mut File, u64) -> Result<T, BadFile>,
    ) -> io::Result<Vec<(FileName, File, T)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let opened = FileName::parse(&path).ok_or(BadFile::Foreign).and_then(|name| {
                let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
                let length = file.metadata()?.len();
                let what = read(&mut file, length)?;
                Ok((name, file, what))
            });
            match opened {
                Ok(opened) => found.push(opened),
                Err(reason) => {
                    tracing::warn!(file = %path.display(), %reason, "dropped from the disk tier");
                    self.destroy(&path)?;
                }
            }
        }
        Ok(found)
    }

    /// A new file that grows; a scan takes it as far as it got.
    pub(crate) fn begin(&self, name: FileName) -> io::Result<File> {
        let mut new = OpenOptions::new();
        new.read(true).write(true).create_new(true);
        new.open(self.path_of(name, BLOCK))
    }

    fn head(&self, path: &Path, key: SumKey) -> Result<(FileName, Head), BadFile> {
        let name = FileName::parse(path).ok_or(BadFile::Foreign)?;
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let head = file::read_head(&mut BufReader::new(file), length, key)?;
        if head.id != name.id {
            return Err(BadFile::Foreign);
        }
        Ok((name, head))
    }

    /// Writes a block beside its place and syncs it; `None` of it counts until [`Self::publish`].
    pub(crate) fn write(
        &self,
        name: FileName,
        block: &PoolBlock,
        used_at: Moment,
        key: SumKey,
    ) -> io::Result<Bytes> {
        let mut to = BufWriter::new(File::create(self.path_of(name, PART))?);
        let length = file::write(&mut to, block, used_at, key)?;
        to.flush()?;
        to.get_ref().sync_data()?;
        Ok(length)
    }

    /// Puts a written block in its place.
    pub(crate) fn publish(&self, name: FileName) -> io::Result<()> {
        fs::rename(self.path_of(name, PART), self.path_of(name, BLOCK))
    }

    /// Throws away what was written and not published.
    pub(crate) fn withdraw(&self, name: FileName) {
        self.note(self.destroy(&self.path_of(name, PART)));
    }

    /// Reads a block and checks every byte.
    pub(crate) fn read(&self, name: FileName, key: SumKey) -> Result<PoolBlock, BadFile> {
        let mut file = File::open(self.path_of(name, BLOCK))?;
        let length = file.metadata()?.len();
        let (block, _) = file::read(&mut file, length, key)?;
        if block.id != name.id {
            return Err(BadFile::Foreign);
        }
        Ok(block)
    }

    /// Makes a published block one that no scan takes; quick, whatever its size.
    pub(crate) fn bury(&self, name: FileName) {
        let path = self.path_of(name, BLOCK);
        self.note(match self.removal {
            Removal::Unlink => fs::remove_file(path),
            Removal::Overwrite => fs::rename(path, self.path_of(name, DEAD)),
        });
    }

    /// Makes sure that what was buried stays so after a power cut.
    pub(crate) fn sync(&self) {
        self.note(File::open(&self.path).and_then(|folder| folder.sync_all()));
    }

    /// Overwrites what was buried, where that is wanted.
    pub(crate) fn erase(&self, name: FileName) {
        if self.removal == Removal::Overwrite {
            self.note(self.destroy(&self.path_of(name, DEAD)));
        }
    }

    /// Removes the whole folder.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            self.destroy(&entry?.path())?;
        }
        fs::remove_dir(&self.path)
    }

    /// A file that is gone already is what was wanted.
    fn destroy(&self, path: &Path) -> io::Result<()> {
        let overwritten = match self.removal {
            Removal::Overwrite => overwrite(path),
            Removal::Unlink => Ok(()),
        };
        let removed = overwritten.and_then(|()| fs::remove_file(path));
        removed.or_else(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                Ok(())
            } else {
                Err(error)
            }
        })
    }

    fn path_of(&self, name: FileName, extension: &str) -> PathBuf {
        let FileName { id, number } = name;
        self.path
            .join(format!("{}-{number:x}.{extension}", hex::encode(id.0)))
    }

    fn note(&self, done: io::Result<()>) {
        if let Err(error) = done
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::error!(folder = %self.path.display(), %error, "a file of the disk tier could not be removed");
        }
    }
}

impl FileName {
    fn parse(path: &Path) -> Option<Self> {
        if !has_extension(path, BLOCK) {
            return None;
        }
        let (id, number) = path.file_stem()?.to_str()?.split_once('-')?;
        let mut bytes = [0; 16];
        hex::decode_to_slice(id, &mut bytes).ok()?;
        Some(Self {
            id: BlockId(bytes),
            number: u64::from_str_radix(number, 16).ok()?,
        })
    }
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

/// Writes zeros over a file, and waits until they are on the medium.
fn overwrite(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let length = file.metadata()?.len();
    let mut left = length;
    while left > 0 {
        let part = left.min(ZEROS.len() as u64);
        file.write_all(&ZEROS[..part as usize])?;
        left -= part;
    }
    file.sync_data()
}
