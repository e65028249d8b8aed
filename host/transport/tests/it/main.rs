//! The transport over loopback: whole, broken, hostile.

mod chaos;
mod faults;
mod plain;
mod world;
