//! A recurrent state of one layer of one sequence, on a device.

use crate::network::state::{floats, to_bytes};
use bytes::Bytes;
use candle_core::{Device, Error, Result, Tensor};
use portolan_base::kv::LayerKv;
use std::fmt;

/// The last inputs of a convolution, and the memory of each head. What was restored waits in memory until the sequence is
/// computed further.
pub(crate) struct TensorRecurrent {
    device: Device,
    shape: RecurrentShape,
    kept: Kept,
}

/// Sizes of a recurrent state; no heads: no memory beside the convolution's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecurrentShape {
    pub(super) channels: usize,
    pub(super) width: usize,
    pub(super) heads: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
}

enum Kept {
    /// As a piece has it: `[channels, width]`, then `[heads, key_dim, value_dim]`.
    Waiting(Vec<f32>),
    OnDevice(Recurrent),
}

/// A state that is computed with.
#[derive(Clone)]
pub(super) struct Recurrent {
    /// `[width, channels]`, the newest input last.
    pub(super) inputs: Tensor,
    /// `[heads, key_dim, value_dim]`; none where there are no heads.
    pub(super) memory: Option<Tensor>,
}

impl RecurrentShape {
    pub(super) fn kv(self) -> LayerKv {
        LayerKv::Recurrent {
            conv_channels: self.channels as u32,
            conv_width: self.width as u32,
            heads: self.heads as u32,
            key_dim: self.key_dim as u32,
            value_dim: self.value_dim as u32,
        }
    }

    fn inputs(self) -> usize {
        self.channels * self.width
    }

    fn memory(self) -> usize {
        self.heads * self.key_dim * self.value_dim
    }
}

impl TensorRecurrent {
    pub(super) fn new(device: Device, shape: RecurrentShape) -> Self {
        let kept = Kept::Waiting(vec![0.0; shape.inputs() + shape.memory()]);
        Self { device, shape, kept }
    }

    /// Takes the place of the state; it goes to the device when the sequence is computed further.
    pub(crate) fn restore(&mut self, piece: &[u8]) {
        self.kept = Kept::Waiting(floats(piece).collect());
    }

    /// The whole state, as [`LayerKv`] lays it out.
    pub(crate) fn piece(&self) -> Result<Bytes> {
        let kept = match &self.kept {
            Kept::Waiting(values) => return Ok(to_bytes([values.as_slice()])),
            Kept::OnDevice(kept) => kept,
        };
        let inputs: Vec<f32> = kept.inputs.t()?.contiguous()?.flatten_all()?.to_vec1()?;
        let memory: Vec<f32> = match &kept.memory {
            Some(memory) => memory.flatten_all()?.to_vec1()?,
            None => Vec::new(),
        };
        Ok(to_bytes([inputs.as_slice(), &memory]))
    }

    /// The state on the device.
    pub(super) fn get(&self) -> Result<Recurrent> {
        let values = match &self.kept {
            Kept::Waiting(values) => values,
            Kept::OnDevice(kept) => return Ok(kept.clone()),
        };
        let RecurrentShape {
            channels,
            width,
            heads,
            key_dim,
            value_dim,
        } = self.shape;
        if values.len() != self.shape.inputs() + self.shape.memory() {
            let found = values.len();
            return Err(Error::msg(format!(
                "a recurrent state of {found} values was restored, for a layer of another size"
            )));
        }
        let (inputs, memory) = values.split_at(self.shape.inputs());
        let inputs = Tensor::from_slice(inputs, (channels, width), &self.device)?;
        let memory = match heads {
            0 => None,
            _ => Some(Tensor::from_slice(
                memory,
                (heads, key_dim, value_dim),
                &self.device,
            )?),
        };
        Ok(Recurrent {
            inputs: inputs.t()?.contiguous()?,
            memory,
        })
    }

    pub(super) fn set(&mut self, state: Recurrent) {
        self.kept = Kept::OnDevice(state);
    }
}

impl Recurrent {
    /// Pushes rows (`[rows, channels]`) into the convolution's inputs; each row's weighted sum of the last inputs, by
    /// `weights`, `[width, channels]`.
    pub(super) fn convolve(&mut self, rows: &Tensor, weights: &Tensor) -> Result<Tensor> {
        let (width, count) = (weights.dim(0)?, rows.dim(0)?);
        let all = Tensor::cat(&[&self.inputs, rows], 0)?;
        let mut sum: Option<Tensor> = None;
        for column in 0..width {
            let inputs = all.narrow(0, column + 1, count)?;
            let product = inputs.broadcast_mul(&weights.narrow(0, column, 1)?)?;
            sum = Some(match sum {
                Some(sum) => (sum + product)?,
                None => product,
            });
        }
        self.inputs = all.narrow(0, count, width)?.copy()?;
        sum.ok_or_else(|| Error::msg("a convolution without columns"))
    }
}

impl fmt::Debug for TensorRecurrent {
    /// Without the values, which are a user's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorRecurrent")
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}
