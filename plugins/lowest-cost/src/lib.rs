//! The routing policy `lowest-cost`: the host's own `portolan_policy::builtin::lowest_cost` as a component.

portolan_sdk::routing!(portolan_sdk::builtin::LowestCost);
