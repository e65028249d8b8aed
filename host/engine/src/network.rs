//! The forward pass: a stack of layers whose state goes in and out layer by layer, computed by the crate's own kernels or
//! by the tensor library.

pub(crate) mod attention;
pub(crate) mod config;
pub(crate) mod delta_net;
pub(crate) mod experts;
pub(crate) mod host;
pub(crate) mod mlp;
pub(crate) mod short_conv;
pub(crate) mod state;
pub(crate) mod tensors;

use crate::device::{ComputeDevice, DeviceError};
use crate::kernel::Rows;
use crate::kernel::linear::Linear;
use candle_core::Tensor;
use config::NetworkConfig;
use host::HostNetwork;
use portolan_base::kv::LayerKv;
use state::{LayerState, SequenceState};
use std::ops::{ControlFlow, Range};
use tensors::TensorNetwork;

/// Why a forward pass ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ForwardError {
    /// The observer of the layers said stop.
    #[error("the job was cancelled")]
    Cancelled,
    /// The state was made for another model.
    #[error("the state of layer {0} is of another kind than the layer")]
    State(usize),
    /// The tensor library or the device below it failed.
    #[error("the device failed: {0}")]
    Device(#[from] Box<candle_core::Error>),
}

impl From<candle_core::Error> for ForwardError {
    fn from(error: candle_core::Error) -> Self {
        Self::Device(Box::new(error))
    }
}

/// Sees a layer's state of a sequence as soon as it is complete; may stop the pass.
pub(crate) type Observer<'a> = dyn FnMut(usize, &LayerState) -> ControlFlow<()> + Send + 'a;

/// Some rows of a pass: tokens of one sequence, which follow those already in its state.
#[derive(Debug)]
struct Part<'a> {
    rows: Range<usize>,
    state: &'a mut SequenceState,
}

impl Part<'_> {
    /// Where its rows lie in their sequence.
    fn positions(&self) -> Range<usize> {
        self.state.tokens..self.state.tokens + self.rows.len()
    }
}

/// The residual stream after the last layer, one row a token, where it was computed.
#[derive(Debug)]
pub(crate) enum Stream {
    /// In memory.
    Host(Rows),
    /// On the tensor library's device.
    Tensors(Tensor),
}

/// A transformer with its weights.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) config: NetworkConfig,
    /// Looked up by the processor, wherever the layers are: a token's row is all that is read of it.
    embedding: Linear,
    layers: Layers,
}

/// What computes the layers.
#[derive(Debug)]
enum Layers {
    Host(HostNetwork),
    Tensors(TensorNetwork),
}

impl Network {
    /// A network that the processor computes.
    pub(crate) fn new(config: NetworkConfig, embedding: Linear, layers: HostNetwork) -> Self {
        Self {
            config,
            embedding,
            layers: Layers::Host(layers),
        }
    }

    /// The same network, computed by the tensor library on `device`.
    pub(crate) fn on(&self, device: ComputeDevice) -> Result<Self, DeviceError> {
        let Layers::Host(host) = &self.layers else {
            return Err(DeviceError::Moved);
        };
        if self.config.window.is_some() {
            return Err(DeviceError::Window);
        }
        let network = Self {
            config: self.config.clone(),
            embedding: self.embedding.clone(),
            layers: Layers::Tensors(TensorNetwork::new(host, device)?),
        };
        network.try_out(device)?;
        Ok(network)
    }

    /// Runs a few tokens, so that a device that does not work shows before it serves, and its kernels are loaded when the
    /// first measurement is taken.
    fn try_out(&self, device: ComputeDevice) -> Result<(), DeviceError> {
        let mut state = self.fresh_state();
        let mut watch = |_: usize, _: &LayerState| ControlFlow::Continue(());
        let ran = self
            .run(&[0, 0], &mut state, &mut watch)
            .and_then(|_| self.step(self.embed(&[0]), vec![&mut state], &mut watch));
        match ran {
            Ok(_) => Ok(()),
            Err(ForwardError::Device(source)) => Err(DeviceError::Unusable { device, source }),
            Err(other) => {
                let source = Box::new(candle_core::Error::wrap(other));
                Err(DeviceError::Unusable { device, source })
            }
        }
    }

    /// What each layer keeps, in order.
    pub(crate) fn layer_kv(&self) -> Vec<LayerKv> {
        match &self.layers {
            Layers::Host(host) => host.layer_kv(),
            Layers::Tensors(tensors) => tensors.layer_kv(),
        }
    }

    /// The state before the first token.
    pub(crate) fn fresh_state(&self) -> SequenceState {
        match &self.layers {
            Layers::Host(host) => SequenceState::new(&host.layer_kv(), self.config.window),
            Layers::Tensors(tensors) => tensors.fresh_state(),
        }
    }

    /// Runs `tokens`, which follow those already in `state`, and returns the residual stream after the last layer.
    /// `observe` sees each layer's state as soon as it is complete, and may stop the pass; `state` is then unusable.
    pub(crate) fn run(
        &self,
        tokens: &[u32],
        state: &mut SequenceState,
        observe: &mut Observer<'_>,
    ) -> Result<Stream, ForwardError> {
        let rows = 0..tokens.len();
        let (inputs, parts) = (self.embed(tokens), &mut [Part { rows, state }]);
        match &self.layers {
            Layers::Host(host) => host.pass(inputs, parts, observe).map(Stream::Host),
            Layers::Tensors(tensors) => tensors.run(&inputs, parts, observe).map(Stream::Tensors),
        }
    }

    /// Runs one token of each of several sequences, given by its embedding, and returns the logits after each. What one
    /// sequence gets does not depend on the others, where the crate's own kernels compute. `observe` sees each layer's
    /// state of each sequence, and may stop the pass; the states are then unusable.
    pub(crate) fn step(
        &self,
        inputs: Rows,
        states: Vec<&mut SequenceState>,
        observe: &mut Observer<'_>,
    ) -> Result<Rows, ForwardError> {
        let part = |(row, state)| Part {
            rows: row..row + 1,
            state,
        };
        let mut parts: Vec<Part<'_>> = states.into_iter().enumerate().map(part).collect();
        match &self.layers {
            Layers::Host(host) => {
                let stream = host.pass(inputs, &mut parts, observe)?;
                Ok(host.logits(&stream))
            }
            Layers::Tensors(tensors) => tensors.step(&inputs, &mut parts, observe),
        }
    }

    /// The logits of every row of a residual stream that this network computed.
    pub(crate) fn logits(&self, stream: &Stream) -> Result<Rows, ForwardError> {
        match (&self.layers, stream) {
            (Layers::Host(host), Stream::Host(rows)) => Ok(host.logits(rows)),
            (Layers::Tensors(tensors), Stream::Tensors(rows)) => Ok(tensors.logits(rows)?),
            _ => Err(ForwardError::State(0)),
        }
    }

    /// The rows that tokens enter the first layer as.
    ///
    /// # Panics
    /// When a token is beyond the embedding table; jobs are checked against the vocabulary before they come here.
    pub(crate) fn embed(&self, tokens: &[u32]) -> Rows {
        let mut values = Vec::with_capacity(tokens.len() * self.config.hidden);
        for token in tokens {
            values.extend(self.embedding.weight_row(*token as usize));
        }
        Rows::new(values, self.config.hidden)
    }
}
