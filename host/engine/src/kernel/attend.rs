//! Causal attention of a block of queries over all keys and values so far.

use super::{Rows, add_scaled, dot, softmax};
use rayon::prelude::*;

/// Keys and values of one layer, `[tokens, head_dim]` for each key/value head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeysValues<'a> {
    pub(crate) keys: &'a [Vec<f32>],
    pub(crate) values: &'a [Vec<f32>],
    pub(crate) head_dim: usize,
}

/// Attention of `queries` (`[tokens, heads * head_dim]`), the first of which stands at position `start`. Each query
/// sees the keys up to its own position. Query heads share key/value heads in groups.
pub(crate) fn attend(queries: &Rows, start: usize, kv: KeysValues<'_>) -> Rows {
    let head_dim = kv.head_dim;
    let group = queries.width() / head_dim / kv.keys.len();
    let scale = 1.0 / (head_dim as f32).sqrt();
    let mut out = Rows::zeros(queries.len(), queries.width());
    let heads = out
        .values_mut()
        .par_chunks_mut(head_dim)
        .zip(queries.values().par_chunks(head_dim));
    let heads_per_row = queries.width() / head_dim;
    heads
        .enumerate()
        .for_each_init(Vec::new, |scores, (index, (out, query))| {
            let (row, head) = (index / heads_per_row, index % heads_per_row);
            let (keys, values) = (&kv.keys[head / group], &kv.values[head / group]);
            let seen = (start + row + 1) * head_dim;
            scores.clear();
            scores.extend(
                keys[..seen]
                    .chunks_exact(head_dim)
                    .map(|key| dot(query, key) * scale),
            );
            softmax(scores);
            for (score, value) in scores.iter().zip(values.chunks_exact(head_dim)) {
                add_scaled(out, *score, value);
            }
        });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_sees_no_key_after_it_and_heads_share_keys_in_groups() {
        // One key/value head for two query heads; equal keys, so that each query takes the mean of what it sees.
        let keys = [vec![0.0; 6]];
        let values = [vec![1.0, 10.0, 3.0, 30.0, 5.0, 50.0]];
        let kv = KeysValues {
            keys: &keys,
            values: &values,
            head_dim: 2,
        };
        let out = attend(&Rows::new(vec![1.0; 8], 4), 1, kv);
        assert_eq!(out.row(0), [2.0, 20.0, 2.0, 20.0]);
        let last = out.row(1);
        assert!(
            (last[0] - 3.0).abs() < 1e-6 && (last[3] - 30.0).abs() < 1e-5,
            "{last:?}"
        );
    }
}
