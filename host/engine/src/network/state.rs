//! The KV of one sequence, and its form as bytes.

use super::ForwardError;
use super::tensors::{TensorKv, TensorRecurrent};
use crate::BLOCK_TOKENS;
use crate::kernel::Rows;
use crate::kernel::attend::{Gap, KeysValues};
use bytes::Bytes;
use portolan_base::kv::{KvWindow, LayerKv};
use portolan_kv::wiped;
use std::ops::Range;

/// State of every layer after a number of tokens.
#[derive(Debug)]
pub(crate) struct SequenceState {
    pub(crate) layers: Vec<LayerState>,
    pub(crate) tokens: usize,
}

/// State of one layer.
#[derive(Debug)]
pub(crate) enum LayerState {
    /// Keys and values.
    Attention(AttentionState),
    /// A state of fixed size.
    Recurrent(RecurrentState),
}

/// Keys and values so far, where they are computed with.
#[derive(Debug)]
pub(crate) enum AttentionState {
    /// In memory.
    Host(HostKv),
    /// On the tensor library's device.
    Tensors(TensorKv),
}

/// Keys and values, `[tokens, head_dim]` for each key/value head. Where attention has a window, those that no later
/// token sees are dropped, block by block.
#[derive(Clone, Debug)]
pub(crate) struct HostKv {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
    head_dim: usize,
    gap: Gap,
    window: Option<KvWindow>,
}

/// A state of fixed size, where it is computed with.
#[derive(Debug)]
pub(crate) enum RecurrentState {
    /// In memory.
    Host(HostRecurrent),
    /// On the tensor library's device.
    Tensors(TensorRecurrent),
}

/// The last inputs of the convolution, and the memory of each head.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HostRecurrent {
    /// `[channels, width]`, the newest input last.
    pub(crate) conv: Vec<f32>,
    /// `[heads, key_dim, value_dim]`.
    pub(crate) memory: Vec<f32>,
}

impl SequenceState {
    /// The state before the first token, of a network whose attention looks at `window`.
    pub(crate) fn new(layers: &[LayerKv], window: Option<KvWindow>) -> Self {
        let layer = |kind| LayerState::new(kind, window);
        Self {
            layers: layers.iter().map(layer).collect(),
            tokens: 0,
        }
    }
}

impl LayerState {
    fn new(kind: &LayerKv, window: Option<KvWindow>) -> Self {
        match *kind {
            LayerKv::FullAttention { kv_heads, head_dim } => {
                let empty = vec![Vec::new(); kv_heads as usize];
                Self::Attention(AttentionState::Host(HostKv {
                    keys: empty.clone(),
                    values: empty,
                    head_dim: head_dim as usize,
                    gap: Gap::default(),
                    window,
                }))
            }
            LayerKv::Recurrent {
                conv_channels,
                conv_width,
                heads,
                key_dim,
                value_dim,
            } => {
                let conv = vec![0.0; conv_channels as usize * conv_width as usize];
                let memory = vec![0.0; heads as usize * key_dim as usize * value_dim as usize];
                Self::Recurrent(RecurrentState::Host(HostRecurrent { conv, memory }))
            }
        }
    }

    /// Takes a piece that begins at token `start`, as [`LayerKv`] lays it out: keys and values are appended, a
    /// recurrent state is replaced. Attention pieces come in ascending order; one gap may lie between them.
    pub(crate) fn restore(&mut self, start: usize, piece: &[u8]) {
        match self {
            Self::Attention(AttentionState::Host(state)) => state.restore(start, piece),
            Self::Attention(AttentionState::Tensors(state)) => state.restore(start, piece),
            Self::Recurrent(RecurrentState::Host(state)) => state.restore(piece),
            Self::Recurrent(RecurrentState::Tensors(state)) => state.restore(piece),
        }
    }
}

impl AttentionState {
    /// Bytes of the keys and values that are there.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Host(kv) => kv.bytes(),
            Self::Tensors(kv) => kv.bytes(),
        }
    }

    /// Whether all of these tokens are there.
    pub(crate) fn holds(&self, tokens: &Range<usize>) -> bool {
        match self {
            Self::Host(kv) => kv.holds(tokens),
            Self::Tensors(kv) => kv.holds(tokens),
        }
    }

    /// Keys and values of a token range that is there, `[2, kv_heads, tokens, head_dim]`.
    ///
    /// # Errors
    /// When the device does not give them.
    pub(crate) fn piece(&self, tokens: Range<usize>) -> Result<Bytes, ForwardError> {
        match self {
            Self::Host(kv) => Ok(kv.piece(tokens)),
            Self::Tensors(kv) => Ok(kv.piece(tokens)?),
        }
    }
}

impl HostKv {
    /// The position of the next token.
    pub(crate) fn tokens(&self) -> usize {
        let there = self.keys.first().map_or(0, |keys| keys.len() / self.head_dim);
        there + self.gap.len
    }

    fn bytes(&self) -> u64 {
        let heads = self.keys.iter().chain(&self.values);
        heads.map(|head| size_of_val(head.as_slice()) as u64).sum()
    }

    fn holds(&self, tokens: &Range<usize>) -> bool {
        let gap = self.gap;
        let before = tokens.end <= gap.start || gap.len == 0;
        tokens.end <= self.tokens() && (before || tokens.start >= gap.start + gap.len)
    }

    pub(crate) fn keys_values(&self) -> KeysValues<'_> {
        KeysValues {
            keys: &self.keys,
            values: &self.values,
            head_dim: self.head_dim,
            gap: self.gap,
            window: self.window,
        }
    }

    /// Drops what the next token and those after it do not see.
    fn forget(&mut self) {
        let Some(window) = self.window else { return };
        let (first, latest) = window.needed(self.tokens() as u32, BLOCK_TOKENS);
        let wanted = Gap {
            start: first.end as usize,
            len: (latest.start - first.end) as usize,
        };
        let drop = wanted.len.saturating_sub(self.gap.len);
        if drop == 0 {
            return;
        }
        // What is there lies on one side of the old gap or the other; the new one begins where the first tokens end.
        let places = wanted.start * self.head_dim..(wanted.start + drop) * self.head_dim;
        for head in self.keys.iter_mut().chain(&mut self.values) {
            head.drain(places.clone());
        }
        self.gap = wanted;
    }

    /// Adds tokens whose keys and values are these rows of `[tokens, kv_heads * head_dim]`.
    pub(crate) fn append(&mut self, (keys, values): (&Rows, &Rows), rows: Range<usize>) {
        self.forget();
        for (from, heads) in [(keys, &mut self.keys), (values, &mut self.values)] {
            for row in rows.clone() {
                for (head, part) in heads.iter_mut().zip(from.row(row).chunks_exact(self.head_dim)) {
                    head.extend_from_slice(part);
                }
            }
        }
    }

    /// Keys and values of a token range that is there, `[2, kv_heads, tokens, head_dim]`.
    fn piece(&self, tokens: Range<usize>) -> Bytes {
        let start = self.gap.place(tokens.start);
        let range = start * self.head_dim..(start + tokens.len()) * self.head_dim;
        to_bytes(
            self.keys
                .iter()
                .chain(&self.values)
                .map(|head| &head[range.clone()]),
        )
    }

    fn restore(&mut self, start: usize, piece: &[u8]) {
        let reached = self.tokens();
        if start > reached {
            self.gap = Gap {
                start: reached,
                len: start - reached,
            };
        }
        let heads = self.keys.len() * 2;
        let parts = piece.chunks_exact((piece.len() / heads).max(1));
        for (head, part) in self.keys.iter_mut().chain(&mut self.values).zip(parts) {
            head.extend(floats(part));
        }
    }
}

impl RecurrentState {
    /// The whole state.
    ///
    /// # Errors
    /// When the device does not give it.
    pub(crate) fn piece(&self) -> Result<Bytes, ForwardError> {
        match self {
            Self::Host(state) => Ok(state.piece()),
            Self::Tensors(state) => Ok(state.piece()?),
        }
    }
}

impl HostRecurrent {
    fn piece(&self) -> Bytes {
        to_bytes([self.conv.as_slice(), &self.memory])
    }

    fn restore(&mut self, piece: &[u8]) {
        for (slot, value) in self.conv.iter_mut().chain(&mut self.memory).zip(floats(piece)) {
            *slot = value;
        }
    }
}

pub(super) fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

pub(super) fn to_bytes<'a>(parts: impl IntoIterator<Item = &'a [f32]>) -> Bytes {
    let mut out = Vec::new();
    for part in parts {
        out.reserve(size_of_val(part));
        for value in part {
            out.extend_from_slice(&value.to_le_bytes());
        }
    }
    wiped(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_before_values_and_heads_before_tokens() {
        let mut layer = LayerState::new(
            &LayerKv::FullAttention {
                kv_heads: 2,
                head_dim: 1,
            },
            None,
        );
        let LayerState::Attention(AttentionState::Host(state)) = &mut layer else {
            panic!("an attention layer")
        };
        let (keys, values) = (vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0, 7.0, 8.0]);
        state.append((&Rows::new(keys, 2), &Rows::new(values, 2)), 0..2);
        let piece = state.piece(0..2);
        assert_eq!(
            floats(&piece).collect::<Vec<_>>(),
            [1.0, 3.0, 2.0, 4.0, 5.0, 7.0, 6.0, 8.0]
        );
        let (first, second) = (state.piece(0..1), state.piece(1..2));
        let mut copy = LayerState::new(
            &LayerKv::FullAttention {
                kv_heads: 2,
                head_dim: 1,
            },
            None,
        );
        copy.restore(0, &first);
        copy.restore(1, &second);
        let LayerState::Attention(AttentionState::Host(copy)) = copy else {
            panic!("an attention layer")
        };
        assert_eq!((copy.tokens(), copy.piece(0..2)), (2, piece));
    }

    #[test]
    fn a_recurrent_state_survives_the_way_through_bytes() {
        let kind = LayerKv::Recurrent {
            conv_channels: 1,
            conv_width: 2,
            heads: 1,
            key_dim: 1,
            value_dim: 2,
        };
        let state = HostRecurrent {
            conv: vec![1.0, 2.0],
            memory: vec![-0.0, 4.0],
        };
        let mut copy = LayerState::new(&kind, None);
        copy.restore(0, &state.piece());
        let LayerState::Recurrent(RecurrentState::Host(copy)) = copy else {
            panic!("a recurrent layer")
        };
        assert_eq!(copy.piece(), state.piece());
    }

    #[test]
    fn a_window_drops_whole_blocks_between_the_first_tokens_and_the_latest() {
        let kind = LayerKv::FullAttention {
            kv_heads: 1,
            head_dim: 1,
        };
        let window = KvWindow {
            tokens: 100,
            sinks: 4,
        };
        let state = |window| match LayerState::new(&kind, window) {
            LayerState::Attention(AttentionState::Host(state)) => state,
            other => panic!("an attention layer in memory, not {other:?}"),
        };
        let (mut narrow, mut all) = (state(Some(window)), state(None));
        let add = |state: &mut HostKv, tokens: Range<usize>| {
            let rows = Rows::new(tokens.map(|t| t as f32).collect(), 1);
            state.append((&rows, &rows), 0..rows.len());
        };
        for piece in [0..64, 64..128, 128..192, 192..256, 256..320, 320..330] {
            add(&mut narrow, piece.clone());
            add(&mut all, piece);
        }
        assert_eq!((narrow.tokens(), narrow.keys[0].len()), (330, 64 + (330 - 192)));
        assert!(narrow.holds(&(0..64)) && narrow.holds(&(192..330)));
        assert!(!narrow.holds(&(64..128)) && !narrow.holds(&(128..256)) && !narrow.holds(&(320..384)));
        for range in [0..64, 192..256, 320..330] {
            assert_eq!(narrow.piece(range.clone()), all.piece(range));
        }
        // From pieces it is the same state, gap included.
        let mut again = state(Some(window));
        for range in [0..64, 192..256, 256..320, 320..330] {
            again.restore(range.start, &all.piece(range));
        }
        assert_eq!((again.gap, &again.keys), (narrow.gap, &narrow.keys));
    }
}
