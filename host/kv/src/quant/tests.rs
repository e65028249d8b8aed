//! What was coded comes back within half a step, whatever the shape, the format and the values.

use super::*;
use portolan_base::ModelName;
use proptest::prelude::*;

const BOTH: [KvQuant; 2] = [KvQuant::Int8, KvQuant::Int4];

fn shape(dtype: KvDtype, heads: usize, tokens: usize, head_dim: usize) -> PieceShape {
    PieceShape {
        dtype,
        heads,
        tokens,
        head_dim,
    }
}

fn bytes(dtype: KvDtype, values: &[f32]) -> Vec<u8> {
    let mut out = Vec::new();
    write(dtype, values, &mut out);
    out
}

fn floats(dtype: KvDtype, bytes: &[u8]) -> Vec<f32> {
    let mut out = Vec::new();
    read(dtype, bytes, &mut out);
    out
}

/// The values of a piece by group, each with its lowest and highest, cut as the module's documentation says.
fn groups(shape: &PieceShape, quant: KvQuant) -> Vec<Vec<usize>> {
    let (width, size) = (shape.head_dim, group(quant));
    let side = shape.heads * shape.tokens * width;
    let mut out = Vec::new();
    for head in 0..shape.heads {
        let at = |token: usize, channel: usize| (head * shape.tokens + token) * width + channel;
        for first in (0..shape.tokens).step_by(size) {
            let tile = first..(first + size).min(shape.tokens);
            for channel in 0..width {
                out.push(tile.clone().map(|token| at(token, channel)).collect());
            }
        }
        for token in 0..shape.tokens {
            for first in (0..width).step_by(size) {
                let part = first..(first + size).min(width);
                out.push(part.map(|channel| side + at(token, channel)).collect());
            }
        }
    }
    out
}

/// Half a step of a group: the range it has to cover over the codes there are, both ends moved outwards by what half
/// precision lacks, and the rounding of the piece's own format.
fn bound(dtype: KvDtype, quant: KvQuant, group: &[f32]) -> f32 {
    let low = group.iter().copied().fold(f32::INFINITY, f32::min);
    let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let top = match quant {
        KvQuant::Int8 => 255.0,
        KvQuant::Int4 => 15.0,
    };
    let largest = low.abs().max(high.abs());
    let begins = low.abs() / 1024.0 + 6e-8;
    let step = ((high - low + begins) / top) * (1.0 + 1.0 / 1024.0) + 6e-8;
    let own = match dtype {
        KvDtype::F32 => 1.0 / (1 << 22) as f32,
        KvDtype::Bf16 => 1.0 / 256.0,
        KvDtype::F16 => 1.0 / 2048.0,
    };
    step * 0.5001 + (largest + step) * own
}

fn formats() -> impl Strategy<Value = KvDtype> {
    prop_oneof![Just(KvDtype::F32), Just(KvDtype::Bf16), Just(KvDtype::F16)]
}

/// Values of one magnitude, from subnormal to the largest, some of them zero and some far out.
fn values(len: usize) -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        8 => -1.0f32..1.0,
        1 => Just(0.0f32),
        1 => -60.0f32..60.0,
    ];
    (prop::collection::vec(value, len), -24i32..11)
        .prop_map(|(values, power)| values.into_iter().map(|v| v * 2f32.powi(power)).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn each_value_comes_back_within_half_a_step(
        (dtype, shape, plain) in (formats(), 1usize..4, 1usize..140, 1usize..80).prop_flat_map(
            |(dtype, heads, tokens, head_dim)| {
                let len = 2 * heads * tokens * head_dim;
                (Just(dtype), Just(shape(dtype, heads, tokens, head_dim)), values(len))
            }),
    ) {
        let plain = bytes(dtype, &plain);
        let before = floats(dtype, &plain);
        for quant in BOTH {
            let Some(len) = shape.coded_len(quant) else {
                prop_assert!(shape.encode(quant, &plain).is_none());
                continue;
            };
            let coded = shape.encode(quant, &plain).unwrap();
            prop_assert_eq!(coded.len(), len);
            prop_assert_eq!(&coded, &shape.encode(quant, &plain).unwrap(), "the same every time");
            let after = floats(dtype, &shape.decode(quant, &coded).unwrap());
            prop_assert_eq!(after.len(), before.len());
            for group in groups(&shape, quant) {
                let of: Vec<f32> = group.iter().map(|i| before[*i]).collect();
                let bound = bound(dtype, quant, &of);
                for i in group {
                    let off = (before[i] - after[i]).abs();
                    prop_assert!(off <= bound, "{} came back as {}, bound {bound}", before[i], after[i]);
                }
            }
        }
    }

    #[test]
    fn no_bytes_make_the_reader_fail_otherwise_than_by_an_error(
        noise in prop::collection::vec(any::<u8>(), 0..2000),
        tokens in 0usize..40,
    ) {
        for quant in BOTH {
            let shape = shape(KvDtype::F32, 2, tokens, 8);
            let mut coded = noise.clone();
            let _ = shape.decode(quant, &coded);
            coded.resize(shape.coded_len(quant).unwrap_or(0), 7);
            let _ = shape.decode(quant, &coded);
        }
    }
}

#[test]
fn a_group_of_one_value_and_zeros_come_back_exactly() {
    let shape = shape(KvDtype::F32, 1, 64, 64);
    for value in [0.0, -0.0, 1.5, -0.375, 65504.0, -65504.0] {
        let plain = bytes(KvDtype::F32, &[value; 2 * 64 * 64]);
        for quant in BOTH {
            let back = shape
                .decode(quant, &shape.encode(quant, &plain).unwrap())
                .unwrap();
            assert!(floats(KvDtype::F32, &back).iter().all(|v| *v == value), "{value}");
        }
    }
}

#[test]
fn a_piece_with_what_is_no_number_or_too_large_stays_as_it_is() {
    let shape = shape(KvDtype::F32, 1, 40, 32);
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 65520.0, -1e30] {
        for place in [0, 31, 1000, 2 * 40 * 32 - 1] {
            let mut values = vec![0.5; 2 * 40 * 32];
            values[place] = odd;
            for quant in BOTH {
                assert_eq!(
                    shape.encode(quant, &bytes(KvDtype::F32, &values)),
                    None,
                    "{odd} at {place}"
                );
            }
        }
    }
    assert_eq!(shape.encode(KvQuant::Int8, &[0; 12]), None, "another size");
}

#[test]
fn the_sizes_are_those_of_the_table_and_always_smaller_than_plain() {
    let heads = 3;
    let block = shape(KvDtype::F32, heads, 64, 64);
    // Keys: 64 channels, one tile; values: 64 tokens, one part each.
    assert_eq!(
        block.coded_len(KvQuant::Int8),
        Some(heads * 2 * (64 * 4 + 64 * 64))
    );
    // Two tiles of 32 tokens; two parts of 32 channels.
    assert_eq!(
        block.coded_len(KvQuant::Int4),
        Some(heads * 2 * (2 * 64 * 4 + 64 * 32))
    );
    assert_eq!(block.plain_len(), Some(heads * 2 * 64 * 64 * 4));
    for dtype in [KvDtype::F32, KvDtype::Bf16, KvDtype::F16] {
        for (tokens, head_dim) in [(1, 1), (1, 128), (2, 3), (5, 64), (64, 128), (65, 80)] {
            let shape = shape(dtype, 2, tokens, head_dim);
            for quant in BOTH {
                assert!(shape.coded_len(quant) < shape.plain_len());
            }
        }
    }
    assert_eq!(
        shape(KvDtype::Bf16, 8, 1, 128).coded_len(KvQuant::Int8),
        None,
        "one token"
    );
}

#[test]
fn only_attention_is_coded() {
    let layout = KvLayout {
        model: ModelName::new("m").unwrap(),
        model_version: 1,
        dtype: KvDtype::Bf16,
        block_tokens: 16,
        window: None,
        layers: vec![
            LayerKv::Recurrent {
                conv_channels: 8,
                conv_width: 4,
                heads: 2,
                key_dim: 8,
                value_dim: 8,
            },
            LayerKv::FullAttention {
                kv_heads: 2,
                head_dim: 8,
            },
        ],
    };
    let of = |layer, tokens| PieceShape::of(&layout, &PieceId { layer, tokens });
    assert_eq!(of(1, 4..20), Some(shape(KvDtype::Bf16, 2, 16, 8)));
    assert_eq!(of(0, 20..20), None, "a recurrent state");
    assert_eq!(of(1, 4..4), None, "nothing");
    assert_eq!(of(2, 0..4), None, "no such layer");
}

/// Outliers of keys stay in a channel: the other channels of the same tokens lose nothing by them.
#[test]
fn a_loud_channel_of_keys_and_a_loud_token_of_values_cost_only_themselves() {
    let (tokens, width) = (32, 32);
    let quiet = |i: usize| (i * 37 % 101) as f32 / 101.0;
    let mut values: Vec<f32> = (0..2 * tokens * width).map(quiet).collect();
    for token in 0..tokens {
        values[token * width + 5] = 900.0 + token as f32;
    }
    for channel in 0..width {
        values[(tokens + 7) * width + channel] = 900.0 + channel as f32;
    }
    let shape = shape(KvDtype::F32, 1, tokens, width);
    let coded = shape
        .encode(KvQuant::Int4, &bytes(KvDtype::F32, &values))
        .unwrap();
    let back = floats(KvDtype::F32, &shape.decode(KvQuant::Int4, &coded).unwrap());
    for (i, (before, after)) in values.iter().zip(&back).enumerate() {
        let loud = *before >= 900.0;
        let bound = if loud { 1.2 } else { 0.5 / 15.0 + 1e-3 };
        assert!(
            (before - after).abs() <= bound,
            "{before} came back as {after} at {i}"
        );
    }
}
