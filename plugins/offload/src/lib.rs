//! The routing policy `offload`: the host's own `portolan_policy::builtin::offload` as a component.

portolan_sdk::routing!(portolan_sdk::builtin::Offload);
