//! A set of keyed hashes in 18 bits each, wrong about an absent one once in 65,536.
//!
//! Hashes are mapped evenly onto n · 2¹⁶ numbers. A number's high part is one of n buckets, its low 16 bits are kept as
//! they are, in the order of buckets; how many fall into each bucket is written in unary, 2n bits in all. That is the
//! Elias–Fano representation of the sorted numbers (Elias 1974, Fano 1971), used as an approximate membership test
//! by storing fingerprints exactly (Carter et al. 1978): 16 + 2 bits for a rate of 2⁻¹⁶, whatever n is. A 16-bit binary
//! fuse filter (Graf and Lemire 2022) is as small only from some 300,000 keys on, and 22 bits at a thousand.

use super::KeyedHash;

/// Zeros between two entries of the directory: about two words of the unary part to look through.
const STRIDE: usize = 64;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprints {
    /// A one for each hash, a zero at the end of each bucket.
    unary: Box<[u64]>,
    low: Box<[u16]>,
    /// The word in which every [`STRIDE`]th zero lies, and the zeros before that word.
    directory: Box<[(u32, u32)]>,
}

impl Fingerprints {
    /// The set of these hashes, each given once.
    pub fn new(hashes: impl IntoIterator<Item = KeyedHash>) -> Self {
        let hashes: Vec<KeyedHash> = hashes.into_iter().collect();
        let mut numbers: Vec<u64> = hashes.iter().map(|hash| number(*hash, hashes.len())).collect();
        numbers.sort_unstable();
        let mut unary = vec![0u64; words(numbers.len())];
        for (at, number) in numbers.iter().enumerate() {
            let bit = (number >> 16) as usize + at;
            unary[bit / 64] |= 1 << (bit % 64);
        }
        let low = numbers.iter().map(|number| *number as u16).collect();
        Self::indexed(unary.into(), low)
    }

    /// The set with these parts; none unless they fit together.
    pub(super) fn from_parts(unary: Box<[u64]>, low: Box<[u16]>) -> Option<Self> {
        let ones: usize = unary.iter().map(|word| word.count_ones() as usize).sum();
        let spare = unary.len() * 64 - 2 * low.len().min(unary.len() * 32);
        let unused = unary
            .last()
            .map_or(0, |last| last.checked_shr(64 - spare as u32).unwrap_or(0));
        (unary.len() == words(low.len()) && ones == low.len() && unused == 0)
            .then(|| Self::indexed(unary, low))
    }

    pub(super) fn parts(&self) -> (&[u64], &[u16]) {
        (&self.unary, &self.low)
    }

    /// Hashes in the set.
    pub fn len(&self) -> usize {
        self.low.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.low.is_empty()
    }

    /// Whether a hash is in the set: always true of one that is, and once in 65,536 of one that is not.
    pub fn contains(&self, hash: KeyedHash) -> bool {
        if self.is_empty() {
            return false;
        }
        let number = number(hash, self.len());
        let (bucket, low) = ((number >> 16) as usize, number as u16);
        let Some(from) = bucket
            .checked_sub(1)
            .map_or(Some(0), |before| self.zero(before).map(|at| at + 1))
        else {
            return false;
        };
        let ones = (from..).take_while(|bit| {
            self.unary
                .get(bit / 64)
                .is_some_and(|word| word >> (bit % 64) & 1 == 1)
        });
        ones.filter_map(|bit| self.low.get(bit - bucket))
            .any(|other| *other == low)
    }

    fn indexed(unary: Box<[u64]>, low: Box<[u16]>) -> Self {
        let mut directory = Vec::with_capacity(low.len() / STRIDE + 1);
        let mut zeros = 0;
        for (at, word) in unary.iter().enumerate() {
            let here = word.count_zeros() as usize;
            if directory.len() * STRIDE < zeros + here {
                directory.push((at as u32, zeros as u32));
            }
            zeros += here;
        }
        Self {
            unary,
            low,
            directory: directory.into(),
        }
    }

    /// Where the zero number `nth`, from 0, is.
    fn zero(&self, nth: usize) -> Option<usize> {
        let (word, before) = *self.directory.get(nth / STRIDE)?;
        let mut left = nth - before as usize;
        for (at, word) in self.unary.iter().enumerate().skip(word as usize) {
            let here = word.count_zeros() as usize;
            if left < here {
                let mut zeros = !word;
                for _ in 0..left {
                    zeros &= zeros - 1;
                }
                return Some(at * 64 + zeros.trailing_zeros() as usize);
            }
            left -= here;
        }
        None
    }
}

/// Words of unary part for so many hashes: two bits each.
pub(super) fn words(hashes: usize) -> usize {
    hashes.div_ceil(32)
}

/// A hash's number among `hashes` · 2¹⁶, keeping the hashes' order.
fn number(hash: KeyedHash, hashes: usize) -> u64 {
    ((u128::from(hash.0) * ((hashes as u128) << 16)) >> 64) as u64
}
