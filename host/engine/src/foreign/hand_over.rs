//! Prefill on one instance, decode on another: what each is told. What the first says for the second passes verbatim,
//! and is looked at before: an engine that is told to take KV without being told from where does not survive it.

use super::EngineUrl;
use super::slots::Slots;
use crate::splice::{Edit, field, splice};
use portolan_ports::WholeJob;
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The field that both legs speak through.
pub(super) const FIELD: &str = "kv_transfer_params";

/// The same for what encoders hand over, which nobody here speaks through.
const ENCODERS: &str = "ec_transfer_params";

/// Arguments for extensions of vLLM. Its engine looks for both fields among them as well.
const EXTENSIONS: &str = "vllm_xargs";

/// What a prefill instance of the pulling kind is told.
const OFFER: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}"#;

/// The fields that SGLang's legs find each other by.
pub(super) const ROOM: [&str; 3] = ["bootstrap_host", "bootstrap_port", "bootstrap_room"];

/// Where vLLM answers which of its engines prefills, unless told otherwise.
const BOOTSTRAP_PORT: u16 = 8998;

/// What sends a request to one of vLLM's data-parallel ranks.
const RANK_HEADER: &str = "x-data-parallel-rank";

/// Shortest prompt that is parted: below a block there is nothing to hand over, and two legs cost more than one.
const SHORTEST: u32 = 32;

/// How an instance hands KV to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connector {
    /// vLLM's NixlConnector: prefill first, then the decode instance pulls.
    Nixl,
    /// vLLM's MooncakeConnector: both at once, the prefill instance pushes.
    Mooncake {
        /// The prefill instance's bootstrap server; none: port 8998 of its host.
        bootstrap: Option<EngineUrl>,
    },
    /// SGLang's bootstrap: both at once, told which room they meet in.
    Bootstrap {
        /// The prefill instance's bootstrap server; none: port 8998 of its host.
        server: Option<EngineUrl>,
    },
    /// llama.cpp's slots, saved to files and restored: prefill first.
    Slots {
        /// Where the server saves them (its `--slot-save-path`).
        folder: PathBuf,
    },
}

/// The same, ready for use.
#[derive(Clone, Debug)]
pub(crate) enum Handing {
    Nixl,
    Mooncake { bootstrap: EngineUrl },
    Bootstrap { server: EngineUrl },
    Slots(Arc<Slots>),
}

impl Handing {
    pub(super) fn new(connector: Connector, url: &EngineUrl) -> Self {
        let usual = || EngineUrl(format!("http://{}:{BOOTSTRAP_PORT}", url.host()));
        match connector {
            Connector::Nixl => Self::Nixl,
            Connector::Bootstrap { server } => Self::Bootstrap {
                server: server.unwrap_or_else(usual),
            },
            Connector::Slots { folder } => Self::Slots(Arc::new(Slots::new(folder))),
            Connector::Mooncake { bootstrap } => Self::Mooncake {
                bootstrap: bootstrap.unwrap_or_else(usual),
            },
        }
    }
}

/// What a prefill instance gets instead of the client's fields: one token, at once, and the KV kept.
pub(super) fn prefill_edits(params: Option<&str>) -> Vec<Edit<'static>> {
    let one = || Cow::Borrowed("1");
    let params = params.map_or(Cow::Borrowed(OFFER), |params| Cow::Owned(params.to_owned()));
    vec![
        Edit::Set(FIELD, params),
        Edit::Set("stream", Cow::Borrowed("false")),
        Edit::Remove("stream_options"),
        Edit::Set("max_tokens", one()),
        Edit::Replace("max_completion_tokens", one()),
        // More than one token asked for at least would be refused.
        Edit::Remove("min_tokens"),
        Edit::Remove("min_completion_tokens"),
    ]
}

/// What takes a client's own words for other instances out, wherever the engine would find them: one that finds anything
/// but an object, such as `{"vllm_xargs": {"kv_transfer_params": 0}}`, does not survive it.
pub(super) fn smuggled_edits(body: &[u8]) -> Vec<Edit<'static>> {
    let mut edits = vec![Edit::Remove(ENCODERS)];
    let own = [FIELD, ENCODERS].map(Edit::Remove);
    let left = field(body, EXTENSIONS).and_then(|raw| splice(raw.as_bytes(), &own).ok());
    if let Some(left) = left.and_then(|left| String::from_utf8(left).ok()) {
        edits.push(Edit::Replace(EXTENSIONS, left.into()));
    }
    edits
}

/// Both legs of a transfer that the host names, for the pushing kind.
pub(super) fn named_transfer(transfer: &str, bootstrap: &EngineUrl, engine: &str) -> (String, String) {
    let text = |text: &str| Value::from(text).to_string();
    let (transfer, bootstrap, engine) = (text(transfer), text(&bootstrap.to_string()), text(engine));
    (
        format!(r#"{{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":{transfer}}}"#),
        format!(
            r#"{{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":{transfer},"remote_bootstrap_addr":{bootstrap},"remote_engine_id":{engine}}}"#
        ),
    )
}

/// The data-parallel ranks that a bootstrap server knows, each with its engine's name.
pub(super) fn ranks(said: &[u8]) -> Vec<(u16, String)> {
    let said: BTreeMap<String, Value> = serde_json::from_slice(said).unwrap_or_default();
    let named = said.iter().filter_map(|(rank, about)| {
        let engine = about.get("engine_id")?.as_str().filter(|name| !name.is_empty())?;
        Some((rank.parse().ok()?, engine.to_owned()))
    });
    named.collect()
}

/// The same request for one data-parallel rank, whatever rank the client asked for.
pub(super) fn at_rank(job: WholeJob, rank: u16) -> WholeJob {
    let others = job.headers.iter().filter(|(name, _)| name != RANK_HEADER);
    let own = (RANK_HEADER.to_owned(), rank.to_string());
    WholeJob {
        headers: others.cloned().chain([own]).collect(),
        ..job
    }
}

/// Where both legs of a request meet, for SGLang: a room of 63 bits at the prefill instance's bootstrap server.
pub(super) fn room(server: &EngineUrl, drawn: u64) -> String {
    let values = [
        Value::from(server.host()),
        Value::from(server.port().unwrap_or(BOOTSTRAP_PORT)),
        Value::from(drawn >> 1),
    ];
    let fields: serde_json::Map<_, _> = ROOM.into_iter().map(str::to_owned).zip(values).collect();
    Value::Object(fields).to_string()
}

/// What a leg is told of its room: fields of the request's own.
pub(super) fn room_edits(room: &str) -> Vec<Edit<'static>> {
    let said: Value = serde_json::from_str(room).unwrap_or_default();
    let told = ROOM.map(|name| Edit::Set(name, said[name].to_string().into()));
    told.to_vec()
}

/// What of a prefill's answer concerns the other leg.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Verbatim; none where the decode instance had better compute.
    pub(super) params: Option<Arc<str>>,
    /// Whether it said nothing that can be used.
    pub(super) unusable: bool,
    pub(super) cached: Option<u32>,
}

/// Reads a prefill's answer.
pub(super) fn read_answer(body: &[u8]) -> Said {
    let params = field(body, FIELD).filter(|raw| is_usable(raw));
    Said {
        unusable: params.is_none(),
        cached: field(body, "usage").and_then(cached_tokens),
        params: params.map(Arc::from),
    }
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

fn cached_tokens(usage: &str) -> Option<u32> {
    let usage: Usage = serde_json::from_str(usage).ok()?;
    usage.prompt_tokens_details?.cached_tokens
}

/// Whether a decode instance survives these and can do something with them.
fn is_usable(raw: &str) -> bool {
    let Ok(Value::Object(params)) = serde_json::from_str(raw) else {
        return false;
    };
    let said = |name: &str| {
        params
            .get(name)
            .and_then(Value::as_str)
            .is_some_and(|text| !text.is_empty())
    };
    let port = params.get("remote_port").and_then(Value::as_u64);
    params.get("do_remote_prefill") == Some(&Value::Bool(true))
        && params.get("remote_block_ids").is_some_and(is_block_list)
        && said("remote_engine_id")
        && said("remote_host")
        && port.is_some_and(|port| (1..=u64::from(u16::MAX)).contains(&port))
}

/// A list of block numbers, or one such list for each cache group. One that names no block is none: where it lacks the
/// prefix, an engine that is told to take KV and finds no block to take does not survive it.
fn is_block_list(value: &Value) -> bool {
    let numbers = |list: &[Value]| list.iter().all(Value::is_u64);
    let Value::Array(list) = value else { return false };
    let groups = || list.iter().map(Value::as_array).collect::<Option<Vec<_>>>();
    match groups() {
        Some(groups) => {
            groups.iter().all(|group| numbers(group)) && groups.iter().any(|group| !group.is_empty())
        }
        None => numbers(list),
    }
}

/// Whether this request may be parted: one answer to one prompt, of more than one token, without the prompt's own
/// probabilities.
pub(super) fn is_parted(job: &WholeJob, prompt_tokens: u32) -> bool {
    let says = |name: &str| field(&job.body, name).unwrap_or("null");
    let asks = |name: &str| !matches!(says(name), "null" | "false" | "0");
    let several = |name: &str| !matches!(says(name), "null" | "1");
    let prompts = says("prompt");
    let many = prompts
        .strip_prefix('[')
        .is_some_and(|inner| inner.trim_start().starts_with(['"', '[']));
    let lists = many && serde_json::from_str::<Vec<Value>>(prompts).is_ok_and(|list| list.len() > 1);
    let short = says("max_completion_tokens") == "1" || says("max_tokens") == "1";
    // Of the prompt's probabilities 0 asks for its own tokens' alone.
    let prompts_own = says("prompt_logprobs") != "null";
    let refused = prompts_own || ["echo", "use_beam_search"].into_iter().any(asks);
    prompt_tokens >= SHORTEST && !short && !refused && !lists && !several("n") && !several("best_of")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::splice::splice;
    use bytes::Bytes;
    use portolan_base::RequestId;
    use portolan_ports::{CacheSalt, Cancel, WholePath};

    const GOOD: &str = r#"{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":15600,"tp_size":1,"odd":12345678901234567890123}"#;

    #[test]
    fn what_is_whole_passes_verbatim() {
        let body = format!(
            r#"{{"usage":{{"prompt_tokens_details":{{"cached_tokens":32}}}},"kv_transfer_params":{GOOD}}}"#
        );
        let said = read_answer(body.as_bytes());
        assert_eq!(
            (said.params.as_deref(), said.cached, said.unusable),
            (Some(GOOD), Some(32), false)
        );
        assert!(is_usable(&GOOD.replace("[[1,2]]", "[3]")), "an older release");
        assert!(
            is_usable(&GOOD.replace("[[1,2]]", "[[],[3]]")),
            "a window's group"
        );
    }

    #[test]
    fn what_would_kill_the_other_engine_never_reaches_it() {
        let killers = [
            r#"{"do_remote_prefill":true}"#.to_owned(),
            GOOD.replace("[[1,2]]", "null"),
            GOOD.replace("[[1,2]]", "[[1],null]"),
            GOOD.replace("[[1,2]]", "[]"),
            GOOD.replace("[[1,2]]", "[[],[]]"),
            GOOD.replace("true,\"do", "false,\"do"),
            GOOD.replace("15600", "0"),
            GOOD.replace("15600", "\"15600\""),
            GOOD.replace("\"e\"", "\"\""),
            GOOD.replace("\"h\"", "null"),
            "[]".to_owned(),
        ];
        for params in killers {
            let said = read_answer(format!(r#"{{"kv_transfer_params":{params}}}"#).as_bytes());
            assert!(said.params.is_none() && said.unusable, "{params}");
        }
        for nothing in [r#"{"kv_transfer_params":null}"#, "{}"] {
            let said = read_answer(nothing.as_bytes());
            assert!(said.params.is_none() && said.unusable, "{nothing}");
        }
    }

    #[test]
    fn a_clients_own_words_for_other_engines_go_wherever_they_stand() {
        let left = |body: &str| {
            let left = splice(body.as_bytes(), &smuggled_edits(body.as_bytes())).unwrap();
            String::from_utf8(left).unwrap()
        };
        assert_eq!(
            left(
                r#"{"a":1,"ec_transfer_params":{"x":1},"vllm_xargs" : {"kv_transfer_params":0, "n":1.50,"ec_transfer\u005fparams":[1] }, "b":2}"#
            ),
            r#"{"a":1,"vllm_xargs" : { "n":1.50}, "b":2}"#
        );
        for untouched in [
            r#"{"vllm_xargs":{"n":[1e400] } }"#,
            r#"{"vllm_xargs":null}"#,
            "{}",
        ] {
            assert_eq!(left(untouched), untouched);
        }
    }

    #[test]
    fn the_prefill_leg_asks_for_one_token_and_keeps_the_rest() {
        let body = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"min_tokens":4,"max_completion_tokens":9,"odd":1e400}"#;
        let sent = splice(body.as_bytes(), &prefill_edits(None)).unwrap();
        let expected = format!(
            r#"{{"model":"m","stream":false,"max_completion_tokens":1,"odd":1e400,"kv_transfer_params":{OFFER},"max_tokens":1}}"#
        );
        assert_eq!(String::from_utf8(sent).unwrap(), expected);
    }

    fn job(body: &str) -> WholeJob {
        WholeJob {
            request: RequestId::from_client("r").unwrap(),
            path: WholePath::Completions,
            body: Bytes::copy_from_slice(body.as_bytes()),
            remove: Arc::from([]),
            headers: Arc::from([
                ("x-own".to_owned(), "1".to_owned()),
                (RANK_HEADER.to_owned(), "7".to_owned()),
            ]),
            salt: CacheSalt {
                text: "s".into(),
                root: None,
            },
            prompt: Arc::from([]),
            uncached: 0,
            cancel: Cancel::new(),
        }
    }

    #[test]
    fn a_bootstrap_server_names_its_ranks_and_one_of_them_computes() {
        let said = br#"{"1": {"engine_id": "b", "worker_addr": {}}, "0": {"engine_id": "a"}, "2": {}, "x": {"engine_id": "c"}}"#;
        assert_eq!(ranks(said), [(0, "a".to_owned()), (1, "b".to_owned())]);
        assert!(ranks(b"[]").is_empty() && ranks(br#"{"0": {"engine_id": ""}}"#).is_empty());
        let at = at_rank(job("{}"), 1);
        let expected = [("x-own", "1"), (RANK_HEADER, "1")];
        let headers: Vec<_> = at.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(headers, expected);
    }

    #[test]
    fn what_cannot_be_parted_is_not() {
        for (body, prompt, parted) in [
            (r#"{"prompt":"x"}"#, 100, true),
            (
                r#"{"prompt":["x"],"n":1,"echo":false,"prompt_logprobs":null}"#,
                100,
                true,
            ),
            (r#"{"prompt":[1,2,3],"max_tokens":2}"#, 100, true),
            (r#"{"prompt":"x"}"#, SHORTEST - 1, false),
            (r#"{"prompt":"x","n":2}"#, 100, false),
            (r#"{"prompt":"x","best_of":2}"#, 100, false),
            (r#"{"prompt":"x","echo":true}"#, 100, false),
            (r#"{"prompt":"x","prompt_logprobs":5}"#, 100, false),
            (r#"{"prompt":"x","prompt_logprobs":0}"#, 100, false),
            (r#"{"prompt":"x","prompt_logprobs":-1}"#, 100, false),
            (r#"{"prompt":["x","y"]}"#, 100, false),
            (r#"{"prompt":[[1],[2]]}"#, 100, false),
            (r#"{"prompt":"x","max_tokens":1}"#, 100, false),
        ] {
            assert_eq!(is_parted(&job(body), prompt), parted, "{body}");
        }
    }
}
