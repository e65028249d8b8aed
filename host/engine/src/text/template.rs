//! Chat templates, rendered as the reference implementation renders them.
//!
//! `strftime_now` is not defined: templates that use it test for it and fall back to a fixed date, and a prompt that
//! changes with the date would share no cached prefix with yesterday's.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use portolan_ports::{ChatMessage, TextError};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::io;

/// The name under which the environment keeps the one template.
const NAME: &str = "chat";

/// A compiled chat template.
#[derive(Debug)]
pub(super) struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    pub(super) fn compile(source: String, bos: Option<&str>, eos: Option<&str>) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_syntax(
            SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build()?,
        );
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", to_json);
        environment.add_template_owned(NAME, source)?;
        let text = |token: Option<&str>| token.unwrap_or_default().to_owned();
        Ok(Self {
            environment,
            bos: text(bos),
            eos: text(eos),
        })
    }

    /// The prompt of `messages`, ready for an answer.
    pub(super) fn render(&self, messages: &[ChatMessage]) -> Result<String, TextError> {
        self.render_with(messages, &serde_json::Map::new())
    }

    /// The same with more values, which win over those that are always there.
    pub(super) fn render_with(
        &self,
        messages: &[ChatMessage],
        more: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, TextError> {
        let values = context! {
            ..Value::from(Serde(more)),
            ..context! {
                messages => Serde(messages),
                add_generation_prompt => true,
                bos_token => self.bos.as_str(),
                eos_token => self.eos.as_str(),
            }
        };
        let render = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render(values));
        render.map_err(|e| TextError::Template(e.to_string()))
    }
}

/// Lets a template refuse its messages.
fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// JSON as Python writes it: a space after each comma and colon, nothing escaped for HTML.
fn to_json(value: &Value) -> Result<String, Error> {
    let mut out = Vec::new();
    let failed = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    value
        .serialize(&mut Serializer::with_formatter(&mut out, PythonSpacing))
        .map_err(failed)?;
    String::from_utf8(out).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))
}

struct PythonSpacing;

impl Formatter for PythonSpacing {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, content: &str) -> ChatMessage {
        ChatMessage {
            role: role.to_owned(),
            content: content.to_owned(),
            rest: serde_json::Map::new(),
        }
    }

    fn render(source: &str, messages: &[ChatMessage]) -> Result<String, TextError> {
        ChatTemplate::compile(source.to_owned(), Some("<s>"), Some("</s>"))
            .unwrap()
            .render(messages)
    }

    #[test]
    fn templates_may_call_python_methods_and_see_the_special_tokens() {
        let source = "{{ bos_token }}{% for m in messages %}{{ m.role.upper() }}:{{ m['content'].strip() }}{{ eos_token }}{% endfor %}\n{%- if add_generation_prompt %}A:{% endif %}";
        assert_eq!(
            render(source, &[message("user", " hi ")]).unwrap(),
            "<s>USER:hi</s>A:"
        );
    }

    #[test]
    fn tools_and_the_clients_own_arguments_are_seen_and_win() {
        let source = "{% if tools %}T:{{ tools | tojson }}{% endif %}{{ messages[0].content }}{% if thinking %}!{% endif %}{% if add_generation_prompt %}A{% endif %}";
        let template = ChatTemplate::compile(source.to_owned(), None, None).unwrap();
        let more =
            serde_json::json!({"tools": [{"name": "f"}], "thinking": true, "add_generation_prompt": false});
        let text = template.render_with(&[message("user", "hi")], more.as_object().unwrap());
        assert_eq!(text.unwrap(), r#"T:[{"name": "f"}]hi!"#);
    }

    #[test]
    fn a_template_can_refuse_and_its_words_are_kept() {
        let source = "{{ raise_exception('roles must alternate') }}";
        let refused = render(source, &[]).unwrap_err();
        assert!(refused.to_string().contains("roles must alternate"), "{refused}");
        assert!(ChatTemplate::compile("{% if %}".to_owned(), None, None).is_err());
    }

    #[test]
    fn what_else_a_client_wrote_reaches_the_template_and_json_is_spaced_as_in_python() {
        let mut with_tools = message("assistant", "");
        with_tools
            .rest
            .insert("calls".to_owned(), serde_json::json!({"a": [1, "<"], "b": "é"}));
        let text = render("{{ messages[0].calls | tojson }}", &[with_tools]).unwrap();
        assert_eq!(text, r#"{"a": [1, "<"], "b": "é"}"#);
    }
}
