//! The residency policy `jurisdiction`: the host's own `portolan_policy::builtin::jurisdiction` as a component.

portolan_sdk::residency!(portolan_sdk::builtin::Jurisdiction);
