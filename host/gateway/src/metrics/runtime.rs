//! The policy runtime's own numbers: taken over as they are, each time the page is written.

use parking_lot::Mutex;
use portolan_ports::{Reading, Sample};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The numbers of the page that is being written.
#[derive(Clone, Debug, Default)]
pub(super) struct RuntimeNumbers(Arc<Mutex<Vec<Sample>>>);

impl RuntimeNumbers {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let numbers = Self::default();
        registry.register_collector(Box::new(numbers.clone()));
        numbers
    }

    pub(super) fn read(&self, samples: Vec<Sample>) {
        *self.0.lock() = samples;
    }
}

impl Collector for RuntimeNumbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let samples = self.0.lock();
        let mut metrics: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
        for sample in &*samples {
            metrics.entry(sample.name).or_default().push(sample);
        }
        for (name, samples) in metrics {
            let Some(first) = samples.first() else { continue };
            let (kind, unit) = match first.value {
                Reading::Counter(_) => (MetricType::Counter, None),
                Reading::Gauge(_) => (MetricType::Gauge, None),
                Reading::Times { .. } => (MetricType::Histogram, Some(&Unit::Seconds)),
            };
            let mut metric = encoder.encode_descriptor(name, first.help, unit, kind)?;
            for sample in samples {
                let mut one = metric.encode_family(&sample.labels)?;
                match &sample.value {
                    Reading::Counter(count) => one.encode_counter::<NoLabelSet, _, u64>(count, None)?,
                    Reading::Gauge(value) => one.encode_gauge(&i64::try_from(*value).unwrap_or(i64::MAX))?,
                    Reading::Times { buckets, sum } => {
                        let count = buckets.iter().map(|(_, count)| count).sum();
                        one.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)?;
                    }
                }
            }
        }
        Ok(())
    }
}
