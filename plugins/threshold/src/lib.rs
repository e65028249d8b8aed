//! The routing policy `threshold`: the host's own `portolan_policy::builtin::threshold` as a component.

portolan_sdk::routing!(portolan_sdk::builtin::Threshold);
