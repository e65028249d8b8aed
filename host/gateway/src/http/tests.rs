//! The doors, knocked on from outside: every test sends HTTP requests to the whole router of a site whose engine, text
//! model, fleet and store are the fakes.

mod admin;
mod bad_input;
mod burst;
mod cancel;
mod deferred;
mod fetch;
mod hold;
mod invalidate;
mod kv;
mod lookup;
mod narrowing;
mod patience;
mod peers;
mod pressure;
mod prewarm;
mod quotas;
mod records;
mod refusals;
mod ruled;
mod service;
mod shapes;
mod stop;
mod streams;
mod support;
mod trust;
mod worlds;
