//! How KV is made smaller for a link.
//!
//! The receiver says in its order which codings it reads; the manifest says which one the transfer uses.
//!
//! *Lossless* codings work on chunks, and each chunk says whether it was worth coding. Whether a coding pays is
//! measured: now and then a chunk is coded for trial, and chunks are coded as long as coding and sending less is
//! quicker than sending all.
//!
//! *Quantisation* ([`portolan_kv::quant`]) works on pieces of attention KV before they are cut into chunks, so what is
//! sent, checked, acknowledged and counted is the quantised piece. It changes values: it is used only where holder and
//! receiver are both configured for it, and for no order that has to be exact.

use bytes::Bytes;
use parking_lot::Mutex;
use portolan_base::kv::KvQuant;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How the values of a transfer are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Coding {
    /// As they are.
    #[default]
    Plain,
    /// LZ4 block format.
    Lz4,
    /// Zstandard.
    Zstd,
    /// Attention KV in eight-bit integers.
    Int8,
    /// Attention KV in four-bit integers.
    Int4,
}

impl Coding {
    /// Codings that every receiver reads.
    pub(crate) const READ: [Self; 2] = [Self::Lz4, Self::Zstd];

    /// What it does to values, if anything.
    pub const fn quant(self) -> Option<KvQuant> {
        match self {
            Self::Plain | Self::Lz4 | Self::Zstd => None,
            Self::Int8 => Some(KvQuant::Int8),
            Self::Int4 => Some(KvQuant::Int4),
        }
    }
}

impl From<KvQuant> for Coding {
    fn from(quant: KvQuant) -> Self {
        match quant {
            KvQuant::Int8 => Self::Int8,
            KvQuant::Int4 => Self::Int4,
        }
    }
}

/// When a site compresses what it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Never.
    Off,
    /// Where a trial says that it saves time.
    #[default]
    WhenItPays,
    /// Always, with one coding. One that changes values goes to receivers that ask for it; for others, and for orders
    /// that have to be exact, it is as [`Compression::WhenItPays`].
    Always(Coding),
}

/// The first chunk of a transfer is coded for trial, and one in so many when the last trial did not pay. One in 64
/// costs a link that cannot use it about one percent of a core at 1 GB/s.
const TRIAL_EVERY: u32 = 64;

/// Smaller chunks are sent as they are: a state of a few kilobytes is on its way before it is coded, and says nothing
/// about the rest.
const TOO_SMALL: usize = 4 << 10;

/// No coding is as quick as this; a link that is needs no trial.
const TOO_FAST: u64 = 1 << 30;

/// A coding has to save a tenth of the time: less is lost again in noise.
const MARGIN: f64 = 0.9;

/// Codes a chunk; none when it would not become smaller.
pub(crate) fn encode(coding: Coding, plain: &[u8]) -> Option<Bytes> {
    let coded = match coding {
        Coding::Lz4 => lz4_flex::block::compress(plain),
        // The quickest level: beyond it, time grows faster than KV shrinks.
        Coding::Zstd => ruzstd::encoding::compress_to_vec(plain, ruzstd::encoding::CompressionLevel::Fastest),
        Coding::Plain | Coding::Int8 | Coding::Int4 => return None,
    };
    (coded.len() < plain.len()).then(|| coded.into())
}

/// Decodes a chunk into its place; `false` when it is not the coding of so many bytes.
pub(crate) fn decode(coding: Coding, coded: &[u8], plain: &mut [u8]) -> bool {
    let wanted = plain.len();
    match coding {
        Coding::Lz4 => lz4_flex::block::decompress_into(coded, plain).is_ok_and(|n| n == wanted),
        Coding::Zstd => ruzstd::decoding::FrameDecoder::new()
            .decode_all(coded, plain)
            .is_ok_and(|n| n == wanted),
        Coding::Plain | Coding::Int8 | Coding::Int4 => false,
    }
}

#[derive(Debug, Default)]
struct Trials {
    pays: bool,
    /// Chunks since the last trial.
    since: u32,
}

/// Decides, chunk by chunk, for one coding and one peer.
#[derive(Debug)]
pub(crate) struct Judge {
    coding: Coding,
    always: bool,
    trials: Mutex<Trials>,
}

impl Judge {
    /// The judge of a site with this setting, towards a receiver that reads `accepts`.
    pub(crate) fn new(setting: Compression, accepts: &[Coding]) -> Self {
        let setting = match setting {
            Compression::Always(coding) if coding.quant().is_some() && !accepts.contains(&coding) => {
                Compression::WhenItPays
            }
            setting => setting,
        };
        let (coding, always) = match setting {
            Compression::Off => (Coding::Plain, false),
            // LZ4 first: on a link where KV is sent at all, time to code counts for more than the last tenth of size.
            Compression::WhenItPays => (Coding::Lz4, false),
            Compression::Always(coding) => (coding, true),
        };
        let coding = if accepts.contains(&coding) {
            coding
        } else {
            Coding::Plain
        };
        Self {
            coding,
            always,
            trials: Mutex::default(),
        }
    }

    /// What the manifest says.
    pub(crate) fn coding(&self) -> Coding {
        self.coding
    }

    /// Another transfer begins: its values may be of another kind, so its first chunk is a trial.
    pub(crate) fn begin(&self) {
        self.trials.lock().since = 0;
    }

    /// Whether to code a chunk of so many bytes, on a link that delivers `rate` bytes a second.
    pub(crate) fn wants(&self, len: usize, rate: Option<u64>) -> bool {
        // Quantised pieces are coded before they are chunks.
        if self.coding == Coding::Plain || self.coding.quant().is_some() || len < TOO_SMALL {
            return false;
        }
        if self.always {
            return true;
        }
        // Before the link's rate is known nothing can be said.
        if rate.is_none_or(|rate| rate > TOO_FAST) {
            return false;
        }
        let mut trials = self.trials.lock();
        trials.since += 1;
        trials.pays || trials.since >= TRIAL_EVERY || trials.since == 1
    }

    /// Learns from a chunk: `plain` bytes became `coded` in `took`, on a link of `rate`.
    pub(crate) fn learn(&self, plain: usize, coded: usize, took: Duration, rate: Option<u64>) {
        let Some(rate) = rate.filter(|_| !self.always) else {
            return;
        };
        let send = |bytes: usize| bytes as f64 / rate.max(1) as f64;
        let pays = took.as_secs_f64() + send(coded) < send(plain) * MARGIN;
        let mut trials = self.trials.lock();
        trials.pays = pays;
        trials.since = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compressible() -> Vec<u8> {
        (0..100_000u32).map(|i| (i / 64) as u8).collect()
    }

    #[test]
    fn what_was_coded_comes_back_and_damage_is_noticed_or_changes_bytes() {
        let plain = compressible();
        for coding in Coding::READ {
            let coded = encode(coding, &plain).unwrap();
            assert!(coded.len() < plain.len() / 2);
            let mut back = vec![0; plain.len()];
            assert!(decode(coding, &coded, &mut back));
            assert_eq!(back, plain);
            assert!(
                !decode(coding, &coded, &mut vec![0; plain.len() + 1]),
                "another length"
            );
            assert!(!decode(coding, &coded[..coded.len() / 2], &mut back), "cut");
            assert!(!decode(coding, b"", &mut back));
        }
        assert!(!decode(Coding::Int8, &plain, &mut [0; 4]));
    }

    #[test]
    fn noise_is_sent_as_it_is() {
        let mut state = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(10_000)
        .collect();
        for coding in Coding::READ {
            assert!(encode(coding, &noise).is_none());
        }
    }

    #[test]
    fn coding_is_used_where_it_saves_time_and_tried_again_now_and_then() {
        let judge = Judge::new(Compression::WhenItPays, &Coding::READ);
        assert_eq!(judge.coding(), Coding::Lz4);
        assert!(!judge.wants(4 << 20, None), "nothing is known of the link");
        assert!(
            !judge.wants(4 << 20, Some(2 << 30)),
            "the link is quicker than any coding"
        );
        let (slow, took) = (Some(10_000_000), Duration::from_millis(4));
        assert!(!judge.wants(100, slow), "too small to say anything");
        assert!(judge.wants(4 << 20, slow), "a trial");
        judge.learn(4 << 20, 2 << 20, took, slow);
        assert!(
            (0..1000).all(|_| judge.wants(4 << 20, slow)),
            "it saves 200 ms a chunk"
        );
        judge.learn(4 << 20, (4 << 20) - 1, took, slow);
        let tried = (0..1024)
            .filter(|_| judge.wants(4 << 20, slow))
            .inspect(|_| judge.learn(4 << 20, 4 << 20, took, slow));
        assert_eq!(tried.count(), 16);
    }

    #[test]
    fn nothing_is_coded_that_the_receiver_does_not_read() {
        assert_eq!(
            Judge::new(Compression::Always(Coding::Zstd), &[Coding::Lz4]).coding(),
            Coding::Plain
        );
        assert_eq!(
            Judge::new(Compression::Off, &Coding::READ).coding(),
            Coding::Plain
        );
        assert!(Judge::new(Compression::Always(Coding::Zstd), &Coding::READ).wants(4 << 20, None));
    }

    #[test]
    fn values_are_changed_only_when_told_to_and_for_a_receiver_that_asks_for_it() {
        let all = [Coding::Lz4, Coding::Zstd, Coding::Int8, Coding::Int4];
        let of = |setting, accepts: &[Coding]| Judge::new(setting, accepts).coding();
        for setting in [
            Compression::Off,
            Compression::WhenItPays,
            Compression::Always(Coding::Zstd),
        ] {
            assert_eq!(of(setting, &all).quant(), None, "{setting:?}");
        }
        let int4 = Compression::Always(Coding::Int4);
        assert_eq!(of(int4, &all), Coding::Int4);
        assert_eq!(
            of(int4, &[Coding::Lz4, Coding::Int8]),
            Coding::Lz4,
            "as on any other link"
        );
        assert!(
            !Judge::new(int4, &all).wants(4 << 20, Some(10_000_000)),
            "pieces, not chunks"
        );
    }
}
