//! Grouped-query attention: dense Qwen3 and Llama, and the gated form of Qwen3.5.

use super::config::{AttentionConfig, OutputGate};
use super::state::HostKv;
use crate::kernel::attend::{View, attend};
use crate::kernel::linear::{Linear, forward_all};
use crate::kernel::rope::Rotation;
use crate::kernel::{Rows, rms_norm, sigmoid};
use portolan_base::kv::LayerKv;
use std::ops::Range;

/// One attention layer's weights.
#[derive(Debug)]
pub(crate) struct Attention {
    pub(crate) config: AttentionConfig,
    pub(crate) norm_epsilon: f32,
    pub(crate) query: Linear,
    pub(crate) key: Linear,
    pub(crate) value: Linear,
    pub(crate) output: Linear,
    /// Weight of the query norm, one head wide, where the model has one.
    pub(crate) query_norm: Option<Vec<f32>>,
    /// Weight of the key norm, likewise.
    pub(crate) key_norm: Option<Vec<f32>>,
}

impl Attention {
    pub(crate) fn kv(&self) -> LayerKv {
        LayerKv::FullAttention {
            kv_heads: self.config.kv_heads as u32,
            head_dim: self.config.head_dim as u32,
        }
    }

    /// Appends the keys and values of `x` to the states of the sequences whose rows they are, and attends to all of
    /// each.
    pub(crate) fn forward(
        &self,
        x: &Rows,
        rotation: &Rotation,
        states: &mut [(Range<usize>, &mut HostKv)],
    ) -> Rows {
        let [queries, mut keys, values] = forward_all([&self.query, &self.key, &self.value], x);
        let (mut queries, gate) = self.split_gate(queries);
        self.position(&mut queries, self.query_norm.as_deref(), rotation);
        self.position(&mut keys, self.key_norm.as_deref(), rotation);
        let mut views = Vec::with_capacity(x.len());
        for (rows, state) in states {
            let start = state.tokens();
            state.append((&keys, &values), rows.clone());
            let kv = state.keys_values();
            views.extend((start..start + rows.len()).map(|position| View { kv, position }));
        }
        let mut mixed = attend(&queries, &views);
        if let Some(gate) = gate {
            for (m, g) in mixed.values_mut().iter_mut().zip(gate) {
                *m *= sigmoid(g);
            }
        }
        self.output.forward(&mixed)
    }

    /// Separates queries from gates, which alternate head by head.
    fn split_gate(&self, projected: Rows) -> (Rows, Option<Vec<f32>>) {
        let head_dim = self.config.head_dim;
        if self.config.gate == OutputGate::Absent {
            return (projected, None);
        }
        let mut queries = Vec::with_capacity(projected.values().len() / 2);
        let mut gate = Vec::with_capacity(projected.values().len() / 2);
        for (i, head) in projected.values().chunks_exact(head_dim).enumerate() {
            if i % 2 == 0 { &mut queries } else { &mut gate }.extend_from_slice(head);
        }
        (Rows::new(queries, self.config.heads * head_dim), Some(gate))
    }

    /// Normalises each head where the model does, and rotates it to its position.
    fn position(&self, rows: &mut Rows, norm: Option<&[f32]>, rotation: &Rotation) {
        for (index, row) in rows.rows_mut().enumerate() {
            for head in row.chunks_exact_mut(self.config.head_dim) {
                if let Some(weight) = norm {
                    rms_norm(head, weight, self.norm_epsilon);
                }
                rotation.apply(index, head);
            }
        }
    }
}
