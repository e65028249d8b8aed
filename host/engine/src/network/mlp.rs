//! The feed-forward network of a layer.

use crate::kernel::linear::Linear;
use crate::kernel::{Rows, silu};

/// `down(silu(gate(x)) * up(x))`.
#[derive(Debug)]
pub(crate) struct Mlp {
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl Mlp {
    pub(crate) fn forward(&self, x: &Rows) -> candle_core::Result<Rows> {
        let mut gate = self.gate.forward(x)?;
        let up = self.up.forward(x)?;
        for (g, u) in gate.values_mut().iter_mut().zip(up.values()) {
            *g = silu(*g) * u;
        }
        self.down.forward(&gate)
    }
}
