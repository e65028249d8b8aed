//! The cost policy `latency-aware`: the host's own `portolan_policy::builtin::latency_aware` as a component.

portolan_sdk::cost!(portolan_sdk::builtin::LatencyAware);
