//! The routing policy `prefix-affinity`: the host's own `portolan_policy::builtin::prefix_affinity` as a component.

portolan_sdk::routing!(portolan_sdk::builtin::PrefixAffinity);
