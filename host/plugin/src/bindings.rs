//! Generated: the exports of `wit/policy.wit`, one typed table for each interface.
//!
//! One world that exports all four questions is generated rather than the contract's four, so that they share their
//! types. A component is looked up interface by interface and so still answers one.
#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    dead_code,
    clippy::all,
    reason = "generated code"
)]
#![allow(
    unsafe_code,
    reason = "generated implementations of wasmtime's unsafe lifting and lowering traits"
)]

wasmtime::component::bindgen!({
    path: "../../wit",
    inline: "
        package portolan:host;
        world every-question {
            export portolan:policy/lifecycle@0.1.0;
            export portolan:policy/residency-policy@0.1.0;
            export portolan:policy/cost-policy@0.1.0;
            export portolan:policy/routing-policy@0.1.0;
            export portolan:policy/invalidation-policy@0.1.0;
        }
    ",
    world: "portolan:host/every-question",
    ownership: Borrowing { duplicate_if_necessary: true },
});

/// Imported by guests as `level`; here because deriving it is generated code as well.
#[derive(Clone, Copy, Debug, wasmtime::component::ComponentType, wasmtime::component::Lift)]
#[component(enum)]
#[repr(u8)]
pub enum Level {
    #[component(name = "debug")]
    Debug,
    #[component(name = "info")]
    Info,
    #[component(name = "warn")]
    Warn,
    #[component(name = "error")]
    Error,
}

impl From<Level> for portolan_ports::LogLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Debug => Self::Debug,
            Level::Info => Self::Info,
            Level::Warn => Self::Warn,
            Level::Error => Self::Error,
        }
    }
}
