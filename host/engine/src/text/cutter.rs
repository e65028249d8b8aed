//! Texts become tokens: by `fastokens`, many times faster than the reference library and held to it.
//!
//! Other tokens than the engine's own mean that no prefix is ever found again. So the fast one is used where it cuts
//! [`PROBES`] as the reference does, one text in [`COMPARED`] is cut by both for as long as the model serves, and the first
//! difference ends its use. What it cannot cut, the reference does.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tokenizers::Tokenizer;

/// One text in so many is cut by both.
const COMPARED: u64 = 1024;

/// What tokenizers differ in, if they do: blanks, numbers, short forms, scripts, marks that combine, signs of several code
/// points, bytes that are no text, special tokens.
const PROBES: [&str; 14] = [
    "",
    "The capital of France is Paris. It's 1,234.5 km² away, isn't it?",
    " leading, trailing \t  and\u{a0}many   blanks  ",
    "lines\n\nof\r\n text\n   \n",
    "DON'T we'LL I'm they've he'd 'SLL 'ſ",
    "fn main() { println!(\"{:>8}\", 0x1f_u64); } // ok\t\t};",
    "naïve café cafe\u{301} A\u{30a} ½ ﬁ ﬂ Ⅷ ℌ",
    "Straße ΑΒΓ αβγ привет שלום مرحبا नमस्ते ไทย",
    "漢字かな交じり文。中文，한국어 가각힣",
    "👩‍👩‍👧‍👦 🇫🇷 ✈️ 🏽 \u{200b}\u{feff}\u{2028}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!!!!!!!!!!!!",
    "\0\u{1}\u{7f}\u{85}\u{fffd}\u{10ffff}",
    "<|im_start|>user\nhello<|im_end|>\n<s></s><unk><|endoftext|> <|im_end",
    "1 12 123 1234 12345 ١٢٣ 3.14e-10 v1.2.3",
];

/// Cuts texts into tokens.
pub(super) struct Cutter {
    reference: Tokenizer,
    fast: Option<fastokens::Tokenizer>,
    /// The fast one was wrong once.
    differed: AtomicBool,
    texts: AtomicU64,
}

impl Cutter {
    pub(super) fn new(reference: Tokenizer) -> Self {
        let mut cutter = Self {
            reference,
            fast: None,
            differed: AtomicBool::new(false),
            texts: AtomicU64::new(0),
        };
        match cutter.faster() {
            Ok(fast) => cutter.fast = Some(fast),
            Err(reason) => {
                tracing::info!(%reason, "texts of this model are cut by the reference tokenizer alone");
            }
        }
        cutter
    }

    /// What the fast one is held to.
    #[cfg(test)]
    pub(super) fn reference(&self) -> &Tokenizer {
        &self.reference
    }

    /// The tokens of a text; with `special`, those that the model has around each text are put there.
    pub(super) fn cut(&self, text: &str, special: bool) -> tokenizers::Result<Vec<u32>> {
        let fast = self.fast.as_ref().filter(|_| !self.differed.load(Relaxed));
        let cut = fast.and_then(|fast| fast.encode_with_special_tokens(text, special).ok());
        let Some(cut) = cut else {
            return self.by_reference(text, special);
        };
        if self.texts.fetch_add(1, Relaxed) % COMPARED != COMPARED - 1 {
            return Ok(cut);
        }
        let expected = self.by_reference(text, special)?;
        if cut != expected && !self.differed.swap(true, Relaxed) {
            tracing::error!(
                bytes = text.len(),
                "two tokenizers cut a text differently; from here on the reference cuts alone, slower. Prefixes that were \
                 found since the start may have been missed: please report the model's tokenizer"
            );
        }
        Ok(expected)
    }

    fn by_reference(&self, text: &str, special: bool) -> tokenizers::Result<Vec<u32>> {
        Ok(self.reference.encode_fast(text, special)?.get_ids().to_vec())
    }

    /// The fast tokenizer of the same file, or why there is none.
    fn faster(&self) -> Result<fastokens::Tokenizer, String> {
        if self.reference.get_truncation().is_some() || self.reference.get_padding().is_some() {
            return Err("it cuts texts off or fills them up".to_owned());
        }
        let file = self.reference.to_string(false).map_err(|e| e.to_string())?;
        let file = serde_json::from_str(&file).map_err(|e| e.to_string())?;
        let fast = fastokens::Tokenizer::from_json(file).map_err(|e| e.to_string())?;
        for (probe, special) in PROBES.iter().flat_map(|probe| [(probe, false), (probe, true)]) {
            let found = fast.encode_with_special_tokens(probe, special);
            let expected = self.by_reference(probe, special).map_err(|e| e.to_string())?;
            match found {
                Ok(found) if found == expected => {}
                Ok(_) => return Err(format!("the fast one cuts {probe:?} differently")),
                Err(error) => return Err(format!("the fast one cannot cut {probe:?}: {error}")),
            }
        }
        Ok(fast)
    }
}

impl std::fmt::Debug for Cutter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cutter")
            .field("fast", &self.fast.is_some())
            .field("differed", &self.differed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::LazyLock;
    use tokenizers::pre_tokenizers::{byte_level::ByteLevel, digits::Digits, sequence::Sequence};

    static QWEN: LazyLock<Cutter> = LazyLock::new(|| Cutter::new(tokenizer()));

    fn tokenizer() -> Tokenizer {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/conformance/oracle/tiny-qwen3/tokenizer.json"
        );
        Tokenizer::from_file(file).unwrap()
    }

    proptest! {
        #[test]
        fn texts_of_any_kind_are_cut_as_the_reference_does(
            parts in prop::collection::vec(prop_oneof![
                "\\PC{0,12}", "[ \t\r\n\u{a0}\u{2003}]{1,9}", "[0-9]{1,9}", "[a-zA-Z]{0,40}", "'(s|t|re|ve|m|ll|d|S|LL|ſ)",
                "[\u{300}-\u{36f}\u{4e00}-\u{4e20}\u{ac00}-\u{ac20}]{0,9}", "<\\|im_(start|end)\\|>", "[!-/:-@]{1,9}",
            ], 0..12),
        ) {
            let text = parts.concat();
            let fast = QWEN.fast.as_ref().expect("a Qwen tokenizer has a fast one");
            for special in [false, true] {
                let found = fast.encode_with_special_tokens(&text, special).unwrap();
                prop_assert_eq!(found, QWEN.by_reference(&text, special).unwrap());
            }
        }
    }

    #[test]
    fn what_the_fast_one_cannot_cut_is_cut() {
        let mut tokenizer = tokenizer();
        let pattern = ByteLevel::new(false, true, true);
        tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![
            Digits::new(true).into(),
            pattern.into(),
        ])));
        let cutter = Cutter::new(tokenizer);
        let blanks = " ".repeat(1 << 20);
        let fast = cutter.fast.as_ref().unwrap();
        assert!(
            fast.encode(&blanks).is_err(),
            "no longer too much for its pattern's stack"
        );
        let tokens = cutter.cut(&blanks, false).unwrap();
        assert_eq!(tokens, cutter.by_reference(&blanks, false).unwrap());
    }

    /// A tokenizer whose tokens have other numbers.
    fn another() -> fastokens::Tokenizer {
        let mut file: serde_json::Value =
            serde_json::from_str(&tokenizer().to_string(false).unwrap()).unwrap();
        let vocabulary = file["model"]["vocab"].as_object_mut().unwrap();
        let (a, b) = (vocabulary["a"].clone(), vocabulary["b"].clone());
        vocabulary["a"] = b;
        vocabulary["b"] = a;
        fastokens::Tokenizer::from_json(file).unwrap()
    }

    #[test]
    fn the_first_difference_ends_the_fast_ones_use() {
        let cutter = Cutter {
            fast: Some(another()),
            ..Cutter::new(tokenizer())
        };
        let expected = cutter.by_reference("a", false).unwrap();
        let cut = || cutter.cut("a", false).unwrap();
        assert!((1..COMPARED).all(|_| cut() != expected), "not compared yet");
        assert!((0..10).all(|_| cut() == expected));
        assert!(cutter.differed.load(Relaxed));
    }

    #[test]
    fn a_tokenizer_that_cuts_texts_off_has_no_fast_one() {
        let mut short = tokenizer();
        short
            .with_truncation(Some(tokenizers::TruncationParams::default()))
            .unwrap();
        assert!(Cutter::new(short).fast.is_none());
    }
}
