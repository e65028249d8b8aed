//! The `x-portolan-*` headers.

use super::hints::TEXT_MAX_BYTES;
use crate::error::{ErrorKind, RequestError};
use axum::http::HeaderMap;
use std::collections::BTreeMap;

const PREFIX: &str = "x-portolan-";
const LABEL_PREFIX: &str = "label-";

/// Everything after the prefix that is understood.
const KNOWN: &str = "session, user-class, priority, ttft-slo-ms, batch, jurisdiction, request-id, label-NAME";

/// What the headers say. A header is one line, so a label's name is in lower case.
#[derive(Debug, Default)]
pub(super) struct HeaderHints {
    pub(super) request_id: Option<String>,
    pub(super) session: Option<String>,
    pub(super) user_class: Option<String>,
    pub(super) priority: Option<u32>,
    pub(super) ttft_slo_ms: Option<u32>,
    pub(super) batch: Option<bool>,
    pub(super) jurisdiction: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
}

impl HeaderHints {
    /// Reads them. One that is unknown is refused: a misspelt restriction must not be lost in silence.
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, RequestError> {
        let mut hints = Self::default();
        for name in headers.keys() {
            let Some(word) = name.as_str().strip_prefix(PREFIX) else {
                continue;
            };
            let mut values = headers.get_all(name).iter();
            let (value, more) = (values.next(), values.next());
            let text = value
                .and_then(|value| value.to_str().ok())
                .map(str::trim)
                .unwrap_or_default();
            if more.is_some() {
                return Err(bad(word, "was sent more than once"));
            }
            if text.is_empty() || text.len() > TEXT_MAX_BYTES {
                return Err(bad(
                    word,
                    &format!("must hold 1 to {TEXT_MAX_BYTES} printable ASCII characters"),
                ));
            }
            hints.set(word, text)?;
        }
        Ok(hints)
    }

    fn set(&mut self, word: &str, text: &str) -> Result<(), RequestError> {
        let owned = || Some(text.to_owned());
        match word {
            "request-id" => self.request_id = owned(),
            "session" => self.session = owned(),
            "user-class" => self.user_class = owned(),
            "jurisdiction" => self.jurisdiction = owned(),
            "priority" => self.priority = Some(number(word, text)?),
            "ttft-slo-ms" => self.ttft_slo_ms = Some(number(word, text)?),
            "batch" => match text {
                "true" | "1" => self.batch = Some(true),
                "false" | "0" => self.batch = Some(false),
                _ => return Err(bad(word, "must be true or false")),
            },
            _ => match word.strip_prefix(LABEL_PREFIX) {
                Some(label) => drop(self.labels.insert(label.to_owned(), text.to_owned())),
                None => {
                    return Err(bad(
                        word,
                        &format!("is unknown; after {PREFIX} there may be {KNOWN}"),
                    ));
                }
            },
        }
        Ok(())
    }
}

fn number(word: &str, text: &str) -> Result<u32, RequestError> {
    text.parse()
        .map_err(|_| bad(word, "must be a whole number below 2^32"))
}

fn bad(word: &str, fault: &str) -> RequestError {
    let header = format!("{PREFIX}{word}");
    let message = format!("the header {header} {fault}");
    RequestError {
        param: Some(header),
        ..RequestError::new(ErrorKind::BadRequest, message)
    }
}
