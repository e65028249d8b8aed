//! Fields of every release: tagged arrays and maps, hashes as numbers and bytes, salts, adapters, media, groups.

use super::*;
use rmp::encode::{
    write_array_len, write_bin, write_f64, write_map_len, write_nil, write_sint, write_str, write_uint,
};

/// A field's value.
#[derive(Clone)]
enum V {
    Nil,
    N(u64),
    I(i64),
    S(&'static str),
    B(Vec<u8>),
    L(Vec<V>),
    M(Vec<(&'static str, V)>),
}
use V::{B, I, L, M, N, Nil, S};

fn write(out: &mut Vec<u8>, value: &V) {
    match value {
        Nil => write_nil(out).unwrap(),
        N(number) => drop(write_uint(out, *number).unwrap()),
        I(number) => drop(write_sint(out, *number).unwrap()),
        S(text) => write_str(out, text).unwrap(),
        B(bytes) => write_bin(out, bytes).unwrap(),
        L(list) => {
            write_array_len(out, list.len() as u32).unwrap();
            list.iter().for_each(|value| write(out, value));
        }
        M(pairs) => {
            write_map_len(out, pairs.len() as u32).unwrap();
            for (name, value) in pairs {
                write_str(out, name).unwrap();
                write(out, value);
            }
        }
    }
}

/// `[0.5, [event], rest…]`, decoded.
fn batch(event: &V, rest: &[V]) -> DecodedBatch {
    let mut out = Vec::new();
    write_array_len(&mut out, 2 + rest.len() as u32).unwrap();
    write_f64(&mut out, 0.5).unwrap();
    write(&mut out, &L(vec![event.clone()]));
    rest.iter().for_each(|value| write(&mut out, value));
    decode(&out).unwrap()
}

fn only(event: &V) -> CacheEvent {
    let mut batch = batch(event, &[]);
    assert_eq!((batch.events.len(), batch.skipped), (1, Skipped::default()));
    batch.events.remove(0)
}

fn numbers(range: std::ops::Range<u64>) -> V {
    L(range.map(N).collect())
}

/// The smallest event there is, in blocks of 16, with further fields by name.
fn map(further: Vec<(&'static str, V)>) -> V {
    let mut fields = vec![
        ("type", S("BlockStored")),
        ("block_hashes", numbers(1..3)),
        ("parent_block_hash", Nil),
        ("token_ids", numbers(0..32)),
        ("block_size", N(16)),
    ];
    fields.extend(further);
    M(fields)
}

/// The same as a tagged array, with further fields by position.
fn array(further: Vec<V>) -> V {
    let mut fields = vec![S("BlockStored"), numbers(1..3), Nil, numbers(0..32), N(16)];
    fields.extend(further);
    L(fields)
}

fn plain() -> Stored {
    Stored {
        parent: None,
        hashes: vec![EngineHash(1), EngineHash(2)],
        tokens: (0..32).collect(),
        block_tokens: 16,
        extra: Vec::new(),
        lora: None,
        group: Group::ATTENTION,
        tier: Tier::Device,
    }
}

#[test]
fn old_short_arrays_and_maps_say_the_same() {
    for event in [
        array(vec![]),
        array(vec![Nil]),
        array(vec![Nil, S("GPU")]),
        array(vec![Nil, Nil, Nil, Nil, N(0), S("full_attention")]),
        map(vec![]),
        map(vec![("medium", S("GPU")), ("lora_id", Nil), ("group_idx", N(0))]),
    ] {
        assert_eq!(only(&event), CacheEvent::Stored(plain()));
    }
    let removed = CacheEvent::Removed(Removed {
        hashes: vec![EngineHash(1), EngineHash(2)],
        group: None,
        tier: Tier::Device,
    });
    assert_eq!(only(&L(vec![S("BlockRemoved"), numbers(1..3)])), removed);
    assert_eq!(
        only(&M(vec![
            ("block_hashes", numbers(1..3)),
            ("type", S("BlockRemoved"))
        ])),
        removed,
        "the type may come last"
    );
    assert_eq!(only(&L(vec![S("AllBlocksCleared")])), CacheEvent::Cleared);
}

#[test]
fn hashes_are_numbers_of_either_sign_or_the_last_bytes() {
    let sha: Vec<u8> = (0..32).collect();
    let last = 0x1819_1a1b_1c1d_1e1f;
    let event = L(vec![
        S("BlockRemoved"),
        L(vec![N(u64::MAX), I(-2), B(sha), B(vec![1, 2])]),
    ]);
    let CacheEvent::Removed(removed) = only(&event) else {
        panic!("a removal");
    };
    let hashes = [u64::MAX, u64::MAX - 1, last, 0x102].map(EngineHash);
    assert_eq!(removed.hashes, hashes);
}

#[test]
fn salts_adapters_and_media_are_told_apart() {
    let keys = L(vec![
        L(vec![
            S("adapter"),
            L(vec![S("image"), I(-3)]),
            S("salt"),
            B(vec![9]),
        ]),
        L(vec![S("adapter"), L(vec![S("image"), N(5)]), S("later")]),
    ]);
    let expected = Stored {
        extra: vec![
            vec![
                ExtraKey::Media("image".into(), -3),
                ExtraKey::Salt("salt".into()),
                ExtraKey::Other(vec![9]),
            ],
            vec![
                ExtraKey::Media("image".into(), 5),
                ExtraKey::Other(b"later".to_vec()),
            ],
        ],
        lora: Some("adapter".into()),
        ..plain()
    };
    let by_name = map(vec![
        ("extra_keys", keys.clone()),
        ("lora_name", S("adapter")),
        ("lora_id", N(7)),
    ]);
    assert_eq!(only(&by_name), CacheEvent::Stored(expected.clone()));
    let by_position = array(vec![N(7), S("GPU"), S("adapter"), keys]);
    assert_eq!(only(&by_position), CacheEvent::Stored(expected));
    let numbered = Stored {
        lora: Some("#7".into()),
        ..plain()
    };
    assert_eq!(only(&array(vec![N(7)])), CacheEvent::Stored(numbered));
}

#[test]
fn sglangs_salt_is_found_where_each_release_has_it() {
    let salted = Stored {
        extra: vec![vec![ExtraKey::Salt("tenant".into())], vec![]],
        ..plain()
    };
    let beside = M(vec![("cache_salt", S("tenant")), ("more", N(1))]);
    for event in [
        array(vec![Nil, S("GPU"), beside]),
        map(vec![("cache_salt", S("tenant"))]),
    ] {
        assert_eq!(only(&event), CacheEvent::Stored(salted.clone()));
    }
    assert_eq!(
        only(&map(vec![("cache_salt", S(""))])),
        CacheEvent::Stored(plain())
    );
}

#[test]
fn drafted_tokens_come_in_pairs() {
    let pairs = L((0..32).map(|n| L(vec![N(n), N(n + 1)])).collect());
    let mut fields = vec![S("BlockStored"), numbers(1..3), Nil, pairs];
    fields.push(N(16));
    assert_eq!(only(&L(fields)), CacheEvent::Stored(plain()));
}

#[test]
fn media_groups_and_places_decide_what_is_indexed() {
    for (medium, tier) in [
        ("GPU", Tier::Device),
        ("CPU", Tier::Host),
        ("CPU_PINNED", Tier::Host),
        ("STORAGE", Tier::Disk),
        ("DISK", Tier::Disk),
    ] {
        let expected = CacheEvent::Stored(Stored { tier, ..plain() });
        assert_eq!(only(&map(vec![("medium", S(medium))])), expected, "{medium}");
    }
    let states = Stored {
        group: Group {
            number: 3,
            kind: GroupKind::State,
        },
        ..plain()
    };
    let event = map(vec![("group_idx", N(3)), ("kv_cache_spec_kind", S("mamba"))]);
    assert_eq!(only(&event), CacheEvent::Stored(states));
    let skipped = |event: &V| {
        let batch = batch(event, &[]);
        assert_eq!(batch.events, []);
        batch.skipped
    };
    let none = Skipped::default();
    assert_eq!(
        skipped(&map(vec![("medium", S("OBJ"))])),
        Skipped { media: 1, ..none }
    );
    assert_eq!(
        skipped(&map(vec![("locality", S("REMOTE"))])),
        Skipped { remote: 1, ..none }
    );
    assert_eq!(
        skipped(&map(vec![("kv_cache_spec_kind", S("sliding_window"))])),
        Skipped { partial: 1, ..none }
    );
    for unknown in [L(vec![S("BlockMoved"), N(1)]), M(vec![("type", S("BlockMoved"))])] {
        assert_eq!(skipped(&unknown), Skipped { unknown: 1, ..none });
    }
    for malformed in [
        L(vec![S("BlockStored"), numbers(1..3)]),
        map(vec![("block_size", S("16"))]),
        map(vec![("group_idx", N(300))]),
        map(vec![("token_ids", L(vec![N(1 << 40)]))]),
        M(vec![("type", S("BlockRemoved"))]),
        N(5),
    ] {
        assert_eq!(skipped(&malformed), Skipped { malformed: 1, ..none });
    }
}

#[test]
fn fields_that_nobody_knows_are_passed_over() {
    let deep = L(vec![M(vec![("a", L(vec![Nil, B(vec![1])]))])]);
    let event = map(vec![("session_id", deep.clone()), ("ownership", S("kvcr"))]);
    let batch = batch(&event, &[N(4), deep, S("more")]);
    assert_eq!(batch.events, [CacheEvent::Stored(plain())]);
    assert_eq!((batch.rank, batch.timestamp), (Some(4), 0.5));
}
