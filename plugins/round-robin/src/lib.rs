//! The routing policy `round-robin`: the host's own `portolan_policy::builtin::round_robin` as a component.

portolan_sdk::routing!(portolan_sdk::builtin::RoundRobin);
