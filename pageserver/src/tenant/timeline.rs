//! One branch of a tenant's history.

pub mod manifest;
