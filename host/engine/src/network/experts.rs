//! A mixture of experts: each token goes through the few feed-forward networks that a router picks for it, and through
//! one that all share.

use super::mlp::Mlp;
use crate::kernel::linear::Linear;
use crate::kernel::{Rows, add_scaled, sigmoid, softmax};

/// The feed-forward networks of a layer.
#[derive(Debug)]
pub(crate) struct Experts {
    /// `[experts, hidden]`.
    pub(crate) router: Linear,
    pub(crate) experts: Vec<Mlp>,
    pub(crate) picking: Picking,
    pub(crate) shared: Mlp,
    /// `[1, hidden]`: how much of the shared one counts.
    pub(crate) shared_gate: Linear,
}

/// How a router's scores pick experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Picking {
    /// Experts a token goes through.
    pub(crate) per_token: usize,
    pub(crate) weights: ExpertWeights,
}

/// What the answers of a token's experts are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpertWeights {
    /// The router's probabilities.
    Probabilities,
    /// The same, made to sum to one over the experts picked.
    Normalised,
}

impl Experts {
    /// Adds up a token's experts in the order of their numbers, so that its value does not depend on the other tokens.
    pub(crate) fn forward(&self, x: &Rows) -> Rows {
        let mut out = Rows::zeros(x.len(), x.width());
        let picked = self.picking.of_each(self.router.forward(x));
        for (number, expert) in self.experts.iter().enumerate() {
            let own: Vec<(usize, f32)> = (0..x.len())
                .filter_map(|row| {
                    let pick = picked[row].iter().find(|(picked, _)| *picked == number);
                    pick.map(|(_, weight)| (row, *weight))
                })
                .collect();
            if own.is_empty() {
                continue;
            }
            let mut input = Rows::zeros(0, x.width());
            for (row, _) in &own {
                input.append(&x.part(&(*row..*row + 1)));
            }
            let answers = expert.forward(&input);
            for ((row, weight), answer) in own.iter().zip(answers.rows()) {
                add_scaled(out.row_mut(*row), *weight, answer);
            }
        }
        let (shared, gate) = (self.shared.forward(x), self.shared_gate.forward(x));
        for (row, answer) in shared.rows().enumerate() {
            add_scaled(out.row_mut(row), sigmoid(gate.row(row)[0]), answer);
        }
        out
    }
}

impl Picking {
    /// Each token's experts with what they count; the first of equals.
    pub(crate) fn of_each(self, mut scores: Rows) -> Vec<Vec<(usize, f32)>> {
        let pick = |row: &mut [f32]| {
            softmax(row);
            let mut order: Vec<(usize, f32)> = row.iter().copied().enumerate().collect();
            order.sort_by(|a, b| b.1.total_cmp(&a.1));
            order.truncate(self.per_token);
            if self.weights == ExpertWeights::Normalised {
                let sum: f32 = order.iter().map(|(_, weight)| weight).sum();
                for (_, weight) in &mut order {
                    *weight /= sum;
                }
            }
            order
        };
        scores.rows_mut().map(pick).collect()
    }
}
