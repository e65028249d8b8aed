//! The routing policy `random`: the host's own `portolan_policy::builtin::random` as a component.

portolan_sdk::routing!(portolan_sdk::builtin::RandomRoute);
