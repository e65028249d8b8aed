//! KV in hand: pieces, and sets that were found whole.

use bytes::Bytes;
use portolan_base::Tokens;
use portolan_base::kv::{KvLayout, LayerKv, PieceId};
use portolan_kv::tier::Epoch;
use std::sync::Arc;

/// One piece with its bytes. Cloning shares the bytes; holding a piece keeps them alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvPiece {
    /// Which piece.
    pub id: PieceId,
    /// Its values, laid out as [`LayerKv`] says.
    pub bytes: Bytes,
}

/// Why pieces do not make a usable set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KvSetError {
    /// A piece names a layer the model does not have.
    #[error("layer {layer} does not exist, the model has {layers}")]
    UnknownLayer {
        /// The layer named.
        layer: u16,
        /// Layers of the model.
        layers: usize,
    },
    /// A piece has the wrong number of bytes.
    #[error("layer {layer} tokens {start}..{end}: {got} bytes, {expected} expected")]
    WrongSize {
        /// The piece's layer.
        layer: u16,
        /// First token.
        start: u32,
        /// End of the token range.
        end: u32,
        /// Bytes found.
        got: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// A layer's pieces leave a gap, overlap, or end early.
    #[error("layer {layer}: tokens {from}..{to} are missing, doubled or beyond the end")]
    NotWhole {
        /// The layer.
        layer: u16,
        /// Where the trouble begins.
        from: u32,
        /// Where it ends.
        to: u32,
    },
}

/// KV of the first [`KvSet::tokens`] tokens of a prompt: every attention layer covered without gap or overlap, every
/// recurrent layer at exactly that length, every piece of the right size. Where attention has a window, only what going
/// on needs is covered. There is no other way to make one.
#[derive(Clone, Debug)]
pub struct KvSet {
    layout: Arc<KvLayout>,
    tokens: u32,
    by_layer: Vec<Vec<KvPiece>>,
    past: Option<KvPast>,
}

/// How a set was made. Orders to forget that came meanwhile are held against it when decode begins, and when its blocks
/// are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvPast {
    /// Where the receiving site's caches were in the sequence of orders when the making began.
    pub since: Epoch,
    /// From what.
    pub made: KvMade,
}

/// What a set was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvMade {
    /// All of it was computed for this request.
    Afresh,
    /// Some of it was cached.
    FromCache,
}

impl KvSet {
    /// The KV of no token.
    pub fn empty(layout: Arc<KvLayout>) -> Self {
        let by_layer = vec![Vec::new(); layout.layers.len()];
        Self {
            layout,
            tokens: 0,
            by_layer,
            past: None,
        }
    }

    /// Puts pieces together, in any order, and checks that they are whole.
    pub fn assemble(
        layout: Arc<KvLayout>,
        tokens: u32,
        pieces: impl IntoIterator<Item = KvPiece>,
    ) -> Result<Self, KvSetError> {
        let layers = layout.layers.len();
        let mut by_layer = vec![Vec::new(); layers];
        for piece in pieces {
            let layer = piece.id.layer;
            let Some(slot) = by_layer.get_mut(usize::from(layer)) else {
                return Err(KvSetError::UnknownLayer { layer, layers });
            };
            let expected = layout.piece_bytes(layer, piece.id.len()).unwrap_or_default().0;
            let got = piece.bytes.len() as u64;
            if got != expected {
                let (start, end) = (piece.id.tokens.start, piece.id.tokens.end);
                return Err(KvSetError::WrongSize {
                    layer,
                    start,
                    end,
                    got,
                    expected,
                });
            }
            slot.push(piece);
        }
        for (layer, pieces) in (0u16..).zip(&mut by_layer) {
            pieces.sort_by_key(|p| p.id.tokens.start);
            check_cover(layer, &layout, tokens, pieces)?;
        }
        Ok(Self {
            layout,
            tokens,
            by_layer,
            past: None,
        })
    }

    /// The same set, of which is known how it was made.
    #[must_use]
    pub fn made(self, past: KvPast) -> Self {
        Self {
            past: Some(past),
            ..self
        }
    }

    /// How it was made; none where nobody invalidates anything.
    pub fn past(&self) -> Option<KvPast> {
        self.past
    }

    /// The longest beginning of whole blocks that these pieces are whole for, however they came: what is left of a set
    /// that broke off. As whole as any set, only shorter; of no token for a hybrid model, whose states are of the whole
    /// length alone, and where the pieces leave no beginning.
    pub fn beginning(layout: Arc<KvLayout>, pieces: &[KvPiece]) -> Self {
        let most = pieces.iter().map(|piece| piece.id.tokens.end).max().unwrap_or(0);
        let block = layout.block_tokens.max(1);
        let mut tokens = most / block * block;
        while tokens > 0 && !layout.is_hybrid() {
            let ends_within = |piece: &&KvPiece| piece.id.tokens.end <= tokens;
            let within: Vec<_> = pieces.iter().filter(ends_within).collect();
            let reached = reached(&layout, &within);
            if reached >= tokens {
                let set = Self::assemble(Arc::clone(&layout), tokens, within.into_iter().cloned());
                return set.unwrap_or_else(|_| Self::empty(layout));
            }
            tokens = reached / block * block;
        }
        Self::empty(layout)
    }

    /// Shapes and number format.
    pub fn layout(&self) -> &Arc<KvLayout> {
        &self.layout
    }

    /// How many tokens of the prompt are covered.
    pub fn tokens(&self) -> u32 {
        self.tokens
    }

    /// The pieces of one layer, by token position; empty for a layer that does not exist.
    pub fn layer(&self, layer: u16) -> &[KvPiece] {
        self.by_layer.get(usize::from(layer)).map_or(&[], Vec::as_slice)
    }

    /// All pieces, layer by layer.
    pub fn pieces(&self) -> impl Iterator<Item = &KvPiece> {
        self.by_layer.iter().flatten()
    }
}

/// How many tokens from the first on every layer's pieces cover.
fn reached(layout: &KvLayout, pieces: &[&KvPiece]) -> u32 {
    let of_layer = |(layer, _): (u16, &LayerKv)| {
        let of_it = pieces.iter().filter(|piece| piece.id.layer == layer);
        let mut ranges: Vec<_> = of_it.map(|piece| &piece.id.tokens).collect();
        ranges.sort_by_key(|range| range.start);
        ranges.iter().fold(0, |end: u32, range| match range.start <= end {
            true => range.end.max(end),
            false => end,
        })
    };
    (0u16..).zip(&layout.layers).map(of_layer).min().unwrap_or(0)
}

fn check_cover(layer: u16, layout: &KvLayout, tokens: u32, pieces: &[KvPiece]) -> Result<(), KvSetError> {
    let missed = |from: u32, to: u32| from < to && layout.needs(tokens, &(from..to));
    let mut reached = 0;
    match layout.layers[usize::from(layer)] {
        LayerKv::FullAttention { .. } => {
            for piece in pieces {
                let range = &piece.id.tokens;
                if range.start < reached || missed(reached, range.start) || range.end <= range.start {
                    return Err(KvSetError::NotWhole {
                        layer,
                        from: reached,
                        to: range.start.max(range.end),
                    });
                }
                reached = range.end;
            }
            if reached < tokens && !missed(reached, tokens) {
                reached = tokens;
            }
        }
        LayerKv::Recurrent { .. } if tokens == 0 && pieces.is_empty() => {}
        LayerKv::Recurrent { .. } => match pieces {
            [only] if only.id.tokens == (tokens..tokens) => reached = tokens,
            _ => {
                return Err(KvSetError::NotWhole {
                    layer,
                    from: 0,
                    to: tokens,
                });
            }
        },
    }
    if reached != tokens {
        return Err(KvSetError::NotWhole {
            layer,
            from: reached.min(tokens),
            to: reached.max(tokens),
        });
    }
    Ok(())
}

/// The piece that covers `tokens` of an attention layer, or a recurrent state when `tokens` is empty.
pub fn piece_id(layer: u16, start: u32, tokens: Tokens) -> PieceId {
    PieceId {
        layer,
        tokens: start..start.saturating_add(tokens.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_base::ModelName;
    use portolan_base::kv::{KvDtype, KvWindow};

    fn layout() -> Arc<KvLayout> {
        Arc::new(KvLayout {
            model: ModelName::new("m").unwrap(),
            model_version: 1,
            dtype: KvDtype::F32,
            block_tokens: 4,
            window: None,
            layers: vec![
                LayerKv::FullAttention {
                    kv_heads: 1,
                    head_dim: 2,
                },
                LayerKv::Recurrent {
                    conv_channels: 1,
                    conv_width: 1,
                    heads: 1,
                    key_dim: 1,
                    value_dim: 1,
                },
            ],
        })
    }

    fn attention(start: u32, tokens: u32) -> KvPiece {
        KvPiece {
            id: piece_id(0, start, Tokens(tokens)),
            bytes: Bytes::from(vec![0; tokens as usize * 16]),
        }
    }

    fn state(at: u32) -> KvPiece {
        KvPiece {
            id: piece_id(1, at, Tokens(0)),
            bytes: Bytes::from(vec![0; 8]),
        }
    }

    #[test]
    fn a_whole_set_in_any_order_is_taken() {
        let set = KvSet::assemble(layout(), 6, [attention(4, 2), state(6), attention(0, 4)]).unwrap();
        assert_eq!(
            set.layer(0).iter().map(|p| p.id.tokens.start).collect::<Vec<_>>(),
            [0, 4]
        );
        assert!(KvSet::assemble(layout(), 0, []).is_ok());
    }

    #[test]
    fn a_window_leaves_out_what_nothing_will_look_at() {
        let mut layout = KvLayout::clone(&layout());
        // The next token, at 18, sees 16..19 and token 0: blocks 0..4 and 16..18.
        layout.window = Some(KvWindow { tokens: 3, sinks: 1 });
        let layout = Arc::new(layout);
        let assemble = |pieces: Vec<KvPiece>| KvSet::assemble(Arc::clone(&layout), 18, pieces);
        assert!(assemble(vec![attention(0, 4), attention(16, 2), state(18)]).is_ok());
        assert!(assemble(vec![attention(0, 18), state(18)]).is_ok());
        for missing in [
            vec![attention(16, 2), state(18)],
            vec![attention(0, 4), attention(17, 1), state(18)],
            vec![attention(0, 4), attention(16, 1), state(18)],
            vec![attention(0, 4), attention(3, 15), state(18)],
            vec![attention(0, 4), state(18)],
        ] {
            assert!(assemble(missing.clone()).is_err(), "{missing:?}");
        }
    }

    /// Two attention layers.
    fn dense() -> Arc<KvLayout> {
        let mut dense = KvLayout::clone(&layout());
        dense.layers = vec![dense.layers[0]; 2];
        Arc::new(dense)
    }

    fn of_layer(layer: u16, start: u32) -> KvPiece {
        KvPiece {
            id: piece_id(layer, start, Tokens(4)),
            bytes: Bytes::from(vec![start as u8; 64]),
        }
    }

    #[test]
    fn what_broke_off_is_whole_as_far_as_every_layer_came() {
        let beginning = |pieces: &[KvPiece]| KvSet::beginning(dense(), pieces);
        let both = |start| [of_layer(0, start), of_layer(1, start)];
        let all = [both(0), both(4), both(8)].concat();
        assert_eq!((beginning(&all).tokens(), beginning(&[]).tokens()), (12, 0));
        // A piece that is missing ends it, whatever came after; pieces come in any order.
        for (missing, left) in [(5, 8), (4, 8), (3, 4), (2, 4), (1, 0), (0, 0)] {
            let mut came = all.clone();
            came.remove(missing);
            came.reverse();
            let set = beginning(&came);
            assert_eq!(set.tokens(), left, "without {missing}");
            assert_eq!(set.pieces().count() as u32, left / 2);
        }
    }

    #[test]
    fn what_broke_off_is_nothing_where_it_cannot_be_whole() {
        let pieces = [attention(0, 4), attention(4, 4), state(8)];
        assert_eq!(
            KvSet::beginning(layout(), &pieces).tokens(),
            0,
            "states are of the whole length"
        );
        let mut windowed = KvLayout::clone(&dense());
        windowed.window = Some(KvWindow { tokens: 3, sinks: 1 });
        // For 20 tokens block 0 and those from 16 on are sent; the first four tokens alone are whole.
        let pieces: Vec<_> = [0, 16]
            .iter()
            .flat_map(|at| [of_layer(0, *at), of_layer(1, *at)])
            .collect();
        let windowed = Arc::new(windowed);
        assert_eq!(KvSet::beginning(Arc::clone(&windowed), &pieces[..3]).tokens(), 4);
        let twice = [of_layer(0, 0), of_layer(0, 0), of_layer(1, 0)];
        assert_eq!(KvSet::beginning(dense(), &twice).tokens(), 0);
        let torn = KvPiece {
            bytes: Bytes::from(vec![0; 63]),
            ..of_layer(1, 0)
        };
        assert_eq!(KvSet::beginning(dense(), &[of_layer(0, 0), torn]).tokens(), 0);
    }

    #[test]
    fn a_set_with_any_fault_is_refused() {
        let cases: [(&str, Vec<KvPiece>); 7] = [
            ("gap", vec![attention(0, 2), attention(4, 2), state(6)]),
            ("overlap", vec![attention(0, 4), attention(2, 4), state(6)]),
            ("short", vec![attention(0, 4), state(6)]),
            ("long", vec![attention(0, 8), state(6)]),
            ("state at another length", vec![attention(0, 6), state(4)]),
            ("no state", vec![attention(0, 6)]),
            ("two states", vec![attention(0, 6), state(6), state(6)]),
        ];
        for (what, pieces) in cases {
            let refused = KvSet::assemble(layout(), 6, pieces);
            assert!(
                matches!(refused, Err(KvSetError::NotWhole { .. })),
                "{what}: {refused:?}"
            );
        }
        let torn = KvPiece {
            bytes: Bytes::from(vec![0; 95]),
            ..attention(0, 6)
        };
        assert!(matches!(
            KvSet::assemble(layout(), 6, [torn, state(6)]),
            Err(KvSetError::WrongSize { .. })
        ));
        let stray = KvPiece {
            id: piece_id(9, 0, Tokens(6)),
            bytes: Bytes::new(),
        };
        assert!(matches!(
            KvSet::assemble(layout(), 6, [stray]),
            Err(KvSetError::UnknownLayer { .. })
        ));
    }
}
