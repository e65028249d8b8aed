//! The routing policy `global-cache-aware`: the host's own `portolan_policy::builtin::global_cache_aware` as a component.

portolan_sdk::routing!(portolan_sdk::builtin::GlobalCacheAware);
