//! Bindings generated from the `routing` world of `wit/policy.wit`.
//!
//! A crate of its own because generated macros are named after the interface, and every world exports `lifecycle`;
//! and because only the linked worlds' descriptions then end up in a component.
#![allow(missing_docs)]

wit_bindgen::generate!({
    path: "../../../../wit",
    world: "routing",
    pub_export_macro: true,
    default_bindings_module: "portolan_sdk::bindings::routing",
});
