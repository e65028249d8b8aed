//! The invalidation policy `idle`: the host's own `portolan_policy::builtin::idle` as a component.

portolan_sdk::invalidation!(portolan_sdk::builtin::IdleRule);
