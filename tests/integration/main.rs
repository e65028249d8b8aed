//! The one integration-test binary.

mod first_light;
mod hostile_tenants;
mod hot_swap;
mod policies_agree;
mod two_doors;
