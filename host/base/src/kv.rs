//! KV as it is kept and moved: pieces, groups, manifests.
//!
//! The KV of a prompt is cut into *pieces*. A piece of an attention layer holds keys and values of a token range; a
//! piece of a recurrent layer holds the whole state after a number of tokens. A [`KvLayout`] says which groups a
//! model has and how large each piece is, so that a receiver can check a set before it is used.

mod landed;

pub use landed::{LandedChunk, LandingId};

use crate::{Bytes, ModelName, Tokens};
use alloc::vec::Vec;
use core::ops::Range;
use serde::{Deserialize, Serialize};

/// The number format of KV values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// 32-bit floating point, little endian.
    F32,
    /// bfloat16, little endian.
    Bf16,
    /// IEEE half precision, little endian.
    F16,
}

impl KvDtype {
    /// Bytes of one value.
    pub const fn size(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

/// How attention KV is made smaller at the cost of its last bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvQuant {
    /// Eight-bit integers.
    Int8,
    /// Four-bit integers.
    Int4,
}

impl KvQuant {
    /// Its name in configurations, manifests and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }
}

/// What one layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LayerKv {
    /// Keys and values for each token: grows with length, reusable by block.
    /// A piece is `[2, kv_heads, tokens, head_dim]`, keys first, row-major.
    FullAttention {
        /// Key/value heads.
        kv_heads: u32,
        /// Width of a head, the same for keys and values.
        head_dim: u32,
    },
    /// A state of fixed size: reusable only at the exact length it was taken at.
    /// A piece is the convolution state `[conv_channels, conv_width]`, then the recurrent state
    /// `[heads, key_dim, value_dim]`, row-major.
    Recurrent {
        /// Channels of the short convolution.
        conv_channels: u32,
        /// Columns of the convolution state.
        conv_width: u32,
        /// Value heads.
        heads: u32,
        /// Rows of a head's state.
        key_dim: u32,
        /// Columns of a head's state.
        value_dim: u32,
    },
}

/// Attention over the latest tokens only, and over the first few: a query that every later token can look at keeps
/// the scores of the others where the model was trained to have them (arXiv 2309.17453).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KvWindow {
    /// Latest tokens that a token sees, itself among them; at least 1.
    pub tokens: u32,
    /// First tokens of the prompt that every token sees.
    #[serde(default)]
    pub sinks: u32,
}

impl KvWindow {
    /// The keys that the token at position `query` sees: the first ones, and the latest. Together they are all
    /// tokens up to `query` where the second range begins within the first or right after it.
    pub fn seen(self, query: u32) -> (Range<u32>, Range<u32>) {
        let end = query.saturating_add(1);
        let latest = end.saturating_sub(self.tokens)..end;
        (0..self.sinks.min(latest.start), latest)
    }

    /// The tokens whose keys are needed to go on after `tokens` tokens, cut at multiples of `block`.
    pub fn needed(self, tokens: u32, block: u32) -> (Range<u32>, Range<u32>) {
        let block = block.max(1);
        let (first, latest) = self.seen(tokens);
        let latest = (latest.start / block * block).min(tokens)..tokens;
        (0..first.end.next_multiple_of(block).min(latest.start), latest)
    }
}

/// The KV of a model: one entry a layer, in the order of the forward pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvLayout {
    /// The model these shapes belong to.
    pub model: ModelName,
    /// Raised whenever weights, tokenizer or anything else that changes KV changes.
    pub model_version: u64,
    /// Number format of every value.
    pub dtype: KvDtype,
    /// Tokens in a pool block; prefill runs in pieces aligned to it, so that reused and recomputed KV are equal bit
    /// for bit.
    pub block_tokens: u32,
    /// What the attention layers look at, where that is not every token before: KV computed with another window is
    /// other KV.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<KvWindow>,
    /// One entry a layer.
    pub layers: Vec<LayerKv>,
}

impl KvLayout {
    /// Whether attention KV of the tokens in `range` is needed to go on after `tokens` tokens.
    pub fn needs(&self, tokens: u32, range: &Range<u32>) -> bool {
        let Some(window) = self.window else { return true };
        let overlap = |needed: Range<u32>| range.start < needed.end && needed.start < range.end;
        let (first, latest) = window.needed(tokens, self.block_tokens);
        overlap(first) || overlap(latest)
    }

    /// The size of one piece of `layer` covering `tokens`, or `None` when there is no such layer, or a peer made up one
    /// whose bytes cannot be counted.
    pub fn piece_bytes(&self, layer: u16, tokens: Tokens) -> Option<Bytes> {
        let area = |a: u32, b: u32| u64::from(a) * u64::from(b);
        let values = match *self.layers.get(usize::from(layer))? {
            LayerKv::FullAttention { kv_heads, head_dim } => area(kv_heads, head_dim)
                .checked_mul(u64::from(tokens.0))?
                .checked_mul(2)?,
            LayerKv::Recurrent {
                conv_channels,
                conv_width,
                heads,
                key_dim,
                value_dim,
            } => {
                let memory = area(heads, key_dim).checked_mul(u64::from(value_dim))?;
                area(conv_channels, conv_width).checked_add(memory)?
            }
        };
        values.checked_mul(self.dtype.size()).map(Bytes)
    }

    /// Bytes that do not depend on length: the recurrent states.
    pub fn fixed_bytes(&self) -> Bytes {
        self.sum(|layer| matches!(layer, LayerKv::Recurrent { .. }))
    }

    /// Bytes that each token adds: the attention layers.
    pub fn bytes_per_token(&self) -> Bytes {
        self.sum(|layer| matches!(layer, LayerKv::FullAttention { .. }))
    }

    /// The KV of a prompt of `tokens`, of which the receiver already holds `held` tokens of attention KV: all of it,
    /// whatever a window leaves out.
    pub fn bytes_to_move(&self, tokens: Tokens, held: Tokens) -> Bytes {
        if tokens.0 == 0 {
            return Bytes(0);
        }
        let per_token = self.bytes_per_token().0;
        Bytes(per_token.saturating_mul(u64::from((tokens - held).0))) + self.fixed_bytes()
    }

    /// Whether any layer keeps a recurrent state.
    pub fn is_hybrid(&self) -> bool {
        self.layers
            .iter()
            .any(|layer| matches!(layer, LayerKv::Recurrent { .. }))
    }

    fn sum(&self, wanted: impl Fn(&LayerKv) -> bool) -> Bytes {
        (0u16..)
            .zip(&self.layers)
            .filter(|(_, layer)| wanted(layer))
            .filter_map(|(i, _)| self.piece_bytes(i, Tokens(1)))
            .sum()
    }
}

/// How the KV of a prompt grows with its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KvSize {
    /// Bytes that do not depend on length.
    pub fixed: Bytes,
    /// Bytes that each token adds.
    pub per_token: Bytes,
}

impl KvSize {
    /// The KV of `tokens`; nothing for an empty prompt.
    pub fn at(self, tokens: Tokens) -> Bytes {
        match tokens.0 {
            0 => Bytes(0),
            n => self.fixed + Bytes(self.per_token.0.saturating_mul(u64::from(n))),
        }
    }
}

impl From<&KvLayout> for KvSize {
    fn from(layout: &KvLayout) -> Self {
        Self {
            fixed: layout.fixed_bytes(),
            per_token: layout.bytes_per_token(),
        }
    }
}

/// Which piece: a layer and the tokens it covers.
///
/// For a recurrent layer `tokens` is `n..n`: the state after the first `n` tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PieceId {
    /// Index into [`KvLayout::layers`].
    pub layer: u16,
    /// Half-open range of token positions.
    pub tokens: Range<u32>,
}

impl PieceId {
    /// How many tokens of attention KV the piece covers.
    pub fn len(&self) -> Tokens {
        Tokens(self.tokens.end.saturating_sub(self.tokens.start))
    }

    /// Whether the piece covers no token, as a recurrent state does.
    pub fn is_empty(&self) -> bool {
        self.tokens.end <= self.tokens.start
    }
}

/// What a transfer will bring. Sent before the first piece; a set that does not match it is not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvManifest {
    /// Shapes, dtype, model and model version.
    pub layout: KvLayout,
    /// Length of the KV when the transfer is whole.
    pub tokens: u32,
    /// Tokens whose attention KV the receiver said it holds; pieces begin here.
    pub held: u32,
}

impl KvManifest {
    /// Bytes of all pieces together.
    pub fn total_bytes(&self) -> Bytes {
        self.layout.bytes_to_move(Tokens(self.tokens), Tokens(self.held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hybrid_model_has_a_fixed_part_and_a_part_per_token() {
        let layout = KvLayout {
            model: ModelName::new("m").unwrap(),
            model_version: 1,
            dtype: KvDtype::F32,
            block_tokens: 64,
            window: None,
            layers: alloc::vec![
                LayerKv::Recurrent {
                    conv_channels: 256,
                    conv_width: 4,
                    heads: 4,
                    key_dim: 32,
                    value_dim: 32
                },
                LayerKv::FullAttention {
                    kv_heads: 2,
                    head_dim: 32
                },
            ],
        };
        assert_eq!(layout.bytes_per_token(), Bytes(2 * 2 * 32 * 4));
        assert_eq!(layout.fixed_bytes(), Bytes((256 * 4 + 4 * 32 * 32) * 4));
        assert_eq!(
            layout.bytes_to_move(Tokens(10), Tokens(4)),
            Bytes(6 * 512 + 20480)
        );
        assert_eq!(layout.bytes_to_move(Tokens(0), Tokens(0)), Bytes(0));
        for tokens in [0, 1, 10].map(Tokens) {
            assert_eq!(
                KvSize::from(&layout).at(tokens),
                layout.bytes_to_move(tokens, Tokens(0))
            );
        }
        assert_eq!(layout.piece_bytes(2, Tokens(1)), None);
        assert!(
            layout.needs(1 << 20, &(0..1)),
            "without a window everything is needed"
        );
    }

    #[test]
    fn a_window_sees_the_latest_tokens_and_the_first_ones() {
        let window = KvWindow { tokens: 4, sinks: 2 };
        assert_eq!(window.seen(0), (0..0, 0..1));
        assert_eq!(window.seen(3), (0..0, 0..4));
        assert_eq!(window.seen(4), (0..1, 1..5), "each key once");
        assert_eq!(window.seen(5), (0..2, 2..6));
        assert_eq!(window.seen(9), (0..2, 6..10));
    }

    #[test]
    fn what_goes_on_needs_whole_blocks_and_the_rest_may_go() {
        let window = KvWindow { tokens: 5, sinks: 1 };
        // The token at 20 sees 16..21, of which 16..20 are there already.
        assert_eq!(window.needed(20, 4), (0..4, 16..20));
        assert_eq!(
            window.needed(19, 4),
            (0..4, 12..19),
            "15 is seen: its whole block"
        );
        assert_eq!(window.needed(6, 4), (0..0, 0..6));
        assert_eq!(window.needed(0, 4), (0..0, 0..0));
        let none = KvWindow { tokens: 1, sinks: 0 };
        assert_eq!(none.needed(8, 4), (0..0, 8..8), "the token itself is all it sees");
    }
}
