//! Hybrid prefix-cache pool and prefix index.
