//! The invalidation policy `dependency`: the host's own `portolan_policy::builtin::dependency` as a component.

portolan_sdk::invalidation!(portolan_sdk::builtin::DependencyRule);
