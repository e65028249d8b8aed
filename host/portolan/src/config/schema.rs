//! The shape of the configuration file: its JSON schema, and a walk over it that finds keys by place.

use super::Config;
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// A name, as [`portolan_base::check_name`] takes it.
pub(super) struct Name;

impl JsonSchema for Name {
    fn schema_name() -> Cow<'static, str> {
        "Name".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "name", "pattern": "^[a-z0-9][a-z0-9._-]{0,62}$" })
    }

    fn inline_schema() -> bool {
        true
    }
}

/// An address with a port.
pub(super) struct Address;

impl JsonSchema for Address {
    fn schema_name() -> Cow<'static, str> {
        "Address".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "address:port" })
    }

    fn inline_schema() -> bool {
        true
    }
}

/// What an instance computes with, as [`portolan_engine::ComputeDevice`] takes it.
pub(super) struct DeviceKey;

impl JsonSchema for DeviceKey {
    fn schema_name() -> Cow<'static, str> {
        "Device".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "device", "pattern": "^(cpu|cpu-tensors|cuda(:[0-9]+)?)$" })
    }

    fn inline_schema() -> bool {
        true
    }
}

/// What an instance may be for.
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "stands for `portolan_base::Role` in the schema")]
pub(super) enum RoleKey {
    Prefill,
    Decode,
    Both,
}

/// Attention over the latest tokens only.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "stands for `portolan_base::kv::KvWindow` in the schema")]
pub(super) struct WindowKeys {
    /// Latest tokens that a token sees, itself among them; at least 1.
    tokens: u32,
    /// First tokens of the prompt that every token sees besides.
    #[schemars(default)]
    sinks: u32,
}

/// The schema as an editor takes it.
pub fn schema() -> Value {
    schemars::schema_for!(Config).to_value()
}

/// The schema without references, for walking.
pub(super) fn inline_schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings
        .into_generator()
        .into_root_schema_for::<Config>()
        .to_value()
}

/// The objects that a value of this schema may be: more than one where a key takes several forms.
pub(super) fn objects(schema: &Value) -> Vec<&Map<String, Value>> {
    let Value::Object(schema) = schema else {
        return Vec::new();
    };
    if schema.contains_key("properties") || schema.contains_key("additionalProperties") {
        return vec![schema];
    }
    let forms = ["anyOf", "oneOf", "allOf"]
        .into_iter()
        .filter_map(|key| schema.get(key)?.as_array());
    forms.flatten().flat_map(objects).collect()
}

/// The schema of a list's elements.
pub(super) fn items(schema: &Value) -> Option<&Value> {
    if let Some(items) = schema.get("items") {
        return Some(items);
    }
    let forms = ["anyOf", "oneOf"]
        .into_iter()
        .filter_map(|key| schema.get(key)?.as_array());
    forms.flatten().find_map(items)
}

/// The keys of an object, with their schemas.
pub(super) fn properties(object: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    let properties = object.get("properties").and_then(Value::as_object);
    properties.into_iter().flatten()
}

/// The schema of the values under names that the operator chooses.
pub(super) fn of_any_name(object: &Map<String, Value>) -> Option<&Value> {
    object
        .get("additionalProperties")
        .filter(|schema| schema.is_object())
}
