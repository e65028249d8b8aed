//! KV that says what it was computed from, and by whom, and the answers that follow from it.
//!
//! A piece begins with the name of its birth; then a number that follows from tenant, layer and every token up to its
//! end, again and again. Answers follow from those numbers alone: KV of anybody else's, of another prompt or place, or
//! damaged, gives other tokens, and nothing in the engine notices.

use crate::chaos::dice::mix;
use crate::chaos::history::BirthId;
use bytes::Bytes;
use portolan_base::kv::{KvDtype, KvLayout, LayerKv};
use portolan_base::{InstanceName, ModelName, Scope, Tokens};
use portolan_kv::PoolBlock;
use portolan_ports::{EngineDescription, FAKE_VOCABULARY, Role};
use std::sync::Arc;

pub(crate) const MODEL: &str = "fake";
/// Tokens of a block.
pub(crate) const BLOCK: u32 = 16;
pub(crate) const LAYERS: u16 = 2;
/// Context of the model: the longest prompt and answer fit thrice.
const CONTEXT: u32 = 512;

/// What an instance is called and looks like.
pub(crate) fn description(instance: &str) -> EngineDescription {
    let layer = || LayerKv::FullAttention {
        kv_heads: 1,
        head_dim: 2,
    };
    let model = ModelName::new(MODEL).unwrap();
    EngineDescription {
        instance: InstanceName::new(instance).unwrap(),
        model: model.clone(),
        role: Role::Both,
        layout: Arc::new(KvLayout {
            model,
            model_version: 1,
            dtype: KvDtype::F32,
            block_tokens: BLOCK,
            window: None,
            layers: (0..LAYERS).map(|_| layer()).collect(),
        }),
        context_tokens: Tokens(CONTEXT),
        vocabulary: FAKE_VOCABULARY,
        decode_slots: 8,
    }
}

/// What the KV of a layer says after these tokens.
pub(crate) fn content(scope: &Scope, layer: u16, tokens: &[u32]) -> u64 {
    let name = scope.to_string();
    let letters = name.bytes().map(u64::from);
    let all = letters
        .chain([u64::from(layer)])
        .chain(tokens.iter().map(|t| u64::from(*t)));
    all.fold(0x9047, |sum, next| mix(sum ^ next))
}

/// Token number `at` of the answer that follows from KV that says so much.
pub(crate) fn token(sum: u64, at: u32) -> u32 {
    (mix(sum.wrapping_add(u64::from(at))) % 256) as u32
}

/// What a site alone, without faults, answers.
pub(crate) fn truth(tenant: &Scope, prompt: &[u32], count: u32) -> Vec<u32> {
    let before = &prompt[..prompt.len() - 1];
    let ends = (1..=before.len()).filter(|end| end % BLOCK as usize == 0 || *end == before.len());
    let ends: Vec<usize> = ends.collect();
    let of_layer = |layer| {
        ends.iter()
            .map(move |end| content(tenant, layer, &before[..*end]))
    };
    let sum = (0..LAYERS)
        .flat_map(of_layer)
        .fold(0, |sum, next| mix(sum ^ next));
    (0..count).map(|at| token(sum, at)).collect()
}

/// A piece of so many bytes.
pub(crate) fn write(birth: BirthId, content: u64, size: usize) -> Bytes {
    let rest = content.to_le_bytes().into_iter().cycle();
    birth.0.to_le_bytes().into_iter().chain(rest).take(size).collect()
}

/// What a piece says: its birth and its content.
pub(crate) fn read(bytes: &[u8]) -> (BirthId, u64) {
    let word = |at: usize| {
        bytes
            .get(at..at + 8)
            .and_then(|b| b.try_into().ok())
            .map_or(0, u64::from_le_bytes)
    };
    (BirthId(word(0)), word(8))
}

/// The birth of a block's KV.
pub(crate) fn birth_of(block: &PoolBlock) -> Option<BirthId> {
    block.kv.attention.first().map(|bytes| read(bytes).0)
}
