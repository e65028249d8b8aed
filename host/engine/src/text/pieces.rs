//! Chats are cut into tokens piece by piece, and pieces that a tenant sent before are looked up.
//!
//! A tokenizer finds its special tokens first and cuts each text between them by itself; a chat template writes special
//! tokens around every message. So a system prompt, tools and the earlier turns of a conversation, which come again
//! with every request, need not be cut again. What is remembered is one tenant's own: how long an answer takes tells nobody
//! what another tenant sent.

use super::cutter::Cutter;
use aho_corasick::{AhoCorasick, MatchKind};
use parking_lot::Mutex;
use portolan_base::TenantName;
use std::collections::HashMap;
use std::sync::Arc;
use tokenizers::{PreTokenizerWrapper, Tokenizer};

/// Shorter pieces are cut as quickly as they are found.
const LEAST_BYTES: usize = 64;

/// Memory for the tokens of one model's pieces, all tenants together: some 16 million tokens. One tenant has half of it at
/// most.
const MEMORY_BYTES: usize = 64 << 20;

/// What an entry takes beside its tokens.
const ENTRY_BYTES: usize = 64;

/// Names a piece within its tenant's.
type PieceHash = [u8; 16];

/// Cuts a chat at its special tokens.
#[derive(Debug)]
pub(super) struct Pieces {
    special: AhoCorasick,
    /// The token of each pattern.
    ids: Vec<u32>,
    memory: Mutex<Memory>,
}

impl Pieces {
    /// None when a piece's tokens depend on what lies beside it: the whole has to be cut then.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let whole_only = tokenizer.get_truncation().is_some()
            || tokenizer.get_padding().is_some()
            || tokenizer.get_pre_tokenizer().is_some_and(looks_beside);
        if whole_only {
            return None;
        }
        let added = tokenizer.get_added_tokens_decoder();
        let special: Vec<_> = added.iter().filter(|(_, token)| !token.normalized).collect();
        if special
            .iter()
            .any(|(_, t)| t.lstrip || t.rstrip || t.single_word || t.content.is_empty())
        {
            return None;
        }
        let found = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(special.iter().map(|(_, token)| &token.content));
        Some(Self {
            special: found.ok()?,
            ids: special.iter().map(|(id, _)| **id).collect(),
            memory: Mutex::new(Memory::new(MEMORY_BYTES)),
        })
    }

    /// The tokens of a text that brings its own special tokens.
    pub(super) fn encode(
        &self,
        cutter: &Cutter,
        whose: &TenantName,
        text: &str,
    ) -> tokenizers::Result<Vec<u32>> {
        let mut tokens = Vec::with_capacity(text.len() / 4);
        let mut begin = 0;
        for found in self.special.find_iter(text) {
            self.piece(cutter, whose, &text[begin..found.start()], &mut tokens)?;
            tokens.push(self.ids[found.pattern().as_usize()]);
            begin = found.end();
        }
        self.piece(cutter, whose, &text[begin..], &mut tokens)?;
        Ok(tokens)
    }

    fn piece(
        &self,
        cutter: &Cutter,
        whose: &TenantName,
        piece: &str,
        into: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        if piece.len() < LEAST_BYTES {
            into.extend(cutter.cut(piece, false)?);
            return Ok(());
        }
        let hash = hash_of(piece);
        if let Some(known) = self.memory.lock().get(whose, hash) {
            into.extend_from_slice(&known);
            return Ok(());
        }
        let cut = cutter.cut(piece, false)?;
        into.extend_from_slice(&cut);
        self.memory.lock().put(whose, hash, cut.into());
        Ok(())
    }
}

/// Whether it treats the first piece of a text otherwise than the others.
fn looks_beside(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::Metaspace(_) => true,
        PreTokenizerWrapper::Sequence(several) => several.as_ref().iter().any(looks_beside),
        _ => false,
    }
}

fn hash_of(piece: &str) -> PieceHash {
    let mut hash = PieceHash::default();
    let whole = blake3::hash(piece.as_bytes());
    hash.copy_from_slice(&whole.as_bytes()[..16]);
    hash
}

/// One tenant's pieces: those that came lately, and those that were here before them.
#[derive(Debug, Default)]
struct Known {
    young: HashMap<PieceHash, Arc<[u32]>>,
    old: HashMap<PieceHash, Arc<[u32]>>,
    young_bytes: usize,
    old_bytes: usize,
}

impl Known {
    fn bytes(&self) -> usize {
        self.young_bytes + self.old_bytes
    }

    /// Forgets what did not come since the last time; says how much that was.
    fn age(&mut self) -> usize {
        self.old = std::mem::take(&mut self.young);
        std::mem::replace(&mut self.old_bytes, std::mem::take(&mut self.young_bytes))
    }
}

fn bytes_of(tokens: &Arc<[u32]>) -> usize {
    size_of_val::<[u32]>(tokens) + ENTRY_BYTES
}

/// Pieces of all tenants, within a number of bytes. Who has most of them makes room.
#[derive(Debug)]
struct Memory {
    limit: usize,
    bytes: usize,
    tenants: HashMap<TenantName, Known>,
}

impl Memory {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: 0,
            tenants: HashMap::new(),
        }
    }

    fn get(&mut self, whose: &TenantName, hash: PieceHash) -> Option<Arc<[u32]>> {
        let known = self.tenants.get_mut(whose)?;
        if let Some(tokens) = known.young.get(&hash) {
            return Some(Arc::clone(tokens));
        }
        let tokens = known.old.remove(&hash)?;
        known.old_bytes -= bytes_of(&tokens);
        known.young_bytes += bytes_of(&tokens);
        known.young.insert(hash, Arc::clone(&tokens));
        Some(tokens)
    }

    fn put(&mut self, whose: &TenantName, hash: PieceHash, tokens: Arc<[u32]>) {
        let bytes = bytes_of(&tokens);
        let most = self.limit / 4;
        if bytes > most {
            return;
        }
        let known = self.tenants.entry(whose.clone()).or_default();
        // Two requests that cut the same piece at once bring it twice.
        if known.old.contains_key(&hash) || known.young.insert(hash, tokens).is_some() {
            return;
        }
        known.young_bytes += bytes;
        self.bytes += bytes;
        if known.young_bytes > most {
            self.bytes -= known.age();
        }
        while self.bytes > self.limit {
            self.make_room();
        }
    }

    fn make_room(&mut self) {
        let most = self.tenants.iter_mut().max_by_key(|(_, known)| known.bytes());
        let Some((name, known)) = most else { return };
        self.bytes -= known.age();
        if known.bytes() == 0 {
            let name = name.clone();
            self.tenants.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantName {
        TenantName::new(name).unwrap()
    }

    fn hash(n: u8) -> PieceHash {
        [n; 16]
    }

    fn tokens(n: usize) -> Arc<[u32]> {
        vec![7; n].into()
    }

    /// The tokenizer of a reference model: NFC, byte level, `<|im_start|>` and `<|im_end|>`.
    fn tokenizer() -> Tokenizer {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/conformance/oracle/tiny-qwen3/tokenizer.json"
        );
        Tokenizer::from_file(file).unwrap()
    }

    #[test]
    fn a_chat_is_cut_as_in_one_piece_and_its_turns_are_remembered() {
        let (cutter, acme) = (Cutter::new(tokenizer()), tenant("acme"));
        let pieces = Pieces::of(cutter.reference()).unwrap();
        let turn = "Caf\u{e9} or cafe\u{301}? Both, and  two spaces.\n".repeat(4);
        let mut chat = format!("<|im_start|>system\n{turn}<|im_end|>\n");
        for _ in 0..3 {
            let whole = cutter.reference().encode_fast(chat.as_str(), false).unwrap();
            assert_eq!(pieces.encode(&cutter, &acme, &chat).unwrap(), whole.get_ids());
            chat.push_str("<|im_start|>user\nand then?<|im_end|>\n");
        }
        let known = &pieces.memory.lock().tenants[&acme];
        assert_eq!(known.young.len() + known.old.len(), 1, "the system prompt, once");
    }

    #[test]
    fn a_tokenizer_that_looks_at_where_a_text_begins_cuts_it_whole() {
        use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
        let mut tokenizer = tokenizer();
        tokenizer.with_pre_tokenizer(Some(PreTokenizerWrapper::Metaspace(Metaspace::new(
            '\u{2581}',
            PrependScheme::First,
            true,
        ))));
        assert!(Pieces::of(&tokenizer).is_none());
    }

    #[test]
    fn a_piece_is_found_by_its_own_tenant_only() {
        let mut memory = Memory::new(1 << 20);
        memory.put(&tenant("acme"), hash(1), tokens(10));
        assert_eq!(memory.get(&tenant("acme"), hash(1)), Some(tokens(10)));
        assert_eq!(memory.get(&tenant("globex"), hash(1)), None);
        assert_eq!(memory.get(&tenant("acme"), hash(2)), None);
    }

    #[test]
    fn what_comes_again_stays_and_what_does_not_goes() {
        let each = bytes_of(&tokens(100));
        let mut memory = Memory::new(each * 40);
        let acme = tenant("acme");
        for n in 0..100 {
            memory.put(&acme, hash(n), tokens(100));
            assert_eq!(memory.get(&acme, hash(0)), Some(tokens(100)), "after {n}");
            assert!(memory.bytes <= each * 20, "half of all");
        }
        assert!(memory.get(&acme, hash(95)).is_some());
        assert_eq!(memory.get(&acme, hash(50)), None);
        let known = &memory.tenants[&acme];
        let counted = |pieces: &HashMap<PieceHash, Arc<[u32]>>| pieces.values().map(bytes_of).sum::<usize>();
        assert_eq!(counted(&known.young) + counted(&known.old), memory.bytes);
    }

    #[test]
    fn who_has_most_makes_room() {
        let each = bytes_of(&tokens(100));
        let mut memory = Memory::new(each * 40);
        let small = tenant("small");
        memory.put(&small, hash(0), tokens(100));
        for name in ["a", "b", "c"] {
            for n in 0..100 {
                memory.put(&tenant(name), hash(n), tokens(100));
                assert!(memory.bytes <= memory.limit);
            }
        }
        assert!(memory.get(&small, hash(0)).is_some());
        let all: usize = memory.tenants.values().map(Known::bytes).sum();
        assert_eq!(memory.bytes, all);
    }

    #[test]
    fn what_is_larger_than_a_quarter_of_all_is_not_kept() {
        let mut memory = Memory::new(1000);
        memory.put(&tenant("acme"), hash(1), tokens(100));
        assert_eq!(memory.bytes, 0);
        assert!(memory.tenants.is_empty());
    }
}
