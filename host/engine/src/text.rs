//! Text in and out of a model: tokenizer, chat template, incremental decoding.

mod bytes;
mod cutter;
mod pieces;
mod stream;
mod template;

use crate::load::LoadError;
use bytes::TokenBytes;
use cutter::Cutter;
use pieces::Pieces;
use portolan_base::{Moment, TenantName};
use portolan_ports::{ChatMessage, TemplateValues, TextError, TextModel, TextStream};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use stream::ByteStream;
use template::ChatTemplate;
use tokenizers::Tokenizer;

/// What a model's files say about its text.
pub(crate) struct TextParts {
    pub(crate) tokenizer: Tokenizer,
    /// Jinja source.
    pub(crate) template: Option<String>,
    /// The begin-of-text token, as the template may write it.
    pub(crate) bos: Option<String>,
    /// The end-of-text token.
    pub(crate) eos: Option<String>,
    /// Tokens that steer and are never part of a text.
    pub(crate) silent: HashSet<u32>,
    /// Tokens that end an answer, in any order, doubles allowed.
    pub(crate) stop_ids: Vec<u32>,
}

/// The text side of a loaded model.
#[derive(Debug)]
pub(crate) struct ModelText {
    cutter: Cutter,
    /// How a chat is cut, where it can be cut in pieces.
    pieces: Option<Pieces>,
    template: Option<ChatTemplate>,
    token_bytes: Arc<TokenBytes>,
    longest_token_bytes: usize,
    stop_ids: Vec<u32>,
}

impl ModelText {
    /// Checks and compiles the parts; errors name the file at fault.
    pub(crate) fn new(
        tokenizer_file: &Path,
        template_file: &Path,
        parts: TextParts,
    ) -> Result<Self, LoadError> {
        let token_bytes =
            TokenBytes::of(&parts.tokenizer, &parts.silent).map_err(|reason| LoadError::Tokenizer {
                path: tokenizer_file.to_owned(),
                reason: reason.to_string(),
            })?;
        let compile = |source: &str| {
            ChatTemplate::compile(source, parts.bos.as_deref(), parts.eos.as_deref()).map_err(|e| {
                LoadError::Template {
                    path: template_file.to_owned(),
                    reason: e.to_string(),
                }
            })
        };
        let template = parts.template.as_deref().map(compile).transpose()?;
        let mut stop_ids = parts.stop_ids;
        stop_ids.sort_unstable();
        stop_ids.dedup();
        // As written in the vocabulary a token is at least as long as the bytes it stands for.
        let written = parts.tokenizer.get_vocab(true);
        let longest_token_bytes = written.keys().map(String::len).max().unwrap_or(1);
        Ok(Self {
            longest_token_bytes,
            pieces: Pieces::of(&parts.tokenizer),
            cutter: Cutter::new(parts.tokenizer),
            template,
            token_bytes: Arc::new(token_bytes),
            stop_ids,
        })
    }
}

impl TextModel for ModelText {
    fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TextError> {
        self.cutter
            .cut(text, special)
            .map_err(|e| TextError::Tokenizer(e.to_string()))
    }

    fn encode_chat(&self, rendered: &str, whose: &TenantName) -> Result<Vec<u32>, TextError> {
        match &self.pieces {
            Some(pieces) => pieces
                .encode(&self.cutter, whose, rendered)
                .map_err(|e| TextError::Tokenizer(e.to_string())),
            None => self.encode(rendered, false),
        }
    }

    fn render_chat(
        &self,
        messages: &[ChatMessage],
        more: &TemplateValues,
        at: Moment,
    ) -> Result<String, TextError> {
        let template = self.template.as_ref().ok_or(TextError::NoChatTemplate)?;
        template.render(messages, more, at)
    }

    fn stream(&self) -> Box<dyn TextStream> {
        Box::new(ByteStream::new(Arc::clone(&self.token_bytes)))
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        self.token_bytes.get(token).to_vec()
    }

    fn longest_token_bytes(&self) -> usize {
        self.longest_token_bytes
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }
}
