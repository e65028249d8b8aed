//! The file that llama.cpp's server saves a slot in, taken apart into the host's blocks and put together from them.
//!
//! The form is the server's own (`llama_state_seq_save_file`, and `server_tokens::serialize` for the tokens), little
//! endian:
//!
//! | | |
//! |---|---|
//! | head | `ggsq`, version, how many words of tokens |
//! | tokens | plain, or packed: -1, 1, count, tokens, count of media (0) |
//! | streams | how many; of each how many cells, and of the one that has some what follows |
//! | cells | position, count of sequences (1), sequence |
//! | layers | whether values lie across, how many layers; since version 4 two words that are 0 where KV is kept as computed |
//! | keys | of each layer: number format, bytes of a row, a row a cell |
//! | values | the same; or across: format, bytes of a value, values of a row, a row of all cells a value |
//!
//! Whatever is not of this form is not guessed at: sliding windows leave cells out, recurrent models have other parts,
//! quantised KV another number format.

use portolan_base::kv::{KvDtype, KvLayout, LayerKv};
use thiserror::Error;

/// `ggsq`, as a number.
const MAGIC: u32 = 0x6767_7371;

/// What packed tokens begin with: no token, and their form's version.
const PACKED: [u32; 2] = [u32::MAX, 1];

/// The version since which two words follow the count of layers.
const TWO_WORDS: u32 = 4;

/// Most streams: a server has one for each slot.
const STREAMS_MOST: u32 = 4096;

/// What of a file is the server's own choice and not in the KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    version: u32,
    packed: bool,
    streams: u32,
    /// Whether all values of a channel lie side by side.
    across: bool,
}

/// Why a file is not used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum BadFile {
    /// It ends early, or goes on.
    #[error("it is {0}")]
    Length(&'static str),
    /// A number that stands for something else.
    #[error("its {what} is {found}; {expected} was expected")]
    Other {
        /// Which.
        what: &'static str,
        /// What is there.
        found: u64,
        /// What is understood.
        expected: u64,
    },
    /// Cells that are not a prompt from its beginning.
    #[error("its cells are not those of a prompt from its first token on")]
    Cells,
}

/// A slot's KV: tokens, and where the rows of each position lie.
#[derive(Debug)]
pub(super) struct SlotFile<'f> {
    pub(super) form: Form,
    /// Those whose KV is there, from the first on.
    pub(super) tokens: Vec<u32>,
    /// The row of each position.
    rows: Vec<usize>,
    keys: Vec<&'f [u8]>,
    values: Vec<&'f [u8]>,
}

/// Width of a layer's keys, and as much of its values.
fn widths(layout: &KvLayout) -> Vec<usize> {
    let width = |layer: &LayerKv| match *layer {
        LayerKv::FullAttention { kv_heads, head_dim } => kv_heads as usize * head_dim as usize,
        LayerKv::Recurrent { .. } => 0,
    };
    layout.layers.iter().map(width).collect()
}

/// The number format as the file names it.
fn format(dtype: KvDtype) -> u32 {
    match dtype {
        KvDtype::F32 => 0,
        KvDtype::F16 => 1,
        KvDtype::Bf16 => 30,
    }
}

impl<'f> SlotFile<'f> {
    /// Reads a file of a model of this layout.
    pub(super) fn read(bytes: &'f [u8], layout: &KvLayout) -> Result<Self, BadFile> {
        let mut cursor = Cursor { bytes };
        cursor.expect("magic", MAGIC)?;
        let version = cursor.number()?;
        let words = cursor.number()? as usize;
        let words = cursor.take(words.checked_mul(4).ok_or(BadFile::Length("too long"))?)?;
        let words: Vec<u32> = words.chunks_exact(4).map(number).collect();
        let (packed, mut tokens) = unpacked(words)?;
        let streams = cursor.number()?;
        if !(1..=STREAMS_MOST).contains(&streams) {
            return Err(other("count of streams", streams, 1));
        }
        let mut found = None;
        for _ in 0..streams {
            let cells = cursor.number()? as usize;
            match (cells, &found) {
                (0, _) => {}
                (_, None) => found = Some(cursor.stream((cells, version), layout)?),
                (_, Some(_)) => return Err(BadFile::Cells),
            }
        }
        if !cursor.bytes.is_empty() {
            return Err(BadFile::Length("longer than its parts"));
        }
        let Stream {
            rows,
            across,
            keys,
            values,
        } = found.unwrap_or_default();
        // The token drawn last has no KV yet.
        if rows.len() > tokens.len() {
            return Err(BadFile::Cells);
        }
        tokens.truncate(rows.len());
        let form = Form {
            version,
            packed,
            streams,
            across,
        };
        Ok(Self {
            form,
            tokens,
            rows,
            keys,
            values,
        })
    }

    /// Its whole blocks from `first` on: a piece a layer, keys then values, each channel's numbers side by side.
    pub(super) fn blocks(&self, layout: &KvLayout, first: usize) -> Vec<Vec<u8>> {
        let step = layout.block_tokens as usize;
        let whole = self.tokens.len() / step.max(1);
        (first..whole)
            .map(|at| self.block(layout, at * step..(at + 1) * step))
            .collect()
    }

    fn block(&self, layout: &KvLayout, tokens: std::ops::Range<usize>) -> Vec<u8> {
        let (size, rows) = (layout.dtype.size() as usize, &self.rows[tokens]);
        let mut block = Vec::new();
        let cells = self.rows.len();
        for ((keys, values), width) in self.keys.iter().zip(&self.values).zip(widths(layout)) {
            gather(
                &mut block,
                keys,
                |channel, row| (row * width + channel) * size,
                (width, rows, size),
            );
            match self.form.across {
                true => gather(
                    &mut block,
                    values,
                    |channel, row| (channel * cells + row) * size,
                    (width, rows, size),
                ),
                false => gather(
                    &mut block,
                    values,
                    |channel, row| (row * width + channel) * size,
                    (width, rows, size),
                ),
            }
        }
        block
    }
}

/// Appends the numbers of each channel, row by row.
fn gather(
    into: &mut Vec<u8>,
    from: &[u8],
    at: impl Fn(usize, usize) -> usize,
    (width, rows, size): (usize, &[usize], usize),
) {
    into.reserve(width * rows.len() * size);
    for channel in 0..width {
        for row in rows {
            let begin = at(channel, *row);
            into.extend_from_slice(&from[begin..begin + size]);
        }
    }
}

impl Form {
    /// A file of these tokens' KV. `blocks` are as [`SlotFile::blocks`] gives them, and cover all tokens.
    pub(super) fn write(self, layout: &KvLayout, tokens: &[u32], blocks: &[impl AsRef<[u8]>]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |number: u32| out.extend_from_slice(&number.to_le_bytes());
        let count = tokens.len() as u32;
        put(MAGIC);
        put(self.version);
        match self.packed {
            true => {
                put(count + 4);
                PACKED.into_iter().for_each(&mut put);
                put(count);
                tokens.iter().copied().for_each(&mut put);
                put(0);
            }
            false => {
                put(count);
                tokens.iter().copied().for_each(&mut put);
            }
        }
        put(self.streams);
        put(count);
        for position in 0..count {
            [position, 1, 0].into_iter().for_each(&mut put);
        }
        put(u32::from(self.across));
        put(layout.layers.len() as u32);
        if self.version >= TWO_WORDS {
            [0, 0].into_iter().for_each(&mut put);
        }
        for part in [Part::Keys, Part::Values] {
            let mut before = 0;
            for width in widths(layout) {
                self.put_layer(&mut out, layout, (part, width, before), blocks);
                before += width;
            }
        }
        // The other streams are empty.
        out.resize(out.len() + 4 * (self.streams as usize - 1), 0);
        out
    }

    fn put_layer(
        self,
        out: &mut Vec<u8>,
        layout: &KvLayout,
        (part, width, before): (Part, usize, usize),
        blocks: &[impl AsRef<[u8]>],
    ) {
        let (size, step) = (layout.dtype.size() as usize, layout.block_tokens as usize);
        let across = self.across && part == Part::Values;
        out.extend_from_slice(&format(layout.dtype).to_le_bytes());
        match across {
            true => {
                out.extend_from_slice(&(size as u32).to_le_bytes());
                out.extend_from_slice(&(width as u32).to_le_bytes());
            }
            false => out.extend_from_slice(&((width * size) as u64).to_le_bytes()),
        }
        // Where this part of the layer begins within a block, in numbers of one token.
        let begin = 2 * before + if part == Part::Values { width } else { 0 };
        let (from, channel_bytes) = (begin * step * size, step * size);
        if across {
            for channel in 0..width {
                for block in blocks {
                    let at = from + channel * channel_bytes;
                    out.extend_from_slice(&block.as_ref()[at..at + channel_bytes]);
                }
            }
            return;
        }
        for block in blocks {
            let block = block.as_ref();
            for token in 0..step {
                for channel in 0..width {
                    let at = from + channel * channel_bytes + token * size;
                    out.extend_from_slice(&block[at..at + size]);
                }
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Keys,
    Values,
}

/// What the one stream with cells says.
#[derive(Default)]
struct Stream<'f> {
    rows: Vec<usize>,
    across: bool,
    keys: Vec<&'f [u8]>,
    values: Vec<&'f [u8]>,
}

struct Cursor<'f> {
    bytes: &'f [u8],
}

impl<'f> Cursor<'f> {
    fn take(&mut self, length: usize) -> Result<&'f [u8], BadFile> {
        let (taken, rest) = self
            .bytes
            .split_at_checked(length)
            .ok_or(BadFile::Length("shorter than its parts"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u32, BadFile> {
        Ok(number(self.take(4)?))
    }

    fn expect(&mut self, what: &'static str, expected: u32) -> Result<(), BadFile> {
        match self.number()? {
            found if found == expected => Ok(()),
            found => Err(other(what, found, expected)),
        }
    }

    fn stream(&mut self, (cells, version): (usize, u32), layout: &KvLayout) -> Result<Stream<'f>, BadFile> {
        let mut rows = vec![usize::MAX; cells.min(self.bytes.len())];
        for row in 0..cells {
            let position = self.number()? as usize;
            self.expect("count of a cell's sequences", 1)?;
            self.number()?;
            let free = rows.get_mut(position).filter(|row| **row == usize::MAX);
            *free.ok_or(BadFile::Cells)? = row;
        }
        let across = match self.number()? {
            0 => false,
            1 => true,
            found => return Err(other("order of values", found, 1)),
        };
        self.expect("count of layers", layout.layers.len() as u32)?;
        if version >= TWO_WORDS {
            self.expect("first word before the keys", 0)?;
            self.expect("second word before the keys", 0)?;
        }
        let (widths, size) = (widths(layout), layout.dtype.size() as usize);
        let bytes = |width: usize| cells.checked_mul(width * size).ok_or(BadFile::Length("too long"));
        let mut keys = Vec::with_capacity(widths.len());
        for width in &widths {
            self.expect("format of keys", format(layout.dtype))?;
            self.row("bytes of a key", width * size)?;
            keys.push(self.take(bytes(*width)?)?);
        }
        let mut values = Vec::with_capacity(widths.len());
        for width in &widths {
            self.expect("format of values", format(layout.dtype))?;
            match across {
                true => {
                    self.expect("bytes of a value", size as u32)?;
                    self.expect("count of a row's values", *width as u32)?;
                }
                false => self.row("bytes of a row of values", width * size)?,
            }
            values.push(self.take(bytes(*width)?)?);
        }
        Ok(Stream {
            rows,
            across,
            keys,
            values,
        })
    }

    /// A length of 64 bits.
    fn row(&mut self, what: &'static str, expected: usize) -> Result<(), BadFile> {
        let found = u64::from(self.number()?) | u64::from(self.number()?) << 32;
        match found == expected as u64 {
            true => Ok(()),
            false => Err(BadFile::Other {
                what,
                found,
                expected: expected as u64,
            }),
        }
    }
}

/// Whether the tokens are packed, and they.
fn unpacked(mut words: Vec<u32>) -> Result<(bool, Vec<u32>), BadFile> {
    if words.first() != Some(&PACKED[0]) {
        return Ok((false, words));
    }
    let count = words
        .len()
        .checked_sub(4)
        .ok_or(BadFile::Length("shorter than its parts"))?;
    if words[1] != PACKED[1] {
        return Err(other("form of tokens", words[1], PACKED[1]));
    }
    if words[2] as usize != count {
        return Err(other("count of tokens", words[2], count as u32));
    }
    match words.pop() {
        Some(0) => Ok((true, words.split_off(3))),
        media => Err(other("count of media", media.unwrap_or_default(), 0)),
    }
}

fn other(what: &'static str, found: u32, expected: u32) -> BadFile {
    BadFile::Other {
        what,
        found: found.into(),
        expected: expected.into(),
    }
}

fn number(four: &[u8]) -> u32 {
    four.iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests;
