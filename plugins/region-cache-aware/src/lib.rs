//! The routing policy `region-cache-aware`: the host's own `portolan_policy::builtin::region_cache_aware` as a component.

portolan_sdk::routing!(portolan_sdk::builtin::RegionCacheAware);
