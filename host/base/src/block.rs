//! The identities of cached blocks.
//!
//! Four kinds of identifier meet in a KV cache, and confusing them is how caches poison each other:
//!
//! | identifier | made from | used for |
//! |---|---|---|
//! | [`BlockHash`] | XXH3-64 chained over token ids | the prefix index: advice about who may hold what |
//! | [`BlockId`] | BLAKE3 keyed by tenant, 128 bits, chained over token ids | the pool and every fetch: what is actually served |
//! | the engine's own block hash | whatever the engine does | translated at the engine's adapter, never stored |
//! | the block's place in memory | the pool | never leaves the pool |
//!
//! A false hit on a `BlockHash` costs latency. A false hit on a `BlockId` would serve another prompt's KV, and a
//! hostile tenant can construct collisions of a fast hash: hence the second, keyed identity.

use crate::Dependency;
use alloc::string::String;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Tokens in one block of the prefix index. 16 is vLLM's block on GPUs and divides every block size seen in the
/// field (16, 32, 64, 384), so events of any engine can be re-cut to it.
pub const INDEX_BLOCK_TOKENS: usize = 16;

/// The secret that separates the caches of tenants, and how much of a prompt lies before the part that it separates:
/// the blocks of a public prefix are named with a key that all tenants share.
#[derive(Clone, Copy)]
pub struct TenantKey {
    secret: [u8; 32],
    public: Option<PublicPart>,
}

/// The beginning of a prompt that every tenant finds.
#[derive(Clone, Copy)]
struct PublicPart {
    secret: [u8; 32],
    tokens: u32,
}

/// Two keys are equal when they are the same tenant's, whatever prompts they are for.
impl PartialEq for TenantKey {
    fn eq(&self, other: &Self) -> bool {
        self.secret == other.secret
    }
}

impl Eq for TenantKey {}

impl core::fmt::Debug for TenantKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("TenantKey(..)")
    }
}

impl TenantKey {
    /// Derives a tenant's key from the platform's secret, the tenant's name, and the model with its version: a new
    /// version reaches no block of an older one.
    pub fn derive(platform_secret: &[u8; 32], tenant: &str, model: &str, model_version: u64) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(platform_secret);
        for part in [tenant.as_bytes(), model.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.update(&model_version.to_le_bytes());
        Self {
            secret: *hasher.finalize().as_bytes(),
            public: None,
        }
    }

    /// The same key for a prompt whose first `tokens` are public and named with `shared`. Blocks that reach beyond
    /// them, and all that follow, stay the tenant's own.
    #[must_use]
    pub fn with_public(self, shared: &TenantKey, tokens: u32) -> Self {
        let public = PublicPart {
            secret: shared.secret,
            tokens,
        };
        Self {
            public: Some(public),
            ..self
        }
    }

    /// How many tokens of the prompt are public.
    pub fn public_tokens(&self) -> u32 {
        self.public.map_or(0, |public| public.tokens)
    }

    /// How many whole blocks of so many tokens are public, and their key.
    fn public_blocks(&self, block_tokens: usize) -> (usize, &[u8; 32]) {
        match &self.public {
            Some(public) => (public.tokens as usize / block_tokens, &public.secret),
            None => (0, &self.secret),
        }
    }

    /// A 64-bit keyed hash of `text`, for names that a policy may compare but not read (sessions, prefixes).
    pub fn opaque(&self, text: &str) -> u64 {
        let digest = blake3::keyed_hash(&self.secret, text.as_bytes());
        u64::from_le_bytes(first_bytes(digest.as_bytes()))
    }

    /// The same key for prompts that carry a salt of the client's own: only prompts with the same salt find their blocks,
    /// and none of them is public.
    #[must_use]
    pub fn salted(&self, salt: &str) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(b"client's salt");
        hasher.update(salt.as_bytes());
        Self {
            secret: *hasher.finalize().as_bytes(),
            public: None,
        }
    }

    /// The same key for a cache whose blocks have one salt from a prompt's beginning to its end: nothing is public.
    #[must_use]
    pub fn without_public(self) -> Self {
        Self { public: None, ..self }
    }

    /// The same key for a prompt that depends on things, of which some order to forget, at position `epoch`, was the latest:
    /// blocks of before are not found with it, nor those of the same tokens that depend on other things. Without an order
    /// and without dependencies, the key itself.
    #[must_use]
    pub fn at_epoch(self, epoch: u64, dependencies: &[Dependency]) -> Self {
        if epoch == 0 && dependencies.is_empty() {
            return self;
        }
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(b"epoch and dependencies");
        hasher.update(&epoch.to_le_bytes());
        let mut sorted: Vec<_> = dependencies.iter().collect();
        sorted.sort();
        sorted.dedup();
        for dependency in sorted {
            for part in [&dependency.kind, &dependency.name, &dependency.version] {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part.as_bytes());
            }
        }
        Self {
            secret: *hasher.finalize().as_bytes(),
            public: None,
        }
    }

    /// What an engine that is not ours salts the blocks of this key with: 32 hexadecimal digits that say nothing of whose
    /// they are.
    pub fn cache_salt(&self) -> String {
        use core::fmt::Write;
        let digest = blake3::keyed_hash(&self.secret, b"engine's cache salt");
        let mut text = String::with_capacity(32);
        for byte in &digest.as_bytes()[..16] {
            // Writing to a text cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    fn seed(&self) -> u64 {
        u64::from_le_bytes(first_bytes(&self.secret))
    }
}

fn first_bytes<const N: usize>(bytes: &[u8; 32]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[..N]);
    out
}

/// Names all tokens of a prompt up to the end of one index block, by a fast hash salted with the tenant's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockHash(pub u64);

impl BlockHash {
    /// What a prompt's chain begins with: the salt of the key's owner.
    pub fn root(key: &TenantKey) -> Self {
        Self(key.seed())
    }

    /// The chained hashes of the full index blocks of `tokens`: one for each whole [`INDEX_BLOCK_TOKENS`].
    pub fn chain(key: &TenantKey, tokens: &[u32]) -> Vec<BlockHash> {
        let (public, secret) = key.public_blocks(INDEX_BLOCK_TOKENS);
        let (shared, own) = tokens.split_at(tokens.len().min(public * INDEX_BLOCK_TOKENS));
        let root = Self(u64::from_le_bytes(first_bytes(secret)));
        let mut chain: Vec<_> = root.extend(shared).collect();
        let parent = match chain.last() {
            Some(last) => last.with_extra(&key.seed().to_le_bytes()),
            None => Self::root(key),
        };
        chain.extend(parent.extend(own));
        chain
    }

    /// The hashes of the full index blocks of `tokens`, which come after this block.
    pub fn extend(self, tokens: &[u32]) -> impl Iterator<Item = BlockHash> {
        let mut parent = self;
        tokens.chunks_exact(INDEX_BLOCK_TOKENS).map(move |block| {
            let mut bytes = [0u8; INDEX_BLOCK_TOKENS * 4];
            for (slot, token) in bytes.chunks_exact_mut(4).zip(block) {
                slot.copy_from_slice(&token.to_le_bytes());
            }
            parent = Self(xxh3_64_with_seed(&bytes, parent.0));
            parent
        })
    }

    /// What the chain goes on from when the next block depends on more than its tokens: an adapter, an image.
    pub fn with_extra(self, extra: &[u8]) -> Self {
        Self(xxh3_64_with_seed(extra, self.0))
    }
}

/// Names all tokens of a prompt up to the end of one pool block, by a keyed cryptographic hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockId(pub [u8; 16]);

impl core::fmt::Debug for BlockId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl BlockId {
    /// The chained ids of the full blocks of `tokens`: one for each whole `block_tokens`.
    ///
    /// # Panics
    /// When `block_tokens` is zero.
    pub fn chain(key: &TenantKey, tokens: &[u32], block_tokens: usize) -> Vec<BlockId> {
        let mut parent = [0u8; 16];
        let (public, shared) = key.public_blocks(block_tokens);
        tokens
            .chunks_exact(block_tokens)
            .enumerate()
            .map(|(index, block)| {
                let secret = if index < public { shared } else { &key.secret };
                let mut hasher = blake3::Hasher::new_keyed(secret);
                hasher.update(&parent);
                for token in block {
                    hasher.update(&token.to_le_bytes());
                }
                parent = first_bytes(hasher.finalize().as_bytes());
                BlockId(parent)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: &str) -> TenantKey {
        TenantKey::derive(&[7; 32], tenant, "m", 1)
    }

    #[test]
    fn chains_share_exactly_the_common_prefix() {
        let a: Vec<u32> = (0..70).collect();
        let mut b = a.clone();
        b[40] = 999;
        let (ha, hb) = (BlockHash::chain(&key("t"), &a), BlockHash::chain(&key("t"), &b));
        assert_eq!(ha.len(), 4, "only full blocks have a name");
        assert_eq!(ha[..2], hb[..2]);
        assert!(ha[2..].iter().zip(&hb[2..]).all(|(x, y)| x != y));
        let (ia, ib) = (
            BlockId::chain(&key("t"), &a, 32),
            BlockId::chain(&key("t"), &b, 32),
        );
        assert_eq!(ia.len(), 2);
        assert_eq!(ia[0], ib[0]);
        assert_ne!(ia[1], ib[1]);
    }

    #[test]
    fn an_epoch_and_what_is_depended_on_make_another_key() {
        let on = |name: &str, version: &str| Dependency {
            kind: "document".into(),
            name: name.into(),
            version: version.into(),
        };
        let (plain, book) = (key("t"), [on("book", "1")]);
        assert_eq!(plain.at_epoch(0, &[]), plain);
        let all = [
            plain,
            plain.at_epoch(5, &[]),
            plain.at_epoch(0, &book),
            plain.at_epoch(5, &book),
            plain.at_epoch(6, &book),
            plain.at_epoch(5, &[on("book", "2")]),
            key("u").at_epoch(5, &book),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| one != other), "{at}");
            assert!(
                all[at + 1..]
                    .iter()
                    .all(|other| one.cache_salt() != other.cache_salt())
            );
        }
        let two = [on("book", "1"), on("map", "1")];
        let turned = [on("map", "1"), on("book", "1"), on("map", "1")];
        assert_eq!(plain.at_epoch(5, &two), plain.at_epoch(5, &turned));
    }

    #[test]
    fn tenants_meet_in_the_public_part_of_a_prompt_and_nowhere_else() {
        let shared = TenantKey::derive(&[7; 32], "_public", "m", 1);
        let tokens: Vec<u32> = (0..256).collect();
        let of = |tenant, public| key(tenant).with_public(&shared, public);
        let common = |x: &TenantKey, y: &TenantKey| {
            let (ix, iy) = (BlockId::chain(x, &tokens, 64), BlockId::chain(y, &tokens, 64));
            let (hx, hy) = (BlockHash::chain(x, &tokens), BlockHash::chain(y, &tokens));
            assert_eq!((ix.len(), hx.len()), (4, 16));
            (
                ix.iter().zip(&iy).filter(|(a, b)| a == b).count(),
                hx.iter().zip(&hy).filter(|(a, b)| a == b).count(),
            )
        };
        assert_eq!(common(&of("a", 128), &of("b", 128)), (2, 8));
        assert_eq!(common(&of("a", 127), &of("b", 127)), (1, 7), "whole blocks only");
        assert_eq!(common(&of("a", 128), &of("a", 128)), (4, 16));
        assert_eq!(common(&of("a", 0), &key("a")), (4, 16));
        assert_eq!(common(&of("a", 128), &key("a")), (0, 0));
        assert!(of("a", 128) == key("a") && of("a", 128) != of("b", 128));
    }

    #[test]
    fn tenants_models_and_versions_never_meet() {
        let tokens: Vec<u32> = (0..64).collect();
        let keys = [
            TenantKey::derive(&[7; 32], "a", "m", 1),
            TenantKey::derive(&[7; 32], "b", "m", 1),
            TenantKey::derive(&[7; 32], "a", "n", 1),
            TenantKey::derive(&[7; 32], "a", "m", 2),
            TenantKey::derive(&[8; 32], "a", "m", 1),
            TenantKey::derive(&[7; 32], "am", "", 1),
        ];
        for (i, x) in keys.iter().enumerate() {
            for y in &keys[i + 1..] {
                assert_ne!(BlockHash::chain(x, &tokens)[0], BlockHash::chain(y, &tokens)[0]);
                assert_ne!(
                    BlockId::chain(x, &tokens, 64)[0],
                    BlockId::chain(y, &tokens, 64)[0]
                );
            }
        }
    }

    #[test]
    fn salts_of_clients_part_their_blocks_and_what_engines_are_told_says_nothing() {
        let tenant = |name| TenantKey::derive(&[1; 32], name, "m", 1);
        let (a, b) = (tenant("a"), tenant("b"));
        assert_ne!(a.salted("x"), b.salted("x"));
        assert_ne!(a.salted("x"), a.salted("y"));
        assert_ne!(a.salted(""), a);
        let salts = [a.cache_salt(), b.cache_salt(), a.salted("x").cache_salt()];
        assert!(salts.iter().all(|salt| salt.len() == 32));
        assert!(salts[0] != salts[1] && salts[0] != salts[2]);
        let shared = a.with_public(&b, 64);
        assert_eq!(shared.without_public().public_tokens(), 0);
        assert_eq!(shared.salted("x").public_tokens(), 0);
    }
}
