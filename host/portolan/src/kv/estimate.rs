//! Size of the KV of a prompt: 2 × layers × key/value heads × head width × tokens × batch × bytes for attention, plus
//! a fixed state for each recurrent layer; and the link that moves it as fast as prefill makes it.

use super::known::{KnownModel, MEASURED_ON, MODELS};
use portolan_base::kv::KvSize;
use portolan_base::{Bytes, Tokens};
use portolan_engine::{CacheShape, LoadError};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Request {
    /// A model folder, a `.gguf` file, or the name of a known model.
    pub model: String,
    /// Length of the prompt.
    pub tokens: Tokens,
    /// Sequences.
    pub batch: u32,
    /// Bits of one number, in place of the model's own.
    pub bits: Option<u32>,
    /// How long one prefill takes, in place of what is published.
    pub prefill: Option<Duration>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// All bytes, of all sequences.
    pub bytes: u64,
    /// Bytes of one sequence that do not grow at this length.
    pub fixed_bytes: u64,
    /// Bytes that each token adds to one sequence.
    pub bytes_per_token: u64,
    /// Rate in Gbit/s at which the KV leaves as fast as one prefill instance makes it; none where no prefill time is
    /// known. Whatever the batch: an instance prefills one sequence after the other.
    pub gbps_for_prefill: Option<f64>,
    /// Seconds of one prefill that the rate is for.
    pub prefill_s: Option<f64>,
    /// Where that time comes from.
    pub prefill_source: Option<String>,
}

/// Why there is no estimate.
#[derive(Debug, thiserror::Error)]
pub enum EstimateError {
    /// Neither a path nor a known name.
    #[error("there is no folder or file {0:?}, and no known model of that name; known are {names}", names = known_names())]
    UnknownModel(String),
    /// The model's configuration cannot be read.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// Sizes of known models are known at 16 bits.
    #[error("{0} bits is no size of a number in a KV cache; 32, 16, 8 and 4 are")]
    Bits(u32),
    /// Nothing to estimate.
    #[error("{0} is 0; it must be at least 1")]
    Zero(&'static str),
    /// The size is not a number of 64 bits.
    #[error(
        "the KV of {batch} sequences of {tokens} tokens has more than 2^64 bytes; ask for fewer tokens or a smaller --batch"
    )]
    TooLarge {
        /// Tokens of a sequence.
        tokens: u32,
        /// Sequences.
        batch: u32,
    },
}

fn known_names() -> String {
    MODELS
        .iter()
        .map(|model| model.name)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Answers.
///
/// # Errors
/// [`EstimateError`] when the model is not known or the numbers make no sense.
pub fn estimate(request: &Request) -> Result<Estimate, EstimateError> {
    if request.tokens.0 == 0 {
        return Err(EstimateError::Zero("--tokens"));
    }
    if request.batch == 0 {
        return Err(EstimateError::Zero("--batch"));
    }
    if let Some(bits) = request.bits.filter(|bits| ![32, 16, 8, 4].contains(bits)) {
        return Err(EstimateError::Bits(bits));
    }
    let (size, published) = sequence(request)?;
    let too_large = || EstimateError::TooLarge {
        tokens: request.tokens.0,
        batch: request.batch,
    };
    let one = size.per_token.0.checked_mul(u64::from(request.tokens.0));
    let one = one.and_then(|grown| grown.checked_add(size.fixed.0));
    let one = one.ok_or_else(too_large)?;
    let bytes = one.checked_mul(u64::from(request.batch)).ok_or_else(too_large)?;
    let prefill = match request.prefill {
        Some(time) => Some((time.as_secs_f64(), "--prefill-ms".to_owned())),
        None => published.map(|seconds| (seconds, format!("published for {MEASURED_ON}"))),
    };
    let seconds = prefill.as_ref().map(|(seconds, _)| *seconds);
    Ok(Estimate {
        bytes,
        fixed_bytes: size.fixed.0,
        bytes_per_token: size.per_token.0,
        gbps_for_prefill: seconds.filter(|s| *s > 0.0).map(|s| one as f64 * 8.0 / s / 1e9),
        prefill_s: seconds,
        prefill_source: prefill.map(|(_, source)| source),
    })
}

/// Size of one sequence, and the published seconds of its prefill.
fn sequence(request: &Request) -> Result<(KvSize, Option<f64>), EstimateError> {
    let path = PathBuf::from(&request.model);
    if path.exists() {
        let mut shape = CacheShape::read(&path)?;
        shape.bits = request.bits.unwrap_or(shape.bits);
        let size = shape.at(request.tokens);
        let size = KvSize {
            fixed: size.fixed,
            per_token: size.per_token,
        };
        return Ok((size, None));
    }
    let known = KnownModel::named(&request.model)
        .ok_or_else(|| EstimateError::UnknownModel(request.model.clone()))?;
    let bits = u64::from(request.bits.unwrap_or(PUBLISHED_BITS));
    let scaled = |bytes: Bytes| Bytes((bytes.0 * bits).div_ceil(u64::from(PUBLISHED_BITS)));
    let size = KvSize {
        fixed: scaled(known.size.fixed),
        per_token: scaled(known.size.per_token),
    };
    Ok((size, known.prefill_seconds(request.tokens)))
}

/// Bits of a number in the sizes of known models: bfloat16.
const PUBLISHED_BITS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn request(model: &str, tokens: u32) -> Request {
        Request {
            model: model.to_owned(),
            tokens: Tokens(tokens),
            batch: 1,
            bits: None,
            prefill: None,
        }
    }

    #[test]
    fn the_published_sizes_and_links_of_the_hybrid_come_out() {
        // Size in MiB to the printed digit; the link within the rounding of the printed seconds.
        let table = [
            (1_024, "190.8", 3.61),
            (8_192, "308.9", 3.59),
            (32_000, "701.3", 3.19),
            (130_000, "2316.3", 2.62),
        ];
        for (tokens, mib, gbps) in table {
            let answer = estimate(&request("hybrid-1t", tokens)).unwrap();
            assert_eq!(format!("{:.1}", answer.bytes as f64 / f64::from(1 << 20)), mib);
            let link = answer.gbps_for_prefill.unwrap();
            assert!((link / gbps - 1.0).abs() < 0.01, "{tokens}: {link} is not {gbps}");
        }
    }

    #[test]
    fn the_published_links_of_dense_models_come_out() {
        // Their prefill times are what the printed links and the public sizes imply, to the millisecond.
        let lengths = [1_024, 8_192, 32_768, 131_072];
        for (model, printed) in [
            ("minimax-m2.5", [4.94, 32.87, 59.93, 47.82]),
            ("qwen3-235b-a22b", [4.12, 22.42, 33.35, 21.50]),
        ] {
            for (tokens, gbps) in lengths.into_iter().zip(printed) {
                let link = estimate(&request(model, tokens))
                    .unwrap()
                    .gbps_for_prefill
                    .unwrap();
                assert!(
                    (link / gbps - 1.0).abs() < 0.002,
                    "{model} {tokens}: {link} is not {gbps}"
                );
            }
        }
    }

    #[test]
    fn known_dense_models_have_their_public_sizes() {
        for (name, bytes) in [
            ("Qwen3-235B-A22B", 192_512),
            ("minimax-m2.5", 253_952),
            ("llama-3.1-8b", 131_072),
        ] {
            assert_eq!(estimate(&request(name, 10)).unwrap().bytes, bytes * 10, "{name}");
        }
    }

    #[test]
    fn batch_bits_and_a_measured_prefill_count() {
        let base = request("llama-3.1-8b", 1000);
        let own = |change: fn(&mut Request)| {
            let mut request = base.clone();
            change(&mut request);
            estimate(&request).unwrap()
        };
        let plain = own(|_| {});
        assert_eq!(plain.gbps_for_prefill, None);
        assert_eq!(own(|r| r.batch = 3).bytes, 3 * plain.bytes);
        assert_eq!(own(|r| r.bits = Some(8)).bytes, plain.bytes / 2);
        let timed = own(|r| r.prefill = Some(Duration::from_millis(500)));
        assert_eq!(timed.gbps_for_prefill, Some(plain.bytes as f64 * 16.0 / 1e9));
    }

    #[test]
    fn what_cannot_be_answered_is_said() {
        let said = |change: fn(&mut Request)| {
            let mut request = request("hybrid-1t", 10);
            change(&mut request);
            estimate(&request).unwrap_err().to_string()
        };
        assert!(said(|r| r.model = "gpt-9".to_owned()).contains("known are hybrid-1t, "));
        assert!(said(|r| r.tokens = Tokens(0)).contains("--tokens is 0"));
        assert!(said(|r| r.batch = 0).contains("--batch is 0"));
        assert!(said(|r| r.bits = Some(5)).contains("5 bits"));
        let most = said(|r| (r.tokens, r.batch) = (Tokens(u32::MAX), u32::MAX));
        assert!(most.contains("more than 2^64 bytes"), "{most}");
    }
}
