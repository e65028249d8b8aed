//! Multiplication by a weight matrix.

use super::Rows;
use super::strip::{OUTPUTS, multiply};
use super::weights::{GROUP, Weights};
use rayon::prelude::*;
use std::sync::Arc;

/// Multiplications that one task does at least: some 20 µs of work, ten times what handing over a task costs.
const WORK_PER_TASK: usize = 1 << 18;

/// A weight matrix `[outputs, inputs]`, as checkpoints store it.
#[derive(Clone, Debug)]
pub(crate) struct Linear {
    weights: Arc<Weights>,
    inputs: usize,
}

impl Linear {
    /// Takes the rows of a matrix; `None` when they do not make whole rows of `inputs`, or grouped ones whole groups.
    pub(crate) fn new(weights: Weights, inputs: usize) -> Option<Self> {
        let groups = !matches!(weights, Weights::Grouped(_)) || inputs.is_multiple_of(GROUP);
        let whole = inputs > 0 && weights.len().is_multiple_of(inputs);
        (whole && groups).then(|| Self {
            weights: Arc::new(weights),
            inputs,
        })
    }

    pub(crate) fn outputs(&self) -> usize {
        self.weights.len() / self.inputs
    }

    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    /// The whole matrix, row-major.
    pub(crate) fn floats(&self) -> Vec<f32> {
        let mut scratch = Vec::new();
        let floats = self.weights.floats(0, self.weights.len(), &mut scratch);
        floats.to_vec()
    }

    /// `x · Wᵀ`. A row's values do not depend on what other rows are computed with it.
    pub(crate) fn forward(&self, x: &Rows) -> Rows {
        let [out] = forward_all([self], x);
        out
    }

    /// One row of the matrix: the embedding of a token when the matrix is an embedding table.
    ///
    /// # Panics
    /// Beyond its end.
    pub(crate) fn weight_row(&self, index: usize) -> Vec<f32> {
        let mut scratch = Vec::new();
        let row = self
            .weights
            .floats(index * self.inputs, self.inputs, &mut scratch);
        row.to_vec()
    }

    /// Outputs from `first` on, `[outputs, rows]`.
    fn compute(&self, first: usize, x: &Rows, scratch: &mut Vec<f32>, out: &mut [f32]) {
        let outputs = out.len() / x.len();
        let weights = self
            .weights
            .floats(first * self.inputs, outputs * self.inputs, scratch);
        multiply(weights, x.values(), self.inputs, out);
    }
}

/// Several matrices' products with the same rows, handed to the threads together: a join costs what a small product
/// does.
pub(crate) fn forward_all<const N: usize>(matrices: [&Linear; N], x: &Rows) -> [Rows; N] {
    let rows = x.len();
    let strip = OUTPUTS * rows;
    let least = (WORK_PER_TASK / (strip * x.width()).max(1)).max(1);
    let mut products = matrices.map(|matrix| vec![0.0; matrix.outputs() * rows]);
    let strips: Vec<(&Linear, usize, &mut [f32])> = matrices
        .into_iter()
        .zip(&mut products)
        .flat_map(|(matrix, product)| {
            let strips = product.chunks_mut(strip).enumerate();
            strips.map(move |(index, out)| (matrix, index * OUTPUTS, out))
        })
        .collect();
    strips
        .into_par_iter()
        .with_min_len(least)
        .for_each_init(Vec::new, |scratch, (matrix, first, out)| {
            matrix.compute(first, x, scratch, out);
        });
    products.map(|product| turned(product, rows))
}

/// `[outputs, rows]` as `[rows, outputs]`.
fn turned(product: Vec<f32>, rows: usize) -> Rows {
    let outputs = product.len() / rows;
    if rows == 1 {
        return Rows::new(product, outputs);
    }
    let mut out = Rows::zeros(rows, outputs);
    out.values_mut()
        .par_chunks_mut(outputs)
        .enumerate()
        .for_each(|(row, out)| {
            for (value, of_all) in out.iter_mut().zip(product.chunks_exact(rows)) {
                *value = of_all[row];
            }
        });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(i: usize) -> f32 {
        ((i * 7919) % 113) as f32 / 113.0 - 0.5
    }

    #[test]
    fn one_row_and_many_rows_are_the_same_bits() {
        let (outputs, inputs) = (130, 40);
        let weights: Vec<f32> = (0..outputs * inputs).map(value).collect();
        let linear = Linear::new(Weights::F32(weights), inputs).unwrap();
        let x = Rows::new((0..5 * inputs).map(|i| value(i + 5)).collect(), inputs);
        let many = linear.forward(&x);
        for i in 0..5 {
            let one = linear.forward(&Rows::new(x.row(i).to_vec(), inputs));
            assert_eq!(one.values(), many.row(i), "row {i}");
            let plain: f32 = (0..inputs).map(|k| value(7 * inputs + k) * x.row(i)[k]).sum();
            assert!((one.values()[7] - plain).abs() < 1e-5);
        }
        assert_eq!(linear.weight_row(2)[1], value(2 * inputs + 1));
        let [first, second] = forward_all([&linear, &linear], &x);
        assert_eq!(first.values(), many.values());
        assert_eq!(second.values(), many.values());
    }

    #[test]
    fn rows_that_are_not_whole_make_no_matrix() {
        assert!(Linear::new(Weights::F32(vec![0.0; 7]), 3).is_none());
        assert!(Linear::new(Weights::F32(Vec::new()), 0).is_none());
    }
}
