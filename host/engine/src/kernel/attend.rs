//! Causal attention of a block of queries over all keys and values so far.

use super::strip::vectorised;
use super::{Rows, add_scaled, dot, softmax};
use portolan_base::kv::KvWindow;
use rayon::prelude::*;
use std::ops::Range;

/// Keys and values of one layer, `[tokens, head_dim]` for each key/value head, without those of the gap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeysValues<'a> {
    pub(crate) keys: &'a [Vec<f32>],
    pub(crate) values: &'a [Vec<f32>],
    pub(crate) head_dim: usize,
    /// Tokens that are not there.
    pub(crate) gap: Gap,
    /// What a query sees; none: every key up to its own.
    pub(crate) window: Option<KvWindow>,
}

/// Tokens that were dropped, since no later query sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The first of them.
    pub(crate) start: usize,
    /// How many.
    pub(crate) len: usize,
}

impl Gap {
    /// Where a token that is there lies among those that are.
    pub(crate) fn place(self, token: usize) -> usize {
        if token < self.start {
            token
        } else {
            token.saturating_sub(self.len)
        }
    }
}

impl KeysValues<'_> {
    /// Where the keys lie that the query at position `query` sees, in ascending order.
    fn seen(&self, query: usize) -> [Range<usize>; 2] {
        let Some(window) = self.window else {
            return [0..0, 0..query + 1];
        };
        let (first, latest) = window.seen(query as u32);
        let place = |tokens: Range<u32>| {
            let start = self.gap.place(tokens.start as usize);
            start..start + tokens.len()
        };
        [place(first), place(latest)]
    }
}

/// What one query looks at: keys and values, of which it sees those up to its own position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) kv: KeysValues<'a>,
    /// The query's position in its sequence.
    pub(crate) position: usize,
}

/// Multiplications that one task does at least: some 10 µs of work.
const WORK_PER_TASK: usize = 1 << 16;

/// Attention of `queries` (`[tokens, heads * head_dim]`), each over a view of its own. Query heads share key/value heads
/// in groups.
pub(crate) fn attend(queries: &Rows, views: &[View<'_>]) -> Rows {
    let mut out = Rows::zeros(queries.len(), queries.width());
    let Some(longest) = views.iter().max_by_key(|view| view.position) else {
        return out;
    };
    let head_dim = longest.kv.head_dim;
    let least = (WORK_PER_TASK / (2 * head_dim * (longest.position + 1))).max(1);
    let heads_per_row = queries.width() / head_dim;
    let heads = out
        .values_mut()
        .par_chunks_mut(head_dim)
        .zip(queries.values().par_chunks(head_dim));
    heads
        .with_min_len(least)
        .enumerate()
        .for_each_init(Vec::new, |scores, (index, (out, query))| {
            let view = &views[index / heads_per_row];
            let group = heads_per_row / view.kv.keys.len();
            let head = index % heads_per_row / group;
            vectorised(|| attend_one(view, head, query, scores, out));
        });
    out
}

/// One query head over one key/value head.
#[inline(always)]
fn attend_one(view: &View<'_>, head: usize, query: &[f32], scores: &mut Vec<f32>, out: &mut [f32]) {
    let head_dim = query.len();
    let scale = 1.0 / (head_dim as f32).sqrt();
    let (keys, values) = (&view.kv.keys[head], &view.kv.values[head]);
    let seen = view
        .kv
        .seen(view.position)
        .map(|places| places.start * head_dim..places.end * head_dim);
    scores.clear();
    for places in seen.clone() {
        for key in keys[places].chunks_exact(head_dim) {
            scores.push(dot(query, key) * scale);
        }
    }
    softmax(scores);
    let mut scores = scores.iter();
    for places in seen {
        for (value, score) in values[places].chunks_exact(head_dim).zip(&mut scores) {
            add_scaled(out, *score, value);
        }
    }
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
            gap: Gap::default(),
            window: None,
        };
        let views = [1, 2].map(|position| View { kv, position });
        let out = attend(&Rows::new(vec![1.0; 8], 4), &views);
        assert_eq!(out.row(0), [2.0, 20.0, 2.0, 20.0]);
        let last = out.row(1);
        assert!(
            (last[0] - 3.0).abs() < 1e-6 && (last[3] - 30.0).abs() < 1e-5,
            "{last:?}"
        );
    }

    /// Attention as its definition says it: every key is looked at and counts or not.
    fn masked(query: &[f32], at: usize, (keys, values): (&[f32], &[f32]), window: KvWindow) -> Vec<f32> {
        let width = query.len();
        let visible =
            |key: usize| key <= at && (key < window.sinks as usize || at - key < window.tokens as usize);
        let mut scores: Vec<f32> = keys
            .chunks_exact(width)
            .enumerate()
            .map(|(key, k)| {
                let score = dot(query, k) / (width as f32).sqrt();
                if visible(key) { score } else { f32::NEG_INFINITY }
            })
            .collect();
        softmax(&mut scores);
        let mut out = vec![0.0; width];
        for (score, value) in scores.iter().zip(values.chunks_exact(width)) {
            add_scaled(&mut out, *score, value);
        }
        out
    }

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let value = |i: usize| ((i as u32 + 1).wrapping_mul(2_654_435_761) ^ seed) % 1000;
        (0..n).map(|i| value(i) as f32 / 500.0 - 1.0).collect()
    }

    #[test]
    fn a_window_is_attention_with_a_mask_and_needs_no_key_outside_it() {
        let (tokens, width) = (40, 4);
        let (keys, values) = (noise(tokens * width, 1), noise(tokens * width, 2));
        for window in [(1, 0), (5, 0), (5, 3), (12, 1), (60, 2)] {
            let window = KvWindow {
                tokens: window.0,
                sinks: window.1,
            };
            for at in [0, 3, 17, 39] {
                let query = noise(width, at as u32);
                let expected = masked(&query, at, (&keys, &values), window);
                let (first, latest) = window.needed(at as u32, 4);
                let gap = Gap {
                    start: first.end as usize,
                    len: latest.start as usize - first.end as usize,
                };
                for gap in [Gap::default(), gap] {
                    let without = |all: &[f32]| {
                        let mut left = all.to_vec();
                        left.drain(gap.start * width..(gap.start + gap.len) * width);
                        [left]
                    };
                    let kv = KeysValues {
                        keys: &without(&keys),
                        values: &without(&values),
                        head_dim: width,
                        gap,
                        window: Some(window),
                    };
                    let views = [View { kv, position: at }];
                    let got = attend(&Rows::new(query.clone(), width), &views);
                    let off = got.row(0).iter().zip(&expected).map(|(a, b)| (a - b).abs());
                    assert!(off.fold(0.0, f32::max) < 1e-5, "{window:?} at {at}, {gap:?}");
                }
            }
        }
    }
}
