//! The cost policy `price-aware`: the host's own `portolan_policy::builtin::price_aware` as a component.

portolan_sdk::cost!(portolan_sdk::builtin::PriceAware);
