//! The gated delta rule and the short convolution before it: one token at a time, so that cutting a prompt into
//! pieces changes nothing.

use super::add_scaled;

/// Pushes `input` into the last column of a convolution state `[channels, width]`, writing each channel's weighted sum
/// to `out`.
pub(crate) fn convolve(state: &mut [f32], weight: &[f32], input: &[f32], out: &mut [f32]) {
    let width = weight.len() / input.len();
    let columns = state.chunks_exact_mut(width).zip(weight.chunks_exact(width));
    for ((x, o), (column, w)) in input.iter().zip(out).zip(columns) {
        column.copy_within(1.., 0);
        column[width - 1] = *x;
        *o = column.iter().zip(w).map(|(a, b)| a * b).sum();
    }
}

/// What one token brings to one head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaInput<'a> {
    pub(crate) query: &'a [f32],
    pub(crate) key: &'a [f32],
    pub(crate) value: &'a [f32],
    /// What the memory is multiplied by before the token is written.
    pub(crate) decay: f32,
    /// How much of the difference is written, 0 to 1.
    pub(crate) beta: f32,
}

/// Writes one token into the memory `[key_dim, value_dim]` of a head and reads the query's answer into `out`.
pub(crate) fn delta_step(memory: &mut [f32], token: DeltaInput<'_>, out: &mut [f32]) {
    let value_dim = token.value.len();
    let mut recalled = vec![0.0; value_dim];
    for (row, k) in memory.chunks_exact_mut(value_dim).zip(token.key) {
        for m in &mut *row {
            *m *= token.decay;
        }
        add_scaled(&mut recalled, *k, row);
    }
    let mut delta = recalled;
    for (d, v) in delta.iter_mut().zip(token.value) {
        *d = (v - *d) * token.beta;
    }
    out.fill(0.0);
    for ((row, k), q) in memory.chunks_exact_mut(value_dim).zip(token.key).zip(token.query) {
        add_scaled(row, *k, &delta);
        add_scaled(out, *q, row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_value_is_read_back_by_its_key() {
        let mut memory = vec![0.0; 4];
        let mut out = vec![0.0; 2];
        let token = |key: &'static [f32], value: &'static [f32]| DeltaInput {
            query: key,
            key,
            value,
            decay: 1.0,
            beta: 1.0,
        };
        delta_step(&mut memory, token(&[1.0, 0.0], &[3.0, 4.0]), &mut out);
        assert_eq!(out, [3.0, 4.0]);
        delta_step(&mut memory, token(&[0.0, 1.0], &[5.0, 6.0]), &mut out);
        delta_step(&mut memory, token(&[1.0, 0.0], &[7.0, 8.0]), &mut out);
        assert_eq!(out, [7.0, 8.0], "a key's value is replaced, not added to");
        assert_eq!(memory[2..], [5.0, 6.0]);
    }

    #[test]
    fn the_convolution_sees_the_last_inputs_in_order() {
        let mut state = vec![0.0; 3];
        let mut out = vec![0.0];
        for x in [1.0, 2.0, 3.0, 4.0] {
            convolve(&mut state, &[100.0, 10.0, 1.0], &[x], &mut out);
        }
        assert_eq!(state, [2.0, 3.0, 4.0]);
        assert_eq!(out, [234.0]);
    }
}
