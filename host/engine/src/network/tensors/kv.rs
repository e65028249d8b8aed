//! Keys and values of one layer of one sequence, on a device.

use super::exit::{Exit, Leaving};
use super::layer::KvShape;
use crate::BLOCK_TOKENS;
use crate::network::state::{floats, to_bytes};
use bytes::Bytes;
use candle_core::{DType, Device, Error, Result, Tensor};
use std::fmt;
use std::ops::Range;

/// Keys and values so far. What was restored waits in memory until the sequence is computed further.
pub(crate) struct TensorKv {
    device: Device,
    shape: KvShape,
    /// `[2 * kv_heads, room, head_dim]`, keys before values; of the room, the first `there` tokens mean something.
    kept: Option<Tensor>,
    there: usize,
    waiting: Vec<Waiting>,
    leaving: Option<(Range<usize>, Leaving)>,
}

/// Keys and values of some tokens in memory, `[2 * kv_heads, tokens, head_dim]`.
struct Waiting {
    tokens: Range<usize>,
    values: Vec<f32>,
}

impl TensorKv {
    pub(super) fn new(device: Device, shape: KvShape) -> Self {
        Self {
            device,
            shape,
            kept: None,
            there: 0,
            waiting: Vec::new(),
            leaving: None,
        }
    }

    /// The position of the next token.
    pub(super) fn tokens(&self) -> usize {
        self.waiting.last().map_or(self.there, |piece| piece.tokens.end)
    }

    /// Bytes of the keys and values, wherever they are.
    pub(crate) fn bytes(&self) -> u64 {
        (self.tokens() * self.token_values() * size_of::<f32>()) as u64
    }

    /// Whether all of these tokens are there.
    pub(crate) fn holds(&self, tokens: &Range<usize>) -> bool {
        tokens.end <= self.tokens()
    }

    /// Takes a piece that begins at token `start`. It goes to the device with the next tokens that are computed.
    pub(crate) fn restore(&mut self, start: usize, piece: &[u8]) {
        let values: Vec<f32> = floats(piece).collect();
        let tokens = start..start + values.len() / self.token_values().max(1);
        self.waiting.push(Waiting { tokens, values });
    }

    /// Adds `[2 * kv_heads, tokens, head_dim]`, after what was restored.
    pub(super) fn append(&mut self, new: &Tensor) -> Result<()> {
        self.take_in()?;
        self.write(new)
    }

    /// All keys and all values on the device, each `[kv_heads, tokens, head_dim]`.
    pub(super) fn keys_values(&self) -> Result<(Tensor, Tensor)> {
        let heads = self.shape.kv_heads;
        let all = self.on_device(0..self.there)?;
        Ok((all.narrow(0, 0, heads)?, all.narrow(0, heads, heads)?))
    }

    /// Sets tokens that were just computed on their way out of the device.
    pub(super) fn begin_to_leave(&mut self, tokens: Range<usize>, exit: &Exit) -> Result<()> {
        let leaving = exit.begin(self.on_device(tokens.clone())?.contiguous()?)?;
        self.leaving = Some((tokens, leaving));
        Ok(())
    }

    /// Whoever wanted what was on its way out has it.
    pub(super) fn has_left(&mut self) {
        self.leaving = None;
    }

    /// Keys and values of a token range that is there, `[2, kv_heads, tokens, head_dim]`.
    pub(crate) fn piece(&self, tokens: Range<usize>) -> Result<Bytes> {
        if let Some((_, leaving)) = self.leaving.iter().find(|(range, _)| *range == tokens) {
            return leaving.values(|values| to_bytes([values]));
        }
        let mut parts = Vec::new();
        let on_device = tokens.start..tokens.end.min(self.there);
        if !on_device.is_empty() {
            let values = self.on_device(on_device.clone())?.flatten_all()?.to_vec1()?;
            parts.push(Waiting {
                tokens: on_device,
                values,
            });
        }
        let wanted = self.waiting.iter().filter_map(|piece| self.cut(piece, &tokens));
        parts.extend(wanted);
        Ok(to_bytes([self.joined(&parts).as_slice()]))
    }

    /// Brings what was restored to the device.
    fn take_in(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut next = self.there;
        for piece in &waiting {
            if piece.tokens.start != next || piece.values.len() != piece.tokens.len() * self.token_values() {
                let begins = piece.tokens.start;
                return Err(Error::msg(format!(
                    "a piece of KV begins at token {begins}, or is cut short; token {next} comes next"
                )));
            }
            next = piece.tokens.end;
        }
        if next == self.there {
            return Ok(());
        }
        let shape = (2 * self.shape.kv_heads, next - self.there, self.shape.head_dim);
        self.write(&Tensor::from_vec(self.joined(&waiting), shape, &self.device)?)
    }

    fn write(&mut self, new: &Tensor) -> Result<()> {
        let reached = self.there + new.dim(1)?;
        let kept = self.with_room(reached)?;
        kept.slice_set(&new.contiguous()?, 1, self.there)?;
        self.there = reached;
        Ok(())
    }

    /// The tensor, with room for so many tokens: half as many again whenever it is too small, in whole blocks.
    fn with_room(&mut self, tokens: usize) -> Result<Tensor> {
        let room = self.kept.as_ref().map_or(Ok(0), |kept| kept.dim(1))?;
        if let Some(kept) = self.kept.as_ref().filter(|_| tokens <= room) {
            return Ok(kept.clone());
        }
        let room = tokens
            .max(room + room / 2)
            .next_multiple_of(BLOCK_TOKENS as usize);
        let shape = (2 * self.shape.kv_heads, room, self.shape.head_dim);
        let wide = Tensor::zeros(shape, DType::F32, &self.device)?;
        if self.there > 0 {
            wide.slice_set(&self.on_device(0..self.there)?.contiguous()?, 1, 0)?;
        }
        self.kept = Some(wide.clone());
        Ok(wide)
    }

    fn on_device(&self, tokens: Range<usize>) -> Result<Tensor> {
        match &self.kept {
            Some(kept) => kept.narrow(1, tokens.start, tokens.len()),
            None => Err(Error::msg("no KV was computed on the device")),
        }
    }

    /// Values of all heads of one token.
    fn token_values(&self) -> usize {
        2 * self.shape.kv_heads * self.shape.head_dim
    }

    /// The part of a piece that lies within `tokens`.
    fn cut(&self, piece: &Waiting, tokens: &Range<usize>) -> Option<Waiting> {
        let common = piece.tokens.start.max(tokens.start)..piece.tokens.end.min(tokens.end);
        if common.is_empty() {
            return None;
        }
        let width = self.shape.head_dim;
        let (skip, len) = ((common.start - piece.tokens.start) * width, common.len() * width);
        let heads = piece.values.chunks_exact(piece.tokens.len() * width);
        Some(Waiting {
            values: heads.flat_map(|head| &head[skip..skip + len]).copied().collect(),
            tokens: common,
        })
    }

    /// Pieces one after the other: each head's tokens side by side.
    fn joined(&self, parts: &[Waiting]) -> Vec<f32> {
        let width = self.shape.head_dim;
        let of_head = |head: usize| {
            parts.iter().flat_map(move |part| {
                let len = part.tokens.len() * width;
                &part.values[head * len..(head + 1) * len]
            })
        };
        (0..2 * self.shape.kv_heads).flat_map(of_head).copied().collect()
    }
}

impl fmt::Debug for TensorKv {
    /// Without the values, which a user's prompt could be guessed from.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorKv")
            .field("shape", &self.shape)
            .field("tokens", &self.tokens())
            .finish_non_exhaustive()
    }
}
