//! Arithmetic on rows of `f32`. Every function sums in one fixed order that depends on widths alone, never on how
//! many rows are computed together, so a value comes out bit for bit the same wherever it is computed.

pub(crate) mod attend;
pub(crate) mod delta_rule;
pub(crate) mod linear;
pub(crate) mod rope;
pub(crate) mod strip;
pub(crate) mod unpack;
pub(crate) mod weights;

use std::ops::Range;

/// Partial sums kept side by side in [`dot`]: enough independent additions to fill four 128-bit vector registers,
/// so that the sum is bound by memory and not by the latency of an addition.
const LANES: usize = 16;

/// A matrix of activations, row-major, one row a token.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    data: Vec<f32>,
    width: usize,
}

impl Rows {
    /// Takes `data` as rows of `width` values.
    pub(crate) fn new(data: Vec<f32>, width: usize) -> Self {
        debug_assert_eq!(data.len() % width, 0, "rows of {width} values");
        Self { data, width }
    }

    pub(crate) fn zeros(rows: usize, width: usize) -> Self {
        Self {
            data: vec![0.0; rows * width],
            width,
        }
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn len(&self) -> usize {
        self.data.len() / self.width
    }

    pub(crate) fn values(&self) -> &[f32] {
        &self.data
    }

    pub(crate) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    pub(crate) fn row(&self, index: usize) -> &[f32] {
        &self.data[index * self.width..][..self.width]
    }

    pub(crate) fn row_mut(&mut self, index: usize) -> &mut [f32] {
        &mut self.data[index * self.width..][..self.width]
    }

    pub(crate) fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.data.chunks_exact(self.width)
    }

    pub(crate) fn rows_mut(&mut self) -> std::slice::ChunksExactMut<'_, f32> {
        self.data.chunks_exact_mut(self.width)
    }

    /// Some of the rows.
    pub(crate) fn part(&self, rows: &Range<usize>) -> Self {
        Self::new(
            self.data[rows.start * self.width..rows.end * self.width].to_vec(),
            self.width,
        )
    }

    /// Adds rows of the same width below.
    pub(crate) fn append(&mut self, below: &Rows) {
        self.data.extend_from_slice(&below.data);
    }

    /// Adds `other`, which has the same shape.
    pub(crate) fn add(&mut self, other: &Rows) {
        for (a, b) in self.data.iter_mut().zip(&other.data) {
            *a += b;
        }
    }
}

/// Inner product.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_chunks
        .remainder()
        .iter()
        .zip(b_chunks.remainder())
        .map(|(x, y)| x * y)
        .sum();
    for (x, y) in a_chunks.zip(b_chunks) {
        for i in 0..LANES {
            lanes[i] += x[i] * y[i];
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0] + rest
}

/// Adds `scale * x` to `out`.
#[inline(always)]
pub(crate) fn add_scaled(out: &mut [f32], scale: f32, x: &[f32]) {
    for (o, v) in out.iter_mut().zip(x) {
        *o += scale * v;
    }
}

/// Divides each value by the root of the mean square, and multiplies by `weight`.
pub(crate) fn rms_norm(row: &mut [f32], weight: &[f32], epsilon: f32) {
    let scale = 1.0 / (dot(row, row) / row.len() as f32 + epsilon).sqrt();
    for (x, w) in row.iter_mut().zip(weight) {
        *x *= scale * w;
    }
}

/// Scales a row to length one.
pub(crate) fn l2_norm(row: &mut [f32], epsilon: f32) {
    let scale = 1.0 / (dot(row, row) + epsilon).sqrt();
    for x in row {
        *x *= scale;
    }
}

/// Turns scores into probabilities.
pub(crate) fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for score in &mut *scores {
        *score = (*score - max).exp();
        sum += *score;
    }
    for score in scores {
        *score /= sum;
    }
}

pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub(crate) fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// `ln(1 + e^x)`, without overflow for large `x`.
pub(crate) fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_product_counts_every_value_once() {
        for n in [1, 15, 16, 17, 40, 64] {
            let ones = vec![1.0; n];
            let numbers: Vec<f32> = (1..=n).map(|i| i as f32).collect();
            assert_eq!(dot(&ones, &numbers), (n * (n + 1) / 2) as f32, "{n} values");
        }
    }

    #[test]
    fn softmax_sums_to_one_and_survives_large_scores() {
        let mut scores = vec![1000.0, 1000.0, -1000.0];
        softmax(&mut scores);
        assert_eq!(scores, [0.5, 0.5, 0.0]);
    }

    #[test]
    fn a_normalised_row_has_unit_mean_square() {
        let mut row = vec![3.0, -4.0];
        rms_norm(&mut row, &[1.0, 1.0], 0.0);
        assert!((dot(&row, &row) / 2.0 - 1.0).abs() < 1e-6);
        assert_eq!(softplus(50.0), 50.0);
        assert!((softplus(0.0) - std::f32::consts::LN_2).abs() < 1e-6);
    }
}
