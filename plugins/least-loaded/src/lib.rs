//! The routing policy `least-loaded`: the host's own `portolan_policy::builtin::least_loaded` as a component.

portolan_sdk::routing!(portolan_sdk::builtin::LeastLoaded);
