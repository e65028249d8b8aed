//! Multiplication by a weight matrix.

use super::{Rows, dot};
use candle_core::{Device, Storage, Tensor};
use rayon::prelude::*;

/// Output values one task computes when a single row is multiplied: 64 rows of a 576-wide matrix are 147 kB, about
/// 15 µs of memory traffic, ten times what handing over a task costs.
const OUTPUTS_PER_TASK: usize = 64;

/// A weight matrix `[outputs, inputs]`, as checkpoints store it.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    weight: Tensor,
    outputs: usize,
    inputs: usize,
}

impl Linear {
    /// Takes a contiguous two-dimensional `f32` tensor on the CPU.
    pub(crate) fn new(weight: &Tensor) -> candle_core::Result<Self> {
        let (outputs, inputs) = weight.dims2()?;
        Ok(Self {
            weight: weight.contiguous()?,
            outputs,
            inputs,
        })
    }

    /// `x · Wᵀ`.
    ///
    /// A single row takes a path of its own: the tensor library's product packs the whole matrix before it multiplies,
    /// which costs more than the multiplication when there is one row to multiply.
    pub(crate) fn forward(&self, x: &Rows) -> candle_core::Result<Rows> {
        if x.len() == 1 {
            return self.forward_row(x.row(0));
        }
        let input = Tensor::from_slice(x.values(), (x.len(), self.inputs), &Device::Cpu)?;
        let product = input.matmul(&self.weight.t()?)?;
        Ok(Rows::new(product.flatten_all()?.to_vec1()?, self.outputs))
    }

    /// One row of the matrix: the embedding of a token when the matrix is an embedding table.
    pub(crate) fn weight_row(&self, index: usize) -> candle_core::Result<Vec<f32>> {
        self.with_weights(|weights| weights[index * self.inputs..][..self.inputs].to_vec())
    }

    fn forward_row(&self, x: &[f32]) -> candle_core::Result<Rows> {
        let mut out = vec![0.0; self.outputs];
        self.with_weights(|weights| {
            out.par_chunks_mut(OUTPUTS_PER_TASK)
                .zip(weights.par_chunks(OUTPUTS_PER_TASK * self.inputs))
                .for_each(|(out, weights)| {
                    for (o, w) in out.iter_mut().zip(weights.chunks_exact(self.inputs)) {
                        *o = dot(x, w);
                    }
                });
        })?;
        Ok(Rows::new(out, self.outputs))
    }

    fn with_weights<T>(&self, read: impl FnOnce(&[f32]) -> T) -> candle_core::Result<T> {
        let (storage, layout) = self.weight.storage_and_layout();
        match &*storage {
            Storage::Cpu(cpu) => Ok(read(&cpu.as_slice::<f32>()?[layout.start_offset()..])),
            _ => candle_core::bail!("the weights are not in host memory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_and_many_rows_agree() {
        let (outputs, inputs) = (130, 40);
        let value = |i: usize| ((i * 7919) % 113) as f32 / 113.0 - 0.5;
        let weight: Vec<f32> = (0..outputs * inputs).map(value).collect();
        let weight = Tensor::from_vec(weight, (outputs, inputs), &Device::Cpu).unwrap();
        let linear = Linear::new(&weight).unwrap();
        let x = Rows::new((0..3 * inputs).map(|i| value(i + 5)).collect(), inputs);
        let many = linear.forward(&x).unwrap();
        for i in 0..3 {
            let one = linear.forward(&Rows::new(x.row(i).to_vec(), inputs)).unwrap();
            let worst = one
                .values()
                .iter()
                .zip(many.row(i))
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f32::max);
            assert!(worst < 1e-5, "row {i} differs by {worst}");
        }
        assert_eq!(linear.weight_row(2).unwrap()[1], value(2 * inputs + 1));
    }
}
