//! The metrics page of a modelled engine, under vLLM's names.

use portolan_base::Moment;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub(super) struct Counters {
    queried: AtomicU64,
    hit: AtomicU64,
    received: AtomicU64,
    produced: AtomicU64,
    finished: AtomicU64,
}

/// What the page says beside its counters.
pub(super) struct Page<'a> {
    pub(super) model: &'a str,
    pub(super) load: (usize, usize, f64),
    pub(super) block_tokens: u32,
    pub(super) blocks: u32,
    pub(super) started: Moment,
}

impl Counters {
    pub(super) fn prompt(&self, tokens: u32, cached: u32, received: u32) {
        self.queried.fetch_add(u64::from(tokens), Relaxed);
        self.hit.fetch_add(u64::from(cached), Relaxed);
        self.received
            .fetch_add(u64::from(received.saturating_sub(cached)), Relaxed);
    }

    pub(super) fn produced(&self) {
        self.produced.fetch_add(1, Relaxed);
    }

    pub(super) fn finished(&self) {
        self.finished.fetch_add(1, Relaxed);
    }

    pub(super) fn page(&self, page: &Page<'_>) -> String {
        let (waiting, running, usage) = page.load;
        let labels = format!("{{engine=\"0\",model_name=\"{}\"}}", page.model);
        let mut out = String::new();
        let started = page.started.0 as f64 / 1e6;
        let mut line = |kind: &str, name: &str, labels: &str, value: f64| {
            // Writing to a text cannot fail.
            let _ = writeln!(out, "# TYPE {name} {kind}\n{name}{labels} {value:?}");
        };
        line("gauge", "process_start_time_seconds", "", started);
        line("gauge", "vllm:num_requests_running", &labels, running as f64);
        line("gauge", "vllm:num_requests_waiting", &labels, waiting as f64);
        line("gauge", "vllm:kv_cache_usage_perc", &labels, usage);
        let counters = [
            ("vllm:prefix_cache_queries_total", &self.queried),
            ("vllm:prefix_cache_hits_total", &self.hit),
            ("vllm:external_prefix_cache_hits_total", &self.received),
            ("vllm:prompt_tokens_total", &self.queried),
            ("vllm:generation_tokens_total", &self.produced),
            ("vllm:request_success_total", &self.finished),
        ];
        for (name, counter) in counters {
            line("counter", name, &labels, counter.load(Relaxed) as f64);
        }
        let config = format!(
            "{{block_size=\"{}\",engine=\"0\",num_gpu_blocks=\"{}\"}}",
            page.block_tokens, page.blocks
        );
        line("gauge", "vllm:cache_config_info", &config, 1.0);
        out
    }
}
