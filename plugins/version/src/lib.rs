//! The invalidation policy `version`: the host's own `portolan_policy::builtin::version` as a component.

portolan_sdk::invalidation!(portolan_sdk::builtin::VersionRule);
