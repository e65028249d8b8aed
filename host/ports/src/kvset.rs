//! KV in hand: pieces, and sets that were found whole.

use bytes::Bytes;
use portolan_base::Tokens;
use portolan_base::kv::{KvLayout, LayerKv, PieceId};
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
}

impl KvSet {
    /// The KV of no token.
    pub fn empty(layout: Arc<KvLayout>) -> Self {
        let by_layer = vec![Vec::new(); layout.layers.len()];
        Self {
            layout,
            tokens: 0,
            by_layer,
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
        })
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
