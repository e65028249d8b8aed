//! The cost policy `ttft`: the host's own `portolan_policy::builtin::ttft` as a component.

portolan_sdk::cost!(portolan_sdk::builtin::Ttft);
