//! Files as the server's source writes them, read, taken apart and put together again; and files that are something else.

use super::*;
use portolan_base::ModelName;

const CELLS: u32 = 40;
const WIDTHS: [usize; 2] = [6, 4];

fn layout() -> KvLayout {
    let layer = |width: usize| LayerKv::FullAttention {
        kv_heads: width as u32,
        head_dim: 1,
    };
    KvLayout {
        model: ModelName::new("m").unwrap(),
        model_version: 1,
        dtype: KvDtype::F16,
        block_tokens: 16,
        window: None,
        layers: WIDTHS.map(layer).to_vec(),
    }
}

/// What one layer keeps of one token in one channel; all are apart.
fn value(part: usize, layer: usize, position: u32, channel: usize) -> [u8; 2] {
    ((part as u16) << 15 | (layer as u16) << 14 | (position as u16) << 5 | channel as u16).to_le_bytes()
}

/// How a file is to be.
struct Wanted {
    version: u32,
    packed: bool,
    across: bool,
    streams: u32,
    /// The stream that has the cells.
    own: u32,
    /// The position in each cell.
    positions: Vec<u32>,
    /// A token more than there are cells.
    drawn: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            version: 3,
            packed: true,
            across: false,
            streams: 1,
            own: 0,
            positions: (0..CELLS).collect(),
            drawn: false,
        }
    }
}

/// A file word by word.
fn file(wanted: &Wanted) -> Vec<u8> {
    let mut out = Vec::new();
    let words = |out: &mut Vec<u8>, words: &[u32]| {
        words
            .iter()
            .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    };
    let count = CELLS + u32::from(wanted.drawn);
    let tokens: Vec<u32> = (0..count).map(|n| 300 + n).collect();
    words(&mut out, &[0x6767_7371, wanted.version]);
    match wanted.packed {
        true => {
            words(&mut out, &[count + 4, u32::MAX, 1, count]);
            words(&mut out, &tokens);
            words(&mut out, &[0]);
        }
        false => {
            words(&mut out, &[count]);
            words(&mut out, &tokens);
        }
    }
    words(&mut out, &[wanted.streams]);
    for stream in 0..wanted.streams {
        if stream != wanted.own {
            words(&mut out, &[0]);
            continue;
        }
        words(&mut out, &[CELLS]);
        for position in &wanted.positions {
            words(&mut out, &[*position, 1, stream]);
        }
        words(&mut out, &[u32::from(wanted.across), 2]);
        if wanted.version > 3 {
            words(&mut out, &[0, 0]);
        }
        for part in 0..2 {
            for (layer, width) in WIDTHS.into_iter().enumerate() {
                words(&mut out, &[1]);
                if part == 1 && wanted.across {
                    words(&mut out, &[2, width as u32]);
                    for channel in 0..width {
                        for position in &wanted.positions {
                            out.extend(value(part, layer, *position, channel));
                        }
                    }
                    continue;
                }
                words(&mut out, &[2 * width as u32, 0]);
                for position in &wanted.positions {
                    (0..width).for_each(|channel| out.extend(value(part, layer, *position, channel)));
                }
            }
        }
    }
    out
}

/// The blocks that any file of these tokens has.
fn expected() -> Vec<Vec<u8>> {
    let block = |at: u32| {
        let mut block = Vec::new();
        for (layer, width) in WIDTHS.into_iter().enumerate() {
            for part in 0..2 {
                for channel in 0..width {
                    for position in at * 16..(at + 1) * 16 {
                        block.extend(value(part, layer, position, channel));
                    }
                }
            }
        }
        block
    };
    (0..CELLS / 16).map(block).collect()
}

#[test]
fn blocks_are_the_same_however_the_server_lays_them_out() {
    let layout = layout();
    for (packed, across, streams, own) in [
        (true, false, 1, 0),
        (false, false, 1, 0),
        (true, true, 1, 0),
        (true, false, 4, 2),
        (true, true, 2, 1),
    ] {
        let wanted = Wanted {
            version: 2 + streams,
            packed,
            across,
            streams,
            own,
            drawn: own > 0,
            // Cells that were freed and taken again are in no order.
            positions: match own {
                0 => (0..CELLS).collect(),
                _ => (0..CELLS).rev().collect(),
            },
        };
        let bytes = file(&wanted);
        let read = SlotFile::read(&bytes, &layout).unwrap();
        assert_eq!(read.tokens, (300..300 + CELLS).collect::<Vec<_>>());
        assert_eq!(read.blocks(&layout, 0), expected());
        assert_eq!(read.blocks(&layout, 1), expected()[1..]);
        let tokens = &read.tokens[..32];
        let again = read.form.write(&layout, tokens, &read.blocks(&layout, 0));
        let back = SlotFile::read(&again, &layout).unwrap();
        assert_eq!((back.form, back.tokens.as_slice()), (read.form, tokens));
        assert_eq!(back.blocks(&layout, 0), expected());
    }
}

#[test]
fn what_is_put_together_is_what_the_server_writes_itself() {
    let mut layout = layout();
    layout.block_tokens = CELLS / 2;
    for (version, packed, across, streams) in [(4, true, false, 1), (3, false, true, 3)] {
        let bytes = file(&Wanted {
            version,
            packed,
            across,
            streams,
            ..Wanted::default()
        });
        let read = SlotFile::read(&bytes, &layout).unwrap();
        let again = read.form.write(&layout, &read.tokens, &read.blocks(&layout, 0));
        assert!(
            again == bytes,
            "packed {packed}, across {across}, {streams} streams"
        );
    }
}

#[test]
fn a_slot_that_holds_nothing_has_no_blocks() {
    let layout = layout();
    let words = [0x6767_7371u32, 3, 4, u32::MAX, 1, 0, 0, 2, 0, 0];
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let read = SlotFile::read(&bytes, &layout).unwrap();
    assert!(read.tokens.is_empty() && read.blocks(&layout, 0).is_empty());
}

#[test]
fn what_is_not_of_the_form_is_named() {
    let layout = layout();
    let good = file(&Wanted::default());
    let word = |at: usize, word: u32| {
        let mut bytes = good.clone();
        bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        bytes
    };
    // Words before the cells: head 3, packed tokens 4 and CELLS, streams, cells.
    let cells = 3 + 4 + CELLS as usize + 2;
    let layers = cells + 3 * CELLS as usize;
    for (bytes, expected) in [
        (word(0, 1), "magic"),
        (word(4, 2), "form of tokens"),
        (word(5, 7), "count of tokens"),
        (word(cells - 3, 1), "count of media"),
        (word(cells - 2, 0), "count of streams"),
        (word(cells, 1), "from its first token on"),
        (word(cells, CELLS), "from its first token on"),
        (word(cells + 1, 2), "count of a cell's sequences"),
        (word(layers, 2), "order of values"),
        (word(layers + 1, 3), "count of layers"),
        (word(layers + 2, 8), "format of keys"),
        (word(layers + 3, 13), "bytes of a key"),
        ([good.as_slice(), &[0]].concat(), "longer than its parts"),
        (Vec::new(), "shorter than its parts"),
    ] {
        let error = SlotFile::read(&bytes, &layout).unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
}

#[test]
fn no_cut_and_no_flipped_bit_is_a_panic() {
    let layout = layout();
    let good = file(&Wanted {
        streams: 2,
        ..Wanted::default()
    });
    for length in 0..good.len() {
        assert!(SlotFile::read(&good[..length], &layout).is_err(), "{length}");
    }
    for bit in 0..(4 * 60 * 8) {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(read) = SlotFile::read(&bytes, &layout) {
            read.blocks(&layout, 0);
        }
    }
}
