//! Chat templates, rendered as the reference implementation renders them.
//!
//! `strftime_now` says the request's time in UTC, which is what engines in containers take for local: a prompt that prints the
//! date shares no prefix with yesterday's, at the engine either.
//!
//! Tools and the arguments of calls are shown to a template as vLLM shows them, since templates print them: a tool's keys
//! in the order of its schema, what is in its parameters in the client's order, arguments as an object and not as text.

use jiff::{Timestamp, tz::TimeZone};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value, context};
use portolan_base::Moment;
use portolan_ports::{ChatMessage, TemplateValues, TextError};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
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
    pub(super) fn compile(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self, Error> {
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
        environment.add_template_owned(NAME, without_generation_marks(source))?;
        let text = |token: Option<&str>| token.unwrap_or_default().to_owned();
        Ok(Self {
            environment,
            bos: text(bos),
            eos: text(eos),
        })
    }

    /// The prompt of `messages`, ready for an answer. What is in `more` wins over what is always there.
    pub(super) fn render(
        &self,
        messages: &[ChatMessage],
        more: &TemplateValues,
        at: Moment,
    ) -> Result<String, TextError> {
        let failed = |e: serde_json::Error| TextError::Template(e.to_string());
        let read = more.iter().map(|(name, raw)| {
            let value: Value = serde_json::from_str(raw.get()).map_err(failed)?;
            let value = if name == "tools" { tools(&value) } else { value };
            Ok((name.as_str(), value))
        });
        let more: Vec<(&str, Value)> = read.collect::<Result<_, TextError>>()?;
        let values = context! {
            ..Value::from_pairs(more),
            ..context! {
                messages => messages.iter().map(message).collect::<Vec<_>>(),
                add_generation_prompt => true,
                bos_token => self.bos.as_str(),
                eos_token => self.eos.as_str(),
                strftime_now => Value::from_function(move |format: &str| time_as(format, at)),
            }
        };
        let render = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render(values));
        render.map_err(|e| TextError::Template(e.to_string()))
    }
}

/// Tools in the order of their schema.
fn tools(value: &Value) -> Value {
    let Ok(tools) = value.try_iter() else {
        return value.clone();
    };
    tools.map(|tool| schema_order(&tool).unwrap_or(tool)).collect()
}

fn schema_order(tool: &Value) -> Option<Value> {
    let field = |of: &Value, name: &str| of.get_attr(name).ok().filter(|value| !value.is_undefined());
    let function = field(tool, "function").filter(|function| !function.is_none())?;
    let null = || Value::from(());
    let mut inner = vec![
        ("name", field(&function, "name")?),
        (
            "description",
            field(&function, "description").unwrap_or_else(null),
        ),
        ("parameters", field(&function, "parameters").unwrap_or_else(null)),
    ];
    if let Some(strict) = field(&function, "strict").filter(|strict| !strict.is_none()) {
        inner.push(("strict", strict));
    }
    Some(Value::from_pairs([
        (
            "type",
            field(tool, "type").unwrap_or_else(|| Value::from("function")),
        ),
        ("function", Value::from_pairs(inner)),
    ]))
}

/// A message; the arguments of the calls in it as objects.
fn message(message: &ChatMessage) -> Value {
    let plain = Value::from(Serde(message));
    let calls = message
        .rest
        .get("tool_calls")
        .and_then(serde_json::Value::as_array);
    let Some(calls) = calls.filter(|_| message.role == "assistant") else {
        return plain;
    };
    let calls: Vec<Value> = calls.iter().map(call).collect();
    let Ok(keys) = plain.try_iter() else { return plain };
    let fields = keys.map(|key| {
        let value = match key.as_str() {
            Some("tool_calls") => Value::from(calls.clone()),
            _ => plain.get_item(&key).unwrap_or_default(),
        };
        (key, value)
    });
    Value::from_pairs(fields.collect::<Vec<_>>())
}

fn call(call: &serde_json::Value) -> Value {
    let written = &call["function"]["arguments"];
    let arguments = match written.as_str() {
        Some("") => Some(Value::from_pairs(Vec::<(&str, Value)>::new())),
        Some(text) => serde_json::from_str::<Value>(text).ok(),
        None => None,
    };
    let mut call = call.clone();
    let plain = |call: &serde_json::Value| Value::from(Serde(call));
    let (Some(arguments), Some(function)) = (arguments, call["function"].as_object_mut()) else {
        return plain(&call);
    };
    function.remove("arguments");
    let pairs = |object: &serde_json::Map<String, serde_json::Value>| -> Vec<(String, Value)> {
        object
            .iter()
            .map(|(name, value)| (name.clone(), plain(value)))
            .collect()
    };
    let mut inner = pairs(function);
    inner.push(("arguments".to_owned(), arguments));
    let mut outer = call.as_object().map(pairs).unwrap_or_default();
    outer.retain(|(name, _)| name != "function");
    outer.push(("function".to_owned(), Value::from_pairs(inner)));
    Value::from_pairs(outer)
}

/// A template without the marks around what an assistant said, which only training looks at: comments in their place, so
/// that spaces around them are cut as they were.
fn without_generation_marks(source: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(begin) = rest.find("{%") {
        let (before, tag) = rest.split_at(begin);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" | "endgeneration" => {
                let sign = |c: Option<char>| {
                    c.filter(|c| matches!(c, '-' | '+'))
                        .map_or(String::new(), String::from)
                };
                let (first, last) = (sign(inner.chars().next()), sign(inner.chars().last()));
                out.push_str(&format!("{{#{first} {last}#}}"));
            }
            _ => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

/// Lets a template refuse its messages.
fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// A time in UTC, in the form that a template asks for by Python's directives.
fn time_as(format: &str, at: Moment) -> Result<String, Error> {
    let wrong = |e: jiff::Error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {e}"));
    let millis = i64::try_from(at.millis()).unwrap_or(i64::MAX);
    let time = Timestamp::from_millisecond(millis)
        .map_err(wrong)?
        .to_zoned(TimeZone::UTC);
    // Unknown directives are written as they are.
    let lenient = jiff::fmt::strtime::Config::new().lenient(true);
    let broken = jiff::fmt::strtime::BrokenDownTime::from(&time);
    broken.to_string_with_config(&lenient, format).map_err(wrong)
}

/// JSON as Python writes it: a space after each comma and colon, nothing escaped for HTML; with `indent`, a line for each
/// value; with `ensure_ascii`, other characters as escapes.
#[expect(clippy::needless_pass_by_value, reason = "the signature that filters have")]
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let sorted: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let mut out = Vec::new();
    let failed = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    // A map of that type has its keys in order.
    let ordered = match sorted {
        Some(true) => Some(serde_json::to_value(value).map_err(failed)?),
        _ => None,
    };
    let written = match (indent.map(|n| " ".repeat(n.min(INDENT_MOST))), &ordered) {
        (None, None) => value.serialize(&mut Serializer::with_formatter(&mut out, PythonSpacing)),
        (None, Some(value)) => value.serialize(&mut Serializer::with_formatter(&mut out, PythonSpacing)),
        (Some(spaces), ordered) => {
            let pretty = PrettyFormatter::with_indent(spaces.as_bytes());
            let mut serializer = Serializer::with_formatter(&mut out, pretty);
            match ordered {
                None => value.serialize(&mut serializer),
                Some(value) => value.serialize(&mut serializer),
            }
        }
    };
    written.map_err(failed)?;
    let text = String::from_utf8(out).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    Ok(match ascii {
        Some(true) => escaped(&text),
        _ => text,
    })
}

/// Most spaces of an indent: a template could ask for any number for each value.
const INDENT_MOST: usize = 16;

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_ascii() {
            true => out.push(c),
            false => {
                let mut units = [0; 2];
                let units = c.encode_utf16(&mut units);
                out.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
    }
    out
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

    fn values(json: &str) -> TemplateValues {
        serde_json::from_str(json).unwrap()
    }

    fn render(source: &str, messages: &[ChatMessage]) -> Result<String, TextError> {
        ChatTemplate::compile(source, Some("<s>"), Some("</s>"))
            .unwrap()
            .render(messages, &TemplateValues::new(), Moment(0))
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
        let template = ChatTemplate::compile(source, None, None).unwrap();
        let more = values(r#"{"tools": [{"name": "f"}], "thinking": true, "add_generation_prompt": false}"#);
        let text = template.render(&[message("user", "hi")], &more, Moment(0));
        assert_eq!(text.unwrap(), r#"T:[{"name": "f"}]hi!"#);
    }

    #[test]
    fn a_template_can_refuse_and_its_words_are_kept() {
        let source = "{{ raise_exception('roles must alternate') }}";
        let refused = render(source, &[]).unwrap_err();
        assert!(refused.to_string().contains("roles must alternate"), "{refused}");
        assert!(ChatTemplate::compile("{% if %}", None, None).is_err());
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

    /// As vLLM 0.32 renders them: `model_dump` of each tool, `json.loads` of each call's arguments.
    #[test]
    fn tools_and_calls_are_printed_in_the_order_that_engines_print_them_in() {
        let source = "{{ tools | tojson }}|{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}";
        let template = ChatTemplate::compile(source, None, None).unwrap();
        let more = values(
            r#"{"tools": [{"function": {"parameters": {"type": "object", "properties": {"z": {}, "a": {}}}, "name": "f"}, "type": "function"},
                {"type": "function", "function": {"name": "g", "strict": true, "description": "d"}}]}"#,
        );
        let mut calls = message("assistant", "");
        let call = serde_json::json!([{"id": "1", "type": "function",
            "function": {"name": "f", "arguments": "{\"z\":1,\"a\":[2]}"}}]);
        calls.rest.insert("tool_calls".to_owned(), call);
        assert_eq!(
            template.render(&[calls], &more, Moment(0)).unwrap(),
            r#"[{"type": "function", "function": {"name": "f", "description": null, "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}}, {"type": "function", "function": {"name": "g", "description": "d", "parameters": null, "strict": true}}]|f{"z": 1, "a": [2]}"#
        );
    }

    #[test]
    fn the_date_is_the_requests_in_the_form_that_the_template_asks_for() {
        // As Python's datetime prints 2026-03-05 07:08:09 UTC.
        let at = Moment(1_772_694_489_000_000);
        for (format, expected) in [
            ("%d %b %Y", "05 Mar 2026"),
            ("%Y-%m-%d", "2026-03-05"),
            ("%d %B %Y", "05 March 2026"),
            ("%A, %-d %B %Y, %H:%M:%S", "Thursday, 5 March 2026, 07:08:09"),
            ("%I:%M %p %a %j %y %%", "07:08 AM Thu 064 26 %"),
        ] {
            let source = format!(
                "{{% if strftime_now is defined %}}{{{{ strftime_now('{format}') }}}}{{% else %}}26 Jul 2024{{% endif %}}"
            );
            let template = ChatTemplate::compile(&source, None, None).unwrap();
            assert_eq!(
                template.render(&[], &TemplateValues::new(), at).unwrap(),
                expected
            );
        }
        let wild = ChatTemplate::compile("{{ strftime_now('%Q %') }}", None, None).unwrap();
        assert!(
            wild.render(&[], &TemplateValues::new(), Moment(u64::MAX))
                .is_err(),
            "no such year"
        );
    }

    #[test]
    fn json_takes_pythons_options() {
        let source = |options: &str| format!("{{{{ v | tojson({options}) }}}}");
        let more = values(r#"{"v": {"b": [1, {}], "a": "é😀"}}"#);
        for (options, expected) in [
            ("", r#"{"b": [1, {}], "a": "é😀"}"#),
            ("ensure_ascii=False", r#"{"b": [1, {}], "a": "é😀"}"#),
            (
                "ensure_ascii=true",
                r#"{"b": [1, {}], "a": "\u00e9\ud83d\ude00"}"#,
            ),
            ("sort_keys=True", r#"{"a": "é😀", "b": [1, {}]}"#),
            (
                "indent=2",
                "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": \"é😀\"\n}",
            ),
        ] {
            let template = ChatTemplate::compile(&source(options), None, None).unwrap();
            assert_eq!(
                template.render(&[], &more, Moment(0)).unwrap(),
                expected,
                "{options}"
            );
        }
        let other = ChatTemplate::compile(&source("colour=1"), None, None).unwrap();
        assert!(other.render(&[], &more, Moment(0)).is_err());
    }

    #[test]
    fn marks_for_training_are_passed_over_and_cut_spaces_as_before() {
        for (source, expected) in [
            (
                "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
                "hi",
            ),
            (
                "a {%- generation -%} {{ messages[0].content }} {%- endgeneration %} b",
                "ahi b",
            ),
            ("{% generation", "{% generation"),
        ] {
            let rendered = match expected.starts_with('{') {
                true => without_generation_marks(source),
                false => render(source, &[message("user", "hi")]).unwrap(),
            };
            assert_eq!(rendered, expected, "{source}");
        }
    }
}
