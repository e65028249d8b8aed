//! What instances of the native engine compute with, as the file says it.

use super::{Config, ConfigError, EngineKind};
use portolan_base::ModelName;
use portolan_engine::ComputeDevice;

impl Config {
    pub(super) fn check_devices(&self) -> Result<(), ConfigError> {
        for site in &self.sites {
            for instance in site.instances.iter().filter(|i| i.device != ComputeDevice::Cpu) {
                let wrong = |problem: String| {
                    let key = format!("sites.{}.instances.{}.device", site.name, instance.name);
                    Err(ConfigError::value(key, problem))
                };
                if instance.engine != EngineKind::Native {
                    let problem = "only the native engine is told what to compute with: take `device` out";
                    return wrong(problem.to_owned());
                }
                if let Err(missing) = instance.device.check_built() {
                    return wrong(missing.to_string());
                }
                let windowed =
                    |name: &ModelName| self.models.iter().any(|m| m.name == *name && m.window.is_some());
                if windowed(&instance.model) {
                    let model = &instance.model;
                    return wrong(format!(
                        "model {model} has a `window`, which is computed on the `cpu` only: take one of both out"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    enum Cuda {
        In,
        Out,
    }

    fn built_with() -> Cuda {
        match cfg!(feature = "cuda") {
            true => Cuda::In,
            false => Cuda::Out,
        }
    }

    fn parse(instance: &str, model: &str) -> Result<Config, ConfigError> {
        Config::parse(&format!(
            "{{data_dir: data, operator_keys: [op], models: [{{name: m, path: m.gguf {model}}}],
               resource_classes: {{h200: {{device: 'cuda:1'}}, check: {{device: cpu-tensors}}}},
               sites: [{{name: a, jurisdiction: eu, listen: '127.0.0.1:0',
                         instances: [{{name: i, model: m {instance}}}]}}]}}"
        ))
    }

    #[test]
    fn a_gpu_needs_a_build_that_has_it_however_it_is_named() {
        for (key, device) in [
            (", device: cuda", ComputeDevice::Cuda(0)),
            (", device: 'cuda:2'", ComputeDevice::Cuda(2)),
            (", resource_class: h200", ComputeDevice::Cuda(1)),
        ] {
            match parse(key, "") {
                Ok(config) => {
                    assert_eq!(built_with(), Cuda::In, "{key}");
                    assert_eq!(config.sites[0].instances[0].device, device);
                }
                Err(refused) => {
                    let refused = refused.to_string();
                    assert_eq!(built_with(), Cuda::Out, "{refused}");
                    assert!(
                        refused.contains("sites.a.instances.i.device") && refused.contains("--features cuda"),
                        "{refused}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_processor_is_taken_unless_told_otherwise_and_mistakes_are_named() {
        let device = |config: Config| config.sites[0].instances[0].device;
        assert_eq!(device(parse("", "").unwrap()), ComputeDevice::Cpu);
        assert_eq!(device(parse(", device: cpu", "").unwrap()), ComputeDevice::Cpu);
        assert_eq!(
            device(parse(", resource_class: check", "").unwrap()),
            ComputeDevice::CpuTensors
        );
        for (instance, model, named) in [
            (", device: gpu", "", "`cuda:N`"),
            (", device: cpu-tensors", ", window: {tokens: 128}", "`window`"),
            (
                ", engine: vllm, server: {url: 'http://h:1'}, device: cpu-tensors",
                "",
                "only the native engine",
            ),
        ] {
            let refused = parse(instance, model).unwrap_err().to_string();
            assert!(refused.contains(named), "{refused}");
        }
    }
}
