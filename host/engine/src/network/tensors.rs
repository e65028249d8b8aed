//! The forward pass by the tensor library, on whatever device it drives.
//!
//! The processor asks for work and the device does it, one after the other in one stream; the two meet only where values
//! come back. While a layer is computed, the KV of the layer before leaves.

mod delta_net;
mod exit;
mod experts;
mod kv;
mod layer;
mod places;
mod recurrent;
mod short_conv;
#[cfg(test)]
mod tests;

pub(crate) use kv::TensorKv;
pub(crate) use recurrent::TensorRecurrent;

use super::host::HostNetwork;
use super::state::{AttentionState, LayerState, RecurrentState, SequenceState};
use super::{ForwardError, Observer, Part};
use crate::BLOCK_TOKENS;
use crate::device::{ComputeDevice, DeviceError};
use crate::kernel::Rows;
use crate::kernel::rope::Rope;
use candle_core::{Device, Tensor};
use exit::Exit;
use layer::{TensorLayer, TensorMixer, matrix, normed, product, vector};
use places::Places;
use portolan_base::kv::LayerKv;
use std::ops::Range;

/// A model on a device, in 32-bit floats.
#[derive(Debug)]
pub(crate) struct TensorNetwork {
    device: Device,
    layers: Vec<TensorLayer>,
    norm: Tensor,
    norm_epsilon: f32,
    head: Tensor,
    rope: Rope,
    exit: Exit,
}

/// Whether the KV that a pass computes is wanted outside of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    Stays,
    LayerByLayer,
}

impl TensorNetwork {
    /// Copies the weights of `host` to `device`.
    pub(super) fn new(host: &HostNetwork, device: ComputeDevice) -> Result<Self, DeviceError> {
        let unusable = |source| DeviceError::Unusable {
            device,
            source: Box::new(source),
        };
        let on = device.open()?;
        Self::copied(host, on).map_err(unusable)
    }

    fn copied(host: &HostNetwork, device: Device) -> candle_core::Result<Self> {
        // First, so that the device knows that several streams use what is copied there.
        let exit = Exit::open(&device, largest_piece(&host.layer_kv()))?;
        let layers = host.layers.iter();
        Ok(Self {
            layers: layers
                .map(|layer| TensorLayer::new(layer, &device))
                .collect::<Result<_, _>>()?,
            norm: vector(&host.norm, &device)?,
            norm_epsilon: host.norm_epsilon,
            head: matrix(&host.head, &device)?,
            rope: host.rope.clone(),
            exit,
            device,
        })
    }

    /// What each layer keeps, in order.
    pub(super) fn layer_kv(&self) -> Vec<LayerKv> {
        self.layers.iter().map(TensorLayer::kv).collect()
    }

    /// The state before the first token.
    pub(super) fn fresh_state(&self) -> SequenceState {
        let layers = self.layers.iter();
        SequenceState {
            layers: layers.map(|layer| layer.fresh_state(&self.device)).collect(),
            tokens: 0,
        }
    }

    /// One sequence's next tokens; returns when the device has computed them.
    pub(super) fn run(
        &self,
        inputs: &Rows,
        parts: &mut [Part<'_>],
        observe: &mut Observer<'_>,
    ) -> Result<Tensor, ForwardError> {
        let stream = self.pass(inputs, parts, (Leaves::LayerByLayer, observe))?;
        self.device.synchronize()?;
        Ok(stream)
    }

    /// One token of each of several sequences; the logits after each.
    pub(super) fn step(
        &self,
        inputs: &Rows,
        parts: &mut [Part<'_>],
        observe: &mut Observer<'_>,
    ) -> Result<Rows, ForwardError> {
        let stream = self.pass(inputs, parts, (Leaves::Stays, observe))?;
        Ok(self.logits(&stream)?)
    }

    /// The logits of every row of the residual stream.
    pub(super) fn logits(&self, stream: &Tensor) -> candle_core::Result<Rows> {
        let logits = product(&normed(stream, &self.norm, self.norm_epsilon)?, &self.head)?;
        let width = logits.dim(1)?;
        Ok(Rows::new(logits.flatten_all()?.to_vec1()?, width))
    }

    fn pass(
        &self,
        inputs: &Rows,
        parts: &mut [Part<'_>],
        (leaves, observe): (Leaves, &mut Observer<'_>),
    ) -> Result<Tensor, ForwardError> {
        let shape = (inputs.len(), inputs.width());
        let mut stream = Tensor::from_slice(inputs.values(), shape, &self.device)?;
        let positions: Vec<Range<usize>> = parts.iter().map(Part::positions).collect();
        let places = Places::new(&self.rope, &positions, &self.device)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let input = normed(&stream, &layer.mixer_norm, self.norm_epsilon)?;
            stream = (stream + mix((index, layer), &input, &places, parts)?)?;
            if leaves == Leaves::LayerByLayer {
                for (state, new) in keys_values(parts, index).zip(&positions) {
                    state.begin_to_leave(new.clone(), &self.exit)?;
                }
            }
            let input = normed(&stream, &layer.mlp_norm, self.norm_epsilon)?;
            stream = (stream + layer.mlp.forward(&input)?)?;
            // The device has this layer to compute while the processor waits for the KV of the one before.
            if let Some(before) = index.checked_sub(1) {
                show(before, parts, observe)?;
            }
        }
        if let Some(last) = self.layers.len().checked_sub(1) {
            show(last, parts, observe)?;
        }
        for part in parts {
            part.state.tokens += part.rows.len();
        }
        Ok(stream)
    }
}

/// The mixer of layer number `index`, each sequence's rows with its own state.
fn mix(
    (index, layer): (usize, &TensorLayer),
    input: &Tensor,
    places: &Places,
    parts: &mut [Part<'_>],
) -> Result<Tensor, ForwardError> {
    let kept = parts.iter_mut().map(|part| {
        let state = part.state.layers.get_mut(index);
        (part.rows.clone(), state)
    });
    if let TensorMixer::Attention(attention) = &layer.mixer {
        let own = kept.map(|(rows, state)| match state {
            Some(LayerState::Attention(AttentionState::Tensors(state))) => Ok((rows, state)),
            _ => Err(ForwardError::State(index)),
        });
        let mut states = own.collect::<Result<Vec<_>, _>>()?;
        return Ok(attention.forward(input, places, &mut states)?);
    }
    let own = kept.map(|(rows, state)| match state {
        Some(LayerState::Recurrent(RecurrentState::Tensors(state))) => Ok((rows, state)),
        _ => Err(ForwardError::State(index)),
    });
    let mut states = own.collect::<Result<Vec<_>, _>>()?;
    match &layer.mixer {
        TensorMixer::DeltaNet(delta) => Ok(delta.forward(input, &mut states)?),
        TensorMixer::ShortConv(conv) => Ok(conv.forward(input, &mut states)?),
        TensorMixer::Attention(_) => Err(ForwardError::State(index)),
    }
}

/// The keys and values of layer number `index` of every sequence, where it keeps any.
fn keys_values<'a>(parts: &'a mut [Part<'_>], index: usize) -> impl Iterator<Item = &'a mut TensorKv> {
    let own = move |part: &'a mut Part<'_>| match part.state.layers.get_mut(index) {
        Some(LayerState::Attention(AttentionState::Tensors(state))) => Some(state),
        _ => None,
    };
    parts.iter_mut().filter_map(own)
}

/// Lets the observer see a layer of every sequence.
fn show(index: usize, parts: &mut [Part<'_>], observe: &mut Observer<'_>) -> Result<(), ForwardError> {
    for part in &*parts {
        let state = part.state.layers.get(index).ok_or(ForwardError::State(index))?;
        if observe(index, state).is_break() {
            return Err(ForwardError::Cancelled);
        }
    }
    keys_values(parts, index).for_each(TensorKv::has_left);
    Ok(())
}

/// Values of the keys and values of one block of the widest layer.
fn largest_piece(layers: &[LayerKv]) -> usize {
    let values = |layer: &LayerKv| match *layer {
        LayerKv::FullAttention { kv_heads, head_dim } => {
            2 * kv_heads as usize * head_dim as usize * BLOCK_TOKENS as usize
        }
        LayerKv::Recurrent { .. } => 0,
    };
    layers.iter().map(values).max().unwrap_or(0)
}
