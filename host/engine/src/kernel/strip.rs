//! The product of some rows of activations with some rows of weights, in the vector instructions of the machine at
//! hand: they are chosen when the program runs, so that one build serves old and new processors.
//!
//! Every output is one sum in one order: lane `j` of a vector adds up the products at `j`, `j + lanes`, and so on, then
//! the lanes are added. How many rows or outputs are computed side by side changes no bit of any of them.

use pulp::{Scalar, Simd, WithSimd};
use std::sync::LazyLock;

/// Weight rows computed side by side for one row of activations: as many sums as keep the multipliers of a core busy
/// while each waits for its last addition.
pub(crate) const OUTPUTS: usize = 8;

/// Weight rows computed side by side for several rows of activations: with [`ROWS`] of those, twelve sums and four
/// operands fill the sixteen vector registers.
const TILE: usize = 4;
const ROWS: usize = 3;

/// Runs `work` compiled for the machine's own vector instructions.
#[inline(always)]
pub(crate) fn vectorised<W: WithSimd>(work: W) -> W::Output {
    match *MACHINE {
        Some(simd) => Simd::vectorize(simd, work),
        None => work.with_simd(Scalar),
    }
}

/// AVX2 with fused multiplication.
#[cfg(target_arch = "x86_64")]
pub(super) type Vectors = pulp::x86::V3;
/// Every 64-bit Arm has them.
#[cfg(target_arch = "aarch64")]
pub(super) type Vectors = pulp::aarch64::Neon;
/// No vectors are known: plain numbers.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) type Vectors = Scalar;

/// The vector instructions, where this machine has them. Asked once: a strip takes a microsecond.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) static MACHINE: LazyLock<Option<Vectors>> = LazyLock::new(Vectors::try_new);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) static MACHINE: LazyLock<Option<Vectors>> = LazyLock::new(|| None);

/// `out[output][row] = weights[output] · x[row]`, for rows of `inputs` values on both sides.
pub(crate) fn multiply(weights: &[f32], x: &[f32], inputs: usize, out: &mut [f32]) {
    vectorised(Product {
        weights,
        x,
        inputs,
        out,
    });
}

struct Product<'a> {
    weights: &'a [f32],
    x: &'a [f32],
    inputs: usize,
    out: &'a mut [f32],
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let rows = self.x.len() / self.inputs;
        let outputs = self.weights.len() / self.inputs;
        let mut done = 0;
        while rows < ROWS && done + OUTPUTS <= outputs {
            self.outputs::<S, OUTPUTS>(simd, done, rows);
            done += OUTPUTS;
        }
        while done + TILE <= outputs {
            self.outputs::<S, TILE>(simd, done, rows);
            done += TILE;
        }
        while done < outputs {
            self.outputs::<S, 1>(simd, done, rows);
            done += 1;
        }
    }
}

impl Product<'_> {
    /// `O` outputs from `first` on, of every row.
    #[inline(always)]
    fn outputs<S: Simd, const O: usize>(&mut self, simd: S, first: usize, rows: usize) {
        let mut row = 0;
        while row + ROWS <= rows {
            self.tile::<S, O, ROWS>(simd, first, row, rows);
            row += ROWS;
        }
        while row < rows {
            self.tile::<S, O, 1>(simd, first, row, rows);
            row += 1;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const O: usize, const R: usize>(
        &mut self,
        simd: S,
        output: usize,
        row: usize,
        rows: usize,
    ) {
        let n = self.inputs;
        let mut weights: [(&[S::f32s], &[f32]); O] = [(&[], &[]); O];
        for (o, part) in weights.iter_mut().enumerate() {
            *part = S::as_simd_f32s(&self.weights[(output + o) * n..][..n]);
        }
        let mut x: [(&[S::f32s], &[f32]); R] = [(&[], &[]); R];
        for (r, part) in x.iter_mut().enumerate() {
            *part = S::as_simd_f32s(&self.x[(row + r) * n..][..n]);
        }
        let mut sums = [[simd.splat_f32s(0.0); R]; O];
        for i in 0..x[0].0.len() {
            let mut values = [simd.splat_f32s(0.0); R];
            for r in 0..R {
                values[r] = x[r].0[i];
            }
            for o in 0..O {
                let weight = weights[o].0[i];
                for r in 0..R {
                    sums[o][r] = simd.mul_add_e_f32s(weight, values[r], sums[o][r]);
                }
            }
        }
        for o in 0..O {
            for r in 0..R {
                let rest: f32 = weights[o].1.iter().zip(x[r].1).map(|(w, x)| w * x).sum();
                self.out[(output + o) * rows + row + r] = simd.reduce_sum_f32s(sums[o][r]) + rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let value = |i: usize| ((i as u32 + 1).wrapping_mul(2_654_435_761) ^ seed) % 1000;
        (0..n).map(|i| value(i) as f32 / 500.0 - 1.0).collect()
    }

    #[test]
    fn a_sum_is_the_same_bits_however_many_are_computed_side_by_side() {
        for inputs in [3, 32, 45] {
            let (outputs, rows) = (21, 7);
            let (weights, x) = (noise(outputs * inputs, 1), noise(rows * inputs, 2));
            let mut all = vec![0.0; outputs * rows];
            multiply(&weights, &x, inputs, &mut all);
            for row in 0..rows {
                for output in 0..outputs {
                    let mut one = [0.0];
                    let weight = &weights[output * inputs..][..inputs];
                    let x = &x[row * inputs..][..inputs];
                    multiply(weight, x, inputs, &mut one);
                    let plain: f64 = weight
                        .iter()
                        .zip(x)
                        .map(|(w, x)| f64::from(*w) * f64::from(*x))
                        .sum();
                    assert!((f64::from(one[0]) - plain).abs() < 1e-4, "{} and {plain}", one[0]);
                    assert_eq!(one[0].to_bits(), all[output * rows + row].to_bits());
                }
            }
        }
    }
}
