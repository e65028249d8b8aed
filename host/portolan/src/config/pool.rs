//! Shorthands for instances that are alike: `replicas`, and `resource_class` with what `resource_classes` says of it.
//! Both are written out before the file's values are checked.

use super::{Config, ConfigError};
use portolan_engine::ComputeDevice;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::num::NonZeroU32;

/// What instances of one kind of machine have in common. An instance's own key goes before its class's.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResourceClass {
    /// As an instance's.
    pub decode_slots: Option<u32>,
    /// As an instance's.
    #[schemars(with = "Option<super::schema::DeviceKey>")]
    pub device: Option<ComputeDevice>,
    /// As an instance's.
    pub kv_pool_mib: Option<u64>,
    /// As an instance's.
    pub kv_snapshot_blocks: Option<NonZeroU32>,
    /// As an instance's.
    pub max_queue_depth: Option<u32>,
    /// As an instance's.
    pub price_micros_per_kilotoken: Option<u32>,
    /// As an instance's.
    pub warmup_before_serving: Option<bool>,
}

/// Most instances that one entry stands for: more are a slip of the keyboard.
const REPLICAS_MAX: u32 = 256;

impl Config {
    /// Whether anything is to be written out.
    pub(super) fn has_shorthands(&self) -> bool {
        let mut instances = self.sites.iter().flat_map(|site| &site.instances);
        instances.any(|instance| instance.replicas != 1 || instance.resource_class.is_some())
    }

    /// Whether each shorthand can be written out.
    pub(super) fn check_shorthands(&self) -> Result<(), ConfigError> {
        for site in &self.sites {
            for instance in &site.instances {
                let key = |field| format!("sites.{}.instances.{}.{field}", site.name, instance.name);
                if !(1..=REPLICAS_MAX).contains(&instance.replicas) {
                    let problem = format!("1 to {REPLICAS_MAX} are possible");
                    return Err(ConfigError::value(key("replicas"), problem));
                }
                if instance.max_queue_depth == Some(0) {
                    let problem = "at least 1 is needed, or no prompt is ever computed";
                    return Err(ConfigError::value(key("max_queue_depth"), problem));
                }
                let Some(class) = &instance.resource_class else {
                    continue;
                };
                if !self.resource_classes.contains_key(class) {
                    let known: Vec<&str> = self.resource_classes.keys().map(String::as_str).collect();
                    let problem = format!(
                        "there is no class {class:?}; resource_classes has: {}",
                        known.join(", ")
                    );
                    return Err(ConfigError::value(key("resource_class"), problem));
                }
            }
        }
        Ok(())
    }
}

/// Writes out the instances of every site.
pub(super) fn write_out(document: &mut Value) {
    let classes = document.get("resource_classes").cloned().unwrap_or_default();
    let sites = document.get_mut("sites").and_then(Value::as_array_mut);
    for site in sites.into_iter().flatten() {
        if let Some(Value::Array(instances)) = site.get_mut("instances") {
            let written = std::mem::take(instances);
            *instances = written
                .into_iter()
                .flat_map(|one| replicas(one, &classes))
                .collect();
        }
    }
}

fn replicas(instance: Value, classes: &Value) -> Vec<Value> {
    let Value::Object(mut instance) = instance else {
        return vec![instance];
    };
    take_over(&mut instance, classes);
    let wanted = instance.remove("replicas").and_then(|n| n.as_u64()).unwrap_or(1);
    let name = instance
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let numbered = |number: u64| {
        let mut one = instance.clone();
        if wanted > 1 {
            one.insert("name".to_owned(), Value::from(format!("{name}-{number}")));
        }
        Value::Object(one)
    };
    (1..=wanted.min(u64::from(REPLICAS_MAX))).map(numbered).collect()
}

/// Fills in what the class says and the instance does not.
fn take_over(instance: &mut Map<String, Value>, classes: &Value) {
    let class = instance.get("resource_class").and_then(Value::as_str);
    let class = class.and_then(|class| classes.get(class)?.as_object()).cloned();
    for (key, value) in class.into_iter().flatten() {
        instance.entry(key).or_insert(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(instances: &str) -> Result<Config, ConfigError> {
        Config::parse(&format!(
            "{{data_dir: data, operator_keys: [op], models: [{{name: m, path: m.gguf}}],
               resource_classes: {{h200: {{decode_slots: 16, kv_pool_mib: 1024, max_queue_depth: 64}}}},
               sites: [{{name: paris, jurisdiction: eu, listen: '127.0.0.1:0', instances: [{instances}]}}]}}"
        ))
    }

    #[test]
    fn replicas_of_a_class_are_written_out() {
        let config = parse(
            "{name: p, model: m, role: prefill, replicas: 4, resource_class: h200}, \
             {name: d, model: m, resource_class: h200, decode_slots: 3}",
        );
        let config = config.unwrap();
        let instances = &config.sites[0].instances;
        let names: Vec<&str> = instances.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["p-1", "p-2", "p-3", "p-4", "d"]);
        assert_eq!(
            (
                instances[0].decode_slots,
                instances[3].kv_pool_mib,
                instances[1].max_queue_depth
            ),
            (16, 1024, Some(64))
        );
        assert_eq!((instances[4].decode_slots, instances[4].kv_pool_mib), (3, 1024));
        assert_eq!(config.topology().unwrap().instances().count(), 5);
    }

    #[test]
    fn a_shorthand_that_stands_for_nothing_is_named() {
        for (instance, named) in [
            (
                "{name: p, model: m, resource_class: a100}",
                "resource_class: there is no class \"a100\"; resource_classes has: h200",
            ),
            (
                "{name: p, model: m, replicas: 0}",
                "sites.paris.instances.p.replicas: 1 to 256",
            ),
            (
                "{name: p, model: m, max_queue_depth: 0}",
                "max_queue_depth: at least 1",
            ),
            ("{name: p, model: m, replicas: 2}, {name: p-1, model: m}", "p-1"),
        ] {
            let refused = parse(instance).unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
    }
}
