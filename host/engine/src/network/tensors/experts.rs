//! A mixture of experts as tensors. The router's scores come to the processor, which picks.

use super::layer::{TensorMlp, matrix, product};
use crate::kernel::Rows;
use crate::network::experts::{Experts, Picking};
use candle_core::{Device, Result, Tensor};
use candle_nn::ops::sigmoid;

/// The weights of [`Experts`].
#[derive(Debug)]
pub(super) struct TensorExperts {
    router: Tensor,
    experts: Vec<TensorMlp>,
    picking: Picking,
    shared: TensorMlp,
    shared_gate: Tensor,
}

impl TensorExperts {
    pub(super) fn new(host: &Experts, on: &Device) -> Result<Self> {
        let experts = host.experts.iter().map(|expert| TensorMlp::new(expert, on));
        Ok(Self {
            router: matrix(&host.router, on)?,
            experts: experts.collect::<Result<_>>()?,
            picking: host.picking,
            shared: TensorMlp::new(&host.shared, on)?,
            shared_gate: matrix(&host.shared_gate, on)?,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let scores = product(x, &self.router)?;
        let scores = Rows::new(scores.flatten_all()?.to_vec1()?, self.experts.len());
        let picked = self.picking.of_each(scores);
        let gate = sigmoid(&product(x, &self.shared_gate)?)?;
        let mut out = self.shared.forward(x)?.broadcast_mul(&gate)?;
        for (number, expert) in self.experts.iter().enumerate() {
            let own = (0u32..).zip(&picked).filter_map(|(row, picked)| {
                let pick = picked.iter().find(|(picked, _)| *picked == number);
                pick.map(|(_, weight)| (row, *weight))
            });
            let (rows, weights): (Vec<u32>, Vec<f32>) = own.unzip();
            if rows.is_empty() {
                continue;
            }
            let count = rows.len();
            let rows = Tensor::from_vec(rows, count, x.device())?;
            let weights = Tensor::from_vec(weights, (count, 1), x.device())?;
            let answers = expert.forward(&x.index_select(&rows, 0)?)?;
            out = out.index_add(&rows, &answers.broadcast_mul(&weights)?, 0)?;
        }
        Ok(out)
    }
}
