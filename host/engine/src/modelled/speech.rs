//! What a modelled engine says. The next token depends on the prompt, its place and the choice alone, so that every
//! instance gives the same answer and a test can compare.

use super::ModelledText;
use super::faults::mix;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// Tokens that are looked at for plain text: the first of a vocabulary are letters and common pieces of words.
const LOOKED_AT: u32 = 8192;

/// Draws the tokens of answers.
#[derive(Debug)]
pub(super) struct Speech {
    /// Tokens that are plain text by themselves.
    plain: Vec<u32>,
}

/// One answer being drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Voice(u64);

impl Speech {
    pub(super) fn new(text: &ModelledText) -> Self {
        let is_plain = |id: &u32| {
            let mut stream = text.text.stream();
            let said = stream.push(*id).unwrap_or_default();
            !said.is_empty() && said.chars().all(|c| c == ' ' || c.is_ascii_alphanumeric())
        };
        let plain: Vec<u32> = (0..text.vocabulary.min(LOOKED_AT)).filter(is_plain).collect();
        let plain = match plain.is_empty() {
            true => vec![0],
            false => plain,
        };
        Self { plain }
    }

    /// The answer to a prompt. `choice` sets several apart; 0 is what a greedy request gets.
    pub(super) fn voice(&self, prompt: &[u32], choice: u64) -> Voice {
        let mut hasher = DefaultHasher::new();
        prompt.hash(&mut hasher);
        Voice(mix(hasher.finish() ^ mix(choice)))
    }

    /// Its token at a place.
    pub(super) fn token(&self, voice: Voice, at: u32) -> u32 {
        let drawn = mix(voice.0 ^ u64::from(at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        self.plain[(drawn % self.plain.len() as u64) as usize]
    }

    /// Its length, between two bounds.
    pub(super) fn length(&self, voice: Voice, (least, most): (u32, u32)) -> u32 {
        least + (mix(voice.0 ^ 0x1e4) % (u64::from(most - least) + 1)) as u32
    }
}
