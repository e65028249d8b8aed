//! The feed-forward network of a layer.

use crate::kernel::linear::{Linear, forward_all};
use crate::kernel::{Rows, silu};
use rayon::prelude::*;

/// `down(silu(gate(x)) * up(x))`.
#[derive(Debug)]
pub(crate) struct Mlp {
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

impl Mlp {
    pub(crate) fn forward(&self, x: &Rows) -> Rows {
        let [mut gate, up] = forward_all([&self.gate, &self.up], x);
        let width = gate.width();
        let rows = gate.values_mut().par_chunks_mut(width);
        rows.zip(up.values().par_chunks(width)).for_each(|(gate, up)| {
            for (g, u) in gate.iter_mut().zip(up) {
                *g = silu(*g) * u;
            }
        });
        self.down.forward(&gate)
    }
}
