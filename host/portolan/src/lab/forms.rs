//! How views and cases are read: what a newcomer writes is either taken or answered in the words of the form, never in
//! those of the reader's types.

use portolan_policy::Event;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::fmt;
use std::marker::PhantomData;

/// A list, where people are apt to write its only entry alone.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(form: D) -> Result<Vec<T>, D::Error> {
    struct Reader<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list: begin each entry with `- `, or write [..., ...]")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<T>, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(list))
        }
        fn visit_unit<E: Error>(self) -> Result<Vec<T>, E> {
            Ok(Vec::new())
        }
    }
    form.deserialize_any(Reader(PhantomData))
}

/// The same, where it may be left out.
pub(super) fn some_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    form: D,
) -> Result<Option<Vec<T>>, D::Error> {
    list(form).map(Some)
}

/// A binding's text: as it is, or, for a configuration in JSON, as the object it stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigText(pub String);

impl<'de> Deserialize<'de> for ConfigText {
    fn deserialize<D: Deserializer<'de>>(form: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = ConfigText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the configuration: a text, or the object that it holds")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<ConfigText, E> {
                Ok(ConfigText(text.to_owned()))
            }
            fn visit_unit<E: Error>(self) -> Result<ConfigText, E> {
                Ok(ConfigText::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ConfigText, A::Error> {
                let object = Value::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ConfigText(object.to_string()))
            }
        }
        form.deserialize_any(Reader)
    }
}

/// What happened, for invalidation.
pub(super) fn event<'de, D: Deserializer<'de>>(form: D) -> Result<Option<Event>, D::Error> {
    let said = Value::deserialize(form)?;
    serde_json::from_value(said).map(Some).map_err(|wrong| {
        D::Error::custom(format!(
            "{wrong}; an event is written {{\"tick\": 60000}} (ms), {{\"prefix-revoked\": 7}}, \"tenant-removed\", \
             {{\"capacity-pressure\": {{...}}}}, {{\"model-updated\": {{...}}}} or \
             {{\"dependencies-changed\": [{{...}}]}}"
        ))
    })
}
